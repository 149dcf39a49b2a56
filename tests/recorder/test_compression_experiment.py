"""The recorder's lighter layers: what each kind of device is asked for, and one case that really runs."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from gpulab.compression import _integer, _sparse
from gpulab.devices import Device
from gpulab.recorder import _compression, experiments

(EXPERIMENT,) = experiments(["compression"])


def forms(device: Device) -> set[str]:
    """The forms of the linear layer that a device is asked for."""
    return {str(case.params["form"]) for case in EXPERIMENT.cases(device) if case.params["layer"] == "linear"}


def test_a_cpu_is_asked_for_what_it_has(monkeypatch: pytest.MonkeyPatch):
    """CSR and the 8-bit kernels where there are some, no 2:4; convolutions full, in groups and depthwise."""
    monkeypatch.setattr(_integer, "refusal", lambda *_: "")
    there = forms(Device("cpu"))
    assert {"dense", "csr", "8-bit weights in float", "8-bit kernels"} <= there
    assert "2:4" not in there
    groups = [case.params["groups"] for case in EXPERIMENT.cases(Device("cpu")) if case.params["layer"] == "convolution"]
    assert groups == [1, 4, 32, 128]
    monkeypatch.setattr(_integer, "refusal", lambda *_: "this build has none.")
    assert "8-bit kernels" not in forms(Device("cpu"))


@pytest.mark.parametrize(("refusal", "asked"), [("", True), ("compute capability 7.5 has none.", False)])
def test_a_gpu_is_asked_for_two_of_four_where_it_has_it(monkeypatch: pytest.MonkeyPatch, refusal: str, asked: bool):
    """The sparse Tensor Cores decide, and nothing is allocated to find out."""
    monkeypatch.setattr(_sparse, "two_four_refusal", lambda *_: refusal)
    there = forms(Device("cuda", 0))
    assert ("2:4" in there) == asked
    assert "8-bit kernels" not in there


def test_apples_gpu_is_asked_for_nothing():
    """PyTorch has neither CSR nor 8-bit kernels there."""
    assert list(EXPERIMENT.cases(Device("mps"))) == []


def test_a_case_runs_here():
    """The depthwise convolution is measured, with its FLOPs by hand: 2 x 8 images x 256 pixels x 128 channels x 9."""
    case = next(case for case in EXPERIMENT.cases(Device("cpu")) if case.params.get("groups") == 128)
    m = case.time(0.02)
    assert m.flops == 2 * 8 * 256 * 128 * 9
    assert m.median_seconds > 0


@pytest.mark.parametrize("device", [Device("cpu"), Device("cuda", 0)], ids=str)
def test_how_each_form_is_made(monkeypatch: pytest.MonkeyPatch, device: Device):
    """From the forms' names and NVIDIA's and torchao's own terms: what is pruned, made sparse or quantized, and with which arithmetic."""

    def named(name: str):
        return lambda *given, **options: (name, *given, options)

    for name in ("finish", "prune", "to_sparse", "quantize"):
        monkeypatch.setattr(_compression.compression, name, named(name))
    monkeypatch.setattr(_compression, "importlib", SimpleNamespace(util=SimpleNamespace(find_spec=lambda name: name)))
    monkeypatch.setattr(_compression, "_linear", lambda device, form, dtype, make, *_, **__: ((form, dtype), make("layer")))
    monkeypatch.setattr(_compression, "_convolution", lambda device, groups: (("convolution", groups), None))
    monkeypatch.setattr(_integer, "refusal", lambda *_: "")
    monkeypatch.setattr(_sparse, "two_four_refusal", lambda *_: "")
    floats = "float32" if device.is_cpu else "bfloat16"
    pair = ("prune", "layer", {"pattern": "2:4"})
    made = list(_compression._cases(device))
    found = dict(made)
    assert [form[1] for form, _ in made if form[0] == "dense"] == (["float32"] * 2 if device.is_cpu else ["float16", "float32", "float32"])
    assert [make[1][2] for form, make in made if form[0] == "csr"] == [0.5, 0.9, 0.98, 0.9]
    assert found["csr", "float32"] == ("to_sparse", ("prune", "layer", 0.9, {}), {})
    assert found["dense", "float32"] == ("finish", "layer", {})
    assert found["8-bit weights in float", "float32"] == ("quantize", "layer", {})
    for form, inputs in (("torchao, 8-bit weights", None), ("torchao, 8-bit weights and inputs", "dynamic")):
        assert found[form, floats] == ("quantize", "layer", "per-channel", inputs, {"arithmetic": "torchao"})
    kernels, half = ("8-bit kernels", "float32"), ("2:4", "float16")
    assert (kernels in found, half in found) == (device.is_cpu, not device.is_cpu)
    if device.is_cpu:
        assert found[kernels] == ("quantize", "layer", "per-channel", "dynamic", {"arithmetic": "integer"})
    else:
        assert found[half] == ("to_sparse", pair, "2:4", {})
