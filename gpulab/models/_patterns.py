"""The common access patterns of a warp, by name: which element each lane takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from gpulab._given import word
from gpulab.models._access import (
    _MOST_ELEMENTS,
    _ROW_BYTES,
    AccessPattern,
    _size,
    _whole,
    access_at,
)
from gpulab.models._requests import WARP_LANES

_TABLE = 1024  # elements of the table that the scattered lanes look into


@dataclass(frozen=True)
class AccessKind:
    """One access pattern.

    Attributes
    ----------
    label : str
        For lists.
    formula : str
        The element of lane ``i``, as a kernel would write it.
    element : callable
        ``element(lane, stride, offset)`` -> the element's number.
    """

    label: str
    formula: str
    element: Callable[[int, int, int], int]


def _scattered(lane: int) -> int:
    """Knuth's multiplicative hash (The Art of Computer Programming 3, 6.4): spread, and the same
    everywhere.
    """
    return (lane + 1) * 2654435761 % 2**32 * _TABLE >> 32


ACCESS_KINDS: Mapping[str, AccessKind] = MappingProxyType(
    {
        "strided": AccessKind("a stride", "offset + i * stride", lambda i, s, o: o + i * s),
        "reversed": AccessKind(
            "backwards", "offset + (31 - i) * stride", lambda i, s, o: o + (WARP_LANES - 1 - i) * s
        ),
        "pairs": AccessKind(
            "two lanes an element", "offset + i // 2 * stride", lambda i, s, o: o + i // 2 * s
        ),
        "rows of 16": AccessKind(
            "a block 16 wide",
            "offset + i // 16 * stride + i % 16",
            lambda i, s, o: o + i // 16 * s + i % 16,
        ),
        "rows of 8": AccessKind(
            "a block 8 wide",
            "offset + i // 8 * stride + i % 8",
            lambda i, s, o: o + i // 8 * s + i % 8,
        ),
        "swizzled": AccessKind(
            "a swizzled column", "i * stride + (offset ^ i)", lambda i, s, o: i * s + (o ^ i)
        ),
        "scattered": AccessKind(
            "scattered",
            f"offset + hash(i) % {_TABLE} * stride",
            lambda i, s, o: o + _scattered(i) * s,
        ),
    }
)


def named_access(
    kind: str,
    stride_elements: int = 1,
    offset_elements: int = 0,
    element_bytes: int = 4,
    *,
    active_lanes: int = 32,
) -> AccessPattern:
    """Return what a warp accesses when it reads an array in a common pattern.

    Parameters
    ----------
    kind : str
        "strided" (lane i takes ``offset + i * stride``), "reversed" (the last lane first), "pairs"
        (two lanes an element), "rows of 16" and "rows of 8" (a two-dimensional block so wide, in an
        array whose rows are ``stride`` long), "swizzled" (column ``offset`` of a tile whose rows
        are ``stride`` long and whose columns are exchanged by XOR), "scattered" (a table of 1,024
        entries, hashed).
    stride_elements, offset_elements : int
        At most 2**20 either way.
    element_bytes : int
        1, 2, 4, 8 or 16.
    active_lanes : int
        How many lanes, from lane 0, take part: 0 to 32.

    Returns
    -------
    AccessPattern

    Raises
    ------
    InputError
        If there is no such kind, or an argument is not a whole number in its range.

    Examples
    --------
    >>> named_access("strided", 32).conflict_ways, named_access("swizzled", 32, 5).conflict_ways
    (32, 1)
    >>> named_access("rows of 8", 1024).sectors
    4
    """
    chosen = ACCESS_KINDS[word("named_access", "kind", kind, ACCESS_KINDS)]
    stride = _whole(
        "named_access", "stride_elements", stride_elements, -_MOST_ELEMENTS, _MOST_ELEMENTS
    )
    offset = _whole(
        "named_access", "offset_elements", offset_elements, -_MOST_ELEMENTS, _MOST_ELEMENTS
    )
    size = _size("named_access", element_bytes)
    lanes = _whole("named_access", "active_lanes", active_lanes, 0, WARP_LANES)
    addresses = [chosen.element(lane, stride, offset) * size for lane in range(WARP_LANES)]
    # Elements before the array's start lie whole rows of banks earlier, so that nothing else
    # changes.
    start = max(0, -(min(addresses) // _ROW_BYTES)) * _ROW_BYTES
    return access_at(
        [start + address for address in addresses],
        size,
        [lane < lanes for lane in range(WARP_LANES)],
    )
