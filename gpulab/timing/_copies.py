"""The copies around a call: host inputs to the device, the result back to the host.

On a CPU both are real copies in main memory. Arrays inside tuples, lists and dictionaries are
copied; everything else (numbers, models, step objects) passes through unchanged. The library's own
calls are used, so that no overhead of gpulab is timed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gpulab import _backends
from gpulab.devices import Device

Change = Callable[[Any, str], Any]


def mapped(value: Any, change: Change) -> Any:
    """Return the value with each array in it changed; ``change`` gets the array and its library's
    name.
    """
    owner = _backends.backend_of(value)
    if owner is not None:
        return change(value, owner.name)
    if type(value) in (tuple, list):
        return type(value)(mapped(item, change) for item in value)
    return (
        {key: mapped(item, change) for key, item in value.items()} if type(value) is dict else value
    )


def on_host(value: Any) -> Any:
    """Return the value with its arrays in host memory (torch stays torch, those of other GPU
    libraries become numpy's); host arrays as they are.
    """

    def change(array: Any, library: str) -> Any:
        if library == "torch":
            return (
                array
                if array.device.type == "cpu"
                else array.detach().cpu().requires_grad_(array.requires_grad)
            )
        owner = _backends.backend(library)
        return array if owner.device_of(array) == "cpu" else owner.to_host(array)

    return mapped(value, change)


def to_device_like(original: Any, device: Device) -> Callable[[Any], Any]:
    """Return what copies the host version of ``original`` to a device, in the library that
    ``original`` has there.

    Host arrays of numpy become torch tensors on an accelerator, for numpy has none there; on a CPU
    they stay numpy.
    """
    if device.is_cpu:
        return lambda host: mapped(host, _host_copy)
    if any_of(original, "cupy"):
        import cupy

        def to_cupy(array: Any, library: str) -> Any:
            if library != "numpy":
                return array.to(str(device))
            # else it would go to the device that is current in this thread
            with cupy.cuda.Device(device.index):
                return cupy.asarray(array)

        return lambda host: mapped(host, to_cupy)
    for name in ("jax", "tensorflow"):
        if any_of(original, name):
            return _to_immutable(_backends.backend(name), str(device))

    def to_torch(array: Any, library: str) -> Any:
        import torch

        try:
            tensor = torch.from_numpy(array) if library == "numpy" else array
            return tensor.detach().to(str(device)).requires_grad_(tensor.requires_grad)
        except (TypeError, ValueError):
            # a dtype or strides that PyTorch or the device lacks: the adapter copies, or says what
            # to pass
            owner = _backends.backend("torch")
            return (
                owner.from_host(array, str(device), False)
                if library == "numpy"
                else owner.move(array.detach(), str(device), False)
            )

    return lambda host: mapped(host, to_torch)


def _to_immutable(target: _backends.Backend, device: str) -> Callable[[Any], Any]:
    """Return what copies host arrays to a device of JAX or TensorFlow."""

    def change(array: Any, library: str) -> Any:
        if library == "torch":
            return array.to(device)
        return (
            target.from_host(array, device, False)
            if library == "numpy"
            else target.move(array, device, False)
        )

    return lambda host: mapped(host, change)


def any_of(value: Any, wanted: str) -> bool:
    """Return whether an array of a library is among the arrays of the value."""
    found = []

    def change(array: Any, library: str) -> Any:
        found.append(library == wanted)
        return array

    mapped(value, change)
    return any(found)


def back_to_host(result: Any) -> Any:
    """Return the result with its arrays copied to host memory; the device has finished with them
    when it returns.
    """

    def change(array: Any, library: str) -> Any:
        if library == "torch":
            return array.detach().cpu() if array.device.type != "cpu" else array.detach().clone()
        return (
            array.get()
            if library == "cupy"
            else np.array(_backends.backend(library).to_host(array), copy=True)
        )

    return mapped(result, change)


def _host_copy(array: Any, library: str) -> Any:
    if library == "torch":
        return array.detach().clone().requires_grad_(array.requires_grad)
    return (
        np.array(array, copy=True) if library == "numpy" else _backends.backend(library).copy(array)
    )
