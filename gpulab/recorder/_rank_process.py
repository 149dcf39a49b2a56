"""Ranks without ipyparallel: plain processes with a process group of torch.distributed.

The recorder's own, for one host. A process ends when its end of the pipe closes, so none outlives
the recorder. A rank that is inside a collective when another one dies is ended by the recorder, at
once.
"""

from __future__ import annotations

import datetime
import os
import pathlib
import subprocess
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any

from gpulab._files import TemporaryFolder
from gpulab.errors import DeviceError, message_of

# How long after one rank's error another one's death may show, its sockets close before its process
# counts as ended: half a second. In looks, not by a clock, so that what holds the recorder up takes
# nothing from it.
_LOOKS, _LOOK_SECONDS = 50, 0.01
# torch and NCCL take their time the first time; no call of an experiment takes a minute
START_SECONDS, CALL_SECONDS = 90.0, 60.0


class RankProcesses:
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
            self._gather(START_SECONDS, "start")
        except BaseException:
            self.close()
            raise

    def _start(self, rank: int, backend: str) -> None:
        ours, theirs = Pipe()
        store = pathlib.Path(self._folder.name) / "store"
        command = [
            sys.executable,
            "-m",
            __name__,
            str(theirs.fileno()),
            str(rank),
            str(self.n),
            str(store),
            backend,
        ]
        loopback = {"linux": "lo", "darwin": "lo0"}.get(sys.platform)
        environment = {
            **os.environ,
            "LOCAL_RANK": str(rank),
            "RANK": str(rank),
            "WORLD_SIZE": str(self.n),
            "OMP_NUM_THREADS": "1",
        }
        if loopback is not None:  # one host: whatever its name resolves to does not matter
            environment["GLOO_SOCKET_IFNAME"] = loopback
        paths = [str(pathlib.Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
        quiet: dict[str, Any] = {
            "stdin": subprocess.DEVNULL,
            "stdout": subprocess.DEVNULL,
            "stderr": subprocess.DEVNULL,
        }
        with theirs:
            self._ends.append(ours)
            # In a session of its own: a terminal's Ctrl-C asks the recorder to end after the case
            # in flight, and would end the ranks in it.
            self._processes.append(
                subprocess.Popen(
                    command,
                    pass_fds=[theirs.fileno()],
                    env=environment,
                    start_new_session=True,
                    **quiet,
                )
            )

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
                    raise self._died(rank, function.__name__) from error
            return self._gather(CALL_SECONDS, function.__name__)
        except BaseException:
            self.close()
            raise

    def _gather(self, seconds: float, what: str) -> list[Any]:
        """Return the answers of all ranks in rank order; the first failure ends the wait."""
        answers: dict[int, Any] = {}
        deadline = time.monotonic() + seconds
        while len(answers) < self.n:
            waiting: list[Any] = [end for rank, end in enumerate(self._ends) if rank not in answers]
            ready = wait(waiting, max(0.0, deadline - time.monotonic()))
            if not ready:
                late = next(rank for rank in range(self.n) if rank not in answers)
                raise DeviceError(
                    f"rank {late} did not answer within {seconds:.0f} s ({what}); expected an "
                    "answer. Other ranks may be waiting in a "
                    "collective that this rank never entered, or the machine is too busy. Run it "
                    "again."
                )
            for rank, end in enumerate(self._ends):
                if end in ready:
                    answers[rank] = self._answer(rank, end, what)
        return [answers[rank] for rank in range(self.n)]

    def _answer(self, rank: int, end: Connection, what: str) -> Any:
        try:
            failed, answer = end.recv()
        except (EOFError, OSError) as error:
            raise self._died(rank, what) from error
        if failed:
            dead = self._dead()
            if dead is not None:  # the others' errors only say that somebody is gone
                raise self._died(dead, what)
            raise DeviceError(
                f"rank {rank} failed in {what}: {answer}; expected it to return. Run it again, or "
                "with fewer ranks."
            )
        return answer

    def _dead(self) -> int | None:
        for _ in range(_LOOKS):
            dead = next(
                (
                    rank
                    for rank, process in enumerate(self._processes)
                    if process.poll() is not None
                ),
                None,
            )
            if dead is not None:
                return dead
            time.sleep(_LOOK_SECONDS)
        return None

    def _died(self, rank: int, what: str) -> DeviceError:
        return DeviceError(
            f"rank {rank} died in {what}; expected it to answer. Check whether memory ran out, and "
            "run it again."
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


def main(arguments: list[str]) -> None:
    """Be one rank: join the group, then answer calls until the other end closes."""
    fd, rank, world, store, backend = (
        int(arguments[0]),
        int(arguments[1]),
        int(arguments[2]),
        arguments[3],
        arguments[4],
    )
    end = Connection(fd)
    try:
        import torch
        import torch.distributed as dist

        torch.set_num_threads(1)
        if backend == "nccl":
            torch.cuda.set_device(rank % torch.cuda.device_count())
        dist.init_process_group(
            backend,
            store=dist.FileStore(store, world),  # type: ignore[attr-defined,unused-ignore]
            rank=rank,
            world_size=world,
            timeout=datetime.timedelta(seconds=CALL_SECONDS),
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


if __name__ == "__main__":
    main(sys.argv[1:])
