"""The speed-up ladder on this machine: its figures, whether they repeat, and how threads slow down
beside other busy processes.

    python benchmarks/speedup_ladder.py                   the ladder of notebook 09, twice; on a GPU
                                                          with torch.compile, which the
                                                          notebook leaves out
    python benchmarks/speedup_ladder.py --neighbours 2    the script on one thread and on all,
                                                          beside two busy processes
    python benchmarks/speedup_ladder.py --product         how often the interval of multiplied gains
                                                          contains the true product (simulated)

Prints Markdown; ``docs/measurements.md`` has the figures.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import time

import numpy as np
import processes

from gpulab import devices, training
from gpulab.timing.statistics import median_interval, product_interval
from gpulab.units import format_ratio

SAMPLES = 6400


def ladders(times: int) -> None:
    """Climb the ladder ``times`` times; print the three gains of each technique each time."""
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


def products(runs: int = 400) -> None:
    """Print how often the interval of a product of gains contains the true product, and how wide it
    is: for our interval, and for that of the median of the turns' products.

    The time of each form is the script's divided by the form's gain, with noise of 5 % and
    autocorrelation rho; a share of the times is 1.5 to 6 times as long.
    """
    print("| gains, turns | disturbed | rho | ours | high / low | turns' products | high / low |")
    print("|---|---|---|---|---|---|---|")
    rng = np.random.default_rng(2026)
    for (gains, turns), share, rho in itertools.product(
        ((3, 25), (6, 40), (6, 100), (6, 300)), (0.0, 0.05, 0.15), (0.0, 0.7)
    ):
        truth, shape, found = np.linspace(1.05, 1.6, gains), (gains + 1, turns), []
        for _ in range(runs):
            noise = np.array([processes.autoregressive(rng, turns, rho) for _ in range(gains + 1)])
            longer = np.where(rng.random(shape) < share, rng.uniform(1.5, 6, shape), 1.0)
            script, *forms = longer * np.exp(0.05 * noise)
            factors = truth[:, None] * script / np.array(forms)
            found.append((product_interval(factors), median_interval(factors.prod(axis=0))[0]))
        low, high = np.transpose(found)
        covered = np.mean((low <= truth.prod()) & (high >= truth.prod()), axis=1)
        ours, theirs = (
            f"{part:.1%} | {width:.2f}"
            for part, width in zip(covered, np.median(high / low, axis=1), strict=True)
        )
        print(f"| {gains}, {turns} | {share:.0%} | {rho} | {ours} | {theirs} |", flush=True)


def _busy(until: float) -> None:
    while time.time() < until:
        sum(range(1000))


def threads(neighbours: int, steps: int = 60) -> None:
    """Print how long a step of the script takes on one thread and on all, in turns, beside busy
    processes.
    """
    import torch

    everything = torch.get_num_threads()
    if everything == 1:
        raise SystemExit("speedup_ladder: --neighbours compares threads, and PyTorch has only one.")
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
    parser.add_argument("--product", action="store_true")
    asked = parser.parse_args()
    if asked.product:
        products()
    elif asked.neighbours is None:
        ladders(asked.times)
    else:
        threads(asked.neighbours)


if __name__ == "__main__":
    main()
