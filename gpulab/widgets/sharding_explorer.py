"""Memory per rank for each strategy: model states, the whole step, and what fits on a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from gpulab import figures, parallel
from gpulab.devices import memory_sizes
from gpulab.errors import StoppedError
from gpulab.evidence import Note
from gpulab.parallel import RankMemory, RankStates
from gpulab.units import format_bytes
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
    cell,
    part_of,
)

_ALL = "all"
_POSITIONS = (64, 128, 256, 512, 1024, 2048)
_KEPT = 300  # predictions remembered
_STATES = ("parameters", "gradients", "optimizer")
_PARTS = (*_STATES, "activations", "communication")
_HEADERS = ("strategy", "verdict", "needed", *_STATES, "activations", "messages", "the rest")


class _Asked(NamedTuple):
    """One prediction by what decides it."""

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
        """Return what the controls ask for with a strategy; no sequence is longer than the model's
        context.
        """
        v = {**values, "strategy": strategy}
        v["positions"] = min(v["positions"], parallel.gpt_shape(v["model"]).context)
        return cls(*(v[name] for name in cls._fields))

    @property
    def rows(self) -> int:
        """The sequences that a rank's step takes."""
        return self.batch * (self.ranks if self.strategy.startswith("pipeline") else 1)

    @property
    def followed(self) -> tuple[int, ...]:
        """The ranks of which one needs most: rank 0, which no other exceeds by more than a padded
        share, and a pipeline's last stage.

        The first stage holds the embeddings and, in 1F1B, the most activations; the last one the
        output layer and its scores.
        """
        return (
            (0, self.ranks - 1) if self.strategy.startswith("pipeline") and self.ranks > 1 else (0,)
        )

    def predict(self, progress: Progress, stop: Stop) -> RankMemory:
        """Follow the step of the rank that needs most."""
        import torch

        x = torch.zeros(self.rows, self.positions, dtype=torch.int64, device="meta")
        shape, ranks, several = parallel.gpt_shape(self.model), self.followed, []
        for number, rank in enumerate(ranks):
            part = part_of(progress, number, len(ranks), f"stage {rank}")
            several.append(
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
                    progress=part if len(ranks) > 1 else progress,
                )
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
                options=_POSITIONS,
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
        """Return the strategies that can split the model over so many ranks, and why the others
        cannot.
        """
        able, notes = [], []
        for strategy in parallel.STATE_STRATEGIES:
            shape = parallel.gpt_shape(values["model"])
            refused = parallel.cannot_split(shape, strategy, values["ranks"])
            if refused:
                notes.append(Note("skipped", f"{refused[0].upper()}{refused[1:]}"))
            else:
                able.append(strategy)
        return able, notes

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
                try:
                    found = one.predict(part_of(progress, number, len(asked), strategy), stop)
                except StoppedError:
                    if done:  # what was predicted before it stays
                        return done
                    raise
                with self._lock:
                    self._found[one] = found
                    while len(self._found) > _KEPT:
                        self._found.pop(next(iter(self._found)))
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

    def _stale(self, action: str) -> bool:
        """What is on the screen always belongs to the controls: what is not predicted for them is
        shown as states only.
        """
        return False

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
            list({one.evidence.sentence: one.evidence for one in results}.values()),
            self._possible(values)[1],
            _sentence(results, capacity, gpu),
        )

    def code_for(self, values: Values) -> str:
        """Return the prediction of the chosen strategy (of zero3 where all are chosen)."""
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
            imports="import torch\nimport gpulab as gl",
        )


def _row(one: RankMemory | RankStates, capacity: int) -> list[str]:
    if isinstance(one, RankStates):
        states = (one.parameters_bytes, one.gradients_bytes, one.optimizer_bytes)
        over = one.total_bytes - capacity
        verdict = f"too big: states {format_bytes(over)} over" if over > 0 else "states fit"
        cells = [f"over {format_bytes(one.total_bytes)}", *map(format_bytes, states)]
        return [one.strategy, verdict, *cells, *["not yet"] * (len(_HEADERS) - 6)]
    needed, named = one.needed_bytes(), [one.peak_by_category[c] for c in _PARTS]
    verdict = (
        f"fits: {format_bytes(capacity - needed)} free"
        if needed <= capacity
        else f"too big: {format_bytes(needed - capacity)} over"
    )
    return [one.strategy, verdict, *map(format_bytes, (needed, *named, needed - sum(named)))]


def _sentence(results: Sequence[RankMemory | RankStates], capacity: int, gpu: str) -> str:
    """Return what fits, what does not, and what is not known yet."""
    verdicts: dict[str, list[str]] = {"fits": [], "does not fit": [], "not predicted yet": []}
    predicted = []
    for one in results:
        if isinstance(one, RankMemory):
            predicted.append(one)
            verdict = "fits" if one.needed_bytes() <= capacity else "does not fit"
        else:
            verdict = "does not fit" if one.total_bytes > capacity else "not predicted yet"
        verdicts[verdict].append(one.strategy)
    words = [f"{verdict}: {', '.join(names)}" for verdict, names in verdicts.items() if names]
    sentences = [f"On {gpu}: {'; '.join(words)}."]
    for one in predicted[:2]:
        whose = one.strategy
        if whose.startswith("pipeline"):
            whose += f", whose stage {one.rank} needs most,"
        sentences.append(
            f"The peak of {whose} is in its {one.peak_phase} phase, at {one.peak_operator}."
        )
    if predicted:
        sentences.append(
            "The parts show what is alive at that moment: activations that are no longer needed "
            "are freed. The rest is temporary tensors, the scratch memory of operators, and a "
            "margin."
        )
    return " ".join(sentences)
