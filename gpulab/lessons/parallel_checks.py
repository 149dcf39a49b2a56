"""Real ranks for the checks of notebook 08: those of the notebook, new ones, or torchrun's."""

from __future__ import annotations

import contextlib
import os
import pickle
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gpulab import parallel
from gpulab.errors import RankError, message_of, shown

# The exception that ends a check at its time limit is raised between two steps of its thread, so
# the thread waits in short intervals.
_POLL_SECONDS = 0.05
_HOST = "127.0.0.1"
# torchrun's first line about a rank that failed
_AGENT = re.compile(r"^.*failed \(exitcode: ", re.MULTILINE)
_CAUSE = re.compile(
    r"^Root Cause.*?^\s*rank\s*: (\d+).*?^\s*exitcode\s*: (-?\d+)", re.MULTILINE | re.DOTALL
)
# A command and its environment.
_Command = tuple[list[str], Mapping[str, str]]


class CrashError(RankError):
    """A rank was ended by a signal, because memory ran out or a library crashed. Failures in Python
    raise exceptions instead.
    """


@contextlib.contextmanager
def ranks_of(least: int) -> Iterator[Any]:
    """Provide the learner's open cluster with at least that many ranks (a variable of the
    notebook), or start one for the check and end it afterwards.
    """
    names = list(vars(sys.modules["__main__"]).values())
    for each in names:
        if isinstance(each, parallel.Ranks) and each.n >= least and each.ready:
            yield each
            return
    with parallel.cluster(n=least) as ranks:
        yield ranks


def torchrun(
    script: str | os.PathLike[str], n: int = 2, *, timeout_seconds: float = 120.0
) -> list[Any]:
    """Run a script of ``Ranks.export_script`` with torchrun on this machine. On Windows, the same
    processes are started without torchrun.

    Parameters
    ----------
    script : path
    n : int
        How many processes.
    timeout_seconds : float
        The run is ended after this long.

    Returns
    -------
    list
        What the function returned, one result per rank.

    Raises
    ------
    RankError
        If the run failed or took too long; the message includes its last output.
    """
    file, processes = Path(script).resolve(), f"{n} process{'es' if n != 1 else ''}"
    # on Windows a process that was killed a moment ago can still hold the file of its output
    with tempfile.TemporaryDirectory(prefix="gpulab-", ignore_cleanup_errors=True) as folder:
        kept, printed = Path(folder) / "results.pickle", Path(folder) / "printed.txt"
        code = _run(_commands(n, [str(file), "--results", str(kept)]), printed, timeout_seconds)
        if code is None:
            raise RankError(
                f"torchrun: {file.name} on {processes} had not ended after {timeout_seconds:g} s; "
                "expected it to end by then. Does a rank wait for a collective that another rank "
                "never calls?"
            )
        if code != 0 or not kept.exists():
            output = printed.read_text(encoding="utf-8", errors="replace")
            crashed = (_root_cause(output) or (0, 0))[1] < 0
            raise (CrashError if crashed else RankError)(
                f"torchrun: {file.name} on {processes} ended with {code}: {_last_words(output)}; "
                "expected results. Fix the function and export it again."
            )
        # written by the learner's own script a moment ago
        results: list[Any] = pickle.loads(kept.read_bytes())
        return results


def _commands(n: int, words: list[str]) -> list[_Command]:
    """Return the commands, with their environments, that start a script in n processes of one
    group: one command for torchrun, or on Windows one for each process, with the variables that
    torchrun would set.

    PyTorch's builds for Windows have no libuv, but torchrun requires it, at least up to 2.13
    (pytorch/pytorch#148283): it ends before it has started a process. ``init_process_group`` does
    not require it there.
    """
    package = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join([package, *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    if sys.platform != "win32":
        start = ["-P", "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={n}"]
        return [([sys.executable, *start, *words], environment)]
    with socket.socket() as free:
        free.bind((_HOST, 0))
        environment |= {"MASTER_ADDR": _HOST, "MASTER_PORT": str(free.getsockname()[1])}
    environment |= {"WORLD_SIZE": str(n), "LOCAL_WORLD_SIZE": str(n)}
    return [
        ([sys.executable, *words], environment | {"RANK": str(rank), "LOCAL_RANK": str(rank)})
        for rank in range(n)
    ]


def _run(commands: Sequence[_Command], printed: Path, seconds: float) -> int | None:
    """Run processes until all have ended or one has failed, then end the others. Return 0, the exit
    code of the failed process, or None if the time is up.
    """
    deadline = time.monotonic() + seconds
    processes: list[subprocess.Popen[bytes]] = []
    try:
        with printed.open("wb") as file:
            for command, environment in commands:
                processes.append(
                    subprocess.Popen(
                        command,
                        stdout=file,
                        stderr=subprocess.STDOUT,
                        env=environment,
                        start_new_session=os.name == "posix",
                    )
                )
        while time.monotonic() < deadline:
            codes = [process.poll() for process in processes]
            if any(codes) or None not in codes:
                return next((code for code in codes if code), 0)
            time.sleep(_POLL_SECONDS)
        return None
    finally:
        for process in processes:
            if process.poll() is None:
                end_below(process.pid)
                process.kill()
            process.wait()


def below(pid: int) -> list[Any]:
    """Return the processes that a process started, directly or indirectly."""
    import psutil

    with contextlib.suppress(psutil.Error):
        return psutil.Process(pid).children(recursive=True)
    return []


def end_below(pid: int) -> int:
    """End the processes that a process started, directly or indirectly; return their number."""
    found = below(pid)
    for each in found:
        with contextlib.suppress(Exception):  # it has ended by itself
            each.kill()
    return len(found)


def _last_words(output: str) -> str:
    """Return the error that a rank ended with, as far as the output shows it."""
    lines = [line.strip() for line in output.splitlines()]
    errors = [
        line.partition("]:")[2] or line
        for line in lines
        if "Error" in line
        and not any(own in line for own in ("torch/distributed", "raise ", "ChildFailedError"))
    ]
    if errors:
        return message_of(errors[0])
    cause = _root_cause(output)
    if cause is None:
        return message_of(lines[-1] if lines else "nothing was printed")
    from gpulab.parallel.engines import ending  # loads torch, which reading reports does not need

    # no rank raised an exception: its last output before torchrun's own lines may show the cause
    own = [line for line in _AGENT.split(output)[0].splitlines() if line.strip()]
    after = f" after printing {shown(own[-1].strip(), 100)}" if own else ""
    return f"rank {cause[0]} {ending(cause[1])}{after}"


def _root_cause(output: str) -> tuple[int, int] | None:
    """Return the rank that failed first and its exit code (negative after a signal) from torchrun's
    summary; None if there is no summary.
    """
    found = _CAUSE.search(output)
    return (int(found[1]), int(found[2])) if found else None
