"""The processes that check kept answers again. A student's code runs only in a box, unless the
instructor trusts it.

``grading``, in the instructor's process, starts the *grading process*, which loads the libraries
once and forks a *judge* for each answer. The judge has limited memory and time, and runs the check.
A plain value is decoded there, and a kernel is simulated from its text. Any other function lives in
an *answer process*, in a box. The check calls it through messages of plain values, so the function
controls only the values that it sends back. A check that needs the live object (``Exercise.live``)
runs in the answer process too. The student's code could then forge the outcome, so such an outcome
is marked. A message is a line of JSON with the random number of its job, and is parsed strictly.

Boxes and forks are used only on Linux. Elsewhere the grading process is itself the judge and the
answer process. It ends after one answer, and a new one is started for the next.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
import json
import os
import queue
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from gpulab.lessons import _answers, _box, checking, content
from gpulab.lessons.content import Exercise, NotAttempted, Nothing, Refused
from gpulab.lessons.parallel_checks import below, end_below

FORKS = sys.platform == "linux"
OPEN, CODE, CHECK = "open", "code", "check"
LOST = "the process that grades ended, or did not answer; grade again"
NO_BOX = "the answer is code, and there is no box to run it in on this machine"
# added to the time limit of an answer, for importing the libraries of its check on a busy machine
_START_SECONDS = 120.0
_GRACE_SECONDS = 4.0  # added to a check's own limit, for its end and its overhead
_POLL_SECONDS = 0.1
_LIMITS = {"FSIZE": 64 * 2**20, "CORE": 0, "NOFILE": 512}
_MOST_RECEIVED = 32 * 2**20  # bytes of one message
_LONGEST_MESSAGE = 1_000
_EXAMPLE_BYTES_PER_SECOND = 20e9
# Environment variables that the processes inherit. The variables in ``_OWN`` name folders of their
# own instead.
_PASSED_ON = (
    "PATH",
    "LANG",
    "LC_ALL",
    "LD_LIBRARY_PATH",
    "DYLD_LIBRARY_PATH",
    "SYSTEMROOT",
    "SYSTEMDRIVE",
    "COMSPEC",
    "PATHEXT",
)
_OWN = ("HOME", "USERPROFILE", "TMPDIR", "TEMP", "TMP", "GPULAB_LOCK_DIR", "IPYTHONDIR")
Outcome = dict[str, str]


def _parsed(text: str | bytes, job: Mapping[str, Any], *forms: set[str]) -> dict[str, Any]:
    """Return the content of a message. Raise ``ValueError`` unless it is one JSON object of this
    job, with exactly the keys of one of the forms.
    """
    try:
        found = json.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if (
        not isinstance(found, dict)
        or found.pop("job", None) != job["job"]
        or set(found) not in forms
    ):
        raise ValueError("not a message of this job")
    return found


def _send(file: IO[str], job: Mapping[str, Any], **parts: Any) -> None:
    print(json.dumps({"job": job["job"], **parts}), file=file, flush=True)


def is_code(exercise: Exercise, kept: Mapping[str, Any]) -> bool:
    """Return whether a kept answer is code: the source of a function, or a script."""
    return exercise.answer_is_file or kept.get("kind") in ("code", "file")


@contextlib.contextmanager
def grading() -> Iterator[Callable[[Mapping[str, Any]], Outcome]]:
    """Yield a function that returns the outcome of a job. The function starts the grading process
    when it is first called, and again if the process has ended.
    """
    process: subprocess.Popen[str] | None = None
    lines: queue.Queue[str] = queue.Queue()
    folder = tempfile.TemporaryDirectory(prefix="gpulab-grades-", ignore_cleanup_errors=True)

    def start() -> subprocess.Popen[str]:
        nonlocal process, lines
        end()
        lines = queue.Queue()
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", "from gpulab.lessons._grader import main; main()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            encoding="utf-8",
            cwd=folder.name,
            env={
                **{name: os.environ[name] for name in _PASSED_ON if name in os.environ},
                **dict.fromkeys(_OWN, folder.name),
                "GPULAB_PROGRESS": str(Path(folder.name, "progress.json")),
                "USER": "student",
                # Only the folder of gpulab, not this process's whole path: a file in a folder of
                # reports must not be imported.
                "PYTHONPATH": str(Path(__file__).resolve().parents[2]),
                "PYTHONDONTWRITEBYTECODE": "1",
                # No GPU: a right answer is right on any processor. Few threads and arenas: the
                # memory of each thread's arena would count as the answer's.
                "CUDA_VISIBLE_DEVICES": "",
                "OMP_NUM_THREADS": "2",
                "MALLOC_ARENA_MAX": "2",
            },
            start_new_session=os.name == "posix",
        )
        threading.Thread(target=_listen, args=(process, lines), daemon=True).start()
        return process

    def end() -> None:
        if process is not None:
            end_below(process.pid)
            process.kill()
            process.wait()

    def ask(job: Mapping[str, Any]) -> Outcome:
        job = {**job, "job": secrets.token_hex(16)}
        alive = process if process is not None and process.poll() is None else None
        try:
            print(json.dumps(job), file=(alive or start()).stdin, flush=True)
            answer = lines.get(timeout=float(job["seconds"]) + _START_SECONDS)
            found = _parsed(answer, job, {"state", "message", "by"})
        except (OSError, queue.Empty, ValueError):
            end()
            return {"state": OPEN, "message": LOST, "by": ""}
        if not FORKS:
            end()
        return {name: str(value) for name, value in found.items()}

    with folder:
        try:
            yield ask
        finally:
            end()


def _listen(process: subprocess.Popen[str], lines: queue.Queue[str]) -> None:
    for text in process.stdout or ():
        lines.put(text)
    lines.put("")  # the process has ended: ``ask`` need not wait for its timeout


# -- the grading process
# --------------------------------------------------------------------------------------------------


def main() -> None:
    """Serve jobs until standard input ends."""
    jobs = os.fdopen(os.dup(0), encoding="utf-8")
    outcomes = os.fdopen(os.dup(1), "w", encoding="utf-8")
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):  # what an answer prints or reads goes to the null device
        os.dup2(null, descriptor)
    box = False
    if FORKS:
        _box.adopt_orphans()
        box = _box.works(tempfile.mkdtemp())
    # The same claim is impossible at any memory bandwidth, and a measured bandwidth would cost
    # seconds for each answer.
    content.KEPT["claims"] = _EXAMPLE_BYTES_PER_SECOND
    for text in jobs:
        job = {**json.loads(text), "box": box}
        exercise = dataclasses.replace(
            content.exercise(job["id"]), limit_seconds=float(job["seconds"])
        )
        if is_code(exercise, job["kept"]) and not (box or job["trust"]):
            _send(outcomes, job, state=OPEN, message=NO_BOX, by="")
            continue
        checking.load(exercise)
        gc.freeze()
        _send(outcomes, job, **(_in_judge(job, exercise) if FORKS else _judge(job, exercise)))
        if not FORKS:
            return


def _in_judge(job: Mapping[str, Any], exercise: Exercise) -> Outcome:
    """Do a job in a forked judge with a folder of its own, then end all its processes."""
    folder = tempfile.mkdtemp(prefix="gpulab-answer-")

    def work(file: IO[str]) -> None:
        _move(folder)
        _limit(int(job["memory_bytes"]), float(job["seconds"]))
        _send(file, job, **_judge(job, exercise))

    judge = _Child(work)
    try:
        return _parsed(
            judge.line(float(job["seconds"]) + 2 * _GRACE_SECONDS, job["memory_bytes"]),
            job,
            {"state", "message", "by"},
        )
    except Refused as refusal:
        return {"state": "wrong", "message": str(refusal), "by": CHECK}
    finally:
        deadline = time.monotonic() + _GRACE_SECONDS
        # also processes whose parent has ended
        while end_below(os.getpid()) and time.monotonic() < deadline:
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
        shutil.rmtree(folder, ignore_errors=True)


def _move(folder: str) -> None:
    """Change to a folder and make it the home. Libraries may have stored the path of the previous
    home in other environment variables, so it is replaced in all of them.
    """
    before = os.environ["HOME"]
    os.environ.update({name: value.replace(before, folder) for name, value in os.environ.items()})
    tempfile.tempdir = folder
    os.chdir(folder)


def _limit(memory_bytes: int, seconds: float) -> None:
    """Limit the resources of this process. The memory limit is added to what the libraries use
    already.
    """
    import resource

    for name, value in {
        **_LIMITS,
        "AS": _memory_bytes("self")[0] + memory_bytes,
        "CPU": int(4 * (seconds + _GRACE_SECONDS)) + 1,
    }.items():
        kind = getattr(resource, f"RLIMIT_{name}")
        limit = resource.getrlimit(kind)[1]
        most = value if limit == resource.RLIM_INFINITY else min(value, limit)
        resource.setrlimit(kind, (most, most))


class _Child:
    """A forked process that runs ``work`` with a file. Its parent sends and receives lines at the
    other end of that file.
    """

    def __init__(self, work: Callable[[IO[str]], None]) -> None:
        self._socket, its = socket.socketpair()
        self._received, self._next_look, self._own = b"", 0.0, _memory_bytes("self")[1]
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.setsid()
                os.closerange(3, its.fileno())
                os.closerange(its.fileno() + 1, 65_536)
                work(its.makefile("rw", encoding="utf-8"))
                os._exit(0)
            finally:
                os._exit(1)
        its.close()

    def ask(self, content: Any) -> None:
        """Send a line of JSON. A failure is ignored: if the process does not read the line,
        ``line`` reports that there is no answer.
        """
        self._socket.settimeout(_START_SECONDS)
        with contextlib.suppress(OSError):
            self._socket.sendall((json.dumps(content) + "\n").encode())

    def line(self, seconds: float, memory_bytes: int = 0) -> bytes:
        """Return the next line. Raise ``Refused`` if the process ends, if no line arrives in time,
        or if the processes below it use more than ``memory_bytes`` in all (0: no limit).
        """
        deadline = time.monotonic() + seconds + _GRACE_SECONDS
        self._socket.settimeout(_POLL_SECONDS)
        while b"\n" not in self._received:
            # Not at every call: reading the memory takes milliseconds, and a check may call a
            # thousand times.
            if memory_bytes and time.monotonic() > self._next_look:
                self._next_look = time.monotonic() + _POLL_SECONDS
                if (
                    sum(max(0, _memory_bytes(each.pid)[1] - self._own) for each in below(self.pid))
                    > memory_bytes
                ):
                    raise Refused("It took more memory than the limit for an answer.")
            if time.monotonic() > deadline or len(self._received) > _MOST_RECEIVED:
                raise Refused(f"It did not finish within {seconds:g} s, and was ended.")
            with contextlib.suppress(TimeoutError, ConnectionResetError):
                more = self._socket.recv(65_536)
                if not more:
                    raise Refused(
                        f"It ended its process, {self._ending()}. Did it use too much memory, or "
                        "call exit?"
                    )
                self._received += more
        line, _, self._received = self._received.partition(b"\n")
        return line

    def _ending(self) -> str:
        import psutil

        code: int | None = None
        with contextlib.suppress(psutil.Error):
            code = psutil.Process(self.pid).wait(_GRACE_SECONDS)
        code = code - 256 if code and code > 128 else code  # in a box, modulo 256
        return f"by signal {-code}" if code and code < 0 else f"with the code {code}"


def _memory_bytes(pid: int | str) -> tuple[int, int]:
    """Return the bytes of a process's address space and of its unshared memory; zeros if it has
    ended.
    """
    try:
        whole, resident, shared = map(int, Path(f"/proc/{pid}/statm").read_text().split()[:3])
    except (OSError, ValueError):
        return 0, 0
    return whole * os.sysconf("SC_PAGE_SIZE"), (resident - shared) * os.sysconf("SC_PAGE_SIZE")


# -- the judge
# --------------------------------------------------------------------------------------------------


def _judge(job: Mapping[str, Any], exercise: Exercise) -> Outcome:
    """Restore the result of the student's machine that the check compares with, then check the
    answer.
    """
    code = is_code(exercise, job["kept"])
    by = CODE if code and (exercise.live or not FORKS) else CHECK
    try:
        if exercise.seen is not None:
            saw = _answers.restore_result(job.get("seen"))
            if not isinstance(saw, exercise.seen.kind):
                raise _answers.NotKeptError("the file is damaged here")
            content.KEPT[exercise.seen.name] = saw
        if exercise.answer_is_file and job["kept"].get("kind") != "file":
            raise _answers.NotKeptError("the report has the name of a file, but not its text")
        if by == CODE and FORKS:
            found = _answered(_in_answer(job, exercise), job, {"state", "message"})
            if found["state"] not in ("passed", "wrong", "not attempted"):
                raise Refused(_STRAY)
            return {
                "state": found["state"],
                "message": str(found["message"])[:_LONGEST_MESSAGE],
                "by": by,
            }
        answer = (
            function(job, exercise)
            if code and FORKS
            else _restored(job, exercise, _answers.restore)
        )
    except _answers.NotKeptError as error:
        return {"state": OPEN, "message": str(error), "by": ""}
    except Refused as refusal:
        return {"state": "wrong", "message": str(refusal), "by": by}
    result = checking.examine(exercise, answer)
    return {"state": result.state, "message": result.message[:_LONGEST_MESSAGE], "by": by}


_STRAY = "It wrote text of its own among the messages between its process and the check."


class function:  # noqa: N801 - as messages name what a learner wrote
    """A student's function as its check sees it: a call is a message to the process in which the
    function lives.

    ``py_func`` is rebuilt from the source so that the simulator can read it; it is never called.
    """

    def __init__(self, job: Mapping[str, Any], exercise: Exercise) -> None:
        self._job, self._exercise = job, exercise
        self._child: _Child | None = None
        self.py_func = _restored(job, exercise, _answers.outline)
        self.__code__ = getattr(self.py_func, "__code__", None)

    def __call__(self, *args: Any) -> Any:
        if self._child is None:
            self._child = _in_answer(self._job, self._exercise)
        self._child.ask([_answers.Encoder(message=True).encode(each) for each in args])
        found = _answered(self._child, self._job, {"value", "after"})
        for place, after in found["after"]:
            if isinstance(args[place], dict):
                args[place].clear()
                args[place].update(_answers.decode(after))
            elif isinstance(args[place], list) or hasattr(args[place], "shape"):
                args[place][:] = _answers.decode(after)
        return _answers.decode(found["value"])


def _answered(child: _Child, job: Mapping[str, Any], form: set[str]) -> dict[str, Any]:
    """Return the next message of an answer's process; if it reports an error, raise that error."""
    line = child.line(job["seconds"])
    try:
        found = _parsed(line, job, form, {"error", "message"})
    except ValueError as error:
        raise Refused(_STRAY) from error
    if "error" in found:
        kind = {each.__name__: each for each in (NotAttempted, Nothing)}.get(
            found["error"], Refused
        )
        raise kind(str(found["message"])[:_LONGEST_MESSAGE])
    return found


# -- the answer's process
# --------------------------------------------------------------------------------------------------


def _in_answer(job: Mapping[str, Any], exercise: Exercise) -> _Child:
    """Start the process of an answer: in a box, unless the instructor trusts the code."""
    folder = tempfile.mkdtemp()

    def work(file: IO[str]) -> None:
        if job["box"]:
            _box.enter(folder)
            _move(str(Path.cwd()))
        for text in [""] if exercise.live else file:
            try:
                parts = reply(text)
            except (Refused, NotAttempted, _answers.NotKeptError) as error:
                parts = {"error": type(error).__name__, "message": str(error)}
            except BaseException as error:
                parts = {
                    "error": "",
                    "message": f"Your code ended with {type(error).__name__}. Return a value "
                    "instead.",
                }
            _send(file, job, **parts)

    @functools.cache
    def answer() -> Any:
        return _restored(job, exercise, _answers.restore)

    def reply(text: str) -> dict[str, Any]:
        if exercise.live:
            result = checking.examine(exercise, answer())
            return {"state": result.state, "message": result.message}
        given = json.loads(text)
        args = [_answers.decode(each) for each in given]
        value = _answers.Encoder(message=True).encode(checking.call(answer(), *args))
        after = [
            (k, now)
            for k, each in enumerate(args)
            if (now := _answers.Encoder(message=True).encode(each)) != given[k]
        ]
        return {"value": value, "after": after}

    return _Child(work)


def _restored(job: Mapping[str, Any], exercise: Exercise, read: Callable[[Any, str], Any]) -> Any:
    """Return a kept answer, restored by ``read``. Any error but ``NotKeptError`` comes from the
    answer's own source, so it becomes ``Refused``.
    """
    try:
        return read(job["kept"], exercise.id)
    except _answers.NotKeptError:
        raise
    except BaseException as error:
        raise Refused(
            f"Its source does not run: {checking.explain(error)}."[:_LONGEST_MESSAGE]
        ) from error
