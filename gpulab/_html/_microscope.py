"""The microscope's panel as a still picture: the lanes of the step, the source with its counts, the
sectors and banks that it touches.

It draws what ``widgets/simt_microscope.js`` draws, from the same state, without buttons.
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

_LANE = 24
_WIDTH = 32 * _LANE
_STATES = {"on": "active", "off": "waits", "none": "not there"}
_LEGENDS = {
    "sectors": "Device memory: the 32 lanes on top, and below them the 32-byte sectors that they "
    "access. Requested elements are filled; "
    "empty ones are moved without being used. The number is a sector's first element.",
    "banks": "Shared memory: the 32 lanes on top, below them the 32 banks, and below each bank the "
    "words that it must deliver one after "
    "the other. Lanes that read the same word share it.",
}


def microscope(state: Mapping[str, Any]) -> str:
    """Return the panel as HTML."""
    at = state.get("position") or {}
    if not at and not state.get("source"):
        return ""
    style = "".join(
        f"--scope-{name}:{color};" for name, color in (state.get("colors") or {}).items()
    )
    step = f"Step {at.get('step', 0)} of {at.get('steps', 0)}. " if at.get("steps") else ""
    accesses = at.get("accesses") or []
    legends = [
        f'<p class="gpulab-legend">{html.escape(_LEGENDS[kind])}</p>'
        for kind in _LEGENDS
        if any(a["kind"] == kind for a in accesses)
    ]
    words = html.escape(step + at.get("words", ""))
    return (
        f'<div class="gpulab gpulab-scope" style="{html.escape(style)}"><p '
        f'class="gpulab-words">{words}</p>'
        f"{_strip(at.get('lanes') or [], at.get('words', ''))}{_source(state, at)}{''.join(map(_access, accesses))}{''.join(legends)}</div>"
    )


def _picture(height: float, words: str, *parts: str) -> str:
    return (
        f'<svg class="gpulab-lanes" viewBox="-2 -2 {_WIDTH + 4} {height + 4:g}" role="img" '
        f'aria-label="{html.escape(words)}">'
        f"{''.join(parts)}</svg>"
    )


def _box(
    x: float, y: float, width: float, height: float, kind: str, words: str, text: object = None
) -> str:
    label = (
        ""
        if text is None
        else f'<text x="{x + width / 2:g}" y="{y + height / 2:g}">{html.escape(str(text))}</text>'
    )
    rect = f'<rect x="{x:.4g}" y="{y:g}" width="{width:.4g}" height="{height:g}"/>'
    return (
        '<g class="gpulab-box '
        f'gpulab-box-{kind}"><title>{html.escape(words)}</title>{rect}{label}</g>'
    )


def _lane(lane: int, state: str, words: str) -> str:
    return _box(
        lane * _LANE + 1,
        0,
        _LANE - 2,
        20,
        state,
        f"lane {lane}: {words}",
        "" if state == "none" else lane,
    )


def _strip(lanes: Sequence[Mapping[str, Any]], words: str) -> str:
    boxes = (
        _lane(k, lane["state"], f"{lane['title']}, {_STATES[lane['state']]}")
        for k, lane in enumerate(lanes)
    )
    return _picture(20, words, *boxes) if lanes else ""


def _link(lane: int, x: float, y: float) -> str:
    begin = lane * _LANE + _LANE / 2
    return (
        f'<path class="gpulab-link" d="M{begin:g},20 C{begin:g},{y - 20:g} {x:.5g},32 '
        f'{x:.5g},{y:g}"/>'
    )


def _who(lanes: Sequence[int]) -> str:
    if not lanes:
        return "no lane"
    return (
        f"lane {lanes[0]}"
        if len(lanes) == 1
        else f"{len(lanes)} lanes, such as {lanes[0]} and {lanes[1]}"
    )


def _row_of_lanes(lanes: Sequence[bool]) -> str:
    return "".join(
        _lane(k, "on" if on else "off", "takes part" if on else "does not take part")
        for k, on in enumerate(lanes)
    )


def _sectors(part: Mapping[str, Any], words: str) -> str:
    """Sectors side by side: neighbours in memory touch, others stand apart; a cell is one
    element.
    """
    columns, top, height, near = part["columns"], 62, 18, 2
    far = 6 if len(columns) > 8 else 18
    gaps = sum(far if column["gap"] else near for column in columns[1:])
    width = (_WIDTH - gaps) / max(len(columns), 4)
    x = (_WIDTH - gaps - width * len(columns)) / 2
    every = -(
        -(max((len(column["label"]) for column in columns), default=1) * 6 + 8)
        // max(int(width + near), 1)
    )
    links, boxes = [], []
    for k, column in enumerate(columns):
        x += 0 if k == 0 else far if column["gap"] else near
        cell = width / max(len(column["cells"]), 1)
        for c, each in enumerate(column["cells"]):
            kind = "touched" if each["lanes"] else "bare" if cell < 8 else "idle"
            boxes.append(
                _box(
                    x + c * cell,
                    top,
                    cell,
                    height,
                    kind,
                    f"element {each['label']}: {_who(each['lanes'])}",
                )
            )
            links += [_link(lane, x + (c + 0.5) * cell, top) for lane in each["lanes"]]
        boxes.append(
            f'<rect class="gpulab-frame" x="{x:.5g}" y="{top}" width="{width:.4g}" '
            f'height="{height}"/>'
        )
        if k % every == 0:
            boxes.append(
                f'<text class="gpulab-mark" x="{x + width / 2:.5g}" '
                f'y="{top + height + 11}">{html.escape(column["label"])}</text>'
            )
        x += width
    return _picture(top + height + 16, words, *links, _row_of_lanes(part["lanes"]), *boxes)


def _banks(part: Mapping[str, Any], words: str) -> str:
    """The 32 banks with the words that each must deliver, one below the other: the tallest is the
    number of wavefronts.
    """
    columns, top, head = part["columns"], 56, 16
    most = max((len(column["cells"]) for column in columns), default=1) or 1
    cell = max(4.0, min(14.0, 130 / most))
    links, boxes = [], []
    for bank, column in enumerate(columns):
        x, count = bank * _LANE + 1, len(column["cells"])
        held = f"bank {bank}: {count} word{'' if count == 1 else 's'}"
        boxes.append(_box(x, top, _LANE - 2, head, "bank" if count else "idle", held, bank))
        for row, each in enumerate(column["cells"]):
            kind = "conflict" if count > 1 else "touched"
            boxes.append(
                _box(
                    x,
                    top + head + row * cell,
                    _LANE - 2,
                    cell,
                    kind,
                    f"bank {bank}, {each['label']}: {_who(each['lanes'])}",
                )
            )
            links += [_link(lane, x + _LANE / 2 - 1, top) for lane in each["lanes"]]
        if count > 1:
            boxes.append(
                f'<text class="gpulab-times" x="{x + _LANE / 2 - 1:g}" '
                f'y="{top + head + count * cell + 11:g}">×{count}</text>'
            )
    return _picture(
        top + head + most * cell + 16, words, *links, _row_of_lanes(part["lanes"]), *boxes
    )


def _access(access: Mapping[str, Any]) -> str:
    draw = _sectors if access["kind"] == "sectors" else _banks
    look = "" if access.get("good") else ' class="gpulab-look"'
    parts = []
    for part in access["parts"]:
        parts += (
            [f'<p class="gpulab-legend">{html.escape(part["title"])}</p>']
            if part.get("title")
            else []
        )
        parts.append(draw(part, f"{access['title']}: {access['words']}"))
    title = (
        f"<strong>{html.escape(access['title'])}</strong>: "
        f"<span{look}>{html.escape(access['words'])}</span>"
    )
    return (
        '<div class="gpulab-access"><p '
        f'class="gpulab-access-title">{title}</p>{"".join(parts)}</div>'
    )


def _source(state: Mapping[str, Any], at: Mapping[str, Any]) -> str:
    """The source with its counts; the step's line stands out."""
    rows, columns = state.get("source") or [], state.get("columns") or []
    if not rows:
        return ""
    head = "".join(f'<th scope="col">{html.escape(text)}</th>' for text in columns)
    body = []
    for row in rows:
        here = ' aria-current="step"' if row["line"] == at.get("line") else ""
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
