"""06.12: train within a budget."""

# %% exercise
id = "06.12"
title = "train within a budget"
answer_name = "techniques"
limit_seconds = 60.0
loads = ["torch", "torch.optim", "torch._dynamo", "torch._inductor", "torch.utils.data", "torch.utils.flop_counter"]

# %% stub
techniques = {"accumulate": ..., "checkpoint": ..., "precision": ...}

# %% hint
# Activations grow with the windows that are computed at once. A quarter of the batch needs about a
# quarter of the activations.

# %% hint
# Half precision stores an activation in two bytes instead of four. Checkpointing keeps only the
# activations between the layers.

# %% hint
# One technique alone is not enough here; four parts and one more technique are. gl.memory.predict
# shows the peak before you run anything.

# %% solution
techniques = {"accumulate": 4, "checkpoint": True, "precision": "float32"}

# %% check
import functools
from collections.abc import Mapping
from typing import Any
from gpulab import memory, training
from gpulab.lessons import checking
from gpulab.lessons.content import NotAttempted, Refused
from gpulab.units import format_bytes

_MIB = 2**20
TASK, BATCH, BUDGET_BYTES, MOST_PARTS = "prose-transformer", 256, 30 * _MIB, 4
_PRECISIONS = ("float32", "bfloat16", "float16")


@functools.cache
def predicted_peak_bytes(part: int, checkpoint: bool, precision: str) -> int:
    """Return the peak memory of a training step of the notebook's transformer on ``part`` windows, as ``memory.predict`` gives it for a CPU."""
    import torch

    task = training.task(TASK)
    inputs, targets = task.train[list(range(part))]

    def loss(scores: Any, wanted: Any) -> Any:
        return torch.nn.functional.cross_entropy(scores.flatten(0, -2), wanted.flatten())

    model = task.make_model()
    found = memory.predict(model, inputs, targets=targets, loss=loss, checkpoint=checkpoint, precision=precision, device="cpu")
    return found.peak_bytes


def check(answer: Any) -> str:
    if not isinstance(answer, Mapping) or set(answer) != {"accumulate", "checkpoint", "precision"}:
        raise Refused(
            f'Your answer is {checking.describe(answer)}; the check expects {{"accumulate": ..., "checkpoint": ..., "precision": ...}}.'
        )
    if any(checking.is_stub(value) for value in answer.values()):
        raise NotAttempted
    parts, checkpoint, precision = (checking.plain(answer[name]) for name in ("accumulate", "checkpoint", "precision"))
    if isinstance(parts, bool) or not isinstance(parts, int) or not 1 <= parts <= MOST_PARTS:
        raise Refused(f"accumulate is {checking.describe(parts)}; the batch may be cut into 1 to {MOST_PARTS} parts here.")
    if not isinstance(checkpoint, bool):
        raise Refused(f"checkpoint is {checking.describe(checkpoint)}; it is True or False.")
    if not isinstance(precision, str) or precision not in _PRECISIONS:
        raise Refused(f"precision is {checking.describe(precision)}; it is one of {', '.join(_PRECISIONS)}.")
    part = -(-BATCH // parts)
    needed = predicted_peak_bytes(part, checkpoint, precision)
    said = f"Parts of {part} windows, {precision}, {'with' if checkpoint else 'without'} checkpointing need {format_bytes(needed)}"
    if needed > BUDGET_BYTES:
        more = "one technique alone is not enough; add a second." if (parts > 1) + checkpoint + (precision != "float32") == 1 else (
            "nothing is saved yet." if parts == 1 and not checkpoint and precision == "float32" else "cut the batch into more parts."
        )  # fmt: skip
        raise Refused(f"{said}, and the budget is {format_bytes(BUDGET_BYTES)}: {more}")
    return f"{said} (MODELLED), within the budget of {format_bytes(BUDGET_BYTES)}, and every update still learns from {BATCH} windows."

# %% wrong: add a second
techniques = {"accumulate": 4, "checkpoint": False, "precision": "float32"}

# %% wrong: more parts
techniques = {"accumulate": 1, "checkpoint": True, "precision": "bfloat16"}

# %% wrong: 1 to 4 parts
techniques = {"accumulate": 16, "checkpoint": False, "precision": "float32"}

# %% wrong: nothing is saved yet
techniques = {"accumulate": 1, "checkpoint": False, "precision": "float32"}

# %% wrong: it is one of
techniques = {"accumulate": 4, "checkpoint": True, "precision": "half"}

# %% wrong: checkpoint is a str ('all'); it is True or False
techniques = {"accumulate": 4, "checkpoint": "all", "precision": "float32"}
