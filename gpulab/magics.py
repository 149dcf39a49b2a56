"""The IPython magics and display hooks that ``%load_ext gpulab`` registers."""

from __future__ import annotations

from typing import Any


def register(shell: Any) -> None:
    """Register all magics and display hooks with an IPython shell; calling it twice does no harm."""
