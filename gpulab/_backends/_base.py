"""What every adapter offers."""

from __future__ import annotations

import abc
import importlib
import os
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np


class Backend(abc.ABC):
    """What gpulab needs from an array library. ``device`` is text such as ``"cpu"`` or
    ``"cuda:0"``.
    """

    name = ""
    # What to do where the library is not installed.
    how_to_get = "Run `gpulab doctor`."
    # Whether arrays of this library never change: then none may lie over memory that somebody else
    # writes to unasked.
    immutable = False
    # Whether ``from_dlpack`` may give a copy and not say so; then the address of every view is
    # looked at.
    may_copy = False
    # What the process's environment says when the library is imported, unless somebody has said
    # otherwise.
    settings: Mapping[str, str] = MappingProxyType({})

    @classmethod
    def prepare(cls) -> None:
        """Put the settings into the environment; a library reads them at its import, or when it
        first asks for a GPU.
        """
        for name, value in cls.settings.items():
            os.environ.setdefault(name, value)

    def __init__(self) -> None:
        self.prepare()
        self.module: Any = importlib.import_module(self.name)

    @abc.abstractmethod
    def owns(self, x: object) -> bool:
        """Return whether ``x`` is an array of this library."""

    def has_data(self, x: Any) -> bool:
        """Return whether ``x`` holds numbers now, and is not a symbolic value of a graph or a
        traced function.
        """
        return True

    @abc.abstractmethod
    def device_of(self, x: Any) -> str:
        """Return the device that holds ``x``."""

    @abc.abstractmethod
    def pointer(self, x: Any) -> int:
        """Return the address of the first element."""

    def nbytes(self, x: Any) -> int:
        """Return the bytes of the elements (not of the storage behind a view)."""
        return int(x.nbytes)

    def dtype_name(self, x: Any) -> str:
        """Return the name of the elements' type, such as "float32"."""
        return str(x.dtype)

    def in_numpy(self, x: Any) -> bool:
        """Return whether numpy has the elements' type."""
        return True

    def is_contiguous(self, x: Any) -> bool:
        """Return whether the elements are contiguous in row-major order."""
        return True

    @abc.abstractmethod
    def to_host(self, x: Any) -> np.ndarray:
        """Return a numpy array; the device has finished when it returns."""

    @abc.abstractmethod
    def from_host(self, a: np.ndarray, device: str, pinned: bool) -> Any:
        """Return an array of this library on ``device`` with the content of ``a``; no copy where
        ``a`` can be used as it is.
        """

    def move(self, x: Any, device: str, pinned: bool) -> Any:
        """Return this library's own array ``x`` on another device of this library."""
        return self.from_host(self.to_host(x), device, pinned)

    @abc.abstractmethod
    def copy(self, x: Any) -> Any:
        """Return a copy of ``x`` on the same device."""

    def compact(self, x: Any) -> Any:
        """Return a copy of ``x`` in new memory, in row-major order, for a library that requires it;
        None where a copy is not possible.
        """
        return None

    @abc.abstractmethod
    def obstacle(self, x: Any, library: str) -> tuple[str, str] | None:
        """Return why ``x`` cannot be seen by ``library`` without a copy and which call makes one;
        None if it can.
        """

    def hazard(self, x: Any, library: str) -> tuple[str, str] | None:
        """Return the obstacle that the libraries themselves would not report: the few checks that
        every ``share`` makes.
        """
        return self.obstacle(x, library)

    def refuses(self, x: Any, owner: Backend) -> tuple[str, str] | None:
        """Return why this library cannot see ``x``, an array of ``owner``, without a copy, and
        which call makes one; None if it can.
        """
        return None

    def from_dlpack(self, x: Any) -> Any:
        """Return a view of ``x`` that shares its memory."""
        return self.module.from_dlpack(x)

    def best_device(self) -> str | None:
        """Return the best device that this library can use now, by name; None where gpulab's own
        order of devices applies.
        """
        return None

    def waits_for(self, result: Any) -> Callable[[Any], Any] | None:
        """Return a function that waits for results like this one; None where waiting for the device
        is enough.
        """
        return None
