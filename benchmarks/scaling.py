"""How a training step scales over real ranks beside its prediction, and what the global batch does
to learning.

python benchmarks/scaling.py    two ranks, three runs of each (three minutes on two quiet cores)
python benchmarks/scaling.py --ranks 4 --runs 1
python benchmarks/scaling.py --only batch          the global batch alone
"""

from __future__ import annotations

import argparse
import time
from typing import Any

from gpulab import parallel

CASES: dict[str, dict[str, Any]] = {
    "strong": {}, "weak": {"mode": "weak"}, "strong, timed wait of 40 ms": {"wait_seconds": 0.04},
    "weak, timed wait of 40 ms": {"mode": "weak", "wait_seconds": 0.04},
}  # fmt: skip


def steps(ranks: int, runs: int, model: str, deadline: float) -> None:
    """Print measured and predicted steps, run after run."""
    print(
        f"| {model} | ranks | step, 95 % | predicted | speed-up, 95 % | link | notes "
        "|\n|---|---|---|---|---|---|---|"
    )
    with parallel.cluster(ranks, progress=lambda fraction, text: None) as group:
        for _ in range(runs):
            for name, options in CASES.items():
                found = parallel.scaling(group, model, deadline=deadline, **options)
                link = (
                    f"{1e6 * (found.latency_seconds or 0):.0f} us, "
                    f"{1e-9 * (found.bandwidth_bytes_per_second or 0):.2f} GB/s"
                )
                notes = ", ".join(note.code for note in found.notes) or "none"
                for p in found.points:
                    low, high = p.interval_seconds or (p.median_seconds, p.median_seconds)
                    least, most = (
                        curve.at(p.ranks).seconds if curve else 0.0
                        for curve in (found.overlapped, found.prediction)
                    )
                    gained = p.speedup_interval or (float("nan"), float("nan"))
                    step = f"{1e3 * p.median_seconds:.1f} ms [{1e3 * low:.1f}, {1e3 * high:.1f}]"
                    ratio = f"{p.speedup or 0:.2f} [{gained[0]:.2f}, {gained[1]:.2f}]"
                    expected = f"{1e3 * least:.1f} to {1e3 * most:.1f} ms"
                    print(
                        f"| {name} | {p.ranks} | {step} | {expected} | {ratio} | {link} | {notes} |",
                        flush=True,
                    )


def batch(seeds: int) -> None:
    """Print what each global batch learned under each rule."""
    begin = time.perf_counter()
    found = parallel.global_batch(seeds=seeds)
    print(
        f"\n{found.task}, {found.epochs} epochs, {found.optimizer}, {seeds} seeds, "
        f"{time.perf_counter() - begin:.0f} s"
    )
    print(
        "| learning rate | "
        + " | ".join(f"{row.global_batch}" for row in found.select(found.rules[0]))
        + " |"
    )
    print("|---" * (1 + len(found.select(found.rules[0]))) + "|")
    for rule in found.rules:
        cells = [
            f"{100 * row.accuracy.mean:.1f} % [{100 * row.accuracy.interval[0]:.1f}, "
            f"{100 * row.accuracy.interval[1]:.1f}]"
            for row in found.select(rule)
        ]
        print(f"| {rule} | " + " | ".join(cells) + " |")


def main() -> None:
    """Measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--model", default="mlp")
    parser.add_argument(
        "--deadline", type=float, default=6.0, help="seconds of sampling for each case"
    )
    parser.add_argument("--only", choices=("steps", "batch"))
    arguments = parser.parse_args()
    if arguments.only != "batch":
        steps(arguments.ranks, arguments.runs, arguments.model, arguments.deadline)
    if arguments.only != "steps":
        batch(arguments.seeds)


if __name__ == "__main__":
    main()
