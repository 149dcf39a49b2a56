"""Grades come from the answers: what answers do wrong stays theirs, what a file claims is shown beside what was found."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import math
import os
import pathlib
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from made_class import check_of, report_of, write

from gpulab import lessons
from gpulab.errors import InputError
from gpulab.lessons import _answers, _grader, _grades, _loading, _material, _regrade, _report, _rubric, content
from gpulab.lessons._grades import Grade, Grades, StudentGrades
from gpulab.lessons._regrade import Regrader
from gpulab.lessons._report_schema import ReportedCheck, ReportedPrediction

LIMIT = 30.0  # seconds for an answer in these tests: a busy machine decides nothing
SHORT = 1.5  # where the end of the time is the point
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="children are forked and limited on Linux only")


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    """An empty folder for reports."""
    made = tmp_path / "reports"
    made.mkdir()
    return made


@pytest.fixture(scope="module")
def ask() -> Iterator[Any]:
    """The process that checks answers again."""
    with Regrader() as process:
        yield process


def job(source: str, id: str = "03.11", name: str = "gain", **changed: Any) -> dict[str, Any]:
    """A kept function, as a hostile file may hold any source."""
    kept = {"kind": "code", "name": name, "source": source, "values": {}}
    return {"id": id, "kept": kept, "seen": None, "seconds": LIMIT, "memory_bytes": 2**29, "run_code": True, **changed}


_GAIN = "def gain(flops, nbytes, copied, cpu, gpu, link):\n    "
RIGHT = "return max(flops / cpu[0], nbytes / cpu[1]) / (max(flops / gpu[0], nbytes / gpu[1]) + copied / link)\n"
# What the answer does before it returns the right number, and what must be said of it ("" where it does no harm and passes).
MISBEHAVING = {
    "endless loop": ("while True: pass\n    ", "did not finish"),
    "endless loop that catches all": (
        "while True:\n        try:\n            while True: pass\n        except BaseException: pass\n    ",
        "did not finish",
    ),
    "sleep": ("import time; time.sleep(60)\n    ", "did not finish"),
    "print": ("import sys; print('x' * 100_000); print('y' * 100_000, file=sys.stderr)\n    ", ""),
    "read input": ("import sys; sys.stdin.read()\n    ", ""),
    "exit": ("import sys; sys.exit(0)\n    ", "called exit"),
    "hard exit": ("import os; os._exit(0)\n    ", "ended the process that checked it, with the code 0"),
    "kill itself": ("import os; os.kill(os.getpid(), 9)\n    ", "by signal 9"),
    "crash": ("import ctypes; ctypes.string_at(0)\n    ", "by signal 11"),
    "memory": ("x = bytearray(2**30)\n    ", "MemoryError"),
    "large file": ("open('big', 'wb').write(bytes(2**27))\n    ", "OSError"),
    "recursion": ("return gain(flops, nbytes, copied, cpu, gpu, link)\n    ", "RecursionError"),
    "raise": ("raise KeyboardInterrupt\n    ", "KeyboardInterrupt"),
    "empty the folder": ("import shutil; shutil.rmtree('.', ignore_errors=True)\n    ", ""),
    "remove the folder": ("import os, shutil; shutil.rmtree(os.environ['HOME'], ignore_errors=True)\n    ", ""),
}  # fmt: skip


@on_linux
@pytest.mark.parametrize("what", MISBEHAVING)
def test_an_answer_that_misbehaves_costs_only_itself(ask: Any, what: str) -> None:
    """Each is ended or passes, is named, and the same process goes on to check the next answer."""
    before, says = MISBEHAVING[what]
    outcome = ask(job(_GAIN + before + RIGHT, seconds=SHORT if says == "did not finish" else LIMIT))
    assert outcome["state"] == ("wrong" if says else "passed"), outcome
    assert says in outcome["message"]
    process = ask._started()
    assert ask(job(_GAIN + RIGHT))["state"] == "passed"
    assert ask._started() is process
    assert os.getsid(process.pid) == process.pid, "the terminal's Ctrl-C would reach it"


@on_linux
def test_the_answers_process_has_an_empty_folder_a_clean_environment_and_no_files_of_ours(
    ask: Any, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an answer can look at: its own folder, which is empty and goes away; no variable of ours; no descriptor but its own."""
    found = tmp_path / "found.json"
    look = (
        "import os, json\n"
        f"kept = {str(found)!r}\n"
        "fds = [os.readlink(f'/proc/self/fd/{k}') for k in os.listdir('/proc/self/fd') if os.path.exists(f'/proc/self/fd/{k}')]\n"
        "import tempfile\n"
        "said = {'folder': os.getcwd(), 'files': os.listdir('.'), 'env': dict(os.environ), 'fds': fds, 'temp': tempfile.gettempdir()}\n"
        "open(kept, 'w').write(json.dumps(said))\n"
    )
    monkeypatch.setenv("SECRET_TOKEN", "s3cret")
    with Regrader() as fresh:
        assert fresh(job(look + _GAIN + RIGHT))["state"] == "passed"
    seen = json.loads(found.read_text())
    assert seen["files"] == []
    assert not pathlib.Path(seen["folder"]).exists()
    assert not pathlib.Path(seen["env"]["USERPROFILE"]).exists(), "the folder of the grading itself"
    assert {seen["temp"], *(seen["env"][name] for name in ("HOME", "TMPDIR", "IPYTHONDIR"))} == {seen["folder"]}
    assert seen["env"]["GPULAB_PROGRESS"] == f"{seen['folder']}/progress.json"
    assert "s3cret" not in json.dumps(seen["env"])
    assert set(seen["env"]) & set(os.environ) <= {
        "PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "HOME", "TMPDIR", "PYTHONPATH", "GPULAB_LOCK_DIR", "GPULAB_PROGRESS", "IPYTHONDIR",
        "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "MALLOC_ARENA_MAX", "PYTHONDONTWRITEBYTECODE", "USERPROFILE", "TEMP", "TMP",
    } | {name for name in seen["env"] if name.startswith(("KMP_", "TORCH", "LC_"))}  # what libraries set for themselves  # fmt: skip
    assert [name for name in seen["fds"] if not name.startswith(("/dev/null", "pipe:"))] == []
    assert sum(name.startswith("pipe:") for name in seen["fds"]) <= 1


@on_linux
def test_what_an_answer_started_ends_with_it(ask: Any, tmp_path: pathlib.Path) -> None:
    """A process that an answer leaves behind is gone when its outcome is there, and so is one that has lost its parent by then."""
    import psutil

    file = tmp_path / "child"
    start = (
        "import subprocess, sys\nc = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        "lost = subprocess.run(['sh', '-c', 'sleep 60 >/dev/null 2>&1 & echo $!'], capture_output=True, text=True).stdout.strip()\n"
        f"open({str(file)!r}, 'w').write(f'{{c.pid}} {{lost}}')\n"
    )
    assert ask(job(start + _GAIN + RIGHT))["state"] == "passed"
    end = time.monotonic() + 20  # it was killed; that the system has taken it away can last a moment
    for child in map(int, file.read_text().split()):
        while psutil.pid_exists(child) and psutil.Process(child).status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() < end
            time.sleep(0.05)


@on_linux
def test_an_answer_leaves_nothing_open_behind(ask: Any) -> None:
    """Of a class of three hundred each answer would otherwise keep an end of its pipe."""
    import psutil

    ask(job(_GAIN + RIGHT))
    process = psutil.Process(ask._started().pid)
    before = process.num_fds()
    for _ in range(3):
        ask(job(_GAIN + RIGHT))
    assert process.num_fds() == before


def test_the_claims_that_an_answer_is_checked_with_are_made_of_twenty_gigabytes_a_second(ask: Any) -> None:
    """00.2: measuring the memory takes seconds an answer, and which of the claims is impossible does not depend on it."""
    outcome = ask(job("", "00.2", kept={"kind": "value", "value": "A"}))
    assert outcome["message"].startswith("A moves 2.00 GiB in 119 ms: 18.0 GB/s, under your memory's 20.0 GB/s, so it can be true.")


@on_linux
@pytest.mark.parametrize("own_group", [True, False])
def test_what_an_answer_started_in_sessions_of_their_own_ends_with_it(own_group: bool) -> None:
    """The child of a child leads a session: it is in no group of the child's; and a child that leads no group yet is ended as well."""
    import psutil

    words = "setsid sh -c 'sleep 60 & echo $!; wait' & exec sleep 60"
    child = subprocess.Popen(["sh", "-c", words], stdout=subprocess.PIPE, text=True, start_new_session=own_group)
    assert child.stdout is not None
    last = psutil.Process(int(child.stdout.readline()))
    status = _grader._end(child.pid)
    child.returncode = -9  # it was waited for
    child.stdout.close()
    assert os.WTERMSIG(status) == 9
    end = time.monotonic() + 20
    while last.is_running() and last.status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_child_closes_all_but_what_it_says_its_outcome_with(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside the three that are nothing; it leads a session, and works in its folder."""
    log: list[Any] = []
    fake = SimpleNamespace(
        setsid=lambda: log.append("leads"), chdir=log.append, environ={}, path=os.path, _exit=log.append,
        closerange=lambda *both: log.append(both), write=lambda writer, said: log.append((writer, said)),
    )  # fmt: skip
    monkeypatch.setattr(_grader, "os", fake)
    monkeypatch.setattr(_grader, "tempfile", SimpleNamespace())
    monkeypatch.setattr(_grader, "_limited", lambda job: {"state": "passed"})
    _grader._be_child({}, "there", 7)
    assert log == ["leads", "there", (3, 7), (8, 65_536), (7, b'{"state": "passed"}\n'), 0]
    assert _grader.tempfile.tempdir == "there"
    assert fake.environ == {
        "HOME": "there", "TMPDIR": "there", "IPYTHONDIR": "there", "GPULAB_PROGRESS": os.path.join("there", "progress.json"),  # noqa: PTH118
    }  # fmt: skip


def test_the_libraries_of_a_check_are_loaded_before_its_child_is_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once for all answers, and the collector leaves them alone, so that they stay one memory; what is printed goes nowhere."""
    log: list[Any] = []
    said = io.StringIO()
    monkeypatch.setattr(said, "flush", lambda: log.append("said"))
    fake = SimpleNamespace(
        dup=lambda which: which, fdopen=lambda which, mode="r", encoding="": said if which else io.StringIO('{"id": "02.2"}\n'),
        open=lambda path, how: (path, how), O_RDWR="both", devnull="nothing", dup2=lambda *both: log.append(both),
    )  # fmt: skip
    monkeypatch.setattr(_grader, "os", fake)
    monkeypatch.setattr(_grader, "FORKS", True)
    monkeypatch.setattr(_grader, "gc", SimpleNamespace(freeze=lambda: log.append("frozen")))
    monkeypatch.setattr(_grader, "_in_child", lambda job: (log.append(job["id"]), {"state": "passed"})[1])
    monkeypatch.setattr(_material, "_claims", None)
    monkeypatch.setattr(_loading, "load", lambda names: log.append(("loaded", names)))
    _grader.main()
    nowhere = ("nothing", "both")
    loaded = ("loaded", content.exercise("02.2").loads)
    assert log == [(nowhere, 0), (nowhere, 1), (nowhere, 2), loaded, "frozen", "02.2", "said"]
    assert said.getvalue() == '{"state": "passed"}\n'


class _Process:
    """Stands in for the grading process: it reads jobs, and says what it was made to say."""

    def __init__(self, *says: str) -> None:
        self.stdin, self.stdout, self.pid, self.code, self.log = io.StringIO(), list(says), 2**22 + 1, None, list[str]()

    def poll(self) -> int | None:
        return self.code

    def kill(self) -> None:
        self.log.append("kill")

    def wait(self) -> None:
        self.log.append("wait")


PASSED = '{"state": "passed", "message": "Right."}'


def test_a_process_that_has_ended_is_replaced_and_what_it_left_unsaid_is_not_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    """One dies in the middle of a job, one after it; each next job has a process of its own, and nobody waits out the time."""
    made = [_Process(), _Process(PASSED), _Process(PASSED, "the rest")]
    started, threads = iter(made), list[Any]()

    class Listener:
        """The thread that hears, at once."""

        def __init__(self, target: Any, args: Any, daemon: bool) -> None:
            threads.append(daemon)
            self.start = lambda: target(*args)

    monkeypatch.setattr(_regrade.subprocess, "Popen", lambda *given, **named: next(started))
    monkeypatch.setattr(_regrade.threading, "Thread", Listener)
    with Regrader() as asked:
        assert asked({"seconds": 2}) == {
            "state": "wrong", "message": "It did not finish within 2 s, or ended the process that checked it.",
        }  # fmt: skip
        assert made[0].log == ["kill", "wait"]
        assert asked({"seconds": 2})["state"] == "passed"
        made[1].code = 1
        assert asked({"seconds": 2})["state"] == "passed"
        assert made[1].log == ["kill", "wait"]
        assert [json.loads(one.stdin.getvalue()) for one in made] == [{"seconds": 2}] * 3
    assert threads == [True] * 3, "no interpreter waits for them at its end"
    assert made[2].log == ["kill", "wait"]


def test_a_first_answer_has_three_minutes_for_the_libraries_of_its_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond its own seconds, on a crowded machine; whoever says nothing until then is ended."""
    waited: list[float] = []

    class Said:
        """What the process says, which is nothing."""

        def get(self, timeout: float) -> str:
            waited.append(timeout)
            raise _regrade.queue.Empty

        def put(self, text: str) -> None:
            pass

    made = _Process()
    monkeypatch.setattr(_regrade.subprocess, "Popen", lambda *given, **named: made)
    monkeypatch.setattr(_regrade.queue, "Queue", Said)
    with Regrader() as asked:
        assert asked({"seconds": 2.5})["message"].startswith("It did not finish within 2.5 s")
        assert (waited, made.log) == ([182.5], ["kill", "wait"])


def test_an_answer_has_four_seconds_for_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond its own: at 100 s of the clock an answer of 5 s is waited for until 109 s."""
    seen: list[float] = []
    monkeypatch.setattr(_grader, "time", SimpleNamespace(monotonic=lambda: 100.0))
    monkeypatch.setattr(_grader.os, "fork", lambda: 4242)
    monkeypatch.setattr(_grader, "_end", lambda child: 0)
    monkeypatch.setattr(_grader, "_read_line", lambda reader, deadline: (seen.append(deadline), '{"state": "wrong", "message": "No."}')[1])
    assert _grader._in_child({"seconds": 5}) == {"state": "wrong", "message": "No."}
    assert seen == [109.0]


def test_an_outcome_is_read_to_its_line_or_to_the_end_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """In pieces, with what is left of the time for each; none once it is over; and of one without an end about a megabyte."""
    now, waits, pieces = [7.0], list[float](), [b"a" * 3, b"b\n", b"never read"]

    def select(readers: list[int], write: list[int], errors: list[int], seconds: float) -> tuple[list[int], list[int], list[int]]:
        waits.append(seconds)
        now[0] += 2.0
        return (readers if seconds else []), [], []

    monkeypatch.setattr(_grader, "select", SimpleNamespace(select=select))
    monkeypatch.setattr(_grader, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(_grader.os, "read", lambda reader, most: pieces.pop(0)[:most])
    assert (_grader._read_line(3, 10.0), waits) == ("aaab\n", [3.0, 1.0])
    assert (_grader._read_line(3, 10.0), waits[2:]) == (None, [0.0])
    pieces[:] = [b"x" * 70_000] * 20
    assert _grader._read_line(3, 1e9) == "x" * 65_536 * 16
    pieces[:] = [*[b"x" * 50_000] * 20, b"y", b"z", b"z"]  # of exactly a million the next piece is read
    assert _grader._read_line(3, 1e9) == "x" * 1_000_000 + "y"


@on_linux
def test_the_memory_that_is_taken_already_is_the_systems_own_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    """As psutil has it, within what one more library would take; where the system does not tell, much more than any takes."""
    import psutil

    assert _grader._address_space() == pytest.approx(psutil.Process().memory_info().vms, abs=2**25)

    def unknown(name: str) -> int:
        raise ValueError(name)

    monkeypatch.setattr(_grader.os, "sysconf", unknown)
    assert _grader._address_space() == 8 * 2**30
    monkeypatch.setattr(_grader, "sys", SimpleNamespace(platform="darwin"))
    assert _grader._address_space() == 2**40


def test_where_no_child_is_forked_each_answer_has_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is ended when the answer's outcome is there."""
    monkeypatch.setattr(_grader, "FORKS", False)
    made = _Process(PASSED)
    monkeypatch.setattr(_regrade.subprocess, "Popen", lambda *given, **named: made)
    with Regrader() as asked:
        assert asked({"seconds": 2}) == {"state": "passed", "message": "Right."}
        assert made.log == ["kill", "wait"]


@on_linux
def test_what_the_grading_process_started_ends_with_it(tmp_path: pathlib.Path) -> None:
    """An answer that is still being checked when the process is ended."""
    import psutil

    with Regrader() as asked:
        asked._process = subprocess.Popen(["sh", "-c", "sh -c 'sleep 60 & echo $!; wait' & wait"], stdout=subprocess.PIPE, text=True)
        assert asked._process.stdout is not None
        child = psutil.Process(int(asked._process.stdout.readline()))
    end = time.monotonic() + 20
    while child.is_running() and child.status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < end
        time.sleep(0.02)


@on_linux
@pytest.mark.parametrize(
    ("limited", "said", "code"),
    [('lambda job: {"state": "passed"}', '{"state": "passed"}\n', 0), ("lambda job: job[1]", "", 1)],
    ids=["an outcome", "none"],
)
def test_a_child_goes_no_further_than_its_outcome(limited: str, said: str, code: int, tmp_path: pathlib.Path) -> None:
    """What the process that it was forked from would do next is not done twice; that there is no outcome can be told by the code."""
    lines = ("import sys", "from gpulab.lessons import _grader", f"_grader._limited = {limited}")
    script = "\n".join([*lines, "_grader._be_child({}, sys.argv[1], 1)", 'print("went on", flush=True)'])
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == (said, code)


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (MemoryError(), "It took more memory than an answer may."),
        (SystemExit(3), "Its source called exit."),
        (KeyError("x" * 2000), "Its source does not run: KeyError: '"),
    ],
)
def test_a_source_that_does_not_run_is_told(error: BaseException, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What its first lines raise, before the answer is called; cut after 1,000 characters."""

    def again(job: Any) -> Any:
        raise error

    monkeypatch.setattr(_grader, "_limit", lambda memory_bytes, seconds: None)
    monkeypatch.setattr(_grader, "_again", again)
    found = _grader._limited({"memory_bytes": 1, "seconds": 1})
    assert found["state"] == "wrong"
    assert found["message"].startswith(says)
    assert len(found["message"]) <= 1000


def test_the_limits_of_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """On top of what is taken already, files of 64 MiB, no dump, 512 open files, four cores' time for the seconds and their grace.

    Where the system allows less, that; what it does not know or refuses is left.
    """
    set_to: dict[str, tuple[float, float]] = {}
    hard = {"RLIMIT_AS": math.inf, "RLIMIT_FSIZE": 5, "RLIMIT_CORE": math.inf, "RLIMIT_NOFILE": math.inf}

    def setrlimit(kind: str, both: tuple[float, float]) -> None:
        if kind == "RLIMIT_CORE":
            raise ValueError("refused")
        set_to[kind] = both

    fake = SimpleNamespace(
        RLIM_INFINITY=math.inf, getrlimit=lambda kind: (0, hard.get(kind, math.inf)), setrlimit=setrlimit,
        **{name: name for name in (*hard, "RLIMIT_CPU")},
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "resource", fake)
    monkeypatch.setattr(_grader, "_address_space", lambda: 1000)
    _grader._limit(24, 6.0)
    assert set_to == {"RLIMIT_AS": (1024, 1024), "RLIMIT_FSIZE": (5, 5), "RLIMIT_NOFILE": (512, 512), "RLIMIT_CPU": (41, 41)}
    hard["RLIMIT_FSIZE"] = math.inf
    del fake.RLIMIT_CPU
    _grader._limit(24, 6.0)
    assert set_to["RLIMIT_FSIZE"] == (2**26, 2**26)


def test_an_answer_that_did_not_finish_has_a_second_try(folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine is not the student's doing; a wrong answer has none. Nor has an answer more time than its exercise allows."""
    jobs: list[Any] = []
    says = iter(["It did not finish within 1 s.", "Right.", "Wrong."])

    def ask(job: Any) -> dict[str, str]:
        jobs.append(job)
        return {"state": "passed", "message": next(says)}

    monkeypatch.setattr(_grades, "Regrader", lambda: contextlib.nullcontext(ask))
    checks = tuple(
        check_of(id, source, "passed") for id, source in (("02.8", "chunks = 16"), ("03.10", 'explained = ("lines", 64 * 2**20)'))
    )
    write(folder, "a.json", report_of(1, "Eve", checks=checks))
    room = lessons.classroom(folder)
    (eve,) = lessons.grade(room, lessons.Rubric(notebooks=("02", "03"), points={"02.2": 0}), seconds=1e9, memory_bytes=2**20).students
    assert [job["id"] for job in jobs] == ["02.8", "02.8", "03.10"]
    assert {job["seconds"] for job in jobs} == {content.exercise("02.8").limit_seconds}
    assert {job["memory_bytes"] for job in jobs} == {2**20}
    assert [grade.message for grade in eve.grades if grade.message] == ["Right.", "Wrong."]
    assert "02.2" not in [grade.id for grade in eve.grades], "what has no points is left out"


def test_what_an_answer_may_take_where_nothing_is_said(folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its exercise's own seconds, 2 GiB, and its code is run; 600 characters of what its check says are kept."""
    jobs: list[Any] = []
    monkeypatch.setattr(
        _grades, "Regrader", lambda: contextlib.nullcontext(lambda job: (jobs.append(job), {"state": "wrong", "message": "x" * 601})[1])
    )
    write(folder, "a.json", report_of(1, checks=(check_of("02.2", content.exercise("02.2").solution, "passed"),)))
    (one,) = lessons.grade(lessons.classroom(folder)).students
    assert [(job["seconds"], job["memory_bytes"], job["run_code"]) for job in jobs] == [(20.0, 2_147_483_648, True)]
    assert [grade.message for grade in one.grades if grade.message] == [f"{'x' * 599}…"]


def test_a_share_is_for_what_cannot_be_checked_and_not_for_what_is_wrong(folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the points for an open answer that is said to have passed; none for a wrong one, or for one that is said to be wrong."""
    monkeypatch.setattr(_grades, "Regrader", lambda: contextlib.nullcontext(lambda job: {"state": "wrong", "message": "No."}))
    open_ones = [ReportedCheck(id, state, 1, 0, False, {"kind": "nothing"}, None) for id, state in (("02.5", "passed"), ("02.2", "wrong"))]
    nothing = ReportedCheck("02.9", "not attempted", 0, 2, False, None, None)
    write(folder, "a.json", report_of(1, checks=(*open_ones, nothing, check_of("02.8", "chunks = 1", "passed"))))
    rubric = lessons.Rubric(notebooks=("02",), prediction_points=0.0, open_share=0.5)
    (one,) = lessons.grade(lessons.classroom(folder), rubric).students
    assert {grade.id: (grade.claimed, grade.found, grade.points) for grade in one.grades} == {
        "02.2": ("wrong", "open", 0.0), "02.5": ("passed", "open", 0.5), "02.8": ("passed", "wrong", 0.0),
        "02.9": ("not attempted", "not attempted", 0.0),
    }  # fmt: skip
    with pytest.raises(InputError, match="grade: 5, None; expected what classroom"):
        lessons.grade(5)  # type: ignore[arg-type]


def test_two_classes_can_be_graded_at_once(folder: pathlib.Path) -> None:
    """Two gradings side by side give the same as one after the other."""
    write(folder, "a.json", report_of(1))
    room = lessons.classroom(folder)
    found: list[Any] = []
    threads = [threading.Thread(target=lambda: found.append(lessons.grade(room).to_dict())) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found[0] == found[1]


def test_claims_are_shown_and_do_not_count(folder: pathlib.Path) -> None:
    """A wrong answer that claims to have passed gets no point and is named; so is a right one that claims to be wrong."""
    wrong = check_of("02.8", "chunks = 1", "passed")
    right = check_of("03.10", 'explained = ("lines", 64 * 2**20)', "wrong")
    write(folder, "a.json", report_of(1, "Eve", checks=(wrong, right)))
    room = lessons.classroom(folder)
    grades = lessons.grade(room, lessons.Rubric(notebooks=("02", "03"), prediction_points=0.0))
    (eve,) = grades.students
    assert eve.points == 1.0
    assert eve.ids("passed") == ["03.10"]
    assert [row[:4] for row in grades.differences().rows] == [("Eve", "02.8", "passed", "wrong"), ("Eve", "03.10", "wrong", "passed")]
    assert "nothing to compute until" in grades.differences().rows[0][4]


def test_what_was_left_out_by_the_student_is_no_gain(folder: pathlib.Path) -> None:
    """An answer that is missing counts nothing of its points; one that no file can hold is left out of them."""
    missing = ReportedCheck("02.8", "passed", 1, 0, False, {"kind": "nothing", "reason": "gone"}, None)
    damaged = ReportedCheck("02.5", "passed", 1, 0, False, {"kind": "sorcery"}, None)
    shared = ReportedCheck("02.9", "passed", 1, 0, False, {"kind": "nothing", "reason": "a Tensor"}, None)
    write(folder, "a.json", report_of(1, checks=(missing, damaged, shared)))
    room = lessons.classroom(folder)
    rubric = lessons.Rubric(notebooks=("02",), prediction_points=0.0)
    (one,) = lessons.grade(room, rubric).students
    exercises = len(content.lessons()[2].exercises)
    assert (one.points, one.most) == (0.0, exercises - 1)
    assert one.ids("open") == ["02.5", "02.8", "02.9"]
    (half,) = lessons.grade(room, dataclasses.replace(rubric, open_share=0.5)).students
    assert (half.points, half.most) == (1.5, exercises)


@pytest.mark.parametrize("reason", _grades._NOT_THE_STUDENTS)
def test_a_reason_of_the_graders_own_in_a_report_takes_no_exercise_out_of_its_points(reason: str, folder: pathlib.Path) -> None:
    """A file that says in the place of its answer that code is not run here, or that grading was stopped, gains nothing by it."""
    gone = ReportedCheck("02.8", "passed", 1, 0, False, {"kind": "nothing", "reason": reason}, None)
    write(folder, "a.json", report_of(1, checks=(gone,)))
    (one,) = lessons.grade(lessons.classroom(folder), lessons.Rubric(notebooks=("02",), prediction_points=0.0)).students
    assert (one.points, one.most) == (0.0, len(content.lessons()[2].exercises))


def test_without_code_only_values_are_graded(folder: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """With run_code=False no source runs: a function stays open and out of the points, a value is graded."""
    trace = tmp_path / "ran"
    evil = ReportedCheck(
        "02.5", "passed", 1, 0, False, {"kind": "code", "name": "fit", "source": f"open({str(trace)!r}, 'w')\nfit = 1", "values": {}}, None
    )
    write(folder, "a.json", report_of(1, checks=(evil, check_of("02.8", "chunks = 16", "passed"))))
    grades = lessons.grade(lessons.classroom(folder), lessons.Rubric(notebooks=("02",)), run_code=False)
    assert not trace.exists()
    assert grades.students[0].ids("open") == ["02.5"]
    assert grades.students[0].ids("passed") == ["02.8"]
    assert "not run" in grades.caption()


def test_equal_answers_are_checked_once(folder: pathlib.Path) -> None:
    """Twelve students with two different answers: two are checked, all get their grade."""
    for number in range(12):
        check = check_of("02.8", f"chunks = {16 if number % 3 else 1}", "passed")
        write(folder, f"{number}.json", report_of(number, checks=(check,)))
    asked: list[tuple[int, int]] = []
    grades = lessons.grade(lessons.classroom(folder), lessons.Rubric(notebooks=("02",)), progress=lambda *both: asked.append(both))
    assert (grades.answers, grades.checked, asked) == (12, 2, [(1, 2), (2, 2)])
    assert [s.ids("passed") == ["02.8"] for s in grades.students] == [bool(n % 3) for n in range(12)]
    stopped = lessons.grade(lessons.classroom(folder), lessons.Rubric(notebooks=("02",)), stop=lambda: True)
    assert {s.ids("open")[0] for s in stopped.students} == {"02.8"}


def test_an_answer_is_the_same_in_whatever_order_a_file_has_its_parts(folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another program may have written it: what says the same is checked once."""
    monkeypatch.setattr(_grades, "Regrader", lambda: contextlib.nullcontext(lambda job: {"state": "passed", "message": "Right."}))
    one = check_of("02.8", "chunks = 16", "passed")
    for name, parts in (("a", one.kept.items()), ("b", reversed(one.kept.items()))):
        write(folder, f"{name}.json", report_of(1, name, checks=(dataclasses.replace(one, kept=dict(parts)),)))
    grades = lessons.grade(lessons.classroom(folder), lessons.Rubric(notebooks=("02",)))
    assert (grades.answers, grades.checked) == (2, 1)


def test_a_grading_folder_that_is_gone_ends_no_grading() -> None:
    """An answer may have removed it."""
    with Regrader() as asked:
        pathlib.Path(asked._folder).rmdir()


def test_what_the_students_machine_gave_decides(folder: pathlib.Path) -> None:
    """A ridge at 5 FLOP a byte asks for 10 rows: the answer is right on the roofs in the report, wrong on others, open without any."""
    from gpulab.evidence import Evidence
    from gpulab.models import ArithmeticRoof, MemoryRoof, Roofline

    def roof(rate: float) -> Roofline:
        said = ("an example", Evidence.measured("A CPU"))
        memory = (MemoryRoof("DRAM", 2e10, float("inf"), *said),)
        return Roofline("A CPU", (ArithmeticRoof("float32", rate, *said),), memory, (), (), said[1])

    kept = _answers.keep(11)
    for name, seen in (("a", _answers.keep_result(roof(1e11))), ("b", _answers.keep_result(roof(8e11))), ("c", None), ("d", {"t": "x"})):
        write(folder, f"{name}.json", report_of(1, name, checks=(ReportedCheck("03.6", "passed", 1, 0, False, kept, seen),)))
    grades = lessons.grade(lessons.classroom(folder), lessons.Rubric(notebooks=("03",)))
    assert [next(g.found for g in s.grades if g.id == "03.6") for s in grades.students] == ["passed", "wrong", "open", "open"]


def test_the_tables_of_grades_by_hand() -> None:
    """Two of three points and half of two questions; a student who did nothing; the reason that most give comes first."""
    right, wrong = Grade("02.2", "passed", "passed", "", 2.0, 2.0), Grade("02.5", "passed", "wrong", "too few", 0.0, 1.0)
    lost = Grade("02.8", "passed", "open", "a Tensor", 0.0, 0.0)
    none = tuple(Grade(id, "not attempted", found, said, 0.0, 1.0) for id, found, said in (
        ("02.2", "wrong", "no number"), ("02.5", "wrong", "too many"), ("02.8", "not attempted", ""),
    ))  # fmt: skip
    anna = StudentGrades("Anna", ("a.json", "b.json"), (right, wrong, lost), 1, 2, 0.5)
    three = (anna, StudentGrades("Ben", ("c.json",), none, 0, 2, 0.5), StudentGrades("=Cem", ("d.json",), (wrong,), 0, 0, 0.0))
    grades = Grades(three, lessons.Rubric(), True, 6, 5, ("02",))
    assert grades.table()[1] == [
        ("Anna", "2.5", "4", "62 %", "1", "02.5", "02.8", "02.5", "1 of 2"),
        ("Ben", "0", "4", "0 %", "0", "02.2, 02.5", "", "02.2, 02.5", "0 of 2"),
        ("=Cem", "0", "1", "0 %", "0", "02.5", "", "02.5", "0 of 0"),
    ]
    assert grades.failing().rows == (("02.5", 3, 3, "too few", 2), ("02.2", 1, 2, "no number", 1))
    assert grades.failing().table()[1] == [("02.5", "3 of 3", "too few", "2"), ("02.2", "1 of 2", "no number", "1")]
    assert grades.differences().rows[0] == ("Anna", "02.5", "passed", "wrong", "too few")
    assert grades.csv().splitlines() == [
        "student,file,points,of,percent,predictions,passed,wrong,cannot be checked here,reported otherwise,"
        "exercise 02.2,exercise 02.5,exercise 02.8",
        'Anna,"a.json, b.json",2.5,4,62.5,1,1,02.5,02.8,02.5,2,0,',
        "Ben,c.json,0,4,0.0,0,0,02.2 02.5,,02.2 02.5,0,0,0",
        "'=Cem,d.json,0,1,0.0,0,0,02.5,,02.5,,0,",
    ]
    said = "<grades of 3 students: 6 answers, 5 of them different>", "<2 exercises with wrong answers>"
    assert (repr(grades), repr(grades.failing())) == said
    nobody = Grades((), lessons.Rubric(), True, 0, 0)
    assert [table.table()[1] for table in (nobody.failing(), nobody.differences())] == [
        [("(none)", "", "", "")],
        [("(none)", "", "", "", "")],
    ]
    assert nobody.table()[1][0][0] == "(no students)"
    assert repr(grades.differences()) == "<4 outcomes that differ from what was reported>"


def test_the_grading_process_is_taken_away() -> None:
    """When the grading ends its process has ended too, and is no zombie."""
    with Regrader() as asked:
        process = asked._started()
    assert process.returncode is not None


def test_a_rubric_is_read_or_refused(tmp_path: pathlib.Path) -> None:
    """What a rubric says is checked, and a mistake in it is named."""
    file = tmp_path / "rubric.json"
    file.write_text('{"exercise_points": 2, "points": {"02.5": 4}, "notebooks": ["02"], "open_share": 0.5}')
    rubric = lessons.Rubric.read(file)
    assert (rubric.of("02.5"), rubric.of("02.2"), rubric.prediction_points, rubric.open_share) == (4.0, 2.0, 0.25, 0.5)
    file.write_text(file.read_text(), encoding="utf-8-sig")  # as Windows PowerShell writes UTF-8
    assert lessons.Rubric.read(file) == rubric
    for text in (
        "",
        "[]",
        '{"points": [1]}',
        '{"points": {"99.9": 1}}',
        '{"points": {"9.3": 5}}',
        '{"notebooks": "09"}',
        '{"notebooks": ["9"]}',
        '{"notebooks": [9]}',
        '{"notebooks": {"09": 1}}',
        '{"exercise_points": -1}',
        '{"exercise_points": "a"}',
        '{"x": 1}',
        '{"open_share": 7}',
        '{"exercise_points": NaN}',
    ):
        file.write_text(text)
        with pytest.raises(InputError) as refused:
            lessons.Rubric.read(file)
        assert str(refused.value).count("expected") == 1  # not the file's sentence around the rubric's
    with pytest.raises(InputError):
        lessons.Rubric.read(tmp_path / "none.json")
    file.write_text('{"exercise_point": 2}')
    with pytest.raises(InputError, match=r"'exercise_point' is nothing that a rubric says; expected JSON such as"):
        lessons.Rubric.read(file)


def test_a_rubric_that_names_nothing_loads_no_lessons(monkeypatch: pytest.MonkeyPatch) -> None:
    """Points for all exercises need none of them; those for one, and a notebook's number, are looked up."""
    looked: list[int] = []
    monkeypatch.setattr(_rubric.content, "lessons", lambda: looked.append(1) or ())
    assert _rubric.Rubric(2.0, {}, 0.5, 0.5).of("09.3") == 2.0
    assert looked == []
    for named in ({"points": {"09.3": 1}}, {"notebooks": ("09",)}):
        with pytest.raises(InputError):
            _rubric.Rubric(**named)  # type: ignore[arg-type]
    assert looked


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"notebooks": "09"}, "notebooks='09'; expected several of 00, 01"),
        ({"notebooks": ("9",)}, "expected several of 00, 01"),
        ({"notebooks": ("09", "11")}, "expected several of 00, 01"),
        ({"notebooks": 9}, "expected several of 00, 01"),
        ({"points": {"9.3": 5}}, "there is no exercise '9.3'"),
        ({"points": {"09.1": 5}}, "there is no exercise '09.1'"),  # a question
    ],
)
def test_a_rubric_names_notebooks_and_exercises_that_there_are(wrong: dict[str, Any], says: str) -> None:
    """A number that is misspelt would count nothing, or everything, without a word."""
    with pytest.raises(InputError, match=says):
        lessons.Rubric(**wrong)
    assert lessons.Rubric(notebooks=("00", "10"), points={"09.3": 0}).notebooks == ("00", "10")
    assert lessons.Rubric(open_share=1).open_share == 1
    assert lessons.Rubric(exercise_points=0).of("09.3") == 0
    with pytest.raises(InputError, match="a share from 0 to 1"):
        lessons.Rubric(open_share=1.01)


def test_the_caption_says_which_notebooks_counted_and_why(folder: pathlib.Path) -> None:
    """Named by the rubric, worked on by somebody, or none."""
    write(folder, "a.json", report_of(1, "Anna", predictions=(), checks=(check_of("02.8", "chunks = 16", "passed"),)))
    room = lessons.classroom(folder)
    assert "Notebooks that counted: 02 (because somebody worked on them)." in lessons.grade(room, run_code=False).caption()
    named = lessons.grade(room, lessons.Rubric(notebooks=("03", "09")), run_code=False)
    assert named.notebooks == ("03", "09")
    assert "03, 09 (because the rubric names them)." in named.caption()
    (folder / "a.json").unlink()
    assert "No notebook counted." in lessons.grade(lessons.classroom(folder)).caption()


def test_run_all_and_a_hint_make_no_notebook_count(folder: pathlib.Path) -> None:
    """Both leave an entry: of one curious student's Run All in 09 the whole class would have had points to lose."""
    revealed = ReportedPrediction("09.1", "How many times?", None, "", 3.0, "3.00x", "no prediction", "MEASURED", 0)
    hinted = ReportedCheck("10.2", "not attempted", 0, 2, True, None, None)
    tried = check_of("02.8", "chunks = 16", "passed")
    made = report_of(1, "Anna", predictions=(revealed,), checks=(tried, hinted))
    write(folder, "a.json", made)
    room = lessons.classroom(folder)
    assert lessons.grade(room, run_code=False).notebooks == ("02",)
    assert "1 of 1 tried" in room.table()[1][0]
    assert "0 predictions; 1 checked exercise, 1 with your answer." in _report.contents(made)[0]


@pytest.mark.parametrize("changed", [{"seconds": 0}, {"seconds": "x"}, {"memory_bytes": 5}, {"run_code": "yes"}, {"rubric": 5}])
def test_junk_is_refused(folder: pathlib.Path, changed: dict[str, Any]) -> None:
    """An argument that is none ends in one sentence."""
    with pytest.raises(InputError, match=r"^grade: "):
        lessons.grade(lessons.classroom(folder), **changed)
