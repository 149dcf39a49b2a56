"""The arithmetic functions that a kernel may call: those of math, NumPy, Python and cuda."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from gpulab.kernels.simulation import _types
from gpulab.kernels.simulation._functions import FUNCTIONS, Call, Maker, makes
from gpulab.kernels.simulation._geometry import Mask

if TYPE_CHECKING:
    from gpulab.kernels.simulation._expressions import Expression
    from gpulab.kernels.simulation._translate import Frame

# -------------------------------------------------------------------------------------------------
# A product and a sum that are rounded once, as a GPU's fma: NumPy has none.
#
# Source: S. Boldo and G. Melquiond, "Emulation of FMA and correctly rounded sums: proved
# algorithms using rounding to odd", IEEE Transactions on Computers 57(4), 2008. Where a part would
# leave the range of float64, product and sum are rounded each.


Value = Any  # an array of float64, or a NumPy scalar

_SPLITTER = 2.0**27 + 1
# of the product, so that none of its parts loses bits; where one overflows, the sum is no finite
# number
_SMALLEST = 2.0**-960


def fused(x: Value, y: Value, z: Value, single: bool) -> Value:
    """Return ``x * y + z``; where ``single``, of numbers that are float32, so that the result
    becomes float32 by one rounding.
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


def _torch_function(name: str) -> Callable[[Any], Any]:
    """Return a function that NumPy lacks, computed by torch in the type of its argument."""

    def apply(value: Any) -> Any:
        import torch

        found = (
            getattr(torch.special, name)(torch.from_numpy(np.ascontiguousarray(value).reshape(-1)))
            .numpy()
            .reshape(np.shape(value))
        )
        return found[()]

    return apply


def _gamma(value: Any) -> Any:
    """Return the gamma function, where it has no value as CUDA's ``tgamma``: nan below 0, infinity
    with its sign at 0.
    """
    exact = np.asarray(value, dtype=np.float64)
    size, whole = np.exp(_torch_function("gammaln")(exact)), np.floor(exact)
    # its sign changes at each whole number below 0
    found: Any = np.where((exact > 0) | (whole % 2 == 0), size, -size)
    found = np.where(
        exact == 0,
        np.copysign(np.inf, exact),
        np.where((exact < 0) & (exact == whole), np.nan, found),
    )
    return found.astype(value.dtype)[()]


_UNARY: dict[str, Callable[[Any], Any]] = {
    **{
        name: getattr(np, name)
        for name in (
            "sqrt",
            "exp",
            "expm1",
            "log",
            "log2",
            "log10",
            "log1p",
            "sin",
            "cos",
            "tan",
            "sinh",
            "cosh",
            "tanh",
            "ceil",
            "floor",
            "trunc",
            "fabs",
            "exp2",
            "cbrt",
            "radians",
            "degrees",
        )
    },
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "asinh": np.arcsinh,
    "acosh": np.arccosh,
    "atanh": np.arctanh,
    "arcsin": np.arcsin,
    "arccos": np.arccos,
    "arctan": np.arctan,
    "arcsinh": np.arcsinh,
    "arccosh": np.arccosh,
    "arctanh": np.arctanh,
    "erf": _torch_function("erf"),
    "erfc": _torch_function("erfc"),
    "lgamma": _torch_function("gammaln"),
    "gamma": _gamma,
}
_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "atan2": np.arctan2,
    "arctan2": np.arctan2,
    "hypot": np.hypot,
    "copysign": np.copysign,
    "fmod": np.fmod,
    "pow": np.power,
    "power": np.power,
    "float_power": np.power,
}
_FLOATS = (_types.SINGLE, _types.FLOAT)
_INT32 = np.dtype(np.int32)
_TESTS: dict[str, Callable[[Any], Any]] = {
    "isnan": np.isnan,
    "isinf": np.isinf,
    "isfinite": np.isfinite,
}

# Functions of NumPy and math for which numba-cuda has no code, and what stands for them on a GPU.
# Source: numba-cuda 0.30, ufunc_db in ufuncs.py and Math_unary in typing/mathdecl.py.
WITHOUT_CODE = {
    **{
        f"np.{name}": f"math.{name}"
        for name in (
            "sqrt",
            "exp",
            "expm1",
            "log1p",
            "ceil",
            "floor",
            "trunc",
            "fabs",
            "exp2",
            "copysign",
            "fmod",
            "isinf",
            "isfinite",
        )
    },
    "math.cbrt": "cuda.cbrt",
    "np.cbrt": "cuda.cbrt",
    "np.abs": "abs",
    "np.absolute": "abs",
    "np.power": "**",
    "np.pow": "**",
    "np.float_power": "**",
}


def _register_arithmetic() -> None:
    for prefix, module in (("math", math), ("np", np)):
        makers: dict[str, Maker] = {
            **{name: functools.partial(_unary, ufunc=ufunc) for name, ufunc in _UNARY.items()},
            **{name: functools.partial(_binary, ufunc=ufunc) for name, ufunc in _BINARY.items()},
            **{name: functools.partial(_test, test=test) for name, test in _TESTS.items()},
        }
        # math has no arcsin
        FUNCTIONS.update(
            {f"{prefix}.{name}": make for name, make in makers.items() if hasattr(module, name)}
        )
    FUNCTIONS["cuda.cbrt"] = functools.partial(_unary, ufunc=np.cbrt)


def _unary(call: Call, ufunc: Callable[[Any], Any]) -> Expression:
    (value,) = call.numbers(1)

    def run(frame: Frame, mask: Mask) -> Any:
        found = value(frame, mask)
        if found.dtype.kind == "c":
            raise call.fail(f"{call.name} takes real numbers")
        of_numpy = call.name.startswith("np.")
        return ufunc(
            _types.cast(
                found,
                _types.ufunc_type((found.dtype,), True)
                if of_numpy
                else _types.float_type(found.dtype),
            )
        )

    return run


def _binary(call: Call, ufunc: Callable[[Any, Any], Any]) -> Expression:
    left, right = call.numbers(2)
    exponent = _INT32 if ufunc is np.power and call.translator.is_place(call.node.args[1]) else None

    def run(frame: Frame, mask: Mask) -> Any:
        a, b = left(frame, mask), right(frame, mask)
        if ufunc in (np.fmod, np.copysign, np.power):
            dtype = _types.float_pair_type(
                a.dtype, b.dtype if exponent is None else exponent, ufunc is np.power
            )
        elif call.name.startswith("np."):
            dtype = _types.ufunc_type((a.dtype, b.dtype), True)
        else:
            dtype = _types.float_type(_types.arithmetic_type(a.dtype, b.dtype))
        return ufunc(_types.cast(a, dtype), _types.cast(b, dtype))

    return run


def _test(call: Call, test: Callable[[Any], Any]) -> Expression:
    (value,) = call.numbers(1)
    return lambda frame, mask: test(value(frame, mask))


_register_arithmetic()


@makes("abs", "np.abs", "np.absolute")
def _abs(call: Call) -> Expression:
    (value,) = call.numbers(1)

    def run(frame: Frame, mask: Mask) -> Any:
        found = value(frame, mask)
        return np.abs(found) if found.dtype.kind != "b" else found.astype(np.int8)

    return run


def _of_floats(ufunc: Callable[[Any, Any], Any], a: Any, b: Any) -> Any:
    """Return ``np.fmin`` or ``np.fmax`` with -0.0 below 0.0, as PTX has it; NumPy takes either."""
    found = ufunc(a, b)
    if np.count_nonzero(found) == found.size:
        return found
    zero = a + b if ufunc is np.fmax else -(-a - b)
    return _types.select((a == 0) & (b == 0), zero, found)[()]


@makes("min", "max")
def _extreme(call: Call) -> Expression:
    values = call.numbers(2, 64)
    smaller, of_two = call.name == "min", len(values) == 2

    def run(frame: Frame, mask: Mask) -> Any:
        best = values[0](frame, mask)
        for value in values[1:]:
            other = value(frame, mask)
            floats = best.dtype in _FLOATS and other.dtype in _FLOATS
            dtype = _types.unified(best.dtype, other.dtype)
            best, other = _types.cast(best, dtype), _types.cast(other, dtype)
            if of_two and floats:  # numba-cuda takes CUDA's fmin and fmax, which drop a nan
                return _of_floats(np.fmin if smaller else np.fmax, best, other)
            # All others it compares as Python does, which keeps the first where either is nan.
            chosen: Any = np.where(other < best if smaller else other > best, other, best)
            best = chosen if chosen.ndim else chosen[()]
        return best

    return run


def _of_numpy(call: Call, ufunc: Callable[[Any, Any], Any]) -> Expression:
    left, right = call.numbers(2)

    def run(frame: Frame, mask: Mask) -> Any:
        a, b = left(frame, mask), right(frame, mask)
        dtype = _types.ufunc_type((a.dtype, b.dtype), False)
        return ufunc(_types.cast(a, dtype), _types.cast(b, dtype))  # a nan stays

    return run


FUNCTIONS["np.minimum"] = functools.partial(_of_numpy, ufunc=np.minimum)
FUNCTIONS["np.maximum"] = functools.partial(_of_numpy, ufunc=np.maximum)


@makes("round")
def _round(call: Call) -> Expression:
    (value,) = call.numbers(1)
    return lambda frame, mask: _types.cast(np.rint(value(frame, mask)), _types.INT)


@makes("pow")
def _pow(call: Call) -> Expression:
    left, right = call.numbers(2)
    return lambda frame, mask: _types.power(left(frame, mask), right(frame, mask))


@makes("complex")
def _complex(call: Call) -> Expression:
    parts = call.numbers(1, 2)

    def run(frame: Frame, mask: Mask) -> Any:
        given = [part(frame, mask) for part in parts]
        dtype = np.dtype(
            np.complex64 if all(value.dtype == _types.SINGLE for value in given) else np.complex128
        )
        if any(value.dtype == _types.BOOL for value in given):
            raise call.fail("complex takes no truth value; expected a number")
        if len(given) == 1:
            return _types.cast(given[0], dtype)
        if any(value.dtype.kind == "c" for value in given):
            raise call.fail("complex takes two real numbers")
        found = np.empty(np.broadcast_shapes(*map(np.shape, given)), dtype)
        # a sum with 1j times the second one would make a nan of infinity
        found.real, found.imag = given
        return found[()]

    return run


@makes("cuda.fma")
def _fma(call: Call) -> Expression:
    factors = call.numbers(3)

    def run(frame: Frame, mask: Mask) -> Any:
        given = [value(frame, mask) for value in factors]
        dtype = _types.fma_type(tuple(value.dtype for value in given))
        x, y, z = (_types.cast(value, _types.FLOAT) for value in given)
        return _types.cast(fused(x, y, z, dtype == _types.SINGLE), dtype)

    return run


@makes("cuda.selp")
def _selp(call: Call) -> Expression:
    test, a, b = call.numbers(3)

    def run(frame: Frame, mask: Mask) -> Any:
        x, y = a(frame, mask), b(frame, mask)
        dtype = _types.unified(x.dtype, y.dtype)
        chosen: Any = np.where(
            _types.truth(test(frame, mask)), _types.cast(x, dtype), _types.cast(y, dtype)
        )
        return chosen[()]

    return run


def _bits_of(value: Any) -> Any:
    """Return the bits of an integer in its own width."""
    if value.dtype.kind not in "iub":
        raise TypeError
    return np.asarray(value).view(f"u{value.dtype.itemsize}")


def _reversed_bits(value: Any) -> Any:
    """Return 64 bits of a uint64, and the low 32 of all other types, int64 too: numba-cuda's brev
    knows uint32 and uint64 alone.
    """
    bits = _bits_of(value)
    if value.dtype != _types.UINT:
        bits = value.astype(np.uint32)
    width = 8 * bits.dtype.itemsize
    out = bits.dtype.type(0)
    for i in range(width):
        out = (out << bits.dtype.type(1)) | ((bits >> bits.dtype.type(i)) & bits.dtype.type(1))
    return out


def _ones(value: Any) -> Any:
    return np.bitwise_count(_bits_of(value)).astype(_type_of_count(value))[()]


def _leading_zeros(value: Any) -> Any:
    bits = _bits_of(value)
    width = 8 * bits.dtype.itemsize
    for shift in (1, 2, 4, 8, 16, 32):
        if shift < width:
            bits = bits | (bits >> bits.dtype.type(shift))
    return (width - np.bitwise_count(bits).astype(np.int64)).astype(_type_of_count(value))[()]


def _type_of_count(value: Any) -> np.dtype:
    return np.dtype(np.int8) if value.dtype == _types.BOOL else value.dtype


def _first_set(value: Any) -> Any:
    bits = _bits_of(value)
    if bits.dtype.itemsize < 4:
        raise TypeError
    lowest = bits & (~bits + bits.dtype.type(1))
    found: Any = np.where(
        bits == 0, 0, np.bitwise_count(lowest - bits.dtype.type(1)).astype(np.int64) + 1
    )
    return found.astype(np.uint32)[()]


def _bit_function(apply: Callable[[Any], Any], takes: str = "an integer") -> Maker:
    def make(call: Call) -> Expression:
        (node,) = call.arguments(1)
        value, is_place = call.numeric(node), call.translator.is_place(node)

        def run(frame: Frame, mask: Mask) -> Any:
            found = value(frame, mask)
            try:
                return apply(found.astype(np.int32) if is_place else found)
            except TypeError as error:
                raise call.fail(f"{call.name} takes {takes}") from error

        return run

    return make


FUNCTIONS["cuda.popc"] = _bit_function(_ones)
FUNCTIONS["cuda.clz"] = _bit_function(_leading_zeros)
FUNCTIONS["cuda.ffs"] = _bit_function(_first_set, "an integer of 32 or 64 bits")
FUNCTIONS["cuda.brev"] = _bit_function(_reversed_bits)
