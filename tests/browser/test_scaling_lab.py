"""ScalingLab in JupyterLab: each control by mouse or keyboard, a run, the code shown, both themes; no ranks are started."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from instrument_page import WAIT, clean, press, readable, shown, state
from lab_driver import NotebookPage

pytestmark = pytest.mark.browser

# The ranks are none, and their steps are those of the ring model: 100 ms on one rank, 4 MB over 1 GB/s.
LAB = """
import dataclasses, time
import numpy as np
import gpulab as gl
from gpulab.evidence import Evidence, Note
from gpulab.errors import StoppedError
from gpulab.parallel import ScalingMeasurement, ScalingResult
from gpulab.widgets._ranks import LIVE

SLOW = False

class NoRanks:
    n, ready = 2, True
    def interrupt(self): pass
    def stop(self): pass

def of(n, user, progress):
    LIVE._ranks = NoRanks()
    LIVE._ranks.n = n
    return LIVE._ranks

def scaling(ranks, model, mode, wait_seconds=None, progress=None, stop=None):
    progress(0.1, "0 steps of each")
    while SLOW and not stop():
        time.sleep(0.02)
    if stop():
        raise StoppedError("scaling: stopped before any step was timed; there is nothing to report. Run it again.")
    counts = tuple(range(1, ranks.n + 1))
    plain = gl.models.scaling(0.1, 4e6, 1e-4, 1e9, counts, mode=mode)
    hidden = gl.models.scaling(0.1, 4e6, 1e-4, 1e9, counts, mode=mode, overlap=1.0)
    points = tuple(
        ScalingMeasurement(p.ranks, 240, np.array([p.seconds]), p.seconds, (0.98 * p.seconds, 1.02 * p.seconds), p.speedup,
                           (0.95 * p.speedup, 1.05 * p.speedup), p.seconds, q.seconds)
        for p, q in zip(plain.points, hidden.points)
    )
    where = dataclasses.replace(gl.devices.environment("cpu"), device="Slow CPU")
    stage = "computed" if wait_seconds is None else "a timed wait"
    note = Note("contended", "3 ranks share 2 processors, so beyond 2 they compute in turns and cannot gain.")
    return ScalingResult("a perceptron, 2 x 512 hidden", mode, stage, 4_000_000, 2, 1, points, 1e-4, 1e9, plain, hidden, (note,),
                         Evidence.measured("Slow CPU", 40), where)

LIVE.of, gl.parallel.scaling = of, scaling
lab = gl.widgets.ScalingLab()
lab
"""


def test_each_control_moves_its_curve(notebook_of: Callable[..., NotebookPage]) -> None:
    """What is turned on the screen is in the kernel's curves, the table and the code; a run adds points; all is readable."""
    notebook = notebook_of([LAB])
    area = notebook.output(0)
    shown(notebook, "Press Measure on ranks for points of this machine.")
    shown(notebook, "not recorded yet")
    area.get_by_label("Serial share").fill("7")
    assert state(notebook, "lab.values['serial_share']") == "0.1"
    area.get_by_label("Up to ranks").fill("4")
    shown(notebook, "With communication 1,024 ranks")
    area.get_by_label("Gradients").fill("3")
    area.get_by_label("Step on one rank").fill("5")
    area.get_by_label("Latency of a message").fill("5")
    area.get_by_label("Bandwidth of a link").fill("9")
    area.get_by_label("Overlap").focus()
    notebook.page.keyboard.press("ArrowRight")
    assert state(notebook, "[lab.values[k] for k in ('top', 'step_seconds', 'parameter_bytes')]") == "[1024, 0.05, 67108864]"
    area.get_by_label("weak: each rank's batch stays").check()
    area.get_by_label("efficiency", exact=True).check()
    area.get_by_label("Gustafson").uncheck()
    area.get_by_label("Measured model").select_option("a transformer of width 128")
    area.get_by_label("as a timed wait").check()
    area.get_by_label("Ranks to start").fill("2")
    press(notebook, "Measure on ranks")
    shown(notebook, "their compute was a timed wait")
    shown(notebook, "3 ranks share 2 processors")
    assert state(notebook, "[p.ranks for p in lab.result.points], lab.result.mode") == "[1, 2, 3] weak"
    assert state(notebook, "lab.values['latency_seconds'], lab.values['overlap']") == "2e-05 0.25"
    area.get_by_label("as measured here").check()
    area.get_by_label("Gradients").wait_for(state="hidden", timeout=WAIT)
    area.get_by_text("Show the code").click()
    shown(notebook, 's = gl.parallel.scaling(3, "transformer", mode="weak", wait_seconds=0.02)')
    readable(notebook)
    area.get_by_label("time of a step").check()
    readable(notebook)
    clean(notebook)


def test_a_stop_leaves_it_usable(notebook_of: Callable[..., NotebookPage]) -> None:
    """A run that is stopped says so, and the next one works."""
    notebook = notebook_of([LAB])
    area = notebook.output(0)
    notebook.run_in_kernel("SLOW = True")
    area.get_by_role("button", name="Measure on ranks").click()
    area.get_by_role("button", name="Stop").click()
    shown(notebook, "stopped before any step was timed")
    notebook.run_in_kernel("SLOW = False")
    press(notebook, "Measure on ranks")
    shown(notebook, "Measured: 2 ranks train on")
    clean(notebook)
