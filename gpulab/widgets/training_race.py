"""Two configurations of one task, trained in turn from the same seed: live loss, throughput and memory."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from gpulab import devices, figures, recordings, training
from gpulab.evidence import Note
from gpulab.training import Moment, RaceResult, RecordedSteps
from gpulab.training.comparisons import format_points
from gpulab.units import format_ratio, format_seconds, plural
from gpulab.widgets._controls import Choice, Control, Number, Slider
from gpulab.widgets._instrument import Action, Drawing, Instrument
from gpulab.widgets._work import Progress, Stop

_TASKS = (
    ("digits-cnn", "digits, convolutional"), ("digits-mlp", "digits, two layers"), ("digits-hard-cnn", "hard digits, convolutional"),
    ("prose-transformer", "prose, transformer"),
)  # fmt: skip
_PRECISIONS = ("float32", "tf32", "bfloat16", "float16", "pure-bfloat16", "pure-float16")
_BATCHES = ((0, "the task's"), *((n, str(n)) for n in (8, 16, 32, 64, 128, 256)))
_MEANS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "nothing": ("no other technique", {}),
    "accumulate": ("4 parts, accumulated", {"accumulate": 4}),
    "checkpoint": ("activation checkpointing", {"checkpoint": True}),
    "channels_last": ("channels last", {"channels_last": True}),
    "fused": ("fused optimizer", {"fused": True}),
    "prefetch": ("a prefetching thread", {"prefetch": 2}),
    "workers": ("one worker process", {"workers": 1}),
    "compile": ("torch.compile", {"compile": True}),
    "cuda_graph": ("a CUDA graph", {"cuda_graph": True}),
    "clip": ("gradients clipped at 1", {"clip": 1.0}),
    "rate": ("a learning rate of 1", {"learning_rate": 1.0}),
}
# What the recorder calls them; the others are not among its experiments.
_RECORDED = {
    "nothing": "plain", "compile": "compile", "cuda_graph": "graph", "fused": "fused", "channels_last": "channels_last",
    "checkpoint": "checkpoint", "prefetch": "prefetch",
}  # fmt: skip
_NONE = "none"  # the choice of no recorded machine
_REDRAW_SECONDS = 0.25  # between two pictures of a race under way


class TrainingRace(Instrument):
    """Train a task with two configurations that take turns step by step, and watch loss, speed and memory.

    ``result`` is a ``gpulab.training.RaceResult``; while a race is running, a ``Moment``.

    Examples
    --------
    >>> print(TrainingRace(task="digits-mlp", second_precision="float16", steps=40).code)
    import gpulab as gl
    <BLANKLINE>
    r = gl.training.race("digits-mlp", {"precision": "float32"}, {"precision": "float16"}, steps=40, seed=0, device="cpu")
    gl.figures.race(r)
    """

    title = "Training race"
    summary = "Two configurations train one task from the same seed; they take turns step by step and never run at the same time."
    actions: tuple[Action, ...] = (Action("race", "Race", "Train both in turn; after Stop the results so far are kept."),)

    def __init__(self, **values: Any) -> None:
        self._devices = devices.available()
        super().__init__(**values)

    def make_controls(self) -> Sequence[Control]:
        """Return task, device, steps and seed; precision, batch and one technique for each side; and the recorded machine."""
        far = tuple(recordings.readable())
        machines = [(_NONE, "none" if far else "none recorded yet"), *((name, name) for name in far)]
        here = [(str(d), d.name) for d in reversed(self._devices)]
        means = [(name, text) for name, (text, _) in _MEANS.items()]
        controls: list[Control] = [
            Choice(name="task", label="Task", options=_TASKS, help="The task that both learn."),
            Choice(name="device", label="Device", options=here, help="The device on which both train."),
            Slider(name="steps", label="Steps each", options=[10, 20, 40, 80, 160, 320], default=80,
                   help="Each step is one update of the weights."),
            Number(name="seed", label="Seed", default=0, minimum=0, maximum=1e6, integer=True,
                   help="For the initial weights and the batches of both."),
        ]  # fmt: skip
        for side, precision in (("first", "float32"), ("second", "bfloat16")):
            controls += [
                Choice(name=f"{side}_precision", label=f"{side.capitalize()}: precision", options=_PRECISIONS, default=precision,
                       help="bfloat16 and float16 use autocast; the pure formats convert the weights too."),
                Choice(name=f"{side}_batch", label=f"{side.capitalize()}: batch", options=_BATCHES, help="Items per update."),
                Choice(name=f"{side}_means", label=f"{side.capitalize()}: with", options=means, help="What this device does not support "
                       "is left out, with a note."),
            ]  # fmt: skip
        controls.append(
            Choice(name="recorded", label="Recorded machine", options=machines, shows_only=True, help="The gain of the same change of "
                   "precision and technique on a recorded machine, with larger networks.")
        )  # fmt: skip
        return controls

    def work(self, action: str, values: Mapping[str, Any], progress: Progress, stop: Stop) -> RaceResult:
        """Run ``gl.training.race``; intermediate results are drawn a few times a second."""
        last = 0.0

        def show(moment: Moment) -> None:
            nonlocal last
            if time.monotonic() - last >= _REDRAW_SECONDS:
                self.publish(action, moment)
                last = time.monotonic()

        return training.race(
            values["task"], _options(values, "first"), _options(values, "second"), steps=values["steps"], seed=values["seed"],
            device=values["device"], show=show, progress=progress, stop=stop,
        )  # fmt: skip

    def draw(self, values: Mapping[str, Any]) -> Drawing:
        """Return both curves, the bars, the table and a sentence on which side was faster."""
        r, far = self.result, self._far(values)
        beside, words = _recorded_rows(far, values)
        if r is None:
            told = "Press Race: both train in turn, and the curves grow during the training."
            headers = ("", "first", "second") if beside else ()
            return Drawing(None, headers, beside, [far.evidence] if far and beside else [], (), f"{told} {words}".strip())
        if isinstance(r, Moment):
            return Drawing(figures.race(r), evidence=[r.evidence], message="The race is running; speeds have no interval yet.")
        headers, rows = r.table()
        notes = [*_of_side(r.names[0], r.first.notes), *_of_side(r.names[1], r.second.notes), *r.notes]
        shown = [*rows, *beside]
        evidence = [r.evidence, *([far.evidence] if far and beside else [])]
        return Drawing(figures.race(r), headers, shown, evidence, notes, f"{_verdict(r)} {words}".strip())

    def _far(self, values: Mapping[str, Any]) -> RecordedSteps | None:
        """Return what the chosen machine recorded of both ways; None where none is chosen, or the recorder knows no such means.

        Beside a race these are the race's ways, whatever the controls say by now.
        """
        made = self._made["race"] if self.result is not None and "race" in self._made else values
        means = [_RECORDED.get(made[f"{side}_means"]) for side in ("first", "second")]
        if values["recorded"] == _NONE or None in means:
            return None
        ways = [{"precision": made[f"{side}_precision"], "means": str(how)} for side, how in zip(("first", "second"), means, strict=True)]
        return training.recorded_steps(recordings.load(values["recorded"]), *ways)

    def code_for(self, values: Mapping[str, Any]) -> str:
        """Return the call of ``gl.training.race`` and its figure."""
        sides = ", ".join(_text(_options(values, side)) for side in ("first", "second"))
        rest = f'steps={values["steps"]}, seed={values["seed"]}, device="{values["device"]}"'
        return f'import gpulab as gl\n\nr = gl.training.race("{values["task"]}", {sides}, {rest})\ngl.figures.race(r)'


def _recorded_rows(far: RecordedSteps | None, values: Mapping[str, Any]) -> tuple[list[tuple[str, str, str]], str]:
    """Return the rows of the recorded machine, and what to say where it has none."""
    if values["recorded"] == _NONE:
        return [], ""
    if far is None or not far.rows:
        return [], f"This pair on {values['recorded']}: not recorded yet."
    rows = []
    for row in far.rows:
        ends = "no interval" if row.speedup_interval is None else " to ".join(map(format_ratio, row.speedup_interval))
        gain = f"{format_seconds(row.second_seconds)}, a speed-up of {format_ratio(row.speedup)} ({ends})"
        rows.append((f"RECORDED on {far.recording}: a step of its {row.model}", format_seconds(row.first_seconds), gain))
    return rows, ""


def _options(values: Mapping[str, Any], side: str) -> dict[str, Any]:
    batch = values[f"{side}_batch"]
    return {"precision": values[f"{side}_precision"], **({"batch_size": batch} if batch else {}), **_MEANS[values[f"{side}_means"]][1]}


def _text(options: Mapping[str, Any]) -> str:
    return (
        "{" + ", ".join(f'"{name}": ' + (f'"{value}"' if isinstance(value, str) else repr(value)) for name, value in options.items()) + "}"
    )


def _of_side(name: str, notes: Sequence[Note]) -> list[Note]:
    return [Note(note.code, f"{name}: {note.sentence}") for note in notes]


def _verdict(r: RaceResult) -> str:
    broken = [(name, run.steps) for name, run in zip(r.names, (r.first, r.second), strict=True) if run.ended == "diverged"]
    if broken:
        ends = " and ".join(f"{name} diverged after {plural(steps, 'step')}" for name, steps in broken)
        return f"{ends}, so their speeds are not worth comparing. The notes say what to try."
    if r.speedup is None:
        return f"The race was {r.ended}; too few steps were taken for a ratio of speeds."
    span = "no valid interval" if r.speedup_interval is None else "95 % " + " to ".join(map(format_ratio, r.speedup_interval))
    parts = [f"{r.names[1]} trains at {format_ratio(r.speedup)} the speed of {r.names[0]} ({span})."]
    if r.accuracy_difference is not None and r.accuracy_difference_interval is not None:
        low, high = map(format_points, r.accuracy_difference_interval)
        parts.append(f"Its accuracy differs by {format_points(r.accuracy_difference)} points ({low} to {high}).")
    up = [name for name, run in zip(r.names, (r.first, r.second), strict=True) if run.has_note("rising")]
    if up:
        parts.append(f"The loss of {' and '.join(up)} rose sharply during the training.")
    return " ".join(parts)
