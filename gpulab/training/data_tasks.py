"""The tasks that the later notebooks share: data, model, loss and hyperparameters.

The data are scikit-learn's digits, a harder variant of them, and this course's own prose. Nothing
is downloaded. Each set is made once a process and is the same on every machine: splits, shifts and
noise come from NumPy's generator under a fixed seed, never from the seed of a run.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gpulab import _given, networks
from gpulab.errors import InputError, MissingLibraryError, pip_command, shown
from gpulab.training import backend_switches
from gpulab.units import plural

# any number does; it must never change, or figures measured before would be of other data
_SPLIT_SEED = 20_240
_TEST_DIGITS = 500
_BRIGHTEST = 16.0  # of scikit-learn's digits
# pixels; digits with a label; standard deviation, of a range of 0 to 1
HARD_SIDE, HARD_TRAIN, HARD_NOISE = 12, 500, 0.15
_HARD_COPIES = 2  # of each test digit
CONTEXT = 64  # characters a window of the prose
_STRIDE = 16  # between the beginnings of training windows; those of the test do not overlap
_TEST_SHARE = 0.1  # of the prose: its end
_PROSE = Path(__file__).parent / "data" / "prose.txt"

_LARGEST_SEED = 2**63


@dataclass(frozen=True, repr=False)
class Data:
    """Inputs and targets of one split, on the host.

    Attributes
    ----------
    inputs : torch.Tensor, shape (n, ...)
        float32 images (n, 1, side, side) from about 0 to 1, or int64 characters (n, context).
    targets : torch.Tensor
        int64 classes (n,), or the characters that follow (n, context).
    copies : int
        How many items show the same thing: item k + n / copies shows the same as item k, so the
        answers to them are not independent.
    """

    inputs: Any
    targets: Any
    copies: int = 1

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, indices: Any) -> tuple[Any, Any]:
        """Return a batch with memory of its own: of a view, a prediction of memory would count the
        whole data.
        """
        inputs, targets = self.inputs[indices], self.targets[indices]
        return (
            (inputs.clone(), targets.clone()) if isinstance(indices, slice) else (inputs, targets)
        )

    def __getitems__(self, indices: Any) -> tuple[Any, Any]:
        """Return a whole batch at once, as PyTorch's DataLoader asks for it."""
        import torch

        return self[torch.as_tensor(indices)]

    def __repr__(self) -> str:
        return f"<{plural(len(self), 'item')} of shape {tuple(self.inputs.shape[1:])}>"


@functools.cache
def _raw_digits() -> tuple[np.ndarray, np.ndarray]:
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise MissingLibraryError(
            "training: the digits come with scikit-learn, which is not installed here; expected "
            f"it to be. Run {pip_command('install scikit-learn')}, or take the task "
            "'prose-transformer', which needs nothing."
        ) from error
    images, classes = load_digits(return_X_y=True)
    order = np.random.default_rng(_SPLIT_SEED).permutation(len(images))
    return images[order].reshape(-1, 8, 8).astype(np.float32) / np.float32(_BRIGHTEST), classes[
        order
    ].astype(np.int64)


def _as_data(images: np.ndarray, classes: np.ndarray, copies: int = 1) -> Data:
    import torch

    return Data(
        torch.from_numpy(np.ascontiguousarray(images[:, None])),
        torch.from_numpy(classes.copy()),
        copies,
    )


@functools.cache
def digits() -> tuple[Data, Data]:
    """Return training and test digits, 1,297 and 500 images of 8x8 pixels, split at random.

    Raises
    ------
    MissingLibraryError
        Without scikit-learn.
    """
    images, classes = _raw_digits()
    return _as_data(images[:-_TEST_DIGITS], classes[:-_TEST_DIGITS]), _as_data(
        images[-_TEST_DIGITS:], classes[-_TEST_DIGITS:]
    )


@functools.cache
def hard_digits() -> tuple[Data, Data]:
    """Return the same digits made hard: each is placed at random on a noisy canvas of 12x12 pixels,
    and only 500 have a label.

    The test set has every test digit twice, at two places with different noise. A digit that is
    hard to read is hard at both places, so accuracy counts the two as one item with two answers.
    """
    images, classes = _raw_digits()
    random = np.random.default_rng(_SPLIT_SEED + 1)
    train, test = images[:HARD_TRAIN], np.concatenate([images[-_TEST_DIGITS:]] * _HARD_COPIES)
    return (
        _as_data(_placed(train, random), classes[:HARD_TRAIN]),
        _as_data(
            _placed(test, random),
            np.concatenate([classes[-_TEST_DIGITS:]] * _HARD_COPIES),
            _HARD_COPIES,
        ),
    )


def _placed(images: np.ndarray, random: np.random.Generator) -> np.ndarray:
    canvas = np.zeros((len(images), HARD_SIDE, HARD_SIDE), dtype=np.float32)
    for picture, image, (row, column) in zip(
        canvas, images, random.integers(0, HARD_SIDE - 7, (len(images), 2)), strict=True
    ):
        picture[row : row + 8, column : column + 8] = image
    return canvas + random.normal(0.0, HARD_NOISE, canvas.shape).astype(np.float32)


@functools.cache
def _text() -> str:
    return _PROSE.read_text(encoding="ascii")


@functools.cache
def characters() -> str:
    """Return the characters of the prose in order: the number of each is its token."""
    return "".join(sorted(set(_text())))


@functools.cache
def prose() -> tuple[Data, Data]:
    """Return windows of 64 characters of this course's own prose with the characters that follow;
    the last tenth is for the test.
    """
    import torch

    number = {character: index for index, character in enumerate(characters())}
    tokens = torch.tensor([number[character] for character in _text()])
    end = round(len(tokens) * (1 - _TEST_SHARE))
    return _windows(tokens[:end], _STRIDE), _windows(tokens[end:], CONTEXT)


def _windows(tokens: Any, stride: int) -> Data:
    pieces = tokens.unfold(0, CONTEXT + 1, stride)
    return Data(pieces[:, :-1].contiguous(), pieces[:, 1:].contiguous())


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
        with backend_switches.alone(), torch.random.fork_rng(devices=[]):
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
            digits,
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
            digits,
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
            hard_digits,
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
            prose,
            lambda: networks.transformer(
                len(characters()), width=64, heads=4, layers=2, context=CONTEXT
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
