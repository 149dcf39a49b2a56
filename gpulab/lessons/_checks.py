"""Checked exercises: explain a wrong answer, accept any right one, never raise."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

from gpulab.errors import InputError, shown
from gpulab.lessons import _answers, _store, checking, content
from gpulab.lessons.content import Exercise, NotAttempted, Nothing, Refused
from gpulab.results import Result

PASSED, WRONG, NOT_ATTEMPTED = "passed", "wrong", "not attempted"


@dataclass(frozen=True)
class CheckResult(Result):
    """The result of a check.

    Attributes
    ----------
    id : str
    state : str
        "passed", "wrong" or "not attempted".
    message : str
        Why it is right, or what is wrong with it.
    """

    id: str
    state: str
    message: str

    def __str__(self) -> str:
        mark = {PASSED: "passed", WRONG: "not yet", NOT_ATTEMPTED: "not attempted yet"}[self.state]
        return f"{self.id} {mark}{': ' + self.message if self.message else '.'}"

    def _ipython_display_(self) -> None:
        """Show the result at the end of a cell, once: ``check`` has just printed it."""
        global _just_printed
        if _just_printed is None or _just_printed[0] is not self or _just_printed[1] != _cell():
            print(self)
        _just_printed = None


_just_printed: tuple[CheckResult, int | None] | None = None  # and the cell that it stands below


def _cell() -> int | None:
    """Return the number of the cell that runs; None outside of IPython, which who has cells has
    imported.
    """
    ipython = sys.modules.get("IPython")
    count = getattr(ipython.get_ipython(), "execution_count", None) if ipython is not None else None
    return count if isinstance(count, int) else None


def check(id: str | Exercise, answer: Any = None) -> CheckResult:
    """Check an answer, print the result and keep it; never raises.

    Parameters
    ----------
    id : str or Exercise
        The exercise, such as "02.2"; or one of your own, made with
        ``gpulab.lessons.content.Exercise``.
    answer : any
        What the stub asks for: a number, a function, a measurement.

    Returns
    -------
    CheckResult
        ``state`` is "passed", "wrong" or "not attempted".
    """
    global _just_printed
    try:
        exercise = id if isinstance(id, Exercise) else content.exercise(id)
    except InputError as error:
        result = CheckResult(
            id if isinstance(id, str) else shown(id, 40), NOT_ATTEMPTED, str(error)
        )
    else:
        result = _examine(exercise, answer)
        if result.state != NOT_ATTEMPTED:
            _keep(result, exercise, answer)
    print(result)
    _just_printed = result, _cell()
    return result


def _examine(exercise: Exercise, answer: Any) -> CheckResult:
    try:
        if checking.is_stub(answer):
            return CheckResult(exercise.id, NOT_ATTEMPTED, "")
        checking.load(exercise.loads)
        praise = checking.run(lambda: exercise.check(answer), exercise.limit_seconds)
    except Nothing as nothing:
        return (
            CheckResult(exercise.id, NOT_ATTEMPTED, "")
            if _is_stub(answer, exercise)
            else CheckResult(exercise.id, WRONG, str(nothing))
        )
    except NotAttempted as missing:
        return CheckResult(exercise.id, NOT_ATTEMPTED, str(missing))
    except Refused as refusal:
        return CheckResult(exercise.id, WRONG, str(refusal))
    except KeyboardInterrupt:
        return CheckResult(
            exercise.id, NOT_ATTEMPTED, "The check was interrupted; run the cell again."
        )
    except Exception as error:
        # an answer that breaks the check is wrong, and the learner is told how
        why = checking.explain(error)
        text = (
            f"The check cannot use {checking.describe(answer)}: {why}. The question says what kind "
            "of answer it expects."
        )
        return CheckResult(exercise.id, WRONG, text)
    return CheckResult(exercise.id, PASSED, praise)


def _is_stub(function: Any, exercise: Exercise) -> bool:
    """Return whether a function has the stub's body; a stub of one's own may be no Python."""
    try:
        parts = compile(exercise.stub, "stub", "exec").co_consts
    except SyntaxError:
        return False
    stub = next(
        (part for part in parts if getattr(part, "co_name", "") == exercise.answer_name), None
    )
    code = getattr(function, "__code__", None)
    return (
        code is not None
        and stub is not None
        and (code.co_code, code.co_names) == (stub.co_code, stub.co_names)
    )


def _keep(result: CheckResult, exercise: Exercise, answer: Any) -> None:
    kept = _answers.keep(answer, exercise.answer_is_file)
    saw = exercise.seen.get() if exercise.seen is not None else None
    seen = None if saw is None else _answers.keep_result(saw)

    def edit(content: dict[str, Any]) -> None:
        entry = content["exercises"].setdefault(result.id, {})
        entry["attempts"] = entry.get("attempts", 0) + 1
        entry["last"] = {"state": result.state, "date": _store.now()}
        # passed once stays passed, with the answer that passed
        if entry.get("state") != PASSED or result.state == PASSED:
            entry["state"] = result.state
            entry["kept"] = kept
            entry["seen"] = seen

    _store.change(edit)


def hint(id: str) -> None:
    """Print the next hint of an exercise; each call gives a further hint.

    Parameters
    ----------
    id : str
        The exercise, such as "02.2".

    Raises
    ------
    InputError
        If there is no such exercise.
    """
    exercise = content.exercise(id)
    shown = _hints_given(id)
    number = min(shown + 1, len(exercise.hints))
    print(f"{id} hint {number} of {len(exercise.hints)}: {exercise.hints[number - 1]}")
    if shown >= len(exercise.hints):
        print(f"That was the last one{_way_on(id)}")
    _store.change(lambda kept: kept["exercises"].setdefault(id, {}).update(hints=number))


def solution(id: str) -> None:
    """Print a solution of an exercise, unless the class's instructor withholds it.

    Parameters
    ----------
    id : str
        The exercise, such as "02.2".

    Raises
    ------
    InputError
        If there is no such exercise.
    """
    exercise = content.exercise(id)
    policy = _store.policy()
    hints_left = _hints_given(id) < len(exercise.hints)
    if policy.solutions == "withhold":
        more = (
            "Your instructor opens it; gl.lessons.hint gives a hint."
            if hints_left
            else "Your instructor opens it."
        )
        print(f"{id}: the solution is withheld. {policy.message or more}")
        return
    if policy.solutions == "after-attempt" and not _attempted(id):
        more = f"Try gl.lessons.hint({id!r})." if hints_left else ""
        print(
            f"{id}: the solution opens after your first attempt. {policy.message or more}".rstrip()
        )
        return
    print(f"# One solution of {id}, {exercise.title}:\n{exercise.solution.strip()}")
    _store.change(lambda kept: kept["exercises"].setdefault(id, {}).update(solution_shown=True))


def _way_on(id: str) -> str:
    """Return how the last hint's sentence ends: with the solution, or with who opens it."""
    policy = _store.policy()
    if policy.solutions == "withhold":
        return f"; your instructor opens the solution. {policy.message}".rstrip()
    if policy.solutions == "after-attempt" and not _attempted(id):
        return f"; the solution opens after your first attempt. {policy.message}".rstrip()
    return f". gl.lessons.solution({id!r}) shows a solution."


def _hints_given(id: str) -> int:
    given = _entry(id).get("hints", 0)
    return max(given, 0) if isinstance(given, int) else 0


def _attempted(id: str) -> bool:
    return bool(_entry(id).get("attempts"))


def _entry(id: str) -> dict[str, Any]:
    entry = _store.read()["exercises"].get(id, {})
    return entry if isinstance(entry, dict) else {}
