"""Checks of a kernel's grid, block and arrays, shared by ``simulate`` and the launches."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.lib.array_utils import byte_bounds

from gpulab._validate import is_whole
from gpulab.errors import InputError, message_of, shown
from gpulab.units import plural

Extent = tuple[int, int, int]
# Threads of a block, and blocks of a grid. Source: CUDA Programming Guide 13.0, technical
# specifications per compute capability.
MOST_THREADS = 1024
_MOST_BLOCK = (1024, 1024, 64)
_MOST_GRID = (2**31 - 1, 65535, 65535)
# The most shared memory that a block can request on any GPU (compute capability 9.0 and 10.0).
MOST_SHARED_BYTES = 227 * 1024
# The most shared memory of a fixed shape, and the most of a block in all unless the kernel's limit
# is raised (cudaFuncAttributeMaxDynamicSharedMemorySize). Source: CUDA C++ Programming Guide 13.0,
# on compute capability 8.x and later.
UNASKED_SHARED_BYTES = 48 * 1024
_KINDS = "biufc"


def checked_extents(who: str, grid: Any, block: Any) -> tuple[Extent, Extent]:
    """Return grid and block as three numbers each.

    Raises
    ------
    InputError
        If no GPU can launch such a grid or block.
    """
    extents = (
        _extent(who, "grid", grid, _MOST_GRID),
        _extent(who, "block", block, _MOST_BLOCK),
    )
    threads = math.prod(extents[1])
    if threads > MOST_THREADS:
        raise InputError(
            f"{who}: a block of {extents[1]} has {threads:,} threads; expected at most "
            f"{MOST_THREADS:,}. Use more blocks."
        )
    return extents


def _extent(who: str, name: str, value: Any, most: Extent) -> Extent:
    parts = value if isinstance(value, (tuple, list)) else (value,)
    if not 1 <= len(parts) <= 3 or not all(map(is_whole, parts)):
        raise InputError(
            f"{who}: {name}={shown(value)}; expected a whole number or up to three of them. Pass "
            f"for example {name}=32."
        )
    extent = (*(int(p) for p in parts), 1, 1)[:3]
    for axis, size, limit in zip("xyz", extent, most, strict=True):
        if not 1 <= size <= limit:
            raise InputError(
                f"{who}: {name}={shown(value)}; expected 1 to {limit:,} along {axis}. Pass a "
                f"{name} in this range."
            )
    return extent[0], extent[1], extent[2]


def check_count(who: str, kernel: str, parameters: Sequence[str], args: Sequence[Any]) -> None:
    """Refuse fewer or more arguments than a kernel has parameters."""
    if len(args) != len(parameters):
        raise InputError(
            f"{who}: {kernel} takes {plural(len(parameters), 'argument')} "
            f"({', '.join(parameters)}), but the call has {len(args)}. Pass one for each."
        )


def array_of_tensor(who: str, name: str, tensor: Any) -> np.ndarray:
    """Return a NumPy array that shares the memory of a tensor in main memory.

    Raises
    ------
    InputError
        If NumPy has no such array: for bfloat16, float8, a sparse or a lazily conjugated tensor.
    """
    try:
        array: np.ndarray = tensor.detach().numpy()
    except (TypeError, RuntimeError) as error:
        raise InputError(
            f"{who}: {name} is a tensor of {tensor.dtype} that cannot become a NumPy array "
            f"({message_of(error)}); expected a type and a layout that NumPy has. Convert it, for "
            "example by .float()."
        ) from error
    return array


def check_array(
    who: str, kernel: str, name: str, array: np.ndarray, written: bool, *, any_layout: bool = False
) -> None:
    """Refuse an array that a kernel cannot take, or a read-only array that it writes to. With
    ``any_layout``, records, dates, texts and arrays that are not contiguous are accepted as well.
    """
    dtype = array.dtype
    is_record = any_layout and dtype.names is not None and dtype.isnative and not dtype.hasobject
    kinds = _KINDS + "mMUS" * any_layout
    is_wide = dtype.char in "gG"  # long double, real and complex
    if not is_record and (dtype.kind not in kinds or is_wide or not dtype.isnative):
        raise InputError(
            f"{who}: {name} has elements of type {dtype}; expected numbers. Convert it, for "
            "example by .astype('float32')."
        )
    if not array.flags.c_contiguous and not any_layout:
        raise InputError(
            f"{who}: {name} of shape {array.shape} is not contiguous; expected an array in C "
            f"order. Pass np.ascontiguousarray({name})."
        )
    if written and not array.flags.writeable:
        raise InputError(
            f"{who}: {name} is read-only and {kernel} writes to it; expected an array that may "
            "change. Pass a copy."
        )


def described_array(interface: Mapping[str, Any]) -> np.ndarray:
    """Return an array without memory that has the dtype, shape and strides of a
    ``__cuda_array_interface__``; its elements must not be read.
    """
    return np.lib.stride_tricks.as_strided(
        np.empty(0, interface["typestr"]), interface["shape"], interface.get("strides")
    )


def same_memory(who: str, name: str, a: np.ndarray, other_name: str, b: np.ndarray) -> bool:
    """Return whether two arrays have the same elements in memory, with the same dtype.

    Raises
    ------
    InputError
        If they overlap in any other way.
    """
    if not np.shares_memory(a, b):
        return False
    if byte_bounds(a) != byte_bounds(b) or a.dtype != b.dtype or a.size != b.size:
        raise InputError(
            f"{who}: {name} and {other_name} overlap in memory without being the same array; "
            "expected arrays that do not overlap, or the same one twice. Pass a copy of one."
        )
    return True
