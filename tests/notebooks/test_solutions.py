"""Every exercise as the learner meets it: the stub is no attempt, the solution passes, each usual wrong answer gets its own message."""

from __future__ import annotations

import ast
import builtins
import json
import linecache
import pathlib
import sys
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from forked_ranks import Forks
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpulab import arrays, lessons, models, parallel
from gpulab.errors import CopyRequiredError, RankError
from gpulab.evidence import Evidence
from gpulab.hierarchy import Latency, LatencyPoint
from gpulab.lessons import _answers, _architecture, _density, _material, _nb08_export, _nb08_ring, content
from gpulab.lessons._regrade import Regrader
from gpulab.lessons.content import Exercise, Usual
from gpulab.training import _scripts
from gpulab.training._evaluate import Answers

EXERCISES = [exercise for lesson in content.lessons() for exercise in lesson.exercises.values()]
# The exercise whose answers run on real ranks, and the one whose answers are scripts for torchrun.
ON_RANKS, UNDER_TORCHRUN = "08.3", "08.15"
# Libraries whose first import takes a second or more on a crowded machine.
HEAVY = {"torch", "torchao", "sklearn", "scipy", "numba", "cupy", "triton", "pandas", "PIL", "ipyparallel"}


def _returns(exercise: Exercise) -> bool:
    """Whether the answer is a function that returns something: a kernel does not, nor does what trains a model."""
    ours = [f for f in ast.parse(exercise.solution).body if isinstance(f, ast.FunctionDef) and f.name == exercise.answer_name]
    return any(isinstance(node, ast.Return) and node.value is not None for function in ours for node in ast.walk(function))


RETURNING = [exercise for exercise in EXERCISES if _returns(exercise)]
# Those whose function is called for one case after another, each of its own.
SEVERAL_CASES = ("00.9", "02.5", "03.8", "03.11", "05.3", "05.7", "06.9", "07.2", "07.6", "07.10", "07.11", "08.10", "10.6")
USUAL = [(exercise, usual) for exercise in EXERCISES for usual in exercise.usual]


@pytest.fixture(autouse=True)
def own_progress(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test writes the learner's progress; the contest of sizes is one whose answer is known by reading it."""
    monkeypatch.setenv("GPULAB_PROGRESS", str(tmp_path / "progress.json"))
    monkeypatch.setenv("GPULAB_LOCK_DIR", str(tmp_path))
    monkeypatch.delenv("GPULAB_SOLUTIONS", raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(_material._contests, ("matmul", "float32"), CONTEST)
    monkeypatch.setattr(_architecture, "_curve", CURVE)
    monkeypatch.setattr(_density, "_kept", ROOF)


@pytest.fixture(scope="module")
def started_ranks() -> Iterator[Any]:
    """Four ranks, as notebook 08 has them open; what the check imports on them is there, or the first one waited for it."""
    with parallel.cluster(4, timeout_seconds=5.0) as ranks:
        ranks.run(_nb08_ring.probe, lambda x, rank, n: x, ())
        yield ranks


@pytest.fixture(autouse=True)
def ranks_of_the_notebook(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a check works on the learner's ranks, and the answer reaches them, there are some."""
    exercise = request.node.callspec.params.get("exercise") if hasattr(request.node, "callspec") else None
    if exercise is not None and exercise.id == ON_RANKS and "junk" not in request.node.name and "no_value" not in request.node.name:
        monkeypatch.setattr(sys.modules["__main__"], "ranks", request.getfixturevalue("started_ranks"), raising=False)


@pytest.fixture(scope="module")
def forks() -> Iterator[Forks]:
    """What stands in for torchrun, the libraries loaded once."""
    with Forks() as started:
        yield started


@pytest.fixture(autouse=True)
def torchrun_of_wrong_answers(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The solution's script is started by torchrun, on two ranks and on one; those of usual wrong answers run on ranks that are forked."""
    given = request.node.callspec.params if hasattr(request.node, "callspec") else {}
    if "usual" in given and given["exercise"].id == UNDER_TORCHRUN and sys.platform == "linux":
        monkeypatch.setattr(_nb08_export, "_run", request.getfixturevalue("forks").run)


BEGINNERS: dict[int, Answers] = {}


@pytest.fixture(autouse=True)
def beginners_script_is_trained_once(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """09.11: what an answer is held against learns the same each time, by its seed; and what is a value starts no thread to wait for."""
    trained = _scripts._Script.trained

    def once(one: _scripts._Script, seed: int) -> Answers:
        if one.script is not lessons.beginners_script:
            return trained(one, seed)
        if seed not in BEGINNERS:
            BEGINNERS[seed] = trained(one, seed)
        return BEGINNERS[seed]

    monkeypatch.setattr(_scripts._Script, "trained", once)
    if "junk" in request.node.name or "no_value" in request.node.name:
        monkeypatch.setattr(_scripts, "_WATCHED_SECONDS", 0.0)


# n, CPU, accelerator, with copies: the CPU wins at 32 and 64, only the copies stop the accelerator at 128, it wins from 256 on.
_TIMES = (
    (32, 1e-6, 5e-6, 5e-5),
    (64, 4e-6, 5e-6, 5e-5),
    (128, 3e-5, 6e-6, 5e-5),
    (256, 2e-4, 7e-6, 6e-5),
    (512, 2e-3, 2e-5, 1e-4),
    (1024, 2e-2, 1e-4, 5e-4),
)
ROWS = tuple(_material.ContestRow(n, cpu, 1e-6, done, copies) for n, cpu, done, copies in _TIMES)
CONTEST = _material.Contest(
    "matmul float32", "rows", "an example", ROWS, Evidence.modelled("nothing", "this test"), Evidence.measured("A CPU")
)

# 100 GFLOP/s over 20 GB/s: the ridge is at 5 FLOP a byte.
_SAID = ("an example", Evidence.measured("A CPU"))
ROOF = models.Roofline(
    "A CPU",
    (models.ArithmeticRoof("float32", 1e11, *_SAID),),
    (models.MemoryRoof("DRAM", 2e10, float("inf"), *_SAID),),
    (),
    (),
    _SAID[1],
)

# A machine with 32 KiB, 512 KiB and 8 MiB of cache: 2, 5, 15 and 90 ns a hop.
_HOPS = tuple((2**k, 2 if k <= 15 else 5 if k <= 19 else 15 if k <= 23 else 90) for k in range(12, 27))
_POINTS = tuple(LatencyPoint(n, t * 1e-9, None, t * 1e-9, 5, 1) for n, t in _HOPS)
CURVE = Latency("A CPU", "python", _POINTS, None, (), (), Evidence.measured("A CPU"), None)


def _answer(exercise: Exercise, source: str) -> object:
    """Run a source as a notebook's cell does and return the answer that it defines."""
    names: dict[str, object] = {"__name__": "__main__"}
    file = f"<{exercise.id}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)  # a kernel's text is found, as in a notebook
    exec(compile(source, file, "exec"), names)
    return names[exercise.answer_name]


@pytest.mark.parametrize("exercise", EXERCISES, ids=lambda exercise: exercise.id)
def test_the_stub_is_not_attempted(exercise: Exercise):
    """An unanswered stub runs and counts as no attempt; nothing is said about it."""
    result = lessons.check(exercise.id, _answer(exercise, exercise.stub))
    assert (result.state, result.message) == ("not attempted", "")


# Those whose answer is several parts, which a learner fills in one after the other.
PARTS = (
    "01.3", "01.6", "01.7", "01.9", "02.9", "03.3", "03.10", "05.11", "05.13", "06.4", "06.5", "06.12", "07.5", "08.8", "08.12", "08.14",
    "09.3", "09.7",
)  # fmt: skip


def _without_the_last(answer: Any) -> Any:
    """An answer whose last part still holds the stub's dots."""
    if isinstance(answer, dict):
        return {**answer, list(answer)[-1]: ...}
    return type(answer)([*answer[:-1], ...])


@pytest.mark.parametrize("exercise", [each for each in EXERCISES if each.id in PARTS], ids=lambda exercise: exercise.id)
def test_an_answer_that_is_filled_in_by_half_is_no_attempt(exercise: Exercise):
    """Checked between two parts, with the right ones before it, and between the two halves of a part."""
    answer: Any = _answer(exercise, exercise.solution)
    halves = [_without_the_last(answer)]
    if isinstance(answer, dict):
        last = list(answer)[-1]
        halves += [{**answer, last: _without_the_last(answer[last])}] if isinstance(answer[last], (tuple, list)) else []
    for half in halves:
        result = lessons.check(exercise.id, half)
        assert (result.state, result.message) == ("not attempted", ""), half


def _watched(exercise: Exercise, answer: object, monkeypatch: pytest.MonkeyPatch) -> tuple[lessons.CheckResult, set[str]]:
    """Check an answer; return also the libraries that gpulab imports while the check's time runs."""
    load = builtins.__import__
    asked: set[str] = set()

    def importing(name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0) -> Any:
        ours = str((globals or {}).get("__name__", "")).startswith("gpulab")
        if level == 0 and ours and threading.current_thread().name == "gpulab-check":
            asked.add(name.partition(".")[0])
        return load(name, globals, locals, fromlist, level)

    with monkeypatch.context() as watched:
        watched.setattr(builtins, "__import__", importing)
        return lessons.check(exercise.id, answer), asked


@pytest.mark.parametrize("exercise", EXERCISES, ids=lambda exercise: exercise.id)
def test_the_solution_passes(exercise: Exercise, monkeypatch: pytest.MonkeyPatch):
    """The solution, put in the stub's place, passes on this machine; the heavy libraries that the check asks for were loaded before."""
    result, asked = _watched(exercise, _answer(exercise, exercise.solution), monkeypatch)
    assert result.state == "passed", result.message
    assert result.message  # why it is right
    assert asked & HEAVY <= {name.partition(".")[0] for name in exercise.loads}


def test_a_contest_that_nobody_saw_has_its_library_loaded_before(monkeypatch: pytest.MonkeyPatch):
    """00.7 in a kernel that was restarted: the check measures the contest itself, and PyTorch's import is not the learner's time."""
    monkeypatch.setattr(_material, "_contests", {})
    monkeypatch.setattr(_material, "_CONTEST_SIZES", {"matmul": (8,)})
    monkeypatch.setattr(_material, "_POINT_SECONDS", 0.01)
    exercise = content.exercise("00.7")
    result, asked = _watched(exercise, 9, monkeypatch)
    assert "9 is not in the table; the check expects one of 8" in result.message
    assert "torch" in asked
    assert asked & HEAVY <= set(exercise.loads)


@pytest.mark.parametrize("exercise", RETURNING, ids=lambda exercise: exercise.id)
def test_a_forgotten_return_is_told(exercise: Exercise):
    """A function that does the solution's work and keeps what it found to itself is no attempt, and is told what is missing."""
    solved = _answer(exercise, exercise.solution)

    def forgetful(*args: Any, **named: Any) -> None:
        solved(*args, **named)  # type: ignore[operator]

    result = lessons.check(exercise.id, forgetful)
    assert (result.state, result.message) == ("not attempted", "Your function ran and returned nothing. Does it end with return?")


@pytest.mark.parametrize("exercise", [each for each in RETURNING if each.id in SEVERAL_CASES], ids=lambda exercise: exercise.id)
def test_a_forgotten_case_is_told(exercise: Exercise):
    """A function that answers the first of several cases and no other is an attempt, and is told where it returned nothing."""
    solved, given = _answer(exercise, exercise.solution), []

    def forgetful(*args: Any) -> Any:
        given.append(args)
        return solved(*args) if len(given) == 1 else None  # type: ignore[operator]

    result = lessons.check(exercise.id, forgetful)
    assert len(given) == 2
    assert result.state == "wrong", result.message
    assert result.message.startswith("For ")
    assert result.message.endswith(" your function returned nothing.")


@pytest.mark.parametrize(("exercise", "usual"), USUAL, ids=[f"{e.id}-{k}" for e in EXERCISES for k in range(len(e.usual))])
def test_a_usual_wrong_answer_is_refused_with_its_message(exercise: Exercise, usual: Usual):
    """A usual wrong answer is refused, and the message names this mistake."""
    result = lessons.check(exercise.id, _answer(exercise, usual.source))
    assert result.state == "wrong", result.message
    assert usual.says in result.message


@pytest.mark.skipif(sys.platform != "linux", reason="forks ranks")
def test_a_script_that_fails_on_forked_ranks_fails_as_under_torchrun(forks: Forks, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    """What stands in for torchrun ends the others when a rank has failed, and passes on how that ended and what it said."""
    monkeypatch.setattr(_nb08_export, "_run", forks.run)
    script = tmp_path / "mine.py"
    script.write_text(
        "import os, time\nif os.environ['RANK'] == '1':\n    raise ValueError('no')\n"
        "if os.environ['WORLD_SIZE'] == '2':\n    time.sleep(600)\n"
    )
    with pytest.raises(RankError, match="on 2 processes ended with 1: ValueError: no; expected results"):
        _nb08_export.torchrun(script, 2)
    with pytest.raises(RankError, match="on 1 process ended with 0: nothing was printed"):
        _nb08_export.torchrun(script, 1)


@pytest.mark.parametrize("library", ["cupy", "jax"])
def test_an_array_that_only_a_third_library_refuses_is_told_the_truth(library: str):
    """02.9: CuPy and JAX refuse a plain float64 array, PyTorch does not: whether it is right never depends on what else is installed."""
    pytest.importorskip(library)
    a, third = np.zeros(4), np.zeros(4)
    with pytest.raises(CopyRequiredError):
        arrays.share(third, library)
    found = lessons.check("02.9", (a, arrays.share(a, "torch"), third))
    assert found.state == "wrong"
    assert "With torch the third can be shared" in found.message
    assert "numpy" not in found.message


def test_one_of_the_two_libraries_may_be_jax():
    """02.9: the third is held against the first two's libraries: JAX has no float64 by default, whoever made the array."""
    pytest.importorskip("jax")
    tensor = torch.zeros(4)
    pair = (tensor, arrays.share(tensor, "jax"))
    for third in (torch.zeros(4, dtype=torch.float64), np.zeros(4)):
        assert lessons.check("02.9", (*pair, third)).state == "passed"


@pytest.mark.parametrize("exercise", EXERCISES, ids=lambda exercise: exercise.id)
def test_usual_wrong_answers_have_messages_of_their_own(exercise: Exercise):
    """At least three different mistakes of an exercise are told apart."""
    assert len({usual.says for usual in exercise.usual if usual.says}) >= 3


@pytest.mark.parametrize("exercise", EXERCISES, ids=lambda exercise: exercise.id)
def test_there_are_hints_that_say_more_each_time(exercise: Exercise):
    """At least two hints, none given twice."""
    assert len(set(exercise.hints)) == len(exercise.hints) >= 2


_JUNK = (
    0, -1, 1e308, float("nan"), "", "A" * 5000, b"x", [], {}, (), [1, 2], {"a": 1}, object(), int, True, 2 + 3j, range(3), iter([]),
    np.array([1.0, np.nan]), np.ones((2, 2)), [object()] * 3,
    lambda: 1, lambda *a: 1, lambda *a: "x", lambda *a: (1, 2, 3), lambda *a: [None, 1, 2], lambda *a: np.ones(3), lambda *a: np.ones(2),
)  # fmt: skip


@pytest.mark.parametrize("exercise", EXERCISES, ids=lambda exercise: exercise.id)
def test_junk_is_never_an_error_and_never_passes(exercise: Exercise):
    """Whatever is handed in, the check ends with a sentence; none of it passes."""
    for junk in _JUNK:
        result = lessons.check(exercise.id, junk)
        assert result.state != "passed", (junk, result.message)


def test_ids_follow_the_notebooks_order():
    """Predictions and exercises of a notebook share one running number without gaps."""
    for lesson in content.lessons():
        number = lesson.notebook[:2]
        assert lesson.ids == [f"{number}.{k}" for k in range(1, len(lesson.ids) + 1)]
        assert len(lesson.questions) >= 4
        assert len(lesson.exercises) >= 4


_ANSWERS = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.complex_numbers()
    | st.text(max_size=8)
    | st.binary(max_size=4)
    | st.just(...),
    lambda inner: (
        st.lists(inner, max_size=3) | st.tuples(inner, inner) | st.tuples(inner, inner, inner) | st.dictionaries(st.text(max_size=2), inner)
    ),
    max_leaves=6,
)


@pytest.mark.parametrize("exercise", EXERCISES, ids=lambda exercise: exercise.id)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(value=_ANSWERS, wrapped=st.booleans())
def test_no_value_and_no_returned_value_raises(exercise: Exercise, value: object, wrapped: bool):
    """A value, or a function that returns it whatever it is given, ends in one of the three states with a sentence for the wrong ones."""
    answer = (lambda *args, **named: value) if wrapped else value
    result = lessons.check(exercise.id, answer)
    assert result.state in ("passed", "wrong", "not attempted")
    assert result.message or result.state == "not attempted"


# Checks that start processes or predict the memory of large models take 10 to 40 seconds in a process that has not loaded anything yet.
SLOW_AGAIN = {"03.8", "05.9", "06.12", "08.3", "08.12", "08.15"}
KEPT = [exercise for exercise in EXERCISES if not exercise.unkept]
AGAIN = [
    (exercise, number)
    for exercise in KEPT
    for number in range(-1, len(exercise.usual))
    if number < 1 and (exercise.id not in SLOW_AGAIN or number < 0)
]


@pytest.fixture(scope="module")
def grader() -> Iterator[Any]:
    """The process that checks answers again."""
    with Regrader() as ask:
        yield ask


def _again(grader: Any, exercise: Exercise, number: int, tmp_path: pathlib.Path) -> tuple[dict[str, Any], dict[str, str]]:
    """Keep the solution (-1) or a usual wrong answer as a check does, through JSON text, and check it in another process."""
    source = exercise.solution if number < 0 else exercise.usual[number].source
    answer = _answer(exercise, source)
    kept = json.loads(json.dumps(_answers.keep(answer, exercise.answer_is_file), allow_nan=False))
    saw = None if exercise.seen is None else _answers.keep_result(exercise.seen.get())
    job = {"id": exercise.id, "kept": kept, "seen": saw, "seconds": exercise.limit_seconds, "memory_bytes": 2 * 2**30, "run_code": True}
    return kept, grader(job)


def _judge_again(grader: Any, exercise: Exercise, number: int, tmp_path: pathlib.Path) -> None:
    kept, outcome = _again(grader, exercise, number, tmp_path)
    if exercise.answer_is_file and kept["kind"] == "nothing":  # the usual wrong answer is that there is no such file
        assert outcome["state"] == "open"
        return
    assert outcome["state"] == ("passed" if number < 0 else "wrong"), outcome
    assert number < 0 or exercise.usual[number].says in outcome["message"]


@pytest.mark.parametrize(
    ("exercise", "number"),
    [(e, k) for e, k in AGAIN if e.id not in SLOW_AGAIN],
    ids=[f"{e.id}-{k}" for e, k in AGAIN if e.id not in SLOW_AGAIN],
)
def test_a_kept_answer_is_judged_alike_in_a_fresh_process(grader: Any, exercise: Exercise, number: int, tmp_path: pathlib.Path):
    """From its kept form alone the solution passes and a usual wrong answer is refused; what a machine gave comes along with it."""
    _judge_again(grader, exercise, number, tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize(
    ("exercise", "number"), [(e, k) for e in KEPT for k in range(-1, len(e.usual)) if (e, k) not in AGAIN or e.id in SLOW_AGAIN]
)
def test_every_kept_answer_is_judged_alike_in_a_fresh_process(grader: Any, exercise: Exercise, number: int, tmp_path: pathlib.Path):
    """All the others; in the suite the first usual wrong answer of each exercise stands for them."""
    _judge_again(grader, exercise, number, tmp_path)
