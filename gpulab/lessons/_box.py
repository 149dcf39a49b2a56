"""A sandbox for untrusted code, made of the Linux kernel's namespaces.

Code in a box sees Python, the libraries and gpulab, but cannot change them. It also sees an empty
``/box`` (also ``/tmp``) and ``/dev/shm`` in memory, and its own processes. It reaches no network,
no file of the instructor and no process outside, has no capability, and ends with the box. The
kernel and the processor are shared, so a box does not protect against faults of the kernel or
against measurements through caches. A box needs Linux 5.12, an x86-64 or ARM64 processor, and the
right to make namespaces, which unprivileged users have unless the system or a container forbids it.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import platform
import signal
import socket
import struct
import sys
from pathlib import Path
from typing import Any

# <linux/sched.h>, <linux/mount.h>, <linux/prctl.h>, <linux/capability.h>, <linux/sockios.h>
# namespaces of mounts, host names, IPC, processes and the network
_NEW_NAMESPACES = 0x00020000 | 0x04000000 | 0x08000000 | 0x20000000 | 0x40000000
_NEW_USER = 0x10000000
_NOSUID, _NODEV, _NOEXEC, _BIND, _MOVE, _RECURSIVE, _PRIVATE = 2, 4, 8, 4096, 8192, 16384, 1 << 18
_MOUNT_SETATTR, _HERE, _AND_BELOW, _READ_ONLY = 442, -100, 0x8000, 1
_PARENT_DEATH_SIGNAL, _DUMPABLE, _SET_FILTER, _SUBREAPER, _NO_NEW_PRIVILEGES = 1, 4, 22, 36, 38
_CAPABILITIES_VERSION = 0x20080522
_SET_INTERFACE_FLAGS, _UP = 0x8914, 1
_NOBODY = 65534
_MEMORY_FILES = "size=64m,nr_inodes=4096,mode=1777"
_PROCESSES = 256  # all processes and threads; checks with ranks take about a hundred
_SYSTEM = (
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib64",
    "/nix/store",
    "/etc/ld.so.cache",
    "/etc/hosts",
    "/sys/devices/system/cpu",
    "/dev/null",
    "/dev/random",
    "/dev/urandom",
)
# For each processor: the kernel's number for it, and the numbers of the calls mmap, socket, clone,
# and of those that are always refused. The latter make memory that belongs to no process (shmget,
# memfd_create, memfd_secret) or other namespaces (unshare, and clone3, whose flags a filter cannot
# see), or make calls that no filter sees (io_uring_setup).
_CALLS = {
    "x86_64": (0xC000003E, 9, 41, 56, (29, 319, 447, 272, 435, 425)),
    "aarch64": (0xC00000B7, 222, 198, 220, (194, 279, 447, 97, 435, 425)),
}
# <linux/bpf_common.h>, <linux/seccomp.h>
_LOAD, _AND, _IF_EQUAL, _IF_ABOVE, _IF_BITS, _RETURN = 0x20, 0x54, 0x15, 0x25, 0x45, 0x06
_ALLOW, _END, _REFUSE, _BY_PROGRAM = 0x7FFF0000, 0x80000000, 0x00050000 + errno.ENOSYS, 2


def _call(name: str, *arguments: Any) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*arguments) < 0:
        raise OSError(ctypes.get_errno(), f"{name}: {os.strerror(ctypes.get_errno())}")


def _mount(source: str, target: str, kind: str = "", flags: int = 0, data: str = "") -> None:
    _call(
        "mount",
        os.fsencode(source),
        os.fsencode(target),
        kind.encode() or None,
        ctypes.c_ulong(flags),
        data.encode() or None,
    )


def adopt_orphans() -> None:
    """Let this process adopt processes below it that lose their parent, so that none is lost."""
    _call("prctl", _SUBREAPER, 1, 0, 0, 0)


def works(folder: str) -> bool:
    """Return whether this system allows a box, by entering one in a child process."""
    child = os.fork()
    if child == 0:
        with contextlib.suppress(Exception):
            enter(folder)
            os._exit(0)
        os._exit(1)
    return os.waitpid(child, 0)[1] == 0


def enter(root: str) -> None:
    """Return in a new process inside a new box, with the working directory ``/box``. The calling
    process must have only one thread. It waits for the new process and exits with its exit code.

    Parameters
    ----------
    root : str
        An empty folder.

    Raises
    ------
    OSError
        If the system does not allow it. The process is then not in a box.
    """
    import fcntl
    import resource

    user, group = os.getuid(), os.getgid()
    _call("unshare", _NEW_NAMESPACES | (_NEW_USER if user else 0))
    if user:
        for name, text in (
            ("setgroups", "deny"),
            ("uid_map", f"{user} {user} 1"),
            ("gid_map", f"{group} {group} 1"),
        ):
            Path("/proc/self", name).write_text(text)
    _follow()
    _mount("none", "/", flags=_RECURSIVE | _PRIVATE)
    _mount("box", root, "tmpfs", _NOSUID, "size=1m,mode=755")
    _fill(root)
    _mount("proc", f"{root}/proc", "proc", _NOSUID | _NODEV | _NOEXEC)
    for name in ("/box", "/dev/shm"):
        _mount("box", root + name, "tmpfs", _NOSUID | _NODEV, _MEMORY_FILES)
    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, _SET_INTERFACE_FLAGS, struct.pack("16sh", b"lo", _UP))
    os.chdir(root)
    _mount(".", "/", flags=_MOVE)
    os.chroot(".")
    os.chdir("/box")
    if not user:
        os.setgroups([])
        os.setresgid(_NOBODY, _NOBODY, _NOBODY)
        os.setresuid(_NOBODY, _NOBODY, _NOBODY)
    _call("capset", (ctypes.c_uint32 * 2)(_CAPABILITIES_VERSION, 0), (ctypes.c_uint32 * 6)())
    for option, value in (
        (_NO_NEW_PRIVILEGES, 1),
        (_DUMPABLE, 1),
        (_PARENT_DEATH_SIGNAL, signal.SIGKILL),
    ):
        _call("prctl", option, int(value), 0, 0, 0)
    _filter_calls()
    resource.setrlimit(resource.RLIMIT_NPROC, (_PROCESSES, _PROCESSES))
    _follow()  # the first process of a box ignores signals from inside, and all others end with it


def _follow() -> None:
    """Continue in a child process; the parent waits for it and exits with its exit code."""
    child = os.fork()
    while child:
        ended, status = os.wait()
        if ended == child:
            os._exit(os.waitstatus_to_exitcode(status) & 255)


def _filter_calls() -> None:
    """Refuse, from here on, the system calls that would get around the box's limits: they fail as
    if the kernel did not have them.
    """
    if platform.machine() not in _CALLS:
        raise OSError(errno.ENOSYS, f"no filter is known for {platform.machine()}")
    processor, mmap, socket_, clone, never = _CALLS[platform.machine()]
    # in a step, the two numbers in the middle: how many steps to skip if its test is true, and if
    # not
    number, refuse = (_LOAD, 0, 0, 0), (_RETURN, 0, 0, _REFUSE)
    steps = [  # the first argument lies at 16; each takes 8 bytes
        *((_LOAD, 0, 0, 4), (_IF_EQUAL, 1, 0, processor), (_RETURN, 0, 0, _END)),
        # larger numbers are second names of the same calls (x32)
        *(number, (_IF_ABOVE, 0, 1, 0x3FFFFFFF), refuse),
        *(step for each in never for step in ((_IF_EQUAL, 0, 1, each), refuse)),
        # Shared memory without a file can remain after it has left every process's address space.
        *(
            (_IF_EQUAL, 0, 4, mmap),
            (_LOAD, 0, 0, 40),
            (_AND, 0, 0, 0x21),
            (_IF_EQUAL, 0, 1, 0x21),
            refuse,
            number,
        ),
        *((_IF_EQUAL, 0, 3, clone), (_LOAD, 0, 0, 16), (_IF_BITS, 0, 1, _NEW_USER), refuse, number),
        # Allow local, IPv4, IPv6 and netlink sockets. Other kinds, such as those to a virtual
        # machine's host, are not separated by network namespaces.
        *(
            (_IF_EQUAL, 0, 5, socket_),
            (_LOAD, 0, 0, 16),
            (_IF_EQUAL, 3, 0, 10),
            (_IF_EQUAL, 2, 0, 16),
            (_IF_ABOVE, 0, 1, 2),
            refuse,
        ),
        (_RETURN, 0, 0, _ALLOW),
    ]
    program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    _call(
        "prctl", _SET_FILTER, _BY_PROGRAM, struct.pack("HP", len(steps), ctypes.addressof(program))
    )


def _fill(root: str) -> None:
    """Mount the system's libraries, Python and gpulab read-only below a folder, and create the
    folders for the mounts of the box itself.
    """
    packages = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    python = [
        str(Path(sys.executable).resolve().parents[1]),
        sys.base_prefix,
        sys.prefix,
        *packages,
        str(Path(__file__).parents[1]),
    ]
    for path in dict.fromkeys((*_SYSTEM, *python)):
        inside = Path(root + path)
        inside.parent.mkdir(parents=True, exist_ok=True)
        if path in _SYSTEM and Path(path).is_symlink():
            inside.symlink_to(Path(path).readlink())
        elif Path(path).exists():
            inside.mkdir(exist_ok=True) if Path(path).is_dir() else inside.touch()
            _mount(path, str(inside), flags=_BIND | _RECURSIVE)
    for name in ("proc", "box", "dev/shm"):
        Path(root, name).mkdir(parents=True)
    if not Path(root, "tmp").exists():
        Path(root, "tmp").symlink_to("box")
    # A device can still be written to on a read-only mount, but code in a box cannot create one.
    attributes = (ctypes.c_uint64 * 4)(_READ_ONLY | _NOSUID)
    _call(
        "syscall",
        _MOUNT_SETATTR,
        _HERE,
        os.fsencode(root),
        _AND_BELOW,
        attributes,
        ctypes.sizeof(attributes),
    )
