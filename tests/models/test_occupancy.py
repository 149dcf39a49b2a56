"""Occupancy against NVIDIA's header, against numbers derived by hand, and in its own words."""

from __future__ import annotations

import json
import math
import os
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpulab.errors import InputError, LaunchError
from gpulab.models import Occupancy, OccupancySweep, occupancy, occupancy_sweep
from gpulab.models._blocks import occupancy_table
from gpulab.models._limits import compute_capabilities, sm_limits
from gpulab.models._remedies import table_of

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import occupancy_oracle as oracle

LAUNCHES = 60_000  # of each compute capability, under ten seconds in all; the benchmark takes a million
CAPABILITIES = st.sampled_from(compute_capabilities())
THREADS = st.integers(1, 1024)
REGISTERS = st.integers(0, 255)
SHARED = st.integers(0, 240 * 1024)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> oracle.ctypes.CDLL:
    """NVIDIA's header behind a few lines of C; a missing one is a failure in continuous integration."""
    try:
        return oracle.build(tmp_path_factory.mktemp("oracle"))
    except oracle.MissingError as missing:
        if os.environ.get("GPULAB_REQUIRE_BROWSER") == "1":  # what continuous integration sets for everything it must not miss
            pytest.fail(f"GPULAB_REQUIRE_BROWSER=1 and {missing}", pytrace=False)
        pytest.skip(f"{missing}")


@pytest.mark.parametrize("capability", compute_capabilities())
def test_no_launch_differs_from_the_vendors_header(library: oracle.ctypes.CDLL, capability: str) -> None:
    """Blocks, the blocks that each resource allows and the allocations equal the header's, half of the launches next to a limit."""
    different, limiting, near = oracle.compare(library, capability, LAUNCHES, 7, oracle.header_version())
    assert different.tolist() == []
    assert near >= LAUNCHES // 2
    assert (limiting[:3] > LAUNCHES // 10).all()  # warps, registers and shared memory each limit often enough to be tested


def test_the_comparison_can_fail(library: oracle.ctypes.CDLL) -> None:
    """A mutation of each argument by one step is seen in the answers: the header is asked what we are asked."""
    launches = np.array([[256, 32, 0, 49153, 8, 50, 1, 4]])
    for column, value in enumerate([512, 64, 8192, 8192, 16, 100, 0, 64]):
        changed = launches.copy()
        changed[0, column] = value
        assert oracle.vendor(library, "10.0", changed).tolist() != oracle.vendor(library, "10.0", launches).tolist()
        assert oracle.ours("10.0", changed).tolist() == oracle.vendor(library, "10.0", changed).tolist()


def test_the_limits_are_those_of_the_guide() -> None:
    """The table of the guide, typed a second time: blocks, threads, shared kB of an SM and of a block."""
    guide = {
        "7.5": (16, 1024, 64, 64), "8.0": (32, 2048, 164, 163), "8.6": (16, 1536, 100, 99), "8.7": (16, 1536, 164, 163),
        "8.9": (24, 1536, 100, 99), "9.0": (32, 2048, 228, 227), "10.0": (32, 2048, 228, 227), "11.0": (24, 1536, 228, 227),
        "12.0": (24, 1536, 100, 99),
    }  # fmt: skip
    for capability, (blocks, threads, per_sm, per_block) in guide.items():
        sm = sm_limits(capability)
        assert (sm.blocks, 32 * sm.warps, sm.shared_bytes, sm.shared_bytes_per_block) == (blocks, threads, 1024 * per_sm, 1024 * per_block)
        assert sm.registers == 65536


# By hand, from the guide's table and the steps of allocation.
BY_HAND = [
    ((256, 64, 0, "9.0"), 4, 32, "registers"),  # 64 x 32 = 2,048 a warp; 65,536 / 2,048 = 32 warps
    ((1024, 32, 0, "9.0"), 2, 64, "warps"),
    ((1024, 33, 0, "9.0"), 1, 32, "registers"),  # 33 x 32 = 1,056 rounds up to 1,280; 16,384 / 1,280 = 12 a partition, 48 warps
    ((32, 16, 0, "9.0"), 32, 32, "blocks"),
    ((33, 16, 0, "9.0"), 32, 64, "warps"),
    ((768, 16, 0, "8.0"), 2, 48, "warps"),  # 24 warps a block
    ((1024, 16, 0, "8.6"), 1, 32, "warps"),  # 48 slots
    ((256, 32, 48 * 1024, "8.6"), 2, 16, "shared"),  # 49 KiB with the driver's, of 100
    ((128, 32, 227 * 1024, "9.0"), 1, 4, "shared"),
    ((128, 32, 227 * 1024 + 1, "9.0"), 0, 0, "shared"),
    ((1024, 64, 0, "9.0"), 1, 32, "registers"),
    ((1024, 65, 0, "9.0"), 0, 0, "registers"),
    ((640, 100, 0, "9.0"), 0, 0, "registers"),  # 20 warps, 3,328 each: 66,560
    ((544, 112, 0, "9.0"), 0, 0, "registers"),  # 17 warps count for 20 in the check: 20 x 3,584 = 71,680, though 17 x 3,584 = 60,928
    ((512, 128, 0, "7.0"), 1, 16, "registers"),
    ((64, 32, 0, "7.5"), 16, 32, "warps"),
]


@pytest.mark.parametrize(("launch", "blocks", "warps", "limiter"), BY_HAND)
def test_launches_by_hand(launch: tuple[int, int, int, str], blocks: int, warps: int, limiter: str) -> None:
    """Numbers that a pencil gives."""
    found = occupancy(*launch)
    assert (found.blocks_per_sm, found.warps_per_sm, found.limiter) == (blocks, warps, limiter)
    assert found.ratio == warps / found.sm.warps


def test_barriers_limit_from_hopper_on() -> None:
    """By hand: 64 barriers of 9.0 give 4 blocks of 16, 24 of 12.0 one; 8.0 has no such limit."""
    assert occupancy(128, 32, 0, "9.0", barriers_per_block=16).blocks_per_sm == 4
    assert occupancy(128, 32, 0, "9.0", barriers_per_block=16).limiter == "barriers"
    assert occupancy(128, 32, 0, "12.0", barriers_per_block=16).blocks_per_sm == 1
    assert occupancy(128, 32, 0, "8.0", barriers_per_block=16).blocks_per_sm == 16


def test_a_carve_out_bounds_shared_memory() -> None:
    """By hand: 50 % of 164 KiB is the split of 100: five blocks of 20 KiB; of 164 eight. A block too large widens the split."""
    assert occupancy(128, 32, 19 * 1024, "8.0", carveout_percent=50).blocks_per_sm == 5
    assert occupancy(128, 32, 19 * 1024, "8.0").blocks_per_sm == 8
    assert occupancy(128, 32, 120 * 1024, "8.0", carveout_percent=0).shared_bytes_per_sm == 132 * 1024


def test_more_than_48_kib_need_opting_in() -> None:
    """Without it the launch is impossible, and the sentence says what to do."""
    launch = occupancy(256, 32, 64 * 1024, "9.0", opt_in=False)
    assert launch.blocks_per_sm == 0
    assert "opt_in=True" in launch.explanation
    assert occupancy(256, 32, 48 * 1024, "9.0", opt_in=False).blocks_per_sm == 4


@given(THREADS, REGISTERS, SHARED, CAPABILITIES)
def test_more_of_a_resource_never_gives_more_blocks(threads: int, registers: int, shared: int, capability: str) -> None:
    """Registers, shared memory, barriers and whole warps only take blocks away."""
    blocks = occupancy(threads, registers, shared, capability).blocks_per_sm
    assert occupancy(threads, min(registers + 1, 255), shared, capability).blocks_per_sm <= blocks
    assert occupancy(threads, registers, shared + 1, capability).blocks_per_sm <= blocks
    assert occupancy(min(threads + 1, 1024), registers, shared, capability).blocks_per_sm <= blocks
    assert occupancy(threads, registers, shared, capability, barriers_per_block=2).blocks_per_sm <= blocks
    assert occupancy(threads, registers, shared, capability, carveout_percent=0).blocks_per_sm <= blocks


@given(THREADS, REGISTERS, SHARED, CAPABILITIES, st.integers(0, 16), st.none() | st.integers(0, 100))
def test_a_result_agrees_with_itself(
    threads: int, registers: int, shared: int, capability: str, barriers: int, carveout: int | None
) -> None:
    """The limiter is a resource that allows no more; nothing allocated exceeds the SM; the result goes through JSON."""
    o = occupancy(threads, registers, shared, capability, barriers_per_block=barriers, carveout_percent=carveout)
    assert o.limiter == o.limiters[0]
    assert all(o.allowed.by_resource()[name] == o.blocks_per_sm for name in o.limiters)
    assert 0 <= o.ratio <= 1
    assert o.blocks_per_sm * o.allocated_registers_per_block <= o.sm.registers
    assert o.blocks_per_sm * o.allocated_shared_bytes_per_block <= o.shared_bytes_per_sm
    assert o.shared_bytes_per_sm in o.sm.shared_splits_bytes
    again = Occupancy.from_dict(json.loads(json.dumps(o.to_dict(), allow_nan=False)))
    assert again == o
    assert repr(again) == repr(o)


REMEDIES = {
    r"With at most ([\d,]+) registers a thread": "registers_per_thread",
    r"With at most ([\d,]+) bytes of shared memory": "shared_bytes_per_block",
    r"With (\d+) threads a block": "threads_per_block",
    r"With at most (\d+) barriers? a block": "barriers_per_block",
    r"With a carve-out of (\d+) %": "carveout_percent",
}


@given(THREADS, REGISTERS, SHARED, CAPABILITIES, st.integers(0, 16), st.none() | st.integers(0, 100), st.booleans())
def test_the_remedy_that_is_named_helps(
    threads: int, registers: int, shared: int, capability: str, barriers: int, carveout: int | None, opt_in: bool
) -> None:
    """Doing what the explanation says gives the blocks and the percentage that it promises, and more warps than before."""
    names = ("threads_per_block", "registers_per_thread", "shared_bytes_per_block", "compute_capability", "barriers_per_block")
    asked = dict(zip(names, (threads, registers, shared, capability, barriers), strict=True))
    asked |= {"carveout_percent": carveout, "opt_in": opt_in}
    launch = occupancy(**asked)
    text = launch.explanation
    promise = re.search(r"it is (\d+) blocks? \(([\d.]+) %\)", text)
    if promise is None:
        assert launch.ratio == 1 or "No single change" in text
        return
    change = next(({name: int(m.group(1).replace(",", ""))} for p, name in REMEDIES.items() if (m := re.search(p, text))), {"opt_in": True})
    better = occupancy(**{**asked, **change})
    assert better.warps_per_sm > launch.warps_per_sm
    assert better.blocks_per_sm == int(promise.group(1))
    assert 100 * better.ratio == pytest.approx(float(promise.group(2)), rel=0.005)


def test_every_explanation_is_a_few_short_sentences() -> None:
    """The learner reads it under a slider: at most 260 characters, with the numbers, for every limiter."""
    seen = set()
    for launch, *_ in BY_HAND:
        found = occupancy(*launch)
        seen.add(found.limiter)
        assert 20 < len(found.explanation) <= 260
        assert found.explanation[0].isupper()
        assert found.explanation.endswith(".")
    assert seen == {"warps", "registers", "shared", "blocks"}


# By hand, as the launches above; what would lift it is the nearest value that gives more warps.
SAID = [
    ((1024, 32), {}, "All 64 warp slots are taken: no launch can hold more."),
    ((768, 16, 0, "8.0"), {}, "A block has 24 warps: 2 blocks fill 48 of 64 warp slots, and one more does not fit. "
     "With 800 threads a block it is 2 blocks (78.1 %)."),
    ((1024, 16, 0, "8.6"), {}, "A block has 32 warps: 1 block fills 32 of 48 warp slots, and one more does not fit. "
     "With 768 threads a block it is 2 blocks (100 %)."),
    ((512, 64), {}, "The register file holds 32 warps of 64 registers a thread: 2 blocks. "
     "With at most 40 registers a thread it is 3 blocks (75 %)."),  # 48 warps leave 1,365 registers each, in steps of 256
    ((1024, 65), {}, "The register file holds 28 warps of 65 registers a thread, fewer than the 32 that one block counts for: it can't be "
     "launched. With at most 64 registers a thread it is 1 block (50 %)."),
    ((256, 32, 48 * 1024, "8.6"), {}, "Shared memory of 100 KiB holds 2 blocks of 50,176 bytes (1,024 for the driver). "
     "With at most 33,024 bytes of shared memory a block it is 3 blocks (50 %)."),  # a third of 102,400 in steps of 128, less 1,024
    ((128, 32, 60 * 1024, "7.5"), {}, "Shared memory of 64.0 KiB holds 1 block of 61,440 bytes. "
     "With at most 32,768 bytes of shared memory a block it is 2 blocks (25 %)."),
    ((128, 32, 300 * 1024), {}, "A block asks for 300 KiB of shared memory; 9.0 gives a block at most 227 KiB: it can't be launched. "
     "With at most 232,448 bytes of shared memory a block it is 1 block (6.25 %)."),
    ((256, 32, 64 * 1024), {"opt_in": False}, "A block asks for 64.0 KiB of shared memory, and more than 48 KiB need opt_in=True: it can't "
     "be launched. With opt_in=True it is 3 blocks (37.5 %)."),
    ((128, 32, 19 * 1024, "8.0"), {"carveout_percent": 50}, "Shared memory of 100 KiB holds 5 blocks of 20,480 bytes (1,024 for the "
     "driver). With a carve-out of 61 % it is 6 blocks (37.5 %)."),  # 61 % of 164 KiB are just over 100 KiB
    ((1, 16, 0, "7.5"), {}, "An SM takes at most 16 blocks, and 16 of 1 warp each fill 16 of 32 warp slots. "
     "With 64 threads a block it is 16 blocks (100 %). The last warp of each block uses 1 of its 32 lanes."),
    ((128, 32), {"barriers_per_block": 16}, "An SM has 64 barriers, enough for 4 blocks of 16 barriers each. "
     "With at most 12 barriers a block it is 5 blocks (31.2 %)."),
    ((128, 32, 0, "10.0"), {"virtual_resources": 9}, "An SM has 128 virtual resources, for 14 blocks of 9 each. "
     "With 160 threads a block it is 12 blocks (93.8 %)."),
    # 1,280 registers a warp, 12 warps a partition; 75 KiB and the driver's are a third of 228.
    ((512, 40, 75 * 1024), {}, "The register file holds 48 warps of 40 registers a thread: 3 blocks. The shared memory allows no more "
     "either. No single change of the block, its registers or its shared memory lets more warps in."),
    # An eighth of 228 KiB is 28.5, and of 64 barriers eight.
    ((128, 32, 27 * 1024), {"barriers_per_block": 8}, "Shared memory of 228 KiB holds 8 blocks of 28,672 bytes (1,024 for the driver). "
     "The barriers allow no more either. With 160 threads a block it is 8 blocks (62.5 %)."),
    # Where nothing fits at all, what else does not fit is not said.
    ((1024, 65, 300 * 1024), {}, "The register file holds 28 warps of 65 registers a thread, fewer than the 32 that one block counts for: "
     "it can't be launched. No single change of the block, its registers or its shared memory lets more warps in."),
]  # fmt: skip


@pytest.mark.parametrize(("launch", "options", "words"), SAID)
def test_what_limits_in_full(launch: tuple, options: dict, words: str) -> None:
    """One of each cause and of each remedy, to the letter: singular and plural, and every number by hand."""
    assert occupancy(*launch, **options).explanation == words


def test_a_launch_and_a_sweep_as_tables() -> None:
    """By hand: 1,280 registers a warp; 21,024 bytes in steps of 128; 64 barriers by twos; a resource without a limit has no row."""
    headers, rows = occupancy(128, 40, 20_000, barriers_per_block=2).table()
    assert headers == ("one SM of 9.0", "one block takes", "blocks allowed")
    assert rows[:-1] == [
        ("warps", "4 of 64", "16"), ("registers", "5,120 of 65,536", "12"), ("shared", "21,120 of 233,472 bytes", "11 (the limit)"),
        ("blocks", "1 of 32", "32"), ("barriers", "2 of 64", "32"), ("occupancy", "44 of 64 warps", "68.8%"),
    ]  # fmt: skip
    assert rows[-1][0] == "why"
    assert repr(occupancy(1024, 16, 0, "8.6")) == "<occupancy 67% on 8.6: 1 block, 32 of 48 warps, limited by warps>"
    sweep = occupancy_sweep(occupancy(256, 64), "registers_per_thread", [32, 40, 41, 255])
    assert repr(sweep) == "<occupancy over registers_per_thread, 4 values, 12% to 100%>"
    assert sweep.steps() == (1, 2, 3)
    assert occupancy_sweep(occupancy(256, 64), "registers_per_thread", [32, 40, 39, 41]).steps() == (1, 3)  # 8, 6, 6 and 5 blocks
    assert sweep.table() == (
        ("registers_per_thread", "blocks", "occupancy", "limited by"),
        [("32", "8", "100.0%", "warps"), ("40", "6", "75.0%", "registers"), ("41", "5", "62.5%", "registers"),
         ("255", "1", "12.5%", "registers")],
    )  # fmt: skip


def test_a_started_warp_counts_whole() -> None:
    """A block of 33 threads takes two warps, and the explanation says how few lanes of the second work."""
    assert occupancy(33, 32).warps_per_block == 2
    assert "1 of its 32 lanes" in occupancy(33, 32).explanation
    assert "lanes" not in occupancy(64, 32).explanation


@pytest.mark.parametrize("name", ["sm_90", "sm_90a", "compute_90"])
def test_the_compilers_names_are_understood(name: str) -> None:
    """What compile_cuda takes as arch is taken here too."""
    assert occupancy(256, 64, 0, name) == occupancy(256, 64, 0, "9.0")
    assert sm_limits("sm_103").compute_capability == "10.3"


JUNK = [0, -1, 1.0, 256.0, math.nan, math.inf, True, None, "256", [256], np.array([256]), 10**30]


@pytest.mark.parametrize("junk", JUNK, ids=str)
def test_junk_gets_one_sentence(junk: object) -> None:
    """What is no whole number of the range is refused, and the message names the argument."""
    calls = {
        "threads": lambda: occupancy(junk, 32),
        "registers": lambda: occupancy(256, junk if junk != 0 else -1),
        "shared": lambda: occupancy(256, 32, junk if junk != 0 else -1),
        "barriers": lambda: occupancy(256, 32, barriers_per_block=junk if junk != 0 else 17),
        "virtual": lambda: occupancy(256, 32, virtual_resources=junk if junk != 0 else -1),
        "compute_capability": lambda: occupancy(256, 32, 0, junk),
        "opt_in": lambda: occupancy(256, 32, opt_in=junk if junk is not True else 1),
        "carveout": lambda: occupancy(256, 32, carveout_percent=junk if junk not in (0, None) else 101),
    }
    for name, call in calls.items():
        with pytest.raises(InputError, match=r"^(occupancy|sm_limits): ") as caught:
            call()
        assert name in str(caught.value) or "threads" in str(caught.value) or "registers a thread" in str(caught.value)
        assert len(str(caught.value)) < 400


def test_too_large_for_any_device_is_a_launch_error() -> None:
    """1,025 threads and 256 registers exist nowhere; numpy's integers are as good as Python's."""
    with pytest.raises(LaunchError, match=r"1,025 threads; expected at most 1,024"):
        occupancy(1025, 32)
    with pytest.raises(LaunchError, match="256 registers a thread; expected at most 255"):
        occupancy(32, 256)
    assert occupancy(np.int32(256), np.uint8(64), np.int64(0)) == occupancy(256, 64)


def test_a_sweep_equals_single_launches() -> None:
    """Each value of each axis gives what one call gives, and the usual values cover the range."""
    launch = occupancy(192, 40, 20_000, "8.6", carveout_percent=60)
    for axis, values in {
        "threads_per_block": [1, 32, 33, 1024], "registers_per_thread": [0, 41, 255],
        "shared_bytes_per_block": [0, 20_001, 101_376, 101_377], "barriers_per_block": [0, 16], "carveout_percent": [0, 33, 100],
    }.items():  # fmt: skip
        asked = {name: getattr(launch, name) for name in ("threads_per_block", "registers_per_thread", "shared_bytes_per_block")}
        sweep = occupancy_sweep(launch, axis, values)
        singles = [occupancy(**{**asked, "compute_capability": "8.6", "carveout_percent": 60, axis: value}) for value in values]
        assert sweep.blocks_per_sm == tuple(single.blocks_per_sm for single in singles)
        assert sweep.ratio == tuple(single.ratio for single in singles)
        assert sweep.limiter == tuple(single.limiter for single in singles)
        usual = occupancy_sweep(launch, axis)
        assert OccupancySweep.from_dict(json.loads(json.dumps(usual.to_dict()))) == usual
        assert usual.values[-1] == {
            "threads_per_block": 1024, "registers_per_thread": 255, "shared_bytes_per_block": 99 * 1024, "barriers_per_block": 16,
            "carveout_percent": 100,
        }[axis]  # fmt: skip
        assert len(usual.table()[1]) == len(usual.steps()) + 1


@pytest.mark.parametrize("bad", [("threads",), ("threads_per_block", []), ("threads_per_block", [0]), ("threads_per_block", [1.5]),
                                 ("registers_per_thread", [[1], [2]]), ("registers_per_thread", "all"), (None,)], ids=str)  # fmt: skip
def test_a_sweep_refuses_what_it_cannot_try(bad: tuple) -> None:
    """An unknown axis, no values, or values that are no whole numbers in one row."""
    with pytest.raises(InputError, match=r"^occupancy_(sweep|table): .*expected"):
        occupancy_sweep(occupancy(256, 64), *bad)
    with pytest.raises(InputError, match="launch is 'x'"):
        occupancy_sweep("x")


def test_tables_take_arrays_that_broadcast() -> None:
    """Block sizes along one axis and registers along the other; beyond the limits 0 blocks; shapes that do not fit are refused."""
    table = occupancy_table(np.array([[32], [1024], [1025]]), np.array([32, 255, 256]))
    assert table.blocks_per_sm.tolist() == [[32, 8, 0], [2, 0, 0], [0, 0, 0]]
    assert table.limiter[0].tolist() == ["blocks", "registers", "registers"]
    assert table.ratio.shape == (3, 3)
    for bad in ([[1, 2], [1, 2, 3]], [[1.0], [1]], [[True], [1]], [[0], [1]], [[1], [-1]], ["a", 1], [[[1], [1, 2]], 1]):
        with pytest.raises(InputError, match=r"^occupancy_table: .*expected"):
            occupancy_table(*bad)
    with pytest.raises(InputError, match="opt_in"):
        occupancy_table(32, 32, opt_in=1)


@pytest.mark.parametrize("capability", ["7.5", "10.0"])
def test_what_a_block_takes_nothing_of_never_limits_it(capability: str) -> None:
    """Barriers, virtual resources and registers that are not used allow any number of blocks; shared memory too, where none is reserved."""
    allowed = occupancy(32, 0, 0, capability, barriers_per_block=0, virtual_resources=0).allowed
    assert (allowed.registers, allowed.barriers, allowed.virtual) == (None, None, None)
    assert (allowed.shared is None) == (capability == "7.5")
    one = occupancy(32, 1, 1, capability, barriers_per_block=1, virtual_resources=1).allowed
    assert one.registers == 256  # 64 Ki registers in steps of 256
    assert (one.barriers, one.virtual) == ((None, None) if capability == "7.5" else (64, 128))


def test_usual_values_of_a_sweep() -> None:
    """By hand: 32 to 1,024 in warps, 0 to 255, 99 KiB in steps of 128 bytes, 0 to 16, 0 to 100 %: so many values."""
    launch = occupancy(256, 64, 0, "8.6")
    steps = {
        "threads_per_block": (32, 32), "registers_per_thread": (0, 256), "shared_bytes_per_block": (0, 793), "barriers_per_block": (0, 17),
        "carveout_percent": (0, 101),
    }  # fmt: skip
    found = {axis: occupancy_sweep(launch, axis).values for axis in steps}
    assert {axis: (values[0], len(values)) for axis, values in found.items()} == steps
    assert occupancy_sweep(launch).axis == "threads_per_block"


def test_a_tables_usual_launch_and_its_largest_numbers() -> None:
    """One barrier, of 64; opted in; the driver's choice of the split. What 32 bits hold is taken, from the least on."""
    table = occupancy_table(32, 32, 64 * 1024)
    assert {name: int(blocks) for name, blocks in table.blocks_by_resource.items()} == {
        "warps": 64, "registers": 64, "shared": 3, "blocks": 32, "barriers": 64, "virtual": 2**31 - 1,
    }  # fmt: skip
    for name, least, most in (
        ("threads_per_block", 1, 2**30), ("registers_per_thread", 0, 2**30), ("shared_bytes_per_block", 0, 2**30),
        ("barriers_per_block", 0, 2**30), ("carveout_percent", -1, 100), ("virtual_resources", 0, 2**30),
    ):  # fmt: skip
        asked = {"threads_per_block": 32, "registers_per_thread": 32}
        for value in (least, most):
            occupancy_table(**{**asked, name: value})
        for value in (least - 1, most + 1):
            with pytest.raises(InputError, match=f"{name}={value}; expected whole numbers from {least} to {most:,}"):
                occupancy_table(**{**asked, name: value})
    for name in ("shared_bytes_per_block", "virtual_resources"):
        assert occupancy(32, 32, **{name: 2**30}).blocks_per_sm == (0 if name[0] == "s" else 32)
        with pytest.raises(InputError, match=f"{name}={2**30 + 1}; expected a whole number from 0 to 1,073,741,824"):
            occupancy(32, 32, **{name: 2**30 + 1})


@pytest.mark.parametrize("carveout", [None, 0, 61])
def test_a_launchs_table_with_one_argument_changed(carveout: int | None) -> None:
    """By hand: 20 KiB blocks of 8.0 are 8, 1 and 6 by the split; 40 registers a thread hold 12 blocks of 4 warps, and others stay.

    A block without shared memory of its own takes the driver's KiB: as many of them as the split has, whose smallest is 8.
    """
    launch = occupancy(128, 32, 19 * 1024, "8.0", carveout_percent=carveout)
    assert table_of(launch).blocks_per_sm == launch.blocks_per_sm == {None: 8, 0: 1, 61: 6}[carveout]
    table = table_of(launch, shared_bytes_per_block=np.array([0, 19 * 1024]), registers_per_thread=40)
    assert table.blocks_by_resource["registers"].tolist() == [12, 12]
    assert table.blocks_by_resource["shared"].tolist() == [{None: 164, 0: 8, 61: 132}[carveout], launch.blocks_per_sm]
