"""The recorder's products in each format: what a device is asked, and one that really runs on the CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from gpulab import devices
from gpulab.devices import Device
from gpulab.recorder import experiments


def cases(device: Device) -> list[Any]:
    """The experiment's cases on a device."""
    return list(experiments(["precision"])[0].cases(device))


def test_a_cpu_multiplies_small_matrices_and_has_neither_tf32_nor_fp8() -> None:
    """A float16 product takes long on most CPUs."""
    asked = [case.params for case in cases(devices.find("cpu"))]
    assert {each["format"] for each in asked} == {"float32", "bfloat16", "float16"}
    assert max(each["n"] for each in asked) <= 512


@pytest.mark.parametrize(
    ("capability", "more"), [((7, 5), set()), ((8, 0), {"tf32"}), ((8, 9), {"tf32", "float8_e4m3fn"}), ((9, 0), {"tf32", "float8_e4m3fn"})]
)
def test_a_gpu_is_asked_for_what_it_has(monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], more: set[str]) -> None:
    """TF32 from 8.0 on, FP8 from 8.9 on, and FP8 only with sides that it takes."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: capability)
    asked = [case.params for case in cases(Device("cuda", 0))]
    assert {each["format"] for each in asked} == {"float32", "float16", "bfloat16", *more}
    assert all(each["n"] % 16 == 0 for each in asked if each["format"] == "float8_e4m3fn")
    assert {each["n"] % 8 for each in asked} == {0, 7}


def test_a_case_measures_its_product() -> None:
    """The smallest on this CPU, within a short deadline; FLOPs are two for each multiply-add."""
    case = next(c for c in cases(devices.find("cpu")) if c.params == {"format": "float32", "n": 511})
    measured = case.time(0.2)
    assert measured.flops == 2 * 511**3
    assert measured.median_seconds > 0


@pytest.mark.gpu
def test_every_format_runs_on_this_gpu() -> None:
    """The smallest side of each format that this GPU has."""
    asked = [case for case in cases(devices.find("cuda")) if case.params["n"] in (1023, 1024)]
    for case in asked:
        assert case.time(0.2).flops_per_second
    assert len({case.params["format"] for case in asked}) >= 3
