"""The learner's working copy of the notebooks: filled from the originals, and never overwritten.

The learner edits ``my-notebooks/``, so that edits survive an update of the course and never disturb
the originals. A manifest keeps the hash of each original that was given out; a file whose hash is
one of these was not edited. This module does not depend on JupyterLab, and it deletes nothing.
"""

from __future__ import annotations

import datetime
import hashlib
import json
from pathlib import Path

from gpulab._files import free_name, read_regular, write_atomically
from gpulab.errors import InputError, message_of

STATE_FOLDER = ".gpulab"
_MANIFEST = "given-out.json"
_SCHEMA = 2
# Files and folders in notebooks/ that the learner does not get: caches, checkpoints, and tests of
# the notebooks.
_LEFT_OUT = ("__pycache__", ".ipynb_checkpoints", "conftest.py")


# The manifest's files: name -> the hashes of all its originals that were given out, under this name
# or, beside an edited file, under another one.
_Files = dict[str, set[str]]


def update(originals: Path, copy: Path) -> list[str]:
    """Bring the working copy up to date with the originals without touching what the learner
    changed.

    Parameters
    ----------
    originals : Path
        The folder of the course's notebooks.
    copy : Path
        The learner's folder; made where it is missing.

    Returns
    -------
    list of str
        Sentences for the learner: warnings, the files that were added, the unedited files that were
        renewed, and the newer originals that were put beside edited files.

    Raises
    ------
    InputError
        If the working copy would be the originals' own folder or inside it, or is not a folder.
    OSError
        If the working copy cannot be written to.
    """
    _check_folders(originals, copy)
    files, warnings = _read_manifest(copy)
    added, renewed, beside = list[str](), list[str](), list[tuple[str, str]]()
    for name, content in _offered(originals).items():
        target, new, given = copy / name, _hash(content), files.setdefault(name, set())
        current = _hash(read_regular(target)) if target.exists() else None
        if current in (None, *given) and current != new:
            write_atomically(target, content)
            (added if current is None else renewed).append(name)
        elif current != new and new not in given:
            place = _place_beside(target, {new, *given})
            write_atomically(place, content)
            beside.append((name, place.relative_to(copy).as_posix()))
        given.add(new)
    _write_manifest(copy, files)
    changes = (
        (added, "New in your working copy"),
        (renewed, "Updated (you had not changed them)"),
    )
    return [
        *warnings,
        *(f"{what}: {', '.join(those)}." for those, what in changes if those),
        *(
            f"You have changed {name}, so it was kept; the newer original is next to it as {new}."
            for name, new in beside
        ),
    ]


def reset(
    originals: Path, copy: Path, name: str, now: datetime.datetime | None = None
) -> list[str]:
    """Restore one original in the working copy, then update the whole copy; an edited file is kept
    under a dated name.

    Parameters
    ----------
    name : str
        A file name, its stem, or a beginning that matches a single file ("02").
    now : datetime, optional
        The time in the kept copy's name; the local time by default.

    Returns
    -------
    list of str
        Which file was restored and under which name the learner's own version is kept, then the
        sentences of ``update``.

    Raises
    ------
    InputError
        If no file, or more than one, has that name.
    """
    _check_folders(originals, copy)
    offered = _offered(originals)
    restored = _find(name, list(offered))
    target, yours = copy / restored, "There was no changed version to keep."
    if target.exists() and read_regular(target) != offered[restored]:
        stamp = (now or datetime.datetime.now()).strftime("%Y-%m-%d-%H%M%S")
        place = free_name(target.with_name(f"{target.stem}.{stamp}{target.suffix}"))
        write_atomically(place, read_regular(target))
        write_atomically(target, offered[restored])
        yours = f"Yours is kept as {place.relative_to(copy).as_posix()}."
    return [f"{restored} is the original again. {yours}", *update(originals, copy)]


def _check_folders(originals: Path, copy: Path) -> None:
    if copy.exists() and not copy.is_dir():
        raise InputError(
            f"working copy: {copy} is a file; expected a folder or a name that is free. Pass "
            "another one with --dir."
        )
    resolved = copy.resolve()
    if resolved == originals.resolve() or originals.resolve() in resolved.parents:
        raise InputError(
            f"working copy: {copy} is the folder of the originals or is inside it; expected "
            "another folder, so that the originals stay unchanged. Pass another one with --dir."
        )


def _offered(originals: Path) -> dict[str, bytes]:
    """Return the content of each file that the course gives out, by name with forward slashes."""
    names = {path: path.relative_to(originals) for path in sorted(originals.rglob("*"))}
    return {
        name.as_posix(): path.read_bytes()
        for path, name in names.items()
        if path.is_file()
        and not any(part in _LEFT_OUT or part.startswith(".") for part in name.parts)
    }


def _find(name: str, names: list[str]) -> str:
    for test in (lambda n: n == name, lambda n: Path(n).stem == name, lambda n: n.startswith(name)):
        hits = [n for n in names if name and test(n)]
        if len(hits) == 1:
            return hits[0]
        if hits:
            raise InputError(
                f"reset: {name!r} matches {', '.join(hits)}; expected a name that matches one "
                "file. Write more of it."
            )
    raise InputError(
        f"reset: there is no notebook {name!r}; expected one of {', '.join(names)}. Nothing was "
        "changed."
    )


def _place_beside(target: Path, given: set[str]) -> Path:
    """Return the path for a newer original beside an edited file: ``NAME.new.ipynb``, unless the
    learner has edited a file there; then a free name.
    """
    place = target.with_name(f"{target.stem}.new{target.suffix}")
    is_ours = not place.exists() or _hash(read_regular(place)) in given
    return place if is_ours else free_name(place)


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _read_manifest(copy: Path) -> tuple[_Files, tuple[str, ...]]:
    """Return the manifest's files, and warnings. A damaged manifest is set aside; every file then
    counts as edited, so that nothing can be lost.
    """
    path = copy / STATE_FOLDER / _MANIFEST
    try:
        data = json.loads(read_regular(path))
        if data["schema"] != _SCHEMA:
            raise ValueError(f"expected schema {_SCHEMA}")
        return {name: set(hashes) for name, hashes in data["files"].items()}, ()
    except FileNotFoundError:
        return {}, ()
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        aside = free_name(path.with_name(path.name + ".damaged"))
        path.replace(aside)
        return {}, (
            f"The record of the copied originals was damaged ({message_of(error)}); it is kept as "
            f"{STATE_FOLDER}/{aside.name}. Every file that differs from its original counts as "
            "yours and was kept.",
        )


def _write_manifest(copy: Path, files: _Files) -> None:
    given = {name: sorted(hashes) for name, hashes in sorted(files.items())}
    content = json.dumps({"schema": _SCHEMA, "files": given}, indent=1) + "\n"
    path = copy / STATE_FOLDER / _MANIFEST
    if not path.exists() or path.read_bytes() != content.encode():
        write_atomically(path, content.encode())
