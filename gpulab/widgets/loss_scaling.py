"""The gradients of a real model and the range of a number format: change the scale of the loss, and
see what is lost or overflows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpulab import figures, precision, training
from gpulab.errors import InputError, StoppedError, shown
from gpulab.precision import Gradients, GradientWindow
from gpulab.precision._window import plain
from gpulab.widgets._controls import Choice, Control, Slider
from gpulab.widgets._instrument import Action, Drawing, Instrument
from gpulab.widgets._work import Progress, Stop

_OWN = "your own"
_STEPS = (0, 20, 100, 300)
_FORMATS = ("float16", "bfloat16", "float8_e5m2", "float8_e4m3fn")
_SCALES = tuple(2.0**k for k in range(-16, 33))
_BATCH = 128
_START = (
    "Press Compute gradients: the model takes its training steps, then one backward pass in "
    "float32 shows every gradient."
)


class LossScaling(Instrument):
    """Train a small model for some steps, look at its gradients, and find a loss scale that
    preserves them.

    ``window`` is what ``gl.precision.gradient_window`` returned for the controls; ``load`` takes
    gradients of your own.

    Examples
    --------
    >>> i = LossScaling(scale=8.0)
    >>> i.load(precision.gradients(*_linear()))
    <LossScaling task='your own', steps=100, format='float16', which='all', scale=8.0>
    >>> i.window.overflowing_share
    0.0
    """

    title = "Loss scaling"
    summary = (
        "What happens to gradients in a 16-bit format, and which scale of the loss preserves them."
    )
    actions = (
        Action(
            "gradients",
            "Compute gradients",
            "Trains the model for the chosen steps, then takes one backward pass.",
            measures=False,
        ),
    )

    def __init__(self, **values: Any) -> None:
        self._loaded: Gradients | None = None
        super().__init__(**values)

    def make_controls(self) -> Sequence[Control]:
        """Return the task, the training before, the format, which gradients, and the scale."""
        scales = [(scale, plain(scale)) for scale in _SCALES]
        return [
            self._task_control(),
            Choice(
                name="steps",
                label="Training steps before",
                options=_STEPS,
                default=100,
                help="Gradients shrink as a network learns.",
            ),
            Choice(
                name="format",
                label="Format",
                options=_FORMATS,
                shows_only=True,
                help="The format in which the gradients would be stored.",
            ),
            Choice(
                name="which",
                label="Gradients of",
                options=("all", "parameters", "activations"),
                shows_only=True,
                help="Of the parameters, or of the layers' outputs, through which the backward "
                "pass goes.",
            ),
            Slider(
                name="scale",
                label="Scale of the loss",
                options=scales,
                default=1.0,
                shows_only=True,
                help="Every gradient is multiplied by it. A power of two changes only the "
                "exponent.",
            ),
        ]

    def _task_control(self) -> Control:
        own = [_OWN] if self._loaded is not None else []
        return Choice(
            name="task",
            label="Model",
            options=[*own, *training.tasks()],
            default="digits-mlp",
            help="A network of the course and its data.",
        )

    def on_screen(self, control: Control) -> bool:
        """Return whether a control is shown: loaded gradients need no training."""
        return control.name != "steps" or self.values.get("task") != _OWN

    def load(self, gradients: Gradients) -> LossScaling:
        """Show gradients of your own.

        Parameters
        ----------
        gradients : Gradients
            From ``gl.precision.gradients``.

        Returns
        -------
        LossScaling
            Itself, so that a cell can end with it.

        Raises
        ------
        InputError
            If these are no gradients.
        """
        if not isinstance(gradients, Gradients):
            raise InputError(
                f"load: got {shown(gradients)}; expected what gl.precision.gradients() returns. "
                "Call that first."
            )
        with self._lock:
            self._loaded = gradients
            self.replace_control(self._task_control())
            self.set(task=_OWN)
        return self

    def work(
        self, action: str, values: Mapping[str, Any], progress: Progress, stop: Stop
    ) -> Gradients:
        """Train, then return the gradients of one batch.

        Raises
        ------
        StoppedError
            If it was stopped before all training steps were taken.
        """
        from torch.nn import functional

        if self._loaded is not None and values["task"] == _OWN:
            return self._loaded
        task = training.task(values["task"])
        model = task.make_model(seed=0)
        if values["steps"]:
            training.fit(
                task, model=model, steps=values["steps"], seed=0, progress=progress, stop=stop
            )
            if stop():  # the gradients of a shorter training are not those that the controls name
                raise StoppedError(
                    f"Stopped before all {values['steps']} training steps were taken; no gradients "
                    "were computed."
                )
        progress(0.95, "One backward pass")
        device = next(model.parameters()).device
        inputs, targets = (part.to(device) for part in task.train[:_BATCH])
        return precision.gradients(
            model,
            inputs,
            targets=targets,
            loss=lambda scores, y: functional.cross_entropy(scores.flatten(0, -2), y.flatten()),
        )

    # What is shown.

    @property
    def gradients(self) -> Gradients | None:
        """The gradients on the screen, or None."""
        return self._loaded if self.values["task"] == _OWN else self.results.get("gradients")

    @property
    def window(self) -> GradientWindow | None:
        """The gradients in the format at the scale of the controls, or None before there are
        any.
        """
        return self._window(self.values)

    def _window(self, values: Mapping[str, Any]) -> GradientWindow | None:
        source = self._loaded if values["task"] == _OWN else self.results.get("gradients")
        if source is None:
            return None
        return precision.gradient_window(
            source, values["format"], values["scale"], which=values["which"]
        )

    def _stale(self, action: str) -> bool:
        """Gradients of your own were made elsewhere: no control has moved since."""
        return self.values["task"] != _OWN and super()._stale(action)

    def draw(self, values: Mapping[str, Any]) -> Drawing:
        """Return the histogram in the window, and the share of each fate."""
        window = self._window(values)
        if window is None:
            return Drawing(message=_START)
        headers, rows = window.table()
        return Drawing(
            figures.gradient_window(window),
            headers,
            rows,
            [window.evidence],
            message=window.explanation,
        )

    def code_for(self, values: Mapping[str, Any]) -> str:
        """Return the lines that train, take the gradients and lay the window over them."""
        which = f', which="{values["which"]}"' if values["which"] != "all" else ""
        window = (
            f'w = gl.precision.gradient_window(g, "{values["format"]}", '
            f"{values['scale']!r}{which})\ngl.figures.gradient_window(w)"
        )
        if values["task"] == _OWN:
            return (
                "import gpulab as gl\n\n# g = gl.precision.gradients(model, inputs, "
                f"loss=..., targets=...)\n{window}"
            )
        trained = (
            f"gl.training.fit(task, model=model, steps={values['steps']})\n"
            if values["steps"]
            else ""
        )
        return (
            "import torch\nimport gpulab as gl\n\ntask = "
            f'gl.training.task("{values["task"]}")\nmodel = task.make_model(seed=0)\n{trained}'
            "device = next(model.parameters()).device\nx, y = (part.to(device) for part in "
            f"task.train[:{_BATCH}])\n"
            "cross_entropy = torch.nn.functional.cross_entropy\n"
            "g = gl.precision.gradients(model, x, targets=y, loss=lambda s, y: "
            "cross_entropy(s.flatten(0, -2), y.flatten()))\n"
            f"{window}"
        )


def _linear() -> tuple[Any, ...]:
    """A model and its input for the example above; it returns its own loss."""
    import torch

    model = torch.nn.Sequential(torch.nn.Linear(3, 1, bias=False), torch.nn.Flatten(0))
    return model, torch.tensor([[1.0, 2.0, 4.0]])
