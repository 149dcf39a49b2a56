"""What the ranks' sockets really sent is what gloo's algorithms need, to the byte."""

import dataclasses
import struct
import sys
import types

import pytest

from gpulab import models
from gpulab.errors import InputError
from gpulab.parallel import WireBytes, wire_bytes
from gpulab.parallel import _wire as wire

dist = pytest.importorskip("torch.distributed")
if not dist.is_available() or not dist.is_gloo_available():
    pytest.skip("this torch has no gloo", allow_module_level=True)

# Elements: one; a few that leave segments short; a few kilobytes; more than a segment; more than two segments a rank.
CASES = [(operation, 2 * n) for operation in models.GLOO_ALGORITHMS for n in (1, 5, 1_500, 300_001, 700_000)]


def sent_by_each_call(cases, dtype_name="float32"):
    """In a rank: make each call, and return what this rank's sockets sent for it."""
    import torch
    import torch.distributed as dist

    from gpulab.parallel import wire_bytes

    dtype, n, me = getattr(torch, dtype_name), dist.get_world_size(), dist.get_rank()

    def call(operation, elements):
        whole, part = torch.ones(elements, dtype=dtype), torch.ones(elements // n, dtype=dtype)
        parts = list(torch.ones(elements, dtype=dtype).chunk(n))
        if operation == "all_gather":
            dist.all_gather(parts, part)
        elif operation == "reduce_scatter":
            getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)(part, whole)
        elif operation == "gather":
            dist.gather(part, parts if me == 0 else None, 0)
        elif operation == "scatter":
            dist.scatter(part, parts if me == 0 else None, 0)
        elif operation == "all_to_all":
            dist.all_to_all_single(whole, torch.ones(elements, dtype=dtype))
        elif operation == "barrier":
            dist.barrier()
        else:
            getattr(dist, operation)(whole, *([0] if operation in ("broadcast", "reduce") else []))

    found = []
    for operation, elements in cases:
        dist.barrier()
        before = wire_bytes()
        call(operation, elements)
        dist.barrier()  # whose own bytes are known: until then a late answer to another rank may be missing
        found.append(wire_bytes().since(before).sent_bytes)
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux counts the bytes of a socket")
def test_each_operation_of_gloo_sends_what_the_model_says_to_the_byte(ranks):
    """All operations, from one element to several segments: the kernel's count is that of gloo's messages and headers."""
    by_rank = ranks.run(sent_by_each_call, CASES)
    barrier = models.gloo_wire_bytes("barrier", 0, ranks.n)
    for i, (operation, elements) in enumerate(CASES):
        expected = models.gloo_wire_bytes(operation, elements, ranks.n)
        assert tuple(sent[i] - barrier[r] for r, sent in enumerate(by_rank)) == expected, (operation, elements)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux counts the bytes of a socket")
def test_half_the_bits_send_half_the_payload(ranks):
    """The same all-reduce in bfloat16: 3 kB instead of 6, and headers as before."""
    cases = [("all_reduce", 1_500)]
    single, half = (ranks.run(sent_by_each_call, cases, name)[0][0] for name in ("float32", "bfloat16"))
    assert single - half == 1_500 * 2


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux counts the bytes of a socket")
def test_what_is_none_of_the_groups_is_not_counted(ranks):
    """Between two counts the results travel to this notebook, and keys to the store: no byte of that is counted."""

    def count():
        import torch.distributed as dist

        dist.barrier()
        store = dist.distributed_c10d._get_default_store()
        before = wire_bytes()
        store.set(f"noise{dist.get_rank()}", "x" * 100_000)
        store.get(f"noise{1 - dist.get_rank()}")
        after = wire_bytes()
        return after.since(before).sent_bytes, len(after.sockets), "x" * 100_000

    first, second = ranks.run(count), ranks.run(count)
    assert [(sent, sockets) for sent, sockets, _ in (*first, *second)] == [(0, 1)] * 4


def test_without_a_group_or_a_way_to_count_the_reason_is_given(monkeypatch):
    """None and a sentence, never a wrong number."""
    counted = wire_bytes()
    assert (counted.sent_bytes, counted.received_bytes, counted.sockets) == (None, None, ())
    assert counted.reason == "this process is in no process group"
    assert WireBytes.from_dict(counted.to_dict()) == counted
    assert "not counted" in repr(counted)
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    try:
        monkeypatch.setitem(sys.modules, "zmq", sys)
        if sys.platform == "linux":
            assert "can't be told" in wire_bytes().reason
        monkeypatch.setattr(sys, "platform", "darwin")
        assert wire_bytes().reason.endswith("this is darwin")
        monkeypatch.setattr(dist, "get_backend", lambda: "nccl")
        assert wire_bytes().reason.startswith("nccl moves data past TCP sockets")
        monkeypatch.setattr(dist, "get_backend", lambda: "cpu:gloo,cuda:nccl")
        assert wire_bytes().reason.startswith("this group has NCCL beside gloo")
    finally:
        dist.destroy_process_group()


def test_a_count_over_a_closed_socket_is_refused_and_a_new_one_counts_in_full():
    """Made of plain numbers: what lies between two counts, or why it cannot be known."""
    evidence = wire_bytes().evidence
    earlier = WireBytes(100, 50, 1, (7,), None, evidence)
    later = WireBytes(350, 90, 3, (7, 9), None, evidence)
    between = later.since(earlier)
    assert (between.sent_bytes, between.received_bytes, between.repeated_bytes) == (250, 40, 2)
    with pytest.raises(InputError, match="1 of 2 sockets of the earlier count are closed"):
        earlier.since(later)
    assert between.table()[1] == [("sent", "250 B"), ("received", "40 B"), ("sent again", "2 B")]
    assert repr(between) == "<bytes on the wire: 250 B sent, 40 B received through 2 sockets>"
    assert repr(earlier) == "<bytes on the wire: 100 B sent, 50 B received through 1 socket>"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux keeps these counters")
def test_the_counters_are_read_where_the_kernel_keeps_them():
    """A pair of sockets of our own: 12,345 bytes sent one way, none the other, read at the offsets that the module uses."""
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as ours:
        theirs, _ = server.accept()
        with theirs:
            ours.sendall(b"x" * 12_345)
            got = 0
            while got < 12_345:
                got += len(theirs.recv(65_536))
            sent, received = (s.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 512) for s in (ours, theirs))
    assert wire._number(sent, wire._SENT, "Q") - wire._number(sent, wire._RETRANSMITTED, "Q") == 12_345
    assert wire._number(sent, wire._UNSENT, "I") == 0
    assert wire._number(received, wire._RECEIVED, "Q") == 12_345
    assert wire._number(received, wire._SENT, "Q") == 0


def info(received, unsent, sent, repeated, length=232):
    """A ``struct tcp_info`` as Linux lays it out (include/uapi/linux/tcp.h): the four counters at their places, in its own byte order."""
    made = bytearray(length)
    for offset, kind, value in ((128, "=Q", received), (144, "=I", unsent), (200, "=Q", sent), (208, "=Q", repeated)):
        if offset + struct.calcsize(kind) <= length:
            struct.pack_into(kind, made, offset, value)
    return bytes(made)


def test_the_sockets_of_a_rank_add_up(monkeypatch):
    """By hand: of 1,000 bytes that TCP sent 60 were repeats, and 7 wait: 947; with another socket's 500; before Linux 4.19, no count."""
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(wire, "_kept", {1})
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_backend", lambda: "gloo")
    counts = {9: info(300, 7, 1000, 60), 4: info(20, 0, 500, 0, length=216)}
    monkeypatch.setattr(wire, "_group_sockets", lambda: iter(counts.items()))
    found = wire_bytes()
    assert (found.sent_bytes, found.received_bytes, found.repeated_bytes, found.sockets, found.reason) == (1447, 320, 60, (4, 9), None)
    counts[4] = info(20, 0, 500, 0, length=215)
    old = wire_bytes()
    assert (old.sent_bytes, old.sockets) == (None, ())
    assert old.reason == "this kernel keeps no count of bytes sent; it came with Linux 4.19"
    assert old.table() == (("bytes on the wire", ""), [("not counted", old.reason)])
    assert old.since(old) is old
    assert dataclasses.replace(found, sockets=()).since(old) is old
    assert old.since(dataclasses.replace(found, sockets=())) is old


def test_sockets_that_are_noted_are_none_of_the_groups_until_that_is_taken_back(monkeypatch):
    """What was noted before is forgotten at each note; a descriptor that is gone, and a file, are no sockets."""

    class Descriptor:
        def __init__(self, number, target):
            self.name, self.target = str(number), target

        def readlink(self):
            if self.target is None:
                raise OSError
            return self.target

    found = [Descriptor(3, "socket:[77]"), Descriptor(4, "/dev/null"), Descriptor(5, None), Descriptor(12, "socket:[8]")]
    monkeypatch.setattr(wire, "Path", lambda given: types.SimpleNamespace(iterdir=lambda: iter(found if given == "/proc/self/fd" else [])))
    monkeypatch.setattr(wire, "_kept", {1})
    assert list(wire._sockets()) == [(3, 77), (12, 8)]
    wire.keep_open_sockets()
    assert wire._kept == {77, 8}
    wire.keep_no_sockets()
    assert wire._kept == set()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux keeps these counters")
def test_which_sockets_are_a_groups(monkeypatch):
    """Of a pair of TCP sockets one end is noted by the agent and one is not; no listener, no UDP, no pair of Unix, no store's port."""
    import socket

    from gpulab.parallel._agent import AGENT

    with (
        socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as ours,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as loose,
    ):  # fmt: skip
        theirs, _ = server.accept()
        one, other = socket.socketpair()
        loose.connect(("127.0.0.1", 9))
        with theirs, one, other:
            all_of_them = list(enumerate((server, ours, theirs, loose, one, other)))
            monkeypatch.setattr(wire, "_sockets", lambda: [(each.fileno(), 100 + k) for k, each in all_of_them])
            monkeypatch.setattr(wire, "_kept", set())
            monkeypatch.setattr(wire, "_store_ports", set)
            monkeypatch.setattr(AGENT, "keep", frozenset())
            assert [inode for inode, _ in wire._group_sockets()] == [101, 102]
            assert all(len(info) >= 216 for _, info in wire._group_sockets())
            wire._kept.add(101)
            assert [inode for inode, _ in wire._group_sockets()] == [102]
            wire._kept.clear()
            monkeypatch.setattr(AGENT, "keep", frozenset({(ours.getsockname(), ours.getpeername()), (("127.0.0.1", 1), ())}))
            assert [inode for inode, _ in wire._group_sockets()] == [102]
            for port in (ours.getsockname()[1], ours.getpeername()[1]):
                monkeypatch.setattr(wire, "_store_ports", lambda port=port: {port})
                assert list(wire._group_sockets()) == []


def test_the_port_of_a_store_is_found_below_its_prefixes(monkeypatch):
    """PyTorch puts prefixes around the store that ranks meet at; one in memory has no port."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    monkeypatch.setattr(dist.distributed_c10d, "_get_default_store", lambda: dist.PrefixStore("a", dist.PrefixStore("b", store)))
    assert wire._store_ports() == {store.port}
    monkeypatch.setattr(dist.distributed_c10d, "_get_default_store", lambda: dist.PrefixStore("a", dist.HashStore()))
    assert wire._store_ports() == set()
