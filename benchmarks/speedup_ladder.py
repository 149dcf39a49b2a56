"""The speed-up ladder on this machine: its figures, whether they come again, and what threads cost
beside busy neighbours.

    python benchmarks/speedup_ladder.py                   the ladder of notebook 09, twice
    python benchmarks/speedup_ladder.py --neighbours 2    the script on one thread and on all,
                                                          beside so many busy processes

Prints Markdown; ``docs/measurements.md`` has the figures.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time

from gpulab import devices, training
from gpulab.units import format_ratio

SAMPLES = 6400


def ladders(times: int) -> None:
    """Climb so many times; print every technique's three gains of each."""
    for number in range(times):
        begin = time.perf_counter()
        found = training.ladder(
            "digits-cnn",
            [
                one
                for one in training.techniques()
                if one.name != "compile" or not devices.default().is_cpu
            ],
            samples=SAMPLES,
        )
        seconds = time.perf_counter() - begin
        print(f"\n### Climb {number + 1}: {found.evidence.sentence}, {seconds:.0f} s\n")
        print(
            "| technique | vs previous rung | alone | all vs all but this | accuracy "
            "|\n|---|---|---|---|---|"
        )
        for rung in found.rungs:
            print(
                f"| {rung.title} | {rung.gain} | {rung.alone} | {rung.removed} | {rung.learned} |"
            )
        for one in found.left_out:
            if one.alone is not None:
                print(f"| {one.title} (not climbed) | | {one.alone} | | |")
        print(
            f"\n{found.sentence} The product over the combination: {found.overstated}, "
            f"{found.overstated.verdict}."
        )


def _busy(until: float) -> None:
    while time.time() < until:
        sum(range(1000))


def threads(neighbours: int, steps: int = 60) -> None:
    """Print how long a step of the script takes on one thread and on all, in turns, beside busy
    processes.
    """
    import numpy as np
    import torch

    everything = torch.get_num_threads()
    runs = {
        count: training.Run("digits-cnn", device="cpu", **training.START, steps=10_000)
        for count in (1, everything)
    }
    for count, run in runs.items():
        torch.set_num_threads(count)
        run.advance(4)
    others = [
        multiprocessing.Process(target=_busy, args=(time.time() + 600,), daemon=True)
        for _ in range(neighbours)
    ]
    for other in others:
        other.start()
    for _ in range(steps):
        for count, run in runs.items():
            torch.set_num_threads(count)
            run.advance(1)
    for other in others:
        other.terminate()
    one, every = (float(np.median(run.step_seconds[-steps:])) for run in runs.values())
    print(f"{neighbours} busy neighbours, a step of the script: {1e3 * one:.2f} ms on one thread,")
    print(f"{1e3 * every:.2f} ms on {everything}: {format_ratio(every / one)} as long")


def main() -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--neighbours", type=int, default=None)
    parser.add_argument("--times", type=int, default=2)
    asked = parser.parse_args()
    ladders(asked.times) if asked.neighbours is None else threads(asked.neighbours)


if __name__ == "__main__":
    main()
