"""What a kernel leaves in its arrays, against Python, Numba's own simulator, and NumPy."""

import ast
import itertools
import math
import os
import subprocess
import sys
import textwrap
import types
from collections import Counter
from pathlib import Path
from typing import Any

import kernels_of_blocks
import kernels_of_ours
import numpy as np
import oracles
import pytest
from gpulab.kernels import Simulation, cuda, int32, int64, simulate
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kernel_case import Case, copies, function_of
from random_kernels import kernel_texts

CASES = [*kernels_of_ours.CASES, *kernels_of_blocks.CASES]
HERE = Path(__file__).parent
# Kernels whose counts, or the places of whose elements, depend on the order of their threads.
ANY_ORDER = ("append", "compact", "slowest_maximum")
UNHURRIED = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_correct_kernel_gives_what_its_threads_give_one_by_one(case: Case) -> None:
    """Arrays, executed lines and accesses equal those of Python, or NumPy's; nothing is found."""
    found, expected = case.make(), case.make()
    options = {"dynamic_shared_bytes": case.dynamic_shared_bytes}
    simulation = simulate(case.kernel, case.grid, case.block, *found, **options)
    assert simulation.findings == ()
    log = oracles.run(case.kernel, case.grid, case.block, *expected, **options)
    order = np.sort if case.kernel.__name__ in ANY_ORDER else np.asarray
    assert counted(simulation) == log or order is np.sort
    known = case.expected(*copies(case.make())) if case.expected else {}
    for number, (array, wanted) in enumerate(zip(found, expected, strict=True)):
        if isinstance(array, np.ndarray):
            case.agree(order(array), order(wanted), f"argument {number}")
        if number in known:
            case.agree(array, known[number], f"argument {number}")


def counted(s: Simulation) -> Counter:
    """Return how many lanes accessed memory, by (line, space, kind), and executed each line."""
    found = Counter({(n, "", "lanes"): c.active_lanes for n, c in s.lines.items()})
    for access in s.accesses:
        found[access.line, access.space, access.kind] += access.lanes
    return found


@pytest.fixture(scope="module")
def numbas_results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray]:
    """Return what Numba's simulator leaves in the arrays, by "case/argument"."""
    pytest.importorskip("numba.cuda")
    path = tmp_path_factory.mktemp("numba") / "results.npz"
    environment = {
        **os.environ, "NUMBA_ENABLE_CUDASIM": "1", "PYTHONWARNINGS": "ignore",
        "PYTHONPATH": os.pathsep.join(map(str, (HERE.parents[1], HERE, *sys.path))),
    }  # fmt: skip
    command = [sys.executable, str(HERE / "oracles.py"), str(path)]
    subprocess.run(command, env=environment, check=True, timeout=300)
    with np.load(path) as results:
        return dict(results)


@pytest.mark.slow
@pytest.mark.parametrize("case", [c for c in CASES if c.runs_in_numba], ids=lambda case: case.name)
def test_results_are_those_of_numbas_simulator(case: Case, numbas_results: Any) -> None:
    """Arrays equal those of Numba's own simulator, which runs a Python thread per CUDA thread."""
    given = case.make()
    simulate(
        case.kernel, case.grid, case.block, *given, dynamic_shared_bytes=case.dynamic_shared_bytes
    )
    for number, array in enumerate(given):
        if isinstance(array, np.ndarray):
            case.agree(array, numbas_results[f"{case.name}/{number}"], f"argument {number}")


@pytest.mark.slow
@settings(max_examples=100, suppress_health_check=UNHURRIED)
@given(
    text=kernel_texts(), grid=st.integers(1, 3), block=st.sampled_from([1, 7, 33, 70]),
    seed=st.integers(0, 2**16), dtype=st.sampled_from(["int64", "int32", "int16", "int8"]),
)  # fmt: skip
def test_random_control_flow(text: str, grid: int, block: int, seed: int, dtype: str) -> None:
    """Each thread of a random program gets the result of running alone; nothing is found."""
    kernel, n, rng = function_of(text), grid * block, np.random.default_rng(seed)
    x, start = rng.integers(-100, 100, n).astype(dtype), rng.integers(0, 50, (n, 4))
    expected, found = (start.copy(), np.zeros(n)), (start.copy(), np.zeros(n))
    log = oracles.run(kernel, grid, block, x, *expected)
    s = simulate(kernel, grid, block, x, *found)
    assert (s.findings, counted(s)) == ((), log)
    for array, wanted in zip(found, expected, strict=True):
        np.testing.assert_array_equal(array, wanted)


@pytest.mark.slow
@settings(max_examples=60, suppress_health_check=UNHURRIED)
@given(text=kernel_texts(), seed=st.integers(0, 2**16))
def test_equal_blocks_count_equally(text: str, seed: int) -> None:
    """Nine equal blocks have nine times the counts of one block, line by line."""
    for old, new in (
        ("i = cuda.grid(1)", "i, at = cuda.threadIdx.x, cuda.grid(1)"), ("out[i", "out[at"),
        ("real[i", "real[at"), ("cuda.blockIdx.x", "5"),
    ):  # fmt: skip
        text = text.replace(old, new)
    kernel, x = function_of(text), np.random.default_rng(seed).integers(-100, 100, 32)
    one, nine = (
        simulate(kernel, n, 32, x, np.zeros((32 * n, 4), np.int64), np.zeros(32 * n))
        for n in (1, 9)
    )
    assert one.lines.keys() == nine.lines.keys()
    for line, counts in one.lines.items():
        nine_times = sum([counts] * 8, counts)
        assert nine.lines[line] == nine_times, nine.source[line]
    for first, second in zip(one.accesses, nine.accesses, strict=True):
        assert (first.array, first.kind, 9 * first.lanes) == (
            second.array,
            second.kind,
            second.lanes,
        )


# -- expressions, statements, indices: Python itself is the reference ------------------------------

# NAMED is what kernels that are made of statements name from outside.
LANES, N, NAMED = (
    40,
    29,
    """import enum, types
import numpy as np
lower, TABLE = min, np.arange(4.0)
Kind, Color = enum.IntEnum("Kind", "SMALL BIG"), enum.Enum("Color", "RED BLUE")
def plus(v):
    return v + 1
mod = types.ModuleType("mod")
vars(mod).update(SIZE=3, plus=plus, TABLE=TABLE)
""",
)
A, M, PAIR = (np.arange(N) * 7) % 11, np.arange(12.0).reshape(3, 4), (5, 2.5)
# i is the thread; threads from 29 on have no element of a. m is a 3 x 4 matrix.
TEXTS = (
    # An operand after "and", "or", a comparison or a condition is evaluated only where Python does.
    "i < n and a[i] > 5", "i >= n or a[i] > 5", "not (i < n and a[i] > 5)",
    "i < n and a[i] > 5 and a[i] % 2 == 0", "i >= n or a[i] == 0 or 12 // a[i] > 2",
    "0 <= i < n and a[i]", "1 < i < n < 30", "3 < i <= a[i % n] < 20", "n > i < 5 != 7",
    "i < a[i % n] < 100 > a[(i + 1) % n]", "a[i] if i < n else -1", "-1 if i >= n else a[i] + 1",
    "(1 if i < 3 else 2) if i < 20 else 3", "i and n", "i or n", "0 or i", "i < 5 or i",
    "(i > 3) + (i > 4)", "(i % 2 == 0) == (i % 4 == 0)", "i % 2 and i % 3 and i % 5",
    # Numbers.
    "+i - -n", "~i", "i ** 2", "(i + 1) ** 0", "x ** 3", "2 ** 3 ** 2", "7 // 2 * i", "-7 // 2 + i",
    "i * 2 + n // 3 - i % 4", "(i << 3) >> 1", "i & 12 | 3 ^ i", "1e-3 * i", "float('inf') > x",
    "float(' -2.5')", "int(x * i)", "float(i) / 4", "abs(i - n)", "min(i, n, 7)", "max(i, 3)",
    "bool(i) + 0", "round(x * i)", "pow(i, 2)", "10 ** -6 * i",
    # Arrays and tuples.
    "m[i % 3, i % 4]", "m[i % 3][i % 4]", "m[-1, -2]", "m.shape[0] * m.shape[1]", "m.size + m.ndim",
    "m[1].size", "a.shape[0] - i", "a[n - 1]", "a[-1]", "len(m) + len(m[0])", "PAIR[0] + i",
    "PAIR[1] * i", "(i, n, 3)[1]", "(i, n, 3)[i % 3]", "(2, -1, 7)[-1 - i % 3]", "m[0, 1:3][1]",
    "a[2:][i % 5]", "((1, 2), (3, i))[1][1]", "i in (3, 5, n)", "i not in [3, 5]", "i is None",
    "(i, 2) < (5, n)", "(1, i) >= (1, 3)", "(1, i) == (1, 7)", "(*(1, i), (3, i))[2][1]",
    "(i, n, 3)[1:][0]",
    "((1, 2) + (i,) * 2)[3]", "(lambda v, w=2: v * i + w)(3)", "(w := i + 1) * w", "~True + i",
    "tuple((i, n))[1]", "isinstance(i, int) + isinstance((x, i), tuple)",
    "isinstance(x, (int, bool))",
    "divmod(i, 7)[1]", "sum((i, 2, 3))", "min((i, 3))", "round(x * i, 1)", "i.bit_count()",
    "m.T[1, 2]", "m[::-1][0, 1]", "a[::3][i % 9]", "m.reshape((4, 3))[1, i % 3]", "m.sum() + i",
    "(m[0] if i % 2 else m[1])[i % 3]", "(m, m.T)[0][i % 2, 1]", "x.real + x.imag",
    "len((i, n)) + len(range(i, 99, 2))", "range(3, n)[i % 5] + range(n)[-1]", "m[1:].nbytes + i",
    "m.strides[0] - m[::-1, ::2].strides[1]", "m[::-1].strides[0] + m.T.strides[0] + m.itemsize",
    "m.view(a.dtype)[0, i % 4]", "m.max() - m.mean() + m.std()", "a.argmax() + 10 * a.argmin()",
    "m.any() + 2 * m.all() + m.var()", "a[3:6].prod()", "round(17.5 * i, -1)", "round(i / 7, 3)",
    "divmod(-i, 7)[0]", "sum((i, x))", "(i, n) != (3, n)", "(i, 2, 3) <= (i, 2)", "(i, 1) > (i, 0)",
    "i not in (3, n)", "i is not None", "isinstance(complex(x, i), complex)", "2 ** (i % 9)",
    "(x + 2j * i).conjugate().imag", "abs(complex(3, 4) * i)", "a[i % 5 :].size", "m[i % 3].sum()",
    "True and i", "x and i > 3", "-True + i", "(i > 3) ^ True", "i ** 0.5", "i == x + 0.5",
    "1 <= x <= 2 < i", "m[(w := (i % 3, 1))]", "(lambda *r: r[1] + len(r))(1, i, 2)",
    "PAIR[-1] + PAIR[:1][0]",
    "(lambda p, /, q: p - q)(i, q=3)", "int(-x * i)", "(w := (i, n))[0] + w[1]",
)  # fmt: skip


def _kernel(text: str) -> Any:
    return function_of(
        f"from gpulab.kernels import cuda\nPAIR = {PAIR}\ndef kernel(out, a, m, n, x):\n"
        f"    i = cuda.grid(1)\n    out[i] = {text}\n"
    )


@pytest.mark.parametrize("text", TEXTS)
def test_an_expression_is_what_python_makes_of_it(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An expression has Python's value in 40 threads; no thread reads what Python would not read.

    All syntax trees share some nodes, and IPython's tracebacks give each node a ``parent``. The
    code that such a ``parent`` leads to must not count as the kernel's.
    """
    monkeypatch.setattr(
        ast.parse("x", mode="eval").body.ctx, "parent", ast.parse("PAIR = 0"), raising=False
    )
    out = np.full(LANES, math.nan)
    assert simulate(_kernel(text), 2, LANES // 2, out, A, M, N, 1.5).findings == ()
    assert out.tolist() == [
        float(eval(text, {"i": i, "n": N, "x": 1.5, "a": A, "m": M, "PAIR": PAIR}))
        for i in range(LANES)
    ]


@pytest.mark.parametrize(
    "text", ["a[i] > 5 and i < n", "a[i] > 5 or i >= n", "n > a[i] < i", "a[i] if i < 35 else -1"]
)
def test_a_guard_that_comes_too_late_is_found(text: str) -> None:
    """From thread 29 on, elements beyond the end are read before the guard is evaluated."""
    (finding,) = simulate(_kernel(text), 2, LANES // 2, np.zeros(LANES), A, M, N, 1.5).findings
    assert (finding.kind, finding.array, finding.index) == ("bounds", "a", (29,))
    assert finding.count == (6 if "35" in text else 11)


BODIES = {
    "if": "if i < 10:\n    t = 1\nelif i < 20:\n    t = 2\nelse:\n    t = 3",
    "nested ifs": (
        "t = 0\nif i > 5:\n    if i % 2:\n        t = 1\n    else:\n"
        "        t = 2\n    t *= 10\nt += i"
    ),
    "for from, to": "t = 0\nfor k in range(i % 5, 8):\n    t = 10 * t + k",
    "for in steps": (
        "t = 0\nfor k in range(20, i, -3):\n    t += k\n"
        "for k in range(0, i, 4):\n    t -= k"
    ),
    "the counter afterwards": "k = -1\nfor k in range(1, 3 + i % 4):\n    pass\nt = k",
    "break": (
        "t = 0\nfor k in range(10):\n    if k == i % 12:\n        break\n"
        "    t += 1\nt += 1000"
    ),
    "continue": (
        "t = 0\nfor k in range(10):\n    if (k + i) % 3 == 0:\n"
        "        continue\n    t += k"
    ),
    "loops": (
        "t = 0\nfor k in range(4):\n    for m in range(i % 5):\n"
        "        if m > k:\n            break\n        t += m\n    t += k"
    ),
    "while": "t, k = 0, i\nwhile k > 0:\n    t += k % 10\n    k //= 10",
    "while with break": (
        "t = i\nwhile True:\n    t = t * 3 + 1\n    if t > 500:\n"
        "        break\n    t += t % 2"
    ),
    "return": "t = -1\nif i % 4 == 1:\n    out[i] = 77\n    return\nt = 8",
    "return in a loop": (
        "t = 0\nfor k in range(6):\n    t += k\n    if t > i:\n"
        "        out[i] = -t\n        return\nt += 500"
    ),
    "exchange": "p, q = i, n\nfor k in range(i % 3):\n    p, q = q, p + 1\nt = 100 * p + q",
    "several targets": "p = q = i + 1\np += 1\nt = 100 * p + q",
    "annotated": "t: int = i\ns: float\ns = t + 1\nt = s * 2",
    "augmented": (
        "t = i + 8\nt -= 3\nt *= 5\nt //= 2\nt %= 97\nt <<= 2\nt |= 1\nt ^= 6\n"
        "t &= 127\nt >>= 1\nt **= 2"
    ),
    "an element augmented": "out[i] = 3\nout[i] += i\nout[i] *= 2\nout[i] -= 1\nt = out[i]",
    "over a tuple": "t = 0\nfor v in (3, i, n):\n    t = 10 * t + v",
    "over arrays, counted and in pairs": (
        "t = 0\nfor v in a[2:6]:\n    t = 3 * t + v\nfor k, v in enumerate(a[:4], i):\n"
        "    t += k * v\nfor v, w in zip(a, (i, n, 7)):\n    t = 2 * t + v * w"
    ),
    # Python compiles this list as a tuple
    "over a list": "t = 0\nfor v, w in [(1, 2), (3, 4)]:\n    t = 10 * t + v * w",
    "pass, assert and words": "'''Words.'''\nassert i >= 0\npass\nt = i",
    "a search": "t = -1\nfor k in range(n):\n    if a[k] == i % 11:\n        t = k\n        break",
    "long alone": (
        "t, k = i + 1, 0\nwhile t != 1 and k < 200:\n    if t % 2 == 0:\n"
        "        t = t // 2\n    else:\n        t = 3 * t + 1\n    k += 1\n"
        "t = k"
    ),
    "beyond 64 bits": "t, k = i, 0\nwhile k < 70:\n    t = (t * 5 + k) & 0xFFFFFFFF\n    k += 1",
    "functions inside": (
        "def add(p, q=2, *rest):\n    for r in rest:\n        p += r\n    return p + q + i\n"
        "f = add\nt = f(i) + add(1, i, 2, 3) + add(q=1, p=i) + add(*(i, 1), n)"
    ),
    "functions given": (
        "def twice(f, v):\n    return f(f(v))\n"
        "def fact(v):\n    return 1 if v < 2 else v * fact(v - 1)\n"
        "t = twice(lambda v: v + i, 3) + twice(fact, i % 4)"
    ),
    "a number of each kind": "t = 0\nif i > 5:\n    t = 0.5\nt = (t + i) // 2",
    "parts of an array in threads": "row = a\nif i % 2:\n    row = a[::-1]\nt = row[i % 5]",
    "unpacked": "p, q, r = a[3:6]\n(s, u), v = (i, 2), p\nt = 100 * q + 10 * r + s + u + v",
    "sizes that differ from turn to turn": (
        "t = 0\nif i > 0:\n    for k in range(9):\n"
        "        t = 7 * t + a[k:].size - a[2 * k :].shape[0]"
    ),
    "a range of no steps elsewhere": (
        "t = 0\nif i >= 2:\n    for k in range(i * i, 50, i):\n        t += k"
    ),
    "a loop's else in a loop": (
        "t = 0\nif i > 0:\n    for k in range(9):\n        for m in range(i % 4):\n"
        "            t += m\n            if t > 50:\n                break\n"
        "        else:\n            t += 7"
    ),
    "a loop's else after a while": (
        "t, k = 0, 0\nwhile k < i % 4:\n    k += 1\n    if k == 3:\n        break\n"
        "else:\n    t = 100\nt += k"
    ),
    "a function that leaves an endless loop": (
        "def f(v):\n    while True:\n        v += 3\n        if v > 20:\n"
        "            return v\nt = f(i)"
    ),
    "a function that returns nothing": (
        "def f(v):\n    if v > 3:\n        out[v] = v\n        return None\n    out[v] = -v\n"
        "f(i)\nt = out[i] + 1"
    ),
    "a function of two types": (
        "def f(v):\n    if v % 2:\n        return 0.5\n    return v\nt = f(i) // 2 + f(i)"
    ),
    "what a function sees of the variables around it": (
        "t = 1\ndef later(v, w=t):\n    return 100 * v + 10 * w + t\nt = 5\nt = later(i)"
    ),
    "modules and functions under names of their own": (
        "import math as m, operator\nfrom math import floor as down\nkind, f, g = float, abs, max\n"
        "t = m.ceil(i / 3) + down(i / 2) + operator.sub(i, 3) + operator.and_(i, 6)\n"
        "t += kind(i) / 2 + f(-i) + g(i, 5)"
    ),
    "deleted, and unused": "v = i\ndel v\na[i % n - n]\ni > 3\n(t := i + 1)\nt + 1",
    "counted from a start by name": (
        "t = 0\nfor k, v in enumerate(a[:4], start=i):\n    t += k * v\n"
        "for k, (v, w) in enumerate(zip(a, (1, 2))):\n    t += k * v * w"
    ),
    "tuples that differ between threads": (
        "p = (i, (n, 2))\nif i > 4:\n    p = (0, (i, 3))\nt = p[0] + p[1][0] * p[1][1]\n"
        "q = (1, i)\nq += (n,)\nt += q[2] + len(q)"
    ),
    "spread over parameters": (
        "p = (1, i)\ndef f(x, y, z=3):\n    return x + 10 * y + 100 * z\n"
        "t = f(*p) + f(*p, 4) + f(0, *p) + f(y=i, x=2)"
    ),
    "members of enumerations": (
        "t = Kind.BIG + 10 * Kind['SMALL'] + 100 * (Kind.BIG is Kind.BIG) + Color.BLUE.value * i\n"
        "t += (Color.RED is Color.RED) + 2 * (Color.RED == Color.BLUE) + 4 * (Kind.BIG == i)\n"
        "if (Kind.SMALL if i % 2 else Kind.BIG) == Kind.BIG:\n    t += 1000"
    ),
    "through a module": "t = mod.SIZE * i + mod.plus(i) + mod.TABLE[i % 4] + mod.TABLE.size",
    "arrays of two types, unrolled": (
        "from numba import literal_unroll as each\nt = 0\nfor v in each((a, TABLE)):\n"
        "    t += v[i % 4] * v.size"
    ),
    "functions of NumPy that write to an array": (
        "b = a[:3].copy()\nnp.add(b, a[3:6], b)\nnp.multiply(b, i, b)\nt = b[0] + 100 * b[2]"
    ),
    "an array that is chosen": "b = a[1:4] if i % 2 else a[5:9]\nt = b.size + b[-1]",
    "a builtin by another name": (
        "t = i\nif i > 0:\n    for k in range(9):\n        t = lower(t + k, 30 - t)"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BODIES)
@pytest.mark.parametrize("block", [1, 24])
def test_statements_do_what_python_does(name: str, block: int) -> None:
    """Results equal Python's where lanes diverge and reconverge; nothing is found."""
    body = textwrap.indent(BODIES[name], "    ")
    text = f"{NAMED}def kernel(out, a, n):\n    i = cuda.grid(1)\n{body}\n    out[i] = t\n"
    out, expected = np.full((2, 48), -7.0)
    for i in range(2 * block):
        names: dict[str, Any] = {"cuda": types.SimpleNamespace(grid=lambda _, i=i: i)}
        exec(text, names)
        names["kernel"](expected, A, N)
    kernel = function_of(f"from gpulab.kernels import cuda\n{text}")
    assert simulate(kernel, 2, block, out, A, N).findings == ()
    assert out.tolist() == expected.tolist()


CUBE = np.arange(2 * 3 * 5.0).reshape(2, 3, 5)
PARTS = (
    "c[1]", "c[1, 2]", "c[-1, 0]", "c[0, 1:3]", "c[:, 2]", "c[:, :, 3]", "c[1, 1:]", "c[1, :2, 4]",
    "c[-1, -2:, 1:4]", "c[0, 1, -4:-1]", "c[1][2]", "c[1][1:][0]", "c[0, 0, 1:][1:3]",
    "c[0, 0, 2:2]", "c[0, 0, 4:1]", "c[0, 2, -9:2]", "c[0, 2, 3:99]", "c[0, -3:1]", "c[:1]",
    "c[0, :, 1:][1, -2:]", "c[::-1, 0, 1]", "c[:, ::2, 1]", "c[0, 1, 4:0:-2]", "c[0, 2, ::3]",
    "c[0].T[2]", "c.T[1]", "c[1:, ::-1]", "c.reshape(-1)", "c.reshape((5, -1))[1]",
    "c[0].ravel()[3:]", "c[0, ::-1].copy()[1]",
    "c[0, 1, 9::-2]", "c[0, 0, 3:-9:-1]", "c[int32(1), uint8(2)]",
    "c[int32(0), 0, int32(1):uint8(4)]",
)  # fmt: skip
WALK = """    shape[0], shape[1], shape[2] = part.ndim, part.shape[0], part.size
    for j in range(part.size):
        if part.ndim == 1:
            out[j] = part[j]
        elif part.ndim == 2:
            out[j] = part[j // part.shape[1], j % part.shape[1]]
        else:
            row = j // part.shape[2]
            out[j] = part[row // part.shape[1], row % part.shape[1], j % part.shape[2]]
"""


@pytest.mark.parametrize("text", PARTS)
def test_a_part_of_an_array_is_numpys(text: str) -> None:
    """Its dimensions, its first length, its size, and its elements in order."""
    expected = eval(text, {"c": CUBE, "int32": int, "uint8": int})
    out, shape = np.full(30, -1.0), np.zeros(3, np.int64)
    header = "from gpulab.kernels import int32, uint8\ndef kernel(out, shape, c):\n"
    kernel = function_of(f"{header}    part = {text}\n{WALK}")
    assert simulate(kernel, 1, 1, out, shape, CUBE).findings == ()
    assert shape.tolist() == [expected.ndim, expected.shape[0], expected.size]
    assert out.tolist() == [*expected.flat, *[-1] * (30 - expected.size)]


# -- where a thread is, and what lanes give each other ---------------------------------------------

GRID, BLOCK = (2, 3, 2), (4, 2, 3)

TABLE = np.arange(24.0).reshape(4, 6)
RECORD = np.dtype(
    [("a", "f8"), ("b", "i2", (2, 3)), ("c", [("d", "u1"), ("e", "c8")]), ("f", "U5")]
)
LAYOUTS = {
    "transposed": TABLE.T, "backwards": TABLE[::-1, ::-1], "every second": TABLE[::2, 1::3],
    "Fortran": np.asfortranarray(TABLE), "one row again": np.broadcast_to(TABLE[1], (5, 6)),
    "bytes apart": np.zeros(9, "u1, (4, 3)f8")["f1"][:, 1],
}  # fmt: skip


@pytest.mark.parametrize("name", LAYOUTS)
def test_arguments_of_any_layout_are_read_and_written_in_place(name: str) -> None:
    """Elements, slices and reversed rows work in any layout; so does an array of no dimensions."""
    text = (
        "def kernel(x, y, z):\n    for i in range(x.shape[0]):\n"
        "        for j in range(x.shape[1]):\n"
        "            y[i, j] = 2 * x[i, j]\n    y[0] = x[0, ::-1]\n"
        "    y[-1, 1:] = 7\n    z[()] += 1\n"
    )
    x, z = LAYOUTS[name], np.array(1.5)
    whole = np.zeros((x.shape[1], 3, x.shape[0]))
    y = whole[::-1, 1].T
    expected = 2 * x
    expected[0], expected[-1, 1:] = x[0, ::-1], 7
    assert simulate(function_of(text), 1, 1, x, y, z).findings == ()
    np.testing.assert_array_equal(y, expected)
    assert (z, np.count_nonzero(whole[:, ::2])) == (2.5, 0)


@pytest.mark.parametrize("size", [32, 0])
def test_records_are_read_and_written_in_place(size: int) -> None:
    """Fields, nested fields, texts and whole records work in global, shared (also dynamic) and
    local memory, atomics and parts of complex numbers included.

    A field that a warp reads in each of nine iterations is nine requests.
    """
    text = (
        "import numpy as np\nfrom gpulab.kernels import cuda\n"
        f"RECORD = np.dtype({RECORD.descr})\n"
        "def kernel(r, s):\n    i = cuda.grid(1)\n    q, n = r[i], 0.0\n"
        "    for k in range(9):\n        n += q.a\n    own = cuda.local.array(2, RECORD)\n"
        f"    all = cuda.shared.array({size}, RECORD)\n    own[1] = r[i]\n    own[1].b[1, 2] = -i\n"
        "    all[i] = own[1]\n    cuda.syncthreads()\n    r[i]['a'] += r['a'][i]\n"
        "    r[i].c.e = r[i].c.d + 2j\n    r[i].f = 'text'\n    s[31 - i] = all[i]\n"
        "    own[1].a = 0\n    cuda.atomic.add(own.a, 1, r.b[i, 0, 1])\n"
        "    s[31 - i].a = own[1].a\n    cuda.syncthreads()\n"
        "    if i % 2:\n        s.c.e.real[i] += 0\n    else:\n        s.c.e.imag[i + 1] += 0\n"
    )
    r, s = np.zeros(32, RECORD), np.zeros(64, RECORD)[::2]
    r["a"], r["b"], r["c"]["d"] = np.arange(32), np.arange(192).reshape(32, 2, 3), 3
    whole, expected = r.copy(), r.copy()
    whole["b"][:, 1, 2], whole["a"] = -np.arange(32), r["b"][:, 0, 1]
    expected["a"], expected["c"]["e"], expected["f"] = 2 * r["a"], 3 + 2j, "text"
    simulation = simulate(function_of(text), 1, 32, r, s, dynamic_shared_bytes=32 * RECORD.itemsize)
    assert (simulation.findings, simulation.lines[8].global_load_requests) == ((), 9)
    assert (r.tobytes(), s[::-1].tobytes()) == (expected.tobytes(), whole.tobytes())


def places(out):
    b = cuda.blockIdx.x + cuda.gridDim.x * (cuda.blockIdx.y + cuda.gridDim.y * cuda.blockIdx.z)
    t = cuda.threadIdx.x + cuda.blockDim.x * (cuda.threadIdx.y + cuda.blockDim.y * cuda.threadIdx.z)
    row = out[b, t]
    row[0], row[1], row[2] = cuda.threadIdx.x, cuda.threadIdx.y, cuda.threadIdx.z
    row[3], row[4], row[5] = cuda.blockIdx.x, cuda.blockIdx.y, cuda.blockIdx.z
    row[6], row[7], row[8] = cuda.blockDim.x, cuda.blockDim.y, cuda.blockDim.z
    row[9], row[10], row[11] = cuda.gridDim.x, cuda.gridDim.y, cuda.gridDim.z
    row[12], row[13], row[14] = cuda.grid(ndim=3)
    row[15], row[16], row[17] = cuda.gridsize(3)
    row[18], row[19] = cuda.grid(2)
    row[20], row[21] = cuda.gridsize(ndim=2)
    row[22], row[23], row[24], row[25] = cuda.grid(1), cuda.gridsize(1), cuda.laneid, cuda.warpsize


def test_where_a_thread_is() -> None:
    """By hand, in a grid and a block of three dimensions, x running first."""
    out = np.full((12, 24, 26), -1, np.int64)
    assert simulate(places, GRID, BLOCK, out).findings == ()
    blocks = itertools.product(*map(range, GRID[::-1]))
    threads = itertools.product(*map(range, BLOCK[::-1]))
    for (b, (bz, by, bx)), (t, (tz, ty, tx)) in itertools.product(
        enumerate(blocks), enumerate(threads)
    ):
        x, y, z = 4 * bx + tx, 2 * by + ty, 3 * bz + tz
        place = [tx, ty, tz, bx, by, bz, *BLOCK, *GRID, x, y, z, 8, 6, 6, x, y, 8, 6, x, 8, t, 32]
        assert out[b, t].tolist() == place


def exchanges(out):
    t = cuda.threadIdx.x
    v = int64(10 * t)
    row = out[t]
    row[0] = cuda.shfl_sync(0xFFFFFFFF, v, 32 + 3)
    row[1] = cuda.shfl_up_sync(0xFFFFFFFF, v, 2)
    row[2] = cuda.shfl_down_sync(0xFFFFFFFF, v, 5)
    row[3] = cuda.shfl_xor_sync(0xFFFFFFFF, v, 9)
    row[4] = cuda.all_sync(0xFFFFFFFF, t >= 32)
    row[5] = cuda.any_sync(0xFFFFFFFF, t == 40)
    row[6] = cuda.eq_sync(0xFFFFFFFF, t < 40) + 2 * cuda.eq_sync(0xFFFFFFFF, t < 0)
    row[7] = cuda.ballot_sync(0xFFFFFFFF, t % 4 == 1)
    row[8] = cuda.match_any_sync(0xFFFFFFFF, t // 8)
    row[9], (row[14], row[15]) = cuda.lanemask_lt(), cuda.match_all_sync(0xFFFFFFFF, t // 36)
    row[10] = cuda.syncthreads_count(int32(t % 3))
    row[11] = cuda.syncthreads_and(int32(t < 63)) + 2 * cuda.syncthreads_and(int32(t < 64))
    row[12] = cuda.syncthreads_or(int32(t == 63)) + 2 * cuda.syncthreads_or((t + 1) << 32)
    if t % 2:
        row[13] = cuda.activemask()


def test_what_lanes_give_each_other() -> None:
    """By hand, for each of two warps; a lane that reads beyond its warp keeps its own value.

    Of the number of a lane, the low five bits count. All votes are equal if none is true.
    """
    out = np.zeros((64, 16), np.int64)
    s = simulate(exchanges, 1, 64, out)
    assert (s.findings, s.totals.barriers) == ((), 5)
    for t, row in enumerate(out.tolist()):
        first, lane = t // 32 * 32, t % 32
        up, down = t - 2 if lane >= 2 else t, t + 5 if lane < 27 else t
        assert row[:4] == [10 * (first + 3), 10 * up, 10 * down, 10 * (first + (lane ^ 9))]
        assert row[4:8] == [first == 32, first == 32, 2 + (first == 0), 0x22222222]
        # The match is an int32, whose highest bit is the sign; a vote sees 32 bits.
        # 42 of 64 numbers have a nonzero remainder modulo 3.
        assert (row[8] & 0xFFFFFFFF, row[9]) == (0xFF << lane // 8 * 8, 2**lane - 1)
        # lane 36 and those after it divide the second warp: no lanes, and no match
        assert row[10:] == [42, 2, 1, 0xAAAAAAAA if t % 2 else 0, -(first == 0), first == 0]
