"""A real interrupt of a real kernel, a file that two processes write, and a disk that takes nothing."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
from typing import Any

import pytest

import gpulab as gl
from gpulab._files import alone
from gpulab.errors import InputError, RecordingError

SECONDS = 120


@pytest.fixture(name="kernel")
def _kernel(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A fresh kernel of this environment with gpulab loaded."""
    from jupyter_client.manager import start_new_kernel

    monkeypatch.setenv("GPULAB_LOCK_DIR", str(tmp_path / "turns"))
    manager, client = start_new_kernel(kernel_name="python3")
    try:
        yield manager, client
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def _run(client: Any, code: str, on_text: Any = None) -> tuple[str, str | None]:
    """Run a cell; return what it printed and the name of its error. ``on_text`` is called once something is printed."""
    client.execute(code)
    printed, error = "", None
    while True:
        message = client.get_iopub_msg(timeout=SECONDS)
        content = message["content"]
        if message["msg_type"] == "stream":
            printed += content["text"]
            if on_text is not None:
                on_text()
                on_text = None
        elif message["msg_type"] == "error":
            error = content["ename"]
        elif (
            message["msg_type"] == "status"
            and content["execution_state"] == "idle"
            and message["parent_header"].get("msg_type") == "execute_request"
        ):
            return printed, error


INTERRUPTED = {
    "measure": "gl.measure(work, deadline=60)",
    "compare": "gl.compare({'a': work, 'b': work}, deadline=60)",
    "sweep": "work(); gl.transfer.sweep('cpu', sizes=[2**20 + i for i in range(500)], deadline=60)",
    "%gpu_time": "get_ipython().run_line_magic('gpu_time', '-t 60 work()')",
}


@pytest.mark.slow
def test_an_interrupted_kernel_stays_usable(kernel: Any) -> None:
    """SIGINT in the middle of each kind of measurement ends the cell with KeyboardInterrupt; the next measurement has its turn at once."""
    manager, client = kernel
    start = (
        "import gpulab as gl, gc, time\n%load_ext gpulab\ncalls = [0]\n"
        "def work():\n    calls[0] += 1\n    time.sleep(1e-3)\n    if calls[0] == 5: print('under way', flush=True)"
    )
    assert _run(client, start)[1] is None
    for name, code in INTERRUPTED.items():
        _run(client, f"calls[0] = {4 if name == 'sweep' else 0}")
        assert _run(client, code, manager.interrupt_kernel)[1] == "KeyboardInterrupt", name
        after = "m = gl.measure(sum, [1, 2], deadline=0.05)\nprint(m.has_note('turn-taking'), gc.get_freeze_count(), m.median_seconds > 0)"
        assert _run(client, after) == ("False 0 True\n", None), name


ANSWERING = """
import sys
import gpulab as gl
for i in range(20):
    gl.lessons.predict(f"99.{sys.argv[1]}{i}", "How long?", unit="us").submit(i + 1)
"""


def test_two_kernels_lose_no_answer(tmp_path: pathlib.Path) -> None:
    """Two processes that answer twenty questions each at the same time both find all their answers kept."""
    import json

    file = tmp_path / "progress.json"
    environment = {**os.environ, "GPULAB_PROGRESS": str(file)}
    workers = [subprocess.Popen([sys.executable, "-c", ANSWERING, name], env=environment) for name in "ab"]
    assert [worker.wait(SECONDS) for worker in workers] == [0, 0]
    kept = json.loads(file.read_text())["predictions"]
    assert {key for key in kept if kept[key]["first"]["value"] > 0} == {f"99.{name}{i}" for name in "ab" for i in range(20)}


def test_a_change_that_fails_does_not_take_the_others_along(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A change that JSON cannot hold is refused once; the answers after it are saved as ever."""
    from gpulab.lessons import _store

    monkeypatch.setenv("GPULAB_PROGRESS", str(tmp_path / "progress.json"))

    def impossible(content: dict[str, Any]) -> None:
        content["predictions"][b"bytes"] = {}

    with pytest.raises(TypeError):
        _store.change(impossible)
    gl.lessons.predict("99.1", "How long?", unit="us").submit(5)
    assert '"99.1"' in (tmp_path / "progress.json").read_text()


@pytest.mark.parametrize("id", [b"x", (), [], {}, 5, None, "", 2.5])
def test_an_id_that_is_no_text_is_refused(id: Any) -> None:
    """Every lesson function that takes an id refuses one that is no text in one sentence; a check never raises."""
    for call in (
        lambda: gl.lessons.predict(id, "?"),
        lambda: gl.lessons.answer(id, 1),
        lambda: gl.lessons.reveal(id, 1.0),
        lambda: gl.lessons.solution(id),
    ):
        with pytest.raises(InputError, match="expected"):
            call()
    assert gl.lessons.check(id, 1).state == "not attempted"


def test_a_second_recorder_is_kept_off_the_file(tmp_path: pathlib.Path) -> None:
    """While one recorder has the file, another one ends with one sentence and changes nothing; afterwards it may."""
    out = tmp_path / "machine.json"
    with alone(out) as mine:
        assert mine
        with pytest.raises(RecordingError, match="another gpulab record"):
            gl.recorder.record(out, minutes=0.01, only=["transfer"])
        assert not out.exists()
    with alone(out) as mine:
        assert mine


def test_restart_that_measures_nothing_keeps_the_old_recording(tmp_path: pathlib.Path) -> None:
    """``--restart`` stopped before its first case leaves the file as it was."""
    out = tmp_path / "machine.json"
    gl.recorder.record(out, minutes=0.003, only=["transfer"])
    before = out.read_bytes()
    with pytest.raises(gl.errors.StoppedError):
        gl.recorder.record(out, minutes=0.01, only=["transfer"], restart=True, stop=lambda: True)
    assert out.read_bytes() == before


@pytest.mark.skipif(not pathlib.Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_full_disk_is_one_sentence(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk without room ends the recorder with one sentence, on the command line with code 2 and no traceback."""

    def full(*args: Any) -> None:
        with pathlib.Path("/dev/full").open("w") as file:
            file.write("x" * 10)

    monkeypatch.setattr("gpulab.recordings._files.write_atomically", full)
    with pytest.raises(RecordingError, match="No space left on device"):
        gl.recorder.record(tmp_path / "machine.json", minutes=0.003, only=["transfer"])


@pytest.mark.parametrize("out", [".", "nowhere/machine.json", "", "a\0b"])
def test_a_name_that_is_no_file_is_one_sentence(out: str) -> None:
    """A folder, a folder that is not there, and what is no name at all are refused before anything is measured."""
    with pytest.raises(InputError, match="expected"):
        gl.recorder.record(out, minutes=0.01)


def test_the_command_line_shows_no_traceback(tmp_path: pathlib.Path) -> None:
    """An error of ours on the command line is one line and exit code 2."""
    done = subprocess.run(
        [sys.executable, "-m", "gpulab.cli", "record", "--out", str(tmp_path), "--minutes", "1"],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "is a folder" in done.stderr
