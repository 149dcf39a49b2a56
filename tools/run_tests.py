"""Run every check of the project, the quick linters first, and report them all: a failing linter does not hide a failing test.

python tools/run_tests.py              everything
python tools/run_tests.py --lint       ruff, its formatter, mypy and import-linter alone
python tools/run_tests.py -k transfer  the same tests, with pytest's own options
python tools/run_tests.py --disturbed  the same beside programs that take the cores away in bursts (tools/disturb.py)

The browser runs every cell of every notebook and compares what nbval would compare; where there is no browser, nbval runs them.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import disturb

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
sys.path.append(str(ROOT / "tests" / "browser"))
LINTERS = (("ruff", "check", "."), ("ruff", "format", "--check", "."), ("lint-imports", "--no-logo"))
# Most of a minute on one core without its cache, while the other would have nothing to do: it runs beside the tests.
MYPY = ("mypy",)
PYTEST = (
    # One worker for each of two cores; a file's tests stay together, since nbval runs a notebook's cells in one kernel, and come in the
    # order of tests/conftest.py: xdist's own, by the number of tests, would leave the longest for the end.
    *("-n", "2", "--dist", "loadfile", "--no-loadscope-reorder"),
    # A test that hangs fails, and names itself. The longest one runs a whole notebook in the browser.
    *("--timeout", "400"),
    *("--nbval-lax", "--nbval-cell-timeout=120"),
    "--doctest-modules",
    "--durations=15",
    *("tests", "gpulab"),
)
# Beside programs that take the cores away a test may take longer; whatever it says of a time must hold all the same.
DISTURBED = ("--timeout", "800", "--nbval-cell-timeout=240")


def _run(command: tuple[str, ...]) -> bool:
    print(f"\n== {' '.join(command)}", flush=True)
    start = time.monotonic()
    good = subprocess.run([str(BIN / command[0]), *command[1:]], cwd=ROOT, check=False).returncode == 0
    print(f"== {command[0]}: {'passed' if good else 'FAILED'} in {time.monotonic() - start:.0f} s", flush=True)
    return good


def _start(command: tuple[str, ...]) -> Callable[[], bool]:
    """Run a command beside what comes next; what is returned waits for its end, shows what it said and tells whether it passed."""
    said = tempfile.TemporaryFile()  # noqa: SIM115 - read and closed at the end
    process = subprocess.Popen([str(BIN / command[0]), *command[1:]], cwd=ROOT, stdin=subprocess.DEVNULL, stdout=said, stderr=said)

    def end() -> bool:
        good = process.wait() == 0
        said.seek(0)
        text = said.read().decode(errors="replace").rstrip()
        said.close()
        print(f"\n== {' '.join(command)} (beside the tests)\n{text}\n== {command[0]}: {'passed' if good else 'FAILED'}", flush=True)
        return good

    return end


def has_browser() -> bool:
    """Return whether the browser tests can run here: playwright is installed, and it starts a Chromium."""
    if importlib.util.find_spec("playwright") is None:
        return False
    from lab_driver import CHROMIUM_ARGUMENTS, find_chromium
    from playwright.sync_api import Error, sync_playwright

    with sync_playwright() as playwright:
        try:
            playwright.chromium.launch(executable_path=find_chromium(), headless=True, args=CHROMIUM_ARGUMENTS).close()
        except Error:
            return False
    return True


def notebooks_for_nbval() -> list[str]:
    """Return the notebooks that no browser test runs: none where there is a browser, else all."""
    if has_browser():
        return []
    print("== no Chromium here: the notebooks run through nbval, and nobody drives their controls", flush=True)
    return [str(path.relative_to(ROOT)) for path in sorted((ROOT / "notebooks").glob("*.ipynb"))]


def main(arguments: list[str]) -> int:
    """Run the checks; return the exit code."""
    # Hundreds of kernels and ranks are started: where Python is told to write no bytecode, each of them compiles all of gpulab anew.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    lint_alone = arguments == ["--lint"]
    options = tuple(word for word in arguments if word != "--disturbed")
    beside, patient = (disturb.disturbed(), DISTURBED) if "--disturbed" in arguments else (contextlib.nullcontext(), ())
    results = {" ".join(command[:2]): _run(command) for command in (*LINTERS, *([MYPY] if lint_alone else []))}
    if not lint_alone:
        mypy_ended = _start(MYPY)
        try:
            with beside:
                results["pytest"] = _run(("pytest", *PYTEST, *patient, *notebooks_for_nbval(), *options))
        finally:
            results["mypy"] = mypy_ended()
    failed = [name for name, good in results.items() if not good]
    if failed:
        print(f"\nFailed: {', '.join(failed)}.", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
