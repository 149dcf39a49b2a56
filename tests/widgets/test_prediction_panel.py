"""The form of a prediction: what is kept, what is refused, what another view of the same question sees."""

from __future__ import annotations

import pathlib

import anywidget
import pytest
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

from gpulab import lessons, magics
from gpulab.widgets import _cells
from gpulab.widgets.prediction import VIEW_MIME, PredictionPanel


@pytest.fixture(autouse=True)
def _own_progress(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPULAB_PROGRESS", str(tmp_path / "progress.json"))


def test_an_answer_is_kept_and_shown_everywhere() -> None:
    """Saving keeps the answer in the question's unit, in this form and in every other view of the question."""
    asked = lessons.predict("91.1", "How long?", unit="us")
    here, there = PredictionPanel(asked), PredictionPanel(lessons.predict("91.1", "How long?", unit="us"))
    assert (here.answered, here.revealed) == (False, False)
    here._handle_custom_msg({"do": "answer", "value": "5 ms"}, [])
    assert asked.answer is not None
    assert asked.answer.value == pytest.approx(5e-3)
    assert here.answered
    assert there.answered
    assert asked.answer.text in here.status
    assert asked.answer.text in there.status


def test_after_the_reveal_the_form_says_both() -> None:
    """The cell that reveals the measurement changes the form above it."""
    panel = PredictionPanel(lessons.predict("91.2", "Which?", choices=["this", "that"]))
    panel.submit("that")
    lessons.reveal("91.2", "this")
    assert panel.revealed
    assert "that" in panel.status
    assert "this" in panel.status


def test_the_form_says_why_nothing_was_measured() -> None:
    """The cell that could not measure tells the form above it, which asks no longer to run that cell; a later one that could does too."""
    panel = PredictionPanel(lessons.predict("91.7", "How long?", unit="us"))
    panel.submit("5")
    assert panel.status.endswith("Run the next cell to measure.")
    lessons.reveal("91.7", None, "no GPU here")
    assert (panel.revealed, panel.status) == (
        False,
        "Your prediction is kept: 5.00 us. When the next cell ran, the answer was not measured: no GPU here.",
    )
    lessons.reveal("91.7", 6e-6)
    assert (panel.revealed, panel.status) == (True, "You predicted 5.00 us; the answer was 6.00 us (MEASURED).")


@pytest.mark.parametrize("value", ["", "five", "-1 us", "1 GB", "nan", "\u2603" * 1000])
def test_a_bad_answer_is_refused_in_the_form(value: str) -> None:
    """Nothing is kept, one sentence says what was expected, and a good answer clears it."""
    asked = lessons.predict("91.3", "How long?", unit="us")
    panel = PredictionPanel(asked)
    panel._handle_custom_msg({"do": "answer", "value": value}, [])
    assert "expected" in panel.error
    assert asked.answer is None
    panel.submit("3")
    assert panel.error == ""
    assert panel.answered


@pytest.mark.parametrize("content", [None, "x", {}, {"do": "answer", "value": None}, {"do": "answer", "value": [1]}])
def test_no_message_ends_the_form(content: object) -> None:
    """Whatever a browser sends, the form works afterwards."""
    asked = lessons.predict("91.4", "How long?", unit="us")
    panel = PredictionPanel(asked)
    panel._handle_custom_msg(content, [])
    panel.submit("3 us")
    assert asked.answer is not None


def test_a_form_sends_all_that_its_script_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """The question, its unit, its example and how it stands; each message is answered, and one that is none is told."""
    asked = lessons.predict("91.6", "How long?", unit="us")
    panel = PredictionPanel(asked)
    own = panel.get_state().keys() - anywidget.AnyWidget().get_state().keys() - {"_css", "_esm"}
    assert panel.get_state(own) == {
        "id": "91.6", "question": "How long?", "unit": "us", "choices": [], "example": asked.example, "status": asked.status, "error": "",
        "answered": False, "revealed": False, "own_id": panel.model_id,
    }  # fmt: skip
    answers: list[object] = []
    panel.send = answers.append
    panel._handle_custom_msg(None, [])
    assert panel.error.startswith("AttributeError: ")
    panel._handle_custom_msg({"do": "answer", "value": "3 us"}, [])
    assert (panel.error, answers) == ("", [{"ack": True}] * 2)


def test_a_form_whose_cell_runs_again_follows_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """The form of the earlier run stays as it is; that of the new one follows the answers of every view."""
    monkeypatch.setattr(_cells, "_MADE", {})
    forms = []
    for run in ("run-1", "run-2"):
        monkeypatch.setattr(_cells, "_current", lambda run=run: ("cell-p", run))
        forms.append(PredictionPanel(lessons.predict("91.7", "How long?", unit="us")))
    PredictionPanel(lessons.predict("91.7", "How long?", unit="us")).submit("3 us")
    assert [form.answered for form in forms] == [False, True]


def test_the_extension_shows_predictions_as_forms(tmp_path: pathlib.Path) -> None:
    """``%load_ext gpulab`` adds a widget view to the prediction's text, once however often it is loaded."""
    config = Config()
    config.HistoryManager.enabled = False
    shell = InteractiveShell(config=config, ipython_dir=str(tmp_path))
    asked = lessons.predict("91.5", "How long?", unit="us")
    magics.register(shell)
    magics.register(shell)
    data, _ = shell.display_formatter.format(asked)
    view = dict(data[VIEW_MIME])
    assert view.pop("model_id")
    assert view == {"version_major": 2, "version_minor": 0}  # of the model of Jupyter widgets' protocol, which frontends ask for
    assert "How long?" in data["text/plain"]
    assert "How long?" in data["text/html"]
