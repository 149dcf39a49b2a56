"""The data that every run learns from: scikit-learn's digits, a harder variant of them, and this
course's own prose.

Nothing is downloaded. Each set is made once a process and is the same on every machine: splits,
shifts and noise come from NumPy's generator under a fixed seed, never from the seed of a run.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gpulab.errors import MissingLibraryError, pip_command
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
            "training: the digits come with scikit-learn, which is not installed here; expected it "
            "to be. "
            f"Run {pip_command('install scikit-learn')}, or take the task 'prose-transformer', "
            "which needs nothing."
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
