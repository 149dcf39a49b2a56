"""The instructor's notebook, executed over a class of different machines with damaged files, and over nothing."""

from __future__ import annotations

import csv
import json
import os
import pathlib
import re
from typing import Any

import canonical
import nbformat
import pytest
from made_class import NAMES, make_class, report_of, write
from nbclient import NotebookClient

FILE = pathlib.Path(__file__).resolve().parents[2] / "instructor" / "class_results.ipynb"
PLOTLY = "application/vnd.plotly.v1+json"


def executed(folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Run the notebook in a folder; return the outputs of its code cells by their ids."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(FILE.parents[1]), os.environ.get("PYTHONPATH", "")]))
    notebook = nbformat.read(FILE, as_version=4)
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(folder)}}).execute()
    return {cell.id: cell.outputs for cell in notebook.cells if cell.cell_type == "code"}


def html(outputs: Any) -> str:
    """The HTML of a cell's last output."""
    return str(outputs[-1]["data"]["text/html"])


def test_it_is_canonical_and_not_among_the_learners_notebooks() -> None:
    """Its form is that of the course's notebooks; it keeps no outputs, which could hold names."""
    text = FILE.read_text(encoding="utf-8")
    assert text == canonical.canonical_text(text)
    assert not any(cell.get("outputs") for cell in json.loads(text)["cells"])
    assert not (FILE.parents[1] / "notebooks" / FILE.name).exists()


def test_a_class_of_thirty_with_ten_bad_files(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty reports of six kinds of machine and ten bad files: all of the notebook runs, and each part says what it must."""
    make_class(tmp_path / "reports", 20, 10)
    write(tmp_path / "reports", "evil.json", report_of(2, NAMES[0]))
    out = executed(tmp_path, monkeypatch)
    assert html(out["room"]).count("<tr>") == 1 + 21
    assert html(out["problems"]).count("bad-") == 10
    roofs = out["machines"][-1]["data"][PLOTLY]["data"]
    assert sum(len(trace["x"]) for trace in roofs if trace["mode"] == "markers") == 21
    assert len(out["predictions"][-1]["data"][PLOTLY]["data"][0]["x"]) == 3 * 21
    assert "02.8" in html(out["exercises"])
    assert html(out["misconceptions"]).count("<tr>") > 1
    for bundle in (output["data"] for outputs in out.values() for output in outputs if "data" in output):
        drawn = bundle.get(PLOTLY, {"data": [], "layout": {}})
        shown = [drawn["data"], {key: part for key, part in drawn["layout"].items() if key != "meta"}, bundle.get("text/html", "")]
        assert "<script" not in json.dumps(shown)
    rows = list(csv.DictReader((tmp_path / "grades.csv").read_text(encoding="utf-8-sig").splitlines()))
    assert len(rows) == 21
    for row in rows:  # a third of the made-up answers is wrong, by the rule that made them
        if match := re.fullmatch(r"Student (\d+)", row["student"]):
            number = int(match.group(1))
            right = [id for id in ("02.2", "02.5", "02.8", "03.10", "03.11") if (number + len(id) + int(id[-1])) % 3]
            assert [id for id in ("02.2", "02.5", "02.8", "03.10", "03.11") if row[f"exercise {id}"] == "1"] == right, html(out["failing"])
            assert row["reported otherwise"] == ""


def test_an_empty_folder_runs_and_says_what_to_do(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anybody has handed in, every cell runs; the first table names the command for students."""
    out = executed(tmp_path, monkeypatch)
    assert "gpulab report --name NAME" in html(out["room"])
    assert "0 students" in out["csv"][-1]["text"]
