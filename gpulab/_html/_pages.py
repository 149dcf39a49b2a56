"""Write the pages: one for each notebook, an index, and the assets that all of them share."""

from __future__ import annotations

import importlib.resources
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import plotly.offline
from jupyterlab_pygments import JupyterStyle
from nbconvert import HTMLExporter
from nbformat import NotebookNode
from pygments.formatters import HtmlFormatter
from traitlets.config import Config

from gpulab._files import refuse_unwritable, write_atomically
from gpulab._html._execute import executed
from gpulab._html._outputs import TEMPLATES, prepare
from gpulab._validate import writing
from gpulab.errors import InputError
from gpulab.evidence import Environment
from gpulab.lessons import content
from gpulab.units import format_bytes, plural

_HERE = Path(__file__).parent
_ASSETS = "assets"
_LIBRARIES = ("torch", "numpy", "cupy", "numba")  # the versions shown at the head of a page


class Page(NamedTuple):
    """An executed notebook, the file name and the title of its page, and the machine of the run."""

    file: str
    title: str
    notebook: NotebookNode
    where: Environment


def write_course(
    source: Path,
    out: Path,
    *,
    solutions: bool = False,
    say: Callable[[str], object] = lambda text: None,
) -> tuple[Path, int, int, float]:
    """Run the notebooks of a folder and write them as pages.

    Parameters
    ----------
    source : Path
        The folder of the notebooks.
    out : Path
        The folder of the pages; files of the same names are replaced.
    solutions : bool
        Whether to add a folded solution below each exercise.
    say : callable
        Called with each line of progress.

    Returns
    -------
    tuple of (Path, int, int, float)
        The first page, the number of pages, the bytes of all files, and the seconds that it took.

    Raises
    ------
    InputError
        If there is no notebook, or one with the name of the first page, or ``out`` cannot be
        written to.
    GpulabError
        If a cell fails.
    """
    begun = time.monotonic()
    notebooks = sorted(source.glob("*.ipynb"))
    if not notebooks:
        raise InputError(
            f"html: there are no notebooks in {source}; expected a folder with .ipynb files. Pass "
            "--notebooks with another folder."
        )
    if any(path.stem.lower() == "index" for path in notebooks):
        raise InputError(
            f"html: the page of index.ipynb in {source} would be index.html, which lists the "
            "pages; expected another name. Rename the notebook."
        )
    with writing("html", out):
        refuse_unwritable(out / "index.html")  # before the notebooks run for minutes
    pages = []
    for path in notebooks:
        start = time.monotonic()
        notebook, where = executed(path)
        heading = re.search(r"^#\s+(.+)", _opening(notebook))
        title = heading[1].strip() if heading else path.stem
        pages.append(Page(f"{path.stem}.html", title, notebook, where))
        say(f"{path.name}: {time.monotonic() - start:.0f} s")
    files = {f"{_ASSETS}/{name}": content for name, content in _assets().items()}
    for before, page, after in zip([None, *pages], pages, [*pages[1:], None], strict=False):
        files[page.file] = _render(page, before, after, solutions).encode()
    files["index.html"] = _index(pages).encode()
    with writing("html", out):
        for name, content in files.items():
            write_atomically(out / name, content)
    nbytes, seconds = sum(map(len, files.values())), time.monotonic() - begun
    return out / "index.html", len(pages), nbytes, seconds


def _render(page: Page, before: Page | None, after: Page | None, solutions: bool) -> str:
    """Return a notebook as a page of HTML."""
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
    # a link to another notebook of the folder leads to its page
    text = re.sub(r'(<a\b[^>]*\bhref="[^"#:/]+)\.ipynb', r"\1.html", text)
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
            f"{where.processor}, {plural(where.cores, 'core')}, {format_bytes(where.memory_bytes)}",
        ),
        ("System", where.system),
        ("Python", where.python),
        ("Libraries", libraries),
        ("Driver", where.driver or ""),
        ("Command", "gpulab html"),
    ]
    return [(name, value) for name, value in rows if value]


def _add_solutions(notebook: NotebookNode) -> None:
    """Add a solution to the metadata of each cell that checks an exercise; the template shows it,
    folded, below the cell.
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
    # rules for highlighted code; their colors are variables, which page.css sets for both themes
    code = HtmlFormatter(style=JupyterStyle).get_style_defs(".highlight")  # type: ignore[no-untyped-call,unused-ignore]
    return {
        "page.css": f"{panel}{microscope}{code}\n{page}".encode(),
        "page.js": (_HERE / "page.js").read_bytes(),
        "plotly.min.js": plotly.offline.get_plotlyjs().encode(),
    }


def _index(pages: Sequence[Page]) -> str:
    """The first page: what this run wrote, and where it was made."""
    rows = []
    for page in pages:
        opening = _opening(page.notebook)
        needed = re.search(r"\*\*Time:\*\*\s*([^.*]+)", opening)
        listed = opening.partition("**Questions**")[2].partition("\n**")[0].splitlines()
        # without Markdown's marks
        asked = [re.sub(r"[`*]", "", line[2:]).strip() for line in listed if line.startswith("- ")]
        rows.append((page, needed[1].strip() if needed else "", asked))
    machines = {_short_stamp(page.where): _facts(page.where) for page in pages}
    template = TEMPLATES.get_template("index.html.j2")
    return template.render(pages=rows, machines=machines.values())


def _opening(notebook: NotebookNode) -> str:
    return next((str(cell.source) for cell in notebook.cells if cell.cell_type == "markdown"), "")
