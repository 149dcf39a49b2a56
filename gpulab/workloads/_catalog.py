"""The entries of the catalog, registered on import in the order of ``names()``."""

from __future__ import annotations

import copy
import itertools
import math
import operator
from collections.abc import Callable
from typing import Any

from gpulab.errors import InputError
from gpulab.workloads import _registry, draw
from gpulab.workloads._registry import Workload, WorkloadSpec, register


def _torch() -> Any:
    """Return ``torch``, imported only where a workload runs."""
    import torch

    return torch


def _functional() -> Any:
    return _torch().nn.functional


# -------------------------------------------------------------------------------------------------
# Dense linear algebra: matrix products, a linear layer, attention, a linear system.


def _matmul_difference(w: Workload, result: Any, inputs: tuple[Any, ...]) -> float:
    """Compute 64 rows by 64 columns again, which takes at most 8,192 n FLOPs."""
    a, b = inputs
    index = _registry.pick(w, 64, w.n)
    columns = _registry.rows(b.T, index).T
    return _registry.relative_difference(
        _registry.rows(result, index)[:, index], _registry.rows(a, index) @ columns
    )


def _linear_inputs(w: Workload, g: Any) -> tuple[Any, ...]:
    features = w.params["features"]
    return (
        draw.normal(g, w.n, features),
        draw.normal(g, features, features, scale=features**-0.5),
        draw.normal(g, features),
    )


def _attention(q: Any, k: Any, v: Any) -> Any:
    return _functional().scaled_dot_product_attention(q, k, v)


def _attention_shape(w: Workload) -> tuple[int, int, int, int]:
    return w.params["batch"], w.params["heads"], w.n, w.params["head_width"]


def _attention_difference(w: Workload, result: Any, inputs: tuple[Any, ...]) -> float:
    """Compute 16 queries of the first batch entry again, against all keys."""
    index = _registry.pick(w, 16, w.n)
    at = index.to(result.device)
    q, k, v = inputs
    reference = _attention(*(_registry.reference_copy(x) for x in (q[:1, :, at], k[:1], v[:1])))
    return _registry.relative_difference(_registry.reference_copy(result[:1, :, at]), reference)


def _solve(a: Any, b: Any) -> Any:
    return _torch().linalg.solve(a, b)


def _solve_difference(w: Workload, result: Any, inputs: tuple[Any, ...]) -> float:
    """Refine the result in float64 until it converges: the change from the result is its error.

    ``draw.well_conditioned`` is 4 sqrt(n) I + G with singular values of G up to about 2 sqrt(n), so
    each Richardson step halves the error: 14 steps leave less than 0.01 % of it. Each step takes
    2 n^2 FLOPs; solving again would take 2/3 n^3.
    """
    a, b = (_registry.reference_copy(x) for x in inputs)
    x = _registry.reference_copy(result)
    refined, step = x.clone(), 1 / (4 * math.sqrt(w.n))
    for _ in range(14):
        refined += step * (b - a @ refined)
    return _registry.relative_difference(x, refined)


register(
    WorkloadSpec(
        name="matmul",
        summary="the product of two square matrices",
        size_meaning="rows and columns of both matrices",
        sizes=(64, 128, 256, 512, 1024, 2048, 4096),
        function=operator.matmul,
        flops=lambda w: 2 * w.n**3,
        nbytes=lambda w: 3 * w.n**2 * w.itemsize,
        make_inputs=lambda w, g: (draw.normal(g, w.n, w.n), draw.normal(g, w.n, w.n)),
        counts="2 n^3 FLOPs; two matrices read, one written",
        difference=_matmul_difference,
        shape=lambda w, inputs: (w.n, w.n),
        sum_length=lambda w: w.n,
        matrix="matmul",
        emulated_in_float16=True,
    )
)

register(
    WorkloadSpec(
        name="linear",
        summary="a linear layer; for a small batch, a product with a narrow matrix",
        size_meaning="batch size",
        sizes=(1, 4, 16, 64, 256, 1024, 4096),
        function=lambda x, weight, bias: _functional().linear(x, weight, bias),
        flops=lambda w: 2 * w.n * w.params["features"] ** 2 + w.n * w.params["features"],
        nbytes=lambda w: (
            (2 * w.n * w.params["features"] + w.params["features"] ** 2 + w.params["features"])
            * w.itemsize
        ),
        make_inputs=_linear_inputs,
        params={"features": 2048},
        counts="2 n f^2 FLOPs and n f for the bias, with f features in and out; batch and weights "
        "read, batch written",
        difference=_registry.by_rows((0,)),
        sum_length=lambda w: w.params["features"],
        matrix="matmul",
    )
)

register(
    WorkloadSpec(
        name="attention",
        summary="scaled dot-product attention, not causal",
        size_meaning="positions in the sequence",
        sizes=(32, 128, 512, 1024, 2048, 4096),
        function=_attention,
        flops=lambda w: 4 * math.prod(_attention_shape(w)) * w.n,
        nbytes=lambda w: 4 * math.prod(_attention_shape(w)) * w.itemsize,
        make_inputs=lambda w, g: tuple(draw.normal(g, *_attention_shape(w)) for _ in range(3)),
        params={"batch": 2, "heads": 8, "head_width": 64},
        counts="4 b h n^2 d FLOPs: both matrix products, without the softmax between them; q, k, "
        "v read, the result written",
        difference=_attention_difference,
        shape=lambda w, inputs: _attention_shape(w),
        sum_length=lambda w: w.n,
        matrix="matmul",
        # PyTorch's plain path keeps the n x n scores; the fused ones do not.
        memory=lambda w: w.nbytes + 2 * w.params["batch"] * w.params["heads"] * w.n**2 * w.itemsize,
    )
)

register(
    WorkloadSpec(
        name="solve",
        summary="the solution of one linear system",
        size_meaning="equations",
        sizes=(16, 64, 256, 1024, 2048, 4096, 6144),
        function=_solve,
        flops=lambda w: 2 / 3 * w.n**3 + 2 * w.n**2,
        nbytes=lambda w: (w.n**2 + 2 * w.n) * w.itemsize,
        make_inputs=lambda w, g: (draw.well_conditioned(g, w.n), draw.normal(g, w.n)),
        dtypes=("float32", "float64"),
        counts="2/3 n^3 FLOPs for the LU factors and 2 n^2 for the substitutions; matrix and "
        "right side read, solution written",
        difference=_solve_difference,
        shape=lambda w, inputs: (w.n,),
        sum_length=lambda w: w.n,
        memory=lambda w: 3 * w.n**2 * w.itemsize,
    )
)


# -------------------------------------------------------------------------------------------------
# Elementwise work: one pass over memory, a few operations for each element.


_SIZES = (1 << 10, 1 << 13, 1 << 16, 1 << 19, 1 << 22, 1 << 24, 1 << 26)


register(
    WorkloadSpec(
        name="add",
        summary="the sum of two arrays, element by element",
        size_meaning="elements",
        sizes=_SIZES,
        function=operator.add,
        flops=lambda w: w.n,
        nbytes=lambda w: 3 * w.n * w.itemsize,
        make_inputs=lambda w, g: (draw.normal(g, w.n), draw.normal(g, w.n)),
        counts="n FLOPs; two arrays read, one written",
    )
)

register(
    WorkloadSpec(
        name="exp",
        summary="the exponential of each element",
        size_meaning="elements",
        sizes=_SIZES,
        function=lambda x: x.exp(),
        flops=lambda w: w.n,
        nbytes=lambda w: 2 * w.n * w.itemsize,
        make_inputs=lambda w, g: (draw.normal(g, w.n),),
        counts="n FLOPs (an exponential counts as one); one array read, one written",
    )
)

register(
    WorkloadSpec(
        name="gelu",
        summary="the GELU activation of each element, x/2 (1 + erf(x/sqrt 2))",
        size_meaning="elements",
        sizes=_SIZES,
        function=lambda x: _functional().gelu(x),
        flops=lambda w: 5 * w.n,
        nbytes=lambda w: 2 * w.n * w.itemsize,
        make_inputs=lambda w, g: (draw.normal(g, w.n),),
        counts="5 n FLOPs (two scalings, erf, an addition, a product); one array read, one written",
    )
)


# -------------------------------------------------------------------------------------------------
# Reductions and normalizations: each result needs many elements, so threads must cooperate.


_ROW_SIZES = (1, 16, 128, 1024, 8192, 32768, 65536)


def _width(w: Workload) -> int:
    return w.params["width"]


register(
    WorkloadSpec(
        name="sum",
        summary="the sum of all elements",
        size_meaning="elements",
        sizes=_SIZES,
        function=lambda x: x.sum(),
        flops=lambda w: w.n - 1,
        nbytes=lambda w: (w.n + 1) * w.itemsize,
        # Positive values: the sum of values around zero may lie near zero, where a relative
        # difference is meaningless.
        make_inputs=lambda w, g: (_torch().rand(w.n, generator=g),),
        # No float16: the sum of 131,072 such values is beyond its largest number.
        dtypes=("float32", "float64", "bfloat16"),
        counts="n - 1 FLOPs; one array read, one number written",
        difference=_registry.difference_of_all,
        # PyTorch sums in cascades and GPUs in trees: no partial sum has more than about sqrt(n)
        # terms.
        sum_length=lambda w: math.sqrt(w.n),
    )
)

register(
    WorkloadSpec(
        name="softmax",
        summary="the softmax of each row",
        size_meaning="rows",
        sizes=_ROW_SIZES,
        function=lambda x: x.softmax(dim=-1),
        flops=lambda w: 5 * w.n * _width(w),
        nbytes=lambda w: 2 * w.n * _width(w) * w.itemsize,
        make_inputs=lambda w, g: (draw.normal(g, w.n, _width(w)),),
        params={"width": 1024},
        counts="5 FLOPs an element (maximum, subtraction, exponential, sum, division); one array "
        "read, one written",
        sum_length=_width,
    )
)

register(
    WorkloadSpec(
        name="layer_norm",
        summary="each row normalized to mean 0 and variance 1, then scaled and shifted",
        size_meaning="rows",
        sizes=_ROW_SIZES,
        function=lambda x, weight, bias: _functional().layer_norm(x, weight.shape, weight, bias),
        flops=lambda w: 7 * w.n * _width(w),
        nbytes=lambda w: (2 * w.n * _width(w) + 2 * _width(w)) * w.itemsize,
        make_inputs=lambda w, g: (
            draw.normal(g, w.n, _width(w)),
            _torch().rand(_width(w), generator=g),
            draw.normal(g, _width(w)),
        ),
        params={"width": 1024},
        counts="7 FLOPs an element (mean, subtraction, square, sum, division, scale, shift); "
        "array, scale and shift read, array written",
        difference=_registry.by_rows((0,)),
        sum_length=_width,
    )
)


# -------------------------------------------------------------------------------------------------
# Work whose memory accesses are not one sequential pass: FFT, sort, gather.


# The most frequencies in one of the sets that ``_fft_difference`` computes again.
_FREQUENCIES = 1024


def _fft_difference(w: Workload, result: Any, inputs: tuple[Any, ...]) -> float:
    """Compute up to 2,048 frequencies again, in sets of m equally spaced ones.

    If m divides n, the frequencies s + k n/m (k from 0 to m - 1) are the m-point transform of x
    modulated by s and folded to length m.
    """
    import torch

    x = torch.view_as_complex(_registry.reference_copy(inputs[0]))
    m = math.gcd(w.n, _FREQUENCIES)
    worst = 0.0
    for s in _registry.pick(w, max(2, min(8, _FREQUENCIES // m)), w.n // m).tolist():
        # The phase is reduced in integers, so that it loses no digits: the product j s does not
        # overflow below n = 2^31.
        phase = (torch.arange(w.n) * s).remainder_(w.n).double() * (-2 * math.pi / w.n)
        folded = (x * torch.polar(torch.ones_like(phase), phase)).reshape(-1, m).sum(0)
        frequencies = torch.arange(s, w.n, w.n // m)
        worst = max(
            worst,
            _registry.relative_difference(
                _registry.rows(result, frequencies), torch.fft.fft(folded)
            ),
        )
    return worst


def _sort_difference(w: Workload, result: Any, inputs: tuple[Any, ...]) -> float:
    """Sort again on the CPU; a sort is exact."""
    return _registry.relative_difference(result.cpu(), inputs[0].cpu().sort().values)


def _gather_bytes(w: Workload) -> float:
    """Count int64 indices, the distinct rows that n draws touch on average, and the result."""
    vocabulary, width = w.params["vocabulary"], w.params["width"]
    distinct = (
        -vocabulary * math.expm1(w.n * math.log1p(-1 / vocabulary)) if vocabulary > 1 else 1.0
    )
    return w.n * 8 + (distinct + w.n) * width * w.itemsize


def _gather_inputs(w: Workload, g: Any) -> tuple[Any, ...]:
    table = draw.normal(g, w.params["vocabulary"], w.params["width"])
    return _torch().randint(w.params["vocabulary"], (w.n,), generator=g), table


def _gather_difference(w: Workload, result: Any, inputs: tuple[Any, ...]) -> float:
    """Look up some rows again."""
    indices, table = inputs
    index = _registry.pick(w, 64, w.n)
    return _registry.relative_difference(
        _registry.rows(result, index), _registry.rows(table, _registry.rows(indices, index))
    )


register(
    WorkloadSpec(
        name="fft",
        summary="the Fourier transform of a complex signal",
        size_meaning="complex values; powers of two are fastest",
        sizes=(1 << 8, 1 << 11, 1 << 14, 1 << 17, 1 << 20, 1 << 22, 1 << 24),
        function=lambda x: _torch().fft.fft(_torch().view_as_complex(x)),
        flops=lambda w: 5 * w.n * math.log2(w.n),
        nbytes=lambda w: 4 * w.n * w.itemsize,
        make_inputs=lambda w, g: (draw.normal(g, w.n, 2),),
        dtypes=("float32", "float64"),
        counts="5 n log2 n FLOPs, the radix-2 count, which the literature uses for all "
        "algorithms; one complex array read, one written",
        difference=_fft_difference,
        shape=lambda w, inputs: (w.n,),
        sum_length=lambda w: math.log2(w.n) + 1,
        memory=lambda w: 8 * w.n * w.itemsize,
    )
)

register(
    WorkloadSpec(
        name="sort",
        summary="all elements in ascending order",
        size_meaning="elements",
        sizes=(1 << 8, 1 << 12, 1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24),
        function=lambda x: x.sort().values,
        flops=lambda _: 0,
        nbytes=lambda w: 2 * w.n * w.itemsize,
        make_inputs=lambda w, g: (draw.normal(g, w.n),),
        counts="no FLOPs (it compares and moves); one array read, one written",
        difference=_sort_difference,
        shape=lambda w, inputs: inputs[0].shape,
        # torch.sort also returns int64 indices; its workspace is as large as input and results.
        memory=lambda w: w.n * (4 * w.itemsize + 16),
    )
)

register(
    WorkloadSpec(
        name="embedding_gather",
        summary="rows of a table at random places, as an embedding layer reads them",
        size_meaning="rows gathered",
        sizes=(16, 256, 4096, 16384, 65536, 262144, 1048576),
        function=lambda indices, table: _functional().embedding(indices, table),
        flops=lambda _: 0,
        nbytes=_gather_bytes,
        make_inputs=_gather_inputs,
        params={"vocabulary": 50_000, "width": 256},
        counts="no FLOPs; n int64 indices read, and on average v (1 - (1 - 1/v)^n) different rows "
        "of a table with v rows; n rows written",
        difference=_gather_difference,
        shape=lambda w, inputs: (w.n, w.params["width"]),
        memory=lambda w: w.n * 8 + (w.params["vocabulary"] + w.n) * w.params["width"] * w.itemsize,
    )
)


# -------------------------------------------------------------------------------------------------
# Convolutions over images of fixed size: full, grouped and depthwise. Groups reduce the FLOPs, but
# hardly the traffic.


_FILTER_SIDE = 3  # rows and columns of the filters; the padding keeps the image's size


def _groups(w: Workload) -> int:
    """Return the number of groups of channels; depthwise has one group for each channel."""
    channels = w.params["channels"]
    groups = channels if w.name == "depthwise_conv2d" else w.params.get("groups", 1)
    if channels % groups:
        raise InputError(
            f"{w.name}: {groups} groups do not divide {channels} channels; expected a divisor. "
            "Pass for example groups=1."
        )
    return groups


def _pixels(w: Workload) -> int:
    return w.params["channels"] * w.params["side"] ** 2


def _weights(w: Workload) -> int:
    return w.params["channels"] ** 2 // _groups(w) * _FILTER_SIDE**2


def _convolution_inputs(w: Workload, g: Any) -> tuple[Any, ...]:
    channels, side = w.params["channels"], w.params["side"]
    shape = (channels, channels // _groups(w), _FILTER_SIDE, _FILTER_SIDE)
    return draw.normal(g, w.n, channels, side, side), draw.normal(
        g, *shape, scale=(shape[1] * _FILTER_SIDE**2) ** -0.5
    )


_CONVOLUTIONS: tuple[tuple[str, str, dict[str, int]], ...] = (
    ("conv2d", "a 3x3 convolution, every output channel from every input channel", {}),
    ("grouped_conv2d", "a 3x3 convolution within groups of channels", {"groups": 8}),
    ("depthwise_conv2d", "a 3x3 convolution of each channel separately", {}),
)
for _name, _summary, _own_params in _CONVOLUTIONS:
    register(
        WorkloadSpec(
            name=_name,
            summary=_summary,
            size_meaning="images in the batch",
            sizes=(1, 2, 4, 16, 64, 256),
            function=lambda x, weight: _functional().conv2d(
                x, weight, padding=_FILTER_SIDE // 2, groups=x.shape[1] // weight.shape[1]
            ),
            flops=lambda w: 2 * w.n * w.params["side"] ** 2 * _weights(w),
            nbytes=lambda w: (2 * w.n * _pixels(w) + _weights(w)) * w.itemsize,
            make_inputs=_convolution_inputs,
            params={"channels": 128, "side": 32, **_own_params},
            counts="18 n s^2 c^2/g FLOPs for images of side s, c channels in and out, g groups; "
            "images and filters read, images written",
            # PyTorch's float64 convolutions on a CPU are slow, depthwise ones above all: three
            # images are enough.
            difference=_registry.by_rows((0,), at_most=3),
            sum_length=lambda w: _weights(w) / w.params["channels"],
            matrix="convolution",
            emulated_in_float16=True,
            # Lowering to a matrix product may need every 3x3 patch once.
            memory=lambda w: (
                w.nbytes + 2 * min(w.n, 16) * _pixels(w) * _FILTER_SIDE**2 * w.itemsize
            ),
        )
    )


# -------------------------------------------------------------------------------------------------
# Training steps of the small real networks: forward, loss, backward, optimizer.
#
# The learning rate is zero, so each call does the whole work of a step on the same numbers, and
# the loss and the gradients can be checked after any number of calls.


_CLASSES, _IMAGE_CHANNELS, _STAGES = 10, 3, 2
_VOCABULARY, _CONTEXT, _HEADS = 1000, 128, 4

# If rounding flips a ReLU or a maximum, a gradient changes by parts in a thousand; a wrong gradient
# is further off.
_GRADIENT_LIMIT = 0.05

# Above this many FLOPs the float64 reference of a step has only the forward pass, a third of the
# work.
_BACKWARD_FLOPS = 3e11


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
        self.model.to(device, dtype)
        self._optimizer = _torch().optim.Adam(self.model.parameters(), lr=0.0)
        return self

    def __call__(self, x: Any, y: Any) -> Any:
        """Do one step and return the loss, a detached scalar on the model's device."""
        with _torch().enable_grad():
            self._optimizer.zero_grad()
            loss = self.loss(self.model, x, y)
            loss.backward()
            self._optimizer.step()
            return loss.detach()


def _step_difference(w: Workload, result: Any, inputs: tuple[Any, ...]) -> float:
    """Compare the loss, and the gradients of the last step, with those of a float64 copy of the
    model. A gradient counts only if it is more than 5 % off.

    In bfloat16 only the loss is compared: through ten layers with batch norm, gradients of single
    images differ by 20 %, and a limit as wide as that would find no fault.
    """
    step, x, y = inputs
    # on CUDA, which can be faster than the CPU; other devices may have no float64
    device = next((p.device for p in step.model.parameters() if p.is_cuda), "cpu")
    model = copy.deepcopy(step.model).to(device).double()
    images = x.is_floating_point()
    loss = step.loss(model, x.to(device).double() if images else x.to(device), y.to(device))
    worst = _registry.relative_difference(
        _registry.reference_copy(result), _registry.reference_copy(loss)
    )
    if w.flops > _BACKWARD_FLOPS or w.dtype == "bfloat16":
        return worst
    loss.backward()
    for computed, reference in zip(step.model.parameters(), model.parameters(), strict=True):
        if computed.grad is None:
            return math.inf
        got, expected = (_registry.reference_copy(p.grad) for p in (computed, reference))
        off = float((got - expected).norm() / max(float(expected.norm()), 1e-30))
        if not off <= _GRADIENT_LIMIT:
            worst = max(worst, off) if math.isfinite(off) else math.inf
    return worst


def _step(
    build: Callable[[], Any], loss: Callable[[Any, Any, Any], Any], generator: Any
) -> TrainingStep:
    """Return a step whose model's weights come from ``generator``; torch's global generator does
    not change.
    """
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(int(torch.randint(2**62, (), generator=generator)))
        return TrainingStep(build(), loss)


def _cnn_inputs(w: Workload, g: Any) -> tuple[Any, ...]:
    from gpulab import networks  # which needs torch

    step = _step(
        lambda: networks.cnn(_IMAGE_CHANNELS, _CLASSES, w.params["width"], _STAGES),
        lambda model, x, y: _functional().cross_entropy(model(x), y),
        g,
    )
    shape = w.n, _IMAGE_CHANNELS, w.params["side"], w.params["side"]
    return step, draw.normal(g, *shape), _torch().randint(_CLASSES, (w.n,), generator=g)


def _cnn_layers(w: Workload) -> list[tuple[int, int, int]]:
    """Return (side, channels in, channels out) of each convolution of ``networks.cnn``."""
    widths = [_IMAGE_CHANNELS, *(w.params["width"] * 2**stage for stage in range(_STAGES))]
    return [
        (w.params["side"] // 2**stage, source, wide)
        for stage, (before, wide) in enumerate(itertools.pairwise(widths))
        for source in (before, wide)
    ]


def _cnn_flops(w: Workload) -> float:
    """Count the forward pass and, for the backward pass, twice as much less the images' gradient,
    which is not computed.
    """
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
    """Count weights, gradients and Adam's two moments, the batch, the kept outputs of convolutions
    and norms, and 1.5 times these outputs for the backward pass.
    """
    activations = sum(2 * side**2 * wide for side, _, wide in _cnn_layers(w))
    return (
        4 * _cnn_parameters(w) * w.itemsize
        + _cnn_batch_bytes(w)
        + 2.5 * w.n * activations * w.itemsize
    )


def _transformer_inputs(w: Workload, g: Any) -> tuple[Any, ...]:
    from gpulab import networks

    width, layers = w.params["width"], w.params["layers"]
    return (
        _step(
            lambda: networks.transformer(_VOCABULARY, width, _HEADS, layers, context=_CONTEXT),
            lambda model, x, y: model(x, y),
            g,
        ),
        _torch().randint(_VOCABULARY, (w.n, _CONTEXT), generator=g),
        _torch().randint(_VOCABULARY, (w.n, _CONTEXT), generator=g),
    )


def _transformer_flops(w: Workload) -> float:
    """Count the forward pass, and twice as much for the backward pass: for each token the products
    with 12 width^2 weights a layer and with the head, and the products of attention.
    """
    width, layers = w.params["width"], w.params["layers"]
    products = 2 * _CONTEXT * (12 * width**2 * layers + _VOCABULARY * width)
    return 3 * w.n * (products + 4 * _CONTEXT**2 * width * layers)


def _transformer_parameters(w: Workload) -> int:
    width, layers = w.params["width"], w.params["layers"]
    return (2 * _VOCABULARY + _CONTEXT) * width + layers * (12 * width**2 + 13 * width) + 2 * width


def _transformer_memory(w: Workload) -> float:
    """Count weights, gradients and Adam's two moments; and for each token, times 1.25, about 20
    widths a layer and four rows of scores over the vocabulary.
    """
    kept = 20 * w.params["width"] * w.params["layers"] + 4 * _VOCABULARY
    return 4 * _transformer_parameters(w) * w.itemsize + 1.25 * w.n * _CONTEXT * kept * w.itemsize


_STEP_BYTES = (
    "the batch, the weights and Adam's two moments read, weights and moments written; activations "
    "not counted"
)

register(
    WorkloadSpec(
        name="cnn_training_step",
        summary="one Adam step of a small convolutional network on color images",
        size_meaning="images in the batch",
        sizes=(1, 4, 16, 64, 256, 512),
        function=lambda step, x, y: step(x, y),
        flops=_cnn_flops,
        nbytes=lambda w: 6 * _cnn_parameters(w) * w.itemsize + _cnn_batch_bytes(w),
        make_inputs=_cnn_inputs,
        dtypes=("float32", "float64", "bfloat16"),
        params={"side": 32, "width": 32},
        counts="FLOPs of convolutions and the head, forward and twice that backward, without the "
        f"gradient of the images; {_STEP_BYTES}",
        difference=_step_difference,
        shape=lambda w, inputs: (),
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
        function=lambda step, x, y: step(x, y),
        flops=_transformer_flops,
        nbytes=lambda w: 6 * _transformer_parameters(w) * w.itemsize + 2 * w.n * _CONTEXT * 8,
        make_inputs=_transformer_inputs,
        dtypes=("float32", "float64", "bfloat16"),
        params={"width": 256, "layers": 4},
        counts="FLOPs of matrix products (attention's in full), forward and twice that backward; "
        f"{_STEP_BYTES}",
        difference=_step_difference,
        shape=lambda w, inputs: (),
        sum_length=lambda w: w.n * _CONTEXT,
        matrix="matmul",
        memory=_transformer_memory,
    )
)
