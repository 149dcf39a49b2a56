"""The recorder's lighter layers: what each kind of device is asked for, and one case that really runs."""

from __future__ import annotations

import pytest

from gpulab.compression import _integer, _sparse
from gpulab.devices import Device
from gpulab.recorder import experiments

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
