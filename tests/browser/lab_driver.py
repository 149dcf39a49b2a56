"""Drive JupyterLab in headless Chromium: a server, one tab, one notebook after another.

Everything waits for a condition. ``page.js`` runs JupyterLab's own commands in the page, so that
no test depends on its menus.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import nbformat

SECONDS = 120  # a condition that is not met by then never will be
OUTPUTS = ".jp-OutputArea-output"
CHROMIUM = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage",
    # A request to any other host fails at once, as it would without the internet.
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)  # fmt: skip
_SETTINGS = "settings/@jupyterlab/{}.jupyterlab-settings"
_FILES = {
    # draw all cells, not only those in view
    _SETTINGS.format("notebook-extension/tracker"): '{"windowingMode": "none"}',
    _SETTINGS.format("docmanager-extension/plugin"): '{"autosave": false}',
    # At exit a kernel's garbage collector visits all objects, which takes one or two seconds;
    # frozen objects are not visited.
    ".ipython/profile_default/startup/end.py": (
        "__import__('atexit').register(__import__('gc').freeze)"
    ),
}
# A shell's background jobs and all their children ignore Ctrl-C; this makes the server obey it.
_COMMAND = (
    "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
    "from gpulab.cli import main; sys.exit(main(sys.argv[1:]))"
)


def chromium_path() -> str | None:
    """Return the path of Debian's Chromium or of Chrome; None lets playwright look for its own."""
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    return next(filter(None, map(shutil.which, names)), None)


class Lab:
    """The server that ``gpulab lab --no-browser`` starts: ``url``, ``token``, ``root``, ``log``."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.private = Path(tempfile.mkdtemp(prefix="gpulab-lab-"))
        self.log = self.private / "server.log"
        for name, text in _FILES.items():
            path = self.private / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        self.environment = os.environ | {
            "HOME": str(self.private),
            "JUPYTERLAB_SETTINGS_DIR": str(self.private / "settings"),
            "JUPYTER_RUNTIME_DIR": str(self.private / "runtime"),
            "PYTHONUNBUFFERED": "1",
            "GPULAB_QUICK": "1",  # measured cells sample for a shorter time
        }
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                self.command("--", "--LabApp.expose_app_in_browser=True"),
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env=self.environment,
            )
        self.url, self.token = self._address()

    def command(self, *more: str) -> list[str]:
        """The command that opens this folder."""
        return [sys.executable, "-c", _COMMAND, "lab", "--no-browser", f"--dir={self.root}", *more]

    def _address(self) -> tuple[str, str]:
        for _ in range(SECONDS * 20):
            found = re.search(r"(http://127\.0\.0\.1:\d+)/lab\S*\?token=(\w+)", self.said)
            if found:
                return found[1], found[2]
            threading.Event().wait(0.05)
        raise RuntimeError(f"JupyterLab did not start:\n{self.said}")

    @property
    def said(self) -> str:
        """What the server printed so far."""
        return self.log.read_text(errors="replace")

    def stop(self, by: int = signal.SIGINT) -> int:
        """Stop the server by a signal; return its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(by)
        try:
            return self.process.wait(60)
        finally:
            self.process.kill()

    def remove(self) -> None:
        """Stop the server and remove what it wrote outside its folder."""
        self.stop()
        shutil.rmtree(self.private, ignore_errors=True)


class Tab:
    """One tab with one notebook after another; ``complaints`` collects what went wrong in it."""

    def __init__(self, browser: Any, lab: Lab) -> None:
        self.lab, self.errors, self.opened = lab, list[str](), False
        self.page = browser.new_context().new_page()
        self.page.set_default_timeout(SECONDS * 1000)
        self.page.on("pageerror", self._page_error)
        self.page.on("console", self._console)
        self.page.on("request", self._request)

    def _page_error(self, error: Any) -> None:
        own = "blob:" in error.stack or "data:" in error.stack  # an instrument's script
        # On a busy machine, React sometimes removes a node that JupyterLab has already removed.
        if own or "Failed to execute 'removeChild' on 'Node'" not in error.message:
            self.errors.append(f"script: {error}")

    def _console(self, message: Any) -> None:
        if message.type == "error":
            self.errors.append(f"console: {message.text}")

    def _request(self, request: Any) -> None:
        if not request.url.startswith((self.lab.url, "data:", "blob:", "about:")):
            self.errors.append(f"asked for {request.url}")

    def open(
        self, name: str, cells: Sequence[str] = (), *, width: int = 1400, theme: str = "light"
    ) -> None:
        """Open a notebook in place of the previous one; if ``cells`` are given, write it first."""
        self.page.set_viewport_size({"width": width, "height": 1000})
        if cells:
            notebook = nbformat.v4.new_notebook(cells=[*map(nbformat.v4.new_code_cell, cells)])
            notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3"}
            nbformat.write(notebook, self.lab.root / name)
        if self.opened:
            self.page.evaluate("() => window.__lab.close()")
            self.page.evaluate("name => window.__lab.open(name)", name)
        else:
            self.page.goto(f"{self.lab.url}/lab/tree/{name}?token={self.lab.token}&reset")
        self.opened = True
        self.page.wait_for_selector(".jp-Notebook .jp-Cell")
        self.page.wait_for_function(
            "() => window.jupyterapp?.shell.currentWidget?.sessionContext?.session?.kernel"
            "?.connectionStatus === 'connected'"
        )
        self.page.evaluate((Path(__file__).parent / "page.js").read_text(encoding="utf-8"))
        self.page.evaluate("() => window.__lab.ready()")
        self.errors.clear()
        self.theme(theme)

    def run_all(self, seconds: float = SECONDS) -> None:
        """Run all cells, and wait until the last is done and every widget and plot is drawn."""
        self.page.evaluate("() => window.__lab.runAll()")
        wait = {"polling": 100, "timeout": seconds * 1000}
        self.page.wait_for_function("() => window.__lab.done !== null", **wait)
        self.page.wait_for_function("() => window.__lab.drawn()")

    def output(self, cell: int = 0) -> Any:
        """The output area of a cell, counted from 0."""
        return self.page.locator(".jp-Notebook .jp-Cell").nth(cell).locator(".jp-OutputArea").first

    def shows(self, text: Any, cell: int = 0) -> None:
        """Wait until a cell's output shows a text."""
        self.output(cell).get_by_text(text).first.wait_for()

    def kernel(self, code: str) -> str:
        """Run code in the kernel, outside any cell; return what it printed."""
        answer = self.page.evaluate("code => window.__lab.execute(code)", code)
        assert not answer["error"], answer["error"]
        return str(answer["printed"]).strip()

    def held(self, expression: str, value: str) -> None:
        """Wait until an expression prints ``value``: code may overtake the page's messages."""
        for _ in range(200):
            if (now := self.kernel(f"print({expression})")) == value:
                return
            self.page.wait_for_function("() => window.__lab.idle()")
        raise AssertionError(f"{expression}: {now}; expected {value}")

    def theme(self, theme: str) -> None:
        """Switch to "light" or "dark", and wait until the page has switched."""
        name = f"JupyterLab {theme.title()}"
        self.page.evaluate(
            "t => window.jupyterapp.commands.execute('apputils:change-theme', {theme: t})", name
        )
        # The splash that JupyterLab shows meanwhile hides the page from axe's check of contrast.
        self.page.wait_for_function(
            "n => document.body.dataset.jpThemeName === n"
            " && !document.getElementById('jupyterlab-splash')",
            arg=name,
        )

    def complaints(self) -> list[str]:
        """Errors of scripts, console and cells, broken outputs, and requests to other machines."""
        return [*self.errors, *self.page.evaluate("() => window.__lab.broken()")]

    def unreadable(
        self, *, cut: bool = True, themes: Sequence[str] = ("dark", "light")
    ) -> list[str]:
        """Return axe's serious violations and pale plot texts by theme, and cut-off content."""
        if not self.page.evaluate("() => Boolean(window.axe)"):
            import axe_playwright_python

            source = Path(axe_playwright_python.__file__).parent / "axe.min.js"
            self.page.evaluate(source.read_text(encoding="utf-8"))
        found: list[str] = []
        for theme in themes:
            self.theme(theme)
            rules = [] if theme == themes[-1] else ["color-contrast"]  # others ignore color
            result = self.page.evaluate(
                "([w, only]) => window.__lab.axe(w, only)", [OUTPUTS, rules]
            )
            assert result["areas"], "nothing on the page shows anything"
            found += [f"{theme}: {violation}" for violation in result["violations"]]
            found += self.page.evaluate("() => window.__lab.pale()") if cut else []
        return found + (self.page.evaluate("() => window.__lab.cutOff()") if cut else [])
