"""What a device cannot run is told before anything is allocated."""

import dataclasses

import pytest
import torch

from gpulab import devices, workloads
from gpulab.devices import Device
from gpulab.errors import DeviceError, InputError, OutOfMemoryError
from gpulab.workloads import _fits


@pytest.fixture
def fake_device(monkeypatch):
    """Let the machine seem to have one accelerator of a kind, with so many free bytes."""

    def make(kind, free=2**40):
        device = Device(kind)
        monkeypatch.setattr(devices, "find", lambda name=None: Device("cpu") if str(name) == "cpu" else device)
        monkeypatch.setattr(_fits, "free_bytes", lambda d: 2**40 if d.is_cpu else free)
        monkeypatch.setattr(Device, "name", property(lambda self: f"fake {self.kind}"))
        return device

    return make


def test_too_large_for_the_host_is_told_before_allocating():
    """Three matrices of a million rows need 12 TB: one sentence with what is needed and what is free."""
    w = workloads.get("matmul")(n=2**20)
    with pytest.raises(OutOfMemoryError, match=r"matmul n=1048576 float32: needs about 13\.2 TiB .* are free"):
        w.check_fits("cpu")
    with pytest.raises(OutOfMemoryError):
        w.inputs("cpu")


@pytest.mark.parametrize("name", workloads.names())
def test_every_workload_refuses_the_absurd(name):
    """At 2**40 every workload says that it does not fit."""
    with pytest.raises(OutOfMemoryError, match="Pass a smaller n"):
        workloads.get(name)(n=2**40).inputs("cpu")


def test_too_large_for_the_device(fake_device):
    """What fits the host may not fit the accelerator; the sentence names it."""
    fake_device("cuda", free=2**20)
    with pytest.raises(OutOfMemoryError, match=r"on fake cuda, where 1\.00 MiB are free"):
        workloads.get("matmul")(n=1024).check("cuda")
    workloads.get("matmul")(n=64).check("cuda")


def test_unknown_free_memory_is_no_refusal(fake_device, monkeypatch):
    """A device that does not tell what is free is given the benefit of the doubt."""
    fake_device("xpu", free=None)
    workloads.get("matmul")(n=64).check_fits("xpu")


def test_apple_gpus_have_no_float64(fake_device):
    """A dtype that the device lacks is one sentence with the dtypes that it has."""
    fake_device("mps")
    with pytest.raises(InputError, match="fake mps has no float64 arithmetic; expected one of: float32, bfloat16, float16"):
        workloads.get("matmul")(n=8, dtype="float64").check("mps")
    workloads.get("matmul")(n=8, dtype="float32").check("mps")


def test_emulated_float16_is_refused_on_a_cpu_and_only_there(fake_device):
    """A float16 matmul of 1024-cubed would take seconds a call on a CPU; small ones, and GPUs, are fine."""
    with pytest.raises(InputError, match=r"CPUs emulate it in float16, so 2\.15 GFLOP would take about 2\.15 s a call"):
        workloads.get("matmul")(n=1024, dtype="float16").inputs("cpu")
    workloads.get("matmul")(n=256, dtype="float16").check("cpu")
    workloads.get("linear")(n=256, dtype="float16").check("cpu")
    fake_device("cuda")
    workloads.get("matmul")(n=1024, dtype="float16").check("cuda")


def test_a_device_that_is_not_there():
    """An unknown device is the device layer's sentence."""
    with pytest.raises(DeviceError, match="not on this machine"):
        workloads.get("add")(n=4).inputs("cuda:7")


def test_an_allocation_that_fails_is_translated(monkeypatch):
    """When memory runs out although it seemed enough, the library's error becomes ours."""

    def refuse(w, generator):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 MiB")

    broken = dataclasses.replace(workloads.get("add"), make_inputs=refuse)
    with pytest.raises(OutOfMemoryError, match="add n=4 float32: making the inputs on cpu"):
        broken(n=4).inputs("cpu")


def test_tf32_counts_where_the_settings_permit(fake_device, monkeypatch):
    """Convolutions may use TF32 by default, products only when allowed; then arithmetic and tolerance say so."""
    fake_device("cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    matmul, conv, exp = (workloads.get(name)(n=64) for name in ("matmul", "conv2d", "exp"))
    assert torch.backends.cuda.matmul.fp32_precision != "tf32"
    assert matmul.arithmetic_on("cuda") == "float32"
    assert conv.arithmetic_on("cuda") == "tf32"
    assert exp.arithmetic_on("cuda") == "float32"
    strict = matmul.tolerance
    before = torch.backends.cuda.matmul.fp32_precision
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    try:
        assert matmul.arithmetic_on("cuda") == "tf32"
        assert matmul.tolerance > 100 * strict
        assert "tf32" in matmul.tolerance_reason
    finally:
        torch.backends.cuda.matmul.fp32_precision = before
    assert workloads.get("matmul")(n=64, dtype="bfloat16").arithmetic_on("cuda") == "bfloat16"


def test_no_tf32_on_a_cpu():
    """On a machine without CUDA float32 means float32."""
    w = workloads.get("conv2d")(n=1)
    assert w.arithmetic_dtype == "float32"
    assert w.arithmetic_on("cpu") == "float32"


@pytest.mark.parametrize("name", workloads.names())
def test_memory_estimate_covers_inputs_and_result(name):
    """The estimate is at least what inputs and result take (with a model's weights, gradients and moments)."""
    w = workloads.get(name)(n=16)
    inputs = w.inputs("cpu")
    result = w.run(*inputs)
    held = sum(x.nbytes if isinstance(x, torch.Tensor) else 4 * sum(p.nbytes for p in x.model.parameters()) for x in inputs) + result.nbytes
    assert w.memory_bytes >= 0.999 * held
