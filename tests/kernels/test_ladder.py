"""The course's ladders: right results, no findings, and counts by hand and on an H200."""

import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from gpulab.errors import InputError
from gpulab.kernels import compile_cuda, compile_python, ladder, simulate
from gpulab.kernels.ladder import CUDA_RUNGS, RUNGS

RECORDED = Path(__file__).parents[2] / "benchmarks" / "recorded" / "counters-nvidia-h200.json"
ODD = {"elementwise": 1003, "reduction": 3001, "transpose": 45, "histogram": 5001}
ODD |= {"softmax": 3, "matmul": 37}


def small(rung):
    """The smallest size of a rung and, where it has guards, an odd one."""
    return [rung.sizes[0], *((ODD[rung.family],) if rung.multiple == 1 else ())]


@pytest.mark.parametrize("rung", RUNGS, ids=lambda rung: rung.name)
def test_a_rung_is_right_and_clean(rung):
    """A rung gives NumPy's float64 result without a finding; equal seeds give equal arguments."""
    for n in small(rung):
        arguments, again = rung.arguments(n, 1), rung.arguments(n, 1)
        assert not np.array_equal(arguments[0], rung.arguments(n)[0])
        expected = rung.expected(*again)
        assert simulate(rung.kernel, *rung.launch(n), *arguments).findings == ()
        room = {"rtol": 0, "atol": rung.tolerance * np.abs(expected).max()}
        np.testing.assert_allclose(arguments[rung.result], expected, **room)


def test_softmax_takes_off_the_largest_of_its_row():
    """A 1,000 among zeros, wherever it stands, gives 1: exp(1000) would overflow a float32."""
    for rung in ladder.family("softmax"):
        x, y = np.zeros((64, 1024), np.float32), np.full((64, 1024), 7, np.float32)
        x[np.arange(64), np.arange(64) * 16 + np.arange(64) % 16] = 1000
        assert np.array_equal(rung.expected(x, y), x == 1000)
        simulate(rung.kernel, *rung.launch(64), x, y)
        np.testing.assert_array_equal(y, x == 1000)


N, WARPS = 128, 128 * 128 // 32


@pytest.mark.parametrize(
    ("name", "counter", "expected"),
    [
        # Per warp and step of k, a column takes 32 sectors, one element takes 1, and a row takes 4.
        ("matmul-naive", "global_sectors", WARPS * N * (32 + 1) + WARPS * 32),
        ("matmul-coalesced", "global_sectors", WARPS * N * (1 + 4) + WARPS * 4),
        # A tile is read once for each block of C.
        ("matmul-tiled", "global_sectors", WARPS * (N // 32) * (4 + 4) + WARPS * 4),
        ("matmul-registers-1d", "global_sectors", 4 * 16 * (2 * 64 * 8 // 8) + N * N // 8),
        ("matmul-registers-2d", "global_sectors", 1 * 16 * (2 * 128 * 8 // 8) + N * N // 8),
        # Loads: 2 per product, 9 per 8 products, or 16 per 64; plus the stores of the tiles.
        ("matmul-tiled", "shared_bytes_requested", 4 * (2 * N**3 + 2 * 4 * 1024 * 16)),
        ("matmul-registers-1d", "shared_bytes_requested", 4 * (9 * N**3 // 8 + 2 * 512 * 16 * 4)),
        ("matmul-registers-2d", "shared_bytes_requested", 4 * (N**3 // 4 + 2 * 1024 * 16)),
        # A column of a matrix takes 32 sectors; a column of an unpadded tile lies in one bank.
        ("transpose-naive", "global_sectors", WARPS * (4 + 32)),
        ("transpose-tiled", "global_sectors", WARPS * (4 + 4)),
        ("transpose-tiled", "shared_wavefronts", WARPS * (1 + 32)),
        ("transpose-padded", "shared_wavefronts", WARPS * (1 + 1)),
        # Steps of 1 to 16 split all 8 warps; then 4, 2 and 1 have one working lane; then thread 0.
        ("reduction-interleaved", "divergent_branches", 64 * (5 * 8 + 4 + 2 + 1 + 1)),
        ("reduction-interleaved", "conflict_ways", 1),
        ("reduction-strided", "divergent_branches", 64 * (5 + 1)),
        ("reduction-sequential", "divergent_branches", 64 * (5 + 1)),
        # A store by 8 warps, then three accesses by each of 12, then the sum; shuffles: 8 and 1.
        ("reduction-sequential", "shared_requests", 64 * (8 + 3 * 12 + 1)),
        ("reduction-shuffle", "shared_requests", 64 * (8 + 1)),
        # 32 neighbors for each thread put the lanes 128 bytes apart.
        ("elementwise-chunks", "sectors_per_request", 32),
        ("elementwise-each", "sectors_per_request", 4),
        # Rows of 1,024 floats are 128 sectors: three walks and a store, or one and a store.
        ("softmax-three-walks", "global_sectors", 32 * 128 * 4),
        ("softmax-kept", "global_sectors", 32 * 128 * 2),
    ],
)
def test_counts_by_hand(name, counter, expected):
    """The counter that a rung wastes, and the next rung saves, equals a count by hand."""
    assert getattr(ladder.rung(name).simulate().totals, counter) == expected


@pytest.mark.slow
@pytest.mark.parametrize("rung", RUNGS, ids=lambda rung: rung.name)
def test_counts_and_registers_as_an_h200_had_them(rung):
    """Requests, sectors and registers equal those of Nsight Compute (which shows 16 or more)."""
    file = json.loads(RECORDED.read_text(encoding="utf-8"))
    metrics = next(k["metrics"] for k in file["kernels"] if k["name"] == rung.name)
    simulation = rung.simulate()
    accesses = [a for a in simulation.accesses if a.space == "global"]
    for short, kind in (("ld", "load"), ("st", "store")):
        for what in ("requests", "sectors"):
            counted = metrics[f"l1tex__t_{what}_pipe_lsu_mem_global_op_{short}.sum"]
            assert sum(getattr(a, what) for a in accesses if a.kind == kind) == counted
    numba_cuda = pytest.importorskip("numba_cuda")
    (facts,) = compile_python(rung.kernel, *rung.arguments(rung.sizes[0])).kernels.values()
    assert (facts.spill_bytes, facts.stack_bytes) == (0, 0)
    if file["environment"]["libraries"]["numba-cuda"] == numba_cuda.__version__:
        assert max(16, facts.registers) == metrics["launch__registers_per_thread"]


def test_the_ladders_as_they_are_listed(approved):
    """Sizes, grids, FLOPs and bytes; by hand 2 n^3 and 12 n^2 for a product, 5 and 8 an element."""
    lines = [f"{name}: {len(ladder.family(name))}" for name in ladder.families()]
    for rung in (*RUNGS, *CUDA_RUNGS):
        given = list(map(np.asarray, rung.arguments(rung.sizes[0])))
        shapes = [f"{x.dtype}{x.shape}: {x.mean():.3g} +- {x.std():.3g}" for x in given]
        lines += [f"{rung!r} within {rung.tolerance}", f"  {shapes}"]
        figures = ((f"{n:,}: {rung.flops(n):g} FLOPs, {rung.nbytes(n):g} B", n) for n in rung.sizes)
        lines += [f"  {text}, {rung.launch(n)}" for text, n in figures]
    assert "\n".join(lines) == approved


@pytest.mark.parametrize(
    ("call", "value"),
    [
        (lambda: ladder.rung("matmul-registers-2d").launch(100), "multiple of 128"),
        (lambda: CUDA_RUNGS[0].arguments(100), "multiple of 128"),
        *((lambda n=n: ladder.rung("matmul-tiled").simulate(n), "n=") for n in (0, 1.5, "8", True)),
        (lambda: ladder.rung("nothing"), "matmul-naive"),
        (lambda: ladder.family("nothing"), "matmul"),
        (lambda: ladder.rung("nothing"), "matmul-tensor"),
    ],
)
def test_sizes_and_names_are_checked(call, value):
    """A register tile has no guard, so another size is refused and not computed wrongly."""
    with pytest.raises(InputError, match=value):
        call()


@pytest.mark.slow
@pytest.mark.parametrize("rung", CUDA_RUNGS, ids=lambda rung: rung.name)
def test_cuda_rungs_compile_without_spills(rung):
    """With all options: a block's registers fit an SM; the last ones use Tensor Cores."""
    modules = [compile_cuda(rung.source, options=options) for options in rung.options]
    facts = [module.kernels[rung.kernel] for module in modules]
    assert all(rung.launch(rung.sizes[0])[1] * one.registers <= 65_536 for one in facts)
    assert {(one.spill_bytes, one.parameter_bytes) for one in facts} == {(0, 28)}
    assert ("HMMA" in modules[0].sass) == ("tensor" in rung.name)


# Enough of CUDA to run one block at a time on a CPU, with a CPU thread per thread of the block.
SHIM = """
#include <cstdio>
#include <cstring>
#include <deque>
#include <pthread.h>
#include <vector>
struct alignas(16) float4 { float x, y, z, w; };
struct Index { unsigned x, y; };
thread_local Index threadIdx, blockIdx;
pthread_barrier_t barrier;
#define __global__
#define __launch_bounds__(...)
#define __shared__ static
#define __align__(x) __attribute__((aligned(x)))
void __syncthreads() { pthread_barrier_wait(&barrier); }
// Copies arrive as late as they may, so that one wait too few gives a wrong product.
struct Copy { void* to; const void* from; size_t size; };
thread_local std::deque<std::vector<Copy>> groups(1);
void __pipeline_memcpy_async(void* to, const void* from, size_t size) {
    groups.back().push_back({to, from, size});
}
void __pipeline_commit() { groups.emplace_back(); }
void __pipeline_wait_prior(size_t n) {
    for (; groups.size() > n + 1; groups.pop_front())
        for (Copy& each : groups.front()) memcpy(each.to, each.from, each.size);
}
SOURCE
const int n = N;
alignas(16) float first[n * n], second[n * n], product[n * n];
Index block;
void* thread(void* number) {
    threadIdx = {(unsigned)(size_t)number, 0};
    blockIdx = block;
    KERNEL(first, second, product, n);
    return nullptr;
}
int main(int, char** names) {
    FILE* f = fopen(names[1], "rb");
    if (fread(first, 4, n * n, f) + fread(second, 4, n * n, f) != 2u * n * n) return 1;
    pthread_barrier_init(&barrier, nullptr, THREADS);
    for (unsigned y = 0; y < n / 128; y++) for (unsigned x = 0; x < n / COLUMNS; x++) {
        block = {x, y};
        pthread_t threads[THREADS];
        for (size_t t = 0; t < THREADS; t++)
            if (pthread_create(&threads[t], nullptr, thread, (void*)t)) return 2;
        for (pthread_t each : threads) pthread_join(each, nullptr);
    }
    f = fopen(names[2], "wb");
    fwrite(product, 4, n * n, f);
    fclose(f);
}
"""


@pytest.mark.slow
@pytest.mark.parametrize("rung", CUDA_RUNGS[:4], ids=lambda rung: rung.name)
def test_cuda_rungs_are_right_as_plain_cpp(rung, tmp_path):
    """Their source, compiled for the CPU, gives the product of two matrices."""
    compiler = shutil.which("g++") or pytest.skip("no g++ here; the gpu tests run the kernels")
    for n, options in [(2 * rung.multiple, ()), *((rung.multiple, o) for o in rung.options[1:])]:
        a, b, _, _ = rung.arguments(n)
        (tmp_path / "in.bin").write_bytes(a.tobytes() + b.tobytes())
        text = (
            SHIM.replace("SOURCE", rung.source)
            .replace("KERNEL", rung.kernel)
            .replace("#include <cuda_pipeline_primitives.h>", "")
            .replace("THREADS", str(rung.launch(n)[1]))
            .replace("COLUMNS", str(rung.multiple))
        )
        (tmp_path / "kernel.cpp").write_text(text.replace("int n = N", f"int n = {n}"))
        flags = ["-std=c++20", "-O1", "-pthread", "-fno-strict-aliasing", *options]
        subprocess.run([compiler, *flags, "kernel.cpp", "-o", "kernel"], check=True, cwd=tmp_path)
        subprocess.run(["./kernel", "in.bin", "out.bin"], check=True, timeout=240, cwd=tmp_path)
        c, expected = (
            np.fromfile(tmp_path / "out.bin", np.float32).reshape(n, n),
            rung.expected(a, b),
        )
        np.testing.assert_allclose(c, expected, rtol=0, atol=rung.tolerance * expected.max())
