"""Write a file completely or not at all, so that a crash or a full disk never leaves a partial file behind."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import sys
from collections.abc import Iterator
from pathlib import Path

# What a file system says that knows no locks, such as Lustre without its option flock, or NFS without a lock daemon.
NO_LOCKS = frozenset({errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK})


def write_atomically(path: Path, content: bytes) -> None:
    """Write ``content`` to ``path``: a reader sees the old file or the new one, never a partial file.

    Parameters
    ----------
    path : Path
        The file; its folder is made where it is missing.
    content : bytes
        The content of the file.

    Raises
    ------
    OSError
        If the folder cannot be written to, or the disk is full; the file at ``path`` is then unchanged.
    """
    if path.is_dir():  # "." and "/" have no name, for which with_name raises ValueError
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        with part.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def refuse_unwritable(path: Path) -> None:
    """Check, before long work, whether a file can be written afterwards; nothing is left behind.

    Parameters
    ----------
    path : Path
        The file; its folder may be missing.

    Raises
    ------
    OSError
        If it is a folder, if its parent is not a folder or cannot be written to, or (on Windows) another program has it open.
    """
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    there = next((place for place in path.absolute().parents if place.exists()), None)
    if there is None:  # a drive or a share of Windows that is not there
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    if not there.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(there))
    if not os.access(there, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(there))
    # The rights do not tell all: root has every one, also where nothing can be made (/proc), and Windows looks at one old attribute.
    probe = there / f".{secrets.token_hex(4)}.part"
    if there == path.absolute().parent:
        os.close(os.open(probe, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        probe.unlink()
    else:  # its folder will be made: in the root of a Windows drive users may make folders, and no files
        probe.mkdir()
        probe.rmdir()
    if sys.platform == "win32" and path.exists():
        path.open("r+b").close()  # a program that has it open keeps others from replacing it there, as a spreadsheet does


def try_lock(descriptor: int) -> bool:
    """Lock an open file for this process without waiting; False while another one has it.

    Closing the file frees the lock, and so does the end of the process, so nothing has to be tidied up after a crash.

    Raises
    ------
    OSError
        If it cannot be locked; with one of ``NO_LOCKS`` where its file system knows none.
    """
    try:
        if sys.platform == "win32":
            import msvcrt

            os.lseek(descriptor, 0, os.SEEK_SET)
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    return True


@contextlib.contextmanager
def alone(path: Path) -> Iterator[bool]:
    """Hold a lock beside ``path`` while the block runs; gives False, without waiting, where another process holds it.

    On a file system that knows no locks it gives True: other processes cannot be detected there, and the file can be written.

    The empty file ``.NAME.lock`` stays: removing it would let two processes lock two different files of the same name.

    Parameters
    ----------
    path : Path
        What is guarded; it need not exist, its folder must.

    Raises
    ------
    OSError
        If the folder cannot be written to.
    """
    with path.with_name(f".{path.name}.lock").open("a+b") as file:
        try:
            free = try_lock(file.fileno())
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
            free = True
        yield free
