"""Texts to approve: what a call without options means, and how it refuses what it cannot use."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from types import ModuleType
from typing import Any

from gpulab import devices
from gpulab.errors import GpulabError


def defaults(module: ModuleType) -> str:
    """Each public function of a module with its arguments and defaults, a line each."""
    lines = []
    for name in sorted(module.__all__):
        function = getattr(module, name)
        if inspect.isfunction(function):
            parameters = inspect.signature(function).parameters.items()
            given = (k if p.default is p.empty else f"{k}={p.default!r}" for k, p in parameters)
            lines.append(f"{name}({', '.join(given)})\n")
    return "".join(lines).replace(devices.find("cpu").name, "A CPU")


def _short(value: Any) -> str:
    """A value on one line and without an address."""
    plain = not callable(value)
    return f"{value!r:.30}" if plain else getattr(value, "__name__", type(value).__name__)


def refusals(calls: Iterable[tuple[Any, tuple[Any, ...], dict[str, Any]]]) -> str:
    """The error of each call (function, arguments, options), two lines each."""
    lines = []
    for function, arguments, options in calls:
        shown = ", ".join(f"{name}={_short(value)}" for name, value in options.items())
        try:
            found = function(*arguments, **options)
        except GpulabError as error:
            lines.append(f"{function.__name__}({shown})\n    {type(error).__name__}: {error}\n")
        else:
            raise AssertionError(f"{function.__name__}({shown}) gave {found!r:.200}")
    return "".join(lines).replace(devices.find("cpu").name, "A CPU")
