"""Instruments on real ranks: the cluster that they share, and pipeline schedules.

One shared cluster is kept between runs and ended by Stop, with the last instrument or with the
kernel.
"""

from __future__ import annotations

import atexit
import contextlib
import threading
import weakref
from collections.abc import Iterator
from typing import Any

from gpulab import figures, models, parallel
from gpulab.errors import InputError, StoppedError
from gpulab.models import StageSchedule
from gpulab.parallel import ScheduleRun
from gpulab.units import format_seconds
from gpulab.widgets._instrument import (
    Action,
    Choice,
    Code,
    Control,
    Drawing,
    Instrument,
    Number,
    Progress,
    Slider,
    Stop,
    Values,
    call,
    cell,
)


class LiveRanks:
    """At most one cluster at a time, of the size that was last asked for.

    Starting one takes seconds, and each rank takes some hundred MiB. So the instruments share it;
    their measurements take turns anyway.
    """

    def __init__(self) -> None:
        # held for seconds, while ranks start, recover or end: one cluster at a time
        self._lock = threading.RLock()
        # held for a moment, while it is decided whose the ranks are
        self._deciding = threading.RLock()
        self._ranks: Any = None
        self._retired: list[Any] = []  # ranks that nobody has any more, still to be ended
        self._users: weakref.WeakSet[Any] = weakref.WeakSet()

    def of(self, n: int, user: Any, progress: Progress) -> Any:
        """Return ``n`` ranks that are ready: the running ones, after a recovery if needed, or new
        ones.
        """
        with self._lock:
            with self._deciding:
                if self._ranks is not None and self._ranks.n != n:
                    self._retire()
                self._users.add(user)
                ranks = self._ranks
            self.end_retired()  # first: they have their memory until they are gone
            if ranks is None:
                ranks = parallel.cluster(n, progress=lambda fraction, text: progress(0.0, text))
                ranks.px = False  # %%px goes on reaching the learner's own ranks
                ranks.start()
                self._ranks = ranks
            elif not ranks.ready:
                ranks.recover()
            return ranks

    def end(self) -> None:
        """End the cluster; if there is none, nothing happens."""
        with self._lock:
            self._retire()
            self.end_retired()

    def leave(self, user: Any) -> bool:
        """Remove an instrument from the users, without waiting; return whether there are ranks for
        ``end_retired`` to end.
        """
        with self._deciding:
            self._users.discard(user)
            if not self._users:
                self._retire()
            return bool(self._retired)

    def end_retired(self) -> None:
        """End the ranks that no instrument uses any more; it takes seconds."""
        with self._lock:
            while self._retired:
                self._retired.pop().stop()

    def _retire(self) -> None:
        """Take the ranks away from all users; the next call of ``of`` starts new ones."""
        with self._deciding:
            ranks, self._ranks = self._ranks, None
            self._users.clear()
            if ranks is not None:
                self._retired.append(ranks)


LIVE = LiveRanks()
atexit.register(LIVE.end)


class OnRanks(Instrument):
    """The base class of instruments that run on real ranks."""

    # the ranks that work under way uses; others may be at work on the shared ones while it waits
    # its turn
    _used: Any = None

    @contextlib.contextmanager
    def ranks(self, n: int, progress: Progress, stop: Stop) -> Iterator[Any]:
        """Provide ``n`` ranks for the work; after a stop or a failure the shared cluster is ended,
        so that no rank hangs.
        """
        try:
            self._used = LIVE.of(n, self, progress)
            if stop():
                raise StoppedError("Stopped while the ranks started; nothing was measured.")
            yield self._used
        except InputError:  # refused before a rank heard of it
            raise
        except BaseException:
            self._used = None  # a Stop must not interrupt ranks that are being ended
            LIVE.end()
            raise
        finally:
            self._used = None
        if stop():
            LIVE.end()

    def stop(self) -> None:
        """Ask the work to stop, interrupt its ranks and end their cluster."""
        running = self.running
        super().stop()
        if running:
            if (ranks := self._used) is not None:
                ranks.interrupt()
        elif LIVE.leave(self):
            # a cell that ran again, or a call from Python: nothing is under way, so the processes
            # may go
            threading.Thread(target=LIVE.end_retired, name="gpulab-ranks-end", daemon=True).start()

    def close(self) -> None:
        """Stop the work, end the ranks if no other instrument uses them, and close the widgets."""
        super().close()
        if LIVE.leave(self):
            LIVE.end_retired()


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
        "A model split into stages, one per rank, and a batch in microbatches: when each stage "
        "works, and how large the bubble is."
    )
    actions: tuple[Action, ...] = (
        Action(
            "measure",
            "Measure on ranks",
            "Run each stage in a process; a pass computes a little, then sleeps until its time is "
            "over.",
        ),
    )

    def make_controls(self) -> list[Control]:
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
                help="Parts of the batch. The interleaved schedule needs a multiple of the number "
                "of stages.",
            ),
            Slider(
                name="chunks",
                label="Parts of the model per stage",
                options=(2, 3, 4),
                default=2,
                help="For the interleaved schedule: the batch passes through all stages this many "
                "times.",
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
                help="Used in the timetable; the formula does not include messages. In a measured "
                "run they take their real time.",
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
        return models.pipeline_schedule(**_modelled(self.values, 1.0))

    def work(self, action: str, values: Values, progress: Progress, stop: Stop) -> ScheduleRun:
        """Run ``gl.parallel.run_schedule`` on as many ranks as stages."""
        with self.ranks(values["stages"], progress, stop) as ranks:
            return parallel.run_schedule(
                ranks, **_measured(values), steps=_STEPS, progress=progress, stop=stop
            )

    def _stale(self, action: str) -> bool:
        """The timetable is never old; a run that no longer fits it is not shown."""
        return False

    @property
    def _fresh(self) -> ScheduleRun | None:
        run: ScheduleRun | None = self.results.get("measure")
        return None if run is None or super()._stale("measure") else run

    def draw(self, values: Values) -> Drawing:
        """Return the timetable, the matching run below it if there is one, and where the time
        goes.
        """
        try:
            timetable = self.timetable
        except InputError as error:
            return Drawing(message=str(error).removeprefix("pipeline_schedule: "))
        run = self._fresh
        if run is None:
            (stage, waits, *others), rows = timetable.table()
            return Drawing(
                figures.pipeline_schedule(timetable, unit="ms"),
                (stage, f"{waits} (ms)", *others),
                rows,
                [timetable.evidence],
                message=_timetable_words(timetable, "measure" in self.results),
            )
        in_seconds = models.pipeline_schedule(**_modelled(values, _MS))
        headers, rows = run.table(in_seconds)
        return Drawing(
            figures.pipeline_schedule(in_seconds, run),
            headers,
            rows,
            [run.evidence, in_seconds.evidence],
            run.notes,
            _run_words(in_seconds, run),
        )

    def code_for(self, values: Values) -> str:
        """Return the timetable's call, or that of the run where one is shown."""
        scale = 1.0 if self._fresh is None else _MS
        arguments = _digits(_modelled(values, scale))
        first = arguments.pop("stages"), arguments.pop("microbatches"), arguments.pop("schedule")
        timetable = f"s = {call('models.pipeline_schedule', *first, **arguments)}"
        if self._fresh is None:
            return cell(timetable, 'gl.figures.pipeline_schedule(s, unit="ms")')
        arguments = _digits(_measured(values))
        first = Code("ranks"), arguments.pop("schedule"), arguments.pop("microbatches")
        # without messages the run has the timetable
        beside = bool(float(values["transfer_ms"]))
        return cell(
            f"with gl.parallel.cluster({values['stages']}) as ranks:",
            f"    r = {call('parallel.run_schedule', *first, **arguments)}",
            *([timetable] if beside else []),
            f"gl.figures.pipeline_schedule({'s, r' if beside else 'r'})",
        )


def _digits(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return arguments with the numbers as code: all digits that they are rounded to."""
    return {
        name: Code(f"{value:.12g}") if isinstance(value, float) else value
        for name, value in arguments.items()
    }


def _seconds(values: Values, name: str, scale: float) -> float:
    return round(float(values[f"{name}_ms"]) * scale, 9)


def _common(values: Values) -> dict[str, Any]:
    """Return what both core calls take."""
    common = {name: values[name] for name in ("schedule", "microbatches")}
    return {**common, "chunks": values["chunks"]} if common["schedule"] == "interleaved" else common


def _modelled(values: Values, scale: float) -> dict[str, Any]:
    """Return what ``gl.models.pipeline_schedule`` takes."""
    costs = {name: _seconds(values, name, scale) for name in ("forward", "backward", "transfer")}
    costs = {name: cost for name, cost in costs.items() if cost or name != "transfer"}
    return {"stages": values["stages"], **costs, **_common(values)}


def _measured(values: Values) -> dict[str, Any]:
    """Return what ``gl.parallel.run_schedule`` takes after the ranks."""
    costs = {f"{name}_seconds": _seconds(values, name, _MS) for name in ("forward", "backward")}
    return {**costs, **_common(values)}


def _timetable_words(s: StageSchedule, moved: bool) -> str:
    """Return a description of the timetable."""
    formula = s.bubble_formula_ratio
    beside = f"without messages {s.bubble_formula} gives {formula or 0:.1%}"
    if formula is not None and abs(formula - s.bubble_ratio) < 5e-4:
        beside = f"as the formula {s.bubble_formula} gives"
    again = "The measured run had other settings: press Measure on ranks to run the present ones."
    return (
        f"The stages wait {s.bubble_ratio:.1%} of the time, {beside}. The speed-up of {s.stages} "
        f"stages over one is {s.speedup:.2f}x. "
        f"A stage holds the activations of {_microbatches(max(s.held))} at most."
        f"{f' {again}' if moved else ''}"
    )


def _microbatches(count: float) -> str:
    return f"{count:g} microbatch{'' if count == 1 else 'es'}"


def _run_words(s: StageSchedule, run: ScheduleRun) -> str:
    """Return a comparison of the measured run with the timetable."""
    more = 100 * (run.bubble_ratio - s.bubble_ratio)
    messages = "messages"
    if s.transfer:
        messages += f" that do not take exactly {format_seconds(s.transfer)}"
    return (
        f"In the measured run the stages wait {run.bubble_ratio:.1%} of the time; the timetable "
        f"predicts {s.bubble_ratio:.1%}. The difference of {more:+.1f} points comes from "
        f"{messages}, from starting passes and from other programs. A stage held "
        f"{_microbatches(max(run.held))} at most."
    )
