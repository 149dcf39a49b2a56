"""Take the README's picture: the controls and the figure of CompareTimings after a run, in
JupyterLab, as the browser tests drive it.

    .venv/bin/python tools/take_pictures.py        on a quiet machine: the picture shows what was
                                                   measured

Needs the tests' environment and Chromium.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "browser"))

from lab_driver import CHROMIUM, Lab, Tab, chromium_path  # noqa: E402
from playwright.sync_api import sync_playwright  # noqa: E402

PICTURE = ROOT / "docs" / "images" / "compare-timings.png"
CELLS = (
    "import os\nos.environ.pop('GPULAB_QUICK', None)\nimport gpulab as gl\ncompare = "
    "gl.widgets.CompareTimings()\ncompare",
    "compare.run(wait=True)",
)
WIDTH = 900


def main() -> None:
    """Write the picture."""
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        lab = Lab(Path(folder) / "course")
        try:
            browser = playwright.chromium.launch(executable_path=chromium_path(), args=CHROMIUM)
            tab = Tab(browser, lab)
            tab.open("picture.ipynb", CELLS, width=WIDTH + 120)
            tab.run_all()
            PICTURE.parent.mkdir(parents=True, exist_ok=True)
            tab.page.set_viewport_size({"width": WIDTH + 120, "height": 1800})
            tab.page.wait_for_function("() => window.__lab.drawn()")
            tab.page.locator(".legend").first.wait_for()
            whole = tab.output(0).bounding_box()
            plot = tab.output(0).locator(".js-plotly-plot").first.bounding_box()
            tab.page.screenshot(
                path=PICTURE, clip={**whole, "height": plot["y"] + plot["height"] - whole["y"]}
            )
            browser.close()
        finally:
            lab.remove()
    print(f"{PICTURE.relative_to(ROOT)}: {PICTURE.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
