"""The input pipeline's arithmetic against real runs, and what a limit on memory costs a training
step.

    python benchmarks/input_pipeline.py            # about two minutes
    python benchmarks/input_pipeline.py --quick

Each row is a real run of the loading (JPEG files, a ``DataLoader``). The accelerator is a timetable
of stated times in the run too, so its own errors are not tested: where it is the bottleneck, rules
and run agree by construction. "rules" replays the run: the arithmetic with the same loading times,
so the difference is what the rules leave out (handing batches over, waking up). "forecast" takes
the loading time of an earlier run without workers and the cores of the machine, so the difference
also includes the effect of other programs. The cost of a limit on memory is printed alone; no
document states it.
"""

from __future__ import annotations

import argparse
import statistics
import time

from gpulab import devices, memory, training
from gpulab.units import format_seconds


def compare_with_runs(steps: int) -> list[tuple[float, float]]:
    """Run, replay and forecast each combination of step time, workers and reading of losses; return
    the errors of replay and forecast for each.
    """
    cores = devices.environment("cpu").cores
    training.pipeline(steps=4)  # the files are encoded once
    errors = []
    print(f"{'workers':>7} {'step':>8} {'reads':>6} {'measured':>14} {'rules':>8} {'forecast':>9}")
    for step_seconds in (0.01, 0.04, 0.16):
        alone = training.pipeline(steps=steps, step_seconds=step_seconds).loading_seconds
        for workers in (0, 1, 2):
            for read_loss in (True, False):
                run = training.pipeline(
                    workers=workers,
                    steps=steps,
                    step_seconds=step_seconds,
                    read_loss=read_loss,
                    pinned=True,
                )
                rules = training.replay(run)
                forecast = training.model_pipeline(
                    alone,
                    step_seconds,
                    copy_seconds=run.copy_seconds,
                    workers=workers,
                    read_loss=read_loss,
                    pinned=True,
                    cores=cores,
                    steps=steps,
                )
                both = [
                    other.images_per_second / run.images_per_second - 1
                    for other in (rules, forecast)
                ]
                errors.append((both[0], both[1]))
                print(
                    f"{workers:7} {format_seconds(step_seconds):>8} "
                    f"{'yes' if read_loss else 'no':>6} {run.images_per_second:8.0f} img/s "
                    f"{both[0]:+8.1%} {both[1]:+9.1%}"
                )
    return errors


def cost_of_a_limit(repeats: int) -> None:
    """Time a training step inside and outside of ``memory.limit``, in turns."""
    import torch

    from gpulab import networks

    model = networks.cnn()
    optimizer = torch.optim.Adam(model.parameters())
    x, y = torch.rand(64, 1, 8, 8), torch.randint(0, 10, (64,))

    def step() -> float:
        begin = time.perf_counter()
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        return time.perf_counter() - begin

    block = memory.limit("8 GiB", "cpu")
    free, limited = [], []
    for _ in range(repeats):
        free.append(step())
        with block:
            limited.append(step())
    print(
        f"a training step of {type(model).__name__}: {format_seconds(min(free))}, inside a limit "
        f"{format_seconds(min(limited))} (shortest)"
    )


def main() -> None:
    """Run both parts; print the errors that docs/measurements.md states, and the cost of a limit."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="fewer steps")
    quick = parser.parse_args().quick
    errors = compare_with_runs(steps=10 if quick else 40)
    for name, values in zip(("rules", "forecast"), zip(*errors, strict=True), strict=True):
        absolute = [abs(value) for value in values]
        print(
            f"{name}: median error {statistics.median(absolute):.1%}, largest {max(absolute):.1%}"
        )
    cost_of_a_limit(20 if quick else 100)


if __name__ == "__main__":
    main()
