"""07.5: the order that keeps accuracy."""

# %% exercise
id = "07.5"
title = "the order that keeps accuracy"
answer_name = "steps"

# %% stub
steps = [...]  # of "train", "prune channels", "prune weights", "fine-tune", "quantise"

# %% hint
# Which steps lose accuracy, and which one wins it back? A step may come more than once.

# %% hint
# Whatever loses is followed by fine-tuning. Which loss cannot be trained away any more, so that
# it must come last?

# %% solution
steps = ["train", "prune channels", "fine-tune", "prune weights", "fine-tune", "quantise"]

# %% check
import itertools
from typing import Any
from gpulab.lessons import checking
from gpulab.lessons.content import NotAttempted, Refused

_STEPS = ("train", "prune channels", "prune weights", "fine-tune", "quantise")


def check(answer: Any) -> str:
    if not isinstance(answer, (list, tuple)) or not all(isinstance(each, str) or checking.is_stub(each) for each in answer):
        raise Refused(f"Your answer is {checking.describe(answer)}; the check expects a list of steps.")
    if any(checking.is_stub(each) for each in answer):
        raise NotAttempted
    steps = [" ".join(each.lower().split()) for each in answer]
    unknown = [each for each in steps if each not in _STEPS]
    if unknown:
        raise Refused(f"{unknown[0]!r} is no step of these: {', '.join(_STEPS)}.")
    missing = [each for each in _STEPS if each not in steps]
    if missing:
        raise Refused(f"{missing[0]!r} is missing; the recipe needs each step at least once.")
    if steps[0] != "train" or steps.count("train") > 1:
        raise Refused("Training comes first, and once: the size of an untrained weight says nothing about what it is worth.")
    if steps[-1] != "quantise" or steps.count("quantise") > 1:
        raise Refused(
            "Quantise once, at the end: an optimizer's small steps are lost on integers, and what is moved must be rounded again."
        )
    if "prune channels" in steps[steps.index("prune weights") :]:
        raise Refused(
            "Remove channels before single weights: a channel that goes takes its weights along, and where the others lie changes."
        )
    for step, after in itertools.pairwise(steps):
        if step.startswith("prune") and after != "fine-tune":
            raise Refused(f"After {step!r} comes {after!r}: the damage is not mended before more is done. Fine-tune after each loss.")
    return "Each loss is mended before the next one, channels go before weights, and rounding comes last."

# %% wrong: not mended before more
steps = ["train", "prune channels", "prune weights", "fine-tune", "quantise"]

# %% wrong: at the end
steps = ["train", "quantise", "prune channels", "fine-tune", "prune weights", "fine-tune"]

# %% wrong: before single weights
steps = ["train", "prune weights", "fine-tune", "prune channels", "fine-tune", "quantise"]

# %% wrong: Training comes first
steps = ["prune channels", "fine-tune", "prune weights", "fine-tune", "train", "quantise"]

# %% wrong: 'fine-tune' is missing
steps = ["train", "prune channels", "prune weights", "quantise"]

# %% wrong: no step of these
steps = ["train", "pray"]
