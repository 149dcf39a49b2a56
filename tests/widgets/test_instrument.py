"""The base of instruments, on work of the test's own: values, runs, Stop, errors, turns."""

import _thread
import contextlib
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from gpulab.errors import GpulabError, InputError, StoppedError
from gpulab.evidence import Badge, Evidence, Note
from gpulab.widgets import (
    Action,
    Choice,
    Drawing,
    Instrument,
    Number,
    Several,
    Slider,
    Switch,
)
from hypothesis import given
from hypothesis import strategies as st

SECONDS = 60  # a condition that is not met by then will not be met
LIVE = Evidence.measured("A device", 3)


class Probe(Instrument):
    """Every kind of control; the work is the test's own function of (progress, stop)."""

    title = "Probe"
    summary = "Made for tests."
    actions = (Action("run", "Go"), Action("look", "Look", measures=False))
    job: Callable[[Any, Any], Any] = staticmethod(lambda progress, stop: "found")
    broken = False

    def make_controls(self) -> list[Any]:
        """Return one of each kind; the list of dishes depends on the meal."""
        evening = self.values.get("meal") == "evening"
        dishes = ("soup", "bread") if evening else ("bread", "egg")
        return [
            Choice(name="meal", label="Meal", options=("morning", ("evening", "the evening"))),
            Choice(name="dish", label="Dish", options=dishes),
            Slider(name="size", label="Size", options=[64, 128], default=128),
            Number(name="n", label="Size n", default=8, minimum=1, maximum=100, integer=True),
            Several(name="which", label="Which", options=("a", "b"), default=("a",), least=1),
            Switch(name="on", label="On", for_actions=("look",)),
            Switch(name="grid", label="Grid", shows_only=True),
        ]

    def changed(self, name: str) -> None:
        """Offer other dishes in the evening."""
        if name == "meal":
            self.rebuild("dish")

    def ended(self, action: str) -> None:
        """Turn the grid on for each new result, unless it was moved meanwhile."""
        self.turn(action, grid=True)

    def work(self, action: str, values: Any, progress: Any, stop: Any) -> Any:
        """Do what the test says."""
        return type(self).job(progress, stop) if self.job is Probe.job else self.job(progress, stop)

    def draw(self, values: Any) -> Drawing:
        """Show the result in a table."""
        if self.broken:
            raise ValueError("no picture")
        rows = [("result", str(self.result), Badge.MEASURED), ("note: x", "a note", Badge.MEASURED)]
        return Drawing(
            None, ("", "", ""), rows, [LIVE], [Note("unstable", "It drifts.")], "Read it."
        )

    def code_for(self, values: Any) -> str:
        """Return a line with the number."""
        return f"probe({values['n']})"


class Gate:
    """Work that reports, then waits until ``go`` is set, or until Stop unless ``held`` is set."""

    def __init__(self) -> None:
        self.begun, self.go, self.held = (threading.Event() for _ in range(3))

    def __call__(self, progress: Any, stop: Any) -> str:
        """Wait."""
        self.report = progress
        progress(1.0, "half way")
        self.begun.set()
        while not self.go.wait(0.005):
            if stop() and not self.held.is_set():
                return "stopped early"
        return "gone through"


@pytest.fixture
def gate() -> Iterator[Gate]:
    """Work under the test's control, set free at the end whatever happens."""
    one = Gate()
    yield one
    one.go.set()


@pytest.fixture
def probe() -> Iterator[Probe]:
    """A new instrument, closed after the test."""
    one = Probe()
    yield one
    one.close()
    one.wait()


def _begin(probe: Probe, gate: Gate, action: str = "run") -> None:
    probe.job = gate
    probe.run(action)
    assert gate.begun.wait(SECONDS)


def test_set_changes_all_or_nothing(probe: Probe) -> None:
    """Values are taken by name or by the text shown; if one of several is refused, none changes."""
    probe.set(meal="the evening", n="7", size="64", which="b")
    wanted = {"meal": "evening", "n": 7, "size": 64, "which": ("b",), "dish": "bread"}
    assert {name: probe.values[name] for name in wanted} == wanted
    assert probe.code == "probe(7)"
    for bad in ({"n": 9, "size": 65}, {"n": 101}, {"nosuch": 1}, {"which": []}, {"on": 1}):
        with pytest.raises(InputError):
            probe.set(**bad)
        assert {name: probe.values[name] for name in wanted} == wanted
    assert Probe(n=3, dish="egg").code == "probe(3)"


def test_one_control_decides_anothers_options(probe: Probe) -> None:
    """If the new list has the present value, it stays; else the first option is taken."""
    probe.set(dish="egg")
    probe.set(meal="evening")
    offered = probe.controls["dish"].describe()["options"]
    assert (probe.values["dish"], offered) == ("soup", ["soup", "bread"])
    probe.set(dish="bread")
    probe.set(meal="morning")
    assert probe.values["dish"] == "bread"


def test_the_most_important_notes_stand_first() -> None:
    """Notes on a wrong result come first, then notes on a doubtful time; each note is shown once.

    The first two notes, which are always visible, have different codes. After them, notes of one
    code are side by side.
    """
    codes = ("deadline", "contended", "contended", "disagree", "skipped", "deadline")
    notes = [Note(code, f"{k}.") for k, code in enumerate(codes)]
    shown = [note.code for note in Drawing(notes=[*notes, *notes]).notes]
    assert shown == ["disagree", "contended", "contended", "skipped", "deadline", "deadline"]


def test_a_run_shows_its_result(probe: Probe) -> None:
    """Table with badge, status line, notes and message; rows of notes have their own place."""
    assert (probe.result, probe.latest) == (None, "")
    probe.run(wait=True)
    shown = probe.shown
    assert (probe.result, probe.latest, probe.progress) == ("found", "run", "Go: done")
    assert shown.rows == [("result", "found", Badge.MEASURED)]
    assert (shown.evidence, shown.message) == ([LIVE], "Read it.")
    assert [note.code for note in shown.notes] == ["unstable"]
    assert (probe.status, probe.values["grid"]) == ("idle", True)


@pytest.mark.parametrize(
    ("action", "moved", "stale"),
    [
        ("run", {"n": 9}, True),
        ("run", {"grid": False}, False),
        ("run", {"on": True}, False),
        ("look", {"on": True}, True),
    ],
)
def test_an_old_result_is_called_outdated_if_a_control_moved(
    probe: Probe, action: str, moved: dict[str, Any], stale: bool
) -> None:
    """A message appears, unless the control only changes the display or is for another action.

    It disappears when the control is moved back.
    """
    probe.run(action, wait=True)
    before = {name: probe.values[name] for name in moved}
    probe.set(**moved)
    assert ("have changed" in probe.shown.message) is stale
    probe.set(**before)
    assert "have changed" not in probe.shown.message


def test_stop_is_acknowledged_and_ends_the_work(probe: Probe, gate: Gate) -> None:
    """Stop shows before the call in flight ends, and later progress does not replace it."""
    gate.held.set()
    _begin(probe, gate)
    assert (probe.status, probe.progress, probe.running) == ("running", "half way", True)
    probe.stop()
    gate.report(1.0, "late")
    assert (probe.status, probe.running, "late" in probe.progress) == ("stopping", True, False)
    gate.held.clear()
    probe.wait()
    assert (probe.result, probe.progress, probe.error) == ("stopped early", "Go: stopped", "")
    probe.stop()
    assert probe.status == "idle"


def test_a_second_run_is_refused_while_one_runs(probe: Probe, gate: Gate) -> None:
    """It says so and starts nothing; the first one goes on to its end."""
    _begin(probe, gate)
    gate.begun.clear()
    probe.run()
    assert "still running" in probe.error
    gate.go.set()
    probe.wait()
    assert (probe.result, gate.begun.is_set()) == ("gone through", False)


@pytest.mark.parametrize(
    ("failure", "words"),
    [
        (InputError("Say a\nnumber."), "Say a number."),
        (ValueError("bad"), "ValueError: bad"),
        (SystemExit(3), "SystemExit"),
        (MemoryError(), "MemoryError"),
        (RuntimeError("word " * 500), "RuntimeError: word word"),
    ],
)
def test_what_the_work_raises_is_shown_inside(
    probe: Probe, failure: BaseException, words: str
) -> None:
    """In one short sentence, with the traceback kept; the next run works."""

    def fail(progress: Any, stop: Any) -> Any:
        raise failure

    probe.job = fail
    probe.run(wait=True)
    assert words in probe.error
    assert (len(probe.error) < 500, "\n" in probe.error) == (True, False)
    assert (probe.status, probe.progress, probe.result) == ("idle", "Go: failed", None)
    assert type(failure).__name__ in probe.traceback
    probe.job = Probe.job
    probe.run(wait=True)
    assert (probe.error, probe.result) == ("", "found")


def test_a_stop_with_nothing_to_report_is_no_error(probe: Probe) -> None:
    """Its message is shown as progress, and the previous result stays."""
    probe.run(wait=True)

    def stopped(progress: Any, stop: Any) -> Any:
        probe.publish("run", "half")
        raise StoppedError("Stopped; nothing was measured.")

    probe.job = stopped
    probe.run(wait=True)
    assert (probe.error, probe.result) == ("", "found")
    assert probe.progress == "Stopped; nothing was measured."


def test_incomplete_results_are_shown_and_taken_back(probe: Probe, gate: Gate) -> None:
    """A result published during the work is shown; if the work fails, the previous one returns."""
    probe.run(wait=True)

    def publishes(progress: Any, stop: Any) -> Any:
        probe.publish("run", "half")
        gate(progress, stop)
        raise GpulabError("It failed.")

    probe.job = publishes
    probe.run()
    assert gate.begun.wait(SECONDS)
    assert probe.shown.rows[0][1] == "half"
    gate.go.set()
    probe.wait()
    assert (probe.shown.rows[0][1], probe.error) == ("found", "It failed.")


def test_an_error_of_the_picture_is_shown(probe: Probe) -> None:
    """The run ends, and the error is shown as a sentence."""
    probe.broken = True
    probe.run(wait=True)
    assert ("no picture" in probe.error, probe.status) == (True, "idle")


def test_a_control_moved_during_the_work_keeps_its_value(probe: Probe, gate: Gate) -> None:
    """A control moved during the work keeps its value; a message says that settings changed."""
    probe.set(grid=True)
    _begin(probe, gate)
    probe.set(grid=False, n=50)
    gate.go.set()
    probe.wait()
    assert (probe.values["grid"], "have changed" in probe.shown.message) == (False, True)


def test_two_measurements_take_turns(probe: Probe, gate: Gate) -> None:
    """A second one waits, says so, and can be stopped; other actions do not wait."""
    _begin(probe, gate)
    other = Probe()
    other.run("look", wait=True)
    assert other.result == "found"
    other.run("run")
    while not gate.held.wait(0.005) and "Waiting" not in other.progress:
        assert other.running
    other.stop()
    other.wait()
    assert (other.result, other.error, probe.running) == ("found", "", True)
    other.run("run")
    gate.go.set()
    other.wait()
    probe.wait()
    assert (other.latest, probe.result) == ("run", "gone through")
    other.close()


def test_waiting_with_a_limit_stops_what_is_not_done_by_then(probe: Probe, gate: Gate) -> None:
    """A script that waits a second goes on with what the work had found so far."""
    _begin(probe, gate)
    probe.wait(seconds=0.01)
    assert (probe.status, probe.result) == ("idle", "stopped early")


def test_closing_stops_the_work(probe: Probe, gate: Gate) -> None:
    """A closed instrument leaves no work behind."""
    _begin(probe, gate)
    probe.close()
    probe.wait()
    assert (probe.running, probe.result) == (False, "stopped early")


def test_an_interrupt_of_the_kernel_stops_a_waited_run(probe: Probe) -> None:
    """A cell that waits is interrupted: the work ends and keeps what it had."""
    main = threading.main_thread().ident or 0

    def waits() -> bool:
        frame, inner = sys._current_frames()[main], False
        while frame is not None and frame.f_code is not Instrument.wait.__code__:
            frame, inner = frame.f_back, True
        return frame is not None and inner

    def interrupts(progress: Any, stop: Any) -> str:
        while not waits():
            threading.Event().wait(0.005)
        _thread.interrupt_main()
        while not stop():
            threading.Event().wait(0.005)
        return "kept"

    probe.job = interrupts
    with pytest.raises(KeyboardInterrupt):
        probe.run(wait=True)
    assert (probe.running, probe.result) == (False, "kept")


ENDLESS = """
from gpulab.widgets import Action, Drawing, Instrument
class Endless(Instrument):
    title, summary, actions = "E", "E.", (Action("run", "Run"),)
    def draw(self, values): return Drawing()
    def code_for(self, values): return ""
    def work(self, action, values, progress, stop):
        print("begun", flush=True)
        while not stop(): pass
        print("ended", flush=True)
Endless().run()
"""


@pytest.mark.slow
def test_no_work_outlives_the_interpreter() -> None:
    """At the end of Python endless work is asked to stop and ends before the libraries go."""
    done = subprocess.run(
        [sys.executable, "-c", ENDLESS], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.split() == ["begun", "ended"]
    assert "Traceback" not in done.stderr


NUMBER = Number(name="n", label="Size n", default=8, minimum=1, maximum=100, integer=True)
SEVERAL = Several(name="x", label="X", options=("a", ("b", "the b")), least=1)
LISTED = Choice(name="x", label="X", options=(("a-1", "EPYC"), ("a-2", "EPYC"), ("b", "H200")))


@pytest.mark.parametrize(
    ("control", "value", "taken"),
    [
        (NUMBER, " 7 ", 7),
        (NUMBER, "1e1", 10),
        (NUMBER, 99.0, 99),
        (NUMBER, 1, 1),
        (NUMBER, 100, 100),
        (SEVERAL, ["the b", "a"], ("a", "b")),
        (SEVERAL, "b", ("b",)),
        (LISTED, "EPYC, a-2", "a-2"),
        (LISTED, "b", "b"),
        (LISTED, "H200", "b"),
    ],
)
def test_values_are_read_as_people_write_them(control: Any, value: Any, taken: Any) -> None:
    """Blanks and exponents are read; options by value or text, equal texts by both."""
    assert control.check(value) == taken


@pytest.mark.parametrize(
    "value", [0, 101, 1.5, "abc", "", None, True, float("nan"), "1e400", [3], "1,5"]
)
def test_a_number_out_of_bounds_is_refused(value: Any) -> None:
    """Bounds, fractions, words, truth values, infinities, a decimal comma; the sentence has label
    and bounds.
    """
    with pytest.raises(InputError, match=r"Size n.* from 1 to 100"):
        NUMBER.check(value)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_real_number_survives_in_every_digit(x: float) -> None:
    """What stands in the field reads back as the same number."""
    control = Number(name="x", label="x", default=0.0)
    assert control.read(control.raw(x)) == x


anything = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(),
    st.lists(st.integers()),
    st.dictionaries(st.text(), st.integers()),
)


@given(anything)
def test_anything_is_taken_or_refused_in_one_sentence(value: Any) -> None:
    """From Python or the browser: a value of the control's own kind, or an InputError."""
    for control in (NUMBER, SEVERAL, LISTED, Switch(name="s", label="S")):
        for gate in (control.check, control.read):
            with contextlib.suppress(InputError):
                taken = gate(value)
                assert control.check(taken) == taken
