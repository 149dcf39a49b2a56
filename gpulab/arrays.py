"""Move arrays between host and devices, and share them between libraries without a copy.

``to_device`` and ``to_host`` are MATLAB's ``gpuArray`` and ``gather``. They copy only where the data are
somewhere else; ``share`` never copies.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gpulab import _backends
from gpulab.devices import Device, find
from gpulab.errors import InputError


def _owner(x: object, function: str) -> _backends.Backend:
    owner = _backends.backend_of(x)
    if owner is None:
        raise InputError(
            f"{function}: got a {type(x).__name__}; expected an array of {', '.join(_backends.names())}. Wrap it with numpy.asarray first."
        )
    return owner


def device_of(x: Any) -> Device:
    """Return the device that holds the array."""
    return find(_owner(x, "device_of").device_of(x))


def to_host(x: Any) -> np.ndarray:
    """Return the array as numpy; the device has finished when it returns (MATLAB: ``gather``)."""
    return _owner(x, "to_host").to_host(x)


def to_device(a: Any, device: Device | str | None = None, library: str = "torch", pinned: bool = False) -> Any:
    """Return the array on a device (MATLAB: ``gpuArray``)."""
    target = find(device)
    owner = _owner(a, "to_device")
    if owner.name == library and owner.device_of(a) == str(target) and not pinned:
        return a
    return _backends.backend(library).from_host(owner.to_host(a), str(target), pinned)


def share(x: Any, library: str) -> Any:
    """Return a view of the same memory in another library."""
    return _backends.share(x, library)
