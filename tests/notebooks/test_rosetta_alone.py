"""Notebook 10 without TensorFlow and JAX: it runs to its end and says how to get them (the browser runs it with both)."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).resolve().parents[2] / "notebooks" / "10_rosetta.ipynb"
BLOCKED = "import sys\n\nsys.modules.update(jax=None, tensorflow=None)"


@pytest.mark.slow
def test_the_notebook_runs_without_the_two_libraries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No cell fails; each that needs one of them says in one sentence how to get it, and all others give what they give."""
    monkeypatch.setenv("GPULAB_PROGRESS", str(tmp_path / "progress.json"))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    notebook.cells.insert(0, nbformat.v4.new_code_cell(BLOCKED))
    NotebookClient(notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}).execute()
    said = {cell.id: str(cell.get("outputs")) for cell in notebook.cells if cell.cell_type == "code"}
    needing = {cell.id for cell in notebook.cells if cell.cell_type == "code" and cell.source.startswith("%%needs")}
    assert len(needing) >= 4
    for id in (*needing, "five", "retraces", "sharded", "feeding"):
        assert "pip install -c constraints.txt -e '.[rosetta]'" in said[id].replace("\\'", "'").replace("&#x27;", "'"), id
    assert "MODELLED" in said["feeding"]
    assert "NumPy" in said["five"]
    assert "agrees" in said["jax-run"]
    assert all(cell["outputs"] for cell in notebook.cells if cell.cell_type == "code" and "gl.lessons.rosetta(" in cell.source)
