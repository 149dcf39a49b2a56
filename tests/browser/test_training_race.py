"""TrainingRace in JupyterLab: every control after all cells ran, a real race, Stop, the keyboard, both themes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from instrument_page import WAIT, clean, one_run, press, readable, shown, state
from lab_driver import NotebookPage

pytestmark = pytest.mark.browser
RACE = """
import gpulab as gl
t = gl.widgets.TrainingRace(task="digits-mlp", steps=20)
t
"""


def test_every_control_and_a_real_race(notebook_of: Callable[..., NotebookPage]) -> None:
    """Both train, the verdict and the table come with the badge; a control that moves makes the result stale."""
    notebook = notebook_of([RACE])
    area = notebook.output(0)
    shown(notebook, "Press Race")
    readable(notebook)
    area.get_by_label("Seed").fill("2")
    area.get_by_label("Seed").press("Enter")
    area.get_by_label("First: with").select_option("a thread that prefetches")
    area.get_by_label("Second: precision").select_option("float32")
    area.get_by_label("Second: batch").select_option("32")
    area.get_by_label("Second: with").select_option("a learning rate of 1")
    press(notebook, "Race")
    shown(notebook, "MEASURED")
    shown(notebook, "the speed of")
    assert state(notebook, "t.result.first.steps, t.result.second.options.batch_size, t.error == ''") == "20 32 True"
    area.get_by_label("Recorded machine").select_option("amd-epyc-2-cores")
    shown(notebook, "This pair on amd-epyc-2-cores: not recorded yet.")  # a learning rate of 1 is no experiment of the recorder's
    area.get_by_text("Show the code").click()
    shown(notebook, '"learning_rate": 1.0')
    readable(notebook)
    area.get_by_label("Steps each").fill("0")
    shown(notebook, "The controls have moved")
    area.get_by_label("First: precision").select_option("bfloat16")
    area.get_by_label("First: batch").select_option("128")
    area.get_by_label("Task").select_option("hard digits, convolutional")
    press(notebook, "Race")
    shown(notebook, "finished after 10 steps")
    assert state(notebook, "t.result.task, t.result.first.steps, t.result.first.options.batch_size") == "digits-hard-cnn 10 128"
    clean(notebook)


def test_stop_and_the_keyboard(notebook_of: Callable[..., NotebookPage]) -> None:
    """By keyboard alone: a refused seed is told, the race starts, its curves grow, Stop keeps what was reached."""
    notebook = notebook_of([RACE.replace("steps=20", "steps=320").replace("digits-mlp", "prose-transformer")])
    page, area = notebook.page, notebook.output(0)
    area.get_by_label("Seed").focus()
    page.keyboard.press("Control+A")
    page.keyboard.type("-4")
    page.keyboard.press("Enter")
    shown(notebook, "expected a whole number from 0 to 1000000")
    page.keyboard.press("Control+A")
    page.keyboard.type("1")
    page.keyboard.press("Enter")
    area.get_by_role("alert").wait_for(state="hidden", timeout=WAIT)
    for _ in range(15):
        if page.evaluate("() => document.activeElement.textContent") == "Race":
            break
        page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    shown(notebook, "The race is under way")
    assert state(notebook, "6 * 7") == "42"
    for _ in range(4):
        if page.evaluate("() => document.activeElement.textContent") == "Stop":
            break
        page.keyboard.press("Tab")
    with one_run(notebook, "Race", "stopped"):
        page.keyboard.press("Enter")
    assert state(notebook, "t.running, t.result.ended, 0 < t.result.first.steps < 320") == "False stopped True"
    clean(notebook)
