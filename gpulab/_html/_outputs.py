"""The outputs of a cell as self-contained HTML: plots, instruments, tables, text, images.

An instrument is drawn from the widget state that the executed notebook keeps: a box of panels
(``widgets/_instrument``) whose controls become words, and whose picture and table stay what they are. A
widget of another library is not drawn; its name is shown.
"""

from __future__ import annotations

import base64
import html
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nbformat import NotebookNode

from gpulab.evidence import Badge

_VIEW = "application/vnd.jupyter.widget-view+json"
_PLOTLY = "application/vnd.plotly.v1+json"
_IMAGES = ("image/png", "image/jpeg", "image/svg+xml")
_HEIGHT = 360  # pixels, where a figure states none
_MARK = "IPY_MODEL_"
Renderer = Callable[[Mapping[str, Any]], str]


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
    stills = _Stills(notebook.metadata, lambda output: _as_html(output, stills))
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


def _as_html(output: Mapping[str, Any], stills: _Stills) -> str:
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
    if _PLOTLY in data:
        return _plot(data[_PLOTLY], words)
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


def _plot(figure: Mapping[str, Any], words: str = "") -> str:
    """Return a figure of plotly's JSON, which ``page.js`` draws; without scripts its words are
    shown: those of its own ``layout.meta.description``, else those given.
    """
    layout = figure.get("layout") or {}
    meta = layout.get("meta")
    description = (
        (meta.get("description") if isinstance(meta, Mapping) else "") or words or "A figure."
    )
    height = layout.get("height") or _HEIGHT
    # "<" could end the script element, or begin a comment in it.
    body = json.dumps(
        {"data": figure.get("data") or [], "layout": layout}, allow_nan=False
    ).replace("<", "\\u003c")
    text = html.escape(str(description))
    return (
        '<figure class="plot"><div class="plot-window" tabindex="0" role="group" '
        'aria-label="Figure; scrolls sideways on a narrow page">'
        f'<div class="plot-here" role="img" aria-label="{text}" '
        f'style="height:{float(height):.0f}px"></div></div>'
        f'<script type="application/json">{body}</script><noscript><p '
        f'class="plot-words">{text}</p></noscript></figure>'
    )


class _Stills:
    """The widgets of one executed notebook.

    Parameters
    ----------
    notebook_metadata : mapping
        With ``widgets``, as nbclient stores it.
    show_output : callable
        Draws one output of a notebook as HTML, for what an ``Output`` widget holds.
    """

    def __init__(self, notebook_metadata: Mapping[str, Any], show_output: Renderer) -> None:
        stored = notebook_metadata.get("widgets", {}).get(
            "application/vnd.jupyter.widget-state+json", {}
        )
        self._models: Mapping[str, Any] = stored.get("state", {})
        self._show_output = show_output

    def of(self, model_id: str, words: str) -> str:
        """Return a still of a view; ``words`` is the output's own text, shown where the widget is
        not one of gpulab's.
        """
        drawn = self._draw(model_id)
        if not drawn:
            return (
                '<div class="still"><p class="still-label">An instrument that runs in '
                f"JupyterLab</p><p>{html.escape(words)}</p></div>"
            )
        if self._is_prediction(model_id):
            return drawn
        label = "Instrument, as a still picture; in JupyterLab you can use its controls"
        return (
            f'<div class="still" role="group" aria-label="{label}"><p '
            f'class="still-label">{label}</p>{drawn}</div>'
        )

    def _state(self, model_id: str) -> Mapping[str, Any]:
        return self._models.get(model_id, {}).get("state", {})  # type: ignore[no-any-return]

    def _is_prediction(self, model_id: str) -> bool:
        return {"question", "choices", "example"} <= set(self._state(model_id))

    def _draw(self, model_id: str) -> str:
        state = self._state(model_id)
        if "children" in state:
            return "".join(self._draw(child.removeprefix(_MARK)) for child in state["children"])
        if "outputs" in state:
            return "".join(
                f'<div class="gpulab-picture">{self._show_output(output)}</div>'
                for output in state["outputs"]
            )
        for keys, draw in _PANELS:
            if keys <= set(state):
                return draw(state)
        return ""


def _controls(state: Mapping[str, Any]) -> str:
    """The controls' labels with their values, and the names of the buttons."""
    values = state["values"]
    fields = [
        (s, values[s["name"]]) for s in state["spec"] if s["name"] in values and not s.get("hidden")
    ]
    pairs = "".join(
        f'<div class="gpulab-field"><dt>{html.escape(_label(spec))}</dt>'
        f"<dd>{html.escape(_value(spec, value))}</dd></div>"
        for spec, value in fields
    )
    buttons = ", ".join(action["label"] for action in state["actions"])
    pressed = f'<p class="still-buttons">Buttons: {html.escape(buttons)}</p>' if buttons else ""
    error = (
        f'<p class="gpulab-error">{html.escape(state["error"])}</p>' if state.get("error") else ""
    )
    return (
        '<div class="gpulab"><p class="gpulab-heading"><span '
        f'class="gpulab-title">{html.escape(state["title"])}</span> '
        f'<span class="gpulab-summary">{html.escape(state["summary"])}</span></p>'
        f"{f'<dl class=gpulab-controls>{pairs}</dl>' if pairs else ''}{pressed}{error}</div>"
    )


def _label(spec: Mapping[str, Any]) -> str:
    return f"{spec['label']} ({spec['unit']})" if spec.get("unit") else str(spec["label"])


def _value(spec: Mapping[str, Any], value: Any) -> str:
    """What the control shows: the panel's raw values are indices where there are options."""
    options: Sequence[str] = spec.get("options") or ()
    if spec["kind"] == "several":
        return ", ".join(options[k] for k in value) or "none"
    if spec["kind"] == "switch":
        return "on" if value else "off"
    return str(options[value]) if options else str(value)


def _badge(name: str) -> str:
    return (
        '<span class="gpulab-badge '
        f'gpulab-badge-{html.escape(name.lower())}">{html.escape(name)}</span>'
    )


def _cell(tag: str, content: Any, scope: str = "") -> str:
    inside = _badge(content["badge"]) if isinstance(content, Mapping) else html.escape(str(content))
    return f"<{tag}{scope}>{inside}</{tag}>"


def _table(label: str, headers: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    if not rows:
        return ""
    head = "".join(
        f'<th scope="col">{html.escape(text)}</th>' if text else "<td></td>" for text in headers
    )
    body = "".join(
        f"<tr>{_cell('th', row[0], ' scope=row')}{''.join(_cell('td', c) for c in row[1:])}</tr>"
        for row in rows
    )
    named = html.escape(label)
    return (
        f'<div class="gpulab-table" tabindex="0" role="group" aria-label="{named}"><table><caption '
        f'class="gpulab-hidden">{named}</caption>'
        f"{f'<thead><tr>{head}</tr></thead>' if any(headers) else ''}"
        f"<tbody>{body}</tbody></table></div>"
    )


def _results(state: Mapping[str, Any]) -> str:
    """The table, where its figures come from, the notes, and the lines that give the same in a
    cell.
    """
    message = (
        f'<p class="gpulab-message">{html.escape(state["message"])}</p>' if state["message"] else ""
    )
    lines = [f"<li>{_evidence(each)}</li>" for each in state["evidence"]]
    lines += map(_note, state["notes"])
    if state["more"]:
        folded = (
            f"<summary>{len(state['more'])} more "
            f"notes</summary><ul>{''.join(map(_note, state['more']))}</ul>"
        )
        lines.append(f'<li><details class="gpulab-more">{folded}</details></li>')
    status = f'<ul class="gpulab-status">{"".join(lines)}</ul>' if lines else ""
    code = (
        '<details class="gpulab-code"><summary>Show the code</summary><pre '
        f'tabindex="0"><code>{html.escape(state["code"])}</code></pre>'
        "</details>"
        if state["code"]
        else ""
    )
    table = _table(state["label"], state["headers"], state["rows"])
    return f'<div class="gpulab gpulab-results">{message}{table}{status}{code}</div>'


def _note(note: Mapping[str, str]) -> str:
    code = f'<span class="gpulab-note-code">{html.escape(note["code"])}</span>'
    return f'<li class="gpulab-note">{code} {html.escape(note["sentence"])}</li>'


def _evidence(each: Mapping[str, str]) -> str:
    line, rest = f"{_badge(each['badge'])} {html.escape(each['text'])}", html.escape(each["rest"])
    return f"<details><summary>{line}</summary><div>{rest}</div></details>" if rest else line


def _prediction(state: Mapping[str, Any]) -> str:
    """The question alone: the state at the notebook's end would give away the answer."""
    choices = "".join(f"<li>{html.escape(text)}</li>" for text in state["choices"])
    unit = {"x": " As a factor.", "%": " In percent.", "": ""}.get(
        state.get("unit", ""), f" In {html.escape(state.get('unit', ''))}."
    )
    how = (
        "Choose an answer before you read on."
        if choices
        else f"Decide on a number before you read on.{unit}"
    )
    return (
        '<div class="gpulab gpulab-predict"><div class="gpulab-eyebrow">Predict '
        f"{html.escape(state['id'])}</div>"
        f'<div class="gpulab-question">{html.escape(state["question"])}</div>'
        f"{f'<ul class=gpulab-choices>{choices}</ul>' if choices else ''}<div "
        f'class="gpulab-kept">{how}</div></div>'
    )


def _microscope(state: Mapping[str, Any]) -> str:
    """The microscope's step and its accesses in words, and the source with its counts, in which the
    line of the step stands out.
    """
    at = state.get("position") or {}
    if not at and not state.get("source"):
        return ""
    step = f"Step {at.get('step', 0)} of {at.get('steps', 0)}. " if at.get("steps") else ""
    paragraphs = [f'<p class="gpulab-words">{html.escape(step + at.get("words", ""))}</p>']
    for access in at.get("accesses") or ():
        look = "" if access.get("good") else ' class="gpulab-look"'
        paragraphs.append(
            f'<p class="gpulab-access-title"><strong>{html.escape(access["title"])}</strong>: '
            f"<span{look}>{html.escape(access['words'])}</span></p>"
        )
    colors = (state.get("colors") or {}).items()
    style = html.escape("".join(f"--scope-{name}:{color};" for name, color in colors))
    return (
        f'<div class="gpulab gpulab-scope" style="{style}">{"".join(paragraphs)}'
        f"{_source(state, at.get('line'))}</div>"
    )


def _source(state: Mapping[str, Any], line: int | None) -> str:
    rows, columns = state.get("source") or [], state.get("columns") or []
    if not rows:
        return ""
    head = "".join(f'<th scope="col">{html.escape(text)}</th>' for text in columns)
    body = []
    for row in rows:
        here = ' aria-current="step"' if row["line"] == line else ""
        cells = "".join(
            f"<td{' class=gpulab-look' if c.get('look') else ''}>{html.escape(c['text'])}</td>"
            for c in row["cells"]
        )
        body.append(
            f"<tr{here}><th "
            f'scope="row">{row["line"]}</th><td><code>{html.escape(row["text"])}</code></td>{cells}</tr>'
        )
        for finding in row["findings"]:
            words = (
                f'<span class="gpulab-badge">{html.escape(finding["kind"])}</span> '
                f"{html.escape(finding['words'])}"
            )
            body.append(
                '<tr class="gpulab-finding"><td></td><td '
                f'colspan="{len(columns) - 1}">{words}</td></tr>'
            )
    label = html.escape(state.get("label") or "Source with its counts")
    return (
        f'<div class="gpulab-source" tabindex="0" role="group" aria-label="{label}"><table>'
        f'<caption class="gpulab-hidden">{label}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table></div>"
    )


# Which panel a model is, by the traits that only it has.
_PANELS: tuple[tuple[set[str], Renderer], ...] = (
    ({"spec", "values", "actions"}, _controls),
    ({"headers", "rows", "evidence"}, _results),
    ({"question", "choices", "example"}, _prediction),
    ({"position", "source", "columns"}, _microscope),
)
