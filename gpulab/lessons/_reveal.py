"""A prediction beside its measurement, with the misconception behind a common wrong answer."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpulab import _given, devices, errors
from gpulab.errors import InputError, kind_of
from gpulab.evidence import Badge, Evidence
from gpulab.lessons import _predictions, _store, content
from gpulab.lessons._predictions import KeptAnswer, Prediction
from gpulab.results import Result, html_caption, html_table
from gpulab.units import format_ratio

# Of several sides, the answer is no better than the weakest.
_WEAKEST_FIRST = (Badge.MODELLED, Badge.RECORDED, Badge.MEASURED)
# What is typed or read from a file may be 5e-324: past these, a ratio or its inverse is 0 or
# infinite.
_SMALLEST_RATIO = 1e-300
# What makes a measured time too long.
_DISTURBED = ("contended", "stalled", "throttled", "unstable")
_NOT_ASKED = (
    "This kernel does not know the question, so nothing is compared. Run the cell with "
    "gl.lessons.predict first."
)
_NEVER = (
    "You gave a number, but on this machine there is no such number. The text below explains why."
)


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

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
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

    def captions(self) -> list[str]:
        """Return one line of evidence, or one for each side."""
        if not self.sides:
            return [self.caption()] if self.caption() else []
        return [f"{each.badge} · {name}: {_rest(each)}" for name, each in self.sides.items()]

    def _repr_html_(self) -> str:
        lines = "".join(f"<div>{html_caption(line)}</div>" for line in self.captions())
        return f"{html_table(*self.table())}{lines}<p>{html.escape(self.sentence)}</p>"


def _rest(evidence: Evidence) -> str:
    """Return the evidence's sentence behind its badge."""
    return evidence.sentence.removeprefix(str(evidence.badge)).strip(" ·")


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
    if not isinstance(id, str) or not id:
        raise InputError(
            f"reveal: id {errors.shown(id)}; expected text such as '02.1'. Pass the id that "
            "predict was given."
        )
    if not isinstance(warning, str):
        raise InputError(
            f"reveal {id}: warning is {errors.shown(warning)}; expected text. Leave it out where "
            "there is none."
        )
    known = content.question(id)
    recalled = _predictions.recalled(id)
    asked = recalled or Prediction(id, "", "", ())
    sides, source = _evidence(known, measured, evidence)
    try:
        value, text, never = _outcome(asked, known, measured, reason)
    except InputError:
        if recalled is not None or not isinstance(measured, str):
            raise
        # one of the choices of a question that was not asked here
        value, text, never = measured, measured, False
    if isinstance(value, float):
        text, warning = _with_doubt(asked, known, measured, text, interval, warning)
    # what was measured answers nothing, so no badge may stand beside "not measured"
    if value is None and not never:
        sides, source = {}, None
    kept = asked.answer
    ratio = _ratio(kept.value if kept else None, value)
    verdict = ("off" if kept else "no prediction") if never else _verdict(kept, value, ratio, known)
    sentence = _NEVER if never and kept else _sentence(verdict, kept, value, ratio, known)
    # the sentence of a note begins in lower case
    sentence = f"{sentence} {warning[:1].upper()}{warning[1:]}".rstrip()
    # a file of an earlier version: without unit and choices no verdict is safe
    unknown = kept is not None and recalled is None
    if unknown:
        ratio, verdict, sentence = None, "not measured", _NOT_ASKED
    shown = Reveal(
        asked.id,
        asked.question,
        kept.value if kept else None,
        kept.text if kept else "no prediction",
        value,
        text,
        ratio,
        verdict,
        sentence,
        source,
        sides,
    )
    if value is None and not never and not unknown:

        def leave_open(content: dict[str, Any]) -> None:
            entry = content["predictions"].setdefault(id, {})
            entry["question"] = asked.question or entry.get("question") or ""
            if entry.get("revealed") is None:
                entry["unmeasured"] = text

        _store.change(leave_open)
        _predictions.tell(asked)
    elif not unknown:
        record = {
            "value": value,
            "text": text,
            "date": _store.now(),
            "verdict": verdict,
            "badge": shown.badges,
        }

        def edit(content: dict[str, Any]) -> None:
            entry = content["predictions"].setdefault(id, {})
            entry["question"] = asked.question or entry.get("question") or ""
            entry.pop("unmeasured", None)
            if entry.get("revealed") is None or entry["revealed"].get("verdict") == "no prediction":
                entry["revealed"] = record

        _store.change(edit)
        _predictions.tell(asked)
    return shown


def _with_doubt(
    asked: Prediction,
    known: content.Question,
    measured: Any,
    text: str,
    interval: tuple[float, float] | None,
    warning: str,
) -> tuple[str, str]:
    """Return an answer's text with its interval, and the warning that belongs to it."""
    if known.outcome is None:
        interval = getattr(measured, "interval_seconds", None) if interval is None else interval
        notes = [note for note in getattr(measured, "notes", ()) if note.code in _DISTURBED]
        warning = warning or (f"The machine was disturbed: {notes[0].sentence}" if notes else "")
    if interval is None:
        return text, warning
    ends = _given.items(f"reveal {asked.id}", "interval", interval)
    if len(ends) != len(("low", "high")):
        raise InputError(
            f"reveal {asked.id}: interval is {errors.shown(interval)}; expected its two ends. Pass "
            "for example (low, high)."
        )
    low, high = sorted(_number(asked.id, end) for end in ends)
    if not warning and high > low * known.close_ratio**2:
        warning = (
            "The times vary too widely for a verdict: run the cell above again when the "
            "machine is quiet."
        )
    return f"{text} ({asked.quantity.format(low)} to {asked.quantity.format(high)})", warning


def _evidence(
    known: content.Question, measured: Any, given: Any
) -> tuple[dict[str, Evidence], Evidence | None]:
    """Return the evidence of each side, where there are sides, and that of the answer."""
    sides = dict(given) if isinstance(given, Mapping) else {}
    if not all(isinstance(each, Evidence) for each in sides.values()):
        raise InputError(
            f"reveal {known.id}: evidence is {errors.shown(given)}; expected the evidence of each "
            "side by its name. "
            'Pass for example {"the CPU": cpu.evidence, "the GPU": bill.evidence}.'
        )
    if given is None and known.sides is not None and measured is not None:
        sides = dict(known.sides(measured))
    if sides:
        return sides, min(sides.values(), key=lambda each: _WEAKEST_FIRST.index(each.badge))
    source = given or getattr(measured, "evidence", None)
    # a figure of the learner's own cell
    if not isinstance(source, Evidence) and measured is not None:
        source = Evidence.measured(devices.find("cpu").name)
    return {}, source if isinstance(source, Evidence) else None


def _outcome(
    asked: Prediction, known: content.Question, measured: Any, reason: str
) -> tuple[float | str | None, str, bool]:
    """Return the answer, its words, and whether it is that there is no such number."""
    try:
        value = (
            known.outcome(measured)
            if known.outcome is not None and measured is not None
            else measured
        )
    except content.Never as why:
        return None, str(why), True
    except content.Unmeasured as why:
        return None, f"not measured: {why}", False
    value = getattr(value, "median_seconds", value)
    if value is None:
        return None, f"not measured{': ' + reason if reason else ''}", False
    if asked.choices:
        chosen = _predictions.choose(value, asked.choices)
        return chosen, chosen, False
    base = asked.quantity.parse(value) if isinstance(value, str) else _number(asked.id, value)
    return base, asked.quantity.format(base), False


def _number(id: str, value: Any) -> float:
    try:
        number = float(value)
    except Exception as error:  # whatever the caller's own object raises when asked for a number
        raise InputError(
            f"reveal {id}: {kind_of(value)} is not a measurement; expected a number in base units, "
            "a measurement or a choice. Pass the figure itself, such as m.median_seconds."
        ) from error
    if not math.isfinite(number):
        raise InputError(
            f"reveal {id}: {number} is not a measurement; expected a finite number. Measure again, "
            "or pass None and a reason."
        )
    return number


def _ratio(predicted: float | str | None, measured: float | str | None) -> float | None:
    if isinstance(predicted, float) and isinstance(measured, float) and predicted > 0:
        ratio = measured / predicted
        return ratio if _SMALLEST_RATIO < ratio < 1 / _SMALLEST_RATIO else None
    return None


def _verdict(
    kept: KeptAnswer | None, value: float | str | None, ratio: float | None, known: content.Question
) -> str:
    if value is None:
        return "not measured"
    if kept is None:
        return "no prediction"
    if isinstance(value, str) or isinstance(kept.value, str):
        return "right" if kept.value == value else "wrong"
    if abs(kept.value - value) <= known.close_absolute:
        return "close"
    return (
        "close"
        if ratio is not None and 1 / known.close_ratio <= ratio <= known.close_ratio
        else "off"
    )


def _sentence(
    verdict: str, kept: KeptAnswer | None, value: Any, ratio: float | None, known: content.Question
) -> str:
    if verdict == "not measured":
        return "There is nothing to compare with yet."
    if kept is None:
        return (
            "No prediction. Next time, answer before you run this cell: the surprise is what you "
            "remember."
        )
    if verdict == "right":
        return "You were right."
    if verdict == "close":
        return "You were close."
    explanation = next(
        (reading.sentence for reading in known.readings if reading.when(kept.value, value)), ""
    )
    if ratio is None:
        return explanation or "That is not the result. The text below explains why."
    side, factor = "low" if ratio >= 1 else "high", format_ratio(max(ratio, 1 / ratio))
    size = f"too {side} by a factor of {factor.removesuffix('x')}"
    if factor == format_ratio(1):  # of a question whose answer is exact: 2,052 for 2,048
        size = f"slightly too {side}"
    return f"Your prediction was {size}. {explanation}".strip()
