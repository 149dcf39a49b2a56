"""AccessPatterns: every control moves the counts, and the code shown makes the same pattern."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from control_tables import offers_what_it_takes
from redraws import in_a_tenth_of_a_second

from gpulab.errors import InputError
from gpulab.models import ACCESS_KINDS
from gpulab.widgets import AccessPatterns


def counts(a: AccessPatterns) -> tuple[str, str]:
    """Sectors and wavefronts as the table has them."""
    rows = {row[0]: row[1] for row in a._results.rows}
    return rows["sectors of a request"], rows["wavefronts in shared memory"]


def test_the_counts_follow_every_control() -> None:
    """By hand: a row is 4 sectors, one element further 5; stride 2 is 8 sectors and 2 wavefronts; float64 doubles; half the lanes halve."""
    a = AccessPatterns()
    assert counts(a) == ("4", "1")
    a.set(offset_elements=1)
    assert counts(a) == ("5", "1")
    a.set(offset_elements=0, stride_elements=2)
    assert counts(a) == ("8", "2")
    a.set(stride_elements=1, element_bytes=8)
    assert counts(a) == ("8", "2")
    a.set(active_lanes=16)
    assert counts(a) == ("4", "1")
    a.set(active_lanes=32, element_bytes=4, kind="rows of 8", stride_elements=1024)
    assert counts(a) == ("4", "4")
    assert a._results.message.startswith("32 lanes need 128 B; device memory moves 4 sectors (128 B), of which 100 % are used")
    assert "4 words meet in one bank: 4 wavefronts for 1" in a._results.message
    assert [e["badge"] for e in a._results.evidence] == ["MODELLED"]


@pytest.mark.parametrize(("kind", "lanes"), list(itertools.product(ACCESS_KINDS, (32, 7))))
def test_the_code_makes_the_pattern_on_the_screen(kind: str, lanes: int) -> None:
    """What "Show the code" prints gives the same counts."""
    a = AccessPatterns(kind=kind, stride_elements=33, offset_elements=5, element_bytes=8, active_lanes=lanes)
    names: dict[str, Any] = {}
    exec(a.code.rsplit("\n", 1)[0], names)
    assert (names["a"].sectors, names["a"].wavefronts) == (a.pattern.sectors, a.pattern.wavefronts)
    assert names["a"].bytes_asked == 8 * lanes


@pytest.mark.parametrize("bad", [{"kind": "sideways"}, {"stride_elements": -1}, {"element_bytes": 3}, {"active_lanes": 40}])
def test_bad_values_are_refused_in_words(bad: dict[str, Any]) -> None:
    """One sentence, and the values stay."""
    a = AccessPatterns()
    before = dict(a.values)
    with pytest.raises(InputError, match="expected one of"):
        a.set(**bad)
    assert a.values == before


def test_it_redraws_within_a_tenth_of_a_second() -> None:
    """The best of ten moves with the most to draw, in this process's own time, so that a busy machine does not count."""
    a = AccessPatterns(element_bytes=16)
    assert in_a_tenth_of_a_second(lambda stride: a.set(stride_elements=stride), range(20, 30))


def test_what_it_offers_it_takes() -> None:
    """Buttons and controls are those of its table, and each option and suggestion is taken as itself."""
    offers_what_it_takes(AccessPatterns())
