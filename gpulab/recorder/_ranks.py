"""Several ranks on one machine (notebook 08): data-parallel steps, and collectives.

On a CPU there are at most two ranks; with GPUs there is one rank per GPU, through NCCL. That part
is for machines with several GPUs and has not been tested on one yet.

The ranks are plain processes with a process group of torch.distributed, since a bare machine has no
ipyparallel. A process ends when its end of the pipe closes, so none outlives the recorder. A rank
that is inside a collective when another one dies is ended by the recorder, at once.
"""

from __future__ import annotations

import atexit
import datetime
import os
import pathlib
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any

import numpy as np
import torch

from gpulab import devices
from gpulab._files import TemporaryFolder
from gpulab.devices import Device
from gpulab.errors import DeviceError, message_of
from gpulab.evidence import Evidence, Note
from gpulab.parallel import scaling_steps
from gpulab.parallel.scaling_steps import MODELS, StepSpec
from gpulab.recorder._experiments import FIRST, SECOND, THIRD, Case
from gpulab.timing import Measurement
from gpulab.timing.statistics import median_interval

_COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast")
_CPU_RANKS = 2
_ON_CPU, _ON_GPU = ("mlp", "transformer"), ("large-transformer", "mlp")
_CPU_SIZES = tuple(2**k for k in range(10, 25, 2))
_GPU_SIZES = tuple(2**k for k in range(10, 31, 2))
_FEWEST, _MOST_ROUNDS, _TURN, _REPEATS = 3, 2_000, 4, 8
_GPU_STEPS = 10  # between two waits for the device
# the ranks outlive a case for so long: starting them costs as much as ten cases
_IDLE_SECONDS = 3.0
# How long after one rank's error another one's death may show, its sockets close before its process
# counts as ended: half a second. In looks, not by a clock, so that what holds the recorder up takes
# nothing from it.
_LOOKS, _LOOK_SECONDS = 50, 0.01
# torch and NCCL take their time the first time; no call of an experiment takes a minute
_START_SECONDS, _CALL_SECONDS = 90.0, 60.0


class _RankProcesses:
    """Ranks on this host; ``run`` calls a function on each, as ``gpulab.parallel.Ranks`` does.

    Parameters
    ----------
    n : int
    backend : str
        "gloo" or "nccl"; with NCCL each rank takes the GPU of its number.

    Raises
    ------
    DeviceError
        If a rank could not start.
    """

    def __init__(self, n: int, backend: str = "gloo") -> None:
        self.n = n
        self._folder = TemporaryFolder("ranks")
        self._ends: list[Connection] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        try:
            for rank in range(n):
                self._start(rank, backend)
            self._gather(_START_SECONDS, "start")
        except BaseException:
            self.close()
            raise

    def _start(self, rank: int, backend: str) -> None:
        ours, theirs = Pipe()
        store = str(pathlib.Path(self._folder.name) / "store")
        serve = f"from {__name__} import serve; serve()"
        words = [str(theirs.fileno()), str(rank), str(self.n), store, backend]
        places = [str(pathlib.Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
        environment = {
            **os.environ,
            "LOCAL_RANK": str(rank),
            "RANK": str(rank),
            "WORLD_SIZE": str(self.n),
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join(place for place in places if place),
        }
        loopback = {"linux": "lo", "darwin": "lo0"}.get(sys.platform)
        if loopback is not None:  # one host: whatever its name resolves to does not matter
            environment["GLOO_SOCKET_IFNAME"] = loopback
        with theirs:
            self._ends.append(ours)
            # In a session of its own: a terminal's Ctrl-C asks the recorder to end after the case
            # in flight, and would end the ranks in it.
            process = subprocess.Popen(
                [sys.executable, "-c", serve, *words],
                pass_fds=[theirs.fileno()],
                env=environment,
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            self._processes.append(process)

    def run(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        """Call a function that can be imported on every rank; return one result per rank, in rank
        order.

        Raises
        ------
        DeviceError
            If a rank failed, died, or did not answer within a minute; then all of them are ended.
        """
        try:
            for rank, end in enumerate(self._ends):
                try:
                    end.send((function, args))
                except OSError as error:
                    raise _died(rank, function.__name__) from error
            return self._gather(_CALL_SECONDS, function.__name__)
        except BaseException:
            self.close()
            raise

    def _gather(self, seconds: float, what: str) -> list[Any]:
        """Return the answers of all ranks in rank order; the first failure ends the wait."""
        answers: dict[int, Any] = {}
        deadline = time.monotonic() + seconds
        while len(answers) < self.n:
            waiting = {end: rank for rank, end in enumerate(self._ends) if rank not in answers}
            ready = wait(list(waiting), max(0.0, deadline - time.monotonic()))
            if not ready:
                raise DeviceError(
                    f"rank {min(waiting.values())} did not answer within {seconds:.0f} s ({what}); "
                    "expected an answer. Other ranks may be waiting in a collective that this "
                    "rank never entered, or the machine is too busy. Run it again."
                )
            for end, rank in waiting.items():
                if end in ready:
                    answers[rank] = self._answer(rank, end, what)
        return [answers[rank] for rank in range(self.n)]

    def _answer(self, rank: int, end: Connection, what: str) -> Any:
        try:
            failed, answer = end.recv()
        except (EOFError, OSError) as error:
            raise _died(rank, what) from error
        if not failed:
            return answer
        for _ in range(_LOOKS):  # the others' errors only say that some rank is gone
            for other, process in enumerate(self._processes):
                if process.poll() is not None:
                    raise _died(other, what)
            time.sleep(_LOOK_SECONDS)
        raise DeviceError(
            f"rank {rank} failed in {what}: {answer}; expected it to return. Run it again, or with "
            "fewer ranks."
        )

    def close(self) -> None:
        """End all ranks."""
        for end in self._ends:
            end.close()
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait()
        self._ends.clear()
        self._processes.clear()
        self._folder.cleanup()

    @property
    def pids(self) -> tuple[int, ...]:
        """The process ids."""
        return tuple(process.pid for process in self._processes)


def _died(rank: int, what: str) -> DeviceError:
    return DeviceError(
        f"rank {rank} died in {what}; expected it to answer. Check whether memory ran out, and run "
        "it again."
    )


def serve() -> None:
    """Be one rank: join the group, then answer calls until the other end closes."""
    fd, rank, world = map(int, sys.argv[1:4])
    store, backend = sys.argv[4:]
    end = Connection(fd)
    try:
        import torch.distributed as dist

        torch.set_num_threads(1)
        if backend == "nccl":
            torch.cuda.set_device(rank % torch.cuda.device_count())
        dist.init_process_group(
            backend,
            store=dist.FileStore(store, world),  # type: ignore[attr-defined,unused-ignore]
            rank=rank,
            world_size=world,
            timeout=datetime.timedelta(seconds=_CALL_SECONDS),
        )
        end.send((False, None))
        while True:
            function, args = end.recv()
            try:
                answer = (False, function(*args))
            except Exception as error:
                # told to the recorder, which keeps it as the reason why the case has no timing
                answer = (True, f"{type(error).__name__}: {message_of(error)}")
            end.send(answer)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass  # the recorder has closed its end, or is gone
    except Exception as error:
        end.send((True, f"{type(error).__name__}: {message_of(error)}"))
    finally:
        os._exit(0)  # at once: leaving the group in order would wait for ranks that may be gone


class _Session:
    """The ranks of this process: started by the first case that needs them, ended when no case has
    used them for a while.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ranks: _RankProcesses | None = None
        self._made: tuple[int, str] = (0, "")
        self._timer: threading.Timer | None = None

    @contextmanager
    def ranks(self, n: int, backend: str) -> Iterator[_RankProcesses]:
        """Provide a number of ranks."""
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
            if self._ranks is None or not self._ranks.pids or self._made != (n, backend):
                self._end()
                self._ranks, self._made = _RankProcesses(n, backend), (n, backend)
            try:
                yield self._ranks
            except BaseException:  # ranks that one left behind in a collective are of no more use
                self._end()
                raise
            self._timer = threading.Timer(_IDLE_SECONDS, self.close)
            self._timer.daemon = True
            self._timer.start()

    def close(self) -> None:
        """End the ranks, unless a case is using them."""
        if self._lock.acquire(blocking=False):
            try:
                self._end()
            finally:
                self._lock.release()

    def _end(self) -> None:
        if self._ranks is not None:
            self._ranks.close()
            self._ranks = None


_SESSION = _Session()
atexit.register(_SESSION.close)


def _world(device: Device) -> tuple[int, str]:
    """Return how many ranks an experiment has on this device, and their backend; 0 where there can
    be none.
    """
    if os.name != "posix":  # the ranks' pipes are handed over as file descriptors
        return 0, ""
    if device.is_cpu:
        return min(_CPU_RANKS, devices.environment(device).cores), "gloo"
    if device.torch_type == "cuda":
        return sum(each.torch_type == "cuda" for each in devices.available()), "nccl"
    return 0, ""


def _step_case(
    device: Device, model: str, mode: str, ranks: int, world: int, backend: str, rank: int
) -> Case:
    batch, each = MODELS[model].batch, 1 if device.is_cpu else _GPU_STEPS
    with torch.device("meta"):  # a copy without storage
        parameter_bytes = sum(p.nbytes for p in MODELS[model].make().parameters())

    def time_step(deadline_seconds: float) -> Measurement:
        spec = StepSpec(MODELS[model], batch, mode == "weak", (ranks,), steps_a_sample=each)
        with _SESSION.ranks(world, backend) as group:
            _, first = group.run(scaling_steps.begin, spec)[0]

            def turn() -> list[float]:
                of_ranks = group.run(scaling_steps.turns, 1, _TURN)
                return scaling_steps.slowest([mine.seconds[ranks] for mine in of_ranks[:ranks]])

            samples = _until(deadline_seconds, turn)
            group.run(scaling_steps.end)
        return _measurement(
            f"{mode} scaling, {model}, {ranks} ranks", device, samples, first, each, None
        )

    params = {
        "model": model,
        "mode": mode,
        "ranks": ranks,
        "batch": batch,
        "parameter_bytes": parameter_bytes,
    }
    return Case(params, time_step, rank)


def _collective_case(
    device: Device, name: str, nbytes: int, world: int, backend: str, rank: int
) -> Case:
    def time_collective(deadline_seconds: float) -> Measurement:
        with _SESSION.ranks(world, backend) as group:

            def some(repeats: int = _REPEATS) -> list[float]:
                return scaling_steps.call_seconds(
                    group.run(scaling_steps.collective_times, name, nbytes, repeats)
                )

            first = some(1)[0]
            samples = _until(deadline_seconds, some)
        return _measurement(
            f"{name} of {nbytes} bytes, {world} ranks", device, samples, first, 1, float(nbytes)
        )

    return Case({"collective": name, "nbytes": nbytes, "ranks": world}, time_collective, rank)


def _until(deadline_seconds: float, take: Callable[[], list[float]]) -> np.ndarray:
    begin = time.monotonic()
    samples: list[float] = []
    for _ in range(_MOST_ROUNDS):
        samples += take()
        if len(samples) >= _FEWEST and time.monotonic() - begin >= deadline_seconds:
            break
    return np.array(samples)


def _measurement(
    label: str, device: Device, samples: np.ndarray, first: float, each: int, nbytes: float | None
) -> Measurement:
    interval, reason = median_interval(samples)
    median = float(np.median(samples))
    return Measurement(
        label=label,
        device=str(device),
        samples_seconds=samples,
        median_seconds=median,
        interval_seconds=interval,
        first_call_seconds=first,
        launch_seconds=median,
        with_transfer_seconds=None,
        calls_per_sample=each,
        flops=None,
        nbytes=nbytes,
        notes=() if reason is None else (Note("no-interval", reason),),
        evidence=Evidence.measured(device.name, samples=len(samples)),
        environment=devices.environment(device),
    )


def scaling(device: Device) -> Iterable[Case]:
    """A training step over numbers of ranks, strong and weak scaling."""
    world, backend = _world(device)
    counts = sorted({2**k for k in range(world.bit_length())} | {world}) if world else []
    for number, model in enumerate(_ON_CPU if device.is_cpu else _ON_GPU):
        rank = THIRD if number else FIRST if world > _CPU_RANKS else SECOND
        for mode in ("strong", "weak"):
            for ranks in counts:
                yield _step_case(device, model, mode, ranks, world, backend, rank)


def collectives(device: Device) -> Iterable[Case]:
    """Collectives over sizes, on all ranks."""
    world, backend = _world(device)
    if world < 2:
        return
    for name in _COLLECTIVES:
        rank = SECOND if name == "all_reduce" else THIRD
        for nbytes in _CPU_SIZES if device.is_cpu else _GPU_SIZES:
            yield _collective_case(device, name, nbytes, world, backend, rank)
