"""Count the bytes that this process's process groups really sent, as the kernel reports them socket by socket.

gloo moves everything through TCP sockets, and Linux keeps for each how many bytes it has sent and received (``TCP_INFO``). The count holds
what travels: the payload as the algorithm splits and repeats it, and gloo's own headers; not the headers of TCP and IP.
Shared memory and NVLink, by which NCCL moves data within a machine, leave no such count.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpulab.errors import InputError
from gpulab.evidence import Evidence
from gpulab.results import Result
from gpulab.units import format_bytes

# Where struct tcp_info keeps its counters, in bytes from the start. Source: Linux, include/uapi/linux/tcp.h; the struct only grows at
# its end, and the last of these came with Linux 4.19.
_RECEIVED, _UNSENT, _SENT, _RETRANSMITTED = 128, 144, 200, 208
_INFO_BYTES = 216
_kept: set[int] = set()  # inodes of sockets that are none of the process group's, where the agent's list does not serve


@dataclass(frozen=True)
class WireBytes(Result):
    """What the sockets of this process's groups have moved since they were opened.

    Attributes
    ----------
    sent_bytes : int or None
        Handed to the kernel, counted once even if TCP sent it several times; None where it cannot be counted.
    received_bytes : int or None
        Arrived, read by the process or not.
    repeated_bytes : int or None
        Retransmitted because they were lost; not in ``sent_bytes``.
    sockets : tuple of int
        The kernel's numbers of the sockets counted: one a peer and group.
    reason : str or None
        Why nothing can be counted.
    evidence : Evidence
    """

    sent_bytes: int | None
    received_bytes: int | None
    repeated_bytes: int | None
    sockets: tuple[int, ...]
    reason: str | None
    evidence: Evidence

    def since(self, earlier: WireBytes) -> WireBytes:
        """Return what was moved since an earlier count of this process; a group made in between counts in full.

        Raises
        ------
        InputError
            If a socket of the earlier count is closed now, so that its last bytes are unknown.
        """
        closed = set(earlier.sockets) - set(self.sockets)
        if closed:
            raise InputError(
                f"wire_bytes: {len(closed)} of {len(earlier.sockets)} sockets of the earlier count are closed; expected the same groups. "
                "Count before a group is destroyed."
            )
        if self.sent_bytes is None or earlier.sent_bytes is None:
            return self if self.sent_bytes is None else earlier
        return WireBytes(
            self.sent_bytes - earlier.sent_bytes,
            (self.received_bytes or 0) - (earlier.received_bytes or 0),
            (self.repeated_bytes or 0) - (earlier.repeated_bytes or 0),
            self.sockets,
            None,
            self.evidence,
        )

    def __repr__(self) -> str:
        if self.sent_bytes is None:
            return f"<bytes on the wire: not counted, {self.reason}>"
        sent, received, count = format_bytes(self.sent_bytes), format_bytes(self.received_bytes or 0), len(self.sockets)
        return f"<bytes on the wire: {sent} sent, {received} received through {count} socket{'s' if count != 1 else ''}>"

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        """Return what was sent, received and sent again."""
        if self.sent_bytes is None:
            return ("bytes on the wire", ""), [("not counted", str(self.reason))]
        values = (("sent", self.sent_bytes), ("received", self.received_bytes), ("sent again", self.repeated_bytes))
        return ("bytes on the wire", ""), [(name, format_bytes(value or 0)) for name, value in values]


def wire_bytes() -> WireBytes:
    """Return what the process groups of this process have sent and received through their sockets until now.

    Call it inside a rank; the other ranks need not call it. Call it twice and use ``since`` for the difference. What was sent is exact as
    soon as the rank's own calls have returned; what was received may lack headers of other ranks that arrive later.

    Returns
    -------
    WireBytes
        With None and a reason where it cannot be counted: no process group, one that does not use gloo, or not Linux.

    Examples
    --------
    >>> wire_bytes().reason
    'this process is in no process group'
    """
    import torch.distributed as dist

    from gpulab.parallel._agent import AGENT
    from gpulab.parallel._backend import talks_nccl

    name = socket.gethostname()
    evidence = Evidence.measured(f"the TCP sockets of one process on {name}" if name else "the TCP sockets of one process")
    reason = None
    if not dist.is_available() or not dist.is_initialized():
        reason = "this process is in no process group"
    elif talks_nccl() and "gloo" in dist.get_backend():
        reason = (
            "this group has NCCL beside gloo: NCCL's data bypasses TCP sockets, and NCCL's own sockets cannot be distinguished from gloo's"
        )
    elif dist.get_backend() != "gloo":
        reason = f"{dist.get_backend()} moves data without TCP sockets (shared memory, NVLink, RDMA), and only gloo's sockets are counted"
    elif sys.platform != "linux":
        reason = f"the kernel's byte counts are read only on Linux, and this is {sys.platform}"
    elif not AGENT.keep and not _kept and "zmq" in sys.modules:
        reason = "Jupyter's sockets cannot be distinguished from those of a process group that gl.parallel did not make"
    if reason is not None:
        return WireBytes(None, None, None, (), reason, evidence)
    counts = dict(_group_sockets())
    if any(len(info) < _INFO_BYTES for info in counts.values()):
        reason = "this kernel does not count the bytes sent; Linux 4.19 and newer do"
        return WireBytes(None, None, None, (), reason, evidence)
    sent = received = repeated = 0
    for info in counts.values():
        again = _number(info, _RETRANSMITTED, "Q")
        sent += _number(info, _SENT, "Q") - again + _number(info, _UNSENT, "I")
        received += _number(info, _RECEIVED, "Q")
        repeated += again
    return WireBytes(sent, received, repeated, tuple(sorted(counts)), None, evidence)


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
    """Yield (inode, tcp_info) of each connected TCP socket that came with a process group and is no store's.

    In an engine, those that were there before are ipyparallel's own, and its agent has noted them.
    """
    from gpulab.parallel._agent import AGENT

    kept = {(here[1], there[1]) for here, there in AGENT.keep if there}
    ports = _store_ports()
    for number, inode in _sockets():
        if inode in _kept:
            continue
        # The error: no TCP, not connected, or closed meanwhile.
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(number)) as twin:
            if twin.type != socket.SOCK_STREAM or twin.family not in (socket.AF_INET, socket.AF_INET6):
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
