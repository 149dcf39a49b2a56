"""Occupancy against NVIDIA's own ``cuda_occupancy.h``: a million launches for each compute
capability, half of them next to a limit.

Next to a limit: one thread, register or byte more (or less) gives another number of blocks.

    python benchmarks/occupancy_oracle.py [--launches 1000000] [--seed 1] [--header FILE] [--quick]

The header comes with the wheel ``nvidia-cuda-runtime`` and is compiled with the machine's C
compiler into a temporary folder. It is never copied. Its inputs (threads, registers and shared
memory of an SM) are entered here independently, from the CUDA Programming Guide's table.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.metadata
import importlib.util
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from gpulab.models import compute_capabilities, occupancy_table

# Threads and shared kB of an SM. Source: CUDA Programming Guide 13.0 (7.0, 7.2: 12.9), technical
# specifications; 8.8: CCCL's arch_traits.h.
GUIDE = {
    "7.0": (2048, 96),
    "7.2": (2048, 96),
    "7.5": (1024, 64),
    "8.0": (2048, 164),
    "8.6": (1536, 100),
    "8.7": (1536, 164),
    "8.8": (1536, 100),
    "8.9": (1536, 100),
    "9.0": (2048, 228),
    "10.0": (2048, 228),
    "10.3": (2048, 228),
    "11.0": (1536, 228),
    "12.0": (1536, 100),
    "12.1": (1536, 100),
}
COLUMNS = ("threads", "registers", "static", "dynamic", "barriers", "carveout", "opt_in", "virtual")
ANSWERS = (
    "blocks",
    "warps",
    "registers",
    "shared",
    "blocks limit",
    "barriers",
    "virtual",
    "registers per block",
    "shared per block",
)
DRIVER = r"""
#include "cuda_occupancy.h"
/* in: n rows of 8 (COLUMNS); out: n rows of 9 (ANSWERS). Returns the first error of the header, or 0. */
int occupancies(int n, const int *device, const int *in, int *out) {
    cudaOccDeviceProp p; memset(&p, 0, sizeof p);
    p.computeMajor = device[0]; p.computeMinor = device[1];
    p.maxThreadsPerBlock = 1024; p.maxThreadsPerMultiprocessor = device[2];
    p.regsPerBlock = 65536; p.regsPerMultiprocessor = 65536; p.warpSize = 32; p.numSms = 1;
    p.sharedMemPerBlock = 49152; p.sharedMemPerMultiprocessor = device[3];
    p.reservedSharedMemPerBlock = device[4]; p.sharedMemPerBlockOptin = device[3] - device[4];
    for (int i = 0; i < n; i++, in += 8, out += 9) {
        cudaOccFuncAttributes a; cudaOccDeviceState s; cudaOccResult r;
        memset(&a, 0, sizeof a); memset(&s, 0, sizeof s); memset(&r, 0, sizeof r);
        a.maxThreadsPerBlock = INT_MAX; a.numRegs = in[1]; a.sharedSizeBytes = in[2];
        a.partitionedGCConfig = PARTITIONED_GC_OFF;
        a.shmemLimitConfig = in[6] ? FUNC_SHMEM_LIMIT_OPTIN : FUNC_SHMEM_LIMIT_DEFAULT;
        a.maxDynamicSharedSizeBytes = in[3]; a.numBlockBarriers = in[4]; a.virtualResourceCount = in[7];
        s.cacheConfig = CACHE_PREFER_NONE; s.carveoutConfig = in[5];
        int status = cudaOccMaxActiveBlocksPerMultiprocessor(&r, &p, &a, &s, in[0], in[3]);
        if (status) return 1000 * (i + 1) + status;
        out[0] = r.activeBlocksPerMultiprocessor; out[1] = r.blockLimitWarps; out[2] = r.blockLimitRegs;
        out[3] = r.blockLimitSharedMem; out[4] = r.blockLimitBlocks; out[5] = r.blockLimitBarriers;
        out[6] = r.blockLimitVirtual; out[7] = r.allocatedRegistersPerBlock; out[8] = (int)r.allocatedSharedMemPerBlock;
    }
    return 0;
}
"""


class MissingError(Exception):
    """The header or a C compiler that can read it is not there; the text says which."""


def find_header() -> Path:
    """Return the header of the installed wheel."""
    spec = importlib.util.find_spec("nvidia")
    for folder in spec.submodule_search_locations or () if spec else ():
        for path in sorted(Path(folder).glob("*/include/cuda_occupancy.h")):
            return path
    raise MissingError("no cuda_occupancy.h: pip install nvidia-cuda-runtime")


def header_version() -> tuple[int, int]:
    """Return (major, minor) of the installed wheel."""
    try:
        major, minor, *_ = importlib.metadata.version("nvidia-cuda-runtime").split(".")
    except (
        importlib.metadata.PackageNotFoundError
    ) as error:  # the header of nvidia-cuda-runtime-cu12
        raise MissingError(
            "no wheel nvidia-cuda-runtime: pip install nvidia-cuda-runtime"
        ) from error
    return int(major), int(minor)


def build(folder: Path, header: Path | None = None) -> ctypes.CDLL:
    """Compile the driver against the header in its place, and load it."""
    compiler = next(
        (found for name in ("gcc", "cc", "clang") if (found := shutil.which(name))), None
    )
    if compiler is None:
        raise MissingError("no C compiler (gcc, cc or clang) on the PATH")
    path = header or find_header()
    source, library = folder / "driver.c", folder / "driver.so"
    source.write_text(DRIVER)
    command = [compiler, "-O2", "-shared", "-fPIC", f"-I{path.parent}", str(source)]
    if subprocess.run([*command, "-o", str(library)], check=False).returncode:
        raise MissingError(f"{compiler} does not compile {path}; its message is above")
    return ctypes.CDLL(str(library))


def vendor(library: ctypes.CDLL, capability: str, launches: np.ndarray) -> np.ndarray:
    """Return the header's answers, shape (n, 9), for launches of shape (n, 8)."""
    threads, shared_kib = GUIDE[capability]
    major, minor = map(int, capability.split("."))
    device = np.array(
        [major, minor, threads, shared_kib * 1024, 1024 if major >= 8 else 0], np.int32
    )
    rows = np.ascontiguousarray(launches, np.int32)
    answers = np.full((len(rows), len(ANSWERS)), -1, np.int32)
    pointers = [
        array.ctypes.data_as(ctypes.POINTER(ctypes.c_int)) for array in (device, rows, answers)
    ]
    status = library.occupancies(len(rows), *pointers)
    if status:
        raise RuntimeError(
            f"cuda_occupancy.h refused launch {rows[status // 1000 - 1]} of {capability} with "
            f"error {status % 1000}"
        )
    return answers


def ours(capability: str, launches: np.ndarray) -> np.ndarray:
    """Return the same columns from ``occupancy_table``."""
    columns = dict(zip(COLUMNS, launches.T, strict=True))
    table = occupancy_table(
        columns["threads"],
        columns["registers"],
        columns["static"] + columns["dynamic"],
        capability,
        barriers_per_block=columns["barriers"],
        carveout_percent=columns["carveout"],
        opt_in=columns["opt_in"].astype(bool),
        virtual_resources=columns["virtual"],
    )
    by = table.blocks_by_resource
    limits = [
        by[name] for name in ("warps", "registers", "shared", "blocks", "barriers", "virtual")
    ]
    return np.stack(
        [table.blocks_per_sm, *limits, table.registers_per_block, table.shared_bytes_per_block],
        axis=1,
    )


def draw(capability: str, count: int, seed: int, most_barriers: int = 16) -> np.ndarray:
    """Return launches of shape (count, 8), anywhere in the range of what can be asked and a little
    beyond.
    """
    rng = np.random.default_rng([seed, *map(int, capability.split("."))])
    threads = np.where(
        rng.random(count) < 0.5, 32 * rng.integers(1, 33, count), rng.integers(1, 1101, count)
    )
    registers = np.where(
        rng.random(count) < 0.5, rng.integers(0, 65, count), rng.integers(0, 256, count)
    )
    few_bytes, any_bytes = (
        rng.integers(0, 8192, count),
        rng.integers(0, _most_shared(capability), count),
    )
    shared = np.where(rng.random(count) < 0.6, few_bytes, any_bytes)
    static = np.where(rng.random(count) < 0.3, np.minimum(shared, rng.integers(0, 49153, count)), 0)
    barriers = np.where(rng.random(count) < 0.8, 1, rng.integers(0, most_barriers + 1, count))
    carveout = np.where(rng.random(count) < 0.7, -1, rng.integers(0, 101, count))
    virtual = np.where(rng.random(count) < 0.9, 0, rng.integers(0, 131, count))
    opt_in = (rng.random(count) < 0.9).astype(np.int64)
    return np.stack(
        [threads, registers, static, shared - static, barriers, carveout, opt_in, virtual], axis=1
    )


def _most_shared(capability: str) -> int:
    return GUIDE[capability][1] * 1024 + 2048


def next_to_a_limit(
    library: ctypes.CDLL, capability: str, launches: np.ndarray, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Move one of threads, registers and dynamic shared memory of each launch to where the header's
    number of blocks changes.

    Returns the launches, each on one side or the other of its change, and for which of them there
    is a change. The change is found by bisection.
    """
    rng = np.random.default_rng([seed, 2])
    moved, found = launches.copy(), np.zeros(len(launches), bool)
    ends = {0: (1, 1100), 1: (0, 255), 3: (0, _most_shared(capability))}
    for turn, column in enumerate([*rng.permutation([0, 1, 3, 0, 1, 3]), 1, 3, 0, 0, 0, 0, 0, 0]):
        rows = np.flatnonzero(~found & (rng.random(len(launches)) < (0.3 if turn < 6 else 1.0)))
        # A launch that no change of one resource makes possible asks for too much of two: it gets
        # few registers, and no dynamic shared memory or virtual resources.
        if turn == 8:
            moved[rows[:, None], [1, 3, 7]] = 32, 0, 0
        here, there = moved[rows], moved[rows]
        there[:, column] = np.where(rng.random(len(rows)) < 0.5, *ends[int(column)])
        blocks = vendor(library, capability, here)[:, 0]
        while True:
            middle = here.copy()
            middle[:, column] = (here[:, column] + there[:, column]) // 2
            if (np.abs(here[:, column] - there[:, column]) <= 1).all():
                break
            same = vendor(library, capability, middle)[:, 0] == blocks
            far = np.abs(here[:, column] - there[:, column]) > 1
            here[far & same] = middle[far & same]
            there[far & ~same] = middle[far & ~same]
        changed = vendor(library, capability, there)[:, 0] != blocks
        moved[rows[changed]] = np.where(rng.random((len(rows), 1)) < 0.5, here, there)[changed]
        found[rows[changed]] = True
    return moved, found


def most_barriers(capability: str, version: tuple[int, int]) -> int:
    """Return the most barriers of a block to draw. The headers before 13.5 give an SM of 10.3 64
    barriers and later ones 32, which makes no difference with one barrier per block.
    """
    return 1 if capability == "10.3" and version < (13, 5) else 16


def compare(
    library: ctypes.CDLL, capability: str, count: int, seed: int, version: tuple[int, int]
) -> tuple[np.ndarray, np.ndarray, int]:
    """Return the launches whose answers differ in any column, how many each resource limits, and
    how many lie next to a limit.
    """
    launches = draw(capability, count, seed, most_barriers(capability, version))
    start = count * 49 // 100  # a few find no limit, and half should lie at one
    near, found = next_to_a_limit(library, capability, launches[start:], seed)
    launches[start:] = near
    theirs, mine = vendor(library, capability, launches), ours(capability, launches)
    # only the limit by barriers differs, not the number of blocks
    if most_barriers(capability, version) == 1:
        theirs[:, 5] = mine[:, 5]
    wrong = (theirs != mine).any(axis=1)
    limiting = (theirs[:, 1:7] == theirs[:, :1]).sum(axis=0)
    return launches[wrong], limiting, int(found.sum())


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--launches", type=int, default=1_000_000, help="for each compute capability"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--header", type=Path, help="another cuda_occupancy.h, of version 13.5 or later"
    )
    parser.add_argument("--quick", action="store_true", help="20,000 launches")
    args = parser.parse_args()
    count = 20_000 if args.quick else args.launches
    begin, wrong = time.perf_counter(), 0
    with tempfile.TemporaryDirectory() as folder:
        try:
            library = build(Path(folder), args.header)
            version = (13, 5) if args.header else header_version()
        except MissingError as missing:
            print(f"Not compared: {missing}.", file=sys.stderr)
            return 1
        print(
            "cuda_occupancy.h "
            f"{args.header or 'of nvidia-cuda-runtime ' + importlib.metadata.version('nvidia-cuda-runtime')}"
        )
        print(
            f"{'capability':10s} {'launches':>10s} {'at a limit':>10s} {'different':>9s}   limited "
            "by " + ", ".join(ANSWERS[1:7])
        )
        for capability in compute_capabilities():
            different, limiting, near = compare(library, capability, count, args.seed, version)
            wrong += len(different)
            shares = " ".join(f"{share:4.0%}" for share in limiting / count)
            print(
                f"{capability:10s} {count:10,d} {near:10,d} {len(different):9d}   {shares}",
                flush=True,
            )
            if most_barriers(capability, version) == 1:
                print(
                    "    with at most one barrier per block; the limit by barriers is not compared"
                )
            for row in different[:3]:
                print(f"    {dict(zip(COLUMNS, row.tolist(), strict=True))}")
    print(
        f"{wrong} of {count * len(compute_capabilities()):,} launches differ, "
        f"{time.perf_counter() - begin:.0f} s"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
