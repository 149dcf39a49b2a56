"""Checks never raise, hints go step by step, solutions obey the class, progress adds up."""

from __future__ import annotations

import ast
import dataclasses
import functools
import json
import pathlib
import re
import signal
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch

from gpulab import lessons
from gpulab.errors import InputError
from gpulab.lessons import _answers, _checks, _guard, _policy, _progress, _store
from gpulab.lessons.content import Exercise, Lesson, NotAttempted, Question, Refused, Seen


def _double(answer: object) -> str:
    if _guard.number(_guard.call(answer, 4), "twice the argument") != 8:
        raise Refused("4 should give 8.")
    return "8 is twice 4."


EXERCISE = Exercise(
    "91.2", "twice", "f", "def f(x):\n    ...", "def f(x):\n    return 2 * x", ("Add.", "Add x to itself."), _double, (), limit_seconds=0.5
)


@pytest.fixture(autouse=True)
def lesson(monkeypatch: pytest.MonkeyPatch) -> None:
    """A course of one notebook."""
    content = Lesson("91_test", {"91.1": Question("91.1")}, {"91.2": EXERCISE})
    monkeypatch.setattr(content, "lessons", lambda: (content,))


def _raises(error: BaseException):
    def f(x: int) -> int:
        raise error

    return f


@pytest.mark.parametrize(
    "stub", [..., None, NotImplemented, lambda x: None, lambda x: ..., _raises(NotImplementedError()), [..., ...], {"a": None}, (None,)]
)
def test_a_stub_is_not_attempted(stub: object):
    """What the stub holds, or a function that returns nothing, is no attempt and counts as none."""
    assert lessons.check("91.2", stub).state == "not attempted"
    assert lessons.progress().rows[1].detail == ""


@pytest.mark.parametrize("answer", [[], {}, ()])
def test_an_empty_list_is_an_answer(answer: object):
    """A stub's list has dots in it."""
    assert lessons.check("91.2", answer).state == "wrong"


class _Callable:
    """A function in a class's clothes, which returns nothing."""

    def __call__(self, x: int) -> None:
        2 * x  # type: ignore[operator]


class _EmptyCallable:
    def __call__(self, x: int) -> None:
        """Return twice x."""
        ...


def _prints(x: int) -> None:
    print(2 * x)


def _computes(x: int) -> None:
    2 * x  # neither a name nor a variable of its own


def _says_what_to_do(x: int) -> None:
    """Return twice x."""
    ...


@pytest.mark.parametrize("answer", [_prints, _computes, _Callable(), _Callable().__call__])
def test_a_forgotten_return_is_told(answer: object, capsys: pytest.CaptureFixture[str]):
    """What works and returns nothing is no attempt either, but not a stub: the learner is told what is missing."""
    assert lessons.check("91.2", answer).state == "not attempted"
    assert "91.2 not attempted yet: Your function ran and returned nothing. Does it end with return?\n" in capsys.readouterr().out
    assert lessons.progress().rows[1].detail == ""


@pytest.mark.parametrize("stub", [_says_what_to_do, _EmptyCallable(), lambda x: None, lambda x: ..., _raises(NotImplementedError("soon"))])
def test_a_stub_is_told_nothing(stub: object):
    """An empty function, dots and NotImplementedError are what a stub holds: nothing is missing from an attempt."""
    assert lessons.check("91.2", stub).message == ""


@pytest.mark.parametrize("text", ["[16, 0, 1]", "(16.0, 0.0)", "[]"])
def test_arrays_of_numbers_are_lists(text: str):
    """One row of numbers from NumPy or PyTorch is read as a list; tables, single numbers and everything else stay as they are."""
    numbers = list(ast.literal_eval(text))
    for array in (np.array(numbers), torch.tensor(numbers), torch.tensor(numbers, dtype=torch.float64, requires_grad=True)):
        assert _guard.listed(array) == numbers
        assert isinstance(_guard.listed(array), list)
    for other in (np.ones((1, 3)), torch.ones(1, 3), np.array(3), torch.tensor(3), numbers, tuple(numbers), text, None):
        assert _guard.listed(other) is other


def test_a_later_case_without_an_answer_is_a_forgotten_one():
    """The first one is no attempt."""
    ask = _guard.in_turn(lambda x: None if x == 2 else x)
    with pytest.raises(NotAttempted):
        ask("For 2", 2)
    assert ask("For 1", 1) == 1
    with pytest.raises(Refused, match=r"^For 2 your function returned nothing\.$"):
        ask("For 2", 2)


def test_numbers_from_numpy_are_pythons():
    """The type is exactly Python's, so that what asks for an int or a bool gets one; everything else stays as it is."""
    for given, right in ((np.int64(5), 5), (np.uint8(5), 5), (np.True_, True), (np.float32(0.5), 0.5), (np.str_("slow"), "slow")):
        assert _guard.plain(given) == right
        assert type(_guard.plain(given)) is type(right)
    for other in (5, True, "slow", None, ..., np.arange(2)):
        assert _guard.plain(other) is other


def test_a_right_answer_passes(capsys: pytest.CaptureFixture[str]):
    """The praise says why it is right, and is printed once."""
    assert lessons.check("91.2", lambda x: x + x).state == "passed"
    assert capsys.readouterr().out == "91.2 passed: 8 is twice 4.\n"


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (lambda x: x, "4 should give 8."),
        (5, "an int (5); the check expects a function"),
        (lambda x: 1 / 0, "ZeroDivisionError: division by zero (line "),
        (lambda x: "8", "expects twice the argument"),
        (lambda: 8, "TypeError"),
        (_raises(SystemExit(3)), "called exit"),
        (_raises(KeyboardInterrupt()), "KeyboardInterrupt"),
        (_raises(RecursionError("deep")), "RecursionError: deep"),
        (_raises(ValueError("x" * 160)), f"ValueError: {'x' * 160} (line "),
        (_raises(ValueError("x" * 161)), f"ValueError: {'x' * 157}... (line "),
        (lambda x: float("nan"), "finite"),
    ],
)
def test_a_wrong_answer_is_told_why(answer: object, says: str):
    """Every failure is the state "wrong" with a sentence; nothing is raised."""
    result = lessons.check("91.2", answer)
    assert result.state == "wrong"
    assert says in result.message


def _singular(x: int) -> object:
    return np.linalg.inv(np.zeros((2, 2)))


def _no_json(x: int) -> object:
    return json.loads("{")


@pytest.mark.parametrize(
    ("answer", "line"),
    [(_singular, "return np.linalg.inv(np.zeros((2, 2)))"), (_no_json, 'return json.loads("{")')],
)
def test_an_error_inside_a_library_is_told_with_the_learners_line(answer: Callable[[int], object], line: str):
    """NumPy's or Python's own line says nothing to who called it."""
    number = answer.__code__.co_firstlineno + 1
    assert lessons.check("91.2", answer).message.endswith(f"(line {number}: `{line}`).")


def test_an_error_with_no_line_of_the_learners_is_told_with_the_librarys():
    """A library's function handed in as the answer has no line of one's own."""
    answer = functools.partial(np.linalg.matrix_power, np.zeros((2, 3)))
    assert re.search(r"LinAlgError: .* \(line \d+: `raise ", lessons.check("91.2", answer).message)


def test_an_endless_loop_is_ended():
    """A loop without an end is stopped at the limit, and its thread is gone."""

    def forever(x: int) -> int:
        while True:
            x += 1

    result = lessons.check("91.2", forever)
    assert "did not finish within 0.5 s" in result.message
    assert not [thread for thread in threading.enumerate() if thread.name == "gpulab-check"]


def test_a_loop_that_swallows_errors_is_ended_too():
    """``except Exception`` does not keep an endless loop alive."""

    def stubborn(x: int) -> int:
        while True:
            try:
                time.sleep(0.001)
            except Exception:
                continue

    assert "did not finish" in lessons.check("91.2", stubborn).message


@pytest.fixture
def stop_button() -> Iterator[Callable[[], object]]:
    """What has a real signal interrupt the main thread a moment later, as the stop button does."""
    if not hasattr(signal, "setitimer"):
        pytest.skip("no timer sends a signal on this system")
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    yield functools.partial(signal.setitimer, signal.ITIMER_REAL, 0.02)
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def test_an_interrupt_ends_the_check_and_the_learners_code(stop_button: Callable[[], object]):
    """The stop button ends both; the answer counts as not attempted, and nothing is raised."""
    beats = [0]

    def forever(x: int) -> int:
        stop_button()
        while True:
            beats[0] += 1

    result = lessons.check("91.2", forever)
    assert result.state == "not attempted"
    assert result.message == "The check was interrupted; run the cell again."
    after = beats[0]
    assert not [thread for thread in threading.enumerate() if thread.name == "gpulab-check"]
    assert beats[0] == after


def test_an_interrupt_that_the_code_outlives_is_told(stop_button: Callable[[], object], monkeypatch: pytest.MonkeyPatch):
    """Code in a long call of C cannot be ended: the reader learns that it goes on, and what to do."""
    monkeypatch.setattr(_guard, "_GRACE_SECONDS", 0.05)
    held, ended = threading.Lock(), threading.Event()

    def in_a_long_call(x: int) -> int:
        try:
            stop_button()
            held.acquire()  # an exception that was sent is raised after this call, not in it
        finally:
            ended.set()
        return x

    with held:
        result = lessons.check("91.2", in_a_long_call)
        assert not ended.is_set()
    assert result.state == "not attempted"
    assert result.message.endswith("could not be ended and goes on in the background: restart the kernel.")
    assert ended.wait(60)


def test_an_unknown_exercise_is_said(capsys: pytest.CaptureFixture[str]):
    """An id with a slip names the nearest; check does not raise, hint and solution do."""
    assert lessons.check("91.3", 5).state == "not attempted"
    assert "Did you mean '91.2'?" in capsys.readouterr().out
    for function in (lessons.hint, lessons.solution):
        with pytest.raises(InputError, match="Did you mean"):
            function("91.3")


class _Nasty:
    def __repr__(self) -> str:
        raise RuntimeError("no repr")

    def __call__(self, *args: object) -> object:
        raise ValueError(self)

    def __float__(self) -> float:
        raise RuntimeError("no float")

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("no eq")

    __hash__ = None  # type: ignore[assignment]


@pytest.mark.parametrize("answer", [_Nasty(), lambda x: _Nasty(), [_Nasty()], b"\x00", object(), type, sys, 1e400, "x" * 10_000])
def test_hostile_answers_never_raise(answer: object):
    """Objects whose every method raises become "wrong" with a sentence."""
    result = lessons.check("91.2", answer)
    assert result.state == "wrong"
    assert len(result.message) > 10


def test_a_list_in_itself_is_refused_with_a_sentence():
    """Looking for a stub in it has no end; the check says so and does not raise."""
    answer: list[object] = []
    answer.append(answer)
    result = lessons.check("91.2", answer)
    assert result.state == "wrong"
    assert "The check cannot use a list ([[...]])" in result.message


def test_passed_stays_passed():
    """A wrong answer after a right one does not take the pass away; attempts count both."""
    lessons.check("91.2", lambda x: 2 * x)
    lessons.check("91.2", lambda x: x)
    row = lessons.progress().rows[1]
    assert (row.state, row.detail) == ("passed", "2 attempts")


def test_the_result_shows_once(capsys: pytest.CaptureFixture[str]):
    """At the end of the cell nothing is shown twice; shown later, it prints."""
    result = lessons.check("91.2", lambda x: x)
    result._ipython_display_()
    assert capsys.readouterr().out.count("4 should give 8.") == 1
    result._ipython_display_()
    assert capsys.readouterr().out.count("4 should give 8.") == 1


def test_a_result_that_was_kept_in_a_name_shows_in_a_later_cell(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """A cell that ends in passed = check(...) has printed it; passed in the next cell is another cell's last line, so it prints."""
    shell = types.SimpleNamespace(execution_count=4)
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))
    result = lessons.check("91.2", lambda x: x)
    shell.execution_count = 5
    result._ipython_display_()
    assert capsys.readouterr().out.count("4 should give 8.") == 2


def test_the_result_round_trips():
    """A check's result goes through JSON."""
    result = lessons.check("91.2", lambda x: x)
    assert _checks.CheckResult.from_dict(json.loads(json.dumps(result.to_dict()))) == result


def test_hints_go_one_step_further(capsys: pytest.CaptureFixture[str]):
    """Each call gives the next hint; after the last it says where the solution is."""
    for _ in range(3):
        lessons.hint("91.2")
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == ["91.2 hint 1 of 2: Add.", "91.2 hint 2 of 2: Add x to itself.", "91.2 hint 2 of 2: Add x to itself."]
    assert "gl.lessons.solution('91.2')" in lines[3]


@pytest.mark.parametrize(
    ("setting", "attempted", "shown"),
    [
        ("show", False, True),
        ("after-attempt", False, False),
        ("after-attempt", True, True),
        ("withhold", True, False),
        ("typo", True, False),
    ],
)
@pytest.mark.parametrize("by_file", [False, True])
def test_solutions_obey_the_class(
    setting: str,
    attempted: bool,
    shown: bool,
    by_file: bool,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: pathlib.Path,
    capsys: pytest.CaptureFixture[str],
):
    """The instructor's setting, in the environment or in the class file, decides; a slip withholds and says so."""
    if by_file:
        (tmp_path / "class.json").write_text(json.dumps({"solutions": setting}))
    else:
        monkeypatch.setenv("GPULAB_SOLUTIONS", setting)
    if attempted:
        lessons.check("91.2", lambda x: x)
    capsys.readouterr()
    lessons.solution("91.2")
    assert ("return 2 * x" in capsys.readouterr().out) is shown


@pytest.mark.parametrize(
    ("setting", "last", "before", "after"),
    [
        (
            "withhold", "That was the last one; your instructor opens the solution.",
            "91.2: the solution is withheld. Your instructor opens it; gl.lessons.hint gives a hint.",
            "91.2: the solution is withheld. Your instructor opens it.",
        ),
        (
            "after-attempt", "That was the last one; the solution opens after your first attempt.",
            "91.2: the solution opens after your first attempt. Try gl.lessons.hint('91.2').",
            "91.2: the solution opens after your first attempt.",
        ),
    ],
)  # fmt: skip
def test_hint_and_solution_do_not_send_to_each_other_in_vain(
    setting: str, last: str, before: str, after: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """The last hint promises no solution that the class's setting withholds, and solution none of the hints that were all given."""
    monkeypatch.setenv("GPULAB_SOLUTIONS", setting)
    lessons.solution("91.2")
    for _ in range(3):
        lessons.hint("91.2")
    lessons.solution("91.2")
    lines = capsys.readouterr().out.splitlines()
    assert (lines[0], lines[-2], lines[-1]) == (before, last, after)
    if setting == "after-attempt":
        lessons.check("91.2", lambda x: x)
        lessons.hint("91.2")
        assert capsys.readouterr().out.splitlines()[-1] == "That was the last one. gl.lessons.solution('91.2') shows a solution."


def test_the_last_hint_carries_the_instructors_message(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]):
    """What the class file says of its solutions stands there too."""
    (tmp_path / "class.json").write_text(json.dumps({"solutions": "withhold", "message": "Solutions open on Friday."}))
    for _ in range(3):
        lessons.hint("91.2")
    line = capsys.readouterr().out.splitlines()[-1]
    assert line == "That was the last one; your instructor opens the solution. Solutions open on Friday."


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"\xff", b'{"solutions": 5}', b"[" * 200_000], ids=["empty", "a list", "no text", "a number", "deep"]
)
def test_a_damaged_class_file_withholds(content: bytes, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]):
    """What cannot be read never opens the solutions."""
    (tmp_path / "class.json").write_bytes(content)
    lessons.solution("91.2")
    out = capsys.readouterr().out
    assert "withheld" in out
    assert "return" not in out


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_a_class_file_may_be_as_windows_writes_it(encoding: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]):
    """Windows PowerShell's Set-Content -Encoding UTF8 begins with a mark, its > is UTF-16; a message of null is none."""
    (tmp_path / "class.json").write_bytes('{"solutions": "withhold", "message": null}'.encode(encoding))
    assert _policy.policy() == _policy.Policy("withhold", "")
    (tmp_path / "class.json").write_bytes('{"solutions": "after-attempt", "message": "Zuerst probieren, dann lösen."}'.encode(encoding))
    lessons.solution("91.2")
    assert capsys.readouterr().out == "91.2: the solution opens after your first attempt. Zuerst probieren, dann lösen.\n"


def test_a_class_file_in_an_unknown_home_withholds(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """It cannot be found, so it cannot open the solutions."""
    monkeypatch.setenv("GPULAB_CLASS", "~nosuchuser/class.json")
    lessons.solution("91.2")
    out = capsys.readouterr().out
    assert "withheld" in out
    assert "GPULAB_CLASS: ~nosuchuser/class.json begins with the home of a user that is not here" in out


def test_the_class_file_of_the_folder_counts_where_none_is_named(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    """.gpulab/class.json of the working directory decides; without it solutions are shown; one that is named must be there."""
    monkeypatch.delenv("GPULAB_CLASS")
    monkeypatch.chdir(tmp_path)
    assert _policy.policy() == _policy.Policy("show", "")
    (tmp_path / ".gpulab").mkdir()
    (tmp_path / ".gpulab" / "class.json").write_text('{"solutions": "withhold", "message": "On Friday."}')
    assert _policy.policy() == _policy.Policy("withhold", "On Friday.")
    monkeypatch.setenv("GPULAB_CLASS", str(tmp_path / "none.json"))
    assert _policy.policy().solutions == "withhold"
    assert "none.json cannot be read" in _policy.policy().message


def test_what_is_kept_of_a_check(capsys: pytest.CaptureFixture[str]):
    """The best state and the last one, how often, which hint, and that the solution was shown."""
    for answer in (lambda x: 2 * x, lambda x: x):
        lessons.check("91.2", answer)
    lessons.hint("91.2")
    lessons.solution("91.2")
    kept = _store.read()["exercises"]["91.2"]
    assert (kept["state"], kept["last"]["state"], kept["attempts"], kept["hints"], kept["solution_shown"]) == (
        "passed",
        "wrong",
        2,
        1,
        True,
    )
    assert capsys.readouterr().out.endswith("# One solution of 91.2, twice:\ndef f(x):\n    return 2 * x\n")


def test_code_that_goes_on_in_the_background_keeps_no_kernel_alive():
    """What could not be ended would else hold the interpreter at its own end."""
    assert lessons.check("91.2", lambda x: 2 * x if threading.current_thread().daemon else x).state == "passed"


def test_a_check_waits_for_the_last_lines_of_what_has_ended():
    """No thread is left when the check returns; what has not ended is not waited for longer than its time."""
    joined: list[float | None] = []
    thread, done = threading.Thread(), threading.Event()
    thread.join = joined.append  # type: ignore[method-assign]
    assert not _guard._wait(thread, done, 0.0)
    assert joined == []
    done.set()
    assert _guard._wait(thread, done, 0.0)
    assert joined == [_guard._GRACE_SECONDS]


@pytest.mark.parametrize(("found", "ends", "tries"), [(1, False, 2), (0, False, 1), (1, True, 1)])
def test_code_is_asked_twice_to_end(found: int, ends: bool, tries: int, monkeypatch: pytest.MonkeyPatch):
    """With a second for each time; once is enough where its thread is gone, or where it ends."""
    asked, waited = list[int](), list[float]()
    api = types.SimpleNamespace(PyThreadState_SetAsyncExc=lambda ident, error: (asked.append(ident), found)[1])
    monkeypatch.setattr(_guard, "ctypes", types.SimpleNamespace(pythonapi=api, c_ulong=int, py_object=lambda error: error))
    monkeypatch.setattr(_guard, "_wait", lambda thread, done, seconds: (waited.append(seconds), ends)[1])
    thread: threading.Thread = types.SimpleNamespace(ident=7)  # type: ignore[assignment]
    assert _guard._end(thread, threading.Event()) is (tries == 1)
    assert (asked, waited) == ([7] * tries, [1.0] * tries if found else [])


def test_an_answer_is_looked_for_twenty_times_a_second_until_its_time_is_up(monkeypatch: pytest.MonkeyPatch):
    """Of half a second two quarters are waited for, and no third."""
    now, waits = [8.0], list[float]()

    def wait(seconds: float) -> bool:
        waits.append(seconds)
        now[0] += 0.25
        return False

    monkeypatch.setattr(_guard, "time", types.SimpleNamespace(monotonic=lambda: now[0]))
    done: threading.Event = types.SimpleNamespace(wait=wait, is_set=lambda: False)  # type: ignore[assignment]
    assert _guard._wait(threading.Thread(), done, 0.5) is False
    assert waits == [0.05, 0.05]


def test_what_was_seen_is_kept_with_the_answer_that_passed(monkeypatch: pytest.MonkeyPatch):
    """The source of the answer, and what the machine gave at that time; a later wrong answer takes neither's place."""
    shown = [_checks.CheckResult("91.1", "passed", word) for word in ("then", "later")]
    given = iter(shown)
    seen = Seen("a result", _checks.CheckResult, lambda: next(given), lambda result: None)
    content = Lesson("91_test", {}, {"91.2": dataclasses.replace(EXERCISE, seen=seen)})
    monkeypatch.setattr(content, "lessons", lambda: (content,))

    def mine(x: int) -> int:
        return x + x

    for answer in (mine, lambda x: x):
        lessons.check("91.2", answer)
    kept = _store.read()["exercises"]["91.2"]
    assert (kept["kept"]["kind"], kept["kept"]["name"]) == ("code", "mine")
    assert _answers.restore_result(kept["seen"]) == shown[0]


LONG = "x" * 500


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: lessons.hint(LONG), f"exercise '{'x' * 36}... is not"),
        (lambda: lessons.progress(LONG), f"there is no notebook '{'x' * 36}...; expected"),
        (lambda: lessons.answer(LONG, 1), f"answer: question '{'x' * 36}... was not"),
        (lambda: lessons.predict("91.1", "Which?", choices=("a", "b")).submit(LONG), f"predict: '{'x' * 60}' is not one"),
        (lambda: lessons.predict("91.1", "How long?", unit="us").submit("y" * 58), f"cannot read '{'y' * 58}'; expected"),
        (lambda: lessons.predict("91.1", "How long?", unit="us").submit("y" * 59), f"cannot read '{'y' * 56}...; expected"),
    ],
)
def test_what_was_typed_is_told_so_far_and_no_further(call: Callable[[], object], says: str):
    """40 characters of a name, 60 of an answer, their quotation marks among them where there is one behind the dots."""
    with pytest.raises(InputError, match=re.escape(says)):
        call()


def test_of_a_setting_that_is_none_forty_characters_are_told(monkeypatch: pytest.MonkeyPatch):
    """And of an exercise that is no text, in the result that check gives."""
    monkeypatch.setenv("GPULAB_SOLUTIONS", LONG)
    assert _policy.policy().message.startswith(f"GPULAB_SOLUTIONS says '{'x' * 40}'; expected one of show, after-attempt, withhold.")
    assert len(lessons.check([LONG], 5).id) == 40  # type: ignore[arg-type]


class _Lines:
    def __repr__(self) -> str:
        return "a\nb"


@pytest.mark.parametrize(
    ("value", "words"),
    [("x" * 38, f"a str ('{'x' * 38}')"), ("x" * 39, "a str"), (_Lines(), "a _Lines"), (np.eye(2), "an ndarray"), (2.5, "a float (2.5)")],
)
def test_a_value_is_shown_where_it_is_short(value: object, words: str):
    """40 characters on one line; of what is longer or has several lines only the kind is told."""
    assert _guard.describe(value) == words


def test_progress_counts_predictions_and_exercises():
    """The table has a row an item, in order, with what was said and measured."""
    lessons.predict("91.1", "How long?", unit="us")
    assert lessons.progress().rows[0].state == "open"
    lessons.answer("91.1", 5)
    assert lessons.progress().rows[0].state == "predicted"
    lessons.reveal("91.1", 6e-6)
    lessons.check("91.2", lambda x: 2 * x)
    kept = lessons.progress()
    assert (kept.passed, kept.exercises, kept.predicted, kept.predictions) == (1, 1, 1, 1)
    assert kept.rows[0].detail == "you: 5.00 us; answer: 6.00 us (MEASURED)"
    assert "1 of 1 exercises passed" in kept._repr_html_()
    assert "1 of 1 exercises passed" in repr(kept)


def test_the_table_of_progress_by_hand(progress_file: pathlib.Path, capsys: pytest.CaptureFixture[str]):
    """Not begun; then answered and tried once, wrongly; then shown and passed; then afresh, in one sentence."""
    rows = [("91.1", "prediction", "not answered yet", "open", ""), ("91.2", "exercise", "twice", "not attempted", "")]
    assert lessons.progress().table()[1] == rows
    lessons.predict("91.1", "How long?", unit="us")
    lessons.answer("91.1", 5)
    lessons.check("91.2", lambda x: x)
    now = lessons.progress()
    assert now.table()[1] == [
        ("91.1", "prediction", "How long?", "predicted", "5.00 us"), ("91.2", "exercise", "twice", "wrong", "1 attempt"),
    ]  # fmt: skip
    said = "0 of 1 exercises passed, 1 of 1 predictions given"
    assert now.caption() == f"{said}. Kept in {progress_file}"
    assert repr(now).splitlines() == [
        f"{said} ({progress_file})",
        "  91.1  prediction  predicted      How long? 5.00 us",
        "  91.2  exercise    wrong          twice 1 attempt",
    ]
    lessons.reveal("91.1", 500e-6)
    lessons.check("91.2", lambda x: 2 * x)
    found = lessons.progress()
    assert [row.state for row in found.rows] == ["off", "passed"]
    assert (found.rows[1].detail, found.passed, found.predicted) == ("2 attempts", 1, 1)
    capsys.readouterr()
    lessons.predict("92.1", "How long?", unit="us").submit(5)
    lessons.start_again("92")
    assert capsys.readouterr().out == "1 answer of notebook 92 moved into the history of progress.json; you start afresh.\n"
    lessons.start_again("91_test")
    assert capsys.readouterr().out == "2 answers of notebook 91 moved into the history of progress.json; you start afresh.\n"
    assert lessons.progress().table()[1] == rows
    lessons.predict("91.1", "How long?", unit="us")
    lessons.reveal("91.1", 500e-6)
    assert (lessons.progress().rows[0].state, lessons.progress().predicted) == ("no prediction", 0)


def test_progress_tells_why_an_answer_is_not_there(progress_file: pathlib.Path):
    """Without a prediction and with one; it stays open, is in no report, and is forgotten once the answer was measured."""
    lessons.reveal("91.1", None, "no GPU here")
    assert lessons.progress().table()[1][0] == ("91.1", "prediction", "its question was not asked", "open", "not measured: no GPU here")
    asked = lessons.predict("91.1", "How long?", unit="us")
    lessons.reveal("91.1", None, "no GPU here")
    found = lessons.progress()
    assert found.table()[1][0] == ("91.1", "prediction", "How long?", "open", "not measured: no GPU here")
    assert (found.predicted, lessons.report(measure=False).predictions) == (0, ())
    lessons.answer("91.1", 5)
    assert lessons.progress().rows[0].state == "predicted"
    lessons.reveal("91.1", None)
    assert lessons.progress().rows[0].detail == "you: 5.00 us; not measured"
    assert asked.status == "Your prediction is kept: 5.00 us. When the next cell ran, the answer was not measured."
    lessons.reveal("91.1", None, "too much noise. Run the cell above again.")
    when = "Your prediction is kept: 5.00 us. When the next cell ran, the answer was"
    assert asked.status == f"{when} not measured: too much noise. Run the cell above again."
    lessons.reveal("91.1", 6e-6)
    assert lessons.progress().rows[0].detail == "you: 5.00 us; answer: 6.00 us (MEASURED)"
    assert "unmeasured" not in progress_file.read_text(encoding="utf-8")


def test_a_progress_file_that_cannot_be_read_is_told(progress_file: pathlib.Path):
    """Nothing passed and a file that says so are two things: the first words tell which it is, in every form."""
    assert lessons.progress().fault == ""
    lessons.check("91.2", lambda x: 2 * x)
    assert lessons.progress().fault == ""
    progress_file.write_bytes(progress_file.read_bytes()[:-9])
    found = lessons.progress()
    begins = (
        "progress.json is truncated or is not JSON, so nothing of it is shown; it is kept, and set aside at your next answer. "
        "0 of 1 exercises passed"
    )
    assert found.caption().startswith(begins)
    assert repr(found).startswith(begins)
    assert begins.partition(",")[0] in found._repr_html_()
    assert type(found).from_dict(json.loads(json.dumps(found.to_dict()))) == found
    progress_file.unlink()
    progress_file.mkdir()
    assert (
        lessons.progress()
        .caption()
        .startswith("progress.json cannot be read (Is a directory), so nothing of it is shown; it is kept. 0 of")
    )


def test_progress_of_one_notebook():
    """A notebook's number chooses; one that is not there is refused."""
    assert lessons.progress("91").exercises == 1
    for wrong in ("17", "9"):
        with pytest.raises(InputError, match=r"progress: .* expected one of 91"):
            lessons.progress(wrong)


def test_starting_again_keeps_the_old_answers(progress_file: pathlib.Path):
    """A fresh start moves the notebook's items into the history and touches no other notebook."""
    lessons.predict("91.1", "How long?", unit="us")
    lessons.answer("91.1", 5)
    lessons.predict("92.1", "How long?", unit="us")
    lessons.answer("92.1", 5)
    lessons.start_again("91_test")
    content = json.loads(progress_file.read_text())
    assert set(content["predictions"]) == {"92.1"}
    assert content["history"][0]["predictions"]["91.1"]["first"]["value"] == pytest.approx(5e-6)
    lessons.answer("91.1", 7)
    assert json.loads(progress_file.read_text())["predictions"]["91.1"]["first"]["value"] == pytest.approx(7e-6)


def test_start_again_asks_for_a_number():
    """Anything but a notebook's number is refused."""
    with pytest.raises(InputError, match="such as '02'"):
        lessons.start_again("")


def test_starting_again_with_nothing_changes_nothing(progress_file: pathlib.Path, capsys: pytest.CaptureFixture[str]):
    """Where nothing was answered, that is said, and no file is written; one digit is no notebook's number, but may begin your own ids."""
    lessons.start_again("91")
    assert capsys.readouterr().out == "There is nothing of notebook 91 to move; nothing was changed.\n"
    assert not progress_file.exists()
    with pytest.raises(InputError, match=r"start_again: there is no notebook '9'; expected one of 91\."):
        lessons.start_again("9")
    lessons.predict("9.1", "How long?", unit="us")
    lessons.answer("9.1", 5)
    lessons.start_again("9")
    assert set(json.loads(progress_file.read_text())["history"][0]["predictions"]) == {"9.1"}


@pytest.mark.parametrize("own", ["93", "x"])
def test_a_number_of_ones_own_notebook_is_no_mistake(own: str, capsys: pytest.CaptureFixture[str]):
    """Nothing begins with it, and nothing has to: only one digit is taken for half of a number."""
    lessons.start_again(own)
    assert capsys.readouterr().out == f"There is nothing of notebook {own} to move; nothing was changed.\n"


def test_a_kept_table_of_progress_says_which_version_it_is():
    """The second: the first told nothing of the file."""
    assert (lessons.progress().to_dict()["schema_version"], _progress.Progress.schema_version) == (2, 2)


@pytest.mark.parametrize("spoiled", ["two", -3, None, 1.5])
def test_a_spoiled_count_of_hints_begins_anew(spoiled: object, capsys: pytest.CaptureFixture[str]):
    """A progress file in which the count is no count gives the first hint, and no error."""
    _store.change(lambda content: content["exercises"].update({"91.2": {"hints": spoiled}}))
    lessons.hint("91.2")
    assert capsys.readouterr().out == "91.2 hint 1 of 2: Add.\n"
