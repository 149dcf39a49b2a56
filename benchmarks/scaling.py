"""How a training step scales over real ranks, compared with its prediction, and how the global
batch affects learning.

python benchmarks/scaling.py    two ranks, three runs of each (three minutes on two quiet cores)
python benchmarks/scaling.py --ranks 4 --runs 1
python benchmarks/scaling.py --only batch          the global batch alone
"""

from __future__ import annotations

import argparse
import functools
from typing import Any

import torch

from gpulab import parallel, training

CASES: dict[str, dict[str, Any]] = {
    "strong": {}, "weak": {"mode": "weak"}, "strong, timed wait of 40 ms": {"wait_seconds": 0.04},
    "weak, timed wait of 40 ms": {"mode": "weak", "wait_seconds": 0.04},
}  # fmt: skip


def steps(ranks: int, runs: int, model: str, deadline: float) -> None:
    """Print measured and predicted steps for each run."""
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


def sgd(rate: float, start: float, steps: int, parameters: Any) -> torch.optim.Optimizer:
    """Return SGD whose learning rate rises from ``start`` to ``rate`` in equal parts over steps."""
    optimizer = torch.optim.SGD(parameters, lr=rate, momentum=0.9)
    if steps:
        warm_up = torch.optim.lr_scheduler.LinearLR(optimizer, start / rate, total_iters=steps)
        optimizer.register_step_post_hook(lambda *arguments: warm_up.step())
    return optimizer


def batch(seeds: int, each: int = 16, rate: float = 0.03) -> None:
    """Print what the global batches of several ranks learned under each rule for the rate."""
    torch.set_num_threads(1)
    sizes = [each * ranks for ranks in (1, 4, 8, 16, 32)]
    task = training.task("digits-mlp")
    items = len(task.train)
    print(f"\n| {seeds} seeds, 5 epochs | " + " | ".join(map(str, sizes)) + " |")
    print("|---" * (1 + len(sizes)) + "|")
    for rule in ("unchanged", "linear", "linear with warm-up"):
        cells = []
        for size in sizes:
            scaled = rate if rule == "unchanged" else rate * size / each
            steps = items // size if "warm-up" in rule and size > each else 0
            optimizer = functools.partial(sgd, scaled, rate, steps)
            options = {"epochs": 5, "batch_size": size, "optimizer": optimizer, "device": "cpu"}
            models = [task.make_model(seed) for seed in range(seeds)]
            for seed, model in enumerate(models):
                training.fit(task, model=model, seed=seed, **options)
            found = training.evaluate_models(models, task)
            low, high = found.interval
            cells.append(f"{100 * found.mean:.1f} % [{100 * low:.1f}, {100 * high:.1f}]")
        print(f"| {rule} | " + " | ".join(cells) + " |")


def main() -> None:
    """Measure and print both parts, or the one that ``--only`` names."""
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
