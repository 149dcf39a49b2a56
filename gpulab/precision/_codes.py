"""The bits of a number: encode and decode, its neighbors, and the spacing of numbers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gpulab.errors import InputError, shown
from gpulab.precision._formats import Format, find, overflow_rule
from gpulab.precision._rounding import as_float64, quantum, rounded, shaped


def encode(x: Any, format: str | Format, overflow: str | None = None) -> np.ndarray:
    """Return the bits of ``x`` in a format, after one rounding.

    Parameters
    ----------
    x : array_like of float64
    format : str or Format
    overflow : str, optional
        As ``round_to``'s.

    Returns
    -------
    ndarray of unsigned integers
        The format's bits, sign first, in the lowest ``bits`` of an 8-, 16-, 32- or 64-bit number. A
        nan is the positive quiet nan.

    Raises
    ------
    InputError
        As ``round_to``'s.

    Examples
    --------
    >>> print(f"{encode(-1.5, 'float16'):016b}", f"{encode(448, 'float8_e4m3fn'):08b}")
    1011111000000000 01111110
    """
    one = find("encode", format)
    given = as_float64("encode", x)
    value = rounded(given, one, overflow_rule("encode", one, overflow))
    if one.kind == "integer":
        return shaped(value.astype(np.int64).astype(np.uint8), given)
    magnitude = np.abs(value)
    finite = np.isfinite(value)
    mantissa, exponent = np.frexp(np.where(finite, magnitude, 0.0))
    normal = magnitude >= one.smallest_normal
    # A normal number: the exponent's field and the bits after the first one. A subnormal one counts
    # smallest numbers.
    field = np.where(normal, exponent - 1 + one.bias, 0).astype(np.int64)
    steps = np.ldexp(
        mantissa, np.where(normal, one.mantissa_bits + 1, exponent - one.emin + one.mantissa_bits)
    )
    body = (field << one.mantissa_bits) + np.where(finite, steps, 0.0).astype(np.int64)
    body -= np.where(normal & finite, 1 << one.mantissa_bits, 0)
    top = (1 << (one.bits - 1)) - 1  # all ones after the sign
    infinite = ((1 << one.exponent_bits) - 1) << one.mantissa_bits
    quiet = infinite | (1 << (one.mantissa_bits - 1)) if one.has_infinity else top
    body = np.where(np.isinf(value), infinite, np.where(np.isnan(value), quiet, body)).astype(
        np.uint64
    )
    sign = (np.signbit(value) & ~np.isnan(value)).astype(np.uint64)
    return shaped((body | (sign << np.uint64(one.bits - 1))).astype(_code_type(one)), given)


def decode(codes: Any, format: str | Format) -> np.ndarray:
    """Return the numbers that bits stand for in a format.

    Parameters
    ----------
    codes : array_like of int
        From 0 to 2 ** bits - 1.
    format : str or Format

    Returns
    -------
    ndarray of float64

    Raises
    ------
    InputError
        If a code is not a whole number in that range.

    Examples
    --------
    >>> print(decode([0x0001, 0x7BFF, 0x7C00], "float16"))
    [5.96046448e-08 6.55040000e+04            inf]
    """
    one = find("decode", format)
    given = _codes("decode", codes, one)
    if one.kind == "integer":
        return shaped(given.astype(np.uint8).view(np.int8).astype(np.float64), given)
    code = given.astype(np.uint64)
    sign = (code >> np.uint64(one.bits - 1)).astype(bool)
    field = (
        (code >> np.uint64(one.mantissa_bits)) & np.uint64((1 << one.exponent_bits) - 1)
    ).astype(np.int64)
    mantissa = (code & np.uint64((1 << one.mantissa_bits) - 1)).astype(np.int64)
    whole = np.where(field > 0, mantissa + (1 << one.mantissa_bits), mantissa).astype(np.float64)
    with np.errstate(over="ignore"):  # the codes of infinities and nans, which are put right below
        value = np.ldexp(whole, np.maximum(field, 1) - one.bias - one.mantissa_bits)
    special = field == (1 << one.exponent_bits) - 1
    if one.has_infinity:
        value = np.where(special, np.where(mantissa == 0, np.inf, np.nan), value)
    elif one.has_nan:
        value = np.where(special & (mantissa == (1 << one.mantissa_bits) - 1), np.nan, value)
    return shaped(np.where(sign, -value, value), given)


def _codes(function: str, codes: Any, one: Format) -> np.ndarray:
    try:
        given = np.asarray(codes)
        whole = (
            given.dtype.kind in "iu"
            and bool(np.all(given >= 0))
            and int(np.max(given, initial=0)) < 2**one.bits
        )
    except Exception as error:
        raise InputError(
            f"{function}: codes are {shown(codes)}; expected whole numbers. Pass an int or an "
            "array of ints."
        ) from error
    if not whole:
        raise InputError(
            f"{function}: codes are {shown(codes)}; expected whole numbers from 0 to 2**{one.bits} "
            "- 1. Pass unsigned bits."
        )
    return given


def _code_type(one: Format) -> Any:
    return next(
        kind
        for kind in (np.uint8, np.uint16, np.uint32, np.uint64)
        if np.iinfo(kind).bits >= one.bits
    )


def neighbours(x: Any, format: str | Format) -> tuple[np.ndarray, np.ndarray]:
    """Return the next numbers of a format below and above ``x``, excluding ``x`` itself.

    Parameters
    ----------
    x : array_like of float64
    format : str or Format

    Returns
    -------
    below, above : ndarray of float64
        Of the shape of ``x``. Beyond the largest number this is infinity if the format has one,
        else nan.

    Raises
    ------
    InputError
        As ``round_to``'s.

    Examples
    --------
    >>> below, above = neighbours([1.0, 0.1], "float8_e4m3fn")
    >>> print(below, above)
    [0.9375  0.09375] [1.125     0.1015625]
    """
    one = find("neighbours", format)
    given = as_float64("neighbours", x)
    above, below = _above(given, one), -_above(-given, one, mirrored=True)
    return shaped(below, given), shaped(above, given)


def _above(x: np.ndarray, one: Format, mirrored: bool = False) -> np.ndarray:
    """Return the next number above; of the mirrored number line, whose end an integer format has
    elsewhere.
    """
    top, bottom = (-one.lowest, -one.largest) if mirrored else (one.largest, one.lowest)
    held = np.clip(x, bottom, top)
    nearest = rounded(-held, one, "saturate") * -1 if mirrored else rounded(held, one, "saturate")
    # One step away from zero is the spacing; towards zero it is that of the number just nearer to
    # zero.
    inner = np.nextafter(nearest, 0.0)
    step = np.where(nearest < 0, quantum(inner, one), quantum(nearest, one))
    end = np.inf if one.has_infinity else np.nan
    with np.errstate(invalid="ignore", over="ignore"):
        following = np.where(nearest > x, nearest, nearest + step) + 0.0
        following = np.where(following > top, end, following)
        following = np.where(x < bottom, bottom, following)
        following = np.where(x >= top, end, following)
    return np.where(np.isnan(x) | (x == np.inf), np.nan, following)


def spacing(x: Any, format: str | Format) -> np.ndarray:
    """Return the distance from ``x`` to the next number of the format away from zero (a unit in the
    last place).

    Parameters
    ----------
    x : array_like of float64
        The position; only its power of two matters.
    format : str or Format

    Returns
    -------
    ndarray of float64
        nan beyond the largest number and for what is not finite.

    Raises
    ------
    InputError
        As ``round_to``'s.

    Examples
    --------
    >>> print(spacing([1.0, 2048.0, 1e-6], "float16"))
    [9.76562500e-04 2.00000000e+00 5.96046448e-08]
    """
    one = find("spacing", format)
    given = as_float64("spacing", x)
    inside = (given >= one.lowest) & (given <= one.largest)
    return shaped(np.where(inside, quantum(given, one), math.nan), given)
