"""One matrix product in each library with five times for it, which answer different questions.

``gl.measure`` gives four of them; the fifth is what the library's own tutorials would time, done here as they do it. A library that is
not installed is named with the line that gets it; a GPU that is not here is spoken for by its recording.
"""

from __future__ import annotations

import math
import timeit
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np

from gpulab import _backends, _given, devices, timing
from gpulab.errors import GpulabError, InputError, message_of, shown
from gpulab.evidence import Evidence
from gpulab.lessons import _library, _live
from gpulab.lessons._recorded_gpus import recorded_gpus, with_captions
from gpulab.results import Result
from gpulab.timing._agreement import relative_difference
from gpulab.timing.recorded import measurement
from gpulab.units import format_ratio, format_seconds, plural

_ROWS_CHECKED = 16  # of the product, against float64
_TOLERANCE = 5e-3  # TF32 is allowed: JAX uses it by itself on some GPUs
_USUAL_CALLS = 10


@dataclass(frozen=True)
class FiveRow(Result):
    """One library.

    Attributes
    ----------
    library, device : str
    first_seconds, returned_seconds, finished_seconds, with_copies_seconds : float or None
        As ``gl.measure`` has them; None where it was not run or not recorded.
    usual_seconds : float or None
        What the usual timing says.
    usual, leaves_out : str
        How that is done, and what it leaves out.
    difference_ratio : float or None
        max|C - reference| / max|reference| of some rows, against float64.
    reason : str
        Why it was not run, or what to know of its figures.
    """

    library: str
    device: str
    first_seconds: float | None
    returned_seconds: float | None
    finished_seconds: float | None
    with_copies_seconds: float | None
    usual_seconds: float | None
    usual: str
    leaves_out: str
    difference_ratio: float | None
    reason: str

    @property
    def times(self) -> tuple[float, ...]:
        """The times that there are, in seconds."""
        five = (self.first_seconds, self.returned_seconds, self.finished_seconds, self.with_copies_seconds, self.usual_seconds)
        return tuple(time for time in five if time is not None)


@dataclass(frozen=True)
class FiveTimes(Result):
    """The same product in each library.

    Attributes
    ----------
    n : int
        The product is of two n x n matrices of float32.
    rows : tuple of FiveRow
        Measured here.
    recorded : tuple of FiveRow
        Of recorded GPUs.
    evidence : Evidence
    recorded_evidence : tuple of Evidence
    """

    n: int
    rows: tuple[FiveRow, ...]
    recorded: tuple[FiveRow, ...]
    evidence: Evidence
    recorded_evidence: tuple[Evidence, ...]

    @property
    def spread_ratio(self) -> float:
        """The longest of all times measured here over the shortest."""
        times = [time for row in self.rows for time in row.times]
        return max(times) / min(times)

    def of(self, library: str) -> FiveRow:
        """Return the row of a library.

        Raises
        ------
        InputError
            If there is no such row.
        """
        known = {row.library: row for row in self.rows}
        if library not in known:
            raise InputError(f"of: library {shown(library)}; expected one of {', '.join(known)}. Pass one of these.")
        return known[library]

    def __repr__(self) -> str:
        ran = [row for row in self.rows if row.times]
        many = plural(len(ran), "library", "libraries")
        return f"<one product, n = {self.n}: {many}, the longest time {format_ratio(self.spread_ratio)} the shortest>"

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        """Return one row a library, then the recorded GPUs."""
        headers = ("library", "on", "first call", "until it returned", "until it was done", "with both copies", "as usually timed")
        rows = [self._cells(row, "") for row in self.rows]
        return headers, rows + [self._cells(row, "RECORDED: ") for row in self.recorded]

    def _cells(self, row: FiveRow, badge: str) -> tuple[str, ...]:
        if not row.times:
            return row.library, "not run here", row.reason, "", "", "", ""
        five = (row.first_seconds, row.returned_seconds, row.finished_seconds, row.with_copies_seconds, row.usual_seconds)
        return (row.library, badge + row.device, *("not recorded yet" if time is None else format_seconds(time) for time in five))

    def caption(self) -> str:
        """Return the badge lines, and notes on single figures."""
        notes = [f"{row.library}: {row.reason}" for row in self.rows if row.times and row.reason]
        measured = self.evidence.sentence + (f" · {'; '.join(notes)}" if notes else "")
        return "\n".join((measured, *dict.fromkeys(one.sentence for one in self.recorded_evidence)))

    def _repr_html_(self) -> str:
        return with_captions(self)


@dataclass(frozen=True)
class UsualTimings(Result):
    """How each library is usually timed.

    Attributes
    ----------
    rows : tuple of FiveRow
    evidence : Evidence
    """

    rows: tuple[FiveRow, ...]
    evidence: Evidence

    def __repr__(self) -> str:
        return f"<usual timings of {', '.join(row.library for row in self.rows)}>"

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        """Return one row a library: the usual way, its figure over the honest one, and what it leaves out."""
        headers = ("library", "as usually timed", "it says", 'over "until it was done"', "what it leaves out")
        rows = [
            (row.library, row.usual, format_seconds(row.usual_seconds or math.nan), self._ratio(row), row.leaves_out) for row in self.rows
        ]
        return headers, rows

    def _ratio(self, row: FiveRow) -> str:
        return "" if not row.finished_seconds or row.usual_seconds is None else format_ratio(row.usual_seconds / row.finished_seconds)


@dataclass(frozen=True)
class _Way:
    """How one library does the product, and how it is usually timed."""

    label: str
    library: str
    usual: str
    leaves_out: str
    product: Callable[[Any], Callable[..., Any]]
    clock: Callable[[Callable[..., Any], tuple[Any, ...], Callable[[], Callable[..., Any]]], float]


def _best_of(fn: Callable[..., Any], args: tuple[Any, ...], fresh: Callable[[], Callable[..., Any]]) -> float:
    return min(timeit.repeat(lambda: fn(*args), number=2, repeat=5)) / 2


def _around_one(fn: Callable[..., Any], args: tuple[Any, ...], fresh: Callable[[], Callable[..., Any]]) -> float:
    start = perf_counter()
    kept = fn(*args)
    seconds = perf_counter() - start
    del kept
    return seconds


def _around_first(fn: Callable[..., Any], args: tuple[Any, ...], fresh: Callable[[], Callable[..., Any]]) -> float:
    return _around_one(fresh(), args, fresh)


def _mean_of_loop(fn: Callable[..., Any], args: tuple[Any, ...], fresh: Callable[[], Callable[..., Any]]) -> float:
    kept = []  # held, so that no call waits for memory that another one gives back
    start = perf_counter()
    for _ in range(_USUAL_CALLS):
        kept.append(fn(*args))
    seconds = (perf_counter() - start) / _USUAL_CALLS
    finish = _backends.waits_for(kept)
    if finish is not None:
        finish(kept)
    return seconds


_WAYS = (
    _Way("NumPy", "numpy", "best of five loops (timeit)", "how much the calls differ: the best one is not what a program pays",
         lambda np_: np_.matmul, _best_of),
    _Way("PyTorch", "torch", "time.time() around one call", "on a GPU nearly everything: the call has only queued the work",
         lambda torch: torch.matmul, _around_one),
    _Way("TensorFlow", "tensorflow", "time.time() around the first call", "that tf.function traces then, once",
         lambda tf: tf.function(tf.linalg.matmul), _around_first),
    _Way("JAX", "jax", f"the mean of {_USUAL_CALLS} calls in a loop", "the work, on a CPU too: the calls return before it is done",
         lambda jax: jax.jit(lambda x, y: x @ y), _mean_of_loop),
    _Way("CuPy", "cupy", "time.time() around one call", "nearly everything: the call has only queued the work",
         lambda cupy: cupy.matmul, _around_one),
)  # fmt: skip


def five_times(n: int = 1024, deadline: float = 0.6) -> FiveTimes:
    """Multiply two n x n matrices of float32 in every library that is here, and take five times for each.

    Parameters
    ----------
    n : int
        From 16 on.
    deadline : float
        Seconds of sampling for each library; the copies come on top.

    Returns
    -------
    FiveTimes

    Raises
    ------
    InputError
        If n is no whole number from 16 on.
    """
    if not _given.is_whole(n) or n < 16:
        raise InputError(f"five_times: n={shown(n)}; expected a whole number from 16 on. Pass for example n=1024.")
    n = int(n)
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((n, n), dtype=np.float32) for _ in range(2))
    rows = tuple(_measured(way, a, b, deadline) for way in _WAYS)
    names = dict.fromkeys(devices.find(row.device).name for row in rows if row.times)
    recorded = tuple(_recorded(n)) if devices.default().is_cpu else ()
    return FiveTimes(n, rows, tuple(row for row, _ in recorded), Evidence.measured(" and ".join(names)), tuple(e for _, e in recorded))


def usual_timings(found: FiveTimes) -> UsualTimings:
    """Return how each library of ``five_times`` is usually timed, what that says, and what it leaves out.

    Parameters
    ----------
    found : FiveTimes

    Raises
    ------
    InputError
        If it is something else.
    """
    if not isinstance(found, FiveTimes):
        raise InputError(f"usual_timings: got {shown(found)}; expected what five_times gives. Pass gl.lessons.five_times().")
    return UsualTimings(tuple(row for row in found.rows if row.usual_seconds is not None), found.evidence)


def _measured(way: _Way, a: np.ndarray, b: np.ndarray, deadline: float) -> FiveRow:
    nothing = (None, None, None, None, None, way.usual, way.leaves_out, None)
    why = _library.missing(way.library)
    if not why and way.library == "cupy" and devices.default().torch_type != "cuda":
        why = "CuPy needs a CUDA device"
    if why:
        return FiveRow(way.label, "", *nothing, why)
    try:
        owner = _backends.backend(way.library)
        there = tuple(_placed(x, way.library) for x in (a, b))
        fn = way.product(owner.module)
        m = timing.measure(fn, *there, deadline=deadline, transfer=True, flops=2.0 * len(a) ** 3, label=way.label)
        usual = way.clock(fn, there, lambda: way.product(owner.module))
        difference = _difference(owner.to_host(fn(*there)), a, b)
    except GpulabError as error:
        return FiveRow(way.label, "", *nothing, message_of(error))
    doubts = [*(code for code in _live.doubts(m) if code != "skipped"), *(["the product is wrong"] if difference > _TOLERANCE else [])]
    return FiveRow(
        way.label, m.device, m.first_call_seconds, m.launch_seconds, m.median_seconds, m.with_transfer_seconds, usual, way.usual,
        way.leaves_out, difference, ", ".join(doubts),
    )  # fmt: skip


def _placed(x: np.ndarray, library: str) -> Any:
    from gpulab import arrays

    return arrays.to_device(x, library=library)


def _difference(product: np.ndarray, a: np.ndarray, b: np.ndarray) -> float:
    chosen = np.linspace(0, len(a) - 1, _ROWS_CHECKED).astype(int)
    return relative_difference([product[chosen].astype(np.float64)], [a[chosen].astype(np.float64) @ b.astype(np.float64)])


def _recorded(n: int) -> Sequence[tuple[FiveRow, Evidence]]:
    """Return what recorded GPUs took for the same product in PyTorch; a size that was not recorded is left out."""
    found = []
    for recording in recorded_gpus().values():
        entry = recording.find("catalogue", workload="matmul", n=n, dtype="float32")
        m = None if entry is None else measurement(recording, entry)
        if m is None:
            continue
        row = FiveRow(
            "PyTorch", recording.environment.device, m.first_call_seconds, m.launch_seconds, m.median_seconds, m.with_transfer_seconds,
            None, "", "", None, "",
        )  # fmt: skip
        found.append((row, recording.evidence(entry)))
    return found
