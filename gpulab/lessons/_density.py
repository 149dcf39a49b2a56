"""What notebook 03 works with: the roofs of this machine as the learner saw them, more arithmetic on the same bytes, and fusion.

The roofs are kept until the kernel ends, so that the checks speak of the numbers that the learner saw.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from gpulab import _given, devices, memory, models, timing, workloads
from gpulab.errors import InputError, shown
from gpulab.evidence import Evidence, Note
from gpulab.lessons import _live
from gpulab.lessons._material import disturbed
from gpulab.results import Result
from gpulab.timing.results import format_ratio_interval
from gpulab.units import format_bytes, format_flops_per_second, format_ratio, format_seconds

# A ceiling is the best that was seen; where neighbours were at work it is looked for this often.
_TRIES = 2
# 64 MiB in and 64 MiB out: beyond the caches of most machines, and a quick pass on any.
_NUMBERS = 1 << 24
_MOST_NUMBERS = 1 << 40  # 4 TiB; what does not fit is refused by the device
_STEPS = (8, 16, 32, 64, 128, 256)
_SWEEP_SECONDS = 0.3
_RACE_SECONDS = 0.7
# From this factor over the shortest time on, time counts as moved: more than two thirds beyond what noise usually does.
_MOVED = 2.0
# Where a CPU is busy: products from a fraction of a millisecond to 200 milliseconds, each size for a while.
_PRODUCTS, _PRODUCT_SECONDS = (256, 512, 1024), 0.3
_kept: models.Roofline | None = None


def roof(again: bool = False) -> models.Roofline:
    """Return the measured roofs of this machine's best device; the same ones until the kernel ends.

    Where other programs were at work it is measured twice, and of each roof the highest stays.

    Parameters
    ----------
    again : bool
        Measure afresh.

    Examples
    --------
    >>> roof() is roof()
    True
    """
    global _kept
    if _kept is None or again:
        best = models.roofline(devices.default(), refresh=again)
        for _ in range(_TRIES - 1):
            if not disturbed(note.code for note in best.notes):
                break
            best = _highest(best, models.roofline(devices.default(), refresh=True))
        _kept = _with_larger_product(_pointing_here(best)) if disturbed(note.code for note in best.notes) else best
    return _kept


def _pointing_here(found: models.Roofline) -> models.Roofline:
    """Let the notes name the call that the learner has: these roofs are kept here."""
    notes = (
        dataclasses.replace(note, sentence=note.sentence.replace("refresh=True", "gl.lessons.roof(again=True)")) for note in found.notes
    )
    return dataclasses.replace(found, notes=tuple(notes))


def _with_larger_product(found: models.Roofline, clock: Callable[[], float] = time.perf_counter) -> models.Roofline:
    """Raise the float32 roof to what more and larger products reach.

    On a busy CPU nearly every short product waits for a thread that lost its core, so the quick look of ``devices.ceilings``
    finds next to nothing. Many short ones meet a quiet moment, long ones outlast the waiting.
    """
    import torch

    if not devices.default().is_cpu:
        return found
    best, source = 0.0, ""
    for n in _PRODUCTS:
        a, out = torch.rand(n, n, generator=torch.Generator().manual_seed(0)), torch.empty(n, n)
        shortest, start, end = math.inf, clock(), clock() + _PRODUCT_SECONDS
        while start < end:
            torch.mm(a, a, out=out)
            now = clock()
            shortest, start = min(shortest, now - start), now
        if 2.0 * n**3 / shortest > best:
            best, source = 2.0 * n**3 / shortest, f"the best product of {n} x {n} matrices, just now"
    tops = tuple(
        dataclasses.replace(top, flops_per_second=best, source=source) if top.name == "float32" and best > top.flops_per_second else top
        for top in found.arithmetic
    )
    return dataclasses.replace(found, arithmetic=tops)


def _highest(one: models.Roofline, other: models.Roofline) -> models.Roofline:
    """Return the higher of each roof, with the notes and the badge of the later look."""
    tops = {each.name: each for each in (*one.arithmetic, *other.arithmetic)}
    slopes = {each.name: each for each in (*one.memory, *other.memory)}
    for top in one.arithmetic:
        tops[top.name] = max(top, tops[top.name], key=lambda each: each.flops_per_second)
    for slope in one.memory:
        slopes[slope.name] = max(slope, slopes[slope.name], key=lambda each: each.bytes_per_second)
    return dataclasses.replace(other, arithmetic=tuple(tops.values()), memory=tuple(slopes.values()))


# -- more arithmetic on the same bytes -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class DensityRow(Result):
    """One amount of arithmetic.

    Attributes
    ----------
    multiply_adds : int
        For each number of the array.
    seconds, flops, nbytes : float
        Of one pass.
    notes : str
        Codes of what disturbed the measurement.
    """

    multiply_adds: int
    seconds: float
    flops: float
    nbytes: float
    notes: str


@dataclass(frozen=True)
class DensitySweep(Result):
    """The same array passed over with more and more arithmetic.

    Attributes
    ----------
    numbers : int
        In the array.
    rows : tuple of DensityRow
    evidence : Evidence
    """

    numbers: int
    rows: tuple[DensityRow, ...]
    evidence: Evidence

    @property
    def free_multiply_adds(self) -> int:
        """The most multiply-adds a number up to which, from the fastest pass on, none took twice as long.

        What comes before the fastest does not count: a product of thin rows can be slow by itself.
        """
        seconds = [row.seconds for row in self.rows]
        fastest = seconds.index(min(seconds))
        free = self.rows[fastest].multiply_adds
        for row in self.rows[fastest:]:
            if row.seconds > _MOVED * seconds[fastest]:
                break
            free = row.multiply_adds
        return free

    def __repr__(self) -> str:
        return f"<{self.numbers} numbers: up to {self.free_multiply_adds} multiply-adds each within twice the shortest time>"

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        """Return one row an amount of arithmetic."""
        least = min(row.seconds for row in self.rows)
        headers = ("multiply-adds a number", "FLOP a byte", "bytes", "time", "over the shortest", "arithmetic", "notes")
        return headers, [
            (
                str(row.multiply_adds),
                f"{row.flops / row.nbytes:.3g}",
                format_bytes(row.nbytes),
                format_seconds(row.seconds),
                format_ratio(row.seconds / least),
                format_flops_per_second(row.flops / row.seconds),
                row.notes or "none",
            )
            for row in self.rows
        ]


def arithmetic_sweep(numbers: int = _NUMBERS, steps: Sequence[int] = _STEPS, device: Any = None, deadline: float = 2.0) -> DensitySweep:
    """Measure passes over one array that differ only in how much they compute.

    The array, seen as rows of k numbers, is multiplied with a k x k matrix, which a cache holds: each number is read once and written
    once whatever k is, and each result takes k multiply-adds. (The matrix's own bytes are counted too.)

    A pass that others disturbed and that took twice as long as one with more arithmetic is timed once more.

    Parameters
    ----------
    numbers : int
        Float32 values in the array; a multiple of every step.
    steps : sequence of int
        Multiply-adds a number; taken from few to many.
    device : Device or str, optional
        None takes the best there is.
    deadline : float
        Seconds in all.

    Raises
    ------
    InputError
        If the number of values or a step is no whole number, a step does not divide it, or there is none.
    DeviceError
        If there is no such device.
    """
    import torch

    where = devices.find(device)
    numbers = _given.whole("arithmetic_sweep", "numbers", numbers, 1, _MOST_NUMBERS)
    several = _given.items("arithmetic_sweep", "steps", steps)
    for k in several:
        if not _given.is_whole(k) or k < 1 or numbers % int(k):
            raise InputError(
                f"arithmetic_sweep: step {shown(k)} does not divide {numbers} numbers; expected a divisor. Pass for example 64."
            )
    if not several:
        raise InputError("arithmetic_sweep: there are no steps; expected at least one. Leave steps out.")
    steps = sorted(int(k) for k in several)
    generator = torch.Generator().manual_seed(0)
    given = torch.rand(numbers, generator=generator).to(str(where))
    out = torch.empty_like(given)

    def timed(k: int) -> DensityRow:
        matrix = torch.rand(k, k, generator=generator).to(str(where))
        pass_over = functools.partial(torch.mm, given.view(-1, k), matrix, out=out.view(-1, k))
        flops, nbytes = 2.0 * k * numbers, 4.0 * (2 * numbers + k * k)
        m = timing.measure(pass_over, device=where, deadline=min(_SWEEP_SECONDS, deadline / len(steps)), flops=flops, nbytes=nbytes)
        codes = ", ".join(dict.fromkeys(note.code for note in m.notes if disturbed([note.code])))
        return DensityRow(k, m.median_seconds, flops, nbytes, codes)

    rows = [timed(k) for k in steps]
    fastest = min(range(len(rows)), key=lambda i: rows[i].seconds)
    # With less arithmetic a pass should not take twice as long as the fastest. Where others were at work it may be their doing, so it is
    # timed once more; a product of thin rows can be slow by itself, and then stays so.
    rows[:fastest] = [
        timed(row.multiply_adds) if row.notes and row.seconds > _MOVED * rows[fastest].seconds else row for row in rows[:fastest]
    ]
    return DensitySweep(numbers, tuple(rows), Evidence.measured(where.name))


# -- fusion ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FusionGain(Result):
    """Operators one by one against one fused pass.

    Attributes
    ----------
    label : str
    separate_bytes, fused_bytes : float
        What the operators move one by one, and what one pass would.
    separate_seconds, fused_seconds : float or None
        Of both, taking turns; None where the fused one cannot run here.
    reason : str
        Why it cannot; else "".
    evidence : Evidence
        MEASURED, or MODELLED where only the bytes are known.
    speedup, speedup_interval : float or None, (float, float) or None
        As the race reports them: None where there was none, where the results disagree or a time is impossible.
    notes : tuple of Note
        Of the race, and what may be wrong with its times.
    """

    label: str
    separate_bytes: float
    fused_bytes: float
    separate_seconds: float | None
    fused_seconds: float | None
    reason: str
    evidence: Evidence
    speedup: float | None = None
    speedup_interval: tuple[float, float] | None = None
    notes: tuple[Note, ...] = ()

    @property
    def bytes_ratio(self) -> float:
        """How many times the bytes of one pass the operators move one by one."""
        return self.separate_bytes / self.fused_bytes

    def __repr__(self) -> str:
        ratio = format_ratio(self.bytes_ratio) if self.separate_seconds is None else self._raced()
        return f"<{self.label}: one by one / fused {ratio} ({self.evidence.badge})>"

    def _raced(self) -> str:
        """The speed-up with its interval and what to know of it, such as "2.9x [2.6x, 3.2x] (contended)"."""
        bare = self.speedup_interval is None  # what stands there says so, and needs no code
        codes = ", ".join(dict.fromkeys(note.code for note in self.notes if not (bare and note.code == "no-interval")))
        said = "no speed-up" if self.speedup is None else f"{format_ratio(self.speedup)} {format_ratio_interval(self.speedup_interval)}"
        return said + (f" ({codes})" if codes else "")

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        """Return both ways, their bytes and their times, and the notes."""
        rows = [
            (name, format_bytes(nbytes), "not measured" if seconds is None else format_seconds(seconds))
            for name, nbytes, seconds in (
                ("one by one", self.separate_bytes, self.separate_seconds),
                ("fused", self.fused_bytes, self.fused_seconds),
            )
        ]
        rows.append(("one by one / fused", format_ratio(self.bytes_ratio), self.reason or self._raced()))
        rows += [(f"note: {note.code}", note.sentence, "") for note in self.notes]
        return (self.label, "bytes (MODELLED)", "time"), rows


def fusion_gain(fn: Callable[..., Any], fused: Callable[..., Any], *args: Any) -> FusionGain:
    """Compare a chain of operators with its compiled form; where that cannot run here, by their bytes alone.

    Parameters
    ----------
    fn : callable
        The operators one by one.
    fused : callable
        The same, compiled: what ``torch.compile(fn)`` returned.
    *args
        What both take, on any device.

    Raises
    ------
    InputError
        If ``fn`` cannot run on these arguments.
    """
    moved = memory.traffic(fn, *args)
    label = moved.label
    try:
        fused(*args)
    except Exception as error:  # no compiler, or one that fails: then the bytes must do
        reason = "no C++ compiler" if "C++ compiler" in str(error) else f"torch.compile failed: {type(error).__name__}"
        modelled = Evidence.modelled("time follows the bytes moved", "gpulab.memory.traffic of both forms")
        return FusionGain(label, moved.nbytes, moved.compulsory_bytes, None, None, reason, modelled)

    race = timing.compare({"one by one": fn, "fused": fused}, *args, devices=[_device(args)], deadline=_RACE_SECONDS)
    slow, fast = (row.measurement for row in race.rows)
    of_forms: dict[Note, list[str]] = {}  # the same is often true of both
    for row in race.rows:
        for note in row.measurement.notes:
            if note.code in _live.doubts(row.measurement):
                of_forms.setdefault(note, []).append(row.name)
    notes = (*race.notes, *(Note(note.code, f"{' and '.join(names)}: {note.sentence}") for note, names in of_forms.items()))
    return FusionGain(
        label, moved.nbytes, moved.compulsory_bytes, slow.median_seconds, fast.median_seconds, "", race.evidence,
        race.speedup, race.speedup_interval, notes,
    )  # fmt: skip


def _device(args: Sequence[Any]) -> Any:
    """Return the device of the first tensor among the arguments."""
    return next((str(each.device) for each in args if hasattr(each, "device")), "cpu")


def under_roof(works: Iterable[workloads.Workload], deadline: float = 0.3) -> models.Roofline:
    """Measure workloads on this machine's best device and return its roofs with them beneath.

    Parameters
    ----------
    works : iterable of Workload
        From ``gpulab.workloads``.
    deadline : float
        Seconds for each.
    """
    device, points = devices.default(), []
    for work in works:
        m = timing.measure(work.run, *work.inputs(device), device=device, deadline=deadline, label=work.label)
        top = work.arithmetic_on(device)  # a float32 convolution may use TF32
        known = any(each.name == top for each in roof().arithmetic)
        points.append(roof().place_workload(work, m, arithmetic=top if known else None))
    return roof().with_points(points)


# -- a point far under the roof -----------------------------------------------------------------------------------------------

COLUMN_ROWS, COLUMN_WIDTH = 1 << 20, 64


def column_sum() -> models.RooflinePoint:
    """Measure the sum of one column of a large matrix on the CPU, and place it by the bytes of its numbers.

    The matrix has 2^20 rows of 64 float32 numbers, stored row by row; its column 0 is 4 MiB of numbers in 256 MiB.
    """
    import torch

    matrix = torch.ones(COLUMN_ROWS, COLUMN_WIDTH)
    column = matrix[:, 0]
    m = timing.measure(column.sum, device="cpu", deadline=0.5, label="sum of a column")
    here = roof() if devices.default().is_cpu else models.roofline("cpu")
    return here.place("sum of a column", flops=COLUMN_ROWS - 1, nbytes=4.0 * COLUMN_ROWS, seconds=m.median_seconds, evidence=m.evidence)
