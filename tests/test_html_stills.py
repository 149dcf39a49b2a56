"""Stills and plots against states written by hand: what a panel shows, as words, and the figure's data beside its words."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from gpulab._html._plots import plot
from gpulab._html._stills import Stills

VIEW_STATE = "application/vnd.jupyter.widget-state+json"
SPEC: list[dict[str, Any]] = [
    {"name": "n", "label": "Size", "unit": "bytes", "kind": "number"},
    {"name": "kind", "label": "Kind", "kind": "choice", "options": ["small", "large"]},
    {"name": "which", "label": "Devices", "kind": "several", "options": ["cpu", "cuda:0", "mps"]},
    {"name": "none", "label": "Others", "kind": "several", "options": ["a"]},
    {"name": "on", "label": "Pinned", "kind": "switch"},
    {"name": "off", "label": "Log <axis>", "kind": "switch"},
    {"name": "away", "label": "Not on the screen", "kind": "number", "hidden": True},
    {"name": "elsewhere", "label": "Without a value", "kind": "number"},
]
CONTROLS = {
    "spec": SPEC, "values": {"n": "64", "kind": 1, "which": [0, 2], "none": [], "on": True, "off": False, "away": "3"},
    "actions": [{"label": "Run"}, {"label": "Fit"}], "title": "Transfer", "summary": "Moves bytes.", "error": "Size: no.",
}  # fmt: skip
RESULTS = {
    "label": "Results", "headers": ["", "time"], "rows": [["GPU", "1 ms"], ["CPU", {"badge": "MEASURED"}]], "message": "Press Run.",
    "evidence": [{"badge": "MEASURED", "text": "on a & b", "short": ""}, {"badge": "MODELLED", "text": "a long story", "short": "a long"}],
    "notes": [{"code": "deadline", "sentence": "Too soon."}], "code": "x < y",
}  # fmt: skip


def words(text: str) -> list[str]:
    """The texts between the tags, in order."""
    return [part.strip() for part in re.split(r"<[^>]*>", text) if part.strip()]


def stills(**states: dict[str, Any]) -> Stills:
    """The widgets with these states; an output is drawn as its text."""
    models = {name: {"state": state} for name, state in states.items()}
    return Stills({"widgets": {VIEW_STATE: {"state": models}}}, lambda output: str(output["text"]))


def of(state: dict[str, Any]) -> list[str]:
    """The words of a still of one panel, without those around every still."""
    label, *rest = words(stills(x=state).of("x", "never shown"))
    assert label.startswith("Instrument, as a still picture")
    return rest


def test_controls_are_words() -> None:
    """Options by their texts, switches as on and off, units behind labels; what is hidden or has no value is left out."""
    assert of(CONTROLS) == [
        "Transfer", "Moves bytes.", "Size (bytes)", "64", "Kind", "large", "Devices", "cpu, mps", "Others", "none", "Pinned", "on",
        "Log &lt;axis&gt;", "off", "Buttons: Run, Fit", "Size: no.",
    ]  # fmt: skip


def test_an_instrument_without_controls_has_its_heading_alone() -> None:
    """No list of nothing, no buttons of nothing, no error of nothing."""
    bare = {**CONTROLS, "spec": [], "values": {}, "actions": [], "error": ""}
    assert of(bare) == ["Transfer", "Moves bytes."]
    assert not re.search("<dl|still-buttons|gpulab-error", stills(x=bare).of("x", ""))


def test_results_are_a_table_with_its_evidence_notes_and_code() -> None:
    """In the panel's order; the first column and the heads are headers; long evidence folds behind its short words."""
    assert of(RESULTS) == [
        "Press Run.", "Results", "time", "GPU", "1 ms", "CPU", "MEASURED", "MEASURED", "on a &amp; b", "MODELLED", "a long",
        "a long story", "deadline", "Too soon.", "Show the code", "x &lt; y",
    ]  # fmt: skip
    text = stills(x=RESULTS).of("x", "")
    assert '<tr><td></td><th scope="col">time</th></tr>' in text
    assert "<tr><th scope=row>GPU</th><td>1 ms</td></tr>" in text
    assert text.count("<details") == 2  # the long evidence, and the code
    assert text.count("gpulab-badge-measured") == 2


def test_empty_results_have_no_empty_parts() -> None:
    """Before the first run there is no table, no list and no code; a table without heads has no row of them."""
    empty = {**RESULTS, "rows": [], "message": "", "evidence": [], "notes": [], "code": ""}
    assert of(empty) == []
    assert not re.search("<table|<ul|<details", stills(x=empty).of("x", ""))
    headless = {**RESULTS, "headers": ["", ""]}
    assert "<thead>" not in stills(x=headless).of("x", "")
    assert "<thead>" in stills(x=RESULTS).of("x", "")


@pytest.mark.parametrize(
    ("unit", "choices", "how"),
    [
        ("us", [], ["Commit yourself to a number before you read on. In us."]),
        ("x", [], ["Commit yourself to a number before you read on. As a factor."]),
        ("%", [], ["Commit yourself to a number before you read on. In per cent."]),
        ("", [], ["Commit yourself to a number before you read on."]),
        ("", ["A", "B"], ["A", "B", "Choose before you read on."]),
    ],
)
def test_a_prediction_asks_and_keeps_the_answer(unit: str, choices: list[str], how: list[str]) -> None:
    """The question with its unit or its choices, and nothing of what was answered; it is no instrument and has no label of one."""
    state = {"id": "02.1", "question": "How long?", "choices": choices, "example": "5", "unit": unit, "answer": "7 us"}
    assert words(stills(x=state).of("x", "never shown")) == ["Predict 02.1", "How long?", *how]


def test_an_instrument_is_its_parts_in_order() -> None:
    """A box is drawn through its children, an Output through its outputs."""
    box = {"children": ["IPY_MODEL_a", "IPY_MODEL_b", "IPY_MODEL_c"]}
    drawn = stills(x=box, a=CONTROLS, b={"outputs": [{"text": "picture"}, {"text": "more"}]}, c=RESULTS).of("x", "never shown")
    found = words(drawn)
    assert [found.index(each) for each in ("Transfer", "picture", "more", "Press Run.")] == [1, 17, 18, 19]
    assert drawn.count('class="still"') == 1


@pytest.mark.parametrize("state", [{}, {"value": 3}, {"children": []}])
def test_what_is_not_ours_is_named(state: dict[str, Any]) -> None:
    """A widget of another library, or an empty one: its own words, and that it runs in JupyterLab."""
    assert words(stills(x=state).of("x", "a <slider>")) == ["An instrument that runs in JupyterLab", "a &lt;slider&gt;"]


def test_a_plot_keeps_its_data_and_says_its_words() -> None:
    """The description goes before the output's words, those before none at all; the height is the figure's, else one for all."""
    figure = {"data": [{"x": [1, 2], "name": "<b>"}], "layout": {"meta": {"description": 'so "big"'}, "height": 480, "title": "T"}}
    text = plot(figure, "words")
    (stored,) = re.findall(r'<script type="application/json">(.*?)</script>', text)
    assert json.loads(stored) == figure
    assert "<" not in stored
    assert 'aria-label="so &quot;big&quot;" style="height:480px"' in text
    assert '<p class="plot-words">so &quot;big&quot;</p>' in text
    assert 'aria-label="words"' in plot({"layout": {"meta": {}}}, "words")
    assert 'aria-label="words"' in plot({"layout": {"meta": ["no mapping"]}}, "words")
    bare = plot({})
    assert 'aria-label="A figure."' in bare
    assert json.loads(re.findall(r'json">(.*?)</script>', bare)[0]) == {"data": [], "layout": {}}
    assert 'style="height:360px"' in bare


def test_no_plot_has_numbers_that_json_does_not_know() -> None:
    """A browser refuses NaN where Python writes it, so it is refused here."""
    with pytest.raises(ValueError, match="not JSON compliant"):
        plot({"data": [{"y": [float("nan")]}]})
