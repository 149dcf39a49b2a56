"""Instruments on real ranks: the cluster that they share, pipeline schedules, and scaling.

One shared cluster is kept between runs, and ended by Stop or with the kernel.
"""

from __future__ import annotations

import atexit
import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from gpulab import figures, models, parallel, recordings
from gpulab.errors import InputError, StoppedError
from gpulab.models import ScalingCurve, StageSchedule
from gpulab.parallel import ScalingResult, ScheduleRun
from gpulab.parallel.scaling_steps import MODELS
from gpulab.units import (
    format_bytes,
    format_bytes_per_second,
    format_ratio,
    format_seconds,
    format_speedup,
    plural,
)
from gpulab.widgets._instrument import (
    Action,
    Choice,
    Code,
    Control,
    Drawing,
    Instrument,
    Number,
    Progress,
    Several,
    Slider,
    Stop,
    Values,
    call,
    cell,
)


class LiveRanks:
    """At most one cluster at a time, of the size that was last requested.

    Starting a cluster takes seconds, and each rank takes some hundred MiB. So the instruments share
    one; their measurements take turns anyway.
    """

    def __init__(self) -> None:
        # held for seconds, while ranks start, recover or end
        self._lock = threading.RLock()
        self._ranks: Any = None

    def of(self, n: int, progress: Progress) -> Any:
        """Return ``n`` ranks that are ready: the running ones, after a recovery if needed, or new
        ones.
        """
        with self._lock:
            if self._ranks is not None and self._ranks.n != n:
                self.end()  # before new ranks start: the old ones keep their memory until they end
            if self._ranks is None:
                ranks = parallel.cluster(n, progress=lambda fraction, text: progress(0.0, text))
                ranks.px = False  # %%px still runs on the learner's own ranks
                ranks.start()
                self._ranks = ranks
            elif not self._ranks.ready:
                self._ranks.recover()
            return self._ranks

    def end(self) -> None:
        """End the cluster; if there is none, nothing happens."""
        with self._lock:
            ranks, self._ranks = self._ranks, None
            if ranks is not None:
                ranks.stop()


LIVE = LiveRanks()
atexit.register(LIVE.end)


class OnRanks(Instrument):
    """The base class of instruments that run on real ranks."""

    # The ranks that this instrument's work uses; None while it waits its turn, when the shared
    # ranks may be in use by another instrument.
    _used: Any = None

    @contextlib.contextmanager
    def ranks(self, n: int, progress: Progress, stop: Stop) -> Iterator[Any]:
        """Provide ``n`` ranks for the work; after a stop or a failure the shared cluster is ended,
        so that no rank hangs.
        """
        try:
            self._used = LIVE.of(n, progress)
            if stop():
                raise StoppedError("Stopped while the ranks started; nothing was measured.")
            yield self._used
        except BaseException:
            self._used = None  # a Stop must not interrupt ranks that are being ended
            LIVE.end()
            raise
        finally:
            self._used = None
        if stop():
            LIVE.end()

    def stop(self) -> None:
        """Ask the work to stop and interrupt its ranks; their cluster is then ended."""
        super().stop()
        if (ranks := self._used) is not None:
            ranks.interrupt()


_MEASURED_STEPS = 3
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
                options=(
                    ("split", "split by hand: the batch as a whole"),
                    ("gpipe", "GPipe: all forwards, then all backwards"),
                    ("1f1b", "1F1B: a backward after each forward"),
                    ("interleaved", "interleaved 1F1B: several parts per stage"),
                ),
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
                when=lambda v: v["schedule"] == "interleaved",
            ),
            Number(
                name="forward_ms",
                label="Forward pass",
                unit="ms",
                default=20.0,
                minimum=1,
                maximum=1000,
                suggestions=milliseconds,
                help="The time of one microbatch in one stage.",
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
                "run, messages take their real time.",
            ),
        ]

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
                ranks, **_measured(values), steps=_MEASURED_STEPS, progress=progress, stop=stop
            )

    @property
    def _fresh(self) -> ScheduleRun | None:
        """The measured run; None if there is none, or if the controls have changed since then."""
        run: ScheduleRun | None = self.results.get("measure")
        return None if self.is_stale("measure") else run

    def draw(self, values: Values) -> Drawing:
        """Return the timetable, the matching run below it if there is one, and where the time
        goes.
        """
        try:
            timetable = self.timetable
        except InputError as error:
            message = str(error).removeprefix("pipeline_schedule: ")
            return Drawing(message=message, is_stale=False)
        run = self._fresh
        if run is None:
            (stage, waits, *others), rows = timetable.table()
            return Drawing(
                figures.pipeline_schedule(timetable, unit="ms"),
                (stage, f"{waits} (ms)", *others),
                rows,
                [timetable.evidence],
                message=_timetable_words(timetable, "measure" in self.results),
                is_stale=False,
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
        # if messages take no time, the run itself has the timetable
        beside = bool(float(values["transfer_ms"]))
        return cell(
            f"with gl.parallel.cluster({values['stages']}) as ranks:",
            f"    r = {call('parallel.run_schedule', *first, **arguments)}",
            *([timetable] if beside else []),
            f"gl.figures.pipeline_schedule({'s, r' if beside else 'r'})",
        )


def _digits(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return arguments with the floats as code, which keeps all digits that they are rounded to."""
    return {
        name: Code(f"{value:.12g}") if isinstance(value, float) else value
        for name, value in arguments.items()
    }


def _seconds(values: Values, name: str, scale: float) -> float:
    return round(float(values[f"{name}_ms"]) * scale, 9)


def _common(values: Values) -> dict[str, Any]:
    """Return the arguments that both core calls take."""
    chunks = ("chunks",) if values["schedule"] == "interleaved" else ()
    return {name: values[name] for name in ("schedule", "microbatches", *chunks)}


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
    again = "The measured run had other settings: press Measure on ranks to run the present ones."
    return (
        f"The stages wait {s.bubble_ratio:.1%} of the time; without messages, {s.bubble_formula} "
        f"gives {s.bubble_formula_ratio or 0:.1%}. The speed-up of {s.stages} "
        f"stages over one is {s.speedup:.2f}x. "
        f"A stage holds the activations of at most {_microbatches(max(s.held))}."
        f"{f' {again}' if moved else ''}"
    )


def _microbatches(count: float) -> str:
    return f"{count:g} microbatch{'' if count == 1 else 'es'}"


def _run_words(s: StageSchedule, run: ScheduleRun) -> str:
    """Return a comparison of the measured run with the timetable."""
    more = 100 * (run.bubble_ratio - s.bubble_ratio)
    return (
        f"In the measured run the stages wait {run.bubble_ratio:.1%} of the time; the timetable "
        f"predicts {s.bubble_ratio:.1%}. The difference of {more:+.1f} points comes from "
        "messages, from starting passes and from other programs. A stage held the activations of "
        f"at most {_microbatches(max(run.held))}."
    )


# Scaling over ranks.

_NONE = "none"
_WAIT_SECONDS = 0.02
# what the curve of a ring all-reduce depends on: the step, the gradients, and the link
_RING = ("step_seconds", "parameter_bytes", "latency_seconds", "bandwidth_bytes_per_second")


class ScalingLab(OnRanks):
    """Show the speed-up of more ranks, and why it is less than their number; Measure runs training
    steps on real ranks.

    ``curves`` are the model curves for the controls; ``result`` is the ``ScalingResult`` of the
    newest measurement.

    Examples
    --------
    >>> lab = ScalingLab(top=64, laws=("amdahl",), serial_share=0.1)
    >>> [curve.label for curve in lab.curves], round(lab.curves[0].speedup, 2)
    (["Amdahl's law"], 8.77)
    """

    title = "Scaling lab"
    summary = (
        "How much faster do more ranks train? Model curves with sliders, steps measured on this "
        "machine's ranks, recorded machines."
    )
    actions: tuple[Action, ...] = (
        Action(
            "measure",
            "Measure on ranks",
            "Start processes and time training steps on the first one, two ... of them, in turn.",
        ),
    )

    def make_controls(self) -> list[Control]:
        """Return what is shown, what is measured, and the numbers of the models."""
        live: dict[str, Any] = {"shows_only": True}
        ring: dict[str, Any] = {
            "shows_only": True,
            "when": lambda v: "ring" in v["laws"] and self._follows_sliders(v),
        }
        machines = [
            (name, recording.environment.device)
            for name, recording in recordings.readable().items()
        ]
        names = [
            (name, model.words) for name, model in MODELS.items() if name != "large-transformer"
        ]
        return [
            Choice(
                name="quantity",
                label="Show",
                options=(
                    ("speedup", "speed-up"),
                    ("efficiency", "efficiency"),
                    ("seconds", "time of a step"),
                ),
                radio=True,
                help="What the vertical axis shows, over the number of ranks.",
                **live,
            ),
            Choice(
                name="mode",
                label="Scaling",
                options=(
                    ("strong", "strong: constant global batch"),
                    ("weak", "weak: constant batch per rank"),
                ),
                radio=True,
                help="For both measurement and models; Amdahl's law describes strong scaling, "
                "Gustafson's law weak scaling.",
            ),
            Several(
                name="laws",
                label="Model curves",
                options=(
                    ("amdahl", "Amdahl"),
                    ("gustafson", "Gustafson"),
                    ("ring", "with communication (ring)"),
                ),
                default=("amdahl", "gustafson", "ring"),
                help="Each curve is dashed, in a color of its own.",
                **live,
            ),
            Slider(
                name="top",
                label="Up to ranks",
                options=[(t, f"{t:,}") for t in (8, 16, 64, 256, 1024, 4096)],
                default=64,
                help="The largest number of ranks of the model curves.",
                **live,
            ),
            Slider(
                name="serial_share",
                label="Serial share",
                options=[
                    (s, f"{100 * s:g} %")
                    for s in (0.0, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
                ],
                default=0.05,
                help="The part that is not parallelized: of the time on one rank (Amdahl, ring), "
                "of the time on all ranks (Gustafson).",
                **live,
            ),
            Choice(
                name="basis",
                label="Step and link",
                options=(("sliders", "from the sliders"), ("measured", "as measured here")),
                radio=True,
                help="For the model curves; measured values extend them far beyond this machine.",
                when=lambda v: bool(_made_of_step(v)),
                **live,
            ),
            Slider(
                name="step_seconds",
                label="Step on one rank",
                # from text, since 5 * 10.0**-6 is not exactly 5e-6
                options=[
                    (s, format_seconds(s))
                    for s in (float(f"{m}e{e}") for e in range(-3, 1) for m in (1, 2, 5))
                ],
                default=0.1,
                help="Forward, backward and update.",
                when=lambda v: bool(_made_of_step(v)) and self._follows_sliders(v),
                **live,
            ),
            Slider(
                name="parameter_bytes",
                label="Gradients",
                options=[(b, format_bytes(b)) for b in (2**k for k in range(20, 41, 2))],
                default=2**28,
                help="The payload of each step's all-reduce: the size of the model's parameters.",
                **ring,
            ),
            Slider(
                name="latency_seconds",
                label="Latency of a message",
                options=[
                    (a, format_seconds(a))
                    for a in (
                        0.0,
                        *(float(f"{m}e{e}") for e in range(-6, -3) for m in (1, 2, 5)),
                        1e-3,
                    )
                ],
                default=1e-5,
                help="A ring all-reduce over p ranks passes 2 (p - 1) messages one after another.",
                **ring,
            ),
            Slider(
                name="bandwidth_bytes_per_second",
                label="Bandwidth of a link",
                options=[
                    (r, format_bytes_per_second(r))
                    for r in (float(f"{m}e{e}") for e in range(8, 12) for m in (1, 2, 5))
                ],
                default=2e10,
                help="Between two neighbors of the ring.",
                **ring,
            ),
            Slider(
                name="overlap",
                label="Overlap",
                options=[(o, f"{100 * o:g} %") for o in (0.0, 0.25, 0.5, 0.75, 1.0)],
                default=0.0,
                help="The share of the communication that can overlap with the backward pass, if "
                "there is enough time.",
                when=lambda v: "ring" in v["laws"],
                **live,
            ),
            Choice(
                name="model",
                label="Measured model",
                options=names,
                help="Trained by DistributedDataParallel.",
            ),
            Choice(
                name="waits",
                label="Ranks compute",
                options=((False, "for real"), (True, "as a timed wait")),
                radio=True,
                help="A timed wait needs no core, so only "
                "communication is measured; the result is labeled accordingly.",
            ),
            Slider(
                name="ranks",
                label="Ranks to start",
                options=(1, 2, 3, 4),
                default=2,
                help="Each rank is a process of some hundred MiB. If there are more ranks than "
                "cores, they take turns.",
            ),
            Choice(
                name="recorded",
                label="Recorded machine",
                options=[(_NONE, _NONE), *machines],
                help="Drawn with hollow markers.",
                **live,
            ),
        ]

    def _follows_sliders(self, values: Values) -> bool:
        """Return whether step and link come from the sliders."""
        return values["basis"] == "sliders" or self._live_link is None

    # The work.

    def work(self, action: str, values: Values, progress: Progress, stop: Stop) -> ScalingResult:
        """Run ``gl.parallel.scaling`` on the chosen number of ranks."""
        with self.ranks(values["ranks"], progress, stop) as ranks:
            return parallel.scaling(
                ranks, values["model"], **_options(values), progress=progress, stop=stop
            )

    # What is shown.

    @property
    def _live_link(self) -> tuple[float, int, float, float] | None:
        """One rank's step, the gradients' bytes and the link, as measured here; None if they were
        not measured.
        """
        r: ScalingResult | None = self.results.get("measure")
        if r is None or r.latency_seconds is None or r.bandwidth_bytes_per_second is None:
            return None
        link = r.latency_seconds, r.bandwidth_bytes_per_second
        return (r.at(1).median_seconds, r.parameter_bytes, *link)

    @property
    def _ring(self) -> tuple[float, float, float, float]:
        """The step, gradients and link of the curve with communication: as measured or set."""
        live = self._live_link if self.values["basis"] == "measured" else None
        return live or tuple(self.values[name] for name in _RING)

    @property
    def curves(self) -> list[ScalingCurve]:
        """The models for the present controls."""
        v = self.values
        top, share, step = v["top"], v["serial_share"], self._ring
        ranks = _powers(top)
        laws = {"amdahl": models.amdahl, "gustafson": models.gustafson}
        made = [laws[law](share, ranks, seconds=step[0]) for law in v["laws"] if law in laws]
        if "ring" in v["laws"]:
            options = {"mode": v["mode"], "overlap": v["overlap"], "serial_share": share}
            best = models.scaling(*step, ranks, **options).best_ranks or 1
            made.append(models.scaling(*step, sorted({*ranks, min(best, top)}), **options))
        return made

    @property
    def _far(self) -> ScalingResult | None:
        """The recorded machine's scaling."""
        name = self.values["recorded"]
        if name == _NONE:
            return None
        return parallel.recorded_scaling(recordings.load(name), mode=self.values["mode"])

    def draw(self, values: Values) -> Drawing:
        """Return points and curves as figure and table, and a description."""
        live: ScalingResult | None = self.results.get("measure")
        far, curves = self._far, self.curves
        shown = [r for r in (live, far) if r is not None]
        made = _made_of_step(values) if values["basis"] == "measured" else ""
        measured = ["Press Measure on ranks to add points of this machine."]
        if live is not None:
            measured = [f"Measured: {live.sentence}"]
        if made and self._live_link is None:
            why = "Until then" if live is None else "One rank alone has no link:"
            measured.append(f"{why} {made} the sliders.")
        missing = values["recorded"] if far is None else _NONE
        recorded = [] if missing == _NONE else [f"Scaling on {missing}: not recorded yet."]
        return Drawing(
            figures.scaling(shown, curves, values["quantity"]),
            *_table(shown, curves, values["top"]),
            [r.evidence for r in shown] + [c.evidence for c in curves],
            [note for r in shown for note in r.notes],
            " ".join([*_ring_words(curves, values["top"]), *measured, *recorded]),
        )

    # The code.

    def code_for(self, values: Values) -> str:
        """Return the models' calls, the measurement and the picture."""
        step, share = [Code(f"{v:.10g}") for v in self._ring], Code(f"{values['serial_share']:g}")
        ranks = Code("ranks")
        best = {p.ranks for c in self.curves for p in c.points}.difference(_powers(values["top"]))
        calls = {
            "amdahl": call("models.amdahl", share, ranks, seconds=step[0]),
            "gustafson": call("models.gustafson", share, ranks, seconds=step[0]),
            "ring": call(
                "models.scaling",
                *step,
                Code(f"sorted([*ranks, {best.pop()}])") if best else ranks,
                mode=values["mode"],
                overlap=Code(f"{values['overlap']:g}"),
                serial_share=share,
            ),
        }
        shown = {}
        if "measure" in self.results:
            run = values["ranks"], values["model"]
            shown["s"] = call("parallel.scaling", *run, **_options(values))
        if self._far is not None:
            recording = Code(call("recordings.load", values["recorded"]))
            shown["far"] = call("parallel.recorded_scaling", recording, mode=values["mode"])
        quantity = "" if values["quantity"] == "speedup" else f', "{values["quantity"]}"'
        return cell(
            f"ranks = [2**k for k in range({values['top'].bit_length()})]",
            "curves = [",
            *(f"    {calls[law]}," for law in values["laws"]),
            "]",
            *(f"{name} = {made}" for name, made in shown.items()),
            f"gl.figures.scaling([{', '.join(shown)}], curves{quantity})",
        )


def _made_of_step(values: Values) -> str:
    """Return words that name the curves which depend on the time of one rank's step, or "" if none
    does. If seconds are shown, all curves depend on it.
    """
    if "ring" in values["laws"]:
        return "the curve with communication uses"
    return "the model curves use" if values["laws"] and values["quantity"] == "seconds" else ""


def _options(values: Values) -> dict[str, Any]:
    """Return what ``gl.parallel.scaling`` takes after ranks and model."""
    return {"mode": values["mode"], **({"wait_seconds": _WAIT_SECONDS} if values["waits"] else {})}


def _powers(top: int) -> list[int]:
    return [2**k for k in range(top.bit_length())]


def _ring_words(curves: Sequence[ScalingCurve], top: int) -> list[str]:
    words = []
    for ring in (c for c in curves if c.law == "ring all-reduce"):
        last = ring.points[-1]
        words.append(
            f"With communication, {top:,} ranks have a speed-up of {format_ratio(last.speedup)} "
            f"over one rank and an efficiency of {100 * last.efficiency:.3g} %; "
            f"{100 * last.exposed_seconds / last.seconds:.3g} % of a step is spent waiting for "
            "gradients."
        )
        if ring.best_ranks is not None:
            words.append(
                f"The highest speed-up is {format_ratio(ring.limit_speedup)}, with "
                f"{plural(ring.best_ranks, 'rank')}; more do not help."
            )
    return words


def _table(
    shown: Sequence[ScalingResult], curves: Sequence[ScalingCurve], top: int
) -> tuple[list[str], list[list[str]]]:
    """Return one row per number of ranks: what was measured and recorded, then each model."""
    columns: list[tuple[str, dict[int, str]]] = []  # heading; ranks -> text
    for r in shown:
        steps = {p.ranks: format_seconds(p.median_seconds) for p in r.points}
        speedups = {
            p.ranks: format_speedup(p.speedup, p.speedup_interval)
            for p in r.points
            if p.speedup is not None
        }
        badge = r.evidence.badge.lower()
        columns += [(f"step ({badge})", steps), ("speed-up (95 %)", speedups)]
    columns += [
        (
            f"{c.label}: speed-up (efficiency)",
            {q.ranks: f"{format_ratio(q.speedup)} ({100 * q.efficiency:.3g} %)" for q in c.points},
        )
        for c in curves
    ]
    counts = sorted({*_powers(top), *(p.ranks for r in shown for p in r.points)})
    return ["ranks", *(heading for heading, _ in columns)], [
        [f"{count:,}", *(texts.get(count, "") for _, texts in columns)] for count in counts
    ]
