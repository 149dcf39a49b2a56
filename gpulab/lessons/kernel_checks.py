"""Check a learner's kernel in the microscope: findings first, then results, then counts.

The microscope runs on any machine and finds errors that may stay unnoticed on a GPU, so a right
answer is right everywhere.
"""

from __future__ import annotations

import ast
import textwrap
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpulab.errors import InputError, KernelError
from gpulab.kernels import Finding, Simulation, simulate
from gpulab.kernels.simulation.source import plain_function, read_source
from gpulab.lessons import checking
from gpulab.lessons.content import NotAttempted, Refused
from gpulab.units import plural

# A right answer takes some hundred statements, and one thread that does all the work takes 10,000.
# A kernel that takes more is refused as endless, with its line, before the check's own time limit.
_MOST_STEPS = 20_000
_WORDS = {
    "bounds": "It accesses an element out of an array's bounds.",
    "race": "There is a race: two threads access one element without synchronization, so the "
    "result is undefined.",
    "barrier": "A barrier is not reached by all threads of its block, so on a GPU the block may "
    "hang or give wrong results.",
    "exception": "It raises an exception.",
    "uninitialised": "It reads shared memory that nothing was written to.",
    "shuffle": "A shuffle or a vote involves a lane that does not take part.",
}


# The lanes that must be active in a warp on average: a kernel with few active lanes would also
# touch few sectors. The last rows and columns may leave some lanes idle, but not half of them.
LEAST_LANES = 16


@dataclass(frozen=True)
class Trial:
    """One launch that a learner's kernel must pass.

    Attributes
    ----------
    grid, block : int or tuple of int
    arguments : tuple
        Fresh for this trial.
    expected : mapping of int to ndarray
        The required content afterwards, by position of the argument.
    words : str
        The name of the case in a refusal: "for 1,000 elements".
    tolerance : float
        Relative to the largest expected value; 0 requires equality.
    """

    grid: Any
    block: Any
    arguments: tuple[Any, ...]
    expected: Mapping[int, np.ndarray]
    words: str
    tolerance: float = 0.0


def run_trials(answer: Any, stub: str, trials: Callable[[], Sequence[Trial]]) -> list[Simulation]:
    """Run the learner's kernel in each trial; return the simulations with their counts.

    Raises
    ------
    NotAttempted
        If it is the stub.
    Refused
        If it cannot run, has a finding, changes an input, or gives wrong results.
    """
    if checking.is_stub(answer):
        raise NotAttempted
    if not isinstance(plain_function(answer), types.FunctionType):
        raise Refused(
            f"Your answer is {checking.describe(answer)}; the check expects a kernel: the "
            "function, not its call."
        )
    try:
        source = read_source(answer)
    except KernelError as error:
        raise Refused(f"The microscope cannot read it: {error}") from error
    given = ast.parse(textwrap.dedent(stub)).body[-1]
    assert isinstance(given, ast.FunctionDef)
    names = [argument.arg for argument in given.args.args]
    if _body(source.text.tree) in ([], _body(given)):
        raise NotAttempted
    if len(source.text.parameters) != len(names):
        raise Refused(
            f"It takes {plural(len(source.text.parameters), 'argument')}; it is launched with "
            f"{len(names)}: {', '.join(names)}."
        )
    alone = [ast.unparse(n) for n in ast.walk(source.text.tree) if isinstance(n, ast.Expr)]
    for words in {"cuda.syncthreads", "cuda.syncwarp"}.intersection(alone):
        raise Refused(f"`{words}` is not called, so it does nothing: write {words}().")
    return [_run(answer, trial, names) for trial in trials()]


def _body(tree: ast.FunctionDef) -> list[str]:
    """Return the statements as text, without positions, comments, docstrings and ``...``."""
    return [
        ast.dump(node)
        for node in tree.body
        if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
    ]


def _run(answer: Any, trial: Trial, names: Sequence[str]) -> Simulation:
    given = {k: each.copy() for k, each in enumerate(trial.arguments) if k not in trial.expected}
    try:
        found = simulate(answer, trial.grid, trial.block, *trial.arguments, max_steps=_MOST_STEPS)
    except (KernelError, InputError) as error:
        raise Refused(f"The microscope cannot run it {trial.words}: {error}") from error
    if found.findings:
        raise Refused(_sentence(found.findings, trial))
    for number, before in given.items():
        if not np.array_equal(trial.arguments[number], before):
            raise Refused(
                f"Your kernel changes {names[number]}, which other code may still need; only "
                f"{' and '.join(names[k] for k in trial.expected)} may change."
            )
    for number, expected in trial.expected.items():
        _compare(trial, np.asarray(trial.arguments[number]), expected)
    return found


def _sentence(findings: Sequence[Finding], trial: Trial) -> str:
    first = min(findings, key=lambda finding: list(_WORDS).index(finding.kind))
    said = (
        "It reads a variable that has no value in some threads."
        if first.kind == "uninitialised" and not first.index
        else _WORDS[first.kind]
    )
    return f"{said} {trial.words[0].upper()}{trial.words[1:]}: {first}"


def _compare(trial: Trial, given: np.ndarray, expected: np.ndarray) -> None:
    room = trial.tolerance * float(np.abs(expected).max(initial=0.0))
    wrong = ~(np.abs(given.astype(np.float64) - expected) <= room)
    if wrong.any():
        place = tuple(int(k) for k in np.argwhere(wrong)[0])
        where = place[0] if len(place) == 1 else place
        raise Refused(
            f"The result is wrong {trial.words}: {int(wrong.sum()):,} of {wrong.size:,} elements. "
            f"The first is element {where}: {given[place]:g}, and {expected[place]:g} is right."
        )


def totals(simulations: Sequence[Simulation], name: str) -> int:
    """Return the sum of a count over all trials."""
    return int(sum(getattr(s.totals, name) for s in simulations))


def halves(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Return random multiples of 0.5 as float32: their sums and products are exact, so results can
    be compared for equality, and a tile of whole numbers would lose the fractions.
    """
    return rng.integers(-9, 10, shape).astype(np.float32) / 2


def held(like: np.ndarray) -> np.ndarray:
    """Return an array for results that is filled with other numbers, so that elements that are not
    written can be detected.
    """
    return np.full_like(like, 77)
