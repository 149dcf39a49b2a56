"""The codec and the table that every result shares."""

import dataclasses
import enum
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html.parser import HTMLParser
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpulab.errors import InputError, RecordingError
from gpulab.evidence import Badge, Evidence, Note
from gpulab.results import Result, html_badge, html_caption, html_table, shortened


class Colour(enum.Enum):
    """A small enum for the tests."""

    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True)
class Inner(Result):
    """A result inside a result."""

    x: float


@dataclass(frozen=True)
class Everything(Result):
    """One field for each kind of hint that results use."""

    flag: bool
    count: int
    rate: float
    text: str
    maybe: float | None
    colour: Colour
    inner: Inner
    inners: tuple[Inner, ...]
    pair: tuple[float, float] | None
    mixed: str | float
    rates: Mapping[str, float]
    by_number: Mapping[int, str]
    by_colour: Mapping[Colour, int]
    listed: list[int]
    sequence: Sequence[str]
    word: Literal["yes", "no"]
    anything: Any


_FLOATS = st.floats(allow_nan=False)
_EVERYTHING = st.builds(
    Everything,
    flag=st.booleans(),
    count=st.integers(),
    rate=_FLOATS,
    text=st.text(),
    maybe=st.none() | _FLOATS,
    colour=st.sampled_from(Colour),
    inner=st.builds(Inner, _FLOATS),
    inners=st.lists(st.builds(Inner, _FLOATS), max_size=3).map(tuple),
    pair=st.none() | st.tuples(_FLOATS, _FLOATS),
    mixed=st.text() | _FLOATS.filter(math.isfinite),
    rates=st.dictionaries(st.text(), _FLOATS, max_size=3),
    by_number=st.dictionaries(st.integers(), st.text(), max_size=3),
    by_colour=st.dictionaries(st.sampled_from(Colour), st.integers()),
    listed=st.lists(st.integers(), max_size=3),
    sequence=st.lists(st.text(), max_size=3),
    word=st.sampled_from(["yes", "no"]),
    anything=st.none() | st.text() | st.lists(st.integers(), max_size=2),
)
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)


@given(_EVERYTHING)
def test_every_kind_of_field_survives_json(result):
    """to_dict, JSON text and from_dict give an equal object, with strict JSON (no NaN literals) in between."""
    text = json.dumps(result.to_dict(), allow_nan=False)
    assert Everything.from_dict(json.loads(text)) == result


@dataclass(frozen=True)
class Samples(Result):
    """A result with an array."""

    values: np.ndarray


@pytest.mark.parametrize("shape", [(0,), (5,), (2, 3), (2, 2, 2)])
def test_arrays_come_back_with_shape_and_special_values(shape):
    """Arrays of any rank come back as float64; nan and infinities pass through JSON as words."""
    values = np.arange(np.prod(shape), dtype=float).reshape(shape)
    if values.size > 4:
        values.flat[:3] = [np.nan, np.inf, -np.inf]
    back = Samples.from_dict(json.loads(json.dumps(Samples(values).to_dict(), allow_nan=False)))
    np.testing.assert_array_equal(back.values, values)
    assert back.values.dtype == np.float64


@pytest.mark.parametrize("bad", ["text", 3, [[1, 2], [3]], [True], [{}], [10**400], None])
def test_damaged_arrays_are_refused(bad):
    """A ragged, boolean, nested-object or oversized list is a RecordingError that names the field."""
    with pytest.raises(RecordingError, match=r"Samples\.values"):
        Samples.from_dict({"schema": "Samples", "schema_version": 1, "values": bad})


def test_a_list_deeper_than_any_array_is_refused_without_overflowing_the_stack():
    """Five thousand nested lists raise RecordingError, not RecursionError."""
    deep: list = []
    for _ in range(5000):
        deep = [deep]
    with pytest.raises(RecordingError):
        Samples.from_dict({"schema": "Samples", "schema_version": 1, "values": deep})


@given(st.sampled_from([f.name for f in dataclasses.fields(Everything)]), _JSON)
def test_one_foreign_value_in_a_file_gives_an_object_or_recording_error(name, value):
    """Whatever JSON stands in one field, from_dict returns an object of the right types or raises RecordingError."""
    good = Everything(
        True, 1, 1.0, "t", None, Colour.RED, Inner(1.0), (), None, 1.0, {}, {}, {}, [], [], "yes", None
    ).to_dict()  # fmt: skip
    try:
        result = Everything.from_dict({**good, name: value})
    except RecordingError:
        return
    assert Everything.from_dict(json.loads(json.dumps(result.to_dict()))).to_dict() == result.to_dict()
    assert isinstance(result.rate, float)
    assert isinstance(result.count, int)
    assert not isinstance(result.count, bool)


@pytest.mark.parametrize(
    "change",
    [
        {"schema": "Other"},
        {"schema_version": 2},
        {"schema_version": 0},
        {"schema_version": True},
        {"schema_version": "1"},
        {"extra": 1},
        {3: 1},
    ],
)
def test_another_schema_or_version_or_field_is_refused(change):
    """A file of another class, from the future, or with unknown fields is refused by name."""
    with pytest.raises(RecordingError, match="Inner"):
        Inner.from_dict({"schema": "Inner", "schema_version": 1, "x": 1.0, **change})


@pytest.mark.parametrize("data", [None, [], "Inner", 7, {}, {"schema": "Inner", "schema_version": 1}])
def test_what_is_no_result_is_refused(data):
    """JSON that is not an object of this schema, or lacks a field, is a RecordingError."""
    with pytest.raises(RecordingError):
        Inner.from_dict(data)


def test_a_value_that_the_class_itself_refuses_is_a_recording_error():
    """An error of the class's own check surfaces as a damaged file."""
    data = Evidence.measured("cpu").to_dict()
    with pytest.raises(RecordingError, match="MEASURED without device"):
        Evidence.from_dict({**data, "device": ""})


def test_the_word_nan_stays_text_where_text_is_allowed():
    """A field of text or number keeps the text "nan" as text."""
    assert Everything.__dataclass_fields__["mixed"].type in ("str | float", str | float)
    good = Everything(True, 1, 1.0, "t", None, Colour.RED, Inner(1.0), (), None, "nan", {}, {}, {}, [], [], "yes", None)
    assert Everything.from_dict(good.to_dict()).mixed == "nan"


@pytest.mark.parametrize("bad", [object(), {1, 2}, 1j, b"x", np.array([1j]), np.array(["a"]), {(1, 2): 3}, {True: 1}])
def test_what_json_cannot_hold_is_refused_when_written(bad):
    """Encode raises TypeError for values that from_dict could not give back."""

    @dataclass(frozen=True)
    class Holder(Result):
        value: Any

    with pytest.raises(TypeError, match="encode"):
        Holder(bad).to_dict()


class _Outline(HTMLParser):
    """Collects tags, scopes and text, and fails on a tag that is never closed."""

    def __init__(self, text):
        super().__init__()
        self.open, self.scopes, self.words = [], [], []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)
        self.scopes += [value for name, value in attrs if name == "scope"]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


def test_a_table_escapes_its_text_and_names_rows_and_columns():
    """Hostile text cannot become markup; each row and column has a header that a screen reader announces."""
    hostile = '<script>alert("x")</script>'
    text = html_table(("", "value"), [("name", hostile), (hostile, "2")], hostile)
    outline = _Outline(text)
    assert "<script" not in text
    assert outline.scopes == ["col", "row", "row"]
    assert hostile in "".join(outline.words)


def test_a_long_note_takes_the_room_of_the_empty_cells_behind_it():
    """A row with one long text among columns of numbers spans them, so that no column becomes as wide as the note."""
    note = "a sentence that is much longer than any of the numbers above it"
    text = html_table(("", "copy", "read", "triad"), [("DRAM", "1 GB/s", "2 GB/s", "3 GB/s"), ("note", note, "", "")])
    assert text.count("colspan") == 1
    assert text.index('colspan="3"') < text.index(note)
    assert text.count("<td") == 3 + 1 + 1  # three numbers, one note, and the empty corner of the head
    _Outline(text)


def test_a_long_caption_folds_and_loses_nothing():
    """A model's long assumptions unfold below a short line that keeps the badge; a short caption stays one line."""
    assumptions = "MODELLED · assumes " + ", ".join(f"premise {i}" for i in range(60))
    shown = html_caption(assumptions)
    folded, _, whole = shown.partition("</summary>")
    assert html_badge("MODELLED") in folded
    assert "premise 59" not in folded
    assert "premise 59" in whole
    assert "<details" not in html_caption("MEASURED on a device · n = 4")
    _Outline(shown)


def test_the_three_badges_are_drawn_apart_without_colour():
    """MEASURED is filled, RECORDED outlined, MODELLED dashed; colours come from the theme, so no bright boxes."""
    drawn = {badge: html_badge(badge.value) for badge in Badge}
    assert "solid" in drawn[Badge.MEASURED]
    assert "background:var(" in drawn[Badge.MEASURED]
    assert "background:transparent" in drawn[Badge.RECORDED]
    assert "dashed" in drawn[Badge.MODELLED]
    assert "dashed" not in drawn[Badge.RECORDED]


def test_a_result_with_evidence_shows_its_badge_under_the_table():
    """The caption of a result starts with the drawn badge and says the device."""

    @dataclass(frozen=True)
    class Speed(Result):
        rate: float
        evidence: Evidence

    shown = Speed(3.0, Evidence.measured("a <fast> device", samples=4))._repr_html_()
    assert html_badge("MEASURED") in shown
    assert "a &lt;fast&gt; device · n = 4" in shown
    _Outline(shown)


def test_notes_with_codes_from_the_future_still_load():
    """A note whose code this version does not know is kept and shown."""
    note = Note.from_dict({"schema": "Note", "schema_version": 1, "code": "novel", "sentence": "New."})
    assert str(note) == "novel: New."


def test_input_error_is_also_a_value_error():
    """Code that knows only built-in exceptions still catches ours."""
    assert issubclass(InputError, ValueError)
    assert issubclass(RecordingError, ValueError)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"count": "x"}, "Everything.count: found 'x'; expected int."),
        ({"inners": [Inner(1.0).to_dict(), 5]}, "Everything.inners[1]: found 5; expected Inner."),
        ({"pair": [1.0, 2.0, 3.0]}, "Everything.pair: found [1.0, 2.0, 3.0]; expected tuple[float, float]."),
        ({"pair": [1.0, "x"]}, "Everything.pair[1]: found 'x'; expected float."),
        ({"listed": [1, True]}, "Everything.listed[1]: found True; expected int."),
        ({"listed": "12"}, "Everything.listed: found '12'; expected list[int]."),
        ({"rates": {"a": "b"}}, "Everything.rates.a: found 'b'; expected float."),
        ({"rates": []}, "Everything.rates: found []; expected dict."),
        ({"by_number": {"x": "a"}}, "Everything.by_number: found 'x'; expected int."),
        ({"colour": "green"}, "Everything.colour: found 'green'; expected Colour."),
        ({"word": "no!"}, "Everything.word: found 'no!'; expected Literal['yes', 'no']."),
        ({"inner": None}, "Everything.inner: found None; expected Inner."),
        ({"schema_version": 2}, "Everything: schema version 2; gpulab reads 1 to 1. Update gpulab to read the file."),
        ({"extra": 1}, "Everything: fields that are missing or unknown: ['extra']."),
    ],
)
def test_what_is_damaged_is_named_with_its_place(change, says):
    """The field, the index or the key; what stands there, and what was expected."""
    good = Everything(True, 1, 1.0, "t", None, Colour.RED, Inner(1.0), (), None, 1.0, {}, {}, {}, [], [], "yes", None).to_dict()
    with pytest.raises(RecordingError) as refused:
        Everything.from_dict({**good, **change})
    found = str(refused.value).replace("Everything.by_number.x:", "Everything.by_number:")
    assert found.startswith(says)
    assert found == says or found == f"{says} The file is damaged or was written by another version."


def test_what_is_written_is_plain_json():
    """Enums by value, keys as text, NumPy's numbers as Python's, what is not finite as a word."""
    made = Everything(True, np.int64(2), math.inf, "t", -math.inf, Colour.RED, Inner(math.nan), (Inner(1.0),), (1.0, 2.0), "m", {"a": 1.5},
                      {3: "b"}, {Colour.BLUE: 4}, [5], ("c",), "no", [np.float64(0.5)])  # fmt: skip
    inner = {"schema": "Inner", "schema_version": 1}
    assert made.to_dict() == {
        "schema": "Everything", "schema_version": 1, "flag": True, "count": 2, "rate": "inf", "text": "t", "maybe": "-inf", "colour": "red",
        "inner": {**inner, "x": "nan"}, "inners": [{**inner, "x": 1.0}], "pair": [1.0, 2.0], "mixed": "m", "rates": {"a": 1.5},
        "by_number": {"3": "b"}, "by_colour": {"blue": 4}, "listed": [5], "sequence": ["c"], "word": "no", "anything": [0.5],
    }  # fmt: skip


def test_a_file_of_an_earlier_version_does_without_later_fields():
    """One with a default only; a file of this version has them all."""

    @dataclass(frozen=True)
    class Grown(Result):
        schema_version = 2
        x: float
        later: float = 3.0

    old = {"schema": "Grown", "schema_version": 1, "x": 1.0}
    assert Grown.from_dict(old) == Grown(1.0, 3.0)
    assert Grown.from_dict({**old, "later": 4.0}) == Grown(1.0, 4.0)
    with pytest.raises(RecordingError, match=r"missing or unknown: \['later'\]"):
        Grown.from_dict({**old, "schema_version": 2})
    with pytest.raises(RecordingError, match=r"missing or unknown: \['x'\]"):  # later may be absent, and is not named
        Grown.from_dict({"schema": "Grown", "schema_version": 1})


def test_a_result_without_a_table_of_its_own_shows_its_fields():
    """A row for each; no caption where there is no evidence; a cell of 26 characters is kept on one line, and one of 27 is not."""
    assert Inner(3.0).table() == (("", ""), [("x", "3.0")])
    assert Inner(3.0).caption() == ""
    shown = Inner(3.0)._repr_html_()
    assert "figcaption" not in shown
    assert "<thead>" not in shown
    assert [html_table((), [("x", "a" * n)]).count("white-space:nowrap") for n in (26, 27)] == [2, 1]
    assert html_table((), [("x", "a" * 27)]).count("min-width:10em") == 1
    assert html_table((), []).count("<tbody></tbody>") == 1


def test_a_caption_folds_from_181_characters_on():
    """To 110 at most, between two words."""
    words = "abcd " * 36
    assert shortened(words) == ""
    assert shortened(words + "e") == "abcd " * 21 + "…"
    assert html_caption("MEASURED · a <b>") == f"{html_badge('MEASURED')} a &lt;b&gt;"
    assert html_caption("measured <b>") == "measured &lt;b&gt;"
