"""Memory per rank, predicted: a strategy's own code runs as one rank of up to 1,024, with fake
tensors and a fake process group.
"""

from __future__ import annotations

import contextlib
import copy
import re
from collections.abc import Callable, Iterator
from typing import Any

from gpulab import _given
from gpulab.errors import GpulabError, InputError, StoppedError, shown
from gpulab.evidence import Evidence
from gpulab.memory.results import LiveTensor
from gpulab.parallel.rank_results import RANK_CATEGORIES, RankMemory

MOST_RANKS = 1024
PRECISIONS = ("float32", "bfloat16")
_SOURCE = "the strategies' own code on PyTorch's fake process group and fake tensors"
# From benchmarks/rank_memory.py; docs/measurements.md has the table and the command.
KNOWN_ERROR = (
    "against two and four real ranks on gloo, every strategy: at most 4 bytes "
    "(docs/measurements.md, memory per rank, predicted)"
)
ASSUMPTIONS = (
    "this PyTorch's CPU kernels and gloo; a rank's tensors only: a GPU adds its context, NCCL's "
    "buffers and what its allocator rounds up "
    "(the margin of needed_bytes)"
)
_MIXED = (
    "; bfloat16 is autocast with float32 parameters, for zero2 and zero3 FSDP2's own mixed "
    "precision"
)
_PIPELINES = ("pipeline-gpipe", "pipeline-1f1b")


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
    >>> p = parallel.predict_ranks(lambda: networks.transformer(100, 64, 4, 2, context=64), x,
    ...     x, strategy="zero3", ranks=8)
    >>> p.ranks, p.peak_by_category["optimizer"] < 2 * 4 * p.parameter_count / 7
    (8, True)
    """
    from gpulab.memory import _kernels
    from gpulab.parallel import _strategies
    from gpulab.parallel._rank_step import OptimizerMaker, Plan, follow

    name = "predict_ranks"
    report = _given.callback(name, "progress", progress) or (lambda fraction, text: None)
    stop = _given.callback(name, "stop", stop)
    strategy = _given.word(name, "strategy", strategy, _strategies.strategies())
    ranks = _whole("ranks", ranks, 1, MOST_RANKS)
    rank = _whole("rank", rank, 0, ranks - 1)
    precision = _given.word(name, "precision", precision, PRECISIONS)
    parts = _whole(
        "microbatches", _parts(strategy, ranks) if microbatches is None else microbatches, 1, 2**20
    )
    checkpoint = _given.flag(name, "checkpoint", checkpoint)
    buckets = _whole("bucket_bytes", bucket_bytes, 1, 2**50)
    maker = OptimizerMaker(name, optimizer)
    if maker.kind is None:
        raise InputError(
            f"{name}: optimizer is None; expected a name or a factory, since the ranks divide the "
            "optimizer's state. Pass 'adam'."
        )
    _refuse_older(strategy)
    plan = Plan(strategy, precision, optimizer, checkpoint, parts, buckets, loss)
    label, factory, batch = _what(model, inputs, targets, parts)
    report(0.0, "making fake tensors")
    with _world(rank, ranks):
        from gpulab.parallel._rank_tracker import RankTracker

        fake = factory()
        count = sum(parameter.numel() for parameter in fake.parameters())
        items = len(batch[0]) * (1 if strategy in _WHOLE_BATCH else ranks)
        positions = _strategies.positions_of(batch[0])
        _checked(
            strategy,
            _strategies.Asked(
                model=fake, ranks=ranks, batch_size=items, microbatches=parts, positions=positions
            ),
        )
        tracker = RankTracker(
            "cpu", replace=_kernels.run, scratch=_kernels.scratch_bytes, stop=stop
        )
        found = _followed(
            lambda: follow(
                plan,
                fake,
                _faked(batch),
                tracker=tracker,
                built=_neighbours(batch, parts),
                report=report,
            )
        )
    report(1.0, "done")
    # a checkpoint keeps the generator's state outside operators
    scratch = found["scratch_bytes"] + found["checkpoints"] // 2 * 5120
    return RankMemory(
        label=label,
        strategy=strategy,
        ranks=ranks,
        rank=rank,
        peak_bytes=found["peak_bytes"],
        scratch_bytes=scratch,
        kept_bytes=found["kept_bytes"],
        first_step_peak_bytes=found["first_step_peak_bytes"],
        peak_by_category={c: found["peak_by_category"].get(c, 0) for c in RANK_CATEGORIES},
        peak_operator=found["peak_operator"],
        peak_phase=found["peak_phase"],
        peak_tensors=tuple(LiveTensor.from_dict(t) for t in found["peak_tensors"]),
        parameter_count=count,
        optimizer=maker.name,
        precision=precision,
        checkpoint=checkpoint,
        microbatches=parts,
        notes=(),
        evidence=Evidence.modelled(
            ASSUMPTIONS + (_MIXED if precision == "bfloat16" else ""), _SOURCE, KNOWN_ERROR
        ),
    )


# Strategies in which each rank works on the whole batch.
_WHOLE_BATCH = ("single", "tensor", "sequence", "split", *_PIPELINES)


def _refuse_older(strategy: str) -> None:
    import torch

    from gpulab.parallel._fake_ranks import asks_for_shapes

    if strategy in _PIPELINES and not asks_for_shapes():
        raise InputError(
            f"predict_ranks: a stage of {strategy} learns its shapes differently in PyTorch "
            f"{torch.__version__}; expected 2.13 or newer. "
            "Install it, or pass strategy='split', whose stages are the same."
        )


def _whole(name: str, value: Any, least: int, most: int) -> int:
    if not _given.is_whole(value) or not least <= value <= most:
        raise InputError(
            f"predict_ranks: {name} is {shown(value)}; expected a whole number from {least} to "
            f"{most}. "
            f"Pass for example {name}={min(max(least, 2), most)}."
        )
    return int(value)


def _parts(strategy: str, ranks: int) -> int:
    return ranks if strategy in _PIPELINES else 2 if strategy == "ddp-no-sync" else 1


def _checked(strategy: str, asked: Any) -> None:
    """Ask the strategy whether it can split this, and say its refusal in this function's name."""
    from gpulab.parallel._strategies import strategy_named

    try:
        strategy_named(strategy).check(asked)
    except InputError as error:
        sharing = 1 if strategy in _WHOLE_BATCH else asked.ranks
        told = re.sub(
            r"Pass batch_size=(\d+)",
            lambda found: f"Pass inputs of {int(found[1]) // sharing} items",
            str(error),
        )
        raise InputError(told.replace("train:", "predict_ranks:", 1)) from None


def _followed(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    from gpulab.memory._step import explain
    from gpulab.memory._tracker import Stopped

    try:
        return work()
    except Stopped:
        raise StoppedError(
            "predict_ranks: stopped before two steps were complete; expected it to finish. Call it "
            "again."
        ) from None
    except GpulabError:
        raise
    except Exception as error:
        raise InputError(
            explain("predict_ranks", "the step", error).replace(
                "memory.trace, which runs the step", "real ranks"
            )
        ) from error


@contextlib.contextmanager
def _world(rank: int, ranks: int) -> Iterator[None]:
    """A rank that is not there, with fake tensors; the caller's modes off and generators kept."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    from gpulab.memory._predict import _fake_errors_unlogged
    from gpulab.memory._sandbox import autocast_off, generators_kept
    from gpulab.parallel._fake_ranks import fake_rank

    with (
        fake_rank("predict_ranks", rank, ranks),
        generators_kept(),
        torch.inference_mode(False),
        torch.enable_grad(),
        autocast_off("cpu"),
        _fake_errors_unlogged(),
        FakeTensorMode(allow_non_fake_inputs=True),
    ):
        yield


def _what(
    model: Any, inputs: Any, targets: Any, parts: int
) -> tuple[str, Callable[[], Any], tuple[Any, Any]]:
    """Return the model's name, what makes it of fake tensors, and the batch."""
    import torch

    from gpulab.parallel._gpt_shapes import gpt_shape

    if isinstance(model, str):
        shape = gpt_shape(model)
        if inputs is None:
            with torch.device("meta"):
                inputs = targets = torch.zeros(parts, shape.context, dtype=torch.int64)
        return shape.name, shape.model, (inputs, targets)
    if not isinstance(inputs, torch.Tensor) or inputs.dim() < 1 or not len(inputs):
        raise InputError(
            f"predict_ranks: inputs is {shown(inputs)}; expected a tensor with the rank's part of "
            "the batch first, such as "
            "torch.zeros(8, 784). Only its shape and dtype matter."
        )
    if isinstance(model, torch.nn.Module):
        return type(model).__name__, lambda: _fake_copy(model), (inputs, targets)
    if not callable(model):
        raise InputError(
            f"predict_ranks: model is {shown(model)}; expected a torch.nn.Module, a function that "
            "makes one, or a name such as '7B'."
        )
    from gpulab.memory._predict import _made

    def make() -> Any:
        try:
            return _made(model, "cpu")
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


def _neighbours(
    batch: tuple[Any, Any], parts: int
) -> Callable[[Any], contextlib.AbstractContextManager[None]]:
    """Return what tells a pipeline's stage which tensors its neighbors would send: those of one
    microbatch.
    """
    import torch

    from gpulab.parallel._fake_ranks import arriving

    def told(trainer: Any) -> contextlib.AbstractContextManager[None]:
        if not hasattr(trainer, "schedule"):
            return contextlib.nullcontext()
        inputs = torch.empty(
            len(batch[0]) // parts, *batch[0].shape[1:], dtype=batch[0].dtype, device="meta"
        )
        x = inputs
        with torch.no_grad():
            for stage in trainer.before:
                x = stage(x)
        before = None if trainer.first else torch.empty(x.shape, dtype=x.dtype, requires_grad=True)
        y = trainer.stage(
            before if before is not None else torch.empty(inputs.shape, dtype=inputs.dtype)
        )
        shapes = [
            None
            if t is None
            else torch.empty(t.shape, dtype=t.dtype, device="meta", requires_grad=True)
            for t in (before, y)
        ]
        return arriving(*shapes)  # without memory, which would count

    return told
