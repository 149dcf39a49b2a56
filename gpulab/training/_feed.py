"""Batches in the order that the seed decides, whoever prepares them: this thread, a thread ahead of it, or worker processes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from gpulab.training._data import Data


def order(items: int, batch_size: int, seed: int, first: int, last: int) -> Iterator[Any]:
    """Give the indices of the batches ``first`` to ``last`` (not included), int64 of shape (batch_size,).

    Each epoch is another permutation; its last items that fill no batch wait for another epoch. Batch k depends on the seed and k
    alone, so a run that is resumed sees what it would have seen.
    """
    import torch

    an_epoch = items // batch_size
    permutation, known = None, -1
    for number in range(first, last):
        epoch, place = divmod(number, an_epoch)
        if epoch != known:
            permutation, known = np.random.default_rng((seed, epoch)).permutation(items), epoch
        assert permutation is not None
        yield torch.from_numpy(permutation[place * batch_size : (place + 1) * batch_size])


def batches(data: Data, indices: Iterator[Any]) -> Iterator[tuple[Any, Any]]:
    """Give the batches on the host, prepared by this thread when asked for."""
    for chosen in indices:
        yield data[chosen]
