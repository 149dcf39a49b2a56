"""Nsight Compute's ``ncu`` in a process of its own: the command, its CSV read as numbers, and its
refusals in one sentence.

The CSV is that of ``--csv`` with ``--metrics``: lines of the tool (``==PROF== ...``), a header,
then one row for each launch and metric. Source: Nsight Compute CLI, sections "Command Line Options"
and "Output Pages". Nothing here needs a GPU.
"""

from __future__ import annotations

import csv
import math
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

PERMISSION = (
    "ncu may not read the GPU's counters here (ERR_NVGPUCTRPERM); expected the right to. Run as "
    "root, start the container with --cap-add=SYS_ADMIN, or load the driver with "
    "NVreg_RestrictProfilingToAdminUsers=0 (https://developer.nvidia.com/ERR_NVGPUCTRPERM)."
)
# Where the CUDA toolkit leaves ncu without putting it into PATH.
_USUAL_PLACES = ("/usr/local/cuda/bin/ncu", "/opt/nvidia/nsight-compute/ncu")
_THOUSAND = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_GROUPED = re.compile(r"[-+]?\d{1,3}(,\d{3})+")
_TIMEOUT_SECONDS = 400


class NcuError(Exception):
    """ncu could not do what was asked; the message is one sentence."""


class NotAvailableError(NcuError):
    """ncu is missing or not permitted: the comparison is skipped, and nothing is wrong with the
    kernels.
    """


@dataclass(frozen=True)
class Ran:
    """How a process ended."""

    returncode: int
    output: str


@dataclass(frozen=True)
class Launch:
    """One profiled launch: its place in order, the kernel's name, grid and block (None where the
    CSV lacks them), metric by name.

    A metric is None where ncu printed no number ("nan", "n/a").
    """

    identifier: int
    kernel: str
    grid: tuple[int, ...] | None
    block: tuple[int, ...] | None
    metrics: dict[str, float | None]


def number(text: str, unit: str = "") -> float | None:
    """Return the value of a cell in the base unit (bytes, not Kbyte); None for "nan", "n/a" and an
    empty cell.

    Commas between groups of three digits separate thousands; where a point and a comma both occur,
    the last one is the decimal mark.

    Raises
    ------
    NcuError
        If the cell holds something else.
    """
    plain = re.sub(r"[\s'\u00a0\u202f]", "", text.split(" (", maxsplit=1)[0].replace("(!)", ""))
    if plain.lower() in ("", "nan", "-nan", "n/a", "inf", "-inf"):
        return None
    if "," in plain and "." in plain:
        plain = (
            plain.replace(",", "")
            if plain.rindex(".") > plain.rindex(",")
            else plain.replace(".", "").replace(",", ".")
        )
    elif "," in plain:
        plain = plain.replace(",", "" if _GROUPED.fullmatch(plain) else ".")
    try:
        value = float(plain)
    except ValueError as error:
        raise NcuError(
            f"ncu: the value {text!r} is no number; expected one such as 1,234 or nan. Look at the "
            "CSV."
        ) from error
    prefix = re.match(r"([KMGT]?)byte", unit)
    return value * _THOUSAND[prefix.group(1)] if prefix and math.isfinite(value) else value


def _extent(text: str | None) -> tuple[int, ...] | None:
    digits = re.findall(r"\d+", text or "")
    return tuple(int(d) for d in digits) if digits else None


def parse(text: str) -> tuple[Launch, ...]:
    """Return the launches of ncu's CSV in the order of their IDs; empty where there is no header.

    Raises
    ------
    NcuError
        If the header lacks a column that is needed, a row is cut, or a value is no number.
    """
    lines = [line for line in text.splitlines() if not line.startswith("==")]
    first = next(
        (k for k, line in enumerate(lines) if line.lstrip("\ufeff").startswith('"ID"')), None
    )
    if first is None:
        return ()
    rows = csv.DictReader([lines[first].lstrip("\ufeff"), *lines[first + 1 :]])
    absent = {"ID", "Kernel Name", "Metric Name", "Metric Unit", "Metric Value"} - set(
        rows.fieldnames or ()
    )
    if absent:
        raise NcuError(
            f"ncu: the CSV has no column {', '.join(sorted(absent))}; expected one row for each "
            "metric. Use --page details."
        )
    launches: dict[int, Launch] = {}
    for row in rows:
        if not (row["ID"] or "").isdigit():  # what the program printed between the rows
            continue
        if row["Metric Value"] is None:
            raise NcuError(
                f"ncu: the row of {row['Metric Name']} of launch {row['ID']} is cut; expected all "
                "columns. Was the disk full?"
            )
        if not row["Metric Name"]:  # a rule's advice, not a metric
            continue
        launch = launches.setdefault(
            int(row["ID"]),
            Launch(
                int(row["ID"]),
                row["Kernel Name"],
                _extent(row.get("Grid Size")),
                _extent(row.get("Block Size")),
                {},
            ),
        )
        launch.metrics[row["Metric Name"]] = number(row["Metric Value"], row["Metric Unit"] or "")
    return tuple(launches[k] for k in sorted(launches))


def find_ncu() -> str:
    """Return the path of ncu.

    Raises
    ------
    NotAvailableError
        If it is neither in PATH nor where the CUDA toolkit leaves it.
    """
    found = shutil.which("ncu") or next(
        (place for place in _USUAL_PLACES if os.access(place, os.X_OK)), None
    )
    if found is None:
        raise NotAvailableError(
            "ncu is not in PATH; expected Nsight Compute, which comes with the CUDA toolkit. "
            "Install nsight-compute."
        )
    return found


def command_line(ncu: str, metrics: Sequence[str], log: Path, program: Sequence[str]) -> list[str]:
    """Return the command that profiles the program's launches between cudaProfilerStart and
    cudaProfilerStop.
    """
    options = [
        "--csv",
        "--page",
        "details",
        "--print-units",
        "base",
        "--clock-control",
        "none",
        "--profile-from-start",
        "off",
    ]
    return [ncu, *options, "--log-file", str(log), "--metrics", ",".join(metrics), *program]


def run(command: Sequence[str]) -> Ran:
    """Run a command for at most a few minutes, in the C locale, which fixes its number format."""
    try:
        ended = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=_TIMEOUT_SECONDS,
            env={**os.environ, "LC_ALL": "C", "PYTHONUTF8": "1"},
        )
    except subprocess.TimeoutExpired as error:
        raise NcuError(
            f"ncu: not done after {_TIMEOUT_SECONDS} s; expected about one. Profile fewer kernels "
            "with --only."
        ) from error
    return Ran(ended.returncode, ended.stdout + ended.stderr)


def profile(
    metrics: Sequence[str],
    program: Sequence[str],
    log: Path,
    ncu: str,
    runner: Callable[[Sequence[str]], Ran] = run,
) -> tuple[tuple[Launch, ...], tuple[str, ...]]:
    """Profile a program; return its launches, and the metrics that this GPU or ncu does not have.

    Where ncu stops at unknown metrics it is run again without those that its errors name.

    Raises
    ------
    NotAvailableError
        If ncu is not permitted to read counters.
    NcuError
        If no launch was profiled.
    """
    wanted = list(metrics)
    while True:
        log.unlink(missing_ok=True)
        ran = runner(command_line(ncu, wanted, log, program))
        text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
        said = f"{text}\n{ran.output}"
        if "ERR_NVGPUCTRPERM" in said:
            raise NotAvailableError(PERMISSION)
        launches = parse(text)
        if launches:
            known = {name for launch in launches for name in launch.metrics}
            return launches, tuple(name for name in metrics if name not in known)
        errors = [
            line for line in said.splitlines() if line.startswith(("==ERROR==", "==WARNING=="))
        ]
        unknown = [
            name
            for name in wanted
            if any(re.search(rf"\b{name.split('.')[0]}\b", line) for line in errors)
        ]
        if not unknown or len(unknown) == len(wanted):
            last = (errors or [line for line in said.splitlines() if line.strip()] or ["nothing"])[
                -1
            ].strip()
            raise NcuError(
                f"ncu: no launch was profiled (exit code {ran.returncode}: {last}); expected one "
                f"for each kernel. Run {ncu} alone."
            )
        wanted = [name for name in wanted if name not in unknown]
