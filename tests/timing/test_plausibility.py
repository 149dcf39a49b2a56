"""Physics: rates that no device reaches, and data that were in a cache."""

from __future__ import annotations

import dataclasses
import math
import time
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpulab import devices, workloads
from gpulab.devices import Device
from gpulab.evidence import Evidence
from gpulab.timing import _ceiling, _notes
from gpulab.timing._job import Job
from gpulab.timing.plausibility import Ceiling, Level, check, fastest_rate

# 1 TFLOP/s; 1 MiB at 400 GB/s, 32 MiB at 200 GB/s, main memory at 40 GB/s.
LEVELS = (Level("L2", 2**20, 4e11), Level("L3", 2**25, 2e11), Level("DRAM", 2**35, 4e10))
CEILING = Ceiling(1e12, LEVELS, "by hand")


def _codes(*arguments) -> list[str]:
    return [note.code for note in check(*arguments, CEILING)]


@pytest.mark.parametrize(
    ("seconds", "flops", "nbytes", "working_set", "codes"),
    [
        (1.0, 1.09e12, None, None, []),  # within the tenth that is allowed
        (1.0, 1.11e12, None, None, ["implausible"]),
        (1.0, None, 4.3e10, None, []),  # 40 GB streamed at 43 GB/s
        (1.0, None, 6.0e10, None, ["implausible"]),
        (1e-4, None, 2e6, 2e6, []),  # 20 GB/s from the cache: no sign of the cache
        (1e-5, None, 1e6, 1e6, ["warm-cache"]),  # 100 GB/s
        (1e-6, None, 1e6, 1e6, ["implausible"]),  # 1 TB/s out of L2
        (1.0, None, 1e11, 1e6, ["warm-cache"]),  # the same megabyte, a hundred thousand times
        (1.0, 0.0, 0.0, None, []),
        (0.0, 1.0, None, None, ["implausible"]),
        (0.0, None, None, None, []),
    ],
)
def test_rates_against_ceilings(seconds, flops, nbytes, working_set, codes):
    """Above the ceiling and its tenth is implausible; above main memory, from a cache that holds it, is warm."""
    assert _codes(seconds, flops, nbytes, working_set) == codes


def test_sentence_asks_the_right_question():
    """The note says the rate, the ceiling and its source, and asks about the synchronisation."""
    (note,) = check(1.0, 5e12, None, None, CEILING)
    assert "5.00 TFLOP/s is 5.00x of what this device can reach (1.00 TFLOP/s, by hand)" in note.sentence
    assert "Did you forget to synchronise?" in note.sentence


def test_working_set_little_larger_than_the_cache():
    """Of 64 MiB beside 33 MiB of caches half may come from them: the bound lies between the two rates (by hand: 66.7 GB/s)."""
    cached = (2**20 + 2**25) / 2**26
    assert fastest_rate(2**26, LEVELS) == pytest.approx(1 / ((1 - cached) / 4e10 + cached / 2e11))
    assert fastest_rate(2**34, LEVELS) == pytest.approx(4e10, rel=0.01)


@given(st.floats(min_value=1, max_value=2**36), st.floats(min_value=1, max_value=2**36))
def test_larger_sets_are_never_faster(one, other):
    """The bound falls as the working set grows."""
    low, high = sorted((one, other))
    assert fastest_rate(low, LEVELS) >= fastest_rate(high, LEVELS) * (1 - 1e-12)


def test_unknown_rate_gives_no_verdict():
    """A level without a figure may be faster than any: nothing is called impossible."""
    levels = (Level("L2", 2**20, None), Level("DRAM", math.inf, 1e10))
    assert fastest_rate(1000, levels) is None
    assert "implausible" not in [note.code for note in check(1e-9, None, 1e6, 1000, Ceiling(None, levels, ""))]
    assert fastest_rate(1e9, levels) == 1e10
    assert fastest_rate(1e9, ()) is None


def test_suspicion_on_a_measured_ceiling_is_measured_again(monkeypatch):
    """A ceiling that a neighbour had pressed down is measured once more before a time is called impossible."""
    rates = iter([1e9, 1e12])
    asked = []

    class Found:
        levels = ()

    def ceilings(device, refresh=False):
        if refresh or not asked:
            assert device == Device("cpu")
            Found.levels = (devices.MemoryLevel("DRAM", math.inf, next(rates), ""),)
        asked.append((device, refresh))
        return Found

    monkeypatch.setattr(devices, "ceilings", ceilings)
    big = 2.0**40
    assert _ceiling.check(Device("cpu"), (), big / 1e11, flops=None, nbytes=big, working_set_bytes=big) == []
    assert (asked[0], asked[-1]) == ((Device("cpu"), False), (Device("cpu"), True))


def test_cpu_ceiling_has_a_peak_and_levels():
    """The CPU at hand has a peak for float32, and a figure for main memory."""
    ceiling = _ceiling.of(Device("cpu"), ("float32",), memory=False)
    assert ceiling.flops_per_second == devices.spec("cpu").peak("float32").value
    assert ceiling.levels == ()


def test_rate_of_half_a_second_is_twice_the_bytes():
    """100 GB in half a second are 200 GB/s: the sentence says the rate, not the bytes."""
    (note,) = check(0.5, None, 1e11, 2.0**34, CEILING)
    assert note.sentence.startswith("200 GB/s is ")


def test_room_above_measured_rates_by_hand(monkeypatch):
    """Measured rates get room: main memory a fourth, a cache as much again; a stated rate below that stays the bound."""

    def levels(*figures):
        return tuple(
            devices.MemoryLevel(name, size, rate, "") for (name, size), rate in zip((("L2", 1e6), ("DRAM", 1e10)), figures, strict=True)
        )

    class Stated:
        flops_per_second = {}
        levels = ()

        @staticmethod
        def peak(dtype):
            return None

    class Found:
        levels = ()

    monkeypatch.setattr(devices, "spec", lambda device: Stated)
    monkeypatch.setattr(devices, "ceilings", lambda device, refresh=False: Found)
    Found.levels = levels(1e11, 4e10)
    Stated.levels = levels(None, None)
    assert [level.bytes_per_second for level in _ceiling.of(Device("cpu"), (), memory=True).levels] == [2e11, 5e10]
    Stated.levels = levels(1.5e11, 9e10)
    assert [level.bytes_per_second for level in _ceiling.of(Device("cpu"), (), memory=True).levels] == [1.5e11, 5e10]


@pytest.mark.parametrize(
    ("own", "dtype", "flops", "codes"),
    [
        (True, "float32", 10e12, []),  # its products may run under autocast, in bfloat16
        (True, "float32", 18e12, ["implausible"]),  # beyond those too, as after a forgotten synchronise
        (True, "float64", 1e12, ["implausible"]),  # autocast leaves float64 as it is
        (False, "float32", 10e12, ["implausible"]),  # the catalogue's functions compute in what they are given
        (False, "float32", 1e12, []),
    ],
)
def test_a_function_of_ones_own_may_run_under_autocast(monkeypatch, own, dtype, flops, codes):
    """In a second, on a device of 0.5, 1 and 16 TFLOP/s in float64, float32 and bfloat16."""
    peaks = {"float64": 0.5e12, "float32": 1e12, "bfloat16": 16e12}
    figures = {name: devices.Figure(value, "by hand") for name, value in peaks.items()}
    spec = devices.DeviceSpec("cuda:0", "cuda", "some GPU", figures, (), Evidence.modelled("by hand", "this test"))
    monkeypatch.setattr(devices, "spec", lambda device: spec)
    work = workloads.get("matmul")(n=8, dtype=dtype)
    fn = work.run if not own else lambda a, b: a @ b
    job = Job(fn, work.inputs(), Device("cuda", 0), True, "it", time.perf_counter, None, flops=flops)
    assert [note.code for note in _notes.of_physics(job, 1.0)] == codes


MEMORY = Ceiling(1e12, LEVELS[-1:], "by hand")


@pytest.mark.parametrize(
    ("given", "ceiling", "codes"),
    [
        ((1.0, 1.1 * 1e12, None, None), CEILING, []),  # DESIGN, section 4: times 1.1
        ((1.0, None, 1.1 * 4e10, 2.0**34), MEMORY, []),
        ((1.0, None, 1.1 * 4e10 + 1e5, 2.0**34), MEMORY, ["implausible"]),
        ((1.0, None, 1.1 * 4e10, 2.0**20), CEILING, []),
        ((1.0, None, 1e11, 2.0**25), CEILING, ["warm-cache"]),  # it just fits
        ((1.0, None, 3e11, 2.0**20), CEILING, ["warm-cache"]),  # and into the faster one
        ((1.0, None, 3e11, 2.0**20 + 1), CEILING, ["implausible"]),
        ((0.0, None, 1.0, None), CEILING, ["implausible"]),
        ((1.0, 2e12, 1.0, None), Ceiling(None, (), ""), []),
    ],
)
def test_rates_at_the_very_ceiling(given, ceiling, codes):
    """A tenth above is allowed, and a working set as large as a cache is held by it."""
    assert [note.code for note in check(*given, ceiling)] == codes


def test_the_sentences_of_traffic():
    """The rate, what it is beside the ceiling, from which level and by whose word; the size, its cache and the memory's rate."""
    tail = "Did you forget to synchronise? Wait for the device, or for the thread, before the clock is read; or check flops and nbytes."
    (note,) = check(1.0, None, 4e11, 2.0**25, CEILING)
    assert note.sentence == f"400 GB/s is 2.00x of what this device can reach (200 GB/s from L3, stated). {tail}"
    (note,) = check(1.0, None, 4e11, 2.0**26, CEILING)
    helped = "stated and a part that the caches may hold"
    assert note.sentence == f"400 GB/s is 5.88x of what this device can reach (68.1 GB/s from DRAM, {helped}). {tail}"
    (note,) = check(1.0, None, 8e10, 2.0**26, MEMORY)
    assert note.sentence == f"80.0 GB/s is 2.00x of what this device can reach (40.0 GB/s from DRAM, stated). {tail}"
    (note,) = check(1.0, None, 1e11, 2.0**20, CEILING)
    assert note.sentence == (
        "the 1.00 MiB fit into L2 (1.00 MiB), and 100 GB/s is 2.50x of what DRAM delivers: "
        "the data were in the cache from the call before. "
        "Real data may not be; cold=True empties the caches before each call."
    )


def _spec(kind, *levels):
    return devices.DeviceSpec("it", kind, "some device", {}, levels, Evidence.modelled("by hand", "this test"))


def test_a_gpu_is_judged_by_what_its_maker_states(monkeypatch):
    """Where every level has a rate nothing is measured; where one has none, all are, with their room; and no suspicion measures again."""
    asked = []
    stated = (devices.MemoryLevel("L2", 5e7, 8e12, "a data sheet"), devices.MemoryLevel("HBM", 8e10, 3e12, "another"))
    found = SimpleNamespace(levels=(devices.MemoryLevel("L2", 5e7, 5e12, ""), devices.MemoryLevel("HBM", 8e10, None, "")))
    monkeypatch.setattr(devices, "ceilings", lambda device, refresh=False: asked.append(refresh) or found)
    gpu = Device("cuda", 0)
    monkeypatch.setattr(devices, "spec", lambda device: _spec("cuda", *stated))
    assert _ceiling.of(gpu, (), memory=True).levels == (Level("L2", 5e7, 8e12, "a data sheet"), Level("HBM", 8e10, 3e12, "another"))
    assert _ceiling.check(gpu, (), 1.0, flops=None, nbytes=1e14, working_set_bytes=1e10)[0].code == "implausible"
    assert asked == []
    unknown = devices.MemoryLevel("HBM", 8e10, None, "nobody")
    monkeypatch.setattr(devices, "spec", lambda device: _spec("cuda", stated[0], unknown))
    measured = _ceiling.of(gpu, (), memory=True)
    assert [level.bytes_per_second for level in measured.levels] == [8e12, math.inf]
    assert [level.source for level in measured.levels] == [
        "measured on this machine as 5.00 TB/s, with 100 % of room", "measured on this machine as beyond measure, with 25 % of room"
    ]  # fmt: skip
    assert (measured.flops_per_second, measured.source) == (None, "not stated")
    peak = {"float32": devices.Figure(1e12, "a data sheet")}
    monkeypatch.setattr(devices, "spec", lambda device: dataclasses.replace(_spec("cuda", unknown), flops_per_second=peak))
    assert _ceiling.check(gpu, (), 1.0, flops=1e13, nbytes=1.0, working_set_bytes=1.0)[0].code == "implausible"
    assert not any(asked)


def test_a_cpus_ceiling_is_measured_again_on_suspicion_alone(monkeypatch):
    """A time that is possible asks for no new measurement; a level that nobody has measured keeps the word of its source."""
    asked = []
    found = SimpleNamespace(levels=(devices.MemoryLevel("DRAM", 1e11, 4e10, ""),))
    monkeypatch.setattr(devices, "ceilings", lambda device, refresh=False: asked.append(refresh) or found)
    monkeypatch.setattr(
        devices,
        "spec",
        lambda device: _spec("cpu", devices.MemoryLevel("L2", 1e6, None, "nobody"), devices.MemoryLevel("DRAM", 1e11, None, "")),
    )
    assert _ceiling.check(Device("cpu"), (), 1.0, flops=None, nbytes=1e9, working_set_bytes=1e10) == []
    assert not any(asked)
    assert _ceiling.of(Device("cpu"), (), memory=True).levels[0] == Level("L2", 1e6, None, "nobody")


def test_without_known_formats_the_highest_peak_counts(monkeypatch):
    """Of a function of no arrays nobody knows the arithmetic."""
    figures = {"float64": devices.Figure(1e12, "one"), "float32": devices.Figure(2e12, "two")}
    monkeypatch.setattr(devices, "spec", lambda device: dataclasses.replace(_spec("cuda"), flops_per_second=figures))
    assert _ceiling.of(Device("cuda", 0), (), memory=False) == Ceiling(2e12, (), "two")
    assert _ceiling.of(Device("cuda", 0), ("float64",), memory=False) == Ceiling(1e12, (), "one")
