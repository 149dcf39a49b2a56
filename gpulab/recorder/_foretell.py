"""Estimate from a small part how long a case takes, and leave out those that would take too long
(formats without hardware support).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

from gpulab.errors import InputError

# A case makes some five calls at least, whatever its share of the budget.
LONGEST_CALL_SECONDS = 3.0
# What seems too long is timed so often: a machine that does something else only lengthens a time,
# and here it is multiplied by hundreds.
_SAMPLES = 3


def refuse_long(
    who: str,
    small: Callable[[], Any],
    times: float,
    *,
    what: str = "call",
    longest_seconds: float | None = None,
) -> None:
    """Time a small part after one warm-up call, and refuse the whole if ``times`` times its fastest
    sample is too long.

    Raises
    ------
    InputError
        If the whole would take more than ``longest_seconds``, by default ``LONGEST_CALL_SECONDS``.
    """
    longest = LONGEST_CALL_SECONDS if longest_seconds is None else longest_seconds
    small()
    least = math.inf
    for _ in range(_SAMPLES):
        begin = time.perf_counter()
        small()
        least = min(least, times * (time.perf_counter() - begin))
        if least <= longest:
            return
    # Rounded so that what is too long does not read as what is allowed: 3.4 and not 3 beside 3.
    told = f"{least:.0f}" if round(least) > longest else f"{least:.1f}"
    raise InputError(
        f"{who}: a {what} would take about {told} s here; expected at most {longest:g} s. Left out."
    )
