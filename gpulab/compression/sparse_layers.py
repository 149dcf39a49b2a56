"""Sparse formats: store and multiply only what is not zero, where a device has kernels for it."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterable, Iterator
from typing import Any

from gpulab import _given, devices
from gpulab.compression import _targets
from gpulab.compression._prune import two_of_four
from gpulab.compression._targets import finish
from gpulab.errors import DeviceError, InputError

# Half of a row of the weight matrix is stored, in tiles: the least multiples of rows and columns
# that PyTorch's 2:4 kernels take in half precision (torch/sparse/semi_structured.py).
_ROWS, _COLUMNS = 32, 64


def to_sparse(
    model: Any,
    format: str = "csr",
    *,
    layers: Iterable[str] | None = None,
    skip: Iterable[str] = (),
) -> Any:
    """Return a finished copy whose layers store and multiply only the weights that are not zero.

    Parameters
    ----------
    model : torch.nn.Module
        Usually pruned; it is not changed.
    format : str
        "csr" on any device (compressed sparse rows; each value with its column's index), or "2:4"
        on an NVIDIA GPU of compute capability 8.0 or newer (linear layers in half precision, pruned
        with ``pattern="2:4"``).
    layers, skip : iterable of str, optional
        Names of layers (all that fit the format), and of those to leave out.

    Raises
    ------
    InputError
        If an argument is invalid, or a layer does not have the format's pattern.
    DeviceError
        If the device has no kernels for the format; the message says what to use instead.
    """
    import torch

    from gpulab.compression._modules import Sparse

    _given.word("to_sparse", "format", format, ("csr", "2:4"))
    done = finish(model)
    found = _targets.chosen("to_sparse", done, layers, skip)
    if format == "2:4":
        return _semi_structured(done, found)
    for name, layer in found.items():
        if layer.weight.device.type == "mps":
            raise DeviceError(
                "to_sparse: PyTorch has no CSR products on Apple's GPU; expected a CPU or CUDA "
                "device. Use model.cpu() first."
            )
        if isinstance(layer, torch.nn.Conv2d) and layer.groups != 1:
            if layers is not None:
                raise InputError(
                    f"to_sparse: {name} has {layer.groups} groups; expected an ungrouped "
                    "convolution. Skip it."
                )
            continue
        with _quiet():
            done = _targets.replace(done, name, Sparse(layer).eval())
    return done


def _semi_structured(model: Any, found: dict[str, Any]) -> Any:
    import torch

    fits = {name: layer for name, layer in found.items() if isinstance(layer, torch.nn.Linear)}
    if not fits:
        raise InputError(
            "to_sparse: format='2:4' and no linear layer; expected at least one. Use format='csr'."
        )
    for name, layer in fits.items():
        weight = layer.weight.detach()
        reason = two_four_refusal(weight.device)
        if reason:
            raise DeviceError(f"to_sparse: {reason} Use format='csr', or keep the dense weights.")
        if (
            weight.dtype not in (torch.float16, torch.bfloat16)
            or weight.shape[0] % _ROWS
            or weight.shape[1] % _COLUMNS
        ):
            raise InputError(
                f"to_sparse: {name} is {weight.dtype} of shape {tuple(weight.shape)}; expected "
                f"float16 or bfloat16 with multiples of {_ROWS} rows and {_COLUMNS} columns. "
                "Convert with model.half(), or skip this layer."
            )
        if not torch.equal(weight * two_of_four(weight).to(weight.dtype), weight):
            raise InputError(
                f"to_sparse: {name} has more than two of four neighbors that are not zero. Prune "
                "with pattern='2:4' first."
            )
        with _quiet():
            layer.weight = torch.nn.Parameter(
                torch.sparse.to_sparse_semi_structured(weight), requires_grad=False
            )
    return model


def two_four_refusal(device: Any) -> str:
    """Return why a device has no 2:4 sparsity, as a sentence; "" where it has."""
    import torch

    where = devices.find(str(device))
    if where.torch_type != "cuda" or torch.version.cuda is None:
        return (
            f"{where.name} has no 2:4 sparse instructions; they came with NVIDIA's compute "
            "capability 8.0 (Ampere)."
        )
    major, minor = torch.cuda.get_device_capability(torch.device(str(device)))
    if (major, minor) < (8, 0):
        return (
            f"{where.name} has compute capability {major}.{minor}; 2:4 sparse instructions need "
            "8.0 (Ampere) or newer."
        )
    return ""


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Leave out PyTorch's note that its sparse formats are in beta: it would stand once a process,
    in the middle of a lesson.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*is in (beta|prototype).*")
        yield
