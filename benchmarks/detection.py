"""What ``gl.measure`` detects: a table of faults, the note that each must get, how often it got the
note, and how often a clean run got one.

Scripted: seeded runs on a clock and machine counters that exist only here, so that every
disturbance has a known size (5 % and more; rates are above 1.1 times their ceiling by as much).
Live: real faults on this machine.

    python benchmarks/detection.py                  both, in full (about 10 minutes; the machine
                                                    must be quiet)
    python benchmarks/detection.py --quick          a tenth of it
    python benchmarks/detection.py --scripted-only
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import signal

import numpy as np
from _faults_live import LIVE, live_clean
from _faults_scripted import CLEAN, SCRIPTED

from gpulab.evidence import Note
from gpulab.timing import Measurement

ALARMS = {
    "implausible",
    "unstable",
    "contended",
    "stalled",
    "throttled",
    "warm-cache",
    "slow-first-call",
}

# The smallest disturbance that must be caught. If a clean run's own pace changed by more, a note
# about it is no false alarm.
MOVED = 0.05


def codes(outcome: Measurement | list[Note]) -> set[str]:
    """Return the codes of the notes."""
    return {note.code for note in (outcome.notes if isinstance(outcome, Measurement) else outcome)}


def run_scripted(runs: int, first_seed: int = 0) -> dict[str, float]:
    """Return the share of each fault's runs that got the right note, and the share of the clean
    runs that got any note of ``ALARMS``.
    """
    shares = {}
    for name, (make, code) in SCRIPTED.items():
        shares[name] = sum(code in codes(make(first_seed + seed)) for seed in range(runs)) / runs
    for name, make in CLEAN.items():
        shares[name] = (
            sum(bool(ALARMS & codes(make(first_seed + seed))) for seed in range(runs)) / runs
        )
    return shares


def run_live(runs: int, clean_runs: int) -> dict[str, float | None]:
    """Return the share of each fault's runs that got its note (None if the fault cannot be made
    here), and the share of clean runs with an alarm.
    """
    shares: dict[str, float | None] = {}
    for name, (make, code) in LIVE.items():
        outcomes = [make(seed) for seed in range(runs)]
        known = [outcome for outcome in outcomes if outcome is not None]
        shares[name] = (
            sum(code in codes(outcome) for outcome in known) / len(known) if known else None
        )
        print(f"  {name:32s} -> {code:16s} {_share(shares[name])}", flush=True)
    alarms: dict[str, int] = {}
    disturbed = steady = 0
    moves = []
    for seed in range(clean_runs):
        outcome = live_clean(seed)
        found = ALARMS & codes(outcome)
        moves.append(pace_moved(outcome))
        disturbed += bool(found)
        steady += bool(found) and moves[-1] < MOVED
        for code in found:
            alarms[code] = alarms.get(code, 0) + 1
    shares["clean"], shares["clean and steady"] = disturbed / clean_runs, steady / clean_runs
    print(f"  {'clean':32s} -> {'any alarm':16s} {_share(shares['clean'])}  {alarms or ''}")
    print(
        f"  {'clean, and the pace stood still':32s} -> {'any alarm':16s} "
        f"{_share(shares['clean and steady'])}"
    )
    spread = ", ".join(f"{100 * value:.0f} %" for value in np.quantile(moves, (0.1, 0.5, 0.9)))
    print(
        "  slowest over fastest eighth of a clean run, by its median, less one: 10th, 50th and "
        f"90th percentile {spread}",
        flush=True,
    )
    return shares


def pace_moved(measurement: Measurement) -> float:
    """Return by what share the median of the slowest eighth of the samples, in their order in time,
    is above that of the fastest eighth.
    """
    eighths = [float(np.median(part)) for part in np.array_split(measurement.samples_seconds, 8)]
    return max(eighths) / min(eighths) - 1


def _share(value: float | None) -> str:
    return (
        "cannot be made on this machine (scripted above)"
        if value is None
        else f"{100 * value:6.1f} %"
    )


def main() -> None:
    """Run both parts and print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a tenth of the runs")
    parser.add_argument("--scripted-only", action="store_true")
    parser.add_argument("--live-only", action="store_true")
    parser.add_argument("--seed", type=int, default=0, help="the first seed of the scripted runs")
    parser.add_argument("--json", type=pathlib.Path, help="also write the shares to this file")
    options = parser.parse_args()
    part = 10 if options.quick else 1
    shares: dict[str, dict[str, float | None]] = {}
    if not options.live_only:
        runs = 1000 // part
        print(f"scripted, {runs} seeded runs each (right note given; for clean ones: any alarm)")
        shares["scripted"] = {**run_scripted(runs, options.seed)}
        for name, value in shares["scripted"].items():
            print(
                f"  {name:32s} -> {SCRIPTED[name][1] if name in SCRIPTED else 'any alarm':16s} "
                f"{_share(value)}"
            )
    if not options.scripted_only:
        print(f"live, {30 // part} runs of each fault and {100 // part} clean ones")
        if hasattr(signal, "SIGSTOP") and hasattr(os, "sched_setaffinity"):
            shares["live"] = run_live(30 // part, 100 // part)
        else:
            print("  skipped: this system has no SIGSTOP or lets nobody pin a process to a core")
    if options.json is not None:
        options.json.write_text(json.dumps(shares, indent=1))


if __name__ == "__main__":
    main()
