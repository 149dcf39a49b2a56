"""A made-up class for tests and benchmarks: reports of different machines, some right, some wrong,
some damaged or hostile.

The machines' figures come from data sheets or are round numbers. The answers are the course's own
solutions and usual wrong answers. Nothing is measured.
"""

from __future__ import annotations

import copy
import functools
import json
import linecache
import pathlib
import random
from collections.abc import Callable
from typing import Any

from gpulab.evidence import Evidence
from gpulab.lessons import _answers, content
from gpulab.lessons._report import (
    ReportedCheck,
    ReportedMachine,
    ReportedPrediction,
    ReportedRoofs,
    StudentReport,
)
from gpulab.lessons.content import Exercise

DATE = "2026-03-{day:02d}T10:00:00+00:00"
# Device, kind, processor, cores, GiB, float32 FLOP/s, main memory in bytes/s.
MACHINES = (
    ("Intel Core i5-8250U (8 cores)", "cpu", "Intel Core i5-8250U", 8, 8, 2.0e11, 2.0e10),
    ("AMD Ryzen 7 7840U (16 cores)", "cpu", "AMD Ryzen 7 7840U", 16, 32, 6.0e11, 6.5e10),
    ("Apple GPU (Apple M2)", "mps", "Apple M2", 8, 16, 3.4e12, 9.5e10),
    ("NVIDIA GeForce RTX 4070", "cuda", "AMD Ryzen 9 5900X", 24, 32, 2.8e13, 4.8e11),
    ("NVIDIA H200", "cuda", "Intel Xeon Platinum 8480C", 16, 128, 4.3e13, 3.9e12),
    ("ARM Cortex-A76 (4 cores)", "cpu", "ARM Cortex-A76", 4, 4, 4.0e10, 9.0e9),
)
# Exercises whose checks take milliseconds, with a value or a function as the answer.
QUICK = ("02.2", "02.5", "02.8", "03.10", "03.11")
# Questions of the course whose answer is a number, with what was measured.
NUMBERS = {"00.1": 0.03, "00.3": 12.0, "02.1": 0.004}


def answer_of(exercise: Exercise, source: str) -> Any:
    """Run a source as a notebook's cell does and return the answer that it defines."""
    names: dict[str, object] = {"__name__": "__main__"}
    file = f"<cell of {exercise.id}, {abs(hash(source))}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    exec(compile(source, file, "exec"), names)
    return names[exercise.answer_name]


def check_of(id: str, source: str, state: str, attempts: int = 1) -> ReportedCheck:
    """Return an exercise's entry in a report, with the answer that a source defines."""
    return ReportedCheck(id, state, attempts, 0, False, copy.deepcopy(_kept(id, source)), None)


@functools.cache
def _kept(id: str, source: str) -> dict[str, Any]:
    """Return what a report keeps of an answer; cached, since many students give the same one."""
    return _answers.keep(answer_of(content.exercise(id), source))


def report_of(
    number: int,
    name: str | None = None,
    checks: tuple[ReportedCheck, ...] | None = None,
    **changed: Any,
) -> StudentReport:
    """The report of one made-up student; the same number gives the same report."""
    chance = random.Random(number)
    device, kind, processor, cores, gib, flops, rate = MACHINES[number % len(MACHINES)]
    date = DATE.format(day=1 + number % 28)
    here = Evidence.measured(device, date=date)
    machine = ReportedMachine(
        "Linux x86_64",
        processor,
        device,
        kind,
        cores,
        gib * 2**30,
        (device,) if kind != "cpu" else (),
        None,
        "3.12.4",
        {"torch": "2.13.0", "numpy": "2.4.6"},
        {"python": "ok", "torch": "ok", "cupy": "fix" if number % 7 == 3 else "ok"},
        here,
    )
    wobble = chance.uniform(0.85, 1.15)
    roofs = ReportedRoofs(
        device,
        {"float32": flops * wobble, "float64": flops * wobble / 2},
        {"L2": 8 * rate, "DRAM": rate * wobble},
        {"L2": 2.0**20, "DRAM": float("inf")},
        (),
        here,
    )
    predictions = tuple(
        ReportedPrediction(
            id,
            f"How long does {id} take?",
            measured * 10 ** chance.uniform(-1.5, 1.5),
            "some",
            measured,
            "that",
            "off",
            "MEASURED",
            0,
        )
        for id, measured in NUMBERS.items()
    )
    if checks is None:
        checks = tuple(_made_check(id, number) for id in QUICK)
    fields = {
        "name": f"Student {number:03d}" if name is None else name,
        "date": date,
        "gpulab_version": "0.1.0",
        "notebook": "",
        "machine": machine,
        "roofs": (roofs,),
        "predictions": predictions,
        "checks": checks,
        "measurements": (),
    }
    return StudentReport(**{**fields, **changed})


def _made_check(id: str, number: int) -> ReportedCheck:
    """Return a right answer for two of three students, else one of the usual wrong answers."""
    exercise = content.exercise(id)
    if (number + len(id) + int(id[-1])) % 3:
        return check_of(id, exercise.solution, "passed", 1 + number % 4)
    usual = exercise.usual[number % len(exercise.usual)]
    return check_of(id, usual.source, "wrong", 2 + number % 5)


def write(folder: pathlib.Path, name: str, report: StudentReport) -> pathlib.Path:
    """Write a report as the command does."""
    file = folder / name
    file.write_text(
        json.dumps(report.to_dict(), indent=1, ensure_ascii=False, allow_nan=False),
        encoding="utf-8",
    )
    return file


def _changed(change: Callable[[dict[str, Any]], Any]) -> str:
    data = report_of(1).to_dict()
    change(data)
    return json.dumps(data)


def _swapped(old: str, new: str) -> str:
    text = json.dumps(report_of(1).to_dict())
    assert old in text
    return text.replace(old, new)


def _nested(depth: int) -> str:
    text = _changed(lambda d: d["checks"][0].update(kept="HERE"))
    return text.replace('"HERE"', "[" * depth + "]" * depth)


# Files that must be refused, each with the words that the sentence of the refusal must contain.
DAMAGED: dict[str, tuple[bytes | str, str]] = {
    "cut_off": (json.dumps(report_of(0).to_dict())[:-200], "not JSON"),
    "empty": ("", "not JSON"),
    "picture": (b"\x89PNG\r\n\x1a\n\x00\xff\xfe", "not text"),
    "progress_file": ('{"schema": "gpulab-progress", "schema_version": 1}', "no report"),
    "list": ("[1, 2, 3]", "no report"),
    "missing_field": (_changed(lambda d: d.pop("machine")), "missing or unknown"),
    "wrong_type": (_changed(lambda d: d["machine"].update(cores="eight")), "expected int"),
    "two_of_one": (
        _changed(lambda d: d["checks"].append(d["checks"][0])),
        "two checks of one number",
    ),
    "no_date": (_changed(lambda d: d.update(date="yesterday")), "Its date is"),
    "latin": (
        json.dumps(report_of(2, "Zoë").to_dict(), ensure_ascii=False).encode("latin-1"),
        "not text",
    ),
}
HOSTILE: dict[str, tuple[bytes | str, str]] = {
    "deep": ("[" * 200_000, "nested deeper than any report"),
    "deep_inside": (_nested(5000), "nested deeper than any report"),
    "future_version": (_changed(lambda d: d.update(schema_version=99)), "Update gpulab"),
    "future_date": (
        _changed(lambda d: d.update(date="9999-01-01T00:00:00+00:00")),
        "in the future (or that computer's clock is wrong)",
    ),
    "nan": (_swapped('"cores": 16', '"cores": NaN'), "bare word NaN"),
    "nan_word": (
        _changed(lambda d: d["roofs"][0]["flops_per_second"].update(float32="nan")),
        "no machine has",
    ),
    "nameless_roofs": (_changed(lambda d: d["roofs"][0].update(device="")), "of no device"),
    "overflow": (_swapped('"cores": 16', '"cores": 1e999'), "no float"),
    "huge_number": (_swapped('"cores": 16', f'"cores": {"9" * 5000}'), "not JSON"),
    "long_name": (_changed(lambda d: d.update(name="A" * 50_000)), "characters"),
    "half_character_key": (
        _changed(lambda d: d["machine"]["libraries"].update({"\ud800": 3})),
        "half a character",
    ),
    "half_character": (
        _changed(lambda d: d["predictions"][0].update(question="How \udc00 long?")),
        "half a character",
    ),
    "escape_in_key": (
        _changed(lambda d: d["machine"]["libraries"].update({"\x1b[2J\x1b[31mOWNED": 3})),
        "OWNED: found 3",
    ),
    "long_key": (
        _changed(lambda d: d["machine"]["libraries"].update({"k" * 50_000: 3})),
        "found 3; expected str",
    ),
    "negative": (_changed(lambda d: d["checks"][0].update(attempts=-5)), "less than never"),
}
# Names that must be shown as text, and must not become a formula in a spreadsheet.
NAMES = (
    "<script>alert(1)</script>",
    '=HYPERLINK("http://x","y")',
    "+1+1",
    "-2",
    "@SUM(A1)",
    "Anna \u202e\x07Berg",
    '"><img src=x onerror=alert(1)>',
)


def make_class(folder: pathlib.Path, students: int, damaged: int = 0) -> None:
    """Fill a folder with good reports of ``students`` students, and with up to ``damaged`` files
    that are damaged or hostile.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(students):
        write(folder, f"report-{number:03d}.json", report_of(number))
    for name, (text, _) in list({**DAMAGED, **HOSTILE}.items())[:damaged]:
        data = text if isinstance(text, bytes) else text.encode()
        (folder / f"bad-{name}.json").write_bytes(data)
