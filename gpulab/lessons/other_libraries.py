"""Import JAX and TensorFlow quietly for the lessons, or say how to install them."""

from __future__ import annotations

import importlib.util
import sys
from typing import Any

from gpulab import _backends
from gpulab.errors import GpulabError, MissingLibraryError


def missing(name: str) -> str:
    """Return a sentence that a library is not installed and how to install it; "" if it is
    installed.

    Parameters
    ----------
    name : str
        "jax", "tensorflow" or another library that gpulab knows.
    """
    if name in sys.modules:  # None there: its import is blocked
        return "" if sys.modules[name] is not None else _backends.missing(name)
    return "" if importlib.util.find_spec(name) is not None else _backends.missing(name)


def unusable(name: str) -> str:
    """Import a library; return a sentence on why it cannot be used (not installed, or its import
    fails), or "" if it can.

    Parameters
    ----------
    name : str
        As for ``missing``, which imports nothing.
    """
    try:
        load(name)
    except GpulabError as error:
        return str(error)
    return ""


def load(name: str) -> Any:
    """Return the library itself, imported without its messages.

    Raises
    ------
    MissingLibraryError
        If it is not installed, or its import fails; the message says how to install it.
    """
    why = missing(name)
    if why:
        raise MissingLibraryError(why)
    return _backends.backend(name).module
