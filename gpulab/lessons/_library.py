"""JAX and TensorFlow in the lessons: load them quietly where they are installed, else say in one sentence how to get them."""

from __future__ import annotations

import importlib.util
import sys
from typing import Any

from gpulab import _backends
from gpulab.errors import GpulabError, MissingLibraryError


def missing(name: str) -> str:
    """Return in one sentence that a library is not installed and how to get it; "" where it is.

    Parameters
    ----------
    name : str
        "jax", "tensorflow" or another library that gpulab knows.
    """
    if name in sys.modules:  # None there: its import is blocked
        return "" if sys.modules[name] is not None else _backends.missing(name)
    return "" if importlib.util.find_spec(name) is not None else _backends.missing(name)


def unusable(name: str) -> str:
    """Import a library; return in one sentence why it cannot be used, since it is not installed or its import fails; "" where it can.

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
    """Return the library itself, imported without its chatter.

    Raises
    ------
    MissingLibraryError
        If it is not installed, or its import fails; the sentence says how to get it.
    """
    why = missing(name)
    if why:
        raise MissingLibraryError(why)
    return _backends.backend(name).module


def device_of_jax() -> str:
    """Return the device that JAX computes on, by gpulab's name."""
    return _backends.backend("jax").best_device() or "cpu"
