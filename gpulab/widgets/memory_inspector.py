"""What occupies a device's memory, what a training step needs, and what can be released."""

from __future__ import annotations

from typing import Any, NamedTuple

from gpulab import devices, figures, memory, networks
from gpulab.errors import OutOfMemoryError, StoppedError
from gpulab.memory import MemoryTrace, Prediction, Released, Snapshot
from gpulab.units import format_bytes, plural
from gpulab.widgets._instrument import (
    Action,
    Choice,
    Control,
    Drawing,
    Instrument,
    Progress,
    Slider,
    Stop,
    Switch,
    Values,
    call,
    cell,
    literal,
)

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
_PRECISIONS = ("float32", "bfloat16", "float16", "pure-bfloat16", "pure-float16")
_OPTIMIZERS = ("adam", "adamw", "sgd", "sgd-momentum", "rmsprop")
_CLASSES = 10
_IMPORTS = "import gpulab as gl\nimport torch"
_USUAL = (("optimizer", "adam"), ("precision", "float32"), ("checkpoint", False))
_BEFORE = {
    "snapshot": "Press Snapshot to account for the device's bytes; the largest tensors are named.",
    "predict": "The step that the controls describe is predicted automatically; the first "
    "prediction takes a moment.",
    "trace": "Press Run a step: it runs two real training steps on copies, and follows every "
    "tensor.",
    "release": "Press Release after a cell has failed: its traceback may hold tensors. Your own "
    "variables are never changed.",
}


class _Model(NamedTuple):
    """A model of ``gpulab.networks``: its function with arguments, and the shape of one of its
    samples, which are tokens where there is a vocabulary.
    """

    label: str
    network: str
    arguments: tuple[int, ...]
    named: dict[str, int]
    shape: tuple[int, ...]
    vocabulary: int = 0

    def make(self) -> Any:
        """Return the model."""
        return getattr(networks, self.network)(*self.arguments, **self.named)

    def batch(self, count: int, device: str) -> tuple[Any, Any]:
        """Return (inputs, targets) on a device; "meta" costs no memory."""
        import torch

        shape = (count, *self.shape)
        if self.vocabulary:
            tokens = torch.randint(self.vocabulary, shape, device=device)
            return tokens, tokens
        return torch.rand(shape, device=device), torch.randint(_CLASSES, (count,), device=device)

    def batch_code(self, count: int, where: str) -> str:
        """Return the line that makes ``x`` and ``y``."""
        shape = ", ".join(map(str, (count, *self.shape)))
        if self.vocabulary:
            return f"x = y = torch.randint({self.vocabulary}, ({shape}){where})"
        return f"x, y = torch.rand({shape}{where}), torch.randint({_CLASSES}, ({count},){where})"


_CNN = {"width": 32, "stages": 3}
_GPT2 = {"context": 1024, "tied": True}
_MODELS = {
    "cnn": _Model("CNN on 32 x 32 color images", "cnn", (3, 10), _CNN, (3, 32, 32)),
    "mlp": _Model("MLP, 3 x 1024 hidden", "mlp", (784, 1024, 10), {"depth": 3}, (784,)),
    "transformer": _Model(
        "Transformer, 4 layers of 256",
        "transformer",
        (1000, 256, 8, 4),
        {"context": 128},
        (128,),
        1000,
    ),
    "gpt2-small": _Model(
        "Transformer, GPT-2 small's size",
        "transformer",
        (50257, 768, 12, 12),
        _GPT2,
        (1024,),
        50257,
    ),
}


class _Step(NamedTuple):
    """One training step, as the controls describe it."""

    model: str
    batch: int
    optimizer: str
    precision: str
    checkpoint: bool

    @classmethod
    def of(cls, values: Values) -> _Step:
        """Return the step of an instrument's values."""
        return cls(*(values[name] for name in cls._fields))

    @property
    def words(self) -> str:
        """The step without its model, short enough for the label of a bar."""
        checkpointed = ", checkpointed" if self.checkpoint else ""
        return f"batch {self.batch}, {self.precision}, {self.optimizer}{checkpointed}"

    def run(self, device: str, progress: Progress, stop: Stop) -> Any:
        """Run ``gl.memory.trace`` on a device, or ``gl.memory.predict`` on "meta"."""
        import torch

        chosen, predicts = _MODELS[self.model], device == "meta"
        with torch.device("meta" if predicts else "cpu"):
            model = chosen.make().to(device)
        x, y = chosen.batch(self.batch, device)
        function: Any = memory.predict if predicts else memory.trace
        return function(
            model,
            x,
            targets=y,
            loss=None if chosen.vocabulary else torch.nn.functional.cross_entropy,
            optimizer=self.optimizer,
            precision=self.precision,
            checkpoint=self.checkpoint,
            progress=progress,
            stop=stop,
            **({} if predicts else {"device": device}),
        )

    def code(self, function: str, device: str = "") -> list[str]:
        """Return the lines that call ``gl.memory.predict`` or ``trace`` and keep the result in
        ``p`` or ``t``.
        """
        chosen = _MODELS[self.model]
        made = call(f"networks.{chosen.network}", *chosen.arguments, **chosen.named)
        lines = [chosen.batch_code(self.batch, f", device={device}" if device else "")]
        words = ["x", "targets=y"]
        words += [] if chosen.vocabulary else ["loss=torch.nn.functional.cross_entropy"]
        options = self._asdict()
        if function == "trace":
            lines.insert(0, f"model = {made}.to({device})")
            words.insert(0, "model")
            words += ['optimizer="adam"'] if self.optimizer == "adam" else []
        else:
            words.insert(0, f"lambda: {made}")
        words += [
            f"{name}={literal(options[name])}" for name, usual in _USUAL if options[name] != usual
        ]
        return [*lines, f"{function[0]} = gl.memory.{function}({', '.join(words)})"]


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
        "What occupies a device's memory now, how much a training step needs, and whether another "
        "one would fit."
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
        self._predictions: dict[_Step, Prediction] = {}  # the last one used at the end
        # what the last prediction was started for: a failure is not tried again by itself
        self._tried: _Step | None = None
        super().__init__(**values)
        self._predict_if_wanted()

    def make_controls(self) -> list[Control]:
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
                options=[(name, m.label) for name, m in _MODELS.items()],
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
                options=_OPTIMIZERS,
                help="Adam stores two numbers for each parameter.",
                **step,
            ),
            Choice(
                name="precision",
                label="Precision",
                options=_PRECISIONS,
                help="bfloat16 and float16 use autocast: parameters stay in float32. The pure "
                "formats convert the parameters too.",
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
            wanted = _Step.of(self.values)
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
        self, action: str, values: Values, progress: Progress, stop: Stop
    ) -> Snapshot | Prediction | MemoryTrace | Released:
        """Run ``gl.memory.snapshot``, ``predict``, ``trace`` or ``release``."""
        if action == "snapshot":
            return memory.snapshot(values["device"], names=_notebook_names())
        if action == "release":
            return memory.release(values["device"], outputs=values["outputs"])
        if action == "predict":
            return self._predict_newest(progress, stop)
        return self._trace(_Step.of(values), values["device"], progress, stop)

    def _predict_newest(self, progress: Progress, stop: Stop) -> Prediction:
        """Predict for the controls as they are now; when they move meanwhile, leave it and begin
        with the new ones.
        """
        while True:
            step = self._tried = _Step.of(self.values)
            try:
                return self._predict(
                    step,
                    progress,
                    lambda step=step: stop() or _Step.of(self.values) != step,  # type: ignore[misc]
                )
            except StoppedError:
                if stop():
                    raise

    def _predict(self, step: _Step, progress: Progress, stop: Stop) -> Prediction:
        found = self._predictions.get(step)
        if found is None:
            progress(0.0, f"predicting {step.words}")
            found = step.run("meta", progress, stop)
        with self._lock:
            self._use(step, found)
            while len(self._predictions) > _KEPT:
                self._predictions.pop(next(iter(self._predictions)))
        return found

    def _use(self, step: _Step, found: Prediction) -> None:
        """Put a prediction at the end, among the newest."""
        self._predictions.pop(step, None)
        self._predictions[step] = found

    def _trace(self, step: _Step, device: str, progress: Progress, stop: Stop) -> MemoryTrace:
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
                f"{format_bytes(free)} are free on {where.name}; expected a step that fits. Choose "
                "a smaller batch or model, or press Release first."
            )
        traced: MemoryTrace = step.run(device, progress, stop)
        return traced

    def ended(self, action: str) -> None:
        """Show the new result."""
        self.turn(action, view=action)

    # What is shown.

    def draw(self, values: Values) -> Drawing:
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

    def _draw_prediction(self, values: Values) -> Drawing:
        step = _Step.of(values)
        known = self._predictions.get(step)
        if known is not None:
            self._use(step, known)
        several = [
            (s, found) for s, found in reversed(self._predictions.items()) if s.model == step.model
        ][:_BARS]
        if not several:
            return Drawing(message=_BEFORE["predict"])
        shown, newest = several[0]
        free, kind, fits = _room(newest, values["capacity"])
        figure = (
            figures.memory_timeline(newest)
            if values["picture"] == "timeline"
            else figures.memory_prediction(
                [found for _, found in several], [s.words for s, _ in several], free, kind
            )
        )
        message = (
            f"{shown.words}: needs {format_bytes(newest.needed_bytes(kind))} with scratch and "
            f"margin; {fits}."
        )
        if known is None:
            message = (
                f"Not predicted yet: {step.words}; press Predict if the prediction does not start. "
                f"{message}"
            )
        return Drawing.of(newest, figure, message)

    def _draw_trace(self, t: MemoryTrace) -> Drawing:
        message = (
            f"Peak {format_bytes(t.peak_bytes)} in the {t.peak_phase}, after {t.peak_operator}."
        )
        made = self._made.get("trace")
        p = self._predictions.get(_Step.of(made)) if made else None
        if p is not None and not t.notes:
            error = (p.peak_bytes - t.peak_bytes) / max(t.peak_bytes, 1)
            message += (
                f" The predicted peak (modelled) is {format_bytes(p.peak_bytes)}: {error:+.1%}."
            )
        return Drawing.of(t, figures.memory_timeline(t), message)

    def code_for(self, values: Values) -> str:
        """Return the call of ``gl.memory`` behind the view."""
        device, step, capacity = values["device"], _Step.of(values), values["capacity"]
        if values["view"] == "snapshot":
            made = call("memory.snapshot", device)
            return cell(f"s = {made}", "gl.figures.memory_snapshot(s)")
        if values["view"] == "release":
            return cell(
                call("memory.release", device, **({"outputs": True} if values["outputs"] else {}))
            )
        if values["view"] == "trace":
            lines = step.code("trace", literal(device))
            return cell(*lines, "gl.figures.memory_timeline(t)", imports=_IMPORTS)
        fits = f"p.fits({literal(capacity)})"
        if capacity.isdigit():
            fits = f'p.needed_bytes("cuda") <= {capacity} * 2**30'
        picture = "memory_timeline" if values["picture"] == "timeline" else "memory_prediction"
        lines = [*step.code("predict"), f"print({fits})", f"gl.figures.{picture}(p)"]
        return cell(*lines, imports=_IMPORTS)


def _room(p: Prediction, capacity: str) -> tuple[float | None, str, str]:
    """Return (free bytes, kind of device, whether it fits on the chosen device or capacity)."""
    if capacity.isdigit():
        nbytes = int(capacity) * _GIB
        fits = "it fits on" if p.needed_bytes("cuda") <= nbytes else "it does not fit on"
        return nbytes, "cuda", f"{fits} a GPU of {capacity} GiB"
    device = devices.find(capacity)
    free = device.free_bytes
    if free is None:
        return None, device.kind, f"it is unknown whether it fits on {device.name}"
    fits = "it fits on" if p.fits(device) else "it does not fit on"
    return free, device.kind, f"{fits} the {format_bytes(free)} free on {device.name}"


def _draw_snapshot(s: Snapshot) -> Drawing:
    count = len(s.tensors)
    message = (
        f"{format_bytes(s.free_bytes)} of {format_bytes(s.total_bytes)} are free; "
        f"{plural(count, 'tensor')} hold{'s' if count == 1 else ''} {format_bytes(s.tensor_bytes)}."
    )
    if s.tensors:
        name = s.tensors[0].name or "one without a name"
        message += f" The largest is {name} with {format_bytes(s.tensors[0].nbytes)}."
    return Drawing.of(s, figures.memory_snapshot(s), message)


def _draw_released(r: Released) -> Drawing:
    came = format_bytes(r.freed_device_bytes) if r.freed_device_bytes > 0 else "No bytes"
    rows = [
        (f"{where}, {word}", "not reported" if nbytes is None else format_bytes(nbytes))
        for where, word, nbytes in (
            (f"free on {r.device}", "before", r.device_free_before_bytes),
            (f"free on {r.device}", "after", r.device_free_after_bytes),
            ("held by this process", "before", r.host_resident_before_bytes),
            ("held by this process", "after", r.host_resident_after_bytes),
        )
    ]
    message = " ".join([f"{came} were released on {r.device}.", *r.what])
    return Drawing(None, ("memory", "bytes"), rows, [r.evidence], r.notes, message)


def _notebook_names() -> dict[str, Any]:
    """Return the notebook's variables, for the names of its tensors; none outside a notebook."""
    from IPython import get_ipython

    shell = get_ipython()  # type: ignore[no-untyped-call,unused-ignore]
    return dict(shell.user_ns) if shell is not None else {}
