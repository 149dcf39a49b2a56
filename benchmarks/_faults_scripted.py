"""Faults on a machine that exists only here: its clock and its counters are scripted, so every
disturbance has a known size.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from gpulab.devices import Figure, MemoryLevel, conditions
from gpulab.devices.conditions import GpuReadings, Readings
from gpulab.evidence import Note
from gpulab.timing import Measurement, measure, notes

DEADLINE = 2.0
CALL_SECONDS = 1e-3
SLICE_SECONDS = 3e-3  # what the scheduler gives a neighbour at a time
# Seconds of the deadline in which the sampler never stops: every window has a fault put here.
FIRST_WINDOW = 0.6
IDLE = Readings(
    seconds=0.0,
    cores=2,
    run_delay_seconds=0.0,
    busy_seconds=0.0,
    stolen_seconds=0.0,
    throttled_seconds=0.0,
    thermal_events=0,
    frequency_hertz=3e9,
)


@dataclass
class World:
    """A machine that exists only here: its clock, its counters, and what a call costs on it."""

    rng: np.random.Generator
    noise: str
    now: float = 0.0
    first_extra: float = 0.0
    began: float = math.inf
    calls: int = 0
    state: Readings = field(default_factory=lambda: IDLE)
    before_call: Callable[[World], None] = lambda world: None
    factor: Callable[[float], float] = lambda elapsed: 1.0
    previous: float = 0.0

    def clock(self) -> float:
        """Return the time; reading it costs nothing."""
        return self.now

    def elapsed(self) -> float:
        """Return the seconds since the first reading of the counters, -1 before it."""
        return self.now - self.began if self.began < math.inf else -1.0

    def relative(self) -> float:
        """Return one draw of the noise, as a factor."""
        z = float(self.rng.standard_normal())
        if self.noise == "quiet":
            return 1 + 0.005 * z
        if self.noise == "independent":
            return 1 + 0.02 * z
        if self.noise == "correlated":
            self.previous = 0.6 * self.previous + 0.8 * z
            return 1 + 0.02 * self.previous
        if self.noise == "independent, 10 %":
            return 1 + 0.1 * z
        if self.noise == "correlated, rho 0.9":
            self.previous = 0.9 * self.previous + math.sqrt(0.19) * z
            return 1 + 0.02 * self.previous
        if self.noise == "Student, 3 degrees":
            return 1 + 0.02 * float(self.rng.standard_t(3))
        return 1 + 0.01 * math.exp(0.8 * z)  # a tail to the right, as real timings have

    def call(self) -> None:
        """Do the work once, which takes wall time and CPU time of this process."""
        self.calls += 1
        self.before_call(self)
        seconds = CALL_SECONDS * max(0.2, self.relative()) * self.factor(self.elapsed())
        if self.calls == 1:
            seconds += self.first_extra
        self.own(seconds)

    def own(self, seconds: float) -> None:
        """Let this process work for ``seconds``."""
        self.now += seconds
        s = self.state
        self.state = replace(
            s,
            own_cpu_seconds=s.own_cpu_seconds + seconds,
            busy_seconds=(s.busy_seconds or 0) + seconds * self.background(),
        )

    def background(self) -> float:
        """Return busy time per own CPU time: other processes add up to 1.5 % on the other core."""
        return 1 + 0.015 * float(self.rng.random())

    def lose(self, seconds: float, **counters: float) -> None:
        """Let time pass without work, and add ``counters`` to the counters of those names."""
        self.now += seconds
        self.state = replace(
            self.state,
            **{
                name: (getattr(self.state, name) or 0.0) + value for name, value in counters.items()
            },
        )

    def read(self) -> Readings:
        """Return the counters, in the steps that the kernel reports, with the delays and jitter of
        a quiet machine.
        """
        if self.began == math.inf:
            self.began = self.now
        s = self.state
        quiet = float(self.rng.random())
        ticks = {
            name: math.floor((getattr(s, name) or 0.0) / s.tick_seconds) * s.tick_seconds
            for name in ("busy_seconds", "stolen_seconds")
        }
        delay = (s.run_delay_seconds or 0.0) + 0.008 * quiet * (self.now - self.began)
        jitter = (s.frequency_hertz or 0.0) * (1 + 0.005 * float(self.rng.standard_normal()))
        return replace(
            s,
            seconds=self.now,
            run_delay_seconds=delay,
            thread_delays={"1": delay},
            frequency_hertz=jitter,
            **ticks,
        )

    def measured(self, **options: float) -> Measurement:
        """Measure the world's call."""
        return measure(
            self.call,
            device="cpu",
            clock=self.clock,
            conditions=self.read,
            deadline=DEADLINE,
            **options,
        )


def world(seed: int, noise: str | None = None) -> World:
    """Return a clean machine."""
    rng = np.random.default_rng(seed)
    return World(rng, noise or ("quiet", "independent", "correlated", "tailed")[seed % 4])


def size(rng: np.random.Generator) -> float:
    """Return a disturbance of 5 % to 100 %."""
    return float(0.05 * 20 ** rng.random())


def _taken(w: World, share: float, **counters: float) -> None:
    """Take ``share`` of the time away in slices, evenly enough that every window sees it."""
    debt = [0.0]
    last = [w.now]

    def before_call(world_: World) -> None:
        worked = world_.now - last[0]
        debt[0] += worked * share / (1 - share)
        if debt[0] >= SLICE_SECONDS:
            world_.lose(debt[0], **{name: debt[0] * scale for name, scale in counters.items()})
            debt[0] = 0.0
        last[0] = world_.now

    w.before_call = before_call


def contended(seed: int) -> Measurement:
    """A neighbour on the same core takes its share."""
    w = world(seed)
    _taken(w, min(0.6, size(w.rng)), run_delay_seconds=1.0, busy_seconds=1.0)
    return w.measured()


def stolen(seed: int) -> Measurement:
    """The hypervisor takes its share."""
    w = world(seed)
    _taken(w, min(0.6, size(w.rng)), stolen_seconds=1.0)
    return w.measured()


def held_by_quota(seed: int) -> Measurement:
    """The container's quota holds the process back; that also counts as a delay on the run
    queue.
    """
    w = world(seed)
    _taken(w, min(0.6, size(w.rng)), throttled_seconds=1.0, run_delay_seconds=1.0)
    return w.measured()


def slower_clock(seed: int) -> Measurement:
    """The cores' clock falls by 5 % to 50 % while measuring."""
    w = world(seed)
    drop = min(0.5, size(w.rng))
    when = float(w.rng.random()) * FIRST_WINDOW

    def factor(elapsed: float) -> float:
        if elapsed < when:
            return 1.0
        if (w.state.frequency_hertz or 0) == 3e9:
            w.state = replace(w.state, frequency_hertz=3e9 * (1 - drop))
        return 1 / (1 - drop)

    w.factor = factor
    return w.measured()


def stopped(seed: int) -> Measurement:
    """The process is stopped once, for 5 % of the deadline or more."""
    w = world(seed)
    length, when = DEADLINE * size(w.rng), 0.02 + float(w.rng.random()) * (FIRST_WINDOW - 0.02)
    done = [False]

    def before_call(world_: World) -> None:
        if not done[0] and world_.elapsed() >= when:
            done[0] = True
            world_.lose(length)

    w.before_call = before_call
    return w.measured()


def shifted(seed: int) -> Measurement:
    """The time per call changes by 5 % or more for a part of the window. The noise is at most 2 %,
    since 5 % would be lost in more.
    """
    w = world(seed, ("quiet", "independent")[seed % 2])
    by, start = size(w.rng), 0.1 + 0.2 * float(w.rng.random())
    kind = seed % 3

    def factor(elapsed: float) -> float:
        if kind == 0:  # a step that stays
            return 1 + by if elapsed > start else 1.0
        if kind == 1:  # two states, held for a tenth of a second each
            return 1 + by if elapsed > 0 and int(elapsed / 0.1) % 2 else 1.0
        return 1 + by * min(1.0, max(0.0, elapsed / FIRST_WINDOW))  # a drift

    w.factor = factor
    return w.measured()


def compiling(seed: int) -> Measurement:
    """The first call also compiles, which takes as long as 5 to 5,000 calls."""
    w = world(seed)
    w.first_extra = CALL_SECONDS * 5 * 1000 ** float(w.rng.random())
    return w.measured()


def clean(seed: int) -> Measurement:
    """Nothing is wrong. Besides the four noises of the faulty runs, there are three that are harder
    to distinguish from a fault.
    """
    noises = (
        "quiet",
        "independent",
        "correlated",
        "tailed",
        "independent, 10 %",
        "correlated, rho 0.9",
        "Student, 3 degrees",
    )
    w = world(seed, noises[seed % len(noises)])
    w.first_extra = CALL_SECONDS * float(w.rng.random())
    return w.measured()


PEAK = Figure(1e12, "scripted")
LEVELS = (
    MemoryLevel("L2", 2**20, 4e11, "scripted"),
    MemoryLevel("L3", 2**25, 2e11, "scripted"),
    MemoryLevel("DRAM", 2**35, 4e10, "scripted"),
)
# A measured ceiling may be low by a tenth, so a rate is too high from this many times the ceiling
# on. This and ``ceiling`` are stated here, so that a change of gpulab's own rules shows.
ALLOWED = 1.1


def ceiling(working_set_bytes: float) -> float:
    """Return the highest rate of the scripted memory in bytes per second, where each level holds as
    much of the working set as fits, the fastest first.
    """
    in_l2 = min(working_set_bytes, 2**20)
    in_l3 = min(working_set_bytes - in_l2, 2**25)
    seconds = in_l2 / 4e11 + in_l3 / 2e11 + (working_set_bytes - in_l2 - in_l3) / 4e10
    return working_set_bytes / seconds


def too_fast(seed: int) -> list[Note]:
    """A rate at least 5 % above the ceiling and its allowance: of arithmetic, or of a working set's
    traffic in some memory level.
    """
    rng = np.random.default_rng(seed)
    above = ALLOWED * (1 + size(rng))
    if seed % 2:
        return notes.check(1.0, 1e12 * above, None, None, PEAK, LEVELS)
    working_set = float(2 ** rng.uniform(10, 34))
    return notes.check(
        working_set / (ceiling(working_set) * above), None, working_set, working_set, PEAK, LEVELS
    )


def cached(seed: int) -> list[Note]:
    """A working set that fits a cache, faster than main memory and its allowance by 5 % or more."""
    rng = np.random.default_rng(seed)
    working_set = float(2 ** rng.uniform(10, 25))
    rate = min(4e10 * ALLOWED * (1 + size(rng)), ceiling(working_set))
    return notes.check(working_set / rate, None, working_set, working_set, PEAK, LEVELS)


def possible(seed: int) -> list[Note]:
    """Rates from 20 % to 95 % of the ceiling, data from main memory."""
    rng = np.random.default_rng(seed)
    working_set = float(2 ** rng.uniform(26, 34))
    seconds = working_set / (4e10 * rng.uniform(0.2, 0.95))
    return notes.check(
        seconds, 1e12 * rng.uniform(0.2, 0.95) * seconds, working_set, working_set, PEAK, LEVELS
    )


def gpu_window(
    seed: int, busy: float = 0.0, slowed: float = 0.0, reasons: tuple[str, ...] = ()
) -> list[Note]:
    """Return the notes from a GPU's counters over two seconds, with another process or a limit. At
    its limit an H200 reported the power cap, and ran at 1,515 MHz.
    """
    rng = np.random.default_rng(seed)
    quiet = Readings(seconds=0.0, cores=8, run_delay_seconds=0.0, busy_seconds=0.0)
    before = GpuReadings(
        0,
        slowed_seconds=float(rng.random()) * 1e4,
        clock_hertz=1.9e9,
        neighbours=int(rng.integers(0, 3)),
        neighbour_busy_ratio=0.0,
    )
    after = replace(
        before,
        slowed_seconds=(before.slowed_seconds or 0) + 2.0 * (slowed + 0.005 * float(rng.random())),
        clock_hertz=1.9e9 * (1 + 0.01 * float(rng.standard_normal())),
        reasons=reasons,
        neighbours=max(before.neighbours or 0, 1 if busy else 0),
        neighbour_busy_ratio=busy + 0.01 * float(rng.random()),
    )
    end = replace(
        quiet,
        seconds=2.0,
        own_cpu_seconds=1.9,
        busy_seconds=1.9,
        run_delay_seconds=0.01 * float(rng.random()),
    )
    return [*conditions.from_readings(replace(quiet, gpu=before), replace(end, gpu=after))]


def _gpu_contended(seed: int) -> list[Note]:
    return gpu_window(seed, busy=min(1.0, size(np.random.default_rng(seed + 10**6))))


def _gpu_throttled(seed: int) -> list[Note]:
    return gpu_window(
        seed, slowed=min(1.0, size(np.random.default_rng(seed + 10**6))), reasons=("power cap",)
    )


def after_heavy_work(seed: int) -> list[Note]:
    """A GPU at its full clock whose counters of slow-downs still rise, as an H200's did after heavy
    work. Nothing is wrong.
    """
    return gpu_window(seed, slowed=float(np.random.default_rng(seed + 10**6).random()))


SCRIPTED: dict[str, tuple[Callable[[int], Measurement | list[Note]], str]] = {
    "rate above the ceiling": (too_fast, "implausible"),
    "compiling first call": (compiling, "slow-first-call"),
    "data in a cache": (cached, "warm-cache"),
    "neighbour on the core": (contended, "contended"),
    "hypervisor steals": (stolen, "contended"),
    "process stopped": (stopped, "stalled"),
    "quota of the container": (held_by_quota, "throttled"),
    "clock falls": (slower_clock, "throttled"),
    "level shifts or drifts": (shifted, "unstable"),
    "GPU shared": (_gpu_contended, "contended"),
    "GPU at its power limit": (_gpu_throttled, "throttled"),
}
CLEAN: dict[str, Callable[[int], Measurement | list[Note]]] = {
    "clean run": clean, "clean rates": possible, "clean GPU": gpu_window,
    "after heavy work": after_heavy_work,
}  # fmt: skip
