"""The results of several runs of one task: over seeds, and two against each other in turn. Plain
results; nothing is trained here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpulab.evidence import Evidence, Note
from gpulab.results import Result
from gpulab.training.results import Accuracy, FitResult, format_accuracy, format_rate


@dataclass(frozen=True, repr=False)
class SeedsAccuracy(Result):
    """The accuracy of models that differ by their seed alone, on one test.

    Attributes
    ----------
    accuracies : tuple of Accuracy
        One a model.
    mean : float
        Of their ratios.
    seeds_interval : (float, float) or None
        A 95 % interval of the mean over seeds, on this very test (Student's t); None with one
        model.
    interval : (float, float)
        A 95 % interval over seeds and test items: other seeds on another test of this size. With
        one model it is over items alone.
    answers : str
    evidence : Evidence
    """

    accuracies: tuple[Accuracy, ...]
    mean: float
    seeds_interval: tuple[float, float] | None
    interval: tuple[float, float]
    answers: str
    evidence: Evidence

    def __repr__(self) -> str:
        count = len(self.accuracies)
        return (
            f"<{_percent(self.mean)} {_span(self.interval)} over {count} "
            f"seed{'s' if count != 1 else ''} and test items>"
        )

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        """Return the mean with both intervals, then each model's accuracy."""
        rows = [
            ("mean", _percent(self.mean)),
            ("over seeds and test items", _span(self.interval)),
            ("over seeds, on this test", _span(self.seeds_interval)),
            *(
                (f"model {number}", format_accuracy(one))
                for number, one in enumerate(self.accuracies)
            ),
        ]
        return (f"right {self.answers}", ""), rows


@dataclass(frozen=True, eq=False, repr=False)
class SeedsResult(Result):
    """The same run under several seeds.

    Attributes
    ----------
    task : str
    seeds : tuple of int
        Those that were run.
    runs : tuple of FitResult
        One a seed, in that order.
    accuracy : SeedsAccuracy
    notes : tuple of Note
    evidence : Evidence
    """

    task: str
    seeds: tuple[int, ...]
    runs: tuple[FitResult, ...]
    accuracy: SeedsAccuracy
    notes: tuple[Note, ...]
    evidence: Evidence

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SeedsResult) and self.to_dict() == other.to_dict()

    def __hash__(self) -> int:
        return hash((self.task, self.seeds, self.accuracy.mean))

    def __repr__(self) -> str:
        return f"<{self.task}, {self.runs[0].options.precision}: {self.accuracy!r}>"

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        """Return a row a seed, then the mean with its interval."""
        rows = [
            (
                str(seed),
                run.ended,
                "none" if run.final_loss is None else f"{run.final_loss:.4g}",
                "none" if run.accuracy is None else format_accuracy(run.accuracy),
                "none"
                if run.samples_per_second is None
                else format_rate(run.samples_per_second, run.samples_per_second_interval),
            )
            for seed, run in zip(self.seeds, self.runs, strict=True)
        ]
        rows.append(
            ("all", "", "", f"{_percent(self.accuracy.mean)} {_span(self.accuracy.interval)}", "")
        )
        rows += [(f"note: {note.code}", note.sentence, "", "", "") for note in self.notes]
        return ("seed", "ended", "loss", "accuracy (95 %)", "samples a second (95 %)"), rows


def format_points(difference: float) -> str:
    """Return a difference of ratios in percentage points with its sign, "+1.8"; what rounds to zero
    is "0.0".

    Examples
    --------
    >>> format_points(-0.0001), format_points(0.018)
    ('0.0', '+1.8')
    """
    points = round(100 * difference, 1)
    return f"{points:+.1f}" if points else "0.0"


def _percent(ratio: float) -> str:
    return f"{100 * ratio:.1f} %"


def _span(interval: tuple[float, float] | None) -> str:
    return (
        "(no interval)"
        if interval is None
        else f"[{_percent(interval[0])}, {_percent(interval[1])}]"
    )
