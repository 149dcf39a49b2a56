"""The course as a learner meets it: ``gpulab lab``'s own server, a real browser, every cell of every notebook, both themes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
from lab_driver import CONTRAST, Lab, NotebookPage, changed_outputs, running_lab

pytestmark = pytest.mark.browser
FOLDER = Path(__file__).resolve().parents[2] / "notebooks"
NOTEBOOKS = sorted(path.name for path in FOLDER.glob("*.ipynb"))
# Where each notebook runs in well under a minute alone; here other tests share the cores.
RUN_SECONDS = 240
# Ours are the instruments and results; JupyterLab's own frame and stock widgets' known faults are not.
OUTPUTS = ".jp-OutputArea-output"


@pytest.mark.slow
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_notebook_runs_in_the_browser(course_lab: Lab, open_notebook: Callable[..., NotebookPage], name: str, soak: bool) -> None:
    """All cells run without an error and print what they must, all is drawn, nothing fetched from outside; axe finds nothing serious.

    A worker's first notebook loads JupyterLab; the next ones open in the same tab, as a learner's do (``soak``: each loads it anew).
    """
    notebook = open_notebook(course_lab, name, fresh=soak)
    notebook.run_all(RUN_SECONDS)
    assert notebook.kernel_errors() == []
    assert changed_outputs(json.loads((FOLDER / name).read_text(encoding="utf-8")), notebook.code_cells()) == []
    assert notebook.broken_outputs() == []
    assert notebook.errors == []
    assert notebook.outside == []
    for theme, rules in (("light", ()), ("dark", CONTRAST)):
        notebook.set_theme(theme)
        assert notebook.axe(OUTPUTS, rules) == [], theme


def test_server_asks_for_its_token(course_lab: Lab) -> None:
    """Another user of the same machine, who has no token, gets nothing."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with pytest.raises(urllib.error.HTTPError) as refused:
        opener.open(f"{course_lab.url}/api/contents", timeout=60)
    assert refused.value.code == 403
    with opener.open(f"{course_lab.url}/api/contents?token={course_lab.token}", timeout=60) as answer:
        assert answer.status == 200


def test_no_news_and_no_update_checks(course_lab: Lab) -> None:
    """The course's defaults reach JupyterLab without a line in the user's own settings."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    address = f"{course_lab.url}/lab/api/settings/@jupyterlab/apputils-extension:notification?token={course_lab.token}"
    with opener.open(address, timeout=60) as answer:
        defaults = {name: entry.get("default") for name, entry in json.load(answer)["schema"]["properties"].items()}
    assert (defaults["fetchNews"], defaults["checkForUpdates"], defaults["doNotDisturbMode"]) == ("false", False, True)
    assert not list((course_lab.private / "settings").rglob("*notification*"))


def test_second_lab_opens_the_first(course_lab: Lab) -> None:
    """`gpulab lab` on a working copy that is being served says where, and starts no second server."""
    command = "import sys; from gpulab.cli import main; sys.exit(main(sys.argv[1:]))"
    arguments = [sys.executable, "-c", command, "lab", "--no-browser", f"--dir={course_lab.root}"]
    done = subprocess.run(arguments, env=course_lab.environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert course_lab.url in done.stdout
    assert "already runs" in done.stdout


@pytest.mark.skipif(sys.platform == "win32", reason="Windows delivers Ctrl-C in another way")
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_one_signal_stops_the_server(tmp_path: Path, how: int) -> None:
    """Ctrl-C once ends it without a question, and its words say so."""
    with running_lab(tmp_path) as lab:
        assert lab.stop(how) == 0
        text = lab.log.read_text()
    assert "JupyterLab has stopped." in text
    assert "Traceback" not in text
