"""Coverage, refusals, cost and width of the sampler's intervals on synthetic processes, by an
injected clock.

    python benchmarks/interval_coverage.py [--runs 2000] [--seed 1] [--deadline 2.0] [--only TEXT]
    [--out FILE] [--quick]

Calls take 1 ms, and the virtual deadline is 2 s. ``cost`` is the ratio of the number of samples
taken to the number that an oracle, which knows the process's autocorrelation and density, would
need for an interval of the same width (mean over runs). ``strict`` is the coverage of the process's
own median where clock states switch: the acceptance counts any value between the two modes.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import time
import zlib
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from processes import catalogue

from gpulab.timing import statistics
from gpulab.timing.sampling import Limits, sample_in_turns

PROCESSES = catalogue()


class Replay:
    """A clock that moves only during calls, by the durations drawn, and shows whole ticks."""

    def __init__(self, durations_seconds: np.ndarray, tick_seconds: float = 0.0) -> None:
        self._durations = durations_seconds.tolist()
        self._tick = tick_seconds
        self._now = 0.0
        self.calls = 0

    def clock(self) -> float:
        """Return the time of the calls so far."""
        return self._now // self._tick * self._tick if self._tick else self._now

    def run(self, calls: int) -> tuple[float, float]:
        """Let ``calls`` calls pass; return the seconds that the clock shows, as both durations."""
        start, spent = self.clock(), sum(self._durations[self.calls : self.calls + calls])
        self.calls += calls
        self._now += spent
        shown = self.clock() - start if self._tick else spent
        return shown, shown


def one_process(task: tuple[int, int, int, float, float]) -> dict[str, object]:
    """Run one process of the catalogue, given by its index, many times; return its figures."""
    index, runs, seed, deadline, relative_width = task
    process = PROCESSES[index]
    covered = strict = refused = narrow = 0
    samples, widths, costs = [], [], []
    for run in range(runs):
        rng = np.random.default_rng([seed, zlib.crc32(process.name.encode()), run])
        drawn = process.draw(rng, int(3 * deadline / 1e-3))
        replay = Replay(drawn.durations_seconds, process.tick_seconds)
        limits = Limits(relative_width, deadline)
        (result,) = sample_in_turns([replay.run], replay.clock, [None], [math.inf], limits)
        n = len(result.samples_seconds)
        samples.append(n)
        narrow += result.stopped_by == "precision"
        if result.interval_seconds is None:
            refused += 1
            continue
        low, high = result.interval_seconds
        true_low, true_high = process.truth(drawn, n)
        covered += low <= true_high and high >= true_low
        strict += low <= process.median <= high
        width = (high - low) / float(np.median(result.samples_seconds))
        widths.append(width)
        if process.oracle_width is not None and width > 0:
            costs.append(n / (process.oracle_width / width) ** 2)
    given = max(runs - refused, 1)
    return {
        "process": process.name,
        "family": process.family,
        "runs": runs,
        "covered": covered / given,
        "strict": strict / given if process.family == "states" else None,
        "refused": refused / runs,
        "precise": narrow / runs,
        "samples": float(np.mean(samples)),
        "width": float(np.mean(widths)) if widths else math.nan,
        "cost": float(np.mean(costs)) if costs else None,
    }


def leave_far_test_out() -> None:
    """Let this process's intervals follow from the signs about the median alone."""
    statistics._FAR_HALF = 1.0


def verdict(row: dict) -> str:
    """Return which acceptance bounds a row violates, or "ok"."""
    faults = []
    if row["covered"] < 0.93:
        faults.append("covers less than 93 %")
    if row["refused"] > (0.02 if row["family"] == "independent" else 0.10):
        faults.append("refuses too often")
    if row["family"] in ("independent", "ar1"):
        if row["covered"] > 0.97:
            faults.append("covers more than 97 %")
        if row["cost"] is not None and row["cost"] > 1.3:
            faults.append("costs more than 1.3")
    return ", ".join(faults) or "ok"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--deadline", type=float, default=2.0)
    parser.add_argument("--relative-width", type=float, default=0.02)
    parser.add_argument("--only", default="", help="processes whose name contains this")
    parser.add_argument("--out", type=Path, default=None, help="JSON file for the figures")
    parser.add_argument(
        "--quick", action="store_true", help="100 runs of each, too few to trust a verdict"
    )
    parser.add_argument(
        "--without-far-test",
        action="store_true",
        help="the interval by the signs about the median alone, to compare",
    )
    parser.add_argument("--workers", type=int, default=1)
    args = parser.parse_args()
    runs = 100 if args.quick else args.runs
    tasks = [
        (i, runs, args.seed, args.deadline, args.relative_width)
        for i, p in enumerate(PROCESSES)
        if args.only in p.name
    ]
    begin = time.perf_counter()
    rows = []
    print(f"{'process':44s} covered strict refused precise samples  width   cost  verdict")
    prepare = leave_far_test_out if args.without_far_test else None
    with multiprocessing.Pool(args.workers, prepare) as pool:
        for row in pool.imap(one_process, tasks):
            rows.append(row)
            strict = "" if row["strict"] is None else f"{row['strict']:6.1%}"
            cost = "" if row["cost"] is None else f"{row['cost']:.2f}"
            print(
                f"{row['process']:44s} {row['covered']:6.1%} {strict:>6s} {row['refused']:7.1%} "
                f"{row['precise']:7.1%} {row['samples']:7.0f} {row['width']:7.2%} {cost:>5s}  "
                f"{verdict(row)}",
                flush=True,
            )
    bad = [row for row in rows if verdict(row) != "ok"]
    print(
        f"{len(rows) - len(bad)} of {len(rows)} processes within the bounds, {runs} runs each, "
        f"{time.perf_counter() - begin:.0f} s"
    )
    if args.out is not None:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        settings = {
            "runs": runs,
            "seed": args.seed,
            "deadline_seconds": args.deadline,
            "relative_width": args.relative_width,
        }
        args.out.write_text(json.dumps({**settings, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
