"""Cells of the notebooks that only a GPU can run: divergent branches (01), pinning (02), a kernel
in several libraries, and a transpose that reads columns (04).
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
from __future__ import annotations

import functools
import importlib.util
import itertools
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch

from gpulab.devices import Device
from gpulab.kernels import launcher
from gpulab.recorder._experiments import SECOND, THIRD, Case, Work, timed

try:  # a bare machine may have neither
    from numba import cuda, float32
except ImportError:
    cuda = None
try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None

_BLOCK = 256
_DIVERGENT, _PINNED_BYTES, _SIDE = 2**26, 2**26, 8192
_GATE = (2**22, 2**26)
_GATE_FORMS = ("PyTorch", "torch.compile", "ElementwiseKernel", "RawKernel", "Triton")


def lessons(device: Device) -> Iterable[Case]:
    """Return the cases of a CUDA device; other devices have none."""
    if device.torch_type != "cuda":
        return
    python = cuda is not None and importlib.util.find_spec("numba_cuda") is not None
    pinning = ("plain copy", "pin, then copy", "pinned long ago")
    # whether it can run here, the cell, its forms and sizes, and the function that makes its work
    asked: tuple[tuple[bool, str, Iterable[str], Iterable[int], Callable[..., Any]], ...] = (
        (python, "divergence", _APART, (1, 1000), _divergence),
        (python, "transpose", ("columns_read",), (_SIDE,), _transpose),
        (True, "pinning", pinning, (_PINNED_BYTES,), _pinning),
        (True, "gate", _GATE_FORMS, _GATE, _gate),
    )
    for runs, cell, forms, sizes, prepare in asked:
        rank = SECOND if cell == "divergence" else THIRD
        for n, form in itertools.product(sizes, forms) if runs else ():
            yield timed(device, {"cell": cell, "form": form, "n": n}, rank, _work, prepare, form, n)


def _work(device: Device, prepare: Callable[..., Callable[[], Any]], form: str, n: int) -> Work:
    return Work(prepare(str(device), form, n))


def _divergence(where: str, form: str, steps: int) -> Any:
    x = torch.full((_DIVERGENT,), 0.01, device=where)
    return launcher(_APART[form], _DIVERGENT // _BLOCK, _BLOCK, x, torch.empty_like(x), steps)


def _transpose(where: str, form: str, n: int) -> Any:
    a = torch.rand(n, n, device=where)
    return launcher(columns_read, (n // 32, n // 32), (32, 8), a, torch.empty_like(a))


def _pinning(where: str, form: str, nbytes: int) -> Callable[[], Any]:
    x = torch.ones(nbytes, dtype=torch.uint8)
    if form == "plain copy":
        return lambda: x.to(where)
    if form == "pin, then copy":
        return lambda: x.pin_memory().to(where, non_blocking=True)
    ready = x.pin_memory()
    return lambda: ready.to(where, non_blocking=True)


def _gate(where: str, form: str, n: int) -> Callable[[], Any]:
    x = torch.randn(n, device=where)
    y, blocks = torch.empty_like(x), -(-n // _BLOCK)
    if form == "PyTorch":
        return functools.partial(gate_torch, x)
    if form == "torch.compile":
        return functools.partial(torch.compile(gate_torch), x)
    if form == "Triton":
        return lambda: gate_triton[(-(-n // 1024),)](x, y, n, BLOCK=1024)
    import cupy

    x_cupy, y_cupy = cupy.asarray(x), cupy.asarray(y)
    if form == "ElementwiseKernel":
        formula = cupy.ElementwiseKernel("float32 x", "float32 y", _FORMULA, "gate_formula")
        return lambda: formula(x_cupy, y_cupy)
    raw = cupy.RawKernel(SOURCE, "gate")
    return lambda: raw((blocks,), (_BLOCK,), (x_cupy, y_cupy, np.int32(n)))


# ---- the kernels, as they stand in the notebooks

SOURCE = r"""
extern "C" __global__ void gate(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = 0.5f * x[i] * (1.0f + tanhf(0.8f * x[i]));
}
extern "C" __global__ void one(float* x) { x[0] += 1.0f; }
"""
_FORMULA = "y = 0.5f * x * (1.0f + tanhf(0.8f * x))"


def _apart(lanes):
    """Return a kernel in which even and odd groups of ``lanes`` lanes take different branches."""

    def kernel(x, out, steps):
        i = cuda.grid(1)
        v = x[i]
        if (i // lanes) % 2 == 0:
            for _ in range(steps):
                v = v * v + x[i]
        else:
            for _ in range(steps):
                v = v * x[i] + v
        out[i] = v

    return kernel


_APART = {"lanes_apart": _apart(1), "warps_apart": _apart(32)}


def columns_read(a, b):
    """Transpose by reading columns and writing rows, the reverse of the ladder's first rung."""
    x = 32 * cuda.blockIdx.x + cuda.threadIdx.x
    y = 32 * cuda.blockIdx.y + cuda.threadIdx.y
    for k in range(0, 32, 8):
        if y + k < b.shape[0] and x < b.shape[1]:
            b[y + k, x] = a[x, y + k]


def one(x):
    """Add 1 to one number: about the least that a kernel can do."""
    x[0] += float32(1)


def gate_torch(x):
    """Return the formula of the gate, one operator after the other."""
    return 0.5 * x * (1 + torch.tanh(0.8 * x))


if triton is not None:

    @triton.jit
    def gate_triton(x, y, n, BLOCK: tl.constexpr):
        """Each program computes a block of elements."""
        i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        v = tl.load(x + i, mask=i < n)
        tl.store(y + i, v * tl.sigmoid(1.6 * v), mask=i < n)
