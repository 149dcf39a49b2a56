"""The same run under several seeds, with an interval over both seeds and test items."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from gpulab import _given, _interrupts, devices
from gpulab.errors import InputError, StoppedError, shown
from gpulab.evidence import Evidence, Note
from gpulab.timing.statistics import t_quantile
from gpulab.training import _settings
from gpulab.training._evaluate import Answers, answers_of, difference_interval, wilson
from gpulab.training._fit import fit
from gpulab.training._tasks import Task, check_seed
from gpulab.training._tasks import task as find_task
from gpulab.training.comparisons import SeedsAccuracy, SeedsResult
from gpulab.training.results import FitResult

_MOST_SEEDS = 1000


def over_seeds(
    task: str | Task,
    seeds: int | Iterable[int] = 5,
    *,
    progress: Callable[[float, str], None] | None = None,
    stop: Callable[[], bool] | None = None,
    **options: Any,
) -> SeedsResult:
    """Train a task once for each seed, one after the other.

    Parameters
    ----------
    task : str or Task
    seeds : int or iterable of int
        How many (0, 1, 2 ...), or which.
    progress, stop : callable, optional
        As in ``fit``; a stop or an interrupt keeps the complete runs.
    **options
        As in ``fit``, except ``model``, ``seed``, ``save`` and ``resume``: each seed has its own.

    Returns
    -------
    SeedsResult
        Evidence MEASURED.

    Raises
    ------
    InputError
        If the seeds or an option cannot be used.
    StoppedError
        If ``stop`` returned True before the first run had a step.
    KeyboardInterrupt
        If the learner interrupts before that.

    Examples
    --------
    >>> from gpulab import training
    >>> result = training.over_seeds("prose-transformer", seeds=2, steps=2, batch_size=4,
    ...     device="cpu")
    >>> result.seeds, len(result.accuracy.accuracies)
    ((0, 1), 2)
    """
    job, chosen = find_task(task), _seeds(seeds)
    report, asked = (
        _given.callback("over_seeds", "progress", progress),
        _given.callback("over_seeds", "stop", stop),
    )
    own = sorted({"model", "seed", "save", "resume"} & set(options))
    unknown = sorted(set(options) - set(inspect.signature(fit).parameters))
    if unknown:
        raise InputError(
            f"over_seeds: got {', '.join(unknown)}; expected options of fit. See gl.training.fit? "
            "for their names."
        )
    if own:
        raise InputError(
            f"over_seeds: {', '.join(own)} was given; expected options that all seeds share. Leave "
            "it out, or call fit."
        )
    runs: list[FitResult] = []
    answers: list[Answers] = []
    # between two runs too: an interrupt there would lose those that are complete
    with _interrupts.deferred() as interrupt:

        def is_over() -> bool:
            return interrupt.asked or (asked is not None and asked())

        for number, seed in enumerate(chosen):
            model = job.make_model(seed)
            try:
                run = fit(
                    job,
                    model=model,
                    seed=seed,
                    progress=_part(report, number, len(chosen)),
                    stop=is_over,
                    **options,
                )
            except (StoppedError, KeyboardInterrupt):  # before this seed's first step
                if runs:
                    break
                if interrupt.asked:
                    raise KeyboardInterrupt from None
                raise
            runs.append(run)
            # as the run's own test: its accuracy stands beside
            with _settings.switches(run.options.precision, devices.find(run.device)):
                answers.append(answers_of(model, job))
            if run.ended in ("stopped", "interrupted"):
                break
    done = chosen[: len(runs)]
    notes = []
    if len(done) < len(chosen) or runs[-1].ended in ("stopped", "interrupted"):
        ended = (
            f"the runs ended at seed {done[-1]}, {len(done)} of {len(chosen)}; the result has "
            "only these. Run it again for all of them."
        )
        notes.append(Note("stopped", ended))
    broken = [str(seed) for seed, run in zip(done, runs, strict=True) if run.ended == "diverged"]
    if broken:
        notes.append(
            Note(
                "diverged",
                f"the loss became infinite or nan with seed {', '.join(broken)}; the accuracy on "
                f"{runs[0].task} includes these models.",
            )
        )
    evidence = Evidence.measured(runs[0].evidence.device, samples=len(runs))
    return SeedsResult(
        job.name, tuple(done), tuple(runs), accuracy_of(answers), tuple(notes), evidence
    )


def _seeds(given: Any) -> list[int]:
    if _given.is_whole(given):
        if not 1 <= given <= _MOST_SEEDS:
            raise InputError(
                f"over_seeds: seeds is {given}; expected from 1 to {_MOST_SEEDS}, or a list of "
                "seeds. Pass seeds=5."
            )
        return list(range(int(given)))
    chosen = _given.items("over_seeds", "seeds", given)
    if not chosen or len(chosen) > _MOST_SEEDS:
        raise InputError(
            f"over_seeds: {len(chosen)} seeds; expected from 1 to {_MOST_SEEDS}. Pass seeds=5."
        )
    chosen = [check_seed("over_seeds", seed) for seed in chosen]
    if len(set(chosen)) < len(chosen):
        raise InputError(
            f"over_seeds: seeds {shown(chosen)} contain one twice; expected different ones, since "
            "the same run twice adds no information."
        )
    return chosen


def _part(
    report: Callable[[float, str], None] | None, number: int, count: int
) -> Callable[[float, str], None] | None:
    if report is None:
        return None
    return lambda fraction, text: report(
        (number + fraction) / count, f"seed {number + 1} of {count}, {text}"
    )


def evaluate_models(models: Iterable[Any], on: str | Task) -> SeedsAccuracy:
    """Return the accuracy of several models (of as many seeds) on one test, with an interval over
    seeds and test items.

    Raises
    ------
    InputError
        If there is none, or one does not take the task's inputs.
    """
    job, given = find_task(on), _given.items("evaluate_models", "models", models)
    if not given:
        raise InputError(
            "evaluate_models: no models were given; expected at least one. Pass a list of them."
        )
    return accuracy_of([answers_of(model, job) for model in given])


def accuracy_of(answers: list[Answers]) -> SeedsAccuracy:
    """Return what the answers of several models say together.

    Notes
    -----
    Seeds and items are crossed: each model answers each item. The variance of the grand mean is
    estimated by that of the models' means over their number, plus that of the items' means over
    theirs, less that of the residuals over both, which the two have counted twice (the two-way
    random effects model; Owen 2007, Annals of Applied Statistics 1, 386). Degrees of freedom after
    Satterthwaite.
    """
    accuracies = tuple(one.accuracy() for one in answers)
    table = np.array([one.right / one.each for one in answers])
    models, items = table.shape
    mean = float(table.mean())
    evidence = Evidence.measured(accuracies[0].evidence.device, samples=models * items)
    if models == 1:
        return SeedsAccuracy(
            accuracies,
            accuracies[0].ratio,
            None,
            accuracies[0].interval,
            answers[0].answers,
            evidence,
        )
    half, wide, alike = _crossed(table)
    low, high = _kept(mean, wide)
    # every item alike, so all right or all wrong: the items' spread says nothing, Wilson's interval
    # does
    if alike:
        by_wilson = wilson(round(mean * items), items)
        low, high = min(low, by_wilson[0]), max(high, by_wilson[1])
    return SeedsAccuracy(
        accuracies, mean, _kept(mean, half), (low, high), answers[0].answers, evidence
    )


def difference_over_seeds(
    before: list[Answers], after: list[Answers]
) -> tuple[float, tuple[float, float]]:
    """Return the mean difference of accuracy of models that share their seeds, and a 95 % interval
    over seeds and test items.

    Notes
    -----
    Both are paired: each seed's two models answered the same items. With one seed the interval is
    over items alone.
    """
    one, other = (
        np.array([each.right / each.each for each in answers]) for answers in (before, after)
    )
    table = other - one
    mean = float(table.mean())
    if len(table) == 1:
        return mean, difference_interval(one[0], other[0])
    _, wide, alike = _crossed(table)
    low, high = max(-1.0, mean - wide), min(1.0, mean + wide)
    if alike:  # no item tells them apart, which is not to say that none could
        by_items = difference_interval(one[0], other[0])
        low, high = min(low, by_items[0]), max(high, by_items[1])
    return mean, (low, high)


def _crossed(table: np.ndarray) -> tuple[float, float, bool]:
    """Return half the interval over seeds, half that over seeds and items, and whether all items
    are alike; of shape (seeds, items).
    """
    models, items = table.shape
    mean = float(table.mean())
    of_models, of_items = table.mean(axis=1), table.mean(axis=0)
    residuals = table - of_models[:, None] - of_items[None, :] + mean
    by_models, by_items = float(of_models.var(ddof=1)) / models, float(of_items.var(ddof=1)) / items
    twice = (
        float((residuals**2).sum()) / ((models - 1) * (items - 1)) / (models * items)
        if items > 1
        else 0.0
    )
    half = t_quantile(models - 1) * math.sqrt(by_models)
    whole = max(by_models + by_items - twice, by_models, by_items)
    freedom = (
        whole**2 / (by_models**2 / (models - 1) + by_items**2 / max(items - 1, 1))
        if whole > 0
        else float(models - 1)
    )
    return half, t_quantile(freedom) * math.sqrt(whole), by_items == 0.0


def _kept(mean: float, half: float) -> tuple[float, float]:
    return max(0.0, mean - half), min(1.0, mean + half)
