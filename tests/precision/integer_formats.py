"""Number formats from their published parameters, in integers and fractions, as an oracle.

Nothing here is read from the code under test. A number is an integer times its smallest
subnormal number.
"""

from fractions import Fraction
from typing import NamedTuple


class Published(NamedTuple):
    """Field widths and special codes.

    ``specials`` is "ieee" (inf and nan in the highest exponent), "nan" (all ones) or "none".
    """

    exponent_bits: int
    mantissa_bits: int
    specials: str

    @property
    def bits(self) -> int:
        """The width of a code, with the sign."""
        return 1 + self.exponent_bits + self.mantissa_bits

    @property
    def unit(self) -> Fraction:
        """The smallest subnormal number; the bias is 2**(E-1) - 1 in all of them."""
        return Fraction(2) ** (2 - 2 ** (self.exponent_bits - 1) - self.mantissa_bits)

    def units(self, code: int) -> int | str:
        """Return the value of a code without its sign: a count of units, "inf" or "nan"."""
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


PUBLISHED = {
    "float16": Published(5, 10, "ieee"),
    "bfloat16": Published(8, 7, "ieee"),
    "float8_e4m3fn": Published(4, 3, "nan"),
    "float8_e5m2": Published(5, 2, "ieee"),
    "float4_e2m1fn": Published(2, 1, "none"),
}


# Exponent and mantissa bits of the formats with too many numbers to list.
SHAPES = {"float16": (5, 10), "bfloat16": (8, 7), "float32": (8, 23), "tf32": (8, 10)}


def round_fraction(x: Fraction, exponent_bits: int, mantissa_bits: int) -> Fraction:
    """Round to nearest, ties to even, in a format without overflow."""
    if x == 0:
        return x
    magnitude = abs(x)
    exponent = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    if Fraction(2) ** exponent > magnitude:
        exponent -= 1
    unit = Fraction(2) ** (max(exponent, 2 - 2 ** (exponent_bits - 1)) - mantissa_bits)
    return round(x / unit) * unit  # round() of a Fraction rounds a tie to even
