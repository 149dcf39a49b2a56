"""Why a launch does not fill its SM, in words, and the smallest single change that would allow more
warps.

Remedies are not rules of thumb: every value of an argument is tried, and the nearest one that helps
is reported.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from gpulab.models._blocks import LIMITERS, OccupancyTable, occupancy_table
from gpulab.models._limits import MAX_THREADS_PER_BLOCK, PARTITIONS, REGISTER_STEP, WARP_THREADS
from gpulab.units import format_bytes, plural

if TYPE_CHECKING:
    from gpulab.models._occupancy import Occupancy

_ARGUMENTS = (
    "threads_per_block",
    "registers_per_thread",
    "shared_bytes_per_block",
    "barriers_per_block",
    "carveout_percent",
    "opt_in",
    "virtual_resources",
)
_WORDS = {
    "warps": "warp slots",
    "registers": "registers",
    "shared": "shared memory",
    "blocks": "block slots",
    "barriers": "barriers",
    "virtual": "virtual resources",
}


def table_of(launch: Occupancy, **changed: Any) -> OccupancyTable:
    """Return the table of a launch with some of its arguments changed."""
    arguments = {name: getattr(launch, name) for name in _ARGUMENTS} | changed
    if arguments["carveout_percent"] is None:
        arguments["carveout_percent"] = -1
    return occupancy_table(compute_capability=launch.compute_capability, **arguments)


def explain(launch: Occupancy) -> str:
    """Return a few sentences: what limits the launch, with the numbers, and what would lift it."""
    lanes = launch.threads_per_block % WARP_THREADS
    idle = f" The last warp of each block uses {lanes} of its 32 lanes." if lanes else ""
    if launch.ratio >= 1.0:
        return f"All {launch.sm.warps} warp slots are taken: no launch can hold more.{idle}"
    first = _CAUSES[launch.limiter](launch)
    others = [_WORDS[name] for name in launch.limiters[1:]]
    if others and launch.blocks_per_sm:
        # the one word that is no plural
        allow = "allows" if others == [_WORDS["shared"]] else "allow"
        first += f" The {' and '.join(others)} {allow} no more either."
    return f"{first} {_remedy(launch)}{idle}"


def _warps(launch: Occupancy) -> str:
    fill = "fills" if launch.blocks_per_sm == 1 else "fill"
    return (
        f"A block has {plural(launch.warps_per_block, 'warp')}: "
        f"{plural(launch.blocks_per_sm, 'block')} {fill} {launch.warps_per_sm} of "
        f"{launch.sm.warps} warp slots, and one more does not fit."
    )


def _registers(launch: Occupancy) -> str:
    registers, sm = launch.registers_per_thread, launch.sm
    per_warp = math.ceil(registers * WARP_THREADS / REGISTER_STEP) * REGISTER_STEP
    warps = sm.registers // PARTITIONS // per_warp * PARTITIONS
    if launch.blocks_per_sm == 0:
        return (
            f"The register file holds {plural(warps, 'warp')} of {registers} registers per thread, "
            "fewer than the "
            f"{math.ceil(launch.warps_per_block / PARTITIONS) * PARTITIONS} that one block needs: "
            "it can't be launched."
        )
    held = f"{plural(warps, 'warp')} of {registers} registers per thread"
    return f"The register file holds {held}: {plural(launch.blocks_per_sm, 'block')}."


def _shared(launch: Occupancy) -> str:
    sm = launch.sm
    if launch.blocks_per_sm == 0:
        asked = format_bytes(launch.shared_bytes_per_block)
        if not launch.opt_in and launch.shared_bytes_per_block <= sm.shared_bytes_per_block:
            return (
                f"A block asks for {asked} of shared memory, and more than 48 KiB requires "
                "opt_in=True: it can't be launched."
            )
        return (
            f"A block asks for {asked} of shared memory; {sm.compute_capability} gives a block at "
            "most "
            f"{format_bytes(sm.shared_bytes_per_block)}: it can't be launched."
        )
    driver = f" ({sm.shared_reserved_bytes:,} for the driver)" if sm.shared_reserved_bytes else ""
    return (
        f"Shared memory of {format_bytes(launch.shared_bytes_per_sm)} holds "
        f"{plural(launch.blocks_per_sm, 'block')} of "
        f"{launch.allocated_shared_bytes_per_block:,} bytes{driver}."
    )


def _blocks(launch: Occupancy) -> str:
    warps = (
        f"{plural(launch.warps_per_block, 'warp')} each fill {launch.warps_per_sm} of "
        f"{launch.sm.warps} warp slots"
    )
    return f"An SM takes at most {launch.sm.blocks} blocks, and {launch.blocks_per_sm} of {warps}."


def _barriers(launch: Occupancy) -> str:
    used = plural(launch.barriers_per_block, "barrier")
    return (
        f"An SM has {launch.sm.barriers} barriers, enough for "
        f"{plural(launch.blocks_per_sm, 'block')} of {used} each."
    )


def _virtual(launch: Occupancy) -> str:
    asked = launch.virtual_resources
    return (
        f"An SM has {launch.sm.virtual_resources} virtual resources, for "
        f"{plural(launch.blocks_per_sm, 'block')} of {asked:,} each."
    )


_CAUSES: dict[str, Callable[[Occupancy], str]] = dict(
    zip(LIMITERS, (_warps, _registers, _shared, _blocks, _barriers, _virtual), strict=True)
)


def _remedy(launch: Occupancy) -> str:
    tries: dict[str, tuple[Callable[[Occupancy], str | None], ...]] = {
        "warps": (_other_block,),
        "registers": (_fewer_registers, _other_block),
        "shared": (_opting_in, _no_carveout, _less_shared, _other_block),
        "blocks": (_other_block,),
        "barriers": (_fewer_barriers, _other_block),
        "virtual": (_other_block,),
    }
    for attempt in tries[launch.limiter]:
        found = attempt(launch)
        if found is not None:
            return found
    return "No single change of the block, its registers or its shared memory allows more warps."


def _gain(table: OccupancyTable, index: int) -> str:
    blocks = int(table.blocks_per_sm[index])
    return (
        f"{plural(blocks, 'block')} {'fits' if blocks == 1 else 'fit'} "
        f"({100 * table.ratio[index]:.3g} %)."
    )


def _nearest(
    launch: Occupancy, name: str, values: np.ndarray
) -> tuple[int, OccupancyTable, int] | None:
    """The value nearest to the launch's own at which more warps are resident, with the table and
    its index there.
    """
    if not values.size:
        return None
    table = table_of(launch, **{name: values})
    better = np.flatnonzero(table.warps_per_sm > launch.warps_per_sm)
    if not better.size:
        return None
    index = int(better[np.abs(values[better] - getattr(launch, name)).argmin()])
    return int(values[index]), table, index


def _fewer_registers(launch: Occupancy) -> str | None:
    found = _nearest(launch, "registers_per_thread", np.arange(launch.registers_per_thread))
    return (
        None
        if found is None
        else f"With at most {found[0]} registers per thread, {_gain(found[1], found[2])}"
    )


def _less_shared(launch: Occupancy) -> str | None:
    """The largest sizes of each allocation step below the launch's own."""
    sm = launch.sm
    most = min(launch.shared_bytes_per_block, sm.shared_bytes)
    sizes = (
        np.arange(0, most + sm.shared_reserved_bytes + 1, sm.shared_step_bytes)
        - sm.shared_reserved_bytes
    )
    found = _nearest(launch, "shared_bytes_per_block", sizes[sizes >= 0])
    return (
        None
        if found is None
        else f"With at most {found[0]:,} bytes of shared memory per block, "
        f"{_gain(found[1], found[2])}"
    )


def _opting_in(launch: Occupancy) -> str | None:
    if launch.opt_in:
        return None
    table = table_of(launch, opt_in=np.array([True]))
    return (
        f"With opt_in=True, {_gain(table, 0)}"
        if table.warps_per_sm[0] > launch.warps_per_sm
        else None
    )


def _no_carveout(launch: Occupancy) -> str | None:
    if launch.carveout_percent is None:
        return None
    found = _nearest(launch, "carveout_percent", np.arange(launch.carveout_percent + 1, 101))
    return (
        None if found is None else f"With a carve-out of {found[0]} %, {_gain(found[1], found[2])}"
    )


def _fewer_barriers(launch: Occupancy) -> str | None:
    found = _nearest(launch, "barriers_per_block", np.arange(launch.barriers_per_block))
    return (
        None
        if found is None
        else f"With at most {plural(found[0], 'barrier')} per block, {_gain(found[1], found[2])}"
    )


def _other_block(launch: Occupancy) -> str | None:
    found = _nearest(
        launch,
        "threads_per_block",
        np.arange(WARP_THREADS, MAX_THREADS_PER_BLOCK + WARP_THREADS, WARP_THREADS),
    )
    return (
        None if found is None else f"With {found[0]} threads per block, {_gain(found[1], found[2])}"
    )
