"""A number in two formats: flip its bits, step along the number line, and see the neighboring
numbers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from gpulab import figures, precision
from gpulab.precision import Number
from gpulab.widgets._controls import Choice, Control, Several, Slider
from gpulab.widgets._controls import Number as NumberControl
from gpulab.widgets._instrument import Action, Drawing, Instrument

_NONE = "none"
_STEPS = 16
_LARGEST = 1.7976931348623157e308


class NumberFormats(Instrument):
    """Type a number, step to its neighbors, or flip its bits; the second format shows the same
    number.

    ``number`` is what ``gl.precision.number`` returned for the controls.

    Examples
    --------
    >>> n = NumberFormats(value=0.1, format="float16")
    >>> n.number.bits
    '0010111001100110'
    >>> n.set(bits=())
    >>> n.number.held
    0.0
    >>> print(NumberFormats(value=2049).code)
    import gpulab as gl
    <BLANKLINE>
    n = gl.precision.number(2049.0, "float16")
    gl.figures.number_line([n, gl.precision.number(n.given, "bfloat16")])
    """

    title = "Number formats"
    summary = (
        "How a format represents a number: its bits, the numbers next to it, and the same "
        "number in another format."
    )
    actions: tuple[Action, ...] = ()

    def make_controls(self) -> Sequence[Control]:
        """Return the two formats, the number, the steps away from it, and its bits."""
        names = [(name, _described(name)) for name in precision.formats()]
        return [
            Choice(
                name="format",
                label="Format",
                options=names,
                default="float16",
                help="The format whose bits you can flip.",
            ),
            Choice(
                name="beside",
                label="Beside it",
                options=[(_NONE, "nothing"), *names],
                default="bfloat16",
                help="A second format that shows the same number.",
            ),
            NumberControl(
                name="value",
                label="Number",
                default=0.1,
                minimum=-_LARGEST,
                maximum=_LARGEST,
                suggestions=(0.1, 1.0, 2049.0, 70000.0, 3e-8, 1e-8),
                help="Any number; the format rounds it once.",
            ),
            Slider(
                name="steps",
                label="Steps away",
                options=range(-_STEPS, _STEPS + 1),
                default=0,
                help="Move along the numbers of the format: each step leads to the next one.",
            ),
            self._bits_control("float16"),
        ]

    def _bits_control(self, name: str) -> Control:
        one = precision.format(name)
        return Several(
            name="bits",
            label="Bits that are 1",
            options=[(k, _bit_name(one, k)) for k in range(one.bits)],
            default=(),
            help="Flip one: s is the sign, e the exponent, m the mantissa; the first bit of "
            "a field is the most significant.",
        )

    def __init__(self, **values: Any) -> None:
        # the bits of an infinity or nan, which no number field can hold
        self._special: int | None = None
        super().__init__(**values)

    def _assign(self, values: Mapping[str, Any]) -> None:
        """Tick the bits of the number also where nothing was given, before the browser is told."""
        super()._assign(values)
        if "bits" not in values:
            self._tick()

    def changed(self, name: str) -> None:
        """Keep number and bits consistent: the one that changed decides."""
        if name == "format":
            self.replace_control(self._bits_control(self.values["format"]))
            self._special = None
        elif name in ("value", "steps"):
            self._special = None
            if name == "value":
                self.values["steps"] = 0
        elif name == "bits":
            self._flip()
            return
        self._tick()

    def _flip(self) -> None:
        one = precision.format(self.values["format"])
        code = sum(1 << (one.bits - 1 - place) for place in self.values["bits"])
        made = precision.number_from_bits(code, one)
        self._special = None if math.isfinite(made.held) else code
        if self._special is None:
            self.values["value"], self.values["steps"] = made.held, 0
            # -0.0 and 0.0 are one number in the field: their bits differ, so they are kept.
            self._special = code if made.held == 0 and code else None

    def _tick(self) -> None:
        bits = self._number(self.values).bits
        self.values["bits"] = tuple(k for k, digit in enumerate(bits) if digit == "1")

    # What is shown.

    @property
    def number(self) -> Number:
        """The number in the first format."""
        return self._number(self.values)

    def _number(self, values: Mapping[str, Any]) -> Number:
        if self._special is not None:
            return precision.number_from_bits(self._special, values["format"])
        return precision.number(float(values["value"]), values["format"], int(values["steps"]))

    def draw(self, values: Mapping[str, Any]) -> Drawing:
        """Return the bits and the number line, and a column of facts for each format."""
        first = self._number(values)
        many = [first]
        if values["beside"] != _NONE:
            many.append(precision.number(first.given, values["beside"]))
        rows = [list(row) for row in first.table()[1]]
        for other in many[1:]:
            rows = [[*row, told] for row, (_, told) in zip(rows, other.table()[1], strict=True)]
        headers = ("", *(n.format.name for n in many))
        return Drawing(
            figures.number_line(many),
            headers,
            rows,
            [first.evidence],
            message=" ".join(_sentence(n) for n in many),
        )

    def code_for(self, values: Mapping[str, Any]) -> str:
        """Return the calls that make the same numbers and the picture."""
        if self._special is not None:
            made = (
                f'n = gl.precision.number_from_bits("{self._number(values).bits}", '
                f'"{values["format"]}")'
            )
        else:
            steps = f", steps={values['steps']}" if values["steps"] else ""
            made = (
                f'n = gl.precision.number({float(values["value"])!r}, "{values["format"]}"{steps})'
            )
        beside = (
            "n"
            if values["beside"] == _NONE
            else f'[n, gl.precision.number(n.given, "{values["beside"]}")]'
        )
        return f"import gpulab as gl\n\n{made}\ngl.figures.number_line({beside})"


def _described(name: str) -> str:
    one = precision.format(name)
    fields = (
        f"{one.exponent_bits} exponent, {one.mantissa_bits} mantissa bits"
        if one.kind == "float"
        else "whole numbers"
    )
    return f"{name}: {fields}"


def _bit_name(one: precision.Format, place: int) -> str:
    """Return a bit's name: the sign, or its field and the power of two that it is worth there."""
    if one.kind == "integer":
        return f"{'-' if place == 0 else ''}{2 ** (one.bits - 1 - place)}"
    if place == 0:
        return "s"
    if place <= one.exponent_bits:
        return f"e{one.exponent_bits - place}"
    return f"m{place - one.exponent_bits}"


def _sentence(n: Number) -> str:
    if n.kind == "nan":
        return f"{n.format.name}: nan, not a number."
    if n.kind == "infinite":
        return f"{n.format.name}: infinite; the largest number is {n.format.largest:.6g}."
    if n.held == 0 and n.given != 0:
        return (
            f"{n.format.name}: zero; the smallest number is "
            f"{n.format.smallest_subnormal:.3g}, and half of it rounds to zero."
        )
    lost = n.relative_error
    return (
        f"{n.format.name}: {n.held:.10g}, "
        f"{'exactly' if lost == 0 else f'a relative error of {lost:.2g}'}."
    )
