"""A figure as an element that the page's own copy of plotly.js draws, with a description for screen
readers.
"""

from __future__ import annotations

import html
import json
from collections.abc import Mapping
from typing import Any

PLOTLY_MIME = "application/vnd.plotly.v1+json"
_HEIGHT = 360  # pixels, where a figure states none


def plot(figure: Mapping[str, Any], words: str = "") -> str:
    """Return a figure of plotly's JSON as HTML.

    Parameters
    ----------
    figure : mapping
        ``data`` and ``layout``.
    words : str
        The picture in words, where the figure's own ``layout.meta.description`` is missing.

    Returns
    -------
    str
        A ``figure`` with the JSON inside; ``page.js`` draws it. Without scripts the words are
        shown.
    """
    layout = figure.get("layout") or {}
    meta = layout.get("meta")
    said = (meta.get("description") if isinstance(meta, Mapping) else "") or words or "A figure."
    height = layout.get("height") or _HEIGHT
    # "<" could end the script element, or begin a comment in it.
    body = json.dumps(
        {"data": figure.get("data") or [], "layout": layout}, allow_nan=False
    ).replace("<", "\\u003c")
    text = html.escape(str(said))
    return (
        '<figure class="plot"><div class="plot-window" tabindex="0" role="group" '
        'aria-label="Figure; scrolls sideways on a narrow page">'
        f'<div class="plot-here" role="img" aria-label="{text}" '
        f'style="height:{float(height):.0f}px"></div></div>'
        f'<script type="application/json">{body}</script><noscript><p '
        f'class="plot-words">{text}</p></noscript></figure>'
    )
