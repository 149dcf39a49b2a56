"""One browser, one JupyterLab server and one tab for the session's browser tests."""

from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("playwright", reason="playwright is not installed; `make test` installs it")
from lab_driver import CHROMIUM, SECONDS, Lab, Tab, chromium_path


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """A headless Chromium: Debian's, Chrome, or playwright's own."""
    from playwright.sync_api import Error, expect, sync_playwright

    expect.set_options(timeout=SECONDS * 1000)
    with sync_playwright() as playwright:
        try:
            chromium = playwright.chromium.launch(executable_path=chromium_path(), args=CHROMIUM)
        except Error as error:
            reason = str(error).splitlines()[0]
            pytest.skip(f"no Chromium could be started ({reason}); apt-get install chromium")
        yield chromium
        chromium.close()


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """The server of ``gpulab lab`` on a fresh working copy of the course."""
    server = Lab(tmp_path_factory.mktemp("course") / "my-notebooks")
    yield server
    server.remove()


@pytest.fixture(scope="session")
def tab(browser: Any, lab: Lab) -> Tab:
    """The tab in which all notebooks are opened, as a learner does."""
    return Tab(browser, lab)
