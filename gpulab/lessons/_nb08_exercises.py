"""The exercises of notebook 08 that need no ranks: a pipeline's bubble, the memory of a sharded model, and a hang to diagnose."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from gpulab.lessons import _guard
from gpulab.lessons._nb08_timelines import CASES, NAMES, RANKS
from gpulab.lessons.content import Exercise, NotAttempted, Refused, Usual
from gpulab.models import pipeline_schedule
from gpulab.units import format_bytes, plural

# -- the bubble ---------------------------------------------------------------------------------------------------------------

STAGES, BATCH, ROOM, LEAST_SAMPLES = 4, 96, 8, 2
_MOST_BUBBLE = 0.10
_SCHEDULES = ("gpipe", "1f1b")


def _check_bubble(answer: Any) -> str:
    if not isinstance(answer, Mapping) or set(answer) != {"microbatches", "schedule"}:
        raise Refused(f'Your answer is {_guard.describe(answer)}; the check expects {{"microbatches": ..., "schedule": ...}}.')
    count, schedule = _guard.plain(answer["microbatches"]), answer["schedule"]
    if _guard.is_stub(count) or _guard.is_stub(schedule):
        raise NotAttempted
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= BATCH:
        raise Refused(f"microbatches is {_guard.describe(count)}; a batch of {BATCH} can be cut into 1 to {BATCH} of them.")
    if not isinstance(schedule, str) or schedule not in _SCHEDULES:
        raise Refused(f"schedule is {_guard.describe(schedule)}; it is one of {', '.join(_SCHEDULES)}.")
    if BATCH % count:
        raise Refused(f"{BATCH} samples cannot be cut into {count} equal microbatches.")
    plan = pipeline_schedule(STAGES, count, schedule)
    if plan.bubble_ratio >= _MOST_BUBBLE:
        raise Refused(
            f"With {count} microbatch{'es' if count > 1 else ''} the bubble is {plan.bubble_ratio:.1%}: however many there are, each stage "
            f"waits for the time of {STAGES - 1} of them, before its first and after its last. What makes that a smaller share?"
        )
    if BATCH // count < LEAST_SAMPLES:
        raise Refused(f"Microbatches of {BATCH // count} sample leave each stage too little to do at a time; keep {LEAST_SAMPLES} or more.")
    if max(plan.held) > ROOM:
        raise Refused(
            f"{schedule} keeps the activations of {max(plan.held):g} microbatches until their backward passes; there is room for {ROOM}. "
            "Which schedule begins with the backward passes earlier?"
        )
    return (
        f"{count} microbatches: a bubble of {plan.bubble_ratio:.1%}, and at most {max(plan.held):g} microbatches held at once (MODELLED)."
    )


BUBBLE = Exercise(
    id="08.8",
    title="a bubble under 10 %",
    answer_name="plan",
    stub='plan = {"microbatches": ..., "schedule": ...}  # schedule: "gpipe" or "1f1b"',
    solution='plan = {"microbatches": 32, "schedule": "1f1b"}  # 3 / (32 + 3) = 8.6 %; 1F1B holds at most 4 microbatches',
    hints=(
        "The bubble is (p - 1) / (m + p - 1) with p stages and m microbatches. From which m on is it under 10 %? And which m divide 96?",
        "GPipe does all forward passes first, so it keeps all m. 1F1B keeps at most as many as there are stages. Is its bubble smaller?",
    ),
    check=_check_bubble,
    usual=(
        Usual('plan = {"microbatches": 4, "schedule": "1f1b"}', "the bubble is 42.9%"),
        Usual('plan = {"microbatches": 24, "schedule": "1f1b"}', "the bubble is 11.1%"),
        Usual('plan = {"microbatches": 28, "schedule": "1f1b"}', "equal microbatches"),
        Usual('plan = {"microbatches": 32, "schedule": "gpipe"}', "there is room for 8"),
        Usual('plan = {"microbatches": 96, "schedule": "1f1b"}', "too little to do"),
        Usual('plan = {"microbatches": 32, "schedule": "fast"}', "one of gpipe, 1f1b"),
        Usual("plan = 32", "the check expects"),
    ),
)

# -- the memory of a sharded model ----------------------------------------------------------------------------------------------

_FLOAT = 4  # bytes of a float32
# (parameters, bytes of activations, ranks, stage); stage 1 first, since there the parts of a wrong answer can be told apart.
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
    """What a rank holds in float32 with Adam: parameters, gradients, two numbers of state for each; a shard of what the stage splits."""
    state = 2 * _FLOAT * parameters / (ranks if stage >= 1 else 1)
    gradients = _FLOAT * parameters / (ranks if stage >= 2 else 1)
    weights = _FLOAT * parameters / (ranks if stage >= 3 else 1)
    return weights + gradients + state + activations


def _check_memory(answer: Any) -> str:
    ask = _guard.in_turn(answer)
    for parameters, activations, ranks, stage in _RUNS:
        where = f"{parameters:,} parameters on {plural(ranks, 'rank')}, {_NAMES[stage]}"
        said = _guard.number(ask(f"For {where}", parameters, activations, ranks, stage), "one number of bytes")
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
    """Within a cache line: a shard that is rounded up is as right."""
    return abs(said - other) <= 64


def _why_memory(said: float, parameters: int, activations: float, ranks: int, stage: int) -> str:
    right = rank_bytes(parameters, activations, ranks, stage)
    model = right - activations
    if _near(said, right / _FLOAT):
        return "Those are numbers. A float32 takes 4 bytes."
    if _near(said, model):
        return "The activations are missing."
    if _near(said, model + activations / ranks):
        return "The activations are not sharded: each rank computes its own part of the batch and keeps all that it computed."
    if _near(said, rank_bytes(parameters, activations, ranks, 0)):
        return "Nothing is split yet. ZeRO-1 splits Adam's state, ZeRO-2 the gradients too, ZeRO-3 also the parameters."
    if _near(said, rank_bytes(parameters, activations, ranks, 3)):
        return f"With {_NAMES[stage]} not all of it is split. ZeRO-1: Adam's state; ZeRO-2: the gradients too; ZeRO-3: also the parameters."
    for less, what in ((_FLOAT, "Adam keeps two numbers for each parameter, not one"), (2 * _FLOAT, "Adam's state is missing")):
        shard = ranks if stage >= 1 else 1
        if _near(said, right - less * parameters / shard):
            return f"{what}."
    if _near(said, right - _FLOAT * parameters):  # with ZeRO-1: elsewhere a gradient has as many bytes as one number of the state
        return "The gradients are missing: one number for each parameter."
    return "Four numbers for each parameter: itself, its gradient and two of Adam's. Which of them does this stage split?"


_MEMORY_STUB = (
    "def rank_bytes(parameters, activations, ranks, stage):\n"
    '    """Return the bytes that each rank holds: float32, Adam, ZeRO stage 0 (none) to 3 (FSDP)."""\n'
)
_MEMORY_BODY = """\
    state = 8 * parameters / (ranks if stage >= 1 else 1)
    gradients = 4 * parameters / (ranks if stage >= 2 else 1)
    weights = 4 * parameters / (ranks if stage >= 3 else 1)
"""
MEMORY = Exercise(
    id="08.10",
    title="memory per rank",
    answer_name="rank_bytes",
    stub=_MEMORY_STUB + "    ...",
    solution=_MEMORY_STUB + _MEMORY_BODY + "    return weights + gradients + state + activations  # activations are each rank's own",
    hints=(
        "Count the numbers for each parameter: itself, its gradient, and what Adam keeps. Which does a stage split over the ranks?",
        "Stage 1 divides Adam's two numbers by the ranks, stage 2 the gradients too, stage 3 also the parameters. And the activations?",
    ),
    check=_check_memory,
    usual=(
        Usual(_MEMORY_STUB + "    return 16 * parameters / ranks + activations", "not all of it is split"),
        Usual(_MEMORY_STUB + _MEMORY_BODY + "    return weights + gradients + state + activations / ranks", "not sharded"),
        Usual(_MEMORY_STUB + _MEMORY_BODY + "    return weights + gradients + state", "activations are missing"),
        Usual(_MEMORY_STUB + _MEMORY_BODY + "    return weights + gradients + state / 2 + activations", "not one"),
        Usual(_MEMORY_STUB + _MEMORY_BODY + "    return weights + gradients + activations", "Adam's state is missing"),
        Usual(_MEMORY_STUB + _MEMORY_BODY + "    return weights + state + activations", "gradients are missing"),
        Usual(_MEMORY_STUB + "    return 16 * parameters + activations", "Nothing is split yet"),
        Usual(_MEMORY_STUB + "    return 'less'", "plain number"),
    ),
)

# -- a hang ---------------------------------------------------------------------------------------------------------------------

_LOOK = {
    "A": "Look at the right end of A: three ranks wait in one collective, and one waits in another. Which one is not in its lane?",
    "B": "B comes to its end. Whose lane is full of compute, while the others wait for it in every step?",
    "C": "Look at the right end of C: one rank waits in a collective that the others never call. In whose program does it stand?",
}
_VICTIM = {
    "A": "That rank waits, and so do two others in the same collective: they do what the program says, and are the victims.",
    "B": "That rank waits for another one in each step.",
    "C": "That rank has gone on to the next step, like two others: they do what the program says.",
}


def _check_hang(answer: Any) -> str:
    if not isinstance(answer, Mapping) or set(answer) != set(CASES):
        raise Refused(f'Your answer is {_guard.describe(answer)}; the check expects {{"A": (rank, what), "B": ..., "C": ...}}.')
    if any(_guard.is_stub(each) for each in answer.values()):
        raise NotAttempted
    for letter, (_, culprit, wanted) in CASES.items():
        each = answer[letter]
        if not isinstance(each, (tuple, list)) or len(each) != 2:
            raise Refused(
                f"For {letter} you gave {_guard.describe(each)}; the check expects two things: a rank, and a collective or 'slow'."
            )
        rank, what = _guard.plain(each[0]), each[1]
        if _guard.is_stub(rank) or _guard.is_stub(what):
            raise NotAttempted
        if isinstance(rank, bool) or not isinstance(rank, int) or not 0 <= rank < RANKS:
            raise Refused(f"For {letter} the rank is {_guard.describe(rank)}; it is a number from 0 to {RANKS - 1}.")
        if not isinstance(what, str):
            raise Refused(f"For {letter} you gave {_guard.describe(what)}; the check expects a collective's name, or 'slow'.")
        if rank != culprit:
            raise Refused(f"{letter}: it is not rank {rank}. {_VICTIM[letter]} {_LOOK[letter]}")
        if _plainly(what) not in map(_plainly, NAMES):
            raise Refused(
                f"{letter}: rank {rank} it is, but {what.strip()[:40]!r} is no collective of these timelines; write it as they do, such as "
                "'all_reduce layer 3'."
            )
        if _plainly(what) != _plainly(wanted):
            raise Refused(f"{letter}: rank {rank} it is, but not {what.strip()[:40]!r}. {_say_what(letter, what)}")
    return (
        "A: rank 2 left out a collective, and everybody waits. B: nobody hangs, rank 3 is slow, and all move at its pace. "
        "C: rank 0 waits in a barrier that only it calls."
    )


def _plainly(name: str) -> str:
    """Return a collective's name in one way of writing it: all_reduce, all-reduce or allreduce, with a layer or as the layer alone."""
    words = " ".join(re.sub("[_,-]", " ", name.lower()).split()).replace("allreduce", "all reduce")
    return f"all reduce {words}" if words.startswith("layer ") else words


def _say_what(letter: str, what: str) -> str:
    if letter == "A":
        return "That is where it waits, or another one. Which one do the others wait in, that its lane has not?"
    if letter == "B":
        return "Every collective comes to its end here. What is the word for a rank that only takes longer?"
    return "Slowness ends at some time; this does not. In which collective does that rank stand at the right end?"


_HANG_STUB = """\
found = {  # the rank, and the collective at which it leaves the others (or "slow")
    "A": (..., ...),
    "B": (..., ...),
    "C": (..., ...),
}"""
HANG = Exercise(
    id="08.14",
    title="who did it",
    answer_name="found",
    stub=_HANG_STUB,
    solution='found = {"A": (2, "all_reduce layer 2"), "B": (3, "slow"), "C": (0, "barrier")}',
    hints=(
        "Who waits is not who did it. At the right end, look for the one lane that differs from the three others.",
        "Write down each lane's collectives in their order and lay the lists beside each other: where does one differ first?",
        "If all lists are the same and come to their end, nobody hangs: look for the lane that never waits.",
    ),
    check=_check_hang,
    usual=(
        Usual('found = {"A": (0, "all_reduce layer 2"), "B": (3, "slow"), "C": (0, "barrier")}', "are the victims"),
        Usual('found = {"A": (2, "all_reduce layer 1"), "B": (3, "slow"), "C": (0, "barrier")}', "That is where it waits"),
        Usual('found = {"A": (2, "layer 2"), "B": (3, "all_reduce layer 3"), "C": (0, "barrier")}', "comes to its end"),
        Usual('found = {"A": (2, "layer 2"), "B": (0, "slow"), "C": (0, "barrier")}', "waits for another one in each step"),
        Usual('found = {"A": (2, "layer 2"), "B": (3, "slow"), "C": (1, "all_reduce layer 3")}', "they do what the program says"),
        Usual('found = {"A": (2, "layer 2"), "B": (3, "slow"), "C": (0, "slow")}', "Slowness ends"),
        Usual('found = {"A": (2, "the second one"), "B": (3, "slow"), "C": (0, "barrier")}', "no collective of these timelines"),
        Usual('found = {"A": "rank 2", "B": (3, "slow"), "C": (0, "barrier")}', "two things"),
    ),
)
