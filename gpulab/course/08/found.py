"""08.14: who did it."""

# %% exercise
id = "08.14"
title = "who did it"
answer_name = "found"

# %% stub
found = {  # the rank, and the collective at which it leaves the others (or "slow")
    "A": (..., ...),
    "B": (..., ...),
    "C": (..., ...),
}

# %% hint
# The ranks that wait are usually not at fault. Look at the right end: which lane differs from the
# three others?

# %% hint
# Write down the collectives of each lane in order and compare the lists. Where does one of them
# differ first?

# %% hint
# If all lists are the same and complete, nothing hangs. Then look for the lane that never waits.

# %% solution
found = {"A": (2, "all_reduce layer 2"), "B": (3, "slow"), "C": (0, "barrier")}

# %% check
import re
from collections.abc import Mapping
from typing import Any
from gpulab.lessons import checking
from gpulab.lessons._material import HANGS, NAMES, RANKS
from gpulab.lessons.content import NotAttempted, Refused

_LOOK = {
    "A": "Look at the right end of A: three ranks wait in one collective, and one waits in another. Which collective is missing in its lane?",
    "B": "B comes to its end. Which lane is full of compute, while the others wait for it in every step?",
    "C": "Look at the right end of C: one rank waits in a collective that the others never call. Which rank is it?",
}
_VICTIM = {
    "A": "That rank waits in the same collective as two others. They do what the program says, and are the victims.",
    "B": "That rank waits for another one in each step.",
    "C": "That rank is in the next step, like two others: they do what the program says.",
}


def check(answer: Any) -> str:
    if not isinstance(answer, Mapping) or set(answer) != set(HANGS):
        raise Refused(f'Your answer is {checking.describe(answer)}; the check expects {{"A": (rank, what), "B": ..., "C": ...}}.')
    if any(checking.is_stub(each) for each in answer.values()):
        raise NotAttempted
    for letter, (_, culprit, wanted) in HANGS.items():
        each = answer[letter]
        if not isinstance(each, (tuple, list)) or len(each) != 2:
            raise Refused(
                f"For {letter} you gave {checking.describe(each)}; the check expects two things: a rank, and a collective or 'slow'."
            )
        rank, what = checking.plain(each[0]), each[1]
        if checking.is_stub(rank) or checking.is_stub(what):
            raise NotAttempted
        if isinstance(rank, bool) or not isinstance(rank, int) or not 0 <= rank < RANKS:
            raise Refused(f"For {letter} the rank is {checking.describe(rank)}; it is a number from 0 to {RANKS - 1}.")
        if not isinstance(what, str):
            raise Refused(f"For {letter} you gave {checking.describe(what)}; the check expects a collective's name, or 'slow'.")
        if rank != culprit:
            raise Refused(f"{letter}: not rank {rank}. {_VICTIM[letter]} {_LOOK[letter]}")
        if _plainly(what) not in map(_plainly, NAMES):
            raise Refused(
                f"{letter}: rank {rank} is right, but {what.strip()[:40]!r} is no collective of these timelines. Write it as they do, for example "
                "'all_reduce layer 3'."
            )
        if _plainly(what) != _plainly(wanted):
            raise Refused(f"{letter}: rank {rank} is right, but not {what.strip()[:40]!r}. {_say_what(letter, what)}")
    return (
        "A: rank 2 skips a collective, and all wait. B: nothing hangs; rank 3 is slow, and all move at its pace. "
        "C: rank 0 waits in a barrier that only it calls."
    )


def _plainly(name: str) -> str:
    """Return a collective's name in one spelling. A learner may write all_reduce, all-reduce or allreduce, or the layer alone ("layer 2")."""
    words = " ".join(re.sub("[_,-]", " ", name.lower()).split()).replace("allreduce", "all reduce")
    return f"all reduce {words}" if words.startswith("layer ") else words


def _say_what(letter: str, what: str) -> str:
    if letter == "A":
        return "That is where it waits, or another one. In which collective do the others wait that its lane does not have?"
    if letter == "B":
        return "Every collective comes to its end here. Which word does the task give for a rank that only takes longer?"
    return "Slowness ends at some time; this wait does not. In which collective is that rank at the right end?"

# %% wrong: are the victims
found = {"A": (0, "all_reduce layer 2"), "B": (3, "slow"), "C": (0, "barrier")}

# %% wrong: That is where it waits
found = {"A": (2, "all_reduce layer 1"), "B": (3, "slow"), "C": (0, "barrier")}

# %% wrong: comes to its end
found = {"A": (2, "layer 2"), "B": (3, "all_reduce layer 3"), "C": (0, "barrier")}

# %% wrong: waits for another one in each step
found = {"A": (2, "layer 2"), "B": (0, "slow"), "C": (0, "barrier")}

# %% wrong: they do what the program says
found = {"A": (2, "layer 2"), "B": (3, "slow"), "C": (1, "all_reduce layer 3")}

# %% wrong: Slowness ends
found = {"A": (2, "layer 2"), "B": (3, "slow"), "C": (0, "slow")}

# %% wrong: no collective of these timelines
found = {"A": (2, "the second one"), "B": (3, "slow"), "C": (0, "barrier")}

# %% wrong: two things
found = {"A": "rank 2", "B": (3, "slow"), "C": (0, "barrier")}
