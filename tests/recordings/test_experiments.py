"""What the readers of a recording take for granted of an entry, at the edges of what is let through."""

from __future__ import annotations

import pytest

from gpulab.errors import RecordingError
from gpulab.recordings import Entry
from gpulab.recordings._experiments import refuse_unusable


def entry(experiment: str = "precision", **params: object) -> Entry:
    """A case that was not measured: only its parameters are looked at."""
    return Entry(experiment, params, None, "not tried")


@pytest.mark.parametrize("n", [1, 2**62])
def test_the_smallest_and_the_largest_number_pass(n: int) -> None:
    """One, and what still turns into a float without loss."""
    refuse_unusable([entry(format="float16", n=n)])


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"format": "float16", "n": 0}, "'n' = 0; expected a whole number from 1"),
        ({"format": "float16", "n": 2**62 + 1}, f"'n' = {2**62 + 1}; expected a whole number from 1"),
        ({"format": "float16", "n": "8"}, "'n' = '8'; expected a whole number from 1"),
        ({"format": "float16"}, "'n' = None; expected a whole number from 1"),
        ({"format": 16, "n": 8}, "'format' = 16; expected a word"),
        ({"format": "float16", "n": 8, "hops": 0}, "'hops' = 0; expected a whole number from 1"),  # a number, though this one needs none
    ],
)
def test_what_is_of_another_kind_is_refused(params: dict[str, object], words: str) -> None:
    """The case, the parameter and its value are named; a good case before it does not hide it."""
    with pytest.raises(RecordingError, match=r"^recordings\.read: the case 'precision.*") as caught:
        refuse_unusable([entry(format="float16", n=8), entry(**params)])
    assert words in str(caught.value)


def test_an_experiment_that_nobody_reads_may_have_any() -> None:
    """It has no row, so not even its numbers are looked at."""
    refuse_unusable([entry("mine", n="eight", hops=0)])
