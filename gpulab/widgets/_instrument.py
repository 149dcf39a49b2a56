"""The base class of every instrument: controls, figure and results, for mouse and Python.

How to add an instrument
------------------------
1. Write the core call first (in a package below ``widgets``; it takes ``progress`` and ``stop`` and
   returns a result), then its figure in ``gpulab/figures``. An instrument does no arithmetic.
2. Add a class to the file of its subject in ``gpulab/widgets``, or to a new one. It inherits from
   ``Instrument`` and defines

   - ``title``, ``summary``, ``actions`` (an ``Action`` for each button; none for an analytic
     instrument, which only redraws);
   - ``make_controls()``: the controls (``Choice``, ``Slider``, ``Number``, ``Switch``,
     ``Several``), in reading order; ``when`` states for which values a control is shown;
   - ``work(action, values, progress, stop)``: the core call, run in a thread; its return value goes
     to ``self.results[action]``;
   - ``draw(values)``: a ``Drawing`` of ``self.results``; called after each change and after the
     work; under 100 ms;
   - ``code_for(values)``: the few lines of gpulab that give the same result in a cell; ``cell``
     and ``call`` write them from the arguments of the core call;
   - ``changed(name)``, if the options of one control depend on another control: call
     ``self.rebuild(...)`` there with the names of the controls that ``make_controls`` must make
     again;
   - ``ended(action)``, if a control selects which result is shown: call ``self.turn`` there to set
     that control to the new result. If the control is named ``view`` and its values are the names
     of the actions, the base class knows which result is shown, and a control with ``views`` is
     shown only in those views;
   - ``failed(action)``, if the old result must be removed when work ends without a result.

   If an action is to run automatically when the controls ask for something new, the class inherits
   from ``FollowingInstrument`` instead.
3. Add its name to the list of ``gpulab/widgets/__init__.py``, where the tests find it, a row
   with what it shows to ``tests/widgets/test_displays.py``, and a cell with it to a notebook.

The base class handles validation with one-sentence errors, the thread, progress, Stop, the refusal
of a second run, turn-taking between instruments, the errors of the core, focus, keyboard and
themes.

Threads: messages from the browser are handled, and the instrument is redrawn, in the kernel's main
thread or in a subshell (ipykernel 7 uses both for one panel). So two messages may be handled at the
same time, and not in the order in which they were sent. The worker thread calls ``work`` and then
``draw``. ``_lock`` serializes all of them. The browser sends each value with its view and a
sequence number, so that an older value never replaces a newer one; a button also sends the values
that are not acknowledged yet.
"""

from __future__ import annotations

import dataclasses
import pathlib
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import anywidget
import ipywidgets
import traitlets
from ipywidgets.widgets import widget as registry

from gpulab.errors import InputError, StoppedError, shown
from gpulab.evidence import Badge, Evidence, Note
from gpulab.figures import LabFigure, mimebundle
from gpulab.results import folded
from gpulab.widgets._controls import (
    Choice,
    Control,
    Number,
    Several,
    Slider,
    Switch,
    pairs,
)
from gpulab.widgets._work import Job, Progress, Stop, in_one_sentence, register

# Instruments import their parts from this module.
__all__ = [
    "Action",
    "Choice",
    "Code",
    "Control",
    "Drawing",
    "FollowingInstrument",
    "Instrument",
    "Number",
    "Panel",
    "Progress",
    "Several",
    "Slider",
    "Stop",
    "Switch",
    "Values",
    "call",
    "cell",
    "in_one_sentence",
    "literal",
    "notes_for_button",
    "pairs",
    "part_of",
    "rounded",
    "script",
]

Values = Mapping[str, Any]
_NOTES = 2  # notes that are shown; the others are folded, unless it is only one
# The order of the notes: first those about a wrong result, then (weight 1) those about a doubtful
# time, and last those about how a time was measured.
_WEIGHTS = {
    "disagree": 0,
    "implausible": 0,
    "diverged": 0,
    "slow-first-call": 2,
    "too-short": 2,
    "deadline": 2,
    "turn-taking": 2,
}


@dataclass(frozen=True)
class Action:
    """One button.

    Attributes
    ----------
    name : str
        The name that ``work`` and ``run`` receive.
    label : str
        On the button.
    help : str
        One sentence.
    measures : bool
        Whether the action measures times, so that no other measurement may run beside it.
    """

    name: str
    label: str
    help: str = ""
    measures: bool = True


@dataclass(frozen=True)
class Drawing:
    """What an instrument shows: the figure, the table of the same results, and their evidence and
    notes.

    ``message`` states what to do if there is no result yet. A cell of ``rows`` that is a ``Badge``,
    or the word of one, is drawn as a badge.
    ``is_stale`` states whether the controls have changed since the result was made; if it is None,
    the instrument compares the controls itself.
    ``rows`` leaves out the rows of notes in a result's own table, because notes are shown below the
    table. There, a note of each of the two most important codes comes first, then all others,
    grouped by code.
    """

    figure: LabFigure | None = None
    headers: Sequence[str] = ()
    rows: Sequence[Sequence[str | Badge]] = ()
    evidence: Sequence[Evidence] = ()
    notes: Sequence[Note] = ()
    message: str = ""
    is_stale: bool | None = None

    @classmethod
    def of(
        cls,
        result: Any,
        figure: LabFigure | None = None,
        message: str = "",
        is_stale: bool | None = None,
    ) -> Drawing:
        """Return the table of a result, its evidence and its notes, beside a figure of it."""
        headers, rows = result.table()
        notes = getattr(result, "notes", ())
        return cls(figure, headers, rows, [result.evidence], notes, message, is_stale)

    def __post_init__(self) -> None:
        """Leave out the rows of notes and repeated evidence, and bring the notes into order."""
        codes = sorted(
            dict.fromkeys(note.code for note in self.notes), key=lambda code: _WEIGHTS.get(code, 1)
        )
        grouped = sorted(self.notes, key=lambda note: codes.index(note.code))
        first = [next(note for note in grouped if note.code == code) for code in codes[:_NOTES]]
        rows = [row for row in self.rows if not str(row[0]).startswith("note: ")]
        object.__setattr__(self, "notes", list(dict.fromkeys([*first, *grouped])))
        object.__setattr__(self, "rows", rows)
        sources = {source.sentence: source for source in self.evidence}
        object.__setattr__(self, "evidence", list(sources.values()))


class Code(str):
    """Python that ``call`` writes as it is, not as a string."""

    __repr__ = str.__str__


def literal(value: Any) -> str:
    """Return the value as Python with double quotes, as the course writes it."""
    return repr(value).replace("'", '"')


def call(function: str, *arguments: Any, **named: Any) -> str:
    """Return the call of a function of gpulab as code.

    >>> call("transfer.sweep", "cpu", deadline=2.0)
    'gl.transfer.sweep("cpu", deadline=2.0)'
    """
    words = [*map(literal, arguments), *(f"{name}={literal(v)}" for name, v in named.items())]
    return f"gl.{function}({', '.join(words)})"


def cell(*lines: str) -> str:
    """Return the lines as the text of a cell, below what they import."""
    uses_torch = any("torch." in line for line in lines)
    imports = ["import torch", "import gpulab as gl"] if uses_torch else ["import gpulab as gl"]
    return "\n".join([*imports, "", *lines])


def rounded(text: str) -> str:
    """Return "2 s" for "2.00 s": the text of a choice among round values."""
    return text.replace(".00", "").replace(".0 ", " ")


def part_of(progress: Progress, number: int, count: int, name: str) -> Progress:
    """Return the progress of one part among several."""
    return lambda fraction, text: progress((number + fraction) / count, f"{name}: {text}")


def notes_for_button(notes: Sequence[Note]) -> list[Note]:
    """Return notes that advise to press the button again, instead of passing ``refresh=True``: the
    button then measures disturbed roofs again.
    """
    words = "measure again with refresh=True", "press the button again"
    return [dataclasses.replace(note, sentence=note.sentence.replace(*words)) for note in notes]


_HERE = pathlib.Path(__file__).parent


def script(name: str) -> str:
    """Return a widget's script with the shared helpers before it."""
    return (_HERE / "dom.js").read_text(encoding="utf-8") + (_HERE / name).read_text(
        encoding="utf-8"
    )


class Panel(anywidget.AnyWidget):  # type: ignore[misc,unused-ignore]
    """A widget that several threads may write to. ``open_now`` sends it to the browser, with all
    that was written until then, because a busy browser was seen to lose updates that followed a new
    panel immediately.

    Traits are sent in one direction only, from the kernel to the browser; the browser sends
    messages. So a thread that writes progress never conflicts with an incoming change of a trait,
    and every input is validated at one place in Python.
    """

    _css = (_HERE / "panel.css").read_text(encoding="utf-8")

    # The panel's script gets only a part of the model, and finds the whole model by this ID.
    own_id = traitlets.Unicode().tag(sync=True)

    def __init__(self, **traits: Any) -> None:
        self._writing = threading.RLock()
        own_id = uuid.uuid4().hex
        super().__init__(model_id=own_id, own_id=own_id, **traits)

    def open(self) -> None:
        """Do nothing, since ipywidgets calls this when the widget is made; see ``open_now``."""

    def open_now(self) -> None:
        """Send the panel to the browser in its present state."""
        super().open()

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
    fraction = traitlets.Float(0.0).tag(sync=True)
    progress = traitlets.Unicode().tag(sync=True)
    # how many pieces of work have ended, so that the browser notices the end of each
    ended = traitlets.Int(0).tag(sync=True)
    error = traitlets.Unicode().tag(sync=True)
    error_control = traitlets.Unicode().tag(sync=True)  # the control that the error is about, or ""


class ResultsPanel(Panel):
    """The caption of the picture, the table, the status line and the code."""

    _esm = script("results.js")

    label = traitlets.Unicode().tag(sync=True)  # names the table for a screen reader
    # caption: the picture in words; message: what to do where there is no result yet, or what to
    # know about this one; headers; rows of texts, where {"badge": "MEASURED"} is drawn as a badge;
    # evidence: [{"badge", "text", "rest"}, ...], whose "rest" unfolds; notes: [{"code",
    # "sentence"}, ...]; more: the notes that are folded; code
    shown = traitlets.Dict().tag(sync=True)
    busy = traitlets.Bool(False).tag(sync=True)


class Instrument(ipywidgets.VBox):  # type: ignore[misc]
    """The base class of all instruments; the module's docstring explains how to add one.

    Parameters
    ----------
    **values
        Initial values of controls, by name.

    Attributes
    ----------
    results : dict
        The newest result of each action.
    latest : str
        The action whose result is the newest, or "".
    shown : Drawing
        What is on the screen now: figure, table, evidence, notes and message.

    Raises
    ------
    InputError
        If there is no such control, or it cannot take the value.
    """

    title: ClassVar[str] = ""
    summary: ClassVar[str] = ""
    actions: tuple[Action, ...] = ()

    def __init__(self, **values: Any) -> None:
        self._lock = threading.RLock()
        self._job: Job | None = None
        self.results: dict[str, Any] = {}
        self.latest = ""
        # action -> the values that its result was made with
        self._made: dict[str, dict[str, Any]] = {}
        self._working: dict[str, Any] | None = None  # the values of the running work
        # (view, control) -> the number of the newest value that came from there
        self._taken: dict[tuple[Any, str], int] = {}
        self.values: dict[str, Any] = {}  # empty for the first call of make_controls
        self.controls: dict[str, Control] = {c.name: c for c in self.make_controls()}
        self.values.update({name: c.initial for name, c in self.controls.items()})
        buttons = [{"name": a.name, "label": a.label, "help": a.help} for a in self.actions]
        self._panel = ControlsPanel(title=self.title, summary=self.summary, actions=buttons)
        # before the Output, which is open from the start: a refused value leaves no widget behind
        self._assign(values)
        self._picture = ipywidgets.Output()
        self._picture.add_class("gpulab-picture")
        self._results = ResultsPanel(label=f"Results of {self.title}")
        self._panel.on_msg(self._on_message)
        self._redraw()
        self._panel.open_now()
        self._results.open_now()
        super().__init__([self._panel, self._picture, self._results])
        self.add_class("gpulab-instrument")
        register(self)

    # What a subclass defines.

    def make_controls(self) -> Sequence[Control]:
        """Return the controls, in reading order."""
        return ()

    def on_screen(self, control: Control) -> bool:
        """Return whether a control is shown, given the values of the others."""
        in_view = not control.views or self.values.get("view") in control.views
        return in_view and (control.when is None or control.when(self.values))

    def changed(self, name: str) -> None:
        """React to a changed control, before the redraw."""

    def ended(self, action: str) -> None:
        """React to a new result, before the redraw; for example set the control that selects what
        is shown.
        """

    def failed(self, action: str) -> None:
        """React to work without a result, before it is reported as ended; this method must redraw
        what it changes.
        """

    def work(self, action: str, values: Values, progress: Progress, stop: Stop) -> Any:
        """Make the core call of an action and return its result; runs in a thread."""
        raise NotImplementedError

    def draw(self, values: Values) -> Drawing:
        """Return what to show for ``self.results`` and the values."""
        raise NotImplementedError

    def code_for(self, values: Values) -> str:
        """Return the lines that give the same result in a cell."""
        raise NotImplementedError

    # The public interface, which the mouse uses too.

    def set(self, **values: Any) -> None:
        """Set controls by name, as the mouse would.

        Raises
        ------
        InputError
            If there is no such control, or the value is not valid for it; nothing is changed then.
        """
        with self._lock:
            before = dict(self.values), dict(self.controls)
            try:
                self._assign(values)
            except InputError:
                self.values, self.controls = before
                raise
            if self._refused in ("", *values):
                # an error about another control on the screen stays
                self._panel.write(error="", error_control="")
            self._redraw()

    def run(self, action: str | None = None, wait: bool = False) -> None:
        """Start an action, as its button would.

        Parameters
        ----------
        action : str, optional
            The first one if not given.
        wait : bool
            If True, return when the work has ended (an interrupt of the kernel stops it).

        The result is in ``result``; an error is shown in the instrument and kept in ``error``.

        Raises
        ------
        InputError
            If the instrument has no such action.
        """
        named = {a.name: a for a in self.actions}
        wanted = action or next(iter(named), "")
        if wanted not in named:
            known = f"one of {', '.join(named)}" if named else "none, as it only redraws"
            raise InputError(f"{self.title}: no action {shown(wanted)}; expected {known}.")
        with self._lock:
            if self.running:
                self._panel.write(
                    error=f"{self.title}: still running; press Stop first, or wait.",
                    error_control="",
                )
            else:
                self._start(named[wanted])
        if wait:
            self.wait()

    def wait(self, seconds: float | None = None) -> None:
        """Wait until no work is running, including work that starts when this work ends. An
        interrupt of the kernel stops the work; so does the end of ``seconds``, if given.
        """
        while (job := self._job) is not None:
            try:
                if not job.join(seconds):
                    self.stop()
                    job.join()
            except KeyboardInterrupt:
                self.stop()
                job.join()
                raise
            if self._job is job:
                return

    def stop(self) -> None:
        """Ask the work to stop; it ends after the call in flight. If no work is running, nothing
        happens.
        """
        with self._lock:
            if self._job is not None and self.running:
                self._job.stop()
                self._panel.write(state="stopping", progress="Stopping after the call in flight")

    @property
    def running(self) -> bool:
        """Whether work is running."""
        # one piece of work may start the next when it ends; the lock hides the moment between them
        with self._lock:
            return bool(self._panel.state != "idle")

    @property
    def result(self) -> Any:
        """The newest result, or None."""
        return self.results.get(self.latest)

    @property
    def error(self) -> str:
        """The sentence that the instrument shows, or ""."""
        return str(self._panel.error)

    @property
    def status(self) -> str:
        """One of "idle", "running" and "stopping", as the buttons show it."""
        return str(self._panel.state)

    @property
    def progress(self) -> str:
        """The text beside the progress bar: what the work is doing, or how the last run ended."""
        return str(self._panel.progress)

    @property
    def traceback(self) -> str:
        """The traceback of the last failed work as text, for a bug report."""
        return self._job.traceback if self._job is not None else ""

    @property
    def code(self) -> str:
        """The few lines of gpulab that give the same result in a cell."""
        return self.code_for(self.values)

    def close(self) -> None:
        """Stop the work and close the widgets; ipywidgets also closes an instrument whose
        constructor raised, which may have neither yet.
        """
        if hasattr(self, "_results"):
            self.stop()
            for part in (*self.children, self._picture):
                part.close()
        super().close()

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in self.values.items())
        return f"<{type(self).__name__} {shown}>"

    # For subclasses.

    def rebuild(self, *names: str) -> None:
        """Replace the named controls by those that ``make_controls`` makes for the present values;
        a value is kept if it is still valid, else it becomes the default.
        """
        for name, control in ((c.name, c) for c in self.make_controls() if c.name in names):
            self.controls[name] = control
            try:
                self.values[name] = control.check(self.values[name])
            except InputError:
                self.values[name] = control.initial
            # the refused value was meant for the previous control
            if self._panel.error_control == name:
                self._panel.write(error="", error_control="")

    def turn(self, action: str, **values: Any) -> None:
        """Set controls for a new result, for use in ``ended``; a control that the reader moved
        during the work is left alone.
        """
        made = self._made[action]
        self.values.update(
            {name: value for name, value in values.items() if self.values[name] == made[name]}
        )

    def publish(self, action: str, result: Any) -> None:
        """Show an incomplete result; ``work`` may call this. If the work then ends without a
        result, the previous result is shown again.
        """
        with self._lock:
            self._keep(action, self.values if self._working is None else self._working, result)
            self._redraw()

    # The machinery.

    @property
    def _refused(self) -> str:
        """The name of the control on the screen whose field still holds a refused value, or ""."""
        control = self.controls.get(self._panel.error_control)
        return control.name if control is not None and self.on_screen(control) else ""

    def _assign(self, values: Values) -> None:
        """Set values in the order of the controls: a control that decides the options of another
        one comes before it.
        """
        if unknown := [name for name in values if name not in self.controls]:
            raise InputError(
                f"{self.title}: no control {unknown[0]!r}; expected one of "
                f"{', '.join(self.controls)}."
            )
        for name in [n for n in self.controls if n in values]:
            self.values[name] = self.controls[name].check(values[name])
            self.changed(name)

    def _send_controls(self) -> None:
        view = self.values.get("view")
        spec = [
            {**c.describe(), "hidden": not self.on_screen(c)}
            for c in self.controls.values()
            if c.in_panel
        ]
        names = [a.name for a in self.actions]
        # a view's own action, else the first one
        first = view if view in names else next(iter(names), "")
        self._panel.write(
            spec=spec,
            values={name: c.raw(self.values[name]) for name, c in self.controls.items()},
            first=first,
        )

    def _on_message(self, panel: Any, content: Any, _: Any) -> None:
        """Handle what the browser sent; nothing that arrives here may end the instrument."""
        # no other message is handled between setting a run's values and starting it
        with self._lock:
            try:
                self._handle(content)
            except Exception as error:
                # shown inside the instrument: a callback's exception is shown nowhere else
                self._panel.write(error=in_one_sentence(error), error_control="")
            finally:
                # the message's number with its view: every view of the panel receives each
                # acknowledgment, and each view numbers its messages itself
                known = content if isinstance(content, dict) else {}
                panel.send({"ack": known.get("seq"), "view": known.get("view")})

    def _handle(self, content: Any) -> None:
        what = content.get("do")
        if what == "set":
            self._take(content, [(content.get("name"), content.get("raw"), content.get("seq"))])
        elif what == "run":
            if self._take(content, content.get("values", ())):
                self.run(content.get("action"))
        elif what == "stop":
            self.stop()

    def _take(self, content: Mapping[str, Any], values: Sequence[tuple[Any, Any, Any]]) -> bool:
        """Set controls from a message's (name, raw value, number), in the order of the controls;
        skip a value if a newer one from the same view has arrived.

        If a value is refused, show the error and return False: the action that came with it must
        not run with another value than the one on the screen. A refused number, or too few ticked
        boxes, stay on the screen until they are corrected. A choice that no longer exists is
        replaced by the control's present one.
        """
        view, order, fits = content.get("view"), list(self.controls), True
        for name, raw, seq in sorted(values, key=lambda value: order.index(value[0])):
            newest = self._taken.get((view, name), 0)
            if seq < newest:
                continue
            self._taken[view, name] = seq
            # read even if seq == newest: a button sends again a value that was refused before
            try:
                value = self.controls[name].read(raw)
            except InputError as error:
                fits, is_gone = False, isinstance(self.controls[name], (Choice, Slider))
                self._panel.write(error=str(error), error_control="" if is_gone else name)
            else:
                if seq > newest:
                    self.set(**{name: value})
        return fits

    def _start(self, action: Action) -> None:
        # a field still holds a refused value: its error stays, and nothing runs with another value
        if self._panel.error_control:
            return
        values = self._working = dict(self.values)
        before = dict(self.results), dict(self._made), self.latest
        self._panel.write(
            state="running",
            fraction=0.0,
            progress=f"{action.label}: starting",
            error="",
        )
        self._results.write(busy=True)

        self._job = Job(
            lambda progress, stop: self.work(action.name, values, progress, stop),
            self._on_progress,
            lambda job, result, sentence: self._end(job, action, values, before, result, sentence),
            action.measures,
        )
        self._job.start()

    def _keep(self, action: str, values: Values, result: Any) -> None:
        self.results[action], self.latest, self._made[action] = result, action, dict(values)

    def _on_progress(self, fraction: float, text: str) -> None:
        with self._lock:
            if self.status == "running":  # else a stop has written its own text
                self._panel.write(fraction=fraction, progress=text)

    def _end(
        self, job: Job, action: Action, values: Values, before: Any, result: Any, sentence: str
    ) -> None:
        with self._lock:
            self._working = None
            try:
                if not sentence:
                    self._keep(action.name, values, result)
                    self.ended(action.name)
                    self._redraw()
                else:
                    self.results, self._made, self.latest = before  # drops what ``publish`` kept
                    self._redraw()
                    self.failed(action.name)
            except Exception as failure:
                # a picture that cannot be drawn must not leave the instrument "running" forever
                sentence = in_one_sentence(failure)
            ending = "stopped" if job.stopping else "failed" if sentence else "done"
            progress, error = (
                (sentence, "") if job.stopped_empty else (f"{action.label}: {ending}", sentence)
            )
            # A value that was refused while the work ran is still in its field. Its error stays,
            # and prevents the next run until the value is corrected.
            refused = self._refused
            error = f"{error} {self._panel.error}".strip() if refused else error
            self._results.write(busy=False)
            self._panel.write(
                error=error,
                error_control=refused,
                fraction=0.0,
                progress=progress,
                state="idle",
                ended=self._panel.ended + 1,
            )

    def is_stale(self, action: str) -> bool:
        """Return whether a control that decides the action's result has changed since the result
        was made.
        """
        made = self._made.get(action, {})
        return any(
            made.get(name, self.values[name]) != self.values[name]
            for name, c in self.controls.items()
            if not c.shows_only and (not c.for_actions or action in c.for_actions)
        )

    def _redraw(self) -> None:
        self._send_controls()
        drawing = self.draw(self.values)
        message = drawing.message
        # the control named "view", if there is one, selects the action whose result is shown
        shown = self.values.get("view", self.latest)
        if self.is_stale(shown) if drawing.is_stale is None else drawing.is_stale:
            button = next(a.label for a in self.actions if a.name == shown)
            message = (
                f"The controls have changed since this result was made: press {button} to update "
                f"it. {message}"
            ).strip()
        self.shown = dataclasses.replace(drawing, message=message)
        figure, height, outputs = drawing.figure, 0, tuple[Any, ...]()
        if figure is not None:
            bundle = mimebundle(figure)
            outputs = ({"output_type": "display_data", "data": bundle, "metadata": {}},)
            height = figure.layout.height + 4
        self._picture.layout.min_height = f"{height}px"  # the page keeps its height
        if self._picture.outputs != outputs:
            self._picture.outputs = outputs
        # each sentence without its badge, which is drawn separately
        badges = {
            e.sentence.removeprefix(e.badge.value).strip(" ·").removeprefix("on "): e.badge.value
            for e in drawing.evidence
        }
        evidence = [(badge, *folded(words)) for words, badge in badges.items()]
        notes = [{"code": n.code, "sentence": n.sentence} for n in drawing.notes]
        shown_notes = _NOTES if len(notes) > _NOTES + 1 else len(notes)
        self._results.write(
            shown={
                "caption": figure.description if figure is not None else "",
                "message": message,
                "headers": list(drawing.headers),
                "rows": [
                    [{"badge": Badge(c).value} if c in tuple(Badge) else str(c) for c in row]
                    for row in drawing.rows
                ],
                "evidence": [
                    {"badge": badge, "text": line, "rest": rest} for badge, line, rest in evidence
                ],
                "notes": notes[:shown_notes],
                "more": notes[shown_notes:],
                "code": self.code,
            }
        )


class FollowingInstrument(Instrument):
    """The base class of instruments with an action that runs automatically when the controls ask
    for something new.
    """

    follows: ClassVar[str]  # the action
    _tried: Any = None  # ``wanted()`` of the last start: a failure is not retried automatically

    def wanted(self) -> Any:
        """Return what the controls ask for, in values that can be compared."""
        raise NotImplementedError

    def is_missing(self) -> bool:
        """Return whether there is no result yet for what the controls ask for."""
        return True

    def set(self, **values: Any) -> None:
        """Set controls by name, as the mouse would; start the action if they ask for it."""
        super().set(**values)
        self.run_if_wanted()

    def run_if_wanted(self) -> None:
        """Start the action if the controls ask for something new and no work is running."""
        with self._lock:
            if not self.running and self.wanted() != self._tried and self.is_missing():
                Instrument.run(self, self.follows)  # a subclass's ``run`` may mean a new request

    def work_on_newest(self, make: Callable[[Any, Stop], Any], stop: Stop) -> Any:
        """Return ``make(wanted, stop)`` for what the controls ask for now; if that changes
        meanwhile, stop the call and start again.
        """
        while True:
            with self._lock:
                wanted = self._tried = self.wanted()
            try:
                return make(
                    wanted,
                    lambda wanted=wanted: stop() or self.wanted() != wanted,  # type: ignore[misc]
                )
            except StoppedError:
                if stop():
                    raise

    def _end(self, *args: Any) -> None:
        with self._lock:
            super()._end(*args)
            self.run_if_wanted()  # a control may have changed at the very end of the work


_LONGEST_SECONDS = 30.0  # enough for one run of each instrument of the course on two busy cores
_settled: set[str] = set()


def settle(seconds: float = _LONGEST_SECONDS) -> None:
    """Bring a notebook's instruments into a state from which a static page can be made.

    ``gpulab html`` calls this in the kernel that runs the notebook. It waits for the instruments
    made since the last call, presses the first button of those that show nothing without it, and
    sends the state of each of their parts.

    Parameters
    ----------
    seconds : float
        The time after which work is stopped; the instrument shows what it has by then.
    """
    for key, each in list(registry._instances.items()):
        if key not in _settled and isinstance(each, Instrument):
            _settled.add(key)
            each.wait(seconds)
            if not each._picture.outputs and each.result is None and each.actions:
                each.run()
                each.wait(seconds)
    for each in list(registry._instances.values()):
        # The program that runs the notebook misses messages that a thread sends after its cell is
        # done, so every state is sent again. (Without an Output's msg_id, which selects where
        # prints go: nbclient cannot handle one that was never set.)
        each.send_state([key for key in each.keys if key != "msg_id"])
