"""Predictions: the learner answers before the measurement, then sees both side by side, with the
misconception behind a common wrong answer.

The first answer counts. Later ones, and answers given after the measurement was shown, are kept
separately and do not count. No widget is made here: ``%load_ext gpulab`` shows a ``Prediction`` as
an instrument; without it, its text says how to answer in code.
"""

from __future__ import annotations

import contextlib
import html
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from gpulab import _validate, devices
from gpulab.errors import InputError, kind_of, shown
from gpulab.evidence import Badge, Evidence
from gpulab.lessons import _progress, content
from gpulab.lessons._material import badge_line, with_captions
from gpulab.results import Result, Table
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
# If an answer has several sides, its badge is the weakest of theirs.
_WEAKEST_FIRST = (Badge.MODELLED, Badge.RECORDED, Badge.MEASURED)
# A number that is typed or read from a file may be as small as 5e-324. Beyond this limit or its
# inverse, a ratio or its inverse is 0 or infinite.
_SMALLEST_RATIO = 1e-300
# The ends of a factor count as close, also where the quotient is rounded beyond them: 7.36 / 6.4 is
# 1.1500000000000001.
_ROUNDING = 1 + 1e-9
# Codes of notes which say that a measured time may be too long.
_DISTURBED = ("contended", "stalled", "throttled", "unstable")
_SENTENCES = {
    "not measured": "There is nothing to compare with yet.",
    "no prediction": "No prediction. Next time, answer before you run this cell: the surprise is "
    "what you remember.",
    "right": "You were right.",
    "close": "You were close.",
}
_SCALES: Mapping[str, Mapping[str, float]] = {
    "time": {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9},
    "storage": {
        **{"B": 1.0, "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30},
        **{"kB": 1e3, "MB": 1e6, "GB": 1e9},
    },
    "bandwidth": {"B/s": 1.0, "MB/s": 1e6, "GB/s": 1e9, "TB/s": 1e12},
    "ratio": {"x": 1.0, "times": 1.0},
    "percent": {"%": 1.0},
}
# What people write for a speed-up and a share; "%" is kept as a percentage, 0 to 100.
_WORDS = {"ratio": ("x", "×", "times"), "percent": ("%", "percent")}
_FORMATS: Mapping[str, Callable[[float], str]] = {
    "time": format_seconds,
    "storage": format_bytes,
    "bandwidth": format_bytes_per_second,
    "ratio": format_ratio,
}
# With six digits, a count from a million on would be shown with an exponent, which is hard to read
# as a count. It is shown in full up to a quadrillion, above which digits are hard to read, too.
_MILLION, _ENDLESS = 999_999.5, 1e15
_THOUSAND = 999.5  # percentages have three digits; from here on, they are whole
# A comma separates thousands: 1,500. In 0,125 and 1234,567 it stands for a decimal point, and is
# refused.
_NUMBER = re.compile(
    r"\s*([-+]?(?:[1-9]\d{0,2}(?:,\d{3})+(?!\d)|\d+)?(?:\.\d*)?(?:[eE][-+]?\d+)?)\s*(.*?)\s*",
    re.DOTALL,
)


class KeptAnswer(NamedTuple):
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

    The fields are constant; the learner's answers are read from the progress file by ``answer``
    and ``revealed``, so that all views of the same id agree.

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
    def revealed(self) -> str | None:
        """The answer that was shown, as text with its badge, or None while it is still hidden."""
        shown = self._entry.get("revealed")
        if not shown:
            return None
        badge = f" ({shown['badge']})" if shown.get("badge") else ""
        return f"{shown.get('text', '')}{badge}"

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
        base = choose(value, self.choices) if self.choices else self.quantity.parse(value)
        text, before, said = self.text_of(base), self._entry, list[str]()
        entry = KeptAnswer(base, text, _progress.now())._asdict()

        def edit(content: dict[str, Any]) -> None:
            mine = content["predictions"].setdefault(self.id, {})
            # for a kernel in which the question was not asked
            mine.update(question=self.question, unit=self.unit, choices=list(self.choices))
            if mine.get("first") is None and mine.get("revealed") is None:
                mine["first"] = entry
            elif (mine.get("first") or {}).get("value") != base:
                mine.setdefault("later", []).append(entry)

        _progress.change(edit, said.append)
        _notify(self)
        first = _kept(before.get("first"))
        sentence = f"Prediction kept: {text}. Run the next cell to measure."
        if first is not None and first.value != base:
            sentence = (
                f"Your first answer, {first.text}, counts; {text} is kept too, but does not count."
            )
        elif first is None and before.get("revealed") is not None:
            sentence = f"The answer was already shown; {text} is kept, but does not count."
        return " ".join([sentence, *said])

    def observe(self, callback: Observer) -> Callable[[], None]:
        """Call ``callback(prediction)`` after each answer and after the reveal; return a function
        that removes the callback.
        """
        callbacks = _observers.setdefault(self.id, [])
        callbacks.append(callback)
        return lambda: callbacks.remove(callback) if callback in callbacks else None

    @property
    def _entry(self) -> dict[str, Any]:
        return _progress.read()["predictions"].get(self.id, {})  # type: ignore[no-any-return]

    @property
    def quantity(self) -> Unit:
        """The unit, as an object that parses and formats; an unknown word is a noun that is counted
        ("elements").
        """
        kind = next((kind for kind, scales in _SCALES.items() if self.unit in scales), "count")
        name = "x" if kind == "ratio" else self.unit
        return Unit(name, kind, _SCALES.get(kind, {}).get(self.unit, 1.0))

    def text_of(self, base: float | str) -> str:
        """Return a value in base units, or a choice, as the learner reads it."""
        return base if isinstance(base, str) else self.quantity.format(base)

    @property
    def _call(self) -> str:
        """The call that answers this question; "" if it was already answered or revealed."""
        if self.revealed is not None or self.answer is not None:
            return ""
        return f"gl.lessons.answer({self.id!r}, {1 if self.choices else self.example!r})"

    def __repr__(self) -> str:
        options = "".join(f"\n  {k}. {choice}" for k, choice in enumerate(self.choices, 1))
        how = f" Answer in a cell: {self._call}" if self._call else ""
        return f"Predict {self.id}: {self.question}{options}\n{self.status}{how}"

    def _repr_html_(self) -> str:
        items = "".join(f"<li>{html.escape(choice)}</li>" for choice in self.choices)
        how = f"<p>Answer in a cell: <code>{html.escape(self._call)}</code></p>"
        return (
            f"<p><strong>Predict {html.escape(self.id)}.</strong> "
            f"{html.escape(self.question)}</p>{f'<ol>{items}</ol>' if items else ''}"
            f"<p>{html.escape(self.status)}</p>{how if self._call else ''}"
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
    if not id or not all(isinstance(text, str) for text in (id, question, unit)):
        raise InputError(
            f"predict: id {shown(id)}, question {shown(question)}, unit {shown(unit)}; expected "
            "text, and an id such as '02.1'. Write the question as one sentence."
        )
    given = tuple(
        choice if isinstance(choice, str) else shown(choice)
        for choice in _validate.items(f"predict {id}", "choices", choices)
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
    """Return the choice with that number or text; InputError if there is none."""
    if _validate.is_whole(value) and 1 <= value <= len(choices):
        return choices[int(value) - 1]
    if isinstance(value, str):
        folded = {choice.casefold().strip(): choice for choice in choices}
        word = value.casefold().strip()
        if word in folded:
            return folded[word]
        # not a whole number, or one with more digits than Python converts
        with contextlib.suppress(ValueError):
            if 1 <= int(word) <= len(choices):
                return choices[int(word) - 1]
    options = "; ".join(f"{number}. {choice}" for number, choice in enumerate(choices, 1))
    raise InputError(
        f"predict: {str(value)[:60]!r} is not one of the choices; expected {options}. Answer with "
        "its number or its text."
    )


def _kept(data: Any) -> KeptAnswer | None:
    if not isinstance(data, dict) or not {"value", "text", "date"} <= set(data):
        return None
    value = data["value"]
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    return KeptAnswer(
        value if isinstance(value, str) else float(value), str(data["text"]), str(data["date"])
    )


def _notify(asked: Prediction) -> None:
    """Call the observers of a question."""
    for callback in list(_observers.get(asked.id, [])):
        callback(asked)


def _recalled(id: str) -> Prediction | None:
    """Return the question as it was asked in this kernel, else as it was kept with its answer; None
    if its unit is unknown.
    """
    if id in _known:
        return _known[id]
    entry = Prediction(id, "", "", ())._entry
    if entry.get("unit") is None or entry.get("choices") is None:
        return None
    return Prediction(
        id, entry.get("question") or "", entry["unit"], tuple(map(str, entry["choices"]))
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
        text, like = shown(answer), f"something like {self.example}"
        try:
            if isinstance(answer, bool):
                raise TypeError("a truth value is not a quantity")
            value = float(
                self._parse_text(answer) if isinstance(answer, str) else answer * self.scale
            )
        except InputError:
            raise
        except Exception as error:
            # whatever the learner's own object raises when asked for a number
            advice = f"Answer with a number or with text such as {self.example!r}."
            raise _refused(f"{text} is not a number", like, advice) from error
        if not 0 <= value < math.inf:
            expected = f"a number of at least zero, such as {self.example}"
            raise _refused(f"{text} is negative or not finite", expected, "Answer with a number.")
        return value

    def _parse_text(self, text: str) -> float:
        match, unreadable = _NUMBER.fullmatch(text), f"cannot read {shown(text)}"
        digits, word = match.groups() if match else ("", "")
        try:
            number = float(digits.replace(",", ""))
        except ValueError as error:
            expected = f"a number, such as {self.example!r}"
            raise _refused(unreadable, expected, "Answer with a number.") from error
        if word in ("", self.name) or (self.kind == "count" and word == _singular(self.name)):
            return number * self.scale
        if re.match(r",?\d", word):  # 0,125 or 1 000
            expected = "one number with a point, such as 1.5 (a comma separates thousands: 1,500)"
            raise _refused(unreadable, expected, "Write it with a point, without spaces.")
        if word.lower() in _WORDS.get(self.kind, ()):
            return number
        try:
            if self.kind == "time":
                return parse_seconds(f"{number!r} {word}")
            if self.kind == "storage":
                return float(parse_bytes(f"{number!r} {word}"))
            # Gb/s are bits: an eighth of GB/s
            if self.kind == "bandwidth" and re.fullmatch(r"(?![kMGT]b/).*/[sS]", word):
                return float(parse_bytes(f"{number!r} {word[:-2].strip()}"))
            raise InputError(f"{word} is no unit of a {self.kind}")
        except (InputError, OverflowError) as error:
            what, expected = (
                f"the unit in {shown(text)} does not fit",
                self.name or "a plain number",
            )
            raise _refused(what, expected, f"Write it like {self.example!r}.") from error

    def format(self, value: float) -> str:
        """Return a value in base units as text with a fitting prefix."""
        if self.kind in _FORMATS:
            return _FORMATS[self.kind](value)
        if self.kind == "percent":
            return f"{value:,.0f} %" if _THOUSAND <= value < _ENDLESS else f"{value:.3g} %"
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


def _refused(what: str, expected: str, advice: str) -> InputError:
    return InputError(f"predict: {what}; expected {expected}. {advice}")


@dataclass(frozen=True)
class Reveal(Result):
    """A prediction and its measurement side by side.

    Attributes
    ----------
    id, question : str
    predicted, measured : float or str or None
        In base units, or a choice; None if there is none.
    predicted_text, measured_text : str
    ratio : float or None
        measured / predicted, if both are numbers, neither is zero, and the quotient is finite.
    verdict : str
        "close", "off", "right", "wrong", "no prediction" or "not measured".
    sentence : str
        The misconception behind a common wrong answer, or how far off it was.
    evidence : Evidence or None
        Of the measurement, if the passed object has it; with several sides, the weakest.
    sides : mapping of str to Evidence
        For an answer that compares two things, the evidence of each; else empty.
    """

    id: str
    question: str
    predicted: float | str | None
    predicted_text: str
    measured: float | str | None
    measured_text: str
    ratio: float | None
    verdict: str
    sentence: str
    evidence: Evidence | None
    sides: Mapping[str, Evidence] = field(default_factory=dict)

    def __repr__(self) -> str:
        mine = (
            f"you predicted {self.predicted_text}"
            if self.predicted is not None
            else "no prediction"
        )
        badge = f" ({self.badges})" if self.badges else ""
        return f"{self.id}: {mine}; the answer: {self.measured_text}{badge}. {self.sentence}"

    def table(self) -> Table:
        """Return the two answers side by side."""
        kind = self.badges or "not measured"
        return (f"Prediction {self.id}", "your answer", f"the answer ({kind})"), [
            (self.question, self.predicted_text, self.measured_text)
        ]

    @property
    def badges(self) -> str:
        """The badge; if the sides differ, the badge of each: "the CPU MEASURED, the GPU MODELLED";
        "" without evidence.
        """
        if len({each.badge for each in self.sides.values()}) > 1:
            return ", ".join(f"{name} {each.badge}" for name, each in self.sides.items())
        return str(self.evidence.badge) if self.evidence is not None else ""

    def caption(self) -> str:
        """Return the line of evidence, or one for each side."""
        if not self.sides:
            return super().caption()
        return "\n".join(badge_line(each, name) for name, each in self.sides.items())

    def _repr_html_(self) -> str:
        return f"{with_captions(self)}<p>{html.escape(self.sentence)}</p>"


def reveal(
    id: str,
    measured: Any,
    reason: str = "",
    evidence: Evidence | Mapping[str, Evidence] | None = None,
    *,
    interval: tuple[float, float] | None = None,
    warning: str = "",
) -> Reveal:
    """Show the prediction and the measurement side by side; without a prediction, report that and
    continue.

    A kept answer includes its question, so this also works if the cell of the question did not run
    in this kernel.

    Parameters
    ----------
    id : str
        As ``predict`` was given it.
    measured : Measurement, number, text, other result or None
        The median of a measurement is used; a plain number is in base units (seconds, bytes, bytes
        per second, a ratio); text is a choice, or a number with its unit; None means that this
        machine could not measure it.
    reason : str
        With None: the reason why there is no measurement.
    evidence : Evidence or mapping of str to Evidence, optional
        The source of a plain number; by default the evidence of ``measured`` itself, else MEASURED
        on this CPU. For an answer that compares two things, the evidence of each by name.
    interval : (float, float), optional
        The 95 % interval of a plain number, in base units; a measurement has its own. It is shown
        beside the answer, with a warning where it is wider than what counts as close.
    warning : str
        Why the answer may be wrong, such as a busy machine; shown below it. By default it is taken
        from the notes of a measurement.

    Raises
    ------
    InputError
        If ``measured`` is not one of these, ``interval`` not two finite numbers, or ``warning`` not
        text.
    """
    if not id or not isinstance(id, str) or not isinstance(warning, str):
        raise InputError(
            f"reveal: id {shown(id)}, warning {shown(warning)}; expected text. Pass the id of the "
            "question, such as '02.1'."
        )
    known = content.question(id)
    asked = _recalled(id) or Prediction(id, "", "", ())
    sides, source = _evidence(measured, evidence)
    value, text = _answer(asked, measured, reason)
    if isinstance(value, float):
        text, warning = _with_doubt(asked, known, measured, text, interval, warning)
    # no badge may be shown beside "not measured"
    if value is None:
        sides, source = {}, None
    kept = asked.answer
    predicted = kept.value if kept else None
    ratio, verdict = ratio_of(predicted, value), verdict_of(predicted, value, known)
    sentence = _sentence(verdict, predicted, value, ratio, known)
    # the sentence of a note begins in lower case
    sentence = f"{sentence} {warning[:1].upper()}{warning[1:]}".rstrip()
    found = Reveal(
        asked.id,
        asked.question,
        predicted,
        kept.text if kept else "no prediction",
        value,
        text,
        ratio,
        verdict,
        sentence,
        source,
        sides,
    )

    _remember(asked, found)
    return found


def _remember(asked: Prediction, found: Reveal) -> None:
    """Keep the first answer that was shown, or why there was none."""

    def edit(content: dict[str, Any]) -> None:
        entry = content["predictions"].setdefault(asked.id, {})
        entry["question"] = asked.question or entry.get("question") or ""
        before = entry.get("revealed")
        if found.measured is None:
            if before is None:
                entry["unmeasured"] = found.measured_text
            return
        entry.pop("unmeasured", None)
        if before is None or before.get("verdict") == "no prediction":
            entry["revealed"] = {
                "value": found.measured,
                "text": found.measured_text,
                "date": _progress.now(),
                "verdict": found.verdict,
                "badge": found.badges,
            }

    _progress.change(edit)
    _notify(asked)


def _with_doubt(
    asked: Prediction,
    known: content.Question,
    measured: Any,
    text: str,
    interval: tuple[float, float] | None,
    warning: str,
) -> tuple[str, str]:
    """Return an answer's text with its interval, and the warning that belongs to it."""
    interval = getattr(measured, "interval_seconds", None) if interval is None else interval
    notes = [note for note in getattr(measured, "notes", ()) if note.code in _DISTURBED]
    warning = warning or (f"The machine was disturbed: {notes[0].sentence}" if notes else "")
    if interval is None:
        return text, warning
    ends = _validate.items(f"reveal {asked.id}", "interval", interval)
    if len(ends) != len(("low", "high")):
        raise InputError(
            f"reveal {asked.id}: interval is {shown(interval)}; expected its two ends. Pass "
            "for example (low, high)."
        )
    low, high = sorted(_number(asked.id, end) for end in ends)
    factor = known.close_ratio**2
    if not warning and high > (low * factor if low > 0 else low / factor):
        warning = (
            "The measured values vary so widely that the answer is uncertain: run the cell above "
            "again when the machine is quiet."
        )
    return f"{text} ({asked.quantity.format(low)} to {asked.quantity.format(high)})", warning


def _evidence(measured: Any, given: Any) -> tuple[dict[str, Evidence], Evidence | None]:
    """Return the evidence of each side, if the answer has sides, and the evidence of the answer."""
    sides = dict(given) if isinstance(given, Mapping) else {}
    if not all(isinstance(each, Evidence) for each in sides.values() or filter(None, [given])):
        raise InputError(
            f"reveal: evidence is {shown(given)}; expected the evidence of a measurement, or of "
            "each side by its name. Pass for example m.evidence, or "
            '{"the CPU": cpu.evidence, "the GPU": gpu.evidence}.'
        )
    if sides:
        return sides, min(sides.values(), key=lambda each: _WEAKEST_FIRST.index(each.badge))
    # by default, the number was measured on the CPU by the learner's own cell
    here = None if measured is None else Evidence.measured(devices.find("cpu").name)
    return {}, given or getattr(measured, "evidence", None) or here


def _answer(asked: Prediction, measured: Any, reason: str) -> tuple[float | str | None, str]:
    """Return the answer, as a number in base units or a choice, and as text."""
    value = getattr(measured, "median_seconds", measured)
    if value is None:
        return None, f"not measured{': ' + reason if reason else ''}"
    # a choice, if the question is unknown because it was not asked in this kernel
    if isinstance(value, str) and not asked.question:
        return value, value
    if asked.choices:
        chosen = choose(value, asked.choices)
        return chosen, chosen
    base = asked.quantity.parse(value) if isinstance(value, str) else _number(asked.id, value)
    return base, asked.quantity.format(base)


def _number(id: str, value: Any) -> float:
    what, fault = kind_of(value), None
    try:
        number = float(value)
        what = f"{number}"
    except Exception as error:  # whatever the caller's own object raises when asked for a number
        number, fault = math.nan, error
    if not math.isfinite(number):
        raise InputError(
            f"reveal {id}: {what} is not a measurement; expected a finite number in base units, a "
            "measurement or a choice. Pass the figure itself, such as m.median_seconds, or None "
            "and a reason."
        ) from fault
    return number


def ratio_of(predicted: float | str | None, measured: float | str | None) -> float | None:
    """Return measured / predicted; None unless both are numbers, and the ratio and its inverse are
    finite.
    """
    if isinstance(predicted, float) and isinstance(measured, float) and predicted > 0:
        ratio = measured / predicted
        return ratio if _SMALLEST_RATIO < ratio < 1 / _SMALLEST_RATIO else None
    return None


def verdict_of(
    predicted: float | str | None, measured: float | str | None, known: content.Question
) -> str:
    """Return how good a prediction is, in the words of ``Reveal.verdict``."""
    if measured is None:
        return "not measured"
    if predicted is None:
        return "no prediction"
    if isinstance(measured, str) or isinstance(predicted, str):
        return "right" if predicted == measured else "wrong"
    ratio = ratio_of(predicted, measured)
    near = ratio is not None and max(ratio, 1 / ratio) <= known.close_ratio * _ROUNDING
    return "close" if near or abs(predicted - measured) <= known.close_absolute else "off"


def _sentence(
    verdict: str, predicted: Any, measured: Any, ratio: float | None, known: content.Question
) -> str:
    if verdict in _SENTENCES:
        return _SENTENCES[verdict]
    explanation = next(
        (reading.sentence for reading in known.readings if reading.when(predicted, measured)), ""
    )
    if ratio is None:
        return explanation or "That is not the result. The text below explains why."
    side, factor = "low" if ratio >= 1 else "high", format_ratio(max(ratio, 1 / ratio))
    size = f"too {side} by a factor of {factor.removesuffix('x')}"
    if factor == format_ratio(1):  # such as 2,052 for 2,048, where the answer is exact
        size = f"slightly too {side}"
    return f"Your prediction was {size}. {explanation}".strip()
