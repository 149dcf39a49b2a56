"""A file is written whole or not at all."""

from __future__ import annotations

import errno
import os
import sys
import types
from pathlib import Path

import pytest

from gpulab._files import alone, refuse_unwritable, try_lock, write_atomically


def test_content_is_written_and_replaced(tmp_path: Path) -> None:
    """The folder is made, an old file is replaced, and nothing else is left behind."""
    path = tmp_path / "a" / "b.json"
    write_atomically(path, b"one")
    write_atomically(path, b"two")
    assert path.read_bytes() == b"two"
    assert list(path.parent.iterdir()) == [path]


def test_failure_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that is full when the data are flushed costs neither the old file nor a stray one."""
    path = tmp_path / "b.json"
    write_atomically(path, b"old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_what_could_not_be_written_is_told_before(tmp_path: Path) -> None:
    """A folder in the file's place and a file in a folder's place are refused; a free place, and one in a new folder, stay as they are."""
    (tmp_path / "taken").mkdir()
    (tmp_path / "file").write_bytes(b"old")
    file = tmp_path / "file"
    for path, error, whose in ((tmp_path / "taken", IsADirectoryError, tmp_path / "taken"), (file / "x", NotADirectoryError, file)):
        with pytest.raises(error) as refused:
            refuse_unwritable(path)
        assert refused.value.filename == str(whose)
        assert refused.value.strerror == os.strerror(refused.value.errno)  # a sentence is made of it
        with pytest.raises(OSError, match=r"taken|file"):
            write_atomically(path, b"new")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "access", lambda place, mode: place != tmp_path)
        with pytest.raises(PermissionError) as refused:
            refuse_unwritable(tmp_path / "new" / "x")
        assert (refused.value.strerror, refused.value.filename) == ("Permission denied", str(tmp_path))
    refuse_unwritable(tmp_path / "new" / "deep" / "x.csv")
    refuse_unwritable(tmp_path / "file")
    assert {path.name for path in tmp_path.iterdir()} == {"taken", "file"}
    assert (tmp_path / "file").read_bytes() == b"old"


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="Linux has a folder where nobody can make a file")
def test_a_folder_where_the_rights_say_yes_and_the_system_no_is_told_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Root may write everywhere, access(2) says; in /proc nobody can make anything."""
    monkeypatch.setattr(os, "access", lambda place, mode: True)
    for path in (Path("/proc/x"), Path("/proc/x/index.html")):
        with pytest.raises(OSError, match="/proc"):
            refuse_unwritable(path)


def test_where_only_folders_may_be_made_a_new_one_is_no_obstacle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the root of a Windows drive users may make folders and no files (icacls: Authenticated Users:(AD), and (M) for what is below)."""
    make = os.open

    def denied(path: Path, *how: int) -> int:
        if Path(path).parent == tmp_path:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return make(path, *how)

    monkeypatch.setattr(os, "open", denied)
    refuse_unwritable(tmp_path / "pages" / "index.html")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(PermissionError):
        refuse_unwritable(tmp_path / "grades.csv")


def test_a_drive_that_is_not_there_is_told_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """On Windows a path may have no folder at all that is there."""
    monkeypatch.setattr(Path, "exists", lambda place: False)
    with pytest.raises(FileNotFoundError) as refused:
        refuse_unwritable(Path("grades.csv"))
    assert (refused.value.strerror, refused.value.filename) == ("No such file or directory", "grades.csv")


def test_a_file_that_a_spreadsheet_has_open_is_told_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On Windows it cannot be replaced, and opening it to write is denied too; elsewhere it is replaced whoever has it open."""
    (tmp_path / "grades.csv").write_bytes(b"old")

    def denied(path: Path, mode: str) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(Path, "open", denied)
    refuse_unwritable(tmp_path / "grades.csv")
    monkeypatch.setattr("gpulab._files.sys", types.SimpleNamespace(platform="win32"))
    with pytest.raises(PermissionError):
        refuse_unwritable(tmp_path / "grades.csv")
    refuse_unwritable(tmp_path / "new.csv")


@pytest.mark.skipif(os.name == "nt", reason="Windows has no file mode of this kind")
def test_file_has_the_mode_that_the_user_chose(tmp_path: Path) -> None:
    """The umask decides, as for any file that a program opens."""
    old = os.umask(0o027)
    try:
        write_atomically(tmp_path / "x", b"")
    finally:
        os.umask(old)
    assert (tmp_path / "x").stat().st_mode & 0o777 == 0o640


def test_only_one_holds_the_lock_beside_a_file(tmp_path: Path) -> None:
    """The second is told at once and may come when the first has gone; the empty lock file stays."""
    path = tmp_path / "r.json"
    with alone(path) as first:
        assert first is True
        with alone(path) as second:
            assert second is False
        with alone(tmp_path / "other.json") as other:
            assert other is True
    with alone(path) as again:
        assert again is True
    assert {file.name for file in tmp_path.iterdir()} == {".r.json.lock", ".other.json.lock"}


@pytest.mark.parametrize("fault", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_written_to_all_the_same(fault: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As flock(2) answers on Lustre mounted without flock, on NFS without its daemon, and elsewhere; any other fault is told."""
    fcntl = pytest.importorskip("fcntl")

    def flock(descriptor: int, how: int) -> None:
        raise OSError(fault, os.strerror(fault))

    monkeypatch.setattr(fcntl, "flock", flock)
    with alone(tmp_path / "r.json") as free:
        assert free is True
    fault = errno.EIO
    with pytest.raises(OSError, match="Input/output"), alone(tmp_path / "r.json"):
        pass


def test_a_part_is_whole_before_it_takes_the_files_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is pressed onto the disk is all of the content, in folders made as deep as they are named; else a power cut could halve it."""
    sizes: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: sizes.append(os.fstat(descriptor).st_size))
    write_atomically(tmp_path / "a" / "b" / "c", b"seven..")
    assert sizes == [7]


@pytest.mark.skipif(os.name == "nt", reason="Windows counts the letters of the whole path")
def test_a_name_of_240_letters_is_written(tmp_path: Path) -> None:
    """A name has 255 bytes (limits.h, NAME_MAX): a point before it, and a point, eight digits and .part after it, are fifteen."""
    write_atomically(tmp_path / ("n" * 240), b"x")
    assert [path.name for path in tmp_path.iterdir()] == ["n" * 240]


def test_a_part_that_cannot_be_made_is_told_as_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not as a part that is missing when it is to be taken away."""

    def denied(path: Path, mode: str) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(Path, "open", denied)
    with pytest.raises(PermissionError, match="Permission denied"):
        write_atomically(tmp_path / "x", b"")


def test_on_windows_the_first_byte_is_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its locks begin where the file is read from: two processes must lock the same byte, without waiting; a taken one is no error."""
    locked: list[tuple[int, int, int]] = []

    def locking(descriptor: int, how: int, nbytes: int) -> None:
        if locked:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        locked.append((os.lseek(descriptor, 0, os.SEEK_CUR), how, nbytes))

    monkeypatch.setitem(sys.modules, "msvcrt", types.SimpleNamespace(LK_NBLCK=2, locking=locking))  # type: ignore[arg-type]
    monkeypatch.setattr("gpulab._files.sys", types.SimpleNamespace(platform="win32"))
    (tmp_path / "x").write_bytes(b"12345")
    with (tmp_path / "x").open("r+b") as file:
        file.seek(3)
        assert try_lock(file.fileno()) is True
        assert try_lock(file.fileno()) is False
    assert locked == [(0, 2, 1)]
