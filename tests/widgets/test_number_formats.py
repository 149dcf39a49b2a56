"""NumberFormats: number, steps and bits are one state, whichever of them moved; the code shown makes the same picture."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from control_tables import offers_what_it_takes
from redraws import in_a_tenth_of_a_second

from gpulab import precision
from gpulab.errors import InputError
from gpulab.widgets import NumberFormats


def ticked(n: NumberFormats) -> str:
    """The bits that are ticked, as text."""
    width = precision.format(n.values["format"]).bits
    return "".join("1" if k in n.values["bits"] else "0" for k in range(width))


def test_number_and_bits_follow_each_other() -> None:
    """A typed number ticks its bits; ticking bits makes the number, up to infinity, nan and the negative zero."""
    n = NumberFormats(value=-1.5)
    assert ticked(n) == "1011111000000000"
    n.set(bits=(2, 3, 4, 5, 6))
    assert n.number.held == 1.5 == n.values["value"]
    assert 'gl.precision.number(1.5, "float16")' in n.code
    n.set(bits=(1, 2, 3, 4, 5))
    assert n.number.kind == "infinite"
    assert ticked(n) == "0111110000000000"
    assert "number_from_bits" in n.code
    n.set(steps=1)
    assert n.number.held == 1.5 + 1 / 1024, "a step is taken from the last number that the field could hold"
    n.set(bits=(1, 2, 3, 4, 5))
    n.set(format="bfloat16")
    assert n.number.kind == "normal"
    n.set(format="float16")
    n.set(bits=(1, 2, 3, 4, 5, 15))
    assert n.number.kind == "nan"
    assert n._results.message.startswith("float16: nan, not a number.")
    n.set(bits=(0,))
    assert math.copysign(1, n.number.held) == -1
    assert ticked(n) == "1" + "0" * 15
    n.set(value=2.0)
    assert ticked(n) == "0100000000000000"


def test_steps_walk_and_another_format_keeps_the_number() -> None:
    """Three steps above 1 in float16, ticked; another format has other bits; a new number starts at no steps."""
    n = NumberFormats(value=1.0, steps=3)
    assert n.number.held == 1 + 3 / 1024
    assert ticked(n) == f"{0x3C03:016b}"
    n.set(value=2.0)
    assert n.values["steps"] == 0
    n.set(format="int8")
    assert ticked(n) == "00000010"
    n.set(format="float32", value=0.1)
    assert ticked(n) == f"{int(np.float32(0.1).view(np.uint32)):032b}"


def test_every_bit_flips() -> None:
    """Each bit of a format alone gives the number that its code stands for."""
    n = NumberFormats(format="float8_e4m3fn", value=1.0)
    for place in range(8):
        n.set(bits=(place,))
        expected = float(precision.decode(1 << (7 - place), "float8_e4m3fn"))
        assert n.number.held == expected
        assert n.number.code == 1 << (7 - place)


@pytest.mark.parametrize("format", precision.formats())
@pytest.mark.parametrize("beside", ["none", "float32", "int8"])
def test_the_code_makes_the_number_on_the_screen(format: str, beside: str) -> None:
    """What "Show the code" prints gives the same bits, after steps and after a flip."""
    n = NumberFormats(format=format, beside=beside, value=3.3, steps=-2)
    for _ in range(2):
        names: dict[str, Any] = {}
        exec(n.code.rsplit("\n", 1)[0], names)
        assert names["n"].bits == n.number.bits
        assert len(n._results.headers) == (2 if beside == "none" else 3)
        n.set(bits=(0, 1))


def test_the_sentence_says_what_was_lost() -> None:
    """Rounding, overflow and underflow, each in words."""
    n = NumberFormats(value=2049.0, beside="none")
    assert n._results.message == "float16: 2048, off by 0.00049 of it."
    n.set(value=1.0)
    assert n._results.message == "float16: 1, exactly."
    n.set(value=0.0)
    assert n._results.message == "float16: 0, exactly."
    (spec,) = (control for control in n._panel.spec if control["name"] == "format")
    assert {"float16: 5 exponent, 10 mantissa bits", "int8: whole numbers"} < set(spec["options"])
    n.set(value=70000.0)
    assert "infinite; the largest number is 65504" in n._results.message
    n.set(value=1e-8)
    assert "zero; the smallest number is 5.96e-08" in n._results.message


@pytest.mark.parametrize("bad", [{"format": "half"}, {"value": "inf"}, {"steps": 17}, {"bits": (16,)}, {"beside": 3}])
def test_bad_values_are_refused_in_words(bad: dict[str, Any]) -> None:
    """One sentence, and the values stay."""
    n = NumberFormats()
    before = dict(n.values)
    with pytest.raises(InputError, match="expected"):
        n.set(**bad)
    assert n.values == before
    assert ticked(n) == n.number.bits


def test_it_redraws_within_a_tenth_of_a_second() -> None:
    """The best of ten moves, in this process's own time, so that a busy machine does not count."""
    n = NumberFormats(format="float32", beside="float16")
    assert in_a_tenth_of_a_second(lambda steps: n.set(steps=steps), range(1, 11))


@pytest.mark.parametrize(
    ("format", "names"),
    [
        ("int8", ["-128", "64", "32", "16", "8", "4", "2", "1"]),
        ("float8_e4m3fn", ["s", "e3", "e2", "e1", "e0", "m1", "m2", "m3"]),
        ("float8_e5m2", ["s", "e4", "e3", "e2", "e1", "e0", "m1", "m2"]),
    ],
)
def test_each_bit_is_named_by_what_it_is_worth(format: str, names: list[str]) -> None:
    """By hand: two's complement; sign, exponent and mantissa, each from the bit that is worth most. The names follow the format."""
    n = NumberFormats()
    n.set(format=format)
    (spec,) = (control for control in n._panel.spec if control["name"] == "bits")
    assert spec["options"] == names


def test_what_it_offers_it_takes() -> None:
    """Buttons and controls are those of its table, and each option and suggestion is taken as itself."""
    offers_what_it_takes(NumberFormats())
