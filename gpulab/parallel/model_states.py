"""The memory that one rank holds between steps, by arithmetic, for named sizes of the course's
transformer.

The sizes go from the lessons' own to 70 billion parameters, in the shapes of published models. All
have the layers of ``networks.transformer``: learned positions, GELU, a feed-forward net four times
as wide, and an output layer that is not tied to the embedding (so a small model has more parameters
than a tied one). None has pretrained weights.

Parameters, gradients and optimizer state stay from step to step; they are counted in float32 (mixed
precision here keeps the states in float32 too). Source: Rajbhandari et al., "ZeRO: Memory
Optimizations Toward Training Trillion Parameter Models", 2020, section 3.1 and figure 1, with
FSDP2's padding and, for stage 1, PyTorch's assignment of whole parameters to ranks.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from gpulab import _validate, networks
from gpulab.errors import InputError
from gpulab.evidence import Evidence
from gpulab.results import Result
from gpulab.units import format_bytes, plural


@dataclass(frozen=True)
class GptShape:
    """One size of the transformer.

    Attributes
    ----------
    name : str
    layers, width, heads, vocabulary, context : int
    source : str
        Where the shape comes from.
    """

    name: str
    layers: int
    width: int
    heads: int
    vocabulary: int
    context: int
    source: str

    @property
    def parameter_count(self) -> int:
        """The number of parameters: 12 width² + 13 width per layer, both embeddings, the last norm,
        and the output layer, which has no bias.
        """
        return sum(held for held, _ in _held(self, "ddp", ranks=1, rank=0))

    def model(self) -> Any:
        """Return the ``torch.nn.Module``; under fake tensors or ``torch.device("meta")`` it takes
        no memory.
        """
        return networks.transformer(
            self.vocabulary, self.width, self.heads, self.layers, context=self.context
        )


_SHAPES = {
    shape.name: shape
    for shape in (
        GptShape("course", 2, 128, 4, 1000, 128, "networks.transformer as the lessons use it"),
        GptShape("125M", 12, 768, 12, 50257, 2048, "GPT-3 Small (Brown et al., 2020, table 2.1)"),
        GptShape("1.3B", 24, 2048, 16, 50257, 2048, "GPT-3 XL (table 2.1), with 16 heads of 128"),
        GptShape("7B", 32, 4096, 32, 50257, 2048, "GPT-3 6.7B (table 2.1)"),
        GptShape(
            "70B",
            86,
            8192,
            64,
            50257,
            2048,
            "width and heads of Llama 2 70B (Touvron et al., 2023), 86 layers of this transformer",
        ),
    )
}


def gpt_shapes() -> tuple[str, ...]:
    """Return the names of the sizes.

    Examples
    --------
    >>> gpt_shapes()
    ('course', '125M', '1.3B', '7B', '70B')
    """
    return tuple(_SHAPES)


def gpt_shape(name: str) -> GptShape:
    """Return a size by its name.

    Raises
    ------
    InputError
        If no size has this name.

    Examples
    --------
    >>> round(gpt_shape("7B").parameter_count / 1e9, 2)
    6.86
    """
    return _SHAPES[_validate.word("gpt_shape", "name", name, _SHAPES)]


MOST_RANKS = 1024
STATE_STRATEGIES = ("ddp", "zero1", "zero2", "zero3", "tensor", "pipeline-gpipe", "pipeline-1f1b")
# Bytes of state for each parameter, and whether each tensor has a step counter of four bytes beside
# it.
OPTIMIZER_BYTES = {
    "adam": (8, True),
    "adamw": (8, True),
    "sgd": (0, False),
    "sgd-momentum": (4, False),
}
_FLOAT, _COUNTER = 4, 4


@dataclass(frozen=True)
class RankStates(Result):
    """The bytes that stay on one rank between steps.

    Attributes
    ----------
    label, strategy, optimizer : str
    ranks, rank : int
    parameters_bytes, gradients_bytes, optimizer_bytes : int
    evidence : Evidence
    """

    label: str
    strategy: str
    optimizer: str
    ranks: int
    rank: int
    parameters_bytes: int
    gradients_bytes: int
    optimizer_bytes: int
    evidence: Evidence

    columns: ClassVar = {
        "model": lambda s: f"{s.label}: {s.strategy}, rank {s.rank} of {s.ranks}",
        "parameters": lambda s: format_bytes(s.parameters_bytes),
        "gradients": lambda s: format_bytes(s.gradients_bytes),
        "optimizer": lambda s: format_bytes(s.optimizer_bytes),
        "together": lambda s: format_bytes(s.total_bytes),
    }

    @property
    def total_bytes(self) -> int:
        """Parameters, gradients and optimizer state together."""
        return self.parameters_bytes + self.gradients_bytes + self.optimizer_bytes

    def __repr__(self) -> str:
        where = f"{self.label}, {self.strategy} on {plural(self.ranks, 'rank')}"
        return f"<{where}: states of {format_bytes(self.total_bytes)} on rank {self.rank}>"


@_validate.arguments(
    strategy=partial(_validate.word, known=STATE_STRATEGIES),
    ranks=partial(_validate.whole, low=1, high=MOST_RANKS, advice="Pass ranks=8."),
    optimizer=partial(_validate.word, known=OPTIMIZER_BYTES),
)
def rank_states(
    model: str | GptShape, *, strategy: str, ranks: int, rank: int = 0, optimizer: str = "adam"
) -> RankStates:
    """Return the bytes of parameters, gradients and optimizer state on one rank, by arithmetic
    alone.

    Parameters
    ----------
    model : str or GptShape
        One of ``gpt_shapes()`` by name, or a shape of your own.
    strategy : str
        "ddp", "zero1", "zero2", "zero3", "tensor", "pipeline-gpipe" or "pipeline-1f1b". With
        "zero2", as FSDP2 has it, parameters are sharded between steps too (ZeRO's own stage 2 keeps
        them whole), so its states equal those of "zero3"; during a step it holds all parameters.
    ranks : int
        1 to 1,024.
    rank : int
    optimizer : str
        "adam", "adamw", "sgd" or "sgd-momentum".

    Raises
    ------
    InputError
        If a value is not one of those listed, the ranks do not divide the heads, or there are fewer
        layers than stages.

    Examples
    --------
    >>> s = rank_states("7B", strategy="zero3", ranks=64)
    >>> s.total_bytes - 16 * gpt_shape("7B").parameter_count // 64
    97812
    >>> 47 * 4096 * 2 * 16 // 64 + 389 * 4  # padding of two matrices, and step counters
    97812
    """
    shape = model if isinstance(model, GptShape) else gpt_shape(model)
    rank = _validate.whole("rank_states", "rank", rank, 0, ranks - 1)
    refused = cannot_split(shape, strategy, ranks)
    if refused:
        raise InputError(f"rank_states: {refused}")
    held, updated = zip(*_held(shape, strategy, ranks, rank), strict=True)
    owned = _owned(held, ranks, rank) if strategy == "zero1" else updated
    each, counted = OPTIMIZER_BYTES[optimizer]
    return RankStates(
        label=shape.name,
        strategy=strategy,
        optimizer=optimizer,
        ranks=ranks,
        rank=rank,
        parameters_bytes=_FLOAT * sum(held),
        gradients_bytes=_FLOAT * sum(held),
        optimizer_bytes=each * sum(owned) + (_COUNTER * len(owned) if counted else 0),
        evidence=Evidence.modelled(
            "float32 states, gradients kept until the next step begins; no activations, gathered "
            "parameters or buffers",
            "ZeRO (Rajbhandari et al., 2020), section 3.1",
            "equal to predict_ranks' bytes between steps, except for the batch (tests/parallel)",
        ),
    )


def cannot_split(shape: GptShape, strategy: str, ranks: int) -> str:
    """Return why a strategy cannot split a shape over this number of ranks; "" if it can."""
    if strategy == "tensor" and shape.heads % ranks:
        return (
            f"tensor cannot split {plural(shape.heads, 'head')} over {ranks} ranks; expected a "
            f"number of ranks that divides the heads. Take {plural(shape.heads, 'rank')}."
        )
    if strategy.startswith("pipeline") and shape.layers < ranks:
        return (
            f"{strategy} cannot cut {plural(shape.layers, 'layer')} into {ranks} stages; expected "
            f"at least one layer for each rank. Take {plural(shape.layers, 'rank')}."
        )
    return ""


def _layer(w: int) -> list[tuple[int, int, bool]]:
    """Return (rows, row length, whether tensor parallelism splits it) for each parameter of one
    layer; biases of row-split layers stay whole.
    """
    norms = [(w, 1, False)] * 4
    attention = [(3 * w, w, True), (3 * w, 1, True), (w, w, True), (w, 1, False)]
    return [*norms, *attention, (4 * w, w, True), (4 * w, 1, True), (w, 4 * w, True), (w, 1, False)]


def _held(shape: GptShape, strategy: str, ranks: int, rank: int) -> list[tuple[int, int]]:
    """Return for each parameter how many numbers the rank holds, and how many it updates."""
    w = shape.width
    first = [(shape.vocabulary, w, False), (shape.context, w, False)]
    last = [(w, 1, False), (w, 1, False), (shape.vocabulary, w, False)]
    layers = shape.layers
    if strategy.startswith("pipeline"):
        layers = shape.layers // ranks + (rank < shape.layers % ranks)
        first, last = (first if rank == 0 else []), (last if rank == ranks - 1 else [])
    tensors = [*first, *(_layer(w) * layers), *last]
    if strategy in ("zero2", "zero3"):
        # contiguous shares of equal length; the last ones are padded, and padding has no optimizer
        # state
        shares = [(-(-rows // ranks), rows, rest) for rows, rest, _ in tensors]
        return [
            (share * rest, min(max(rows - rank * share, 0), share) * rest)
            for share, rows, rest in shares
        ]
    parts = ranks if strategy == "tensor" else 1
    return [(rows // (parts if split else 1) * rest,) * 2 for rows, rest, split in tensors]


def _owned(sizes: Sequence[int], ranks: int, rank: int) -> list[int]:
    """Return the sizes of the parameters whose state one rank keeps in stage 1.

    The parameters are assigned from the largest down, each to the rank that has the least so far.
    """
    loads = [(0, k) for k in range(ranks)]
    mine = []
    for size in sorted(sizes, reverse=True):
        load, where = heapq.heappop(loads)
        if where == rank:
            mine.append(size)
        heapq.heappush(loads, (load + size, where))
    return mine
