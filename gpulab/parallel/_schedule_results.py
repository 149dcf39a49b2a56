"""What a pipeline's schedule did on real ranks, beside its timetable; plain results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpulab.evidence import Environment, Evidence, Note
from gpulab.models import StagePass, StageSchedule, most_held, pipeline_schedule
from gpulab.parallel.results import RankSpan, RankTimeline
from gpulab.results import Result
from gpulab.units import format_bytes, format_seconds, plural


@dataclass(frozen=True)
class ScheduleRun(Result):
    """A schedule of pipeline parallelism as real ranks carried it out; each rank is a stage.

    Attributes
    ----------
    schedule : str
        One of ``gpulab.models.PIPELINE_SCHEDULES``.
    stages, microbatches, chunks : int
    forward_seconds, backward_seconds : float
        The set time of one microbatch's pass through a stage.
    bubble_ratios : tuple of float
        Of each step that was measured: the share of all ranks' time without a pass, from the first
        pass's begin to the last one's end.
    passes : tuple of StagePass
        Of the step with the median bubble, in seconds from its begin; of each stage in the order in
        which it did them.
    activation_bytes : tuple of int
        The peak of each stage's activations in a step, counted tensor by tensor.
    notes : tuple of Note
    evidence : Evidence
        MEASURED.
    environment : Environment
    """

    schedule: str
    stages: int
    microbatches: int
    chunks: int
    forward_seconds: float
    backward_seconds: float
    bubble_ratios: tuple[float, ...]
    passes: tuple[StagePass, ...]
    activation_bytes: tuple[int, ...]
    notes: tuple[Note, ...]
    evidence: Evidence
    environment: Environment

    @property
    def bubble_ratio(self) -> float:
        """Median over the steps, 0 to 1; the messages' time counts as bubble."""
        return float(np.median(self.bubble_ratios))

    @property
    def model(self) -> StageSchedule:
        """The timetable with the same passes, whose messages take no time."""
        return pipeline_schedule(
            self.stages,
            self.microbatches,
            self.schedule,
            forward=self.forward_seconds,
            backward=self.backward_seconds,
            chunks=self.chunks if self.schedule == "interleaved" else None,
        )

    @property
    def duration_seconds(self) -> float:
        """Of the step that is shown."""
        return max(one.end for one in self.passes)

    def of_stage(self, stage: int) -> tuple[StagePass, ...]:
        """Return the passes of one stage, in the order in which it did them."""
        return tuple(one for one in self.passes if one.stage == stage)

    @property
    def busy_seconds(self) -> tuple[float, ...]:
        """How long each stage was in a pass, in the step that is shown."""
        return tuple(
            sum(one.duration for one in self.of_stage(stage)) for stage in range(self.stages)
        )

    @property
    def held(self) -> tuple[float, ...]:
        """The largest number of microbatches in flight on each stage: forward begun, backward not
        ended.
        """
        return tuple(most_held(self.of_stage(stage), self.chunks) for stage in range(self.stages))

    @property
    def timeline(self) -> RankTimeline:
        """The step that is shown as lanes: each rank's passes, and idle between them (the messages'
        own time counts as idle here).
        """
        spans: list[RankSpan] = []
        for stage in range(self.stages):
            free = 0.0
            for one in self.of_stage(stage):
                if one.begin > free:
                    spans.append(RankSpan(stage, "idle", "recv", free, one.begin))
                name = one.kind if one.count > 1 else f"{one.kind} {one.microbatch}"
                spans.append(RankSpan(stage, "compute", name, one.begin, one.end))
                free = one.end
            if free < self.duration_seconds:
                spans.append(
                    RankSpan(stage, "idle", "end of the step", free, self.duration_seconds)
                )
        label = f"{self.schedule} on {plural(self.stages, 'rank')}"
        return RankTimeline(
            label,
            self.stages,
            tuple(spans),
            (0.0,),
            self.duration_seconds,
            self.notes,
            self.evidence,
        )

    def __repr__(self) -> str:
        where = f"{self.schedule} on {plural(self.stages, 'rank')}"
        return (
            f"<{where}: bubble {self.bubble_ratio:.1%} measured, "
            f"{self.model.bubble_ratio:.1%} in theory>"
        )

    def table(
        self, timetable: StageSchedule | None = None
    ) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        """Return one row a stage, then the bubble measured, counted in the timetable and by
        formula.

        Parameters
        ----------
        timetable : StageSchedule, optional
            Of the same passes, in seconds, such as one whose messages take time; ``model`` if not
            given.
        """
        rows: list[Sequence[str]] = []
        whole, model = self.duration_seconds, self.model if timetable is None else timetable
        for stage, busy in enumerate(self.busy_seconds):
            held = f"{self.held[stage]:g}"
            memory = format_bytes(self.activation_bytes[stage])
            rows.append(
                (
                    f"stage {stage}",
                    f"{format_seconds(busy)} of {format_seconds(whole)}",
                    f"{1 - busy / whole:.1%}",
                    held,
                    memory,
                )
            )
        spread = (
            f"{min(self.bubble_ratios):.1%} to {max(self.bubble_ratios):.1%} in "
            f"{plural(len(self.bubble_ratios), 'step')}"
        )
        rows.append(("bubble measured", spread, f"{self.bubble_ratio:.1%}", "", ""))
        rows.append(
            (
                "in the timetable",
                format_seconds(model.duration),
                f"{model.bubble_ratio:.1%}",
                f"{max(model.held):g}",
                "",
            )
        )
        formula = model.bubble_formula_ratio
        rows.append(
            (
                "by formula",
                model.bubble_formula,
                "" if formula is None else f"{formula:.1%}",
                "",
                "",
            )
        )
        rows += [(f"note: {note.code}", note.sentence, "", "", "") for note in self.notes]
        return (
            f"{self.schedule}, measured",
            "works",
            "waits (bubble)",
            "microbatches held",
            "their activations",
        ), rows
