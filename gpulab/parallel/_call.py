"""One call on every rank: send it, wait for it, and diagnose what went wrong."""

from __future__ import annotations

import concurrent.futures
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Literal

from gpulab.errors import CollectiveTimeoutError, RankDiedError, RankError, StoppedError, message_of
from gpulab.parallel import _rank
from gpulab.parallel._observe import CollectiveCall
from gpulab.parallel._rank import Outcome, Sight
from gpulab.parallel.engines import Engines

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
    waiting = _grouped([sight for sight in sights if sight.waits], _place)
    absent = [sight for sight in sights if not sight.waits]
    # No rank was interrupted from here yet: the function of one that seems so raised
    # KeyboardInterrupt by itself.
    raised = [sight for sight in absent if sight.state in {"raised", "interrupted"}]
    waiters = tuple(sight.rank for sight in sights if sight.waits)
    first = next((sight for sight in sights if sight.waits), None)
    collective = _standing([first]) if first else None
    stands = [f"{_ranks(group)} waited in {_standing(group)}" for group in waiting]
    where = "".join(f"; {each}" for each in stands)
    ranks = tuple(sight.rank for sight in died or raised)
    if died:
        ended = "; ".join(
            f"{_ranks([s])} {s.error}"
            + (f" after it entered {_standing([s])}" if s.collective else "")
            for s in died
        )
        return RankDiedError(
            f"run: {ended}{where}; expected it to live until the call ends. {_GO_ON}",
            ranks,
            waiters,
            collective,
        )
    if raised:
        errors = "; ".join(
            f"{_ranks(group)} raised {group[0].error}"
            for group in _grouped(raised, lambda sight: sight.error)
        )
        go_on = _GO_ON if waiting else "Fix the function: the error's cause has its traceback."
        return RankError(
            f"run: {errors}{where}; expected a result from every rank. {go_on}",
            ranks,
            waiters,
            collective,
        )
    if not absent and len(stands) == 1:
        return CollectiveTimeoutError(
            f"run: {stands[0]} for {timeout_seconds:g} s, although all ranks had arrived; expected "
            "it to complete in that time. Give cluster() a longer timeout_seconds for slow links "
            "or a slow rank, and call recover() to go on.",
            (),
            waiters,
            collective,
        )
    why = stands[1:]
    if absent:
        why = [
            f"{_ranks(group)} did not arrive: {_doing(group[0])}"
            for group in _grouped(absent, _doing)
        ]
    blamed = absent or [sight for group in waiting[1:] for sight in group]
    return CollectiveTimeoutError(
        f"run: {stands[0]} for {timeout_seconds:g} s; {'; '.join(why)}; expected every rank to "
        f"enter the same collectives in the same order. {_GO_ON}",
        tuple(sight.rank for sight in blamed),
        waiters,
        collective,
    )


def _place(sight: Sight) -> str:
    assert sight.collective is not None
    return f"{sight.collective.number} {sight.collective.sentence}"


def _standing(sights: Sequence[Sight]) -> str:
    """Return "all_reduce of 4.0 kB in float32 among ranks 0, 1 (their 3rd collective in the
    call)".
    """
    call = sights[0].collective
    assert call is not None
    whose = "their" if len(sights) > 1 else "its"
    return f"{call.sentence} ({whose} {ordinal(call.number + 1)} collective in the call)"


def _doing(sight: Sight) -> str:
    """Return what a rank that did not come was doing."""
    count = f"{sight.entered} collective{'' if sight.entered == 1 else 's'}"
    if sight.state == "returned":
        return f"it had returned after {count}"
    at = f" at {sight.where}" if sight.where else ""
    return f"it was still running{at} after {count}"


def _grouped(sights: Iterable[Sight], key: Callable[[Sight], str]) -> list[list[Sight]]:
    """Return those that share a key together, in order of appearance."""
    groups: dict[str, list[Sight]] = {}
    for sight in sights:
        groups.setdefault(key(sight), []).append(sight)
    return list(groups.values())


def _ranks(sights: Sequence[Sight]) -> str:
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


_TICK_SECONDS = 0.05
# After the first sign of trouble the others get this long to say where they stand: a rank whose
# neighbor died fails at once, others report within a second. All of it, with the interrupt, must
# stay under 5 s.
_SETTLE_SECONDS = 1.6
_IDLE_SECONDS = 2.4
# An interrupt that meets a rank before its function runs is lost there without a report: so
# often it is sent again. A rank that has to be freed from a collective first has answered by then
# (`_rank.Agent`).
_AGAIN_SECONDS = 1.0
Trouble = Literal["death", "collective", "raise", "deadline"]


class Call:
    """A function on its way through all ranks."""

    def __init__(
        self, engines: Engines, payload: bytes, timeout_seconds: float, limit_seconds: float | None
    ) -> None:
        self.engines = engines
        self.timeout_seconds, self.limit_seconds = timeout_seconds, limit_seconds
        self.jobs = [
            engines.client[engine].apply_async(_rank.execute, payload) for engine in engines.ids
        ]
        self.outcomes: dict[int, Outcome] = {}
        self.died: dict[int, str] = {}
        self.refused: dict[int, str] = {}
        self.interrupted = False
        self.begin = time.monotonic()

    @property
    def open(self) -> list[int]:
        """The ranks that have not answered, and whose process has not ended."""
        return [
            rank
            for rank in range(len(self.jobs))
            if not (rank in self.outcomes or rank in self.died or rank in self.refused)
        ]

    @property
    def in_step(self) -> bool:
        """Whether the ranks can go on: all alive and idle, none failed in a collective, and each
        group's members entered equally many.
        """
        if len(self.outcomes) < len(self.jobs) or self._waits:
            return False
        # a message has two ends, and is no collective of a group
        counts = {
            rank: Counter(
                call.group
                for call in outcome.calls
                if call.name not in {"send", "recv", "send and recv"}
            )
            for rank, outcome in self.outcomes.items()
        }
        groups = {call.group for outcome in self.outcomes.values() for call in outcome.calls}
        return all(len({counts[rank][group] for rank in group}) <= 1 for group in groups)

    @property
    def _waits(self) -> bool:
        return any(outcome.sight.waits for outcome in self.outcomes.values())

    def wait(self, stop: threading.Event) -> RankError | None:
        """Wait until every rank has returned, or until it is sure that one never will; return what
        went wrong.

        Raises
        ------
        StoppedError
            If somebody asked to stop; the ranks are interrupted.
        KeyboardInterrupt
            As it came; the ranks are interrupted.
        """
        try:
            trouble = self._until_known(stop)
        except BaseException:
            self._interrupt()
            raise
        if trouble is None:
            return None
        before = [self._sight(rank) for rank in range(len(self.jobs))]
        if self.open:
            self._interrupt()
        return self._error(before, trouble)

    def _until_known(self, stop: threading.Event) -> Trouble | None:
        since: float | None = None
        while True:
            self._collect()
            trouble = self._trouble()
            if not self.open:
                return trouble
            if stop.is_set():
                raise StoppedError(
                    "run: stopped before every rank had returned. Call it again; if that reports "
                    "ranks out of step, call recover()."
                )
            now = time.monotonic()
            if trouble is not None:
                since = now if since is None else since
                if self._settled(trouble, now - since):
                    return trouble
            concurrent.futures.wait([self.jobs[rank] for rank in self.open], timeout=_TICK_SECONDS)

    def _settled(self, trouble: Trouble, seconds: float) -> bool:
        """Whether waiting any longer teaches nothing."""
        if trouble == "deadline" or (trouble == "raise" and self._late):
            return True
        standing = all(self._sight(rank).collective is not None for rank in self.open)
        if standing and seconds > _SETTLE_SECONDS / 2:
            return True
        return trouble != "raise" and seconds > _SETTLE_SECONDS

    def _trouble(self) -> Trouble | None:
        if self.died or self.refused:
            return "death"
        if self._waits:
            return "collective"
        if any(outcome.sight.state != "returned" for outcome in self.outcomes.values()):
            return "raise"
        return "deadline" if self.open and self._late else None

    @property
    def _late(self) -> bool:
        """Whether the call has taken as long as it may."""
        return self.limit_seconds is not None and time.monotonic() - self.begin > self.limit_seconds

    def _collect(self) -> None:
        """Take in what has arrived."""
        import cloudpickle

        for rank, how in self.engines.deaths().items():
            if rank not in self.outcomes and not self.jobs[rank].done():
                self.died.setdefault(rank, how)
        for rank in self.open:
            if not self.jobs[rank].done():
                continue
            try:
                self.outcomes[rank] = cloudpickle.loads(self.jobs[rank].get(1.0))
            except Exception as error:
                self._failed(rank, error)

    def _failed(self, rank: int, error: Exception) -> None:
        """Take in what ipyparallel itself says of a rank: its engine is gone, or it cannot run our
        part at all.
        """
        if getattr(error, "ename", "") == "EngineError":
            self.died[rank] = self.engines.deaths().get(rank, "ended without an error message")
        elif self.interrupted and getattr(error, "ename", "") == "KeyboardInterrupt":
            # just before its function began, or just after
            self.outcomes[rank] = Outcome(Sight(rank, "interrupted"), b"", b"", "", "", ())
        else:
            self.refused[rank] = message_of(error)

    def _interrupt(self) -> None:
        """Interrupt those who have not answered, and wait until they have, or their process is
        known to have ended.
        """
        self.interrupted = True
        again = time.monotonic()
        end = again + _IDLE_SECONDS
        while self.open and time.monotonic() < end:
            # a rank takes one a call: who is cleaning up is not disturbed
            if time.monotonic() >= again:
                self.engines.interrupt(self.open)
                again += _AGAIN_SECONDS
            concurrent.futures.wait([self.jobs[rank] for rank in self.open], timeout=_TICK_SECONDS)
            self._collect()
        # an interrupt that crossed with an answer must not hit what the rank does next
        time.sleep(_TICK_SECONDS)

    def _sight(self, rank: int) -> Sight:
        """Return where a rank stands: its outcome, or what it last reported."""
        if rank in self.outcomes:
            return self.outcomes[rank].sight
        seen = self.jobs[rank].data
        seen = seen if isinstance(seen, dict) else {}
        collective = seen.get("collective")
        return Sight(
            rank,
            "died" if rank in self.died else "running",
            seen.get("entered", 0),
            None if collective is None else CollectiveCall.from_dict(collective),
            seen.get("where", ""),
            self.died.get(rank, ""),
        )

    def _error(self, before: Sequence[Sight], trouble: Trouble) -> RankError:
        """Return the error, from where the ranks stood before they were interrupted, and what the
        interrupt brought to light.
        """
        if self.refused:
            rank, text = next(iter(self.refused.items()))
            return RankError(
                f"run: rank {rank} could not run the call ({text}); expected gpulab on every "
                "engine. Install it there.",
                (rank,),
            )
        sights = []
        for sight in before:
            after = self.outcomes.get(sight.rank)
            # heard after those who lost their connection to it
            if sight.state == "running" and sight.rank in self.died:
                sight = replace(sight, state="died", where="", error=self.died[sight.rank])  # noqa: PLW2901
            elif sight.state == "running" and after is not None:
                # how it answered an interrupt says best where it was
                sight = replace(  # noqa: PLW2901
                    after.sight,
                    state="running",
                    collective=after.sight.collective or sight.collective,
                    error="",
                )
            sights.append(sight)
        if trouble == "deadline" and not any(
            sight.waits or sight.state == "died" for sight in sights
        ):
            late = [sight.rank for sight in sights if sight.state == "running"]
            where = next((sight.where for sight in sights if sight.where), "")
            return RankError(
                f"run: {named(late)} had not returned after {self.limit_seconds:g} "
                f"s{f' (at {where})' if where else ''}; expected all to return. Give run() a "
                "longer timeout_seconds, or have the function do less.",
                tuple(late),
            )
        error = explain(
            sights, self.timeout_seconds if trouble != "deadline" else time.monotonic() - self.begin
        )
        error.__cause__ = self._cause(sights)
        return error

    def _cause(self, sights: Sequence[Sight]) -> BaseException | None:
        """Return what the first rank raised, with its own traceback as a note."""
        import cloudpickle

        raised = [sight.rank for sight in sights if sight.state in {"raised", "interrupted"}]
        raised.sort(key=lambda rank: sights[rank].waits)
        if not raised:
            return None
        outcome = self.outcomes[raised[0]]
        try:
            error: BaseException = (
                cloudpickle.loads(outcome.error)
                if outcome.error
                else RuntimeError(outcome.sight.error)
            )
        except Exception:  # an exception that cannot be built again here; its text can
            error = RuntimeError(outcome.sight.error)
        error.add_note(f"On rank {raised[0]}:\n{outcome.trace}")
        return error
