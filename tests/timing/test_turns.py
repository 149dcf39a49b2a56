"""Turns: measurements of one device run one after the other, among threads and processes."""

import contextlib
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gpulab as gl
import pytest
from gpulab.errors import MeasurementError, StoppedError

from fake_machine import Clock

fcntl = pytest.importorskip("fcntl")  # Windows has none

# Another process that measures until its input ends: the turn is held from the first call on.
HOLDER = """
import sys
import gpulab as gl

def work():
    print("held", flush=True)
    sys.stdin.readline()

gl.measure(work, device="cpu", deadline=0.001)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the lock files, not made yet."""
    monkeypatch.setenv("GPULAB_LOCK_DIR", str(tmp_path / "some" / "turns"))
    return tmp_path / "some" / "turns"


@pytest.fixture
def neighbor() -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the turn on the CPU until its input is closed."""
    command = [sys.executable, "-c", HOLDER]
    with subprocess.Popen(command, stdin=-1, stdout=-1, text=True) as process:
        assert process.stdout.readline().strip() == "held"
        yield process
        process.kill()


def _measured(**options: Any) -> Any:
    return gl.measure(lambda: None, device="cpu", deadline=0.001, **options)


def _is_free(path: Path) -> bool:
    """Return whether the system would give another program the lock on a file."""
    with path.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


@pytest.mark.parametrize("end", ["its input ends", "it is killed"])
def test_a_neighbor_makes_it_wait(neighbor: subprocess.Popen[str], end: str) -> None:
    """The turn comes when the other process ends, however it ends; the note says so."""
    waits: list[str] = []

    def progress(fraction: float, text: str) -> None:
        if text.startswith("waiting") and not waits:
            neighbor.kill() if end == "it is killed" else neighbor.stdin.close()
            waits.append(text)

    assert _measured(progress=progress).has_note("turn-taking")
    assert "cpu" in waits[0]


def test_a_stop_ends_the_wait(neighbor: subprocess.Popen[str], folder: Path) -> None:
    """Stopped while waiting, nothing is measured; with a scripted clock there is no waiting."""
    asked: list[bool] = []
    with pytest.raises(StoppedError):
        _measured(stop=lambda: asked.append(True) or len(asked) > 1)
    clock = Clock()
    assert not gl.measure(clock.takes(1e-3), clock=clock, deadline=0.01).has_note("turn-taking")
    assert not _is_free(folder / "cpu.lock")


@pytest.mark.parametrize("error", [None, KeyboardInterrupt, ValueError])
def test_the_turn_is_held_by_the_measurement_alone(error: Any, folder: Path) -> None:
    """An inner measurement starts at once and keeps it held; an error or Ctrl-C frees it."""
    free: list[bool] = []

    def work() -> None:
        assert not _measured().has_note("turn-taking")
        free.append(_is_free(folder / "cpu.lock"))
        if error is not None:
            raise error

    with contextlib.suppress(KeyboardInterrupt, MeasurementError):
        gl.measure(work, device="cpu", deadline=0.001)
    assert set(free) == {False}
    assert _is_free(folder / "cpu.lock")


@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_the_lock_file_is_for_all_users(folder: Path, umask: int) -> None:
    """The folder is sticky and open to all; the file is read by all, whatever the umask."""
    before = os.umask(umask)
    try:
        _measured()
    finally:
        os.umask(before)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o1777
    assert stat.S_IMODE((folder / "cpu.lock").stat().st_mode) == 0o644


@pytest.mark.parametrize("obstacle", ["link", "folder", "FIFO", "file above"])
def test_where_nobody_can_lock_a_note_says_so(folder: Path, obstacle: str) -> None:
    """A link is not followed, a FIFO not waited for, and a machine may have no place for locks."""
    victim, lock = folder.parents[1] / "victim", folder / "cpu.lock"
    victim.write_text("untouched")
    if obstacle == "file above":
        folder.parent.write_text("")
    else:
        folder.mkdir(parents=True)
        make = {"link": lambda _: lock.symlink_to(victim), "folder": os.mkdir, "FIFO": os.mkfifo}
        make[obstacle](lock)
    (note,) = [note for note in _measured().notes if note.code == "turn-taking"]
    assert "no lock" in note.sentence
    assert victim.read_text() == "untouched"
