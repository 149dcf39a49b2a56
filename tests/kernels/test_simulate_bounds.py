"""What is remembered of an index that was looked at: for these lanes or for any, as long as it is the same index."""

from __future__ import annotations

import numpy as np
import pytest

from gpulab.kernels._simulate._bounds import Known
from gpulab.kernels._simulate._geometry import Batch, Mask

BATCH = Batch(0, 1, (1, 1, 1), (32, 1, 1))
HERE = Mask(BATCH, np.arange(32)[None, :] < 8)
PLACE = np.arange(32)[None, :] * 4


def test_a_place_is_known_for_its_index_its_array_and_its_lanes() -> None:
    """One found for some lanes is none for others; one found for any lanes holds for all. Another extent or stride is another array."""
    known, index = Known(), np.arange(32)[None, :]
    assert known.place(index, 32, 4, HERE) is None
    known.remember(index, 32, 4, HERE, PLACE)
    assert known.place(index, 32, 4, HERE) is PLACE
    assert known.place(index, 32, 4, BATCH.everyone) is None
    assert known.place(index, 31, 4, HERE) is known.place(index, 32, 1, HERE) is None
    assert known.place(index.copy(), 32, 4, HERE) is None
    known.remember(index, 32, 4, None, PLACE)
    assert known.place(index, 32, 4, BATCH.everyone) is PLACE


def test_an_index_is_kept_so_that_no_other_one_gets_its_number() -> None:
    """Told by a look at the object itself: another one in its place in the table is not taken for it."""
    known, index, other = Known(), np.arange(32)[None, :], np.arange(32)[None, ::-1]
    known.remember(index, 32, 4, None, PLACE)
    known._found[id(other), 32, 4] = known._found[id(index), 32, 4]
    assert known.place(other, 32, 4, HERE) is None


@pytest.mark.parametrize(("lanes", "kept"), [(2**14, True), (2**14 + 32, False)])
def test_large_indices_are_not_kept(lanes: int, kept: bool) -> None:
    """Up to 2**14 numbers, 128 KiB."""
    known, index = Known(), np.zeros((lanes // 32, 32), np.int64)
    known.remember(index, 8, 1, None, index)
    assert (known.place(index, 8, 1, HERE) is index) is kept


def test_sixteen_indices_are_kept() -> None:
    """The next one lets all of them go."""
    known, indices = Known(), [np.full((1, 32), n) for n in range(17)]
    for index in indices[:16]:
        known.remember(index, 32, 1, None, index)
    assert all(known.place(index, 32, 1, HERE) is index for index in indices[:16])
    known.remember(indices[16], 32, 1, None, indices[16])
    assert [known.place(index, 32, 1, HERE) is index for index in indices] == [False] * 16 + [True]
