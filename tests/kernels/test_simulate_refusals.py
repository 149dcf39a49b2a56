"""Refusals: the error's class, line and text; arrays are unchanged; the next kernel runs."""

import re
import textwrap
from typing import Any

import numpy as np
import pytest
from gpulab.errors import GpulabError, InputError, KernelError
from gpulab.kernels import cuda, simulate
from kernel_case import function_of

HEADER = """
import math
import os
import random
import time
import numpy as np
from gpulab.kernels import cuda, float32, int32; from numba.cuda import libdevice

class Thing:
    field = 3

def ping(v):
    return pong(v - 1)

def pong(v):
    return ping(v - 1)

def two(p, q):
    return p + q

def nothing(p):
    p += 1

def half(p):
    if p > 3:
        return p

def half_plain(p):
    if p > 3:
        return
    return p

def wrong_inside(p):
    with open("x"):
        return p

words = {"a": 1}
names = ["a", "b"]
text, texts = "text", np.array(["a"])
size, records = 32, np.zeros(3, "i4, f4")
zero, days = 0, np.timedelta64(3, "D")
pair, nosy = (1, 2), type("Nosy", (), {"__getattr__": eval})()  # which fails when it runs
table = np.arange(64.0)
"""

# Bodies of ``kernel(x, out)``; the error must name the line marked HERE. numba-cuda refuses nearly
# all of these too.
REFUSED: dict[str, str] = {
    "import": "import os  # HERE",
    "open": "f = open('x')  # HERE",
    "with": "with open('x') as f:  # HERE\n    pass",
    "try": "try:  # HERE\n    out[i] = 1\nexcept ValueError:\n    pass",
    "yield": "yield i  # HERE",
    "list comprehension": "v = [k for k in range(3)]  # HERE",
    "set": "v = {1, 2}  # HERE",
    "dictionary": "v = {1: 2}  # HERE",
    "dict outside": "v = words['a']  # HERE",
    "list outside": "v = names[0]  # HERE",
    "class": "class A:  # HERE\n    pass",
    "class outside": "v = Thing()  # HERE",
    "not in libdevice": "v = libdevice.radiansf(1.0)  # HERE",
    "attribute outside": "v = Thing.field  # HERE",
    "misspelled position": "v = cuda.blockidx.x  # HERE",
    "misspelled constant": "out[i] = math.PI  # HERE",
    "size of a number": "v = i.size  # HERE",
    "record outside": "out[i] = records[0]  # HERE",
    "texts outside": "out[i] = texts[0]  # HERE",
    "time outside": "v = cuda.shared.array(days, float32)  # HERE",
    "object that answers to any name": "out[i] = nosy  # HERE",
    "attribute of such an object": "out[i] = nosy.size  # HERE",
    "call of such an object": "out[i] = nosy(i)  # HERE",
    "global": "global size  # HERE\nsize = 3",
    "device function, too few": "v = two(i)  # HERE",
    "recursion": "v = ping(i)  # HERE?",
    "refused inside a device function": "v = wrong_inside(i)  # HERE?",
    "nothing used as a value": "out[i] = nothing(i)  # HERE",
    "undefined name": "out[i] = undefined_name  # HERE",
    "undefined function": "out[i] = undefined_function(i)  # HERE",
    "unset variable": "out[i] = later  # HERE\nlater = 3",
    "variable of itself": "n = n  # HERE\nout[n] = i",
    "os": "v = os.getpid()  # HERE",
    "random": "v = random.random()  # HERE",
    "time": "v = time.time()  # HERE",
    "eval": "v = eval('i')  # HERE",
    "dunder": "v = x.__class__  # HERE",
    "numpy function": "v = np.zeros(3)  # HERE",
    "unknown of cuda": "v = cuda.no_such_thing(i)  # HERE",
    "unknown of math": "v = math.no_such_thing(i)  # HERE",
    "grid of a variable": "v = cuda.grid(i)  # HERE",
    "barrier with a number": "cuda.syncthreads(i)  # HERE",
    "too many indices": "v = x[i, i]  # HERE",
    "float index": "v = x[0.5]  # HERE",
    "divided index": "v = x[i / 2]  # HERE",
    "index of a number": "v = i[0]  # HERE",
    "index of a tuple, a float": "pair = (1, 2)\nv = pair[1.0]  # HERE",
    "index of a tuple, a truth value": "v = (1, 2)[i > 3]  # HERE",
    "index of a tuple, too large": "v = (1, 2)[2]  # HERE",
    "index of a tuple, too large in some threads": "v = (1, 2)[i]  # HERE",
    "index of a tuple of two types": "v = (1, 2.0)[i % 2]  # HERE",
    "index of a tuple of two types in a loop": "for k in range(2):\n    v = (1, 2.0)[k]  # HERE",
    "array as number": "out[i] = x + 1  # HERE",
    "array stored": "out[i] = x  # HERE",
    "tuple stored": "out[i] = (1, 2)  # HERE",
    "too few unpacked": "a, b, c = 1, 2  # HERE",
    "float bits": "v = 1.5 & i  # HERE",
    "float shift": "v = i << 0.5  # HERE",
    "range of four": "for k in range(1, 2, 3, 4):  # HERE\n    pass",
    "step of zero": "for k in range(0, 5, 0):  # HERE\n    pass",
    "loop over a tuple of two types": "for v in (1, 2.5):  # HERE\n    out[i] += v",
    "function of a name that math lacks": "v = math.arcsin(x[i])  # HERE",
    "float of a text": "v = float('one')  # HERE",
    "matrix product": "v = x @ x  # HERE",
    "returned value": "return i  # HERE",
    "shared of a variable size": "v = cuda.shared.array(i, float32)  # HERE",
    "shared without a type": "v = cuda.shared.array(3)  # HERE",
    "shared of a wrong type": "v = cuda.shared.array(3, Thing)  # HERE",
    "local of a variable size": "v = cuda.local.array(x.size, float32)  # HERE",
    "local empty": "v = cuda.local.array(0, float32)  # HERE",
    "too much local": "v = cuda.local.array(131074, float32)  # HERE",
    "too much shared": "v = cuda.shared.array(100000, float32)  # HERE\nv[i] = 1",
    "atomic of a number": "cuda.atomic.add(i, 0, 1)  # HERE",
    "atomic, too few": "cuda.atomic.add(out, 1)  # HERE",
    "huge integer": "v = 99999999999999999999999  # HERE",
    "attribute assigned": "x.size = 3  # HERE",
    "endless": "while True:  # HERE\n    out[i] += 1",
    "endless without its step": "k = i\nwhile k < x.size:  # HERE\n    out[i] += x[k]",
    "endless by its values": "while out[i] > 0:  # HERE?\n    out[i] += 1",
    "array from outside written": "table[i] = 1  # HERE",
    "atomic on an array from outside": "cuda.atomic.add(table, i, 1)  # HERE",
    "constant array written": "c = cuda.const.array_like(table)\nc[i] = 1  # HERE",
    "complex into floats": "out[i] = 1j  # HERE",
    "complex added to floats": "out[i] += 1j  # HERE",
    "a type of a complex number": "v = float32(1j)  # HERE",
    "a type of an array": "v = int32(x)  # HERE",
    "complex order": "v = 1j < 2j  # HERE",
    "array as a test": "if x:  # HERE\n    out[i] = 1",
    "a type of two numbers": "v = int32(i, i)  # HERE",
    "a float of a truth value": "v = float(i > 3)  # HERE",
    "length of a number": "v = len(i)  # HERE",
    "root of an array": "v = math.sqrt(x)  # HERE",
    "root of a complex number": "v = math.sqrt(1j)  # HERE",
    "shared without elements": "v = cuda.shared.array((0, 3), float32)  # HERE",
    "array compared": "v = x < 3  # HERE",
    "array equal to a number": "if x == out[i]:  # HERE\n    out[i] = 1",
    "array and a test": "if x and i < 3:  # HERE\n    out[i] = 1",
    "a test and a shape": "if i < 3 and x.shape:  # HERE\n    out[i] = 1",
    "a tuple of numbers in an index": "v = x[pair + 1]  # HERE",
    "sign of a tuple in an index": "v = x[-pair]  # HERE",
    "size by zero": "v = cuda.shared.array(size // zero, float32)  # HERE",
    "too many indices and a slice": "v = x[i, 1:2]  # HERE",
    "range by name": "for k in range(stop=3):  # HERE\n    pass",
    "two masks": "cuda.syncwarp(1, 2)  # HERE",
    "grid with another name": "v = cuda.grid(ndim=2, more=1)  # HERE",
    "attribute added to": "x.size += 1  # HERE",
    "atomic of bits of floats": "cuda.atomic.and_(out, 0, 1)  # HERE",
    "a lock that nobody releases": (
        "while cuda.atomic.max(out, 0, 0.0) < 500.0:  # HERE\n    pass"
    ),
    "argument given twice": "v = two(i, i, p=i)  # HERE",
    "number spread": "v = min(*i)  # HERE",
    "element deleted": "del x[0]  # HERE",
    "beyond a range": "v = range(3)[3]  # HERE",
    "step of each thread": "v = x[:: i + 1]  # HERE",
    "too few for a slice": "out[2:5] = (1, 2)  # HERE",
    "alignment": "v = cuda.shared.array(3, float32, 3)  # HERE",
    "alignment, a variable": "v = cuda.local.array(3, float32, i)  # HERE",
    "shuffle of truth values": "v = cuda.shfl_sync(0xFFFFFFFF, i > 3, 0)  # HERE",
    "mask of floats": "v = cuda.any_sync(1.0, i)  # HERE",
    "count of floats": "v = cuda.syncthreads_count(0.5)  # HERE",
    "barrier of an array": "x.sync()  # HERE",
    "number called": "v = i\nv(1)  # HERE",
    "loop over a number": "for v in i:  # HERE\n    pass",
    "number in an array": "v = i in x  # HERE",
    "choice of two types": "v = cuda.selp(i > 3, 1, 2.0)  # HERE",
    "another size": "v = x.reshape((3, 5))  # HERE",
    "view of every second": "v = x[::2].view(int32)  # HERE",
    "array or number": "v = x if i > 3 else 1  # HERE",
    "tuples of two lengths": "v = (1, 2)\nif i > 3:\n    v = (1, 2, 3)  # HERE",
    "too much shared in all": (
        "v = cuda.shared.array(58112, float32)\nw = cuda.shared.array(1, float32)  # HERE"
    ),
    "vector of too few": "v = cuda.float32x2(1)  # HERE",
    "second line of a statement": "v = (i +\n     undefined_name)  # HERE",
    "inside a function inside": "def inner(p):\n    return p[0]  # HERE\nv = inner(i)",
    "sum of a number": "v = sum(i)  # HERE",
}  # fmt: skip
# What numba-cuda compiles and the simulator does not support yet; supported rows leave the table.
NOT_YET: dict[str, str] = {
    "list": "v = [1, 2]  # HERE",
    "match": "match i:  # HERE\n    case 1:\n        pass",
    "const of an argument": "v = cuda.const.array_like(x)  # HERE",
    "bits of a float": "v = cuda.popc(1.5)  # HERE",
    "value for some threads": "out[i] = half(x[i])  # HERE?",
    "value for some, nothing for others": "out[i] = half_plain(x[i])  # HERE?",
    "float range": "for k in range(0.5):  # HERE\n    pass",
    "kind changes": "v = x\nif i > 3:\n    v = 1  # HERE\nout[i] = 0",
}  # fmt: skip


def _doubled(values):
    i = cuda.grid(1)
    if i < values.size:
        values[i] *= 2


def _refused(body: str) -> KernelError:
    """Simulate ``kernel(x, out)`` with a body and return the error; nothing may have changed."""
    start = "def kernel(x, out):\n    i = cuda.grid(1)\n    out[i] = 99\n"
    text = f"{HEADER}{start}{textwrap.indent(body, '    ')}\n"
    x, out, values = np.arange(64.0), np.full(64, 7.0), np.arange(40.0)
    with pytest.raises(KernelError) as caught:
        simulate(function_of(text), 2, 32, x, out, max_steps=2000)
    np.testing.assert_array_equal((x, out), (np.arange(64.0), np.full(64, 7.0)))
    line = caught.value.line
    if "# HERE?" not in body:  # else the error may name a line of a device function
        assert "# HERE" in text.splitlines()[line - 1]
    simulate(_doubled, 2, 32, values)
    np.testing.assert_array_equal(values, 2 * np.arange(40.0))
    return caught.value


@pytest.mark.parametrize("name", [*REFUSED, *NOT_YET])
def test_a_kernel_that_cannot_run_is_refused_at_its_line(name: str) -> None:
    """The error has the line; arrays are as they were; the next kernel runs."""
    message = str(_refused({**REFUSED, **NOT_YET}[name]))
    assert "\n" not in message
    assert not re.search(r"Traceback|<class|object at 0x", message)


def test_what_the_errors_say(approved: Any) -> None:
    """One sentence each: the line and its text, what is wrong, what was expected."""
    texts = [f"{name}: {_refused(body)}" for name, body in (REFUSED | NOT_YET).items()]
    assert "\n".join(texts) + "\n" == approved


@pytest.mark.parametrize(
    "head",
    [
        "def kernel(x, *, out):", "def kernel(x, **out):", "async def kernel(x, out):",
        "kernel = lambda x, out:\\",
    ],
)  # fmt: skip
def test_parameters_that_a_kernel_cannot_have_are_refused(head: str) -> None:
    """Keyword-only and ``**`` parameters, async functions and lambdas are refused."""
    with pytest.raises(KernelError):
        simulate(function_of(f"{head}\n    0\n"), 1, 1, np.zeros(3), np.zeros(3))


def _copies(x, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = x[i]


X, OUT, APART = np.arange(64.0), np.zeros(64), np.zeros(70)
FIXED = np.zeros(64)
FIXED.flags.writeable = False
# Grid, block, arguments, options, and what the message names.
LAUNCHES: list[tuple[Any, Any, tuple, dict[str, Any], str]] = [
    *((2, 32, given, {}, "2 arguments") for given in ((X,), (X, OUT, 3), ())),
    (2, 32, (X, FIXED), {}, "read-only"), (2, 32, (APART[:64], APART[6:]), {}, "overlap"),
    *(
        (2, 32, (given, OUT), {}, "x")
        for given in (
            np.array([1, None], dtype=object), np.zeros(64, ">f8"), [1, 2, 3],
            "text", {}, 2**70,
        )
    ),
    *((grid, 32, (X, OUT), {}, "grid=") for grid in (0, (2, 0), (1, 1, 1, 1), (), 1.5, True)),
    (np.timedelta64(3), 32, (X, OUT), {}, "grid="),
    *((2, block, (X, OUT), {}, "block=") for block in (0, -32, "32", None)),
    *((grid, 1, (X, OUT), {}, "268,435,456") for grid in (2**31 - 1, 2**23 + 1, (9999, 999))),
    (2, 1025, (X, OUT), {}, "1,024"), (2, (32, 33), (X, OUT), {}, "1,056"),
    (2, (1, 1, 65), (X, OUT), {}, "64"), ((1, 65536), 32, (X, OUT), {}, "65,535"),
    *(
        (2, 32, (X, OUT), {"dynamic_shared_bytes": n}, "dynamic_shared_bytes is")
        for n in (-1, 1 << 30, 1.5, "8")
    ),
    *((2, 32, (X, OUT), {"max_steps": n}, "max_steps is") for n in (0, "many")),
    *((2, 32, (X, OUT), {"trace": n}, "trace is") for n in (2, -1, True)),
]  # fmt: skip


@pytest.mark.parametrize(("grid", "block", "given", "options", "words"), LAUNCHES)
def test_a_launch_that_cannot_be_is_refused(
    grid: Any, block: Any, given: tuple, options: dict, words: str
) -> None:
    """Grids, blocks, arguments and options that do not fit are named; nothing is changed."""
    with pytest.raises(InputError, match=re.escape(words)) as caught:
        simulate(_copies, grid, block, *given, **options)
    assert "\n" not in str(caught.value)
    assert not OUT.any()


@pytest.mark.parametrize(
    "kernel", [3, None, "text", len, np.add, int, object(), [_copies]], ids=range(8)
)
def test_what_is_no_python_function_is_refused(kernel: Any) -> None:
    """Numbers, types, built-in functions, and a function without a text."""
    names: dict[str, Any] = {}
    exec(compile("def untold(x):\n    x[0] = 1\n", "<no file>", "exec"), names)
    for each in (kernel, names["untold"]):
        with pytest.raises(GpulabError):
            simulate(each, 1, 1, np.zeros(1))


WRITERS = (
    "y = x\ny[i % 2] = i", "row = x[2:]\nrow[i % 2] = i", "stores(x, i)", "again(x, i)",
    "for a in (out, x):\n    a[0] = i", "(x, out)[0][0] = i", "pick(x, out)[0] = i", "x[0] += i",
    "for a, _ in ((x, 1), (out, 2)):\n    a[0] = i", "stores(pick(x, out), i)", "a, x[0] = 1, i",
    "cuda.atomic.add(x, 0, i)\nout[i] = x[0]",
)  # fmt: skip


@pytest.mark.parametrize("body", WRITERS)
def test_an_array_counts_as_written_however_that_comes(body: str) -> None:
    """However a kernel writes to an array, races are found, and a read-only array is refused."""
    text = (
        f"{HEADER}def stores(v, i):\n    v[i % 2] = i\n\nagain = stores\n\n"
        "def pick(a, b):\n    return a\n\n"
        f"def kernel(x, out):\n    i = cuda.grid(1)\n{textwrap.indent(body, '    ')}\n"
    )
    found = simulate(function_of(text), 1, 32, np.zeros(64), np.zeros(64)).findings
    assert ("race", "x") in {(f.kind, f.array) for f in found}
    with pytest.raises(InputError, match="read-only"):
        simulate(function_of(text), 1, 32, FIXED, np.zeros(64))
    assert not FIXED.any()


def test_one_array_given_twice_is_one() -> None:
    """What is written under one name is read under the other, and the two accesses race."""
    body = "    i = cuda.grid(1)\n    if i > 0:\n        out[i - 1] = x[i]\n    out[i] += x[i]\n"
    same = np.arange(32.0)
    s = simulate(function_of(f"{HEADER}def kernel(x, out):\n{body}"), 1, 32, same, same)
    assert same.tolist() == [*range(2, 64, 2), 62]
    assert {finding.kind for finding in s.findings} == {"race"}


def test_a_read_only_array_may_be_read() -> None:
    """Only what is written must be writable."""
    out = np.zeros(64)
    simulate(_copies, 2, 32, np.frombuffer(bytes(range(64)), dtype=np.uint8), out)
    assert out.tolist() == list(range(64))


def long(x, out):
    i = cuda.grid(1)
    for k in range(400):
        out[i] += k % 2
    while x[0] == x[0]:
        out[0] = i  # endless


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
@pytest.mark.parametrize("threads", [1, 32])
def test_what_stop_raises_comes_out_and_arrays_are_as_before(error: Any, threads: int) -> None:
    """An error that ``stop`` raises comes out, and what threads had stored by then is undone."""
    out, seen = np.full(64, 7.0), []

    def stop() -> None:
        seen.append(out.copy())
        if len(seen) == 9:
            raise error

    with pytest.raises(error):
        simulate(long, 2, threads, np.zeros(1), out, stop=stop, max_steps=10**9)
    assert (seen[-1] != 7.0).any()
    assert (out == 7.0).all()


@pytest.mark.parametrize(("threads", "blocks"), [(1, 132 * 32 + 1), (70, 1)])
def test_the_bound_of_statements_is_exact(threads: int, blocks: int) -> None:
    """By hand: three statements, 601 tests and 600 additions, each counted once for all warps.

    It holds for each batch of blocks: 132 multiprocessors have room for 32 each.
    """
    body = "    k = 0\n    m = 1\n    while k < 600:\n        k += m\n    out[0] = 600\n"
    out = np.zeros(70)
    simulate(
        function_of(f"def kernel(out):\n{body}"), blocks, threads, out, max_steps=3 + 601 + 600
    )
    assert out[0] == 600
    with pytest.raises(KernelError, match="max_steps"):
        simulate(
            function_of(f"def kernel(out):\n{body}"), blocks, threads, out, max_steps=3 + 601 + 599
        )
    with pytest.raises(KernelError):
        simulate(long, 1, threads, np.zeros(1), out, max_steps=9_000)


def test_a_name_without_a_value_is_no_global() -> None:
    """A name that the enclosing function has not set yet is refused, even if a global has it."""
    inner = "    def kernel(out):\n        out[0] = size\n    return kernel\n    size = 1\n"
    kernel = function_of(f"{HEADER}def make():\n{inner}", "make")()
    with pytest.raises(KernelError, match="the name size is not defined"):
        simulate(kernel, 1, 1, np.zeros(1))
