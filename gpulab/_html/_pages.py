"""Write the pages: one for each notebook, an index, and the assets that all of them share."""

from __future__ import annotations

import html
import importlib.resources
import re
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import plotly.offline
from jupyterlab_pygments import JupyterStyle
from nbconvert import HTMLExporter
from nbformat import NotebookNode
from pygments.formatters import HtmlFormatter
from traitlets.config import Config

from gpulab._files import refuse_unwritable, write_atomically
from gpulab._html._execute import executed as run_notebook
from gpulab._html._execute import writing
from gpulab._html._outputs import TEMPLATES, prepare
from gpulab.errors import InputError
from gpulab.evidence import Environment
from gpulab.lessons import content
from gpulab.units import format_bytes

_HERE = Path(__file__).parent
_ASSETS = "assets"
_LIBRARIES = ("torch", "numpy", "cupy", "numba")  # those that the head of a page names


class Page(NamedTuple):
    """One notebook on its way to a page."""

    file: str
    title: str
    notebook: NotebookNode
    where: Environment


def write_course(
    source: Path,
    out: Path,
    *,
    only: Sequence[str] = (),
    executed: Path | None = None,
    solutions: bool = False,
    say: Callable[[str], object] = lambda text: None,
) -> tuple[Path, int, int, float]:
    """Run the notebooks of a folder and write them as pages.

    Parameters
    ----------
    source : Path
        The folder of the notebooks.
    out : Path
        The folder of the pages; files of the same names are written over.
    only : sequence of str
        Beginnings of names; empty means all.
    executed : Path, optional
        Where executed notebooks are kept and looked for.
    solutions : bool
        Whether a solution stands, folded, below each exercise.
    say : callable
        Called with each line of progress.

    Returns
    -------
    tuple of (Path, int, int, float)
        The first page, the number of pages, the bytes of all files, and the seconds that it took.

    Raises
    ------
    InputError
        If there is no such notebook, ``out`` cannot be written to, or ``executed`` cannot and a
        notebook has to be run.
    GpulabError
        If a cell fails.
    """
    begun = time.monotonic()
    names = _chosen(source, only)
    with writing(out, "--out"):
        refuse_unwritable(out / "index.html")  # before minutes of running
    pages = []
    for path in names:
        start = time.monotonic()
        notebook, where = run_notebook(path, executed)
        heading = re.search(r"^#\s+(.+)", _opening(notebook))
        title = heading[1].strip() if heading else path.stem
        pages.append(Page(f"{path.stem}.html", title, notebook, where))
        say(f"{path.name}: {time.monotonic() - start:.0f} s")
    files = {f"{_ASSETS}/{name}": content for name, content in _assets().items()}
    # of an earlier run with --only
    there = {page.file for page in pages} | {file.name for file in out.glob("*.html")}
    for before, page, after in zip([None, *pages], pages, [*pages[1:], None], strict=False):
        files[page.file] = _render(page, before, after, there, solutions).encode()
    with writing(out, "--out"):
        files["index.html"] = _index(pages, _earlier(out, files)).encode()
        for name, content in files.items():
            write_atomically(out / name, content)
    nbytes, seconds = sum(map(len, files.values())), time.monotonic() - begun
    return out / "index.html", len(pages), nbytes, seconds


def _chosen(source: Path, only: Sequence[str]) -> list[Path]:
    notebooks = sorted(source.glob("*.ipynb"))
    if not notebooks:
        raise InputError(
            f"html: there are no notebooks in {source}; expected a folder with .ipynb files. Pass "
            "--notebooks with another folder."
        )
    chosen = [path for path in notebooks if not only or path.stem.startswith(tuple(only))]
    missing = [name for name in only if not any(path.stem.startswith(name) for path in notebooks)]
    if missing:
        raise InputError(
            f"html: no notebook begins with {', '.join(missing)} in {source}; expected one of "
            f"{', '.join(path.stem for path in notebooks)}. Pass its number, such as 02."
        )
    return chosen


def _render(
    page: Page, before: Page | None, after: Page | None, there: Collection[str], solutions: bool
) -> str:
    """Return a notebook as a page of HTML; a link to a page that is not ``there`` becomes its
    text.
    """
    notebook = prepare(page.notebook)
    if solutions:
        _add_solutions(notebook)
    options = {"mathjax_url": "", "require_js_url": "", "jupyter_widgets_base_url": ""}
    exporter = HTMLExporter(
        config=Config({"HTMLExporter": {"anchor_link_text": "#", **options}}),
        template_name="gpulab",
        extra_template_basedirs=[str(_HERE / "template")],
    )
    course = {
        "title": page.title,
        "before": before,
        "after": after,
        "plots": any(
            'class="plot"' in output.get("data", {}).get("text/html", "")
            for cell in notebook.cells
            for output in cell.get("outputs", [])
        ),
        "stamp": _short_stamp(page.where),
        "facts": _facts(page.where),
    }
    text, _ = exporter.from_notebook_node(notebook, resources={"gpulab": course})

    def to_page(link: re.Match[str]) -> str:
        file = f"{link['name']}.html"
        is_there = f"{link['open']}{file}{link['rest']}{link['words']}</a>"
        return is_there if file in there else link["words"]

    notebook_link = (
        r'(?P<open><a\b[^>]*\bhref=")(?P<name>\d\d_\w+)\.ipynb'
        r'(?P<rest>(?:#[^"]*)?"[^>]*>)(?P<words>.*?)</a>'
    )
    text = re.sub(notebook_link, to_page, text, flags=re.DOTALL)
    return text.replace(
        'class="anchor-link"', 'class="anchor-link" aria-label="Link to this heading"'
    )


def _short_stamp(where: Environment) -> str:
    """Return the machine and the day in a few words."""
    return f"{where.device}, {where.date[:10]}"


def _facts(where: Environment) -> list[tuple[str, str]]:
    """Return the facts about the machine that the head of a page shows, as pairs of words."""
    libraries = ", ".join(
        f"{name} {where.libraries[name]}" for name in _LIBRARIES if name in where.libraries
    )
    rows = [
        ("Date", where.date.replace("T", " ").replace("+00:00", " UTC")),
        ("Device", where.device if where.device_kind != "cpu" else f"{where.device}, no GPU"),
        (
            "Processor",
            f"{where.processor}, {where.cores} core{'' if where.cores == 1 else 's'}, "
            f"{format_bytes(where.memory_bytes)}",
        ),
        ("System", where.system),
        ("Python", where.python),
        ("Libraries", libraries),
        ("Driver", where.driver or ""),
        ("Command", "gpulab html"),
    ]
    return [(name, value) for name, value in rows if value]


def _add_solutions(notebook: NotebookNode) -> None:
    """Mark each cell that checks an exercise with one of its solutions; the template folds it below
    the cell.
    """
    known = content.exercises()
    for cell in notebook.cells:
        match = re.search(r"gl\.lessons\.check\(\s*[\"'](\d\d\.\d+)", cell.source)
        if cell.cell_type == "code" and match and match[1] in known:
            cell.metadata["gpulab_solution"] = known[match[1]].solution.strip()
            cell.metadata["gpulab_exercise"] = match[1]


def _assets() -> dict[str, bytes]:
    """The style, the script, and plotly's own library from the installed package."""
    widgets = importlib.resources.files("gpulab.widgets")
    sheets = (widgets / "panel.css", widgets / "simt_microscope.css", _HERE / "page.css")
    panel, microscope, page = (sheet.read_text(encoding="utf-8") for sheet in sheets)
    # the rules for highlighted code, in the variables that page.css sets for both themes
    code = HtmlFormatter(style=JupyterStyle).get_style_defs(".highlight")  # type: ignore[no-untyped-call,unused-ignore]
    return {
        "page.css": f"{panel}{microscope}{code}\n{page}".encode(),
        "page.js": (_HERE / "page.js").read_bytes(),
        "plotly.min.js": plotly.offline.get_plotlyjs().encode(),
    }


def _earlier(out: Path, files: Collection[str]) -> dict[str, str]:
    """The titles of the pages that are there from a run with --only, by file name."""
    titles = {}
    for file in out.glob("[0-9][0-9]_*.html"):
        title = file.name not in files and re.search(
            r"<title>(.*?) · gpulab</title>", file.read_text(encoding="utf-8", errors="replace")
        )
        if title:
            titles[file.name] = html.unescape(title[1])
    return titles


def _index(pages: Sequence[Page], earlier: Mapping[str, str]) -> str:
    """The first page: what there is, and where it was made."""
    rows: dict[str, dict[str, Any]] = {
        file: {"title": title, "earlier": True} for file, title in earlier.items()
    }
    for page in pages:
        opening = _opening(page.notebook)
        needed = re.search(r"\*\*Time:\*\*\s*([^.*]+)", opening)
        listed = opening.partition("**Questions**")[2].partition("\n**")[0].splitlines()
        rows[page.file] = {
            "title": page.title,
            "time": needed[1].strip() if needed else "",
            # without mark-up
            "questions": [
                re.sub(r"[`*]", "", line[2:]).strip() for line in listed if line.startswith("- ")
            ],
        }
    machines = {_short_stamp(page.where): _facts(page.where) for page in pages}
    template = TEMPLATES.get_template("index.html.j2")
    return template.render(pages=sorted(rows.items()), machines=machines.values())


def _opening(notebook: NotebookNode) -> str:
    return next((str(cell.source) for cell in notebook.cells if cell.cell_type == "markdown"), "")
