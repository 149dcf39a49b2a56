"""gl.measure: times, intervals, notes and errors, on a clock that only the measured calls move."""

import asyncio
import functools
import gc
import itertools
import math
import types
from collections.abc import Callable
from typing import Any

import gpulab as gl
import numpy as np
import pytest
import torch
from gpulab.devices.conditions import GpuReadings, Readings
from gpulab.errors import DeviceError, InputError, MeasurementError, OutOfMemoryError, StoppedError
from gpulab.timing import Measurement, device_of
from gpulab.timing.recorded import recorded
from hypothesis import given
from hypothesis import strategies as st

from fake_machine import Clock, lines, private_turns  # noqa: F401

DRAWN = np.random.default_rng(0).standard_normal(5000)
COIN = np.random.default_rng(1).random(5000) < 0.5


# A standard normal AR(1) series.
REMEMBERED = [*itertools.accumulate(DRAWN, lambda last, new: 0.9 * last + 0.19**0.5 * new)]
# What the n-th call takes in milliseconds, the step of the clock, and the options of gl.measure.
WORLDS: dict[str, tuple[Callable[[int], float], float, dict[str, Any]]] = {
    "constant": (lambda n: 1, 0, {"flops": 2e6}),
    "slow first call": (lambda n: 50 if n == 1 else 1, 0, {}),
    "first call three times as long": (lambda n: 3 if n == 1 else 1, 0, {}),
    "first call a little slower": (lambda n: 2.9 if n == 1 else 1, 0, {}),
    "noise of 2 %": (lambda n: 1 + 0.02 * DRAWN[n], 0, {}),
    "correlated noise of 2 %": (lambda n: 1 + 0.02 * REMEMBERED[n], 0, {}),
    "every tenth call five times as long": (
        lambda n: (1 + 0.02 * DRAWN[n]) * (5 if n % 10 == 0 else 1),
        0,
        {},
    ),
    "drift of 10 % in a thousand calls": (lambda n: 1 + 1e-4 * n + 0.01 * DRAWN[n], 0, {}),
    "12 % slower after 400 calls": (lambda n: (1.12 if n > 400 else 1) + 0.01 * DRAWN[n], 0, {}),
    "states of 150 calls": (lambda n: (1.12 if n // 150 % 2 else 1) + 0.01 * DRAWN[n], 0, {}),
    "two levels by chance": (lambda n: (1.5 if COIN[n] else 1) + 0.01 * DRAWN[n], 0, {}),
    "stopped once for 200 ms": (lambda n: 201 if n == 300 else 1, 0, {}),
    "more precision than the deadline allows": (
        lambda n: 1 + 0.2 * abs(DRAWN[n]),
        0,
        {"deadline": 0.2, "relative_width": 0.0004},
    ),
    "20 equal calls of 50 ms": (lambda n: 50, 0, {"deadline": 1.0}),
    "two calls of 2 s": (lambda n: 2000, 0, {}),
    "calls of 1 us on a clock of 10 us": (lambda n: 1e-3, 1e-5, {"deadline": 0.05}),
    "calls of 7 us on a clock of 1 ms": (lambda n: 7e-3, 1e-3, {}),
    "cold caches": (lambda n: 1, 0, {"cold": True, "deadline": 0.01}),
    "both copies": (lambda n: 1, 0, {"transfer": True, "deadline": 0.1}),
}


def _in_world(name: str) -> Measurement:
    milliseconds, step, options = WORLDS[name]
    clock = Clock(step)
    work = clock.takes(lambda n: float(1e-3 * milliseconds(n)))
    return gl.measure(work, clock=clock, label=name, device="cpu", **options)


def test_what_is_shown_of_each_kind_of_timing(approved: Any) -> None:
    """Median, interval, first call, samples and notes of a clock that is constant, noisy, ...

    By hand: 1 ms is the median wherever fewer than half of the calls are slower; the notes are
    those of DESIGN's list; rates are counts over the median.
    """
    assert lines(*map(_in_world, WORLDS)) == approved


@pytest.mark.parametrize(
    ("seconds", "deadline", "calls", "samples"),
    [
        # The first call, a warm-up of 5 % of the deadline and at most 20 ms, then the samples.
        # Calls that never vary fill a third of the deadline, and are at least 60 if it allows.
        (1e-3, 2.0, 1 + 20 + 667, 667),
        (1e-3, 0.01, 1 + 1 + 10, 10),
        (2e-2, 1.0, 1 + 1 + 50, 50),
        (0.9, 2.0, 5, 3),  # at least three, if they fit three times the deadline
        (1.5, 2.0, 5, 3),
        (2.5, 2.0, 4, 2),
        (7.0, 2.0, 3, 1),
        (2.0**-8, 100.0, 1 + 6 + 8534, 4267),  # above 8,192 every other one is kept
    ],
)
def test_a_function_is_called_as_often_as_it_must(
    seconds: float, deadline: float, calls: int, samples: int
) -> None:
    """The numbers of calls and samples are those by hand; each sample has the scripted time."""
    clock = Clock()
    m = gl.measure(clock.takes(seconds), clock=clock, deadline=deadline, device="cpu")
    assert (clock.calls, len(m.samples_seconds), m.calls_per_sample) == (calls, samples, 1)
    assert m.samples_seconds == pytest.approx(np.full(samples, seconds))
    assert (m.launch_seconds, m.evidence.samples) == (m.median_seconds, samples)


@pytest.mark.parametrize("microseconds", [0.4, 2.3, 2.37, 5.01, 19.999])
@pytest.mark.parametrize("reading", [0.0, 5e-8])
def test_an_interval_is_never_narrower_than_the_clock_can_tell(
    microseconds: float, reading: float
) -> None:
    """On a clock of 1 us, whether it moves while it is read or only in the calls.

    For calls that never vary, the interval holds the true time. Its width is two to four ticks
    per batch, and a batch that is precise enough takes at least 1,000 ticks.
    """
    clock = Clock(1e-6)

    def reads() -> float:
        clock.now += reading
        return clock()

    m = gl.measure(clock.takes(1e-6 * microseconds), clock=reads, device="cpu")
    low, high = m.interval_seconds
    assert low < 1e-6 * microseconds < high
    assert 1.99e-6 <= (high - low) * m.calls_per_sample <= 4.01e-6
    assert high - low <= 0.005 * m.median_seconds


@pytest.mark.parametrize("length", [0.08, 0.2])
@pytest.mark.parametrize("transfer", [False, True])
def test_one_stop_of_the_machine_is_never_the_median(length: float, transfer: bool) -> None:
    """Whichever call is stopped for longer than the deadline of 50 ms, calls of 1 ms take 1 ms."""
    for stopped in (*range(2, 12), 62, 63, 64, 65):
        clock = Clock()
        stop = clock.takes(lambda n, at=stopped: 1e-3 + (length if n == at else 0.0))
        m = gl.measure(stop, clock=clock, deadline=0.05, transfer=transfer)
        assert m.median_seconds == pytest.approx(1e-3)
        assert m.with_transfer_seconds == (pytest.approx(1e-3) if transfer else None)
        works = {"a": clock.takes(1e-3), "b": stop}
        assert gl.compare(works, clock=clock, deadline=0.05).speedup == pytest.approx(1.0)


@given(
    first=st.floats(1e-7, 1.0),
    later=st.lists(st.floats(3e-4, 0.5), min_size=1, max_size=5),
    transfer=st.booleans(),
)
def test_any_times_give_a_consistent_result(
    first: float, later: list[float], transfer: bool
) -> None:
    """The first call is apart; the median lies among the samples and in its interval."""
    clock = Clock()
    work = clock.takes(lambda n: first if n == 1 else later[n % len(later)])
    m = gl.measure(work, clock=clock, deadline=0.5, transfer=transfer, device="cpu")
    assert m.first_call_seconds == pytest.approx(first)
    assert set(np.round(m.samples_seconds, 12)) <= set(np.round(later, 12))
    low, high = m.interval_seconds or (0.0, math.inf)
    assert low * (1 - 1e-9) <= m.median_seconds <= high * (1 + 1e-9)


@pytest.mark.parametrize("call", [1, 2, 5, 40])
@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (ValueError("no more paper"), MeasurementError),
        (StopIteration(), MeasurementError),  # it must not end a loop of the caller
        (MemoryError("Unable to allocate 8 TiB"), OutOfMemoryError),
        (RuntimeError("CUDA error: unspecified launch failure"), DeviceError),
        (RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"), OutOfMemoryError),
        (InputError("bad size"), InputError),
        (KeyboardInterrupt(), KeyboardInterrupt),
    ],
    ids=repr,
)
def test_an_error_in_the_function_keeps_its_kind_and_its_samples(
    raised: BaseException, expected: type[BaseException], call: int
) -> None:
    """The call is named, and the cause kept."""
    clock = Clock()

    def fail_in_time(n: int) -> float:
        if n == call:
            raise raised
        return 1e-3

    with pytest.raises(expected) as caught:
        gl.measure(clock.takes(fail_in_time), clock=clock, device="cpu")
    assert caught.value is raised or caught.value.__cause__ is raised
    if expected is MeasurementError:
        assert f"in call {call};" in str(caught.value)


def test_both_copies_are_of_the_arrays_alone() -> None:
    """The function gets copies in the nesting of the originals; other arguments pass through."""
    clock, token, x = Clock(), object(), np.arange(3.0)

    def work(data: dict[str, Any], other: object) -> Any:
        assert (type(data["a"]), other) == (tuple, token)
        assert np.array_equal(data["a"][0], x)
        clock.now += 1e-3 if data["a"][0] is x else 3e-3
        return x

    m = gl.measure(work, {"a": (x,)}, token, clock=clock, transfer=True, deadline=0.05)
    assert (m.median_seconds, m.with_transfer_seconds) == pytest.approx((1e-3, 3e-3))
    assert [note.code for note in m.notes] == ["skipped"]  # no accelerator's link was crossed


def test_cold_caches_are_emptied_before_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """More than the largest cache is written over before each sample, outside of its time."""
    clock, flushed = Clock(), []

    def flush(a: Any, b: Any, out: np.ndarray) -> None:
        flushed.append(out.nbytes)
        clock.now += 1.0

    with monkeypatch.context() as patch:
        patch.setattr(np, "add", flush)
        m = gl.measure(clock.takes(1e-3), clock=clock, cold=True, deadline=9.5, device="cpu")
    assert m.samples_seconds == pytest.approx(1e-3)
    assert len(flushed) >= len(m.samples_seconds) == 10
    assert min(flushed) > max((c.total_bytes for c in gl.machine().processor.caches), default=0)


def test_stop_keeps_what_was_reached(approved: Any) -> None:
    """A stop before the first sample is an error; a later one keeps the samples, with a note."""
    text = []
    for at in (1, 2, 23, 90, 690, 700):
        clock, asked = Clock(), [0]

        def stop(asked: list[int] = asked, at: int = at) -> bool:
            asked[0] += 1
            return asked[0] >= at

        try:
            m = gl.measure(clock.takes(1e-3), clock=clock, stop=stop, transfer=True, device="cpu")
        except StoppedError as error:
            text.append(f"at {at}, {clock.calls} calls: {error}\n")
        else:
            text.append(f"at {at}: {lines(m)}")
    assert "\n".join(text) == approved


@pytest.mark.parametrize("transfer", [False, True])
def test_progress_rises_from_0_to_1(transfer: bool) -> None:
    """It begins at 0, never falls, ends at 1, about twenty times a second, and has words."""
    clock, seen = Clock(), []
    work, progress = clock.takes(1e-3), lambda *p: seen.append(p)
    gl.measure(work, clock=clock, transfer=transfer, progress=progress)
    fractions, words = zip(*seen, strict=True)
    assert [0.0, *fractions, 1.0] == sorted([fractions[0], *fractions, fractions[-1]])
    assert all((*words, 10 < len(seen) < 60))


@pytest.mark.parametrize(
    ("work", "args", "clock"),
    [
        # Promises of work: nothing was computed, so there is nothing to time.
        (lambda: (i for i in "ab"), (), None),
        (lambda: map(abs, [1]), (), None),
        (lambda: filter(None, [1]), (), None),
        (lambda: asyncio.sleep(1), (), None),
        (torch.exp, (torch.ones(3, device="meta"),), None),
        # Only the first call has something to do.
        (sum, ((i for i in range(9)),), None),
        (sum, (map(abs, range(9)),), None),
        (list, (enumerate("abc"),), None),
        # Clocks that stand still while the work runs, or give no seconds.
        (lambda: len(()), (), lambda: 7.0),
        (lambda: len(()), (), lambda: "noon"),
        (lambda: len(()), (), lambda: math.nan),
        (lambda: len(()), (), itertools.count(9_000_000_000_000, 80).__next__),  # nanoseconds
    ],
)
def test_what_cannot_be_timed_is_refused(work: Any, args: Any, clock: Any) -> None:
    """A promise of work and a clock that is none are errors, not times of nothing."""
    with pytest.raises(InputError):
        gl.measure(work, *args, clock=clock, device="cpu", deadline=0.01)


X = np.ones(3)


@pytest.mark.parametrize(
    ("fn", "args", "device"),
    [
        (len, (X,), "cpu"),
        (len, ([{"a": X}],), "cpu"),
        (lambda: X + 1, (), "cpu"),
        (lambda: lambda: X + 1, (), "cpu"),
        (lambda y=X: y, (), "cpu"),
        (functools.partial(np.add, X), (), "cpu"),
        (functools.partial(max, key=X), (), "cpu"),
        (functools.partial(lambda y: X + y, 1), (), "cpu"),
        (types.MethodType(np.sum, X), (), "cpu"),
        (functools.wraps(lambda: X)(lambda: None), (), "cpu"),
        (lambda: None, (), None),
        (len, ("text", 3), None),
        (len, (torch.ones(3, device="meta"),), None),
    ],
)
def test_the_device_is_that_of_the_arrays(fn: Any, args: Any, device: str | None) -> None:
    """Arrays are found in arguments, closures, globals, defaults, partials and bound methods.

    A tensor on "meta" is on no device.
    """
    found = device_of(fn, args)
    assert (found and str(found)) == device


def test_the_machines_counters_give_notes() -> None:
    """Readings before and after the samples, and no others, show a neighbor and a quota."""
    clock, asked = Clock(), []

    def conditions() -> Readings:
        asked.append(clock.now)
        return Readings(
            seconds=clock.now,
            cores=2,
            own_cpu_seconds=0.5 * clock.now,
            busy_seconds=1.5 * clock.now,
            run_delay_seconds=0.5 * clock.now,
            throttled_seconds=0.1 * clock.now,
            gpu=GpuReadings(0, energy_joules=50.0 + 100.0 * clock.now),
        )

    script = {"clock": clock, "conditions": conditions}
    m = gl.measure(clock.takes(1e-3), device="cpu", **script)
    assert ([note.code for note in m.notes], len(asked)) == (["throttled", "contended"], 2)
    assert "40 % of the time" in m.notes[1].sentence  # what the quota took is not the neighbour's
    # By hand: 100 W for 1 ms are 0.1 J. The counter may be 0.1 s behind: 15 % of the 687 calls
    # above (a warm-up of 20), 10 % of the second that each row of a comparison has.
    short = gl.measure(clock.takes(1e-3), deadline=0.05, **script)
    two = gl.compare({"a": clock.takes(1e-3), "b": clock.takes(3e-3)}, **script)
    found = [m.energy, short.energy, *(row.measurement.energy for row in two.rows)]
    assert found == ["100 mJ ± 14.6 mJ", "not available", "100 mJ ± 10.0 mJ", "300 mJ ± 29.9 mJ"]
    assert short.has_note("skipped")


def test_a_live_measurement_leaves_the_process_as_it_was() -> None:
    """Garbage collection is frozen during the calls only; stamp and badge are this machine's."""
    frozen = [gc.get_freeze_count()]  # Python 3.12 itself starts with some
    m = gl.measure(lambda: frozen.append(gc.get_freeze_count()), deadline=0.01)
    assert min(frozen[1:]) > 0
    assert gc.get_freeze_count() == frozen[0]
    assert (m.device, m.environment.device_kind, m.evidence.badge) == ("cpu", "cpu", "MEASURED")
    assert m.environment.device == m.evidence.device == gl.devices.find("cpu").name


def test_recorded_measurements_have_the_recordings_numbers(approved: Any) -> None:
    """Each time from its entry, RECORDED, in the shape of a live measurement."""
    same = ("median_seconds", "interval_seconds", "first_call_seconds", "launch_seconds")
    same += ("with_transfer_seconds", "calls_per_sample", "flops", "nbytes", "notes")
    found = recorded("matmul", 1024)
    for name, m in found.items():
        key = {"workload": "matmul", "n": 1024, "dtype": "float32"}
        timing = gl.recordings.load(name).find("catalogue", **key).timing
        assert [getattr(m, k) for k in same] == [getattr(timing, k) for k in same]
        assert m.evidence.badge == "RECORDED"
    assert recorded("matmul", 1023) == {}
    assert "TF32" in recorded("conv2d", 64)["nvidia-h200"].evidence.sentence
    assert lines(found["nvidia-h200"]) == approved
