"""What orders threads beside ``syncthreads``, by hand: chains of ``syncwarp``, and fences with atomics."""

from __future__ import annotations

import numpy as np
import pytest

from gpulab.kernels._simulate._ordering import Fences, WarpBarriers

LOW, HIGH, ALL = 0x0000FFFF, 0xFFFF8000, 0xFFFFFFFF  # lanes 0 to 15, 15 to 31, and all


def bits(*masks: int) -> np.ndarray:
    """Return the lanes that arrived, a row a block, of one warp each."""
    return np.array([[mask] for mask in masks], dtype=np.uint32)


@pytest.fixture
def calls() -> WarpBarriers:
    """Two blocks: both call for the low lanes at event 1; the first for the high lanes at 2, where the second calls for all."""
    made = WarpBarriers(2, 1, 0)
    made.add(1, bits(LOW))
    made.add(2, bits(HIGH, ALL))
    return made


@pytest.mark.parametrize(
    ("row", "first", "since", "lane", "ordered"),
    [
        (0, 0, 0, 5, True),  # both in the first call
        (0, 0, 0, 20, True),  # by lane 15, which is in both
        (0, 0, 1, 20, False),  # the first call was over when lane 0 came
        (0, 15, 1, 20, True),
        (0, 20, 0, 0, False),  # the low lanes met before the high ones
        (1, 20, 1, 0, True),
        (1, 20, 2, 0, False),
    ],
)
def test_a_chain_of_syncwarps_leads_from_lane_to_lane(
    calls: WarpBarriers, row: int, first: int, since: int, lane: int, ordered: bool
) -> None:
    """Of calls after the first lane's access alone, each of which has a lane that the ones before reached."""
    found = calls.ordered(*(np.array([x]) for x in (row, 0, first, since, lane)))
    assert found.tolist() == [ordered]


def test_many_lanes_at_once_and_none(calls: WarpBarriers) -> None:
    """Each by its own block and since its own event; nobody asks, nobody is answered; a whole warp's call is known by its event."""
    found = calls.ordered(*(np.array(x) for x in ([0, 1, 0], [0, 0, 0], [0, 20, 20], [1, 1, 0], [5, 0, 31])))
    assert found.tolist() == [False, True, True]
    nobody = calls.ordered(*(np.empty(0, np.int64) for _ in range(5)))
    assert (nobody.tolist(), nobody.dtype) == ([], bool)
    assert calls.last_full.tolist() == [[-1], [2]]


def test_a_fence_an_atomic_and_a_look_order_blocks() -> None:
    """Block 0 fences at 1 and publishes at 2, block 1 looks at 3: what 0 did before 1 comes before what 1 does now, and nothing else."""
    fences = Fences(3)
    fences.fence(np.array([0]), 1)
    fences.atomic(np.array([0]), 2)
    fences.atomic(np.array([1]), 3)

    def ordered(earlier: int, since: int, later: int) -> bool:
        return bool(fences.ordered(np.array([earlier]), np.array([since]), np.array([later]))[0])

    assert ordered(0, 0, 1)
    assert not ordered(0, 1, 1)  # no fence after it
    assert not ordered(1, 0, 0)  # block 1 never fenced
    assert not ordered(0, 0, 2)  # block 2 never looked
    fences.fence(np.array([0, 1]), 4)
    fences.atomic(np.array([0, 1]), 5)  # at one moment: in the order of the blocks
    assert ordered(0, 3, 1)
    assert not ordered(1, 3, 0)
    assert not ordered(0, 3, 0)  # a block has its barriers
