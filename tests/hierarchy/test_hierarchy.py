"""Chases and streams over working sets: exact on scripted machines, and the steps in their curves.

The GPU is simulated: stand-ins for functions of PyTorch and CuPy, whose kernels advance the test's
clock. No time of this machine is asserted, except that it is positive.
"""

import dataclasses
import itertools
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from gpulab import devices, hierarchy, recordings
from gpulab.devices import measured_rates
from gpulab.errors import InputError, MissingLibraryError, OutOfMemoryError
from gpulab.evidence import Evidence, Note
from gpulab.hierarchy import (
    Bandwidth,
    BandwidthPoint,
    Latency,
    LatencyPoint,
    ParallelChains,
    ParallelPoint,
    Reported,
)
from hypothesis import given
from hypothesis import strategies as st

from fake_machine import GIB, MIB, Clock, lines, play_gpus, private_turns  # noqa: F401

KIB = 2**10
SIZES = [n for k in range(12, 27) for n in (2**k, 3 * 2 ** (k - 1))]
CACHES = (Reported("L1d", 32.0 * KIB), Reported("L2", 512.0 * KIB), Reported("L3", 8.0 * MIB))
LIVE = Evidence.measured("A CPU", 1)


def staircase(size: float) -> float:
    """Return the nanoseconds of a load on a machine with caches of 32 KiB, 512 KiB and 8 MiB."""
    return (
        2.0 if size <= 32 * KIB else 5.0 if size <= 512 * KIB else 15.0 if size <= 8 * MIB else 90.0
    )


def curve(
    times: list[float],
    sizes: list[int] = SIZES,
    reported: tuple[Reported, ...] = CACHES,
    floor: float | None = None,
) -> Latency:
    """Return a curve whose fastest samples take these nanoseconds, and medians 0.5 ns more."""
    points = tuple(
        LatencyPoint(
            n, (t + 0.5) * 1e-9, ((t + 0.25) * 1e-9, (t + 1) * 1e-9), t * 1e-9, n // 512, 3
        )
        for n, t in zip(sizes, times, strict=True)
    )
    return Latency("A CPU", "python", points, floor, reported, (), LIVE, None)


def _ends(found: Any) -> list[Any]:
    return [level.between_bytes for level in found.levels().levels]


def test_a_staircase_shows_its_levels() -> None:
    """Latencies are exact; a level ends at the geometric mean of the two sizes around its step."""
    found = curve([staircase(n) for n in SIZES]).levels()
    rows = [(x.name, x.reported_bytes, round(1e9 * x.latency_seconds, 6)) for x in found.levels]
    assert rows == [
        ("L1d", 32 * KIB, 2),
        ("L2", 512 * KIB, 5),
        ("L3", 8 * MIB, 15),
        ("main memory", None, 90),
    ]
    assert found.ends_bytes == pytest.approx([n * 1.5**0.5 for n in (32 * KIB, 512 * KIB, 8 * MIB)])
    assert found.unseen == ()


@pytest.mark.parametrize(
    ("times", "ends"),
    [
        ([4, 4, 4, 8, 16, 16, 16, 16], [(2**14, 2**16), None]),  # a slow rise is one step
        ([2, 2, 2, 2, 2.24, 2.51, 2.81, 2.81], [(2**15, 2**18), None]),  # 12 % per doubling
        ([2, 2, 2.16, 2.33, 2.52, 2.72, 2.72, 2.72], [None]),  # 8 % per doubling are no step
        ([2, 2, 2, 2, 2.3, 2.3, 2.3, 2.3], [None]),  # 15 % in total could be noise
        ([2, 2, 2, 2, 2.5, 2.5, 2.5, 2.5], [(2**15, 2**16), None]),
        ([2, 7, 2, 2, 9, 9, 9, 9], [(2**15, 2**16), None]),  # a point above later ones is disturbed
        ([2, 2, 9, 9, 2, 2, 2, 2], [None]),
    ],
)
def test_a_step_is_a_rise_clear_of_noise(times: list[float], ends: list[Any]) -> None:
    """A step rises by at least a tenth per doubling and a fifth in total."""
    assert _ends(curve(times, [2**k for k in range(12, 20)], ())) == ends


@given(
    st.lists(st.integers(2, 6), min_size=1, max_size=4),
    st.lists(st.floats(1.5, 8.0), min_size=4, max_size=4),
    st.randoms(use_true_random=False),
)
def test_any_staircase_with_noise_shows_its_steps(
    widths: list[int], factors: list[float], noise: Any
) -> None:
    """With factors of 1.5 to 8 and 3 % noise, all levels are found, each with its end."""
    times, starts, value = [], [], 2.0
    for width, factor in zip(widths, factors, strict=False):
        starts.append(len(times))
        times += [value * (1 + 0.03 * noise.random()) for _ in range(width)]
        value *= factor
    sizes = [2**k for k in range(12, 12 + len(times))]
    expected = [(sizes[start - 1], sizes[start]) for start in starts[1:]]
    assert _ends(curve(times, sizes, ())) == [*expected, None]


@pytest.mark.parametrize(
    ("steps", "reported", "names"),
    [
        ([40, 10_000], [32, 512, 8192], ["L1d", "L3", "main memory"]),
        ([40, 500, 9000], [32, 8192], ["L1d", "level 2", "L2", "main memory"]),
        ([32], [512], ["L1d", "level 2"]),  # four doublings apart still match
        ([32], [1024], ["level 1", "level 2"]),  # five doublings apart do not match
        ([], [32], ["level 1"]),
    ],
)
def test_reported_caches_are_matched_in_order(
    steps: list[int], reported: list[int], names: list[str]
) -> None:
    """Each step gets the nearest reported size within four doublings, in order of size (in KiB)."""
    sizes = [
        n * KIB
        for n in sorted({4, *(k for s in steps for k in (s, s + 1)), *[20_000] * (len(steps) > 1)})
    ]
    times = [2.0 * 3 ** sum(n > s * KIB for s in steps) for n in sizes]
    caches = tuple(
        Reported(name, 1.0 * KIB * n)
        for name, n in zip(("L1d", "L2", "L3"), reported, strict=False)
    )
    assert [level.name for level in curve(times, sizes, caches).levels().levels] == names


def test_curves_as_they_are_shown(approved: Any) -> None:
    """Points, levels, unseen levels, rates and chains, with notes and missing intervals.

    By hand: 80 ns a load along one chain and 10 ns along 16, at their fastest, are eight loads in
    flight.
    """
    few = [n for n in SIZES if n <= 6 * MIB]
    steps = curve([staircase(n) for n in SIZES[:4]], SIZES[:4])
    noted = dataclasses.replace(
        steps,
        notes=(Note("contended", "others ran."),),
        floor_seconds=1.9e-9,
        points=(steps.points[0]._replace(interval_seconds=None), *steps.points[1:]),
    )
    rates = [10e9, *(40e9 if n <= 32 * KIB else 20e9 if n <= 512 * KIB else 5e9 for n in SIZES[1:])]
    points = tuple(
        BandwidthPoint(n, r, (0.9 * r, 1.1 * r), 1.2 * r, n // 512)
        for n, r in zip(SIZES, rates, strict=True)
    )
    stream = Bandwidth("A CPU", "numpy", "read", points, CACHES[:2], (), LIVE, None)
    chains = tuple(
        ParallelPoint(k, (s + 5) * 1e-9, (s * 1e-9, (s + 9) * 1e-9), s * 1e-9, 7)
        for k, s in ((1, 80), (4, 20), (16, 10))
    )
    both = ParallelChains("A CPU", "python", MIB, chains, (), LIVE, None)
    assert both.gain == 8.0
    shown = [
        noted,
        noted.levels(),
        curve([staircase(n) for n in SIZES]).levels(),
        curve([staircase(n) for n in few], few, CACHES, 1.9e-9).levels(),
        curve([2 * 1.09 ** (k / 2) for k in range(len(SIZES))]).levels(),
        curve([2, 2.1, 40, 60], [2**k for k in range(23, 27)]).levels(),  # not flat at the end
        dataclasses.replace(stream, points=points[:3]),
        both,
    ]
    captions = [noted.caption(), both.caption()]
    assert "\n".join([lines(*shown), *captions]) == approved


class PlayedCupy:
    """Stand in for the part of CuPy that chases and streams use; kernels take scripted time.

    A hop takes 2 ns in rings of up to 32 KiB, 10 ns up to 1 MiB, and 100 ns beyond. In each further
    ring of the same size it takes ``slow`` times as long. The GPU reads 8 TB/s.
    """

    def __init__(self) -> None:
        self.clock, self.rings, self.broken, self.slow = Clock(), [], False, 1.0

    def launch(self, name: str, grid: Any, block: Any, given: Any) -> None:
        """Queue the time that the kernel takes; compute nothing."""
        if name == "read_all":
            (ones, vectors, passes, _), threads = given, grid[0] * block[0]
            assert (len(ones), threads) == (4 * vectors, 132 * 2048)
            self.clock.queues(0.0, 16 * int(vectors) * int(passes) / 8e12)()
            return
        ring, at, hops = given
        assert (len(at), grid) == (block[0], (1,))
        seconds = 2e-9 if ring.nbytes <= 32 * KIB else 10e-9 if ring.nbytes <= MIB else 100e-9
        self.rings.append(ring)
        first = next(each for each in self.rings if each.nbytes == ring.nbytes)
        self.clock.queues(0.0, int(hops) * seconds * (1.0 if ring is first else self.slow))()

    def module(self, code: str) -> Any:
        """Return a module with both kernels, or fail like a CuPy that cannot compile."""
        if self.broken:
            raise RuntimeError("CuPy failed to load libnvrtc.so.12")
        return types.SimpleNamespace(
            get_function=lambda name: lambda *launch: self.launch(name, *launch)
        )


PLAYED = PlayedCupy()


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> PlayedCupy:
    """Simulate six GPUs; tests use the last two, as compiled kernels are kept for each GPU."""
    cupy = pytest.importorskip("cupy")  # its import takes seconds: these tests are slow
    PLAYED.rings, PLAYED.slow = [], 1.0
    play_gpus(monkeypatch, count=6, synchronize=PLAYED.clock.finish, free_bytes=GIB)

    class Device:
        attributes = types.MappingProxyType({"MultiProcessorCount": 132})

        def __init__(self, index: int) -> None:
            assert index in (4, 5)

        def __enter__(self) -> None: ...

        def __exit__(self, *_: object) -> None: ...

    for name, value in {
        "asarray": np.array,
        "ones": np.ones,
        "zeros": np.zeros,
        "RawModule": PLAYED.module,
    }.items():
        monkeypatch.setattr(cupy, name, value)
    monkeypatch.setattr(cupy.cuda, "Device", Device)
    return PLAYED


@pytest.mark.slow
def test_a_cupy_that_cannot_compile_is_a_missing_library(
    gpu: PlayedCupy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error lets a notebook go on with a recorded GPU."""
    monkeypatch.setattr(gpu, "broken", True)
    for measure in (hierarchy.measure_chase, hierarchy.measure_stream):
        with pytest.raises(MissingLibraryError):
            measure(4096, "cuda:4")  # the kernels of cuda:5 may be compiled already


@pytest.mark.slow
def test_a_scripted_gpu_is_read_exactly(gpu: PlayedCupy) -> None:
    """Points, floor and levels are as scripted; each chase walks one cycle of all lines."""
    sizes = [2**k for k in range(12, 24)]
    gpu.slow = 1.1  # the second chase takes a tenth longer
    found = hierarchy.latency(sizes, "cuda:5", chases=2, deadline=1, clock=gpu.clock)
    hop = np.array([2e-9 if n <= 32 * KIB else 10e-9 if n <= MIB else 100e-9 for n in sizes])
    assert [p.nbytes for p in found.points] == sizes
    assert np.array([p.median_seconds for p in found.points]) == pytest.approx(1.05 * hop)
    assert np.array([p.least_seconds for p in found.points]) == pytest.approx(hop)
    hulls = np.array([p.interval_seconds for p in found.points])
    assert hulls == pytest.approx(np.outer(hop, [1, 1.1]))
    assert ({p.chases for p in found.points}, found.method) == ({2}, "cupy")
    assert found.floor_seconds == pytest.approx(2e-9)
    assert _ends(found)[:2] == [(32 * KIB, 64 * KIB), (MIB, 2 * MIB)]
    assert found.reported == (Reported("L2", 60.0 * MIB),)
    assert found.evidence.samples == sum(p.samples for p in found.points)
    assert {ring.nbytes for ring in gpu.rings} == {128, *sizes}
    for ring in {ring.nbytes: ring for ring in gpu.rings if ring.nbytes <= 2**18}.values():
        visited = [0]
        while (place := int(ring[visited[-1]])) != 0:
            visited.append(place)
        assert sorted(visited) == [*range(0, len(ring), 16)]  # each line of 128 bytes once
        blocks = [place * 8 // 2**16 for place in visited]
        assert len([*itertools.groupby(blocks)]) <= len(set(blocks)) + 1  # block after block


@pytest.mark.slow
def test_a_gpus_stream_is_read_exactly(gpu: PlayedCupy) -> None:
    """The bandwidth is the scripted 8 TB/s, in cache and beyond it."""
    found = hierarchy.bandwidth([2**20, 2**30 // 8], "cuda:5", deadline=1.0, clock=gpu.clock)
    assert [p.bytes_per_second for p in found.points] == pytest.approx([8e12, 8e12])
    assert np.array([p.interval_bytes_per_second for p in found.points]) == pytest.approx(8e12)


@pytest.mark.parametrize(
    ("operation", "function", "arrays"), [("copy", "negative", 2), ("triad", "add", 3)]
)
def test_a_cpus_streams_count_each_array_once(
    monkeypatch: pytest.MonkeyPatch, operation: str, function: str, arrays: int
) -> None:
    """A call moves the bytes of all its arrays; a read goes through 1 MiB 16 times."""
    written: list[int] = []
    monkeypatch.setattr(np, function, lambda *given, out: written.append(out.nbytes))
    work, moved = measured_rates.thread_work(operation, 2**20)
    work()
    assert moved == arrays * written[0]
    assert hierarchy.measure_stream(2**20, deadline=0.05).nbytes == 16 * 2**20


@pytest.mark.slow
def test_a_curve_out_of_time_is_still_complete(gpu: PlayedCupy) -> None:
    """When the time is used up, each size still gets one chase."""
    spent = hierarchy.latency([4096, 2 * MIB], "cuda:5", chases=5, deadline=1e-9, clock=gpu.clock)
    assert [p.chases for p in spent.points] == [1, 1]


@pytest.mark.slow
@pytest.mark.parametrize(("l2", "last"), [(60, 27), (12, 26)])
def test_default_sizes_reach_four_times_the_gpus_l2(
    l2: int, last: int, gpu: PlayedCupy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two sizes per doubling from 4 KiB to 8 MiB, then one, up to an eighth of the free 1 GiB.

    By hand: 64 MiB is the first of these sizes that is not below four times 12 MiB.
    """
    play_gpus(monkeypatch, 6, gpu.clock.finish, GIB, L2_cache_size=l2 * MIB)
    if (devices.find("cpu").free_bytes or 0) < 4 * GIB:  # the arrays are made on the host
        pytest.skip("other programs hold this machine's memory")
    found = hierarchy.bandwidth(None, "cuda:5", clock=gpu.clock, deadline=1e-9)
    assert [p.nbytes for p in found.points] == [
        *(n for k in range(12, 23) for n in (2**k, 3 * 2 ** (k - 1))),
        *(2**k for k in range(23, last + 1)),
    ]
    with pytest.raises(OutOfMemoryError):
        hierarchy.latency([2**30], "cuda:5")


@pytest.mark.slow
@pytest.mark.parametrize("method", hierarchy.methods())
def test_a_chase_of_this_machine(method: str) -> None:
    """Each method available here chases whole lines and measures positive times and a floor."""
    found = hierarchy.latency([8192, np.int64(4100)], method=method, chases=1, deadline=0.1)
    assert [(p.nbytes, p.chases) for p in found.points] == [(4096, 1), (8192, 1)]
    assert all(0 < p.least_seconds <= p.median_seconds for p in found.points)
    assert found.floor_seconds > 0
    assert (found.method, found.evidence.badge) == (method, "MEASURED")
    both = hierarchy.parallel([4, 2], 2**16, method=method, deadline=0.1)
    assert ([p.chains for p in both.points], both.nbytes) == ([1, 2, 4], 2**16)
    assert all(0 < p.least_seconds <= p.seconds_per_hop for p in both.points)
    assert both.loads_in_flight(both.points[0]) == 1.0
    # at least twice the largest cache, as far as chains of 64 and 128 MiB reach
    assert hierarchy.parallel([1], method=method, deadline=0.01).nbytes >= min(
        2 * max((cache.size_bytes for cache in found.reported), default=0),
        {"python": 64, "numba": 128}[method] * MIB,
    )


@pytest.mark.parametrize(
    "call",
    [
        lambda: hierarchy.latency([]),
        lambda: hierarchy.latency([512]),
        lambda: hierarchy.latency([4096.0]),
        lambda: hierarchy.latency([2**35]),
        lambda: hierarchy.latency([4096], method="c"),
        lambda: hierarchy.latency([4096], chases=0),
        lambda: hierarchy.latency([4096], chases=True),
        lambda: hierarchy.latency([4096], deadline=0),
        lambda: hierarchy.parallel([3], 2**16),
        lambda: hierarchy.parallel([64], 2**16),
        lambda: hierarchy.bandwidth([4096.0]),
        lambda: hierarchy.recorded_latency("nvidia-h200"),
        lambda: hierarchy.measure_stream(512),
    ],
)
def test_what_cannot_be_chased_is_refused(call: Callable[[], Any]) -> None:
    """Invalid sizes, methods and counts are refused before any memory is taken."""
    with pytest.raises(InputError):
        call()


@pytest.mark.parametrize("name", ["nvidia-h200", "amd-epyc-avx2-2-cores"])
def test_recorded_curves_have_the_recordings_numbers(name: str, approved: Any) -> None:
    """Each number comes from its entry: seconds over hops, or bytes over seconds."""
    recording = recordings.load(name)
    latency, rates = hierarchy.recorded_latency(recording), hierarchy.recorded_bandwidth(recording)
    reads = [e for e in recording.select("bandwidth") if e.params["operation"] == "read"]
    chases = {e.params["nbytes"]: e.timing for e in recording.select("latency")}
    streams = {e.params["nbytes"]: e.timing for e in reads}
    assert (len(latency.points), len(rates.points)) == (len(chases), len(streams))
    for p in latency.points:
        t = chases[p.nbytes]
        by_hand = np.array([t.median_seconds, *t.interval_seconds, min(t.samples_seconds)])
        found = [p.median_seconds, *p.interval_seconds, p.least_seconds]
        assert found == pytest.approx(by_hand / hierarchy.HOPS_PER_CALL, rel=1e-12)
    for q in rates.points:
        t = streams[q.nbytes]
        by_hand = np.array([t.median_seconds, *t.interval_seconds[::-1], min(t.samples_seconds)])
        found = [q.bytes_per_second, *q.interval_bytes_per_second, q.most_bytes_per_second]
        assert found == pytest.approx(t.nbytes / by_hand, rel=1e-12)
    assert hierarchy.recorded_latency(dataclasses.replace(recording, entries=())) is None
    assert latency.evidence.badge == rates.evidence.badge == "RECORDED"
    assert lines(latency, latency.levels(), rates) == approved


@pytest.mark.gpu
def test_a_real_gpu_is_chased() -> None:
    """A load from HBM takes longer than one from L1, and HBM can be streamed."""
    pytest.importorskip("cupy")
    near, far = hierarchy.latency([2**14, 2**28], "cuda", chases=1, deadline=2).points
    assert near.least_seconds < far.least_seconds
    assert hierarchy.bandwidth([2**28], "cuda", deadline=1).points[0].bytes_per_second > 0
