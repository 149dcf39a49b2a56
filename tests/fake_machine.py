"""A simulated machine: a clock that only calls advance, and NVIDIA GPUs behind PyTorch.

Nothing of gpulab is replaced: the stand-ins are the clock that its functions take, and those
functions of third-party libraries that reach hardware.
"""

import itertools
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

MIB, GIB = 2**20, 2**30


@pytest.fixture(autouse=True)
def private_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep measurements from waiting for other processes, in each test file that imports this."""
    monkeypatch.setenv("GPULAB_LOCK_DIR", str(tmp_path))


class Clock:
    """Seconds that pass only inside the work; only whole steps of ``step`` are shown."""

    def __init__(self, step: float = 0.0, now: float = 0.0) -> None:
        self.now, self.step, self.calls = now, step, 0
        self.busy_until = 0.0  # when the device finishes its queued work

    def __call__(self) -> float:
        """Return the time."""
        return self.now // self.step * self.step if self.step else self.now

    def takes(self, seconds: Any, result: Callable[..., Any] | None = None) -> Callable[..., Any]:
        """Return a function that takes ``seconds``: a number, or a function of the call number."""
        count = itertools.count(1)

        def work(*args: Any) -> Any:
            self.calls += 1
            self.now += seconds(next(count)) if callable(seconds) else seconds
            return None if result is None else result(*args)

        return work

    def queues(self, host: float, device: float, result: Any = None) -> Callable[..., Any]:
        """Return a function that returns after ``host`` seconds and leaves work to the device."""

        def launch(*args: Any) -> Any:
            self.calls += 1
            self.now += host
            self.busy_until = max(self.busy_until, self.now) + device
            return result

        return launch

    def finish(self, index: int = 0) -> None:
        """Wait until the device has finished its queued work."""
        self.now = max(self.now, self.busy_until)


class DeviceArray:
    """An array on a CUDA device, of a library that gpulab has no adapter for (as Numba's)."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {"shape": (4,), "typestr": "<f4", "data": (4096, False), "version": 3}


# NVIDIA H200, as torch.cuda.get_device_properties gives it (clocks in kHz).
H200 = {
    "name": "NVIDIA H200", "major": 9, "minor": 0, "multi_processor_count": 132,
    "total_memory": 140 * GIB, "clock_rate": 1_980_000, "memory_clock_rate": 3_201_000,
    "memory_bus_width": 6144, "L2_cache_size": 60 * MIB, "uuid": "GPU-ab",
}  # fmt: skip


def play_gpus(
    monkeypatch: pytest.MonkeyPatch,
    count: int = 1,
    synchronize: Callable[[int], None] = lambda index: None,
    free_bytes: int = 139 * GIB,
    **properties: Any,
) -> None:
    """Make PyTorch see ``count`` H200s, with ``properties`` in place of their own."""
    import torch

    has = types.SimpleNamespace(**H200 | properties)
    for name, value in {
        "is_available": lambda: count > 0,
        "device_count": lambda: count,
        "get_device_name": lambda index=0: has.name,
        "get_device_properties": lambda index=0: has,
        "get_arch_list": lambda: ["sm_80", "sm_90", "compute_120"],
        "mem_get_info": lambda index=0: (free_bytes, has.total_memory),
        "memory_reserved": lambda index=0: 0,
        "memory_allocated": lambda index=0: 0,
        "synchronize": synchronize,
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.version, "hip", None)


def play_link(
    monkeypatch: pytest.MonkeyPatch,
    clock: Clock,
    latency: float = 1e-5,
    pageable: float = 1e10,
    pinned: float = 2e10,
) -> None:
    """Put the GPU's memory on the host; a copy takes ``latency`` plus its bytes over the rate.

    ``time.perf_counter`` becomes ``clock``. A copy from pinned memory only queues its time, and
    the clock advances when the device is waited for; another copy waits.
    """
    import torch

    real = {name: getattr(torch, name) for name in ("empty", "zeros", "full")}

    def on_host(name: str) -> Callable[..., Any]:
        def make(*args: Any, device: Any = None, pin_memory: bool = False, **rest: Any) -> Any:
            return real[name](*args, **rest)

        return make

    def copy(target: Any, source: Any, non_blocking: bool = False) -> Any:
        seconds = latency + source.nbytes / (pinned if non_blocking else pageable)
        clock.queues(*((0.0, seconds) if non_blocking else (seconds, 0.0)))()
        target.numpy()[:] = source.numpy()
        return target

    for name in real:
        monkeypatch.setattr(torch, name, on_host(name))
    monkeypatch.setattr(torch.Tensor, "copy_", copy)
    monkeypatch.setattr(time, "perf_counter", clock)


def lines(*results: Any) -> str:
    """Return each result's one-line form and its table as text, for an approved file."""
    text = []
    for result in results:
        headers, rows = result.table()
        text += [repr(result), *(" | ".join(row) for row in (headers, *rows)), ""]
    return "\n".join(text)
