"""Pruning: set the smallest weights to zero, or remove whole channels.

Importance is the magnitude of a weight (Han et al., "Learning both Weights and Connections",
NeurIPS 2015), for a channel the norm of its filter as the batch norm after it scales it (after Li
et al., "Pruning Filters for Efficient ConvNets", ICLR 2017).

To remove channels, the model is traced with ``torch.fx``. A layer can lose an output channel where
everything that reads the channel is known: its output passes only through modules that treat each
channel by itself (norms over a batch, activations, pooling, depthwise convolutions) until it ends
in linear or convolutional layers, whose weights for that channel go too. A sum with another branch
(a residual connection) ties channels of several layers together; those layers are left whole.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gpulab import _given
from gpulab.compression import _targets
from gpulab.errors import InputError

# Of four neighbors in a row of the weight matrix two stay: the pattern that NVIDIA's sparse Tensor
# Cores take (Mishra et al., "Accelerating Sparse Deep Neural Networks", arXiv:2104.08378, section
# 3).
_GROUP, _KEPT = 4, 2
# Functions that treat each channel by itself.
_FUNCTIONS = ("relu", "relu_", "gelu", "silu", "hardswish", "sigmoid", "tanh", "dropout")


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
        multiple = _targets.whole("prune", "multiple", multiple, 1, 1024)
        return _remove_channels(copied, found, amount, multiple)
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


@dataclass
class _Chain:
    """One layer that can lose output channels, and what goes with them.

    Attributes
    ----------
    producer : str
        The layer.
    followers : list of str
        Modules between that hold one value or filter a channel: batch norms and depthwise
        convolutions.
    consumers : list of str
        Layers that read the channels.
    """

    producer: str
    followers: list[str] = field(default_factory=list)
    consumers: list[str] = field(default_factory=list)


def _remove_channels(model: Any, wanted: Mapping[str, Any], amount: float, multiple: int) -> Any:
    """Remove the least important channels of each layer in place and return the model.

    Raises
    ------
    InputError
        If the model has masks or codebooks, or none of the layers can lose a channel.
    """
    from torch.nn.utils import parametrize

    if any(parametrize.is_parametrized(m) for m in model.modules()):
        raise InputError(
            "prune: the model has masked or shared weights and structured=True; expected plain "
            "weights. Remove channels first, then prune single weights."
        )
    found = [chain for chain in _chains(model) if chain.producer in wanted]
    if not found:
        raise InputError(
            "prune: no layer of this model can lose a channel by itself; expected a layer whose "
            "output only known layers read. Prune single weights instead (structured=False)."
        )
    for chain in found:
        _shrink(model, chain, amount, multiple)
    return model


def _chains(model: Any) -> list[_Chain]:
    """Return the layers that can lose channels, in the order of the model.

    Raises
    ------
    InputError
        If ``torch.fx`` cannot follow the model's code.
    """
    import torch

    nodes = _traced(model)
    modules = dict(model.named_modules())
    owners = Counter(id(p) for _, p in model.named_parameters(remove_duplicate=False))
    uses = Counter(node.target for node in nodes if node.op == "call_module")
    found = []
    for node in nodes:
        layer = modules.get(node.target) if node.op == "call_module" else None
        if (
            not isinstance(layer, (torch.nn.Linear, torch.nn.Conv2d))
            or getattr(layer, "groups", 1) != 1
        ):
            continue
        if uses[node.target] > 1 or owners[id(layer.weight)] > 1:
            continue
        walk = _Walk(
            modules,
            uses,
            owners,
            _Chain(node.target),
            layer.weight.shape[0],
            isinstance(layer, torch.nn.Conv2d),
        )
        if walk.follow(node) and walk.chain.consumers:
            found.append(walk.chain)
    return found


def _traced(model: Any) -> list[Any]:
    import inspect

    from torch import fx

    class Tracer(fx.Tracer):
        def is_leaf_module(self, m: Any, module_qualified_name: str) -> bool:
            return not any(True for _ in m.children()) and type(m).__module__.startswith("torch.nn")

    takes_targets = "targets" in inspect.signature(model.forward).parameters
    try:
        graph = Tracer().trace(model, concrete_args={"targets": None} if takes_targets else None)
    except Exception as error:
        raise InputError(
            f"prune: torch.fx cannot follow this model ({type(error).__name__}); expected code "
            "without branches on its values. Prune single weights instead (structured=False)."
        ) from error
    return list(graph.nodes)


@dataclass
class _Walk:
    """From one layer to all that reads its output."""

    modules: Mapping[str, Any]
    uses: Counter[str]
    owners: Counter[int]
    chain: _Chain
    channels: int
    # of a convolution the channels are the second dimension, of a linear layer the last
    image: bool
    flattened: bool = False

    def follow(self, node: Any) -> bool:
        """Walk on from a node; False where something is met that is not known to keep channels
        apart.
        """
        return bool(node.users) and all(self._passes(user) for user in node.users)

    def _passes(self, user: Any) -> bool:
        if user.op == "call_function":
            return getattr(user.target, "__name__", "") in _FUNCTIONS and self.follow(user)
        layer = self.modules.get(user.target) if user.op == "call_module" else None
        if layer is None or self.uses[user.target] > 1:
            return False
        from torch import nn

        if isinstance(layer, nn.Conv2d):
            return self._reads_image(user, layer)
        if isinstance(layer, nn.Linear):
            return self._reads_features(user, layer)
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            self.chain.followers.append(user.target)
            return layer.num_features == self.channels and not self.flattened and self.follow(user)
        if isinstance(layer, nn.Flatten):
            self.flattened = self.image
            return self.image and layer.start_dim == 1 and self.follow(user)
        kinds: tuple[type, ...] = (nn.ReLU, nn.ReLU6, nn.GELU, nn.SiLU, nn.Hardswish, nn.LeakyReLU)
        kinds += (nn.Sigmoid, nn.Tanh, nn.Identity, nn.Dropout, nn.Dropout2d)
        if self.image and not self.flattened:
            kinds += (nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d)
        return isinstance(layer, kinds) and self.follow(user)

    def _reads_image(self, user: Any, layer: Any) -> bool:
        if not self.image or self.flattened or self.owners[id(layer.weight)] > 1:
            return False
        # depthwise: a filter for each channel, which goes with it
        if layer.groups == self.channels == layer.out_channels > 1:
            self.chain.followers.append(user.target)
            return self.follow(user)
        self.chain.consumers.append(user.target)
        return bool(layer.groups == 1 and layer.in_channels == self.channels)

    def _reads_features(self, user: Any, layer: Any) -> bool:
        self.chain.consumers.append(user.target)
        fits = (
            layer.in_features % self.channels == 0
            if self.flattened
            else layer.in_features == self.channels and not self.image
        )
        return bool(fits and self.owners[id(layer.weight)] == 1)


def _shrink(model: Any, chain: _Chain, amount: float, multiple: int) -> None:
    import torch

    layer = model.get_submodule(chain.producer)
    channels = layer.weight.shape[0]
    kept = channels - int(amount * channels + 1e-9)
    kept = min(channels, max(1, -(-kept // multiple) * multiple))
    order = torch.argsort(_importance(model, chain), descending=True, stable=True)
    keep = order[:kept].sort().values
    _cut_outputs(layer, keep)
    for name in chain.followers:
        follower = model.get_submodule(name)
        if isinstance(follower, torch.nn.Conv2d):
            _cut_outputs(follower, keep)
            follower.groups = follower.in_channels = kept
        else:
            _select(follower, keep, "weight", "bias", "running_mean", "running_var")
            follower.num_features = kept
    for name in chain.consumers:
        _cut_inputs(model.get_submodule(name), keep, channels)


def _importance(model: Any, chain: _Chain) -> Any:
    """Return one value a channel: the norm of its filter, as the first batch norm behind it scales
    it.
    """
    import torch

    size = model.get_submodule(chain.producer).weight.detach().flatten(1).norm(dim=1)
    for name in chain.followers:
        follower = model.get_submodule(name)
        if isinstance(follower, torch.nn.Conv2d):
            size = size * follower.weight.detach().flatten(1).norm(dim=1)
        elif follower.weight is not None and follower.running_var is not None:
            size = (
                size * follower.weight.detach().abs() / (follower.running_var + follower.eps).sqrt()
            )
    return size


def _select(layer: Any, index: Any, *names: str) -> None:
    """Keep a part of each of these tensors of a layer, in place; those that it lacks stay None."""
    import torch

    for name in names:
        old = getattr(layer, name)
        if old is not None:
            new = old.detach()[index].clone().contiguous()
            if isinstance(old, torch.nn.Parameter):
                new = torch.nn.Parameter(new, requires_grad=old.requires_grad)
            setattr(layer, name, new)


def _cut_outputs(layer: Any, keep: Any) -> None:
    _select(layer, keep, "weight", "bias")
    setattr(layer, "out_channels" if hasattr(layer, "out_channels") else "out_features", len(keep))


def _cut_inputs(layer: Any, keep: Any, channels: int) -> None:
    """Drop what reads the removed channels; a linear layer behind a flattened image reads several
    values of each.
    """
    import torch

    each = layer.weight.shape[1] // channels
    columns = (keep[:, None] * each + torch.arange(each, device=keep.device)).flatten()
    _select(layer, (slice(None), columns), "weight")
    setattr(layer, "in_channels" if hasattr(layer, "in_channels") else "in_features", len(columns))
