"""Every question: what a reveal takes from a cell's result, and what it says to a prediction."""

import ast
import dataclasses
import functools
import json
import re
from pathlib import Path
from typing import Any

import gpulab as gl
import numpy as np
import pytest
from course import HERE, QUESTIONS, ROOT
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
TOO = {"high": "Too much.", "low": "Too little."}  # instead of the factor, of which there are many


def measured(seconds: float, **fields: Any) -> Measurement:
    """A measurement with that median."""
    one = Measurement(
        "call", "cpu", np.array([seconds]), seconds, None, seconds, seconds, None, 1, None, None,
        (),
        HERE, environment("cpu"),
    )  # fmt: skip
    return dataclasses.replace(one, **fields)


@functools.cache
def results() -> dict[str, list[Any]]:
    """What a cell hands to a reveal: each kind of result that a question knows."""
    return {
        "00.1": [5e-6, "5 us", measured(5e-6), None],
        "00.3": [84.1], "00.4": [25.0], "00.6": ["the CPU", "the accelerator"], "00.8": [253.0],
        "01.1": [2.0], "01.2": [1.96], "01.5": [8.0], "01.8": [105.0], "01.10": [5.5],
        "01.11": [32.0],
        "02.1": ["the CPU"], "02.3": [1.25], "02.4": [257_024], "02.6": [4.02], "02.7": [99.2],
        "02.10": [0.01], "02.11": [5.06],
        "03.1": [37.3],
        "03.2": [2.57],
        "03.4": [51.6],
        "03.5": [32],
        "03.7": [2.46],
        "03.9": [3.18],
        "04.1": [5.5], "04.3": [32.0], "04.17": [12.0], "04.5": [8.0], "04.9": [32.0],
        "04.11": [16.0], "04.13": [17.9], "04.15": [127.0], "04.16": [25.0],
        "05.1": ["the loss becomes nan within a few steps"], "05.2": [2048.0], "05.4": [77.1],
        "05.5": ["no, whatever the scale"], "05.6": [28.7], "05.8": ["it learns nothing"],
        "05.10": ["in float32 on CUDA, in the lower precision on a CPU"], "05.12": [74.5],
        "05.14": [99.95],
        "06.1": [75.0], "06.2": [1.14], "06.3": [2.0], "06.6": [3.0], "06.8": [400],
        "06.10": ["activations"], "06.11": [1.33], "06.13": ["it fits"],
        "07.1": [1.01], "07.3": ["80 %"], "07.4": [25.6], "07.7": [1], "07.8": [10.2],
        "07.9": ["8-bit weights and inputs"], "07.12": [20.0],
        "08.1": [1.12e11],
        "08.2": [2.0],
        "08.4": ["the same, but for rounding"],
        "08.5": ["as soon as the last layer has its gradients"],
        "08.6": [45.0],
        "08.7": [24.5],
        "08.9": [1.5],
        "08.11": [6.4],
        "08.13": ["all wait, until a timeout"],
        "09.1": [3.0], "09.2": ["larger batch"], "09.4": ["more than was measured"], "09.6": [3],
        "09.8": ["less accurate"], "09.10": [3.44],
        "10.1": [425.0], "10.3": [11.8], "10.5": [2.69], "10.7": [4],
        "11.1": [41.0], "11.2": [15.6], "11.4": [5.56], "11.5": [1], "11.7": [3.1],
        "11.9": [0.021], "11.11": [2**31], "11.13": [6.2], "11.14": [57.7],
        "11.16": ["decode gains more"], "11.18": [2.4],
    }  # fmt: skip


@pytest.mark.slow
def test_every_question_is_asked_and_has_its_results() -> None:
    """The notebooks ask exactly the course's questions, and each is revealed below."""
    ids = [question.id for question in QUESTIONS]
    assert list(ASKED) == ids == list(results())


@pytest.mark.slow  # the four ladders take seconds
@pytest.mark.parametrize("id", ASKED)
def test_what_a_reveal_takes_from_a_result(id: str, approved: Any) -> None:
    """The number or the choice, with its badges, or why there is none."""
    lessons.predict(**ASKED[id])
    text = ""
    for result in results()[id]:
        shown = lessons.reveal(id, result)
        text += f"{shown.measured_text} ({shown.badges})\n"
    assert text == approved


def spread(id: str) -> tuple[list[Any], list[Any]]:
    """What can be predicted and what can be measured, in the question's unit; all choices."""
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
