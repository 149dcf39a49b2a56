"""A cheap test that most accesses pass: while each word belongs to one thread, or is never written,
no two accesses can race.

Accesses that pass are only recorded. When one does not pass, the recorded ones go to the witnesses
in ``_hazards`` for the exact test.
"""

from __future__ import annotations

import numpy as np

from gpulab.kernels._simulate._lanes import Lanes, Moment

NOBODY, SEVERAL = -1, -2
# Lanes noted at most, at 12 bytes each.
_MOST_NOTED = 1 << 21


class Owners:
    """The accesses of one array since the owners were last forgotten, and which thread reads or
    writes each word.
    """

    def __init__(self, words: int) -> None:
        self.words = words
        self.noted: list[tuple[str, Lanes, Moment]] = []
        self._noted_lanes = 0
        # made when first needed
        self._readers, self._writers = (np.empty(0, dtype=np.int32) for _ in range(2))
        self._forget()

    def _forget(self) -> None:
        self._new_readers: list[Lanes] = []
        self._read_alone: dict[int, Lanes] = {}
        self._own: dict[int, Lanes] = {}  # lanes that were found to write words of their own
        self._kinds: set[str] = set()
        self._any_readers = False

    def forget(self) -> None:
        """Begin anew: nobody has accessed anything."""
        if self.noted:
            self.noted = []
            self._noted_lanes = 0
            self._forget()

    def passes(self, kind: str, lanes: Lanes, moment: Moment) -> bool:
        """Return whether an access cannot race with those before, and note it then."""
        if self._noted_lanes > _MOST_NOTED:
            return False
        kinds = self._kinds
        if kind == "atomic" or "atomic" in kinds:
            harmless = kinds <= {"atomic"} and kind == "atomic"
        elif kind == "load" and "store" not in kinds:
            self._new_readers.append(lanes)
            harmless = True
        elif id(lanes) in self._own:
            harmless = True
        elif kind == "load":
            harmless = self._only(self._writers.take(lanes.words), lanes)
            self._new_readers.append(lanes)
        else:
            harmless = self._takes(lanes)
        if harmless:
            kinds.add(kind)
            self.noted.append((kind, lanes, moment))
            self._noted_lanes += len(lanes.words)
        return harmless

    @staticmethod
    def _only(owners: np.ndarray, lanes: Lanes) -> bool:
        """Return whether the words belong to the lanes, or to nobody."""
        return not np.count_nonzero((owners != lanes.threads) & (owners != NOBODY))

    def _takes(self, lanes: Lanes) -> bool:
        """Return whether all words that lanes write are their own, each lane's another one; they
        belong to them then.
        """
        if "store" not in self._kinds:
            self._writers = self._nobodies(self._writers)
        for readers in self._new_readers:
            self._read(readers)
        self._new_readers = []
        words, threads = lanes.words, lanes.threads
        if self._any_readers and not self._only(self._readers.take(words), lanes):
            return False
        if "store" in self._kinds and not self._only(self._writers.take(words), lanes):
            return False
        self._writers[words] = threads
        if np.count_nonzero(self._writers.take(words) != threads):
            return False
        self._own[id(lanes)] = lanes
        return True

    def _read(self, lanes: Lanes) -> None:
        """Note who reads each word: one thread, or several."""
        if id(lanes) in self._read_alone:
            return
        if not self._any_readers:
            self._readers = self._nobodies(self._readers)
            self._any_readers = True
        words, threads = lanes.words, lanes.threads
        before = self._readers.take(words)
        self._readers[words] = threads
        shared = (self._readers.take(words) != threads) | ((before != threads) & (before != NOBODY))
        if np.count_nonzero(shared):
            self._readers[words[shared]] = SEVERAL
        self._read_alone[id(lanes)] = lanes

    def _nobodies(self, owners: np.ndarray) -> np.ndarray:
        if not len(owners):
            return np.full(self.words, NOBODY, dtype=np.int32)
        owners.fill(NOBODY)
        return owners
