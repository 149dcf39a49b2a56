"""Real ranks for instruments: one shared cluster, kept between runs and ended by Stop, with the
last instrument or with the kernel.
"""

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
    """At most one cluster at a time, of the size that was last asked for.

    Starting one takes seconds, and each rank takes some hundred MiB. So the instruments share it;
    their measurements take turns anyway.
    """

    def __init__(self) -> None:
        # held for seconds, while ranks start, recover or end: one cluster at a time
        self._lock = threading.RLock()
        # held for a moment, while it is decided whose the ranks are
        self._deciding = threading.RLock()
        self._ranks: Any = None
        self._retired: list[Any] = []  # ranks that nobody has any more, still to be ended
        self._users: weakref.WeakSet[Any] = weakref.WeakSet()

    def of(self, n: int, user: Any, progress: Progress) -> Any:
        """Return ``n`` ranks that are ready: the running ones, after a recovery if needed, or new
        ones.
        """
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
        """Whether a cluster is running."""
        return self._ranks is not None

    def end(self) -> None:
        """End the cluster; if there is none, nothing happens."""
        with self._lock:
            self._retire()
            self.end_retired()

    def leave(self, user: Any) -> bool:
        """Remove an instrument from the users, without waiting; return whether there are ranks for
        ``end_retired`` to end.
        """
        with self._deciding:
            self._users.discard(user)
            if not self._users:
                self._retire()
            return bool(self._retired)

    def end_retired(self) -> None:
        """End the ranks that no instrument uses any more; it takes seconds."""
        with self._lock:
            while self._retired:
                self._retired.pop().stop()

    def _retire(self) -> None:
        """Take the ranks away from all users; the next call of ``of`` starts new ones."""
        with self._deciding:
            ranks, self._ranks = self._ranks, None
            self._users.clear()
            if ranks is not None:
                self._retired.append(ranks)


LIVE = LiveRanks()
atexit.register(LIVE.end)


class OnRanks(Instrument):
    """The base class of instruments that run on real ranks; ``use`` lets them run on a cluster that
    is already open.
    """

    _lent: Any = None
    # the ranks that work under way has been given; others may be at work on the shared ones while
    # it waits its turn
    _used: Any = None
    # whether the core call ends the ranks' steps in order when asked to stop; else they are
    # interrupted
    stops_by_itself = False

    def use(self, ranks: Any) -> OnRanks:
        """Use an open cluster for every run with as many ranks as it has; the instrument never ends
        it.

        Parameters
        ----------
        ranks : Ranks
            From ``gl.parallel.cluster``, started.

        Returns
        -------
        OnRanks
            The instrument itself, so that a cell can end with this call.

        Raises
        ------
        InputError
            If ``ranks`` is not a cluster.
        """
        if not isinstance(ranks, parallel.Ranks):
            raise InputError(
                f"use: got {kind_of(ranks)}; expected ranks of gl.parallel.cluster. Pass the name "
                "after `as` in its `with`."
            )
        self._lent = ranks
        return self

    @contextlib.contextmanager
    def ranks(self, n: int, progress: Progress, stop: Stop) -> Iterator[Any]:
        """Provide ``n`` ranks for the work; after a stop or a failure the shared cluster is ended,
        so that no rank hangs.
        """
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
        """Let Stop know which ranks to interrupt, as long as they are at work for this
        instrument.
        """
        self._used = ranks
        try:
            yield
        finally:
            self._used = None

    def stop(self) -> None:
        """Ask the work to stop; if it does not stop by itself, interrupt its ranks and end their
        cluster.
        """
        running = self.running
        super().stop()
        if running and self.stops_by_itself:
            return
        if running:
            ranks = self._used
            if ranks is not None:
                ranks.interrupt()
        elif LIVE.leave(self):
            # a cell that ran again, or a call from Python: nothing is under way, so the processes
            # may go
            threading.Thread(target=LIVE.end_retired, name="gpulab-ranks-end", daemon=True).start()

    def close(self) -> None:
        """Stop the work, end the ranks if no other instrument uses them, and close the widgets."""
        super().close()
        if LIVE.leave(self):
            LIVE.end_retired()
