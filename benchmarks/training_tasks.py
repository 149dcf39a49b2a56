"""What the tasks reach: accuracy over five seeds and test items, seconds per run, and the accuracy
that pruning, few bits and low precision cost.

python benchmarks/training_tasks.py [TASK ...]
    one row a task, pruning and few bits; a few minutes on two cores
python benchmarks/training_tasks.py --kept-in [TASK ...]
    training with weights kept in a short format, no float32 master weights
python benchmarks/training_tasks.py --naive-float16 [TASK ...]
    all in float16 with Adam, at five scales of the loss, and two remedies

A cost is the accuracy lost, in percentage points, against the same seed's model as trained in
float32, with a 95 % interval over the seeds.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn.utils import prune

from gpulab import training
from gpulab.timing.statistics import t_quantile

SEEDS = 5
SHARES = (0.5, 0.8, 0.9)
BITS = (4, 3, 2)
FORMATS = ("bfloat16", "float16", "float8_e4m3fn", "float8_e5m2")
SCALES = (1, 64, 256, 4096, 65536)
RESCUE_STEPS, FLOAT16_EPSILON = 30, 1e-4


def pruned(model: Any, share: float) -> Any:
    """Return a copy with the smallest weights of convolutions and linear layers set to zero, over
    all layers together.
    """
    model = copy.deepcopy(model)
    layers = [
        (m, "weight") for m in model.modules() if isinstance(m, (torch.nn.Conv2d, torch.nn.Linear))
    ]
    prune.global_unstructured(layers, pruning_method=prune.L1Unstructured, amount=share)
    return model


def rounded(model: Any, bits: int) -> Any:
    """Return a copy with each weight of convolutions and linear layers rounded to one of
    2**bits - 1 steps, with one scale per layer.
    """
    model = copy.deepcopy(model)
    most = 2 ** (bits - 1) - 1
    with torch.no_grad():
        for layer in model.modules():
            if isinstance(layer, (torch.nn.Conv2d, torch.nn.Linear)):
                scale = layer.weight.abs().max() / most
                layer.weight.copy_((layer.weight / scale).round().clamp(-most, most) * scale)
    return model


def with_inputs(model: Any, bits: int) -> Any:
    """Return a copy with weights in ``bits`` bits, whose layers also round their inputs to
    2**bits - 1 steps, with one scale per batch.
    """
    model, most = rounded(model, bits), 2 ** (bits - 1) - 1

    def round_inputs(layer: Any, inputs: tuple[Any]) -> Any:
        scale = inputs[0].abs().max().clamp_min(1e-30) / most
        return ((inputs[0] / scale).round() * scale,)

    for layer in model.modules():
        if isinstance(layer, (torch.nn.Conv2d, torch.nn.Linear)):
            layer.register_forward_pre_hook(round_inputs)
    return model


def kept_in(name: str, learning_rate: float) -> Callable[[Any], torch.optim.Optimizer]:
    """Return a factory of Adam optimizers that round each weight to a format after a step, as if no
    float32 master weights were kept.
    """
    dtype = getattr(torch, name)

    class Kept(torch.optim.Adam):
        def step(self, *given: Any, **named: Any) -> Any:
            result = super().step(*given, **named)
            with torch.no_grad():
                for group in self.param_groups:
                    for weight in group["params"]:
                        # one rounding: the weights are float32, which contains each short format
                        weight.copy_(weight.to(dtype).float())
            return result

    return lambda parameters: Kept(parameters, lr=learning_rate)


def cost(before: Sequence[training.Accuracy], after: Sequence[training.Accuracy]) -> str:
    """Return the points lost, seed by seed, as a mean with its 95 % interval by Student's t."""
    lost = [100 * (a.ratio - b.ratio) for a, b in zip(before, after, strict=True)]
    mean, half = (
        statistics.mean(lost),
        t_quantile(len(lost) - 1) * statistics.stdev(lost) / len(lost) ** 0.5,
    )
    return f"{mean:.1f} points [{mean - half:.1f}, {mean + half:.1f}]"


def trained(job: training.Task, **options: Any) -> tuple[list[Any], list[float]]:
    """Train a model for each seed; return them with the seconds of each run."""
    models, seconds = [job.make_model(seed) for seed in range(SEEDS)], []
    for seed, model in enumerate(models):
        begin = time.perf_counter()
        training.fit(job, model=model, seed=seed, device="cpu", **options)
        seconds.append(time.perf_counter() - begin)
    return models, seconds


def naive_float16(name: str) -> None:
    """Print, for each seed, where a run all in float16 ends, what changes with an epsilon that
    float16 can represent, and how near autocast comes to float32.
    """
    job = training.task(name)

    def run(seed: int, precision: str, **options: Any) -> training.FitResult:
        return training.fit(
            job, seed=seed, device="cpu", steps=RESCUE_STEPS, precision=precision, **options
        )

    def ended(result: training.FitResult) -> str:
        return (
            f"nan at step {result.first_bad_step}"
            if result.first_bad_step is not None
            else result.ended
        )

    def adam(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.Adam(parameters, lr=job.learning_rate, eps=FLOAT16_EPSILON)

    print(
        f"| {name}, seed | naive, loss times {', '.join(map(str, SCALES))} | epsilon "
        f"{FLOAT16_EPSILON:g} | autocast, scaled | off float32 |"
    )
    print("|---|---|---|---|---|")
    for seed in range(SEEDS):
        full, rescued = run(seed, "float32"), run(seed, "float16")
        naive = [ended(run(seed, "pure-float16", loss_scale=scale)) for scale in SCALES]
        held = run(seed, "pure-float16", optimizer=adam)
        whole = len(rescued.losses) == RESCUE_STEPS
        off = (
            "at most "
            f"{max(abs(a - b) / b for a, b in zip(rescued.losses, full.losses, strict=True)):.2%}"
            if whole
            else "it ended before"
        )
        told = ", ".join(naive) if len(set(naive)) > 1 else f"each {naive[0]}"
        loss = f"loss {rescued.losses[0]:.2f} to {rescued.losses[-1]:.2f}"
        print(
            f"| {seed} | {told} | {ended(held)}, loss {held.losses[-1]:.2f} | {ended(rescued)}, "
            f"{loss} | {off} |",
            flush=True,
        )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tasks", nargs="*", metavar="TASK", default=training.tasks())
    parser.add_argument(
        "--kept-in", action="store_true", help="train with weights kept in short formats"
    )
    parser.add_argument(
        "--naive-float16",
        action="store_true",
        help="where a run all in float16 ends, and what rescues it",
    )
    arguments = parser.parse_args()
    if arguments.naive_float16:
        for name in arguments.tasks:
            naive_float16(name)
        return
    changes: dict[str, Callable[[Any], Any]] = {
        f"{share:.0%} pruned": lambda m, s=share: pruned(m, s) for share in SHARES
    }
    changes |= {f"weights in {bits} bits": lambda m, b=bits: rounded(m, b) for bits in BITS}
    changes |= {
        f"weights and inputs in {bits} bits": lambda m, b=bits: with_inputs(m, b) for bits in BITS
    }
    for name in arguments.tasks:
        job = training.task(name)
        models, seconds = trained(job)
        reached = training.evaluate_models(models, job)
        print(
            f"{name}: trained {reached}, {min(seconds):.1f} to {max(seconds):.1f} s a run",
            flush=True,
        )
        if arguments.kept_in:
            for form in FORMATS:
                found = training.evaluate_models(
                    trained(job, optimizer=kept_in(form, job.learning_rate))[0], job
                )
                print(
                    f"{name}: weights kept in {form} {found}, "
                    f"{cost(reached.accuracies, found.accuracies)} lost",
                    flush=True,
                )
            continue
        for label, change in changes.items() if name.startswith("digits") else ():
            found = training.evaluate_models([change(m) for m in models], job)
            print(
                f"{name}: {label} {found}, {cost(reached.accuracies, found.accuracies)} lost",
                flush=True,
            )


if __name__ == "__main__":
    main()
