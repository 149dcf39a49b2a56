"""The notebook cell that made each instrument, so that running the cell again stops the thread of
the old instrument.
"""

from __future__ import annotations

import weakref
from typing import Any, Protocol


class _Stoppable(Protocol):
    def stop(self) -> None: ...


# Cell id -> (the execution that made them, the instruments made then).
_MADE: dict[str, tuple[str, list[weakref.ref[Any]]]] = {}


def _current() -> tuple[str, str] | None:
    """Return the ids of the cell and of its execution, or None outside a notebook."""
    try:
        from IPython import get_ipython
    except ImportError:
        return None
    kernel = getattr(get_ipython(), "kernel", None)
    if kernel is None:
        return None
    parent = kernel.get_parent("shell") or {}
    cell = parent.get("metadata", {}).get("cellId")
    return (cell, parent.get("header", {}).get("msg_id", "")) if cell else None


def register(instrument: _Stoppable, where: tuple[str, str] | None = None) -> None:
    """Remember which cell made the instrument; stop those that an earlier run of the same cell
    made.

    Parameters
    ----------
    instrument : Instrument
    where : (str, str), optional
        Ids of the cell and of its execution. By default the kernel is asked for them.
    """
    where = where or _current()
    if where is None:
        return
    cell, execution = where
    before, made = _MADE.get(cell, (execution, []))
    if before != execution:
        for reference in made:
            old = reference()
            if old is not None:
                old.stop()
        made = []
    _MADE[cell] = (execution, [*made, weakref.ref(instrument)])
