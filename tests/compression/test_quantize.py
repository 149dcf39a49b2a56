"""Quantization: codes by hand, torch's own arithmetic, integer kernels, aware training."""

from __future__ import annotations

import copy
import platform
from typing import Any

import pytest
import torch
from gpulab import compression, networks
from gpulab.errors import DeviceError, InputError
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn


def identity(*values: float, bits: int = 8, **options: Any) -> Any:
    """A layer of one weight of 1 whose inputs are rounded on the range of these values."""
    layer = nn.Linear(1, 1, bias=False)
    nn.init.ones_(layer.weight)
    x = torch.tensor(values)[:, None]
    options = {"activations": "static", "calibration": x, "bits": bits, **options}
    return compression.quantize(nn.Sequential(layer), **options)


def test_codes_by_hand() -> None:
    """A scale a row, or one of all: the small row is left with few codes; ties are even."""
    layer = nn.Linear(3, 2, bias=False)
    layer.weight.data[:] = torch.tensor([[1.27, -0.635, 0.01], [0.0127, 0.00635, 0.0]])
    each = compression.quantize(nn.Sequential(layer))[0]
    assert each.codes.tolist() == [[127, -64, 1], [127, 64, 0]]
    assert each.scale.flatten().tolist() == pytest.approx([0.01, 0.0001])
    whole = compression.quantize(nn.Sequential(layer), "per-tensor")[0]
    assert (whole.codes.tolist(), float(whole.scale)) == (
        [[127, -64, 1], [1, 1, 0]],
        pytest.approx(0.01),
    )


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("weights", ["per-channel", "per-tensor"])
def test_weights_agree_with_torchs_fake_quantization(bits: int, weights: str) -> None:
    """With the same scales, but for ties; no error is over half a step; zeros stay zero."""
    torch.manual_seed(0)
    layer, most = nn.Conv2d(3, 5, 3, padding="same", dilation=2), 2 ** (bits - 1) - 1
    done = compression.quantize(nn.Sequential(layer), weights, bits=bits)[0]
    scales = done.scale.flatten().expand(5).contiguous()
    assert int(done.codes.abs().max()) == most
    zero = torch.zeros(5, dtype=torch.int32)
    fake = torch.fake_quantize_per_channel_affine(layer.weight, scales, zero, 0, -most, most)
    tie = ((layer.weight / done.scale).abs() % 1 - 0.5).abs() < 1e-4
    assert torch.equal(done.weight[~tie], fake[~tie])
    assert bool(((done.weight - layer.weight).abs() <= done.scale / 2 + 1e-7).all())
    x = torch.randn(2, 3, 9, 9)
    expected = nn.functional.conv2d(x, done.weight, layer.bias, padding=2, dilation=2)
    torch.testing.assert_close(done(x), expected)
    pruned = compression.prune(networks.cnn(width=4), 0.8)
    assert compression.sparsity(compression.quantize(pruned, bits=bits)) >= 0.799


@settings(max_examples=40, deadline=None)
@given(st.floats(-100, 100, width=32), st.floats(0, 100, width=32), st.integers(2, 8))
def test_inputs_agree_with_torchs_fake_quantization(low: float, width: float, bits: int) -> None:
    """On any range, but for ties; zero stays zero, beyond the ends values are cut off."""
    x = low + width * torch.rand(50, generator=torch.Generator().manual_seed(bits))
    x[0] = 0.0
    layer = identity(*x.tolist(), bits=bits)
    step, zero, most = float(layer[0].step), int(layer[0].zero), 2**8 - 1
    fake = torch.fake_quantize_per_tensor_affine(x, step, zero, 0, most)
    ours = layer(x[:, None])[:, 0]
    assert bool(((ours - fake).abs() <= step * 1.001).all())
    assert float((ours - fake).abs().gt(step / 2).float().mean()) <= 0.1
    assert float(ours[0]) == 0.0
    beyond = layer(torch.tensor([[-1e6], [1e6]]))
    assert beyond.flatten().tolist() == pytest.approx(
        [-zero * step, (most - zero) * step], rel=1e-5
    )


def test_ranges_are_those_of_the_calibration() -> None:
    """Both ends, a percentile, several batches; a range that was not followed is refused."""
    found = [
        identity(0.5, 2.55)[0].step,
        identity(*[k / 100 for k in range(100)], 50.0)[0].step,
        identity(*[k / 100 for k in range(100)], 50.0, percentile=99)[0].step,
        identity(calibration=[torch.zeros(1, 1), torch.full((1, 1), 5.1)])[0].step,
        identity(-1.0, 3.0)[0].step,
    ]
    assert [float(step) for step in found] == pytest.approx(
        [0.01, 50 / 255, 0.99 / 255, 0.02, 4 / 255], rel=0.02
    )
    aware = compression.quantize_aware(nn.Sequential(nn.Linear(1, 1)), activations="static")
    with pytest.raises(InputError, match="no input reached 0"):
        compression.finish(aware)
    for high in (1.0, 2.0):  # the first batch sets the range, a later one moves it by a tenth
        aware(torch.tensor([[0.0], [high]]))
    aware.eval()(torch.tensor([[9.0]]))
    assert float(compression.finish(aware)[0].step) == pytest.approx(1.1 / 255)


def has_kernels(convolution: bool) -> bool:
    """Whether PyTorch has the kernels on this processor."""
    engine = "onednn" if convolution else "fbgemm"
    return engine in torch.backends.quantized.supported_engines and "64" in platform.machine()


@pytest.mark.parametrize("kind", ["linear", "per tensor", "convolution", "depthwise"])
@pytest.mark.parametrize("place", ["positive", "both", "negative"])
def test_integer_kernels_give_the_same_numbers(kind: str, place: str) -> None:
    """Within what rounding each input by half a step explains: nothing overflows; states load."""
    torch.manual_seed(3)
    layer = {
        "convolution": lambda: nn.Conv2d(16, 24, 3, padding=1, stride=2),
        "depthwise": lambda: nn.Conv2d(16, 16, 3, padding=1, groups=16),
    }.get(kind, lambda: nn.Linear(200, 30))()
    if not has_kernels(isinstance(layer, nn.Conv2d)):
        pytest.skip("no 8-bit kernels in this build of PyTorch")
    x = torch.randn(5, 200) if isinstance(layer, nn.Linear) else torch.randn(5, 16, 9, 9)
    x = {"positive": x.relu(), "both": x, "negative": -x.relu()}[place]
    weights = "per-tensor" if kind == "per tensor" else "per-channel"
    model = nn.Sequential(layer)
    options = {"weights": weights, "activations": "dynamic", "arithmetic": "integer"}
    integer, exact = compression.quantize(model, **options), compression.quantize(model, weights)
    step = float(x.max().clamp(min=0) - x.min().clamp(max=0)) / 127  # of seven bits
    reach = exact[0].weight.abs().flatten(1).sum(1) * step
    reach = reach if isinstance(layer, nn.Linear) else reach[:, None, None]
    with torch.no_grad():
        found = integer(x)
        assert bool(((found - exact(x)).abs() <= reach + 1e-4).all())
        other = copy.deepcopy(integer)
        other.load_state_dict(integer.state_dict())
        assert torch.equal(other(x), found)


@pytest.mark.parametrize("activations", [None, "dynamic", "static"])
def test_aware_training_is_what_is_shipped(activations: str | None) -> None:
    """In evaluation it gives what the finished model gives; the gradient passes the rounding."""
    torch.manual_seed(0)
    x = torch.randn(40, 1, 8, 8)
    aware = compression.quantize_aware(networks.cnn(width=4), activations=activations, bits=3)
    optimizer = torch.optim.Adam(aware.parameters(), 1e-2)
    for _ in range(3):
        optimizer.zero_grad()
        aware(x).square().mean().backward()
        optimizer.step()
    done = compression.finish(aware.eval())
    torch.testing.assert_close(done(x), aware(x), atol=1e-6, rtol=1e-5)
    layer, y = nn.Linear(5, 3), torch.randn(7, 5)
    straight = compression.quantize_aware(nn.Sequential(layer), bits=3)
    straight(y).square().sum().backward()
    rounded = compression.quantize(nn.Sequential(layer), bits=3)[0].weight.clone().requires_grad_()
    nn.functional.linear(y, rounded, layer.bias).square().sum().backward()
    gradients = [p.grad for p in straight.parameters() if p.shape == layer.weight.shape]
    torch.testing.assert_close(gradients[0], rounded.grad)


@pytest.mark.slow
@pytest.mark.parametrize("activations", [None, "dynamic"])
def test_torchao_has_the_same_weights(activations: str | None) -> None:
    """Its symmetric 8 bits a channel; both stay near the float model; it leaves convolutions."""
    pytest.importorskip("torchao", exc_type=ImportError)
    torch.manual_seed(0)
    model, x = networks.mlp(32, 64, 10).eval(), torch.randn(20, 32)
    ours = compression.quantize(model, "per-channel", activations)
    theirs = compression.quantize(model, "per-channel", activations, arithmetic="torchao")
    with torch.no_grad():
        assert float((ours(x) - theirs(x)).abs().max()) < 0.02 * float(model(x).abs().max())
    assert compression.sparsity(theirs) < 0.1
    with pytest.raises(InputError, match="no layer is left"):
        compression.prune(theirs)
    with pytest.raises(InputError, match="convolutions"):
        compression.quantize(nn.Sequential(nn.Conv2d(1, 2, 3)), arithmetic="torchao")


@pytest.mark.gpu
def test_compressed_models_on_a_gpu() -> None:
    """CSR, 2:4 from compute capability 8.0 on, torchao; the CPU's kernels are refused."""
    torch.manual_seed(0)
    model = networks.mlp(64, 128, 64).half().cuda().eval()
    x = torch.randn(128, 64, device="cuda", dtype=torch.float16)
    pruned = compression.prune(model, pattern="2:4")
    with torch.no_grad():
        expected = pruned(x)
        for kind in ("csr", *(["2:4"] if torch.cuda.get_device_capability() >= (8, 0) else [])):
            sparse = compression.to_sparse(pruned, kind)
            torch.testing.assert_close(sparse(x), expected, atol=2e-2, rtol=2e-2)
    with pytest.raises(DeviceError, match="torchao"):
        compression.quantize(model, activations="dynamic", arithmetic="integer")
    found = compression.weigh({"a": model, "zeros": pruned}, inputs=x, device="cuda", deadline=0.1)
    assert found.device == torch.cuda.get_device_name()
