"""Copy and compute at the same time, in chunks: on a GPU with two streams, on a CPU with a second
thread, or over a modelled link.
"""

from __future__ import annotations

import functools
import queue
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from gpulab import _validate, devices, timing
from gpulab.devices import Device
from gpulab.errors import InputError, StoppedError
from gpulab.evidence import Evidence, Note
from gpulab.timing import Measurement
from gpulab.timing.sampling import Progress, Stop
from gpulab.transfer._links import BYTES, Link, check_room, named_link
from gpulab.transfer.copies import Overlap, Span
from gpulab.units import format_bytes, format_seconds, plural

Work = Callable[[Any], Any]

ITEMSIZE = 4  # float32 chunks
_MOST_PASSES = 2000
# Turns of copy and compute from which the number of passes is chosen. The shortest time of each
# counts: the first turn also pays for its pages, and any turn may be interrupted.
_TURNS = 3
# The second trial corrects what disturbed the first.
_TRIALS = 2
# A factor that keeps values near 1 over any number of passes.
_FACTOR = 1.0000001
# Runs of each arrangement; the one with the median time is reported.
_REPEATS = 7
# If copy and compute ran together for less than this share of the shorter lane, a note says that
# they did not overlap.
_TOGETHER_SHARE = 0.1
# Runs that disagree by less than this share of the possible gain show well enough that there was no
# gain.
_DISAGREE_SHARE = 0.5
# From this many runs on, the extreme run at each end is left out of that comparison: it may have
# been interrupted, which does not affect the median.
_FEWEST_TO_TRIM = 5


@_validate.arguments(
    work=functools.partial(
        _validate.instance,
        kind=Callable,
        expected="a function of one chunk. Leave it out for the default work.",
    ),
    compute_seconds=_validate.within,
    progress=_validate.hook,
    stop=_validate.hook,
)
def overlap(
    nbytes: int = 64 * 2**20,
    chunks: int = 8,
    work: Work | None = None,
    device: Any = None,
    *,
    link: Link | str | None = None,
    compute_seconds: float | None = None,
    progress: Progress | Any = _validate.LEFT_OUT,
    stop: Stop | Any = _validate.LEFT_OUT,
) -> Overlap:
    """Copy an array in chunks, and compute on each chunk while the next one is being copied.

    On CUDA: from pinned memory, on two streams, timed by events. On a machine without it: one
    thread copies within host memory, another computes. With ``link``: a model, nothing is measured.

    Parameters
    ----------
    nbytes : int
        Bytes of all chunks together, at least 4 per chunk.
    chunks : int
    work : callable, optional
        Takes a chunk (a float32 torch tensor on the GPU, a numpy array on the CPU). By default, as
        many passes over the chunk as take about as long as its copy, because overlap then gains the
        most.
    device : Device or str, optional
    link : Link or str, optional
        A modelled link.
    compute_seconds : float, optional
        For a modelled link: the compute time of all chunks together; by default the time of one
        copy of all bytes.
    progress, stop : callable, optional

    Returns
    -------
    Overlap
        With the note "no-overlap" where the two did not run at the same time, "implausible" where
        the gain is larger than possible, and "unstable" where the runs disagree by more than the
        gain.

    Raises
    ------
    InputError
        If a size, a number of chunks or a time is not valid.
    OutOfMemoryError
        If the buffers do not fit.
    StoppedError
        If it was stopped before anything was measured.

    Examples
    --------
    >>> o = overlap(2**20, chunks=4, link="pcie4-x16")
    >>> 0 < o.ratio < 1
    True
    """
    size, count = _checked("overlap", nbytes, chunks)
    if link is not None:
        return _modelled(size, count, named_link(link), compute_seconds)
    if compute_seconds is not None:
        raise InputError(
            "overlap: got compute_seconds without a link; expected it only with a modelled link. "
            "Pass link='pcie4-x16' too."
        )
    where, lanes = _lanes("overlap", size, count, work, device)
    with devices.guard(
        f"overlap: copying {size} bytes in {plural(count, 'chunk')} on {where.name}"
    ):
        lanes.copy(), lanes.compute(), lanes.chunked()  # a run that is thrown away
        turns: list[Overlap] = []
        while len(turns) < _REPEATS and not stop():
            progress(len(turns) / _REPEATS, f"run {len(turns) + 1} of {_REPEATS}")
            times = lanes.copy(), lanes.compute(), *lanes.chunked()
            turns.append(
                Overlap(where.name, size, count, *times, (), Evidence.measured(where.name))
            )
    if not turns:
        raise StoppedError(
            "overlap: stopped before the first run; expected at least one. Run it again."
        )
    progress(1.0, "done")
    return _result(turns)


@_validate.arguments(deadline=_validate.deadline)
def measure_overlap(
    nbytes: int, chunks: int, device: Any = None, deadline: float = 2.0
) -> tuple[Measurement, Measurement]:
    """Measure copy and default work of ``overlap``, one after the other and in overlapping chunks.

    Parameters
    ----------
    nbytes, chunks : int
    device : Device or str, optional
    deadline : float
        Seconds for both.

    Returns
    -------
    (Measurement, Measurement)
        One copy then one compute; copy and compute in chunks at the same time.

    Raises
    ------
    InputError
        If the size, the number of chunks or the deadline is not valid.
    OutOfMemoryError
        If the buffers do not fit.
    """
    size, count = _checked("measure_overlap", nbytes, chunks)
    where, lanes = _lanes("measure_overlap", size, count, None, device)

    label = f"overlap of {format_bytes(size)} in {plural(count, 'chunk')}"
    return (
        timing.measure(
            lambda: (lanes.copy(), lanes.compute()),
            device=where,
            deadline=deadline / 2,
            nbytes=size,
            label=f"{label}: one after the other",
        ),
        timing.measure(
            lanes.chunked,
            device=where,
            deadline=deadline / 2,
            nbytes=size,
            label=f"{label}: at the same time",
        ),
    )


def _lanes(
    function: str, nbytes: int, chunks: int, work: Work | None, device: Any
) -> tuple[Device, Lanes]:
    """Return the device that computes and the three arrangements on it."""
    found = devices.find(device)
    where = found if found.torch_type == "cuda" else Device("cpu")
    check_room(function, where, "host" if where.is_cpu else "to_device", nbytes)
    passes = Passes()
    chosen = passes if work is None else work
    with devices.guard(
        f"{function}: copying {nbytes} bytes in {plural(chunks, 'chunk')} on {where.name}"
    ):
        lanes = (
            host_lanes(nbytes, chunks, chosen)
            if where.is_cpu
            else gpu_lanes(nbytes, chunks, chosen, where)
        )
        for _ in range(_TRIALS if work is None else 0):
            times = [(lanes.copy(), lanes.compute()) for _ in range(_TURNS)]
            copy, compute = map(min, zip(*times, strict=True))
            wanted = round(copy / max(compute / passes.count, 1e-9))
            passes.count = max(1, min(_MOST_PASSES, wanted))
    return where, lanes


def _checked(function: str, nbytes: Any, chunks: Any) -> tuple[int, int]:
    """Return the bytes, and the number of chunks, each of at least 4 bytes."""
    size = BYTES(function, "nbytes", nbytes, low=ITEMSIZE)
    return size, _validate.whole(
        function, "chunks", chunks, 1, size // ITEMSIZE, "Pass for example chunks=8."
    )


def _modelled(nbytes: int, chunks: int, link: Link, compute_seconds: float | None) -> Overlap:
    """Return the pipeline that the formula gives, with its timeline."""
    copy_all = link.seconds(nbytes)
    compute_all = copy_all if compute_seconds is None else compute_seconds
    copy, compute = link.seconds(nbytes / chunks), compute_all / chunks
    timeline, free = [], 0.0
    for i in range(chunks):
        there = (i + 1) * copy
        start = max(there, free)
        free = start + compute
        timeline += [Span("copy", i, i * copy, there), Span("compute", i, start, free)]
    evidence = Evidence.modelled(
        f"link {link.name}: {link.evidence.assumptions or 'the fit of a sweep'}; compute in equal "
        f"parts of {format_seconds(compute)}, copy and compute do not slow each other down",
        link.evidence.source or "a sweep on this machine",
        link.evidence.known_error,
    )
    spans = tuple(timeline)
    o = Overlap(link.name, nbytes, chunks, copy_all, compute_all, free, spans, (), evidence)
    return replace(o, notes=tuple(_apart(o)))


def _apart(o: Overlap) -> list[Note]:
    """Return a note if copy and compute did not run at the same time, else no note."""
    lanes = ([s.seconds for s in o.timeline if s.lane == lane] for lane in ("copy", "compute"))
    shorter = min(map(sum, lanes))
    if o.chunks == 1:
        sentence = "With one chunk there is nothing to overlap; cut the work into 2 or more."
    elif o.together_seconds < _TOGETHER_SHARE * shorter:
        sentence = (
            f"Copy and compute ran at the same time for {format_seconds(o.together_seconds)} of "
            f"the {format_seconds(shorter)} possible; overlap needs pinned memory, a second stream "
            "or a free core, and chunks that are neither too small nor too large."
        )
    else:
        return []
    return [Note("no-overlap", sentence)]


def _result(turns: Sequence[Overlap]) -> Overlap:
    """Return the turn whose chunked run has the median time, with the median copy and compute times
    of all turns, and with notes.
    """
    middle = sorted(turns, key=lambda turn: turn.seconds)[len(turns) // 2]
    o = replace(
        middle,
        copy_seconds=statistics.median(turn.copy_seconds for turn in turns),
        compute_seconds=statistics.median(turn.compute_seconds for turn in turns),
        evidence=Evidence.measured(middle.device, len(turns)),
    )
    apart = _apart(o)
    # how much less time each chunked run took than copy plus compute of the same turn
    gains = sorted(turn.serial_seconds - turn.seconds for turn in turns)
    notes = [*_doubts(o, gains, overlapped=not apart), *apart]
    if len(turns) < _REPEATS:
        sentence = (
            f"Stopped after {len(turns)} of {_REPEATS} runs; run it again for a more stable figure."
        )
        notes.append(Note("stopped", sentence))
    return replace(o, notes=tuple(notes))


def _doubts(o: Overlap, gains: Sequence[float], overlapped: bool) -> list[Note]:
    """Return a note if the gain is larger than possible, and one if the runs disagree about it
    (only if copy and compute overlapped).
    """
    notes, possible = [], min(o.copy_seconds, o.compute_seconds)
    # in whole percent of the possible gain, as it is shown
    if possible > 0 and round(100 * (o.ideal_seconds - o.seconds) / possible) > 0:
        longer = "copy" if o.copy_seconds > o.compute_seconds else "compute"
        sentence = (
            f"The run in chunks took {format_seconds(o.seconds)}, less than the {longer} alone "
            f"({format_seconds(o.ideal_seconds)}): a run was disturbed, or chunks were still in a "
            "cache when they were computed. Measure again."
        )
        notes.append(Note("implausible", sentence))
    inner = gains[1:-1] if len(gains) >= _FEWEST_TO_TRIM else gains
    if overlapped and inner[-1] - inner[0] > max(
        abs(o.serial_seconds - o.seconds), _DISAGREE_SHARE * possible
    ):
        least, most = (
            f"{format_seconds(abs(gain))} {'less' if gain > 0 else 'more'}"
            for gain in (inner[0], inner[-1])
        )
        sentence = (
            f"A run in chunks took from {most} to {least} than copy and compute one after the "
            "other: no single gain describes that. Close other programs, and measure again."
        )
        notes.append(Note("unstable", sentence))
    return notes


@dataclass
class Passes:
    """The default work: as many passes over a chunk as take about as long as its copy, because
    overlap then gains the most.

    Attributes
    ----------
    count : int
    """

    count: int = 1

    def __call__(self, x: Any) -> None:
        """Make all passes over one chunk, in place."""
        for _ in range(self.count):
            x *= _FACTOR


class Lanes(NamedTuple):
    """Three arrangements of the same work; each returns seconds, the last one with its timeline.

    Attributes
    ----------
    copy, compute, chunked : callable
    """

    copy: Callable[[], float]
    compute: Callable[[], float]
    chunked: Callable[[], tuple[float, tuple[Span, ...]]]


def host_lanes(nbytes: int, chunks: int, work: Work) -> Lanes:
    """Return the arrangements with two threads; copying and numpy's arithmetic both let other
    threads run.
    """
    length = nbytes // ITEMSIZE
    source, target = np.ones(length, dtype=np.float32), np.zeros(length, dtype=np.float32)
    parts = list(zip(*(np.array_split(each, chunks) for each in (source, target)), strict=True))
    now = time.perf_counter

    def timed(fn: Callable[..., Any], *args: Any) -> float:
        start = now()
        fn(*args)
        return now() - start

    def chunked() -> tuple[float, tuple[Span, ...]]:
        arrived: queue.SimpleQueue[int] = queue.SimpleQueue()
        begin = now()
        copies: list[Span] = []

        def carry() -> None:
            for i, (there, here) in enumerate(parts):
                start = now()
                np.copyto(here, there)
                copies.append(Span("copy", i, start - begin, now() - begin))
                arrived.put(i)

        carrier = threading.Thread(target=carry, name="copy lane")
        carrier.start()
        computes = []
        try:
            for _ in parts:
                i = arrived.get()
                start = now()
                work(parts[i][1])
                computes.append(Span("compute", i, start - begin, now() - begin))
        finally:
            carrier.join()
        return computes[-1].end_seconds, (*copies, *computes)

    return Lanes(lambda: timed(np.copyto, target, source), lambda: timed(work, target), chunked)


def gpu_lanes(nbytes: int, chunks: int, work: Work, device: Device) -> Lanes:
    """Return the arrangements with two streams and pinned memory, timed by events."""
    import torch

    cuda: Any = torch.cuda  # its streams and events have no type hints

    # stated, because PyTorch's default dtype and device can be set
    source = torch.ones(nbytes // ITEMSIZE, dtype=torch.float32, device="cpu").pin_memory()
    target = torch.zeros(nbytes // ITEMSIZE, dtype=torch.float32, device=str(device))
    parts = list(zip(source.tensor_split(chunks), target.tensor_split(chunks), strict=True))
    with cuda.device(device.index):
        copy_stream, compute_stream = cuda.Stream(), cuda.Stream()

    event = functools.partial(cuda.Event, enable_timing=True)

    def timed(fn: Callable[[], Any]) -> float:
        with cuda.device(device.index), cuda.stream(compute_stream):
            device.synchronize()
            start, end = event(), event()
            start.record()
            fn()
            end.record()
            device.synchronize()
        return float(start.elapsed_time(end)) * 1e-3

    def chunked() -> tuple[float, tuple[Span, ...]]:
        with cuda.device(device.index):
            device.synchronize()
            marks = [[event() for _ in range(4)] for _ in parts]
            begin = event()
            begin.record(copy_stream)
            for (there, here), (start, there_at, work_at, end) in zip(parts, marks, strict=True):
                with cuda.stream(copy_stream):
                    start.record()
                    here.copy_(there, non_blocking=True)
                    there_at.record()
                compute_stream.wait_event(there_at)
                with cuda.stream(compute_stream):
                    work_at.record()
                    work(here)
                    end.record()
            device.synchronize()
        at = [[float(begin.elapsed_time(mark)) * 1e-3 for mark in row] for row in marks]
        spans = [Span("copy", i, row[0], row[1]) for i, row in enumerate(at)] + [
            Span("compute", i, row[2], row[3]) for i, row in enumerate(at)
        ]
        return max(row[3] for row in at), tuple(spans)

    return Lanes(
        lambda: timed(lambda: target.copy_(source, non_blocking=True)),
        lambda: timed(lambda: work(target)),
        chunked,
    )
