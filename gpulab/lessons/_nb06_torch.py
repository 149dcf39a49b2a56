"""Load PyTorch whole before a check uses it.

A check that runs out of time is ended wherever it is; in the middle of an import that would leave the library broken until a restart.
"""

from __future__ import annotations

import importlib
import threading
from typing import Any

# The parts that a first training step loads by itself; torch._dynamo comes with the first step of an optimizer.
_PARTS = ("torch", "torch.optim", "torch._dynamo")
_loaded = False


def loaded_torch() -> Any:
    """Return the ``torch`` module with all that a training step needs, imported in a thread that nobody ends."""
    if not _loaded:
        thread = threading.Thread(target=_load, name="gpulab-import")
        thread.start()
        while thread.is_alive():
            thread.join(0.05)  # a wait that the end of the check's time can interrupt
    return importlib.import_module("torch")


def _load() -> None:
    global _loaded
    for name in _PARTS:
        importlib.import_module(name)
    _loaded = True
