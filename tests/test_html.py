"""``gpulab html``: notebooks become pages that open from the disk, with stills and badges, and need no other machine."""

from __future__ import annotations

import asyncio
import html.parser
import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import nbformat
import psutil
import pytest

from gpulab._html import _execute, _pages
from gpulab._html._outputs import prepare
from gpulab.cli import main
from gpulab.errors import GpulabError, InputError
from gpulab.evidence import Environment

pytest.importorskip("nbconvert", reason="nbconvert comes with JupyterLab")
COURSE = Path(__file__).resolve().parents[1] / "notebooks"
WHERE = Environment("2026-03-04T05:06:07+00:00", "Linux", "A Processor", 2, 8 * 2**30, "A Device", "cpu", None, "3.11.2", {"torch": "2.9"})
CARRY = ("src", "href", "data", "poster", "srcset", "action")


def notebook(*cells: str, title: str = "# 01 · First", end: str = "") -> nbformat.NotebookNode:
    """A notebook of a title, code cells and an end."""
    made = [nbformat.v4.new_markdown_cell(title), *map(nbformat.v4.new_code_cell, cells)]
    made += [nbformat.v4.new_markdown_cell(end)] if end else []
    return nbformat.v4.new_notebook(cells=made)


class Resources(html.parser.HTMLParser):
    """What a page would load, and what it holds: tags, and the addresses that scripts, links, pictures and frames name."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.images: list[dict[str, str | None]] = []
        self.named: list[str] = []  # what a screen reader says for an element that is an image to it
        self.links: dict[str, tuple[str | None, str]] = {}  # relation and words of each link, by its address
        self._link: str | None = None
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what a tag loads."""
        given = dict(attrs)
        if tag != "a":
            self.loaded += [given[name] or "" for name in CARRY if name in given]
        if tag == "a" and given.get("href"):
            self._link = given["href"] or ""
            self.links[self._link] = (given.get("rel"), "")
        if tag == "img":
            self.images.append(given)
        if given.get("role") == "img":
            self.named.append(given.get("aria-label") or "")

    def handle_data(self, data: str) -> None:
        """Collect a link's words."""
        if self._link is not None:
            self.links[self._link] = (self.links[self._link][0], self.links[self._link][1] + data)

    def handle_endtag(self, tag: str) -> None:
        """End a link."""
        if tag == "a":
            self._link = None


def outside(folder: Path) -> list[str]:
    """Every address of another machine that a page, a style or a style sheet of the folder would load."""
    found = []
    for page in folder.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        found += [f"{page.name}: {target}" for target in Resources(text).loaded if re.match(r"(?:[a-z]+:)?//", target)]
        found += [f"{page.name}: {each}" for each in re.findall(r"@import[^;]+|url\(\s*[\"']?(?:https?:)?//[^)]*\)", text)]
    for style in folder.rglob("*.css"):
        found += [f"{style.name}: {each}" for each in re.findall(r"@import[^;]+|url\(\s*[\"']?(?!data:)[^)]*\)", style.read_text())]
    return found


INSTRUMENT = "import gpulab as gl\n%load_ext gpulab\ngl.widgets.OccupancyExplorer(threads_per_block=256)"
ASK = 'gl.lessons.predict("00.1", "How long until the call returns?", unit="us")'
REVEAL = 'gl.lessons.reveal("00.1", 2e-6)'
SCOPE = (
    "import numpy as np\nfrom gpulab.kernels import cuda\n\ndef fill(out):\n    i = cuda.grid(1)\n    out[i] = i\n\n"
    "gl.widgets.SimtMicroscope(fill, 1, 32, np.zeros(32, np.float32))"
)
CHECK = 'impossible = ...  # "A", "B", "C" or "D"\n\ngl.lessons.check("00.2", impossible)'
END = (
    "### Task\n\n<details><summary>Hint 1</summary>\n\nCount *bytes*.\n\n</details>\n\n"
    "**Before:** nothing. **Next:** [second](02_second.ipynb#top) and [outside](https://example.org/a.ipynb)."
)


def wait_for(there: Callable[[], bool], seconds: float = 60) -> bool:
    """Wait for a condition; return whether it came."""
    end = time.monotonic() + seconds
    while not there() and time.monotonic() < end:
        time.sleep(0.05)
    return there()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two small notebooks, run and written, with instruments, a prediction, a figure and an exercise."""
    root = tmp_path_factory.mktemp("html")
    source = root / "notebooks"
    source.mkdir()
    nbformat.write(notebook(INSTRUMENT, ASK, REVEAL, SCOPE, CHECK, end=END), source / "01_first.ipynb")
    figure = "gl.figures.access(gl.models.access_pattern(stride_elements=3))"
    second = notebook(
        "import os\n\nimport gpulab as gl", figure, "print(os.getcwd())", "gl.widgets.MachineCard()", title="# 02 · Second & last"
    )
    nbformat.write(second, source / "02_second.ipynb")
    arguments = ["html", f"--notebooks={source}", f"--out={root / 'pages'}", f"--executed={root / 'executed'}"]
    assert main(arguments) == 0
    return root


def page(site: Path, name: str = "01_first") -> str:
    """A page's text."""
    return (site / "pages" / f"{name}.html").read_text(encoding="utf-8")


def test_pages_need_no_other_machine(site: Path) -> None:
    """No script, style, picture, frame or import names an address outside the folder; what is named is there."""
    assert outside(site / "pages") == []
    for each in (site / "pages").glob("*.html"):
        for target in Resources(each.read_text(encoding="utf-8")).loaded:
            assert target.startswith("data:") or (each.parent / target).is_file(), f"{each.name} wants {target}"


def test_no_widget_is_left_as_its_stock_words(site: Path) -> None:
    """Neither the widgets' own placeholder nor a bare repr nor their machinery is on a page."""
    for name in ("01_first", "02_second"):
        text = page(site, name)
        assert "A Jupyter widget" not in text
        assert "widget-view" not in text
        assert "require.js" not in text
        assert "&lt;OccupancyExplorer" not in text


def test_instrument_stands_as_a_still(site: Path) -> None:
    """Its controls with their values, its figure, its table, its evidence and its code are on the page, as text."""
    text = page(site)
    still = text.partition('class="still"')[2].partition("</section>")[0]
    assert "Threads per block" in still or "threads" in still.casefold()
    assert "<dd>256" in still
    assert 'class="plot"' in still
    assert "<table>" in still
    assert "MODELLED" in still
    assert "gl.models.occupancy(" in still


def test_microscope_stands_as_a_still(site: Path) -> None:
    """The lanes, the source and its counts are drawn; a thread made them after the cell was done, and they are there all the same."""
    text = page(site)
    scope = text.partition("gpulab-scope")[2]
    assert scope.count('class="gpulab-box gpulab-box-on"') >= 32
    assert "out[i] = i" in scope
    assert "Step 1 of" in scope


def test_instrument_that_is_empty_is_pressed_once(site: Path) -> None:
    """The machine card needs no press; what needs one shows a result (here: its table has rows)."""
    card = page(site, "02_second").partition("This machine")[2]
    assert "<tbody><tr>" in card


def test_prediction_shows_the_question_and_not_the_answer(site: Path) -> None:
    """The state at the notebook's end knows what was revealed later; the still before it must not."""
    panel = page(site).partition("gpulab-predict")[2].partition("</section>")[0]
    assert "How long until the call returns?" in panel
    assert "the answer was" not in panel
    assert "2.00 us" not in panel


def test_folder_of_the_run_is_not_told(site: Path) -> None:
    """What a cell prints of its folder reads as the learner's working copy, and no path of the machine is on a page."""
    text = page(site, "02_second")
    assert "<pre>my-notebooks\n</pre>" in text
    assert "gpulab-html-" not in text


def test_figures_have_words_and_their_data(site: Path) -> None:
    """A figure is an image with a name for a screen reader, and its JSON cannot end its own script element."""
    text = page(site, "02_second")
    named = Resources(text).named
    assert named
    assert all(len(words) > 20 for words in named)
    stored = re.findall(r'<script type="application/json">(.*?)</script>', text, re.DOTALL)
    assert stored
    assert all({"data", "layout"} <= set(json.loads(each)) for each in stored)
    assert "assets/plotly.min.js" in text
    assert (site / "pages" / "assets" / "plotly.min.js").stat().st_size > 10**6


def test_page_says_where_and_when(site: Path) -> None:
    """The head, the foot and the outputs that carry MEASURED name the machine and the day of the run."""
    kept = nbformat.read(site / "executed" / "01_first.ipynb", as_version=4)
    where = Environment.from_dict(kept.metadata["gpulab"])
    for name in ("01_first", "02_second"):
        text = page(site, name)
        assert text.count(f"{where.device}, {where.date[:10]}") >= 4
        assert f"Python</dt><dd>{where.python}" in text
    measured = page(site).partition('id="cell-')[2]
    assert "RECORDED: measured on" in measured, "the reveal carries MEASURED"
    occupancy = page(site).partition('class="outputs"')[2].partition("</section>")[0]
    assert "RECORDED: measured on" not in occupancy, "an output without MEASURED has no such line"


def test_links_lead_to_the_pages(site: Path) -> None:
    """Links to notebooks become links to pages, next and back too; those to other places stay."""
    links = Resources(page(site)).links
    assert links["02_second.html#top"][1] == "second"
    assert "https://example.org/a.ipynb" in links
    assert links["02_second.html"] == ("next", "Next: 02 · Second & last")
    assert not any(relation == "prev" for relation, _ in links.values())
    assert Resources(page(site, "02_second")).links["01_first.html"] == ("prev", "Before: 01 · First")
    index = page(site, "index")
    assert index.index("01_first.html") < index.index("02_second.html")
    for name in ("01_first", "02_second"):
        for target in Resources(page(site, name)).links:
            if ":" not in target:
                assert (site / "pages" / (target.partition("#")[0] or f"{name}.html")).is_file(), target


def test_one_page_alone_has_no_link_into_the_void(site: Path, tmp_path: Path) -> None:
    """With --only, the name of a notebook without a page stays as words; once that page is there, it is a link."""
    command = ["html", f"--notebooks={site / 'notebooks'}", f"--executed={site / 'executed'}", f"--out={tmp_path}", "--only"]
    assert main([*command, "01"]) == 0
    alone = (tmp_path / "01_first.html").read_text(encoding="utf-8")
    assert "02_second" not in alone
    assert "<strong>Next:</strong> second and <a" in alone
    assert main([*command, "02"]) == 0
    assert main([*command, "01"]) == 0
    assert Resources((tmp_path / "01_first.html").read_text(encoding="utf-8")).links["02_second.html#top"][1] == "second"


def test_hints_fold(site: Path) -> None:
    """A hint is folded, and the Markdown in it is rendered."""
    hint = page(site).partition("<summary>Hint 1</summary>")[2].partition("</details>")[0]
    assert "<em>bytes</em>" in hint


def test_solutions_are_inside_only_when_asked_for(site: Path, tmp_path: Path) -> None:
    """Without the option no page holds a solution; with it each exercise's stands folded below its cell."""
    secret = "Only C lies above the ceiling"
    assert secret not in page(site)
    done = _pages.write_course(site / "notebooks", tmp_path, executed=site / "executed", solutions=True)
    text = (tmp_path / "01_first.html").read_text(encoding="utf-8")
    assert "<summary>One solution of 00.2</summary>" in text
    assert secret in re.sub(r"<[^>]+>", "", text)
    assert done.pages == 2


def test_executed_notebooks_are_used_again_and_only_where_they_fit(site: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The same cells are not run twice; a changed cell is."""
    ran: list[str] = []
    monkeypatch.setattr(_execute, "_run", lambda notebook, name: ran.append(name) or WHERE.to_dict())
    _execute.executed(site / "notebooks" / "01_first.ipynb", site / "executed")
    assert ran == []
    changed = tmp_path / "01_first.ipynb"
    nbformat.write(notebook("1 + 1"), changed)
    _, where = _execute.executed(changed, tmp_path / "kept")
    assert ran == ["01_first"]
    assert where == WHERE


def test_a_failing_cell_is_named_and_nothing_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One sentence with the notebook, the cell and the error; exit code 2; no half of a course on the disk."""
    source = tmp_path / "notebooks"
    source.mkdir()
    nbformat.write(notebook("x = 1", "1 / 0"), source / "01_first.ipynb")
    assert main(["html", f"--notebooks={source}", f"--out={tmp_path / 'pages'}"]) == 2
    said = capsys.readouterr().err
    assert "01_first, cell 2" in said
    assert "ZeroDivisionError" in said
    assert not (tmp_path / "pages").exists()


WAITING = "import os, pathlib, time\npathlib.Path({place!r}).write_text(str(os.getpid()))\ntime.sleep(120)"


def test_an_interrupt_is_one_sentence_and_ends_the_kernel(tmp_path: Path) -> None:
    """Ctrl-C while a cell runs: no traceback of the libraries beneath, exit code 130, no kernel left, no page written."""
    source, out, started = tmp_path / "notebooks", tmp_path / "pages", tmp_path / "started"
    source.mkdir()
    nbformat.write(notebook(WAITING.format(place=str(started))), source / "01_first.ipynb")
    command = [sys.executable, "-m", "gpulab.cli", "html", f"--notebooks={source}", f"--out={out}"]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert wait_for(lambda: running.poll() is not None or (started.exists() and started.read_text() != ""))
    running.send_signal(signal.SIGINT)
    printed, said = running.communicate(timeout=60)
    assert (running.returncode, printed, said) == (130, "", "gpulab: interrupted.\n")
    assert not psutil.pid_exists(int(started.read_text()))
    assert not out.exists()


@pytest.mark.parametrize("where", ["plain", "inside a loop"])
def test_an_interrupt_before_the_first_cell_ends_the_kernel_too(where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the start of the kernel's process and its first answer there is nobody else who would end it, in a notebook either."""
    from nbclient import NotebookClient

    begun = []

    def interrupted(client: NotebookClient) -> None:
        begun.append(client.km.provisioner.pid)
        raise KeyboardInterrupt

    monkeypatch.setattr(NotebookClient, "start_new_kernel_client", interrupted)
    nbformat.write(notebook("1"), tmp_path / "01_first.ipynb")

    def run() -> None:
        with pytest.raises(KeyboardInterrupt):
            _execute.executed(tmp_path / "01_first.ipynb")

    async def inside() -> None:
        run()

    def alone() -> None:  # a loop of its own, whatever runs in the main thread: the browser tests leave one there
        asyncio.run(inside()) if where == "inside a loop" else run()

    with ThreadPoolExecutor(1) as thread:
        thread.submit(alone).result()
    assert len(begun) == 1
    assert not psutil.pid_exists(begun[0])


def test_a_folder_that_cannot_be_written_is_refused_before_anything_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file stands where the pages should go: no notebook is started for it."""
    (tmp_path / "pages").write_text("mine")
    started: list[object] = []
    monkeypatch.setattr(_pages, "run_notebook", lambda *given: started.append(given))
    with pytest.raises(InputError, match=r"html: .*pages cannot be written to \(Not a directory\)"):
        _pages.write_course(Path("notebooks"), tmp_path / "pages", only=("00",))
    assert started == []
    assert (tmp_path / "pages").read_text() == "mine"


def test_unknown_notebook_is_refused(tmp_path: Path) -> None:
    """The sentence names what there is."""
    nbformat.write(notebook("1"), tmp_path / "01_first.ipynb")
    with pytest.raises(InputError, match=r"no notebook begins with 07 in .*01_first"):
        _pages.write_course(tmp_path, tmp_path / "out", only=["07"])


def test_what_is_no_notebook_is_refused(tmp_path: Path) -> None:
    """A file with the right name and another content."""
    (tmp_path / "01_first.ipynb").write_text("no JSON")
    with pytest.raises(GpulabError, match="is no notebook"):
        _pages.write_course(tmp_path, tmp_path / "out")


def outputs_of(*outputs: dict[str, Any]) -> str:
    """The page of a notebook whose one cell has these outputs."""
    cell = nbformat.v4.new_code_cell("show()", outputs=[nbformat.from_dict(each) for each in outputs])
    made = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell("# T"), cell])
    return _pages.render(_pages.Page("09_t", "T", made, WHERE))


def test_pictures_have_alternative_text_and_streams_stay_text() -> None:
    """An image takes its words as its alternative text; printed mark-up is shown, not obeyed."""
    image = {"output_type": "display_data", "data": {"image/png": "iVBORw0KGgo=", "text/plain": 'a "curve"'}, "metadata": {}}
    text = outputs_of(image, {"output_type": "stream", "name": "stdout", "text": "<script>alert(1)</script>"})
    (found,) = Resources(text).images
    assert found["alt"] == 'a "curve"'
    assert "<script>alert" not in text


def test_figure_without_a_description_and_with_mark_up_in_its_data() -> None:
    """Whatever stands in a figure's texts stays data."""
    figure = {"data": [{"name": "</script><script>alert(1)</script>"}], "layout": {}}
    text = outputs_of(
        {"output_type": "display_data", "data": {"application/vnd.plotly.v1+json": figure, "text/plain": "words"}, "metadata": {}}
    )
    assert "</script><script>alert" not in text
    assert Resources(text).named == ["words"]


def test_widget_of_another_library_is_named() -> None:
    """Without a still of its own, its text is shown and said to be live in JupyterLab only."""
    view = {"application/vnd.jupyter.widget-view+json": {"model_id": "gone"}, "text/plain": "IntSlider(value=3)"}
    text = outputs_of({"output_type": "display_data", "data": view, "metadata": {}})
    assert "An instrument that runs in JupyterLab" in text
    assert "IntSlider(value=3)" in text


def test_preparing_marks_measured_outputs_only() -> None:
    """The word decides, wherever in the output it stands."""
    cells = [
        nbformat.v4.new_code_cell("a", outputs=[nbformat.v4.new_output("stream", text="1 ms (MEASURED)")]),
        nbformat.v4.new_code_cell("b", outputs=[nbformat.v4.new_output("stream", text="1 ms (MODELLED)")]),
    ]
    prepared = prepare(nbformat.v4.new_notebook(cells=cells))
    assert [cell.metadata["gpulab_measured"] for cell in prepared.cells] == [True, False]


@pytest.mark.soak
def test_whole_course_as_pages(tmp_path: Path) -> None:
    """Every notebook of the course runs and becomes a page that keeps all promises of the small one."""
    done = _pages.write_course(COURSE, tmp_path)
    assert done.pages == len(list(COURSE.glob("*.ipynb")))
    assert outside(tmp_path) == []
    for each in tmp_path.glob("[0-9]*.html"):
        text = each.read_text(encoding="utf-8")
        assert "A Jupyter widget" not in text
        assert "An instrument that runs in JupyterLab" not in text
        assert all(image.get("alt") for image in Resources(text).images)
