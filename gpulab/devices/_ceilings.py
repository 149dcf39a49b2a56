"""``ceilings(device)``: the best rates that this machine has just reached, in memory and in matrix
products.

A ceiling asks "what can it reach?", so it is the best of a few runs; what a call usually takes is
measured by ``gpulab.timing``, with medians and intervals. Measured once for the life of the
process, in under a second on two cores.
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from gpulab import _given
from gpulab.devices import _cpu, _device, _host, _streams, conditions, disturbance
from gpulab.devices._device import guard, translate
from gpulab.devices._spec import MemoryLevel
from gpulab.devices.conditions import Readings
from gpulab.errors import StoppedError, message_of
from gpulab.evidence import Environment, Evidence, Note
from gpulab.results import Result
from gpulab.units import format_bytes, format_bytes_per_second, format_flops_per_second, plural

_MIB = 2**20
# Main memory is met only by working sets far above the last cache; half a GiB is the most that a
# quick look may take.
_BEYOND_CACHE, _SMALLEST_STREAM_BYTES, _LARGEST_STREAM_BYTES = 4, 64 * _MIB, 512 * _MIB
_DEVICE_STREAM_BYTES = 3 * 2**30  # the largest L2 of today's GPUs is 126 MB
_SHARE_OF_FREE = 0.25
_CACHE_FILL = 0.5  # half of a cache: the rest holds what else the system runs
_MOST_THREADS = 64
_DTYPES = ("float64", "float32", "tf32", "bfloat16", "float16")
# float16 on a CPU without instructions for it takes 15 ms at 256, minutes at 2048
_FIRST_SIZE = {"cpu": 256, "accelerator": 1024}
_LARGEST_SIZE = {"cpu": 2048, "accelerator": 16384}
_LONGEST_PRODUCT_SECONDS = 0.15
_PRODUCT_SECONDS = 0.008  # long against a launch, short enough for five dtypes in half a second
_CPU_SECONDS = 0.05  # for the products of one size and dtype on a CPU
_RATES = ("copy_bytes_per_second", "read_bytes_per_second", "triad_bytes_per_second")
_LOOKS = 2  # where a neighbour was at work, the best of two looks
_TURN_SECONDS = 0.05  # how often a stop is asked for while another thread measures
_ADVICE = (
    "So these figures may be far too low; measure again with refresh=True when the machine is idle."
)


@dataclass(frozen=True)
class MemoryCeiling(Result):
    """The best rates of one level of memory, of all cores together, in bytes per second.

    Attributes
    ----------
    name : str
        "L1d", "L2", "L3" or "DRAM".
    capacity_bytes : float
        What the level holds.
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
        return max(
            self.copy_bytes_per_second, self.read_bytes_per_second, self.triad_bytes_per_second
        )


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
        rates = [
            f"{level.name} {format_bytes_per_second(level.bytes_per_second)}"
            for level in self.memory
        ]
        rates += [
            f"{dtype} {format_flops_per_second(rate)}"
            for dtype, rate in self.flops_per_second.items()
        ]
        return f"<Ceilings of {self.device}: {', '.join(rates)}>"

    @property
    def levels(self) -> tuple[MemoryLevel, ...]:
        """The best rate of each level, in the form that ``DeviceSpec.levels`` has."""
        return tuple(
            MemoryLevel(
                m.name,
                m.capacity_bytes,
                m.bytes_per_second,
                "measured on this machine, best of copy, read and triad",
            )
            for m in self.memory
        )

    def bandwidth(self, working_set_bytes: float = math.inf) -> float:
        """Return the best rate, in bytes per second, of the fastest level that holds a working set
        (infinite: main memory).
        """
        return next(
            (m for m in self.memory if working_set_bytes <= m.capacity_bytes), self.memory[-1]
        ).bytes_per_second

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        """Return one row per level and one per arithmetic."""
        rows = [
            (
                f"{m.name}, {format_bytes(m.working_set_bytes)} streamed",
                format_bytes_per_second(m.copy_bytes_per_second),
                format_bytes_per_second(m.read_bytes_per_second),
                format_bytes_per_second(m.triad_bytes_per_second),
            )
            for m in self.memory
        ]
        rows += [
            (f"matrix product {dtype}", format_flops_per_second(rate), "", "")
            for dtype, rate in self.flops_per_second.items()
        ]
        rows += [(f"note: {note.code}", note.sentence, "", "") for note in self.notes]
        return ("best of a few runs", "copy", "read", "triad"), rows


_measured: dict[_device.Device, Ceilings] = {}
_one_at_a_time = threading.Lock()


def ceilings(
    device: _device.Device | str | None = None,
    refresh: bool = False,
    stop: Callable[[], bool] | None = None,
) -> Ceilings:
    """Return the best rates that a device reaches: copy, read and triad by level of memory, matrix
    products by dtype.

    Parameters
    ----------
    device : Device or str, optional
        None takes the best one available.
    refresh : bool
        Measure again instead of returning what this process measured before (another process may
        have been running then).
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
    where = _device.find(device)
    clock = _ending(time.perf_counter, _given.callback("ceilings", "stop", stop))
    while not _one_at_a_time.acquire(timeout=_TURN_SECONDS):
        clock()
    try:
        if refresh or where not in _measured:
            with guard(f"ceilings: measuring {where}"):
                _measured[where] = _measure(where, clock)
        return _measured[where]
    finally:
        _one_at_a_time.release()


def _ending(clock: Callable[[], float], stop: Callable[[], bool] | None) -> Callable[[], float]:
    """Return a clock that raises once a stop is asked for: it is read before and after each run,
    and so nothing else need know.
    """

    def read() -> float:
        if stop is not None and stop():
            raise StoppedError(
                "ceilings: stopped before every ceiling was measured; no result is kept. Run it "
                "again."
            )
        return clock()

    return read


def _measure(device: _device.Device, clock: Callable[[], float]) -> Ceilings:
    found = _look(device, clock)
    for _ in range(_LOOKS - 1):
        if not any(note.code == "contended" for note in found.notes):
            break
        found = _best(found, _look(device, clock))
    return found


def _look(device: _device.Device, clock: Callable[[], float]) -> Ceilings:
    notes: list[Note] = []
    threads = _stream_threads()
    # alive until the counters are read: their waits are among them
    with ThreadPoolExecutor(threads, "gpulab-stream") as pool:
        before = conditions.read(device)
        memory = (
            _host_memory(threads, clock, notes, pool)
            if device.is_cpu
            else _device_memory(device, clock)
        )
        products = _products(device, clock, notes)
        notes += _disturbances(before, conditions.read(device, before))
    environment = _device.environment(device, command=f"gpulab.devices.ceilings({str(device)!r})")
    evidence = Evidence.measured(
        f"{device.name}, best of {_streams.RUNS} runs", date=environment.date
    )
    return Ceilings(str(device), memory, products, tuple(notes), evidence, environment)


def _best(first: Ceilings, second: Ceilings) -> Ceilings:
    """Return the higher of each rate, with the notes of the second look."""
    before = {level.name: level for level in first.memory}

    def higher(level: MemoryCeiling) -> MemoryCeiling:
        other = before.get(level.name, level)
        return replace(
            level, **{name: max(getattr(level, name), getattr(other, name)) for name in _RATES}
        )

    products = {
        dtype: max(rate, first.flops_per_second.get(dtype, rate))
        for dtype, rate in second.flops_per_second.items()
    }
    return replace(
        second,
        memory=tuple(map(higher, second.memory)),
        flops_per_second={**first.flops_per_second, **products},
    )


def _stream_threads() -> int:
    """Return one thread per core, but no more than PyTorch is set to: the streams and the products
    then use the same cores.
    """
    processor = _cpu.probe()
    torch = sys.modules.get("torch")
    limit = math.inf if torch is None else torch.get_num_threads()
    return max(
        1,
        min(
            _MOST_THREADS,
            math.floor(min(processor.usable_cores, processor.quota_cores or math.inf, limit)),
        ),
    )


def _disturbances(before: Readings, after: Readings) -> list[Note]:
    """Notes if others took the cores or the clock fell meanwhile: by the rules of ``timing``, or by
    the load where nothing is counted.
    """
    if before.run_delay_seconds is None and before.busy_seconds is None:
        return _neighbours()
    return disturbance.from_readings(before, after, _ADVICE)


def _neighbours() -> list[Note]:
    """A note if others kept the cores busy in the last minute: the best of a few runs is then too
    low.
    """
    if not hasattr(os, "getloadavg"):
        return []
    load, cores = os.getloadavg()[0], _host.usable_cores()
    if load < cores:
        return []
    return [
        Note(
            "contended",
            f"{load:.1f} programs were ready to run on {plural(cores, 'core')} in the last minute. "
            f"{_ADVICE}",
        )
    ]


def _host_memory(
    threads: int, clock: Callable[[], float], notes: list[Note], pool: Executor
) -> tuple[MemoryCeiling, ...]:
    levels = []
    below = reached = 0.0
    for cache in _cpu.probe().caches:
        reach = _reach(cache, threads)
        working_set = int(_CACHE_FILL * reach)
        # A level whose half fits into the caches below it (a small last-level cache) cannot be met
        # from outside.
        if working_set > reached:
            levels.append(
                _host_level(
                    cache.level, float(cache.total_bytes), working_set, threads, clock, pool
                )
            )
        below, reached = max(below, float(cache.total_bytes)), max(reached, reach)
    free = _device.Device("cpu").free_bytes or _SMALLEST_STREAM_BYTES
    # Caches of unknown size (Windows tells none) may be larger than the smallest stream, whose rate
    # would then be theirs.
    wanted = max(_SMALLEST_STREAM_BYTES, _BEYOND_CACHE * below) if below else _LARGEST_STREAM_BYTES
    taken = int(min(wanted, _LARGEST_STREAM_BYTES, _SHARE_OF_FREE * free))
    if taken < 2 * below:
        sentence = (
            f"only {format_bytes(taken)} were streamed, with {format_bytes(below)} of cache, "
            "so the DRAM figure partly includes the cache."
        )
        notes.append(Note("warm-cache", f"{sentence} Treat it as an upper bound."))
    if not below:
        sentence = (
            "the system does not report the sizes of the caches, so no cache was measured; "
            f"{format_bytes(taken)} were streamed for DRAM"
        )
        notes.append(
            Note(
                "skipped",
                f"{sentence}. If a cache holds a large part of that, treat the DRAM figure as an "
                "upper bound.",
            )
        )
    everything = float(_device.Device("cpu").memory_bytes or math.inf)
    return (*levels, _host_level("DRAM", everything, taken, threads, clock, pool))


def _reach(cache: _cpu.Cache, threads: int) -> float:
    """Return the bytes of a level that so many threads can fill: where a container grants fewer
    than there are cores, the rest is idle.
    """
    instances = cache.instances + sum(count for _, count in cache.others)
    return cache.total_bytes * min(1.0, threads / instances)


def _host_level(
    name: str,
    capacity: float,
    working_set: int,
    threads: int,
    clock: Callable[[], float],
    pool: Executor,
) -> MemoryCeiling:
    rates = [
        _streams.host_rate(operation, working_set, threads, clock, pool)
        for operation in _streams.OPERATIONS
    ]
    return MemoryCeiling(name, capacity, working_set, *rates)


def _device_memory(device: _device.Device, clock: Callable[[], float]) -> tuple[MemoryCeiling, ...]:
    """Main memory alone: a stream through a GPU's L2 takes less time than its launch, so calls
    cannot show that level.
    """
    free, total = device.free_bytes, device.memory_bytes
    working_set = int(
        min(_DEVICE_STREAM_BYTES, _SHARE_OF_FREE * free if free else _DEVICE_STREAM_BYTES / 8)
    )
    rates = [
        _streams.device_rate(operation, working_set, str(device), device.synchronize, clock)
        for operation in _streams.OPERATIONS
    ]
    return (MemoryCeiling("DRAM", float(total or math.inf), working_set, *rates),)


def _products(
    device: _device.Device, clock: Callable[[], float], notes: list[Note]
) -> dict[str, float]:
    rates = {}
    for dtype in _DTYPES:
        if dtype == "tf32" and not device.has_tf32:
            continue
        try:
            rates[dtype] = _product_rate(dtype, device, clock)
        except (RuntimeError, TypeError) as error:
            if translate(error, "") is not None:
                raise
            notes.append(
                Note(
                    "skipped",
                    f"no {dtype} product on {device}: "
                    f"{message_of(error, 100) or type(error).__name__}",
                )
            )
    return rates


def _product_rate(dtype: str, device: _device.Device, clock: Callable[[], float]) -> float:
    """Best FLOP/s of a square product whose size is chosen so that one lasts about eight
    milliseconds.
    """
    import torch

    kind = torch.float32 if dtype == "tf32" else getattr(torch, dtype)
    place = "cpu" if device.is_cpu else "accelerator"

    def seconds(n: int, runs: int) -> float:
        # Random numbers: products of zeros draw less power, and a GPU then clocks higher than it
        # can at work. From a generator of our own: the learner's seed gives the same numbers with
        # and without a measurement before.
        generator = torch.Generator(str(device)).manual_seed(0)
        a, b = (
            torch.randn(n, n, device=str(device), generator=generator).to(kind) for _ in range(2)
        )
        out = torch.empty(n, n, device=str(device), dtype=kind)
        if device.is_cpu:
            return _streams.shortest(lambda: torch.mm(a, b, out=out), clock, _CPU_SECONDS)
        return _streams.repeated(
            lambda: torch.mm(a, b, out=out), device.synchronize, clock, _PRODUCT_SECONDS / 2, runs
        )

    with _float32_as("tf32" if dtype == "tf32" else "ieee"), torch.inference_mode():
        n = _FIRST_SIZE[place]
        first = seconds(n, 6)
        rate = 2.0 * n**3 / first
        # A busy neighbour can make the first size look slow, so twice the size is tried wherever
        # that cannot take long.
        larger = max(
            int(n * (_PRODUCT_SECONDS / first) ** (1 / 3)) // 128 * 128,
            2 * n if 8 * first < _LONGEST_PRODUCT_SECONDS else n,
        )
        size = min(larger, _LARGEST_SIZE[place], _fitting_size(device))
        if size > n:
            rate = max(rate, 2.0 * size**3 / seconds(size, 6))
    return rate


def _fitting_size(device: _device.Device) -> int:
    """The largest product whose three matrices (and float32 originals) fit into a quarter of what
    is free.
    """
    free = device.free_bytes or 2**30
    return max(128, int(math.sqrt(_SHARE_OF_FREE * free / (5 * 8))) // 128 * 128)


@contextlib.contextmanager
def _float32_as(precision: str) -> Iterator[None]:
    """Make float32 products run in "ieee" or "tf32" arithmetic, and put the settings back as they
    were.
    """
    import torch

    matmul: Any = torch.backends.cuda.matmul
    newer = hasattr(matmul, "fp32_precision")
    switches: list[tuple[Any, str, Any]] = [
        (matmul, "fp32_precision", precision)
        if newer
        else (matmul, "allow_tf32", precision == "tf32")
    ]
    if hasattr(torch.backends.mkldnn, "matmul"):
        switches.append((torch.backends.mkldnn.matmul, "fp32_precision", "ieee"))
    before = [getattr(place, name) for place, name, _ in switches]
    try:
        for place, name, value in switches:
            setattr(place, name, value)
        yield
    finally:
        for (place, name, _), value in zip(switches, before, strict=True):
            setattr(place, name, value)
