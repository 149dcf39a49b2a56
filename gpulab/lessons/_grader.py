"""The processes that check kept answers again, none of which runs a student's code except in a box.

``Grader``, in the instructor's process, starts the *grading process*, which loads the libraries once and forks a *judge* for each answer.
The judge has limited memory and time, and runs the check. A plain value is decoded there, and a kernel is simulated from its text. Any
other function lives in an *answer process*, in a box: the check calls it through messages of plain values, so it decides nothing but what
it returns. A check that needs the live object (``Exercise.live``) runs in the answer process too, and that code can forge the outcome of
its own check; such an outcome is marked. A message is a line of JSON with the random number of its job, and is parsed strictly.

Only Linux has boxes and forks. Elsewhere the grading process is the judge and the answer process of one answer, and ends.
"""

from __future__ import annotations

import builtins
import contextlib
import dataclasses
import gc
import json
import os
import queue
import secrets
import select
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from gpulab.lessons._torchrun import below, end_below
from gpulab.lessons.content import Exercise, Refused

FORKS = sys.platform == "linux"
OPEN, CODE, CHECK = "open", "code", "check"
LOST = "the process that grades ended, or did not answer; grade again"
_START_SECONDS = 120.0  # beyond the limit of an answer: importing the libraries of its check, on a crowded machine
_GRACE_SECONDS = 4.0  # after a check's own limit, for its end and for what is slow around it
_POLL_SECONDS = 0.1
_END_SECONDS = 5.0
_LIMITS = {"FSIZE": 64 * 2**20, "CORE": 0, "NOFILE": 512}
_MOST_SAID = 32 * 2**20  # bytes of one message
_LONGEST_MESSAGE = 1_000
_EXAMPLE_BYTES_PER_SECOND = 20e9
# What the processes get of this one's environment; their home and their temporary folder are their own.
_PASSED_ON = ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "SYSTEMROOT", "SYSTEMDRIVE", "COMSPEC", "PATHEXT")
Outcome = dict[str, str]


def parsed(text: str | bytes, job: str, *forms: set[str]) -> dict[str, Any]:
    """Return the content of a message.

    Raises
    ------
    ValueError
        If it is not one JSON object with the job's number and exactly the keys of one of the forms.
    """
    try:
        found = json.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if not isinstance(found, dict) or found.pop("job", None) != job or set(found) not in forms:
        raise ValueError("not a message of this job")
    return found


# -- the instructor's process ------------------------------------------------------------------------------------------------


class Grader:
    """The grading process; ``with Grader() as ask: ask(job)``. It is started when it is needed, and again if it has ended."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._lines: queue.Queue[str] = queue.Queue()
        self._boxed = False
        self._folder = ""

    def __enter__(self) -> Grader:
        self._folder = tempfile.mkdtemp(prefix="gpulab-grades-")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def boxed(self) -> bool:
        """Whether code can run in a box here."""
        with contextlib.suppress(OSError, queue.Empty, ValueError):
            self._started()
        return self._boxed

    def __call__(self, job: Mapping[str, Any]) -> Outcome:
        """Return the outcome of one job."""
        number = secrets.token_hex(16)
        try:
            process = self._started()
            assert process.stdin is not None
            process.stdin.write(json.dumps({**job, "job": number, "box": self._boxed}) + "\n")
            process.stdin.flush()
            found = parsed(self._lines.get(timeout=float(job["seconds"]) + _START_SECONDS), number, {"state", "message", "by"})
        except (OSError, queue.Empty, ValueError):
            self._stop()
            return {"state": OPEN, "message": LOST, "by": ""}
        if not FORKS:
            self._stop()
        return {name: str(value) for name, value in found.items()}

    def _started(self) -> subprocess.Popen[str]:
        if self._process is None or self._process.poll() is not None:
            self._stop()
            number = secrets.token_hex(16)
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", "from gpulab.lessons._grader import main; main()", number],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, encoding="utf-8", cwd=self._folder,
                env=_environment(self._folder), start_new_session=os.name == "posix",
            )  # fmt: skip
            threading.Thread(target=_listen, args=(self._process, self._lines), daemon=True).start()
            self._boxed = parsed(self._lines.get(timeout=_START_SECONDS), number, {"box"})["box"] is True
        return self._process

    def _stop(self) -> None:
        """End the process and all that it started."""
        if self._process is not None:
            end_below(self._process.pid)
            self._process.kill()
            self._process.wait()
        self._process, self._lines = None, queue.Queue()


def _listen(process: subprocess.Popen[str], lines: queue.Queue[str]) -> None:
    assert process.stdout is not None
    for text in process.stdout:
        lines.put(text)
    lines.put("")  # it has ended: nobody waits for the rest of the time


def _environment(folder: str) -> dict[str, str]:
    passed = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    return {
        **passed,
        **dict.fromkeys(("HOME", "USERPROFILE", "TMPDIR", "TEMP", "TMP", "GPULAB_LOCK_DIR", "IPYTHONDIR"), folder),
        "GPULAB_PROGRESS": str(Path(folder, "progress.json")),
        "USER": "student",
        # Not this process's whole path: what lies in a folder of reports must not be imported.
        "PYTHONPATH": str(Path(__file__).resolve().parents[2]),
        "PYTHONDONTWRITEBYTECODE": "1",
        # A right answer is right on any processor; and each thread's arena would count as memory that the answer takes.
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "2",
        "MALLOC_ARENA_MAX": "2",
    }


# -- the grading process -----------------------------------------------------------------------------------------------------


def main() -> None:
    """Serve jobs until standard input ends."""
    jobs, outcomes = os.fdopen(os.dup(0), encoding="utf-8"), os.fdopen(os.dup(1), "w", encoding="utf-8")
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):  # what an answer prints or reads goes nowhere
        os.dup2(null, descriptor)
    box = False
    if FORKS:
        from gpulab.lessons import _box

        _box.adopt_orphans()
        with tempfile.TemporaryDirectory() as folder:
            box = _box.works(folder)
    print(json.dumps({"job": sys.argv[1], "box": box}), file=outcomes, flush=True)
    from gpulab.lessons import _loading, _material, content

    # Which of the claims is impossible does not depend on the memory that they are made from; measuring one takes seconds an answer.
    _material._claims = _material._make_claims(_EXAMPLE_BYTES_PER_SECOND)
    for text in jobs:
        job = json.loads(text)
        _loading.load(content.exercise(job["id"]).loads)
        gc.freeze()
        outcome = _in_judge(job) if FORKS else _judge(job)
        print(json.dumps({"job": job["job"], **outcome}), file=outcomes, flush=True)
        if not FORKS:
            return


def _in_judge(job: Mapping[str, Any]) -> Outcome:
    """Do a job in a forked judge with a folder of its own, and end all that was started for it."""
    folder = tempfile.mkdtemp(prefix="gpulab-answer-")

    def work(_: int, told: int) -> None:
        _move(folder)
        _limit(int(job["memory_bytes"]), float(job["seconds"]))
        _tell(told, job, **_judge(job))

    judge = _Child(work)
    try:
        found = parsed(judge.line(float(job["seconds"]) + 2 * _GRACE_SECONDS), job["job"], {"state", "message", "by"})
        return {"state": found["state"], "message": found["message"][:_LONGEST_MESSAGE], "by": found["by"]}
    except Refused as refusal:
        return {"state": "wrong", "message": str(refusal), "by": CHECK}
    finally:
        judge.close()
        _end_all()
        shutil.rmtree(folder, ignore_errors=True)


def _move(folder: str) -> None:
    """Work in a folder; what the libraries have written into the environment about the folder before moves, too."""
    before = os.environ["HOME"]
    os.environ.update({name: value.replace(before, folder) for name, value in os.environ.items()})
    tempfile.tempdir = folder
    os.chdir(folder)


def _limit(memory_bytes: int, seconds: float) -> None:
    """Limit this process, in addition to what the libraries take already."""
    import resource

    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    for name, value in {**_LIMITS, "AS": taken + memory_bytes, "CPU": int(4 * (seconds + _GRACE_SECONDS)) + 1}.items():
        kind = getattr(resource, f"RLIMIT_{name}")
        hard = resource.getrlimit(kind)[1]
        most = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (most, most))


def _end_all() -> None:
    """End all processes below this one; those that lost their parent are below it, too."""
    deadline = time.monotonic() + _END_SECONDS
    while end_below(os.getpid()) and time.monotonic() < deadline:
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.005)


class _Child:
    """A forked process that does some work with two pipes, one to read from and one to write to."""

    def __init__(self, work: Callable[[int, int], None]) -> None:
        import psutil

        asked, self._ask = os.pipe()
        self._told, told = os.pipe()
        self._said, self._look = b"", 0.0
        self._own = _private_bytes(psutil.Process())
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.setsid()
                low, high = sorted((asked, told))
                for first, last in ((3, low), (low + 1, high), (high + 1, 65_536)):
                    os.closerange(first, last)
                work(asked, told)
                os._exit(0)
            finally:
                os._exit(1)
        os.close(asked)
        os.close(told)

    def ask(self, text: str) -> None:
        """Send a line; not more than what it takes at once, so that a process that reads nothing stops nobody."""
        data = (text + "\n").encode()
        with contextlib.suppress(BrokenPipeError):  # it has ended, as the next line tells
            while data:
                if select.select([], [self._ask], [], _POLL_SECONDS)[1]:
                    data = data[os.write(self._ask, data[: select.PIPE_BUF]) :]

    def line(self, seconds: float, memory_bytes: int = 0) -> bytes:
        """Return the next line; ``Refused`` if there is none in time, or if all below it take more memory (0: as much as they like)."""
        import psutil

        deadline = time.monotonic() + seconds + _GRACE_SECONDS
        while b"\n" not in self._said:
            ready, _, _ = select.select([self._told], [], [], _POLL_SECONDS)
            if memory_bytes and time.monotonic() > self._look:  # which takes milliseconds, and a check may call a thousand times
                self._look = time.monotonic() + _POLL_SECONDS
                if sum(max(0, _private_bytes(each) - self._own) for each in below(self.pid)) > memory_bytes:
                    raise Refused("It took more memory than an answer may.")
            if not ready and time.monotonic() > deadline:
                raise Refused(f"It did not finish within {seconds:g} s, and was ended.")
            more = os.read(self._told, 65_536) if ready else b""
            if ready and not more:
                code = None
                with contextlib.suppress(psutil.Error):
                    code = psutil.Process(self.pid).wait(_END_SECONDS)
                code = code - 256 if code and code > 128 else code  # that of a box is all above zero
                how = f"by signal {-code}" if code and code < 0 else f"with the code {code}"
                raise Refused(f"It ended its process, {how}. Did it use too much memory, or call exit?")
            self._said += more
            if len(self._said) > _MOST_SAID:
                raise Refused("What it returned is too large.")
        line, _, self._said = self._said.partition(b"\n")
        return line

    def close(self) -> None:
        """Close the pipes, at which the process ends if it waits."""
        os.close(self._ask)
        os.close(self._told)


def _private_bytes(process: Any) -> int:
    import psutil

    with contextlib.suppress(psutil.Error):
        memory = process.memory_info()
        return int(memory.rss - memory.shared)
    return 0


def _tell(to: int, job: Mapping[str, Any], **parts: Any) -> None:
    with open(to, "w", encoding="utf-8", closefd=False) as file:  # noqa: PTH123  (a pipe)
        file.write(json.dumps({"job": job["job"], **parts}) + "\n")


# -- the judge ---------------------------------------------------------------------------------------------------------------


def _judge(job: Mapping[str, Any]) -> Outcome:
    """Put what the student's machine gave into its place, and run the check."""
    from gpulab.lessons import _answers, _checks, content

    exercise = dataclasses.replace(content.exercise(job["id"]), limit_seconds=float(job["seconds"]))
    by = CODE if is_code(exercise, job["kept"]) and (exercise.live or not FORKS) else CHECK
    try:
        if exercise.seen is not None:
            saw = _answers.restore_result(job.get("seen"))
            if not isinstance(saw, exercise.seen.kind):
                raise _answers.NotKeptError("the file is damaged here")
            exercise.seen.put(saw)
        if exercise.answer_is_file and job["kept"].get("kind") != "file":
            raise _answers.NotKeptError("the report has the name of a file, but not its text")
        if by == CODE and FORKS:
            found = _parsed_answer(_in_answer(job, exercise), job, {"state", "message"})
            return {"state": found["state"], "message": found["message"], "by": by}
        answer = _Function(job, exercise) if by == CHECK and is_code(exercise, job["kept"]) else _restored(job, exercise, _answers.restore)
    except _answers.NotKeptError as error:
        return {"state": OPEN, "message": str(error), "by": ""}
    except Refused as refusal:
        return {"state": "wrong", "message": str(refusal), "by": by}
    result = _checks._examine(exercise, answer)
    return {"state": result.state, "message": result.message, "by": by}


def is_code(exercise: Exercise, kept: Mapping[str, Any]) -> bool:
    """Return whether a kept answer is source, or what is started."""
    return exercise.answer_is_file or kept.get("kind") in ("code", "file")


class _Function:
    """A student's function as its check sees it: a call is a message to the process in which the function lives.

    ``py_func`` is the function's text for the simulator and is never called.
    """

    def __init__(self, job: Mapping[str, Any], exercise: Exercise) -> None:
        from gpulab.lessons import _answers

        self._job, self._exercise = job, exercise
        self._child: _Child | None = None
        self.py_func = _restored(job, exercise, _answers.outline)
        if self.py_func is not None:
            self.__code__ = self.py_func.__code__

    def __call__(self, *args: Any) -> Any:
        from gpulab.lessons import _answers

        if self._child is None:
            self._child = _in_answer(self._job, self._exercise)
        self._child.ask(json.dumps([_answers.Message().encode(each) for each in args]))
        found = _parsed_answer(self._child, self._job, {"value", "after"})
        for place, after in found["after"]:
            if isinstance(args[place], list) or hasattr(args[place], "shape"):
                args[place][:] = _answers.decode(after)
        return _answers.decode(found["value"])


def _parsed_answer(child: _Child, job: Mapping[str, Any], form: set[str]) -> dict[str, Any]:
    """Return the next message of an answer's process; raise the error that it tells of."""
    line = child.line(job["seconds"], job["memory_bytes"])
    try:
        found = parsed(line, job["job"], form, {"error", "message"})
    except ValueError as error:
        raise Refused("It wrote into the messages of its process.") from error
    name, text = str(found.get("error", "")), str(found.get("message", ""))[:_LONGEST_MESSAGE]
    if "error" in found and name == Refused.__name__:
        raise Refused(text)
    if "error" in found:
        kind = getattr(builtins, name, None)
        base = kind if isinstance(kind, type) and issubclass(kind, BaseException) else Exception
        raise type(name, (base,), {"__init__": lambda self: None, "__str__": lambda self: text})()
    if "state" in found and found["state"] not in ("passed", "wrong", "not attempted"):
        raise Refused("It wrote into the messages of its process.")
    return {**found, **({"message": text} if "message" in found else {})}


# -- the answer's process ----------------------------------------------------------------------------------------------------


def _in_answer(job: Mapping[str, Any], exercise: Exercise) -> _Child:
    """Start the process of an answer: in a box, unless the instructor trusts the code."""
    folder = tempfile.mkdtemp()

    def work(asked: int, told: int) -> None:
        from gpulab.lessons import _answers, _checks, checking

        if job["box"]:
            from gpulab.lessons import _box

            _box.enter(folder)
            _move(os.getcwd())
        try:
            answer = _restored(job, exercise, _answers.restore)
        except (Refused, _answers.NotKeptError) as error:
            return _tell(told, job, error=Refused.__name__, message=str(error))
        if exercise.live:
            result = _checks._examine(exercise, answer)
            return _tell(told, job, state=result.state, message=result.message)
        for text in os.fdopen(asked, encoding="utf-8"):
            given = json.loads(text)
            args = [_answers.decode(each) for each in given]
            try:
                value = _answers.Message().encode(answer(*args))
                after = [(k, now) for k, each in enumerate(args) if (now := _answers.Message().encode(each)) != given[k]]
            except BaseException as error:
                _tell(told, job, error=type(error).__name__, message=checking.explain(error).removeprefix(type(error).__name__).removeprefix(": "))
            else:
                _tell(told, job, value=value, after=after)

    return _Child(work)


def _restored(job: Mapping[str, Any], exercise: Exercise, read: Callable[[Any, str], Any]) -> Any:
    """Return a kept answer in the way of ``read``; all that goes wrong is the answer's."""
    from gpulab.lessons import _answers, checking

    try:
        return read(job["kept"], exercise.id)
    except _answers.NotKeptError:
        raise
    except MemoryError as error:
        raise Refused("It took more memory than an answer may.") from error
    except SystemExit as error:
        raise Refused("Its source called exit.") from error
    except BaseException as error:
        raise Refused(f"Its source does not run: {checking.explain(error)}."[:_LONGEST_MESSAGE]) from error
