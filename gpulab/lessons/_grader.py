"""The process that checks kept answers again: one child for each answer, with little time, little memory and an empty folder.

This limits accidents: an endless loop, a full memory, ``sys.exit``, a file that is deleted by mistake. It is not a sandbox: malicious
code can do what the user who started it may do, and code that runs in the process of its own check can forge the outcome. If you do
not trust a class, grade without code, or in a container.

Jobs come on standard input and outcomes go to standard output, a line of JSON each. On Linux each job has a forked child, so that the
libraries are loaded once; elsewhere this process does one job and ends.
"""

from __future__ import annotations

import dataclasses
import gc
import json
import os
import select
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Mapping
from typing import Any

FORKS = sys.platform == "linux"
_GRACE_SECONDS = 4.0  # after a check's own limit, for its end and for what is slow around it
_FILE_BYTES = 64 * 2**20
_OPEN_FILES = 512
_LONGEST_MESSAGE = 1_000
_EXAMPLE_BYTES_PER_SECOND = 20e9
Outcome = dict[str, str]


def main() -> None:
    """Serve jobs until standard input ends."""
    jobs, outcomes = os.fdopen(os.dup(0), encoding="utf-8"), os.fdopen(os.dup(1), "w", encoding="utf-8")
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):  # what an answer prints or reads goes nowhere
        os.dup2(null, descriptor)
    from gpulab.lessons import _loading, _material, content

    # Which of the claims is impossible does not depend on the memory that they are made from; measuring one takes seconds an answer.
    _material._claims = _material._make_claims(_EXAMPLE_BYTES_PER_SECOND)
    for text in jobs:
        job = json.loads(text)
        exercise = content.exercise(job["id"])
        _loading.load(exercise.loads)
        gc.freeze()
        outcome = _in_child(job) if FORKS else _limited(job)
        outcomes.write(json.dumps(outcome) + "\n")
        outcomes.flush()
        if not FORKS:
            return


def _in_child(job: Mapping[str, Any]) -> Outcome:
    """Do a job in a forked child with a folder of its own, and end all that it started."""
    folder = tempfile.mkdtemp(prefix="gpulab-answer-")
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        _be_child(job, folder, writer)
    os.close(writer)
    try:
        said = _read_line(reader, time.monotonic() + job["seconds"] + _GRACE_SECONDS)
    finally:
        os.close(reader)
        status = _end(child)
        shutil.rmtree(folder, ignore_errors=True)
    if said is None:
        return {"state": "wrong", "message": f"It did not finish within {job['seconds']:g} s, and was ended."}
    try:
        found = json.loads(said)
        return {"state": str(found["state"]), "message": str(found["message"])[:_LONGEST_MESSAGE]}
    except (ValueError, TypeError, KeyError):
        how = f"by signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else f"with the code {os.waitstatus_to_exitcode(status)}"
        return {"state": "wrong", "message": f"It ended the process that checked it, {how}. Did it use too much memory, or call exit?"}


def _be_child(job: Mapping[str, Any], folder: str, writer: int) -> None:
    """Limit this process, do the job, say the outcome, end; nothing of the parent's is left open."""
    code = 1
    try:
        os.setsid()
        os.chdir(folder)
        for name in ("HOME", "TMPDIR", "IPYTHONDIR"):
            os.environ[name] = folder
        os.environ["GPULAB_PROGRESS"] = os.path.join(folder, "progress.json")  # noqa: PTH118
        tempfile.tempdir = folder
        os.closerange(3, writer)
        os.closerange(writer + 1, 65_536)
        os.write(writer, (json.dumps(_limited(job)) + "\n").encode())
        code = 0
    finally:
        os._exit(code)


def _limited(job: Mapping[str, Any]) -> Outcome:
    _limit(int(job["memory_bytes"]), float(job["seconds"]))
    try:
        return _again(job)
    except MemoryError:
        return {"state": "wrong", "message": "It took more memory than an answer may."}
    except SystemExit:
        return {"state": "wrong", "message": "Its source called exit."}
    except BaseException as error:  # all of it is the answer's
        from gpulab.lessons import checking

        return {"state": "wrong", "message": f"Its source does not run: {checking.explain(error)}."[:_LONGEST_MESSAGE]}


def _limit(memory_bytes: int, seconds: float) -> None:
    """Set the limits that this system has; on top of what the libraries take already."""
    try:
        import resource
    except ImportError:  # Windows has none: time is limited all the same
        return
    wanted = {
        "RLIMIT_AS": _address_space() + memory_bytes,
        "RLIMIT_FSIZE": _FILE_BYTES,
        "RLIMIT_CORE": 0,
        "RLIMIT_NOFILE": _OPEN_FILES,
        "RLIMIT_CPU": int(4 * (seconds + _GRACE_SECONDS)) + 1,
    }
    for name, value in wanted.items():
        kind = getattr(resource, name, None)
        if kind is None:
            continue
        hard = resource.getrlimit(kind)[1]
        most = value if hard == resource.RLIM_INFINITY else min(value, hard)
        try:
            resource.setrlimit(kind, (most, most))
        except (ValueError, OSError):  # macOS refuses some
            continue


def _address_space() -> int:
    try:
        with open("/proc/self/statm", encoding="ascii") as file:  # noqa: PTH123
            return int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, AttributeError):
        return 2**40 if sys.platform == "darwin" else 8 * 2**30


def _again(job: Mapping[str, Any]) -> Outcome:
    """Rebuild the answer, put what the student's machine gave into its place, and run the check."""
    from gpulab.lessons import _answers, _checks, content

    exercise = content.exercise(job["id"])
    exercise = dataclasses.replace(exercise, limit_seconds=float(job["seconds"]))
    try:
        if exercise.seen is not None:
            saw = _answers.restore_result(job.get("seen"))
            if not isinstance(saw, exercise.seen.kind):
                raise _answers.NotKeptError("the file is damaged here")
            exercise.seen.put(saw)
        answer = _answers.restore(job["kept"], exercise.id, run_code=bool(job["run_code"]))
    except _answers.NotKeptError as error:
        return {"state": "open", "message": str(error)}
    result = _checks._examine(exercise, answer)
    return {"state": result.state, "message": result.message[:_LONGEST_MESSAGE]}


def _read_line(reader: int, deadline: float) -> str | None:
    """Return what came before the first line's end or the end of all; None where the time was up."""
    said = b""
    while not said.endswith(b"\n"):
        ready, _, _ = select.select([reader], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            return None
        more = os.read(reader, 65_536)
        if not more or len(said) > 1_000_000:
            break
        said += more
    return said.decode("utf-8", "replace")


def _end(child: int) -> int:
    """End a child and what it started; return its wait status."""
    import psutil

    try:
        started = psutil.Process(child).children(recursive=True)
    except psutil.Error:
        started = []
    for each in started:
        _kill(each.pid)
    try:
        os.killpg(child, signal.SIGKILL)  # those that lost their parent, and stayed in its group
    except (ProcessLookupError, PermissionError):
        _kill(child)
    return os.waitpid(child, 0)[1]


def _kill(process: int) -> None:
    try:
        os.kill(process, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return


if __name__ == "__main__":
    main()
