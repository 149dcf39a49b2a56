"""11.17: what a check of the draft gives."""

# %% exercise
id = "11.17"
title = "what a check of the draft gives"
answer_name = "accept"

# %% stub
def accept(draft, wanted):
    """Return the tokens that may be kept after one pass of the large model over the draft."""
    ...  # wanted[i]: its choice after draft[:i]; so it has one more than draft

# %% hint
# wanted[0] is the large model's own choice in place of draft[0]. As long as the two
# agree, the draft is right. What is known at the first place where they differ?

# %% hint
# At the first difference, the large model's own token is right too: it was computed from a text
# that is right so far. And if all drafted tokens agree, the last of `wanted` comes for free.

# %% solution
def accept(draft, wanted):
    """Return the tokens that may be kept after one pass of the large model over the draft."""
    same = 0
    while same < len(draft) and draft[same] == wanted[same]:
        same += 1
    return list(wanted[: same + 1])

# %% check
from operator import index
from typing import Any
from gpulab.lessons import checking
from gpulab.lessons.content import Refused

_CASES = (
    ([5, 7, 9], [5, 7, 2, 4]),
    ([5, 7, 9], [5, 7, 9, 4]),
    ([5, 7, 9], [1, 7, 9, 4]),
    ([5, 7, 9, 3], [5, 1, 9, 3, 8]),
    ([], [6]),
    ([2, 2, 2], [2, 2, 2, 2]),
    ([0, 0], [0, 1, 0]),
    ([4, 2, 7], [4, 4, 7, 1]),  # the large model's token is there twice: its place is not wanted.index(token)
)


def check(answer: Any) -> str:
    ask = checking.in_turn(answer)
    for draft, wanted in _CASES:
        said = f"With the draft {draft} and wanted {wanted}"
        _judge(said, ask(said, list(draft), list(wanted)), draft, wanted)
    return "The agreeing beginning and one more token of the large model: at least one a pass, at most one more than drafted, and exactly its own text."


def _judge(said: str, result: Any, draft: list[int], wanted: list[int]) -> None:
    try:
        kept = [index(token) for token in (None if isinstance(result, (str, bytes, dict, set)) else result)]
    except Exception as error:
        raise Refused(f"{said} you returned {checking.describe(result)}; the check expects a list of tokens, which are whole numbers.") from error
    same = next((i for i, token in enumerate(draft) if token != wanted[i]), len(draft))
    right = wanted[: same + 1]
    if kept == right:
        return
    shown = f"{said} you kept {kept if len(kept) <= 9 else f'{len(kept)} tokens'}; {right} is right."
    if kept == wanted and same < len(draft):
        raise Refused(f"{shown} After the first difference, `wanted` was computed from a text with a wrong token in it. It is not what the large model says.")
    if kept == draft[:same] and same == len(draft):
        raise Refused(f"{shown} The whole draft agrees, and the large model's last choice comes for free.")
    if kept == draft[:same]:
        raise Refused(f"{shown} The large model's own token at the first difference is right as well: keep it. Otherwise a pass whose first drafted token is wrong gives nothing.")
    if kept == draft[: same + 1] and same < len(draft):
        raise Refused(f"{shown} The last of them is the draft's mistake. Take the large model's token there.")
    if kept == [token for token, other in zip(draft, wanted, strict=False) if token == other] or len(kept) > len(right):
        raise Refused(f"{shown} Agreement after the first difference does not count: those tokens follow a wrong one.")
    raise Refused(f"{shown} Keep the agreeing beginning of the draft, then one token of the large model.")

# %% wrong: keep it
def accept(draft, wanted):
    kept = []
    for a, b in zip(draft, wanted, strict=False):
        if a != b:
            break
        kept.append(a)
    return kept

# %% wrong: comes for free
def accept(draft, wanted):
    kept = []
    for a, b in zip(draft, wanted, strict=False):
        kept.append(b)
        if a != b:
            break
    return kept

# %% wrong: a wrong token in it
def accept(draft, wanted):
    return wanted

# %% wrong: the draft's mistake
def accept(draft, wanted):
    kept = []
    for a, b in zip(draft, wanted, strict=False):
        kept.append(a)
        if a != b:
            return kept
    return [*kept, wanted[-1]]

# %% wrong: does not count
def accept(draft, wanted):
    kept = [a for a, b in zip(draft, wanted, strict=False) if a == b]
    return [*kept, wanted[len(kept)]]


# %% wrong: keep it
def accept(draft, wanted):
    """Return the tokens that may be kept after one pass of the large model over the draft."""
    for drafted, token in zip(draft, wanted, strict=False):
        if drafted != token:
            return wanted[: wanted.index(token) + 1]
    return wanted
