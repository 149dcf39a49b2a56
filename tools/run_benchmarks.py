"""Run every benchmark of ``benchmarks/`` in turn, each in a process of its own. Options are passed
on, --quick only to benchmarks that have it; a value belongs to its option, as in ``--rounds=3``.

Give names to run only those: ``python tools/run_benchmarks.py interval_coverage --quick``.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / "benchmarks"


def benchmarks() -> list[Path]:
    """Return the files that are programs; the other files are their helpers."""
    return [
        path
        for path in sorted(FOLDER.glob("*.py"))
        if '__name__ == "__main__"' in path.read_text(encoding="utf-8")
    ]


def main(arguments: list[str]) -> int:
    """Run them; return 1 if one failed, 2 if a name is unknown."""
    names = [a for a in arguments if not a.startswith("-")]
    options = [a for a in arguments if a.startswith("-")]
    there = {path.stem: path for path in benchmarks()}
    if unknown := [name for name in names if name not in there]:
        print(
            f"No benchmark is named {' or '.join(unknown)}; there are {', '.join(there)}.",
            file=sys.stderr,
        )
        return 2
    chosen = [path for name, path in there.items() if not names or name in names]
    failed = []
    for path in chosen:
        given = [
            each
            for each in options
            if each != "--quick" or '"--quick"' in path.read_text(encoding="utf-8")
        ]
        print(
            "\n== "
            f"{' '.join([path.stem, *given])}{'' if given == options else ' (has no short form)'}",
            flush=True,
        )
        if subprocess.run([sys.executable, str(path), *given], check=False).returncode != 0:
            failed.append(path.stem)
    if failed:
        print(f"\nFailed: {', '.join(failed)}.", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
