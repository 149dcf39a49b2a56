"""Keep the texts of kernels that ``exec`` makes, which no file has, while scripts are simulated."""

from __future__ import annotations

import collections
import functools
import sys
from typing import Any

# Libraries compile texts as well: a dataclass some.
_MOST_TEXTS, _LONGEST = 4096, 1 << 16
# each with the name of a file that it was given
executed_texts: collections.deque[tuple[str, str]] = collections.deque(maxlen=_MOST_TEXTS)


def _keep(event: str, arguments: tuple[Any, ...]) -> None:
    if event != "compile" or not isinstance(arguments[0], (str, bytes)):
        return
    given = arguments[0]
    text = given if isinstance(given, str) else given.decode(errors="replace")
    if len(text) < _LONGEST and "def " in text:
        executed_texts.append((text, arguments[1]))


@functools.cache  # a hook cannot be taken back, so one is put where the first script begins
def keep_texts() -> None:
    """Keep, from now on, the last texts that are compiled from strings."""
    sys.addaudithook(_keep)
