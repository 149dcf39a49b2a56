"""What runs inside an engine: its rank, its process group, one function at a time, and the agent.

Everything here is called by name in an engine, so it must be importable there. It does not know the
cluster. The agent is a thread that reports what its rank is doing, and frees it from a collective
that will never complete: a rank that hangs in a collective runs no Python, so it can neither report
nor be interrupted. The thread publishes what the rank stands in (through ipyparallel's own channel,
so from any host), and on an interrupt that finds the rank in a collective it shuts the sockets of
the process group down. The collective then fails at once, as it would have if the others' machines
had vanished.
"""

from __future__ import annotations

import _thread
import contextlib
import datetime
import gc
import importlib
import io
import itertools
import math
import os
import re
import select
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import cloudpickle
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from gpulab.errors import message_of
from gpulab.parallel._observe import observe
from gpulab.parallel.rank_results import CollectiveCall, Outcome, Sight

_TICK_SECONDS = 0.25
_PACKAGE = f"{Path(__file__).parents[1]}{os.sep}"
# an interrupt that has not got a rank out of its collective by then never will
_FREE_AFTER_SECONDS = 0.5

Address = tuple[Any, Any]


class Agent:
    """The thread of one engine, and what it knows of the call in progress."""

    def __init__(self) -> None:
        self.call: Any = None  # the Observer of the call in progress
        self.publisher: Any = None
        self.keep: frozenset[Address] = frozenset()
        self.freed = False
        # after an interrupt: when to free the rank; never, in a call in which that is done
        self._free_at: float | None = None
        self._parent = -1  # once it has started: the process that started this one

    def start(self) -> None:
        """Start the thread, and let signals wake it; from the main thread, once.

        Ranks are forked from a process that has imported this: what must be a rank's own is made
        here and not before.
        """
        if self._parent != -1:
            return
        self._parent = os.getppid()
        # a signal writes to one, the thread reads from the other
        self._woken, self._wakes = socket.socketpair()
        self._wakes.setblocking(False)
        signal.set_wakeup_fd(self._wakes.fileno(), warn_on_full_buffer=False)
        threading.Thread(target=self._watch, daemon=True, name="gpulab-agent").start()

    def begin(self, call: Any) -> None:
        """Take up a call, or none: what an interrupt before asked for is over, and one from now on
        counts anew.
        """
        self.call, self._free_at = call, None

    def keep_sockets(self) -> None:
        """Note the connections that are not the process group's: those that exist before it is
        made.
        """
        self.keep = frozenset((c.laddr, c.raddr) for c in _connections())

    def free(self) -> None:
        """End every collective in progress: NCCL's communicators, which sockets do not end, are
        aborted (written for GPUs; no machine of ours with several has run it), sockets shut down.
        """
        self.freed, self._free_at = True, None
        on_device = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        for group in list(distributed_c10d._world.pg_map) if on_device else ():
            with contextlib.suppress(Exception):  # a communicator that is already gone
                group._get_backend(torch.device("cuda")).abort()
        for connection in _connections():
            if connection.fd != -1 and (connection.laddr, connection.raddr) not in self.keep:
                # the error: it was closed meanwhile
                with (
                    contextlib.suppress(OSError),
                    socket.socket(fileno=os.dup(connection.fd)) as twin,
                ):
                    twin.shutdown(socket.SHUT_RDWR)

    def _watch(self) -> None:
        """Free the rank where an interrupt has not done so for a while; in a call one is heeded,
        and those after it are that one again.
        """
        while True:
            ready = select.select([self._woken], [], [], _TICK_SECONDS)[0]
            now = time.monotonic()
            if ready and signal.SIGINT in self._woken.recv(4096) and self._free_at is None:
                self._free_at = now + _FREE_AFTER_SECONDS
            if self._free_at is not None and now >= self._free_at:
                if self._hangs():
                    self.free()
                self._free_at = None if self.call is None else math.inf
            # a report that fails must not end the thread that frees
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
        """Publish where the rank stands in a call, but not what it has only just entered."""
        call = self.call
        if call is None or self.publisher is None:
            return
        standing: CollectiveCall | None = next(iter(call.in_flight), None)
        if standing is None or time.perf_counter() - standing.begin_seconds >= _TICK_SECONDS:
            where = "" if standing else own_line(traceback.walk_stack(main_frame()))
            sight = Sight("running", call.entered, standing, where)
            self.publisher.publish_data({"sight": sight})


def main_frame() -> FrameType | None:
    """Return where the main thread is."""
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
    """Return the first line of the learner's own code among frames and their lines."""
    own = (f"line {line} of {frame.f_code.co_name}" for frame, line in places if _is_own(frame))
    return next(own, "")


def _connections() -> list[Any]:
    # its name before psutil 6
    import psutil

    listed = getattr(psutil.Process(), "net_connections", None) or psutil.Process().connections
    return [c for c in listed("tcp") if c.status == psutil.CONN_ESTABLISHED]


AGENT = Agent()


# What gloo, NCCL and the store say when others do not come, seen with torch 2.13; everything else
# is the function's own error.
_COMMUNICATION = re.compile(
    r"gloo|nccl|connection (closed|reset|refused|was)|timed? ?out|broken pipe|socket|TCPStore"
    r"|peer|wait timeout",
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
    """Load torch and set its threads; return the host, the versions of what must be the same on all
    ranks, and how many CUDA devices this engine sees that can talk: without NCCL, as in PyTorch's
    builds for Windows, none can.
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
    """Return this machine's own address on the way to a host; what the other ranks may reach it
    by.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, 9))  # no packet is sent: the system only chooses the interface
        return str(probe.getsockname()[0])


def meeting_place(towards: str, port: int) -> tuple[str, int]:
    """Return where the ranks can meet: this machine's address on the way to a host, and a port that
    nobody uses, any for port 0.
    """
    with socket.create_server((address_towards(towards), port)) as probe:
        address, found = probe.getsockname()
        return address, found


def open_group(
    place: Mapping[str, int], address: str, port: int, timeout_seconds: float, backend: str
) -> None:
    """Join the process group as a rank; ``rank`` and ``world_size`` become names in the engine's
    namespace. The place is torchrun's variables: RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE.
    """
    import psutil
    from ipykernel.ipkernel import IPythonKernel

    rank, size = place["RANK"], place["WORLD_SIZE"]
    close_group()  # of an engine that was a rank before
    AGENT.keep_sockets()
    variables = {**place, "MASTER_ADDR": address, "MASTER_PORT": port}
    own = address_towards(address) if rank else address
    interface = next(
        (
            name
            for name, found in psutil.net_if_addrs().items()
            if any(each.address == own for each in found)
        ),
        None,  # no interface has it, and gloo chooses
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
    # an interrupt that comes before the function or after it would take the answer with it
    kernel.shell_handlers["apply_request"] = _uninterrupted()(kernel.apply_request)
    # ``%%px`` sends one when it is interrupted
    kernel.control_handlers.setdefault("signal_request", _on_signal_request)
    AGENT.publisher = kernel.shell.data_pub
    AGENT.start()


def close_group() -> None:
    """Leave the process group, whatever state it is in."""
    if dist.is_initialized():
        AGENT.free()  # so that nothing waits for those who are gone
        # a broken group cannot be left in order, and need not be
        with contextlib.suppress(Exception):
            dist.destroy_process_group()
    gc.collect()


def execute(payload: bytes, interruptible: bool) -> bytes:
    """Call the function in the payload; return the pickled `Outcome`. Never raises: what goes wrong
    is in the outcome, and so is an interrupt, if it is let in.
    """
    printed = io.StringIO()
    value = error_bytes = b""
    error: BaseException | None = None
    with observe() as seen, _interruptible() as leave:
        if not interruptible:
            leave()
        AGENT.begin(seen)
        try:
            with contextlib.redirect_stdout(printed):
                function, args, kwargs = cloudpickle.loads(payload)
                result = function(*args, **kwargs)
            leave()
            value = cloudpickle.dumps(result)
        except BaseException as raised:
            error = raised
        finally:
            AGENT.begin(None)
    calls = seen.calls
    sight, trace = Sight("returned", len(calls)), ""
    if error is not None:
        text = f"{type(error).__name__}: {message_of(error, 500)}"
        failed, places = _failed_in(calls, error), list(traceback.walk_tb(error.__traceback__))
        sight = Sight("raised", len(calls), failed, own_line(reversed(places)), text)
        # from the learner's function on
        below = (error.__traceback__ and error.__traceback__.tb_next) or error.__traceback__
        trace = "".join(traceback.format_exception(type(error), error, below))
        # an exception of the learner's own that cannot travel; its text does
        with contextlib.suppress(Exception):
            error_bytes = cloudpickle.dumps(error.with_traceback(None))
    del error
    outcome = Outcome(sight, value, error_bytes, trace, printed.getvalue(), calls)
    return cloudpickle.dumps(outcome)  # type: ignore[no-any-return]


def _failed_in(calls: tuple[CollectiveCall, ...], error: BaseException) -> CollectiveCall | None:
    """Return the collective that did not come about, where that is what ended the call."""
    failed = (call for call in calls if call.error and _COMMUNICATION.search(call.error))
    broken = (isinstance(error, KeyboardInterrupt) and AGENT.freed) or (
        type(error).__name__ in _COMMUNICATION_TYPES
        and _COMMUNICATION.search(message_of(error, 2000)) is not None
    )
    waiting = (call for call in calls if broken and call.end_seconds is None)
    return next(itertools.chain(failed, waiting), None)


@contextlib.contextmanager
def _interruptible() -> Iterator[Callable[[], object]]:
    """Let the first SIGINT raise KeyboardInterrupt in the function, and nowhere else; gives what
    ends that.

    Those after it are the same one, sent again because the first may have come too early: a
    function that cleans up goes on.
    """
    # a function of Python's own, since ignored signals would not wake the agent either
    end = partial(signal.signal, signal.SIGINT, lambda *_: None)

    def interrupt(number: int, frame: object) -> None:
        end()
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield end
    finally:
        signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Let no SIGINT raise KeyboardInterrupt, but in what `_interruptible` holds."""
    with _interruptible() as end:
        end()
        yield


def _on_signal_request(stream: Any, identity: Any, message: Any) -> None:
    """Send this process a signal, as an engine's nanny does where there is one (in the thread of
    control messages).
    """
    from ipykernel.ipkernel import IPythonKernel

    number = message["content"]["sig"]
    # a name where ``%%px`` sends it
    number = getattr(signal, number) if isinstance(number, str) else number
    # which os.kill would end the process by there
    if sys.platform == "win32" and number == signal.SIGINT:
        _thread.interrupt_main()
    else:
        os.kill(os.getpid(), number)
    kernel: Any = IPythonKernel.instance()
    kernel.session.send(stream, "signal_reply", {"status": "ok"}, parent=message, ident=identity)
