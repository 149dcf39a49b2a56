"""Plant faults that a user would see, one at a time, and record which suite of tests catches them.

    python tools/visible_faults.py --suite new    this tree's tests; continues where it stopped
    python tools/visible_faults.py --suite old    the tests of commit 0e411de, by its seed_faults.py
    python tools/visible_faults.py --suite new --only 'kernels-*' --again     the missed ones again
    python tools/visible_faults.py --report       the table of both suites, and the totals

benchmarks/visible_faults.json lists the faults: a text that stands once in a file, what replaces
it, and what a user then sees. Each is planted in a temporary copy. The nearest tests run first,
then the others, up to the first failure. The test that failed is then run in the unchanged copy:
if it fails there too, it is left out from then on, and the fault is tried again without it.
Two commands can run at the same time, for example one for each suite.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import importlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
RECORD = ROOT / "benchmarks" / "recorded" / "visible_faults.json"
# Limit for one turn of one fault; a turn that is cut off before a test fails has caught nothing.
SECONDS = {"old": 240, "new": 300}
OPTIONS = {
    "old": "-x -q -p no:cacheprovider --doctest-modules --nbval-lax --nbval-cell-timeout=120 "
    "--timeout=120",
    "new": "-x -q -p no:cacheprovider -n 0 --import-mode=importlib --timeout=200",
}
NO_BROWSER = ["-m", "not browser and not gpu"]
NEW: dict[str, Any] = {"outcome": "asked", "by": "", "turn": -1, "seconds": 0.0, "cut_off": False}


def run_tests(tree: Path, suite: str, tests: list[str]) -> tuple[str, bool]:
    """Run tests of a copy in a fork of this process, up to the first failure.

    Parameters
    ----------
    tree : Path
        The copy.
    suite : str
        "old" or "new": which options pytest gets.
    tests : list of str
        Paths and options for pytest.

    Returns
    -------
    (str, bool)
        The test that failed ("" if none did), and whether the time was up before the end.
    """
    with tempfile.NamedTemporaryFile("r", encoding="utf-8", prefix="gpulab-visible-") as notes:
        begin, child = time.monotonic(), os.fork()
        if child == 0:
            _run_in_child(tree, [*OPTIONS[suite].split(), *tests], Path(notes.name))
        signal.signal(signal.SIGALRM, lambda *_: os.kill(child, signal.SIGKILL))
        signal.alarm(SECONDS[suite])
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        signal.alarm(0)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)  # what the tests left behind
        reports = [json.loads(line) for line in notes]
    cut_off = time.monotonic() - begin >= SECONDS[suite]
    # If the process died: the last test that was reported, if there is one, and the exit code.
    died = [*(test for _, test in reports[-1:]), f"pytest: exit code {code}"]
    failed = [test for bad, test in reports if bad] or ([] if cut_off or code in (0, 5) else died)
    return next(filter(None, failed), ""), cut_off


def _run_in_child(tree: Path, arguments: list[str], notes: Path) -> None:
    def write(report: Any) -> None:
        with notes.open("a", encoding="utf-8") as file:  # at once: the process may die
            file.write(json.dumps([report.failed, report.nodeid]) + "\n")

    try:
        os.setsid()
        for stream in (0, 1, 2):
            os.dup2(os.open(os.devnull, os.O_RDWR), stream)
        os.chdir(tree)
        os.environ["PYTHONPATH"] = str(tree)
        # The copy's gpulab comes before the installed one.
        sys.path[0], sys.argv = str(tree), ["pytest", *arguments]
        hooks = dict.fromkeys(("pytest_runtest_logreport", "pytest_collectreport"), write)
        os._exit(int(pytest.main(arguments, plugins=[type("Plugin", (), hooks)])))
    finally:
        os._exit(3)


@contextlib.contextmanager
def copied(suite: str) -> Iterator[Path]:
    """Yield a copy of this tree, or of the old commit.

    Python checks the copy's compiled files by content, so that no fault outlives its turn.
    """
    with tempfile.TemporaryDirectory(prefix="gpulab-visible-") as folder:
        tree = Path(folder, "tree")
        if suite == "new":
            shutil.copytree(
                ROOT,
                tree,
                ignore=shutil.ignore_patterns(".git", ".venv", ".gpulab", "*_cache", "__pycache__"),
                symlinks=True,
            )
        else:
            subprocess.run(
                ("git", "archive", f"--output={folder}/old.tar", "0e411de"), cwd=ROOT, check=True
            )
            shutil.unpack_archive(f"{folder}/old.tar", tree, filter="data")
        subprocess.run(
            (sys.executable, "-mcompileall", "-q", "--invalidation-mode=checked-hash", "gpulab"),
            cwd=tree,
            check=True,
        )
        yield tree


def turns(suite: str, path: str, tree: Path) -> list[list[str]]:
    """Return pytest's arguments for each turn of a file's fault: the nearest tests come first."""
    if suite == "old":
        sys.path.append(str(tree / "tools"))
        found = importlib.import_module("seed_faults").mapped(path, tree)
        some = [turn for turn in found if any(t.endswith((".py", ".ipynb")) for t in turn)]
        return [[*NO_BROWSER, *turn] for turn in some]
    name = Path(path).with_suffix("").parts[path.startswith("gpulab/")].strip("_")
    name = "lessons" if name == "course" else name
    patterns = [name, f"**/test_{name}*.py", *(["notebooks"] if name == "lessons" else [])]
    near = [str(p.relative_to(tree)) for each in patterns for p in (tree / "tests").glob(each)]
    near = near or [str(p.relative_to(tree)) for p in (tree / "tests").glob("test_*.py")]
    if path.endswith(".ipynb"):
        return [[*NO_BROWSER, *near], ["tests/browser/test_course.py", "-k", Path(path).stem]]
    if path.endswith(".py"):
        near += ["--doctest-modules", path]
    rest = ["tests", *(f"--ignore={each}" for each in near if each.startswith("tests/"))]
    asked = [
        ["-m", "not browser and not gpu and not slow", *rest],
        ["-m", "slow and not browser", *rest],
    ]
    asked = [[*NO_BROWSER, *near], *asked]
    if name in ("widgets", "figures", "lab", "html"):
        asked.insert(1, ["tests/browser/test_journeys.py", "tests/browser/test_lab.py"])
    return asked


def fails_without(tree: Path, suite: str, test: str, turn: list[str]) -> bool:
    """Return whether a test, or pytest itself for a turn, fails in the unchanged copy too."""
    # A notebook's cell needs the cells before it; a name without "::" is a file that could not be
    # collected.
    asked = (
        turn
        if test.startswith("pytest:")
        else [test.partition("::")[0] if ".ipynb::" in test else test]
    )
    return run_tests(tree, suite, [*asked, *([] if "::" in test else ["--co"])])[0] == test


def attempt(tree: Path, suite: str, fault: dict[str, str], turn: int) -> dict[str, Any]:
    """Plant a fault and run one turn of tests.

    Returns
    -------
    dict
        The outcome ("caught", "missed", "not there", or "asked" if there are more turns), the
        failed test, the seconds, and whether the turn was cut off.
    """
    path = fault.get("old_path", fault["path"]) if suite == "old" else fault["path"]
    begin, place = time.monotonic(), tree / path
    text = place.read_text(encoding="utf-8") if place.exists() else ""
    if text.count(fault["before"]) != 1:
        return {**NEW, "outcome": "not there"}
    asked = turns(suite, path, tree)
    while True:
        known = read_record()["failing"][suite]
        left_out = [f"--{'deselect' if '::' in test else 'ignore'}={test}" for test in known]
        place.write_text(text.replace(fault["before"], fault["after"]), encoding="utf-8")
        by, cut_off = run_tests(tree, suite, [*asked[turn], *left_out])
        place.write_text(text, encoding="utf-8")
        if not by or by in known or not fails_without(tree, suite, by, asked[turn]):
            break
        change_record(lambda record, test=by: record["failing"][suite].append(test))
    none = "asked" if turn + 1 < len(asked) else "missed"
    outcome, seconds = "caught" if by and by not in known else none, time.monotonic() - begin
    return {"outcome": outcome, "by": by, "turn": turn, "seconds": seconds, "cut_off": cut_off}


def read_record() -> dict[str, Any]:
    """Return each suite's outcome for each fault, and the tests that fail without a fault."""
    first = {"seconds_per_turn": SECONDS, "failing": {"old": [], "new": []}, "faults": {}}
    return dict(json.loads(RECORD.read_text(encoding="utf-8"))) if RECORD.exists() else first


def change_record(edit: Callable[[dict[str, Any]], object]) -> None:
    """Change the record under a lock; the file is complete at any time, either old or new."""
    with Path(tempfile.gettempdir(), "gpulab-visible-faults.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        record = read_record()
        edit(record)
        RECORD.with_suffix(".new").write_text(json.dumps(record, indent=1) + "\n", "utf-8")
        RECORD.with_suffix(".new").replace(RECORD)


def try_all(faults: dict[str, dict[str, str]], suite: str, again: bool) -> None:
    """Try each fault with its nearest tests, then those that were not caught with further ones."""
    retried = ("missed", "not there") if again else ()
    known = {id: read_record()["faults"].get(id, {}).get(suite, NEW) for id in faults}
    waiting = {
        id: NEW if one["outcome"] in retried else one
        for id, one in known.items()
        if one["outcome"] in ("asked", *retried)
    }
    with copied(suite) as tree:
        while waiting:
            id = min(waiting, key=lambda id: waiting[id]["turn"])
            one = attempt(tree, suite, faults[id], waiting[id]["turn"] + 1)
            one["seconds"] = round(one["seconds"] + waiting[id]["seconds"], 1)
            one["cut_off"] |= waiting.pop(id)["cut_off"]
            change_record(
                lambda r, id=id, one=one: r["faults"].setdefault(id, {}).update({suite: one})
            )
            waiting |= {id: one} if one["outcome"] == "asked" else {}
            print(f"{len(waiting):3} left  {id:15} {_said(one)}", flush=True)


def _said(found: dict[str, Any]) -> str:
    cut_off = " (a turn was cut off)" if found["cut_off"] else ""
    return f"{found['outcome']:9} {found['seconds']:6.1f} s  {found['by']}{cut_off}"


def report(faults: dict[str, dict[str, str]]) -> None:
    """Print each suite's outcome for each fault, and the totals."""
    record = read_record()["faults"]
    for id, fault in faults.items():
        print(f"{id:15} {fault['path']}: {fault['sees']}")
        print(
            *(f"    {suite}: {_said(record.get(id, {}).get(suite, NEW))}" for suite in SECONDS),
            sep="\n",
        )
    for suite in SECONDS:
        all_ = [record.get(id, {}).get(suite, NEW)["outcome"] for id in faults]
        words = ("caught", "missed", "asked", "not there")
        print(f"{suite}:", ", ".join(f"{all_.count(word)} {word}" for word in words))


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--suite", choices=tuple(SECONDS), help="whose tests run")
    parser.add_argument("--report", action="store_true", help="print the table and end")
    parser.add_argument("--only", default="*", help="a pattern of ids, such as 'kernels-*'")
    parser.add_argument("--again", action="store_true", help="retry what the suite missed")
    asked = parser.parse_args()
    listed = json.loads((ROOT / "benchmarks" / "visible_faults.json").read_text(encoding="utf-8"))
    faults = {one["id"]: one for one in listed if Path(one["id"]).match(asked.only)}
    if asked.suite and not asked.report:
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # tests/conftest.py sets it too late
        # Imported once, before each run is forked: most of a short run's time is its start.
        for name in ("hypothesis", "nbval.plugin", "torch", "plotly.graph_objects"):
            importlib.import_module(name)
        try_all(faults, asked.suite, asked.again)
    report(faults)


if __name__ == "__main__":
    main()
