"""Pruning: the smallest weights become zero and stay zero, or whole channels go and the layers
really shrink.

Importance is the magnitude of a weight (Han et al., "Learning both Weights and Connections",
NeurIPS 2015), for a channel the norm of its filter as the batch norm after it scales it (after Li
et al., "Pruning Filters for Efficient ConvNets", ICLR 2017).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from gpulab import _given
from gpulab.compression import _channels, _targets
from gpulab.errors import InputError

# Of four neighbors in a row of the weight matrix two stay: the pattern that NVIDIA's sparse Tensor
# Cores take (Mishra et al., "Accelerating Sparse Deep Neural Networks", arXiv:2104.08378, section
# 3).
_GROUP, _KEPT = 4, 2


def prune(
    model: Any,
    amount: float = 0.5,
    *,
    structured: bool = False,
    pattern: str | None = None,
    scope: str = "global",
    layers: Iterable[str] | None = None,
    skip: Iterable[str] = (),
    multiple: int = 1,
) -> Any:
    """Return a pruned copy of a model, ready to be fine-tuned: what was pruned stays zero in
    training, and channels are gone.

    Parameters
    ----------
    model : torch.nn.Module
        It is not changed. A pruned model can be pruned further: ``amount`` includes the weights
        that are zero already.
    amount : float
        The share of weights to set to zero, or of channels to remove from each layer, 0 to 1.
    structured : bool
        Remove whole channels and the weights that read them, instead of setting single weights to
        zero.
    pattern : str, optional
        "2:4" keeps the two largest of every four neighbors in a row; ``amount`` must then be 0.5.
    scope : str
        "global" compares the weights of all layers with each other, "layer" prunes the same share
        of each.
    layers, skip : iterable of str, optional
        Names of the layers to prune (all linear and convolutional ones), and of those to leave out.
    multiple : int
        Keep channels in multiples of this, as Tensor Cores prefer; at least this many channels
        stay.

    Returns
    -------
    torch.nn.Module
        With masks on its weights (``compression.finish`` makes plain weights of them), or with
        smaller layers.

    Raises
    ------
    InputError
        If an argument is not usable, no layer is left, or no channel can be removed without
        touching others.

    Examples
    --------
    >>> import torch
    >>> from gpulab import compression
    >>> small = compression.prune(torch.nn.Sequential(torch.nn.Linear(8, 16)), 0.75)
    >>> float((small[0].weight == 0).double().mean())
    0.75
    """
    copied = _targets.duplicate("prune", model)
    amount = _targets.share("prune", "amount", amount)
    _given.word("prune", "scope", scope, ("global", "layer"))
    if _given.flag("prune", "structured", structured):
        if pattern is not None:
            raise InputError(
                f"prune: pattern={pattern!r} with structured=True; expected one of the two. Leave "
                "pattern out."
            )
        found = _targets.chosen("prune", copied, layers, skip)
        return _channels.remove(
            copied, found, amount, _targets.whole("prune", "multiple", multiple, 1, 1024)
        )
    found = _targets.chosen("prune", copied, layers, skip)
    for name, layer in found.items():
        if not bool(layer.weight.detach().isfinite().all()):
            raise InputError(
                f"prune: the weights of {name} are not all finite numbers; expected a trained "
                "model. Train it again."
            )
    if pattern is not None:
        _given.word("prune", "pattern", pattern, ("2:4",))
        if amount != 0.5:
            raise InputError(
                f"prune: pattern='2:4' with amount={amount}; expected 0.5, since the pattern keeps "
                "two of four. Leave amount out."
            )
        masks = {name: two_of_four(layer.weight.detach()) for name, layer in found.items()}
    else:
        masks = _smallest(found, amount, scope)
    for name, mask in masks.items():
        _put(found[name], mask)
    return copied


def _smallest(found: Mapping[str, Any], amount: float, scope: str) -> dict[str, Any]:
    """Return the masks that keep the largest weights; ties are broken by position, so that the
    count is exact.
    """
    import torch

    sizes = {name: layer.weight.detach().abs() for name, layer in found.items()}
    if scope == "layer":
        return {
            name: _keep_largest(size.flatten(), amount).view_as(size)
            for name, size in sizes.items()
        }
    kept = _keep_largest(torch.cat([size.flatten() for size in sizes.values()]), amount)
    parts = kept.split([size.numel() for size in sizes.values()])
    return {
        name: part.view_as(size) for (name, size), part in zip(sizes.items(), parts, strict=True)
    }


def _keep_largest(sizes: Any, amount: float) -> Any:
    """Return ones at the largest values; ``round(amount * n)`` are zero."""
    import torch

    gone = round(amount * sizes.numel())
    mask = torch.ones_like(sizes)
    mask[torch.argsort(sizes, stable=True)[:gone]] = 0
    return mask


def two_of_four(weight: Any) -> Any:
    """Return the mask that keeps the two largest of every four neighbors in a row of the weight
    matrix; a rest of a row is kept.
    """
    import torch

    rows = weight.detach().abs().flatten(1)
    whole = rows.shape[1] // _GROUP * _GROUP
    groups = rows[:, :whole].reshape(-1, _GROUP)
    order = torch.argsort(groups, dim=1, descending=True, stable=True)
    kept = torch.zeros_like(groups).scatter_(1, order[:, :_KEPT], 1.0).view(rows.shape[0], whole)
    return torch.cat([kept, torch.ones_like(rows[:, whole:])], dim=1).view_as(weight)


def _put(layer: Any, mask: Any) -> None:
    """Give a layer a mask; what one that it has already keeps at zero stays there, whatever the new
    one says.
    """
    from torch.nn.utils import parametrize

    from gpulab.compression._modules import Codebook, Mask

    if parametrize.is_parametrized(layer, "weight"):
        for each in layer.parametrizations.weight:
            if isinstance(each, Mask):
                each.mask = mask * each.mask
                return
            if isinstance(each, Codebook):
                raise InputError(
                    "prune: the model's weights are shared already; expected plain ones. Prune "
                    "first, then share the weights."
                )
    parametrize.register_parametrization(layer, "weight", Mask(mask))


def zero_share(model: Any) -> float | None:
    """Return the share of zeros in the weights of linear and convolutional layers; None where there
    is no such layer.
    """
    import torch

    weights = [_numbers(m.weight.detach()) for m in model.modules() if _has_weight(m)]
    count = sum(w.numel() for w in weights)
    return 1 - sum(int(torch.count_nonzero(w)) for w in weights) / float(count) if count else None


def _numbers(weight: Any) -> Any:
    """Return a weight as plain numbers: a tensor of a library's own kind (2:4, torchao) has no
    operator that counts its zeros.
    """
    import torch

    if type(weight) is torch.Tensor:
        return weight
    return weight.to_dense() if "SemiStructured" in type(weight).__name__ else weight.dequantize()


def _has_weight(module: Any) -> bool:
    import torch

    from gpulab.compression._modules import _Shipped

    return isinstance(module, (torch.nn.Linear, torch.nn.Conv2d, _Shipped))
