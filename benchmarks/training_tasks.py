"""What the tasks reach: accuracy over five seeds and test items, seconds a run, and what pruning and few bits cost.

``python benchmarks/training_tasks.py [TASK ...]`` prints one row a task and means; a few minutes on two cores.
"""

from __future__ import annotations

import copy
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.utils import prune

from gpulab import training

SEEDS = 5
SHARES = (0.5, 0.8, 0.9)
BITS = (4, 3)


def pruned(model: Any, share: float) -> Any:
    """Return a copy with the smallest weights of convolutions and linear layers set to zero, over all layers together."""
    model = copy.deepcopy(model)
    layers = [(m, "weight") for m in model.modules() if isinstance(m, (torch.nn.Conv2d, torch.nn.Linear))]
    prune.global_unstructured(layers, pruning_method=prune.L1Unstructured, amount=share)
    return model


def rounded(model: Any, bits: int) -> Any:
    """Return a copy with each weight of convolutions and linear layers rounded to one of 2**bits - 1 steps, one scale a layer."""
    model = copy.deepcopy(model)
    most = 2 ** (bits - 1) - 1
    with torch.no_grad():
        for layer in model.modules():
            if isinstance(layer, (torch.nn.Conv2d, torch.nn.Linear)):
                scale = layer.weight.abs().max() / most
                layer.weight.copy_((layer.weight / scale).round().clamp(-most, most) * scale)
    return model


def main() -> None:
    """Print the table."""
    changes: dict[str, Callable[[Any], Any]] = {f"{share:.0%} pruned": lambda m, s=share: pruned(m, s) for share in SHARES}
    changes |= {f"weights in {bits} bits": lambda m, b=bits: rounded(m, b) for bits in BITS}
    for name in sys.argv[1:] or training.tasks():
        job = training.task(name)
        models = [job.make_model(seed) for seed in range(SEEDS)]
        seconds = []
        for seed, model in enumerate(models):
            begin = time.perf_counter()
            training.fit(job, model=model, seed=seed, device="cpu")
            seconds.append(time.perf_counter() - begin)
        print(f"{name}: trained {training.evaluate_models(models, job)}, {min(seconds):.1f} to {max(seconds):.1f} s a run", flush=True)
        for label, change in changes.items() if name.startswith("digits") else ():
            print(f"{name}: {label} {training.evaluate_models([change(m) for m in models], job)}", flush=True)


if __name__ == "__main__":
    main()
