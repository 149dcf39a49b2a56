"""Which layers can be compressed, the modules that compression puts in their place, and ``finish``,
which turns a model in training into the model that is shipped.

Only the weights of linear and convolutional layers are compressed: biases and norms have few, and
an embedding is a table from which single rows are read. A weight that two layers share (tied
embeddings) is left alone, since a change in one layer would change the other. So is a weight of a
library's own type (torchao's, 2:4): it is compressed already, and few operators accept it.

``Mask`` and ``Codebook`` are parametrizations: they compute a layer's weight while it is trained.
``Aware`` wraps a layer while it is trained. The other modules take a layer's place in the model
that is shipped.

Weights are symmetric: code = round(weight / scale) from -(2^(b-1) - 1) to 2^(b-1) - 1, so that 0 is
exactly 0 and pruned weights stay zero. Inputs are affine: code = round(x / step) + zero from 0 to
2^b - 1, because the output of a ReLU has no negative values that would need codes. Rounding is to
nearest, ties to even, as in PyTorch.

Linear layers run in FBGEMM or QNNPACK (``torch.ops.quantized``), convolutions in oneDNN
(``torch.ops.onednn``, which PyTorch's own compiler uses). Without VNNI instructions an x86 CPU
multiplies pairs of 8-bit numbers into 16-bit sums, and two products of 8-bit inputs with large
weights overflow such a sum: the answer is wrong, without any error. So inputs have 7 bits there,
and 127 * 127 * 2 fits (PyTorch calls it ``reduce_range``, oneDNN's guide "nuances of int8
computations").

Source: Jacob et al., "Quantization and Training of Neural Networks for Efficient
Integer-Arithmetic-Only Inference", CVPR 2018, sections 2.1 and 3; symmetric weights as in
Krishnamoorthi, arXiv:1806.08342, section 2.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import logging
import math
import platform
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrize

from gpulab import _validate, devices
from gpulab.errors import InputError

# A share of weights or channels: never all of them.
share = functools.partial(_validate.within, high=0.9999, advice="Pass for example 0.5.")


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence warnings of PyTorch and torchao; errors pass.

    The warnings say that a sparse format is in beta, or that this machine cannot load a library of
    torchao. None of them concerns the CPU, and a learner can do nothing about them. Some of
    torchao's come from loggers.
    """
    # only these two loggers: logging.disable would silence the notebook's own, and two threads at
    # once could leave it disabled
    loggers = [logging.getLogger(name) for name in ("torchao", "torch.utils._pytree")]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)


def module(function: str, model: Any) -> Any:
    """Return the model.

    Raises
    ------
    InputError
        If it is not a ``torch.nn.Module``.
    """
    return _validate.instance(
        function,
        "model",
        model,
        torch.nn.Module,
        "a torch.nn.Module. Pass a trained model, such as gl.networks.cnn() after fit.",
    )


def duplicate(function: str, model: Any) -> Any:
    """Return a deep copy of the model; tied weights stay tied.

    Raises
    ------
    InputError
        If it is not a module, or one that cannot be copied.
    """
    module(function, model)
    with devices.guard(
        f"{function}: copying the model",
        "tensors that are parameters or buffers. Build it again and load its state_dict.",
    ):
        return copy.deepcopy(model)


def layers(model: Any) -> dict[str, Any]:
    """Return the linear and convolutional layers by name, except those whose weight another module
    shares or a library packed.
    """
    kinds = (torch.nn.Linear, torch.nn.Conv2d)
    owners = Counter(id(p) for _, p in model.named_parameters(remove_duplicate=False))
    own = ((name, m, weight_of(m)) for name, m in model.named_modules() if isinstance(m, kinds))
    return {
        name: m
        for name, m, weight in own
        if owners[id(weight)] == 1 and type(weight.data) is torch.Tensor
    }


def weight_of(layer: Any) -> Any:
    """Return the parameter behind a layer's weight: the weight itself, or the parameter from which
    a parametrization computes it.
    """
    if parametrize.is_parametrized(layer, "weight"):
        held = layer.parametrizations.weight
        return held.original if hasattr(held, "original") else held.original0
    return layer.weight


def plain(layer: Any) -> None:
    """Replace a layer's parametrizations by the weight that they compute, in place.

    A deep copy of a parametrized layer shares its class with the original, and PyTorch removes the
    computed attribute from that class. So the layer gets a class of its own first; otherwise the
    original would lose its weight.
    """
    kind = type(layer)
    layer.__class__ = type(kind.__name__, kind.__bases__, dict(kind.__dict__))
    parametrize.remove_parametrizations(layer, "weight", leave_parametrized=True)


def chosen(function: str, model: Any, skip: Iterable[str] = ()) -> dict[str, Any]:
    """Return the layers to compress: all but those to skip.

    Raises
    ------
    InputError
        If no layer is left, or a name to skip is not a layer's.
    """
    there = layers(model)
    left_out = [
        _validate.word(function, "skip", name, there)
        for name in _validate.items(function, "skip", skip)
    ]
    found = {name: layer for name, layer in there.items() if name not in left_out}
    if not found:
        raise InputError(
            f"{function}: no layer is left to compress; expected at least one linear or "
            "convolutional layer with a weight of its own. Pass a model with one, or skip fewer."
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
    for each in model.modules():
        # In evaluation the fused path of these would read the new module's weight, not call it.
        if isinstance(each, (nn.TransformerEncoder, nn.TransformerEncoderLayer)):
            each.__dict__.update(use_nested_tensor=False, activation_relu_or_gelu=False)
    return model


def finish(model: Any) -> Any:
    """Return a copy without the parts that only training needs, in evaluation mode.

    Masked and shared weights become plain ones (with their zeros, with their few values); a layer
    trained as if it were quantized becomes a quantized layer. The outputs stay the same. A model
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
    copied = duplicate("finish", model).eval()
    for name, each in list(copied.named_modules()):
        if isinstance(each, Aware):
            static = each.scheme.activations == "static"
            if static and not bool(each.seen):
                raise InputError(
                    f"finish: no input reached {name or 'the layer'} in training, so the range "
                    "that activations='static' rounds to is not known; expected a trained model. "
                    "Train it, or leave the layer out with skip if the model never calls it."
                )
            ends = (each.low, each.high) if static else None
            copied = replace(copied, name, Quantized(each.layer, each.scheme, ends).eval())
    for each in copied.modules():
        if parametrize.is_parametrized(each, "weight"):
            plain(each)
    return copied


_X86 = ("x86_64", "amd64", "i386", "i686")


@dataclass(frozen=True)
class Scheme:
    """How a model is quantized.

    Attributes
    ----------
    weights : str
        "per-channel" (a scale for each output channel) or "per-tensor" (one for the layer).
    bits : int
        Of a weight's code, 2 to 8.
    activations : str or None
        None (inputs stay float32), "dynamic" (range of each batch as it comes) or "static" (range
        from calibration).
    activation_bits : int
        Of an input's code, 2 to 8.
    """

    weights: str
    bits: int
    activations: str | None
    activation_bits: int


def weight_scale(weight: Any, scheme: Scheme) -> Any:
    """Return the scale: a tensor that multiplies the codes, of shape () or (channels, 1, ...)."""
    most = (
        weight.abs().amax(dim=tuple(range(1, weight.dim())), keepdim=True)
        if scheme.weights == "per-channel"
        else weight.abs().amax()
    )
    scale = most / (2 ** (scheme.bits - 1) - 1)
    return scale.masked_fill(scale == 0, 1.0)  # zeros are not divided by 0


def codes(weight: Any, scale: Any, bits: int) -> Any:
    """Return the codes of a weight, as floats that are whole numbers."""
    most = 2 ** (bits - 1) - 1
    return (weight / scale).round().clamp(-most, most)


def input_grid(low: Any, high: Any, bits: int) -> tuple[Any, Any]:
    """Return step and zero point of inputs from ``low`` to ``high``; the range is widened to hold
    0, which padding needs exactly.
    """
    low, high = low.clamp(max=0), high.clamp(min=0)
    most = 2**bits - 1
    step = (high - low) / most
    step = step.masked_fill(step == 0, 1.0)  # zeros are not divided by 0
    return step, (-low / step).round().clamp(0, most)


def round_inputs(x: Any, step: Any, zero: Any, bits: int) -> Any:
    """Return the inputs rounded to the grid; values outside of the grid become its nearest end."""
    return ((x / step).round().add(zero).clamp(0, 2**bits - 1) - zero) * step


def straight_through(x: torch.Tensor, rounded: Callable[[Any], torch.Tensor]) -> torch.Tensor:
    """Return the rounded values whose gradient is that of ``x`` (the straight-through estimator of
    Bengio et al. 2013).
    """
    return x + (rounded(x.detach()) - x.detach())


def activation_bits() -> int:
    """Return how many bits an input may have: 8, or 7 on an x86 CPU where PyTorch reports no
    AVX-512 VNNI.

    There is also an AVX-VNNI, which Intel's Core processors have from the 12th generation on;
    PyTorch does not check for it, and FBGEMM does not use it.
    """
    is_x86 = platform.machine().lower() in _X86
    return 7 if is_x86 and not torch.cpu._is_vnni_supported() else 8


def refusal(device: Any, convolution: bool = False) -> str:
    """Try a tiny layer with integer kernels on a device; return a sentence that says why they
    cannot run, or "" if they can.
    """
    where = devices.find(str(device))
    if not where.is_cpu:
        return (
            "PyTorch's 8-bit kernels for linear layers and convolutions run on CPUs only, not on "
            f"{where.name}."
        )
    plain: dict[str, Any] = {"dtype": torch.float32, "device": "cpu"}  # not the caller's defaults
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            layer = nn.Conv2d(4, 4, 3, **plain) if convolution else nn.Linear(4, 4, **plain)
            scheme = Scheme("per-channel", 8, "dynamic", activation_bits())
            Integer(layer, scheme)(torch.ones(1, 4, 4, 4, **plain))
    except Exception as error:
        kind = "convolutions" if convolution else "linear layers"
        return (
            f"this build of PyTorch has no 8-bit kernels for {kind} on this CPU "
            f"({type(error).__name__})."
        )
    return ""


def two_four_refusal(device: Any) -> str:
    """Return a sentence that says why a device has no 2:4 sparsity, or "" if it has."""
    where = devices.find(str(device))
    is_nvidia = where.torch_type == "cuda" and torch.version.cuda is not None
    if is_nvidia and torch.cuda.get_device_capability(where.index) >= (8, 0):
        return ""
    return (
        "gpulab uses 2:4 kernels only on NVIDIA GPUs of compute capability 8.0 (Ampere) or newer; "
        f"{where.name} is not one."
    )


class Mask(nn.Module):
    """A parametrization: the weight times a mask of zeros and ones, so that pruned weights stay
    zero whatever the optimizer does.
    """

    mask: torch.Tensor

    def __init__(self, mask: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("mask", mask)

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        """Return the weight with zeros where the mask has zeros; their gradient is zero too."""
        return weight * self.mask


class Codebook(nn.Module):
    """A parametrization of shared weights: the trained parameter is the codebook, and each weight
    is one of its entries.

    Index ``clusters`` (one past the end) stands for a zero that is kept.
    """

    indices: torch.Tensor

    def __init__(self, indices: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("indices", indices)

    def forward(self, codebook: torch.Tensor) -> torch.Tensor:
        """Return the weight; the gradient of an entry is the sum over all weights that share it."""
        return torch.cat([codebook, codebook.new_zeros(1)])[self.indices]


class Aware(nn.Module):
    """A layer that is trained as if it were quantized: weights and inputs are rounded in the
    forward pass, and gradients ignore the rounding.

    With "static" activations, the inputs' range is followed in training and frozen in evaluation,
    except that the very first batch sets it in evaluation too.
    """

    low: torch.Tensor
    high: torch.Tensor
    seen: torch.Tensor

    def __init__(self, layer: Any, scheme: Scheme, momentum: float) -> None:
        super().__init__()
        self.layer, self.scheme, self.momentum = layer, scheme, momentum
        if scheme.activations == "static":
            for name, dtype in (("low", None), ("high", None), ("seen", torch.bool)):
                self.register_buffer(name, torch.zeros((), dtype=dtype, device=layer.weight.device))

    @property
    def weight(self) -> Any:
        """The rounded weight, which attention layers read."""
        weight = self.layer.weight
        scale = weight_scale(weight.detach(), self.scheme)
        return straight_through(weight, lambda w: codes(w, scale, self.scheme.bits) * scale)

    @property
    def bias(self) -> Any:
        """The layer's bias."""
        return self.layer.bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the layer's output with rounded weight and inputs."""
        return apply(self.layer, self._inputs(x), self.weight)

    def _inputs(self, x: torch.Tensor) -> torch.Tensor:
        if self.scheme.activations is None:
            return x
        bits, static = self.scheme.activation_bits, self.scheme.activations == "static"
        if static and (self.training or not self.seen):
            self._follow(x.detach())
        ends = (self.low, self.high) if static else torch.aminmax(x.detach())
        step, zero = input_grid(*ends, bits)
        return straight_through(x, lambda v: round_inputs(v, step, zero, bits))

    @torch.no_grad()
    def _follow(self, x: torch.Tensor) -> None:
        """Move the range towards that of this batch; the first batch sets it."""
        low, high = torch.aminmax(x)
        share = torch.where(self.seen, self.momentum, 1.0)
        self.low += share * (low - self.low)
        self.high += share * (high - self.high)
        self.seen.fill_(True)


def apply(layer: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Return the output of a linear or convolutional layer, or of its replacement, computed with
    the given weight.
    """
    if hasattr(layer, "stride"):
        return functional.conv2d(
            x, weight, layer.bias, layer.stride, layer.padding, layer.dilation, layer.groups
        )
    return functional.linear(x, weight, layer.bias)


class Shipped(nn.Module):
    """The base of the compressed layers: it keeps the shape and the bias of the layer that it
    replaces.

    ``form`` says in a word how the weight is stored, for lists of a model's layers.
    """

    form: str
    # The weight in the form that the kernels take, made from the buffers when it is needed. It is
    # not copied with the module, and is discarded when other buffers are loaded.
    _made: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_made": None}

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        self._made = None
        super()._load_from_state_dict(*args, **kwargs)

    @property
    def stored(self) -> int:
        """How many weights it stores."""
        return math.prod(self.weight_shape)

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.convolution = isinstance(layer, nn.Conv2d)
        self.weight_shape = tuple(layer.weight.shape)
        self.groups = layer.groups if self.convolution else 1
        if self.convolution:
            check_padding(layer)
            self.stride, self.padding, self.dilation = layer.stride, layer.padding, layer.dilation
            sizes = zip(layer.kernel_size, layer.dilation, strict=True)
            same = tuple((k - 1) * d // 2 for k, d in sizes)
            self.padding = {"same": same, "valid": (0, 0)}.get(layer.padding, layer.padding)
        self.bias = (
            None
            if layer.bias is None
            else nn.Parameter(layer.bias.detach().clone(), requires_grad=False)
        )

    def extra_repr(self) -> str:
        """Return what distinguishes this layer from others."""
        return (
            f"{'convolution' if self.convolution else 'linear'}, weight {tuple(self.weight_shape)}"
        )


def check_padding(layer: Any) -> None:
    """Refuse a convolution whose padding a finished layer cannot have; other layers pass.

    Raises
    ------
    InputError
        If it pads with values other than zeros, or by different amounts on the two sides.
    """
    if not isinstance(layer, nn.Conv2d):
        return
    if layer.padding_mode != "zeros":
        raise InputError(
            f"compression: a convolution with padding_mode={layer.padding_mode!r}; expected "
            "padding with zeros. Skip that layer by name."
        )
    if layer.padding == "same" and any(
        (k - 1) * d % 2 for k, d in zip(layer.kernel_size, layer.dilation, strict=True)
    ):
        raise InputError(
            'compression: padding="same" with an even kernel; expected an odd one. Skip that layer '
            "by name."
        )


class Quantized(Shipped):
    """A layer that keeps its weight as integers and a scale; the arithmetic is float32 on the
    rounded values.

    The results are those of integer arithmetic (up to float32's rounding of the sum), but the speed
    is not: every call converts the weight to float32.
    """

    form = "integers"
    codes: torch.Tensor
    scale: torch.Tensor
    step: torch.Tensor
    zero: torch.Tensor

    def __init__(self, layer: Any, scheme: Scheme, ends: tuple[Any, Any] | None = None) -> None:
        super().__init__(layer)
        self.scheme = scheme
        weight = layer.weight.detach()
        scale = weight_scale(weight, scheme)
        self.register_buffer("codes", codes(weight, scale, scheme.bits).to(torch.int8))
        self.register_buffer("scale", scale)
        if ends is not None:  # of the inputs' range, for static activations
            step, zero = input_grid(*ends, scheme.activation_bits)
            self.register_buffer("step", step.clone())
            self.register_buffer("zero", zero.clone())

    @property
    def weight(self) -> torch.Tensor:
        """The rounded weight as float32."""
        return self.codes * self.scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the layer's output on rounded inputs, where the scheme rounds them."""
        bits = self.scheme.activation_bits
        if self.scheme.activations == "dynamic":
            low, high = torch.aminmax(x)
            x = round_inputs(x, *input_grid(low, high, bits), bits)
        elif self.scheme.activations == "static":
            x = round_inputs(x, self.step, self.zero, bits)
        return apply(self, x, self.weight)


class Integer(Quantized):
    """A quantized layer with integer arithmetic: PyTorch's CPU kernels multiply 8-bit inputs and
    weights and add in 32 bits.
    """

    form = "int8"

    def forward(self, x: torch.Tensor) -> Any:
        """Return the layer's output in float32; the inputs' range is taken from this batch."""
        if self._made is None:
            # a single scale is repeated for all channels
            scales = self.scale.detach().flatten().expand(len(self.codes)).contiguous()
            zeros = torch.zeros(len(scales), dtype=torch.int64)
            self._made = self._packed(scales, zeros), scales, zeros
        x, bits = x.detach(), self.scheme.activation_bits
        weight, scales, zeros = self._made
        if not self.convolution:
            return torch.ops.quantized.linear_dynamic(x.contiguous(), weight, bits < 8)
        step, zero = input_grid(*torch.aminmax(x), bits)
        return torch.ops.onednn.qconv_pointwise(
            (x / step).round_().add_(zero).clamp_(0, 2**bits - 1).to(torch.uint8),
            float(step),
            int(zero),
            weight,
            scales,
            zeros,
            self.bias,
            *self._shape(),
            1.0,
            0,
            torch.float32,
            "none",
            [],
            "",
        )

    def _packed(self, scales: torch.Tensor, zeros: torch.Tensor) -> Any:
        """Return the weight in the packed format of the kernels."""
        if self.convolution:
            return torch.ops.onednn.qconv_prepack(self.codes, scales, 1.0, 1, *self._shape())
        # PyTorch plans to move these kernels to torchao; until then they are the fast ones, and
        # refusal() reports where they are missing
        with quiet():
            codes = torch._make_per_channel_quantized_tensor(self.codes, scales.double(), zeros, 0)
            bias = None if self.bias is None else self.bias.detach()
            return torch.ops.quantized.linear_prepack(codes, bias)

    def _shape(self) -> tuple[Any, ...]:
        return list(self.stride), list(self.padding), list(self.dilation), self.groups


class Sparse(Shipped):
    """A layer that stores and multiplies only the weights that are not zero, in the CSR format.

    A convolution becomes a matrix product first: every patch of the image is laid out as a column.
    """

    form = "CSR"
    rows: torch.Tensor
    columns: torch.Tensor
    values: torch.Tensor

    def __init__(self, layer: Any) -> None:
        super().__init__(layer)
        matrix = layer.weight.detach().flatten(1).to_sparse_csr()
        self.kernel_size = tuple(self.weight_shape[2:])
        # Three plain tensors: PyTorch can neither copy nor move a module that holds a sparse one.
        # 32-bit indices are what its kernels use.
        self.register_buffer("rows", matrix.crow_indices().int())
        self.register_buffer("columns", matrix.col_indices().int())
        self.register_buffer("values", matrix.values())

    @property
    def stored(self) -> int:
        """How many weights the layer stores: the nonzero ones."""
        return self.values.numel()

    @property
    def matrix(self) -> Any:
        """The weight as a matrix in PyTorch's CSR format, with the device and the number format of
        ``values``.
        """
        if (
            self._made is None
            or self._made.device != self.values.device
            or self._made.dtype != self.values.dtype
        ):
            shape = (self.weight_shape[0], math.prod(self.weight_shape[1:]))
            # PyTorch warns once per process that its sparse formats are in beta, which would
            # disturb a lesson
            with quiet():
                self._made = torch.sparse_csr_tensor(
                    self.rows, self.columns, self.values, shape, check_invariants=False
                )
        return self._made

    @property
    def weight(self) -> torch.Tensor:
        """The weight as a dense tensor, with its zeros."""
        dense: torch.Tensor = self.matrix.to_dense()
        return dense.view(self.weight_shape)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the layer's output."""
        if not self.convolution:
            flat = x.reshape(-1, x.shape[-1])
            y: torch.Tensor = (self.matrix @ flat.t()).t()
            return (y if self.bias is None else y + self.bias).reshape(
                *x.shape[:-1], self.weight_shape[0]
            )
        # (batch, columns, places)
        patches = functional.unfold(x, self.kernel_size, self.dilation, self.padding, self.stride)
        batch, columns, _ = patches.shape
        y = self.matrix @ patches.transpose(0, 1).reshape(columns, -1)
        sides = [
            (n + 2 * p - d * (k - 1) - 1) // s + 1
            for n, p, d, k, s in zip(
                x.shape[-2:],
                self.padding,
                self.dilation,
                self.kernel_size,
                self.stride,
                strict=True,
            )
        ]
        y = y.view(self.weight_shape[0], batch, *sides).transpose(0, 1)
        return y if self.bias is None else y + self.bias.view(-1, 1, 1)
