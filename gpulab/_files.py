"""Write a file completely or not at all: a crash or a full disk never leaves half a file."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import secrets
import stat
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

# The errors of a file system without locks, such as Lustre mounted without its option flock, or
# NFS without a lock daemon.
_NO_LOCKS = frozenset({errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK})

_POLL_SECONDS = 0.01  # between two tries to lock a file

_AT_ONCE = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0) | getattr(os, "O_BINARY", 0)


def open_regular(path: str | os.PathLike[str], flags: int) -> int:
    """Open a regular file without ever waiting; for use as the ``opener`` of ``open``.

    In a shared folder any user can put a FIFO in the file's place, and opening a FIFO can block.

    Raises
    ------
    OSError
        If it cannot be opened, or is a FIFO, a device or a folder.
    """
    file = os.open(path, flags | _AT_ONCE, 0o666)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return file


def read_regular(path: Path, most: int = 2**26) -> bytes:
    """Return the content of a regular file; refuse others, such as /dev/zero, which has no end.

    Raises
    ------
    OSError
        If it cannot be opened, is no regular file, or holds more than ``most`` bytes.
    """
    with open(path, "rb", opener=open_regular) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise OSError(errno.EFBIG, f"{size:,} bytes, more than {most:,}", str(path))
        return file.read(size)


def write_atomically(path: Path, content: bytes) -> None:
    """Write ``content`` to ``path``: a reader sees the old file or the new one, never a partial
    file.

    A file that is replaced keeps its mode and, where permitted, its owner and group; a link stays,
    and the file that it names is replaced.

    Parameters
    ----------
    path : Path
        The file; its folder is made where it is missing.
    content : bytes
        The content of the file.

    Raises
    ------
    OSError
        If the folder cannot be written to, the disk is full, or ``path`` is not a regular file;
        ``path`` is then unchanged.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    path, before = _destination(path)
    mode = 0o666 if before is None else stat.S_IMODE(before.st_mode)
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        with open(part, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            if before is not None:
                # fails for another user's file or a group that the user left; Windows has no chown
                with contextlib.suppress(OSError, AttributeError):
                    os.chown(part, before.st_uid, before.st_gid)
                part.chmod(mode)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def _destination(path: Path) -> tuple[Path, os.stat_result | None]:
    """Return the file that a path names, with links followed, and its ``stat`` result; the latter
    is None if the file does not exist.
    """
    try:
        # stat before realpath: only stat lets the system refuse a link in a shared folder
        before = path.stat()
    except FileNotFoundError:
        before = None
    if before is not None and not stat.S_ISREG(before.st_mode):
        raise OSError(
            errno.EISDIR if stat.S_ISDIR(before.st_mode) else errno.EINVAL,
            "not a regular file",
            str(path),
        )
    return Path(os.path.realpath(path)), before


def free_name(path: Path) -> Path:
    """Return the path if it does not exist yet, else a path with a free number after its stem."""
    others = (path.with_name(f"{path.stem}-{n}{path.suffix}") for n in itertools.count(2))
    return next(place for place in itertools.chain([path], others) if not place.exists())


def refuse_unwritable(path: Path) -> None:
    """Check, before long work, whether a file can be written afterwards; nothing is left behind.

    Parameters
    ----------
    path : Path
        The file; its folder may be missing.

    Raises
    ------
    OSError
        If it is not a regular file, if its parent is not a folder or cannot be written to, or (on
        Windows) another program has it open.
    """
    path, _ = _destination(path)
    # Test by creating a file, because permissions are not enough: root has all of them, even where
    # no file can be created (/proc), and Windows checks only an old attribute.
    tempfile.TemporaryFile(
        dir=next((place for place in path.parents if place.exists()), path.parent), prefix="."
    ).close()
    if sys.platform == "win32" and path.exists():
        # on Windows a program that has the file open, such as a spreadsheet, blocks its replacement
        path.open("r+b").close()


def try_lock(descriptor: int, otherwise: bool | None = None) -> bool:
    """Lock an open file or folder for this process without waiting; return False if another process
    holds the lock.

    Closing the file frees the lock, and so does the end of the process, so nothing has to be tidied
    up after a crash.

    Parameters
    ----------
    descriptor : int
    otherwise : bool, optional
        What to return if the file system has no locks.

    Raises
    ------
    OSError
        If it cannot be locked; without ``otherwise``, also if the file system has no locks.
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
    except OSError as error:
        if otherwise is None or error.errno not in _NO_LOCKS:
            raise
        return otherwise
    return True


@contextlib.contextmanager
def exclusive(lock: Path, wait_seconds: float = 0.0) -> Iterator[bool]:
    """Hold a lock while the block runs; yield True, or False if another process holds it all the
    time.

    On a file system without locks it yields True: other processes cannot be detected there, and
    the guarded file can be written.

    The empty file of the lock stays: removing it would let two processes lock two different files
    of the same name.

    Parameters
    ----------
    lock : Path
        The file to lock. It need not exist, but its folder must.
    wait_seconds : float
        How long to wait for another process.

    Raises
    ------
    OSError
        If the folder cannot be written to.
    """
    with open(lock, "a+b", opener=open_regular) as file:
        deadline = time.monotonic() + wait_seconds
        free = try_lock(file.fileno(), otherwise=True)
        while not free and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
            free = try_lock(file.fileno(), otherwise=True)
        yield free
