"""Import the libraries that a check uses before its time limit starts.

A first import takes seconds, or half a minute on a busy machine, which is not the learner's fault.
Also, a check that exceeds its limit is ended wherever it is; in the middle of an import that would
leave the library broken until a restart.
"""

from __future__ import annotations

import contextlib
import importlib
import threading
from collections.abc import Sequence


def load(names: Sequence[str]) -> None:
    """Import modules in a thread that is never interrupted; an interrupt only ends the wait for it.

    Parameters
    ----------
    names : sequence of str
        A library that cannot be imported is skipped; the check reports it if it needs the library.
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
