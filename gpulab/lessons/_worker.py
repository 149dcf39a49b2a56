"""A worker that computes on its own, so that every machine can show what an asynchronous device does to a clock.

A GPU's driver takes a call, puts it into a queue and returns; the device works later, by itself. This does the same
with a thread, so the traps (a clock stopped too early, a result read too early) happen live without a GPU.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


class WorkQueue:
    """Run submitted calls one after another on a thread; ``submit`` returns at once, ``synchronize`` waits.

    While one call runs, one more can wait. A further call takes the waiting one's place, so that timing ``submit`` a
    thousand times does not leave a thousand calls to do. (A CUDA queue holds about a thousand and then makes the host wait.)
    The worker thread is a daemon and ends with the kernel.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: Callable[[], Any] | None = None
        self._running = False
        self._error: BaseException | None = None
        threading.Thread(target=self._work, name="gpulab-worker", daemon=True).start()

    def submit(self, fn: Callable[..., Any], *args: Any) -> None:
        """Queue ``fn(*args)`` and return at once; what it returns is dropped.

        Parameters
        ----------
        fn : callable
        *args
            Its arguments; do not change them before ``synchronize``.
        """
        with self._changed:
            self._waiting = lambda: fn(*args)
            self._changed.notify_all()

    def synchronize(self) -> None:
        """Return when all that was submitted is done.

        Raises
        ------
        Exception
            What a submitted call raised: as on a GPU, an error shows only here.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._waiting is None and not self._running)
            error, self._error = self._error, None
        if error is not None:
            raise error

    def run(self, fn: Callable[..., Any], *args: Any) -> None:
        """Submit ``fn(*args)`` and wait until it is done."""
        self.submit(fn, *args)
        self.synchronize()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting is not None)
                work, self._waiting = self._waiting, None
                self._running = True
            failure: BaseException | None = None
            try:
                assert work is not None  # it was waited for
                work()
            except BaseException as error:  # shown by synchronize, as a device's error is
                failure = error
            work = None  # the arguments are free as soon as the call is done
            with self._changed:
                self._running = False
                self._error = self._error or failure
                self._changed.notify_all()

    def __repr__(self) -> str:
        with self._changed:
            state = "busy" if self._running or self._waiting is not None else "idle"
        return f"<WorkQueue, {state}>"
