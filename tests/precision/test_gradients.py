"""Gradients of a real model, and what a format makes of them: against gradients by hand and against PyTorch's own casts."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from gpulab import networks, precision
from gpulab.errors import InputError
from gpulab.evidence import Badge
from gpulab.precision import _gradients, _window


class Chain(nn.Module):
    """y = w2 * relu(w1 * x): every gradient can be written down."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)
        self.between = nn.ReLU(inplace=True)
        with torch.no_grad():
            self.first.weight.fill_(3.0)
            self.second.weight.fill_(5.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The chain."""
        return self.second(self.between(self.first(x)))


def test_gradients_by_hand() -> None:
    """With y = 5 relu(3 x), x = 2, loss y: dw1 = 5 x 2 = 10, dw2 = 6; dy = 1, d relu = 5, d first = 5, though the ReLU works in place."""
    g = precision.gradients(Chain(), torch.tensor([[2.0]]), loss=torch.sum)
    assert g.kind("parameters").sorted_magnitudes.tolist() == [6.0, 10.0]
    assert g.kind("activations").sorted_magnitudes.tolist() == [1.0, 5.0, 5.0]
    assert (g.all.count, g.all.smallest, g.all.largest) == (5, 1.0, 10.0)
    assert g.evidence.badge is Badge.MEASURED
    shut = precision.gradients(Chain(), torch.tensor([[-2.0]]), loss=torch.sum)
    assert shut.kind("parameters").zeros == 2
    assert shut.kind("activations").zeros == 1


def test_gradients_of_an_embedding_may_be_sparse() -> None:
    """Rows 1 and 2 of five get a gradient of 1 in each of their two numbers; the others none. A sparse tensor itself is refused."""
    model = nn.Sequential(nn.Embedding(5, 2, sparse=True))
    g = precision.gradients(model, torch.tensor([1, 2]), loss=torch.sum)
    assert (g.kind("parameters").count, g.kind("parameters").zeros) == (10, 6)
    assert g.kind("parameters").sorted_magnitudes.tolist() == [1.0] * 4
    with pytest.raises(InputError, match="expected numbers"):
        precision.gradient_window(torch.eye(3).to_sparse())


def test_a_device_without_float64_gives_its_numbers_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Apple's GPUs refuse float64: what is asked for it must have come to main memory before."""
    come, double = torch.Tensor.cpu, torch.Tensor.double

    def cpu(tensor: torch.Tensor) -> torch.Tensor:
        here = come(tensor)
        here.has_come = True  # type: ignore[attr-defined]
        return here

    def refuse(tensor: torch.Tensor) -> torch.Tensor:
        if not hasattr(tensor, "has_come"):
            raise TypeError("Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't support float64.")
        return double(tensor)

    monkeypatch.setattr(torch.Tensor, "cpu", cpu)
    monkeypatch.setattr(torch.Tensor, "double", refuse)
    assert precision.gradients(Chain(), torch.tensor([[2.0]]), loss=torch.sum).all.largest == 10.0


def test_the_model_is_left_alone() -> None:
    """Weights, gradients, running statistics, hooks and the random generator are as before."""
    model = networks.cnn(width=4)
    images, labels = torch.rand(8, 1, 8, 8), torch.arange(8)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    g = precision.gradients(model, images, loss=nn.functional.cross_entropy, targets=labels)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
    assert not any(module._forward_hooks for module in model.modules())
    assert g.kind("parameters").count == sum(p.numel() for p in model.parameters())


def test_parameters_are_autograds() -> None:
    """The same magnitudes as a plain backward pass."""
    torch.manual_seed(0)
    model, x, y = networks.mlp(4, 8, 3), torch.rand(5, 4), torch.tensor([0, 1, 2, 0, 1])
    g = precision.gradients(model, x, loss=nn.functional.cross_entropy, targets=y)
    nn.functional.cross_entropy(model(x), y).backward()
    flat = torch.cat([p.grad.flatten() for p in model.parameters()]).double().abs()
    np.testing.assert_allclose(g.kind("parameters").sorted_magnitudes, np.sort(flat[flat > 0].numpy()), rtol=1e-6)


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float8_e5m2", "float8_e4m3fn", "float4_e2m1fn"])
@pytest.mark.parametrize("scale", [1.0, 1024.0, 2.0**-7, 3000.0])
def test_shares_are_those_of_the_rounding_itself(name: str, scale: float) -> None:
    """Rounding every scaled gradient gives the same shares, boundaries and ties included."""
    f = precision.format(name)
    edges = [f.smallest_subnormal / 2, f.smallest_normal - f.smallest_subnormal / 2, f.overflow_threshold, f.largest, f.smallest_normal]
    near = np.array([v for e in edges for v in (e, math.nextafter(e, 0), math.nextafter(e, math.inf))]) / 1024
    spread = np.exp(np.random.default_rng(0).uniform(math.log(f.smallest_subnormal) - 4, math.log(min(f.largest, 1e30)) + 3, 4000))
    given_ = np.concatenate([near * 1024, near, spread])
    given_ = given_[np.isfinite(given_)]
    w = precision.gradient_window(given_, name, scale)
    got = precision.round_to(np.abs(given_) * scale, name, overflow="nan" if f.has_nan else None)
    beyond = ~np.isfinite(got) if f.has_nan else given_ * scale >= f.overflow_threshold
    assert w.vanishing_share == pytest.approx((got == 0).mean(), abs=1e-12)
    assert w.subnormal_share == pytest.approx(((got > 0) & (got < f.smallest_normal)).mean(), abs=1e-12)
    assert w.overflowing_share == pytest.approx(beyond.mean(), abs=1e-12)


def test_shares_are_those_of_pytorchs_half() -> None:
    """Float32 gradients cast by PyTorch: the same count of zeros and of infinities."""
    torch.manual_seed(1)
    values = torch.exp(torch.empty(20_000).uniform_(-25, 13))
    w = precision.gradient_window(values, "float16", 16)
    cast = (values * 16).half()
    assert round(w.vanishing_share * 20_000) == (cast == 0).sum().item() > 1000
    assert round(w.overflowing_share * 20_000) == torch.isinf(cast).sum().item() > 1000


def test_safe_scales_by_hand() -> None:
    """From 2**-30 to 8 in float16: 2**-30 * s > 2**-25 from s = 64 on; 8 s < 65520 up to 4096."""
    w = precision.gradient_window([2.0**-30, 2.0**-10, 8.0], "float16", tolerance=0.0)
    assert (w.lowest_scale, w.highest_scale, w.scales_exist, w.safe) == (64.0, 4096.0, True, False)
    assert precision.gradient_window([2.0**-30, 8.0], "float16", 64.0, tolerance=0.0).safe
    assert not precision.gradient_window([2.0**-30, 8.0], "float16", 8192.0 * 2, tolerance=0.0).safe
    wide = precision.gradient_window([2.0**-60, 8.0], "float16", tolerance=0.0)
    assert not wide.scales_exist
    assert "No scale is safe" in wide.explanation
    assert precision.gradient_window([2.0**-60, 8.0], "bfloat16", tolerance=0.0).safe


@given(
    st.lists(st.floats(1e-35, 1e30), min_size=1, max_size=30),
    st.sampled_from(["float16", "float8_e5m2", "bfloat16"]),
    st.sampled_from([0.0, 0.1, 0.5]),
)
@settings(max_examples=150, deadline=None)
def test_safe_scales_are_the_ends(values: list[float], name: str, tolerance: float) -> None:
    """At the lowest scale no more than the tolerance vanishes, at half of it more; at the highest nothing overflows, at twice it does."""
    w = precision.gradient_window(values, name, tolerance=tolerance)
    at = lambda s: precision.gradient_window(values, name, s, tolerance=tolerance)  # noqa: E731
    if w.lowest_scale is not None and w.lowest_scale > 2.0**-126:
        assert at(w.lowest_scale).vanishing_share <= tolerance
        assert at(w.lowest_scale / 2).vanishing_share > tolerance
    if w.highest_scale is not None and w.highest_scale < 2.0**127:
        assert at(w.highest_scale).overflowing_share == 0
        assert at(w.highest_scale * 2).overflowing_share > 0


def test_what_is_no_number_already_is_told() -> None:
    """No scale is safe then, the sentence and the table begin with it; gradients that are all zero have nothing to scale."""
    window = precision.gradient_window([1e-3, math.nan, math.inf, 0.0], "float16")
    assert window.explanation.startswith("2 of 4 gradients are infinite or nan already")
    assert "afe scales" not in window.explanation
    assert not window.scales_exist
    assert not window.safe
    assert window.table()[1][0] == ("infinite or nan already", "2 of 4", "no scale mends them")
    assert precision.gradient_window([math.nan]).explanation == "1 of 1 gradients are infinite or nan already, which no scale mends."
    assert precision.gradient_window([0.0, 0.0]).explanation == "All 2 gradients are exactly zero, so there is nothing to scale."


def test_a_diverged_models_gradients_are_counted() -> None:
    """A nan in the input makes every gradient that it reaches a nan; the text and the table say how many."""
    found = precision.gradients(nn.Linear(3, 2, bias=False), torch.tensor([[1.0, math.nan, 2.0]]), loss=torch.sum)
    assert found.kind("parameters").not_finite == 2, "the gradient of a weight is its input"
    assert repr(found).endswith("; 2 infinite or nan>")
    assert ("parameters, infinite or nan", "2", "", "", "", "") in found.table()[1]
    assert not any("infinite" in row[0] for row in precision.gradients(nn.Linear(3, 1), torch.ones(1, 3), loss=torch.sum).table()[1])


def test_the_histogram_counts_by_power_of_two() -> None:
    """By hand; a scale moves no bar, since the window is what moves."""
    w = precision.gradient_window([0.25, 0.3, 0.5, 3.9, 4.0, 0.0, math.inf], "float16", 8)
    assert dict(zip(w.exponents, w.counts, strict=True)) == {-2: 2, -1: 1, 0: 0, 1: 1, 2: 1}
    assert (w.count, w.zeros, w.not_finite) == (7, 1, 1)


def test_many_gradients_are_thinned_evenly() -> None:
    """More than are kept: the two ends stay, and shares stay right to a thousandth; kinds keep their weights together."""
    values = np.exp(np.random.default_rng(2).normal(-12, 4, 400_000))
    kept = precision.Magnitudes.of("parameters", [values])
    assert kept.sorted_magnitudes.size == _gradients.MOST_KEPT == 131_072
    assert (kept.smallest, kept.largest, kept.finite) == (values.min(), values.max(), 400_000)
    exact = (precision.round_to(values, "float16") == 0).mean()
    assert precision.gradient_window(kept, "float16").vanishing_share == pytest.approx(exact, abs=1e-3)
    few = precision.Magnitudes.of("activations", [np.full(40_000, 1.0)])
    both = precision.Gradients("both", (kept, few), precision.gradient_window([1.0]).evidence)
    assert (both.all.sorted_magnitudes == 1.0).mean() == pytest.approx(40_000 / 440_000, rel=0.01)


def test_swallowed_updates_are_what_half_precision_loses() -> None:
    """PyTorch's own float16 and bfloat16 weights, updated in place, stay where this says so."""
    torch.manual_seed(2)
    weights = torch.randn(5000)
    updates = 1e-3 * torch.randn(5000) * weights.abs()
    for name in ("float16", "bfloat16"):
        dtype = getattr(torch, name)
        held = weights.to(dtype)
        then = (held.double() + updates.double()).to(dtype)  # far from ties, where one more rounding does no harm
        got = precision.swallowed_updates([weights.double()], [weights.double() + updates.double()], name)
        assert got.swallowed_share == pytest.approx((then == held).double().mean().item(), abs=2e-3)
        assert 0.2 < got.swallowed_share < 1


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: precision.gradients("model"), "expected a torch.nn.Module"),
        (lambda: precision.gradients(nn.ReLU(), torch.ones(2)), "no parameters"),
        (lambda: precision.gradients(nn.Linear(2, 2), torch.ones(2)), "Pass loss="),
        (lambda: precision.gradients(nn.Linear(2, 2), torch.ones(3), loss=torch.sum), "forward raised"),
        (lambda: precision.gradient_window([], "float16"), "got no gradients"),
        (lambda: precision.gradient_window([1.0], "int8"), "no float format"),
        (lambda: precision.gradient_window([1.0], "float16", 0), "scale=0"),
        (lambda: precision.gradient_window([1.0], "float16", math.inf), "scale=inf"),
        (lambda: precision.gradient_window([1.0], "float16", tolerance=2), "tolerance=2"),
        (lambda: precision.swallowed_updates([1.0], [1.0, 2.0], "float16"), "1 weights before, 2 after"),
        (lambda: precision.swallowed_updates([1.0], [1.0], "float16"), "no weight moved"),
    ],
)
def test_bad_input_is_named(call, says: str) -> None:
    """One sentence."""
    with pytest.raises(InputError, match=says):
        call()


def test_gradients_in_a_table_and_in_one_line() -> None:
    """Of the chain above: parameters 6 and 10, activations 1, 5 and 5; shut, two of two and one of three are zero."""
    g = precision.gradients(Chain(), torch.tensor([[2.0]]), loss=torch.sum)
    assert g.table() == (
        ("gradients of", "how many", "exactly zero", "smallest", "median", "largest"),
        [("parameters", "2", "0.0%", "6", "8", "10"), ("activations", "3", "0.0%", "1", "5", "5")],
    )
    assert repr(g) == "<gradients of Chain: 2 of parameters from 6 to 10; 3 of activations from 1 to 5>"
    assert repr(g.all) == "<5 gradients of all, from 1 to 10>"
    assert g.evidence.samples == 1
    shut = precision.gradients(Chain(), torch.tensor([[-2.0]]), loss=torch.sum)
    assert shut.table()[1] == [("parameters", "2", "100.0%", "none", "none", "none"), ("activations", "3", "33.3%", "1", "3", "5")]
    assert (shut.all.count, shut.all.zeros, shut.all.finite, shut.all.not_finite) == (5, 3, 2, 0)
    assert precision.Magnitudes.of("none", []).count == 0


def test_whole_numbers_go_in_as_they_are_and_what_is_not_used_has_no_gradient() -> None:
    """An embedding takes no floats; a double model is asked in float32; a layer beside the way has no gradients to count."""

    class Beside(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.out, self.idle = nn.Embedding(4, 2), nn.Linear(2, 1), nn.Linear(9, 9)

        def forward(self, tokens: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
            """The idle layer is not called."""
            return self.out(self.table(tokens)) * x

    g = precision.gradients(Beside().double(), torch.tensor([1, 2]), torch.ones(1, dtype=torch.float64), loss=torch.sum)
    assert (g.kind("parameters").count, g.kind("parameters").zeros) == (4 * 2 + 2 + 1, 4)  # two of four rows were looked up


def test_the_random_state_of_each_gpu_is_kept() -> None:
    """Each CUDA device of the parameters once, the first where none is named."""
    places = [torch.device("cuda", 1), torch.device("cuda"), torch.device("cuda", 1), torch.device("cpu")]
    model = SimpleNamespace(parameters=lambda: [SimpleNamespace(device=place) for place in places])
    assert _gradients._generators(model) == [0, 1]


def test_a_window_in_words_and_in_a_table() -> None:
    """Of 1e-8, 1e-6, 0.001 and 1 in float16: half of 2^-24 is 2.98e-8, the smallest normal 6.1e-5, the largest 65,504."""
    w = precision.gradient_window({"a": torch.tensor([1e-8, 1e-6], dtype=torch.float64), "b": np.array([1e-3, 1.0])})
    assert w.explanation == (
        "At scale 1 in float16: 25.00% become zero, 25.00% lose digits (subnormal). Safe scales are the powers of two from 4 to 32,768."
    )
    assert repr(w) == f"<given gradients of given in float16: {w.explanation}>"
    assert w.table() == (
        ("gradients that are", "share", "gradients of this size, before scaling"),
        [
            ("zero in the format", "25.00%", "at most 3e-08"), ("subnormal", "25.00%", "below 6.1e-05"), ("normal", "50.00%", ""),
            ("beyond the largest (becomes infinite)", "0%", "over 6.6e+04"),
            ("safe scales", "4 to 32,768", "at most 1.00% become zero, none overflows"),
        ],
    )  # fmt: skip
    scaled = precision.gradient_window([1e-3, 1.0], "float16", 1024.0)
    assert scaled.explanation.startswith("At scale 1,024 in float16: every gradient keeps all digits. Safe scales")
    assert [row[2] for row in scaled.table()[1][:2]] == ["at most 2.9e-11", "below 6e-08"]
    over = precision.gradient_window([1.0, 2.0**40], "float8_e4m3fn")
    assert over.explanation == (
        "At scale 1 in float8_e4m3fn: 50.00% become nan. "
        "No scale is safe: the gradients spread over more powers of two than float8_e4m3fn has."
    )
    assert over.table()[1][-1][1] == "none"
    assert (over.kept_share, over.overflowing_share, w.kept_share) == (0.5, 0.5, 0.5)


def test_the_edges_of_what_is_safe() -> None:
    """As many as are allowed may vanish, one scale is enough, and where all may vanish every scale is low enough."""
    assert precision.gradient_window([1e-8, 1.0, 1.0, 1.0], tolerance=0.25).safe
    one = precision.gradient_window([1.5 * 2.0**-25, 40_000.0], tolerance=0.0)
    assert (one.lowest_scale, one.highest_scale, one.scales_exist) == (1.0, 1.0, True)
    assert precision.gradient_window([1.0], tolerance=1.0).lowest_scale == 2.0**-126


@pytest.mark.parametrize(
    ("scale", "text"),
    [
        (2.0**20, "2^20"),
        (2.0**19, "524,288"),
        (0.5, "2^-1"),
        (1.0, "1"),
        (3000.0, "3,000"),
        (10.0, "10"),
        (9.0, "9"),
        (1.5, "1.5"),
        (12.5, "12.5"),
    ],
)
def test_scales_as_text(scale: float, text: str) -> None:
    """Powers of two beyond a million and below 1 as such."""
    assert _window.plain(scale) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0%"), (1.0, "100%"), (4.9e-5, "under 0.01%"), (5e-5, "0.01%"), (0.25, "25.00%"), (0.9999, "99.99%"), (0.99995, "over 99.99%")],
)
def test_shares_as_text(value: float, text: str) -> None:
    """0 and 100 only where it is exactly so."""
    assert _window.share(value) == text


def test_updates_in_a_table_and_in_one_line() -> None:
    """Of ratios 0.0001, 0.01 and 0.1 the middle one; half of 2^-10 swallows the first."""
    u = precision.swallowed_updates([1.0, 1.0, 0.001], [1.0001, 1.01, 0.0011], "float16")
    assert repr(u) == "<33.33% of 3 updates are swallowed in float16>"
    assert u.table()[1] == [("float16", "3", "1.0e-02", "33.33%")]


def test_a_window_over_nothing_and_over_what_no_scale_reaches() -> None:
    """One zero has every power of two that float32 holds; what is smaller or larger than those can mend has none."""
    nothing = precision.gradient_window([0.0])
    assert nothing.explanation == "The one gradient is exactly zero, so there is nothing to scale."
    assert (nothing.lowest_scale, nothing.highest_scale, nothing.exponents, nothing.counts) == (2.0**-126, 2.0**127, (), ())
    assert (nothing.vanishing_share, nothing.subnormal_share, nothing.overflowing_share, nothing.kept_share) == (0, 0, 0, 1)
    assert nothing.largest == 0.0
    tiny, huge = precision.gradient_window([1e-300]), precision.gradient_window([1e300])
    assert (tiny.lowest_scale, tiny.highest_scale, huge.lowest_scale, huge.highest_scale) == (None, 2.0**127, 2.0**-126, None)
    assert (tiny.table()[1][-1][1], huge.table()[1][-1][1]) == ("none", "none")


def test_the_last_powers_of_two_are_scales_too() -> None:
    """In float16 a gradient of 1.5 x 2^-152 stays from 2^127 on (1.5 x 2^-25 is over half of 2^-24), and one of 2^141 up to 2^-126."""
    assert precision.gradient_window([1.5 * 2.0**-152]).lowest_scale == 2.0**127
    assert precision.gradient_window([1.5 * 2.0**-153]).lowest_scale is None
    assert precision.gradient_window([2.0**141]).highest_scale == 2.0**-126
    assert precision.gradient_window([2.0**142]).highest_scale is None
    assert precision.gradient_window([2.0**140]).highest_scale == 2.0**-125


def test_thinning_keeps_both_ends() -> None:
    """Half of eleven (5.5) is six, a thousandth of them still two; whole lists and lists of two stay as they are."""
    values = np.arange(11.0)
    assert _gradients._thin(values, 0.5).tolist() == [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]
    assert _gradients._thin(values, 0.001).tolist() == [0.0, 10.0]
    assert _gradients._thin(values, 1.0) is values
    assert _gradients._thin(values[:2], 0.001).tolist() == [0.0, 1.0]
    assert _gradients._thin(values[:3], 0.001).tolist() == [0.0, 2.0]


def test_below_a_power_of_two_the_numbers_lie_closer() -> None:
    """By hand in float16: three quarters of 2^-11 below 1 are three quarters of a step, and above 1 three eighths of one."""
    for sign, share in ((-1, 0.0), (1, 1.0)):
        assert precision.swallowed_updates([1.0], [1.0 + sign * 0.75 * 2.0**-11], "float16").swallowed_share == share
