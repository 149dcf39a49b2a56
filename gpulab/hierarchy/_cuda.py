"""The chase and the stream as CUDA kernels through CuPy. Written for a machine with a GPU; tests
marked ``gpu`` run it there.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from gpulab import _backends
from gpulab.devices import Device, translate
from gpulab.errors import InputError, MissingLibraryError, message_of, pip_command
from gpulab.hierarchy._chains import HOPS_PER_CALL, laid_out, spaced

# A line of a GPU's L1 and L2 (four sectors of 32 bytes): a hop never finds its target in the line
# before.
LINE_BYTES = 128
_THREADS = 256
_BLOCKS_PER_SM = 8
# Read by one call: about a tenth of a millisecond, far above a launch.
_BYTES_PER_CALL = 2**29
_SOURCE = r"""
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
            f"({message_of(error.__cause__ or error)}); expected "
            f"it to be installed. Run {pip_command('install cupy-cuda13x')}, or cupy-cuda12x for "
            "an older driver."
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
            "expected an NVRTC that CuPy can find and "
            "that supports this GPU. `gpulab doctor` reports what to install."
        ) from error


@functools.cache
def _kernels(index: int) -> Any:
    cupy = _cupy("latency")
    with cupy.cuda.Device(index):
        return cupy.RawModule(code=_SOURCE)


class CudaChain:
    """One thread (or several independent ones of a warp) walks a ring in the device's memory."""

    def __init__(self, device: Device, nbytes: int, seed: int) -> None:
        self._cupy = _cupy("latency")
        self._device = device
        ring, self._order = laid_out(max(1, nbytes // LINE_BYTES), seed, LINE_BYTES)
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
