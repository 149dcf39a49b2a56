"""NumberFormats and LossScaling in JupyterLab: every control, by mouse and keyboard, in both themes at 900 pixels."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from lab_driver import NotebookPage

pytestmark = pytest.mark.browser

WAIT = 60_000
FORMATS = """
import gpulab as gl

n = gl.widgets.NumberFormats()
n
"""
SCALING = """
import numpy as np
import gpulab as gl
from gpulab.evidence import Evidence
from gpulab.precision import Gradients, Magnitudes

values = 2.0 ** np.arange(-30, 3)
kinds = (Magnitudes.of("parameters", [values]), Magnitudes.of("activations", [values / 1024]))
s = gl.widgets.LossScaling().load(Gradients("an example", kinds, Evidence.measured("a device", 1)))
s
"""


def shown(notebook: NotebookPage, text: str) -> None:
    """Wait until the instrument shows a text."""
    notebook.output(0).get_by_text(text).first.wait_for(timeout=WAIT)


def clean(notebook: NotebookPage) -> None:
    """Readable in both themes at 900 pixels, nothing went wrong, nothing left the machine."""
    notebook.page.set_viewport_size({"width": 900, "height": 1000})
    for theme in ("dark", "light"):
        notebook.set_theme(theme)
        assert notebook.axe() == []
    assert notebook.errors == []
    assert notebook.kernel_errors() == []
    assert notebook.broken_outputs() == []
    assert notebook.outside == []


def test_number_formats_every_control(notebook_of: Callable[..., NotebookPage]) -> None:
    """A typed number, a step, a flipped bit and both formats move the sentence, the bits and the picture."""
    notebook = notebook_of([FORMATS])
    area = notebook.output(0)
    shown(notebook, "float16: 0.09997558594, off by 0.00024 of it.")
    area.get_by_label("Number", exact=True).fill("2049")
    area.get_by_label("Number", exact=True).press("Enter")
    shown(notebook, "float16: 2048, off by 0.00049 of it.")
    area.get_by_label("Steps away").fill("17")  # the place in the list: from -16 on, so one step up
    shown(notebook, "float16: 2050, exactly.")
    area.get_by_label("m10", exact=True).uncheck()
    shown(notebook, "float16: 2048, exactly.")
    area.get_by_label("s", exact=True).check()
    shown(notebook, "float16: -2048, exactly.")
    area.get_by_label("Beside it").select_option(index=0)
    area.get_by_text("bfloat16: -2048").first.wait_for(state="detached", timeout=WAIT)
    area.get_by_label("Format", exact=True).select_option(label="int8: whole numbers")
    shown(notebook, "int8: -128, off by 0.94 of it.")
    area.get_by_label("Number", exact=True).fill("")
    area.get_by_label("Number", exact=True).press("Enter")
    shown(notebook, "no number was typed")
    area.get_by_label("Number", exact=True).fill("5")
    area.get_by_label("Number", exact=True).press("Enter")
    shown(notebook, "int8: 5, exactly.")
    area.get_by_text("Show the code").click()
    shown(notebook, 'n = gl.precision.number(5.0, "int8")')
    clean(notebook)


def test_loss_scaling_every_control(notebook_of: Callable[..., NotebookPage]) -> None:
    """By hand, for 2**-30 to 4: six of 33 vanish at scale 1; the slider, the format and the kind move what is lost."""
    notebook = notebook_of([SCALING])
    area = notebook.output(0)
    area.get_by_label("Gradients of").select_option("parameters")
    shown(notebook, "18.18% become zero")
    slider = area.get_by_label("Scale of the loss")
    slider.focus()
    for _ in range(14):
        slider.press("ArrowRight")
    shown(notebook, "3.03% become infinite")
    area.get_by_label("Format", exact=True).select_option("bfloat16")
    shown(notebook, "every gradient keeps all digits")
    area.get_by_label("Format", exact=True).select_option("float8_e4m3fn")
    shown(notebook, "become nan")
    area.get_by_label("Gradients of").select_option("activations")
    area.get_by_label("Model").select_option("digits-mlp")
    shown(notebook, "Press Compute gradients")
    area.get_by_label("Training steps before").select_option("0")
    area.get_by_role("button", name="Compute gradients").click()
    shown(notebook, "activations gradients of SmallMLP")
    area.get_by_text("Show the code").click()
    shown(notebook, "g = gl.precision.gradients(model, x")
    clean(notebook)
