"""The recorder's catalogue: what is foretold to take too long is left out before it is begun."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from gpulab import workloads
from gpulab.devices import Device
from gpulab.errors import InputError
from gpulab.recorder import _catalogue, _foretell


@pytest.fixture(name="called")
def _called(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes that were called, on a clock in which a product of n takes 1e-9 n^3 seconds, as without instructions for its format."""
    sizes: list[int] = []
    clock = [0.0]

    def slow(x: Any, y: Any) -> Any:
        sizes.append(len(x))
        clock[0] += 1e-9 * len(x) ** 3
        return x

    spec = dataclasses.replace(workloads.get("matmul"), function=slow)
    monkeypatch.setattr(_foretell.time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(_catalogue, "measure", lambda *given, **named: "measured")
    monkeypatch.setattr(_catalogue.workloads, "get", lambda name: spec)
    return sizes


def test_a_call_of_many_seconds_is_foretold_from_a_quarter_of_its_size(called: list[int]) -> None:
    """2048: 8.6 s by n^3, seen from 512 (0.13 s; warmed up, then three samples) and never called; 1024 takes 1.1 s and is measured."""
    spec = _catalogue.workloads.get("matmul")
    with pytest.raises(InputError, match=r"a call takes about 9 s here; expected at most 3 s\. Left out"):
        _catalogue._case(Device("cpu"), spec, 2048, "bfloat16", 0).time(1.0)
    assert called == [512] * 4
    assert _catalogue._case(Device("cpu"), spec, 1024, "bfloat16", 0).time(1.0) == "measured"


def test_the_smallest_size_foretells_itself_by_nothing(called: list[int]) -> None:
    """There is nothing smaller to look at, so it is measured at once."""
    spec = _catalogue.workloads.get("matmul")
    assert _catalogue._case(Device("cpu"), spec, 64, "bfloat16", 0).time(1.0) == "measured"
    assert called == []
