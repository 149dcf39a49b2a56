"""Format and parse the quantities of this course, the same way in every table and plot.

Times use s, ms, us, ns. Storage uses binary prefixes (KiB = 1024 bytes); rates use decimal prefixes
(GB/s = 1e9 bytes per second, GFLOP/s = 1e9 operations per second), as vendors' data sheets do.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any

from gpulab._validate import is_finite, is_whole
from gpulab.errors import InputError, kind_of

_SMALL = (("", 1.0), ("m", 1e-3), ("u", 1e-6), ("n", 1e-9))
_BINARY = (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))
_DECIMAL = (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3), ("", 1.0))

_SECOND_WORDS = {
    "s": 1.0,
    "sec": 1.0,
    "second": 1.0,
    "seconds": 1.0,
    "min": 60.0,
    "ms": 1e-3,
    "us": 1e-6,
    "µs": 1e-6,
    "μs": 1e-6,
    "ns": 1e-9,
}
_BYTE_WORDS = {
    "": 1, "b": 1, "byte": 1, "bytes": 1,
    "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "k": 2**10, "m": 2**20, "g": 2**30, "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
}  # fmt: skip
# No size or duration of any machine comes near; larger integers would overflow a float.
_LARGEST = 10**30
_NO_QUANTITY = 1e15  # larger values are mistakes: shown with an exponent, not with many digits
_QUANTITY = re.compile(r"\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*([A-Za-zµμ]*)\s*")


def _digits(value: float) -> str:
    """Return 3 significant digits (2 from 0.1 to 1): 0.0123, 0.12, 1.23, 12.3, 123, 1230, 1e+15."""
    magnitude = abs(value)
    if 0 < magnitude < 0.0995 or magnitude >= _NO_QUANTITY:
        return f"{value:.3g}"
    decimals = 0 if magnitude >= 99.95 else 1 if magnitude >= 9.995 else 2
    return f"{value:.{decimals}f}"


def _not_finite(value: float) -> str:
    """The words for nan and the infinities, which cannot be scaled."""
    return "not a number" if math.isnan(value) else ("infinite" if value > 0 else "-infinite")


def format_seconds(seconds: float) -> str:
    """Return a duration with three significant digits and a fitting unit.

    >>> format_seconds(0.00123), format_seconds(4.2e-7), format_seconds(0)
    ('1.23 ms', '420 ns', '0 s')
    """
    return _scaled(seconds, "s", _SMALL)


def format_joules(joules: float) -> str:
    """Return an energy with three significant digits and a fitting unit.

    >>> format_joules(0.0123), format_joules(4.2e-5), format_joules(512.0)
    ('12.3 mJ', '42.0 uJ', '512 J')
    """
    return _scaled(joules, "J", _SMALL)


def _scaled(value: float, unit: str, prefixes: Sequence[tuple[str, float]]) -> str:
    """Return a quantity with the largest prefix that it reaches, or the smallest one."""
    if not math.isfinite(value):
        return _not_finite(value)
    if value == 0:
        return f"0 {unit}"
    reached = (pair for pair in prefixes if abs(value) >= 0.9995 * pair[1])
    prefix, scale = next(reached, prefixes[-1])
    return f"{_digits(value / scale)} {prefix}{unit}"


def format_bytes(nbytes: float) -> str:
    """Return a storage size with a binary prefix.

    >>> format_bytes(1536), format_bytes(5), format_bytes(3 * 2**30)
    ('1.50 KiB', '5 B', '3.00 GiB')
    """
    if not math.isfinite(nbytes):
        return _not_finite(nbytes)
    for unit, scale in _BINARY:
        if abs(nbytes) >= scale:
            return f"{_digits(nbytes / scale)} {unit}"
    return f"{round(float(nbytes))} B"  # an integer has no "-0"


def format_bytes_per_second(rate: float) -> str:
    """Return a bandwidth with a decimal prefix.

    >>> format_bytes_per_second(4.8e12)
    '4.80 TB/s'
    """
    return _scaled(rate, "B/s", _DECIMAL)


def format_flops(flops: float) -> str:
    """Return a count of floating-point operations with a decimal prefix.

    >>> format_flops(2 * 1024**3)
    '2.15 GFLOP'
    """
    return _scaled(flops, "FLOP", _DECIMAL)


def format_flops_per_second(rate: float) -> str:
    """Return an arithmetic rate with a decimal prefix.

    >>> format_flops_per_second(6.7e13)
    '67.0 TFLOP/s'
    """
    return _scaled(rate, "FLOP/s", _DECIMAL)


def format_ratio(ratio: float) -> str:
    """Return a speed-up as text.

    >>> format_ratio(3.14159), format_ratio(0.5), format_ratio(1234)
    ('3.14x', '0.50x', '1234x')
    """
    return f"{_digits(ratio)}x" if math.isfinite(ratio) else _not_finite(ratio)


def format_speedup(ratio: float, interval: tuple[float, float] | None) -> str:
    """Return a speed-up with its interval.

    >>> format_speedup(3.14159, (3.0, 3.3)), format_speedup(2.0, None)
    ('3.14x [3.00x, 3.30x]', '2.00x (no interval)')
    """
    return f"{format_ratio(ratio)} {format_interval(interval, format_ratio)}"


def format_interval(
    interval: tuple[float, float] | None, form: Callable[[float], str] = format_seconds
) -> str:
    """Return an interval as text; ``form`` formats its two ends, by default as seconds.

    >>> format_interval((0.001, 0.0011)), format_interval(None)
    ('[1.00 ms, 1.10 ms]', '(no interval)')
    """
    return "(no interval)" if interval is None else f"[{', '.join(map(form, interval))}]"


def format_number(value: float) -> str:
    """Return a number without a unit: three significant digits, or a whole number from 1,000 on,
    where three digits would need an exponent.

    >>> format_number(9.876), format_number(10), format_number(999.6), format_number(18765.4)
    ('9.88', '10', '1,000', '18,765')
    """
    return f"{value:,.0f}" if 999.5 <= abs(value) < _NO_QUANTITY else f"{value:.3g}"


def plural(count: int, noun: str, several: str | None = None) -> str:
    """Return a whole number with its noun: ``1 block``, ``2 blocks``; ``several`` is the plural, if
    it is not formed with an s.

    Examples
    --------
    >>> plural(1, "block"), plural(2048, "block"), plural(3, "copy", "copies")
    ('1 block', '2,048 blocks', '3 copies')
    """
    return f"{count:,} {noun if count == 1 else several or f'{noun}s'}"


def _parse(
    given: Any, words: dict[str, float] | dict[str, int], function: str, example: str
) -> float:
    """Read text with a unit, or a bare number in the base unit; anything negative, infinite or
    unreadable is refused.
    """
    expected = f"expected a number and a unit, such as {example}, that is finite and not negative"
    if isinstance(given, str):
        match = _QUANTITY.fullmatch(given)
        if match is None or match.group(2).lower() not in words:
            raise InputError(
                f"{function}: cannot read {given[:60]!r}; {expected}. Units: "
                f"{', '.join(w for w in words if w)}."
            )
        value = float(match.group(1)) * words[match.group(2).lower()]
    elif isinstance(given, float) or is_finite(given) or is_whole(given):
        # as a Python float: NumPy's small floats cannot represent the limit
        number = given if is_whole(given) else float(given)
        value = float(number) if -_LARGEST < number < _LARGEST else math.inf
    else:
        raise InputError(f"{function}: got {kind_of(given)}; {expected}. Pass text or a number.")
    if not math.isfinite(value) or value < 0:
        raise InputError(
            f"{function}: got {str(given)[:60]!r}; {expected}. Pass a realistic size or duration."
        )
    return value


def parse_seconds(text: str | float) -> float:
    """Read a duration such as ``"10 us"``; text without a unit is refused, and a number is taken as
    seconds.

    Parameters
    ----------
    text : str or float
        A number with one of the units s, min, ms, us, ns; or seconds.

    Returns
    -------
    float
        Seconds, finite and not negative.

    Raises
    ------
    InputError
        If the text is not a number with a unit of time, or the duration is negative or not finite.

    Examples
    --------
    >>> parse_seconds("10 ms"), parse_seconds(2)
    (0.01, 2.0)
    """
    return _parse(text, _SECOND_WORDS, "parse_seconds", "'10 us'")


def parse_bytes(text: str | float) -> int:
    """Read a size such as ``"64 KiB"`` (1024) or ``"64 kB"`` (1000); a bare number is bytes.

    Parameters
    ----------
    text : str or float
        A number with one of the units B, KiB to TiB (powers of 1024; K, M, G are short for them),
        kB to TB (powers of 1000); or bytes.

    Returns
    -------
    int
        Bytes, rounded to a whole number.

    Raises
    ------
    InputError
        If the text is not a number with a unit of storage, or the size is negative or not finite.

    Examples
    --------
    >>> parse_bytes("64 KiB"), parse_bytes("1.5 GB"), parse_bytes(10)
    (65536, 1500000000, 10)
    """
    if is_whole(text) and 0 <= text < _LARGEST:
        return int(text)
    return round(_parse(text, _BYTE_WORDS, "parse_bytes", "'64 KiB'"))
