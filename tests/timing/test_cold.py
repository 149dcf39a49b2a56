"""Cold caches: how much is written over to empty them, and that neither the writing nor the device's rest is in the time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gpulab.devices import Cache, Device
from gpulab.timing import _cold


class Accelerator:
    """A device without memory of its own, that notes when it is waited for."""

    is_cpu, index = False, 0

    def __init__(self, kind: str, seen: list[str]) -> None:
        self.torch_type, self.seen = kind, seen

    def __str__(self) -> str:
        return "meta"

    def synchronize(self) -> None:
        """Note it."""
        self.seen.append("wait")


def test_the_largest_cache_of_the_cpu_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """By hand: two L3 caches of 32 MiB are 64 MiB, more than eight L2 of 1 MiB; what instructions lie in holds no data."""

    def cache(level: str, size: int, instances: int) -> Cache:
        return Cache(level, size * 2**20, instances)

    caches = [cache("L1i", 500, 1), cache("L2", 1, 8), cache("L3", 32, 2)]
    monkeypatch.setattr(_cold, "probe", lambda: SimpleNamespace(caches=caches))
    assert _cold._cpu_cache_bytes.__wrapped__() == 64 * 2**20
    caches[:] = caches[:1]
    assert _cold._cpu_cache_bytes.__wrapped__() == 256 * 2**20


def test_the_cpus_flush_writes_twice_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every word of twice the cache changes at each flush."""
    monkeypatch.setattr(_cold, "_cpu_cache_bytes", lambda: 4096)
    flush = _cold.flusher(Device("cpu"))
    flush()
    flush()
    (buffer,) = (cell.cell_contents for cell in flush.__closure__)
    assert (buffer.nbytes, set(buffer.tolist())) == (8192, {2})


@pytest.mark.parametrize(("kind", "told", "nbytes"), [("cuda", 50, 100), ("cuda", 0, 256), ("cuda", None, 256), ("xpu", 50, 256)])
def test_the_gpus_flush_clears_twice_its_cache_and_waits(kind: str, told: int | None, nbytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice the L2 that CUDA tells, twice 128 MiB where nobody tells it; it is cleared, and the device has finished."""
    seen: list[str] = []
    known = SimpleNamespace() if told is None else SimpleNamespace(L2_cache_size=told * 2**20)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: known)
    place: Any = Accelerator(kind, seen)
    flush = _cold.flusher(place)
    (tensor,) = (cell.cell_contents for cell in flush.__closure__ if isinstance(cell.cell_contents, torch.Tensor))
    assert tensor.nbytes == nbytes * 2**20
    monkeypatch.setattr(torch.Tensor, "zero_", lambda tensor: seen.append("clear"))
    flush()
    assert seen == ["clear", "wait"]


@pytest.mark.parametrize("finish", [False, True])
def test_the_time_of_a_cold_call_is_its_own(finish: bool) -> None:
    """A flush of 100 s is outside; 2 s until the call returns, 5 s for its result where one is waited for, 1 s for the device."""
    now = [0.0]

    def spend(seconds: float) -> None:
        now[0] += seconds

    def flush() -> None:
        spend(100.0)

    def work(one: float, other: float) -> None:
        spend(one - other)

    def wait() -> None:
        spend(1.0)

    run = _cold.cold_run(work, (3.0, 1.0), wait, lambda: now[0], flush, (lambda result: spend(5.0)) if finish else None)
    assert run(3) == (6.0, 24.0 if finish else 9.0)
