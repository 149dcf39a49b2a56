"""The pages' frame: what is said of the machine, the index, the files that are written."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import nbformat
import pytest

from gpulab._html import _pages
from gpulab._html._outputs import prepare
from gpulab.errors import InputError
from gpulab.evidence import Environment

GPU = Environment(
    "2026-03-04T05:06:07+00:00", "Linux", "A Processor", 2, 8 * 2**30, "A GPU", "cuda", "550.1", "3.11.2",
    {"numba": "0.60", "scipy": "1.1", "torch": "2.9"},
)  # fmt: skip
CPU = Environment("2026-03-05T05:06:07+00:00", "Linux", "A Processor", 1, 2**30, "A Processor", "cpu", None, "3.11.2", {})
OPENING = "# 01 · *First* <1>\n\n**Questions**\n- What is `x`?\n- *Why*?\n\n**Time:** 20 minutes. **Needs:** nothing\n- no question"


def page(where: Environment, text: str = OPENING, name: str = "01_first") -> _pages.Page:
    """A page of one text."""
    cells = [nbformat.v4.new_code_cell("# no heading"), nbformat.v4.new_markdown_cell(text), nbformat.v4.new_markdown_cell("# Later")]
    notebook = nbformat.v4.new_notebook(cells=cells)
    return _pages.Page(name, _pages._title(notebook, name), notebook, where)


def test_the_machine_is_told_in_pairs() -> None:
    """Of the libraries those that compute, in one order; a machine without a GPU says so and has no driver."""
    assert _pages.facts(GPU) == [
        ("Date", "2026-03-04 05:06:07 UTC"), ("Device", "A GPU"), ("Processor", "A Processor, 2 cores, 8.00 GiB"), ("System", "Linux"),
        ("Python", "3.11.2"), ("Libraries", "torch 2.9, numba 0.60"), ("Driver", "550.1"), ("Command", "gpulab html"),
    ]  # fmt: skip
    alone = dict(_pages.facts(CPU))
    assert (alone["Device"], alone["Processor"]) == ("A Processor, no GPU", "A Processor, 1 core, 1.00 GiB")
    assert not {"Driver", "Libraries"} & alone.keys()
    assert _pages.short_stamp(GPU) == "A GPU, 2026-03-04"


def test_a_pages_title_is_its_first_heading() -> None:
    """Of the texts, not of a comment in code; a notebook without one has its file's name."""
    assert page(GPU).title == "01 · *First* <1>"
    assert _pages._title(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("# no")]), "07_x") == "07_x"


def test_the_index_lists_pages_questions_and_each_machine_once() -> None:
    """A page's title, time and questions without mark-up; two pages of one machine and day have one table, another machine its own."""
    text = _pages._index([page(GPU), page(GPU, "# 02", "02_second"), page(CPU, "# 03", "03_third")], {})
    contents = text.partition('<ol class="contents">')[2].partition("</ol>")[0]
    assert re.findall(r'<a href="(.*?)">(.*?)</a>', contents) == [
        ("01_first.html", "01 · *First* &lt;1&gt;"), ("02_second.html", "02"), ("03_third.html", "03"),
    ]  # fmt: skip
    assert re.findall("<p>(.*?)</p>", contents) == ["20 minutes"]
    assert re.findall("<ul>(.*?)</ul>", contents) == ["<li>What is x?</li><li>Why?</li>"]
    assert re.findall("<dt>Device</dt><dd>(.*?)</dd>", text) == ["A GPU", "A Processor, no GPU"]
    assert "@" not in text


def test_a_notebook_of_ones_own_is_reached_whatever_its_name() -> None:
    """A # would begin a place in the page and a ? a question; letters of other alphabets are written as UTF-8 (RFC 3986)."""
    own = page(GPU, "# Mine", "11_Übung 1#2")
    url = "11_%C3%9Cbung%201%232.html"
    assert f'<a href="{url}">Mine</a>' in _pages._index([own], {})
    assert f'<a href="{url}">Mine</a>' in _pages._index([], {own.file: "Mine"})
    assert _pages.render(page(GPU), own, own).count(f'href="{url}"') >= 2  # before and next
    assert "Übung 1#2" not in _pages.render(page(GPU), own, own)


def test_a_page_names_its_machine_and_takes_no_device_for_what_was_measured() -> None:
    """On a machine with a GPU the CPU is measured too: no line says that an output was measured on the GPU."""
    made = page(GPU)
    shown = nbformat.v4.new_output("stream", text="MEASURED on A Processor")
    made.notebook.cells.append(nbformat.v4.new_code_cell("show()", outputs=[shown]))
    text = _pages.render(made)
    assert "RECORDED: measured on a machine with A GPU, 2026-03-04, not on yours" in text
    assert text.count("on a machine with A GPU, 2026-03-04") == 4  # bar, summary, output, footer
    assert "on A GPU" not in text


def test_pages_of_earlier_runs_stay_in_the_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each page's foot leads to the index for all notebooks: with --only it lists those before too, in order; no other file."""
    source, out = tmp_path / "notebooks", tmp_path / "pages"
    source.mkdir()
    for name, title in (("01_a", "01 · A & <b>"), ("02_b", "02 · B"), ("03_c", "03 · C")):
        nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell(f"# {title}")]), source / f"{name}.ipynb")
    monkeypatch.setattr(_pages, "run_notebook", lambda path, kept: (nbformat.read(path, as_version=4), GPU))
    for only in ("01", "03", "02"):
        done = _pages.write_course(source, out, only=[only])
        assert done.pages == 1
        (out / "04_mine.html").write_text("<title>my own</title>", encoding="utf-8")
    contents = done.index.read_text(encoding="utf-8").partition('<ol class="contents">')[2].partition("</ol>")[0]
    assert re.findall(r'<a href="(.*?)">(.*?)</a>', contents) == [
        ("01_a.html", "01 · A &amp; &lt;b&gt;"), ("02_b.html", "02 · B"), ("03_c.html", "03 · C"),
    ]  # fmt: skip
    assert contents.count("From an earlier run") == 2


def test_a_course_is_written_as_its_pages_and_assets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files on the disk are those counted; each page knows the ones before and after it; each notebook is said when it is done."""
    source, out = tmp_path / "notebooks", tmp_path / "pages"
    source.mkdir()
    for name in ("01_a", "02_b", "03_c"):
        nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell(f"# {name}")]), source / f"{name}.ipynb")
    asked: list[tuple[str, object]] = []

    def run(path: Path, kept: object) -> tuple[Any, Environment]:
        asked.append((path.name, kept))
        return nbformat.read(path, as_version=4), GPU

    said: list[str] = []
    monkeypatch.setattr(_pages, "run_notebook", run)
    done = _pages.write_course(source, out, executed=tmp_path / "kept", say=said.append)
    files = [file for file in out.rglob("*") if file.is_file()]
    assert {str(file.relative_to(out)) for file in files} == {
        "index.html", "01_a.html", "02_b.html", "03_c.html", "assets/page.css", "assets/page.js", "assets/plotly.min.js",
    }  # fmt: skip
    assert (done.index, done.pages, done.nbytes) == (out / "index.html", 3, sum(file.stat().st_size for file in files))
    assert 0 <= done.seconds < 60
    assert asked == [(f"{name}.ipynb", tmp_path / "kept") for name in ("01_a", "02_b", "03_c")]
    assert [line.partition(":")[0] for line in said] == ["01_a.ipynb", "02_b.ipynb", "03_c.ipynb"]
    assert all(float(line.split()[1]) < 60 for line in said)
    style = (out / "assets" / "page.css").read_text(encoding="utf-8")
    assert all(rule in style for rule in (".gpulab", ".highlight", ".plot-window"))
    middle = (out / "02_b.html").read_text(encoding="utf-8")
    assert 'href="01_a.html"' in middle
    assert 'href="03_c.html"' in middle
    assert "plotly.min.js" not in middle, "a page without a plot does not load the library"
    assert 'aria-label="Link to this heading"' in middle


def test_a_folder_without_the_right_to_write_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The nearest folder that there is decides."""
    nbformat.write(nbformat.v4.new_notebook(), tmp_path / "01_a.ipynb")
    monkeypatch.setattr(os, "access", lambda place, mode: place != tmp_path)
    with pytest.raises(InputError, match=r"pages cannot be written to \(Permission denied\); expected a folder of yours"):
        _pages.write_course(tmp_path, tmp_path / "deep" / "pages")
    with pytest.raises(InputError, match=r"there are no notebooks in .*empty; expected a folder with \.ipynb files"):
        _pages.write_course(tmp_path / "empty", tmp_path / "pages")


def outputs_of(*outputs: dict[str, Any]) -> list[dict[str, Any]]:
    """What becomes of a cell's outputs."""
    cell = nbformat.v4.new_code_cell("show()", outputs=[nbformat.from_dict(each) for each in outputs])
    notebook = nbformat.v4.new_notebook(cells=[cell], metadata={"widgets": {}})
    assert prepare(notebook) is notebook
    assert "widgets" not in notebook.metadata
    return list(cell.outputs)


def shown(metadata: dict[str, Any] | None = None, **data: Any) -> dict[str, str]:
    """The data that one output is left with."""
    named = {name.replace("_", "/", 1).replace("_", "+"): content for name, content in data.items()}
    (found,) = outputs_of({"output_type": "display_data", "data": named, "metadata": metadata or {}})
    return dict(found["data"])


def test_an_output_is_its_richest_form_alone() -> None:
    """HTML before pictures, pictures before words; parts of a list are one text; words alone stay words; a stream is not touched."""
    assert shown(text_html=["<b>1", "</b>"], text_plain="1", image_png="x") == {"text/html": '<div class="rendered"><b>1</b></div>'}
    assert shown(text_plain="1", text_latex="$1$") == {"text/plain": "1"}
    png = {"text/html": '<img alt="a &quot;b&quot;" src="data:image/png;base64,QUJD">'}
    assert shown(text_plain='a "b"', image_png="QUJD\n") == png
    svg = shown(image_svg_xml=["<svg>", "</svg>"])["text/html"]
    assert svg == '<img alt="A picture." src="data:image/svg+xml;base64,PHN2Zz48L3N2Zz4=">'  # printf '<svg></svg>' | base64
    (stream,) = outputs_of({"output_type": "stream", "name": "stdout", "text": "1"})
    assert (stream["output_type"], stream["text"]) == ("stream", "1")


def test_a_pictures_words_are_its_own_before_the_cells() -> None:
    """What the cell said of this kind of picture, else of all; else the output's words."""
    for metadata, alt in (({"alt": "all"}, "all"), ({"image/png": {"alt": "png"}}, "png"), ({"image/png": {}}, "words")):
        assert f'alt="{alt}"' in shown(metadata, text_plain="words", image_png="QUJD")["text/html"]


def test_an_output_inside_a_widget_is_drawn_too() -> None:
    """An Output widget holds figures and prints: each is drawn as it would be in the cell."""
    state = {"outputs": [{"output_type": "stream", "text": ["a < b\n", "c"]}, {"output_type": "stream", "text": ""}]}
    view = {"output_type": "display_data", "metadata": {}}
    view["data"] = {"application/vnd.jupyter.widget-view+json": {"model_id": "x"}, "text/plain": "w"}
    cell = nbformat.v4.new_code_cell("show()", outputs=[nbformat.from_dict(view)])
    widgets = {"application/vnd.jupyter.widget-state+json": {"state": {"x": {"state": state}}}}
    prepare(nbformat.v4.new_notebook(cells=[cell], metadata={"widgets": widgets}))
    assert '<div class="gpulab-picture"><pre>a &lt; b\nc</pre></div>' in cell.outputs[0]["data"]["text/html"]
