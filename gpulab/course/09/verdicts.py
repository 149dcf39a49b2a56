"""09.3: which verdict is justified?"""

# %% exercise
id = "09.3"
title = "which verdict is justified?"
answer_name = "verdicts"

# %% stub
verdicts = {"A": ..., "B": ..., "C": ..., "D": ..., "E": ...}  # "faster", "slower" or "no difference shown"

# %% hint
# Look at the interval first, not at the ratio. Is all of it above 1.02, is all of it below 0.98, or
# neither?

# %% hint
# A small gain can be certain, and a large one can be chance. Without an interval nothing is shown.

# %% solution
verdicts = {"A": "faster", "B": "no difference shown", "C": "slower", "D": "faster", "E": "no difference shown"}

# %% check
from collections.abc import Mapping
from typing import Any
from gpulab.lessons import checking
from gpulab.lessons.content import NotAttempted, Refused

_WORDS = ("faster", "slower", "no difference shown")
_SHORT = {"not shown": "no difference shown", "no interval": "no difference shown"}  # but not "no difference", which claims more than is shown
# Letter -> the justified verdict, and why the other verdicts are not justified.
_GAINS = {
    "A": ("faster", "All of A's interval lies above 1.02."),
    "B": ("no difference shown", "B's interval goes from 0.97 to 1.21: it allows that the change makes the script slower."),
    "C": ("slower", "All of C's interval lies below 0.98: the change costs 3 % or more."),
    "D": ("faster", "D's gain is small, but its whole interval lies above 1.02. A small gain is still a gain."),
    "E": ("no difference shown", "E is a large number from three turns and has no interval: it may be much smaller in the next run."),
}


def check(answer: Any) -> str:
    if not isinstance(answer, Mapping) or set(answer) != set(_GAINS):
        raise Refused(f'Your answer is {checking.describe(answer)}; the check expects {{"A": ..., "B": ..., and so on to "E"}}.')
    if any(checking.is_stub(word) for word in answer.values()):
        raise NotAttempted
    for letter, (right, why) in _GAINS.items():
        word = answer[letter]
        if isinstance(word, str):
            word = " ".join(word.casefold().split())
            word = _SHORT.get(word, word)
        if not isinstance(word, str) or word not in _WORDS:
            raise Refused(f"For {letter} you gave {checking.describe(word)}; the check expects one of {', '.join(_WORDS)}.")
        if word != right:
            raise Refused(f"{letter} is not {word!r}. {why}")
    return "Two gains, one loss, and two ratios that show nothing. In each case the interval decided, not the ratio."

# %% wrong: allows that the change makes the script slower
verdicts = {"A": "faster", "B": "faster", "C": "slower", "D": "faster", "E": "faster"}

# %% wrong: costs 3 % or more
verdicts = {"A": "faster", "B": "not shown", "C": "not shown", "D": "faster", "E": "not shown"}

# %% wrong: A small gain is still a gain
verdicts = {"A": "faster", "B": "not shown", "C": "slower", "D": "not shown", "E": "not shown"}

# %% wrong: has no interval
verdicts = {"A": "faster", "B": "not shown", "C": "slower", "D": "faster", "E": "faster"}

# %% wrong: expects one of
verdicts = {"A": "faster", "B": "no difference", "C": "slower", "D": "faster", "E": "no difference"}
