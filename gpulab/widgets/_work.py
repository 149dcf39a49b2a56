"""Long work outside the kernel's main thread: progress, Stop, and one measurement at a time.

A loop in a button's callback blocks the kernel and cannot be stopped, and an exception in a thread
is not shown in a notebook. So the work runs in a thread of its own, and the instrument receives its
result or a sentence about its failure.
"""

from __future__ import annotations

import atexit
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable
from typing import Any

from IPython import get_ipython

from gpulab.errors import GpulabError, StoppedError, message_of

Progress = Callable[[float, str], None]
Stop = Callable[[], bool]

# Progress is sent at most every tenth of a second: more often would not be visible, and each
# message takes time from the measured process.
_PROGRESS_SECONDS = 0.1
_WAIT_SECONDS = 0.05

# One measurement at a time in this process; the core's own lock does the same between processes.
_MEASURING = threading.Lock()
_RUNNING: weakref.WeakSet[Job] = weakref.WeakSet()


class Job:
    """One piece of work in a thread.

    Parameters
    ----------
    work : callable
        ``work(progress, stop)``, returning the result.
    on_progress : callable
        Called with a fraction and a text, throttled.
    on_end : callable
        Called once, in the thread, with the job, the result and a sentence about the failure: "" if
        there was none; after a failure the result is None.
    exclusive : bool
        Whether the work measures, and so must not run beside another measurement.
    """

    def __init__(
        self,
        work: Callable[[Progress, Stop], Any],
        on_progress: Progress,
        on_end: Callable[[Job, Any, str], None],
        exclusive: bool,
    ) -> None:
        self._work, self._on_progress, self._on_end = work, on_progress, on_end
        self._exclusive = exclusive
        self._stop = threading.Event()
        # used instead of is_alive, which in Python 3.11 is False for a running thread after an
        # interrupted Thread.join
        self._over = threading.Event()
        self._last = 0.0
        self.traceback = ""
        self.stopped_empty = False  # stopped before there was anything to report
        self._thread = threading.Thread(target=self._main, name="gpulab-instrument", daemon=True)

    def start(self) -> None:
        """Start the thread; if the system cannot start one, the job ends at once with a sentence
        about it.
        """
        _RUNNING.add(self)
        # Some work, such as a diet, changes PyTorch's number of threads temporarily. A thread that
        # first asks for the number during that time would keep it, so this thread asks now.
        # (``getattr`` because another thread may still be importing torch.)
        if (ask := getattr(sys.modules.get("torch"), "get_num_threads", None)) is not None:
            ask()
        try:
            self._thread.start()
        except RuntimeError as error:  # a container's limit of processes counts threads too
            sentence = (
                f"The work could not start ({error}); expected room for one more thread. Shut down "
                "other kernels, and run again."
            )
            self._finish(None, sentence)

    def stop(self) -> None:
        """Ask the work to end after the call in flight."""
        self._stop.set()

    @property
    def stopping(self) -> bool:
        """Whether a stop was requested."""
        return self._stop.is_set()

    def join(self, seconds: float | None = None) -> bool:
        """Wait, interruptibly, for the job to end; return whether it ended."""
        deadline = None if seconds is None else time.monotonic() + seconds
        while not self._over.wait(_WAIT_SECONDS) and (
            deadline is None or time.monotonic() < deadline
        ):
            pass
        return self._over.is_set()

    def _report(self, fraction: float, text: str) -> None:
        now = time.monotonic()
        if now - self._last >= _PROGRESS_SECONDS or fraction >= 1:
            self._last = now
            self._on_progress(min(max(fraction, 0.0), 1.0), text)

    def _main(self) -> None:
        result, sentence = None, ""
        try:
            while self._exclusive and not _MEASURING.acquire(timeout=_WAIT_SECONDS):
                self._report(0.0, "Waiting: another instrument is measuring")
                if self._stop.is_set():
                    raise StoppedError(
                        "Stopped while waiting for another instrument; nothing was measured."
                    )
            try:
                result = self._work(self._report, self._stop.is_set)
            finally:
                if self._exclusive:
                    _MEASURING.release()
        except BaseException as error:  # the end of the thread: an error not reported here is lost
            # text only: a kept traceback would keep its tensors alive
            self.traceback = traceback.format_exc()
            self.stopped_empty = isinstance(error, StoppedError)
            sentence = in_one_sentence(error)
        finally:
            self._finish(result, sentence)

    def _finish(self, result: Any, sentence: str) -> None:
        _RUNNING.discard(self)
        try:
            self._on_end(self, result, sentence)
        finally:
            self._over.set()


def in_one_sentence(error: BaseException) -> str:
    """Return the error and what to do about it, in one line."""
    if isinstance(error, GpulabError):
        return " ".join(str(error).split())
    words = ": ".join(filter(None, (type(error).__name__, message_of(error, 240))))
    return (
        f"{words} (the kernel is still usable: change the input and try again; an instrument keeps "
        "the details of failed work in its attribute traceback)."
    )


@atexit.register
def stop_all() -> None:
    """Stop every job of this process; called when the interpreter exits, so that no thread uses
    unloaded libraries.
    """
    jobs = list(_RUNNING)
    for job in jobs:
        job.stop()
    for job in jobs:
        job.join(2.0)


# Cell ID -> ID of an execution of the cell -> the instruments that this execution made.
_MADE: dict[str, dict[str, weakref.WeakSet[Any]]] = {}


def register(instrument: Any) -> None:
    """Remember which cell of the notebook made the instrument; stop those that an earlier run of
    the same cell made.
    """
    kernel = getattr(get_ipython(), "kernel", None)  # type: ignore[no-untyped-call,unused-ignore]
    parent = (kernel.get_parent("shell") if kernel is not None else None) or {}
    cell = parent.get("metadata", {}).get("cellId")
    if not cell:
        return
    execution = parent.get("header", {}).get("msg_id", "")
    runs = _MADE.setdefault(cell, {})
    for earlier in runs.keys() - {execution}:
        for old in runs.pop(earlier):
            old.stop()
    runs.setdefault(execution, weakref.WeakSet()).add(instrument)
