"""The types that numba gives to arithmetic, for NumPy arrays.

Integers narrower than 64 bits are widened by any arithmetic; an integer of 32 or 64 bits with a
float gives float64, a narrower one keeps float32; ``/`` gives a float. Tested against numba's own
inference in tests/kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, reduce
from typing import Any

import numpy as np

from gpulab.errors import kind_of

# a NumPy array of shape (B or 1, T or 1), a NumPy scalar, a tuple of values, or a view of an array
Value = Any
_BITS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
_WORTH_BITS = 4096
_NARROW = tuple(np.dtype(name) for name in ("int8", "int16", "uint8", "bool"))
INT, UINT, FLOAT, SINGLE, BOOL = (
    np.dtype(name) for name in ("int64", "uint64", "float64", "float32", "bool")
)


@cache
def arithmetic_type(left: np.dtype, right: np.dtype) -> np.dtype:
    """Return the type of + - * // % of two types."""
    kinds = {left.kind, right.kind}
    if kinds <= {"u", "i", "b"}:
        return UINT if kinds == {"u"} else INT
    if {left, right} == {np.dtype(np.uint16), SINGLE}:
        return FLOAT  # as numba resolves it, though a float32 holds every uint16
    return unified(left, right)


@cache
def unified(left: np.dtype, right: np.dtype) -> np.dtype:
    """Return the type that holds values of both, as where two branches assign one variable."""
    if left == right:
        return left
    kinds = {left.kind, right.kind}
    if "c" in kinds:
        return np.result_type(left, right)
    if "f" in kinds:
        return np.dtype(f"float{max(_float_bits(left), _float_bits(right))}")
    if kinds == {"u", "i"}:
        signed, unsigned = (left, right) if left.kind == "i" else (right, left)
        if signed.itemsize > unsigned.itemsize:
            return signed
        return FLOAT if unsigned.itemsize == 8 else np.dtype(f"int{16 * unsigned.itemsize}")
    return np.result_type(left, right)


def _float_bits(dtype: np.dtype) -> int:
    """Return the bits of the float that a type turns into beside floats."""
    if dtype.kind == "f":
        return 8 * dtype.itemsize
    return 64 if dtype.itemsize >= 4 else 16


@cache
def float_type(dtype: np.dtype) -> np.dtype:
    """Return the type of a function of one real number, such as ``math.sqrt``."""
    return (
        dtype
        if dtype.kind in "fc" and dtype.itemsize > 2
        else SINGLE
        if dtype.kind == "f"
        else FLOAT
    )


def range_type(limits: list[np.dtype]) -> np.dtype:
    """Return the type of what ``range`` gives: unsigned of unsigned limits; beside a signed step of
    two uint64 alone.
    """
    unsigned = all(dtype.kind == "u" for dtype in limits) or (
        len(limits) == 3 and limits[0] == limits[1] == UINT
    )
    return UINT if unsigned else INT


def cast(value: Value, dtype: np.dtype) -> Value:
    """Return the value in a type; no copy where it has that type."""
    if value.dtype == dtype:
        return value
    return (
        _cut(value, dtype)
        if value.dtype.kind == "f" and dtype.kind in "iu"
        else value.astype(dtype)
    )


def _cut(value: Value, dtype: np.dtype) -> Value:
    """Return floats as integers, as a GPU has them: beyond the range its nearest end. What NumPy
    does there differs between processors.

    Integers narrower than 32 bits are the low bits of one that is as wide. Source: PTX ISA, cvt:
    "clamped to the destination range"; a nan gives 0 from float32 to 32 bits and below, else the
    highest bit alone.
    """
    wide = dtype if dtype.itemsize >= 4 else np.dtype(f"{dtype.kind}4")
    value = cast(value, SINGLE) if value.dtype.itemsize == 2 else value
    least, most = np.iinfo(wide).min, np.iinfo(wide).max
    inside = (value >= float(least)) & (value < float(most + 1))
    if inside.all():
        return cast(value.astype(wide), dtype)
    of_nan = (
        0 if value.dtype == SINGLE and wide.itemsize == 4 else least if least else (most >> 1) + 1
    )
    ends = np.where(
        value < 0, wide.type(least), np.where(value > 0, wide.type(most), wide.type(of_nan))
    )
    return cast(np.where(inside, np.where(inside, value, 0).astype(wide), ends)[()], dtype)


def alike(value: Value, other: Value) -> tuple[Value, Value]:
    """Return both in the type that holds values of both."""
    if value.dtype is other.dtype:
        return value, other
    dtype = unified(value.dtype, other.dtype)
    return cast(value, dtype), cast(other, dtype)


def arithmetic(ufunc: Callable[[Value, Value], Value]) -> Callable[[Value, Value], Value]:
    """Return a ufunc of two values with numba's result type."""

    def apply(left: Value, right: Value) -> Value:
        a, b = left.dtype, right.dtype
        if a is b and (a is INT or a is FLOAT or a is SINGLE):
            return ufunc(left, right)
        dtype = arithmetic_type(a, b)
        return ufunc(cast(left, dtype), cast(right, dtype))

    return apply


def divide(left: Value, right: Value) -> Value:
    """Return ``left / right``: a float."""
    dtype = arithmetic_type(left.dtype, right.dtype)
    dtype = dtype if dtype.kind in "fc" else FLOAT
    return np.true_divide(cast(left, dtype), cast(right, dtype))


def bitwise(ufunc: Callable[[Value, Value], Value]) -> Callable[[Value, Value], Value]:
    """Return a ufunc of two integers, or of two truth values."""

    def apply(left: Value, right: Value) -> Value:
        if left.dtype.kind not in "iub" or right.dtype.kind not in "iub":
            raise TypeError(f"a bitwise operation of {left.dtype} and {right.dtype}")
        if left.dtype == right.dtype == BOOL:
            return ufunc(left, right)
        dtype = arithmetic_type(left.dtype, right.dtype)
        return ufunc(cast(left, dtype), cast(right, dtype))

    return apply


def shift(ufunc: Callable[[Value, Value], Value]) -> Callable[[Value, Value], Value]:
    """Return a shift of an integer; the left one's sign decides the type."""

    def apply(left: Value, right: Value) -> Value:
        if left.dtype.kind not in "iub" or right.dtype.kind not in "iub":
            raise TypeError(f"a shift of {left.dtype} by {right.dtype}")
        dtype = UINT if left.dtype.kind == "u" else INT
        return ufunc(cast(left, dtype), cast(right, dtype))

    return apply


@cache
def power_type(left: np.dtype, right: np.dtype) -> np.dtype:
    """Return the type of ``left ** right``: a float keeps its type under an integer exponent."""
    if left == BOOL and right == np.int32:
        return SINGLE  # as numba resolves it
    if left.kind == "f" and right.kind in "iu":
        return left
    return arithmetic_type(left, right)


@cache
def float_pair_type(left: np.dtype, right: np.dtype, is_power: bool) -> np.dtype:
    """Return the type of ``math.fmod``, ``copysign`` or ``pow``: float32 of two integers that it
    holds exactly.
    """
    narrow = [dtype in _NARROW for dtype in (left, right)]
    if all(narrow) or (is_power and narrow[0] and right == np.int32):
        return SINGLE
    if is_power and left.kind == "f" and right in (np.int32, np.uint16):
        return float_type(left)
    return float_type(arithmetic_type(left, right))


@cache
def ufunc_type(given: tuple[np.dtype, ...], gives_float: bool) -> np.dtype:
    """Return the type of a function of NumPy: float32 beside integers of any size, and where it
    gives a float, of those of 16 bits.
    """
    if SINGLE in given and all(dtype == SINGLE or dtype.kind in "iub" for dtype in given):
        return SINGLE
    if not gives_float:
        return reduce(unified, given)
    narrow = all(dtype.kind in "iub" and dtype.itemsize <= 2 for dtype in given)
    return SINGLE if narrow else float_type(reduce(unified, given))


@cache
def fma_type(given: tuple[np.dtype, ...]) -> np.dtype:
    """Return the type of ``cuda.fma``: float32 of numbers that it holds exactly."""
    return SINGLE if all(dtype == SINGLE or dtype in _NARROW for dtype in given) else FLOAT


def power(left: Value, right: Value) -> Value:
    """Return ``left ** right``."""
    dtype = power_type(left.dtype, right.dtype)
    if dtype.kind in "iu":
        base, exponent = cast(left, dtype), cast(right, dtype)
        negative = exponent < 0
        if dtype.kind == "i" and np.any(negative):
            # 1 and -1 are their own inverses
            found = np.power(base, np.where(negative, exponent & 1, exponent))
            # numba's, where no error is raised
            small = np.where(base == 0, np.iinfo(dtype).min, np.where(abs(base) == 1, found, 0))
            return np.where(negative, small, found)[()]
        return np.power(base, exponent)
    return np.power(cast(left, dtype), cast(right, dtype))


def compare(ufunc: Callable[[Value, Value], Value]) -> Callable[[Value, Value], Value]:
    """Return a comparison of two values."""

    def apply(left: Value, right: Value) -> Value:
        a, b = left.dtype, right.dtype
        if a is b and (a is INT or a is FLOAT or a is SINGLE):
            return ufunc(left, right)
        if "c" in (a.kind, b.kind) and ufunc not in (np.equal, np.not_equal):
            raise TypeError("complex numbers have no order")
        if a != b and not (a.kind in "iu" and b.kind in "iu"):
            dtype = arithmetic_type(a, b)
            left, right = cast(left, dtype), cast(right, dtype)
        return ufunc(left, right)

    return apply


def select(mask: np.ndarray, value: Value, other: Value) -> Value:
    """Return the value where the mask holds and the other elsewhere, both of one type.

    As ``np.where``, which takes ten times as long on masks without a pattern: bits are chosen here,
    without a branch.
    """
    if mask.size < _WORTH_BITS:
        return np.where(mask, value, other)
    dtype = value.dtype
    bits = _BITS.get(dtype.itemsize)
    if bits is None:
        return np.where(mask, value, other)
    chosen = np.negative(mask.astype(bits))  # all ones where it holds
    a, b = np.asarray(value).view(bits), np.asarray(other).view(bits)
    found: np.ndarray = ((a ^ b) & chosen) ^ b
    return found.view(dtype)


def truth(value: Value) -> Value:
    """Return whether each value is true."""
    return value if value.dtype is BOOL or value.dtype == BOOL else value != 0


def constant(value: Any) -> Value:
    """Return a Python or NumPy number with the type that numba gives its literal.

    Raises
    ------
    TypeError
        If it is no number.
    """
    if isinstance(value, np.generic) and value.dtype.kind in "biufc":
        return value
    if isinstance(value, bool):
        return np.bool_(value)
    if isinstance(value, int):
        if -(2**63) <= value < 2**63:
            return np.int64(value)
        if value < 2**64:
            return np.uint64(value)
        raise TypeError("an integer beyond 64 bits")
    if isinstance(value, float):
        return np.float64(value)
    if isinstance(value, complex):
        return np.complex128(value)
    raise TypeError(kind_of(value))
