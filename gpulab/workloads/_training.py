"""Training steps of the small real networks: forward, loss, backward, optimizer.

The learning rate is zero, so each call does the whole work of a step on the same numbers, and the
loss and the gradients can be checked after any number of calls.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

from gpulab import networks
from gpulab.workloads import _checks, draw
from gpulab.workloads._registry import Workload, WorkloadSpec, register

_CLASSES, _IMAGE_CHANNELS, _STAGES = 10, 3, 2
_VOCABULARY, _CONTEXT, _HEADS = 1000, 128, 4

# A ReLU or a maximum that rounding tips over changes a gradient by parts in a thousand; a wrong
# gradient is further off.
_GRADIENT_LIMIT = 0.05

# Above this many FLOPs the float64 reference of a step leaves the backward pass out, a third of the
# work.
_REFERENCE_FLOPS = 3e11


class TrainingStep:
    """A model with its Adam optimizer: calling it with a batch does one step and returns the loss.

    Attributes
    ----------
    model : torch.nn.Module
    loss : callable
        Takes the model, the inputs and the targets; returns the mean loss.
    """

    def __init__(self, model: Any, loss: Callable[[Any, Any, Any], Any]) -> None:
        self.model, self.loss = model, loss
        self._optimizer: Any = None

    def to(self, device: str, dtype: Any) -> TrainingStep:
        """Move and convert the model, and make its optimizer; returns itself."""
        import torch

        self.model.to(device, dtype)
        self._optimizer = torch.optim.Adam(self.model.parameters(), lr=0.0)
        return self

    def __call__(self, x: Any, y: Any) -> Any:
        """Do one step and return the loss, a detached scalar on the model's device."""
        self._optimizer.zero_grad()
        loss = self.loss(self.model, x, y)
        loss.backward()
        self._optimizer.step()
        return loss.detach()


def _run(step: TrainingStep, x: Any, y: Any) -> Any:
    return step(x, y)


def _reference_model(model: Any) -> Any:
    """Return a float64 copy without gradients, on the model's device where that can be faster than
    the CPU (it must have float64).
    """
    device = next(model.parameters()).device
    return copy.deepcopy(model).to(device if device.type == "cuda" else "cpu").double()


def _difference(w: Workload, result: Any, inputs: tuple[Any, ...]) -> float:
    """Compare the loss with that of a float64 copy of the model, and the gradients of the last step
    where they are 5 % off.

    In bfloat16 the loss alone: through ten layers with batch norm, gradients of single images
    differ by 20 %, and a limit as wide as that would find no fault.
    """
    step, x, y = inputs
    if not _checks.is_tensor(result) or result.dim() != 0:
        return math.inf
    model = _reference_model(step.model)
    device = next(model.parameters()).device
    images = x.is_floating_point()
    loss = step.loss(model, x.to(device).double() if images else x.to(device), y.to(device))
    worst = _checks.relative_difference(
        _checks.reference_copy(result), _checks.reference_copy(loss)
    )
    if w.flops > _REFERENCE_FLOPS or w.dtype == "bfloat16":
        return worst
    loss.backward()
    for computed, reference in zip(step.model.parameters(), model.parameters(), strict=True):
        if computed.grad is None:
            return math.inf
        got, expected = (_checks.reference_copy(p.grad) for p in (computed, reference))
        off = float((got - expected).norm() / max(float(expected.norm()), 1e-30))
        if not off <= _GRADIENT_LIMIT:
            worst = max(worst, off) if math.isfinite(off) else math.inf
    return worst


def _made(
    build: Callable[[], Any], loss: Callable[[Any, Any, Any], Any], generator: Any
) -> TrainingStep:
    """Return a step whose model's weights come from the generator, leaving torch's global one as it
    was.
    """
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(int(torch.randint(2**62, (), generator=generator)))
        return TrainingStep(build(), loss)


def _classification_loss(model: Any, x: Any, y: Any) -> Any:
    from torch.nn import functional

    return functional.cross_entropy(model(x), y)


def _language_loss(model: Any, x: Any, y: Any) -> Any:
    return model(x, y)


def _cnn_inputs(w: Workload, g: Any) -> tuple[Any, ...]:
    step = _made(
        lambda: networks.cnn(_IMAGE_CHANNELS, _CLASSES, w.params["width"], _STAGES),
        _classification_loss,
        g,
    )
    side = w.params["side"]
    return step, draw.normal(g, w.n, _IMAGE_CHANNELS, side, side), draw.integers(g, _CLASSES, w.n)


def _cnn_layers(w: Workload) -> list[tuple[int, int, int]]:
    """Return (side, channels in, channels out) of each convolution of ``networks.cnn``."""
    layers, source = [], _IMAGE_CHANNELS
    for stage in range(_STAGES):
        side, wide = w.params["side"] // 2**stage, w.params["width"] * 2**stage
        layers += [(side, source, wide), (side, wide, wide)]
        source = wide
    return layers


def _cnn_flops(w: Workload) -> float:
    """Forward, and twice that backward; but nobody asks for the gradient of the images."""
    convolutions = [18 * side**2 * source * wide for side, source, wide in _cnn_layers(w)]
    head = 2 * _cnn_layers(w)[-1][2] * _CLASSES
    return w.n * (3 * (sum(convolutions) + head) - convolutions[0])


def _cnn_parameters(w: Workload) -> int:
    last = _cnn_layers(w)[-1][2]
    return (
        sum(9 * source * wide + 2 * wide for _, source, wide in _cnn_layers(w))
        + last * _CLASSES
        + _CLASSES
    )


def _cnn_batch_bytes(w: Workload) -> float:
    return w.n * (_IMAGE_CHANNELS * w.params["side"] ** 2 * w.itemsize + 8)


def _cnn_memory(w: Workload) -> float:
    """Weights, gradients and two moments; each convolution's and norm's output kept, and 1.5 times
    that at work backward.
    """
    activations = sum(2 * side**2 * wide for side, _, wide in _cnn_layers(w))
    return (
        4 * _cnn_parameters(w) * w.itemsize
        + _cnn_batch_bytes(w)
        + 2.5 * w.n * activations * w.itemsize
    )


def _transformer_inputs(w: Workload, g: Any) -> tuple[Any, ...]:
    build = lambda: networks.transformer(  # noqa: E731
        _VOCABULARY, w.params["width"], _HEADS, w.params["layers"], context=_CONTEXT
    )
    return (
        _made(build, _language_loss, g),
        draw.integers(g, _VOCABULARY, w.n, _CONTEXT),
        draw.integers(g, _VOCABULARY, w.n, _CONTEXT),
    )


def _transformer_flops(w: Workload) -> float:
    """Forward, and twice that backward: 12 width^2 weights a layer and the head for each token, and
    the attention products.
    """
    width, layers = w.params["width"], w.params["layers"]
    products = 2 * _CONTEXT * (12 * width**2 * layers + _VOCABULARY * width)
    return 3 * w.n * (products + 4 * _CONTEXT**2 * width * layers)


def _transformer_parameters(w: Workload) -> int:
    width, layers = w.params["width"], w.params["layers"]
    return (2 * _VOCABULARY + _CONTEXT) * width + layers * (12 * width**2 + 13 * width) + 2 * width


def _transformer_memory(w: Workload) -> float:
    """Weights, gradients and two moments; about 20 widths a token and layer kept, and four rows of
    scores a token.
    """
    kept = 20 * w.params["width"] * w.params["layers"] + 4 * _VOCABULARY
    return 4 * _transformer_parameters(w) * w.itemsize + 1.25 * w.n * _CONTEXT * kept * w.itemsize


_STEP_BYTES = (
    "the batch, the weights and Adam's two moments read, weights and moments written; "
    "activations not counted"
)

register(
    WorkloadSpec(
        name="cnn_training_step",
        summary="one Adam step of a small convolutional network on color images",
        size_meaning="images in the batch",
        sizes=(1, 4, 16, 64, 256, 512),
        function=_run,
        flops=_cnn_flops,
        nbytes=lambda w: 6 * _cnn_parameters(w) * w.itemsize + _cnn_batch_bytes(w),
        make_inputs=_cnn_inputs,
        dtypes=("float32", "float64", "bfloat16"),
        params={"side": 32, "width": 32},
        counts="FLOPs of convolutions and the head, forward and twice that backward, without "
        f"the gradient of the images; {_STEP_BYTES}",
        difference=_difference,
        sum_length=lambda w: w.n * w.params["side"] ** 2,
        matrix="convolution",
        memory=_cnn_memory,
    )
)

register(
    WorkloadSpec(
        name="transformer_training_step",
        summary="one Adam step of a small language model on 128-token sequences",
        size_meaning="sequences in the batch",
        sizes=(1, 2, 4, 8, 16, 32),
        function=_run,
        flops=_transformer_flops,
        nbytes=lambda w: 6 * _transformer_parameters(w) * w.itemsize + 2 * w.n * _CONTEXT * 8,
        make_inputs=_transformer_inputs,
        dtypes=("float32", "float64", "bfloat16"),
        params={"width": 256, "layers": 4},
        counts="FLOPs of matrix products (attention's in full), forward and twice that "
        f"backward; {_STEP_BYTES}",
        difference=_difference,
        sum_length=lambda w: w.n * _CONTEXT,
        matrix="matmul",
        memory=_transformer_memory,
    )
)
