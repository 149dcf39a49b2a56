"""The calls of cuda: where a thread is, arrays, barriers, shuffles, votes, atomics. Each is
translated by a function of a ``Call``.
"""

from __future__ import annotations

import ast
import functools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from gpulab._given import is_whole
from gpulab.kernels._simulate import _atomics, _types, _warp
from gpulab.kernels._simulate._accesses import update
from gpulab.kernels._simulate._geometry import Batch, Mask
from gpulab.kernels._simulate._indices import index_of
from gpulab.kernels._simulate._machine import Machine
from gpulab.kernels._simulate._memory import (
    START,
    View,
    cannot_be_written,
    constant_view,
    forget,
    local_view,
)
from gpulab.kernels._simulate._names import dtype_of
from gpulab.kernels._simulate._operators import written_number
from gpulab.kernels._simulate._registry import FUNCTIONS, INTRINSICS, Call, makes

if TYPE_CHECKING:
    from gpulab.kernels._simulate._expressions import Expression
    from gpulab.kernels._simulate._frame import Frame


# Shared memory that a kernel may ask for in its text. Source: CUDA C++ Programming Guide 13.0, on
# compute capability 8.x and later: kernels that rely on more than 48 KB of a block must use dynamic
# shared memory.
_MOST_STATIC_BYTES = 48 * 1024
# Local memory of a thread. Source: CUDA C++ Programming Guide 13.0, technical specifications per
# compute capability.
_MOST_LOCAL_BYTES = 512 * 1024
# The types that numba-cuda shuffles. Source: numba-cuda 0.30, shfl_sync_intrinsic in intrinsics.py.
_SHUFFLED = ("int32", "int64", "float32", "float64")


# -- where a thread is
# --------------------------------------------------------------------------------------------------------------


def _register_places() -> None:
    def place(read: Callable[[Batch, int], Any], axis: int) -> Callable[[Machine], Any]:
        return lambda machine: read(machine.batch, axis)

    for axis, letter in enumerate("xyz"):
        INTRINSICS[f"cuda.threadIdx.{letter}"] = place(lambda batch, i: batch.thread_index[i], axis)
        INTRINSICS[f"cuda.blockIdx.{letter}"] = place(lambda batch, i: batch.block_index[i], axis)
        INTRINSICS[f"cuda.blockDim.{letter}"] = place(
            lambda batch, i: np.int64(batch.block[i]), axis
        )
        INTRINSICS[f"cuda.gridDim.{letter}"] = place(lambda batch, i: np.int64(batch.grid[i]), axis)


_register_places()
INTRINSICS["cuda.laneid"] = lambda m: m.batch.linear_thread % 32
INTRINSICS["cuda.warpsize"] = lambda m: np.int64(32)


def _grid_index(batch: Batch, axis: int) -> Any:
    return batch.grid_index[axis]


def _grid_size(batch: Batch, axis: int) -> Any:
    return np.int64(batch.block[axis] * batch.grid[axis])


@makes("cuda.grid", "cuda.gridsize")
def _grid(call: Call) -> Expression:
    dimensions = call.translator.number(call.arguments(1, names=("ndim",))[0])
    if dimensions not in (1, 2, 3):
        raise call.fail(f"{call.name} takes 1, 2 or 3, written as a number")
    of_axis = _grid_index if call.name == "cuda.grid" else _grid_size
    if dimensions == 1:
        return lambda frame, mask: of_axis(frame.machine.batch, 0)
    return lambda frame, mask: tuple(
        of_axis(frame.machine.batch, axis) for axis in range(dimensions)
    )


# -- arrays
# -------------------------------------------------------------------------------------------------------------------------


def _shape_and_type(call: Call) -> tuple[tuple[int, ...], np.dtype]:
    shape_node, type_node = call.arguments(2, names=("shape", "dtype"))
    shape = call.translator.number(shape_node)
    shape = tuple(shape) if isinstance(shape, tuple) else (shape,)
    if not shape or not all(is_whole(n) and n >= 0 for n in shape):
        raise call.fail(
            "the shape of an array in a kernel must be a constant: numbers, or names of numbers "
            "defined outside the kernel"
        )
    if any(
        isinstance(part, ast.BinOp) and written_number(part) is None
        for part in ast.walk(shape_node)
    ):
        call.translator.program.notes.append(
            f"line {call.line}: numba-cuda takes no arithmetic in the shape "
            f"`{ast.unparse(shape_node)}`. "
            "For a GPU, give its value a name outside the kernel."
        )
    found = (
        type_node.value
        if isinstance(type_node, ast.Constant)
        else call.translator.static(type_node)
    )
    dtype = dtype_of(found)
    if dtype is None:
        raise call.fail(
            f"`{ast.unparse(type_node)}` is not an element type; expected one such as float32"
        )
    return tuple(int(n) for n in shape), dtype


@makes("cuda.shared.array")
def _shared_array(call: Call) -> Expression:
    shape, dtype = _shape_and_type(call)
    if 0 in shape and shape != (0,):
        raise call.fail(
            "a shared array needs elements; its shape (0,) means the dynamic shared memory of the "
            "launch"
        )
    if shape == (0,):
        call.translator.program.dynamic_sizes.add(dtype.itemsize)
    else:
        call.translator.program.static_shared_elements += math.prod(shape)
        _count_static(call, math.prod(shape) * dtype.itemsize)
    name, node = call.assigned_to or "shared array", id(call.node)
    return lambda frame, mask: frame.machine.new_shared(node, name, shape, dtype, call.line)


def _count_static(call: Call, nbytes: int) -> None:
    """Note where the arrays of a fixed shape become more than a compiler allots to a block."""
    program = call.translator.program
    before, program.static_shared_bytes = (
        program.static_shared_bytes,
        program.static_shared_bytes + nbytes,
    )
    if before <= _MOST_STATIC_BYTES < program.static_shared_bytes:
        program.notes.append(
            f"line {call.line}: the shared arrays up to here take {program.static_shared_bytes:,} "
            "bytes, and a GPU's compiler refuses more "
            f"than {_MOST_STATIC_BYTES:,} of a fixed shape. For a GPU, make them smaller."
        )


@makes("cuda.local.array")
def _local_array(call: Call) -> Expression:
    shape, dtype = _shape_and_type(call)
    if 0 in shape:
        raise call.fail("a local array needs elements")
    nbytes = math.prod(shape) * dtype.itemsize
    if nbytes > _MOST_LOCAL_BYTES:
        raise call.fail(
            f"each thread asks for {nbytes:,} bytes of local memory; expected at most "
            f"{_MOST_LOCAL_BYTES:,}. Make the array smaller"
        )
    call.translator.program.local_bytes += nbytes
    name, node = call.assigned_to or "local array", id(call.node)

    def run(frame: Frame, mask: Mask) -> View:
        view = frame.arrays.get(node)
        if view is None:
            view = frame.arrays[node] = local_view(name, shape, dtype, frame.machine.batch)
        else:
            # in a loop it is the same memory each time, as numba-cuda lays it out: ``alloca_once``
            forget(view.store, mask)
        return view

    return run


@makes("cuda.const.array_like")
def _constant_array(call: Call) -> Expression:
    (node,) = call.arguments(1)
    found = call.translator.static(node)
    if not isinstance(found, np.ndarray):
        raise call.fail(
            "cuda.const.array_like takes a NumPy array of numbers from outside the kernel"
        )
    view = constant_view(call.assigned_to or ast.unparse(node), found)
    return lambda frame, mask: view


@makes("len")
def _len(call: Call) -> Expression:
    value = call.translator.expression(call.arguments(1)[0])

    def run(frame: Frame, mask: Mask) -> Any:
        found = value(frame, mask)
        if isinstance(found, View):
            return found.shape[0]
        if isinstance(found, tuple):
            return np.int64(len(found))
        raise call.fail("len takes an array or a tuple")

    return run


# -- what lanes do together
# ---------------------------------------------------------------------------------------------------------


@makes("cuda.syncthreads", "cuda.syncthreads_count", "cuda.syncthreads_and", "cuda.syncthreads_or")
def _syncthreads(call: Call) -> Expression:
    kind = call.name.removeprefix("cuda.syncthreads").lstrip("_")
    values = call.numbers(1 if kind else 0)

    def run(frame: Frame, mask: Mask) -> Any:
        value = _asked(call, frame.machine, values[0](frame, mask)) if kind else None
        frame.machine.barrier(mask, call.line)
        if kind:
            return _warp.block_vote(frame.machine, kind, value, mask)
        return None

    return run


def _asked(call: Call, machine: Machine, value: Any) -> Any:
    """Return what is true of the value that a barrier's vote is given: of its low 32 bits.

    Source: numba-cuda 0.30, _syncthreads_predicate in intrinsics.py, which takes integers alone, as
    int32.
    """
    if value.dtype.kind not in "iub":
        raise call.fail(f"{call.name} takes an integer; this one is of {value.dtype}")
    if value.dtype == _types.BOOL:
        note = (
            f"line {call.line}: numba-cuda takes no truth value in {call.name}. For a GPU, "
            "make an integer of it: int32(...)."
        )
        machine.launch.notes.add((call.line, note))
    return _types.truth(value if value.dtype.itemsize <= 4 else value.astype(np.int32))


@makes("cuda.syncwarp")
def _syncwarp(call: Call) -> Expression:
    members = call.numbers(0, 1, ("membermask",))
    call.translator.program.names_lanes |= bool(members)
    return lambda frame, mask: _warp.synchronise(
        frame.machine, members[0](frame, mask) if members else None, mask, call.line
    )


@makes("cuda.threadfence", "cuda.threadfence_block", "cuda.threadfence_system")
def _fence(call: Call) -> Expression:
    call.arguments(0)
    if call.name != "cuda.threadfence_block":
        call.translator.program.uses_fences = True
    return lambda frame, mask: frame.machine.fence(mask)


@makes("cuda.nanosleep")
def _sleep(call: Call) -> Expression:
    call.numbers(1)
    return lambda frame, mask: None


@makes("cuda.activemask")
def _activemask(call: Call) -> Expression:
    call.arguments(0)
    return lambda frame, mask: _warp.of_warps(frame.machine, mask.bits.astype(np.uint32))


@makes("cuda.lanemask_lt")
def _lanemask_lt(call: Call) -> Expression:
    call.arguments(0)
    return lambda frame, mask: (
        (np.int64(1) << (frame.machine.batch.linear_thread % 32)) - 1
    ).astype(np.uint32)


def _register_warp() -> None:
    for kind in ("", "_up", "_down", "_xor"):
        FUNCTIONS[f"cuda.shfl{kind}_sync"] = functools.partial(_shuffle, kind=kind)
    for kind in ("all", "any", "eq", "ballot"):
        FUNCTIONS[f"cuda.{kind}_sync"] = functools.partial(_vote, kind=kind)
    FUNCTIONS["cuda.match_any_sync"] = _match_any
    for operation in (*_atomics.OPERATIONS, "cas", "compare_and_swap"):
        FUNCTIONS[f"cuda.atomic.{operation}"] = functools.partial(_atomic, operation=operation)


def _shuffle(call: Call, kind: str) -> Expression:
    members, value, lane = call.numbers(3)

    def run(frame: Frame, mask: Mask) -> Any:
        named, given = members(frame, mask), value(frame, mask)
        if given.dtype.name not in _SHUFFLED:
            raise call.fail(
                f"{call.name} takes values of {', '.join(_SHUFFLED)}; this one is of {given.dtype}"
            )
        return _warp.shuffle(frame.machine, kind, named, given, lane(frame, mask), mask, call.line)

    return run


def _vote(call: Call, kind: str) -> Expression:
    members, value = call.numbers(2)

    def run(frame: Frame, mask: Mask) -> Any:
        named, given = members(frame, mask), value(frame, mask)
        if given.dtype.kind not in "iub":
            raise call.fail(
                f"{call.name} takes a truth value or an integer; this one is of {given.dtype}"
            )
        return _warp.vote(frame.machine, kind, named, given, mask, call.line)

    return run


def _match_any(call: Call) -> Expression:
    members, value = call.numbers(2)
    return lambda frame, mask: _warp.match_any(
        frame.machine, members(frame, mask), value(frame, mask), mask, call.line
    )


def _atomic(call: Call, operation: str) -> Expression:
    compares = operation in ("cas", "compare_and_swap")
    count = {"compare_and_swap": 3, "cas": 4}.get(operation, 3)
    nodes = call.arguments(count)
    array = call.translator.array(nodes[0])
    whole = operation == "compare_and_swap"  # numba's older form works on the first element
    index = None if whole else call.translator.index(nodes[1])
    values = [call.numeric(node) for node in nodes[1 if whole else 2 :]]
    takes = _atomics.types_of(operation)

    def run(frame: Frame, mask: Mask) -> Any:
        view = array(frame, mask)
        if view.dtype.name not in takes:
            raise call.fail(
                f"{call.name} takes arrays of {', '.join(takes)}; {view.store.name} has "
                f"{view.dtype}"
            )
        if view.store.space == "constant":
            raise call.fail(cannot_be_written(view))
        places, from_end = ((START,), (False,)) if index is None else index(frame, mask)
        indices = index_of(view, places, call.translator.source, call.line)
        given = [value(frame, mask) for value in values]
        where, inside = update(frame.machine, view, indices, mask, call.line, from_end)
        if inside is None:
            return view.dtype.type(0)
        name = "cas" if compares else operation
        return _atomics.apply(name, view.store, where, given, inside, wanted=not call.unused)

    return run


_register_warp()
