"""How many blocks each resource of an SM allows: whole arrays of launches at once, in integers.

The rules are those that NVIDIA publishes in ``cuda_occupancy.h``;
``benchmarks/occupancy_oracle.py`` compares the two.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gpulab.errors import InputError, shown
from gpulab.models._limits import (
    _DEFAULT_SHARED_BYTES,
    MAX_REGISTERS_PER_THREAD,
    MAX_THREADS_PER_BLOCK,
    PARTITIONS,
    REGISTER_STEP,
    WARP_THREADS,
    SmLimits,
    sm_limits,
)

Integers = npt.NDArray[np.int64]

# Where two resources allow equally few blocks, the first of them is named: warps first, since a
# full SM is no fault.
LIMITERS = ("warps", "registers", "shared", "blocks", "barriers", "virtual")
UNLIMITED = 2**31 - 1
# Beyond it 32-bit arithmetic, the vendor's and the hardware's, would overflow.
_LARGEST = 2**30


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
    limiter_index : ndarray of int64
        Into ``LIMITERS``: the first resource that allows no more blocks.
    registers_per_block, shared_bytes_per_block, shared_bytes_per_sm : ndarray of int64
        Allocated, with roundings and the driver's share; and the split of shared memory that holds
        for the launch.
    """

    limits: SmLimits
    blocks_by_resource: Mapping[str, Integers]
    blocks_per_sm: Integers
    warps_per_sm: Integers
    ratio: npt.NDArray[np.float64]
    limiter_index: Integers
    registers_per_block: Integers
    shared_bytes_per_block: Integers
    shared_bytes_per_sm: Integers

    @property
    def limiter(self) -> npt.NDArray[np.str_]:
        """The limiting resource of each launch, in words."""
        return np.array(LIMITERS)[self.limiter_index]


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
        Named barriers in use; ``__syncthreads`` is one. They count from 9.0 on.
    carveout_percent : array_like of int
        The share of the SM's memory preferred for shared memory, 0 to 100; -1 for the driver's
        choice.
    opt_in : array_like of bool
        Whether the kernel opts in to more than 48 KiB.
    virtual_resources : array_like of int
        Per block, from 10.0 on. No public call of CUDA 13 reports how many a kernel uses.

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
        _whole(name, value, least, 100 if name == "carveout_percent" else _LARGEST)
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
        shapes = ", ".join(str(array.shape) for array in arrays)
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
        limiter_index=stacked.argmin(axis=0),
        registers_per_block=registers_per_block,
        shared_bytes_per_block=shared_per_block,
        shared_bytes_per_sm=shared_per_sm,
    )


def _whole(name: str, value: Any, least: int, most: int) -> Integers:
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
    """Blocks that the register file holds, and the registers of one block."""
    per_warp = _round_up(registers * WARP_THREADS, REGISTER_STEP)
    # The check of one block takes its warps for a multiple of the partitions, so 5 warps must fit
    # as 8.
    checked = per_warp * _round_up(warps, PARTITIONS)
    impossible = (checked > sm.registers) | (registers > MAX_REGISTERS_PER_THREAD)
    resident_warps = sm.registers // PARTITIONS // np.maximum(per_warp, 1) * PARTITIONS
    blocks = np.where(impossible, 0, np.where(per_warp > 0, resident_warps // warps, UNLIMITED))
    return blocks, per_warp * warps


def _shared_blocks(
    sm: SmLimits, shared: Integers, carveout: Integers, opted: Any
) -> tuple[Integers, Integers, Integers]:
    """Blocks that shared memory holds, the bytes of one block, and the split that holds for
    them.
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
    # A preference too small for one block gives way to the smallest split that holds one.
    per_sm = np.where(preferred >= per_block, preferred, next_split(per_block))
    blocks = np.where(
        per_block > most, 0, np.where(per_block > 0, per_sm // np.maximum(per_block, 1), UNLIMITED)
    )
    return blocks, per_block, per_sm


def _shares(available: int | None, used: Integers) -> Integers:
    """Blocks that share out what the SM has; unlimited where it has no such limit or the block uses
    none.
    """
    if available is None:
        return np.full_like(used, UNLIMITED)
    return np.where(used > 0, available // np.maximum(used, 1), UNLIMITED)
