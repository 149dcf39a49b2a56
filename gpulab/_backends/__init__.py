"""One adapter for each array library, so that no other module asks "is this torch or CuPy?".

A library is found through ``sys.modules``: an array of it cannot exist unless the caller has
imported it, so inspecting an array never imports anything heavy. Only ``backend(name)`` imports,
when asked by name.

DLPack is not trusted blindly. With the versions tested (torch 2.13, numpy 2.4), a negative stride
makes torch abort the process, a read-only array becomes writable, a lazily negated tensor loses its
sign, and a masked array its mask; so every adapter checks for these obstacles before any library
sees the array. The adapters' module describes what JAX and TensorFlow do.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from gpulab._backends._adapters import Backend as Backend
from gpulab._backends._adapters import (
    CupyBackend,
    JaxBackend,
    NumpyBackend,
    TensorFlowBackend,
    TorchBackend,
)
from gpulab.errors import (
    CopyRequiredError,
    GpulabError,
    InputError,
    MissingLibraryError,
    kind_of,
    message_of,
    shown,
)

_CLASSES: dict[str, type[Backend]] = {
    "numpy": NumpyBackend,
    "torch": TorchBackend,
    "cupy": CupyBackend,
    "jax": JaxBackend,
    "tensorflow": TensorFlowBackend,
}
# Libraries that only an extra of gpulab installs: their absence is not a fault of the set-up.
_EXTRA = ("jax", "tensorflow")
_made: dict[str, Backend] = {}


def names() -> tuple[str, ...]:
    """Return the libraries that gpulab knows."""
    return tuple(_CLASSES)


def backend(name: str) -> Backend:
    """Return the adapter of a library, importing the library if need be.

    Raises
    ------
    InputError
        If gpulab does not know the library, or numpy, torch or cupy cannot be imported.
    MissingLibraryError
        If jax or tensorflow, which an extra installs, cannot be imported; the message states how to
        install it.
    """
    if not isinstance(name, str) or name not in _CLASSES:
        raise InputError(
            f"library {shown(name)} is not one that gpulab knows; expected one of "
            f"{', '.join(_CLASSES)}. Pass one of these."
        )
    if name in _made:
        return _made[name]
    try:
        return _made.setdefault(name, _CLASSES[name]())
    except Exception as error:
        kind = MissingLibraryError if name in _EXTRA else InputError
        if isinstance(error, ModuleNotFoundError) and error.name == name:
            raise kind(
                f"library {name!r} is not installed; expected an installation. "
                f"{_CLASSES[name].how_to_get}"
            ) from error
        # the import of a library whose parts do not fit together can raise any error
        raise kind(
            f"library {name!r} is installed, but cannot be imported ({type(error).__name__}: "
            f"{message_of(error, 100)}); expected a working installation. "
            f"{_CLASSES[name].how_to_get}"
        ) from error


def leave_memory() -> None:
    """Make JAX and TensorFlow allocate a GPU's memory as they need it, not all at once, unless they
    hold it already. This imports neither library.
    """
    for name in _EXTRA:
        _CLASSES[name].prepare()


def unusable(name: str) -> str:
    """Import a library; return a sentence on why it cannot be used (not installed, or its import
    fails), or "" if it can.
    """
    try:
        backend(name)
    except GpulabError as error:
        return str(error)
    return ""


def backend_of(x: object) -> Backend | None:
    """Return the adapter of the library that owns ``x``, or None where no known library does."""
    modules = sys.modules
    for name in _CLASSES:
        # A half-imported or broken library (its name in sys.modules, None as value) owns no array.
        if modules.get(name) is not None:
            adapter = _made.get(name) or backend(name)
            if isinstance(x, adapter.types):
                return adapter
    return None


def share(x: Any, library: str) -> Any:
    """Return a view of ``x`` in another library (see ``gpulab.arrays.share``)."""
    target = backend(library)
    owner = backend_of(x)
    if owner is target:
        return x
    if owner is None:
        return _share_foreign(x, target)
    obstacle = owner.obstacle(x, library) or target.refuses(x, owner)
    if obstacle is not None:
        raise _copy_required(x, library, *obstacle)
    try:
        view = target.from_dlpack(x)
    except Exception as error:
        refusal = f"{library} refuses it ({message_of(error)})"
        raise _copy_required(x, library, refusal, "gl.to_device or gl.to_host") from error
    if target.immutable and target.nbytes(view) and target.pointer(view) != owner.pointer(x):
        raise _copy_required(
            x, library, f"{library} made a copy of it", f"gl.to_device(x, library={library!r})"
        )
    return view


def waits_for(result: Any) -> Callable[[Any], Any] | None:
    """Return a function that waits for results like this one, in addition to waiting for their
    device; None where it is not needed.
    """
    for name in _EXTRA:
        if sys.modules.get(name) is not None:
            wait = backend(name).waits_for(result)
            if wait is not None:
                return wait
    return None


def _share_foreign(x: Any, target: Backend) -> Any:
    """Share an array of a library that gpulab has no adapter for, if it supports DLPack; for host
    memory, numpy's adapter checks for obstacles.
    """
    if (
        not hasattr(x, "__dlpack__")
        or not hasattr(x, "__dlpack_device__")
        or isinstance(x, np.generic)
    ):
        raise InputError(
            f"share: got {kind_of(x)}; expected an array of {', '.join(_CLASSES)} or another "
            "library that supports DLPack. Wrap it with numpy.asarray first."
        )
    host = 1  # kDLCPU in dlpack.h
    try:
        if int(x.__dlpack_device__()[0]) != host:
            return target.from_dlpack(x)
        view = np.from_dlpack(x)
    except Exception as error:
        raise _copy_required(
            x, target.name, f"its library refuses ({error})", "numpy.asarray(x)"
        ) from error
    return share(view, target.name)


def _copy_required(x: Any, library: str, reason: str, remedy: str) -> CopyRequiredError:
    # a nested tensor has no shape, and raises when asked for it
    nested = getattr(x, "is_nested", False)
    shape = "" if nested else f" of shape {tuple(getattr(x, 'shape', ()))}"
    return CopyRequiredError(
        f"share: {library} cannot see this {type(x).__name__}{shape} without a copy, because "
        f"{reason}; expected memory that both libraries can use. Use {remedy}."
    )
