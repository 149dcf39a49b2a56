"""The outputs of a cell as self-contained HTML: plots, instruments and tables.

An instrument is drawn by ``template/outputs.html.j2`` from the widget state that the executed
notebook keeps. It is a box of panels (``widgets/_instrument``): the controls become text, the
picture and the table are kept. A widget of another library is not drawn; its name is shown.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jinja2
from nbformat import NotebookNode

from gpulab.evidence import Badge

TEMPLATES = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).parent / "template"), autoescape=True
)
_VIEW = "application/vnd.jupyter.widget-view+json"
_STATE = "application/vnd.jupyter.widget-state+json"
_PLOTLY = "application/vnd.plotly.v1+json"
_HEIGHT = 360  # pixels, where a figure states none
_MARK = "IPY_MODEL_"
# The name of the template's macro for a panel -> the traits by which the panel is recognized.
_PANELS = {
    "controls": {"spec", "values", "actions"},
    "results": {"shown", "busy"},
    "prediction": {"asked", "answered"},
    "microscope": {"position", "source", "columns"},
}


def _draw(macro: str, *arguments: Any) -> str:
    return str(getattr(TEMPLATES.get_template("outputs.html.j2").module, macro)(*arguments))


def prepare(notebook: NotebookNode) -> NotebookNode:
    """Turn every plot, widget and table among the outputs into self-contained HTML, in place, and
    mark the cells that show MEASURED figures.

    Parameters
    ----------
    notebook : NotebookNode
        Executed, with the widgets' state in its metadata.

    Returns
    -------
    NotebookNode
        The same object. ``cell.metadata.gpulab_measured`` is True if an output of the cell carries
        the badge MEASURED.
    """
    widgets = notebook.metadata.pop("widgets", {}).get(_STATE, {}).get("state", {})
    models = {id: model.get("state", {}) for id, model in widgets.items()}
    for cell in (cell for cell in notebook.cells if cell.cell_type == "code"):
        for output in (output for output in cell.outputs if "data" in output):
            # nbconvert draws text and images itself
            plain = {
                kind: content
                for kind, content in output["data"].items()
                if kind == "text/plain" or kind.startswith("image/")
            }
            drawn = _as_html(output, models)
            output["data"] = NotebookNode({"text/html": drawn} if drawn else plain)
        texts = (
            _joined(part)
            for output in cell.outputs
            for part in (output.get("text", ""), *output.get("data", {}).values())
        )
        cell.metadata["gpulab_measured"] = any(Badge.MEASURED.value in text for text in texts)
    return notebook


def _as_html(output: Mapping[str, Any], models: Mapping[str, Any]) -> str:
    """Return an output's richest form as HTML; "" where it is plain text or an image."""
    data = output.get("data", {})
    words = _joined(data.get("text/plain", ""))
    if _VIEW in data:
        return _still(data[_VIEW]["model_id"], words, models)
    if _PLOTLY in data:
        return _plot(data[_PLOTLY], words or "A figure.")
    if "text/html" in data:
        return f'<div class="rendered">{_joined(data["text/html"])}</div>'
    return ""


def _joined(text: Any) -> str:
    return "".join(text) if isinstance(text, list) else str(text)


def _plot(figure: Mapping[str, Any], words: str) -> str:
    """Return a figure of plotly's JSON, with a description of it."""
    layout = figure.get("layout") or {}
    content = {"data": figure.get("data") or [], "layout": layout}
    # "<" could end the script element, or begin a comment in it.
    body = json.dumps(content, allow_nan=False).replace("<", "\\u003c")
    return _draw("plot", words, f"{float(layout.get('height') or _HEIGHT):.0f}", body)


def _still(model_id: str, words: str, models: Mapping[str, Any]) -> str:
    """Return a still of a widget; ``words`` is the output's own text, shown where the widget is not
    one of gpulab's.
    """
    drawn = _panels(model_id, models)
    if not drawn:
        return _draw("foreign", words)
    is_prediction = _PANELS["prediction"] <= set(models.get(model_id, ()))
    return drawn if is_prediction else _draw("still", drawn)


def _panels(model_id: str, models: Mapping[str, Any]) -> str:
    state = models.get(model_id, {})
    if "children" in state:
        return "".join(_panels(each.removeprefix(_MARK), models) for each in state["children"])
    if "outputs" in state:
        outputs = (_as_html(output, models) for output in state["outputs"])
        return "".join(f'<div class="gpulab-picture">{output}</div>' for output in outputs)
    macro = next((macro for macro, keys in _PANELS.items() if keys <= set(state)), None)
    return "" if macro is None else _draw(macro, state)
