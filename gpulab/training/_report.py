"""One page about a training that was sped up: the machine, each technique with its interval, the
accuracy before and after.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpulab import _files
from gpulab._given import expanded
from gpulab.errors import InputError, message_of, shown
from gpulab.evidence import Environment, Evidence
from gpulab.results import Result, html_table
from gpulab.training.ladder_results import LEAST_EFFECT, LadderResult
from gpulab.training.script_results import ScriptsResult

_KINDS = (".md", ".html")
_READING = (
    "A ratio is a speed-up: the median of turns that the forms took one after the other; in "
    "brackets its 95 % interval. Unless all of the "
    f"interval lies more than {100 * LEAST_EFFECT:g} % above or below 1, no difference was shown. "
    "Accuracy is compared on the same number "
    "of samples under the same seeds."
)
_STYLE = (
    "body{font-family:system-ui,sans-serif;max-width:60em;margin:2em auto;padding:0 "
    "1em}td,th{border-bottom:1px solid #ccc}"
)

Table = tuple[Sequence[str], Sequence[Sequence[str]]]


def speedup_report(
    path: Any, *results: Result, title: str = "What made the training faster"
) -> Path:
    """Write one page, whole or not at all: the machine, every technique with its interval, and the
    accuracy before and after.

    Parameters
    ----------
    path : path
        Ends in ``.md`` or ``.html``.
    *results : LadderResult or ScriptsResult
        In the order of the page.
    title : str

    Returns
    -------
    Path
        The file.

    Raises
    ------
    InputError
        If there is no result, one is of another kind, or the path has another suffix or cannot be
        written.
    """
    if not isinstance(path, (str, Path)) or Path(path).suffix.lower() not in _KINDS:
        raise InputError(
            f"speedup_report: path is {shown(path)}; expected a file that ends in .md or .html. "
            "Pass 'my_speedup.md'."
        )
    wrong = [result for result in results if not isinstance(result, (LadderResult, ScriptsResult))]
    if wrong or not results:
        raise InputError(
            f"speedup_report: {shown(wrong[0]) if wrong else 'no result'} was given; expected what "
            "gl.training.ladder or "
            "gl.training.compare_scripts returned. Pass one or both."
        )
    if not isinstance(title, str) or not title.strip():
        raise InputError(
            f"speedup_report: title is {shown(title)}; expected a few words. Leave it out."
        )
    parts = [("heading", title.strip()), *_machine(results[0].environment), ("text", _READING)]  # type: ignore[attr-defined]
    for result in results:
        parts += _of_ladder(result) if isinstance(result, LadderResult) else _of_scripts(result)  # type: ignore[arg-type]
    where = expanded("speedup_report", path)
    page = _markdown(parts) if where.suffix.lower() == ".md" else _html(title, parts)
    try:
        _files.write_atomically(where, page.encode())
    except OSError as error:
        raise InputError(
            f"speedup_report: {str(where)!r} could not be written ({message_of(error, 100)}); "
            "expected a place for it. Pass another."
        ) from error
    return where


def _machine(environment: Environment) -> list[tuple[str, Any]]:
    libraries = ", ".join(f"{name} {version}" for name, version in environment.libraries.items())
    driver = f", driver {environment.driver}" if environment.driver else ""
    return [("text", f"{environment.device}{driver}; {environment.date[:10]}; {libraries}.")]


def _of_ladder(result: LadderResult) -> list[tuple[str, Any]]:
    parts: list[tuple[str, Any]] = [
        ("section", f"Techniques, one by one ({result.task})"),
        ("text", result.sentence),
    ]
    headers, rows = result.table()
    parts += [
        ("table", (headers, [row for row in rows if not row[0].startswith("left out")])),
        ("badge", result.evidence),
    ]
    parts += [("badge", result.product_evidence)]
    parts.append(
        (
            "text",
            f"Each form learned from {result.samples:,} samples under {len(result.seeds)} seeds."
            if result.seeds
            else "No form was trained to the end, so there is no accuracy.",
        )
    )
    if result.left_out:
        parts += [("section", "Not on this device"), ("table", result.left_out_table())]
        parts += [("badge", each) for each in result.recorded_evidence]
    return parts


def _of_scripts(result: ScriptsResult) -> list[tuple[str, Any]]:
    section = f"{result.names[0]} and {result.names[1]} ({result.task})"
    return [
        ("section", section),
        ("text", result.sentence),
        ("table", result.table()),
        ("badge", result.evidence),
    ]


def _markdown(parts: list[tuple[str, Any]]) -> str:
    marks = {"heading": "# ", "section": "## ", "text": "", "badge": "> "}
    lines = (
        _markdown_table(content) if kind == "table" else f"{marks[kind]}{_words(content)}"
        for kind, content in parts
    )
    return "\n\n".join(lines) + "\n"


def _words(content: Any) -> str:
    return content.sentence if isinstance(content, Evidence) else str(content)


def _markdown_table(table: Table) -> str:
    headers, rows = table
    lines = [headers, ["---"] * len(headers), *rows]
    return "\n".join(
        "| " + " | ".join(str(cell).replace("|", "\\|").replace("\n", " ") for cell in line) + " |"
        for line in lines
    )


def _html(title: str, parts: list[tuple[str, Any]]) -> str:
    tags = {"heading": "h1", "section": "h2", "text": "p", "badge": "p"}
    body = [
        html_table(*content)
        if kind == "table"
        else f"<{tags[kind]}>{html.escape(_words(content))}</{tags[kind]}>"
        for kind, content in parts
    ]
    head = f'<meta charset="utf-8"><title>{html.escape(title)}</title><style>{_STYLE}</style>'
    return (
        f'<!doctype html><html lang="en"><head>{head}</head><body>{"".join(body)}</body></html>\n'
    )
