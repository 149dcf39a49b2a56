"""The controls' gate: what is taken, what is refused, and with which words."""

from __future__ import annotations

import json
import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpulab.errors import InputError
from gpulab.widgets._controls import Choice, Number, Several, Slider, Switch

CHOICE = Choice(name="kind", label="Kind", options=("a", "b", ("c", "the third")), default="b")
SLIDER = Slider(name="size", label="Size", options=[(64, "64"), (128, "128")])
NUMBER = Number(name="n", label="Size n", default=8, minimum=1, maximum=100, integer=True)
SWITCH = Switch(name="on", label="On")
SEVERAL = Several(name="devices", label="Devices", options=("cpu", "cuda:0"), default=("cpu",), least=1)

anything = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.lists(st.integers()), st.dictionaries(st.text(), st.integers())
)


@given(anything)
def test_anything_is_taken_or_refused_in_one_sentence(value: object) -> None:
    """Whatever comes from Python or the browser gives a value of the control's own kind, or an InputError of one line."""
    for control in (CHOICE, SLIDER, NUMBER, SWITCH, SEVERAL):
        for gate in (control.check, control.read):
            taken, refusal = _outcome(gate, value)
            if refusal is None:
                assert control.check(taken) == taken
            else:
                assert refusal.startswith(control.label)
                assert "expected" in refusal


def _outcome(gate: Callable[[object], object], value: object) -> tuple[object, str | None]:
    try:
        return gate(value), None
    except InputError as error:
        return None, str(error)


@given(st.integers(1, 100))
def test_a_number_survives_the_way_to_the_browser_and_back(n: int) -> None:
    """The text in the field reads back as the same number."""
    assert NUMBER.read(NUMBER.raw(NUMBER.check(n))) == n


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_real_number_survives_to_six_digits(x: float) -> None:
    """A number without bounds reads back as what its field shows, six digits at least."""
    control = Number(name="x", label="x", default=0.0)
    assert math.isclose(control.read(control.raw(x)), x, rel_tol=1e-5, abs_tol=1e-300)


@pytest.mark.parametrize("value", [0, 101, 1.5, "abc", "", None, True, math.nan, math.inf, "1e400", [3]])
def test_a_number_out_of_bounds_is_refused(value: object) -> None:
    """Bounds, fractions, words, nothing, truth values and infinities are told what was expected."""
    with pytest.raises(InputError, match=r"Size n: .*expected a whole number from 1 to 100\. Type one, such as 8\."):
        NUMBER.check(value)


@pytest.mark.parametrize(("value", "taken"), [("1,0", 10), (" 7 ", 7), ("1e1", 10), (99.0, 99)])
def test_a_number_is_read_as_people_write_it(value: object, taken: int) -> None:
    """Thousands commas, blanks and exponents are understood."""
    assert NUMBER.check(value) == taken


def test_an_option_is_named_by_value_or_by_text() -> None:
    """From Python both the value and the words that the reader sees will do; from the browser comes the index."""
    assert CHOICE.check("c") == CHOICE.check("the third") == CHOICE.read(2) == "c"
    with pytest.raises(InputError, match="expected one of a, b, the third"):
        CHOICE.check("d")
    with pytest.raises(InputError, match="Choose again"):
        CHOICE.read(3)


def test_at_least_one_must_stay_ticked() -> None:
    """An empty selection is refused, an order of ticking is forgotten."""
    assert SEVERAL.check(["cuda:0", "cpu"]) == ("cpu", "cuda:0")
    with pytest.raises(InputError, match="expected at least 1"):
        SEVERAL.check([])


def test_what_the_panel_gets_is_json() -> None:
    """Each description can travel, infinities included."""
    for control in (CHOICE, SLIDER, NUMBER, SWITCH, SEVERAL, Number(name="x", label="x", default=0.0)):
        text = json.dumps({**control.describe(), "raw": control.raw(control.initial)}, allow_nan=False)
        assert control.name in text
