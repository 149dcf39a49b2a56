"""The text of a page, a table or a figure, as tests compare it, without colors or positions."""

import html
import json
import re
from typing import Any

PLOTLY_MIME = "application/vnd.plotly.v1+json"
_DATA = (
    "type",
    "name",
    "x",
    "y",
    "base",
    "width",
    "z",
    "labels",
    "parents",
    "values",
    "text",
    "error_x",
    "error_y",
)


def table_text(markup: str) -> str:
    """Return an HTML table as lines of cells, the caption last."""
    body = re.sub(r"<(style|script).*?</\1>", "", markup, flags=re.DOTALL)
    body = re.sub(r"\s*</t[dh]>\s*(?=<t[dh])", " | ", body)
    body = re.sub(r"</(tr|p|div|li|summary|figcaption|h\d)>|<br>", "\n", body)
    lines = (
        " ".join(html.unescape(re.sub("<[^>]*>", "", line)).split()) for line in body.splitlines()
    )
    return "\n".join(line for line in lines if line) + "\n"


def figure_text(figure: Any) -> str:
    """Return a figure's title, axis titles, notes and data, with numbers to four digits."""
    from gpulab.figures import mimebundle  # needs plotly, which a bare GPU machine lacks

    body = mimebundle(figure)[PLOTLY_MIME]
    layout = body["layout"]
    lines = [f"title: {_plain(layout.get('title', {}).get('text', ''))}"]
    for name in sorted(name for name in layout if re.fullmatch(r"[xy]axis\d*", name)):
        axis = layout[name]
        title = _plain(axis.get("title", {}).get("text", ""))
        lines.append(f"{name}: {title} ({axis.get('type', 'linear')})")
    lines += [f"note: {_plain(note.get('text', ''))}" for note in layout.get("annotations", ())]
    for trace in body["data"]:
        parts = (
            f"{key}={json.dumps(_short(trace[key]), ensure_ascii=False)}"
            for key in _DATA
            if trace.get(key) is not None
        )
        lines.append("trace: " + " ".join(parts))
    return "\n".join(lines) + "\n"


def _plain(text: str) -> str:
    return " ".join(re.sub("<[^>]*>", " ", text or "").split())


def _short(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _short(item) for key, item in value.items() if key in ("array", "arrayminus")}
    if isinstance(value, (list, tuple)):
        return [_short(item) for item in value]
    if isinstance(value, float):
        return float(f"{value:.4g}")
    return _plain(value) if isinstance(value, str) else value
