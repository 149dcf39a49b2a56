"""Weight sharing: a layer's weights become a few values, its codebook, and each weight a short
index into it.

k-means on the weights of each layer (Han, Mao, Dally, "Deep Compression", ICLR 2016, section 3):
start values spread evenly over the range, which that paper found better than random ones; then
Lloyd's steps until nothing changes. Zeros of a pruned layer stay zero and take no entry.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gpulab.compression import _targets
from gpulab.errors import InputError

# In one dimension Lloyd's steps settle after a few dozen; a cap keeps a strange weight from going
# on for ever.
_MOST_STEPS = 200


def share_weights(
    model: Any, clusters: int = 16, *, layers: Iterable[str] | None = None, skip: Iterable[str] = ()
) -> Any:
    """Return a copy whose layers each have only ``clusters`` different weights, ready to be
    fine-tuned: the codebooks are what is trained.

    Parameters
    ----------
    model : torch.nn.Module
        It is not changed. Masks of a pruned model are kept: its zeros stay.
    clusters : int
        Entries of each layer's codebook, 2 to 256; an index takes log2 of that many bits, rounded
        up.
    layers, skip : iterable of str, optional
        Names of layers to share (all linear and convolutional ones), and of those to leave out.

    Raises
    ------
    InputError
        If an argument is invalid, or the weights are shared or quantized already.

    Examples
    --------
    >>> from gpulab import compression, networks
    >>> shared = compression.share_weights(networks.mlp(8, 16, 4, depth=1), 4)
    >>> len(shared.layers[1].weight.unique())
    4
    """
    copied = _targets.duplicate("share_weights", model)
    clusters = _targets.whole("share_weights", "clusters", clusters, 2, 256)
    for layer in _targets.chosen("share_weights", copied, layers, skip).values():
        _share(layer, clusters)
    return copied


def _share(layer: Any, clusters: int) -> None:
    import torch
    from torch.nn.utils import parametrize

    from gpulab.compression._modules import Codebook, Mask

    kept = None
    if parametrize.is_parametrized(layer, "weight"):
        if any(not isinstance(each, Mask) for each in layer.parametrizations.weight):
            raise InputError(
                "share_weights: the model's weights are shared already; expected plain or masked "
                "ones. Begin with the plain model."
            )
        kept = layer.parametrizations.weight[0].mask != 0
        _targets.plain(layer)
    weight = layer.weight.detach()
    kept = torch.ones_like(weight, dtype=torch.bool) if kept is None else kept
    # On the CPU: not every accelerator has the float64 in which the means are taken.
    codebook, nearest = (each.to(weight.device) for each in k_means(weight[kept].cpu(), clusters))
    indices = torch.full(weight.shape, len(codebook), dtype=torch.int64, device=weight.device)
    indices[kept] = nearest
    layer.weight = torch.nn.Parameter(codebook)
    # unsafe: the parametrized weight has another shape than the codebook that it is computed from
    parametrize.register_parametrization(layer, "weight", Codebook(indices), unsafe=True)


def k_means(values: Any, clusters: int) -> tuple[Any, Any]:
    """Return codebook and indices of a flat tensor: each value belongs to the nearest entry, each
    entry is the mean of its values.

    With no more different values than clusters the codebook is those values.
    """
    import torch

    distinct, inverse = torch.unique(values, return_inverse=True)
    if len(distinct) <= clusters:
        return distinct, inverse
    low, high = values.min(), values.max()
    book = low + (high - low) * torch.linspace(
        0, 1, clusters, device=values.device, dtype=values.dtype
    )
    nearest = torch.zeros_like(values, dtype=torch.int64)
    for _ in range(_MOST_STEPS):
        now = torch.bucketize(values, (book[1:] + book[:-1]) / 2)
        counts = torch.bincount(now, minlength=clusters)
        sums = torch.zeros(clusters, dtype=torch.float64, device=values.device).index_add_(
            0, now, values.double()
        )
        means = torch.where(counts > 0, (sums / counts.clamp_min(1)).to(values.dtype), book)
        book = means.sort().values
        if torch.equal(now, nearest):
            break
        nearest = now
    return book, torch.bucketize(values, (book[1:] + book[:-1]) / 2)
