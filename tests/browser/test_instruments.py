"""The instruments in JupyterLab: every control over its range after all cells ran, keyboard alone, Stop, errors, both themes."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import pytest
from instrument_page import one_run, shown, state
from lab_driver import NotebookPage
from playwright.sync_api import expect

pytestmark = pytest.mark.browser

SLOW = '''
import itertools, threading, time
import gpulab as gl
from gpulab.widgets._controls import Choice, Number, Several, Slider, Switch
from gpulab.widgets._instrument import Action, Drawing, Instrument
from gpulab.evidence import Badge, Evidence
from gpulab import figures
from gpulab.figures._style import frame

class Probe(Instrument):
    """Every kind of control; the work counts until it is stopped, or fails when told to."""
    title = "Probe"
    actions = (Action("run", "Count"),)

    def make_controls(self):
        return [
            Choice(name="what", label="What", options=("alpha", "beta", "gamma"), help="Which letter."),
            Choice(name="how", label="How", options=("well", "badly"), radio=True, help="The manner."),
            Slider(name="size", label="Size", options=[2**k for k in range(12)], default=8, help="A power of two."),
            Number(name="n", label="Number", default=4, minimum=1, maximum=64, integer=True, suggestions=(1, 2, 4, 8, 16, 32, 64)),
            Several(name="which", label="Which", options=("a", "b"), default=("a",), least=1),
            Switch(name="fails", label="Fails"),
        ]

    def work(self, action, values, progress, stop):
        if values["fails"]:
            raise ValueError("told to fail")
        for k in itertools.count():
            progress(k / (k + 600), f"counted {k}")
            if stop():
                return k
            time.sleep(0.02)

    def draw(self, values):
        figure = frame("Sizes", Evidence.measured("cpu", 3), f"the size is {values['size']}")
        figure.add_scatter(x=[1, 2, 3], y=[values["size"], values["n"], 3])
        words = " ".join(f"{name}={value}" for name, value in values.items())
        return Drawing(figure, ("what", "badge"), [(words, Badge.MEASURED)], [Evidence.measured("cpu", 3)])

    def code_for(self, values):
        return f"probe({values['n']})"

probe = Probe()
probe
'''
WAIT = 15_000


@pytest.fixture(scope="module")
def probe_cells() -> list[str]:
    """A notebook with the probe alone."""
    return [SLOW]


@pytest.fixture
def notebook(notebook_of: Callable[..., NotebookPage], probe_cells: list[str]) -> NotebookPage:
    """The probe in a notebook, all cells run."""
    return notebook_of(probe_cells)


def test_every_control_moves_the_state_and_the_picture(notebook: NotebookPage) -> None:
    """With all cells done, each kind of control is driven by the mouse and the table follows; Python moves the controls back."""
    area = notebook.output(0)
    area.get_by_label("What").select_option("gamma")
    shown(notebook, "what=gamma")
    area.get_by_label("badly").check()
    shown(notebook, "how=badly")
    area.get_by_label("Size", exact=True).fill("11")
    shown(notebook, "size=2048")
    area.get_by_label("Number").fill("33")
    area.get_by_label("Number").press("Enter")
    shown(notebook, "n=33")
    area.get_by_label("b", exact=True).check()
    shown(notebook, "which=('a', 'b')")
    area.get_by_label("Fails").check()
    shown(notebook, "fails=True")
    notebook.run_in_kernel("probe.set(what='beta', how='well', size=1, n=2, which=['b'], fails=False)")
    shown(notebook, "what=beta how=well size=1 n=2 which=('b',) fails=False")
    expect(area.get_by_label("What")).to_have_value("beta")
    expect(area.get_by_label("well")).to_be_checked()
    expect(area.get_by_label("Size", exact=True)).to_have_value("0")
    expect(area.get_by_label("Size", exact=True)).to_have_attribute("aria-valuetext", "1")
    expect(area.locator("output.gpulab-shown")).to_have_attribute("aria-live", "off")  # the slider tells it already
    expect(area.get_by_label("Number")).to_have_value("2")
    expect(area.get_by_label("a", exact=True)).not_to_be_checked()
    expect(area.locator(".js-plotly-plot .main-svg").first).to_be_visible()
    assert notebook.errors == []
    assert notebook.outside == []


def test_what_is_being_typed_is_not_overwritten(notebook: NotebookPage) -> None:
    """Another control's value that comes back from the kernel meanwhile leaves a half-typed number alone; Enter then counts."""
    number = notebook.output(0).get_by_label("Number")
    number.fill("33")
    notebook.run_in_kernel("probe.set(what='gamma')")
    shown(notebook, "what=gamma")
    expect(number).to_have_value("33")
    number.press("Enter")
    shown(notebook, "n=33")
    notebook.run_in_kernel("probe.set(n=5)")
    shown(notebook, "n=5")
    expect(number).to_have_value("5")
    number.blur()
    assert state(notebook, "probe.values['n']") == "5"
    number.fill("7")
    notebook.run_in_kernel("probe.set(n=6)")
    shown(notebook, "n=6")
    number.fill("5")
    number.blur()  # as it was when the field was entered, so the browser tells of no change
    expect(number).to_have_value("6")


def test_a_button_works_with_what_is_on_the_screen(notebook: NotebookPage) -> None:
    """A slider that moved three times in the instant before the button was pressed: the work is done with its last value."""
    notebook.output(0).get_by_label("Size", exact=True).evaluate(
        """slider => {
            for (const place of [3, 7, 10]) { slider.value = place; slider.dispatchEvent(new Event('input')); }
            slider.closest('.gpulab').querySelector('[data-action=run]').click(); }"""
    )
    notebook.output(0).get_by_text(re.compile("counted [0-9]+")).first.wait_for(timeout=WAIT)
    notebook.output(0).get_by_role("button", name="Stop").click()
    notebook.output(0).get_by_text(": stopped").first.wait_for(timeout=WAIT)
    shown(notebook, "size=1024")
    assert state(notebook, "probe._made['run']['size']") == "1024"


def test_a_page_that_was_busy_still_hears_the_kernel(notebook: NotebookPage) -> None:
    """Each new panel finds the page blocked for three seconds, more than anywidget waits for a panel's script: it is not deaf for ever."""
    notebook.page.evaluate(
        """() => { const usual = AbortSignal.timeout;
            const block = () => { const end = performance.now() + 3000; while (performance.now() < end); };
            AbortSignal.timeout = Object.assign(ms => { setTimeout(block); return usual.call(AbortSignal, ms); }, usual, { usual }); }"""
    )
    notebook.run_all()
    notebook.page.evaluate("() => { AbortSignal.timeout = AbortSignal.timeout.usual; }")
    notebook.run_in_kernel("probe.set(size=16)")
    shown(notebook, "size=16")
    assert notebook.errors == []


def test_a_panel_whose_script_came_late_hears_the_kernel_again(notebook: NotebookPage) -> None:
    """As the first panel of a page meets it, before any script asked for more patience: what the kernel wrote meanwhile is shown, too."""
    notebook.page.evaluate(
        """() => { const frame = document.body.appendChild(document.createElement('iframe'));
            const [kept, own] = [AbortSignal.timeout, frame.contentWindow.AbortSignal];
            const block = () => { const end = performance.now() + 3000; while (performance.now() < end); };
            AbortSignal.timeout = Object.assign(ms => { setTimeout(block); return own.timeout(ms); }, { patient: true, kept }); }"""
    )
    notebook.run_all()
    notebook.page.evaluate("() => { AbortSignal.timeout = AbortSignal.timeout.kept; }")
    notebook.run_in_kernel("probe.set(size=16)")
    shown(notebook, "size=16")
    notebook.output(0).get_by_label("What").select_option("beta")
    shown(notebook, "what=beta")


def test_the_keyboard_alone_does_everything(notebook: NotebookPage) -> None:
    """Tab reaches each control in order with a visible focus; arrows, Space and Enter work it; JupyterLab takes no key."""
    page = notebook.page
    cells = page.locator(".jp-Cell").count()
    notebook.output(0).get_by_label("What").focus()
    page.keyboard.press("ArrowDown")
    shown(notebook, "what=beta")
    page.keyboard.press("Tab")
    page.keyboard.press("ArrowDown")
    shown(notebook, "how=badly")
    page.keyboard.press("Tab")
    page.keyboard.press("ArrowRight")
    shown(notebook, "size=16")
    page.keyboard.press("End")
    shown(notebook, "size=2048")
    page.keyboard.press("Tab")
    page.keyboard.press("ArrowUp")
    shown(notebook, "n=8")
    outline = page.evaluate("() => getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"
    for _ in range(3):
        page.keyboard.press("Tab")
    page.keyboard.press("Space")
    shown(notebook, "fails=True")
    page.keyboard.press("Space")
    shown(notebook, "fails=False")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Stop").wait_for(timeout=WAIT)
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    shown(notebook, "Count: stopped")
    expect(page.locator(":focus")).to_have_text("Count")
    for _ in range(10):
        if page.evaluate("() => document.activeElement.tagName") == "SUMMARY":
            break
        page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    shown(notebook, "probe(8)")
    expect(page.locator(".jp-Cell")).to_have_count(cells)
    expect(page.locator(".jp-mod-editMode")).to_have_count(0)


def _ms_until(notebook: NotebookPage, click: str, where: str, pattern: str) -> float:
    """Press a button inside the page and return the milliseconds until a part of the panel says what is expected, however shortly."""
    return notebook.page.evaluate(
        """([click, where, pattern]) => new Promise((done, fail) => {
            const area = document.querySelector('.gpulab-running'), part = area.querySelector(where);
            const wanted = new RegExp(pattern);
            const button = [...area.querySelectorAll('button')].find(b => b.textContent === click);
            const start = performance.now();
            const watch = new MutationObserver(changes => {
                if (changes.some(c => [...c.addedNodes].some(node => wanted.test(node.textContent)))) {
                    watch.disconnect(); done(performance.now() - start); } });
            watch.observe(part, {childList: true});
            setTimeout(() => fail(new Error('never: ' + part.textContent)), 15000);
            button.click(); })""",
        [click, where, pattern],
    )


def _progress_and_stop(notebook: NotebookPage) -> tuple[float, float]:
    """Run the work and stop it; return the milliseconds until its own progress showed, and until the kernel's word of the stop did."""
    with one_run(notebook, "Count", "stopped"):
        first = _ms_until(notebook, "Count", ".gpulab-progress-text", r"counted \d")
        assert state(notebook, "6 * 7") == "42"
        assert state(notebook, "probe.running") == "True"
        # The page writes its own text beside the bar at once; what a screen reader is told comes from the kernel's state.
        acknowledged = _ms_until(notebook, "Stop", "[role=status]", "Stopping")
    assert state(notebook, "probe.running") == "False"
    return first, acknowledged


def test_progress_and_stop_are_seen_soon(notebook: NotebookPage) -> None:
    """The kernel's own progress shows, Stop is acknowledged, the work ends, and the kernel computes meanwhile.

    The bounds are five times those of the design, and the best of five rounds counts: a busy test machine must not fail a sound instrument.
    """
    first = acknowledged = math.inf
    for _ in range(5):
        first, acknowledged = map(min, (first, acknowledged), _progress_and_stop(notebook))
        if first < 1000 and acknowledged < 1500:
            break
    print(f"first progress {first:.0f} ms, stop acknowledged {acknowledged:.0f} ms")
    assert first < 1000
    assert acknowledged < 1500


def test_errors_are_shown_inside_and_mended_inside(notebook: NotebookPage) -> None:
    """A refused value and a failing work each give one sentence; both go away when mended, and the kernel never noticed."""
    area = notebook.output(0)
    number = area.get_by_label("Number")
    for bad in ("-1", "65", ""):
        number.fill(bad)
        number.press("Enter")
        shown(notebook, "expected a whole number from 1 to 64")
        expect(number).to_have_attribute("aria-invalid", "true")
    area.get_by_role("button", name="Count").click()
    assert state(notebook, "probe.running") == "False"
    number.fill("5")
    number.press("Enter")
    shown(notebook, "n=5")
    expect(area.get_by_role("alert")).to_have_count(0)
    area.get_by_label("Fails").check()
    area.get_by_role("button", name="Count").click()
    shown(notebook, "ValueError: told to fail (the kernel is still usable")
    area.get_by_label("Fails").uncheck()
    area.get_by_role("alert").wait_for(state="hidden", timeout=WAIT)
    assert notebook.kernel_errors() == []
    assert state(notebook, "6 * 7") == "42"


def test_a_slider_dragged_fast_ends_where_it_was_left(notebook: NotebookPage) -> None:
    """Hundreds of moves in a moment are answered without a queue, and the last one wins."""
    notebook.page.evaluate(
        """() => { const range = document.querySelector('.gpulab-slider input');
            for (let k = 0; k < 300; k++) { range.value = k % 12; range.dispatchEvent(new Event('input', {bubbles: true})); }
            range.value = 10; range.dispatchEvent(new Event('input', {bubbles: true})); }"""
    )
    shown(notebook, "size=1024")
    assert state(notebook, "probe.values['size']") == "1024"


MENU = """
from gpulab.widgets._controls import Choice
from gpulab.widgets._instrument import Drawing, Instrument

class Menu(Instrument):
    title = "Menu"
    actions = ()

    def make_controls(self):
        return [Choice(name="meal", label="Meal", options=("morning", "evening")), self.dishes("bread", "egg", "tea")]

    def dishes(self, *options):
        return Choice(name="dish", label="Dish", options=options)

    def changed(self, name):
        if name == "meal":
            self.replace_control(self.dishes("soup", "bread", "fish"))

    def draw(self, values):
        return Drawing(None, ("what",), [(" ".join(values.values()),)])

    def code_for(self, values):
        return "menu()"

menu = Menu(dish="tea")
menu
"""


@pytest.mark.parametrize(("dish", "told"), [("bread", "evening bread"), ("egg", "Dish: 'egg' is not there any more")])
def test_a_choice_out_of_a_list_that_is_going_is_not_another_one(notebook_of: Callable[..., NotebookPage], dish: str, told: str) -> None:
    """Both lists are used before the kernel answers: the second one's option is found by its text in the new list, or refused."""
    notebook = notebook_of([MENU])
    notebook.output(0).get_by_label("Dish").wait_for(timeout=WAIT)
    notebook.page.evaluate(
        """dish => { const [meal, dishes] = document.querySelectorAll('.gpulab-choice select');
            for (const [list, text] of [[meal, 'evening'], [dishes, dish]]) {
                list.selectedIndex = [...list.options].findIndex(option => option.text === text);
                list.dispatchEvent(new Event('change')); } }""",
        dish,
    )
    shown(notebook, told)
    held = "bread" if dish == "bread" else "soup"
    assert state(notebook, "menu.values['dish']") == held
    expect(notebook.output(0).get_by_label("Dish")).to_have_value(held)
    assert notebook.kernel_errors() == []


def test_a_redraw_is_quick(notebook: NotebookPage) -> None:
    """A moved slider changes picture and table within the tenth of a second of the design, five times that on a busy machine.

    Eleven moves and their median, once more where others had the machine: the best of five times eleven counts.
    """
    median = math.inf
    for _ in range(5):
        median = min(median, _redraw_milliseconds(notebook))
        if median < 500:
            break
    assert median < 500


def _redraw_milliseconds(notebook: NotebookPage) -> float:
    """The median of eleven moves of the slider, each until its value is in the table and a picture is there."""
    times = notebook.page.evaluate(
        """async () => { const range = document.querySelector('.gpulab-slider input'), area = document.querySelector('.gpulab-instrument');
            const times = [];
            for (let k = 0; k < 11; k++) {
                const start = performance.now();
                const wanted = 'size=' + 2 ** k + ' ';
                range.value = k; range.dispatchEvent(new Event('input', {bubbles: true}));
                while (!area.innerText.includes(wanted) || !area.querySelector('.js-plotly-plot .main-svg')) {
                    if (performance.now() - start > 15000) throw new Error('never ' + wanted);
                    await new Promise(requestAnimationFrame);
                }
                times.push(performance.now() - start);
                await new Promise(done => setTimeout(done, 100));
            }
            return times.sort((a, b) => a - b); }"""
    )
    print(f"redraw: median {times[5]:.0f} ms, worst {times[-1]:.0f} ms")
    return times[5]


def test_nothing_is_cut_or_hard_to_read(notebook_of: Callable[..., NotebookPage]) -> None:
    """In both themes, wide and narrow: axe finds nothing serious, the text of the picture has contrast, nothing overflows."""
    cells = [
        "import os; os.environ['GPULAB_PROGRESS'] = os.devnull + '.json'\nimport gpulab as gl\n%load_ext gpulab",
        "gl.widgets.MachineCard()",
        "t = gl.widgets.CompareTimings(workload='matmul', n=64, deadline=0.5)\nt.run(wait=True)\nassert t.error == '', t.error\nt",
        "gl.lessons.predict('90.1', 'How long does a copy of one byte take?', unit='us')",
        "gl.lessons.predict('90.2', 'Which is slower?', choices=['the first', 'the second'])",
        "gl.figures.comparison(t.result)",
    ]
    notebook = notebook_of(cells)
    notebook.output(2).get_by_text("Show the code").click()
    assert notebook.kernel_errors() == []
    assert notebook.broken_outputs() == []
    for theme in ("light", "dark"):
        notebook.set_theme(theme)
        for width in (1400, 900):
            notebook.page.set_viewport_size({"width": width, "height": 1000})
            notebook.page.wait_for_function("w => document.querySelector('.js-plotly-plot')?.clientWidth < w", arg=width)
            heights = [plot.bounding_box()["height"] for plot in notebook.page.locator(".js-plotly-plot").all()]
            assert min(heights) > 150
            assert notebook.axe() == []
            assert _weak_texts(notebook) == []
            assert _cut_off(notebook) == []
    assert notebook.outside == []


def _weak_texts(notebook: NotebookPage) -> list[Any]:
    """Texts in plots whose contrast against the page is under 4.5, which axe leaves undecided."""
    return notebook.page.evaluate(
        """() => {
            const rgb = s => (s.match(/[\\d.]+/g) || []).map(Number);
            const linear = v => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
            const light = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
            const page = rgb(getComputedStyle(document.querySelector('.jp-Notebook')).backgroundColor);
            const contrast = text => {
                const [r, g, b, a = 1] = rgb(getComputedStyle(text).fill), ink = [r, g, b].map((v, k) => v * a + page[k] * (1 - a));
                const [high, low] = [light(ink), light(page)].sort((p, q) => q - p);
                return (high + 0.05) / (low + 0.05); };
            const texts = [...document.querySelectorAll('.js-plotly-plot text')].filter(t => t.textContent.trim());
            return texts.map(t => [t.textContent, contrast(t)]).filter(t => t[1] < 4.5); }"""
    )


def _cut_off(notebook: NotebookPage) -> list[Any]:
    """Parts of instruments that hide some of their text, or stick out of the output's width."""
    return notebook.page.evaluate(
        """() => {
            const meant = '.gpulab-hidden, svg, pre, select';
            const parts = [...document.querySelectorAll('.gpulab, .gpulab *')].filter(e => e.checkVisibility() && !e.closest(meant));
            const hides = e => e.scrollWidth > e.clientWidth + 4 && e.clientWidth > 20 && /hidden|clip/.test(getComputedStyle(e).overflowX);
            const right = e => e.getBoundingClientRect().right;
            const cut = parts.filter(e => hides(e) || right(e) > right(e.closest('.jp-OutputArea-output')) + 1);
            return cut.map(e => e.className + ': ' + e.innerText.slice(0, 60)); }"""
    )


def test_a_cell_run_again_stops_its_old_work(notebook: NotebookPage) -> None:
    """Running the instrument's cell again ends the thread of the old one."""
    notebook.output(0).get_by_role("button", name="Count").click()
    notebook.output(0).get_by_role("button", name="Stop").wait_for(timeout=WAIT)
    notebook.run_in_kernel("old = probe")
    notebook.run_all()
    assert state(notebook, "old is probe, old._job.join(5), old.running") == "False True False"


def test_a_kernel_that_was_restarted_is_waited_for_by_nothing(
    notebook_of: Callable[..., NotebookPage], probe_cells: list[str], tmp_path: Any
) -> None:
    """What the old kernel made says what to do, and takes no more clicks; its cell run again, it works."""
    path = str(tmp_path / "progress.json")
    ask = "import gpulab as gl\n%load_ext gpulab\ngl.lessons.predict('90.1', 'How long?', unit='us')"
    notebook = notebook_of([*probe_cells, f"import os; os.environ['GPULAB_PROGRESS'] = {path!r}\n{ask}"], fresh=True)
    area = notebook.output(0)
    area.get_by_role("button", name="Count").click()
    area.get_by_role("button", name="Stop").wait_for(timeout=WAIT)
    notebook.page.evaluate("() => window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.restart()")
    shown(notebook, "The kernel that made this is gone")
    expect(area.get_by_role("button", name="Stop")).to_have_count(0)
    expect(area.get_by_role("button", name="Count")).to_have_attribute("aria-disabled", "true")
    expect(area.locator(".gpulab-progress-text")).to_have_text("")
    expect(area.locator(".gpulab-old")).to_have_count(0)
    for label in ("What", "well", "Size", "Number", "a", "Fails"):
        expect(area.get_by_label(label, exact=True)).to_be_disabled()
    shown(notebook, "The kernel that made this is gone", cell=1)
    expect(notebook.output(1).get_by_label("Your prediction (us)")).to_be_disabled()
    expect(notebook.output(1).get_by_role("button", name="Save")).to_be_disabled()
    notebook.run_all()
    area.get_by_label("What").select_option("gamma")
    shown(notebook, "what=gamma")


def test_two_views_of_one_instrument_agree(notebook_of: Callable[..., NotebookPage], probe_cells: list[str]) -> None:
    """An instrument shown twice is one instrument: a control moved in one view moves in the other."""
    notebook = notebook_of([*probe_cells, "probe"])
    notebook.output(0).get_by_label("What").select_option("gamma")
    shown(notebook, "what=gamma", cell=1)
    expect(notebook.output(1).get_by_label("What")).to_have_value("gamma")


def test_a_prediction_is_kept_by_keyboard_and_shown_after_the_reveal(notebook_of: Callable[..., NotebookPage], tmp_path: Any) -> None:
    """The form refuses nonsense in words, keeps an answer on Enter, and says both when the next cell reveals."""
    path = str(tmp_path / "progress.json")
    cells = [
        f"import os; os.environ['GPULAB_PROGRESS'] = {path!r}\nimport gpulab as gl\n%load_ext gpulab",
        "gl.lessons.predict('90.1', 'How long?', unit='us')",
        "gl.lessons.predict('90.2', 'Which?', choices=['this', 'that'])",
    ]
    notebook = notebook_of(cells)
    page = notebook.page
    notebook.output(1).get_by_label("Your prediction (us)").focus()
    page.keyboard.type("five")
    page.keyboard.press("Enter")
    shown(notebook, "expected a number", cell=1)
    page.keyboard.press("Control+a")
    page.keyboard.type("5")
    page.keyboard.press("Enter")
    shown(notebook, "Prediction kept: 5.00 us", cell=1)
    notebook.output(2).get_by_label("this").focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    shown(notebook, "Prediction kept: that", cell=2)
    notebook.run_in_kernel("gl.lessons.reveal('90.2', 'this')")
    shown(notebook, "You predicted that; the answer was this", cell=2)
    expect(notebook.output(2).get_by_role("radio")).to_have_count(0)
    expect(page.locator(".jp-Cell")).to_have_count(len(cells))
    assert notebook.errors == []
