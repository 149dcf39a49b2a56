"""``gpulab lab`` from its start to its end: token, settings, one server per folder, signals."""

import contextlib
import http.client
import json
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from lab_driver import SECONDS, Lab

pytestmark = pytest.mark.browser


def _get(lab: Lab, path: str, token: str) -> bytes:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"{lab.url}{path}?token={token}", timeout=60) as answer:
        return bytes(answer.read())


@pytest.mark.slow
def test_the_server_asks_for_its_token_and_fetches_no_news(lab: Lab) -> None:
    """Without the token nothing is served; the course's setting (fetch no news) is the default."""
    with pytest.raises(urllib.error.HTTPError, match="403"):
        _get(lab, "/api/contents", "")
    entries = json.loads(_get(lab, "/api/contents", lab.token))["content"]
    assert "00_start_here.ipynb" in {entry["name"] for entry in entries}
    path = "/lab/api/settings/@jupyterlab/apputils-extension:notification"
    schema = json.loads(_get(lab, path, lab.token))["schema"]["properties"]
    assert schema["fetchNews"]["default"] == "false"


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="Windows delivers Ctrl-C in another way")
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_one_signal_stops_the_server(tmp_path: Path, how: int) -> None:
    """A second ``gpulab lab`` prints the first server's address; one signal ends that server."""
    server = Lab(tmp_path / "work")
    try:
        again = subprocess.run(
            server.command(),
            env=server.environment,
            capture_output=True,
            text=True,
            check=True,
            timeout=SECONDS,  # a second server would not end
        )
        assert server.url in again.stdout
        assert server.stop(how) == 0
        assert "Traceback" not in server.said
    finally:
        server.remove()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="Windows delivers Ctrl-C in another way")
def test_one_signal_stops_a_busy_server(tmp_path: Path) -> None:
    """Ctrl-C is not lost when it arrives while the server answers a request."""
    server, answers, stopped = Lab(tmp_path / "work"), threading.Semaphore(0), threading.Event()

    def ask() -> None:
        while not stopped.is_set():
            with contextlib.suppress(OSError, http.client.HTTPException):
                _get(server, "/api/contents", server.token)
                answers.release()

    with ThreadPoolExecutor() as pool:
        try:
            for _ in range(4):
                pool.submit(ask)
            assert all(answers.acquire(timeout=SECONDS) for _ in range(20))
            assert server.stop() == 0
        finally:
            stopped.set()
            server.remove()
