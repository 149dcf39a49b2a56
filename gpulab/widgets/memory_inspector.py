"""What occupies a device's memory, what a training step needs, what another one would need, and
what can be released.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpulab import devices, figures, memory
from gpulab.devices import Device
from gpulab.errors import OutOfMemoryError, StoppedError
from gpulab.memory import MemoryTrace, Prediction, Released, Snapshot
from gpulab.units import format_bytes
from gpulab.widgets._controls import Choice, Control, Slider, Switch
from gpulab.widgets._instrument import Action, Drawing, Instrument
from gpulab.widgets._steps import MODELS, OPTIMIZERS, PRECISIONS, StepChoice
from gpulab.widgets._work import Progress, Stop

_GIB = 2**30
_CAPACITIES = (8, 12, 16, 24, 40, 48, 80, 141)  # GiB of today's GPUs
_VIEWS = (
    ("snapshot", "memory in use"),
    ("predict", "a step, predicted"),
    ("trace", "a step, measured"),
    ("release", "memory released"),
)
_BARS = 4  # predictions side by side: the newest, and those before it
_KEPT = 200  # predictions remembered, so that a slider that moves back answers at once


class MemoryInspector(Instrument):
    """Account for a device's bytes, predict and measure the memory of a training step, and release
    what a failed cell left.

    ``results`` holds the ``Snapshot``, ``MemoryTrace``, ``Prediction`` and ``Released`` under the
    actions' names. In the view "predict" a change of a control starts the prediction automatically.

    Examples
    --------
    >>> print(MemoryInspector(view="snapshot", device="cpu").code)
    import gpulab as gl
    <BLANKLINE>
    s = gl.memory.snapshot("cpu")
    gl.figures.memory_snapshot(s)
    """

    title = "Memory"
    summary = (
        "What occupies a device's memory now, how much a training step needs, and whether "
        "another one would fit."
    )
    actions: tuple[Action, ...] = (
        Action("snapshot", "Snapshot", "Account for all bytes of the device.", measures=False),
        Action("predict", "Predict", "Find the memory of a training step without running it."),
        Action("trace", "Run a step", "Run two training steps and follow every tensor."),
        Action(
            "release",
            "Release",
            "Free the tensors held by the last failed cell and the memory cached by allocators.",
            measures=False,
        ),
    )

    def __init__(self, **values: Any) -> None:
        self._devices = devices.available()
        self._predictions: dict[StepChoice, Prediction] = {}  # the last one used at the end
        # what the last prediction was started for: a failure is not tried again by itself
        self._tried: StepChoice | None = None
        super().__init__(**values)
        self._predict_if_wanted()

    def make_controls(self) -> Sequence[Control]:
        """Return view and device, then model, batch, optimizer, precision and checkpointing of the
        step, and the device to fit on.
        """
        here = [(str(d), d.name) for d in reversed(self._devices)]
        step: dict[str, Any] = {"views": ("predict", "trace"), "for_actions": ("trace",)}
        capacities = [
            *((str(d), f"{d.name}, what is free now") for d in reversed(self._devices)),
            *((str(gib), f"a GPU of {gib} GiB, all of it") for gib in _CAPACITIES),
        ]
        return [
            Choice(
                name="view",
                label="Show",
                options=_VIEWS,
                radio=True,
                shows_only=True,
                help="Each view has its own button.",
            ),
            Choice(
                name="device",
                label="Device",
                options=here,
                views=("snapshot", "trace", "release"),
                help="The device whose memory is shown.",
                for_actions=("snapshot", "trace", "release"),
            ),
            Choice(
                name="model",
                label="Model",
                options=[(name, m.label) for name, m in MODELS.items()],
                help="The model, with inputs of the matching shape.",
                **step,
            ),
            Slider(
                name="batch",
                label="Batch",
                options=[2**k for k in range(11)],
                default=32,
                help="Samples per step.",
                **step,
            ),
            Choice(
                name="optimizer",
                label="Optimizer",
                options=OPTIMIZERS,
                help="Adam stores two numbers for each parameter.",
                **step,
            ),
            Choice(
                name="precision",
                label="Precision",
                options=PRECISIONS,
                help="bfloat16 and float16 use autocast: parameters stay in "
                "float32. The pure formats convert the parameters too.",
                **step,
            ),
            Switch(
                name="checkpoint",
                label="Checkpointing",
                help="Recompute activations in the backward pass instead of keeping them.",
                **step,
            ),
            Choice(
                name="capacity",
                label="Must fit on",
                options=capacities,
                views=("predict",),
                shows_only=True,
                help="Counted are the peak, the scratch memory of operators, and a margin.",
            ),
            Choice(
                name="picture",
                label="Draw",
                options=(("bars", "its parts"), ("timeline", "timeline")),
                radio=True,
                views=("predict",),
                shows_only=True,
                help="The newest predictions side by side, or the last one operator by operator.",
            ),
            Switch(
                name="outputs",
                label="Also IPython's outputs",
                views=("release",),
                for_actions=("release",),
                help="Also drop arrays that Out[...] still holds; your own variables are never "
                "changed.",
            ),
        ]

    # The prediction starts by itself.

    def set(self, **values: Any) -> None:
        """Set controls by name; in the view "predict" the step that they describe is predicted at
        once.
        """
        super().set(**values)
        self._predict_if_wanted()

    def _predict_if_wanted(self) -> None:
        with self._lock:
            wanted = StepChoice.of(self.values)
            new = wanted not in self._predictions and wanted != self._tried
            if self.values["view"] == "predict" and new and not self.running:
                self.run("predict")

    def _end(self, *args: Any) -> None:
        with self._lock:
            super()._end(*args)
            self._predict_if_wanted()  # a control may have moved in the last moment of the work

    def _stale(self, action: str) -> bool:
        """A prediction on the screen belongs to the controls, or another one is under way."""
        return action != "predict" and super()._stale(action)

    # The work.

    def work(
        self, action: str, values: Mapping[str, Any], progress: Progress, stop: Stop
    ) -> Snapshot | Prediction | MemoryTrace | Released:
        """Run ``gl.memory.snapshot``, ``predict``, ``trace`` or ``release``."""
        if action == "snapshot":
            return memory.snapshot(values["device"], names=_notebook_names())
        if action == "release":
            return memory.release(values["device"], outputs=values["outputs"])
        if action == "predict":
            return self._predict_newest(progress, stop)
        return self._trace(StepChoice.of(values), values["device"], progress, stop)

    def _predict_newest(self, progress: Progress, stop: Stop) -> Prediction:
        """Predict for the controls as they are now; when they move meanwhile, leave it and begin
        with the new ones.
        """
        while True:
            step = self._tried = StepChoice.of(self.values)
            try:
                return self._predict(
                    step,
                    progress,
                    lambda step=step: stop() or StepChoice.of(self.values) != step,  # type: ignore[misc]
                )
            except StoppedError:
                if stop():
                    raise

    def _predict(self, step: StepChoice, progress: Progress, stop: Stop) -> Prediction:
        found = self._predictions.get(step) or step.predict(progress, stop)
        with self._lock:
            self._use(step, found)
            while len(self._predictions) > _KEPT:
                self._predictions.pop(next(iter(self._predictions)))
        return found

    def _use(self, step: StepChoice, found: Prediction) -> None:
        """Put a prediction at the end, among the newest."""
        self._predictions.pop(step, None)
        self._predictions[step] = found

    def _trace(self, step: StepChoice, device: str, progress: Progress, stop: Stop) -> MemoryTrace:
        """Run the step, unless its prediction says that the memory for it and for a copy of its
        parameters is not there.
        """
        where = devices.find(device)
        expected = self._predict(step, progress, stop)
        needed = expected.needed_bytes(where.kind) + expected.peak_by_category.get("parameters", 0)
        free = where.free_bytes
        if free is not None and needed > free:
            raise OutOfMemoryError(
                f"Run a step: {step.words} would take {format_bytes(needed)} and "
                f"{format_bytes(free)} are free on {where.name}; expected "
                "a step that fits. Choose a smaller batch or model, or press Release first."
            )
        return step.trace(device, progress, stop)

    def ended(self, action: str) -> None:
        """Show the new result."""
        self.turn(action, view=action)

    # What is shown.

    def draw(self, values: Mapping[str, Any]) -> Drawing:
        """Return the picture, the table and the sentence of the view."""
        result = self.results.get(values["view"])
        if values["view"] == "predict":
            return self._draw_prediction(values)
        if isinstance(result, Snapshot):
            return _draw_snapshot(result)
        if isinstance(result, MemoryTrace):
            return self._draw_trace(result)
        if isinstance(result, Released):
            return _draw_released(result)
        return Drawing(message=_BEFORE[values["view"]])

    def _draw_prediction(self, values: Mapping[str, Any]) -> Drawing:
        step = StepChoice.of(values)
        p = self._predictions.get(step)
        if p is not None:
            self._use(step, p)
        several = [
            (s, found) for s, found in reversed(self._predictions.items()) if s.model == step.model
        ][:_BARS]
        if not several:
            return Drawing(message=_BEFORE["predict"])
        shown, newest = several[0]
        free, kind, fits, where = self._room(newest, values["capacity"])
        if values["picture"] == "timeline":
            figure = figures.memory_timeline(newest)
        else:
            figure = figures.memory_prediction(
                [found for _, found in several], [s.words for s, _ in several], free, kind
            )
        verdict = (
            f"{shown.words}: needs {format_bytes(newest.needed_bytes(kind))} with scratch and "
            f"margin; {fits} {where}."
        )
        pending = (
            ""
            if p is not None
            else f"Not predicted yet: {step.words}; press Predict if the prediction does not "
            "start. "
        )
        headers, rows = newest.table()
        evidence = [newest.evidence]
        return Drawing(figure, headers, rows, evidence, newest.notes, pending + verdict)

    def _room(self, p: Prediction, capacity: str) -> tuple[float | None, str, str, str]:
        """Return (free bytes, kind of device, whether it fits, on what) in words for the chosen
        device or capacity.
        """
        if capacity.isdigit():
            nbytes = int(capacity) * _GIB
            return (
                nbytes,
                "cuda",
                _FITS[p.needed_bytes("cuda") <= nbytes],
                f"a GPU of {capacity} GiB",
            )
        where: Device = devices.find(capacity)
        free = where.free_bytes
        if free is None:
            return None, where.kind, "it is unknown whether it fits on", where.name
        return (
            free,
            where.kind,
            _FITS[p.fits(where)],
            f"the {format_bytes(free)} free on {where.name}",
        )

    def _draw_trace(self, t: MemoryTrace) -> Drawing:
        made = self._made.get("trace")
        p = self._predictions.get(StepChoice.of(made)) if made else None
        beside = ""
        if p is not None and not t.notes:
            error = (p.peak_bytes - t.peak_bytes) / max(t.peak_bytes, 1)
            beside = (
                f" The predicted peak (modelled) is {format_bytes(p.peak_bytes)}: {error:+.1%}."
            )
        message = (
            f"Peak {format_bytes(t.peak_bytes)} in the {t.peak_phase}, after "
            f"{t.peak_operator}.{beside}"
        )
        headers, rows = t.table()
        return Drawing(figures.memory_timeline(t), headers, rows, [t.evidence], t.notes, message)

    def code_for(self, values: Mapping[str, Any]) -> str:
        """Return the call of ``gl.memory`` behind the view."""
        device = f'"{values["device"]}"'
        if values["view"] == "snapshot":
            return (
                "import gpulab as gl\n\ns = "
                f"gl.memory.snapshot({device})\ngl.figures.memory_snapshot(s)"
            )
        if values["view"] == "release":
            outputs = ", outputs=True" if values["outputs"] else ""
            return f"import gpulab as gl\n\ngl.memory.release({device}{outputs})"
        step = StepChoice.of(values)
        if values["view"] == "trace":
            return f"{step.code('trace', device)}\ngl.figures.memory_timeline(t)"
        capacity = values["capacity"]
        fits = (
            f'p.needed_bytes("cuda") <= {capacity} * 2**30'
            if capacity.isdigit()
            else f'p.fits("{capacity}")'
        )
        picture = "memory_timeline" if values["picture"] == "timeline" else "memory_prediction"
        return f"{step.code('predict')}\nprint({fits})\ngl.figures.{picture}(p)"


_FITS = {True: "it fits on", False: "it does not fit on"}
_BEFORE = {
    "snapshot": "Press Snapshot to account for the device's bytes; the largest tensors are named.",
    "predict": "The step that the controls describe is predicted automatically; the first prediction "
    "takes a moment.",
    "trace": "Press Run a step: it runs two real training steps on copies, and follows every "
    "tensor.",
    "release": "Press Release after a cell has failed: its traceback may hold tensors. Your own "
    "variables are never changed.",
}


def _draw_snapshot(s: Snapshot) -> Drawing:
    largest = s.tensors[0] if s.tensors else None
    named = (
        ""
        if largest is None
        else f" The largest is {largest.name or 'one without a name'} with "
        f"{format_bytes(largest.nbytes)}."
    )
    count = len(s.tensors)
    message = (
        f"{format_bytes(s.free_bytes)} of {format_bytes(s.total_bytes)} are free; {count} "
        f"tensor{'s' if count != 1 else ''} "
        f"hold{'s' if count == 1 else ''} {format_bytes(s.tensor_bytes)}.{named}"
    )
    headers, rows = s.table()
    return Drawing(figures.memory_snapshot(s), headers, rows, [s.evidence], s.notes, message)


def _draw_released(r: Released) -> Drawing:
    came = r.freed_device_bytes
    message = (
        f"{format_bytes(came)} were released on {r.device}."
        if came > 0
        else f"No bytes were released on {r.device}."
    )
    rows = [
        (f"{where}, {word}", "not reported" if nbytes is None else format_bytes(nbytes))
        for where, word, nbytes in (
            (f"free on {r.device}", "before", r.device_free_before_bytes),
            (f"free on {r.device}", "after", r.device_free_after_bytes),
            ("held by this process", "before", r.host_resident_before_bytes),
            ("held by this process", "after", r.host_resident_after_bytes),
        )
    ]
    return Drawing(
        None, ("memory", "bytes"), rows, [r.evidence], r.notes, " ".join([message, *r.what])
    )


def _notebook_names() -> dict[str, Any]:
    """Return the notebook's variables, for the names of its tensors; none outside a notebook."""
    from IPython import get_ipython

    shell = get_ipython()  # type: ignore[no-untyped-call,unused-ignore]
    return dict(shell.user_ns) if shell is not None else {}
