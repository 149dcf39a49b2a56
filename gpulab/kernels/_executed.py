"""Keep the last texts that were compiled from strings: no file has those of kernels that ``exec``
makes.
"""

from __future__ import annotations

import collections
import sys
from typing import Any

# each with the name of a file that it was given
executed_texts: collections.deque[tuple[str | bytes, str]] = collections.deque(maxlen=512)


def _keep(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "compile" and isinstance(arguments[0], (str, bytes)):
        executed_texts.append((arguments[0], arguments[1]))


sys.addaudithook(_keep)
