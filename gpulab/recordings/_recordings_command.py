"""``gpulab recordings``: list, show, compare and merge recordings."""

from __future__ import annotations

import argparse
import os
import pathlib
from typing import Any

from gpulab import recordings
from gpulab._validate import writing
from gpulab.errors import InputError, RecordingError, message_of, printable
from gpulab.results import text_table


def add_parser(subparsers: Any) -> None:
    """Add the subcommand to the command line's parser."""
    parser = subparsers.add_parser(
        "recordings",
        help="list, show, compare and merge recordings",
        description="List the available recordings, show one, compare two, or merge two of the "
        "same machine.",
    )
    parser.add_argument(
        "--show", metavar="NAME", help="a recording, by its machine's name or its file"
    )
    parser.add_argument(
        "--diff", nargs=2, metavar="NAME", help="compare two recordings, the largest change first"
    )
    parser.add_argument(
        "--merge",
        nargs=2,
        metavar="NAME",
        help="merge two recordings of one machine into --out; of two entries for a case, the "
        "later is kept",
    )
    parser.add_argument("--out", metavar="FILE", help="the file that --merge writes")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Carry out ``gpulab recordings``; return the exit code."""
    chosen = [name for name in ("show", "diff", "merge") if getattr(arguments, name)]
    if len(chosen) > 1 or bool(arguments.out) != bool(arguments.merge):
        raise InputError(
            "recordings: expected at most one of --show, --diff and --merge, and --out FILE with "
            "--merge alone. Pass for example --merge A B --out both.json."
        )
    if arguments.show or arguments.diff:
        result = (
            _get(arguments.show) if arguments.show else recordings.diff(*map(_get, arguments.diff))
        )
        print(printable(repr(result)))
        print(text_table(*result.table()))
    elif arguments.merge:
        joined = recordings.merge(*map(_get, arguments.merge))
        with writing("recordings", arguments.out):
            recordings.write(joined, arguments.out)
        print(f"{joined!r} in {arguments.out}")
    else:
        for name in recordings.names():
            try:
                print(printable(f"{name}: {recordings.load(name)!r}"))
            except RecordingError as error:  # the others can be read
                reason = message_of(error, 1000)
                print(
                    f"{printable(name)}: cannot be read. "
                    f"{reason}{'' if reason.endswith('?') else '.'}"
                )
    return 0


def _get(name: str) -> Any:
    """Return a recording by its file where there is one of that name, else by its machine's
    name.
    """
    is_file = name.endswith(".json") or os.sep in name or pathlib.Path(name).is_file()
    return recordings.read(name) if is_file else recordings.load(name)
