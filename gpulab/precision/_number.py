"""One number as one format holds it: its bits, its neighbors, and what the rounding cost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpulab import _given
from gpulab.errors import InputError, shown
from gpulab.evidence import Evidence
from gpulab.precision._formats import Format, find
from gpulab.precision._rounding import as_float64, decode, encode, neighbours, round_to, spacing
from gpulab.results import Result

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
        What was asked for.
    held : float
        What the format makes of it.
    code : int
        The bits.
    kind : str
        "normal", "subnormal", "zero", "infinite" or "nan".
    below, above : float
        The next numbers; nan where there is none.
    spacing : float
        From the held number to the next one farther from zero; nan for what is not finite.
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
        """The rounding error divided by the number asked for; nan where there is none."""
        if not (math.isfinite(self.given) and math.isfinite(self.held)):
            return math.nan
        return abs(self.held - self.given) / abs(self.given) if self.given else 0.0

    @property
    def reading(self) -> str:
        """How the bits make the number."""
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

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        """Return one row a fact."""
        error = self.relative_error
        rows = [
            ("asked for", f"{self.given:.17g}"),
            ("held", f"{self.held:.17g}"),
            ("kind", self.kind),
            ("bits", f"{' '.join(part for part in self.fields if part)} = {self.reading}"),
            ("relative error", "-" if math.isnan(error) else "0" if error == 0 else f"{error:.2g}"),
            ("next below, next above", f"{_or_none(self.below)}, {_or_none(self.above)}"),
            ("to the next number", _or_none(self.spacing)),
        ]
        return (self.format.name, ""), rows


def _or_none(value: float) -> str:
    return "none" if math.isnan(value) else f"{value:.10g}"


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
    """
    one = find("number", format)
    if not _given.is_whole(steps) or not -MOST_STEPS <= steps <= MOST_STEPS:
        raise InputError(
            f"number: steps={shown(steps)}; expected a whole number from -{MOST_STEPS:,} to "
            f"{MOST_STEPS:,}. Pass for example 1."
        )
    steps = int(steps)
    given = as_float64("number", x)
    if given.ndim:
        raise InputError(f"number: x is {shown(x)}; expected one number. Use round_to for arrays.")
    x = float(given)
    held = float(round_to(x, one))
    for _ in range(abs(steps)):
        further = float(neighbours(held, one)[1 if steps > 0 else 0])
        if not math.isfinite(further):
            break
        held = further
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
        If these are not bits of the format.

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
                f"number_from_bits: {shown(code)}; expected {one.bits} zeros and ones. Write sign, "
                "exponent and mantissa."
            )
        code = int(digits, 2)
    if not _given.is_whole(code):
        raise InputError(
            f"number_from_bits: {shown(code)}; expected a whole number, or {one.bits} zeros and "
            "ones. Pass for example 0x3C00."
        )
    code = int(code)
    held = float(decode(code, one))
    return _made(held, held, code, one)


def _made(given: float, held: float, code: int, one: Format) -> Number:
    below, above = (float(v) for v in neighbours(held, one))
    if math.isnan(held):
        kind = "nan"
    elif math.isinf(held):
        kind = "infinite"
    elif held == 0:
        kind = "zero"
    else:
        kind = "normal" if abs(held) >= one.smallest_normal else "subnormal"
    return Number(one, given, held, code, kind, below, above, float(spacing(held, one)), _EVIDENCE)


def nearby(
    low: float, high: float, format: str | Format, most: int = 200
) -> tuple[np.ndarray, int]:
    """Return the numbers of a format from ``low`` to ``high``, and how many there are; the first
    are left out beyond ``most``.

    Raises
    ------
    InputError
        If the ends are not finite, or the lower one is the higher one.

    Examples
    --------
    >>> nearby(1.0, 1.5, "float8_e4m3fn")
    (array([1.   , 1.125, 1.25 , 1.375, 1.5  ]), 5)
    """
    one = find("nearby", format)
    if not (_given.is_finite(low) and _given.is_finite(high)) or low > high:
        raise InputError(
            f"nearby: from {shown(low)} to {shown(high)}; expected two finite numbers, the lower "
            "one first. Swap or correct them."
        )
    bottom, top = max(float(low), one.lowest), min(float(high), one.largest)
    if bottom > top:
        return np.zeros(0), 0
    first = _ordinal(bottom, one)
    last = _ordinal(top, one)
    if _value(first, one) < bottom:
        first += 1
    if _value(last, one) > top:
        last -= 1
    count = max(0, last - first + 1)
    if count > most:
        return np.zeros(0), count
    return np.array([_value(k, one) for k in range(first, last + 1)]), count


def _ordinal(x: float, one: Format) -> int:
    """Return a number's place in the order of the format's numbers, zero being 0."""
    held = float(round_to(x, one, overflow="saturate"))
    return (
        int(held)
        if one.kind == "integer"
        else int(math.copysign(int(encode(abs(held), one)), held))
    )


def _value(ordinal: int, one: Format) -> float:
    return (
        float(ordinal)
        if one.kind == "integer"
        else math.copysign(float(decode(abs(ordinal), one)), ordinal)
    )
