"""SimtMicroscope: the step, the lanes, the boxes that they touch, the counts beside the source, and how the controls move.

Expected sectors and banks are derived by hand: a sector holds 32 bytes, word w of shared memory lies in bank w % 32.
"""

from __future__ import annotations

import inspect
import linecache
import math
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from control_tables import offers_what_it_takes

from gpulab import kernels
from gpulab.errors import InputError
from gpulab.kernels import cuda, float32, float64
from gpulab.kernels._simulate.report import StepAccess
from gpulab.widgets import SimtMicroscope, _simt_walk
from gpulab.widgets._simt_launch import Launch

SECONDS = 60


def position(m: SimtMicroscope) -> dict[str, Any]:
    """What the panel draws."""
    m.wait()
    return dict(m._microscope.position)


def lit(m: SimtMicroscope) -> list[int]:
    """The lanes that are lit."""
    return [lane for lane, box in enumerate(position(m)["lanes"]) if box["state"] == "on"]


def cells(access: dict[str, Any], part: int = 0) -> list[list[list[int]]]:
    """The lanes of each cell of each column of an access's picture."""
    return [[cell["lanes"] for cell in column["cells"]] for column in access["parts"][part]["columns"]]


def row(m: SimtMicroscope, line: int) -> dict[str, Any]:
    """The counts beside a line: text and whether it is worth a look, by column."""
    m.wait()
    names = ("lanes", "branches", "sectors", "conflict", "requests")
    (found,) = (r for r in m._microscope.source if r["line"] == line)
    return {**dict(zip(names, found["cells"], strict=True)), "findings": found["findings"]}


def send(m: SimtMicroscope, **content: Any) -> list[Any]:
    """Send a message from the browser's step controls; return what is answered."""
    answers: list[Any] = []
    m._microscope.send = answers.append
    m._microscope._handle_custom_msg(content, [])  # as the browser's message arrives
    return answers


# What is shown.


def test_a_tile_read_along_its_columns_meets_one_bank() -> None:
    """32 x 32 floats: the lanes of warp 0 read words 0, 32, 64, ..., all in bank 0; they write 32 neighbours, which fill four sectors."""
    m = SimtMicroscope("transpose_tiled", step=6)
    load, store = position(m)["accesses"]
    assert load["words"] == "bank 0: 32 words, 32-way conflict; 32 wavefronts instead of 1"
    assert cells(load) == [[[lane] for lane in range(32)], *[[]] * 31]
    assert store["words"] == "32 lanes, 4 sectors: ideal"
    assert cells(store) == [[[8 * sector + k] for k in range(8)] for sector in range(4)]
    assert [column["gap"] for column in store["parts"][0]["columns"]] == [False] * 4
    assert row(m, 14) == {
        "lanes": {"text": "100%", "look": False}, "branches": {"text": "", "look": False}, "sectors": {"text": "4.0 (4.0)", "look": False},
        "conflict": {"text": "32-way", "look": True}, "requests": {"text": "128 device\n128 shared", "look": False}, "findings": [],
    }  # fmt: skip


def test_one_more_column_takes_the_conflict_away() -> None:
    """With 33 words a row, warp w reads words 33 * lane + w: bank (lane + w) % 32, each bank once."""
    m = SimtMicroscope("transpose_padded", warp=3, step=6)
    load, _ = position(m)["accesses"]
    assert load["words"] == "32 lanes, 1 wavefront: no conflict"
    assert cells(load) == [[[(bank - 3) % 32]] for bank in range(32)]
    assert row(m, 14)["conflict"] == {"text": "none", "look": False}


def test_a_column_of_a_matrix_touches_32_sectors_for_one_element_each() -> None:
    """Rows of 64 floats are 8 sectors long, so the naive transpose writes 32 sectors that stand apart."""
    m = SimtMicroscope("transpose_naive", step=3)
    (store,) = position(m)["accesses"]
    assert store["words"] == "32 lanes, 32 sectors, where 4 would do"
    assert store["good"] is False
    assert cells(store) == [[[lane], *[[]] * 7] for lane in range(32)]
    assert [column["gap"] for column in store["parts"][0]["columns"]] == [False, *[True] * 31]
    assert [column["label"] for column in store["parts"][0]["columns"]] == [str(64 * lane) for lane in range(32)]
    assert row(m, 11)["sectors"] == {"text": "32.0 (4.0)", "look": True}


def test_a_branch_lights_half_of_the_lanes_and_then_the_other_half() -> None:
    """Even lanes take line 11, odd ones line 13; all four warps of the launch diverge at line 10."""
    m = SimtMicroscope("odd_and_even", step=3)
    assert (m.line, lit(m)) == (11, list(range(0, 32, 2)))
    assert m.words[0] == "Warp 0 at line 11: 16 of 32 lanes active (every second lane from 0 to 30), the others idle."
    m.step = 4
    assert (m.line, lit(m)) == (13, list(range(1, 32, 2)))
    assert row(m, 10)["branches"] == {"text": "4 of 4", "look": True}
    assert row(m, 11)["lanes"]["text"] == "50%"


def test_the_guard_leaves_four_lanes_of_the_last_block() -> None:
    """100 elements in blocks of 32: block 3 begins at 96."""
    m = SimtMicroscope("vector_add", block_number=3, step=3)
    assert lit(m) == [0, 1, 2, 3]
    assert m.words[1] == "load from x, 4 bytes a lane, device memory: 4 lanes, 1 sector: ideal"
    assert cells(position(m)["accesses"][0]) == [[[0], [1], [2], [3], [], [], [], []]]
    m.block_number = 0
    assert lit(m) == list(range(32))


def test_findings_stand_at_their_line() -> None:
    """Without the guard 28 threads of block 3 reach outside of each of three arrays; the step says so too."""
    m = SimtMicroscope("vector_add_unguarded", block_number=3, step=2)
    found = row(m, 10)["findings"]
    assert [f["kind"] for f in found] == ["bounds"] * 3
    assert "28 times" in found[0]["words"]
    assert m.words[1].endswith("4 lanes, 1 sector: ideal; 28 active lanes take no part: see the finding")
    assert m._results.message.endswith("3 findings: bounds in line 10 (3).")
    assert [r[0] for r in m._results.rows[:3]] == ["bounds, line 10"] * 3
    assert [e["badge"] for e in m._results.evidence] == ["MODELLED"]


def odd_block(out: Any) -> None:
    """A block that does not fill its second warp."""
    out[cuda.grid(1)] = 1


def test_lanes_without_a_thread_are_not_there() -> None:
    """A block of 33 threads has a second warp with one lane."""
    m = SimtMicroscope(odd_block, 1, 33, np.zeros(33, np.float32), warp=1)
    boxes = position(m)["lanes"]
    assert [box["state"] for box in boxes] == ["on", *["none"] * 31]
    assert boxes[0]["title"] == "threadIdx 32"
    assert m.words[0].endswith("all 1 lane active; the block has no threads for the other 31.")


def wide(x: Any, out: Any) -> None:
    """Eight-byte elements in shared memory, and one element that all lanes read."""
    tile = cuda.shared.array(32, float64)
    i = cuda.threadIdx.x
    tile[i] = x[i]
    cuda.syncthreads()
    out[i] = tile[2 * i % 32] + tile[5]


def test_eight_byte_elements_go_by_half_warps() -> None:
    """Lane i stores to banks 2i and 2i + 1: two parts without conflict. At stride 2 lanes 0 and 8 of a part meet in bank 0."""
    m = SimtMicroscope(wide, 1, 32, np.ones(32), np.zeros(32))
    m.go_to(_line_of(wide, "tile[i] ="))
    _, store = position(m)["accesses"]
    assert store["words"] == "32 lanes, 2 wavefronts: no conflict"
    assert [part["title"] for part in store["parts"]] == ["first half-warp", "second half-warp"]
    assert cells(store, 1) == [[[16 + bank // 2]] for bank in range(32)]
    assert store["parts"][0]["lanes"] == [True] * 16 + [False] * 16
    m.go_to(_line_of(wide, "out[i]"))
    strided, one, _ = position(m)["accesses"]
    assert strided["words"] == "bank 0 (as in 15 more): 2 words, 2-way conflict; 4 wavefronts instead of 2"
    assert cells(strided)[0] == [[0], [8]]
    assert one["words"] == "32 lanes, 2 wavefronts: one word for all, a broadcast, no conflict"


def votes(counts: Any, x: Any) -> None:
    """Eight lanes on each of four counters."""
    cuda.atomic.add(counts, x[cuda.threadIdx.x], 1)


def test_atomics_on_one_element_are_said_to_take_turns() -> None:
    """Lanes 0, 4, 8, ... update counter 0; the four counters lie in one sector."""
    m = SimtMicroscope(votes, 1, 32, np.zeros(4, np.int32), np.arange(32, dtype=np.int32) % 4)
    assert m.words[-1] == (
        "atomic on counts, 4 bytes a lane, device memory: 32 lanes, 1 sector: ideal; up to 8 lanes update one element, one after the other"
    )
    assert cells(position(m)["accesses"][-1])[0][0] == list(range(0, 32, 4))
    assert m.outputs["counts"].tolist() == [8, 8, 8, 8]


@pytest.mark.parametrize("name", SimtMicroscope.example_names())
def test_each_example_computes_what_its_name_says(name: str) -> None:
    """Outputs equal NumPy's; only the two wrong ones have findings."""
    m = SimtMicroscope(name)
    out = m.outputs["out"]
    assert m.error == "", m.traceback
    a, x = np.arange(4096, dtype=np.float32).reshape(64, 64), np.arange(1024, dtype=np.float32)
    expected = {
        "vector_add": x[:100] + 1, "vector_add_unguarded": x[:100] + 1,
        "odd_and_even": np.where(x[:128] % 2 == 0, 2 * x[:128], x[:128] + 1),
        "strided_copy": x[::8], "transpose_naive": a.T, "transpose_tiled": a.T, "transpose_padded": a.T,
        "block_sum": [8128, 24512], "block_sum_no_barrier": [8128, 24512],
    }  # fmt: skip
    assert np.array_equal(out, expected[name])
    kinds = {"vector_add_unguarded": {"bounds"}, "block_sum_no_barrier": {"race"}}
    assert {f.kind for f in m.result.findings} == kinds.get(name, set())


@pytest.mark.parametrize("name", SimtMicroscope.example_names())
def test_the_code_shown_gives_the_same_counts(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The cell runs by itself, has the same line numbers, and ends at the step that is shown."""
    m = SimtMicroscope(name)
    m.step = m.steps
    linecache.cache["<the cell>"] = (len(m.code), None, m.code.splitlines(keepends=True), "<the cell>")
    names: dict[str, Any] = {}
    exec(compile(m.code, "<the cell>", "exec"), names)
    assert names["s"].lines == m.result.lines
    assert names["s"].source == m.result.source
    assert names["step"].line == m.line
    assert str(m.line) in capsys.readouterr().out.splitlines()[-1]


def kept(m: SimtMicroscope) -> list[list[str]]:
    """The table."""
    m.wait()
    return [[str(cell) for cell in cells] for cells in m._results.rows]


def test_the_table_has_every_count_of_a_sum_by_blocks() -> None:
    """Two blocks of four warps, by hand.

    A block's warps execute 149 statements: six before the loop each, eight tests of ``while``; in seven rounds a test, a barrier and a
    halving each, and eight sums in all; then four tests and one store. Five sums and the store lack 129 and 31 lanes: 160 of 4768.
    Tests: (8 + 7 + 1) x 4 warps; where fewer than 32 threads sum, in five rounds and at the end, warp 0 parts. Each warp loads 4 sectors
    and each block stores one. Shared: a store a warp, 3 accesses for each of eight sums, and the last load.
    """
    m = SimtMicroscope("block_sum")
    assert kept(m) == [
        ["active lanes", "96.6%", "of 32 in each of 298 statements of a warp"],
        ["divergent branches", "12", "of 128 tests by a warp"],
        ["device memory: sectors", "34", "of 32 bytes, in 10 requests; 34 would do"],
        ["sectors / request", "3.40", "ideal: 3.40"],
        ["bytes moved", "1,088", "1,032 asked for"],
        ["shared memory: wavefronts", "58", "in 58 requests; 58 would do"],
        ["shared memory of a block", "512", "bytes"],
        ["barriers", "16", "times that a block passed one"],
        ["x afterwards", "float32 256", "0, 1, 2, 3, 4, 5, 6, 7, ..."],
        ["out afterwards", "float32 2", "8128, 24512"],
    ]
    assert m._results.message == (
        "block_sum, grid (2, 1, 1), block (128, 1, 1): no race, no access out of bounds and no wrong barrier was found."
    )
    assert row(m, 16) == {
        "lanes": {"text": "50%", "look": False},  # 64 + 32 + 16 + 8 + 4 + 2 + 1 of 8 x 32
        "branches": {"text": "", "look": False}, "sectors": {"text": "", "look": False}, "conflict": {"text": "none", "look": False},
        "requests": {"text": "48 shared", "look": False}, "findings": [],
    }  # fmt: skip


def eight(out: Any) -> None:
    """As many elements as are shown, and no shared memory."""
    out[cuda.threadIdx.x] = 1


def test_the_table_leaves_out_what_a_kernel_does_not_use() -> None:
    """32 lanes ask for 4 sectors and add to 4 counters, which lie in one; of eight elements none is left out."""
    m = SimtMicroscope(votes, 1, 32, np.zeros(4, np.int32), np.arange(32, dtype=np.int32) % 4)
    assert kept(m) == [
        ["active lanes", "100.0%", "of 32 in each of 1 statements of a warp"],
        ["divergent branches", "0", "of 0 tests by a warp"],
        ["device memory: sectors", "5", "of 32 bytes, in 2 requests; 5 would do"],
        ["sectors / request", "2.50", "ideal: 2.50"],
        ["bytes moved", "160", "256 asked for"],
        ["atomics", "1", "requests among those"],
        ["counts afterwards", "int32 4", "8, 8, 8, 8"],
        ["x afterwards", "int32 32", "0, 1, 2, 3, 0, 1, 2, 3, ..."],
    ]
    few = kept(SimtMicroscope(eight, 1, 8, np.zeros(8)))
    assert few[-1] == ["out afterwards", "float64 8", "1, 1, 1, 1, 1, 1, 1, 1"]
    assert few[2] == ["device memory: sectors", "2", "of 32 bytes, in 1 request; 2 would do"]
    assert kept(SimtMicroscope(eight, 1, 8, np.zeros((9, 1)).T[0]))[-1][-1] == "1, 1, 1, 1, 1, 1, 1, 1, ..."


def test_one_thread_too_many_is_told_in_the_singular() -> None:
    """Of 64 threads the last finds no element: 31 lanes of warp 1 write 124 bytes, which four sectors hold."""
    m = SimtMicroscope(odd_block, 1, 64, np.zeros(63, np.float32), warp=1)
    line = _line_of(odd_block, "= 1")
    assert m.words[1] == (
        "store to out, 4 bytes a lane, device memory: 31 lanes, 4 sectors: ideal; 1 active lane takes no part: see the finding"
    )
    assert position(m)["accesses"][0]["good"] is False
    assert m._results.message == f"odd_block, grid (1, 1, 1), block (64, 1, 1): 1 finding: bounds in line {line}."
    (found,) = row(m, line)["findings"]
    first = kept(m)[0]
    assert first == [f"bounds, line {line}", "1", found["words"]]
    assert (found["kind"], first[2][0].isupper(), first[2].endswith("; once).")) == ("bounds", True, True)


def nothing(x: Any) -> None:
    """No statement."""


def test_a_warp_that_executes_nothing_says_so() -> None:
    """There is no step to show, and none to go to."""
    m = SimtMicroscope(nothing, 1, 32, np.zeros(1))
    assert position(m) == {"step": 0, "steps": 0, "line": 0, "words": "Warp 0 executes nothing.", "lanes": [], "accesses": [], "lines": []}
    assert (m.steps, m.line) == (0, 0)


@pytest.mark.parametrize(
    ("lanes", "words"),
    [
        ([5], "lane 5"),
        ([0, 1, 2, 3, 4, 5, 6, 7, 16], "lanes 0 to 7, 16"),
        ([0, 2], "lanes 0, 2"),
        ([4, 5, 6], "lanes 4 to 6"),
        ([1, 16, 31], "every 15th lane from 1 to 31"),
        ([0, 2, 4], "every second lane from 0 to 4"),
        ([1, 4, 7], "every third lane from 1 to 7"),
        ([0, 4, 8], "every 4th lane from 0 to 8"),
        ([0, 2, 5, 7, 9, 11], "lanes 0, 2, 5, 7, 9, 11"),
        ([0, 2, 5, 7, 9, 11, 13, 14], "lanes 0, 2, 5, 7, 9, and 2 more"),
    ],
)
def test_lanes_are_told_in_few_words(lanes: list[int], words: str) -> None:
    """Runs, or a stride; of more than six pieces the first five."""
    assert _simt_walk._ranges(lanes) == words


def test_a_thread_is_named_by_its_place_in_the_block() -> None:
    """X runs fastest, as in CUDA; a block of fewer dimensions has fewer numbers."""
    for number, block, words in (
        (13, (32, 1, 1), "threadIdx 13"), (13, (4, 4, 1), "threadIdx (1, 3)"), (13, (2, 3, 4), "threadIdx (1, 0, 2)"),
        (13, (4, 1, 4), "threadIdx (1, 0, 3)"), (16, (4, 4, 1), "no thread: the block ends before"),
        (0, (1, 1, 1), "threadIdx 0"),
    ):  # fmt: skip
        assert _simt_walk._thread(number, block) == words


def shown(elements: list[int], size: int, space: str = "shared", kind: str = "load") -> dict[str, Any]:
    """An access of warp 0, whose further lanes take no part."""
    lanes = np.array([*elements, *[-1] * (32 - len(elements))])
    found = _simt_walk.show_access(StepAccess("a", space, kind, size, lanes), 0)
    assert found is not None
    return found


def test_accesses_of_every_width_have_their_words_and_their_banks() -> None:
    """A bank is 4 bytes wide: four int8 share a word, a double takes two, a float4 four, and then goes by quarters of a warp."""
    narrow = shown([0, 1, 4, 128], 1)
    assert narrow["title"] == "load from a, 1 byte a lane, shared memory"
    assert narrow["words"] == "bank 0: 2 words, 2-way conflict; 2 wavefronts instead of 1"
    (part,) = narrow["parts"]
    assert (narrow["good"], part["title"]) == (False, "")
    assert [cell["label"] for cell in part["columns"][0]["cells"]] == ["elements 0 to 3", "elements 128 to 131"]
    assert [cell["lanes"] for cell in part["columns"][0]["cells"]] == [[0, 1], [3]]
    assert [column["label"] for column in part["columns"]] == [str(bank) for bank in range(32)]
    assert {column["gap"] for column in part["columns"]} == {False}
    one = shown([3], 4)
    assert (one["words"], one["good"]) == ("1 lane, 1 wavefront: no conflict", True)
    assert one["parts"][0]["columns"][3]["cells"] == [{"label": "element 3", "lanes": [0]}]
    assert shown([0, 32, 1, 33], 4)["words"].startswith("bank 0 (as in 1 more): 2 words")
    assert shown([3, 3], 4)["words"] == "2 lanes, 1 wavefront: one word for all, a broadcast, no conflict"
    wide_words = shown([2], 8)["parts"][0]["columns"]
    assert [(column["title"], column["cells"][0]["label"]) for column in wide_words if column["cells"]] == [
        ("bank 4", "element 2"), ("bank 5", "element 2"),
    ]  # fmt: skip
    quarters = shown(list(range(32)), 16)
    assert [part["title"] for part in quarters["parts"]] == [f"{n} quarter-warp" for n in ("first", "second", "third", "fourth")]
    assert [part["lanes"].index(True) for part in quarters["parts"]] == [0, 8, 16, 24]
    assert [part["title"] for part in shown(list(range(8)), 16)["parts"]] == ["first quarter-warp"]
    device = shown([0, 9, 33], 4, "global", "atomic")
    assert (device["kind"], device["words"], device["good"]) == ("sectors", "3 lanes, 3 sectors, where 1 would do", False)
    assert shown([0, 1], 4, "global")["good"] is True
    assert shown([6, 6], 4, "global", "atomic")["words"].endswith("; up to 2 lanes update one element, one after the other")
    columns = device["parts"][0]["columns"]
    assert columns[1]["cells"] == [{"label": str(8 + k), "lanes": [1] if k == 1 else []} for k in range(8)]
    assert [(c["label"], c["gap"], c["title"]) for c in columns] == [
        ("0", False, "sector of elements 0 to 7"), ("8", False, "sector of elements 8 to 15"), ("32", True, "sector of elements 32 to 39"),
    ]  # fmt: skip
    assert _simt_walk.show_access(StepAccess("a", "global", "load", 4, np.full(32, -1)), 0) is None


# Moving about.


def test_python_and_the_browser_lead_to_the_same_state() -> None:
    """A message from the step's slider does what setting ``step`` does; the same for a line's button and ``go_to``."""
    by_mouse, by_python = SimtMicroscope("block_sum"), SimtMicroscope("block_sum")
    by_mouse.wait()
    assert send(by_mouse, do="set", name="step", raw=12, seq=7) == [{"ack": 7, "view": None}]
    by_python.step = 12
    assert position(by_mouse) == position(by_python)
    send(by_mouse, do="line", line=17, seq=8)
    by_python.go_to(17)
    assert position(by_mouse) == position(by_python)
    assert by_mouse.line == 17
    assert by_mouse.step > 12


def test_a_step_that_was_overtaken_is_not_taken() -> None:
    """The slider's move that arrives after the line that was pressed later is answered, and the warp stays at that line."""
    m = SimtMicroscope("block_sum")
    m.wait()
    assert send(m, do="line", line=17, seq=2, view="a") == [{"ack": 2, "view": "a"}]
    assert send(m, do="set", name="step", raw=1, seq=1, view="a") == [{"ack": 1, "view": "a"}]
    assert m.line == 17
    send(m, do="set", name="step", raw=3, seq=3, view="a")
    send(m, do="line", line=17, seq=2, view="a")
    assert m.step == 3


def test_a_step_of_the_longer_walk_before_is_no_error() -> None:
    """Play or a fast hand sends one more step while the kernel goes to a warp with fewer: it is answered, and Run works afterwards."""
    m = SimtMicroscope("block_sum")
    m.wait()
    last = m.steps
    m._panel._handle_custom_msg({"do": "set", "name": "warp", "raw": 3, "seq": 1, "view": "a"}, [])
    before = m.step
    assert m.steps < last
    assert send(m, do="set", name="step", raw=last, seq=1, view="b") == [{"ack": 1, "view": "b"}]
    assert (m.error, m.step) == ("", before)
    job = m._job
    m._panel._handle_custom_msg({"do": "run", "action": "run", "values": [], "seq": 2, "view": "a"}, [])
    m.wait()
    assert m._job is not job


def test_a_step_neither_simulates_nor_sends_the_source_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Moving is only looking: what costs time is done once."""
    m = SimtMicroscope("block_sum")
    m.wait()
    monkeypatch.setattr(kernels, "simulate", lambda *a, **k: pytest.fail("simulated again"))
    changes: list[str] = []
    m._microscope.observe(lambda change: changes.append(change["name"]), names=["source", "position"])
    for step in range(2, m.steps + 1):
        m.step = step
    m.warp = 2
    assert set(changes) == {"position"}
    assert len(changes) == m.result.trace.__len__()  # 42 moves and one to another warp: as many as the 43 steps of warp 0


def test_another_warp_stays_at_the_same_moment() -> None:
    """Warp 3 skips the sums of warps 0 and 1: from such a step it goes to its next one, the barrier after it."""
    m = SimtMicroscope("block_sum")
    m.go_to(16)
    at = m.step
    m.warp = 3
    assert m.line == 17
    assert m.step == at  # one step fewer behind it, one place further on
    assert position(m)["words"].startswith("Warp 3 at line 17: all 32 lanes active")
    assert 16 not in position(m)["lines"]
    m.warp = 0
    assert m.line == 17


def test_a_line_is_found_again_and_again() -> None:
    """go_to takes the next step at the line, after the last one the first, and refuses a line that the warp never executes."""
    m = SimtMicroscope("block_sum", warp=0)
    seen = []
    for _ in range(8):
        m.go_to(16)
        seen.append(m.step)
    assert seen == [8, 13, 18, 23, 28, 33, 38, 8]
    with pytest.raises(InputError, match="never executes line 13"):
        SimtMicroscope("vector_add").go_to(13)


def test_what_moves_out_of_range_is_refused_in_words() -> None:
    """The steps are those of the warp, the blocks those of the grid; nothing changes."""
    m = SimtMicroscope("vector_add", step=2)
    for bad, words in (
        ({"step": 4}, "from 1 to 3"),
        ({"step": 0}, "from 1 to 3"),
        ({"block_number": 4}, "from 0 to 3"),
        ({"warp": 1}, "0: threads"),
    ):
        with pytest.raises(InputError, match=words):
            m.set(**bad)
    assert (m.step, m.warp, m.block_number) == (2, 0, 0)
    m.set(kernel="transpose_tiled")
    assert (m.step, m.values["block_number"]) == (1, 0)


@pytest.mark.parametrize("junk", [math.nan, -1, 10**400, "junk", b"x", [], {}, np.array([1, 2]), object(), 1j, None])
def test_junk_leaves_everything_as_it_was(junk: Any) -> None:
    """Every control refuses it in one sentence, and a junk message is survived."""
    m = SimtMicroscope("vector_add", step=2)
    before, shown = dict(m.values), position(m)
    for name in [*before, "nosuch"]:
        with pytest.raises(InputError) as caught:
            m.set(**{name: junk})
        assert len(str(caught.value)) < 800
    send(m, do="set", name="step", raw=repr(junk), seq=1)
    assert m.error
    assert send(m, do="line", line=repr(junk), seq=2) == [{"ack": 2, "view": None}]
    assert (m.values, position(m)) == (before, shown)


@pytest.mark.parametrize(
    ("ask", "found"),
    [
        (lambda m: m.result.kernel, "odd_block"), (lambda m: m.steps, 1), (lambda m: m.line - _line_of(odd_block, "= 1"), 0),
        (lambda m: m.words[1][:13], "store to out,"), (lambda m: m.outputs["out"].tolist(), [1.0] * 64),
        (lambda m: m.go_to(_line_of(odd_block, "= 1")), None), (lambda m: setattr(m, "block_number", 1) or m.running, False),
        (lambda m: m.run(wait=True) or m.running, False), (lambda m: m.set(kernel="odd_and_even", step=4) or m.step, 4),
    ],
)  # fmt: skip
def test_what_is_asked_while_a_run_is_under_way_waits_for_it(
    monkeypatch: pytest.MonkeyPatch, ask: Callable[[Any], Any], found: Any
) -> None:
    """Right after another kernel was loaded, each answer is that of the new one, also where its simulation takes its time."""
    m = SimtMicroscope("vector_add")
    m.wait()
    real = kernels.simulate

    def slowly(*arguments: Any, **options: Any) -> Any:
        time.sleep(0.05)
        return real(*arguments, **options)

    monkeypatch.setattr(kernels, "simulate", slowly)
    m.load(odd_block, 2, 32, np.zeros(64, np.float32))
    assert ask(m) == found


# A kernel of the learner's.


def _line_of(kernel: Callable[..., None], text: str) -> int:
    lines, first = inspect.getsourcelines(kernel)
    return int(first + next(k for k, line in enumerate(lines) if text in line))


def twice(x: Any, y: Any, factor: Any) -> None:
    """Both arrays are written."""
    i = cuda.grid(1)
    x[i] = factor * x[i]
    y[i] += x[i]


def test_the_learners_arrays_are_not_touched() -> None:
    """Runs work on copies: nothing changes outside, ``outputs`` has the results; an array given twice stays one array."""
    x, y = np.arange(64, dtype=np.float32), np.ones(64, np.float32)
    m = SimtMicroscope(twice, 2, 32, x, y, 3.0)
    assert np.array_equal(m.outputs["x"], 3 * np.arange(64))
    assert np.array_equal(m.outputs["y"], 3 * np.arange(64) + 1)
    assert np.array_equal(x, np.arange(64))
    assert np.array_equal(y, np.ones(64))
    assert "factor" not in m.outputs
    m.run(wait=True)
    assert np.array_equal(m.outputs["x"], 3 * np.arange(64))  # fresh copies, not those of the last run
    m.load(twice, 2, 32, x, x, 3.0)
    assert np.array_equal(m.outputs["y"], 6 * np.arange(64))
    assert np.array_equal(x, np.arange(64))


def test_another_kernel_is_run_though_a_block_was_refused() -> None:
    """The number was meant for the grid of the kernel before: what is on the screen is the new kernel."""
    m = SimtMicroscope("transpose_tiled")
    m.wait()
    m._panel._handle_custom_msg({"do": "set", "name": "block_number", "raw": "9999", "seq": 1}, [])
    assert m.error.startswith("Block: '9999' will not do")
    m.set(kernel="vector_add")
    assert m.result.kernel == "vector_add"
    assert m.error == ""


def test_what_the_simulation_refuses_is_refused_here() -> None:
    """Copies do not hide overlapping, strided or read-only arrays; the sentence is shown, the arrays are as they were."""
    base = np.arange(128, dtype=np.float32)
    fixed = np.ones(64, np.float32)
    fixed.flags.writeable = False
    for x, y, words in ((base[:64], base[32:96], "overlap"), (base[::2], fixed.copy(), "not contiguous"), (base[:64], fixed, "read-only")):
        m = SimtMicroscope(twice, 2, 32, x, y, 3.0)
        m.wait()
        assert words in m.error
        assert m.words == []
    assert np.array_equal(base, np.arange(128))


def test_a_tensor_that_is_no_array_is_refused_as_by_the_simulation() -> None:
    """Of bfloat16 and sparse ones the sentence of ``simulate`` is shown, which says what to do."""
    torch = pytest.importorskip("torch")
    for x in (torch.ones(32, dtype=torch.bfloat16), torch.ones(32).to_sparse()):
        m = SimtMicroscope(odd_block, 1, 32, x)
        m.wait()
        assert m.error.startswith("simulate: out is a tensor of torch.")
        assert m.error.endswith("Convert it, for example by .float().")


def test_a_tensor_is_copied_too() -> None:
    """CPU tensors of torch run as arrays do, and stay as they were."""
    torch = pytest.importorskip("torch")
    x = torch.ones(32)
    m = SimtMicroscope(odd_block, 1, 32, 0 * x)
    assert m.outputs["out"].tolist() == [1.0] * 32
    y = torch.zeros(32)
    m.load(odd_block, 1, 32, y)
    m.wait()
    assert y.sum() == 0


@pytest.fixture
def cell() -> Iterator[Callable[[str], dict[str, Any]]]:
    """Run a notebook cell: always in the same namespace, each time a new text, as IPython does."""
    names: dict[str, Any] = {"cuda": cuda, "float32": float32, "np": np}
    made: list[str] = []

    def run(text: str) -> dict[str, Any]:
        made.append(f"<a learner's cell {len(made)}>")
        linecache.cache[made[-1]] = (len(text), None, text.splitlines(keepends=True), made[-1])
        exec(compile(text, made[-1], "exec"), names)
        return names

    yield run
    for name in made:
        linecache.cache.pop(name, None)


def test_run_reads_the_edited_cell(cell: Callable[[str], dict[str, Any]]) -> None:
    """The cell is edited and run, then Run shows the new text at the same step; before Run nothing changes."""
    names = cell("def k(x):\n    i = cuda.grid(1)\n    x[i * 2] = 1\nx = np.zeros(64, np.float32)\n")
    m = SimtMicroscope(names["k"], 1, 32, names["x"], step=2)
    assert m.words[1].endswith("32 lanes, 8 sectors, where 4 would do")
    assert "simulate(k, 1, 32, x, trace=0)" in m.code
    cell("def k(x):\n    i = cuda.grid(1)\n    x[i] = 1\n")
    assert m.words[1].endswith("8 sectors, where 4 would do")
    m.run(wait=True)
    assert m.step == 2
    assert m.words[1].endswith("32 lanes, 4 sectors: ideal")
    assert m._microscope.source[2]["text"] == "    x[i] = 1"


def test_an_older_function_of_the_same_name_stays_under_the_microscope(cell: Callable[[str], dict[str, Any]]) -> None:
    """A function that its name did not stand for when it was given is not replaced by the one that the name stands for."""
    old = cell("def k(x):\n    x[cuda.grid(1)] = 1\n")["k"]
    cell("def k(x):\n    x[cuda.grid(1)] = 2\n")
    m = SimtMicroscope(old, 1, 32, np.zeros(32, np.float32))
    m.run(wait=True)
    assert m.outputs["x"].tolist() == [1.0] * 32


def test_a_kernel_that_cannot_run_says_why_and_the_next_one_runs(cell: Callable[[str], dict[str, Any]]) -> None:
    """The sentence names the line; what was on the screen is taken away, since it is no longer this kernel's."""
    good = cell("def k(x):\n    i = cuda.grid(1)\n    x[i] = 1\n")["k"]
    m = SimtMicroscope(good, 1, 32, np.zeros(32, np.float32))
    assert m.words
    m.load(cell("def k(x):\n    open('/etc/hosts')\n")["k"])
    m.wait()
    assert "k, line 2 `open('/etc/hosts')`" in m.error
    assert "\n" not in m.error
    assert (m._microscope.source, m._microscope.position, m._results.rows, m.result) == ([], {}, [], None)
    m.load(good)
    assert m.words
    assert m.error == ""
    assert m.outputs["x"].tolist() == [1.0] * 32


@pytest.mark.parametrize(
    ("grid", "block", "words"), [(1, 2048, "1 to 1,024"), (0, 32, "grid=0"), ("x", 32, "grid='x'"), (1, (2, 2**40), "block=")]
)
def test_impossible_launches_are_told_inside(grid: Any, block: Any, words: str) -> None:
    """What ``simulate`` says about the grid or the block is the instrument's error."""
    m = SimtMicroscope(odd_block, grid, block, np.zeros(32, np.float32))
    m.wait()
    assert words in m.error


def test_a_kernel_needs_a_launch() -> None:
    """Without grid or block the call is refused in one sentence; from then on ``load`` keeps what is not given again."""
    with pytest.raises(InputError, match="twice comes without a grid"):
        SimtMicroscope(twice)
    with pytest.raises(InputError, match="without a block"):
        SimtMicroscope().load(twice, 2)
    with pytest.raises(InputError, match="expected one of"):
        SimtMicroscope("no_such_kernel")


def test_the_code_of_a_learners_kernel_names_what_was_given() -> None:
    """Arrays are written as parameters where no variable holds them, numbers as they are; dynamic shared memory is kept."""
    m = SimtMicroscope(twice, (2, 1), 32, np.zeros(64, np.float32), np.zeros(64, np.float32), np.float32(3), dynamic_shared_bytes=128)
    assert "s = gl.kernels.simulate(twice, (2, 1), 32, x, y, np.float32(3.0), dynamic_shared_bytes=128, trace=0)" in m.code
    assert m.code.startswith("import numpy as np\n\nimport gpulab as gl")


given = np.arange(64, dtype=np.float32)
_hidden = np.zeros(64, np.float32)


def test_a_launch_is_written_with_the_variables_that_hold_its_arrays() -> None:
    """A variable's own name, the parameter's where only a private one holds the array, a number as it is, and a place beyond them."""
    launch = Launch(twice, 2, 32, (given, _hidden, 3.0, np.ones(2)))
    assert launch.code() == "twice, 2, 32, given, y, 3.0, argument3"
    assert (launch.name, launch.parameters, launch.blocks, launch.threads) == ("twice", ("x", "y", "factor"), 2, 32)
    assert (launch.dynamic_shared_bytes, launch.words) == (0, ())
    assert launch == launch
    assert launch != Launch(twice, 2, 32, launch.arguments), "two launches are two, whatever they hold"
    assert Launch(5, (3, 2), (4, 2, 2), ()).parameters == ()
    sizes = [(one.blocks, one.threads) for one in (Launch(5, (3, 2), [4, np.int64(2), 2], ()), Launch(5, 2**31 - 1, 2**31, ()))]
    assert sizes == [(6, 16), (2**31 - 1, 1)]
    for wrong in (0, True, 1.0, "x", (), (2, 0)):
        assert Launch(twice, wrong, 32, ()).blocks == 1


class Meanwhile(str):
    """A variable's name at which, as soon as it is looked at, another thread defines one more."""

    def startswith(self, *args: Any) -> bool:
        """Define it."""
        namespace[f"new{len(namespace)}"] = 1
        return super().startswith(*args)


namespace: dict[str, Any] = {}


def test_a_cell_may_define_names_while_a_run_ends() -> None:
    """The code is written in the work's thread, from the notebook's variables; Python ends a loop over a dict that grows meanwhile."""
    exec("def copy(x): pass", namespace)
    namespace.update({Meanwhile("ours"): given})
    assert Launch(namespace["copy"], 2, 32, (given,)).code() == "copy, 2, 32, ours"
    assert "new" in " ".join(namespace)


# Runs.


def endless(x: Any) -> None:
    """Never ends by itself."""
    while True:
        x[0] += 1


def test_stop_ends_an_endless_kernel() -> None:
    """The run is under way at once; Stop ends it without an error, and another kernel can be looked at."""
    m = SimtMicroscope(endless, 1, 32, np.zeros(1))
    assert m.running
    assert m._panel.state == "running"
    m.stop()
    m.wait()
    assert not m.running
    assert m.error == ""
    assert "stopped" in m._panel.progress
    assert "press Run" in m._results.message
    m.set(kernel="vector_add")
    assert m.words


def test_the_kernel_chosen_last_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run under way is left when another kernel is chosen; only the last result is shown."""
    real, begun, seen = kernels.simulate, threading.Event(), []

    def simulate(kernel: Any, *args: Any, stop: Callable[[], None], **options: Any) -> Any:
        seen.append(kernel.__name__)
        begun.set()
        while kernel.__name__ != "block_sum":
            stop()
            threading.Event().wait(0.005)
        return real(kernel, *args, stop=stop, **options)

    monkeypatch.setattr(kernels, "simulate", simulate)
    m = SimtMicroscope("vector_add")
    for name in ("odd_and_even", "strided_copy", "block_sum"):
        assert begun.wait(SECONDS)
        begun.clear()
        m.set(kernel=name)
    m.wait()
    assert seen[0] == "vector_add"
    assert seen[-1] == m.result.kernel == "block_sum"
    assert m._tried is not None
    assert m.error == ""


@pytest.mark.parametrize("stopped", [False, True])
def test_what_ends_with_nothing_leaves_nothing_of_the_run_before(monkeypatch: pytest.MonkeyPatch, stopped: bool) -> None:
    """Once the panel says "idle", the old source, step, table and result are gone already, after an error as after Stop."""
    m = SimtMicroscope("block_sum", step=8)
    assert m.words
    begun = threading.Event()

    def simulate(*_: Any, stop: Callable[[], None], **__: Any) -> Any:
        begun.set()
        while stopped:
            stop()
            threading.Event().wait(0.005)
        raise InputError("simulate: no; expected yes. Say so.")

    seen: list[Any] = []

    def look(change: Any) -> None:
        if change["new"] == "idle":
            seen.append((m.error, m._microscope.source, m._microscope.position, m._results.rows, m._results.message, m.results))

    monkeypatch.setattr(kernels, "simulate", simulate)
    m._panel.observe(look, names=["state"])
    m.run()
    assert begun.wait(SECONDS)
    if stopped:
        m.stop()
    m.wait()
    error = "" if stopped else "simulate: no; expected yes. Say so."
    assert seen == [(error, [], {}, [], "Nothing to show: choose another kernel, or press Run.", {})]


@pytest.mark.parametrize("ask", ["wait", "running"])
def test_who_waits_waits_for_what_the_last_moment_began(monkeypatch: pytest.MonkeyPatch, ask: str) -> None:
    """A kernel chosen when the work is done, and not yet said to be, is run too before ``wait`` returns and ``running`` is False."""
    idle, said = threading.Event(), threading.Event()
    end, names, found = SimtMicroscope._end, ["block_sum"], []

    def late(self: SimtMicroscope, *args: Any) -> None:
        while names:
            self._apply({"kernel": names.pop()})
        end(self, *args)

    def look(change: Any) -> None:
        if change["new"] == "idle":
            idle.set()
            said.wait(0.2)  # time enough to take it for the end

    def ask_when_idle() -> None:
        assert idle.wait(SECONDS)
        if ask == "wait":
            m.wait()
        while ask == "running" and m.running:
            threading.Event().wait(0.005)
        found.append(m.results["run"].kernel)
        said.set()

    m = SimtMicroscope("vector_add")
    m.wait()
    monkeypatch.setattr(SimtMicroscope, "_end", late)
    m._panel.observe(look, names=["state"])
    asking = threading.Thread(target=ask_when_idle)
    asking.start()
    m.run()
    asking.join(SECONDS)
    assert found == ["block_sum"]


def test_run_during_a_run_begins_anew_and_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """``run(wait=True)`` right after the start returns with the result and without an error."""
    m = SimtMicroscope("block_sum")
    m.run(wait=True)
    assert not m.running  # asked first: the result would wait
    assert m.error == ""
    assert m.result.kernel == "block_sum"


def test_what_it_offers_it_takes() -> None:
    """Buttons and controls are those of its table, and each option and suggestion is taken as itself."""
    offers_what_it_takes(SimtMicroscope())
