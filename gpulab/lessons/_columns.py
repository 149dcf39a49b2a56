"""A loop over columns, as MATLAB stores them and as NumPy does: the same numbers, another order in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpulab import _given
from gpulab.errors import InputError, shown
from gpulab.evidence import Evidence
from gpulab.lessons import _live
from gpulab.results import Result
from gpulab.units import format_ratio, format_seconds


@dataclass(frozen=True)
class ColumnLoop(Result):
    """A loop that adds up each column, over an array that lies row by row, and over one that lies column by column.

    Attributes
    ----------
    n : int
        The array is n x n, float32.
    rows_seconds, columns_seconds : float
        The loop over the array as NumPy makes it; as MATLAB would keep it.
    notes : tuple of str
    evidence : Evidence
    ratio_interval : (float, float) or None
        95 %, of ``ratio``; None where none is honest.
    """

    n: int
    rows_seconds: float
    columns_seconds: float
    notes: tuple[str, ...]
    evidence: Evidence
    ratio_interval: tuple[float, float] | None = None

    @property
    def ratio(self) -> float:
        """Row by row / column by column."""
        return self.rows_seconds / self.columns_seconds

    def __repr__(self) -> str:
        return f"<a loop over columns takes {format_ratio(self.ratio)} as long where the array lies row by row>"

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        """Return one row an order."""
        rows = [
            ("row by row, as NumPy makes it (order C)", format_seconds(self.rows_seconds)),
            ("column by column, as MATLAB keeps it (order F)", format_seconds(self.columns_seconds)),
            ("the first over the second", _live.with_interval(self.ratio, self.ratio_interval)),
        ]
        return (f"{self.n:,} x {self.n:,}, float32", "the loop takes"), rows

    def caption(self) -> str:
        """Return the badge line and what to know of the figures."""
        return " · ".join((self.evidence.sentence, *self.notes))


def sum_columns(a: np.ndarray) -> np.ndarray:
    """Add up each column, one after the other: the loop of the notebook."""
    sums = np.empty(a.shape[1], a.dtype)
    for k in range(a.shape[1]):
        sums[k] = a[:, k].sum()
    return sums


def column_loop(n: int = 4096, deadline: float = 1.0) -> ColumnLoop:
    """Time the same loop over columns on an array in each order.

    Parameters
    ----------
    n : int
        From 64 on.
    deadline : float
        Seconds of sampling for each; up to four times as long where the ratio would have no interval else.

    Raises
    ------
    InputError
        If n is no whole number from 64 on, or the deadline no finite number above 0.
    """
    if not _given.is_whole(n) or n < 64:
        raise InputError(f"column_loop: n={shown(n)}; expected a whole number from 64 on. Pass for example n=4096.")
    n = int(n)
    by_rows = np.random.default_rng(0).random((n, n), dtype=np.float32)
    by_columns = np.asfortranarray(by_rows)
    c = _live.compared("column_loop", {"rows": lambda: sum_columns(by_rows), "columns": lambda: sum_columns(by_columns)}, deadline)
    found = {row.name: row.measurement for row in c.rows}
    notes = tuple(f"{name}: {code}" for name, m in found.items() for code in _live.doubts(m))
    return ColumnLoop(
        n, found["rows"].median_seconds, found["columns"].median_seconds, notes, c.rows[0].measurement.evidence, c.rows[1].speedup_interval
    )
