"""The instruments about a GPU's limits in JupyterLab: every control after all cells ran, keyboard, both themes, 900 pixels."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import instrument_page
import pytest
from instrument_page import WAIT, clean, cut_off, shown, state
from lab_driver import NotebookPage
from playwright.sync_api import expect

pytestmark = pytest.mark.browser

OCCUPANCY = """
import gpulab as gl
from gpulab.kernels import KernelFacts

o = gl.widgets.OccupancyExplorer(compute_capability="9.0")
facts = KernelFacts("tile", "tile", 1, 72, 8192, 0, 0, 0, 0, 8, 1, None, 640)
o
"""


def readable(notebook: NotebookPage) -> None:
    """As of every instrument; besides, no text of the picture is cut or lies on another one."""
    instrument_page.readable(notebook, _narrow, partial(cut_off, may_stick_out=".gpulab-table"), _collisions)


def _narrow(notebook: NotebookPage) -> list[str]:
    """Wait until the picture has followed the window."""
    notebook.page.wait_for_function("() => document.querySelector('.gpulab-picture .main-svg')?.clientWidth < 800", timeout=WAIT)
    return []


def _collisions(notebook: NotebookPage) -> list[str]:
    """Titles, ticks, legend entries and annotations of the picture that leave it or lie on each other."""
    return notebook.page.evaluate(
        """() => {
            const svg = document.querySelector('.gpulab-picture .js-plotly-plot');
            const names = '.gtitle, .gtitle-subtitle, .xtitle, .ytitle, .x2title, .x3title, .legendtext, .annotation-text, .xtick text';
            const found = [...svg.querySelectorAll(names)].filter(e => e.textContent.trim()).map(e => ({
                text: e.textContent, box: e.getBoundingClientRect()}));
            const all = svg.getBoundingClientRect(), bad = [];
            found.forEach(({text, box}, k) => {
                if (box.left < all.left - 1 || box.right > all.right + 1 || box.bottom > all.bottom + 1) bad.push('cut: ' + text);
                found.slice(k + 1).forEach(other => {
                    const b = other.box, across = Math.min(box.right, b.right) - Math.max(box.left, b.left);
                    if (across > 1 && Math.min(box.bottom, b.bottom) - Math.max(box.top, b.top) > 3) bad.push(text + ' on ' + other.text);
                });
            });
            return bad; }"""
    )


def test_occupancy_every_control(notebook_of: Callable[..., NotebookPage]) -> None:
    """Each control moves the sentence, the table and the picture at once; a loaded kernel fills them and stays in the list."""
    notebook = notebook_of([OCCUPANCY])
    area = notebook.output(0)
    shown(notebook, "All 64 warp slots are taken")
    readable(notebook)
    area.get_by_label("Threads of a block").fill("33")
    area.get_by_label("Threads of a block").press("Enter")
    shown(notebook, "The last warp of each block uses 1 of its 32 lanes.")
    area.get_by_label("Registers of a thread").fill("255")
    shown(notebook, "The register file holds 8 warps of 255 registers a thread: 4 blocks.")  # 65,536 / (256 x 32) warps of 2 a block
    expect(area.get_by_label("Registers of a thread")).to_have_attribute("aria-valuetext", "255")
    area.get_by_label("Shared memory of a block (bytes)").fill("100000")
    area.get_by_label("Shared memory of a block (bytes)").press("Enter")
    shown(notebook, "Shared memory of 228 KiB holds 2 blocks")
    area.get_by_label("Compute capability").select_option("8.6, such as A10")
    shown(notebook, "Occupancy 4.2% on compute capability 8.6")  # one block of 2 warps in 48 slots
    area.get_by_label("Barriers of a block").fill("16")
    area.get_by_label("Compute capability").select_option("9.0, such as H100 SXM")
    shown(notebook, "16 of 64")
    readable(notebook)
    expect(area.get_by_label("Kernel", exact=True)).to_be_hidden()
    notebook.run_in_kernel("o.load(facts, compute_capability='sm_80')")
    shown(notebook, "Kernel tile, compiled for 8.0: 72 registers a thread, 8,192 bytes of shared memory.")
    expect(area.get_by_label("Shared memory of a block (bytes)")).to_have_value("8192")
    area.get_by_label("Kernel", exact=True).select_option("none: numbers of your own")
    area.get_by_text("Kernel tile").first.wait_for(state="detached", timeout=WAIT)
    area.get_by_label("Kernel", exact=True).select_option("tile (8.0)")
    shown(notebook, "Kernel tile")
    area.get_by_text("Show the code").click()
    shown(notebook, 'o = gl.models.occupancy(33, 72, 8192, "8.0")')
    readable(notebook)
    clean(notebook)


def test_occupancy_by_keyboard_and_in_time(notebook_of: Callable[..., NotebookPage]) -> None:
    """Tab and arrows alone move a launch by whole warps; what is refused is told at its control; a dragged slider keeps its last value."""
    notebook = notebook_of([OCCUPANCY])
    page, area = notebook.page, notebook.output(0)
    area.get_by_label("Threads of a block").focus()
    page.keyboard.press("ArrowDown")
    page.wait_for_function("() => document.activeElement.value === '224'", timeout=WAIT)
    page.keyboard.press("Tab")
    page.keyboard.press("End")
    shown(notebook, "The register file holds 8 warps of 255 registers a thread")
    page.keyboard.press("Tab")
    page.keyboard.press("Control+A")
    page.keyboard.type("-5")
    page.keyboard.press("Enter")
    shown(notebook, "expected a whole number from 0 to 262144")
    expect(page.locator(":focus")).to_have_attribute("aria-invalid", "true")
    page.keyboard.press("Control+A")
    page.keyboard.type("1024")
    page.keyboard.press("Enter")
    area.get_by_role("alert").wait_for(state="hidden", timeout=WAIT)
    page.evaluate(
        """() => { const range = document.querySelector('.gpulab-slider input');
            for (let k = 0; k < 200; k++) { range.value = k; range.dispatchEvent(new Event('input', {bubbles: true})); }
            range.value = 16; range.dispatchEvent(new Event('input', {bubbles: true})); }"""
    )
    shown(notebook, "A block has 7 warps: 9 blocks fill 63 of 64 warp slots")
    assert state(notebook, "o.values['registers_per_thread'], o.error") == "16"
    clean(notebook)


def test_access_every_control(notebook_of: Callable[..., NotebookPage]) -> None:
    """Each control moves the counts and the picture at once; the keyboard alone steps through strides; the code follows."""
    notebook = notebook_of(["import gpulab as gl\n\na = gl.widgets.AccessPatterns()\na"])
    page, area = notebook.page, notebook.output(0)
    shown(notebook, "One warp: 4 sectors where 4 would do; 1 wavefront where 1 would do")
    readable(notebook)
    area.get_by_label("Stride (elements)").focus()
    page.keyboard.press("ArrowRight")
    shown(notebook, "One warp: 8 sectors where 4 would do; 2 wavefronts where 1 would do")
    expect(area.get_by_label("Stride (elements)")).to_have_attribute("aria-valuetext", "2")
    area.get_by_label("Offset (elements)").fill("3")
    shown(notebook, "One warp: 9 sectors where 4 would do")
    area.get_by_label("Stride (elements)").fill("32")
    shown(notebook, "32 words meet in one bank: 32 wavefronts for 1.")
    readable(notebook)
    area.get_by_label("Element", exact=True).select_option("16 bytes (float4)")
    shown(notebook, "512 needed")
    readable(notebook)
    area.get_by_label("Active lanes").fill("8")
    shown(notebook, "8 lanes need 128 B")
    area.get_by_label("Lane i takes").select_option("backwards: offset + (31 - i) * stride")
    area.get_by_label("Active lanes").fill("0")
    shown(notebook, "No lane is active: no request is made.")
    readable(notebook)
    area.get_by_label("Active lanes").fill("32")
    area.get_by_label("Element", exact=True).select_option("1 byte (int8)")
    for kind in ("two lanes an element", "a block 16 wide", "a block 8 wide", "a swizzled column", "scattered", "a stride"):
        option = area.get_by_label("Lane i takes").locator("option").filter(has_text=f"{kind}:").inner_text()
        area.get_by_label("Lane i takes").select_option(option)
    area.get_by_text("Show the code").click()
    shown(notebook, "a = gl.models.access_pattern(32, 3, 1)")
    assert state(notebook, "a.error, a.values['kind']") == "strided"
    clean(notebook)


# Roofs of 100 GFLOP/s and 10 GB/s; each measurement takes a tenth of a second, or while SLOW is set until Stop.
ROOFS = """
import time
import numpy as np
import gpulab as gl
from gpulab import devices, models, timing
from gpulab.evidence import Evidence
from gpulab.models import ArithmeticRoof, MemoryRoof, Roofline
from gpulab.models._ceilings import roofline as real

LIVE, SLOW = Evidence.measured("Slow CPU", 30), False
FORMATS = ("float32", "float64", "bfloat16", "float16")
MADE = Roofline("Slow CPU", tuple(ArithmeticRoof(name, 1e11, "now", LIVE) for name in FORMATS),
                (MemoryRoof("L2", 1e11, 1e6, "now", LIVE), MemoryRoof("DRAM", 1e10, 1e10, "now", LIVE)), (), (), LIVE)

def measure(function, *inputs, progress, stop, label, **arguments):
    progress(0.0, "counting")
    time.sleep(0.1)
    while SLOW and not stop():
        progress(0.5, "counting")
        time.sleep(0.02)
    return timing.Measurement(label, "cpu", np.full(5, 0.1), 0.1, (0.08, 0.12), 0.2, 0.05, None, 1, None, None, (), LIVE,
                              devices.environment("cpu"))

timing.measure = measure
models.roofline = lambda device, **options: MADE if device == "cpu" else real(device, **options)
r = gl.widgets.RooflineExplorer()
r
"""


def done(notebook: NotebookPage, ending: str) -> None:
    """Wait until the instrument says that the run is over."""
    notebook.page.wait_for_function(
        "text => document.querySelector('.gpulab-progress-text').textContent === text", arg=f"Run: {ending}", timeout=WAIT
    )


def test_roofline_every_control(notebook_of: Callable[..., NotebookPage]) -> None:
    """Predicted, measured and recorded points with their badges; each control moves what is shown or what Run will measure."""
    notebook = notebook_of([ROOFS])
    area = notebook.output(0)
    shown(notebook, "Press Run to measure on this machine")
    readable(notebook)
    area.get_by_label("conv2d", exact=True).uncheck()
    area.get_by_label("fft", exact=True).uncheck()
    area.get_by_label("sort", exact=True).check()
    shown(notebook, "Without arithmetic, so only in the table: sort n=262144 float32.")
    area.get_by_label("Size", exact=True).fill("0")
    shown(notebook, "sort n=256 float32.")
    area.get_by_label("Number format").select_option("float64")
    shown(notebook, "sort n=256 float64.")
    area.get_by_label("Measure on").select_option(area.get_by_label("Measure on").locator("option").first.inner_text())
    area.get_by_label("Time for each").fill("0")
    area.get_by_role("button", name="Run").click()
    done(notebook, "done")
    shown(notebook, "Slow CPU (measured)")
    assert state(notebook, "r.result.points[0].label, r.values['deadline'], len(r.result.points)") == "matmul n=64 float64 0.2 5"
    readable(notebook)
    area.get_by_label("Beside it").select_option("AMD EPYC (2 cores) (recorded), amd-epyc-2-cores")
    shown(notebook, "roofs of AMD EPYC (2 cores) (recorded)")
    readable(notebook)
    area.get_by_label("Number format").select_option("float32")
    shown(notebook, "The controls have moved since this was made: press Run")
    area.get_by_label("Beside it").select_option("nothing")
    area.get_by_text("Show the code").click()
    shown(notebook, 'roof = gl.models.roofline("cpu")')
    readable(notebook)
    clean(notebook)


def test_roofline_stop_and_the_keyboard(notebook_of: Callable[..., NotebookPage]) -> None:
    """By keyboard alone: Run starts with progress, the kernel answers meanwhile, Stop keeps what is there; errors show inside."""
    notebook = notebook_of([ROOFS])
    page = notebook.page
    notebook.run_in_kernel("SLOW = True")
    notebook.output(0).get_by_label("Beside it").focus()
    page.keyboard.press("Tab")
    expect(page.locator(":focus")).to_have_text("Run")
    page.keyboard.press("Enter")
    page.wait_for_function("() => document.querySelector('.gpulab-progress-text').textContent.includes('matmul')", timeout=WAIT)
    assert state(notebook, "6 * 7") == "42"
    for _ in range(3):
        if page.evaluate("() => document.activeElement.textContent") == "Stop":
            break
        page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    done(notebook, "stopped")
    shown(notebook, "Stopped before")
    assert state(notebook, "r.running, 1 <= len(r.result.points) < 6") == "False True"
    notebook.run_in_kernel("def fails(*a, **options): raise gl.errors.DeviceError('roofline: told to fail; expected more. Try later.')")
    notebook.run_in_kernel("r.set(beside='none'); models.roofline = fails")
    notebook.output(0).get_by_role("button", name="Run").click()
    shown(notebook, "roofline: told to fail; expected more. Try later.")
    clean(notebook)
