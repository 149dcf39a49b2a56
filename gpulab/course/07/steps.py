"""07.5: the order that keeps accuracy."""

# %% exercise
id = "07.5"
title = "the order that keeps accuracy"
answer_name = "steps"

# %% stub
steps = [...]  # of "train", "prune channels", "prune weights", "fine-tune", "quantize"

# %% hint
# Which steps lose accuracy, and which step wins it back? You may use a step more than once.

# %% hint
# Fine-tune after each step that loses accuracy. After which step is fine-tuning no longer
# possible, so that it comes last?

# %% solution
steps = ["train", "prune channels", "fine-tune", "prune weights", "fine-tune", "quantize"]

# %% check
import itertools
from typing import Any
from gpulab.lessons import checking
from gpulab.lessons.content import NotAttempted, Refused

_STEPS = ("train", "prune channels", "prune weights", "fine-tune", "quantize")


def check(answer: Any) -> str:
    if not isinstance(answer, (list, tuple)) or not all(isinstance(each, str) or checking.is_stub(each) for each in answer):
        raise Refused(f"Your answer is {checking.describe(answer)}; the check expects a list of steps.")
    if any(checking.is_stub(each) for each in answer):
        raise NotAttempted
    steps = [" ".join(each.lower().split()).replace("quantise", "quantize") for each in answer]  # either spelling
    unknown = [each for each in steps if each not in _STEPS]
    if unknown:
        raise Refused(f"{unknown[0]!r} is not one of the steps: {', '.join(_STEPS)}.")
    missing = [each for each in _STEPS if each not in steps]
    if missing:
        raise Refused(f"{missing[0]!r} is missing; use each step at least once.")
    if steps[0] != "train" or steps.count("train") > 1:
        raise Refused("Training comes first, and once. The size of an untrained weight does not show how important it is.")
    if steps[-1] != "quantize" or steps.count("quantize") > 1:
        raise Refused(
            "Quantize once, at the end. An optimizer's small steps cannot change integers, and weights that move must be rounded again."
        )
    if "prune channels" in steps[steps.index("prune weights") :]:
        raise Refused(
            "Remove channels before single weights. A removed channel takes all its weights with it, also those that you chose to keep."
        )
    for step, after in itertools.pairwise(steps):
        if step.startswith("prune") and after != "fine-tune":
            raise Refused(f"After {step!r} comes {after!r}, so the lost accuracy is not repaired first. Fine-tune after each step that loses accuracy.")
    return "Each loss is repaired before the next step, channels go before weights, and rounding comes last."

# %% wrong: not repaired first
steps = ["train", "prune channels", "prune weights", "fine-tune", "quantize"]

# %% wrong: at the end
steps = ["train", "quantize", "prune channels", "fine-tune", "prune weights", "fine-tune"]

# %% wrong: before single weights
steps = ["train", "prune weights", "fine-tune", "prune channels", "fine-tune", "quantize"]

# %% wrong: Training comes first
steps = ["prune channels", "fine-tune", "prune weights", "fine-tune", "train", "quantize"]

# %% wrong: 'fine-tune' is missing
steps = ["train", "prune channels", "prune weights", "quantize"]

# %% wrong: not one of the steps
steps = ["train", "pray"]
