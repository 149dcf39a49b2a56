"""ModelDiet in JupyterLab: each control by mouse or keyboard, points that stay, a recipe that cannot be cooked, Stop, both themes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from instrument_page import WAIT, clean, press, readable, shown, state
from lab_driver import NotebookPage

pytestmark = pytest.mark.browser

# Nothing is trained: a recipe halves the file and the time for each thing that it does, and costs two digits in a hundred.
DIET = """
import dataclasses, time
import gpulab as gl
from gpulab.compression import WeighedModel, Weighing
from gpulab.errors import StoppedError
from gpulab.evidence import Evidence
from gpulab.training import Accuracy

LIVE = Evidence.measured("Slow CPU", 30)
SLOW = False

def model(label, steps):
    right = 490 - 10 * steps
    accuracy = Accuracy(right, 500, right / 500, (right / 500 - 0.02, right / 500 + 0.01), 0.1, "digits", LIVE)
    speedup = 1.5**steps if steps else None
    interval = (0.9 * speedup, 1.1 * speedup) if steps else None
    seconds = (1e-3, (9e-4, 1.1e-3), 1e-4, None)
    return WeighedModel(label, 64_000 // 2**steps, 17_000, 0, (), 1e6, 14, 1000, *seconds, speedup, interval, (accuracy,), (), LIVE)

def diet(task, recipes, seeds, device, batch_size, deadline, progress, stop):
    progress(0.1, "counting")
    while SLOW and not stop():
        time.sleep(0.02)
    if stop():
        raise StoppedError("diet: stopped; there is nothing to weigh. Run it again.")
    kept = (sum(not part.startswith("fine-tuned") for part in r.label.split(", ")) for r in recipes)
    rows = (model("as trained", 0), *(model(r.label, steps) for r, steps in zip(recipes, kept)))
    where = dataclasses.replace(gl.devices.environment("cpu"), device="Slow CPU")
    return Weighing(task, "Slow CPU", batch_size, rows, (), LIVE, where)

gl.compression.diet = diet
d = gl.widgets.ModelDiet()
d
"""


def test_each_control_makes_a_recipe_and_each_run_a_point(notebook_of: Callable[..., NotebookPage]) -> None:
    """What is turned on the screen is in the code and in the kernel's recipe; two runs are two points beside the first."""
    notebook = notebook_of([DIET])
    area = notebook.output(0)
    shown(notebook, "The recipe changes nothing yet")
    area.get_by_label("Weights set to zero").fill("3")
    press(notebook, "Run")
    shown(notebook, "90% zeros: 2.00x smaller on disk, 1.50x as fast.")
    area.get_by_label("Channels removed").fill("2")
    area.get_by_label("Weights stored as").select_option("4 bits")
    area.get_by_label("layer", exact=True).check()
    area.get_by_label("Inputs of layers").select_option("8 bits, calibrated")
    area.get_by_label("Fine-tuning").fill("3")
    area.get_by_label("Network").select_option("depthwise (MobileNet)")
    area.get_by_label("Seeds").fill("1")
    area.get_by_label("Seeds").fill("0")
    press(notebook, "Run")
    shown(notebook, "static inputs, fine-tuned for 1x the epochs: 32.0x smaller on disk")
    assert state(notebook, "len(d.result.models)") == "3"
    said = "<recipe: mobilenet, 50% of channels gone, 90% zeros, 4 bits a tensor, static inputs, fine-tuned for 1x the epochs>"
    assert state(notebook, "d.recipe()") == said
    area.get_by_label("Task").select_option("prose-transformer")
    area.get_by_label("Network").wait_for(state="hidden", timeout=WAIT)
    shown(notebook, "Press Run to train the network")
    area.get_by_label("Task").select_option("digits-cnn")
    area.get_by_label("Items at once").fill("3")
    shown(notebook, "Press Run to train the network")
    area.get_by_label("Items at once").fill("2")
    shown(notebook, "as trained")
    area.get_by_text("Show the code").click()
    shown(notebook, 'network="mobilenet"')
    readable(notebook)
    press(notebook, "Clear the points")
    shown(notebook, "Press Run to train the network")
    clean(notebook)


def test_a_recipe_that_cannot_be_cooked_and_a_stop(notebook_of: Callable[..., NotebookPage]) -> None:
    """CSR with few bits is refused inside the instrument, which goes on; a run is stopped and leaves it usable."""
    notebook = notebook_of([DIET])
    area = notebook.output(0)
    area.get_by_label("Weights stored as").select_option("8 bits")
    area.get_by_label("Computed").select_option("zeros skipped (CSR)")
    shown(notebook, "expected float32 weights for CSR")
    area.get_by_role("button", name="Run").click()
    area.get_by_role("alert").get_by_text("expected float32 weights for CSR").wait_for(timeout=WAIT)
    area.get_by_label("Computed").select_option("as usual")
    notebook.run_in_kernel("SLOW = True")
    area.get_by_role("button", name="Run").click()
    area.get_by_role("button", name="Stop").click()
    shown(notebook, "there is nothing to weigh")
    notebook.run_in_kernel("SLOW = False")
    press(notebook, "Run")
    shown(notebook, "8 bits: 2.00x smaller on disk, 1.50x as fast.")
    readable(notebook)
    clean(notebook)
