"""Checkpoints: written whole or not at all, and read without executing anything.

A checkpoint is an ordinary file of ``torch.save``, so ``torch.load(path, weights_only=True)`` reads
it anywhere. Its zip comment holds a SHA-256 of all the rest: a changed bit is found before anything
is used, and what is intact is as ``write`` wrote it.
"""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from gpulab._files import read_regular, write_atomically
from gpulab.errors import CheckpointError, InputError, message_of, shown

MARK = "gpulab training checkpoint"
VERSION = 1
_COMMENT = b"gpulab sha256 "
_COMMENT_LENGTH = len(_COMMENT) + 64
_NO_COMMENT = b"\0\0"  # the last two bytes of a zip file: the length of its comment


def path_of(function: str, name: str, path: Any) -> Path:
    """Return a path of a file.

    Raises
    ------
    InputError
        If it is not a path, or is a folder.
    """
    try:
        found = Path(os.fsdecode(path)).expanduser()
        is_folder = found.is_dir() or not os.fsdecode(path)
    except (TypeError, ValueError, OSError, RuntimeError) as error:
        # no path, a zero byte, a name that is too long, an unknown home
        raise InputError(
            f"{function}: {name} is {shown(path)} ({message_of(error)}); expected a path. Pass "
            f"{name}='run.pt'."
        ) from error
    if is_folder:
        raise InputError(
            f"{function}: {name}={shown(path)} is a folder; expected a file. Pass {name}='run.pt'."
        )
    return found


def write(path: Path, content: Mapping[str, Any]) -> None:
    """Write a checkpoint; an older file stays until the new one is complete.

    Raises
    ------
    OSError
        If the folder cannot be written to, or the disk is full.
    """
    import torch

    buffer = io.BytesIO()
    torch.save(
        {"mark": MARK, "version": VERSION, **content, "optimizer": _plain(content["optimizer"])},
        buffer,
    )
    plain = buffer.getvalue()
    digest = hashlib.sha256(plain).hexdigest().encode()
    write_atomically(path, plain[:-2] + _COMMENT_LENGTH.to_bytes(2, "little") + _COMMENT + digest)


def _plain(value: Any) -> Any:
    """Return an optimizer's state with Python's numbers in place of NumPy's (a rate of
    ``np.logspace``), which ``torch.load`` refuses.
    """
    if isinstance(value, np.generic):
        return value.item()
    if type(value) is dict:
        return {name: _plain(each) for name, each in value.items()}
    return type(value)(map(_plain, value)) if type(value) in (list, tuple) else value


def read(path: Path) -> dict[str, Any]:
    """Return what a checkpoint holds, tensors on the CPU.

    Raises
    ------
    CheckpointError
        If there is no such file, or it is damaged, not a checkpoint of gpulab, or of a newer
        version.
    """
    import torch

    name = shown(str(path))
    try:
        whole = read_regular(path, 2**62)
    except (FileNotFoundError, ValueError) as error:
        # ValueError: no file can have such a name, as one with a null character
        raise CheckpointError(
            f"resume: there is no file {name}; expected a checkpoint. Pass the file that save= "
            "wrote."
        ) from error
    except OSError as error:
        raise CheckpointError(
            f"resume: {name} cannot be read ({message_of(error)}). Check its permissions."
        ) from error
    plain, comment = whole[: -_COMMENT_LENGTH - 2] + _NO_COMMENT, whole[-_COMMENT_LENGTH:]
    if not comment.startswith(_COMMENT):
        raise CheckpointError(
            f"resume: {name} is not a checkpoint of gpulab (it has no gpulab mark at its end); "
            "expected one. Pass the file that save= wrote."
        )
    try:
        if comment[len(_COMMENT) :] != hashlib.sha256(plain).hexdigest().encode():
            raise ValueError("its checksum does not match")
        content = torch.load(io.BytesIO(plain), map_location="cpu", weights_only=True)
        version = content["version"]
    except Exception as error:
        # the readers of zip files and pickles raise whatever they stumble on
        raise CheckpointError(
            f"resume: {name} is damaged ({message_of(error, 80)}); expected a checkpoint as save= "
            "wrote it. Take an earlier one, or start a new run."
        ) from error
    if version != VERSION:
        raise CheckpointError(
            f"resume: {name} has version {shown(version)}; this gpulab reads 1 to {VERSION}. "
            "Update gpulab."
        )
    return dict(content)


def restore(
    path: Path, content: Mapping[str, Any], model: Any, optimizer: Any, scaler: Any
) -> None:
    """Put the weights, the optimizer's state and the scale of a checkpoint into those of a run.

    Raises
    ------
    CheckpointError
        If they belong to another model or optimizer; the model is then unchanged.
    """
    before = {
        name: value.detach().clone()
        for name, value in model.state_dict().items()
        if hasattr(value, "detach")
    }
    try:
        model.load_state_dict(content["model"])
        optimizer.load_state_dict(content["optimizer"])
        if scaler is not None:
            scaler.load_state_dict(content["scaler"])
    except Exception as error:  # PyTorch raises many kinds for states that do not match
        # and copies what matches before it reports what does not
        model.load_state_dict(before, strict=False)
        raise CheckpointError(
            f"resume: {shown(str(path))} is of another model or optimizer ({type(error).__name__}: "
            f"{message_of(error, 120)}). Pass the model and options that it was saved with."
        ) from error
