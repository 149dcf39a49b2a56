"""Pruning: set the smallest weights to zero, or remove whole channels; and sparse formats, which
store and multiply only what is not zero, where a device has kernels for it.

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

import contextlib
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx, nn
from torch.nn.utils import parametrize

from gpulab import _validate
from gpulab.compression import compressed_layers
from gpulab.compression.compressed_layers import Codebook, Mask, Sparse, finish
from gpulab.errors import DeviceError, InputError

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
    skip: Iterable[str] = (),
) -> Any:
    """Return a pruned copy of a model, ready to be fine-tuned: what was pruned stays zero in
    training, and channels are gone.

    Parameters
    ----------
    model : torch.nn.Module
        It is not changed. A pruned model can be pruned further: ``amount`` includes the weights
        that are zero already.
    amount : float
        The share of weights to set to zero, the smallest of all layers together, or of channels to
        remove from each layer, 0 to 1.
    structured : bool
        Remove whole channels and the weights that read them, instead of setting single weights to
        zero.
    pattern : str, optional
        "2:4" keeps the two largest of every four neighbors in a row; ``amount`` must then be 0.5.
    skip : iterable of str, optional
        Names of linear and convolutional layers to leave out.

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
    copied = compressed_layers.duplicate("prune", model)
    amount = compressed_layers.share("prune", "amount", amount)
    if _validate.flag("prune", "structured", structured):
        if pattern is not None:
            raise InputError(
                f"prune: pattern={pattern!r} with structured=True; expected one of the two. Leave "
                "pattern out."
            )
        return _remove_channels(copied, compressed_layers.chosen("prune", copied, skip), amount)
    found = compressed_layers.chosen("prune", copied, skip)
    for name, layer in found.items():
        if not bool(layer.weight.detach().isfinite().all()):
            raise InputError(
                f"prune: the weights of {name} are not all finite numbers; expected a trained "
                "model. Train it again."
            )
    if pattern is not None:
        _validate.word("prune", "pattern", pattern, ("2:4",))
        if amount != 0.5:
            raise InputError(
                f"prune: pattern='2:4' with amount={amount}; expected 0.5, since the pattern keeps "
                "two of four. Leave amount out."
            )
        masks = {name: two_of_four(layer.weight.detach()) for name, layer in found.items()}
    else:
        masks = _smallest(found, amount)
    for name, mask in masks.items():
        _put(found[name], mask)
    return copied


def _smallest(found: Mapping[str, Any], amount: float) -> dict[str, Any]:
    """Return the masks that keep the largest weights of all layers; ``round(amount * n)`` are zero,
    and ties are broken by position, so that the count is exact.
    """
    weights = [layer.weight.detach() for layer in found.values()]
    sizes = torch.cat([weight.abs().flatten() for weight in weights])
    mask = torch.ones_like(sizes)
    mask[torch.argsort(sizes, stable=True)[: round(amount * sizes.numel())]] = 0
    parts = torch.split(mask, [weight.numel() for weight in weights])
    return {
        name: part.view_as(weight) for name, part, weight in zip(found, parts, weights, strict=True)
    }


def two_of_four(weight: Any) -> Any:
    """Return the mask that keeps the two largest of every four neighbors in a row of the weight
    matrix; a rest of a row is kept.
    """
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


def _remove_channels(model: Any, wanted: Mapping[str, Any], amount: float) -> Any:
    """Remove the least important channels of each layer in place and return the model.

    Raises
    ------
    InputError
        If the model has masks or codebooks, or none of the layers can lose a channel.
    """
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
        _shrink(model, chain, amount)
    return model


def _chains(model: Any) -> list[_Chain]:
    """Return the layers that can lose channels, in the order of the model.

    Raises
    ------
    InputError
        If ``torch.fx`` cannot follow the model's code.
    """
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
        is_image = isinstance(layer, torch.nn.Conv2d)
        chain = _Chain(modules, uses, owners, node.target, layer.weight.shape[0], is_image)
        if chain.follow(node) and chain.consumers:
            found.append(chain)
    return found


def _traced(model: Any) -> list[Any]:
    import inspect

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
class _Chain:
    """One layer that can lose output channels, and what goes with them, found on the way from the
    layer to all that reads its output.

    Attributes
    ----------
    producer : str
        The layer.
    channels : int
    image : bool
        Of a convolution the channels are the second dimension, of a linear layer the last.
    followers : list of str
        Modules between that hold one value or filter a channel: batch norms and depthwise
        convolutions.
    consumers : list of str
        Layers that read the channels.
    """

    modules: Mapping[str, Any]
    uses: Counter[str]
    owners: Counter[int]
    producer: str
    channels: int
    image: bool
    flattened: bool = False
    followers: list[str] = field(default_factory=list)
    consumers: list[str] = field(default_factory=list)

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
        if isinstance(layer, nn.Conv2d):
            return self._reads_image(user, layer)
        if isinstance(layer, nn.Linear):
            return self._reads_features(user, layer)
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            self.followers.append(user.target)
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
            self.followers.append(user.target)
            return self.follow(user)
        self.consumers.append(user.target)
        return bool(layer.groups == 1 and layer.in_channels == self.channels)

    def _reads_features(self, user: Any, layer: Any) -> bool:
        self.consumers.append(user.target)
        fits = (
            layer.in_features % self.channels == 0
            if self.flattened
            else layer.in_features == self.channels and not self.image
        )
        return bool(fits and self.owners[id(layer.weight)] == 1)


def _shrink(model: Any, chain: _Chain, amount: float) -> None:
    layer = model.get_submodule(chain.producer)
    channels = layer.weight.shape[0]
    kept = max(1, channels - int(amount * channels + 1e-9))
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
    each = layer.weight.shape[1] // channels
    columns = (keep[:, None] * each + torch.arange(each, device=keep.device)).flatten()
    _select(layer, (slice(None), columns), "weight")
    setattr(layer, "in_channels" if hasattr(layer, "in_channels") else "in_features", len(columns))


# Half of a row of the weight matrix is stored, in tiles: the least multiples of rows and columns
# that PyTorch's 2:4 kernels take in half precision (torch/sparse/semi_structured.py).
_ROWS, _COLUMNS = 32, 64


def to_sparse(
    model: Any,
    format: str = "csr",
    *,
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
    skip : iterable of str, optional
        Names of layers to leave out, of all that fit the format.

    Raises
    ------
    InputError
        If an argument is invalid, or a layer does not have the format's pattern.
    DeviceError
        If the device has no kernels for the format; the message says what to use instead.
    """
    _validate.word("to_sparse", "format", format, ("csr", "2:4"))
    done = finish(model)
    found = compressed_layers.chosen("to_sparse", done, skip)
    if format == "2:4":
        return _semi_structured(done, found)
    for name, layer in found.items():
        if layer.weight.device.type == "mps":
            raise DeviceError(
                "to_sparse: PyTorch has no CSR products on Apple's GPU; expected a CPU or CUDA "
                "device. Use model.cpu() first."
            )
        if isinstance(layer, torch.nn.Conv2d) and layer.groups != 1:
            continue  # a grouped convolution stays dense
        with _quiet():
            done = compressed_layers.replace(done, name, Sparse(layer).eval())
    return done


def _semi_structured(model: Any, found: dict[str, Any]) -> Any:
    fits = {name: layer for name, layer in found.items() if isinstance(layer, torch.nn.Linear)}
    if not fits:
        raise InputError(
            "to_sparse: format='2:4' and no linear layer; expected at least one. Use format='csr'."
        )
    for name, layer in fits.items():
        weight = layer.weight.detach()
        reason = compressed_layers.two_four_refusal(weight.device)
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


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Leave out PyTorch's note that its sparse formats are in beta: it would stand once a process,
    in the middle of a lesson.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*is in (beta|prototype).*")
        yield
