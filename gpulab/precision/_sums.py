"""The errors of sums and matrix products in narrow formats, and the gain of a wider accumulator."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch

from gpulab import _validate, devices
from gpulab.errors import InputError
from gpulab.evidence import Badge, Evidence
from gpulab.precision import _formats
from gpulab.precision._formats import Format, as_float64, find, rounded
from gpulab.results import Result, Table
from gpulab.units import plural

ORDERS = ("one by one", "in pairs", "one by one, by chance")
# The simulation computes in float64, which must hold the product of two operands exactly; so
# float64 is not in this list.
_NARROW = (
    "float32",
    "tf32",
    "float16",
    "bfloat16",
    "float8_e4m3fn",
    "float8_e5m2",
    "float4_e2m1fn",
)
_SOURCE = "IEEE 754-2019, 4.3.1 and 5.4.1, carried out exactly"
_MOST_VALUES = 1_000_000
_MOST_PRODUCTS = 2**26


class SumRow(NamedTuple):
    """One way to add the same values.

    Attributes
    ----------
    values, accumulator, order : str
        The values' format, that of the partial sums, and one of ``ORDERS``.
    total : float
    relative_error : float
        Error of the total, divided by the exact sum of the values before they were rounded;
        infinite if the exact sum is 0 and the total is not.
    """

    values: str
    accumulator: str
    order: str
    total: float
    relative_error: float


@dataclass(frozen=True)
class SumError(Result):
    """The errors of several ways to add the same values.

    Attributes
    ----------
    count : int
    exact : float
        The exact sum, rounded once to float64.
    rows : tuple of SumRow
    evidence : Evidence
        MODELLED: the arithmetic is carried out rounding by rounding.
    """

    count: int
    exact: float
    rows: tuple[SumRow, ...]
    evidence: Evidence

    def __repr__(self) -> str:
        return (
            f"<sum of {plural(self.count, 'value')}, exactly {self.exact:.7g}: "
            f"{', '.join(f'{r.values} {r.total:.5g}' for r in self.rows)}>"
        )

    def table(self) -> Table:
        """Return one row for each way."""
        rows = [
            (r.values, r.accumulator, r.order, f"{r.total:.8g}", percent(r.relative_error))
            for r in self.rows
        ]
        return ("values in", "accumulated in", "order", "sum", "relative error"), [
            *rows,
            ("exact", "", "", f"{self.exact:.8g}", ""),
        ]


def percent(ratio: float) -> str:
    """Return a relative error as text: a percentage, or a power of ten where it is tiny."""
    if not math.isfinite(ratio):
        return str(ratio)
    return "0" if ratio == 0 else f"{ratio:.3%}" if ratio >= 1e-5 else f"{ratio:.1e}"


def sum_error(
    x: Any, formats: Iterable[str] = ("float16", "bfloat16", "float32"), seed: int = 0
) -> SumError:
    """Return the error of adding the same values in each format: one by one, in pairs, with
    stochastic rounding, and in float32.

    Parameters
    ----------
    x : array_like of float64
        At least one finite number; all are added.
    formats : iterable of str
        Formats of the values and of the accumulator; values narrower than float32 are also
        accumulated in float32.
    seed : int
        Seed of the random draws for stochastic rounding.

    Returns
    -------
    SumError

    Raises
    ------
    InputError
        If there are no values, too many, or some that are not finite, or a format cannot be tried.

    Examples
    --------
    >>> for row in sum_error([1.0] * 2050, formats=["float16"]).rows[:2]:
    ...     print(row.order, row.total)
    one by one 2048.0
    in pairs 2050.0
    """
    given = as_float64("sum_error", x).ravel()
    if not 1 <= given.size <= _MOST_VALUES or not np.isfinite(given).all():
        raise InputError(
            f"sum_error: got {plural(given.size, 'value')}, "
            f"{np.count_nonzero(~np.isfinite(given)):,} of them infinite or nan; expected 1 to "
            f"{_MOST_VALUES:,} finite numbers. Pass values within these limits."
        )
    chance = np.random.default_rng(_validate.whole("sum_error", "seed", seed, 0, 2**63 - 1))
    with devices.guard(
        "sum_error: adding the values", "a sum that float64 holds. Scale them down."
    ):
        exact = math.fsum(given.tolist())
    rows: list[SumRow] = []
    for one in _narrow("sum_error", formats):
        held = rounded(given, one, one.overflow)
        ways = [*((one, order) for order in ORDERS), (find("sum_error", "float32"), ORDERS[0])]
        # float32 has no row with stochastic rounding, nor one with a wider accumulator
        for wide, order in ways[:2] if one.name == "float32" else ways:
            total = _total(held, wide, order, chance)
            of_zero = math.inf if total else 0.0  # the relative error if the exact sum is 0
            error = abs(total - exact) / abs(exact) if exact else of_zero
            rows.append(SumRow(one.name, wide.name, order, total, error))
    return SumError(
        given.size,
        exact,
        tuple(rows),
        Evidence.modelled(
            "each value is rounded to its format, each addition to the accumulator's, to nearest "
            "with ties to even",
            _SOURCE,
            "none: exact arithmetic",
        ),
    )


def _narrow(function: str, formats: Iterable[str]) -> list[Format]:
    return [
        find(function, _validate.word(function, "format", name, _NARROW))
        for name in _validate.items(function, "formats", formats, "formats=['float16']")
    ]


def _total(held: np.ndarray, wide: Format, order: str, chance: np.random.Generator) -> float:
    if order == "one by one":
        return _formats.running_sum(held.tolist(), wide)
    if order == "in pairs":
        level = held
        while level.size > 1:
            level = np.append(level, 0.0) if level.size % 2 else level
            level = _formats.add(level[0::2], level[1::2], wide)
        return float(level[0])
    return _formats.running_sum(held.tolist(), wide, chance.random(held.size).tolist())


class ProductRow(NamedTuple):
    """One way to multiply the same two matrices.

    Attributes
    ----------
    operands, accumulator : str
        Formats; for a measured product the accumulator is "device": whatever the device uses.
    max_relative_error, rms_relative_error : float
        The largest and the root mean square difference from the exact product, divided by those of
        the exact product.
    badge : Badge
        MODELLED for exact arithmetic, rounding by rounding; MEASURED for PyTorch's product on the
        device.
    """

    operands: str
    accumulator: str
    max_relative_error: float
    rms_relative_error: float
    badge: Badge


@dataclass(frozen=True)
class ProductError(Result):
    """The errors of several ways to multiply the same matrices.

    Attributes
    ----------
    shape : tuple of int
        Rows, inner length and columns.
    rows : tuple of ProductRow
    evidence : Evidence
        Of the simulated rows.
    device_evidence : Evidence or None
        Of the rows that were measured.
    """

    shape: tuple[int, int, int]
    rows: tuple[ProductRow, ...]
    evidence: Evidence
    device_evidence: Evidence | None

    rows_from = "rows"
    columns: ClassVar = {
        "operands in": lambda row: row.operands,
        "accumulated in": lambda row: row.accumulator,
        "largest error": lambda row: percent(row.max_relative_error),
        "typical error (rms)": lambda row: percent(row.rms_relative_error),
        "evidence": lambda row: row.badge.value,
    }

    def __repr__(self) -> str:
        m, k, n = self.shape
        return f"<product of {m} x {k} and {k} x {n}, in {plural(len(self.rows), 'way')}>"

    def caption(self) -> str:
        """Return the evidence of the simulated rows, then that of the measured rows where there are
        any.
        """
        device = (
            f"; measured rows: {self.device_evidence.sentence}"
            if self.device_evidence is not None
            else ""
        )
        return self.evidence.sentence + device


def matmul_error(
    a: Any, b: Any, formats: Iterable[str] = ("float16", "bfloat16"), device: Any = None
) -> ProductError:
    """Return the errors of a matrix product by the formats of its operands and of its accumulator.

    Parameters
    ----------
    a, b : array_like of float64
        Matrices of shapes (m, k) and (k, n); at most 2**26 products.
    formats : iterable of str
        Formats of the operands. Each product is simulated exactly, accumulated in the same format
        and in float32.
    device : str or Device, optional
        The device on which PyTorch's own product of the same operands is also measured; None takes
        this machine's best device. "simulated" skips it.

    Returns
    -------
    ProductError
        Errors against the float64 product of the operands before they were rounded.

    Raises
    ------
    InputError
        If the shapes do not match, the matrices are too large or not finite, or a format cannot be
        tried.

    Notes
    -----
    On a CPU a float16 product can be slow (most have no instruction for it): keep its sides to a
    few hundred.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> p = matmul_error(rng.random((8, 256)), rng.random((256, 8)), ["float16"],
    ...     device="simulated")
    >>> own, wide = p.rows
    >>> own.max_relative_error > 3 * wide.max_relative_error
    True
    """
    left, right = (as_float64("matmul_error", x) for x in (a, b))
    if (
        left.ndim != 2
        or right.ndim != 2
        or left.shape[1] != right.shape[0]
        or 0 in (*left.shape, *right.shape)
    ):
        raise InputError(
            f"matmul_error: shapes {left.shape} and {right.shape}; expected (m, k) and (k, n). "
            "Transpose or reshape one."
        )
    m, k, n = *left.shape, right.shape[1]
    if m * k * n > _MOST_PRODUCTS or not (np.isfinite(left).all() and np.isfinite(right).all()):
        raise InputError(
            f"matmul_error: {plural(m * k * n, 'product')}; expected at most {_MOST_PRODUCTS:,}, "
            "of finite numbers. Pass smaller matrices, and none with an infinity or nan."
        )
    exact = left @ right
    rows: list[ProductRow] = []
    tried = _narrow("matmul_error", formats)
    for one in tried:
        operands = rounded(left, one, one.overflow), rounded(right, one, one.overflow)
        for wide in (one, find("matmul_error", "float32")) if one.name != "float32" else (one,):
            rows.append(_row(one.name, wide.name, _product(*operands, wide), exact, Badge.MODELLED))
    evidence = Evidence.modelled(
        "operands rounded to their format, products exact, added one after the other, each sum "
        "rounded once to the accumulator's format; a Tensor Core adds several products at a time",
        _SOURCE,
        "none: exact arithmetic",
    )
    if isinstance(device, str) and device == "simulated":
        return ProductError((m, k, n), tuple(rows), evidence, None)
    measured, where = _on_device(left, right, tried, exact, device)
    return ProductError((m, k, n), (*rows, *measured), evidence, where)


def _product(left: np.ndarray, right: np.ndarray, wide: Format) -> np.ndarray:
    total = np.zeros((left.shape[0], right.shape[1]))
    for column, row in zip(left.T, right, strict=True):
        total = _formats.add(total, np.multiply.outer(column, row), wide)
    return total


def _row(
    operands: str, accumulator: str, got: np.ndarray, exact: np.ndarray, badge: Badge
) -> ProductRow:
    with np.errstate(invalid="ignore", over="ignore"):
        difference = np.abs(got - exact)
        largest, typical = np.max(np.abs(exact)), math.sqrt(float(np.mean(exact**2)))
        worst = float(np.max(difference) / largest) if largest else float(np.max(difference))
        rms = math.sqrt(float(np.mean(difference**2))) / (typical or 1.0)
    return ProductRow(operands, accumulator, worst, rms, badge)


def _on_device(
    left: np.ndarray, right: np.ndarray, tried: Sequence[Format], exact: np.ndarray, device: Any
) -> tuple[list[ProductRow], Evidence]:
    """Multiply with PyTorch on a device, in each format that its plain matrix product supports."""
    where = devices.find(device)
    rows = []
    for one in tried:
        if one.name not in ("float32", "float16", "bfloat16"):
            continue
        # PyTorch's cast from float64 would round twice
        held = (rounded(x, one, one.overflow) for x in (left, right))
        a, b = (torch.from_numpy(x).to(getattr(torch, one.name)).to(str(where)) for x in held)
        got = (a @ b).cpu().double().numpy()
        rows.append(_row(one.name, "device", got, exact, Badge.MEASURED))
    return rows, Evidence.measured(where.name)
