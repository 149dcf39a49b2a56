"""Instruments in JupyterLab, driven with the mouse and with the keyboard alone."""

import re
from typing import Any

import pytest
from lab_driver import Tab
from playwright.sync_api import expect

pytestmark = [pytest.mark.browser, pytest.mark.slow]

PROBE = '''
import gpulab as gl
from gpulab.evidence import Badge, Evidence, Note
from gpulab.widgets import Action, Choice, Drawing, Instrument, Number, Several, Slider, Switch

class Probe(Instrument):
    """Every kind of control; the work counts until it is stopped, or fails if its switch is on."""
    title, summary = "Probe", "Made for a test."
    actions = (Action("run", "Count"),)

    def make_controls(self):
        return [
            Choice(name="what", label="What", options=("alpha", "beta", "gamma"), help="A letter."),
            Choice(name="dish", label="Dish",
                   options=("soup" if self.values.get("what") == "gamma" else "egg", "bread")),
            Choice(name="how", label="How", options=("well", "badly"), radio=True),
            Slider(name="size", label="Size", options=[2**k for k in range(12)], default=8),
            Number(name="n", label="Number", default=4, minimum=1, maximum=64, integer=True,
                   suggestions=(1, 2, 4, 8, 16, 32, 64)),
            Several(name="which", label="Which", options=("a", "b"), default=("a",), least=1),
            Switch(name="fails", label="Fails"),
        ]

    def changed(self, name):
        if name == "what":
            self.rebuild("dish")

    def work(self, action, values, progress, stop):
        if values["fails"]:
            raise ValueError("told to fail")
        count = 0
        while not stop():
            progress(count / (count + 1e6), f"counted {count}")
            count += 1
        return count

    def draw(self, values):
        words = " ".join(f"{name}={value}" for name, value in values.items())
        figure = gl.figures.access(gl.models.access_pattern(values["n"], 0, 4))
        rows = [(words, Badge.MEASURED)]
        notes = [Note(code, "So it is.") for code in ("contended", "unstable", "stopped", "rising")]
        return Drawing(figure, ("what", "badge"), rows, [Evidence.measured("A device", 3)], notes)

    def code_for(self, values):
        return f"probe({values['n']})"

probe = Probe()
probe
'''
ASK = """
import os
os.environ["GPULAB_PROGRESS"] = os.path.abspath("journey-progress.json")
%load_ext gpulab
gl.lessons.predict("90.1", "How long?", unit="us")
"""
CHOOSE = 'gl.lessons.predict("90.2", "Which?", choices=["this", "that"])'


@pytest.fixture(scope="module")
def probe(tab: Tab) -> Tab:
    """The probe and two questions, all cells run."""
    tab.open("probe.ipynb", [PROBE, ASK, CHOOSE, "probe"], width=900)
    tab.run_all()
    return tab


@pytest.fixture(autouse=True)
def nothing_went_wrong(tab: Tab) -> object:
    """After each journey: no error of a script or cell, no broken output, no outside request."""
    yield
    assert tab.complaints() == []


def drive(tab: Tab, cell: int, *steps: tuple[str, Any, Any]) -> None:
    """Do each step in a cell's output, and wait until the step's words are shown.

    A step is (label, value, words). With the label "keys" the value's keys are pressed; the value
    None presses the button of that label; any other value is set in the field of that label.
    """
    area = tab.output(cell)
    for label, value, words in steps:
        if label == "keys":
            for key in value.split():
                tab.page.keyboard.press(key)
        elif value is None:
            area.get_by_role("button", name=label, exact=True).click()
        else:
            field = area.get_by_label(label, exact=True)
            kind = field.evaluate("e => e.tagName + e.type")
            if "SELECT" in kind:
                field.select_option(value)
            elif isinstance(value, bool):
                field.set_checked(value)
            else:
                field.fill(value)
                field.press("Enter")
        if words:
            tab.shows(words, cell)


def test_every_kind_of_control_by_mouse(probe: Tab) -> None:
    """Controls and Python both set values, and the table and both views of the probe follow; notes
    beyond the second are folded.
    """
    drive(
        probe,
        0,
        ("keys", "", "2 more notes"),
        ("What", "gamma", "what=gamma dish=soup"),
        ("badly", True, "how=badly"),
        ("Size", "11", "size=2048"),
        ("Number", "33", "n=33"),
        ("b", True, "which=('a', 'b')"),
        ("Fails", True, "fails=True"),
    )
    area = probe.output()
    expect(probe.output(3).get_by_label("What")).to_have_value("gamma")
    probe.shows("size=2048 n=33", cell=3)
    probe.kernel("probe.set(what='beta', how='well', size=1, n=2, which=['b'], fails=False)")
    probe.shows("what=beta dish=egg how=well size=1 n=2 which=('b',) fails=False")
    for label, value in (("What", "beta"), ("Number", "2")):
        expect(area.get_by_label(label)).to_have_value(value)
    expect(area.get_by_label("well")).to_be_checked()
    expect(area.get_by_label("a", exact=True)).not_to_be_checked()
    expect(area.get_by_label("Size", exact=True)).to_have_attribute("aria-valuetext", "1")
    expect(area.locator(".js-plotly-plot .main-svg").first).to_be_visible()
    area.get_by_text("Show the code").click()
    probe.shows("probe(2)")
    assert probe.unreadable() == []


def test_the_keyboard_alone(probe: Tab) -> None:
    """Tab reaches each control with a visible focus; arrows, Space and Enter work."""
    probe.kernel("probe.set(what='alpha', how='well', size=8, n=4, which=['a'], fails=False)")
    probe.shows("what=alpha dish=egg how=well size=8 n=4")
    probe.output().get_by_label("What").focus()
    drive(
        probe,
        0,
        ("keys", "ArrowDown", "what=beta"),
        ("keys", "Tab ArrowDown", "dish=bread"),
        ("keys", "Tab ArrowDown", "how=badly"),
        ("keys", "Tab ArrowRight", "size=16"),
        ("keys", "End", "size=2048"),
        ("keys", "Tab ArrowUp", "n=8"),
        ("keys", "ArrowDown", "n=4"),
        ("keys", "Tab Tab Space", "which=('a', 'b')"),
        ("keys", "Tab Space", "fails=True"),
        ("keys", "Space Tab", "fails=False"),
    )
    page = probe.page
    assert page.evaluate("() => getComputedStyle(document.activeElement).outlineStyle") != "none"
    drive(probe, 0, ("keys", "Enter", re.compile("counted [0-9]+")))
    drive(probe, 0, ("keys", "Tab Enter", "Count: stopped"))
    expect(page.locator(":focus")).to_have_text("Count")
    expect(page.locator(".jp-Cell")).to_have_count(4)
    expect(page.locator(".jp-mod-editMode")).to_have_count(0)


def test_stop_is_acknowledged_and_the_kernel_computes_meanwhile(probe: Tab) -> None:
    """Work uses the values on screen and shows progress; the kernel stays free; Stop ends it."""
    probe.output().get_by_label("Size", exact=True).evaluate(
        """slider => { for (const place of [3, 7, 10]) {
            slider.value = place;
            slider.dispatchEvent(new Event('input', { bubbles: true })); } }"""
    )
    drive(probe, 0, ("Count", None, re.compile("counted [1-9]")))
    assert probe.kernel("print(6 * 7, probe.running)") == "42 True"
    drive(probe, 0, ("Stop", None, "Count: stopped"))
    probe.shows("size=1024")
    probe.held("probe.running, probe.result > 0", "False True")


def test_errors_are_shown_inside(probe: Tab) -> None:
    """A refused value and failing work each show one sentence, which goes once corrected."""
    area = probe.output()
    for bad in ("-1", "65", ""):
        drive(probe, 0, ("Number", bad, "expected a whole number from 1 to 64"))
        expect(area.get_by_label("Number")).to_have_attribute("aria-invalid", "true")
    drive(probe, 0, ("Count", None, ""))
    probe.held("probe.running", "False")
    drive(probe, 0, ("Number", "5", "n=5"))
    expect(area.get_by_role("alert")).to_have_count(0)
    drive(probe, 0, ("Fails", True, ""), ("Count", None, "ValueError: told to fail"))
    drive(probe, 0, ("Fails", False, "fails=False"))
    area.get_by_role("alert").wait_for(state="hidden")


def test_what_is_half_typed_or_gone(probe: Tab) -> None:
    """A half-typed number survives other changes; a choice no longer offered is refused."""
    number = probe.output().get_by_label("Number")
    number.fill("33")
    probe.kernel("probe.set(what='alpha', fails=True)")
    probe.shows(re.compile("what=alpha .* fails=True"))
    expect(number).to_have_value("33")
    drive(probe, 0, ("keys", "Enter", "n=33"))
    probe.kernel("probe.set(dish='egg')")
    probe.shows("dish=egg")
    probe.page.evaluate(
        """() => { const [what, dish] = document.querySelectorAll('.jp-OutputArea select');
            for (const [list, text] of [[what, 'gamma'], [dish, 'egg']]) {
                list.selectedIndex = [...list.options].findIndex(option => option.text === text);
                list.dispatchEvent(new Event('change', { bubbles: true })); } }"""
    )
    probe.shows("'egg' is not among the choices")
    probe.shows("what=gamma dish=soup")
    expect(probe.output().get_by_label("Dish")).to_have_value("soup")
    probe.kernel("probe.set(what='beta', fails=False)")


def test_a_prediction_by_keyboard(probe: Tab) -> None:
    """An invalid answer is refused, Enter keeps a valid one, the reveal shows it and the result."""
    probe.output(1).get_by_label("Your prediction (us)").focus()
    drive(
        probe,
        1,
        ("keys", "x Enter", "expected a number"),
        ("keys", "Control+a 5 Enter", "Prediction kept: 5.00 us"),
    )
    probe.output(2).get_by_label("this").focus()
    drive(probe, 2, ("keys", "ArrowDown Enter", "Prediction kept: that"))
    probe.kernel("gl.lessons.reveal('90.2', 'this')")
    probe.shows(re.compile("You predicted that.* this"), cell=2)
    expect(probe.output(2).get_by_role("radio")).to_have_count(0)


def test_cells_run_again_and_kernels_restarted(probe: Tab) -> None:
    """Rerunning a cell stops its old work; after a restart, old widgets say so and are disabled."""
    drive(probe, 0, ("Count", None, re.compile("counted [0-9]+")))
    probe.kernel("old = probe")
    probe.run_all()
    assert probe.kernel("old.wait(); print(old is probe, old.running)") == "False False"
    probe.page.evaluate(
        "() => window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.restart()"
    )
    for cell in (0, 1):
        probe.shows("The kernel that made this is gone", cell)
    area = probe.output()
    expect(area.get_by_role("button", name="Count")).to_have_attribute("aria-disabled", "true")
    for label in ("What", "well", "Size", "Number", "a", "Fails"):
        expect(area.get_by_label(label, exact=True)).to_be_disabled()
    probe.run_all()
    drive(probe, 0, ("What", "gamma", "what=gamma"))


INSTRUMENTS = (
    "import gpulab as gl\no = gl.widgets.OccupancyExplorer()\no",
    "f = gl.widgets.NumberFormats()\nf",
    "t = gl.widgets.TransferExplorer(view='overlap')\nt",
    "m = gl.widgets.SimtMicroscope()\nm",
    "c = gl.widgets.CompareTimings(workload='add', n=1024, deadline=0.5)\nc",
    "gl.widgets.MachineCard()",
)


@pytest.fixture(scope="module")
def instruments(tab: Tab) -> Tab:
    """Six of the course's instruments, all cells run."""
    tab.open("instruments.ipynb", INSTRUMENTS, width=900)
    tab.run_all()
    return tab


def test_an_analytic_instrument_follows_each_control(instruments: Tab) -> None:
    """By hand: 65,536 registers hold 8 warps of 256 x 32, so 4 blocks of 2 warps."""
    drive(
        instruments,
        0,
        ("Shared memory of a block (bytes)", "0", ""),
        ("Threads of a block", "33", "The last warp of each block uses 1 of its 32 lanes"),
        ("keys", "Tab End", "8 warps of 255 registers per thread: 4 blocks"),
        ("Compute capability", "8.6, such as A10", "occupancy 16.7%"),
    )
    instruments.output(0).get_by_text("Show the code").click()
    instruments.shows('gl.models.occupancy(33, 255, 0, "8.6")')
    instruments.held("o.values['threads_per_block'], o.error == ''", "33 True")


def test_bits_are_flipped_and_views_are_turned(instruments: Tab) -> None:
    """A flipped sign bit negates the number; another view has its own controls and button."""
    drive(instruments, 1, ("s", True, "float16: -0.09997558594"))
    instruments.shows("in 8 chunks, and", cell=2)
    drive(instruments, 2, ("sweep and fit", True, "Press Sweep to measure"))
    expect(instruments.output(2).get_by_label("Chunks")).to_be_hidden()
    expect(instruments.output(2).get_by_role("button", name="Sweep")).to_be_visible()
    instruments.held("f.number.held, t.values['view']", "-0.0999755859375 sweep")
    drive(instruments, 1, ("Steps away", "3", ""), ("Number", "2", ""))
    instruments.held("f.number.held", "2.0")


def test_the_microscope_by_mouse_and_keyboard(instruments: Tab) -> None:
    """Kernel, warp, line and step can be chosen, Play walks to the end, and the text follows.

    By hand: in a 32 x 32 block, lane 3 of warp 31 is thread (3, 31), and its lane 1 reads
    tile[1, 31], element 63, from bank 31.
    """
    area = instruments.output(3)
    drive(instruments, 3, ("Kernel", "transpose, tiled", ""))
    slider = area.get_by_role("slider", name="Step")
    expect(slider).to_have_attribute("max", "6")
    slider.focus()
    drive(
        instruments,
        3,
        ("keys", "End", "32-way conflict; 32 wavefronts instead of 1"),
        ("Previous", None, "Warp 0 at line 13"),
        ("Line 12: go to the warp's next step there", None, "Warp 0 at line 12"),
        ("Warp", "31: threads 992 to 1023", "Warp 31 at line 12"),
        ("Play", None, "Warp 31 at line 14"),
    )
    area.get_by_role("button", name="Play").wait_for()
    instruments.held("m.values['step'], m.position['steps'], m.position['line']", "6 6 14")
    in_picture = r"lane 3: threadIdx \(3, 31\), active[\s\S]*bank 31, element 63: lane 1"
    expect(area).to_contain_text(re.compile(in_picture))
    in_loop = "Line 14: go to the warp's next step there", None, ""
    drive(instruments, 3, ("Kernel", "block sum", "Warp 0 at line 9"), in_loop, in_loop)
    instruments.held("m.values['step']", "11")
    drive(
        instruments,
        3,
        ("Kernel", "vector add, without the guard", "3 findings"),
        ("Block", "3", ""),
        ("Next", None, "28 active lanes do not take part: see the finding"),
    )


def test_a_measurement_has_its_badge_and_all_is_readable(instruments: Tab) -> None:
    """A measurement is shown with its badge beside recorded ones; both themes are readable."""
    drive(instruments, 4, ("Run", None, "Run: done"), ("keys", "Tab", "MEASURED"))
    instruments.shows("RECORDED", cell=4)
    instruments.held("c.error == '', len(c.result.rows) > 0", "True True")
    expect(instruments.output(4).locator("[aria-busy=true]")).to_have_count(0)
    assert instruments.unreadable() == []
