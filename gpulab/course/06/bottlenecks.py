"""06.4: name the bottleneck."""

# %% exercise
id = "06.4"
title = "name the bottleneck"
answer_name = "bottlenecks"

# %% stub
bottlenecks = (..., ..., ...)  # for A, B and C: "data", "copy" or "compute"

# %% hint
# Start at the compute lane. Where it is full, nothing else matters.

# %% hint
# Where it is not, look at what ends just when a step begins: a batch's loading, or its copy.

# %% solution
bottlenecks = ("data", "copy", "compute")

# %% check
from typing import Any
from gpulab.lessons import checking
from gpulab.lessons._timelines import timeline
from gpulab.lessons.content import NotAttempted, Refused

_WORDS = ("data", "copy", "compute")
_LOOK = {
    "A": "Look at A's compute lane: is it ever busy for long? And its six workers: they share two cores, so each of them is slow.",
    "B": "Look at what B's accelerator does before each step: the batches are there in time. What is it that takes the time?",
    "C": "Look at the gaps of C: after the first step there are hardly any. Who is never idle?",
}


def check(answer: Any) -> str:
    if not isinstance(answer, (tuple, list)) or len(answer) != 3:
        raise Refused(f"Your answer is {checking.describe(answer)}; the check expects three words, for A, B and C.")
    if any(map(checking.is_stub, answer)):
        raise NotAttempted
    for letter, word in zip("ABC", answer, strict=True):
        if not isinstance(word, str) or word not in _WORDS:
            raise Refused(f"For {letter} you gave {checking.describe(word)}; the check expects one of {', '.join(_WORDS)}.")
        if word != timeline(letter).bottleneck:
            raise Refused(f"{letter} is not bound by {word}. {_LOOK[letter]}")
    return "A waits for data (its workers share two cores), B for its slow link, and C's accelerator is busy: only C needs a faster one."

# %% wrong: share two cores
bottlenecks = ("compute", "copy", "compute")

# %% wrong: the batches are there in time
bottlenecks = ("data", "data", "compute")

# %% wrong: Who is never idle
bottlenecks = ("data", "copy", "data")

# %% wrong: expects one of
bottlenecks = ("data", "link", "compute")

# %% wrong: three words
bottlenecks = "data"
