"""TransferExplorer and MemoryInspector in JupyterLab: every control after all cells ran, Stop, errors, keyboard, both themes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from instrument_page import WAIT, clean, one_run, press, readable, shown, state
from lab_driver import NotebookPage
from playwright.sync_api import expect

pytestmark = pytest.mark.browser

# The sweep counts sizes, and with SLOW waits at the third until it is stopped; its points are those of a link of 10 us and 10 GB/s.
TRANSFERS = """
import time
import gpulab as gl
from gpulab.evidence import Evidence
from gpulab.transfer import Sweep, SweepPoint

SLOW = False

def sweep(device, deadline, progress, stop):
    points = []
    for k in range(12, 29):
        progress((k - 12) / 17, f"counting 2**{k}")
        while SLOW and k == 14 and not stop():
            time.sleep(0.02)
        if stop():
            break
        points.append(SweepPoint("host", "pageable", 2**k, 1e-5 + 2**k / 1e10, None, 30))
    return Sweep("Slow CPU", "numpy", tuple(points), 2e10, (), Evidence.measured("Slow CPU", 30), None)

gl.transfer.sweep = sweep
t = gl.widgets.TransferExplorer()
t
"""
MEMORY = """
import gpulab as gl
import torch
my_weights = torch.zeros(3_000_000)
m = gl.widgets.MemoryInspector(model="mlp", batch=1)
m
"""


def test_transfers_every_control_of_every_view(notebook_of: Callable[..., NotebookPage]) -> None:
    """The sweep is measured, drawn with its fit and a link; the link, the typed size and the timeline follow the mouse at once."""
    notebook = notebook_of([TRANSFERS])
    area = notebook.output(0)
    shown(notebook, "Press Sweep to measure on this machine.")
    area.get_by_label("Time for the sweep").fill("0")
    press(notebook, "Sweep")
    shown(notebook, "A copy of 3.00 MiB is expected to take")
    area.get_by_label("Predict a copy of (MiB)").fill("100")
    area.get_by_label("Predict a copy of (MiB)").press("Enter")
    shown(notebook, "A copy of 100 MiB is expected to take 10.5 ms")  # 10 us + 104.86 MB / 10 GB/s
    area.get_by_label("rate", exact=True).check()
    shown(notebook, "393 MB/s")  # 4096 B in 10 us + 0.41 us
    area.get_by_label("Modelled link", exact=True).select_option("nvlink4")
    shown(notebook, "The modelled link nvlink4 takes 243 us for 100 MiB.")
    expect(area.get_by_label("Its bandwidth")).to_have_attribute("aria-valuetext", "450 GB/s")
    area.get_by_label("Its latency").fill("9")
    shown(notebook, "The modelled link nvlink4 takes 733 us for 100 MiB.")
    area.get_by_label("Modelled link beside").uncheck()
    area.get_by_text("The modelled link nvlink4 takes").first.wait_for(state="detached", timeout=WAIT)
    readable(notebook)
    area.get_by_label("overlap", exact=True).check()
    shown(notebook, "In 8 chunks it takes")
    expect(area.get_by_label("Time for the sweep")).to_be_hidden()
    expect(area.locator(".gpulab-first")).to_have_text(["Measure overlap"])
    area.get_by_label("Chunks").fill("0")
    shown(notebook, "With one chunk there is nothing to overlap")
    area.get_by_label("Chunks").fill("2")
    area.get_by_label("Bytes in all").fill("0")
    area.get_by_label("Modelled compute / copy").fill("0")
    shown(notebook, "1.00 MiB in 4 chunks")
    readable(notebook)
    press(notebook, "Measure overlap")
    assert state(notebook, "t.values['way'], t.result.chunks") == "here 4"
    area.get_by_label("break-even", exact=True).check()
    shown(notebook, "Press Find break-even")
    expect(area.locator(".gpulab-first")).to_have_text(["Find break-even"])
    area.get_by_label("Workload").select_option("sum")
    area.get_by_label("CPU against").select_option("H200 behind the modelled link")
    area.get_by_label("Time for the search").fill("0")
    press(notebook, "Find break-even")
    shown(notebook, "accelerator with copies (MODELLED)")
    area.get_by_text("Show the code").click()
    shown(notebook, 'gl.transfer.break_even("sum"')
    readable(notebook)
    clean(notebook)


def test_a_long_line_of_evidence_unfolds_and_stays_unfolded(notebook_of: Callable[..., NotebookPage]) -> None:
    """By keyboard alone the model's assumptions unfold; a link of other latency changes their words, not that they are seen."""
    notebook = notebook_of([TRANSFERS])
    page, area = notebook.page, notebook.output(0)
    line = area.locator(".gpulab-status li").first
    whole = line.get_by_text("known error: no recording to compare with yet")
    expect(whole).to_be_hidden()
    area.locator(".gpulab-status summary").focus()
    page.keyboard.press("Enter")
    whole.wait_for(timeout=WAIT)
    notebook.run_in_kernel("t.set(latency_seconds=100e-6)")
    line.get_by_text("100 us a copy chosen").last.wait_for(timeout=WAIT)
    expect(whole).to_be_visible()
    expect(page.locator("summary:focus")).to_have_count(1)
    readable(notebook)
    area.get_by_label("overlap", exact=True).check()
    area.get_by_label("measured here").check()
    area.get_by_label("Its latency").wait_for(state="hidden", timeout=WAIT)
    expect(area.get_by_label("Its bandwidth")).to_be_hidden()
    expect(area.get_by_label("Chunks")).to_be_visible()
    clean(notebook)


def test_transfers_stop_errors_and_the_keyboard(notebook_of: Callable[..., NotebookPage]) -> None:
    """By keyboard alone: a refused size is told and mended, the sweep starts, stops, and keeps what it has."""
    notebook = notebook_of([TRANSFERS])
    page, area = notebook.page, notebook.output(0)
    notebook.run_in_kernel("SLOW = True")
    number = area.get_by_label("Predict a copy of (MiB)")
    number.focus()
    page.keyboard.press("Control+A")
    page.keyboard.type("-4")
    page.keyboard.press("Enter")
    shown(notebook, "expected a number from")
    expect(number).to_have_attribute("aria-invalid", "true")
    page.keyboard.press("Control+A")
    page.keyboard.type("8")
    page.keyboard.press("ArrowUp")
    area.get_by_role("alert").wait_for(state="hidden", timeout=WAIT)
    page.wait_for_function("() => document.activeElement.value === '16'", timeout=WAIT)
    for _ in range(12):
        if page.evaluate("() => document.activeElement.textContent") == "Sweep":
            break
        page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.wait_for_function("() => document.querySelector('.gpulab-progress-text').textContent.includes('counting')", timeout=WAIT)
    assert state(notebook, "6 * 7") == "42"
    for _ in range(4):
        if page.evaluate("() => document.activeElement.textContent") == "Stop":
            break
        page.keyboard.press("Tab")
    with one_run(notebook, "Sweep", "stopped"):
        page.keyboard.press("Enter")
    expect(page.locator(":focus")).to_have_text("Sweep")
    assert state(notebook, "t.running, len(t.result.points) < 17") == "False True"
    notebook.run_in_kernel(
        "def fails(*a, **k): raise gl.errors.InputError('sweep: told to fail; expected more. Try later.')\ngl.transfer.sweep = fails"
    )
    page.keyboard.press("Enter")
    shown(notebook, "sweep: told to fail; expected more. Try later.")
    clean(notebook)


def test_memory_every_control_of_every_view(notebook_of: Callable[..., NotebookPage]) -> None:
    """Snapshot, prediction, a real step and release: each shows its result, and predictions follow the controls by themselves."""
    notebook = notebook_of([MEMORY])
    area = notebook.output(0)
    press(notebook, "Snapshot")
    shown(notebook, "- my_weights")
    readable(notebook)
    area.get_by_label("a step, predicted").check()
    shown(notebook, "batch 1, float32, adam: needs")
    area.get_by_label("Batch").fill("3")
    shown(notebook, "batch 8, float32, adam: needs")
    area.get_by_label("Precision").select_option("pure-bfloat16")
    shown(notebook, "batch 8, pure-bfloat16, adam: needs")
    area.get_by_label("Optimizer").select_option("sgd")
    area.get_by_label("Checkpointing").check()
    shown(notebook, "batch 8, pure-bfloat16, sgd, checkpointed: needs")
    area.get_by_label("Must fit on").select_option("a GPU of 24 GiB, all of it")
    shown(notebook, "it fits on a GPU of 24 GiB")
    readable(notebook)
    area.get_by_label("timeline", exact=True).check()
    shown(notebook, "Memory of 2 training steps")
    area.get_by_label("Checkpointing").uncheck()
    area.get_by_label("Precision").select_option("float32")
    shown(notebook, "batch 8, float32, sgd: needs")
    area.get_by_label("Model", exact=True).select_option("CNN on 32 x 32 colour images")
    shown(notebook, "memory of SmallCNN: SGD, float32")
    press(notebook, "Run a step")
    shown(notebook, "The prediction (modelled) says")
    readable(notebook)
    press(notebook, "Release")
    shown(notebook, "came back on cpu")
    area.get_by_label("Also IPython's outputs").check()
    area.get_by_text("Show the code").click()
    shown(notebook, "outputs=True")
    assert state(notebook, "my_weights.shape[0], m.error") == "3000000"
    readable(notebook)
    clean(notebook)


def test_memory_a_slider_dragged_through_ends_with_the_last_batch(notebook_of: Callable[..., NotebookPage]) -> None:
    """Moves while a prediction is under way are not queued: the last one is predicted, and the kernel stays usable."""
    notebook = notebook_of([MEMORY])
    notebook.output(0).get_by_label("a step, predicted").check()
    notebook.page.evaluate(
        """() => { const range = document.querySelector('.gpulab-slider input');
            for (let k = 0; k < 120; k++) { range.value = k % 11; range.dispatchEvent(new Event('input', {bubbles: true})); }
            range.value = 10; range.dispatchEvent(new Event('input', {bubbles: true})); }"""
    )
    shown(notebook, "batch 1024, float32, adam: needs")
    assert state(notebook, "6 * 7") == "42"
    assert state(notebook, "m.values['batch'], m.error") == "1024"
    clean(notebook)
