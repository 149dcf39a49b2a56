"""``gpulab recordings``: list, show, compare and merge recordings."""

from __future__ import annotations

import argparse
import os
import pathlib
from typing import Any

from gpulab import recordings
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
    if len(chosen) > 1 or (arguments.out and chosen != ["merge"]):
        raise InputError(
            "recordings: expected at most one of --show, --diff and --merge, and --out only with "
            "--merge."
        )
    if arguments.show:
        recording = _get(arguments.show)
        print(printable(repr(recording)))
        print(text_table(*recording.table()))
    elif arguments.diff:
        difference = recordings.diff(*(_get(name) for name in arguments.diff))
        print(printable(repr(difference)))
        print(text_table(*difference.table()))
    elif arguments.merge:
        if not arguments.out:
            raise InputError(
                "recordings: --merge writes a file; expected --out FILE, such as --out both.json."
            )
        joined = recordings.merge(*(_get(name) for name in arguments.merge))
        try:
            recordings.write(joined, arguments.out)
        except OSError as error:
            raise InputError(
                f"recordings: {arguments.out} cannot be written ({error.strerror or error}); "
                "expected a writable folder. Change --out."
            ) from error
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
