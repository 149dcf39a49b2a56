"""Memory per rank for each strategy: model states by arithmetic, the whole step once it is
predicted, and what fits on a GPU.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpulab import figures, parallel
from gpulab.devices import memory_sizes
from gpulab.errors import StoppedError
from gpulab.evidence import Note
from gpulab.parallel import RankMemory, RankStates
from gpulab.units import format_bytes
from gpulab.widgets._controls import Choice, Control, Slider, Switch
from gpulab.widgets._instrument import Action, Drawing, Instrument
from gpulab.widgets._work import Progress, Stop

_ALL = "all"
_POSITIONS = (64, 128, 256, 512, 1024, 2048)
_KEPT = 300  # predictions remembered
_STATES = ("parameters", "gradients", "optimizer")
_PARTS = (*_STATES, "activations", "communication")
_HEADERS = ("strategy", "verdict", "needed", *_STATES, "activations", "messages", "the rest")


@dataclass(frozen=True)
class _Asked:
    """One prediction by what decides it."""

    model: str
    strategy: str
    ranks: int
    precision: str
    optimizer: str
    batch: int
    positions: int
    checkpoint: bool

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

        with torch.device("meta"):
            x = torch.zeros(self.rows, self.positions, dtype=torch.int64)
        shape, ranks, several = parallel.gpt_shape(self.model), self.followed, []
        for number, rank in enumerate(ranks):
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
                    progress=progress
                    if len(ranks) == 1
                    else _part_of(progress, number, len(ranks), f"stage {rank}"),
                )
            )
        return max(several, key=lambda one: one.needed_bytes()) if len(several) > 1 else several[0]


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

    def make_controls(self) -> Sequence[Control]:
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
        shown: dict[str, Any] = {"shows_only": True}
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
                help="Per rank and step; in a pipeline "
                "per microbatch, with as many microbatches as ranks.",
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
                **shown,
            ),
        ]

    def _asked(self, strategy: str, values: Mapping[str, Any]) -> _Asked:
        positions = min(values["positions"], parallel.gpt_shape(values["model"]).context)
        return _Asked(
            values["model"],
            strategy,
            values["ranks"],
            values["precision"],
            values["optimizer"],
            values["batch"],
            positions,
            values["checkpoint"],
        )

    def _possible(self, values: Mapping[str, Any]) -> tuple[list[str], list[Note]]:
        """Return the strategies that can split the model over so many ranks, and why the others
        cannot.
        """
        shape, able, notes = parallel.gpt_shape(values["model"]), [], []
        for strategy in parallel.STATE_STRATEGIES:
            refused = parallel.cannot_split(shape, strategy, values["ranks"])
            if refused:
                notes.append(Note("skipped", f"{refused[0].upper()}{refused[1:]}"))
            else:
                able.append(strategy)
        return able, notes

    # The work.

    def work(
        self, action: str, values: Mapping[str, Any], progress: Progress, stop: Stop
    ) -> Mapping[str, RankMemory]:
        """Predict the chosen strategies one after another; each is shown when it is ready."""
        able, _ = self._possible(values)
        wanted = able if values["strategy"] == _ALL else [values["strategy"]]
        done: dict[str, RankMemory] = {}
        for number, strategy in enumerate(wanted):
            asked = self._asked(strategy, values)
            if asked not in self._found:
                with_name = _part_of(progress, number, len(wanted), strategy)
                try:
                    found = asked.predict(with_name, stop)
                except StoppedError:
                    if done:  # what was predicted before it stays
                        return done
                    raise
                with self._lock:
                    self._found[asked] = found
                    while len(self._found) > _KEPT:
                        self._found.pop(next(iter(self._found)))
            done[strategy] = self._found[asked]
            self.publish(action, dict(done))
        return done

    # What is shown.

    @property
    def states(self) -> Mapping[str, RankStates]:
        """The model states of rank 0 by strategy, for the controls."""
        return self._states(self.values)

    @property
    def predictions(self) -> Mapping[str, RankMemory]:
        """The predictions for the present controls, by strategy."""
        return self._predictions(self.values)

    def _states(self, values: Mapping[str, Any]) -> dict[str, RankStates]:
        able, _ = self._possible(values)
        chosen = {"ranks": values["ranks"], "optimizer": values["optimizer"]}
        return {
            strategy: parallel.rank_states(values["model"], strategy=strategy, **chosen)
            for strategy in able
        }

    def _predictions(self, values: Mapping[str, Any]) -> dict[str, RankMemory]:
        asked = {strategy: self._asked(strategy, values) for strategy in parallel.STATE_STRATEGIES}
        return {strategy: self._found[one] for strategy, one in asked.items() if one in self._found}

    def _stale(self, action: str) -> bool:
        """What is on the screen always belongs to the controls: what is not predicted for them is
        shown as states only.
        """
        return False

    def draw(self, values: Mapping[str, Any]) -> Drawing:
        """Return the bars with the GPU's capacity as figure and table, and the verdict as a
        sentence.
        """
        states, found = self._states(values), self._predictions(values)
        _, notes = self._possible(values)
        capacity = memory_sizes.memory_bytes(values["gpu"])
        results: list[RankMemory | RankStates] = [
            found.get(strategy, state) for strategy, state in states.items()
        ]
        figure = figures.rank_memory(results, capacity, values["gpu"])
        rows = [_row(one, capacity) for one in results]
        evidence = list({e.sentence: e for e in (one.evidence for one in results)}.values())
        return Drawing(
            figure, _HEADERS, rows, evidence, notes, _sentence(results, capacity, values["gpu"])
        )

    def code_for(self, values: Mapping[str, Any]) -> str:
        """Return the prediction of the chosen strategy (of zero3 where all are chosen)."""
        strategy = "zero3" if values["strategy"] == _ALL else values["strategy"]
        a = self._asked(strategy, values)
        extra = ", checkpoint=True" if a.checkpoint else ""
        first = (
            f'gl.parallel.predict_ranks(shape.model, x, x, strategy="{strategy}", ranks={a.ranks},'
        )
        rest = f'precision="{a.precision}", optimizer="{a.optimizer}"{extra})'
        if len(a.followed) == 1:
            predicted = f"p = {first}\n{' ' * 30}{rest}\n"
        else:
            predicted = (
                f"stages = [{first} rank=rank,\n{' ' * 36}{rest} for rank in {a.followed}]\n"
            )
            predicted += "p = max(stages, key=gl.parallel.RankMemory.needed_bytes)\n"
        return (
            "import torch\nimport gpulab as gl\n\n"
            f'shape = gl.parallel.gpt_shape("{a.model}")\n'
            f'x = torch.zeros({a.rows}, {a.positions}, dtype=torch.int64, device="meta")\n'
            f"{predicted}"
            f'gl.figures.rank_memory([p], gl.devices.memory_sizes.memory_bytes("{values["gpu"]}"), '
            f'"{values["gpu"]}")'
        )


def _part_of(progress: Progress, number: int, count: int, name: str) -> Progress:
    return lambda fraction, text: progress((number + fraction) / count, f"{name}: {text}")


def _row(one: RankMemory | RankStates, capacity: int) -> list[str]:
    if isinstance(one, RankStates):
        states = [
            format_bytes(n)
            for n in (one.parameters_bytes, one.gradients_bytes, one.optimizer_bytes)
        ]
        over = one.total_bytes - capacity
        verdict = f"too big: states {format_bytes(over)} over" if over > 0 else "states fit"
        return [
            one.strategy,
            verdict,
            f"over {format_bytes(one.total_bytes)}",
            *states,
            *["not yet"] * (len(_HEADERS) - 6),
        ]
    needed, named = one.needed_bytes(), [one.peak_by_category[c] for c in _PARTS]
    parts = [format_bytes(n) for n in (*named, needed - sum(named))]
    verdict = (
        f"fits: {format_bytes(capacity - needed)} free"
        if needed <= capacity
        else f"too big: {format_bytes(needed - capacity)} over"
    )
    return [one.strategy, verdict, format_bytes(needed), *parts]


def _sentence(results: Sequence[RankMemory | RankStates], capacity: int, gpu: str) -> str:
    """Return what fits, what does not, and what is not known yet."""
    said: dict[str, list[str]] = {"fits": [], "does not fit": [], "not predicted yet": []}
    for one in results:
        if isinstance(one, RankStates):
            said["does not fit" if one.total_bytes > capacity else "not predicted yet"].append(
                one.strategy
            )
        else:
            said["fits" if one.needed_bytes() <= capacity else "does not fit"].append(one.strategy)
    words = [f"{verdict}: {', '.join(names)}" for verdict, names in said.items() if names]
    predicted = [one for one in results if isinstance(one, RankMemory)]
    peaks = "".join(
        f" The peak of {_whose(one)} is in its {one.peak_phase} phase, at {one.peak_operator}."
        for one in predicted[:2]
    )
    moment = (
        f"{peaks} The parts show what is alive at that moment: activations that are no longer "
        "needed are freed. The rest is "
        "temporary tensors, the scratch memory of operators, and a margin."
        if predicted
        else ""
    )
    return f"On {gpu}: {'; '.join(words)}.{moment}"


def _whose(one: RankMemory) -> str:
    """Return the strategy, of a pipeline with the stage that its row is of."""
    return (
        f"{one.strategy}, whose stage {one.rank} needs most,"
        if one.strategy.startswith("pipeline")
        else one.strategy
    )
