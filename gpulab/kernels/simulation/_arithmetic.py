"""The arithmetic functions that a kernel may call: those of math, NumPy, Python and cuda."""

from __future__ import annotations

import ast
import cmath
import functools
import math
from collections import namedtuple
from collections.abc import Callable
from typing import Any

import numpy as np

from gpulab.kernels.simulation import _memory, _types, source
from gpulab.kernels.simulation._functions import (
    ARITHMETIC,
    FUNCTIONS,
    Call,
    computes,
    not_numeric,
)
from gpulab.kernels.simulation._geometry import Mask
from gpulab.kernels.simulation._machine import Expression, Frame
from gpulab.units import plural

# -------------------------------------------------------------------------------------------------
# A product and a sum that are rounded once, as by a GPU's fma, which NumPy lacks.
#
# Source: S. Boldo and G. Melquiond, "Emulation of FMA and correctly rounded sums: proved
# algorithms using rounding to odd", IEEE Transactions on Computers 57(4), 2008. Where a part would
# leave the range of float64, product and sum are rounded separately.


Value = Any  # an array of float64, or a NumPy scalar

_SPLITTER = 2.0**27 + 1
# the smallest product whose parts lose no bits; where a part overflows, the sum is not finite
_SMALLEST = 2.0**-960


def fused(x: Value, y: Value, z: Value, single: bool) -> Value:
    """Return ``x * y + z``, rounded once. With ``single``, the arguments hold float32 numbers, and
    the result is such that its cast to float32 is the only rounding.
    """
    plain = x * y + z
    if single:  # the product is exact
        found = _odd_sum(x * y, z)
        return np.where(np.isfinite(found), found, plain)[()]
    high, low = _product(x, y)
    first, second = _sum(z, low)
    most, rest = _sum(high, first)
    found = most + _odd_sum(second, rest)
    inside = (abs(high) > _SMALLEST) & np.isfinite(found) & (found != 0)
    return np.where(inside, found, plain)[()]


def _product(x: Value, y: Value) -> tuple[Value, Value]:
    """Return a product and what its rounding lost (Dekker)."""
    high = x * y
    (a, b), (c, d) = _halves(x), _halves(y)
    return high, ((a * c - high) + a * d + b * c) + b * d


def _halves(x: Value) -> tuple[Value, Value]:
    far = _SPLITTER * x
    high = far - (far - x)
    return high, x - high


def _sum(x: Value, y: Value) -> tuple[Value, Value]:
    """Return a sum and what its rounding lost (Knuth)."""
    found = x + y
    part = found - x
    return found, (x - (found - part)) + (y - part)


def _odd_sum(x: Value, y: Value) -> Value:
    """Return a sum that, where it is not exact, is rounded to the neighbor whose last bit is 1."""
    found, lost = _sum(x, y)
    is_even: Any = (np.asarray(found).view(np.int64) & 1) == 0
    moved: Any = np.where(
        is_even & (lost != 0) & np.isfinite(lost),
        np.nextafter(found, np.copysign(np.inf, lost)),
        found,
    )
    return moved[()]


# -------------------------------------------------------------------------------------------------
# The arithmetic functions that a kernel may call: of math, NumPy and Python, and cuda's of bits.


def _special(
    function: Callable[..., float], at_pole: Callable[..., float] = lambda *_: math.nan
) -> Callable[..., Any]:
    """Return a function of ``math`` that NumPy lacks, applied to each lane, with a result of the
    arguments' type. On overflow the result is infinity; where it is not defined, it is CUDA's
    (``at_pole``).
    """

    def of_one(*values: float) -> float:
        try:
            return function(*values)
        except OverflowError:
            return math.copysign(math.inf, values[0])
        except ValueError:
            return at_pole(*values)

    of_lanes = np.vectorize(of_one, otypes=[np.float64])
    return lambda *values: of_lanes(*values).astype(values[0].dtype)[()]


_INT32 = np.dtype(np.int32)
# Functions of NumPy and math for which numba-cuda has no code, and what to write for a GPU instead.
_IN_MATH_ALONE = (
    *("sqrt", "exp", "expm1", "log1p", "ceil", "floor", "trunc", "fabs", "exp2", "copysign"),
    *("fmod", "isinf", "isfinite"),
)
WITHOUT_CODE = {
    **{f"np.{name}": f"math.{name}" for name in _IN_MATH_ALONE},
    "math.cbrt": "cuda.cbrt",
    "np.cbrt": "cuda.cbrt",
    "np.abs": "abs",
    "np.absolute": "abs",
    "np.power": "**",
    "np.pow": "**",
    "np.float_power": "**",
}


# from the types of the arguments to the type that they are cast to
Rule = Callable[..., np.dtype | None]


class _TakesError(TypeError):
    """Says which numbers a function takes, when it was given others."""


def _elementwise(
    call: Call, function: Callable[..., Any], counts: tuple[int, int], rule: Rule
) -> Expression:
    """Return the closure of a call of a function of numbers. A NumPy function takes arrays as well,
    if it is given one more array, to which it writes.
    """
    most = counts[1] + call.name.startswith("np.")
    values = call.values(counts[0], most, ("number", "ndigits") if call.name == "round" else ())
    places = {n for n, node in enumerate(call.given) if call.translator.is_place(node)}

    kinds, what = _TAKES.get(call.name) or _TAKES.get(call.name.partition(".")[0], ("", ""))

    def of_numbers(*given: Any) -> Any:
        call.expect(not any(map(not_numeric, given)), "numbers")
        types = [_INT32 if n in places else value.dtype for n, value in enumerate(given)]
        call.expect(not kinds or all(dtype.kind in kinds for dtype in types), what)
        try:
            dtype = rule(*types)
            return function(*(v if dtype is None else _types.cast(v, dtype) for v in given))
        except _TakesError as error:
            raise call.fail(f"{call.name} takes {error}") from error
        except (TypeError, AttributeError) as error:
            raise call.fail(f"{call.name} does not take numbers of these types") from error

    def run(frame: Frame, mask: Mask) -> Any:
        given = values(frame, mask)
        if len(given) <= counts[1]:
            return of_numbers(*given)
        *given, last = given
        if not isinstance(last, _memory.View):
            raise call.fail(f"{call.name} writes to an array; expected one as its last argument")
        for index, some in _memory.elements(last, mask):
            numbers = [
                _memory.element(frame.machine, part, some, index, call.line) for part in given
            ]
            _memory.store(frame.machine, last, some, index, of_numbers(*numbers), call.line)
        return last

    return run


# For some functions, or all of a module: the kinds of numbers that they take, and the words for
# these kinds.
_TAKES = {
    **dict.fromkeys(("math", "round", "cuda.fma"), ("biufmM", "real numbers")),
    **dict.fromkeys(
        ("cuda.popc", "cuda.clz", "cuda.ffs", "cuda.brev", ".bit_count"), ("iub", "an integer")
    ),
}


def _complex_type(dtype: np.dtype) -> np.dtype:
    return np.result_type(dtype, np.complex64)


def _any_type(*types: np.dtype) -> None:
    """Leave arguments as they are."""


def _float_of_two(a: np.dtype, b: np.dtype) -> np.dtype:
    return _types.float_type(_types.arithmetic_type(a, b))


def _exp(value: Any) -> Any:
    """Return ``cmath.exp``. If the real part is -inf and the imaginary part is not finite, the
    result is 0 without a sign; NumPy's has the sign of the imaginary part.

    Source: numba-cuda 0.30, exp_impl in cmathimpl.py.
    """
    vanishes = (value.real == -np.inf) & ~np.isfinite(value.imag)
    return np.where(vanishes, value.dtype.type(0), np.exp(value))[()]


def _rect(size: Any, angle: Any) -> Any:
    """Return ``cmath.rect``, which keeps 0 and infinity where their product would be a nan.

    Source: numba-cuda 0.30, impl_cmath_rect in cmathimpl.py.
    """
    endless, no_angle = np.isinf(size), ~np.isfinite(angle)
    real, imag = (
        np.where((side == 0) & endless, side / size, side * size)
        for side in (np.cos(angle), np.sin(angle))
    )
    ends = [no_angle & (size == 0), no_angle & endless]
    real, imag = np.select(ends, [abs(size), size], real), np.select(ends, [0, angle], imag)
    return _complex_of(real, imag, _complex_type(size.dtype))


def _complex_of(real: Any, imag: Any, dtype: np.dtype) -> Any:
    """Return complex numbers made of two parts; ``real + 1j * imag`` would turn an infinity into a
    nan.
    """
    found = np.empty(np.broadcast_shapes(np.shape(real), np.shape(imag)), dtype)
    found.real, found.imag = real, imag
    return found[()]


def _of_floats(ufunc: Callable[[Any, Any], Any], a: Any, b: Any) -> Any:
    """Return ``np.fmin`` or ``np.fmax`` with -0.0 below 0.0, as in PTX; NumPy may return either
    zero.
    """
    found = ufunc(a, b)
    if np.count_nonzero(found) == found.size:
        return found
    zero = a + b if ufunc is np.fmax else -(-a - b)
    return np.where((a == 0) & (b == 0), zero, found)[()]


@computes("min", "max", most=64)
def _extreme(call: Call, frame: Frame, mask: Mask, *given: Any) -> Any:
    smaller = call.name == "min"
    given = given[0] if len(given) == 1 and isinstance(given[0], tuple) else given
    are_real = all(not not_numeric(value) and value.dtype.kind in "biuf" for value in given)
    call.expect(bool(given) and are_real, "real numbers, or a tuple of them")
    best, of_two = given[0], len(given) == 2
    for other in given[1:]:
        floats = {best.dtype, other.dtype} <= {_types.SINGLE, _types.FLOAT}
        best, other = _types.alike(best, other)  # noqa: PLW2901
        if of_two and floats:  # numba-cuda takes CUDA's fmin and fmax, which drop a nan
            return _of_floats(np.fmin if smaller else np.fmax, best, other)
        # numba-cuda compares all others as Python does, which keeps the first if either is a nan.
        best = np.where(other < best if smaller else other > best, other, best)[()]
    return best


@computes("isinstance", least=2)
def _isinstance(call: Call, frame: Frame, mask: Mask, found: Any, asked: Any) -> Any:
    """Return whether a value has a type. The types are numba's, so that only an int64 is an int.

    Source: numba-cuda 0.30, ol_isinstance in builtins.py.
    """
    asked = asked if isinstance(asked, tuple) else (asked,)
    own: list[Any] = [] if not_numeric(found) else [found.dtype]
    if isinstance(found, tuple) or own == [np.complex128]:
        own.append(source.Intrinsic("complex" if own else "tuple"))
    return np.bool_(any(kind in asked for kind in own))


@computes("tuple")
def _tuple(call: Call, frame: Frame, mask: Mask, found: Any) -> Any:
    call.expect(isinstance(found, tuple), "a tuple")
    return found


def _round(value: Any, digits: Any = None) -> Any:
    """Return ``round``, of several digits by the steps of numba-cuda's own code.

    Source: numba-cuda 0.30, round_to_impl in mathimpl.py.
    """
    if digits is None:
        return _types.cast(np.rint(value), _types.INT)
    value = _types.cast(value, _types.float_type(value.dtype))
    few = np.minimum(digits, 22)
    power, rest = 10.0 ** abs(few.astype(float)), 10.0 ** np.maximum(digits - 22.0, 0)
    power, rest = np.where(digits > 22, rest, power), np.where(digits > 22, 1e22, 1.0)
    scaled = np.where(digits >= 0, value * power * rest, value / power)
    near = np.rint(scaled)
    found = np.where(digits >= 0, near / rest / power, near * power)
    return _types.cast(np.where(np.isfinite(scaled), found, value)[()], value.dtype)


def _ldexp(value: Any, power: Any) -> Any:
    return np.ldexp(_types.cast(value, _types.float_type(value.dtype)), _types.cast(power, _INT32))


def _complex_log(value: Any, base: Any = None) -> Any:
    logs = [
        np.log(_types.cast(each, _complex_type(each.dtype)))
        for each in (value, base)
        if each is not None
    ]
    return logs[0] if base is None else ARITHMETIC[ast.Div](*logs)


def _complex(real: Any, imag: Any = None) -> Any:
    types = [value.dtype for value in (real, imag) if value is not None]
    dtype = np.dtype(np.complex64 if set(types) == {_types.SINGLE} else np.complex128)
    if _types.BOOL in types:
        raise _TakesError("no truth value; expected a number")
    if imag is None:
        return _types.cast(real, dtype)
    if any(one.kind == "c" for one in types):
        raise _TakesError("two real numbers")
    return _complex_of(real, imag, dtype)


def _fma(*given: Any) -> Any:
    dtype = _types.fma_type(tuple(value.dtype for value in given))
    x, y, z = (_types.cast(value, _types.FLOAT) for value in given)
    return _types.cast(fused(x, y, z, dtype == _types.SINGLE), dtype)


def _selected(test: Any, x: Any, y: Any) -> Any:
    if x.dtype != y.dtype or x.dtype.kind not in "iuf":
        raise _TakesError(f"two numbers of one type, not {x.dtype} and {y.dtype}")
    return np.where(_types.truth(test), x, y)[()]


def _type_of_count(dtype: np.dtype) -> np.dtype:
    return np.dtype(np.int8) if dtype == _types.BOOL else dtype


def _bits_of(value: Any) -> Any:
    """Return the bits of an integer in its own width."""
    return np.asarray(value).view(f"u{value.dtype.itemsize}")


def _flipped(bits: Any) -> Any:
    """Return unsigned integers with their bits in the reverse order."""
    single = np.unpackbits(np.ascontiguousarray(bits[..., None]).view(np.uint8), axis=-1)
    return np.packbits(single[..., ::-1], axis=-1).view(bits.dtype)[..., 0]


def _trailing_zeros(bits: Any) -> Any:
    return np.bitwise_count(~bits & (bits - 1))  # the ones that replace the zeros in bits - 1


def _reversed_bits(value: Any) -> Any:
    """Return the bits in the reverse order: all 64 of a uint64, and the low 32 of any other type,
    even of an int64. numba-cuda's brev knows only uint32 and uint64.
    """
    bits = _bits_of(value)
    return _flipped(bits if value.dtype == _types.UINT else np.asarray(value.astype(np.uint32)))[()]


def _ones(value: Any) -> Any:
    return np.bitwise_count(_bits_of(value)).astype(value.dtype)[()]


def _leading_zeros(value: Any) -> Any:
    return _trailing_zeros(_flipped(_bits_of(value))).astype(value.dtype)[()]


def _first_set(value: Any) -> Any:
    bits = _bits_of(value)
    if bits.dtype.itemsize < 4:
        raise _TakesError("an integer of 32 or 64 bits")
    return np.where(bits == 0, 0, _trailing_zeros(bits) + 1).astype(np.uint32)[()]


# -------------------------------------------------------------------------------------------------
# Functions of several results, of tuples and of arrays; the half precision and the vector types of
# cuda.


_REDUCTIONS = (
    "sum", "prod", "min", "max", "mean", "any", "all", "var", "std", "count_nonzero",
    "argmin", "argmax", "nansum", "nanprod", "nanmin", "nanmax", "nanmean", "nanvar", "nanstd",
)  # fmt: skip


@computes("sum", *(f"{owner}.{name}" for owner in ("np", "") for name in _REDUCTIONS))
def _reduction(call: Call, frame: Frame, mask: Mask, found: Any) -> Any:
    """Return a sum, a largest element and the like, of an array or a tuple."""
    name = call.name.rpartition(".")[2]
    parts = found if isinstance(found, tuple) else ()
    if isinstance(found, _memory.ARRAYS) and found.dtype.kind in "biufc":
        each = [*_memory.elements(found, mask)]
        call.expect(
            all(some is mask for _, some in each), "an array that is as long in all threads"
        )
        parts = tuple(_memory.load(frame.machine, found, mask, at, call.line) for at, _ in each)
    call.expect(bool(parts) and not any(map(not_numeric, parts)), "an array or a tuple of numbers")
    stacked = np.array(np.broadcast_arrays(*parts))
    if name.endswith(("mean", "var", "std")):
        stacked = _types.cast(stacked, _types.FLOAT)
    if call.name == "sum":  # Python's own adds to an int64, 0
        stacked = _types.cast(stacked, _types.arithmetic_type(stacked.dtype, _types.INT))
    return getattr(np, name)(stacked, axis=0)[()]


@computes(".view", ".reshape", ".ravel", ".item", ".copy", most=9)
def _of_memory(call: Call, frame: Frame, mask: Mask, view: Any, *given: Any) -> Any:
    kind = call.name[1:]
    if not isinstance(view, _memory.View):
        raise call.fail(f"`{call.name}` is not supported in a kernel")
    try:
        if kind == "copy":  # memory of each thread's own
            shape = tuple(map(int, view.shape))
            copy = _memory.new_view(view.store.name, "local", shape, view.dtype, mask.batch)
            _memory.fill(frame.machine, copy, mask, view, call.line)
            return copy
        if kind == "view":
            dtype = source.dtype_of(given[0]) if given else None
            return _memory.viewed(view, view.dtype if dtype is None else dtype)
        if kind == "item":
            return _memory.load(frame.machine, _memory.reshaped(view, ()), mask, (), call.line)
        shape = given[0] if given and isinstance(given[0], tuple) else given
        return _memory.reshaped(view, shape if kind == "reshape" else (-1,))
    except (TypeError, ValueError) as error:
        raise call.fail(f"`{call.name}`: {error}") from error


# The vector types of one to four parts; the type of the parts is in their names, such as float32x4.
_VECTORS: tuple[Any, ...] = (
    namedtuple("One", "x"), namedtuple("Two", "x y"), namedtuple("Three", "x y z"),
    namedtuple("Four", "x y z w"),
)  # fmt: skip
_ALIASES = {
    **{"char": "int8", "uchar": "uint8", "short": "int16", "ushort": "uint16", "int": "int32"},
    **{"uint": "uint32", "long": "int64", "ulong": "uint64", "longlong": "int64"},
    **{"ulonglong": "uint64", "float": "float32", "double": "float64"},
}


def _vector(dtype: np.dtype, count: int, call: Call, frame: Frame, mask: Mask, *values: Any) -> Any:
    """Return a vector of numbers, or of other vectors' parts."""
    several = [value if isinstance(value, tuple) else (value,) for value in values]
    parts = [part for value in several for part in value]
    call.expect(len(parts) == count and not any(map(not_numeric, parts)), plural(count, "number"))
    return _VECTORS[count - 1](*(_types.cast(part, dtype) for part in parts))


for _alias, _name in _ALIASES.items():
    for _count in range(1, 5):
        _names = f"cuda.{_name}x{_count}", f"cuda.{_alias}{_count}"
        computes(*_names, most=4)(functools.partial(_vector, np.dtype(_name), _count))


# -------------------------------------------------------------------------------------------------
# The table of all functions of numbers: the prefix of their names, the functions, how many
# arguments they take, and the rule for the type to which these are cast.


Functions = dict[str, Callable[..., Any]]


def _of_numpy(names: str) -> Functions:
    return {name: getattr(np, name) for name in names.split()}


def _known(module: Any, functions: Functions) -> Functions:
    """Return the functions whose names a module has; math, for example, has no arcsin."""
    return {name: function for name, function in functions.items() if hasattr(module, name)}


def _in_halves(functions: Functions) -> Functions:
    """Return functions of half precision: computed in float32 and rounded."""

    def in_half(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *given: function(*given).astype(np.float16)

    return {name: in_half(function) for name, function in functions.items()}


def _fixed(dtype: np.dtype) -> Rule:
    """Return the rule of functions that take only one type."""
    return lambda *_: dtype


_UNARY: Functions = {
    **_of_numpy("sqrt exp expm1 log log2 log10 log1p sin cos tan sinh cosh tanh ceil floor"),
    **_of_numpy("trunc fabs exp2 cbrt radians degrees deg2rad rad2deg arcsin arccos arctan"),
    **_of_numpy("arcsinh arccosh arctanh asin acos atan asinh acosh atanh"),
    **{"erf": _special(math.erf), "erfc": _special(math.erfc)},
    **{"lgamma": _special(math.lgamma, lambda _: math.inf)},
    # at 0 an infinity with the sign of the 0, at its other poles nan
    "gamma": _special(
        math.gamma, lambda value: math.copysign(math.inf, value) if value == 0 else math.nan
    ),
}
_TESTS = _of_numpy("isnan isinf isfinite")
_PAIRS = _of_numpy("fmod copysign")
_POWERS: Functions = dict.fromkeys(("pow", "power", "float_power"), np.power)
_BINARY: Functions = _of_numpy("arctan2 atan2 hypot nextafter") | {
    "remainder": _special(math.remainder),
}
_OPERATORS = {
    **{"add": ast.Add, "sub": ast.Sub, "mul": ast.Mult, "truediv": ast.Div, "mod": ast.Mod},
    **{"floordiv": ast.FloorDiv, "pow": ast.Pow, "and": ast.BitAnd, "or": ast.BitOr},
    **{"xor": ast.BitXor, "lshift": ast.LShift, "rshift": ast.RShift},
}
_HALVES_OF_ONE = _of_numpy("ceil floor trunc rint sin cos sqrt log log2 log10 exp exp2") | {
    **{"abs": np.abs, "neg": np.negative, "rcp": np.reciprocal},
    **{"exp10": lambda x: np.float32(10) ** x, "rsqrt": lambda x: 1 / np.sqrt(x)},
}
_HALVES_OF_TWO: Functions = {
    **{"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide},
    **{"max": np.fmax, "min": np.fmin},
}
_HALVES_COMPARED: Functions = {
    **{"eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal},
    **{"gt": np.greater, "ge": np.greater_equal},
}
_DEVICE_OF_ONE = _known(math, _UNARY) | {
    **{"rsqrt": _HALVES_OF_ONE["rsqrt"], "exp10": _HALVES_OF_ONE["exp10"], "frexp": np.frexp},
    "tgamma": _UNARY["gamma"],
    "sincos": lambda x: (np.sin(x), np.cos(x)),
}
_DEVICE_OF_TWO = _known(math, _BINARY | _PAIRS | _POWERS)
_power_type = functools.partial(_types.float_pair_type, is_power=True)
_float_ufunc = functools.partial(_types.ufunc_type, gives_float=True)
_MODULES: tuple[tuple[str, Any, Rule, Rule], ...] = (
    ("math.", math, _types.float_type, _float_of_two),
    ("np.", np, _float_ufunc, _float_ufunc),
)
_TABLE: list[tuple[str, Functions, tuple[int, int], Rule]] = [
    *((prefix, _known(module, _UNARY), (1, 1), rule) for prefix, module, rule, _ in _MODULES),
    *((prefix, _known(module, _BINARY), (2, 2), rule) for prefix, module, _, rule in _MODULES),
    *((prefix, _TESTS, (1, 1), _any_type) for prefix in ("math.", "np.", "cmath.")),
    *(
        (prefix, _known(module, _PAIRS), (2, 2), _types.float_pair_type)
        for prefix, module, *_ in _MODULES
    ),
    *((prefix, _known(module, _POWERS), (2, 2), _power_type) for prefix, module, *_ in _MODULES),
    ("cuda.", {"cbrt": np.cbrt}, (1, 1), _types.float_type),
    ("cmath.", _known(cmath, _UNARY), (1, 1), _complex_type),
    (
        "cmath.",
        {"exp": _exp, "phase": np.angle, "polar": lambda x: (np.abs(x), np.angle(x))},
        (1, 1),
        _complex_type,
    ),
    ("cmath.", {"rect": _rect}, (2, 2), _float_of_two),
    ("cmath.", {"log": _complex_log}, (1, 2), _any_type),
    *(
        ("np.", _of_numpy(names), (count, count), rule)
        for count, rule, names in (
            (2, _types.ufunc_type, "add subtract multiply minimum maximum fmin fmax floor_divide"),
            (2, _types.ufunc_type, "mod remainder bitwise_and bitwise_or bitwise_xor left_shift"),
            (2, _types.ufunc_type, "right_shift equal not_equal less less_equal greater"),
            (2, _types.ufunc_type, "greater_equal"),
            (1, _types.ufunc_type, "negative sign square conjugate conj invert absolute abs"),
            (2, _float_ufunc, "divide true_divide"),
            (1, _float_ufunc, "reciprocal rint"),
            (2, _any_type, "logical_and logical_or logical_xor"),
            (1, _any_type, "logical_not signbit"),
        )
    ),
    (".", _of_numpy("conjugate conj"), (1, 1), _any_type),
    (".", {"bit_count": lambda value: _types.cast(_ones(value), _types.INT)}, (1, 1), _any_type),
    ("", {"abs": lambda x: x.astype(np.int8) if x.dtype == bool else abs(x)}, (1, 1), _any_type),
    ("", {"pow": _types.power}, (2, 2), _any_type),
    (
        "",
        {"divmod": lambda x, y: (ARITHMETIC[ast.FloorDiv](x, y), ARITHMETIC[ast.Mod](x, y))},
        (2, 2),
        _any_type,
    ),
    ("", {"round": _round, "complex": _complex}, (1, 2), _any_type),
    ("math.", {"ldexp": _ldexp}, (2, 2), _any_type),
    ("math.", {"modf": np.modf, "frexp": np.frexp}, (1, 1), _types.float_type),
    ("cuda.", {"fma": _fma, "selp": _selected}, (3, 3), _any_type),
    ("cuda.", {"popc": _ones, "clz": _leading_zeros}, (1, 1), _type_of_count),
    ("cuda.", {"ffs": _first_set, "brev": _reversed_bits}, (1, 1), _type_of_count),
    *(
        ("operator.", {prefix + name + mark: ARITHMETIC[kind]}, (2, 2), _any_type)
        for name, kind in _OPERATORS.items()
        for prefix, mark in (("", "_" * (name in ("and", "or"))), ("i", ""))
    ),
    ("cuda.fp16.h", _in_halves(_HALVES_OF_ONE), (1, 1), _fixed(_types.SINGLE)),
    ("cuda.fp16.h", _in_halves(_HALVES_OF_TWO), (2, 2), _fixed(_types.SINGLE)),
    ("cuda.fp16.h", _in_halves({"fma": lambda x, y, z: x * y + z}), (3, 3), _fixed(_types.FLOAT)),
    ("cuda.fp16.h", _HALVES_COMPARED, (2, 2), _fixed(np.dtype(np.float16))),
    # functions of float64, and those of float32, whose names end in f
    *(
        ("libdevice.", {f"{name}{mark}": function}, (count, count), _fixed(dtype))
        for mark, dtype in (("", _types.FLOAT), ("f", _types.SINGLE))
        for functions, count in ((_DEVICE_OF_ONE, 1), (_DEVICE_OF_TWO, 2))
        for name, function in functions.items()
        if name not in ("degrees", "gamma", "radians")  # which only math has
    ),
    # approximate on a GPU, exact here
    (
        "libdevice.",
        {
            f"fast_{name}f": _DEVICE_OF_ONE[name]
            for name in ("exp", "exp10", "log", "log2", "log10", "sin", "cos", "tan", "sincos")
        },
        (1, 1),
        _fixed(_types.SINGLE),
    ),
    (
        "libdevice.",
        {"fast_powf": np.power, "fast_fdividef": np.true_divide},
        (2, 2),
        _fixed(_types.SINGLE),
    ),
    ("libdevice.", {"sad": lambda x, y, z: abs(x - y) + z}, (3, 3), _fixed(_INT32)),
]
for _prefix, _functions, _counts, _rule in _TABLE:
    for _name, _function in _functions.items():
        FUNCTIONS[_prefix + _name] = functools.partial(
            _elementwise, function=_function, counts=_counts, rule=_rule
        )
