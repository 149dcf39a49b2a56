"""The memory of a whole step on one rank, predicted without running the step.

``predict_ranks`` includes the memory that is alive only during a step, above all activations. It
runs a strategy's own code as one rank of up to 1,024, with fake tensors and a fake process group,
and follows the steps storage by storage. ``follow`` runs inside a rank: in an engine of a cluster
with real tensors, or in ``fake_rank`` with fake ones. It returns plain numbers, which can be sent
between processes. Times and losses are left to ``train``.

``RankTracker`` handles three cases that ``memory``'s tracker does not meet in one process: a
``DTensor`` wraps the part that this rank really holds; FSDP frees and fills gathered parameters by
resizing their storage, outside any operator; and buckets and gathered parameters exist only to be
sent or received.

``fake_rank`` is PyTorch's fake process group, whose collectives return at once, for fake tensors.
The strategies run their own code in it. A few functions of PyTorch read values, which fake tensors
do not have, or would take a minute for a thousand ranks; only these are replaced here. The
allocations stay the same: docs/measurements.md has the check on real ranks.
"""

from __future__ import annotations

import contextlib
import copy
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.distributed import fsdp
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp._fully_shard import _fsdp_param
from torch.distributed.tensor import DTensor
from torch.nn.parallel import distributed as ddp
from torch.testing._internal.distributed.fake_pg import FakeStore

from gpulab import _validate
from gpulab.errors import GpulabError, InputError, StoppedError, shown
from gpulab.evidence import Evidence
from gpulab.memory import kernel_memory, training_step
from gpulab.memory.predictions import FAKE_ERRORS, model_made_by
from gpulab.memory.step_memory import (
    Stopped,
    StorageTracker,
    largest_that_fits,
    tensors_in,
)
from gpulab.memory.training_step import undisturbed
from gpulab.parallel import _strategies
from gpulab.parallel._strategies import STRATEGIES, Setting, refuse_unsplit
from gpulab.parallel.model_states import MOST_RANKS
from gpulab.parallel.rank_results import RANK_CATEGORIES, RankMemory

PRECISIONS = ("float32", "bfloat16")
_SOURCE = "the strategies' own code on PyTorch's fake process group and fake tensors"
# From benchmarks/rank_memory.py; docs/measurements.md has the table and the command.
KNOWN_ERROR = (
    "against two and four real ranks on gloo: equal to the byte in 211 of 220 predictions, at most "
    "1.2 % in one of tensor parallelism (docs/measurements.md, memory per rank, predicted)"
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


@_validate.arguments(
    strategy=partial(_validate.word, known=STRATEGIES),
    ranks=partial(_validate.whole, low=1, high=MOST_RANKS, advice="Pass ranks=8."),
    precision=partial(_validate.word, known=PRECISIONS),
    checkpoint=_validate.flag,
    microbatches=partial(_validate.whole, low=1, high=2**20),
    bucket_bytes=partial(_validate.whole, low=1, high=2**50),
    progress=_validate.hook,
    stop=_validate.callback,
)
def predict_ranks(
    model: Any,
    inputs: Any,
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
    progress: Callable[[float, str], None] | Any = _validate.LEFT_OUT,
    stop: Callable[[], bool] | None = None,
) -> RankMemory:
    """Return the memory that a training step takes on one rank, without running the step or
    allocating its memory.

    Parameters
    ----------
    model : torch.nn.Module or callable
        A module (it is copied without its memory, and left as it is), or a function without
        arguments that makes one, such as ``gpt_shape("7B").model``.
    inputs, targets : torch.Tensor
        The batch of this rank's step: its own part where the ranks divide the batch (data, ddp,
        zero1 to zero3), else the whole batch. Only shape and dtype matter.
    strategy : str
        One of ``parallel.strategies()``.
    ranks : int
        1 to 1,024.
    rank : int
        The rank to predict. Ranks differ in pipelines, by their stages, and in zero1, by their
        shares.
    precision : str
        "float32", or "bfloat16": autocast with float32 parameters; for zero2 and zero3 FSDP2's
        mixed precision.
    optimizer : str, callable
        As ``memory.predict`` takes it.
    checkpoint : bool
        Recompute each direct child (of a ModuleList, each member) in the backward pass.
    loss : callable, optional
        Computes a scalar from the model's output and ``targets``. None: the model returns the loss.
    microbatches : int, optional
        The number of microbatches of a pipeline; by default the number of ranks.
    bucket_bytes : int
        The size of DDP's buckets.
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
    rank = _validate.whole("predict_ranks", "rank", rank, 0, ranks - 1)
    if microbatches is None:
        microbatches = ranks if strategy in _PIPELINES else 1
    if training_step.optimizer_factory("predict_ranks", optimizer)[1] is None:
        raise InputError(
            "predict_ranks: optimizer is None; expected a name or a factory, since the prediction "
            "includes the optimizer's state. Pass 'adam'."
        )
    if not isinstance(inputs, torch.Tensor) or inputs.dim() < 1 or not len(inputs):
        raise InputError(
            f"predict_ranks: inputs is {shown(inputs)}; expected a tensor with the rank's part of "
            "the batch first, such as torch.zeros(8, 784). Only its shape and dtype matter."
        )
    progress(0.0, "making fake tensors")
    with (
        fake_rank(rank, ranks),
        undisturbed("cpu"),  # the caller's modes are off, and random generators put back
        torch.device("cpu"),  # the caller may have set another default
        mock.patch.object(FAKE_ERRORS, "disabled", True),
        FakeTensorMode(allow_non_fake_inputs=True),
        _step_errors(),
    ):
        fake = _fake_model(model)
        label, count = type(fake).__name__, sum(each.numel() for each in fake.parameters())
        batch_size = len(inputs) * (ranks if STRATEGIES[strategy].splits_batch else 1)
        refuse_unsplit("predict_ranks", strategy, fake, ranks, batch_size, microbatches)
        given, inputs = inputs, torch.empty(inputs.shape, dtype=inputs.dtype)
        if targets is given:  # one tensor for both stays one
            targets = inputs
        elif isinstance(targets, torch.Tensor):
            targets = torch.empty(targets.shape, dtype=targets.dtype)
        seen = follow(
            strategy,
            fake,
            (inputs, targets),
            precision=precision,
            optimizer=optimizer,
            checkpoint=checkpoint,
            microbatches=microbatches,
            bucket_bytes=bucket_bytes,
            loss=loss,
            tracker=RankTracker(
                "cpu", replace=kernel_memory.run, scratch=kernel_memory.scratch_bytes, stop=stop
            ),
            report=progress,
        )
    progress(1.0, "done")
    return RankMemory(
        label=label,
        strategy=strategy,
        ranks=ranks,
        rank=rank,
        parameter_count=count,
        evidence=Evidence.modelled(
            ASSUMPTIONS + (_MIXED if precision == "bfloat16" else ""), _SOURCE, KNOWN_ERROR
        ),
        **seen,
    )


@_validate.arguments(
    make_batch=_validate.callback,
    ranks=partial(_validate.whole, low=1, high=MOST_RANKS, advice="Pass ranks=8."),
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
        As for ``predict_ranks``. Without ``rank``, the batch must fit on the first and on the last
        stage of a model that is cut into stages, and on rank 0 otherwise.
    make_batch : callable
        Called with a number of samples; returns the inputs, or a tuple of inputs and targets, of
        one rank's step. For a pipeline, the number is that of each microbatch.
    memory : int, str or Device, optional
        Of each rank: bytes, or text such as "24 GB"; a GPU of the data sheets such as "H100 SXM";
        or a device of this machine (None: the best one available), of which only the memory that
        is free now counts.
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
    stages = strategy in ("split", *_PIPELINES) and "rank" not in options
    predictions = [
        partial(predict_ranks, model, strategy=strategy, ranks=ranks, **{"rank": rank, **options})
        for rank in ({0, ranks - 1} if stages else {0})
    ]
    return largest_that_fits(
        make_batch,
        lambda *batch, **targets: max(
            (predicted(*batch, **targets) for predicted in predictions),
            key=RankMemory.needed_bytes,
        ),
        memory,
        "cuda",
        most,
    )


@contextlib.contextmanager
def _step_errors() -> Iterator[None]:
    """Turn the error of a step into an error of ``predict_ranks`` that says why it failed."""
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


def _fake_model(model: Any) -> Any:
    """Return the model that a function makes, or a copy of a module, with fake parameters and
    buffers on the CPU.
    """
    if not isinstance(model, torch.nn.Module):
        return model_made_by(model, "cpu", "predict_ranks")

    def fake(tensor: Any) -> Any:
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu")

    memo: dict[int, Any] = {id(each): fake(each) for each in model.buffers()}
    for each in model.parameters():
        memo[id(each)] = torch.nn.Parameter(fake(each), each.requires_grad)
    return copy.deepcopy(model, memo)


def follow(
    strategy: str,
    model: Any,
    batch: tuple[Any, Any],
    *,
    precision: str = "float32",
    optimizer: Any = "adam",
    checkpoint: bool = False,
    microbatches: int = 1,
    bucket_bytes: int = 25 * 2**20,
    loss: Callable[..., Any] | None = None,
    steps: int = 2,
    tracker: RankTracker | None = None,
    report: Callable[[float, str], None] = _validate.nothing,
) -> dict[str, Any]:
    """Take steps on this rank's part of a batch; return the figures of its memory, by the names of
    ``RankMemory``.

    Parameters
    ----------
    model : torch.nn.Module
        The whole model, a copy for this rank alone; the strategy changes it.
    batch : (inputs, targets)
        This rank's part if the ranks divide the batch, else the whole batch.
    strategy, precision, optimizer, checkpoint, microbatches, bucket_bytes, loss
        As in ``predict_ranks``.
    steps : int
        At least two; the peak is that of all steps but the first.
    tracker : RankTracker, optional
        By default a tracker for real CPU tensors.
    """
    follower = tracker if tracker is not None else RankTracker("cpu")
    _, make_optimizer = training_step.optimizer_factory("predict_ranks", optimizer)
    assert make_optimizer is not None
    sharded, mixed = strategy in ("zero2", "zero3"), precision == "bfloat16"
    setting = Setting(
        rank=dist.get_rank(),
        size=dist.get_world_size(),
        device=torch.device("cpu"),
        model=model,
        loss=partial(_loss, loss, mixed and not sharded),
        make_optimizer=partial(make_optimizer),
        microbatches=microbatches,
        bucket_bytes=bucket_bytes,
    )

    def build() -> Any:
        report(0.1, "building")
        trainer: Any = STRATEGIES[strategy].build(setting)
        if mixed and hasattr(trainer, "stage"):
            # only the loss turns autocast on by itself; a stage's forward pass needs it too
            autocast = torch.autocast("cpu", dtype=torch.bfloat16)
            trainer.stage.__dict__["forward"] = autocast(trainer.stage.forward)
        return trainer

    def step(trainer: Any, batch: Any) -> None:
        number = len(follower.steps)
        report(0.2 + 0.8 * (number - 1) / steps, f"following step {number} of {steps}")
        trainer.step(batch)

    with contextlib.ExitStack() as stack:
        calls = stack.enter_context(training_step.checkpointed(model)) if checkpoint else []
        if mixed:
            stack.enter_context(mock.patch.multiple(_strategies, fully_shard=_MIXED_SHARD))
        _, second = follow_steps(follower, build, [batch] * steps, step)
    facts = follower.at_peak(second, RANK_CATEGORIES)
    inside = max(0, follower.with_scratch - facts["peak_bytes"])
    return {
        **facts,
        # a checkpoint keeps the generator's state outside operators
        "scratch_bytes": inside + len(calls) // 2 * 5120,
        "kept_bytes": follower.kept_bytes,
    }


def follow_steps(
    tracker: RankTracker,
    build: Callable[[], Any],
    batches: Iterable[tuple[Any, Any]],
    step: Callable[[Any, Any], None],
) -> tuple[Any, int]:
    """Build a trainer and take its first steps, followed storage by storage. Return the trainer,
    and the event with which the second step begins.
    """
    with (
        training_step.optimizer_seen(tracker),
        # a function of the class: a bound method would not get the storage
        mock.patch.object(torch.UntypedStorage, "resize_", lambda s, size: tracker.resize(s, size)),  # noqa: PLW0108
        tracker,
    ):
        trainer = build()
        tracker.watch_modules(trainer.modules)
        for batch in batches:
            tracker.watch_inputs(batch)
            tracker.begin_step()
            step(trainer, batch)
            tracker.mark_gradients()
            # in its first step FSDP allocates an uneven share anew
            tracker.watch_modules(trainer.modules)
        tracker.kept_bytes = tracker.live_bytes
    tracker.close()
    return trainer, tracker.steps[1]


# FSDP2's own mixed precision, used in place of autocast: parameters are gathered in bfloat16, and
# gradients summed in float32.
_MIXED_SHARD = partial(
    fsdp.fully_shard,
    mp_policy=fsdp.MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32),
)


def _loss(loss: Callable[..., Any] | None, mixed: bool, model: Any, batch: tuple[Any, Any]) -> Any:
    """Return the loss of a batch, computed under autocast where precision is mixed."""
    inputs, targets = batch
    more = () if targets is None else (targets,)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=mixed):
        return training_step.loss_of(
            "predict_ranks", model(inputs, *more) if loss is None else loss(model(inputs), *more)
        )


COMMUNICATION = "communication"
_WRAPPERS = (DTensor, AsyncCollectiveTensor)
_resize = torch.UntypedStorage.resize_
# The process group belongs to the whole process, so only one prediction runs at a time.
_ONE_AT_A_TIME = threading.RLock()


class RankTracker(StorageTracker):  # type: ignore[no-untyped-call]
    """A ``StorageTracker`` that sees through ``DTensor``, follows resized storages, and records
    which storages were sent or received.

    A storage that a collective reads or writes, or that FSDP's own operators write, counts as
    "communication", unless it is a parameter, a gradient (DDP's bucket, where the gradients are
    views of it) or an optimizer's state.
    """

    def __init__(self, device_type: str, **options: Any) -> None:
        super().__init__(device_type, **options)
        self.kept_bytes = 0  # after the last step
        self._sent: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Leave an operator on wrapper tensors to the wrappers, which call it again on plain
        tensors; run any other, and record the storages that take part in a collective.
        """
        if any(issubclass(kind, _WRAPPERS) for kind in types):
            return NotImplemented
        kwargs = kwargs or {}
        result = super().__torch_dispatch__(func, types, args, kwargs)
        if func.namespace == "c10d":
            self._note_sent((args, kwargs, result))
        elif func.namespace == "fsdp":
            self._note_sent((result, kwargs.get("out")))
        return result

    def resize(self, storage: Any, size: Any) -> Any:
        """Resize a storage, and record its new size if the storage is followed."""
        changed, known = _resize(storage, size), self._by_key.get(storage._cdata)
        if known is not None and self.records[known[0]].nbytes != storage.nbytes():
            self._resized(known[0], storage)
            if known[0] in self._sent:
                self._sent.add(self._by_key[storage._cdata][0])
            self._event("resize_")
        return changed

    def _storages(self, tensor: Any) -> Iterable[tuple[Any, Any]]:
        """Yield the storages that this rank holds of a tensor."""
        if isinstance(tensor, DTensor):
            tensor = tensor._local_tensor
        return super()._storages(
            tensor.elem if isinstance(tensor, AsyncCollectiveTensor) else tensor
        )

    def _arrived(self, tensor: Any) -> None:
        """Count a tensor that existed before, but not as a parameter: FSDP's gathered parameters
        are not the rank's own.
        """
        super().watch(tensor, None)

    def watch(self, tensor: Any, category: str | None, name: str = "") -> None:
        """Count a tensor under a category, even if it was counted before without one."""
        super().watch(tensor, category, name)
        for _, storage in self._storages(tensor):
            record = self.records[self._by_key[storage._cdata][0]]
            if record.category is None:
                record.category, record.name = category, name

    def _note_sent(self, values: Any) -> None:
        for tensor in tensors_in(values):
            for _, storage in self._storages(tensor):
                known = self._by_key.get(storage._cdata)
                if known is not None:
                    self._sent.add(known[0])

    def classify(self) -> None:
        """Give each storage its category: first what was sent, then the rest by when it lived."""
        for index in self._sent:
            if self.records[index].category is None:
                self.records[index].category = COMMUNICATION
        super().classify()


@contextlib.contextmanager
def fake_rank(rank: int, size: int) -> Iterator[None]:
    """Within the block this process is one rank of ``size``; afterwards there is no process group,
    as before.

    Raises
    ------
    InputError
        If this process belongs to a process group already.
    """
    with _ONE_AT_A_TIME:
        if dist.is_initialized():
            raise InputError(
                f"predict_ranks: this process is rank {dist.get_rank()} of a process group; "
                "expected a process without one, since the prediction makes a group of its own. "
                "Call it outside ranks.run, or after torch.distributed.destroy_process_group()."
            )
        hook = sys.excepthook  # a new group wraps it, and messages would begin with "[rank0]: "
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=size)
        try:
            with (
                mock.patch.multiple(_fsdp_param, _chunk_with_empty=_Chunks),
                mock.patch.multiple(
                    ddp,
                    _verify_param_shape_across_processes=_nothing,
                    _sync_module_states=_nothing,
                ),
                mock.patch.multiple(ddp.DistributedDataParallel, __init__=_construct_ddp),
                mock.patch.multiple(_strategies, init_device_mesh=_real_mesh),
                mock.patch.object(dist, _REDUCE_SCATTER, _summed_whole),
                _stages_alone(),
            ):
                yield
        finally:
            dist.destroy_process_group()
            sys.excepthook = hook


class _Chunks(Sequence[Any]):
    """The parts of a tensor, each cut only when it is asked for.

    Of up to 1,024 parts FSDP uses only the first and the rank's own, and a thousand views of each
    parameter would take a minute.
    """

    def __init__(self, tensor: Any, count: int, dim: int) -> None:
        self.tensor, self.parts, self.dim = tensor, count, dim

    def __len__(self) -> int:
        return self.parts

    def __getitem__(self, index: Any) -> Any:
        length = self.tensor.size(self.dim)
        # as torch.chunk: all parts but the last are as large as the first
        each = -(-length // self.parts)
        begin = index * each
        if begin >= length:
            return self.tensor.new_empty(0)
        return self.tensor.narrow(self.dim, begin, min(each, length - begin))


class _Proxy:
    """An object of PyTorch with some attributes added or replaced."""

    def __init__(self, real: Any, **own: Any) -> None:
        self.__dict__.update(own, _real=real)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


def _nothing(*args: Any, **kwargs: Any) -> None:
    """Do nothing, in place of a function that checks something with other ranks or sends to them:
    these ranks do not exist.
    """


_ddp_constructor = ddp.DistributedDataParallel.__init__


def _construct_ddp(self: Any, *args: Any, **kwargs: Any) -> None:
    """Construct DDP with two changes to its reducer, for the fake process group. A hook returns a
    bucket's sum as the tensor that the reducer expects. Buckets are not rebuilt after the first
    step, for which the reducer would ask rank 0 in which order gradients came.
    """
    _ddp_constructor(self, *args, **kwargs)

    def average(_: Any, bucket: Any) -> Any:
        dist.all_reduce(bucket.buffer())
        done: Any = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

    # DDP checks the annotations
    average.__annotations__ = {
        "bucket": dist.GradBucket,  # type: ignore[attr-defined]
        "return": torch.futures.Future[torch.Tensor],
    }
    self.register_comm_hook(None, average)
    self.reducer = _Proxy(self.reducer, _rebuild_buckets=lambda: False)


def _real_mesh(*args: Any, **kwargs: Any) -> Any:
    """Make a mesh whose table of ranks is a real tensor, since its values are read."""
    with unset_fake_temporarily():
        return init_device_mesh(*args, **kwargs)


# its name before torch 2.13
_REDUCE_SCATTER = (
    "reduce_scatter_single" if hasattr(dist, "reduce_scatter_single") else "reduce_scatter_tensor"
)
_reduce_scatter = getattr(dist, _REDUCE_SCATTER)


def _summed_whole(*args: Any, **kwargs: Any) -> Any:
    """Reduce and scatter with a copy of the whole input alive meanwhile, as in gloo: it sums a copy
    of the whole tensor on every rank, and cuts this rank's part from it.
    """
    whole = kwargs["input"] if "input" in kwargs else args[1]
    copied = whole.clone()
    done = _reduce_scatter(*args, **kwargs)
    del copied
    return done


@contextlib.contextmanager
def _stages_alone() -> Iterator[None]:
    """Stand in for the other stages of a pipeline. The tensors of a message stay alive until the
    schedule drops the message's work, as with gloo's and NCCL's works.
    """
    from torch.distributed.pipelining import PipelineStage, schedules

    original = schedules._batch_p2p

    def batch(operations: Any, *args: Any, **kwargs: Any) -> list[Any]:
        tensors = [operation.tensor for operation in operations]
        works = original(operations, *args, **kwargs)
        return [_Proxy(work, tensors=tensors) for work in works]

    def agree(*args: Any, **kwargs: Any) -> Any:
        """Return the vote that all stages know their shapes; its value is read by ``item``."""
        return SimpleNamespace(item=lambda: 1)

    votes = ("_warmup_forward_vote", "_warmup_backward_result")  # since torch 2.13
    cast = dict.fromkeys((name for name in votes if hasattr(PipelineStage, name)), agree)
    with contextlib.ExitStack() as stack:
        for owner, values in ((schedules, {"_batch_p2p": batch}), (PipelineStage, cast)):
            if values:
                stack.enter_context(mock.patch.multiple(owner, **values))
        yield
