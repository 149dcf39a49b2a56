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


@contextlib.contextmanager
def deferred() -> Iterator[Interrupted]:
    """Within the block, the first interrupt is noted in ``asked``; a second one raises KeyboardInterrupt at once.

    Only the main thread is interrupted, so elsewhere (an instrument's work) nothing changes.
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
    try:
        yield state
    finally:
        signal.signal(signal.SIGINT, before if before is not None else signal.default_int_handler)
