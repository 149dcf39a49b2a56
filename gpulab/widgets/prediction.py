"""A prediction as a small form: the question, a number or choices, Save, and then the saved answer.

The lessons do not depend on widgets; ``%load_ext gpulab`` registers ``render`` for their
``Prediction``.
"""

from __future__ import annotations

from typing import Any

import traitlets

from gpulab.errors import GpulabError
from gpulab.lessons import Prediction
from gpulab.widgets._instrument import Panel, script
from gpulab.widgets._work import in_one_sentence, register

VIEW_MIME = "application/vnd.jupyter.widget-view+json"


class PredictionPanel(Panel):
    """The form of one prediction; all forms of the same question show the same state."""

    _esm = script("prediction.js")

    # id, question, unit, choices and an example of an answer
    asked = traitlets.Dict().tag(sync=True)
    status = traitlets.Unicode().tag(sync=True)
    error = traitlets.Unicode().tag(sync=True)
    answered = traitlets.Bool(False).tag(sync=True)
    revealed = traitlets.Bool(False).tag(sync=True)

    def __init__(self, prediction: Prediction) -> None:
        self._prediction = prediction
        names = ("id", "question", "unit", "choices", "example")
        super().__init__(asked={name: getattr(prediction, name) for name in names})
        self._unsubscribe = prediction.observe(self._follow)
        self._follow(prediction)
        self.on_msg(self._on_message)
        self.open_now()
        register(self)

    def submit(self, value: str | float) -> None:
        """Save an answer, as the Save button does; if it is refused, show the reason in one
        sentence.
        """
        try:
            status = self._prediction.submit(value)
        except (GpulabError, OSError) as error:
            self.write(error=in_one_sentence(error), status=self._prediction.status)
            return
        self.write(error="", status=status)

    def stop(self) -> None:
        """Stop following the question; called when its cell is run again."""
        self._unsubscribe()

    def _follow(self, prediction: Prediction) -> None:
        self.write(
            status=prediction.status,
            answered=prediction.answer is not None,
            revealed=prediction.revealed is not None,
        )

    def _on_message(self, _: Any, content: Any, __: Any) -> None:
        try:
            if content.get("do") == "answer":
                self.submit(str(content.get("value", "")))
        except Exception as error:
            # shown in the form: a callback's exception is shown nowhere else
            self.write(error=in_one_sentence(error))
        finally:
            self.send({"ack": True})


def render(prediction: Prediction, include: Any = None, exclude: Any = None) -> dict[str, Any]:
    """Return the widget's view, which IPython adds to the prediction's own text and HTML."""
    panel = PredictionPanel(prediction)
    return {VIEW_MIME: {"version_major": 2, "version_minor": 0, "model_id": panel.model_id}}
