"""Accesses that are no longer witnesses, because later ones replaced them; kept only where
``syncwarp`` names lanes.

Two witnesses of a word stand for all of a warp's lanes only while whatever orders lanes orders all
of them. A ``syncwarp`` of some lanes may order both witnesses before an access, and leave a third
lane out.
"""

from __future__ import annotations

import numpy as np

Flat = np.ndarray  # one entry for each lane that takes part

_WORD, _THREAD = 0, 1
_COLUMNS = 5  # word, thread, epoch, line, event


class Forgotten:
    """Of each word, the last access of every thread that is no witness any more."""

    def __init__(self) -> None:
        self._table = np.empty((0, _COLUMNS), dtype=np.int64)
        self._new: list[np.ndarray] = []

    def clear(self) -> None:
        """Begin anew."""
        self._table = self._table[:0]
        self._new = []

    def add(self, words: Flat, fields: Flat) -> None:
        """Note accesses, later than all before; ``fields`` are those of a witness, shape (n, 4),
        with thread -1 for nobody.
        """
        real = fields[:, 0] >= 0
        if real.any():
            self._new.append(np.column_stack([words[real], fields[real]]).astype(np.int64))

    def copy_rows(self, words: int, times: int) -> Forgotten:
        """Return the same for so many rows of words."""
        copy = Forgotten()
        for row in range(times):
            part = self._compact().copy()
            part[:, _WORD] += row * words
            copy._new.append(part)
        return copy

    def of(self, words: Flat) -> tuple[Flat, Flat]:
        """Return all accesses of each word: which of the given words, and the fields, shape (n,
        4).
        """
        table = self._compact()
        first = np.searchsorted(table[:, _WORD], words, "left")
        last = np.searchsorted(table[:, _WORD], words, "right")
        many = last - first
        which = np.repeat(np.arange(len(words)), many)
        place = (
            np.arange(len(which)) - np.repeat(np.cumsum(many) - many, many) + np.repeat(first, many)
        )
        return which, table[place, _THREAD:]

    def _compact(self) -> np.ndarray:
        if self._new:
            table = np.concatenate([self._table, *self._new])
            # stable: the latest of a word and thread is the last
            table = table[np.lexsort((table[:, _THREAD], table[:, _WORD]))]
            last = np.ones(len(table), dtype=bool)
            last[:-1] = (table[1:, : _THREAD + 1] != table[:-1, : _THREAD + 1]).any(axis=1)
            self._table, self._new = table[last], []
        return self._table
