"""The usual walks of a warp against counts derived by hand and against plain sets."""

from __future__ import annotations

import pytest

from gpulab.errors import InputError
from gpulab.models import ACCESS_KINDS, access_pattern, named_access


# kind, stride, offset, element bytes -> sectors, wavefronts, conflict ways.
@pytest.mark.parametrize(
    ("arguments", "counts"),
    [
        (("strided", 1, 0, 4), (4, 1, 1)),  # 128 bytes in a row
        (("strided", 0, 0, 4), (1, 1, 1)),  # one word for all: broadcast
        (("reversed", 1, 0, 4), (4, 1, 1)),  # the order of lanes costs nothing
        (("reversed", 1, 1, 4), (5, 1, 1)),  # the offset does: bytes 4 to 132
        (("pairs", 1, 0, 4), (2, 1, 1)),  # 16 words
        (("rows of 16", 1024, 0, 4), (4, 2, 2)),  # two rows of 64 bytes, in the same 16 banks
        (("rows of 8", 1024, 0, 4), (4, 4, 4)),  # four rows of one sector each, in the same 8 banks
        (("rows of 8", 1024, 1, 4), (8, 4, 4)),  # each row straddles two sectors
        (("rows of 8", 8, 0, 4), (4, 1, 1)),  # rows that follow on each other
        (("swizzled", 32, 0, 4), (32, 1, 1)),  # a column of a 32-wide tile: 32 rows, 32 banks
        (("swizzled", 32, 7, 4), (32, 1, 1)),
        (("strided", 32, 7, 4), (32, 32, 32)),  # the same column without the exchange
        (("strided", 33, 7, 4), (32, 1, 1)),  # and with padding
        (("strided", 1, 0, 8), (8, 2, 1)),  # 256 bytes, half-warps
        (("strided", 1, 0, 16), (16, 4, 1)),  # 512 bytes, quarter-warps
    ],
)
def test_counts_by_hand(arguments: tuple[str, int, int, int], counts: tuple[int, int, int]) -> None:
    """Sectors, wavefronts and conflict ways of the textbook's patterns."""
    found = named_access(*arguments)
    assert (found.sectors, found.wavefronts, found.conflict_ways) == counts


@pytest.mark.parametrize("kind", list(ACCESS_KINDS))
@pytest.mark.parametrize("size", [1, 4, 16])
def test_the_formula_is_what_a_kernel_would_compute(kind: str, size: int) -> None:
    """The text shown, run by Python for each lane, gives the addresses; the sectors are those of a plain set."""

    def hashed(i: int) -> int:
        return (i + 1) * 2654435761 % 2**32 // 2**22  # the top ten bits

    for stride, offset in ((1, 0), (3, 5), (32, 31), (0, 2)):
        text = ACCESS_KINDS[kind].formula.replace("hash(i) % 1024", "hashed(i)")
        elements = [eval(text, {"i": i, "stride": stride, "offset": offset, "hashed": hashed}) for i in range(32)]
        found = named_access(kind, stride, offset, size)
        assert found.addresses == tuple(element * size for element in elements)
        assert found.sectors == len({element * size // 32 for element in elements})


def test_a_stride_is_the_pattern_that_has_its_own_function() -> None:
    """The kind "strided" and ``access_pattern`` agree, also before the array's start and with few lanes."""
    for stride, offset, lanes in ((2, 3, 32), (-1, 0, 32), (5, -7, 9), (1, 0, 0)):
        one, other = named_access("strided", stride, offset, 8, active_lanes=lanes), access_pattern(stride, offset, 8, active_lanes=lanes)
        assert (one.sectors, one.wavefronts, one.bytes_asked) == (other.sectors, other.wavefronts, other.bytes_asked)
        assert all(a == b for a, b, active in zip(one.addresses, other.addresses, one.active, strict=True) if active)


@pytest.mark.parametrize("bad", [{"kind": "sideways"}, {"stride_elements": 1.5}, {"element_bytes": 3}, {"active_lanes": 33}, {"kind": 3}])
def test_bad_arguments_are_refused_in_words(bad: dict[str, object]) -> None:
    """One sentence with what was expected."""
    with pytest.raises(InputError, match=r"named_access: .*expected"):
        named_access(**{"kind": "strided", **bad})  # type: ignore[arg-type]


def test_the_usual_walk() -> None:
    """Without more words it is one word after the other, by all lanes, and "strided" before the array's start is moved whole rows."""
    assert named_access("strided").addresses == tuple(4 * lane for lane in range(32))
    assert named_access("strided").active == (True,) * 32
    # From byte -28 on: 128 bytes further.
    assert named_access("strided", 1, -7).addresses == tuple(100 + 4 * lane for lane in range(32))
    assert named_access("strided", 2**20).sectors == named_access("strided", -(2**20)).sectors == 32
    with pytest.raises(InputError, match=r"offset_elements=1048577; expected a whole number from -1,048,576 to 1,048,576"):
        named_access("strided", 1, 2**20 + 1)
