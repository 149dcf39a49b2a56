"""Memory: what a device holds, what a step needs, and what each of several ranks needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from IPython import get_ipython

from gpulab import devices, figures, memory, networks, parallel
from gpulab.devices import memory_sizes
from gpulab.errors import OutOfMemoryError
from gpulab.evidence import Note
from gpulab.memory import MemoryTrace, Prediction, Released, Snapshot
from gpulab.parallel import RankMemory, RankStates
from gpulab.units import format_bytes, plural
from gpulab.widgets._instrument import (
    Action,
    Choice,
    Code,
    Control,
    Drawing,
    FollowingInstrument,
    Instrument,
    Progress,
    Slider,
    Stop,
    Switch,
    Values,
    call,
    cell,
    literal,
    part_of,
)

_GIB = 2**30
_BARS = 4  # predictions side by side: the newest, and those before it
_CLASSES = 10
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
    """A model of ``gpulab.networks``: its factory with arguments, and the shape of one sample. If
    there is a vocabulary, the samples are tokens.
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


_MODELS = {
    "cnn": _Model(
        "CNN on 32 x 32 color images", "cnn", (3, 10), {"width": 32, "stages": 3}, (3, 32, 32)
    ),
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
        {"context": 1024, "tied": True},
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
        chosen, traces = _MODELS[self.model], function == "trace"
        made = call(f"networks.{chosen.network}", *chosen.arguments, **chosen.named)
        options: dict[str, Any] = {"targets": Code("y")}
        if not chosen.vocabulary:
            options["loss"] = Code("torch.nn.functional.cross_entropy")
        # only the options that differ from the function's defaults
        usual = {"optimizer": "" if traces else "adam", "precision": "float32", "checkpoint": False}
        options |= {n: value for n, value in self._asdict().items() if value != usual.get(n, value)}
        model = Code("model" if traces else f"lambda: {made}")
        return [
            *([f"model = {made}.to({device})"] if traces else []),
            chosen.batch_code(self.batch, f", device={device}" if device else ""),
            f"{function[0]} = {call(f'memory.{function}', model, Code('x'), **options)}",
        ]


class MemoryInspector(FollowingInstrument):
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

    follows = "predict"
    title = "Memory"
    summary = (
        "What occupies a device's memory now, how much a training step needs, and whether another "
        "one would fit."
    )
    actions: tuple[Action, ...] = (
        Action("snapshot", "Snapshot", "Account for all bytes of the device.", measures=False),
        Action("predict", "Predict", "Predict the memory of a training step without running it."),
        Action("trace", "Run a step", "Run two training steps and follow every tensor."),
        Action(
            "release",
            "Release",
            "Free the tensors held by the last failed cell and the memory cached by allocators.",
            measures=False,
        ),
    )

    def __init__(self, **values: Any) -> None:
        self._predictions: dict[_Step, Prediction] = {}  # the last used at the end
        super().__init__(**values)
        self.run_if_wanted()

    def make_controls(self) -> list[Control]:
        """Return view and device, then model, batch, optimizer, precision and checkpointing of the
        step, and the device to fit on.
        """
        there = devices.available()[::-1]
        step: dict[str, Any] = {"views": ("predict", "trace"), "for_actions": ("trace",)}
        capacities = [
            *((str(d), f"{d.name}, the memory free now") for d in there),
            # GiB of today's GPUs
            *(
                (str(gib), f"a GPU of {gib} GiB, all of it free")
                for gib in (8, 12, 16, 24, 40, 48, 80, 141)
            ),
        ]
        return [
            Choice(
                name="view",
                label="Show",
                options=(
                    ("snapshot", "memory in use"),
                    ("predict", "a step, predicted"),
                    ("trace", "a step, measured"),
                    ("release", "memory released"),
                ),
                radio=True,
                shows_only=True,
                help="Each view has its own button.",
            ),
            Choice(
                name="device",
                label="Device",
                options=[(str(d), d.name) for d in there],
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
                options=("adam", "adamw", "sgd", "sgd-momentum", "rmsprop"),
                help="Adam stores two numbers for each parameter.",
                **step,
            ),
            Choice(
                name="precision",
                label="Precision",
                options=("float32", "bfloat16", "float16", "pure-bfloat16", "pure-float16"),
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
                help="The peak, the scratch memory of operators and a margin must fit together.",
            ),
            Choice(
                name="picture",
                label="Draw",
                options=(("bars", "parts"), ("timeline", "timeline")),
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

    def wanted(self) -> _Step:
        """Return the step that the controls describe."""
        return _Step.of(self.values)

    def is_missing(self) -> bool:
        """Return whether the view "predict" has no prediction of the step yet."""
        return self.values["view"] == "predict" and self.wanted() not in self._predictions

    # The work.

    def work(
        self, action: str, values: Values, progress: Progress, stop: Stop
    ) -> Snapshot | Prediction | MemoryTrace | Released:
        """Run ``gl.memory.snapshot``, ``predict``, ``trace`` or ``release``."""
        if action == "snapshot":
            # the notebook's variables, for the names of its tensors; none outside a notebook
            names = dict(getattr(get_ipython(), "user_ns", {}))  # type: ignore[no-untyped-call,unused-ignore]
            return memory.snapshot(values["device"], names=names)
        if action == "release":
            return memory.release(values["device"], outputs=values["outputs"])
        if action == "predict":
            found: Prediction = self.work_on_newest(
                lambda step, ends: self._predict(step, progress, ends), stop
            )
            return found
        return self._trace(_Step.of(values), values["device"], progress, stop)

    def _predict(self, step: _Step, progress: Progress, stop: Stop) -> Prediction:
        found = self._predictions.get(step)
        if found is None:
            progress(0.0, f"predicting {step.words}")
            found = step.run("meta", progress, stop)
        with self._lock:
            self._predictions[step] = found
        return found

    def _trace(self, step: _Step, device: str, progress: Progress, stop: Stop) -> MemoryTrace:
        """Run the step; refuse it if, by its prediction, the free memory cannot hold the step and a
        copy of its parameters.
        """
        where = devices.find(device)
        expected = self._predict(step, progress, stop)
        needed = expected.needed_bytes(where.kind) + expected.peak_by_category.get("parameters", 0)
        free = where.free_bytes
        if needed > free:
            raise OutOfMemoryError(
                f"Run a step: {step.words} needs {format_bytes(needed)}, and {format_bytes(free)} "
                f"are free on {where.name}; expected a step that fits. Choose a smaller batch or "
                "model, or press Release first."
            )
        traced: MemoryTrace = step.run(device, progress, stop)
        return traced

    def ended(self, action: str) -> None:
        """Show the new result."""
        self.turn(action, view=action)

    # What is shown.

    def draw(self, values: Values) -> Drawing:
        """Return the picture, the table and the sentence of the view."""
        view = values["view"]
        if view == "predict":
            return self._draw_prediction(values)
        drawn: dict[str, Callable[[Any], Drawing]] = {
            "snapshot": _draw_snapshot,
            "trace": self._draw_trace,
            "release": _draw_released,
        }
        result = self.results.get(view)
        return Drawing(message=_BEFORE[view]) if result is None else drawn[view](result)

    def _draw_prediction(self, values: Values) -> Drawing:
        step = _Step.of(values)
        known = self._predictions.pop(step, None)
        if known is not None:
            self._predictions[step] = known  # at the end, as the last used
        several = [
            (s, found) for s, found in reversed(self._predictions.items()) if s.model == step.model
        ][:_BARS]
        if not several:
            return Drawing(message=_BEFORE["predict"], is_stale=False)
        shown, newest = several[0]
        free, kind, fits = _room(newest, values["capacity"])
        figure = (
            figures.memory_timeline(newest)
            if values["picture"] == "timeline"
            else figures.memory_prediction(
                [found for _, found in several], [s.words for s, _ in several], free, kind
            )
        )
        needed = format_bytes(newest.needed_bytes(kind))
        verdict = f"{shown.words}: needs {needed} with scratch and margin; {fits}."
        missing = (
            f"Not predicted yet: {step.words}; press Predict if the prediction does not start."
        )
        # never stale: the prediction belongs to the controls, or the message says that it does not
        return Drawing.of(
            newest, figure, verdict if known else f"{missing} {verdict}", is_stale=False
        )

    def _draw_trace(self, t: MemoryTrace) -> Drawing:
        message = (
            f"Peak {format_bytes(t.peak_bytes)} in the {t.peak_phase}, after {t.peak_operator}."
        )
        p = self._predictions.get(_Step.of(self._made["trace"]))
        if p is not None and not t.notes:
            error = (p.peak_bytes - t.peak_bytes) / max(t.peak_bytes, 1)
            message += (
                f" The predicted peak (modelled) is {format_bytes(p.peak_bytes)}: {error:+.1%}."
            )
        return Drawing.of(t, figures.memory_timeline(t), message)

    def code_for(self, values: Values) -> str:
        """Return the call of ``gl.memory`` behind the view."""
        device, step, capacity = values["device"], _Step.of(values), values["capacity"]
        fits = f"p.fits({literal(capacity)})"
        if capacity.isdigit():
            fits = f'p.needed_bytes("cuda") <= {capacity} * 2**30'
        picture = "memory_timeline" if values["picture"] == "timeline" else "memory_prediction"
        outputs = {"outputs": True} if values["outputs"] else {}
        lines = {
            "snapshot": [f"s = {call('memory.snapshot', device)}", "gl.figures.memory_snapshot(s)"],
            "predict": [*step.code("predict"), f"print({fits})", f"gl.figures.{picture}(p)"],
            "trace": [*step.code("trace", literal(device)), "gl.figures.memory_timeline(t)"],
            "release": [call("memory.release", device, **outputs)],
        }[values["view"]]
        return cell(*lines)


def _room(p: Prediction, capacity: str) -> tuple[float, str, str]:
    """Return (free bytes, kind of device, whether it fits on the chosen device or capacity)."""
    if capacity.isdigit():
        free, kind, where = int(capacity) * _GIB, "cuda", f"a GPU of {capacity} GiB"
    else:
        device = devices.find(capacity)
        free, kind = device.free_bytes, device.kind
        where = f"{device.name}, which has {format_bytes(free)} free"
    fits = "it fits on" if p.needed_bytes(kind) <= free else "it does not fit on"
    return free, kind, f"{fits} {where}"


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
        (f"{where}, {word}", format_bytes(nbytes))
        for where, word, nbytes in (
            (f"free on {r.device}", "before", r.device_free_before_bytes),
            (f"free on {r.device}", "after", r.device_free_after_bytes),
            ("held by this process", "before", r.host_resident_before_bytes),
            ("held by this process", "after", r.host_resident_after_bytes),
        )
    ]
    message = " ".join([f"{came} were released on {r.device}.", *r.what])
    return Drawing(None, ("memory", "bytes"), rows, [r.evidence], r.notes, message)


# Memory of one rank of several.

_ALL = "all"
_STATES = ("parameters", "gradients", "optimizer")
_PARTS = (*_STATES, "activations", "communication")
_HEADERS = ("strategy", "verdict", "needed", *_PARTS, "the rest")


class _Asked(NamedTuple):
    """The values that decide a prediction."""

    model: str
    strategy: str
    ranks: int
    precision: str
    optimizer: str
    batch: int
    positions: int
    checkpoint: bool

    @classmethod
    def of(cls, values: Values, strategy: str) -> _Asked:
        """Return the controls' values with a strategy; the length of a sequence is limited to the
        model's context.
        """
        v = {**values, "strategy": strategy}
        v["positions"] = min(v["positions"], parallel.gpt_shape(v["model"]).context)
        return cls(*(v[name] for name in cls._fields))

    @property
    def rows(self) -> int:
        """The number of sequences in a rank's step."""
        return self.batch * (self.ranks if self.strategy.startswith("pipeline") else 1)

    @property
    def followed(self) -> tuple[int, ...]:
        """The ranks of which one needs the most memory: rank 0, and the last stage of a pipeline.

        Without a pipeline, no rank needs more than rank 0, apart from the padding of its share. In
        a pipeline, the first stage holds the embeddings and, in 1F1B, the most activations; the
        last stage holds the output layer and its scores.
        """
        return (
            (0, self.ranks - 1) if self.strategy.startswith("pipeline") and self.ranks > 1 else (0,)
        )

    def predict(self, progress: Progress, stop: Stop) -> RankMemory:
        """Predict the step of each rank in ``followed``; return the one that needs the most
        memory.
        """
        x = torch.zeros(self.rows, self.positions, dtype=torch.int64, device="meta")
        shape, ranks = parallel.gpt_shape(self.model), self.followed
        several = (
            parallel.predict_ranks(
                shape.model,
                x,
                x,
                strategy=self.strategy,
                ranks=self.ranks,
                rank=rank,
                precision=self.precision,
                optimizer=self.optimizer,
                checkpoint=self.checkpoint,
                stop=stop,
                progress=part_of(progress, number, len(ranks), f"rank {rank}"),
            )
            for number, rank in enumerate(ranks)
        )
        return max(several, key=RankMemory.needed_bytes)


class ShardingExplorer(Instrument):
    """Choose a model, ranks and a GPU; see how much memory each strategy needs on a rank, and
    whether it fits.

    The states (parameters, gradients, optimizer) are drawn immediately; "Predict" follows a whole
    step of the chosen strategies. ``states`` and ``predictions`` hold the results by strategy.

    Examples
    --------
    >>> s = ShardingExplorer(model="7B", ranks=64, gpu="H100 SXM")
    >>> s.states["zero3"].total_bytes < s.states["zero1"].total_bytes < s.states["ddp"].total_bytes
    True
    """

    title = "Sharding"
    summary = (
        "The memory of one rank under each strategy, and whether it fits on a GPU: states by "
        "arithmetic, a whole step by prediction."
    )
    actions: tuple[Action, ...] = (
        Action(
            "predict",
            "Predict the step",
            "Follow a training step of one rank with fake tensors; nothing is allocated.",
            measures=False,
        ),
    )

    def __init__(self, **values: Any) -> None:
        self._found: dict[_Asked, RankMemory] = {}
        super().__init__(**values)

    def make_controls(self) -> list[Control]:
        """Return model, ranks, strategy, precision, optimizer, batch, length, checkpointing and
        GPU.
        """
        models = [
            (
                n,
                f"{n}: {(s := parallel.gpt_shape(n)).layers} layers of {s.width}, "
                f"{s.parameter_count / 1e6:,.1f} million parameters",
            )
            for n in parallel.gpt_shapes()
        ]
        gpus = [
            (name, f"{name}, {format_bytes(memory_sizes.memory_bytes(name))}")
            for name in memory_sizes.gpus()
        ]
        return [
            Choice(
                name="model",
                label="Model",
                options=models,
                default="1.3B",
                help="Shapes of published models.",
            ),
            Slider(
                name="ranks",
                label="Ranks",
                options=[2**k for k in range(11)],
                default=8,
                help="GPUs that train one model together.",
            ),
            Choice(
                name="strategy",
                label="Predict",
                options=[*parallel.STATE_STRATEGIES, (_ALL, "all strategies")],
                default="zero3",
                help="The strategies to predict; for a large model each takes a minute.",
            ),
            Choice(
                name="precision",
                label="Precision",
                options=("float32", "bfloat16"),
                default="bfloat16",
                help="bfloat16 computes in bfloat16 and stores the states in float32.",
            ),
            Choice(
                name="optimizer",
                label="Optimizer",
                options=("adam", "sgd-momentum", "sgd"),
                help="Adam stores two numbers for each parameter.",
            ),
            Slider(
                name="batch",
                label="Sequences",
                options=[2**k for k in range(7)],
                default=1,
                help="Per rank and step; in a pipeline per microbatch, with as many microbatches "
                "as ranks.",
            ),
            Slider(
                name="positions",
                label="Length of a sequence",
                options=(64, 128, 256, 512, 1024, 2048),
                default=1024,
                help="Tokens, at most the model's context.",
            ),
            Switch(
                name="checkpoint",
                label="Checkpointing",
                help="Recompute activations in the backward pass instead of keeping them.",
            ),
            Choice(
                name="gpu",
                label="Must fit on",
                options=gpus,
                default="H100 SXM",
                help="Its memory is taken from the data sheet.",
                shows_only=True,
            ),
        ]

    def _possible(self, values: Values) -> tuple[list[str], list[Note]]:
        """Return the strategies that can split the model over the chosen number of ranks, and notes
        on why the others cannot.
        """
        shape = parallel.gpt_shape(values["model"])
        refused = {
            strategy: parallel.cannot_split(shape, strategy, values["ranks"])
            for strategy in parallel.STATE_STRATEGIES
        }
        notes = [Note("skipped", f"{why[0].upper()}{why[1:]}") for why in refused.values() if why]
        return [strategy for strategy, why in refused.items() if not why], notes

    # The work.

    def work(
        self, action: str, values: Values, progress: Progress, stop: Stop
    ) -> dict[str, RankMemory]:
        """Predict the chosen strategies one after another; each is shown when it is ready."""
        wanted = [values["strategy"]]
        if wanted == [_ALL]:
            wanted, _ = self._possible(values)
        asked = {strategy: _Asked.of(values, strategy) for strategy in wanted}
        done: dict[str, RankMemory] = {}
        for number, (strategy, one) in enumerate(asked.items()):
            if one not in self._found:
                part = part_of(progress, number, len(asked), strategy)
                self._found[one] = one.predict(part, stop)  # a stop keeps the earlier ones
            done[strategy] = self._found[one]
            self.publish(action, dict(done))
        return done

    # What is shown.

    @property
    def states(self) -> dict[str, RankStates]:
        """The model states of rank 0 by strategy, for the controls."""
        chosen = {name: self.values[name] for name in ("ranks", "optimizer")}
        return {
            strategy: parallel.rank_states(self.values["model"], strategy=strategy, **chosen)
            for strategy in self._possible(self.values)[0]
        }

    @property
    def predictions(self) -> dict[str, RankMemory]:
        """The predictions for the present controls, by strategy."""
        asked = {name: _Asked.of(self.values, name) for name in parallel.STATE_STRATEGIES}
        return {strategy: self._found[one] for strategy, one in asked.items() if one in self._found}

    def draw(self, values: Values) -> Drawing:
        """Return the bars with the GPU's capacity as figure and table, and the verdict as a
        sentence.
        """
        gpu, found = values["gpu"], self.predictions
        capacity = memory_sizes.memory_bytes(gpu)
        results: list[RankMemory | RankStates] = [
            found.get(strategy, state) for strategy, state in self.states.items()
        ]
        return Drawing(
            figures.rank_memory(results, capacity, gpu),
            _HEADERS,
            [_row(one, capacity) for one in results],
            [one.evidence for one in results],
            self._possible(values)[1],
            _sentence(results, capacity, gpu),
            is_stale=False,  # a strategy without a prediction shows only its states
        )

    def code_for(self, values: Values) -> str:
        """Return the prediction of the chosen strategy (of zero3 if all are chosen)."""
        strategy = "zero3" if values["strategy"] == _ALL else values["strategy"]
        a, gpu = _Asked.of(values, strategy), values["gpu"]
        extra = ", checkpoint=True" if a.checkpoint else ""
        first = (
            f'gl.parallel.predict_ranks(shape.model, x, x, strategy="{strategy}", ranks={a.ranks},'
        )
        rest = f'precision="{a.precision}", optimizer="{a.optimizer}"{extra})'
        if len(a.followed) == 1:
            predicted = [f"p = {first}", f"{' ' * 30}{rest}"]
        else:
            predicted = [
                f"stages = [{first} rank=rank,",
                f"{' ' * 36}{rest} for rank in {a.followed}]",
                "p = max(stages, key=gl.parallel.RankMemory.needed_bytes)",
            ]
        return cell(
            f'shape = gl.parallel.gpt_shape("{a.model}")',
            f'x = torch.zeros({a.rows}, {a.positions}, dtype=torch.int64, device="meta")',
            *predicted,
            f'gl.figures.rank_memory([p], gl.devices.memory_sizes.memory_bytes("{gpu}"), "{gpu}")',
        )


def _row(one: RankMemory | RankStates, capacity: int) -> list[str]:
    if isinstance(one, RankStates):
        states = (one.parameters_bytes, one.gradients_bytes, one.optimizer_bytes)
        over = one.total_bytes - capacity
        verdict = f"too big: states {format_bytes(over)} over" if over > 0 else "states alone fit"
        cells = [f"more than {format_bytes(one.total_bytes)}", *map(format_bytes, states)]
        return [one.strategy, verdict, *cells, *["not predicted"] * (len(_HEADERS) - 6)]
    needed, named = one.needed_bytes(), [one.peak_by_category[c] for c in _PARTS]
    verdict = (
        f"fits: {format_bytes(capacity - needed)} free"
        if needed <= capacity
        else f"too big: {format_bytes(needed - capacity)} over"
    )
    return [one.strategy, verdict, *map(format_bytes, (needed, *named, needed - sum(named)))]


def _fate(one: RankMemory | RankStates, capacity: int) -> str:
    if isinstance(one, RankMemory):
        return "fits" if one.needed_bytes() <= capacity else "does not fit"
    return "does not fit" if one.total_bytes > capacity else "not predicted yet"


def _sentence(results: Sequence[RankMemory | RankStates], capacity: int, gpu: str) -> str:
    """Return which strategies fit, which do not, and which are not predicted yet."""
    fates = {one.strategy: _fate(one, capacity) for one in results}
    words = [
        f"{fate}: {', '.join(name for name, its in fates.items() if its == fate)}"
        for fate in ("fits", "does not fit", "not predicted yet")
        if fate in fates.values()
    ]
    predicted = [one for one in results if isinstance(one, RankMemory)]
    peaks = [
        f"The peak of {one.strategy}"
        f"{f', whose stage {one.rank} needs most,' if one.strategy.startswith('pipeline') else ''} "
        f"is in its {one.peak_phase} phase, at {one.peak_operator}."
        for one in predicted[:2]
    ]
    parts = (
        "The parts show what is alive at that moment: activations that are no longer needed are "
        "freed. The rest is temporary tensors, the scratch memory of operators, and a margin."
    )
    return " ".join([f"On {gpu}: {'; '.join(words)}.", *peaks, *([parts] if predicted else [])])
