"""Let the step in flight finish when the learner interrupts, so that what was reached is whole."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any


class Interrupted:
    """Whether the learner has interrupted."""

    def __init__(self) -> None:
        self.asked = False


_blocks: list[Interrupted] = []  # that the main thread is in, the outermost first


@contextlib.contextmanager
def deferred() -> Iterator[Interrupted]:
    """Within the block, the first interrupt is noted in ``asked``; a second one raises KeyboardInterrupt at once.

    Only the main thread is interrupted, so elsewhere (an instrument's work) nothing changes. A block around another one is asked too:
    an interrupt in the last step of one run ends the series of runs.
    """
    state = Interrupted()

    def note(number: int, frame: Any) -> None:
        if state.asked:
            raise KeyboardInterrupt
        state.asked = True

    if threading.current_thread() is not threading.main_thread():
        yield state
        return
    before = signal.signal(signal.SIGINT, note)
    _blocks.append(state)
    try:
        yield state
    finally:
        signal.signal(signal.SIGINT, before if before is not None else signal.default_int_handler)
        _blocks.pop()
        if state.asked and _blocks:
            _blocks[-1].asked = True


def leave_to_the_run(worker: int) -> None:
    """Begin a process that prepares batches: at an interrupt it goes on, and who started it ends it.

    A notebook's Stop and Ctrl-C at a terminal reach every process of the group. Workers of PyTorch's end by them, and the step in flight
    would wait for a batch that never comes.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
