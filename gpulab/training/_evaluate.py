"""How much of the test a model gets right, with an interval over the test's items."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpulab import devices
from gpulab.errors import InputError, kind_of, message_of
from gpulab.evidence import Evidence
from gpulab.timing.statistics import t_quantile
from gpulab.training._tasks import Task, task
from gpulab.training.results import Accuracy

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
    return answers_of(model, task(on)).accuracy()


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
            wilson(round(correct / self.each), len(self.right)) if alike else clustered(shares)
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
    first = next(
        (t for t in (*model.parameters(), *model.buffers()) if t.is_floating_point()), None
    )
    where = first.device if first is not None else torch.device("cpu")
    dtype = first.dtype if first is not None else torch.float32
    loss, right = 0.0, []
    with _evaluating(model):
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
                    f"{tuple(inputs.shape)} "
                    f"({message_of(error)}); expected it to take them. Pass a model with the "
                    "inputs and outputs of task.make_model()."
                ) from error
    copies = job.test.copies
    together, each = (
        np.concatenate(right).reshape(copies, -1).sum(axis=0),
        copies * job.test.targets[0].numel(),
    )
    return Answers(together, each, loss / len(job.test), job.answers, devices.find(where).name)


@contextlib.contextmanager
def _evaluating(model: Any) -> Iterator[None]:
    import torch

    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        for module, mode in modes:
            module.training = mode


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
    return max(0.0, middle - half), min(1.0, middle + half)


def clustered(shares: np.ndarray) -> tuple[float, float]:
    """Return a 95 % interval of the mean of items' shares, each item independent of the others
    (Student's t).
    """
    mean, half = float(shares.mean()), _half(shares)
    return max(0.0, mean - half), min(1.0, mean + half)


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
        mean, half = float(change.mean()), _half(change)
        return max(-1.0, mean - half), min(1.0, mean + half)
    won, lost, whole = float((change > 0).sum()) + 0.5, float((change < 0).sum()) + 0.5, n + 2
    middle = (won - lost) / whole
    half = _Z * math.sqrt(won + lost - (won - lost) ** 2 / whole) / whole
    return max(-1.0, middle - half), min(1.0, middle + half)


def _half(values: np.ndarray) -> float:
    n = len(values)
    return t_quantile(n - 1) * float(values.std(ddof=1)) / math.sqrt(n) if n > 1 else 2.0
