"""Which layers can be compressed, copies of a model that are safe to change, and ``finish``, which
turns a model in training into the model that is shipped.

Only the weights of linear and convolutional layers are compressed: biases and norms are few, and an
embedding is a table of rows that are looked up one at a time. A weight that two layers share (tied
embeddings) is left alone, for a change here would be a change there. So is one of a library's own
kind (torchao's, 2:4): it is compressed already, and few operators take it.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterable
from typing import Any

from gpulab import _given
from gpulab.errors import InputError, shown


def module(function: str, model: Any) -> Any:
    """Return the model.

    Raises
    ------
    InputError
        If it is not a ``torch.nn.Module``.
    """
    import torch

    if not isinstance(model, torch.nn.Module):
        raise InputError(
            f"{function}: model is {shown(model)}; expected a torch.nn.Module. Pass a trained "
            "model, such as gl.networks.cnn() after fit."
        )
    return model


def duplicate(function: str, model: Any) -> Any:
    """Return a deep copy of the model; tied weights stay tied.

    Raises
    ------
    InputError
        If it is not a module, or one that cannot be copied.
    """
    try:
        return copy.deepcopy(module(function, model))
    except InputError:
        raise
    except Exception as error:
        raise InputError(
            f"{function}: this model cannot be copied ({type(error).__name__}: {error}); expected "
            "one whose tensors are all parameters or buffers. Build it again and load its "
            "state_dict."
        ) from error


def layers(model: Any) -> dict[str, Any]:
    """Return the linear and convolutional layers by name, except those whose weight another module
    shares or a library packed.
    """
    import torch

    kinds = (torch.nn.Linear, torch.nn.Conv2d)
    owners = Counter(id(p) for _, p in model.named_parameters(remove_duplicate=False))
    own = ((name, m, weight_of(m)) for name, m in model.named_modules() if isinstance(m, kinds))
    return {
        name: m
        for name, m, weight in own
        if owners[id(weight)] == 1 and type(weight.data) is torch.Tensor
    }


def weight_of(layer: Any) -> Any:
    """Return the parameter behind a layer's weight: its own, or the one that a parametrization
    computes it from.
    """
    from torch.nn.utils import parametrize

    if parametrize.is_parametrized(layer, "weight"):
        held = layer.parametrizations.weight
        return held.original if hasattr(held, "original") else held.original0
    return layer.weight


def plain(layer: Any) -> None:
    """Make the weight that a layer's parametrizations compute its plain weight, in place.

    A deep copy of a parametrized layer shares its class with the original, and PyTorch takes the
    computed attribute off that class: so the layer gets a class of its own first, else the original
    would lose its weight.
    """
    from torch.nn.utils import parametrize

    kind = type(layer)
    layer.__class__ = type(kind.__name__, kind.__bases__, dict(kind.__dict__))
    parametrize.remove_parametrizations(layer, "weight", leave_parametrized=True)


def chosen(
    function: str, model: Any, names: Iterable[str] | None, skip: Iterable[str] = ()
) -> dict[str, Any]:
    """Return the layers to compress.

    Raises
    ------
    InputError
        If there are none, or a name is not among them.
    """
    there = layers(model)
    left_out = _given.items(function, "skip", skip)
    wanted = list(there) if names is None else _given.items(function, "layers", names)
    unknown = [
        name for name in [*wanted, *left_out] if not isinstance(name, str) or name not in there
    ]
    if unknown:
        raise InputError(
            f"{function}: there is no layer {shown(unknown[0])} to compress; expected some of: "
            f"{', '.join(there) or '(none)'}. Pass one."
        )
    found = {name: there[name] for name in wanted if name not in left_out}
    if not found:
        raise InputError(
            f"{function}: no layer is left to compress; expected at least one linear or "
            "convolutional layer. Name fewer to skip."
        )
    return found


def replace(model: Any, name: str, new: Any) -> Any:
    """Put a module in the place of the one with that name and return the model; the name "" is the
    model itself.
    """
    if not name:
        return new
    parent, _, own = name.rpartition(".")
    setattr(model.get_submodule(parent), own, new)
    return model


def share(function: str, name: str, value: Any) -> float:
    """Return a share from 0 up to, but not, 1.

    Raises
    ------
    InputError
        If it is none.
    """
    if not _given.is_finite(value) or not 0 <= value < 1:
        raise InputError(
            f"{function}: {name}={shown(value)}; expected a share of at least 0 and below 1. Pass "
            f"for example {name}=0.5."
        )
    return float(value)


def whole(function: str, name: str, value: Any, low: int, high: int) -> int:
    """Return a whole number within bounds.

    Raises
    ------
    InputError
        If it is none.
    """
    if not _given.is_whole(value) or not low <= value <= high:
        raise InputError(
            f"{function}: {name}={shown(value)}; expected a whole number from {low} to {high}. "
            f"Pass for example {name}={low}."
        )
    return int(value)


def finish(model: Any) -> Any:
    """Return a copy without the parts that only training needs, in evaluation mode.

    Masked and shared weights become plain ones (with their zeros, with their few values), a layer
    trained as if it were quantized becomes a quantized one. The outputs stay the same. A model
    without such parts is copied as it is.

    Parameters
    ----------
    model : torch.nn.Module

    Raises
    ------
    InputError
        If it is not a module, or a layer whose inputs must be rounded by the range seen in training
        has seen no input.
    """
    from torch.nn.utils import parametrize

    from gpulab.compression import _modules

    copied = duplicate("finish", model).eval()
    for name, each in list(copied.named_modules()):
        if isinstance(each, _modules.Aware):
            seen = each.observed
            if seen is not None and not bool(seen.seen):
                raise InputError(
                    f"finish: no input reached {name or 'the layer'} in training, so the range "
                    "that activations='static' rounds to is not known; expected a trained model. "
                    "Train it, or use quantize with calibration=x."
                )
            ends = () if seen is None else (seen.low, seen.high)
            new = _modules.Quantized(each.layer, each.scheme, *ends).eval()
            copied = replace(copied, name, new)
    for each in copied.modules():
        if parametrize.is_parametrized(each, "weight"):
            plain(each)
    return copied
