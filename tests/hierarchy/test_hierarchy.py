"""Chases and streams: true cycles, scripted times, what the machine says, and refusals."""

from __future__ import annotations

import dataclasses
import functools
import gc
import itertools
import sys
import types
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpulab import hierarchy
from gpulab.devices import Device
from gpulab.errors import InputError, MissingLibraryError, OutOfMemoryError, StoppedError
from gpulab.evidence import Badge, Note
from gpulab.hierarchy import HOPS_PER_CALL, _chains, _cuda, _experiment, _given, _latency, _parallel, _streams
from gpulab.recorder import _hierarchy as experiments

KIB, MIB = 2**10, 2**20
METHODS = hierarchy.methods()


class Clock:
    """Seconds that pass only while a walk or a stream works."""

    def __init__(self) -> None:
        self.now = 50.0

    def __call__(self) -> float:
        """Return the seconds so far."""
        return self.now


@pytest.fixture
def own_lock(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test waits for another one's turn."""
    monkeypatch.setenv("GPULAB_LOCK_DIR", str(tmp_path))


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """A machine whose hop takes 2 ns up to 32 KiB, 10 ns up to 1 MiB, 100 ns beyond; k walkers share a hop's wait, up to 8."""
    clock = Clock()

    class Scripted:
        def __init__(self, nbytes: int) -> None:
            self.seconds = 2e-9 if nbytes <= 32 * KIB else 10e-9 if nbytes <= MIB else 100e-9
            self.walkers = 1

        def start(self, walkers: int) -> None:
            self.walkers = walkers

        def walk(self) -> None:
            clock.now += HOPS_PER_CALL * self.seconds / min(self.walkers, 8)

        def close(self) -> None:
            clock.closed = getattr(clock, "closed", 0) + 1

    def build(device, method, nbytes, seed=0):
        return Scripted(nbytes)

    monkeypatch.setattr(_latency, "build", build)
    monkeypatch.setattr(_parallel, "build", build)
    monkeypatch.setattr(_given, "reported", lambda device: (hierarchy.Reported("L1d", 32.0 * KIB), hierarchy.Reported("L2", 1.0 * MIB)))
    return clock


def _orbit(step, start, limit: int) -> list:
    """The nodes that a walk visits until it comes back."""
    seen = [start]
    while (node := step(seen[-1])) != start and len(seen) <= limit:
        seen.append(node)
    return seen


@given(st.integers(1, 3000), st.integers(0, 10), st.integers(1, 200))
@settings(max_examples=60, deadline=None)
def test_the_order_visits_every_node_once_and_block_after_block(nodes: int, seed: int, block: int) -> None:
    """A permutation of the nodes; the blocks, in the order of the visit, are each finished before the next begins."""
    order = _chains.visiting_order(nodes, seed, block)
    assert sorted(order.tolist()) == list(range(nodes))
    blocks = (order // block).tolist()
    runs = 1 + sum(a != b for a, b in itertools.pairwise(blocks))
    assert runs == len(set(blocks))


@pytest.mark.parametrize("nodes", [1, 2, 64, 1500])
def test_the_ring_of_numbers_is_one_cycle_of_lines(nodes: int) -> None:
    """Following the numbers comes back after all nodes; each is on a line of its own."""
    ring, order = _chains.laid_out(nodes, 3, 64)
    visited = _orbit(lambda place: int(ring[place]), int(order[0]), nodes)
    assert sorted(visited) == [8 * k for k in range(nodes)]
    assert ring.ctypes.data % 64 == 0


@pytest.mark.parametrize("nodes", [1, 2, 64, 1500])
def test_the_ring_of_objects_is_one_cycle_of_lines(nodes: int) -> None:
    """Following the links comes back after all nodes, no two of which share a line where their links lie."""
    chain = _chains._PythonChain(nodes, 3)
    ids = _orbit(lambda node: node.next, chain._at[0], nodes)
    assert len({id(node) for node in ids}) == len(ids) == nodes
    spacing = np.diff(np.sort([id(node) for node in ids]))
    assert nodes == 1 or spacing.min() >= _chains.LINE_BYTES
    chain.close()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("walkers", [1, 2, 8])
def test_a_walk_makes_its_hops(method: str, walkers: int) -> None:
    """In a ring of as many nodes as a walker has hops (and one more), each walker ends where it began (and one node before)."""
    hops = HOPS_PER_CALL // walkers
    for nodes, ahead in ((hops, 0), (hops + 1, -1)):
        chain = _chains.build(method, nodes * _chains.LINE_BYTES)
        chain.start(walkers)
        before = list(chain._at)
        chain.walk()
        if method == "numba":
            forward = {int(a): int(b) for a, b in zip(chain._order, np.roll(chain._order, -1), strict=True)}
            after, expected = [int(p) for p in chain._at], [int(p) for p in before]
            moved = after if ahead == 0 else [forward[p] for p in after]
        else:
            expected, moved = before, list(chain._at) if ahead == 0 else [node.next for node in chain._at]
        if walkers > 1 and method == "numba":
            expected = [int(p) for p in _chains.spaced(chain._order, walkers)]
        assert moved == expected
        chain.close()


@pytest.mark.usefixtures("old_aside")
def test_a_closed_chain_leaves_nothing_to_the_collector() -> None:
    """With the collector off, the nodes go when the chain is closed; a cycle left alone would stay."""
    gc.collect()
    gc.disable()
    try:
        chain = _chains._PythonChain(500, 0)
        chain.close()
        assert not any(type(each) is _chains._Node for each in gc.get_objects())  # though the chain itself is still held
        del chain
    finally:
        gc.enable()


def test_the_collector_is_as_it_was() -> None:
    """Making a chain switches the collector off and on again, and leaves it off where it was off."""
    _chains.build("python", 4096).close()
    assert gc.isenabled()
    gc.disable()
    try:
        _chains.build("python", 4096).close()
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_no_collection_walks_through_the_nodes_while_they_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """The collector, which would visit all of them after every few hundred, is off from the first node to the last."""
    made, seen = _chains._Node, []
    monkeypatch.setattr(_chains, "_Node", lambda: seen.append(gc.isenabled()) or made())
    assert gc.isenabled()
    _chains._PythonChain(10, 0).close()
    assert seen == [False] * 10


def test_a_scripted_machine_is_read_exactly(scripted: Clock) -> None:
    """Points, floor, levels and ends of a machine that is known; every chain is closed."""
    sizes = [2**k for k in range(12, 24)]
    curve = hierarchy.latency(sizes, method="python", chases=2, deadline=5, clock=scripted)
    expected = [2e-9 if n <= 32 * KIB else 10e-9 if n <= MIB else 100e-9 for n in sizes]
    assert [p.nbytes for p in curve.points] == sizes
    assert [p.median_seconds for p in curve.points] == pytest.approx(expected)
    assert [p.least_seconds for p in curve.points] == pytest.approx(expected)
    assert {p.chases for p in curve.points} == {2}
    assert [p.interval_seconds for p in curve.points] == [pytest.approx((seconds, seconds)) for seconds in expected]
    assert curve.floor_seconds == pytest.approx(2e-9)
    assert curve.span_ratio == pytest.approx(50)
    assert [(level.name, level.between_bytes) for level in curve.levels().levels] == [
        ("L1d", (32 * KIB, 64 * KIB)), ("L2", (MIB, 2 * MIB)), ("main memory", None),
    ]  # fmt: skip
    assert scripted.closed == 1 + 2 * len(sizes)


def test_every_chase_is_measured_evidence_that_names_its_method(scripted: Clock) -> None:
    """The badge, the device and the method stand under the table."""
    curve = hierarchy.latency([4096], method="python", chases=1, clock=scripted)
    assert curve.evidence.badge is Badge.MEASURED
    assert curve.evidence.samples == curve.points[0].samples > 1
    assert curve.evidence.device.endswith(", chase by a cycle of Python objects")
    assert curve.evidence.sentence in curve.caption()
    assert "floor 2.00 ns a hop" in curve.caption()


def test_a_used_up_time_ends_after_the_first_chase_of_each_size(scripted: Clock) -> None:
    """With no time at all each size still has one chase, and says that it had one."""
    curve = hierarchy.latency([4096, 2 * MIB], method="python", chases=5, deadline=1e-9, clock=scripted)
    assert [p.chases for p in curve.points] == [1, 1]


def test_stop_keeps_what_is_there(scripted: Clock) -> None:
    """Stopped after the third measurement (the floor and two sizes), two points and a note stay; stopped at once, nothing does."""
    calls = []

    def progress(done: float, text: str) -> None:
        calls.append(text)

    curve = hierarchy.latency(
        [4096, 8192, 16384], method="python", chases=1, clock=scripted, progress=progress, stop=lambda: len(calls) >= 2
    )
    assert len(curve.points) < 3
    assert any(note.code == "stopped" for note in curve.notes)
    with pytest.raises(StoppedError, match="before the first point"):
        hierarchy.latency([4096], method="python", clock=scripted, stop=lambda: True)


def test_littles_law_on_a_scripted_machine(scripted: Clock) -> None:
    """A machine with room for eight loads: 1, 2, 4, 8 and 16 chains have 1, 2, 4, 8 and 8 under way."""
    both = hierarchy.parallel([16, 2, 8, 4], 4 * MIB, method="python", clock=scripted)
    assert [p.chains for p in both.points] == [1, 2, 4, 8, 16]
    assert [both.under_way(p) for p in both.points] == pytest.approx([1, 2, 4, 8, 8])
    assert both.gain == pytest.approx(8)
    assert both.evidence.samples == sum(p.samples for p in both.points) > 5
    assert both.evidence.device == f"{both.device}, chases by a cycle of Python objects"
    assert scripted.closed == 1
    for point, seconds in zip(both.points, (100e-9, 50e-9, 25e-9, 12.5e-9, 12.5e-9), strict=True):
        assert (point.seconds_per_hop, point.interval_seconds) == (pytest.approx(seconds), pytest.approx((seconds, seconds)))


def test_a_scripted_stream_is_read_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that moves 8 MB in 1 ms is 8 GB/s; the physics of few bytes moved often is not asked of the memory level of 8 MB."""
    clock = Clock()

    def work():
        clock.now += 1e-3

    monkeypatch.setattr(_streams, "_work", lambda device, operation, nbytes: (work, 8_000_000))
    curve = hierarchy.bandwidth([4096], deadline=0.1, clock=clock)
    assert curve.points[0].bytes_per_second == pytest.approx(8e9)
    assert curve.points[0].most_bytes_per_second == pytest.approx(8e9)
    assert curve.points[0].interval_bytes_per_second == pytest.approx((8e9, 8e9))
    assert curve.notes == ()
    assert (curve.method, curve.operation, curve.evidence.badge) == ("numpy", "read", Badge.MEASURED)
    assert curve.evidence.samples == curve.points[0].samples > 1
    assert curve.evidence.device == f"{curve.device}, read by NumPy on one core"


def _chased(nbytes: int, seconds: list[float], interval: tuple[float, float] | None) -> types.SimpleNamespace:
    """A measurement of calls, as far as a point looks."""
    return types.SimpleNamespace(median_seconds=sorted(seconds)[len(seconds) // 2], samples_seconds=seconds, interval_seconds=interval)


def test_a_point_joins_its_chases_by_hand() -> None:
    """Medians of 2, 6 and 4 calls' seconds: 4; intervals from the lowest to the highest end; the fastest sample of all; seven samples."""
    each = [_chased(1, [1.0, 2.0, 9.0], (1.0, 3.0)), _chased(1, [6.0], (5.0, 7.0)), _chased(1, [3.0, 4.0, 5.0], (0.5, 5.0))]
    point = _latency._point(64, each)  # type: ignore[arg-type]
    assert (point.nbytes, point.chases, point.samples) == (64, 3, 7)
    assert [HOPS_PER_CALL * v for v in (point.median_seconds, point.least_seconds, *point.interval_seconds)] == [4.0, 1.0, 0.5, 7.0]
    assert _latency._point(64, [*each, _chased(1, [1.0], None)]).interval_seconds is None  # type: ignore[arg-type, list-item]
    one = _parallel._point(4, each[0])  # type: ignore[arg-type]
    assert [HOPS_PER_CALL * v for v in (one.seconds_per_hop, one.least_seconds, *one.interval_seconds)] == [2.0, 1.0, 1.0, 3.0]
    assert (one.chains, one.samples) == (4, 3)
    rate = _streams._point(64, types.SimpleNamespace(**vars(each[0]), nbytes=6.0))  # type: ignore[arg-type]
    assert (rate.bytes_per_second, rate.most_bytes_per_second, rate.interval_bytes_per_second, rate.samples) == (3.0, 6.0, (2.0, 6.0), 3)


def test_a_run_shares_its_time_and_tells_of_it() -> None:
    """Of 8 s for four points each has two, and what one does not use goes to the others; no less than 30 ms; notes are counted by code."""
    clock, told = Clock(), []
    run = _given.Run("latency", 4, 8.0, progress=lambda part, text: told.append((part, text)), stop=None, clock=clock)
    assert (run.share, run.over) == (2.0, False)
    run.say("first")
    noted = types.SimpleNamespace(notes=(Note("contended", "One."), Note("other", "Not told.")))
    assert run.measured(noted) is noted  # type: ignore[arg-type, comparison-overlap]
    clock.now += 5.0
    assert run.share == 1.0
    run.measured(types.SimpleNamespace(notes=(Note("contended", "Two."),)))  # type: ignore[arg-type]
    run.say("third")
    clock.now += 3.0
    assert (run.share, run.over) == (0.03, True)
    assert run.finished() == (Note("contended", "2 of 2 measurements; the first: One."),)
    assert told == [(0.0, "first"), (0.5, "third"), (1.0, "done")]


def test_a_set_is_walked_through_once_before_it_is_measured() -> None:
    """A call has 8,192 hops: one call for a set of fewer lines, three for 20,000; a huge one is walked through a million hops of it."""
    for lines, calls in ((100, 1), (20_000, 3), (10**8, 129)):
        clock, before = Clock(), []

        def walk(clock: Clock = clock, before: list[float] = before) -> None:
            clock.now += 1.0
            before.append(clock.now)

        begun: list[int] = []
        real = _latency.timing.measure
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(_latency.timing, "measure", lambda work, begun=begun, before=before, **_: begun.append(len(before)))
            _latency.walked(types.SimpleNamespace(walk=walk), Device("cpu"), lines * _chains.LINE_BYTES, deadline=1.0)  # type: ignore[arg-type]
        assert _latency.timing.measure is real
        assert begun == [calls]


@pytest.mark.parametrize("method", METHODS)
def test_main_memory_is_slower_than_the_first_cache(own_lock: None, method: str) -> None:
    """Live: a hop through 32 MiB takes at least four times as long as one through 4 KiB (on today's machines twenty times or more)."""
    curve = hierarchy.latency([4 * KIB, 32 * MIB], method=method, chases=2, deadline=2)
    small, large = curve.points
    assert large.least_seconds > 4 * small.least_seconds
    assert small.least_seconds < 30e-9


@pytest.mark.parametrize("method", METHODS)
def test_independent_chains_overlap(own_lock: None, method: str) -> None:
    """Live: eight chains in main memory make at least half as many hops again as one."""
    both = hierarchy.parallel([8], 32 * MIB, method=method, deadline=2)
    assert both.gain > 1.5


def test_live_bandwidth_falls_beyond_the_caches(own_lock: None) -> None:
    """Live: one core reads 64 MiB no faster than a set in its caches, and the first is no faster than a terabyte a second."""
    curve = hierarchy.bandwidth([64 * KIB, 64 * MIB], deadline=1)
    near, far = (p.most_bytes_per_second for p in curve.points)
    assert far <= near < 1e12


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"sizes": [100]}, "1 KiB to 16 GiB"),
        ({"sizes": [4096.0]}, "whole numbers"),
        ({"sizes": [True]}, "whole numbers"),
        ({"sizes": []}, "at least one size"),
        ({"sizes": "4096"}, "sizes"),
        ({"method": "c"}, "method"),
        ({"chases": 0}, "chases is 0"),
        ({"deadline": 0}, "deadline"),
        ({"deadline": float("nan")}, "deadline"),
        ({"stop": 3}, "stop"),
        ({"clock": 3}, "clock"),
    ],
)
def test_bad_input_is_one_sentence(arguments: dict, words: str) -> None:
    """What failed, what was expected, what to do."""
    with pytest.raises(InputError, match=words) as caught:
        hierarchy.latency(**arguments)
    assert "\n" not in str(caught.value)


def test_whole_numbers_of_numpy_are_sizes(scripted: Clock) -> None:
    """Sizes from np.arange or a table are taken as Python's own."""
    sizes = _given.sizes_of("latency", 2 ** np.arange(12, 15), Device("cpu"), "python")
    assert sizes == (4096, 8192, 16384)
    assert {type(n) for n in sizes} == {int}
    assert hierarchy.latency([4096], method="python", chases=np.int64(2), deadline=5, clock=scripted).points


def test_parallel_and_bandwidth_refuse_too() -> None:
    """Chains that are no power of two, or no whole number as NumPy's powers of 2.0 are, and operations that are none."""
    for chains in ([3], [1, 2.0], 2.0 ** np.arange(3)):
        with pytest.raises(InputError, match="powers of two"):
            hierarchy.parallel(chains, 2**12, method="python", deadline=0.01)
    with pytest.raises(InputError, match="operation"):
        hierarchy.bandwidth(operation="write")
    with pytest.raises(InputError, match="stream"):
        hierarchy.measure_stream(4096, operation="write")


def test_a_set_that_does_not_fit_is_refused_before_it_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """With 1 MiB free, a set of 1 MiB is too large and one of 64 KiB is not; the defaults keep to a quarter of what is free."""
    monkeypatch.setattr(_given, "free_bytes", lambda device: MIB)
    with pytest.raises(OutOfMemoryError, match=r"1\.00 MiB"):
        hierarchy.latency([MIB], method="python")
    assert _given.sizes_of("latency", [65536], Device("cpu"), "python") == (65536,)
    assert max(_given.sizes_of("latency", None, Device("cpu"), "python")) <= MIB / 4 / 2


def test_default_sizes_reach_twice_the_last_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """With 12 MiB of L3 and much memory: two a doubling from 4 KiB to 8 MiB, then one, to the last power of two up to 24 MiB."""
    monkeypatch.setattr(_given, "free_bytes", lambda device: 2**40)
    monkeypatch.setattr(_given, "reported", lambda device: (hierarchy.Reported("L3", 12.0 * MIB),))
    sizes = _given.sizes_of("latency", None, Device("cpu"), "python")
    assert sizes[:4] == (4096, 6144, 8192, 12288)
    assert sizes[-3:] == (6 * MIB, 8 * MIB, 16 * MIB)


def test_default_sizes_on_a_gpu_reach_four_times_the_last_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """With 60 MiB of L2, as an H200 has: its flat part was seen from 96 MiB on, so one power of two lies there."""
    monkeypatch.setattr(_given, "free_bytes", lambda device: 2**40)
    monkeypatch.setattr(_given, "reported", lambda device: (hierarchy.Reported("L2", 60.0 * MIB),))
    assert _given.sizes_of("latency", None, Device("cuda"), "cupy")[-2:] == (64 * MIB, 128 * MIB)


def test_without_numba_the_plain_way_works(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where numba cannot be imported, methods() has Python alone, the default is Python, and asking for numba says what to do."""
    monkeypatch.setattr(_chains, "_numba", lambda: None)
    assert hierarchy.methods() == ("python",)
    assert hierarchy.latency([4096], chases=1, deadline=0.05).method == "python"
    with pytest.raises(MissingLibraryError, match="install numba"):
        hierarchy.latency([4096], method="numba", deadline=0.05)


def test_the_recorder_has_both_experiments_and_their_curves_come_back(own_lock: None, tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Recorded and read again, each point equals time over hops or bytes over time, with the badge RECORDED."""
    from gpulab import recorder, recordings

    monkeypatch.setattr(experiments, "_sizes", lambda device, first: [(4096, 0), (65536, 0)])
    path = tmp_path / "here.json"
    recorder.record(path, device="cpu", minutes=1, visits=1, only=["latency", "bandwidth"], name="here")
    recording = recordings.read(path)
    curve = hierarchy.recorded_latency(recording)
    assert curve.evidence.badge is Badge.RECORDED
    assert [p.nbytes for p in curve.points] == [4096, 65536]
    for point in curve.points:
        entry = next(e for e in recording.select("latency") if e.params["nbytes"] == point.nbytes)
        assert point.median_seconds == pytest.approx(entry.timing.median_seconds / entry.params["hops"])
    rates = hierarchy.recorded_bandwidth(recording)
    for point in rates.points:
        entry = next(e for e in recording.select("bandwidth") if e.params["nbytes"] == point.nbytes)
        assert point.bytes_per_second == pytest.approx(entry.timing.nbytes / entry.timing.median_seconds)
    assert [c.name for c in curve.reported] == [c.name for c in _given.reported(Device("cpu"))]
    assert hierarchy.recorded_bandwidth(recording, "triad") is None


def test_cases_of_a_gpu_and_of_another_accelerator() -> None:
    """A CUDA device is chased by CuPy to 512 MiB, its streams begin at 1 MiB; an accelerator without a chase has no case."""
    gpu = types.SimpleNamespace(is_cpu=False, torch_type="cuda")
    chases, streams = list(experiments._chase_cases(gpu)), list(experiments._stream_cases(gpu))
    assert {case.params["method"] for case in chases} == {"cupy"}
    assert max(case.params["nbytes"] for case in chases) == 2**29
    assert min(case.params["nbytes"] for case in streams) == 2**20
    assert list(experiments._chase_cases(types.SimpleNamespace(is_cpu=False, torch_type="mps"))) == []


@pytest.mark.gpu
def test_the_chase_and_the_stream_of_a_gpu() -> None:
    """Live on a GPU: HBM takes longer to answer than L1, and delivers no more than its data sheet says."""
    from gpulab import devices

    where = devices.default()
    curve = hierarchy.latency([16 * KIB, 256 * MIB], where, chases=1, deadline=4)
    assert curve.method == "cupy"
    assert 2 * curve.points[0].median_seconds < curve.points[1].median_seconds < 5e-6
    rates = hierarchy.bandwidth([2**29], where, deadline=2)
    assert 0 < rates.points[0].bytes_per_second < 1.1 * devices.spec(where).levels[-1].bytes_per_second


def test_a_node_takes_one_line_of_this_machine() -> None:
    """The system's own size of a cache line, where it tells one; an object with its header fills it, and so does a number's place."""
    told = Path("/sys/devices/system/cpu/cpu0/cache/index0/coherency_line_size")
    if told.exists():
        assert int(told.read_text()) == _chains.LINE_BYTES
    node = _chains._PythonChain(1, 0)._at[0]
    assert sys.getsizeof(node) == _chains.LINE_BYTES
    assert _given.sizes_of("latency", [4096 + 127], Device("cpu"), "python") == ((4096 + 127) // _chains.LINE_BYTES * _chains.LINE_BYTES,)


@pytest.mark.parametrize("line", [64, 128])
def test_a_block_is_64_kib(line: int) -> None:
    """Of 256 KiB the walk finishes each of four parts before the next: few pages at a time, whatever the line."""
    assert _chains.HOPS_PER_CALL == 8192  # as the pages and docstrings say
    lines = 2**18 // line
    for places in (_chains.laid_out(lines, 1, line)[1] * 8, _chains.visiting_order(2**18 // _chains.LINE_BYTES, 1) * _chains.LINE_BYTES):
        parts = (places // 2**16).tolist()
        assert sum(a != b for a, b in itertools.pairwise(parts)) == 3
        assert places.tolist() != sorted(places.tolist())


@pytest.mark.parametrize(("method", "most"), [("python", 64), ("numba", 128), ("numpy", 128), ("cupy", 512)])
def test_default_sizes_end_where_the_docstring_says(monkeypatch: pytest.MonkeyPatch, method: str, most: int) -> None:
    """However large the last cache is; and where none is known at 16 MiB."""
    monkeypatch.setattr(_given, "free_bytes", lambda device: 2**40)
    where = Device("cuda" if method == "cupy" else "cpu")
    for caches, last in (((hierarchy.Reported("L3", 2.0**30),), most), ((), 16)):
        monkeypatch.setattr(_given, "reported", lambda device, caches=caches: caches)
        assert _given.sizes_of("latency", None, where, method)[-1] == last * MIB


@pytest.mark.parametrize(
    ("method", "just"), [("python", 4 * 2 * 65536), ("numba", 4 * 2 * 65536), ("numpy", 288359), ("cupy", 4 * 2 * 65536)]
)
def test_default_sizes_take_a_quarter_of_what_is_free(monkeypatch: pytest.MonkeyPatch, method: str, just: int) -> None:
    """By hand: nodes, list and order are twice the set, a stream's arrays a tenth more (288,358.4), on host and device."""
    monkeypatch.setattr(_given, "reported", lambda device: ())
    where = Device("cuda" if method == "cupy" else "cpu")
    for short, last in ((0, 65536), (1, 49152)):
        for free in ({True: just - short, False: 2**40}, {True: 2**40, False: just - short})[: 2 if method == "cupy" else 1]:
            monkeypatch.setattr(_given, "free_bytes", lambda device, free=free: free[device.is_cpu])
            assert _given.sizes_of("latency", None, where, method)[-1] == last
    monkeypatch.setattr(_given, "free_bytes", lambda device: 100)
    assert _given.sizes_of("latency", None, where, method) == (4096,)


def test_a_set_that_just_fits_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """64 KiB of objects need twice that and a tenth: 144,179.2 bytes. A device that does not tell what is free has 16 GiB."""
    for free, fits in ((144_180, True), (144_179, False), (None, True)):
        monkeypatch.setattr(_given, "free_bytes", lambda device, free=free: free)
        if fits:
            assert _given.sizes_of("latency", [65536], Device("cpu"), "python") == (65536,)
        else:
            with pytest.raises(OutOfMemoryError, match=r"a working set of 64\.0 KiB needs about 141 KiB while it is made"):
                _given.sizes_of("latency", [65536], Device("cpu"), "python")


def test_what_each_device_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CUDA device is chased by CuPy alone, and only reads; its L2 is its cache, if it tells one; an Apple GPU has no chase."""
    gpu, apple = Device("cuda"), Device("mps")
    monkeypatch.setattr(Device, "name", property(lambda self: f"a {self.kind}"))
    monkeypatch.setattr(_given.devices, "find", lambda device: device)
    assert _given.where("latency", gpu) is gpu
    assert _given.where("latency", Device("cpu")) == Device("cpu")
    with pytest.raises(InputError, match=r"latency: a mps has no chase of its own here; expected the CPU or a CUDA device"):
        _given.where("latency", apple)
    assert (_given.method_of("latency", None, gpu), _given.method_of("latency", "cupy", gpu)) == ("cupy", "cupy")
    assert _given.method_of("latency", None, Device("cpu")) == METHODS[0]
    for method, where in (("python", gpu), ("cupy", Device("cpu"))):
        with pytest.raises(InputError, match="method"):
            _given.method_of("latency", method, where)
    assert (_experiment.chase_method(gpu), _experiment.chase_method(Device("cpu"))) == ("cupy", "python")
    for operation in ("copy", "triad"):
        with pytest.raises(InputError, match=f"bandwidth: a cuda has no {operation} stream here; expected 'read'"):
            hierarchy.bandwidth([4096], gpu, operation=operation)
        with pytest.raises(InputError, match=f"measure_stream: a cuda has no stream '{operation}'"):
            hierarchy.measure_stream(4096, gpu, operation)
    for size, caches in ((50 * MIB, (hierarchy.Reported("L2", 50.0 * MIB),)), (None, ()), (0, ())):
        monkeypatch.setattr(_given._facts, "accelerator", lambda device, size=size: types.SimpleNamespace(l2_bytes=size))
        assert _given.reported(gpu) == caches
    probed = (types.SimpleNamespace(level="L1d", size_bytes=32768), types.SimpleNamespace(level="L2", size_bytes=MIB))
    monkeypatch.setattr(_given._cpu, "probe", lambda: types.SimpleNamespace(caches=probed))
    assert _given.reported(Device("cpu")) == (hierarchy.Reported("L1d", 32768.0), hierarchy.Reported("L2", 1.0 * MIB))


def test_one_point_for_the_recorder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a second, of the set in whole lines, by the device's own method and with room for what that method takes."""
    asked = []
    for module in (_latency, _streams):
        monkeypatch.setattr(module, "timed", lambda *given, **more: asked.append((*given, more["deadline"])))
    monkeypatch.setattr(_given, "free_bytes", lambda device: 3 * MIB)
    hierarchy.measure_chase(4097)
    hierarchy.measure_stream(MIB, operation="triad")  # 1.1 MiB and a tenth more
    hierarchy.measure_stream(2 * MIB, deadline=7)
    assert asked == [
        (Device("cpu"), "python", 4096, 0.5), (Device("cpu"), "triad", MIB, 0.5), (Device("cpu"), "read", 2 * MIB, 7.0),
    ]  # fmt: skip
    with pytest.raises(OutOfMemoryError):
        hierarchy.measure_chase(2 * MIB)


def test_a_stream_passes_once_before_it_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a first pass has to fetch is not measured; what a call moves is told with the time, as a float."""
    passed, begun = [], []
    monkeypatch.setattr(_streams, "_work", lambda *_: (lambda: passed.append(1), 123))
    made = hierarchy.measure_stream(4096, deadline=0.05)
    monkeypatch.setattr(_streams.timing, "measure", lambda work, **_: begun.append(len(passed)) or made)
    passed.clear()
    again = _streams.timed(Device("cpu"), "read", 4096, deadline=1.0)
    assert (begun, again.nbytes, type(again.nbytes)) == ([1], 123.0, float)


def test_a_point_of_either_curve_is_asked_for_to_three_percent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the chase and of the stream: levels lie apart by half and more."""
    asked: list[float] = []
    made = hierarchy.measure_stream(4096, deadline=0.05)
    for module in (_latency, _streams):
        monkeypatch.setattr(module.timing, "measure", lambda work, relative_width, **_: asked.append(relative_width) or made)
    _latency.walked(types.SimpleNamespace(walk=lambda: None), Device("cpu"), 64, deadline=1.0)  # type: ignore[arg-type]
    _streams.timed(Device("cpu"), "read", 4096, deadline=1.0)
    assert asked == [0.03, 0.03]


def test_the_usual_chains_share_half_of_the_largest_set(scripted: Clock) -> None:
    """1, 2, 4, 8 and 16 chains in half of the 16 MiB that a latency would end with; 32 at most; one alone is always there."""
    usual = hierarchy.parallel(method="python", deadline=0.01, clock=scripted)
    assert ([p.chains for p in usual.points], usual.nbytes) == ([1, 2, 4, 8, 16], 8 * MIB)
    assert [p.chains for p in hierarchy.parallel([32], 4096, method="python", deadline=0.01, clock=scripted).points] == [1, 32]


def test_a_stop_during_a_measurement_is_told(scripted: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever was under way is left out, and the note says how many there are; stopped after the floor alone there is nothing to keep."""
    told: list[str] = []
    asked = {"progress": lambda _, text: told.append(text), "stop": lambda: len(told) >= 2, "clock": scripted, "deadline": 0.01}

    def work() -> None:
        scripted.now += 1e-3

    monkeypatch.setattr(_streams, "_work", lambda *_: (work, 8_000_000))
    for name, call in (
        ("latency", lambda: hierarchy.latency([4096, 8192, 16384], method="python", chases=2, **asked)),
        ("parallel", lambda: hierarchy.parallel([2, 4], 4096, method="python", **asked)),
        ("bandwidth", lambda: hierarchy.bandwidth([4096, 8192, 16384], **asked)),
    ):
        told.clear()
        curve = call()
        whole, before = (7, 1) if name == "latency" else (3, 0)
        count = len(curve.points)
        assert 1 <= count <= 2
        assert curve.notes[-1] == Note("stopped", f"Stopped after {before + count} of {whole} measurements; run it again for the rest.")
    begun = scripted.closed
    with pytest.raises(StoppedError, match="latency: stopped before the first point"):
        hierarchy.latency([4096], method="python", clock=scripted, stop=lambda: scripted.closed > begun)


def test_curves_of_the_recordings() -> None:
    """Each number from its entry by hand; the caches are the recorded machine's: 60 MiB of L2 on an H200, as its data sheet has it."""
    from gpulab import recordings

    for name, method, stream in (("nvidia-h200", "cupy", "cupy"), ("amd-epyc-avx2-2-cores", "python", "numpy")):
        recording = recordings.load(name)
        latency, rates = hierarchy.recorded_latency(recording), hierarchy.recorded_bandwidth(recording)
        assert latency is not None
        assert rates is not None
        assert (latency.method, rates.method, rates.operation) == (method, stream, "read")
        assert latency.floor_seconds is None
        assert [p.nbytes for p in latency.points] == sorted(p.nbytes for p in latency.points)
        chases = {e.params["nbytes"]: e.timing for e in recording.select("latency")}
        for point in latency.points:
            timing = chases[point.nbytes]
            low, high = timing.interval_seconds
            by_hand = [v / 8192 for v in (timing.median_seconds, low, high, min(timing.samples_seconds))]
            assert [point.median_seconds, *point.interval_seconds, point.least_seconds] == pytest.approx(by_hand, rel=1e-12)
            assert (point.samples, point.chases) == (timing.sample_count, 1)
        streams = {e.params["nbytes"]: e.timing for e in recording.select("bandwidth") if e.params["operation"] == "read"}
        assert len(rates.points) == len(streams)
        for point in rates.points:
            timing = streams[point.nbytes]
            low, high = timing.interval_seconds
            by_hand = [timing.nbytes / v for v in (timing.median_seconds, high, low, min(timing.samples_seconds))]
            found = [point.bytes_per_second, *point.interval_bytes_per_second, point.most_bytes_per_second]
            assert found == pytest.approx(by_hand, rel=1e-12)
            assert point.samples == timing.sample_count
        assert latency.reported == rates.reported
    assert hierarchy.recorded_latency(recordings.load("nvidia-h200")).reported == (hierarchy.Reported("L2", 60.0 * MIB),)


def test_a_recording_with_gaps() -> None:
    """Entries that time did not reach have no point, nor a stream without its bytes; no interval stays none; no GPU told no cache."""
    from gpulab import recordings

    whole = recordings.load("nvidia-h200")
    chases, streams = whole.select("latency"), [e for e in whole.select("bandwidth") if e.params["operation"] == "read"]
    no_interval = [
        dataclasses.replace(one[1], timing=dataclasses.replace(one[1].timing, interval_seconds=None)) for one in (chases, streams)
    ]
    few = (
        dataclasses.replace(chases[0], timing=None, reason="No time."), no_interval[0],
        dataclasses.replace(streams[0], timing=None, reason="No time."), no_interval[1],
        dataclasses.replace(streams[2], timing=dataclasses.replace(streams[2].timing, nbytes=None)),
    )  # fmt: skip
    gaps = dataclasses.replace(whole, entries=few, machine={**whole.machine, "accelerators": []})
    latency, rates = hierarchy.recorded_latency(gaps), hierarchy.recorded_bandwidth(gaps)
    assert [(p.nbytes, p.interval_seconds) for p in latency.points] == [(chases[1].params["nbytes"], None)]
    assert [(p.nbytes, p.interval_bytes_per_second) for p in rates.points] == [(streams[1].params["nbytes"], None)]
    assert latency.reported == ()
    untold = dataclasses.replace(gaps, machine={**whole.machine, "accelerators": [{"l2_bytes": None}]})
    assert hierarchy.recorded_latency(untold).reported == ()
    assert hierarchy.recorded_latency(dataclasses.replace(whole, entries=())) is None
    for call in (hierarchy.recorded_latency, hierarchy.recorded_bandwidth):
        with pytest.raises(InputError, match=f"{call.__name__}: got a str; expected a Recording"):
            call("nvidia-h200")


class FakeCupy:
    """CuPy as far as the chase and the stream ask for it: arrays of NumPy, kernels that do by hand what their source says."""

    float32 = np.float32

    def __init__(self) -> None:
        self.on: list[int] = []  # the devices whose "with" is open
        self.launched: list[tuple] = []
        self.cuda = types.SimpleNamespace(Device=self.device)

    def device(self, index: int) -> types.SimpleNamespace:
        """A context, and what the device has."""
        fake = self

        class Context:
            attributes = types.MappingProxyType({"MultiProcessorCount": 132})

            def __enter__(self) -> None:
                fake.on.append(index)

            def __exit__(self, *_: object) -> None:
                fake.on.pop()

        return Context()

    def asarray(self, values: np.ndarray) -> np.ndarray:
        """A copy, on the device that is chosen."""
        assert self.on[-1] == 1
        return values.copy()

    def ones(self, count: int, dtype: type) -> tuple:
        """Only its description: half a gigabyte is not needed."""
        assert self.on[-1] == 1
        return ("ones", count, dtype)

    def zeros(self, count: int, dtype: type) -> tuple:
        """As ``ones``."""
        assert self.on[-1] == 1
        return ("zeros", count, dtype)

    def RawModule(self, code: str) -> types.SimpleNamespace:
        """The module of both kernels."""
        assert self.on[-1] == 1
        assert "void chase(" in code
        assert "void read_all(" in code
        return types.SimpleNamespace(get_function=lambda name: functools.partial(self.launch, name))

    def launch(self, name: str, grid: tuple, block: tuple, given: tuple) -> None:
        """Walk, or only note what was launched."""
        assert self.on[-1] == 1
        self.launched.append((name, grid, block, given if name == "read_all" else given[2:]))
        if name == "chase":
            ring, at, rounds = given
            for k in range(block[0]):
                for _ in range(rounds):
                    at[k] = ring[at[k]]


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> FakeCupy:
    """A stand-in for CuPy on a machine with two GPUs, of which the second is asked for."""
    fake = FakeCupy()
    monkeypatch.setattr(_cuda._backends, "backend", lambda name: types.SimpleNamespace(module={"cupy": fake}[name]))
    _cuda._kernels.cache_clear()
    yield fake
    _cuda._kernels.cache_clear()


def test_a_gpu_without_cupy_is_told_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch sees the GPU, and CuPy is not there: a missing library, as ``latency`` says, so that notebook 01 shows a recorded GPU."""
    monkeypatch.setattr(Device, "name", "A GPU")
    monkeypatch.setattr(_cuda._backends, "_made", {})
    monkeypatch.setitem(sys.modules, "cupy", None)  # as Python marks what cannot be imported
    for who, timed in (("latency", lambda: _latency.timed(Device("cuda"), "cupy", 4096, deadline=1.0)),
                       ("bandwidth", lambda: _streams.timed(Device("cuda"), "read", 4096, deadline=1.0))):  # fmt: skip
        with pytest.raises(MissingLibraryError, match=f"^{who}: a CUDA device is measured with CuPy, .*-m pip install cupy-cuda13x`"):
            timed()


def test_a_cupy_that_cannot_compile_is_told_as_one_that_is_not_there(cupy: FakeCupy, monkeypatch: pytest.MonkeyPatch) -> None:
    """CuPy's own words where NVRTC is missing: notebook 01 goes on with a recorded GPU. A memory that is full stays what it is."""
    monkeypatch.setattr(Device, "name", "A GPU")
    words = "CuPy failed to load libnvrtc.so.12: OSError: libnvrtc.so.12: cannot open shared object file: No such file or directory"

    def fail(name: str) -> None:
        raise RuntimeError(words)

    monkeypatch.setattr(cupy, "RawModule", lambda code: types.SimpleNamespace(get_function=fail))
    monkeypatch.setattr(cupy, "ones", lambda *_: fail("ones"))
    for who, timed in (("latency", lambda: _latency.timed(Device("cuda", 1), "cupy", 4096, deadline=1.0)),
                       ("bandwidth", lambda: _streams.timed(Device("cuda", 1), "read", 4096, deadline=1.0))):  # fmt: skip
        with pytest.raises(MissingLibraryError, match=f"^{who}: CuPy cannot compile a kernel for A GPU .*libnvrtc.*`gpulab doctor`"):
            timed()
    words = "CUDA out of memory"
    with pytest.raises(OutOfMemoryError):
        _latency.timed(Device("cuda", 1), "cupy", 4096, deadline=1.0)


@pytest.mark.parametrize("walkers", [1, 4])
def test_a_chase_on_a_gpu_as_its_kernel_walks(cupy: FakeCupy, walkers: int) -> None:
    """In a ring of as many lines of 128 bytes as a walker has hops, each thread ends where it began; in one of one more, one before."""
    hops = 8192 // walkers
    for nodes, ahead in ((hops, 0), (hops + 1, -1)):
        chain = _latency.build(Device("cuda", 1), "cupy", 128 * nodes + 127)
        assert [chain._at.tolist()] == [[chain._order[0]]]
        assert sorted(chain._order.tolist()) == [16 * k for k in range(nodes)]
        chain.start(walkers)
        places = [k * nodes // walkers for k in range(walkers)]
        assert chain._at.tolist() == chain._order[places].tolist()
        chain.walk()
        assert chain._at.tolist() == [chain._order[(place + ahead) % nodes] for place in places]
        assert cupy.launched.pop() == ("chase", (1,), (walkers,), (hops,))
        chain.close()
        assert chain._ring is chain._at is None
    assert cupy.on == []
    one = _cuda.CudaChain(Device("cuda", 1), 1, 0)  # the floor: a node that points at itself
    assert one._ring[int(one._order[0])] == one._order[0]


@pytest.mark.parametrize(("nbytes", "vectors", "passes"), [(8, 1, 2**25), (2**20, 2**16, 512), (2**30, 2**26, 1)])
def test_a_stream_on_a_gpu_as_it_is_launched(cupy: FakeCupy, nbytes: int, vectors: int, passes: int) -> None:
    """Sets of vectors of four ones, passed over until 512 MiB are read, once at least, by 2,048 threads of each of 132 multiprocessors."""
    work, moved = _streams._work(Device("cuda", 1), "read", nbytes)
    assert moved == max(2**29, nbytes)
    assert cupy.launched == []
    work()
    ((name, (blocks,), (threads,), given),) = cupy.launched
    assert (name, blocks * threads, threads % 32) == ("read_all", 132 * 2048, 0)
    assert given == (("ones", 4 * vectors, np.float32), vectors, passes, ("zeros", 1, np.float32))
    assert (type(given[1]), type(given[2])) == (np.int64, np.int32)  # long long and int, as the kernel declares them
    assert cupy.on == []
