"""What a check loads is loaded before its time begins, in a thread that nobody ends."""

from __future__ import annotations

import pathlib
import subprocess
import sys
import threading
from typing import Any

import pytest

from gpulab.lessons import _checks, _loading, content
from gpulab.lessons.content import Exercise

EXERCISES = [exercise for lesson in content.lessons() for exercise in lesson.exercises.values()]


@pytest.fixture(autouse=True)
def own_progress(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test writes the learner's progress."""
    monkeypatch.setenv("GPULAB_PROGRESS", str(tmp_path / "progress.json"))
    monkeypatch.setenv("GPULAB_LOCK_DIR", str(tmp_path))


def _exercise(check: Any, loads: tuple[str, ...], limit_seconds: float = 20.0) -> Exercise:
    return Exercise("99.1", "a trial", "x", "x = ...", "x = 1", ("a", "b"), check, (), limit_seconds, loads)


def test_an_import_does_not_eat_the_limit(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    """A library that takes longer to load than the check may take is not charged to the learner."""
    (tmp_path / "gpulab_slow_library.py").write_text("import time\ntime.sleep(1.0)\n")
    monkeypatch.syspath_prepend(str(tmp_path))

    def check(answer: Any) -> str:
        import gpulab_slow_library  # type: ignore[import-not-found]

        return gpulab_slow_library.__name__

    monkeypatch.delitem(sys.modules, "gpulab_slow_library", raising=False)
    assert "did not finish within 0.5 s" in _checks._examine(_exercise(check, (), 0.5), 1).message
    monkeypatch.delitem(sys.modules, "gpulab_slow_library", raising=False)
    result = _checks._examine(_exercise(check, ("gpulab_slow_library",), 0.5), 1)
    assert (result.state, result.message) == ("passed", "gpulab_slow_library")


def test_an_interrupt_leaves_a_library_whole(monkeypatch: pytest.MonkeyPatch):
    """An interrupt ends the wait, not the import; the check says that it was interrupted."""
    entered, go_on, done = threading.Event(), threading.Event(), threading.Event()

    def importing(name: str) -> None:
        entered.set()
        go_on.wait(60)
        done.set()

    def join(thread: threading.Thread, timeout: float | None = None) -> None:
        if thread.name == "gpulab-import":
            assert entered.wait(60)
            raise KeyboardInterrupt
        threads_join(thread, timeout)

    threads_join = threading.Thread.join
    monkeypatch.setattr(_loading.importlib, "import_module", importing)
    monkeypatch.setattr(threading.Thread, "join", join)
    result = _checks._examine(_exercise(lambda answer: "right", ("a_library",)), 1)
    assert (result.state, result.message) == ("not attempted", "The check was interrupted; run the cell again.")
    assert not done.is_set()
    go_on.set()
    assert done.wait(60)


def test_the_wait_for_an_import_costs_no_processor_time(monkeypatch: pytest.MonkeyPatch):
    """It looks twenty times a second, no more often, and returns when the import has ended; nothing to load starts no thread."""
    waits: list[float] = []
    alive = iter((True, True, True, False))

    class Importing:
        """A thread that ends in the third wait."""

        def __init__(self, target: Any, args: Any, name: str) -> None:
            self.start = lambda: waits.append(0.0)
            self.join = waits.append

        def is_alive(self) -> bool:
            return next(alive)

    monkeypatch.setattr(_loading.threading, "Thread", Importing)
    _loading.load(())
    assert waits == []
    _loading.load(("torch",))
    assert waits == [0.0, 0.05, 0.05, 0.05]


def test_a_library_that_is_not_there_is_the_checks_to_tell():
    """Where a library is missing, the check goes on and says what it needs."""
    assert _checks._examine(_exercise(lambda answer: "right", ("gpulab_no_such_library",)), 1).state == "passed"


_COLD = """
import linecache, sys
from gpulab.lessons import _checks, content, _guard

exercise = content.exercise(sys.argv[1])
names = {"__name__": "__main__"}
linecache.cache["<c>"] = (len(exercise.solution), None, exercise.solution.splitlines(keepends=True), "<c>")
exec(compile(exercise.solution, "<c>", "exec"), names)
run = _guard.run


def watched(work, limit):
    before = set(sys.modules)
    try:
        return run(work, limit)
    finally:
        print("LATE", *sorted(set(sys.modules) - before))


_guard.run = watched
print(_checks._examine(exercise, names[exercise.answer_name]).state)
"""
# Small modules of its own that a check may still load (a training step takes a thousand).
_FEW = 20


@pytest.mark.slow
@pytest.mark.parametrize("exercise", [each for each in EXERCISES if each.loads], ids=lambda exercise: exercise.id)
def test_in_a_fresh_process_nothing_heavy_is_left_to_load(exercise: Exercise, soak: bool):
    """In a process that has loaded nothing, a check finds its libraries loaded; one exercise here, each of them with ``--soak``."""
    if not soak and exercise.id != "06.7":
        pytest.skip("with --soak")
    done = subprocess.run([sys.executable, "-c", _COLD, exercise.id], capture_output=True, text=True, timeout=600, check=False)
    said = done.stdout.splitlines()
    assert said[-1] == "passed", done.stdout + done.stderr
    late = next(line for line in said if line.startswith("LATE")).split()[1:]
    assert len(late) <= _FEW, late
