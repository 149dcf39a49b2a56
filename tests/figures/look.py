"""How a picture looks, in a few lines: sizes in pixels, places, colours, patterns and names, without what all pictures share."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import plotly.graph_objects as go

from gpulab.evidence import Evidence
from gpulab.figures import mimebundle
from gpulab.figures._style import PLOTLY_MIME, LabFigure, frame

_BASE: dict[str, Any] = mimebundle(frame("", Evidence.measured("x", 1), ""))[PLOTLY_MIME]["layout"]
_LIST = 4  # a longer list is data
# What other tests hold for every figure, or with values by hand.
_LEFT_OUT = (
    *("type", "mode", "customdata", "tickvals", "ticktext", "tickmode", "tickprefix", "ticksuffix", "array", "arrayminus"),
    *("showarrow", "symmetric"),
)


def look(figure: LabFigure) -> list[str]:
    """Return a line for the whole, one for each axis, note and shape, one for each trace; of those that look alike one, and how many."""
    body = mimebundle(figure)[PLOTLY_MIME]
    layout = {name: value for name, value in body["layout"].items() if name not in ("meta", "template", "title")}
    axes = {name: layout.pop(name) for name in list(layout) if re.fullmatch(r"[xy]axis\d?", name)}
    several = {name: layout.pop(name, ()) for name in ("annotations", "shapes")}
    whole = {name: _beside(value, _BASE.get(name)) for name, value in layout.items() if value != _BASE.get(name)}
    lines = [_line("whole", whole), *(_line(name, _beside(axis, _BASE["xaxis"])) for name, axis in sorted(axes.items()))]
    for kind, name in (("annotations", "note"), ("shapes", "shape")):
        lines += [_line(name, each) for each in several[kind]]
    lines += [_line(f"{trace['type']} {trace.get('mode', '')}".strip(), trace) for trace in body["data"]]
    times = Counter(lines)
    return [f"{line} (x {times[line]})" if times[line] > 1 else line for line in times]


def _beside(value: Any, usual: Any) -> Any:
    """What is not as usual."""
    return {key: item for key, item in value.items() if item != usual.get(key)} if isinstance(value, dict) and usual else value


def _line(name: str, value: dict[str, Any]) -> str:
    return " ".join(" ".join([f"{name}:", *(f"{path}={text}" for path, text in sorted(_leaves(value)))]).split())


def _leaves(value: dict[str, Any], before: str = "") -> Iterator[tuple[str, str]]:
    for key, item in value.items():
        if key in _LEFT_OUT or item in ("%{customdata}<extra></extra>", "") or (isinstance(item, (list, tuple)) and len(item) > _LIST):
            continue
        if isinstance(item, dict) and list(item) != ["text"]:
            yield from _leaves({k: v for k, v in item.items() if (k, v) != ("color", value.get("color"))}, f"{before}{key}.")
        else:
            yield f"{before}{key}", _text(item["text"] if isinstance(item, dict) else item)


def _text(value: Any) -> str:
    """A number in four digits, a text without mark-up."""
    if isinstance(value, (list, tuple)):
        return f"[{' '.join(map(_text, value))}]"
    if isinstance(value, float):
        return f"{value + 0.0:.4g}"
    return re.sub("<.*?>", "", value.replace("<br>", "|")) if isinstance(value, str) else str(value)


def words(figure: go.Figure) -> str:
    """All that is written in a figure, without mark-up."""
    layout = figure.layout
    texts = [layout.title.text, layout.title.subtitle.text, layout.xaxis.title.text, layout.yaxis.title.text]
    texts += [a.text for a in layout.annotations] + [t.name for t in figure.data]
    return re.sub("<.*?>", "", " | ".join(text for text in texts if text))
