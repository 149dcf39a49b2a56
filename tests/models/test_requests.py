"""Sectors and wavefronts of whole arrays of warps, against plain sets and against counts derived by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from gpulab.errors import InputError
from gpulab.models import sectors_per_request, shared_wavefronts

LANES = np.arange(32)
WIDTHS = st.sampled_from([1, 2, 4, 8, 16])


def sectors_by_sets(addresses: np.ndarray, mask: np.ndarray, element_bytes: int) -> list[int]:
    """Every byte of every active lane, by the definition of a sector."""
    return [
        len({byte // 32 for address, active in zip(row, lanes, strict=True) if active for byte in range(address, address + element_bytes)})
        for row, lanes in zip(addresses.tolist(), mask.tolist(), strict=True)
    ]


def wavefronts_by_sets(addresses: np.ndarray, mask: np.ndarray, element_bytes: int) -> list[int]:
    """The different words of every bank, by the definition of a conflict; wide elements in two or four passes."""
    passes = max(1, element_bytes // 4)
    counts = []
    for row, lanes in zip(addresses.tolist(), mask.tolist(), strict=True):
        total = 0
        for part in range(passes):
            words = {
                byte // 4
                for lane in range(part * 32 // passes, (part + 1) * 32 // passes)
                if lanes[lane]
                for byte in range(row[lane], row[lane] + element_bytes)
            }
            total += max((sum(word % 32 == bank for word in words) for bank in range(32)), default=0)
        counts.append(total)
    return counts


@pytest.mark.parametrize(
    ("stride", "element_bytes", "expected"),
    [(1, 4, 4), (2, 4, 8), (8, 4, 32), (32, 4, 32), (0, 4, 1), (1, 8, 8), (1, 2, 2), (1, 1, 1), (1, 16, 16), (2, 8, 16), (-1, 4, 4)],
)
def test_sectors_of_a_stride(stride: int, element_bytes: int, expected: int) -> None:
    """By hand: 32 lanes span 32 * stride * size bytes in sectors of 32, and never more than one sector a lane."""
    addresses = 1 << 20 | LANES * 0
    addresses = addresses + (LANES if stride >= 0 else LANES - 31) * stride * element_bytes
    assert sectors_per_request(addresses[None, :], None, element_bytes).tolist() == [expected]


def test_an_offset_of_one_element_costs_a_fifth_sector() -> None:
    """By hand: bytes 4 to 131 lie in sectors 0 to 4; from 32 on they lie in four again."""
    rows = np.stack([4 * LANES + 4 * offset for offset in (0, 1, 7, 8)])
    assert sectors_per_request(rows).tolist() == [4, 5, 5, 4]


@pytest.mark.parametrize("stride", range(1, 130))
def test_conflicts_of_a_stride(stride: int) -> None:
    """By hand: lanes i and j meet in a bank where stride * (i - j) is a multiple of 32, hence gcd(stride, 32) ways."""
    assert shared_wavefronts(4 * stride * LANES[None, :]).tolist() == [math.gcd(stride, 32)]


def test_one_word_for_all_is_a_broadcast() -> None:
    """By hand: one word is delivered once; two words of one bank take two; bytes of one word are no conflict."""
    rows = np.stack([0 * LANES, 128 * (LANES % 2), LANES % 4])
    assert shared_wavefronts(rows, None, 1).tolist() == [1, 2, 1]


def test_a_column_of_a_tile() -> None:
    """By hand: a column of 32 x 32 floats lies in one bank, of 32 x 33 in all; of doubles, padded, in every second bank twice."""
    assert shared_wavefronts(np.stack([4 * 32 * LANES, 4 * 33 * LANES])).tolist() == [32, 1]
    # A half-warp of doubles at stride 33: words 66 i and 66 i + 1, banks 2 i and 2 i + 1, so no conflict; unpadded 16 ways each half.
    assert shared_wavefronts(np.stack([8 * 32 * LANES, 8 * 33 * LANES]), None, 8).tolist() == [32, 2]


def test_wide_elements_go_by_parts() -> None:
    """By hand: 32 neighbours of 8 bytes need two wavefronts and of 16 bytes four; half of the lanes half as many."""
    first_half = np.tile(LANES < 16, (1, 1))
    assert shared_wavefronts(8 * LANES[None, :], None, 8).tolist() == [2]
    assert shared_wavefronts(16 * LANES[None, :], None, 16).tolist() == [4]
    assert shared_wavefronts(8 * LANES[None, :], first_half, 8).tolist() == [1]
    assert shared_wavefronts(16 * LANES[None, :], first_half, 16).tolist() == [2]


@given(
    addresses=hnp.arrays(np.int64, (5, 32), elements=st.integers(0, 700) | st.integers(0, 2**46)),
    mask=hnp.arrays(np.bool_, (5, 32)),
    element_bytes=st.integers(1, 70),
)
def test_sectors_are_those_of_the_bytes(addresses: np.ndarray, mask: np.ndarray, element_bytes: int) -> None:
    """Any addresses, aligned or not, near or far: as many sectors as the bytes lie in."""
    assert sectors_per_request(addresses, mask, element_bytes).tolist() == sectors_by_sets(addresses, mask, element_bytes)
    assert sectors_per_request(addresses, None, element_bytes).tolist() == sectors_by_sets(addresses, mask | True, element_bytes)


@given(
    indices=hnp.arrays(np.int64, (5, 32), elements=st.integers(0, 200) | st.integers(0, 14_000) | st.integers(0, 2**28)),
    mask=hnp.arrays(np.bool_, (5, 32)),
    element_bytes=WIDTHS,
)
def test_wavefronts_are_those_of_the_words(indices: np.ndarray, mask: np.ndarray, element_bytes: int) -> None:
    """Any aligned addresses: as many wavefronts as the busiest bank has words, part by part."""
    addresses = indices * element_bytes
    assert shared_wavefronts(addresses, mask, element_bytes).tolist() == wavefronts_by_sets(addresses, mask, element_bytes)
    assert shared_wavefronts(addresses, None, element_bytes).tolist() == wavefronts_by_sets(addresses, mask | True, element_bytes)


@given(garbage=hnp.arrays(np.int64, (3, 32)), mask=hnp.arrays(np.bool_, (3, 32)), element_bytes=WIDTHS)
def test_inactive_lanes_are_not_read(garbage: np.ndarray, mask: np.ndarray, element_bytes: int) -> None:
    """Whatever an inactive lane's address is, even the largest or a negative one, the counts are the same."""
    plain = np.tile(LANES * 3 * element_bytes, (3, 1))
    mixed = np.where(mask, plain, garbage)
    for count in (sectors_per_request, shared_wavefronts):
        assert count(mixed, mask, element_bytes).tolist() == count(plain, mask, element_bytes).tolist()


@pytest.mark.parametrize("kind", [np.int32, np.uint32, np.int64, np.uint64, np.uint16])
def test_many_warps_of_any_integer_type(kind: type) -> None:
    """More warps than are looked at together, in any integer type and layout, with the arguments left as they were."""
    rng = np.random.default_rng(1)
    addresses = (4 * rng.integers(0, 3000, (32, 9001))).astype(kind).T  # not contiguous
    mask = rng.random((9001, 32)) < 0.5
    before = addresses.copy()
    some = np.r_[0:40, 4090:4100, 8990:9001]
    assert sectors_per_request(addresses, mask)[some].tolist() == sectors_by_sets(addresses[some], mask[some], 4)
    assert shared_wavefronts(addresses, mask)[some].tolist() == wavefronts_by_sets(addresses[some], mask[some], 4)
    assert (addresses == before).all()


def test_no_warps() -> None:
    """An empty array gives an empty one."""
    assert sectors_per_request(np.empty((0, 32), np.int64)).shape == (0,)
    assert shared_wavefronts(np.empty((0, 32), np.int64), np.empty((0, 32), bool), 8).shape == (0,)


@pytest.mark.parametrize("count", [sectors_per_request, shared_wavefronts])
def test_what_does_not_fit_is_refused(count: object) -> None:
    """Shapes, types and sizes that make no warp get one sentence."""
    rows = np.zeros((2, 32), np.int64)
    for bad in ([rows.astype(float)], [rows[:, :31]], [rows[0]], [rows.tolist()], [None], [rows, rows], [rows, np.ones((1, 32), bool)]):
        with pytest.raises(InputError, match="expected"):
            count(*bad)
    for size in (0, -4, True, 4.0, math.nan, "4", None):
        with pytest.raises(InputError, match="element_bytes"):
            count(rows, None, size)


def test_wavefronts_of_odd_sizes_are_refused() -> None:
    """No instruction loads 3 bytes from shared memory."""
    with pytest.raises(InputError, match="1, 2, 4, 8 or 16"):
        shared_wavefronts(np.zeros((1, 32), np.int64), None, 3)


@pytest.mark.parametrize("sectors", [2**31 - 2, 2**31 - 1, 2**31, 2**31 + 1, 2**32 - 1, 2**32])
def test_sectors_that_a_short_key_does_not_tell_apart(sectors: int) -> None:
    """By hand: first and last sector are two, and three with one between, however far apart; an inactive lane beyond them is not seen."""
    rows = np.zeros((2, 32), np.int64)
    rows[:, 5], rows[1, 9] = 32 * sectors, 64
    assert sectors_per_request(rows).tolist() == [2, 3]
    rows[0, 7] = 2**60
    assert sectors_per_request(rows, rows < 2**60).tolist() == [2, 3]
