"""Copy, read and triad through memory: on all cores at once, or on an accelerator.

On a CPU the streams run in NumPy, one thread per core, each over rows of its own that are laid over
one another (stride 0), so that a single call passes a small working set many times and its own cost
disappears. NumPy gives up the interpreter's lock inside. A ceiling is the best of several runs:
whatever disturbs a run makes it slower, never faster.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

Clock = Callable[[], float]
OPERATIONS = ("copy", "read", "triad")
# Arrays read and written by each: copy a = -b, read max(b), triad a = b + c (the traffic of
# STREAM's triad).
ARRAYS = {"copy": 2, "read": 1, "triad": 3}
_ALIGNMENT_BYTES = 64  # a cache line: vectors that straddle two are slower
_STAGGER_LINES, _PAGE_BYTES = 17, 4096
_ROW_BUFFER = 16  # elements, the least that NumPy takes
# passes of a thread in one call: about 0.1 ms from a cache, far above the call's own cost
_BYTES_PER_CALL = 2**24
RUNS = 7  # best of; more changes the result by less than the machine's own noise
_LONG_SECONDS = 0.12  # spent on one figure; a busy machine then gets fewer runs, not a longer wait
_BARRIER_SECONDS = 30.0


def _aligned(elements: int, place: int) -> np.ndarray:
    """An array on a cache line, each ``place`` some lines further into its page: equal offsets
    alias and stall loads behind stores.
    """
    room = np.ones(elements + 2 * _PAGE_BYTES // 4, np.float32)
    start = (-room.ctypes.data % _PAGE_BYTES + _STAGGER_LINES * place * _ALIGNMENT_BYTES) // 4
    return room[start : start + elements]


def thread_work(operation: str, nbytes: int) -> tuple[Callable[[], Any], int]:
    """Return one thread's call and the bytes that it moves, for a working set of ``nbytes`` of that
    thread.
    """
    arrays = ARRAYS[operation]
    elements = max(_ALIGNMENT_BYTES // 4, nbytes // (4 * arrays) // 16 * 16)
    passes = max(1, _BYTES_PER_CALL // (4 * arrays * elements))
    data = [
        as_strided(_aligned(elements, place), (passes, elements), (0, 4)) for place in range(arrays)
    ]
    moved = passes * arrays * elements * 4
    works: dict[str, Callable[[], Any]] = {
        "copy": lambda: np.negative(data[1], out=data[0]),
        "read": data[0].max,
        "triad": lambda: np.add(data[1], data[2], out=data[0]),
    }
    return _in_place(works[operation]), moved


def _in_place(call: Callable[[], Any]) -> Callable[[], Any]:
    """Keep NumPy from copying several short rows into its buffer first: that is four times slower
    than the first cache.
    """

    def run() -> Any:
        with np.errstate():  # its end puts the size of the buffer back
            np.setbufsize(_ROW_BUFFER)
            return call()

    return run


def host_rate(operation: str, nbytes: int, threads: int, clock: Clock, pool: Executor) -> float:
    """Return the best rate of all threads together, in bytes per second.

    Parameters
    ----------
    operation : str
        "copy", "read" or "triad".
    nbytes : int
        The working set of all threads together.
    threads : int
    clock : callable
        Returns seconds. It is called before and after each run, so an error that it raises ends the
        measurement there.
    pool : Executor
        With room for as many threads; one that lives on keeps the system's account of how long its
        threads waited for a core.
    """
    # Every run starts together and ends with the last thread: the rate that the whole machine
    # sustains.
    barrier = threading.Barrier(threads)

    def body() -> tuple[int, list[tuple[float, float]]]:
        spans = []
        try:
            work, moved = thread_work(operation, nbytes // threads)
            for _ in range(RUNS + 1):
                barrier.wait(_BARRIER_SECONDS)
                start = clock()
                work()
                spans.append((start, clock()))
        except BaseException:
            barrier.abort()
            raise
        return moved, spans

    running = [pool.submit(body) for _ in range(threads)]
    failures = [error for error in (one.exception() for one in running) if error is not None]
    # the first failure, not the broken barrier that it left to the others
    for error in sorted(failures, key=lambda e: isinstance(e, threading.BrokenBarrierError)):
        raise error
    results = [one.result() for one in running]
    runs = list(zip(*(spans for _, spans in results), strict=True))[1:]
    seconds: float = min(
        max(end for _, end in run) - min(start for start, _ in run) for run in runs
    )
    return sum(moved for moved, _ in results) / seconds


def device_rate(
    operation: str, nbytes: int, device: str, synchronize: Callable[[], None], clock: Clock
) -> float:
    """Return the best rate of an accelerator's memory, in bytes per second, for a working set far
    above its caches.
    """
    import torch

    arrays = ARRAYS[operation]
    data = [torch.ones(max(1, nbytes // (4 * arrays)), device=device) for _ in range(arrays)]
    works: dict[str, Callable[[], Any]] = {
        "copy": lambda: data[0].copy_(data[1]),
        "read": data[0].sum,
        "triad": lambda: torch.add(data[1], data[2], alpha=3.0, out=data[0]),
    }
    return arrays * data[0].numel() * 4 / repeated(works[operation], synchronize, clock)


def shortest(work: Callable[[], Any], clock: Clock, seconds: float) -> float:
    """Return the shortest of single calls, in seconds: as many as fit into a span, at least two
    after one that is thrown away.

    On a CPU a call is over when it returns, and a short call can run between the time slices of
    another process, which a batch cannot.
    """
    times: list[float] = []
    start = clock()
    end = start + seconds
    while len(times) < 3 or start < end:
        work()
        before, start = start, clock()
        times.append(start - before)
    return min(times[1:])


def repeated(
    work: Callable[[], Any],
    synchronize: Callable[[], None],
    clock: Clock,
    at_least_seconds: float = 0.004,
    runs: int = RUNS,
) -> float:
    """Return the best seconds of one call among batches that last long enough for the launch and
    the wait to vanish.

    Parameters
    ----------
    work : callable
        May return before the device has finished.
    synchronize : callable
        Returns when the device has finished.
    clock : callable
    at_least_seconds : float
        Length of one batch.
    runs : int
        Number of batches, of which the best counts; fewer where they take long.
    """

    def batch(calls: int) -> float:
        start = clock()
        for _ in range(calls):
            work()
        synchronize()
        return clock() - start

    batch(1)
    once = max(batch(1), 1e-9)
    calls = max(1, min(1000, round(at_least_seconds / once)))
    batch(calls)
    times: list[float] = []
    while len(times) < 2 or (len(times) < runs and sum(times) < _LONG_SECONDS):
        times.append(batch(calls))
    return min(times) / calls
