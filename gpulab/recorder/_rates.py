"""What a device, its memory and its link to the host can do: the catalogue of workloads, the
highest rates, number formats, working sets, kernels and copies.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import itertools
from collections.abc import Callable, Iterable
from typing import Any

import torch

from gpulab import arrays, hierarchy, transfer, workloads
from gpulab.devices import Device
from gpulab.errors import InputError
from gpulab.kernels import cuda_launcher, launcher
from gpulab.recorder._experiments import (
    FIRST,
    LAST,
    SECOND,
    THIRD,
    Case,
    Work,
    measured,
    refuse_long,
    timed,
)
from gpulab.timing import Measurement
from gpulab.workloads import WorkloadSpec

# The work of one launch must take far longer than the launch itself, and the arrays must be far
# larger than any cache: 1 GiB per array on an accelerator (the largest L2 of today is 126 MB), 256
# MiB on a CPU (its L3 may be as large).
_ACCELERATOR_ARRAY_BYTES, _CPU_ARRAY_BYTES = 2**30, 2**28
_ACCELERATOR_GEMM_SIZE, _CPU_GEMM_SIZE = 8192, 2048
# A float16 product on a CPU runs in scalar code and takes minutes at this size, so it shows no
# ceiling.
_CPU_GEMM_DTYPES = ("float32", "float64", "bfloat16")
_ACCELERATOR_GEMM_DTYPES = ("bfloat16", "float16", "tf32", "float32", "float64")
# A product whose sides are this many times smaller gives an estimate for the whole: bfloat16 takes
# a minute on a processor that has no instructions for it.
_SMALLER = 8
_LAUNCHES = 1000
# Products in each format: multiples of 16 suit every format; one less suits none.
_GPU_SIDES, _CPU_SIDES = (4096, 4095, 8192, 8191, 1024, 1023), (512, 511)
_FP8 = "float8_e4m3fn"
# Working sets, two sizes for each doubling: 4 KiB to 64 MiB on a CPU, to 512 MiB on a GPU; every
# fourth doubling first, so that a short budget shows the levels. A GPU's stream needs a set that
# all of its multiprocessors share.
_CHASE_POWER, _CPU_STREAM_POWER, _GPU_STREAM_POWER = 12, 12, 20
_CPU_LAST_POWER, _GPU_LAST_POWER = 26, 29
# Copies of 1 KiB to 1 GiB in powers of two; every fourth one first, so that a short budget still
# shows the shape of the curve.
_COPY_POWERS = range(10, 31)
_OVERLAP_BYTES, _OVERLAP_CHUNKS = (2**24, 2**28), (2, 4, 8, 16, 32)
_ARRANGEMENTS = ("serial", "chunked")


def catalogue(device: Device) -> Iterable[Case]:
    """Every workload: middle sizes in float32 first, then the other sizes, then the other
    dtypes.
    """
    for name in workloads.names():
        spec = workloads.get(name)
        for dtype in spec.dtypes:
            for n in spec.sizes:
                is_middle = n == spec.sizes[len(spec.sizes) // 2]
                rank = LAST if dtype != "float32" else SECOND if is_middle else THIRD
                yield timed(
                    device,
                    {"workload": name, "n": n, "dtype": dtype},
                    rank,
                    _workload,
                    spec,
                    n,
                    dtype,
                )


def _workload(
    device: Device, spec: WorkloadSpec, n: int, dtype: str, transfer: bool = True
) -> Work:
    work = spec(n=n, dtype=dtype)
    work.check(device)
    smaller = [spec(n=size, dtype=dtype) for size in spec.sizes if size <= n // 4]
    if device.is_cpu and smaller:
        small = smaller[-1]
        inputs = small.inputs(device=str(device))
        times = max(work.flops / max(small.flops, 1.0), work.nbytes / small.nbytes)
        refuse_long(work.label, lambda: small.run(*inputs), times)
    inputs = work.inputs(device=str(device))
    return Work(work.run, tuple(inputs), work.flops, work.nbytes, transfer)


def ceilings(device: Device) -> Iterable[Case]:
    """Memory copy, triad, and the matrix product by dtype, all before anything else."""
    elements = (_CPU_ARRAY_BYTES if device.is_cpu else _ACCELERATOR_ARRAY_BYTES) // 4
    for operation, count, run in (("copy", 2, torch.Tensor.copy_), ("triad", 3, _triad)):
        params = {"operation": operation, "nbytes": 4 * elements * count, "dtype": "float32"}
        yield timed(device, params, FIRST, _stream, count, run, elements)
    n = _CPU_GEMM_SIZE if device.is_cpu else _ACCELERATOR_GEMM_SIZE
    for dtype in _CPU_GEMM_DTYPES if device.is_cpu else _ACCELERATOR_GEMM_DTYPES:
        if (dtype != "tf32" or device.kind == "cuda") and not (
            dtype == "float64" and device.kind == "mps"
        ):
            yield timed(
                device, {"operation": "gemm", "n": n, "dtype": dtype}, FIRST, _product, dtype, n
            )


def _stream(device: Device, count: int, run: Callable[..., Any], elements: int) -> Work:
    data = tuple(
        torch.ones(elements, dtype=torch.float32, device=str(device)) for _ in range(count)
    )
    return Work(run, data, nbytes=4.0 * elements * count)


def _triad(target: Any, b: Any, c: Any) -> None:
    torch.add(b, c, alpha=3.0, out=target)


def _product(device: Device, name: str, n: int) -> Work:
    """Return the product of two square matrices in a number format."""
    # never record one thing under the name of another
    if name == "tf32" and not device.has_tf32:
        raise InputError(
            f"matrix product tf32: {device.name} has no TF32; expected compute capability 8.0 or "
            "newer. Left out."
        )
    torch.set_float32_matmul_precision("high" if name == "tf32" else "highest")
    dtype = torch.float32 if name == "tf32" else getattr(torch, name)
    # random data: products of zeros draw less power and run faster
    a, b = (torch.randn(n, n, device=str(device)).to(dtype) for _ in range(2))
    # Only the large product has an estimate: a part of a smaller one takes mainly the time of the
    # call, which shows nothing about the whole.
    if device.is_cpu and n == _CPU_GEMM_SIZE:
        corner = slice(n // _SMALLER)
        small = a[corner, corner], b[corner, corner]
        refuse_long(f"matrix product {name}", lambda: torch.mm(*small), float(_SMALLER**3))
    run = functools.partial(_fp8_product, torch.ones((), device=a.device))
    return Work(run if name == _FP8 else torch.mm, (a, b), 2.0 * n**3)


def _fp8_product(scale: Any, x: Any, y: Any) -> Any:
    scaled: Any = torch._scaled_mm  # its second operand must be column-major
    return scaled(x, y.t(), scale_a=scale, scale_b=scale, out_dtype=torch.bfloat16)


def launches(device: Device) -> Iterable[Case]:
    """A thousand small operations of PyTorch, in a stream and in a CUDA graph; and a thousand
    kernels of one thread, launched by numba, by CuPy, and by the driver alone.
    """
    on_gpu = ("stream", "graph", "numba", "CuPy", "driver")
    for how in on_gpu if device.torch_type == "cuda" else on_gpu[:1]:
        params = {"operation": how, "launches": _LAUNCHES}
        yield timed(device, params, FIRST, _launches, how)


def _launches(device: Device, how: str) -> Work:
    x = torch.zeros(1, device=str(device))
    launch: Callable[[], Any] = functools.partial(x.add_, 1.0)
    if how in ("numba", "CuPy", "driver"):
        launch = _own_launch(how, x)

    def run() -> None:
        for _ in range(_LAUNCHES):
            launch()

    return Work(captured(run, device) if how == "graph" else run)


def _own_launch(how: str, x: torch.Tensor) -> Callable[[], Any]:
    """Return a function that launches a kernel of one thread."""
    from gpulab.recorder import _lessons

    if how == "numba":
        return launcher(_lessons.one, 1, 1, x)  # type: ignore[no-any-return,unused-ignore]
    import cupy

    raw = cupy.RawKernel(_lessons.SOURCE, "one")
    if how == "CuPy":
        return functools.partial(raw, (1,), (1,), (cupy.asarray(x),))
    # The driver's own call, without the conversions of a Python binding. It takes the addresses of
    # the kernel's arguments, which are addresses themselves.
    pointer = ctypes.c_void_p(x.data_ptr())
    stream = ctypes.c_void_p(torch.cuda.current_stream(x.device).cuda_stream)
    arguments = (ctypes.c_void_p * 1)(ctypes.addressof(pointer))
    extents = (ctypes.c_uint(1),) * 6
    given = (ctypes.c_void_p(raw.kernel.ptr), *extents, ctypes.c_uint(0), stream, arguments, None)
    call = ctypes.CDLL("libcuda.so.1").cuLaunchKernel

    def launch(keep: Any = (x, pointer, raw)) -> None:
        call(*given)

    return launch


def captured(run: Callable[[], Any], device: Device) -> Callable[[], None]:
    """Capture the work that ``run`` launches as a CUDA graph, and return the graph's replay.
    ``run`` is called once before: a capture needs operators that are warmed up.
    """
    graph = torch.cuda.CUDAGraph()
    # by default PyTorch captures on the device that was current at the first capture
    side = torch.cuda.Stream(device.index)  # type: ignore[no-untyped-call]
    with torch.cuda.stream(side):
        run()
    side.synchronize()
    with torch.cuda.graph(graph, stream=side):
        run()
    return graph.replay


def precisions(device: Device) -> Iterable[Case]:
    """Products in each format that the device supports: TF32 and FP8 only where it has them. On a
    CPU the sizes are small, since float16 is slow there.
    """
    sides: tuple[int, ...] = _CPU_SIDES if device.is_cpu else _GPU_SIDES[:2]
    names = ["float32", "bfloat16", "float16"]
    if device.torch_type == "cuda":
        sides, names = _GPU_SIDES, ["float32", "float16", "bfloat16"]
    if device.kind == "cuda":
        capability = torch.cuda.get_device_capability(device.index)
        least = {"tf32": (8, 0), _FP8: (8, 9)}
        names += [name for name in least if capability >= least[name]]
    for n, name in itertools.product(sides, names):
        if name != _FP8 or n % 16 == 0:  # an FP8 product refuses other sides
            rank = SECOND if n in (4096, 512) else THIRD
            yield timed(device, {"format": name, "n": n}, rank, _product, name, n)


def latencies(device: Device) -> Iterable[Case]:
    """Dependent loads over working sets."""
    for nbytes, rank in _working_sets(device, _CHASE_POWER):
        params = {
            "nbytes": nbytes,
            "method": hierarchy.chase_method(device),
            "hops": hierarchy.HOPS_PER_CALL,
        }
        yield measured(params, rank, hierarchy.measure_chase, nbytes, device)


def bandwidths(device: Device) -> Iterable[Case]:
    """Streams read over working sets."""
    first = _CPU_STREAM_POWER if device.is_cpu else _GPU_STREAM_POWER
    for nbytes, rank in _working_sets(device, first):
        params = {"nbytes": nbytes, "operation": "read"}
        yield measured(params, rank, hierarchy.measure_stream, nbytes, device)


def _working_sets(device: Device, first: int) -> Iterable[tuple[int, int]]:
    """Yield sizes in bytes with their ranks; none if the device can run no chase and no stream."""
    if not (device.is_cpu or device.torch_type == "cuda"):
        return
    last = _CPU_LAST_POWER if device.is_cpu else _GPU_LAST_POWER
    for power in range(first, last + 1):
        yield 2**power, FIRST if power % 4 == 2 else SECOND
        if power < last:
            yield 3 * 2 ** (power - 1), SECOND


def ladders(device: Device) -> Iterable[Case]:
    """The kernels of notebook 04 on a GPU: reductions, transposes, histograms, softmax, and the
    matrix product up to the library's own.
    """
    if device.torch_type != "cuda":
        return
    from gpulab.kernels import ladder  # its kernels load numba

    python = all(importlib.util.find_spec(name) is not None for name in ("numba", "numba_cuda"))
    cuda = importlib.util.find_spec("cupy") is not None
    rungs: list[Any] = [*(ladder.RUNGS if python else ()), *(ladder.CUDA_RUNGS if cuda else ())]
    for rung in rungs:
        for n in rung.sizes[1:]:
            for options in rung.options or (None,):
                params = {"family": rung.family, "rung": rung.name, "n": n}
                params |= {} if options is None else {"options": " ".join(options)}
                yield timed(
                    device, params, SECOND if n == rung.sizes[1] else THIRD, _rung, rung, n, options
                )
    # the library's product, for comparison: in float32, for which PyTorch's settings exclude TF32
    library = workloads.get("matmul")
    for n in ladder.CUDA_RUNGS[0].sizes[1:]:
        params = {"family": "matmul", "rung": "matmul-library", "n": n}
        rank = SECOND if n == 1024 else THIRD
        yield timed(device, params, rank, _workload, library, n, "float32", False)


def _rung(device: Device, rung: Any, n: int, options: tuple[str, ...] | None) -> Work:
    arguments = rung.arguments(n)
    if options is None:
        on_device = [arrays.to_device(each, device) for each in arguments]
        ready = launcher(rung.kernel, *rung.launch(n), *on_device)
    else:
        *given, size = arguments
        on_device = [arrays.to_device(each, device) for each in given]
        ready = cuda_launcher(
            rung.source,
            rung.kernel,
            *rung.launch(n),
            *on_device,
            size,
            dynamic_shared_bytes=rung.shared_bytes,
            options=options,
        )
    return Work(ready, (), rung.flops(n), rung.nbytes(n))


def copies(device: Device) -> Iterable[Case]:
    """Copies of every size in both directions, pageable and pinned; on a CPU, copies within the
    host's memory.
    """
    series = [(d, m) for m in ("pinned", "pageable") for d in ("to_device", "to_host")]
    for direction, memory in [("host", "pageable")] if device.is_cpu else series:
        for power in _COPY_POWERS:
            params = {"direction": direction, "memory": memory, "nbytes": 2**power}
            rank = FIRST if power % 4 == 2 else SECOND
            copy = (2**power, direction, memory, device)
            yield measured(params, rank, transfer.measure_copy, *copy)


def overlaps(device: Device) -> Iterable[Case]:
    """Copy and compute, one after the other and in chunks at the same time."""
    for nbytes, chunks, arrangement in itertools.product(
        _OVERLAP_BYTES, _OVERLAP_CHUNKS, _ARRANGEMENTS
    ):
        params = {"arrangement": arrangement, "nbytes": nbytes, "chunks": chunks}
        rank = SECOND if chunks == 8 else THIRD
        yield measured(params, rank, _overlap, arrangement, nbytes, chunks, device)


def _overlap(
    arrangement: str, nbytes: int, chunks: int, device: Device, *, deadline: float
) -> Measurement:
    both = transfer.measure_overlap(nbytes, chunks, device, deadline=2 * deadline)
    return both[_ARRANGEMENTS.index(arrangement)]
