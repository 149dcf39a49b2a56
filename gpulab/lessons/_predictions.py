"""Predictions: the learner answers before the measurement, then sees both side by side.

The first answer counts. Later ones, and answers given after the measurement was shown, are kept
separately and do not count. No widget is made here: ``%load_ext gpulab`` shows a ``Prediction`` as
an instrument; without it, its text says how to answer in code.
"""

from __future__ import annotations

import contextlib
import difflib
import html
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpulab import _given
from gpulab.errors import InputError, kind_of, shown
from gpulab.lessons import _store
from gpulab.results import Result
from gpulab.units import (
    format_bytes,
    format_bytes_per_second,
    format_ratio,
    format_seconds,
    parse_bytes,
    parse_seconds,
)

Observer = Callable[["Prediction"], None]
# this kernel's questions, so that answer() and reveal() know unit and choices
_known: dict[str, Prediction] = {}
_observers: dict[str, list[Observer]] = {}
# How like a choice an answer must be to count as its misspelling, and each of its words one of the
# choice's: "then" is "than", and "before" is not "after".
_NEAR, _NEAR_WORD = 0.8, 0.6


@dataclass(frozen=True)
class KeptAnswer(Result):
    """One answer in the form of the progress file.

    Attributes
    ----------
    value : float or str
        A number in base units (seconds, bytes, bytes a second, a ratio), or the choice.
    text : str
        The text shown to the learner: "5.00 us".
    date : str
        UTC, ISO 8601.
    """

    value: float | str
    text: str
    date: str


@dataclass(frozen=True)
class Prediction:
    """A question whose answer is kept before the measurement is shown.

    The fields are constant; the learner's answers are read from the progress file by ``answer``,
    ``later`` and ``revealed``, so that all views of the same id agree.

    Attributes
    ----------
    id, question : str
    unit : str
        The unit that a bare number has; "" with choices or for a count.
    choices : tuple of str
        The choices; empty if the question asks for a number.
    """

    id: str
    question: str
    unit: str
    choices: tuple[str, ...]

    @property
    def example(self) -> str:
        """An example of an answer, for a placeholder: "10 us"."""
        return self.choices[0] if self.choices else self.quantity.example

    @property
    def answer(self) -> KeptAnswer | None:
        """The first answer given before the measurement was shown, or None."""
        return _kept(self._entry.get("first"))

    @property
    def later(self) -> tuple[KeptAnswer, ...]:
        """Answers that came after the first or after the measurement; they are not counted."""
        kept = (_kept(item) for item in self._entry.get("later", []))
        return tuple(item for item in kept if item is not None)

    @property
    def revealed(self) -> str | None:
        """The answer that was shown, as text with its badge, or None while it is still hidden."""
        shown = self._entry.get("revealed")
        if not shown:
            return None
        return (
            f"{shown.get('text', '')} ({shown['badge']})"
            if shown.get("badge")
            else str(shown.get("text", ""))
        )

    @property
    def status(self) -> str:
        """One sentence on the state of this prediction."""
        if self.revealed is not None:
            mine = f"You predicted {self.answer.text}" if self.answer else "No prediction was given"
            return f"{mine}; the answer was {self.revealed}."
        if self.answer is None:
            return "No prediction yet."
        if why := self._entry.get("unmeasured"):
            return (
                f"Your prediction is kept: {self.answer.text}. When the next cell ran, the answer "
                f"was {why.rstrip('.')}."
            )
        return f"Your prediction is kept: {self.answer.text}. Run the next cell to measure."

    def submit(self, value: str | float) -> str:
        """Keep an answer and return the sentence to show.

        Raises
        ------
        InputError
            If the answer is not one of the choices, not a number, negative, infinite, or in a unit
            of another kind.
        """
        base = self._parse(value)
        entry = KeptAnswer(base, self.text_of(base), _store.now()).to_dict()
        said: list[str] = []

        def edit(content: dict[str, Any]) -> None:
            mine = content["predictions"].setdefault(self.id, {})
            # for a kernel that did not ask
            mine.update(question=self.question, unit=self.unit, choices=list(self.choices))
            if mine.get("first") is None and mine.get("revealed") is None:
                mine["first"] = entry
            elif (mine.get("first") or {}).get("value") != base:
                mine.setdefault("later", []).append(entry)

        before = self._entry
        _store.change(edit, said.append)
        tell(self)
        return " ".join([self._answer_sentence(before, base), *said])

    def _answer_sentence(self, before: dict[str, Any], base: float | str) -> str:
        text = self.text_of(base)
        first = _kept(before.get("first"))
        if first is not None and first.value != base:
            return (
                f"Your first answer, {first.text}, counts; {text} is kept too, but does not count."
            )
        if first is None and before.get("revealed") is not None:
            return f"The answer was already shown; {text} is kept, but does not count."
        return f"Prediction kept: {text}. Run the next cell to measure."

    def observe(self, callback: Observer) -> Callable[[], None]:
        """Call ``callback(prediction)`` after each answer and after the reveal; return a function
        that removes the callback.
        """
        callbacks = _observers.setdefault(self.id, [])
        callbacks.append(callback)
        return lambda: callbacks.remove(callback) if callback in callbacks else None

    @property
    def _entry(self) -> dict[str, Any]:
        entry = _store.read()["predictions"].get(self.id, {})
        return entry if isinstance(entry, dict) else {}

    @property
    def quantity(self) -> Unit:
        """The unit, as an object that parses and formats."""
        return unit_of(self.unit)

    def _parse(self, value: Any) -> float | str:
        if not self.choices:
            return self.quantity.parse(value)
        return choose(value, self.choices)

    def text_of(self, base: float | str) -> str:
        """Return a value in base units, or a choice, as the learner reads it."""
        return base if isinstance(base, str) else self.quantity.format(base)

    def __repr__(self) -> str:
        asked = f"Predict {self.id}: {self.question}{self._options()}"
        return f"{asked}\n{self.status} {self._how()}".rstrip()

    def _options(self) -> str:
        return "".join(f"\n  {number}. {choice}" for number, choice in enumerate(self.choices, 1))

    def _how(self) -> str:
        if self.revealed is not None or self.answer is not None:
            return ""
        return (
            f"Answer in a cell: gl.lessons.answer({self.id!r}, "
            f"{1 if self.choices else self.example!r})"
        )

    def _repr_html_(self) -> str:
        items = "".join(f"<li>{html.escape(choice)}</li>" for choice in self.choices)
        how = (
            f"<p>Answer in a cell: <code>{html.escape(self._how().partition(': ')[2])}</code></p>"
            if self._how()
            else ""
        )
        options = f"<ol>{items}</ol>" if items else ""
        return (
            f"<p><strong>Predict {html.escape(self.id)}.</strong> "
            f"{html.escape(self.question)}</p>{options}"
            f"<p>{html.escape(self.status)}</p>{how}"
        )


def predict(id: str, question: str, unit: str = "", choices: Sequence[str] = ()) -> Prediction:
    """Ask the learner for a number or a choice before a measurement.

    Parameters
    ----------
    id : str
        The notebook's number and a running number: "02.1".
    question : str
        One sentence.
    unit : str
        The unit of a bare number: "us", "ms", "MiB", "GB/s", "x", "%", or a noun that is counted.
    choices : sequence of str
        Two or more answers to choose from, in place of a number.

    Returns
    -------
    Prediction
        Shown as an instrument after ``%load_ext gpulab``; as text elsewhere.

    Raises
    ------
    InputError
        If there is one choice only, or both a unit and choices.
    """
    if not isinstance(id, str) or not id:
        raise InputError(
            f"predict: id {shown(id)}; expected text such as '02.1'. Pass the notebook's number "
            "and a running number."
        )
    if not isinstance(question, str) or not isinstance(unit, str):
        raise InputError(
            f"predict {id}: question {shown(question)}, unit {shown(unit)}; expected text. Write "
            "the question as one sentence."
        )
    given = tuple(
        choice if isinstance(choice, str) else shown(choice)
        for choice in _given.items(f"predict {id}", "choices", choices)
    )
    if len(given) == 1 or len(set(given)) != len(given) or (given and unit):
        raise InputError(
            f"predict {id}: choices {given} with unit {shown(unit)}; expected two or more "
            "different choices, or a unit. Pass one of the two."
        )
    _known[id] = Prediction(id, question, unit, given)
    return _known[id]


def answer(id: str, value: str | float) -> None:
    """Answer a prediction in code and print what was kept.

    Parameters
    ----------
    id : str
        As ``predict`` was given it.
    value : float or str
        A number in the question's unit, text with a unit ("5 us"), a choice, or a choice's number
        (1 for the first).

    Raises
    ------
    InputError
        If the question was not asked yet, or the answer does not fit it.
    """
    if not isinstance(id, str) or id not in _known:
        raise InputError(
            f"answer: question {shown(id, 40)} was not asked in this kernel; expected one of "
            f"{', '.join(_known) or '(none yet)'}. Run the cell with gl.lessons.predict first."
        )
    print(_known[id].submit(value))


def choose(value: Any, choices: tuple[str, ...]) -> str:
    """Return the choice with that number, text or a similar spelling; InputError if there is
    none.
    """
    if _given.is_whole(value) and 1 <= value <= len(choices):
        return choices[int(value) - 1]
    if isinstance(value, str):
        folded = {choice.casefold().strip(): choice for choice in choices}
        word = value.casefold().strip()
        if word in folded:
            return folded[word]
        # no whole number, or one of more digits than Python reads
        with contextlib.suppress(ValueError):
            if 1 <= int(word) <= len(choices):
                return choices[int(word) - 1]
        near = _nearest(word, folded)
        if near:
            return folded[near]
    options = "; ".join(f"{number}. {choice}" for number, choice in enumerate(choices, 1))
    raise InputError(
        f"predict: {str(value)[:60]!r} is not one of the choices; expected {options}. Answer with "
        "its number or its text."
    )


def _nearest(word: str, choices: Mapping[str, str]) -> str | None:
    """Return the choice that the words are a misspelling of; None where two are as near, or a word
    is no choice's ("not as accurate").
    """
    close = difflib.get_close_matches(word, choices, cutoff=_NEAR)
    ratios = [difflib.SequenceMatcher(None, choice, word).ratio() for choice in close]
    if not close or (len(close) > 1 and ratios[0] == ratios[1]):
        return None
    known = close[0].split()
    spelt = all(
        any(
            piece in one or difflib.SequenceMatcher(None, one, piece).ratio() >= _NEAR_WORD
            for one in known
        )
        for piece in word.split()
    )
    return close[0] if spelt else None


def _kept(data: Any) -> KeptAnswer | None:
    if not isinstance(data, dict) or not {"value", "text", "date"} <= set(data):
        return None
    value = data["value"]
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    return KeptAnswer(
        value if isinstance(value, str) else float(value), str(data["text"]), str(data["date"])
    )


def tell(asked: Prediction) -> None:
    """Call the observers of a question."""
    for callback in list(_observers.get(asked.id, [])):
        callback(asked)


def known(id: str) -> Prediction | None:
    """Return this kernel's question of that id, or None if its cell did not run."""
    return _known.get(id)


def recalled(id: str) -> Prediction | None:
    """Return the question as this kernel asked it, else as it was when its answer was kept; None if
    its unit is unknown.
    """
    if id in _known:
        return _known[id]
    entry = Prediction(id, "", "", ())._entry
    if entry.get("unit") is None or entry.get("choices") is None:
        return None
    return Prediction(
        id, entry.get("question") or "", entry["unit"], tuple(map(str, entry["choices"]))
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


def unit_of(name: str) -> Unit:
    """Return the unit of that name; an unknown word is taken as a noun that is counted
    ("elements").

    >>> unit_of("us").parse("0.5 ms"), unit_of("us").parse(500), unit_of("x").parse("1,000x")
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
