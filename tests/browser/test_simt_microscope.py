"""SimtMicroscope in JupyterLab: every control after all cells ran, Play, the keyboard alone, an edited cell, Stop, errors, both themes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import instrument_page
import pytest
from instrument_page import WAIT, clean, cut_off, shown, state
from lab_driver import NotebookPage
from playwright.sync_api import expect

pytestmark = pytest.mark.browser

EXAMPLES = """
import gpulab as gl
m = gl.widgets.SimtMicroscope()
m
"""
KERNEL = """
import numpy as np
import gpulab as gl
from gpulab.kernels import cuda

def spread(x):
    i = cuda.grid(1)
    x[4 * i] = 1
""".strip()
SHOW = """
x = np.zeros(128, np.float32)
m = gl.widgets.SimtMicroscope(spread, 1, 32, x)
m
"""


def at(notebook: NotebookPage, step: str, line: int) -> None:
    """Wait until a step is shown and its line is the marked one."""
    notebook.page.wait_for_function(
        """([step, line]) => document.querySelector('.gpulab-transport output').textContent === step
            && document.querySelector('tr[aria-current="step"]')?.dataset.line === line""",
        arg=[step, str(line)],
        timeout=WAIT,
    )


def lit(notebook: NotebookPage) -> list[int]:
    """The lanes that are lit in the strip over the source."""
    boxes = notebook.page.evaluate("() => [...document.querySelectorAll('.gpulab-strip .gpulab-box-on text')].map(t => t.textContent)")
    return [int(text) for text in boxes]


def boxes(notebook: NotebookPage, access: int, kind: str) -> int:
    """How many boxes of a kind the picture of an access has."""
    return int(notebook.output(0).locator(".gpulab-access").nth(access).locator(f".gpulab-box-{kind}").count())


def readable(notebook: NotebookPage) -> None:
    """As of every instrument, with parts that scroll for hidden; besides, the current line is in view."""
    instrument_page.readable(notebook, partial(cut_off, hidden_by="hidden|clip|auto"), _line_out_of_view)


def _line_out_of_view(notebook: NotebookPage) -> list[str]:
    return notebook.page.evaluate(
        """() => {
            const frame = document.querySelector('.gpulab-source'), row = document.querySelector('tr[aria-current="step"]');
            const [outer, inner] = [frame, row].map(e => e.getBoundingClientRect());
            return inner.top < outer.top - 1 || inner.bottom > outer.bottom + 1 ? [row.textContent] : []; }"""
    )


def test_every_control(notebook_of: Callable[..., NotebookPage]) -> None:
    """Kernel, block, warp, Run, Previous, Next, the slider, a line's button and Show the code: each changes what is drawn."""
    notebook = notebook_of([EXAMPLES])
    area = notebook.output(0)
    at(notebook, "1 of 3", 9)
    area.get_by_label("Kernel", exact=True).select_option("transpose, tiled")
    at(notebook, "1 of 6", 9)
    area.get_by_role("slider", name="Step").fill("6")
    at(notebook, "6 of 6", 14)
    shown(notebook, "bank 0: 32 words, 32-way conflict; 32 wavefronts instead of 1")
    assert (boxes(notebook, 0, "conflict"), boxes(notebook, 0, "bank"), boxes(notebook, 1, "touched")) == (32, 1, 32)
    expect(area.get_by_role("button", name="Next", exact=True)).to_have_attribute("aria-disabled", "true")
    readable(notebook)
    area.get_by_role("button", name="Previous").click()
    at(notebook, "5 of 6", 13)
    area.get_by_role("button", name="Next", exact=True).click()
    at(notebook, "6 of 6", 14)
    area.get_by_role("button", name="Line 12: go to the warp's next step there").click()
    at(notebook, "4 of 6", 12)
    area.get_by_label("Warp", exact=True).select_option("31: threads 992 to 1023")
    shown(notebook, "Warp 31 at line 12: all 32 lanes active.")
    area.get_by_label("Kernel", exact=True).select_option("vector add, without the guard")
    at(notebook, "1 of 2", 9)
    area.get_by_label("Block", exact=True).fill("3")
    area.get_by_label("Block", exact=True).press("Enter")
    area.get_by_role("button", name="Next", exact=True).click()
    shown(notebook, "28 active lanes take no part: see the finding")
    assert boxes(notebook, 0, "on") == 4
    expect(area.locator(".gpulab-finding")).to_have_count(3)
    readable(notebook)
    area.get_by_role("button", name="Run", exact=True).click()
    notebook.page.wait_for_function("() => document.querySelector('.gpulab-progress-text').textContent === 'Run: done'", timeout=WAIT)
    at(notebook, "2 of 2", 10)
    area.get_by_text("Show the code").click()
    shown(notebook, "s = gl.kernels.simulate(vector_add_unguarded, 4, 32, x, y, out, trace=3)")
    area.locator(".gpulab-status summary").click()
    shown(notebook, "warps of 32 lanes in lockstep")
    assert state(notebook, "m.step, m.line, m.block_number, m.result.totals.races") == "2 10 3 0"
    clean(notebook)


def test_python_moves_what_the_browser_shows(notebook_of: Callable[..., NotebookPage]) -> None:
    """Setting the step, the warp and the block in the kernel shows what the mouse would; each example is readable at its last step."""
    notebook = notebook_of([EXAMPLES])
    notebook.run_in_kernel("m.set(kernel='odd_and_even', step=4)")
    at(notebook, "4 of 4", 13)
    assert lit(notebook) == list(range(1, 32, 2))
    notebook.run_in_kernel("m.step = 3")
    at(notebook, "3 of 4", 11)
    assert lit(notebook) == list(range(0, 32, 2))
    for name in state(notebook, "*m.example_names()").split():
        notebook.run_in_kernel(f"m.set(kernel='{name}'); m.step = m.steps")
        at(notebook, *(state(notebook, "f'{m.step} of {m.steps}'"), int(state(notebook, "m.line"))))
        readable(notebook)
    clean(notebook)


def test_play_walks_to_the_end_and_pauses(notebook_of: Callable[..., NotebookPage]) -> None:
    """Play takes one step after the other; Pause stops it; at the end it stops by itself, and begins again from there."""
    notebook = notebook_of([EXAMPLES])
    page, area = notebook.page, notebook.output(0)
    notebook.run_in_kernel("m.set(kernel='block_sum', step=40)")
    at(notebook, "40 of 43", 18)
    live = area.locator(".gpulab-scope").locator('[role="status"], output:not([aria-live="off"])')
    assert live.evaluate_all("all => all.map(e => e.className)") == ["gpulab-words"]  # one voice: the count beside it is silent
    area.get_by_role("button", name="Play").click()
    at(notebook, "43 of 43", 20)
    area.get_by_role("button", name="Play").wait_for(timeout=WAIT)  # it has stopped
    assert lit(notebook) == [0]
    area.get_by_role("button", name="Play").click()
    place = "Number(document.querySelector('.gpulab-transport input').value)"
    page.wait_for_function(f"() => 2 <= {place} && {place} < 43", timeout=WAIT)
    area.get_by_role("button", name="Pause").click()
    area.get_by_role("button", name="Play").wait_for(timeout=WAIT)
    assert 2 <= int(state(notebook, "m.step")) < 43
    clean(notebook)


def test_a_dragged_slider_ends_where_it_was_left(notebook_of: Callable[..., NotebookPage]) -> None:
    """Moves faster than the kernel are not queued: the last one is shown."""
    notebook = notebook_of([EXAMPLES])
    notebook.run_in_kernel("m.set(kernel='block_sum')")
    at(notebook, "1 of 43", 9)
    notebook.page.evaluate(
        """() => { const slider = document.querySelector('.gpulab-transport input');
                   for (let k = 2; k <= 33; k++) { slider.value = k; slider.dispatchEvent(new Event('input')); } }"""
    )
    at(notebook, "33 of 43", 16)
    assert state(notebook, "m.step") == "33"
    clean(notebook)


def test_the_keyboard_alone(notebook_of: Callable[..., NotebookPage]) -> None:
    """Tab reaches the buttons, the slider, the lines and the code in reading order; arrows, Home, End, Space and Enter work."""
    notebook = notebook_of([EXAMPLES])
    page, area = notebook.page, notebook.output(0)
    at(notebook, "1 of 3", 9)
    area.get_by_label("Kernel", exact=True).focus()
    order = []
    for _ in range(16):
        page.keyboard.press("Tab")
        order.append(page.evaluate("() => document.activeElement.textContent.trim() || document.activeElement.type"))
        if order[-1] == "Show the code":
            break
    assert [word for word in order if word in ("Run", "Previous", "Next", "Play", "range", "9", "10", "11")] == [
        "Run", "Previous", "Next", "Play", "range", "9", "10", "11"
    ]  # fmt: skip
    assert order[-1] == "Show the code"
    page.keyboard.press("Enter")
    shown(notebook, "gl.kernels.simulate(vector_add, 4, 32, x, y, out, trace=0)")
    slider = area.get_by_role("slider", name="Step")
    slider.focus()
    page.keyboard.press("End")
    at(notebook, "3 of 3", 11)
    page.keyboard.press("ArrowLeft")
    at(notebook, "2 of 3", 10)
    expect(slider).to_have_attribute("aria-valuetext", "step 2 of 3")
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Space")
    at(notebook, "3 of 3", 11)
    expect(page.locator(":focus")).to_have_text("Next")
    area.get_by_role("button", name="Line 9:").focus()
    page.keyboard.press("Enter")
    at(notebook, "1 of 3", 9)
    expect(page.locator(":focus")).to_have_text("9")
    expect(area.locator("svg[role=img]").first).to_have_attribute("aria-label", "Warp 0 at line 9: all 32 lanes active.")
    clean(notebook)


def test_an_edited_cell_is_read_again(notebook_of: Callable[..., NotebookPage]) -> None:
    """The kernel's cell is edited and run; Run shows its new counts at the same step, and the learner's array is untouched."""
    notebook = notebook_of([KERNEL, SHOW])
    area = notebook.output(1)
    area.get_by_role("slider", name="Step").fill("2")
    shown(notebook, "32 lanes, 16 sectors, where 4 would do", 1)
    notebook.page.evaluate(
        """() => { const cells = window.jupyterapp.shell.currentWidget.content.model.cells;
                   const source = cells.get(0).sharedModel; source.setSource(source.getSource().replace('4 * i', 'i')); }"""
    )
    notebook.page.evaluate(
        """() => { const notebook = window.jupyterapp.shell.currentWidget.content; notebook.activeCellIndex = 0;
                   return window.jupyterapp.commands.execute('notebook:run-cell'); }"""
    )
    notebook.wait_idle()
    area.get_by_role("button", name="Run", exact=True).click()
    shown(notebook, "32 lanes, 4 sectors: ideal", 1)
    at(notebook, "2 of 2", 7)
    assert state(notebook, "x.sum(), m.outputs['x'].sum()") == "0.0 32.0"
    clean(notebook)


def test_stop_and_errors(notebook_of: Callable[..., NotebookPage]) -> None:
    """An endless kernel leaves the notebook's kernel usable and is stopped; what cannot run is told in one sentence with its line."""
    endless = KERNEL.replace("x[4 * i] = 1", "while True:\n        x[0] += 1")
    notebook = notebook_of([endless, SHOW])
    page, area = notebook.page, notebook.output(1)
    page.wait_for_function("() => document.querySelector('.gpulab-progress-text').textContent.includes('simulating for')", timeout=WAIT)
    assert state(notebook, "6 * 7") == "42"
    area.get_by_role("button", name="Stop").click()
    page.wait_for_function("() => document.querySelector('.gpulab-progress-text').textContent.includes('stopped')", timeout=WAIT)
    shown(notebook, "Nothing to show: choose another kernel, or press Run.", 1)
    expect(area.get_by_role("alert")).to_be_hidden()
    notebook.run_in_kernel("def k(x):\n    import os")
    notebook.run_in_kernel("m.load(k)")
    area.get_by_role("alert").wait_for(timeout=WAIT)
    expect(area.get_by_role("alert")).to_contain_text("k, line 2 `import os`")
    assert notebook.axe() == []
    area.get_by_label("Kernel", exact=True).select_option("vector add, with its guard")
    at(notebook, "1 of 3", 9)
    expect(area.get_by_role("alert")).to_be_hidden()
    clean(notebook)
