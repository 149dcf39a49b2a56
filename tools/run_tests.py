"""Run the project's checks, and report them all: a failing linter does not hide a failing test.

    python tools/run_tests.py              everything: `make test`
    python tools/run_tests.py --check      linters, types, layers, size and the fast tests: `make
                                           check`
    python tools/run_tests.py -k transfer  the same tests, with pytest's own options
    python tools/run_tests.py --disturbed  beside programs that take the cores away in bursts
                                           (tools/disturb.py)

The browser runs every cell of every notebook and compares the outputs that are the same everywhere.
Where there is no browser, nbval runs the notebooks instead. In the browser ``GPULAB_QUICK=1``
shortens what the notebooks' cells measure, and trains at most two seeds.
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
LINTERS = (
    ("ruff", "check", "."),
    ("ruff", "format", "--check", "."),
    ("lint-imports", "--no-logo"),
    ("python", "tools/size.py"),
)
# Without its cache mypy takes most of a minute on one core, so it runs beside all the others.
MYPY = ("mypy",)
PYTEST = (
    # One worker for each of two cores. The tests of a file stay together, in the order of
    # tests/conftest.py.
    *("-n", "2", "--dist", "loadfile", "--no-loadscope-reorder"),
    # A test that hangs fails and names itself.
    *("--timeout", "600", "-q", "--durations=15"),
)
FAST = ("-m", "not slow and not browser and not gpu", "tests")
ALL = ("--nbval-lax", "--nbval-cell-timeout=120", "--doctest-modules", "tests", "gpulab")


def _run(command: tuple[str, ...]) -> bool:
    print(f"\n== {' '.join(command)}", flush=True)
    start = time.monotonic()
    good = (
        subprocess.run([str(BIN / command[0]), *command[1:]], cwd=ROOT, check=False).returncode == 0
    )
    print(
        f"== {command[0]}: {'passed' if good else 'FAILED'} in {time.monotonic() - start:.0f} s",
        flush=True,
    )
    return good


def _start(command: tuple[str, ...]) -> Callable[[], bool]:
    """Start a command in the background; the returned function waits for it, shows its output and
    returns whether it passed.
    """
    output = tempfile.TemporaryFile()  # noqa: SIM115 - read and closed at the end
    process = subprocess.Popen(
        [str(BIN / command[0]), *command[1:]],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
    )

    def end() -> bool:
        good = process.wait() == 0
        output.seek(0)
        text = output.read().decode(errors="replace").rstrip()
        output.close()
        print(
            f"\n== {' '.join(command)} (beside the others)\n{text}\n== {command[0]}: "
            f"{'passed' if good else 'FAILED'}",
            flush=True,
        )
        return good

    return end


def has_browser() -> bool:
    """Return whether the browser tests can run here: playwright is installed, and it starts a
    Chromium.
    """
    if importlib.util.find_spec("playwright") is None:
        return False
    from lab_driver import CHROMIUM, chromium_path
    from playwright.sync_api import Error, sync_playwright

    with sync_playwright() as playwright:
        try:
            playwright.chromium.launch(executable_path=chromium_path(), args=CHROMIUM).close()
        except Error:
            return False
    return True


def tests(check: bool) -> tuple[str, ...]:
    """Return pytest's arguments that select the tests."""
    if check:
        return FAST
    if has_browser():
        # The notebooks run nowhere else, so a browser test that is skipped has to fail.
        os.environ["GPULAB_REQUIRE_BROWSER"] = "1"
        return ALL
    print(
        "== no Chromium here: the notebooks run through nbval, and no test uses their controls",
        flush=True,
    )
    return (
        *ALL,
        *(str(path.relative_to(ROOT)) for path in sorted((ROOT / "notebooks").glob("*.ipynb"))),
    )


def main(arguments: list[str]) -> int:
    """Run the checks; return the exit code."""
    begin = time.monotonic()
    # Hundreds of kernels and ranks are started. If Python may not write bytecode, each of them
    # compiles all of gpulab again.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    options = tuple(word for word in arguments if word not in ("--check", "--disturbed"))
    beside = disturb.disturbed() if "--disturbed" in arguments else contextlib.nullcontext()
    mypy_ended = _start(MYPY)
    results = {" ".join(command[:2]): _run(command) for command in LINTERS}
    try:
        with beside:
            results["pytest"] = _run(("pytest", *PYTEST, *tests("--check" in arguments), *options))
    finally:
        results["mypy"] = mypy_ended()
    failed = [name for name, good in results.items() if not good]
    print(
        f"\n{'FAILED: ' + ', '.join(failed) if failed else 'All checks passed'} in "
        f"{time.monotonic() - begin:.0f} s."
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
