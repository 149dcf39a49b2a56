"""One warp's access: sectors and wavefronts by hand, by plain sets, and as an H200 counted them."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from gpulab import models
from gpulab.errors import InputError
from gpulab.models import ACCESS_KINDS, access_at, access_pattern
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from texts import table_text

RECORDED = Path(__file__).parents[2] / "benchmarks" / "recorded" / "counters-nvidia-h200.json"
FLAT = [4 * lane for lane in range(32)]
SIZES = st.sampled_from([1, 2, 4, 8, 16])


def by_sets(row, active, size):
    """Return the number of sectors, and of words in the fullest bank of each pass, from byte sets.

    Elements of 8 and 16 bytes are accessed in passes of a half and a quarter of a warp.
    """
    reach = [set(range(a, a + size)) if on else set() for a, on in zip(row, active, strict=True)]
    lanes = 32 // max(1, size // 4)
    parts = [set().union(*reach[i : i + lanes]) for i in range(0, 32, lanes)]
    words = [{byte // 4 for byte in part} for part in parts]
    ways = [max(sum(w % 32 == bank for w in part) for bank in range(32)) for part in words]
    return len({byte // 32 for part in parts for byte in part}), ways


# Kind, stride, offset, element bytes, lanes -> sectors, the fewest possible, wavefronts, ways.
@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (("strided", 1, 0, 4, 32), (4, 4, 1, 1)),  # 128 bytes
        (("strided", 1, 1, 4, 32), (5, 4, 1, 1)),  # bytes 4 to 131
        (("strided", 1, 8, 4, 32), (4, 4, 1, 1)),  # a whole sector further
        (("strided", 2, 0, 4, 32), (8, 4, 2, 2)),  # 256 bytes; even banks, twice
        (("strided", 8, 0, 4, 32), (32, 4, 8, 8)),
        (("strided", 32, 7, 4, 32), (32, 4, 32, 32)),  # a column of a 32 x 32 tile
        (("strided", 33, 7, 4, 32), (32, 4, 1, 1)),  # padded
        (("strided", 0, 0, 4, 32), (1, 1, 1, 1)),  # a broadcast
        (("strided", -1, 0, 4, 32), (5, 4, 1, 1)),  # from before the array's start: bytes 4 to 131
        (("strided", 1, 0, 8, 32), (8, 8, 2, 1)),  # two half-warps of 128 bytes
        (("strided", 2, 0, 8, 32), (16, 8, 4, 2)),
        (("strided", 1, 0, 16, 32), (16, 16, 4, 1)),
        (("strided", 1, 0, 8, 16), (4, 4, 1, 1)),  # half of the lanes: one of two passes
        (("strided", 1, 0, 2, 32), (2, 2, 1, 1)),
        (("strided", 64, 0, 2, 32), (32, 2, 32, 32)),  # 128 bytes apart
        (("strided", 1, 0, 4, 0), (0, 0, 0, 0)),
        (("reversed", 1, 1, 4, 32), (5, 4, 1, 1)),
        (("pairs", 1, 0, 4, 32), (2, 2, 1, 1)),  # 16 words
        (("rows of 16", 1024, 0, 4, 32), (4, 4, 2, 2)),  # two rows, in the same 16 banks
        (("rows of 8", 1024, 1, 4, 32), (8, 4, 4, 4)),  # each row straddles two sectors
        (("rows of 8", 8, 0, 4, 32), (4, 4, 1, 1)),  # contiguous rows
        (("swizzled", 32, 7, 4, 32), (32, 4, 1, 1)),  # a column again: 32 rows, 32 banks
    ],
    ids=str,
)
def test_patterns_by_hand(asked, expected):
    """Textbook patterns move the sectors, and take the wavefronts, that were counted by hand."""
    kind, *numbers, lanes = asked
    found = access_pattern(*numbers, kind=kind, active_lanes=lanes)
    names = ("sectors", "ideal_sectors", "wavefronts", "conflict_ways")
    assert tuple(getattr(found, name) for name in names) == expected


@pytest.mark.parametrize("kind", ACCESS_KINDS)
@pytest.mark.parametrize(("stride", "offset", "size"), [(1, 0, 4), (3, 5, 16), (32, 31, 1)])
def test_the_formula_is_what_a_kernel_would_compute(kind, stride, offset, size):
    """The formula that is shown, evaluated for each lane, gives the addresses."""
    # Knuth's multiplicative hash, whose top ten bits count up to 1,023.
    knuth = "(i + 1) * 2654435761 % 2**32 // 2**22"
    text = ACCESS_KINDS[kind].formula.replace("hash(i) % 1024", knuth)
    names = {"stride": stride, "offset": offset}
    expected = [size * eval(text, {**names, "i": i}) for i in range(32)]
    assert list(access_pattern(stride, offset, size, kind=kind).addresses) == expected


@given(
    hnp.arrays(np.int64, 32, elements=st.integers(0, 300) | st.integers(0, 2**24)),
    hnp.arrays(np.bool_, 32),
    SIZES,
)
def test_an_access_agrees_with_plain_sets_and_with_its_picture(indices, active, size):
    """Counts equal those of byte sets, and the sectors and banks drawn are those counted."""
    addresses = (size * indices).tolist()
    found = access_at(addresses, size, active)
    sectors, ways = by_sets(addresses, active, size)
    assert (found.sectors, found.wavefronts, found.conflict_ways) == (sectors, sum(ways), max(ways))
    assert found.ideal_wavefronts == sum(way > 0 for way in ways)
    asked = {lane: addresses[lane] for lane in np.flatnonzero(active).tolist()}
    rows = {a // 32: tuple(i for i in asked if asked[i] // 32 == a // 32) for a in asked.values()}
    assert found.sector_lanes() == dict(sorted(rows.items()))
    banks = [found.bank_lanes(part) for part in range(len(ways))]
    assert [max(map(len, one.values()), default=0) for one in banks] == ways
    drawn = {(w, i) for one in banks for b in one for w in one[b] for i in one[b][w] if w % 32 == b}
    ends = {i: (a // 4, (a + size - 1) // 4 + 1) for i, a in asked.items()}
    assert drawn == {(word, i) for i, (first, end) in ends.items() for word in range(first, end)}


@given(
    hnp.arrays(np.int64, (3, 32), elements=st.integers(0, 900) | st.integers(0, 2**28)),
    hnp.arrays(np.int64, (3, 32)),
    hnp.arrays(np.bool_, (3, 32)),
    SIZES,
)
def test_arrays_of_warps_agree_with_plain_sets(indices, garbage, mask, size):
    """Counts agree for any aligned addresses; the address of an inactive lane is ignored."""
    rows = np.where(mask, indices * size, garbage)
    pairs = zip(rows.tolist(), mask.tolist(), strict=True)
    sectors, ways = zip(*(by_sets(row, active, size) for row, active in pairs), strict=True)
    assert models.sectors_per_request(rows, mask, size).tolist() == list(sectors)
    assert models.shared_wavefronts(rows, mask, size).tolist() == [sum(way) for way in ways]


def test_many_warps_and_sectors_far_apart():
    """More warps than fit one batch; 2 sectors at any distance count 2, and 3 with one between."""
    rows = np.zeros((9001, 32), np.int64)
    rows[:, 5] = np.resize([2**31 - 1, 2**31, 2**31 + 1, 2**32], 9001) * 32
    rows[4500:, 9] = 64
    assert models.sectors_per_request(rows).tolist() == [2] * 4500 + [3] * 4501
    assert models.shared_wavefronts(rows % 2**20).tolist() == [1] * 9001


@pytest.mark.parametrize(
    "call",
    [
        lambda: access_pattern(2**20 + 1),
        lambda: access_pattern(element_bytes=3),
        lambda: access_pattern(active_lanes=33),
        lambda: access_pattern(kind="sideways"),
        lambda: access_pattern(1, 2**20 + 1),
        lambda: access_at(FLAT[:31]),
        lambda: access_at([2 + address for address in FLAT]),  # misaligned: hardware faults
        lambda: access_at([*FLAT[:31], 2**33]),
        lambda: access_at([2**56 + 4, *FLAT[1:]]),
        lambda: access_at([*FLAT[:31], -4]),
        lambda: access_at(FLAT, 4, [1] * 32),
        lambda: models.sectors_per_request(np.zeros((2, 31), np.int64)),
        lambda: models.sectors_per_request(np.zeros((2, 32))),
        lambda: models.sectors_per_request(np.zeros((2, 32), np.int64), None, 0),
        lambda: models.shared_wavefronts(np.zeros((2, 32), np.int64), None, 3),
        lambda: models.shared_wavefronts(np.zeros((2, 32), np.int64), np.ones((1, 32), bool)),
    ],
)
def test_what_makes_no_warp_is_refused(call):
    """Strides, sizes, lanes, shapes and addresses that no warp can request are refused."""
    with pytest.raises(InputError, match="expected"):
        call()
    # Accepted: a word just within 8 GiB of the first, the highest address, an inactive lane's junk.
    assert access_at([*FLAT[:31], 2**33 - 4]).sectors == 5
    assert access_at([2**56 - address for address in FLAT]).sectors == 5
    assert access_at([*FLAT[:31], -7], 4, [True] * 31 + [False]).sectors == 4


def test_strides_as_an_h200_counted_them():
    """Nsight Compute counted the same sectors and wavefronts; the badge has the file's counts."""
    kernels = json.loads(RECORDED.read_text(encoding="utf-8"))["kernels"]
    rows = [(kernel["name"], kernel["metrics"]) for kernel in kernels]
    requests, sectors = (
        f"l1tex__t_{what}_pipe_lsu_mem_global_op_ld.sum" for what in ("requests", "sectors")
    )
    waves = "smsp__sass_l1tex_data_pipe_lsu_wavefronts_mem_shared_op_ld.sum"
    for start, count, ours in (("load", sectors, "sectors"), ("shared", waves, "wavefronts")):
        found = {name: m[count] / m[requests] for name, m in rows if f"{start}-stride" in name}
        assert (
            found == {n: getattr(access_pattern(int(n.split("-")[2])), ours) for n in found} != {}
        )
    kinds = ("sectors per", "wavefronts of", "bank conflicts of")
    counted = [
        c["equal"]
        for k in kernels
        for c in k["comparisons"]
        if c["counter"].startswith(kinds) and (c["hardware"] or c["simulated"])
    ]
    stated = re.findall(r"\d+", access_pattern().evidence.known_error)
    assert list(map(int, stated[:3])) == [sum(counted), len(counted), len(kernels)]


def test_accesses_as_they_are_shown(approved):
    """Tables and sentences: stride 2 uses half of what it moves, a broadcast 4 of 32 bytes."""
    shown = [access_pattern(*one) for one in ((1,), (8,), (2, 1, 8), (0,), (1, 0, 16))]
    shown += [access_pattern(active_lanes=lanes) for lanes in (1, 0)]
    walks = [f"{name}: {kind.label}, {kind.formula}" for name, kind in ACCESS_KINDS.items()]
    parts = (
        f"{r!r}\n{r.bytes_asked} B\n{r.explanation}\n{table_text(r._repr_html_())}" for r in shown
    )
    assert "\n".join([*walks, *parts]) == approved
