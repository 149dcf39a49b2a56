"""The reveal: a prediction and its measurement side by side, and what a usual wrong answer points to."""

from __future__ import annotations

import html
import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gpulab import devices, errors
from gpulab._result import Result
from gpulab.errors import InputError
from gpulab.evidence import Badge, Evidence
from gpulab.lessons import _content, _predictions, _store
from gpulab.lessons._predictions import KeptAnswer, Prediction
from gpulab.units import format_ratio

# About one line under a table at 900 pixels.
_CAPTION_LENGTH = 110


@dataclass(frozen=True, repr=False)
class Reveal(Result):
    """A prediction and its measurement side by side.

    Attributes
    ----------
    id, question : str
    predicted, measured : float or str or None
        Base units or a choice; None where there is none.
    predicted_text, measured_text : str
    ratio : float or None
        measured / predicted, where both are numbers and neither is zero.
    verdict : str
        "close", "off", "right", "wrong", "no prediction" or "not measured".
    sentence : str
        What a usual wrong answer points to, or how far off it was.
    evidence : Evidence or None
        Of the measurement, where what was passed carries it.
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

    def __repr__(self) -> str:
        mine = f"you predicted {self.predicted_text}" if self.predicted is not None else "no prediction"
        badge = f" ({self.evidence.badge})" if self.evidence is not None else ""
        return f"{self.id}: {mine}; the answer: {self.measured_text}{badge}. {self.sentence}"

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        """Return the two answers side by side."""
        kind = str(self.evidence.badge) if self.evidence is not None else "not measured"
        return (f"Prediction {self.id}", "your answer", f"the answer ({kind})"), [(self.question, self.predicted_text, self.measured_text)]

    def caption(self) -> str:
        """Return the badge; a model's assumptions shortened, since the result that was passed states them in full."""
        if self.evidence is None or self.evidence.badge is not Badge.MODELLED:
            return super().caption()
        return textwrap.shorten(f"{self.evidence.badge} · assumes {self.evidence.assumptions}", _CAPTION_LENGTH, placeholder=" ...")

    def _repr_html_(self) -> str:
        return f"{super()._repr_html_()}<p>{html.escape(self.sentence)}</p>"


def reveal(id: str, measured: Any, reason: str = "", evidence: Evidence | None = None) -> Reveal:
    """Show the prediction and the measurement side by side; without a prediction, say so and go on.

    Parameters
    ----------
    id : str
        As ``predict`` was given it.
    measured : Measurement, number, text, other result or None
        A measurement counts with its median; a plain number is in base units (seconds, bytes, bytes a second, a ratio);
        text is a choice, or a number with its unit; None means that this machine could not measure it.
    reason : str
        With None: why there is no measurement.
    evidence : Evidence, optional
        Where a plain number came from; by default that of ``measured`` itself, else MEASURED on this CPU.

    Raises
    ------
    InputError
        If ``measured`` is none of these.
    """
    if not isinstance(id, str) or not id:
        raise InputError(f"reveal: id {errors.shown(id)}; expected text such as '02.1'. Pass the id that predict was given.")
    known = _content.question(id)
    asked = _predictions.known(id) or Prediction(id, "", "", ())
    source = evidence or getattr(measured, "evidence", None)
    if not isinstance(source, Evidence) and measured is not None:  # a figure of the learner's own cell
        source = Evidence.measured(devices.find("cpu").name)
    value, text = _outcome(asked, known, measured, reason)
    kept = asked.answer
    ratio = _ratio(kept.value if kept else None, value)
    verdict = _verdict(kept, value, ratio, known)
    shown = Reveal(
        asked.id, asked.question, kept.value if kept else None, kept.text if kept else "no prediction", value, text, ratio, verdict,
        _sentence(verdict, kept, value, ratio, known), source if isinstance(source, Evidence) else None,
    )  # fmt: skip
    if value is not None:
        badge = str(source.badge) if isinstance(source, Evidence) else ""
        record = {"value": value, "text": text, "date": _store.now(), "verdict": verdict, "badge": badge}

        def edit(content: dict[str, Any]) -> None:
            entry = content["predictions"].setdefault(id, {})
            entry.setdefault("question", asked.question)
            if entry.get("revealed") is None or entry["revealed"].get("verdict") == "no prediction":
                entry["revealed"] = record

        _store.change(edit)
        _predictions.tell(asked)
    return shown


def _outcome(asked: Prediction, known: _content.Question, measured: Any, reason: str) -> tuple[float | str | None, str]:
    value = known.outcome(measured) if known.outcome is not None and measured is not None else measured
    value = getattr(value, "median_seconds", value)
    if value is None:
        return None, f"not measured{': ' + reason if reason else ''}"
    if asked.choices:
        chosen = _predictions.choose(value, asked.choices)
        return chosen, chosen
    base = asked.quantity.parse(value) if isinstance(value, str) else _number(asked.id, value)
    return base, asked.quantity.format(base)


def _number(id: str, value: Any) -> float:
    try:
        number = float(value)
    except Exception as error:  # whatever the caller's own object raises when asked for a number
        raise InputError(
            f"reveal {id}: a {type(value).__name__} is no measurement; expected a number in base units, a measurement or a choice. "
            "Pass the figure itself, such as m.median_seconds."
        ) from error
    if not math.isfinite(number):
        raise InputError(f"reveal {id}: {number} is no measurement; expected a finite number. Measure again, or pass None with a reason.")
    return number


def _ratio(predicted: float | str | None, measured: float | str | None) -> float | None:
    if isinstance(predicted, float) and isinstance(measured, float) and predicted > 0 and measured > 0:
        return measured / predicted
    return None


def _verdict(kept: KeptAnswer | None, value: float | str | None, ratio: float | None, known: _content.Question) -> str:
    if value is None:
        return "not measured"
    if kept is None:
        return "no prediction"
    if isinstance(value, str) or isinstance(kept.value, str):
        return "right" if kept.value == value else "wrong"
    if ratio is None:
        return "close" if kept.value == value else "off"
    return "close" if 1 / known.close_ratio <= ratio <= known.close_ratio else "off"


def _sentence(verdict: str, kept: KeptAnswer | None, value: Any, ratio: float | None, known: _content.Question) -> str:
    if verdict == "not measured":
        return "There is nothing to compare with on this machine."
    if kept is None:
        return "No prediction. Next time, answer before you run this cell: the surprise is what you remember."
    if verdict == "right":
        return "You were right."
    if verdict == "close":
        return "You were close."
    explanation = next((reading.sentence for reading in known.readings if reading.when(kept.value, value)), "")
    if ratio is None:
        return explanation or "That is not what came out. The text below says why."
    factor = format_ratio(ratio if ratio >= 1 else 1 / ratio)
    return f"You said {factor} too {'little' if ratio >= 1 else 'much'}. {explanation}".strip()
