"""Gradients and the range of a format: which become zero, lose digits or overflow, at which scale
of the loss.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpulab import _given
from gpulab.errors import InputError, shown
from gpulab.evidence import Evidence
from gpulab.precision._formats import Format, find
from gpulab.precision._gradients import exponent_of, magnitudes_of
from gpulab.results import Result

_POWERS = range(-126, 128)  # scales that are powers of two, as float32 holds them
_GIVEN = Evidence.modelled(
    "the numbers that were given, in full",
    "the format's own rounding, exactly",
    "none: exact arithmetic",
)


@dataclass(frozen=True)
class GradientWindow(Result):
    """The effect of one format on gradients at one scale of the loss.

    Shares refer to the gradients that are not zero, infinite or nan.

    Attributes
    ----------
    label, which : str
        The model, and which of its gradients.
    format : Format
    scale : float
        The factor by which the loss, and with it every gradient, is multiplied.
    count, zeros, not_finite : int
        The number of all gradients, of those that were zero before, and of those that were not
        finite.
    vanishing_share : float
        The share that becomes zero.
    subnormal_share : float
        The share below the smallest normal number: kept, with fewer digits.
    overflowing_share : float
        The share that goes beyond the largest number.
    exponents, counts : tuple of int
        The histogram before scaling: how many (of those kept in the result) lie between 2**exponent
        and the next power of two.
    largest : float
        The largest magnitude, before scaling.
    lowest_scale : float or None
        The smallest power of two at which at most ``tolerance`` of the gradients vanish; None where
        there is none.
    highest_scale : float or None
        The largest power of two at which none overflows.
    tolerance : float
    evidence : Evidence
    """

    label: str
    which: str
    format: Format
    scale: float
    count: int
    zeros: int
    not_finite: int
    vanishing_share: float
    subnormal_share: float
    overflowing_share: float
    exponents: tuple[int, ...]
    counts: tuple[int, ...]
    largest: float
    lowest_scale: float | None
    highest_scale: float | None
    tolerance: float
    evidence: Evidence

    @property
    def kept_share(self) -> float:
        """The share that stays a normal number, with all digits that the format has."""
        return max(0.0, 1 - self.vanishing_share - self.subnormal_share - self.overflowing_share)

    @property
    def _scales(self) -> tuple[float, float] | None:
        low, high = self.lowest_scale, self.highest_scale
        return None if self.not_finite or low is None or high is None or low > high else (low, high)

    @property
    def explanation(self) -> str:
        """What happens at this scale, and which scales are safe."""
        name = self.format.name
        broken = (
            f"{self.not_finite:,} of {self.count:,} gradients are infinite or nan already, which "
            "no scale can fix."
        )
        if self.zeros + self.not_finite == self.count:
            return (
                broken
                if self.not_finite
                else (
                    "The one gradient is exactly zero, so there is nothing to scale."
                    if self.count == 1
                    else f"All {self.count:,} gradients are exactly zero, so there is nothing to "
                    "scale."
                )
            )
        parts = [broken] if self.not_finite else []
        parts.append(f"At scale {plain(self.scale)} in {name}:")
        lost = [
            (self.vanishing_share, "become zero"),
            (self.subnormal_share, "lose digits (subnormal)"),
            (
                self.overflowing_share,
                self.format.overflow_words.replace("becomes", "become").replace("stays", "stay"),
            ),
        ]
        told = [f"{share(value)} {words}" for value, words in lost if value > 0]
        parts.append(f"{', '.join(told)}." if told else "every gradient keeps all digits.")
        if self.not_finite:
            return " ".join(parts)
        if self._scales is not None:
            low, high = map(plain, self._scales)
            parts.append(f"Safe scales are the powers of two from {low} to {high}.")
        else:
            parts.append(
                f"No scale is safe: the gradients spread over more powers of two than {name} has."
            )
        return " ".join(parts)

    def __repr__(self) -> str:
        return f"<{self.which} gradients of {self.label} in {self.format.name}: {self.explanation}>"

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        """Return one row for each fate of a gradient, and the safe scales."""
        beyond = self.format.overflow_words
        rows = [
            (
                "zero in the format",
                share(self.vanishing_share),
                f"at most {self.format.smallest_subnormal / 2 / self.scale:.2g}",
            ),
            (
                "subnormal",
                share(self.subnormal_share),
                f"below {self.format.smallest_normal / self.scale:.2g}",
            ),
            ("normal", share(self.kept_share), ""),
            (
                f"beyond the largest ({beyond})",
                share(self.overflowing_share),
                f"over {self.format.largest / self.scale:.2g}",
            ),
            (
                "safe scales",
                self._range(),
                f"at most {share(self.tolerance)} become zero, none overflows",
            ),
        ]
        if self.not_finite:
            rows.insert(
                0,
                (
                    "infinite or nan already",
                    f"{self.not_finite:,} of {self.count:,}",
                    "no scale can fix them",
                ),
            )
        return ("gradients that are", "share", "gradients of this size, before scaling"), rows

    def _range(self) -> str:
        return "none" if self._scales is None else " to ".join(map(plain, self._scales))


def plain(scale: float) -> str:
    """Return a scale as text: a number, with its power of two where it is one beyond a thousand."""
    mantissa, exponent = math.frexp(scale)
    if mantissa == 0.5 and not 1 <= scale < 2**20:
        return f"2^{exponent - 1}"
    return f"{scale:,.0f}" if scale >= 10 and float(scale).is_integer() else f"{scale:g}"


def share(value: float) -> str:
    """Return a share as a percentage that is 0 or 100 only where it is exactly so."""
    if value in (0.0, 1.0):
        return f"{value:.0%}"
    if value < 5e-5:
        return "under 0.01%"
    return "over 99.99%" if value >= 0.99995 else f"{value:.2%}"


def gradient_window(
    gradients: Any,
    format: str | Format = "float16",
    scale: float = 1.0,
    *,
    which: str = "all",
    tolerance: float = 0.01,
) -> GradientWindow:
    """Return the effect of a format on gradients when the loss is multiplied by ``scale``.

    Parameters
    ----------
    gradients : Gradients or array_like
        From ``gradients``, or numbers: an array, a tensor, or a list of them.
    format : str or Format
        A float format.
    scale : float
        Positive. Powers of two shift the exponents and change no digit.
    which : str
        "all", "parameters" or "activations", for what ``gradients`` returned.
    tolerance : float
        The share that may vanish at a scale that counts as safe, 0 to 1.

    Returns
    -------
    GradientWindow

    Raises
    ------
    InputError
        If there are no gradients, the format is not a float format, or the scale or tolerance is
        out of range.

    Notes
    -----
    A gradient becomes zero where its magnitude times the scale is at most half of the smallest
    number (the tie goes to zero). Source: Micikevicius et al., Mixed Precision Training (2018),
    section 3.2, figure 3.

    Examples
    --------
    >>> w = gradient_window([1e-8, 1e-6, 1e-3, 1.0], "float16")
    >>> w.vanishing_share, w.subnormal_share, w.overflowing_share
    (0.25, 0.25, 0.0)
    >>> w.lowest_scale, w.highest_scale
    (4.0, 32768.0)
    """
    one = find("gradient_window", format)
    if one.kind != "float":
        raise InputError(
            f"gradient_window: {one.name} is not a float format; expected one such as float16. "
            "int8 has a scale of its own."
        )
    factor = _positive("scale", scale)
    if isinstance(tolerance, bool) or not _given.is_finite(tolerance) or not 0 <= tolerance <= 1:
        raise InputError(
            f"gradient_window: tolerance={shown(tolerance)}; expected a share from 0 to 1. Pass "
            "for example 0.01."
        )
    sizes, evidence, label = magnitudes_of("gradient_window", gradients, which)
    kept = sizes.sorted_magnitudes
    exponents, counts = histogram(kept)
    vanishing, subnormal, overflowing = shares(kept, one, factor)
    low, high = safe_scales(kept, one, float(tolerance))
    return GradientWindow(
        label=label,
        which=sizes.kind,
        format=one,
        scale=factor,
        count=sizes.count,
        zeros=sizes.zeros,
        not_finite=sizes.not_finite,
        vanishing_share=vanishing,
        subnormal_share=subnormal,
        overflowing_share=overflowing,
        exponents=exponents,
        counts=counts,
        largest=sizes.largest or 0.0,
        lowest_scale=low,
        highest_scale=high,
        tolerance=float(tolerance),
        evidence=evidence or _GIVEN,
    )


def _positive(name: str, value: Any) -> float:
    if (
        isinstance(value, bool)
        or not isinstance(value, numbers.Real)
        or not _given.is_finite(value)
        or value <= 0
    ):
        raise InputError(
            f"gradient_window: {name}={shown(value)}; expected a positive number. Pass for example "
            "1024."
        )
    return float(value)


def histogram(kept: np.ndarray) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the powers of two from the smallest magnitude's to the largest's, and how many
    magnitudes begin with each.
    """
    if not kept.size:
        return (), ()
    low, high = exponent_of(float(kept[0])), exponent_of(float(kept[-1]))
    edges = np.searchsorted(kept, np.ldexp(1.0, np.arange(low, high + 2)), side="left")
    edges[-1] = kept.size  # 2**(high + 1) may be infinite
    return tuple(range(low, high + 1)), tuple(np.diff(edges).tolist())


def shares(kept: np.ndarray, one: Format, scale: float) -> tuple[float, float, float]:
    """Return the shares of sorted magnitudes that vanish, become subnormal and overflow at a
    scale.
    """
    if not kept.size:
        return 0.0, 0.0, 0.0
    with np.errstate(over="ignore", under="ignore"):
        scaled = kept * scale
    gone = int(np.searchsorted(scaled, one.smallest_subnormal / 2, side="right"))
    # The midpoint below the smallest normal number rounds up to it, which is even.
    small = int(
        np.searchsorted(scaled, one.smallest_normal - one.smallest_subnormal / 2, side="left")
    )
    threshold = (
        one.overflow_threshold
        if one.overflows_at_threshold
        else math.nextafter(one.overflow_threshold, math.inf)
    )
    beyond = kept.size - int(np.searchsorted(scaled, threshold, side="left"))
    return gone / kept.size, max(0, small - gone) / kept.size, beyond / kept.size


def safe_scales(
    kept: np.ndarray, one: Format, tolerance: float
) -> tuple[float | None, float | None]:
    """Return the smallest power of two at which at most ``tolerance`` vanishes, and the largest at
    which nothing overflows.
    """
    if not kept.size:
        return math.ldexp(1.0, _POWERS[0]), math.ldexp(1.0, _POWERS[-1])
    half, top = one.smallest_subnormal / 2, kept[-1:]
    low: float | None = math.ldexp(1.0, _POWERS[0])
    if tolerance < 1:  # the smallest gradient that must stay decides
        pivot = float(kept[math.floor(tolerance * kept.size)])
        low = next((s for s in _around(half / pivot) if pivot * s > half), None)
    high = next(
        (
            s
            for s in reversed(_around(one.overflow_threshold / float(top[0])))
            if shares(top, one, s)[2] == 0
        ),
        None,
    )
    return low, high


def _around(ratio: float) -> list[float]:
    """Return the powers of two next to a ratio, ascending; the ends of what float32 holds where it
    lies beyond them.
    """
    at = exponent_of(ratio) if 0 < ratio < math.inf else _POWERS[-1] if ratio else _POWERS[0]
    middle = min(max(at, _POWERS[0] + 1), _POWERS[-1] - 1)
    return [math.ldexp(1.0, power) for power in (middle - 1, middle, middle + 1)]
