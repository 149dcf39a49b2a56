"""A server of test runs: imports what most tests need once, then runs pytest in a fork for each line that it is given.

Most of a short run of tests is its start: pytest's plugins and torch take seconds to import. Nothing of the project is imported here, so
each fork reads the project as it lies in the folder that it is told. The libraries are named on the command line. A line is a JSON list
[folder, arguments, seconds]; the answer is the exit code, or null where the time was up and the run was ended.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
import time


def main() -> None:
    """Serve until there is nobody left to serve."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as tests/conftest.py has it, which comes too late here
    for name in ("pytest", "hypothesis", "nbval.plugin", *sys.argv[1:]):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    parent = os.getppid()
    for line in sys.stdin:
        folder, arguments, seconds = json.loads(line)
        child = os.fork()
        if child == 0:
            _run(folder, arguments)
        end = time.monotonic() + seconds
        while (done := os.waitpid(child, os.WNOHANG)) == (0, 0) and time.monotonic() < end and os.getppid() == parent:
            time.sleep(0.02)
        if done == (0, 0):
            os.killpg(child, 9)
            os.waitpid(child, 0)
        # By a signal, which a fault can be the reason of, is a code of its own.
        print(json.dumps(None if done == (0, 0) else os.waitstatus_to_exitcode(done[1])), flush=True)


def _run(folder: str, arguments: list[str]) -> None:
    code = 3  # pytest's internal error
    try:
        os.setsid()
        nothing = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nothing, stream)
        os.chdir(folder)
        os.environ["PYTHONPATH"] = folder
        sys.path[0] = folder  # as `python -m pytest` has it
        sys.argv = ["pytest", *arguments]
        pytest = importlib.import_module("pytest")
        code = int(pytest.main([*arguments, "-W", "ignore::pytest.PytestAssertRewriteWarning"]))
    finally:
        os._exit(code)


if __name__ == "__main__":
    main()
