"""09.3: what may be said."""

# %% exercise
id = "09.3"
title = "what may be said"
answer_name = "said"

# %% stub
said = {"A": ..., "B": ..., "C": ..., "D": ..., "E": ...}  # "faster", "slower" or "not shown"

# %% hint
# Do not look at the ratio first. Where does the interval lie: above 1, below 1, or on both sides?

# %% hint
# A small gain can be sure, and a large one can be chance. Without an interval nothing is sure.

# %% solution
said = {"A": "faster", "B": "not shown", "C": "slower", "D": "faster", "E": "not shown"}

# %% check
from collections.abc import Mapping
from typing import Any
from gpulab.lessons import checking
from gpulab.lessons.content import NotAttempted, Refused

_WORDS = ("faster", "slower", "not shown")
# Letter -> what may be said, and why the other words may not.
_GAINS = {
    "A": ("faster", "All of A's interval lies above 1."),
    "B": ("not shown", "B's interval reaches from 0.97 to 1.21: with the next run it could as well be slower."),
    "C": ("slower", "All of C's interval lies below 1: it is sure to cost something, however little."),
    "D": ("faster", "D's gain is small, but its whole interval lies above 1. Small is another thing than not shown."),
    "E": ("not shown", "E is a large number from three turns, and has no interval: nobody knows how far it would move in the next run."),
}


def check(answer: Any) -> str:
    if not isinstance(answer, Mapping) or set(answer) != set(_GAINS):
        raise Refused(f'Your answer is {checking.describe(answer)}; the check expects {{"A": ..., "B": ..., and so on to "E"}}.')
    if any(checking.is_stub(word) for word in answer.values()):
        raise NotAttempted
    for letter, (right, why) in _GAINS.items():
        word = answer[letter]
        if not isinstance(word, str) or word not in _WORDS:
            raise Refused(f"For {letter} you gave {checking.describe(word)}; the check expects one of {', '.join(_WORDS)}.")
        if word != right:
            raise Refused(f"{letter} is not {word!r}. {why}")
    return "Two gains, one loss, and two of which nothing can be said. The size of a ratio decided none of them."

# %% wrong: could as well be slower
said = {"A": "faster", "B": "faster", "C": "slower", "D": "faster", "E": "faster"}

# %% wrong: sure to cost something
said = {"A": "faster", "B": "not shown", "C": "not shown", "D": "faster", "E": "not shown"}

# %% wrong: Small is another thing
said = {"A": "faster", "B": "not shown", "C": "slower", "D": "not shown", "E": "not shown"}

# %% wrong: has no interval
said = {"A": "faster", "B": "not shown", "C": "slower", "D": "faster", "E": "faster"}

# %% wrong: expects one of
said = {"A": 1, "B": 0, "C": -1, "D": 1, "E": 0}
