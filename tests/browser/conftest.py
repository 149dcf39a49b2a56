"""Fixtures of the browser tests: one browser, one JupyterLab server and any number of notebooks for the session."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("playwright", reason="playwright is not installed; `make test` installs it")
from instrument_page import WAIT
from lab_driver import CHROMIUM_ARGUMENTS, Lab, NotebookPage, find_chromium, running_lab


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """A headless Chromium."""
    from playwright.sync_api import Error, expect, sync_playwright

    expect.set_options(timeout=WAIT)
    with sync_playwright() as playwright:
        try:
            chromium = playwright.chromium.launch(executable_path=find_chromium(), headless=True, args=CHROMIUM_ARGUMENTS)
        except Error as error:
            pytest.skip(f"no Chromium could be started ({str(error).splitlines()[0]}); install it (Debian: apt-get install chromium)")
        yield chromium
        chromium.close()


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A JupyterLab server on an empty folder."""
    with running_lab(tmp_path_factory.mktemp("lab")) as server:
        yield server


@pytest.fixture(scope="session")
def course_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """The server that ``gpulab lab --no-browser`` starts, on a fresh working copy of the course."""
    with running_lab(tmp_path_factory.mktemp("course") / "my-notebooks", through_command=True) as server:
        yield server


@pytest.fixture(scope="session")
def left_open() -> list[NotebookPage]:
    """The notebook of ``notebook_of`` that the last test left open, if it passed."""
    return []


def _let_go(left_open: list[NotebookPage]) -> None:
    """Close what was left open; its tab is the next notebook's."""
    while left_open:
        left_open.pop().close(keep=True)


@pytest.fixture
def open_notebook(browser: Any, request: pytest.FixtureRequest, left_open: list[NotebookPage]) -> Iterator[Callable[..., NotebookPage]]:
    """Open a notebook of a server: ``open_notebook(lab, name)``; closed, with its kernel, after the test.

    The tab stays for the next test's notebook, but not after a failure, nor where ``fresh`` asked for one of its own.
    """
    pages: list[tuple[NotebookPage, bool]] = []
    failed = request.session.testsfailed

    def open_one(server: Lab, name: str, *, fresh: bool = False, **size: int) -> NotebookPage:
        _let_go(left_open)
        page = NotebookPage(browser, server, name, fresh=fresh, **size)
        pages.append((page, fresh))
        return page

    yield open_one
    for page, fresh in pages:
        page.close(keep=not fresh and request.session.testsfailed == failed)


@pytest.fixture
def notebook_of(
    browser: Any, lab: Lab, left_open: list[NotebookPage], request: pytest.FixtureRequest
) -> Iterator[Callable[..., NotebookPage]]:
    """Open a new notebook of the given code cells, run them all, and return the page: ``notebook_of(["import gpulab as gl", ...])``.

    A kernel takes longer to import gpulab than most tests take. So where the test before had the same cells, and passed, its notebook is
    taken again and its cells run once more, as a student would: what they patch must bear that. ``fresh`` asks for a new kernel.
    """
    numbers = itertools.count()
    failed = request.session.testsfailed
    used: list[NotebookPage] = []

    def make(cells: Sequence[str], *, run: bool = True, seconds: float = 120, fresh: bool = False, **size: int) -> NotebookPage:
        if left_open and left_open[0].cells == tuple(cells) and run and not fresh:
            used.append(left_open.pop())
            used[-1].as_opened(**size)
        else:
            _let_go(left_open)
            name = f"cells-{next(numbers)}.ipynb"
            while (Path(lab.root) / name).exists():
                name = f"cells-{next(numbers)}.ipynb"
            used.append(NotebookPage(browser, lab, lab.write_notebook(name, cells), **size))
            used[-1].cells = tuple(cells)
        if run:
            used[-1].run_all(seconds)
        return used[-1]

    yield make
    passed = request.session.testsfailed == failed
    if passed and used:
        left_open.append(used.pop())
    for notebook in used:
        notebook.close(keep=passed)
