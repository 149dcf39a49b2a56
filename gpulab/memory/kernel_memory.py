"""Memory of real kernels that fake kernels do not show: LSTM workspaces, losses, scratch.

The fake kernel of ``mkldnn_rnn_layer`` returns an empty workspace; the real workspace is most of an
LSTM's memory. Its size follows oneDNN's layout: seven regions, each rounded up to a page of 4 KiB;
rows are padded to 64 bytes, and further if their length would be a multiple of 256 elements (oneDNN
``src/cpu/rnn/rnn_utils``: ``set_offsets``, ``get_good_ld``). docs/measurements.md has the check.

Scratch is memory that an operator allocates and frees before it returns. The rules here are upper
estimates from the layouts that PyTorch and oneDNN use, so that ``fits`` errs on the safe side.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes

from gpulab.errors import InputError
from gpulab.memory.step_memory import tensors_in

aten = torch.ops.aten

_PAGE = 4096
_CHANNEL_BLOCK = 16  # oneDNN pads channels to its vector width: 16 floats with AVX-512, 8 below
_SMALL = 64 * 1024  # tiny buffers that do not grow with the tensors (partial sums, packed panels)
_HALF = (torch.bfloat16, torch.float16)
# of PyTorch's reductions on a GPU: threads per block, the most values that one thread sums, and
# threads per warp
_REDUCING_THREADS, _MOST_VALUES, _WARP = 512, 256, 32


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def _row(elements: int, itemsize: int) -> int:
    """The padded length of a row: 64-byte aligned, and never a multiple of 256 elements (4 KiB
    aliasing).
    """
    row = _round_up(elements, 64 // itemsize)
    return row + 64 // itemsize if row % 256 == 0 else row


def rnn_workspace_bytes(positions: int, batch: int, inputs: int, hidden: int, itemsize: int) -> int:
    """Return the bytes of the workspace that oneDNN's LSTM keeps from forward to backward, one
    layer and direction.
    """
    states = 2 * (positions + 1) * batch
    widest = max(inputs, hidden)
    regions = (
        positions * batch * _row(4 * hidden, itemsize) * itemsize,  # gates
        positions * batch * _row(hidden, itemsize) * itemsize,  # hidden states
        states * _row(widest, itemsize) * itemsize,  # states between layers
        states * hidden * itemsize,  # states between positions
        states * hidden * 4,  # cell states, float32 always
        states * _row(widest, 4) * 4,  # gradients between layers, float32 always
        states * _row(widest, 4) * 4,  # gradients between positions
    )
    return sum(_round_up(region, _PAGE) for region in regions)


_NORMS = {  # norms, and the index of the weight among their arguments
    aten.native_layer_norm.default: 2,
    aten.native_group_norm.default: 1,
    aten.native_batch_norm.default: 1,
}
_NORM_GRADIENTS = (aten.native_layer_norm_backward.default, aten.native_group_norm_backward.default)


# These operators write the loss of each element and reduce the losses into the first: the scalar
# keeps the memory of all elements.
_REDUCED_IN_PLACE = (
    aten.mse_loss.default,
    aten.smooth_l1_loss.default,
    aten.binary_cross_entropy.default,
    aten.soft_margin_loss.default,
)
# The allocations of these operators do not follow from shapes.
_TARGETS = "the memory that a CTC loss allocates depends on the longest target"
_UNKNOWN = {
    aten._ctc_loss.default: _TARGETS,
    aten._ctc_loss.Tensor: _TARGETS,
    aten._cudnn_rnn.default: "on a GPU cuDNN runs nn.LSTM, nn.GRU and nn.RNN, and its allocations "
    "are not known (19 MB for an LSTM whose tensors take 7 MB); device='cpu' predicts by the rules "
    "of a CPU",
}


def run(func: Any, args: Any, kwargs: Any, in_optimizer: bool) -> Any:
    """Run a fake operator and return its result with the sizes that the real one has."""
    if (
        func is aten._local_scalar_dense.default
        and in_optimizer
        and getattr(args[0], "constant", None) is None
    ):
        # among PyTorch's optimizers only ASGD's memory depends on a value that it computed: on
        # whether that is 1, as it is for the first million steps by default
        return 1.0
    if func in _UNKNOWN:
        raise InputError(
            f"predict: {_UNKNOWN[func]}; expected a step whose memory follows from shapes. Use "
            "memory.trace, which runs the step."
        )
    result = func(*args, **kwargs)
    if func in _REDUCED_IN_PLACE:
        shape = torch.broadcast_shapes(args[0].shape, args[1].shape)  # type: ignore[no-untyped-call]
        return result if result.shape == shape else result.new_empty(shape).resize_(result.shape)
    if func is aten.mkldnn_rnn_layer.default:
        x, weight = args[0], args[1]
        nbytes = rnn_workspace_bytes(
            x.shape[0], x.shape[1], x.shape[2], weight.shape[0] // 4, x.element_size()
        )
        return (*result[:3], torch.empty(nbytes, dtype=torch.uint8, device=x.device))
    if func in _NORMS and args[0].dtype in _HALF and args[0].device.type == "cpu":
        weight = args[_NORMS[func]]
        # mixed precision: the statistics are kept in float32
        if weight is not None and weight.dtype is torch.float32:
            return (result[0], *(t.float() for t in result[1:]))
    if func in _NORM_GRADIENTS and result[0] is not None and result[0].dtype is not args[1].dtype:
        return (result[0].to(args[1].dtype), *result[1:])
    return result


# -- recurrent layers in small -------------------------------------------------------------------
# A CPU runs GRU and RNN (and LSTM in float64, or with projections) step by step. Fake tensors take
# 100 us for each of these operators, so the layer's batch and widths are replaced by small primes,
# and its real operators run on real tensors of that size. Each storage then counts as the large one
# that it stands for: its bytes, with each prime factor replaced by the original size. The other
# factors of the bytes are not divisible by these primes.
_PRIMES = (7, 11, 13, 17, 19, 23, 29, 31, 37, 41)


class _Swapped(torch.autograd.Function):
    """Replace fake tensors by small ones, or the reverse; in the backward pass do the same with
    their gradients.
    """

    @staticmethod
    def forward(ctx: Any, swap: Callable[[Any, Any], Any], shapes: Any, *tensors: Any) -> Any:
        """Return the substitutes, of the given shapes."""
        ctx.set_materialize_grads(False)
        ctx.swap, ctx.shapes = swap, [tensor.shape for tensor in tensors]
        swapped = tuple(map(swap, tensors, shapes))
        ctx.mark_non_differentiable(
            *(
                new
                for new, needed in zip(swapped, ctx.needs_input_grad[2:], strict=True)
                if not needed
            )
        )
        return swapped

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """Return the substitutes of the gradients."""
        pairs = zip(gradients, ctx.shapes, strict=True)
        return (
            None,
            None,
            *(None if gradient is None else ctx.swap(gradient, shape) for gradient, shape in pairs),
        )


class RecurrentInSmall(TorchFunctionMode):
    """Within the block, a recurrent layer that runs step by step runs on small tensors."""

    def __init__(self, tracker: Any) -> None:
        super().__init__()
        self.tracker = tracker

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function."""
        name = getattr(func, "__name__", "")
        if (
            name not in ("gru", "rnn_tanh", "rnn_relu", "lstm")
            or len(args) != 9
            or not isinstance(args[0], FakeTensor)
        ):
            return func(*args, **(kwargs or {}))
        x, states, parameters, bias, _, _, _, both, batch_first = args
        states = [states] if name != "lstm" else list(states)
        projected, hidden = states[0].shape[2], states[-1].shape[2]
        fused = name == "lstm" and projected == hidden and x.dtype is not torch.float64
        if (
            fused
            or x.device.type != "cpu"
            or not all(isinstance(t, FakeTensor) and t.numel() for t in (x, *states, *parameters))
        ):
            return func(*args)
        mode, device = x.fake_mode, x.device  # not x itself, which the graph must not keep
        steps, batch = x.shape[batch_first], x.shape[1 - batch_first]
        primes = iter(prime for prime in _PRIMES if steps % prime)
        n, i, p, h = [
            1 if size == 1 else next(primes) for size in (batch, x.shape[2], projected, hidden)
        ]
        h = p if projected == hidden else h
        units = [
            pair
            for pair in ((n, batch), (i, x.shape[2]), (p, projected), (h, hidden))
            if pair[0] > 1
        ]

        def scale(nbytes: int) -> int:
            whole = 1
            for small, size in units:
                while nbytes % small == 0:
                    nbytes, whole = nbytes // small, whole * size
            return nbytes * whole

        def swap(tensor: Any, shape: Any) -> Any:
            order = sorted(range(tensor.dim()), key=lambda k: -tensor.stride(k))
            once = [
                size if stride else 1 for size, stride in zip(shape, tensor.stride(), strict=True)
            ]
            small = isinstance(tensor, FakeTensor)  # whether the new tensor is the small one
            with _disable_current_modes():
                new = torch.empty_permuted(
                    once, order, dtype=tensor.dtype, device="cpu" if small else "meta"
                )
                new = new.zero_().expand(shape) if small else FakeTensor(mode, new, device)
                return self.tracker.share(new, tensor, scale if small else None)

        group = 2 + 2 * bias + (projected != hidden)
        shapes: list[Any] = [
            (n, steps, i) if batch_first else (steps, n, i),
            *((len(s), n, w) for s, w in zip(states, (p, h), strict=False)),
        ]
        for k, parameter in enumerate(parameters):
            last = projected != hidden and k % group == group - 1
            first = k % group == 0 and k < group * (1 + both)
            rows = parameter.shape[0] // projected * p if last else parameter.shape[0] // hidden * h
            columns = h if last else i if first else parameter.shape[-1] // projected * p
            shapes.append((rows, columns)[: parameter.dim()])
        small = _Swapped.apply(swap, shapes, x, *states, *parameters)  # type: ignore[no-untyped-call]
        inputs, weights = small[1 : 1 + len(states)], small[1 + len(states) :]
        if torch.is_autocast_enabled("cpu"):  # it caches converted weights, but only of leaves
            weights = [weight.to(torch.get_autocast_dtype("cpu")) for weight in weights]
        found = func(small[0], inputs if name == "lstm" else inputs[0], weights, *args[3:])
        whole = [(*x.shape[:2], projected * (1 + both)), *(s.shape for s in states)]
        return _Swapped.apply(swap, whole, *found)  # type: ignore[no-untyped-call]


# -- scratch -------------------------------------------------------------------------------------


def _single(tensors: Sequence[Any]) -> int:
    """Return the bytes of float32 copies of the half-precision tensors among ``tensors``."""
    return sum(4 * t.numel() for t in tensors if t.dtype in _HALF)


def _pointwise(args: Any, outputs: Sequence[Any]) -> int:
    """Return the bytes of converted inputs: those of another dtype than the result are converted
    first.
    """
    if not outputs:
        return 0
    dtype, size = outputs[0].dtype, outputs[0].element_size()
    return sum(t.numel() * max(size, 4) for t in tensors_in(args) if t.dtype != dtype)


def _reduction(args: Any, outputs: Sequence[Any]) -> int:
    x = tensors_in(args)[0]
    return _single(tensors_in(args)) + _SMALL + (_partial_sums(x, outputs[0]) if x.is_cuda else 0)


def _partial_sums(x: Any, y: Any) -> int:
    """Return the bytes in which a GPU's blocks store their partial sums over a matrix's rows (as
    for the gradient of a bias). For a tall matrix they are more than the matrix. The rules are
    those of PyTorch's ``native/cuda/Reduce.cuh`` (``setReduceConfig``, ``global_memory_size``), for
    elements of at most 32 bits.
    """
    columns = max(1, y.numel())
    rows = x.numel() // columns
    if rows < 2 or not x.is_contiguous() or y.numel() == 1 or x.shape[-1] != y.shape[-1]:
        return 0
    vector = math.gcd(columns, 4)
    threads = _REDUCING_THREADS // vector  # of a block: in x columns, in y rows
    wide, tall = (min(1 << (n.bit_length() - 1), threads) for n in (columns // vector, rows))
    height = min(tall, threads // min(wide, _WARP))
    width = min(wide, threads // height)
    if rows < min(16 * height, _MOST_VALUES):
        return 0
    gpu = torch.cuda.get_device_properties(x.device)
    blocks = -(-columns // (vector * width))
    values = -(-rows // height)  # for each thread
    room = gpu.multi_processor_count * (gpu.max_threads_per_multi_processor // (width * height))
    if values < _MOST_VALUES or blocks > room:
        return 0
    blocks_a_sum = max(min(-(-room // blocks), -(-values // 16)), -(-values // _MOST_VALUES))
    return int(4 * columns * blocks_a_sum * width * vector)


def _whole(args: Any, outputs: Sequence[Any]) -> int:
    """Return the estimate for an operator without a rule of its own: a copy of all arguments and
    results, and float32 copies of those in half precision.
    """
    every = [*tensors_in(args), *outputs]
    return int(sum(t.numel() * t.element_size() for t in every) + _single(every) + _SMALL)


def _rows(args: Any, outputs: Sequence[Any]) -> int:
    """Return the estimate for norms: each thread sums the weights' gradient over its own rows."""
    longest = max((t.shape[-1] for t in tensors_in(args) if t.dim()), default=0)
    return 8 * longest * torch.get_num_threads() + _single(tensors_in(args)[:1]) + _SMALL


def _attention(args: Any, outputs: Sequence[Any]) -> int:
    """Return the estimate for flash attention on a CPU: a tile of at most 256 x 512 scores per
    thread, and repacked tensors in half precision.
    """
    inputs = tensors_in(args)
    head = inputs[0].shape[-1]
    tile = 256 * 512 * 8 + 512 * head * 16
    rows = sum(t.numel() // max(1, t.shape[-1]) for t in inputs[:3]) * 8
    return int(tile * torch.get_num_threads() + rows + 2 * _single(inputs) + _SMALL)


def _recurrent(args: Any, outputs: Sequence[Any]) -> int:
    """Return the estimate for an LSTM: the gates of all positions, and repacked tensors, in
    float32.
    """
    x, weight = args[0], args[1]
    gates = x.shape[0] * x.shape[1] * _row(weight.shape[0], 4) * 4
    sides = 4 * sum(t.numel() for t in [*tensors_in(args), *outputs] if t.dtype is not torch.uint8)
    return int(2 * gates + 2 * sides + 16 * _PAGE + _SMALL)


def _convolution_bytes(images: Sequence[Any], weight: Any, groups: int) -> int:
    # oneDNN pads all channels to full blocks
    outer = groups * _round_up(max(1, weight.shape[0] // groups), _CHANNEL_BLOCK)
    inner = _round_up(weight.shape[1], _CHANNEL_BLOCK) * math.prod(weight.shape[2:])
    elements = 2 * outer * inner + sum(
        t.numel() // max(1, t.shape[1]) * _round_up(t.shape[1], _CHANNEL_BLOCK) for t in images
    )
    # in half precision, a copy of 2 bytes and a float32 accumulator of 4
    itemsize = weight.element_size() if weight.dtype not in _HALF else 6
    unfolded = 0
    # other dtypes do not use oneDNN: the columns of the whole batch are unfolded
    if weight.dtype not in (torch.float32, *_HALF):
        unfolded = max(t.numel() for t in images) * math.prod(weight.shape[2:]) * 2
    return int(elements * itemsize + unfolded * itemsize + _SMALL)


_RULES_BY_NAMES: dict[str, Callable[[Any, Sequence[Any]], int] | None] = {
    "detach alias empty empty_like empty_strided zeros zeros_like ones ones_like full full_like "
    "new_empty new_zeros new_empty_strided zero_ fill_ copy_ clone _to_copy cat stack arange "
    "scalar_tensor lift_fresh resize_ set_ bernoulli_ normal_ uniform_ random_ native_dropout "
    "select_backward slice_backward embedding _unsafe_view _reshape_alias nll_loss_forward "
    "nll_loss_backward nll_loss2d_forward nll_loss2d_backward max_pool2d_with_indices avg_pool2d "
    "_adaptive_avg_pool2d _adaptive_avg_pool2d_backward index_select repeat constant_pad_nd "
    "upsample_nearest2d upsample_nearest2d_backward _local_scalar_dense": None,
    "sum mean amax amin var var_mean std any all argmax max min norm linalg_vector_norm "
    "_log_softmax _log_softmax_backward_data _softmax _softmax_backward_data": _reduction,
    # half precision is repacked, and may be accumulated in float32
    "mm addmm bmm baddbmm mv dot addmv linear": (
        lambda args, outputs: 2 * _single([*tensors_in(args), *outputs]) + _SMALL
    ),
    "native_layer_norm native_layer_norm_backward native_group_norm native_group_norm_backward "
    "_fused_rms_norm": _rows,
    "native_batch_norm native_batch_norm_backward embedding_dense_backward _safe_softmax": (
        lambda args, outputs: _whole(args, ())
    ),
    "_scaled_dot_product_flash_attention_for_cpu "
    "_scaled_dot_product_flash_attention_for_cpu_backward": _attention,
    "mkldnn_rnn_layer mkldnn_rnn_layer_backward": _recurrent,
    "convolution": lambda args, outputs: _convolution_bytes(
        [args[0], outputs[0]], args[1], args[-1]
    ),
    "convolution_backward": lambda args, outputs: _convolution_bytes(
        [args[0], args[1], args[1]], args[2], args[-2]
    ),
}
_RULES = {
    f"aten::{name}": rule for names, rule in _RULES_BY_NAMES.items() for name in names.split()
}


def scratch_bytes(func: Any, args: Any, outputs: Sequence[Any]) -> int:
    """Return an upper estimate of what the operator allocates inside and frees before it
    returns.
    """
    name = func._schema.name
    by_kind = _pointwise if torch.Tag.pointwise in func.tags else _whole
    # a _foreach_ operator updates its tensors one after the other, or by one kernel
    is_free = func.is_view or name.startswith("aten::_foreach_")
    rule = _RULES.get(name, None if is_free else by_kind)
    return 0 if rule is None else rule(args, outputs)
