"""What the simulator refuses: one sentence that names the line, arrays as they were, and the next kernel runs as if nothing had been."""

from __future__ import annotations

import re
import textwrap
from typing import Any

import numpy as np
import pytest
from random_kernels import function_of

from gpulab.errors import GpulabError, InputError, KernelError
from gpulab.kernels import cuda, simulate
from gpulab.kernels._simulate._hazards import Tracker

HEADER = """
import math
import os
import random
import time
import numpy as np
from gpulab.kernels import cuda, float32, int32

class Thing:
    field = 3

def direct(v):
    return direct(v - 1) if v > 0 else 0

def ping(v):
    return pong(v - 1)

def pong(v):
    return ping(v - 1)

def two(p, q):
    return p + q

def with_default(p, q=1):
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
text = "text"
size = 32
zero = 0
pair = (1, 2)
table = np.arange(64.0)
"""

# The body of ``kernel(x, out)`` and the line of it that the message must name; the first line of the body stores, so that arrays change.
REFUSED: dict[str, str] = {
    "import": "import os  # HERE",
    "import from": "from math import sqrt  # HERE",
    "open": "f = open('x')  # HERE",
    "with": "with open('x') as f:  # HERE\n    pass",
    "try": "try:  # HERE\n    out[i] = 1\nexcept ValueError:\n    pass",
    "raise": "raise ValueError  # HERE",
    "yield": "yield i  # HERE",
    "await": "v = (yield)  # HERE",
    "lambda": "f = lambda v: v  # HERE",
    "list comprehension": "v = [k for k in range(3)]  # HERE",
    "generator": "v = sum(k for k in range(3))  # HERE",
    "set": "v = {1, 2}  # HERE",
    "dictionary": "v = {1: 2}  # HERE",
    "list": "v = [1, 2]  # HERE",
    "dict outside": "v = words['a']  # HERE",
    "list outside": "v = names[0]  # HERE",
    "string": "v = 'a'  # HERE",
    "string outside": "v = text  # HERE",
    "f-string": "v = f'{i}'  # HERE",
    "class": "class A:  # HERE\n    pass",
    "class outside": "v = Thing()  # HERE",
    "attribute outside": "v = Thing.field  # HERE",
    "function inside": "def inner(v):  # HERE\n    return v",
    "global": "global size  # HERE\nsize = 3",
    "del": "del i  # HERE",
    "match": "match i:  # HERE\n    case 1:\n        pass",
    "walrus": "v = (w := i)  # HERE",
    "star call": "v = two(*(i, i))  # HERE",
    "keyword to device function": "v = two(p=i, q=i)  # HERE",
    "device function, too few": "v = two(i)  # HERE",
    "device function, too many": "v = two(i, i, i)  # HERE",
    "recursion": "v = direct(i)  # HERE?",
    "recursion of two": "v = ping(i)  # HERE?",
    "refused inside a device function": "v = wrong_inside(i)  # HERE?",
    "default in a device function": "v = with_default(i)  # HERE?",
    "nothing used as a value": "out[i] = nothing(i)  # HERE",
    "undefined name": "out[i] = undefined_name  # HERE",
    "undefined function": "out[i] = undefined_function(i)  # HERE",
    "unset variable": "out[i] = later  # HERE\nlater = 3",
    "os": "v = os.getpid()  # HERE",
    "random": "v = random.random()  # HERE",
    "time": "v = time.time()  # HERE",
    "print": "print(i)  # HERE",
    "eval": "v = eval('i')  # HERE",
    "dunder": "v = x.__class__  # HERE",
    "numpy function": "v = np.zeros(3)  # HERE",
    "method of an array": "v = x.sum()  # HERE",
    "unknown of cuda": "v = cuda.no_such_thing(i)  # HERE",
    "unknown of math": "v = math.no_such_thing(i)  # HERE",
    "math with too many": "v = math.sqrt(i, i)  # HERE",
    "grid of four": "v = cuda.grid(4)  # HERE",
    "grid of a variable": "v = cuda.grid(i)  # HERE",
    "barrier with a number": "cuda.syncthreads(i)  # HERE",
    "slice with a step": "v = x[::2]  # HERE",
    "too many indices": "v = x[i, i]  # HERE",
    "float index": "v = x[0.5]  # HERE",
    "divided index": "v = x[i / 2]  # HERE",
    "index of a number": "v = i[0]  # HERE",
    "threadIdx as a whole": "v = cuda.threadIdx  # HERE",
    "index of a tuple, a float": "pair = (1, 2)\nv = pair[1.0]  # HERE",
    "index of a tuple, a truth value": "v = (1, 2)[i > 3]  # HERE",
    "index of a tuple, two": "pair = (1, 2)\nv = pair[i, 0]  # HERE",
    "index of a tuple, too large": "v = (1, 2)[2]  # HERE",
    "index of a tuple, too large in some threads": "v = (1, 2)[i]  # HERE",
    "index of a tuple of two types": "v = (1, 2.0)[i % 2]  # HERE",
    "index of a tuple of two types, the same in all threads": "for k in range(2):\n    v = (1, 2.0)[k]  # HERE",
    "index of a tuple of arrays": "(x, out)[i % 2][i] = 1  # HERE",
    "array as number": "out[i] = x + 1  # HERE",
    "array stored": "out[i] = x  # HERE",
    "tuple stored": "out[i] = (1, 2)  # HERE",
    "too few unpacked": "a, b, c = 1, 2  # HERE",
    "float bits": "v = 1.5 & i  # HERE",
    "float shift": "v = i << 0.5  # HERE",
    "float range": "for k in range(0.5):  # HERE\n    pass",
    "range of four": "for k in range(1, 2, 3, 4):  # HERE\n    pass",
    "step of zero": "for k in range(0, 5, 0):  # HERE\n    pass",
    "loop over an array": "for v in x:  # HERE\n    pass",
    "loop over a tuple of two types": "for v in (1, 2.5):  # HERE\n    out[i] += v",
    "function of a name that math lacks": "v = math.arcsin(x[i])  # HERE",
    "float of a text": "v = float('one')  # HERE",
    "for else": "for k in range(3):  # HERE\n    pass\nelse:\n    pass",
    "while else": "while i < 0:  # HERE\n    pass\nelse:\n    pass",
    "in": "v = i in (1, 2)  # HERE",
    "is": "v = i is None  # HERE",
    "matrix product": "v = x @ x  # HERE",
    "returned value": "return i  # HERE",
    "shared of a variable size": "v = cuda.shared.array(i, float32)  # HERE",
    "shared without a type": "v = cuda.shared.array(3)  # HERE",
    "shared of a wrong type": "v = cuda.shared.array(3, Thing)  # HERE",
    "local of a variable size": "v = cuda.local.array(x.size, float32)  # HERE",
    "local empty": "v = cuda.local.array(0, float32)  # HERE",
    "too much local": "v = cuda.local.array(131074, float32)  # HERE",
    "too much shared": "v = cuda.shared.array(100000, float32)  # HERE\nv[i] = 1",
    "const of an argument": "v = cuda.const.array_like(x)  # HERE",
    "atomic of a number": "cuda.atomic.add(i, 0, 1)  # HERE",
    "atomic, too few": "cuda.atomic.add(out, 1)  # HERE",
    "huge integer": "v = 99999999999999999999999  # HERE",
    "None": "v = None  # HERE",
    "bare name": "i  # HERE",
    "bare sum": "i + 1  # HERE",
    "attribute assigned": "x.size = 3  # HERE",
    "kind changes": "v = x\nif i > 3:\n    v = 1  # HERE\nout[i] = 0",
    "endless": "while True:  # HERE\n    out[i] += 1",
    "endless while of a variable": "while i >= 0:  # HERE\n    i += 1\n    i -= 1",
    "array from outside written": "table[i] = 1  # HERE",
    "array from outside added to": "table[i] += 1  # HERE",
    "atomic on an array from outside": "cuda.atomic.add(table, i, 1)  # HERE",
    "slice of an array from outside written": "table[2:][0] = 1  # HERE",
    "constant array written": "c = cuda.const.array_like(table)\nc[i] = 1  # HERE",
    "complex into floats": "out[i] = 1j  # HERE",
    "complex added to floats": "out[i] += 1j  # HERE",
    "a type of a complex number": "v = float32(1j)  # HERE",
    "a type of an array": "v = int32(x)  # HERE",
    "complex order": "v = 1j < 2j  # HERE",
    'array as a test': "if x:  # HERE\n    out[i] = 1",
    'array chosen': "v = x if i > 3 else out  # HERE",
    'a type of two numbers': "v = int32(i, i)  # HERE",
    'a float of a truth value': "v = float(i > 3)  # HERE",
    'length of a number': "v = len(i)  # HERE",
    'root of an array': "v = math.sqrt(x)  # HERE",
    'root of a complex number': "v = math.sqrt(1j)  # HERE",
    'bits of a float': "v = cuda.popc(1.5)  # HERE",
    'shared without elements': "v = cuda.shared.array((0, 3), float32)  # HERE",
    'sign of an array': "v = -x  # HERE",
    'array compared': "v = x < 3  # HERE",
    'array equal to a number': "if x == out[i]:  # HERE\n    out[i] = 1",
    'array unlike another': "v = x != out  # HERE",
    'array and a test': "if x and i < 3:  # HERE\n    out[i] = 1",
    'a test and a shape': "if i < 3 and x.shape:  # HERE\n    out[i] = 1",
    'a test or nothing': "if i < 3 or nothing(i):  # HERE\n    out[i] = 1",
    'square of an array': "v = x ** 2  # HERE",
    'plus of an array': "v = (+x)[i]  # HERE",
    'a tuple of numbers in an index': "v = x[pair + 1]  # HERE",
    'sign of a tuple in an index': "v = x[-pair]  # HERE",
    'size by zero': "v = cuda.shared.array(size // zero, float32)  # HERE",
    'slice written': "x[2 * i:2 * i + 2] = 0  # HERE",
    'slice added to': "x[2 * i:2 * i + 2] += 1  # HERE",
    'too many indices and a slice': "v = x[i, 1:2]  # HERE",
    'one array or another': "v = x\nif i > 3:\n    v = out  # HERE",
    'range by name': "for k in range(stop=3):  # HERE\n    pass",
    'two masks': "cuda.syncwarp(1, 2)  # HERE",
    'grid with another name': "v = cuda.grid(ndim=2, more=1)  # HERE",
    'attribute added to': "x.size += 1  # HERE",
    'star in a tuple': "v = (*(1, 2), 3)  # HERE",
    'atomic of bits of floats': "cuda.atomic.and_(out, 0, 1)  # HERE",
}  # fmt: skip

# What the message says after the line, by what is refused: first what no kernel has at all, then the rest in full.
UNSUPPORTED = {
    "an import": ("import", "import from"),
    "with": ("with", "refused inside a device function"),
    "try": ("try",),
    "raise": ("raise",),
    "yield": ("await",),
    "a lambda": ("lambda",),
    "a list comprehension": ("list comprehension",),
    "a set": ("set",),
    "a dictionary": ("dictionary",),
    "a list": ("list",),
    "a formatted string": ("f-string",),
    "a class": ("class",),
    "`.field` of Thing": ("attribute outside",),
    "a function inside of it": ("function inside",),
    "global": ("global",),
    "del": ("del",),
    "match": ("match",),
    "an assignment inside an expression": ("walrus",),
    "the module os": ("os",),
    "the module random": ("random",),
    "the module time": ("time",),
    "`.__class__`": ("dunder",),
    "`np.zeros`": ("numpy function",),
    "`cuda.no_such_thing`": ("unknown of cuda",),
    "`math.no_such_thing`": ("unknown of math",),
    "`math.arcsin`": ("function of a name that math lacks",),
    "a slice with a step": ("slice with a step",),
    "`else` after a loop": ("for else", "while else"),
    "the comparison In": ("in",),
    "the comparison Is": ("is",),
    "the operator MatMult": ("matrix product",),
}
SAID = {
    "`open` is not supported in a kernel; expected a function of cuda, math, or a Python function of yours": ("open",),
    "an expression whose value is not used does nothing; expected a call or an assignment": ("yield", "bare name", "bare sum"),
    "`sum` is not supported in a kernel; expected a function of cuda, math, or a Python function of yours": ("generator",),
    "`words` is no number, array or tuple that a kernel can use": ("dict outside",),
    "`names` is no number, array or tuple that a kernel can use": ("list outside",),
    "a str is not supported in a kernel; expected a number": ("string",),
    "`text` is no number, array or tuple that a kernel can use": ("string outside",),
    "`Thing` is not supported in a kernel; expected a function of cuda, math, or a Python function of yours": ("class outside",),
    "a device function takes its arguments by position": ("star call", "keyword to device function"),
    "two takes 2 arguments and gets 1": ("device function, too few",),
    "two takes 2 arguments and gets 3": ("device function, too many",),
    "direct calls itself; recursion is not supported. Write it as a loop": ("recursion",),
    "ping calls itself; recursion is not supported. Write it as a loop": ("recursion of two",),
    "with_default, line 24 `def with_default(p, q=1):`: expected plain parameters; defaults, * and ** are not supported": (
        "default in a device function",
    ),
    "only numbers can be stored in an array": ("nothing used as a value", "array stored", "tuple stored"),
    "the name undefined_name is not defined": ("undefined name",),
    "the name undefined_function is not defined": ("undefined function",),
    "the variable later is used before it has a value": ("unset variable",),
    "`print` is not supported in a kernel; expected a function of cuda, math, or a Python function of yours": ("print",),
    "`eval` is not supported in a kernel; expected a function of cuda, math, or a Python function of yours": ("eval",),
    "`x.sum` is not supported in a kernel; expected a function of cuda, math, or a Python function of yours": ("method of an array",),
    "math.sqrt takes 1 argument": ("math with too many",),
    "cuda.grid takes 1, 2 or 3, written as a number": ("grid of four", "grid of a variable"),
    "cuda.syncthreads takes 0 arguments": ("barrier with a number",),
    "x has 1 dimension and the index has 2; expected one index for each": ("too many indices",),
    "an index is of type float64; expected an integer. Wrap it in int(...)": ("float index", "divided index"),
    "`i` is no array; expected one before the index": ("index of a number", "atomic of a number"),
    "`cuda.threadIdx` has three parts; expected `.x`, `.y` or `.z` of it, written out": ("threadIdx as a whole",),
    "a tuple takes one index, an integer": ("index of a tuple, a float", "index of a tuple, a truth value", "index of a tuple, two"),
    "the tuple has 2 elements; expected an index below that": (
        "index of a tuple, too large",
        "index of a tuple, too large in some threads",
    ),
    "the elements of the tuple are of several types, and its index is no constant; expected one type, or a constant index": (
        "index of a tuple of two types",
        "index of a tuple of two types, the same in all threads",
    ),
    "threads take different arrays from the tuple; expected the same one in all threads. Use an index that differs instead": (
        "index of a tuple of arrays",
    ),
    "the operation does not take an array and int64; expected numbers that it is defined for": (
        "array compared",
        "array as number",
        "square of an array",
    ),
    "the operation does not take an array and float64; expected numbers that it is defined for": ("array equal to a number",),
    "the operation does not take an array and an array; expected numbers that it is defined for": ("array unlike another",),
    "`and` does not take an array; expected a number or a truth value": ("array and a test",),
    "`and` does not take a tuple; expected a number or a truth value": ("a test and a shape",),
    "`or` does not take nothing; expected a number or a truth value": ("a test or nothing",),
    "the operation does not take a tuple and int64; expected numbers that it is defined for": ("a tuple of numbers in an index",),
    "the operation does not take a tuple; expected numbers that it is defined for": ("sign of a tuple in an index",),
    "a slice stands where one element is written; expected an index. Write a loop over the elements": (
        "slice written",
        "slice added to",
    ),
    "expected 3 values to the right": ("too few unpacked",),
    "the operation does not take float64 and int64; expected numbers that it is defined for": ("float bits",),
    "the operation does not take int64 and float64; expected numbers that it is defined for": ("float shift",),
    "range needs integers": ("float range",),
    "range takes one to three numbers": (
        "range by name",
        "range of four",
    ),
    "range with a step of 0 has no end; expected another step": ("step of zero",),
    "expected `range(...)` or a tuple to loop over": ("loop over an array",),
    "the elements of the tuple are of several types; expected one type to loop over": ("loop over a tuple of two types",),
    "float('one') is no number; expected one such as float('inf')": ("float of a text",),
    "a kernel returns nothing; expected a plain `return`": ("returned value",),
    "the shape of an array in a kernel must be a constant: numbers, or names of numbers outside of the kernel": (
        "shared of a variable size",
        "local of a variable size",
        "size by zero",
    ),
    "cuda.shared.array takes 2 arguments": ("shared without a type",),
    "`Thing` is no element type; expected one such as float32": ("shared of a wrong type",),
    "a local array needs elements": ("local empty",),
    "each thread asks for 524,296 bytes of local memory; expected at most 524,288. Make the array smaller": ("too much local",),
    "the block asks for 400,000 bytes of shared memory; expected at most 232,448. Make the shared arrays smaller": ("too much shared",),
    "cuda.const.array_like takes a NumPy array from outside of the kernel": ("const of an argument",),
    "cuda.atomic.add takes 3 arguments": ("atomic, too few",),
    "an integer beyond 64 bits is not supported in a kernel; expected a number": ("huge integer",),
    "a NoneType is not supported in a kernel; expected a number": ("None",),
    "expected a variable or an element of an array to the left": (
        "attribute added to",
        "attribute assigned",
    ),
    "v is of one kind in some threads and of another in others; expected one kind": ("kind changes",),
    "the kernel was still at work after 2,000 statements of whole batches; expected an end. Look for a loop whose condition stays true, "
    "or pass a larger max_steps": (
        "endless",
        "endless while of a variable",
    ),
    "a complex number cannot be stored in an array of float64": ("complex into floats", "complex added to floats"),
    "table is constant memory, as all arrays from outside of the kernel are; expected an argument of the kernel to write to": (
        "array from outside written",
        "array from outside added to",
        "atomic on an array from outside",
        "slice of an array from outside written",
    ),
    "c is constant memory, as all arrays from outside of the kernel are; expected an argument of the kernel to write to": (
        "constant array written",
    ),
    "float32 can be made of a real number only": ("a type of a complex number",),
    "int32 can be made of a real number only": ("a type of an array",),
    "the operation does not take complex128 and complex128; expected numbers that it is defined for": ("complex order",),
    "expected a number or a truth value to test": ("array as a test",),
    "a conditional expression must choose between two numbers": ("array chosen",),
    "int32 takes one number": ("a type of two numbers",),
    "float() takes no truth value; expected a number": ("a float of a truth value",),
    "len takes an array or a tuple": ("length of a number",),
    "math.sqrt takes numbers": ("root of an array",),
    "math.sqrt takes real numbers": ("root of a complex number",),
    "cuda.popc takes an integer": ("bits of a float",),
    "a shared array needs elements; its shape (0,) means the dynamic shared memory of the launch": ("shared without elements",),
    "the operation does not take an array; expected numbers that it is defined for": ("sign of an array", "plus of an array"),
    "x has 1 dimension and the index has 2; expected fewer": ("too many indices and a slice",),
    "v is one array in some threads and another in others; expected one array. Use an index that differs instead": (
        "one array or another",
    ),
    "cuda.syncwarp takes 0 to 1 arguments": ("two masks",),
    "cuda.grid takes 1 argument": ("grid with another name",),
    "a starred expression is not supported in a kernel": ("star in a tuple",),
    "cuda.atomic.and_ takes arrays of int32, uint32, int64, uint64; out has float64": ("atomic of bits of floats",),
}
TOLD = {name: f"{what} is not supported in a kernel" for what, names in UNSUPPORTED.items() for name in names} | {
    name: words for words, names in SAID.items() for name in names
}


def _kernel(body: str) -> tuple[Any, int, list[str]]:
    """Return ``kernel(x, out)`` with the body, and the number of its marked line, and the lines."""
    marked = "# HERE" in body
    text = HEADER + "def kernel(x, out):\n    i = cuda.grid(1)\n    out[i] = 99\n" + textwrap.indent(body, "    ") + "\n"
    lines = text.splitlines()
    line = next((n for n, written in enumerate(lines, 1) if "# HERE" in written), 0)
    assert bool(line) == marked
    return function_of(text, filename=f"<refused {abs(hash(body))}>"), line, lines


def _one_sentence(message: str) -> None:
    assert "\n" not in message
    assert message.endswith(".")
    assert len(message) < 400
    assert not re.search(r"Traceback|<class|object at 0x", message)


def _still_works() -> None:
    values = np.arange(40.0)
    simulate(_doubled, 2, 32, values)
    np.testing.assert_array_equal(values, 2 * np.arange(40.0))


def _doubled(values: Any) -> None:
    i = cuda.grid(1)
    if i < values.size:
        values[i] *= 2


@pytest.mark.parametrize("name", REFUSED)
def test_a_kernel_that_cannot_run_is_refused_with_its_line(name: str) -> None:
    """The message names the line and quotes it; arrays are as they were; the next kernel runs."""
    kernel, line, lines = _kernel(REFUSED[name])
    x, out = np.arange(64.0), np.full(64, 7.0)
    with pytest.raises(KernelError) as caught:
        simulate(kernel, 2, 32, x, out, max_steps=2000)
    message = str(caught.value)
    _one_sentence(message)
    named = re.search(r"line (\d+) `", message)
    assert named, message
    if "HERE?" not in REFUSED[name]:  # a fault inside a device function may be named there
        assert int(named[1]) == line, message
    assert lines[int(named[1]) - 1].strip() in message
    assert message.endswith(f"`: {TOLD[name]}.")
    np.testing.assert_array_equal(x, np.arange(64.0))
    np.testing.assert_array_equal(out, np.full(64, 7.0))
    _still_works()


HEADS = {
    "star parameter": "def kernel(x, *out):",
    "keyword only": "def kernel(x, *, out):",
    "two stars": "def kernel(x, **out):",
    "default": "def kernel(x, out=None):",
    "positional only": "def kernel(x, out, /):",
}


@pytest.mark.parametrize("name", HEADS)
def test_parameters_that_a_kernel_cannot_have_are_refused(name: str) -> None:
    """Defaults, stars and marks between parameters; the message names the line of the ``def``."""
    kernel = function_of(f"{HEADS[name]}\n    pass\n", filename=f"<head {name}>")
    out = np.zeros(3)
    with pytest.raises(KernelError, match="line 1 `def kernel"):
        simulate(kernel, 1, 1, out, out)


def _copies(x: Any, out: Any) -> None:
    i = cuda.grid(1)
    if i < out.size:
        out[i] = x[i]


_X, _OUT = np.arange(64.0), np.zeros(64)
_READ_ONLY = np.zeros(64)
_READ_ONLY.flags.writeable = False
_OVERLAPPING = np.zeros(70)
GIVEN: dict[str, tuple[Any, Any, tuple[Any, ...], str]] = {
    "too few arguments": (2, 32, (_X,), "2 arguments"),
    "too many arguments": (2, 32, (_X, _OUT, 3), "2 arguments"),
    "none": (2, 32, (), "2 arguments"),
    "not contiguous": (1, 32, (np.zeros(128)[::2], _OUT), "contiguous"),
    "transposed": (1, 32, (_X, np.zeros((4, 8)).T), "contiguous"),
    "reversed": (1, 32, (_X[::-1], _OUT), "contiguous"),
    "read-only and written": (2, 32, (_X, _READ_ONLY), "read-only"),
    "objects": (2, 32, (np.array([1, None], dtype=object), _OUT), "object"),
    "strings": (2, 32, (np.array(["a", "b"]), _OUT), "type"),
    "dates": (2, 32, (np.zeros(3, "datetime64[s]"), _OUT), "type"),
    "records": (2, 32, (np.zeros(3, [("a", int)]), _OUT), "type"),
    "swapped bytes": (2, 32, (np.zeros(64, ">f8"), _OUT), "type"),
    "a list": (2, 32, ([1, 2, 3], _OUT), "list"),
    "a string": (2, 32, ("text", _OUT), "x='text'"),
    "nothing": (2, 32, (None, _OUT), "x=None"),
    "a dictionary": (2, 32, ({}, _OUT), "x="),
    "a huge integer": (2, 32, (2**70, _OUT), "64 bits"),
    "overlapping": (2, 32, (_OVERLAPPING[:64], _OVERLAPPING[6:]), "overlap"),
    "zero blocks": (0, 32, (_X, _OUT), "grid=0"),
    "zero threads": (2, 0, (_X, _OUT), "block=0"),
    "zero in one direction": ((2, 0), 32, (_X, _OUT), "grid="),
    "negative": (2, -32, (_X, _OUT), "block=-32"),
    "four dimensions": ((1, 1, 1, 1), 32, (_X, _OUT), "grid="),
    "no dimensions": ((), 32, (_X, _OUT), "grid="),
    "too many threads": (2, 1025, (_X, _OUT), "1,024"),
    "too many threads in all": (2, (32, 33), (_X, _OUT), "1,056"),
    "too deep a block": (2, (1, 1, 65), (_X, _OUT), "64"),
    "too many blocks": ((1, 65536), 32, (_X, _OUT), "65,535"),
    "half a block": (1.5, 32, (_X, _OUT), "grid=1.5"),
    "a true grid": (True, 32, (_X, _OUT), "grid=True"),
    "a text as block": (2, "32", (_X, _OUT), "block='32'"),
    "no block": (2, None, (_X, _OUT), "block=None"),
}


@pytest.mark.parametrize("name", GIVEN)
def test_a_launch_that_cannot_be_is_refused(name: str) -> None:
    """Grids, blocks and arguments that do not fit: one sentence that names the value, nothing changed."""
    grid, block, arguments, words = GIVEN[name]
    before = [a.copy() if isinstance(a, np.ndarray) else a for a in arguments]
    with pytest.raises(InputError, match=re.escape(words)) as caught:
        simulate(_copies, grid, block, *arguments)
    _one_sentence(str(caught.value))
    for array, kept in zip(arguments, before, strict=True):
        if isinstance(array, np.ndarray):
            np.testing.assert_array_equal(array, kept)
    _still_works()


@pytest.mark.parametrize("options", [
    {"dynamic_shared_bytes": -1}, {"dynamic_shared_bytes": 1 << 30}, {"dynamic_shared_bytes": 1.5}, {"dynamic_shared_bytes": "8"},
    {"max_steps": 0}, {"max_steps": "many"}, {"trace": 2}, {"trace": -1}, {"trace": True},
])  # fmt: skip
def test_options_that_cannot_be_are_refused(options: dict[str, Any]) -> None:
    """The message names the option and its value."""
    (name,) = options
    with pytest.raises(InputError, match=name) as caught:
        simulate(_copies, 2, 32, _X.copy(), _OUT.copy(), **options)
    _one_sentence(str(caught.value))


@pytest.mark.parametrize(
    "kernel",
    [3, None, "text", len, print, np.add, int, object(), [_copies]],
    ids=lambda kernel: type(kernel).__name__ + getattr(kernel, "__name__", ""),
)
def test_what_is_no_python_function_is_refused(kernel: Any) -> None:
    """Numbers, types, built-in functions."""
    with pytest.raises(GpulabError) as caught:
        simulate(kernel, 1, 1)
    _one_sentence(re.sub(r"<object object at 0x\w+>|<class 'int'>", "", str(caught.value)))


def test_a_lambda_and_an_async_function_are_refused() -> None:
    """Kernels are plain functions."""
    names: dict[str, Any] = {}
    text = "f = lambda x: x\nasync def g(x):\n    pass\n"
    for name in "fg":
        names[name] = function_of(text, name, f"<no plain function {name}>")
        with pytest.raises(KernelError, match="plain") as caught:
            simulate(names[name], 1, 1, np.zeros(3))
        _one_sentence(str(caught.value))
    (inline,) = (lambda x: x,)  # its line is no statement of its own
    with pytest.raises(KernelError, match="is a lambda"):
        simulate(inline, 1, 1, np.zeros(3))


def test_a_function_without_text_is_refused() -> None:
    """Code that was only executed has no text to read."""
    names: dict[str, Any] = {}
    exec("def kernel(x):\n    x[0] = 1\n", names)
    x = np.zeros(3)
    with pytest.raises(KernelError, match=r"text of kernel cannot be found.*file or a notebook cell") as caught:
        simulate(names["kernel"], 1, 1, x)
    _one_sentence(str(caught.value))
    assert not x.any()


def test_read_only_arrays_may_be_read() -> None:
    """Only what is written must be writable, also where it is written under another name or in a device function."""
    out = np.zeros(64)
    source = np.arange(64.0)
    source.flags.writeable = False
    simulate(_copies, 2, 32, source, out)
    np.testing.assert_array_equal(out, source)
    for body in ("y = x\ny[i] = 1", "row = x[2:]\nrow[i] = 1", "stores(x, i)", "cuda.atomic.add(x, i, 1)", "x[i] += 1", "a, x[i] = 1, 2"):
        text = f"{HEADER}\ndef stores(v, i):\n    v[i] = 3\n\ndef kernel(x):\n    i = cuda.grid(1)\n{textwrap.indent(body, '    ')}\n"
        with pytest.raises(InputError, match="read-only"):
            simulate(function_of(text, filename=f"<read only {abs(hash(body))}>"), 1, 32, source)
    np.testing.assert_array_equal(source, np.arange(64.0))


class _StopError(Exception):
    """Raised by the test's ``stop``."""


@pytest.mark.parametrize("error", [_StopError, KeyboardInterrupt])
def test_an_interrupt_in_the_middle_leaves_arrays_as_before(error: type[BaseException]) -> None:
    """Whatever ``stop`` raises comes out as it is, at a moment when blocks had already stored."""
    kernel, _, _ = _kernel("for k in range(500):\n    out[i] += x[i]")
    x, out = np.arange(64.0), np.full(64, 7.0)
    seen = []

    def stop() -> None:
        seen.append(out.copy())
        if len(seen) == 5:
            raise error

    with pytest.raises(error):
        simulate(kernel, 2, 32, x, out, stop=stop)
    assert (seen[-1] != 7.0).any()  # the kernel had changed it
    np.testing.assert_array_equal(out, np.full(64, 7.0))
    _still_works()


def test_an_endless_loop_ends_at_the_bound_that_was_asked_for() -> None:
    """A loop that needs more steps than the default of the test runs with a larger bound, and is refused with a smaller one."""
    kernel, _, _ = _kernel("for k in range(400):\n    out[i] += 1")
    out = np.zeros(32)
    with pytest.raises(KernelError, match=r"after 300 statements.*larger max_steps"):
        simulate(kernel, 1, 32, out, out, max_steps=300)
    assert not out.any()
    simulate(kernel, 1, 32, np.zeros(32), out, max_steps=3000)
    np.testing.assert_array_equal(out, np.full(32, 499.0))


def test_an_endless_loop_that_races_is_bounded_by_its_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """A race that comes up again counts as 16 statements, since it takes as long: 1,000 statements are some 60 of them, not 500."""
    kernel, _, _ = _kernel("while x[0] == x[0]:\n    out[0] = i  # HERE")
    looked: list[int] = []
    inner = Tracker.write

    def write(tracker: Tracker, *args: Any) -> Any:
        looked.append(1)
        return inner(tracker, *args)

    monkeypatch.setattr(Tracker, "write", write)
    out = np.zeros(32)
    with pytest.raises(KernelError, match=r"after 1,000 statements of whole batches \(each time that a race .* counts as 16\)"):
        simulate(kernel, 1, 32, np.zeros(32), out, max_steps=1000)
    assert 10 < len(looked) < 64
    assert not out.any()
    bounded = _kernel("for k in range(40):\n    out[0] = i")[0]
    races = [f for f in simulate(bounded, 1, 32, np.zeros(32), np.zeros(32)).findings if f.kind == "race"]
    assert max(f.count for f in races) > 39 * 30  # a loop that ends is told in full: nearly all lanes in nearly all turns


def test_out_of_bounds_is_a_finding_and_no_refusal() -> None:
    """A kernel with a fault that runs on a GPU runs here as well, and says so."""
    kernel, line, _ = _kernel("out[i + 40] = 3  # HERE")
    out = np.zeros(64)
    simulation = simulate(kernel, 1, 64, out.copy(), out)
    assert [(f.kind, f.line) for f in simulation.findings if f.kind == "bounds"] == [("bounds", line)]


@pytest.mark.parametrize("name", ["threadIdx", "blockIdx", "blockDim", "gridDim"])
def test_a_place_without_its_axis_is_told_what_is_missing(name: str) -> None:
    """Numba lets it be kept in a variable; here its axis is written beside it."""
    kernel, _, _ = _kernel(f"at = cuda.{name}  # HERE\nout[at.x] = 1")
    with pytest.raises(KernelError, match=rf"`cuda.{name}` has three parts; expected `.x`, `.y` or `.z` of it, written out"):
        simulate(kernel, 1, 32, np.zeros(64), np.zeros(64))


@pytest.mark.parametrize("name", ["half", "half_plain"])
def test_a_function_that_gives_some_threads_no_value_is_refused(name: str) -> None:
    """A compiler makes an optional number of it and stores nothing there; here those threads would get what they never computed."""
    kernel, _, lines = _kernel(f"out[i] = {name}(x[i])")
    out = np.zeros(64)
    with pytest.raises(KernelError, match=rf"some threads leave {name} without a value, and others with one; expected a val") as caught:
        simulate(kernel, 2, 32, np.arange(64.0), out)
    assert lines[caught.value.line - 1].startswith(f"def {name}(")
    assert not out.any()
    _one_sentence(str(caught.value))
    simulate(kernel, 1, 32, np.full(64, 4.0 if name == "half" else 3.0), out)  # all of them get one
    assert out[:32].all()
