"""Fewer different values: quantization after or during training, and weight sharing.

``quantize`` makes a model to ship; ``quantize_aware`` makes one to train, which ``finish`` turns
into one to ship. The scheme (a scale for each channel or one a layer, inputs rounded or not) is
apart from the arithmetic that runs it: float32 on rounded values everywhere, PyTorch's integer
kernels on a CPU, torchao's on what it supports.

``share_weights`` makes a layer's weights a few values, its codebook, and each weight a short index
into it: k-means on the weights of each layer (Han, Mao, Dally, "Deep Compression", ICLR 2016,
section 3). Start values are spread evenly over the range, which that paper found better than random
ones; then Lloyd's steps run until nothing changes. Zeros of a pruned layer stay zero and take no
entry.
"""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.nn.utils import parametrize

from gpulab import _validate
from gpulab.compression import compressed_layers
from gpulab.compression.compressed_layers import (
    Aware,
    Codebook,
    Integer,
    Mask,
    Quantized,
    Scheme,
    check_padding,
    finish,
)
from gpulab.errors import (
    DeviceError,
    InputError,
    MissingLibraryError,
    message_of,
    pip_command,
)

WEIGHTS = ("per-channel", "per-tensor")
ARITHMETIC = ("float", "integer", "torchao")
# The share of the newest batch in a followed range. Jacob et al. (2018) smooth over thousands of
# steps; a course's run has a hundred.
_MOMENTUM = 0.1
# In one dimension Lloyd's steps settle after a few dozen; a cap keeps a strange weight from going
# on for ever.
_MOST_STEPS = 200


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
        Trained; pruned or shared before, if you like (zeros stay zero). It is not changed.
    weights : str
        "per-channel", a scale for each output channel; or "per-tensor", one for the layer.
    activations : str or None
        None leaves the layers' inputs in float32; "dynamic" rounds them to 8 bits by the range of
        each batch; "static" by the range that ``calibration`` showed.
    bits : int
        Of a weight, 2 to 8. Inputs have 8 (7 in integer arithmetic on an x86 CPU where PyTorch
        reports no AVX-512 VNNI: 16-bit sums would overflow).
    calibration : tensor or iterable of tensors, optional
        Inputs of the model, for "static", like those that it will get in use.
    arithmetic : str
        "float": float32 on the rounded values, on any device; saves memory, not time. "integer":
        PyTorch's 8-bit CPU kernels (needs activations="dynamic" and bits=8). "torchao": PyTorch's
        library for it, linear layers, 8 bits, per channel.
    skip : iterable of str, optional
        Names of layers to leave in float32.

    Returns
    -------
    torch.nn.Module
        In evaluation mode, not to be trained further.

    Raises
    ------
    InputError
        If an argument is invalid, or two arguments contradict each other.
    DeviceError
        If the device has no such integer kernels; the message says what to use instead.

    Examples
    --------
    >>> from gpulab import compression, networks
    >>> small = compression.quantize(networks.mlp(8, 16, 4))
    >>> small.layers[1].codes.dtype
    torch.int8
    """
    scheme = _scheme("quantize", weights, activations, bits)
    _validate.word("quantize", "arithmetic", arithmetic, ARITHMETIC)
    if (calibration is not None) != (activations == "static"):
        raise InputError(
            f"quantize: calibration={'given' if calibration is not None else None} with "
            f"activations={activations!r}; expected calibration with 'static', and only then. Pass "
            "calibration=x with activations='static'."
        )
    done = finish(model)
    found = compressed_layers.chosen("quantize", done, skip)
    if arithmetic == "torchao":
        return _with_torchao(done, found, scheme)
    if arithmetic == "integer":
        return _with_integers(done, found, scheme)
    ranges: dict[str, Any] = {}
    if activations == "static":
        ranges = observe(done, found, calibration)
    for name, layer in found.items():
        low, high = ranges.get(name, (None, None))
        done = compressed_layers.replace(done, name, Quantized(layer, scheme, low, high).eval())
    return done


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
    """
    scheme = _scheme("quantize_aware", weights, activations, bits)
    copied = compressed_layers.duplicate("quantize_aware", model)
    for name, layer in compressed_layers.chosen("quantize_aware", copied, skip).items():
        check_padding(layer)  # before the training and not after it, when ``finish`` would refuse
        new = Aware(layer, scheme, _MOMENTUM)
        copied = compressed_layers.replace(copied, name, new.train(layer.training))
    return copied


def _scheme(function: str, weights: Any, activations: Any, bits: Any) -> Scheme:
    _validate.word(function, "weights", weights, WEIGHTS)
    if activations is not None:
        _validate.word(function, "activations", activations, ("dynamic", "static"))
    return Scheme(weights, _validate.whole(function, "bits", bits, 2, 8), activations, 8)


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
        # a convolution without such a kernel keeps its integers and computes in float32
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

    def watch(name: str) -> Callable[..., None]:
        def look(_: Any, inputs: tuple[Any, ...]) -> None:
            seen[name].append(torch.aminmax(inputs[0].detach()))

        return look

    hooks = [layer.register_forward_pre_hook(watch(name)) for name, layer in found.items()]
    try:
        with torch.no_grad():
            for batch in batches:
                model(batch)
    except Exception as error:
        raise InputError(
            f"quantize: the model raised {message_of(error)} on a calibration input; expected "
            "inputs like the training's."
        ) from error
    finally:
        for hook in hooks:
            hook.remove()
    found_ranges = {}
    for name, ends in seen.items():
        if not ends:
            raise InputError(
                f"quantize: no calibration input reached {name}; expected every layer to run. Skip "
                "that layer."
            )
        low, high = (
            torch.stack([low for low, _ in ends]).amin(),
            torch.stack([high for _, high in ends]).amax(),
        )
        if not bool(torch.isfinite(low) & torch.isfinite(high)):
            raise InputError(
                f"quantize: the inputs of {name} reach {float(low)} and {float(high)} in "
                "calibration; expected finite ones."
            )
        found_ranges[name] = (low, high)
    return found_ranges


def share_weights(model: Any, clusters: int = 16, *, skip: Iterable[str] = ()) -> Any:
    """Return a copy whose layers each have only ``clusters`` different weights, ready to be
    fine-tuned: the codebooks are what is trained.

    Parameters
    ----------
    model : torch.nn.Module
        It is not changed. Masks of a pruned model are kept: its zeros stay.
    clusters : int
        Entries of each layer's codebook, 2 to 256; an index takes log2 of that many bits, rounded
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
    """
    copied = compressed_layers.duplicate("share_weights", model)
    clusters = _validate.whole("share_weights", "clusters", clusters, 2, 256)
    for layer in compressed_layers.chosen("share_weights", copied, skip).values():
        _share(layer, clusters)
    return copied


def _share(layer: Any, clusters: int) -> None:
    kept = None
    if parametrize.is_parametrized(layer, "weight"):
        if any(not isinstance(each, Mask) for each in layer.parametrizations.weight):
            raise InputError(
                "share_weights: the model's weights are shared already; expected plain or masked "
                "ones. Begin with the plain model."
            )
        kept = layer.parametrizations.weight[0].mask != 0
        compressed_layers.plain(layer)
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


def _with_torchao(model: Any, found: dict[str, Any], scheme: Scheme) -> Any:
    """Quantize the linear layers in place with torchao and return the model.

    Raises
    ------
    InputError
        If the scheme is not supported here, or there is no linear layer.
    MissingLibraryError
        If torchao is not installed.
    DeviceError
        If torchao refuses this device.
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
            "quantize: arithmetic='torchao' and no linear layer; expected at least one, since "
            "torchao leaves convolutions as they are. Use arithmetic='integer' on a CPU, or "
            "'float'."
        )
    with quiet_torchao():
        try:
            from torchao import quantization
        except ImportError as error:
            raise MissingLibraryError(
                "quantize: torchao is not installed; expected it to be. Run "
                f"{pip_command('install torchao')}."
            ) from error
        make = (
            quantization.Int8DynamicActivationInt8WeightConfig
            if scheme.activations
            else quantization.Int8WeightOnlyConfig
        )
        try:
            quantization.quantize_(model, make(version=2), filter_fn=lambda _, name: name in linear)
        except Exception as error:
            raise DeviceError(
                f"quantize: torchao refused ({message_of(error)}); expected a device it supports. "
                "Use arithmetic='float'."
            ) from error
    return model.eval()


@contextlib.contextmanager
def quiet_torchao() -> Iterator[None]:
    """Silence warnings about libraries that this machine cannot load while torchao is imported;
    errors pass.

    The messages are warnings of its loggers and of Python's warnings module: none concerns the CPU,
    and a learner can do nothing about them.
    """
    loggers = [logging.getLogger(name) for name in ("torchao", "torch.utils._pytree")]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)
