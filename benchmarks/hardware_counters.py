"""Compare the microscope's counts with a GPU's own counters: each kernel runs once under Nsight
Compute, with the same grid and arrays.

    python benchmarks/hardware_counters.py [--record FOLDER] [--only NAME,NAME] [--quick]
        [--committed]

It needs a GPU, numba-cuda and ``ncu``; without one of them, or without the right to read counters,
it says so and exits with 0. The file that it writes has both numbers of each counter and whether
they are equal by the rule in it. Where they differ, fill in ``explanation`` (``usual_reasons`` in
the file says what to look for, ``machine_code`` what the compiler made), then put the file into
benchmarks/recorded and commit it: tests/kernels/test_ladder.py, tests/kernels/test_simulate_counts.py
and tests/models/test_access.py read it. ``--committed`` needs no GPU: it prints that comparison, and
fails where a difference has no explanation or the microscope counts otherwise than it did.
"""

from __future__ import annotations

import argparse
import collections
import importlib.util
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))
import _counter_kernels as kernels
import _counter_records as records
import _ncu
import _recorded

from gpulab import devices
from gpulab.errors import GpulabError
from gpulab.evidence import Environment
from gpulab.kernels import compile_python, launcher, simulate

QUICK = ("load-stride-1", "load-stride-8", "shared-stride-2", "transpose-tiled")
_MANIFEST = "launched.json"
_UNDER_WAY = "the process ended while it ran"
_INSTRUCTION = re.compile(
    r"(@!?U?P\d+\s+)?\b(LDG|STG|LDS|STS|ATOMG|ATOMS|ATOM|REDG|RED|SHFL|BRA)((?:\.\w+)*)\s"
)
# Tolerances relative to the largest value, by the kind of dtype: a GPU fuses multiplications with
# additions, and its functions such as tanh differ.
_ROOM = {"f": 5e-5, "i": 0.0, "u": 0.0}


def work(folder: Path, cases: Sequence[kernels.Case]) -> None:
    """Launch each kernel once between the calls that switch ncu's profiling on and off, and save
    its arrays in the folder. This runs under ncu.
    """
    import torch

    launched: list[dict[str, str]] = []
    for case in cases:
        arguments = case.make()
        launched.append({"name": case.name, "problem": _UNDER_WAY})
        (folder / _MANIFEST).write_text(json.dumps(launched), encoding="utf-8")
        problem = ""
        try:
            ready = launcher(case.kernel, case.grid, case.block, *arguments)
            ready.wait()
            torch.cuda.cudart().cudaProfilerStart()
            try:
                ready()
                ready.wait()
            finally:
                torch.cuda.cudart().cudaProfilerStop()
            ready.fetch()
        except Exception as error:  # named in the record; the other kernels still run
            problem = f"{type(error).__name__}: {error}"
        np.savez(folder / f"{case.name}.npz", *(a for a in arguments if isinstance(a, np.ndarray)))
        launched[-1]["problem"] = problem
        (folder / _MANIFEST).write_text(json.dumps(launched), encoding="utf-8")


def profiled(
    folder: Path,
    cases: Sequence[kernels.Case],
    ncu: str,
    runner: Callable[[Sequence[str]], _ncu.Ran],
) -> tuple[dict[str, _ncu.Launch], dict[str, str], tuple[str, ...]]:
    """Run the kernels under ncu; return launches and problems by kernel, and the metrics that are
    missing.
    """
    program = [
        sys.executable,
        str(Path(__file__).resolve()),
        "--worker",
        str(folder),
        "--only",
        ",".join(c.name for c in cases),
    ]
    try:
        launches, missing = _ncu.profile(records.METRICS, program, folder / "ncu.csv", ncu, runner)
    except _ncu.NotAvailableError:
        raise
    except _ncu.NcuError as error:
        first = next(iter(_troubles(folder).items()), None)
        raise _ncu.NcuError(f"{error} {first[0]}: {first[1]}" if first else str(error)) from error
    troubles = _troubles(folder)
    ran = [case for case in cases if case.name in _launched(folder) and case.name not in troubles]
    if _UNDER_WAY in troubles.values():  # ncu may have seen the launch that ended the process
        launches = launches[: len(ran)]
    if len(ran) != len(launches):
        raise _ncu.NcuError(
            f"ncu: {len(launches)} launches were profiled and {len(ran)} made; expected one for "
            "each kernel."
        )
    for case, launch in zip(ran, launches, strict=True):
        for name, there, here in (
            ("grid", launch.grid, case.grid),
            ("block", launch.block, case.block),
        ):
            if there is not None and _three(there) != _three(here):
                raise _ncu.NcuError(
                    f"ncu: launch {launch.identifier} has the {name} {there}; expected {here} of "
                    f"{case.name}."
                )
        if case.kernel.__name__ not in launch.kernel:
            raise _ncu.NcuError(
                f"ncu: launch {launch.identifier} is {launch.kernel}; expected "
                f"{case.kernel.__name__} of {case.name}."
            )
    return (
        {case.name: launch for case, launch in zip(ran, launches, strict=True)},
        troubles,
        missing,
    )


def _launched(folder: Path) -> dict[str, str]:
    """Return the problem of each kernel that the worker tried, or "" if it had none."""
    path = folder / _MANIFEST
    return (
        {each["name"]: each["problem"] for each in json.loads(path.read_text(encoding="utf-8"))}
        if path.exists()
        else {}
    )


def _troubles(folder: Path) -> dict[str, str]:
    return {name: problem for name, problem in _launched(folder).items() if problem}


def _three(extent: int | tuple[int, ...]) -> tuple[int, ...]:
    return (*(extent if isinstance(extent, tuple) else (extent,)), 1, 1)[:3]


def agree(there: Sequence[np.ndarray], here: Sequence[np.ndarray]) -> bool:
    """Return whether the GPU's arrays equal the microscope's, floats to within 5e-5 of the largest
    value.
    """
    return len(there) == len(here) and all(
        a.shape == b.shape
        and np.allclose(a, b, rtol=0, atol=_ROOM[b.dtype.kind] * float(np.abs(b).max(initial=0.0)))
        for a, b in zip(there, here, strict=True)
    )


def machine_code(
    kernel: Callable[..., None], arguments: Sequence[object], compute_capability: str
) -> dict[str, int]:
    """Return how often each instruction that moves data or branches occurs in the compiled kernel;
    empty if the kernel cannot be compiled or disassembled.
    """
    try:
        text = compile_python(
            kernel, *arguments, arch=f"sm_{compute_capability.replace('.', '')}"
        ).sass
    except GpulabError:
        return {}
    found: collections.Counter[str] = collections.Counter()
    for predicate, opcode, suffixes in _INSTRUCTION.findall(text or ""):
        width = next((f".{part}" for part in suffixes.split(".") if part in ("64", "128")), "")
        found[opcode + width] += 1
        found["predicated"] += bool(predicate)
    return dict(sorted(found.items()))


def record_of(
    case: kernels.Case,
    launch: _ncu.Launch | None,
    problem: str,
    folder: Path,
    compute_capability: str,
) -> records.KernelRecord:
    """Simulate one kernel, and compare its counts with the metrics of its launch."""
    arguments = case.make()
    told = tuple(
        f"{a.dtype}{list(a.shape)}" if isinstance(a, np.ndarray) else str(a) for a in arguments
    )
    s = simulate(case.kernel, case.grid, case.block, *arguments)
    here = [a for a in arguments if isinstance(a, np.ndarray)]
    results_agree = False
    if launch is not None:
        with np.load(folder / f"{case.name}.npz") as saved:
            results_agree = agree([saved[name] for name in saved.files], here)
    return records.KernelRecord(
        case.name,
        case.from_ladder,
        s.grid,
        s.block,
        told,
        results_agree,
        problem or ("" if launch else "it was not launched"),
        machine_code=machine_code(case.kernel, arguments, compute_capability),
        metrics=dict(launch.metrics) if launch else {},
        comparisons=records.compare(launch.metrics, s, compute_capability) if launch else (),
    )


def compare(
    cases: Sequence[kernels.Case],
    environment: Environment,
    compute_capability: str,
    ncu: tuple[str, str],
    runner: Callable[[Sequence[str]], _ncu.Ran] = _ncu.run,
) -> records.CounterRecord:
    """Profile and simulate all kernels; ``ncu`` is its path and its version."""
    with tempfile.TemporaryDirectory(prefix="gpulab-counters-") as name:
        folder = Path(name)
        launches, troubles, missing = profiled(folder, cases, ncu[0], runner)
        found = tuple(
            record_of(c, launches.get(c.name), troubles.get(c.name, ""), folder, compute_capability)
            for c in cases
        )
    return records.CounterRecord(
        environment, compute_capability, ncu[1], records.RULE, missing, records.REASONS, found
    )


def drift(record: records.CounterRecord) -> list[str]:
    """Return where the microscope's counts are not those of the record any more, one sentence
    each.
    """
    known = {case.name: case for case in kernels.CASES}
    found = []
    for kernel in record.kernels:
        case = known.get(kernel.name)
        if case is None:
            found.append(f"{kernel.name}: there is no such kernel any more.")
            continue
        now = records.compare(
            kernel.metrics,
            simulate(case.kernel, case.grid, case.block, *case.make()),
            record.compute_capability,
        )
        then = {c.counter: c.simulated for c in kernel.comparisons}
        found += [
            f"{kernel.name}: {c.counter} was {_shown(then.get(c.counter))} and is "
            f"{_shown(c.simulated)}."
            for c in now
            if c.simulated != then.get(c.counter)
        ]
    return found


def summary(record: records.CounterRecord) -> str:
    """Return the comparison as text: one line for each kernel, and the numbers that differ.
    Counters that are zero on both sides are left out of the totals.
    """
    lines = []
    for kernel in record.kernels:
        counted = [c for c in kernel.comparisons if not c.is_empty]
        equal = sum(c.equal for c in counted)
        state = (
            kernel.problem
            or f"{equal} of {len(counted)} "
            f"equal{'' if kernel.results_agree else ', RESULTS DIFFER'}"
        )
        lines.append(f"{kernel.name:24s} {state}")
        lines += [
            f"    {c.counter}: GPU {_shown(c.hardware)}, microscope "
            f"{_shown(c.simulated)}{': ' + c.explanation if c.explanation else ''}"
            for c in kernel.comparisons
            if not c.equal
        ]
    if record.missing_metrics:
        lines.append(
            f"This GPU or ncu has no {', '.join(record.missing_metrics)}; what needs them was not "
            "compared."
        )
    every = [c for kernel in record.kernels for c in kernel.comparisons]
    counted = [c for c in every if not c.is_empty]
    lines.append(
        f"{sum(c.equal for c in counted)} of {len(counted)} nonzero counters of "
        f"{len(record.kernels)} kernels are equal ({record.rule}); {len(every) - len(counted)} more "
        "are zero on both sides."
    )
    return "\n".join(lines)


def _shown(value: float | None) -> str:
    return "none" if value is None else f"{value:,.10g}"


def _earlier(record: records.CounterRecord) -> records.CounterRecord:
    """Return the record with the explanations of this device's committed record, if there is
    one.
    """
    path = _recorded.FOLDER / _recorded.file_name("counters", record.environment.device)
    return (
        records.with_explanations(record, _recorded.read(path, records.CounterRecord))
        if path.exists()
        else record
    )


def _version(ncu: str) -> str:
    said = subprocess.run([ncu, "--version"], capture_output=True, text=True, check=False).stdout
    return next(
        (line.strip() for line in reversed(said.splitlines()) if line.startswith("Version")),
        "unknown",
    )


def main(arguments: list[str]) -> int:
    """Compare and report; return 1 where kernels failed or gave other results, 0 otherwise (also
    where it was skipped).
    """
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--record", type=Path, help="folder for the JSON file")
    parser.add_argument("--only", default="", help="names of kernels, with commas")
    parser.add_argument("--quick", action="store_true", help="four kernels")
    parser.add_argument(
        "--committed", action="store_true", help="check the committed files; needs no GPU"
    )
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args(arguments)
    try:
        cases = kernels.chosen(asked.only or (",".join(QUICK) if asked.quick else ""))
    except ValueError as error:
        print(f"hardware_counters: {error}", file=sys.stderr)
        return 2
    if asked.worker:
        work(asked.worker, cases)
        return 0
    if asked.committed:
        return _recorded.check(
            "counters", records.CounterRecord, summary, lambda r: [*records.problems(r), *drift(r)]
        )
    import torch

    if not torch.cuda.is_available():
        print(
            "hardware_counters: skipped: torch sees no CUDA device; expected one with ncu beside "
            "it."
        )
        return 0
    if importlib.util.find_spec("numba_cuda") is None:
        print(
            "hardware_counters: skipped: numba-cuda is not installed, which compiles the kernels; "
            "expected it. Install numba-cuda."
        )
        return 0
    try:
        ncu = _ncu.find_ncu()
        environment = devices.environment("cuda:0", "python benchmarks/hardware_counters.py")
        capability = ".".join(map(str, torch.cuda.get_device_capability(0)))
        record = _earlier(compare(cases, environment, capability, (ncu, _version(ncu))))
    except _ncu.NotAvailableError as error:
        print(f"hardware_counters: skipped: {error}")
        return 0
    except _ncu.NcuError as error:
        print(f"hardware_counters: failed: {error}", file=sys.stderr)
        return 1
    print(summary(record))
    if asked.record:
        print(
            f"Written to {_recorded.write(record, 'counters', environment.device, asked.record)}; "
            "explain there what differs."
        )
    return int(any(kernel.problem or not kernel.results_agree for kernel in record.kernels))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
