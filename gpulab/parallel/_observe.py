"""Record each collective of this process, and the lanes of compute, communication and idle.

``torch.distributed`` sends all its collectives, also those of DDP's reducer, FSDP2 and DTensor,
through operators of the dispatcher (``c10d`` and ``_c10d_functional``). A mode that looks at the
operators sees them all, in the order entered.

What it does not see: other threads of the process (a mode belongs to its thread; backward threads
inherit it), symmetric memory, a store's traffic, and the making of a group. A collective of Python
objects shows as the tensors it sends. Each operator of torch, also those that are no collective,
takes longer while observed (docs/measurements.md).

A collective begins for each rank when that rank enters it, but no data can move until the ranks
that it needs are there. So a rank's time in a collective falls into two parts: until the last rank
that it needs had entered (idle, where the rank's own thread stood still; nothing, where it went on
computing) and from then on (communication).
"""

from __future__ import annotations

import contextlib
import platform
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch.distributed import Work
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from gpulab.errors import message_of
from gpulab.evidence import Evidence
from gpulab.parallel.rank_results import CollectiveCall, RankSpan, RankTimeline

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


_WAIT = "_c10d_functional.wait_tensor"
# one argument is what goes in and what comes out
_IN_PLACE = frozenset({"all_reduce", "broadcast", "reduce"})
_ROOT_ARGUMENTS = ("root_rank", "src", "dst")


@dataclass(eq=False)
class _Live:
    """A call that may not have ended; what it needs to end lives only until then."""

    observer: Observer
    call: CollectiveCall
    # when Python stood in waits for it
    waits: list[tuple[float, float]] = field(default_factory=list)
    work: Any = None  # kept, so that the Work that Python waits for is this very object
    events: tuple[Any, Any] | None = None  # CUDA: begin and end on the stream

    def finish(self, end: float, error: str | None = None) -> None:
        """Note the end; the first to know it wins."""
        with _lock:
            if self.call.end_seconds is None:
                self.call = self.call._replace(end_seconds=end, error=error)
                self.observer._works.pop(id(self.work), None)
                self.work = None


_lock = threading.RLock()


class Observer(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """What ``observe`` gives: the calls seen, readable from any thread, also while the rank hangs
    in one of them. Observers of one thread nest.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._lives: list[_Live] = []
        self._works: dict[int, _Live] = {}  # id of a Work to its call
        self._results: dict[int, _Live] = {}  # data pointer of a functional result to its call
        self._anchor: Any = None

    @property
    def calls(self) -> tuple[CollectiveCall, ...]:
        """All calls entered so far, in order."""
        return tuple(map(self._timed, list(self._lives)))

    @property
    def waits(self) -> tuple[tuple[int, float, float], ...]:
        """When this rank's Python waited: (number of the call, begin, end), in the order of the
        calls.
        """
        lives = list(self._lives)
        return tuple((live.call.number, *wait) for live in lives for wait in live.waits)

    @property
    def in_flight(self) -> tuple[CollectiveCall, ...]:
        """The calls entered and not known to have ended, in order; a rank that hangs is waiting in
        the first.
        """
        return tuple(live.call for live in list(self._lives) if live.call.end_seconds is None)

    @property
    def entered(self) -> int:
        """How many calls were entered so far."""
        return len(self._lives)

    def __enter__(self) -> Observer:
        """Look at this thread's operators; and let ``Work.wait`` tell when it returns, the only end
        that gloo's send, recv and reduce_scatter have.
        """
        real = Work.wait

        def wait(work: Any, *args: Any, **kwargs: Any) -> Any:
            with _waiting(self._works.get(id(work))):
                return real(work, *args, **kwargs)

        self._waits = mock.patch.object(Work, "wait", wait)
        self._waits.start()
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        super().__exit__(kind, error, trace)  # type: ignore[no-untyped-call]
        self._waits.stop()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator, and note it where it is a collective."""
        if any(kind.__name__ in _WRAPPERS for kind in types):
            # it turns into plain tensors, collectives and waits, which come by again
            return NotImplemented
        kwargs = kwargs or {}
        if func in _no_collectives:  # asked first, since nearly all operators are
            return func(*args, **kwargs)
        if isinstance(func, torch._ops.OpOverload) and func.namespace in _NAMESPACES:
            return _collective(self, func, args, kwargs)
        _no_collectives.add(func)
        return func(*args, **kwargs)

    def _timed(self, live: _Live) -> CollectiveCall:
        """Return a call; where it was on a CUDA stream, with its times there on the host's clock.
        Written for NCCL; no test of ours has run it.
        """
        if live.events is None or live.call.end_seconds is None:
            return live.call
        live.events[1].synchronize()
        event, seconds = self._anchor
        begin, end = (seconds + event.elapsed_time(each) / 1e3 for each in live.events)
        return live.call._replace(begin_seconds=begin, end_seconds=end)

    def _cuda_event(self) -> Any:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        if self._anchor is None:
            event.synchronize()
            self._anchor = (event, time.perf_counter())
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


def unobserved() -> contextlib.AbstractContextManager[Any]:
    """Run this thread's operators without observers, so that they do not slow a timed loop; calls
    inside are not seen.
    """
    return _disable_current_modes()


# made of plain tensors and collectives
_WRAPPERS = frozenset({"AsyncCollectiveTensor", "DTensor"})
_NAMESPACES = frozenset(name.split(".")[0] for name in NAMES)
_no_collectives: set[Any] = set()  # operators that were looked at


def _collective(
    observer: Observer, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Run one operator of the known namespaces and note what it is."""
    operator = f"{func.namespace}.{func._schema.name.split('::')[1]}"
    if operator == _WAIT:
        # the end of the functional collective whose result it waits for, as far as can be known
        with _waiting(observer._results.pop(args[0].data_ptr(), None)):
            return func(*args, **kwargs)
    name = NAMES.get(operator)
    if name is None:
        return func(*args, **kwargs)
    arguments = {
        argument.name: value for argument, value in zip(func._schema.arguments, args, strict=False)
    } | kwargs
    call = _begun(observer.entered, name, arguments)
    live = _Live(observer, call)
    observer._lives.append(live)
    cuda = any(tensor.is_cuda for tensor in _tensors(arguments.values()))
    begin_event = observer._cuda_event() if cuda else None
    try:
        out = func(*args, **kwargs)
    except BaseException as error:
        live.finish(time.perf_counter(), message_of(error))
        raise
    last = out[-1] if isinstance(out, (tuple, list)) and out else out
    if isinstance(last, torch.ScriptObject):
        _follow(live, Work.unbox(last), begin_event)
    elif operator.startswith("_c10d_functional"):
        results = [tensor.data_ptr() for tensor in _tensors([out]) if tensor.numel()]
        observer._results.update(dict.fromkeys(results, live))
        if not results:
            live.finish(time.perf_counter())
        live.call = live.call._replace(output_bytes=live.call.output_bytes or _nbytes(out))
    else:  # monitored_barrier and shard_dim_alltoall wait themselves
        live.finish(time.perf_counter())
    return out


@contextlib.contextmanager
def _waiting(live: _Live | None) -> Iterator[None]:
    """Note that Python waits for a call in the block, and that it has ended with it."""
    begin, error = time.perf_counter(), None
    try:
        yield
    except BaseException as failure:
        error = message_of(failure)
        raise
    finally:
        if live is not None:
            live.waits.append((begin, time.perf_counter()))
            live.finish(live.waits[-1][1], error)


def _follow(live: _Live, work: Any, begin_event: Any) -> None:
    """Note the end of an asynchronous work: from its future where it has one, else from Python's
    wait for it.
    """
    if work is None:  # NCCL has nothing to do for one rank
        live.finish(time.perf_counter())
        return
    live.work = work
    live.observer._works[id(work)] = live
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
            live.finish(end, message_of(error))
        else:
            live.finish(end)

    future.add_done_callback(done)


def _begun(number: int, name: str, arguments: dict[str, Any]) -> CollectiveCall:
    """Return the call that begins now, from the operator's arguments by name."""
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
    return CollectiveCall(
        number=number,
        name=name,
        dtype=dtype,
        input_bytes=contributed,
        output_bytes=received,
        group=ranks,
        root=root if isinstance(root, int) else None,
        begin_seconds=time.perf_counter(),
        end_seconds=None,
    )


def _group_of(arguments: dict[str, Any]) -> tuple[Any, tuple[int, ...]]:
    """Return the process group and its global ranks."""
    group = arguments.get("process_group", arguments.get("group_name"))
    if isinstance(group, torch.ScriptObject):
        group = dist.ProcessGroup.unbox(group)
    elif isinstance(group, str):
        group = dist.distributed_c10d._resolve_process_group(group)  # type: ignore[attr-defined,arg-type]
    if group is None:
        return None, ()
    # one that was made behind torch.distributed's back is not there
    ranks = dist.distributed_c10d._world.pg_group_ranks.get(group, range(group.size()))
    return group, tuple(ranks)


def _tensors(values: Iterable[Any]) -> Iterator[Any]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (tuple, list)):
            yield from _tensors(value)


def _nbytes(values: Any) -> int:
    return sum(tensor.nbytes for tensor in _tensors([values]))


Interval = tuple[float, float]
# Pieces shorter than a microsecond come from reading the clock twice.
_SHORTEST_SECONDS = 1e-6


@dataclass(frozen=True)
class RankNotes:
    """What one rank noted while its steps were observed; times on its own clock.

    Attributes
    ----------
    phases : tuple of (name, begin, end)
        What its thread did, waits included.
    calls : tuple of CollectiveCall
    waits : tuple of (number of the call, begin, end)
        When the thread stood in waits for calls.
    ends_in_wait : tuple of float
        As in ``Setting``.
    steps : tuple of float
        When each step began.
    end : float
        When the last one was over.
    ahead_seconds : float
        How far its clock is ahead of rank 0's.
    """

    phases: tuple[tuple[str, float, float], ...]
    calls: tuple[CollectiveCall, ...]
    waits: tuple[tuple[int, float, float], ...]
    ends_in_wait: tuple[float, ...]
    steps: tuple[float, ...]
    end: float
    ahead_seconds: float = 0.0


def timeline(label: str, notes: Sequence[RankNotes], evidence: Evidence) -> RankTimeline:
    """Return the lanes of what ranks noted, one note a rank in rank order."""
    zero = min(note.steps[0] - note.ahead_seconds for note in notes)
    arrivals = _arrivals(notes)
    spans: list[RankSpan] = []
    for rank, note in enumerate(notes):
        spans += _lanes(rank, note, arrivals[rank], zero + note.ahead_seconds)
    spans.sort(key=lambda span: (span.rank, span.begin_seconds, span.end_seconds))
    steps = tuple(
        min(note.steps[number] - note.ahead_seconds for note in notes) - zero
        for number in range(min(len(note.steps) for note in notes))
    )
    end = max(note.end - note.ahead_seconds for note in notes) - zero
    return RankTimeline(label, len(notes), tuple(spans), steps, end, (), evidence)


def _lanes(rank: int, note: RankNotes, arrivals: Sequence[float], zero: float) -> list[RankSpan]:
    """Return one rank's spans; ``arrivals`` are, call by call and on its clock, when the last rank
    needed had entered.
    """
    spans: list[RankSpan] = []
    moving: list[Interval] = []
    for call, arrival in zip(note.calls, arrivals, strict=True):
        # A work reports its end on another thread, which may come to it later than the wait for it
        # returns.
        waits = [end for number, _, end in note.waits if number == call.number]
        if call.end_seconds is None:
            continue
        end = min(call.end_seconds, *waits) if waits else call.end_seconds
        # A short message is gone before its receiver asks for it: the system keeps it.
        sent_ahead = call.name == "send" and arrival > end
        begin = call.begin_seconds if sent_ahead else min(max(call.begin_seconds, arrival), end)
        moving.append((begin, end))
        spans.append(
            RankSpan(rank, "communication", call.name, begin - zero, end - zero, call.payload_bytes)
        )
    names = {call.number: call.name for call in note.calls}
    stood = [(begin, end, names[number]) for number, begin, end in note.waits if number in names]
    stood += _tails(note)
    taken = list(moving)
    for begin, end, name in sorted(stood):
        # what two waits share counts for the first only
        for piece in _without((begin, end), taken):
            spans.append(RankSpan(rank, "idle", name, piece[0] - zero, piece[1] - zero))
            taken.append(piece)
    for name, begin, end in note.phases:
        for piece in _without((begin, end), [(begin, end) for begin, end, _ in stood]):
            spans.append(RankSpan(rank, "compute", name, piece[0] - zero, piece[1] - zero))
    return [
        span for span in spans if span.kind == "communication" or span.seconds >= _SHORTEST_SECONDS
    ]


def _tails(note: RankNotes) -> list[tuple[float, float, str]]:
    """Return the waits that Python did not see: from the last collective that a pass entered until
    the pass was over.
    """
    last_before = {
        moment: call
        for moment in note.ends_in_wait
        for call in note.calls
        if call.begin_seconds <= moment
    }
    return [(call.begin_seconds, moment, call.name) for moment, call in last_before.items()]


def _arrivals(notes: Sequence[RankNotes]) -> list[list[float]]:
    """Return for each rank and call when the last rank that it needs had entered, on that rank's
    clock.

    Ranks enter the collectives of one group in the same order, so the k-th of a group is the same
    for all; messages between two ranks are the k-th each way.
    """
    entered: dict[tuple[object, ...], dict[int, float]] = defaultdict(dict)
    keys: list[list[tuple[object, ...]]] = []
    for rank, note in enumerate(notes):
        counts: dict[tuple[object, ...], int] = defaultdict(int)
        mine = []
        for call in note.calls:
            kind = _channel(rank, call)
            key = (*kind, counts[kind])
            counts[kind] += 1
            entered[key][rank] = call.begin_seconds - note.ahead_seconds
            mine.append(key)
        keys.append(mine)
    return [
        [
            _last_needed(rank, call, entered[key]) + note.ahead_seconds
            for call, key in zip(note.calls, keys[rank], strict=True)
        ]
        for rank, note in enumerate(notes)
    ]


def _channel(rank: int, call: CollectiveCall) -> tuple[object, ...]:
    if call.name == "send":
        return ("message", rank, call.root)
    if call.name == "recv":
        return ("message", call.root, rank)
    return ("group", call.group, call.name == "send and recv")


def _last_needed(rank: int, call: CollectiveCall, entered: dict[int, float]) -> float:
    """Return when the last rank that this rank needs entered: of a broadcast the root. No strategy
    gathers, scatters or reduces to one rank.
    """
    return max(
        moment
        for each, moment in entered.items()
        if call.name != "broadcast" or each in (rank, call.root)
    )


def _without(interval: Interval, holes: Iterable[Interval]) -> list[Interval]:
    """Return what is left of an interval outside the holes."""
    rest = [interval]
    for low, high in holes:
        rest = [
            (begin, end)
            for left, right in rest
            for begin, end in ((left, min(right, low)), (max(left, high), right))
            if begin < end
        ]
    return rest


def clock_ahead() -> float:
    """Return how far this rank's clock is ahead of rank 0's, in seconds; called by all ranks at
    once.

    Ranks on one machine share a clock, and 0 is exact. Elsewhere the clocks are read when the ranks
    leave a barrier, which they do within the time that a message takes.
    """
    clocks = [("", 0.0)] * dist.get_world_size()
    dist.barrier()
    dist.all_gather_object(clocks, (machine(), time.perf_counter()))
    return dict(reversed(clocks))[machine()] - clocks[0][1]


def machine() -> str:
    """Return a name of the machine that no other has: with Linux's number of this start of the
    kernel. Ranks with the same one share a clock.
    """
    boot = Path("/proc/sys/kernel/random/boot_id")
    return f"{platform.node()} {boot.read_text(encoding='ascii').strip() if boot.is_file() else ''}"
