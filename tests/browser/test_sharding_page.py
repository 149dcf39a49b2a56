"""ShardingExplorer in JupyterLab: each control by mouse or keyboard, the bars beside the GPU's line, predictions, Stop, both themes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from instrument_page import WAIT, clean, one_run, press, readable, shown, state
from lab_driver import NotebookPage
from playwright.sync_api import expect

pytestmark = pytest.mark.browser
SHARDING = "import gpulab as gl\n\ns = gl.widgets.ShardingExplorer()\ns"
# Parameters of the 7B shape by hand: 32 layers of 12 x 4096^2 and 13 x 4096, two tables of 50,257 x 4096, 2048 positions, a norm.
SEVEN = 32 * (12 * 4096**2 + 13 * 4096) + 2 * 50_257 * 4096 + 2048 * 4096 + 2 * 4096
GIB = 2**30


def ends(notebook: NotebookPage) -> tuple[dict[str, float], float]:
    """The picture as it is on the screen: where each strategy's bar ends, and where the GPU's line stands, in GiB as the axis has them."""
    expect(notebook.output(0).locator(".gpulab-picture .main-svg").first).to_be_visible()
    bars, line = notebook.page.evaluate(
        """() => {
            const plot = document.querySelector('.gpulab-picture .js-plotly-plot'), {_size, xaxis} = plot._fullLayout;
            const left = plot.querySelector('.main-svg').getBoundingClientRect().left + _size.l;
            const bytes = x => xaxis.range[0] + (xaxis.range[1] - xaxis.range[0]) * (x - left) / _size.w;
            const middle = box => (box.top + box.bottom) / 2;
            const drawn = [...plot.querySelectorAll('.barlayer .point path')].map(path => path.getBoundingClientRect());
            const boxes = drawn.filter(box => box.width > 0.2);
            const end = tick => {
                const row = boxes.filter(b => Math.abs(middle(b) - middle(tick.getBoundingClientRect())) < 8);
                return [tick.textContent.split(' ')[0], bytes(Math.max(...row.map(b => b.right))) / 2 ** 30]; };
            const line = plot.querySelector('.shapelayer path').getBoundingClientRect();
            return [[...plot.querySelectorAll('.ytick text')].map(end), bytes((line.left + line.right) / 2) / 2 ** 30]; }"""
    )
    return dict(bars), line


def test_every_control_and_what_is_drawn(notebook_of: Callable[..., NotebookPage]) -> None:
    """States follow each control at once, as bars before or beyond the GPU's line, in the table and in words; the code shown follows."""
    notebook = notebook_of([SHARDING])
    area = notebook.output(0)
    shown(notebook, "On H100 SXM: not predicted yet: ddp, zero1, zero2, zero3, tensor, pipeline-gpipe, pipeline-1f1b.")
    area.get_by_text("Show the code").click()
    area.get_by_label("Model").select_option(index=3)
    shown(notebook, "On H100 SXM: does not fit: ddp; not predicted yet")
    shown(notebook, f"too big: states {16 * SEVEN / GIB - 80:.1f} GiB over")
    bars, line = ends(notebook)
    assert line == pytest.approx(80, abs=0.5)
    assert bars["ddp"] == pytest.approx(16 * SEVEN / GIB, abs=0.5)
    assert bars["zero3"] == pytest.approx(16 * SEVEN / 8 / GIB, abs=0.5)
    area.get_by_label("Ranks", exact=True).fill("6")
    shown(notebook, "cannot split 32 heads over 64 ranks")
    bars, line = ends(notebook)
    assert bars["zero3"] == pytest.approx(16 * SEVEN / 64 / GIB, abs=0.5)
    assert not {"tensor", "pipeline-1f1b"} & set(bars)
    area.get_by_label("Must fit on").select_option(label="H200 SXM, 141 GiB")
    shown(notebook, "On H200 SXM: not predicted yet: ddp")
    area.get_by_label("Optimizer").select_option("sgd")
    shown(notebook, 'optimizer="sgd"')
    bars, line = ends(notebook)
    assert line == pytest.approx(141, abs=0.5)
    assert bars["ddp"] == pytest.approx(8 * SEVEN / GIB, abs=0.5)
    area.get_by_label("Precision").select_option("float32")
    area.get_by_label("Sequences").fill("2")
    area.get_by_label("Length of a sequence").focus()
    notebook.page.keyboard.press("ArrowRight")
    area.get_by_label("Checkpointing").check()
    shown(notebook, "x = torch.zeros(4, 2048, dtype=torch.int64")
    shown(notebook, 'precision="float32", optimizer="sgd", checkpoint=True')
    clean(notebook)


def test_a_prediction_a_refusal_and_stop(notebook_of: Callable[..., NotebookPage]) -> None:
    """A step is predicted, drawn and judged, and gone when a control moves; what cannot be split is told; a long one stops."""
    notebook = notebook_of([SHARDING.replace("()", "(model='course', ranks=2, positions=64, gpu='T4')")])
    page, area = notebook.page, notebook.output(0)
    press(notebook, "Predict the step")
    shown(notebook, "On T4: fits: zero3; not predicted yet: ddp")
    shown(notebook, "The peak of zero3 is in its")
    predicted = float(state(notebook, "s.predictions['zero3'].needed_bytes()")) / GIB
    assert ends(notebook)[0]["zero3"] == pytest.approx(predicted, abs=0.05)
    readable(notebook)
    area.get_by_label("Checkpointing").check()
    shown(notebook, "On T4: not predicted yet: ddp, zero1, zero2, zero3")
    area.get_by_label("Ranks", exact=True).fill("3")
    area.get_by_label("Predict", exact=True).select_option("tensor")
    with one_run(notebook, "Predict the step", "failed"):
        area.get_by_role("button", name="Predict the step").click()
    area.get_by_role("alert").get_by_text("tensor cannot split 4 heads over 8 ranks").wait_for(timeout=WAIT)
    area.get_by_label("Model").select_option(index=3)
    area.get_by_label("Predict", exact=True).select_option("all strategies")
    area.get_by_label("Predict", exact=True).focus()
    for _ in range(8):
        page.keyboard.press("Tab")
        if page.evaluate("() => document.activeElement.textContent") == "Predict the step":
            break
    page.keyboard.press("Enter")
    page.wait_for_function("() => document.querySelector('.gpulab-progress-text').textContent.includes('ddp: ')", timeout=WAIT)
    assert state(notebook, "6 * 7") == "42"
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.wait_for_function("() => Number(document.querySelector('[data-ended]').dataset.ended) === 3", timeout=WAIT)
    assert state(notebook, "s.running, s.error, len(s.predictions)") == "False  0"
    clean(notebook)
