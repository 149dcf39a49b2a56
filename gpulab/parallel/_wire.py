"""Count the bytes that this process's process groups really sent, as the kernel reports them socket
by socket.

gloo moves everything through TCP sockets, and Linux keeps for each how many bytes it has sent
(``TCP_INFO``). The count holds what travels: the payload as the algorithm splits and repeats it,
and gloo's own headers; not the headers of TCP and IP. Shared memory and NVLink, by which NCCL moves
data within a machine, leave no such count.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

# Where struct tcp_info keeps its counters, in bytes from the start. Source: Linux,
# include/uapi/linux/tcp.h; the struct only grows at its end, and the last of these came with Linux
# 4.19.
_UNSENT, _SENT, _RETRANSMITTED = 144, 200, 208
_INFO_BYTES = 216


def sent_by_socket() -> dict[int, int] | str:
    """Return what each socket of this process's groups has sent until now, by the kernel's number
    of the socket.

    Bytes that were handed to the kernel count once, even if TCP sent them several times. The count
    is exact as soon as the rank's own calls have returned.

    Returns
    -------
    dict or str
        The reason where it cannot be counted: no process group, one that does not use gloo, or not
        Linux.

    Examples
    --------
    >>> sent_by_socket()
    'this process is in no process group'
    """
    import torch.distributed as dist

    from gpulab.parallel._agent import AGENT
    from gpulab.parallel._backend import talks_nccl

    if not dist.is_available() or not dist.is_initialized():
        return "this process is in no process group"
    if talks_nccl() and "gloo" in dist.get_backend():
        return (
            "this group has NCCL beside gloo: NCCL's data bypasses TCP sockets, and NCCL's "
            "own sockets cannot be distinguished from gloo's"
        )
    if dist.get_backend() != "gloo":
        return (
            f"{dist.get_backend()} moves data without TCP sockets (shared memory, NVLink, "
            "RDMA), and only gloo's sockets are counted"
        )
    if sys.platform != "linux":
        return f"the kernel's byte counts are read only on Linux, and this is {sys.platform}"
    if not AGENT.keep and "zmq" in sys.modules:
        return (
            "Jupyter's sockets cannot be distinguished from those of a process group that "
            "gl.parallel did not make"
        )
    counts = dict(_group_sockets())
    if any(len(info) < _INFO_BYTES for info in counts.values()):
        return "this kernel does not count the bytes sent; Linux 4.19 and newer do"
    return {
        inode: _number(info, _SENT, "Q")
        - _number(info, _RETRANSMITTED, "Q")
        + _number(info, _UNSENT, "I")
        for inode, info in counts.items()
    }


def sent_between(
    before: dict[int, int] | str, after: dict[int, int] | str
) -> tuple[int | None, str | None]:
    """Return what was sent between two counts of this process, or None and the reason; a group made
    in between counts in full.
    """
    if isinstance(before, str) or isinstance(after, str):
        return None, after if isinstance(after, str) else str(before)
    if set(before) - set(after):
        return None, "a process group was destroyed between the two counts"
    return sum(after.values()) - sum(before.values()), None


def _sockets() -> Iterator[tuple[int, int]]:
    """Yield (file descriptor, inode) of each socket of this process."""
    for path in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # the descriptor of this very listing is gone by now
            target = os.fspath(path.readlink())
            if target.startswith("socket:["):
                yield int(path.name), int(target[8:-1])


def _number(info: bytes, offset: int, kind: str) -> int:
    return int(struct.unpack_from(f"={kind}", info, offset)[0])


def _group_sockets() -> Iterator[tuple[int, bytes]]:
    """Yield (inode, tcp_info) of each connected TCP socket that came with a process group and is no
    store's.

    In an engine, those that were there before are ipyparallel's own, and its agent has noted them.
    """
    from gpulab.parallel._agent import AGENT

    kept = {(here[1], there[1]) for here, there in AGENT.keep if there}
    ports = _store_ports()
    for number, inode in _sockets():
        # The error: no TCP, not connected, or closed meanwhile.
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(number)) as twin:
            if twin.type != socket.SOCK_STREAM or twin.family not in (
                socket.AF_INET,
                socket.AF_INET6,
            ):
                continue
            here, there = twin.getsockname()[1], twin.getpeername()[1]
            if (here, there) not in kept and not ports & {here, there}:
                yield inode, twin.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 512)


def _store_ports() -> set[int]:
    """Return the port of the store at which the ranks meet; none for a store in a file."""
    import torch.distributed as dist

    store = dist.distributed_c10d._get_default_store()
    while isinstance(store, dist.PrefixStore):  # type: ignore[attr-defined]
        store = store.underlying_store
    return {int(store.port)} if isinstance(store, dist.TCPStore) else set()  # type: ignore[attr-defined]
