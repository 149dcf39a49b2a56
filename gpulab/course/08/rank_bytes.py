"""08.10: memory per rank."""

# %% exercise
id = "08.10"
title = "memory per rank"
answer_name = "rank_bytes"

# %% stub
def rank_bytes(parameters, activations, ranks, stage):
    """Return the bytes that each rank holds: float32, Adam, ZeRO stage 0 (none) to 3 (FSDP)."""
    ...

# %% hint
# Count the numbers for each parameter: itself, its gradient, and what Adam keeps. Which of them
# does a stage split over the ranks?

# %% hint
# Stage 1 divides Adam's two numbers by the ranks, stage 2 the gradients too, stage 3 also the
# parameters. And the activations?

# %% solution
def rank_bytes(parameters, activations, ranks, stage):
    """Return the bytes that each rank holds: float32, Adam, ZeRO stage 0 (none) to 3 (FSDP)."""
    state = 8 * parameters / (ranks if stage >= 1 else 1)
    gradients = 4 * parameters / (ranks if stage >= 2 else 1)
    weights = 4 * parameters / (ranks if stage >= 3 else 1)
    return weights + gradients + state + activations  # activations are each rank's own

# %% check
from typing import Any
from gpulab.lessons import checking
from gpulab.lessons.content import Refused
from gpulab.units import format_bytes, plural

_FLOAT = 4  # bytes of a float32
# (parameters, bytes of activations, ranks, stage); stage 1 first, since it shows best which part of a wrong answer is wrong.
_RUNS = (
    (1_200_000_000, 3_000_000_000, 8, 1),
    (1_200_000_000, 3_000_000_000, 8, 0),
    (1_200_000_000, 3_000_000_000, 8, 3),
    (1_200_000_000, 3_000_000_000, 8, 2),
    (64_000_000, 0, 64, 3),
    (1_000_000, 500_000, 1, 3),
)
_NAMES = ("no sharding", "ZeRO-1", "ZeRO-2", "ZeRO-3 (FSDP)")


def rank_bytes(parameters: int, activations: float, ranks: int, stage: int) -> float:
    """Return the bytes on a rank in float32 with Adam.

    Each parameter takes four numbers: itself, its gradient and Adam's two. The stage decides which of them are divided by ``ranks``.
    """
    state = 2 * _FLOAT * parameters / (ranks if stage >= 1 else 1)
    gradients = _FLOAT * parameters / (ranks if stage >= 2 else 1)
    weights = _FLOAT * parameters / (ranks if stage >= 3 else 1)
    return weights + gradients + state + activations


def mixed_bytes(parameters: int, activations: float, ranks: int, stage: int, gradient: int) -> float:
    """Return the bytes on a rank in mixed precision.

    Each parameter takes 2 bytes (bfloat16), its gradient ``gradient`` bytes, and Adam's two numbers with a float32 copy 12 bytes.
    """
    parts = ((12, 1), (gradient, 2), (2, 3))  # bytes for each parameter, and the first stage that splits them
    return activations + sum(nbytes * parameters / (ranks if stage >= first else 1) for nbytes, first in parts)


def check(answer: Any) -> str:
    ask = checking.in_turn(answer)
    for parameters, activations, ranks, stage in _RUNS:
        where = f"{parameters:,} parameters on {plural(ranks, 'rank')}, {_NAMES[stage]}"
        said = checking.number(ask(f"For {where}", parameters, activations, ranks, stage), "one number of bytes")
        right = rank_bytes(parameters, activations, ranks, stage)
        if _near(said, right):
            continue
        raise Refused(f"{where}: you say {said:,.0f} bytes. {_why_memory(said, parameters, activations, ranks, stage)}")
    whole, sharded = (rank_bytes(*_RUNS[0][:3], stage) for stage in (0, 3))
    return (
        f"1.2 billion parameters on 8 ranks: {format_bytes(whole)} a rank become {format_bytes(sharded)}, "
        f"and {format_bytes(_RUNS[0][1])} of that are activations that no stage splits."
    )


def _near(said: float, other: float) -> bool:
    """Whether two numbers of bytes differ by a cache line at most: a shard that is rounded up is right as well."""
    return abs(said - other) <= 64


def _why_memory(said: float, parameters: int, activations: float, ranks: int, stage: int) -> str:
    right = rank_bytes(parameters, activations, ranks, stage)
    model = right - activations
    if _near(said, right / _FLOAT) or _near(said, model / _FLOAT + activations):
        return "That is the count of numbers. A float32 takes 4 bytes."
    if _near(said, model):
        return "The activations are missing."
    if _near(said, model + activations / ranks):
        return "The activations are not sharded: each rank keeps all activations of its own part of the batch."
    if _near(said, rank_bytes(parameters, activations, ranks, 0)):
        return "Nothing is split yet. ZeRO-1 splits Adam's state, ZeRO-2 the gradients too, ZeRO-3 also the parameters."
    if _near(said, rank_bytes(parameters, activations, ranks, 3)):
        return f"With {_NAMES[stage]} not all of it is split. ZeRO-1: Adam's state; ZeRO-2: the gradients too; ZeRO-3: also the parameters."
    # Mixed precision with ZeRO-1 and float32 with ZeRO-2 both give 4 + 12 / ranks bytes a parameter.
    if stage == 1 and _near(said, mixed_bytes(parameters, activations, ranks, stage, 2)):
        return (
            "Do you count mixed precision, 2 bytes for a parameter, 2 for its gradient and 12 for Adam's two numbers and a float32 copy? "
            "Here everything is float32: 4, 4 and 8 bytes. Or do you split the gradients already? ZeRO-1 splits Adam's state only."
        )
    gradient = next((n for n in (2, 4) if _near(said, mixed_bytes(parameters, activations, ranks, stage, n))), None)
    if gradient is not None:
        return (
            f"That is mixed precision: 2 bytes for a parameter, {gradient} for its gradient, and 12 for Adam's two numbers and a float32 "
            "copy. Here everything is float32: 4 bytes for a parameter, 4 for its gradient, 8 for Adam."
        )
    if 0 < said < 1000:
        return "Return bytes, not GB."
    if _near(said, right * ranks):
        return f"That is {ranks} times too much. The check expects the bytes of one rank."
    for less, what in ((_FLOAT, "Adam keeps two numbers for each parameter, not one"), (2 * _FLOAT, "Adam's state is missing")):
        shard = ranks if stage >= 1 else 1
        if _near(said, right - less * parameters / shard):
            return f"{what}."
    # This shows with ZeRO-1 only. In the other stages a gradient has as many bytes as one number of Adam's state, so the loop above returns.
    if _near(said, right - _FLOAT * parameters):
        return "The gradients are missing: one number for each parameter."
    return "Each parameter takes four numbers: itself, its gradient and Adam's two. Which of them does this stage split?"

# %% wrong: not all of it is split
def rank_bytes(parameters, activations, ranks, stage):
    """Return the bytes that each rank holds: float32, Adam, ZeRO stage 0 (none) to 3 (FSDP)."""
    return 16 * parameters / ranks + activations

# %% wrong: not sharded
def rank_bytes(parameters, activations, ranks, stage):
    """Return the bytes that each rank holds: float32, Adam, ZeRO stage 0 (none) to 3 (FSDP)."""
    state = 8 * parameters / (ranks if stage >= 1 else 1)
    gradients = 4 * parameters / (ranks if stage >= 2 else 1)
    weights = 4 * parameters / (ranks if stage >= 3 else 1)
    return weights + gradients + state + activations / ranks

# %% wrong: mixed precision
def rank_bytes(parameters, activations, ranks, stage):
    """Return the bytes that each rank holds: float32, Adam, ZeRO stage 0 (none) to 3 (FSDP)."""
    state = 12 * parameters / (ranks if stage >= 1 else 1)
    gradients = 2 * parameters / (ranks if stage >= 2 else 1)
    weights = 2 * parameters / (ranks if stage >= 3 else 1)
    return weights + gradients + state + activations

# %% wrong: activations are missing
def rank_bytes(parameters, activations, ranks, stage):
    """Return the bytes that each rank holds: float32, Adam, ZeRO stage 0 (none) to 3 (FSDP)."""
    state = 8 * parameters / (ranks if stage >= 1 else 1)
    gradients = 4 * parameters / (ranks if stage >= 2 else 1)
    weights = 4 * parameters / (ranks if stage >= 3 else 1)
    return weights + gradients + state

# %% wrong: not one
def rank_bytes(parameters, activations, ranks, stage):
    """Return the bytes that each rank holds: float32, Adam, ZeRO stage 0 (none) to 3 (FSDP)."""
    state = 8 * parameters / (ranks if stage >= 1 else 1)
    gradients = 4 * parameters / (ranks if stage >= 2 else 1)
    weights = 4 * parameters / (ranks if stage >= 3 else 1)
    return weights + gradients + state / 2 + activations

# %% wrong: Adam's state is missing
def rank_bytes(parameters, activations, ranks, stage):
    """Return the bytes that each rank holds: float32, Adam, ZeRO stage 0 (none) to 3 (FSDP)."""
    state = 8 * parameters / (ranks if stage >= 1 else 1)
    gradients = 4 * parameters / (ranks if stage >= 2 else 1)
    weights = 4 * parameters / (ranks if stage >= 3 else 1)
    return weights + gradients + activations

# %% wrong: gradients are missing
def rank_bytes(parameters, activations, ranks, stage):
    """Return the bytes that each rank holds: float32, Adam, ZeRO stage 0 (none) to 3 (FSDP)."""
    state = 8 * parameters / (ranks if stage >= 1 else 1)
    gradients = 4 * parameters / (ranks if stage >= 2 else 1)
    weights = 4 * parameters / (ranks if stage >= 3 else 1)
    return weights + state + activations

# %% wrong: Nothing is split yet
def rank_bytes(parameters, activations, ranks, stage):
    """Return the bytes that each rank holds: float32, Adam, ZeRO stage 0 (none) to 3 (FSDP)."""
    return 16 * parameters + activations

# %% wrong: plain number
def rank_bytes(parameters, activations, ranks, stage):
    """Return the bytes that each rank holds: float32, Adam, ZeRO stage 0 (none) to 3 (FSDP)."""
    return 'less'


# %% wrong: A float32 takes 4 bytes
def rank_bytes(parameters, activations, ranks, stage):
    """Return the bytes that each rank holds: float32, Adam, ZeRO stage 0 (none) to 3 (FSDP)."""
    state = 2 * parameters / (ranks if stage >= 1 else 1)
    gradients = parameters / (ranks if stage >= 2 else 1)
    weights = parameters / (ranks if stage >= 3 else 1)
    return weights + gradients + state + activations
