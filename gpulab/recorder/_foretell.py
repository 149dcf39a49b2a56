"""What would take too long is foretold by a small part and left out with that reason: products without instructions for a format."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from gpulab.errors import InputError

# A case makes some five calls at least, whatever its share of the budget.
LONGEST_CALL_SECONDS = 3.0


def refuse_long(who: str, small: Callable[[], Any], times: float, *, what: str = "call", longest_seconds: float | None = None) -> None:
    """Time a small part, which is warmed up once, and refuse the whole if ``times`` as long is too long.

    Raises
    ------
    InputError
        If the whole would take more than ``longest_seconds``, by default ``LONGEST_CALL_SECONDS``.
    """
    longest = LONGEST_CALL_SECONDS if longest_seconds is None else longest_seconds
    small()
    begin = time.perf_counter()
    small()
    seconds = times * (time.perf_counter() - begin)
    if seconds > longest:
        raise InputError(f"{who}: a {what} takes about {seconds:.0f} s here; expected at most {longest:g} s. Left out.")
