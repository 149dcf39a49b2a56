"""Removing channels: which layers can lose some, and what must shrink with them.

The model is traced with ``torch.fx``. A layer can lose an output channel where everything that
reads the channel is known: its output passes only through modules that treat each channel by itself
(norms over a batch, activations, pooling, depthwise convolutions) until it ends in linear or
convolutional layers, whose weights for that channel go too. A sum with another branch (a residual
connection) ties channels of several layers together; those layers are left whole.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gpulab.errors import InputError

_FUNCTIONS = ("relu", "relu_", "gelu", "silu", "hardswish", "sigmoid", "tanh", "dropout")


@dataclass
class Chain:
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


def remove(model: Any, wanted: Mapping[str, Any], amount: float, multiple: int) -> Any:
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
    found = [chain for chain in chains(model) if chain.producer in wanted]
    if not found:
        raise InputError(
            "prune: no layer of this model can lose a channel by itself; expected a layer whose "
            "output only known layers read. Prune single weights instead (structured=False)."
        )
    for chain in found:
        _shrink(model, chain, amount, multiple)
    return model


def chains(model: Any) -> list[Chain]:
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
            Chain(node.target),
            layer.weight.shape[0],
            isinstance(layer, torch.nn.Conv2d),
        )
        if walk.follow(node) and walk.chain.consumers:
            found.append(walk.chain)
    return found


def _traced(model: Any) -> list[Any]:
    from torch import fx

    class Tracer(fx.Tracer):
        def is_leaf_module(self, m: Any, module_qualified_name: str) -> bool:
            return not any(True for _ in m.children()) and type(m).__module__.startswith("torch.nn")

    try:
        graph = Tracer().trace(
            model, concrete_args={"targets": None} if _takes_targets(model) else None
        )
    except Exception as error:
        raise InputError(
            f"prune: torch.fx cannot follow this model ({type(error).__name__}); expected code "
            "without branches on its values. Prune single weights instead (structured=False)."
        ) from error
    return list(graph.nodes)


def _takes_targets(model: Any) -> bool:
    import inspect

    return "targets" in inspect.signature(model.forward).parameters


@dataclass
class _Walk:
    """From one layer to all that reads its output."""

    modules: Mapping[str, Any]
    uses: Counter[str]
    owners: Counter[int]
    chain: Chain
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
        return isinstance(
            layer, _pointwise() + (_pooling() if self.image and not self.flattened else ())
        ) and self.follow(user)

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


def _pointwise() -> tuple[type, ...]:
    from torch import nn

    return (
        nn.ReLU,
        nn.ReLU6,
        nn.GELU,
        nn.SiLU,
        nn.Hardswish,
        nn.LeakyReLU,
        nn.Sigmoid,
        nn.Tanh,
        nn.Identity,
        nn.Dropout,
        nn.Dropout2d,
    )


def _pooling() -> tuple[type, ...]:
    from torch import nn

    return (nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d)


def _shrink(model: Any, chain: Chain, amount: float, multiple: int) -> None:
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
            _cut_norm(follower, keep)
    for name in chain.consumers:
        _cut_inputs(model.get_submodule(name), keep, channels)


def _importance(model: Any, chain: Chain) -> Any:
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


def _parameter(old: Any, value: Any) -> Any:
    import torch

    return torch.nn.Parameter(value.detach().clone().contiguous(), requires_grad=old.requires_grad)


def _cut_outputs(layer: Any, keep: Any) -> None:
    layer.weight = _parameter(layer.weight, layer.weight[keep])
    if layer.bias is not None:
        layer.bias = _parameter(layer.bias, layer.bias[keep])
    if hasattr(layer, "out_channels"):
        layer.out_channels = len(keep)
    else:
        layer.out_features = len(keep)


def _cut_norm(norm: Any, keep: Any) -> None:
    for name in ("weight", "bias"):
        if getattr(norm, name) is not None:
            setattr(norm, name, _parameter(getattr(norm, name), getattr(norm, name)[keep]))
    for name in ("running_mean", "running_var"):
        if getattr(norm, name) is not None:
            setattr(norm, name, getattr(norm, name)[keep].clone())
    norm.num_features = len(keep)


def _cut_inputs(layer: Any, keep: Any, channels: int) -> None:
    """Drop what reads the removed channels; a linear layer behind a flattened image reads several
    values of each.
    """
    import torch

    width = layer.weight.shape[1]
    each = width // channels
    columns = (keep[:, None] * each + torch.arange(each, device=keep.device)).flatten()
    layer.weight = _parameter(layer.weight, layer.weight[:, columns])
    if hasattr(layer, "in_channels"):
        layer.in_channels = len(columns)
    else:
        layer.in_features = len(columns)
