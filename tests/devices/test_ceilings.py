"""What the machine has shown to reach, with an injected clock where arithmetic is checked."""

import itertools
import math
import os
from dataclasses import replace

import pytest
import torch

from gpulab.devices import Ceilings, MemoryCeiling, _ceilings, _streams, ceilings
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


@pytest.mark.parametrize(("load", "noted"), [(0.1, False), (999.0, True)])
def test_where_nothing_is_counted_the_load_tells(monkeypatch, load, noted):
    """Without the system's counters (macOS without psutil), more programs than cores in the last minute give the note contended."""
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0), raising=False)
    unknown = Readings(seconds=0.0, cores=2)
    notes = _ceilings._disturbances(unknown, Readings(seconds=1.0, cores=2))
    assert [note.code for note in notes] == (["contended"] if noted else [])


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


def test_a_dtype_that_the_device_lacks_is_left_out_with_a_note(monkeypatch):
    """Apple's GPUs have no float64: the others are still measured."""

    def product(dtype, device, clock):
        if dtype == "float64":
            raise TypeError("Cannot convert a MPS Tensor to float64 dtype")
        return 1e12

    monkeypatch.setattr(_ceilings, "_product_rate", product)
    notes = []
    assert "float64" not in _ceilings._products(_ceilings._device.Device("mps"), None, notes)
    assert notes[0].code == "skipped"
    assert "float64" in notes[0].sentence


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
