"""``gpulab misconceptions``: the course's common wrong predictions and wrong answers."""

from __future__ import annotations

import argparse
import textwrap
from typing import Any

from gpulab.lessons.content import chosen


def add_parser(subparsers: Any) -> None:
    """Add ``gpulab misconceptions`` to the command line's parser."""
    parser = subparsers.add_parser(
        "misconceptions",
        help="list the common wrong predictions and wrong answers of the course",
        description="List the misconceptions behind common wrong predictions, and the common wrong "
        "answers to each exercise "
        "with words of their refusal.",
    )
    parser.add_argument(
        "notebook",
        nargs="?",
        default="",
        metavar="NN",
        help="only this notebook, such as 02 (default: all)",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Carry out ``gpulab misconceptions``; return the exit code."""
    for lesson in chosen(arguments.notebook, "misconceptions"):
        print(f"{lesson.notebook}\n{'=' * len(lesson.notebook)}")
        for id in lesson.ids:
            if id in lesson.questions:
                print(f"\n{id}, a prediction")
                for reading in lesson.questions[id].readings:
                    print(
                        textwrap.fill(
                            reading.sentence.strip(),
                            100,
                            initial_indent="- ",
                            subsequent_indent="  ",
                        )
                    )
            else:
                print(f"\n{id}, an exercise: {lesson.exercises[id].title}")
                for usual in lesson.exercises[id].usual:
                    print(
                        "- refused with "
                        f'"{usual.says}":\n{textwrap.indent(usual.source.rstrip(), "    ")}'
                    )
        print()
    return 0
