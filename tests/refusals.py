"""Helpers for calls that must be refused, and the defaults of a module's functions as text."""

import inspect
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

import pytest
from gpulab import devices
from gpulab.errors import GpulabError


def refused(
    error: type[BaseException], call: Callable[..., Any], *args: Any, **options: Any
) -> Any:
    """Check that the call raises this error; return pytest's ``ExceptionInfo``."""
    with pytest.raises(error) as caught:
        call(*args, **options)
    return caught


def refusals(calls: Iterable[tuple[Any, tuple[Any, ...], dict[str, Any]]]) -> str:
    """Return the errors of calls (function, arguments, options), two lines each, to approve."""
    lines = []
    for function, arguments, options in calls:
        found = refused(GpulabError, function, *arguments, **options)
        shown = ", ".join(f"{name}={_short(value)}" for name, value in options.items())
        lines.append(f"{function.__name__}({shown})\n    {found.type.__name__}: {found.value}\n")
    return "".join(lines).replace(devices.find("cpu").name, "A CPU")


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
