"""What the lanes of a warp do together: shuffles, votes, ``syncwarp``; and the votes of a block."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from gpulab.kernels._simulate import _types
from gpulab.kernels._simulate._geometry import WARP, Mask, lane_bits
from gpulab.kernels._simulate._machine import Machine

_ALL = 0xFFFFFFFF


def by_warp(machine: Machine, value: Any) -> np.ndarray:
    """Return a value as an array of shape (B or 1, warps, 32)."""
    batch = machine.batch
    array = np.atleast_2d(value)
    return np.broadcast_to(array, (array.shape[0], batch.width)).reshape(
        array.shape[0], batch.warps, WARP
    )


def of_warps(machine: Machine, value: np.ndarray) -> np.ndarray:
    """Return a value of each warp, shape (B or 1, warps), as one of each lane."""
    return np.repeat(value, WARP, axis=1)


def _active(machine: Machine, mask: Mask) -> np.ndarray:
    if mask.array is None:
        return np.ones((1, machine.batch.warps, WARP), dtype=bool)
    return by_warp(machine, mask.array)


def shuffle(
    machine: Machine, kind: str, members: Any, value: Any, lane: Any, mask: Mask, line: int
) -> Any:
    """Return the value of another lane; a lane that takes no part has none to give, which is a
    finding.
    """
    lanes = np.arange(WARP)
    # its low five bits alone. Source: PTX ISA, shfl.sync, "bval = b[4:0]"
    given = by_warp(machine, lane).astype(np.int64) & (WARP - 1)
    values = by_warp(machine, value)
    if kind == "":
        source = given
    elif kind == "_up":
        source = np.where(lanes - given < 0, lanes, lanes - given)
    elif kind == "_down":
        source = np.where(lanes + given > WARP - 1, lanes, lanes + given)
    else:
        source = lanes ^ given
    active = _active(machine, mask)
    bits = by_warp(machine, np.asarray(members).astype(np.int64))
    rows = max(array.shape[0] for array in (source, values, active, bits))
    shape = (rows, machine.batch.warps, WARP)
    source, values, active, bits = (
        np.broadcast_to(array, shape) for array in (source, values, active, bits)
    )
    gives = np.take_along_axis(active, source, axis=2) & (bits >> source & 1).astype(bool)
    bad = active & ~gives & (source != lanes)
    if bad.any():
        _inactive_source(machine, bad, source, line)
    else:
        _expect_named(machine, members, mask, line)
    taken = np.take_along_axis(values, source, axis=2)
    return np.where(gives, taken, values).reshape(rows, machine.batch.width)


def _inactive_source(machine: Machine, bad: np.ndarray, source: np.ndarray, line: int) -> None:
    row, warp, lane = (int(i) for i in np.argwhere(bad)[0])
    other = int(source[row, warp, lane])
    count = int(np.count_nonzero(bad)) * (machine.batch.blocks if len(bad) == 1 else 1)
    asker, asked = (machine.thread(row, warp * WARP + i) for i in (lane, other))
    machine.found(
        "shuffle",
        line,
        "",
        (),
        (asker, asked),
        count,
        f"lane {lane} asks lane {other} for its value, but that lane does not take part here: the "
        "value that it gets is undefined",
    )


def _expect_named(machine: Machine, members: Any, mask: Mask, line: int) -> None:
    """Look whether exactly the lanes that are named do this together, save those that have
    returned.

    Source: CUDA C++ Programming Guide 12.9, "Warp Shuffle Functions" and "Warp Vote Functions":
    "each calling thread must have its own bit set in the mask and all non-exited threads named in
    mask must execute the same intrinsic with the same mask, or the result is undefined".
    """
    for arrived, named in _groups(machine, members, mask):
        _expect(
            machine,
            arrived,
            named,
            "shuffle",
            line,
            absent="not all lanes that the mask names take part here: of the two named here, "
            "only the first does. The result is undefined",
            uninvited="the first of the two threads named here takes part, but its own mask does "
            "not name it. The result is undefined",
        )


def vote(machine: Machine, kind: str, members: Any, value: Any, mask: Mask, line: int) -> Any:
    """Return the warp's vote among the lanes that take part: all, any, eq (all true or none), or
    the ballot's bits as numba's int32.
    """
    _expect_named(machine, members, mask, line)
    taking_part = _participants(machine, members, mask)
    true = by_warp(machine, _types.truth(value))
    for_all, for_any = (true | ~taking_part).all(axis=2), (true & taking_part).any(axis=2)
    if kind == "all":
        return of_warps(machine, for_all)
    if kind == "any":
        return of_warps(machine, for_any)
    if kind == "eq":
        return of_warps(machine, for_all | ~for_any)
    both = true & taking_part
    bits = lane_bits(both.reshape(both.shape[0], machine.batch.width), machine.batch)
    return of_warps(machine, bits.astype(np.uint32).view(np.int32))


def _participants(machine: Machine, members: Any, mask: Mask) -> np.ndarray:
    bits = by_warp(machine, np.asarray(members).astype(np.int64))
    found: np.ndarray = _active(machine, mask) & (bits >> np.arange(WARP) & 1).astype(bool)
    return found


def _alike(first: np.ndarray, second: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return both with as many blocks as the one that has more."""
    shape = np.broadcast_shapes(first.shape, second.shape)
    return np.broadcast_to(first, shape), np.broadcast_to(second, shape)


def match_any(machine: Machine, members: Any, value: Any, mask: Mask, line: int) -> Any:
    """Return for each lane the bits of the lanes that hold the same value, as numba's int32."""
    _expect_named(machine, members, mask, line)
    if value.dtype.kind == "f":
        # bits are compared: a nan is like itself, and -0.0 is not 0.0
        value = np.asarray(value).view(f"i{value.dtype.itemsize}")
    taking_part, values = _alike(_participants(machine, members, mask), by_warp(machine, value))
    same = (values[..., :, None] == values[..., None, :]) & taking_part[..., None, :]
    bits = (same.astype(np.int64) << np.arange(WARP)).sum(axis=3)
    return bits.reshape(bits.shape[0], machine.batch.width).astype(np.uint32).view(np.int32)


def synchronise(machine: Machine, members: Any, mask: Mask, line: int) -> None:
    """Let the lanes arrive at ``syncwarp``: every lane that is named must, unless it has exited.
    Groups of a warp may name themselves.
    """
    for arrived, named in _groups(machine, members, mask):
        _arrive(machine, arrived, named, line)


def _groups(machine: Machine, members: Any, mask: Mask) -> Iterator[tuple[np.ndarray, int]]:
    """Return the lanes (as bits of each warp) that name the same lanes, and whom they name."""
    if members is None:
        yield mask.bits, _ALL
        return
    if np.size(members) == 1:
        yield mask.bits, int(np.asarray(members).item()) & _ALL
        return
    active = _active(machine, mask)
    shape = np.broadcast_shapes(active.shape, by_warp(machine, members).shape)
    each = np.broadcast_to(by_warp(machine, members), shape).astype(np.int64) & _ALL
    active = np.broadcast_to(active, shape)
    for named in np.unique(each[active]).tolist():
        here = active & (each == named)
        yield lane_bits(here.reshape(shape[0], machine.batch.width), machine.batch), named


def _expect(
    machine: Machine,
    arrived: np.ndarray,
    named: int,
    kind: str,
    line: int,
    *,
    absent: str,
    uninvited: str,
) -> None:
    """Find warps in which lanes that are named have neither come nor exited, or lanes come that are
    not named; say which it is.
    """
    members = np.uint32(named)
    odd = arrived & ~members  # a lane that waits for others must be one of those named
    missing = np.where(arrived != 0, members & machine.alive.bits & ~arrived, np.uint32(0))
    wrong = (odd | missing) != 0
    if not wrong.any():
        return
    row, warp = (int(i) for i in np.argwhere(wrong)[0])
    here, away, extra = (
        int(np.broadcast_to(bits, wrong.shape)[row, warp]) for bits in (arrived, missing, odd)
    )
    lanes = (
        (_lowest(here), _lowest(away))
        if away
        else (_lowest(extra), _lowest(here & named or named or here))
    )
    count = int(np.count_nonzero(wrong)) * (machine.batch.blocks if len(wrong) == 1 else 1)
    threads = tuple(machine.thread(row, warp * WARP + lane) for lane in lanes)
    machine.found(kind, line, "", (), threads, count, absent if away else uninvited)


def _arrive(machine: Machine, arrived: np.ndarray, named: int, line: int) -> None:
    """Let lanes (as bits of each warp) that name the same lanes wait for each other."""
    barriers = machine.barriers
    assert barriers is not None
    _expect(
        machine,
        arrived,
        named,
        "barrier",
        line,
        absent="not all lanes that this syncwarp names reach it: of the two named here, only the "
        "first does",
        uninvited="the first of the two threads named here calls syncwarp with a mask that does not "
        "name it",
    )
    together = np.where(
        arrived != 0, (arrived & np.uint32(named)) | ~machine.alive.bits, np.uint32(0)
    ).astype(np.uint32)
    if len(together) > 1:
        machine.split_shared()
    machine.launch.event += 1
    barriers.add(machine.launch.event, together)


def _lowest(bits: int) -> int:
    return (bits & -bits).bit_length() - 1


def block_vote(machine: Machine, kind: str, value: Any, mask: Mask) -> Any:
    """Return the vote of the block's threads at a barrier as numba's int32: how many are true, or
    whether all or any are.
    """
    active = np.ones((1, 1), dtype=bool) if mask.array is None else mask.array
    true = np.atleast_2d(value)
    shape = (max(len(active), len(true)), machine.batch.width)
    active, true = np.broadcast_to(active, shape), np.broadcast_to(true, shape)
    if kind == "and":
        found = (true | ~active).all(axis=1, keepdims=True)
    elif kind == "or":
        found = (true & active).any(axis=1, keepdims=True)
    else:
        found = (true & active).sum(axis=1, keepdims=True)
    return found.astype(np.int32)
