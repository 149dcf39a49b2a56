"""What the machine has shown to reach, with an injected clock where arithmetic is checked."""

import contextlib
import itertools
import math
import os
import threading
import types
from dataclasses import replace

import pytest
import torch

from gpulab.devices import Cache, Ceilings, MemoryCeiling, _ceilings, _streams, ceilings
from gpulab.devices.conditions import Readings
from gpulab.errors import StoppedError
from gpulab.evidence import Note


class _Clock:
    """A clock that the work itself moves on."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def test_the_best_run_counts_and_the_first_is_thrown_away():
    """Of 9, 5, 3, 4 the best after the first is 3, and the cold first run never counts."""
    times = itertools.chain([0.001], [0.005, 0.003, 0.004], itertools.repeat(0.005))
    assert _streams.best(lambda: next(times)) == 0.003


def test_long_runs_are_few():
    """Once a tenth of a second is spent, two runs after the first are enough."""
    calls = []
    assert _streams.best(lambda: calls.append(1) or 1.0) == 1.0
    assert len(calls) == 3


@pytest.mark.parametrize(("seconds", "count"), [(0.04, 3), (0.039, 4), (0.02, 6), (0.001, 8)])
def test_an_eighth_of_a_second_is_spent_on_a_figure(seconds, count):
    """Runs go on while they took less than 0.12 s in all: three of 40 ms have, three of 39 ms have not; seven after the first at most."""
    calls = []
    assert _streams.best(lambda: calls.append(1) or seconds) == seconds
    assert len(calls) == count


def test_short_calls_are_batched_until_a_batch_lasts():
    """A call of 10 us within batches of 4 ms, with 100 us to wait for the device, comes out within 3 %."""
    clock = _Clock()

    def work():
        clock.now += 1e-5

    def wait():
        clock.now += 1e-4

    assert _streams.repeated(work, wait, clock) == pytest.approx(1e-5, rel=0.30)
    assert _streams.repeated(work, lambda: None, clock) == pytest.approx(1e-5)


@pytest.mark.parametrize(("operation", "arrays"), [("copy", 2), ("read", 1), ("triad", 3)])
def test_the_bytes_of_a_stream_are_counted_by_hand(operation, arrays):
    """A working set of 48 KiB is passed often enough for 16 MiB a call; what is moved is passes x arrays x elements x 4."""
    work, moved = _streams.thread_work(operation, 48 * 1024)
    elements = 48 * 1024 // (4 * arrays) // 16 * 16
    assert moved % (arrays * elements * 4) == 0
    assert 0.9 * 2**24 < moved <= 2**24
    work()


def test_a_rate_is_bytes_over_the_best_time(monkeypatch):
    """With a clock that moves 1 ms in each timed call, one thread's rate is its bytes a millisecond."""
    ticks = itertools.count()
    _, moved = _streams.thread_work("copy", 2**15)
    assert _streams.host_rate("copy", 2**15, 1, lambda: next(ticks) * 1e-3) == pytest.approx(moved / 1e-3)


def test_an_error_in_one_thread_is_raised_and_leaves_no_thread(monkeypatch):
    """A thread that fails ends the others and its own error comes out, not the broken barrier."""
    monkeypatch.setattr(_streams, "thread_work", lambda *args: (_ for _ in ()).throw(MemoryError("no room")))
    with pytest.raises(MemoryError, match="no room"):
        _streams.host_rate("copy", 2**15, 2, lambda: 0.0)


def _made_up():
    import gpulab as gl

    levels = (MemoryCeiling("L2", 2**20, 2**19, 3e11, 1e11, 2e11), MemoryCeiling("DRAM", 2**34, 2**27, 1e10, 2e10, 1.5e10))
    stamp = gl.devices.environment("cpu")
    return Ceilings("cpu", levels, {"float32": 2e11}, (), gl.evidence.Evidence.measured("X, best of 7 runs"), stamp)


def test_a_working_set_meets_the_fastest_level_that_holds_it():
    """1 MiB fits into L2; one byte more and everything unknown meets main memory."""
    found = _made_up()
    assert found.bandwidth(2**20) == 3e11
    assert found.bandwidth(2**20 + 1) == found.bandwidth() == found.bandwidth(math.inf) == found.bandwidth(2**60) == 2e10
    assert [(level.name, level.bytes_per_second) for level in found.levels] == [("L2", 3e11), ("DRAM", 2e10)]
    assert type(found).from_dict(found.to_dict()) == found
    assert repr(found) == "<Ceilings of cpu: L2 300 GB/s, DRAM 20.0 GB/s, float32 200 GFLOP/s>"
    assert "MEASURED" in found._repr_html_()


@pytest.mark.parametrize(("load", "noted"), [(0.1, False), (2.0, True), (999.0, True)])
def test_where_nothing_is_counted_the_load_tells(monkeypatch, load, noted):
    """Without the system's counters (macOS without psutil), as many programs as cores in the last minute give the note contended."""
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0), raising=False)
    monkeypatch.setattr(_ceilings._host, "usable_cores", lambda: 2)
    unknown = Readings(seconds=0.0, cores=2)
    notes = _ceilings._disturbances(unknown, Readings(seconds=1.0, cores=2))
    assert [note.code for note in notes] == (["contended"] if noted else [])
    assert all(note.sentence.startswith(f"{load:.1f} programs wanted 2 cores in the last minute.") for note in notes)


@pytest.mark.parametrize(("waited", "noted"), [(0.004, False), (0.3, True)])
def test_a_neighbour_meanwhile_is_noted_whatever_the_load_was(monkeypatch, waited, noted):
    """Waits of 15 % of the time beside a busy neighbour are told as such; a load of the minute before is not."""
    monkeypatch.setattr(os, "getloadavg", lambda: (999.0, 0.0, 0.0), raising=False)
    before = Readings(seconds=0.0, cores=2, run_delay_seconds=0.0, process_run_delay_seconds=0.0, busy_seconds=0.0, stolen_seconds=0.0)
    after = replace(before, seconds=2.0, own_cpu_seconds=1.5, run_delay_seconds=waited, process_run_delay_seconds=waited, busy_seconds=2.5)
    notes = _ceilings._disturbances(before, after)
    assert [note.code for note in notes] == (["contended"] if noted else [])
    assert all("15 % of the time" in note.sentence and "refresh=True" in note.sentence for note in notes)


def test_a_second_look_is_taken_where_others_worked_and_the_higher_rate_stays(monkeypatch):
    """Of 3 and 5 GB/s and of 9 and 7 GFLOP/s the higher stays, with the quiet look's notes; a quiet first look is the only one."""
    quiet = replace(_made_up(), memory=(MemoryCeiling("DRAM", 2**34, 2**27, 5e9, 1e9, 2e9),), flops_per_second={"float32": 7e9})
    busy = replace(
        quiet,
        memory=(MemoryCeiling("DRAM", 2**34, 2**27, 3e9, 4e9, 1e9),),
        flops_per_second={"float32": 9e9},
        notes=(Note("contended", "others"),),
    )
    looks = iter([busy, quiet, quiet])
    monkeypatch.setattr(_ceilings, "_look", lambda device, clock: next(looks))
    found = _ceilings._measure(_ceilings._device.Device("cpu"), None)
    (level,) = found.memory
    assert (level.copy_bytes_per_second, level.read_bytes_per_second, level.triad_bytes_per_second) == (5e9, 4e9, 2e9)
    assert found.flops_per_second == {"float32": 9e9}
    assert found.notes == ()
    assert _ceilings._measure(_ceilings._device.Device("cpu"), None) is quiet
    assert list(looks) == []


def test_a_stop_ends_the_measurement_and_keeps_what_was_there(monkeypatch):
    """Stopped at the third question, nothing more is asked, what was measured before stays, and the next call measures again."""
    kept = _made_up()
    monkeypatch.setitem(_ceilings._measured, _ceilings._device.Device("cpu"), kept)
    asked = []
    with pytest.raises(StoppedError, match="Run it again"):
        ceilings("cpu", refresh=True, stop=lambda: asked.append(1) or len(asked) >= 3)
    assert 3 <= len(asked) <= 3 + os.cpu_count()  # the other threads of the stream may ask once more
    assert ceilings("cpu") is kept


def test_a_stop_is_heard_while_another_thread_measures():
    """The lock of a measurement under way does not make a stopped one wait."""
    with _ceilings._one_at_a_time, pytest.raises(StoppedError):
        ceilings("cpu", stop=lambda: True)


def test_a_stop_is_asked_for_each_twentieth_of_a_second_while_another_measures(monkeypatch):
    """The lock is tried for 50 ms at a time, and given back once."""
    log = []

    class Lock:
        def acquire(self, timeout):
            log.append(timeout)
            return len(log) > 4

        def release(self):
            log.append("back")

    monkeypatch.setattr(_ceilings, "_one_at_a_time", Lock())
    monkeypatch.setitem(_ceilings._measured, _ceilings._device.Device("cpu"), "known")
    assert ceilings("cpu", stop=lambda: log.append("asked")) == "known"
    assert log == [0.05, "asked", 0.05, "asked", 0.05, "back"]


def test_a_thread_that_waits_alone_gives_up_after_half_a_minute(monkeypatch):
    """What a broken barrier says comes out where no thread has an error of its own."""
    waited = []

    class Barrier(threading.Barrier):
        def wait(self, timeout=None):
            waited.append(timeout)
            raise threading.BrokenBarrierError

    monkeypatch.setattr(_streams.threading, "Barrier", Barrier)
    with pytest.raises(threading.BrokenBarrierError):
        _streams.host_rate("copy", 2**15, 2, lambda: 0.0)
    assert waited == [30.0] * 2


def test_short_rows_are_read_where_they_lie(monkeypatch):
    """NumPy would first copy rows that fit twice into its buffer, so a stream runs with a small one, and the caller's stays."""
    sizes = []
    monkeypatch.setattr(_streams.np, "negative", lambda *args, **kwargs: sizes.append(_streams.np.getbufsize()))
    before = _streams.np.getbufsize()
    _streams.thread_work("copy", 2**14)[0]()
    assert sizes[0] <= 2**14 // 8  # elements of one row
    assert _streams.np.getbufsize() == before


def test_the_shortest_single_call_counts_and_the_first_is_thrown_away():
    """Calls of 1, 9, 3 and 5 ms in a span of 17 ms: the third is the best after the cold one; a span of nothing still makes three calls."""
    clock, calls = _Clock(), []

    def work():
        calls.append(1)
        clock.now += [0.001, 0.009, 0.003, 0.005][(len(calls) - 1) % 4]

    assert _streams.shortest(work, clock, 0.017) == pytest.approx(0.003)
    assert len(calls) == 4
    calls.clear()
    assert _streams.shortest(work, clock, 0.0) == pytest.approx(0.003)
    assert len(calls) == 3


def test_this_machine_is_measured_once_and_its_settings_stay():
    """Every level and dtype has a positive rate, the second call gives the same object, and float32 stays as it was set."""
    before = torch.backends.cuda.matmul.fp32_precision, torch.backends.mkldnn.matmul.fp32_precision, torch.get_num_threads()
    found = ceilings("cpu")
    assert ceilings("cpu") is found
    assert (torch.backends.cuda.matmul.fp32_precision, torch.backends.mkldnn.matmul.fp32_precision, torch.get_num_threads()) == before
    assert found.memory[-1].name == "DRAM"
    assert all(1e8 < level.bytes_per_second < 1e14 for level in found.memory)
    assert {"float64", "float32", "bfloat16", "float16"} <= set(found.flops_per_second)
    assert found.evidence.badge == "MEASURED"


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (
            TypeError("Cannot convert a MPS Tensor to float64 dtype.\nUse float32"),
            "Cannot convert a MPS Tensor to float64 dtype. Use float32",
        ),
        (RuntimeError(), "RuntimeError"),
    ],
)
def test_a_dtype_that_the_device_lacks_is_left_out_with_a_note(error, words, monkeypatch):
    """Apple's GPUs have no float64: the others are still measured; an error may also come without a word."""

    def product(dtype, device, clock):
        if dtype == "float64":
            raise error
        return 1e12

    monkeypatch.setattr(_ceilings, "_product_rate", product)
    notes = []
    assert "float64" not in _ceilings._products(_ceilings._device.Device("mps"), None, notes)
    assert [(note.code, note.sentence) for note in notes] == [("skipped", f"no float64 product on mps:0: {words}")]


def test_the_clock_is_read_after_the_device_was_waited_for():
    """Each batch: the clock, the work, the wait, the clock; the first batch warms up and the second says how many calls make one."""
    log, ticks = [], itertools.count()

    def clock():
        log.append("clock")
        return next(ticks) * 1e-3

    _streams.repeated(lambda: log.append("work"), lambda: log.append("wait"), clock, at_least_seconds=3e-3, runs=2)
    one, three = ["clock", "work", "wait", "clock"], ["clock", *["work"] * 3, "wait", "clock"]
    assert log == [*one, *one, *three, *three, *three]


def test_threads_begin_each_run_together(monkeypatch):
    """Each thread reads its clock twice a run, and none goes on to a run before all have ended the last: a late one would stream alone."""
    log, turn = [], threading.Lock()
    monkeypatch.setattr(_streams, "thread_work", lambda *given: (lambda: None, 100))

    def clock():
        with turn:
            log.append(threading.get_ident())
            return len(log) * 1e-3

    _streams.host_rate("copy", 2**15, 3, clock)
    runs = [log[k : k + 6] for k in range(0, len(log), 6)]
    assert len(runs) == _streams.RUNS + 1
    assert all(sorted(run.count(thread) for thread in set(run)) == [2, 2, 2] for run in runs)


def test_the_rate_of_threads_is_all_their_bytes_over_the_whole_span(monkeypatch):
    """By hand: two threads of 100 bytes; a run from the first start to the last end, the best but the first."""
    spans = iter([(0.0, 0.1), (5.0, 7.0), (10.0, 10.5), *[(20.0, 29.0)] * (_streams.RUNS - 2)])
    lock, first = threading.Lock(), {}

    def clock():
        with lock:
            run = first.setdefault(threading.get_ident(), [])
            run.append(None)
            number = (len(run) - 1) // 2
            while len(planned) <= number:
                planned.append(next(spans))
            return planned[number][(len(run) - 1) % 2]

    planned = []
    monkeypatch.setattr(_streams, "thread_work", lambda *given: (lambda: None, 100))
    assert _streams.host_rate("copy", 2**15, 2, clock) == pytest.approx(200 / 0.5)


@pytest.mark.parametrize(("operation", "arrays", "result"), [("copy", 2, 1.0), ("read", 1, 256.0), ("triad", 3, 4.0)])
def test_a_devices_rate_counts_each_array_once(operation, arrays, result, monkeypatch):
    """A working set of 1 KiB an array at 1 ms a call; the work is a copy, a sum of 256 ones, and 1 + 3 x 1."""
    given = []
    monkeypatch.setattr(_streams, "repeated", lambda work, synchronize, clock: given.append((work(), synchronize, clock)) or 1e-3)
    assert _streams.device_rate(operation, arrays * 1024, "cpu", "wait", "clock") == pytest.approx(arrays * 1024 / 1e-3)
    ((value, *passed),) = given
    assert (value == result).all()
    assert passed == ["wait", "clock"]


@pytest.mark.parametrize(("kind", "capability", "override", "has"), [
    ("cuda", "8.0", None, True), ("cuda", "7.5", None, False), ("cuda", None, None, False), ("cuda", "12.0", None, True),
    ("cuda", "9.0", "0", False), ("cuda", "9.0", "1", True), ("rocm", "gfx942", None, False), ("cpu", None, None, False),
])  # fmt: skip
def test_tf32_is_measured_where_it_is(kind, capability, override, has, monkeypatch):
    """NVIDIA's GPUs from compute capability 8.0 on (CUDA C++ Programming Guide), unless NVIDIA_TF32_OVERRIDE forbids it."""
    accelerator = types.SimpleNamespace(compute_capability=capability)
    monkeypatch.setattr(_ceilings._facts, "accelerator", lambda device: accelerator)
    monkeypatch.delenv("NVIDIA_TF32_OVERRIDE", raising=False)
    if override is not None:
        monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", override)
    asked = []
    monkeypatch.setattr(_ceilings, "_product_rate", lambda dtype, device, clock: asked.append(dtype) or 1e12)
    rates = _ceilings._products(_ceilings._device.Device(kind), None, [])
    assert ("tf32" in rates) == ("tf32" in asked) == has
    assert {"float64", "float32", "bfloat16", "float16"} <= set(rates)


@pytest.mark.parametrize(("rate", "sizes"), [
    (2 * 256**3 / 1e-3, [256, 512]),  # 1 ms: 8 ms would be a side of 512, and so is twice the first
    (2 * 256**3 / 1e-6, [256, 2048]),  # a microsecond: a side of 5,120 is wanted, and 2,048 the most on a CPU
    (2 * 256**3 / 30e-3, [256]),  # 30 ms: twice the side would take 0.24 s, which is too long
    (2 * 256**3 / 18e-3, [256, 512]),  # 18 ms: 0.144 s
])  # fmt: skip
def test_a_product_is_tried_at_the_side_that_takes_eight_milliseconds(rate, sizes, monkeypatch):
    """On a processor that computes at one rate whatever the side: by n^3, in multiples of 128, within what fits."""
    tried = []

    def shortest(work, clock, seconds):
        assert seconds == 0.05
        n = len(work())
        tried.append(n)
        return 2 * n**3 / rate

    monkeypatch.setattr(_streams, "shortest", shortest)
    monkeypatch.setattr(torch, "mm", lambda a, b, out: out)
    monkeypatch.setattr(_ceilings._device.Device, "free_bytes", property(lambda self: 2**40))
    assert _ceilings._product_rate("float32", _ceilings._device.Device("cpu"), None) == pytest.approx(rate)
    assert tried == sizes


def test_the_largest_product_fits_into_a_quarter_of_what_is_free(monkeypatch):
    """Three matrices and two float32 originals of 8 bytes an element at most: 40 n^2 bytes; of 40 GiB a side of 16,384 is a quarter."""
    for free, side in ((4 * 40 * 16384**2, 16384), (4 * 40 * 16384**2 - 1, 16256), (1, 128)):
        monkeypatch.setattr(_ceilings._device.Device, "free_bytes", property(lambda self, free=free: free))
        assert _ceilings._fitting_size(_ceilings._device.Device("cpu")) == side


def test_each_level_of_memory_is_met_by_a_working_set_of_its_own(monkeypatch):
    """By hand: half of each cache of all cores but one that lies below the others' sum, and four times the last for main memory."""
    caches = (Cache("L1d", 2**15, 4), Cache("L2", 2**21, 4), Cache("L3", 2**23, 1))
    monkeypatch.setattr(_ceilings._cpu, "probe", lambda: types.SimpleNamespace(caches=caches))
    monkeypatch.setattr(
        _streams, "host_rate", lambda operation, nbytes, threads, clock, pool: {"copy": 1.0, "read": 3.0, "triad": 2.0}[operation]
    )
    monkeypatch.setattr(_ceilings._device.Device, "free_bytes", property(lambda self: 2**40))
    monkeypatch.setattr(_ceilings._device.Device, "memory_bytes", property(lambda self: 2**41))
    notes = []
    levels = _ceilings._host_memory(4, None, notes, None)
    # L3: half of 8 MiB is no more than the 8 MiB of L2; DRAM: 4 x 8 MiB is less than the 64 MiB that it has at least.
    assert [(m.name, m.capacity_bytes, m.working_set_bytes) for m in levels] == [
        ("L1d", 2**17, 2**16), ("L2", 2**23, 2**22), ("DRAM", 2**41, 2**26),
    ]  # fmt: skip
    assert (levels[0].copy_bytes_per_second, levels[0].read_bytes_per_second, levels[0].triad_bytes_per_second) == (1, 3, 2)
    assert levels[0].bytes_per_second == 3
    assert notes == []
    monkeypatch.setattr(_ceilings._device.Device, "free_bytes", property(lambda self: 2**25))
    *_, memory = _ceilings._host_memory(4, None, notes, None)
    assert memory.working_set_bytes == 2**23
    assert [note.code for note in notes] == ["warm-cache"]
    assert "8.00 MiB were streamed beside 8.00 MiB of cache" in notes[0].sentence


def test_fewer_threads_than_cores_fill_fewer_caches(monkeypatch):
    """A container with two of 16 cores' time: each thread half of its own L1 and L2, both half of the one L3, whatever else lies idle."""
    caches = (Cache("L1d", 3 * 2**14, 8, ((2**15, 8),)), Cache("L2", 2**20, 16), Cache("L3", 2**25, 1))
    monkeypatch.setattr(_ceilings._cpu, "probe", lambda: types.SimpleNamespace(caches=caches))
    monkeypatch.setattr(_streams, "host_rate", lambda *asked: 1.0)
    monkeypatch.setattr(_ceilings._device.Device, "free_bytes", property(lambda self: 2**40))
    monkeypatch.setattr(_ceilings._device.Device, "memory_bytes", property(lambda self: 2**41))
    levels = _ceilings._host_memory(2, None, [], None)
    # L1d: 48 KiB of 8 cores and 32 KiB of 8 others are 40 KiB a core; what the level holds is still that of all cores.
    assert [(m.name, m.capacity_bytes, m.working_set_bytes) for m in levels] == [
        ("L1d", 640 * 2**10, 40 * 2**10), ("L2", 2**24, 2**20), ("L3", 2**25, 2**24), ("DRAM", 2**41, 2**27),
    ]  # fmt: skip
    assert [m.working_set_bytes for m in _ceilings._host_memory(16, None, [], None)] == [320 * 2**10, 2**23, 2**27]


def test_where_no_cache_is_told_main_memory_is_met_by_the_largest_stream(monkeypatch):
    """64 MiB fit into the caches of many a machine: half a GiB, or a quarter of what is free, and a note, for only Linux and macOS tell."""
    monkeypatch.setattr(_ceilings._cpu, "probe", lambda: types.SimpleNamespace(caches=()))
    monkeypatch.setattr(_streams, "host_rate", lambda *asked: 1.0)
    for free, streamed, words in ((2**40, 2**29, "512 MiB"), (2**30, 2**28, "256 MiB")):
        monkeypatch.setattr(_ceilings._device.Device, "free_bytes", property(lambda self, free=free: free))
        notes = []
        (memory,) = _ceilings._host_memory(2, None, notes, None)
        assert (memory.name, memory.working_set_bytes) == ("DRAM", streamed)
        (note,) = notes
        assert note.code == "skipped"
        assert note.sentence.startswith(f"the system does not say how large the caches are, so none was measured; {words} were streamed")


def test_a_devices_memory_is_met_by_3_gib_or_a_quarter_of_what_is_free(monkeypatch):
    """On an accelerator of 80 GiB, on one with 4 GiB free, and on one that does not say what is free."""
    given = []
    monkeypatch.setattr(_streams, "device_rate", lambda *asked: given.append(asked) or float(len(given)))
    for free, total, working_set, capacity in (
        (2**36, 80 * 2**30, 3 * 2**30, 80 * 2**30), (2**32, 2**33, 2**30, 2**33), (None, None, 3 * 2**27, math.inf),
    ):  # fmt: skip
        device = _Gpu(free, total)
        (level,) = _ceilings._device_memory(device, "clock")
        assert (level.name, level.capacity_bytes, level.working_set_bytes) == ("DRAM", capacity, working_set)
        assert given[-3:] == [(name, working_set, "cuda:0", device.synchronize, "clock") for name in ("copy", "read", "triad")]


class _Gpu:
    """What a measurement asks of a device."""

    def __init__(self, free, total):
        self.free_bytes, self.memory_bytes = free, total

    def __str__(self):
        return "cuda:0"

    def synchronize(self):
        """Nothing to wait for."""


@pytest.mark.parametrize(("cores", "quota", "threads"), [(4, None, 4), (4, 2.9, 2), (4, 0.5, 1), (200, None, 64)])
def test_as_many_threads_stream_as_the_container_grants(cores, quota, threads, monkeypatch):
    """Whole cores, one at least, 64 at most."""
    monkeypatch.setattr(_ceilings._cpu, "probe", lambda: types.SimpleNamespace(usable_cores=cores, quota_cores=quota))
    assert _ceilings._stream_threads() == threads


def test_the_table_has_a_row_for_each_level_arithmetic_and_note():
    """Copy, read and triad apart, in the units of data sheets."""
    shown = replace(_made_up(), notes=(Note("contended", "others"),)).table()[1]
    assert shown == [
        ("L2, 512 KiB streamed", "300 GB/s", "100 GB/s", "200 GB/s"),
        ("DRAM, 128 MiB streamed", "10.0 GB/s", "20.0 GB/s", "15.0 GB/s"),
        ("matrix product float32", "200 GFLOP/s", "", ""),
        ("note: contended", "others", "", ""),
    ]


@pytest.mark.gpu
def test_a_gpus_ceilings_are_below_its_specification():
    """Measured memory and products stay under 1.1 times what the data sheet states, and above a third of it."""
    import gpulab as gl

    found, stated = ceilings("cuda", refresh=True), gl.devices.spec("cuda")
    assert stated.levels[-1].bytes_per_second / 3 < found.bandwidth() < 1.1 * stated.levels[-1].bytes_per_second
    for dtype in ("bfloat16", "float32"):
        assert stated.flops_per_second[dtype].value / 4 < found.flops_per_second[dtype] < 1.1 * stated.flops_per_second[dtype].value
    if "tf32" in found.flops_per_second:
        assert found.flops_per_second["tf32"] > found.flops_per_second["float32"]


def test_a_look_has_all_that_was_measured_and_what_happened_meanwhile(monkeypatch):
    """The counters are read before and after, the second time since the first; the threads live until then; notes come in that order."""
    log = []
    cpu = _ceilings._device.Device("cpu")
    level = MemoryCeiling("DRAM", 2.0, 1, 3.0, 4.0, 5.0)
    monkeypatch.setattr(_ceilings, "_stream_threads", lambda: 3)
    monkeypatch.setattr(_ceilings.conditions, "read", lambda device, since=None: log.append(("read", since)) or f"reading {len(log)}")
    monkeypatch.setattr(
        _ceilings, "_host_memory",
        lambda threads, clock, notes, pool: log.append((threads, clock, pool.submit(int).result())) or notes.append("memory") or (level,),
    )  # fmt: skip
    monkeypatch.setattr(_ceilings, "_device_memory", lambda device, clock: log.append((str(device), clock)) or (level, level))
    monkeypatch.setattr(_ceilings, "_products", lambda device, clock, notes: notes.append("products") or {"float32": 6.0})
    monkeypatch.setattr(_ceilings, "_disturbances", lambda before, after: [f"{before} to {after}"])
    found = _ceilings._look(cpu, "clock")
    assert log == [("read", None), (3, "clock", 0), ("read", "reading 1")]
    assert (found.device, found.memory, found.flops_per_second) == ("cpu", (level,), {"float32": 6.0})
    assert found.notes == ("memory", "products", "reading 1 to reading 3")
    assert (found.evidence.device, found.evidence.date) == (f"{cpu.name}, best of 7 runs", found.environment.date)
    assert found.environment.command == "gpulab.devices.ceilings('cpu')"


def test_float32_means_what_was_asked_for_and_is_put_back(monkeypatch):
    """On a GPU by the newer switch or the older one, on a CPU never less; also where the product fails."""
    matmul, host = types.SimpleNamespace(fp32_precision="none"), types.SimpleNamespace(fp32_precision="bf16")
    older = types.SimpleNamespace(allow_tf32=True)
    for switches, name, values in ((matmul, "fp32_precision", ("tf32", "ieee")), (older, "allow_tf32", (True, False))):
        before = getattr(switches, name)
        monkeypatch.setattr(torch.backends.cuda, "matmul", switches)
        monkeypatch.setattr(torch.backends.mkldnn, "matmul", host)
        for precision, value in zip(("tf32", "ieee"), values, strict=True):
            with contextlib.suppress(ZeroDivisionError), _ceilings._float32_as(precision):
                assert (getattr(switches, name), host.fp32_precision) == (value, "ieee")
                raise ZeroDivisionError
            assert (getattr(switches, name), host.fp32_precision) == (before, "bf16")


@pytest.mark.parametrize(("rate", "sizes"), [(2 * 1024**3 / 1e-3, [1024, 2048]), (2 * 1024**3 / 30e-3, [1024]), (1e18, [1024, 4096])])
def test_a_product_on_an_accelerator_is_waited_for_in_batches(rate, sizes, monkeypatch):
    """As on a CPU, from a side of 1,024 on, at most what fits; batches of 4 ms, the best of six, in numbers of the same seed."""
    tried, first = [], []

    def repeated(work, synchronize, clock, at_least_seconds, runs):
        assert (synchronize(), clock, at_least_seconds, runs) == ("waited", "clock", 0.004, 6)
        n = len(work())
        tried.append(n)
        return 2 * n**3 / rate

    class Accelerator:
        is_cpu, free_bytes, kind = False, 4 * 40 * 4096**2, "cuda"

        def __str__(self):
            return "cpu"  # where its memory is

        def synchronize(self):
            return "waited"

    monkeypatch.setattr(_streams, "repeated", repeated)
    monkeypatch.setattr(torch, "mm", lambda a, b, out: first.append((a.dtype, float(a[0, 0]))) or out)
    random = torch.randn
    monkeypatch.setattr(torch, "randn", lambda n, m, **named: random(1, 1, **named).expand(n, m))
    assert _ceilings._product_rate("bfloat16", Accelerator(), "clock") == pytest.approx(rate)
    assert tried == sizes
    expected = random(1, 1, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    assert set(first) == {(torch.bfloat16, float(expected))}


def test_arrays_begin_on_lines_of_their_own(monkeypatch):
    """Seventeen lines of 64 bytes further into its page for each, since equal offsets alias. Rows lie over one another."""
    for place in range(3):
        array = _streams._aligned(1000, place)
        assert (array.ctypes.data % 4096, array.size, array.dtype) == (17 * 64 * place, 1000, "float32")
    rows = _streams._rows(array, 5)
    assert (rows.shape, rows.strides) == ((5, 1000), (0, 4))
    work, moved = _streams.thread_work("read", 10)
    assert moved == 2**24  # of the least that is streamed, a line of 16 numbers, so many passes
    assert work() == 1.0
