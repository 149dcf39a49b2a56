"""The values of the simulator's arithmetic, at the ends of each type's range too, against what numba's compiler computes for scalars."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from random_kernels import function_of

from gpulab.kernels import cuda, simulate
from gpulab.kernels._simulate import _arithmetic
from gpulab.kernels._simulate._fused import _odd_sum, _product, _sum

numba = pytest.importorskip("numba", reason="numba is not installed; its compiler is the reference")
pytest.importorskip("numba.cuda", reason="numba-cuda is not installed; kernels here name its types")

SHARED = (
    "p + q", "p - q", "p * q", "p / q", "p // q", "p % q", "p < q", "p <= q", "p > q", "p == q", "p != q", "min(p, q)", "max(p, q)", "-p",
    "abs(p)", "p + 1", "p * 2.0", "p if q > 0 else p - 1", "p and q", "p or q", "not p", "float64(p)", "float32(p)", "1 - p // q",
)  # fmt: skip
INTEGERS = ("p & q", "p | q", "p ^ q", "~p", "p << (q & 31)", "p >> (q & 31)", "p ** (q & 7)", "p ** 3", "int8(p)", "uint16(p)", "int32(p)",
            "uint32(p)", "int64(p)", "uint64(p)", "int8(p) * uint8(q)", "uint32(p) * uint32(q)", "uint8(p) - uint8(q)")  # fmt: skip
FLOATS = ("int32(p / 1e6)", "int64(p / 1e6)", "p * p - q", "math.floor(p / q)", "math.sqrt(abs(p))", "p - float32(0.1)", "p - 0.1")
PAIRS = (
    ("int8", "uint8"), ("int32", "int32"), ("uint32", "int32"), ("uint32", "uint32"), ("int64", "uint64"), ("uint64", "uint64"),
    ("int64", "int64"), ("int32", "uint16"), ("float32", "float32"), ("float32", "int32"), ("float64", "int64"), ("float32", "float64"),
    ("int16", "float32"), ("uint16", "float32"),
)  # fmt: skip


def _numbers(name: str, rng: np.random.Generator) -> np.ndarray:
    dtype = np.dtype(name)
    if dtype.kind == "f":
        return np.concatenate([[1.5, -1.5, 0.1, 3.0, -2.0, 1e-3], rng.uniform(-1e4, 1e4, 58)]).astype(dtype)
    limits = np.iinfo(dtype)
    edges = [limits.max, limits.min + 1, 1, 2, 3, limits.max // 2, 100]
    small = rng.integers(1, 100, 20) * (rng.choice([-1, 1], 20) if dtype.kind == "i" else 1)
    wide = rng.integers(limits.min + 1, limits.max, 37, dtype=dtype)
    found = np.concatenate([np.array(edges, dtype=dtype), small.astype(dtype), np.where(wide == 0, dtype.type(1), wide)])
    return rng.permutation(found)


HEADER = "import math\nfrom numba import int8, uint8, uint16, int32, uint32, int64, uint64, float32, float64\nfrom numba import cuda\n"
# The compiler knows no tuple display of more than thirty parts.
_PART = 20


def _computed(expressions: tuple[str, ...], p: np.ndarray, q: np.ndarray) -> list[np.ndarray]:
    """Return what the compiler's code gives for each expression, in the types that it infers."""
    body = "".join(f"    r{n} = {text}\n" for n, text in enumerate(expressions))
    names = [f"r{n}" for n in range(len(expressions))]
    parts = ", ".join(f"({', '.join(names[n : n + _PART])},)" for n in range(0, len(names), _PART))
    compiled = numba.njit(error_model="numpy")(function_of(f"{HEADER}def scalar(p, q):\n{body}    return {parts},\n", "scalar", "<scalar>"))
    rows = [[value for part in compiled(a, b) for value in part] for a, b in zip(p, q, strict=True)]
    types = [str(kind) for part in compiled.nopython_signatures[0].return_type for kind in part]
    return [np.array(column, dtype=kind) for column, kind in zip(zip(*rows, strict=True), types, strict=True)]


@pytest.mark.parametrize(("left", "right"), PAIRS)
def test_arithmetic_gives_the_values_that_the_compiler_computes(left: str, right: str) -> None:
    """Equal values, bit by bit, for 64 pairs of numbers with the ends of the range among them."""
    expressions = (*SHARED, *(FLOATS if "float" in left + right else INTEGERS))
    rng = np.random.default_rng(7)
    p, q = _numbers(left, rng), _numbers(right, rng)
    theirs = _computed(expressions, p, q)
    outputs = [np.zeros_like(array) for array in theirs]
    names = [f"o{n}" for n in range(len(expressions))]
    stores = "".join(f"    {name}[i] = {text}\n" for name, text in zip(names, expressions, strict=True))
    text = f"{HEADER}def kernel(pp, qq, {', '.join(names)}):\n    i = cuda.grid(1)\n    p, q = pp[i], qq[i]\n{stores}"
    simulate(function_of(text, filename=f"<values {left} {right}>"), 2, 32, p, q, *outputs)
    wrong = []
    for expression, found, expected in zip(expressions, outputs, theirs, strict=True):
        bad = np.flatnonzero(found != expected)
        if bad.size:
            n = bad[0]
            wrong.append(f"{expression} at p={p[n]!r}, q={q[n]!r}: {found[n]!r}, numba {expected[n]!r} ({bad.size} of 64)")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("name", ["int8", "uint8", "int16", "int32", "uint32", "uint64"])
def test_a_sign_and_a_complement_are_taken_in_the_width_of_the_integer(name: str) -> None:
    """So that the negative of the least int8 is itself, and the complement of a uint32 has 32 bits; then they are widened."""
    limits = np.iinfo(name)
    p = np.array([limits.min, limits.max, 0, 1, limits.max - 1], dtype=name)
    minus, inverted, size = _computed(("-p", "~p", "abs(p)"), p, p)
    found = [np.zeros_like(array) for array in (minus, inverted, size)]
    simulate(_signs, 1, 5, p, *found)
    for array, wanted in zip(found, (minus, inverted, size), strict=True):
        np.testing.assert_array_equal(array, wanted)


# Numbers and operators alone, with results and steps beyond 64 bits and in another type than the operators' own.
WRITTEN = (
    "10 ** -6", "3 * 2 ** -1", "2 ** 63", "2 ** 64 - 1", "(2 ** 64 - 1) // 3", "1 << 63", "-9223372036854775808", "-2 ** 63", "2 ** 0.5",
    "7 // -2", "-7 % 3", "~5", "6 / 4", "0x7FFFFFFFFFFFFFFF + 1", "2 ** 32 * 2 ** 31",
)  # fmt: skip


def test_numbers_alone_are_computed_by_python_before_the_compiler_sees_them() -> None:
    """So that ``10 ** -6`` is no integer's power, and ``2 ** 64 - 1`` a uint64: beside a float each is what it is in numba.njit."""
    p, beside = np.array([1.5]), tuple(f"({text}) * p" for text in WRITTEN)
    for text, theirs in zip(beside, _computed(beside, p, p), strict=True):
        found = np.zeros_like(theirs)
        simulate(function_of(f"def kernel(p, out):\n    out[0] = {text}\n", filename=f"<written {text}>"), 1, 1, 1.5, found)
        assert found == theirs, text


def _shapes(out: Any) -> None:
    tile = numba.cuda.shared.array((2**2, 2 + 1), numba.float32)
    tile[0, 0] = 1
    out[0], out[1] = tile.shape


def test_a_shape_of_written_numbers_alone_is_none_that_a_gpus_compiler_refuses() -> None:
    """Python computes them, so that numba-cuda compiles the kernel, and there is nothing to note."""
    from numba.cuda.compiler import compile_cuda

    compile_cuda(_shapes, numba.void, (numba.float64[:],), cc=(9, 0))
    out = np.zeros(2)
    assert not simulate(_shapes, 1, 1, out).notes
    assert out.tolist() == [4, 3]


def _signs(p: Any, minus: Any, inverted: Any, size: Any) -> None:
    i = numba.cuda.grid(1)
    minus[i], inverted[i], size[i] = -p[i], ~p[i], abs(p[i])


def test_everything_compared_is_a_number() -> None:
    """No divisor is 0, so that no result rests on what a processor makes of that."""
    rng = np.random.default_rng(7)
    for pair in PAIRS:
        numbers: list[Any] = [_numbers(name, rng) for name in pair]
        assert all((array != 0).all() and len(array) == 64 for array in numbers)


NAN = float("nan")
# Two numbers, and what min, max, np.minimum and np.maximum of them are. By hand: max.f32 and max.f64, to which numba-cuda compiles the
# first two, give the number where one is nan, and hold -0.0 to be below 0.0 (PTX ISA, max); NumPy's keep the nan.
EXTREMES = [
    (NAN, 1.0, 1.0, 1.0, NAN, NAN), (1.0, NAN, 1.0, 1.0, NAN, NAN), (NAN, NAN, NAN, NAN, NAN, NAN), (-2.0, 3.0, -2.0, 3.0, -2.0, 3.0),
    (3.0, -2.0, -2.0, 3.0, -2.0, 3.0), (NAN, np.inf, np.inf, np.inf, NAN, NAN), (0.0, NAN, 0.0, 0.0, NAN, NAN),
    (NAN, -0.0, -0.0, -0.0, NAN, NAN),
]  # fmt: skip
ZEROS = [(0.0, -0.0, -0.0, 0.0), (-0.0, 0.0, -0.0, 0.0), (-0.0, -0.0, -0.0, -0.0), (0.0, 0.0, 0.0, 0.0), (0.0, -3.0, -3.0, 0.0)]


def _extremes(p: Any, q: Any, out: Any) -> None:
    i = numba.cuda.grid(1)
    out[i, 0], out[i, 1] = min(p[i], q[i]), max(p[i], q[i])
    out[i, 2], out[i, 3] = np.minimum(p[i], q[i]), np.maximum(p[i], q[i])


@pytest.mark.parametrize("left", ["float32", "float64"])
@pytest.mark.parametrize("right", ["float32", "float64"])
@pytest.mark.parametrize("times", [1, 200])
def test_the_smaller_and_the_larger_of_two_floats_are_those_of_the_gpu(left: str, right: str, times: int) -> None:
    """With nan and with both zeros, few of them and many."""
    rows = np.array(EXTREMES * times)
    out = np.zeros((len(rows), 4))
    simulate(_extremes, len(rows), 1, rows[:, 0].astype(left), rows[:, 1].astype(right), out)
    np.testing.assert_array_equal(out, rows[:, 2:])
    rows = np.array(ZEROS * times)
    out = np.zeros((len(rows), 4))
    simulate(_extremes, len(rows), 1, rows[:, 0].astype(left), rows[:, 1].astype(right), out)
    assert out[:, :2].tobytes() == np.ascontiguousarray(rows[:, 2:]).tobytes()


def _compared(p: Any, q: Any, out: Any) -> None:
    i = numba.cuda.grid(1)
    out[i, 0], out[i, 1], out[i, 2] = max(p[i], 0), max(p[i], q[i], p[i]), min(0, p[i])


def test_three_numbers_and_an_integer_are_compared() -> None:
    """Where numba-cuda compiles no max.f64: ``other > best`` keeps the first where either is nan, as in Python."""
    p, q, out = np.array([NAN, 1.0]), np.array([1.0, NAN]), np.zeros((2, 3))
    simulate(_compared, 1, 2, p, q, out)
    np.testing.assert_array_equal(out, [[max(NAN, 0), max(NAN, 1.0, NAN), min(0, NAN)], [1, max(1.0, NAN, 1.0), 0]])


# What a GPU makes of a float in each type of integer. By hand from the PTX ISA, cvt.rzi: "clamped to the destination range"; a nan gives
# 0 from float32 in 32 bits, else the highest bit alone. The narrower types are the low bits of what 32 bits hold.
CUT = {
    "int32": {1e10: 2**31 - 1, -3e9: -(2**31), math.inf: 2**31 - 1, -math.inf: -(2**31), 2.0**31: 2**31 - 1, -1.9: -1},
    "uint32": {1e10: 2**32 - 1, -3e9: 0, -1.0: 0, -0.5: 0, math.inf: 2**32 - 1, -math.inf: 0, 3e9: 3 * 10**9, 2.0**32: 2**32 - 1},
    "int64": {1e30: 2**63 - 1, -1e30: -(2**63), 2.0**63: 2**63 - 1, -(2.0**63): -(2**63), math.inf: 2**63 - 1, 1e10: 10**10},
    "uint64": {1e30: 2**64 - 1, -1e30: 0, -1.0: 0, 2.0**63: 2**63, 2.0**64: 2**64 - 1, -math.inf: 0},
    "int8": {300.0: 44, -129.0: 127, -1.0: -1, 1e-3: 0},
    "uint8": {300.0: 44, -1.0: 0, 255.9: 255},
    "uint16": {-1.0: 0, 65537.0: 1},
}  # fmt: skip
CUT_OF_NAN = {
    ("float32", "int32"): 0, ("float64", "int32"): -(2**31), ("float32", "uint32"): 0, ("float64", "uint32"): 2**31,
    ("float32", "int64"): -(2**63), ("float64", "int64"): -(2**63), ("float32", "uint64"): 2**63, ("float64", "uint64"): 2**63,
}  # fmt: skip


@pytest.mark.parametrize("source", ["float32", "float64"])
@pytest.mark.parametrize("name", CUT)
def test_a_float_beyond_an_integers_range_becomes_its_nearest_end(name: str, source: str) -> None:
    """As on a GPU, whatever this processor does: by a call of the type, and by a store into an array of it."""
    given = {**CUT[name], **({NAN: CUT_OF_NAN[source, name]} if (source, name) in CUT_OF_NAN else {}), 7.5: 7}
    p = np.array(list(given), dtype=source)
    called, stored = np.zeros((2, len(p)), name)
    body = f"    i = cuda.grid(1)\n    called[i] = {name}(p[i])\n    stored[i] = p[i]\n"
    kernel = function_of(
        f"from gpulab.kernels import cuda\nfrom numba import {name}\ndef kernel(p, called, stored):\n{body}", filename="<cut>"
    )
    simulate(kernel, 1, len(p), p, called, stored)
    assert [called.tolist(), stored.tolist()] == [list(given.values())] * 2


def _powers(p: Any, q: Any, out: Any) -> None:
    i = numba.cuda.grid(1)
    out[i] = p[i] ** q[i]


def test_an_integers_power_does_not_depend_on_the_exponents_of_other_threads() -> None:
    """Exact where the exponent is not negative, as Python has it; else what numba computes, -2**63 of 0."""
    p = np.array([3, 3, 1, -1, -1, 0, 2, -3])
    q = np.array([39, -1, -5, -3, -4, -1, -2, 39])
    out = np.zeros(8, np.int64)
    simulate(_powers, 1, 8, p, q, out)
    assert out.tolist() == [3**39, 0, 1, -1, 1, -(2**63), 0, -(3**39)]
    compiled = numba.njit(error_model="numpy")(lambda a, b: a**b)
    assert out.tolist() == [compiled(a, b) for a, b in zip(p, q, strict=True)]


def _sums(p: Any, total: Any, old: Any) -> None:
    i = numba.cuda.grid(1)
    old[i] = numba.cuda.atomic.add(total, i % 2 * (i % 3), p[i])
    numba.cuda.atomic.add(total, 3 + i % 2 * (i % 3), p[i])


def test_lanes_that_add_floats_to_one_place_add_them_one_by_one() -> None:
    """Each to what those before it left, whether or not its old value is asked for: 1 is lost beside 2**24, however many there are."""
    p, total, old = np.ones(64, np.float32), np.zeros(6, np.float32), np.zeros(64, np.float32)
    total[:] = 2.0**24
    simulate(_sums, 1, 64, p, total, old)
    assert old.tolist() == [2.0**24] * 64
    assert total.tolist() == [2.0**24] * 6
    p, total = np.random.default_rng(3).normal(size=64).astype(np.float32), np.zeros(6, np.float32)
    simulate(_sums, 1, 64, p, total, old)
    sums = np.zeros(3, np.float32)
    for i in range(64):
        assert old[i] == sums[i % 2 * (i % 3)]
        sums[i % 2 * (i % 3)] += p[i]
    assert total.tolist() == [*sums, *sums]


def _atomic_extremes(p: Any, best: Any, old: Any) -> None:
    i = numba.cuda.grid(1)
    numba.cuda.atomic.max(best, 0, p[i])
    numba.cuda.atomic.min(best, 1, p[i])
    old[i] = numba.cuda.atomic.max(best, 2, p[i])
    numba.cuda.atomic.min(best, 3, p[i])
    numba.cuda.atomic.nanmax(best, 4, p[i])


@pytest.mark.parametrize("name", ["float32", "float64"])
@pytest.mark.parametrize("threads", [4, 32])
def test_an_atomic_maximum_takes_no_nan_and_keeps_one_that_is_there(name: str, threads: int) -> None:
    """By hand from the code that numba-cuda puts there: "return early ... for min / max when val or ptr is a NaN"."""
    p = np.resize(np.array([1.0, NAN, 3.0, -2.0], name), threads)
    best, old = np.array([0.0, 0.0, 2.0, NAN, NAN], name), np.zeros(threads, name)
    simulate(_atomic_extremes, 1, threads, p, best, old)
    np.testing.assert_array_equal(best, [3, -2, 3, NAN, 3])
    np.testing.assert_array_equal(old, [2, 2, 2, *[3] * (threads - 3)])


def _gamma(p: Any, out: Any) -> None:
    i = numba.cuda.grid(1)
    out[i] = math.gamma(p[i])


@pytest.mark.parametrize(("name", "accuracy"), [("float32", 2e-7), ("float64", 1e-12)])
def test_the_gamma_function_has_the_sign_and_the_size_of_pythons(name: str, accuracy: float) -> None:
    """Between and above its poles, where the sign changes with each; at them and beyond, what CUDA's manual says of tgamma."""
    p = np.concatenate([np.arange(-9.75, 0, 0.5), np.arange(-9.6, 30, 0.2), [1e-3, -1e-3, 1, 5]]).astype(name)
    p = p[p != np.round(p)]
    out = np.zeros_like(p)
    simulate(_gamma, 1, len(p), p, out)
    np.testing.assert_allclose(out, [math.gamma(float(v)) for v in p], rtol=accuracy)
    p = np.array([0.0, -0.0, -1.0, -4.0, np.inf, -np.inf, NAN, 200.0]).astype(name)
    out = np.zeros_like(p)
    simulate(_gamma, 1, len(p), p, out)
    np.testing.assert_array_equal(out, [np.inf, -np.inf, NAN, NAN, np.inf, NAN, NAN, np.inf])


# Expressions of p = 0.75 and q = -2.5, of n = -20 and m = 3, whose values Python itself has.
FUNCTIONS = (
    *(f"math.{name}(p)" for name in (
        "sqrt", "exp", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "sinh", "cosh", "tanh", "ceil", "floor", "trunc",
        "fabs", "exp2", "cbrt", "radians", "degrees", "asin", "acos", "atan", "asinh", "atanh", "erf", "erfc", "lgamma", "gamma",
        "isnan", "isinf", "isfinite")),
    "math.acosh(1 + p)", "math.ceil(q)", "math.floor(q)", "math.trunc(q)", "math.fabs(q)",
    *(f"math.{name}({given})" for name in ("atan2", "hypot", "copysign", "fmod") for given in ("p, q", "q, p", "n, m", "m, n")),
    "math.pow(p, q)", "math.pow(n, m)", "pow(p, 3)", "pow(m, 4)", "n ** m", "m ** 4", "p ** q",
    "abs(q)", "abs(n)", "round(q)", "round(p)", "min(p, q)", "max(p, q)", "min(n, m, 1)", "max(n, m, 1)", "n // m", "n % m", "m // n",
    "m % n", "q // p", "q % p", "n / m", "n << m", "n >> m", "n & m", "n | m", "n ^ m", "~n", "-n", "+q", "not n",
    "(n < m) + 2 * (n <= m) + 4 * (n > m) + 8 * (n >= m) + 16 * (n == m) + 32 * (n != m)",
)  # fmt: skip


def test_functions_and_operators_have_pythons_values() -> None:
    """Each in its own order of arguments; of floats to the last bits, which CUDA's own functions do not promise either."""
    stores = "".join(f"    out[{k}] = {expression}\n" for k, expression in enumerate(FUNCTIONS))
    out = np.zeros(len(FUNCTIONS))
    kernel = function_of(f"import math\ndef kernel(p, q, n, m, out):\n{stores}", filename="<functions>")
    simulate(kernel, 1, 1, 0.75, -2.5, -20, 3, out)
    given = {"math": math, "p": 0.75, "q": -2.5, "n": -20, "m": 3}
    np.testing.assert_allclose(out, [float(eval(expression, given)) for expression in FUNCTIONS], rtol=1e-13)


def _fused(p: Any, out: Any) -> None:
    i = numba.cuda.grid(1)
    out[i] = numba.cuda.fma(p[i, 0], p[i, 1], p[i, 2])


@pytest.mark.parametrize("name", ["float32", "float64"])
def test_an_fma_is_rounded_once(name: str) -> None:
    """To the float that is nearest to the exact fraction; its neighbours are farther. What is lost of a product comes out in full."""
    rng = np.random.default_rng(11)
    p = np.ldexp(rng.uniform(1, 2, (300, 3)) * rng.choice([-1, 1], (300, 3)), rng.integers(-9, 9, (300, 3))).astype(name)
    p[:100, 2] = -(p[:100, 0] * p[:100, 1])
    p[100:200, 2] *= np.ldexp(p.dtype.type(1), rng.integers(-60, 60, 100))
    out = np.zeros(300, name)
    simulate(_fused, 1, 300, p, out)
    for row, found in zip(p, out, strict=True):
        x, y, z = (Fraction(float(value)) for value in row)
        distances = [
            abs(Fraction(float(other)) - (x * y + z)) for other in (np.nextafter(found, -np.inf), found, np.nextafter(found, np.inf))
        ]
        assert distances[1] == min(distances), row
    assert out[:100].any()


def test_an_fma_without_a_nearest_number_is_what_ieee_754_says() -> None:
    """Infinities, nan, signs of zero and numbers at the ends of the range; by hand."""
    rows = [
        (math.inf, 2.0, 1.0, math.inf), (math.inf, 0.0, 1.0, NAN), (1.0, NAN, 1.0, NAN), (2.0, 3.0, -math.inf, -math.inf),
        (-0.0, 1.0, -0.0, -0.0), (0.0, 1.0, -0.0, 0.0), (1.0, 1.0, -1.0, 0.0), (1e200, 1e200, 1.0, math.inf), (1e300, 2.0, 1.0, 2e300),
        (1e-200, 1e-200, 1.0, 1.0),
    ]  # fmt: skip
    out = np.zeros(len(rows))
    simulate(_fused, 1, len(rows), np.array(rows), out)
    np.testing.assert_array_equal(out, [row[3] for row in rows])
    np.testing.assert_array_equal(np.signbit(out[4:7]), [True, False, False])


def _made(p: Any, out: Any) -> None:
    i = numba.cuda.grid(1)
    out[i] = complex(p[i], p[i + 1])


def test_a_complex_number_keeps_the_parts_that_it_is_made_of() -> None:
    """An infinite one and the sign of a zero too, as in Python."""
    p, out = np.array([1.0, math.inf, -0.0, NAN, 2.0]), np.zeros(4, np.complex128)
    simulate(_made, 1, 4, p, out)
    assert [(str(z.real), str(z.imag)) for z in out.tolist()] == [(str(a), str(b)) for a, b in itertools.pairwise(p.tolist())]


def _mates(p: Any, out: Any) -> None:
    i = numba.cuda.grid(1)
    out[i] = numba.cuda.match_any_sync(-1, p[i])


@pytest.mark.parametrize("name", ["float32", "float64"])
def test_lanes_match_whose_bits_are_the_same(name: str) -> None:
    """As PTX's match.any.sync has it, on b32 and b64: a nan matches itself, 0.0 does not match -0.0."""
    p = np.resize(np.array([NAN, 0.0, -0.0, 1.5], name), 32)
    out = np.zeros(32, np.int64)
    simulate(_mates, 1, 32, p, out)
    assert (out & 0xFFFFFFFF).tolist() == [sum(1 << j for j in range(k, 32, 4)) for k in range(4)] * 8


def _far(by: Any, out: Any) -> None:
    i, step = numba.cuda.grid(1), by[0]
    out[i, 0], out[i, 1] = numba.cuda.shfl_sync(-1, i, step), numba.cuda.shfl_up_sync(-1, i, step)
    out[i, 2], out[i, 3] = numba.cuda.shfl_down_sync(-1, i, step), numba.cuda.shfl_xor_sync(-1, i, step)


@pytest.mark.parametrize("step", [-1, 33, 32, -40, 5])
def test_a_shuffle_looks_at_five_bits_of_the_lane(step: int) -> None:
    """By the PTX ISA's own program of shfl: "bval = b[4:0]", then a lane beyond the warp's ends gives its own value."""
    out = np.zeros((32, 4), np.int64)
    simulate(_far, 1, 32, np.array([step]), out)
    by = step % 32
    assert out.tolist() == [[by, i - by if i >= by else i, i + by if i + by < 32 else i, i ^ by] for i in range(32)]


@pytest.mark.parametrize("name", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"])
def test_bits_are_counted_in_the_width_of_the_integer(name: str) -> None:
    """As LLVM's ctpop and ctlz do, to which numba-cuda compiles popc and clz; its brev takes 32 bits of all but uint64. From the digits."""
    width, limits = 8 * np.dtype(name).itemsize, np.iinfo(name)
    p = np.array([limits.min, limits.max, 1, 6, limits.max // 3], name)
    out = np.zeros((len(p), 3), np.uint64)
    body = "    i = cuda.grid(1)\n    out[i, 0], out[i, 1], out[i, 2] = cuda.popc(p[i]), cuda.clz(p[i]), cuda.brev(p[i])\n"
    simulate(function_of(f"from gpulab.kernels import cuda\ndef kernel(p, out):\n{body}", filename=f"<bits {name}>"), 1, len(p), p, out)
    for value, found in zip(p.tolist(), out.tolist(), strict=True):
        digits, turned = f"{value % 2**width:0{width}b}", 64 if name == "uint64" else 32
        assert found == [
            digits.count("1"), width - len(digits.lstrip("0")), int(f"{value % 2**turned:0{turned}b}"[::-1], 2),
        ]  # fmt: skip


def _places(out: Any) -> None:
    x = numba.cuda.threadIdx.x
    out[x, 0], out[x, 1], out[x, 2] = 31 - numba.cuda.clz(x), 31 - numba.cuda.clz(numba.cuda.blockDim.x), numba.cuda.clz(x + 0)


def test_the_leading_zeros_of_a_threads_place_are_those_of_32_bits() -> None:
    """Since threadIdx and blockDim are int32 in numba-cuda, and a sum is an int64: its own inference, and the logarithm by hand."""
    from numba.cuda.compiler import compile_cuda

    types = compile_cuda(_places, numba.void, (numba.int64[:, :],), cc=(9, 0)).type_annotation.typemap
    assert str(types["x"]) == "int32"
    out = np.zeros((64, 3), np.int64)
    simulate(_places, 1, 64, out)
    assert out.tolist() == [[x.bit_length() - 1, 6, 64 - x.bit_length()] for x in range(64)]


def test_functions_of_cuda_and_numpy_have_the_manuals_values() -> None:
    """CUDA's of bits and of floats, by its manual; a nan stays in NumPy's; a complex number of two parts."""
    expressions = {
        "cuda.fma(p, q, 1.0)": 0.75 * -2.5 + 1, "cuda.selp(p > q, p, q)": 0.75, "cuda.selp(p < q, p, q)": -2.5, "cuda.cbrt(-8.0)": -2,
        "cuda.popc(n)": 5, "cuda.clz(n)": 64 - 9, "cuda.ffs(n)": 2, "cuda.brev(uint64(n))": int(f"{310:064b}"[::-1], 2), "cuda.ffs(0)": 0,
        "cuda.clz(uint16(n))": 16 - 9, "cuda.brev(int32(n))": int(f"{310:032b}"[::-1], 2), "cuda.clz(0)": 64, "cuda.popc(-1)": 64,
        "np.minimum(p, q)": -2.5, "np.maximum(p, q)": 0.75, "np.maximum(p, math.nan)": math.nan,
    }  # fmt: skip
    stores = "".join(f"    out[{k}] = {expression}\n" for k, expression in enumerate(expressions))
    out, z = np.zeros(len(expressions)), np.zeros(1, np.complex128)
    kernel = function_of(
        f"{HEADER}import numpy as np\ndef kernel(p, q, n, out, z):\n{stores}    z[0] = complex(p, q)\n", filename="<cudas>"
    )
    simulate(kernel, 1, 1, 0.75, -2.5, 310, out, z)
    np.testing.assert_array_equal(out, [float(value) for value in expressions.values()])
    assert z[0] == 0.75 - 2.5j


def counts_wide(x, out):
    out[cuda.threadIdx.x] = cuda.syncthreads_count(x[cuda.threadIdx.x])


def test_a_vote_of_a_block_looks_at_32_bits() -> None:
    """numba-cuda hands it on as int32 (its sync intrinsics take i4), so that a multiple of 2**32 is nothing."""
    x, out = np.array([0, 1, 1 << 32, (1 << 32) + 4, -(1 << 40), -1], np.int64), np.zeros(6, np.int64)
    simulate(counts_wide, 1, 6, x, out)
    assert out.tolist() == [3] * 6


def from_texts(out):
    out[0] = float("-inf")
    out[1] = float(" 1e-3")
    out[2] = float("nan")


def test_a_float_of_a_text_is_the_number_that_it_names() -> None:
    """As Python's float, which numba calls when it compiles; a text that is no number is refused."""
    out = np.zeros(3)
    simulate(from_texts, 1, 1, out)
    np.testing.assert_array_equal(out, [-np.inf, 0.001, np.nan])


def test_what_a_product_and_a_sum_lose_is_kept() -> None:
    """In exact fractions: each with its loss is the whole, for numbers of many sizes."""
    rng = np.random.default_rng(3)
    for x, y in zip(*(np.ldexp(rng.uniform(-1, 1, 200), rng.integers(-40, 40, 200)) for _ in range(2)), strict=True):
        for (found, lost), exact in ((_product(x, y), Fraction(x) * Fraction(y)), (_sum(x, y), Fraction(x) + Fraction(y))):
            assert Fraction(float(found)) + Fraction(float(lost)) == exact
            assert float(found) == float(exact)


def test_a_sum_that_is_rounded_to_odd() -> None:
    """Beside 1, whose last bit is 0, to the neighbour where something is lost; 1 + 2^-52 is odd and stays; an exact sum is itself."""
    odd, little = 1 + 2.0**-52, 2.0**-60
    assert [float(_odd_sum(x, y)) for x, y in ((1.0, little), (odd, little), (odd, -little), (1.0, -little), (1.0, 1.0), (1.5, 0.0))] == [
        odd, odd, odd, 1 - 2.0**-53, 2.0, 1.5,
    ]  # fmt: skip
    assert _odd_sum(np.array([1.0, 2.0]), np.array([little, 2.0])).tolist() == [odd, 4.0]


def test_what_stands_for_a_function_without_code_has_some() -> None:
    """Each that numba-cuda lacks runs under the microscope, and what its note names instead is a function that it has."""
    known = {name for name in _arithmetic.FUNCTIONS if name not in _arithmetic.WITHOUT_CODE}
    assert set(_arithmetic.WITHOUT_CODE) - {"np.pow"} <= set(_arithmetic.FUNCTIONS)  # np.pow came with NumPy 2.1
    assert set(_arithmetic.WITHOUT_CODE.values()) <= known | {"**"}
