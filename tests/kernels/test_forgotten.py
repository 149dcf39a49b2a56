"""The accesses that made room as witnesses, by hand: the last of each thread at each word."""

from __future__ import annotations

import numpy as np

from gpulab.kernels._simulate._forgotten import Forgotten


def fields(*rows: tuple[int, int, int, int]) -> np.ndarray:
    """Return thread, epoch, line and event of each access."""
    return np.array(rows)


def of(forgotten: Forgotten, *words: int) -> list[tuple[int, ...]]:
    """Return which of the words, then the fields of an access."""
    which, found = forgotten.of(np.array(words))
    return [(number, *row) for number, row in zip(which.tolist(), found.tolist(), strict=True)]


def test_the_last_access_of_each_thread_at_each_word_is_kept() -> None:
    """Later ones take the place of the same thread's at the same word alone; nobody's (-1) are none; words come in any order."""
    forgotten = Forgotten()
    forgotten.add(np.array([4, 1, 4]), fields((7, 0, 10, 0), (7, 0, 10, 0), (8, 0, 10, 0)))
    forgotten.add(np.array([4, 2]), fields((7, 1, 11, 5), (-1, 1, 11, 5)))
    assert of(forgotten, 4, 2, 1) == [(0, 7, 1, 11, 5), (0, 8, 0, 10, 0), (2, 7, 0, 10, 0)]
    forgotten.add(np.array([1]), fields((7, 2, 12, 6)))
    assert of(forgotten, 1) == [(0, 7, 2, 12, 6)]
    forgotten.clear()
    assert of(forgotten, 1, 4) == []


def test_the_first_thread_is_one_too() -> None:
    """Thread 0 is somebody, with others and alone."""
    forgotten = Forgotten()
    forgotten.add(np.array([4, 4]), fields((0, 0, 10, 0), (-1, 0, 10, 0)))
    forgotten.add(np.array([2]), fields((0, 1, 11, 1)))
    assert of(forgotten, 4, 2) == [(0, 0, 0, 10, 0), (1, 0, 1, 11, 1)]


def test_a_copy_has_the_accesses_in_each_row() -> None:
    """Two blocks of five words: word 1 of the second is word 6; the one copied from stays as it was."""
    forgotten = Forgotten()
    forgotten.add(np.array([1, 3]), fields((7, 0, 10, 0), (8, 0, 11, 0)))
    copy = forgotten.copy_rows(5, 2)
    assert of(copy, 1, 3, 6, 8) == [(0, 7, 0, 10, 0), (1, 8, 0, 11, 0), (2, 7, 0, 10, 0), (3, 8, 0, 11, 0)]
    copy.add(np.array([1]), fields((9, 1, 12, 0)))
    assert of(forgotten, 1, 6) == [(0, 7, 0, 10, 0)]
