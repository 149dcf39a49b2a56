"""The command line: ``gpulab doctor``, ``lab``, ``html`` and so on; ``COMMANDS`` lists all.

Each command lives in a module of its own with ``add_arguments(parser)`` and ``run(arguments) ->
exit code``. Only the module of the requested command is imported, so ``gpulab record`` runs on a
machine without Jupyter.
"""

from __future__ import annotations

import argparse
import errno
import importlib
import io
import json
import os
import pathlib
import signal
import sys
from collections.abc import Sequence

from gpulab.errors import GpulabError, install_extra

# The command's name, its module, and the line that the help shows.
COMMANDS = {
    "doctor": (__name__, "check this machine before class"),
    "lab": ("gpulab.lab", "open the course in JupyterLab"),
    "report": (
        "gpulab.lessons._report",
        "write the report that you hand in: machine, predictions, checks",
    ),
    "class": ("gpulab.lessons.classes", "read a folder of reports and write the grades"),
    "nbgrader": ("gpulab._nbgrader", "write the course's exercises as an nbgrader course"),
    "misconceptions": (
        "gpulab.lessons.content",
        "list the common wrong predictions and wrong answers of the course",
    ),
    "html": ("gpulab._html", "write the course as HTML pages that open from the disk"),
    "claims": ("gpulab.claims.verdicts", "compare published claims with recorded machines"),
    "recordings": ("gpulab.recordings._files", "list, show, compare and merge recordings"),
    "simulate": (
        "gpulab.kernels.scripts",
        "run a program that uses numba.cuda without a GPU, and report what its kernels do",
    ),
    "record": ("gpulab.recorder._session", "measure this machine and write a recording"),
}
# The modules that the extra ``lab`` installs.
_LAB = ("jupyterlab", "jupyter_server", "nbconvert", "nbformat", "nbclient", "jupyterlab_pygments")
# the folder is gone; the disk is full, or the user's quota of it is used up
_GONE_OR_FULL = (errno.ENOENT, errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe ``gpulab doctor`` and its arguments to its parser."""
    parser.description = (
        "Check this machine before class. The exit code is 0 if nothing has to be fixed, else 1."
    )
    parser.add_argument("--json", action="store_true", help="print the report as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Carry out ``gpulab doctor``; return the exit code."""
    from gpulab.devices import checkup

    report = checkup()
    print(
        json.dumps({**report.to_dict(), "ok": report.ok}, indent=2)
        if arguments.json
        else report.text
    )
    return 0 if report.ok else 1


def _parser(asked: str | None) -> argparse.ArgumentParser:
    """Return the parser: the requested command with its arguments, every other command with only
    its line in the help.
    """
    import gpulab

    parser = argparse.ArgumentParser(
        prog="gpulab",
        description="A laboratory for GPU acceleration of deep learning, in JupyterLab.",
    )
    parser.add_argument("--version", action="version", version=f"gpulab {gpulab.__version__}")
    subparsers = parser.add_subparsers(
        title="commands", metavar="COMMAND", dest="command", required=True
    )
    for name, (module, line) in COMMANDS.items():
        below = subparsers.add_parser(name, help=line)
        if name == asked:
            command = importlib.import_module(module)
            command.add_arguments(below)
            below.set_defaults(run=command.run)
    return parser


def _show_every_character() -> None:
    """Print an escape for each character that the output's encoding lacks: on Windows the encoding
    of a file or a pipe covers one alphabet, and names may use others.
    """
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Parameters
    ----------
    argv : sequence of str, optional
        The arguments without the program's name; None takes those of this process.

    Returns
    -------
    int
        0 done; 1 something to fix (doctor); 2 wrong arguments or one of gpulab's errors; 130
        interrupted; 141 the program that reads the output has ended.
    """
    _show_every_character()
    words = list(sys.argv[1:] if argv is None else argv)
    command = next((word for word in words if not word.startswith("-")), None)
    for number in filter(None, (getattr(signal, name, None) for name in ("SIGTERM", "SIGHUP"))):
        # a signal that is ignored, such as SIGHUP under nohup, stays ignored
        if argv is None and signal.getsignal(number) is signal.SIG_DFL:
            # SystemExit leaves every ``with`` block, which removes its temporary folder
            signal.signal(number, lambda number, frame: sys.exit(128 + number))
    try:
        arguments = _parser(command).parse_args(words)
        pathlib.Path.cwd()  # raises if it is gone; each command looks for something in it
        code = int(arguments.run(arguments))
        print(end="", flush=True)
        return code
    except KeyboardInterrupt:
        print("gpulab: interrupted.", file=sys.stderr)
        return 130  # as a shell gives a program that SIGINT ended: 128 + 2
    except BrokenPipeError:
        # the program that reads this output (head, less) has ended, so no message can reach it
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115, PTH123 - kept open for the interpreter's last flush
        return 141  # 128 + SIGPIPE
    except OSError as error:
        # without a file name: the error of a file that a command writes carries its name
        if error.errno not in _GONE_OR_FULL or error.filename is not None:
            raise
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115, PTH123 - as above
        message = (
            f"the current folder is gone, or the disk of the output is full ({error.strerror}); "
            "expected an existing folder and free space. Change to another folder, or free some "
            "space, and run the command again."
        )
    except ModuleNotFoundError as error:
        if str(error.name).partition(".")[0] not in _LAB:
            raise
        message = (
            f"{command} needs {error.name}, which is not installed; expected the packages of the "
            f"extra 'lab'. {install_extra('lab').removesuffix(', and restart the kernel.')}."
        )
    except GpulabError as error:
        message = str(error)
    print(f"gpulab: {message}", file=sys.stderr)
    return 2
