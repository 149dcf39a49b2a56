"""Sectors and wavefronts: of many warps at once for the simulator, and of one warp by lane.

A *request* is one access executed by one warp. From device memory it moves whole sectors of 32
bytes; in shared memory it takes one pass (wavefront) for every different word that the busiest bank
must deliver. Caches are not modelled: a sector that was fetched for an earlier request is counted
again, as ``l1tex__t_sectors`` does.

The addresses of one warp are analyzed both ways, so that a stride can be seen as a load from a
device array and as a load from a shared array; the common patterns have names.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from gpulab._validate import arguments, flag, is_whole, items, whole, word
from gpulab.errors import InputError, shown
from gpulab.evidence import Evidence
from gpulab.results import Result, Table
from gpulab.units import format_bytes, plural

WARP_LANES = 32
SECTOR_BYTES = 32
BANKS = 32
WORD_BYTES = 4
# What one lane can load with one instruction. Source: CUDA C++ Programming Guide, "Device Memory
# Accesses", 13.0.
ELEMENT_BYTES = (1, 2, 4, 8, 16)

# Warps looked at together, so that the intermediate arrays (about 1 MiB) stay in the cache.
_WARPS_AT_ONCE = 4096
# Keys of 31 bits are sorted four times as fast as keys of 64 bits. Five of the bits hold the bank,
# the others the row of words.
_LARGEST_KEY = 2**31 - 1
_ROW_BITS = 26

Lanes = npt.NDArray[np.integer]
Mask = npt.NDArray[np.bool_]
Counts = npt.NDArray[np.int64]
Keys = npt.NDArray[np.signedinteger]


def _size(function: str, name: str, value: Any) -> int:
    if not is_whole(value) or value not in ELEMENT_BYTES:
        raise InputError(
            f"{function}: {name}={shown(value)}; expected 1, 2, 4, 8 or 16, the sizes that one "
            "instruction can load. Pass one of these."
        )
    return int(value)


def sectors_per_request(
    addresses: Lanes, mask: Mask | None = None, element_bytes: int = 4
) -> Counts:
    """Return how many 32-byte sectors of device memory each warp's request touches.

    Parameters
    ----------
    addresses : ndarray of int, shape (warps, 32)
        The byte address of each lane's element; any origin that is a multiple of 32 will do. The
        values of inactive lanes are ignored.
    mask : ndarray of bool, shape (warps, 32), optional
        The active lanes; None means all.
    element_bytes : int
        Bytes that each lane accesses, from its address on. An element that crosses a sector's end
        touches both.

    Returns
    -------
    ndarray of int64, shape (warps,)
        0 where no lane is active: no request is made.

    Raises
    ------
    InputError
        If the shapes do not fit, the addresses are not whole numbers, or ``element_bytes`` is below
        1.

    Examples
    --------
    >>> lanes = np.arange(32)
    >>> sectors_per_request(np.stack([4 * lanes, 8 * lanes, 128 * lanes, 4 * lanes + 4]))
    array([ 4,  8, 32,  5])
    """
    size = whole("sectors_per_request", "element_bytes", element_bytes, 1, 2**20)
    return _counted("sectors_per_request", _sectors, addresses, mask, size)


def shared_wavefronts(addresses: Lanes, mask: Mask | None = None, element_bytes: int = 4) -> Counts:
    """Return how many wavefronts each warp's shared-memory request takes: 1 without a conflict, k
    where it conflicts k ways.

    Parameters
    ----------
    addresses : ndarray of int, shape (warps, 32)
        The byte offset of each lane's element in shared memory, from 0 and below 2**33, a multiple
        of ``element_bytes``. The values of inactive lanes are ignored.
    mask : ndarray of bool, shape (warps, 32), optional
        The active lanes; None means all.
    element_bytes : int
        1, 2, 4, 8 or 16.

    Returns
    -------
    ndarray of int64, shape (warps,)
        0 where no lane is active.

    Raises
    ------
    InputError
        If the shapes do not fit, the addresses are not whole numbers, or ``element_bytes`` is not
        one of these sizes.

    Notes
    -----
    32 banks deliver one word of 4 bytes each per wavefront, to any number of lanes that ask for the
    same word (broadcast). Elements of 8 bytes are accessed by half-warps and those of 16 bytes by
    quarter-warps, each part in a pass of its own, so they take at least 2 and 4 wavefronts; a part
    without an active lane takes none. Source: CUDA C++ Programming Guide, "Shared Memory" of
    compute capability 5.x and later (13.0), and for wide elements "Shared Memory" of 3.x in its
    older editions. Hardware sometimes merges the parts of a wide broadcast; the model does not.

    Examples
    --------
    >>> lanes = np.arange(32)
    >>> shared_wavefronts(np.stack([4 * lanes, 8 * lanes, 128 * lanes, 0 * lanes]))
    array([ 1,  2, 32,  1])
    """
    size = _size("shared_wavefronts", "element_bytes", element_bytes)
    return _counted("shared_wavefronts", _wavefronts, addresses, mask, size)


def _counted(
    function: str,
    rule: Callable[[Lanes, Mask | None, int], Counts],
    addresses: Lanes,
    mask: Mask | None,
    element_bytes: int,
) -> Counts:
    """Check the arrays, and return the count of ``rule`` for each warp, in batches of warps."""
    if (
        not isinstance(addresses, np.ndarray)
        or addresses.dtype.kind not in "iu"
        or addresses.shape[1:] != (WARP_LANES,)
    ):
        raise InputError(
            f"{function}: addresses is {shown(addresses)}; expected an array of whole numbers with "
            "the shape (warps, 32). Pass one row per warp."
        )
    if mask is not None and not (
        isinstance(mask, np.ndarray) and mask.dtype == np.bool_ and mask.shape == addresses.shape
    ):
        raise InputError(
            f"{function}: mask is {shown(mask)}; expected bool{addresses.shape}. Pass one flag per "
            "lane, or None for all."
        )
    counts = np.empty(len(addresses), np.int64)
    for start in range(0, len(addresses), _WARPS_AT_ONCE):
        part = slice(start, start + _WARPS_AT_ONCE)
        counts[part] = rule(addresses[part], None if mask is None else mask[part], element_bytes)
    return counts


def _sectors(addresses: Lanes, mask: Mask | None, element_bytes: int) -> Counts:
    """Return the number of different sectors of each row: sort the row, then count the changes."""
    addresses = addresses.astype(np.int64, copy=False)
    first = addresses >> 5
    inside = addresses & (SECTOR_BYTES - 1)
    # sectors that one element can touch
    pieces = (int(inside.max()) + element_bytes - 1) // SECTOR_BYTES + 1
    if pieces > 1:
        last = (addresses + (element_bytes - 1)) >> 5
        first = np.concatenate([np.minimum(first + piece, last) for piece in range(pieces)], axis=1)
        mask = None if mask is None else np.tile(mask, (1, pieces))
    low, high = int(first.min()), int(first.max())
    # an inactive lane's address, which may be anything, must not widen the range of keys
    if mask is not None and high - low > _LARGEST_KEY:
        first = np.where(mask, first, first.max(where=mask, initial=low))
        low, high = int(first.min()), int(first.max())
    first -= low
    keys = _silenced(first.astype(np.int32) if high - low <= _LARGEST_KEY else first, mask)
    keys.sort(axis=1)
    # Inactive lanes sort first, as one more value. In a row with such lanes, the change from that
    # value counts the first sector; in a row without, the last term counts it.
    counts: Counts = np.count_nonzero(keys[:, 1:] != keys[:, :-1], axis=1) + (keys[:, 0] >= 0)
    return counts


def _silenced(keys: Keys, mask: Mask | None) -> Keys:
    """Set the keys of inactive lanes to -1, in place, and return the keys."""
    if mask is not None:
        keys |= mask.astype(keys.dtype) - keys.dtype.type(1)
    return keys


def _wavefronts(addresses: Lanes, mask: Mask | None, element_bytes: int) -> Counts:
    """Return the most different words that one bank must deliver, summed over the passes of each
    row.
    """
    # Each pass is a row of keys that sort by bank and then by row of words; -1 for an inactive
    # lane. An aligned element of two or four words fills as many neighboring banks in one row of
    # words, so they count as one wide bank.
    width = max(WORD_BYTES, element_bytes)
    banks = BANKS * WORD_BYTES // width
    words = (addresses >> (width.bit_length() - 1)).astype(np.int32, copy=False)
    keys: Keys = ((words & (banks - 1)) << _ROW_BITS) | (words >> (banks.bit_length() - 1))
    # Half-warps and quarter-warps become rows of their own.
    keys = _silenced(keys, mask).reshape(-1, banks)
    keys.sort(axis=1)
    counts: Counts = (keys[:, -1] >= 0).astype(np.int64)
    # Two different words of one bank have keys that differ only in the low bits. (Equal keys do not
    # count: 0 - 1, unsigned, is the largest number.)
    differing = (keys[:, 1:] ^ keys[:, :-1]).view(np.uint32)
    near = (differing - np.uint32(1) < np.uint32((1 << _ROW_BITS) - 1)).any(axis=1)
    rows = np.flatnonzero(near)
    if len(rows):
        counts[rows] = _longest_run(keys[rows])
    of_warps: Counts = counts.reshape(len(addresses), -1).sum(axis=1)
    return of_warps


def _longest_run(keys: Keys) -> Counts:
    """Return the most different keys within one bank of each row."""
    banks = keys >> _ROW_BITS
    seen = np.zeros(keys.shape, np.int16)
    np.cumsum(keys[:, 1:] != keys[:, :-1], axis=1, out=seen[:, 1:])
    # The number of changes up to the bank's first key, repeated for all keys of the bank. A bank
    # always begins with a change.
    began = np.maximum.accumulate(
        np.where(banks[:, 1:] == banks[:, :-1], np.int16(0), seen[:, 1:]), axis=1
    )
    longest: Counts = (seen[:, 1:] - began).max(axis=1).astype(np.int64) + 1
    return longest


_ROW_BYTES = BANKS * WORD_BYTES
_MOST_ELEMENTS = 2**20  # strides and offsets: the lanes then lie within 512 MiB
_LARGEST_ADDRESS, _LARGEST_SPAN = 2**56, 2**33
# A test compares this text with the committed comparison; the microscope counts a kernel's accesses
# by the same rules.
KNOWN_ERROR = (
    "131 of 135 nonzero counts of sectors, wavefronts and conflicts, in 44 kernels, are those of "
    "an NVIDIA H200; its compiler changed the other accesses"
)
_EVIDENCE = Evidence.modelled(
    "one request of one warp; sectors of 32 bytes; 32 banks of 4 bytes, wide elements by "
    "half-warps and quarter-warps; no caches",
    "CUDA C++ Programming Guide 13.0, sections on device memory accesses and shared memory of "
    "compute capability 5.x and later",
    KNOWN_ERROR,
)

_TABLE = 1024  # elements of the table that the scattered lanes look into
_ELEMENTS = partial(whole, low=-_MOST_ELEMENTS, high=_MOST_ELEMENTS)
_LANES: dict[str, Callable[[str, str, Any], Any]] = {
    "stride_elements": _ELEMENTS,
    "offset_elements": _ELEMENTS,
    "element_bytes": _size,
    "active_lanes": partial(whole, low=0, high=WARP_LANES),
}


@dataclass(frozen=True, repr=False)
class AccessPattern(Result):
    """What one request of one warp touches.

    Attributes
    ----------
    addresses : tuple of int
        The byte address of each lane's element.
    active : tuple of bool
        The lanes that take part.
    element_bytes : int
    sectors : int
        Sectors of 32 bytes that the request moves from or to device memory: its sectors per
        request.
    wavefronts : int
        Passes that the request takes in shared memory.
    conflict_ways : int
        The most different words that one bank must deliver within one pass; 1 means no conflict.
    evidence : Evidence
        MODELLED.
    """

    addresses: tuple[int, ...]
    active: tuple[bool, ...]
    element_bytes: int
    sectors: int
    wavefronts: int
    conflict_ways: int
    evidence: Evidence

    @property
    def passes(self) -> int:
        """Passes over shared memory: half-warps take turns for elements of 8 bytes, quarter-warps
        for those of 16.
        """
        return max(1, self.element_bytes // WORD_BYTES)

    def pass_of(self, lane: int) -> int:
        """Return the pass in which a lane is served, from 0."""
        return lane * self.passes // WARP_LANES

    def _asked(self) -> list[int]:
        return [
            address for address, active in zip(self.addresses, self.active, strict=True) if active
        ]

    @property
    def bytes_asked(self) -> int:
        """Bytes that the lanes request together; a byte that two lanes request counts twice."""
        return len(self._asked()) * self.element_bytes

    @property
    def bytes_needed(self) -> int:
        """Different bytes that the lanes request: fewer than ``bytes_asked`` where lanes share an
        element.
        """
        return len(set(self._asked())) * self.element_bytes

    @property
    def bytes_moved(self) -> int:
        """Bytes of the sectors touched."""
        return self.sectors * SECTOR_BYTES

    @property
    def ideal_sectors(self) -> int:
        """The fewest sectors that hold ``bytes_needed``."""
        return math.ceil(self.bytes_needed / SECTOR_BYTES)

    @property
    def efficiency(self) -> float:
        """Bytes needed over bytes moved, 0 to 1; 0 where no lane is active."""
        return self.bytes_needed / self.bytes_moved if self.bytes_moved else 0.0

    @property
    def ideal_wavefronts(self) -> int:
        """The passes that the same lanes would take without conflicts: 1 for a whole warp, up to 2
        by half-warps, up to 4 by quarter-warps.
        """
        return len({self.pass_of(lane) for lane, active in enumerate(self.active) if active})

    def sector_lanes(self) -> dict[int, tuple[int, ...]]:
        """Return the lanes that touch each sector, by the sector's number (address // 32),
        ascending: the rows of a picture.
        """
        found: dict[int, list[int]] = {}
        for lane, (address, active) in enumerate(zip(self.addresses, self.active, strict=True)):
            if active:
                found.setdefault(address // SECTOR_BYTES, []).append(lane)
        return {sector: tuple(found[sector]) for sector in sorted(found)}

    def bank_lanes(self, part: int = 0) -> dict[int, dict[int, tuple[int, ...]]]:
        """Return bank -> word (address // 4) -> the lanes that ask for it, within one pass.

        Parameters
        ----------
        part : int
            The pass: 0, or up to 1 for elements of 8 bytes and 3 for those of 16.
        """
        found: dict[int, dict[int, list[int]]] = {}
        for lane, (address, active) in enumerate(zip(self.addresses, self.active, strict=True)):
            if active and self.pass_of(lane) == part:
                for word in range(
                    address // WORD_BYTES, (address + self.element_bytes - 1) // WORD_BYTES + 1
                ):
                    found.setdefault(word % BANKS, {}).setdefault(word, []).append(lane)
        return {
            bank: {word: tuple(lanes) for word, lanes in sorted(found[bank].items())}
            for bank in sorted(found)
        }

    @property
    def explanation(self) -> str:
        """Two sentences: device memory, then shared memory."""
        if not any(self.active):
            return "No lane is active: no request is made."
        lanes = "1 lane needs" if sum(self.active) == 1 else f"{sum(self.active)} lanes need"
        device = (
            f"{lanes} {format_bytes(self.bytes_needed)}; device memory moves "
            f"{plural(self.sectors, 'sector')} ({format_bytes(self.bytes_moved)}), of which "
            f"{100 * self.efficiency:.3g} % are used; {self.ideal_sectors} would suffice."
        )
        passes = plural(self.wavefronts, "wavefront")
        if self.conflict_ways <= 1:
            return f"{device} In shared memory there is no bank conflict: {passes}."
        return (
            f"{device} In shared memory {self.conflict_ways} words are in the same bank: {passes} "
            f"instead of {self.ideal_wavefronts}."
        )

    def __repr__(self) -> str:
        return (
            f"<access of {sum(self.active)} lanes x {self.element_bytes} B: {self.sectors} sectors "
            f"(ideal {self.ideal_sectors}), {self.wavefronts} wavefronts (ideal "
            f"{self.ideal_wavefronts})>"
        )

    def table(self) -> Table:
        """Return the counts of device memory and of shared memory beside their ideals."""
        rows = [
            ("sectors of a request", str(self.sectors), str(self.ideal_sectors)),
            ("bytes moved", f"{self.bytes_moved:,}", f"{self.bytes_needed:,} needed"),
            ("share of these bytes used", f"{self.efficiency:.1%}", "100.0%"),
            ("wavefronts in shared memory", str(self.wavefronts), str(self.ideal_wavefronts)),
            ("words in the busiest bank", str(self.conflict_ways), "1"),
        ]
        return ("one warp", "touched", "ideal"), rows


@arguments(addresses=items, element_bytes=_size, active=items)
def access_at(addresses: Any, element_bytes: int = 4, active: Any = None) -> AccessPattern:
    """Return what a warp touches at 32 addresses.

    Parameters
    ----------
    addresses : array_like of int, shape (32,)
        In bytes, from 0, each a multiple of ``element_bytes``; within 8 GiB of each other.
    element_bytes : int
        1, 2, 4, 8 or 16.
    active : array_like of bool, shape (32,), optional
        The lanes that take part; None means all. The addresses of the others are ignored.

    Returns
    -------
    AccessPattern

    Raises
    ------
    InputError
        If there are not 32 addresses and 32 flags, an active lane's address is not a whole number
        in range or is misaligned (hardware faults there), or ``element_bytes`` is not one of these
        sizes.

    Examples
    --------
    >>> column = [4 * 32 * row for row in range(32)]
    >>> padded = [4 * 33 * row for row in range(32)]
    >>> access_at(column).conflict_ways, access_at(padded).conflict_ways
    (32, 1)
    """
    flags = [True] * WARP_LANES if active is None else active
    if len(addresses) != WARP_LANES or len(flags) != WARP_LANES:
        raise InputError(
            f"access_at: {len(addresses)} addresses and {len(flags)} flags; expected 32 of each. "
            "Pass one per lane."
        )
    lanes = [flag("access_at", "active", each) for each in flags]
    numbers = [
        whole("access_at", f"the address of lane {i}", a, 0, _LARGEST_ADDRESS) if lanes[i] else 0
        for i, a in enumerate(addresses)
    ]
    live = [address for address, lane in zip(numbers, lanes, strict=True) if lane]
    wrong = [address for address in live if address % element_bytes]
    if wrong:
        raise InputError(
            f"access_at: address {wrong[0]} is not a multiple of the {element_bytes} bytes of an "
            f"element; expected aligned addresses, as on a GPU. Pass multiples of {element_bytes}."
        )
    if live and max(live) - min(live) >= _LARGEST_SPAN:
        raise InputError(
            f"access_at: addresses from {min(live)} to {max(live)}; expected addresses within 8 "
            "GiB of each other. Move them closer."
        )
    low = min(live, default=0)
    return _pattern(
        [a if lane else low for a, lane in zip(numbers, lanes, strict=True)], lanes, element_bytes
    )


def _pattern(addresses: list[int], active: list[bool], size: int) -> AccessPattern:
    lanes, mask = np.array([addresses]), np.array([active])
    near = lanes - lanes.min() // _ROW_BYTES * _ROW_BYTES
    passes = max(1, size // WORD_BYTES)
    parts = np.arange(WARP_LANES) * passes // WARP_LANES == np.arange(passes)[:, None]
    by_pass = shared_wavefronts(np.repeat(near, passes, axis=0), parts & mask, size)
    return AccessPattern(
        tuple(addresses), tuple(active), size,
        sectors=int(sectors_per_request(lanes, mask, size)[0]),
        wavefronts=int(shared_wavefronts(near, mask, size)[0]),
        conflict_ways=int(by_pass.max()),
        evidence=_EVIDENCE,
    )  # fmt: skip


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
        # Knuth's multiplicative hash (The Art of Computer Programming 3, 6.4): spread, and the same
        # everywhere
        "scattered": AccessKind(
            "scattered",
            f"offset + hash(i) % {_TABLE} * stride",
            lambda i, s, o: o + ((i + 1) * 2654435761 % 2**32 * _TABLE >> 32) * s,
        ),
    }
)


@arguments(**_LANES, kind=partial(word, known=ACCESS_KINDS))
def access_pattern(
    stride_elements: int = 1,
    offset_elements: int = 0,
    element_bytes: int = 4,
    *,
    kind: str = "strided",
    active_lanes: int = 32,
) -> AccessPattern:
    """Return what a warp touches when it reads an array in a common pattern.

    Parameters
    ----------
    stride_elements, offset_elements : int
        From -2**20 to 2**20. With a stride of 0, all lanes read one element (a broadcast). Element
        0 starts a sector and a row of banks.
    element_bytes : int
        1, 2, 4, 8 or 16.
    kind : str
        "strided" (lane i takes ``offset + i * stride``), "reversed" (the last lane first), "pairs"
        (two lanes per element), "rows of 16" and "rows of 8" (a two-dimensional block 16 or 8
        elements wide, in an array whose rows are ``stride`` long), "swizzled" (column ``offset`` of
        a tile whose rows are ``stride`` long and whose columns are exchanged by XOR), "scattered"
        (a table of 1,024 entries, hashed).
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
    >>> access_pattern(stride_elements=8)
    <access of 32 lanes x 4 B: 32 sectors (ideal 4), 8 wavefronts (ideal 1)>
    >>> access_pattern(32).conflict_ways, access_pattern(32, 5, kind="swizzled").conflict_ways
    (32, 1)
    >>> access_pattern(1024, kind="rows of 8").sectors
    4
    """
    element = ACCESS_KINDS[kind].element
    addresses = [
        element(lane, stride_elements, offset_elements) * element_bytes
        for lane in range(WARP_LANES)
    ]
    # A negative stride can reach addresses below 0. Then all addresses move up by whole rows of
    # banks, which changes nothing else.
    start = max(0, -(min(addresses) // _ROW_BYTES)) * _ROW_BYTES
    return _pattern(
        [start + address for address in addresses],
        [lane < active_lanes for lane in range(WARP_LANES)],
        element_bytes,
    )
