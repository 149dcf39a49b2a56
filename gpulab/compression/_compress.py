"""Pruning, sparse formats, quantization and weight sharing.

Pruning sets the smallest weights to zero, or removes whole channels. Importance is the magnitude of
a weight (Han et al., "Learning both Weights and Connections", NeurIPS 2015), and for a channel the
norm of its filter, scaled as the following batch norm scales it (after Li et al., "Pruning Filters
for Efficient ConvNets", ICLR 2017). Sparse formats store and multiply only nonzero weights, where a
device has kernels for them.

To remove channels, the model is traced with ``torch.fx``. A layer can lose an output channel if
every reader of the channel is known: its output passes only through modules that treat each channel
by itself (batch norms, activations, pooling, depthwise convolutions) and then enters linear or
convolutional layers, whose weights for that channel are removed too. A sum with another branch (a
residual connection) ties channels of several layers together; those layers keep all channels.

``quantize`` makes a model to ship; ``quantize_aware`` makes a model to train, which ``finish``
turns into one to ship. The scheme (a scale for each channel or for each layer, inputs rounded or
not) is independent of the arithmetic that runs it: float32 on rounded values on any device,
PyTorch's integer kernels on a CPU, or torchao's kernels where it has them.

``share_weights`` restricts a layer's weights to a few values, its codebook; each weight becomes a
short index into it: k-means on the weights of each layer (Han, Mao, Dally, "Deep Compression", ICLR
2016, section 3). The start values are spread evenly over the range, which the paper found better
than random values; then Lloyd's steps run until nothing changes. Zeros of a pruned layer stay zero
and need no entry.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import fx, nn
from torch.nn.utils import parametrize

from gpulab import _validate, devices
from gpulab.compression import compressed_layers
from gpulab.compression.compressed_layers import (
    Aware,
    Codebook,
    Integer,
    Mask,
    Quantized,
    Scheme,
    Sparse,
    check_padding,
    finish,
)
from gpulab.errors import DeviceError, InputError

# -------------------------------------------------------------------------------------------------
# Pruning and sparse formats.


# Of every four neighbors in a row of the weight matrix two are kept: the pattern that NVIDIA's
# sparse Tensor Cores accept (Mishra et al., "Accelerating Sparse Deep Neural Networks",
# arXiv:2104.08378, section 3).
_GROUP, _KEPT = 4, 2
# Operations that treat each channel by itself: functions, modules, and modules for images.
_FUNCTIONS = ("relu", "relu_", "gelu", "silu", "hardswish", "sigmoid", "tanh", "dropout")
_EACH = (
    *(nn.ReLU, nn.ReLU6, nn.GELU, nn.SiLU, nn.Hardswish, nn.LeakyReLU),
    *(nn.Sigmoid, nn.Tanh, nn.Identity, nn.Dropout, nn.Dropout2d),
)
_POOLING = (nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d)


@_validate.arguments(
    amount=compressed_layers.share,
    structured=_validate.flag,
    pattern=partial(_validate.word, known=("2:4",)),
)
def prune(
    model: Any,
    amount: float = 0.5,
    *,
    structured: bool = False,
    pattern: str | None = None,
    skip: Iterable[str] = (),
) -> Any:
    """Return a pruned copy of a model, ready to be fine-tuned: pruned weights stay zero in
    training, and removed channels are gone.

    Parameters
    ----------
    model : torch.nn.Module
        It is not changed. A pruned model can be pruned further: ``amount`` includes the weights
        that are zero already.
    amount : float
        The share of weights to set to zero (the smallest of all layers together), or the share of
        channels to remove from each layer; 0 to 0.9999.
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
        With masks on its weights (``compression.finish`` turns them into plain weights), or with
        smaller layers.

    Raises
    ------
    InputError
        If an argument is not usable, no layer is left, or no layer can lose a channel without
        affecting other layers.

    Examples
    --------
    >>> import torch
    >>> from gpulab import compression
    >>> small = compression.prune(torch.nn.Sequential(torch.nn.Linear(8, 16)), 0.75)
    >>> float((small[0].weight == 0).double().mean())
    0.75
    """
    copied = compressed_layers.duplicate("prune", model)
    found = compressed_layers.chosen("prune", copied, skip)
    if structured:
        if pattern is not None:
            raise InputError(
                f"prune: pattern={pattern!r} with structured=True; expected one of the two. Leave "
                "pattern out."
            )
        return _remove_channels(copied, found, amount)
    if pattern is not None:
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
        name: part.view_as(weight).to(weight.dtype)
        for name, part, weight in zip(found, parts, weights, strict=True)
    }


def two_of_four(weight: Any) -> Any:
    """Return the mask that keeps the two largest of every four neighbors in a row of the weight
    matrix; a remainder of fewer than four is kept whole.
    """
    rows = weight.detach().abs().flatten(1)
    whole = rows.shape[1] // _GROUP * _GROUP
    groups = rows[:, :whole].reshape(-1, _GROUP)
    order = torch.argsort(groups, dim=1, descending=True, stable=True)
    kept = torch.zeros_like(groups).scatter_(1, order[:, :_KEPT], 1.0).view(rows.shape[0], whole)
    return torch.cat([kept, torch.ones_like(rows[:, whole:])], dim=1).view_as(weight)


def _put(layer: Any, mask: Any) -> None:
    """Give a layer a mask. If the layer already has a mask, the two are combined: a weight that
    either sets to zero is zero.
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
            "output enters only layers that can be cut with it. Prune single weights instead "
            "(structured=False)."
        )
    for chain in found:
        _shrink(model, chain, amount)
    return model


class _Chain(NamedTuple):
    """One layer that can lose output channels, and the layers that change with it.

    Attributes
    ----------
    producer : str
        The layer.
    followers : list of str
        Modules in between that have one value or one filter per channel: batch norms and depthwise
        convolutions.
    consumers : list of str
        Layers that read the channels.
    """

    producer: str
    followers: list[str]
    consumers: list[str]


def _chains(model: Any) -> list[_Chain]:
    """Return the layers that can lose channels, in the order of the model.

    Raises
    ------
    InputError
        If ``torch.fx`` cannot follow the model's code.
    """
    takes_targets = "targets" in inspect.signature(model.forward).parameters
    with devices.guard(
        "prune: following the model with torch.fx",
        "code without branches on its values. Prune single weights (structured=False).",
    ):
        graph = fx.Tracer().trace(model, concrete_args={"targets": None} if takes_targets else None)
    nodes = [node for node in graph.nodes if node.op == "call_module"]
    owners = Counter(id(p) for _, p in model.named_parameters(remove_duplicate=False))
    uses = Counter(node.target for node in nodes)
    # modules that run once and share their weight with no other
    modules = {
        name: each
        for name, each in model.named_modules()
        if uses[name] == 1 and owners[id(getattr(each, "weight", None))] <= 1
    }
    found = (
        _chain(node, modules)
        for node in nodes
        if isinstance(modules.get(node.target), (nn.Linear, nn.Conv2d))
        and getattr(modules[node.target], "groups", 1) == 1
    )
    return [chain for chain in found if chain is not None]


def _chain(start: Any, modules: Mapping[str, Any]) -> _Chain | None:
    """Follow a layer's output to all its readers, and return the chain; None if a reader is not
    known to keep channels apart, or there is no reader.
    """
    producer = modules[start.target]
    channels, is_image = producer.weight.shape[0], isinstance(producer, nn.Conv2d)
    chain = _Chain(start.target, [], [])
    # (node, whether the channels are the second dimension, as in an image). If not, they are the
    # last dimension, in which a flattened image has several values per channel.
    passed = [(start, is_image)]
    for node, spread in passed:
        for user in node.users:
            layer = modules.get(user.target) if user.op == "call_module" else None
            known = getattr(user.target, "__name__", "") in _FUNCTIONS or isinstance(layer, _EACH)
            if known or (spread and isinstance(layer, _POOLING)):
                passed.append((user, spread))
            elif spread and isinstance(layer, nn.Flatten) and layer.start_dim == 1:
                passed.append((user, False))
            elif (
                # depthwise: the filter of a channel is removed with it
                spread
                and isinstance(layer, nn.Conv2d)
                and layer.groups == channels == layer.out_channels > 1
            ) or (
                spread == is_image
                and isinstance(layer, nn.modules.batchnorm._BatchNorm)
                and layer.num_features == channels
            ):
                chain.followers.append(user.target)
                passed.append((user, spread))
            elif (
                spread
                and isinstance(layer, nn.Conv2d)
                and layer.groups == 1
                and layer.in_channels == channels
            ) or (
                not spread
                and isinstance(layer, nn.Linear)
                and (
                    layer.in_features % channels == 0 if is_image else layer.in_features == channels
                )
            ):
                chain.consumers.append(user.target)
            else:
                return None
        if not node.users:
            return None
    return chain if chain.consumers else None


def _shrink(model: Any, chain: _Chain, amount: float) -> None:
    channels = model.get_submodule(chain.producer).weight.shape[0]
    kept = max(1, channels - int(amount * channels + 1e-9))
    order = torch.argsort(_importance(model, chain), descending=True, stable=True)
    keep = order[:kept].sort().values
    for name in (chain.producer, *chain.followers):
        layer = model.get_submodule(name)
        sizes = ["out_channels", "out_features", "num_features"]
        if getattr(layer, "groups", 1) > 1:
            sizes += ["groups", "in_channels"]
        _cut(layer, keep, ("weight", "bias", "running_mean", "running_var"), sizes, kept)
    for name in chain.consumers:
        layer = model.get_submodule(name)
        # after a flattened image there are several values per channel
        values = layer.weight.shape[1] // channels
        columns = (keep[:, None] * values + torch.arange(values, device=keep.device)).flatten()
        part = (slice(None), columns)
        _cut(layer, part, ("weight",), ("in_channels", "in_features"), len(columns))


def _cut(layer: Any, part: Any, tensors: Iterable[str], sizes: Iterable[str], size: int) -> None:
    """Cut the named tensors of a layer to a part, in place, and set the named sizes; names that the
    layer lacks are skipped.
    """
    for name in tensors:
        old = getattr(layer, name, None)
        if old is not None:
            new = old.detach()[part].clone().contiguous()
            if isinstance(old, torch.nn.Parameter):
                new = torch.nn.Parameter(new, requires_grad=old.requires_grad)
            setattr(layer, name, new)
    for name in sizes:
        if hasattr(layer, name):
            setattr(layer, name, size)


def _importance(model: Any, chain: _Chain) -> Any:
    """Return one value per channel: the norm of its filter, as the batch norms and depthwise
    filters that follow scale it.
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


# The 2:4 format stores half of each row of the weight matrix, in tiles. These are the smallest
# multiples of rows and columns that PyTorch's kernels accept in half precision
# (torch/sparse/semi_structured.py).
_TILES = (
    "float16 or bfloat16 with multiples of 32 rows and 64 columns. Convert with model.half(), or "
    "skip this layer."
)


@_validate.arguments(format=partial(_validate.word, known=("csr", "2:4")))
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
        "csr" on any device (compressed sparse rows: each value is stored with its column's index),
        or "2:4" on an NVIDIA GPU of compute capability 8.0 or newer (linear layers in half
        precision, pruned with ``pattern="2:4"``).
    skip : iterable of str, optional
        Names of layers to leave dense.

    Raises
    ------
    InputError
        If an argument is invalid, or a layer does not have the format's pattern.
    DeviceError
        If the device has no kernels for the format; the message says what to use instead.
    """
    done = finish(model)
    found = compressed_layers.chosen("to_sparse", done, skip)
    if format == "2:4":
        return _semi_structured(done, found)
    for name, layer in found.items():
        if isinstance(layer, torch.nn.Conv2d) and layer.groups != 1:
            continue  # a grouped convolution stays dense
        with compressed_layers.quiet():
            done = compressed_layers.replace(done, name, Sparse(layer).eval())
    return done


def _semi_structured(model: Any, found: dict[str, Any]) -> Any:
    fits = {name: layer for name, layer in found.items() if isinstance(layer, torch.nn.Linear)}
    if not fits:
        raise InputError(
            "to_sparse: format='2:4', but there is no linear layer; expected at least one. Use "
            "format='csr'."
        )
    for name, layer in fits.items():
        weight = layer.weight.detach()
        reason = compressed_layers.two_four_refusal(weight.device)
        if reason:
            raise DeviceError(f"to_sparse: {reason} Use format='csr', or keep the dense weights.")
        if not torch.equal(weight * two_of_four(weight).to(weight.dtype), weight):
            raise InputError(
                f"to_sparse: layer {name} has more than two nonzero weights among four neighbors; "
                "expected two at most. Prune with pattern='2:4' first."
            )
        with compressed_layers.quiet(), devices.guard(f"to_sparse: storing {name}", _TILES):
            layer.weight = torch.nn.Parameter(
                torch.sparse.to_sparse_semi_structured(weight), requires_grad=False
            )
    return model


# -------------------------------------------------------------------------------------------------
# Quantization.


# The weight of the newest batch in a range that is followed during training. Jacob et al. (2018)
# smooth over thousands of steps; a run of the course has about a hundred.
_MOMENTUM = 0.1
# In one dimension Lloyd's algorithm converges within a few dozen steps; the cap ends it for unusual
# weights too.
_MOST_STEPS = 200


# Checks of the arguments that ``quantize`` and ``quantize_aware`` have in common.
_SCHEME: Mapping[str, Callable[[str, str, Any], Any]] = {
    "weights": partial(_validate.word, known=("per-channel", "per-tensor")),
    "activations": partial(_validate.word, known=("dynamic", "static")),
    "bits": partial(_validate.whole, low=2, high=8),
}


@_validate.arguments(
    **_SCHEME, arithmetic=partial(_validate.word, known=("float", "integer", "torchao"))
)
def quantize(
    model: Any,
    weights: str = "per-channel",
    activations: str | None = None,
    *,
    bits: int = 8,
    calibration: Any = None,
    arithmetic: str = "float",
    skip: Iterable[str] = (),
) -> Any:
    """Return a finished copy whose layers keep integers and scales in place of their weights.

    Parameters
    ----------
    model : torch.nn.Module
        A trained model, which may be pruned or have shared weights (zeros stay zero). It is not
        changed.
    weights : str
        "per-channel", a scale for each output channel; or "per-tensor", one scale for the layer.
    activations : str or None
        None leaves the layers' inputs in float32; "dynamic" rounds them to 8 bits by the range of
        each batch; "static" rounds them to 8 bits by the range seen in ``calibration``.
    bits : int
        Of a weight, 2 to 8. Inputs have 8 (7 in integer arithmetic on an x86 CPU where PyTorch
        reports no AVX-512 VNNI: 16-bit sums would overflow).
    calibration : tensor or iterable of tensors, optional
        Inputs of the model for "static", similar to those of later use.
    arithmetic : str
        "float": float32 on the rounded values, on any device; saves memory, not time. "integer":
        PyTorch's 8-bit CPU kernels (needs activations="dynamic" and bits=8). "torchao": PyTorch's
        quantization library; for linear layers, 8 bits, per channel.
    skip : iterable of str, optional
        Names of layers to leave in float32.

    Returns
    -------
    torch.nn.Module
        In evaluation mode; it cannot be trained further.

    Raises
    ------
    InputError
        If an argument is invalid, or two arguments contradict each other.
    DeviceError
        If the device lacks the requested integer kernels; the message says what to use instead.

    Examples
    --------
    >>> from gpulab import compression, networks
    >>> small = compression.quantize(networks.mlp(8, 16, 4))
    >>> small.layers[1].codes.dtype
    torch.int8
    >>> compression.quantize(networks.mlp(8, 16, 4), skip=["layers.1"]).layers[1]
    Linear(in_features=8, out_features=16, bias=True)
    """
    scheme = Scheme(weights, bits, activations, 8)
    if (calibration is not None) != (activations == "static"):
        raise InputError(
            f"quantize: {'calibration' if calibration is not None else 'no calibration'} with "
            f"activations={activations!r}; expected calibration with 'static', and only with it. "
            "Pass calibration=x with activations='static'."
        )
    done = finish(model)
    found = compressed_layers.chosen("quantize", done, skip)
    if arithmetic == "torchao":
        return _with_torchao(done, found, scheme)
    if arithmetic == "integer":
        return _with_integers(done, found, scheme)
    ranges = observe(done, found, calibration) if activations == "static" else {}
    for name, layer in found.items():
        quantized = Quantized(layer, scheme, ranges.get(name)).eval()
        done = compressed_layers.replace(done, name, quantized)
    return done


@_validate.arguments(**_SCHEME)
def quantize_aware(
    model: Any,
    weights: str = "per-channel",
    activations: str | None = None,
    *,
    bits: int = 8,
    skip: Iterable[str] = (),
) -> Any:
    """Return a copy for quantization-aware training: it rounds in the forward pass only. ``finish``
    makes it a quantized model.

    Parameters
    ----------
    model : torch.nn.Module
        Usually trained already; masks of a pruned model are kept.
    weights, activations, bits, skip
        As for ``quantize``; the range of "static" inputs is followed while the model trains and
        frozen in evaluation.

    Raises
    ------
    InputError
        If an argument is invalid, or a finished layer does not support a convolution's padding.

    Examples
    --------
    >>> from gpulab import compression, networks
    >>> aware = compression.quantize_aware(networks.mlp(8, 16, 4), skip=["layers.1"])
    >>> compression.finish(aware).layers[1]
    Linear(in_features=8, out_features=16, bias=True)
    """
    scheme = Scheme(weights, bits, activations, 8)
    copied = compressed_layers.duplicate("quantize_aware", model)
    for name, layer in compressed_layers.chosen("quantize_aware", copied, skip).items():
        check_padding(layer)  # refuse here, not after the training in ``finish``
        aware = Aware(layer, scheme, _MOMENTUM).train(layer.training)
        copied = compressed_layers.replace(copied, name, aware)
    return copied


def _with_integers(done: Any, found: dict[str, Any], scheme: Scheme) -> Any:
    if scheme.activations != "dynamic" or scheme.bits != 8:
        raise InputError(
            f"quantize: arithmetic='integer' with activations={scheme.activations!r} and "
            f"bits={scheme.bits}; expected 'dynamic' and bits=8, for which PyTorch has CPU "
            "kernels. Pass these, or arithmetic='float'."
        )
    if reason := compressed_layers.refusal(next(iter(found.values())).weight.device):
        raise DeviceError(
            f"quantize: {reason} Expected a CPU with them. Use arithmetic='torchao', or 'float' "
            "for the same numbers."
        )
    refused = compressed_layers.refusal("cpu", convolution=True)
    integers = Scheme(scheme.weights, 8, "dynamic", compressed_layers.activation_bits())
    for name, layer in found.items():
        # without an integer kernel, a convolution keeps integer weights and computes in float32
        stays = refused and hasattr(layer, "groups")
        done = compressed_layers.replace(
            done, name, (Quantized(layer, scheme) if stays else Integer(layer, integers)).eval()
        )
    return done


def observe(model: Any, found: dict[str, Any], calibration: Any) -> dict[str, tuple[Any, Any]]:
    """Return the smallest and largest input of each layer, as 0-dimensional tensors, over the
    calibration inputs.

    Raises
    ------
    InputError
        If there is no input, one is not finite, or the model raises on it.
    """
    batches = (
        [calibration]
        if isinstance(calibration, torch.Tensor)
        else _validate.items("quantize", "calibration", calibration)
    )
    if not batches or not all(isinstance(each, torch.Tensor) and each.numel() for each in batches):
        raise InputError(
            "quantize: calibration has no inputs; expected a tensor of them, or several. Pass a "
            "few hundred of the training inputs."
        )
    seen: dict[str, list[tuple[Any, Any]]] = {name: [] for name in found}
    for name, layer in found.items():  # hooks on a copy, whose layers are replaced later
        layer.register_forward_pre_hook(
            lambda _, inputs, ends=seen[name]: ends.append(torch.aminmax(inputs[0].detach()))
        )
    with (
        torch.no_grad(),
        devices.guard(
            "quantize: running the calibration inputs",
            "inputs like the training's. Pass some of those.",
        ),
    ):
        for batch in batches:
            model(batch)
    found_ranges = {}
    for name, ends in seen.items():
        if not ends:
            raise InputError(
                f"quantize: no calibration input reached {name}; expected every layer to run. Skip "
                "that layer."
            )
        lows, highs = map(torch.stack, zip(*ends, strict=True))
        low, high = lows.amin(), highs.amax()
        if not bool(torch.isfinite(low) & torch.isfinite(high)):
            raise InputError(
                f"quantize: the inputs of {name} reach {float(low)} and {float(high)} in "
                "calibration; expected finite ones. Pass finite inputs, or skip that layer."
            )
        found_ranges[name] = (low, high)
    return found_ranges


def _with_torchao(model: Any, found: dict[str, Any], scheme: Scheme) -> Any:
    """Quantize the linear layers in place with torchao and return the model.

    Raises
    ------
    InputError
        If the scheme is not supported here, there is no linear layer, or torchao refuses this
        device.
    """
    if scheme.weights != "per-channel" or scheme.bits != 8 or scheme.activations == "static":
        raise InputError(
            f"quantize: arithmetic='torchao' with weights={scheme.weights!r}, bits={scheme.bits}, "
            f"activations={scheme.activations!r}; expected per-channel, 8 bits, and None or "
            "'dynamic'. Use arithmetic='float' for other schemes."
        )
    linear = {name for name, layer in found.items() if isinstance(layer, torch.nn.Linear)}
    if not linear:
        raise InputError(
            "quantize: arithmetic='torchao', but there is no linear layer; expected at least one, "
            "since torchao leaves convolutions as they are. Use arithmetic='integer' on a CPU, or "
            "'float'."
        )
    with (
        compressed_layers.quiet(),
        devices.guard("quantize: torchao", "a device that it supports. Use arithmetic='float'."),
    ):
        from torchao import quantization

        make = (
            quantization.Int8DynamicActivationInt8WeightConfig
            if scheme.activations
            else quantization.Int8WeightOnlyConfig
        )
        quantization.quantize_(
            model,
            # Otherwise it sets switches of PyTorch's compiler for the whole process. Before 0.15 it
            # had one version only.
            make(
                set_inductor_config=False,
                **({"version": 2} if "version" in make.__dataclass_fields__ else {}),
            ),
            filter_fn=lambda _, name: name in linear,
        )
    return model.eval()


# -------------------------------------------------------------------------------------------------
# Weight sharing.


@_validate.arguments(clusters=partial(_validate.whole, low=2, high=256))
def share_weights(model: Any, clusters: int = 16, *, skip: Iterable[str] = ()) -> Any:
    """Return a copy whose layers each have only ``clusters`` different weights, ready to be
    fine-tuned: training changes the codebooks.

    Parameters
    ----------
    model : torch.nn.Module
        It is not changed. Masks of a pruned model are kept: its zeros stay.
    clusters : int
        Entries of each layer's codebook, 2 to 256; an index takes log2(``clusters``) bits, rounded
        up.
    skip : iterable of str, optional
        Names of linear and convolutional layers to leave out.

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
    >>> whole = compression.share_weights(networks.mlp(8, 16, 4), 4, skip=["layers.1"])
    >>> len(whole.layers[1].weight.unique()) > 4
    True
    """
    copied = compressed_layers.duplicate("share_weights", model)
    for layer in compressed_layers.chosen("share_weights", copied, skip).values():
        weight = layer.weight.detach()
        kept = torch.ones_like(weight, dtype=torch.bool)
        if parametrize.is_parametrized(layer, "weight"):
            if any(not isinstance(each, Mask) for each in layer.parametrizations.weight):
                raise InputError(
                    "share_weights: the model's weights are shared already; expected plain or "
                    "masked ones. Begin with the plain model."
                )
            kept = layer.parametrizations.weight[0].mask != 0
            compressed_layers.plain(layer)
        # On the CPU, because the means are computed in float64, which not every accelerator has.
        codebook, nearest = (
            each.to(weight.device) for each in k_means(weight[kept].cpu(), clusters)
        )
        indices = torch.full(weight.shape, len(codebook), dtype=torch.int64, device=weight.device)
        indices[kept] = nearest
        layer.weight = torch.nn.Parameter(codebook, layer.weight.requires_grad)
        # unsafe: the weight has another shape than the codebook from which it is computed
        parametrize.register_parametrization(layer, "weight", Codebook(indices), unsafe=True)
    return copied


def k_means(values: Any, clusters: int) -> tuple[Any, Any]:
    """Return the codebook and the indices of a flat tensor: each value gets the index of the
    nearest entry, and each entry is the mean of its values.

    If there are no more different values than clusters, the codebook consists of these values.
    """
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
