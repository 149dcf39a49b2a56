"""Occupancy: how many warps of a launch an SM holds, and which resource limits them.

The module has the limits of each compute capability. It computes the occupancy of whole arrays of
launches (in integer arithmetic), of one launch with an explanation, and of a sweep over one
argument. The rules are those that NVIDIA publishes in ``cuda_occupancy.h``;
``benchmarks/occupancy_oracle.py`` compares the two.

Sources
-------
- 7.5 and later: CUDA Programming Guide 13.0, "Compute Capabilities", table "Technical
  Specifications per Compute Capability"; the same figures are in NVIDIA's
  ``cuda/__device/arch_traits.h`` (CCCL 3.3), which alone has 8.8.
- 7.0, 7.2: the same table of the CUDA C++ Programming Guide 12.9, and its section "Compute
  Capability 7.x" (one block may take all 96 KB).
- Steps of allocation, partitions, the splits of shared memory and L1 cache, barriers, virtual
  resources: the comments and tables of ``cuda_occupancy.h`` in the wheel ``nvidia-cuda-runtime``
  13.5.37. It gives compute capability 10.3 32 barriers; version 13.0.96 gave it 64.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from gpulab._validate import arguments, instance, whole, word
from gpulab.errors import InputError, shown
from gpulab.evidence import Evidence
from gpulab.results import Result, Table
from gpulab.units import format_bytes, plural

WARP_THREADS = 32
MAX_THREADS_PER_BLOCK = 1024
MAX_REGISTERS_PER_THREAD = 255
MAX_BARRIERS_PER_BLOCK = 16  # PTX ISA, "bar": barriers 0 to 15
REGISTER_STEP = 256  # a warp's registers are rounded up to a multiple of this
PARTITIONS = 4  # a warp takes its registers from one of four equal parts of the file
SOURCE = (
    "CUDA Programming Guide 13.0, technical specifications per compute capability (7.0 and 7.2: "
    "12.9); allocation steps as in NVIDIA's cuda_occupancy.h 13.5"
)

_KIB = 1024
_DEFAULT_SHARED_BYTES = 48 * _KIB
_REGISTERS = 64 * 1024
_VIRTUAL_RESOURCES = 128

Integers = npt.NDArray[np.int64]
# Where several resources allow equally few blocks, the first of them in this order is reported.
# Warps come first, since a full SM is not a fault.
LIMITERS = ("warps", "registers", "shared", "blocks", "barriers", "virtual")
UNLIMITED = 2**31 - 1
# Above this the 32-bit arithmetic of NVIDIA's header and of the hardware would overflow.
_LARGEST = 2**30
# The arguments of a launch, which can be swept.
AXES = (
    "threads_per_block",
    "registers_per_thread",
    "shared_bytes_per_block",
    "barriers_per_block",
)
_ASSUMPTIONS = (
    "the SM is full of blocks of this one kernel; the device's own partitioning (MIG, MPS) and "
    "clusters are left out"
)
_KNOWN_ERROR = (
    "no difference from NVIDIA's cuda_occupancy.h in 1,000,000 launches of each compute capability"
)
_WORDS = {
    "warps": "warp slots",
    "registers": "registers",
    "shared": "shared memory",
    "blocks": "block slots",
    "barriers": "barriers",
}


@dataclass(frozen=True)
class SmLimits(Result):
    """The resources of one SM.

    Attributes
    ----------
    compute_capability : str
        Such as "9.0".
    warps, blocks : int
        Resident at once.
    registers : int
        32-bit registers of an SM; one block may use all of them.
    shared_bytes : int
        Shared memory of an SM at its largest split.
    shared_bytes_per_block : int
        The most that one block may request after opting in; 48 KiB without opting in.
    shared_reserved_bytes : int
        Bytes that the driver adds to each block's allocation for its own use.
    shared_step_bytes : int
        A block's shared memory is rounded up to a multiple of this.
    shared_splits_bytes : tuple of int
        The sizes that shared memory can be set to, ascending; the rest is L1 cache.
    barriers, virtual_resources : int or None
        The number that an SM has; None where the resource never limits.
    """

    compute_capability: str
    warps: int
    blocks: int
    registers: int
    shared_bytes: int
    shared_bytes_per_block: int
    shared_reserved_bytes: int
    shared_step_bytes: int
    shared_splits_bytes: tuple[int, ...]
    barriers: int | None
    virtual_resources: int | None


_SPLITS_TURING = (32, 64)
_SPLITS_VOLTA = (0, 8, 16, 32, 64, 96)
_SPLITS_SMALL = (0, 8, 16, 32, 64, 100)
_SPLITS_AMPERE = (*_SPLITS_SMALL, 132, 164)
_SPLITS_HOPPER = (*_SPLITS_AMPERE, 196, 228)

# Compute capability -> blocks, threads, splits of shared memory in KiB, barriers.
_SMS: Mapping[str, tuple[int, int, tuple[int, ...], int | None]] = {
    "7.0": (32, 2048, _SPLITS_VOLTA, None),
    "7.2": (32, 2048, _SPLITS_VOLTA, None),
    "7.5": (16, 1024, _SPLITS_TURING, None),
    "8.0": (32, 2048, _SPLITS_AMPERE, None),
    "8.6": (16, 1536, _SPLITS_SMALL, None),
    "8.7": (16, 1536, _SPLITS_AMPERE, None),
    "8.8": (16, 1536, _SPLITS_SMALL, None),
    "8.9": (24, 1536, _SPLITS_SMALL, None),
    "9.0": (32, 2048, _SPLITS_HOPPER, 64),
    "10.0": (32, 2048, _SPLITS_HOPPER, 64),
    "10.3": (32, 2048, _SPLITS_HOPPER, 32),
    "11.0": (24, 1536, _SPLITS_HOPPER, 24),
    "12.0": (24, 1536, _SPLITS_SMALL, 24),
    "12.1": (24, 1536, _SPLITS_SMALL, 24),
}


def _limits(capability: str) -> SmLimits:
    blocks, threads, splits, barriers = _SMS[capability]
    major = int(capability.partition(".")[0])
    reserved = _KIB if major >= 8 else 0
    return SmLimits(
        compute_capability=capability,
        warps=threads // WARP_THREADS,
        blocks=blocks,
        registers=_REGISTERS,
        shared_bytes=splits[-1] * _KIB,
        shared_bytes_per_block=splits[-1] * _KIB - reserved,
        shared_reserved_bytes=reserved,
        shared_step_bytes=128 if major >= 8 else 256,
        shared_splits_bytes=tuple(size * _KIB for size in splits),
        barriers=barriers,
        virtual_resources=_VIRTUAL_RESOURCES if major >= 10 else None,
    )


_LIMITS = {capability: _limits(capability) for capability in _SMS}


def compute_capabilities() -> tuple[str, ...]:
    """Return the compute capabilities that ``occupancy`` knows, ascending.

    Examples
    --------
    >>> compute_capabilities()[0], "9.0" in compute_capabilities()
    ('7.0', True)
    """
    return tuple(_LIMITS)


def sm_limits(compute_capability: Any = "9.0") -> SmLimits:
    """Return what one SM of a compute capability holds at most.

    Parameters
    ----------
    compute_capability : str
        Such as "9.0", or the compiler's name for it, such as "sm_90" or "sm_90a".

    Returns
    -------
    SmLimits

    Raises
    ------
    InputError
        If the compute capability is not one of ``compute_capabilities()``.

    Examples
    --------
    >>> sm_limits("sm_86").warps
    48
    """
    name = compute_capability if isinstance(compute_capability, str) else ""
    architecture = re.fullmatch(r"(?:sm|compute)_(\d+)(\d)[af]?", name)
    if architecture is not None:
        name = f"{architecture.group(1)}.{architecture.group(2)}"
    if name not in _LIMITS:
        raise InputError(
            f"sm_limits: compute_capability={shown(compute_capability)}; expected one of: "
            f"{', '.join(_LIMITS)}. "
            'Pass it as text, such as "9.0".'
        )
    return _LIMITS[name]


@dataclass(frozen=True)
class OccupancyTable:
    """The occupancy of many launches on one SM; every array has the broadcast shape of the
    arguments.

    Attributes
    ----------
    limits : SmLimits
    blocks_by_resource : mapping of str to ndarray of int64
        How many blocks each of ``LIMITERS`` allows; ``UNLIMITED`` where the resource does not
        limit.
    blocks_per_sm, warps_per_sm : ndarray of int64
        0 where the launch is impossible.
    ratio : ndarray of float64
        Warps over the SM's warp slots, 0 to 1.
    limiter : ndarray of str
        The resource that allows the fewest blocks; the first in ``LIMITERS`` where several do.
    registers_per_block, shared_bytes_per_block, shared_bytes_per_sm : ndarray of int64
        What is allocated to one block, rounded up and with the driver's share; and the split of
        shared memory that the launch runs with.
    """

    limits: SmLimits
    blocks_by_resource: Mapping[str, Integers]
    blocks_per_sm: Integers
    warps_per_sm: Integers
    ratio: npt.NDArray[np.float64]
    limiter: npt.NDArray[np.str_]
    registers_per_block: Integers
    shared_bytes_per_block: Integers
    shared_bytes_per_sm: Integers


def occupancy_table(
    threads_per_block: Any,
    registers_per_thread: Any,
    shared_bytes_per_block: Any = 0,
    compute_capability: str = "9.0",
    *,
    barriers_per_block: Any = 1,
    carveout_percent: Any = -1,
    opt_in: Any = True,
    virtual_resources: Any = 0,
) -> OccupancyTable:
    """Return the occupancy of many launches at once: the arguments are arrays of whole numbers that
    broadcast.

    Parameters
    ----------
    threads_per_block : array_like of int
        From 1. More than 1024 gives 0 blocks.
    registers_per_thread : array_like of int
        From 0. More than 255 gives 0 blocks.
    shared_bytes_per_block : array_like of int
        Static and dynamic together, without the driver's share.
    compute_capability : str
    barriers_per_block : array_like of int
        Named barriers in use; ``__syncthreads`` is one. They can limit from compute capability 9.0
        on.
    carveout_percent : array_like of int
        The share of the SM's memory preferred for shared memory, 0 to 100; -1 for the driver's
        choice.
    opt_in : array_like of bool
        Whether the kernel opts in to more than 48 KiB.
    virtual_resources : array_like of int
        Per block; they can limit from compute capability 10.0 on. No public call of CUDA 13 reports
        how many a kernel uses.

    Returns
    -------
    OccupancyTable

    Raises
    ------
    InputError
        If an argument is not an array of whole numbers, is out of range, or has a shape that does
        not broadcast with the others; or the compute capability is not known.

    Examples
    --------
    >>> occupancy_table([32, 256, 1024], 64, 0, "9.0").ratio
    array([0.5, 0.5, 0.5])
    """
    sm = sm_limits(compute_capability)
    given = {
        "threads_per_block": (threads_per_block, 1),
        "registers_per_thread": (registers_per_thread, 0),
        "shared_bytes_per_block": (shared_bytes_per_block, 0),
        "barriers_per_block": (barriers_per_block, 0),
        "carveout_percent": (carveout_percent, -1),
        "virtual_resources": (virtual_resources, 0),
    }
    arrays = [
        _whole_array(name, value, least, 100 if name == "carveout_percent" else _LARGEST)
        for name, (value, least) in given.items()
    ]
    opted = np.asarray(opt_in)
    if opted.dtype != np.bool_:
        raise InputError(
            f"occupancy_table: opt_in={shown(opt_in)}; expected True or False. Pass one of them, "
            "or an array of them."
        )
    try:
        threads, registers, shared, barriers, carveout, virtual, opted = np.broadcast_arrays(
            *arrays, opted
        )
    except ValueError as error:
        shapes = ", ".join(str(array.shape) for array in (*arrays, opted))
        raise InputError(
            f"occupancy_table: the arrays have the shapes {shapes}; expected shapes that "
            "broadcast. Reshape them."
        ) from error
    warps = -(-threads // WARP_THREADS)
    by_registers, registers_per_block = _register_blocks(sm, registers, warps)
    by_shared, shared_per_block, shared_per_sm = _shared_blocks(sm, shared, carveout, opted)
    limits = {
        "warps": np.where(threads > MAX_THREADS_PER_BLOCK, 0, sm.warps // warps),
        "registers": by_registers,
        "shared": by_shared,
        "blocks": np.full_like(warps, sm.blocks),
        "barriers": _shares(sm.barriers, barriers),
        "virtual": _shares(sm.virtual_resources, virtual),
    }
    stacked = np.stack([limits[name] for name in LIMITERS])
    blocks = stacked.min(axis=0)
    resident = blocks * warps
    return OccupancyTable(
        limits=sm,
        blocks_by_resource=limits,
        blocks_per_sm=blocks,
        warps_per_sm=resident,
        ratio=resident / sm.warps,
        limiter=np.array(LIMITERS)[stacked.argmin(axis=0)],
        registers_per_block=registers_per_block,
        shared_bytes_per_block=shared_per_block,
        shared_bytes_per_sm=shared_per_sm,
    )


def _whole_array(name: str, value: Any, least: int, most: int) -> Integers:
    try:
        array = np.asarray(value)
    except ValueError:  # a ragged list
        array = np.array(None)
    if array.dtype.kind not in "iu" or (
        array.size and not least <= int(array.min()) <= int(array.max()) <= most
    ):
        raise InputError(
            f"occupancy_table: {name}={shown(value)}; expected whole numbers from {least} to "
            f"{most:,}. Pass an int or an array of them."
        )
    return array.astype(np.int64, copy=False)


def _round_up(value: Integers, step: int) -> Integers:
    return -(-value // step) * step


def _register_blocks(
    sm: SmLimits, registers: Integers, warps: Integers
) -> tuple[Integers, Integers]:
    """Return the blocks that the register file holds, and the registers of one block."""
    per_warp = _round_up(registers * WARP_THREADS, REGISTER_STEP)
    # The check whether a single block fits rounds its warps up to a multiple of the partitions, so
    # 5 warps need as many registers as 8.
    checked = per_warp * _round_up(warps, PARTITIONS)
    impossible = (checked > sm.registers) | (registers > MAX_REGISTERS_PER_THREAD)
    resident_warps = sm.registers // PARTITIONS // np.maximum(per_warp, 1) * PARTITIONS
    blocks = np.where(impossible, 0, np.where(per_warp > 0, resident_warps // warps, UNLIMITED))
    return blocks, per_warp * warps


def _shared_blocks(
    sm: SmLimits, shared: Integers, carveout: Integers, opted: Any
) -> tuple[Integers, Integers, Integers]:
    """Return the blocks that shared memory holds, the bytes of one block, and the split of shared
    memory that they run with.
    """
    per_block = _round_up(shared + sm.shared_reserved_bytes, sm.shared_step_bytes)
    most = (
        np.where(opted, sm.shared_bytes_per_block, _DEFAULT_SHARED_BYTES) + sm.shared_reserved_bytes
    )
    splits = np.array(sm.shared_splits_bytes)

    def next_split(wanted: Integers) -> Integers:
        sizes: Integers = splits[np.minimum(np.searchsorted(splits, wanted), len(splits) - 1)]
        return sizes

    preferred = next_split(
        np.where(carveout < 0, sm.shared_bytes, carveout * sm.shared_bytes // 100)
    )
    # If the preferred split is too small for one block, the smallest split that holds a block
    # replaces it.
    per_sm = np.where(preferred >= per_block, preferred, next_split(per_block))
    return np.where(per_block > most, 0, _shares(per_sm, per_block)), per_block, per_sm


def _shares(available: int | Integers | None, used: Integers) -> Integers:
    """Return how many blocks a resource of the SM is enough for; ``UNLIMITED`` where the SM has no
    such limit or a block uses none of the resource.
    """
    if available is None:
        return np.full_like(used, UNLIMITED)
    return np.where(used > 0, available // np.maximum(used, 1), UNLIMITED)


@dataclass(frozen=True, repr=False)
class Occupancy(Result):
    """How a launch fills one SM.

    Attributes
    ----------
    threads_per_block, registers_per_thread, shared_bytes_per_block, barriers_per_block : int
        As passed to ``occupancy``.
    allowed : mapping of str to int
        Blocks that each resource allows, in the order of ``LIMITERS``; resources that set no limit
        are left out.
    allocated_registers_per_block, allocated_shared_bytes_per_block : int
        Rounded up, and with the driver's share of shared memory.
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
    allowed: Mapping[str, int]
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
        return min(self.allowed.values(), default=0)

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
        """Every resource that allows no more than ``blocks_per_sm``. Where there are several,
        relaxing only one of them does not help.
        """
        return tuple(name for name, blocks in self.allowed.items() if blocks == self.blocks_per_sm)

    @property
    def limiter(self) -> str:
        """The first of ``limiters``: warps, registers, shared, blocks or barriers."""
        return self.limiters[0] if self.limiters else LIMITERS[0]

    @property
    def explanation(self) -> str:
        """A few sentences: the resource that limits the launch, with the numbers, and the smallest
        change that would allow more warps.
        """
        lanes = self.threads_per_block % WARP_THREADS
        idle = f" The last warp of each block uses {lanes} of its 32 lanes." if lanes else ""
        if self.ratio >= 1.0:
            return f"All {self.sm.warps} warp slots are taken: no launch can hold more.{idle}"
        first = _cause(self)
        others = [_WORDS[name] for name in self.limiters[1:]]
        if others and self.blocks_per_sm:
            # "shared memory" is the only resource in the singular
            allow = "allows" if others == [_WORDS["shared"]] else "allow"
            first += f" The {' and '.join(others)} {allow} no more either."
        return f"{first} {_remedy(self)}{idle}"

    def __repr__(self) -> str:
        return (
            f"<occupancy {self.ratio:.0%} on {self.compute_capability}: "
            f"{plural(self.blocks_per_sm, 'block')}, {self.warps_per_sm} of {self.sm.warps} warps, "
            f"limited by {self.limiter}>"
        )

    def table(self) -> Table:
        """Return one row per resource: the blocks it allows and what a block takes of it."""
        takes = {
            "warps": f"{self.warps_per_block} of {self.sm.warps}",
            "registers": f"{self.allocated_registers_per_block:,} of {self.sm.registers:,}",
            "shared": f"{self.allocated_shared_bytes_per_block:,} of {self.shared_bytes_per_sm:,} "
            "bytes",
            "blocks": f"1 of {self.sm.blocks}",
            "barriers": f"{self.barriers_per_block} of {self.sm.barriers}",
        }
        rows = [
            (name, takes[name], f"{blocks}{' (the limit)' if name in self.limiters else ''}")
            for name, blocks in self.allowed.items()
        ]
        rows += [
            ("occupancy", f"{self.warps_per_sm} of {self.sm.warps} warps", f"{self.ratio:.1%}"),
            ("why", self.explanation, ""),
        ]
        return (f"one SM of {self.compute_capability}", "one block takes", "blocks allowed"), rows


@arguments(
    threads_per_block=partial(
        whole, low=1, high=MAX_THREADS_PER_BLOCK, advice="Use more blocks of fewer threads."
    ),
    registers_per_thread=partial(
        whole,
        low=0,
        high=MAX_REGISTERS_PER_THREAD,
        advice="Pass the number that the compiler reports.",
    ),
    shared_bytes_per_block=partial(whole, low=0, high=_LARGEST),
    barriers_per_block=partial(whole, low=0, high=MAX_BARRIERS_PER_BLOCK),
)
def occupancy(
    threads_per_block: int,
    registers_per_thread: int,
    shared_bytes_per_block: int = 0,
    compute_capability: str = "9.0",
    *,
    barriers_per_block: int = 1,
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
        than an SM has is not an error: the result is 0 blocks.
    compute_capability : str
        Such as "9.0" or "sm_90"; ``compute_capabilities()`` lists them.
    barriers_per_block : int
        Named barriers that the kernel uses, 0 to 16; ``__syncthreads`` is one. They can limit from
        9.0 on.

    Returns
    -------
    Occupancy
        ``ratio`` in 0-1; ``limiter`` names the scarce resource, ``explanation`` says which change
        would allow more warps.

    Raises
    ------
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
    >>> o.explanation.partition(": ")[2]
    '4 blocks. With at most 48 registers per thread, 5 blocks fit (62.5 %).'
    """
    sm = sm_limits(compute_capability)
    launch = threads_per_block, registers_per_thread, shared_bytes_per_block
    table = occupancy_table(*launch, sm.compute_capability, barriers_per_block=barriers_per_block)
    return Occupancy(
        *launch,
        barriers_per_block,
        allowed={
            name: int(blocks)
            for name, blocks in table.blocks_by_resource.items()
            if blocks != UNLIMITED
        },
        allocated_registers_per_block=int(table.registers_per_block),
        allocated_shared_bytes_per_block=int(table.shared_bytes_per_block),
        shared_bytes_per_sm=int(table.shared_bytes_per_sm),
        sm=sm,
        evidence=Evidence.modelled(_ASSUMPTIONS, SOURCE, _KNOWN_ERROR),
    )


@arguments(
    launch=partial(instance, kind=Occupancy, expected="an Occupancy. Call occupancy() first.")
)
def occupancy_sweep(
    launch: Occupancy, axis: str = "threads_per_block", values: Any = None
) -> tuple[Integers, OccupancyTable]:
    """Return the occupancy as one argument of a launch changes and the others stay.

    Parameters
    ----------
    launch : Occupancy
        From ``occupancy``.
    axis : str
        "threads_per_block", "registers_per_thread", "shared_bytes_per_block" or
        "barriers_per_block".
    values : array_like of int, optional
        None takes every value of the axis: block sizes in steps of a warp, all register counts,
        shared memory in allocation steps, or 0 to 16 barriers.

    Returns
    -------
    (ndarray of int64, OccupancyTable)
        The values, and the table with a launch for each of them.

    Raises
    ------
    InputError
        If the launch is not an ``Occupancy``, the axis is not one of these, or a value is out of
        its range.

    Examples
    --------
    >>> occupancy_sweep(occupancy(256, 64), "registers_per_thread", [32, 64, 128])[1].ratio
    array([1.  , 0.5 , 0.25])
    """
    sm = launch.sm
    ranges = {
        "threads_per_block": (WARP_THREADS, MAX_THREADS_PER_BLOCK + WARP_THREADS, WARP_THREADS),
        "registers_per_thread": (0, MAX_REGISTERS_PER_THREAD + 1, 1),
        "shared_bytes_per_block": (
            0,
            sm.shared_bytes_per_block + sm.shared_step_bytes,
            sm.shared_step_bytes,
        ),
        "barriers_per_block": (0, MAX_BARRIERS_PER_BLOCK + 1, 1),
    }
    usual = np.arange(*ranges[word("occupancy_sweep", "axis", axis, AXES)])
    tried = usual if values is None else _whole_array(axis, values, 0, _LARGEST)
    return tried, table_of(launch, **{axis: tried})


def table_of(launch: Occupancy, **changed: Any) -> OccupancyTable:
    """Return the table of a launch with some of its arguments changed."""
    arguments = {name: getattr(launch, name) for name in AXES} | changed
    return occupancy_table(compute_capability=launch.compute_capability, **arguments)


def _cause(launch: Occupancy) -> str:
    """Return what the limiting resource holds, with the numbers."""
    sm, blocks = launch.sm, plural(launch.blocks_per_sm, "block")
    warps = plural(launch.warps_per_block, "warp")
    slots = f"fill{'s' if launch.blocks_per_sm == 1 else ''} {launch.warps_per_sm} of {sm.warps}"
    return {
        "warps": f"A block has {warps}: {blocks} {slots} warp slots, and one more does not fit.",
        "registers": _register_cause(launch, blocks),
        "shared": _shared_cause(launch, blocks),
        "blocks": f"An SM takes at most {sm.blocks} blocks, and {launch.blocks_per_sm} of {warps} "
        f"each {slots} warp slots.",
        "barriers": f"An SM has {sm.barriers} barriers, enough for {blocks} of "
        f"{plural(launch.barriers_per_block, 'barrier')} each.",
    }[launch.limiter]


def _register_cause(launch: Occupancy, blocks: str) -> str:
    registers = launch.registers_per_thread
    per_warp = math.ceil(max(registers, 1) * WARP_THREADS / REGISTER_STEP) * REGISTER_STEP
    warps = launch.sm.registers // PARTITIONS // per_warp * PARTITIONS
    held = f"The register file holds {plural(warps, 'warp')} of {registers} registers per thread"
    if launch.blocks_per_sm:
        return f"{held}: {blocks}."
    needed = math.ceil(launch.warps_per_block / PARTITIONS) * PARTITIONS
    return f"{held}, fewer than the {needed} that one block needs: it cannot be launched."


def _shared_cause(launch: Occupancy, blocks: str) -> str:
    sm, asked = launch.sm, format_bytes(launch.shared_bytes_per_block)
    if launch.blocks_per_sm:
        reserved = sm.shared_reserved_bytes
        driver = f" ({reserved:,} for the driver)" if reserved else ""
        return (
            f"Shared memory of {format_bytes(launch.shared_bytes_per_sm)} holds {blocks} of "
            f"{launch.allocated_shared_bytes_per_block:,} bytes{driver}."
        )
    return (
        f"A block requests {asked} of shared memory; compute capability {sm.compute_capability} "
        f"allows it at most {format_bytes(sm.shared_bytes_per_block)}: it cannot be launched."
    )


def _shared_sizes(launch: Occupancy) -> np.ndarray:
    """Return the largest request that each allocation step holds, up to the launch's own
    request.
    """
    sm = launch.sm
    most = min(launch.shared_bytes_per_block, sm.shared_bytes)
    steps = np.arange(0, most + sm.shared_reserved_bytes + 1, sm.shared_step_bytes)
    sizes = steps - sm.shared_reserved_bytes
    return sizes[sizes >= 0]


# A change that may raise the occupancy: the argument, the values to try, and the words that begin
# its sentence.
_Remedy = tuple[str, Callable[["Occupancy"], np.ndarray], Callable[[int], str]]
_BLOCK: _Remedy = (
    "threads_per_block",
    lambda launch: np.arange(WARP_THREADS, MAX_THREADS_PER_BLOCK + 1, WARP_THREADS),
    lambda value: f"With {value} threads per block",
)
_REMEDIES: dict[str, _Remedy] = {
    "registers": (
        "registers_per_thread",
        lambda launch: np.arange(launch.registers_per_thread),
        lambda value: f"With at most {value} registers per thread",
    ),
    "shared": (
        "shared_bytes_per_block",
        _shared_sizes,
        lambda value: f"With at most {value:,} bytes of shared memory per block",
    ),
    "barriers": (
        "barriers_per_block",
        lambda launch: np.arange(launch.barriers_per_block),
        lambda value: f"With at most {plural(value, 'barrier')} per block",
    ),
}


def _remedy(launch: Occupancy) -> str:
    """Return the smallest single change that would allow more warps.

    The function tries every value of an argument and reports the nearest that helps; it uses no
    rule of thumb.
    """
    for name, candidates, words in (_REMEDIES.get(launch.limiter, _BLOCK), _BLOCK):
        values = candidates(launch)
        table = table_of(launch, **{name: values})
        better = np.flatnonzero(table.warps_per_sm > launch.warps_per_sm)
        if better.size:
            distance = np.abs(values[better].astype(int) - int(getattr(launch, name)))
            index = int(better[distance.argmin()])
            blocks = int(table.blocks_per_sm[index])
            fit = "fits" if blocks == 1 else "fit"
            return (
                f"{words(int(values[index]))}, {plural(blocks, 'block')} {fit} "
                f"({100 * table.ratio[index]:.3g} %)."
            )
    return "No single change of the block, its registers or its shared memory allows more warps."
