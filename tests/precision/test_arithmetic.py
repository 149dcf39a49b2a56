"""Effects of rounding: sums and products against fractions, gradients, autocast, TF32."""

import copy
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from gpulab import precision
from hypothesis import given, settings
from hypothesis import strategies as st
from integer_formats import SHAPES, round_fraction
from made_training import told
from torch import nn

from refusals import defaults, refusals


def added(terms: list[Any], name: str) -> float:
    """Return the sum term by term, each step rounded once, in exact fractions."""
    total = Fraction(0)
    for term in terms:
        total = round_fraction(total + Fraction(term), *SHAPES[name])
    return float(total)


def row(found: Any, *wanted: str) -> Any:
    """Return the first row whose leading fields (formats, then order) are ``wanted``."""
    return next(each for each in found.rows if each[: len(wanted)] == wanted)


# -- sums and products -----------------------------------------------------------------------------


@given(
    st.lists(st.floats(-1e3, 1e3, width=16), min_size=1, max_size=30), st.sampled_from(list(SHAPES))
)
@settings(max_examples=200, deadline=None)
def test_a_sum_is_rounded_once_a_step(x: list[float], name: str) -> None:
    """A sum one by one equals one in fractions that is rounded once per step."""
    found = precision.sum_error(x, [name])
    held = [float(precision.round_to(value, name)) for value in x]
    assert (row(found, name).total, found.exact) == (
        added(held, name),
        float(sum(map(Fraction, x))),
    )


def test_sums_by_hand(approved: Any) -> None:
    """In float16 2,048 + 1 is 2,048; pairs avoid it; by chance the mean is right; ties to even."""
    ones = precision.sum_error(np.ones(3000), names := ["float16", "bfloat16", "float32"])
    assert [row(ones, name).total for name in names] == [2048, 256, 3000]
    better = [row(ones, "float16", "float16", "in pairs"), row(ones, "float16", "float32")]
    assert [each.total for each in better] == [3000, 3000]
    tie = precision.sum_error([1.0, 2.0**-11, 2.0**-11], ["float16"])
    assert (row(tie, "float16").total, row(tie, "float16", "float32").total) == (1.0, 1 + 2.0**-10)
    many = (precision.sum_error(np.full(3000, 0.1), ["bfloat16"], seed) for seed in range(30))
    totals = [row(one, *["bfloat16"] * 2, "one by one, by chance").total for one in many]
    held = 3000 * float(precision.round_to(0.1, "bfloat16"))
    assert abs(np.mean(totals) - held) < 4 * np.std(totals) / math.sqrt(30)
    over = precision.sum_error([60000.0, 60000.0], ["float16"])
    lost = precision.sum_error([1.0, 2.0**-13, -1.0, -(2.0**-13)], ["float16"])
    assert (lost.exact, row(lost, "float16").relative_error) == (0.0, math.inf)
    assert told(ones, over, lost) == approved


def test_a_product_against_fractions() -> None:
    """Operands rounded, products exact, each sum rounded once; the device's own is MEASURED."""
    rng = np.random.default_rng(2)
    a, b = rng.normal(size=(3, 20)), rng.normal(size=(20, 2))
    got = precision.matmul_error(a, b, ["float16"], device="simulated")
    left, right = (precision.round_to(each, "float16") for each in (a, b))
    for name in ("float16", "float32"):
        errors, way = np.zeros((3, 2)), row(got, "float16", name)
        for i, j in np.ndindex(3, 2):
            terms = [Fraction(left[i, k]) * Fraction(right[k, j]) for k in range(20)]
            errors[i, j] = abs(added(terms, name) - (a @ b)[i, j])
        rms = np.sqrt((errors**2).mean() / ((a @ b) ** 2).mean())
        expected = (errors.max() / np.abs(a @ b).max(), rms)
        assert (way.max_relative_error, way.rms_relative_error) == pytest.approx(expected)
    here = precision.matmul_error(a, b, ["float32", "bfloat16", "float8_e4m3fn"], device="cpu")
    measured = {each.operands: each for each in here.rows if each.badge == "MEASURED"}
    assert (set(measured), measured["bfloat16"].max_relative_error < 2 * 2.0**-8) == (
        {"float32", "bfloat16"},
        True,
    )
    assert measured["float32"].max_relative_error < 20 * 2.0**-24


# -- gradients -------------------------------------------------------------------------------------


def test_gradients_by_hand(approved: Any) -> None:
    """Y = 5 relu(3 x) at 2: dw1 = 10, dw2 = 6, dy = 1, drelu = dfirst = 5; also x < 0 and nan."""
    first, second, other = (nn.Linear(*n, bias=False) for n in ((1, 1), (1, 1), (3, 2)))
    # only the first of these layers makes gradients of its own
    between = nn.ReLU(inplace=True), nn.Identity(), nn.Flatten(), nn.Dropout(0.0)
    model, state = nn.Sequential(first, *between, second), torch.get_rng_state()
    nn.init.constant_(first.weight, 3.0)
    nn.init.constant_(second.weight, 5.0)
    found = precision.gradients(model, torch.tensor([[2.0]]), loss=torch.sum)
    assert (
        found.kind("parameters").sorted_magnitudes.tolist(),
        found.kind("activations").sorted_magnitudes.tolist(),
    ) == ([6.0, 10.0], [1.0, 5.0, 5.0])
    shut = precision.gradients(model, torch.tensor([[-2.0]]), loss=torch.sum)
    lost = precision.gradients(other, torch.tensor([[1.0, math.nan, 2.0]]), loss=torch.sum)
    assert (
        all(p.grad is None for p in model.parameters()),
        torch.equal(torch.get_rng_state(), state),
    ) == (True, True)
    text = "".join(f"{one.all!r}\n{told(one)}" for one in (found, shut, lost))
    assert text.replace(found.evidence.device, "A CPU") == approved


def test_gradients_leave_the_model_as_it_is() -> None:
    """A norm's averages and float64 weights stay; targets reach the loss, and one kind is chosen.

    By hand: 2 and 4 are normalized to -1 and 1, three times that minus the target 1 is -4 and 2,
    whose squares give dy = -8, 4 and three times that before; dw = 12, and of the norm 36 and -12.
    """
    model = nn.Sequential(nn.BatchNorm1d(1, eps=1e-12), nn.Linear(1, 1, bias=False)).double()
    nn.init.constant_(model[1].weight, 3.0)
    before, x = copy.deepcopy(model.state_dict()), torch.tensor([[2.0], [4.0]]).double()
    options = {"loss": lambda y, t: (y - t).square().sum(), "targets": torch.ones(2, 1)}
    found = precision.gradients(model, x, **options)
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)
    sizes = [found.kind(kind).sorted_magnitudes for kind in ("parameters", "activations")]
    assert np.concatenate(sizes) == pytest.approx([12, 12, 36, 4, 8, 12, 24])
    one = precision.gradient_window(found, which="activations")
    facts = (one.which, one.label, one.count, one.evidence)
    assert facts == ("activations", "Sequential", 4, found.evidence)


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float8_e4m3fn", "float4_e2m1fn"])
@pytest.mark.parametrize("scale", [1.0, 2.0**-7, 3000.0])
def test_shares_are_those_of_the_rounding_itself(name: str, scale: float) -> None:
    """The zero, subnormal and overflowing shares are those of rounding each value, with ties."""
    f = precision.format(name)
    edges = [f.smallest_subnormal / 2, f.smallest_normal, f.overflow_threshold, f.largest]
    near = np.concatenate([edges, np.nextafter(edges, 0), np.nextafter(edges, math.inf)])
    ends = (math.log(f.smallest_subnormal) - 4, math.log(min(f.largest, 1e30)) + 3)
    spread = np.exp(np.random.default_rng(0).uniform(*ends, 4000))
    given_ = np.concatenate([near / scale, spread])
    found = precision.gradient_window(given_, name, scale)
    got = precision.round_to(given_ * scale, name, overflow="nan" if f.has_nan else None)
    beyond = ~np.isfinite(got) if f.has_nan else given_ * scale >= f.overflow_threshold
    kinds = [(got == 0).mean(), ((got > 0) & (got < f.smallest_normal)).mean(), beyond.mean()]
    shares = (found.vanishing_share, found.subnormal_share, found.overflowing_share)
    assert shares == pytest.approx(kinds, abs=1e-12)


@given(
    st.lists(st.floats(1e-35, 1e30), min_size=1, max_size=30),
    st.sampled_from(["float16", "float8_e5m2", "bfloat16"]),
    st.sampled_from([0.0, 0.1, 0.5]),
)
@settings(max_examples=100, deadline=None)
def test_safe_scales_are_the_ends(values: list[float], name: str, tolerance: float) -> None:
    """The lowest scale loses at most the tolerance, half of it more; the highest overflows none."""
    at = lambda s: precision.gradient_window(values, name, s, tolerance=tolerance)  # noqa: E731
    low, high = at(1.0).lowest_scale, at(1.0).highest_scale
    if low is not None and low > 2.0**-126:
        assert at(low).vanishing_share <= tolerance < at(low / 2).vanishing_share
    if high is not None and high < 2.0**127:
        assert at(high).overflowing_share == 0 < at(2 * high).overflowing_share


def test_gradient_windows_in_words(approved: Any) -> None:
    """By hand: 2^-30 s > 2^-25 from s = 64 on, 8 s < 65,520 up to 4,096; many are sampled."""
    found = precision.gradient_window([2.0**-30, 2.0**-10, 8.0], "float16", tolerance=0.0)
    assert (found.lowest_scale, found.highest_scale) == (64.0, 4096.0)
    windows = [
        found, precision.gradient_window([2.0**-30, 8.0], "float16", 64.0, tolerance=0.0),
        precision.gradient_window([1e-8, 1e-6, 1e-3, 1.0]), precision.gradient_window([0.0, 0.0]),
        precision.gradient_window([1e-3, math.nan, math.inf, 0.0]),
        precision.gradient_window([1.0, 2.0**40], "float8_e4m3fn"),
        precision.gradient_window([1e-300]),
        precision.gradient_window([1.5, 3.9, 4.0], scale=2.0**20),
        # one value of 30,000 and one of 3,000 vanishes
        precision.gradient_window([1e-9] + [1.0] * 29_999),
        precision.gradient_window([1e-9] + [1.0] * 2_999),
    ]  # fmt: skip
    lines = (f"{one.exponents} {one.counts}\n" for one in windows)
    assert told(*windows) + "".join(lines) == approved
    many = np.exp(np.random.default_rng(2).normal(-12, 4, 400_000))
    exact = (precision.round_to(many, "float16") == 0).mean()
    assert precision.gradient_window(many).vanishing_share == pytest.approx(exact, abs=1e-3)


# -- autocast --------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_the_cpus_policy_is_the_documented_one(dtype: str) -> None:
    """Over 100 operators follow the documented lists, except three that the lists leave out."""
    # the caller's mode changes nothing
    policy = torch.inference_mode(dtype == "float16")(precision.autocast_policy)("cpu", dtype)
    assert (
        policy.evidence.badge,
        len(policy.rows) > 100,
        "not as documented: tensordot" in [row[0] for row in policy.table()[1]],
    ) == ("MEASURED", True, True)
    # The first two call mm, which is listed; the third has a kernel in PyTorch's autocast registry.
    left_out = {"multi_dot", "tensordot", "smooth_l1_loss"}
    seen = [row for row in policy.rows if row.policy is not None]
    assert {row.operator for row in seen if row.policy != row.documented} <= left_out
    wanted = {
        "lower": {"linear", "conv2d", "matmul", "bmm"}, "widest": {"cat", "stack"},
        "float32": {"cross_entropy", "mse_loss", "prod"},
        "inputs": {"layer_norm", "softmax", "gelu", "sum", "exp"},
    }  # fmt: skip
    for kind, names in wanted.items():
        assert names <= set(policy.operators(kind))
    ran = (policy.row("linear").float32_runs_in, policy.row("prod").lower_runs_in)
    assert (*ran, torch.is_autocast_enabled("cpu")) == (dtype, "float32", False)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["cuda", "xpu"])
def test_policies_of_devices_that_are_not_here(kind: str) -> None:
    """Without the device, CUDA's policy comes from PyTorch's dispatcher, others from the lists."""
    if torch.cuda.is_available():
        pytest.skip("this machine has CUDA: the gpu test observes it")
    policy = precision.autocast_policy(kind, "float16")
    assert (
        policy.evidence.badge,
        policy.observed,
        {"layer_norm", "exp"} <= set(policy.operators("float32")),
    ) == ("MODELLED", kind == "cuda", True)
    seen = [row for row in policy.rows if row.policy is not None]
    assert {row.documented for row in seen if row.policy != row.documented} <= {"inputs"}
    assert kind == "xpu" or policy.row("scaled_dot_product_attention").note


def test_autocast_in_tables(approved: Any) -> None:
    """The table of a policy for four operators, as a notebook shows it."""
    policy = precision.autocast_policy("cpu", "bfloat16", ["linear", "mse_loss", "cat", "relu"])
    assert f"{policy!r}\n{policy.table()}\n" == approved


GRADIENTS = precision.gradients(nn.Linear(2, 1), torch.ones(1, 2), loss=torch.sum)
ONE, POLICY = ([[1.0]], [[1.0]]), precision.autocast_policy("cpu", operators=["add"])
REFUSED = [
    *[(function, (1.0, "half"), {}) for function in (
        precision.round_to, precision.encode, precision.number,
    )],
    *[(precision.round_to, (x, "float16"), {}) for x in ("1.5", [1j], 2**53 + 1, True)],
    (precision.round_to, (1.0, "float8_e4m3fn", "infinity"), {}),
    (precision.round_to, (1.0, "int8", "nan"), {}), (precision.decode, (256, "int8"), {}),
    (precision.decode, (1.5, "int8"), {}),
    (precision.number, ([1.0], "int8"), {}), (precision.number, (1.0, "int8", 10_001), {}),
    *[(precision.number_from_bits, (bits, "int8"), {}) for bits in ("0101", "2" * 8, 256, 1.5)],
    (precision.nearby, (1.0, math.inf, "int8"), {}), (precision.nearby, (2.0, 1.0, "int8"), {}),
    *[(precision.sum_error, given_, {}) for given_ in (
        ([],), ([math.nan],), ([1e308] * 2,), ([1.0], []), ([1.0], ["int8"]), ([1.0], 5),
        ([1.0], ["float16"], -1), (np.ones(1_000_001),),
    )],
    (precision.matmul_error, (*ONE, ["int8"]), {}),
    (precision.matmul_error, ([[1.0] * 3] * 2, [[1.0] * 3] * 2), {}),
    (precision.matmul_error, (np.ones((2**10, 2**9)), np.ones((2**9, 2**8))), {}),
    *[(precision.gradient_window, ([1.0],), options) for options in (
        {"format": "int8"}, {"scale": 0}, {"scale": math.inf}, {"tolerance": 2},
        {"tolerance": True},
    )],
    (precision.gradient_window, ([],), {}),
    (precision.gradient_window, (GRADIENTS,), {"which": "all of it"}),
    (precision.gradients, ("model",), {}), (precision.gradients, (nn.ReLU(), torch.ones(2)), {}),
    (precision.gradients, (nn.Linear(2, 2), torch.ones(2)), {}), (GRADIENTS.kind, ("weights",), {}),
    (precision.autocast_policy, ("cpu", "float8"), {}), (POLICY.row, ("mul",), {}),
    (precision.autocast_policy, ("cpu",), {"operators": ["add", "half"]}),
    (POLICY.operators, ("up",), {}),
]  # fmt: skip


def test_refusals_and_defaults(approved: Any) -> None:
    """The errors of refused arguments, and the default options."""
    assert refusals(REFUSED) + defaults(precision) == approved


@pytest.mark.gpu
def test_a_gpu_does_what_the_models_say(request: pytest.FixtureRequest) -> None:
    """Autocast follows its documentation; TF32 keeps ten mantissa bits of each operand."""
    policy = precision.autocast_policy("cuda", "float16")
    assert (policy.evidence.badge, policy.row("layer_norm").policy) == ("MEASURED", "float32")
    a, b = (torch.randn(256, 256) for _ in range(2))
    exact, errors = a.double() @ b.double(), []
    at = torch.backends.cuda.matmul
    request.addfinalizer(lambda was=at.fp32_precision: setattr(at, "fp32_precision", was))
    for arithmetic in ("tf32", "ieee"):
        at.fp32_precision = arithmetic
        product = (a.cuda() @ b.cuda()).cpu().double()
        errors.append(float((product - exact).abs().max() / exact.abs().max()))
    simulated = precision.matmul_error(a, b, ["tf32"], device="simulated").rows[1]
    if torch.cuda.get_device_capability() >= (8, 0):
        assert 0.3 < errors[0] / simulated.max_relative_error < 4
    assert errors[1] < 1e-5
