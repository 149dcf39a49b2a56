"""The outputs of a cell as self-contained HTML: plots, stills of instruments, tables, text,
pictures.
"""

from __future__ import annotations

import html
from collections.abc import Mapping
from typing import Any

from nbformat import NotebookNode

from gpulab._html._plots import PLOTLY_MIME, plot
from gpulab._html._stills import Stills
from gpulab.evidence import Badge

_VIEW = "application/vnd.jupyter.widget-view+json"
_IMAGES = ("image/png", "image/jpeg", "image/svg+xml")


def prepare(notebook: NotebookNode) -> NotebookNode:
    """Turn every output with something else than plain text or HTML into HTML, in place, and mark
    the cells that show MEASURED figures.

    Parameters
    ----------
    notebook : NotebookNode
        Executed, with the widgets' state in its metadata.

    Returns
    -------
    NotebookNode
        The same object. ``cell.metadata.gpulab_measured`` says whether an output carries the badge
        MEASURED.
    """
    stills = Stills(notebook.metadata, lambda output: _as_html(output, stills))
    for cell in notebook.cells:
        if cell.cell_type != "code":
            continue
        for output in cell.outputs:
            if output.output_type in ("display_data", "execute_result"):
                drawn = _as_html(output, stills)
                output["data"] = NotebookNode(
                    {"text/html": drawn}
                    if drawn
                    else {"text/plain": output["data"].get("text/plain", "")}
                )
        cell.metadata["gpulab_measured"] = any(
            Badge.MEASURED.value in _text(output) for output in cell.outputs
        )
    notebook.metadata.pop("widgets", None)
    return notebook


def _as_html(output: Mapping[str, Any], stills: Stills) -> str:
    """Return an output's richest form as HTML; "" where it is plain text alone."""
    if "data" not in output:
        return (
            f"<pre>{html.escape(_joined(output.get('text', '')))}</pre>"
            if output.get("text")
            else ""
        )
    data = output["data"]
    words = _joined(data.get("text/plain", ""))
    if _VIEW in data:
        return stills.of(data[_VIEW]["model_id"], words)
    if PLOTLY_MIME in data:
        return plot(data[PLOTLY_MIME], words)
    if "text/html" in data:
        return f'<div class="rendered">{_joined(data["text/html"])}</div>'
    for kind in _IMAGES:
        if kind in data:
            return _image(kind, data[kind], output.get("metadata", {}), words)
    return ""


def _image(kind: str, content: Any, metadata: Mapping[str, Any], words: str) -> str:
    """An image inside the page, with its alternative text: the cell's own, else the output's
    words.
    """
    alt = metadata.get("alt") or metadata.get(kind, {}).get("alt") or words or "A picture."
    if kind == "image/svg+xml":
        import base64

        content = base64.b64encode(_joined(content).encode()).decode()
    return (
        f'<img alt="{html.escape(str(alt))}" src="data:{kind};base64,{_joined(content).strip()}">'
    )


def _text(output: Mapping[str, Any]) -> str:
    return _joined(output.get("text", "")) + "".join(
        _joined(part) for part in output.get("data", {}).values()
    )


def _joined(text: Any) -> str:
    return "".join(text) if isinstance(text, list) else str(text)
