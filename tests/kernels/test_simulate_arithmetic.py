"""Types and values of arithmetic, against numba's compiler, Python and the PTX manual."""

import itertools
import math
import operator
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from gpulab.errors import KernelError
from gpulab.kernels import simulate, simulated
from kernel_case import function_of

numba = pytest.importorskip("numba", reason="numba's compiler is the reference")
pytest.importorskip("numba.cuda", reason="numba-cuda's inference is the reference")

HEADER = """import math
import cmath
import numpy as np
from gpulab.kernels import cuda, int8, int16, int32, int64, float32, float64
from gpulab.kernels import uint8, uint16, uint32, uint64
from numba.cuda import libdevice
"""
NAN, INF = math.nan, math.inf


def computed(dtype: Any, expressions: Any, *given: Any) -> np.ndarray:
    """Return what a kernel stores for expressions of p, q, n and m, in an array of a type."""
    parameters = ", ".join("pqnm"[: len(given)])
    stores = "".join(f"    out[{k}] = {text}\n" for k, text in enumerate(expressions))
    out = np.zeros(len(expressions), dtype)
    simulate(function_of(f"{HEADER}def kernel(out, {parameters}):\n{stores}"), 1, 1, out, *given)
    return out


# -- types -----------------------------------------------------------------------------------------

NAMES = ("int8", "uint16", "int32", "uint32", "int64", "uint64", "float32", "float64", "bool")
BINARY = {
    "p + q": operator.add, "p - q": operator.sub, "p * q": operator.mul, "p / q": operator.truediv,
    "p // q": operator.floordiv, "p % q": operator.mod, "p ** q": operator.pow,
    "p & q": operator.and_, "p | q": operator.or_, "p ^ q": operator.xor, "p << q": operator.lshift,
    "p >> q": operator.rshift, "p < q": operator.lt, "p == q": operator.eq, "min(p, q)": min,
    "max(p, q)": max, "pow(p, q)": pow, "math.atan2(p, q)": math.atan2,
    "math.hypot(p, q)": math.hypot, "math.copysign(p, q)": math.copysign,
    "math.fmod(p, q)": math.fmod, "math.pow(p, q)": math.pow, "np.minimum(p, q)": np.minimum,
}  # fmt: skip
UNARY = {
    "-p": operator.neg, "+p": operator.pos, "~p": operator.invert, "not p": operator.not_,
    "abs(p)": abs, "int(p)": int, "float(p)": float, "bool(p)": bool, "round(p)": round,
    **{
        f"math.{name}(p)": getattr(math, name)
        for name in (
            "sqrt", "exp", "log2", "sin", "atan", "fabs", "floor", "ceil", "trunc", "erf", "lgamma",
            "radians", "isnan", "isinf",
        )
    },
    "np.sin(p)": np.sin,
    **{f"cuda.{name}(p)": f"cuda.{name}" for name in ("popc", "clz", "brev")},
}  # fmt: skip
# What distinguishes types: a float32 loses the 1 beside 2**24, a shift to the right keeps the sign
# of a signed integer, and floats cannot be shifted.
PROBES = "(v - v + float32(16777216)) + float32(1)", "(~(v - v)) >> 1"


def _of_type(name: str) -> tuple[int, int | None]:
    """Return what the probes give for a variable of a type."""
    shifted = None if name.startswith("float") else 2**63 - 1 if name.startswith("uint") else -1
    return 2**24 + (name != "float32"), shifted


def _probed(expression: str, names: tuple[str, ...]) -> tuple[int, int | None] | None:
    """Return what the probes give for an expression; None if the simulator refuses it."""
    given = [np.dtype(name).type(1) for name in names]
    header = f"{HEADER}def kernel(out, {', '.join('pq'[: len(names)])}):\n    v = {expression}\n"
    found: list[int | None] = []
    for line in ("", *(f"    out[0] = {probe}\n" for probe in PROBES)):
        out = np.zeros(1, np.int64)
        try:
            simulate(function_of(header + line), 1, 1, out, *given)
        except KernelError:
            found.append(None)
        else:
            found.append(int(out[0]))
    return None if found[0] is None else (found[1], found[2])


def _inferred(function: Any, names: tuple[str, ...]) -> tuple[int, int | None] | None:
    """Return what the probes give for the type that numba-cuda infers; None if it infers none."""
    from numba import cuda, types
    from numba.core.errors import NumbaError
    from numba.cuda.descriptor import cuda_target

    if isinstance(function, str):
        function = getattr(cuda, function.removeprefix("cuda."))
    given = tuple(getattr(types, "boolean" if name == "bool" else name) for name in names)
    try:
        signature = cuda_target.typing_context.resolve_function_type(function, given, {})
    except NumbaError:
        return None
    return None if signature is None else _of_type(str(signature.return_type))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("expression", "arity"), [*((text, 2) for text in BINARY), *((text, 1) for text in UNARY)]
)
def test_types_are_those_that_the_compiler_infers(expression: str, arity: int) -> None:
    """Types agree for each operation and pair of types; what numba-cuda refuses is refused too."""
    from numba.cuda.descriptor import cuda_target

    cuda_target.typing_context.refresh()
    function = BINARY[expression] if arity == 2 else UNARY[expression]
    wrong = []
    for names in itertools.product(NAMES, repeat=arity):
        ours, theirs = _probed(expression, names), _inferred(function, names)
        # numba-cuda infers a type for the bits of a float too, but cannot compile them.
        if ours != theirs and not (ours is None and isinstance(function, str)):
            wrong.append(f"{names}: {ours}, numba {theirs}")
    assert not wrong, "\n".join(wrong)


# -- values ----------------------------------------------------------------------------------------

SHARED = (
    "p + q", "p - q", "p * q", "p / q", "p // q", "p % q", "p < q", "p <= q", "p == q", "p != q",
    "min(p, q)", "max(p, q)", "-p", "abs(p)", "p + 1", "p * 2.0", "p if q > 0 else p - 1",
    "p and q", "p or q", "not p", "float64(p)", "float32(p)", "1 - p // q", "p ** 2",
)  # fmt: skip
INTEGERS = (
    "p & q", "p | q", "p ^ q", "~p", "p << (q & 31)", "p >> (q & 31)", "p ** (q & 7)", "p ** 3",
    "int8(p)", "uint16(p)", "int32(p)", "uint32(p)", "int64(p)", "uint64(p)",
    "int8(p) * uint8(q)", "uint32(p) * uint32(q)", "uint8(p) - uint8(q)",
)  # fmt: skip
FLOATS = (
    "int32(p / 1e6)", "int64(p / 1e6)", "p * p - q", "math.floor(p / q)", "math.sqrt(abs(p))",
    "p - float32(0.1)", "p - 0.1",
)  # fmt: skip
PAIRS = (
    ("int8", "uint8"), ("int32", "int32"), ("uint32", "int32"), ("uint32", "uint32"),
    ("int64", "uint64"), ("uint64", "uint64"), ("int64", "int64"), ("int32", "uint16"),
    ("float32", "float32"), ("float32", "int32"), ("float64", "int64"), ("float32", "float64"),
    ("int16", "float32"), ("uint16", "float32"),
)  # fmt: skip


def _numbers(name: str) -> np.ndarray:
    """Return 64 nonzero numbers of a type; for integers, with the ends of the range."""
    dtype, rng = np.dtype(name), np.random.default_rng(len(name))
    if dtype.kind == "f":
        given = [1.5, -1.5, 0.1, 3.0, -2.0, 1e-3]
        return np.concatenate([given, rng.uniform(-1e4, 1e4, 58)]).astype(dtype)
    limits = np.iinfo(dtype)
    edges = np.array([limits.max, limits.min + 1, 1, 2, 3, limits.max // 2, 100], dtype)
    wide = rng.integers(limits.min + 1, limits.max, 57, dtype=dtype)
    return rng.permutation(np.concatenate([edges, np.where(wide == 0, dtype.type(1), wide)]))


@pytest.mark.slow
@pytest.mark.parametrize(("left", "right"), PAIRS)
def test_arithmetic_gives_the_values_that_the_compiler_computes(left: str, right: str) -> None:
    """Values equal those of numba.njit, in the types that it infers; floats agree in every bit."""
    expressions = (*SHARED, *(FLOATS if "float" in left + right else INTEGERS))
    p, q = _numbers(left), _numbers(right)
    names = [f"r{n}" for n in range(len(expressions))]
    body = "".join(f"    {name} = {text}\n" for name, text in zip(names, expressions, strict=True))
    # The compiler knows no tuple display of more than thirty parts.
    parts = ", ".join(f"({', '.join(names[n : n + 20])},)" for n in range(0, len(names), 20))
    text = (
        f"{HEADER.replace('gpulab.kernels', 'numba')}def scalar(p, q):\n{body}    return {parts},\n"
    )
    compiled = numba.njit(error_model="numpy")(function_of(text, "scalar"))
    rows = [[v for part in compiled(a, b) for v in part] for a, b in zip(p, q, strict=True)]
    kinds = [np.dtype(str(k)) for part in compiled.nopython_signatures[0].return_type for k in part]
    wide = [np.float64 if kind.kind == "f" else kind for kind in kinds]
    theirs = [
        np.array(c, k).astype(w)
        for c, k, w in zip(zip(*rows, strict=True), kinds, wide, strict=True)
    ]
    outputs = [np.zeros_like(array) for array in theirs]
    stores = "".join(f"    o{n}[i] = {text}\n" for n, text in enumerate(expressions))
    arguments = ", ".join(f"o{n}" for n in range(len(expressions)))
    start = "    i = cuda.grid(1)\n    p, q = pp[i], qq[i]\n"
    kernel = function_of(f"{HEADER}def kernel(pp, qq, {arguments}):\n{start}{stores}")
    simulate(kernel, 2, 32, p, q, *outputs)
    for expression, found, expected in zip(expressions, outputs, theirs, strict=True):
        np.testing.assert_array_equal(found, expected, err_msg=expression)


# Expressions of p = 0.75 and q = -2.5, of n = -20 and m = 3, whose values Python itself has.
FUNCTIONS = (
    *(f"math.{name}(p)" for name in (
        "sqrt", "exp", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "sinh",
        "cosh",
        "tanh", "ceil", "floor", "trunc", "fabs", "exp2", "cbrt", "radians", "degrees", "asin",
        "acos", "atan", "asinh", "atanh", "erf", "erfc", "lgamma", "gamma", "isnan", "isinf",
        "isfinite")),
    "math.acosh(1 + p)", "math.ceil(q)", "math.floor(q)", "math.trunc(q)", "math.fabs(q)",
    "math.gamma(q)", "math.gamma(n + 0.5)",
    *(f"math.{name}({given})" for name in ("atan2", "hypot", "copysign", "fmod")
      for given in ("p, q", "q, p", "n, m", "m, n")),
    "math.pow(p, q)", "math.pow(n, m)", "pow(p, 3)", "pow(m, 4)", "n ** m", "p ** q", "abs(q)",
    "abs(n)", "round(q)", "round(p)", "min(p, q)", "max(p, q)", "min(n, m, 1)", "max(n, m, 1)",
    "n // m", "n % m", "q // p", "q % p", "n / m", "n << m", "n >> m", "n & m", "n | m", "n ^ m",
    "math.ldexp(p, m)", "math.modf(q)[0] + 10 * math.modf(q)[1]", "math.remainder(n, m)",
    "math.frexp(q)[0] + 10 * math.frexp(q)[1]", "pow(n, 2)", "round(q * 7, 1)", "sum((n, p, q))",
    "~n", "-n", "+q", "math.pi * math.e + math.tau + math.inf", "complex(p, q).imag",
    "(n < m) + 2 * (n <= m) + 4 * (n > m) + 8 * (n >= m) + 16 * (n == m) + 32 * (n != m)",
)  # fmt: skip


def test_functions_and_operators_have_pythons_values() -> None:
    """Functions and operators give Python's values, within rounding, in each order of arguments."""
    given = {"math": math, "p": 0.75, "q": -2.5, "n": -20, "m": 3}
    expected = [float(eval(expression, given)) for expression in FUNCTIONS]
    found = computed(np.float64, FUNCTIONS, 0.75, -2.5, -20, 3)
    np.testing.assert_allclose(found, expected, rtol=1e-13)


# By hand. A GPU clamps a float to the range of an integer (PTX ISA, cvt.rzi); narrower types are
# the low bits of 32; a nan gives 0 from float32 in 32 bits, else the highest bit alone. max.f64
# gives the number where one is nan, NumPy's keeps the nan; 310 is 0b100110110.
SPECIAL: list[tuple[str, Any, Any]] = [
    ("int32", 1e10, 2**31 - 1), ("int32", -3e9, -(2**31)), ("int32", INF, 2**31 - 1),
    ("int32", -1.9, -1),
    *(("uint32", p, n) for p, n in ((1e10, 2**32 - 1), (-1.0, 0), (3e9, 3 * 10**9), (-INF, 0))),
    *(("int64", p, n) for p, n in ((1e30, 2**63 - 1), (-1e30, -(2**63)), (NAN, -(2**63)))),
    *(("uint64", p, n) for p, n in ((1e30, 2**64 - 1), (-1.0, 0), (2.0**63, 2**63), (NAN, 2**63))),
    ("int8", 300.0, 44), ("int8", -129.0, 127),
    ("uint8", -1.0, 0), ("uint16", 65537.0, 1),
    ("int32", NAN, -(2**31)), ("int32", np.float32(NAN), 0), ("uint32", np.float32(NAN), 0),
    *((f"cuda.{text}", 310, n) for text, n in (
        ("popc(p)", 5), ("clz(p)", 64 - 9), ("ffs(p)", 2), ("brev(int32(p))", 0b01101100100 << 21),
        ("clz(uint16(p))", 16 - 9), ("popc(p - 311)", 64), ("ffs(p - 310)", 0),
        ("selp(p > 3, 7, 8)", 7),
        ("fma(p, 2, 1)", 621), ("cbrt(p - 318.0)", -2))),
    ("min(p, 1.0)", NAN, 1.0), ("max(1.0, p)", NAN, 1.0), ("np.minimum(p, 1.0)", NAN, NAN),
    ("np.maximum(1.0, p)", NAN, NAN), ("math.copysign(1.0, max(p, -0.0))", 0.0, 1.0),
    ("math.copysign(1.0, min(0.0, p))", -0.0, -1.0), ("p ** -1", 3, 0), ("p ** -3", -1, -1),
    ("p ** 39", 3, 3**39), ("(2 ** 64 - 1) // 3", 3, (2**64 - 1) // 3), ("1 << p", 63, -(2**63)),
    ("math.gamma(p)", -4.0, NAN), ("math.gamma(p)", 0.0, INF), ("math.gamma(p)", 200.0, INF),
    ("math.copysign(1.0, cmath.exp(complex(-p, -p)).imag)", INF, 1.0),
    ("cmath.rect(0.0, p).imag", INF, 0.0), ("cmath.rect(p, 0.0).imag", INF, 0.0),
    ("cuda.fma(p, 0.0, 1.0)", INF, NAN), ("p // 0.0", 3.0, INF), ("float(p)", 2**53 + 1, 2**53),
    ("libdevice.fast_log2f(p)", 0.125, -3.0), ("libdevice.fast_fdividef(p, 4.0)", 3.0, 0.75),
    ("libdevice.fast_exp10f(p)", 2.0, 100.0), ("libdevice.exp10(p)", -2.0, 0.01),
    ("math.remainder(p, 0.0)", 5.0, NAN), ("sum((p, float32(1), -p))", np.float32(1e8), 1.0),
    # 3 + 4i has the size 5; of 16, the logarithm to the base 4 is 2; a half holds no 2049 or 4097
    ("(cuda.float32x2(p, 7).y + cuda.int4(1, p, 3, 4).y) / 4", 2.5, 9 / 4),
    ("cuda.float64x4(cuda.double2(1, p), 3, 4).y", 2.5, 2.5), ("cuda.uchar3(1, 2, p).z", 259, 3),
    ("cuda.fp16.hadd(p, 1) + cuda.fp16.hfma(p, 2, 1)", 2048.0, 2048.0 + 4096.0),
    ("cuda.fp16.hgt(p, 2) + 2 * cuda.fp16.hle(p, 2) + 4 * cuda.fp16.hge(p, 2)", 2.0, 2 + 4),
    ("cuda.fp16.hmax(p, 2) + cuda.fp16.hrcp(4)", 1.0, 2.25), ("cuda.fp16.habs(p)", -1.5, 1.5),
    ("cmath.polar(complex(p, 4))[0] + cmath.phase(complex(0, p)) / math.pi", 3.0, 5.5),
    ("cmath.sqrt(complex(p, 0)).imag", -4.0, 2.0), ("cmath.log(complex(p, 0), 4).real", 16.0, 2.0),
    ("cmath.isinf(complex(p, math.inf)) + 2 * cmath.isnan(complex(p, 1))", NAN, 3),
    ("libdevice.sincos(p)[1] + libdevice.sad(int32(p - 3), 4, 5)", 0.0, 13.0),
    ("np.logical_xor(p, 2) + 2 * np.signbit(p) + 4 * np.logical_not(p)", -0.0, 1 + 2 + 4),
    ("np.reciprocal(p) + np.sign(p) + np.rint(p)", -2.5, -0.4 - 1 - 2),
    ("np.fmin(p, 1.0) + np.fmax(2.0, p)", NAN, 3.0), ("np.divide(p, 2)", 3, 1.5),
    ("min(1.0, p, 2.0)", NAN, 1.0), ("math.isnan(min(p, 1.0, 2.0))", NAN, True),
    ("round(p, 25)", 1.25, 1.25), ("round(p, -2)", 1250.0, 1200.0), ("round(p, 2)", INF, INF),
    ("cuda.clz(cuda.blockDim.x)", 1, 31), ("cuda.ffs(uint64(p) << 40)", 1, 41),
    ("cuda.popc(int8(p))", -1, 8), ("cuda.popc(p > 3)", 5, 1), ("cuda.clz(int32(p))", 1, 31),
    ("-int8(p)", -128, -128), ("~uint8(p)", 1, 254),
    ("uint8(p) - uint8(2)", 1, 2**64 - 1), ("uint32(p) >> 1", -2, 2**31 - 1), ("p << 3", 2**61, 0),
]  # fmt: skip


@pytest.mark.parametrize(("text", "p", "expected"), SPECIAL)
def test_values_at_the_ends_of_the_ranges(text: str, p: Any, expected: Any) -> None:
    """A conversion to a type and a store into an array of that type give the same value."""
    kind = text if text.rstrip("0123456789") in ("int", "uint") else ""
    dtype = kind or (
        np.float64 if isinstance(expected, float) else np.int64 if expected < 2**63 else np.uint64
    )
    for each in (f"{kind}(p)", "p") if kind else (text,):
        np.testing.assert_array_equal(
            computed(dtype, [each], p), np.array([expected]).astype(dtype)
        )


@pytest.mark.parametrize("name", ["float32", "float64"])
def test_an_fma_is_rounded_once(name: str) -> None:
    """The result is the float nearest to the exact fraction: neither neighbor is nearer."""
    rng = np.random.default_rng(11)
    p = np.ldexp(rng.uniform(-2, 2, (300, 3)), rng.integers(-9, 9, (300, 3))).astype(name)
    p[:100, 2] = -(p[:100, 0] * p[:100, 1])
    p[100:200, 2] *= np.ldexp(p.dtype.type(1), rng.integers(-60, 60, 100))
    line = "    out[i] = cuda.fma(p[i, 0], p[i, 1], p[i, 2])\n"
    out = np.zeros(300, name)
    simulate(
        function_of(f"{HEADER}def kernel(out, p):\n    i = cuda.grid(1)\n{line}"), 1, 300, out, p
    )
    for row, found in zip(p, out, strict=True):
        x, y, z = (Fraction(float(value)) for value in row)
        near = (np.nextafter(found, -INF), found, np.nextafter(found, INF))
        distances = [abs(Fraction(float(other)) - (x * y + z)) for other in near]
        assert distances[1] == min(distances), row
    assert out[:100].any()


# -- atomics ---------------------------------------------------------------------------------------

ATOMICS = {
    # The initial value, the argument of each lane, the old value that each lane gets, and the final
    # value. From 2**24 on float32 loses each 1; min and max take no nan (numba-cuda's own way).
    ("add", "float32"): (2.0**24, [1] * 11 + [3], [2.0**24] * 12, 2.0**24 + 4),
    ("min", "float64"): (3.0, [2, NAN, 7], [3, 2, 2], 2),
    ("max", "float64"): (3.0, [2, NAN, 7], [3, 3, 3], 7),
    ("max", "float32"): (NAN, [2, 5], [NAN, NAN], NAN),
    ("nanmax", "float64"): (NAN, [2, 5], [NAN, 2], 5),
    ("add", "uint64"): (5, [2] * 20, [*range(5, 45, 2)], 45),
    ("max", "int32"): (3, [1, 5, 2, 9] * 5, [3, 3, 5, 5, *[9] * 16], 9),
    ("min", "int64"): (3, [4, 2] * 10, [3, 3, *[2] * 18], 2),
    ("nanmin", "float32"): (NAN, [5, 2, NAN], [NAN, 5, 2], 2),
    ("sub", "int32"): (-(2**31), [1, 5], [-(2**31), 2**31 - 1], 2**31 - 6),
    ("exch", "int64"): (7, [1, 2, 3], [7, 1, 2], 3),
    ("inc", "uint32"): (8, [9, 9, 9], [8, 9, 0], 1),
    ("dec", "uint32"): (1, [9, 9, 9, 2], [1, 0, 9, 8], 2),
    ("xor", "uint64"): (5, [3, 6], [5, 6], 0),
    ("and_", "int32"): (-1, [6, 3], [-1, 6], 2),
    ("or_", "int32"): (1, [6, 8], [1, 7], 15),
}  # fmt: skip


@pytest.mark.parametrize(("operation", "name"), ATOMICS)
@pytest.mark.parametrize("asked", [True, False])
def test_an_atomic_by_hand(operation: str, name: str, asked: bool) -> None:
    """Lanes take their turns in order, whether or not they ask for what was there."""
    begin, given, seen, stays = ATOMICS[operation, name]
    call = f"cuda.atomic.{operation}(data{', (0, 1)' if asked else '[0], 1'}, given[i])"
    text = f"def kernel(data, given, old):\n    i = cuda.grid(1)\n    {'old[i] = ' * asked}{call}\n"
    data, old = np.array([[77, begin, 77]], name), np.zeros(len(given), name)
    simulate(function_of(HEADER + text), 1, len(given), data, np.array(given).astype(name), old)
    np.testing.assert_array_equal(data, np.array([[77, stays, 77]], name))
    np.testing.assert_array_equal(old, np.array(seen, name) if asked else 0)


def test_what_an_atomic_takes_is_what_the_compiler_takes() -> None:
    """An atomic takes the types of array that numba-cuda takes; others are refused at the line."""
    counters, bits = {"uint32", "uint64"}, {"int32", "uint32", "int64", "uint64"}
    for operation, takes in {
        "inc": counters, "dec": counters, "and_": bits, "xor": bits, "exch": bits, "cas": bits,
        "add": {*bits, "float32", "float64"}, "max": {*bits, "float32", "float64"},
    }.items():  # fmt: skip
        call = f"cuda.atomic.{operation}(data, 0, {'data[1], ' * (operation == 'cas')}data[1])"
        kernel = function_of(f"{HEADER}def kernel(data):\n    {call}\n")
        for name in (*NAMES, "float16", "complex64"):
            if name in takes:
                simulate(kernel, 1, 2, np.zeros(2, name))
                continue
            with pytest.raises(KernelError) as refused:
                simulate(kernel, 1, 2, np.zeros(2, name))
            assert refused.value.line == HEADER.count("\n") + 2


# -- types that are declared, or joined ------------------------------------------------------------

# By hand: what a kernel stores if its argument p has the declared type. As an int32, 0xFFFFFFFF is
# -1, and 7.9 is 7, half of which is 3. The square of float32(0.1) is rounded to float32. Where 0.1
# and a float32 meet, both are float64, even if no thread takes that branch.
SINGLE = np.float32(0.1)
TYPED: list[tuple[str, str, Any, float]] = [
    ("int32", "out[0] = cuda.clz(p) + p", 0xFFFFFFFF, -1), ("int32", "out[0] = p // 2", 7.9, 3),
    ("float32", "out[0] = p * p", 0.1, float(SINGLE * SINGLE)),
    ("float64", "out[0] = half(p)", 7.9, 3),
    # of two declarations, that to which p is converted without a loss
    ("int32)', 'void(float64[:], float64", "out[0] = p / 2", 7.5, 3.75),
    ("int8)', 'void(float64[:], float64", "out[0] = p / 8", 300, 37.5),
    (
        "float32", "v = p\n    if p > 3:\n        v = 0.1\n    out[0] = v * v", 0.1,
        float(SINGLE) ** 2,
    ),
    ("float32", "out[0] = (p if p < 3 else 0.1) * p", 0.1, float(SINGLE) ** 2),
    ("int64", "v = uint64(p)\n    if p > 3:\n        v = -1\n    out[0] = v", 4, -1.0),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "body", "p", "expected"), TYPED)
def test_types_are_those_that_are_declared_or_that_meet(
    kind: str, body: str, p: Any, expected: float
) -> None:
    """Declared types apply to kernels, device functions and results; types that meet are joined."""
    out = np.zeros(1)
    with simulated():
        function_of(
            f"{HEADER}from numba import cuda\n"
            "@cuda.jit('int32(int32)', device=True)\ndef half(v):\n    return v / 2\n\n"
            f"@cuda.jit(['void(float64[:], {kind})'])\ndef kernel(out, p):\n    {body}\n"
        )[1, 1](out, p)
    assert out[0] == expected
