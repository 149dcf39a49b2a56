"""What the tests of instruments do over and over: read the kernel, wait for words, and look whether a notebook is clean and readable."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from lab_driver import CONTRAST, NotebookPage

# A condition that this many milliseconds do not bring about won't come; all but a few come in some.
WAIT = 60_000


def state(notebook: NotebookPage, expression: str) -> str:
    """What the kernel holds, as text, once it has answered all that the page sent it: code may overtake a panel's message."""
    notebook.page.wait_for_function("() => !document.querySelector('[data-busy=true]')", timeout=WAIT)
    return notebook.run_in_kernel(f"print({expression})").strip()


def shown(notebook: NotebookPage, text: str, cell: int = 0, timeout: float = WAIT) -> None:
    """Wait until the instrument under a cell shows a text."""
    notebook.output(cell).get_by_text(text).first.wait_for(timeout=timeout)


@contextmanager
def progress_told(notebook: NotebookPage) -> Iterator[list[str]]:
    """Note each text that the progress line shows while the block runs, however shortly; the list is full after the block."""
    notebook.page.evaluate(
        """() => {
            window.__told = [];
            const note = changes => window.__told.push(...changes.flatMap(c => [...c.addedNodes].map(node => node.textContent)));
            new MutationObserver(note).observe(document.querySelector('.gpulab-progress-text'), {childList: true}); }"""
    )
    told: list[str] = []
    yield told
    told += notebook.page.evaluate("() => window.__told")


@contextmanager
def one_run(notebook: NotebookPage, action: str, ending: str = "done") -> Iterator[None]:
    """Start a run in the block; at its end wait until that run is over, and says so. What an earlier run left on the screen is no end."""
    before = int(notebook.page.locator("[data-ended]").first.get_attribute("data-ended", timeout=WAIT) or 0)
    yield
    notebook.page.wait_for_function(
        """([before, text]) => Number(document.querySelector('[data-ended]').dataset.ended) > before
            && document.querySelector('.gpulab-progress-text').textContent === text""",
        arg=[before, f"{action}: {ending}"],
        timeout=WAIT,
    )


def press(notebook: NotebookPage, action: str, cell: int = 0) -> None:
    """Press a button of the instrument under a cell, and wait until what it started is done."""
    with one_run(notebook, action):
        notebook.output(cell).get_by_role("button", name=action, exact=True).click()


def clean(notebook: NotebookPage) -> None:
    """Nothing went wrong in the browser or the kernel, and nothing left the machine."""
    assert notebook.errors == []
    assert notebook.kernel_errors() == []
    assert notebook.broken_outputs() == []
    assert notebook.outside == []


def readable(notebook: NotebookPage, *also: Callable[[NotebookPage], list[Any]]) -> None:
    """In both themes at 900 pixels: no serious axe violation, nothing hidden, nothing that sticks out, and nothing that ``also`` finds."""
    notebook.page.set_viewport_size({"width": 900, "height": 1000})
    for theme, rules in (("dark", ()), ("light", CONTRAST)):
        notebook.set_theme(theme)
        assert notebook.axe(only=rules) == [], theme
        for look in also or (cut_off,):
            assert look(notebook) == [], theme


def cut_off(notebook: NotebookPage, *, hidden_by: str = "hidden|clip", may_stick_out: str = "pre") -> list[str]:
    """Return the visible parts whose text is cut (``hidden_by``: what their overflow is), or that are wider than the cell's output."""
    return notebook.page.evaluate(
        """([hiddenBy, mayStickOut]) => {
            const parts = [...document.querySelectorAll('.gpulab, .gpulab *')];
            const seen = parts.filter(e => e.checkVisibility() && !e.closest('.gpulab-hidden, pre, select'));
            const wide = e => e.scrollWidth > e.clientWidth + 4 && e.clientWidth > 20;
            const hides = e => wide(e) && new RegExp(hiddenBy).test(getComputedStyle(e).overflowX);
            const right = e => e.getBoundingClientRect().right;
            const out = e => !e.closest(mayStickOut) && right(e) > right(e.closest('.jp-OutputArea-output')) + 1;
            return seen.filter(e => hides(e) || out(e)).map(e => e.className + ': ' + (e.innerText ?? e.textContent).slice(0, 60)); }""",
        [hidden_by, may_stick_out],
    )
