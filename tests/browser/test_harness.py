"""The browser tests' own tools see what they must see: each of these would pass silently if a tool were blind."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from lab_driver import NotebookPage

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


def test_code_runs_in_the_notebooks_kernel(notebook_of: Callable[..., NotebookPage]) -> None:
    """``run_in_kernel`` shares the cells' names, returns what was printed and raises what failed."""
    notebook = notebook_of(["answer = 6 * 7"])
    assert notebook.run_in_kernel("print(answer)") == "42\n"
    with pytest.raises(RuntimeError, match="NameError"):
        notebook.run_in_kernel("nothing_of_that_name")
