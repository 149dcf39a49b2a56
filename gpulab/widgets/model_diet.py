"""Compress a network with one recipe after another, and show each as a measured point: accuracy,
bytes, time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpulab import compression, devices, figures, training
from gpulab.compression import Recipe, Weighing
from gpulab.errors import InputError
from gpulab.evidence import Badge
from gpulab.units import format_bytes, format_flops, format_ratio, format_seconds
from gpulab.widgets._controls import Choice, Control, Slider
from gpulab.widgets._instrument import Action, Drawing, Instrument
from gpulab.widgets._work import Progress, Stop

_STORED = (
    ("float32", "float32"),
    ("8 bits", "8 bits"),
    ("4 bits", "4 bits"),
    ("3 bits", "3 bits"),
    ("2 bits", "2 bits"),
    ("16 values", "16 shared values"),
    ("8 values", "8 shared values"),
    ("4 values", "4 shared values"),
)
_NETWORKS = (
    ("as it is", "the task's own"),
    ("resnext", "grouped convolutions (ResNeXt)"),
    ("mobilenet", "depthwise (MobileNet)"),
)
_COMPUTE = (("dense", "as usual"), ("csr", "zeros skipped (CSR)"), ("integer", "8-bit CPU kernels"))
_INPUTS = (
    (None, "float32"),
    ("dynamic", "8 bits, range of each batch"),
    ("static", "8 bits, calibrated"),
)
_SECONDS = 0.4  # of sampling for each model and batch size
_START = (
    "Press Run to train the network (once), apply the recipe, and measure both models. Each "
    "recipe adds a point."
)


class ModelDiet(Instrument):
    """Apply a recipe to a task's network and compare the result with the network as trained;
    earlier points stay.

    ``result`` is the ``Weighing`` with all models that were measured for the present task, device,
    batch and seeds.

    Examples
    --------
    >>> d = ModelDiet(zeros=0.9)
    >>> print(d.code)
    import gpulab as gl
    <BLANKLINE>
    recipe = gl.compression.Recipe(zeros=0.9)
    w = gl.compression.diet("digits-cnn", [recipe], seeds=(0,), device="cpu", batch_size=64)
    gl.figures.diet(w)
    """

    title = "Model diet"
    summary = (
        "Prune, share, round or group the weights of a network, and see the size, time and "
        "accuracy of each recipe."
    )
    actions: tuple[Action, ...] = (
        Action(
            "run", "Run", "Apply the recipe and compare the result with the network as trained."
        ),
        Action(
            "clear",
            "Clear the points",
            "Remove the recipes measured so far for this task.",
            measures=False,
        ),
    )

    def __init__(self, **values: Any) -> None:
        self._devices = devices.available()
        self._weighed: dict[tuple[Any, ...], Weighing] = {}
        # the label; one weighed again keeps its place among the models
        self._newest: dict[tuple[Any, ...], str] = {}
        super().__init__(**values)

    def make_controls(self) -> Sequence[Control]:
        """Return the task, the recipe in the order in which it is applied, and how the models are
        measured.
        """
        here = [(str(d), d.name) for d in self._devices]
        shares = [(s, f"{s:.0%}" if s else "none") for s in (0.0, 0.25, 0.5, 0.75)]
        zeros = [(s, f"{s:.0%}" if s else "none") for s in (0.0, 0.5, 0.8, 0.9, 0.95, 0.98)]
        tune = [(s, f"{s:.0%}" if s else "none") for s in (0.0, 0.25, 0.5, 1.0)]
        # each point keeps its own recipe: a control that moves makes no result stale
        live: dict[str, Any] = {"shows_only": True}
        return [
            Choice(
                name="task",
                label="Task",
                options=training.tasks(),
                default="digits-cnn",
                help="What the network learns.",
                **live,
            ),
            Choice(
                name="network",
                label="Network",
                options=_NETWORKS,
                help="Fewer connections by design, for images.",
                **live,
            ),
            Slider(
                name="channels",
                label="Channels removed",
                options=shares,
                help="Of each layer that can be pruned.",
                **live,
            ),
            Slider(
                name="zeros",
                label="Weights set to zero",
                options=zeros,
                help="The smallest ones, over all layers.",
                **live,
            ),
            Choice(
                name="stored",
                label="Weights stored as",
                options=_STORED,
                help="Fewer bits, or few shared values (k-means).",
                **live,
            ),
            Choice(
                name="scale",
                label="One scale per",
                options=(("per-channel", "channel"), ("per-tensor", "layer")),
                radio=True,
                help="For weights of few bits.",
                **live,
            ),
            Choice(
                name="inputs",
                label="Inputs of layers",
                options=_INPUTS,
                help="For weights of few bits.",
                **live,
            ),
            Choice(
                name="compute",
                label="Computed",
                options=_COMPUTE,
                help="The kernels that compute the layers.",
                **live,
            ),
            Slider(
                name="fine_tune",
                label="Fine-tuning",
                options=tune,
                default=0.5,
                help="After each lossy step, as a share of the epochs of training.",
                **live,
            ),
            Slider(
                name="seeds",
                label="Seeds",
                options=(1, 2, 3, 5),
                default=1,
                help="With several, the interval is over seeds and test "
                "items; the time grows in proportion.",
                **live,
            ),
            Slider(
                name="batch",
                label="Items at once",
                options=(1, 16, 64, 256),
                default=64,
                help="The size of the batch that is timed.",
                **live,
            ),
            Choice(
                name="device",
                label="Train and measure on",
                options=here,
                help="Each device has its own points.",
                **live,
            ),
        ]

    def on_screen(self, control: Control) -> bool:
        """Return whether a control applies, given the others: scale and inputs only with few bits,
        networks only for images.
        """
        if control.name in ("scale", "inputs"):
            return "bits" in self.values["stored"]
        if control.name == "network":
            return bool(self.values["task"].endswith("cnn"))
        return super().on_screen(control)

    def recipe(self, values: Mapping[str, Any] | None = None) -> Recipe:
        """Return the recipe of the controls.

        Raises
        ------
        InputError
            If two of them do not go together.
        """
        v = self.values if values is None else values
        number, _, kind = v["stored"].partition(" ")
        bits = int(number) if kind == "bits" else 32
        return Recipe(
            network=v["network"] if v["task"].endswith("cnn") else "as it is",
            channels=v["channels"],
            zeros=v["zeros"],
            values=int(number) if kind == "values" else 0,
            bits=bits,
            weights=v["scale"] if bits < 32 else "per-channel",
            activations=v["inputs"] if bits < 32 else None,
            compute=v["compute"],
            fine_tune=v["fine_tune"],
        )

    # The work.

    def work(
        self, action: str, values: Mapping[str, Any], progress: Progress, stop: Stop
    ) -> Weighing | None:
        """Apply and measure the recipe and add it to the points; or clear the points."""
        key = _key(values)
        if action == "clear":
            self._weighed.pop(key, None)
            return None
        new = compression.diet(
            values["task"],
            [self.recipe(values)],
            seeds=range(values["seeds"]),
            device=values["device"],
            batch_size=values["batch"],
            deadline=_SECONDS,
            progress=progress,
            stop=stop,
        )
        kept = self._weighed.get(key)
        self._newest[key] = new.models[-1].label
        self._weighed[key] = new if kept is None else kept.with_models(new)
        return self._weighed[key]

    # What is shown.

    @property
    def result(self) -> Weighing | None:
        """The models measured for the present task, device, batch and seeds."""
        return self._weighed.get(_key(self.values))

    def draw(self, values: Mapping[str, Any]) -> Drawing:
        """Return the points as figure and table, and why the newest model is not faster."""
        found = self._weighed.get(_key(values))
        try:
            wanted = self.recipe(values).label
            told = (
                ""
                if wanted != "as trained"
                else "The recipe does not change anything yet: set one of its controls."
            )
        except InputError as error:
            told = str(error)
        if found is None:
            return Drawing(message=" ".join(part for part in (told, _START) if part))
        headers = (
            "",
            "model",
            "file",
            "weights left",
            "FLOP per item",
            f"time for {found.batch}",
            "speed-up",
            "right",
            "Pareto front",
        )
        rows = [_row(number, each, found) for number, each in enumerate(found.models, start=1)]
        newest = next(
            (
                said
                for m, said in zip(found.models[1:], found.sentences, strict=True)
                if m.label == self._newest.get(_key(values))
            ),
            "",
        )
        message = " ".join(part for part in (newest, told) if part)
        return Drawing(figures.diet(found), headers, rows, [found.evidence], found.notes, message)

    def code_for(self, values: Mapping[str, Any]) -> str:
        """Return the recipe, the diet and the picture."""
        try:
            recipe = self.recipe(values)
            changed = {
                name: getattr(recipe, name)
                for name in Recipe.__dataclass_fields__
                if getattr(recipe, name) != getattr(Recipe(), name)
            }
        except InputError as error:
            return f"# {error}"
        arguments = ", ".join(f"{name}={_quoted(value)}" for name, value in changed.items())
        seeds = (
            f"({', '.join(map(str, range(values['seeds'])))}{',' if values['seeds'] == 1 else ''})"
        )
        return "\n".join(
            [
                "import gpulab as gl",
                "",
                f"recipe = gl.compression.Recipe({arguments})",
                f'w = gl.compression.diet("{values["task"]}", [recipe], seeds={seeds}, '
                f'device="{values["device"]}", '
                f"batch_size={values['batch']})",
                "gl.figures.diet(w)",
            ]
        )


def _key(values: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(values[name] for name in ("task", "seeds", "batch", "device"))


def _quoted(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else repr(value)


def _row(number: int, each: compression.WeighedModel, found: Weighing) -> list[str | Badge]:
    low, high = each.accuracy_interval or (0.0, 1.0)
    ratio = each.speedup_interval
    span = (
        "(no interval)"
        if ratio is None
        else f"[{format_ratio(ratio[0])}, {format_ratio(ratio[1])}]"
    )
    return [
        str(number),
        each.label,
        format_bytes(each.file_bytes),
        f"{each.parameters - each.zeros:,}",
        format_flops(each.flops_per_item),
        format_seconds(each.median_seconds),
        "reference" if each.speedup is None else f"{format_ratio(each.speedup)} {span}",
        f"{100 * (each.accuracy or 0.0):.1f} % [{100 * low:.1f}, {100 * high:.1f}]",
        "yes" if each.label in found.front else "",
    ]
