"""The modelled schedule of pipeline parallelism with sliders, and the same schedule on real ranks
below it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpulab import figures, models, parallel
from gpulab.errors import InputError
from gpulab.models import StageSchedule
from gpulab.parallel import ScheduleRun
from gpulab.units import format_seconds
from gpulab.widgets._controls import Choice, Control, Number, Slider
from gpulab.widgets._instrument import Action, Drawing
from gpulab.widgets._ranks import OnRanks
from gpulab.widgets._work import Progress, Stop

_SCHEDULES = (
    ("split", "split by hand: the batch as a whole"),
    ("gpipe", "GPipe: all forwards, then all backwards"),
    ("1f1b", "1F1B: a backward after each forward"),
    ("interleaved", "interleaved 1F1B: several parts per stage"),
)
_STEPS = 3
_MS = 1e-3


class PipelineSchedule(OnRanks):
    """Split a batch into microbatches and see when each stage waits; Measure runs the same schedule
    on real ranks.

    (The pipeline that loads data for a training is ``PipelineTimeline``.) ``timetable`` is what
    ``gl.models.pipeline_schedule`` gives for the controls, in milliseconds; ``result`` is what
    ``gl.parallel.run_schedule`` measured.

    Examples
    --------
    >>> p = PipelineSchedule(stages=4, microbatches=8, schedule="1f1b")
    >>> p.timetable.held, round(p.timetable.bubble_ratio, 3)
    ((4, 3, 2, 1), 0.273)
    """

    title = "Pipeline schedule"
    summary = (
        "A model split into stages, one per rank, and a batch in microbatches: when each "
        "stage works, and how large the bubble is."
    )
    actions: tuple[Action, ...] = (
        Action(
            "measure",
            "Measure on ranks",
            "Run each stage in a process; a pass computes a little, then sleeps until its time is "
            "over.",
        ),
    )

    def make_controls(self) -> Sequence[Control]:
        """Return the schedule, the numbers of stages, parts and microbatches, then the times of
        passes and messages.
        """
        milliseconds = (5.0, 10.0, 20.0, 40.0, 60.0, 80.0, 100.0)
        return [
            Choice(
                name="schedule",
                label="Schedule",
                options=_SCHEDULES,
                default="gpipe",
                help="The order in which a stage runs its passes.",
            ),
            Slider(
                name="stages",
                label="Stages",
                options=(2, 3, 4, 6, 8),
                default=4,
                help="Parts of the model, one per rank.",
            ),
            Slider(
                name="microbatches",
                label="Microbatches",
                options=(1, 2, 3, 4, 6, 8, 12, 16, 24, 32),
                default=8,
                help="Parts of the "
                "batch. The interleaved schedule needs a multiple of the number of stages.",
            ),
            Slider(
                name="chunks",
                label="Parts of the model per stage",
                options=(2, 3, 4),
                default=2,
                help="For the interleaved schedule: "
                "the batch passes through all stages this many times.",
            ),
            Number(
                name="forward_ms",
                label="Forward pass",
                unit="ms",
                default=20.0,
                minimum=1,
                maximum=1000,
                suggestions=milliseconds,
                help="Of one microbatch through one stage.",
            ),
            Number(
                name="backward_ms",
                label="Backward pass",
                unit="ms",
                default=40.0,
                minimum=1,
                maximum=1000,
                suggestions=milliseconds,
                help="About twice the forward pass: gradients of inputs and of weights.",
            ),
            Number(
                name="transfer_ms",
                label="A message takes",
                unit="ms",
                default=0.0,
                minimum=0,
                maximum=1000,
                suggestions=(0.0, 1.0, 2.0, 5.0, 10.0, 20.0),
                shows_only=True,
                help="Used in the timetable; the formula does not "
                "include messages. In a measured run they take their real time.",
            ),
        ]

    def on_screen(self, control: Control) -> bool:
        """Return whether the control applies to the schedule."""
        return control.name != "chunks" or bool(self.values["schedule"] == "interleaved")

    @property
    def timetable(self) -> StageSchedule:
        """The timetable for the present controls, in milliseconds.

        Raises
        ------
        InputError
            If there is no such schedule for these numbers.
        """
        return models.pipeline_schedule(**self._model_arguments(self.values, 1.0))

    def _model_arguments(self, values: Mapping[str, Any], scale: float) -> dict[str, Any]:
        """Return what ``gl.models.pipeline_schedule`` takes."""
        given = {
            "stages": values["stages"],
            "microbatches": values["microbatches"],
            "schedule": values["schedule"],
        }
        costs = {
            name: round(float(values[f"{name}_ms"]) * scale, 9)
            for name in ("forward", "backward", "transfer")
        }
        if not costs["transfer"]:
            del costs["transfer"]
        return {**given, **costs, **self._chunks(values)}

    def _chunks(self, values: Mapping[str, Any]) -> dict[str, int]:
        return {"chunks": values["chunks"]} if values["schedule"] == "interleaved" else {}

    def _run_arguments(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return what ``gl.parallel.run_schedule`` takes after the ranks."""
        costs = {
            f"{name}_seconds": round(float(values[f"{name}_ms"]) * _MS, 9)
            for name in ("forward", "backward")
        }
        return {
            "schedule": values["schedule"],
            "microbatches": values["microbatches"],
            **costs,
            **self._chunks(values),
        }

    def work(
        self, action: str, values: Mapping[str, Any], progress: Progress, stop: Stop
    ) -> ScheduleRun:
        """Run ``gl.parallel.run_schedule`` on as many ranks as stages."""
        with self.ranks(values["stages"], progress, stop) as ranks:
            return parallel.run_schedule(
                ranks, **self._run_arguments(values), steps=_STEPS, progress=progress, stop=stop
            )

    def _stale(self, action: str) -> bool:
        """The timetable is never old; a run that no longer fits it is not shown."""
        return False

    @property
    def _fresh(self) -> ScheduleRun | None:
        run: ScheduleRun | None = self.results.get("measure")
        return None if run is None or super()._stale("measure") else run

    def draw(self, values: Mapping[str, Any]) -> Drawing:
        """Return the timetable, the matching run below it if there is one, and where the time
        goes.
        """
        try:
            timetable = self.timetable
        except InputError as error:
            return Drawing(message=str(error).removeprefix("pipeline_schedule: "))
        run = self._fresh
        if run is None:
            headers, rows = timetable.table()
            words = (headers[0], f"{headers[1]} (ms)", *headers[2:])
            figure = figures.pipeline_schedule(timetable, unit="ms")
            return Drawing(
                figure,
                words,
                rows,
                [timetable.evidence],
                message=_sentence(timetable, "measure" in self.results),
            )
        in_seconds = models.pipeline_schedule(**self._model_arguments(values, _MS))
        headers, rows = run.table(in_seconds)
        return Drawing(
            figures.pipeline_schedule(in_seconds, run),
            headers,
            rows,
            [run.evidence, in_seconds.evidence],
            run.notes,
            _measured(in_seconds, run),
        )

    def code_for(self, values: Mapping[str, Any]) -> str:
        """Return the timetable's call, or that of the run where one is shown."""
        if self._fresh is None:
            return (
                "import gpulab as "
                f"gl\n\n{self._timetable_code(values, 1.0)}gl.figures.pipeline_schedule(s, "
                'unit="ms")'
            )
        # without messages the run has it
        beside = self._timetable_code(values, _MS) if float(values["transfer_ms"]) else ""
        given = self._run_arguments(values)
        first = f'"{given.pop("schedule")}", {given.pop("microbatches")}'
        # all digits that the arguments are rounded to
        words = "".join(f", {name}={value:.12g}" for name, value in given.items())
        return (
            f"import gpulab as gl\n\nwith gl.parallel.cluster({values['stages']}) as ranks:\n"
            "    r = gl.parallel.run_schedule(ranks, "
            f"{first}{words})\n{beside}gl.figures.pipeline_schedule({'s, r' if beside else 'r'})"
        )

    def _timetable_code(self, values: Mapping[str, Any], scale: float) -> str:
        given = self._model_arguments(values, scale)
        first = f"{given.pop('stages')}, {given.pop('microbatches')}, {given.pop('schedule')!r}".replace(
            "'", '"'
        )
        # all digits that the arguments are rounded to
        words = "".join(f", {name}={value:.12g}" for name, value in given.items())
        return f"s = gl.models.pipeline_schedule({first}{words})\n"


def _sentence(s: StageSchedule, moved: bool) -> str:
    """Return a description of the timetable."""
    formula = s.bubble_formula_ratio
    exact = formula is not None and abs(formula - s.bubble_ratio) < 5e-4
    beside = (
        f"as the formula {s.bubble_formula} gives"
        if exact
        else f"without messages {s.bubble_formula} gives {formula or 0:.1%}"
    )
    again = (
        " The measured run had other settings: press Measure on ranks to run the present ones."
        if moved
        else ""
    )
    return (
        f"The stages wait {s.bubble_ratio:.1%} of the time, {beside}. The speed-up of {s.stages} "
        f"stages over one is {s.speedup:.2f}x. "
        f"A stage holds the activations of {_microbatches(max(s.held))} at most.{again}"
    )


def _microbatches(count: float) -> str:
    return f"{count:g} microbatch{'' if count == 1 else 'es'}"


def _measured(s: StageSchedule, run: ScheduleRun) -> str:
    """Return a comparison of the measured run with the timetable."""
    more = 100 * (run.bubble_ratio - s.bubble_ratio)
    messages = (
        f"messages that do not take exactly {format_seconds(s.transfer)}"
        if s.transfer
        else "messages"
    )
    return (
        f"In the measured run the stages wait {run.bubble_ratio:.1%} of the time; the timetable "
        f"predicts {s.bubble_ratio:.1%}. The "
        f"difference of {more:+.1f} points comes from {messages}, from starting passes and from "
        "other programs. "
        f"A stage held {_microbatches(max(run.held))} at most."
    )
