"""NVIDIA's figures: rates of one multiprocessor by architecture, and the common products. They are
entries of ``datasheets.toml``, beside this file; to add a product, add an entry.

Two independent sources meet here: the products' data sheets, and the architectures' per-clock
rates. A test checks that they agree within two percent. All figures are dense: structured sparsity
doubles the marketing number and is never used here. Rates count a multiply and an add as two
operations.

Each family names its document, whose figures were compared as public pages and repositories quote
them. Multiprocessors, boost clocks, float32 and bandwidths of all products were also compared with
TechPowerUp's GPU database (edition of December 2025). A figure that no document prints is marked in
a comment and in the figure's source. No quotation was found for the following, which rest on
the rates per clock alone: the tensor peaks of the V100 PCIe, the V100S and the T4, and tf32 and
float8 of the RTX 6000 Ada.
"""

from __future__ import annotations

import functools
import re
import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_NO_TENSOR_UNITS = re.compile(r"\b(GTX|MX\d+|T\d{3,4}|CMP 30HX)\b")


@functools.cache
def _sheets() -> dict[str, Any]:
    return tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


def rates_per_clock(
    compute_capability: str, name: str = "", halved: Collection[str] | None = None
) -> dict[str, int] | None:
    """Return FLOP per clock of one multiprocessor by dtype; None for an architecture that is not in
    the table.

    Parameters
    ----------
    compute_capability : str
        Such as "9.0".
    name : str
        The product's: GeForce cards halve float32 accumulation, and small Turing cards have no
        tensor units.
    halved : collection of str, optional
        The dtypes at half rate, where the name does not determine them.
    """
    is_plain = compute_capability == "7.5" and _NO_TENSOR_UNITS.search(name)
    rates = _sheets()["rates"].get(compute_capability + " without tensor units" * bool(is_plain))
    if rates is None or is_plain:
        return None if rates is None else dict(rates)
    if halved is None:
        known = _sheets()["halved_on_geforce"] if "GeForce" in name else {}
        halved = known.get(compute_capability, ())
    return {dtype: rate // 2 if dtype in halved else rate for dtype, rate in rates.items()}


@dataclass(frozen=True)
class Part:
    """One product.

    Attributes
    ----------
    name : str
        As the data sheet calls it.
    pattern : str
        A regular expression for the whole of the driver's name, without "NVIDIA", "Tesla" and
        "GeForce".
    compute_capability : str
    multiprocessors : int
    boost_hz : float
        The clock that the stated peaks belong to; Hopper's tensor peaks are printed for a lower
        one.
    bytes_per_second : float
        Of the device memory.
    stated : mapping of str to float
        Peak FLOP/s that the document prints; the others follow from the rates per clock.
    document : str
        Where the stated figures are printed.
    memory_gigabytes : float or None
        In 2^30 bytes, less what error correction keeps; None where boards of this name differ.
    halved : sequence of str or None
        The dtypes at half the architecture's rate, where the name does not determine them.
    """

    name: str
    pattern: str
    compute_capability: str
    multiprocessors: int
    boost_hz: float
    bytes_per_second: float
    stated: Mapping[str, float]
    document: str
    memory_gigabytes: float | None
    halved: Sequence[str] | None

    @property
    def source(self) -> str:
        """Where the stated figures come from."""
        return f"{self.document}: {self.name}, dense, at {self.boost_hz / 1e6:.0f} MHz"

    def peaks(self) -> dict[str, tuple[float, str]]:
        """Return peak FLOP/s by dtype, each with its source: the document, or the architecture's
        rate where the document prints no peak.
        """
        rates = rates_per_clock(self.compute_capability, self.name, self.halved) or {}
        computed = (
            f"not printed for {self.name}: {self.multiprocessors} multiprocessors x "
            f"{self.boost_hz / 1e6:.0f} MHz x the rate of compute capability "
            f"{self.compute_capability}"
        )
        peaks = {
            dtype: (rate * self.multiprocessors * self.boost_hz, computed)
            for dtype, rate in rates.items()
        } | {dtype: (peak, self.source) for dtype, peak in self.stated.items()}
        if "float16" in self.stated:
            ratio, (_, source) = rates["float16_acc16"] / rates["float16"], peaks["float16_acc16"]
            # where the accumulation makes no difference, the stated peak holds for both
            peaks["float16_acc16"] = (
                ratio * self.stated["float16"],
                self.source if ratio == 1 else source,
            )
        return peaks


@functools.cache
def parts() -> tuple[Part, ...]:
    """Return the products, in the order of ``datasheets.toml``."""
    return tuple(
        Part(
            row["name"],
            row["pattern"],
            row["compute_capability"],
            row["multiprocessors"],
            row["boost_mhz"] * 1e6,
            row["gigabytes_per_second"] * 1e9,
            {dtype: peak * 1e12 for dtype, peak in row["teraflops"].items()},
            row["document"],
            row.get("memory_gigabytes"),
            row.get("halved"),
        )
        for row in _sheets()["parts"]
    )


def part(name: str) -> Part | None:
    """Return the product with the driver's name, such as "NVIDIA GeForce RTX 4090", or with the
    table's own; None where there is none.

    Laptop versions of a card have other clocks and multiprocessors, and are not matched.
    """
    plain = re.sub(r"\s+MIG (\d+c\.)?\d+g\.\d+gb.*$", "", name)
    plain = re.sub(r"^(NVIDIA |Tesla |GeForce )+", "", plain).strip()
    return next(
        (known for known in parts() if name == known.name or re.fullmatch(known.pattern, plain)),
        None,
    )
