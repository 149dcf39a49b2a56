"""Occupancy of one launch, with the resource that limits it and what would lift the limit, and of a
range of launches.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpulab._given import flag, is_whole, word
from gpulab.errors import InputError, LaunchError, shown
from gpulab.evidence import Evidence
from gpulab.models._blocks import LIMITERS, UNLIMITED, occupancy_table
from gpulab.models._limits import (
    MAX_BARRIERS_PER_BLOCK,
    MAX_REGISTERS_PER_THREAD,
    MAX_THREADS_PER_BLOCK,
    SOURCE,
    WARP_THREADS,
    SmLimits,
    sm_limits,
)
from gpulab.models._remedies import explain, table_of
from gpulab.results import Result
from gpulab.units import plural

# The launch's arguments that can be swept; the first three are also those that the explanations
# look for remedies in.
AXES = (
    "threads_per_block",
    "registers_per_thread",
    "shared_bytes_per_block",
    "barriers_per_block",
    "carveout_percent",
)
_ASSUMPTIONS = (
    "the SM is full of blocks of this one kernel; the device's own partitioning (MIG, MPS) "
    "and clusters are left out"
)
_KNOWN_ERROR = (
    "no difference from NVIDIA's cuda_occupancy.h in 1,000,000 launches of each compute capability"
)
_MOST_SHARED = 2**30


@dataclass(frozen=True)
class BlockLimits(Result):
    """How many blocks each resource of an SM allows; None where it never limits this launch.

    Attributes
    ----------
    warps, registers, shared, blocks, barriers, virtual : int or None
    """

    warps: int | None
    registers: int | None
    shared: int | None
    blocks: int | None
    barriers: int | None
    virtual: int | None

    def by_resource(self) -> dict[str, int]:
        """Return the resources that limit at all, in the order of ``LIMITERS``."""
        return {name: allowed for name in LIMITERS if (allowed := getattr(self, name)) is not None}


@dataclass(frozen=True, repr=False)
class Occupancy(Result):
    """How a launch fills one SM.

    Attributes
    ----------
    threads_per_block, registers_per_thread, shared_bytes_per_block, barriers_per_block : int
        As passed to ``occupancy``.
    carveout_percent : int or None
    opt_in : bool
    virtual_resources : int
    allowed : BlockLimits
        Blocks that each resource allows.
    allocated_registers_per_block, allocated_shared_bytes_per_block : int
        With roundings, and the driver's share of shared memory.
    shared_bytes_per_sm : int
        The split of shared memory and L1 cache that holds for this launch.
    sm : SmLimits
    evidence : Evidence
        MODELLED.
    """

    threads_per_block: int
    registers_per_thread: int
    shared_bytes_per_block: int
    barriers_per_block: int
    carveout_percent: int | None
    opt_in: bool
    virtual_resources: int
    allowed: BlockLimits
    allocated_registers_per_block: int
    allocated_shared_bytes_per_block: int
    shared_bytes_per_sm: int
    sm: SmLimits
    evidence: Evidence

    @property
    def compute_capability(self) -> str:
        """Such as "9.0"."""
        return self.sm.compute_capability

    @property
    def blocks_per_sm(self) -> int:
        """Blocks resident at once on one SM; 0 where the launch is impossible."""
        return min(self.allowed.by_resource().values(), default=0)

    @property
    def warps_per_block(self) -> int:
        """Warps of one block: a partly filled warp counts as a whole one."""
        return math.ceil(self.threads_per_block / WARP_THREADS)

    @property
    def warps_per_sm(self) -> int:
        """Warps resident at once on one SM."""
        return self.blocks_per_sm * self.warps_per_block

    @property
    def ratio(self) -> float:
        """Resident warps over the SM's warp slots, 0 to 1."""
        return self.warps_per_sm / self.sm.warps

    @property
    def limiters(self) -> tuple[str, ...]:
        """Every resource that allows no more blocks; where there are several, relaxing only one
        does not help.
        """
        return tuple(
            name
            for name, allowed in self.allowed.by_resource().items()
            if allowed == self.blocks_per_sm
        )

    @property
    def limiter(self) -> str:
        """The resource that allows no more blocks: warps, registers, shared, blocks or barriers;
        the first of these where several do.

        ("virtual" where ``virtual_resources`` was given.)
        """
        return self.limiters[0] if self.limiters else LIMITERS[0]

    @property
    def explanation(self) -> str:
        """A few sentences: what limits, with the numbers, and the smallest change that would lift
        it.
        """
        return explain(self)

    def __repr__(self) -> str:
        return (
            f"<occupancy {self.ratio:.0%} on {self.compute_capability}: "
            f"{plural(self.blocks_per_sm, 'block')}, {self.warps_per_sm} of "
            f"{self.sm.warps} warps, limited by {self.limiter}>"
        )

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        """Return one row per resource: the blocks it allows and what a block takes of it."""
        allowed = self.allowed.by_resource()
        takes = {
            "warps": f"{self.warps_per_block} of {self.sm.warps}",
            "registers": f"{self.allocated_registers_per_block:,} of {self.sm.registers:,}",
            "shared": f"{self.allocated_shared_bytes_per_block:,} of {self.shared_bytes_per_sm:,} "
            "bytes",
            "blocks": f"1 of {self.sm.blocks}",
            "barriers": f"{self.barriers_per_block} of {self.sm.barriers}",
            "virtual": f"{self.virtual_resources} of {self.sm.virtual_resources}",
        }
        rows = [
            (name, takes[name], f"{blocks}{' (the limit)' if name in self.limiters else ''}")
            for name, blocks in allowed.items()
        ]
        rows.append(
            ("occupancy", f"{self.warps_per_sm} of {self.sm.warps} warps", f"{self.ratio:.1%}")
        )
        rows.append(("why", self.explanation, ""))
        return (f"one SM of {self.compute_capability}", "one block takes", "blocks allowed"), rows


def occupancy(
    threads_per_block: int,
    registers_per_thread: int,
    shared_bytes_per_block: int = 0,
    compute_capability: str = "9.0",
    *,
    barriers_per_block: int = 1,
    carveout_percent: int | None = None,
    opt_in: bool = True,
    virtual_resources: int = 0,
) -> Occupancy:
    """Return the share of an SM's warp slots that a launch can fill, and what limits it.

    Parameters
    ----------
    threads_per_block : int
        1 to 1024.
    registers_per_thread : int
        As the compiler reports them, 0 to 255.
    shared_bytes_per_block : int
        Static and dynamic together, without the 1,024 bytes that the driver adds from 8.0 on. More
        than the device has is not an error: no block fits.
    compute_capability : str
        Such as "9.0" or "sm_90"; ``compute_capabilities()`` lists them.
    barriers_per_block : int
        Named barriers that the kernel uses, 0 to 16; ``__syncthreads`` is one. They can limit from
        9.0 on.
    carveout_percent : int, optional
        The share of the SM's memory that the kernel prefers as shared memory, 0 to 100
        (``cudaFuncAttributePreferredSharedMemoryCarveout``); None leaves the largest split.
    opt_in : bool
        Whether the kernel may take more than 48 KiB
        (``cudaFuncAttributeMaxDynamicSharedMemorySize``).
    virtual_resources : int
        Per block, from 10.0 on; no public call of CUDA 13 reports how many a kernel uses.

    Returns
    -------
    Occupancy
        ``ratio`` in 0-1; ``limiter`` names the scarce resource, ``explanation`` says what would
        lift it.

    Raises
    ------
    LaunchError
        If the block or a thread's registers are larger than any device allows.
    InputError
        If an argument is not a whole number in its range, or the compute capability is not known.

    Notes
    -----
    Sources: CUDA Programming Guide 13.0, "Compute Capabilities", technical specifications; for the
    steps of allocation NVIDIA's ``cuda_occupancy.h`` (wheel ``nvidia-cuda-runtime``), with which
    ``benchmarks/occupancy_oracle.py`` compares it.

    Examples
    --------
    >>> o = occupancy(256, 64, 0, "9.0")
    >>> o.blocks_per_sm, o.warps_per_sm, o.ratio, o.limiter
    (4, 32, 0.5, 'registers')
    >>> o.explanation  # doctest: +NORMALIZE_WHITESPACE
    'The register file holds 32 warps of 64 registers per thread: 4 blocks. With at most 48
    registers per thread, 5 blocks fit (62.5 %).'
    """
    sm = sm_limits(compute_capability)
    threads = _whole("threads_per_block", threads_per_block, 1)
    registers = _whole("registers_per_thread", registers_per_thread, 0)
    if threads > MAX_THREADS_PER_BLOCK:
        raise LaunchError(
            f"occupancy: a block of {threads:,} threads; expected at most 1,024. Use more blocks "
            "of fewer threads."
        )
    if registers > MAX_REGISTERS_PER_THREAD:
        raise LaunchError(
            f"occupancy: {registers:,} registers per thread; expected at most 255. The compiler "
            "spills what does not fit."
        )
    shared = _whole("shared_bytes_per_block", shared_bytes_per_block, 0, _MOST_SHARED)
    barriers = _whole("barriers_per_block", barriers_per_block, 0, MAX_BARRIERS_PER_BLOCK)
    carveout = (
        None if carveout_percent is None else _whole("carveout_percent", carveout_percent, 0, 100)
    )
    virtual = _whole("virtual_resources", virtual_resources, 0, _MOST_SHARED)
    opted = flag("occupancy", "opt_in", opt_in)
    table = occupancy_table(
        threads,
        registers,
        shared,
        sm.compute_capability,
        barriers_per_block=barriers,
        carveout_percent=-1 if carveout is None else carveout,
        opt_in=opted,
        virtual_resources=virtual,
    )
    return Occupancy(
        threads,
        registers,
        shared,
        barriers,
        carveout,
        opted,
        virtual,
        allowed=BlockLimits(
            **{name: _or_none(blocks) for name, blocks in table.blocks_by_resource.items()}
        ),
        allocated_registers_per_block=int(table.registers_per_block),
        allocated_shared_bytes_per_block=int(table.shared_bytes_per_block),
        shared_bytes_per_sm=int(table.shared_bytes_per_sm),
        sm=sm,
        evidence=_evidence(),
    )


def _or_none(blocks: Any) -> int | None:
    return None if int(blocks) == UNLIMITED else int(blocks)


def _evidence() -> Evidence:
    return Evidence.modelled(_ASSUMPTIONS, SOURCE, _KNOWN_ERROR)


def _whole(name: str, value: Any, least: int, most: int | None = None) -> int:
    if not is_whole(value) or value < least or (most is not None and value > most):
        upper = f"{least} to {most:,}" if most is not None else f"{least}"
        raise InputError(
            f"occupancy: {name}={shown(value)}; expected a whole number from {upper}. Pass an int."
        )
    return int(value)


@dataclass(frozen=True, repr=False)
class OccupancySweep(Result):
    """The occupancy of launches that differ in one argument.

    Attributes
    ----------
    axis : str
        The argument that changes.
    values : tuple of int
    blocks_per_sm : tuple of int
    ratio : tuple of float
    limiter : tuple of str
        One for each value.
    launch : Occupancy
        The launch that provides all other arguments.
    evidence : Evidence
        MODELLED.
    """

    axis: str
    values: tuple[int, ...]
    blocks_per_sm: tuple[int, ...]
    ratio: tuple[float, ...]
    limiter: tuple[str, ...]
    launch: Occupancy
    evidence: Evidence

    def __repr__(self) -> str:
        return (
            f"<occupancy over {self.axis}, {len(self.values)} values, {min(self.ratio):.0%} "
            f"to {max(self.ratio):.0%}>"
        )

    def steps(self) -> tuple[int, ...]:
        """Return the indices at which the number of blocks differs from the one before: the cliffs
        of the curve.
        """
        return tuple(
            i
            for i in range(1, len(self.values))
            if self.blocks_per_sm[i] != self.blocks_per_sm[i - 1]
        )

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        """Return one row for the first value and one wherever the number of blocks changes."""
        headers = (self.axis, "blocks", "occupancy", "limited by")
        rows = [
            (
                f"{self.values[i]:,}",
                str(self.blocks_per_sm[i]),
                f"{self.ratio[i]:.1%}",
                self.limiter[i],
            )
            for i in sorted({0, *self.steps()})
        ]
        return headers, rows


def occupancy_sweep(
    launch: Occupancy, axis: str = "threads_per_block", values: Any = None
) -> OccupancySweep:
    """Return the occupancy as one argument of a launch changes and the others stay.

    Parameters
    ----------
    launch : Occupancy
        From ``occupancy``.
    axis : str
        "threads_per_block", "registers_per_thread", "shared_bytes_per_block", "barriers_per_block"
        or "carveout_percent".
    values : array_like of int, optional
        None takes all block sizes in steps of a warp, all register counts, shared memory in
        allocation steps, 0 to 16, or 0 to 100.

    Returns
    -------
    OccupancySweep

    Raises
    ------
    InputError
        If the launch is not an ``Occupancy``, the axis is not one of these, or a value is out of
        its range.

    Examples
    --------
    >>> occupancy_sweep(occupancy(256, 64), "registers_per_thread", [32, 64, 128]).ratio
    (1.0, 0.5, 0.25)
    """
    if not isinstance(launch, Occupancy):
        raise InputError(
            f"occupancy_sweep: launch is {shown(launch)}; expected an Occupancy. Call occupancy() "
            "first."
        )
    word("occupancy_sweep", "axis", axis, AXES)
    given = _usual_values(launch.sm, axis) if values is None else values
    table = table_of(launch, **{axis: given})
    tried = np.atleast_1d(np.asarray(given))
    if tried.ndim != 1 or not tried.size:
        raise InputError(
            f"occupancy_sweep: values has the shape {tried.shape}; expected a list of at least "
            "one. Pass whole numbers."
        )
    return OccupancySweep(
        axis=axis,
        values=tuple(tried.tolist()),
        blocks_per_sm=tuple(np.atleast_1d(table.blocks_per_sm).tolist()),
        ratio=tuple(np.atleast_1d(table.ratio).tolist()),
        limiter=tuple(np.atleast_1d(table.limiter).tolist()),
        launch=launch,
        evidence=launch.evidence,
    )


def _usual_values(sm: SmLimits, axis: str) -> np.ndarray:
    ranges = {
        "threads_per_block": (WARP_THREADS, MAX_THREADS_PER_BLOCK + WARP_THREADS, WARP_THREADS),
        "registers_per_thread": (0, MAX_REGISTERS_PER_THREAD + 1, 1),
        "shared_bytes_per_block": (
            0,
            sm.shared_bytes_per_block + sm.shared_step_bytes,
            sm.shared_step_bytes,
        ),
        "barriers_per_block": (0, MAX_BARRIERS_PER_BLOCK + 1, 1),
        "carveout_percent": (0, 101, 1),
    }
    return np.arange(*ranges[axis])
