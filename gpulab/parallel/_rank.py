"""What runs inside an engine: its rank, its process group, and one function at a time.

Everything here is called by name in an engine, so it must be importable there. It does not know the
cluster.
"""

from __future__ import annotations

import _thread
import contextlib
import datetime
import gc
import io
import os
import re
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from gpulab.errors import message_of
from gpulab.parallel._agent import AGENT, where_in
from gpulab.parallel._calls import CollectiveCall
from gpulab.parallel._observe import observe
from gpulab.parallel._outcome import Outcome, Sight, State

# What gloo, NCCL and the store say when others do not come, seen with torch 2.13; everything else
# is the function's own error.
_COMMUNICATION = re.compile(
    r"gloo|nccl|connection (closed|reset|refused|was)|timed? ?out|broken pipe|socket|TCPStore|peer|wait timeout",
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


@dataclass(frozen=True)
class Place:
    """Where a rank stands among the others."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int


class _State:
    """What this engine remembers between two calls."""

    def __init__(self) -> None:
        self.store: Any = None
        self.threads: int | None = None  # torch's, before it was a rank
        # the variables that a rank has, as they were before; None where there was none
        self.environment: dict[str, str | None] = {}


_STATE = _State()


def set_threads(threads: int) -> None:
    """Set torch's threads, once for an engine's life as a rank."""
    import torch

    if _STATE.threads is None:
        _STATE.threads = torch.get_num_threads()
    torch.set_num_threads(threads)


def gpus() -> int:
    """Return how many CUDA devices this engine sees that can talk: without NCCL, as in PyTorch's
    builds for Windows, none can.
    """
    import torch
    import torch.distributed as dist

    return torch.cuda.device_count() if dist.is_nccl_available() else 0


def address_towards(host: str) -> str:
    """Return this machine's own address on the way to a host; what the other ranks may reach it
    by.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, 9))  # no packet is sent: the system only chooses the interface
        return str(probe.getsockname()[0])


def open_store(address: str, port: int) -> int:
    """Start the store at which the ranks meet; return its port, a free one for port 0."""
    from torch._C._distributed_c10d import TCPStore

    AGENT.keep_sockets()
    _STATE.store = TCPStore(
        address, port, is_master=True, wait_for_workers=False, use_libuv=_has_libuv()
    )
    return int(_STATE.store.port)


def _has_libuv() -> bool:
    """Whether PyTorch was built with the store's usual event loop: on Windows it is not, and a
    store that asks for it is refused.
    """
    return sys.platform != "win32"


def open_group(
    place: Place, address: str, port: int, own_address: str, timeout_seconds: float, backend: str
) -> None:
    """Join the process group as a rank; ``rank`` and ``world_size`` become names in the engine's
    namespace.
    """
    import torch
    import torch.distributed as dist
    from torch._C._distributed_c10d import TCPStore

    timeout = datetime.timedelta(seconds=timeout_seconds)
    if place.rank != 0:
        AGENT.keep_sockets()
        _STATE.store = TCPStore(
            address, port, is_master=False, timeout=timeout, use_libuv=_has_libuv()
        )
    _set_environment(
        RANK=str(place.rank),
        WORLD_SIZE=str(place.world_size),
        LOCAL_RANK=str(place.local_rank),
        LOCAL_WORLD_SIZE=str(place.local_world_size),
        MASTER_ADDR=address,
        MASTER_PORT=str(port),
    )
    interface = _interface_of(own_address)
    if interface:
        _set_environment(GLOO_SOCKET_IFNAME=interface, NCCL_SOCKET_IFNAME=interface)
    if "nccl" in backend:
        torch.cuda.set_device(place.local_rank)
    dist.init_process_group(
        backend, store=_STATE.store, rank=place.rank, world_size=place.world_size, timeout=timeout
    )
    AGENT.rank, AGENT.freed = place.rank, False
    _prepare_engine(place)


def _set_environment(**values: str) -> None:
    """Set variables of this process; what they were before it was a rank is kept."""
    for name, value in values.items():
        _STATE.environment.setdefault(name, os.environ.get(name))
        os.environ[name] = value


def close_group() -> None:
    """Leave the process group, whatever state it is in."""
    import torch.distributed as dist

    if dist.is_initialized():
        AGENT.free()  # so that nothing waits for those who are gone
        # a broken group cannot be left in order, and need not be
        with contextlib.suppress(Exception):
            dist.destroy_process_group()
    _STATE.store = None
    gc.collect()


def leave_engine() -> None:
    """Leave an engine that belongs to others as it was: no process group, no names, its own
    variables and threads.
    """
    import torch
    from ipykernel.ipkernel import IPythonKernel

    close_group()
    for name, value in _STATE.environment.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    _STATE.environment.clear()
    if _STATE.threads is not None:
        torch.set_num_threads(_STATE.threads)
        _STATE.threads = None
    kernel: Any = IPythonKernel.instance()
    for name in ("rank", "world_size"):
        kernel.shell.user_ns.pop(name, None)


def execute(payload: bytes) -> bytes:
    """Call the function in the payload; return the pickled `Outcome`. Never raises: what goes wrong
    is in the outcome.
    """
    import cloudpickle

    printed = io.StringIO()
    state: State = "returned"
    value = error_bytes = b""
    error: BaseException | None = None
    with observe() as seen, _interruptible() as leave, _told(seen):
        try:
            with contextlib.redirect_stdout(printed):
                function, args, kwargs = cloudpickle.loads(payload)
                result = function(*args, **kwargs)
            leave()
            value = cloudpickle.dumps(result)
        except KeyboardInterrupt as stopped:
            state, error = "interrupted", stopped
        except BaseException as raised:
            state, error = "raised", raised
    calls = seen.calls
    if error is None:
        sight, trace = Sight(AGENT.rank, state, len(calls)), ""
    else:
        text = f"{type(error).__name__}: {message_of(error, 500)}"
        sight, trace = (
            Sight(AGENT.rank, state, len(calls), _failed_in(calls, error), _where(error), text),
            _trace(error),
        )
        # an exception of the learner's own that cannot travel; its text does
        with contextlib.suppress(Exception):
            error_bytes = cloudpickle.dumps(error.with_traceback(None))
    del error
    outcome = Outcome(sight, value, error_bytes, trace, printed.getvalue(), calls)
    return cloudpickle.dumps(outcome)  # type: ignore[no-any-return]


def _failed_in(calls: tuple[CollectiveCall, ...], error: BaseException) -> CollectiveCall | None:
    """Return the collective that did not come about, where that is what ended the call."""
    failed = next(
        (call for call in calls if call.error is not None and _COMMUNICATION.search(call.error)),
        None,
    )
    if failed is not None:
        return failed
    open_calls = [call for call in calls if call.end_seconds is None]
    broken = isinstance(error, KeyboardInterrupt) and AGENT.freed
    words = (
        type(error).__name__ in _COMMUNICATION_TYPES
        and _COMMUNICATION.search(message_of(error, 2000)) is not None
    )
    return (open_calls[0] if open_calls else None) if broken or words else None


def _where(error: BaseException | None) -> str:
    """Return the learner's innermost line that the error came through."""
    last = ""
    trace = None if error is None else error.__traceback__
    while trace is not None:
        place = where_in(trace.tb_frame)
        if place.endswith(f" of {trace.tb_frame.f_code.co_name}"):
            last = f"line {trace.tb_lineno} of {trace.tb_frame.f_code.co_name}"
        trace = trace.tb_next
    return last


def _trace(error: BaseException) -> str:
    """Return the traceback from the learner's function on."""
    first = error.__traceback__
    trace = first.tb_next if first is not None and first.tb_next is not None else first
    return "".join(traceback.format_exception(type(error), error, trace))


@contextlib.contextmanager
def _told(seen: Any) -> Iterator[None]:
    """Let the agent tell of this call while it runs."""
    AGENT.begin(seen)
    try:
        yield
    finally:
        AGENT.call = None


@contextlib.contextmanager
def _interruptible() -> Iterator[Callable[[], None]]:
    """Let the first SIGINT raise KeyboardInterrupt in the function, and nowhere else; gives what
    ends that.

    Those after it are the same one, sent again because the first may have come too early: a
    function that cleans up goes on.
    """
    inside = True

    def interrupt(number: int, frame: object) -> None:
        nonlocal inside
        if inside:
            inside = False
            raise KeyboardInterrupt

    def leave() -> None:
        nonlocal inside
        inside = False

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield leave
    finally:
        leave()
        signal.signal(signal.SIGINT, before)


def _interface_of(address: str) -> str:
    """Return the name of the network interface that has an address; "" where none has, and gloo
    chooses.
    """
    import psutil

    return next(
        (
            name
            for name, found in psutil.net_if_addrs().items()
            for each in found
            if each.address == address
        ),
        "",
    )


def _prepare_engine(place: Place) -> None:
    """Give the engine's namespace its rank, let signals reach a busy engine, and start the agent.
    Outside an engine: nothing.
    """
    from ipykernel.ipkernel import IPythonKernel

    if not IPythonKernel.initialized():
        return
    kernel: Any = IPythonKernel.instance()
    kernel.shell.user_ns.update(rank=place.rank, world_size=place.world_size)
    # ``%%px`` sends one when it is interrupted
    kernel.control_handlers.setdefault("signal_request", _on_signal_request)
    AGENT.publisher = kernel.shell.data_pub
    AGENT.start()


def _on_signal_request(stream: Any, identity: Any, message: Any) -> None:
    """Send this process a signal, as an engine's nanny does where there is one (in the thread of
    control messages).
    """
    from ipykernel.ipkernel import IPythonKernel

    number = message["content"]["sig"]
    number = getattr(signal, number) if isinstance(number, str) else number
    # which os.kill would end the process by there
    if sys.platform == "win32" and number == signal.SIGINT:
        _thread.interrupt_main()
    else:
        os.kill(os.getpid(), number)
    kernel: Any = IPythonKernel.instance()
    kernel.session.send(stream, "signal_reply", {"status": "ok"}, parent=message, ident=identity)
