"""Checkpoints: written whole or not at all, read without running anything, and refused in one
sentence where something is wrong.

A checkpoint is an ordinary file of ``torch.save``, so ``torch.load(path, weights_only=True)`` reads
it anywhere. Its zip comment holds a SHA-256 of all the rest: a changed bit is found before anything
is used.
"""

from __future__ import annotations

import hashlib
import io
import math
import os
import zipfile
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
_KEYS = {
    "mark": str,
    "version": int,
    "settings": dict,
    "step": int,
    "losses": list,
    "skipped_steps": int,
    "model": dict,
    "optimizer": dict,
    "scaler": dict,
    "generators": list,
}


def path_of(function: str, name: str, given: Any) -> Path:
    """Return a path that was given.

    Raises
    ------
    InputError
        If it is not a path, or is a folder.
    """
    try:
        text = os.fspath(given)
    except TypeError as error:
        raise InputError(
            f"{function}: {name} is {shown(given)}; expected a path. Pass {name}='run.pt'."
        ) from error
    try:
        path = Path(os.fsdecode(text)).expanduser()
        folder = path.is_dir()
    except (ValueError, OSError, RuntimeError) as error:
        # a zero byte, a name that is too long, an unknown home
        raise InputError(
            f"{function}: {name} is {shown(given)} ({message_of(error)}); expected a path. Pass "
            f"{name}='run.pt'."
        ) from error
    if folder or not text:
        raise InputError(
            f"{function}: {name}={shown(given)} is a folder; expected a file. Pass {name}='run.pt'."
        )
    return path


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
    """Return an optimizer's state with Python's numbers in place of NumPy's: those (a rate of
    ``np.logspace``) no reader takes back.
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

    try:
        whole = read_regular(path, 2**62)
    except (FileNotFoundError, ValueError) as error:
        # ValueError: no file can have such a name, as one with a null character
        raise CheckpointError(
            f"resume: there is no file {shown(str(path))}; expected a checkpoint. Pass the file "
            "that save= wrote."
        ) from error
    except OSError as error:
        raise CheckpointError(
            f"resume: {shown(str(path))} cannot be read ({message_of(error)}). Check its "
            "permissions."
        ) from error
    plain, comment = whole[: -_COMMENT_LENGTH - 2] + _NO_COMMENT, whole[-_COMMENT_LENGTH:]
    if not comment.startswith(_COMMENT):
        raise _foreign(path, "it has no gpulab mark at its end")
    if comment[len(_COMMENT) :] != hashlib.sha256(plain).hexdigest().encode():
        raise _damaged(path, "its checksum does not match")
    try:
        with zipfile.ZipFile(io.BytesIO(plain)) as archive:
            if any(
                entry.compress_type != zipfile.ZIP_STORED or entry.file_size > len(plain)
                for entry in archive.infolist()
            ):
                raise _foreign(path, "it is compressed")
        content = torch.load(io.BytesIO(plain), map_location="cpu", weights_only=True)
    except CheckpointError:
        raise
    except Exception as error:
        # the readers of zip files and pickles raise whatever they stumble on
        raise _foreign(path, f"{type(error).__name__}: {message_of(error, 80)}") from error
    return _checked(path, content)


def _damaged(path: Path, why: str) -> CheckpointError:
    return CheckpointError(
        f"resume: {shown(str(path))} is damaged ({why}); expected a checkpoint as save= wrote it. "
        "Take an earlier one, or start a new run."
    )


def _foreign(path: Path, why: str) -> CheckpointError:
    return CheckpointError(
        f"resume: {shown(str(path))} is not a checkpoint of gpulab ({why}); expected one. Pass the "
        "file that save= wrote."
    )


def _checked(path: Path, content: Any) -> dict[str, Any]:
    if not isinstance(content, dict) or content.get("mark") != MARK:
        raise _foreign(path, "its content is something else")
    version = content.get("version")
    if not isinstance(version, int) or isinstance(version, bool) or not 1 <= version <= VERSION:
        raise CheckpointError(
            f"resume: {shown(str(path))} has version {shown(version)}; this gpulab reads 1 to "
            f"{VERSION}. Update gpulab."
        )
    for key, kind in _KEYS.items():
        value = content.get(key)
        if not isinstance(value, kind) or isinstance(value, bool):
            raise _damaged(path, f"its {key} is {shown(value, 30)}")
    step, losses = content["step"], content["losses"]
    if step < 1 or len(losses) != step or content["skipped_steps"] < 0:
        raise _damaged(path, f"{len(losses)} losses for {step} steps")
    if not all(isinstance(loss, float) and math.isfinite(loss) for loss in losses):
        raise _damaged(path, "a loss is not a finite number")
    return content


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
        _fill(path, content, model, optimizer, scaler)
    except CheckpointError:  # PyTorch copies what matches before it tells what does not
        model.load_state_dict(before, strict=False)
        raise


def _fill(path: Path, content: Mapping[str, Any], model: Any, optimizer: Any, scaler: Any) -> None:
    import torch

    try:
        model.load_state_dict(content["model"])
        optimizer.load_state_dict(content["optimizer"])
        if scaler is not None:
            scaler.load_state_dict(content["scaler"])
    except Exception as error:  # PyTorch raises many kinds for states that do not match
        raise _other(path, f"{type(error).__name__}: {message_of(error, 120)}") from error
    for parameter, state in optimizer.state.items():
        # PyTorch keeps a state of no parameter as it is
        if not isinstance(parameter, torch.Tensor) or not isinstance(state, dict):
            raise _other(
                path,
                f"it holds the state of a parameter {shown(parameter, 20)} that does not exist",
            )
        for name, value in state.items():
            if (
                isinstance(value, torch.Tensor)
                and value.numel() != 1
                and value.shape != parameter.shape
            ):
                raise _other(
                    path,
                    f"the optimizer's {shown(name)} has shape {tuple(value.shape)}, its parameter "
                    f"{tuple(parameter.shape)}",
                )


def _other(path: Path, why: str) -> CheckpointError:
    return CheckpointError(
        f"resume: {shown(str(path))} is of another model or optimizer ({why}). Pass the model and "
        "options that it was saved with."
    )
