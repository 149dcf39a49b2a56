"""Occupancy against the driver's own answer: 10,000 launches of kernels that differ in registers,
shared memory, barriers and bounds.

    python benchmarks/hardware_occupancy.py [--record FOLDER] [--launches 10000] [--seed 1]
    [--quick] [--committed]

The driver is asked through CuPy (cuOccupancyMaxActiveBlocksPerMultiprocessor) about compiled
kernels; nothing is launched. A second part also sets the preferred share of shared memory. CUDA
calls that share a hint, so these differences are recorded, but are no failures.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))
import _recorded

from gpulab import devices
from gpulab.evidence import Environment
from gpulab.models import occupancy_table
from gpulab.results import Result

LAUNCHES, CARVEOUT_LAUNCHES, KEPT = 10_000, 2_000, 50
_BARRIERS, _SHARED = (0, 1, 2, 5, 16), (0, 4, 1000, 4096, 20000, 49152)
_BOUNDS = (None, 128, 256, 512, 1024)


@dataclass(frozen=True)
class Variant:
    """The resources that a kernel is made to use; the compiler decides on the registers."""

    live: int
    shared: int
    barriers: int
    bound: int | None
    most_registers: int | None

    @property
    def source(self) -> str:
        """CUDA C++ of a kernel ``busy`` that keeps ``live`` floats alive, and synchronizes at
        ``barriers`` named barriers.
        """
        bounds = f"__launch_bounds__({self.bound})" if self.bound else ""
        static = f"__shared__ char tile[{self.shared}];" if self.shared else ""
        touch = (
            f"tile[threadIdx.x % {self.shared}] = n; x[n] += tile[(n + 1) % {self.shared}];"
            if self.shared
            else ""
        )
        # Named barriers, without a purpose in the kernel, which is never launched.
        meet = "".join(f'asm volatile("bar.sync {k};");' for k in range(self.barriers))
        return f"""
extern "C" __global__ void {bounds} busy(float* x, int n) {{
    {static}
    float kept[{self.live}];
    #pragma unroll
    for (int k = 0; k < {self.live}; k++) kept[k] = x[k * 256 + threadIdx.x];
    {touch}
    {meet}
    for (int turn = 0; turn < n; turn++) {{
        #pragma unroll
        for (int k = 0; k < {self.live}; k++) kept[k] = kept[k] * kept[(k + 1) % {self.live}] + x[turn];
    }}
    #pragma unroll
    for (int k = 0; k < {self.live}; k++) x[k * 256 + threadIdx.x] = kept[k];
}}
"""

    @property
    def options(self) -> tuple[str, ...]:
        """Options of the compiler."""
        return (f"--maxrregcount={self.most_registers}",) if self.most_registers else ()


def variants() -> tuple[Variant, ...]:
    """Return kernels from a dozen registers to 255, each with another mix of shared memory,
    barriers and bounds.
    """
    return tuple(
        Variant(
            live,
            _SHARED[k % len(_SHARED)],
            _BARRIERS[k % len(_BARRIERS)],
            _BOUNDS[k % len(_BOUNDS)] if k % 3 else None,
            (24, 40, 64, 96)[k % 4] if k % 4 == 3 else None,
        )
        for k, live in enumerate(range(2, 250, 5))
    )


@dataclass(frozen=True)
class FunctionRecord(Result):
    """A compiled kernel, as the driver describes it. ``barriers`` is the number in its source,
    since the driver does not report it.
    """

    registers: int
    shared_bytes: int
    max_threads: int
    barriers: int


class Driver(Protocol):
    """What ``compare`` asks: the real driver through CuPy, or a stand-in in a test."""

    functions: Sequence[FunctionRecord]
    most_shared: int

    def blocks(self, function: int, threads: int, dynamic_bytes: int, carveout: int) -> int:
        """Return the blocks of each SM; a carveout of -1 is no preference."""


class CupyDriver:
    """The driver of the first CUDA device, through CuPy."""

    def __init__(self) -> None:
        import cupy
        from cupy_backends.cuda.api import driver

        self._ask = driver.occupancyMaxActiveBlocksPerMultiprocessor
        self._kernels: list[Any] = []
        self.functions: list[FunctionRecord] = []
        cupy.cuda.Device(0).use()
        self.most_shared = int(cupy.cuda.Device(0).attributes["MaxSharedMemoryPerBlockOptin"])
        for variant in variants():
            kernel = cupy.RawModule(
                code=variant.source, options=("--std=c++17", *variant.options)
            ).get_function("busy")
            kernel.max_dynamic_shared_size_bytes = self.most_shared - kernel.shared_size_bytes
            self._kernels.append(kernel)
            self.functions.append(
                FunctionRecord(
                    kernel.num_regs,
                    kernel.shared_size_bytes,
                    kernel.max_threads_per_block,
                    variant.barriers,
                )
            )

    def blocks(self, function: int, threads: int, dynamic_bytes: int, carveout: int) -> int:
        """Ask the driver."""
        kernel = self._kernels[function]
        kernel.preferred_shared_memory_carveout = carveout
        return int(self._ask(kernel.kernel.ptr, threads, dynamic_bytes))


@dataclass(frozen=True)
class Difference(Result):
    """A launch that the driver and the model answer differently."""

    function: int
    threads: int
    dynamic_bytes: int
    carveout: int
    driver: int
    modelled: int


@dataclass(frozen=True)
class OccupancyRecord(Result):
    """The comparison on one GPU. The first ``KEPT`` differences of each part are kept; a person
    writes ``explanation``.
    """

    environment: Environment
    compute_capability: str
    seed: int
    functions: tuple[FunctionRecord, ...]
    launches: int
    different: int
    differences: tuple[Difference, ...]
    carveout_launches: int
    carveout_different: int
    carveout_differences: tuple[Difference, ...]
    explanation: str = ""


def draw(
    functions: Sequence[FunctionRecord], launches: int, most_shared: int, rng: np.random.Generator
) -> np.ndarray:
    """Return launches as rows of function, threads and dynamic bytes; every function occurs.

    Half of the blocks have whole warps, and half have no dynamic bytes. A quarter of the blocks is
    small, so that the number of blocks itself limits some launches. The other dynamic bytes are
    ``most_shared`` divided evenly among some number of blocks, give or take up to 1,200 bytes, so
    that many launches lie next to a limit.
    """
    which = np.concatenate([np.arange(len(functions)), rng.integers(0, len(functions), launches)])[
        :launches
    ]
    most_threads = np.array([f.max_threads for f in functions])[which]
    threads = rng.integers(
        1, np.where(rng.random(launches) < 0.25, np.minimum(96, most_threads), most_threads) + 1
    )
    threads = np.where(
        rng.random(launches) < 0.5, np.clip(threads // 32 * 32, 32, most_threads), threads
    )
    room = most_shared - np.array([f.shared_bytes for f in functions])[which]
    share = most_shared // rng.integers(1, 33, launches) + rng.integers(-1200, 1200, launches)
    dynamic = np.where(rng.random(launches) < 0.5, 0, np.clip(share, 0, room))
    return np.stack([which, threads, dynamic], axis=1)


def modelled(
    functions: Sequence[FunctionRecord],
    rows: np.ndarray,
    carveout: np.ndarray,
    compute_capability: str,
) -> np.ndarray:
    """Return the model's blocks for each SM."""
    registers, static, barriers = (
        np.array([getattr(f, name) for f in functions])[rows[:, 0]]
        for name in ("registers", "shared_bytes", "barriers")
    )
    table = occupancy_table(
        rows[:, 1],
        registers,
        static + rows[:, 2],
        compute_capability,
        barriers_per_block=barriers,
        carveout_percent=carveout,
    )
    return np.asarray(table.blocks_per_sm)


def differences(
    driver: Driver, rows: np.ndarray, carveout: np.ndarray, compute_capability: str
) -> tuple[Difference, ...]:
    """Ask driver and model about each launch; return the launches with different answers."""
    ours = modelled(driver.functions, rows, carveout, compute_capability)
    found = []
    for (function, threads, dynamic), share, blocks in zip(
        rows.tolist(), carveout.tolist(), ours.tolist(), strict=True
    ):
        theirs = driver.blocks(function, threads, dynamic, share)
        if theirs != blocks:
            found.append(Difference(function, threads, dynamic, share, theirs, blocks))
    return tuple(found)


def compare(
    driver: Driver,
    environment: Environment,
    compute_capability: str,
    launches: int = LAUNCHES,
    seed: int = 1,
) -> OccupancyRecord:
    """Compare launches without and with a preferred share of shared memory."""
    rng = np.random.default_rng(seed)
    hinted = max(1, launches * CARVEOUT_LAUNCHES // LAUNCHES)
    rows = draw(driver.functions, launches, driver.most_shared, rng)
    plain = differences(driver, rows, np.full(launches, -1), compute_capability)
    more = draw(driver.functions, hinted, driver.most_shared, rng)
    preferred = differences(driver, more, rng.integers(0, 101, hinted), compute_capability)
    return OccupancyRecord(
        environment,
        compute_capability,
        seed,
        tuple(driver.functions),
        launches,
        len(plain),
        plain[:KEPT],
        hinted,
        len(preferred),
        preferred[:KEPT],
    )


def problems(record: OccupancyRecord) -> list[str]:
    """Return what is wrong with a record that is to be committed, one sentence each."""
    found = []
    if record.launches < LAUNCHES:
        found.append(f"{record.launches:,} launches; expected at least {LAUNCHES:,}.")
    if len({f.registers for f in record.functions}) < 10:
        found.append("fewer than ten register counts; expected kernels that differ.")
    if record.different:
        found.append(f"{record.different:,} launches differ from the driver; expected none.")
    if record.carveout_different and len(record.explanation.split()) < 3:
        found.append(
            f"{record.carveout_different:,} launches with a preferred share differ; expected an "
            "explanation."
        )
    every = np.array(
        [
            [d.function, d.threads, d.dynamic_bytes]
            for d in (*record.differences, *record.carveout_differences)
        ]
    )
    if len(every):
        share = np.array([d.carveout for d in (*record.differences, *record.carveout_differences)])
        now = modelled(record.functions, every, share, record.compute_capability).tolist()
        if now != [d.modelled for d in (*record.differences, *record.carveout_differences)]:
            found.append(
                "the model now answers differently than when this was recorded; expected a new "
                "recording."
            )
    return found


def summary(record: OccupancyRecord) -> str:
    """Return the comparison as text, with the first launches that differ."""
    lines = [
        f"{record.launches:,} launches of {len(record.functions)} kernels on "
        f"{record.environment.device}: {record.different:,} differ.",
        f"With a preferred share of shared memory {record.carveout_different:,} of "
        f"{record.carveout_launches:,} differ.",
    ]
    first = (*record.differences[:5], *record.carveout_differences[:5])
    return "\n".join([*lines, *(f"    {one} {record.functions[one.function]}" for one in first)])


def main(arguments: list[str]) -> int:
    """Compare and report; return 1 where the driver answers differently, 0 otherwise (also where it
    was skipped).
    """
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--record", type=Path, help="folder for the JSON file")
    parser.add_argument("--launches", type=int, default=LAUNCHES)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="1,000 launches")
    parser.add_argument(
        "--committed", action="store_true", help="check the committed files; needs no GPU"
    )
    asked = parser.parse_args(arguments)
    if asked.committed:
        return _recorded.check("occupancy", OccupancyRecord, summary, problems)
    import torch

    if not torch.cuda.is_available():
        print("hardware_occupancy: skipped: torch sees no CUDA device; expected one.")
        return 0
    try:
        driver = CupyDriver()
    except ImportError as error:
        print(
            f"hardware_occupancy: skipped: CuPy cannot be imported ({error}); expected it. Install "
            "cupy-cuda13x or cupy-cuda12x."
        )
        return 0
    capability = ".".join(map(str, torch.cuda.get_device_capability(0)))
    environment = devices.environment("cuda:0", "python benchmarks/hardware_occupancy.py")
    record = compare(
        driver, environment, capability, 1000 if asked.quick else asked.launches, asked.seed
    )
    print(summary(record))
    if asked.record:
        print(
            f"Written to {_recorded.write(record, 'occupancy', environment.device, asked.record)}."
        )
    return int(record.different > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
