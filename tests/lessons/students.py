"""Made-up students, who predict and answer as in the notebooks and hand in a report."""

import contextlib
import copy
import io
import json
import os
from pathlib import Path
from typing import Any

from course import HERE, answer_of
from gpulab import lessons
from gpulab.lessons import content

DATE = "2026-03-{day:02d}T10:00:00+00:00"
# Device, kind, processor, cores, GiB, float32 FLOP/s, main memory in bytes a second: data sheets.
MACHINES = (
    ("Intel Core i5-8250U (8 cores)", "cpu", "Intel Core i5-8250U", 8, 8, 2.0e11, 2.0e10),
    ("AMD Ryzen 7 7840U (16 cores)", "cpu", "AMD Ryzen 7 7840U", 16, 32, 6.0e11, 6.5e10),
    ("Apple GPU (Apple M2)", "mps", "Apple M2", 8, 16, 3.4e12, 9.5e10),
    ("NVIDIA GeForce RTX 4070", "cuda", "AMD Ryzen 9 5900X", 24, 32, 2.8e13, 4.8e11),
    ("NVIDIA H200", "cuda", "Intel Xeon Platinum 8480C", 16, 128, 4.3e13, 3.9e12),
)
# Question: unit, what was predicted by students 0, 1, 2, ..., what was measured.
PREDICTIONS: dict[str, tuple[str, tuple[Any, ...], Any]] = {
    "00.1": ("us", (5, 8000, 40), 8e-6),
    "00.3": ("x", (1, 10, 30), 12.0),
    "00.6": ("", ("the CPU", "the accelerator", "the accelerator"), "the CPU"),
    "02.1": ("", ("the GPU", "the CPU"), None),
    "02.3": ("x", (64, 2, 1.5, None), 1.2),
}


def machine_of(number: int) -> dict[str, Any]:
    """The parts of a report that describe a machine."""
    device, kind, processor, cores, gib, flops, rate = MACHINES[number % len(MACHINES)]
    stamp = {"schema_version": 1, "evidence": HERE.to_dict()}
    accelerators = [device] if kind != "cpu" else []
    machine = stamp | {
        "schema": "ReportedMachine", "system": "Linux x86_64", "processor": processor,
        "device": device, "device_kind": kind,
        "cores": cores, "memory_bytes": gib * 2**30, "accelerators": accelerators, "driver": None,
        "python": "3.12.4",
        "libraries": {"torch": "2.13.0"}, "doctor": {"python": "ok",
        "cupy": "fix" if number % 3 == 1 else "ok"},
    }  # fmt: skip
    roofs = stamp | {
        "schema": "ReportedRoofs", "device": device, "flops_per_second": {"float32": flops,
        "float64": flops / 2},
        "bytes_per_second": {"L2": 8 * rate, "DRAM": rate}, "capacity_bytes": {"L2": 2.0**20,
        "DRAM": "inf"}, "notes": [],
    }  # fmt: skip
    return {"machine": machine, "roofs": [roofs], "gpulab_version": "0.1.0"}


def report_of(
    number: int, name: str | None = None, sources: dict[str, str] | None = None, **changed: Any
) -> dict[str, Any]:
    """What a student hands in, as JSON; ``sources`` are the answers by exercise."""
    before = os.environ["GPULAB_PROGRESS"]
    sources = {"02.8": "chunks = 16", "03.10": "explained = 5"} if sources is None else sources
    os.environ["GPULAB_PROGRESS"] = f"{before}-{number}-{abs(hash(str((sources, changed))))}"
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            work(number, sources)
            made = lessons.report("" if name is None else name, measure=False).to_dict()
    finally:
        os.environ["GPULAB_PROGRESS"] = before
    fixed = {
        "name": f"Student {number:02d}" if name is None else name,
        "date": DATE.format(day=1 + number),
    }
    return {**made, **machine_of(number), **fixed, **changed}


def work(number: int, sources: dict[str, str]) -> None:
    """Predict what is asked, and check each answer."""
    for id, (unit, said, measured) in PREDICTIONS.items():
        choices = ("the CPU", "the accelerator" if id == "00.6" else "the GPU") if not unit else ()
        asked = lessons.predict(id, f"What comes out of {id}?", unit=unit, choices=choices)
        if said[number % len(said)] is not None:
            asked.submit(said[number % len(said)])
        lessons.reveal(id, measured, reason="no GPU here")
    for id, source in sources.items():
        exercise = content.exercise(id)
        lessons.check(id, answer_of(exercise, source))


def write(folder: Path, name: str, report: dict[str, Any] | str | bytes) -> Path:
    """Write a file as a student would hand it in."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / name
    text = json.dumps(report) if isinstance(report, dict) else report
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return file


def changed(report: dict[str, Any], *path: Any, value: Any) -> dict[str, Any]:
    """A copy of a report with the value at a path replaced."""
    made = copy.deepcopy(report)
    place = made
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return made
