"""Ask the grading process about each different answer once; start and watch that process, and restart it if it has ended."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from gpulab.lessons import _grader

# Beyond the limit of an answer: importing the libraries of its check, on a crowded machine.
_START_SECONDS = 180.0
# What the process that runs answers gets of this one's environment; its home and its temporary folder are its own.
_PASSED_ON = ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "SYSTEMROOT", "SYSTEMDRIVE", "COMSPEC", "PATHEXT")


class Regrader:
    """The grading process; ``with Regrader() as ask: ask(job)``."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._said: queue.Queue[str] = queue.Queue()
        self._folder: str

    def __enter__(self) -> Regrader:
        self._folder = tempfile.mkdtemp(prefix="gpulab-grades-")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def __call__(self, job: Mapping[str, Any]) -> _grader.Outcome:
        """Return the outcome of one job."""
        process = self._started()
        try:
            assert process.stdin is not None
            process.stdin.write(json.dumps(job) + "\n")
            process.stdin.flush()
            said = self._said.get(timeout=float(job["seconds"]) + _START_SECONDS)
            found = json.loads(said)
        except (OSError, queue.Empty, ValueError):
            self._stop()
            return {"state": "wrong", "message": f"It did not finish within {job['seconds']:g} s, or ended the process that checked it."}
        if not _grader.FORKS:
            self._stop()
        return {"state": str(found["state"]), "message": str(found["message"])}

    def _started(self) -> subprocess.Popen[str]:
        if self._process is None or self._process.poll() is not None:
            self._stop()
            self._process = subprocess.Popen(
                [sys.executable, "-c", "from gpulab.lessons._grader import main; main()"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, encoding="utf-8", cwd=self._folder,
                env=_environment(self._folder), start_new_session=os.name == "posix",
            )  # fmt: skip
            threading.Thread(target=_listen, args=(self._process, self._said), daemon=True).start()
        return self._process

    def _stop(self) -> None:
        """End the process and all that it started."""
        if self._process is None:
            return
        import psutil

        with contextlib.suppress(psutil.Error):
            for each in psutil.Process(self._process.pid).children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    each.kill()
        self._process.kill()
        self._process.wait()
        self._process, self._said = None, queue.Queue()


def _listen(process: subprocess.Popen[str], said: queue.Queue[str]) -> None:
    assert process.stdout is not None
    for text in process.stdout:
        said.put(text)
    said.put("")  # it has ended: nobody waits for the rest of the time


def _environment(folder: str) -> dict[str, str]:
    passed = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    path = os.pathsep.join(os.path.abspath(part) for part in sys.path if part)  # noqa: PTH100
    own = dict.fromkeys(("HOME", "USERPROFILE", "TMPDIR", "TEMP", "TMP", "GPULAB_LOCK_DIR", "IPYTHONDIR"), folder)
    return {
        **passed,
        **own,
        "PYTHONPATH": path,
        "PYTHONDONTWRITEBYTECODE": "1",
        "GPULAB_PROGRESS": os.path.join(folder, "progress.json"),  # noqa: PTH118
        # A right answer is right on any processor; and each thread's arena would count as memory that the answer takes.
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "2",
        "MALLOC_ARENA_MAX": "2",
    }
