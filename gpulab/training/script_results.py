"""Two scripts that train the same model on the same data: which is faster, and whether it still
does the same work. Plain results.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpulab.evidence import Environment, Evidence, Note
from gpulab.results import Result
from gpulab.training.comparisons import SeedsAccuracy, format_points
from gpulab.training.ladder_results import LEAST_EFFECT, Gain
from gpulab.units import format_ratio, format_seconds, plural


def trains_less(names: tuple[str, str], samples: tuple[int, int]) -> str:
    """Return the objection to a second script that passes fewer samples through the model."""
    first, second = (
        f"{name} passed {plural(count, 'sample')} through the model"
        for name, count in zip(names, samples, strict=True)
    )
    return (
        f"{second}, and {first}: it is faster because it trains less. Keep the number of "
        "samples equal."
    )


@dataclass(frozen=True, repr=False)
class ScriptsResult(Result):
    """A script before and after, on the same model and data.

    Attributes
    ----------
    task, device : str
    names : (str, str)
        The functions' names.
    timed_items : int
        Of the training data, on which the scripts were timed in turns.
    seconds : (float, float)
        Medians of a call on those, until the device had finished.
    gain : Gain
        The first's seconds divided by the second's; paired if they took turns.
    samples : (int, int)
        Samples that each passed through the model in training, in one call on ``timed_items``.
    accuracy : (SeedsAccuracy, SeedsAccuracy)
        Of the models trained on all of the training data, on the test.
    accuracy_difference : float
        The second's minus the first's.
    accuracy_interval : (float, float)
        A 95 % interval of that, over seeds and test items, both paired.
    tolerance : float
        The loss of accuracy that counts as none.
    notes : tuple of Note
    evidence : Evidence
    environment : Environment
    """

    task: str
    device: str
    names: tuple[str, str]
    timed_items: int
    seconds: tuple[float, float]
    gain: Gain
    samples: tuple[int, int]
    accuracy: tuple[SeedsAccuracy, SeedsAccuracy]
    accuracy_difference: float
    accuracy_interval: tuple[float, float]
    tolerance: float
    notes: tuple[Note, ...]
    evidence: Evidence
    environment: Environment

    @property
    def accuracy_verdict(self) -> str:
        """The conclusion that the interval allows: "kept", "lost" or "not decided"."""
        low, high = self.accuracy_interval
        return "lost" if high < 0 else "kept" if low > -self.tolerance else "not decided"

    @property
    def objections(self) -> tuple[str, ...]:
        """Why the second is not a valid speed-up over the first; empty if it is."""
        found = []
        if self.samples[1] < self.samples[0]:
            found.append(trains_less(self.names, self.samples))
        if self.accuracy_verdict == "lost":
            found.append(
                f"The model of {self.names[1]} is less accurate: "
                f"{format_points(self.accuracy_difference)} points "
                f"[{', '.join(map(format_points, self.accuracy_interval))}]. A speed-up must not "
                "cost accuracy."
            )
        if self.gain.interval is None:
            found.append(
                f"No speed-up was shown: {format_ratio(self.gain.ratio)}, but the times vary so "
                "much that no interval can be given. "
                "Close other programs, and run it again."
            )
        elif self.gain.verdict != "faster":
            found.append(
                f"No speed-up was shown: {self.gain}, {self.gain.verdict}. All of the interval has "
                f"to lie above {1 + LEAST_EFFECT:g}."
            )
        return tuple(found)

    @property
    def sentence(self) -> str:
        """The outcome in one sentence."""
        if self.objections:
            return self.objections[0]
        return (
            f"{self.names[1]} has a speed-up of {self.gain} over {self.names[0]} on the same "
            "samples, and the accuracy is "
            f"{self.accuracy_verdict} ({format_points(self.accuracy_difference)} points "
            f"[{', '.join(map(format_points, self.accuracy_interval))}])."
        )

    def __repr__(self) -> str:
        return f"<{self.names[1]} against {self.names[0]}: {self.sentence}>"

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        """Return one row a quantity with a column for each script, then what sets them apart."""
        rows = [
            (f"time for {self.timed_items:,} items", *map(format_seconds, self.seconds)),
            ("samples through the model", *(f"{count:,}" for count in self.samples)),
            ("accuracy on the test", *(f"{100 * one.mean:.1f} %" for one in self.accuracy)),
            ("speed-up of the second", "", f"{self.gain}: {self.gain.verdict}"),
            (
                "accuracy, second minus first",
                "",
                f"{format_points(self.accuracy_difference)} points "
                f"[{', '.join(map(format_points, self.accuracy_interval))}]: "
                f"{self.accuracy_verdict}",
            ),
            *((f"objection {number}", text, "") for number, text in enumerate(self.objections, 1)),
            *((f"note: {note.code}", note.sentence, "") for note in self.notes),
        ]
        return (self.task, *self.names), rows
