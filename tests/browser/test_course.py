"""The course in JupyterLab: every cell of every notebook, its outputs, both themes."""

import json
from pathlib import Path
from typing import Any

import pytest
from lab_driver import Tab

pytestmark = [pytest.mark.browser, pytest.mark.slow]
FOLDER = Path(__file__).resolve().parents[2] / "notebooks"
NOTEBOOKS = sorted(path.name for path in FOLDER.glob("*.ipynb"))
SECONDS = 300  # each runs in well under a minute alone; here other tests share the cores
CHECKED = "NBVAL_CHECK_OUTPUT"


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_runs(tab: Tab, name: str) -> None:
    """Without an error, with the outputs that its checked cells keep; all is drawn and readable."""
    tab.open(name)
    tab.run_all(SECONDS)
    stored = json.loads((FOLDER / name).read_text(encoding="utf-8"))["cells"]
    kept = [cell for cell in stored if cell["cell_type"] == "code"]
    shown = tab.page.evaluate("() => window.__lab.codeCells()")
    assert tab.complaints() == []
    assert len(shown) == len(kept)
    for number, (before, now) in enumerate(zip(kept, shown, strict=True)):
        if CHECKED in _joined(before["source"]):
            assert _plain(now["outputs"]) == _plain(before["outputs"]), f"code cell {number}"
    assert tab.unreadable(cut=False) == []


def _joined(text: Any) -> Any:
    return "".join(text) if isinstance(text, list) else text


def _plain(outputs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return each stream's text and the results, whatever pieces the text came in."""
    found: dict[str, Any] = {"results": []}
    for output in outputs:
        if output["output_type"] == "stream":
            found[output["name"]] = found.get(output["name"], "") + _joined(output["text"])
        else:
            data = {kind: _joined(value) for kind, value in output.get("data", {}).items()}
            found["results"].append((output["output_type"], data))
    return found
