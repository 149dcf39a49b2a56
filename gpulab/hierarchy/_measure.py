"""Measure chases, parallel chases and streams, or load the curves of a recording.

A chase walks along a chain of nodes in a random cycle: with Python objects, with numba over an
array, or as a CUDA kernel through CuPy.
"""

from __future__ import annotations

import dataclasses
import functools
import gc
import importlib
import itertools
import platform
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from typing import Any

import numpy as np

from gpulab import _backends, _validate, devices, timing
from gpulab.devices import Device, diagnosis, host_facts, measured_rates, translate
from gpulab.errors import (
    InputError,
    MissingLibraryError,
    OutOfMemoryError,
    message_of,
    pip_command,
    shown,
)
from gpulab.hierarchy.curves import (
    METHOD_WORDS,
    Bandwidth,
    BandwidthPoint,
    Latency,
    LatencyPoint,
    ParallelChains,
    ParallelPoint,
    Reported,
)
from gpulab.recordings import Recording
from gpulab.recordings.schema import RECORDING, Timing, reported_accelerator
from gpulab.timing import Measurement
from gpulab.timing.measuring import Series
from gpulab.timing.sampling import Clock
from gpulab.units import format_bytes
from gpulab.workloads import MARGIN, free_bytes

# -------------------------------------------------------------------------------------------------
# Chains of nodes in a random cycle, and the walks along them: with Python objects, or with numba
# over an array.
#
# A node takes one cache line. The order is random inside blocks of 64 KiB, and the blocks follow
# each other at random: no prefetcher can guess the next line, and few address translations miss
# the TLB (with a random order over the whole set, each load of a large set would also wait for the
# page tables, which is a separate effect).


# Apple's processors fetch lines of 128 bytes; the others of today 64.
LINE_BYTES = 128 if (platform.system(), platform.machine()) == ("Darwin", "arm64") else 64
BLOCK_BYTES = 2**16
# Hops of one call: from 20 us in the first cache to about a millisecond in main memory, far above
# the call's own cost.
HOPS_PER_CALL = 8192
_UNROLLED = 64
_WORD = 8
# Bytes of a Python object before its slots: two words of the garbage collector, the reference
# count, and the type.
_HEADER_BYTES = 32


def methods() -> tuple[str, ...]:
    """Return the chase methods available on this machine's CPU, the most precise first: "numba"
    where it is installed, and "python".
    """
    return ("numba", "python") if _numba() is not None else ("python",)


@functools.cache
def _numba() -> Any:
    try:
        return importlib.import_module("numba")
    except Exception:
        # an installed numba that does not fit the NumPy beside it raises more than ImportError
        return None


def visiting_order(nodes: int, seed: int, block: int = BLOCK_BYTES // LINE_BYTES) -> np.ndarray:
    """Return the nodes' numbers in the order of a walk: block after block, with the blocks in
    random order, and the nodes inside each block too.

    Parameters
    ----------
    nodes, seed : int
    block : int
        Number of nodes in a block.
    """
    rng = np.random.default_rng(seed)
    place = np.arange(nodes) // block
    rank = rng.permutation(int(place[-1]) + 1)
    return np.lexsort((rng.random(nodes), rank[place]))


# -- Python objects


# An object fills one cache line: the first slot has the link, the others are padding.
_SPARE = tuple(f"_{k}" for k in range((LINE_BYTES - _HEADER_BYTES) // _WORD - 1))
_Node: Any = type("Node", (), {"__slots__": ("next", *_SPARE)})


@functools.cache
def _python_walk(walkers: int) -> Callable[..., Any]:
    """Return ``walk(nodes, rounds) -> nodes``, unrolled so that the loop itself costs nothing.

    With one walker the hops of a round are one expression, and nothing is stored in between.
    """
    names = [f"n{k}" for k in range(walkers)]
    one_by_one = [f"{name} = {name}.next" for name in names] * (_UNROLLED // walkers)
    body = [f"n0 = n0{'.next' * _UNROLLED}"] if walkers == 1 else one_by_one
    lines = [
        f"{', '.join(names)}, = nodes",
        "for _ in range(rounds):",
        *(f"    {line}" for line in body),
        f"return {', '.join(names)},",
    ]
    return _written("walk(nodes, rounds)", lines)


def _written(signature: str, lines: list[str]) -> Callable[..., Any]:
    """Return the function ``walk`` with this signature and these lines as its body."""
    names: dict[str, Any] = {}
    exec("\n    ".join([f"def {signature}:", *lines]), names)
    return names["walk"]  # type: ignore[no-any-return]


class _PythonChain:
    """Objects linked by an attribute; ``n = n.next`` is a load that the next one waits for."""

    def __init__(self, nbytes: int, seed: int) -> None:
        nodes = max(1, nbytes // LINE_BYTES)
        collecting = gc.isenabled()
        gc.disable()  # a collection would walk through all nodes, once for every thousand made
        try:
            made = [_Node() for _ in range(nodes)]
            addresses = np.fromiter(map(id, made), np.int64, nodes)
            ring = [made[k] for k in np.argsort(addresses)[visiting_order(nodes, seed)].tolist()]
            for node, following in itertools.pairwise(itertools.chain(ring, ring[:1])):
                node.next = following
        finally:
            if collecting:
                gc.enable()
        self._ring, self._rounds = ring, HOPS_PER_CALL // _UNROLLED
        self.start(1)

    def start(self, walkers: int) -> None:
        """Place walkers evenly along the cycle."""
        self._at = tuple(self._ring[k * len(self._ring) // walkers] for k in range(walkers))
        self._walk = _python_walk(walkers)

    def walk(self) -> None:
        """Make the hops of one call."""
        self._at = self._walk(self._at, self._rounds)

    def close(self) -> None:
        """Cut the cycle, so that the nodes are freed at once, not by a later garbage collection."""
        self._at = ()
        for node in self._ring:
            node.next = None
        self._ring = []


# -- numba


@functools.cache
def _numba_walk(walkers: int) -> Callable[..., Any]:
    """Return ``walk(ring, at, rounds)``, compiled. The indices are unsigned, so numba adds no test
    for negative ones.
    """
    numba = _numba()
    names = [f"n{k}" for k in range(walkers)]
    lines = [
        *(f"{name} = at[{k}]" for k, name in enumerate(names)),
        "for _ in range(rounds):",
        *(f"    {name} = ring[{name}]" for name in names),
        *(f"at[{k}] = {name}" for k, name in enumerate(names)),
    ]
    walk = _written("walk(ring, at, rounds)", lines)
    return numba.njit("void(uint64[::1], uint64[::1], int64)")(walk)  # type: ignore[no-any-return]


class _NumbaChain:
    """Indices in an array, one per cache line: each is the index of the next one."""

    def __init__(self, nbytes: int, seed: int) -> None:
        self._ring, self._order = laid_out(nbytes, seed, LINE_BYTES)
        self.start(1)

    def start(self, walkers: int) -> None:
        """Place walkers evenly along the cycle."""
        self._at = spaced(self._order, walkers)
        self._walk, self._rounds = _numba_walk(walkers), HOPS_PER_CALL // walkers

    def walk(self) -> None:
        """Make the hops of one call."""
        self._walk(self._ring, self._at, self._rounds)

    def close(self) -> None:
        """Let go of the array."""
        del self._ring, self._order


def spaced(order: np.ndarray, walkers: int) -> np.ndarray:
    """Return the indices at which walkers start, spaced evenly along an order, as uint64."""
    return order[[k * len(order) // walkers for k in range(walkers)]].astype(np.uint64)


def laid_out(nbytes: int, seed: int, line_bytes: int) -> tuple[np.ndarray, np.ndarray]:
    """Return a ring of ``nbytes`` bytes, an array of uint64 that begins on a cache line, and the
    indices of its nodes in the order of a walk.
    """
    nodes, step = max(1, nbytes // line_bytes), line_bytes // _WORD
    room = np.zeros(nodes * step + step, np.uint64)
    start = (-room.ctypes.data % line_bytes) // _WORD
    ring = room[start : start + nodes * step]
    order = visiting_order(nodes, seed, BLOCK_BYTES // line_bytes) * step
    ring[order] = np.roll(order, -1).astype(np.uint64)
    return ring, order


# -------------------------------------------------------------------------------------------------
# The chase and the stream as CUDA kernels through CuPy. Written for a machine with a GPU; tests
# marked ``gpu`` run it there.


# A line of a GPU's L1 and L2 (four sectors of 32 bytes): the target of a hop is never in the line
# that the hop before loaded.
GPU_LINE_BYTES = 128
_THREADS = 256
_BLOCKS_PER_SM = 8
# Bytes that one call reads: it takes about a tenth of a millisecond, far longer than a launch.
_BYTES_PER_CALL = 2**29
_CUDA_SOURCE = r"""
extern "C" __global__ void chase(const unsigned long long* ring, unsigned long long* at, long long rounds)
{
    // Thread k is a walker of its own; with one thread every load waits for the one before it.
    unsigned long long place = at[threadIdx.x];
    for (long long i = 0; i < rounds; ++i) {
        place = ring[place];
    }
    at[threadIdx.x] = place;
}

extern "C" __global__ void read_all(const float4* data, long long count, int passes, float* never)
{
    const long long step = (long long)gridDim.x * blockDim.x;
    float sum = 0.0f;
    for (int pass = 0; pass < passes; ++pass) {
        for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
            const float4 v = data[i];
            sum += v.x + v.y + v.z + v.w;
        }
        // Otherwise the compiler may read once and multiply.
        asm volatile("" ::: "memory");
    }
    if (sum == -1.0f) {  // the data are ones, so this is never so, and the compiler cannot know
        *never = sum;
    }
}
"""


def _cupy(function: str) -> Any:
    """Return CuPy.

    Raises
    ------
    MissingLibraryError
        If it cannot be imported; the caller can go on without this GPU's figures.
    """
    try:
        return _backends.backend("cupy").module
    except InputError as error:
        raise MissingLibraryError(
            f"{function}: a CUDA device is measured with CuPy, which cannot be imported "
            f"({message_of(error.__cause__ or error)}); expected it to be installed. Run "
            f"{pip_command('install cupy-cuda13x')}, or cupy-cuda12x for an older driver."
        ) from error


def _kernel(function: str, device: Device, name: str) -> Any:
    """Return one of the kernels, compiled.

    Raises
    ------
    MissingLibraryError
        If CuPy cannot compile it here (NVRTC is not installed, or is too old for the GPU); the
        caller can go on, as without CuPy.
    """
    try:
        return _kernels(device.index).get_function(name)
    except Exception as error:
        # CuPy raises its own types for NVRTC's errors, and RuntimeError if it finds no NVRTC. An
        # error of the memory or the device is not the compiler's, so it is raised again.
        if translate(error, "") is not None:
            raise
        raise MissingLibraryError(
            f"{function}: CuPy cannot compile a kernel for {device.name} ({message_of(error)}); "
            "expected an NVRTC that CuPy can find and that supports this GPU. `gpulab doctor` "
            "reports what to install."
        ) from error


@functools.cache
def _kernels(index: int) -> Any:
    cupy = _cupy("latency")
    with cupy.cuda.Device(index):
        return cupy.RawModule(code=_CUDA_SOURCE)


class CudaChain:
    """One thread (or several independent ones of a warp) walks a ring in the device's memory."""

    def __init__(self, device: Device, nbytes: int, seed: int) -> None:
        self._cupy = _cupy("latency")
        self._device = device
        ring, self._order = laid_out(nbytes, seed, GPU_LINE_BYTES)
        with self._cupy.cuda.Device(device.index):
            self._ring = self._cupy.asarray(ring)
        self._kernel = _kernel("latency", device, "chase")
        self.start(1)

    def start(self, walkers: int) -> None:
        """Place walkers, threads of one warp, evenly along the ring."""
        self._walkers = walkers
        with self._cupy.cuda.Device(self._device.index):
            self._at = self._cupy.asarray(spaced(self._order, walkers))

    def walk(self) -> None:
        """Launch the hops of one call; the caller waits for the device."""
        with self._cupy.cuda.Device(self._device.index):
            self._kernel(
                (1,),
                (self._walkers,),
                (self._ring, self._at, np.int64(HOPS_PER_CALL // self._walkers)),
            )

    def close(self) -> None:
        """Let go of the ring."""
        self._ring = self._at = None


# A cycle of nodes with walkers on it: ``start`` places them evenly along it, ``walk`` makes
# ``HOPS_PER_CALL`` hops, shared evenly by them, and ``close`` lets go of the nodes.
Chain = _PythonChain | _NumbaChain | CudaChain


def new_chain(method: str, device: Device, nbytes: int, seed: int = 0) -> Chain:
    """Return a chain through ``nbytes`` bytes, with one walker.

    Raises
    ------
    MissingLibraryError
        If CuPy is not installed, or cannot compile for the device.
    """
    if method == "cupy":
        return CudaChain(device, nbytes, seed)
    return (_NumbaChain if method == "numba" else _PythonChain)(nbytes, seed)


def reader(device: Device, nbytes: int) -> tuple[Callable[[], Any], int]:
    """Return a function with which the whole device reads a working set repeatedly, each thread the
    same part in every pass, and the number of bytes that one call reads.
    """
    cupy = _cupy("bandwidth")
    count = max(1, nbytes // 16)
    passes = max(1, _BYTES_PER_CALL // (16 * count))
    # Compiled before ``cupy.ones``, which compiles a kernel of its own: without NVRTC, the error
    # then is the one of ``_kernel``, which says what to do.
    kernel = _kernel("bandwidth", device, "read_all")
    with cupy.cuda.Device(device.index):
        data, never = cupy.ones(4 * count, cupy.float32), cupy.zeros(1, cupy.float32)
        blocks = _BLOCKS_PER_SM * int(
            cupy.cuda.Device(device.index).attributes["MultiProcessorCount"]
        )

    def work() -> None:
        with cupy.cuda.Device(device.index):
            kernel((blocks,), (_THREADS,), (data, np.int64(count), np.int32(passes), never))

    return work, 16 * count * passes


# -------------------------------------------------------------------------------------------------
# Validation of sizes, methods and deadlines, and what the system reports about the caches.


_SMALLEST, _LARGEST = 2**10, 2**34
# The default sets range from a part of any first cache to this multiple of the last one, as far as
# making the nodes takes no more than seconds. The multiple is larger on a GPU, where the rise after
# the L2 is wide (seen on an H200: its halves, then both, then flat from 1.5 times its 60 MiB on)
# and the nodes are made in one array operation.
_TIMES_THE_LAST = {"cpu": 2, "gpu": 4}
_FIRST, _LAST = 2**12, {"python": 2**26, "numba": 2**27, "numpy": 2**27, "cupy": 2**29}
_LEAST_LAST = 2**24
# Above this the sets are expensive to make, and one for each doubling is enough.
_FINE_TO = 2**23
_SHARE_OF_FREE = 0.25
# Bytes taken for each byte of the set: nodes, their list, and the order while it is made.
_OVERHEAD = {"python": 2.0, "numba": 2.0, "numpy": 1.1, "cupy": 2.0}


def _device(function: str, device: Any) -> Device:
    """Return the device: the CPU or a CUDA one.

    Raises
    ------
    InputError
        If it is another accelerator: there is no chase for it yet.
    """
    found = devices.find(device)
    if not found.is_cpu and found.torch_type != "cuda":
        raise InputError(
            f"{function}: {found.name} cannot be measured by this function; expected the CPU or a "
            "CUDA device. Pass device='cpu'."
        )
    return found


def _method(function: str, method: str | None, device: Device) -> str:
    """Return the requested chase method, else the most precise one available."""
    known = methods() if device.is_cpu else ("cupy",)
    return known[0] if method is None else _validate.word(function, "method", method, known)


def _sizes(
    function: str, sizes: Iterable[int] | None, device: Device, method: str
) -> tuple[int, ...]:
    """Return working sets in whole lines, ascending.

    By default two for each doubling (one above 8 MiB), up to a size that depends on the caches and
    the method, in at most a quarter of the free memory.

    Raises
    ------
    InputError
        If a size is not a whole number of bytes from 1 KiB to 16 GiB.
    OutOfMemoryError
        If a requested size does not fit; nothing has been allocated.
    """
    room = min(free_bytes(Device("cpu")), free_bytes(device))
    if sizes is None:
        times = _TIMES_THE_LAST["cpu" if device.is_cpu else "gpu"]
        last = max([_LEAST_LAST, *(times * cache.size_bytes for cache in _reported_caches(device))])
        beyond = 1 << (int(last) - 1).bit_length()  # above 8 MiB the sets are powers of two
        end = min(beyond, _LAST[method], room * _SHARE_OF_FREE / _OVERHEAD[method])
        doublings = range(_FIRST.bit_length() - 1, _LARGEST.bit_length())
        halves = (n for k in doublings for n in (2**k, 2**k + 2 ** (k - 1)) if n <= end)
        return tuple(n for n in halves if n <= _FINE_TO or n.bit_count() == 1) or (_FIRST,)
    example = "sizes=[2**k for k in range(12, 27)]"
    chosen = [
        _validate.whole(
            function, "a size in bytes", n, _SMALLEST, _LARGEST, f"Pass for example {example}."
        )
        for n in _validate.items(function, "sizes", sizes, example)
    ]
    needed = max(chosen) * _OVERHEAD[method] * MARGIN
    if needed > room:
        raise OutOfMemoryError(
            f"{function}: a working set of {format_bytes(max(chosen))} needs about "
            f"{format_bytes(needed)} to set up; expected at most {format_bytes(room)}, which is "
            "free. Pass smaller sizes."
        )
    return tuple(sorted({n // LINE_BYTES * LINE_BYTES for n in chosen}))


def _reported_caches(device: Device) -> tuple[Reported, ...]:
    """Return the caches that the system reports (of a GPU: its L2), smallest first; empty where it
    reports none.
    """
    if device.is_cpu:
        return tuple(
            Reported(cache.level, float(cache.size_bytes)) for cache in host_facts.probe().caches
        )
    l2 = diagnosis.accelerator(device).l2_bytes
    return (Reported("L2", float(l2)),) if l2 else ()


# -------------------------------------------------------------------------------------------------
# Latency by working set: several chases a size, each through a cycle of its own.


# A measurement ends at an interval this narrow: half of the noise between chases of one size on a
# quiet machine.
_RELATIVE_WIDTH = 0.03
# Before it is measured, a set is walked through once, for at most this many hops: a larger set
# would not be in a cache afterwards anyway.
_MOST_WARM_HOPS = 2**20


@_validate.arguments(chases=functools.partial(_validate.whole, low=1, high=100))
def latency(
    sizes: Iterable[int] | None = None,
    device: Any = "cpu",
    *,
    method: str | None = None,
    chases: int = 3,
    deadline: float = 10.0,
    clock: Clock | None = None,
) -> Latency:
    """Measure the time of a dependent load (the load before it gives its address), for working sets
    from the first cache to main memory.

    Parameters
    ----------
    sizes : iterable of int, optional
        Working sets in bytes; by default two for each doubling from 4 KiB to at least twice the
        largest cache (four times on a GPU), at most 64 MiB with Python objects, 128 MiB with numba and 512
        MiB on a GPU.
    device : Device or str
        The CPU, or a CUDA device (None takes the best one available).
    method : str, optional
        "numba" or "python" on a CPU; by default the first that is installed (see ``methods``). On a
        GPU it is "cupy".
    chases : int
        How many cycles to measure of each size, each newly made and measured at another time.
    deadline : float
        Seconds for the whole; making large cycles of Python objects may take a little longer.
    clock : callable, optional
        Returns seconds, for tests.

    Returns
    -------
    Latency
        ``levels()`` finds the steps.

    Raises
    ------
    InputError
        If an argument is not usable.
    OutOfMemoryError
        If a requested size does not fit.
    MissingLibraryError
        If the device is a CUDA one and CuPy is not installed, or cannot compile there.

    Notes
    -----
    The interpreter adds a few nanoseconds to a hop in the first caches. The processor executes it
    while a load waits, so its share disappears in longer waits and must not be subtracted;
    ``floor_seconds`` is a hop that waits only for the first cache.

    Examples
    --------
    >>> curve = latency(sizes=[2**13], method="python", chases=1, deadline=0.1)
    >>> curve.points[0].nbytes, curve.floor_seconds > 0
    (8192, True)
    >>> curve.evidence.device.rpartition(", ")[2]
    'chase by a cycle of Python objects'
    """
    where = _device("latency", device)
    how = _method("latency", method, where)
    wanted = _sizes("latency", sizes, where, how)
    run = Series("latency", chases * len(wanted) + 1, deadline, None, None, clock)
    taken: dict[int, list[Measurement]] = {nbytes: [] for nbytes in wanted}

    def chase(nbytes: int, seed: int) -> Measurement:
        return run.measured(_timed_chase(where, how, nbytes, seed, run.share, clock=run.clock))

    floor = chase(LINE_BYTES, 0).median_seconds / HOPS_PER_CALL
    # Measure all sizes, then all again: a long disturbance then affects one chase of many sizes,
    # not all chases of one size.
    for seed in range(chases):
        for nbytes, each in taken.items():
            # the first chase of each size is always made
            if not seed or run.left > 0:
                each.append(chase(nbytes, seed))
    points = tuple(_latency_point(nbytes, each) for nbytes, each in taken.items())
    notes, evidence, environment = run.finished(where, f"chase by {METHOD_WORDS[how]}", points)
    return Latency(
        where.name, how, points, floor, _reported_caches(where), notes, evidence, environment
    )


def _timed_chase(
    device: Device, method: str, nbytes: int, seed: int, seconds: float, **options: Any
) -> Measurement:
    """Measure the walk along a new chain until ``seconds`` have passed. One call of it makes
    ``HOPS_PER_CALL`` hops.
    """
    with (
        devices.guard(f"latency: a chain of {format_bytes(nbytes)} on {device.name}"),
        closing(new_chain(method, device, nbytes, seed)) as chain,
    ):
        return _walked(chain, device, nbytes, seconds, **options)


def _walked(
    chain: Chain, device: Device, nbytes: int, seconds: float, **options: Any
) -> Measurement:
    """Walk a chain once, then measure the walk."""
    for _ in range(1 + min(nbytes // LINE_BYTES, _MOST_WARM_HOPS) // HOPS_PER_CALL):
        chain.walk()
    return timing.measure(
        chain.walk,
        device=device,
        relative_width=_RELATIVE_WIDTH,
        deadline=seconds,
        label=f"{HOPS_PER_CALL} hops in {format_bytes(nbytes)}",
        **options,
    )


def _per_hop(
    timing: Measurement | Timing, hops: int = HOPS_PER_CALL
) -> tuple[float, tuple[float, float] | None, float]:
    """Return seconds per hop: the median, the interval, and of the fastest sample."""
    interval = timing.interval_seconds
    return (
        timing.median_seconds / hops,
        None if interval is None else (interval[0] / hops, interval[1] / hops),
        float(np.min(timing.samples_seconds)) / hops,
    )


def _latency_point(nbytes: int, each: list[Measurement]) -> LatencyPoint:
    medians, intervals, least = zip(*map(_per_hop, each), strict=True)
    known = [interval for interval in intervals if interval is not None]
    return LatencyPoint(
        nbytes=nbytes,
        median_seconds=float(np.median(medians)),
        interval_seconds=(min(low for low, _ in known), max(high for _, high in known))
        if len(known) == len(each)
        else None,
        least_seconds=min(least),
        samples=sum(len(m.samples_seconds) for m in each),
        chases=len(each),
    )


# -------------------------------------------------------------------------------------------------
# Several independent chases by one core: while one waits, the loads of the others are in flight
# too.


_COUNTS = (1, 2, 4, 8, 16)
_POSSIBLE = (1, 2, 4, 8, 16, 32)


def parallel(
    chains: Iterable[int] = _COUNTS,
    nbytes: int | None = None,
    *,
    method: str | None = None,
    deadline: float = 6.0,
    clock: Clock | None = None,
) -> ParallelChains:
    """Measure how many hops per second one core makes along one chain, and along several
    independent chains.

    Parameters
    ----------
    chains : iterable of int
        Powers of two from 1 to 32; 1 is always measured.
    nbytes : int, optional
        The working set, shared by all chains; by default the largest that ``latency`` would take,
        which is mostly in main memory unless the last cache holds more than half of it.
    method : str, optional
        "numba" or "python"; by default the first that is installed.
    deadline : float
        Seconds in all, not counting the time to make the cycles.
    clock : callable, optional
        As for ``latency``.

    Returns
    -------
    ParallelChains

    Raises
    ------
    InputError
        If an argument is not usable.
    OutOfMemoryError
        If the set does not fit.

    Examples
    --------
    >>> both = parallel([2], 2**20, method="python", deadline=0.2)
    >>> [point.chains for point in both.points]
    [1, 2]
    """
    where = devices.find("cpu")
    how = _method("parallel", method, where)
    counts = _validate.items("parallel", "chains", chains)
    for count in counts:
        if not _validate.is_whole(count) or count not in _POSSIBLE:
            raise InputError(
                f"parallel: chains holds {shown(count)}; expected powers of two from 1 to 32. Pass "
                "for example chains=[1, 4, 16]."
            )
    size = _sizes("parallel", None if nbytes is None else [nbytes], where, how)[-1]
    wanted = sorted({1, *counts})
    run = Series("parallel", len(wanted), deadline, None, None, clock)
    points = []
    with (
        devices.guard(f"parallel: a chain of {format_bytes(size)}"),
        closing(new_chain(how, where, size)) as chain,
    ):
        for count in wanted:
            chain.start(count)
            m = run.measured(_walked(chain, where, size, run.share, clock=run.clock))
            points.append(ParallelPoint(count, *_per_hop(m), len(m.samples_seconds)))
    notes, evidence, environment = run.finished(where, f"chases by {METHOD_WORDS[how]}", points)
    return ParallelChains(where.name, how, size, tuple(points), notes, evidence, environment)


# -------------------------------------------------------------------------------------------------
# Bandwidth by working set: one core streams through a set again and again; on a GPU all of its
# multiprocessors do.


_WHO = {"numpy": "NumPy on one core", "cupy": "a CUDA kernel on the whole device"}


def bandwidth(
    sizes: Iterable[int] | None = None,
    device: Any = "cpu",
    *,
    deadline: float = 6.0,
    clock: Clock | None = None,
) -> Bandwidth:
    """Measure how many bytes per second one core reads in order, for working sets from the first
    cache to main memory.

    Parameters
    ----------
    sizes : iterable of int, optional
        Working sets in bytes; by default as for ``latency``.
    device : Device or str
        The CPU (the maximum of an array in float32), or a CUDA device, whose multiprocessors all
        read together (None takes the best one available).
    deadline : float
        Seconds for the whole.
    clock : callable, optional
        As for ``latency``.

    Returns
    -------
    Bandwidth
        See ``gpulab.devices.ceilings`` for the highest rates of all cores together, also of copy
        and triad, at a few sets.

    Raises
    ------
    InputError
        If an argument is not usable.
    OutOfMemoryError
        If a requested size does not fit.
    MissingLibraryError
        If the device is a CUDA one and CuPy is not installed, or cannot compile there.

    Notes
    -----
    On a GPU each multiprocessor reads the same part of the set in every pass. So a set that fits
    into all first caches together (33 MiB on an H200) shows their rate, not that of the L2; and one
    with less than 16 bytes for each thread (4 MiB there) keeps too few loads in flight.

    Examples
    --------
    >>> curve = bandwidth(sizes=[2**14, 2**20], deadline=0.2)
    >>> [point.nbytes for point in curve.points]
    [16384, 1048576]
    """
    where = _device("bandwidth", device)
    how = "numpy" if where.is_cpu else "cupy"
    wanted = _sizes("bandwidth", sizes, where, how)
    run = Series("bandwidth", len(wanted), deadline, None, None, clock)
    points = []
    for nbytes in wanted:
        m = run.measured(_timed_stream(where, nbytes, run.share, clock=run.clock))
        points.append(BandwidthPoint(nbytes, *_rates(m, m.nbytes or 0.0), len(m.samples_seconds)))
    notes, evidence, environment = run.finished(where, f"read by {_WHO[how]}", points)
    return Bandwidth(
        where.name,
        how,
        "read",
        tuple(points),
        _reported_caches(where),
        notes,
        evidence,
        environment,
    )


def _timed_stream(device: Device, nbytes: int, seconds: float, **options: Any) -> Measurement:
    """Measure a call that streams through a set; the result's ``nbytes`` is what one call moves."""
    with devices.guard(f"bandwidth: {format_bytes(nbytes)} on {device.name}"):
        work, moved = (
            measured_rates.thread_work("read", nbytes) if device.is_cpu else reader(device, nbytes)
        )
        work()
        m = timing.measure(
            work,
            device=device,
            relative_width=_RELATIVE_WIDTH,
            deadline=seconds,
            label=f"read of {format_bytes(nbytes)}",
            **options,
        )
        # Set afterwards: ``measure`` compares bytes with the level of memory that would hold them,
        # but a call moves few bytes many times.
        return dataclasses.replace(m, nbytes=float(moved))


def _rates(
    timing: Measurement | Timing, moved: float
) -> tuple[float, tuple[float, float] | None, float]:
    """Return bytes per second: at the median, the interval, and of the fastest sample."""
    interval = timing.interval_seconds
    return (
        moved / timing.median_seconds,
        None if interval is None else (moved / interval[1], moved / interval[0]),
        moved / float(np.min(timing.samples_seconds)),
    )


# -------------------------------------------------------------------------------------------------
# Single points of a curve, as the recorder measures them, and the curves of a recording.


def chase_method(device: Device) -> str:
    """Return the chase method for a device on a machine that has only numpy, torch and CuPy:
    "python" or "cupy".
    """
    return "python" if device.is_cpu else "cupy"


def measure_chase(nbytes: int, device: Any = "cpu", *, deadline: float = 0.5) -> Measurement:
    """Measure calls of 8,192 dependent loads through a working set.

    Parameters
    ----------
    nbytes : int
    device : Device or str
        The CPU or a CUDA device.
    deadline : float
        Seconds.

    Returns
    -------
    Measurement
        Of one call: ``HOPS_PER_CALL`` hops.

    Raises
    ------
    InputError
        If an argument is not usable.
    OutOfMemoryError
        If the set does not fit.

    Examples
    --------
    >>> measure_chase(8192, deadline=0.05).label
    '8192 hops in 8.00 KiB'
    """
    where = _device("measure_chase", device)
    method = chase_method(where)
    size = _sizes("measure_chase", [nbytes], where, method)[0]
    return _timed_chase(
        where, method, size, 0, _validate.deadline("measure_chase", "deadline", deadline)
    )


def measure_stream(nbytes: int, device: Any = "cpu", *, deadline: float = 0.5) -> Measurement:
    """Measure calls that read through a working set.

    Parameters
    ----------
    nbytes : int
    device : Device or str
        The CPU (one core) or a CUDA device.
    deadline : float
        Seconds.

    Returns
    -------
    Measurement
        Of one call; its ``nbytes`` are the bytes that the call moves, many times the working set.

    Raises
    ------
    InputError
        If an argument is not usable.
    OutOfMemoryError
        If the set does not fit.
    """
    where = _device("measure_stream", device)
    size = _sizes("measure_stream", [nbytes], where, "numpy" if where.is_cpu else "cupy")[0]
    return _timed_stream(where, size, _validate.deadline("measure_stream", "deadline", deadline))


@_validate.arguments(recording=RECORDING)
def recorded_latency(recording: Recording) -> Latency | None:
    """Return a recorded machine's curve of latency, or None: "not recorded yet".

    Parameters
    ----------
    recording : Recording
        See ``gpulab.recordings.load``.

    Raises
    ------
    InputError
        If it is not a recording.
    """
    entries = _recorded_timings(recording, "latency")
    if not entries:
        return None
    points = tuple(
        LatencyPoint(nbytes, *_per_hop(recorded, params["hops"]), recorded.sample_count, 1)
        for nbytes, recorded, params in entries
    )
    return Latency(
        recording.environment.device,
        str(entries[0][2]["method"]),
        points,
        None,
        _recorded_caches(recording),
        (),
        recording.evidence(experiment="latency"),
        recording.environment,
    )


@_validate.arguments(recording=RECORDING)
def recorded_bandwidth(recording: Recording) -> Bandwidth | None:
    """Return a recorded machine's curve of bandwidth, or None: "not recorded yet".

    Parameters
    ----------
    recording : Recording

    Raises
    ------
    InputError
        If it is not a recording.
    """
    points = tuple(
        BandwidthPoint(nbytes, *_rates(timing, timing.nbytes), timing.sample_count)
        for nbytes, timing, params in _recorded_timings(recording, "bandwidth")
        if params.get("operation") == "read" and timing.nbytes
    )
    if not points:
        return None
    method = "numpy" if recording.environment.device_kind == "cpu" else "cupy"
    return Bandwidth(
        recording.environment.device,
        method,
        "read",
        points,
        _recorded_caches(recording),
        (),
        recording.evidence(experiment="bandwidth"),
        recording.environment,
    )


def _recorded_timings(
    recording: Recording, experiment: str
) -> list[tuple[int, Timing, Mapping[str, Any]]]:
    """Return working set, timing and parameters of an experiment's entries, by working set."""
    return sorted(
        (
            (int(entry.params["nbytes"]), entry.timing, entry.params)
            for entry in recording.select(experiment)
            if entry.timing is not None
        ),
        key=lambda each: each[0],
    )


def _recorded_caches(recording: Recording) -> tuple[Reported, ...]:
    """The caches that the recorded machine reported: the processor's, or the L2 of the recorded
    GPU.
    """
    if recording.environment.device_kind == "cpu":
        caches = recording.machine.get("processor", {}).get("caches", ())
        sizes: list[tuple[str, Any]] = [(one["level"], one["size_bytes"]) for one in caches]
    else:
        sizes = [("L2", reported_accelerator(recording).get("l2_bytes"))]
    return tuple(
        Reported(name, float(size))
        for name, size in sizes
        if _validate.is_finite(size) and size > 0
    )
