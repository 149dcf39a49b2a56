"""One exact rounding from float64 to a format: to nearest with ties to even, or up and down by
chance.

Casting through float32 rounds twice, and just off a midpoint the second rounding goes wrong; here a
float64 is rounded once, on its bits. The results stay float64, which holds every number of every
format exactly.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from gpulab import _given
from gpulab.errors import InputError, shown, with_article
from gpulab.precision._formats import Format, Overflow, find, overflow_rule

_MANTISSA_BITS = 52  # of float64


def round_to(x: Any, format: str | Format, overflow: str | None = None) -> np.ndarray:
    """Return the numbers of a format that are nearest to ``x``, with ties to the even one, rounded
    once.

    Parameters
    ----------
    x : array_like of float64
        Any shape; a torch tensor is accepted too. Narrower types convert to float64 exactly.
    format : str or Format
        One of ``formats()``.
    overflow : str, optional
        The result for infinities and for numbers that round beyond the largest: "infinity", "nan"
        or "saturate" (the largest number with the sign). None is the format's own rule.

    Returns
    -------
    ndarray of float64
        Of the shape of ``x``; a NumPy scalar for a scalar. Zeros keep their sign, except in an
        integer format; a nan becomes what the format's ``nan_becomes`` says.

    Raises
    ------
    InputError
        If ``x`` has values that float64 cannot hold, there is no such format, or the format has no
        code for the rule.

    Notes
    -----
    Sources: IEEE 754-2019, 4.3.1 (roundTiesToEven) and 7.4 (overflow); for the 8-bit formats OFP8
    and NVIDIA's ``cuda_fp8.hpp``.

    Examples
    --------
    >>> print(round_to([2049.0, 70000.0, 2.9e-8, 0.1], "float16"))
    [2.04800000e+03            inf 0.00000000e+00 9.99755859e-02]
    >>> print(round_to(500.0, "float8_e4m3fn"))
    nan
    >>> print(round_to(500.0, "float8_e4m3fn", overflow="saturate"))
    448.0
    """
    one = find("round_to", format)
    rule = overflow_rule("round_to", one, overflow)
    given = as_float64("round_to", x)
    return shaped(rounded(given, one, rule), given)


def rounded(x: np.ndarray, one: Format, rule: Overflow) -> np.ndarray:
    """Return ``round_to`` of a float64 array, with nothing checked."""
    if one.kind == "integer":
        return finished(np.rint(x) + 0.0, x, one, rule)  # + 0.0: an integer has no negative zero
    if one.mantissa_bits >= _MANTISSA_BITS:
        return finished(x, x, one, rule)
    dropped = _MANTISSA_BITS - one.mantissa_bits
    bits = np.ascontiguousarray(x).view(np.uint64).reshape(x.shape)
    # Half a unit less one, plus the last bit that stays: what lies over the midpoint carries, and
    # the midpoint only into an odd number.
    carry = (bits >> np.uint64(dropped)) & np.uint64(1)
    wide = (bits + (np.uint64((1 << (dropped - 1)) - 1) + carry)) & np.uint64(
        ~((1 << dropped) - 1) & 0xFFFFFFFFFFFFFFFF
    )
    # Below the smallest normal number all numbers are equally far apart: adding 3 * 2**51 of these
    # steps makes float64 drop the rest.
    anchor = 1.5 * 2.0**_MANTISSA_BITS * one.smallest_subnormal
    magnitude = np.abs(x)
    with np.errstate(invalid="ignore", over="ignore"):
        nearest = np.where(
            magnitude < one.smallest_normal,
            np.copysign((magnitude + anchor) - anchor, x),
            wide.view(np.float64),
        )
    return finished(nearest, x, one, rule)


def finished(nearest: np.ndarray, x: np.ndarray, one: Format, rule: Overflow) -> np.ndarray:
    """Apply a format's range to numbers of its grid: the overflow rule, and what a nan becomes."""
    result = np.array(nearest, dtype=np.float64, copy=True)
    beyond = (nearest > one.largest) | (nearest < one.lowest)
    if beyond.any():
        limit = {
            "saturate": (one.largest, one.lowest),
            "infinity": (np.inf, -np.inf),
            "nan": (np.nan, np.nan),
        }[rule]
        result[beyond] = np.where(nearest[beyond] > 0, *limit)
    missing = np.isnan(x)
    if missing.any():
        result[missing] = one.nan_becomes
    return result


def quantum(x: np.ndarray, one: Format) -> np.ndarray:
    """Return the distance of the grid's numbers around each magnitude, as if the exponent had no
    upper end; 1 for what is not finite.
    """
    if one.kind == "integer":
        return np.ones_like(x)
    _, exponent = np.frexp(np.where(np.isfinite(x), x, 1.0))
    # frexp's mantissa lies in [0.5, 1), so the exponent in the sense of IEEE is one less; zero
    # counts as the smallest.
    lowest = np.where(x == 0, one.emin, exponent - 1)
    steps: np.ndarray = np.ldexp(1.0, np.maximum(lowest, one.emin) - one.mantissa_bits)
    return steps


def as_float64(function: str, x: Any) -> np.ndarray:
    """Return what a caller gave as a float64 array.

    Raises
    ------
    InputError
        If it holds no real numbers, or some that float64 does not hold.
    """
    torch = sys.modules.get("torch")
    is_tensor = (
        torch is not None
        and isinstance(x, torch.Tensor)
        and not x.is_complex()
        and x.dtype != torch.bool
    )
    try:
        if is_tensor:  # a sparse one, or one without data, is no array either
            x = (
                x.detach().cpu().double().numpy()
                if x.is_floating_point()
                else x.detach().cpu().numpy()
            )
        given = np.asarray(x)
    except Exception as error:
        raise InputError(
            f"{function}: x is {shown(x)}; expected numbers. Pass a float, a list of floats or an "
            "array."
        ) from error
    if given.dtype.kind not in "fiu":
        raise InputError(
            f"{function}: x is {shown(x)}; expected real numbers. Pass a float, a list of floats "
            "or an array."
        )
    with np.errstate(over="ignore"):
        converted = np.array(given, dtype=np.float64)
        if given.dtype.kind in "iu" or given.dtype.itemsize > 8:
            back = (
                converted.astype(given.dtype)
                if given.dtype.kind == "f"
                else _back(converted, given.dtype)
            )
            if not np.array_equal(back, given, equal_nan=given.dtype.kind == "f"):
                raise InputError(
                    f"{function}: x holds {with_article(str(given.dtype))} that float64 does not, "
                    "so it would be rounded twice; expected float64 numbers. Convert it first, if "
                    "one more rounding does no harm."
                )
    return converted


def _back(converted: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Return whole numbers again; what float64 rounded up beyond the integers' range counts as
    changed.
    """
    top = float(np.iinfo(dtype).max)
    return np.where(converted >= top + (top < 2.0**53), np.iinfo(dtype).min, converted).astype(
        dtype
    )


def shaped(result: np.ndarray, given: np.ndarray) -> np.ndarray:
    """Return a scalar for a scalar, as NumPy's functions do."""
    return result[()] if given.ndim == 0 else result


def generator(function: str, seed: int | np.random.Generator) -> np.random.Generator:
    """Return the source of chance that a seed stands for.

    Raises
    ------
    InputError
        If it is neither a whole number from 0 nor a generator.
    """
    if isinstance(seed, np.random.Generator):
        return seed
    if not _given.is_whole(seed) or seed < 0:
        raise InputError(
            f"{function}: seed={shown(seed)}; expected a whole number from 0, or a numpy "
            "Generator. Pass for example seed=0."
        )
    return np.random.default_rng(int(seed))
