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
