"""Text generation on a device: memory, tokens per second and cost; one layer measured here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpulab import devices, figures, models, timing
from gpulab.devices import memory_sizes
from gpulab.errors import InputError, shown
from gpulab.models import LANGUAGE_MODELS, InferencePlan, LanguageModel
from gpulab.timing import Measurement
from gpulab.units import format_number, format_seconds
from gpulab.widgets._instrument import (
    Action,
    Choice,
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

_HERE = "this machine"
_PRODUCTS = ("L4", "GeForce RTX 4090", "A100 80GB SXM", "H100 SXM", "H200 SXM")


class InferencePlanner(Instrument):
    """Choose a model, a device, formats, context and batch; Measure times one layer on this
    machine.

    ``plan`` is what ``gl.models.inference`` gives for the controls. ``load`` adds a model of your
    own. ``result`` is the ``Measurement`` of one layer's matrix products in one step of decode.

    Examples
    --------
    >>> p = InferencePlanner(model="Llama 3 8B", device="H100 SXM", context=8192, batch=64)
    >>> p.plan.limit, p.plan.largest_batch
    ('cache', 65)
    """

    title = "Inference planner"
    summary = (
        "What a language model needs on a device, how many tokens per second it can give at most, "
        "and what limits it."
    )
    actions: tuple[Action, ...] = (
        Action(
            "measure",
            "Measure one layer here",
            "The matrix products of one layer in one step of decode, on this machine's best "
            "device; the first run also measures its rates.",
        ),
    )

    def __init__(self, **values: Any) -> None:
        self._models = dict(LANGUAGE_MODELS)
        self._here: models.Roofline | None = None  # measured by the first run
        self._measured: LanguageModel | None = None  # load may put another one under its name
        super().__init__(**values)

    def make_controls(self) -> list[Control]:
        """Return the model, the device, the formats, context, batch and price."""
        return [
            self._model_control(),
            Choice(
                name="device",
                label="Device",
                options=[_HERE, *(part for part in memory_sizes.gpus() if part in _PRODUCTS)],
                default="H100 SXM",
                help="A product by its data sheet, or this machine by rates measured once.",
                shows_only=True,
            ),
            Choice(
                name="weights",
                label="Weights",
                options=list(models.WEIGHT_BITS),
                default="bfloat16",
                help="As stored. int8 and int4 are converted in the kernel that reads them.",
            ),
            Choice(
                name="cache",
                label="Cache",
                options=list(models.CACHE_BITS),
                default="bfloat16",
                help="The keys and values of all positions so far.",
                shows_only=True,
            ),
            Slider(
                name="context",
                label="Positions of each sequence",
                options=[(2**k, f"{2**k:,}") for k in range(8, 18)],
                default=4096,
                help="The length of the prompt, and of the cache in each step.",
                shows_only=True,
            ),
            Slider(
                name="batch",
                label="Sequences in the batch",
                options=[(2**k, f"{2**k:,}") for k in range(11)],
                default=1,
                help="They take their steps together and share each read of the weights.",
            ),
            Number(
                name="price",
                label="Price of the device per hour",
                default=0.0,
                minimum=0,
                maximum=10_000,
                help="In your currency, from your provider; 0 leaves the cost out.",
                shows_only=True,
            ),
        ]

    def _model_control(self) -> Control:
        return Choice(
            name="model",
            label="Model",
            options=list(self._models),
            default="Llama 3 8B",
            help="By its published configuration; load() adds your own.",
        )

    def load(self, model: LanguageModel) -> InferencePlanner:
        """Add a model of your own to the list, and choose it.

        Raises
        ------
        InputError
            If it is no ``gl.models.LanguageModel``.
        """
        if not isinstance(model, LanguageModel):
            raise InputError(
                f"load: {shown(model)} is no shape of a model; expected a gl.models.LanguageModel. "
                "Make one from the model's configuration."
            )
        with self._lock:
            self._models[model.name] = model
            self.replace_control(self._model_control())
            self.set(model=model.name)
        return self

    @property
    def plan(self) -> InferencePlan:
        """Memory and least times for the present controls."""
        return self._plan(self.values, self._roofs(self.values), self.values["batch"])

    def _roofs(self, values: Values) -> models.Roofline:
        if values["device"] != _HERE:
            return models.roofline(values["device"])
        self._here = self._here or models.roofline()
        return self._here

    def _stale(self, action: str) -> bool:
        """The plan is never old; a measurement that no longer fits it is not shown."""
        return False

    def _plan(self, values: Values, roofs: models.Roofline, batch: int) -> InferencePlan:
        return models.inference(
            self._models[values["model"]],
            roofs,
            **{name: values[name] for name in ("context", "weights", "cache")},
            batch=batch,
        )

    def work(self, action: str, values: Values, progress: Progress, stop: Stop) -> Measurement:
        """Measure the products of one layer with as many rows as sequences."""
        import torch

        if values["weights"] not in ("float32", "bfloat16"):
            raise InputError(
                f"measure: weights={values['weights']!r}; expected float32 or bfloat16: the "
                "kernels for shorter weights depend on the library. Choose one of these."
            )
        shape = self._models[values["model"]]
        queries, keys = shape.heads * shape.head_size, shape.kv_heads * shape.head_size
        sizes = [
            *((shape.width, queries + 2 * keys), (queries, shape.width)),
            *((shape.width, shape.feed_width),) * (shape.matrices - 1),
            (shape.feed_width, shape.width),
        ]
        device, dtype = devices.find(None), getattr(torch, values["weights"])
        own = torch.Generator(str(device)).manual_seed(0)  # the learner's own stays as it is
        there = {"device": str(device), "dtype": dtype}
        batch = values["batch"]
        needed = 2 * dtype.itemsize * sum(i * out + batch * (i + out) for i, out in sizes)
        if needed > (device.free_bytes or needed):
            raise InputError(
                f"measure: a layer of {shape.name} needs {needed:,} bytes here; expected at most "
                f"{device.free_bytes:,}. Choose a smaller model."
            )
        progress(0.0, "measuring the rates of this machine")
        self._here = self._here or models.roofline(stop=stop)
        progress(0.3, "making one layer")
        layer = [torch.randn(out, inside, generator=own, **there) for inside, out in sizes]
        rows = [torch.ones(batch, inside, **there) for inside, _ in sizes]
        linear = torch.nn.functional.linear

        def step() -> Any:
            return [linear(x, matrix) for x, matrix in zip(rows, layer, strict=True)]

        progress(0.5, "measuring")
        measured = timing.measure(step, device=device, deadline=3.0, label="one layer", stop=stop)
        self._measured = shape
        return measured

    def draw(self, values: Values) -> Drawing:
        """Return tokens per second over the batch, the plan's table, and what limits it."""
        if values["device"] == _HERE and self._here is None:
            return Drawing(message="Press the button: it also measures this machine's rates.")
        roofs = self._roofs(values)
        chosen = self._plan(values, roofs, values["batch"])
        plans = [self._plan(values, roofs, 2**k) for k in range(11)]
        headers, rows = chosen.table()
        table: list[Sequence[str]] = [*rows]
        if values["price"]:
            cost = chosen.cost_per_million_tokens(values["price"])
            table.append(("a million tokens cost at least", format_number(cost)))
        evidence, notes = [chosen.evidence], [*roofs.notes]
        measured: Measurement | None = self.results.get("measure")
        points = []
        fits = self._measured == chosen.model and not super()._stale("measure")
        if measured is not None and values["device"] == _HERE and fits:
            seconds = measured.median_seconds * chosen.model.layers
            table.append(("products of all layers in a step, measured", format_seconds(seconds)))
            points.append((chosen.batch, chosen.batch / seconds, measured.evidence))
            evidence.append(measured.evidence)
            notes += measured.notes
        return Drawing(
            figures.inference(plans, chosen.batch, points),
            headers,
            table,
            evidence,
            notes,
            message=chosen.explanation,
        )

    def code_for(self, values: Values) -> str:
        """Return the plan's call and the figure."""
        shape = self._models[values["model"]]
        known = LANGUAGE_MODELS.get(shape.name) == shape
        model = f'"{shape.name}"' if known else f"gl.models.{shape}"
        device = [] if values["device"] == _HERE else [values["device"]]
        formats = f'weights="{values["weights"]}", cache="{values["cache"]}"'
        return cell(
            f"model = {model}",
            f"roofs = {call('models.roofline', *device)}",
            f"plans = [gl.models.inference(model, roofs, context={values['context']}, batch=2**k,",
            f"                             {formats}) for k in range(11)]",
            f"gl.figures.inference(plans, batch={values['batch']})",
        )
