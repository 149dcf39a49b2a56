"""Validation of arguments that many functions share: numbers, flags, paths and callbacks.

When a clock, progress, stop or conditions callable fails, the error must name it and not the
function that was measured; and a clock that stands still, goes back or does not return a number
must end the measurement, because its deadline would never come.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
import numbers
import os
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any, TypeGuard, TypeVar, cast

import numpy as np

from gpulab.errors import GpulabError, InputError, kind_of, message_of, shown

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
# Equal readings in a row after which a clock counts as standing still. A clock that ticks every
# 16 ms (Windows) gives at most a few dozen: a sample is first made long compared with the tick, and
# only then repeated.
MOST_EQUAL_READINGS = 1_000
_QUICK_SHARE = 0.2
# Larger numbers of bytes, seconds or rates are mistakes, and their products would overflow a float.
LARGEST_NUMBER = 1e30


# The default of an argument whose rule is ``hook``. The argument is annotated as a callable or Any,
# so that callers may pass None and the body, which gets a callable, need not check for None.
LEFT_OUT: Any = None


def nothing(*_: Any) -> Any:
    """Do nothing and return None; replaces a progress or stop callback that was not given."""


def arguments(**rules: Callable[[str, str, Any], Any]) -> Callable[[F], F]:
    """Return a decorator that checks a function's arguments before its body runs.

    Parameters
    ----------
    **rules : callable
        The rule of each argument: one of the functions below, in a ``functools.partial`` if it
        needs limits. The rule is called with the function's name, the argument's name and the
        value; the body gets the rule's result. The value None is not checked where it is the
        default; if the rule is ``hook``, the body then gets ``nothing``.

    Examples
    --------
    >>> @arguments(n=functools.partial(whole, low=1, high=8, advice="Pass n=2."))
    ... def start(n=None):
    ...     return n
    >>> start(4), start()
    (4, None)
    >>> start(0)
    Traceback (most recent call last):
        ...
    gpulab.errors.InputError: start: n is 0; expected a whole number from 1 to 8. Pass n=2.
    """

    def decorate(function: F) -> F:
        signature = inspect.signature(function)

        @functools.wraps(function)
        def checked(*args: Any, **kwargs: Any) -> Any:
            bound = None
            with contextlib.suppress(TypeError):
                bound = signature.bind(*args, **kwargs)
            if bound is None:  # this call raises Python's own error, which names the function
                return function(*args, **kwargs)
            bound.apply_defaults()
            for name, rule in rules.items():
                value, default = bound.arguments[name], signature.parameters[name].default
                if value is not None or default is not None:
                    bound.arguments[name] = rule(function.__name__, name, value)
                elif rule is hook:
                    bound.arguments[name] = nothing
            return function(*bound.args, **bound.kwargs)

        return cast("F", checked)

    return decorate


def is_finite(value: Any) -> bool:
    """Return whether a value is a finite real number (not a bool) that a float can hold."""
    if isinstance(value, (bool, np.timedelta64, np.complexfloating)) or not isinstance(
        value, (numbers.Real, np.number)
    ):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number beyond what a float holds
        return False


def is_whole(value: Any) -> TypeGuard[int]:
    """Return whether a value is a whole number (not a bool), including NumPy's integers."""
    # NumPy registers timedelta64 as an integer type
    return type(value) is int or (
        isinstance(value, numbers.Integral) and not isinstance(value, (bool, np.timedelta64))
    )


def positive(
    function: str, name: str, value: Any, advice: str = "Leave it out to use the default."
) -> float:
    """Return a finite number above 0.

    Raises
    ------
    InputError
        If the value is not such a number; the message ends with ``advice``.
    """
    if not is_finite(value) or value <= 0:
        raise InputError(
            f"{function}: {name}={shown(value)}; expected a finite number above 0. {advice}"
        )
    return float(value)


def within(
    function: str,
    name: str,
    value: Any,
    low: float = 0.0,
    high: float = LARGEST_NUMBER,
    advice: str = "Pass another one.",
) -> float:
    """Return a finite number of a range.

    Raises
    ------
    InputError
        If the value is not a finite number, or lies outside the range; the message ends with
        ``advice``.
    """
    if not is_finite(value) or not low <= value <= high:
        raise InputError(
            f"{function}: {name} is {shown(value)}; expected a finite number from {low:g} to "
            f"{high:g}. {advice}"
        )
    return float(value)


def flag(function: str, name: str, value: Any) -> bool:
    """Return a switch as a bool.

    Raises
    ------
    InputError
        If it is neither True nor False: a text such as "no" would count as yes.
    """
    if not isinstance(value, (bool, np.bool_)):
        raise InputError(
            f"{function}: {name}={shown(value)}; expected True or False. Pass one of the two."
        )
    return bool(value)


def whole(
    function: str,
    name: str,
    value: Any,
    low: int,
    high: int,
    advice: str = "Leave it out for the default.",
) -> int:
    """Return a whole number of a range.

    Raises
    ------
    InputError
        If it is not a whole number, or lies outside the range; the message ends with ``advice``.
    """
    if not is_whole(value) or not low <= value <= high:
        raise InputError(
            f"{function}: {name} is {shown(value)}; expected a whole number from {low} to {high}. "
            f"{advice}"
        )
    return int(value)


def deadline(function: str, name: str, seconds: Any, most: float = 86_400.0) -> float:
    """Return the seconds that a measurement may take: the requested time, or a fifth of it if
    ``GPULAB_QUICK=1``, which the tests of the notebooks set.

    Raises
    ------
    InputError
        If it is not a number above 0 and at most ``most`` seconds (a day).
    """
    if not is_finite(seconds) or not 0 < seconds <= most:
        raise InputError(
            f"{function}: {name}={shown(seconds)}; expected a number of seconds above 0, at most "
            f"{most:,.0f}. Pass for example {name}=2."
        )
    return float(seconds) * (_QUICK_SHARE if os.environ.get("GPULAB_QUICK") == "1" else 1.0)


def fewer(many: int, few: int) -> int:
    """Return a number of repetitions: ``many``, or at most ``few`` if ``GPULAB_QUICK=1``."""
    return min(many, few) if os.environ.get("GPULAB_QUICK") == "1" else many


def word(function: str, name: str, value: Any, known: Collection[str]) -> str:
    """Return a name that is one of the known ones.

    Raises
    ------
    InputError
        If it is not.
    """
    if not isinstance(value, str) or value not in known:
        raise InputError(
            f"{function}: {name} is {shown(value)}; expected one of: "
            f"{', '.join(known) or 'none'}. Pass one of these."
        )
    return value


def instance(function: str, name: str, value: Any, kind: Any, expected: str) -> Any:
    """Return the value if it is an instance of ``kind``; ``collections.abc.Callable`` allows any
    callable.

    Raises
    ------
    InputError
        If it is something else; the message ends with ``expected``.
    """
    if not isinstance(value, kind):
        raise InputError(f"{function}: {name} is {kind_of(value)}; expected {expected}")
    return value


def items(function: str, name: str, values: Any, example: str = "") -> list[Any]:
    """Return the items of an iterable.

    Raises
    ------
    InputError
        If it is text, or not iterable; if ``example`` is given, also if there are no items.
    """
    try:
        if isinstance(values, (str, bytes)):
            raise TypeError("a text")
        found = list(values)
    except TypeError as error:
        raise InputError(
            f"{function}: {name} is {shown(values)}; expected several values. Pass a list of them."
        ) from error
    if example and not found:
        raise InputError(
            f"{function}: {name} is empty; expected at least one. Pass for example {example}."
        )
    return found


def callback(function: str, name: str, given: Callable[..., T]) -> Callable[..., T]:
    """Return the callable, wrapped so that an error that it raises is reported under ``name``.

    Raises
    ------
    InputError
        If it is not callable. The wrapper raises it too, in place of any error of the callable that
        is not a GpulabError.
    """
    if not callable(given):
        raise InputError(f"{function}: {name}={shown(given)}; expected a function. Pass one.")

    def called(*args: Any) -> T:
        try:
            return given(*args)
        except GpulabError:
            raise
        except Exception as error:
            raise InputError(
                f"{function}: {name} raised {type(error).__name__} ({message_of(error)}); expected "
                "it to return. Correct that function."
            ) from error

    return called


def hook(function: str, name: str, given: Callable[..., T]) -> Callable[..., T]:
    """Wrap a callable as ``callback`` does; ``arguments`` passes ``nothing`` for an omitted one."""
    return callback(function, name, given)


def clock(function: str, name: str, given: Callable[[], float]) -> Callable[[], float]:
    """Return the clock with each reading checked.

    Raises
    ------
    InputError
        If it is not callable, or if it does not return seconds, goes back, or stands still.
    """
    read = callback(function, name, given)
    last, equal = -math.inf, 0

    def reading() -> float:
        nonlocal last, equal
        now = read()
        is_number = type(now) is float or is_finite(now)
        # 1e10 seconds are 300 years; a clock of nanoseconds reaches 1e10 after 10 seconds
        if not is_number or not last <= now < 1e10:
            after = f" after {last!r}" if math.isfinite(last) else ""
            raise InputError(
                f"{function}: {name} gave {shown(now)}{after}; expected seconds (not nanoseconds) "
                "that never decrease. Pass time.perf_counter or one like it."
            )
        equal = equal + 1 if now == last else 0
        if equal >= MOST_EQUAL_READINGS:
            raise InputError(
                f"{function}: {name} stood still at {now!r} over {equal:,} readings; expected "
                "seconds that grow while the work runs. Pass time.perf_counter or one like it."
            )
        last = float(now)  # a Fraction is a number too
        return last

    return reading


def expanded(who: str, path: str | os.PathLike[str]) -> Path:
    """Return a path with a leading ~ replaced by the home folder that it stands for.

    Raises
    ------
    InputError
        If the user of that home folder does not exist, or ``path`` is not a path; the message
        begins with ``who``.
    """
    try:
        found = Path(path).expanduser()
        if "\0" in str(found):
            raise TypeError("it has a null character")
    except (RuntimeError, TypeError) as error:
        raise InputError(
            f"{who}: {shown(path)} is not the name of a file or a folder ({message_of(error)}); "
            "expected text or a pathlib.Path. Write the path in full."
        ) from error
    return found


@contextlib.contextmanager
def writing(
    who: str,
    path: str | os.PathLike[str],
    expected: str = "a path in a writable folder with free space. Pass another one with --out.",
) -> Iterator[None]:
    """Report an OSError of the block as a failure to write to a file or a folder.

    Raises
    ------
    InputError
        In place of the OSError; the message begins with ``who`` and ends with ``expected``.
    """
    try:
        yield
    except OSError as error:
        raise InputError(
            f"{who}: {path} cannot be written ({error.strerror or error}); expected {expected}"
        ) from error
