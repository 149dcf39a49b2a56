"""The files of comparisons with hardware, which are made on a GPU machine, explained by a person,
committed, and checked without a GPU by ``--committed`` of the script that makes them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

from gpulab._files import write_atomically
from gpulab.results import Result

R = TypeVar("R", bound=Result)
FOLDER = Path(__file__).resolve().parent / "recorded"


def file_name(kind: str, device: str) -> str:
    """Return the file's name, such as "counters-nvidia-h200.json"."""
    return f"{kind}-{re.sub(r'[^a-z0-9]+', '-', device.lower()).strip('-')}.json"


def write(record: Result, kind: str, device: str, folder: Path) -> Path:
    """Write a record as JSON that a person can read and complete; return its path."""
    path = folder / file_name(kind, device)
    write_atomically(
        path, (json.dumps(record.to_dict(), indent=1, ensure_ascii=False) + "\n").encode()
    )
    return path


def read(path: Path, kind: type[R]) -> R:
    """Return the record of a file.

    Raises
    ------
    RecordingError
        If a field is missing, unknown or of another type.
    """
    return kind.from_dict(json.loads(path.read_text(encoding="utf-8")), where=path.name)


def check(
    name: str, kind: type[R], summary: Callable[[R], str], problems: Callable[[R], Iterable[str]]
) -> int:
    """Print the summary and the problems of each committed file whose name begins with ``name``;
    return 1 where there is a problem or no file, 0 otherwise.
    """
    paths = sorted(FOLDER.glob(f"{name}-*.json"))
    found = [] if paths else [f"no file {name}-*.json; expected one in {FOLDER}."]
    for path in paths:
        record = read(path, kind)
        print(f"{path.name}\n{summary(record)}")
        found += [f"{path.name}: {problem}" for problem in problems(record)]
    print("\n".join(found) or "Nothing is wrong with what is committed.")
    return int(bool(found))
