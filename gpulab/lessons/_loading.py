"""Load the libraries that a check uses before its time begins.

A first import takes seconds, on a crowded machine half a minute, and is not the learner's doing. And a check that runs out of time is
ended wherever it is; in the middle of an import that would leave the library broken until a restart.
"""

from __future__ import annotations

import contextlib
import importlib
import threading
from collections.abc import Sequence


def load(names: Sequence[str]) -> None:
    """Import modules in a thread that nobody ends; an interrupt ends the wait for it, and leaves the libraries whole.

    Parameters
    ----------
    names : sequence of str
        A library that is not there or cannot be loaded is passed over: the check says so where it needs it.
    """
    if not names:
        return
    thread = threading.Thread(target=_import, args=(names,), name="gpulab-import")
    thread.start()
    while thread.is_alive():
        thread.join(0.05)  # a wait that an interrupt can end


def _import(names: Sequence[str]) -> None:
    for name in names:
        with contextlib.suppress(Exception):  # the check imports it again, and its error is shown
            importlib.import_module(name)
