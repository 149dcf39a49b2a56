"""The guard and the kernel's end of it, without a process: what is asked of whom, in which order, and how long it is waited for."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpulab.errors import RankError
from gpulab.parallel import _guard, _guarded


class Left(Exception):
    """In place of the end of the process."""


def test_the_guard_asks_before_it_kills_and_waits_as_long_as_it_was_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each process that wants to be asked gets its signal, then its time; what does not use it is killed; then the folder goes."""
    done: list[object] = []

    class Asked:
        def __init__(self, pid: int, stays: bool) -> None:
            self.pid, self.stays = pid, stays

        def wait(self, seconds: float) -> None:
            done.append(("wait", self.pid, seconds))
            if self.stays:
                raise subprocess.TimeoutExpired("x", seconds)

    def leave(code: int) -> None:
        done.append(("leave", code, folder.exists()))
        raise Left

    folder = tmp_path / "cluster"
    folder.mkdir()
    guard = _guard.Guard(str(folder))
    guard.popens = {"ipcluster": Asked(11, True), "other": Asked(12, False)}  # type: ignore[dict-item]
    guard.stops = {"ipcluster": (2, 30.0), "other": (15, 5.0)}
    monkeypatch.setattr(os, "kill", lambda pid, number: done.append(("signal", pid, number)))
    monkeypatch.setattr(_guard, "_kill_descendants", lambda: done.append("kill all"))
    monkeypatch.setattr(os, "_exit", leave)
    before = signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(Left):
            guard.end()
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN  # a second request must not cut the first one short
    finally:
        signal.signal(signal.SIGTERM, before)
    assert done == [
        ("signal", 11, 2), ("signal", 12, 15), ("wait", 11, 30.0), ("wait", 12, 5.0), "kill all", ("leave", 0, False),
    ]  # fmt: skip


def test_orders_reach_what_they_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each kind of order calls its own, once for each name; one that fails is told, and the guard goes on."""
    done: list[tuple[Any, ...]] = []
    told: list[dict[str, Any]] = []
    guard = _guard.Guard("nowhere")
    for what in ("engine", "process", "load", "signal", "kill"):
        monkeypatch.setattr(guard, what, lambda *given, what=what: done.append((what, *given)))
    monkeypatch.setattr(_guard, "tell", lambda **event: told.append(event))
    guard.obey({"do": "engine", "name": "e", "arguments": ["a"], "log": "l"})
    guard.obey({"do": "process", "name": "p", "command": ["c"], "log": "l"})
    guard.obey({"do": "process", "name": "q", "command": ["c"], "log": "m", "stop": {"signal": 2, "seconds": 9}})
    guard.obey({"do": "load"})
    guard.obey({"do": "signal", "names": ["e", "p"], "signal": 2})
    guard.obey({"do": "kill", "names": ["p", "e"]})
    assert done == [
        ("engine", "e", ["a"], "l"), ("process", "p", ["c"], "l"), ("process", "q", ["c"], "m"), ("load",),
        ("signal", "e", 2), ("signal", "p", 2), ("kill", "p"), ("kill", "e"),
    ]  # fmt: skip
    assert guard.stops == {"q": (2, 9)}
    assert told == []
    guard.obey({"do": "engine", "name": "e"})
    assert [(event["event"], event["error"]) for event in told] == [("failed", "KeyError: 'arguments'")]


def test_orders_are_read_in_whole_lines() -> None:
    """What came in part waits for the rest; nothing came, and the end of the input, are told apart."""
    guard = _guard.Guard("nowhere")
    pieces = iter([b'{"do": 1}\n{"do"', None, b": 2}\n", b""])
    guard.read = lambda: next(pieces)
    assert [guard.orders() for _ in range(4)] == [[{"do": 1}], [], [{"do": 2}], None]


def test_what_an_ended_process_left_is_killed_before_its_end_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its session first, then strays; it is forgotten by name, and so is how it wanted to be asked."""
    done: list[object] = []
    guard = _guard.Guard("nowhere")
    guard.popens = {"p": SimpleNamespace(pid=41, poll=lambda: -9), "q": SimpleNamespace(pid=42, poll=lambda: None)}  # type: ignore[dict-item]
    guard.stops = {"p": (2, 1.0), "q": (2, 1.0)}
    monkeypatch.setattr(_guard, "LINUX", True)
    monkeypatch.setattr(_guard, "_kill_session", lambda pid: done.append(("session", pid)))
    monkeypatch.setattr(guard, "orphans", lambda: done.append("strays"))
    monkeypatch.setattr(_guard, "tell", lambda **event: done.append(event))
    guard.look()
    assert done == [("session", 41), "strays", {"event": "ended", "name": "p", "pid": 41, "code": -9}]
    assert (list(guard.popens), guard.stops, guard.pid("p"), guard.pid("q")) == (["q"], {"q": (2, 1.0)}, None, 42)
    guard.forks = {"f": 43, "g": 44}
    guard.ended("f", 43, 3)
    assert (guard.forks, guard.pid("f"), done[-1]) == ({"g": 44}, None, {"event": "ended", "name": "f", "pid": 43, "code": 3})


@pytest.mark.parametrize(("slow", "steps"), [(False, ["close", "wait 7"]), (True, ["close", "wait 7", "kill", "wait"])])
def test_letting_go_of_a_guard_waits_until_it_is_gone(slow: bool, steps: list[str]) -> None:
    """The pipe is closed, and its end awaited; one that does not end in its time is killed, and that is awaited too."""
    done: list[str] = []

    def wait(seconds: float | None = None) -> None:
        done.append("wait" if seconds is None else f"wait {seconds:g}")
        if slow and seconds is not None:
            raise subprocess.TimeoutExpired("x", seconds)

    pipe = SimpleNamespace(close=lambda: done.append("close"))
    _guarded._end(SimpleNamespace(stdin=pipe, wait=wait, kill=lambda: done.append("kill")), 7.0)  # type: ignore[arg-type]
    assert done == steps


def test_an_engines_environment_finds_gpulab_first_and_starts_no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """The package that runs here comes before what the path named already."""
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    found = _guarded._environment(3)
    assert found["PYTHONPATH"] == os.pathsep.join((str(Path(_guard.__file__).parents[2]), "/elsewhere"))
    assert (found["OMP_NUM_THREADS"], found["OPENBLAS_NUM_THREADS"]) == ("3", "1")
    monkeypatch.delenv("PYTHONPATH")
    assert _guarded._environment(1)["PYTHONPATH"] == str(Path(_guard.__file__).parents[2])


class Below:
    """Processes below the guard, generation by generation, and what is done to them."""

    def __init__(self, *generations: list[int]) -> None:
        self.generations, self.done = list(generations), []  # type: ignore[var-annotated]

    def children(self, recursive: bool) -> list[Any]:
        """Return who is there now."""
        assert recursive
        return [
            SimpleNamespace(kill=lambda pid=pid: self.done.append(pid)) for pid in (self.generations.pop(0) if self.generations else [])
        ]


@pytest.mark.parametrize(
    ("generations", "alive", "killed"),
    [
        ([[1, 2], []], [[]], [1, 2]),
        ([[1], [3], [3, 4], []], [[], []], [1, 3, 4]),  # another was being started meanwhile
        ([[1], [1], []], [[1], []], [1, 1]),  # it takes its time
    ],
)
def test_descendants_are_killed_until_there_is_none(
    monkeypatch: pytest.MonkeyPatch, generations: list[list[int]], alive: list[list[int]], killed: list[int]
) -> None:
    """Again where one lives, or a new one is there; and no more often than that."""
    below, waited = Below(*generations), iter(alive)
    monkeypatch.setattr("psutil.Process", lambda: below)
    monkeypatch.setattr("psutil.wait_procs", lambda processes, timeout: ([], next(waited)))
    _guard._kill_descendants()
    assert below.done == killed
    assert below.generations == []
    assert list(waited) == []


def test_a_session_and_its_leader_are_killed_though_one_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The session first; that there is none does not spare the leader, nor another user's the rest."""
    done: list[tuple[str, int, int]] = []

    def gone(leader: int, number: int) -> None:
        done.append(("session", leader, number))
        raise ProcessLookupError if leader == 7 else PermissionError

    monkeypatch.setattr(os, "killpg", gone)
    monkeypatch.setattr(os, "kill", lambda pid, number: done.append(("leader", pid, number)))
    _guard._kill_session(7)
    _guarded.kill_sessions({7: None, 8: None}.keys())
    assert done == [("session", 7, 9), ("leader", 7, 9), ("session", 7, 9), ("session", 8, 9)]


def test_what_a_guard_tells_is_kept_by_name() -> None:
    """Started, ended and started again; whether it forks; what failed; and who asked hears of an end alone."""
    heard: list[str] = []
    here = object.__new__(_guarded.Guarded)
    here.pids, here.ends, here.failures, here.forks, here._on_end = {}, {}, [], None, lambda: heard.append  # type: ignore[assignment]
    here.changed = threading.Condition()
    here.told({"event": "started", "name": "a", "pid": 5})
    here.told({"event": "started", "name": "b", "pid": 6})
    here.told({"event": "ended", "name": "a", "code": -9})
    assert (here.pids, here.ends, heard) == ({"b": 6}, {"a": -9}, ["a"])
    here.told({"event": "started", "name": "a", "pid": 7})
    here.told({"event": "loaded", "forks": True})
    here.told({"event": "failed", "error": "OSError: x"})
    assert (here.pids, here.ends, here.forks, here.failures, heard) == ({"a": 7, "b": 6}, {}, True, ["OSError: x"], ["a"])


class Program:
    """What ``subprocess.Popen`` was asked for, and what it gives."""

    def __init__(self, command: list[str], **given: Any) -> None:
        self.command, self.given, self.pid = command, given, 77
        self.stdin, self.stdout = SimpleNamespace(close=lambda: None), iter(())

    def wait(self, seconds: float | None = None) -> int:
        """End well."""
        return 0

    def poll(self) -> None:
        """Live."""


def test_a_guard_is_a_program_in_a_session_of_its_own_that_is_listened_to(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A Ctrl-C for the notebook does not reach it; its words come by a pipe, its errors go to its log; the listener holds nobody up."""
    threads: list[threading.Thread] = []
    monkeypatch.setattr(subprocess, "Popen", Program)
    monkeypatch.setattr(threading.Thread, "start", lambda self: threads.append(self))  # noqa: PLW0108  (a method)
    here = _guarded.Guarded(tmp_path, 2)
    try:
        program: Any = here._process
        assert program.command == [_guarded.sys.executable, "-P", _guard.__file__, str(tmp_path)]
        assert (program.given["start_new_session"], program.given["stdin"], program.given["stdout"]) == (True, -1, -1)
        assert program.given["stderr"].name == str(tmp_path / "guard.log")
        assert program.given["env"]["OMP_NUM_THREADS"] == "2"
        assert [(thread.daemon, thread.name) for thread in threads] == [(True, "gpulab-guard")]
        assert (here.alive, here.pid, here.exit_code(), here.forks) == (True, 77, 0, None)
    finally:
        here.close()


@pytest.mark.parametrize(("code", "killed"), [(0, []), (-9, [5, 6])])
def test_what_a_killed_guard_leaves_is_killed_and_what_a_guard_that_left_has_ended_is_not(
    monkeypatch: pytest.MonkeyPatch, code: int, killed: list[int]
) -> None:
    """Each line is taken in; at the end of them whoever waits for news is woken."""
    heard: list[Any] = []

    class Here:
        pids = {"a": 5, "b": 6}
        changed = threading.Condition()

        def told(self, event: Any) -> None:
            heard.append(event)

        def exit_code(self) -> int:
            return code

    class Lines(list[bytes]):
        def __enter__(self) -> Lines:
            return self

        def __exit__(self, *_: object) -> None:
            heard.append("closed")

    here, ended = Here(), []  # type: ignore[var-annotated]
    monkeypatch.setattr(here.changed, "notify_all", lambda: heard.append("woken"), raising=False)
    monkeypatch.setattr(_guarded, "kill_sessions", ended.extend)
    _guarded._listen(lambda: here, Lines([b'{"event": 1}\n', b'{"event": 2}\n']))  # type: ignore[arg-type]
    assert heard == [{"event": 1}, {"event": 2}, "closed", "woken"]
    assert ended == killed
    _guarded._listen(lambda: None, Lines([b"no line of JSON is read for nobody"]))  # type: ignore[arg-type, return-value]
    assert ended == killed


def test_an_order_is_a_line_and_a_guard_that_is_gone_is_told() -> None:
    """With what it orders; a broken pipe and a closed one end in one sentence."""
    written: list[bytes] = []
    here = object.__new__(_guarded.Guarded)
    here._input = SimpleNamespace(write=written.append, flush=lambda: written.append(b"flushed"))  # type: ignore[assignment]
    here.order("signal", names=["a"], signal=2)
    assert written == [b'{"do": "signal", "names": ["a"], "signal": 2}\n', b"flushed"]

    def gone(error: Exception) -> Any:
        def write(line: bytes) -> None:
            raise error

        return write

    for error in (BrokenPipeError(), ValueError("write to closed file")):
        here._input = SimpleNamespace(write=gone(error))  # type: ignore[assignment]
        with pytest.raises(RankError, match=r"^cluster: the process that watches over the engines is gone, .* Call recover\(\)\.$"):
            here.order("load")


def test_libraries_are_loaded_once_where_engines_are_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them, and then kept out of the collector's way; with a second thread, or without fork, engines are processes of their own."""
    done: list[Any] = []
    monkeypatch.setattr(_guard.importlib, "import_module", done.append)
    monkeypatch.setattr(_guard.gc, "collect", lambda: done.append("collect"))
    monkeypatch.setattr(_guard.gc, "freeze", lambda: done.append("freeze"))
    monkeypatch.setattr(_guard, "tell", lambda **event: done.append(event))
    for linux, threads, forks in ((True, 1, True), (True, 2, False), (False, 1, False)):
        done.clear()
        monkeypatch.setattr(_guard, "LINUX", linux)
        monkeypatch.setattr(_guard, "Path", lambda given, threads=threads: SimpleNamespace(iterdir=lambda: iter(range(threads))))
        guard = object.__new__(_guard.Guard)
        guard.loaded = False
        guard.load()
        assert done == [*([*_guard._PRELOADED, "collect", "freeze"] if linux else []), {"event": "loaded", "forks": forks}]
        assert guard.loaded is forks
    assert {"torch.distributed.tensor", "torch._dynamo", "ipyparallel.engine.app", "gpulab.parallel._rank"} <= set(_guard._PRELOADED)


def test_an_engine_is_a_fork_or_a_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before libraries are loaded a program, after that a fork, which is known by its name and told; in the fork the engine begins."""
    done: list[Any] = []
    guard = _guard.Guard("nowhere")
    monkeypatch.setattr(guard, "process", lambda *given: done.append(given))
    monkeypatch.setattr(_guard, "tell", lambda **event: done.append(event))
    guard.engine("e", ["--a"], "log")
    assert done == [("e", [_guard.sys.executable, "-c", _guard._ENGINE, "--a"], "log")]
    done.clear()
    guard.loaded = True
    monkeypatch.setattr(os, "fork", lambda: 55)
    guard.engine("f", ["--a"], "log")
    assert (guard.forks, done, guard.pid("f")) == ({"f": 55}, [{"event": "started", "name": "f", "pid": 55}], 55)

    def become(*given: object) -> None:
        done.append(given)
        raise Left

    monkeypatch.setattr(os, "fork", lambda: 0)
    monkeypatch.setattr(_guard, "_become_engine", become)
    with pytest.raises(Left):
        guard.engine("g", ["--b"], "other")
    assert done[-1] == (os.getpid(), ["--b"], "other")


def test_any_other_process_leads_a_session_and_hears_of_the_guards_end(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing to read, what it says goes to its log, which is kept from before; on Linux the system asks it to end with the guard."""
    (tmp_path / "log").write_text("before\n")
    told: list[Any] = []
    monkeypatch.setattr(subprocess, "Popen", Program)
    monkeypatch.setattr(_guard, "tell", lambda **event: told.append(event))
    for linux in (True, False):
        monkeypatch.setattr(_guard, "LINUX", linux)
        guard = _guard.Guard("nowhere")
        guard.process("p", ["c", "d"], str(tmp_path / "log"))
        program: Any = guard.popens["p"]
        assert (program.command, program.given["stdin"], program.given["start_new_session"]) == (["c", "d"], subprocess.DEVNULL, True)
        assert program.given["stdout"].name == program.given["stderr"].name == str(tmp_path / "log")
        assert program.given["preexec_fn"] is (_guard._end_with_guard if linux else None)
    assert told == [{"event": "started", "name": "p", "pid": 77}] * 2
    assert (tmp_path / "log").read_text() == "before\n"


def test_a_forks_end_is_seen_with_how_it_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """By its signal or its code; one that lives is left alone."""
    ended: list[Any] = []
    guard = _guard.Guard("nowhere")
    guard.forks = {"a": 5, "b": 6, "c": 7}
    monkeypatch.setattr(os, "waitpid", lambda pid, how: {5: (5, 9), 6: (0, 0), 7: (7, 3 << 8)}[pid] if how == os.WNOHANG else None)
    monkeypatch.setattr(guard, "ended", lambda *given: ended.append(given))
    guard.look()
    assert ended == [("a", 5, -9), ("c", 7, 3)]


def test_strays_below_the_guard_are_killed_and_awaited_and_its_own_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of five children two are its own; of the strays one is gone already, which spares the next nothing."""
    done: list[Any] = []
    guard = _guard.Guard("nowhere")
    guard.popens, guard.forks = {"p": SimpleNamespace(pid=1)}, {"f": 2}  # type: ignore[dict-item]
    children = [SimpleNamespace(pid=pid) for pid in (1, 2, 3, 4, 5)]
    monkeypatch.setattr("psutil.Process", lambda: SimpleNamespace(children=lambda: children))

    def kill(pid: int) -> None:
        done.append(("kill", pid))
        if pid == 3:
            raise ChildProcessError

    monkeypatch.setattr(_guard, "_kill_tree", kill)
    monkeypatch.setattr(os, "waitpid", lambda pid, how: done.append(("wait", pid, how)))
    guard.orphans()
    assert done == [("kill", 3), ("kill", 4), ("wait", 4, 0), ("kill", 5), ("wait", 5, 0)]


def test_a_signal_and_an_end_reach_the_process_of_that_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody of an unknown name; that it has gone meanwhile is no fault."""
    done: list[Any] = []

    def kill(pid: int, number: int) -> None:
        done.append((pid, number))
        raise ProcessLookupError

    guard = _guard.Guard("nowhere")
    guard.forks = {"f": 5}
    monkeypatch.setattr(os, "kill", kill)
    monkeypatch.setattr(_guard, "_kill_session", lambda pid: done.append(("session", pid)))
    for name in ("f", "nobody"):
        guard.signal(name, 2)
        guard.kill(name)
    assert done == [(5, 2), ("session", 5)]


def test_a_tree_is_killed_from_its_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Children's children too, then the process itself; one that is gone does not spare the others."""
    import psutil

    done: list[int] = []

    def made(pid: int) -> Any:
        def kill() -> None:
            done.append(pid)
            if pid == 2:
                raise psutil.NoSuchProcess(pid)

        return SimpleNamespace(kill=kill, children=lambda recursive: [made(2), made(3)] if recursive else [made(2)])

    monkeypatch.setattr(psutil, "Process", made)
    _guard._kill_tree(1)
    assert done == [2, 3, 1]


def test_a_fork_becomes_an_engine_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A session, an end with the guard, signals as Python has them, nothing to read, a log, random numbers, and then ipyparallel's main.

    prctl's numbers are those of linux/prctl.h: PR_SET_PDEATHSIG is 1.
    """
    pytest.importorskip("ipyparallel.engine.app")
    done: list[Any] = []

    def leave(code: int) -> None:
        done.append(("leave", code))
        raise Left

    for name in ("setsid", "dup2"):
        monkeypatch.setattr(os, name, lambda *given, name=name: done.append((name, *given)))
    monkeypatch.setattr(os, "open", lambda path, flags, mode=0o777: done.append(("open", str(path), flags, mode)) or 30 + len(done))
    monkeypatch.setattr(os, "_exit", leave)
    monkeypatch.setattr(os, "getppid", lambda: 9)
    monkeypatch.setattr(signal, "signal", lambda *given: done.append(("signal", *given)))
    monkeypatch.setattr(_guard, "_prctl", lambda *given: done.append(("prctl", *given)))
    monkeypatch.setattr(_guard, "Path", lambda given: SimpleNamespace(write_text=lambda text, encoding: done.append((given, text))))
    monkeypatch.setattr("numpy.random.seed", lambda: done.append("seed"))
    monkeypatch.setattr(_guard.sys, "argv", ["before"])
    monkeypatch.setattr("ipyparallel.engine.app.main", lambda: done.append(("main", list(_guard.sys.argv))))
    log = str(tmp_path / "log")
    with pytest.raises(Left):
        _guard._become_engine(9, ["--x"], log)
    first = [("setsid",), ("prctl", 1, signal.SIGKILL)]
    expected = [
        *first, ("signal", signal.SIGINT, signal.default_int_handler), ("signal", signal.SIGTERM, signal.SIG_DFL),
        ("signal", signal.SIGHUP, signal.SIG_DFL), ("/proc/self/oom_score_adj", "500"),
        ("open", log, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600), ("open", os.devnull, os.O_RDONLY, 0o777),
        ("dup2", 38, 0), ("dup2", 37, 1), ("dup2", 37, 2), "seed", ("main", ["ipengine", "--x"]), ("leave", 0),
    ]  # fmt: skip
    assert [one for one in done if one != ("leave", 1)] == expected
    done.clear()
    with pytest.raises(Left):
        _guard._become_engine(10, [], log)  # the guard had died before it could be watched
    assert done[: len(first) + 1] == [*first, ("leave", 1)]


@pytest.mark.parametrize(("raised", "code"), [(SystemExit(3), 3), (SystemExit("words"), 1), (SystemExit(None), 1), (ValueError("x"), 1)])
def test_an_engine_that_fails_leaves_with_a_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], raised: BaseException, code: int
) -> None:
    """Its own where it has one, else one; an error is written down first."""
    left: list[int] = []

    def leave(code: int) -> None:
        left.append(code)
        raise Left

    def fail() -> None:
        raise raised

    monkeypatch.setattr(os, "setsid", fail)
    monkeypatch.setattr(os, "_exit", leave)
    with pytest.raises(Left):
        _guard._become_engine(9, [], "log")
    assert left == [code]
    assert ("ValueError: x" in capsys.readouterr().err) is isinstance(raised, ValueError)


def test_the_system_is_told_by_the_numbers_of_its_header(monkeypatch: pytest.MonkeyPatch) -> None:
    """linux/prctl.h: PR_SET_PDEATHSIG 1, PR_SET_CHILD_SUBREAPER 36; unused arguments are zero."""
    told: list[tuple[int, ...]] = []
    monkeypatch.setattr("ctypes.CDLL", lambda name, use_errno: SimpleNamespace(prctl=lambda *given: told.append(given)))
    _guard._end_with_guard()
    _guard._prctl(_guard._PR_SET_CHILD_SUBREAPER, 1)
    assert told == [(1, int(signal.SIGTERM), 0, 0, 0), (36, 1, 0, 0, 0)]


def test_the_guard_serves_until_its_parent_or_its_input_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes in orphans, lets no interrupt of the notebook's end it, obeys each order, looks after each reading, and ends all at last."""
    done: list[Any] = []
    monkeypatch.setattr(_guard, "LINUX", True)
    monkeypatch.setattr(_guard, "_prctl", lambda *given: done.append(("prctl", *given)))
    monkeypatch.setattr(signal, "signal", lambda number, what: done.append((number, what == signal.SIG_IGN)))

    def served(orders: list[Any], parents: list[int]) -> list[Any]:
        done.clear()
        monkeypatch.setattr(os, "getppid", lambda: 1)
        guard = _guard.Guard("nowhere")
        come, parent = iter(orders), iter(parents)

        def end() -> None:
            done.append("end")

        monkeypatch.setattr(os, "getppid", lambda: next(parent))
        monkeypatch.setattr(guard, "orders", lambda: next(come))
        monkeypatch.setattr(guard, "obey", lambda order: done.append(("obey", order)))
        monkeypatch.setattr(guard, "look", lambda: done.append("look"))
        monkeypatch.setattr(guard, "end", end)
        guard.main()
        return done

    start = [(signal.SIGHUP, True), (signal.SIGINT, True), (signal.SIGTERM, False), ("prctl", 36, 1)]
    assert served([["a", "b"], [], None], [1, 1, 1]) == [*start, ("obey", "a"), ("obey", "b"), "look", "look", "end"]
    assert served([["a"]], [1, 2]) == [*start, ("obey", "a"), "look", "end"]


def test_who_asks_the_guard_to_end_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    """A SIGTERM in the loop ends all; where there are no sessions the input is read by a thread, elsewhere it is waited for."""
    ended: list[str] = []

    def end() -> None:
        ended.append("end")

    def handled(number: int, what: Any) -> None:
        if number == signal.SIGTERM:
            what(number, None)

    guard = _guard.Guard("nowhere")
    assert guard.read is _guard._ready_reader
    monkeypatch.setattr(_guard, "_prctl", lambda *given: None)
    monkeypatch.setattr(signal, "signal", handled)
    monkeypatch.setattr(guard, "orders", lambda: None)
    monkeypatch.setattr(guard, "end", end)
    guard.main()
    assert ended == ["end", "end"]


def test_the_input_is_read_as_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is there within a tick, 64 KiB at most; nothing is told apart from the end of the input, on Windows too."""
    asked: list[Any] = []
    ready = iter([True, False])
    monkeypatch.setattr(_guard.select, "select", lambda *given: asked.append(given) or ([0] if next(ready) else [], [], []))
    monkeypatch.setattr(os, "read", lambda *given: asked.append(given) or b"x")
    assert [_guard._ready_reader(), _guard._ready_reader()] == [b"x", None]
    assert asked == [([0], [], [], 0.05), (0, 65_536), ([0], [], [], 0.05)]

    threads: list[threading.Thread] = []
    pieces = iter([b"a", b"b", b""])
    asked.clear()
    monkeypatch.setattr(os, "read", lambda *given: asked.append(given) or next(pieces))
    monkeypatch.setattr(threading.Thread, "start", lambda self: threads.append(self))  # noqa: PLW0108  (a method)
    read = _guard._blocking_reader()
    assert read() is None
    (thread,) = threads
    assert thread.daemon
    thread.run()
    assert [read(), read(), read(), read()] == [b"a", b"b", b"", None]
    assert asked == [(0, 65_536)] * 3


def test_descendants_that_no_signal_ends_are_given_up_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each time they have a tenth of a second; after a hundred times the guard leaves them."""
    below, waited = Below(*[[1]] * 300), []  # type: ignore[var-annotated]
    monkeypatch.setattr("psutil.Process", lambda: below)
    monkeypatch.setattr("psutil.wait_procs", lambda processes, timeout: waited.append(timeout) or ([], processes))
    _guard._kill_descendants()
    assert waited == [0.1] * 100
    assert below.done == [1] * 100


def test_an_event_is_a_line_and_nobody_to_read_it_is_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the standard output, which is the pipe to the kernel; a pipe that is broken ends nothing here."""
    written: list[tuple[int, bytes]] = []

    def write(where: int, line: bytes) -> None:
        written.append((where, line))
        if len(written) > 1:
            raise BrokenPipeError

    monkeypatch.setattr(os, "write", write)
    for pid in (5, 6):
        _guard.tell(event="started", name="a", pid=pid)
    assert written == [(1, b'{"event": "started", "name": "a", "pid": %d}\n' % pid) for pid in (5, 6)]
