"""``gpulab claims``: the ledger on the command line, or as a page of Markdown."""

from __future__ import annotations

import argparse
from typing import Any


def add_parser(subparsers: Any) -> None:
    """Add the subcommand to the command line's parser."""
    parser = subparsers.add_parser(
        "claims",
        help="compare published claims with recorded machines",
        description="Compare published claims about GPU acceleration with recorded machines, and "
        "write the ledger as a page.",
    )
    parser.add_argument(
        "--out",
        metavar="FILE",
        help="the page to write (Markdown); without it, one line per claim is printed",
    )
    parser.add_argument(
        "--recording",
        nargs="+",
        metavar="FILE",
        help="recordings to use (default: those that `gpulab recordings` lists)",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Carry out ``gpulab claims``; return the exit code."""
    from gpulab import recordings
    from gpulab._files import write_atomically
    from gpulab._given import expanded
    from gpulab.claims import ledger
    from gpulab.claims._page import page
    from gpulab.errors import InputError

    given = [recordings.read(name) for name in arguments.recording] if arguments.recording else None
    found = ledger(given)
    if not arguments.out:
        for finding in found.findings:
            print(
                f"{finding.verdict!s:16} {finding.claim.key:22} {finding.recording or '-':22} "
                f"{finding.summary}"
            )
        print(repr(found))
        return 0
    target = expanded("claims", arguments.out)
    try:
        write_atomically(target, page(found).encode())
    except OSError as error:
        raise InputError(
            f"claims: {target} cannot be written ({error.strerror or error}); expected a writable "
            "folder. Pass --out with another file."
        ) from error
    print(f"{found!r} in {target}")
    return 0
