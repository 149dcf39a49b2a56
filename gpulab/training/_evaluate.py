"""Test accuracy of one model or several, with intervals over items and over seeds."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpulab import _given, devices
from gpulab.errors import InputError, kind_of, message_of
from gpulab.evidence import Evidence
from gpulab.timing.statistics import t_quantile
from gpulab.training import backend_switches
from gpulab.training.data_tasks import Task
from gpulab.training.data_tasks import task as find_task
from gpulab.training.results import Accuracy, SeedsAccuracy

_BATCH = 250
_Z = 1.959964  # the normal distribution's 97.5 % point


def evaluate(model: Any, on: str | Task) -> Accuracy:
    """Return how many answers of a task's test a model gets right.

    Parameters
    ----------
    model : torch.nn.Module
        On any device, in any floating-point dtype; it is set to evaluation mode meanwhile, and back
        afterwards.
    on : str or Task

    Returns
    -------
    Accuracy
        Evidence MEASURED. The interval is Wilson's where each item has one answer; where an item
        has several, which are not independent (the characters of one window, one digit at two
        places), that of a ratio of sums over items.

    Raises
    ------
    InputError
        If ``model`` is not a module, or does not take the task's inputs.

    Examples
    --------
    >>> from gpulab import training
    >>> job = training.task("prose-transformer")
    >>> training.evaluate(job.make_model(seed=0), job).count == job.test.targets.numel()
    True
    """
    return answers_of(model, find_task(on)).accuracy()


@dataclass(frozen=True)
class Answers:
    """What a model answered on a test: ``right[i]`` of ``each`` answers of item i."""

    right: np.ndarray
    each: int
    loss: float
    answers: str
    device: str

    def accuracy(self) -> Accuracy:
        """Return the accuracy with its interval."""
        correct, count = int(self.right.sum()), self.each * len(self.right)
        shares = self.right / self.each
        # Where all items are alike their spread says nothing; Wilson's interval does.
        alike = self.each == 1 or bool((shares == shares[0]).all())
        interval = (
            wilson(round(correct / self.each), len(self.right))
            if alike
            else _around(float(shares.mean()), _half(shares))
        )
        evidence = Evidence.measured(self.device, samples=len(self.right))
        return Accuracy(
            correct, count, correct / count, interval, self.loss, self.answers, evidence
        )


def answers_of(model: Any, job: Task) -> Answers:
    """Let a model answer the whole test.

    Raises
    ------
    InputError
        As ``evaluate``.
    """
    import torch

    if not isinstance(model, torch.nn.Module):
        raise InputError(
            f"evaluate: got {kind_of(model)}; expected a torch.nn.Module. Pass the model, then the "
            "task."
        )
    tensors = (*model.parameters(), *model.buffers(), torch.empty(0))
    first = next(t for t in tensors if t.is_floating_point())
    where, dtype = first.device, first.dtype
    loss, right = 0.0, []
    with backend_switches.modes_kept(model), torch.inference_mode():
        model.eval()
        for begin in range(0, len(job.test), _BATCH):
            inputs, targets = job.test[slice(begin, begin + _BATCH)]
            try:
                batch = (
                    inputs.to(where, dtype) if inputs.is_floating_point() else inputs.to(where),
                    targets.to(where),
                )
                right.append(job.correct(model, batch).cpu().numpy())
                loss += float(job.loss(model, batch)) * len(targets)
            except Exception as error:  # whatever the layers of somebody's model raise
                ours = devices.translate(
                    error, f"evaluate: {len(targets)} items of {job.name} on {where}"
                )
                raise ours or InputError(
                    f"evaluate: the model raised {type(error).__name__} on {job.name}'s inputs "
                    f"{tuple(inputs.shape)} ({message_of(error)}); expected it to take them. Pass "
                    "a model with the inputs and outputs of task.make_model()."
                ) from error
    copies = job.test.copies
    together, each = (
        np.concatenate(right).reshape(copies, -1).sum(axis=0),
        copies * job.test.targets[0].numel(),
    )
    return Answers(together, each, loss / len(job.test), job.answers, devices.find(where).name)


def wilson(correct: int, count: int) -> tuple[float, float]:
    """Return Wilson's 95 % interval of a share (Wilson 1927; Brown, Cai and DasGupta 2001,
    Statistical Science 16, 101).

    Examples
    --------
    >>> [round(end, 4) for end in wilson(81, 263)]
    [0.2553, 0.3662]
    """
    share, z2 = correct / count, _Z**2
    middle = (share + z2 / (2 * count)) / (1 + z2 / count)
    half = _Z * math.sqrt(share * (1 - share) / count + z2 / (4 * count**2)) / (1 + z2 / count)
    return _around(middle, half)


def _around(mean: float, half: float, least: float = 0.0) -> tuple[float, float]:
    """Return mean - half and mean + half, cut to what a share or a difference of shares can be."""
    return max(least, mean - half), min(1.0, mean + half)


def difference_interval(before: np.ndarray, after: np.ndarray) -> tuple[float, float]:
    """Return a 95 % interval of mean(after - before) over items that two models answered.

    Parameters
    ----------
    before, after : ndarray, shape (items,)
        Right answers of each item, as shares.

    Notes
    -----
    Of items with one answer: the Wald interval for pairs with half an item added to each of the
    four cells (Agresti and Min 2005, Statistics in Medicine 24, 729), so that two models that agree
    on all items are not called equal for certain; with several answers an item it is taken where
    they agree on all. Else Student's t.

    Examples
    --------
    Of five items one was lost and two were won; with half an item more each way the middle is 1 /
    7, and its variance (4 - 1 / 7) / 49.

    >>> low, high = difference_interval(np.array([1.0, 0, 1, 1, 0]), np.array([1.0, 1, 0, 1, 1]))
    >>> half = 1.959964 * (4 - 1 / 7) ** 0.5 / 7
    >>> bool(abs(low - 1 / 7 + half) < 1e-5), bool(abs(high - 1 / 7 - half) < 1e-5)
    (True, True)
    """
    n = len(before)
    change = after - before
    if change.any() and not set(np.unique(np.concatenate([before, after]))) <= {0.0, 1.0}:
        return _around(float(change.mean()), _half(change), -1.0)
    won, lost, whole = float((change > 0).sum()) + 0.5, float((change < 0).sum()) + 0.5, n + 2
    middle = (won - lost) / whole
    half = _Z * math.sqrt(won + lost - (won - lost) ** 2 / whole) / whole
    return _around(middle, half, -1.0)


def _half(values: np.ndarray) -> float:
    n = len(values)
    return t_quantile(n - 1) * float(values.std(ddof=1)) / math.sqrt(n) if n > 1 else 2.0


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
    low, high = _around(mean, wide)
    # every item alike, so all right or all wrong: the items' spread says nothing, Wilson's interval
    # does
    if alike:
        by_wilson = wilson(round(mean * items), items)
        low, high = min(low, by_wilson[0]), max(high, by_wilson[1])
    return SeedsAccuracy(
        accuracies, mean, _around(mean, half), (low, high), answers[0].answers, evidence
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
    low, high = _around(mean, wide, -1.0)
    if alike:  # no item distinguishes them; another might
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
