"""The number formats of deep learning: their bits, range and overflow; exact rounding from float64
to a format, to nearest with ties to even, or stochastic; and a single number as a format holds it.

Casting through float32 rounds twice, and just off a midpoint the second rounding gives a wrong
result. Here a float64 is rounded once, on its bits. The results stay float64, which holds every
number of every format exactly. ``encode`` and ``decode`` convert them to bits and back.

Additions are rounded once too, though float64 does the arithmetic. The float64 sum of two numbers
may itself be rounded, and rounding it again could go wrong. The remainder that float64 lost is
known exactly (Knuth's two-sum). If there is a remainder and the last bit of the sum is 0, the sum
is moved to its odd neighbor in the direction of the remainder. Such a sum is never a midpoint of a
narrower format, so the second rounding gives the result of a single rounding (Boldo and Melquiond,
2008).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Literal

import numpy as np
import torch

from gpulab import _validate, devices
from gpulab.errors import InputError, shown, with_article
from gpulab.evidence import Evidence
from gpulab.results import Result, Table

Overflow = Literal["infinity", "nan", "saturate"]
_IEEE = "IEEE 754-2019, section 3.6"
_OCP = "OCP 8-bit Floating Point Specification (OFP8), revision 1.0; arXiv:2209.05433, table 1"


@dataclass(frozen=True)
class Format(Result):
    """One number format.

    Attributes
    ----------
    name : str
    kind : str
        "float", or "integer" (two's complement).
    bits : int
        Sign, exponent and mantissa together; tf32 has 19 bits, which travel in 32.
    storage_bits : int
        The bits that one number takes in memory.
    exponent_bits, mantissa_bits : int
        As stored; a normal number has one more bit of mantissa, which is always 1 and not stored.
        An integer has no exponent.
    bias : int
        Stored exponent minus the exponent.
    has_infinity, has_nan : bool
    nan_becomes : float
        The value that a nan becomes: nan, if the format has one.
    overflow : str
        The usual result of rounding beyond the largest number: "infinity", "nan" or "saturate".
    use : str
        What the format is used for.
    source : str
        Where these facts are from.
    """

    name: str
    kind: Literal["float", "integer"]
    bits: int
    storage_bits: int
    exponent_bits: int
    mantissa_bits: int
    bias: int
    has_infinity: bool
    has_nan: bool
    nan_becomes: float
    overflow: Overflow
    use: str
    source: str

    @property
    def evidence(self) -> Evidence:
        """The definition from which these facts follow."""
        return Evidence.modelled("the format's definition", self.source, "none: a definition")

    @property
    def emin(self) -> int:
        """The exponent of the smallest normal number."""
        return 1 - self.bias if self.kind == "float" else 0

    @cached_property
    def emax(self) -> int:
        """The exponent of the largest number."""
        # IEEE formats reserve the highest exponent for infinities and nans; the other formats use
        # it for numbers.
        return (
            (1 << self.exponent_bits) - 1 - self.bias - int(self.has_infinity)
            if self.kind == "float"
            else self.mantissa_bits - 1
        )

    @cached_property
    def largest(self) -> float:
        """The largest finite number."""
        if self.kind == "integer":
            return float(2**self.mantissa_bits - 1)
        # Without an infinity the highest exponent is used too; float8_e4m3fn gives its very last
        # code to nan.
        lost = 2 if self.has_nan and not self.has_infinity else 1
        return math.ldexp(2 ** (self.mantissa_bits + 1) - lost, self.emax - self.mantissa_bits)

    @property
    def lowest(self) -> float:
        """The most negative finite number."""
        return -self.largest - 1 if self.kind == "integer" else -self.largest

    @property
    def smallest_normal(self) -> float:
        """The smallest positive number with the full mantissa."""
        return math.ldexp(1.0, self.emin)

    @property
    def smallest_subnormal(self) -> float:
        """The smallest positive number; half of it, and less, rounds to zero."""
        return math.ldexp(1.0, self.emin - self.mantissa_bits) if self.kind == "float" else 1.0

    @property
    def epsilon(self) -> float:
        """The distance from 1 to the next number above."""
        return math.ldexp(1.0, -self.mantissa_bits) if self.kind == "float" else 1.0

    @property
    def overflow_threshold(self) -> float:
        """The midpoint between the largest number and the one that would come next; beyond it a
        number overflows.

        ``overflows_at_threshold`` says whether the midpoint itself does.
        """
        return self.largest + self._last_spacing / 2

    @property
    def overflows_at_threshold(self) -> bool:
        """Whether the midpoint itself overflows: if the last bit of the largest number is 1, the
        tie rounds away from it.
        """
        return (self.largest / self._last_spacing) % 2 == 1

    @property
    def _last_spacing(self) -> float:
        return math.ldexp(1.0, self.emax - self.mantissa_bits) if self.kind == "float" else 1.0

    @property
    def overflow_words(self) -> str:
        """What happens beyond the largest number, in a few words."""
        return {
            "infinity": "becomes infinite",
            "nan": "becomes nan",
            "saturate": "stays at the largest",
        }[self.overflow]

    def __repr__(self) -> str:
        shape = (
            f"1 + {self.exponent_bits} + {self.mantissa_bits} bits"
            if self.kind == "float"
            else f"{self.bits} bits, two's complement"
        )
        return f"<format {self.name}: {shape}, up to {self.largest:g}>"

    def table(self) -> Table:
        """Return one row per fact."""
        fields = (
            f"1 sign, {self.exponent_bits} exponent, {self.mantissa_bits} mantissa"
            if self.kind == "float"
            else "two's complement"
        )
        rows = [
            ("bits", f"{self.bits}: {fields}"),
            ("largest", f"{self.largest:.6g}; what rounds beyond it {self.overflow_words}"),
            ("smallest normal", f"{self.smallest_normal:.6g}"),
            ("smallest subnormal", f"{self.smallest_subnormal:.6g}"),
            ("epsilon", f"{self.epsilon:.6g}"),
            ("infinity", "yes" if self.has_infinity else "no"),
            ("nan", "yes" if self.has_nan else "no"),
            ("used for", self.use),
        ]
        return (self.name, ""), rows


def _float(
    name: str, exponent_bits: int, mantissa_bits: int, use: str, source: str = _IEEE, **special: Any
) -> Format:
    bits = 1 + exponent_bits + mantissa_bits
    usual: dict[str, Any] = {
        "has_infinity": True,
        "has_nan": True,
        "nan_becomes": math.nan,
        "overflow": "infinity",
        "storage_bits": bits,
    }
    return Format(
        name=name,
        kind="float",
        bits=bits,
        exponent_bits=exponent_bits,
        mantissa_bits=mantissa_bits,
        bias=2 ** (exponent_bits - 1) - 1,
        use=use,
        source=source,
        **{**usual, **special},
    )


_FORMATS = (
    _float("float64", 11, 52, "scientific computing; reference results"),
    _float("float32", 8, 23, "training of networks, unless another format is chosen"),
    _float(
        "tf32",
        8,
        10,
        "float32 operands on Tensor Cores, where TF32 is allowed",
        "NVIDIA A100 Tensor Core GPU Architecture, TF32",
        storage_bits=32,
    ),
    _float("float16", 5, 10, "Tensor Cores; autocast with loss scaling"),
    _float(
        "bfloat16",
        8,
        7,
        "Tensor Cores; autocast without loss scaling",
        "Intel, BFLOAT16 Hardware Numerics Definition (2018)",
    ),
    _float(
        "float8_e4m3fn",
        4,
        3,
        "weights and activations on Tensor Cores from compute capability 8.9 on",
        _OCP,
        has_infinity=False,
        overflow="nan",
    ),
    _float("float8_e5m2", 5, 2, "gradients on Tensor Cores from compute capability 8.9 on", _OCP),
    Format(
        "int8",
        "integer",
        8,
        8,
        0,
        7,
        0,
        False,
        False,
        0.0,
        "saturate",
        "quantized weights and activations, with a separate scale",
        "two's complement; rounding, saturation and nan as PTX's cvt.rni.sat.s8.f32 (PTX ISA, cvt)",
    ),
    _float(
        "float4_e2m1fn",
        2,
        1,
        "weights with a scale for each block, from compute capability 10.0 on",
        "OCP Microscaling Formats (MX) Specification, revision 1.0, section 5.3; NaN input values "
        "result in positive MAXNORM (cuda_fp4.h of CUDA 13)",
        has_infinity=False,
        has_nan=False,
        nan_becomes=6.0,
        overflow="saturate",
    ),
)
FORMATS: Mapping[str, Format] = {one.name: one for one in _FORMATS}


def formats() -> tuple[str, ...]:
    """Return the names of the formats, from the widest to the narrowest.

    Examples
    --------
    >>> formats()[:4]
    ('float64', 'float32', 'tf32', 'float16')
    """
    return tuple(FORMATS)


def format(name: str) -> Format:
    """Return the facts of one number format.

    Parameters
    ----------
    name : str
        One of ``formats()``.

    Raises
    ------
    InputError
        If there is no such format.

    Examples
    --------
    >>> f = format("float16")
    >>> f.largest, f.smallest_normal, f.epsilon, f.overflow
    (65504.0, 6.103515625e-05, 0.0009765625, 'infinity')
    """
    return find("format", name)


def find(function: str, name: str | Format) -> Format:
    """Return the format of a name, or the format itself; error messages begin with ``function``."""
    return (
        name
        if isinstance(name, Format)
        else FORMATS[_validate.word(function, "format", name, FORMATS)]
    )


def overflow_rule(function: str, one: Format, overflow: str | None) -> Overflow:
    """Return the overflow rule: the format's own for None, else the given one, which the format
    must be able to follow.

    Raises
    ------
    InputError
        If the format has no code for the result that the rule gives.
    """
    if overflow is None:
        return one.overflow
    rules = {"infinity": one.has_infinity, "nan": one.has_nan, "saturate": True}
    possible = [rule for rule, has_code in rules.items() if has_code]
    _validate.word(function, f"overflow of {one.name}", overflow, possible)
    return overflow  # type: ignore[return-value]


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
        or "saturate" (the largest number with the sign). None takes the format's own rule.

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
    """Return ``round_to`` of a float64 array, without checks."""
    if one.kind == "integer":
        return finished(np.rint(x) + 0.0, x, one, rule)  # + 0.0: an integer has no negative zero
    if one.mantissa_bits >= _MANTISSA_BITS:
        return finished(x, x, one, rule)
    dropped = _MANTISSA_BITS - one.mantissa_bits
    bits = np.ascontiguousarray(x).view(np.uint64).reshape(x.shape)
    # Add half a unit minus one, plus the last bit that is kept: a number above the midpoint then
    # carries, and the midpoint itself carries only if that bit is 1.
    carry = (bits >> np.uint64(dropped)) & np.uint64(1)
    wide = (bits + (np.uint64((1 << (dropped - 1)) - 1) + carry)) & np.uint64(
        ~((1 << dropped) - 1) & 0xFFFFFFFFFFFFFFFF
    )
    # Below the smallest normal number all numbers have the same spacing: adding and subtracting 3 *
    # 2**51 times that spacing makes float64 round to a multiple of it.
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
    """Apply a format's overflow rule, and its replacement of a nan, to numbers already rounded."""
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


def as_float64(function: str, x: Any) -> np.ndarray:
    """Return a caller's numbers as a float64 array.

    Raises
    ------
    InputError
        If they are not real numbers, or float64 cannot hold one of them exactly.
    """
    expected = "real numbers. Pass a float, a list of floats or an array."
    with devices.guard(f"{function}: reading x", expected):  # a sparse tensor is no array
        if isinstance(x, torch.Tensor) and not x.is_complex() and x.dtype != torch.bool:
            x = x.detach().cpu().resolve_neg()
            x = x.double() if x.is_floating_point() else x
        given = np.asarray(x)
    if given.dtype.kind not in "fiu":
        raise InputError(f"{function}: x is {shown(x)}; expected {expected}")
    with np.errstate(over="ignore"):
        converted = np.array(given, dtype=np.float64)
    # numbers that float64 may not hold: large whole numbers, and all longer floats
    large, longer = np.abs(converted) >= 2.0**53, given.dtype.itemsize > 8
    some = large if given.dtype.kind in "iu" else longer & ~np.isnan(converted)
    # compared one by one, as Python's numbers: NumPy would compare whole numbers as float64
    if (given[some].astype(object) != converted[some].astype(object)).any():
        raise InputError(
            f"{function}: x holds {with_article(str(given.dtype))} that float64 cannot represent, "
            "so it would be rounded twice; expected numbers that float64 can represent. Convert x "
            "to float64 first if a second rounding does no harm."
        )
    return converted


def shaped(result: np.ndarray, given: np.ndarray) -> np.ndarray:
    """Return a scalar for a scalar, as NumPy's functions do."""
    return result[()] if given.ndim == 0 else result


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
    finite = np.where(np.isfinite(value), np.abs(value), 0.0)
    # The place of a number in the order of the format's numbers from zero on: each power of two has
    # 2**mantissa_bits numbers, and the subnormal numbers have the same spacing as the smallest
    # normal ones.
    exponent = np.where(finite < one.smallest_normal, one.emin, np.frexp(finite)[1] - 1)
    steps = np.ldexp(finite, one.mantissa_bits - exponent).astype(np.int64)
    place = steps + ((exponent - one.emin).astype(np.int64) << one.mantissa_bits)
    top = (1 << (one.bits - 1)) - 1  # all ones after the sign
    infinite = ((1 << one.exponent_bits) - 1) << one.mantissa_bits
    quiet = infinite | (1 << (one.mantissa_bits - 1)) if one.has_infinity else top
    body = np.where(np.isinf(value), infinite, np.where(np.isnan(value), quiet, place)).astype(
        np.uint64
    )
    sign = (np.signbit(value) & ~np.isnan(value)).astype(np.uint64)
    kinds = (np.uint8, np.uint16, np.uint32, np.uint64)
    kind = next(kind for kind in kinds if np.iinfo(kind).bits >= one.bits)
    return shaped((body | (sign << np.uint64(one.bits - 1))).astype(kind), given)


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
    with devices.guard("decode: reading codes", "whole numbers. Pass an array of ints."):
        given = np.asarray(codes)
    if given.dtype.kind not in "iu" or np.any(given < 0) or np.any(given >= 2**one.bits):
        raise InputError(
            f"decode: codes are {shown(codes)}; expected whole numbers from 0 to 2**{one.bits} - "
            "1. Pass unsigned bits."
        )
    if one.kind == "integer":
        return shaped(given.astype(np.uint8).view(np.int8).astype(np.float64), given)
    code = given.astype(np.uint64)
    sign = (code >> np.uint64(one.bits - 1)).astype(bool)
    field = (
        (code >> np.uint64(one.mantissa_bits)) & np.uint64((1 << one.exponent_bits) - 1)
    ).astype(np.int64)
    mantissa = (code & np.uint64((1 << one.mantissa_bits) - 1)).astype(np.int64)
    whole = np.where(field > 0, mantissa + (1 << one.mantissa_bits), mantissa).astype(np.float64)
    with np.errstate(over="ignore"):  # the codes of infinities and nans, which are corrected below
        value = np.ldexp(whole, np.maximum(field, 1) - one.bias - one.mantissa_bits)
    special = field == (1 << one.exponent_bits) - 1
    if one.has_infinity:
        value = np.where(special, np.where(mantissa == 0, np.inf, np.nan), value)
    elif one.has_nan:
        value = np.where(special & (mantissa == (1 << one.mantissa_bits) - 1), np.nan, value)
    return shaped(np.where(sign, -value, value), given)


def add(a: np.ndarray, b: np.ndarray, one: Format) -> np.ndarray:
    """Return a + b rounded once to a format of at most 50 bits of mantissa; beyond its largest
    number, its overflow rule applies.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        total = a + b
        other = total - a
        rest = (a - (total - other)) + (b - other)
        even = (
            np.ascontiguousarray(total).view(np.uint64).reshape(np.shape(total)) & np.uint64(1)
        ) == 0
        lost = np.isfinite(total) & (rest != 0) & even
        odd = np.where(lost, np.nextafter(total, np.copysign(np.inf, rest)), total)
    return rounded(odd, one, one.overflow)


def running_sum(values: list[float], one: Format, draws: list[float] | None = None) -> float:
    """Return the sum of numbers, one after the other, with each partial sum rounded once; the same
    as ``add`` in a loop, and faster.

    With a draw from 0 to 1 for each value, the rounding is stochastic: a sum rounds away from zero
    with a probability equal to its share of the way to the next number.
    """
    lowest, kept, largest = one.emin, one.mantissa_bits, one.largest
    # what a sum beyond the largest number becomes
    beyond = {"infinity": math.inf, "nan": math.nan, "saturate": largest}[one.overflow]
    nearest: float
    total = 0.0
    for place, value in enumerate(values):
        exact = total + value
        if exact == 0 or not math.isfinite(exact):
            total = exact
            continue
        unit = math.ldexp(1.0, max(math.frexp(exact)[1] - 1, lowest) - kept)
        steps = exact / unit
        if draws is None:
            other = exact - total
            rest = (total - (exact - other)) + (value - other)
            down = math.floor(steps)
            nearest = round(steps) if rest == 0 or steps - down != 0.5 else down + (rest > 0)
        else:
            down = math.floor(abs(steps))
            nearest = math.copysign(down + (draws[place] < abs(steps) - down), steps)
        total = nearest * unit
        if abs(total) > largest:
            total = math.copysign(beyond, total)
    return total


_EVIDENCE = Evidence.modelled(
    "the format's definition, rounded once to nearest, ties to even",
    "IEEE 754-2019, OFP8, MX",
    "none: exact",
)
MOST_STEPS = 10_000


@dataclass(frozen=True)
class Number(Result):
    """A number in a format.

    Attributes
    ----------
    format : Format
    given : float
        The requested number.
    held : float
        The number that the format holds in its place.
    code : int
        The bits.
    kind : str
        "normal", "subnormal", "zero", "infinite" or "nan".
    below, above : float
        The next smaller and the next larger number of the format; nan where there is none.
    spacing : float
        From the held number to the next one farther from zero; nan if the held number is not
        finite.
    evidence : Evidence
        MODELLED: a definition.
    """

    format: Format
    given: float
    held: float
    code: int
    kind: str
    below: float
    above: float
    spacing: float
    evidence: Evidence

    @property
    def bits(self) -> str:
        """The bits as text, sign first."""
        return f"{self.code:0{self.format.bits}b}"

    @property
    def fields(self) -> tuple[str, str, str]:
        """The bits of sign, exponent and mantissa; an integer has no exponent."""
        return (
            self.bits[0],
            self.bits[1 : 1 + self.format.exponent_bits],
            self.bits[1 + self.format.exponent_bits :],
        )

    @property
    def relative_error(self) -> float:
        """The rounding error divided by the requested number; nan where either number is not
        finite.
        """
        if not (math.isfinite(self.given) and math.isfinite(self.held)):
            return math.nan
        return abs(self.held - self.given) / abs(self.given) if self.given else 0.0

    @property
    def reading(self) -> str:
        """How the bits give the number, in words."""
        one = self.format
        if self.kind in ("infinite", "nan"):
            return (
                f"the bits of {'an infinity' if self.kind == 'infinite' else 'nan, not a number'}"
            )
        sign, exponent, mantissa = self.fields
        if not (exponent and mantissa):
            return "two's complement"
        minus = "-" if sign == "1" else ""
        fraction = int(mantissa, 2) / 2 ** len(mantissa)
        if int(exponent, 2):
            return f"{minus}{1 + fraction:.10g} x 2^{int(exponent, 2) - one.bias}"
        return (
            f"{minus}{fraction:.10g} x "
            f"2^{one.emin}{'' if fraction == 0 else ' (subnormal: no leading 1)'}"
        )

    def __repr__(self) -> str:
        return (
            f"<{self.given:.17g} in {self.format.name}: {self.held:.17g}, bits "
            f"{' '.join(part for part in self.fields if part)}>"
        )

    def table(self) -> Table:
        """Return one row per fact."""
        error = self.relative_error
        rows = [
            ("requested", f"{self.given:.17g}"),
            ("held", f"{self.held:.17g}"),
            ("kind", self.kind),
            ("bits", f"{' '.join(part for part in self.fields if part)} = {self.reading}"),
            ("relative error", "-" if math.isnan(error) else "0" if error == 0 else f"{error:.2g}"),
            ("next below, next above", f"{_or_none(self.below)}, {_or_none(self.above)}"),
            ("distance to the next number", _or_none(self.spacing)),
        ]
        return (self.format.name, ""), rows


def _or_none(value: float) -> str:
    return "none" if math.isnan(value) else f"{value:.17g}"


@_validate.arguments(steps=partial(_validate.whole, low=-MOST_STEPS, high=MOST_STEPS))
def number(x: float, format: str | Format, steps: int = 0) -> Number:
    """Return a number as a format holds it, or the number that is some steps away from it.

    Parameters
    ----------
    x : float
    format : str or Format
    steps : int
        How many numbers of the format to go up (or down) from the rounded x; stops at the largest
        and the lowest. -10,000 to 10,000.

    Returns
    -------
    Number

    Raises
    ------
    InputError
        If ``x`` is not a number, there is no such format, or there are too many steps.

    Examples
    --------
    >>> number(0.1, "float16")
    <0.10000000000000001 in float16: 0.0999755859375, bits 0 01011 1001100110>
    >>> number(1.0, "bfloat16", steps=1).held
    1.0078125
    >>> number(1.0, "float16", steps=-1).held
    0.99951171875
    """
    one = find("number", format)
    given = as_float64("number", x)
    if given.ndim:
        raise InputError(f"number: x is {shown(x)}; expected one number. Use round_to for arrays.")
    x = float(given)
    held = float(round_to(x, one))
    if steps and not math.isnan(held):
        place = _ordinal(held, one)
        ends = min(place, _ordinal(one.lowest, one)), max(place, _ordinal(one.largest, one))
        held = _value(min(max(place + steps, ends[0]), ends[1]), one)
    return _made(x if not steps else held, held, int(encode(held, one)), one)


def number_from_bits(code: Any, format: str | Format) -> Number:
    """Return the number that bits stand for.

    Parameters
    ----------
    code : int or str
        The bits as a whole number, or as text of zeros and ones (spaces between fields are fine).
    format : str or Format

    Raises
    ------
    InputError
        If ``code`` is not a bit pattern of the format.

    Examples
    --------
    >>> number_from_bits("0 11110 1111111111", "float16").held
    65504.0
    """
    one = find("number_from_bits", format)
    if isinstance(code, str):
        digits = code.replace(" ", "").replace("_", "")
        if len(digits) != one.bits or set(digits) - {"0", "1"}:
            raise InputError(
                f"number_from_bits: code is {shown(code)}; expected {one.bits} zeros and ones. "
                "Write all bits, the sign first."
            )
        code = int(digits, 2)
    advice = f"Pass {one.bits} zeros and ones as text, or for example {2 ** (one.bits - 2):#x}."
    code = _validate.whole("number_from_bits", "code", code, 0, 2**one.bits - 1, advice)
    held = float(decode(code, one))
    return _made(held, held, code, one)


def _made(given: float, held: float, code: int, one: Format) -> Number:
    place = _ordinal(held, one)
    below, above = _value(place - 1, one), _value(place + 1, one)
    exponent = max(math.frexp(held or one.smallest_subnormal)[1] - 1, one.emin)
    spacing = math.ldexp(1.0, exponent - one.mantissa_bits) if one.kind == "float" else 1.0
    if math.isnan(held):
        kind, below, above, spacing = "nan", math.nan, math.nan, math.nan
    elif math.isinf(held):
        kind, spacing = "infinite", math.nan
    elif held == 0:
        kind = "zero"
    else:
        kind = "normal" if abs(held) >= one.smallest_normal else "subnormal"
    return Number(one, given, held, code, kind, below, above, spacing, _EVIDENCE)


def nearby(
    low: float, high: float, format: str | Format, most: int = 200
) -> tuple[np.ndarray, int]:
    """Return the numbers of a format from ``low`` to ``high``, and how many there are; with more
    than ``most`` numbers the array is empty.

    Raises
    ------
    InputError
        If the ends are not finite, or ``low`` is above ``high``.

    Examples
    --------
    >>> nearby(1.0, 1.5, "float8_e4m3fn")
    (array([1.   , 1.125, 1.25 , 1.375, 1.5  ]), 5)
    """
    one = find("nearby", format)
    if not (_validate.is_finite(low) and _validate.is_finite(high)) or low > high:
        raise InputError(
            f"nearby: from {shown(low)} to {shown(high)}; expected two finite numbers, the lower "
            "one first. Swap or correct them."
        )
    bottom, top = max(float(low), one.lowest), min(float(high), one.largest)
    if bottom > top:
        return np.zeros(0), 0
    first, last = _ordinal(bottom, one), _ordinal(top, one)  # the nearest number may lie outside
    first += _value(first, one) < bottom
    last -= _value(last, one) > top
    count = max(0, last - first + 1)
    if count > most:
        return np.zeros(0), count
    return np.array([_value(k, one) for k in range(first, last + 1)]), count


def _ordinal(x: float, one: Format) -> int:
    """Return the place of the number nearest to x in the format's order; zero has place 0."""
    if one.kind == "integer":
        return int(round_to(x, one))
    return int(encode(abs(x), one)) * (-1 if x < 0 else 1)


def _value(ordinal: int, one: Format) -> float:
    """Return the number at a place in that order; nan where there is none."""
    if one.kind == "integer":
        return float(ordinal) if one.lowest <= ordinal <= one.largest else math.nan
    is_code = abs(ordinal) < 2 ** (one.bits - 1)
    return math.copysign(float(decode(abs(ordinal), one)), ordinal) if is_code else math.nan
