"""One call on every rank: sent, waited for, and diagnosed when it goes wrong."""

from __future__ import annotations

import concurrent.futures
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

from gpulab.errors import RankError, StoppedError, message_of
from gpulab.parallel import _rank
from gpulab.parallel._calls import CollectiveCall
from gpulab.parallel._engines import Engines
from gpulab.parallel._failures import explain, named
from gpulab.parallel._outcome import Outcome, Sight

_TICK_SECONDS = 0.05
# After the first sign of trouble the others get this long to say where they stand: a rank whose
# neighbor died fails at once, others report within a second. All of it, with the interrupt, must
# stay under 5 s.
_SETTLE_SECONDS = 1.6
_IDLE_SECONDS = 2.4
# An interrupt that meets a rank before its function runs is lost there, and nobody is told: so
# often it is sent again. A rank that has to be freed from a collective first has answered by then
# (`_agent`).
_AGAIN_SECONDS = 1.0
Trouble = Literal["death", "collective", "raise", "deadline"]


class Call:
    """A function on its way through all ranks."""

    def __init__(
        self, engines: Engines, payload: bytes, timeout_seconds: float, limit_seconds: float | None
    ) -> None:
        self.engines, self.timeout_seconds, self.limit_seconds = (
            engines,
            timeout_seconds,
            limit_seconds,
        )
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
    def idle(self) -> bool:
        """Whether every rank's process lives and waits for work."""
        return not self.open and not self.died

    @property
    def in_step(self) -> bool:
        """Whether the ranks can go on: all alive and idle, none failed in a collective, and each
        group's members entered equally many.
        """
        if (
            not self.idle
            or self.refused
            or any(outcome.sight.waits for outcome in self.outcomes.values())
        ):
            return False
        groups = {call.group for outcome in self.outcomes.values() for call in outcome.calls}
        return all(
            len({_entered(self.outcomes[rank].calls, group) for rank in group}) <= 1
            for group in groups
        )

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
        before = self._sights()
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
        if any(outcome.sight.waits for outcome in self.outcomes.values()):
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

    def _sights(self) -> list[Sight]:
        return [self._sight(rank) for rank in range(len(self.jobs))]

    def _sight(self, rank: int) -> Sight:
        """Return where a rank stands: its outcome, or what it last told."""
        if rank in self.outcomes:
            return self.outcomes[rank].sight
        told = self.jobs[rank].data
        collective = told.get("collective") if isinstance(told, dict) else None
        state: Literal["died", "running"] = "died" if rank in self.died else "running"
        return Sight(
            rank,
            state,
            told.get("entered", 0) if isinstance(told, dict) else 0,
            None if collective is None else CollectiveCall.from_dict(collective),
            told.get("where", "") if isinstance(told, dict) else "",
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
                found = after.sight
                sight = Sight(  # noqa: PLW2901
                    sight.rank,
                    "running",
                    found.entered,
                    found.collective or sight.collective,
                    found.where,
                    "",
                )
            sights.append(sight)
        if trouble == "deadline" and not any(
            sight.waits or sight.state == "died" for sight in sights
        ):
            late = [sight.rank for sight in sights if sight.state == "running"]
            where = next((sight.where for sight in sights if sight.where), "")
            return RankError(
                f"run: {named(late)} had not returned after {self.limit_seconds:g} "
                f"s{f' (at {where})' if where else ''}; expected "
                "all to return. Give run() a longer timeout_seconds, or have the function do less.",
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


def _entered(calls: Sequence[CollectiveCall], group: tuple[int, ...]) -> int:
    return sum(
        call.group == group and call.name not in {"send", "recv", "send and recv"} for call in calls
    )


def show_printed(outcomes: dict[int, Outcome], write: Callable[[str], object] = print) -> None:
    """Print what the ranks printed, each line with its rank."""
    for rank in sorted(outcomes):
        for line in outcomes[rank].printed.splitlines():
            write(f"[rank {rank}] {line}")
