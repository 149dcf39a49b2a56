"""Every question: what a reveal takes, and what it says to each prediction."""

import ast
import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import gpulab as gl
import numpy as np
import pytest
from course import HERE, ROOT
from gpulab import lessons
from gpulab.devices import environment
from gpulab.evidence import Badge, Evidence
from gpulab.timing import Measurement

THERE = Evidence(Badge.RECORDED, "A GPU", date="2026-01-02")


def asked_in_notebooks() -> dict[str, dict[str, Any]]:
    """The arguments of every ``gl.lessons.predict`` in the notebooks, by id."""
    found: dict[str, dict[str, Any]] = {}
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            text = "".join(cell["source"])
            if cell["cell_type"] == "code" and "lessons.predict(" in text:
                for node in ast.walk(ast.parse(re.sub(r"^%.*$", "", text, flags=re.MULTILINE))):
                    if (
                        isinstance(node, ast.Call)
                        and ast.unparse(node.func) == "gl.lessons.predict"
                    ):
                        call = ast.unparse(node).replace("gl.lessons.predict", "dict", 1)
                        call = call.replace("dict(", "dict(id=", 1).replace(", ", ", question=", 1)
                        found[ast.literal_eval(node.args[0])] = eval(call, {"gl": gl, "dict": dict})
    return found


ASKED = asked_in_notebooks()
TOO = {"high": "Too much.", "low": "Too little."}  # in place of the factor, which has many values


def measured(seconds: float, **fields: Any) -> Measurement:
    """A measurement with that median."""
    one = Measurement(
        "call", "cpu", np.array([seconds]), seconds, None, seconds, seconds, None, 1, None, None,
        (),
        HERE, environment("cpu"),
    )  # fmt: skip
    return dataclasses.replace(one, **fields)


@pytest.mark.parametrize(
    ("result", "text"),
    [(5e-6, "5.00 us"), ("5 us", "5.00 us"), (measured(5e-6), "5.00 us"), (None, "not measured")],
)
def test_what_a_reveal_takes(result: Any, text: str) -> None:
    """Seconds, text with its unit, or a measurement of 5 us; and nothing, which has no badge."""
    lessons.predict(**ASKED["00.1"])
    shown = lessons.reveal("00.1", result)
    assert (shown.measured_text, shown.badges) == (text, "MEASURED" if result else "")


def spread(id: str) -> tuple[list[Any], list[Any]]:
    """Predictions and outcomes to combine, in the question's unit; of a choice, all options."""
    if "choices" in ASKED[id]:
        return list(ASKED[id]["choices"]), list(ASKED[id]["choices"])
    middle = {"05.2": 2048, "06.8": 2000, "02.4": 300, "08.1": 104, "03.5": 16}.get(id, 30)
    ends = [middle / 25, middle]
    near = {round(m * f, 3) for m in ends for f in (0.3, 0.6, 0.99, 1.01, 1.8, 3.2)}
    return sorted({0, 1, 1.05, 1.45, 1.6, 2.1, 11, 22, 48, 52, 10_000} | near), ends


@pytest.mark.slow
@pytest.mark.parametrize("id", ASKED)
def test_what_each_prediction_is_told(
    id: str, approved: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From nothing to far too much: the verdict, and what a usual mistake points to."""
    question = lessons.predict(**ASKED[id])
    text, before = f"{id} {question.question}\n", None
    predictions, outcomes = spread(id)
    for outcome in outcomes:
        text += f"measured: {outcome} {question.unit}\n"
        for number, prediction in enumerate(predictions):
            monkeypatch.setenv("GPULAB_PROGRESS", str(tmp_path / f"{outcome}-{number}.json"))
            lessons.answer(id, prediction)
            shown = lessons.reveal(id, f"{outcome} {question.unit}".strip())
            short = r"^Your prediction was too (high|low) by a factor of [\d.,]+\."
            sentence = re.sub(short, lambda m: TOO[m[1]], shown.sentence)
            if before == (outcome, shown.verdict, sentence):
                continue
            before = (outcome, shown.verdict, sentence)
            text += f"  from {prediction}: {shown.verdict}. {sentence}\n"
    assert text == approved
