"""Seeded synthetic processes of call times, on which the coverage of intervals is measured.

Each process draws the durations of calls of about one millisecond and knows the true value. The
module is independent of how intervals are computed.

- Stationary processes: the truth is the median of the process.
- Two clock states: any value between the two modes counts (``low`` to ``high``); ``median`` is the
  median of the process itself, a stricter truth.
- Drift: the truth is the median of the underlying process over the window measured, so each draw
  comes with the noiseless level of every call.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

CALL_SECONDS = 1e-3
GAP = 1.12  # two clock states, 12 % apart
NORMAL = NormalDist()


@dataclass(frozen=True)
class Drawn:
    """Durations, and for drifting processes the noiseless level of each call."""

    durations_seconds: np.ndarray
    levels: np.ndarray | None = None


@dataclass(frozen=True)
class Process:
    """A process: how to draw it, and what is true of it.

    Attributes
    ----------
    name, family : str
        The families are those of the acceptance: independent, ar1, states, drift, tails,
        interference; "other" goes beyond.
    draw : callable
        ``draw(rng, n)`` gives a ``Drawn``.
    low, high : float
        What counts as the truth, in seconds (equal but for clock states); nan for drift.
    median : float
        The median of the process, in seconds; nan for drift.
    noise : float
        Relative standard deviation of the noise about the level (drift).
    slow_share : float
        The share of calls that come out slower than any of the others (drift).
    oracle_width : float or None
        For the 95 % interval of an oracle that knows the autocorrelation: its relative width times
        the square root of the number of samples.
    tick_seconds : float
        The tick of the clock that shows the calls; 0 for a clock without ticks.
    """

    name: str
    family: str
    draw: Callable[[np.random.Generator, int], Drawn]
    low: float
    high: float
    median: float
    noise: float = math.nan
    oracle_width: float | None = None
    slow_share: float = 0.0
    tick_seconds: float = 0.0

    def truth(self, drawn: Drawn, calls: int) -> tuple[float, float]:
        """Return the range of true values for a window of the first ``calls`` calls."""
        if drawn.levels is None:
            return self.low, self.high
        value = mixture_median(drawn.levels[:calls], self.noise, 0.5 / (1 - self.slow_share))
        return value, value


def mixture_median(levels: np.ndarray, noise: float, share: float = 0.5) -> float:
    """Return the median (or the value with that share below it) of the equal mixture of normal
    calls ``level * (1 + noise * z)``.
    """
    centres = levels if len(levels) <= 400 else np.quantile(levels, (np.arange(400) + 0.5) / 400)
    low, high = float(centres.min()), float(centres.max())
    for _ in range(40):
        middle = (low + high) / 2
        # The normal distribution is (1 + erf(z / sqrt 2)) / 2; NormalDist.cdf gives the same, but
        # takes four times as long.
        below = 0.5 + 0.5 * np.mean(
            list(map(math.erf, ((middle / centres - 1) / (noise * math.sqrt(2))).tolist()))
        )
        low, high = (middle, high) if below < share else (low, middle)
    return (low + high) / 2


def autoregressive(rng: np.random.Generator, n: int, rho: float) -> np.ndarray:
    """Return a stationary standard normal AR(1) series."""
    shocks = rng.standard_normal(n)
    if rho == 0:
        return shocks
    scale, value, out = math.sqrt(1 - rho * rho), float(shocks[0]), [float(shocks[0])]
    for shock in (scale * shocks[1:]).tolist():
        value = rho * value + shock
        out.append(value)
    return np.array(out)


def _normal_or_lognormal(z: np.ndarray, noise: float, shape: str) -> np.ndarray:
    return CALL_SECONDS * (1 + noise * z if shape == "normal" else np.exp(noise * z))


def correlated(rho: float, noise: float, shape: str) -> Process:
    """Return calls with normal or lognormal AR(1) noise, which is independent if rho is 0."""

    def draw(rng: np.random.Generator, n: int) -> Drawn:
        return Drawn(
            np.maximum(_normal_or_lognormal(autoregressive(rng, n, rho), noise, shape), 1e-9)
        )

    signs = 2 / math.pi * np.arcsin(rho ** np.arange(1, 5000)).sum() if rho else 0.0
    density = 1 / (noise * math.sqrt(2 * math.pi))
    width = 2 * NORMAL.inv_cdf(0.975) * 0.5 * math.sqrt(1 + 2 * signs) / density
    name = (
        f"{'independent' if rho == 0 else f'AR(1) {rho}'} "
        f"{noise:.0%}{'' if shape == 'normal' else ' ' + shape}"
    )
    family = "independent" if rho == 0 else "ar1" if rho <= 0.9 else "other"
    return Process(name, family, draw, CALL_SECONDS, CALL_SECONDS, CALL_SECONDS, oracle_width=width)


def states(
    dwell: float, noise: float = 0.02, slow_share: float = 0.5, periodic: bool = False
) -> Process:
    """Return two clock states 12 % apart, held for ``dwell`` calls on average (harmonic mean of
    both), at random or periodically.
    """
    slow, fast = 2 * dwell * slow_share, 2 * dwell * (1 - slow_share)

    def draw(rng: np.random.Generator, n: int) -> Drawn:
        if periodic:
            is_slow = (np.arange(n) + rng.random() * (slow + fast)) % (slow + fast) < slow
        else:
            changes, now, pieces = 0, bool(rng.random() < slow_share), []
            while changes < n:
                held = int(rng.geometric(1 / (slow if now else fast)))
                pieces.append(np.full(held, now))
                changes, now = changes + held, not now
            is_slow = np.concatenate(pieces)[:n]
        return Drawn(
            CALL_SECONDS * np.where(is_slow, GAP, 1.0) * (1 + noise * rng.standard_normal(n))
        )

    levels = CALL_SECONDS * np.where((np.arange(1000) + 0.5) / 1000 < slow_share, GAP, 1.0)
    share = "" if slow_share == 0.5 else f" {1 - slow_share:.0%}/{slow_share:.0%}"
    name = f"states {dwell:g} {'periodic' if periodic else 'random'} {noise:.1%}{share}"
    return Process(
        name,
        "states",
        draw,
        CALL_SECONDS,
        GAP * CALL_SECONDS,
        mixture_median(np.sort(levels), noise),
    )


def drift(kind: str, total: float, noise: float) -> Process:
    """Return calls whose level changes by ``total`` in 2,000 calls: linear, to saturation, as a
    random walk, or as half a sine wave.
    """

    def draw(rng: np.random.Generator, n: int) -> Drawn:
        t = np.arange(n) / 2000
        if kind == "linear":
            shape = total * t
        elif kind == "saturating":
            shape = total * (1 - np.exp(-4 * t))
        elif kind == "sine":
            shape = total * np.sin(np.pi * t)
        else:
            shape = total * np.cumsum(rng.standard_normal(n)) / math.sqrt(2000)
        levels = CALL_SECONDS * np.exp(shape)
        return Drawn(levels * (1 + noise * rng.standard_normal(n)), levels)

    return Process(
        f"drift {kind} {total:+.0%} noise {noise:.0%}",
        "drift",
        draw,
        math.nan,
        math.nan,
        math.nan,
        noise,
    )


def tails(kind: str) -> Process:
    """Return independent calls with heavy tails: Student t with 2 or 3 degrees, Pareto, rare
    five-fold spikes, wide lognormal.
    """
    median = CALL_SECONDS
    if kind == "pareto":
        median = CALL_SECONDS * (1 + 0.05 * (2 ** (1 / 1.5) - 1))
    elif kind.startswith("spikes"):
        median = CALL_SECONDS * (
            1 + 0.02 * NORMAL.inv_cdf(0.5 / (1 - float(kind.split()[1]) / 100))
        )

    def draw(rng: np.random.Generator, n: int) -> Drawn:
        if kind.startswith("t"):
            factor = np.maximum(1 + 0.02 * rng.standard_t(int(kind[1:]), n), 0.01)
        elif kind == "pareto":
            factor = 1 + 0.05 * rng.pareto(1.5, n)
        elif kind.startswith("spikes"):
            factor = (1 + 0.02 * rng.standard_normal(n)) * np.where(
                rng.random(n) < float(kind.split()[1]) / 100, 5.0, 1.0
            )
        else:
            factor = np.exp(0.5 * rng.standard_normal(n))
        return Drawn(CALL_SECONDS * factor)

    return Process(f"tails {kind}", "tails", draw, median, median, median)


def interference(kind: str, period: int, size: float, noise: float) -> Process:
    """Return calls disturbed periodically, with a random phase: every ``period``-th one, three
    tenths of each period, or by a sine.
    """
    phase = np.arange(period)
    if kind == "sine":
        factor = 1 + size * np.sin(2 * np.pi * phase / period)
    else:
        factor = np.where(phase < (1 if kind == "every" else 0.3 * period), 1 + size, 1.0)
    median = mixture_median(np.sort(CALL_SECONDS * factor), noise)

    def draw(rng: np.random.Generator, n: int) -> Drawn:
        shifted = factor[(np.arange(n) + int(rng.integers(period))) % period]
        return Drawn(CALL_SECONDS * shifted * (1 + noise * rng.standard_normal(n)))

    name = f"interference {kind} {period} {size:+.0%} noise {noise:.0%}"
    return Process(name, "interference", draw, median, median, median)


def ticking(ticks: float, noise: float) -> Process:
    """Return calls of ``ticks`` ticks each; the clock shows the time of a batch in whole ticks."""
    tick = CALL_SECONDS / ticks

    def draw(rng: np.random.Generator, n: int) -> Drawn:
        seconds = CALL_SECONDS * (1 + noise * rng.standard_normal(n))
        seconds[0] += tick * rng.random()  # where between two ticks the second call begins
        return Drawn(seconds)

    name = f"clock of 1 us, call of {ticks} us, noise {noise:.0%}"
    return Process(name, "other", draw, CALL_SECONDS, CALL_SECONDS, CALL_SECONDS, tick_seconds=tick)


def other(kind: str) -> Process:
    """Return a process that the acceptance does not name: a moving average, an oscillation, bursts
    of variance, a slow level, coarse ticks.
    """

    def draw(rng: np.random.Generator, n: int) -> Drawn:
        z = rng.standard_normal(n + 10)
        if kind == "MA(8)":
            z = np.convolve(z, np.ones(8) / math.sqrt(8), mode="valid")[:n]
        elif kind == "AR(2) oscillating":
            values = z.tolist()
            for i in range(2, len(values)):
                values[i] += 1.2 * values[i - 1] - 0.8 * values[i - 2]
            z = np.array(values[10:])
        elif kind == "variance bursts":
            z = z[:n] * np.exp(autoregressive(rng, n, 0.98))
        elif kind == "slow level under noise":
            z = 0.5 * autoregressive(rng, n, 0.98) + z[:n]
        else:
            return Drawn(np.round(CALL_SECONDS * (1 + 0.02 * autoregressive(rng, n, 0.6)), 5))
        return Drawn(CALL_SECONDS * (1 + 0.02 * z[:n]))

    return Process(f"other {kind}", "other", draw, CALL_SECONDS, CALL_SECONDS, CALL_SECONDS)


def wandering(size: float, rho: float, slow_share: float) -> Process:
    """Return calls as live ones are: a level that wanders, little noise, and a share of calls 5 to
    25 % slower, at random.
    """
    noise = 0.003

    def draw(rng: np.random.Generator, n: int) -> Drawn:
        levels = CALL_SECONDS * np.exp(size * autoregressive(rng, n, rho))
        slow = np.where(rng.random(n) < slow_share, 1 + rng.uniform(0.05, 0.25, n), 1.0)
        return Drawn(levels * (1 + noise * rng.standard_normal(n)) * slow, levels)

    name = f"other wandering {size:.1%} rho {rho} slow {slow_share:.0%}"
    return Process(name, "other", draw, math.nan, math.nan, math.nan, noise, slow_share=slow_share)


def catalogue() -> list[Process]:
    """Return all processes, the acceptance's families first."""
    shapes = ("normal", "lognormal")
    found = [
        correlated(rho, noise, shape)
        for rho in (0.0, 0.3, 0.6, 0.9)
        for noise in (0.02, 0.10)
        for shape in shapes
    ]
    found += [
        states(dwell, periodic=periodic)
        for dwell in (5, 20, 50, 100, 200, 500)
        for periodic in (False, True)
    ]
    found += [
        states(50, 0.005),
        states(100, 0.005),
        states(100, 0.05),
        states(50, 0.1),
        states(50, slow_share=0.3),
        states(100, slow_share=0.3),
    ]
    found += [
        drift("linear", 0.03, 0.02),
        drift("linear", 0.1, 0.02),
        drift("linear", -0.05, 0.02),
        drift("linear", 0.05, 0.1),
    ]
    found += [
        drift("saturating", 0.08, 0.02),
        drift("sine", 0.05, 0.02),
        drift("walk", 0.05, 0.02),
        drift("walk", 0.02, 0.1),
    ]
    found += [
        tails(kind) for kind in ("t2", "t3", "pareto", "spikes 2", "spikes 10", "lognormal 50 %")
    ]
    found += [
        interference("every", 10, 0.2, 0.02),
        interference("every", 3, 0.1, 0.02),
        interference("every", 50, 0.5, 0.02),
    ]
    found += [interference("part", 100, 0.15, 0.02), interference("part", 400, 0.1, 0.02)]
    found += [
        interference("sine", 20, 0.05, 0.1),
        interference("sine", 100, 0.05, 0.02),
        interference("sine", 300, 0.05, 0.02),
    ]
    found += [correlated(0.95, 0.02, "normal"), correlated(0.98, 0.02, "normal")]
    kinds = (
        "MA(8)",
        "AR(2) oscillating",
        "variance bursts",
        "slow level under noise",
        "coarse ticks",
    )
    found += [other(kind) for kind in kinds]
    return [
        *found,
        wandering(0.01, 0.995, 0.1),
        wandering(0.015, 0.999, 0.1),
        wandering(0.015, 0.999, 0.25),
        *(ticking(ticks, noise) for ticks in (2.37, 5.01) for noise in (0.0, 0.02)),
    ]
