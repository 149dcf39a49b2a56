"""Material of notebook 06: three timelines to read, and recorded times of a training run with
different options.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpulab import _given, training
from gpulab.evidence import Evidence
from gpulab.lessons._recorded_gpus import caption_of, recorded_gpus, with_captions
from gpulab.recordings import Entry
from gpulab.results import Result
from gpulab.training import PipelineResult
from gpulab.units import format_seconds, plural

# Loading, copy and step in seconds; workers; cores. What binds is never the first number that the
# eye meets.
_TIMELINES = {
    "A": (0.080, 0.002, 0.015, 6, 2),  # many workers, but two cores: 40 ms a batch
    "B": (0.030, 0.045, 0.020, 4, 8),  # a slow link
    "C": (0.040, 0.001, 0.030, 4, 8),  # the accelerator itself
}
_EXPERIMENT = "training"


def timeline(letter: str) -> PipelineResult:
    """Return one of three pipelines, "A" to "C", whose bottleneck the exercise asks for.

    They are made up for the exercise by ``training.model_pipeline``, so they are the same on every
    machine.

    Raises
    ------
    InputError
        If there is no such letter.
    """
    loading, copy, compute, workers, cores = _TIMELINES[
        _given.word("timeline", "letter", letter, _TIMELINES)
    ]
    return training.model_pipeline(
        loading, compute, copy_seconds=copy, workers=workers, cores=cores, steps=24
    )


@dataclass(frozen=True)
class RecordedOptions(Result):
    """The effect of the options of a training run on recorded machines.

    Attributes
    ----------
    rows : tuple of (str, ...)
        Machine, what ran and how many steps of it, and their time with its interval.
    evidence : tuple of Evidence
        Of each machine; empty if nothing is recorded yet.
    """

    rows: tuple[tuple[str, str, str], ...]
    evidence: tuple[Evidence, ...]

    def caption(self) -> str:
        """Return the badge lines."""
        return caption_of(self.evidence)

    def __repr__(self) -> str:
        return (
            f"<{plural(len(self.rows), 'recorded training step')}>"
            if self.rows
            else "<not recorded yet>"
        )

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        """Return one row per recorded training run."""
        return ("machine", "training, and how many steps of it", "time (RECORDED)"), self.rows or [
            ("no GPU", "not recorded yet", "")
        ]

    def _repr_html_(self) -> str:
        return with_captions(self)


def recorded_options(means: Sequence[str] | None = None) -> RecordedOptions:
    """Return recorded times of training with different options (mixed precision, compile, graphs,
    layouts, fused optimizers).

    Parameters
    ----------
    means : sequence of str, optional
        Only these, such as ``("plain", "compile", "graph")``; None takes all.
    """
    rows: list[tuple[str, str, str]] = []
    evidence: list[Evidence] = []
    for name, recording in recorded_gpus().items():
        before = len(rows)
        for entry in sorted(recording.entries, key=_by_model):
            if not entry.experiment.startswith(_EXPERIMENT) or entry.timing is None:
                continue
            if means is not None and entry.params.get("means") not in means:
                continue
            interval = entry.timing.interval_seconds
            between = (
                ""
                if interval is None
                else f" (95 % {format_seconds(interval[0])} to {format_seconds(interval[1])})"
            )
            what = ", ".join(
                f"{value} steps" if name == "steps" else str(value)
                for name, value in entry.params.items()
            )
            rows.append(
                (
                    name,
                    f"{entry.experiment}: {what}",
                    format_seconds(entry.timing.median_seconds) + between,
                )
            )
        if len(rows) > before:
            evidence.append(recording.evidence())
    return RecordedOptions(tuple(rows), tuple(evidence))


def _by_model(entry: Entry) -> tuple[str, ...]:
    """What is compared stands together: one model in one number format, with one means after the
    other.
    """
    return (entry.experiment, *(str(entry.params.get(name, "")) for name in ("model", "precision")))
