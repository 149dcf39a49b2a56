"""``gpulab html``: write the course as HTML pages that open from the disk, without a server or the
internet. Each notebook is executed, and its instruments become still pictures.

The command runs the notebooks (``_execute``), turns what they show into plain HTML (``_outputs``)
and writes the pages (``_pages``) through nbconvert with a template of our own. The pages hold the
results of one machine on one day. Each page states the machine and the date at its head and next to
every output with the badge MEASURED, since for the reader such an output is a recording.
"""

from __future__ import annotations

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe ``gpulab html`` and its arguments to its parser."""
    parser.description = (
        "Run the notebooks on this machine and write them as HTML pages that need "
        "neither a server nor the internet. The whole course takes about ten minutes on two cores."
    )
    parser.add_argument(
        "--out",
        type=Path,
        required=True,
        metavar="FOLDER",
        help="where to write the pages; index.html is the first",
    )
    parser.add_argument(
        "--notebooks", type=Path, metavar="FOLDER", help="the notebooks (default: the course's own)"
    )
    parser.add_argument(
        "--solutions", action="store_true", help="add a folded solution below each exercise"
    )


def run(arguments: argparse.Namespace) -> int:
    """Carry out ``gpulab html``; return the exit code."""
    from gpulab._html._pages import write_course
    from gpulab._validate import expanded
    from gpulab.lab import find_originals
    from gpulab.units import plural

    # a shell expands ~ only at the beginning of a word, and not in --out=~/pages
    source = arguments.notebooks
    index, pages, nbytes, seconds = write_course(
        find_originals() if source is None else expanded("html", source),
        expanded("html", arguments.out),
        solutions=arguments.solutions,
        say=print,
    )
    print(f"{plural(pages, 'page')}, {nbytes / 1e6:.1f} MB, {seconds:.0f} s. Open {index}")
    return 0
