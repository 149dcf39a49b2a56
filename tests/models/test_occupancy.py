"""Occupancy against NVIDIA's own header, against numbers derived by hand, and as it is shown."""

import ctypes
import importlib.util
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from gpulab.errors import InputError
from gpulab.models import (
    LIMITERS,
    compute_capabilities,
    occupancy,
    occupancy_sweep,
    occupancy_table,
    sm_limits,
)

from texts import table_text

# Threads and KiB of shared memory per SM. Source: CUDA Programming Guide 13.0 (7.0 and 7.2: 12.9),
# table of technical specifications; 8.8: CCCL's arch_traits.h.
GUIDE = {
    **dict.fromkeys(("7.0", "7.2"), (2048, 96)),
    "7.5": (1024, 64),
    "8.0": (2048, 164),
    "8.7": (1536, 164),
    **dict.fromkeys(("8.6", "8.8", "8.9", "12.0", "12.1"), (1536, 100)),
    **dict.fromkeys(("9.0", "10.0", "10.3"), (2048, 228)),
    "11.0": (1536, 228),
}
# One row of `in`: threads, registers, shared bytes, barriers, carve-out, opt-in, virtual
# resources. One row of `out`: blocks, what each of LIMITERS allows, registers and bytes per block.
DRIVER = r"""
#include "cuda_occupancy.h"
int occupancies(int n, const int *device, const int *in, int *out) {
    cudaOccDeviceProp p; memset(&p, 0, sizeof p);
    p.computeMajor = device[0]; p.computeMinor = device[1];
    p.maxThreadsPerBlock = 1024; p.maxThreadsPerMultiprocessor = device[2];
    p.regsPerBlock = 65536; p.regsPerMultiprocessor = 65536; p.warpSize = 32; p.numSms = 1;
    p.sharedMemPerBlock = 49152; p.sharedMemPerMultiprocessor = device[3];
    p.reservedSharedMemPerBlock = device[4]; p.sharedMemPerBlockOptin = device[3] - device[4];
    for (int i = 0; i < n; i++, in += 7, out += 9) {
        cudaOccFuncAttributes a; cudaOccDeviceState s; cudaOccResult r;
        memset(&a, 0, sizeof a); memset(&s, 0, sizeof s); memset(&r, 0, sizeof r);
        a.maxThreadsPerBlock = INT_MAX; a.numRegs = in[1];
        a.partitionedGCConfig = PARTITIONED_GC_OFF;
        a.shmemLimitConfig = in[5] ? FUNC_SHMEM_LIMIT_OPTIN : FUNC_SHMEM_LIMIT_DEFAULT;
        a.maxDynamicSharedSizeBytes = in[2]; a.numBlockBarriers = in[3];
        a.virtualResourceCount = in[6];
        s.cacheConfig = CACHE_PREFER_NONE; s.carveoutConfig = in[4];
        if (cudaOccMaxActiveBlocksPerMultiprocessor(&r, &p, &a, &s, in[0], in[2])) return i + 1;
        int row[] = {r.activeBlocksPerMultiprocessor, r.blockLimitWarps, r.blockLimitRegs,
                     r.blockLimitSharedMem, r.blockLimitBlocks, r.blockLimitBarriers,
                     r.blockLimitVirtual,
                     r.allocatedRegistersPerBlock, (int)r.allocatedSharedMemPerBlock};
        memcpy(out, row, sizeof row);
    }
    return 0;
}
"""


@pytest.fixture(scope="module")
def header(tmp_path_factory):
    """Compile NVIDIA's header with a few lines of C that call it."""
    folder, nvidia = tmp_path_factory.mktemp("header"), importlib.util.find_spec("nvidia")
    places = map(Path, nvidia.submodule_search_locations if nvidia else ())
    found = [path for at in places for path in at.glob("*/include/cuda_occupancy.h")]
    compiler = next(filter(None, map(shutil.which, ("gcc", "cc", "clang"))), None)
    if compiler is None or not found:
        pytest.skip("no C compiler, or no cuda_occupancy.h: pip install nvidia-cuda-runtime")
    (folder / "driver.c").write_text(DRIVER)
    options = ["-O2", "-shared", "-fPIC", f"-I{found[0].parent}", "driver.c", "-o", "driver.so"]
    subprocess.run([compiler, *options], check=True, cwd=folder)
    return ctypes.CDLL(str(folder / "driver.so"))


def launches(capability, count):
    """Return random launches; a third fill shared memory exactly, or one byte off."""
    rng = np.random.default_rng([7, *map(int, capability.split("."))])
    most = GUIDE[capability][1] * 1024
    exact = np.maximum(most // rng.integers(1, 33, count) - 1024 + rng.integers(-1, 2, count), 0)
    some = [rng.integers(0, 8192, count), rng.integers(0, most + 2048, count), exact]
    whole = rng.random(count) < 0.5
    columns = [
        np.where(whole, 32 * rng.integers(1, 33, count), rng.integers(1, 1100, count)),  # threads
        np.where(whole, rng.integers(0, 65, count), rng.integers(0, 256, count)),  # registers
        np.choose(rng.integers(0, 3, count), some),  # shared bytes
        # The header of CUDA 13.0 has 64 barriers for 10.3, that of 13.5 has 32.
        np.where(rng.random(count) < 0.7, 1, rng.integers(0, 17, count)) * (capability != "10.3"),
        np.where(rng.random(count) < 0.7, -1, rng.integers(0, 101, count)),  # carve-out
        rng.random(count) < 0.9,  # opted in
        np.where(rng.random(count) < 0.9, 0, rng.integers(0, 131, count)),  # virtual resources
    ]
    return np.stack(columns, axis=1)


@pytest.mark.parametrize("capability", compute_capabilities())
def test_no_launch_differs_from_the_vendors_header(header, capability):
    """Blocks, the blocks that each resource allows, and the allocations are the header's."""
    asked, (threads, shared_kib) = launches(capability, 20_000), GUIDE[capability]
    rows, answers = asked.astype(np.int32), np.zeros((len(asked), 9), np.int32)
    major, minor = map(int, capability.split("."))
    device = np.array([major, minor, threads, shared_kib * 1024, 1024 * (major >= 8)], np.int32)
    assert header.occupancies(len(rows), *(a.ctypes for a in (device, rows, answers))) == 0
    names = ("barriers_per_block", "carveout_percent", "opt_in", "virtual_resources")
    options = dict(zip(names, asked[:, 3:].T, strict=True))
    options["opt_in"] = options["opt_in"].astype(bool)
    table = occupancy_table(*asked[:, :3].T, capability, **options)
    allowed = [table.blocks_by_resource[name] for name in LIMITERS]
    ours = [table.blocks_per_sm, *allowed, table.registers_per_block, table.shared_bytes_per_block]
    different = (np.stack(ours, axis=1) != answers).any(axis=1)
    assert np.concatenate([asked, answers], axis=1)[different].tolist() == []
    assert all(np.count_nonzero(table.limiter == name) > 1000 for name in LIMITERS[:3])
    assert (table.ratio * (threads // 32) == table.blocks_per_sm * -(-asked[:, 0] // 32)).all()


# By hand, from the guide's table and the allocation granularity; barriers from the header.
@pytest.mark.parametrize(
    ("launch", "options", "blocks", "warps", "limiter"),
    [
        # 64 x 32 = 2,048 registers per warp; 65,536 / 2,048 = 32 warps.
        ((256, 64, 0, "9.0"), {}, 4, 32, "registers"),
        ((1024, 32, 0, "9.0"), {}, 2, 64, "warps"),
        # 33 x 32 = 1,056 rounds up to 1,280; 16,384 / 1,280 = 12 warps per partition, 48 in all.
        ((1024, 33, 0, "9.0"), {}, 1, 32, "registers"),
        ((32, 16, 0, "9.0"), {}, 32, 32, "blocks"),
        ((33, 16, 0, "9.0"), {}, 32, 64, "warps"),
        ((1024, 16, 0, "8.6"), {}, 1, 32, "warps"),  # 48 warp slots
        ((256, 32, 48 * 1024, "8.6"), {}, 2, 16, "shared"),  # 49 of 100 KiB with the driver's 1
        ((128, 32, 227 * 1024, "9.0"), {}, 1, 4, "shared"),
        ((128, 32, 227 * 1024 + 1, "9.0"), {}, 0, 0, "shared"),
        ((1024, 65, 0, "9.0"), {}, 0, 0, "registers"),
        # The check rounds 17 warps up to 20: 20 x 3,584 = 71,680, though 17 x 3,584 = 60,928.
        ((544, 112, 0, "9.0"), {}, 0, 0, "registers"),
        ((64, 32, 0, "7.5"), {}, 16, 32, "warps"),
        ((256, 64, 0, "sm_90a"), {}, 4, 32, "registers"),  # the compiler's names
        # Barriers per SM: 64 on 9.0, 32 on 10.3, 24 on 12.0; 8.0 has no such limit.
        ((128, 32, 0, "9.0"), {"barriers_per_block": 16}, 4, 16, "barriers"),
        ((128, 32, 0, "12.0"), {"barriers_per_block": 16}, 1, 4, "barriers"),
        ((128, 32, 0, "10.3"), {"barriers_per_block": 16}, 2, 8, "barriers"),
        ((128, 32, 0, "8.0"), {"barriers_per_block": 16}, 16, 64, "warps"),
        ((128, 32, 19 * 1024, "8.0"), {}, 8, 32, "shared"),
    ],
)
def test_launches_by_hand(launch, options, blocks, warps, limiter):
    """Blocks, warps and the limiting resource are those calculated by hand."""
    found = occupancy(*launch, **options)
    assert (found.blocks_per_sm, found.warps_per_sm, found.limiter) == (blocks, warps, limiter)
    assert found.ratio == warps / sm_limits(launch[3]).warps


@pytest.mark.parametrize(
    ("axis", "values", "usual"),
    # Default values by hand (first, last, count): warps, each count, 99 KiB in steps of 128 B.
    [
        ("threads_per_block", [1, 32, 33, 1024], (32, 1024, 32)),
        ("registers_per_thread", [0, 41, 255], (0, 255, 256)),
        ("shared_bytes_per_block", [0, 20_001, 101_376, 101_377], (0, 99 * 1024, 793)),
        ("barriers_per_block", [0, 16], (0, 16, 17)),
    ],
)
def test_a_sweep_equals_single_launches(axis, values, usual):
    """Each value of a sweep gives what a single call gives; the default values cover the range."""
    names = ("threads_per_block", "registers_per_thread", "shared_bytes_per_block")
    asked = {**dict(zip(names, (192, 40, 20_000), strict=True)), "barriers_per_block": 9}
    launch = occupancy(**asked, compute_capability="12.0")
    (tried, sweep), (wide, _) = occupancy_sweep(launch, axis, values), occupancy_sweep(launch, axis)
    ones = [occupancy(**{**asked, axis: value}, compute_capability="12.0") for value in values]
    expected = [(one.blocks_per_sm, one.ratio, one.limiter) for one in ones]
    assert list(zip(sweep.blocks_per_sm, sweep.ratio, sweep.limiter, strict=True)) == expected
    assert tried.tolist() == values
    assert (wide[0], wide[-1], len(wide)) == usual


@pytest.mark.parametrize(
    "call",
    [
        lambda: occupancy(1025, 32),
        lambda: occupancy(32, 256),
        lambda: occupancy(0, 32),
        lambda: occupancy(32, -1),
        lambda: occupancy(32, 32, 2**30 + 1),
        lambda: occupancy(32, 32, barriers_per_block=17),
        lambda: occupancy(32, 32, 0, "6.1"),
        lambda: occupancy_table([[1, 2]], [1, 2, 3]),
        lambda: occupancy_table(32, 32, carveout_percent=-2),
        lambda: occupancy_table(32.5, 32),
        lambda: occupancy_sweep(occupancy(256, 64), "threads"),
        lambda: occupancy_sweep(occupancy(256, 64), "threads_per_block", [0]),
    ],
)
def test_what_cannot_be_launched_is_refused(call):
    """Numbers beyond what a device has, and unknown names, are refused."""
    with pytest.raises(InputError, match="expected"):
        call()
    assert occupancy(1024, 255, 2**30, barriers_per_block=16)


# One launch for each cause and remedy. The remedy is the nearest value with more warps. By hand:
# 40 registers (48 warps leave 1,365 registers each, in steps of 256); 33,024 bytes (a third of
# 102,400 in steps of 128, less 1,024).
SHOWN = [
    ((1024, 32), {}),
    ((768, 16, 0, "8.0"), {}),
    ((1024, 16, 0, "8.6"), {}),
    ((512, 64), {}),
    ((1024, 65), {}),
    ((256, 32, 48 * 1024, "8.6"), {}),
    ((128, 32, 60 * 1024, "7.5"), {}),
    ((128, 32, 300 * 1024), {}),
    ((1, 16, 0, "7.5"), {}),
    ((128, 32), {"barriers_per_block": 16}),
    ((512, 40, 75 * 1024), {}),
    ((128, 32, 27 * 1024), {"barriers_per_block": 8}),
    ((1024, 65, 300 * 1024), {}),
]


def test_launches_as_they_are_shown(approved):
    """The tables: what a block takes, what each resource allows, the limit and its remedy."""
    shown = [occupancy(*launch, **options) for launch, options in SHOWN]
    parts = (f"{one!r}\n{table_text(one._repr_html_())}" for one in shown)
    assert "\n".join(parts) == approved
