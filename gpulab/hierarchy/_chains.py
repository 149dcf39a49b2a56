"""Chains of nodes in a random cycle, and the walks along them: with Python objects, with numba over
an array, or as a CUDA kernel through CuPy; and the CUDA kernel that reads a working set.
"""

from __future__ import annotations

import functools
import gc
import importlib
import platform
from collections.abc import Callable
from typing import Any

import numpy as np

from gpulab import _backends
from gpulab.devices import Device, translate
from gpulab.errors import InputError, MissingLibraryError, message_of, pip_command

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
# What Python keeps of an object in front of its slots: the collector's two words, the count of
# references, the type.
_HEADER_BYTES = 32
METHOD_WORDS = {
    "python": "a cycle of Python objects",
    "numba": "numba over an array",
    "cupy": "a CUDA kernel",
}


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
    """Return the nodes' numbers in the order of a walk: block after block, at random in both.

    Parameters
    ----------
    nodes, seed : int
    block : int
        Nodes of a block.
    """
    rng = np.random.default_rng(seed)
    place = np.arange(nodes) // block
    rank = rng.permutation(int(place[-1]) + 1)
    return np.lexsort((rng.random(nodes), rank[place]))


# -- Python objects


# Its objects fill one line: the link in the first slot, the others only take room.
_SPARE = tuple(f"_{k}" for k in range((LINE_BYTES - _HEADER_BYTES) // _WORD - 1))
_Node: Any = type("Node", (), {"__slots__": ("next", *_SPARE)})


@functools.cache
def _python_walk(walkers: int) -> Callable[..., Any]:
    """Return ``walk(nodes, rounds) -> nodes``, written out so that the loop itself costs nothing.

    One walker goes hop after hop in one expression, and keeps nothing in between.
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
    return _written("\n".join(f"    {line}" for line in lines), "walk(nodes, rounds)")


def _written(body: str, signature: str) -> Callable[..., Any]:
    names: dict[str, Any] = {}
    exec(f"def {signature}:\n{body}\n", names)
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
            before = ring[-1]
            for node in ring:
                before.next = node
                before = node
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
        """Cut the cycle, so that the nodes go at once and not at the collector's next visit."""
        self._at = ()
        for node in self._ring:
            node.next = None
        self._ring = []


# -- numba


@functools.cache
def _numba_walk(walkers: int) -> Callable[..., Any]:
    """Return ``walk(ring, at, rounds)``, compiled; unsigned numbers, for which numba adds no test
    of the sign.
    """
    numba = _numba()
    names = [f"n{k}" for k in range(walkers)]
    lines = [
        *(f"{name} = at[{k}]" for k, name in enumerate(names)),
        "for _ in range(rounds):",
        *(f"    {name} = ring[{name}]" for name in names),
        *(f"at[{k}] = {name}" for k, name in enumerate(names)),
    ]
    walk = _written("\n".join(f"    {line}" for line in lines), "walk(ring, at, rounds)")
    return numba.njit("void(uint64[::1], uint64[::1], int64)")(walk)  # type: ignore[no-any-return]


class _NumbaChain:
    """Numbers in an array, one a line: each is the place of the next."""

    def __init__(self, nbytes: int, seed: int) -> None:
        if _numba() is None:
            raise MissingLibraryError(
                "latency: method='numba' needs numba, which is not installed here. Leave method "
                "out, or install numba."
            )
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
    """Return the places of walkers evenly along an order, as uint64."""
    return order[[k * len(order) // walkers for k in range(walkers)]].astype(np.uint64)


def laid_out(nbytes: int, seed: int, line_bytes: int) -> tuple[np.ndarray, np.ndarray]:
    """Return a ring of that size as an array of uint64 that begins on a line, and the places of its
    nodes in the order of a walk.
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


# A line of a GPU's L1 and L2 (four sectors of 32 bytes): a hop never finds its target in the line
# before.
GPU_LINE_BYTES = 128
_THREADS = 256
_BLOCKS_PER_SM = 8
# Read by one call: about a tenth of a millisecond, far above a launch.
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
        If it cannot be imported: who asked can go on without this GPU's figures.
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
        If CuPy cannot compile it here (NVRTC is not installed, or is too old for the GPU): as
        without CuPy, who asked can go on.
    """
    try:
        return _kernels(device.index).get_function(name)
    except Exception as error:
        # CuPy's own types of NVRTC's errors, or RuntimeError where it finds no NVRTC
        # of the memory or the device, and no fault of the compiler's
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


def chain(method: str, device: Device, nbytes: int, seed: int = 0) -> Chain:
    """Return a chain through ``nbytes`` bytes, with one walker.

    Raises
    ------
    MissingLibraryError
        If the method's library is not installed.
    """
    if method == "cupy":
        return CudaChain(device, nbytes, seed)
    return (_NumbaChain if method == "numba" else _PythonChain)(nbytes, seed)


def reader(device: Device, nbytes: int) -> tuple[Callable[[], Any], int]:
    """Return a call that reads a working set of the whole device often enough, and the bytes that
    it reads.
    """
    cupy = _cupy("bandwidth")
    count = max(1, nbytes // 16)
    passes = max(1, _BYTES_PER_CALL // (16 * count))
    # before the ones, which CuPy makes by a kernel of its own
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
