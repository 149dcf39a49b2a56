"""An all-reduce over this machine's own links, and what observing costs; docs/measurements.md states
the second.

Run: ``.venv/bin/python benchmarks/collectives.py [--seconds 10]``.
"""

from __future__ import annotations

import argparse
import statistics
import time

import gpulab as gl
from gpulab import devices
from gpulab.evidence import Evidence


def plain(seconds: float) -> None:
    """Sweep the all-reduce over this machine's own links."""
    for n in (2, 4):
        with gl.parallel.cluster(n, timeout_seconds=60) as ranks:
            swept = gl.parallel.sweep(ranks, "all_reduce", deadline=seconds)
        fitted = swept.fit()
        latency, bandwidth = gl.models.collective_message(
            "all_reduce",
            n,
            "ring",
            latency_seconds=fitted.latency_seconds,
            bandwidth_bytes_per_second=fitted.bandwidth_bytes_per_second,
        )
        print(
            f"{swept!r}; fit {fitted!r}; a message {1e6 * latency:.0f} us, {bandwidth / 1e6:.0f} "
            "MB/s"
        )


def _operator_seconds(calls: int) -> float:
    import torch

    x = torch.ones(4)
    begin = time.perf_counter()
    for _ in range(calls):
        x + 1
    return (time.perf_counter() - begin) / calls


def observing() -> None:
    """Time a small operator observed and not, in turns."""
    rounds: list[tuple[float, float]] = []
    for _ in range(40):
        alone = _operator_seconds(1000)
        with gl.parallel.observe():
            rounds.append((alone, _operator_seconds(1000)))
    alone, seen = (statistics.median(column) for column in zip(*rounds, strict=True))
    print(
        f"an operator of torch: {1e6 * alone:.1f} us alone, {1e6 * seen:.1f} us observed (medians "
        f"of {len(rounds)} turns)"
    )


def main() -> None:
    """Run both parts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0)
    given = parser.parse_args()
    print(Evidence.measured(devices.find("cpu").name).sentence)
    plain(given.seconds)
    observing()


if __name__ == "__main__":
    main()
