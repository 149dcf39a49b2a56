"""06.4: name the bottleneck."""

# %% exercise
id = "06.4"
title = "name the bottleneck"
answer_name = "bottlenecks"

# %% stub
bottlenecks = (..., ..., ...)  # for A, B and C: "data", "copy" or "compute"

# %% hint
# Start at the compute lane. If it is full, nothing else matters.

# %% hint
# If it is not full, look at what fills its gaps: the loading of the next batch, or its copy.

# %% solution
bottlenecks = ("data", "copy", "compute")

# %% check
from typing import Any
from gpulab.lessons import checking, timeline
from gpulab.lessons.content import NotAttempted, Refused

_WORDS = ("data", "copy", "compute")
_LOOK = {
    "A": "Look at A's compute lane: it has long gaps. Then look at its six workers: they share two cores, so each of them is slow.",
    "B": "The batches of B are there in time. Look at what happens between the end of one step and the start of the next.",
    "C": "Look at the gaps in C's compute lane: after the first step there are hardly any. Which lane is busy nearly all of the time?",
}


def check(answer: Any) -> str:
    if not isinstance(answer, (tuple, list)) or len(answer) != 3:
        raise Refused(f"Your answer is {checking.describe(answer)}; the check expects three words, one each for A, B and C.")
    if any(map(checking.is_stub, answer)):
        raise NotAttempted
    for letter, word in zip("ABC", answer, strict=True):
        if not isinstance(word, str) or word not in _WORDS:
            raise Refused(f"For {letter} you gave {checking.describe(word)}; the check expects one of {', '.join(_WORDS)}.")
        if word != timeline(letter).bottleneck:
            raise Refused(f"{letter} is not bound by {word}. {_LOOK[letter]}")
    return "A waits for data (its workers share two cores), and B waits for its slow link. C's accelerator is busy: only C needs a faster one."

# %% wrong: share two cores
bottlenecks = ("compute", "copy", "compute")

# %% wrong: batches of B are there in time
bottlenecks = ("data", "data", "compute")

# %% wrong: Which lane is busy nearly all of the time
bottlenecks = ("data", "copy", "data")

# %% wrong: expects one of
bottlenecks = ("data", "link", "compute")

# %% wrong: three words
bottlenecks = "data"
