"""RankTimeline in JupyterLab: each control by mouse or keyboard, what is drawn, Stop, both themes; no ranks are started."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from instrument_page import WAIT, clean, one_run, press, readable, shown, state
from lab_driver import NotebookPage
from playwright.sync_api import expect

pytestmark = pytest.mark.browser

# The ranks are none. Of each step of 100 ms: 60 of the backward pass, an all-reduce of 30 of which 20 lie beside it, 20 of waiting. A run
# that is stopped has one step in place of two.
TIMELINE = """
import dataclasses, time
import numpy as np
import gpulab as gl
from gpulab.evidence import Evidence, Note
from gpulab.parallel import RankReport, RankSpan, StrategyResult
from gpulab.widgets._ranks import LIVE

SLOW = False

class NoRanks:
    n, ready, interrupts = 2, True, 0
    def interrupt(self): NoRanks.interrupts += 1
    def stop(self): pass

def of(n, user, progress):
    LIVE._ranks = NoRanks()
    LIVE._ranks.n = n
    return LIVE._ranks

def train(ranks, strategy, *, model=None, progress, stop, **given):
    global asked
    asked = strategy, None if model is None else (len(model.blocks), model.head.in_features), given
    progress(0.4, f"{ranks.n} ranks train by {strategy}")
    while SLOW and not stop():
        time.sleep(0.02)
    begins = (0.0,) if SLOW else (0.0, 0.1)
    spans = tuple(
        RankSpan(rank, kind, name, round(begin + low, 3), round(begin + high, 3), size)
        for rank in range(ranks.n) for begin in begins
        for kind, name, low, high, size in (
            ("compute", "backward", 0.0, 0.06, 0), ("idle", "all_reduce", 0.06, 0.08, 0),
            ("communication", "all_reduce", 0.04, 0.07, 2**20),
        )
    )
    here = Evidence.measured("Slow CPU")
    notes = (Note("stopped", "4 of 6 steps were taken before the stop. Run it again for all of them."),) if SLOW else ()
    lanes = gl.parallel.RankTimeline(f"{strategy} on {ranks.n} ranks", ranks.n, spans, begins, 0.1 * len(begins), (), here)
    sent = {"all_reduce": 2**20}
    reports = tuple(RankReport(k, 3 * 2**20, {}, {}, {"all_reduce": 1}, sent, 2**20, None) for k in range(ranks.n))
    losses = np.array([3.0, 2.0, 1.0])
    where = dataclasses.replace(gl.devices.environment("cpu"), device="Slow CPU", cores=2)
    return StrategyResult(strategy, ranks.n, "a transformer", 1000, "float32", "adam", 16, losses, losses, 0.0, 1e-2, losses / 10, reports,
                          lanes, notes, here, where)

LIVE.of, gl.parallel.train = of, train
t = gl.widgets.RankTimeline()
t
"""


def bars(notebook: NotebookPage) -> dict[str, list[tuple[float, float]]]:
    """The bars on the screen by the name of their kind, rank by rank: milliseconds at which each begins and ends, as the axis has them."""
    expect(notebook.output(0).locator(".gpulab-picture .main-svg").first).to_be_visible()
    found: dict[str, list[tuple[float, float]]] = notebook.page.evaluate(
        """() => {
            const plot = document.querySelector('.gpulab-picture .js-plotly-plot'), {_size, xaxis} = plot._fullLayout;
            const left = plot.querySelector('.main-svg').getBoundingClientRect().left + _size.l;
            const time = x => Math.round(1000 * xaxis.range[1] * (x - left) / _size.w);
            const ends = path => { const box = path.getBoundingClientRect(); return [box.top, time(box.left), time(box.right)]; };
            const name = k => new DOMParser().parseFromString(plot.data[k].name, 'text/html').body.textContent;
            return Object.fromEntries([...plot.querySelectorAll('.barlayer .trace')].map((trace, k) => [name(k),
                [...trace.querySelectorAll('.point path')].map(ends).sort((a, b) => a[0] - b[0] || a[1] - b[1]).map(b => b.slice(1))]));
        }"""
    )
    return {kind: [(begin, end) for begin, end in ends] for kind, ends in found.items()}


def close_to(drawn: list[tuple[float, float]], times: list[tuple[float, float]]) -> bool:
    """Whether bars begin and end at these milliseconds, to a pixel or two."""
    return len(drawn) == len(times) and all(
        abs(a - b) <= 1 for bar, ends in zip(drawn, times, strict=True) for a, b in zip(bar, ends, strict=True)
    )


def test_every_control_and_what_is_drawn(notebook_of: Callable[..., NotebookPage]) -> None:
    """What is turned on the screen is what the ranks are asked; the bars lie where the spans of the run do, and all is readable."""
    notebook = notebook_of([TIMELINE])
    area = notebook.output(0)
    shown(notebook, "Press Run on ranks")
    area.get_by_text("Show the code").click()
    press(notebook, "Run on ranks")
    shown(notebook, "The ranks compute 60% of the time, messages move 30%, 67% of that beside compute, and they wait 20%.")
    drawn = bars(notebook)
    assert set(drawn) == {f"{kind} (measured)" for kind in ("backward", "communication", "waits")}
    assert close_to(drawn["backward (measured)"], 2 * [(0, 60), (100, 160)])
    assert close_to(drawn["communication (measured)"], 2 * [(40, 70), (140, 170)])
    assert close_to(drawn["waits (measured)"], 2 * [(60, 80), (160, 180)])
    area.get_by_label("Steps drawn").fill("0")
    shown(notebook, "gl.figures.rank_timeline(r.timeline, steps=1)")
    assert close_to(bars(notebook)["backward (measured)"], 2 * [(0, 60)])
    area.get_by_label("Gradients sent together").fill("0")
    shown(notebook, "bucket_bytes=16384")
    shown(notebook, "The controls have moved since this was made")
    area.get_by_label("Strategy").select_option("pipeline-1f1b: pipeline, 1F1B")
    area.get_by_label("Gradients sent together").wait_for(state="hidden", timeout=WAIT)
    area.get_by_label("Microbatches").fill("3")
    area.get_by_label("Ranks", exact=True).fill("2")
    area.get_by_label("Layers").fill("1")
    area.get_by_label("Width").fill("0")
    area.get_by_label("Batch", exact=True).fill("3")
    shown(notebook, 'r = gl.parallel.train(4, "pipeline-1f1b", model=model, steps=6, batch_size=32, microbatches=8)')
    press(notebook, "Run on ranks")
    shown(notebook, "pipeline-1f1b on 4 ranks computes what one process computes")
    shown(notebook, "4 ranks share 2 cores and take turns on them")
    assert state(notebook, "asked") == "('pipeline-1f1b', (4, 32), {'steps': 6, 'batch_size': 32, 'microbatches': 8})"
    assert close_to(bars(notebook)["backward (measured)"], 4 * [(0, 60)])
    readable(notebook)
    clean(notebook)


def test_stop_keeps_what_was_reached_and_the_keyboard_drives(notebook_of: Callable[..., NotebookPage]) -> None:
    """By keyboard alone: another strategy, a run, Stop; the ranks end it in order, and its one step is drawn with a note."""
    notebook = notebook_of([TIMELINE])
    page, area = notebook.page, notebook.output(0)
    notebook.run_in_kernel("SLOW = True")
    area.get_by_label("Strategy").focus()
    page.keyboard.press("ArrowDown")
    for _ in range(12):
        if page.evaluate("() => document.activeElement.textContent") == "Run on ranks":
            break
        page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    shown(notebook, "2 ranks train by ddp-no-overlap")
    assert state(notebook, "6 * 7") == "42"
    for _ in range(4):
        if page.evaluate("() => document.activeElement.textContent") == "Stop":
            break
        page.keyboard.press("Tab")
    with one_run(notebook, "Run on ranks", "stopped"):
        page.keyboard.press("Enter")
    shown(notebook, "4 of 6 steps were taken before the stop.")
    assert close_to(bars(notebook)["backward (measured)"], 2 * [(0, 60)])
    assert state(notebook, "t.running, NoRanks.interrupts, LIVE.running") == "False 0 False"
    clean(notebook)
