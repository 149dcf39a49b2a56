"""Number formats: the bits of a number in two formats, and a model's gradients in one format."""

from __future__ import annotations

import math
from typing import Any

import torch

from gpulab import _validate, figures, precision, training
from gpulab.errors import StoppedError
from gpulab.precision import Gradients, GradientWindow
from gpulab.precision.gradient_windows import plain
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

_NONE = "none"
_STEPS = 16
_LARGEST = 1.7976931348623157e308


class NumberFormats(Instrument):
    """Type a number, step to its neighbors, or flip its bits; the second format shows the same
    number.

    ``number`` is what ``gl.precision.number`` returned for the controls.

    Examples
    --------
    >>> n = NumberFormats(value=0.1, format="float16")
    >>> n.number.bits
    '0010111001100110'
    >>> n.set(bits=())
    >>> n.number.held
    0.0
    >>> print(NumberFormats(value=2049).code)
    import gpulab as gl
    <BLANKLINE>
    n = gl.precision.number(2049.0, "float16")
    gl.figures.number_line([n, gl.precision.number(n.given, "bfloat16")])
    """

    title = "Number formats"
    summary = (
        "How a format represents a number: its bits, the numbers next to it, and the same number "
        "in another format."
    )

    def make_controls(self) -> list[Control]:
        """Return the two formats, the number, the steps away from it, and its bits."""
        names = [(name, _described(precision.format(name))) for name in precision.formats()]
        one = precision.format(self.values.get("format", "float16"))
        return [
            Choice(
                name="format",
                label="Format",
                options=names,
                default="float16",
                help="The format whose bits you can flip.",
            ),
            Choice(
                name="beside",
                label="Beside it",
                options=[(_NONE, "nothing"), *names],
                default="bfloat16",
                help="A second format that shows the same number.",
            ),
            Number(
                name="value",
                label="Number",
                default=0.1,
                minimum=-_LARGEST,
                maximum=_LARGEST,
                suggestions=(0.1, 1.0, 2049.0, 70000.0, 3e-8, 1e-8),
                help="Any number; the format rounds it once.",
            ),
            Slider(
                name="steps",
                label="Steps away",
                options=range(-_STEPS, _STEPS + 1),
                default=0,
                help="Move along the numbers of the format: each step leads to the next one.",
            ),
            Several(
                name="bits",
                label="Bits that are 1",
                options=[(k, _bit_name(one, k)) for k in range(one.bits)],
                default=(),
                help="Flip one: s is the sign, e the exponent, m the mantissa; the first bit of a "
                "field is the most significant.",
            ),
        ]

    def __init__(self, **values: Any) -> None:
        # the bits of an infinity, nan or -0.0, which the number field cannot hold
        self._special: int | None = None
        super().__init__(**values)

    def _assign(self, values: Values) -> None:
        """Set the values; once all are accepted, keep number and bits consistent: the bits decide
        if they were set, else the number does.
        """
        super()._assign(values)
        if "bits" in values:
            one = precision.format(self.values["format"])
            code = sum(1 << (one.bits - 1 - place) for place in self.values["bits"])
            held = precision.number_from_bits(code, one).held
            # The field cannot distinguish -0.0 from 0.0, so the bits of -0.0 are kept.
            self._special = code if not math.isfinite(held) or (held == 0 and code) else None
            if math.isfinite(held):
                self.values["value"], self.values["steps"] = held, 0
        else:
            if values.keys() & {"format", "value", "steps"}:
                self._special = None
            self.values["bits"] = tuple(k for k, bit in enumerate(self.number.bits) if bit == "1")

    def changed(self, name: str) -> None:
        """Offer the bits of a new format; a new number is no steps away."""
        if name == "format":
            self.rebuild("bits")
        if name == "value":
            self.values["steps"] = 0

    # What is shown.

    @property
    def number(self) -> precision.Number:
        """The number in the first format."""
        v = self.values
        if self._special is not None:
            return precision.number_from_bits(self._special, v["format"])
        return precision.number(float(v["value"]), v["format"], int(v["steps"]))

    def draw(self, values: Values) -> Drawing:
        """Return the bits and the number line, and a column of facts for each format."""
        first = self.number
        many = [first]
        if values["beside"] != _NONE:
            many.append(precision.number(first.given, values["beside"]))
        # a row's name, and the fact of each format
        rows = [
            [cells[0][0], *(fact for _, fact in cells)]
            for cells in zip(*(n.table()[1] for n in many), strict=True)
        ]
        return Drawing(
            figures.number_line(many),
            ("", *(n.format.name for n in many)),
            rows,
            [first.evidence],
            message=" ".join(map(_sentence, many)),
        )

    def code_for(self, values: Values) -> str:
        """Return the calls that make the same numbers and the picture."""
        if self._special is not None:
            made = call("precision.number_from_bits", self.number.bits, values["format"])
        else:
            steps = {"steps": values["steps"]} if values["steps"] else {}
            made = call("precision.number", float(values["value"]), values["format"], **steps)
        drawn = "n"
        if values["beside"] != _NONE:
            drawn = f'[n, gl.precision.number(n.given, "{values["beside"]}")]'
        return cell(f"n = {made}", f"gl.figures.number_line({drawn})")


def _described(one: precision.Format) -> str:
    if one.kind != "float":
        return f"{one.name}: whole numbers"
    return f"{one.name}: {one.exponent_bits} exponent, {one.mantissa_bits} mantissa bits"


def _bit_name(one: precision.Format, place: int) -> str:
    """Return a bit's name: in an integer its value, in a float "s", "e" and its power of two, or
    "m" and its place.
    """
    if one.kind == "integer":
        return f"{'-' if place == 0 else ''}{2 ** (one.bits - 1 - place)}"
    fields = ("s", *(f"e{k}" for k in reversed(range(one.exponent_bits))))
    return fields[place] if place < len(fields) else f"m{place - one.exponent_bits}"


def _sentence(n: precision.Number) -> str:
    name = n.format.name
    if n.kind == "nan":
        return f"{name}: nan, not a number."
    if n.kind == "infinite":
        return f"{name}: infinite; the largest number is {n.format.largest:.6g}."
    if n.held == 0 and n.given != 0:
        smallest = f"the smallest positive number is {n.format.smallest_subnormal:.3g}"
        return f"{name}: zero; {smallest}, half of which rounds to zero."
    lost = n.relative_error
    error = "exactly" if lost == 0 else f"a relative error of {lost:.2g}"
    return f"{name}: {n.held:.17g}, {error}."


# Gradients.

_OWN = "your own"
_BATCH = 128


class LossScaling(Instrument):
    """Train a small model for some steps, look at its gradients, and find a loss scale that
    preserves them.

    ``window`` is what ``gl.precision.gradient_window`` returned for the controls; ``load`` takes
    gradients of your own.

    Examples
    --------
    >>> i = LossScaling(scale=8.0)
    >>> model = torch.nn.Sequential(torch.nn.Linear(3, 1, bias=False), torch.nn.Flatten(0))
    >>> i.load(precision.gradients(model, torch.tensor([[1.0, 2.0, 4.0]])))
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
            "Train the model for the chosen steps, then run one backward pass.",
            measures=False,
        ),
    )

    def __init__(self, **values: Any) -> None:
        self._loaded: Gradients | None = None
        super().__init__(**values)

    def make_controls(self) -> list[Control]:
        """Return the task, the training before, the format, which gradients, and the scale."""
        own = [_OWN] if self._loaded is not None else []
        return [
            Choice(
                name="task",
                label="Model",
                options=[*own, *training.tasks()],
                default="digits-mlp",
                help="A network of the course and its data.",
            ),
            Choice(
                name="steps",
                label="Training steps before",
                options=(0, 20, 100, 300),
                default=100,
                help="Gradients shrink as a network learns.",
                when=lambda v: v["task"] != _OWN,  # what was loaded needs no training
            ),
            Choice(
                name="format",
                label="Format",
                options=("float16", "bfloat16", "float8_e5m2", "float8_e4m3fn"),
                shows_only=True,
                help="The format in which the gradients would be stored.",
            ),
            Choice(
                name="which",
                label="Gradients of",
                options=("all", "parameters", "activations"),
                shows_only=True,
                help="Gradients of the parameters, or of the layers' outputs (activations).",
            ),
            Slider(
                name="scale",
                label="Scale of the loss",
                options=[(scale, plain(scale)) for scale in (2.0**k for k in range(-16, 33))],
                default=1.0,
                shows_only=True,
                help="Every gradient is multiplied by it. A power of two changes only the "
                "exponent.",
            ),
        ]

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
        _validate.instance(
            "load",
            "gradients",
            gradients,
            Gradients,
            "what gl.precision.gradients() returns. Call that first.",
        )
        with self._lock:
            self._loaded = gradients
            self.rebuild("task")
            self.set(task=_OWN)
        return self

    def work(self, action: str, values: Values, progress: Progress, stop: Stop) -> Gradients:
        """Train, then return the gradients of one batch.

        Raises
        ------
        StoppedError
            If it was stopped before all training steps were taken.
        """
        if self._loaded is not None and values["task"] == _OWN:
            return self._loaded
        task = training.task(values["task"])
        model = task.make_model(seed=0)
        if values["steps"]:
            training.fit(
                task, model=model, steps=values["steps"], seed=0, progress=progress, stop=stop
            )
            if stop():  # gradients after fewer steps would not be those that the controls ask for
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
            loss=lambda scores, y: torch.nn.functional.cross_entropy(
                scores.flatten(0, -2), y.flatten()
            ),
        )

    # What is shown.

    @property
    def gradients(self) -> Gradients | None:
        """The gradients on the screen, or None."""
        return self._loaded if self.values["task"] == _OWN else self.results.get("gradients")

    @property
    def window(self) -> GradientWindow | None:
        """The gradients in the format and at the scale of the controls; None if there are no
        gradients yet.
        """
        source, v = self.gradients, self.values
        if source is None:
            return None
        return precision.gradient_window(source, v["format"], v["scale"], which=v["which"])

    def draw(self, values: Values) -> Drawing:
        """Return the histogram in the format's window, and the share of gradients that are kept or
        lost in each way.
        """
        window = self.window
        if window is None:
            return Drawing(
                message="Press Compute gradients: it trains the model for the chosen steps, then "
                "computes every gradient in one backward pass in float32."
            )
        # loaded gradients are never stale: they do not depend on the controls
        is_stale = False if values["task"] == _OWN else None
        return Drawing.of(window, figures.gradient_window(window), window.explanation, is_stale)

    def code_for(self, values: Values) -> str:
        """Return the lines that train, compute the gradients and make their window."""
        which = {"which": values["which"]} if values["which"] != "all" else {}
        scaled = Code("g"), values["format"], values["scale"]
        window = (
            f"w = {call('precision.gradient_window', *scaled, **which)}",
            "gl.figures.gradient_window(w)",
        )
        if values["task"] == _OWN:
            own = "# g = gl.precision.gradients(model, inputs, loss=..., targets=...)"
            return cell(own, *window)
        trained = f"gl.training.fit(task, model=model, steps={values['steps']})"
        return cell(
            f"task = {call('training.task', values['task'])}",
            "model = task.make_model(seed=0)",
            *([trained] if values["steps"] else []),
            "device = next(model.parameters()).device",
            f"x, y = (part.to(device) for part in task.train[:{_BATCH}])",
            "cross_entropy = torch.nn.functional.cross_entropy",
            "g = gl.precision.gradients(model, x, targets=y, loss=lambda s, y: "
            "cross_entropy(s.flatten(0, -2), y.flatten()))",
            *window,
        )
