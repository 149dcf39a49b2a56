"""The TF32 switches: what they say, that a block puts them back, and (on a GPU) that they change a product."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gpulab import precision
from gpulab.devices import Device
from gpulab.errors import InputError
from gpulab.evidence import Evidence
from gpulab.precision import _tf32


def test_the_block_sets_both_switches_and_puts_them_back() -> None:
    """Also when the block raises; the older switches can be read again afterwards."""
    before = torch.backends.cuda.matmul.fp32_precision, torch.backends.cudnn.conv.fp32_precision
    older = torch.backends.cuda.matmul.allow_tf32
    seen = []

    def inside() -> None:
        with precision.tf32(matmul=True, convolution=False):
            now = precision.tf32_switches("cpu")
            seen.append((now.matmul_allowed, now.convolution_allowed))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        inside()
    assert seen == [(True, False)]
    assert (torch.backends.cuda.matmul.fp32_precision, torch.backends.cudnn.conv.fp32_precision) == before
    assert torch.backends.cuda.matmul.allow_tf32 == older


def test_pytorch_allows_it_for_convolutions_by_default() -> None:
    """What PyTorch documents: products not, convolutions yes; a CPU has none of it."""
    switches = precision.tf32_switches("cpu")
    assert (switches.matmul_allowed, switches.convolution_allowed, switches.has_tf32) == (False, True, False)
    assert "change nothing" in switches.explanation


def test_bad_input_is_named() -> None:
    """One sentence."""
    for name in ("matmul", "convolution"):
        with pytest.raises(InputError, match=f"^tf32: {name}='yes'; expected True or False"), precision.tf32(**{name: "yes"}):  # type: ignore[arg-type]
            pass


@pytest.mark.gpu
def test_tf32_reads_ten_bits_of_each_operand() -> None:
    """On a GPU from 8.0 on the product of float32 matrices differs in TF32 by what rounding the operands to 10 bits explains."""
    if torch.cuda.get_device_capability()[0] < 8:
        pytest.skip("needs compute capability 8.0")
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((256, 256)) for _ in range(2))
    exact = a.astype(np.float32).astype(np.float64) @ b.astype(np.float32).astype(np.float64)
    x, y = (torch.tensor(v, dtype=torch.float32, device="cuda") for v in (a, b))
    errors = {}
    for allowed in (False, True):
        with precision.tf32(matmul=allowed):
            errors[allowed] = np.abs((x @ y).double().cpu().numpy() - exact).max() / np.abs(exact).max()
    assert errors[False] < 1e-5
    assert 5e-5 < errors[True] < 5e-3
    simulated = precision.matmul_error(a, b, ["tf32"], device="simulated").row("tf32").max_relative_error
    assert 0.3 < errors[True] / simulated < 4


@pytest.mark.gpu
def test_a_gpus_float16_product_accumulates_in_float32() -> None:
    """PyTorch's float16 product on a GPU is nearer to accumulation in float32 than to that in float16."""
    rng = np.random.default_rng(1)
    p = precision.matmul_error(rng.random((64, 4096)), rng.random((4096, 64)), ["float16"], device="cuda")
    assert p.row("float16", "device").max_relative_error < 0.2 * p.row("float16", "float16").max_relative_error


@pytest.mark.parametrize(
    ("has", "matmul", "convolution", "says"),
    [
        (True, True, True, "Float32 matrix products and convolutions run in TF32, with 10 bits of mantissa."),
        (True, False, True, "Float32 convolutions run in TF32, with 10 bits of mantissa."),
        (True, False, False, "Float32 work runs in float32."),
        (False, True, True, "a device has no TF32: the switches change nothing here."),
    ],
)
def test_what_the_switches_mean(has: bool, matmul: bool, convolution: bool, says: str) -> None:
    """In a sentence, in a table and in one line."""
    switches = precision.Tf32Switches("a device", has, matmul, convolution, Evidence.measured("a device"))
    words = {True: "allowed", False: "not allowed"}
    assert switches.explanation == says
    assert switches.table()[1] == [
        ("matrix products", words[matmul], "torch.backends.cuda.matmul.fp32_precision"),
        ("convolutions", words[convolution], "torch.backends.cudnn.conv.fp32_precision"),
        ("", says, ""),
    ]
    assert repr(switches) == f"<TF32 {words[matmul]} for matrix products, {words[convolution]} for convolutions. {says}>"


def test_gpus_have_it_from_ampere_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute capability 8.0 (NVIDIA's A100), not 7.5; no other maker's."""
    versions = [(7, 5), (8, 0), (9, 0)]
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: versions[index])
    assert [_tf32.has_tf32(Device("cuda", index)) for index in range(3)] == [False, True, True]
    assert not _tf32.has_tf32(Device("rocm", 1))


def test_a_block_without_a_word_allows_both() -> None:
    """What is not named is allowed; what is forbidden is written as PyTorch's "ieee"."""
    for given, wanted in (({}, ("tf32", "tf32")), ({"matmul": False}, ("ieee", "tf32")), ({"convolution": False}, ("tf32", "ieee"))):
        with precision.tf32(**given):
            assert (torch.backends.cuda.matmul.fp32_precision, torch.backends.cudnn.conv.fp32_precision) == wanted
