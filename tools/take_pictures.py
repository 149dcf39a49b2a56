"""Take the README's picture: CompareTimings after a run, in JupyterLab, as the browser tests drive it.

    .venv/bin/python tools/take_pictures.py        on a quiet machine: the picture shows what was measured

Needs the tests' environment and Chromium.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "browser"))

from lab_driver import CHROMIUM_ARGUMENTS, NotebookPage, find_chromium, running_lab  # noqa: E402
from playwright.sync_api import sync_playwright  # noqa: E402

PICTURE = ROOT / "docs" / "images" / "compare-timings.png"
CELLS = ("import gpulab as gl\ncompare = gl.widgets.CompareTimings()\ncompare", "compare.run(wait=True)")
WIDTH = 900


def main() -> None:
    """Write the picture."""
    with tempfile.TemporaryDirectory() as folder, running_lab(Path(folder)) as lab, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_chromium(), headless=True, args=CHROMIUM_ARGUMENTS)
        notebook = NotebookPage(browser, lab, lab.write_notebook("picture.ipynb", CELLS), width=WIDTH + 120, height=1400)
        notebook.run_all()
        PICTURE.parent.mkdir(parents=True, exist_ok=True)
        notebook.output(0).screenshot(path=PICTURE)
        notebook.close()
        browser.close()
    print(f"{PICTURE.relative_to(ROOT)}: {PICTURE.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
