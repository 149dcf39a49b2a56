"""The exceptions that gpulab raises on purpose, so that callers can distinguish them from bugs.

Every message has one form: what failed, with its values; what was expected; what to do.
Built-in parents (``ValueError``, ``MemoryError``) are kept, so code that knows only those still
works.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

# The article follows the pronunciation: a uint8, a Unit, but an ndarray, an MLP.
_SPOKEN_WITH_A_VOWEL = re.compile(
    r"(?![uU]n?i|eu|one|us)(?:[aeiouAEIOU]|nd|[AEFHILMNORSX](?=[A-Z]))"
)
# The system's message for a limit that is reached -> what it means, and what to do.
_LIMITS = {
    "Too many open files": "The limit of open files is reached: raise it, for example by `ulimit "
    "-n 4096`, and start Python there.",
    "No space left on device": "The disk or the shared memory is full: free some space, which `df "
    "-h /tmp /dev/shm` shows.",
    "Resource temporarily unavailable": "The limit of processes and threads is reached: raise it "
    "with `ulimit -u`, or end some of them.",
}


def shown(value: object, most: int = 60) -> str:
    """Return the ``repr`` of a value, cut short, for a message; if its ``repr`` fails, the name of
    its type.

    Examples
    --------
    >>> shown("float8"), shown("a" * 1000, 10)
    ("'float8'", "'aaaaaa...")
    """
    return _cut(repr, value, most)


def printable(text: str) -> str:
    r"""Return text that is safe to print on a terminal: control characters and incomplete
    characters are escaped.

    Examples
    --------
    >>> print(printable("\x1b[2Jred"))
    \x1b[2Jred
    """
    return (
        text
        if text.isprintable()
        else "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    )


def message_of(error: BaseException | str, most: int = 200) -> str:
    """Return an exception's text, or the output of another program, in one line, cut short; if the
    exception's ``str`` fails, the name of its type.
    """
    return _cut(str, error, most)


def advice(report: str, otherwise: str) -> str:
    """Return what to do about a limit of the system that ``report`` names (a program's last output,
    or an error's text); ``otherwise`` if it names none.

    Examples
    --------
    >>> advice("OSError: [Errno 24] Too many open files", "Try again.").split(":")[0]
    'The limit of open files is reached'
    """
    return next((words for sign, words in _LIMITS.items() if sign in report), otherwise)


def with_article(word: str) -> str:
    """Return a word with its article, as a message names a type.

    Examples
    --------
    >>> with_article("int"), with_article("list"), with_article("uint8"), with_article("MLP")
    ('an int', 'a list', 'a uint8', 'an MLP')
    """
    return f"{'an' if _SPOKEN_WITH_A_VOWEL.match(word) else 'a'} {word}"


def kind_of(value: object) -> str:
    """Return the name of a value's type with its article, for a message.

    Examples
    --------
    >>> kind_of(5), kind_of([5])
    ('an int', 'a list')
    """
    return with_article(type(value).__name__)


def set_up_command(windows: bool | None = None) -> str:
    r"""Return the command that sets the course up, for a message: for this system, or for the given
    one, since Windows has no make.

    Examples
    --------
    >>> print(set_up_command(windows=False), set_up_command(windows=True))
    `make lab` `py tools\setup_env.py`
    """
    return (
        r"`py tools\setup_env.py`"
        if (sys.platform == "win32" if windows is None else windows)
        else "`make lab`"
    )


def pip_command(words: str, in_notebook: bool | None = None) -> str:
    """Return a command of pip's for a message: ``pip`` alone may belong to a different Python.

    Examples
    --------
    >>> print(pip_command("install pillow", in_notebook=True))
    `%pip install pillow`
    """
    if in_notebook is None:
        ipython = sys.modules.get("IPython")  # imported already in every notebook's kernel
        in_notebook = ipython is not None and ipython.get_ipython() is not None
    return f"`{'%pip' if in_notebook else f'{_this_python()} -m pip'} {words}`"


def _this_python() -> str:
    """Return the command that starts this Python in a terminal: ``python``, or its full path if
    ``python`` is missing or another Python, as where the environment is not activated.
    """
    python = shutil.which("python")
    if (
        python is not None
        and Path(python).absolute().parent == Path(sys.executable).absolute().parent
    ):
        return "python"
    return f'"{sys.executable}"' if " " in sys.executable else sys.executable


def install_extra(name: str) -> str:
    """Return the sentence that states how to install an extra of gpulab; in a virtual environment,
    with pinned versions.
    """
    # in conda or Colab the pins would change packages that are already installed
    pins = "" if sys.prefix == sys.base_prefix else "-c constraints.txt "
    # for a terminal: a notebook's %pip runs in another folder
    line = pip_command(f'install {pins}-e ".[{name}]"', in_notebook=False)
    return f"Run {line} in gpulab's folder, and restart the kernel."


def _cut(to_text: Callable[[object], str], value: object, most: int) -> str:
    try:
        text = printable(" ".join(to_text(value).split()).rstrip("."))
    except Exception:
        # a faulty __repr__ or __str__ must not hide the error that this message reports
        return f"<{type(value).__name__}>"
    return text if len(text) <= most else f"{text[: most - 3]}..."


class GpulabError(Exception):
    """The parent of every error that gpulab raises on purpose."""


class InputError(GpulabError, ValueError):
    """An argument is not valid (unknown name, negative size, wrong dtype)."""


class DeviceError(GpulabError, RuntimeError):
    """The requested device does not exist, or it vanished during the work."""


class OutOfMemoryError(GpulabError, MemoryError):
    """The work does not fit into the memory that is free."""


class CopyRequiredError(GpulabError, ValueError):
    """Sharing without a copy is impossible here; the message states which call makes the copy."""


class StoppedError(GpulabError):
    """The work was stopped before it had anything to report."""


class MeasurementError(GpulabError, RuntimeError):
    """The measured function raised an error, which is this error's ``__cause__``."""


class RecordingError(GpulabError, ValueError):
    """A recording is damaged, from a future version, or not a recording at all."""


class CheckpointError(GpulabError, ValueError):
    """A file of a compressed model is damaged, or is not the expected file."""


class KernelError(GpulabError, ValueError):
    """A kernel cannot run as it is written or launched.

    Attributes
    ----------
    line : int or None
        The line of the kernel's file or cell that caused the error, where known.
    """

    def __init__(self, message: str, line: int | None = None) -> None:
        super().__init__(message)
        self.line = line


class MissingLibraryError(GpulabError, ImportError):
    """A library that this call needs is not installed; the message has the command that installs
    it.
    """


class CompileError(GpulabError, ValueError):
    """A compiler refused the source; the message shows the line with a caret and the compiler's
    message.

    Attributes
    ----------
    line, column : int or None
        The position in the given source, counted from 1; None where the compiler gives no position.
    log : str
        The complete output of the compiler.
    """

    def __init__(
        self, message: str, line: int | None = None, column: int | None = None, log: str = ""
    ) -> None:
        super().__init__(message)
        self.line, self.column, self.log = line, column, log


class RankError(GpulabError, RuntimeError):
    """A rank of a cluster raised, or the cluster cannot be used: not started, broken, or stopped.

    Attributes
    ----------
    ranks : tuple of int
        The ranks that caused the error: those that raised, died, or did not join; empty if the
        error concerns the cluster as a whole.
    waiting : tuple of int
        The ranks that waited in a collective meanwhile.
    collective : str or None
        The collective that they waited in, such as "all_reduce of 4.00 KiB in float32 among ranks
        0, 1".
    """

    def __init__(
        self,
        message: str,
        ranks: tuple[int, ...] = (),
        waiting: tuple[int, ...] = (),
        collective: str | None = None,
    ) -> None:
        super().__init__(message)
        self.ranks, self.waiting, self.collective = ranks, waiting, collective


class RankDiedError(RankError):
    """A rank's process ended during a call."""


class CollectiveTimeoutError(RankError, TimeoutError):
    """Ranks waited in a collective for longer than the cluster's timeout, because other ranks did
    not join or entered a different one.
    """
