"""What several runs say together: over seeds, and one against another in turn. Whole tables and verdicts, worked out by hand."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import numpy as np
import pytest
from finished_run import HERE, NOTES, over_seeds, run

from gpulab.evidence import Note
from gpulab.training import RaceResult, comparisons
from gpulab.training.comparisons import SeedsResult


def test_the_tables_of_several_seeds() -> None:
    """The mean with both intervals and each model; a row a run, and one for all."""
    assert over_seeds().table() == (
        ("right digits", ""),
        [
            ("mean", "90.0 %"), ("over seeds and test items", "[85.0 %, 94.0 %]"), ("over seeds, on this test", "(no interval)"),
            ("model 0", "90.0 % [80.0 %, 95.0 %]"), ("model 1", "90.0 % [80.0 %, 95.0 %]"),
        ],
    )  # fmt: skip
    several = SeedsResult("digits-mlp", (3, 5), (run(), run(accuracy=None, samples_per_second=None)), over_seeds(), NOTES, HERE)
    assert several.table()[1] == [
        ("3", "finished", "0.2", "90.0 % [80.0 %, 95.0 %]", "8,000 [7,900, 8,100]"),
        ("5", "finished", "0.2", "none", "none"),
        ("all", "", "", "90.0 % [85.0 %, 94.0 %]", ""),
        ("note: stopped", "It was stopped.", "", "", ""),
    ]
    assert repr(several) == "<digits-mlp, float32: <90.0 % [85.0 %, 94.0 %] over 2 seeds and test items>>"


def race(**changes: Any) -> RaceResult:
    """Twice the samples a second, and two points more right."""
    values: dict[str, Any] = {
        "task": "digits-mlp", "names": ("a", "b"), "first": run(notes=()), "second": run(), "speedup": 2.0, "speedup_interval": (1.5, 2.5),
        "accuracy_difference": 0.02, "accuracy_difference_interval": (-0.01, 0.05), "notes": NOTES, "evidence": HERE,
    }  # fmt: skip
    return RaceResult(**{**values, **changes})


def test_the_table_of_a_race() -> None:
    """A column a run, the ratio and the difference in points with their signs, then each side's notes and the race's own."""
    headers, rows = race().table()
    assert headers == ("digits-mlp", "a", "b")
    assert rows == [
        ("ended", *["finished after 20 steps"] * 2),
        ("loss (last tenth)", "0.2", "0.2"),
        ("accuracy on the test", *["90.0 % [80.0 %, 95.0 %]"] * 2),
        ("samples a second", *["8,000 [7,900, 8,100]"] * 2),
        ("peak memory of tensors", "5.00 KiB", "5.00 KiB"),
        ("samples a second, second over first", "", "2.00x [1.50x to 2.50x]"),
        ("accuracy, second minus first", "", "+2.0 points [-1.0, +5.0]"),
        ("note on b: stopped", "It was stopped.", ""),
        ("note: stopped", "It was stopped.", ""),
    ]
    assert ("samples a second, second over first", "", "2.00x (no interval)") in race(speedup_interval=None).table()[1]
    assert len(race(speedup=None, accuracy_difference=None, notes=()).table()[1]) == 6
    assert [race(second=run(ended=word)).ended for word in ("finished", "diverged", "stopped")] == ["finished", "diverged", "stopped"]
    assert race(first=run(ended="diverged"), second=run(ended="interrupted")).ended == "interrupted"


@pytest.mark.parametrize(
    "one", [run(), race(), SeedsResult("t", (1,), (run(),), over_seeds(), (), HERE)], ids=lambda one: type(one).__name__
)
def test_results_are_equal_where_their_numbers_are(one: Any) -> None:
    """A copy equals it and has its hash; another task, and what is no result, do not."""
    again = copy.deepcopy(one)
    assert again == one
    assert hash(again) == hash(one)
    for other in (dataclasses.replace(one, task="another"), dataclasses.replace(one, notes=(Note("a", "b."),)), one.to_dict(), None):
        assert other != one


def test_one_seed_is_one() -> None:
    """And its interval over seeds, where there is one, is that of the mean on this very test."""
    one = over_seeds(accuracies=over_seeds().accuracies[:1], seeds_interval=(0.875, 0.925))
    assert repr(one) == "<90.0 % [85.0 %, 94.0 %] over 1 seed and test items>"
    assert one.table()[1][1:] == [
        ("over seeds and test items", "[85.0 %, 94.0 %]"),
        ("over seeds, on this test", "[87.5 %, 92.5 %]"),
        ("model 0", "90.0 % [80.0 %, 95.0 %]"),
    ]


def test_what_a_run_did_not_reach_is_none() -> None:
    """No loss, no accuracy, no rate, no memory: each says so in its column; a race of it has no speed-up to report."""
    nothing = run(losses=np.array([]), accuracy=None, samples_per_second=None, peak_bytes=None, ended="stopped", notes=())
    found = race(first=nothing, second=nothing, speedup=None, accuracy_difference=None, notes=())
    assert found.table()[1] == [
        ("ended", *["stopped after 0 steps"] * 2), ("loss (last tenth)", "none", "none"), ("accuracy on the test", "none", "none"),
        ("samples a second", "none", "none"), ("peak memory of tensors", "not known", "not known"),
    ]  # fmt: skip
    assert repr(found) == "<digits-mlp: b against a: no speed-up to report>"
    assert repr(race()) == "<digits-mlp: b against a: 2.00x the samples a second>"
    over = SeedsResult("digits-mlp", (3,), (nothing,), over_seeds(), (), HERE)
    assert over.table()[1][0] == ("3", "stopped", "none", "none", "none")
    # Without an interval a difference of accuracies is not told.
    assert len(race(accuracy_difference_interval=None, notes=(), second=run(notes=())).table()[1]) == 6


def test_a_difference_in_points_has_a_sign_unless_it_rounds_to_nothing() -> None:
    """A share of 1.8 % is 1.8 points; less than 0.05 on either side is 0.0."""
    found = [comparisons.format_points(each) for each in (0.018, -0.018, 0.00049, -0.00049, 0.0006, 0.0)]
    assert found == ["+1.8", "-1.8", "0.0", "0.0", "+0.1", "0.0"]


def test_a_run_without_its_seed_is_no_row_of_a_table() -> None:
    """Nothing is left out without a word."""
    with pytest.raises(ValueError, match=r"shorter|longer"):
        SeedsResult("digits-mlp", (3, 5), (run(),), over_seeds(), NOTES, HERE).table()
    with pytest.raises(ValueError, match=r"shorter|longer"):
        race(names=("a",)).table()
