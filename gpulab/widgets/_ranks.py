"""Real ranks behind instruments: one cluster for all of them, kept from run to run, ended with Stop, the last instrument or the kernel."""

from __future__ import annotations

import atexit
import contextlib
import threading
import weakref
from collections.abc import Iterator
from typing import Any

from gpulab import parallel
from gpulab.errors import InputError, StoppedError, kind_of
from gpulab.widgets._instrument import Instrument
from gpulab.widgets._work import Progress, Stop


class LiveRanks:
    """At most one cluster at a time, of the size that was asked for last.

    Starting one takes seconds and a rank some hundred MiB, so instruments share it: their measurements take turns anyway.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()  # held for seconds, while ranks start, recover or end: one cluster at a time
        self._deciding = threading.RLock()  # held for a moment, while it is decided whose the ranks are
        self._ranks: Any = None
        self._retired: list[Any] = []  # ranks that nobody has any more, still to be ended
        self._users: weakref.WeakSet[Any] = weakref.WeakSet()

    def of(self, n: int, user: Any, progress: Progress) -> Any:
        """Return ``n`` ranks that are ready: those that run already, mended ones, or new ones."""
        with self._lock:
            with self._deciding:
                if self._ranks is not None and self._ranks.n != n:
                    self._retire()
                self._users.add(user)
                ranks = self._ranks
            self.end_retired()  # first: they have their memory until they are gone
            if ranks is None:
                ranks = parallel.cluster(n, progress=lambda fraction, text: progress(0.0, text))
                ranks.px = False  # %%px goes on reaching the learner's own ranks
                ranks.start()
                self._ranks = ranks
            elif not ranks.ready:
                ranks.recover()
            return ranks

    @property
    def running(self) -> bool:
        """Whether a cluster is up."""
        return self._ranks is not None

    def end(self) -> None:
        """End the cluster; without one, nothing happens."""
        with self._lock:
            self._retire()
            self.end_retired()

    def leave(self, user: Any) -> bool:
        """Say that an instrument is gone, without waiting; return whether it was the last one, so that ``end_retired`` has work to do."""
        with self._deciding:
            self._users.discard(user)
            if not self._users:
                self._retire()
            return bool(self._retired)

    def end_retired(self) -> None:
        """End the ranks that nobody has any more; it takes seconds."""
        with self._lock:
            while self._retired:
                self._retired.pop().stop()

    def _retire(self) -> None:
        """Take the ranks away from all users: whoever asks from now on gets others."""
        with self._deciding:
            ranks, self._ranks = self._ranks, None
            self._users.clear()
            if ranks is not None:
                self._retired.append(ranks)


LIVE = LiveRanks()
atexit.register(LIVE.end)


class OnRanks(Instrument):
    """The parent of instruments that run on real ranks; ``use`` lends them a cluster that is open already."""

    _lent: Any = None
    _used: Any = None  # the ranks that work under way has been given; others may be at work on the shared ones while it waits its turn
    stops_by_itself = False  # whether the core call ends the ranks' steps in order when asked to stop; else they are interrupted

    def use(self, ranks: Any) -> OnRanks:
        """Run on a cluster that is open already, wherever as many ranks are asked for as it has; it is never ended from here.

        Parameters
        ----------
        ranks : Ranks
            From ``gl.parallel.cluster``, started.

        Returns
        -------
        OnRanks
            Itself, so that a cell can end with it.

        Raises
        ------
        InputError
            If these are no ranks.
        """
        if not isinstance(ranks, parallel.Ranks):
            raise InputError(f"use: got {kind_of(ranks)}; expected what gl.parallel.cluster gives. Pass the name after `as` in its `with`.")
        self._lent = ranks
        return self

    @contextlib.contextmanager
    def ranks(self, n: int, progress: Progress, stop: Stop) -> Iterator[Any]:
        """Give ``n`` ranks to the work; after a stop or a failure the instruments' own cluster is ended: nothing is left hanging."""
        if self._lent is not None and self._lent.n == n and self._lent.ready:
            with self._using(self._lent):
                yield self._lent
            return
        try:
            ranks = LIVE.of(n, self, progress)
            with self._using(ranks):
                if stop():
                    raise StoppedError("Stopped while the ranks started; nothing was measured.")
                yield ranks
        except InputError:  # refused before a rank heard of it
            raise
        except BaseException:
            LIVE.end()
            raise
        if stop():
            LIVE.end()

    @contextlib.contextmanager
    def _using(self, ranks: Any) -> Iterator[None]:
        """Let Stop know which ranks to interrupt, as long as they are at work for this instrument."""
        self._used = ranks
        try:
            yield
        finally:
            self._used = None

    def stop(self) -> None:
        """Ask the work to stop, interrupt the ranks in it where it does not end by itself, and end their cluster."""
        running = self.running
        super().stop()
        if running and self.stops_by_itself:
            return
        if running:
            ranks = self._used
            if ranks is not None:
                ranks.interrupt()
        elif LIVE.leave(self):  # a cell that ran again, or a call from Python: nothing is under way, so the processes may go
            threading.Thread(target=LIVE.end_retired, name="gpulab-ranks-end", daemon=True).start()

    def close(self) -> None:
        """Stop the work, end the ranks if no other instrument has them, and close the widgets."""
        super().close()
        if LIVE.leave(self):
            LIVE.end_retired()
