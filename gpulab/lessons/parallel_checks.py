"""Real ranks for the checks of notebook 08: those of the notebook, or new ones."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

from gpulab import parallel


def open_ranks(least: int) -> Any:
    """Return the learner's open cluster with at least that many ranks (a variable of the notebook),
    or None.
    """
    names = vars(sys.modules["__main__"])
    found = (each for each in list(names.values()) if isinstance(each, parallel.Ranks))
    return next((each for each in found if each.n >= least and each.ready), None)


@contextlib.contextmanager
def ranks_of(least: int) -> Iterator[Any]:
    """Provide the learner's cluster, or start one for the check and end it afterwards."""
    found = open_ranks(least)
    if found is not None:
        yield found
        return
    with parallel.cluster(n=least) as ranks:
        yield ranks
