"""What a device cannot run is told before anything is allocated."""

import dataclasses
import types

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


def test_the_edge_of_emulation_is_what_the_sentence_says():
    """100 MFLOP are still taken on a CPU and a sentence says so; a call of a hair more is foretold at one GFLOP/s."""
    matmul = workloads.get("matmul")
    at, above = (dataclasses.replace(matmul, flops=lambda _, flops=flops: flops)(n=8, dtype="float16") for flops in (1e8, 1.02e8))
    at.check("cpu")
    with pytest.raises(InputError) as caught:
        above.check("cpu")
    assert str(caught.value) == (
        "matmul n=8 float16: CPUs emulate it in float16, so 102 MFLOP would take about 102 ms a call; expected at most 100 MFLOP. "
        "Pass a smaller n, or dtype='bfloat16' or 'float32'."
    )


def test_which_are_emulated(fake_device):
    """Products of matrices and convolutions; a linear layer, attention and what is elementwise have kernels of their own."""
    refused = set()
    for name in workloads.names():
        if "float16" in workloads.get(name).dtypes:
            try:
                _fits.check_dtype(workloads.get(name)(n=2**30, dtype="float16"), "cpu")
            except InputError:
                refused.add(name)
    assert refused == {"matmul", "conv2d", "grouped_conv2d", "depthwise_conv2d"}


def test_what_just_fits_is_taken(monkeypatch):
    """A tenth more than is held must be free, and not a byte more (1.1 in binary is a hair above)."""
    w = workloads.get("add")(n=1000)
    for free, fits in ((13201, True), (13200, False)):
        monkeypatch.setattr(_fits, "free_bytes", lambda _, free=free: free)
        if fits:
            w.check_fits("cpu")
        else:
            with pytest.raises(OutOfMemoryError):
                w.check_fits("cpu")


@pytest.mark.parametrize(("dtype", "needed"), [("float32", 24000), ("bfloat16", 18000), ("float64", 36000)])
def test_inputs_of_an_accelerator_must_fit_the_host_too(fake_device, monkeypatch, dtype, needed):
    """They are drawn there in float32 and converted: 3,000 values need 12 kB more than they take themselves."""
    fake_device("cuda")
    for free in (needed, needed - 1):
        monkeypatch.setattr(_fits, "free_bytes", lambda d, free=free: free if d.is_cpu else 2**40)
        w = workloads.get("add")(n=1000, dtype=dtype)
        if free == needed:
            w.check_fits("cuda")
        else:
            with pytest.raises(OutOfMemoryError, match="on fake cpu"):
                w.check_fits("cuda")


@pytest.mark.parametrize(("kind", "free"), [("cuda", 1000 + 700 - 300), ("xpu", 1000 + 700 - 300), ("mps", 1000), ("cpu", 1000)])
def test_what_pytorch_holds_unused_is_free(monkeypatch, kind, free):
    """Of what the allocator has reserved on this device, what no tensor has goes to new ones first."""
    held = types.SimpleNamespace(memory_reserved={0: 9, 1: 700}.get, memory_allocated={0: 5, 1: 300}.get)
    monkeypatch.setattr(torch, "cuda", held)
    monkeypatch.setattr(torch, "xpu", held)
    monkeypatch.setattr(Device, "free_bytes", property(lambda _: 1000))
    assert _fits.free_bytes(Device(kind, 1)) == free
    monkeypatch.setattr(Device, "free_bytes", property(lambda _: None))
    assert _fits.free_bytes(Device(kind, 1)) is None


def test_an_intel_gpu_tells_whether_it_has_float64(fake_device, monkeypatch):
    """Arc has none, data centre GPUs do; an older PyTorch that does not tell is believed to."""
    fake_device("xpu")
    for properties, has in ((types.SimpleNamespace(has_fp64=False), False), (types.SimpleNamespace(has_fp64=True), True), (None, True)):
        monkeypatch.setattr(torch.xpu, "get_device_properties", lambda _, properties=properties: properties)
        if has:
            workloads.get("add")(n=4, dtype="float64").check("xpu")
        else:
            with pytest.raises(InputError, match="fake xpu has no float64"):
                workloads.get("add")(n=4, dtype="float64").check("xpu")


def test_the_largest_seed_is_taken():
    """Seeds go up to 2**63 - 1, as the sentence says."""
    assert workloads.get("add")(n=4).inputs("cpu", seed=2**63 - 1)[0].shape == (4,)


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
    assert conv.arithmetic_on("cpu") == "float32"
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
