"""From what each rank was seen to do, the one sentence that says what went wrong: which rank, which
collective, what to do.

Pure arithmetic on `Sight`s: no engine, no clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gpulab.errors import CollectiveTimeoutError, RankDiedError, RankError
from gpulab.parallel._outcome import Sight

_GO_ON = "Call recover() to go on."


def explain(sights: Sequence[Sight], timeout_seconds: float) -> RankError:
    """Return the error for a call that did not end well on every rank.

    Parameters
    ----------
    sights : sequence of Sight
        Where each rank stood, in rank order.
    timeout_seconds : float
        How long a collective waits.

    Returns
    -------
    RankError
        `RankDiedError` where a process ended; `CollectiveTimeoutError` where others never arrived;
        else what a rank raised.
    """
    died = [sight for sight in sights if sight.state == "died"]
    waiting = [sight for sight in sights if sight.waits]
    # Nobody here had interrupted a rank that is told as such: its function raised KeyboardInterrupt
    # by itself.
    raised = [
        sight for sight in sights if sight.state in {"raised", "interrupted"} and not sight.waits
    ]
    where = _waiting(waiting)
    ranks, waiters = tuple(s.rank for s in died or raised), tuple(s.rank for s in waiting)
    collective = _standing(waiting[0], several=False) if waiting else None
    if died:
        ended = "; ".join(f"{_ranks([s])} {s.error}{_after(s)}" for s in died)
        return RankDiedError(
            f"run: {ended}{where}; expected it to live until the call ends. {_GO_ON}",
            ranks,
            waiters,
            collective,
        )
    if raised:
        errors = "; ".join(
            f"{_ranks(group)} raised {error}"
            for error, group in _grouped(raised, lambda s: s.error)
        )
        go_on = _GO_ON if waiting else "Fix the function: the error's cause has its traceback."
        return RankError(
            f"run: {errors}{where}; expected a result from every rank. {go_on}",
            ranks,
            waiters,
            collective,
        )
    return _nobody_came(sights, waiting, timeout_seconds)


def _nobody_came(
    sights: Sequence[Sight], waiting: Sequence[Sight], timeout_seconds: float
) -> RankError:
    """Return the error for ranks that waited in vain while none died and none raised."""
    absent = [sight for sight in sights if not sight.waits]
    collective = _standing(waiting[0], several=False) if waiting else None
    waiters = tuple(s.rank for s in waiting)
    first, *others = list(_grouped(waiting, _place))
    said = (
        f"{_ranks(first[1])} waited in {_standing(first[1][0], len(first[1]) > 1)} for "
        f"{timeout_seconds:g} s"
    )
    if absent:
        why = "; ".join(
            f"{_ranks(group)} did not arrive: {what}" for what, group in _grouped(absent, _doing)
        )
        blamed = tuple(s.rank for s in absent)
    elif others:
        why = "; ".join(
            f"{_ranks(group)} waited in {_standing(group[0], len(group) > 1)}"
            for _, group in others
        )
        blamed = tuple(s.rank for _, group in others for s in group)
    else:
        return CollectiveTimeoutError(
            f"run: {said}, although all ranks had arrived; expected it to complete in that time. "
            "Give cluster() a longer "
            "timeout_seconds for slow links or a slow rank, and call recover() to go on.",
            (),
            waiters,
            collective,
        )
    return CollectiveTimeoutError(
        f"run: {said}; {why}; expected every rank to enter the same collectives in the same order. "
        f"{_GO_ON}",
        blamed,
        waiters,
        collective,
    )


def _waiting(waiting: Sequence[Sight]) -> str:
    """Return the half sentence on those who wait: "; ranks 0 and 2 wait in ..."."""
    groups = [
        f"{_ranks(group)} waited in {_standing(group[0], len(group) > 1)}"
        for _, group in _grouped(waiting, _place)
    ]
    return "".join(f"; {each}" for each in groups)


def _place(sight: Sight) -> str:
    call = sight.collective
    return "" if call is None else f"{call.number} {call.sentence}"


def _standing(sight: Sight, several: bool) -> str:
    """Return "all_reduce of 4.0 kB in float32 among ranks 0, 1 (their 3rd collective in the
    call)".
    """
    call = sight.collective
    return (
        ""
        if call is None
        else f"{call.sentence} ({'their' if several else 'its'} {ordinal(call.number + 1)} "
        "collective in the call)"
    )


def _doing(sight: Sight) -> str:
    """Return what a rank that did not come was doing."""
    count = f"{sight.entered} collective{'' if sight.entered == 1 else 's'}"
    if sight.state == "returned":
        return f"it had returned after {count}"
    at = f" at {sight.where}" if sight.where else ""
    return f"it was still running{at} after {count}"


def _after(sight: Sight) -> str:
    return (
        f" after it entered {_standing(sight, several=False)}"
        if sight.collective is not None
        else ""
    )


def _grouped(sights: Iterable[Sight], key: object) -> list[tuple[str, list[Sight]]]:
    """Return those that share a key together, in order of appearance."""
    assert callable(key)
    groups: dict[str, list[Sight]] = {}
    for sight in sights:
        groups.setdefault(key(sight), []).append(sight)
    return list(groups.items())


def _ranks(sights: Sequence[Sight]) -> str:
    """Return "rank 1" or "ranks 0, 1 and 3"."""
    return named([sight.rank for sight in sights])


def named(ranks: Sequence[int]) -> str:
    """Return ranks in words.

    Examples
    --------
    >>> named([1]), named([0, 1, 3])
    ('rank 1', 'ranks 0, 1 and 3')
    """
    words = [str(rank) for rank in ranks]
    return (
        f"rank {words[0]}" if len(words) == 1 else f"ranks {', '.join(words[:-1])} and {words[-1]}"
    )


def ordinal(number: int) -> str:
    """Return "1st", "2nd", "3rd", "4th", "11th", "21st".

    Examples
    --------
    >>> [ordinal(n) for n in (1, 2, 3, 4, 11, 12, 13, 21, 112)]
    ['1st', '2nd', '3rd', '4th', '11th', '12th', '13th', '21st', '112th']
    """
    ending = (
        "th" if number % 100 in {11, 12, 13} else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    )
    return f"{number}{ending}"
