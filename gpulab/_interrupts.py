"""Delay an interrupt that would break the first import of a library or a step of training."""

from __future__ import annotations

import _thread
import contextlib
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from types import FrameType, SimpleNamespace
from typing import Any

# Cut off in its first import, such a library stays half loaded ("partially initialized module
# torch") until the process ends.
_LIBRARIES = {
    "IPython",
    "anywidget",
    "cloudpickle",
    "cuda",
    "cupy",
    "cupyx",
    "gpulab",
    "ipykernel",
    "ipyparallel",
    "ipywidgets",
    "jax",
    "jaxlib",
    "keras",
    "llvmlite",
    "matplotlib",
    "ml_dtypes",
    "networkx",
    "numba",
    "numba_cuda",
    "numpy",
    "pandas",
    "plotly",
    "psutil",
    "pynvml",
    "scipy",
    "sklearn",
    "sympy",
    "tensorflow",
    "torch",
    "torchao",
    "torchvision",
    "triton",
    "zmq",
}
_RETRY_SECONDS = 0.02


def _find_spec(name: str, path: Any = None, target: Any = None) -> None:
    """Let the interrupts of the main thread wait until a library is imported; Python asks before
    each first import, whoever imports.
    """
    if (
        name.partition(".")[0] in _LIBRARIES
        and threading.current_thread() is threading.main_thread()
    ):
        before = signal.getsignal(signal.SIGINT)
        if callable(before) and not isinstance(before, _AfterImport):
            signal.signal(signal.SIGINT, _AfterImport(before))


class _AfterImport:
    """A handler of interrupts that calls the one before it, outside of such an import."""

    def __init__(self, before: Callable[[int, FrameType | None], Any]) -> None:
        self.before, self.asked = before, False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if not _is_importing(frame):
            self.asked = False
            signal.signal(signal.SIGINT, self.before)
            self.before(number, frame)
        elif not self.asked:
            self.asked = True
            # daemon, or Python would wait for it at its end, and be interrupted there
            threading.Thread(target=self._send_again, daemon=True).start()

    def _send_again(self) -> None:
        """Send the interrupt after the import, again and again until its handler has run: a signal
        that comes just before a wait in the system does not end it.
        """
        main: Any = threading.main_thread().ident
        # on Windows no thread gets a signal of its own
        send: Any = getattr(signal, "pthread_kill", lambda *_: _thread.interrupt_main())
        while self.asked:
            time.sleep(_RETRY_SECONDS)
            if _is_importing(sys._current_frames()[main]):
                continue
            handler = signal.getsignal(signal.SIGINT)
            # No thread runs between the look at ``asked`` and the signal, so none comes too many.
            if callable(handler) and self.asked:
                send(main, signal.SIGINT)
            if handler is not self:  # another one, which gets it once
                self.asked = False


def _is_importing(frame: FrameType | None) -> bool:
    return any(
        each.f_code.co_name == "_find_and_load"  # importlib's
        and str(each.f_locals.get("name")).partition(".")[0] in _LIBRARIES
        for each, _ in traceback.walk_stack(frame)
    )


def raise_waiting() -> None:
    """Raise the interrupt that waits for an import, where one does: a command ends by it, and not
    Python as it ends.
    """
    handler = signal.getsignal(signal.SIGINT)
    if isinstance(handler, _AfterImport) and handler.asked:
        handler.asked = False
        raise KeyboardInterrupt


sys.meta_path.insert(0, SimpleNamespace(find_spec=_find_spec))  # a finder that finds nothing


class Interrupted:
    """Whether the learner has interrupted."""

    def __init__(self) -> None:
        self.asked = False


_blocks: list[Interrupted] = []  # that the main thread is in, the outermost first


@contextlib.contextmanager
def deferred() -> Iterator[Interrupted]:
    """Within the block, the first interrupt is noted in ``asked``; a second one raises
    KeyboardInterrupt at once.

    Only the main thread is interrupted, so elsewhere (an instrument's work) nothing changes. A
    block around another one is asked too: an interrupt in the last step of one run ends the series
    of runs.
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
    """Begin a process that prepares batches: at an interrupt it goes on, and who started it ends
    it.

    A notebook's Stop and Ctrl-C at a terminal reach every process of the group. Workers of
    PyTorch's end by them, and the step in flight would wait for a batch that never comes.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
