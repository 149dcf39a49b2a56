"""The input pipeline as a timeline: measured here with real files and real workers, or modelled
from the sliders.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpulab import devices, figures, training, transfer
from gpulab.training import PipelineResult
from gpulab.units import format_seconds
from gpulab.widgets._controls import Choice, Control, Number, Slider, Switch
from gpulab.widgets._instrument import Action, Drawing, Instrument
from gpulab.widgets._work import Progress, Stop

_STEPS = 24
_SIZE = 128  # pixels of a sample
_STEP_SECONDS = tuple(k / 1e3 for k in (2, 5, 10, 20, 40, 80, 160))
# Milliseconds for one image before anything was measured: what a core of a few years ago takes to
# decode and scale one.
_LOADING_MS = 1.5
_LIVE = "live"


class PipelineTimeline(Instrument):
    """Load, copy, compute: see which part works when, and where the accelerator waits.

    ``results["run"]`` is what ``gl.training.pipeline`` returned; ``modelled`` is the model for the
    present controls.

    Examples
    --------
    >>> t = PipelineTimeline(workers=2, step_seconds=0.01)
    >>> t.modelled.workers, round(t.modelled.compute_seconds, 6)
    (2, 0.01)
    """

    title = "The input pipeline"
    summary = (
        "Images are loaded, copied and used for training. The accelerator is expensive: see "
        "where it waits."
    )
    actions: tuple[Action, ...] = (
        Action(
            "run", "Run the steps", f"Decode real JPEG files for {_STEPS} steps, with real workers."
        ),
    )

    def make_controls(self) -> Sequence[Control]:
        """Return whether to measure or to model, the settings of the loader, then those of the
        accelerator.
        """
        there = [d for d in devices.available() if d.torch_type == "cuda"]
        accelerators = [
            ("model", "modelled, with the step time below"),
            *((_LIVE, f"{d.name}, training for real") for d in there[:1]),
        ]
        seconds = [
            (s, format_seconds(s).replace(".00", "").replace(".0 ", " ")) for s in _STEP_SECONDS
        ]
        cores = devices.environment("cpu").cores
        ways = (("model", "modelled, updated with each control"), ("here", "measured here"))
        return [
            Choice(
                name="way",
                label="Timeline",
                options=ways,
                radio=True,
                shows_only=True,
                help="The modelled timeline is calculated; "
                "the measured one is made when you press the button.",
            ),
            Slider(
                name="batch_size",
                label="Images in a batch",
                options=(8, 16, 32, 64, 128),
                default=32,
                help="Loaded and trained on together.",
            ),
            Slider(
                name="workers",
                label="Workers",
                options=tuple(range(9)),
                default=0,
                help="Processes that load; with 0 the training process loads itself.",
            ),
            Slider(
                name="prefetch",
                label="Batches ahead per worker",
                options=(1, 2, 4, 8),
                default=2,
                help="How far a worker may be ahead of the training (prefetch_factor).",
            ),
            Switch(
                name="pinned",
                label="Pinned memory, asynchronous copies",
                default=False,
                help="The host continues while the batch is copied.",
            ),
            Switch(
                name="read_loss",
                label="Read the loss after each step",
                default=True,
                help="loss.item(): the host waits until the step is done.",
            ),
            Choice(
                name="accelerator",
                label="Accelerator",
                options=accelerators,
                help="The device that computes.",
            ),
            Slider(
                name="step_seconds",
                label="Its step takes",
                options=seconds,
                default=0.02,
                help="Of the modelled accelerator, for any "
                "batch size; half the time means an accelerator twice as fast.",
            ),
            Number(
                name="loading_ms",
                label="Loading one image",
                unit="ms",
                default=_LOADING_MS,
                minimum=0.01,
                maximum=1000,
                suggestions=(0.2, 0.5, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0),
                shows_only=True,
                help="For the modelled timeline: one worker on "
                "its own core. A measured run without workers sets it to your machine's time.",
            ),
            Number(
                name="cores",
                label="Cores",
                default=cores,
                minimum=1,
                maximum=512,
                integer=True,
                suggestions=(1, 2, 4, 8, 16, 32, 64),
                shows_only=True,
                help="Of the modelled host; if there are more workers than cores, they take turns.",
            ),
        ]

    def on_screen(self, control: Control) -> bool:
        """Return whether the control applies to what is shown."""
        if control.name in ("loading_ms", "cores"):
            return bool(self.values["way"] == "model")
        if control.name == "prefetch":
            return bool(self.values["workers"] > 0)
        if control.name == "accelerator":
            return len(getattr(control, "options", ())) > 1
        return True

    @property
    def modelled(self) -> PipelineResult:
        """The modelled timeline for the present controls."""
        return training.model_pipeline(**self._model_arguments(self.values))

    def _model_arguments(self, values: Mapping[str, Any]) -> dict[str, Any]:
        nbytes = values["batch_size"] * 3 * _SIZE**2
        road = transfer.link("pcie4-x16", memory="pinned" if values["pinned"] else "pageable")
        return {
            "loading_seconds": values["batch_size"] * float(values["loading_ms"]) * 1e-3,
            "compute_seconds": values["step_seconds"],
            "copy_seconds": road.seconds(nbytes),
            **_loader_arguments(values),
            "cores": int(values["cores"]),
            "batch_size": values["batch_size"],
            "batch_bytes": nbytes,
            "steps": _STEPS,
        }

    def _run_arguments(self, values: Mapping[str, Any]) -> dict[str, Any]:
        seconds = None if values["accelerator"] == _LIVE else values["step_seconds"]
        return {
            "batch_size": values["batch_size"],
            **_loader_arguments(values),
            "step_seconds": seconds,
            "steps": _STEPS,
        }

    def work(
        self, action: str, values: Mapping[str, Any], progress: Progress, stop: Stop
    ) -> PipelineResult:
        """Run ``gl.training.pipeline``."""
        return training.pipeline(**self._run_arguments(values), progress=progress, stop=stop)

    def ended(self, action: str) -> None:
        """Show the run; if nothing else shared the core, set the model's loading time to the
        measured one.
        """
        self.turn(action, way="here")
        p: PipelineResult = self.results["run"]
        if p.workers == 0:
            milliseconds = 1e3 * p.loading_seconds / p.batch_size
            self.turn(action, loading_ms=min(1000.0, max(0.01, float(f"{milliseconds:.3g}"))))

    def _stale(self, action: str) -> bool:
        """The modelled timeline is never old."""
        return self.values["way"] == "here" and super()._stale(action)

    def draw(self, values: Mapping[str, Any]) -> Drawing:
        """Return the timeline, its table and where the time goes."""
        p = self.modelled if values["way"] == "model" else self.results.get("run")
        if p is None:
            return Drawing(message="Press Run the steps: real files are decoded on this machine.")
        headers, rows = p.table()
        evidence = (
            [p.evidence]
            if p.evidence == p.accelerator_evidence
            else [p.evidence, p.accelerator_evidence]
        )
        return Drawing(figures.pipeline(p), headers, rows, evidence, p.notes, p.sentence)

    def code_for(self, values: Mapping[str, Any]) -> str:
        """Return the call of ``gl.training`` behind the picture."""
        if values["way"] == "model":
            name, given = "model_pipeline", self._model_arguments(values)
            first = f"{given.pop('loading_seconds'):.4g}, {given.pop('compute_seconds'):g}, "
            given["copy_seconds"] = float(f"{given['copy_seconds']:.3g}")
        else:
            name, given, first = "pipeline", self._run_arguments(values), ""
        words = ", ".join(f"{key}={value!r}" for key, value in given.items() if value is not None)
        return (
            f"import gpulab as gl\n\np = gl.training.{name}({first}{words})\ngl.figures.pipeline(p)"
        )


def _loader_arguments(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: values[name] for name in ("workers", "prefetch", "pinned", "read_loss")}
