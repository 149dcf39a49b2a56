"""The instruments of ranks in JupyterLab: every control after all cells ran, real ranks, Stop, the keyboard, both themes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from instrument_page import WAIT, clean, progress_told, readable, shown, state
from lab_driver import NotebookPage

pytestmark = pytest.mark.browser
# Of the steps; the first one is not told where the ranks were set up within the tenth of a second between two messages.
UNDER_WAY = " of 3"
SCHEDULE = """
import gpulab as gl

p = gl.widgets.PipelineSchedule()
p
"""


def on_ranks(notebook: NotebookPage, action: str, under_way: str) -> None:
    """Press the button; processes that load torch take their time to come up, on a busy machine more than anything else here."""
    with progress_told(notebook) as texts:
        notebook.output(0).get_by_role("button", name=action, exact=True).click()
        told(notebook, f"{action}: done")
    assert [text for text in texts if under_way in text], texts


def told(notebook: NotebookPage, text: str) -> None:
    """Wait until the progress line has a text."""
    line = "text => document.querySelector('.gpulab-progress-text').textContent.includes(text)"
    notebook.page.wait_for_function(line, arg=text, timeout=4 * WAIT)


def test_every_control_of_a_schedule_and_a_run_on_two_ranks(notebook_of: Callable[..., NotebookPage]) -> None:
    """The timetable follows each control at once; two real ranks stand under it, and go away when a control moves."""
    notebook = notebook_of([SCHEDULE])
    area = notebook.output(0)
    shown(notebook, "The stages wait 27.3% of the time")  # 3 / 11
    readable(notebook)
    area.get_by_label("Schedule", exact=True).select_option(label="interleaved 1F1B: several parts a stage")
    shown(notebook, "The stages wait 15.8% of the time")  # 3 / (2 * 8 + 3)
    area.get_by_label("Parts of the model a stage").fill("2")
    shown(notebook, "The stages wait 8.6% of the time")  # 3 / (4 * 8 + 3)
    readable(notebook)
    area.get_by_label("Microbatches", exact=True).fill("4")
    shown(notebook, "Pass microbatches=8")
    area.get_by_label("Schedule", exact=True).select_option(label="1F1B: a backward after each forward")
    area.get_by_label("Stages", exact=True).fill("0")
    shown(notebook, "The stages wait 14.3% of the time")  # 1 / 7
    area.get_by_label("Forward pass").fill("10")
    area.get_by_label("Forward pass").press("Enter")
    area.get_by_label("Backward pass").fill("20")
    area.get_by_label("Backward pass").press("Enter")
    area.get_by_label("A message takes").fill("5")
    area.get_by_label("A message takes").press("Enter")
    shown(notebook, "says 14.3%, without messages")
    area.get_by_text("Show the code").click()
    shown(notebook, "forward=10, backward=20, transfer=5")
    on_ranks(notebook, "Measure on ranks", UNDER_WAY)
    assert state(notebook, "p.error == '', p.result.held") == "True (2, 1)"
    shown(notebook, "Measured, the stages wait")
    shown(notebook, "with gl.parallel.cluster(2) as ranks:")
    readable(notebook)
    area.get_by_label("Microbatches", exact=True).fill("5")
    shown(notebook, "had other settings")
    assert state(notebook, "p.close()") == "None"
    clean(notebook)


def test_stop_ends_the_ranks_and_the_keyboard_drives(notebook_of: Callable[..., NotebookPage]) -> None:
    """By keyboard alone: a refused number is told, a long run starts and stops, and no process of it is left."""
    notebook = notebook_of([SCHEDULE.replace("PipelineSchedule()", "PipelineSchedule(stages=2, microbatches=4)")])
    page, area = notebook.page, notebook.output(0)
    area.get_by_label("Forward pass").focus()
    page.keyboard.press("Control+A")
    page.keyboard.type("-4")
    page.keyboard.press("Enter")
    shown(notebook, "expected a number from 1 to 1000")
    page.keyboard.press("Control+A")
    page.keyboard.type("700")
    page.keyboard.press("Enter")
    area.get_by_role("alert").wait_for(state="hidden", timeout=WAIT)
    for _ in range(12):
        if page.evaluate("() => document.activeElement.textContent") == "Measure on ranks":
            break
        page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    told(notebook, UNDER_WAY)
    assert state(notebook, "6 * 7") == "42"
    for _ in range(4):
        if page.evaluate("() => document.activeElement.textContent") == "Stop":
            break
        page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    told(notebook, "stopped")
    notebook.run_in_kernel("from gpulab.widgets._ranks import LIVE")
    assert state(notebook, "p.running, LIVE.running") == "False False"
    assert state(notebook, "__import__('psutil').Process().children(recursive=True)") == "[]"
    clean(notebook)
