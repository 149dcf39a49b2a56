"""PipelineTimeline in JupyterLab: every control after all cells ran, a real run with workers, Stop, the keyboard, both themes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from instrument_page import WAIT, clean, one_run, press, readable, shown, state
from lab_driver import NotebookPage
from playwright.sync_api import expect

pytestmark = pytest.mark.browser
# Few small images, so that a run takes a second; SLOW makes the fourth step wait for Stop.
PIPELINE = """
import functools, time
import gpulab as gl
from gpulab.training._pipeline import pipeline as real

SLOW = False

def small(progress, stop, **given):
    def told(fraction, text):
        progress(fraction, text)
        while SLOW and text.startswith("step 4 ") and not stop():
            progress(fraction, text)
            time.sleep(0.02)

    return real(progress=told, stop=stop, image_size=16, **(given | {"batch_size": 4, "step_seconds": 0.01}))

gl.training.pipeline = small
t = gl.widgets.PipelineTimeline(cores=4)
t
"""


def test_every_control_and_a_real_run(notebook_of: Callable[..., NotebookPage]) -> None:
    """The model follows each control at once; a run with two workers is measured, drawn and named with both badges."""
    notebook = notebook_of([PIPELINE])
    area = notebook.output(0)
    shown(notebook, "A modelled accelerator waits 71% of the time for data")  # (48 + 0.1) / 68.1 ms
    readable(notebook)
    area.get_by_label("Workers").fill("3")
    shown(notebook, "A modelled accelerator waits only")
    expect(area.get_by_label("Batches ahead, each worker")).to_be_visible()
    area.get_by_label("Batches ahead, each worker").fill("2")
    area.get_by_label("Loading one image (ms)").fill("6")
    area.get_by_label("Loading one image (ms)").press("Enter")
    shown(notebook, "a worker needs 192 ms for a batch")
    area.get_by_label("Cores").fill("1")
    area.get_by_label("Cores").press("Enter")
    shown(notebook, "a worker needs 576 ms for a batch")
    area.get_by_label("Images in a batch").fill("1")
    shown(notebook, "a worker needs 288 ms for a batch")
    area.get_by_label("Its step takes").fill("6")
    shown(notebook, "its own 160 ms a step are the bottleneck")
    area.get_by_label("Pinned memory, copies without waiting").check()
    area.get_by_label("Read the loss after each step").uncheck()
    area.get_by_text("Show the code").click()
    shown(notebook, "pinned=True, read_loss=False")
    readable(notebook)
    area.get_by_label("Workers").fill("2")
    press(notebook, "Run the steps")
    assert state(notebook, "t.values['way'], t.result.workers, t.error == ''") == "here 2 True"
    shown(notebook, "MEASURED")
    shown(notebook, "MODELLED")
    expect(area.get_by_label("Cores")).to_be_hidden()
    readable(notebook)
    area.get_by_label("Workers").fill("0")
    shown(notebook, "The controls have moved")
    press(notebook, "Run the steps")
    assert state(notebook, "t.result.workers, t.values['loading_ms'] != 6.0") == "0 True"
    clean(notebook)


def test_stop_and_the_keyboard(notebook_of: Callable[..., NotebookPage]) -> None:
    """By keyboard alone: a refused number is told, the run starts and stops, and keeps the steps that were made."""
    notebook = notebook_of([PIPELINE])
    page, area = notebook.page, notebook.output(0)
    notebook.run_in_kernel("SLOW = True")
    area.get_by_label("Loading one image (ms)").focus()
    page.keyboard.press("Control+A")
    page.keyboard.type("-4")
    page.keyboard.press("Enter")
    shown(notebook, "expected a number from 0.01 to 1000")
    page.keyboard.press("Control+A")
    page.keyboard.type("2")
    page.keyboard.press("Enter")
    area.get_by_role("alert").wait_for(state="hidden", timeout=WAIT)
    for _ in range(12):
        if page.evaluate("() => document.activeElement.textContent") == "Run the steps":
            break
        page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.wait_for_function("() => document.querySelector('.gpulab-progress-text').textContent.includes('step 4')", timeout=WAIT)
    assert state(notebook, "6 * 7") == "42"
    for _ in range(4):
        if page.evaluate("() => document.activeElement.textContent") == "Stop":
            break
        page.keyboard.press("Tab")
    with one_run(notebook, "Run the steps", "stopped"):
        page.keyboard.press("Enter")
    assert state(notebook, "t.running, 2 <= t.result.steps < 24") == "False True"
    clean(notebook)
