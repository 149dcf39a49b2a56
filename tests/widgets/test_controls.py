"""The controls' gate: what is taken, what is refused, and with which words."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpulab.errors import InputError
from gpulab.widgets._controls import Choice, Control, GoneError, Number, Several, Slider, Switch

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
def test_a_real_number_survives_in_every_digit(x: float) -> None:
    """A number without bounds reads back from its field as itself."""
    control = Number(name="x", label="x", default=0.0)
    assert control.read(control.raw(x)) == x


@pytest.mark.parametrize(
    ("x", "text"),
    [(65519.99, "65519.99"), (0.1, "0.1"), (3.0, "3"), (1e-3, "0.001"), (2.0**-20, "9.5367431640625e-07"), (1e22, "1e+22"), (-7, "-7"),
     (10**15, "1000000000000000")],
)  # fmt: skip
def test_a_field_shows_a_number_as_people_write_it(x: float, text: str) -> None:
    """As short as it can be told: in six digits 65519.99, which float16 rounds to 65504, would be 65520, which overflows."""
    assert Number(name="x", label="x", default=0.0).raw(x) == text


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


def test_what_comes_with_its_text_is_found_by_it() -> None:
    """The list may be a newer one than the reader's: the text says what was meant, wherever it stands now; one that is gone is refused."""
    assert CHOICE.read({"index": 2, "text": "the third"}) == CHOICE.read({"index": 0, "text": "the third"}) == "c"
    assert SLIDER.read({"index": 3, "text": "64"}) == 64
    assert SEVERAL.read([{"index": 5, "text": "cuda:0"}, {"index": 1, "text": "cpu"}]) == ("cpu", "cuda:0")
    with pytest.raises(GoneError, match=r"^Kind: 'the fourth' is not there any more; expected one of a, b, the third\. Choose again\.$"):
        CHOICE.read({"index": 1, "text": "the fourth"})
    for raw in ({"index": 0}, {}, {"index": 0, "text": None}, {"index": [], "text": {}}):
        with pytest.raises(GoneError):
            CHOICE.read(raw)
    with pytest.raises(GoneError, match="'cuda:1' is not there any more"):
        SEVERAL.read([{"index": 0, "text": "cpu"}, {"index": 1, "text": "cuda:1"}])


def test_a_whole_number_of_numpy_names_the_option_that_it_equals() -> None:
    """What is kept is the option itself; a truth value of NumPy names none, though it equals 1."""
    chosen = SLIDER.check(np.int64(64))
    assert (chosen, type(chosen)) == (64, int)
    with pytest.raises(InputError, match="expected one of 1"):
        Choice(name="one", label="One", options=(1,)).check(np.True_)


def test_at_least_one_must_stay_ticked() -> None:
    """An empty selection is refused, an order of ticking is forgotten."""
    assert SEVERAL.check(["cuda:0", "cpu"]) == ("cpu", "cuda:0")
    with pytest.raises(InputError, match="expected at least 1"):
        SEVERAL.check([])
    assert Several(name="x", label="X", options=("a", "b")).check([]) == ()  # where nothing is said of how many


def test_what_the_panel_gets_is_json() -> None:
    """Each description can travel, infinities included."""
    for control in (CHOICE, SLIDER, NUMBER, SWITCH, SEVERAL, Number(name="x", label="x", default=0.0)):
        text = json.dumps({**control.describe(), "raw": control.raw(control.initial)}, allow_nan=False)
        assert control.name in text


def test_each_kind_describes_itself_to_the_panel() -> None:
    """The whole description of each kind, as the script in the browser reads it."""
    named = {"name": "x", "label": "X", "help": "H."}
    few = ("a", ("b", "the b"))
    number = {"kind": "number", "unit": "", "integer": False, "suggestions": [], "min": None, "max": None}
    for control, expected in (
        (Choice(**named, options=few), {"kind": "choice", "options": ["a", "the b"]}),
        (Choice(**named, options=few, radio=True), {"kind": "radio", "options": ["a", "the b"]}),
        (Slider(**named, options=few), {"kind": "slider", "options": ["a", "the b"]}),
        (Several(**named, options=few), {"kind": "several", "options": ["a", "the b"]}),
        (Switch(**named), {"kind": "switch"}),
        (Number(**named, default=1.0), number),
        (
            Number(**named, default=1, minimum=0, maximum=9, integer=True, unit="ms", suggestions=(1, 2)),
            {**number, "unit": "ms", "integer": True, "suggestions": [1, 2], "min": 0, "max": 9},
        ),
    ):
        assert control.describe() == {**named, **expected}


def test_each_kind_begins_with_its_default() -> None:
    """A default that is not among the options gives way to the first of them; of several, only those that there are are ticked."""
    assert (CHOICE.initial, SLIDER.initial, NUMBER.initial, SWITCH.initial, SEVERAL.initial) == ("b", 64, 8, False, ("cpu",))
    assert Choice(name="x", label="X", options=("a", "b"), default="gone").initial == "a"
    assert Several(name="x", label="X", options=("a", "b")).initial == ()
    assert Several(name="x", label="X", options=("a", "b"), default=("gone", "b")).initial == ("b",)
    assert Switch(name="x", label="X", default=True).initial is True
    assert Number(name="x", label="X", default=0.5).check("0.25") == 0.25


def test_what_a_control_decides_and_where_it_is_shown() -> None:
    """By default all actions and every view; else those named; what only shows decides none."""
    plain, some = Switch(name="x", label="X"), Switch(name="x", label="X", for_actions=("fit",), views=("sweep",))
    assert (plain.decides("run"), plain.on_screen("any"), plain.on_screen(None)) == (True, True, True)
    assert (some.decides("fit"), some.decides("run")) == (True, False)
    assert (some.on_screen("sweep"), some.on_screen("other"), some.on_screen(None)) == (True, False, True)
    assert not Switch(name="x", label="X", shows_only=True).decides("run")
    assert not Switch(name="x", label="X", shows_only=True, for_actions=("run",)).decides("run")


def test_a_kind_without_a_gate_of_its_own_takes_nothing() -> None:
    """The parent of all kinds neither begins with a value nor lets one pass."""
    with pytest.raises(NotImplementedError):
        _ = Control(name="x", label="X").initial
    for gate in (Control(name="x", label="X").check, Control(name="x", label="X").read):
        with pytest.raises(NotImplementedError):
            gate(1)


@pytest.mark.parametrize(
    ("bounds", "words"),
    [
        ({}, "a number"), ({"minimum": 0}, "a number of at least 0"), ({"maximum": 2.5, "integer": True}, "a whole number of at most 2.5"),
        ({"minimum": 0, "maximum": 1e16}, "a number from 0 to 1e+16"),
    ],
)  # fmt: skip
def test_a_refused_number_is_told_the_bounds_that_there_are(bounds: dict[str, object], words: str) -> None:
    """None, one of them, or both. What is no number comes from a browser's field as nothing, so it is not said that nothing was typed."""
    with pytest.raises(InputError, match=f"^x: no number was typed; expected {re.escape(words)}\\. Type one, such as 1\\.$"):
        Number(name="x", label="x", default=1, **bounds).check("")  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"^x: 'five' will not do; expected"):
        Number(name="x", label="x", default=1).check("five")


def test_bounds_are_inside_and_indices_are_not_beyond() -> None:
    """1 and 100 are taken; of three options 0 and 2; true is no index; of very many options the first and the last are named."""
    assert (NUMBER.check(1), NUMBER.check(100)) == (1, 100)
    assert (CHOICE.read(0), CHOICE.read(2.0)) == ("a", "c")
    assert [CHOICE.raw(value) for value in ("a", "b", "c")] == [0, 1, 2]
    assert SEVERAL.raw(("cpu", "cuda:0")) == [0, 1]
    assert SEVERAL.read([1, 0]) == ("cpu", "cuda:0")
    assert SEVERAL.read(1) == SEVERAL.check("cuda:0") == ("cuda:0",)
    for raw in (True, -1, 3, "0"):
        with pytest.raises(InputError, match="expected 0 to 2"):
            CHOICE.read(raw)
    with pytest.raises(InputError, match=r"expected one of 0, 1, 2, \.\.\., 40\. "):
        Slider(name="x", label="x", options=range(41)).check(99)
    with pytest.raises(InputError, match=r"expected one of 0, 1, 2, 3, .*38, 39\. "):
        Slider(name="x", label="x", options=range(40)).check(99)


def test_options_of_one_text_are_told_apart() -> None:
    """Two recordings of one processor each say their own name; what is unlike the others stays as it is."""
    control = Choice(name="x", label="X", options=(("a-1", "EPYC"), ("a-2", "EPYC"), ("b", "H200")))
    assert control.describe()["options"] == ["EPYC, a-1", "EPYC, a-2", "H200"]
    assert (control.check("EPYC, a-2"), control.check("a-1"), control.read(1)) == ("a-2", "a-1", "a-2")
    with pytest.raises(InputError, match="expected one of EPYC, a-1, EPYC, a-2, H200"):
        control.check("EPYC")
