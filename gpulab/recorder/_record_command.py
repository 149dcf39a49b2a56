"""``gpulab record``: the recorder on the command line, with progress and the remaining time."""

from __future__ import annotations

import argparse
import contextlib
import shlex
import shutil
import signal
import sys
from collections import Counter
from typing import Any

_NARROWEST = 20  # characters of the line of progress: some terminals say that they have no columns


def add_parser(subparsers: Any) -> None:
    """Add the subcommand to the command line's parser."""
    parser = subparsers.add_parser(
        "record",
        help="measure this machine and write a recording, with which every notebook can compare",
        description="Measure this machine within a time budget. Run it again with the same --out "
        "to continue after an interrupt.",
    )
    parser.add_argument("--out", metavar="FILE", help="the recording to write (JSON)")
    parser.add_argument("--minutes", type=float, default=8.0, help="the time budget (default: 8)")
    parser.add_argument(
        "--name",
        help="the machine's short name, such as nvidia-h200 (default: that of FILE, else made "
        "from the device's name)",
    )
    parser.add_argument(
        "--device",
        help="the device to measure, such as cuda:1 or cpu (default: the best one available)",
    )
    parser.add_argument(
        "--only", nargs="+", metavar="EXPERIMENT", help="only these experiments (see --list)"
    )
    parser.add_argument(
        "--visits",
        type=int,
        metavar="N",
        help="how often to time each case, at moments far apart (default: 3)",
    )
    parser.add_argument(
        "--restart", action="store_true", help="replace FILE instead of continuing it"
    )
    parser.add_argument("--list", action="store_true", help="list the experiments and exit")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Carry out ``gpulab record``; return the exit code."""
    from gpulab import recorder
    from gpulab.errors import InputError
    from gpulab.results import text_table

    if arguments.list:
        rows = [(experiment.name, experiment.summary) for experiment in recorder.experiments()]
        print(text_table(("experiment", "what it times"), rows))
        return 0
    if not arguments.out:
        raise InputError(
            "record: no file was given; expected --out FILE, such as --out my-machine.json."
        )
    asked_to_stop, line_is_open = False, False

    def show(fraction: float, text: str) -> None:
        nonlocal line_is_open
        line, end = f"{100 * fraction:3.0f} %  {text}", "\n"
        if sys.stdout.isatty():
            width = max(_NARROWEST, shutil.get_terminal_size().columns - 1)
            line_is_open = fraction < 1
            line, end = f"\r{line[:width]:{width}}", "" if line_is_open else "\n"
        # the terminal is closed, or nobody reads on (``gpulab record | head``)
        with contextlib.suppress(OSError):
            print(line, end=end, flush=True)

    def ask(number: int, frame: Any) -> None:
        nonlocal asked_to_stop
        if asked_to_stop:
            raise KeyboardInterrupt
        asked_to_stop = True
        with contextlib.suppress(OSError):  # the terminal is closed: nobody is left to tell
            print(
                "\nstopping after the current case; press Ctrl-C again to stop immediately",
                file=sys.stderr,
            )

    before = {number: signal.signal(number, ask) for number in _asking()}
    try:
        recording = recorder.record(
            arguments.out,
            minutes=arguments.minutes,
            only=arguments.only,
            name=arguments.name,
            device=arguments.device,
            restart=arguments.restart,
            **({} if arguments.visits is None else {"visits": arguments.visits}),
            command=_command(arguments),
            progress=show,
            stop=lambda: asked_to_stop,
        )
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        # the budget ended before the last case: what comes next would stand behind the progress
        if line_is_open:
            print(flush=True)
    missing = recording.missing()
    planned = len(recording.entries)
    print(
        f"{planned - len(missing)} of {planned} cases recorded on {recording.environment.device} "
        f"in {arguments.out}"
    )
    for reason, count in Counter(entry.reason for entry in missing).most_common():
        print(f"  not recorded: {count} x {reason}")
    return 0


def _asking() -> list[int]:
    """Return the signals that ask for the end: a batch system sends SIGTERM, a terminal that closes
    SIGHUP, some seconds before it kills.

    One that is ignored stays so: under ``nohup`` a recording goes on when its terminal is closed.
    """
    there = [
        number
        for name in ("SIGTERM", "SIGHUP")
        if (number := getattr(signal, name, None)) is not None
    ]
    return [
        signal.SIGINT,
        *(number for number in there if signal.getsignal(number) not in (signal.SIG_IGN, None)),
    ]


def _command(arguments: argparse.Namespace) -> str:
    """Return the command that gives the recording again, without the path of the file."""
    words = ["gpulab", "record", "--out", "FILE", "--minutes", f"{arguments.minutes:g}"]
    words += ["--device", arguments.device] if arguments.device else []
    words += ["--visits", str(arguments.visits)] if arguments.visits is not None else []
    words += ["--only", *arguments.only] if arguments.only else []
    return shlex.join(words)  # names of experiments have spaces
