"""A call that must be refused, as one expression."""

from collections.abc import Callable
from typing import Any

import pytest


def refused(
    error: type[BaseException], call: Callable[..., Any], *args: Any, **options: Any
) -> Any:
    """Return what the call raises: pytest's description of the error of that class."""
    with pytest.raises(error) as caught:
        call(*args, **options)
    return caught
