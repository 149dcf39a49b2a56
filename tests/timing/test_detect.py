"""The rules that turn samples and readings into notes, on numbers chosen by hand, and on the seeded faults of the benchmark."""

from __future__ import annotations

import importlib.util
import pathlib
import sys
from dataclasses import replace
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from gpulab.devices import disturbance
from gpulab.devices.conditions import Readings
from gpulab.devices.disturbance import Window
from gpulab.devices.gpu_readings import GpuReadings
from gpulab.timing import detect

QUIET = Readings(seconds=0.0, cores=2, run_delay_seconds=0.0, process_run_delay_seconds=0.0, busy_seconds=0.0, stolen_seconds=0.0)
# Two seconds of single-threaded work on two cores, 0.4 % of it waited for a core, one per cent of a core used by others.
AFTER = replace(
    QUIET, seconds=2.0, own_cpu_seconds=1.98, run_delay_seconds=0.008, process_run_delay_seconds=0.008, busy_seconds=2.0, stolen_seconds=0.0
)


def _codes(notes: list) -> list[str]:
    return [note.code for note in notes]


def test_quiet_machine_gets_no_note():
    """Small delays that any system has raise no alarm."""
    assert disturbance.from_readings(QUIET, AFTER) == []


@pytest.mark.parametrize(
    ("changes", "code", "says"),
    [
        ({"run_delay_seconds": 0.2, "own_cpu_seconds": 1.8}, "contended", "10 % of the time"),
        ({"stolen_seconds": 0.1}, "contended", "5.0 % of the time on these cores to other machines"),
        ({"throttled_seconds": 0.5}, "throttled", "quota held this process back for 25 %"),
        ({"thermal_events": 3}, "throttled", "heat 3 times"),
        ({"frequency_hertz": 2.7e9}, "throttled", "fell by 10 % to 2.70 GHz"),
    ],
)
def test_each_counter_gives_its_note(changes, code, says):
    """A disturbance of at least five per cent gets the note of its counter, with its size."""
    before = replace(QUIET, throttled_seconds=0.0, thermal_events=0, frequency_hertz=3e9)
    after = replace(AFTER, **{"throttled_seconds": 0.0, "thermal_events": 0, "frequency_hertz": 3e9, **changes})
    (note,) = disturbance.from_readings(before, after)
    assert note.code == code
    assert says in note.sentence


def test_quota_is_not_blamed_on_neighbours():
    """A process held back by its quota waits on the run queue too: that is throttling, not contention."""
    before = replace(QUIET, throttled_seconds=0.0)
    after = replace(AFTER, own_cpu_seconds=1.0, run_delay_seconds=1.0, busy_seconds=1.01, throttled_seconds=0.98)
    assert _codes(disturbance.from_readings(before, after)) == ["throttled"]


def test_own_threads_in_each_others_way_are_not_neighbours():
    """Waits of one thread for another of the same process, with nobody else at work, are no contention."""
    after = replace(AFTER, own_cpu_seconds=3.98, busy_seconds=3.99, run_delay_seconds=0.8, process_run_delay_seconds=3.0)
    assert disturbance.from_readings(QUIET, after) == []


def test_worker_threads_that_wait_for_a_neighbour_are_contended():
    """Work on all cores suffers from a neighbour on any of them, though the calling thread never waits."""
    after = replace(AFTER, own_cpu_seconds=3.4, busy_seconds=3.98, process_run_delay_seconds=0.6)
    assert _codes(disturbance.from_readings(QUIET, after)) == ["contended"]


def test_crowded_cores_without_run_queue_figures():
    """Where the system tells no run-queue delay (macOS, Windows), cores all busy with others count."""
    before = Readings(seconds=0.0, cores=4, busy_seconds=0.0)
    after = Readings(seconds=2.0, cores=4, own_cpu_seconds=2.0, busy_seconds=8.0)
    assert _codes(disturbance.from_readings(before, after)) == ["contended"]
    assert disturbance.from_readings(before, replace(after, busy_seconds=4.0)) == []


def test_below_the_base_clock_is_throttled():
    """A steady clock under the maker's base clock was low before the measurement began."""
    before = replace(QUIET, frequency_hertz=1.8e9, base_frequency_hertz=2.4e9)
    after = replace(AFTER, frequency_hertz=1.8e9, base_frequency_hertz=2.4e9)
    (note,) = disturbance.from_readings(before, after)
    assert "25 % under" in note.sentence


@pytest.mark.parametrize(
    ("before", "after", "codes"),
    [
        (GpuReadings(0, slowed_seconds=5.0), GpuReadings(1, slowed_seconds=5.2, reasons=("power cap",)), ["throttled"]),
        (GpuReadings(0, slowed_seconds=5.0), GpuReadings(1, slowed_seconds=5.2), []),  # the counter runs on after heavy work
        (GpuReadings(0, slowed_seconds=5.0), GpuReadings(1, slowed_seconds=5.2, clock_hertz=1.98e9, top_clock_hertz=1.98e9), []),
        (GpuReadings(0, slowed_seconds=5.0), GpuReadings(1, slowed_seconds=5.2, clock_hertz=1.5e9, top_clock_hertz=1.98e9), ["throttled"]),
        (GpuReadings(0, slowed_seconds=5.0, reasons=("power cap",)), GpuReadings(1, slowed_seconds=5.01, reasons=("power cap",)), []),
        (GpuReadings(0, reasons=("power cap",)), GpuReadings(1, reasons=("power cap",)), ["throttled"]),
        (GpuReadings(0), GpuReadings(1, slowed_seconds=5.0), []),  # the counter came only with the second reading
        (GpuReadings(0, slowed_seconds=5.0), GpuReadings(1), []),
        (GpuReadings(0, clock_hertz=1.9e9), GpuReadings(1, clock_hertz=1.5e9, reasons=("power cap",)), ["throttled"]),
        (GpuReadings(0, clock_hertz=1.9e9), GpuReadings(1, clock_hertz=1.5e9), []),
        (GpuReadings(0), GpuReadings(1, neighbours=2, neighbour_busy_ratio=0.3), ["contended"]),
        (GpuReadings(0), GpuReadings(1, neighbours=2, neighbour_busy_ratio=0.0), []),
        (GpuReadings(0), GpuReadings(1, neighbours=2, neighbour_busy_ratio=None), []),
    ],
)
def test_gpu_counters(before, after, codes):
    """A GPU that held its clock down, or whose neighbour was at work, is told; an idle neighbour is not."""
    assert _codes(disturbance.from_readings(replace(QUIET, gpu=before), replace(AFTER, gpu=after))) == codes


def test_a_long_sample_is_a_stop():
    """One sample of 150 ms among a thousand of 1 ms: 13 % of the time, one stop."""
    samples = np.full(1000, 1e-3)
    samples[500] = 0.15
    note = detect.stalled(samples, np.zeros(999))
    assert note is not None
    assert "1 time, the longest 149 ms, 13 % of the time" in note.sentence


def test_a_stop_in_one_of_four_slow_calls_is_seen():
    """Of a few slow calls one that took half as long again was stopped: the others agree to a per mille."""
    assert detect.stalled(np.array([0.5, 0.5005, 0.75, 0.4998]), np.zeros(3)) is not None


def test_rare_short_blips_are_no_stop():
    """Blips below a fortieth of the time are what any system does."""
    samples = np.full(1000, 1e-3)
    samples[::250] = 5e-3
    assert detect.stalled(samples, np.zeros(999)) is None


def test_delays_that_a_neighbour_explains_are_not_stops():
    """Gaps that the run queue accounts for are left to the note about the neighbour."""
    samples = np.full(500, 1e-3)
    samples[::50] = 4e-2
    window = Window.between(QUIET, replace(AFTER, seconds=0.9, own_cpu_seconds=0.5, run_delay_seconds=0.39, busy_seconds=0.9))
    assert detect.stalled(samples, np.zeros(499), window) is None
    assert detect.stalled(samples, np.zeros(499)) is not None


def test_a_neighbours_part_of_a_stop_is_its_share_of_all_the_time():
    """By hand: of 10.6 s a stop took 0.6, of which 4 % of 10 s are the run queue's: 0.2 s are left, less than a fortieth of all."""
    samples = np.full(1000, 1e-2)
    samples[500] = 0.61
    waited = {"run_delay_seconds": 0.4, "process_run_delay_seconds": 0.4}
    after = replace(AFTER, seconds=10.0, own_cpu_seconds=9.8, busy_seconds=10.0, **waited)
    assert detect.stalled(samples, np.zeros(999), Window.between(QUIET, after)) is None
    free = Window.between(QUIET, replace(after, run_delay_seconds=0.0, process_run_delay_seconds=0.0))
    assert detect.stalled(samples, np.zeros(999), free) is not None


def test_a_stop_between_two_samples_needs_the_machines_word():
    """A gap between samples is a stop only if the process did nothing in it: it may have been computing an interval."""
    samples, gaps = np.full(1000, 1e-3), np.zeros(999)
    gaps[300] = 0.3
    idle = Window.between(QUIET, replace(AFTER, seconds=1.3, own_cpu_seconds=1.0, busy_seconds=1.01))
    computing = Window.between(QUIET, replace(AFTER, seconds=1.3, own_cpu_seconds=1.29, busy_seconds=1.3))
    assert detect.stalled(samples, gaps, idle) is not None
    assert detect.stalled(samples, gaps, computing) is None
    assert detect.stalled(samples, gaps) is None


def test_no_samples_no_stop():
    """Nothing was sampled, so nothing is said."""
    assert detect.stalled(np.array([]), np.array([])) is None


@pytest.mark.parametrize(
    ("first", "median", "noted"),
    [
        (0.05, 1e-3, True),
        (2e-3, 1e-3, False),
        (1e-4, 1e-6, False),
        (3.1e-4, 1e-6, True),
        (0.9, 0.5, False),
        (1.6, 0.5, True),
        (1e-3, 0.0, True),
    ],
)
def test_slow_first_call(first, median, noted):
    """Three times the later calls and 0.2 ms more: less is what any cold cache does."""
    assert (detect.slow_first_call(first, median) is not None) == noted


def _faults() -> ModuleType:
    path = pathlib.Path(__file__).parents[2] / "benchmarks" / "_faults_scripted.py"
    spec = importlib.util.spec_from_file_location("_faults_scripted", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


FAULTS = _faults()
ALARMS = {"implausible", "unstable", "contended", "stalled", "throttled", "warm-cache", "slow-first-call"}


def _outcome(made) -> set[str]:
    return {note.code for note in (made if isinstance(made, list) else made.notes)}


@pytest.mark.parametrize("fault", FAULTS.SCRIPTED)
def test_scripted_faults_get_their_note(fault):
    """Every seeded fault of 5 % and more gets its note (other seeds than the benchmark's; it runs a thousand)."""
    make, code = FAULTS.SCRIPTED[fault]
    missed = [seed for seed in range(50_000, 50_024) if code not in _outcome(make(seed))]
    assert missed == []


@pytest.mark.parametrize("kind", FAULTS.CLEAN)
def test_scripted_clean_runs_get_none(kind):
    """Undisturbed runs raise no alarm."""
    alarmed = [seed for seed in range(60_000, 60_040) if ALARMS & _outcome(FAULTS.CLEAN[kind](seed))]
    assert alarmed == []


@pytest.mark.parametrize(("first", "median", "noted"), [(1.5, 0.5, True), (2e-4, 0.0, True)])
def test_the_first_call_at_the_very_line(first, median, noted):
    """Three times the later calls is slow, and 0.2 ms more is enough."""
    assert (detect.slow_first_call(first, median) is not None) == noted


def test_the_first_calls_sentence():
    """With how many times the later ones, where they take any time."""
    end = " (compiling, loading, allocating). It is not in the median; count it where you call only once."
    assert detect.slow_first_call(0.05, 1e-3).sentence == "the first call took 50.0 ms, 50 times as much as the later ones" + end
    assert detect.slow_first_call(0.05, 0.0).sentence == "the first call took 50.0 ms" + end


@pytest.mark.parametrize(
    ("samples", "width", "says"),
    [
        (np.repeat(np.linspace(1.0, 1.08, 64), 10), 0.02, "the time per call changed by 8.0 % while measuring. "),
        (np.repeat(np.linspace(1.0, 1.031, 64), 10), 0.02, "the time per call changed by 3.1 % while measuring. "),
        (np.repeat(np.linspace(1.0, 1.029, 64), 10), 0.02, None),  # less than 3 % is what any machine does
        (np.repeat(np.linspace(1.0, 1.08, 64), 10), 0.1, None),  # and less than what was asked does not matter
        (
            np.where(np.random.default_rng(3).random(400) < 0.5, 1e-3, 1.5e-3), 0.02,
            "the time per call jumps between two levels, 1.00 ms and 1.50 ms (50 % apart). ",
        ),
    ],
)  # fmt: skip
def test_samples_of_two_levels_say_which(samples, width, says):
    """Drifts and jumps without any scatter, by hand."""
    note = detect.unstable(samples, width)
    advice = "No single figure describes it; look at the raw samples, close what else runs, and measure again."
    assert (note.sentence if note else None) == (says and says + advice)


@pytest.mark.parametrize(("stopped", "stood"), [(1.25, True), (1.27, False), (0.8, True), (0.79, False)])
def test_a_process_stood_still_where_it_was_blocked_for_about_as_long(stopped, stood):
    """Blocked for half of two seconds: stops of 0.8 to 1.25 s in all are that one second."""
    assert detect._stood_still(stopped, SimpleNamespace(blocked=0.5, seconds=2.0)) is stood
    assert not detect._stood_still(stopped, SimpleNamespace(blocked=None, seconds=2.0))
    assert not detect._stood_still(stopped, None)


@pytest.mark.parametrize(("longest", "told"), [(3.05e-3, True), (2.95e-3, False)])
def test_a_stop_is_two_milliseconds_at_least(longest, told):
    """One of fifty samples of 1 ms; what is shorter may be the work's own scatter, however rare."""
    assert (detect.stalled(np.array([longest, *[1e-3] * 49]), np.zeros(49)) is not None) is told


@pytest.mark.parametrize(("excess", "count"), [(0.051, 9), (0.0505, 9), (0.0495, 8)])
def test_a_stop_is_a_twentieth_of_a_call_at_least(excess, count):
    """Ten calls of 1 s just alike, eight of 1.07 s that were stopped, and one that took about 5 % more."""
    note = detect.stalled(np.array([*[1.0] * 10, *[1.07] * 8, 1.0 + excess]), np.zeros(18))
    assert f"stood still {count} times, the longest 70.0 ms" in note.sentence


@pytest.mark.parametrize("times", [1, 10])
def test_a_stop_is_ten_spreads_at_least(times):
    """By hand: nine calls of 1.4 ms, nine of 1.6, a longer one: the middle deviation from 1.6 is 0.2, and ten spreads are 2.97 ms."""
    for longest, told in ((4.6e-3, True), (4.5e-3, False)):
        samples = times * np.array([*[1.4e-3, 1.6e-3] * 9, longest])
        assert (detect.stalled(samples, np.zeros(18)) is not None) is told


def test_the_spread_of_few_and_of_many():
    """By hand: the deviations of 0 .. 18 from 9 have the median 5; of twenty the middle 68 % reach from 3.04 to 15.96."""
    assert detect._spread(np.arange(19.0)) == pytest.approx(1.4826 * 5)
    assert detect._spread(np.arange(20.0)) == pytest.approx(6.46)


def test_what_the_machine_explains_of_a_stop():
    """The longer of both waits for a core, what the quota and what the host took; nothing where nothing is known."""
    assert detect._explained(SimpleNamespace(delay=0.1, process_delay=0.2, throttled=0.04, stolen=0.005)) == pytest.approx(0.245)
    assert detect._explained(SimpleNamespace(delay=0.3, process_delay=None, throttled=None, stolen=None)) == pytest.approx(0.3)
    assert detect._explained(SimpleNamespace(delay=None, process_delay=None, throttled=None, stolen=None)) == 0.0
