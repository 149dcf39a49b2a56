"""A server that a class shares: its configuration can be read, and an idle kernel really ends and gives its process back."""

from __future__ import annotations

import json
import os
import pathlib
import re
import secrets
import subprocess
import sys
import threading
import time
import urllib.request
from typing import Any

import jupyter_core.paths
import psutil
import pytest
from jupyter_client.kernelspec import KernelSpecManager

CONFIG = pathlib.Path(__file__).resolve().parents[1] / "docs" / "jupyterhub_config.py"
DEADLINE = 120.0


class Config(dict):
    """What traitlets' Config does here: sections come into being when they are asked for."""

    def __getattr__(self, name: str) -> Any:
        return self.setdefault(name, Config())

    __setattr__ = dict.__setitem__  # type: ignore[assignment]


def configuration() -> Config:
    """The configuration file, executed."""
    config = Config()
    exec(compile(CONFIG.read_text(encoding="utf-8"), str(CONFIG), "exec"), {"get_config": lambda: config})
    return config


def test_the_variables_of_the_configuration_are_the_packages_own() -> None:
    """Each GPULAB_ variable that the file sets is one that the package reads."""
    package = "\n".join(file.read_text(encoding="utf-8") for file in (CONFIG.parents[1] / "gpulab").rglob("*.py"))
    names = set(configuration()["Spawner"]["environment"]) - {"JUPYTER_PREFER_ENV_PATH"}
    assert names == {"GPULAB_GPU_MEMORY", "GPULAB_LOCK_DIR", "GPULAB_SOLUTIONS"}
    assert all(f'"{name}"' in package for name in names)


def test_students_get_the_courses_kernel_though_they_have_one_of_the_name(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """jupyter_core puts a home's kernels first where the environment belongs to somebody else; the configuration's variables turn it."""
    mine = tmp_path / "kernels" / "python3"
    mine.mkdir(parents=True)
    (mine / "kernel.json").write_text(json.dumps({"argv": ["/usr/bin/python3"], "display_name": "mine", "language": "python"}))
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path))
    monkeypatch.setattr(jupyter_core.paths, "_do_i_own", lambda path: False)
    for name in ("JUPYTER_PREFER_ENV_PATH", "JUPYTER_PATH", "CONDA_PREFIX"):
        monkeypatch.delenv(name, raising=False)
    assert KernelSpecManager().get_kernel_spec("python3").display_name == "mine"
    for name, value in configuration()["Spawner"]["environment"].items():
        monkeypatch.setenv(name, value)
    assert KernelSpecManager().get_kernel_spec("python3").display_name == "Python 3 (ipykernel)"


def test_the_folder_of_the_turns_is_there_after_a_restart_and_both_pages_name_it() -> None:
    """It is made once, so not in what a start empties (Filesystem Hierarchy Standard: /run, /tmp; /var/lock is /run/lock)."""
    folder = pathlib.PurePosixPath(configuration()["Spawner"]["environment"]["GPULAB_LOCK_DIR"])
    assert not any(folder.is_relative_to(emptied) for emptied in ("/run", "/tmp", "/var/lock", "/var/run"))
    for page in (CONFIG, CONFIG.with_name("classroom.md")):
        assert re.findall(r"install -d -m 1777 ([\w/]+)", page.read_text(encoding="utf-8")) == [str(folder)]


def test_an_idle_kernel_ends_with_the_servers_own_options(tmp_path: pathlib.Path) -> None:
    """With the options of the configuration, their seconds cut down, a kernel is gone from the list, and its process from the machine."""
    options = [re.sub(r"cull_idle_timeout=\d+", "cull_idle_timeout=2", each) for each in configuration()["Spawner"]["args"]]
    options = [re.sub(r"cull_interval=\d+", "cull_interval=1", each) for each in options]
    token, running = secrets.token_hex(8), tmp_path / "runtime"
    command = [
        sys.executable, "-m", "jupyter_server", "--no-browser", "--allow-root", f"--IdentityProvider.token={token}",
        f"--ServerApp.root_dir={tmp_path}", *options,
    ]  # fmt: skip
    server = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={**os.environ, "JUPYTER_RUNTIME_DIR": str(running)}
    )
    children, over = set[psutil.Process](), threading.Event()

    def ask(method: str) -> Any:
        (kept,) = running.glob("jpserver-*.json")  # with the port that it took: the one that it wanted may be another's
        port = json.loads(kept.read_text())["port"]
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/api/kernels", method=method, headers={"Authorization": f"token {token}"},
            data=b"{}" if method == "POST" else None,
        )  # fmt: skip
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)

    def watch() -> None:
        while not over.wait(0.02):
            children.update(psutil.Process(server.pid).children(recursive=True))

    watching = threading.Thread(target=watch)
    try:
        until(lambda: ask("GET") == [])
        watching.start()  # before the kernel is there: on a busy machine it may have ended when the answer comes
        ask("POST")
        until(lambda: ask("GET") == [])
        over.set()
        watching.join()
        assert children
        until(lambda: not any(each.is_running() and each.status() != psutil.STATUS_ZOMBIE for each in children))
    finally:
        over.set()
        server.kill()
        server.wait()


def until(holds: Any) -> None:
    """Wait for a condition; a server that does not answer yet counts as no."""
    end = time.monotonic() + DEADLINE
    while True:
        try:
            if holds():
                return
        except (OSError, ValueError, psutil.Error):
            pass
        if time.monotonic() > end:
            pytest.fail("the server did not come to it in two minutes")
        time.sleep(0.2)
