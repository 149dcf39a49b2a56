"""MATLAB's device, copy, timing and parallel idioms beside the lines that do the same here.

MATLAB itself is not run. Its behavior is taken from the documentation of its Parallel Computing
Toolbox (R2024b).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gpulab.lessons._idioms import SCALED_BY_A_KERNEL, Idiom, Names, plain_clock


def _torch_kind() -> str:
    """Return the device type of PyTorch's current accelerator, or "cpu" if there is none."""
    import torch

    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return "cpu" if found is None else str(found.type)


def _count() -> int:
    import torch

    return int(torch.accelerator.device_count())


def _product(names: Names) -> Any:
    return names["a"].astype(np.float64) @ names["b"].astype(np.float64).T


_ROWS: tuple[dict[str, Any], ...] = (
    {
        "name": "gpuArray",
        "theirs": "A = gpuArray(a);",
        "here": "result = gl.to_device(a)",
        "waits": "until the copy has been read from a",
        "where": "on the device; with only a CPU, a's own memory",
        "leaves_out": "MATLAB's arrays are column-major, NumPy's row-major: nothing is transposed, and "
        "a double stays a double.",
        "expected": lambda names: names["a"],
        "exact": True,
    },
    {
        "name": 'zeros(…, "gpuArray")',
        "theirs": 'Z = zeros(3, 4, "gpuArray");',
        "here": "result = torch.zeros(3, 4, device=device, dtype=torch.float64)",
        "waits": "no",
        "where": "made on the device, nothing is copied",
        "leaves_out": "MATLAB makes doubles unless told otherwise; PyTorch makes float32. zeros(3) is 3 "
        "x 3 there, three numbers here. "
        "Apple's GPU has no float64.",
        "expected": lambda names: np.zeros((3, 4)),
        "exact": True,
    },
    {
        "name": "gpurng",
        "theirs": 'gpurng(0); R = rand(3, 4, "gpuArray");',
        "here": """\
def draw():
    seeded = torch.Generator(device).manual_seed(0)
    return torch.rand(3, 4, device=device, generator=seeded)


result = bool((draw() == draw()).all())""",
        "waits": "only because the line asks whether the two draws are equal",
        "where": "drawn on the device",
        "leaves_out": "The same seed gives other numbers in MATLAB, and in PyTorch others on a GPU than "
        "on a CPU.",
        "expected": lambda names: True,
    },
    {
        "name": "gather",
        "theirs": "a = gather(A);",
        "here": "result = gl.to_host(A)",
        "waits": "for all work that A depends on, then for the copy",
        "where": "main memory, as a NumPy array",
        "leaves_out": "On a CPU it is A's own memory: change one, and the other changes. MATLAB's "
        "gather always gives a value of its own.",
        "expected": lambda names: names["a"],
        "exact": True,
    },
    {
        "name": "isgpuarray",
        "theirs": "tf = isgpuarray(A);",
        "here": "result = not gl.device_of(A).is_cpu",
        "waits": "no",
        "where": "stays where it is",
        "leaves_out": "gl.device_of(A) is the device itself, so it also shows which one.",
        "expected": lambda names: names["A"].device.type != "cpu",
    },
    {
        "name": "existsOnGPU",
        "theirs": "tf = existsOnGPU(A);",
        "here": "result = not A.is_meta and not gl.device_of(A).is_cpu",
        "waits": "no",
        "where": "stays where it is",
        "leaves_out": "In MATLAB reset(gpuDevice) empties variables that still have a name. Here memory "
        "stays as long as a name refers to it, so the question "
        'is rare: a tensor on "meta" has no data, and is_deleted() is True for a JAX array that '
        "was donated.",
        "expected": lambda names: names["A"].device.type not in ("cpu", "meta"),
    },
    {
        "name": "gpuDevice",
        "theirs": "D = gpuDevice;",
        "here": "result = gl.devices.default().torch_type",
        "waits": "no",
        "where": "-",
        "leaves_out": "MATLAB selects a device and starts it. Here nothing is selected: .name, "
        ".memory_bytes and .free_bytes are read each time, and without a GPU the answer is the "
        "CPU, not an error.",
        "expected": lambda names: _torch_kind(),
    },
    {
        "name": "gpuDevice(k)",
        "theirs": "gpuDevice(2);",
        "here": """\
with torch.device(device):
    made = torch.zeros(2)
result = made.device.type""",
        "waits": "no",
        "where": "arrays made inside the block are on that device",
        "leaves_out": "MATLAB counts devices from 1 and clears the device's memory when it "
        "selects; torch counts from 0 and clears nothing.",
        "expected": lambda names: _torch_kind(),
    },
    {
        "name": "gpuDeviceCount",
        "theirs": "n = gpuDeviceCount;",
        "here": "result = len(gl.devices.available()) - 1  # the CPU is the first",
        "waits": "no",
        "where": "-",
        "leaves_out": "Apple's, AMD's and Intel's count as well; MATLAB counts NVIDIA's.",
        "expected": lambda names: np.asarray(_count()),
        "exact": True,
    },
    {
        "name": "gpuDeviceTable",
        "theirs": "gpuDeviceTable",
        "here": "result = [(str(one), one.name) for one in gl.devices.available()]",
        "waits": "no",
        "where": "-",
        "leaves_out": "gl.machine() shows all of it, with drivers, libraries, and what is wrong. "
        "The CPU is a row here.",
        "expected": lambda names: (
            [(str(one), one.name) for one in names["gl"].devices.available()[:1]]
            + [
                (f"{_torch_kind()}:{k}", names["gl"].devices.find(f"{_torch_kind()}:{k}").name)
                for k in range(_count())
            ]
        ),
    },
    {
        "name": "wait",
        "theirs": "C = A * B'; wait(gpuDevice);",
        "here": """\
C = A @ B.T
gl.devices.default().synchronize()
result = C""",
        "waits": "until all work queued on the device is done",
        "where": "on the device",
        "leaves_out": "JAX is not waited for: its work may not be queued yet. There, wait for the "
        "result: C.block_until_ready().",
        "expected": _product,
        "operation": "matmul",
    },
    {
        "name": "reset",
        "theirs": "reset(gpuDevice);",
        "here": """\
gl.memory.release()
result = A""",
        "waits": "for the device",
        "where": "A stays where it is and stays valid",
        "leaves_out": "Only memory without a name is freed. To clear everything, as reset does, "
        "restart the kernel.",
        "expected": lambda names: names["a"],
        "exact": True,
    },
    {
        "name": "gputimeit",
        "theirs": "t = gputimeit(@() A * B');",
        "here": "result = gl.measure(lambda: A @ B.T, deadline=0.1).median_seconds",
        "waits": "for the device, after each sample",
        "where": "on the device; no copy is timed",
        "leaves_out": "gputimeit gives one number. Here: an interval, the first call apart, the "
        "time until the call returned, and what is wrong with the figure; transfer=True adds both "
        "copies.",
        "expected": plain_clock(lambda names: names["A"] @ names["B"].T),
        "within": 30.0,
    },
    {
        "name": "tic, toc",
        "theirs": "tic; C = A * B'; wait(gpuDevice); t = toc;",
        "here": """\
import time

start = time.perf_counter()
C = A @ B.T
gl.devices.default().synchronize()  # leave it out, and the time is that of the call's return
seconds = time.perf_counter() - start
result = C""",
        "waits": "because the line says so",
        "where": "on the device",
        "leaves_out": "One sample, which may be the first call, and no interval. gl.measure takes many "
        "samples, keeps the first call apart and adds an interval.",
        "expected": _product,
        "operation": "matmul",
    },
    {
        "name": "parfor over GPUs",
        "theirs": "parpool(gpuDeviceCount); parfor k = 1:4, gpuDevice; s(k) = "
        "gather(sum(gpuArray(x(:, k)))); end",
        "here": """\
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle

there = gl.devices.available()[1:] or gl.devices.available()


def work(column, place):
    return float(gl.to_device(column, place).sum())


with ThreadPoolExecutor(len(there)) as pool:
    result = np.array(list(pool.map(work, [a[:, k].copy() for k in range(4)], cycle(there))))""",
        "waits": "each thread for its own device; the pool for all",
        "where": "each column on its own device, the sums in main memory",
        "leaves_out": "parfor has one process for each GPU, the line here one thread. That is enough "
        "where the device does the work, because its calls let other threads run. Loops in Python "
        "need processes: see spmd.",
        "expected": lambda names: names["a"].astype(np.float64).sum(axis=0),
    },
    {
        "name": "spmd",
        "theirs": "spmd, t = spmdPlus(spmdIndex); end",
        "here": """\
def work():
    import torch
    import torch.distributed as dist

    mine = torch.tensor([dist.get_rank() + 1.0])
    dist.all_reduce(mine)
    return float(mine)


with gl.parallel.cluster(n=2) as ranks:
    result = np.array(ranks.run(work))""",
        "waits": "all ranks for each other, in the sum",
        "where": "one process for each rank; the results in this one",
        "leaves_out": "Ranks count from 0, spmdIndex from 1. If a rank dies, the error names it (notebook 08).",
        "expected": lambda names: np.array([3.0, 3.0]),
        "seconds": 8.0,
    },
    {
        "name": "dlgradient",
        "theirs": '[y, g] = dlfeval(@(x) deal(sum(x.^2, "all"), dlgradient(sum(x.^2, "all"), x)), '
        "dlarray(A));",
        "here": """\
x = A.clone().requires_grad_(True)
(result,) = torch.autograd.grad((x**2).sum(), x)""",
        "waits": "no",
        "where": "the gradient lies where x does",
        "leaves_out": "Nothing is traced ahead: PyTorch records the operations as they run.",
        "expected": lambda names: 2 * names["a"].astype(np.float64),
    },
    {
        "name": "parallel.gpu.CUDAKernel",
        "theirs": 'k = parallel.gpu.CUDAKernel("scale.ptx", "scale.cu");\nk.ThreadBlockSize = 32; y '
        "= feval(k, x, 2, numel(x));",
        "here": SCALED_BY_A_KERNEL,
        "waits": "until the kernel is done and x is back",
        "where": "x is copied to the GPU and back; without one, warps are simulated in main memory",
        "leaves_out": "No PTX file is made by hand. CUDA C++ itself goes through "
        "gl.kernels.launch_cuda (the table of CUDA C++).",
        "expected": lambda names: 2 * names["a"].reshape(-1).astype(np.float64),
    },
)

ROWS = tuple(Idiom(language="MATLAB", **row) for row in _ROWS)
