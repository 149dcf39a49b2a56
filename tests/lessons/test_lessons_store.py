"""The progress file: whole or not at all, two kernels at once, strange content set aside."""

from __future__ import annotations

import errno
import json
import os
import pathlib
import subprocess
import sys
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpulab.lessons import _policy, _store


def _mark(id: str):
    return lambda content: content["exercises"].setdefault(id, {}).update(attempts=1)


def test_a_change_is_read_back(progress_file: pathlib.Path):
    """What was changed is in the file and is read again."""
    _store.change(_mark("00.1"))
    assert json.loads(progress_file.read_text())["exercises"] == {"00.1": {"attempts": 1}}
    assert _store.read()["exercises"] == {"00.1": {"attempts": 1}}


def test_the_file_can_be_read_by_people(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    """A line an item, a space before what lies in it, and letters as they are; folders that are missing are made."""
    where = tmp_path / "a" / "folder" / "mine.json"
    monkeypatch.setenv("GPULAB_PROGRESS", str(where))
    _store.change(lambda content: content["predictions"].update({"00.1": {"question": "Wie groß?"}}))
    assert where.read_text(encoding="utf-8").splitlines() == [
        "{", ' "schema": "gpulab-progress",', ' "schema_version": 1,', ' "predictions": {', '  "00.1": {', '   "question": "Wie groß?"',
        "  }", " },", ' "exercises": {},', ' "history": []', "}",
    ]  # fmt: skip


def test_a_file_that_was_mended_by_hand_on_windows_is_read(progress_file: pathlib.Path):
    """An editor there may put a mark before the text: nothing is set aside, and the next change is kept beside what was there."""
    _store.change(_mark("00.1"))
    progress_file.write_bytes(progress_file.read_text().replace("\n", "\r\n").encode("utf-8-sig"))
    assert _store.fault() is None
    _store.change(_mark("00.2"))
    assert set(_store.read()["exercises"]) == {"00.1", "00.2"}
    assert [file.name for file in progress_file.parent.glob("*set-aside*")] == []


def test_the_default_place_is_the_working_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path):
    """Without GPULAB_PROGRESS the file is .gpulab/progress.json where the kernel runs."""
    monkeypatch.delenv("GPULAB_PROGRESS")
    monkeypatch.chdir(tmp_path)
    assert _store.path() == tmp_path / ".gpulab" / "progress.json"


@pytest.mark.skipif(sys.platform == "win32", reason="there a folder in which a program stands cannot be removed")
def test_a_folder_that_was_removed_under_the_kernel_stops_no_lesson(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path):
    """What is answered there is kept in memory, and said once; solutions are shown, for there is no file that withholds them."""
    monkeypatch.delenv("GPULAB_PROGRESS")
    monkeypatch.delenv("GPULAB_CLASS")
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    said: list[str] = []
    _store.change(_mark("00.1"), said.append)
    _store.change(_mark("00.2"), said.append)
    assert [sentence.partition(";")[0] for sentence in said] == [
        f"progress: {pathlib.Path('.gpulab', 'progress.json')} cannot be written (No such file or directory)"
    ]
    assert set(_store.read()["exercises"]) == {"00.1", "00.2"}
    assert _policy.policy() == _policy.Policy("show", "")


def test_a_truncated_file_is_set_aside_and_said(progress_file: pathlib.Path):
    """Half a file is kept under a dated name, a sentence says so, and the change is saved in a new file."""
    _store.change(_mark("00.1"))
    half = progress_file.read_bytes()[:40]
    progress_file.write_bytes(half)
    said: list[str] = []
    _store.change(_mark("00.2"), said.append)
    kept = list(progress_file.parent.glob("progress-set-aside-*.json"))
    assert [file.read_bytes() for file in kept] == [half]
    assert kept[0].name in said[0]
    assert set(_store.read()["exercises"]) == {"00.2"}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"null",
        b'{"schema": "another"}',
        b"\xff\xfe\x00",
        b'{"schema": "gpulab-progress", "schema_version": 99}',
        b"[" * 100_000,
        json.dumps(_store.empty() | {"exercises": {"00.1": "text"}}).encode(),
        json.dumps(_store.empty() | {"predictions": {"00.1": {"first": 5}}}).encode(),
        json.dumps(_store.empty() | {"predictions": {"00.1": {"unit": 5}}}).encode(),
        json.dumps(_store.empty() | {"predictions": {"00.1": {"choices": "yes"}}}).encode(),
    ],
)
def test_a_foreign_file_is_set_aside(progress_file: pathlib.Path, content: bytes):
    """A file that is not ours, from another version, or with the wrong types inside is kept and never overwritten."""
    progress_file.parent.mkdir(parents=True)
    progress_file.write_bytes(content)
    assert _store.read() == _store.empty()
    said: list[str] = []
    _store.change(_mark("00.1"), said.append)
    assert [file.read_bytes() for file in progress_file.parent.glob("*set-aside*")] == [content]
    assert len(said) == 1


def test_two_foreign_files_in_one_second_are_both_kept(progress_file: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    """Setting aside never overwrites an earlier file that was set aside."""
    stamp = SimpleNamespace(isoformat=lambda **_: "now", strftime=lambda form: "now")
    clock = SimpleNamespace(datetime=SimpleNamespace(now=lambda zone: stamp), timezone=SimpleNamespace(utc=None))
    monkeypatch.setattr(_store, "datetime", clock)
    progress_file.parent.mkdir(parents=True)
    for content in (b"one", b"two", b"three"):
        progress_file.write_bytes(content)
        _store.change(_mark("00.1"), lambda said: None)
    kept = sorted(progress_file.parent.glob("*set-aside*"), key=lambda file: file.stem)
    assert [(file.stem.removeprefix("progress-set-aside-"), file.read_bytes()) for file in kept] == [
        ("now", b"one"), ("now-2", b"two"), ("now-3", b"three"),
    ]  # fmt: skip


def test_a_place_that_cannot_be_written_keeps_the_answers_in_memory(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    """A folder that is a file cannot be written; the answers stay for this kernel, one sentence says so, and they are saved later."""
    blocker = tmp_path / "blocker"
    blocker.write_text("a file, not a folder")
    monkeypatch.setenv("GPULAB_PROGRESS", str(blocker / "progress.json"))
    said: list[str] = []
    _store.change(_mark("00.1"), said.append)
    _store.change(_mark("00.2"), said.append)
    assert len(said) == 1
    assert "GPULAB_PROGRESS" in said[0]
    assert set(_store.read()["exercises"]) == {"00.1", "00.2"}
    blocker.unlink()
    _store.change(_mark("00.3"), said.append)
    assert set(json.loads((blocker / "progress.json").read_text())["exercises"]) == {"00.1", "00.2", "00.3"}


def test_a_failed_write_leaves_the_old_file_whole(progress_file: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    """A full disk in the middle of a change leaves the old content, and no part files."""
    _store.change(_mark("00.1"))
    before = progress_file.read_bytes()

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    said: list[str] = []
    _store.change(_mark("00.2"), said.append)
    assert progress_file.read_bytes() == before
    assert sorted(file.name for file in progress_file.parent.iterdir()) == ["progress.json", "progress.json.lock"]
    assert "No space left" in said[0]


@pytest.mark.parametrize("free_after", [2, None])
def test_another_kernels_lock_is_waited_for_and_not_for_ever(
    free_after: int | None, progress_file: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    """One that is let go in time is waited for; one that never is costs two seconds of the clock, and then a sentence."""
    looks, now, said = [0], [0.0], list[str]()
    monkeypatch.setattr(_store, "try_lock", lambda _: (looks.append(1), free_after is not None and sum(looks) > free_after)[1])
    clock = SimpleNamespace(monotonic=lambda: now[0], sleep=lambda seconds: now.append(now.pop() + seconds))
    monkeypatch.setattr(_store, "time", clock)
    _store.change(_mark("00.1"), said.append)
    assert set(_store.read()["exercises"]) == {"00.1"}
    if free_after is not None:
        assert (sum(looks), said) == (3, [])
    else:
        assert 2.0 < now[0] < 2.1
        assert said[0].startswith(f"progress: {progress_file} cannot be written (another kernel holds its lock); ")


def test_a_lock_is_asked_for_a_hundred_times_a_second_and_at_the_end_of_its_time(monkeypatch: pytest.MonkeyPatch):
    """At the second second it is asked once more; half a second later nobody waits."""
    readings, asked, slept = iter((100.0, 102.0, 102.5)), list[int](), list[float]()
    monkeypatch.setattr(_store, "try_lock", asked.append)
    monkeypatch.setattr(_store, "time", SimpleNamespace(monotonic=lambda: next(readings), sleep=slept.append))
    _store.change(_mark("00.1"), lambda said: None)
    assert (len(asked), slept) == (2, [0.01])


def test_progress_is_saved_where_the_file_system_knows_no_locks(progress_file: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    """ENOSYS is what flock(2) gives on Lustre mounted without flock; the folder can be written, so it is, and nothing is said."""

    def unknown(descriptor: int) -> bool:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(_store, "try_lock", unknown)
    said: list[str] = []
    _store.change(_mark("00.1"), said.append)
    assert (set(json.loads(progress_file.read_text())["exercises"]), said) == ({"00.1"}, [])


def test_a_change_that_fails_by_itself_is_not_tried_again():
    """Its error is the caller's, and what is changed next is saved without it."""

    def broken(content: object) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        _store.change(broken)
    _store.change(_mark("00.1"))
    assert set(_store.read()["exercises"]) == {"00.1"}


def test_many_kernels_at_once_lose_nothing(progress_file: pathlib.Path):
    """Four processes that make 25 changes each leave all 100 in the file."""
    code = (
        "import sys\nfrom gpulab.lessons import _store\n"
        "for i in range(25):\n _store.change(lambda c: c['exercises'].setdefault(f'{sys.argv[1]}.{i}', {}).update(attempts=1))\n"
    )
    environment = os.environ | {"GPULAB_PROGRESS": str(progress_file)}
    workers = [subprocess.Popen([sys.executable, "-c", code, str(k)], env=environment) for k in range(4)]
    assert [worker.wait(timeout=60) for worker in workers] == [0, 0, 0, 0]
    assert len(_store.read()["exercises"]) == 100


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=300) | st.recursive(st.none() | st.text(max_size=5) | st.floats(), lambda inner: st.dictionaries(
    st.sampled_from(["schema", "predictions", "exercises", "history", "00.1", "first", "later"]), inner, max_size=4)).map(
        lambda value: json.dumps(_store.empty() | value if isinstance(value, dict) else value).encode()))  # fmt: skip
def test_any_content_is_survived_and_kept(progress_file: pathlib.Path, content: bytes):
    """Whatever the file holds, a change works afterwards and the strange bytes still exist somewhere."""
    progress_file.parent.mkdir(parents=True, exist_ok=True)
    progress_file.write_bytes(content)
    foreign = _store._load(progress_file)[1] is not None
    _store.change(_mark("00.9"), lambda said: None)
    assert _store.read()["exercises"]["00.9"]["attempts"] == 1
    aside = list(progress_file.parent.glob("*set-aside*"))
    assert ([file.read_bytes() for file in aside] == [content]) if foreign else (aside == [])
    for file in aside:
        file.unlink()
