"""The process that compiles Python kernels with numba-cuda; started by ``_python.py``, run as a
file, and free of gpulab. ``serve`` is used by ``_nvidia.py`` as well.

A process of its own, because numba-cuda decides at import whether it is the simulator, asks for a
GPU where a device function is typed, and takes seconds to start; so the learner's process neither
imports nor patches it. It reads one pickled request after another from its standard input and
answers each on its standard output, until the input ends.
"""

from __future__ import annotations

import contextlib
import marshal
import operator
import os
import pickle
import re
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

_ANSI = re.compile(r"\x1b\[[0-9;]*m")


class Builder:
    """Makes the functions of one request; their texts lie in the request's folder, so that Numba's
    messages can quote them.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.made: dict[int, Any] = {}

    def function(self, data: dict[str, Any]) -> types.FunctionType:
        """Return the plain function of one piece of data."""
        file = self.folder / f"{data['name']}-{data['number']}.py"
        file.write_text("\n" * (data["line"] - 1) + data["source"], encoding="utf-8")
        code = marshal.loads(data["code"]).replace(co_filename=str(file))
        names: dict[str, Any] = {"__builtins__": __builtins__, "__name__": "kernel"}
        closure = tuple(
            types.CellType(self.value(value)) if value is not None else types.CellType()
            for value in data["closure"]
        )
        made = types.FunctionType(
            code, names, data["name"], tuple(map(self.value, data["defaults"])) or None, closure
        )
        self.made.setdefault(data["number"], made)
        names.update({name: self.value(value) for name, value in data["globals"].items()})
        return made

    def value(self, value: tuple[str, Any]) -> Any:
        """Return what a name stands for."""
        from numba import cuda

        kind, content = value
        if kind == "value":
            return pickle.loads(content)
        if kind == "module":
            __import__(content)
            return sys.modules[content]
        if kind == "numba":
            import numba

            for owner in (cuda, numba):
                with contextlib.suppress(AttributeError):
                    return operator.attrgetter(content)(owner)
            raise NameError(f"Numba has nothing named {content!r}")
        data, options = content
        if "again" in data:
            return self.made[data["again"]]
        options = {
            name: option for name, option in options.items() if name in ("inline", "fastmath")
        }
        self.made[data["number"]] = made = cuda.jit(device=True, **options)(self.function(data))
        return made


def _type(described: tuple[str, Any]) -> Any:
    import numba
    import numpy as np

    kind, content = described
    if kind == "tuple":
        return (
            numba.types.Tuple([_type(item) for item in content])
            if content
            else numba.types.Tuple(())
        )
    if kind == "array":
        dtype, dimensions, layout = content
        return numba.types.Array(numba.from_dtype(np.dtype(dtype)), dimensions, layout)
    return numba.from_dtype(np.dtype(content))


def _compile(request: dict[str, Any], folder: Path) -> dict[str, Any]:
    import numba
    import numba_cuda
    import numpy as np
    from numba import cuda
    from numba.cuda import dispatcher

    # numba-cuda 0.30 names this alias, which NumPy 2.5 no longer has
    if not hasattr(np, "row_stack"):
        setattr(np, "row_stack", np.vstack)  # noqa: B010 - the type checker knows that it is not there

    capability = request["capability"]
    # Typing a device function asks for the current GPU only to know what to compile for.
    dispatcher.get_current_device = lambda: types.SimpleNamespace(compute_capability=capability)
    kernel = Builder(folder).function(request["kernel"])
    signature = numba.void(*[_type(argument) for argument in request["arguments"]])
    options = {
        name: value
        for name, value in request["options"].items()
        if name in ("fastmath", "launch_bounds")
    }
    ltoir, _ = cuda.compile(
        kernel,
        signature,
        device=False,
        abi="numba",
        cc=capability,
        output="ltoir",
        lineinfo=True,
        **options,
    )
    return {
        "ltoir": ltoir,
        "compiler": f"numba-cuda {numba_cuda.__version__}, Numba {numba.__version__}",
    }


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    sys.path[:] = request["path"]
    folder = Path(request["folder"])
    try:
        return _compile(request, folder)
    except ModuleNotFoundError as error:
        return {"missing": error.name or "", "message": str(error)}
    except BaseException as error:
        # whatever Numba raises is an answer; only the end of the input ends this process
        if isinstance(error, (KeyboardInterrupt, SystemExit)):
            raise
        text = _ANSI.sub("", str(error))
        line, row = _place(text, folder)
        return {"error": type(error).__name__, "message": text, "line": line, "row": row}


def _place(message: str, folder: Path) -> tuple[int | None, str]:
    """The innermost line that a message of Numba names, and its text."""
    for file, number in re.findall(r'File "([^"]*)", line (\d+)', message):
        path = folder / Path(file).name
        if path.is_file():
            rows = path.read_text(encoding="utf-8").split("\n")
            return int(number), rows[int(number) - 1] if int(number) <= len(rows) else ""
    return None, ""


def serve(answer: Callable[[Any], Any]) -> None:
    """Answer pickled requests on the standard input until there are no more."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints must not mix with the answers
    with contextlib.suppress(EOFError):
        while True:
            pickle.dump(answer(pickle.load(sys.stdin.buffer)), answers)
            answers.flush()


if __name__ == "__main__":
    serve(_answer)
