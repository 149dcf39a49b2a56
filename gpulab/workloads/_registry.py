"""What a workload is, and the registry that holds them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gpulab.errors import InputError


@dataclass(frozen=True)
class Workload:
    """One operation at one size and dtype: what ``measure`` and ``compare`` run.

    Attributes
    ----------
    name, dtype : str
    n : int
        The size parameter; ``spec.size_meaning`` says what it counts.
    params : mapping
        Further parameters, with their defaults filled in.
    flops, nbytes : float
        Per call: floating-point operations; compulsory memory traffic (each input read once, each output written once).
    tolerance : float
        The max|a - reference| / max|reference| that this dtype allows.
    spec : WorkloadSpec
    """

    name: str
    dtype: str
    n: int
    params: Mapping[str, Any]
    flops: float
    nbytes: float
    tolerance: float
    spec: WorkloadSpec = field(repr=False)

    @property
    def label(self) -> str:
        """The words that tables show, such as "matmul n=1024 float32"."""
        return f"{self.name} n={self.n} {self.dtype}"

    def inputs(self, device: Any = "cpu", seed: int = 0) -> tuple[Any, ...]:
        """Return seeded torch inputs on a device; the same values on every device."""
        return self.spec.make_inputs(self, device, seed)

    def run(self, *inputs: Any) -> Any:
        """Do the work once (it may return before the device has finished)."""
        return self.spec.function(*inputs)

    def difference(self, result: Any, inputs: tuple[Any, ...]) -> float:
        """Return max|result - reference| / max|reference| against a float64 reference (sampled for large products)."""
        return self.spec.difference(self, result, inputs)


@dataclass(frozen=True)
class WorkloadSpec:
    """One entry of the catalogue; calling it with a size and a dtype gives a ``Workload``."""

    name: str
    summary: str
    size_meaning: str
    sizes: tuple[int, ...]
    dtypes: tuple[str, ...]
    function: Callable[..., Any]
    flops: Callable[[int], float]
    nbytes: Callable[[int, int], float]
    make_inputs: Callable[[Workload, Any, int], tuple[Any, ...]]
    difference: Callable[[Workload, Any, tuple[Any, ...]], float]

    def __call__(self, n: int | None = None, dtype: str = "float32", **params: Any) -> Workload:
        """Return the workload at one size and dtype."""
        size = self.sizes[len(self.sizes) // 2] if n is None else n
        itemsize = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}[dtype]
        return Workload(self.name, dtype, size, params, self.flops(size), self.nbytes(size, itemsize), 1e-4, self)


_REGISTRY: dict[str, WorkloadSpec] = {}


def register(spec: WorkloadSpec) -> WorkloadSpec:
    """Add an entry to the catalogue."""
    _REGISTRY[spec.name] = spec
    return spec


def names() -> tuple[str, ...]:
    """Return the names in the catalogue."""
    return tuple(_REGISTRY)


def get(name: str) -> WorkloadSpec:
    """Return an entry of the catalogue.

    Raises
    ------
    InputError
        If there is no such workload.
    """
    if name not in _REGISTRY:
        raise InputError(f"workload {name!r} is not in the catalogue; expected one of {', '.join(_REGISTRY)}.")
    return _REGISTRY[name]


def _max_relative_difference(result: np.ndarray, reference: np.ndarray) -> float:
    return float(np.max(np.abs(result - reference)) / np.max(np.abs(reference)))
