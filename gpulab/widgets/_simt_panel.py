"""The microscope's own panel between controls and results, as a widget: traits go to the browser,
messages come back.
"""

from __future__ import annotations

import pathlib
from typing import Any

import traitlets

from gpulab.figures import palette
from gpulab.widgets._panels import Panel, script
from gpulab.widgets._simt_counts import COLUMNS

_COLORS = {
    "lane": palette.BLUISH_GREEN,
    "touched": palette.SKY_BLUE,
    "conflict": palette.ORANGE,
    "look": palette.VERMILLION,
    "guide": palette.GREY,
}


class MicroscopePanel(Panel):
    """The source with its counts, and the step of a warp: its lanes, and the sectors and banks that
    they touch.
    """

    _esm = script("simt_microscope.js")
    _css = (pathlib.Path(__file__).parent / "simt_microscope.css").read_text(encoding="utf-8")

    columns = traitlets.List(list(COLUMNS)).tag(sync=True)
    colors = traitlets.Dict(_COLORS).tag(sync=True)
    label = traitlets.Unicode().tag(sync=True)  # names the table for a screen reader
    source: traitlets.List[Any] = traitlets.List().tag(sync=True)  # show_source()
    position = traitlets.Dict().tag(sync=True)  # Walk.show()
