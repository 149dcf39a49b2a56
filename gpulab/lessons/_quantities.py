"""Parse a learner's number with its unit, and format numbers in the unit of the question.

Base units are those of every gpulab result: seconds, bytes, bytes a second; a ratio, a share or a
count is its own base.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from gpulab.errors import InputError, kind_of
from gpulab.units import (
    format_bytes,
    format_bytes_per_second,
    format_ratio,
    format_seconds,
    parse_bytes,
    parse_seconds,
)

_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
_BYTES = {"B": 1.0, "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30, "kB": 1e3, "MB": 1e6, "GB": 1e9}
_RATES = {"B/s": 1.0, "MB/s": 1e6, "GB/s": 1e9, "TB/s": 1e12}
# What people write for a speed-up, a share and a plain count; "%" is kept as a percentage, 0 to
# 100.
_RATIO_WORDS = ("x", "×", "times", "")
_PERCENT_WORDS = ("%", "percent", "")
# Six digits of a larger count would take an exponent, which few read as calls; beyond a quadrillion
# nobody reads the digits.
_MILLION, _ENDLESS = 999_999.5, 1e15
_THOUSAND = 999.5  # of a percentage three digits are shown
# A comma parts thousands: 1,500. In 0,125 and 1234,567 it stands for a decimal point, and is
# refused.
_NUMBER = re.compile(
    r"\s*([-+]?(?:[1-9]\d{0,2}(?:,\d{3})+(?!\d)|\d+)?(?:\.\d*)?(?:[eE][-+]?\d+)?)\s*(.*?)\s*",
    re.DOTALL,
)


@dataclass(frozen=True)
class Unit:
    """The unit that a question asks for.

    Attributes
    ----------
    name : str
        As the question writes it: "us", "MiB", "GB/s", "x", "%", or "" (a count) or any noun
        ("elements").
    kind : str
        "time", "storage", "bandwidth", "ratio", "percent" or "count".
    scale : float
        Base units in one of this unit.
    """

    name: str
    kind: str
    scale: float

    @property
    def example(self) -> str:
        """An example of an answer; always 42, so that the example gives no hint."""
        return "42x" if self.kind == "ratio" else f"42 {self.name}".strip()

    def parse(self, answer: str | float) -> float:
        """Return the answer in base units; a bare number is in this unit.

        Raises
        ------
        InputError
            If the answer is not a finite, non-negative number, or has a unit of another kind.
        """
        value = self._parse_text(answer) if isinstance(answer, str) else self._number(answer)
        if not math.isfinite(value):
            raise InputError(
                f"predict: {answer!r} is not a finite number; expected something like "
                f"{self.example}. Answer with a number."
            )
        if value < 0:
            raise InputError(
                f"predict: {answer!r} is negative; expected zero or more, such as {self.example}. "
                "Answer without the minus."
            )
        return value

    def _number(self, answer: object) -> float:
        try:
            if isinstance(answer, bool):
                raise TypeError("a truth value is not a quantity")
            return float(answer) * self.scale  # type: ignore[arg-type]
        except Exception as error:
            # whatever the learner's own object raises when asked for a number
            raise InputError(
                f"predict: {_short(answer)} is not a number; expected something like "
                f"{self.example}. Answer with a number or with text such as {self.example!r}."
            ) from error

    def _parse_text(self, text: str) -> float:
        match = _NUMBER.fullmatch(text)
        if match is None or not match.group(1).strip("+-."):
            raise InputError(
                f"predict: cannot read {_short(text)}; expected a number, such as "
                f"{self.example!r}. Answer with a number."
            )
        try:
            number = float(match.group(1).replace(",", ""))
        except ValueError as error:
            raise InputError(
                f"predict: cannot read {_short(text)}; expected a number, such as "
                f"{self.example!r}. Answer with a number."
            ) from error
        word = match.group(2)
        if word in ("", self.name) or (self.kind == "count" and word == _singular(self.name)):
            return number * self.scale
        if re.match(r",\d", word):
            raise InputError(
                f"predict: cannot read {_short(text)}; expected a decimal point, such as 1.5 (a "
                "comma separates thousands: 1,500). Write it with a point."
            )
        if word[0].isdecimal():
            raise InputError(
                f"predict: cannot read {_short(text)}; expected one number, such as 1500. Write "
                "the number without spaces."
            )
        return self._with_word(number, word, text)

    def _with_word(self, number: float, word: str, text: str) -> float:
        try:
            if self.kind == "time":
                return parse_seconds(f"{number!r} {word}")
            if self.kind == "storage":
                return float(parse_bytes(f"{number!r} {word}"))
            if self.kind == "bandwidth" and word.lower().endswith("/s"):
                return float(parse_bytes(f"{number!r} {word[:-2].strip()}"))
        except (InputError, OverflowError) as error:
            raise self._foreign(text) from error
        if (self.kind == "ratio" and word.lower() in _RATIO_WORDS) or (
            self.kind == "percent" and word.lower() in _PERCENT_WORDS
        ):
            return number
        raise self._foreign(text)

    def _foreign(self, text: str) -> InputError:
        return InputError(
            f"predict: the unit in {_short(text)} does not fit; expected "
            f"{self.name or 'a plain number'}. Write it like {self.example!r}."
        )

    def format(self, value: float) -> str:
        """Return a value in base units as text with a fitting prefix."""
        if self.kind == "time":
            return format_seconds(value)
        if self.kind == "storage":
            return format_bytes(value)
        if self.kind == "bandwidth":
            return format_bytes_per_second(value)
        if self.kind == "ratio":
            return format_ratio(value)
        if self.kind == "percent":
            return f"{value:,.0f} %" if value >= _THOUSAND else f"{value:.3g} %"
        word = _singular(self.name) if value == 1 else self.name
        text = f"{value:,.0f}" if _MILLION <= value < _ENDLESS else f"{value:,.6g}"
        return f"{text} {word}".strip()


def _singular(noun: str) -> str:
    """Return the singular of a regular noun: 2 calls and 1 call, 2 passes and 1 pass, 2 copies and
    1 copy.
    """
    return (
        f"{noun[:-3]}y"
        if noun.endswith("ies")
        else re.sub(r"(?<=ss|sh)es$|(?<=[nrt]ch)es$|(?<=x)es$|(?<!s)s$", "", noun)
    )


def unit(name: str) -> Unit:
    """Return the unit of that name; an unknown word is taken as a noun that is counted
    ("elements").

    >>> unit("us").parse("0.5 ms"), unit("us").parse(500), unit("x").parse("1,000x")
    (0.0005, 0.0005, 1000.0)
    """
    for kind, table in (("time", _SECONDS), ("storage", _BYTES), ("bandwidth", _RATES)):
        if name in table:
            return Unit(name, kind, table[name])
    if name in ("x", "times"):
        return Unit("x", "ratio", 1.0)
    return Unit(name, "percent" if name == "%" else "count", 1.0)


def _short(value: object) -> str:
    try:
        text = repr(value)
    except Exception:  # a learner's object whose repr fails is still to be named in a sentence
        text = kind_of(value)
    return text if len(text) <= 60 else text[:57] + "..."
