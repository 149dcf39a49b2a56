"""Run numba-cuda's own test suite on Numba's simulator and on the microscope, and compare.

    python tools/peer_suite.py --out FOLDER           run both, print a table, write both as JSON
    python tools/peer_suite.py --out FOLDER warp_ops  only the tests with this in their name
    ... --fresh                                       measure Numba's simulator again as well

The suite is that of the installed numba-cuda; nothing of it is copied. Each test runs in a worker
process, which is ended and replaced where a test takes longer than a minute. ``peer_suite.toml``
beside this file names the tests that no simulator of kernels can pass, each with its reason, and
judges what is found in kernels of tests that pass.

It is not part of the project's tests: it measures how much of the language of numba.cuda the
microscope supports.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import functools
import importlib
import importlib.metadata
import io
import json
import os
import re
import select
import subprocess
import sys
import time
import tomllib
import traceback
import types
import unittest
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve()
SUITE = "numba.cuda.tests"
FOLDERS = ("cudapy", "doc_examples")
SECONDS_FOR_A_TEST = 60
SECONDS_TO_START = 300
NUMBA, OURS = "numba", "gpulab"
# Imported by the suite's support module for tests of the compiler's output, which are excused.
NOT_NEEDED = {
    "filecheck.matcher": ("Matcher",),
    "filecheck.options": ("Options",),
    "filecheck.parser": ("Parser", "pattern_for_opts"),
    "filecheck.finput": ("FInput",),
    "pytest_benchmark": (),
}


# -------------------------------------------------------------------------------------------------
# The worker: reads the name of a test from each line of its input, and answers with a line of JSON.


@dataclass
class Launches:
    """The launches of one test: how many, why some were refused, and what was found."""

    count: int = 0
    refusals: list[str] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)


def stand_in_for_missing_modules() -> None:
    """Put empty classes where the suite imports a library that is not installed."""
    for name, members in NOT_NEEDED.items():
        parent = name.partition(".")[0]
        try:
            importlib.import_module(parent)
        except ImportError:
            sys.modules.setdefault(parent, types.ModuleType(parent))
        if not hasattr(sys.modules[parent], "__file__"):
            module = sys.modules[name] = types.ModuleType(name)
            for member in members:
                setattr(module, member, type(member, (), {}))


@contextlib.contextmanager
def on_numba() -> Iterator[Launches]:
    """Count the launches on Numba's simulator."""
    from numba.cuda.simulator import kernel as simulator

    numba_call = simulator.FakeCUDAKernel.__call__
    launches = Launches()

    @functools.wraps(numba_call)
    def call(self: Any, *args: Any) -> Any:
        launches.count += not (self._device or simulator._get_kernel_context())
        return numba_call(self, *args)

    simulator.FakeCUDAKernel.__call__ = call
    try:
        yield launches
    finally:
        simulator.FakeCUDAKernel.__call__ = numba_call


@contextlib.contextmanager
def on_the_microscope() -> Iterator[Launches]:
    """Send the launches to the microscope."""
    from gpulab.kernels import simulated

    launches = Launches()
    with simulated() as session:
        yield launches
    report = session.report()
    launches.count = sum(kernel.launches for kernel in report.kernels) + len(session.refusals)
    launches.refusals, launches.findings = session.refusals, list(map(str, report.findings))


def prepare_for_the_microscope() -> None:
    """Let the suite also run the tests that it skips on Numba's simulator, and report no
    allocations of the compiler's runtime, which does not run here.
    """
    from numba.cuda import testing
    from numba.cuda.memory_management import nrt

    testing.skip_on_cudasim = lambda reason: lambda test: test
    nothing = collections.namedtuple("Stats", "alloc free mi_alloc mi_free")(0, 0, 0, 0)
    nrt.RTSys.get_allocation_stats = lambda self: nothing
    nrt.RTSys.memsys_disable_stats = nrt.RTSys.memsys_enable_stats


def module_names() -> list[str]:
    """Return the modules of the suite."""
    tests = Path(importlib.import_module(SUITE).__file__ or "").parent
    return [
        f"{SUITE}.{folder}.{path.stem}"
        for folder in FOLDERS
        for path in sorted((tests / folder).glob("test_*.py"))
    ]


def tests_of_suite() -> dict[str, unittest.TestCase]:
    """Return all tests by name, without the part of the name that all share."""
    found: dict[str, unittest.TestCase] = {}

    def add(part: Any) -> None:
        if isinstance(part, unittest.TestSuite):
            for inner in part:
                add(inner)
        else:
            found[part.id().removeprefix(SUITE + ".")] = part

    for name in module_names():
        # importing a module that needs a compiler raises one of these
        with contextlib.suppress(unittest.SkipTest, ImportError):
            add(unittest.defaultTestLoader.loadTestsFromModule(importlib.import_module(name)))
    return found


def outcome(result: unittest.TestResult, refusals: list[str], who: str) -> tuple[str, str]:
    """Return how a test ended, and why."""
    if result.skipped:
        return "skipped", result.skipped[0][1]
    failed = [*result.failures, *result.errors]
    if not failed and not result.unexpectedSuccesses:
        return "passed", ""
    text = failed[0][1] if failed else "it was expected to fail"
    last = text.strip().splitlines()[-1] if text.strip() else ""
    if refusals:
        return "refused", refusals[0]
    places = re.findall(r'File "([^"]*)", line (\d+)', text)
    if who == OURS and places and "/gpulab/kernels/" in places[-1][0]:
        return "crashed", f"{last} ({':'.join(places[-1])})"
    if who == OURS and result.errors:
        return "error", f"{last} ({':'.join(places[-1]) if places else ''})"
    return "wrong", last


def work(who: str) -> None:
    """Run the tests whose names are read from standard input, one after the other."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    # on the microscope too, so that the suite does not call a driver
    os.environ["NUMBA_ENABLE_CUDASIM"] = "1"
    stand_in_for_missing_modules()
    watched = on_numba if who == NUMBA else on_the_microscope
    if who == OURS:
        prepare_for_the_microscope()
    with watched(), quiet():  # importing a module makes its kernels
        tests = tests_of_suite()
    print(json.dumps(sorted(tests)), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(tests[line.strip()], watched, who)), file=answers, flush=True)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Drop what is printed."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield


def answer(
    test: unittest.TestCase, watched: Callable[[], AbstractContextManager[Launches]], who: str
) -> dict[str, Any]:
    """Run one test and return how it ended."""
    result = unittest.TestResult()
    started = time.perf_counter()
    with watched() as launches, quiet():
        try:
            unittest.TestSuite([test])(result)
        except BaseException:  # a test's SystemExit counts as its error
            result.errors.append((test, traceback.format_exc()))
    how, why = outcome(result, launches.refusals, who)
    return {
        "outcome": how,
        "why": why[:400],
        "launches": launches.count,
        "findings": launches.findings[:8],
        "seconds": round(time.perf_counter() - started, 4),
    }


_MORE_SECONDS = (0.0, 0.001, 0.005, 0.02)


# -------------------------------------------------------------------------------------------------
# The parent: hands out the tests, ends a worker whose test hangs, and compares.


class Worker:
    """One worker process, started when it is needed."""

    def __init__(self, who: str) -> None:
        self.who = who
        self.process: subprocess.Popen[str] | None = None
        self.names: list[str] = []

    def start(self) -> None:
        """Start the process and read the names of the tests."""
        self.process = subprocess.Popen(
            [sys.executable, str(HERE), "--work", self.who],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        names = self._answer(SECONDS_TO_START)
        if not isinstance(names, list):
            raise SystemExit(
                f"peer_suite: the worker for {self.who} did not start ({names}); expected the "
                f"names of the tests. Run python tools/peer_suite.py --work {self.who}."
            )
        self.names = names

    def _answer(self, seconds: float) -> Any:
        assert self.process is not None
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], seconds)
        line = self.process.stdout.readline() if ready else ""
        return json.loads(line) if line else ("ended" if ready else "hung")

    def run(self, name: str) -> dict[str, Any]:
        """Run one test."""
        if self.process is None:
            self.start()
        assert self.process is not None
        assert self.process.stdin is not None
        self.process.stdin.write(name + "\n")
        self.process.stdin.flush()
        answer = self._answer(SECONDS_FOR_A_TEST)
        if isinstance(answer, dict):
            return answer
        self.end()
        how = "hung" if answer == "hung" else "crashed"
        return {
            "outcome": how,
            "why": "the process ended",
            "launches": 1,
            "findings": [],
            "seconds": 0,
        }

    def end(self) -> None:
        """End the process; the next test starts another."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


def run_suite(who: str, part: str) -> dict[str, dict[str, Any]]:
    """Return the answer of each test whose name contains ``part``."""
    worker = Worker(who)
    worker.start()
    try:
        chosen = [name for name in worker.names if part in name]
        if not chosen:
            raise SystemExit(
                f"peer_suite: none of {len(worker.names)} tests has {part!r} in its name."
            )
        return {name: worker.run(name) for name in chosen}
    finally:
        worker.end()


def compare(
    numba: dict[str, dict[str, Any]], ours: dict[str, dict[str, Any]], excused: dict[str, str]
) -> dict[str, Counter[str]]:
    """Return how many tests that launch a kernel end in each way on the microscope: of those that
    pass on Numba's simulator, and of those that it skips.
    """
    groups: dict[str, Counter[str]] = {"passed": Counter(), "skipped": Counter()}
    for name, test in ours.items():
        on_numba = numba.get(name, {"outcome": "", "launches": 0})
        group = groups.get(on_numba["outcome"])
        if group is None or not max(test["launches"], on_numba["launches"]):
            continue
        is_excused = test["outcome"] != "passed" and reason_for(name, excused)
        group["excused" if is_excused else test["outcome"]] += 1
    return groups


def times(numba: dict[str, dict[str, Any]], ours: dict[str, dict[str, Any]]) -> str:
    """Return, as a sentence, the time of the tests that launch a kernel and pass on both, and how
    many exceed twice their time on Numba's simulator, by each of ``_MORE_SECONDS``.
    """
    both = [
        (numba[name]["seconds"], test["seconds"])
        for name, test in ours.items()
        if test["outcome"] == numba.get(name, {}).get("outcome") == "passed" and test["launches"]
    ]
    slower = [mine - 2 * theirs for theirs, mine in both]
    more = ", ".join(f"{sum(each > m for each in slower)} by {1e3 * m:g} ms" for m in _MORE_SECONDS)
    mine, theirs = sum(mine for _, mine in both), sum(theirs for theirs, _ in both)
    return (
        f"{len(both)} pass on both, in {mine:.1f} s here and {theirs:.1f} s there; over twice "
        f"Numba's time: {more}"
    )


def reason_for(name: str, excused: dict[str, str]) -> str | None:
    """Return why a test is excused, alone or with its class or file; None if it is not."""
    return next((why for key, why in excused.items() if f"{name}.".startswith(f"{key}.")), None)


def reasons(ours: dict[str, dict[str, Any]], excused: dict[str, str]) -> str:
    """Return why tests do not pass, the most frequent reason first, each with its tests."""
    found: dict[str, list[str]] = {}
    for name, test in ours.items():
        if test["outcome"] in ("passed", "skipped") or not test["launches"]:
            continue
        if not reason_for(name, excused):
            # without the kernel's name, the line and its text, equal reasons look equal
            why = re.sub(r"^[^`]*line \d+ `[^`]*`: ", "", test["why"])
            why = re.sub(r"\d+", "N", why)[:160]
            found.setdefault(f"{test['outcome']}: {why}", []).append(name)
    rows = []
    for why, names in sorted(found.items(), key=lambda item: -len(item[1])):
        rows.append(f"{len(names):4} {why}")
        rows += [f"       {name}: {ours[name]['why'][:240]}" for name in names]
    return "\n".join(rows) + "\n"


def main() -> int:
    """Run the suite both ways and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("part", nargs="?", default="", help="only tests with this in their name")
    parser.add_argument("--out", type=Path, help="the folder for the results")
    parser.add_argument("--fresh", action="store_true", help="run Numba's simulator again")
    parser.add_argument("--work", choices=(NUMBA, OURS), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        work(arguments.work)
        return 0
    if arguments.out is None:
        parser.error("expected --out FOLDER for the results")
    arguments.out.mkdir(parents=True, exist_ok=True)
    version = importlib.metadata.version("numba-cuda")
    texts = tomllib.loads(HERE.with_suffix(".toml").read_text(encoding="utf-8"))
    excused = texts["excused"]
    results = {}
    for who in (NUMBA, OURS):
        whole = arguments.out / f"{who}-{version}.json"
        file = whole.with_stem(f"{whole.stem}-{arguments.part}") if arguments.part else whole
        if who == NUMBA and whole.exists() and not arguments.fresh:
            file = whole
        if who == OURS or arguments.fresh or not file.exists():
            file.write_text(json.dumps(run_suite(who, arguments.part), indent=1), encoding="utf-8")
        results[who] = json.loads(file.read_text(encoding="utf-8"))
    (arguments.out / "reasons.txt").write_text(reasons(results[OURS], excused), encoding="utf-8")
    print(f"numba-cuda {version}: tests that launch a kernel, run by gpulab.kernels.simulate")
    for group, counts in compare(results[NUMBA], results[OURS], excused).items():
        rest = ", ".join(f"{count} {how}" for how, count in counts.most_common())
        print(f"  {group} on Numba's simulator: {counts.total()} ({rest})")
    print(f"  {times(results[NUMBA], results[OURS])}")
    found = [name for name, test in results[OURS].items() if test["findings"]]
    unjudged = [name for name in found if reason_for(name, {**texts["judged"], **excused}) is None]
    print(f"  findings on {len(found)} tests, {len(found) - len(unjudged)} of them judged")
    for name in unjudged:
        print(f"    {name}: {results[OURS][name]['findings'][0]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
