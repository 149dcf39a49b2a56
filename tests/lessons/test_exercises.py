"""Every exercise as the learner meets it: stub, hints, solution, wrong answers, and junk."""

import dataclasses
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from course import EXERCISES, answer_of, assert_passes
from gpulab import lessons, parallel
from gpulab.errors import InputError
from gpulab.lessons import content
from gpulab.lessons.content import Exercise, Refused
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

# Usual wrong answers that run on processes or train for ten seconds: the long form runs them.
LONG = {("08.15", 0), ("08.15", 1), ("08.15", 2), ("09.11", 2), ("09.11", 3)}
SLOW = (
    "00.2", "00.5", "02.2", "03.8", "05.9", "06.12", "07.13", "08.3", "08.12", "08.15", "08.16",
    "09.11",
)  # fmt: skip
# The messages of these have times, or digits that another processor may round differently.
UNLIKE_ELSEWHERE = ("00.2", "00.5", "05.9", "07.13", "09.11")
STREAM = torch.cuda.Stream
each_exercise = pytest.mark.parametrize("exercise", EXERCISES, ids=lambda exercise: exercise.id)
each_marked = pytest.mark.parametrize(
    "exercise",
    [
        pytest.param(
            e,
            marks=[
                *([pytest.mark.slow] if e.id in SLOW else []),
                *([pytest.mark.pins] if e.id == "08.12" else []),  # figures of PyTorch's own FSDP
            ],
            id=e.id,
        )
        for e in EXERCISES
    ],
)


@pytest.fixture(scope="module")
def started_ranks() -> Iterator[Any]:
    """Four ranks, as notebook 08 has them open; none waits for another for over five seconds."""
    with parallel.cluster(4, timeout_seconds=5.0) as ranks:
        yield ranks


@pytest.fixture
def ranks_of_the_notebook(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Define ``ranks`` as the notebook's cells do; the checks of 08.3 and 08.16 use them."""
    if request.node.callspec.params["exercise"].id in ("08.3", "08.16"):
        ranks = request.getfixturevalue("started_ranks")
        monkeypatch.setattr(sys.modules["__main__"], "ranks", ranks, raising=False)


def refused(exercise: Exercise, number: int) -> None:
    """Check one usual wrong answer: the refusal names the mistake."""
    for script in Path.cwd().glob("*.py"):  # files of the previous answer
        script.unlink()
    usual = exercise.usual[number]
    result = lessons.check(exercise.id, answer_of(exercise, usual.source))
    assert result.state == "wrong", result.message
    assert usual.says in result.message


@pytest.mark.usefixtures("ranks_of_the_notebook")
@each_marked
def test_an_exercise_from_stub_to_solution(exercise: Exercise, approved: Any, capsys: Any) -> None:
    """Stub: no attempt; hints differ; the solution passes; each usual mistake is named."""
    empty = lessons.check(exercise.id, answer_of(exercise, exercise.stub))
    assert (empty.state, empty.message) == ("not attempted", "")
    for _ in range(len(exercise.hints) + 1):
        lessons.hint(exercise.id)
    lessons.solution(exercise.id)
    assert len(set(exercise.hints)) == len(exercise.hints) >= 2
    assert len({usual.says for usual in exercise.usual}) >= 3, "too few different mistakes"
    words = capsys.readouterr().out
    assert_passes(exercise, exercise.solution)
    for number in range(len(exercise.usual)):
        if (exercise.id, number) not in LONG:
            refused(exercise, number)
    assert torch.cuda.Stream is STREAM, "a check's stand-in has stayed"
    said = "" if exercise.id in UNLIKE_ELSEWHERE else capsys.readouterr().out
    assert words + said == approved


@pytest.mark.soak
@pytest.mark.parametrize(("id", "number"), sorted(LONG))
def test_a_usual_wrong_answer_that_takes_long_is_refused(id: str, number: int) -> None:
    """A wrong answer whose check trains for long is refused as the others are."""
    refused(content.exercise(id), number)


def halves(answer: Any) -> list[Any]:
    """Versions of an answer whose last part, or a part of that, is still the stub's ``...``."""
    if isinstance(answer, dict):
        last = list(answer)[-1]
        return [{**answer, last: half} for half in [..., *halves(answer[last])]]
    return [type(answer)([*answer[:-1], ...])] if isinstance(answer, (tuple, list)) else []


@each_exercise
def test_half_an_answer_is_no_attempt(exercise: Exercise) -> None:
    """An answer whose last part is still missing counts as not attempted, not as wrong."""
    if exercise.id in ("00.5", "07.13", "08.15"):
        return  # a measurement, a model and a file, which take time to make and have no parts
    for half in halves(answer_of(exercise, exercise.solution)):
        result = lessons.check(exercise.id, half)
        assert (result.state, result.message) == ("not attempted", ""), half


def test_a_damaged_file_of_the_course_is_named(tmp_path: Path) -> None:
    """A file with the id of another exercise is named too, since it would hide that exercise."""
    file = shutil.copytree(content.COURSE / "10", tmp_path / "10") / "padded.py"
    text = file.read_text(encoding="utf-8")
    for damaged in ("", text.replace("title", "x"), text.replace('"10.8"', '"10.4"'), text[:900]):
        file.write_text(damaged, encoding="utf-8")
        with pytest.raises(InputError, match=r"\w+\.py cannot be read"):
            content.read_lesson(file.parent).exercises["10.8"].prepare()


def raising(error: BaseException) -> Any:
    """A function that raises, whatever it is given."""

    def answer(*given: Any, **named: Any) -> Any:
        raise error

    return answer


def changing(*given: Any) -> Any:
    """A function that overwrites what it is given and returns it."""
    for each in given:
        if isinstance(each, (np.ndarray, torch.Tensor)):
            each[...] = 7
    return given[0] if given else 1


class Nasty:
    """An object that fails however it is looked at."""

    def __repr__(self) -> str:
        raise RuntimeError("no repr")

    def __call__(self, *given: Any) -> Any:
        """Raise something that cannot be shown."""
        raise ValueError(self)

    def __float__(self) -> float:
        raise RuntimeError("no float")

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("no eq")

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("no attribute")

    __hash__ = None  # type: ignore[assignment]


IN_ITSELF: list[Any] = []
IN_ITSELF.append(IN_ITSELF)
JUNK = (
    0, -1, 1e308, float("nan"), "", "A" * 5000, b"x", [], {}, (), [1, 2], {"a": 1}, object(), int,
    True, 2 + 3j, range(3), iter([]), np.array([1.0, np.nan]), np.ones((2, 2)), [object()] * 3, sys,
    type, Nasty(), [Nasty()], IN_ITSELF, raising(ValueError("no")), raising(SystemExit(3)),
    raising(KeyboardInterrupt()), raising(BaseException()), changing, lambda *given: None,
    lambda *given: given, lambda *given: Nasty(), lambda: 1, lambda *given: 1, lambda *given: "x",
    lambda *given: (1, 2, 3), lambda *given: [None, 1, 2], lambda *given: np.ones(3),
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.usefixtures("ranks_of_the_notebook")
@each_marked
def test_junk_ends_in_a_sentence_and_never_passes(exercise: Exercise) -> None:
    """Whatever is handed in, nothing is raised, nothing passes, and the solution passes afterwards,
    also if the junk overwrote what a check gave it.
    """
    for junk in JUNK:
        result = lessons.check(exercise.id, junk)
        assert result.state in ("wrong", "not attempted"), result.message
        assert result.message or result.state == "not attempted"
    if exercise.id not in SLOW:  # whose solutions take up to half a minute
        assert_passes(exercise, exercise.solution)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.just(...),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(max_size=2), inner)
    ),
    max_leaves=6,
)


@pytest.mark.slow
@each_exercise
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(value=VALUES, returned=st.booleans())
def test_any_value_ends_in_a_state(exercise: Exercise, value: Any, returned: bool) -> None:
    """A value, or a function that returns it, ends in a state, and a wrong one is explained."""
    answer = (lambda *given, **named: value) if returned else value
    result = lessons.check(exercise.id, answer)
    assert result.state in ("passed", "wrong", "not attempted")
    assert result.message or result.state == "not attempted"


def doubles(answer: Any) -> str:
    """The check of an exercise of one's own: the function has to double its argument."""
    if answer(4) != 8:
        raise Refused("4 should give 8.")
    return "8 is twice 4."


OWN = Exercise("91.2", "twice", "f", "f = ...", "", ("Add.",), doubles, (), limit_seconds=60.0)


def endless(x: int) -> int:
    """A loop without an end."""
    while True:
        x += 1


def stubborn(x: int) -> int:
    """A loop that no Exception ends."""
    while True:
        try:
            time.sleep(0.001)
        except Exception:
            continue


@pytest.mark.parametrize("answer", [endless, stubborn])
def test_a_loop_without_an_end_is_ended(answer: Any) -> None:
    """An endless answer is ended at the exercise's time limit, and its thread is gone."""
    before = set(threading.enumerate())
    result = lessons.check(dataclasses.replace(OWN, limit_seconds=0.3), answer)
    assert (result.state, "0.3 s" in result.message) == ("wrong", True)
    assert set(threading.enumerate()) <= before
    assert lessons.check(OWN, lambda x: 2 * x).state == "passed"


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timer sends a signal here")
def test_the_stop_button_ends_the_check_and_the_answer() -> None:
    """An interrupted answer is not attempted, nothing is raised, and its thread is gone."""
    before, threads = signal.signal(signal.SIGALRM, signal.default_int_handler), []

    def forever(x: int) -> int:
        threads.append(threading.current_thread())
        signal.setitimer(signal.ITIMER_REAL, 0.02)
        return endless(x)

    try:
        result = lessons.check(OWN, forever)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert (result.state, threads[0].is_alive()) == ("not attempted", False)


def test_an_error_in_an_answer_is_shown_with_its_line() -> None:
    """The type, a short message and the learner's own line, even if a library raised the error."""

    def singular(x: int) -> Any:
        return np.linalg.inv(np.zeros((2, 2)))

    message = lessons.check("03.11", lambda *given: singular(1)).message
    assert "LinAlgError" in message
    assert f"line {singular.__code__.co_firstlineno + 1}: `return np.linalg.inv" in message
    assert len(lessons.check("03.11", raising(ValueError("x" * 10_000))).message) < 500


@pytest.mark.parametrize("id", ["02.22", "2.2", "", None, 5, b"02.2"])
def test_an_unknown_exercise_is_named(id: Any) -> None:
    """Check does not raise; hint and solution say which ids there are."""
    assert lessons.check(id, 5).state == "not attempted"
    for function in (lessons.hint, lessons.solution):
        with pytest.raises(InputError, match=r"02\.2"):
            function(id)
