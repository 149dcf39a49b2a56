"""The names of the kernel language: numba's, or stand-ins that the microscope understands."""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Callable
from typing import Any

import numpy as np


class StandIn:
    """Replaces ``numba.cuda`` in the source of a kernel: its attributes only know their names, and
    ``jit`` returns the function unchanged.
    """

    is_gpulab_cuda = True

    def __init__(self, path: str = "") -> None:
        self.path = path

    def __getattr__(self, name: str) -> StandIn:
        if name.startswith("_"):
            raise AttributeError(name)
        return StandIn(f"{self.path}.{name}")

    def __repr__(self) -> str:
        return f"<cuda{self.path} of gpulab.kernels>"

    def jit(self, function: Any = None, **options: Any) -> Any:
        """Return the function itself: ``simulate`` reads its source, and only numba-cuda could
        compile it. Declared types are kept in the function's attribute ``signatures``.
        """
        if callable(function):
            return function

        def declare(plain: Any) -> Any:
            if function is not None:
                plain.signatures = function if isinstance(function, list) else [function]
            return plain

        return declare

    def is_available(self) -> bool:
        """Return False: without numba-cuda no Python kernel runs on a GPU."""
        return False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError(
            f"cuda{self.path} cannot be called outside a kernel, since numba-cuda is missing; "
            "expected a call inside one. Run the kernel with gpulab.kernels.simulate(kernel, grid, "
            "block, ...), or the whole program with `gpulab simulate`."
        )


class NumberType:
    """Replaces a number type of ``numba``: ``float32(x)`` converts a number; ``float32[:, :]`` and
    ``void(float32[:], int32)`` return a signature as text.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def __str__(self) -> str:
        return self.name

    def __getitem__(self, axes: Any) -> str:
        parts = axes if isinstance(axes, tuple) else (axes,)
        return f"{self.name}[{', '.join('::1' if part.step else ':' for part in parts)}]"

    def __call__(self, *values: Any) -> Any:
        if all(isinstance(value, (NumberType, str)) for value in values):
            return f"{self.name}({', '.join(map(str, values))})"
        return np.dtype(self.name).type(*values)


def _numba() -> tuple[Any, Callable[[str], Any]]:
    try:
        import numba
        from numba import cuda
    except ImportError:
        return StandIn(), lambda name: getattr(np, name)
    # Numba warns that a small grid leaves most of a GPU idle. The notebooks teach this, so their
    # small examples do without the warning, unless the user has set Numba's variable.
    if "NUMBA_CUDA_LOW_OCCUPANCY_WARNINGS" not in os.environ:
        numba.config.CUDA_LOW_OCCUPANCY_WARNINGS = 0
    if not numba.config.ENABLE_CUDASIM:
        load_beside_new_numpy()
    return cuda, lambda name: getattr(numba.types, name)


def load_beside_new_numpy() -> None:
    """Import the module of numba-cuda that uses ``numpy.row_stack`` (seen in 0.30), an alias of
    ``vstack`` that NumPy 2.5 removed; the alias is restored during the import. Otherwise the first
    launch of any kernel would fail, also one without ``gpulab.kernels.launch``.
    """
    if hasattr(np, "row_stack"):
        return
    setattr(np, "row_stack", np.vstack)  # noqa: B010 - the type checker knows that it is missing
    try:
        with contextlib.suppress(ImportError):  # a Numba without numba-cuda has no such module
            importlib.import_module("numba.cuda.fp16")
    finally:
        delattr(np, "row_stack")


cuda, _type = _numba()
int8, int16, int32, int64, uint8, uint16, uint32, uint64, float16, float32, float64 = (
    _type(name)
    for name in (
        *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float16", "float32", "float64"),
    )
)
