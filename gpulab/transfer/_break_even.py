"""The break-even size: where the accelerator becomes faster although data is copied both ways."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from gpulab import _backends, _validate, devices, timing, workloads
from gpulab.devices import Device
from gpulab.errors import InputError, OutOfMemoryError, StoppedError
from gpulab.evidence import Evidence, Note, known_errors
from gpulab.recordings import Recording, load
from gpulab.timing.measuring import Series
from gpulab.timing.sampling import Progress, Stop
from gpulab.transfer._links import DEFAULT_LINK, Link, ProcessorModel, named_link, processor
from gpulab.transfer.copies import BreakEven, BreakEvenRow
from gpulab.units import format_seconds
from gpulab.workloads import Workload, WorkloadSpec

# A function of the work, its inputs on the host, and the deadline. It returns the accelerator's
# seconds with both copies and the notes on them, or a note that says why there is no time.
DeviceTime = Callable[[Workload, tuple[Any, ...], float], "tuple[float, tuple[Note, ...]] | Note"]

_DEFAULT_PROCESSOR = "nvidia-h200"
# Each size is measured twice, and for at least this long.
_LEAST_SECONDS = 0.05


def break_even(
    workload: str | WorkloadSpec,
    sizes: Iterable[int] | None = None,
    device: Any = None,
    *,
    link: Link | str | None = None,
    processor: ProcessorModel | str | None = None,
    recording: Recording | str | None = None,
    dtype: str = "float32",
    deadline: float = 30.0,
    progress: Progress | None = None,
    stop: Stop | None = None,
    **params: int,
) -> BreakEven:
    """Find the smallest size from which an accelerator is faster than the CPU with both copies
    counted.

    The CPU is always measured here. The accelerator is measured where there is one; or modelled,
    with ``link`` or ``processor``; or looked up, with ``recording``.

    Parameters
    ----------
    workload : str or WorkloadSpec
    sizes : iterable of int, optional
        Sizes of the workload; by default the workload's own list.
    device : Device or str, optional
        The accelerator; the best one available by default.
    link : Link or str, optional
        A modelled link in place of this machine's; without ``processor`` it is combined with the
        modelled H200.
    processor : ProcessorModel or str, optional
        Modelled compute; without ``link`` it is combined with PCIe 4 x16.
    recording : Recording or str, optional
        A recorded machine's times with copies in place of a model; only the workload's usual
        parameters are recorded.
    dtype : str
    deadline : float
        Seconds for the whole search. Sizes that would take longer are left out, with a note.
    progress, stop : callable, optional
        ``stop`` is called between the calls of a measurement; if it returns True, the result covers
        the sizes reached.
    **params : int
        Of the workload.

    Returns
    -------
    BreakEven
        ``reason`` is "no accelerator" where there is none, or where the CPU was named, and neither
        a model nor a recording was given; "not found so far" where the search ended before the last
        size.

    Raises
    ------
    InputError
        If the workload, a size, the dtype or a model is not known.
    RecordingError
        If there is no such recording.
    DeviceError
        If the machine has no such device.
    StoppedError
        If it was stopped before the first size.

    Examples
    --------
    >>> break_even("add", device="cpu").reason
    'no accelerator'
    """
    spec = workload if isinstance(workload, WorkloadSpec) else workloads.get(workload)
    wanted, example = spec.sizes if sizes is None else sizes, f"sizes={list(spec.sizes[:3])}"
    chosen = _validate.items("break_even", "sizes", wanted, example)
    ascending = sorted({spec(n=n).n for n in chosen})
    works = [spec(n=n, dtype=dtype, **params) for n in ascending]
    where = devices.find(device)
    series = Series("break_even", len(works), deadline, progress, stop)
    label = f"{spec.name} {works[0].dtype}"
    if recording is None and link is None and processor is None and where.is_cpu:
        missing = (
            "This machine has no accelerator"
            if devices.default().is_cpu
            else "No accelerator was named"
        )
        sentence = (
            f"{missing} to compare {where.name} with; pass link='pcie4-x16' for a modelled one, or "
            "a recording."
        )
        return BreakEven(
            label, None, "no accelerator", sentence, (), (), Evidence.measured(where.name, 0)
        )
    other = _other(where, link, processor, recording, series.stop)
    search = _Search(other, series)
    complete = all(map(search.size, works))
    series.done = series.total
    series.report("done")
    if not search.rows and series.stopped:
        raise StoppedError(
            "break_even: stopped before the first size; expected at least one. Run it again."
        )
    size, reason, sentence = (
        _answer(search.rows)
        if search.rows
        else (None, "never in this range", f"No size of {label} could be compared.")
    )
    if search.rows and size is None and not complete:
        reason = "not found so far"
    return BreakEven(
        label,
        size,
        reason,
        sentence,
        tuple(search.rows),
        (*search.notes, *search.disturbances()),
        other.evidence,
        Evidence.measured(devices.find("cpu").name) if search.rows else None,
    )


def _answer(rows: Sequence[BreakEvenRow]) -> tuple[int | None, str, str]:
    """Return (size, reason, sentence) for rows of ascending size.

    The size is where the two curves cross for the last time; between the tried sizes they are
    interpolated as straight lines on log-log scales.
    """
    smallest, last = rows[0].n, rows[-1]
    tried = f"n = {smallest} to {last.n}" if len(rows) > 1 else f"n = {smallest}"
    if last.speedup <= 1:
        best = max(rows, key=lambda row: row.speedup)
        best_size = "; it does win at" if best.speedup > 1 else "; it comes closest at"
        return (
            None,
            "never in this range",
            f"The accelerator does not win at the largest size tried ({tried}){best_size} n = "
            f"{best.n} (a speed-up of {best.speedup:.2f}x).",
        )
    first = max((i + 1 for i, row in enumerate(rows) if row.speedup <= 1), default=0)
    if first == 0:
        return (
            smallest,
            "found",
            f"The accelerator wins at every size tried ({tried}); the break-even lies at "
            f"{smallest} or below.",
        )
    below, above = rows[first - 1 : first + 1]
    low, high = math.log(below.speedup), math.log(above.speedup)
    share = -low / (high - low)  # low is 0 or less, and high above 0
    size = round(math.exp(math.log(below.n) + share * math.log(above.n / below.n)))
    return (
        size,
        "found",
        f"The accelerator wins above about n = {size}, copies counted (tried {tried}).",
    )


class _Other(NamedTuple):
    """The accelerator, measured, modelled or recorded: its times with copies, their evidence, and a
    check whether a workload can run there.
    """

    time: DeviceTime
    evidence: Evidence
    check: Callable[[Workload], None] = lambda _: None


def _other(
    where: Device,
    link: Link | str | None,
    model: ProcessorModel | str | None,
    recording: Recording | str | None,
    stop: Stop | None,
) -> _Other:
    if recording is not None:
        if link is not None or model is not None:
            raise InputError(
                "break_even: got both a recording and a model (link or processor); expected only "
                "one of them. Leave one out."
            )
        return _recorded(recording if isinstance(recording, Recording) else load(recording))
    if link is not None or model is not None:
        return _modelled(
            named_link(DEFAULT_LINK if link is None else link),
            processor(_DEFAULT_PROCESSOR if model is None else model),
        )
    return _measured(where, stop)


def _recorded(recording: Recording) -> _Other:
    def time_of(
        w: Workload, inputs: tuple[Any, ...], deadline: float
    ) -> tuple[float, tuple[Note, ...]] | Note:
        entry = recording.find("catalogue", workload=w.name, n=w.n, dtype=w.dtype)
        # the catalogue is recorded with its usual parameters only
        usual = dict(w.params) == dict(w.spec.params)
        if (
            not usual
            or entry is None
            or entry.timing is None
            or entry.timing.with_transfer_seconds is None
        ):
            return Note("skipped", f"{w.label} is not in the recording {recording.name}.")
        known = tuple(
            Note(note.code, f"as recorded, {note.symptom}") for note in entry.timing.notes
        )
        return entry.timing.with_transfer_seconds, known

    return _Other(time_of, recording.evidence(experiment="catalogue"))


def _modelled(link: Link, model: ProcessorModel) -> _Other:
    def time_of(
        w: Workload, inputs: tuple[Any, ...], deadline: float
    ) -> tuple[float, tuple[Note, ...]]:
        there = sum(link.seconds(nbytes) for nbytes in _sizes_of(inputs))
        back = link.seconds(sum(_sizes_of((w.run(*inputs),))))
        return there + model.seconds(w.flops, w.nbytes, w.dtype) + back, ()

    evidence = Evidence.modelled(
        f"link {link.name}: {link.evidence.assumptions or 'the fit of a sweep'}; compute: "
        f"{model.evidence.assumptions}; nothing overlaps",
        f"{link.evidence.source or 'a sweep on this machine'}; {model.evidence.source}",
        known_errors(link=link.evidence, compute=model.evidence),
    )
    return _Other(time_of, evidence)


def _measured(where: Device, stop: Stop | None) -> _Other:
    def time_of(
        w: Workload, inputs: tuple[Any, ...], deadline: float
    ) -> tuple[float, tuple[Note, ...]] | Note:
        there = w.inputs(where)
        result = w.run(*there)
        difference = w.difference(result, there)
        if not difference <= w.tolerance:
            return Note(
                "disagree",
                f"{w.label} on {where.name} differs from the float64 reference by "
                f"{difference:.1e}; {w.tolerance:.1e} is allowed.",
            )
        m = timing.measure(
            w.run,
            *there,
            device=where,
            deadline=deadline,
            transfer=True,
            flops=w.flops,
            nbytes=w.nbytes,
            label=w.label,
            stop=stop,
        )
        if m.with_transfer_seconds is None:  # only a stop leaves it out
            raise StoppedError(
                f"break_even: stopped before {w.label} was timed with its copies; there is nothing "
                "to compare. Run it again."
            )
        return m.with_transfer_seconds, m.notes

    return _Other(time_of, Evidence.measured(where.name), lambda w: w.check(where))


def _sizes_of(arrays: tuple[Any, ...]) -> list[int]:
    """Return the bytes of each array among the inputs; other inputs (a model with its optimizer)
    stay on their device and are not copied.
    """
    owners = ((a, _backends.backend_of(a)) for a in arrays)
    return [owner.nbytes(a) for a, owner in owners if owner is not None]


# Notes on a measurement that make its time doubtful; notes on set-up, batching and deadlines are
# normal in a search. A row shows no interval, so a median of too few samples is reported too.
_DISTURBANCES = ("contended", "unstable", "stalled", "throttled", "implausible", "no-interval")


class _Search:
    """A search in progress."""

    def __init__(self, other: _Other, series: Series) -> None:
        self.other, self.series = other, series
        self.rows: list[BreakEvenRow] = []
        self.notes: list[Note] = []
        self._pace = 0.0  # seconds of a call per operation or byte, at the previous size
        # (side, the note's code) -> (size, the note's sentence)
        self._disturbed: dict[tuple[str, str], list[tuple[int, str]]] = {}

    def size(self, w: Workload) -> bool:
        """Compare one size; returns whether to go on to larger ones."""
        again, left = "run it again for larger sizes.", self.series.left
        if self.series.must_stop():
            return self._ends("stopped", f"The search was stopped before n = {w.n}; {again}")
        expected = self._pace * max(w.flops, w.nbytes)
        if self._pace and expected * 3 > left:
            return self._ends(
                "skipped",
                f"Sizes from n = {w.n} upwards were left out: a call takes about "
                f"{format_seconds(expected)}, and {format_seconds(max(left, 0.0))} of the deadline "
                "is left. Pass a longer deadline.",
            )
        self.series.report(w.label)
        self.series.done += 1
        try:
            w.check("cpu")
            self.other.check(w)
            with self.series:
                self._compare(w, max(left / 8, _LEAST_SECONDS))
        except OutOfMemoryError as error:
            return self._ends("skipped", str(error))
        except InputError as error:
            self.notes.append(Note("skipped", str(error)))
        if self.series.stopped:
            return self._ends("stopped", f"The search was stopped at n = {w.n}; {again}")
        return True

    def _ends(self, code: str, sentence: str) -> bool:
        self.notes.append(Note(code, sentence))
        return False

    def disturbances(self) -> list[Note]:
        """Return one note for each kind of disturbance of each side's measurements, with all sizes
        and the first size's sentence.
        """
        return [
            Note(
                code,
                f"The {side}'s times at n = {', '.join(str(n) for n, _ in found)} may be wrong, "
                f"and so may the break-even. At n = {found[0][0]}: {found[0][1]}",
            )
            for (side, code), found in self._disturbed.items()
        ]

    def _compare(self, w: Workload, deadline: float) -> None:
        inputs = w.inputs("cpu")
        host = timing.measure(
            w.run,
            *inputs,
            device="cpu",
            deadline=deadline,
            flops=w.flops,
            nbytes=w.nbytes,
            label=w.label,
            stop=self.series.stop,
        )
        self._pace = host.median_seconds / max(w.flops, w.nbytes, 1.0)
        device = self.other.time(w, inputs, deadline)
        if isinstance(device, Note):
            self.notes.append(device)
            return
        seconds, noted = device
        for side, notes in (("CPU", host.notes), ("accelerator", noted)):
            for note in notes:
                if note.code in _DISTURBANCES:
                    found = self._disturbed.setdefault((side, note.code), [])
                    found.append((w.n, note.sentence))
        copied = float(sum(_sizes_of((*inputs, w.run(*inputs)))))
        self.rows.append(BreakEvenRow(w.n, host.median_seconds, seconds, copied))
