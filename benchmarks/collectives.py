"""What gloo puts on the wire, what links of a set bandwidth give, and what observing costs: the numbers of docs/measurements.md.

Run: ``.venv/bin/python benchmarks/collectives.py [--calls 400] [--seconds 10]``. Links need Linux and root; without, that part says why.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time

import gpulab as gl
from gpulab import devices, models
from gpulab.evidence import Evidence

_LARGEST_LOG2 = 22.5  # elements: 24 MB of float32
_PARTS = ("all_gather", "reduce_scatter", "gather", "scatter", "all_to_all")


def counted_calls(cases: list[tuple[str, int, int]]) -> list[int]:
    """In a rank: the bytes that this rank's sockets send for each (operation, elements, root)."""
    from gpulab.parallel import _sweep_step

    return [_sweep_step.sent_bytes(operation, elements, root)[0] or 0 for operation, elements, root in cases]


def exact(calls: int) -> None:
    """Compare random calls of all operations with ``gloo_wire_bytes``, on 2, 3 and 4 ranks."""
    for n in (2, 3, 4):
        rng = random.Random(n)
        cases = []
        while len(cases) < calls:
            operation = rng.choice([name for name in models.GLOO_ALGORITHMS if name != "barrier"])
            elements = int(2 ** rng.uniform(0, _LARGEST_LOG2))
            cases.append((operation, max(elements // n, 1) * n if operation in _PARTS else elements, rng.randrange(n)))
        with gl.parallel.cluster(n, timeout_seconds=60) as ranks:
            by_rank = ranks.run(counted_calls, cases)
        wrong = sum(
            tuple(sent[i] for sent in by_rank) != models.gloo_wire_bytes(operation, elements, n, root=root)
            for i, (operation, elements, root) in enumerate(cases)
        )
        print(f"{n} ranks: {calls} random calls of all operations, up to 24 MB: {wrong} differ from the model in any byte of any rank")


def limited(seconds: float) -> None:
    """Set bandwidths and measure them by the all-reduce's alpha-beta fit."""
    reason = gl.parallel.links_reason()
    if reason is not None:
        print(f"links: not measured, {reason}")
        return
    for n in (2, 4):
        with gl.parallel.cluster(n, timeout_seconds=60) as ranks:
            for rate in (5e6, 20e6, 50e6, 100e6):
                sizes = [int(rate * share) for share in (0.01, 0.02, 0.04, 0.08)]
                with gl.parallel.links(ranks, rate):
                    swept = gl.parallel.sweep(ranks, "all_reduce", sizes=sizes, deadline=seconds)
                _, bandwidth = swept.message()
                print(f"{n} ranks, links set to {rate / 1e6:.0f} MB/s: the fit of the all-reduce gives {bandwidth / 1e6:.1f} MB/s")


def plain(seconds: float) -> None:
    """Sweep the all-reduce over this machine's own links."""
    for n in (2, 4):
        with gl.parallel.cluster(n, timeout_seconds=60) as ranks:
            swept = gl.parallel.sweep(ranks, "all_reduce", deadline=seconds)
        fitted = swept.fit()
        latency, bandwidth = swept.message(fitted)
        print(f"{swept!r}; fit {fitted!r}; a message {1e6 * latency:.0f} us, {bandwidth / 1e6:.0f} MB/s")


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
    print(f"an operator of torch: {1e6 * alone:.1f} us alone, {1e6 * seen:.1f} us observed (medians of {len(rounds)} turns)")


def main() -> None:
    """Run all parts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=400)
    parser.add_argument("--seconds", type=float, default=10.0)
    given = parser.parse_args()
    print(Evidence.measured(devices.find("cpu").name).sentence)
    exact(given.calls)
    limited(given.seconds)
    plain(given.seconds)
    observing()


if __name__ == "__main__":
    main()
