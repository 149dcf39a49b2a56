"""The microscope as a still picture: sectors, banks and lanes are counted in the picture, against counts made by hand."""

from __future__ import annotations

import itertools
import re
from typing import Any

import pytest

from gpulab._html._microscope import microscope
from gpulab.widgets import SimtMicroscope


def picture(name: str, step: int) -> str:
    """The page's picture of an example at a step."""
    m = SimtMicroscope(name, step=step)
    m.wait()
    panel = m._microscope
    return microscope({"position": panel.position, "source": panel.source, "columns": panel.columns, "colors": panel.colors})


def boxes(text: str, kind: str) -> list[str]:
    """The words of the boxes of a kind, in order."""
    return re.findall(rf'gpulab-box-{kind}"><title>(.*?)</title>', text)


def test_a_column_read_through_a_tile_fills_one_bank_and_four_sectors() -> None:
    """Words 0, 32, 64, ...: all 32 in bank 0, so 32 boxes in conflict and 31 idle banks; the 32 neighbours written are 4 sectors of 8."""
    text = picture("transpose_tiled", 6)
    banks, sectors = text.split('<div class="gpulab-access">')[1:]
    assert len(boxes(banks, "conflict")) == 32
    assert boxes(banks, "bank") == ["bank 0: 32 words"]
    assert len(boxes(banks, "idle")) == 31
    assert "×32" in banks
    assert "Shared memory: above the 32 lanes" in text
    assert (len(boxes(sectors, "touched")), len(boxes(sectors, "idle")), sectors.count("gpulab-frame")) == (32, 0, 4)
    assert "Device memory: above the 32 lanes" in text
    for part in (banks, sectors):
        assert (part.count("gpulab-link"), len(boxes(part, "on"))) == (32, 32)


def test_a_column_of_a_matrix_touches_32_sectors_and_wants_an_eighth() -> None:
    """Each lane's element is in a sector of its own: 32 frames, 32 elements wanted, 224 moved for nothing; no bank is drawn."""
    text = picture("transpose_naive", 3)
    (sectors,) = text.split('<div class="gpulab-access">')[1:]
    assert sectors.count("gpulab-frame") == 32
    assert len(boxes(sectors, "touched")) == 32
    assert len(boxes(sectors, "idle")) + len(boxes(sectors, "bare")) == 224
    assert "Shared memory: above" not in text
    assert 'class="gpulab-look"' in sectors


def test_half_a_warp_is_lit() -> None:
    """Even lanes take their arm; the others wait. Each lane is a box of the strip."""
    strip = picture("odd_and_even", 3).partition("</svg>")[0]
    assert (len(boxes(strip, "on")), len(boxes(strip, "off"))) == (16, 16)
    assert all("waits" in words for words in boxes(strip, "off"))


def element(label: int, *lanes: int) -> dict[str, Any]:
    """One cell of a column."""
    return {"label": str(label), "lanes": list(lanes)}


def sector(first: int, gap: bool, *lanes: int) -> dict[str, Any]:
    """A sector of eight elements, whose first ones are asked for by these lanes."""
    return {"label": str(first), "gap": gap, "title": "", "cells": [element(first + k, *lanes[k : k + 1]) for k in range(8)]}


def still(kind: str, columns: list[dict[str, Any]], lanes: int = 32) -> str:
    """The picture of one access of the first lanes."""
    part = {"title": "", "lanes": [lane < lanes for lane in range(32)], "columns": columns}
    access = {"title": "load from x", "words": "so and so", "good": True, "kind": kind, "parts": [part]}
    return microscope({"position": {"words": "Warp 0.", "step": 2, "steps": 7, "accesses": [access]}})


Box = tuple[str, float, float, float, float]  # words, left, top, width, height


def drawn(text: str) -> dict[str, list[Box]]:
    """The boxes of a picture by their kind."""
    found: dict[str, list[Box]] = {}
    pattern = r'gpulab-box-(\w+)"><title>(.*?)</title><rect x="(.*?)" y="(.*?)" width="(.*?)" height="(.*?)"/>'
    for kind, words, *place in re.findall(pattern, text):
        found.setdefault(kind, []).append((words, *map(float, place)))  # type: ignore[arg-type]
    return found


def joins(text: str) -> list[tuple[float, float, float, float]]:
    """Where each link begins and ends."""
    found = re.findall(r'gpulab-link" d="M(\S+?),(\S+?) C\S+ \S+ (\S+?),(\S+?)"/>', text)
    return [tuple(map(float, each)) for each in found]  # type: ignore[misc]


def test_sectors_stand_as_they_lie_in_memory() -> None:
    """Neighbours near, others apart, all the same width, in the middle of the picture; each link goes from its lane to its element."""
    for columns in (
        [sector(0, False, 0, 1), sector(8, False, 2), sector(64, True, 3)],
        [sector(8 * k, k % 2 == 1, k) for k in range(32)],
        [sector(0, False, 0)],
    ):
        text = still("sectors", columns, 4)
        frames = [tuple(map(float, each)) for each in re.findall(r'frame" x="(.*?)" y="(.*?)" width="(.*?)" height="(.*?)"', text)]
        lefts, rights = [x for x, *_ in frames], [x + width for x, _, width, _ in frames]
        assert len({width for _, _, width, _ in frames}) == 1
        assert lefts[0] >= 0
        assert lefts[0] == pytest.approx(32 * 24 - rights[-1], abs=0.1)
        spaces: dict[bool, set[float]] = {True: set(), False: set()}
        for end, begin, column in zip(rights, lefts[1:], columns[1:], strict=False):
            spaces[column["gap"]].add(round(begin - end, 1))
        assert all(len(each) <= 1 for each in spaces.values())
        assert all(0 < near < apart for near in spaces[False] for apart in spaces[True])
        boxes_there = drawn(text)
        cells = sorted((b for kind in ("touched", "idle", "bare") for b in boxes_there.get(kind, [])), key=lambda b: b[1])
        for k, (x, y, width, height) in enumerate(frames):
            eight = cells[8 * k : 8 * k + 8]
            assert [b[1] for b in eight] == pytest.approx([x + width / 8 * c for c in range(8)], abs=0.1)
            assert {(b[2], b[4]) for b in eight} == {(y, height)}
        assert all(b[0].endswith(": no lane") for kind in ("idle", "bare") for b in boxes_there.get(kind, []))
        lanes = {int(b[0].split()[1].rstrip(":")): b for kind in ("on", "off") for b in boxes_there[kind]}
        asked = [(lane, b) for b in cells if (who := re.search(r"lane (\d+)$", b[0])) for lane in [int(who[1])]]
        assert len(joins(text)) == len(asked)
        for (begin, top, end, bottom), (lane, b) in zip(joins(text), asked, strict=True):
            _, left, above, width, height = lanes[lane]
            assert (begin, top) == (left + width / 2, above + height)
            assert (end, bottom) == (pytest.approx(b[1] + b[3] / 2, abs=0.1), b[2])
        height = float(re.findall(r'viewBox="-2 -2 772 (.*?)"', text)[-1]) - 2
        marks = [(float(x), float(y)) for x, y in re.findall(r'gpulab-mark" x="(.*?)" y="(.*?)"', text)]
        assert all(frames[0][1] + frames[0][3] < y < height for _, y in marks)
        assert marks[0][0] == pytest.approx((lefts[0] + rights[0]) / 2, abs=0.1)
        assert all(b[0] - a[0] > 6 * 3 for a, b in itertools.pairwise(marks)), "numbers of three digits do not touch"
        assert len(marks) >= len(columns) / 2


def test_words_of_a_bank_lie_under_it() -> None:
    """Each bank under the lane of its number, its words one below the other from there on, and then how many; nothing is cut."""
    words_of = {0: 3, 5: 1}
    columns = [{"label": str(b), "gap": False, "cells": [element(32 * k + b, k) for k in range(words_of.get(b, 0))]} for b in range(32)]
    text = still("banks", columns, 3)
    boxes_there = drawn(text)
    (first, five), conflict = boxes_there["bank"], boxes_there["conflict"]
    assert (first[0], five[0]) == ("bank 0: 3 words", "bank 5: 1 word")
    lanes = sorted(boxes_there["on"] + boxes_there["off"], key=lambda b: b[1])
    assert (first[1], first[3], five[1]) == (lanes[0][1], lanes[0][3], lanes[5][1])
    assert [round(b - a, 3) for a, b in itertools.pairwise([lane[1] for lane in lanes])] == [24] * 31
    assert [b[0] for b in conflict] == ["bank 0, 0: lane 0", "bank 0, 32: lane 1", "bank 0, 64: lane 2"]
    below = [(first[2], first[4]), *((b[2], b[4]) for b in conflict)]
    assert [top for top, _ in below[1:]] == pytest.approx([top + height for top, height in below[:-1]])
    (count_x, count_y, count) = re.findall(r'gpulab-times" x="(.*?)" y="(.*?)">(.*?)<', text)[0]
    assert (float(count_x), count) == (first[1] + first[3] / 2, "×3")
    assert text.count("×") == 1, "one word is no conflict"
    assert {(b[1], b[3]) for b in conflict} == {(first[1], first[3])}
    height = float(re.findall(r'viewBox="-2 -2 772 (.*?)"', text)[-1]) - 2
    assert below[-1][0] + below[-1][1] < float(count_y) < height
    assert [(begin, end) for begin, _, end, _ in joins(text)] == [
        (lanes[lane][1] + 11, bank[1] + 11) for lane, bank in ((0, first), (1, first), (2, first), (0, five))
    ]  # fmt: skip
    assert {(top, bottom) for _, top, _, bottom in joins(text)} == {(20.0, first[2])}
    tall = [{"label": str(b), "gap": False, "cells": [element(k, k) for k in range(32 * (b == 0))]} for b in range(32)]
    words = drawn(still("banks", tall))["conflict"]
    assert [b[2] - a[2] for a, b in itertools.pairwise(words)] == [pytest.approx(words[0][4], rel=0.01)] * 31
    assert words[-1][2] - words[0][2] < 150, "a high tower has low storeys"
    twice = [{"label": str(b), "gap": False, "cells": [element(k, k) for k in range(2 * (b == 0))]} for b in range(32)]
    assert "×2<" in still("banks", twice)


def test_the_page_draws_at_the_very_pixels_of_the_instrument() -> None:
    """By hand from ``simt_microscope.js``: 32 lanes of 24 make 768; sectors stand 2 apart, or 18, or 6 where there are more than 8."""

    def frames(*gaps: bool) -> list[tuple[str, ...]]:
        text = still("sectors", [sector(64 * k, gap, k) for k, gap in enumerate((False, *gaps))])
        assert 'viewBox="-2 -2 772 100"' in text
        return re.findall(r'frame" x="(.*?)" y="(.*?)" width="(.*?)" height="(.*?)"', text)

    assert frames(True) == [("187.5", "62", "187.5", "18"), ("393", "62", "187.5", "18")]
    assert frames(*[False] * 7)[:2] == [("0", "62", "94.25", "18"), ("96.25", "62", "94.25", "18")]
    assert frames(*[True] * 7)[1] == ("98.25", "62", "80.25", "18")
    assert frames(*[True] * 8)[1] == ("86", "62", "80", "18")
    assert frames(*[True] * 31)[1] == ("24.188", "62", "18.19", "18")
    ten, twelve = (still("sectors", [sector(64 * k, k > 0, k) for k in range(n)]) for n in (10, 12))
    kinds = [(len(boxes(text, "idle")), len(boxes(text, "bare"))) for text in (ten, twelve)]
    assert kinds == [(70, 0), (0, 84)]  # cells of 8.9 pixels have room for an edge, those of 7.3 have not
    assert re.findall(r'mark" x="(.*?)" y="(.*?)">(.*?)<', ten)[:2] == [("35.7", "91", "0"), ("113.1", "91", "64")]
    many = re.findall(r'mark" x=".*?" y=".*?">(.*?)<', still("sectors", [sector(8 * k, k % 2 == 1, k) for k in range(32)]))
    assert many == [str(16 * k) for k in range(16)]  # three letters of 6 and 8 more are 26, a sector takes 22.2: every second one
    (path, *_) = re.findall(r'link" d="(.*?)"', ten)
    assert path == "M12,20 C12,42 4.4625,32 4.4625,62"

    def tower(words: int) -> str:
        return still("banks", [{"label": "", "gap": False, "cells": [element(k, k) for k in range(words * (b == 0))]} for b in range(32)])

    three = tower(3)
    assert 'viewBox="-2 -2 772 134"' in three
    assert '<rect x="1" y="56" width="22" height="16"/><text x="12" y="64">0</text>' in three
    assert '<text class="gpulab-times" x="12" y="125">×3</text>' in three
    assert 'd="M12,20 C12,36 12,32 12,56"' in three
    assert '<rect x="1" y="0" width="22" height="20"/><text x="12" y="10">0</text>' in three
    assert '<rect x="1" y="86" width="22" height="14"/>' in three
    assert [drawn(tower(words))["conflict"][0][4] for words in (10, 26, 32)] == [13, 5, pytest.approx(4.0625, abs=0.001)]


def test_what_the_panel_says_stands_beside_the_picture() -> None:
    """The step of how many, the source with its counts, what is worth a look, the line that is executed, and a finding over its width."""
    look, plain = {"text": "32-way", "look": True}, {"text": "4", "look": False}
    rows = [
        {"line": 3, "text": "a < b", "cells": [look, plain], "findings": [{"kind": "race", "words": "Two & more."}]},
        {"line": 4, "text": "c", "cells": [plain, plain], "findings": []},
    ]
    state = {"position": {"words": "Warp 0.", "step": 2, "steps": 7, "line": 4}, "source": rows, "columns": ["line", "source", "x", "y"],
             "colors": {"lane": "#009E73"}, "label": "Source of k"}  # fmt: skip
    text = microscope(state)
    assert 'style="--scope-lane:#009E73;"' in text
    assert '<p class="gpulab-words">Step 2 of 7. Warp 0.</p>' in text
    assert (
        '<tbody><tr><th scope="row">3</th><td><code>a &lt; b</code></td><td class=gpulab-look>32-way</td><td>4</td></tr>'
        '<tr class="gpulab-finding"><td></td><td colspan="3"><span class="gpulab-badge">race</span> Two &amp; more.</td></tr>'
        '<tr aria-current="step"><th scope="row">4</th><td><code>c</code></td><td>4</td><td>4</td></tr></tbody>'
    ) in text
    assert text.count("Source of k") == 2
    half = {"title": "first half-warp", "lanes": [True] * 32, "columns": []}
    access = {"title": "load", "words": "", "kind": "banks", "parts": [half, {**half, "title": ""}]}
    lanes = [{"state": state, "title": "t"} for state in ("on", "off", "none")]
    strip = microscope({"position": {"words": "W.", "lanes": lanes, "accesses": [access]}})
    assert strip.count('<p class="gpulab-legend">first half-warp</p>') == strip.count('class="gpulab-legend"') - 1 == 1
    assert re.findall(r"<title>(lane . *: t, .*?)</title><rect.*?/>(?:<text.*?>(.*?)</text>)?</g>", strip) == [
        ("lane 0: t, active", "0"), ("lane 1: t, waits", "1"), ("lane 2: t, not there", ""),
    ]  # fmt: skip
    assert "Step" not in microscope({"position": {"words": "Warp 0 executes nothing."}})
    assert "Source with its counts" in microscope({**state, "label": ""})


@pytest.mark.parametrize("state", [{}, {"position": {}, "source": []}])
def test_a_panel_that_shows_nothing_has_no_picture(state: dict[str, object]) -> None:
    """Before the first kernel there is nothing to draw."""
    assert microscope(state) == ""
