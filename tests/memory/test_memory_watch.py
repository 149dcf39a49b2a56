"""Watching a cell on a stand-in for an accelerator: the device has finished before its peak is reset or read."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from gpulab.devices import Device
from gpulab.evidence import Evidence
from gpulab.memory import _watch
from gpulab.memory._snapshot import HeldTensor


class Accelerator(Device):
    """An XPU that notes when it is waited for."""

    def synchronize(self) -> None:
        """Note it."""
        SEEN.append("wait")


SEEN: list[str] = []


@pytest.fixture
def accelerator(monkeypatch: pytest.MonkeyPatch) -> Device:
    """Beside the CPU one accelerator, whose pool grows from 100 to 130 bytes with a peak of 170."""
    SEEN.clear()
    where = Accelerator("xpu", 0)
    pool = iter((100, 130))
    rows = {"old": HeldTensor("old", 5, (5,), "uint8", "torch", 1)}

    def storages(device: Device, names: Any) -> dict[str, HeldTensor]:
        if device is not where:
            return {}
        made = {f"new {k}": HeldTensor(f"t{k}", k + 1, (k + 1,), "uint8", "torch", 1) for k in range(names.get("made", 0))}
        return {**rows, **made}

    monkeypatch.setattr(_watch.devices, "available", lambda: (Device("cpu"), where))
    monkeypatch.setattr(_watch, "pool_bytes", lambda device: (next(pool), 0))
    monkeypatch.setattr(_watch, "storages", storages)
    monkeypatch.setattr(_watch, "lives", lambda device, names: {key: lambda: True for key in storages(device, names)})
    monkeypatch.setattr(torch.xpu, "reset_peak_memory_stats", lambda index: SEEN.append(f"reset {index}"))
    monkeypatch.setattr(torch.xpu, "max_memory_allocated", lambda index: SEEN.append(f"read {index}") or 170)
    monkeypatch.setattr(Device, "name", property(str))
    return where


def test_a_device_is_waited_for_before_its_peak_is_asked(accelerator: Device) -> None:
    """By hand: 100 before, 170 at the peak, 30 kept; the twelve new arrays by size, the ten largest; a wait before each question."""
    names: dict[str, Any] = {}
    with _watch.Watch(names) as watch:
        names["made"] = 12
    found = watch.result()
    assert SEEN == ["wait", "reset 0", "wait", "read 0"]
    assert [(u.before_bytes, u.peak_bytes, u.kept_bytes, u.freed_bytes) for u in found.devices[1:]] == [(100, 170, 30, 0)]
    assert [use.device for use in found.devices] == ["cpu", "xpu:0"]
    assert [row.nbytes for row in found.largest] == [12, 11, 10, 9, 8, 7, 6, 5, 4, 3]
    assert (found.failed, found.evidence.device) == (False, "xpu:0")


@pytest.mark.parametrize("ones", [torch.ones, np.ones], ids=["torch", "numpy"])
def test_a_cell_that_runs_again_makes_new_arrays_again(ones: Any) -> None:
    """What it rebinds goes, and the next array gets the same address: it is new all the same, and what no cell touched is not."""
    names: dict[str, Any] = {"old": ones(50_000)}
    for _ in range(3):
        with _watch.Watch(names) as watch:
            names["x"] = ones((300, 300))
            names["y"] = names["x"] @ names["x"]
            names["z"] = names["y"].clip(0, 1)
        assert sorted(row.name for row in watch.result().largest if row.name in names) == ["x", "y", "z"]


def test_a_peak_that_nobody_keeps_is_the_larger_end() -> None:
    """MPS keeps none: nothing is asked of it."""
    SEEN.clear()
    _watch._reset_peak(Accelerator("mps", 0))
    assert _watch._peak(Accelerator("mps", 0)) == 0
    assert SEEN == []


@pytest.mark.parametrize(("before", "after", "kept", "freed"), [(10, 30, 20, 0), (30, 10, 0, 20), (7, 7, 0, 0)])
def test_a_device_grew_or_shrank(before: int, after: int, kept: int, freed: int) -> None:
    """One of the two is nothing."""
    assert _watch._use("cpu", before, 50, after) == _watch.DeviceUse("cpu", before, 50, kept, freed)


def test_a_cell_in_one_line() -> None:
    """Each device with its peak and what is kept."""
    uses = (_watch.DeviceUse("cpu", 0, 1024, 512, 0), _watch.DeviceUse("cuda:0", 0, 2048, 0, 0))
    assert repr(_watch.CellMemory(uses, 0, (), False, Evidence.measured("a GPU"))) == (
        "<memory of the cell: cpu: peak 1.00 KiB, kept 512 B; cuda:0: peak 2.00 KiB, kept 0 B>"
    )


def test_what_cupy_holds_lies_beside_pytorchs_peak(accelerator: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the 100 bytes before and the 130 after CuPy holds 80 and 60: with PyTorch's 170 there were 230 at once."""
    held = iter((80, 60))
    monkeypatch.setattr(_watch, "cupy_bytes", lambda device: (next(held), 100))
    with _watch.Watch({}) as watch:
        pass
    assert [(u.before_bytes, u.peak_bytes, u.kept_bytes) for u in watch.result().devices[1:]] == [(100, 230, 30)]
