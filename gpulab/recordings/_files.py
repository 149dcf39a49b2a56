"""Find, read and write recording files: JSON only, bounded in size, written atomically;
and ``gpulab recordings``: list, show, compare and merge them.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import json
import os
import pathlib
from typing import Any

from gpulab._files import read_regular, write_atomically
from gpulab._validate import expanded, writing
from gpulab.errors import InputError, RecordingError, message_of, printable, shown
from gpulab.recordings.schema import Entry, Recording, refuse_unusable
from gpulab.recordings.several import diff, merge
from gpulab.results import text_table

# A full recording has about a thousand entries of about 1.5 kB. Only a file a hundred times as
# large would take long to parse.
MAX_FILE_BYTES = 20 * 2**20


def directory() -> pathlib.Path:
    """Return the folder of the recordings that ship with gpulab."""
    return pathlib.Path(__file__).parent / "data"


def _files() -> dict[str, pathlib.Path]:
    """Return the file of each name. A file in ``$GPULAB_RECORDINGS`` replaces a shipped one of that
    name.
    """
    extra = os.environ.get("GPULAB_RECORDINGS")
    folders = [directory(), *([expanded("GPULAB_RECORDINGS", extra)] if extra else [])]
    return {
        path.stem: path
        for folder in folders
        if folder.is_dir()
        for path in folder.glob("?*.json")
        if path.is_file()
    }


def names() -> tuple[str, ...]:
    """Return the names that ``load`` knows: the recordings that ship with gpulab, and those in
    ``$GPULAB_RECORDINGS``.
    """
    return tuple(sorted(_files()))


def load(name: str) -> Recording:
    """Return a recording by its machine's name, such as ``"nvidia-h200"``.

    Raises
    ------
    RecordingError
        If there is no such recording, or its file is damaged.
    """
    files = _files()
    if not isinstance(name, str) or name not in files:
        raise RecordingError(
            f"recordings.load: there is no recording {shown(name)}; expected one of: "
            f"{', '.join(sorted(files)) or 'none yet'}. Pass one of these, or make a recording by "
            "`gpulab record --out FILE` and read it with gl.recordings.read."
        )
    return _opened(files[name], checked=files[name].parent != directory())


def read(path: str | os.PathLike[str]) -> Recording:
    """Return the recording in a file, with every field checked.

    Raises
    ------
    RecordingError
        If the file is missing, too large, not JSON, damaged, or from a newer version of the schema.
    InputError
        If it is not a path, or begins with the home of an unknown user.
    """
    return _opened(expanded("recordings.read", path), checked=True)


def _opened(file: pathlib.Path, *, checked: bool) -> Recording:
    try:
        about = file.stat()
        return _parsed(file, checked, about.st_size, about.st_mtime_ns)
    except OSError as error:
        raise RecordingError(
            f"recordings.read: {shown(file.name)} cannot be read ({error.strerror}); expected a "
            "file that `gpulab record` wrote."
        ) from error
    except RecordingError as error:
        raise RecordingError(
            f"recordings.read: {shown(file.name)}: {str(error).removeprefix('recordings.read: ')}"
        ) from error
    except (ValueError, RecursionError) as error:
        raise RecordingError(
            f"recordings.read: {shown(file.name)} is not JSON ({error}); expected a file that "
            "`gpulab record` wrote. Is it truncated?"
        ) from error


@functools.lru_cache(maxsize=256)  # more recordings than a class makes
def _parsed(file: pathlib.Path, checked: bool, size: int, modified_ns: int) -> Recording:
    """Parse a file, and again only if it has changed: an instrument asks for its recordings at
    every redraw.

    The tests check every field of the recordings that ship with gpulab, so the timings of these are
    decoded only when they are used.
    """
    if not checked:
        content = json.loads(file.read_text(encoding="utf-8"))
        recording = Recording.from_dict({**content, "entries": []})
        entries = tuple(map(Entry.unread, content["entries"]))
        return dataclasses.replace(recording, entries=entries)
    content = json.loads(read_regular(file, MAX_FILE_BYTES).decode("utf-8"))
    # fails for NaN, for numbers too large for a float, and for half a character ("\\ud800", a lone
    # surrogate), which no terminal and no notebook can show
    json.dumps(content, ensure_ascii=False, allow_nan=False).encode("utf-8")
    recording = Recording.from_dict(content)
    refuse_unusable(recording.entries)
    return recording


def readable() -> dict[str, Recording]:
    """Return every recording that can be read, by its name; damaged ones are left out (``load``
    reports why).
    """
    recordings = {}
    for name in names():
        with contextlib.suppress(RecordingError):
            recordings[name] = load(name)
    return recordings


def of_accelerators() -> dict[str, Recording]:
    """Return the recordings of machines with an accelerator by their names, the one with the most
    recorded entries first; empty if there are none.
    """
    found = [each for each in readable().items() if each[1].environment.device_kind != "cpu"]
    return dict(sorted(found, key=lambda each: len(each[1].missing()) - len(each[1].entries)))


def write(recording: Recording, path: str | os.PathLike[str]) -> None:
    """Write a recording so that a crash leaves the old file or the new one, never a partial one; a
    leading ~ stands for the home folder.
    """
    text = json.dumps(recording.to_dict(), indent=1, allow_nan=False) + "\n"
    write_atomically(expanded("recordings.write", path), text.encode())


# -- the command ---------------------------------------------------------------------


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe ``gpulab recordings`` and its arguments to its parser."""
    parser.description = (
        "List the available recordings, show one, compare two, or merge two of the same machine."
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


def run(arguments: argparse.Namespace) -> int:
    """Carry out ``gpulab recordings``; return the exit code."""
    chosen = [name for name in ("show", "diff", "merge") if getattr(arguments, name)]
    if len(chosen) > 1 or bool(arguments.out) != bool(arguments.merge):
        raise InputError(
            "recordings: the options do not fit together; expected at most one of --show, --diff "
            "and --merge, and --out FILE with --merge only. Pass for example --merge A B --out "
            "both.json."
        )
    if arguments.show or arguments.diff:
        result = _get(arguments.show) if arguments.show else diff(*map(_get, arguments.diff))
        print(printable(repr(result)))
        print(text_table(*result.table()))
    elif arguments.merge:
        joined = merge(*map(_get, arguments.merge))
        with writing("recordings", arguments.out):
            write(joined, arguments.out)
        print(f"{joined!r} in {arguments.out}")
    else:
        for name in names():
            try:
                print(printable(f"{name}: {load(name)!r}"))
            except RecordingError as error:  # the others can be read
                reason = message_of(error, 1000)
                print(
                    f"{printable(name)}: cannot be read. "
                    f"{reason}{'' if reason.endswith('?') else '.'}"
                )
    return 0


def _get(name: str) -> Any:
    """Return the recording in a file if ``name`` is a path or the name of a file, else that of a
    machine of that name.
    """
    is_file = name.endswith(".json") or os.sep in name or pathlib.Path(name).is_file()
    return read(name) if is_file else load(name)
