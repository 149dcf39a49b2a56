"""One warp's access: counts by hand, what the picture shows, and bad input."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpulab.errors import InputError
from gpulab.models import AccessPattern, access_at, access_pattern

STRIDES = st.integers(-70, 70) | st.integers(-(2**20), 2**20)
SIZES = st.sampled_from([1, 2, 4, 8, 16])

# (stride, offset, element bytes) -> sectors, ideal sectors, wavefronts, ways. By hand; see each line.
BY_HAND = {
    (1, 0, 4): (4, 4, 1, 1),  # 128 bytes
    (1, 1, 4): (5, 4, 1, 1),  # bytes 4 to 131
    (1, 8, 4): (4, 4, 1, 1),  # a whole sector further
    (2, 0, 4): (8, 4, 2, 2),  # 256 bytes; even banks, twice
    (8, 0, 4): (32, 4, 8, 8),
    (32, 0, 4): (32, 4, 32, 32),  # a column of a 32 x 32 tile
    (33, 0, 4): (32, 4, 1, 1),  # padded
    (0, 0, 4): (1, 1, 1, 1),  # a broadcast
    (-1, 31, 4): (4, 4, 1, 1),
    (1, 0, 8): (8, 8, 2, 1),  # two half-warps of 128 bytes
    (2, 0, 8): (16, 8, 4, 2),
    (1, 0, 16): (16, 16, 4, 1),
    (1, 0, 2): (2, 2, 1, 1),
    (1, 0, 1): (1, 1, 1, 1),
    (2, 0, 2): (4, 2, 1, 1),  # one word a lane
    (64, 0, 2): (32, 2, 32, 32),  # 128 bytes apart
}


@pytest.mark.parametrize(("asked", "expected"), BY_HAND.items(), ids=str)
def test_patterns_by_hand(asked: tuple[int, int, int], expected: tuple[int, int, int, int]) -> None:
    """Sectors, their ideal, wavefronts and conflict ways that a pencil gives."""
    found = access_pattern(*asked)
    assert (found.sectors, found.ideal_sectors, found.wavefronts, found.conflict_ways) == expected


def test_bytes_and_efficiency() -> None:
    """By hand: stride 2 uses half of what it moves; a broadcast asks for 128 bytes, needs 4 and moves 32."""
    assert (access_pattern(2).bytes_asked, access_pattern(2).bytes_moved, access_pattern(2).efficiency) == (128, 256, 0.5)
    broadcast = access_pattern(0)
    assert (broadcast.bytes_asked, broadcast.bytes_needed, broadcast.bytes_moved, broadcast.efficiency) == (128, 4, 32, 0.125)


def test_few_active_lanes() -> None:
    """By hand: eight lanes of 4 bytes fill one sector; without a lane there is no request."""
    assert (access_pattern(active_lanes=8).sectors, access_pattern(active_lanes=8).efficiency) == (1, 1.0)
    nobody = access_pattern(active_lanes=0)
    assert (nobody.sectors, nobody.wavefronts, nobody.conflict_ways, nobody.efficiency, nobody.ideal_wavefronts) == (0, 0, 0, 0.0, 0)
    assert "No lane" in nobody.explanation
    assert access_pattern(element_bytes=8, active_lanes=16).wavefronts == 1


@given(STRIDES, STRIDES, SIZES, st.integers(0, 32))
def test_the_picture_agrees_with_the_counts(stride: int, offset: int, size: int, lanes: int) -> None:
    """Sectors drawn are those counted; the fullest bank of each pass gives the wavefronts; every active lane is drawn."""
    found = access_pattern(stride, offset, size, active_lanes=lanes)
    assert len(found.sector_lanes()) == found.sectors
    assert sorted(lane for part in found.sector_lanes().values() for lane in part) == list(range(lanes))
    passes = [found.bank_lanes(part) for part in range(max(1, size // 4))]
    deepest = [max((len(words) for words in banks.values()), default=0) for banks in passes]
    assert sum(deepest) == found.wavefronts
    assert max(deepest) == found.conflict_ways
    assert {lane for banks in passes for words in banks.values() for lanes in words.values() for lane in lanes} == set(range(lanes))
    assert found.ideal_sectors <= found.sectors <= lanes
    assert found.ideal_wavefronts <= found.wavefronts <= max(lanes, 0)
    assert 0 <= found.efficiency <= 1
    assert AccessPattern.from_dict(json.loads(json.dumps(found.to_dict(), allow_nan=False))) == found


@given(STRIDES, st.integers(0, 2**10), SIZES)
def test_conflicts_follow_the_greatest_common_divisor(stride: int, offset: int, size: int) -> None:
    """By theory: with words, stride k conflicts gcd(k, 32) ways whatever the offset; a stride of 0 not at all."""
    found = access_pattern(stride, offset, 4)
    assert found.conflict_ways == (math.gcd(stride, 32) if stride else 1)
    # Moving everything by a whole row of banks changes nothing.
    assert access_pattern(stride, offset + 128 // size, size).wavefronts == access_pattern(stride, offset, size).wavefronts


@given(st.lists(st.integers(0, 5000), min_size=32, max_size=32), st.lists(st.booleans(), min_size=32, max_size=32), SIZES)
def test_explicit_addresses_in_any_order(indices: list[int], active: list[bool], size: int) -> None:
    """Sectors and banks by plain sets; the order of lanes within a pass does not matter, that of sectors never."""
    addresses = [size * index for index in indices]
    found = access_at(addresses, size, active)
    assert found.sectors == len({a // 32 for a, on in zip(addresses, active, strict=True) if on})
    turned = access_at(addresses[::-1], size, active[::-1])
    assert (turned.sectors, turned.conflict_ways, turned.wavefronts) == (found.sectors, found.conflict_ways, found.wavefronts)
    high = access_at([2**40 + a for a in addresses], size, np.array(active))
    assert (high.sectors, high.wavefronts) == (found.sectors, found.wavefronts)


def test_inactive_lanes_are_not_looked_at() -> None:
    """A negative or misaligned address of an inactive lane is no error."""
    lanes = [4 * lane for lane in range(31)]
    assert access_at([*lanes, -7], 4, [True] * 31 + [False]).sectors == 4
    with pytest.raises(InputError, match="lane 31"):
        access_at([*lanes, -7])
    with pytest.raises(InputError, match=r"access_at: active is 5; expected several values"):
        access_at([*lanes, 0], active=5)  # type: ignore[arg-type]


@pytest.mark.parametrize("junk", [1.0, math.nan, True, None, "4", [4], 10**30, 2**20 + 1], ids=str)
def test_junk_gets_one_sentence(junk: object) -> None:
    """Strides, offsets, sizes and lanes that are no whole numbers of their range."""
    for name in ("stride_elements", "offset_elements", "element_bytes", "active_lanes"):
        with pytest.raises(InputError, match=f"^access_pattern: {name}="):
            access_pattern(**{name: junk})


def test_addresses_that_make_no_warp_are_refused() -> None:
    """Too few, misaligned, far apart, no list, flags that are none, sizes that no instruction has."""
    lanes = [4 * lane for lane in range(32)]
    assert access_at([*lanes[:31], 2**33 - 4]).sectors == 5  # the last word within 8 GiB of the first
    bad = [([*lanes[:31], 2**33],), (lanes[:31],),
           ([2 + a for a in lanes],), ([*lanes[:31], 2**40],), (5,), ("text",), (lanes, 4, [1] * 32), (lanes, 4, [True]),
           (lanes, 3), (lanes, 0), (lanes, 32), ([*lanes[:31], 4.0],)]  # fmt: skip
    for arguments in bad:
        with pytest.raises(InputError, match=r"^access_at: .*expected"):
            access_at(*arguments)


def test_the_explanation_has_the_counts() -> None:
    """The sentence under the picture names sectors, the share used and the conflict."""
    text = access_pattern(8).explanation
    assert "32 sectors" in text
    assert "12.5 %" in text
    assert "8 words meet" in text
    assert "no two words" in access_pattern(1).explanation


def test_an_access_as_a_table_and_in_words() -> None:
    """By hand: elements of 8 bytes at every second place from byte 8 on end at byte 511; in each half-warp two words meet."""
    wide = access_pattern(2, 1, 8)
    assert repr(wide) == "<access of 32 lanes x 8 B: 16 sectors (ideal 8), 4 wavefronts (ideal 2)>"
    assert wide.table() == (
        ("one warp", "touched", "ideal"),
        [("sectors of a request", "16", "8"), ("bytes moved", "512", "256 needed"), ("share of them used", "50.0%", "100.0%"),
         ("wavefronts in shared memory", "4", "2"), ("words in the busiest bank", "2", "1")],
    )  # fmt: skip
    assert wide.explanation == (
        "32 lanes need 256 B; device memory moves 16 sectors (512 B), of which 50 % are used; 8 would do. In shared memory 2 words meet in "
        "one bank: 4 wavefronts for 2."
    )
    assert access_pattern(active_lanes=1).explanation == (
        "1 lane needs 4 B; device memory moves 1 sector (32 B), of which 12.5 % are used; 1 would do. In shared memory no two words meet "
        "in a bank: 1 wavefront."
    )
    assert access_pattern(element_bytes=8).explanation.endswith("no two words meet in a bank: 2 wavefronts.")


def test_the_last_address_is_taken() -> None:
    """Addresses go up to 2**56, as many bits as a pointer has; by hand, 31 words from there down lie in five sectors."""
    lanes = [2**56 - 4 * lane for lane in range(32)]
    assert access_at(lanes).sectors == 5
    with pytest.raises(
        InputError, match="the address of lane 0=72057594037927940; expected a whole number from 0 to 72,057,594,037,927,936"
    ):
        access_at([2**56 + 4, *lanes[1:]])
