"""All strategies on real ranks: how far their results are from one process's, what they hold and
send, and where the time goes.

    python benchmarks/strategies.py             at 2 and 4 ranks
    python benchmarks/strategies.py --ranks 2   at 2

Each strategy trains a transformer of four layers on the characters of the course's prose for 20
steps of Adam, from the same weights and on the same whole batches: once in float64 for the
comparison, and once in float32 for everything else. Seconds depend on the machine at that moment;
bytes are exact. The exit status is 1 if a difference is above ``MOST``.
"""

from __future__ import annotations

import argparse
import sys

import torch

import gpulab as gl
from gpulab.units import format_bytes, format_seconds

BATCH, MICROBATCHES = 16, 4
MOST = {"float64": 1e-9, "float32": 1e-3}  # the largest difference of losses and of parameters


def model() -> torch.nn.Module:
    """Return the model that every strategy trains."""
    torch.manual_seed(0)
    vocabulary = int(gl.training.task("prose-transformer").train.inputs.max()) + 1
    return gl.networks.transformer(vocabulary, width=64, heads=4, layers=4, context=64)


def measure(ranks: gl.parallel.Ranks, strategy: str) -> bool:
    """Train with a strategy and print its line of the table; return whether both dtypes agree with
    one process.
    """
    options = {"model": model(), "batch_size": BATCH, "microbatches": MICROBATCHES}
    exact = gl.parallel.train(ranks, strategy, dtype="float64", **options)
    plain = gl.parallel.train(ranks, strategy, **options)
    most = [
        max(report.most_by_category.get(name, 0) for report in plain.reports)
        for name in ("parameters", "gradients", "optimizer")
    ]
    peak = max(report.peak_bytes for report in plain.reports)
    sent = max(range(ranks.n), key=lambda rank: plain.reports[rank].ring_bytes)
    report = plain.reports[sent]
    seconds = plain.seconds(sent)
    overlap = plain.timeline.overlap_seconds(sent) / len(plain.timeline.steps)
    cells = [
        f"{strategy}, {ranks.n}",
        f"{exact.loss_difference:.0e}, {exact.state_difference:.0e}",
        f"{plain.loss_difference:.0e}, {plain.state_difference:.0e}",
        ", ".join(format_bytes(value) for value in most),
        format_bytes(peak),
        f"{sum(report.calls.values())}: {format_bytes(sum(report.payload_bytes.values()))}",
        format_bytes(report.ring_bytes),
        ", ".join(format_seconds(seconds[kind]) for kind in gl.parallel.KINDS)
        + f"; {format_seconds(overlap)}",
    ]
    print("| " + " | ".join(cells) + " |", flush=True)
    return all(
        each.loss_difference <= MOST[dtype] and each.state_difference <= MOST[dtype]
        for dtype, each in (("float64", exact), ("float32", plain))
    )


def main() -> int:
    """Print the table; return 1 if a strategy's results are not one process's."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, nargs="*", default=[2, 4])
    parser.add_argument("--strategies", nargs="*", default=list(gl.parallel.strategies()))
    given = parser.parse_args()
    print(
        "| strategy, ranks | float64: losses, parameters differ by | float32 | parameters, "
        "gradients, optimizer at most | peak | collectives a step: payload | sent as rings "
        "| compute, communication, idle; beside compute |"
    )
    print("|---" * 8 + "|")
    wrong = []
    for count in given.ranks:
        with gl.parallel.cluster(count, timeout_seconds=60) as ranks:
            for strategy in given.strategies:
                if not measure(ranks, strategy):
                    wrong.append(f"{strategy} on {count}")
    if wrong:
        print(f"above {MOST}: {', '.join(wrong)}")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
