"""Drive JupyterLab in headless Chromium: start the server, open a notebook, run it, look at what it shows.

``Lab`` is a running server, ``NotebookPage`` one notebook in one browser tab. Everything waits for a condition, never for
a time. The page's own ``window.jupyterapp`` runs commands, so no test depends on menus.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nbformat

CHROMIUM_ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    # Whatever asks for a name outside this machine fails at once, as it would without the internet.
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)
THEMES = {"light": "JupyterLab Light", "dark": "JupyterLab Dark"}
CONTRAST = ("color-contrast",)
_START_SECONDS = 90
# How often the page looks whether a run is over. Playwright would look at each frame, which makes Chromium draw sixty a second meanwhile.
_LOOK_MILLISECONDS = 100
_SETTINGS = {
    # JupyterLab draws only the cells in view; a test wants all of them.
    "notebook-extension/tracker": {"windowingMode": "none"},
    # Tests must not depend on when a file was saved.
    "docmanager-extension/plugin": {"autosave": False},
}
# A shell's background jobs and all their children ignore Ctrl-C, so the servers listen to it again.
_LISTEN = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
_SERVE = """
import sys
from pathlib import Path
from gpulab import _lab
sys.exit(_lab.serve(Path(sys.argv[1]), int(sys.argv[2]), open_browser=False, extra=sys.argv[3:]))
"""
_COMMAND = "import sys; from gpulab.cli import main; sys.exit(main(sys.argv[1:]))"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Lab:
    """A JupyterLab server of this environment on a folder: ``url``, ``token``, ``root``."""

    def __init__(self, root: Path, *, through_command: bool = False) -> None:
        self.root = root
        self.tabs: list[Tab] = []  # those that wait for their next notebook
        self.private = Path(tempfile.mkdtemp(prefix="gpulab-lab-"))
        self.log = self.private / "server.log"
        exposed = "--LabApp.expose_app_in_browser=True"
        port = _free_port()  # two servers that start together could both find 8888 free
        if through_command:
            command = ["-c", _LISTEN + _COMMAND, "lab", "--no-browser", f"--port={port}", f"--dir={root}", "--", exposed]
        else:
            command = ["-c", _LISTEN + _SERVE, str(root), str(port), exposed]
        self.environment = self._environment()
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, *command],
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env=self.environment,
            )
        self.url, self.token = self._wait_for_address()

    def _environment(self) -> dict[str, str]:
        settings = self.private / "settings"
        for plugin, values in _SETTINGS.items():
            path = settings / "@jupyterlab" / f"{plugin}.jupyterlab-settings"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(values))
        return os.environ | {
            "HOME": str(self.private),
            "JUPYTERLAB_SETTINGS_DIR": str(settings),
            "JUPYTER_RUNTIME_DIR": str(self.private / "runtime"),
            "PYTHONUNBUFFERED": "1",
        }

    def _wait_for_address(self) -> tuple[str, str]:
        end = time.monotonic() + _START_SECONDS
        while time.monotonic() < end:
            found = re.search(r"(http://127\.0\.0\.1:\d+)/lab/tree/\S*\?token=(\w+)", self.log.read_text(errors="replace"))
            if found:
                return found[1], found[2]
            if self.process.poll() is not None:
                break
            time.sleep(0.05)
        self.stop()
        raise RuntimeError(f"JupyterLab did not start:\n{self._log_text}")

    @property
    def _log_text(self) -> str:
        return self.log.read_text(errors="replace")[-4000:]

    def write_notebook(self, name: str, cells: Sequence[str]) -> str:
        """Write a notebook of these code cells into the server's folder; return its name."""
        notebook = nbformat.v4.new_notebook(
            cells=[nbformat.v4.new_code_cell(source) for source in cells],
            metadata={"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}},
        )
        nbformat.write(notebook, self.root / name)
        return name

    def stop(self, by: int = signal.SIGINT) -> int:
        """Stop the server as Ctrl-C does; return its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(by)
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        return self.process.returncode

    def remove(self) -> None:
        """Stop the server and remove what it wrote outside its folder."""
        self.stop()
        shutil.rmtree(self.private, ignore_errors=True)


@contextmanager
def running_lab(root: Path, *, through_command: bool = False) -> Iterator[Lab]:
    """Run a server while the block runs; ``through_command`` starts it with ``gpulab lab`` itself."""
    lab = Lab(root, through_command=through_command)
    try:
        yield lab
    finally:
        lab.remove()


def find_chromium() -> str | None:
    """Return a browser's path: Debian's Chromium, Chrome, or None to let playwright look for its own."""
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable"))), None)


def _is_jupyterlabs(error: Any) -> bool:
    """Whether JupyterLab's own React met a node that JupyterLab had already taken away, as it rarely does on a busy machine.

    An instrument's script comes from a blob or a data URL, and would be in the stack.
    """
    own = "blob:" not in error.stack and "data:" not in error.stack
    return own and "Failed to execute 'removeChild' on 'Node'" in error.message


class Tab:
    """One browser tab: ``page`` is playwright's; ``errors`` and ``outside`` collect complaints and requests to other machines."""

    def __init__(self, browser: Any, lab: Lab) -> None:
        self.errors: list[str] = []
        self.outside: list[str] = []
        inside = (lab.url, "data:", "blob:", "about:")
        self.context = browser.new_context()
        self.page = self.context.new_page()
        self.page.set_default_timeout(30_000)
        self.page.on("pageerror", lambda error: None if _is_jupyterlabs(error) else self.errors.append(f"script: {error}"))
        self.page.on("console", lambda message: self.errors.append(f"console: {message.text}") if message.type == "error" else None)
        self.page.on("request", lambda request: None if request.url.startswith(inside) else self.outside.append(request.url))


class NotebookPage:
    """One notebook, open in one tab: run it, read it, drive it.

    ``page`` is playwright's page; ``errors`` collects what the browser's console and scripts complained about. JupyterLab takes longer to
    load than a test to run, so a tab that was closed with ``keep`` is taken again for the server's next notebook, unless ``fresh``.
    """

    def __init__(self, browser: Any, lab: Lab, name: str, *, width: int = 1400, height: int = 1000, fresh: bool = False) -> None:
        self.lab, self.name = lab, name
        self.cells: tuple[str, ...] | None = None
        self.closed = False
        kept = bool(lab.tabs) and not fresh
        self.tab = lab.tabs.pop() if kept else Tab(browser, lab)
        self.page = self.tab.page
        self.errors, self.outside = self.tab.errors, self.tab.outside
        if kept:
            self.as_opened(width=width, height=height)
            self.page.evaluate("name => window.__lab.open(name)", name)
        else:
            self.page.set_viewport_size({"width": width, "height": height})
            self.page.goto(f"{lab.url}/lab/tree/{name}?token={lab.token}&reset", timeout=90_000)
        self._wait_until_open()
        if not kept:
            self.set_theme("light")

    def as_opened(self, *, width: int = 1400, height: int = 1000) -> None:
        """Bring the tab back to how a new one is: no complaints yet, its size, the light theme."""
        self.errors.clear()
        self.outside.clear()
        self.page.set_viewport_size({"width": width, "height": height})
        self.set_theme("light")

    def _wait_until_open(self) -> None:
        self.page.wait_for_selector(".jp-Notebook .jp-Cell", timeout=90_000)
        self.page.wait_for_function(
            """() => { const w = window.jupyterapp?.shell.currentWidget; const k = w?.sessionContext?.session?.kernel;
                       return k?.connectionStatus === 'connected'; }""",
            timeout=90_000,
        )
        self.page.evaluate((Path(__file__).parent / "page.js").read_text(encoding="utf-8"))
        self.page.evaluate("() => window.__lab.ready()")

    def run_all(self, seconds: float = 120) -> None:
        """Run all cells and wait until the last one is done and every widget and plot of theirs is drawn.

        Raises ``TimeoutError`` naming the cell that still runs.
        """
        from playwright.sync_api import TimeoutError as TooLong

        self.page.evaluate("() => window.__lab.runAll()")
        try:
            self.page.wait_for_function("() => window.__lab.done !== null", polling=_LOOK_MILLISECONDS, timeout=seconds * 1000)
        except TooLong as error:
            running = self.page.evaluate("() => window.__lab.running()")
            raise TimeoutError(f"{self.name}: not done after {seconds} s; running: {running}") from error
        self.page.wait_for_function("() => window.__lab.drawn()", timeout=60_000)
        self.wait_idle()

    def wait_idle(self, seconds: float = 60) -> None:
        """Wait until the kernel has nothing to do."""
        self.page.wait_for_function("() => window.__lab.idle()", timeout=seconds * 1000)

    def kernel_errors(self) -> list[str]:
        """Return every error output and every traceback on stderr of the notebook, with its cell's number."""
        return self.page.evaluate("() => window.__lab.kernelErrors()")

    def broken_outputs(self) -> list[str]:
        """Return the outputs that JupyterLab itself could not draw."""
        return self.page.evaluate("() => window.__lab.broken()")

    def output(self, cell: int) -> Any:
        """Return playwright's locator of the output area of the cell with this number (all cells counted, from 0)."""
        return self.page.locator(".jp-Notebook .jp-Cell").nth(cell).locator(".jp-OutputArea").first

    def run_in_kernel(self, code: str) -> str:
        """Run code in the notebook's kernel, apart from its cells, and return what it printed; an error raises ``RuntimeError``."""
        answer = self.page.evaluate("code => window.__lab.execute(code)", code)
        if answer["error"]:
            raise RuntimeError(answer["error"])
        return answer["printed"]

    def set_theme(self, theme: str) -> None:
        """Switch JupyterLab to "light" or "dark" and wait until it is."""
        name = THEMES[theme]
        self.page.evaluate("theme => window.jupyterapp.commands.execute('apputils:change-theme', {theme})", name)
        self.page.wait_for_function("name => document.body.dataset.jpThemeName === name", arg=name)

    def axe(self, within: str = ".jp-OutputArea", only: Sequence[str] = ()) -> list[str]:
        """Run axe in every matching area that shows something; return the serious and critical violations as "rule: element".

        An area must be there: with none, axe would have nothing to object to. ``only`` names the rules to apply, where not all are: a
        second theme can change nothing but ``CONTRAST``.
        """
        if not self.page.evaluate("() => Boolean(window.axe)"):
            self.page.evaluate(_axe_source())
        result = self.page.evaluate("([within, only]) => window.__lab.axe(within, only)", [within, list(only)])
        if not result["areas"]:
            raise AssertionError(f"{self.name}: nothing on the page fits {within!r} and shows something")
        return result["violations"]

    def code_cells(self) -> list[dict[str, Any]]:
        """Return the notebook's code cells as JupyterLab would save them, outputs included."""
        return self.page.evaluate("() => window.__lab.codeCells()")

    def close(self, *, keep: bool = False) -> None:
        """End the kernel; close the tab, or keep it with JupyterLab in it for the next notebook. A second time does nothing."""
        if self.closed:
            return
        self.closed = True
        if not self.page.is_closed():
            self.page.evaluate("() => window.__lab.close()")
        if not keep:
            self.tab.context.close()
            return
        self.lab.tabs.append(self.tab)


# What a notebook's file and a run need not agree on.
_INCIDENTAL = ("execution_count", "metadata", "transient", "id")


def changed_outputs(stored: dict[str, Any], shown: Sequence[dict[str, Any]]) -> list[str]:
    """Return where a run's outputs differ from those that the notebook's file keeps in its checked cells (``# NBVAL_CHECK_OUTPUT``)."""
    kept = [cell for cell in stored["cells"] if cell["cell_type"] == "code"]
    if len(kept) != len(shown):
        return [f"{len(kept)} code cells in the file, {len(shown)} on the page"]
    pairs = [(number, _plain(cell["outputs"]), _plain(other["outputs"]), _joined(cell["source"])) for number, (cell, other) in
             enumerate(zip(kept, shown, strict=True))]  # fmt: skip
    return [f"code cell {number}: {before!r} became {now!r}" for number, before, now, source in pairs
            if "NBVAL_CHECK_OUTPUT" in source and before != now]  # fmt: skip


def _joined(text: Any) -> Any:
    return "".join(text) if isinstance(text, list) and all(isinstance(part, str) for part in text) else text


def _plain(outputs: Sequence[dict[str, Any]]) -> list[Any]:
    """Return outputs without what is incidental; what went to one stream in several parts is one text, at the place of the first."""
    found: list[Any] = []
    streams: dict[str, dict[str, Any]] = {}
    for output in outputs:
        plain = {key: _joined(value) for key, value in output.items() if key not in _INCIDENTAL}
        if "data" in plain:
            plain["data"] = {kind: _joined(value) for kind, value in plain["data"].items()}
        if output["output_type"] == "stream" and output["name"] in streams:
            streams[output["name"]]["text"] += plain["text"]
            continue
        if output["output_type"] == "stream":
            streams[output["name"]] = plain
        found.append(plain)
    return found


def _axe_source() -> str:
    import axe_playwright_python

    return (Path(axe_playwright_python.__file__).parent / "axe.min.js").read_text(encoding="utf-8")
