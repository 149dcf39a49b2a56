"""Turns: one measurement of a device at a time, among threads, processes and users; never a deadlock."""

from __future__ import annotations

import fcntl
import inspect
import os
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from gpulab import timing
from gpulab.devices import Device
from gpulab.errors import StoppedError
from gpulab.timing import _lock

HOLDER = """
import sys
from gpulab.timing import _lock
with _lock.turn("cpu"):
    print("held", flush=True)
    sys.stdin.readline()
"""


@pytest.fixture(autouse=True)
def _private_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("GPULAB_LOCK_DIR", str(tmp_path / "turns"))


@pytest.fixture
def neighbour():
    """Another process that holds the turn on the CPU until it is told to end."""
    process = subprocess.Popen([sys.executable, "-c", HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline().strip() == "held"
    yield process
    process.kill()
    process.wait()
    process.stdin.close()
    process.stdout.close()


def test_free_device_is_taken_at_once():
    """Nobody measures: no wait, no problem."""
    with _lock.turn("cpu") as turn:
        assert turn == _lock.Turn(0.0, taken=True)


def test_turn_inside_a_turn_enters_at_once():
    """A measured function that measures something itself does not wait for itself."""
    with _lock.turn("cpu"), _lock.turn("cpu") as inner:
        assert inner.taken
        assert inner.waited_seconds == 0.0


def test_neighbour_process_makes_it_wait(neighbour):
    """The turn comes when the other process ends, and says how long it took."""

    def waiting(seconds: float) -> None:
        if seconds >= 0.1:
            neighbour.stdin.close()  # it reads the end of its input, and ends

    with _lock.turn("cpu", timeout=20, waiting=waiting) as turn:
        assert turn.taken
        assert turn.waited_seconds >= 0.1


def test_wait_has_an_end(neighbour):
    """A neighbour that never ends does not block for ever: the block runs without the turn."""
    with _lock.turn("cpu", timeout=0.1) as turn:
        assert not turn.taken
        assert turn.problem is None
        assert turn.waited_seconds >= 0.1


def test_other_device_is_free(neighbour):
    """A lock on the CPU does not hold a GPU."""
    with _lock.turn("cuda-1234", timeout=0.1) as turn:
        assert turn.waited_seconds == 0.0


def test_death_of_the_holder_frees_the_turn(neighbour):
    """The system itself frees the lock of a killed process."""
    neighbour.kill()
    neighbour.wait()
    with _lock.turn("cpu", timeout=5) as turn:
        assert turn.taken


def test_stop_ends_the_wait(neighbour):
    """Stop while waiting raises StoppedError and leaves nothing locked."""
    with pytest.raises(StoppedError, match="waiting"), _lock.turn("cpu", stop=lambda: True):
        pass
    assert _lock._slots["cpu"].depth == 0
    assert _lock._slots["cpu"].file is None


def test_waiting_is_reported(neighbour):
    """The learner sees how long the wait has lasted."""
    seen = []
    with _lock.turn("cpu", timeout=0.1, waiting=seen.append):
        pass
    assert seen
    assert sorted(seen) == seen


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_error_in_the_block_frees_the_turn(error):
    """An interrupt or an error inside gives the turn back: another process can take it."""
    with pytest.raises(error), _lock.turn("cpu"):
        raise error
    code = "from gpulab.timing import _lock\nwith _lock.turn('cpu', timeout=0) as t: print(t.taken)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "True"


def test_threads_of_one_process_take_turns():
    """Two threads never hold the turn at once, though they share the process."""
    inside, most = [0], [0]

    def hold() -> None:
        for _ in range(5):
            with _lock.turn("cpu", timeout=20):
                inside[0] += 1
                most[0] = max(most[0], inside[0])
                time.sleep(0.002)
                inside[0] -= 1

    threads = [threading.Thread(target=hold) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most[0] == 1


def test_forked_child_does_not_hold_the_parents_turn():
    """A worker forked inside a measurement starts with nothing held, and its end does not free the parent's lock."""
    with _lock.turn("cpu"):
        child = os.fork()
        if child == 0:
            with _lock.turn("cpu", timeout=0.0) as turn:
                os._exit(1 if turn.taken else 0)  # the parent has it
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        code = "from gpulab.timing import _lock\nwith _lock.turn('cpu', timeout=0) as t: print(t.taken)"
        assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "False"


def test_folder_is_for_all_users_and_links_are_refused(tmp_path):
    """The folder is world-writable and sticky; a link in place of the lock file is told as a problem, not followed."""
    with _lock.turn("cpu"):
        mode = stat.S_IMODE((tmp_path / "turns").stat().st_mode)
    assert mode == 0o1777
    target = tmp_path / "victim"
    target.write_text("untouched")
    (tmp_path / "turns" / "cuda-0.lock").symlink_to(target)
    with _lock.turn("cuda-0") as turn:
        assert not turn.taken
        assert turn.problem
    assert target.read_text() == "untouched"


def test_machine_without_a_place_for_locks(tmp_path, monkeypatch):
    """Where no folder can be made the measurement goes on, and the turn says why there is none."""
    blocker = tmp_path / "file"
    blocker.write_text("")
    monkeypatch.setenv("GPULAB_LOCK_DIR", str(blocker / "turns"))
    with _lock.turn("cpu") as turn:
        assert not turn.taken
        assert turn.problem


def test_key_of_the_cpu():
    """The host has one name."""
    assert _lock.key(Device("cpu")) == "cpu"


@pytest.mark.gpu
def test_key_of_a_gpu_is_its_uuid():
    """A GPU is known by its UUID, which CUDA_VISIBLE_DEVICES does not change."""
    import torch

    uuid = "".join(c for c in str(torch.cuda.get_device_properties(0).uuid).lower() if c.isalnum())
    assert _lock.key(Device("cuda", 0)) == f"cuda-{uuid}"


def _is_free(path) -> bool:
    """Whether the system would give another program the lock on a file."""
    file = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(file)
    return True


def test_a_turn_inside_a_turn_frees_nothing(tmp_path):
    """The inner one ends, and the device is still held; the outer one ends, and it is free."""
    path = tmp_path / "turns" / "cpu.lock"
    with _lock.turn("cpu"):
        with _lock.turn("cpu"):
            assert not _is_free(path)
        assert not _is_free(path)
    assert _is_free(path)


def test_what_is_no_file_is_no_lock_and_stays_open_nowhere(tmp_path):
    """A folder in the lock's place could be locked, but another user's process would fail: it is told, and its descriptor closed."""
    (tmp_path / "turns" / "cuda-9.lock").mkdir(parents=True)
    with _lock.turn("cuda-9"):
        pass
    fds = Path("/proc/self/fd")
    before = len([*fds.iterdir()]) if fds.is_dir() else 0
    with _lock.turn("cuda-9") as turn:
        assert (turn.taken, turn.problem) == (False, f"{tmp_path / 'turns' / 'cuda-9.lock'} is not a plain file")
    assert (len([*fds.iterdir()]) if before else 0) == before


@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_a_lock_file_is_for_all_users(tmp_path, monkeypatch, umask):
    """Made where no folder is yet, written by its owner alone and read by all, also of a student whose umask keeps others out.

    It is opened to read, through no link, and not by children.
    """
    monkeypatch.setenv("GPULAB_LOCK_DIR", str(tmp_path / "some" / "where"))
    opened, real = [], os.open
    monkeypatch.setattr(os, "open", lambda path, flags, *mode: opened.append(flags) or real(path, flags, *mode))
    mask = os.umask(umask)
    try:
        with _lock.turn("cpu") as turn:
            assert turn.taken
    finally:
        os.umask(mask)
    assert stat.S_IMODE((tmp_path / "some" / "where" / "cpu.lock").stat().st_mode) == 0o644
    assert opened[-1] & os.O_ACCMODE == os.O_RDONLY
    assert all(flags & os.O_NOFOLLOW and flags & os.O_CLOEXEC for flags in opened[-3:])


def test_the_folder_is_one_for_all_users(monkeypatch):
    """Not below a user's own TMPDIR; on Windows in the folder for programs' common data."""
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("GPULAB_LOCK_DIR", "~/turns")  # no shell has written it out in a container's settings
    assert _lock.folder().as_posix() == "/home/me/turns"
    monkeypatch.delenv("GPULAB_LOCK_DIR")
    monkeypatch.setenv("TMPDIR", "/home/me/tmp")
    assert _lock.folder().as_posix() == "/tmp/gpulab-turns"
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setenv("PROGRAMDATA", "D:/Data")
    assert _lock.folder().as_posix() == "D:/Data/gpulab/turns"


def test_keys_of_gpus_are_their_identities(monkeypatch):
    """By PyTorch, by CuPy where PyTorch is not loaded (16 bytes as hexadecimal digits), else by the place in the list."""
    uuid = ["GPU-1a2B"]
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: SimpleNamespace(uuid=uuid[index - 1]))
    assert _lock.key(Device("cuda", 1)) == "cuda-gpu1a2b"
    uuid[0] = ""
    assert _lock.key(Device("cuda", 1)) == "cuda-1"
    assert _lock.key(Device("xpu", 2)) == "xpu-2"
    monkeypatch.delitem(sys.modules, "torch")
    monkeypatch.delitem(sys.modules, "cupy", raising=False)
    assert _lock.key(Device("cuda", 1)) == "cuda-1"
    runtime = SimpleNamespace(getDeviceProperties=lambda index: {"uuid": bytes([index, 255]) * 10})
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=SimpleNamespace(runtime=runtime)))
    assert _lock.key(Device("cuda", 1)) == "cuda-" + "01ff" * 8


# What a call without options means; what it leaves to the device or the machine is None.
USUAL = {
    "compare": {"dtype": "float32", "transfer": False, "relative_width": 0.02, "deadline": 2.0},
    "measure": {"relative_width": 0.02, "deadline": 2.0, "transfer": False, "cold": False},
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(USUAL))
def test_what_a_call_without_options_means(name: str) -> None:
    """Figures in the course's text and in recordings were made with these."""
    found = inspect.signature(getattr(timing, name)).parameters.items()
    left = {key: parameter.default for key, parameter in found if parameter.default not in (None, inspect.Parameter.empty)}
    assert left == USUAL[name]


def test_who_measures_waits_half_a_minute_for_others_at_most():
    """Then it goes on beside them, and says so."""
    assert inspect.signature(_lock.turn).parameters["timeout"].default == 30.0


@pytest.mark.parametrize(("timeout", "pauses"), [(0.02, 2), (0.025, 3), (0.0, 0)])
def test_a_wait_asks_each_hundredth_of_a_second_until_its_end(timeout: float, pauses: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that only the pauses move: the wait is told before each, and is over once the time is up."""
    now, slept, told = [0.0], [], []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] = 0.01 * len(slept)

    monkeypatch.setattr(_lock, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
    wait = _lock._Wait("cpu", timeout, None, told.append)
    assert wait.seconds() == 0.0
    assert [wait.goes_on() for _ in range(pauses + 1)] == [True] * pauses + [False]
    assert slept == [0.01] * pauses
    assert told == pytest.approx([0.01 * k for k in range(pauses + 1)])
