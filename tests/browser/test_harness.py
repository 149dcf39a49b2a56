"""The browser tests' own tools see what they must see: each of these would pass silently if a tool were blind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from lab_driver import CONTRAST, Lab, NotebookPage, changed_outputs
from playwright.sync_api import expect

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def faulty() -> list[str]:
    """Cells with one fault each: text too pale to read, a button without a name, an exception (which ends a run of all cells)."""
    pale = "from IPython.display import HTML; HTML(\"<p style='color:#bbb;background:#fff'>pale words</p>\")"
    nameless = "import ipywidgets; ipywidgets.Button()"
    return [pale, nameless, "1 / 0"]


def test_a_clean_notebook_shows_no_fault(notebook_of: Callable[..., NotebookPage]) -> None:
    """Text, an HTML table and a widget with a label run without any complaint, in both themes."""
    cells = ["print('hello')", "import ipywidgets; ipywidgets.Button(description='Run')", "1 + 1"]
    notebook = notebook_of(cells)
    assert notebook.kernel_errors() == []
    assert notebook.broken_outputs() == []
    assert "hello" in notebook.output(0).inner_text()
    assert notebook.output(2).inner_text().strip().endswith("2")
    for theme in ("dark", "light"):
        notebook.set_theme(theme)
        assert notebook.axe() == []
    assert notebook.errors == []
    assert notebook.outside == []


def test_faults_are_seen(notebook_of: Callable[..., NotebookPage], faulty: list[str]) -> None:
    """An exception, poor contrast and a nameless button are each reported."""
    notebook = notebook_of(faulty)
    assert notebook.kernel_errors() == ["cell 2: ZeroDivisionError: division by zero"]
    violations = "\n".join(notebook.axe())
    assert "color-contrast: <p" in violations
    assert "button-name: <button" in violations
    alone = "\n".join(notebook.axe(only=CONTRAST))
    assert "color-contrast: <p" in alone
    assert "button-name" not in alone


def test_a_kept_tab_shows_nothing_of_its_last_notebook(browser: Any, lab: Lab) -> None:
    """The next notebook in a tab begins in the light theme, at its size, with a kernel of its own and no complaints."""
    loud = "from IPython.display import Javascript; Javascript(\"console.error('mine')\")"
    first = NotebookPage(browser, lab, lab.write_notebook("kept-1.ipynb", ["left = 5", loud]), fresh=True)
    first.run_all()
    first.page.wait_for_function("() => document.querySelectorAll('.jp-OutputArea-output').length === 1")
    first.set_theme("dark")
    assert "console: mine" in first.errors
    first.close(keep=True)
    second = NotebookPage(browser, lab, lab.write_notebook("kept-2.ipynb", ["print('left' in globals())"]), width=900)
    assert second.tab is first.tab
    second.run_all()
    assert second.output(0).inner_text().strip() == "False"
    expect(second.page.locator(".jp-Notebook")).to_have_count(1)
    assert second.page.evaluate("() => [document.body.dataset.jpThemeLight, window.innerWidth]") == ["true", 900]
    assert second.errors == []
    second.close()


def test_a_notebook_is_taken_again_only_by_the_same_cells(notebook_of: Callable[..., NotebookPage], left_open: list[NotebookPage]) -> None:
    """Whoever asks for the cells of the notebook left open gets it as it was opened, its cells run once more; others get a new kernel."""
    cells = ["seen = globals().get('seen', 0) + 1\nprint(seen)"]
    first = notebook_of(cells, fresh=True)
    assert first.output(0).inner_text().strip() == "1"
    first.set_theme("dark")
    first.errors.append("script: mine")
    left_open.append(first)
    again = notebook_of(cells, width=900)
    assert again is first
    assert again.output(0).inner_text().strip() == "2"
    assert again.page.evaluate("() => [document.body.dataset.jpThemeLight, window.innerWidth]") == ["true", 900]
    assert again.errors == []
    left_open.append(again)
    other = notebook_of(["print('seen' in globals())"])
    assert other.output(0).inner_text().strip() == "False"
    expect(other.page.locator(".jp-Notebook")).to_have_count(1)
    assert left_open == []


def test_changed_outputs_are_seen(notebook_of: Callable[..., NotebookPage]) -> None:
    """A checked cell whose text, kind or number of outputs differs is named; one that is not checked, and how a text is cut, is not."""
    checked = "# NBVAL_CHECK_OUTPUT\n"
    notebook = notebook_of([checked + "print('a')\nprint('b')\n1 + 1", checked + "print('c')", "print('d')"])

    def stored(text: object, result: str, third: str) -> dict[str, object]:
        said = {"output_type": "stream", "name": "stdout", "text": text}
        made = {"output_type": "execute_result", "execution_count": 9, "metadata": {}, "data": {"text/plain": [result]}}
        outputs = [[said, made], [{**said, "text": "c\n"}], [{**said, "text": third}]]
        cells = [{"cell_type": "code", "source": cell["source"], "outputs": out} for cell, out in zip(shown, outputs, strict=True)]
        return {"cells": [{"cell_type": "markdown", "source": "x"}, *cells]}

    shown = notebook.code_cells()
    assert changed_outputs(stored(["a\n", "b\n"], "2", "other\n"), shown) == []
    assert [text.split(":")[0] for text in changed_outputs(stored("a\nB\n", "2", "d\n"), shown)] == ["code cell 0"]
    assert len(changed_outputs(stored("a\nb\n", "3", "d\n"), shown)) == 1
    less = stored("a\nb\n", "2", "d\n")
    less["cells"][2]["outputs"] = []
    assert [text.split(":")[0] for text in changed_outputs(less, shown)] == ["code cell 1"]
    assert len(changed_outputs({"cells": less["cells"][:3]}, shown)) == 1


def test_code_runs_in_the_notebooks_kernel(notebook_of: Callable[..., NotebookPage]) -> None:
    """``run_in_kernel`` shares the cells' names, returns what was printed and raises what failed."""
    notebook = notebook_of(["answer = 6 * 7"])
    assert notebook.run_in_kernel("print(answer)") == "42\n"
    with pytest.raises(RuntimeError, match="NameError"):
        notebook.run_in_kernel("nothing_of_that_name")
