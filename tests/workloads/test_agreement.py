"""Inputs are the same everywhere, results agree with float64, and wrong results are found."""

import dataclasses
import math
import types

import numpy as np
import pytest
import torch

from gpulab import workloads
from gpulab.workloads import _checks, _irregular, _training

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


# How many rows, or queries, or sets of frequencies, are computed again at this size.
SAMPLED = {
    "matmul": (100, {}, 64), "linear": (100, {"features": 4}, 64), "attention": (100, {"batch": 1, "heads": 1, "head_width": 2}, 16),
    "add": (5000, {}, 4096), "softmax": (100, {"width": 4}, 64), "layer_norm": (100, {"width": 4}, 64),
    "embedding_gather": (100, {"vocabulary": 5, "width": 2}, 64), "conv2d": (4, {"channels": 2, "side": 4}, 3), "fft": (1024 * 5, {}, 2),
}  # fmt: skip


@pytest.mark.parametrize("name", SAMPLED)
def test_how_much_is_computed_again(name, monkeypatch):
    """The sample is what the words say: 64 rows, 4,096 where a row is one number, 16 queries, 3 images."""
    n, params, count = SAMPLED[name]
    asked, pick = [], _checks.pick
    monkeypatch.setattr(_checks, "pick", lambda w, many, below: asked.append(many) or pick(w, many, below))
    w = workloads.get(name)(n=n, **params)
    inputs = w.inputs("cpu")
    assert w.difference(w.run(*inputs), inputs) <= w.tolerance
    assert asked == [count]


@pytest.mark.parametrize(("n", "sets"), [(1024 * 3, 2), (512 * 3, 2), (256 * 9, 4), (64 * 17, 8), (7, 8)])
def test_frequencies_that_are_computed_again(n, sets, monkeypatch):
    """As many sets as make 1,024 frequencies, from two, the first and the last, to eight, each as large as a power of two allows."""
    seen, rows = [], _checks.rows
    monkeypatch.setattr(_checks, "rows", lambda x, index: seen.append(index.tolist()) or rows(x, index))
    w = workloads.get("fft")(n=n)
    inputs = w.inputs("cpu")
    w.difference(w.run(*inputs), inputs)
    assert len(seen) <= sets
    assert seen[0][0] == 0
    assert seen[-1][-1] == n - 1
    assert {len(one) for one in seen} == {math.gcd(n, 1024)}
    assert len({index for one in seen for index in one}) == len(seen) * len(seen[0])


@pytest.mark.parametrize(("flops", "count"), [(1e6, 64), (1e8, 10), (1e12, 1)])
def test_long_references_have_fewer_rows(flops, count, monkeypatch):
    """A thousand million operations are spent on them, and one row whatever it costs."""
    asked, pick = [], _checks.pick
    monkeypatch.setattr(_checks, "pick", lambda w, many, below: asked.append(many) or pick(w, many, below))
    w = dataclasses.replace(workloads.get("softmax"), flops=lambda w: flops * w.n)(n=100, width=2)
    inputs = w.inputs("cpu")
    w.difference(w.run(*inputs), inputs)
    assert asked == [count]


@pytest.mark.parametrize(
    ("count", "below", "expected"), [(5, 5, [0, 1, 2, 3, 4]), (9, 5, [0, 1, 2, 3, 4]), (1, 9, [0]), (2, 9, [0, 8]), (3, 3, [0, 1, 2])]
)
def test_few_indices(count, below, expected):
    """All where they are few; one is the first, two are the ends."""
    assert _checks.pick(workloads.get("add")(n=4), count, below).tolist() == expected


def test_many_indices():
    """Three or more are the ends and others between them, ascending; one size draws the same each time, others others."""
    drawn = [tuple(_checks.pick(workloads.get("add")(n=n), 3, 4).tolist()) for n in (*range(1, 30), *range(1, 30))]
    assert set(drawn) == {(0, 1, 3), (0, 2, 3)}
    assert drawn[:29] == drawn[29:]
    many = _checks.pick(workloads.get("add")(n=4), 64, 10**6).tolist()
    assert many == sorted(set(many))
    assert len(many) == 64


def test_relative_difference_by_hand():
    """The largest distance by the largest reference, absolute where that is zero; nothing agrees with nothing."""
    of = lambda *values: torch.tensor(values, dtype=torch.float64)  # noqa: E731
    assert _checks.relative_difference(of(1, -8.5), of(2, -8)) == 1 / 8
    assert _checks.relative_difference(of(0, 0.5), of(0, 0)) == 0.5
    assert _checks.relative_difference(of(), of()) == 0
    assert _checks.relative_difference(of(1), of(1, 2)) == math.inf
    assert _checks.relative_difference(of(math.nan, 1), of(1, 1)) == math.inf


def test_a_result_whose_inputs_have_other_rows_is_infinitely_far():
    """Rows that the result has and the inputs do not cannot be computed again."""
    w = make("linear", 3)
    inputs = w.inputs("cpu")
    assert w.difference(torch.zeros(4, 64), inputs) == math.inf
    assert make("add", 4).difference(torch.tensor(1.0), (torch.ones(4), torch.ones(4))) == math.inf


def test_roundoff_is_half_of_pytorchs_eps():
    """The distance from 1 to the next number, halved; TF32 has float16's ten bits behind the point (NVIDIA, A100 whitepaper)."""
    halves = {name: torch.finfo(getattr(torch, name)).eps / 2 for name in ("float64", "float32", "float16", "bfloat16")}
    assert {**halves, "tf32": halves["float16"]} == _checks.ROUNDOFF


@pytest.mark.parametrize(
    ("dtype", "limit"),
    [("float64", 36 * 2**-53), ("float32", 36 * 2**-24), ("bfloat16", 4 * 2**-8 + 32 * 2**-24), ("float16", 4 * 2**-11 + 32 * 2**-24)],
)
def test_tolerance_is_what_its_reason_says(dtype, limit):
    """Sums of 16 terms: four roundings of the dtype, and 8 times 4 of what it is summed in."""
    assert workloads.get("matmul")(n=16, dtype=dtype).tolerance == limit


def test_the_reason_in_full():
    """Both kinds of rounding, with their size and number."""
    assert workloads.get("matmul")(n=16, dtype="bfloat16").tolerance_reason == (
        "4 roundings of bfloat16 (2^-8 each), and 8 sqrt(k) roundings of float32 for sums of k = 16 terms"
    )


# The terms of the longest sum; 9 of what n counts.
TERMS = {
    "matmul": ({}, 9), "linear": ({"features": 4}, 4), "attention": ({}, 9), "solve": ({}, 9), "add": ({}, 1), "exp": ({}, 1),
    "gelu": ({}, 1), "sort": ({}, 1), "embedding_gather": ({}, 1),
    # In cascades: three sums of three.
    "sum": ({}, 3), "softmax": ({"width": 5}, 5), "layer_norm": ({"width": 5}, 5),
    # log2 9 stages of sums of two, and a phase.
    "fft": ({}, 3.17 + 1),
    # Nine pixels of the channels of a group.
    "conv2d": ({"channels": 4}, 36), "grouped_conv2d": ({"channels": 4, "groups": 2}, 18), "depthwise_conv2d": ({"channels": 4}, 9),
    # A weight's gradient: over the batch, and each pixel or token.
    "cnn_training_step": ({"side": 4}, 9 * 16), "transformer_training_step": ({}, 9 * 128),
}  # fmt: skip


@pytest.mark.parametrize("name", workloads.names())
def test_terms_of_the_longest_sum(name):
    """How long a sum is decides how much rounding is allowed."""
    params, terms = TERMS[name]
    spec = workloads.get(name)
    assert spec.sum_length(spec(n=9, **params)) == pytest.approx(terms, rel=0.001)


def test_sort_takes_the_checksum_above_its_limit(monkeypatch):
    """Up to the limit the distance is a number, above it what is wrong is infinitely far; in each dtype, of whatever width."""
    monkeypatch.setattr(_irregular, "_SORT_AGAIN", 16)
    for dtype in workloads.get("sort").dtypes:
        for n in (16, 17):
            w = make("sort", n, dtype)
            inputs = w.inputs("cpu")
            good = w.run(*inputs)
            assert w.difference(good, inputs) == 0
            assert (w.difference(good.flip(0), inputs) < math.inf) == (n == 16)
            other = good.clone()
            other[-1] = 100
            assert (w.difference(other, inputs) < math.inf) == (n == 16)
            assert w.difference(other, inputs) > 0


@pytest.mark.parametrize(("dtype", "flops", "off", "expected"), [
    ("float32", 3e11, 0.052, 0.052), ("float32", 3e11, 0.048, 0), ("float32", 3.1e11, 0.5, 0), ("bfloat16", 1e9, 0.5, 0),
    ("float32", 3e11, math.nan, math.inf), ("float32", 3e11, None, math.inf),
])  # fmt: skip
def test_when_a_gradient_counts(dtype, flops, off, expected):
    """From 5 % on; neither in bfloat16 nor where the reference were long; one that is missing or no number is infinitely far."""
    w = dataclasses.replace(workloads.get("cnn_training_step"), flops=lambda _: flops)(n=2, dtype=dtype, side=8, width=2)
    inputs = w.inputs("cpu")
    loss = w.run(*inputs)
    first = next(inputs[0].model.parameters())
    first.grad = None if off is None else first.grad * (1 + off)
    assert w.difference(loss, inputs) == pytest.approx(expected, abs=w.tolerance if dtype == "bfloat16" else 1e-3)


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


@pytest.mark.parametrize("name", ["cnn_training_step", "transformer_training_step"])
def test_a_training_step_is_a_step_of_adam_with_gradients_of_its_own(name):
    """Each call sets the gradients anew, and Adam counts it; by torch.autograd, on the batch that it is given."""
    w = make(name, 2)
    step, x, y = w.inputs("cpu")
    model = step.model
    expected = torch.autograd.grad(step.loss(model, x, y), list(model.parameters()))
    for count in (1, 2):
        assert not w.run(step, x, y).requires_grad
        for parameter, gradient in zip(model.parameters(), expected, strict=True):
            torch.testing.assert_close(parameter.grad, gradient, rtol=1e-3, atol=1e-4)
        assert {int(state["step"]) for state in step._optimizer.state.values()} == {count}
        assert len(step._optimizer.state) == len(expected)


@pytest.mark.parametrize(("kind", "expected"), [("cuda", "cuda"), ("cpu", "cpu"), ("mps", "cpu"), ("xpu", "cpu")])
def test_the_reference_of_a_step_is_computed_on_a_cuda_device_or_the_cpu(kind, expected):
    """Apple's GPUs and some of Intel's have no float64; the model itself stays where it is."""

    class Model(types.SimpleNamespace):
        def parameters(self):
            return iter([types.SimpleNamespace(device=types.SimpleNamespace(type=kind))])

        def to(self, device):
            self.moved = getattr(device, "type", device)
            return self

        def double(self):
            return "double", self.moved

    model = Model()
    assert _training._reference_model(model) == ("double", expected)
    assert vars(model) == {}


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
