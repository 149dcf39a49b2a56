"""Measure the best rates of memory and of matrix products: ``ceilings(device)``, and the streams
through memory that it uses.

A ceiling asks "what can it reach?", so it is the best of a few runs: a disturbance makes a run
slower, never faster. The usual time of a call is measured by ``gpulab.timing``, with medians and
intervals. Ceilings are measured once for the life of the process, in under a second on two cores.

Copy, read and triad go through memory on all cores at once, or on an accelerator. On a CPU the
streams run in NumPy, one thread per core, but no more than ``torch.set_num_threads`` allows. Each
thread has its own arrays, repeated as rows with stride 0, so that a single call passes a small
working set many times and the cost of the call is negligible. NumPy releases the interpreter's lock
during the call.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import as_strided

from gpulab import _validate
from gpulab.devices import conditions, host_facts
from gpulab.devices._device import Device, environment, find, guard, translate
from gpulab.devices.host_facts import Processor
from gpulab.devices.specs import MemoryLevel
from gpulab.errors import StoppedError, message_of
from gpulab.evidence import Environment, Evidence, Note
from gpulab.results import Result, Table, note_rows
from gpulab.units import format_bytes, format_bytes_per_second, format_flops_per_second

Clock = Callable[[], float]
OPERATIONS = ("copy", "read", "triad")
# Arrays read and written by each: copy a = -b, read max(b), triad a = b + c (the traffic of
# STREAM's triad).
ARRAYS = {"copy": 2, "read": 1, "triad": 3}
_ALIGNMENT_BYTES = 64  # a cache line: vectors that straddle two are slower
_STAGGER_LINES, _PAGE_BYTES = 17, 4096
_ROW_BUFFER = 16  # elements, the least that NumPy takes
# moved by a thread in one call, in several passes: about 0.1 ms from a cache, far above the cost of
# the call itself
_BYTES_PER_CALL = 2**24
RUNS = 7  # best of; more changes the result by less than the machine's own noise
_LONG_SECONDS = 0.12  # spent on one figure; a busy machine then gets fewer runs, not a longer wait
_BARRIER_SECONDS = 30.0

_MIB = 2**20
# Only a working set far larger than the last cache is streamed from main memory; half a GiB is the
# most that a quick measurement may take.
_BEYOND_CACHE, _SMALLEST_STREAM_BYTES, _LARGEST_STREAM_BYTES = 4, 64 * _MIB, 512 * _MIB
_DEVICE_STREAM_BYTES = 3 * 2**30  # the largest L2 of today's GPUs is 126 MB
_SHARE_OF_FREE = 0.25
_CACHE_FILL = 0.5  # half of a cache: other programs' data takes some of it
_MOST_THREADS = 64
_DTYPES = ("float64", "float32", "tf32", "bfloat16", "float16")
# float16 on a CPU without instructions for it takes 15 ms at 256, minutes at 2048
_FIRST_SIZE = {"cpu": 256, "accelerator": 1024}
_LARGEST_SIZE = {"cpu": 2048, "accelerator": 16384}
_LONGEST_PRODUCT_SECONDS = 0.15
_PRODUCT_SECONDS = 0.008  # long against a launch, short enough for five dtypes in half a second
_CPU_SECONDS = 0.05  # for the products of one size and dtype on a CPU
_RATES = ("copy_bytes_per_second", "read_bytes_per_second", "triad_bytes_per_second")
_ADVICE = (
    "So these figures may be far too low; measure again with refresh=True when the machine is idle."
)


class MemoryCeiling(NamedTuple):
    """The best rates of one level of memory, of all threads together, in bytes per second.

    Attributes
    ----------
    name : str
        "L1d", "L2", "L3" or "DRAM".
    capacity_bytes : float
        What the level holds for these threads: of a core's own caches, one for each thread.
    working_set_bytes : int
        What was streamed.
    copy_bytes_per_second, read_bytes_per_second, triad_bytes_per_second : float
        One read and one write; reads alone; two reads and a write (each written byte counts once).
    """

    name: str
    capacity_bytes: float
    working_set_bytes: int
    copy_bytes_per_second: float
    read_bytes_per_second: float
    triad_bytes_per_second: float

    @property
    def bytes_per_second(self) -> float:
        """The highest of the three rates."""
        return max(float(getattr(self, name)) for name in _RATES)


@dataclass(frozen=True)
class Ceilings(Result):
    """The best rates that a device has reached.

    Attributes
    ----------
    device : str
    memory : tuple of MemoryCeiling
        Fastest level first; the last is main memory.
    flops_per_second : mapping of str to float
        The best square matrix product by arithmetic: float64, float32, tf32, bfloat16, float16.
    notes : tuple of Note
        What was left out, and why.
    evidence : Evidence
        MEASURED, best of n.
    environment : Environment
    """

    device: str
    memory: tuple[MemoryCeiling, ...]
    flops_per_second: Mapping[str, float]
    notes: tuple[Note, ...]
    evidence: Evidence
    environment: Environment

    def __repr__(self) -> str:
        rates = (
            *(f"{m.name} {format_bytes_per_second(m.bytes_per_second)}" for m in self.memory),
            *(
                f"{dtype} {format_flops_per_second(rate)}"
                for dtype, rate in self.flops_per_second.items()
            ),
        )
        return f"<Ceilings of {self.device}: {', '.join(rates)}>"

    @property
    def levels(self) -> tuple[MemoryLevel, ...]:
        """The best rate of each level, in the form that ``DeviceSpec.levels`` has."""
        source = "measured on this machine, best of copy, read and triad"
        return tuple(
            MemoryLevel(m.name, m.capacity_bytes, m.bytes_per_second, source) for m in self.memory
        )

    def bandwidth(self, working_set_bytes: float = math.inf) -> float:
        """Return the best rate, in bytes per second, of the fastest level that holds a working set
        (infinite: main memory).
        """
        return next(
            (m for m in self.memory if working_set_bytes <= m.capacity_bytes), self.memory[-1]
        ).bytes_per_second

    def table(self) -> Table:
        """Return one row per level and one per arithmetic."""
        rows = [
            *(
                (
                    f"{m.name}, {format_bytes(m.working_set_bytes)} streamed",
                    *(format_bytes_per_second(getattr(m, name)) for name in _RATES),
                )
                for m in self.memory
            ),
            *(
                (f"matrix product {dtype}", format_flops_per_second(rate), "", "")
                for dtype, rate in self.flops_per_second.items()
            ),
            *note_rows(self.notes, 4),
        ]
        return ("best of a few runs", "copy (or product)", "read", "triad"), rows


_measured: dict[tuple[Device, float], Ceilings] = {}  # by device and PyTorch's threads
_one_at_a_time = threading.Lock()


@_validate.arguments(stop=_validate.hook)
def ceilings(
    device: Device | str | None = None,
    refresh: bool = False,
    stop: Callable[[], bool] | Any = _validate.LEFT_OUT,
) -> Ceilings:
    """Return the best rates that a device reaches: copy, read and triad by level of memory, matrix
    products by dtype.

    Parameters
    ----------
    device : Device or str, optional
        None takes the best one available.
    refresh : bool
        Measure again instead of returning what this process measured before with the same number
        of threads (another process may have been running then).
    stop : callable, optional
        Called before and after each run; once it returns True the measurement ends, and no result
        is kept.

    Returns
    -------
    Ceilings
        With evidence MEASURED, and a note where the counters show that other processes used the
        cores or the clock fell.

    Raises
    ------
    DeviceError
        If the machine has no such device, or it vanished.
    OutOfMemoryError
        If not even small arrays fit into what is free.
    StoppedError
        If it was stopped.
    """
    import torch

    where = find(device)

    def clock() -> float:
        """Return the time, or raise if a stop was requested; called before and after each run."""
        if stop():
            raise StoppedError(
                "ceilings: stopped before every ceiling was measured; no result is kept. Run it "
                "again."
            )
        return time.perf_counter()

    # no more threads than PyTorch is set to: the streams and the products then use the same cores
    limit = torch.get_num_threads() if where.is_cpu else math.inf
    with _one_at_a_time, guard(f"ceilings: measuring {where}"):
        if refresh or (where, limit) not in _measured:
            found = _measure(where, limit, clock)
            if any(note.code == "contended" for note in found.notes):
                # others may have disturbed both: keep the one with the higher rate of main memory
                found = max(found, _measure(where, limit, clock), key=Ceilings.bandwidth)
            _measured[where, limit] = found
        return _measured[where, limit]


def _measure(device: Device, limit: float, clock: Clock) -> Ceilings:
    notes, processor = list[Note](), host_facts.probe()
    cores = min(processor.usable_cores, processor.quota_cores or math.inf, limit, _MOST_THREADS)
    threads = max(1, math.floor(cores))  # one for each core, within the limit
    # the threads live until the counters are read, which include their waits
    with ThreadPoolExecutor(threads, "gpulab-stream") as pool:
        before = conditions.read(device)
        memory = (
            _host_memory(processor, threads, clock, notes, pool)
            if device.is_cpu
            else _device_memory(device, clock)
        )
        products = _products(device, clock, notes)
        notes += conditions.from_readings(before, conditions.read(device, before), _ADVICE)
    stamp = environment(device, command=f"gpulab.devices.ceilings({str(device)!r})")
    evidence = Evidence.measured(
        f"{device.name}, best of {_validate.fewer(RUNS, 2)} runs", date=stamp.date
    )
    return Ceilings(str(device), memory, products, tuple(notes), evidence, stamp)


def _host_memory(
    processor: Processor, threads: int, clock: Clock, notes: list[Note], pool: Executor
) -> tuple[MemoryCeiling, ...]:
    sets = []  # each level's name and capacity, and what is streamed
    cached = reached = 0.0
    for cache in processor.caches:
        # with fewer threads than cores (a container's limit), some instances are not used, and a
        # working set as large as all of them does not fit into the others
        instances = cache.instances + sum(count for _, count in cache.others)
        reach = cache.total_bytes * min(1.0, threads / instances)
        # If half of a level fits into the caches below it (a small last-level cache), a stream of
        # that size stays in those caches and cannot measure the level.
        if int(_CACHE_FILL * reach) > reached:
            sets.append((cache.level, reach, int(_CACHE_FILL * reach)))
        cached, reached = max(cached, float(cache.total_bytes)), max(reached, reach)
    host = Device("cpu")
    # Caches of unknown size (Windows reports none) may be larger than the smallest stream, whose
    # rate would then be that of a cache.
    wanted = max(_SMALLEST_STREAM_BYTES, _BEYOND_CACHE * cached) if cached else math.inf
    taken = int(min(wanted, _LARGEST_STREAM_BYTES, _SHARE_OF_FREE * host.free_bytes))
    doubts = (
        (
            taken < 2 * cached,
            "warm-cache",
            f"only {format_bytes(taken)} were streamed, with {format_bytes(cached)} of cache, so "
            "the DRAM figure partly includes the cache. Treat it as an upper bound.",
        ),
        (
            not cached,
            "skipped",
            "the system does not report the sizes of the caches, so no cache was measured; "
            f"{format_bytes(taken)} were streamed for DRAM. If a cache holds a large part of that, "
            "treat the DRAM figure as an upper bound.",
        ),
    )
    notes += [Note(code, sentence) for holds, code, sentence in doubts if holds]
    sets.append(("DRAM", float(host.memory_bytes), taken))
    return tuple(
        MemoryCeiling(*each, *(host_rate(how, each[2], threads, clock, pool) for how in OPERATIONS))
        for each in sets
    )


def _device_memory(device: Device, clock: Clock) -> tuple[MemoryCeiling, ...]:
    """Return the rates of main memory alone: a stream through a GPU's L2 takes less time than its
    launch, so calls cannot measure that level.
    """
    working_set = int(min(_DEVICE_STREAM_BYTES, _SHARE_OF_FREE * device.free_bytes))
    rates = [
        device_rate(operation, working_set, str(device), device.synchronize, clock)
        for operation in OPERATIONS
    ]
    return (MemoryCeiling("DRAM", float(device.memory_bytes), working_set, *rates),)


def _products(device: Device, clock: Clock, notes: list[Note]) -> dict[str, float]:
    rates = {}
    for dtype in _DTYPES:
        if dtype == "tf32" and not device.has_tf32:
            continue
        try:
            rates[dtype] = _product_rate(dtype, device, clock)
        except (RuntimeError, TypeError) as error:
            # cuBLAS refuses bfloat16 on a GPU that is too old for it, which stays usable
            if "CUBLAS_STATUS_NOT_SUPPORTED" not in str(error) and translate(error, "") is not None:
                raise
            why = message_of(error, 100) or type(error).__name__
            notes.append(Note("skipped", f"no {dtype} product on {device}: {why}"))
    return rates


def _product_rate(dtype: str, device: Device, clock: Clock) -> float:
    """Return the best FLOP/s of a square product whose size is chosen so that one lasts about
    eight milliseconds.
    """
    import torch

    kind = torch.float32 if dtype == "tf32" else getattr(torch, dtype)
    place = "cpu" if device.is_cpu else "accelerator"

    def seconds(n: int) -> float:
        # Random numbers: products of zeros draw less power, and a GPU then clocks higher than it
        # can at work. They come from a generator of their own, so that a measurement does not
        # change the numbers that the learner's seed gives.
        generator = torch.Generator(str(device)).manual_seed(0)
        a, b = (
            torch.randn(n, n, device=str(device), generator=generator).to(kind) for _ in range(2)
        )
        out = torch.empty(n, n, device=str(device), dtype=kind)
        if device.is_cpu:
            return shortest(lambda: torch.mm(a, b, out=out), clock, _CPU_SECONDS)
        return repeated(
            lambda: torch.mm(a, b, out=out), device.synchronize, clock, _PRODUCT_SECONDS / 2, 6
        )

    with _float32_as("tf32" if dtype == "tf32" else "ieee"), torch.inference_mode():
        n = _FIRST_SIZE[place]
        first = seconds(n)
        rate = 2.0 * n**3 / first
        # A busy neighbour can make the first size look slow, so twice the size is tried wherever
        # that cannot take long.
        larger = max(
            int(n * (_PRODUCT_SECONDS / first) ** (1 / 3)) // 128 * 128,
            2 * n if 8 * first < _LONGEST_PRODUCT_SECONDS else n,
        )
        # three matrices (and float32 originals) fit into a quarter of what is free
        room = math.isqrt(int(_SHARE_OF_FREE * device.free_bytes) // (5 * 8))
        size = min(larger, _LARGEST_SIZE[place], max(128, room // 128 * 128))
        if size > n:
            rate = max(rate, 2.0 * size**3 / seconds(size))
    return rate


@contextlib.contextmanager
def _float32_as(precision: str) -> Iterator[None]:
    """Make float32 products run in "ieee" or "tf32" arithmetic, and put the settings back as they
    were.
    """
    import torch

    backends: Any = torch.backends
    matmuls = backends.cuda.matmul, backends.mkldnn.matmul
    with contextlib.ExitStack() as before:
        for place, value in zip(matmuls, (precision, "ieee"), strict=True):
            before.callback(setattr, place, "fp32_precision", place.fp32_precision)
            place.fp32_precision = value
        yield


# -- streams ---------------------------------------------------------------------------------------


def _aligned(elements: int, place: int) -> np.ndarray:
    """Return an array that starts on a cache line. Arrays of different ``place`` start at different
    offsets into a page: equal offsets alias, and loads then wait for stores.
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
    """Return the call such that NumPy does not first copy several short rows into its buffer, which
    is four times slower than the first cache.
    """

    def run() -> Any:
        with np.errstate():  # leaving it restores the size of the buffer
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
        With at least as many workers. While it lives, the system's counters of how long its threads
        waited for a core can be read.

    Examples
    --------
    Two threads move 16 MiB each in every run. On a clock that ticks when it is read, a run lasts
    three ticks: each thread reads it at its start and at its end.

    >>> from itertools import count
    >>> with ThreadPoolExecutor(2) as pool:
    ...     host_rate("copy", 2**24, 2, count().__next__, pool) == 2 * 2**24 / 3
    True
    """
    # In each run all threads start together, and the last one to finish ends the run: the rate is
    # what the whole machine sustains.
    barrier = threading.Barrier(threads)

    def body() -> tuple[int, list[tuple[float, float]]]:
        spans = []
        try:
            work, moved = thread_work(operation, nbytes // threads)
            for _ in range(1 + _validate.fewer(RUNS, 2)):
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
    # raise the first failure, not the BrokenBarrierError that it causes in the other threads
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
    elements = max(1, nbytes // (4 * arrays))
    data = [torch.ones(elements, dtype=torch.float32, device=device) for _ in range(arrays)]
    works: dict[str, Callable[[], Any]] = {
        "copy": lambda: data[0].copy_(data[1]),
        "read": data[0].sum,
        "triad": lambda: torch.add(data[1], data[2], alpha=3.0, out=data[0]),
    }
    return arrays * elements * 4 / repeated(works[operation], synchronize, clock)


def shortest(work: Callable[[], Any], clock: Clock, seconds: float) -> float:
    """Return the time of the shortest of single calls: as many as fit into ``seconds``, at least
    two, after a first one that is discarded.

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
    """Return the shortest seconds per call among batches, each so long that the launch and the wait
    do not matter.

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
