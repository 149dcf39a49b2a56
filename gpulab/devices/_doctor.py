"""The check before class: whether this machine can run the course, and if not, what has to be fixed
first.

It looks at what ``machine()`` finds, asks for each package that the notebooks need, and does one
small piece of real work on the accelerator and with CuPy: a driver that answers questions may still
refuse to compute.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import pathlib
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from gpulab.devices._diagnose import diagnose
from gpulab.devices._facts import Facts, gather
from gpulab.devices._machine import accelerator_text
from gpulab.errors import pip_command, set_up_command
from gpulab.results import Result
from gpulab.units import format_bytes

State = Literal["ok", "fix", "warn", "note"]

_OLDEST_PYTHON = (3, 11)
# What the notebooks import or run; each with the oldest release that the course was written for
# (pyproject.toml).
_NEEDED: Mapping[str, str] = {
    "numpy": "2.0",
    "torch": "2.9",
    "jupyterlab": "4.4",
    "ipykernel": "6.17.1",
    "ipywidgets": "7.7.1",
    "anywidget": "0.9.18",
    "plotly": "5.24",
    "psutil": "5.9.5",
    "nvidia-ml-py": "12.560",
    "scikit-learn": "1.5",
    "pillow": "11",
    "torchao": "0.10",
    "ipyparallel": "8.8",
    "cloudpickle": "3",
}
_PRODUCT_SIZE = 64  # small enough for any device; its product of ones is exact in every dtype


@dataclass(frozen=True)
class Check(Result):
    """One line of the report.

    Attributes
    ----------
    name : str
    state : str
        "ok"; "fix" (a part of the course cannot run until it is fixed); "warn" (it runs, but
        figures may be unreliable); "note" (good to know).
    detail : str
        What was found.
    remedy : str
        What to do; "" where nothing is to be done.
    """

    name: str
    state: State
    detail: str
    remedy: str = ""


@dataclass(frozen=True)
class Checkup(Result):
    """The whole report.

    Attributes
    ----------
    checks : tuple of Check
    """

    checks: tuple[Check, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing has to be fixed."""
        return all(check.state != "fix" for check in self.checks)

    def __repr__(self) -> str:
        wrong = [check.name for check in self.checks if check.state == "fix"]
        return f"<Checkup: {'fix ' + ', '.join(wrong) if wrong else 'ready for class'}>"

    @property
    def text(self) -> str:
        """The report as it is printed in a terminal."""
        width = max((len(check.name) for check in self.checks), default=0)
        lines = []
        for check in self.checks:
            lines.append(f"{check.state:4}  {check.name:{width}}  {check.detail}")
            if check.remedy:
                lines.append(f"{'':4}  {'':{width}}  -> {check.remedy}")
        wrong = sum(check.state == "fix" for check in self.checks)
        things = "thing" if wrong == 1 else "things"
        lines.append(f"\n{wrong} {things} to fix." if wrong else "\nReady for class.")
        return "\n".join(lines)

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        """Return one row per check."""
        return ("check", "state", "found", "what to do"), [
            (c.name, c.state, c.detail, c.remedy) for c in self.checks
        ]


def checkup(facts: Facts | None = None) -> Checkup:
    """Return whether this machine can run the course, and what to fix first.

    Parameters
    ----------
    facts : Facts, optional
        Made-up facts, for tests; None asks this machine.

    Returns
    -------
    Checkup
        ``.ok``, ``.text`` and the single checks.
    """
    known = gather() if facts is None else facts
    checks = [
        _python(),
        *(_package(name, oldest) for name, oldest in _NEEDED.items()),
        _write_access(pathlib.Path.cwd()),
    ]
    checks += [_accelerator(known), *_cupy(known)]
    checks.append(Check("disk", "ok", f"{format_bytes(known.disk_free_bytes)} free"))
    checks.append(
        Check(
            "memory",
            "ok",
            f"{format_bytes(known.memory.available_bytes)} free of "
            f"{format_bytes(known.memory.installed_bytes)}",
        )
    )
    return Checkup(_with_problems(checks, known))


def _with_problems(checks: list[Check], facts: Facts) -> tuple[Check, ...]:
    """Add the machine's problems; one about disk or memory takes the place of the line that called
    it fine.
    """
    problems = {problem.code: problem for problem in diagnose(facts)}
    replaced = {code.removeprefix("low-") for code in problems if code.startswith("low-")}
    kept = [check for check in checks if check.name not in replaced]
    states: dict[str, State] = {"error": "fix", "warning": "warn", "info": "note"}
    added = [
        Check(p.code, states[p.severity], p.symptom, p.remedy)
        for p in problems.values()
        if p.code not in ("no-accelerator", "torch-missing")
    ]
    return (*kept, *added)


def _python() -> Check:
    version = ".".join(str(part) for part in sys.version_info[:3])
    if sys.version_info >= _OLDEST_PYTHON:
        return Check("python", "ok", f"{version} at {sys.executable}")
    oldest = ".".join(str(part) for part in _OLDEST_PYTHON)
    remedy = f"Install Python {oldest} or newer, then run {set_up_command()}."
    return Check("python", "fix", f"{version}; the course needs {oldest} or newer.", remedy)


def _package(name: str, oldest: str) -> Check:
    wanted = _quoted(f"{name}>={oldest}")
    try:
        version: str | None = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        if name == "jupyterlab":
            return Check(
                name,
                "note",
                "not installed; only `gpulab lab` needs it, a hosted notebook does not",
            )
        return Check(name, "fix", "not installed", f"Run {set_up_command()}.")
    # a folder for the package's facts without any: an installation that was interrupted, or met a
    # full disk
    if not version:
        return Check(
            name,
            "fix",
            "only partly installed",
            f"Run {pip_command(f'install --ignore-installed {wanted}')}.",
        )
    if _release(version) < _release(oldest):
        remedy = f"Run {set_up_command()}, or {pip_command(f'install {wanted}')}."
        return Check(name, "fix", f"{version}; the course needs {oldest} or newer.", remedy)
    return Check(name, "ok", version)


def _quoted(word: str) -> str:
    """A word as a shell takes it whole; in Windows' own ' is a letter, and > would write to a
    file.
    """
    return f'"{word}"' if sys.platform == "win32" else f"'{word}'"


def _release(version: str) -> tuple[int, ...]:
    """The leading numbers of a version: (2, 13, 0) of "2.13.0+cpu", (3, 0) of "3.0rc1"."""
    numbers = []
    for word in version.partition("+")[0].split("."):
        digits = word[: len(word) - len(word.lstrip("0123456789"))]
        if not digits:
            break
        numbers.append(int(digits))
    return tuple(numbers)


def _write_access(folder: pathlib.Path) -> Check:
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".gpulab-"):
            pass
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        return Check(
            "write access",
            "fix",
            f"cannot write to {folder}: {reason}.",
            "Start in a folder that you can write to, on a disk that is not full.",
        )
    return Check("write access", "ok", str(folder))


def _accelerator(facts: Facts) -> Check:
    gpu = next((gpu for gpu in facts.accelerators if gpu.device), None)
    if gpu is None or gpu.device is None:
        detail = (
            "none; the CPU is measured live, GPU figures are recorded or modelled and are "
            "labeled so"
        )
        return Check("accelerator", "note", detail)
    failure = _failure(lambda: _product("torch", device=str(gpu.device)))
    if failure is not None:
        return Check(
            "accelerator",
            "fix",
            f"{gpu.name} is present but cannot compute: {failure}",
            "Restart the kernel, then the machine.",
        )
    return Check("accelerator", "ok", accelerator_text(gpu))


def _cupy(facts: Facts) -> list[Check]:
    if not facts.cupy_packages or facts.torch.kind != "cuda":
        return []
    failure = _failure(lambda: _product("cupy"))
    if failure is None:
        return [
            Check(
                "cupy",
                "ok",
                ", ".join(
                    f"{name} {facts.libraries.get(name, '')}".strip()
                    for name in facts.cupy_packages
                ),
            )
        ]
    return [
        Check(
            "cupy",
            "fix",
            f"{' and '.join(facts.cupy_packages)} cannot compute: {failure}",
            f"See the lines about CuPy below, or run {set_up_command()}.",
        )
    ]


def _failure(work: Callable[[], float]) -> str | None:
    """Do a small piece of work whose answer is known; return in one line how it failed, or None."""
    try:
        answer = work()
    except Exception as error:
        # whatever a broken driver or library throws is what the report is for
        return f"{type(error).__name__}: {error}".splitlines()[0][:200]
    expected = float(_PRODUCT_SIZE**3)
    return (
        None
        if answer == expected
        else f"a product of ones sums to {answer:g} and not to {expected:g}."
    )


def _product(library: str, **place: Any) -> float:
    """Return the sum of a product of ones, which waits for the device."""
    module = importlib.import_module(library)
    ones = module.ones((_PRODUCT_SIZE, _PRODUCT_SIZE), dtype=module.float32, **place)
    total = (ones @ ones).sum()
    return float(total.get() if library == "cupy" else total)
