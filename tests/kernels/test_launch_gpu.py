"""Kernels on a real GPU: numba-cuda, CUDA C++ through CuPy, CuPy's own kernels and Triton, against the simulator's results."""

from __future__ import annotations

import importlib.util
from typing import Any

import kernels_of_ours
import kernels_of_puzzles
import kernels_of_the_manual
import numpy as np
import pytest
from kernel_case import Case, copies

import gpulab as gl
from gpulab.errors import KernelError
from gpulab.kernels import cuda, cuda_launcher, float32, ladder, launch, launch_cuda, launcher, simulate

pytestmark = pytest.mark.gpu

# Results that depend on the order in which blocks or lanes come: a GPU may give others, and both are right.
_BY_ORDER = {"take_tickets", "claim_once", "old_values"}
# What the microscope runs and numba-cuda 0.30 refuses, as `gpulab.kernels.compile_python` tells without a GPU: shapes of shared arrays that
# are computed from constants (stencil_1d, copy_transposed, convolve), syncthreads_count of a truth value, float16 as a cast.
_NOT_NUMBA = {"stencil_1d", "copy_transposed", "convolve", "count_even", "halves"}
CASES = [
    case for module in (kernels_of_the_manual, kernels_of_puzzles, kernels_of_ours) for case in module.CASES
    if case.kernel.__name__ not in _BY_ORDER | _NOT_NUMBA
]  # fmt: skip
# A GPU fuses multiplications with additions and has other library functions: a few units in the last place of each term.
_ROOM = {"float16": 2e-3, "float32": 5e-5, "float64": 1e-11, "complex64": 5e-5, "complex128": 1e-11}


def _agree(given: tuple[Any, ...], expected: tuple[Any, ...]) -> None:
    for a, b in zip(given, expected, strict=True):
        if isinstance(a, np.ndarray):
            room = _ROOM.get(str(a.dtype))
            if room is None:
                np.testing.assert_array_equal(a, b)
            else:
                np.testing.assert_allclose(a, b, rtol=room, atol=room * max(1.0, float(np.abs(b).max(initial=0.0))))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_gpu_gives_what_the_microscope_gives(case: Case):
    """The same kernel, launch and arguments: whole numbers equal, floats to a few units in the last place."""
    pytest.importorskip("numba_cuda")
    here, there = copies(case.arguments()), copies(case.arguments())
    simulate(case.kernel, case.grid, case.block, *here, dynamic_shared_bytes=case.dynamic_shared_bytes)
    launch(case.kernel, case.grid, case.block, *there, dynamic_shared_bytes=case.dynamic_shared_bytes)
    _agree(there, here)


@pytest.mark.parametrize("rung", ladder.RUNGS, ids=lambda rung: rung.name)
def test_each_rung_of_a_ladder_agrees_on_a_gpu(rung: ladder.Rung):
    """Reductions, transposes, histograms, softmax, matmuls: right on the GPU, measured, and used as the recorder uses them."""
    pytest.importorskip("numba_cuda")
    arguments = rung.arguments(rung.sizes[0])
    expected = rung.expected(*arguments)
    ready = launcher(rung.kernel, *rung.launch(rung.sizes[0]), *arguments)
    ready()
    ready.fetch()
    _agree((arguments[rung.result],), (expected,))
    m = gl.measure(ready, deadline=0.5)
    assert m.device.startswith("cuda")
    assert m.median_seconds > 0


@pytest.mark.parametrize("rung", ladder.CUDA_RUNGS, ids=lambda rung: rung.name)
def test_each_cuda_rung_is_right_and_measured(rung: ladder.CudaRung):
    """The rungs in CUDA C++ with each of their options: NumPy's product, at a rate that the device can have."""
    pytest.importorskip("cupy")
    for options in rung.options:
        a, b, c, n = rung.arguments(256)
        expected = a.astype(np.float64) @ b.astype(np.float64)
        ready = cuda_launcher(rung.source, rung.kernel, *rung.launch(256), a, b, c, n, options=options)
        ready()
        ready.fetch()
        np.testing.assert_allclose(c, expected, rtol=0, atol=rung.tolerance * expected.max())
        assert gl.measure(ready, flops=rung.flops(256), deadline=0.5).device.startswith("cuda")


def test_the_recorders_ladders_run():
    """Each case of the experiment at its smallest recorded size gives a measurement on the device."""
    pytest.importorskip("numba_cuda")
    from gpulab import devices, recorder

    (experiment,) = recorder.experiments(["ladders"])
    cases = [case for case in experiment.cases(devices.default()) if case.params["n"] <= 4096]
    assert {"matmul-tiled", "matmul-warp-tiled", "matmul-library"} <= {case.params["rung"] for case in cases}
    for case in cases:
        assert case.time(0.2).device.startswith("cuda")


def saxpy(a, x, y, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = a * x[i] + y[i]


def test_tensors_and_cupy_arrays_are_used_in_place():
    """A CUDA tensor and a CuPy array change without a copy."""
    pytest.importorskip("numba_cuda")
    import torch

    x, y, out = torch.arange(100.0, device="cuda"), torch.ones(100, device="cuda"), torch.zeros(100, device="cuda")
    launch(saxpy, 4, 32, np.float32(2), x, y, out)
    assert torch.equal(out, 2 * x + 1)
    cupy = pytest.importorskip("cupy")
    there = cupy.zeros(100, cupy.float32)
    launch(saxpy, 4, 32, np.float32(3), x, y, there)
    assert np.array_equal(cupy.asnumpy(there), 3 * np.arange(100, dtype=np.float32) + 1)


def test_a_launcher_is_measured_on_its_device():
    """gl.measure finds the GPU from what the launcher returns, and waits for it: no rate above the memory's."""
    pytest.importorskip("numba_cuda")
    n = 1 << 24
    x, y, out = (np.ones(n, np.float32) for _ in range(3))
    m = gl.measure(launcher(saxpy, n // 256, 256, np.float32(2), x, y, out), nbytes=12 * n, deadline=1.0)
    assert m.device.startswith("cuda")
    assert not any(note.code == "implausible" for note in m.notes)


def test_what_numba_refuses_is_one_sentence():
    """A kernel that cannot be compiled raises KernelError, and the arrays stay."""
    pytest.importorskip("numba_cuda")

    def wrong(out):
        out[0] = undefined_name  # noqa: F821

    out = np.zeros(4)
    with pytest.raises(KernelError, match="numba-cuda refuses wrong"):
        launch(wrong, 1, 4, out)
    assert not out.any()


SAXPY = """
extern "C" __global__ void saxpy(float a, const float* x, const float* y, float* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = a * x[i] + y[i];
}
template <int TIMES> __global__ void scale(float* x, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] *= TIMES;
}
"""
N = 1 << 20


def _inputs() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Two inputs, and saxpy's result as the microscope computes it."""
    rng = np.random.default_rng(0)
    x, y = rng.random(N, dtype=np.float32), rng.random(N, dtype=np.float32)
    out = np.zeros(N, np.float32)
    simulate(saxpy, N // 256, 256, np.float32(2), x, y, out)
    return x, y, out


def test_cuda_cpp_agrees_with_the_microscope():
    """The same formula in CUDA C++; a template's instance is found by its name."""
    pytest.importorskip("cupy")
    x, y, expected = _inputs()
    out = np.zeros(N, np.float32)
    launch_cuda(SAXPY, "saxpy", N // 256, 256, np.float32(2), x, y, out, np.int32(N))
    _agree((out,), (expected,))
    plain = SAXPY.replace('extern "C" ', "")
    launch_cuda(plain, "scale<3>", N // 256, 256, x, np.int32(N))
    np.testing.assert_allclose(x, 3 * _inputs()[0], rtol=1e-6)


def test_cupy_elementwise_is_measured_and_agrees():
    """CuPy's ElementwiseKernel: the formula alone, compiled at its first call."""
    cp = pytest.importorskip("cupy")
    x, y, expected = _inputs()
    kernel = cp.ElementwiseKernel("float32 a, float32 x, float32 y", "float32 out", "out = a * x + y", "saxpy_elementwise")
    there = cp.asarray(x), cp.asarray(y), cp.empty(N, cp.float32)
    m = gl.measure(kernel, np.float32(2), *there, nbytes=12 * N, deadline=0.5)
    _agree((cp.asnumpy(there[2]),), (expected,))
    assert m.device.startswith("cuda")


def test_cupy_reduction_is_measured_and_agrees():
    """CuPy's ReductionKernel: a map, a reduction and what to do at the end."""
    cp = pytest.importorskip("cupy")
    x, _, _ = _inputs()
    kernel = cp.ReductionKernel("float32 x", "float32 y", "x * x", "a + b", "y = sqrt(a)", "0", "norm")
    there = cp.asarray(x)
    m = gl.measure(kernel, there, nbytes=4 * N, deadline=0.5)
    assert float(kernel(there)) == pytest.approx(float(np.linalg.norm(x.astype(np.float64))), rel=1e-5)
    assert m.device.startswith("cuda")


def test_cupyx_jit_is_measured_and_agrees():
    """cupyx.jit: Python text to CUDA C++, with names of its own."""
    cp = pytest.importorskip("cupy")
    jit = pytest.importorskip("cupyx.jit")
    x, y, expected = _inputs()

    @jit.rawkernel()
    def saxpy_jit(a, x, y, out, n):
        i = jit.grid(1)
        if i < n:
            out[i] = a * x[i] + y[i]

    a, b, out = cp.asarray(x), cp.asarray(y), cp.empty(N, cp.float32)
    m = gl.measure(lambda: saxpy_jit[N // 256, 256](np.float32(2), a, b, out, np.uint32(N)), device="cuda", nbytes=12 * N, deadline=0.5)
    _agree((cp.asnumpy(out),), (expected,))
    assert m.median_seconds > 0


def test_triton_is_measured_and_agrees():
    """Triton: one program for a block of elements, a mask for the bounds."""
    triton = pytest.importorskip("triton")
    import torch
    from triton_kernels import saxpy_triton

    x, y, expected = _inputs()
    a, b, out = torch.from_numpy(x).cuda(), torch.from_numpy(y).cuda(), torch.empty(N, device="cuda")
    m = gl.measure(lambda: saxpy_triton[(triton.cdiv(N, 1024),)](2.0, a, b, out, N, BLOCK=1024), device="cuda", nbytes=12 * N, deadline=0.5)
    _agree((out.cpu().numpy(),), (expected,))
    assert m.median_seconds > 0


def dynamic(x, out):
    tile = cuda.shared.array(0, float32)
    t = cuda.threadIdx.x
    tile[t] = x[t]
    cuda.syncthreads()
    out[t] = tile[cuda.blockDim.x - 1 - t]


def test_dynamic_shared_memory_reaches_the_gpu():
    """The bytes that simulate takes are those that launch asks for."""
    pytest.importorskip("numba_cuda")
    x, out = np.arange(64, dtype=np.float32), np.zeros(64, np.float32)
    launch(dynamic, 1, 64, x, out, dynamic_shared_bytes=256)
    assert np.array_equal(out, x[::-1])


def test_the_notebooks_spellings_and_ladders_are_measured():
    """On a GPU notebook 04 shows times of its own machine: the gate in each library that is there, and every Python rung."""
    pytest.importorskip("numba_cuda")
    spelled = gl.lessons.spellings(1 << 20)
    assert all(row.seconds is not None or "not installed" in row.reason for row in spelled.rows), spelled.rows
    for family in ladder.families():
        table = gl.lessons.climb(family)
        assert table.times is not None
        assert str(table.times.badge) == "MEASURED"
        assert all(row.seconds is not None for row in table.rows if row.simulation is not None)


def test_the_gate_agrees_in_every_library():
    """What the spellings compute is one formula: CuPy's and Triton's results are NumPy's."""
    from gpulab import devices
    from gpulab.lessons import _passes

    x = np.linspace(-4, 4, 5000, dtype=np.float32)
    expected = 0.5 * x.astype(np.float64) * (1 + np.tanh(0.8 * x.astype(np.float64)))
    where = devices.default()
    for module, make in (("cupy", _passes._in_cupy), ("triton", _passes._in_triton)):
        if importlib.util.find_spec(module) is None:
            continue
        run = make(x, where)
        run()
        out = next(cell.cell_contents for name, cell in zip(run.__code__.co_freevars, run.__closure__, strict=True) if name == "out")
        np.testing.assert_allclose(gl.to_host(out), expected, atol=2e-6)
