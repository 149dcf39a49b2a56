"""Answers as they are kept in the progress file: plain values, source, or gpulab results.

Keeping an answer never runs it. ``restore`` executes kept source, so its caller decides where that
may happen. If an answer cannot be kept, the reason is kept instead.
"""

from __future__ import annotations

import ast
import base64
import dataclasses
import importlib
import inspect
import json
import linecache
import math
import os
import re
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from gpulab import kernels, results
from gpulab.errors import GpulabError, InputError, RecordingError, message_of, with_article
from gpulab.kernels.simulation.source import plain_function
from gpulab.parallel import script
from gpulab.recordings.schema import KEPT_SAMPLES, thin
from gpulab.results import Result

# A function with its helpers takes a few kB, a measurement about ten. Whole data sets and models
# are not what a check looks at.
MOST_CHARACTERS = 64 * 1024
_MOST_PARTS = 20_000
_DEEPEST = 20
_NUMPY = "biufc"
_OWN_MODULE = re.compile(r"gpulab(\.[A-Za-z_][A-Za-z0-9_]*)+")
Kept = dict[str, Any]


# For each type whose values are kept as text or plain numbers: the function that encodes a value,
# and the one that decodes it.
_TEXTS: dict[type, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    float: (repr, {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}.__getitem__),
    complex: (repr, complex),
    range: (lambda value: [value.start, value.stop, value.step], lambda kept: range(*kept)),
    bytes: (
        lambda value: base64.b64encode(value).decode(),
        lambda kept: base64.b64decode(kept, validate=True),
    ),
}


class NotKeptError(GpulabError):
    """An answer cannot be kept, or was not kept; the message says why."""


def keep(answer: Any, is_file: bool = False) -> Kept:
    """Return an answer as JSON values; what cannot be kept becomes ``{"kind": "nothing", "reason":
    ...}``. Never raises.

    Parameters
    ----------
    answer : any
        A literal (also tuples, sets, bytes, small NumPy arrays), a function, or a result of
        gpulab's.
    is_file : bool
        The answer is the path of a file: its text is kept, and not its path.

    Notes
    -----
    If a measurement has too many samples, only some of them, evenly spaced in time, are kept. Its
    median and interval are still those of all samples.
    """
    try:
        kept = _keep_file(answer) if is_file else _keep(answer)
        size = len(json.dumps(kept, allow_nan=False))
        if size > MOST_CHARACTERS:
            samples = np.asarray(getattr(answer, "samples_seconds", ()))
            if isinstance(answer, Result) and len(samples) > KEPT_SAMPLES:
                return keep(dataclasses.replace(answer, samples_seconds=thin(samples)))  # type: ignore[type-var]
            raise NotKeptError(
                f"it takes {size:,} characters, and at most {MOST_CHARACTERS:,} are kept"
            )
    except NotKeptError as error:
        return {"kind": "nothing", "reason": str(error)}
    except Exception as error:
        # a learner's object that raises when it is inspected: the check continues, and nothing is
        # kept
        return {"kind": "nothing", "reason": f"it could not be read ({type(error).__name__})"}
    return kept


def _keep(answer: Any) -> Kept:
    function = None if isinstance(answer, Result) else plain_function(answer)
    if not isinstance(function, types.FunctionType):
        return {"kind": "value", "value": Encoder().encode(answer)}
    parts, name = _Source(), function.__name__
    try:
        name = _lambda(function)[0] if name == "<lambda>" else name
        parts.objects[name] = function
        parts.define(name, function)
    except InputError as error:
        what = str(error).partition(": ")[2].partition(";")[0]
        raise NotKeptError(what) from error
    return {"kind": "code", "name": name, "source": parts.text(), "values": parts.values}


def _keep_file(answer: Any) -> Kept:
    if not isinstance(answer, (str, os.PathLike)):
        return _keep(answer)
    file = Path(answer)
    if not file.is_file() or file.stat().st_size > MOST_CHARACTERS:
        raise NotKeptError("it does not name a file, or the file is too large")
    return {"kind": "file", "text": file.read_text(encoding="utf-8")}


class Encoder:
    """Encode values as JSON that keeps their exact types. The parts are counted on the way, so that
    a huge list is refused early.

    Parameters
    ----------
    message : bool
        The values are sent to the process of an answer or back. Arrays of any size and tensors are
        then encoded, too. A value of any other type is replaced by the name of its type.
    """

    def __init__(self, message: bool = False) -> None:
        self._message, self._parts = message, 0

    def encode(self, value: Any, depth: int = 0) -> Any:
        """Return a value as JSON. Raise ``NotKeptError`` if it cannot be stored."""
        self._parts += 1
        if self._parts > _MOST_PARTS or depth > _DEEPEST:
            raise NotKeptError("it has too many parts, or they are nested too deeply")
        kind = type(value)
        if value is None or kind in (bool, int) or (kind is float and math.isfinite(value)):
            return value
        if kind is str:
            return value.encode("utf-8", "replace").decode()
        if kind in _TEXTS and not (kind is bytes and len(value) > MOST_CHARACTERS):
            return {"t": kind.__name__, "v": _TEXTS[kind][0](value)}
        return {"t": kind.__name__, **self._tagged(value, kind, depth + 1)}

    def _tagged(self, value: Any, kind: type, depth: int) -> Kept:
        """Return the fields to add to ``{"t": type}``; a field "t" among them replaces the type."""
        if kind in (tuple, list, set, frozenset):
            items = sorted(value, key=repr) if kind in (set, frozenset) else value
            return {"v": [self.encode(item, depth) for item in items]}
        if kind is dict:
            pairs = value.items()
            return {"v": [[self.encode(k, depth), self.encode(item, depth)] for k, item in pairs]}
        if _is_result_or_row(kind) and _OWN_MODULE.fullmatch(kind.__module__):
            name = {"module": kind.__module__, "class": kind.__qualname__}
            return {"t": "result", **name, "v": results.encode(value)}
        if kind is np.ndarray or isinstance(value, np.generic):
            return self._array(np.asarray(value), "array" if kind is np.ndarray else "scalar")
        if self._message and kind.__name__ == "Tensor" and kind.__module__ == "torch":
            numbers = value.float() if str(value.dtype) == "torch.bfloat16" else value
            return self._array(numbers.detach().cpu().numpy(), "tensor")
        if self._message:
            return {"t": "other", "v": kind.__name__}
        raise NotKeptError(f"{with_article(kind.__name__)} cannot be stored")

    def _array(self, array: np.ndarray, tag: str) -> Kept:
        # only kinds and sizes of numbers that every machine has
        widest = np.dtype(complex if array.dtype.kind == "c" else float).itemsize
        if array.dtype.kind not in _NUMPY or array.dtype.itemsize > widest:
            if self._message:
                return {"t": "other", "v": "ndarray"}
            raise NotKeptError(f"an array of {array.dtype} cannot be stored")
        if array.size > _MOST_PARTS and not self._message:
            raise NotKeptError(
                f"it holds an array of {array.size:,} numbers, and at most {_MOST_PARTS:,} are kept"
            )
        return {
            "t": tag,
            "dtype": array.dtype.str,
            "shape": list(array.shape),
            "data": base64.b64encode(array.tobytes()).decode(),
            "sealed": not array.flags.writeable,
        }


def _is_result_or_row(kind: type) -> bool:
    return issubclass(kind, Result) or hasattr(kind, "_fields")


def decode(kept: Any, depth: int = 0) -> Any:
    """Return the value that an ``Encoder`` encoded. Raise ``NotKeptError`` if the file is damaged
    or hostile.
    """
    if kept is None or isinstance(kept, (bool, int, float, str)):
        return kept
    if depth > _DEEPEST or not isinstance(kept, dict) or kept.get("t") not in _READERS:
        raise NotKeptError("the file is damaged here: an unknown kind of value")
    try:
        return _READERS[kept["t"]](kept, depth + 1)
    except NotKeptError:
        raise
    except (TypeError, ValueError, KeyError, OverflowError, MemoryError, GpulabError) as error:
        raise NotKeptError(f"the file is damaged here: {message_of(error)}") from error


def _decode_array(kept: Kept, depth: int) -> Any:
    dtype, shape = np.dtype(kept["dtype"]), kept["shape"]
    sides = all(type(side) is int and side >= 0 for side in shape)
    if dtype.kind not in _NUMPY or not sides:
        raise NotKeptError(f"the file is damaged here: an array of {dtype}")
    array = np.frombuffer(base64.b64decode(kept["data"], validate=True), dtype).reshape(shape)
    array = array if kept["sealed"] is True else array.copy()
    if kept["t"] == "tensor":
        import torch

        return torch.from_numpy(array.copy())
    return array if kept["t"] == "array" else array[()]


def _reader(kind: type) -> Callable[[Kept, int], Any]:
    """Return the function that decodes the values of a type."""
    if kind in _TEXTS:
        return lambda kept, depth: _TEXTS[kind][1](kept["v"])
    return lambda kept, depth: kind(decode(item, depth) for item in kept["v"])


# For each tag, the function that decodes its value.
_READERS: dict[str, Callable[[Kept, int], Any]] = {
    **{kind.__name__: _reader(kind) for kind in (*_TEXTS, tuple, list, set, frozenset)},
    "dict": lambda kept, depth: {
        decode(key, depth): decode(item, depth) for key, item in kept["v"]
    },
    "array": _decode_array,
    "scalar": _decode_array,
    "tensor": _decode_array,
    "other": lambda kept, depth: type(str(kept["v"]), (), {"__repr__": lambda self: ""})(),
    "result": lambda kept, depth: restore_result(kept),
}


def restore_result(kept: Any) -> Any:
    """Return the result whose value ``keep`` kept.

    Raises
    ------
    NotKeptError
        If it is not a kept result, or is damaged.
    """
    if (
        not isinstance(kept, dict)
        or not isinstance(kept.get("module"), str)
        or not _OWN_MODULE.fullmatch(kept["module"])
    ):
        raise NotKeptError("the file is damaged here: expected a result of gpulab's")
    name, package = str(kept.get("class")), ".".join(kept["module"].split(".")[:2])
    try:
        # first from the package: another version may have moved the class to another of its files
        found: Any = getattr(importlib.import_module(package), name, None)
        found = found or getattr(importlib.import_module(kept["module"]), name, None)
        is_own = isinstance(found, type) and f"{found.__module__}.".startswith(f"{package}.")
        if not is_own or not _is_result_or_row(found):
            raise NotKeptError("the file is damaged here: expected a result of gpulab's")
        return results.decode(kept.get("v"), found, name)
    except ImportError as error:
        raise NotKeptError(f"this version of gpulab has no {kept['module']}") from error
    except RecordingError as error:
        raise NotKeptError(message_of(error)) from error


class _Source(script.Parts):
    """A function and the names that it needs: imports, plain values, and other functions and
    classes, each before its first use.
    """

    taken = ()

    def __init__(self) -> None:
        super().__init__()
        self.values: dict[str, Any] = {}
        self._encoder = Encoder()

    def text(self) -> str:
        parts = ("\n".join(self.imports.values()), *self.definitions.values())
        return "\n\n\n".join(filter(None, parts)) + "\n"

    def import_line(self, name: str, value: Any) -> str | None:
        # A kernel's own names come from gpulab, which has them with and without Numba.
        if name in kernels.__all__ and getattr(kernels, name, None) is value:
            return f"from gpulab.kernels import {name}"
        return super().import_line(name, value)

    def hold(self, name: str, value: Any) -> None:
        try:
            self.values[name] = self._encoder.encode(value)
        except NotKeptError as error:
            raise NotKeptError(f"it needs the name {name}: {error}") from error

    def define(self, name: str, value: Any) -> None:
        is_lambda = value.__name__ == "<lambda>"
        own, source = _lambda(value) if is_lambda else (value.__name__, script.source_of(value))
        self.needs_of(value, source)
        alias = "" if own == name else f"\n\n\n{name} = {own}"
        self.definitions[name] = f"{source.rstrip()}{alias}"


def _lambda(function: types.FunctionType) -> tuple[str, str]:
    """Return a name for a lambda and the text that defines it."""
    try:
        lines = inspect.getsource(function).strip()
        tree = ast.parse(lines)
    except (OSError, TypeError, SyntaxError) as error:
        raise NotKeptError("the source of the lambda is not available; use def") from error
    found = [node for node in ast.walk(tree) if isinstance(node, ast.Lambda)]
    text = ast.get_source_segment(lines, found[0]) if len(found) == 1 else None
    if text is None:
        raise NotKeptError("its line holds several lambdas; use def")
    first = tree.body[0]
    named = (
        isinstance(first, ast.Assign)
        and len(first.targets) == 1
        and isinstance(first.targets[0], ast.Name)
    )
    name = first.targets[0].id if named else "answer"  # type: ignore[attr-defined]
    return name, f"{name} = ({text})"


def restore(kept: Any, label: str) -> Any:
    """Return an answer from its kept form. Source is executed: call this only where that may
    happen.

    Parameters
    ----------
    kept : JSON values
    label : str
        The exercise's id, for the name of the source in messages.

    Raises
    ------
    NotKeptError
        If nothing was kept, or the form is damaged.
    """
    if isinstance(kept, dict) and kept.get("kind") == "value":
        return decode(kept.get("value"))
    if isinstance(kept, dict) and kept.get("kind") == "file" and isinstance(kept.get("text"), str):
        file = Path.cwd() / "answer.py"
        file.write_text(kept["text"], encoding="utf-8")
        return file
    name, tree, names = _parts(kept, label)
    _run(tree, label, names)
    if name not in names:
        raise NotKeptError(f"the source defines no {name}")
    return names[name]


def outline(kept: Any, label: str) -> types.FunctionType | None:
    """Return a kept function for tools that read its text and code. It must not be called: the
    student's code does not run here, except for harmless imports.

    Only its functions, second names for them, and the imports that kernels need are defined. The
    functions have no decorators and no defaults, and their annotations are not evaluated.

    Raises
    ------
    NotKeptError, SyntaxError
        As ``restore``.
    """
    name, tree, names = _parts(kept, label)
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    for node in functions:
        node.decorator_list, node.args.defaults = [], []
        node.args.kw_defaults = [None] * len(node.args.kwonlyargs)
        vars(node).update(type_params=[])
    body = [node for node in tree.body if node in functions or _is_harmless(node)]
    _run(ast.Module(body, []), label, names)
    found = names.get(name)
    return found if isinstance(found, types.FunctionType) else None


def _is_harmless(node: ast.stmt) -> bool:
    """Return whether a statement imports a module that kernels use, or only gives an object another
    name.
    """
    if isinstance(node, ast.Assign):
        return isinstance(node.value, ast.Name) and all(
            isinstance(each, ast.Name) for each in node.targets
        )
    modules = (
        [each.name for each in node.names]
        if isinstance(node, ast.Import)
        else [getattr(node, "module", None)]
    )
    return all(each in ("math", "numpy", "numba", "gpulab.kernels") for each in modules)


def _run(tree: ast.Module, label: str, names: dict[str, Any]) -> None:
    # The names in annotations were not kept, so annotations must not be evaluated. The future
    # import of this file applies to ``compile`` here, too, and leaves them as text.
    exec(compile(tree, f"<answer to {label}>", "exec"), names)


def _parts(kept: Any, label: str) -> tuple[str, ast.Module, dict[str, Any]]:
    """Return the name of a kept function, the tree of its source, and the values that it needs."""
    parts = {"name": str, "source": str, "values": dict}
    if (
        not isinstance(kept, dict)
        or kept.get("kind") != "code"
        or not all(isinstance(kept.get(part), kind) for part, kind in parts.items())
    ):
        raise NotKeptError("the file is damaged here: an unknown kind of answer")
    name, source, values = (kept[part] for part in parts)
    names = {"__name__": "__main__", **{str(key): decode(value) for key, value in values.items()}}
    file = f"<answer to {label}>"
    # so that the text of a kernel can be looked up
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    return name, ast.parse(source, file), names
