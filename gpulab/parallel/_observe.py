"""Record each collective of this process: its name, bytes, group, beginning and end.

``torch.distributed`` sends all its collectives, also those of DDP's reducer, FSDP2 and DTensor,
through operators of the dispatcher (``c10d`` and ``_c10d_functional``). A mode that looks at the
operators sees them all, in the order entered.

What it does not see: other threads of the process (a mode belongs to its thread; backward threads
inherit it), symmetric memory, a store's traffic, and the making of a group. A collective of Python
objects shows as the tensors it sends. Each operator of torch, also those that are no collective,
takes longer while observed (docs/measurements.md).
"""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from gpulab import models
from gpulab.errors import message_of
from gpulab.evidence import Evidence
from gpulab.results import Result
from gpulab.units import format_bytes, format_seconds

# Operator to the name that the course uses. Source: the operators registered by torch 2.13 under
# c10d and _c10d_functional.
NAMES = {
    "c10d.allreduce_": "all_reduce",
    "c10d.allreduce_coalesced_": "all_reduce",
    "c10d.broadcast_": "broadcast",
    "c10d.reduce_": "reduce",
    "c10d.allgather_": "all_gather",
    "c10d._allgather_base_": "all_gather",
    "c10d.allgather_coalesced_": "all_gather",
    "c10d.allgather_into_tensor_coalesced_": "all_gather",
    "c10d.reduce_scatter_": "reduce_scatter",
    "c10d._reduce_scatter_base_": "reduce_scatter",
    "c10d.reduce_scatter_tensor_coalesced_": "reduce_scatter",
    "c10d.gather_": "gather",
    "c10d.scatter_": "scatter",
    "c10d.alltoall_": "all_to_all",
    "c10d.alltoall_base_": "all_to_all",
    "c10d.send": "send",
    "c10d.recv_": "recv",
    "c10d.recv_any_source_": "recv",
    "c10d.barrier": "barrier",
    "c10d.monitored_barrier_": "barrier",
    "_c10d_functional.all_reduce": "all_reduce",
    "_c10d_functional.all_reduce_": "all_reduce",
    "_c10d_functional.all_reduce_coalesced": "all_reduce",
    "_c10d_functional.all_reduce_coalesced_": "all_reduce",
    "_c10d_functional.broadcast": "broadcast",
    "_c10d_functional.broadcast_": "broadcast",
    "_c10d_functional.all_gather_into_tensor": "all_gather",
    "_c10d_functional.all_gather_into_tensor_out": "all_gather",
    "_c10d_functional.all_gather_into_tensor_coalesced": "all_gather",
    "_c10d_functional.reduce_scatter_tensor": "reduce_scatter",
    "_c10d_functional.reduce_scatter_tensor_out": "reduce_scatter",
    "_c10d_functional.reduce_scatter_tensor_coalesced": "reduce_scatter",
    "_c10d_functional.all_to_all_single": "all_to_all",
    "_c10d_functional.isend": "send",
    "_c10d_functional.irecv": "recv",
    "_c10d_functional.batch_p2p_ops": "send and recv",
    "_dtensor.shard_dim_alltoall": "all_to_all",
}


@dataclass(frozen=True)
class CollectiveCall(Result):
    """One collective, as one rank saw it.

    Attributes
    ----------
    number : int
        From 0, in the order entered by this rank while it was observed.
    name : str
        "all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "gather", "scatter",
        "all_to_all", "send", "recv", "barrier" or "send and recv".
    operator : str
        The dispatcher's operator, for example "c10d.allreduce_".
    dtype : str
        Of the first tensor; "" for a barrier.
    input_bytes : int
        What this rank contributes: the payload, not what the algorithm sends.
    output_bytes : int
        What this rank receives; 0 where it contributes or receives nothing (a broadcast's receiver
        has 0 ``input_bytes``).
    group : tuple of int
        The global ranks that take part.
    root : int or None
        The global rank of a rooted collective's root, or the peer of a send or recv (None where any
        sender is accepted).
    begin_seconds, end_seconds : float, float or None
        ``time.perf_counter`` of this machine; ranks on one Linux machine share it. None while in
        flight.
    end_from : str
        How the end is known: "completion" (the work's own), "wait" (when a wait for it returned, so
        the true end may be earlier), "return" (the call itself waited); "" while in flight.
    waited_seconds : float
        How long Python waited for it. DDP waits inside C++, which is not seen.
    error : str or None
        What the collective ended with, where it failed.
    """

    number: int
    name: str
    operator: str
    dtype: str
    input_bytes: int
    output_bytes: int
    group: tuple[int, ...]
    root: int | None
    begin_seconds: float
    end_seconds: float | None
    end_from: str
    waited_seconds: float
    error: str | None = None

    @property
    def seconds(self) -> float | None:
        """From entry to end; None while in flight."""
        return None if self.end_seconds is None else self.end_seconds - self.begin_seconds

    @property
    def payload_bytes(self) -> int:
        """The size that sweeps use: the larger of what the rank contributes and receives (the whole
        tensor of an all-gather).
        """
        return max(self.input_bytes, self.output_bytes)

    @property
    def sentence(self) -> str:
        """The call in words, for messages: "all_reduce of 4.0 kB in float32 among ranks 0, 1"."""
        size = (
            f" of {format_bytes(self.payload_bytes)} in {self.dtype}" if self.payload_bytes else ""
        )
        peer = {
            "send": f" to rank {self.root}",
            "recv": f" from rank {'any' if self.root is None else self.root}",
        }.get(self.name, "")
        return (
            f"{self.name}{size}{peer}"
            if peer
            else f"{self.name}{size} among ranks {', '.join(map(str, self.group))}"
        )

    def evidence(self) -> Evidence:
        """Return where the times come from: MEASURED once, by the rank's own clock."""
        return Evidence.measured("the rank that entered it", 1)

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        """Return the call in one row."""
        seconds = "in flight" if self.seconds is None else format_seconds(self.seconds)
        return ("call", "given", "got", "time"), [
            (
                self.sentence,
                format_bytes(self.input_bytes),
                format_bytes(self.output_bytes),
                seconds,
            )
        ]


def usual_algorithm(operation: str) -> str:
    """Return the algorithm that a collective is counted by where its library does not tell: a ring
    where there is one, as NCCL runs it.
    """
    algorithms = models.collective_algorithms(operation)
    return "ring" if "ring" in algorithms else algorithms[0]


_WAIT = "_c10d_functional.wait_tensor"
# one argument is what goes in and what comes out
_IN_PLACE = frozenset({"all_reduce", "broadcast", "reduce"})
_ROOT_ARGUMENTS = ("root_rank", "src", "dst")


@dataclass(eq=False)
class _Live:
    """A call that may not have ended; what it needs to end lives only until then."""

    observer: Observer
    fixed: dict[str, Any]
    begin: float
    end: float | None = None
    end_from: str = ""
    # when Python stood in waits for it
    waits: list[tuple[float, float]] = field(default_factory=list)
    error: str | None = None
    work: Any = None  # kept, so that the Work that Python waits for is this very object
    events: tuple[Any, Any] | None = None  # CUDA: begin and end on the stream

    def finish(self, end: float, how: str, error: str | None = None) -> None:
        """Note the end; the first to know it wins."""
        with _lock:
            if self.end is not None:
                return
            self.end, self.end_from, self.error = end, how, error
            if self.work is not None:
                others = [live for live in _pending.pop(id(self.work), ()) if live is not self]
                if others:
                    _pending[id(self.work)] = others
                self.work = None
        self.observer._open.pop(self.fixed["number"], None)

    def call(self) -> CollectiveCall:
        begin, end = self.begin, self.end
        if self.events is not None and end is not None:
            begin, end = self.observer._on_device(self.events)
        return CollectiveCall(
            **self.fixed,
            begin_seconds=begin,
            end_seconds=end,
            end_from=self.end_from,
            waited_seconds=sum(end - begin for begin, end in self.waits),
            error=self.error,
        )


_lock = threading.RLock()
# id of a Work to the calls that end with it (one an observer)
_pending: dict[int, list[_Live]] = {}
_real_wait: list[Any] = []  # Work.wait as torch made it, while it is replaced


@dataclass(eq=False)
class Observer:
    """What ``observe`` gives: the calls seen, readable from any thread, also while the rank hangs
    in one of them.
    """

    _lives: list[_Live] = field(default_factory=list, repr=False)
    _open: dict[int, _Live] = field(default_factory=dict, repr=False)
    # data pointer of a functional result to its call
    _waits: dict[int, _Live] = field(default_factory=dict, repr=False)
    _mode: Any = field(default=None, repr=False)
    _anchor: Any = field(default=None, repr=False)

    @property
    def calls(self) -> tuple[CollectiveCall, ...]:
        """All calls entered so far, in order."""
        return tuple(live.call() for live in list(self._lives))

    @property
    def waits(self) -> tuple[tuple[int, float, float], ...]:
        """When this rank's Python waited: (number of the call, begin, end), in the order of the
        calls.
        """
        return tuple(
            (live.fixed["number"], begin, end)
            for live in list(self._lives)
            for begin, end in live.waits
        )

    @property
    def in_flight(self) -> tuple[CollectiveCall, ...]:
        """The calls entered and not known to have ended, in order; a rank that hangs is waiting in
        the first.
        """
        return tuple(live.call() for _, live in sorted(self._open.copy().items()))

    @property
    def entered(self) -> int:
        """How many calls were entered so far."""
        return len(self._lives)

    def __enter__(self) -> Observer:
        self._mode = _mode_class()(self)
        _replace_wait()
        self._mode.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._mode.__exit__(kind, error, trace)
        _restore_wait()

    def _begun(self, fixed: dict[str, Any]) -> _Live:
        live = _Live(self, {"number": len(self._lives), **fixed}, time.perf_counter())
        self._lives.append(live)
        self._open[live.fixed["number"]] = live
        return live

    def _on_device(self, events: tuple[Any, Any]) -> tuple[float, float]:
        """Return begin and end of a call on a CUDA stream, on the host's clock. Written for NCCL;
        no test of ours has run it.
        """
        events[1].synchronize()
        event, seconds = self._anchor
        begin, end = (seconds + event.elapsed_time(e) / 1e3 for e in events)
        return begin, end

    def _cuda_event(self) -> Any:
        import torch

        if self._anchor is None:
            event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            event.record()
            event.synchronize()
            self._anchor = (event, time.perf_counter())
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event


def observe() -> Observer:
    """Return a context manager that sees every collective of this rank's thread.

    Returns
    -------
    Observer
        ``calls`` in the order entered, and ``in_flight``, which can be read from another thread.

    Examples
    --------
    >>> import torch, torch.distributed as dist
    >>> dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    >>> with observe() as seen:
    ...     dist.all_reduce(torch.ones(1000))
    >>> [(call.name, call.payload_bytes, call.group) for call in seen.calls]
    [('all_reduce', 4000, (0,))]
    >>> dist.destroy_process_group()
    """
    return Observer()


@contextlib.contextmanager
def unobserved() -> Iterator[None]:
    """Run this thread's operators without observers, so that they do not slow a timed loop; calls
    inside are not seen.
    """
    from torch.utils._python_dispatch import _disable_current_modes

    with _disable_current_modes():
        yield


@functools.cache
def _mode_class() -> Any:
    import torch
    from torch.distributed._functional_collectives import AsyncCollectiveTensor
    from torch.distributed.tensor import DTensor
    from torch.utils._python_dispatch import TorchDispatchMode

    known = frozenset(name.split(".")[0] for name in NAMES)
    # made of plain tensors and collectives
    desugared = {AsyncCollectiveTensor, DTensor}
    plain: set[Any] = set()

    class _Mode(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __init__(self, observer: Observer) -> None:
            super().__init__()  # type: ignore[no-untyped-call]
            self.observer = observer

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if types and not desugared.isdisjoint(types):
                # it turns into plain tensors, collectives and waits, which come by again
                return NotImplemented
            if func in plain:  # asked first, since nearly all operators are
                return func(*args, **kwargs) if kwargs else func(*args)
            if isinstance(func, torch._ops.OpOverload) and func.namespace in known:
                return _collective(self.observer, func, args, kwargs or {})
            plain.add(func)
            return func(*args, **(kwargs or {}))

    return _Mode


def _collective(
    observer: Observer, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Run one operator of the known namespaces and note what it is."""
    operator = f"{func.namespace}.{func._schema.name.split('::')[1]}"
    if operator == _WAIT:
        # the end of the functional collective whose result it waits for, as far as can be known
        waited = observer._waits.pop(args[0].data_ptr(), None)
        with _waiting([] if waited is None else [waited]):
            return func(*args, **kwargs)
    name = NAMES.get(operator)
    if name is None:
        return func(*args, **kwargs)
    arguments = {
        argument.name: value for argument, value in zip(func._schema.arguments, args, strict=False)
    } | kwargs
    live = observer._begun(_described(name, operator, arguments))
    cuda = any(tensor.is_cuda for tensor in _tensors(arguments.values()))
    begin_event = observer._cuda_event() if cuda else None
    try:
        out = func(*args, **kwargs)
    except BaseException as error:
        live.finish(time.perf_counter(), "return", message_of(error))
        raise
    work = _work_of(out)
    if work is not None:
        _follow(live, work, begin_event)
    elif operator.startswith("_c10d_functional"):
        results = [tensor.data_ptr() for tensor in _tensors([out]) if tensor.numel()]
        for pointer in results:
            observer._waits[pointer] = live
        if not results:
            live.finish(time.perf_counter(), "return")
        live.fixed["output_bytes"] = live.fixed["output_bytes"] or _nbytes(out)
    else:  # monitored_barrier and shard_dim_alltoall wait themselves
        live.finish(time.perf_counter(), "return")
    return out


@contextlib.contextmanager
def _waiting(lives: list[_Live]) -> Iterator[None]:
    """Note that Python waits for calls in the block, and that they have ended with it."""
    begin, error = time.perf_counter(), None
    try:
        yield
    except BaseException as failure:
        error = message_of(failure)
        raise
    finally:
        end = time.perf_counter()
        for live in lives:
            live.waits.append((begin, end))
            live.finish(end, "wait", error)


def _follow(live: _Live, work: Any, begin_event: Any) -> None:
    """Note the end of an asynchronous work: from its future where it has one, else from Python's
    wait for it.
    """
    with _lock:
        live.work = work
        _pending.setdefault(id(work), []).append(live)
    try:
        future = work.get_future()
    except RuntimeError:  # gloo's send, recv and reduce_scatter have none
        return

    def done(future: Any) -> None:
        end = time.perf_counter()
        try:
            if begin_event is not None:
                live.events = (begin_event, live.observer._cuda_event())
            future.value()
        except Exception as error:  # the collective's own failure: whoever waits for it gets it
            live.finish(end, "completion", message_of(error))
        else:
            live.finish(end, "completion")

    future.add_done_callback(done)


def _work_of(out: Any) -> Any:
    """Return the Work that an operator of c10d returns, alone or as the last of several; None where
    there is none.
    """
    import torch
    from torch.distributed import Work

    last = out[-1] if isinstance(out, (tuple, list)) and out else out
    return Work.unbox(last) if isinstance(last, torch.ScriptObject) else None


def _described(name: str, operator: str, arguments: dict[str, Any]) -> dict[str, Any]:
    group, ranks = _group_of(arguments)
    root = next((arguments[key] for key in _ROOT_ARGUMENTS if key in arguments), None)
    inputs = [v for k, v in arguments.items() if k.startswith(("input", "tensor"))]
    outputs = [v for k, v in arguments.items() if k.startswith("out")]
    contributed, received = _nbytes(inputs), _nbytes(outputs)
    if name in _IN_PLACE:
        received = contributed
        if root is not None and group is not None and group.rank() != root:
            contributed = contributed if name == "reduce" else 0
            received = received if name == "broadcast" else 0
    elif name == "recv":
        contributed, received = 0, contributed
    elif name == "barrier":
        contributed = received = 0
    if isinstance(root, int) and 0 <= root < len(ranks):
        root = ranks[root]
    first = next(_tensors([*inputs, *outputs]), None)
    dtype = "" if first is None or name == "barrier" else str(first.dtype).removeprefix("torch.")
    return {
        "name": name,
        "operator": operator,
        "dtype": dtype,
        "input_bytes": contributed,
        "output_bytes": received,
        "group": ranks,
        "root": root if isinstance(root, int) else None,
    }


def _group_of(arguments: dict[str, Any]) -> tuple[Any, tuple[int, ...]]:
    """Return the process group and its global ranks."""
    import torch
    import torch.distributed as dist

    group = arguments.get("process_group", arguments.get("group_name"))
    if isinstance(group, torch.ScriptObject):
        group = dist.ProcessGroup.unbox(group)
    elif isinstance(group, str):
        group = dist.distributed_c10d._resolve_process_group(group)  # type: ignore[attr-defined,arg-type]
    if group is None:
        return None, ()
    try:
        return group, tuple(dist.get_process_group_ranks(group))
    except KeyError:  # a group that was made behind torch.distributed's back
        return group, tuple(range(group.size()))


def _tensors(values: Iterable[Any]) -> Iterator[Any]:
    import torch

    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (tuple, list)):
            yield from _tensors(value)


def _nbytes(values: Any) -> int:
    return sum(tensor.nbytes for tensor in _tensors([values]))


def _replace_wait() -> None:
    """Let ``Work.wait`` tell when it returns: the only end that gloo's send, recv and
    reduce_scatter have.
    """
    from torch.distributed import Work

    with _lock:
        _real_wait.append(_real_wait[0] if _real_wait else Work.wait)
        if len(_real_wait) > 1:
            return
        real = _real_wait[0]

        @functools.wraps(real)
        def wait(self: Any, *args: Any, **kwargs: Any) -> Any:
            with _waiting(list(_pending.get(id(self), ()))):
                return real(self, *args, **kwargs)

        Work.wait = wait  # type: ignore[method-assign]


def _restore_wait() -> None:
    from torch.distributed import Work

    with _lock:
        real = _real_wait.pop()
        if not _real_wait:
            Work.wait = real  # type: ignore[method-assign]
