"""Quantization: codes by hand, torch's own arithmetic, integer kernels, aware training."""

import copy
import platform
from typing import Any

import pytest
import torch
from gpulab import compression, networks
from gpulab.errors import DeviceError, InputError
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from made_training import trained
from torch import nn

from refusals import refused


def identity(*values: float, bits: int = 8, **options: Any) -> Any:
    """Return a layer with the weight 1 whose inputs are quantized on these values' range."""
    layer = nn.Linear(1, 1, bias=False)
    nn.init.ones_(layer.weight)
    x = torch.tensor(values)[:, None]
    options = {"activations": "static", "calibration": x, "bits": bits, **options}
    return compression.quantize(nn.Sequential(layer), **options)


def test_codes_by_hand() -> None:
    """A scale per row, or one for all, which leaves a small row few codes; ties round to even."""
    layer = nn.Linear(3, 2, bias=False)
    layer.weight.data[:] = torch.tensor([[1.27, -0.635, 0.01], [0.0127, 0.00635, 0.0]])
    each = compression.quantize(nn.Sequential(layer))[0]
    assert (each.codes.tolist(), each.scale.flatten().tolist()) == (
        [[127, -64, 1], [127, 64, 0]],
        pytest.approx([0.01, 0.0001]),
    )
    whole = compression.quantize(nn.Sequential(layer), "per-tensor")[0]
    assert (whole.codes.tolist(), float(whole.scale)) == (
        [[127, -64, 1], [1, 1, 0]], pytest.approx(0.01),
    )  # fmt: skip


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("weights", ["per-channel", "per-tensor"])
def test_weights_agree_with_torchs_fake_quantization(bits: int, weights: str) -> None:
    """With the same scales all weights agree, except at ties; no error exceeds half a step."""
    layer, most = nn.Conv2d(3, 5, 3, padding="same", dilation=2), 2 ** (bits - 1) - 1
    done = compression.quantize(nn.Sequential(layer), weights, bits=bits)[0]
    scales = done.scale.flatten().expand(5).contiguous()
    zero = torch.zeros(5, dtype=torch.int32)
    fake = torch.fake_quantize_per_channel_affine(layer.weight, scales, zero, 0, -most, most)
    tie = ((layer.weight / done.scale).abs() % 1 - 0.5).abs() < 1e-4
    assert torch.equal(done.weight[~tie], fake[~tie])
    assert bool(((done.weight - layer.weight).abs() <= done.scale / 2 + 1e-7).all())
    x = torch.randn(2, 3, 9, 9)
    expected = nn.functional.conv2d(x, done.weight, layer.bias, padding=2, dilation=2)
    torch.testing.assert_close(done(x), expected)


@settings(max_examples=40, deadline=None)
@given(st.floats(-100, 100, width=32), st.floats(0, 100, width=32), st.integers(2, 8))
def test_inputs_agree_with_torchs_fake_quantization(low: float, width: float, bits: int) -> None:
    """Any range agrees, except at ties; zero stays zero; values beyond the ends are clipped."""
    x = low + width * torch.rand(50, generator=torch.Generator().manual_seed(bits))
    x[0] = 0.0
    layer = identity(*x.tolist(), bits=bits)
    step, zero, most = float(layer[0].step), int(layer[0].zero), 2**8 - 1
    ours = layer(x[:, None])[:, 0]
    assert float(ours[0]) == 0.0
    assume(step > 3e-39)  # torch multiplies by 1 / step, which overflows for smaller ones
    fake = torch.fake_quantize_per_tensor_affine(x, step, zero, 0, most)
    assert (
        bool(((ours - fake).abs() <= step * 1.001).all()),
        float((ours - fake).abs().gt(step / 2).float().mean()) <= 0.1,
    ) == (True, True)
    beyond, ends = layer(torch.tensor([[-1e6], [1e6]])), [-zero * step, (most - zero) * step]
    assert beyond.flatten().tolist() == pytest.approx(ends, rel=1e-5)


def test_ranges_are_those_of_the_calibration() -> None:
    """The range spans all calibration batches; in training it moves by a tenth per batch."""
    shares, batches = [k / 100 for k in range(100)], [torch.zeros(1, 1), torch.full((1, 1), 5.1)]
    aware = compression.quantize_aware(nn.Sequential(nn.Linear(1, 1)), activations="static")
    refused(InputError, compression.finish, aware).match("no input reached 0")
    for high in (1.0, 2.0):  # the first batch sets the range
        aware(torch.tensor([[0.0], [high]]))
    aware.eval()(torch.tensor([[9.0]]))
    found = {
        0.01: identity(0.5, 2.55), 50 / 255: identity(*shares, 50.0), 4 / 255: identity(-1.0, 3.0),
        1.1 / 255: compression.finish(aware),
        0.02: identity(calibration=batches),
    }  # fmt: skip
    assert [float(one[0].step) for one in found.values()] == pytest.approx(list(found), rel=0.02)
    assert float(found[4 / 255][0].zero) == 64  # 63.75 steps below zero


@pytest.mark.parametrize("kind", ["linear", "per tensor", "convolution", "depthwise"])
@pytest.mark.parametrize("place", ["positive", "both", "negative"])
def test_integer_kernels_give_the_same_numbers(kind: str, place: str) -> None:
    """Results differ from exact ones by no more than input rounding explains: no overflow."""
    image = kind in ("convolution", "depthwise")
    if image and place == "negative":
        pytest.skip("oneDNN without VNNI instructions convolves these wrongly (torch 2.13)")
    engine = "onednn" if image else "fbgemm"
    if engine not in torch.backends.quantized.supported_engines or "64" not in platform.machine():
        pytest.skip("no 8-bit kernels in this build of PyTorch")
    layer, x, weights = {
        "linear": (nn.Linear(200, 30), torch.randn(5, 200), "per-channel"),
        "per tensor": (nn.Linear(200, 30), torch.randn(5, 200), "per-tensor"),
        "convolution": (nn.Conv2d(16, 16, 3, padding=1), torch.randn(5, 16, 9, 9), "per-channel"),
        "depthwise": (
            nn.Conv2d(16, 16, 3, padding=1, groups=16), torch.randn(5, 16, 9, 9), "per-channel",
        ),
    }[kind]  # fmt: skip
    x = {"positive": x.relu(), "both": x, "negative": -x.relu()}[place]
    nn.init.constant_(layer.bias, 99.0)  # far above the rounding error: losing it would show
    exact, integer = (
        compression.quantize(nn.Sequential(layer), weights, activations, arithmetic=arithmetic)
        for activations, arithmetic in ((None, "float"), ("dynamic", "integer"))
    )
    step = float(x.max().clamp(min=0) - x.min().clamp(max=0)) / 127  # a step of seven bits
    reach = exact[0].weight.abs().flatten(1).sum(1) * step
    difference = (integer(x) - exact(x)).abs()
    assert (
        bool((difference <= (reach[:, None, None] if image else reach) + 1e-4).all()),
        torch.equal(copy.deepcopy(integer)(x), integer(x)),
    ) == (True, True)


@pytest.mark.parametrize(
    ("activations", "model"),
    [
        *((activations, networks.cnn(width=4)) for activations in (None, "dynamic", "static")),
        # where no gradient is needed, PyTorch runs this layer by one operator, which rounds nothing
        (
            "dynamic",
            nn.Sequential(
                nn.Flatten(0, 1), nn.TransformerEncoderLayer(8, 2, 8, 0.0, batch_first=True)
            ),
        ),
    ],
)
def test_aware_training_is_what_is_shipped(activations: str | None, model: nn.Module) -> None:
    """In evaluation an aware model computes what the finished one does; gradients pass rounding."""
    x = torch.randn(40, 1, 8, 8)
    aware = compression.quantize_aware(model, activations=activations, bits=3)
    trained(aware, x)
    torch.testing.assert_close(
        aware(x), compression.finish(aware.requires_grad_(False))(x), atol=1e-6, rtol=1e-5
    )
    layer, y = nn.Linear(5, 3), torch.randn(7, 5)
    straight = compression.quantize_aware(nn.Sequential(layer), "per-tensor", bits=3)
    straight(y).square().sum().backward()
    rounded = compression.quantize(nn.Sequential(layer), "per-tensor", bits=3)[0].weight.clone()
    nn.functional.linear(y, rounded.requires_grad_(), layer.bias).square().sum().backward()
    weight = next(p for p in straight.parameters() if p.shape == layer.weight.shape)
    torch.testing.assert_close(weight.grad, rounded.grad)


@pytest.mark.gpu
def test_compressed_models_on_a_gpu() -> None:
    """CSR runs, and 2:4 from compute capability 8.0 on; the CPU's integer kernels are refused."""
    model, x = networks.mlp(64, 128, 64).half().cuda().eval(), torch.randn(128, 64).half().cuda()
    pruned = compression.prune(model, pattern="2:4")
    kinds = ["csr", "2:4"] if torch.cuda.get_device_capability() >= (8, 0) else ["csr"]
    with torch.no_grad():
        for made in (compression.to_sparse(pruned, kind) for kind in kinds):
            torch.testing.assert_close(made(x), pruned(x), atol=2e-2, rtol=2e-2)
    options = {"activations": "dynamic", "arithmetic": "integer"}
    refused(DeviceError, compression.quantize, model, **options).match("torchao")
