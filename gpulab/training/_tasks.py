"""The tasks that the later notebooks share: data, a model, a loss, and the hyperparameters that it
learns with.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gpulab import _given, networks
from gpulab.errors import InputError, shown
from gpulab.training import _data, _settings
from gpulab.training._data import Data

_LARGEST_SEED = 2**63


@dataclass(frozen=True, repr=False)
class Task:
    """Something to learn.

    Attributes
    ----------
    name, summary : str
    items : str
        What one sample is: "images" or "windows".
    batch_size, epochs : int
    learning_rate : float
        For Adam. With these values a run learns the task in seconds on two cores.
    answers : str
        What accuracy counts: "digits" or "characters".
    """

    name: str
    summary: str
    items: str
    answers: str
    batch_size: int
    epochs: int
    learning_rate: float
    _load: Callable[[], tuple[Data, Data]]
    _build: Callable[[], Any]

    @property
    def train(self) -> Data:
        """The training data, on the host; ``train[indices]`` is a batch."""
        return self._load()[0]

    @property
    def test(self) -> Data:
        """The test data, on the host."""
        return self._load()[1]

    def make_model(self, seed: int = 0) -> Any:
        """Return a new model on the CPU, in training mode, with weights that the seed decides;
        torch's generator stays as it was.

        Raises
        ------
        InputError
            If the seed is not a whole number from 0 to 2**63 - 1.
        """
        import torch

        seed = check_seed("make_model", seed)
        with _settings.alone(), torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            return self._build()

    def loss(self, model: Any, batch: tuple[Any, Any]) -> Any:
        """Return the mean cross entropy of a batch (inputs, targets), a scalar tensor, in the
        precision that the caller has set.
        """
        from torch.nn import functional

        return functional.cross_entropy(model(batch[0]).flatten(0, -2), batch[1].flatten())

    def correct(self, model: Any, batch: tuple[Any, Any]) -> Any:
        """Return how many answers of each item are right, int64 of shape (batch,)."""
        right = model(batch[0]).argmax(-1) == batch[1]
        return right.flatten(1).sum(1) if right.dim() > 1 else right.long()

    def __repr__(self) -> str:
        return f"<task {self.name}: {self.summary}>"


def check_seed(function: str, seed: Any) -> int:
    """Return a seed.

    Raises
    ------
    InputError
        If it is not a whole number from 0 to 2**63 - 1.
    """
    if not _given.is_whole(seed) or not 0 <= seed < _LARGEST_SEED:
        raise InputError(
            f"{function}: seed is {shown(seed)}; expected a whole number from 0 to 2**63 - 1. Pass "
            "seed=0."
        )
    return int(seed)


_TASKS = {
    task.name: task
    for task in (
        Task(
            "digits-cnn",
            "a small convolutional network reads digits of 8x8 pixels",
            "images",
            "digits",
            64,
            8,
            3e-3,
            _data.digits,
            lambda: networks.cnn(width=16),
        ),
        Task(
            "digits-mlp",
            "two hidden layers read the same digits",
            "images",
            "digits",
            64,
            15,
            3e-3,
            _data.digits,
            lambda: networks.mlp(inputs=64, hidden=128),
        ),
        Task(
            "digits-hard-cnn",
            "the network learns from 500 digits only, each shifted and in noise",
            "images",
            "digits",
            50,
            20,
            3e-3,
            _data.hard_digits,
            lambda: networks.cnn(width=16),
        ),
        Task(
            "prose-transformer",
            "a small language model continues this course's own prose, character by character",
            "windows",
            "characters",
            32,
            2,
            3e-3,
            _data.prose,
            lambda: networks.transformer(
                len(_data.characters()), width=64, heads=4, layers=2, context=_data.CONTEXT
            ),
        ),
    )
}


def tasks() -> tuple[str, ...]:
    """Return the names of the tasks."""
    return tuple(_TASKS)


def task(name: str | Task) -> Task:
    """Return a task by its name.

    Parameters
    ----------
    name : str or Task
        One of ``tasks()``; a task comes back as it is.

    Raises
    ------
    InputError
        If there is no such task.

    Examples
    --------
    >>> task("prose-transformer").train.inputs.shape[1]
    64
    """
    return name if isinstance(name, Task) else _TASKS[_given.word("training", "task", name, _TASKS)]
