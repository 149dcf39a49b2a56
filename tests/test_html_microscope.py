"""The microscope as a still picture: sectors, banks and lanes are counted in the picture, against counts made by hand."""

from __future__ import annotations

import re

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


@pytest.mark.parametrize("state", [{}, {"position": {}, "source": []}])
def test_a_panel_that_shows_nothing_has_no_picture(state: dict[str, object]) -> None:
    """Before the first kernel there is nothing to draw."""
    assert microscope(state) == ""
