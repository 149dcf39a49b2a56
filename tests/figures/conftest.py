"""What holds for every figure, asked of each one that a test of this folder makes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from gpulab.figures._style import LabFigure


def broken(data: list[dict[str, Any]], layout: dict[str, Any]) -> list[str]:
    """Return what a figure does that none should."""
    notes = layout.get("annotations", ())
    found = [f"an arrow from {note['text']!r} to nothing" for note in notes if note.get("showarrow") is not ("ax" in note)]
    for trace in data:
        bars = [trace[name] for name in ("error_x", "error_y") if "arrayminus" in trace.get(name, {})]
        found += ["bars of unlike ends drawn alike" for bar in bars if bar.get("symmetric") is not False]
        if trace.get("mode") == "markers+text" and trace.get("cliponaxis") is not False:
            found.append(f"what stands beside a mark at the edge is cut: {trace['text']}")
    if layout.get("showlegend", len(data) > 1):
        names = [trace.get("name") for trace in data if trace.get("showlegend") is not False]
        found += [f"in the legend: {name or 'a trace without a name'}" for name, count in Counter(names).items() if count > 1 or not name]
    legend = [trace for trace in data if trace.get("showlegend") is not False] if layout.get("showlegend") is not False else []
    in_legend = {trace.get("name") for trace in legend}
    found += [f"has a name that no legend tells: {trace['name']}" for trace in data if trace.get("name") and trace["name"] not in in_legend]
    # Unless it is told to, plotly.js draws a legend of two traces on, and counts none without points, and one that asks for it twice.
    drawn = [trace for trace in legend if len(trace.get("x", ())) and trace.get("name")]
    if "showlegend" not in layout and len(drawn) == 1 and drawn[0].get("showlegend") is not True:
        found.append(f"has a name whose legend is not drawn: {drawn[0]['name']}")
    for trace in data:
        parts = [trace, trace.get("error_x", {}), trace.get("error_y", {})]
        given = [one[name] for one in parts for name in ("x", "y", "base", "text", "customdata", "array", "arrayminus") if name in one]
        found += (
            ["lists of unlike lengths"]
            if len({len(one) for one in given if one is not None and not isinstance(one, str)} - {0}) > 1
            else []
        )
        if trace.get("orientation") == "h":
            rows = layout[trace.get("yaxis", "y").replace("y", "yaxis")]
            found += ["lines through the rows of bars"] if rows.get("showgrid") is not False else []
    for name, axis in layout.items():
        if name.startswith(("xaxis", "yaxis")):
            rules = {"fixedrange": True, "automargin": True, "zeroline": False}
            found += [f"{name}: {key} is {axis.get(key)}" for key, value in rules.items() if axis.get(key) is not value]
    found += ["the picture can be dragged"] if layout.get("dragmode") is not False else []
    return found


@pytest.fixture(autouse=True)
def _rules(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    made: list[LabFigure] = []
    init = LabFigure.__init__

    def keep(figure: LabFigure, *arguments: Any, **named: Any) -> None:
        init(figure, *arguments, **named)
        made.append(figure)

    monkeypatch.setattr(LabFigure, "__init__", keep)
    yield
    for figure in made:
        assert broken(figure._data, figure._layout) == []
