"""Results of the catalogue against NumPy and float64: right ones are within tolerance."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from gpulab.workloads import get, names

IMAGES = {"channels": 16, "side": 8}
# Sizes for each entry: odd ones take other code paths than the fast ones.
SIZES = dict.fromkeys(names(), (1, 7, 33)) | {
    "matmul": (1, 7, 130),
    "attention": (1, 7, 65),
    "fft": (1, 7, 96, 1024),
    "sort": (1, 7, 4097),
    "solve": (1, 7, 130),
    "sum": (1, 100_003),
    **dict.fromkeys(("add", "exp", "gelu"), (1, 10_001)),
    "linear": (1, 3),
    **dict.fromkeys(("conv2d", "grouped_conv2d", "depthwise_conv2d"), (1, 5)),
    "cnn_training_step": (2, 3),
    "transformer_training_step": (1, 2),
}
LIGHT = {
    "transformer_training_step": {"width": 32, "layers": 1},
    "linear": {"features": 64},
    "embedding_gather": {"vocabulary": 500},
    **dict.fromkeys(("conv2d", "grouped_conv2d", "depthwise_conv2d"), IMAGES),
}


def make(name, n=None, dtype="float32"):
    """Return a workload of a small size; by default the largest of its sizes."""
    return get(name)(n=n or SIZES[name][-1], dtype=dtype, **LIGHT.get(name, {}))


def tensors(inputs):
    """Every tensor that goes into the work, the model's weights included."""
    some = [[x] if torch.is_tensor(x) else x.model.parameters() for x in inputs]
    return [one.detach() for part in some for one in part]


@pytest.mark.parametrize(("name", "dtype"), [(n, d) for n in names() for d in get(n).dtypes])
def test_a_result_agrees_with_float64(name, dtype):
    """Results of each dtype and size are within tolerance; wrong and damaged ones are not."""
    for w in (make(name, n, dtype) for n in SIZES[name]):
        inputs = w.inputs("cpu", seed=1)
        result = w.run(*inputs)
        assert w.difference(result, inputs) <= min(w.tolerance, 1e-10 if dtype == "float64" else 1)
    assert w.difference(result * (1 + 10 * w.tolerance), inputs) > w.tolerance * (name != "sort")
    damaged = [torch.full_like(result, math.nan), torch.full_like(result, math.inf)]
    damaged += [torch.zeros(2, 3, 5, 7, 11), torch.zeros(999, 3), None]
    assert [w.difference(one, inputs) for one in damaged] == [math.inf] * 5


def softmax(x):
    """Exponentials over their sum."""
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def layer_norm(x, scale, shift):
    """Normalize each row to mean 0 and variance 1, then scale and shift."""
    mean, variance = x.mean(axis=1, keepdims=True), x.var(axis=1, keepdims=True)
    return (x - mean) / np.sqrt(variance + 1e-5) * scale + shift


def convolution(images, weight):
    """Each output channel sees 3 x 3 pixels of the channels of its group, zeros outside."""
    padded = np.pad(images, ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
    groups = images.shape[1] // weight.shape[1]
    filters = weight.reshape(groups, -1, *weight.shape[1:])
    grouped = windows.reshape(len(images), groups, -1, *windows.shape[2:])
    return np.einsum("ngchwij,gocij->ngohw", grouped, filters).reshape(images.shape)


IN_NUMPY = {
    "matmul": np.matmul,
    "linear": lambda x, weight, bias: x @ weight.T + bias,
    "attention": lambda q, k, v: softmax(q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])) @ v,
    "solve": np.linalg.solve,
    "add": np.add,
    "exp": np.exp,
    "gelu": np.vectorize(lambda v: v / 2 * (1 + math.erf(v / math.sqrt(2)))),
    "sum": np.sum,
    "softmax": softmax,
    "layer_norm": layer_norm,
    "fft": lambda x: np.fft.fft(x[:, 0] + 1j * x[:, 1]),
    "sort": np.sort,
    "embedding_gather": lambda indices, table: table[indices],
    **dict.fromkeys(("conv2d", "grouped_conv2d", "depthwise_conv2d"), convolution),
}


@pytest.mark.parametrize("name", IN_NUMPY)
def test_a_result_is_what_its_summary_says(name):
    """NumPy code written from the summary gives the same; all dtypes get the same inputs."""
    w = make(name, dtype="float64")
    inputs = w.inputs("cpu")
    expected = IN_NUMPY[name](*(x.numpy() for x in inputs))
    np.testing.assert_allclose(w.run(*inputs).numpy(), expected, rtol=1e-8, atol=1e-10)
    pairs = zip(make(name).inputs("cpu"), inputs, strict=True)
    assert all(torch.equal(a.to(b.dtype), b) for a, b in pairs)


@pytest.mark.parametrize("name", ["cnn_training_step", "transformer_training_step"])
def test_a_training_step_gives_gradients_and_changes_no_weight(name):
    """Each call gives the gradients of torch.autograd; at learning rate 0 weights and loss stay."""
    w = make(name, 2)
    step, x, y = w.inputs("cpu")
    weights, loss = list(step.model.parameters()), step.loss(step.model, x, y)
    before, expected = [p.detach().clone() for p in weights], torch.autograd.grad(loss, weights)
    for result in (w.run(step, x, y), w.run(step, x, y)):
        assert (float(result), result.requires_grad) == (pytest.approx(float(loss.detach())), False)
        for parameter, old, gradient in zip(weights, before, expected, strict=True):
            torch.testing.assert_close(parameter.grad, gradient, rtol=1e-3, atol=1e-4)
            assert torch.equal(parameter, old)


@pytest.mark.parametrize(
    ("dtype", "flops", "off", "expected"),
    [
        ("float32", 3e11, 0.052, 0.052),  # an error in a gradient counts from 5 % on
        ("float32", 3e11, 0.048, 0),
        ("float32", 3.1e11, 0.5, 0),  # not if the reference would take long
        ("bfloat16", 1e9, 0.5, 0),  # nor in bfloat16
        ("float32", 3e11, math.nan, math.inf),
        ("float32", 3e11, None, math.inf),
    ],
)
def test_when_a_gradient_counts(dtype, flops, off, expected):
    """A step whose loss is right but whose gradients are not, or are missing, is found."""
    spec = dataclasses.replace(get("cnn_training_step"), flops=lambda _: flops)
    w = spec(n=2, dtype=dtype, side=8, width=2)
    inputs = w.inputs("cpu")
    loss, first = w.run(*inputs), next(inputs[0].model.parameters())
    first.grad = None if off is None else first.grad * (1 + off)
    room = w.tolerance if dtype == "bfloat16" else 1e-3
    assert w.difference(loss, inputs) == pytest.approx(expected, abs=room)


@pytest.mark.parametrize("dtype", get("sort").dtypes)
def test_a_wrong_order_is_found(dtype):
    """Two swapped elements, or one changed element, are found."""
    n = 4097
    w = get("sort")(n=n, dtype=dtype)
    inputs = w.inputs("cpu")
    good, swapped, changed = (w.run(*inputs) for _ in range(3))
    swapped[[10, n - 10]], changed[-1] = swapped[[n - 10, 10]], 100
    found = [w.difference(one, inputs) for one in (good, swapped, changed)]
    assert (found[0], [one > 0 for one in found[1:]]) == (0, [True, True])


@pytest.mark.parametrize(
    ("name", "n", "params", "at"),
    [
        ("matmul", 300, {}, ()),
        ("attention", 100, {"batch": 2, "heads": 1, "head_width": 2}, (0, 0)),
        ("softmax", 300, {"width": 4}, ()),
        ("add", 9000, {}, ()),
        ("fft", 1024 * 5, {}, ()),
        ("fft", 512, {}, ()),
        ("solve", 300, {}, ()),
        ("conv2d", 5, {"channels": 2, "side": 4}, ()),
        ("embedding_gather", 300, {"vocabulary": 5, "width": 2}, ()),
    ],
)
def test_one_wrong_entry_is_found_and_its_size_reported(name, n, params, at):
    """Only part of a large result is recomputed, but always its first and last entries."""
    w = get(name)(n=n, **params)
    inputs = w.inputs("cpu")
    results = [w.run(*inputs) for _ in range(3)]
    results[1][(*at, 0)] += results[0].abs().max()
    results[2][(*at, n - 1)] += results[0].abs().max()
    good, first, last = (w.difference(one, inputs) for one in results)
    assert good <= w.tolerance
    assert (first, last) == pytest.approx((1, 1), rel=0.6)


@pytest.mark.parametrize("name", names())
def test_inputs_are_seeded(name):
    """The same seed gives the same inputs, another seed others; PyTorch's own state stays."""
    w, state = make(name), torch.random.get_rng_state()
    some = [w.inputs("cpu", seed=3), w.inputs(seed=3), w.inputs("cpu"), w.inputs("cpu", 0)]
    flat = [torch.cat([t.double().flatten() for t in tensors(inputs)]) for inputs in some]
    same = [torch.equal(flat[a], flat[b]) for a, b in ((0, 1), (2, 3), (0, 2))]
    assert (same, torch.equal(torch.random.get_rng_state(), state)) == ([True, True, False], True)


@pytest.mark.parametrize(
    ("name", "params", "at", "expected"),
    [
        ("matmul", {"n": 200}, 1, 1),  # standard normal
        ("linear", {"n": 1, "features": 100}, 1, 0.1),  # weights shrink with the number of terms
        ("grouped_conv2d", {"n": 1, "channels": 48, "groups": 3}, 1, 1 / 12),  # 16 x 9 products
        ("sum", {"n": 10_000}, 0, 12**-0.5),  # uniform from 0 to 1
        ("cnn_training_step", {"n": 200, "side": 8, "width": 2}, 1, 1),
        ("cnn_training_step", {"n": 999, "side": 8, "width": 2}, 2, (99 / 12) ** 0.5),  # 10 classes
        # 1,000 words: the deviation of whole numbers below n is sqrt((n^2 - 1) / 12).
        ("transformer_training_step", {"n": 99, "width": 8, "layers": 1}, 1, (999_999 / 12) ** 0.5),
        ("transformer_training_step", {"n": 99, "width": 8, "layers": 1}, 2, (999_999 / 12) ** 0.5),
    ],
)
def test_the_spread_of_the_values(name, params, at, expected):
    """Results neither overflow nor vanish, and the linear system is well conditioned."""
    values = get(name)(**params).inputs("cpu")[at]
    assert float(values.double().std()) == pytest.approx(expected, rel=0.05)
    matrix = get("solve")(n=200, dtype="float64").inputs("cpu")[0]
    assert float(torch.linalg.cond(matrix)) == pytest.approx(2.05, abs=0.1)


@pytest.mark.gpu
@pytest.mark.parametrize("name", names())
def test_a_gpu_agrees_with_float64(name):
    """On a GPU every workload gets the CPU's inputs and lies within its tolerance."""
    w = make(name)
    here, there = w.inputs("cpu"), w.inputs("cuda")
    pairs = zip(tensors(here), tensors(there), strict=True)
    assert all(torch.equal(a, b.cpu()) for a, b in pairs)
    assert w.difference(w.run(*there), there) <= w.tolerance
