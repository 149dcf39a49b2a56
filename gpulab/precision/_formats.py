"""The number formats of deep learning as data: bits, range, and overflow."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from gpulab import _given
from gpulab.evidence import Evidence
from gpulab.results import Result

Overflow = Literal["infinity", "nan", "saturate"]
_IEEE = "IEEE 754-2019, section 3.6"
_OCP = "OCP 8-bit Floating Point Specification (OFP8), revision 1.0; arXiv:2209.05433, table 1"
_NO_NAN_FLOAT = "NaN input values result in positive MAXNORM (cuda_fp4.h of CUDA 13)"


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
        What one number takes in memory.
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
        What it is for.
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
        """The definition that these facts follow from."""
        return Evidence.modelled("the format's definition", self.source, "none: a definition")

    @property
    def emin(self) -> int:
        """The exponent of the smallest normal number."""
        return 1 - self.bias if self.kind == "float" else 0

    @cached_property
    def emax(self) -> int:
        """The exponent of the largest number."""
        # All exponents but the highest, which IEEE formats keep for infinities and nans and the
        # others use.
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
        """The midpoint between the largest number and what would come next; beyond it a number
        overflows.

        ``overflows_at_threshold`` says whether the midpoint itself does.
        """
        return self.largest + self._last_spacing / 2

    @property
    def overflows_at_threshold(self) -> bool:
        """Whether the midpoint itself overflows: where the largest number is odd in its last bit,
        the tie goes beyond it.
        """
        return (self.largest / self._last_spacing) % 2 == 1

    @property
    def _last_spacing(self) -> float:
        return math.ldexp(1.0, self.emax - self.mantissa_bits) if self.kind == "float" else 1.0

    @property
    def decimal_digits(self) -> float:
        """Significant decimal digits that a normal number holds: log10 of 2 ** (mantissa bits +
        1).
        """
        return (self.mantissa_bits + (self.kind == "float")) * math.log10(2)

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

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        """Return one row a fact."""
        fields = (
            f"1 sign, {self.exponent_bits} exponent, {self.mantissa_bits} mantissa"
            if self.kind == "float"
            else "two's complement"
        )
        rows = [
            ("bits", f"{self.bits}: {fields}"),
            ("largest", f"{self.largest:.6g}; beyond it a number {self.overflow_words}"),
            ("smallest normal", f"{self.smallest_normal:.6g}"),
            ("smallest subnormal", f"{self.smallest_subnormal:.6g}"),
            ("epsilon", f"{self.epsilon:.6g} ({self.decimal_digits:.1f} decimal digits)"),
            ("infinity, nan", f"{_yes(self.has_infinity)}, {_yes(self.has_nan)}"),
            ("used for", self.use),
        ]
        return (self.name, ""), rows


def _yes(there: bool) -> str:
    return "yes" if there else "no"


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
    bias = 2 ** (exponent_bits - 1) - 1
    return Format(
        name=name,
        kind="float",
        bits=bits,
        exponent_bits=exponent_bits,
        mantissa_bits=mantissa_bits,
        bias=bias,
        use=use,
        source=source,
        **{**usual, **special},
    )


_FORMATS = (
    _float("float64", 11, 52, "science; references"),
    _float("float32", 8, 23, "what networks are trained in by default"),
    _float(
        "tf32",
        8,
        10,
        "what Tensor Cores read of a float32 operand where TF32 is allowed",
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
        f"OCP Microscaling Formats (MX) Specification, revision 1.0, section 5.3; {_NO_NAN_FLOAT}",
        has_infinity=False,
        has_nan=False,
        nan_becomes=6.0,
        overflow="saturate",
    ),
)
FORMATS: Mapping[str, Format] = {one.name: one for one in _FORMATS}
RULES = ("infinity", "nan", "saturate")


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
    """Return the format that a name or a format names, for another function's messages."""
    return (
        name
        if isinstance(name, Format)
        else FORMATS[_given.word(function, "format", name, FORMATS)]
    )


def overflow_rule(function: str, one: Format, overflow: str | None) -> Overflow:
    """Return the rule to follow: the format's own for None, else "saturate" or a rule that the
    format can follow.

    Raises
    ------
    InputError
        If the format has no code for what the rule asks.
    """
    if overflow is None:
        return one.overflow
    possible = [
        rule
        for rule in RULES
        if rule == "saturate"
        or (rule == "infinity" and one.has_infinity)
        or (rule == "nan" and one.has_nan)
    ]
    _given.word(function, f"overflow of {one.name}", overflow, possible)
    return overflow  # type: ignore[return-value]
