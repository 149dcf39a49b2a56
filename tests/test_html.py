"""``gpulab html``: notebooks as pages that open from the disk, without server or internet."""

import html.parser
import json
import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from gpulab import devices
from gpulab.cli import main

from texts import table_text

pytest.importorskip("nbconvert", reason="nbconvert comes with JupyterLab")
pytestmark = pytest.mark.slow
LOADS = ("src", "href", "data", "poster", "srcset", "action")

FIRST = [
    "# 01 · First\n\n**Questions**\n\n- Is it *fast*?\n\n"
    "**Time:** about 5 minutes. **Hardware:** any.",
    "import gpulab as gl\n%load_ext gpulab\n"
    "gl.widgets.OccupancyExplorer(threads_per_block=256, registers_per_thread=40)",
    'gl.lessons.predict("00.1", "How long until the call returns?", unit="us")',
    'gl.lessons.reveal("00.1", 2e-6)',
    "import numpy as np\nfrom gpulab.kernels import cuda\n\ndef fill(out):\n    i = cuda.grid(1)\n"
    "    out[i] = i\n\ngl.widgets.SimtMicroscope(fill, 1, 32, np.zeros(32, np.float32))",
    'impossible = ...  # "A", "B", "C" or "D"\n\ngl.lessons.check("00.2", impossible)',
    "### Task\n\n<details><summary>Hint 1</summary>\n\nCount *bytes*.\n\n</details>\n\n"
    "**Next:** [second](02_second.ipynb#top) and [outside](https://example.org/a.ipynb).",
]
SECOND = [
    "# 02 · Second & last",
    "import os\n\nimport gpulab as gl",
    "gl.figures.access(gl.models.access_pattern(stride_elements=3))",
    "print(os.getcwd(), os.environ['GPULAB_PROGRESS'])",
    "from IPython.display import SVG, Image, display\n\n"
    "display(Image(data=b'not looked at', format='png', alt='a dot'), SVG('<svg/>'))",
]


def _write(path: Path, cells: list[str]) -> None:
    made = [
        nbformat.v4.new_markdown_cell(cell)
        if cell.startswith("#")
        else nbformat.v4.new_code_cell(cell)
        for cell in cells
    ]
    path.parent.mkdir(exist_ok=True)
    nbformat.write(nbformat.v4.new_notebook(cells=made), path)


class Page(html.parser.HTMLParser):
    """What a page loads, its links and the words that a screen reader says for its images."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.links: list[str] = []
        self.named: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect what a tag loads, its link and its label."""
        given = dict(attrs)
        if tag == "a":
            self.links.append(given.get("href") or "")
        else:
            self.loaded += [given[name] or "" for name in LOADS if name in given]
        if given.get("role") == "img":
            self.named.append(given.get("aria-label") or "")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two small notebooks with instruments, a prediction, a figure and an exercise, as pages."""
    root = tmp_path_factory.mktemp("html")
    _write(root / "notebooks" / "01_first.ipynb", FIRST)
    _write(root / "notebooks" / "02_second.ipynb", SECOND)
    assert main(["html", f"--notebooks={root / 'notebooks'}", f"--out={root / 'pages'}"]) == 0
    return root


def _text(site: Path, name: str) -> str:
    return (site / "pages" / f"{name}.html").read_text(encoding="utf-8")


def test_pages_need_no_other_machine(site: Path) -> None:
    """All that a page loads is in it or beside it, and its relative links lead to files; the index
    has each notebook's questions and time.
    """
    for path in (site / "pages").glob("*.html"):
        text = path.read_text(encoding="utf-8")
        for target in Page(text).loaded:
            assert target.startswith("data:") or (path.parent / target).is_file(), target
        assert not re.search(r"@import|url\(\s*[\"']?(?:https?:)?//", text)
        for target in Page(text).links:
            assert (
                ":" in target
                or target.startswith("#")
                or (path.parent / target.partition("#")[0]).is_file()
            ), target
    assert {"Is it fast?", "about 5 minutes"} <= set(table_text(_text(site, "index")).splitlines())


def test_a_page_shows_what_the_notebook_shows(site: Path, approved: Any) -> None:
    """Instruments are static pictures with values, table, badge and code; no answer is shown."""
    body = _text(site, "01_first").partition("<main")[2].partition("</main")[0]
    where = devices.environment(devices.default())
    # The text before the title names this machine.
    text = "".join(table_text(body).partition("01 · First")[1:])
    for value, name in ((where.device, "DEVICE"), (where.date[:10], "DATE")):
        text = text.replace(value, name)
    assert text == approved


def test_the_machine_of_the_run_is_on_each_page(site: Path) -> None:
    """Head, foot and measured outputs name the machine and the date, but no path of its disk."""
    where = devices.environment(devices.default())
    for name in ("01_first", "02_second"):
        text = _text(site, name)
        assert text.count(f"{where.device}, {where.date[:10]}") >= 3
        assert where.python in text
        assert str(site) not in text
    # and not the learner's progress
    assert "<pre>my-notebooks my-notebooks/.gpulab/progress.json\n</pre>" in _text(
        site, "02_second"
    )


def test_figures_have_data_and_words(site: Path) -> None:
    """A figure is drawn from data in the page and has a description for screen readers."""
    text = _text(site, "02_second")
    assert min(map(len, Page(text).named)) > 20
    stored = re.findall(r'<script type="application/json">(.*?)</script>', text, re.DOTALL)
    assert stored
    assert all({"data", "layout"} <= set(json.loads(each)) for each in stored)
    assert re.findall(r'<img alt="(.*?)" src="data:image/(\S+?);', text)[0] == ("a dot", "png")
    assert "data:image/svg+xml;base64," in text
    drawn = re.findall(r'class="plot-here".*?style="height:(\d+)px"', text, re.DOTALL)
    assert list(map(int, drawn)) == [json.loads(each)["layout"]["height"] for each in stored]


def test_solutions_come_when_asked(site: Path, tmp_path: Path) -> None:
    """``--solutions`` adds them to the page; a link to another notebook leads to its page, and each
    page to its neighbors.
    """
    exercise = Path(devices.__file__).parents[1] / "course" / "00" / "impossible.py"
    secret = exercise.read_text(encoding="utf-8").partition("# %% solution\n# ")[2].splitlines()[0]
    assert secret not in _text(site, "01_first")
    assert {
        name: [link for link in Page(_text(site, name)).links if link[0] != "#"]
        for name in ("index", "01_first", "02_second")
    } == {  # the index, the neighbors at the head, the links of the text, the neighbors at the end
        "index": ["index.html", "01_first.html", "02_second.html"],
        "01_first": [
            *("index.html", "02_second.html", "02_second.html#top", "https://example.org/a.ipynb"),
            *("02_second.html", "index.html"),
        ],
        "02_second": ["index.html", "01_first.html", "01_first.html", "index.html"],
    }
    _write(tmp_path / "notebooks" / "01_first.ipynb", ["import gpulab as gl", FIRST[5]])
    where = [f"--notebooks={tmp_path / 'notebooks'}", f"--out={tmp_path}"]
    assert main(["html", *where, "--solutions"]) == 0
    page = (tmp_path / "01_first.html").read_text(encoding="utf-8")
    assert secret in re.sub(r"<[^>]+>", "", page)


def test_a_failing_cell_is_named_and_nothing_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The message names the notebook, the cell and the error; no part of the course is written."""
    _write(tmp_path / "notebooks" / "01_first.ipynb", ["x = 1", "1 / 0"])
    out = tmp_path / "pages"
    assert main(["html", f"--notebooks={tmp_path / 'notebooks'}", f"--out={out}"]) == 2
    said = capsys.readouterr().err
    assert "01_first, cell 1" in said
    assert "ZeroDivisionError" in said
    assert not out.exists()
