"""The modules that compression puts into a model, apart because a module class needs torch.

Imported only inside the functions of this package. Three are parametrizations (they compute a
layer's weight while it is trained), the others take a layer's place in the model that is shipped.
"""

from __future__ import annotations

import copy
import math
import warnings
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from gpulab.compression import integer_layers


class Mask(nn.Module):
    """A parametrization: the weight times a mask of zeros and ones, so that what was pruned stays
    zero whatever the optimizer does.
    """

    mask: torch.Tensor

    def __init__(self, mask: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("mask", mask)

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        """Return the weight with zeros where the mask has them; their gradient is zero too."""
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


class Observed(nn.Module):
    """The range of one layer's inputs: followed while training, frozen in evaluation."""

    low: torch.Tensor
    high: torch.Tensor
    seen: torch.Tensor

    def __init__(self, momentum: float) -> None:
        super().__init__()
        self.momentum = momentum
        for name in ("low", "high"):
            self.register_buffer(name, torch.zeros(()))
        self.register_buffer("seen", torch.zeros((), dtype=torch.bool))

    @torch.no_grad()
    def follow(self, x: torch.Tensor) -> None:
        """Move the range towards that of this batch; the first batch sets it."""
        low, high = torch.aminmax(x)
        share = torch.where(self.seen, self.momentum, 1.0)
        self.low += share * (low - self.low)
        self.high += share * (high - self.high)
        self.seen.fill_(True)


class Aware(nn.Module):
    """A layer that is trained as if it were quantized: weights and inputs are rounded on the way,
    gradients pass as if not.
    """

    def __init__(self, layer: nn.Module, scheme: integer_layers.Scheme, momentum: float) -> None:
        super().__init__()
        self.layer, self.scheme = layer, scheme
        self.observed = Observed(momentum) if scheme.activations == "static" else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the layer's output with rounded weight and inputs."""
        weight: torch.Tensor = self.layer.weight  # type: ignore[assignment]
        scale = integer_layers.weight_scale(weight.detach(), self.scheme)
        rounded = integer_layers.straight_through(
            weight, lambda w: integer_layers.codes(w, scale, self.scheme.bits) * scale
        )
        return apply(self.layer, self._inputs(x), rounded)

    def _inputs(self, x: torch.Tensor) -> torch.Tensor:
        if self.scheme.activations is None:
            return x
        if self.observed is None:
            low, high = torch.aminmax(x.detach())
        else:
            if self.training:
                self.observed.follow(x.detach())
            low, high = self.observed.low, self.observed.high
        step, zero = integer_layers.input_grid(low, high, self.scheme.activation_bits)
        rounded: torch.Tensor = integer_layers.straight_through(
            x, lambda v: integer_layers.round_inputs(v, step, zero, self.scheme.activation_bits)
        )
        return rounded


def apply(layer: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Return what a linear or convolutional layer gives with another weight."""
    if isinstance(layer, nn.Conv2d):
        convolved: torch.Tensor = layer._conv_forward(x, weight, layer.bias)
        return convolved
    return functional.linear(x, weight, layer.bias)


def _copied_without(made: str) -> Any:
    """Return a ``__deepcopy__`` that leaves out an attribute which is made of the buffers again
    when it is needed.
    """

    def copied(self: Any, memo: dict[int, Any]) -> Any:
        new = self.__class__.__new__(self.__class__)
        memo[id(self)] = new
        new.__dict__.update(
            {
                key: None if key == made else copy.deepcopy(value, memo)
                for key, value in self.__dict__.items()
            }
        )
        return new

    return copied


def _loaded_without(made: str) -> Any:
    """Return a ``_load_from_state_dict`` that drops such an attribute: it was made of the buffers
    that were there before.
    """

    def loaded(self: Any, *args: Any, **kwargs: Any) -> None:
        setattr(self, made, None)
        nn.Module._load_from_state_dict(self, *args, **kwargs)

    return loaded


class Shipped(nn.Module):
    """The shape and the bias of the layer whose place a compressed one takes.

    ``form`` is the word for how it stores its weight, in a list of a model's layers.
    """

    form: str

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
            if isinstance(layer.padding, str):
                layer = _plain_padding(layer)
            self.stride, self.padding, self.dilation = layer.stride, layer.padding, layer.dilation
        self.bias = (
            None
            if layer.bias is None
            else nn.Parameter(layer.bias.detach().clone(), requires_grad=False)
        )

    def multiply(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Return the layer's output with a dense weight."""
        if self.convolution:
            return functional.conv2d(
                x, weight, self.bias, self.stride, self.padding, self.dilation, self.groups
            )
        return functional.linear(x, weight, self.bias)

    def extra_repr(self) -> str:
        """Return what tells this layer from others."""
        return (
            f"{'convolution' if self.convolution else 'linear'}, weight {tuple(self.weight_shape)}"
        )


def check_padding(layer: Any) -> None:
    """Refuse a convolution whose padding a finished layer cannot have; other layers pass.

    Raises
    ------
    InputError
        If it pads with something else than zeros, or not by as much on both sides.
    """
    from gpulab.errors import InputError

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


def _plain_padding(layer: nn.Conv2d) -> nn.Conv2d:
    same = tuple((k - 1) * d // 2 for k, d in zip(layer.kernel_size, layer.dilation, strict=True))
    layer.padding = same if layer.padding == "same" else (0, 0)
    return layer


class Quantized(Shipped):
    """A layer that keeps its weight as integers and a scale; the arithmetic is float32 on the
    rounded values.

    The results are those of integer arithmetic (up to float32's rounding of the sum), the speed is
    not: the weight is turned into float32 at every call.
    """

    form = "integers"
    codes: torch.Tensor
    scale: torch.Tensor
    step: torch.Tensor
    zero: torch.Tensor

    def __init__(
        self,
        layer: Any,
        scheme: integer_layers.Scheme,
        low: torch.Tensor | None = None,
        high: torch.Tensor | None = None,
    ) -> None:
        super().__init__(layer)
        self.scheme = scheme
        weight = layer.weight.detach()
        scale = integer_layers.weight_scale(weight, scheme)
        self.register_buffer(
            "codes", integer_layers.codes(weight, scale, scheme.bits).to(torch.int8)
        )
        self.register_buffer("scale", scale)
        if scheme.activations == "static" and low is not None and high is not None:
            step, zero = integer_layers.input_grid(low, high, scheme.activation_bits)
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
            x = integer_layers.round_inputs(x, *integer_layers.input_grid(low, high, bits), bits)
        elif self.scheme.activations == "static":
            x = integer_layers.round_inputs(x, self.step, self.zero, bits)
        return self.multiply(x, self.weight)


class Integer(Quantized):
    """The same numbers with integer arithmetic: the library's CPU kernels take 8-bit inputs and
    weights and add in 32 bits.
    """

    form = "int8"

    def __init__(self, layer: Any, scheme: integer_layers.Scheme) -> None:
        super().__init__(layer, scheme)
        self._packed: Any = None

    __deepcopy__ = _copied_without("_packed")
    _load_from_state_dict = _loaded_without("_packed")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the layer's output; the inputs' range is taken from this batch."""
        if self._packed is None:
            self._packed = integer_layers.Packed(self)
        return self._packed(x)  # type: ignore[no-any-return]


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
        self._matrix: Any = None

    @property
    def stored(self) -> int:
        """How many weights it stores: those that are not zero."""
        return self.values.numel()

    @property
    def matrix(self) -> Any:
        """The weight as a matrix in PyTorch's CSR format, on the device and in the type of its
        parts.
        """
        if (
            self._matrix is None
            or self._matrix.device != self.values.device
            or self._matrix.dtype != self.values.dtype
        ):
            shape = (self.weight_shape[0], math.prod(self.weight_shape[1:]))
            # it says that its sparse formats are in beta, once a process, in the middle of a lesson
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self._matrix = torch.sparse_csr_tensor(
                    self.rows, self.columns, self.values, shape, check_invariants=False
                )
        return self._matrix

    @property
    def weight(self) -> torch.Tensor:
        """The weight with its zeros."""
        dense: torch.Tensor = self.matrix.to_dense()
        return dense.view(self.weight_shape)

    __deepcopy__ = _copied_without("_matrix")
    _load_from_state_dict = _loaded_without("_matrix")

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
