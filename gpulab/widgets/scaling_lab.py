"""Scaling over ranks: points measured on real ranks, model curves, and recordings."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from gpulab import figures, models, parallel, recordings
from gpulab.evidence import Badge
from gpulab.models import ScalingCurve
from gpulab.parallel import ScalingResult
from gpulab.parallel.scaling_steps import MODELS
from gpulab.units import (
    format_bytes,
    format_bytes_per_second,
    format_ratio,
    format_seconds,
    plural,
)
from gpulab.widgets._instrument import (
    Action,
    Choice,
    Code,
    Control,
    Drawing,
    Progress,
    Several,
    Slider,
    Stop,
    Values,
    call,
    cell,
)
from gpulab.widgets.ranks import OnRanks

_NONE = "none"
_LAWS = (("amdahl", "Amdahl"), ("gustafson", "Gustafson"), ("ring", "with communication (ring)"))
_QUANTITIES = (("speedup", "speed-up"), ("efficiency", "efficiency"), ("seconds", "time of a step"))
_MODES = (("strong", "strong: constant global batch"), ("weak", "weak: constant batch per rank"))
_STAGES = ((False, "really"), (True, "as a timed wait"))
_WAIT_SECONDS = 0.02
# as one types them: 5 * 10.0**-6 is not 5e-6
_STEPS = tuple(float(f"{m}e{e}") for e in range(-3, 1) for m in (1, 2, 5))
_BYTES = tuple(2**k for k in range(20, 41, 2))
_LATENCIES = (0.0, *(float(f"{m}e{e}") for e in range(-6, -3) for m in (1, 2, 5)), 1e-3)
_RATES = tuple(float(f"{m}e{e}") for e in range(8, 12) for m in (1, 2, 5))
_TOPS = (8, 16, 64, 256, 1024, 4096)
_CURVE_POINTS = 48
_SHARES = (0.0, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
# what a ring all-reduce costs: the step, the gradients, and the link
_RING = ("step_seconds", "parameter_bytes", "latency_seconds", "bandwidth_bytes_per_second")


class ScalingLab(OnRanks):
    """Show the speed-up of more ranks, and why it is less than their number; Measure runs training
    steps on real ranks.

    ``curves`` are the models of the controls; ``result`` is the ``ScalingResult`` of the newest
    measurement.

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

    def __init__(self, **values: Any) -> None:
        self._recorded: dict[tuple[str, str], ScalingResult | None] = {}
        super().__init__(**values)

    def make_controls(self) -> list[Control]:
        """Return what is shown, what is measured, and the numbers of the models."""
        live: dict[str, Any] = {"shows_only": True}
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
                options=_QUANTITIES,
                radio=True,
                help="Of one rank, over the number of ranks.",
                **live,
            ),
            Choice(
                name="mode",
                label="Scaling",
                options=_MODES,
                radio=True,
                help="For both measurement and models; Amdahl's law describes strong scaling, "
                "Gustafson's law weak scaling.",
            ),
            Several(
                name="laws",
                label="Model curves",
                options=_LAWS,
                default=("amdahl", "gustafson", "ring"),
                help="Each dashed, in a color of its own.",
                **live,
            ),
            Slider(
                name="top",
                label="Up to ranks",
                options=[(t, f"{t:,}") for t in _TOPS],
                default=64,
                help="Of the curves.",
                **live,
            ),
            Slider(
                name="serial_share",
                label="Serial share",
                options=[(s, f"{100 * s:g} %") for s in _SHARES],
                default=0.05,
                help="The share of the time on one rank that cannot be parallelized.",
                **live,
            ),
            Choice(
                name="basis",
                label="Step and link",
                options=(("sliders", "from the sliders"), ("measured", "as measured here")),
                radio=True,
                help="For the model curves; measured values extend them far beyond this machine.",
                **live,
            ),
            Slider(
                name="step_seconds",
                label="Step on one rank",
                options=[(s, format_seconds(s)) for s in _STEPS],
                default=0.1,
                help="Forward, backward and update.",
                **live,
            ),
            Slider(
                name="parameter_bytes",
                label="Gradients",
                options=[(b, format_bytes(b)) for b in _BYTES],
                default=2**28,
                help="The payload of each step's all-reduce: the size of the model's parameters.",
                **live,
            ),
            Slider(
                name="latency_seconds",
                label="Latency of a message",
                options=[(a, format_seconds(a)) for a in _LATENCIES],
                default=1e-5,
                help="A ring all-reduce over p ranks passes 2 (p - 1) messages one after another.",
                **live,
            ),
            Slider(
                name="bandwidth_bytes_per_second",
                label="Bandwidth of a link",
                options=[(r, format_bytes_per_second(r)) for r in _RATES],
                default=2e10,
                help="Between two neighbors of the ring.",
                **live,
            ),
            Slider(
                name="overlap",
                label="Overlap",
                options=[(o, f"{100 * o:g} %") for o in (0.0, 0.25, 0.5, 0.75, 1.0)],
                default=0.0,
                help="The share of the communication that can overlap with the backward pass, if "
                "there is enough time.",
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
                options=_STAGES,
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

    def on_screen(self, control: Control) -> bool:
        """Return whether a control applies: the sliders of step and link only if a curve depends on
        them.
        """
        ring = "ring" in self.values["laws"]
        sliders = self.values["basis"] == "sliders" or self._live_link is None
        if control.name == "basis":
            return bool(_made_of_step(self.values))
        if control.name == "step_seconds":
            return bool(_made_of_step(self.values)) and sliders
        if control.name in _RING:
            return ring and sliders
        return ring if control.name == "overlap" else super().on_screen(control)

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
        """One rank's step, the gradients' bytes and the link, as measured here; None where they
        were not.
        """
        r: ScalingResult | None = self.results.get("measure")
        if r is None or r.latency_seconds is None or r.bandwidth_bytes_per_second is None:
            return None
        link = r.latency_seconds, r.bandwidth_bytes_per_second
        return (r.at(1).median_seconds, r.parameter_bytes, *link)

    @property
    def _ring(self) -> tuple[float, float, float, float]:
        """What the curve with communication is made of: measured here, or from the sliders."""
        live = self._live_link if self.values["basis"] == "measured" else None
        return live or tuple(self.values[name] for name in _RING)

    @property
    def curves(self) -> list[ScalingCurve]:
        """The models for the present controls."""
        v, made = self.values, []
        top, share, step = v["top"], v["serial_share"], self._ring
        # evenly spaced on a log scale, the powers of two among them
        ranks = {round(top ** (k / _CURVE_POINTS)) for k in range(_CURVE_POINTS + 1)}
        ranks |= {*_powers(top)}
        if "amdahl" in v["laws"]:
            made.append(models.amdahl(share, sorted(ranks), seconds=step[0]))
        if "gustafson" in v["laws"]:
            made.append(models.gustafson(share, sorted(ranks), seconds=step[0]))
        if "ring" in v["laws"]:
            options = {"mode": v["mode"], "overlap": v["overlap"], "serial_share": share}
            curve = models.scaling(*step, sorted(ranks), **options)
            if curve.best_ranks is not None and curve.best_ranks <= top:
                curve = models.scaling(*step, sorted({*ranks, curve.best_ranks}), **options)
            made.append(curve)
        return made

    @property
    def _far(self) -> ScalingResult | None:
        """The recorded machine's scaling; kept, since reading it takes longer than a redraw may."""
        name, mode = self.values["recorded"], self.values["mode"]
        if name == _NONE:
            return None
        if (name, mode) not in self._recorded:
            loaded = recordings.load(name)
            self._recorded[name, mode] = parallel.recorded_scaling(loaded, mode=mode)
        return self._recorded[name, mode]

    def draw(self, values: Values) -> Drawing:
        """Return points and curves as figure and table, and a description."""
        live: ScalingResult | None = self.results.get("measure")
        far, curves = self._far, self.curves
        shown = [r for r in (live, far) if r is not None]
        words = _ring_words(curves, values["top"])
        made = _made_of_step(values) if values["basis"] == "measured" else ""
        if live is None:
            words.append("Press Measure on ranks to add points of this machine.")
            words += [f"Until then {made} the sliders."] if made else []
        else:
            words.append(f"Measured: {live.sentence}")
            if made and self._live_link is None:
                words.append(f"One rank alone has no link: {made} the sliders.")
        if far is not None and len(far.points) == 1:
            words.append(_alone(far))
        if values["recorded"] != _NONE and far is None:
            words.append(f"Scaling on {values['recorded']}: not recorded yet.")
        elif values["recorded"] == _NONE and not self._any_recorded:
            words.append("Scaling over several GPUs: not recorded yet.")
        headers, rows = _table(shown, curves, values["top"])
        return Drawing(
            figures.scaling(shown, curves, values["quantity"]),
            headers,
            rows,
            [r.evidence for r in shown] + [c.evidence for c in curves],
            [note for r in shown for note in r.notes],
            " ".join(words),
        )

    @functools.cached_property
    def _any_recorded(self) -> bool:
        """Whether some machine with an accelerator has recorded scaling over more than one rank."""
        return any(
            entry.params["ranks"] != 1
            for recording in recordings.readable().values()
            if recording.environment.device_kind != "cpu"
            for entry in recording.select("data-parallel scaling")
        )

    # The code.

    def code_for(self, values: Values) -> str:
        """Return the models' calls, the measurement and the picture."""
        step, share = [Code(f"{v:.10g}") for v in self._ring], Code(f"{values['serial_share']:g}")
        ranks = Code("ranks")
        calls = {
            "amdahl": call("models.amdahl", share, ranks, seconds=step[0]),
            "gustafson": call("models.gustafson", share, ranks, seconds=step[0]),
            "ring": call(
                "models.scaling",
                *step,
                ranks,
                mode=values["mode"],
                overlap=Code(f"{values['overlap']:g}"),
                serial_share=share,
            ),
        }
        lines = [f"ranks = [2**k for k in range({values['top'].bit_length()})]"]
        lines += ["curves = [", *(f"    {calls[law]}," for law in values["laws"]), "]"]
        shown = []
        if "measure" in self.results:
            made = call("parallel.scaling", values["ranks"], values["model"], **_options(values))
            lines.append(f"s = {made}")
            shown.append("s")
        if self._far is not None:
            recording = Code(call("recordings.load", values["recorded"]))
            made = call("parallel.recorded_scaling", recording, mode=values["mode"])
            lines.append(f"far = {made}")
            shown.append("far")
        quantity = "" if values["quantity"] == "speedup" else f', "{values["quantity"]}"'
        return cell(*lines, f"gl.figures.scaling([{', '.join(shown)}], curves{quantity})")


def _made_of_step(values: Values) -> str:
    """Return which of the curves depend on the step of one rank, in words, or "": in seconds all
    do.
    """
    if "ring" in values["laws"]:
        return "the curve with communication uses"
    return "the model curves use" if values["laws"] and values["quantity"] == "seconds" else ""


def _options(values: Values) -> dict[str, Any]:
    """Return what ``gl.parallel.scaling`` takes after ranks and model."""
    return {"mode": values["mode"], **({"wait_seconds": _WAIT_SECONDS} if values["waits"] else {})}


def _powers(top: int) -> list[int]:
    return [2**k for k in range(top.bit_length()) if 2**k <= top]


def _ring_words(curves: Sequence[ScalingCurve], top: int) -> list[str]:
    ring = next((c for c in curves if c.law == "ring all-reduce"), None)
    if ring is None:
        return []
    last = ring.points[-1]
    words = [
        f"With communication, {top:,} ranks have a speed-up of {format_ratio(last.speedup)} over "
        f"one, an efficiency of {100 * last.efficiency:.3g} %; "
        f"{100 * last.exposed_seconds / last.seconds:.3g} % of a step is spent waiting for "
        "gradients."
    ]
    if ring.best_ranks is not None:
        words.append(
            f"More than {plural(ring.best_ranks, 'rank')} do not help (the speed-up there is "
            f"{format_ratio(ring.limit_speedup)})."
        )
    return words


def _alone(far: ScalingResult) -> str:
    """Return what a machine recorded that has one processor: the step and the gradients, for the
    sliders.
    """
    (point,) = far.points
    return (
        f"{far.environment.device} was recorded with {plural(point.ranks, 'rank')}: "
        f"{format_seconds(point.median_seconds)} per step, {format_bytes(far.parameter_bytes)} of "
        "gradients. More ranks: not recorded yet."
    )


def _table(
    shown: Sequence[ScalingResult], curves: Sequence[ScalingCurve], top: int
) -> tuple[Sequence[str], list[Sequence[str | Badge]]]:
    """Return a row a number of ranks: what was measured and recorded, then what each model says."""
    headers = ["ranks"]
    for r in shown:
        headers += [f"step ({r.evidence.badge.value.lower()})", "speed-up (95 %)"]
    headers += [c.label for c in curves]
    measured = [{p.ranks: p for p in r.points} for r in shown]
    modelled = [{p.ranks: p for p in c.points} for c in curves]
    rows: list[Sequence[str | Badge]] = []
    for count in sorted({*_powers(top), *(ranks for points in measured for ranks in points)}):
        row = [f"{count:,}"]
        for points in measured:
            p = points.get(count)
            row += [format_seconds(p.median_seconds), _speedup(p)] if p else ["", ""]
        for curve in modelled:
            q = curve.get(count)
            row.append(f"{format_ratio(q.speedup)} ({100 * q.efficiency:.3g}%)" if q else "")
        rows.append(row)
    return headers, rows


def _speedup(p: Any) -> str:
    if p.speedup is None:
        return ""
    span = "(no interval)"
    if p.speedup_interval is not None:
        span = f"[{', '.join(map(format_ratio, p.speedup_interval))}]"
    return f"{format_ratio(p.speedup)} {span}"
