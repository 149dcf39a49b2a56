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
from collections.abc import Iterator
from pathlib import Path

# What a file system says that knows no locks, such as Lustre without its option flock, or NFS
# without a lock daemon.
_NO_LOCKS = frozenset({errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK})

_AT_ONCE = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0) | getattr(os, "O_BINARY", 0)


def open_regular(path: str | os.PathLike[str], flags: int, mode: int = 0o666) -> int:
    """Open a regular file without ever waiting, as an ``opener`` of ``open``: any user can put a
    FIFO into a shared folder.

    Raises
    ------
    OSError
        If it cannot be opened, or is a FIFO, a device or a folder.
    """
    file = os.open(path, flags | _AT_ONCE, mode)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return file


def read_regular(path: Path, most: int = 2**26) -> bytes:
    """Return the content of a regular file: a device such as /dev/zero has no end.

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
        If the folder cannot be written to, the disk is full, or ``path`` is not a regular file; it
        is then unchanged.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    path, before = _destination(path)
    mode = 0o666 if before is None else stat.S_IMODE(before.st_mode)
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        with open(part, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            if before is not None:
                # one of another user's, or of a group that the user left; Windows
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
    """Return the file that a path names, links followed, and its state; None where it does not
    exist.
    """
    try:
        # first: the system decides whether a link in a shared folder may be followed
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
    """Return the path, or one with a number behind its name where there is such a file already."""
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
    # Tried: the rights do not tell all. Root has every one, also where nothing can be made (/proc),
    # and Windows looks at one old attribute.
    tempfile.TemporaryFile(
        dir=next((place for place in path.parents if place.exists()), path.parent), prefix="."
    ).close()
    if sys.platform == "win32" and path.exists():
        # a program that has it open keeps others from replacing it there, as a spreadsheet does
        path.open("r+b").close()


def try_lock(descriptor: int, otherwise: bool | None = None) -> bool:
    """Lock an open file or folder for this process without waiting; False while another one has it.

    Closing the file frees the lock, and so does the end of the process, so nothing has to be tidied
    up after a crash.

    Parameters
    ----------
    descriptor : int
    otherwise : bool, optional
        What to return where the file system knows no locks.

    Raises
    ------
    OSError
        If it cannot be locked; without ``otherwise``, also where its file system knows no locks.
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
def exclusive(path: Path) -> Iterator[bool]:
    """Hold a lock beside ``path`` while the block runs; gives False, without waiting, where another
    process holds it.

    On a file system that knows no locks it gives True: other processes cannot be detected there,
    and the file can be written.

    The empty file ``.NAME.lock`` stays: removing it would let two processes lock two different
    files of the same name.

    Parameters
    ----------
    path : Path
        What is guarded; it need not exist, its folder must.

    Raises
    ------
    OSError
        If the folder cannot be written to.
    """
    with open(path.with_name(f".{path.name}.lock"), "a+b", opener=open_regular) as file:
        yield try_lock(file.fileno(), otherwise=True)
