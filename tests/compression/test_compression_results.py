"""What a weighing says: verdicts at their boundaries, sentences, tables and the front, worked out by hand."""

from __future__ import annotations

import dataclasses

import pytest

from gpulab.compression.results import Cost, LayerCost, Reason, WeighedModel, Weighing
from gpulab.errors import InputError
from gpulab.evidence import Evidence, Note
from gpulab.training import Accuracy


def weighed(**changes: object) -> WeighedModel:
    """A row of numbers."""
    plain = WeighedModel(
        "x", 1000, 100, 0, (), 1e6, 10, 1000, 1e-3, (0.9e-3, 1.1e-3), 1e-4, None, None, None, (), (), Evidence.measured("a CPU")
    )  # fmt: skip
    return dataclasses.replace(plain, **changes)


def right(correct: int, interval: tuple[float, float]) -> Accuracy:
    """So many of a hundred."""
    return Accuracy(correct, 100, correct / 100, interval, 0.0, "digits", Evidence.measured("a CPU"))


def test_the_interval_holds_seeds_and_items():
    """By hand: three seeds of 80, 90, 85 %; t of 2 degrees is 4.303; each test alone is 10 points wide on either side."""
    one = weighed(accuracies=(right(80, (0.7, 0.9)), right(90, (0.8, 1.0)), right(85, (0.75, 0.95))))
    half = ((4.30265 * 0.05 / 3**0.5) ** 2 + 0.1**2) ** 0.5
    assert one.accuracy == pytest.approx(0.85)
    assert one.accuracy_interval == pytest.approx((0.85 - half, min(1.0, 0.85 + half)), abs=1e-4)
    single = weighed(accuracies=(right(80, (0.71, 0.87)),))
    assert single.accuracy_interval == (0.71, 0.87)


def test_the_front_leaves_out_what_another_beats():
    """A model that is larger, slower and wrong more often is not on the front; each of the others is best in something."""

    def row(label: str, correct: int, nbytes: int, speedup: float | None) -> WeighedModel:
        return weighed(label=label, accuracies=(right(correct, (0.0, 1.0)),), file_bytes=nbytes, speedup=speedup)

    rows = (row("first", 90, 100, None), row("small", 80, 10, 1.0), row("fast", 85, 90, 2.0), row("bad", 79, 10, 1.0))
    w = Weighing("t", "a CPU", 1, rows, (), Evidence.measured("a CPU"), None)  # type: ignore[arg-type]
    assert w.front == ("first", "small", "fast")
    assert w.front_of(time=False) == ("first", "small", "fast")  # 85 % in 90 bytes: more than 80 %, and smaller than 100
    assert w.front_of(size=False) == ("first", "fast")


def test_the_verdict_needs_an_interval():
    """A ratio of 1.3 without an interval is not called faster, and the sentence says so."""
    first = weighed(label="first")
    loose = weighed(label="loose", speedup=1.3)
    w = Weighing("", "a CPU", 1, (first, loose), (), Evidence.measured("a CPU"), None)  # type: ignore[arg-type]
    assert loose.faster == ""
    assert "without an interval" in w.sentences[0]
    assert weighed(speedup=1.3, speedup_interval=(0.9, 1.7)).faster == "as fast"
    assert weighed(speedup=0.8, speedup_interval=(0.7, 0.9)).faster == "slower"
    assert weighed(speedup=0.9, speedup_interval=(0.8, 1.0)).faster == "as fast"  # an end that is 1 holds it
    assert weighed(speedup=1.1, speedup_interval=(1.0, 1.2)).faster == "as fast"


def test_sentences_tell_size_and_time_by_hand():
    """A quarter of the bytes is four times smaller; less than half a per cent is no difference; the reasons follow."""
    known: dict = {"speedup": 2.0, "speedup_interval": (1.9, 2.1)}
    rows = (
        weighed(label="first"), weighed(label="small", file_bytes=250, **known), weighed(label="large", file_bytes=4000, **known),
        weighed(label="same", file_bytes=997, speedup=1.0, speedup_interval=(0.9, 1.1), reasons=(Reason("rounding", "It rounds."),)),
        weighed(label="untimed", file_bytes=500), weighed(label="slow", speedup=0.5, speedup_interval=(0.4, 0.6)),
    )  # fmt: skip
    w = Weighing("", "a CPU", 1, rows, (), Evidence.measured("a CPU"), None)  # type: ignore[arg-type]
    assert w.sentences == (
        "small: 4.00x smaller on disk, 2.00x as fast.",
        "large: 4.00x larger on disk, 2.00x as fast.",
        "same: as large on disk, not faster (1.00x, and the interval holds 1). It rounds.",
        "untimed: 2.00x smaller on disk.",
        "slow: as large on disk, not faster but slower (0.50x as fast).",
    )


def test_the_table_of_a_weighing_by_hand():
    """The weights are those that are not zero; a time stands with its interval, an accuracy over seeds with both errors."""
    one = weighed(label="one", zeros=60, accuracies=(right(80, (0.71, 0.87)),))
    other = weighed(label="other", speedup=2.0, speedup_interval=(1.5, 2.5), interval_seconds=None, single_seconds=2e-5)
    w = Weighing("digits", "a CPU", 64, (one, other), (), Evidence.measured("a CPU"), None)  # type: ignore[arg-type]
    headers, rows = w.table()
    assert headers[4:] == ("time for 64", "time for 1", "speed-up", "right")
    assert rows == [
        ("one", "1000 B", "40", "1.00 MFLOP", "1.00 ms [900 us, 1.10 ms]", "100 us", "the first", "80.0 % [71.0, 87.0]"),
        ("other", "1000 B", "100", "1.00 MFLOP", "1.00 ms (no interval)", "20.0 us", "2.00x [1.50x, 2.50x]", "not asked"),
    ]
    assert w["other"] is other
    with pytest.raises(InputError, match=r"^Weighing: label is 'third'; expected one of: one, other"):
        w["third"]


def test_a_weighing_in_words():
    """One line for it and for each model, one list of what is said and noted; several seeds in the table's head."""
    first, other = (
        weighed(label="first", accuracies=(right(80, (0.7, 0.9)), right(90, (0.8, 1.0)))),
        weighed(label="<small>", file_bytes=500),
    )
    w = Weighing("", "a CPU", 1, (first, other), (Note("contended", "busy."),), Evidence.measured("a CPU"), None)  # type: ignore[arg-type]
    assert repr(w) == "<2 models on a CPU: first, <small> (MEASURED)>"
    assert repr(first) == "<first: 1000 B, 1.00 ms a batch, 85.0 % right>"
    assert repr(other) == "<<small>: 500 B, 1.00 ms a batch>"
    assert w.table()[0][-1] == "right (2 seeds)"
    assert "<ul><li>&lt;small&gt;: 2.00x smaller on disk.</li><li>Note (contended): busy.</li></ul>" in w._repr_html_()
    again = dataclasses.replace(
        w, models=(first, weighed(label="<small>", file_bytes=1), weighed(label="third")), notes=(Note("contended", "later."),)
    )
    both = w.with_models(again)
    assert [(m.label, m.file_bytes) for m in both.models] == [("first", 1000), ("<small>", 1), ("third", 1000)]
    assert [note.sentence for note in both.notes] == ["later."]


def test_sizes_within_half_a_percent_are_alike_and_intervals_stay_shares():
    """1,004 bytes beside 1,000 are as large, 1,006 are not; an interval ends at 0 and at 1."""
    rows = tuple(weighed(label=str(size), file_bytes=size) for size in (1000, 1004, 1006, 996, 994))
    w = Weighing("", "a CPU", 1, rows, (), Evidence.measured("a CPU"), None)  # type: ignore[arg-type]
    assert [each.split()[1:3] for each in w.sentences] == [["as", "large"], ["1.01x", "larger"], ["as", "large"], ["1.01x", "smaller"]]
    wild = (right(0, (0.0, 0.1)), right(100, (0.9, 1.0)))
    assert weighed(accuracies=wild).accuracy_interval == (0.0, 1.0)


def test_two_models_alike_are_both_on_the_front():
    """None beats the other: it has to be better in something. One that is as good in all but the time is beaten."""

    def row(label: str, correct: int, nbytes: int, speedup: float | None) -> WeighedModel:
        return weighed(label=label, accuracies=(right(correct, (0.0, 1.0)),), file_bytes=nbytes, speedup=speedup)

    def front(*rows: WeighedModel, **chosen: bool) -> tuple[str, ...]:
        return Weighing("t", "a CPU", 1, rows, (), Evidence.measured("a CPU"), None).front_of(**chosen)  # type: ignore[arg-type]

    first, twin, slower, larger = (
        row("first", 90, 100, None),
        row("twin", 90, 100, 1.0),
        row("slower", 90, 100, 0.5),
        row("larger", 90, 200, 2.0),
    )
    assert front(first, twin) == ("first", "twin")
    assert front(first, slower) == ("first",)
    assert front(first, slower, time=False) == ("first", "slower")
    assert front(first, larger) == ("first", "larger")
    assert front(first, larger, size=False) == ("larger",)
    assert front(first, larger, time=False) == ("first",)
    assert front(weighed(label="untested"), weighed(label="small", file_bytes=10)) == ("small",)


def test_the_table_of_a_count():
    """A batch of four: each layer's FLOPs are those of an item; what is outside of layers has a row only where there is any."""
    layers = (LayerCost("a", "linear", 1200, 8000), LayerCost("b", "convolution", 10, 400))
    cost = Cost("net", 4, layers, 0, 1210, Evidence.modelled("counted", "shapes"))
    assert (cost.flops, cost.flops_per_item) == (8400, 2100.0)
    assert cost.table() == (
        ("net", "kind", "parameters", "FLOP an item"),
        [("a", "linear", "1,200", "2.00 kFLOP"), ("b", "convolution", "10", "100 FLOP"), ("all", "2 layers", "1,210", "2.10 kFLOP")],
    )
    assert repr(cost) == "<net: 1,210 parameters, 2.10 kFLOP an item (MODELLED)>"
    more = dataclasses.replace(cost, other_flops=1600, layers=layers[:1])
    assert (more.flops, more.flops_per_item) == (9600, 2400.0)
    assert more.table()[1][1:] == [("other products", "attention and the like", "0", "400 FLOP"), ("all", "1 layer", "1,210", "2.40 kFLOP")]


def test_an_accuracy_without_a_task_is_none():
    """And so is its interval; of two seeds alike the items' half-width alone is left."""
    assert (weighed().accuracy, weighed().accuracy_interval) == (None, None)
    alike = weighed(accuracies=(right(50, (0.4, 0.6)), right(50, (0.3, 0.7))))
    assert alike.accuracy_interval == pytest.approx((0.35, 0.65))
