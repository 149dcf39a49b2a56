"""Predictions: kept before the measurement shows, the first answer stays, junk is refused in one sentence."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpulab import lessons
from gpulab.devices import environment
from gpulab.errors import GpulabError, InputError
from gpulab.evidence import Badge, Evidence
from gpulab.lessons import _predictions, _quantities, _reveal, _store, content
from gpulab.lessons.content import Question, Reading
from gpulab.timing.results import Measurement


def _measurement(seconds: float) -> Measurement:
    made = Evidence.measured("a CPU", 1)
    samples = np.array([seconds])
    return Measurement("call", "cpu", samples, seconds, None, seconds, seconds, None, 1, None, None, (), made, environment("cpu"))


@pytest.mark.parametrize(
    ("unit", "answer", "base"),
    [
        ("s", 5, 5.0), ("ms", 5, 5e-3), ("ns", 5, 5e-9), ("B", 5, 5.0), ("kB", 5, 5e3), ("MB", 5, 5e6), ("GB", 5, 5e9),
        ("B/s", 5, 5.0), ("MB/s", 5, 5e6), ("TB/s", 5, 5e12), ("times", "5", 5.0),
        ("us", 5, 5e-6),
        ("us", "5", 5e-6),
        ("us", "5 us", 5e-6),
        ("us", "0.005ms", 5e-6),
        ("us", " 5 µs ", 5e-6),
        ("ms", "1e-3 s", 1e-3),
        ("MiB", 2, 2 * 2**20),
        ("MiB", "2 GiB", 2 * 2**30),
        ("KiB", "64 kB", 64e3),
        ("KiB", 3, 3 * 1024),
        ("GiB", 1, 1024**3),
        ("GB/s", "25", 25e9),
        ("GB/s", "25 GB/s", 25e9),
        ("GB/s", "800 MB/s", 800e6),
        ("x", "1,000x", 1000.0),
        ("x", "10 times", 10.0),
        ("x", "3×", 3.0),
        ("x", "12,345,678.5x", 12345678.5),
        ("%", "80%", 80.0),
        ("%", "80 percent", 80.0),
        ("elements", "1,000,000", 1e6),
        ("elements", "12 elements", 12.0),
        ("", np.float32(3), 3.0),
    ],
)  # fmt: skip
def test_answers_are_read_with_and_without_their_unit(unit: str, answer: object, base: float):
    """A bare number has the question's unit; another prefix of the same kind is converted (values by hand)."""
    assert _quantities.unit(unit).parse(answer) == pytest.approx(base, rel=1e-12)


@pytest.mark.parametrize(
    ("unit", "base"), [("us", 42e-6), ("MiB", 42 * 2**20), ("GB/s", 42e9), ("x", 42.0), ("%", 42.0), ("calls", 42.0), ("", 42.0)]
)
def test_the_example_of_a_unit_can_be_answered(unit: str, base: float) -> None:
    """What the placeholder shows is 42 of that unit, whatever is asked."""
    assert _quantities.unit(unit).parse(_quantities.unit(unit).example) == pytest.approx(base)


def test_one_of_a_thing_is_singular() -> None:
    """A count of one is told in the singular, any other in the plural."""
    digits = _quantities.unit("digits")
    assert [digits.format(count) for count in (0.0, 1.0, 2.0)] == ["0 digits", "1 digit", "2 digits"]
    words = {
        "passes": "pass", "losses": "loss", "batches": "batch", "branches": "branch", "searches": "search", "flushes": "flush",
        "boxes": "box", "caches": "cache", "phases": "phase", "copies": "copy", "bytes": "byte", "registers": "register", "loss": "loss",
    }  # fmt: skip
    assert {name: _quantities.unit(name).format(1.0) for name in words} == {name: f"1 {word}" for name, word in words.items()}
    assert {name: _quantities.unit(name).format(2.0) for name in words} == {name: f"2 {name}" for name in words}
    assert {_quantities.unit(name).parse(f"1 {word}") for name, word in words.items()} == {1.0}, "what is shown can be typed"


def test_a_count_of_millions_has_no_exponent():
    """As the break-even of a compilation may be; what is shown can be typed."""
    calls = _quantities.unit("calls")
    words = {
        999.5: "999.5 calls",
        999_999.0: "999,999 calls",
        999_999.9: "1,000,000 calls",
        1_234_567.0: "1,234,567 calls",
        0.95e15: "950,000,000,000,000 calls",
        1.05e15: "1.05e+15 calls",
        1e30: "1e+30 calls",
    }
    assert {value: calls.format(value) for value in words} == words
    assert calls.parse("1,234,567 calls") == 1_234_567


def test_three_digits_of_a_share_are_told_and_all_of_a_thousand_per_cent():
    """Of what rounds to a thousand there is no exponent."""
    share = _quantities.unit("%")
    words = {0.12345: "0.123 %", 99.96: "100 %", 999.4: "999 %", 999.5: "1,000 %", 1050.0: "1,050 %", 123_456.0: "123,456 %"}
    assert {value: share.format(value) for value in words} == words


@pytest.mark.parametrize(
    ("unit", "answers"),
    [
        ("us", ("soon", "5 u", "5 GB", "", "-5", -1, math.nan, math.inf, "1e999", True, None, [1], "5 5", "+")),
        ("x", ("5 ms",)),
        ("GB/s", ("5 s",)),
        ("MiB", ("5 MB/s",)),
        ("elements", ("5 apples",)),
        ("%", ("1..2",)),
    ],
)
def test_an_answer_that_does_not_fit_is_refused(unit: str, answers: tuple[object, ...]):
    """The refusal is one InputError that says what was expected and what to do."""
    for answer in answers:
        with pytest.raises(InputError, match=r"expected .* (Answer|Write)"):
            _quantities.unit(unit).parse(answer)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("unit", "answers", "says"),
    [
        (
            "us",
            ("0,125", "0,125 us", "1234,567", "1,5", "1,5 us", "1,2345", "1.000,5", "1,000,50"),
            "expected a decimal point, such as 1.5",
        ),
        ("x", ("0,125x", "00,125x"), "a comma parts thousands: 1,500"),
        ("%", ("1,5 %",), "Write it with a point."),
        ("us", ("1 000 us", "1 000", "5 5"), "Write the number without spaces."),
    ],
)
def test_a_decimal_comma_and_a_space_are_refused_by_their_name(unit: str, answers: tuple[str, ...], says: str):
    """No answer is read as another number, and the refusal names what is wrong with it: not the unit."""
    for answer in answers:
        with pytest.raises(InputError, match=re.escape(says)):
            _quantities.unit(unit).parse(answer)


def test_the_first_answer_stays(capsys: pytest.CaptureFixture[str]):
    """A later answer is kept apart and not counted."""
    asked = lessons.predict("90.1", "How long?", unit="us")
    lessons.answer("90.1", "5 us")
    lessons.answer("90.1", 7)
    assert asked.answer is not None
    assert asked.answer.value == pytest.approx(5e-6)
    assert [kept.value for kept in asked.later] == [pytest.approx(7e-6)]
    assert "stays" in capsys.readouterr().out


def test_the_same_answer_twice_is_one_answer():
    """Repeating the first answer adds nothing."""
    asked = lessons.predict("90.1", "How long?", unit="us")
    asked.submit(5)
    asked.submit("5 us")
    assert asked.later == ()


def test_an_answer_after_the_measurement_does_not_count():
    """Once the measurement was shown, an answer is kept apart."""
    asked = lessons.predict("90.1", "How long?", unit="us")
    lessons.reveal("90.1", 3e-6)
    assert "already shown" in asked.submit(3)
    assert asked.answer is None
    assert lessons.reveal("90.1", 3e-6).verdict == "no prediction"


def test_run_all_without_an_answer_goes_on():
    """With no prediction the reveal says so, shows the measurement and raises nothing."""
    lessons.predict("90.1", "How long?", unit="us")
    shown = lessons.reveal("90.1", 3e-6)
    assert shown.predicted is None
    assert "no prediction" in repr(shown)
    assert "3.00 us" in shown._repr_html_()


def test_reveal_works_without_the_question():
    """A reveal whose question cell did not run still shows the measurement."""
    assert lessons.reveal("90.9", 12).measured == 12.0


@pytest.mark.parametrize(
    ("measured", "base"),
    [(3e-6, 3e-6), ("3 us", 3e-6), (np.float64(3e-6), 3e-6), (_measurement(3e-6), 3e-6)],
)
def test_reveal_takes_numbers_text_and_measurements(measured: object, base: float):
    """A plain number is in base units, text has a unit, a measurement counts with its median."""
    lessons.predict("90.1", "How long?", unit="us")
    lessons.answer("90.1", 1)
    shown = lessons.reveal("90.1", measured)
    assert shown.measured == pytest.approx(base)
    assert shown.ratio == pytest.approx(3.0)
    assert "3.00x too little" in shown.sentence


def test_the_badge_of_the_measurement_is_shown():
    """What was measured carries its evidence into the reveal."""
    lessons.predict("90.1", "How long?", unit="us")
    html = lessons.reveal("90.1", _measurement(3e-6))._repr_html_()
    assert "MEASURED" in html
    assert "on a CPU" in html


def test_a_models_assumptions_are_folded_under_the_reveal():
    """The badge and the beginning are seen, the paragraph unfolds."""
    lessons.predict("90.1", "How long?", unit="us")
    shown = lessons.reveal("90.1", 3e-6, evidence=Evidence.modelled("a round Earth " * 30, "a globe"))
    seen, _, folded = shown._repr_html_().partition("</summary>")
    assert "MODELLED" in seen
    assert seen.count("a round Earth") < 10
    assert folded.count("a round Earth") == 30
    assert "a globe" in folded


def test_two_measured_sides_are_one_badge():
    """Where both sides are measured the answer is MEASURED, and each device has its line."""
    lessons.predict("90.2", "Which?", choices=["the CPU", "the GPU"])
    sides = {"the CPU": Evidence.measured("A CPU", 9), "the GPU": Evidence.measured("A GPU", 5)}
    shown = lessons.reveal("90.2", "the GPU", evidence=sides)
    assert shown.table()[0][-1] == "the answer (MEASURED)"
    assert [line.partition(": ")[2] for line in shown.captions()] == ["on A CPU · n = 9", "on A GPU · n = 5"]


def test_an_answer_is_as_good_as_its_weakest_side():
    """Measured against recorded is recorded, and against a model modelled."""
    lessons.predict("90.2", "Which?", choices=["the CPU", "the GPU"])
    here, there = Evidence.measured("A CPU"), Evidence(Badge.RECORDED, "A GPU", date="2026-11-01")
    for other in (there, Evidence.modelled("a link", "a book")):
        shown = lessons.reveal("90.2", "the GPU", evidence={"the CPU": here, "the GPU": other})
        assert shown.evidence == other
        assert f"the GPU {other.badge}" in shown.table()[0][-1]


def test_an_exponent_without_a_number_is_refused_in_a_sentence():
    """It looks like the end of a number, and is none by Python's rules."""
    with pytest.raises(InputError, match=r"predict: cannot read 'e5'; expected a number"):
        lessons.predict("90.1", "How long?", unit="us").submit("e5")


def test_a_side_without_evidence_is_refused():
    """What is no evidence is named with what to pass."""
    lessons.predict("90.2", "Which?", choices=["the CPU", "the GPU"])
    with pytest.raises(InputError, match="expected the evidence of each side"):
        lessons.reveal("90.2", "the GPU", evidence={"the CPU": 3.0})  # type: ignore[dict-item]


@pytest.mark.parametrize("measured", [math.nan, math.inf, [1, 2], object(), {}])
def test_reveal_refuses_what_is_no_measurement(measured: object):
    """nan, infinity and other objects are refused with what to pass."""
    lessons.predict("90.1", "How long?", unit="us")
    with pytest.raises(InputError, match="expected"):
        lessons.reveal("90.1", measured)


def test_what_could_not_be_measured_is_said():
    """None means not measured here; the question stays open for a machine that can."""
    asked = lessons.predict("90.1", "How long?", unit="us")
    lessons.answer("90.1", 1)
    shown = lessons.reveal("90.1", None, reason="no accelerator on this machine")
    assert shown.verdict == "not measured"
    assert "no accelerator" in shown.measured_text
    assert asked.revealed is None


def test_that_there_is_no_such_number_is_an_answer(monkeypatch: pytest.MonkeyPatch):
    """A measurement that found none is MEASURED, closes the question, and is nothing to compare a number with."""

    def never(_: object) -> float:
        raise content.Never("never: no call was faster")

    monkeypatch.setattr(content, "question", lambda id: content.Question(id, outcome=never))
    asked = lessons.predict("90.1", "After how many calls?", unit="calls")
    lessons.answer("90.1", 100)
    shown = lessons.reveal("90.1", object())
    assert (shown.verdict, shown.measured, shown.measured_text) == ("off", None, "never: no call was faster")
    assert "on this machine there is none" in shown.sentence
    assert "not measured" not in repr(shown)
    assert asked.revealed == "never: no call was faster (MEASURED)"
    lessons.predict("90.2", "And here?", unit="calls")
    assert lessons.reveal("90.2", object()).verdict == "no prediction"


@pytest.mark.parametrize("answer", [2, "2", "The GPU", " the gpu ", "the gpus", "the g"])
def test_a_choice_can_be_named_in_many_ways(answer: object):
    """Its number, its words in any case, or a near spelling."""
    asked = lessons.predict("90.2", "Which?", choices=["the CPU", "the GPU"])
    asked.submit(answer)  # type: ignore[arg-type]
    assert asked.answer is not None
    assert asked.answer.value == "the GPU"
    assert lessons.reveal("90.2", "the GPU").verdict == "right"


def test_a_number_is_read_to_its_last_digit():
    """Zeros before it do not count; 12 is not the first of two."""
    assert _predictions.choose("0002", ("the CPU", "the GPU")) == "the GPU"
    assert _predictions.choose("00002", ("the CPU", "the GPU")) == "the GPU"
    for wrong in ("00012", "12", "-1", "0"):
        with pytest.raises(InputError, match="is not one of the choices"):
            _predictions.choose(wrong, ("the CPU", "the GPU"))


@pytest.mark.parametrize("answer", [0, 3, "neither", None, 1.5, True, "9" * 5000, "²"])
def test_what_is_no_choice_is_refused(answer: object):
    """The refusal lists the choices."""
    asked = lessons.predict("90.2", "Which?", choices=["the CPU", "the GPU"])
    with pytest.raises(InputError, match=r"1\. the CPU; 2\. the GPU"):
        asked.submit(answer)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("choices", "answer", "chosen"),
    [
        (("as accurate", "less accurate", "the intervals cannot tell"), "not as accurate", None),
        (("as accurate", "less accurate", "the intervals cannot tell"), "as acurate", "as accurate"),
        (("after the backward pass", "after the optimizer's step"), "before the backward pass", None),
        (("after the backward pass", "after the optimizer's step"), "after the forward pass", None),
        (("after the backward pass", "after the optimizer's step"), "after backward pass", "after the backward pass"),
        (("the CPU", "the GPU"), "the TPU", None),
        (("more than was measured", "less than was measured"), "less then was measured", "less than was measured"),
        (("float32", "8-bit kernels"), "8 bit kernels", "8-bit kernels"),
        (("float32", "8-bit kernels"), "float 32", "float32"),
        (("abcdefghij", "zzz"), "abcdefghxy", "abcdefghij"),  # eight of ten letters
        (("abcdefghij", "zzz"), "abcdefgxyz", None),  # seven
        (("some words before the last one abcde", "zzz"), "some words before the last one abcxy", "some words before the last one abcde"),
        (("some words before the last one abcdef", "zzz"), "some words before the last one abcxyz", None),  # half of one word is another
    ],
)
def test_another_word_is_no_misspelling(choices: tuple[str, ...], answer: str, chosen: str | None):
    """A slip of the pen is read; what says something else, or is as near to two choices, is refused and not kept as one of them."""
    if chosen is not None:
        assert _predictions.choose(answer, choices) == chosen
        return
    with pytest.raises(InputError, match="is not one of the choices"):
        _predictions.choose(answer, choices)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: lessons.predict("", "Which?"), "predict: id ''; expected text such as '02.1'"),
        (lambda: lessons.predict(5, "Which?"), "predict: id 5; expected"),  # type: ignore[arg-type]
        (lambda: lessons.predict("90.3", 5), "predict 90.3: question 5, unit ''; expected text"),  # type: ignore[arg-type]
        (lambda: lessons.predict("90.3", "Which?", 5), "unit 5; expected text"),  # type: ignore[arg-type]
        (lambda: lessons.reveal("", 5), "reveal: id ''; expected text such as '02.1'"),
        (lambda: lessons.reveal(5, 5), "reveal: id 5; expected"),  # type: ignore[arg-type]
        (lambda: lessons.answer(5, 5), "answer: question 5 was not asked"),  # type: ignore[arg-type]
    ],
)
def test_what_names_no_question_is_refused(call: Callable[[], object], says: str):
    """Each in its own sentence."""
    with pytest.raises(InputError, match=re.escape(says)):
        call()


def test_an_answer_in_a_file_has_its_three_parts():
    """Exactly these are enough; without one of them, or with a truth value for a number, it is none."""
    parts = {"value": 5, "text": "5 us", "date": "2026-01-02"}
    assert _predictions._kept(parts) == _predictions.KeptAnswer(5.0, "5 us", "2026-01-02")
    for wrong in (*({k: v for k, v in parts.items() if k != name} for name in parts), parts | {"value": True}, parts | {"value": None}, 5):
        assert _predictions._kept(wrong) is None


@pytest.mark.parametrize("arguments", [{"choices": ["one"]}, {"choices": ["a", "a"]}, {"choices": ["a", "b"], "unit": "us"}])
def test_a_question_without_a_choice_is_refused(arguments: dict):
    """One choice, equal choices, or choices with a unit are an instructor's slip."""
    with pytest.raises(InputError):
        lessons.predict("90.3", "Which?", **arguments)


def test_answering_a_question_that_was_not_asked_says_what_to_do():
    """The cell with predict must run first."""
    with pytest.raises(InputError, match=r"Run the cell with gl\.lessons\.predict first"):
        lessons.answer("77.1", 5)


@pytest.mark.parametrize(("said", "words"), [(2052, "a little too much"), (2040, "a little too little"), (2000, "1.02x too little")])
def test_a_factor_that_rounds_to_one_is_a_little(said: int, words: str):
    """Of the ones of 05.2, where the sum is 2,048: 1.00x too much says nothing."""
    lessons.predict("05.2", "What is the sum?")
    lessons.answer("05.2", said)
    shown = lessons.reveal("05.2", 2048.0)
    assert shown.verdict == "off"
    assert f"You said {words}." in shown.sentence


def test_a_usual_wrong_answer_gets_its_sentence(monkeypatch: pytest.MonkeyPatch):
    """The first reading that fits is shown with the factor."""
    reading = Reading(lambda predicted, measured: predicted > measured, "You thought that the call waits.")
    monkeypatch.setattr(content, "question", lambda id: Question(id, (reading,)))
    lessons.predict("90.1", "How long?", unit="us")
    lessons.answer("90.1", 1000)
    assert lessons.reveal("90.1", 1e-6).sentence == "You said 1000x too much. You thought that the call waits."


@pytest.mark.parametrize(
    ("predicted", "measured", "verdict", "sentence"),
    [
        (1.0, 2.0, "close", "You were close."),
        (2.0, 1.0, "close", "You were close."),
        (1.0, 2.1, "off", "You said 2.10x too little. Too low."),
        (2.1, 1.0, "off", "You said 2.10x too much. Not low."),
        (0.0, 0.5, "close", "You were close."),
        (0.5, 0.0, "close", "You were close."),
        (0.6, 0.0, "off", "Not low."),
        (0.0, 3.0, "off", "Too low."),
        (0.0, 0.0, "close", "You were close."),
    ],
)
def test_what_is_close_by_hand(predicted: float, measured: float, verdict: str, sentence: str, monkeypatch: pytest.MonkeyPatch):
    """Within a factor of two or by a half, both ends included; else the factor, where there is one, and the reading that fits."""
    readings = (Reading(lambda said, got: said < got, "Too low."), Reading(lambda said, got: True, "Not low."))
    monkeypatch.setattr(content, "question", lambda id: Question(id, readings, close_absolute=0.5))
    asked = lessons.predict("90.1", "How many?", unit="calls")
    lessons.answer("90.1", predicted)
    shown = lessons.reveal("90.1", measured)
    assert (shown.verdict, shown.sentence) == (verdict, sentence)
    assert shown.table()[1] == [("How many?", asked.text_of(predicted), asked.text_of(measured))]


def _restart() -> None:
    """A fresh kernel: the progress file is all that is left."""
    _predictions._known.clear()


def test_a_restarted_kernel_reveals_in_the_questions_unit():
    """56 GiB kept, then 1.12e11 bytes shown without the cell of the question: 1.12e11 / 2**30 = 104.3 GiB, and 1.86 times as much."""
    lessons.predict("90.1", "How much?", unit="GiB").submit(56)
    _restart()
    found = lessons.reveal("90.1", 1.12e11)
    assert (found.question, found.predicted_text, found.measured_text) == ("How much?", "56.0 GiB", "104 GiB")
    assert lessons.predict("90.1", "How much?", unit="GiB").revealed == "104 GiB (MEASURED)"
    lessons.predict("90.2", "Does it help?", choices=("yes", "no, whatever the scale")).submit(1)
    _restart()
    assert lessons.reveal("90.2", "no, whatever the scale").verdict == "wrong"
    assert lessons.reveal("90.2", 1).measured_text == "yes"


def test_a_choice_that_nobody_asked_for_is_shown_as_it_is():
    """Without question and answer the words of a choice are shown, and count as no prediction."""
    found = lessons.reveal("90.2", "no, whatever the scale")
    assert (found.measured_text, found.verdict) == ("no, whatever the scale", "no prediction")
    asked = lessons.predict("90.2", "Does it help?", choices=("yes", "no, whatever the scale"))
    assert "already shown" in asked.submit(1)


@pytest.mark.parametrize("measured", [1.12e11, "no, whatever the scale"])
def test_an_answer_of_an_earlier_version_waits_for_its_question(measured: object):
    """An entry without unit and choices stays valid; nothing is stored until the question is asked, and that is said."""
    lessons.predict("90.1", "How much?", unit="GiB").submit(56)
    _restart()
    _store.change(lambda content: [content["predictions"]["90.1"].pop(key) for key in ("unit", "choices")])
    found = lessons.reveal("90.1", measured)
    assert found.sentence.endswith("Run the cell with gl.lessons.predict first.")
    asked = lessons.predict("90.1", "How much?", unit="GiB")
    assert asked.revealed is None
    assert asked.answer is not None
    assert lessons.reveal("90.1", 56 * 2**30).verdict == "close"


@pytest.mark.parametrize(("predicted", "measured"), [(5e-324, 1.0), (1e300, 1e-300), (1e-300, 1e300)])
def test_numbers_too_far_apart_have_no_ratio(predicted: float, measured: float):
    """A ratio that would be infinite or zero is none; the prediction is off."""
    lessons.predict("90.1", "How many times?", unit="x").submit(predicted)
    found = lessons.reveal("90.1", measured)
    assert (found.verdict, found.ratio, found.sentence) == ("off", None, "That is not what came out. The text below says why.")


def test_a_ratio_has_at_most_three_hundred_digits():
    """Before the point or behind it; of nothing, and of a choice, there is none."""
    assert _reveal._ratio(2.0, 3.0) == 1.5
    assert _reveal._ratio(1.0, 1.05e-300) == 1.05e-300
    assert _reveal._ratio(1e-300, 0.95) == pytest.approx(0.95e300)
    for predicted, measured in ((1.0, 0.95e-300), (1e-300, 1.05), (0.0, 1.0), (1.0, 0.0), (0.0, 0.0), ("a", 1.0), (1.0, "a"), (None, 1.0)):
        assert _reveal._ratio(predicted, measured) is None


def test_sides_are_asked_of_what_was_measured_and_of_nothing_else(monkeypatch: pytest.MonkeyPatch):
    """Who gives the evidence is not asked, and where nothing was measured there is none."""
    here, there = Evidence.measured("A CPU"), Evidence.measured("A GPU")
    asked: list[object] = []

    def sides(pair: object) -> dict[str, Evidence]:
        asked.append(pair)
        return {"the CPU": here, "the GPU": there}

    monkeypatch.setattr(content, "question", lambda id: Question(id, sides=sides))
    lessons.predict("90.1", "How many times?", unit="x")
    assert (lessons.reveal("90.1", None).sides, lessons.reveal("90.1", 5.0, evidence=there).evidence, asked) == ({}, there, [])
    assert lessons.reveal("90.1", 5.0).sides == {"the CPU": here, "the GPU": there}
    assert asked == [5.0]


def test_why_nothing_was_measured_is_kept_until_something_is():
    """With the words of the question, and those who watch it are told."""
    asked = lessons.predict("90.1", "How long?", unit="us")
    heard: list[str] = []
    asked.observe(lambda prediction: heard.append(prediction.status))
    asked.submit(5)
    lessons.reveal("90.1", None, reason="no GPU")
    entry = _store.read()["predictions"]["90.1"]
    assert (entry["question"], entry["unmeasured"]) == ("How long?", "not measured: no GPU")
    assert heard[1:] == ["Your prediction is kept: 5.00 us. When the next cell ran, the answer was not measured: no GPU."]
    lessons.reveal("90.1", 4e-6)
    assert "unmeasured" not in _store.read()["predictions"]["90.1"]


def test_the_question_of_a_reveal_without_an_answer_is_kept():
    """For the table of progress: of one that was never measured, too."""
    lessons.predict("90.1", "How long?", unit="us")
    lessons.reveal("90.1", None)
    assert _store.read()["predictions"]["90.1"] == {"question": "How long?", "unmeasured": "not measured"}


def test_a_reveal_that_nobody_predicted_can_be_followed_by_one_that_counts():
    """What was shown first stays, unless nothing was measured then; the question's words are kept for the table of progress."""
    asked = lessons.predict("90.1", "How long?", unit="us")
    assert asked.status == "No prediction yet."
    lessons.reveal("90.1", None, reason="no GPU")
    assert asked.revealed is None
    lessons.reveal("90.1", 3e-6)
    assert asked.status == "No prediction was given; the answer was 3.00 us (MEASURED)."
    assert _store.read()["predictions"]["90.1"]["question"] == "How long?"
    lessons.reveal("90.1", 4e-6)
    assert asked.revealed == "4.00 us (MEASURED)"
    other = lessons.predict("90.2", "How long?", unit="us")
    lessons.answer("90.2", 1)
    for seconds in (3e-6, 4e-6):
        lessons.reveal("90.2", seconds)
    assert other.revealed == "3.00 us (MEASURED)"


def test_observers_hear_answers_and_the_reveal():
    """A widget is told of each answer and of the reveal, until it unsubscribes."""
    asked = lessons.predict("90.1", "How long?", unit="us")
    heard: list[str] = []
    stop = asked.observe(lambda prediction: heard.append(prediction.status))
    asked.submit(5)
    lessons.reveal("90.1", 4e-6)
    stop()
    asked.submit(6)
    assert heard == [
        "Your prediction is kept: 5.00 us. Run the next cell to measure.",
        "You predicted 5.00 us; the answer was 4.00 us (MEASURED).",
    ]


def test_the_text_says_how_to_answer_in_code():
    """Without the extension, text and HTML name the call; HTML is escaped."""
    asked = lessons.predict("90.4", "a < b?", choices=["<yes>", "no"])
    assert "gl.lessons.answer('90.4', 1)" in repr(asked)
    assert "&lt;yes&gt;" in asked._repr_html_()
    assert "<yes>" not in asked._repr_html_()


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    answer=st.one_of(
        st.text(max_size=12),
        st.floats(),
        st.integers(),
        st.none(),
        st.binary(max_size=3),
        st.lists(st.integers(), max_size=2),
        st.complex_numbers(),
    ),
    unit=st.sampled_from(["us", "MiB", "GB/s", "x", "%", "", "elements"]),
)
def test_any_answer_is_kept_or_refused(answer: object, unit: str):
    """Nothing but InputError comes out, and what is kept is a finite number of at least zero."""
    try:
        base = _quantities.unit(unit).parse(answer)  # type: ignore[arg-type]
    except GpulabError:
        return
    assert math.isfinite(base)
    assert base >= 0


@given(value=st.floats(0, 1e6), unit=st.sampled_from(["us", "ms", "MiB", "GB/s", "x", "%", "elements"]))
def test_text_and_number_agree(value: float, unit: str):
    """A number with its unit reads as the bare number."""
    parsed = _quantities.unit(unit)
    assert parsed.parse(f"{value!r} {unit}") == pytest.approx(parsed.parse(value), rel=1e-9, abs=1e-300)
