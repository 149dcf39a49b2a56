"""Checked exercises: explain a wrong answer, accept any right one, never raise.

A learner's code runs in a thread of its own. When its time limit is reached, an exception is raised
inside it; a loop that catches even that continues in the background, and the message says so.
"""

from __future__ import annotations

import contextlib
import contextvars
import ctypes
import dis
import importlib
import math
import os
import sys
import sysconfig
import threading
import time
import traceback
import types
from collections.abc import Callable
from concurrent import futures
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gpulab.errors import InputError, kind_of, message_of, shown
from gpulab.lessons import _answers, _progress, content
from gpulab.lessons.content import Exercise, NotAttempted, Nothing, Refused
from gpulab.results import Result

PASSED, WRONG, NOT_ATTEMPTED = "passed", "wrong", "not attempted"
# A pure-Python loop notices the exception within a switch interval (5 ms); two tries of a second
# cover long C calls.
_GRACE_SECONDS = 1.0
_POLL_SECONDS = 0.05
_PACKAGE = f"{Path(__file__).resolve().parents[1]}{os.sep}"
# Folders of Python and of installed packages. If a call in the learner's code fails inside them,
# the line to report is the one with the call.
_INSTALLED = (
    *(
        f"{sysconfig.get_path(kind)}{os.sep}"
        for kind in ("stdlib", "platstdlib", "purelib", "platlib")
    ),
    "<frozen",
)
# Characters of the message of a learner's exception that are shown: a sentence or two.
_LONGEST = 160
_SHORT = 40  # characters of a value that is shown beside its type
# The instructions of a function without a body in this version of Python. A line of dots compiles
# to NOP.
_NOTHING = {step.opname for step in dis.get_instructions(lambda: None)} | {"NOP"}


class _TimeIsUpError(BaseException):
    """Raised inside the learner's thread; not an Exception, so that ``except Exception`` lets it
    pass.
    """


def run(work: Callable[[], Any], limit_seconds: float) -> Any:
    """Return ``work()``, or raise ``Refused`` if it takes longer than the limit.

    Raises
    ------
    Refused
        If the time limit is reached, or the code called ``sys.exit``.
    NotAttempted
        If the learner interrupted the check and the code could not be ended.
    Exception
        Whatever the work raised.
    """
    outcome: futures.Future[Any] = futures.Future()

    def target() -> None:
        try:
            outcome.set_result(work())
        except BaseException as error:  # from the learner's code: handled below
            outcome.set_exception(error)

    context = contextvars.copy_context()  # so that prints of the learner's code reach this cell
    thread = threading.Thread(target=lambda: context.run(target), name="gpulab-check", daemon=True)
    goes_on = "could not be ended and continues in the background: restart the kernel."
    try:
        thread.start()
        in_time = _wait(thread, outcome, limit_seconds)
    except KeyboardInterrupt:
        if _end(thread, outcome):
            raise
        raise NotAttempted(f"The check was interrupted, but your code {goes_on}") from None
    if not in_time:
        rest = "" if _end(thread, outcome) else f" It {goes_on}"
        raise Refused(
            f"Your code did not finish within {limit_seconds:g} s. Does it contain an endless "
            f"loop?{rest}"
        )
    error = outcome.exception()
    if error is not None and not isinstance(error, Exception):
        ending = (
            "called exit" if isinstance(error, SystemExit) else f"ended with {type(error).__name__}"
        )
        raise Refused(f"Your code {ending}. Return a value instead.")
    return outcome.result()


def _wait(thread: threading.Thread, outcome: futures.Future[Any], seconds: float) -> bool:
    """Return whether the work ended in time. ``outcome`` shows it reliably; Python 3.11 reports a
    thread as ended once a join of it was interrupted.
    """
    deadline = time.monotonic() + seconds
    while not outcome.done() and time.monotonic() < deadline:
        futures.wait([outcome], _POLL_SECONDS)
    if outcome.done():
        # wait for the thread's last lines, so that no thread is left when the check returns
        thread.join(_GRACE_SECONDS)
    return outcome.done()


def _end(thread: threading.Thread, outcome: futures.Future[Any]) -> bool:
    # raise an exception inside the thread, twice if necessary; return whether it ended
    for _ in range(2):
        found = ctypes.pythonapi.PyThreadState_SetAsyncExc(
            ctypes.c_ulong(thread.ident or 0), ctypes.py_object(_TimeIsUpError)
        )
        if not found or _wait(thread, outcome, _GRACE_SECONDS):  # none found: the thread is gone
            return True
    return False


def is_stub(answer: Any) -> bool:
    """Return whether an answer is that of the stub: ``...``, None or NotImplemented, or a container
    of only these.
    """
    if isinstance(answer, (dict, tuple, list)):
        items = list(answer.values()) if isinstance(answer, dict) else answer
        return bool(items) and all(map(is_stub, items))
    return answer is None or answer is Ellipsis or answer is NotImplemented


def is_empty(function: Any) -> bool:
    """Return whether a function is a stub: it uses no argument and no name; a docstring and ``...``
    do not count.
    """
    code = getattr(function, "__code__", None) or getattr(type(function).__call__, "__code__", None)
    return (
        isinstance(code, types.CodeType)
        and {step.opname for step in dis.get_instructions(code)} <= _NOTHING
    )


def call(function: Any, *args: Any, **named: Any) -> Any:
    """Return the learner's ``function(*args)``.

    Raises
    ------
    NotAttempted
        If it is a stub: it returns ``...`` or None, or raises NotImplementedError. The subclass
        ``Nothing`` is raised if a function with a body returns ``...`` or None.
    Refused
        If it is not a function, or if it raises; the message includes the line.
    """
    if is_stub(function):
        raise NotAttempted
    if not callable(function):
        raise Refused(f"Your answer is {describe(function)}; the check expects a function to call.")
    try:
        result = function(*args, **named)
    except NotImplementedError as error:
        raise NotAttempted from error
    except (Refused, NotAttempted):
        raise
    except Exception as error:
        raise Refused(f"Your function raised {explain(error)}.") from error
    if is_stub(result) and not is_empty(function):
        raise Nothing(
            f"Your function ran and returned {'nothing' if result is None else describe(result)}. "
            "Does it return the answer?"
        )
    if is_stub(result):
        raise NotAttempted
    return result


def in_turn(function: Any) -> Callable[..., Any]:
    """Return a function that calls the learner's function with one input after another: ``ask("For
    3 rows", 3)``.

    If the function returns nothing for the first input, it counts as not attempted; if it does so
    later, the refusal names the case.
    """
    results: list[Any] = []

    def ask(where: str, *args: Any) -> Any:
        try:
            results.append(call(function, *args))
        except NotAttempted as nothing:
            if results:
                raise Refused(f"{where} your function returned nothing.") from nothing
            raise
        return results[-1]

    return ask


def listed(value: Any) -> Any:
    """Return the numbers of a one-dimensional NumPy or PyTorch array as a list; anything else as it
    is.
    """
    torch = sys.modules.get("torch")  # without the import, no value is a tensor
    array = isinstance(value, np.ndarray) or (torch is not None and isinstance(value, torch.Tensor))
    return value.tolist() if array and value.ndim == 1 else value


def plain(value: Any) -> Any:
    """Return a NumPy number as Python's own and a whole float as an int; anything else as it is."""
    value = value.item() if isinstance(value, np.generic) else value
    return int(value) if isinstance(value, float) and value.is_integer() else value


def number(answer: Any, what: str) -> float:
    """Return a learner's number as a float.

    Raises
    ------
    NotAttempted, Refused
    """
    if is_stub(answer):
        raise NotAttempted
    try:
        # a tensor with a graph would keep all its activations alive
        if isinstance(answer, (bool, str, bytes)) or getattr(answer, "requires_grad", False):
            raise TypeError("not a plain number")
        value = float(answer)
    except Exception as error:
        raise Refused(
            f"Your answer is {describe(answer)}; the check expects {what}, a plain number."
        ) from error
    if not math.isfinite(value):
        raise Refused(f"Your answer is {value}; the check expects {what}, a finite number.")
    return value


def explain(error: BaseException) -> str:
    """Return a description of an exception: its type, its message and the line of the learner's
    code.
    """
    frames = traceback.extract_tb(error.__traceback__)
    # by the package's full path: the folder around it may also be named gpulab
    theirs = [one for one in frames if not one.filename.startswith((_PACKAGE, *_INSTALLED))]
    where = (
        f" (line {theirs[-1].lineno}{f': `{theirs[-1].line}`' if theirs[-1].line else ''})"
        if theirs
        else ""
    )
    text = message_of(error, _LONGEST)
    return f"{type(error).__name__}{': ' + text if text else ''}{where}"


def describe(value: Any) -> str:
    """Return a short description of any value."""
    text = shown(value, _SHORT + 1)
    return f"{kind_of(value)} ({text})" if len(text) <= _SHORT else kind_of(value)


def load(exercise: Exercise) -> None:
    """Load the libraries and the source of a check before its time limit starts. A library that
    cannot be imported is skipped; the check reports it if it needs the library.
    """
    for name in exercise.loads:
        with contextlib.suppress(Exception):  # the check imports it again and shows its error
            importlib.import_module(name)
    exercise.prepare()


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
        """Show nothing at the end of a cell: ``check`` has printed the result."""


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
    try:
        exercise = id if isinstance(id, Exercise) else content.exercise(id)
        exercise.prepare()  # a file of the course that cannot be read is not the learner's mistake
    except InputError as error:
        name = id if isinstance(id, str) else shown(id, 40)
        result = CheckResult(name, NOT_ATTEMPTED, str(error))
    else:
        result = examine(exercise, answer)
        if result.state != NOT_ATTEMPTED:
            _keep(result, exercise, answer)
    print(result)
    return result


def examine(exercise: Exercise, answer: Any) -> CheckResult:
    """Return what the check says of an answer; nothing is printed or kept."""
    state, message = WRONG, ""
    try:
        if is_stub(answer):
            raise NotAttempted
        load(exercise)
        state, message = PASSED, run(lambda: exercise.check(answer), exercise.limit_seconds)
    except Nothing as nothing:
        if _has_stub_body(answer, exercise):
            state = NOT_ATTEMPTED
        else:
            message = str(nothing)
    except NotAttempted as missing:
        state, message = NOT_ATTEMPTED, str(missing)
    except Refused as refusal:
        message = str(refusal)
    except KeyboardInterrupt:
        state, message = NOT_ATTEMPTED, "The check was interrupted; run the cell again."
    except Exception as error:
        # an answer that breaks the check is wrong, and the learner is told how
        message = (
            f"The check cannot use {describe(answer)}: {explain(error)}. The question says what "
            "kind of answer it expects."
        )
    return CheckResult(exercise.id, state, message)


def _has_stub_body(function: Any, exercise: Exercise) -> bool:
    """Return whether a function has the stub's body."""
    parts = compile(exercise.stub, "stub", "exec").co_consts
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
    saw = content.KEPT.get(exercise.seen.name) if exercise.seen is not None else None
    seen = None if saw is None else _answers.keep(saw).get("value")

    def edit(progress: dict[str, Any]) -> None:
        entry = progress["exercises"].setdefault(result.id, {})
        entry["attempts"] = (entry.get("attempts") or 0) + 1
        entry["last"] = {"state": result.state, "date": _progress.now()}
        # an exercise stays passed after a later wrong answer, with the answer that passed
        if entry.get("state") != PASSED or result.state == PASSED:
            entry["state"] = result.state
            entry["kept"] = kept
            entry["seen"] = seen

    _progress.change(edit)


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
    hints, (policy, message) = content.exercise(id).hints, _progress.policy()
    given, attempted = _so_far(id)
    number = min(given + 1, len(hints))
    print(f"{id} hint {number} of {len(hints)}: {hints[number - 1]}")
    if given >= len(hints):
        way_on = f". gl.lessons.solution({id!r}) shows a solution."
        if policy == "withhold":
            way_on = f"; your instructor opens the solution. {message}"
        elif policy == "after-attempt" and not attempted:
            way_on = f"; the solution opens after your first attempt. {message}"
        print(f"That was the last one{way_on}".rstrip())
    _progress.change(lambda kept: kept["exercises"].setdefault(id, {}).update(hints=number))


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
    exercise, (policy, message) = content.exercise(id), _progress.policy()
    given, attempted = _so_far(id)
    hints_left = given < len(exercise.hints)
    if policy == "withhold":
        more = f"Your instructor opens it{'; gl.lessons.hint gives a hint' if hints_left else ''}."
        print(f"{id}: the solution is withheld. {message or more}")
    elif policy == "after-attempt" and not attempted:
        more = f"Try gl.lessons.hint({id!r})." if hints_left else ""
        text = f"{id}: the solution opens after your first attempt. {message or more}"
        print(text.rstrip())
    else:
        print(f"# One solution of {id}, {exercise.title}:\n{exercise.solution.strip()}")
        _progress.change(
            lambda kept: kept["exercises"].setdefault(id, {}).update(solution_shown=True)
        )


def _so_far(id: str) -> tuple[int, bool]:
    """Return how many hints were given, and whether an answer was checked."""
    entry = _progress.read()["exercises"].get(id, {})
    return entry.get("hints") or 0, bool(entry.get("attempts"))
