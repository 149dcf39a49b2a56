"""Run a script with torchrun and collect the results of its ranks, for notebook 08."""

from __future__ import annotations

import contextlib
import os
import pickle
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gpulab.errors import RankError, message_of, shown

_SLICE_SECONDS = 0.2  # well within the second that a check's end waits


def torchrun(
    script: str | os.PathLike[str], n: int = 2, *, timeout_seconds: float = 120.0
) -> list[Any]:
    """Run a script of ``Ranks.export_script`` with torchrun on this machine; on Windows, without
    torchrun, in the same way.

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
    with tempfile.TemporaryDirectory(prefix="gpulab-") as folder:
        kept = Path(folder) / "results.pickle"
        command = [*_starter(n), str(file), "--results", str(kept)]
        package = str(Path(__file__).resolve().parents[2])
        path = os.pathsep.join([package, *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
        try:
            code, said = _run(command, environment, timeout_seconds)
        except subprocess.TimeoutExpired as error:
            raise RankError(
                f"torchrun: {file.name} on {processes} had not ended after {timeout_seconds:g} s; "
                "expected it to. Does a rank wait for a collective that another one never calls?"
            ) from error
        if code != 0 or not kept.exists():
            crashed = (_root_cause(said) or (0, 0))[1] < 0
            raise (CrashError if crashed else RankError)(
                f"torchrun: {file.name} on {processes} ended with {code}: {_last_words(said)}; "
                "expected results. Fix the function and export it again."
            )
        # written by the learner's own script a moment ago
        results: list[Any] = pickle.loads(kept.read_bytes())
        return results


def _starter(n: int) -> list[str]:
    """Return what starts a script in n processes: torchrun, or on Windows, where it cannot run,
    what tells them the same.
    """
    if sys.platform == "win32":
        return [sys.executable, "-P", str(Path(__file__).with_name("_torchrun_launch.py")), str(n)]
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={n}"]


def _run(command: Sequence[str], environment: Mapping[str, str], seconds: float) -> tuple[int, str]:
    """Return how a process ended and what it printed; TimeoutExpired where that does not come in
    time.

    What ends a check is raised in its thread between two steps, so it waits in slices: the end
    would wait for a single long call.
    """
    deadline = time.monotonic() + seconds
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
        start_new_session=os.name == "posix",
    )
    try:
        while True:
            try:
                said = process.communicate(timeout=_SLICE_SECONDS)[0]
                return process.returncode, said
            except subprocess.TimeoutExpired:
                if time.monotonic() > deadline:
                    raise
    finally:
        if process.poll() is None:
            end_below(process.pid)
            process.kill()
            process.wait()


def below(pid: int) -> list[Any]:
    """Return the processes that one started, and those that they started."""
    import psutil

    with contextlib.suppress(psutil.Error):
        return psutil.Process(pid).children(recursive=True)
    return []


def end_below(pid: int) -> int:
    """End the processes below one; return how many there were."""
    found = below(pid)
    for each in found:
        with contextlib.suppress(Exception):  # it has ended by itself
            each.kill()
    return len(found)


def _last_words(said: str) -> str:
    """Return the error that a rank ended with, as far as it can be told from what was printed."""
    lines = [line.strip() for line in said.splitlines()]
    errors = [
        line.partition("]:")[2] or line
        for line in lines
        if "Error" in line
        and not any(own in line for own in ("torch/distributed", "raise ", "ChildFailedError"))
    ]
    if errors:
        return message_of(errors[0])
    cause = _root_cause(said)
    # no rank raised anything: what it printed last, before torchrun's own lines, may tell why
    if cause is not None:
        from gpulab.parallel.engines import ending

        own = [line for line in _AGENT.split(said)[0].splitlines() if line.strip()]
        return f"rank {cause[0]} {ending(cause[1])}" + (
            f" after printing {shown(own[-1].strip(), 100)}" if own else ""
        )
    return message_of(lines[-1] if lines else "nothing was printed")


# torchrun's first line about a rank that failed
_AGENT = re.compile(r"^.*failed \(exitcode: ", re.MULTILINE)
_CAUSE = re.compile(
    r"^Root Cause.*?^\s*rank\s*: (\d+).*?^\s*exitcode\s*: (-?\d+)", re.MULTILINE | re.DOTALL
)


def _root_cause(said: str) -> tuple[int, int] | None:
    """Return the rank that failed first and its exit code, a negative one after a signal, where
    torchrun's summary says so.
    """
    found = _CAUSE.search(said)
    return (int(found[1]), int(found[2])) if found else None


class CrashError(RankError):
    """A rank was ended by a signal: memory that ran out, or a library that crashed; Python's own
    failures are exceptions.
    """
