"""The formats from their published parameters, in whole numbers and fractions: the oracle.

Nothing here is read from the code under test. A number is an integer times its smallest
subnormal number.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True)
class Published:
    """Field widths and special codes.

    ``specials`` is "ieee" (inf and nan in the highest exponent), "nan" (all ones) or "none".
    """

    exponent_bits: int
    mantissa_bits: int
    specials: str

    @property
    def bias(self) -> int:
        """2**(E-1) - 1 in all of them."""
        return 2 ** (self.exponent_bits - 1) - 1

    @property
    def bits(self) -> int:
        """With the sign."""
        return 1 + self.exponent_bits + self.mantissa_bits

    @property
    def unit(self) -> Fraction:
        """The smallest subnormal number."""
        return Fraction(2) ** (1 - self.bias - self.mantissa_bits)

    def units(self, code: int) -> int | str:
        """What a code without its sign stands for: a count of units, "inf" or "nan"."""
        field, mantissa = divmod(code, 2**self.mantissa_bits)
        if field == 2**self.exponent_bits - 1 and self.specials == "ieee":
            return "inf" if mantissa == 0 else "nan"
        if code == 2 ** (self.bits - 1) - 1 and self.specials == "nan":
            return "nan"
        return mantissa if field == 0 else (2**self.mantissa_bits + mantissa) << (field - 1)

    def magnitudes(self) -> list[Fraction]:
        """Every finite magnitude, ascending; its place in the list is its code."""
        counted = [self.units(code) for code in range(2 ** (self.bits - 1))]
        return [count * self.unit for count in counted if isinstance(count, int)]

    def nearest(self, x: Fraction) -> Fraction | None:
        """The number nearest to x, ties to the even code; None beyond the largest."""
        ladder = self._ladder()
        magnitude, sign = abs(x), (-1 if x < 0 else 1)
        if magnitude >= ladder[-1]:
            return None
        above = bisect_left(ladder, magnitude)
        if ladder[above] == magnitude:
            best = above
        else:
            low, high = magnitude - ladder[above - 1], ladder[above] - magnitude
            even = above if above % 2 == 0 else above - 1
            best = above - 1 if low < high else above if high < low else even
        return None if best == len(ladder) - 1 else sign * ladder[best]

    def _ladder(self) -> list[Fraction]:
        """The magnitudes, and what would come next if the exponents went on."""
        if self not in _LADDERS:
            found = self.magnitudes()
            _LADDERS[self] = [*found, 2 * found[-1] - found[-2]]
        return _LADDERS[self]


_LADDERS: dict[Published, list[Fraction]] = {}

PUBLISHED = {
    "float16": Published(5, 10, "ieee"),
    "bfloat16": Published(8, 7, "ieee"),
    "float8_e4m3fn": Published(4, 3, "nan"),
    "float8_e5m2": Published(5, 2, "ieee"),
    "float4_e2m1fn": Published(2, 1, "none"),
}


def round_fraction(x: Fraction, exponent_bits: int, mantissa_bits: int) -> Fraction:
    """Round to nearest, ties to even, in a format with no upper end."""
    if x == 0:
        return x
    magnitude = abs(x)
    exponent = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    if Fraction(2) ** exponent > magnitude:
        exponent -= 1
    unit = Fraction(2) ** (max(exponent, 2 - 2 ** (exponent_bits - 1)) - mantissa_bits)
    return round(x / unit) * unit  # round() of a Fraction goes to the even neighbour on a tie
