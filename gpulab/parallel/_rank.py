"""The code that runs inside an engine: it joins the process group as a rank, calls one function at
a time, observes the rank's collectives, and runs the agent.

Everything here is called by name in an engine, so this module must be importable there. It does not
know the cluster. The agent is a thread that reports what its rank is doing, and frees the rank from
a collective that will never complete: a rank that hangs in a collective runs no Python, so it can
neither report nor be interrupted. The thread publishes the collective that the rank stands in
(through ipyparallel's own channel, so from any host). On an interrupt that finds the rank in a
collective, it shuts down the sockets of the process group. The collective then fails at once, as it
would if the machines of the other ranks had vanished.

``torch.distributed`` sends all its collectives, including those of DDP's reducer, FSDP2 and
DTensor, through operators of the dispatcher (``c10d`` and ``_c10d_functional``). A dispatch mode
sees all these operators, in the order entered. It does not see other threads of the process (a mode
belongs to its thread; backward threads inherit it), symmetric memory, a store's traffic, or the
creation of a group. A collective of Python objects shows as the tensors it sends. Each operator of
torch, even one that is not a collective, takes longer while observed (docs/measurements.md).
"""

from __future__ import annotations

import contextlib
import datetime
import gc
import importlib
import io
import itertools
import math
import os
import platform
import re
import select
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any
from unittest import mock

import cloudpickle
import torch
import torch.distributed as dist
from torch.distributed import Work, distributed_c10d
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from gpulab.errors import InputError, message_of
from gpulab.memory.step_memory import tensors_in
from gpulab.parallel.rank_results import CollectiveCall, Outcome, Sight

_TICK_SECONDS = 0.25
_PACKAGE = f"{Path(__file__).parents[1]}{os.sep}"
# an interrupt that has not ended a rank's collective after this time never will
_FREE_AFTER_SECONDS = 0.5


class Agent:
    """The thread of one engine, and what it knows of the call in progress."""

    def __init__(self) -> None:
        self.call: Any = None  # the Observer of the call in progress
        self.publisher: Any = None
        self.keep: frozenset[tuple[Any, Any]] = frozenset()  # both addresses of connections
        self.freed = False
        self.lets_in = False  # whether a SIGINT raises KeyboardInterrupt now
        # after an interrupt: when to free the rank; infinity once this time has come in a call
        self._free_at: float | None = None
        self._may_be_late = False  # whether the next interrupt may be one of the previous call
        self._parent = -1  # the id of the parent process, once the thread has started

    def start(self) -> None:
        """Start the thread, and let signals wake it; must be called from the main thread. A second
        call does nothing.

        Ranks are forked from a process that has imported this module, so objects that must not be
        shared between ranks are made here and not at import.
        """
        if self._parent != -1:
            return
        self._parent = os.getppid()
        # a signal writes to one socket, the thread reads from the other
        self._woken, self._wakes = socket.socketpair()
        self._wakes.setblocking(False)
        signal.set_wakeup_fd(self._wakes.fileno(), warn_on_full_buffer=False)
        threading.Thread(target=self._watch, daemon=True, name="gpulab-agent").start()

    def begin(self, call: Any, *, interruptible: bool = True) -> None:
        """Begin to watch a call, or none. Earlier interrupts no longer count.

        A call that sets the ranks up is not ``interruptible``: there the first interrupt does not
        count either, since it may have been meant for the previous call. The client repeats its
        own interrupts (`_cluster.Call`).
        """
        self.call, self._free_at, self._may_be_late = call, None, not interruptible

    def free(self) -> None:
        """End every collective in progress: abort NCCL's communicators, which closing sockets does
        not end, and shut down the sockets of the process group.

        The part for NCCL has not run on a machine with several GPUs yet.
        """
        self.freed, self._free_at = True, None
        on_device = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        for group in list(distributed_c10d._world.pg_map) if on_device else ():
            with contextlib.suppress(Exception):  # a communicator that is already gone
                group._get_backend(torch.device("cuda")).abort()
        for connection in _connections():
            if connection.fd != -1 and (connection.laddr, connection.raddr) not in self.keep:
                # OSError: the socket was closed meanwhile
                with (
                    contextlib.suppress(OSError),
                    socket.socket(fileno=os.dup(connection.fd)) as twin,
                ):
                    twin.shutdown(socket.SHUT_RDWR)

    def _watch(self) -> None:
        """Publish where the rank stands, and free it if it still hangs some time after an
        interrupt. Only the first interrupt that counts does this; later ones are repeats of it.
        """
        while True:
            ready = select.select([self._woken], [], [], _TICK_SECONDS)[0]
            now = time.monotonic()
            if ready and signal.SIGINT in self._woken.recv(4096) and self._free_at is None:
                self._free_at = None if self._may_be_late else now + _FREE_AFTER_SECONDS
                self._may_be_late = False
            if self._free_at is not None and now >= self._free_at:
                if self._hangs():
                    self.free()
                self._free_at = None if self.call is None else math.inf
            # a report that fails must not end this thread, which has to free the rank
            with contextlib.suppress(Exception):
                self._publish()
            if os.getppid() != self._parent and not sys.platform.startswith("linux"):
                os._exit(1)  # the supervisor is gone; on Linux the system itself ends its children

    def _hangs(self) -> bool:
        """Whether the rank stands in a collective, or anywhere else inside torch.distributed."""
        return bool(self.call is not None and self.call.in_flight) or any(
            f"{os.sep}torch{os.sep}distributed{os.sep}" in frame.f_code.co_filename
            for frame, _ in traceback.walk_stack(main_frame())
        )

    def _publish(self) -> None:
        """Publish where the rank stands in a call, unless it has only just entered a collective."""
        call = self.call
        if call is None or self.publisher is None:
            return
        standing: CollectiveCall | None = next(iter(call.in_flight), None)
        if standing is None or time.perf_counter() - standing.begin_seconds >= _TICK_SECONDS:
            where = "" if standing else own_line(traceback.walk_stack(main_frame()))
            sight = Sight("running", call.entered, standing, where)
            self.publisher.publish_data({"sight": sight})


def main_frame() -> FrameType | None:
    """Return the frame that the main thread is in."""
    return sys._current_frames().get(threading.main_thread().ident or 0)


def _is_own(frame: FrameType) -> bool:
    """Return whether a frame is of the learner's own code: outside installed libraries and this
    package.
    """
    file = frame.f_code.co_filename
    places = (f"{os.sep}{place}{os.sep}" for place in ("site-packages", "dist-packages"))
    foreign = file.startswith(("<frozen", sys.base_prefix, _PACKAGE))
    return not foreign and not any(place in file for place in places)


def own_line(places: Iterable[tuple[FrameType, int]]) -> str:
    """Return the first line of the learner's own code among frames and their lines; "" if there is
    none.
    """
    own = (f"line {line} of {frame.f_code.co_name}" for frame, line in places if _is_own(frame))
    return next(own, "")


def _connections() -> list[Any]:
    import psutil

    # before psutil 6 it is ``connections``
    listed = getattr(psutil.Process(), "net_connections", None) or psutil.Process().connections
    return [c for c in listed("tcp") if c.status == psutil.CONN_ESTABLISHED]


AGENT = Agent()


# Words in the errors of gloo, NCCL and the store when other ranks do not arrive, as seen with torch
# 2.13. Any other error is the function's own, such as an argument that gloo refuses
# ("ProcessGroupGloo::allgather: invalid tensor size").
_COMMUNICATION = re.compile(
    r"gloo(?!::\w+: )|nccl|connection (closed|reset|refused|was)|timed? ?out|broken pipe|socket"
    r"|TCPStore|peer|wait timeout",
    re.IGNORECASE,
)
_COMMUNICATION_TYPES = {
    "RuntimeError",
    "DistBackendError",
    "DistNetworkError",
    "DistStoreError",
    "DistError",
    "ValueError",
}


def prepare(threads: int) -> dict[str, Any]:
    """Set torch's number of threads. Return the host, the versions of libraries that must be the
    same on all ranks, and the number of CUDA devices that ranks can communicate with: 0 without
    NCCL, as in PyTorch's builds for Windows.
    """
    torch.set_num_threads(threads)
    libraries = ("torch", "ipyparallel", "gpulab", "cloudpickle")
    return {
        "host": socket.gethostname(),
        "versions": {"python": "{}.{}".format(*sys.version_info)}
        | {name: importlib.import_module(name).__version__ for name in libraries},
        "gpus": torch.cuda.device_count() if dist.is_nccl_available() else 0,
    }


def address_towards(host: str) -> str:
    """Return the address of this machine on the network that leads to a host; other ranks may reach
    this machine by it.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, 9))  # no packet is sent: the system only chooses the interface
        return str(probe.getsockname()[0])


def meeting_place(towards: str, port: int) -> tuple[str, int]:
    """Return where the ranks can meet: this machine's address on the network that leads to a host,
    and the port, which must be free (for port 0: any free one).
    """
    with socket.create_server((address_towards(towards), port)) as probe:
        address, found = probe.getsockname()
        return address, found


def open_group(
    place: Mapping[str, int], address: str, port: int, timeout_seconds: float, backend: str
) -> None:
    """Join the process group as a rank; ``rank`` and ``world_size`` become names in the engine's
    namespace.

    ``place`` has torchrun's variables: RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE.
    """
    import psutil
    from ipykernel.ipkernel import IPythonKernel

    rank, size = place["RANK"], place["WORLD_SIZE"]
    close_group()  # the engine may have been a rank before
    # connections that exist already do not belong to the process group
    AGENT.keep = frozenset((c.laddr, c.raddr) for c in _connections())
    variables = {**place, "MASTER_ADDR": address, "MASTER_PORT": port}
    own = address_towards(address) if rank else address
    interface = next(
        (
            name
            for name, found in psutil.net_if_addrs().items()
            if any(each.address == own for each in found)
        ),
        None,  # no interface has this address, so gloo chooses
    )
    if interface is not None:
        variables |= {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": interface}
    os.environ.update({name: str(value) for name, value in variables.items()})
    if "nccl" in backend:
        torch.cuda.set_device(place["LOCAL_RANK"])
    dist.init_process_group(
        backend,
        # PyTorch's builds for Windows lack the store's usual event loop
        init_method=f"tcp://{address}:{port}?use_libuv={int(sys.platform != 'win32')}",
        rank=rank,
        world_size=size,
        timeout=datetime.timedelta(seconds=timeout_seconds),
    )
    AGENT.freed = False
    kernel: Any = IPythonKernel.instance()
    kernel.shell.user_ns.update(rank=rank, world_size=size)
    # otherwise an interrupt just before or after the function would destroy the answer
    kernel.shell_handlers["apply_request"] = _interrupts_held()(kernel.apply_request)
    # ``%%px`` sends such a request when it is interrupted
    kernel.control_handlers.setdefault("signal_request", _on_signal_request)
    AGENT.publisher = kernel.shell.data_pub
    AGENT.start()


def close_group() -> None:
    """Leave the process group, whatever state it is in."""
    if dist.is_initialized():
        AGENT.free()  # so that nothing waits for ranks that are gone
        # a broken group cannot be destroyed properly, and need not be
        with contextlib.suppress(Exception):
            dist.destroy_process_group()
    gc.collect()


def execute(payload: bytes, interruptible: bool, path: Sequence[str]) -> bytes:
    """Call the function in the payload; return the pickled `Outcome`.

    Never raises: an error is part of the outcome, and so is an interrupt, if ``interruptible``.
    The function may import modules from the caller's ``path``, after those of the engine's own.
    """
    sys.path += [place for place in path if place not in sys.path]
    printed = io.StringIO()
    value = error_bytes = b""
    error: BaseException | None = None
    with observe() as seen, _interrupts_held():
        AGENT.begin(seen, interruptible=interruptible)
        try:
            AGENT.lets_in = interruptible
            with contextlib.redirect_stdout(printed):
                function, args, kwargs = cloudpickle.loads(payload)
                result = function(*args, **kwargs)
            AGENT.lets_in = False
            value = cloudpickle.dumps(result)
        except BaseException as raised:
            error = raised
        finally:
            AGENT.lets_in = False
            AGENT.begin(None)
    calls = seen.calls
    failed = _failed_in(calls, error)
    sight, trace = Sight("returned", len(calls), failed), ""
    if error is not None:
        text = ": ".join(filter(None, (type(error).__name__, message_of(error, 500))))
        places = list(traceback.walk_tb(error.__traceback__))
        sight = Sight("raised", len(calls), failed, own_line(reversed(places)), text)
        # the traceback begins at the learner's function
        below = (error.__traceback__ and error.__traceback__.tb_next) or error.__traceback__
        trace = "".join(traceback.format_exception(type(error), error, below))
        # an exception of the learner's own may not be picklable; its text is sent anyway
        with contextlib.suppress(Exception):
            error_bytes = cloudpickle.dumps(error.with_traceback(None))
    del error
    outcome = Outcome(sight, value, error_bytes, trace, printed.getvalue(), calls)
    return cloudpickle.dumps(outcome)  # type: ignore[no-any-return]


def _failed_in(
    calls: tuple[CollectiveCall, ...], error: BaseException | None
) -> CollectiveCall | None:
    """Return the collective whose failure ended the call, or was caught by the function; None if
    there is none.
    """
    failed = (call for call in calls if call.error and _COMMUNICATION.search(call.error))
    broken = (isinstance(error, KeyboardInterrupt) and AGENT.freed) or (
        error is not None
        and type(error).__name__ in _COMMUNICATION_TYPES
        and _COMMUNICATION.search(message_of(error, 2000)) is not None
    )
    waiting = (call for call in calls if broken and call.end_seconds is None)
    return next(itertools.chain(failed, waiting), None)


def _on_interrupt(number: int, frame: object) -> None:
    """Raise KeyboardInterrupt in the function that is called, on the first interrupt only.

    Later interrupts are repeats, sent because the first may have come too early. They are ignored,
    so that a function can finish its cleanup.
    """
    if AGENT.lets_in:
        AGENT.lets_in = False
        raise KeyboardInterrupt


@contextlib.contextmanager
def _interrupts_held() -> Iterator[None]:
    """Let a SIGINT raise KeyboardInterrupt only while `Agent.lets_in` says so."""
    # a handler that is a Python function, since an ignored signal would not wake the agent
    before = signal.signal(signal.SIGINT, _on_interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _on_signal_request(stream: Any, identity: Any, message: Any) -> None:
    """Send this process a signal, as an engine's nanny would; runs in the thread of control
    messages.
    """
    from ipykernel.ipkernel import IPythonKernel

    number = message["content"]["sig"]
    # ``%%px`` sends the signal's name
    number = getattr(signal, number) if isinstance(number, str) else number
    # on Windows os.kill would end the process; raise_signal also wakes a rank from time.sleep
    if sys.platform == "win32" and number == signal.SIGINT:
        signal.raise_signal(number)
    else:
        os.kill(os.getpid(), number)
    kernel: Any = IPythonKernel.instance()
    kernel.session.send(stream, "signal_reply", {"status": "ok"}, parent=message, ident=identity)


# -- observing the rank's collectives

# From each operator to the name that the course uses. Source: the operators registered by torch
# 2.13 under c10d and _c10d_functional.
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
# collectives whose input and output are the same argument
_IN_PLACE = frozenset({"all_reduce", "broadcast", "reduce"})
_ROOT_ARGUMENTS = ("root_rank", "src", "dst")


@dataclass(eq=False)
class _Live:
    """A call that may not have ended yet; its ``work`` is kept only until it has."""

    observer: Observer
    call: CollectiveCall
    # (begin, end) of Python's waits for the call
    waits: list[tuple[float, float]] = field(default_factory=list)
    work: Any = None  # kept, so that Python waits for this very object
    events: tuple[Any, Any] | None = None  # CUDA: begin and end on the stream

    def finish(self, end: float, error: str | None = None) -> None:
        """Record the end; only the first report of it counts."""
        with _lock:
            if self.call.end_seconds is None:
                self.call = self.call._replace(end_seconds=end, error=error)
                self.observer._works.pop(id(self.work), None)
                self.work = None


_lock = threading.RLock()


class Observer(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The calls seen by ``observe``, readable from any thread, even while the rank hangs in one of
    them. Observers of one thread can be nested.
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
        """Observe this thread's operators, and record when ``Work.wait`` returns: gloo's send, recv
        and reduce_scatter report their end in no other way.
        """
        real = Work.wait

        def wait(work: Any, *args: Any, **kwargs: Any) -> Any:
            with _waiting(self._works.get(id(work))):
                return real(work, *args, **kwargs)

        self._waits = mock.patch.object(Work, "wait", wait)
        self._waits.start()
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self._waits.stop()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator, and record it if it is a collective."""
        if any(kind.__name__ in _WRAPPERS for kind in types):
            # the wrapper calls operators on plain tensors instead, which are seen here again
            return NotImplemented
        kwargs = kwargs or {}
        if func in _no_collectives:  # asked first, since nearly all operators are
            return func(*args, **kwargs)
        if isinstance(func, torch._ops.OpOverload) and func.namespace in _NAMESPACES:
            return _collective(self, func, args, kwargs)
        _no_collectives.add(func)
        return func(*args, **kwargs)

    def _timed(self, live: _Live) -> CollectiveCall:
        """Return a call; if it ran on a CUDA stream, with its times on the stream, converted to the
        host's clock. The conversion is for NCCL; no test has run it.
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


# tensor classes whose operators consist of operators on plain tensors and collectives
_WRAPPERS = frozenset({"AsyncCollectiveTensor", "DTensor"})
_NAMESPACES = frozenset(name.split(".")[0] for name in NAMES)
_no_collectives: set[Any] = set()  # operators known to be none


def _collective(
    observer: Observer, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Run one operator of the known namespaces, and record it if it is a collective."""
    operator = f"{func.namespace}.{func._schema.name.split('::')[1]}"
    if operator == _WAIT:
        # this is the best known end of the functional collective whose result is waited for
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
    cuda = any(tensor.is_cuda for tensor in tensors_in(arguments))
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
        results = [tensor.data_ptr() for tensor in tensors_in(out) if tensor.numel()]
        observer._results.update(dict.fromkeys(results, live))
        if not results:
            live.finish(time.perf_counter())
        live.call = live.call._replace(output_bytes=live.call.output_bytes or _nbytes(out))
    else:  # monitored_barrier and shard_dim_alltoall return only when they are complete
        live.finish(time.perf_counter())
    return out


@contextlib.contextmanager
def _waiting(live: _Live | None) -> Iterator[None]:
    """Record that Python waits for a call in the block, and that the call ends with the block."""
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
    """Arrange to record the end of an asynchronous work: from its future if it has one, else from
    Python's wait for it.
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
        except Exception as error:  # the collective failed; a wait for it raises the error too
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
    if name in ("send", "recv") and isinstance(root, int) and root not in range(len(ranks)):
        # gloo would wait for it until the timeout, or end the process by a segmentation fault
        raise InputError(
            f"{name}: there is no rank {root}; expected a rank from 0 to {len(ranks) - 1}. In a "
            f"ring, the neighbors of a rank are (rank + 1) % {len(ranks)} and (rank - 1) % "
            f"{len(ranks)}."
        )
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
    first = next(iter(tensors_in([*inputs, *outputs])), None)
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
    # a group that was not made through torch.distributed is not registered
    ranks = dist.distributed_c10d._world.pg_group_ranks.get(group, range(group.size()))
    return group, tuple(ranks)


def _nbytes(values: Any) -> int:
    return sum(
        tensor._indices().nbytes + tensor._values().nbytes if tensor.is_sparse else tensor.nbytes
        for tensor in tensors_in(values)
    )


def machine() -> str:
    """Return a name that no other machine has; on Linux it contains the kernel's boot ID. Ranks
    with the same name share a clock.
    """
    boot = Path("/proc/sys/kernel/random/boot_id")
    return f"{platform.node()} {boot.read_text(encoding='ascii').strip() if boot.is_file() else ''}"
