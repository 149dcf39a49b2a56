"""What a workload is, whether it can run on a device, the registry, and agreement with float64."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from gpulab import devices
from gpulab._validate import whole, word
from gpulab.devices import Device
from gpulab.errors import InputError, OutOfMemoryError, shown
from gpulab.units import format_bytes, format_flops, format_seconds

# -------------------------------------------------------------------------------------------------
# Agreement with a float64 reference, sampled so that checking never costs more than the work, and
# the tolerance by dtype.
#
# All differences are max|result - reference| / max|reference| over the sample; where the reference
# is all zero, the largest absolute difference. If a result has another shape or values that are not
# finite, its difference is infinite.


# Unit roundoff: half the distance from 1 to the next number, 2**-p for p significant bits (IEEE
# 754; bfloat16 has 8, NVIDIA's TF32 11 bits).
ROUNDOFF: Mapping[str, float] = {
    "float64": 2.0**-53,
    "float32": 2.0**-24,
    "tf32": 2.0**-11,
    "float16": 2.0**-11,
    "bfloat16": 2.0**-8,
}

# How many roundings of the result itself are allowed: one to store it and a few in elementary
# functions and partial results.
_STORED_ROUNDINGS = 4
# Errors of a sum of k terms grow like sqrt(k) roundoffs when they are random (Higham, Accuracy and
# Stability of Numerical Algorithms, 2002, section 2.6); 8 of those leave room for the largest of
# many elements.
_SUM_ROUNDINGS = 8

# The float64 reference of the sampled rows takes at most this many FLOPs (but at least one row is
# sampled), and by default there are at most _ROWS rows, or 64 times as many rows of one number.
_REFERENCE_FLOPS = 1e9
_ROWS = 64


def relative_difference(result: Any, reference: Any) -> float:
    """Return max|result - reference| / max|reference| of two CPU tensors in double precision."""
    if tuple(result.shape) != tuple(reference.shape) or not bool(result.isfinite().all()):
        return math.inf
    distance = float((result - reference).abs().max())
    size = float(reference.abs().max())
    return distance / size if size > 0 else distance


def reference_copy(x: Any) -> Any:
    """Return a tensor's values on the CPU, real ones in float64 and complex ones in complex128;
    others as they are.
    """
    import torch

    x = x.detach().cpu()
    return x.to(torch.complex128) if x.is_complex() else x.double() if x.is_floating_point() else x


def pick(w: Workload, count: int, below: int) -> Any:
    """Return at most ``count`` ascending random indices below ``below``, seeded by the workload's
    size. Two or more include the first and the last index.
    """
    import torch

    if below <= count or count < 3:
        return torch.arange(below) if below <= count else torch.tensor([0, below - 1][:count])
    middle = torch.randint(1, below - 1, (count - 2,), generator=torch.Generator().manual_seed(w.n))
    return torch.cat([torch.tensor([0]), torch.unique(middle), torch.tensor([below - 1])])


def rows(x: Any, index: Any) -> Any:
    """Return the rows at ``index`` of a tensor on any device, as a reference copy."""
    return reference_copy(x.detach()[index.to(x.device)])


def by_rows(
    row_inputs: Sequence[int] | None = None, at_most: int | None = None
) -> Callable[[Workload, Any, tuple[Any, ...]], float]:
    """Return a ``difference`` function that computes some rows again in float64.

    Parameters
    ----------
    row_inputs : sequence of int, optional
        Which inputs are cut to the sampled rows; by default all whose first dimension is as long as
        the result's.
    at_most : int, optional
        The largest number of rows; by default 64 (4,096 where a row is one number). Fewer rows are
        sampled where their reference would take too long.
    """

    def difference(w: Workload, result: Any, inputs: tuple[Any, ...]) -> float:
        """Return max|result - reference| / max|reference| over the sampled rows."""
        if result.dim() == 0:
            return math.inf
        total = int(result.shape[0])
        cut = (
            row_inputs
            if row_inputs is not None
            else [i for i, x in enumerate(inputs) if x.dim() and x.shape[0] == total]
        )
        if any(inputs[i].shape[0] != total for i in cut):
            return math.inf
        affordable = int(_REFERENCE_FLOPS / max(w.flops / max(total, 1), 1.0))
        wanted = at_most or (_ROWS if result.dim() > 1 else 64 * _ROWS)
        index = pick(w, max(1, min(wanted, affordable)), total)
        reference = w.spec.function(
            *(rows(x, index) if i in cut else reference_copy(x) for i, x in enumerate(inputs))
        )
        return relative_difference(rows(result, index), reference)

    return difference


difference_by_rows = by_rows()


def difference_of_all(w: Workload, result: Any, inputs: tuple[Any, ...]) -> float:
    """Compute everything again in float64; for work that reads its inputs once."""
    return relative_difference(
        reference_copy(result), w.spec.function(*(reference_copy(x) for x in inputs))
    )


# -------------------------------------------------------------------------------------------------
# What a workload is, whether it can run on a device, and the registry that holds them.


# Some float16 operators are emulated on CPUs: matmul at about 2 GFLOP/s, convolutions at 0.4
# GFLOP/s on two cores (float32: 170 and 110). Above this many FLOPs one call takes from 50 to 250
# ms, and a measurement many seconds.
EMULATED_FLOPS = 1e8
_EMULATED_FLOPS_PER_SECOND = 1e9

# Factor on estimated memory, for fragmentation and the libraries' own workspaces.
MARGIN = 1.1


def free_bytes(device: Device) -> int:
    """Return the bytes that a new tensor can take on a device now."""
    free = device.free_bytes
    if device.torch_type not in ("cuda", "xpu"):
        return free
    import torch

    # New tensors first take the memory that PyTorch's allocator holds but does not use.
    module = getattr(torch, device.torch_type)
    return free + int(module.memory_reserved(device.index) - module.memory_allocated(device.index))


ITEMSIZE: Mapping[str, int] = MappingProxyType(
    {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
)

# The largest size parameter: no machine holds larger inputs, and counts of much larger ones would
# not fit into a float.
LARGEST_SIZE = 2**40


@dataclass(frozen=True)
class Workload:
    """One operation at one size and dtype: what ``measure`` and ``compare`` run.

    To make one, call a ``WorkloadSpec``, which checks the arguments.

    Attributes
    ----------
    name, dtype : str
    n : int
        The size parameter; ``spec.size_meaning`` says what it counts.
    params : mapping
        Further parameters, with their defaults filled in.
    spec : WorkloadSpec
    """

    name: str
    dtype: str
    n: int
    params: Mapping[str, int]
    spec: WorkloadSpec = field(repr=False)

    @property
    def label(self) -> str:
        """The label that tables show, such as "matmul n=1024 float32"; it includes only those
        parameters that differ from their defaults.
        """
        changed = "".join(
            f" {key}={value}"
            for key, value in self.params.items()
            if value != self.spec.params[key]
        )
        return f"{self.name} n={self.n} {self.dtype}{changed}"

    @property
    def itemsize(self) -> int:
        """Bytes of one element of ``dtype``."""
        return ITEMSIZE[self.dtype]

    @property
    def flops(self) -> float:
        """Floating-point operations of one call, by ``spec.counts``; 0.0 where an operation only
        moves or compares.
        """
        return float(self.spec.flops(self))

    @property
    def nbytes(self) -> float:
        """Compulsory memory traffic of one call in bytes: each input read once, each output written
        once.
        """
        return float(self.spec.nbytes(self))

    @property
    def working_set_bytes(self) -> float:
        """Lower bound of the distinct memory that one call touches, in bytes: the cache level that
        holds it limits the rate.
        """
        return self.nbytes

    @property
    def memory_bytes(self) -> float:
        """Estimated bytes of device memory that inputs, result and intermediate storage take
        together.
        """
        return float(self.spec.memory(self)) if self.spec.memory is not None else self.nbytes

    def arithmetic_on(self, device: Any) -> str:
        """Return the fastest number format that the settings permit on a device.

        "tf32" for matrix products and convolutions of float32 where PyTorch may use it (CUDA;
        convolutions by default), else ``dtype``.
        """
        return "tf32" if self._may_use_tf32(device) else self.dtype

    def _may_use_tf32(self, device: Any) -> bool:
        """Return whether PyTorch may do this work in TF32 on a device or, with None, on any device
        of this machine.
        """
        torch = sys.modules.get("torch")
        return (
            self.dtype == "float32"
            and self.spec.matrix is not None
            and torch is not None
            and torch.cuda.is_available()
            and (device is None or devices.find(device).kind == "cuda")
            and "tf32" in devices.arithmetic(self.dtype, "cuda", self.spec.matrix)
        )

    @property
    def tolerance(self) -> float:
        """The largest max|a - reference| / max|reference| that counts as correct: the dtype allows
        for some roundings of the result and of its sums.
        """
        # Half formats are summed in float32 (PyTorch's CPU kernels, Tensor Cores).
        summed_in = "float64" if self.dtype == "float64" else "float32"
        stored_in = "tf32" if self._may_use_tf32(None) else self.dtype
        return (
            _STORED_ROUNDINGS * ROUNDOFF[stored_in]
            + _SUM_ROUNDINGS * math.sqrt(self.spec.sum_length(self)) * ROUNDOFF[summed_in]
        )

    def check(self, device: Any = "cpu") -> None:
        """Return normally if the workload can run on a device.

        Raises
        ------
        DeviceError
            If the machine has no such device.
        InputError
            If the device lacks the dtype, or is a CPU that emulates the operation in float16 and
            one call takes more than ``EMULATED_FLOPS``.
        OutOfMemoryError
            If inputs, result and intermediate storage do not fit into the free memory.
        """
        where = devices.find(device)
        others = ", ".join(dtype for dtype in self.spec.dtypes if dtype != self.dtype)
        if self.dtype == "float64" and where.kind == "mps":
            raise InputError(
                f"{self.label}: {where.name} has no float64 arithmetic; expected one of: {others}. "
                "Pass dtype='float32'."
            )
        is_emulated = where.is_cpu and self.dtype == "float16" and self.spec.emulated_in_float16
        if is_emulated and self.flops > EMULATED_FLOPS:
            raise InputError(
                f"{self.label}: CPUs emulate this operation in float16, so "
                f"{format_flops(self.flops)} would take about "
                f"{format_seconds(self.flops / _EMULATED_FLOPS_PER_SECOND)} a call; expected at "
                f"most {format_flops(EMULATED_FLOPS)}. Pass a smaller n, or dtype='bfloat16' or "
                "'float32'."
            )
        needs = [(where, self.memory_bytes * MARGIN)]
        if not where.is_cpu:
            # The inputs are drawn on the host in float32 and converted there.
            needs.append((devices.Device("cpu"), self.nbytes * (1 + 4 / self.itemsize)))
        for place, needed in needs:
            free = free_bytes(place)
            if needed > free:
                raise OutOfMemoryError(
                    f"{self.label}: needs about {format_bytes(needed)} on {place.name}, where "
                    f"{format_bytes(free)} is free; expected a size that fits. Pass a smaller n, "
                    "or free memory first (gl.memory.release())."
                )

    def inputs(self, device: Any = "cpu", seed: int = 0) -> tuple[Any, ...]:
        """Return seeded torch inputs on a device; the same values on every device.

        The training steps take a step object (the model with its optimizer) before the tensors.

        Raises
        ------
        InputError, OutOfMemoryError, DeviceError
            As for ``check``.
        """
        import torch

        self.check(device)
        seed = whole(self.label, "seed", seed, 0, 2**63 - 1)
        where, real, made = str(devices.find(device)), getattr(torch, self.dtype), []
        # the caller's default device does not apply: a generator of the CPU draws on the CPU
        with devices.guard(f"{self.label}: making the inputs on {where}"), torch.device("cpu"):
            for value in self.spec.make_inputs(self, torch.Generator().manual_seed(seed)):
                # a step object (not a tensor) converts its model
                floating = not isinstance(value, torch.Tensor) or value.is_floating_point()
                made.append(value.to(where, real) if floating else value.to(where))
        return tuple(made)

    def run(self, *inputs: Any) -> Any:
        """Do the work once (it may return before the device has finished)."""
        return self.spec.function(*inputs)

    def difference(self, result: Any, inputs: tuple[Any, ...]) -> float:
        """Return max|result - reference| / max|reference| against a float64 reference of sampled
        rows or elements.

        Infinite if the result is not a tensor, has another shape, or has values that are not
        finite.
        """
        import torch

        shape = self.spec.shape(self, inputs) if self.spec.shape is not None else None
        if not isinstance(result, torch.Tensor) or (
            shape is not None and tuple(result.shape) != tuple(shape)
        ):
            return math.inf
        with torch.enable_grad(), torch.device("cpu"):
            return self.spec.difference(self, result, inputs)


@dataclass(frozen=True)
class WorkloadSpec:
    """One entry of the catalog; calling it with a size and a dtype gives a ``Workload``.

    Attributes
    ----------
    name, summary : str
        The texts that lists show.
    size_meaning : str
        What ``n`` counts.
    sizes : tuple of int
        From tiny to a few seconds on a laptop's CPU, ascending.
    function : callable
        The work: takes the inputs, returns one tensor.
    flops, nbytes : callable
        Take the workload; return the count for one call. ``counts`` has the same in words.
    make_inputs : callable
        Takes the workload and a CPU ``torch.Generator``; returns CPU tensors (see ``draw``).
    dtypes : tuple of str
        The dtypes that make sense for the work on some device.
    params : mapping
        Further parameters (positive whole numbers) and their defaults.
    counts : str
        The formulas in words, including what the convention leaves out.
    difference : callable
        Takes the workload, a result and the inputs; returns the relative difference.
    shape : callable or None
        Takes the workload and the inputs; returns the result's shape. Required if ``difference``
        relies on that shape.
    sum_length : callable
        Takes the workload; returns the number of terms of its longest sum, for the tolerance.
    matrix : str or None
        "matmul" or "convolution" where Tensor Cores may do the arithmetic.
    emulated_in_float16 : bool
        Whether PyTorch's CPU kernel for float16 is a slow emulation.
    memory : callable or None
        Takes the workload; returns the device memory in bytes. None if that is ``nbytes``.
    """

    name: str
    summary: str
    size_meaning: str
    sizes: tuple[int, ...]
    function: Callable[..., Any]
    flops: Callable[[Workload], float]
    nbytes: Callable[[Workload], float]
    make_inputs: Callable[[Workload, Any], tuple[Any, ...]]
    dtypes: tuple[str, ...] = ("float32", "float64", "bfloat16", "float16")
    params: Mapping[str, int] = field(default_factory=dict)
    counts: str = ""
    difference: Callable[[Workload, Any, tuple[Any, ...]], float] = difference_by_rows
    shape: Callable[[Workload, tuple[Any, ...]], Sequence[int]] | None = None
    sum_length: Callable[[Workload], float] = lambda _: 1.0
    matrix: str | None = None
    emulated_in_float16: bool = False
    memory: Callable[[Workload], float] | None = None

    def __call__(self, n: int | None = None, dtype: Any = "float32", **params: int) -> Workload:
        """Return the workload at one size and dtype.

        Parameters
        ----------
        n : int, optional
            The size; the middle one of ``sizes`` by default.
        dtype : str or torch.dtype
        **params : int
            Values for the entry's ``params``; the others keep their defaults.

        Raises
        ------
        InputError
            If the size is not a positive whole number, or a dtype or parameter is not one of the
            entry's.
        """
        size = (
            self.sizes[len(self.sizes) // 2]
            if n is None
            else whole(self.name, "n", n, 1, LARGEST_SIZE)
        )
        for key in params:
            word(self.name, "a parameter's name", key, self.params)
        given = {
            key: whole(self.name, key, params.get(key, default), 1, LARGEST_SIZE)
            for key, default in self.params.items()
        }
        workload = Workload(self.name, self._dtype(dtype), size, MappingProxyType(given), self)
        workload.flops, workload.nbytes  # noqa: B018  (counting finds parameters that do not go together)
        return workload

    def _dtype(self, dtype: Any) -> str:
        """Return the name of a dtype, passed as text or as an object of torch or numpy."""
        named = (
            dtype
            if isinstance(dtype, str)
            else getattr(dtype, "name", None) or getattr(dtype, "__name__", None)
        )
        text = (named if isinstance(named, str) else shown(dtype)).removeprefix("torch.")
        return word(self.name, "dtype", text, self.dtypes)


_REGISTRY: dict[str, WorkloadSpec] = {}


def register(spec: WorkloadSpec) -> WorkloadSpec:
    """Add an entry to the catalog and return it. It replaces an entry of the same name, so that a
    cell can run twice.
    """
    _REGISTRY[spec.name] = spec
    return spec


def names() -> tuple[str, ...]:
    """Return the names in the catalog.

    Examples
    --------
    >>> "matmul" in names()
    True
    """
    return tuple(_REGISTRY)


def get(name: str) -> WorkloadSpec:
    """Return an entry of the catalog.

    Parameters
    ----------
    name : str
        One of ``names()``.

    Raises
    ------
    InputError
        If there is no such workload.
    """
    return _REGISTRY[word("get", "workload", name, _REGISTRY)]
