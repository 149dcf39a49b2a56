"""Memory per rank: model states by arithmetic, and a whole step by prediction.

The models are named sizes of the course's transformer, from the lesson's own to 70 billion
parameters, in the shapes of published models. All have ``networks.transformer``'s layers: learned
positions, GELU, a feed-forward net four times as wide, and an output layer of its own (so a small
model has more parameters than one that ties it to the embedding). None has pretrained weights.

``rank_states``: parameters, gradients and optimizer state stay from step to step; they are counted
in float32 (mixed precision here keeps the states in float32 too). Source: Rajbhandari et al.,
"ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", 2020, section 3.1 and figure
1, with FSDP2's padding and PyTorch's own sharing-out of whole parameters in stage 1.

``predict_ranks``: what is alive only during a step, activations above all. A strategy's own code
runs as one rank of up to 1,024, with fake tensors and a fake process group, and its steps are
followed storage by storage. ``follow`` runs inside a rank, real or not there: in an engine of a
cluster with real tensors, or in ``fake_rank`` with fake ones. It gives back plain numbers, so that
they can travel. Times and losses are ``train``'s business.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import heapq
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from gpulab import _given
from gpulab.devices import memory_sizes
from gpulab.errors import GpulabError, InputError, StoppedError, shown
from gpulab.evidence import Evidence
from gpulab.memory import training_step
from gpulab.memory.results import LiveTensor, free_bytes_of, largest_that_fits
from gpulab.parallel._strategies import (
    Asked,
    Setting,
    positions_of,
    strategies,
    strategy_named,
)
from gpulab.parallel.results import RANK_CATEGORIES, RankMemory
from gpulab.results import Result
from gpulab.units import format_bytes, plural


@dataclass(frozen=True)
class GptShape(Result):
    """One size of the transformer.

    Attributes
    ----------
    name : str
    layers, width, heads, vocabulary, context : int
    source : str
        Whose shape it is.
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
        """Parameters: 12 width² + 13 width a layer, both embeddings, the last norm, and the output
        layer, which has no bias.
        """
        layer = 12 * self.width**2 + 13 * self.width
        ends = (2 * self.vocabulary + self.context + 2) * self.width
        return self.layers * layer + ends

    def model(self) -> Any:
        """Return the ``torch.nn.Module``; under fake tensors or ``torch.device("meta")`` it takes
        no memory.
        """
        from gpulab import networks

        return networks.transformer(
            self.vocabulary, self.width, self.heads, self.layers, context=self.context
        )


_SHAPES = (
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


def gpt_shapes() -> tuple[str, ...]:
    """Return the names of the sizes.

    Examples
    --------
    >>> gpt_shapes()
    ('course', '125M', '1.3B', '7B', '70B')
    """
    return tuple(shape.name for shape in _SHAPES)


def gpt_shape(name: str) -> GptShape:
    """Return a size by its name.

    Raises
    ------
    InputError
        If there is none of this name.

    Examples
    --------
    >>> round(gpt_shape("7B").parameter_count / 1e9, 2)
    6.86
    """
    for shape in _SHAPES:
        if shape.name == name:
            return shape
    raise InputError(
        f"gpt_shape: {shown(name)} is not a size of the transformer; expected one of: "
        f"{', '.join(gpt_shapes())}. Pass one of these."
    )


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
_SHARDED = ("zero2", "zero3")


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

    @property
    def total_bytes(self) -> int:
        """All three."""
        return self.parameters_bytes + self.gradients_bytes + self.optimizer_bytes

    def __repr__(self) -> str:
        where = f"{self.label}, {self.strategy} on {plural(self.ranks, 'rank')}"
        return f"<{where}: states of {format_bytes(self.total_bytes)} on rank {self.rank}>"

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        """Return the three parts and their sum."""
        rows = [
            ("parameters", format_bytes(self.parameters_bytes)),
            ("gradients", format_bytes(self.gradients_bytes)),
            ("optimizer", format_bytes(self.optimizer_bytes)),
            ("together", format_bytes(self.total_bytes)),
        ]
        return (f"{self.label}: {self.strategy}, rank {self.rank} of {self.ranks}", "bytes"), rows


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
        "ddp", "zero1", "zero2", "zero3", "tensor", "pipeline-gpipe" or "pipeline-1f1b".
    ranks : int
        1 to 1,024.
    rank : int
    optimizer : str
        "adam", "adamw", "sgd" or "sgd-momentum".

    Raises
    ------
    InputError
        If a value is not among these, the ranks do not divide the heads, or there are fewer layers
        than stages.

    Examples
    --------
    >>> s = rank_states("7B", strategy="zero3", ranks=64)
    >>> s.total_bytes - 16 * gpt_shape("7B").parameter_count // 64
    97812
    >>> 47 * 4096 * 2 * 16 // 64 + 389 * 4  # padding of two matrices, and step counters
    97812
    """
    shape = model if isinstance(model, GptShape) else gpt_shape(model)
    _given.word("rank_states", "strategy", strategy, STATE_STRATEGIES)
    _given.word("rank_states", "optimizer", optimizer, OPTIMIZER_BYTES)
    ranks = _whole("rank_states", "ranks", ranks, 1, MOST_RANKS)
    rank = _whole("rank_states", "rank", rank, 0, ranks - 1)
    refused = cannot_split(shape, strategy, ranks)
    if refused:
        raise InputError(f"rank_states: {refused}")
    held = [rows * rest for rows, rest in _held(shape, strategy, ranks, rank)]
    owned = _owned(held, ranks, rank) if strategy == "zero1" else held
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
    """Return why a strategy cannot split a shape over so many ranks, in one sentence; "" where it
    can.
    """
    if strategy == "tensor" and shape.heads % ranks:
        return (
            f"tensor cannot split {shape.heads} heads over {ranks} ranks; expected ranks that "
            f"divide the heads. Take {shape.heads} ranks."
        )
    if strategy.startswith("pipeline") and shape.layers < ranks:
        return (
            f"{strategy} cannot cut {shape.layers} layers into {ranks} stages; expected at least "
            f"one layer for each rank. Take {shape.layers} ranks."
        )
    return ""


def _layer(w: int) -> list[tuple[int, int, bool]]:
    """Return (rows, row length, split by tensor parallelism) of one layer's parameters; biases of
    row-split layers stay whole.
    """
    norms = [(w, 1, False)] * 4
    attention = [(3 * w, w, True), (3 * w, 1, True), (w, w, True), (w, 1, False)]
    return [*norms, *attention, (4 * w, w, True), (4 * w, 1, True), (w, 4 * w, True), (w, 1, False)]


def _held(shape: GptShape, strategy: str, ranks: int, rank: int) -> list[tuple[int, int]]:
    """Return (rows, row length) of each parameter that the rank holds."""
    w = shape.width
    first = [(shape.vocabulary, w, False), (shape.context, w, False)]
    last = [(w, 1, False), (w, 1, False), (shape.vocabulary, w, False)]
    layers = shape.layers
    if strategy.startswith("pipeline"):
        layers = shape.layers // ranks + (rank < shape.layers % ranks)
        first, last = (first if rank == 0 else []), (last if rank == ranks - 1 else [])
    tensors = [*first, *(_layer(w) * layers), *last]
    if strategy == "tensor":
        return [
            (rows, rest) if not split else (rows // ranks, rest) for rows, rest, split in tensors
        ]
    if strategy in _SHARDED:  # contiguous shares of equal length, the last ones padded or empty
        return [(-(-rows // ranks), rest) for rows, rest, _ in tensors]
    return [(rows, rest) for rows, rest, _ in tensors]


def _owned(sizes: Sequence[int], ranks: int, rank: int) -> list[int]:
    """Return the parameters whose state one rank keeps in stage 1: from the largest down, each goes
    where there is least so far.
    """
    loads = [(0, k) for k in range(ranks)]
    mine = []
    for size in sorted(sizes, reverse=True):
        load, where = heapq.heappop(loads)
        if where == rank:
            mine.append(size)
        heapq.heappush(loads, (load + size, where))
    return mine


PRECISIONS = ("float32", "bfloat16")
_SOURCE = "the strategies' own code on PyTorch's fake process group and fake tensors"
# From benchmarks/rank_memory.py; docs/measurements.md has the table and the command.
KNOWN_ERROR = (
    "against two and four real ranks on gloo, every strategy: at most 4 bytes "
    "(docs/measurements.md, memory per rank, predicted)"
)
ASSUMPTIONS = (
    "this PyTorch's CPU kernels and gloo; a rank's tensors only: a GPU adds its context, NCCL's "
    "buffers and what its allocator rounds up (the margin of needed_bytes)"
)
_MIXED = (
    "; bfloat16 is autocast with float32 parameters, for zero2 and zero3 FSDP2's own mixed "
    "precision"
)
_PIPELINES = ("pipeline-gpipe", "pipeline-1f1b")
# Strategies in which each rank works on the whole batch.
_WHOLE_BATCH = ("single", "tensor", "sequence", "split", *_PIPELINES)
# Of the largest storages alive at the peak.
_PEAK_TENSORS = 30


def predict_ranks(
    model: Any,
    inputs: Any = None,
    targets: Any = None,
    *,
    strategy: str,
    ranks: int,
    rank: int = 0,
    precision: str = "float32",
    optimizer: Any = "adam",
    checkpoint: bool = False,
    loss: Callable[..., Any] | None = None,
    microbatches: int | None = None,
    bucket_bytes: int = 25 * 2**20,
    progress: Callable[[float, str], None] | None = None,
    stop: Callable[[], bool] | None = None,
) -> RankMemory:
    """Return the memory that a training step takes on one rank, without running the step or
    allocating its memory.

    Parameters
    ----------
    model : torch.nn.Module, callable or str
        A module (it is copied without its memory, and left as it is), a function without arguments
        that makes one, or one of ``gpt_shapes()`` by name, such as "7B".
    inputs, targets : torch.Tensor
        The batch of this rank's step: its own part where the ranks divide the batch (data, ddp,
        zero1 to zero3), else the whole batch. Only shape and dtype matter. For a named model, one
        sequence (of each microbatch) by default.
    strategy : str
        One of ``parallel.strategies()``.
    ranks : int
        1 to 1,024.
    rank : int
        The rank to predict: pipelines' stages and the shares of zero1 differ.
    precision : str
        "float32", or "bfloat16": autocast with float32 parameters; for zero2 and zero3 FSDP2's
        mixed precision.
    optimizer : str, callable
        As ``memory.predict`` takes it.
    checkpoint : bool
        Recompute each direct child (of a ModuleList, each member) in the backward pass.
    loss : callable, optional
        From the model's output and ``targets`` to a scalar. None: the model returns the loss.
    microbatches : int, optional
        Of a pipeline (as many as ranks if not given) or of "ddp-no-sync" (2).
    bucket_bytes : int
        Of DDP's buckets.
    progress, stop : callable, optional

    Returns
    -------
    RankMemory

    Raises
    ------
    InputError
        If the strategy is unknown, ranks is out of range, the model or batch cannot be split as
        asked, a step fails, or this process already belongs to a process group.
    StoppedError
        If ``stop`` returned True.

    Notes
    -----
    The figures are those of the second of two steps, in which the optimizer's state exists from the
    start. They include the batch.

    Examples
    --------
    >>> import torch
    >>> from gpulab import networks, parallel
    >>> x = torch.zeros(4, 64, dtype=torch.int64)
    >>> def make():
    ...     return networks.transformer(100, 64, 4, 2, context=64)
    >>> p = parallel.predict_ranks(make, x, x, strategy="zero3", ranks=8)
    >>> p.ranks, p.peak_by_category["optimizer"] < 2 * 4 * p.parameter_count / 7
    (8, True)
    """
    from gpulab.memory import kernel_memory

    name = "predict_ranks"
    report = _given.callback(name, "progress", progress) or (lambda fraction, text: None)
    stop = _given.callback(name, "stop", stop)
    strategy = _given.word(name, "strategy", strategy, strategies())
    ranks = _whole(name, "ranks", ranks, 1, MOST_RANKS)
    rank = _whole(name, "rank", rank, 0, ranks - 1)
    precision = _given.word(name, "precision", precision, PRECISIONS)
    if microbatches is None:
        microbatches = ranks if strategy in _PIPELINES else 2 if strategy == "ddp-no-sync" else 1
    parts = _whole(name, "microbatches", microbatches, 1, 2**20)
    checkpoint = _given.flag(name, "checkpoint", checkpoint)
    buckets = _whole(name, "bucket_bytes", bucket_bytes, 1, 2**50)
    optimizer_name, make_optimizer = training_step.optimizer_factory(name, optimizer)
    if make_optimizer is None:
        raise InputError(
            f"{name}: optimizer is None; expected a name or a factory, since the ranks divide the "
            "optimizer's state. Pass 'adam'."
        )
    _refuse_older(strategy)
    plan = RankPlan(strategy, precision, optimizer, checkpoint, parts, buckets, loss)
    label, factory, batch = _model_and_batch(model, inputs, targets, parts)
    report(0.0, "making fake tensors")
    with _world(rank, ranks):
        from gpulab.parallel._rank_tracker import RankTracker

        fake = factory()
        count = sum(parameter.numel() for parameter in fake.parameters())
        sharing = 1 if strategy in _WHOLE_BATCH else ranks
        _refuse_unsplit(
            strategy,
            Asked(fake, ranks, len(batch[0]) * sharing, parts, positions_of(batch[0])),
            sharing,
        )
        tracker = RankTracker(
            "cpu", replace=kernel_memory.run, scratch=kernel_memory.scratch_bytes, stop=stop
        )
        with _step_errors():
            seen = follow(
                plan,
                fake,
                _faked(batch),
                tracker=tracker,
                built=lambda trainer: _neighbors(trainer, batch, parts),
                report=report,
            )
    report(1.0, "done")
    # a checkpoint keeps the generator's state outside operators
    scratch = seen["scratch_bytes"] + seen["checkpoints"] // 2 * 5120
    return RankMemory(
        label=label,
        strategy=strategy,
        ranks=ranks,
        rank=rank,
        peak_bytes=seen["peak_bytes"],
        scratch_bytes=scratch,
        kept_bytes=seen["kept_bytes"],
        first_step_peak_bytes=seen["first_step_peak_bytes"],
        peak_by_category={c: seen["peak_by_category"].get(c, 0) for c in RANK_CATEGORIES},
        peak_operator=seen["peak_operator"],
        peak_phase=seen["peak_phase"],
        peak_tensors=tuple(LiveTensor.from_dict(t) for t in seen["peak_tensors"]),
        parameter_count=count,
        optimizer=optimizer_name,
        precision=precision,
        checkpoint=checkpoint,
        microbatches=parts,
        notes=(),
        evidence=Evidence.modelled(
            ASSUMPTIONS + (_MIXED if precision == "bfloat16" else ""), _SOURCE, KNOWN_ERROR
        ),
    )


def largest_batch(
    model: Any,
    make_batch: Callable[[int], Any],
    *,
    strategy: str,
    ranks: int,
    memory: int | str | None = None,
    most: int = 65_536,
    **options: Any,
) -> int:
    """Return the largest batch whose step is predicted to fit on a rank, without running a step; 0
    if none does.

    Parameters
    ----------
    model, strategy, ranks, **options
        As for ``predict_ranks``.
    make_batch : callable
        Called with a number of samples; returns the inputs, or a tuple of inputs and targets, of
        one rank's step. For a pipeline it returns so many samples for each microbatch.
    memory : int, str or Device, optional
        Of each rank: bytes, a GPU of the data sheets such as "H100 SXM", or a device of this
        machine (None: the best one available), of which the memory that is free now counts.
    most : int
        The largest number to consider.

    Returns
    -------
    int
        MODELLED, with the margin of ``RankMemory.needed_bytes``.

    Raises
    ------
    InputError, DeviceError
        As for ``predict_ranks``, or if there is no such GPU.

    Examples
    --------
    >>> import torch
    >>> from gpulab import networks, parallel
    >>> parallel.largest_batch(
    ...     lambda: networks.transformer(100, 64, 4, 2, context=64),
    ...     lambda n: (torch.zeros(n, 64, dtype=torch.int64),) * 2,
    ...     strategy="zero3", ranks=8, memory=2**30, most=64,
    ... )
    64
    """
    make = _given.callback("largest_batch", "make_batch", make_batch)
    if make is None:
        raise InputError(
            "largest_batch: make_batch is None; expected a function. Pass for example lambda n: "
            "torch.zeros(n, 64, dtype=torch.int64)."
        )
    if isinstance(memory, str) and memory in memory_sizes.gpus():
        free, kind = memory_sizes.memory_bytes(memory), "cuda"
    else:
        free, kind = free_bytes_of(memory, "cuda")

    def needed_bytes(size: int) -> int:
        batch = make(size)
        inputs, targets = batch if isinstance(batch, tuple) and len(batch) == 2 else (batch, None)
        found = predict_ranks(model, inputs, targets, strategy=strategy, ranks=ranks, **options)
        return found.needed_bytes(kind)

    return largest_that_fits("largest_batch", needed_bytes, free, most)


def _whole(function: str, name: str, value: Any, least: int, most: int) -> int:
    if not _given.is_whole(value) or not least <= value <= most:
        raise InputError(
            f"{function}: {name} is {shown(value)}; expected a whole number from {least} to "
            f"{most}. Pass for example {name}={min(max(least, 2), most)}."
        )
    return int(value)


def _refuse_older(strategy: str) -> None:
    import torch

    from gpulab.parallel._rank_tracker import asks_for_shapes

    if strategy in _PIPELINES and not asks_for_shapes():
        raise InputError(
            f"predict_ranks: a stage of {strategy} learns its shapes differently in PyTorch "
            f"{torch.__version__}; expected 2.13 or newer. Install it, or pass strategy='split', "
            "whose stages are the same."
        )


def _refuse_unsplit(strategy: str, asked: Asked, sharing: int) -> None:
    """Ask the strategy whether it can split this, and say its refusal in this function's name."""
    try:
        strategy_named(strategy).check(asked)
    except InputError as error:
        text = re.sub(
            r"Pass batch_size=(\d+)",
            lambda match: f"Pass inputs of {int(match[1]) // sharing} items",
            str(error),
        )
        raise InputError(text.replace("train:", "predict_ranks:", 1)) from None


@contextlib.contextmanager
def _step_errors() -> Iterator[None]:
    """Say in this function's name why a step failed."""
    from gpulab.memory.tracker import Stopped

    try:
        yield
    except Stopped:
        raise StoppedError(
            "predict_ranks: stopped before two steps were complete; expected it to finish. Call it "
            "again."
        ) from None
    except GpulabError:
        raise
    except Exception as error:
        text = training_step.explain("predict_ranks", "the step", error)
        raise InputError(text.replace("memory.trace, which runs the step", "real ranks")) from error


@contextlib.contextmanager
def _world(rank: int, ranks: int) -> Iterator[None]:
    """A rank that is not there, with fake tensors; the caller's modes off and generators kept."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    from gpulab.memory.predictions import fake_errors_unlogged
    from gpulab.memory.training_step import autocast_off, generators_kept
    from gpulab.parallel._rank_tracker import fake_rank

    with (
        fake_rank("predict_ranks", rank, ranks),
        generators_kept(),
        torch.inference_mode(False),
        torch.enable_grad(),
        autocast_off("cpu"),
        fake_errors_unlogged(),
        FakeTensorMode(allow_non_fake_inputs=True),
    ):
        yield


def _model_and_batch(
    model: Any, inputs: Any, targets: Any, parts: int
) -> tuple[str, Callable[[], Any], tuple[Any, Any]]:
    """Return the model's name, what makes it of fake tensors, and the batch."""
    import torch

    if isinstance(model, str):
        shape = gpt_shape(model)
        if inputs is None:
            with torch.device("meta"):
                inputs = targets = torch.zeros(parts, shape.context, dtype=torch.int64)
        return shape.name, shape.model, (inputs, targets)
    if not isinstance(inputs, torch.Tensor) or inputs.dim() < 1 or not len(inputs):
        raise InputError(
            f"predict_ranks: inputs is {shown(inputs)}; expected a tensor with the rank's part of "
            "the batch first, such as torch.zeros(8, 784). Only its shape and dtype matter."
        )
    if isinstance(model, torch.nn.Module):
        return type(model).__name__, lambda: _fake_copy(model), (inputs, targets)
    if not callable(model):
        raise InputError(
            f"predict_ranks: model is {shown(model)}; expected a torch.nn.Module, a function that "
            "makes one, or a name such as '7B'."
        )
    from gpulab.memory.predictions import model_made_by

    def make() -> Any:
        try:
            return model_made_by(model, "cpu")
        except InputError as error:
            raise InputError(str(error).replace("predict:", "predict_ranks:", 1)) from error

    name = getattr(model, "__name__", "model")
    return "the model" if name == "<lambda>" else name, make, (inputs, targets)


def _fake_copy(model: Any) -> Any:
    """Return a copy of a module whose parameters and buffers are fake ones on the CPU."""
    import torch

    memo: dict[int, Any] = {}
    for tensor in [*model.parameters(), *model.buffers()]:
        fake: Any = torch.empty_strided(
            tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu"
        )
        if isinstance(tensor, torch.nn.Parameter):
            fake = torch.nn.Parameter(fake, tensor.requires_grad)
        memo[id(tensor)] = fake
    return copy.deepcopy(model, memo)


def _faked(batch: tuple[Any, Any]) -> tuple[Any, Any]:
    """Return the batch in fake tensors; targets that are the inputs stay the same tensor."""
    import torch

    inputs, targets = batch
    fake = torch.empty(inputs.shape, dtype=inputs.dtype)
    if targets is inputs:
        return fake, fake
    return fake, torch.empty(targets.shape, dtype=targets.dtype) if isinstance(
        targets, torch.Tensor
    ) else targets


def _neighbors(
    trainer: Any, batch: tuple[Any, Any], parts: int
) -> contextlib.AbstractContextManager[None]:
    """Tell a pipeline's stage which tensors its neighbors would send: those of one microbatch."""
    import torch

    from gpulab.parallel._rank_tracker import arriving

    if not hasattr(trainer, "schedule"):
        return contextlib.nullcontext()
    shape, dtype = (len(batch[0]) // parts, *batch[0].shape[1:]), batch[0].dtype
    x = torch.empty(shape, dtype=dtype, device="meta")
    with torch.no_grad():
        for stage in trainer.before:
            x = stage(x)
    before = None if trainer.first else torch.empty(x.shape, dtype=x.dtype, requires_grad=True)
    y = trainer.stage(torch.empty(shape, dtype=dtype) if before is None else before)
    return arriving(  # without memory, which would count
        *(
            t
            if t is None
            else torch.empty(t.shape, dtype=t.dtype, device="meta", requires_grad=True)
            for t in (before, y)
        )
    )


@dataclass(frozen=True)
class RankPlan:
    """What each rank does.

    Attributes
    ----------
    strategy : str
    precision : str
        "float32" or "bfloat16".
    optimizer : str, callable or None
        As ``memory.predict`` takes it.
    checkpoint : bool
    microbatches : int
    bucket_bytes : int
    loss : callable or None
        From the model's output and the targets to a scalar; None where the model returns the loss.
    """

    strategy: str
    precision: str = "float32"
    optimizer: Any = "adam"
    checkpoint: bool = False
    microbatches: int = 1
    bucket_bytes: int = 25 * 2**20
    loss: Callable[..., Any] | None = None


class _Share(Setting):
    """A setting whose batch is this rank's part already."""

    def share(self, batch: tuple[Any, Any]) -> tuple[Any, Any]:
        """Return the batch."""
        return batch


def follow(
    plan: RankPlan,
    model: Any,
    batch: tuple[Any, Any],
    *,
    steps: int = 2,
    tracker: Any = None,
    built: Callable[[Any], contextlib.AbstractContextManager[None]] = lambda trainer: (
        contextlib.nullcontext()
    ),
    report: Callable[[float, str], None] = lambda fraction, text: None,
) -> dict[str, Any]:
    """Take steps on this rank's part of a batch; return what its memory was, as plain numbers.

    Parameters
    ----------
    plan : RankPlan
    model : torch.nn.Module
        The whole model, the rank's own; the strategy changes it.
    batch : (inputs, targets)
        This rank's part where ranks share the batch out, else the whole batch.
    steps : int
        At least two; the peak is that of all but the first.
    tracker : RankTracker, optional
        One for real CPU tensors if not given.
    built : callable, optional
        From the trainer to a context in which it takes its steps.

    Returns
    -------
    dict
        peak_bytes, peak_by_category, peak_operator, peak_phase, peak_tensors, kept_bytes,
        first_step_peak_bytes, scratch_bytes.
    """
    import torch
    import torch.distributed as dist

    from gpulab.parallel._rank_tracker import RankTracker

    follower = tracker if tracker is not None else RankTracker("cpu")
    _, make_optimizer = training_step.optimizer_factory("predict_ranks", plan.optimizer)
    assert make_optimizer is not None
    setting = _Share(
        rank=dist.get_rank(),
        size=dist.get_world_size(),
        device=torch.device("cpu"),
        model=model,
        loss=_loss(plan),
        make_optimizer=functools.partial(make_optimizer),
        microbatches=plan.microbatches,
        bucket_bytes=plan.bucket_bytes,
    )
    ends = []
    with contextlib.ExitStack() as stack:
        calls = stack.enter_context(training_step.checkpointed(model)) if plan.checkpoint else []
        stack.enter_context(_mixed_shards(plan.precision))
        stack.enter_context(training_step.optimizer_seen(follower))
        stack.enter_context(follower)
        report(0.1, "building")
        trainer: Any = strategy_named(plan.strategy).build(setting)
        if plan.precision == "bfloat16" and hasattr(trainer, "stage"):
            _autocast_stage(trainer.stage)
        follower.watch_modules(trainer.modules)
        follower.watch_inputs(batch)
        stack.enter_context(built(trainer))
        for number in range(steps):
            report(0.2 + 0.8 * number / steps, f"following step {number + 1} of {steps}")
            follower.begin_step()
            trainer.step(batch)
            follower.mark_gradients()
            # FSDP lays an uneven share down anew in its first step
            follower.watch_modules(trainer.modules)
            ends.append(len(follower.operators))
        kept = follower.live_bytes
    follower.close()
    follower.classify()
    event, peak = follower.peak(ends[0])
    return {
        "peak_bytes": peak,
        "peak_by_category": follower.bytes_at(event),
        "peak_operator": follower.operators[event] if follower.operators else "",
        "peak_phase": follower.phases[event] if follower.phases else "",
        "peak_tensors": [t.to_dict() for t in follower.alive_at(event)[:_PEAK_TENSORS]],
        "first_step_peak_bytes": follower.peak(follower.steps[0], ends[0])[1],
        "scratch_bytes": max(0, follower.with_scratch - peak),
        "kept_bytes": kept,
        "checkpoints": len(calls),
    }


def _loss(plan: RankPlan) -> Callable[[Any, tuple[Any, Any]], Any]:
    import torch

    mixed = plan.precision == "bfloat16" and plan.strategy not in ("zero2", "zero3")

    def loss(model: Any, batch: tuple[Any, Any]) -> Any:
        inputs, targets = batch
        more = () if targets is None else (targets,)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=mixed):
            return training_step.loss_of(
                "predict_ranks",
                model(inputs, *more) if plan.loss is None else plan.loss(model(inputs), *more),
            )

    return loss


def _autocast_stage(stage: Any) -> None:
    """Let a pipeline's stage compute in bfloat16: its loss alone is called under autocast by
    itself.
    """
    import torch

    forward = stage.forward

    def mixed(*args: Any, **kwargs: Any) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return forward(*args, **kwargs)

    stage.__dict__["forward"] = mixed


@contextlib.contextmanager
def _mixed_shards(precision: str) -> Iterator[None]:
    """Have FSDP2 gather parameters in bfloat16 and sum gradients in float32, which is its mixed
    precision; autocast is not used with it.
    """
    import torch
    from torch.distributed import fsdp

    if precision != "bfloat16":
        yield
        return
    original = fsdp.fully_shard
    policy = fsdp.MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)

    def shard(*args: Any, **kwargs: Any) -> Any:
        return original(*args, mp_policy=policy, **kwargs)

    fsdp.fully_shard = shard
    try:
        yield
    finally:
        fsdp.fully_shard = original
