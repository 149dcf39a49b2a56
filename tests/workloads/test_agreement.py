"""Inputs are the same everywhere, results agree with float64, and wrong results are found."""

import math

import numpy as np
import pytest
import torch

from gpulab import workloads

# A small and an odd size for each entry: odd ones meet the paths beside the fast ones.
SMALL = dict.fromkeys(workloads.names(), (1, 7, 33)) | {
    "matmul": (1, 7, 130), "attention": (1, 7, 65), "fft": (1, 7, 96, 1024), "sort": (1, 7, 4097), "solve": (1, 7, 130),
    "sum": (1, 7, 100_003), "add": (1, 7, 10_001), "exp": (1, 7, 10_001), "gelu": (1, 7, 10_001), "linear": (1, 3), "conv2d": (1, 3),
    "grouped_conv2d": (1, 5), "depthwise_conv2d": (1, 5), "cnn_training_step": (2, 3), "transformer_training_step": (1, 2),
}  # fmt: skip
_SMALL_IMAGES = {"channels": 16, "side": 8}
LIGHT = {
    "transformer_training_step": {"width": 32, "layers": 1},
    "linear": {"features": 64},
    "embedding_gather": {"vocabulary": 500},
    **dict.fromkeys(("conv2d", "grouped_conv2d", "depthwise_conv2d"), _SMALL_IMAGES),
}
CASES = [(name, dtype, n) for name in workloads.names() for dtype in workloads.get(name).dtypes for n in SMALL[name]]


def make(name, n, dtype="float32"):
    """One of the small cases."""
    return workloads.get(name)(n=n, dtype=dtype, **LIGHT.get(name, {}))


@pytest.mark.parametrize(("name", "dtype", "n"), CASES)
def test_result_agrees_with_float64(name, dtype, n):
    """Each workload, in each of its dtypes, lies within its tolerance of the float64 reference, for three seeds."""
    w = make(name, n, dtype)
    for seed in range(3):
        inputs = w.inputs("cpu", seed=seed)
        assert w.difference(w.run(*inputs), inputs) <= w.tolerance


@pytest.mark.parametrize("name", workloads.names())
def test_float64_reference_is_exact_to_float64(name):
    """The reference itself is right: float64 results differ from it by rounding only."""
    w = make(name, SMALL[name][-1], "float64")
    inputs = w.inputs("cpu")
    assert w.difference(w.run(*inputs), inputs) < 1e-10


@pytest.mark.parametrize("name", [n for n in workloads.names() if n != "sort"])
def test_a_wrong_result_is_found(name):
    """A result that is off by ten tolerances everywhere is told."""
    w = make(name, SMALL[name][-1])
    inputs = w.inputs("cpu")
    wrong = w.run(*inputs) * (1 + 10 * w.tolerance)
    assert w.difference(wrong, inputs) > w.tolerance


@pytest.mark.parametrize("name", workloads.names())
@pytest.mark.parametrize("fault", ["nan", "inf", "shape", "none"])
def test_a_broken_result_is_infinitely_far(name, fault):
    """NaN, infinity, another shape and no tensor at all give an infinite difference, never an exception."""
    w = make(name, SMALL[name][-1])
    inputs = w.inputs("cpu")
    result = w.run(*inputs)
    filled = {"nan": torch.full_like(result, math.nan), "inf": torch.full_like(result, math.inf)}
    broken = {**filled, "shape": torch.zeros(2, 3, 5, 7, 11), "none": None}[fault]
    assert w.difference(broken, inputs) == math.inf


@pytest.mark.parametrize("n", [4097, (1 << 18) + 3])
def test_sort_finds_disorder_and_exchanged_elements(n):
    """A sort that leaves two elements in place, or changes one, is found, by comparison and by checksum."""
    w = workloads.get("sort")(n=n)
    inputs = w.inputs("cpu")
    good = w.run(*inputs)
    assert w.difference(good, inputs) == 0.0
    swapped, changed = good.clone(), good.clone()
    swapped[[10, n - 10]] = swapped[[n - 10, 10]]
    changed[n // 2] = (good[n // 2] + good[n // 2 + 1]) / 2
    assert w.difference(swapped, inputs) > 0
    assert w.difference(changed, inputs) > 0


def test_solve_reports_the_size_of_an_error():
    """The refinement measures the error itself: a solution that is off by 1 % in its largest entry is 1 % off."""
    w = workloads.get("solve")(n=300, dtype="float64")
    inputs = w.inputs("cpu")
    x = w.run(*inputs)
    x[x.abs().argmax()] *= 1.01
    assert w.difference(x, inputs) == pytest.approx(0.01, rel=0.02)


def test_fft_finds_one_wrong_frequency_of_many_small_ones():
    """With at most 1,024 points every frequency is checked."""
    w = workloads.get("fft")(n=512)
    inputs = w.inputs("cpu")
    wrong = w.run(*inputs)
    wrong[77] += wrong.abs().max()
    assert w.difference(wrong, inputs) > 0.1


def test_training_check_sees_the_gradients():
    """A step whose loss is right but whose gradients are not is found."""
    w = workloads.get("cnn_training_step")(n=4, side=8, width=4)
    inputs = w.inputs("cpu")
    loss = w.run(*inputs)
    next(inputs[0].model.parameters()).grad.mul_(1.5)
    assert w.difference(loss, inputs) == pytest.approx(0.5, rel=0.01)


@pytest.mark.parametrize("name", ["cnn_training_step", "transformer_training_step"])
def test_training_steps_repeat(name):
    """Each call does the same step again: weights stay (the learning rate is zero), the loss is the same to the last bit."""
    w = make(name, 2)
    inputs = w.inputs("cpu")
    before = [p.clone() for p in inputs[0].model.parameters()]
    losses = {float(w.run(*inputs)) for _ in range(4)}
    assert len(losses) == 1
    assert all(torch.equal(a, b) for a, b in zip(before, inputs[0].model.parameters(), strict=True))


@pytest.mark.parametrize("name", workloads.names())
def test_inputs_are_seeded(name):
    """One seed gives the same values again, another seed others, and torch's global generator is left alone."""
    w = make(name, 33 if name not in LIGHT else 2)
    torch.manual_seed(5)
    state = torch.random.get_rng_state()
    first, again, other = (w.inputs("cpu", seed=seed) for seed in (3, 3, 4))
    assert torch.equal(torch.random.get_rng_state(), state)
    flat = [torch.cat([t.double().flatten() for t in tensors(inputs)]) for inputs in (first, again, other)]
    assert torch.equal(flat[0], flat[1])
    assert not torch.equal(flat[0], flat[2])


def tensors(inputs):
    """Every tensor that goes into the work, the model's weights included."""
    for x in inputs:
        yield from [x.detach()] if isinstance(x, torch.Tensor) else (p.detach() for p in x.model.parameters())


@pytest.mark.parametrize("name", ["matmul", "softmax", "attention"])
def test_dtypes_share_their_values(name):
    """The same numbers in every dtype, rounded to it: float64 holds exactly what float32 holds."""
    single, double, half = (make(name, 8, dtype).inputs("cpu", seed=1)[0] for dtype in ("float32", "float64", "bfloat16"))
    assert torch.equal(single.double(), double)
    assert torch.equal(single.bfloat16(), half)


@pytest.mark.parametrize("name", workloads.names())
def test_tolerance_has_a_reason(name):
    """Each tolerance names the roundings that it allows, and lower precision allows more."""
    spec = workloads.get(name)
    limits = [spec(n=8, dtype=dtype).tolerance for dtype in ("float64", "float32", "bfloat16") if dtype in spec.dtypes]
    assert limits == sorted(limits)
    assert "roundings of float32" in spec(n=8).tolerance_reason
    assert limits[0] < 1e-10
    assert limits[1] < 1e-3


@pytest.mark.gpu
@pytest.mark.parametrize("name", workloads.names())
def test_gpu_agrees_with_float64(name):
    """On a GPU every workload gets the CPU's inputs and lies within its tolerance."""
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device on this machine")
    w = make(name, SMALL[name][-1])
    here, there = w.inputs("cpu"), w.inputs("cuda")
    for a, b in zip(tensors(here), tensors(there), strict=True):
        assert torch.equal(a, b.cpu())
    assert w.difference(w.run(*there), there) <= w.tolerance


def _heads(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    scores = np.einsum("...qd,...kd->...qk", q, k) / np.sqrt(q.shape[-1])
    return np.einsum("...qk,...kd->...qd", _softmax(scores), v)


def _softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def _layer_norm(x: np.ndarray, scale: np.ndarray, shift: np.ndarray) -> np.ndarray:
    mean, variance = x.mean(axis=1, keepdims=True), x.var(axis=1, keepdims=True)
    return (x - mean) / np.sqrt(variance + 1e-5) * scale + shift


def _convolution(images: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Each output channel sees the channels of its group, 3 x 3 pixels around its place, zeros outside."""
    seen, (out, inner) = np.pad(images, ((0, 0), (0, 0), (1, 1), (1, 1))), weight.shape[:2]
    windows = np.lib.stride_tricks.sliding_window_view(seen, (3, 3), axis=(2, 3))
    groups = images.shape[1] // inner
    parts = [
        np.einsum("nchwij,ocij->nohw", windows[:, g * inner : (g + 1) * inner], weight[g * out // groups : (g + 1) * out // groups])
        for g in range(groups)
    ]
    return np.concatenate(parts, axis=1)


IN_NUMPY = {
    "matmul": np.matmul, "attention": _heads, "solve": np.linalg.solve, "add": np.add, "exp": np.exp, "sum": np.sum, "softmax": _softmax,
    "gelu": np.vectorize(lambda v: v / 2 * (1 + math.erf(v / math.sqrt(2)))), "layer_norm": _layer_norm,
    "fft": lambda x: np.fft.fft(x[:, 0] + 1j * x[:, 1]), "sort": np.sort, "linear": lambda x, weight, bias: x @ weight.T + bias,
    "embedding_gather": lambda indices, table: table[indices], "conv2d": _convolution, "grouped_conv2d": _convolution,
    "depthwise_conv2d": _convolution,
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(IN_NUMPY))
def test_each_result_is_what_its_summary_says(name):
    """In NumPy's words, written from the summaries: that a workload agrees with itself in float64 does not say what it computes."""
    w = make(name, SMALL[name][-1], "float64")
    inputs = w.inputs("cpu")
    np.testing.assert_allclose(w.run(*inputs).numpy(), IN_NUMPY[name](*(x.numpy() for x in inputs)), rtol=1e-8, atol=1e-10)
