"""Sectors and wavefronts of many warps at once, for the simulator and the access patterns.

A *request* is one access executed by one warp. From device memory it moves whole sectors of 32
bytes; in shared memory it takes one pass (wavefront) for every different word that the busiest bank
must deliver. Caches are not modelled: a sector that was fetched for an earlier request is counted
again, as ``l1tex__t_sectors`` does.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gpulab._validate import is_whole
from gpulab.errors import InputError, shown

WARP_LANES = 32
SECTOR_BYTES = 32
BANKS = 32
WORD_BYTES = 4
# What one lane can load with one instruction. Source: CUDA C++ Programming Guide, "Device Memory
# Accesses", 13.0.
ELEMENT_BYTES = (1, 2, 4, 8, 16)

# Warps looked at together, so that the intermediate arrays (about 1 MiB) stay in the cache.
_WARPS_AT_ONCE = 4096
# Keys of 31 bits are sorted four times as fast as keys of 64. A bank takes five of them, its row of
# words the rest.
_LARGEST_KEY = 2**31 - 1
_ROW_BITS = 26

Lanes = npt.NDArray[np.integer]
Mask = npt.NDArray[np.bool_]
Counts = npt.NDArray[np.int64]
Keys = npt.NDArray[np.signedinteger]


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
    _check("sectors_per_request", addresses, mask)
    if not is_whole(element_bytes) or element_bytes < 1:
        raise InputError(
            f"sectors_per_request: element_bytes={shown(element_bytes)}; expected a whole number "
            "from 1. Pass the element's size."
        )
    counts = np.empty(len(addresses), np.int64)
    for start in range(0, len(addresses), _WARPS_AT_ONCE):
        part = slice(start, start + _WARPS_AT_ONCE)
        counts[part] = _sectors(
            addresses[part], None if mask is None else mask[part], int(element_bytes)
        )
    return counts


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
    same word (broadcast). Elements of 8 bytes go by half-warps and those of 16 bytes by
    quarter-warps, each a pass of its own, so they take 2 and 4 wavefronts at the least; a part
    without an active lane takes none. Source: CUDA C++ Programming Guide, "Shared Memory" of
    compute capability 5.x and later (13.0), and for wide elements "Shared Memory" of 3.x in its
    older editions; that hardware sometimes merges the parts of a wide broadcast is left out.

    Examples
    --------
    >>> lanes = np.arange(32)
    >>> shared_wavefronts(np.stack([4 * lanes, 8 * lanes, 128 * lanes, 0 * lanes]))
    array([ 1,  2, 32,  1])
    """
    _check("shared_wavefronts", addresses, mask)
    if not is_whole(element_bytes) or element_bytes not in ELEMENT_BYTES:
        raise InputError(
            f"shared_wavefronts: element_bytes={shown(element_bytes)}; expected 1, 2, 4, 8 or 16. "
            "Pass one of these."
        )
    passes = max(1, int(element_bytes) // WORD_BYTES)
    counts = np.empty(len(addresses), np.int64)
    for start in range(0, len(addresses), _WARPS_AT_ONCE):
        part = slice(start, start + _WARPS_AT_ONCE)
        keys = _bank_keys(addresses[part], None if mask is None else mask[part], int(element_bytes))
        counts[part] = _busiest_bank(keys).reshape(-1, passes).sum(axis=1)
    return counts


def _check(function: str, addresses: Lanes, mask: Mask | None) -> None:
    if (
        not isinstance(addresses, np.ndarray)
        or addresses.dtype.kind not in "iu"
        or addresses.shape[1:] != (WARP_LANES,)
    ):
        what = (
            f"{addresses.dtype}{addresses.shape}"
            if isinstance(addresses, np.ndarray)
            else shown(addresses)
        )
        raise InputError(
            f"{function}: addresses is {what}; expected an array of whole numbers with the shape "
            "(warps, 32). Pass one row per warp."
        )
    if mask is not None and not (
        isinstance(mask, np.ndarray) and mask.dtype == np.bool_ and mask.shape == addresses.shape
    ):
        what = f"{mask.dtype}{mask.shape}" if isinstance(mask, np.ndarray) else shown(mask)
        raise InputError(
            f"{function}: mask is {what}; expected bool{addresses.shape}. Pass one flag per lane, "
            "or None for all."
        )


def _sectors(addresses: Lanes, mask: Mask | None, element_bytes: int) -> Counts:
    """The different sectors of each row: sort, then count the steps."""
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
    # the odd address of an inactive lane counts for nothing
    if mask is not None and high - low > _LARGEST_KEY:
        first = np.where(mask, first, first.max(where=mask, initial=low))
        low, high = int(first.min()), int(first.max())
    first -= low
    keys = _silenced(first.astype(np.int32) if high - low <= _LARGEST_KEY else first, mask)
    keys.sort(axis=1)
    # Inactive lanes sort first, as one more value: they make the step that a row without them
    # lacks.
    counts: Counts = np.count_nonzero(keys[:, 1:] != keys[:, :-1], axis=1) + (keys[:, 0] >= 0)
    return counts


def _silenced(keys: Keys, mask: Mask | None) -> Keys:
    """The keys, in place, with -1 for every inactive lane."""
    if mask is not None:
        keys |= mask.astype(keys.dtype) - keys.dtype.type(1)
    return keys


def _bank_keys(addresses: Lanes, mask: Mask | None, element_bytes: int) -> Keys:
    """Each pass as a row of keys that sort by bank and then by row of words; -1 where no lane asks.

    An aligned element of two or four words fills as many neighbouring banks in one row of words, so
    they count as one wide bank.
    """
    width = max(WORD_BYTES, element_bytes)
    banks = BANKS * WORD_BYTES // width
    words = (addresses >> (width.bit_length() - 1)).astype(np.int32, copy=False)
    keys: Keys = ((words & (banks - 1)) << _ROW_BITS) | (words >> (banks.bit_length() - 1))
    # Half-warps and quarter-warps become rows of their own.
    return _silenced(keys, mask).reshape(-1, banks)


def _busiest_bank(keys: Keys) -> Counts:
    """The most different words that any one bank of each row holds; 0 for rows of -1 alone."""
    keys.sort(axis=1)
    counts: Counts = (keys[:, -1] >= 0).astype(np.int64)
    # Two different words of one bank: their keys differ in the low bits alone. (Unsigned, 0 - 1 is
    # the largest number.)
    differing = (keys[:, 1:] ^ keys[:, :-1]).view(np.uint32)
    near = (differing - np.uint32(1) < np.uint32((1 << _ROW_BITS) - 1)).any(axis=1)
    rows = np.flatnonzero(near)
    if len(rows):
        counts[rows] = _longest_run(keys[rows])
    return counts


def _longest_run(keys: Keys) -> Counts:
    """The most different keys within one bank of each row that has any."""
    banks = keys >> _ROW_BITS
    seen = np.zeros(keys.shape, np.int16)
    np.cumsum(keys[:, 1:] != keys[:, :-1], axis=1, out=seen[:, 1:])
    # How many were seen before the bank began, carried along; a bank always begins with a change.
    began = np.maximum.accumulate(
        np.where(banks[:, 1:] == banks[:, :-1], np.int16(0), seen[:, 1:]), axis=1
    )
    longest: Counts = (seen[:, 1:] - began).max(axis=1).astype(np.int64) + 1
    return longest
