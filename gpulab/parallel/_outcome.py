"""What one rank reports of a call: while it runs (a sight), and when it has ended (an outcome).
Plain data that travels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gpulab.parallel._calls import CollectiveCall

State = Literal["returned", "raised", "interrupted", "running", "died"]


@dataclass(frozen=True)
class Sight:
    """Where a rank stands in a call.

    Attributes
    ----------
    rank : int
        Which.
    state : str
        "returned", "raised", "interrupted" (by us), "running", or "died" (its process ended).
    entered : int
        How many collectives of this call it has entered.
    collective : CollectiveCall or None
        The one that it stands in, or that it failed in.
    where : str
        The line of Python that it was last seen at, for a running rank.
    error : str
        Type and text of what it raised; for a rank that died, how its process ended.
    """

    rank: int
    state: State
    entered: int = 0
    collective: CollectiveCall | None = None
    where: str = ""
    error: str = ""

    @property
    def waits(self) -> bool:
        """Whether it stood in a collective that did not come about."""
        return self.collective is not None and self.state in {"raised", "interrupted", "running"}


@dataclass(frozen=True)
class Outcome:
    """How a call ended on a rank.

    Attributes
    ----------
    sight : Sight
        Where it ended.
    value : bytes
        The pickled result, of a call that returned.
    error : bytes
        The pickled exception, where it can be pickled; else b"".
    trace : str
        The traceback of what it raised, in the rank's own words.
    printed : str
        What the function printed.
    calls : tuple of CollectiveCall
        All collectives that it entered, in order.
    """

    sight: Sight
    value: bytes
    error: bytes
    trace: str
    printed: str
    calls: tuple[CollectiveCall, ...]
