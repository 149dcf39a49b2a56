"""CuPy's and CUDA C++'s idioms beside the lines that do the same here.

CuPy's own lines run only where there is a CUDA device. CUDA C++ is compiled without one, too.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gpulab.lessons._idioms import SCALED_BY_A_KERNEL, Idiom, float64_of, plain_clock

_CUPY: tuple[dict[str, Any], ...] = (
    {
        "name": "cupy.asarray",
        "theirs": "import cupy\nresult = cupy.asarray(a)",
        "here": "result = gl.to_device(a)",
        "waits": "until the copy has been read from a",
        "where": "on the GPU",
        "leaves_out": 'gl.to_device(a, library="cupy") gives CuPy\'s array; with only a CPU it is an '
        "error, because CuPy has none there.",
        "expected": lambda names: names["a"],
        "exact": True,
    },
    {
        "name": ".get()",
        "theirs": "import cupy\nresult = cupy.asarray(a).get()",
        "here": "result = gl.to_host(A)",
        "waits": "for the value, then for the copy",
        "where": "main memory",
        "leaves_out": "np.asarray(x) is an error in CuPy: it copies only when asked to.",
        "expected": lambda names: names["a"],
        "exact": True,
    },
    {
        "name": "Stream.null.synchronize",
        "theirs": "import cupy\nC = cupy.asarray(a) @ "
        "cupy.asarray(b).T\ncupy.cuda.Stream.null.synchronize()\nresult = C",
        "here": "C = A @ B.T\ngl.devices.default().synchronize()\nresult = C",
        "waits": "for one stream there, for the whole device here",
        "where": "on the GPU",
        "leaves_out": "CuPy's current stream may be another than PyTorch's.",
        "expected": lambda names: np.einsum("ik,jk->ij", float64_of(names), float64_of(names, "b")),
        "operation": "matmul",
    },
    {
        "name": "cupyx.profiler.benchmark",
        "theirs": """\
import cupy
from cupyx.profiler import benchmark

x = cupy.asarray(a)
result = float(benchmark(cupy.sort, (x,), n_repeat=20).gpu_times.mean())""",
        "here": "result = gl.measure(torch.sort, A, deadline=0.1).median_seconds",
        "waits": "for the device, after each sample",
        "where": "on the GPU",
        "leaves_out": "benchmark waits for the GPU after each call, and gives mean, standard "
        "deviation, minimum and maximum: no interval of a median.",
        "expected": plain_clock(lambda names: names["torch"].sort(names["A"])),
        "within": 30.0,
    },
)

_SCALE = """\
extern "C" __global__ void scale(float *x, float by, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] *= by;
}"""

_CUDA: tuple[dict[str, Any], ...] = (
    {
        "name": "__global__",
        "theirs": _SCALE,
        "here": f"source = '''{_SCALE}'''\nresult = "
        "sorted(gl.kernels.compile_cuda(source).kernels)",
        "waits": "while it is compiled: a GPU is not needed",
        "where": "-",
        "leaves_out": "nvcc also compiles the host's code; here that is Python. The facts are "
        ".registers, .shared_bytes, .spill_bytes, .ptx, .sass.",
        "expected": lambda names: ["scale"],
    },
    {
        "name": "scale<<<grid, block>>>",
        "theirs": "scale<<<1, 32>>>(x, 2.0f, n);",
        "here": SCALED_BY_A_KERNEL,
        "waits": "until the arrays are back; <<<>>> itself waits for nothing",
        "where": "host arrays travel; those on the GPU are used in place",
        "leaves_out": 'The source in CUDA C++ goes through gl.kernels.launch_cuda(source, "scale", 1, '
        "32, x, np.float32(2), np.int32(n)), "
        "which needs a GPU.",
        "expected": lambda names: 2 * float64_of(names).reshape(-1),
    },
    {
        "name": "cudaMalloc, cudaMemcpy",
        "theirs": "cudaMalloc(&x, bytes);\ncudaMemcpy(x, a, bytes, cudaMemcpyHostToDevice);",
        "here": "result = gl.to_device(a)",
        "waits": "until a may be changed again",
        "where": "on the device",
        "leaves_out": "cudaFree: memory goes back when the last name for it goes, and the library "
        "keeps it for the next array.",
        "expected": lambda names: names["a"],
        "exact": True,
    },
    {
        "name": "cudaDeviceSynchronize",
        "theirs": "cudaDeviceSynchronize();",
        "here": "C = A @ B.T\ngl.devices.default().synchronize()\nresult = C",
        "waits": "for all work queued on the device",
        "where": "stays where it is",
        "leaves_out": "An error of an earlier kernel shows up here, in both.",
        "expected": lambda names: np.einsum("ik,jk->ij", float64_of(names), float64_of(names, "b")),
        "operation": "matmul",
    },
    {
        "name": "cudaEventElapsedTime",
        "theirs": "cudaEventRecord(start); scale<<<1, 32>>>(x, 2.0f, n); cudaEventRecord(stop);\n"
        "cudaEventSynchronize(stop); cudaEventElapsedTime(&ms, start, stop);",
        "here": "result = gl.measure(lambda: A * 2, deadline=0.1).median_seconds",
        "waits": "for the device, after each sample",
        "where": "stays where it is",
        "leaves_out": "Events time from one mark in the stream to the next; if the device waits "
        "for the launch, that wait is in it. gl.measure times what a program waits for.",
        "expected": plain_clock(lambda names: names["A"] * 2),
        "within": 30.0,
    },
)

ROWS = (
    *(
        Idiom(language="CuPy", runs_theirs=True, library="cupy", needs_gpu=True, **row)
        for row in _CUPY
    ),
    *(Idiom(language="CUDA C++", **row) for row in _CUDA),
)
