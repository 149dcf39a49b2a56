"""The base of the instruments, driven without a browser: what the mouse would send goes through the same door."""

from __future__ import annotations

import atexit
import runpy
import signal
import subprocess
import sys
import threading
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import plotly.graph_objects as go
import pytest

from gpulab.errors import InputError, StoppedError
from gpulab.evidence import Badge, Evidence, Note
from gpulab.widgets import _cells, _ranks, _work
from gpulab.widgets._controls import Choice, Number, Switch
from gpulab.widgets._instrument import Action, Drawing, Instrument
from gpulab.widgets._panels import ControlsPanel

SECONDS = 10  # no test takes this long; one that hangs fails after it


class Probe(Instrument):
    """An instrument whose core call is the test's own."""

    title = "Probe"
    actions = (Action("run", "Run"), Action("other", "Other", measures=False))

    def __init__(self, call: Callable[..., Any] = lambda values, progress, stop: values["n"], **values: Any) -> None:
        self.call = call
        self.drawn = 0
        super().__init__(**values)

    def make_controls(self) -> list[Any]:
        """A choice, a number that depends on it, and a switch."""
        return [
            Choice(name="kind", label="Kind", options=("small", "large")),
            Number(name="n", label="Size n", default=4, minimum=1, maximum=9, integer=True),
            Switch(name="shown", label="Shown", shows_only=True),
        ]

    def changed(self, name: str) -> None:
        """Large sizes are for the large kind."""
        if name == "kind":
            most = 9 if self.values["kind"] == "small" else 9000
            self.replace_control(Number(name="n", label="Size n", default=4, minimum=1, maximum=most, integer=True))

    def work(self, action: str, values: Mapping[str, Any], progress: Any, stop: Any) -> Any:
        """Call what the test gave."""
        return self.call(values, progress, stop)

    def draw(self, values: Mapping[str, Any]) -> Drawing:
        """Show the result as a number."""
        self.drawn += 1
        if self.result is None:
            return Drawing(message="Press Run.")
        figure = go.Figure(layout={"meta": {"description": f"the number {self.result}"}, "height": 100})
        evidence = [Evidence.measured("cpu", 3), Evidence.measured("cpu", 3)]
        return Drawing(figure, ("", "badge"), [(str(self.result), Badge.MEASURED)], evidence, [Note("deadline", "Too soon.")])

    def code_for(self, values: Mapping[str, Any]) -> str:
        """One word of code."""
        return f"probe({values['n']})"


class Gate:
    """Work that waits until it is told to go on; ``may_stop``, cleared, holds what was asked to stop in the call in flight."""

    def __init__(self) -> None:
        self.entered, self.go, self.may_stop = threading.Event(), threading.Event(), threading.Event()
        self.may_stop.set()

    def __call__(self, values: Mapping[str, Any], progress: Any, stop: Any) -> str:
        """Wait for the test or for Stop."""
        progress(0.25, "first of four")
        self.entered.set()
        while not stop():
            if self.go.wait(0.01):
                return "finished"
        assert self.may_stop.wait(SECONDS)
        return "stopped early"


@pytest.fixture
def gate() -> Iterator[Gate]:
    """Work under the test's control, set free at the end whatever happens."""
    gate = Gate()
    yield gate
    gate.go.set()
    gate.may_stop.set()
    _work.stop_all()


def send(instrument: Instrument, **content: Any) -> None:
    """Do what the browser does: a message of the controls' panel."""
    instrument._panel._handle_custom_msg(content, [])


def test_mouse_and_python_give_the_same_state() -> None:
    """A message of the browser and ``set`` lead to equal values, panels and code."""
    a, b = Probe(), Probe()
    send(a, do="set", name="kind", raw=1, seq=1)
    send(a, do="set", name="n", raw="700", seq=2)
    b.set(n=700, kind="large")  # in any order: the control that decides the other's bounds goes first
    assert a.values == b.values == {"kind": "large", "n": 700, "shown": False}
    assert a._panel.values == b._panel.values == {"kind": 1, "n": "700", "shown": False}
    assert a.code == b._results.code == "probe(700)"


@pytest.mark.parametrize("raw", ["", "-1", "ten", None, [], {"a": 1}, 1e99])
def test_bad_input_is_refused_inside_the_instrument(raw: Any) -> None:
    """The sentence is shown at its control, the value stays, Run does not start with it, and a good value clears it."""
    probe = Probe()
    send(probe, do="set", name="n", raw=raw, seq=1)
    assert probe.error.startswith("Size n: ")
    assert probe._panel.error_control == "n"
    assert probe.values["n"] == 4
    send(probe, do="run", action="run", seq=2)
    assert not probe.running
    assert probe.result is None
    send(probe, do="set", name="shown", raw=True, seq=3)
    assert probe.error != ""
    send(probe, do="set", name="n", raw="5", seq=4)
    assert probe.error == ""
    assert probe.values["n"] == 5


@pytest.mark.parametrize(
    "content", [{}, {"do": "set"}, {"do": "set", "name": "nothing", "raw": 1}, {"do": "run", "action": "fly"}, {"do": 3}, "text", None, [1]]
)
def test_no_message_ends_the_instrument(content: Any) -> None:
    """Whatever arrives from a browser is answered; the instrument works afterwards."""
    probe = Probe()
    probe._panel._handle_custom_msg(content, [])
    probe.run(wait=True)
    assert probe.result == 4


def test_set_changes_all_or_nothing() -> None:
    """A refused value among several leaves every control as it was, and raises from Python."""
    probe = Probe()
    with pytest.raises(InputError, match="Size n: 9001 will not do"):
        probe.set(kind="large", n=9001)
    assert probe.values == {"kind": "small", "n": 4, "shown": False}
    assert probe.controls["n"].maximum == 9
    with pytest.raises(InputError, match="no control 'm'; expected one of kind, n, shown"):
        probe.set(m=1)
    with pytest.raises(InputError, match="no control 'm'"):
        Probe(m=1)


def test_a_run_shows_its_result_everywhere() -> None:
    """After the work, picture, description, table, badge, note and code are those of the result."""
    probe = Probe(n=7)
    assert probe._results.message == "Press Run."
    probe.run(wait=True)
    assert probe.result == 7
    assert not probe.running
    assert probe._panel.progress == "Run: done"
    (output,) = probe._picture.outputs
    assert output["data"]["text/plain"] == probe._results.caption == "the number 7"
    assert output["data"]["application/vnd.plotly.v1+json"]["config"]["displayModeBar"] is False
    assert probe._results.rows == [["7", {"badge": "MEASURED"}]]
    assert probe._results.evidence == [{"badge": "MEASURED", "text": "cpu · n = 3", "short": ""}]
    assert probe._results.notes == [{"code": "deadline", "sentence": "Too soon."}]


def test_a_moved_control_is_told_beside_the_old_result() -> None:
    """A result says that the controls have moved since, unless the control only changes what is shown."""
    probe = Probe()
    probe.run(wait=True)
    probe.set(shown=True)
    assert probe._results.message == ""
    probe.set(n=5)
    assert "controls have moved" in probe._results.message
    probe.set(n=4)
    assert probe._results.message == ""


def test_progress_and_stop_reach_the_work(gate: Gate) -> None:
    """Progress is shown while the work runs; Stop is acknowledged at once and ends it with what it had."""
    probe = Probe(gate)
    send(probe, do="run", action="run", seq=1)
    assert gate.entered.wait(SECONDS)
    assert probe.running
    assert (probe._panel.fraction, probe._panel.progress) == (0.25, "first of four")
    gate.may_stop.clear()
    send(probe, do="stop", seq=2)
    assert probe._panel.progress == "Stopping after the call in flight"
    gate.may_stop.set()
    assert probe._job is not None
    assert probe._job.join(SECONDS)
    assert probe.result == "stopped early"
    assert probe._panel.progress == "Run: stopped"
    assert not probe.running


def test_an_interrupt_of_the_kernel_stops_a_waited_run(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupting a cell that waits ends the work, keeps what it had, and passes the interrupt on."""
    probe = Probe(gate)
    join, interrupts = _work.Job.join, [KeyboardInterrupt()]

    def interrupted(job: _work.Job, seconds: float | None = None) -> bool:
        if interrupts:
            assert gate.entered.wait(SECONDS)
            gate.may_stop.clear()
            raise interrupts.pop()
        gate.may_stop.set()  # only now: who did not wait once more would find nothing
        return join(job, seconds)

    monkeypatch.setattr(_work.Job, "join", interrupted)
    with pytest.raises(KeyboardInterrupt):
        probe.run(wait=True)
    assert probe.result == "stopped early"
    assert not probe.running


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timer sends a signal on this system")
def test_an_interrupted_wait_does_not_take_running_work_for_ended(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a real signal in the middle of the wait the job still runs, and the next wait is one: it ends with the work."""
    over: list[str] = []
    job = _work.Job(
        lambda progress, stop: gate({}, progress, stop), lambda done, text: None, lambda result, text: over.append(result), False
    )
    waits: list[float | None] = []

    class Over(threading.Event):
        """The end of the work, whose first wait sends the signal a moment after it began."""

        def wait(self, timeout: float | None = None) -> bool:
            waits.append(timeout)
            if len(waits) == 1:
                signal.setitimer(signal.ITIMER_REAL, 0.02)
            return super().wait(timeout)

    monkeypatch.setattr(job, "_over", Over())
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        job.start()
        assert gate.entered.wait(SECONDS)
        with pytest.raises(KeyboardInterrupt):
            job.join(SECONDS)
        assert waits, "the signal came in the wait and nowhere else"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert not job.join(0)
    job.stop()
    assert job.join(SECONDS)
    assert over == ["stopped early"]


def test_a_second_run_is_refused_politely(gate: Gate) -> None:
    """While work runs, Run says so and starts nothing; the first work goes on to its end."""
    probe = Probe(gate)
    probe.run()
    assert gate.entered.wait(SECONDS)
    first = probe._job
    send(probe, do="run", action="other", seq=1)
    assert probe._job is first
    assert probe.error == "Probe: still running; press Stop first, or wait."
    gate.go.set()
    assert first is not None
    assert first.join(SECONDS)
    assert probe.result == "finished"
    assert probe.error == ""


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (InputError("size 9: too large; expected less. Take 8."), "size 9: too large; expected less. Take 8."),
        (
            ValueError("bad\nvalue"),
            "ValueError: bad value (the kernel is still usable; change a control and run again, or read instrument.traceback).",
        ),
        (SystemExit(3), "SystemExit: 3 (the kernel is still usable"),
        (MemoryError(), "MemoryError (the kernel is still usable"),
        (RuntimeError("word " * 500), "RuntimeError: word word"),
    ],
)
def test_what_the_work_raises_is_shown_in_one_sentence(error: BaseException, sentence: str) -> None:
    """An error of the core, a bug, an exit and an endless message are shown inside; the next run works."""
    failing: list[BaseException] = [error]

    def call(values: Any, progress: Any, stop: Any) -> str:
        if failing:
            raise failing.pop()
        return "fine"

    probe = Probe(call)
    probe.run(wait=True)
    assert probe.error.startswith(sentence)
    assert "\n" not in probe.error
    assert len(probe.error) < 400
    assert type(error).__name__ in probe.traceback
    assert probe.result is None
    assert not probe.running
    probe.run(wait=True)
    assert (probe.result, probe.error) == ("fine", "")


def test_a_stop_with_nothing_to_report_is_no_error() -> None:
    """StoppedError is said beside the progress, not in the error line."""

    def call(values: Any, progress: Any, stop: Any) -> None:
        raise StoppedError("Stopped before the first call.")

    probe = Probe(call)
    probe.run(wait=True)
    assert (probe.error, probe._panel.progress) == ("", "Stopped before the first call.")


def test_a_machine_without_room_for_a_thread_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container's limit is reached: the instrument says so, waits for nothing, and runs once there is room."""

    def full(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")  # CPython's own words

    probe = Probe()
    with monkeypatch.context() as no_room:
        no_room.setattr(threading.Thread, "start", full)
        send(probe, do="run", action="run", seq=1)
    assert not probe.running
    assert "can't start new thread" in probe.error
    assert "one more thread" in probe.error
    probe.wait()
    probe.run(wait=True)
    assert (probe.result, probe.error) == (4, "")


def test_a_picture_that_cannot_be_drawn_is_told() -> None:
    """A failure while drawing ends the run in words and leaves the buttons usable."""

    class Broken(Probe):
        def draw(self, values: Mapping[str, Any]) -> Drawing:
            """Fail with a result."""
            if self.result is not None:
                raise ZeroDivisionError("no size")
            return Drawing()

    probe = Broken()
    probe.run(wait=True)
    assert probe.error.startswith("ZeroDivisionError: no size")
    assert not probe.running


def test_two_measuring_instruments_take_turns(gate: Gate) -> None:
    """A second measurement waits, says so, and can be stopped while it waits; work that measures nothing does not wait."""
    first, second = Probe(gate), Probe()
    first.run()
    assert gate.entered.wait(SECONDS)
    second.run("other", wait=True)
    assert second.result == 4
    second.run()
    job = second._job
    assert job is not None
    deadline = threading.Event()
    while second._panel.progress != "Waiting: another instrument is measuring":
        assert job._thread.is_alive()
        deadline.wait(0.01)
    second.stop()
    assert job.join(SECONDS)
    assert second._panel.progress == "Stopped while waiting for another instrument; nothing was measured."
    second.run()
    gate.go.set()
    assert second._job is not None
    assert second._job.join(SECONDS)
    assert (first.result, second.result) == ("finished", 4)


def test_running_a_cell_again_stops_the_old_thread(gate: Gate) -> None:
    """The instrument of an earlier run of the same cell is stopped; those of other cells and of the same run are not."""
    old, other = Probe(gate), Probe(gate)
    _cells.register(old, ("cell-a", "run-1"))
    _cells.register(other, ("cell-b", "run-1"))
    old.run()
    assert gate.entered.wait(SECONDS)
    _cells.register(Probe(), ("cell-a", "run-1"))
    assert old._job is not None
    assert not old._job.stopping
    _cells.register(Probe(), ("cell-a", "run-2"))
    assert old._job.join(SECONDS)
    assert old.result == "stopped early"


def test_no_work_outlives_the_interpreter(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    """At its end all jobs are asked to stop and waited for, and the ranks are ended: no thread works in libraries that are torn down."""
    probes = [Probe(gate), Probe(gate)]
    gate.may_stop.clear()
    for probe in probes:
        probe.run("other")
    assert gate.entered.wait(SECONDS)
    threading.Timer(0.05, gate.may_stop.set).start()
    _work.stop_all(SECONDS)
    assert [(probe.running, probe.result) for probe in probes] == [(False, "stopped early")] * 2
    asked: list[Any] = []
    monkeypatch.setattr(atexit, "register", asked.append)
    loaded = [runpy.run_path(str(module.__file__), run_name="again") for module in (_work, _ranks)]
    assert asked == [loaded[0]["stop_all"], loaded[1]["LIVE"].end]


def test_progress_is_throttled() -> None:
    """A thousand reports in a moment become a few messages, the last one among them."""
    seen: list[float] = []

    def call(progress: Any, stop: Any) -> None:
        for k in range(1001):
            progress(k / 1000, "counting")

    job = _work.Job(call, lambda fraction, text: seen.append(fraction), lambda result, sentence: None, exclusive=False)
    job.start()
    assert job.join(SECONDS)
    assert seen[-1] == 1.0
    assert len(seen) < 100


def test_a_report_is_sent_every_tenth_of_a_second_and_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sooner only what is complete; a share beyond the ends is the end."""
    now = [0.0]
    monkeypatch.setattr(_work, "time", types.SimpleNamespace(monotonic=lambda: now[0]))
    seen: list[float] = []
    job = _work.Job(lambda progress, stop: None, lambda fraction, text: seen.append(fraction), lambda result, sentence: None, False)
    moments = ((0.1, -0.5), (0.15, 0.2), (0.2, 0.3), (0.25, 0.4), (0.26, 1.0), (0.3, 7.0), (0.35, 0.5), (0.45, 0.6))
    for moment, fraction in moments:
        now[0] = moment
        job._report(fraction, "counting")
    assert seen == [0.0, 0.3, 1.0, 1.0, 0.6]


def test_of_a_long_message_the_first_words_are_shown() -> None:
    """240 letters have room; of more, the last word that would not fit is left out."""
    words = "word " * 47 + "12345"  # 240
    rest = " (the kernel is still usable; change a control and run again, or read instrument.traceback)."
    assert _work.in_one_sentence(ValueError(words)) == f"ValueError: {words}{rest}"
    assert _work.in_one_sentence(ValueError(f"{words}6")) == f"ValueError: {words[:-6]} ...{rest}"


def test_an_incomplete_result_can_be_shown(gate: Gate) -> None:
    """``publish`` draws what there is while the work goes on."""
    probe = Probe()

    def call(values: Any, progress: Any, stop: Any) -> int:
        probe.publish("run", 2)
        assert probe._results.rows == [["2", {"badge": "MEASURED"}]]
        return 3

    probe.call = call
    probe.run(wait=True)
    assert probe.result == 3


@pytest.mark.parametrize("error", [StoppedError("Stopped before the second step."), ValueError("no memory")])
def test_what_was_shown_on_the_way_goes_where_the_work_gives_nothing(error: BaseException) -> None:
    """It belongs to the values of its own run; after a stop or a failure the last result is back, with the values that it has."""
    probe = Probe()
    said: list[str] = []

    def call(values: Any, progress: Any, stop: Any) -> int:
        probe.publish("run", 20 + values["n"])
        said.append(probe._results.message)
        raise error

    probe.call = call
    probe.run(wait=True)
    assert (probe.result, probe._results.message, probe._results.rows) == (None, "Press Run.", [])
    probe.call = lambda values, progress, stop: values["n"]
    probe.run(wait=True)
    probe.set(n=7)
    probe.call = call
    probe.run(wait=True)
    assert said == ["", ""], "no control has moved since the run began"
    assert (probe.result, probe.latest, probe._results.rows) == (4, "run", [["4", {"badge": "MEASURED"}]])
    assert "controls have moved" in probe._results.message
    probe.set(n=4)
    assert probe._results.message == ""


def test_a_value_that_was_refused_outlives_the_run(gate: Gate) -> None:
    """Refused while the work ran, it is told when that ends well or badly, and the next Run does not start with another one."""
    probe = Probe(gate)
    probe.run()
    assert gate.entered.wait(SECONDS)
    send(probe, do="set", name="n", raw="99", seq=1)
    refusal = "Size n: '99' will not do; expected a whole number from 1 to 9. Type one, such as 4."
    assert probe.error == refusal
    job = probe._job
    gate.go.set()
    assert job is not None
    assert job.join(SECONDS)
    assert (probe.result, probe.error, probe._panel.error_control) == ("finished", refusal, "n")
    send(probe, do="run", action="run", seq=2)
    assert probe._job is job
    probe.set(n=5)
    assert (probe.error, probe._panel.error_control) == ("", "")

    def fail(values: Any, progress: Any, stop: Any) -> None:
        send(probe, do="set", name="n", raw="99", seq=3)
        raise InputError("size 5: too large; expected less. Take 4.")

    probe.call = fail
    probe.run(wait=True)
    assert (probe.error, probe._panel.error_control) == (f"size 5: too large; expected less. Take 4. {refusal}", "n")


def test_a_control_with_other_bounds_forgets_what_was_refused() -> None:
    """The sentence told the bounds of before, and the field shows the new control's value."""
    probe = Probe()
    send(probe, do="set", name="n", raw="99", seq=1)
    probe.set(kind="large")
    assert (probe.error, probe._panel.error_control) == ("", "")
    probe.run(wait=True)
    assert probe.result == 4


def test_a_control_that_was_moved_meanwhile_is_not_turned_to_the_result(gate: Gate) -> None:
    """``turn`` turns those that stand as they stood when the work began."""

    class Turning(Probe):
        def ended(self, action: str) -> None:
            """Turn two controls."""
            self.turn(action, n=9, shown=True)

    probe = Turning(gate)
    probe.run()
    assert gate.entered.wait(SECONDS)
    probe.set(n=7)
    gate.go.set()
    assert probe._job is not None
    assert probe._job.join(SECONDS)
    assert probe.values == {"kind": "small", "n": 7, "shown": True}
    assert probe._panel.values == {"kind": 0, "n": "7", "shown": True}


def test_an_unknown_action_is_refused() -> None:
    """``run`` names the actions that there are."""
    with pytest.raises(InputError, match="no action 'fly'; expected one of run, other"):
        Probe().run("fly")


def test_closing_stops_the_work(gate: Gate) -> None:
    """A closed instrument leaves no thread behind."""
    probe = Probe(gate)
    probe.run()
    assert gate.entered.wait(SECONDS)
    job = probe._job
    probe.close()
    assert job is not None
    assert job.join(SECONDS)


def test_the_kernels_message_says_which_cell_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """JupyterLab names the cell in the request's metadata; a request without it, and no kernel at all, are no cell."""
    import IPython

    parent: dict[str, Any] = {"metadata": {"cellId": "cell-a"}, "header": {"msg_id": "run-1"}}
    kernel = type("Kernel", (), {"get_parent": lambda self, channel: parent if channel == "shell" else {}})()
    monkeypatch.setattr(IPython, "get_ipython", lambda: types.SimpleNamespace(kernel=kernel))
    assert _cells._current() == ("cell-a", "run-1")
    parent["header"] = {}
    assert _cells._current() == ("cell-a", "")
    parent.clear()
    assert _cells._current() is None
    monkeypatch.setattr(IPython, "get_ipython", lambda: None)
    assert _cells._current() is None


def test_an_instrument_registers_with_the_cell_that_makes_it(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    """Made again by a later run of its cell, the one before stops by itself; two of one run live side by side."""
    monkeypatch.setattr(_cells, "_MADE", {})
    monkeypatch.setattr(_cells, "_current", lambda: ("cell-c", "run-1"))
    old, beside = Probe(gate), Probe()
    old.run()
    assert gate.entered.wait(SECONDS)
    monkeypatch.setattr(_cells, "_current", lambda: ("cell-c", "run-2"))
    new = Probe()
    assert old._job is not None
    assert old._job.join(SECONDS)
    assert old.result == "stopped early"
    (execution, kept) = _cells._MADE["cell-c"]
    assert (execution, [reference() for reference in kept]) == ("run-2", [new])
    assert not beside.running


def test_buttons_and_controls_are_drawn_as_they_are_declared(gate: Gate) -> None:
    """Before, during and after a run: the buttons, which stands out, what is hidden, the progress and the count of runs."""
    probe = Probe(gate)
    panel = probe._panel
    assert (panel.title, probe._results.label) == ("Probe", "Results of Probe")
    assert panel.actions == [{"name": "run", "label": "Run", "help": ""}, {"name": "other", "label": "Other", "help": ""}]
    assert panel.first == "run"
    assert [(c["name"], c["hidden"]) for c in panel.spec] == [("kind", False), ("n", False), ("shown", False)]
    assert probe._picture.outputs == ()
    probe.run("other")
    assert gate.entered.wait(SECONDS)
    assert (panel.state, panel.action, probe._results.busy, panel.ended) == ("running", "other", True, 0)
    gate.go.set()
    assert probe._job is not None
    assert probe._job.join(SECONDS)
    assert (panel.state, panel.action, probe._results.busy, panel.ended, panel.fraction) == ("idle", "", False, 1, 0.0)
    assert (probe.latest, panel.progress) == ("other", "Other: done")
    assert probe.results == {"other": "finished"}
    assert repr(probe) == "<Probe kind='small', n=4, shown=False>"


def test_every_message_of_the_browser_is_answered_with_its_number() -> None:
    """The script in the browser waits for it, whether the message was taken, refused or none at all."""
    probe = Probe()
    answers: list[Any] = []
    probe._panel.send = answers.append
    send(probe, do="set", name="n", raw="5", seq=1)
    send(probe, do="set", name="n", raw="junk", seq=2)
    send(probe, do="run", action="fly", seq=3)
    probe._panel._handle_custom_msg("text", [])
    send(probe, do="stop", seq=1, view="a")
    assert [answer["ack"] for answer in answers] == [1, 2, 3, None, 1]
    assert [answer["view"] for answer in answers] == [None, None, None, None, "a"]  # each view counts for itself, and hears all


def test_a_button_brings_the_values_that_have_not_arrived(gate: Gate) -> None:
    """JupyterLab's messages overtake each other: the work gets what the screen shows, in the controls' own order, and none is set twice."""
    probe = Probe(gate)
    answers: list[Any] = []
    probe._panel.send = answers.append
    send(probe, do="set", name="n", raw="6", seq=1, view="a")
    send(probe, do="run", action="run", values=[["n", "700", 4], ["kind", 1, 2]], seq=5, view="a")
    assert gate.entered.wait(SECONDS)
    assert probe._working == {"kind": "large", "n": 700, "shown": False}
    probe.set(n=8)
    drawn = probe.drawn
    send(probe, do="set", name="kind", raw=1, seq=2, view="a")
    send(probe, do="set", name="n", raw="99", seq=3, view="a")
    send(probe, do="set", name="n", raw="700", seq=4, view="a")
    assert (probe.values, probe.error, probe.drawn) == ({"kind": "large", "n": 8, "shown": False}, "", drawn)
    assert [answer["ack"] for answer in answers] == [1, 5, 2, 3, 4]


def test_an_older_value_never_takes_a_newer_ones_place() -> None:
    """Each view counts its own messages, control by control; a value that was refused is the newest one too."""
    probe = Probe()
    send(probe, do="set", name="n", raw="7", seq=2, view="a")
    send(probe, do="set", name="n", raw="5", seq=1, view="a")
    assert probe.values["n"] == 7
    send(probe, do="set", name="shown", raw=True, seq=1, view="a")
    send(probe, do="set", name="n", raw="6", seq=1, view="b")
    assert (probe.values["n"], probe.values["shown"]) == (6, True)
    send(probe, do="set", name="n", raw="99", seq=4, view="a")
    send(probe, do="set", name="n", raw="5", seq=3, view="a")
    assert (probe.values["n"], probe._panel.error_control) == (6, "n")


def test_a_refused_value_that_a_button_brings_is_told() -> None:
    """Nothing is run in its place, also where its own message comes later; mended, it runs."""
    probe = Probe()
    send(probe, do="run", action="run", values=[["n", "99", 1]], seq=2, view="a")
    send(probe, do="set", name="n", raw="99", seq=1, view="a")
    assert probe.error == "Size n: '99' will not do; expected a whole number from 1 to 9. Type one, such as 4."
    assert (probe._job, probe._panel.error_control) == (None, "n")
    send(probe, do="run", action="run", values=[["n", "9", 3]], seq=4, view="a")
    assert probe._job is not None
    assert probe._job.join(SECONDS)
    assert (probe.result, probe.error) == (9, "")


class Menu(Probe):
    """A choice decides another one's list."""

    def make_controls(self) -> list[Any]:
        """The menu of the morning."""
        return [
            Choice(name="meal", label="Meal", options=("morning", "evening")),
            Choice(name="dish", label="Dish", options=("bread", "egg", "tea")),
            Number(name="n", label="Size n", default=4, minimum=1, maximum=9, integer=True),
        ]

    def changed(self, name: str) -> None:
        """In the evening one dish is the same, in another place."""
        if name == "meal":
            options = ("bread", "egg", "tea") if self.values["meal"] == "morning" else ("soup", "bread", "fish")
            self.replace_control(Choice(name="dish", label="Dish", options=options))


EVENING = {"index": 1, "text": "evening"}
GONE = "Dish: 'egg' is not there any more; expected one of soup, bread, fish. Choose again."


def test_a_choice_is_what_its_text_says_though_the_list_has_changed() -> None:
    """Chosen in the morning's list, read in the evening's: bread is bread in its new place, and egg is not what stands in its place now."""
    menu = Menu()
    send(menu, do="set", name="dish", raw={"index": 2, "text": "tea"}, seq=1, view="a")
    send(menu, do="set", name="meal", raw=EVENING, seq=2, view="a")
    send(menu, do="set", name="dish", raw={"index": 0, "text": "bread"}, seq=3, view="a")
    assert (menu.values["dish"], menu._panel.values["dish"], menu.error) == ("bread", 1, "")
    send(menu, do="set", name="dish", raw={"index": 1, "text": "egg"}, seq=4, view="a")
    assert (menu.values["dish"], menu.error, menu._panel.error_control) == ("bread", GONE, "")  # its field shows bread
    send(menu, do="run", action="run", values=[], seq=5, view="a")
    menu.wait()
    assert (menu.result, menu.error) == (4, "")


@pytest.mark.parametrize("alone", [False, True])
def test_nothing_is_run_in_place_of_a_choice_that_is_gone(alone: bool) -> None:
    """A button that brings it starts nothing, also where its own message came first; pressed again, it runs with what is shown by then."""
    menu = Menu(dish="tea")
    send(menu, do="set", name="meal", raw=EVENING, seq=1, view="a")
    egg = {"index": 1, "text": "egg"}
    if alone:
        send(menu, do="set", name="dish", raw=egg, seq=2, view="a")
    send(menu, do="run", action="run", values=[["dish", egg, 2], ["n", "7", 3]], seq=4, view="a")
    assert (menu._job, menu.error, menu.values) == (None, GONE, {"meal": "evening", "dish": "soup", "n": 7})
    send(menu, do="run", action="run", values=[], seq=5, view="a")
    menu.wait()
    assert (menu.result, menu.error) == (7, "")


def test_a_choice_that_is_gone_leaves_another_controls_refusal() -> None:
    """The number that was refused is still in its field, and holds Run back as before."""
    menu = Menu()
    send(menu, do="set", name="n", raw="99", seq=1, view="a")
    refused = menu.error
    send(menu, do="set", name="dish", raw={"index": 0, "text": "soup"}, seq=2, view="a")
    assert menu.error == f"Dish: 'soup' is not there any more; expected one of bread, egg, tea. Choose again. {refused}"
    assert menu._panel.error_control == "n"


@pytest.mark.parametrize("values", [None, 3, "text", {"n": "5"}, [1], [["n"]], [["n", "5", 1, 2]], [[[], {}, ()]], [["none", 1, 1]],
                                    [["n", None, "x"]], [["n", "5", float("nan")]], [["n", 5, 10**400]]])  # fmt: skip
def test_no_values_of_a_button_end_the_instrument(values: Any) -> None:
    """What is not a list of names, values and numbers is answered like any message; the instrument works afterwards."""
    probe = Probe()
    answers: list[Any] = []
    probe._panel.send = answers.append
    send(probe, do="run", action="run", values=values, seq=1, view=["a"])
    assert answers == [{"ack": 1, "view": ["a"]}]
    assert probe._job is None or probe._job.join(SECONDS)
    probe.set(n=3)
    probe.run(wait=True)
    assert (probe.result, probe.error) == (3, "")


@pytest.mark.parametrize("late", [{"do": "set", "name": "n", "raw": "5", "seq": 1}, {"do": "set", "name": "n", "raw": "9", "seq": 4}])
def test_two_threads_bring_messages(gate: Gate, late: dict[str, Any]) -> None:
    """One that another thread brings while a run's values are drawn waits until that has begun with them, be it older or newer."""
    others: list[threading.Thread] = []

    class Drawn(Probe):
        def draw(self, values: Mapping[str, Any]) -> Drawing:
            """Meet the other message."""
            if values["n"] == 7 and not others:
                others.append(threading.Thread(target=lambda: send(self, **late, view="a")))
                others[0].start()
                others[0].join(0.05)
            return super().draw(values)

    probe = Drawn(gate)
    send(probe, do="run", action="run", values=[["n", "7", 2]], seq=3, view="a")
    assert gate.entered.wait(SECONDS)
    others[0].join(SECONDS)
    assert probe._working is not None
    assert probe._working["n"] == 7
    assert probe.values["n"] == (9 if late["seq"] == 4 else 7)


def test_progress_never_takes_the_place_of_a_stop(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop that is pressed just as progress is written is seen after it: the line goes on saying that the work is stopping."""
    probe, write, said = Probe(gate), ControlsPanel.write, []
    stopping = threading.Thread(target=probe.stop)

    def meanwhile(panel: ControlsPanel, **traits: Any) -> None:
        if traits.get("progress") == "first of four":
            stopping.start()
            stopping.join(0.05)
        write(panel, **traits)

    monkeypatch.setattr(ControlsPanel, "write", meanwhile)
    probe._panel.observe(lambda change: said.append(change["new"]), names="progress")
    probe.run(wait=True)
    assert said == ["Run: starting", "first of four", "Stopping after the call in flight", "Run: stopped"]


def test_what_a_subclass_must_give_is_asked_for() -> None:
    """Without ``draw`` there is no instrument; without ``work`` or ``code_for`` their call fails aloud."""
    with pytest.raises(NotImplementedError):
        Instrument()
    with pytest.raises(NotImplementedError):
        Instrument.work(Probe(), "run", {}, print, bool)
    with pytest.raises(NotImplementedError):
        Instrument.code_for(Probe(), {})


def test_an_instrument_without_buttons_says_so() -> None:
    """It only redraws: to run it is refused."""

    class Still(Probe):
        actions = ()

    assert (Still()._panel.actions, Still()._panel.first) == ([], "")
    with pytest.raises(InputError, match="expected one of none: this instrument only redraws"):
        Still().run()


def test_a_view_shows_its_own_controls_and_its_own_button() -> None:
    """The control named ``view`` decides what is on the screen, which button stands out, and whose moved controls are told of."""

    class Views(Probe):
        def make_controls(self) -> list[Any]:
            """A view, and a control for each."""
            return [
                Choice(name="view", label="View", options=("run", "other"), shows_only=True),
                Number(name="n", label="n", default=4, views=("run",), for_actions=("run",)),
                Switch(name="also", label="Also", views=("other",), for_actions=("other",)),
            ]

        def changed(self, name: str) -> None:
            """Nothing depends on another control."""

    probe = Views()
    hidden = {c["name"]: c["hidden"] for c in probe._panel.spec}
    assert (hidden, probe._panel.first) == ({"view": False, "n": False, "also": True}, "run")
    send(probe, do="set", name="n", raw="x", seq=1)
    assert probe.error
    probe.set(view="other")
    assert probe.error == "", "what was refused is no longer on the screen"
    hidden = {c["name"]: c["hidden"] for c in probe._panel.spec}
    assert (hidden, probe._panel.first) == ({"view": False, "n": True, "also": False}, "other")
    probe.run("other", wait=True)
    probe.run("run", wait=True)
    probe.set(n=5)
    assert probe._results.message == ""
    probe.set(also=True)
    assert probe._results.message == "The controls have moved since this was made: press Other to make it again."
    probe.set(view="run")
    assert probe._results.message == "The controls have moved since this was made: press Run to make it again."
    probe.set(n=4)
    assert probe._results.message == ""


def test_work_that_sets_the_threads_of_pytorch_leaves_the_cells_theirs() -> None:
    """A thread of PyTorch's keeps the number that it finds at its first work: the main thread's is not that of a diet under way."""
    script = """
import threading
import torch
from gpulab.widgets._work import Job

begun, seen = threading.Event(), threading.Event()

def work(progress, stop):
    before = torch.get_num_threads()
    print(before)
    torch.set_num_threads(1)
    begun.set()
    seen.wait(60)
    torch.set_num_threads(before)

job = Job(work, lambda fraction, text: None, lambda result, sentence: None, True)
job.start()
begun.wait(60)
print(torch.get_num_threads())
seen.set()
job.join(60)
print(torch.get_num_threads())
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True)
    usual, meanwhile, after = done.stdout.split()  # the usual number is 1 on one core, and says nothing there
    assert meanwhile == after == usual
