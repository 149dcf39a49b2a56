"""Do the results of the compared runs agree? Checked before any speed-up is reported.

The measure is max|a - reference| / max|reference|. A workload of the catalogue knows its own
higher-precision reference. For any other function the reference is the function itself on float64
copies of its inputs; of a large matrix product, sampled rows of it.
"""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from gpulab import _backends, devices
from gpulab.evidence import Note
from gpulab.timing import work_arrays

# max|a - reference| / max|reference| that a chain of operations in this format may show; single
# roundings are 2^-53, 2^-24, 2^-11, 2^-11, 2^-8.
_TOLERANCES = {
    "float64": 1e-10,
    "complex128": 1e-10,
    "float32": 1e-4,
    "complex64": 1e-4,
    "tf32": 5e-3,
    "float16": 1e-2,
    "bfloat16": 5e-2,
}
# Above this many operations a float64 product takes seconds on two cores: rows are sampled.
_WHOLE_PRODUCT = 2e9
_SAMPLED_ROWS = 64
# A float64 run costs two to four times a float32 run; a learner waits no longer than this for a
# check.
_LONGEST_CHECK_SECONDS = 5.0
_FLOAT64_COST = 3.0

# What the libraries call the product of two matrices; TensorFlow's take no array of rows.
_PRODUCTS = {
    "numpy": ("matmul", "dot"),
    "torch": ("matmul", "mm"),
    "cupy": ("matmul", "dot"),
    "jax.numpy": ("matmul", "dot"),
}

Difference = Callable[[Any], float]


# What the results are held against: the difference of a result from the reference (None where
# nothing can be checked), the tolerance, and notes on how the reference was made, where that is not
# the full float64 run.
Reference = tuple[Difference | None, float, tuple[Note, ...]]


def tolerance_for(dtypes: tuple[str, ...], tf32: bool) -> float:
    """Return what the coarsest of the formats allows; 0 where all are whole numbers."""
    names = ["tf32" if tf32 and name == "float32" else name for name in dtypes]
    return max((_TOLERANCES.get(name, 0.0) for name in names), default=_TOLERANCES["float32"])


def precise_copy(value: Any) -> Any:
    """Return host copies of all arrays, floating ones in float64 and complex ones in complex128."""

    def change(array: Any, library: str) -> Any:
        if library == "torch":
            host = array.detach().cpu()
            torch = sys.modules["torch"]
            kind = (
                torch.complex128
                if host.is_complex()
                else torch.float64
                if host.is_floating_point()
                else host.dtype
            )
            return host.to(kind, copy=True)
        host = _backends.backend(library).to_host(array)
        return np.array(
            host, dtype={"f": np.float64, "c": np.complex128}.get(host.dtype.kind), copy=True
        )

    return work_arrays.mapped(value, change)


def flat(result: Any) -> list[np.ndarray]:
    """Return the arrays and numbers of a result as numpy arrays of the highest precision, in
    order.
    """
    if isinstance(result, (bool, int, float, complex, np.generic)):
        return [np.asarray(result)]
    if isinstance(result, dict):
        return [array for item in result.values() for array in flat(item)]
    if isinstance(result, (tuple, list)):
        return [array for item in result for array in flat(item)]
    if _backends.backend_of(result) is None:
        return []
    exact = precise_copy(result)
    if isinstance(exact, np.ndarray):
        return [exact]
    dense = exact.to_dense() if _is_sparse(exact) else exact
    return [dense.resolve_conj().resolve_neg().numpy()]


def _is_sparse(array: Any) -> bool:
    """Return whether this is a tensor of PyTorch's that keeps only what is not zero."""
    torch = sys.modules.get("torch")
    return (
        torch is not None and isinstance(array, torch.Tensor) and array.layout is not torch.strided
    )


def relative_difference(got: list[np.ndarray], expected: list[np.ndarray]) -> float:
    """Return the largest max|a - b| / max|b| of the pairs; infinite where shapes differ or a value
    is not finite on one side only.
    """
    if len(got) != len(expected):
        return math.inf
    return max((_pair_difference(a, b) for a, b in zip(got, expected, strict=True)), default=0.0)


def _pair_difference(a: np.ndarray, b: np.ndarray) -> float:
    if a.shape != b.shape:
        return math.inf
    if a.size == 0:
        return 0.0
    kinds = {a.dtype.kind, b.dtype.kind}
    if kinds & set("bSUO"):  # truth values, texts, Python's own objects
        return 0.0 if a.tolist() == b.tolist() else math.inf
    least = 0.0
    if kinds <= set("iu"):  # whose own difference would wrap round
        # float64 rounds beyond 2^53, but whole numbers that differ do so by at least 1
        least, a, b = float(np.any(a != b)), a.astype(np.float64), b.astype(np.float64)
    finite = np.isfinite(b)
    if not np.array_equal(finite, np.isfinite(a)) or not np.array_equal(
        a[~finite], b[~finite], equal_nan=True
    ):
        return math.inf
    if not finite.all():
        a, b = a[finite], b[finite]
    distance = max(least, float(np.max(np.abs(a - b), initial=0.0)))
    size = float(np.max(np.abs(b), initial=0.0))
    return distance / size if size > 0 else distance


def _sampled_product(fn: Any, args: tuple[Any, ...], tolerance: float) -> Reference | None:
    """Return rows of a large product of two dense matrices as its reference; None for a small one,
    and for what is not one of the libraries' own products.
    """
    if len(args) != 2 or any(getattr(array, "ndim", 0) != 2 or _is_sparse(array) for array in args):
        return None  # of a sparse one PyTorch takes no rows
    if fn is not operator.matmul and not any(
        fn is getattr(sys.modules.get(library), word, None)
        for library, words in _PRODUCTS.items()
        for word in words
    ):
        return None
    a, b = args
    rows, inner = (int(n) for n in a.shape)
    if 2.0 * rows * inner * int(b.shape[1]) <= _WHOLE_PRODUCT or rows <= _SAMPLED_ROWS:
        return None
    chosen = np.unique(np.linspace(0, rows - 1, _SAMPLED_ROWS).astype(int))
    expected = flat(flat(precise_copy(a[chosen]))[0] @ flat(precise_copy(b))[0])

    def difference(result: Any) -> float:
        if getattr(result, "ndim", 0) != 2 or tuple(result.shape) != (rows, int(b.shape[1])):
            return math.inf
        return relative_difference(flat(result[chosen]), expected)

    how = (
        f"the product is large: {len(chosen)} of its {rows} rows, evenly spaced, were checked "
        "against float64; the others were not."
    )
    return difference, tolerance, (Note("skipped", how),)


def of_function(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    precise_args: tuple[Any, ...],
    first: Any,
    call_seconds: float,
) -> Reference:
    """Return the reference of a function of the caller's own.

    Parameters
    ----------
    fn, args
        The baseline's function and inputs.
    precise_args : tuple
        ``precise_copy`` of the inputs, made before the first call could change them.
    first : object
        The baseline's first result: the reference where a float64 run is not possible.
    call_seconds : float
        What the baseline's call took on the CPU, to decide whether a float64 run is affordable;
        infinite where none ran there.
    """
    any_cuda = len(devices.available()) > 1
    tolerance = tolerance_for(
        work_arrays.dtypes_in(args, first),
        any_cuda and "tf32" in devices.arithmetic("float32", "cuda"),
    )
    sampled = _sampled_product(fn, args, tolerance)
    if sampled is not None:
        return sampled
    why = "nothing ran on the CPU that shows how long a float64 run there would take"
    if math.isfinite(call_seconds):
        why = f"a float64 run would take about {_FLOAT64_COST * call_seconds:.0f} s"
    expected = None
    if _FLOAT64_COST * call_seconds <= _LONGEST_CHECK_SECONDS:
        try:
            expected = flat(fn(*precise_args))
        except Exception as error:
            # the caller's function may refuse float64, and then its own result must do
            why = f"the function does not take float64 ({type(error).__name__})"
    notes: tuple[Note, ...] = ()
    if expected is None:
        sentence = (
            f"{why}, so the results were compared with the baseline's result, not with a more "
            "precise one. Check the baseline separately."
        )
        expected, notes = flat(first), (Note("skipped", sentence),)
    if not expected:
        sentence = (
            "the function returns neither an array nor a number, so agreement could not be "
            "checked. Return the result from the function."
        )
        return None, tolerance, (Note("skipped", sentence),)
    return lambda result: relative_difference(flat(result), expected), tolerance, notes
