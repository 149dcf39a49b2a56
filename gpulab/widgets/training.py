"""Models: training data in a pipeline, compressed networks, and text generation."""

from __future__ import annotations

from typing import Any

from gpulab import (
    _validate,
    compression,
    devices,
    figures,
    models,
    recordings,
    timing,
    training,
    transfer,
)
from gpulab.compression import Recipe, Weighing
from gpulab.devices import datasheets
from gpulab.errors import InputError
from gpulab.evidence import Badge, Evidence
from gpulab.models import LANGUAGE_MODELS, InferencePlan, LanguageModel
from gpulab.timing import Measurement
from gpulab.training import PipelineResult
from gpulab.units import (
    format_bytes,
    format_flops,
    format_number,
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
    Slider,
    Stop,
    Switch,
    Values,
    call,
    cell,
    notes_for_button,
    rounded,
)

_STEPS = 24
_SIZE = 128  # pixels of a sample
# Milliseconds for one image, until a run has measured them: the time in which a core of a few years
# ago decodes and scales an image.
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
        "Images are loaded, copied and used for training. The accelerator is expensive: see where "
        "it waits."
    )
    actions: tuple[Action, ...] = (
        Action(
            "run", "Run the steps", f"Decode real JPEG files for {_STEPS} steps, with real workers."
        ),
    )

    def make_controls(self) -> list[Control]:
        """Return whether to measure or to model, the settings of the loader, then those of the
        accelerator.
        """
        there = [d for d in devices.available() if d.torch_type == "cuda"]
        accelerators = [
            ("model", "modelled, with the step time below"),
            *((_LIVE, f"{d.name}, training for real") for d in there[:1]),
        ]
        return [
            Choice(
                name="way",
                label="Timeline",
                options=(
                    ("model", "modelled, updated with each control"),
                    ("here", "measured here"),
                ),
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
                help="The images that one step trains on.",
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
                when=lambda v: v["workers"] > 0,
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
                when=lambda v: len(accelerators) > 1,
            ),
            Slider(
                name="step_seconds",
                label="Its step takes",
                options=[
                    (s, rounded(format_seconds(s)))
                    for s in (k / 1e3 for k in (2, 5, 10, 20, 40, 80, 160))
                ],
                default=0.02,
                help="For the modelled accelerator and any batch size; an accelerator twice as "
                "fast takes half the time.",
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
                help="For the modelled timeline: one worker on its own core. A measured run "
                "without workers sets it to your machine's time.",
                when=lambda v: v["way"] == "model",
            ),
            Number(
                name="cores",
                label="Cores",
                default=devices.environment("cpu").cores,
                minimum=1,
                maximum=4096,
                integer=True,
                suggestions=(1, 2, 4, 8, 16, 32, 64),
                shows_only=True,
                help="Cores of the modelled host; if there are more workers, they take turns.",
                when=lambda v: v["way"] == "model",
            ),
        ]

    @property
    def modelled(self) -> PipelineResult:
        """The modelled timeline for the present controls."""
        return training.model_pipeline(**_modelled(self.values))

    def work(self, action: str, values: Values, progress: Progress, stop: Stop) -> PipelineResult:
        """Run ``gl.training.pipeline``."""
        return training.pipeline(**_measured(values), progress=progress, stop=stop)

    def ended(self, action: str) -> None:
        """Show the run; if nothing else shared the core, set the model's loading time to the
        measured one.
        """
        self.turn(action, way="here")
        p: PipelineResult = self.results["run"]
        if p.workers == 0:
            milliseconds = 1e3 * p.loading_seconds / p.batch_size
            self.turn(action, loading_ms=min(1000.0, max(0.01, float(f"{milliseconds:.3g}"))))

    def draw(self, values: Values) -> Drawing:
        """Return the timeline, its table and where the time goes."""
        is_modelled = values["way"] == "model"
        p = self.modelled if is_modelled else self.results.get("run")
        if p is None:
            return Drawing(message="Press Run the steps: real files are decoded on this machine.")
        headers, rows = p.table()
        return Drawing(
            figures.pipeline(p),
            headers,
            rows,
            [p.evidence, p.accelerator_evidence],
            p.notes,
            p.sentence,
            is_stale=False if is_modelled else None,
        )

    def code_for(self, values: Values) -> str:
        """Return the call of ``gl.training`` behind the picture."""
        if values["way"] == "here":
            arguments = {name: v for name, v in _measured(values).items() if v is not None}
            return cell(f"p = {call('training.pipeline', **arguments)}", "gl.figures.pipeline(p)")
        arguments = _modelled(values)
        loading, compute = arguments.pop("loading_seconds"), arguments.pop("compute_seconds")
        arguments["copy_seconds"] = float(f"{arguments['copy_seconds']:.3g}")
        seconds = Code(f"{loading:.4g}"), Code(f"{compute:g}")
        made = call("training.model_pipeline", *seconds, **arguments)
        return cell(f"p = {made}", "gl.figures.pipeline(p)")


def _loader(values: Values) -> dict[str, Any]:
    return {name: values[name] for name in ("workers", "prefetch", "pinned", "read_loss")}


def _modelled(values: Values) -> dict[str, Any]:
    """Return what ``gl.training.model_pipeline`` takes."""
    batch = values["batch_size"]
    nbytes = batch * 3 * _SIZE**2
    link = transfer.link("pcie4-x16", memory="pinned" if values["pinned"] else "pageable")
    return {
        "loading_seconds": batch * float(values["loading_ms"]) * 1e-3,
        "compute_seconds": values["step_seconds"],
        "copy_seconds": link.seconds(nbytes),
        **_loader(values),
        "cores": int(values["cores"]),
        "batch_size": batch,
        "batch_bytes": nbytes,
        "steps": _STEPS,
    }


def _measured(values: Values) -> dict[str, Any]:
    """Return what ``gl.training.pipeline`` takes."""
    seconds = None if values["accelerator"] == _LIVE else values["step_seconds"]
    return {
        "batch_size": values["batch_size"],
        **_loader(values),
        "step_seconds": seconds,
        "steps": _STEPS,
    }


# Compressed models.

_SECONDS = 0.4  # of sampling for each model and batch size


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
        # The models, and the label of the newest one, which is not always the last: a recipe that
        # is measured again keeps its place.
        self._weighed: dict[tuple[Any, ...], tuple[Weighing, str]] = {}
        super().__init__(**values)

    def make_controls(self) -> list[Control]:
        """Return the task, the recipe in the order in which it is applied, and how the models are
        measured.
        """
        # each point keeps its own recipe, so a changed control makes no result stale
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
                options=(
                    ("as it is", "the task's own"),
                    ("resnext", "grouped convolutions (ResNeXt)"),
                    ("mobilenet", "depthwise (MobileNet)"),
                ),
                help="Fewer connections by design, for images.",
                when=lambda v: v["task"].endswith("cnn"),
                **live,
            ),
            Slider(
                name="channels",
                label="Channels removed",
                options=_shares(0.25, 0.5, 0.75),
                help="The share of the channels of each layer that can be pruned.",
                **live,
            ),
            Slider(
                name="zeros",
                label="Weights set to zero",
                options=_shares(0.5, 0.8, 0.9, 0.95, 0.98),
                help="The share of all weights that becomes zero: the smallest ones over all "
                "layers.",
                **live,
            ),
            Choice(
                name="stored",
                label="Weights stored as",
                options=(
                    ("float32", "float32"),
                    ("8 bits", "8 bits"),
                    ("4 bits", "4 bits"),
                    ("3 bits", "3 bits"),
                    ("2 bits", "2 bits"),
                    ("16 values", "16 shared values"),
                    ("8 values", "8 shared values"),
                    ("4 values", "4 shared values"),
                ),
                help="Fewer bits, or few shared values (k-means).",
                **live,
            ),
            Choice(
                name="scale",
                label="One scale per",
                options=(("per-channel", "channel"), ("per-tensor", "layer")),
                radio=True,
                help="For weights of few bits.",
                when=lambda v: "bits" in v["stored"],
                **live,
            ),
            Choice(
                name="inputs",
                label="Inputs of layers",
                options=(
                    (None, "float32"),
                    ("dynamic", "8 bits, range of each batch"),
                    ("static", "8 bits, calibrated"),
                ),
                help="For weights of few bits.",
                when=lambda v: "bits" in v["stored"],
                **live,
            ),
            Choice(
                name="compute",
                label="Computed",
                options=(
                    ("dense", "as usual"),
                    ("csr", "zeros skipped (CSR)"),
                    ("integer", "8-bit CPU kernels"),
                ),
                help="The kernels that compute the layers.",
                **live,
            ),
            Slider(
                name="fine_tune",
                label="Fine-tuning",
                options=_shares(0.25, 0.5, 1.0),
                default=0.5,
                help="After each lossy step, as a share of the epochs of training.",
                **live,
            ),
            Slider(
                name="seeds",
                label="Seeds",
                options=(1, 2, 3, 5),
                default=1,
                help="With several, the interval is over seeds and test items; the time grows in "
                "proportion.",
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
                options=[(str(d), d.name) for d in devices.available()],
                help="Each device has its own points.",
                **live,
            ),
        ]

    def recipe(self, values: Values | None = None) -> Recipe:
        """Return the recipe of the controls.

        Raises
        ------
        InputError
            If two of the settings cannot be combined.
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

    def work(self, action: str, values: Values, progress: Progress, stop: Stop) -> Weighing | None:
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
        kept, _ = self._weighed.get(key, (None, ""))
        all_models = new if kept is None else kept.with_models(new)
        self._weighed[key] = all_models, new.models[-1].label
        return all_models

    # What is shown.

    @property
    def result(self) -> Weighing | None:
        """The models measured for the present task, device, batch and seeds."""
        return self._weighed.get(_key(self.values), (None, ""))[0]

    def draw(self, values: Values) -> Drawing:
        """Return the points as figure and table, and why the newest model is not faster."""
        about_recipe = ""
        try:
            if self.recipe(values).label == "as trained":
                about_recipe = "The recipe does not change anything yet: set one of its controls."
        except InputError as error:
            about_recipe = str(error)
        w, newest = self._weighed.get(_key(values), (None, ""))
        if w is None:
            start = (
                "Press Run to train the network (once), apply the recipe, and measure both models. "
                "Each recipe adds a point."
            )
            return Drawing(message=f"{about_recipe} {start}".strip())
        sentences = zip((m.label for m in w.models[1:]), w.sentences, strict=True)
        headers = (
            "",
            "model",
            "file size",
            "weights left",
            "FLOP per item",
            f"time for {plural(w.batch, 'item')}",
            "speed-up",
            "accuracy (95 %)",
            "Pareto front",
        )
        rows = [_row(number, each, w) for number, each in enumerate(w.models, start=1)]
        message = f"{dict(sentences).get(newest, '')} {about_recipe}".strip()
        return Drawing(figures.diet(w), headers, rows, [w.evidence], w.notes, message)

    def code_for(self, values: Values) -> str:
        """Return the recipe, the diet and the picture."""
        try:
            recipe, plain = vars(self.recipe(values)), vars(Recipe())
        except InputError as error:
            return f"# {error}"
        changed = {name: value for name, value in recipe.items() if value != plain[name]}
        made = call(
            "compression.diet",
            values["task"],
            Code("[recipe]"),
            seeds=tuple(range(values["seeds"])),
            device=values["device"],
            batch_size=values["batch"],
        )
        recipe_code = call("compression.Recipe", **changed)
        return cell(f"recipe = {recipe_code}", f"w = {made}", "gl.figures.diet(w)")


def _shares(*shares: float) -> list[tuple[float, str]]:
    return [(0.0, "none"), *((share, f"{share:.0%}") for share in shares)]


def _key(values: Values) -> tuple[Any, ...]:
    return tuple(values[name] for name in ("task", "seeds", "batch", "device"))


def _row(number: int, each: compression.WeighedModel, found: Weighing) -> list[str | Badge]:
    low, high = each.accuracy_interval or (0.0, 1.0)
    return [
        str(number),
        each.label,
        format_bytes(each.file_bytes),
        f"{each.parameters - each.zeros:,}",
        format_flops(each.flops_per_item),
        format_seconds(each.median_seconds),
        "reference"
        if each.speedup is None
        else format_speedup(each.speedup, each.speedup_interval),
        f"{100 * (each.accuracy or 0.0):.1f} % [{100 * low:.1f}, {100 * high:.1f}]",
        "yes" if each.label in found.front_of() else "",
    ]


# Text generation.

_HERE = "this machine"


def _recorded_steps(
    plan: InferencePlan, device: str
) -> list[tuple[int, float, tuple[float, float] | None, str, Evidence]]:
    """Return the fastest recorded step of decode for each batch, for the plan's model on
    ``device``: batch, seconds, their interval, a description, and the evidence.
    """
    shape = plan.model
    if plan.cache != "bfloat16" or LANGUAGE_MODELS.get(shape.name) != shape:
        return []
    asked: dict[str, Any] = {
        "model": shape.name,
        "phase": "decode",
        "length": plan.context,
        "new": 1,
        "kv_heads": shape.kv_heads,
        "weights": plan.weights,
    }
    found = [
        (
            int(entry.params["batch"]),
            entry.timing.median_seconds,
            entry.timing.interval_seconds,
            f"a step, recorded ({entry.params['means']})",
            recording.evidence(experiment="generation"),
        )
        for recording in recordings.readable().values()
        if getattr(datasheets.part(recording.environment.device), "name", "") == device
        for entry in recording.select("generation", **asked)
        if entry.timing is not None
    ]
    # sorted from slow to fast, so the dict keeps the fastest of each batch
    by_batch = {one[0]: one for one in sorted(found, key=lambda one: one[1], reverse=True)}
    return [by_batch[batch] for batch in sorted(by_batch)]


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
            "device; a run also measures its rates.",
        ),
    )

    def __init__(self, **values: Any) -> None:
        self._models = dict(LANGUAGE_MODELS)
        self._here: models.Roofline | None = None  # measured by the first run
        self._measured: LanguageModel | None = None  # load may replace the model of its name
        super().__init__(**values)

    def make_controls(self) -> list[Control]:
        """Return the model, the device, the formats, context, batch and price."""
        return [
            Choice(
                name="model",
                label="Model",
                options=list(self._models),
                default="Llama 3 8B",
                help="By its published configuration; load() adds your own.",
            ),
            Choice(
                name="device",
                label="Device",
                options=(
                    _HERE,
                    "A100 80GB SXM",
                    "L4",
                    "H100 SXM",
                    "H200 SXM",
                    "GeForce RTX 4090",
                ),
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

    def load(self, model: LanguageModel) -> InferencePlanner:
        """Add a model of your own to the list, and choose it.

        Raises
        ------
        InputError
            If it is no ``gl.models.LanguageModel``.
        """
        _validate.instance(
            "load",
            "model",
            model,
            LanguageModel,
            "a gl.models.LanguageModel. Make one from the model's configuration.",
        )
        with self._lock:
            self._models[model.name] = model
            self.rebuild("model")
            self.set(model=model.name)
        return self

    @property
    def plan(self) -> InferencePlan:
        """The memory and the minimum times for the present controls."""
        return self._plan(self.values, self._roofs(self.values), self.values["batch"])

    def _roofs(self, values: Values) -> models.Roofline:
        if values["device"] != _HERE:
            return models.roofline(values["device"])
        self._here = self._here or models.roofline()
        return self._here

    def _plan(self, values: Values, roofs: models.Roofline, batch: int) -> InferencePlan:
        return models.inference(
            self._models[values["model"]],
            roofs,
            **{name: values[name] for name in ("context", "weights", "cache")},
            batch=batch,
        )

    def work(self, action: str, values: Values, progress: Progress, stop: Stop) -> Measurement:
        """Measure the matrix products of one layer, whose inputs have a row for each sequence."""
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
        own = torch.Generator(str(device)).manual_seed(0)  # leaves torch's global one alone
        there = {"device": str(device), "dtype": dtype}
        batch = values["batch"]
        needed = 2 * dtype.itemsize * sum(i * out + batch * (i + out) for i, out in sizes)
        if needed > device.free_bytes:
            raise InputError(
                f"measure: a layer of {shape.name} needs {needed:,} bytes here; expected at most "
                f"{device.free_bytes:,}. Choose a smaller model or batch."
            )
        progress(0.0, "measuring the rates of this machine")
        # measured again if the button is pressed again: another process may have disturbed them
        self._here = models.roofline(refresh="measure" in self.results, stop=stop)
        layer = [torch.randn(out, inside, generator=own, **there) for inside, out in sizes]
        rows = [torch.ones(batch, inside, **there) for inside, _ in sizes]
        linear = torch.nn.functional.linear

        def step() -> Any:
            return [linear(x, matrix) for x, matrix in zip(rows, layer, strict=True)]

        measured = timing.measure(
            step,
            device=device,
            deadline=3.0,
            # a note then says where a cache keeps the layer, which it could not do for all layers
            nbytes=needed / 2,
            label="one layer",
            progress=progress,
            stop=stop,
        )
        self._measured = shape
        return measured

    def ended(self, action: str) -> None:
        """Show the new result beside the plan for this machine."""
        self.turn(action, device=_HERE)

    def draw(self, values: Values) -> Drawing:
        """Return tokens per second over the batch, the plan's table, and what limits it."""
        if values["device"] == _HERE and self._here is None:
            return Drawing(
                message="Press Measure one layer here: it also measures this machine's rates."
            )
        roofs = self._roofs(values)
        chosen = self._plan(values, roofs, values["batch"])
        plans = [self._plan(values, roofs, 2**k) for k in range(11)]
        headers, rows = chosen.table()
        cost, notes = chosen.cost_per_million_tokens(values["price"]), notes_for_button(roofs.notes)
        price = (
            [("a million tokens, at least (your currency)", format_number(cost))] if cost else []
        )
        steps = _recorded_steps(chosen, values["device"])
        m: Measurement | None = self.results.get("measure")
        fits = self._measured == chosen.model and not self.is_stale("measure")
        if m is not None and fits and values["device"] == _HERE:
            layers, ends = chosen.model.layers, m.interval_seconds
            whole = ends and (ends[0] * layers, ends[1] * layers)
            what = "products of all layers in a step, measured"
            steps.append((chosen.batch, m.median_seconds * layers, whole, what, m.evidence))
            notes += m.notes
        here = (step for step in steps if step[0] == chosen.batch)
        table = [*rows, *price, *((what, format_seconds(time)) for _, time, _, what, _ in here)]
        points = [
            (batch, batch / seconds, ends and (batch / ends[1], batch / ends[0]), source)
            for batch, seconds, ends, _, source in steps
        ]
        return Drawing(
            figures.inference(plans, chosen.batch, points),
            headers,
            table,
            [chosen.evidence, *(step[4] for step in steps)],
            notes,
            message=chosen.explanation,
            is_stale=False,  # a measurement that no longer fits the plan is not shown
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
