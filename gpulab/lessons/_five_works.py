"""Five operations of different arithmetic intensity, for notebook 03."""

from __future__ import annotations

from collections.abc import Mapping

from gpulab import workloads

FIVE: Mapping[str, tuple[str, int, dict[str, int]]] = {
    "add": ("add", 1 << 24, {}),
    "sum": ("sum", 1 << 24, {}),
    "softmax": ("softmax", 1 << 14, {}),
    "one row": ("linear", 1, {"features": 4096}),
    "matmul": ("matmul", 1024, {}),
}


def five_works() -> dict[str, workloads.Workload]:
    """Return the five pieces of work of exercise 03.3, float32, by the names that it uses."""
    return {key: workloads.get(name)(n=n, **params) for key, (name, n, params) in FIVE.items()}
