"""Plant faults in a copy of the project, one at a time, and see whether the tests that are mapped to the file notice.

    python tools/seed_faults.py                       200 faults, chosen by seed 1; an interrupted run goes on where it stopped
    python tools/seed_faults.py --faults 40 --seed 7 --only 'gpulab/timing/*'
    python tools/seed_faults.py --report              what the last run of this seed found, the missed ones with their change
    python tools/seed_faults.py --again               plant once more what was missed, to see whether new tests notice it

Kinds: a wrong constant, a comparison or a sign turned, swapped arguments or axes, a dead callback, a missing synchronise, an empty result,
a dropped statement, turned logic; in notebooks also an emptied cell. The copy's tests run by this very Python, with the copy first on the
path. The nearest tests are asked first, and those of the folder only if they noticed nothing. A test that noticed is then run in the
unchanged copy: one that fails there too is never asked again, and the fault is tried without it. A fault that changes nothing that could
be seen counts as missed until somebody says why.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import fnmatch
import functools
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from planted_faults import Fault, faults_in, planted

ROOT = Path(__file__).resolve().parent.parent
STATE = ROOT / ".gpulab"
_LEFT_OUT = (".git", ".venv", ".gpulab", "my-notebooks", "__pycache__", ".*_cache", ".hypothesis", "node_modules")
# So many faults are noticed before the tests that noticed are run without any: in one go, since most of a short run is its start.
_TOGETHER = 15
# Tests that look at each module of the package.
_WALKS = ("tests/test_all_results.py", "tests/test_frozen.py")
# What was not noticed yet, with more tests to ask.
_SO_FAR = "so far"
_LIBRARIES = ("nbclient", "numpy", "torch", "plotly.graph_objects", "ipywidgets", "sklearn.datasets")


@functools.cache
def _imports(path: Path) -> set[str]:
    """What a file imports, with dots: ``from gpulab.lessons import _climb`` is gpulab.lessons and gpulab.lessons._climb."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names |= {node.module} - {"gpulab"} | {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def mapped(path: str, root: Path) -> list[list[str]]:
    """Return what pytest is given for a file, in turns: first what is nearest, then its folder.

    Nearest are the file's doctests, the tests of its name in its own folder or in none (anywhere where there are none), and those that
    import it by its private name; where there are none, those that share a word with it. A lesson's files, and what its exercises import,
    also have the solutions of its notebook. A module at the top that no test names has the tests of the modules that import it. A
    notebook has its form, itself, and the tests that name it. What walks over all modules is asked last.
    """
    parts = Path(path).with_suffix("").parts
    tests = root / "tests"
    if parts[0] == "notebooks":
        return _mapped_notebook(parts[-1], path, root)
    all_tests = [p for p in tests.glob("**/test_*.py") if "browser" not in p.parts]
    dotted, stem = ".".join(parts), (parts[-2] if parts[-1] == "__init__" else parts[-1]).strip("_")
    folder = parts[1].strip("_") if len(parts) > 2 else ""
    beside = [p for p in all_tests if p.parent in (tests, tests / folder)]
    near = {p for p in beside if stem in p.stem} or {p for p in all_tests if stem in p.stem}
    if parts[-1].startswith("_"):
        module = dotted.removesuffix(".__init__")
        near |= {p for p in (beside if module != dotted else all_tests) if module in _imports(p)}
    if not near:
        near = {p for p in beside if {word for word in stem.split("_") if len(word) > 3} & set(p.stem.split("_"))}
    rest = [p for p in beside if p not in near and folder and (p.parent == tests / folder or folder in p.stem)]
    if not near and not rest:
        sources = (p for p in root.glob("gpulab/**/*.py") if stem in p.read_text(encoding="utf-8") and dotted in _imports(p))
        above = [str(p.relative_to(root)) for p in sources if p != root / path]
        rest = sorted({root / name for one in above for name in mapped(one, root)[0] if name != one})
    solutions = tests / "notebooks" / "test_solutions.py"
    exercises = {p for p in root.glob("gpulab/lessons/_nb[0-9][0-9]*.py") if p == root / path or dotted in _imports(p)}
    # Not without examples: some modules enter themselves into a registry, and cannot be loaded a second time.
    examples = [path] if ">>> " in (root / path).read_text(encoding="utf-8") else []
    turns = [[*examples, *_told(near - {solutions}, root)]]
    if exercises:
        turns.append([*_told([solutions], root), "-k", " or ".join([*sorted({f"{p.stem[3:5]}." for p in exercises}), "ids"])])
    return [*turns, _told({*rest, *(root / path for path in _WALKS if (root / path).exists())}, root)]


def _mapped_notebook(name: str, path: str, root: Path) -> list[list[str]]:
    form = [path for one in ("form", "notebook_exercises", "cells*") for path in root.glob(f"tests/notebooks/test_{one}.py")]
    naming = [p for p in root.glob("tests/**/test_*.py") if "browser" not in p.parts and name in p.read_text(encoding="utf-8")]
    return [[*_told(form, root), "-k", f"{name[:2]} or form or cells"], [path], *([_told(naming, root)] if naming else [])]


def _told(paths: Iterable[Path], root: Path) -> list[str]:
    return sorted(str(p.relative_to(root)) for p in paths)


def candidates(only: str) -> dict[str, dict[str, list[Fault]]]:
    """Return the faults of each kind by file."""
    found: dict[str, dict[str, list[Fault]]] = {}
    listed = subprocess.run(("git", "ls-files", "gpulab", "notebooks"), cwd=ROOT, stdout=subprocess.PIPE, check=True, text=True).stdout
    for path in listed.splitlines():
        if fnmatch.fnmatch(path, only) and Path(path).suffix in (".py", ".ipynb"):
            for fault in faults_in(path, ROOT):
                found.setdefault(fault.kind, {}).setdefault(path, []).append(fault)
    return found


def choose(found: dict[str, dict[str, list[Fault]]], count: int, seed: int, root: Path = ROOT) -> list[Fault]:
    """Return faults: a kind at random, then a file that has it, then the place, so that rare kinds and small files get their share."""
    pick, chosen = random.Random(seed), []
    left = {kind: {path: list(faults) for path, faults in files.items()} for kind, files in found.items()}
    while left and len(chosen) < count:
        kind = pick.choice(sorted(left))
        path = pick.choice(sorted(left[kind]))
        fault = left[kind][path].pop(pick.randrange(len(left[kind][path])))
        if planted(fault, (root / path).read_text(encoding="utf-8")) is not None:
            chosen.append(fault)
        if not left[kind][path]:
            del left[kind][path]
        if not left[kind]:
            del left[kind]
    return chosen


class Run(NamedTuple):
    """How a run of tests ended ("passed", "failed", "timed out"), its seconds, and which tests failed."""

    outcome: str
    seconds: float
    failed: list[str]


class Tests:
    """Runs tests of a copy, each time in a fork of a process that has imported what most of them need."""

    def __init__(self, *libraries: str) -> None:
        environment = dict(os.environ, PYTHONDONTWRITEBYTECODE="1")
        command = [sys.executable, str(Path(__file__).with_name("warm_pytest.py")), *libraries]
        self._server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True)

    def __enter__(self) -> Tests:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.communicate()

    def run(self, tree: Path, tests: list[str], seconds: float, *more: str) -> Run:
        """Run tests in a copy, to the first that fails unless ``more`` says otherwise; where there is none, nothing was noticed."""
        if not any(test.endswith((".py", ".ipynb")) or "::" in test for test in tests):  # pytest would take all that it finds
            return Run("passed", 0.0, [])
        arguments = ["-x", "-q", "-m", "not browser and not gpu", "--doctest-modules", "--nbval-lax", "--nbval-cell-timeout=120"]
        begin = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="gpulab-faults-cache-") as cache:
            line = [str(tree), [*arguments, "--timeout=120", "-o", f"cache_dir={cache}", *more, *tests], seconds]
            assert self._server.stdin is not None
            assert self._server.stdout is not None
            self._server.stdin.write(json.dumps(line) + "\n")
            self._server.stdin.flush()
            code = json.loads(self._server.stdout.readline())
            noted = Path(cache) / "v" / "cache" / "lastfailed"
            failed = sorted(json.loads(noted.read_text(encoding="utf-8"))) if noted.exists() else []
        outcome = "timed out" if code is None else "passed" if code in (0, 5) else "failed"
        return Run(outcome, time.monotonic() - begin, failed)


class Copy:
    """A copy of the project in which faults are planted one at a time, and the tests that fail there with none."""

    def __init__(self, tree: Path, tests: Tests, seconds: float, broken: list[str]) -> None:
        self.tree, self.tests, self.seconds, self.broken = tree, tests, seconds, broken

    def attempt(self, fault: Fault, turn: int) -> dict[str, Any]:
        """Plant a fault and ask one turn of its tests: which noticed, or the whole turn where none can be named.

        A test that is not near must fail twice, since some depend on how busy the machine is; else it is not asked again.
        """
        place = self.tree / fault.path
        before = place.read_text(encoding="utf-8")
        after = planted(fault, before)
        if after is None:
            raise SystemExit(f"{fault.path}:{fault.line}: {fault.what} changes nothing; expected a place where a fault can be planted")
        turns = mapped(fault.path, self.tree)
        place.write_text(after, encoding="utf-8")
        outcome, seconds, failed = self.tests.run(self.tree, turns[turn], self.seconds, *(f"--deselect={test}" for test in self.broken))
        twice = turn > 0 and failed and not any(".ipynb" in test for test in failed)
        by_chance = twice and self.tests.run(self.tree, failed, self.seconds).outcome == "passed"
        place.write_text(before, encoding="utf-8")
        if by_chance:
            self.broken += failed
            return {"outcome": _SO_FAR, "turn": turn - 1, "by": [], "sound": True, "seconds": round(seconds), "change": ""}
        by = [test.partition("::")[0] if ".ipynb::" in test else test for test in failed]  # a notebook's cell needs those before it
        by = by or ([] if outcome == "passed" else turns[turn])
        if by and set(by) <= set(self.broken):  # a file that cannot even be read cannot be left aside
            outcome, by = "left out", []
        if outcome == "passed" and turn + 1 < len(turns):
            outcome = _SO_FAR
        change = "".join(difflib.unified_diff(before.splitlines(True), after.splitlines(True), n=1))
        return {"outcome": outcome, "turn": turn, "by": by, "sound": not by, "seconds": round(seconds), "change": change}

    def _is_not_there(self, by: list[str], alone: Run) -> bool:
        """Return whether what noticed is no test of the unchanged copy, as one whose parameters come from a name that the fault changed."""
        files = sorted({test.partition("::")[0] for test in by})
        return not alone.failed and self.tests.run(self.tree, files, self.seconds, "--collect-only").outcome == "passed"

    def unsound(self, tries: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Run in the unchanged copy what noticed; return the tries whose tests fail there too. Those tests are not asked again."""
        named = sorted({test for one in tries if "-k" not in one["by"] for test in one["by"]})
        run = self.tests.run(self.tree, named, self.seconds, "--maxfail=0") if named else Run("passed", 0.0, [])
        left = []
        for one in tries:
            by = one["by"]
            touched = not run.failed or any(failed.startswith(test) for failed in run.failed for test in by)
            if "-k" not in by and (run.outcome == "passed" or not touched):
                continue
            alone = self.tests.run(self.tree, by, self.seconds)
            if alone.outcome != "passed" and not self._is_not_there(by, alone):
                self.broken += [failed for failed in alone.failed if failed not in self.broken]
                left.append(one)
        return left


def try_all(where: Copy, entries: list[dict[str, Any]], name: str, save: Callable[[], None]) -> None:
    """Ask the nearest tests of each fault, then further tests where nothing noticed; now and then prove without a fault what noticed."""
    waiting = [one for one in entries if not one[name] or one[name]["outcome"] == _SO_FAR]
    unsure = [one for one in entries if one[name] and not one[name]["sound"]]
    while waiting or unsure:
        if waiting:
            entry = min(waiting, key=lambda one: _next_turn(one[name]))
            waiting.remove(entry)
            fault = _found_again(entry)
            if fault is None:
                print(f"no longer there: {entry['what']} in {entry['path']}", flush=True)
                continue
            found = entry[name] = where.attempt(fault, _next_turn(entry[name]))
            unsure += [] if found["sound"] else [entry]
            waiting += [entry] if found["outcome"] == _SO_FAR else []
            save()
            said = f"{fault.kind} in {fault.path}:{fault.line} ({fault.what})"
            print(f"{len(waiting):3} left, {found['outcome']:9} {found['seconds']:4} s  {said} {' '.join(found['by'])[:100]}", flush=True)
        if unsure and (len(unsure) >= _TOGETHER or not waiting):
            unsound = where.unsound([entry[name] for entry in unsure])
            for entry in unsure:
                if not any(entry[name] is one for one in unsound):
                    entry[name]["sound"] = True
                    continue
                print(f"fails without the fault too: {' '.join(entry[name]['by'])}", flush=True)
                if any(one.startswith(test) for one in where.broken for test in entry[name]["by"]):  # once more, without those
                    entry[name] = None
                    waiting.append(entry)
                else:
                    entry[name] |= {"outcome": "left out", "sound": True}
            unsure = []
            save()


def _next_turn(found: dict[str, Any] | None) -> int:
    return found["turn"] + 1 if found else 0


def _found_again(entry: dict[str, Any]) -> Fault | None:
    """The fault of an entry in the file as it is now: lines move."""
    same = [fault for fault in faults_in(entry["path"], ROOT) if (fault.kind, fault.what) == (entry["kind"], entry["what"])]
    return min(same, key=lambda fault: abs(fault.line - entry["line"]), default=None)


def report(entries: list[dict[str, Any]]) -> float:
    """Print what was found, by kind, and each missed fault; return the share that was caught, by now."""
    done = [one for one in entries if one["first"] and one["first"]["outcome"] not in ("left out", _SO_FAR)]
    missed = [one for one in done if one["first"]["outcome"] == "passed"]
    for kind in sorted({one["kind"] for one in done}):
        of_kind = [one for one in done if one["kind"] == kind]
        print(f"  {kind:20} {len(of_kind) - sum(one in missed for one in of_kind):4} of {len(of_kind):4} caught")
    still = [one for one in missed if not one["again"] or one["again"]["outcome"] in ("passed", "left out", _SO_FAR)]
    for one in missed:
        since = "" if one in still else ", caught since"
        print(f"\nmissed{since}: {one['kind']} in {one['path']}:{one['line']} ({one['what']})\n{one['first']['change']}", end="")
    if waiting := sum(1 for one in entries if not one["first"] or one["first"]["outcome"] == _SO_FAR):
        print(f"\n{waiting} were not asked of all their tests yet")
    if not done:
        return 0.0
    print(f"\n{len(done) - len(missed)} of {len(done)} faults caught ({100 * (1 - len(missed) / len(done)):.1f} %)")
    if len(still) < len(missed):
        print(f"with what was missed planted again: {len(done) - len(still)} of {len(done)} ({100 * (1 - len(still) / len(done)):.1f} %)")
    return 1 - len(still) / len(done)


def main() -> int:
    """Run from the command line; return 1 where fewer than 95 % were caught."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="*", help="a pattern of files, such as 'gpulab/timing/*'")
    parser.add_argument("--seconds", type=float, default=1200.0, help="tests that take longer than this have noticed")
    parser.add_argument("--report", action="store_true", help="say what was found, and run nothing")
    parser.add_argument("--again", action="store_true", help="plant once more what was missed")
    options = parser.parse_args()
    path = STATE / f"faults-{options.seed}.json"
    state: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"faults": [], "broken": []}
    if options.report:
        report(state["faults"])
        return 0
    asked = [one for one in state["faults"] if fnmatch.fnmatch(one["path"], options.only)]
    if options.again:
        missed = [one for one in asked if one["first"] and one["first"]["outcome"] == "passed"]
        for one in missed:
            one["again"] = one["again"] if one["again"] and one["again"]["outcome"] not in ("passed", _SO_FAR) else None
        _in_a_copy(missed, "again", options.seconds, state, path)
        return 0 if report(asked) >= 0.95 else 1
    if len(asked) < options.faults:
        known = [_place(one) for one in asked]
        for fault in choose(candidates(options.only), options.faults, options.seed):
            if _place(fault._asdict()) not in known:
                asked.append({**_place(fault._asdict()), "first": None, "again": None})
                state["faults"].append(asked[-1])
    _in_a_copy(asked, "first", options.seconds, state, path)
    return 0 if report(asked) >= 0.95 else 1


def _place(entry: dict[str, Any]) -> dict[str, Any]:
    return {name: entry[name] for name in ("kind", "path", "line", "what")}


def _in_a_copy(entries: list[dict[str, Any]], name: str, seconds: float, state: dict[str, Any], path: Path) -> None:
    path.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="gpulab-faults-") as folder, Tests(*_LIBRARIES) as tests:
        tree = Path(folder) / "tree"
        shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns(*_LEFT_OUT), symlinks=True)
        try_all(Copy(tree, tests, seconds, state["broken"]), entries, name, lambda: _save(path, state))


def _save(path: Path, state: dict[str, Any]) -> None:
    """Kill it when you like: the file is the old one or the new one."""
    beside = path.with_suffix(".new")
    beside.write_text(json.dumps(state, indent=1), encoding="utf-8")
    beside.replace(path)


if __name__ == "__main__":
    sys.exit(main())
