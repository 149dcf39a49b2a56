"""The canonical form of a notebook: stable, free of what changes by itself, and faithful to what the author wrote."""

from __future__ import annotations

import json
from typing import Any

import canonical
import nbformat
from hypothesis import given
from hypothesis import strategies as st


def notebook(*cells: dict[str, Any]) -> dict[str, Any]:
    """A notebook as JupyterLab may save it."""
    return {
        "cells": list(cells),
        "metadata": {"kernelspec": {"name": "conda-env-x"}, "widgets": {"state": {}}},
        "nbformat": 4,
        "nbformat_minor": 4,
    }


def code(source: str, **more: Any) -> dict[str, Any]:
    """A code cell that was run."""
    output = {"output_type": "execute_result", "execution_count": 7, "data": {"text/plain": "a\nb"}, "metadata": {}}
    return {"cell_type": "code", "source": source, "execution_count": 7, "outputs": [output], "metadata": {"collapsed": False}, **more}


def test_what_changes_by_itself_is_gone() -> None:
    """Execution counts, outputs that nothing compares, random ids and the machine's kernel do not stay."""
    made = canonical.canonical(notebook(code("1 + 1", id="3f2a9c1d")))
    (cell,) = made["cells"]
    assert cell == {"cell_type": "code", "id": "cell-000", "metadata": {}, "source": ["1 + 1"], "execution_count": None, "outputs": []}
    assert made["metadata"]["kernelspec"]["name"] == "python3"
    assert "widgets" not in made["metadata"]
    nbformat.validate(made)


def test_what_the_author_chose_stays() -> None:
    """Tags, ids with a meaning and the outputs that nbval compares are kept; equal ids are told apart."""
    checked = code("print(1)  # NBVAL_CHECK_OUTPUT", id="sum", metadata={"tags": ["raises-exception"], "trusted": True})
    first, second = canonical.canonical(
        notebook(checked, {"cell_type": "markdown", "source": ["a\n", "b\n"], "metadata": {}, "id": "sum"})
    )["cells"]
    assert first["id"] == "sum"
    assert first["metadata"] == {"tags": ["raises-exception"]}
    assert first["outputs"][0]["data"]["text/plain"] == ["a\n", "b"]
    assert first["outputs"][0]["execution_count"] is None
    assert second["id"] != "sum"
    assert second["source"] == ["a\n", "b"]


CELLS = st.lists(
    st.builds(
        lambda kind, source, name: {"cell_type": kind, "source": source, "id": name, "metadata": {}, "outputs": []},
        st.sampled_from(["code", "markdown"]),
        st.text(max_size=40),
        st.sampled_from(["", "sum", "cell-000", "cell-001", "0a1b2c3d"]),
    ),
    max_size=6,
)


@given(cells=CELLS)
def test_canonical_text_is_a_fixed_point(cells: list[dict[str, Any]]) -> None:
    """Writing a canonical notebook again changes nothing, ids are unique, and no source line is lost."""
    once = canonical.canonical_text(json.dumps(notebook(*cells)))
    assert canonical.canonical_text(once) == once
    made = json.loads(once)
    assert len({cell["id"] for cell in made["cells"]}) == len(cells)
    assert ["".join(cell["source"]) for cell in made["cells"]] == [cell["source"].rstrip() for cell in cells]
    nbformat.validate(made)
