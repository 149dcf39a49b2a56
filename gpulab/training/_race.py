"""Two configurations of one task train in turn, step by step, from the same seed, so that neither disturbs the other."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpulab import _given
from gpulab.errors import GpulabError, InputError, StoppedError, shown
from gpulab.evidence import Evidence, Note
from gpulab.timing.statistics import median_ratio, ratio_interval
from gpulab.training import _interrupts
from gpulab.training._evaluate import difference_interval
from gpulab.training._run import Run
from gpulab.training._tasks import Task
from gpulab.training._tasks import task as find_task
from gpulab.training._words import unfinished_note
from gpulab.training.comparisons import RaceResult
from gpulab.training.results import FitResult

_TURN_ON_ACCELERATOR = 10  # steps a turn: waiting after each step would time the waiting
_SHARED = ("steps", "seed", "device", "clock")  # what one side alone cannot have
_NO_RACE = {
    "epochs": "steps, as many for both. Pass steps to race itself",
    "model": "the task's model, with the same weights on both sides. Leave it out",
    "save": "a race, which writes no checkpoint. Call fit for one",
    "resume": "a race, which cannot resume from a checkpoint. Call fit for that",
}  # options of fit that a race does not have, with what it expects


@dataclass(frozen=True)
class Moment:
    """The state of a race.

    Attributes
    ----------
    names : (str, str)
    losses : (tuple of float, tuple of float)
        Of every step of each until now.
    samples_per_second : (float or None, float or None)
    peak_bytes : (int or None, int or None)
    steps : int
        The number of steps that each will take.
    evidence : Evidence
    """

    names: tuple[str, str]
    losses: tuple[tuple[float, ...], tuple[float, ...]]
    samples_per_second: tuple[float | None, float | None]
    peak_bytes: tuple[int | None, int | None]
    steps: int
    evidence: Evidence


def race(
    task: str | Task,
    first: Mapping[str, Any],
    second: Mapping[str, Any],
    *,
    steps: int | None = None,
    seed: int = 0,
    device: Any = None,
    names: tuple[str, str] | None = None,
    show: Callable[[Moment], None] | None = None,
    progress: Callable[[float, str], None] | None = None,
    stop: Callable[[], bool] | None = None,
    clock: Callable[[], float] | None = None,
) -> RaceResult:
    """Train a task in two ways that take turns, and compare accuracy, speed and memory.

    Parameters
    ----------
    task : str or Task
    first, second : mapping
        Options of ``fit`` that set the two apart, such as ``{"precision": "bfloat16"}``; ``{}`` is the task as it is.
    steps : int, optional
        Steps of each; None takes the task's epochs at the first's batch size.
    seed : int
        Of both: the same weights, the same order.
    device : optional
        Of both.
    names : (str, str), optional
        What tables call the two; None takes the options that differ.
    show : callable, optional
        ``show(moment)`` after each turn, with the losses until then.
    progress, stop, clock : callable, optional
        As in ``fit``.

    Returns
    -------
    RaceResult
        Evidence MEASURED. The order within a turn alternates, and the ratio of speeds is paired turn by turn.

    Raises
    ------
    InputError, DeviceError, OutOfMemoryError
        As ``fit``; the message names the side.
    StoppedError
        If ``stop`` returned True before both had a step.

    Examples
    --------
    >>> from gpulab import training
    >>> result = training.race("prose-transformer", {"batch_size": 4}, {"batch_size": 4, "precision": "bfloat16"}, steps=2, device="cpu")
    >>> result.names, result.first.losses[0].round(1) == result.second.losses[0].round(1)
    (('precision=float32', 'precision=bfloat16'), np.True_)
    """
    job = find_task(task)
    report, asked = _given.callback("race", "progress", progress), _given.callback("race", "stop", stop)
    shown_to = _given.callback("race", "show", show)
    sides = [_options("first", first), _options("second", second)]
    labels = _names(sides) if names is None else _given_names(names)
    runs: list[Run] = []
    try:
        for label, options in zip(labels, sides, strict=True):
            count = steps if steps is not None or not runs else runs[0].options.steps
            with _naming(label):
                runs.append(Run(job, **options, steps=count, seed=seed, device=device, clock=clock))
        racing = _Racing(labels, runs, shown_to, report, asked)
        with _interrupts.deferred() as interrupt:
            return racing.result(racing.drive(interrupt))
    finally:
        for run in runs:
            run.close()


def _options(side: str, given: Any) -> dict[str, Any]:
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        raise InputError(f"race: {side} is {shown(given)}; expected options by name. Pass for example {{'precision': 'bfloat16'}}.")
    known = set(inspect.signature(Run).parameters) - {*_SHARED, *_NO_RACE, "task"}
    unknown = sorted(set(given) - known - {*_SHARED, *_NO_RACE})
    if unknown:
        raise InputError(f"race: {side} has {', '.join(unknown)}; expected options of fit: {', '.join(sorted(known))}. Pass some of these.")
    shared = sorted(set(given) & set(_SHARED))
    if shared:
        raise InputError(f"race: {side} has {', '.join(shared)} of its own; expected what both share. Pass it to race itself.")
    apart = next((name for name in _NO_RACE if name in given), None)
    if apart is not None:
        raise InputError(f"race: {side} has {apart} of its own; expected {_NO_RACE[apart]}.")
    return {name: int(value) if _given.is_whole(value) else value for name, value in given.items()}


def _given_names(names: Any) -> tuple[str, str]:
    chosen = _given.items("race", "names", names)
    if len(chosen) != 2 or not all(isinstance(name, str) and name for name in chosen) or chosen[0] == chosen[1]:
        raise InputError(f"race: names is {shown(names)}; expected two different texts. Pass names=('before', 'after').")
    return chosen[0], chosen[1]


def _names(sides: list[dict[str, Any]]) -> tuple[str, str]:
    """Name each side by the options in which it differs from the other."""
    defaults = {name: parameter.default for name, parameter in inspect.signature(Run).parameters.items()}
    full = [{**defaults, **side} for side in sides]
    differing = [name for name in {**sides[0], **sides[1]} if not _same(full[0].get(name), full[1].get(name))]
    same = [name for name, value in sides[0].items() if not differing and not _same(value, defaults[name])]
    texts = [", ".join(f"{name}={_short(side.get(name))}" for name in differing or same) or "as it is" for side in full]
    return (texts[0], texts[1]) if texts[0] != texts[1] else (f"{texts[0]} (first)", f"{texts[1]} (second)")


def _same(one: Any, other: Any) -> bool:
    return one is other or (type(one) is type(other) and isinstance(one, (str, int, float)) and one == other)


def _short(value: Any) -> str:
    if value is None:
        return "usual"
    return value if isinstance(value, str) else getattr(value, "__name__", None) or shown(value, 20)


class _naming:  # noqa: N801  (a context manager)
    """Say of an error which side it was."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, GpulabError) and not isinstance(error, StoppedError):
            raise type(error)(f"race, {self._name}: {error}") from error


class _Racing:
    """Two runs under way."""

    def __init__(
        self,
        names: tuple[str, str],
        runs: list[Run],
        show: Callable[[Moment], None] | None,
        report: Callable[[float, str], None] | None,
        stop: Callable[[], bool] | None,
    ) -> None:
        self.names, self.runs, self.show, self.report, self.stop = names, runs, show, report, stop

    def drive(self, interrupt: _interrupts.Interrupted) -> str | None:
        """Take turns until both are over; returns "stopped" or "interrupted" where the race was ended from outside."""
        turn = 1 if self.runs[0].device.is_cpu else _TURN_ON_ACCELERATOR
        sides = [0, 1]
        while not all(run.is_over for run in self.runs):
            ended = "interrupted" if interrupt.asked else "stopped" if self.stop is not None and self.stop() else None
            if ended is not None:
                return self._reached(ended)
            try:
                for side in sides:
                    with _naming(self.names[side]):
                        self.runs[side].advance(turn)
            except KeyboardInterrupt:
                return self._reached("interrupted")
            sides.reverse()
            self._tell()
        return None

    def _reached(self, ended: str) -> str:
        if all(run.losses for run in self.runs):
            return ended
        if ended == "interrupted":
            raise KeyboardInterrupt
        raise StoppedError("race: stopped before both had taken a step; expected them to run. Call it again.")

    def _tell(self) -> None:
        one, other = self.runs
        if self.show is not None:
            losses = (tuple(one.losses), tuple(other.losses))
            rates = (one.samples_per_second, other.samples_per_second)
            evidence = Evidence.measured(one.device.name)
            self.show(Moment(self.names, losses, rates, (one.peak_bytes, other.peak_bytes), one.options.steps, evidence))
        if self.report is not None:
            step, steps = max(len(run.losses) for run in self.runs), one.options.steps
            self.report(step / steps, f"step {step} of {steps}")

    def result(self, ended: str | None) -> RaceResult:
        """Return what was reached."""
        results = [self._one(run, ended) for run in self.runs]
        first, second = results
        n = min(len(first.step_seconds), len(second.step_seconds))
        before, after = first.step_seconds[:n] / first.options.batch_size, second.step_seconds[:n] / second.options.batch_size
        interval, reason = (
            ratio_interval(before, after, paired=True) if n else (None, "in every turn a step was also used for another measurement.")
        )
        ratio = median_ratio(before, after, paired=True) if n else float("nan")
        notes = (
            [Note("no-interval", f"of the ratio: {reason}".replace("Allow a longer deadline", "Take more steps"))]
            if interval is None
            else []
        )
        tested = [run.answers for run in self.runs]
        right = [one.right / one.each for one in tested if one is not None]
        difference = right[1] - right[0] if len(right) == 2 else None
        return RaceResult(
            task=first.task, names=self.names, first=first, second=second, speedup=ratio if np.isfinite(ratio) else None,
            speedup_interval=interval, accuracy_difference=None if difference is None else float(difference.mean()),
            accuracy_difference_interval=None if difference is None else difference_interval(right[0], right[1]), notes=tuple(notes),
            evidence=Evidence.measured(first.evidence.device, samples=n or None),
        )  # fmt: skip

    def _one(self, run: Run, ended: str | None) -> FitResult:
        result = run.result(None if run.is_over else ended)
        if ended is None or run.is_over:
            return result
        return dataclasses.replace(result, notes=(*result.notes, unfinished_note(ended, len(run.losses), run.options)))
