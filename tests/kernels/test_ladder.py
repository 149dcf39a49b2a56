"""The course's ladders: each rung right at even and odd sizes and free of findings; what it moves is what paper and pencil say."""

from __future__ import annotations

import inspect
import shutil
import subprocess
import types
from pathlib import Path

import numpy as np
import pytest

from gpulab.errors import InputError, MissingLibraryError
from gpulab.kernels import compile_cuda, compile_python, ladder
from gpulab.kernels.ladder import _elementwise, _find, _histograms, _matmuls, _reductions, _softmax, _transposes
from gpulab.kernels.ladder._cuda_rungs import CUDA_RUNGS, CudaRung
from gpulab.kernels.ladder._rung import Rung

RUNGS = _find.RUNGS

ODD = {"elementwise": 1003, "reduction": 3001, "transpose": 45, "histogram": 5001, "softmax": 3, "matmul": 37}
# Bytes of a block's shared memory, by hand: a float32 for each of 256 threads, or for each of 32 warps; tiles, one with a spare column; a
# counter for each of 256 values; 128 partial results, and a row of 1,024; two tiles of 32 x 32, 64 x 8 and 128 x 8. The others have none.
SHARED_BYTES = {
    **dict.fromkeys(("reduction-interleaved", "reduction-strided", "reduction-sequential", "histogram-private"), 4 * 256),
    **dict.fromkeys(("reduction-shuffle", "reduction-grid-stride"), 4 * 32),
    "transpose-tiled": 4 * 32 * 32, "transpose-padded": 4 * 32 * 33, "softmax-three-walks": 4 * 128, "softmax-kept": 4 * (1024 + 128),
    "matmul-tiled": 2 * 4 * 32 * 32, "matmul-registers-1d": 2 * 4 * 64 * 8, "matmul-registers-2d": 2 * 4 * 128 * 8,
}  # fmt: skip


@pytest.mark.parametrize("rung", RUNGS, ids=lambda rung: rung.name)
@pytest.mark.parametrize("seed", [0, 1])
def test_a_rung_is_right_and_clean(rung: Rung, seed: int):
    """At its smallest size and, where it has guards, at an odd one: NumPy's result in float64, no finding, and no more shared memory."""
    from gpulab.kernels import simulate

    for n in (rung.sizes[0], *((ODD[rung.family],) if rung.multiple == 1 else ())):
        arguments = rung.arguments(n, seed)
        expected = rung.expected(*arguments)
        simulation = simulate(rung.kernel, *rung.launch(n), *arguments)
        assert simulation.findings == ()
        assert simulation.shared_bytes == SHARED_BYTES.get(rung.name, 0)
        np.testing.assert_allclose(arguments[rung.result], expected, rtol=0, atol=rung.tolerance * np.abs(expected).max())


def _sectors(name: str, n: int) -> int:
    return ladder.rung(name).simulate(n).totals.global_sectors


def test_sectors_of_the_matmul_ladder_by_hand():
    """Per warp and step of k: a column of A is 32 sectors, one element of B 1, a row 4; a tile is read once for each block of C.

    C: 32 sectors a warp where lanes lie in a column, 4 where they lie in a row. n = 128.
    """
    n, warps = 128, 128 * 128 // 32
    assert _sectors("matmul-naive", n) == warps * n * (32 + 1) + warps * 32
    assert _sectors("matmul-coalesced", n) == warps * n * (1 + 4) + warps * 4
    assert _sectors("matmul-tiled", n) == warps * (n // 32) * (4 + 4) + warps * 4
    for name, tile in (("matmul-registers-1d", 64), ("matmul-registers-2d", 128)):
        blocks = (n // tile) ** 2
        assert _sectors(name, n) == blocks * (n // 8) * (2 * tile * 8 * 4 // 32) + n * n * 4 // 32


def test_shared_accesses_of_the_matmul_ladder_by_hand():
    """The tiled kernel asks twice for each product; 8 results a thread ask 9 times for 8, and 64 results 16 times for 64."""
    n, products = 128, 128**3
    for name, asked, stores in (
        ("matmul-tiled", 2.0, 2 * 4 * 1024 * 16), ("matmul-registers-1d", 9 / 8, 2 * 512 * 16 * 4),
        ("matmul-registers-2d", 16 / 64, 2 * 1024 * 16),
    ):  # fmt: skip
        shared = ladder.rung(name).simulate(n).totals
        assert shared.shared_bytes_requested == 4 * (asked * products + stores)
        assert shared.conflict_ways == 1


def test_transposes_by_hand():
    """A column of a matrix is 32 sectors, of an unpadded tile one bank: 32 wavefronts instead of 1."""
    n = 128
    warps = n * n // 32
    assert _sectors("transpose-naive", n) == warps * (4 + 32)
    assert _sectors("transpose-tiled", n) == _sectors("transpose-padded", n) == warps * (4 + 4)
    assert ladder.rung("transpose-tiled").simulate(n).totals.shared_wavefronts == warps * (1 + 32)
    assert ladder.rung("transpose-padded").simulate(n).totals.shared_wavefronts == warps * (1 + 1)


def test_each_reduction_wastes_what_its_name_says():
    """Interleaved diverges, strided conflicts, sequential does neither, shuffles hardly touch shared memory."""
    forms = {form: ladder.rung(f"reduction-{form}").simulate(1 << 14).totals for form in
             ("interleaved", "strided", "sequential", "shuffle", "grid-stride")}  # fmt: skip
    blocks = (1 << 14) // 256
    # Steps of 1 to 16 send lanes of all 8 warps two ways; at 32, 64 and 128, 4, 2 and 1 warps have one working lane; then thread 0 alone.
    assert forms["interleaved"].divergent_branches == blocks * (5 * 8 + 4 + 2 + 1 + 1)
    # 128 threads at step 1 are four whole warps; from 16 threads on one warp is split: five steps, and thread 0 alone.
    assert forms["strided"].divergent_branches == forms["sequential"].divergent_branches == blocks * (5 + 1)
    assert forms["interleaved"].conflict_ways == forms["sequential"].conflict_ways == 1
    assert forms["strided"].conflict_ways > 3
    # A store by 8 warps, then a load, a load and a store for each of 4, 2, 1, 1, 1, 1, 1, 1 warps, then the sum: 45. Shuffles: 8 and 1.
    assert forms["sequential"].shared_requests == blocks * (8 + 3 * 12 + 1)
    assert forms["shuffle"].shared_requests == blocks * (8 + 1)
    assert forms["grid-stride"].barriers == forms["shuffle"].barriers / 8


def test_chunks_and_neighbours_by_hand():
    """32 neighbours for each thread put the lanes 128 bytes apart: 32 sectors a request instead of 4."""
    n = 1 << 16
    assert ladder.rung("elementwise-chunks").simulate(n).totals.sectors_per_request == 32
    assert ladder.rung("elementwise-each").simulate(n).totals.sectors_per_request == 4
    assert _sectors("elementwise-grid-stride", n) == 2 * n * 4 // 32


def test_histograms_by_hand():
    """One atomic for each warp of elements, or one for each warp of elements in shared memory and 8 a block in global memory."""
    n = 1 << 16
    shared, private = (ladder.rung(f"histogram-{form}").simulate(n) for form in ("global", "private"))
    atomics = [sum(a.requests for a in s.accesses if a.kind == "atomic" and a.space == "global") for s in (shared, private)]
    assert atomics == [n // 32, 16 * 8]


def test_softmax_moves_the_row_once_or_three_times():
    """Rows of 1,024 floats are 128 sectors: three walks and a store, or one and a store."""
    assert _sectors("softmax-three-walks", 32) == 32 * 128 * 4
    assert _sectors("softmax-kept", 32) == 32 * 128 * 2


@pytest.mark.parametrize("name", ["softmax-three-walks", "softmax-kept"])
def test_a_softmax_takes_off_the_largest_of_its_row(name: str):
    """A 1,000 among zeros, whose exponential no float32 holds, wherever it stands: 1 there and 0 elsewhere, as float64 has it too."""
    from gpulab.kernels import simulate

    rung = ladder.rung(name)
    places = np.arange(256) * 4 + np.arange(256) % 4
    x, y = np.zeros((256, 1024), np.float32), np.full((256, 1024), 7, np.float32)
    x[np.arange(256), places] = 1000
    expected = (x == 1000).astype(np.float32)
    assert np.array_equal(rung.expected(x, y), expected)
    assert simulate(rung.kernel, *rung.launch(256), x, y).findings == ()
    np.testing.assert_array_equal(y, expected)


# Of each ladder: its sizes, and of size n the operations, the bytes that must move, by hand.
WORK = {
    # x / 2, 0.8 x, tanh, + 1, product; one array read, one written.
    "elementwise": ((2**16, 2**22, 2**26), lambda n: 5 * n, lambda n: 2 * 4 * n),
    "reduction": ((2**14, 2**22, 2**26), lambda n: n, lambda n: 4 * n),
    "transpose": ((128, 2048, 8192), lambda n: 0, lambda n: 2 * 4 * n**2),
    # 256 counters of 4 bytes beside the elements.
    "histogram": ((2**16, 2**22, 2**26), lambda n: n, lambda n: 4 * n + 1024),
    # Rows of 1,024: compare, subtract, exponential, add, divide.
    "softmax": ((32, 4096, 65536), lambda n: 5 * 1024 * n, lambda n: 2 * 4 * 1024 * n),
    "matmul": ((128, 1024, 4096), lambda n: 2 * n**3, lambda n: 3 * 4 * n**2),
}
# How far a result may be from float64's, relative to the largest: copies and counts not at all, an element's few operations less than sums
# and quotients in float32, whose sums in TF32 have factors of ten bits.
TOLERANCES = {"elementwise": 1e-6, "reduction": 1e-5, "transpose": 0.0, "histogram": 0.0, "softmax": 1e-5, "matmul": 1e-5}
# Grid and block at some sizes, of a rung or of its ladder: enough blocks for all, 128 that stride, one for eight or sixteen elements a
# thread, from one to 512.
LAUNCHES = {
    "elementwise-chunks": {2**22: (512, 256), 8193: (2, 256)}, "elementwise-each": {2**22: (2**14, 256), 257: (2, 256)},
    "elementwise-grid-stride": {2**22: (128, 256), 257: (2, 256), 128 * 256: (128, 256)},
    "reduction": {2**22: (2**14, 256), 257: (2, 256)}, "reduction-grid-stride": {2**22: (2**11, 256), 2049: (2, 256)},
    "transpose": {2048: ((64, 64), (32, 8)), 33: ((2, 2), (32, 8))}, "histogram": {1: (1, 256), 2**20: (256, 256), 2**22: (512, 256)},
    "softmax": {4096: (4096, 128)}, "matmul": {1024: ((32, 32), (32, 32)), 33: ((2, 2), (32, 32))},
    "matmul-registers-1d": {1024: ((16, 16), 512)}, "matmul-registers-2d": {1024: ((8, 8), 256)}, "CUDA": {1024: ((8, 8), 256)},
}  # fmt: skip


@pytest.mark.parametrize("rung", [*RUNGS, *CUDA_RUNGS], ids=lambda rung: rung.name)
def test_work_and_launch_of_a_rung_by_hand(rung: Rung | CudaRung):
    """What its times are divided by, on how many threads it runs, and that a seed gives its arguments again and another seed others."""
    sizes, flops, nbytes = WORK[rung.family]
    assert rung.sizes == sizes
    assert [rung.flops(n) for n in sizes] == [flops(n) for n in sizes]
    assert [rung.nbytes(n) for n in sizes] == [nbytes(n) for n in sizes]
    assert rung.tolerance == (1e-3 if rung.name == "matmul-tensor" else TOLERANCES[rung.family])
    launches = LAUNCHES["CUDA"] if isinstance(rung, CudaRung) else LAUNCHES.get(rung.name, LAUNCHES.get(rung.family))
    assert {n: rung.launch(n) for n in launches} == launches
    first, again, other = (rung.arguments(128, seed)[0] for seed in (0, 0, 1))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    assert np.array_equal(rung.arguments(128)[0], first)


def test_a_rung_is_shown_without_its_functions_and_its_text():
    """In a cell's output it is what it is called, what it does, and its sizes; in CUDA C++ also what it is compiled with."""
    assert repr(ladder.rung("matmul-naive")) == (
        "Rung(name='matmul-naive', family='matmul', summary='one thread for each element, rows side by side', sizes=(128, 1024, 4096))"
    )
    assert repr(ladder.cuda_rung("matmul-warp-tiled")) == (
        "CudaRung(name='matmul-warp-tiled', family='matmul', summary='CUDA C++: a tile for each warp', kernel='matmul_warp_tiled', "
        "options=((), ('-DDEPTH=8',), ('-DDEPTH=32',)), tolerance=1e-05, sizes=(128, 1024, 4096))"
    )


@pytest.mark.parametrize("module", [_elementwise, _histograms, _matmuls, _reductions, _softmax, _transposes], ids=lambda m: m.__name__)
def test_every_kernel_of_a_file_is_a_rung_of_its_ladder(module: types.ModuleType):
    """None that is written is left out, and none is two rungs."""
    written = [one for name, one in inspect.getmembers(module, inspect.isfunction) if not name.startswith("_")]
    (family,) = {rung.family for rung in module.RUNGS}
    assert sorted((rung.kernel for rung in ladder.family(family)), key=lambda one: one.__name__) == written


def test_the_values_of_the_inputs():
    """Pixels lie around 100 and spread by 20, and none is below 0 or above 255; rows spread by 3, so that their exponentials differ."""
    pixels, counts = ladder.rung("histogram-global").arguments(1 << 16)
    assert (float(pixels.mean()), float(pixels.std())) == pytest.approx((99.5, 20), abs=0.4)  # cut to whole numbers: half a one less
    assert (pixels.dtype, counts.shape, counts.any()) == (np.int32, (256,), False)
    rng = types.SimpleNamespace(normal=lambda *_: np.array([-3.0, 99.9, 300.0]))
    assert _histograms._make(3, rng)[0].tolist() == [0, 99, 255]  # type: ignore[arg-type]
    rows, result = ladder.rung("softmax-kept").arguments(64)
    assert (rows.shape, result.shape, rows.dtype) == ((64, 1024), (64, 1024), np.float32)
    assert float(rows.std()) == pytest.approx(3, rel=0.02)


def test_arguments_of_cuda():
    """Two matrices, a third of zeros, and their size as an int."""
    a, b, c, n = CUDA_RUNGS[0].arguments(128)
    assert (a.shape, b.shape, c.shape, n, type(n)) == ((128, 128), (128, 128), (128, 128), 128, np.int32)
    assert not c.any()
    for n in (0, 100, 128.0, True, -128):
        with pytest.raises(InputError, match=r"matmul-vectorised: n=.*; expected a multiple of 128. Pass for example n=128"):
            CUDA_RUNGS[0].launch(n)


def test_sizes_are_checked():
    """A register tile has no guard, so another size is refused and not computed wrongly."""
    with pytest.raises(InputError, match="matmul-registers-2d: n=100; expected a multiple of 128"):
        ladder.rung("matmul-registers-2d").launch(100)
    for n in (0, -1, 1.5, "8", True, None):
        with pytest.raises(InputError, match="expected a whole number from 1"):
            ladder.rung("matmul-tiled").launch(n)  # type: ignore[arg-type]
    for find, words in ((ladder.rung, "is no rung"), (ladder.family, "is no ladder"), (ladder.cuda_rung, "is no rung in CUDA")):
        with pytest.raises(InputError, match=words):
            find("nothing")
    assert [len(ladder.family(name)) for name in ladder.families()] == [3, 5, 3, 2, 2, 5]


@pytest.mark.parametrize("rung", RUNGS, ids=lambda rung: rung.name)
def test_a_rung_compiles_for_a_gpu_and_keeps_its_arrays_in_registers(rung: Rung):
    """numba-cuda takes each kernel as it is; nothing is spilled, and local arrays do not end in memory."""
    pytest.importorskip("numba_cuda")
    try:
        (facts,) = compile_python(rung.kernel, *rung.arguments(rung.sizes[0])).kernels.values()
    except MissingLibraryError as error:
        pytest.skip(str(error))
    assert (facts.spill_bytes, facts.stack_bytes) == (0, 0)


# -- the rungs in CUDA C++ -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rung", CUDA_RUNGS, ids=lambda rung: rung.name)
def test_cuda_rungs_compile_without_spills(rung: CudaRung):
    """For an older and a newer GPU and all options: nothing spilled, and the registers of 256 threads fit an SM's 65,536."""
    pytest.importorskip("ctypes")
    for options in rung.options:
        for arch in ("sm_80", "sm_90"):
            facts = compile_cuda(rung.source, arch=arch, options=options).kernels[rung.kernel]
            assert 256 * facts.registers <= 65_536
            assert facts.spill_bytes == 0
            assert facts.parameter_bytes == 28


def test_the_last_rung_uses_tensor_cores():
    """Its machine code has matrix instructions, and that of the rung before has none."""
    try:
        codes = [compile_cuda(ladder.cuda_rung(name).source).sass for name in ("matmul-tensor", "matmul-warp-tiled")]
    except MissingLibraryError as error:
        pytest.skip(str(error))
    assert "HMMA" in codes[0]
    assert "HMMA" not in codes[1]
    assert "FFMA" in codes[1]


# Enough of CUDA for one block at a time on a CPU: a thread of the machine for each thread of the block. C's own headers are read in a tenth
# of the time of C++'s threads and barriers.
_SHIM = """
#include <cstdio>
#include <pthread.h>
struct alignas(16) float4 { float x, y, z, w; };
struct Index { unsigned x, y; };
thread_local Index threadIdx, blockIdx;
pthread_mutex_t door = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t opened = PTHREAD_COND_INITIALIZER;
unsigned here, meetings;
#define __global__
#define __launch_bounds__(x)
#define __shared__ static
#define __align__(x) __attribute__((aligned(x)))
void __syncthreads() {
    pthread_mutex_lock(&door);
    unsigned meeting = meetings;
    if (++here == 256) {
        here = 0;
        meetings++;
        pthread_cond_broadcast(&opened);
    } else while (meeting == meetings) pthread_cond_wait(&opened, &door);
    pthread_mutex_unlock(&door);
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
    fclose(f);
    for (unsigned y = 0; y < n / 128; y++) for (unsigned x = 0; x < n / 128; x++) {
        block = {x, y};
        pthread_t threads[256];
        for (size_t t = 0; t < 256; t++) if (pthread_create(&threads[t], nullptr, thread, (void*)t)) return 2;
        for (pthread_t each : threads) pthread_join(each, nullptr);
    }
    f = fopen(names[2], "wb");
    fwrite(product, 4, n * n, f);
    fclose(f);
}
"""


@pytest.mark.parametrize("rung", [r for r in CUDA_RUNGS if r.name != "matmul-tensor"], ids=lambda rung: rung.name)
def test_cuda_rungs_are_right_as_plain_cpp(rung: CudaRung, tmp_path: Path):
    """Their text, compiled for the CPU with a thread for each thread of a block, gives the product of two matrices."""
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("no C++ compiler here; the gpu tests run the kernels themselves")
    for options in rung.options:
        n = 128 if options else 256  # one block, or four
        a, b, _, _ = rung.arguments(n)
        (tmp_path / "in.bin").write_bytes(a.tobytes() + b.tobytes())
        text = _SHIM.replace("SOURCE", rung.source).replace("KERNEL", rung.kernel).replace("int n = N", f"int n = {n}")
        (tmp_path / "kernel.cpp").write_text(text)
        made = subprocess.run(
            [compiler, "-std=c++20", "-O1", "-pthread", "-fno-strict-aliasing", *options, str(tmp_path / "kernel.cpp"), "-o",
             str(tmp_path / "kernel")], capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert made.returncode == 0, made.stderr[-2000:]
        subprocess.run([tmp_path / "kernel", tmp_path / "in.bin", tmp_path / "out.bin"], check=True, timeout=240)
        c = np.fromfile(tmp_path / "out.bin", np.float32).reshape(n, n)
        expected = a.astype(np.float64) @ b.astype(np.float64)
        np.testing.assert_allclose(c, expected, rtol=0, atol=rung.tolerance * expected.max())
