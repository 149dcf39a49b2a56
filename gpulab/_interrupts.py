"""Delay an interrupt that would break the first import of a library or a step of training."""

from __future__ import annotations

import contextlib
import importlib
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from types import FrameType, SimpleNamespace
from typing import Any

# If an interrupt cuts off the first import of one of these libraries, it stays half loaded
# ("partially initialized module torch") until the process ends.
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
    "sympy",
    "tensorflow",
    "torch",
    "torchao",
    "torchvision",
    "triton",
    "zmq",
}


def _finished_first(find_and_load: Any) -> Any:
    """Wrap importlib's ``_find_and_load``, which runs for each first import, so that interrupts of
    the main thread wait until the library and everything it imports are loaded.
    """
    importing = False

    def _find_and_load(name: str, *rest: Any) -> Any:
        nonlocal importing
        # importlib.import_module calls this function for loaded modules, too
        waits = name.partition(".")[0] in _LIBRARIES and name not in sys.modules and not importing
        is_main = threading.current_thread() is threading.main_thread()
        before = signal.getsignal(signal.SIGINT) if waits and is_main else None
        if not callable(before):
            return find_and_load(name, *rest)
        waiting: list[int] = []

        def note(number: int, frame: FrameType | None) -> None:
            if importing:
                waiting.append(number)
            else:  # the library has set a handler of its own, which calls this one
                before(number, frame)

        try:
            importing = True
            signal.signal(signal.SIGINT, note)
            return find_and_load(name, *rest)
        finally:
            importing = False
            if signal.getsignal(signal.SIGINT) is note:
                signal.signal(signal.SIGINT, before)
            if waiting:
                signal.raise_signal(signal.SIGINT)

    # Python leaves frames of this file out of tracebacks and warnings
    file = find_and_load.__code__.co_filename
    _find_and_load.__code__ = _find_and_load.__code__.replace(co_filename=file)
    return _find_and_load


# If a later Python lacks this private function, interrupts are not delayed.
with contextlib.suppress(AttributeError):
    _importlib: Any = importlib._bootstrap
    _importlib._find_and_load = _finished_first(_importlib._find_and_load)


@contextlib.contextmanager
def deferred(
    signals: Iterable[int] = (signal.SIGINT,), answer: Callable[[], None] = lambda: None
) -> Iterator[SimpleNamespace]:
    """Within the block, the first interrupt is noted in ``asked``; a second one raises
    KeyboardInterrupt at once.

    Python handles signals in the main thread only, so in another thread (such as that of an
    instrument's work) the block changes nothing.

    Parameters
    ----------
    signals : iterable of int
        The signals that count as an interrupt.
    answer : callable
        Called at the first interrupt.
    """
    state = SimpleNamespace(asked=False)

    def note(number: int, frame: Any) -> None:
        if state.asked:
            raise KeyboardInterrupt
        state.asked = True
        answer()

    is_main = threading.current_thread() is threading.main_thread()
    before = {number: signal.signal(number, note) for number in signals if is_main}
    try:
        yield state
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.default_int_handler if handler is None else handler)


def leave_to_the_run(worker: int) -> None:
    """Make a DataLoader's worker ignore interrupts (a ``worker_init_fn``); the process that started
    it ends it.

    A notebook's Stop and Ctrl-C at a terminal reach every process of the group. PyTorch's workers
    would end at such a signal, and the step in flight would wait for a batch that never comes.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
