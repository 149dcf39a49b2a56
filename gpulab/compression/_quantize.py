"""Quantization after training, with or without calibration, and quantization-aware training.

``quantize`` makes a model to ship; ``quantize_aware`` makes one to train, which ``finish`` turns
into one to ship. The scheme (a scale for each channel or one a layer, inputs rounded or not) is
apart from the arithmetic that runs it: float32 on rounded values everywhere, PyTorch's integer
kernels on a CPU, torchao's on what it supports.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from gpulab import _given
from gpulab.compression import _targets, _torchao, integer_layers
from gpulab.compression._finish import finish
from gpulab.compression._ranges import Scheme
from gpulab.errors import InputError, message_of, shown

WEIGHTS = ("per-channel", "per-tensor")
ARITHMETIC = ("float", "integer", "torchao")
# The share of the newest batch in a followed range. Jacob et al. (2018) smooth over thousands of
# steps; a course's run has a hundred.
_MOMENTUM = 0.1


def quantize(
    model: Any,
    weights: str = "per-channel",
    activations: str | None = None,
    *,
    bits: int = 8,
    calibration: Any = None,
    arithmetic: str = "float",
    layers: Iterable[str] | None = None,
    skip: Iterable[str] = (),
    percentile: float = 100.0,
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
    layers, skip : iterable of str, optional
        Names of layers to quantize (all), and of those to leave in float32.
    percentile : float
        For "static": the range ends at this percentile of a batch's calibration values and begins
        at 100 minus it; 100 takes the largest and the smallest value.

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
    _given.word("quantize", "arithmetic", arithmetic, ARITHMETIC)
    if (calibration is not None) != (activations == "static"):
        raise InputError(
            f"quantize: calibration={'given' if calibration is not None else None} with "
            f"activations={activations!r}; expected calibration with 'static', and only then. Pass "
            "calibration=x with activations='static'."
        )
    done = finish(model)
    found = _targets.chosen("quantize", done, layers, skip)
    if arithmetic == "torchao":
        return _torchao.quantized(done, found, scheme)
    if arithmetic == "integer":
        return _with_integers(done, found, scheme)
    from gpulab.compression._modules import Quantized

    ranges: dict[str, Any] = {}
    if activations == "static":
        ranges = observe(done, found, calibration, percentile)
    for name, layer in found.items():
        low, high = ranges.get(name, (None, None))
        done = _targets.replace(done, name, Quantized(layer, scheme, low, high).eval())
    return done


def quantize_aware(
    model: Any,
    weights: str = "per-channel",
    activations: str | None = None,
    *,
    bits: int = 8,
    layers: Iterable[str] | None = None,
    skip: Iterable[str] = (),
) -> Any:
    """Return a copy for quantization-aware training: it rounds in the forward pass only. ``finish``
    makes it a quantized model.

    Parameters
    ----------
    model : torch.nn.Module
        Usually trained already; masks of a pruned model are kept.
    weights, activations, bits, layers, skip
        As for ``quantize``; the range of "static" inputs is followed while the model trains and
        frozen in evaluation.

    Raises
    ------
    InputError
        If an argument is invalid, or a finished layer does not support a convolution's padding.
    """
    from gpulab.compression._modules import Aware, check_padding

    scheme = _scheme("quantize_aware", weights, activations, bits)
    copied = _targets.duplicate("quantize_aware", model)
    for name, layer in _targets.chosen("quantize_aware", copied, layers, skip).items():
        check_padding(layer)  # before the training and not after it, when ``finish`` would refuse
        new = Aware(layer, scheme, _MOMENTUM)
        copied = _targets.replace(copied, name, new.train(layer.training))
    return copied


def _scheme(function: str, weights: Any, activations: Any, bits: Any) -> Scheme:
    _given.word(function, "weights", weights, WEIGHTS)
    if activations is not None:
        _given.word(function, "activations", activations, ("dynamic", "static"))
    return Scheme(weights, _targets.whole(function, "bits", bits, 2, 8), activations, 8)


def _with_integers(done: Any, found: dict[str, Any], scheme: Scheme) -> Any:
    from gpulab.compression._modules import Integer, Quantized

    if scheme.activations != "dynamic" or scheme.bits != 8:
        raise InputError(
            f"quantize: arithmetic='integer' with activations={scheme.activations!r} and "
            f"bits={scheme.bits}; expected 'dynamic' and bits=8, for which PyTorch has CPU "
            "kernels. Pass these, or arithmetic='float'."
        )
    integer_layers.check(next(iter(found.values())).weight.device)
    refused = integer_layers.refusal("cpu", convolution=True)
    integers = Scheme(scheme.weights, 8, "dynamic", integer_layers.activation_bits())
    for name, layer in found.items():
        # a convolution without such a kernel keeps its integers and computes in float32
        stays = refused and hasattr(layer, "groups")
        done = _targets.replace(
            done, name, (Quantized(layer, scheme) if stays else Integer(layer, integers)).eval()
        )
    return done


def observe(
    model: Any, found: dict[str, Any], calibration: Any, percentile: float = 100.0
) -> dict[str, tuple[Any, Any]]:
    """Return the smallest and largest input of each layer, as 0-dimensional tensors, over the
    calibration inputs.

    Raises
    ------
    InputError
        If there is no input, one is not finite, or the model raises on it.
    """
    import torch

    if not _given.is_finite(percentile) or not 50 < percentile <= 100:
        raise InputError(
            f"quantize: percentile={shown(percentile)}; expected a number over 50, up to 100. "
            "Leave it out for 100."
        )
    batches = (
        [calibration]
        if isinstance(calibration, torch.Tensor)
        else _given.items("quantize", "calibration", calibration)
    )
    if not batches or not all(isinstance(each, torch.Tensor) and each.numel() for each in batches):
        raise InputError(
            "quantize: calibration has no inputs; expected a tensor of them, or several. Pass a "
            "few hundred of the training inputs."
        )
    seen: dict[str, list[tuple[Any, Any]]] = {name: [] for name in found}

    def watch(name: str) -> Callable[..., None]:
        def look(_: Any, inputs: tuple[Any, ...]) -> None:
            seen[name].append(_ends(inputs[0].detach(), percentile))

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


def _ends(x: Any, percentile: float) -> tuple[Any, Any]:
    import torch

    if percentile == 100:
        low, high = torch.aminmax(x)
        return low, high
    flat, beyond = x.flatten().float().sort().values, (100 - percentile) / 100
    first = int(beyond * (flat.numel() - 1))
    return flat[first], flat[flat.numel() - 1 - first]
