"""The two lanes of an overlap, one that copies and one that computes: two threads on a CPU, two
streams on a GPU.

Here each runs and is timed once; ``_overlap`` decides how often, and evaluates the times.
"""

from __future__ import annotations

import itertools
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpulab.devices import Device
from gpulab.transfer.results import Span

Work = Callable[[Any], Any]

ITEMSIZE = 4  # float32 chunks
_MOST_PASSES = 2000
# Turns of copy and pass before the passes are counted, the least of each taken: the first pays for
# its pages, any one may be stopped.
_TURNS = 3
# Whole passes leave copy and compute within a factor of 1.5, unless one pass alone is longer than
# the copy.
_APART = 2.0
# A factor that keeps values near 1 over any number of passes.
_FACTOR = 1.0000001


@dataclass
class Passes:
    """The default work: as many passes over a chunk as take about as long as its copy, because
    overlap then gains the most.

    Attributes
    ----------
    once : callable
        One pass over a chunk, in place.
    count : int
    """

    once: Work
    count: int = 1

    def __call__(self, x: Any) -> None:
        """Make all passes over one chunk."""
        for _ in range(self.count):
            self.once(x)

    def fit(self, copy_seconds: float, compute_seconds: float) -> None:
        """Set the count from a copy and as many passes as it has been until now."""
        self.count = passes_for(copy_seconds, compute_seconds / self.count)

    def misfit(self, copy_seconds: float, compute_seconds: float) -> bool:
        """Return whether copy and compute are so far apart that another count would bring them
        nearer.
        """
        shorter, longer = sorted((copy_seconds, compute_seconds))
        return (
            longer > _APART * shorter
            and passes_for(copy_seconds, compute_seconds / self.count) != self.count
        )


def passes_for(copy_seconds: float, pass_seconds: float) -> int:
    """Return how many passes take about as long as the copy."""
    return max(1, min(_MOST_PASSES, round(copy_seconds / max(pass_seconds, 1e-9))))


@dataclass(frozen=True)
class Lanes:
    """Three arrangements of the same work; each returns seconds, the last one with its timeline.

    Attributes
    ----------
    copy, compute, chunked : callable
    work : callable
        What ``compute`` and ``chunked`` do to a chunk.
    """

    copy: Callable[[], float]
    compute: Callable[[], float]
    chunked: Callable[[], tuple[float, list[Span]]]
    work: Work


def _sized(lanes: Lanes) -> Lanes:
    """Return the lanes, the default work made about as long as the copy."""
    if isinstance(lanes.work, Passes):
        turns = [(lanes.copy(), lanes.compute()) for _ in range(_TURNS)]
        copy, compute = (min(times) for times in zip(*turns, strict=True))
        lanes.work.fit(copy, compute)
    return lanes


def host_lanes(nbytes: int, chunks: int, work: Work | None) -> Lanes:
    """Return the arrangements with two threads; copying and numpy's arithmetic both let other
    threads run.
    """
    source, target = (
        np.ones(nbytes // ITEMSIZE, dtype=np.float32),
        np.zeros(nbytes // ITEMSIZE, dtype=np.float32),
    )
    parts = [(source[part], target[part]) for part in _slices(len(source), chunks)]
    now = time.perf_counter

    def timed(fn: Callable[..., Any], *args: Any) -> float:
        start = now()
        fn(*args)
        return now() - start

    chosen = Passes(lambda x: np.multiply(x, _FACTOR, out=x)) if work is None else work

    def chunked() -> tuple[float, list[Span]]:
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
                chosen(parts[i][1])
                computes.append(Span("compute", i, start - begin, now() - begin))
        finally:
            carrier.join()
        return computes[-1].end_seconds, copies + computes

    return _sized(
        Lanes(
            lambda: timed(np.copyto, target, source), lambda: timed(chosen, target), chunked, chosen
        )
    )


def _slices(length: int, chunks: int) -> list[slice]:
    edges = [length * i // chunks for i in range(chunks + 1)]
    return [slice(a, b) for a, b in itertools.pairwise(edges)]


def gpu_lanes(nbytes: int, chunks: int, work: Work | None, device: Device) -> Lanes:
    """Return the arrangements with two streams and pinned memory, timed by events."""
    import torch

    cuda: Any = torch.cuda  # its streams and events have no type hints

    source = torch.ones(nbytes // ITEMSIZE).pin_memory()
    target = torch.zeros(nbytes // ITEMSIZE, device=str(device))
    parts = [(source[part], target[part]) for part in _slices(len(source), chunks)]
    with cuda.device(device.index):
        copy_stream, compute_stream = cuda.Stream(), cuda.Stream()

    def event() -> Any:
        return cuda.Event(enable_timing=True)

    def timed(fn: Callable[[], Any]) -> float:
        with cuda.device(device.index), cuda.stream(compute_stream):
            device.synchronize()
            start, end = event(), event()
            start.record()
            fn()
            end.record()
            device.synchronize()
        return float(start.elapsed_time(end)) * 1e-3

    def send() -> None:
        target.copy_(source, non_blocking=True)

    chosen = Passes(lambda x: x.mul_(_FACTOR)) if work is None else work

    def chunked() -> tuple[float, list[Span]]:
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
                    chosen(here)
                    end.record()
            device.synchronize()
        at = [[float(begin.elapsed_time(mark)) * 1e-3 for mark in row] for row in marks]
        spans = [Span("copy", i, row[0], row[1]) for i, row in enumerate(at)] + [
            Span("compute", i, row[2], row[3]) for i, row in enumerate(at)
        ]
        return max(row[3] for row in at), spans

    return _sized(
        Lanes(lambda: timed(send), lambda: timed(lambda: chosen(target)), chunked, chosen)
    )
