"""A panel tells the browser of itself when it is told to, and of each change once."""

from __future__ import annotations

import dataclasses
import inspect
import pathlib
from typing import Any

import anywidget
import pytest
import traitlets

from gpulab import lessons
from gpulab.figures import palette
from gpulab.widgets import MachineCard, NumberFormats, _controls
from gpulab.widgets._panels import ControlsPanel, Panel, ResultsPanel, script
from gpulab.widgets._simt_panel import MicroscopePanel
from gpulab.widgets.prediction import PredictionPanel


class Made(Panel):
    """A panel with one trait."""

    text = traitlets.Unicode("at first").tag(sync=True)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the browser is told of: the text of each panel at that moment."""
    told: list[str] = []
    monkeypatch.setattr(anywidget.AnyWidget, "open", lambda panel: told.append(panel.text))
    return told


def test_a_panel_for_later_is_told_as_it_is_by_then(opened: list[str]) -> None:
    """One message with all that was written until then; any other panel is told of at once; a box that opens its parts finds it told."""
    panel = Made(later=True)
    panel.write(text="by then")
    panel.open()
    assert opened == []
    panel.open_now()
    assert opened == ["by then"]
    panel.open()
    assert opened == ["by then"] * 2
    Made(text="here")
    assert opened[2:] == ["here"]


def test_instruments_and_forms_come_with_their_whole_first_state(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    """The machine in the card, the ticked bits, an answer kept earlier: none of it is an update behind the panel, which may be lost."""
    monkeypatch.setenv("GPULAB_PROGRESS", str(tmp_path / "progress.json"))
    asked = lessons.predict("91.9", "How long?", unit="us")
    asked.submit("5")
    told: list[tuple[Panel, dict[str, Any]]] = []
    opens = anywidget.AnyWidget.open

    def note(panel: Panel) -> None:
        if panel.comm is None:  # a box opens its parts once more
            told.append((panel, panel.get_state()))
        opens(panel)

    monkeypatch.setattr(anywidget.AnyWidget, "open", note)
    made = [MachineCard(), NumberFormats(), PredictionPanel(asked)]
    assert len(told) == 5, "the card and the formats have two panels each"
    assert [(panel, panel.get_state()) for panel, _ in told] == told
    assert (made[2].answered, made[2].status) == (True, asked.status)


def test_what_is_equal_is_not_sent_again() -> None:
    """A trait that changes is one change, one that stays is none, an unknown one is an error."""
    panel = ResultsPanel()
    seen: list[tuple[str, Any]] = []
    panel.observe(lambda change: seen.append((change["name"], change["new"])), names=["rows", "message"])
    panel.write(rows=[["1"]], message="")
    panel.write(rows=[["1"]], message="x")
    assert seen == [("rows", [["1"]]), ("message", "x")]
    with pytest.raises(AttributeError):
        panel.write(nosuch=1)


def test_what_is_written_together_arrives_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error comes with the mark at its control, so a screen reader that is told of the one finds the other; nothing new, no message."""
    panel = ControlsPanel()
    sent: list[dict[str, Any]] = []
    monkeypatch.setattr(panel, "_send", lambda message, buffers=None: sent.append(message["state"]))
    monkeypatch.setattr(ControlsPanel, "comm", object())  # as where a browser listens
    panel.write(error="too many", error_control="threads")
    panel.write(error="too many", error_control="threads")
    assert sent == [{"error": "too many", "error_control": "threads"}]


def test_a_new_panel_is_at_rest() -> None:
    """Idle, nothing done yet, no error, not busy."""
    panel = ControlsPanel()
    assert (panel.state, panel.fraction, panel.ended, panel.error, panel.error_control) == ("idle", 0.0, 0, "", "")
    assert ResultsPanel().busy is False


# What each script reads of its panel, and what that is at first. Blue, orange, green and red are Okabe and Ito's (2008).
SENT: dict[type[Panel], dict[str, Any]] = {
    ControlsPanel: {
        "title": "", "summary": "", "spec": [], "values": {}, "actions": [], "first": "", "state": "idle", "action": "", "fraction": 0.0,
        "progress": "", "ended": 0, "error": "", "error_control": "",
    },
    ResultsPanel: {
        "label": "", "caption": "", "message": "", "headers": [], "rows": [], "evidence": [], "notes": [], "code": "", "busy": False,
    },
    MicroscopePanel: {
        "columns": ["line", "source", "active lanes", "divergent branches", "sectors / request (ideal)", "bank conflict", "requests"],
        "colors": {"lane": "#009E73", "touched": "#56B4E9", "conflict": "#E69F00", "look": "#D55E00", "guide": palette.GREY},
        "label": "", "source": [], "position": {},
    },
}  # fmt: skip


@pytest.mark.parametrize("kind", SENT, ids=lambda kind: kind.__name__)
def test_a_panel_sends_all_that_its_script_reads(kind: type[Panel]) -> None:
    """Each trait goes to the browser, with its value at first, and by which name it is known there; its state is nothing else."""
    panel = kind()
    own = panel.get_state().keys() - anywidget.AnyWidget().get_state().keys() - {"_css", "_esm"}
    assert panel.get_state(own) == {**SENT[kind], "own_id": panel.model_id}


@pytest.mark.parametrize("name", ["controls.js", "results.js", "prediction.js", "simt_microscope.js"])
def test_each_script_has_the_shared_helpers_before_it(name: str) -> None:
    """A browser gets one text, with what it calls above the call."""
    assert script(name).startswith(script("dom.js")[: len(script("dom.js")) // 2])
    assert "export default" in script(name)


def test_a_control_is_described_by_names_alone() -> None:
    """Nobody has to know in which order a slider takes its texts."""
    controls = {kind for _, kind in inspect.getmembers(_controls, dataclasses.is_dataclass) if kind.__module__ == _controls.__name__}
    assert len(controls) > 4
    assert [kind.__name__ for kind in controls for field in dataclasses.fields(kind) if not field.kw_only] == []
