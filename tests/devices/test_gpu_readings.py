"""The counters of a GPU, by a management library that answers as NVIDIA's API reference says."""

from __future__ import annotations

import os
import sys
import types
from typing import Any

import pytest
import torch

from gpulab.devices import Device, gpu_readings
from gpulab.devices.gpu_readings import GpuReadings

GPU = Device("cuda", 1)


class _Refused(Exception):
    """NVMLError."""


def _refuse(*args: Any) -> Any:
    raise _Refused


def _processes(*pids: int) -> Any:
    return lambda handle: [types.SimpleNamespace(pid=pid) for pid in pids]


def _shares(asked: list[int], **shares: list[int]) -> Any:
    samples = [types.SimpleNamespace(pid=int(pid[1:]), smUtil=use) for pid, uses in shares.items() for use in uses]
    return lambda handle, since: asked.append(since) or samples


@pytest.fixture(name="nvml")
def _nvml(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A library with one GPU, found by its UUID: clocks in MHz, violations in nanoseconds by policy (power 0, thermal 1, board 4)."""
    slowed = {0: 1_000_000_000, 1: 20_000_000, 2: 7e18, 3: 7e18, 4: 300_000_000}
    clocks = {("now", 1): 1410, ("top", 1): 1980}
    nvml = types.SimpleNamespace(
        NVMLError=_Refused, NVML_CLOCK_SM=1, nvmlInit=lambda: None, nvmlDeviceGetHandleByUUID=lambda uuid: ("by uuid", uuid),
        nvmlDeviceGetHandleByIndex=lambda index: ("by index", index),
        nvmlDeviceGetClockInfo=lambda handle, clock: clocks["now", clock],
        nvmlDeviceGetMaxClockInfo=lambda handle, clock: clocks["top", clock],
        nvmlDeviceGetViolationStatus=lambda handle, policy: types.SimpleNamespace(violationTime=slowed[policy]),
        nvmlDeviceGetCurrentClocksEventReasons=lambda handle: 0x4, nvmlDeviceGetComputeRunningProcesses=_processes(os.getpid()),
        nvmlDeviceGetProcessUtilization=_refuse,
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: types.SimpleNamespace(uuid=f"ab-{index}"))
    monkeypatch.setattr(gpu_readings.time, "time", lambda: 1000.5)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    for kept in (gpu_readings._library, gpu_readings._handle):
        kept.cache_clear()
    yield nvml
    for kept in (gpu_readings._library, gpu_readings._handle):
        kept.cache_clear()


def test_every_counter_in_its_unit(nvml: Any) -> None:
    """Hertz, seconds and microseconds; the three policies that slow a GPU down add up to 1.32 s; alone, no neighbour is busy."""
    found = gpu_readings.read(GPU)
    assert found == GpuReadings(1_000_500_000, pytest.approx(1.32), ("power cap",), 1.41e9, 1.98e9, 0, 0.0)
    assert gpu_readings._handle(1) == ("by uuid", "GPU-ab-1")


@pytest.mark.parametrize("uuid", ["GPU-x", "MIG-x"])
def test_a_uuid_that_says_what_it_is_stays(nvml: Any, monkeypatch: pytest.MonkeyPatch, uuid: str) -> None:
    """Newer versions of PyTorch write the prefix."""
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: types.SimpleNamespace(uuid=uuid))
    assert gpu_readings._handle(0) == ("by uuid", uuid)


def test_what_a_driver_does_not_tell_is_none(nvml: Any) -> None:
    """Every question refused, and the newer names unknown: no number, no reason; the handle is the index's then."""
    nvml.nvmlDeviceGetHandleByUUID = _refuse
    for name in [name for name in vars(nvml) if name.startswith("nvmlDeviceGet") and "Handle" not in name]:
        setattr(nvml, name, _refuse)
    assert gpu_readings.read(GPU) == GpuReadings(1_000_500_000)
    assert gpu_readings._handle(1) == ("by index", 1)
    del nvml.nvmlDeviceGetCurrentClocksEventReasons
    nvml.nvmlDeviceGetCurrentClocksThrottleReasons = lambda handle: 0x40
    assert gpu_readings.read(GPU).reasons == ("hardware thermal",)
    del nvml.nvmlDeviceGetCurrentClocksThrottleReasons
    assert gpu_readings.read(GPU).reasons == ()


@pytest.mark.parametrize(("count", "handle"), [(1, ("by index", 0)), (4, None)])
def test_a_slice_of_one_of_several_gpus_is_not_taken_for_the_first(
    nvml: Any, monkeypatch: pytest.MonkeyPatch, count: int, handle: object
) -> None:
    """NVML numbers the GPUs of the machine, CUDA those that CUDA_VISIBLE_DEVICES leaves: another one's heat is no note (MIG User Guide)."""
    nvml.nvmlDeviceGetHandleByUUID = _refuse
    nvml.nvmlDeviceGetCount = lambda: count
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-5f3c")
    assert gpu_readings._handle(0) == handle
    assert (gpu_readings.read(Device("cuda", 0)) is None) is (handle is None)


def test_without_a_library_or_a_handle_there_is_no_reading(nvml: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """No package, or no GPU that it knows."""
    nvml.nvmlDeviceGetHandleByUUID = nvml.nvmlDeviceGetHandleByIndex = _refuse
    assert gpu_readings.read(GPU) is None
    monkeypatch.setitem(sys.modules, "pynvml", None)
    for kept in (gpu_readings._library, gpu_readings._handle):
        kept.cache_clear()
    assert gpu_readings.read(GPU) is None
    assert gpu_readings._handle(1) is None


def test_a_neighbour_is_who_is_not_ours(nvml: Any) -> None:
    """Two others beside us: the busier one's largest share of the SMs counts, ours does not; asked since the reading before."""
    ours, asked = os.getpid(), []
    nvml.nvmlDeviceGetComputeRunningProcesses = _processes(ours, 7, 8)
    nvml.nvmlDeviceGetProcessUtilization = _shares(asked, **{f"p{ours}": [99]}, p7=[20, 50, 10], p8=[30])
    found = gpu_readings.read(GPU, GpuReadings(123))
    assert (found.neighbours, found.neighbour_busy_ratio) == (2, 0.5)
    gpu_readings.read(GPU)
    assert asked == [123, 1_000_500_000]
    nvml.nvmlDeviceGetProcessUtilization = _shares(asked, **{f"p{ours}": [99]})
    assert gpu_readings.read(GPU).neighbour_busy_ratio == 0.0
    nvml.nvmlDeviceGetProcessUtilization = _refuse
    assert (gpu_readings.read(GPU).neighbours, gpu_readings.read(GPU).neighbour_busy_ratio) == (2, None)


def test_in_a_container_our_own_number_is_hidden(nvml: Any) -> None:
    """Of three processes with the host's numbers one is ours, taken for the busiest; the next one is the neighbour."""
    hidden = [os.getpid() + k for k in (1, 2, 3)]
    nvml.nvmlDeviceGetComputeRunningProcesses = _processes(*hidden)
    nvml.nvmlDeviceGetProcessUtilization = _shares([], **{f"p{hidden[0]}": [15], f"p{hidden[1]}": [90], f"p{hidden[2]}": [40]})
    found = gpu_readings.read(GPU)
    assert (found.neighbours, found.neighbour_busy_ratio) == (2, 0.4)
    nvml.nvmlDeviceGetProcessUtilization = _shares([], **{f"p{hidden[0]}": [15]})
    assert gpu_readings.read(GPU).neighbour_busy_ratio == 0.0
    nvml.nvmlDeviceGetComputeRunningProcesses = _processes(hidden[0])
    assert (gpu_readings.read(GPU).neighbours, gpu_readings.read(GPU).neighbour_busy_ratio) == (0, 0.0)
    nvml.nvmlDeviceGetComputeRunningProcesses = _processes()
    assert gpu_readings.read(GPU).neighbours == 0


def test_the_library_is_started_once(nvml: Any) -> None:
    """Before anything is asked of it."""
    log: list[str] = []
    nvml.nvmlInit = lambda: log.append("start")
    gpu_readings._library.cache_clear()
    gpu_readings.read(GPU)
    gpu_readings.read(GPU)
    assert log == ["start"]
