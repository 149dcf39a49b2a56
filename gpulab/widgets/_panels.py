"""An instrument's two panels as widgets: controls above the figure, results below it.

Traits are sent in one direction only, from the kernel to the browser; the browser sends messages.
So a thread that writes progress never conflicts with an incoming change of a trait, and every input
is validated at one place in Python.
"""

from __future__ import annotations

import pathlib
import threading
import uuid
from typing import Any

import anywidget
import traitlets

_HERE = pathlib.Path(__file__).parent


def script(name: str) -> str:
    """Return a widget's script with the shared helpers before it."""
    return (_HERE / "dom.js").read_text(encoding="utf-8") + (_HERE / name).read_text(
        encoding="utf-8"
    )


class Panel(anywidget.AnyWidget):  # type: ignore[misc,unused-ignore]
    """A widget that several threads may write to.

    Parameters
    ----------
    later : bool
        Do not send the panel to the browser before ``open_now``. What is written until then is part
        of that one message: a busy browser was seen to lose updates that followed a new panel
        immediately.
    **kwargs
        Initial traits.
    """

    _css = (_HERE / "panel.css").read_text(encoding="utf-8")

    # by which its script finds the whole model, of which it is given a part
    own_id = traitlets.Unicode().tag(sync=True)

    def __init__(self, *, later: bool = False, **kwargs: Any) -> None:
        self._writing = threading.RLock()
        self._later = later
        own_id = uuid.uuid4().hex
        super().__init__(model_id=own_id, own_id=own_id, **kwargs)

    def open(self) -> None:
        """Send the panel to the browser, unless ``later`` was set."""
        if not self._later:
            super().open()

    def open_now(self) -> None:
        """Send the panel to the browser in its present state."""
        self._later = False
        self.open()

    def write(self, **traits: Any) -> None:
        """Set traits, one writer at a time, and send them in one message. Values that did not
        change are not sent again.
        """
        with self._writing, self.hold_sync():
            for name, value in traits.items():
                if getattr(self, name) != value:
                    setattr(self, name, value)


class ControlsPanel(Panel):
    """The controls, the buttons, the progress and the error line."""

    _esm = script("controls.js")

    title = traitlets.Unicode().tag(sync=True)
    summary = traitlets.Unicode().tag(sync=True)
    spec: traitlets.List[Any] = traitlets.List().tag(sync=True)  # [Control.describe(), ...]
    values = traitlets.Dict().tag(sync=True)  # name -> raw value
    # [{"name", "label", "help"}, ...]
    actions: traitlets.List[Any] = traitlets.List().tag(sync=True)
    first = traitlets.Unicode().tag(sync=True)  # the action whose button stands out
    state = traitlets.Unicode("idle").tag(sync=True)  # idle, running, stopping
    action = traitlets.Unicode().tag(sync=True)  # the action that runs
    fraction = traitlets.Float(0.0).tag(sync=True)
    progress = traitlets.Unicode().tag(sync=True)
    # how many pieces of work are over: so that a second end differs from the first
    ended = traitlets.Int(0).tag(sync=True)
    error = traitlets.Unicode().tag(sync=True)
    error_control = traitlets.Unicode().tag(sync=True)  # the control that the error is about, or ""

    def write_while(self, state: str, **traits: Any) -> None:
        """Set traits, as ``write`` does, if the state equals ``state``; the state cannot change in
        between.
        """
        with self._writing:
            if self.state == state:
                self.write(**traits)


class ResultsPanel(Panel):
    """The caption of the picture, the table, the status line and the code."""

    _esm = script("results.js")

    label = traitlets.Unicode().tag(sync=True)  # names the table for a screen reader
    caption = traitlets.Unicode().tag(sync=True)
    # what to do where there is no result yet, or what to know about this one
    message = traitlets.Unicode().tag(sync=True)
    headers: traitlets.List[Any] = traitlets.List().tag(sync=True)
    # rows of texts; {"badge": "MEASURED"} is drawn as a badge
    rows: traitlets.List[Any] = traitlets.List().tag(sync=True)
    # [{"badge", "text", "rest"}, ...]; "rest" unfolds
    evidence: traitlets.List[Any] = traitlets.List().tag(sync=True)
    notes: traitlets.List[Any] = traitlets.List().tag(sync=True)  # [{"code", "sentence"}, ...]
    more: traitlets.List[Any] = traitlets.List().tag(sync=True)  # the notes that are folded
    code = traitlets.Unicode().tag(sync=True)
    busy = traitlets.Bool(False).tag(sync=True)
