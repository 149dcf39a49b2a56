"""``gpulab report``: write the file that a student hands in."""

from __future__ import annotations

import argparse
import hashlib
import os
import pathlib
import unicodedata
from typing import Any

# characters of a name in a file's name: at most 160 bytes of the 255 that file systems take
_LONGEST_WORD = 40


def add_parser(subparsers: Any) -> None:
    """Add the subcommand to the command line's parser."""
    parser = subparsers.add_parser(
        "report",
        help="write the file that you hand in: machine, predictions, checks",
        description="Write one small file with this machine, your predictions and your checked "
        "answers, and print what it contains.",
    )
    parser.add_argument(
        "--out",
        metavar="FILE",
        help="where to write (default: gpulab-report-NAME.json here, gpulab-doctor-NAME.json with "
        "--doctor-only)",
    )
    parser.add_argument(
        "--name", default="", help="your name, the only personal data in it (default: none)"
    )
    parser.add_argument(
        "--notebook", default="", metavar="02", help="only this notebook (default: all)"
    )
    parser.add_argument(
        "--doctor-only",
        action="store_true",
        help="only the machine and the results of `gpulab doctor`, before class",
    )
    parser.add_argument(
        "--no-measure",
        action="store_true",
        help="leave out the machine's roofs, which take some seconds to measure",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Carry out ``gpulab report``; return the exit code."""
    from gpulab.lessons import _report

    if not arguments.doctor_only:
        _find_progress()
    made = _report.report(
        arguments.name,
        arguments.notebook,
        measure=not (arguments.no_measure or arguments.doctor_only),
        progress=not arguments.doctor_only,
    )
    _report.write_report(
        made, arguments.out or _default(made.name, "doctor" if arguments.doctor_only else "report")
    )
    return 0


def _find_progress() -> None:
    """Take the progress of the working copy where this folder has none, and say which file it
    is.
    """
    from gpulab.lessons import _store

    copy = pathlib.Path("my-notebooks", ".gpulab", "progress.json")
    if not _store.path().exists() and not os.environ.get("GPULAB_PROGRESS") and copy.is_file():
        os.environ["GPULAB_PROGRESS"] = str(copy.absolute())
    if _store.path().is_file():
        print(f"Your progress is read from {_store.path()}.")
    else:
        print(
            f"There is no progress at {_store.path()}: change to the folder of your notebooks, or "
            "set GPULAB_PROGRESS to the file."
        )


def _default(name: str, what: str = "report") -> str:
    """Return a file's name that tells students apart in one folder: letters of any alphabet, and a
    short hash where others were lost.
    """
    plain = " ".join(unicodedata.normalize("NFC", name).lower().split())
    word = "-".join("".join(c if c.isalnum() else " " for c in plain).split())[
        :_LONGEST_WORD
    ].strip("-")
    lost = (
        hashlib.sha256(plain.encode()).hexdigest()[:4]
        if word.replace("-", " ") != plain.replace("-", " ")
        else ""
    )
    return f"{'-'.join(filter(None, (f'gpulab-{what}', word, lost)))}.json"
