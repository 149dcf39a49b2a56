"""Write the pages: one for each notebook, an index, and the assets that all of them share."""

from __future__ import annotations

import dataclasses
import html
import importlib.resources
import re
import time
import urllib.parse
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from nbformat import NotebookNode

from gpulab._files import refuse_unwritable, write_atomically
from gpulab._html._execute import executed as run_notebook
from gpulab._html._execute import writing
from gpulab._html._outputs import prepare
from gpulab.errors import GpulabError, InputError
from gpulab.evidence import Environment
from gpulab.units import format_bytes

_HERE = Path(__file__).parent
_ASSETS = "assets"
_LIBRARIES = ("torch", "numpy", "cupy", "numba")  # those that the head of a page names


@dataclasses.dataclass(frozen=True)
class Written:
    """What was written.

    Attributes
    ----------
    index : Path
    pages : int
    nbytes : int
        Of all files in the folder that belong to the course.
    seconds : float
    """

    index: Path
    pages: int
    nbytes: int
    seconds: float


@dataclasses.dataclass(frozen=True)
class Page:
    """One notebook on its way to a page."""

    name: str
    title: str
    notebook: NotebookNode
    where: Environment

    @property
    def file(self) -> str:
        """The page's file name."""
        return f"{self.name}.html"

    @property
    def url(self) -> str:
        """The page's address, beside the other pages."""
        return _url(self.file)


def write_course(
    source: Path,
    out: Path,
    *,
    only: Sequence[str] = (),
    executed: Path | None = None,
    solutions: bool = False,
    say: Callable[[str], object] = lambda text: None,
) -> Written:
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
    Written

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
        pages.append(Page(path.stem, _title(notebook, path.stem), notebook, where))
        say(f"{path.name}: {time.monotonic() - start:.0f} s")
    files = {f"{_ASSETS}/{name}": content for name, content in _assets().items()}
    # of an earlier run with --only
    there = {page.file for page in pages} | {file.name for file in out.glob("*.html")}
    for number, page in enumerate(pages):
        around = (
            pages[number - 1] if number else None,
            pages[number + 1] if number + 1 < len(pages) else None,
        )
        files[page.file] = render(page, *around, solutions=solutions, there=there).encode()
    with writing(out, "--out"):
        files["index.html"] = _index(pages, _earlier(out, files)).encode()
        for name, content in files.items():
            write_atomically(out / name, content)
    return Written(
        out / "index.html", len(pages), sum(map(len, files.values())), time.monotonic() - begun
    )


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


def _title(notebook: NotebookNode, name: str) -> str:
    """The first heading."""
    for cell in notebook.cells:
        if cell.cell_type == "markdown" and (found := re.match(r"#\s+(.+)", cell.source)):
            return found[1].strip()
    return name


def render(
    page: Page,
    before: Page | None = None,
    after: Page | None = None,
    *,
    solutions: bool = False,
    there: Collection[str] | None = None,
) -> str:
    """Return a notebook as a page of HTML.

    Parameters
    ----------
    page, before, after : Page
        The notebook and its neighbors; None where there is none.
    solutions : bool
        Whether a solution stands below each exercise.
    there : collection of str, optional
        The pages that there are, by file name: a link to a page that is not there is replaced by
        its text. None treats all pages as present.
    """
    from nbconvert import HTMLExporter
    from traitlets.config import Config

    notebook = prepare(page.notebook)
    if solutions:
        _add_solutions(notebook)
    config = Config(
        {
            "HTMLExporter": {
                "anchor_link_text": "#",
                "mathjax_url": "",
                "require_js_url": "",
                "jupyter_widgets_base_url": "",
            }
        }
    )
    exporter = HTMLExporter(
        config=config, template_name="gpulab", extra_template_basedirs=[str(_HERE / "template")]
    )
    plots = any(
        'class="plot"' in output.get("data", {}).get("text/html", "")
        for cell in notebook.cells
        for output in cell.get("outputs", [])
    )
    resources = {
        "gpulab": {
            "title": page.title,
            "before": before,
            "after": after,
            "plots": plots,
            "stamp": short_stamp(page.where),
            "facts": facts(page.where),
            "date": page.where.date[:10],
        }
    }
    text, _ = exporter.from_notebook_node(notebook, resources=resources)

    def to_page(link: re.Match[str]) -> str:
        file = f"{link['name']}.html"
        return (
            f"{link['open']}{file}{link['rest']}{link['words']}</a>"
            if there is None or file in there
            else link["words"]
        )

    notebook_link = (
        r'(?P<open><a\b[^>]*\bhref=")(?P<name>\d\d_\w+)\.ipynb'
        r'(?P<rest>(?:#[^"]*)?"[^>]*>)(?P<words>.*?)</a>'
    )
    text = re.sub(notebook_link, to_page, text, flags=re.DOTALL)
    return text.replace(
        'class="anchor-link"', 'class="anchor-link" aria-label="Link to this heading"'
    )


def short_stamp(where: Environment) -> str:
    """Return the machine and the day in a few words."""
    return f"{where.device}, {where.date[:10]}"


def facts(where: Environment) -> list[tuple[str, str]]:
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
    from gpulab.lessons import content

    known = {id: each for lesson in content.lessons() for id, each in lesson.exercises.items()}
    for cell in notebook.cells:
        match = (
            re.search(r"gl\.lessons\.check\(\s*[\"'](\d\d\.\d+)", cell.source)
            if cell.cell_type == "code"
            else None
        )
        if match and match[1] in known:
            cell.metadata["gpulab_solution"] = known[match[1]].solution.strip()
            cell.metadata["gpulab_exercise"] = match[1]


def _assets() -> dict[str, bytes]:
    """The style, the script, and plotly's own library from the installed package."""
    widgets = importlib.resources.files("gpulab.widgets")
    style = "".join(
        (widgets / name).read_text(encoding="utf-8")
        for name in ("panel.css", "simt_microscope.css")
    )
    style += _highlighting() + (_HERE / "page.css").read_text(encoding="utf-8")
    try:
        plotly = (
            importlib.resources.files("plotly") / "package_data" / "plotly.min.js"
        ).read_bytes()
    except OSError as error:
        raise GpulabError(
            f"html: plotly's library is not in its package ({error}); expected "
            "package_data/plotly.min.js. Install plotly again."
        ) from error
    return {
        "page.css": style.encode(),
        "page.js": (_HERE / "page.js").read_bytes(),
        "plotly.min.js": plotly,
    }


def _highlighting() -> str:
    """The rules for highlighted code, in the variables that ``page.css`` sets for both themes."""
    from jupyterlab_pygments import JupyterStyle
    from pygments.formatters import HtmlFormatter

    return HtmlFormatter(style=JupyterStyle).get_style_defs(".highlight") + "\n"  # type: ignore[no-any-return,no-untyped-call,unused-ignore]


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
    old = "<p>From an earlier run: the page states where it was made.</p>"
    rows = {
        file: f'<li><h2><a href="{_url(file)}">{html.escape(title)}</a></h2>{old}</li>'
        for file, title in earlier.items()
    }
    for page in pages:
        time_needed = _fact(page.notebook, r"\*\*Time:\*\*\s*([^.*]+)")
        asks = _questions(page.notebook)
        listed = "".join(f"<li>{html.escape(text)}</li>" for text in asks)
        rows[page.file] = (
            f'<li><h2><a href="{page.url}">{html.escape(page.title)}</a></h2>'
            f"{f'<p>{html.escape(time_needed)}</p>' if time_needed else ''}"
            f"{f'<ul>{listed}</ul>' if listed else ''}</li>"
        )
    machines = {short_stamp(page.where): page.where for page in pages}
    tables = "".join(f"<dl class=facts>{_pairs(facts(where))}</dl>" for where in machines.values())
    template = (_HERE / "template" / "index.html").read_text(encoding="utf-8")
    return template.replace("@PAGES@", "".join(rows[file] for file in sorted(rows))).replace(
        "@MACHINES@", tables
    )


def _url(file: str) -> str:
    """A file's name as an address: a # in it would begin a place in the page, and a ? what is asked
    for.
    """
    return urllib.parse.quote(file)


def _pairs(rows: Sequence[tuple[str, str]]) -> str:
    return "".join(
        f"<div><dt>{html.escape(name)}</dt><dd>{html.escape(value)}</dd></div>"
        for name, value in rows
    )


def _opening(notebook: NotebookNode) -> str:
    return next((str(cell.source) for cell in notebook.cells if cell.cell_type == "markdown"), "")


def _fact(notebook: NotebookNode, pattern: str) -> str:
    match: Any = re.search(pattern, _opening(notebook))
    return match[1].strip() if match else ""


def _questions(notebook: NotebookNode) -> list[str]:
    """The questions that the opening lists, without mark-up."""
    part = _opening(notebook).partition("**Questions**")[2].partition("\n**")[0]
    return [
        re.sub(r"[`*]", "", line[2:]).strip() for line in part.splitlines() if line.startswith("- ")
    ]
