"""08.8: a bubble under 10 %."""

# %% exercise
id = "08.8"
title = "a bubble under 10 %"
answer_name = "plan"

# %% stub
plan = {"microbatches": ..., "schedule": ...}  # schedule: "gpipe" or "1f1b"

# %% hint
# The bubble is (p - 1) / (m + p - 1) with p stages and m microbatches. What is the smallest m
# with which it is under 10 %? Which m divide 96?

# %% hint
# GPipe does all forward passes first, so it keeps the activations of all m. 1F1B keeps those of at
# most as many as there are stages. Is its bubble smaller?

# %% solution
plan = {"microbatches": 32, "schedule": "1f1b"}  # 3 / (32 + 3) = 8.6 %; 1F1B holds at most 4 microbatches

# %% check
from collections.abc import Mapping
from typing import Any
from gpulab.lessons import checking
from gpulab.lessons.content import NotAttempted, Refused
from gpulab.models import pipeline_schedule

STAGES, BATCH, ROOM, LEAST_SAMPLES = 4, 96, 8, 2
_MOST_BUBBLE = 0.10
_SCHEDULES = ("gpipe", "1f1b")


def check(answer: Any) -> str:
    if not isinstance(answer, Mapping) or set(answer) != {"microbatches", "schedule"}:
        raise Refused(f'Your answer is {checking.describe(answer)}; the check expects {{"microbatches": ..., "schedule": ...}}.')
    count, schedule = checking.plain(answer["microbatches"]), answer["schedule"]
    schedule = schedule.lower() if isinstance(schedule, str) else schedule
    if checking.is_stub(count) or checking.is_stub(schedule):
        raise NotAttempted
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= BATCH:
        raise Refused(f"microbatches is {checking.describe(count)}; a batch of {BATCH} can be cut into 1 to {BATCH} of them.")
    if not isinstance(schedule, str) or schedule not in _SCHEDULES:
        raise Refused(f"schedule is {checking.describe(schedule)}; it is one of {', '.join(_SCHEDULES)}.")
    if BATCH % count:
        raise Refused(f"{BATCH} samples cannot be cut into {count} equal microbatches.")
    plan = pipeline_schedule(STAGES, count, schedule)
    if plan.bubble_ratio >= _MOST_BUBBLE:
        raise Refused(
            f"With {count} microbatch{'es' if count > 1 else ''} the bubble is {plan.bubble_ratio:.1%}. Each stage waits for the time of "
            f"{STAGES - 1} microbatches in all, whatever their number. What makes that a smaller share?"
        )
    if BATCH // count < LEAST_SAMPLES:
        raise Refused(f"With microbatches of {BATCH // count} sample a stage has too little to do at a time; use {LEAST_SAMPLES} samples or more.")
    if max(plan.held) > ROOM:
        raise Refused(
            f"{schedule} keeps the activations of {max(plan.held):g} microbatches until their backward passes; there is room for {ROOM}. "
            "Which schedule starts the backward passes earlier?"
        )
    return (
        f"{count} microbatches: a bubble of {plan.bubble_ratio:.1%}, and at most {max(plan.held):g} microbatches held at once (MODELLED)."
    )

# %% wrong: the bubble is 42.9%
plan = {"microbatches": 4, "schedule": "1f1b"}

# %% wrong: the bubble is 11.1%
plan = {"microbatches": 24, "schedule": "1f1b"}

# %% wrong: equal microbatches
plan = {"microbatches": 28, "schedule": "1f1b"}

# %% wrong: there is room for 8
plan = {"microbatches": 32, "schedule": "gpipe"}

# %% wrong: too little to do
plan = {"microbatches": 96, "schedule": "1f1b"}

# %% wrong: one of gpipe, 1f1b
plan = {"microbatches": 32, "schedule": "fast"}

# %% wrong: the check expects
plan = 32
