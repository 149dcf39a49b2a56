"""What the machine's counters say of the time between two readings, in whole sentences and at each rule's edge, worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpulab.devices import disturbance
from gpulab.devices.conditions import Readings
from gpulab.devices.disturbance import Window
from gpulab.devices.gpu_readings import GpuReadings

# Ten seconds on two cores with ticks of 10 ms, so that three ticks are 0.3 % of the time; nobody else was there.
BEFORE = Readings(
    100.0, 2, 50.0, run_delay_seconds=7.0, process_run_delay_seconds=8.0, busy_seconds=60.0, stolen_seconds=3.0, throttled_seconds=2.0,
    thermal_events=4, frequency_hertz=3e9, base_frequency_hertz=2e9,
)  # fmt: skip
AFTER = replace(BEFORE, seconds=110.0, own_cpu_seconds=59.0, busy_seconds=69.0)
CLOSE = "Close what else runs, or measure again later; the smallest samples are the least disturbed."
HEAT = "Let it cool down, plug it in, or pick a fixed clock, and measure again."
GPU = "The figure is what this GPU gives under this load; cool it, or lock its clock (nvidia-smi -lgc), to compare."


def told(before: dict[str, Any], after: dict[str, Any], advice: str = "") -> list[tuple[str, str]]:
    """The notes on readings that differ from the quiet ones."""
    return [(n.code, n.sentence) for n in disturbance.from_readings(replace(BEFORE, **before), replace(AFTER, **after), advice)]


def test_what_passed_is_told_in_shares_of_the_time() -> None:
    """By hand: of 10 s 9 were our own CPU time; 1 s we were ready and had no core; all cores worked for 15; and so on."""
    after = replace(
        AFTER, run_delay_seconds=7.5, process_run_delay_seconds=10.0, busy_seconds=75.0, stolen_seconds=3.2, throttled_seconds=2.1, cores=4
    )
    assert Window.between(BEFORE, after) == Window(
        10.0, pytest.approx(0.05), pytest.approx(0.2), pytest.approx(0.6), pytest.approx(0.02), pytest.approx(0.01),
        pytest.approx(1 - 0.9 - 0.05), 4, pytest.approx(0.003),
    )  # fmt: skip
    bare = Window.between(Readings(5.0), Readings(5.0, tick_seconds=0.004))
    assert (bare.seconds, bare.delay, bare.process_delay, bare.others, bare.stolen, bare.throttled, bare.blocked) == (1e-9, *[None] * 6)
    half = Window.between(Readings(0.0, busy_seconds=1.0), Readings(2.0, own_cpu_seconds=4.0, busy_seconds=2.0, stolen_seconds=1.0))
    assert (half.others, half.stolen, half.others_step) == (0.0, None, pytest.approx(0.015))  # never less than none


@pytest.mark.parametrize(("share", "words"), [(0.0949, "9.5 %"), (0.095, "10 %"), (0.0251, "2.5 %"), (0.5, "50 %"), (1.7, "100 %")])
def test_shares_in_percent(share: float, words: str) -> None:
    """With a decimal below ten; more than the whole is the whole."""
    assert disturbance.percent(share) == words


@pytest.mark.parametrize(
    ("after", "notes"),
    [
        ({}, []),
        ({"stolen_seconds": 3.25}, [
            ("contended", "the hypervisor gave 2.5 % of the time on these cores to other machines (steal time). "
             "Measure again later, or on a machine of your own."),
        ]),
        ({"stolen_seconds": 3.24}, []),
        # Others had 9.6 s of the other core; of the second that we waited a third can only be theirs where they worked for so long.
        ({"run_delay_seconds": 8.0, "busy_seconds": 78.6},
         [("contended", f"other processes kept this one off its core for 10 % of the time. {CLOSE}")]),
        ({"run_delay_seconds": 7.25, "busy_seconds": 78.6},
         [("contended", f"other processes kept this one off its core for 2.5 % of the time. {CLOSE}")]),
        ({"run_delay_seconds": 7.24, "busy_seconds": 78.6}, []),
        ({"run_delay_seconds": 8.0, "busy_seconds": 69.31}, [
            ("contended", f"other processes kept this one off its core for 10 % of the time. {CLOSE}"),
        ]),
        ({"run_delay_seconds": 8.0, "busy_seconds": 69.29}, []),  # our own threads waited for each other
        ({"run_delay_seconds": 8.0, "busy_seconds": None},  # nobody tells what others did
         [("contended", f"other processes kept this one off its core for 10 % of the time. {CLOSE}")]),
        # Two cores: waits of 0.5 s in all threads are a share of 2.5 %, which counts where others worked for 5 % of a core.
        ({"process_run_delay_seconds": 8.5, "busy_seconds": 69.51},
         [("contended", f"other processes kept this one off its core for 2.5 % of the time. {CLOSE}")]),
        ({"process_run_delay_seconds": 8.49, "busy_seconds": 69.51}, []),
        ({"process_run_delay_seconds": 8.5, "busy_seconds": 69.49}, []),
        # A quota held it back for a second: this is no neighbour, and waits beside it count less.
        ({"throttled_seconds": 3.0, "run_delay_seconds": 8.24, "busy_seconds": 78.6}, [
            ("throttled", "the container's CPU quota held this process back for 10 % of the time (cpu.stat). Ask for more cores, or "
             "measure with fewer threads."),
        ]),
        ({"throttled_seconds": 2.24}, []),
        ({"throttled_seconds": 2.0, "process_run_delay_seconds": 8.5, "busy_seconds": 69.51},
         [("contended", f"other processes kept this one off its core for 2.5 % of the time. {CLOSE}")]),
        ({"throttled_seconds": 2.2, "process_run_delay_seconds": 8.6, "busy_seconds": 69.51}, []),
        ({"thermal_events": 5}, [("throttled", f"the cores slowed down because of heat 1 time. {HEAT}")]),
        ({"thermal_events": 7}, [("throttled", f"the cores slowed down because of heat 3 times. {HEAT}")]),
        ({"frequency_hertz": 2.88e9}, [("throttled", f"the cores' clock fell by 4.0 % to 2.88 GHz while measuring. {HEAT}")]),
        ({"frequency_hertz": 2.881e9}, []),
    ],
)  # fmt: skip
def test_each_rule_at_its_edge(after: dict[str, Any], notes: list[tuple[str, str]]) -> None:
    """A fortieth of the time is told, and a little less is not; each in its whole sentence."""
    assert told({}, after) == notes


def test_the_callers_advice_takes_the_place_of_ours() -> None:
    """Wherever others took the cores, and there alone."""
    for after in ({"stolen_seconds": 4.0}, {"run_delay_seconds": 8.0, "busy_seconds": 78.6}):
        assert told({}, after, "Do this.")[0][1].endswith(". Do this.")
    without = {"run_delay_seconds": None}
    assert told(without, {**without, "busy_seconds": 78.6}, "Do this.")[0][1].endswith("of them with other processes. Do this.")
    assert told({}, {"thermal_events": 5}, "Do this.")[0][1].endswith(HEAT)


def test_short_windows_forgive_what_any_system_does() -> None:
    """In 20 ms a wait of 0.9 ms is one delay, though it is 4.5 % of the time; a millisecond is told; so of a quota. Ticks are coarse."""
    quiet = replace(AFTER, seconds=100.02, own_cpu_seconds=50.018, busy_seconds=60.018)
    for waited, notes in ((7.0009, 0), (7.0011, 1)):
        assert len(disturbance.from_readings(BEFORE, replace(quiet, run_delay_seconds=waited))) == notes
    for held, notes in ((2.0009, 0), (2.0011, 1)):
        assert len(disturbance.from_readings(BEFORE, replace(quiet, throttled_seconds=held))) == notes
    second = replace(AFTER, seconds=101.0, own_cpu_seconds=51.0, busy_seconds=61.0)  # three ticks are 3 % of it
    assert disturbance.from_readings(BEFORE, replace(second, stolen_seconds=3.029)) == []
    assert len(disturbance.from_readings(BEFORE, replace(second, stolen_seconds=3.031))) == 1


@pytest.mark.parametrize(
    ("cores", "own", "busy", "words"),
    [
        (2, 10.0, 19.5, "all 2 cores were busy, 48 % of them with other processes"),  # one core less a twentieth
        (2, 10.0, 19.49, None), (4, 10.0, 39.6, "all 4 cores were busy, 74 % of them with other processes"), (4, 10.0, 39.4, None),
        (1, 9.5, 10.0, "the core was busy, 5.0 % of it with other processes"), (1, 9.51, 10.0, None),
    ],
)  # fmt: skip
def test_where_no_waits_are_told_the_cores_were_all_busy(cores: int, own: float, busy: float, words: str | None) -> None:
    """Without run-queue delays (macOS, Windows): others had 5 % of each core at least, and none was free."""
    before = Readings(0.0, cores, busy_seconds=0.0)
    notes = disturbance.from_readings(before, Readings(10.0, cores, own, busy_seconds=busy))
    assert [note.sentence for note in notes] == ([] if words is None else [f"{words}. {CLOSE}"])


def test_a_clock_below_its_base_was_low_from_the_start() -> None:
    """Half of the maker's base clock before and after; the fall counts first; where no base is told nothing is said."""
    low = {"frequency_hertz": 1e9}
    assert told(low, low) == [("throttled", f"the cores' clock is 50 % under the maker's base clock. {HEAT}")]
    assert told(low, {"frequency_hertz": 0.9e9}) == [("throttled", f"the cores' clock fell by 10 % to 0.90 GHz while measuring. {HEAT}")]
    for base in (None, 0.0):
        assert told({**low, "base_frequency_hertz": base}, {**low, "base_frequency_hertz": base}) == []
    assert told({"thermal_events": None}, {"thermal_events": 9}) == told({}, {"thermal_events": None}) == []


@pytest.mark.parametrize(
    ("before", "after", "sentence"),
    [
        ({"slowed_seconds": 5.0}, {"slowed_seconds": 5.25, "reasons": ("power cap", "hardware thermal")},
         "held its clock down for 2.5 % of the time (power cap, hardware thermal)"),
        ({"slowed_seconds": 5.0}, {"slowed_seconds": 5.24, "reasons": ("power cap",)}, None),
        ({"slowed_seconds": 5.0, "reasons": ("power cap",)}, {"slowed_seconds": 35.0},
         "held its clock down for 100 % of the time (power cap)"),
        ({"slowed_seconds": 5.0}, {"slowed_seconds": 7.0, "clock_hertz": 1.9e9, "top_clock_hertz": 2e9},
         "held its clock down for 20 % of the time (power or heat)"),
        ({"slowed_seconds": 5.0}, {"slowed_seconds": 7.0, "clock_hertz": 1.93e9, "top_clock_hertz": 2e9}, None),
        ({"reasons": ("power cap",)}, {"reasons": ("sync boost",)},
         "held its clock down before and after the measurement (sync boost)"),
        ({"reasons": ("power cap",)}, {}, None), ({}, {"reasons": ("power cap",)}, None),
        ({"clock_hertz": 2e9}, {"clock_hertz": 1.5e9, "reasons": ("power cap",)}, "'s clock fell by 25 % to 1500 MHz (power cap)"),
        ({"clock_hertz": 2e9}, {"clock_hertz": 1.5e9}, None),
    ],
)  # fmt: skip
def test_a_gpu_that_was_held_down_is_told(before: dict[str, Any], after: dict[str, Any], sentence: str | None) -> None:
    """By its own counter where it has one and a reason or the clock agrees; else by reasons on both sides, or a fall with one."""
    notes = told({"gpu": GpuReadings(1, **before)}, {"gpu": GpuReadings(2, **after)})
    said = None if sentence is None else f"the GPU{sentence}. {GPU}" if sentence[0] == "'" else f"the GPU {sentence}. {GPU}"
    assert notes == ([] if said is None else [("throttled", said)])


@pytest.mark.parametrize(
    ("neighbours", "busy", "words"),
    [
        (1, 0.04, "1 other process held the GPU, one of them busy up to 4.0 % of the time"),
        (1, 0.039, None), (0, 0.5, None), (3, None, None),
        (3, 0.6, "3 other processes held the GPU, one of them busy up to 60 % of the time"), (None, 0.5, None),
    ],
)  # fmt: skip
def test_a_neighbour_on_the_gpu_is_told(neighbours: int | None, busy: float | None, words: str | None) -> None:
    """One that worked; where one reading has no GPU nothing is told."""
    there = GpuReadings(2, neighbours=neighbours, neighbour_busy_ratio=busy)
    sentence = f"{words}. Measure when it is alone (nvidia-smi shows who)."
    assert told({"gpu": GpuReadings(1)}, {"gpu": there}) == ([] if words is None else [("contended", sentence)])
    assert told({}, {"gpu": there}) == told({"gpu": there}, {"gpu": None}) == []
