"""What a finding says, in kernels made so that there is one right answer: line, array, index, the threads, and how often."""

from __future__ import annotations

import functools
import html
import inspect
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from _by_hand import line_of

from gpulab.kernels import Finding, Simulation, cuda, float32, int32, simulate
from gpulab.kernels._simulate import _frame, _geometry, _machine, _memory, _registry, _run, _source
from gpulab.kernels._simulate.report import Counts


def thread(x: int, block: int = 0) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    """Return a thread of a launch in one dimension as (block, thread)."""
    return (block, 0, 0), (x, 0, 0)


def said(finding: Finding) -> dict[str, Any]:
    """Return what a finding says; the threads of a race have no order."""
    return {
        "kind": finding.kind, "line": finding.line, "other": finding.other_line, "array": finding.array, "index": finding.index,
        "threads": {(t.block, t.thread) for t in finding.threads}, "count": finding.count,
    }  # fmt: skip


def one(kernel: Callable, grid: Any, block: Any, *args: Any) -> Finding:
    """Return the only finding of a kernel; its text names the line's code, and it is read back from JSON as it is."""
    s = simulate(kernel, grid, block, *args)
    assert len(s.findings) == 1, s.findings
    finding = s.findings[0]
    assert finding.code == s.source[finding.line].strip()
    assert finding.code in str(finding)
    assert Finding.from_dict(finding.to_dict()) == finding
    return finding


def zeros(n: int, dtype: Any = np.float32) -> np.ndarray:
    return np.zeros(n, dtype)


# -- bounds -------------------------------------------------------------------------------------------------------------------------


def reads_beyond(x, y):
    i = cuda.grid(1)
    y[i] = x[i + 3]  # here


def test_one_case_is_one_time() -> None:
    """The singular and the plural at the end of a finding's sentence."""
    finding = one(reads_beyond, 1, 98, zeros(100), zeros(100))
    assert str(finding).endswith("(thread 97 of block 0; 1 time).")
    assert str(finding.again(1)).endswith("; 2 times).")


def test_a_read_beyond_the_end() -> None:
    """100 threads read 3 further in 100 elements: threads 97 to 99; the first has index 100 in block 3, thread 1 (32 a block)."""
    finding = one(reads_beyond, 4, 25, zeros(100), zeros(100))
    assert said(finding) == {
        "kind": "bounds", "line": line_of(reads_beyond, "here"), "other": None, "array": "x", "index": (100,),
        "threads": {thread(22, 3)}, "count": 3,
    }  # fmt: skip


def writes_before(x):
    i = cuda.grid(1)
    x[i - 2] = 1  # here


def test_a_write_before_the_beginning() -> None:
    """Threads 0 and 1 write at -2 and -1; numba would take these from the end, where threads 9 and 8 of 10 elements do not write."""
    x = zeros(40)
    s = simulate(writes_before, 1, 32, x)
    bounds = [f for f in s.findings if f.kind == "bounds"]
    assert [said(f) for f in bounds] == [
        {"kind": "bounds", "line": line_of(writes_before, "here"), "other": None, "array": "x", "index": (-2,),
         "threads": {thread(0)}, "count": 2}
    ]  # fmt: skip
    assert "write" in bounds[0].message


def two_dimensions(a, b):
    c, r = cuda.grid(2)
    b[r, c] = a[c, r]  # here


def test_swapped_indices_of_a_matrix() -> None:
    """Both are 3 x 5: a[c, r] is outside for c = 3 and 4, in 3 rows: six; the first in the order of threads is x = 3, y = 0."""
    finding = one(two_dimensions, 1, (5, 3), np.zeros((3, 5), np.float32), np.zeros((3, 5), np.float32))
    assert said(finding) == {
        "kind": "bounds", "line": line_of(two_dimensions, "here"), "other": None, "array": "a", "index": (3, 0),
        "threads": {((0, 0, 0), (3, 0, 0))}, "count": 6,
    }  # fmt: skip


def shared_beyond(out):
    part = cuda.shared.array(16, float32)
    t = cuda.threadIdx.x
    part[t] = t  # here
    cuda.syncthreads()
    out[cuda.grid(1)] = part[t % 16]


def test_a_shared_array_that_is_too_small() -> None:
    """20 threads fill 16 elements: 4 too many in each of 5 blocks."""
    finding = one(shared_beyond, 5, 20, zeros(100))
    assert said(finding) == {
        "kind": "bounds", "line": line_of(shared_beyond, "here"), "other": None, "array": "part", "index": (16,),
        "threads": {thread(16)}, "count": 20,
    }  # fmt: skip


def fetched(v, k):
    return v[2 * k]  # here


def in_a_function(x, y):
    i = cuda.grid(1)
    y[i] = fetched(x, i)


def test_out_of_bounds_inside_a_device_function() -> None:
    """64 elements at stride 2: threads 32 to 63; the line is the function's own, the array is called as the kernel calls it."""
    s = simulate(in_a_function, 2, 32, zeros(64), zeros(64))
    (finding,) = s.findings
    assert said(finding) == {
        "kind": "bounds", "line": line_of(fetched, "here"), "other": None, "array": "x", "index": (64,),
        "threads": {thread(0, 1)}, "count": 32,
    }  # fmt: skip
    assert finding.code == "return v[2 * k]  # here"


def atomic_beyond(counts, x):
    i = cuda.grid(1)
    cuda.atomic.add(counts, x[i], 1)  # here


def test_an_atomic_out_of_bounds() -> None:
    """Values 0 to 9 for 8 counters: 8 and 9 are outside, in lanes 8, 9, 18, 19, ... of 40: eight of them; memory is kept."""
    counts = zeros(8, np.int32)
    finding = one(atomic_beyond, 1, 40, counts, (np.arange(40) % 10).astype(np.int32))
    assert said(finding) == {
        "kind": "bounds", "line": line_of(atomic_beyond, "here"), "other": None, "array": "counts", "index": (8,),
        "threads": {thread(8)}, "count": 8,
    }  # fmt: skip
    assert counts.tolist() == [4] * 8


# -- races --------------------------------------------------------------------------------------------------------------------------


def next_door(out):
    part = cuda.shared.array(64, int32)
    t = cuda.threadIdx.x
    part[t] = t  # write
    if t == 40:
        out[0] = part[7]  # read


def test_a_race_between_warps() -> None:
    """Thread 7 writes element 7, thread 40 reads it, and no other pair meets."""
    finding = one(next_door, 1, 64, zeros(1, np.int32))
    assert said(finding) == {
        "kind": "race", "line": line_of(next_door, "read"), "other": line_of(next_door, "write"), "array": "part", "index": (7,),
        "threads": {thread(7), thread(40)}, "count": 1,
    }  # fmt: skip


def within_a_warp(out):
    part = cuda.shared.array(64, int32)
    t = cuda.threadIdx.x
    part[t] = t  # write
    if t == 5:
        out[0] = part[4]  # read


def test_a_race_within_a_warp() -> None:
    """Lanes 4 and 5 of one warp: in lockstep the value is right, and the race is told all the same."""
    out = zeros(1, np.int32)
    finding = one(within_a_warp, 1, 32, out)
    assert out[0] == 4
    assert said(finding) == {
        "kind": "race", "line": line_of(within_a_warp, "read"), "other": line_of(within_a_warp, "write"), "array": "part", "index": (4,),
        "threads": {thread(4), thread(5)}, "count": 1,
    }  # fmt: skip


def read_then_written(out):
    part = cuda.shared.array(32, int32)
    t = cuda.threadIdx.x
    part[t] = t
    cuda.syncthreads()
    if t == 3:
        out[0] = part[20]  # read
    if t == 20:
        part[20] = 1  # write


def test_a_write_after_another_threads_read() -> None:
    """Thread 3 reads element 20, then its owner overwrites it."""
    finding = one(read_then_written, 1, 32, zeros(1, np.int32))
    assert said(finding) == {
        "kind": "race", "line": line_of(read_then_written, "write"), "other": line_of(read_then_written, "read"), "array": "part",
        "index": (20,), "threads": {thread(3), thread(20)}, "count": 1,
    }  # fmt: skip


def between_blocks(x):
    b = cuda.blockIdx.x
    t = cuda.threadIdx.x
    if b == 1 and t == 6:
        x[9] = 1  # write
    cuda.syncthreads()
    if b == 2 and t == 11:
        x[10] = x[9]  # read


def test_a_race_between_blocks() -> None:
    """A barrier orders the threads of one block; blocks 1 and 2 have none in common."""
    finding = one(between_blocks, 4, 32, zeros(16))
    assert said(finding) == {
        "kind": "race", "line": line_of(between_blocks, "read"), "other": line_of(between_blocks, "write"), "array": "x", "index": (9,),
        "threads": {thread(6, 1), thread(11, 2)}, "count": 1,
    }  # fmt: skip
    assert "different blocks" in finding.message


def same_element(x):
    i = cuda.grid(1)
    if i == 2 or i == 70:
        x[i % 4] = i  # here


def test_two_threads_that_write_one_element() -> None:
    """Threads 2 of block 0 and 6 of block 1 (64 a block) write 2 and 70 to element 2."""
    finding = one(same_element, 2, 64, zeros(4))
    assert said(finding) == {
        "kind": "race", "line": line_of(same_element, "here"), "other": line_of(same_element, "here"), "array": "x", "index": (2,),
        "threads": {thread(2), thread(6, 1)}, "count": 1,
    }  # fmt: skip


def atomic_and_plain(total, out):
    t = cuda.threadIdx.x
    if t == 1:
        cuda.atomic.add(total, 0, 5)  # atomic
    if t == 33:
        out[0] = total[0]  # plain


def test_an_atomic_against_a_plain_read() -> None:
    """Thread 1 adds, thread 33 reads without a barrier between."""
    finding = one(atomic_and_plain, 1, 64, zeros(1, np.int32), zeros(1, np.int32))
    assert said(finding) == {
        "kind": "race", "line": line_of(atomic_and_plain, "plain"), "other": line_of(atomic_and_plain, "atomic"), "array": "total",
        "index": (0,), "threads": {thread(1), thread(33)}, "count": 1,
    }  # fmt: skip


def plain_then_atomics(total):
    t = cuda.threadIdx.x
    if t == 1:
        total[0] = 0  # plain
    if t == 1:
        cuda.atomic.add(total, 0, 5)  # own
    if t == 34:
        cuda.atomic.add(total, 0, 6)  # atomic


def test_a_plain_write_is_not_hidden_by_the_threads_own_atomic() -> None:
    """Thread 1 clears and adds; thread 34's atomic is ordered with neither, and conflicts with the clearing."""
    finding = one(plain_then_atomics, 1, 64, zeros(1, np.int32))
    assert said(finding) == {
        "kind": "race", "line": line_of(plain_then_atomics, "atomic"), "other": line_of(plain_then_atomics, "plain"), "array": "total",
        "index": (0,), "threads": {thread(1), thread(34)}, "count": 1,
    }  # fmt: skip


def plain_then_many_atomics(total, out):
    t = cuda.threadIdx.x
    if t == 9:
        out[0] = total[0]  # plain
    cuda.atomic.add(total, 0, 1)  # atomic


def test_an_atomic_after_a_plain_read_counts_the_other_lanes() -> None:
    """Thread 9 reads, then all 64 add: the 63 others conflict with the read."""
    finding = one(plain_then_many_atomics, 1, 64, zeros(1, np.int32), zeros(1, np.int32))
    assert (finding.kind, finding.line, finding.other_line) == (
        "race", line_of(plain_then_many_atomics, "atomic"), line_of(plain_then_many_atomics, "plain"))  # fmt: skip
    assert thread(9) in {(t.block, t.thread) for t in finding.threads}
    assert finding.count == 63


def ordered_by_part(out):
    part = cuda.shared.array(32, int32)
    t = cuda.threadIdx.x
    part[t] = t  # write
    if t < 8:
        cuda.syncwarp(0xFF)
        out[t] = part[(t + 1) % 9]  # read


def test_syncwarp_orders_the_lanes_that_it_names() -> None:
    """Lanes 0 to 7 are ordered among themselves; lane 7 reads element 8, which lane 8 wrote."""
    finding = one(ordered_by_part, 1, 32, zeros(8, np.int32))
    assert said(finding) == {
        "kind": "race", "line": line_of(ordered_by_part, "read"), "other": line_of(ordered_by_part, "write"), "array": "part",
        "index": (8,), "threads": {thread(7), thread(8)}, "count": 1,
    }  # fmt: skip


def many_read_one(out):
    part = cuda.shared.array(1, int32)
    t = cuda.threadIdx.x
    if t == 15:
        part[0] = 7
    cuda.syncthreads()
    if t < 16:
        out[t] = part[0]  # read
        if t > 3:
            cuda.syncwarp(0xFFF0)
    if t == 15:
        part[0] = 1  # write


def test_the_low_lanes_are_not_ordered_by_a_mask_of_high_lanes() -> None:
    """Lanes 0 to 15 read, lanes 4 to 15 meet in a syncwarp, then lane 15 writes: unordered with lanes 0 to 3."""
    finding = one(many_read_one, 1, 32, zeros(16, np.int32))
    assert (finding.kind, finding.line, finding.other_line) == ("race", line_of(many_read_one, "write"), line_of(many_read_one, "read"))
    assert (finding.array, finding.index, finding.count) == ("part", (0,), 1)
    threads = [t.thread[0] for t in finding.threads]
    assert max(threads) == 15
    assert min(threads) < 4


# -- barriers, shared memory, shuffles ----------------------------------------------------------------------------------------------


def barrier_for_some(out):
    t = cuda.threadIdx.x
    if t >= 10:
        cuda.syncthreads()  # here
    out[cuda.grid(1)] = t


def test_a_barrier_that_some_threads_miss() -> None:
    """Thread 10 is the first that arrives, thread 0 the first that does not; each of 3 blocks meets it once."""
    finding = one(barrier_for_some, 3, 48, zeros(144))
    assert said(finding) == {
        "kind": "barrier", "line": line_of(barrier_for_some, "here"), "other": None, "array": "", "index": (),
        "threads": {thread(10), thread(0)}, "count": 3,
    }  # fmt: skip


def barrier_in_a_loop(out):
    t = cuda.threadIdx.x
    for k in range(2 + t // 32):
        cuda.syncthreads()  # here
        out[t] = k


def test_a_barrier_in_a_loop_of_different_lengths() -> None:
    """Warp 0 goes round twice, warp 1 three times: the third time thread 32 waits for thread 0."""
    finding = one(barrier_in_a_loop, 1, 64, zeros(64))
    assert said(finding) == {
        "kind": "barrier", "line": line_of(barrier_in_a_loop, "here"), "other": None, "array": "", "index": (),
        "threads": {thread(32), thread(0)}, "count": 1,
    }  # fmt: skip


def not_filled(out):
    part = cuda.shared.array((4, 16), int32)
    t = cuda.threadIdx.x
    if t < 60:
        part[t // 16, t % 16] = t
    cuda.syncthreads()
    out[cuda.grid(1)] = part[t // 16, t % 16]  # here


def test_an_element_that_nobody_wrote() -> None:
    """Elements 60 to 63 (row 3, from column 12) are never written; each block's thread 60 reads the first of them."""
    finding = one(not_filled, 2, 64, zeros(128, np.int32))
    assert said(finding) == {
        "kind": "uninitialised", "line": line_of(not_filled, "here"), "other": None, "array": "part", "index": (60,),
        "threads": {thread(60)}, "count": 8,
    }  # fmt: skip


def shuffle_of_some(out):
    t = cuda.threadIdx.x
    value = 2 * t
    if t % 32 < 20:
        value = cuda.shfl_down_sync(0xFFFFFFFF, value, 4)  # here
    out[t] = value


def test_a_shuffle_from_lanes_that_take_no_part() -> None:
    """Lanes 16 to 19 ask lanes 20 to 23, in each of 2 warps; the first pair is 16 and 20."""
    finding = one(shuffle_of_some, 1, 64, zeros(64, np.int32))
    assert said(finding) == {
        "kind": "shuffle", "line": line_of(shuffle_of_some, "here"), "other": None, "array": "", "index": (),
        "threads": {thread(16), thread(20)}, "count": 8,
    }  # fmt: skip


def half_that_names_all(out):
    t = cuda.threadIdx.x
    value = t
    if t % 32 < 16:
        value += cuda.shfl_xor_sync(0xFFFFFFFF, value, 8)  # here
    out[t] = value


def ballot_of_some(out):
    t = cuda.threadIdx.x
    if t % 32 < 16:
        out[t] = cuda.ballot_sync(0xFFFFFFFF, t > 3)  # here


def match_of_some(out):
    t = cuda.threadIdx.x
    if t % 32 < 16:
        out[t] = cuda.match_any_sync(0xFFFFFFFF, t // 4)  # here


def in_both_branches(out):
    t = cuda.threadIdx.x
    value = t
    if t % 32 < 16:
        value += cuda.shfl_xor_sync(0xFFFFFFFF, value, 1)  # here
    else:
        value -= cuda.shfl_xor_sync(0xFFFF0000, value, 1)
    out[t] = value


@pytest.mark.parametrize("kernel", [half_that_names_all, ballot_of_some, match_of_some, in_both_branches], ids=lambda k: k.__name__)
def test_a_mask_that_names_lanes_that_do_not_come(kernel: Callable) -> None:
    """All lanes that come ask only each other, but lane 16 is named as well: in each of 2 warps, of 3 blocks."""
    finding = one(kernel, 3, 64, zeros(64, np.int32))
    assert said(finding) == {
        "kind": "shuffle", "line": line_of(kernel, "here"), "other": None, "array": "", "index": (),
        "threads": {thread(0), thread(16)}, "count": 6,
    }  # fmt: skip
    assert "not all lanes that the mask names take part here" in finding.message


def mask_without_the_caller(out):
    t = cuda.threadIdx.x
    out[t] = cuda.any_sync(0x0000FFFF, t > 3)  # here


def test_a_mask_that_does_not_name_who_calls() -> None:
    """Lanes 16 to 31 name the others alone; the first of them, and the first that came."""
    finding = one(mask_without_the_caller, 1, 32, zeros(32, np.int32))
    assert said(finding) == {
        "kind": "shuffle", "line": line_of(mask_without_the_caller, "here"), "other": None, "array": "", "index": (),
        "threads": {thread(16), thread(0)}, "count": 1,
    }  # fmt: skip
    assert "without being among the lanes that its mask names" in finding.message


def one_call_of_two_masks(out):
    t = cuda.threadIdx.x
    named = 0xFFFFFFFF if t % 32 < 16 else 0xFFFF0000
    out[t] = cuda.all_sync(named, t > 3)  # here


def test_lanes_that_name_each_other_by_different_masks() -> None:
    """Lanes 0 to 15 name lane 16 too, which calls with another mask."""
    finding = one(one_call_of_two_masks, 1, 32, zeros(32, np.int32))
    assert (finding.kind, finding.line) == ("shuffle", line_of(one_call_of_two_masks, "here"))
    assert [t.thread for t in finding.threads] == [(0, 0, 0), (16, 0, 0)]


def others_have_returned(out):
    t = cuda.threadIdx.x
    if t % 32 >= 20:
        return
    value = cuda.shfl_xor_sync(0xFFFFFFFF, t, 1)
    out[t] = value + cuda.popc(cuda.ballot_sync(0xFFFFFFFF, t > 3))


def halves_that_name_themselves(out):
    t = cuda.threadIdx.x
    named = 0x0000FFFF if t % 32 < 16 else 0xFFFF0000
    value = cuda.shfl_xor_sync(named, t, 8)
    out[t] = value + cuda.any_sync(named, t == 3)


def those_who_came(out):
    t = cuda.threadIdx.x
    if t % 3 == 0:
        named = cuda.activemask()
        out[t] = cuda.all_sync(named, t > 3) + cuda.popc(cuda.match_any_sync(named, t // 6))


def those_of_a_ballot(out):
    t = cuda.threadIdx.x
    named = cuda.ballot_sync(0xFFFFFFFF, t % 3 == 0)
    if t % 3 == 0:
        out[t] = cuda.shfl_sync(named, t, cuda.ffs(named) - 1)


@pytest.mark.parametrize(
    "kernel", [others_have_returned, halves_that_name_themselves, those_who_came, those_of_a_ballot], ids=lambda k: k.__name__
)
@pytest.mark.parametrize("threads", [32, 64, 50])
def test_a_mask_that_names_who_comes_is_no_finding(kernel: Callable, threads: int) -> None:
    """Lanes that have returned, or that the last warp of a block lacks, are no fault."""
    if kernel is halves_that_name_themselves and threads == 50:
        threads = 48  # of whole halves: lane 18 would ask a lane that is not there
    assert not simulate(kernel, 3, threads, zeros(64, np.int32)).findings


def in_space(x):
    i = cuda.threadIdx.x
    j = cuda.threadIdx.y
    k = cuda.threadIdx.z
    x[cuda.blockIdx.y, k, j, i] = 1  # here


def test_threads_are_named_by_all_three_indices() -> None:
    """A block of 3 x 2 x 2 in block row 1 of (1, 2): x has 2 columns, so threads with x = 2 are outside: 4 in each block."""
    finding = one(in_space, (1, 2), (3, 2, 2), np.zeros((2, 2, 2, 2), np.float32))
    assert said(finding) == {
        "kind": "bounds", "line": line_of(in_space, "here"), "other": None, "array": "x", "index": (0, 0, 0, 2),
        "threads": {((0, 0, 0), (2, 0, 0))}, "count": 8,
    }  # fmt: skip


# -- the trace ----------------------------------------------------------------------------------------------------------------------


def traced(x, y):
    part = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    part[63 - t] = x[i]  # load
    cuda.syncthreads()  # wait
    if t % 2 == 1:  # test
        y[i] = part[t]  # odd
    cuda.atomic.add(y, 0, 1)  # add


@pytest.mark.parametrize("block", [0, 2])
def test_a_trace_keeps_the_accesses_of_one_block(block: int) -> None:
    """By hand: 48 threads are a whole warp and half of one; the steps in order, their lanes as bits, their elements by lane."""
    s = simulate(traced, 3, 48, np.arange(144, dtype=np.float32), zeros(144), trace=block)
    whole, odd = (0xFFFFFFFF, 0xFFFF), (0xAAAAAAAA, 0xAAAA)
    steps = {mark: [step for step in s.trace if step.line == line_of(traced, mark)] for mark in ("load", "wait", "test", "odd", "add")}
    assert {mark: [step.active for step in found] for mark, found in steps.items()} == {
        "load": [whole], "wait": [whole], "test": [whole], "odd": [odd], "add": [whole],
    }  # fmt: skip
    assert [step.line for step in s.trace] == sorted(step.line for step in s.trace)
    none = [-1] * 16  # the lanes that fill up the second warp
    load, store = steps["load"][0].accesses
    assert (load.array, load.space, load.kind, load.element_bytes) == ("x", "global", "load", 4)
    assert list(load.elements) == [48 * block + t for t in range(48)] + none
    assert (store.array, store.space, store.kind) == ("part", "shared", "store")
    assert list(store.elements) == [63 - t for t in range(48)] + none
    load, store = steps["odd"][0].accesses
    assert (load.array, load.space, load.kind) == ("part", "shared", "load")
    assert list(load.elements) == [t if t % 2 else -1 for t in range(48)] + none
    assert (store.array, store.space, store.kind) == ("y", "global", "store")
    assert list(store.elements) == [48 * block + t if t % 2 else -1 for t in range(48)] + none
    (atomic,) = steps["add"][0].accesses
    assert (atomic.array, atomic.space, atomic.kind) == ("y", "global", "atomic")
    assert list(atomic.elements) == [0] * 48 + none


def loops(x):
    t = cuda.threadIdx.x
    for k in range(t // 16):  # loop
        x[t] += k  # body


def test_a_trace_of_a_divergent_loop() -> None:
    """By hand: lanes 16 to 31 go round once, warp 1 has 2 and 3 turns; a warp without lanes shows 0."""
    s = simulate(loops, 1, 64, zeros(64), trace=0)
    seen = [("loop" if step.line == line_of(loops, "loop") else "body", step.active) for step in s.trace[1:]]
    full = 0xFFFFFFFF
    assert seen == [
        ("loop", (full, full)), ("body", (0xFFFF0000, full)),
        ("loop", (0xFFFF0000, full)), ("body", (0, full)),
        ("loop", (0, full)), ("body", (0, 0xFFFF0000)),
        ("loop", (0, 0xFFFF0000)),
    ]  # fmt: skip
    bodies = [step for step in s.trace if step.line == line_of(loops, "body")]
    for step, first in zip(bodies, (16, 32, 48), strict=True):
        load, store = step.accesses
        assert (load.kind, store.kind) == ("load", "store")
        assert list(load.elements) == list(store.elements) == [t if t >= first else -1 for t in range(64)]


def rows(a, b):
    c, r = cuda.grid(2)
    v = a[r, 1]  # broadcast
    b[c, r] = v  # column


def test_a_trace_counts_elements_through_the_array() -> None:
    """By hand, block (1, 0) of (2, 2), number 1, of 4 x 2 threads: a is 4 x 8, b 8 x 4; elements in C order, threads x first."""
    s = simulate(rows, (2, 2), (4, 2), np.zeros((4, 8), np.float64), np.zeros((8, 4), np.float64), trace=1)
    at = [(4 + x, y) for y in range(2) for x in range(4)]
    load = next(step for step in s.trace if step.line == line_of(rows, "broadcast")).accesses[0]
    store = next(step for step in s.trace if step.line == line_of(rows, "column")).accesses[0]
    assert list(load.elements) == [r * 8 + 1 for _, r in at] + [-1] * 24
    assert list(store.elements) == [c * 4 + r for c, r in at] + [-1] * 24
    assert load.element_bytes == store.element_bytes == 8


def test_a_trace_is_kept_only_where_asked_for_and_only_of_its_block() -> None:
    """Without ``trace`` there is none; with it the counts are the same, and a block in another batch is found."""
    plain = simulate(traced, 3, 48, zeros(144), zeros(144))
    with_trace = simulate(traced, 3, 48, zeros(144), zeros(144), trace=2)
    assert not plain.trace
    assert len(with_trace.trace) == 8  # the statements of the kernel, one of them in odd lanes
    assert plain.lines == with_trace.lines


def listed(x, y):
    part = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    part[2 * t] = x[8 * t]
    # every second lane
    if t % 2 == 0:
        y[t] = part[2 * t] + x[200]


def test_a_listing_shows_the_counts_beside_the_lines() -> None:
    """By hand: 32 sectors for a stride of 8 words; two words in each bank that is asked; even lanes store into 4 sectors and load one."""
    s = simulate(listed, 1, 32, zeros(256)[:249], zeros(32))
    rows = s.listing().split("\n")
    assert rows[0] == " lanes  diverged sectors/req conflicts"
    first = listed.__code__.co_firstlineno
    shown = [(row[:38], int(row[39:43]), row[45:]) for row in rows[1:8]]
    text = [line.rstrip() for line in inspect.getsource(listed).splitlines()]
    assert [(number, code) for _, number, code in shown] == [(first + k, line) for k, line in enumerate(text)]
    counts = [(lanes.split()) for lanes, _, _ in shown]
    assert counts == [[], ["100%"], ["100%"], ["100%", "32.0", "2.0-way"], [], ["100%", "1"], ["50%", "2.5", "2.0-way"]]
    assert rows[8:] == [str(s.evidence)]
    assert repr(s) == (
        "<Simulation listed (1, 1, 1)x(32, 1, 1): 3 global requests, 37 sectors, 4 wavefronts, 1 divergent branch; found: nothing; "
        "MODELLED>"
    )
    page = s._repr_html_()
    assert html.escape("\n".join(rows[:8])) in page
    assert page.endswith("</div>")
    assert "MODELLED" in page.partition("</pre>")[2]


def test_a_simulation_goes_through_json_with_and_without_its_trace() -> None:
    """The trace is left out, and everything else comes back; totals are the sum over the lines; what is found stands in the repr."""
    s = simulate(listed, 1, 32, zeros(150), zeros(32), trace=0)
    assert s.trace
    assert s.to_dict()["trace"] is None
    again = Simulation.from_dict(json.loads(json.dumps(s.to_dict())))
    assert again == s == simulate(listed, 1, 32, zeros(150), zeros(32))
    assert "found: bounds;" in repr(s)
    assert s.listing().split("\n")[8:-1] == [str(finding) for finding in s.findings]
    assert s.totals.global_requests == sum(line.global_requests for line in s.lines.values()) == 2  # x[200] is nowhere


def test_the_rates_of_counts_by_hand() -> None:
    """Sectors and ideal sectors a request, conflicts a wavefront, lanes of 32, bytes of sectors; none of them where nothing was counted."""
    c = Counts(executed_warps=2, active_lanes=16, global_requests=4, global_sectors=10, ideal_global_sectors=6, shared_wavefronts=5,
               ideal_shared_wavefronts=2)  # fmt: skip
    rates = (c.sectors_per_request, c.ideal_sectors_per_request, c.conflict_ways, c.conflict_words, c.active_ratio, c.global_bytes_moved)
    assert rates == (2.5, 1.5, 2.5, "2.5-way", 0.25, 320)
    n = Counts()
    assert (n.sectors_per_request, n.ideal_sectors_per_request, n.conflict_ways, n.conflict_words, n.active_ratio) == (None,) * 3 + (
        "",
        None,
    )
    assert Counts(shared_wavefronts=2, ideal_shared_wavefronts=2).conflict_words == "none"
    assert (c + c).global_sectors == 20


def test_a_trace_ends_after_so_many_statements(monkeypatch: pytest.MonkeyPatch) -> None:
    """After 100,000, as its docstring says; here after eight, which are all of the kernel, or seven. The counts go on."""
    assert _machine.Launch.max_trace_steps == 100_000
    plain = simulate(traced, 1, 48, zeros(48), zeros(48), trace=0)
    for most, cut in ((8, False), (7, True)):
        monkeypatch.setattr(_run, "Launch", functools.partial(_machine.Launch, max_trace_steps=most))
        s = simulate(traced, 1, 48, zeros(48), zeros(48), trace=0)
        assert (len(s.trace), s.trace_cut) == (most, cut)
        assert s.lines == plain.lines
    assert not plain.trace_cut


def test_progress_is_told_after_each_batch_of_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five blocks of 48 threads, which are 64 lanes, in batches of two: how much is done, and how many."""
    monkeypatch.setattr(_run, "_LANES_AT_ONCE", 128)
    told: list[tuple[float, str]] = []
    simulate(traced, 5, 48, zeros(240), zeros(240), progress=lambda share, words: told.append((share, words)))
    assert told == [(0.4, "2 of 5 blocks"), (0.8, "4 of 5 blocks"), (1.0, "5 of 5 blocks")]


@pytest.mark.parametrize("kind", [_frame.Loop, _frame.Frame, _frame.ForLoop, _geometry.Batch, _memory.View, _registry.Call, _source.Source])
def test_what_is_at_work_is_equal_to_itself_alone(kind: type) -> None:
    """Two views, two loops or two functions that look alike are two; and their arrays could not be compared as one truth."""
    assert kind.__eq__ is object.__eq__
    assert kind.__hash__ is object.__hash__
