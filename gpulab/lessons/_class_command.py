"""``gpulab class``: read a folder of reports, list the files that cannot be read and why, and write
the grades.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

SAME_NAME = ("ask", "later", "apart")


def add_parser(subparsers: Any) -> None:
    """Add the subcommand to the command line's parser."""
    parser = subparsers.add_parser(
        "class",
        help="read a folder of reports and write the grades",
        description="Read a folder of reports and list the students, the machines with something "
        "to fix, and the files that cannot be read. With --grades every answer is checked again, "
        "and the grades are written as CSV.",
    )
    parser.add_argument("folder", help="the folder of the reports, including its subfolders")
    parser.add_argument(
        "--grades", metavar="FILE", help="check every answer again and write the grades there"
    )
    parser.add_argument(
        "--rubric",
        metavar="FILE",
        help='a rubric such as {"exercise_points": 2, "notebooks": ["02"]} (default: see the docs)',
    )
    code = parser.add_mutually_exclusive_group()
    code.add_argument(
        "--no-code",
        action="store_true",
        help="do not run answers that are code: functions, kernels and scripts",
    )
    code.add_argument(
        "--trust-code",
        action="store_true",
        help="run code also where there is no box: every answer can then read, change and send "
        "whatever you can, and set any grade",
    )
    parser.add_argument(
        "--same-name",
        choices=SAME_NAME,
        default=SAME_NAME[0],
        help="of reports of one name: grade none and list them (ask, the default), let the later "
        "one count, or take each for a student",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Carry out ``gpulab class``; return the exit code."""
    from gpulab.errors import InputError
    from gpulab.lessons import Rubric, classroom, grade

    graded = arguments.grades is not None
    if not graded and (arguments.rubric is not None or arguments.no_code or arguments.trust_code):
        raise InputError(
            "class: --rubric, --no-code and --trust-code say how answers are graded; expected "
            "--grades FILE with them. Add it."
        )
    # Both before the answers are run, which takes minutes.
    rubric = None if arguments.rubric is None else Rubric.read(arguments.rubric)
    if graded:
        _refuse_unwritable(arguments.grades)
    room = classroom(arguments.folder, same_name=arguments.same_name)
    _print(room.table())
    print(f"\n{room.caption()}")
    if room.refused or room.remarks:
        print()
        _print(room.problems.table())
    if graded:
        grades = grade(
            room, rubric, run_code=not arguments.no_code, trust_code=arguments.trust_code
        )
        try:
            file = grades.write_csv(arguments.grades)
        except InputError:  # such as a disk that is full by now: what took an hour is not lost
            print(grades.csv())
            raise
        print(f"\n{grades.caption()} Written to {file}.")
        if grades.differences().rows:
            print()
            _print(grades.differences().table())
    return 0


def _refuse_unwritable(path: str) -> None:
    from gpulab._files import refuse_unwritable
    from gpulab._given import expanded
    from gpulab.errors import InputError, shown

    try:
        refuse_unwritable(expanded("class", path))
    except OSError as error:
        raise InputError(
            f"class: {shown(path)} cannot be written ({error.strerror or error}); expected a file "
            "in a folder of yours. Change --grades."
        ) from error


def _print(table: tuple[Sequence[str], Sequence[Sequence[str]]]) -> None:
    headers, rows = table
    lines = [tuple(map(str, line)) for line in (headers, *rows)]
    widths = [min(max(len(line[column]) for line in lines), 60) for column in range(len(headers))]
    for line in lines:
        print(
            "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip()
        )
