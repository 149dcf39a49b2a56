"""What NVIDIA states about its GPUs: rates of one multiprocessor by architecture, and the common products.

Two independent sources meet here: the products' data sheets, and the architectures' per-clock rates. A test holds
them together within two per cent. All figures are dense: structured sparsity doubles the marketing number and is
never used here. Rates count a multiply and an add as two operations.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

# FLOP per clock of one multiprocessor. Sources: NVIDIA's architecture whitepapers (Volta, Turing, Ampere GA100 and GA102,
# Ada, Hopper, Blackwell RTX) and CUDA Programming Guide, "Arithmetic Instructions". float16 and bfloat16 are tensor rates
# with float32 accumulation; "float16_acc16" accumulates in float16.
_VOLTA = {"float64": 64, "float32": 128, "bfloat16": 128, "float16": 1024, "float16_acc16": 1024, "int8": 512}
_TURING = {"float64": 4, "float32": 128, "bfloat16": 128, "float16": 1024, "float16_acc16": 1024, "int8": 2048}
_AMPERE = {"float64": 128, "float32": 128, "tf32": 1024, "bfloat16": 2048, "float16": 2048, "float16_acc16": 2048, "int8": 4096}
_AMPERE_RTX = {"float64": 4, "float32": 256, "tf32": 512, "bfloat16": 1024, "float16": 1024, "float16_acc16": 1024, "int8": 2048}
_ORIN = {**_AMPERE_RTX, "tf32": 1024, "bfloat16": 2048, "float16": 2048, "float16_acc16": 2048, "int8": 4096}
_ADA = {**_AMPERE_RTX, "float8": 2048}
_HOPPER = {
    "float64": 256, "float32": 256, "tf32": 2048, "bfloat16": 4096, "float16": 4096, "float16_acc16": 4096, "float8": 8192, "int8": 8192,
}  # fmt: skip
_BLACKWELL = {
    "float64": 128, "float32": 256, "tf32": 4096, "bfloat16": 8192, "float16": 8192, "float16_acc16": 8192, "float8": 16384, "int8": 16384,
}  # fmt: skip
_RATES: Mapping[str, Mapping[str, int]] = {
    "7.0": _VOLTA,
    "7.5": _TURING,
    "8.0": _AMPERE,
    "8.6": _AMPERE_RTX,
    "8.7": _ORIN,
    "8.9": _ADA,
    "9.0": _HOPPER,
    "10.0": _BLACKWELL,
    "12.0": _ADA,  # the whitepaper "NVIDIA RTX Blackwell GPU Architecture": the dense rates of Ada, a multiprocessor and clock
}
# GeForce cards (and the L40) run tensor products with float32 accumulation at half the rate of the workstation cards.
_HALVED = ("tf32", "bfloat16", "float16", "float8")


def rates_per_clock(compute_capability: str, halved: bool = False) -> dict[str, int] | None:
    """Return FLOP per clock of one multiprocessor by dtype; None for an architecture that is not in the table.

    Parameters
    ----------
    compute_capability : str
        Such as "9.0".
    halved : bool
        Whether float32 accumulation is halved, as on GeForce cards.
    """
    rates = _RATES.get(compute_capability)
    if rates is None:
        return None
    return {dtype: rate // 2 if halved and compute_capability != "7.0" and dtype in _HALVED else rate for dtype, rate in rates.items()}


@dataclass(frozen=True)
class Part:
    """One product.

    Attributes
    ----------
    name : str
        As the data sheet calls it.
    pattern : str
        A regular expression for the whole of the driver's name, without "NVIDIA", "Tesla" and "GeForce".
    compute_capability : str
    multiprocessors : int
    boost_hz : float
        The clock that the stated peaks belong to.
    bytes_per_second : float
        Of the device memory.
    stated : mapping of str to float
        Peak FLOP/s that the data sheet prints; what it leaves out follows from the rates per clock.
    halved : bool
        Whether float32 accumulation is halved.
    """

    name: str
    pattern: str
    compute_capability: str
    multiprocessors: int
    boost_hz: float
    bytes_per_second: float
    stated: Mapping[str, float]
    halved: bool = False

    @property
    def source(self) -> str:
        """Where the figures come from."""
        return f"NVIDIA's data sheet or whitepaper: {self.name}, dense, at {self.boost_hz / 1e6:.0f} MHz"

    def peaks(self) -> dict[str, float]:
        """Return peak FLOP/s by dtype."""
        rates = rates_per_clock(self.compute_capability, self.halved) or {}
        peaks = {dtype: rate * self.multiprocessors * self.boost_hz for dtype, rate in rates.items()} | dict(self.stated)
        if "float16" in self.stated:  # where accumulation makes no difference, what is stated counts for both
            peaks["float16_acc16"] = self.stated["float16"] * (2 if self.halved else 1)
        return peaks


def _part(row: tuple[str, str, str, int, float, float], tera: Mapping[str, float], halved: bool = False) -> Part:
    """A row is (name, pattern, compute capability, multiprocessors, MHz, GB/s); ``tera`` has the stated TFLOP/s."""
    name, pattern, capability, multiprocessors, mhz, gigabytes = row
    stated = {dtype: value * 1e12 for dtype, value in tera.items()}
    return Part(name, pattern, capability, multiprocessors, mhz * 1e6, gigabytes * 1e9, stated, halved)


_HOPPER_SXM = {"float64": 67.0, "float32": 67.0, "tf32": 494.7, "bfloat16": 989.4, "float16": 989.4, "float8": 1978.9, "int8": 1978.9}
_HOPPER_NVL = {"float64": 60.0, "float32": 60.0, "tf32": 417.5, "bfloat16": 835.5, "float16": 835.5, "float8": 1671.0, "int8": 1671.0}
_A100 = {"float64": 19.5, "float32": 19.5, "tf32": 156.0, "bfloat16": 312.0, "float16": 312.0, "int8": 624.0}


def _geforce(row: tuple[str, str, int, float, float], float32: float) -> Part:
    """A GeForce card: its whitepaper states float32, and the rest in fixed ratios that the rates per clock hold."""
    name, capability, multiprocessors, mhz, gigabytes = row
    full = (f"GeForce {name}", re.escape(name), capability, multiprocessors, mhz, gigabytes)
    return _part(full, {"float32": float32}, halved=True)


PARTS: tuple[Part, ...] = (
    _part(("V100 SXM2", r"V100-SXM2-\d+GB.*", "7.0", 80, 1530, 900), {"float64": 7.8, "float32": 15.7, "float16": 125.0}),
    _part(("V100 PCIe", r"V100-PCIE-\d+GB", "7.0", 80, 1380, 900), {"float64": 7.0, "float32": 14.0, "float16": 112.0}),
    _part(("V100S PCIe", r"V100S-PCIE-\d+GB", "7.0", 80, 1597, 1134), {"float64": 8.2, "float32": 16.4, "float16": 130.0}),
    _part(("T4", r"T4", "7.5", 40, 1590, 320), {"float32": 8.1, "float16": 65.0, "int8": 130.0}),
    _part(("A100 40GB", r"A100-(SXM4|PCIE)-40GB", "8.0", 108, 1410, 1555), _A100),
    _part(("A100 80GB PCIe", r"A100 80GB PCIe", "8.0", 108, 1410, 1935), _A100),
    _part(("A100 80GB SXM", r"A100-SXM4-80GB", "8.0", 108, 1410, 2039), _A100),
    _part(
        ("A30", r"A30", "8.0", 56, 1440, 933),
        {"float64": 10.3, "float32": 10.3, "tf32": 82.0, "bfloat16": 165.0, "float16": 165.0, "int8": 330.0},
    ),
    _part(("A10", r"A10", "8.6", 72, 1695, 600), {"float32": 31.2, "tf32": 62.5, "bfloat16": 125.0, "float16": 125.0, "int8": 250.0}),
    _part(("A40", r"A40", "8.6", 84, 1740, 696), {"float32": 37.4, "tf32": 74.8, "bfloat16": 149.7, "float16": 149.7, "int8": 299.3}),
    _part(
        ("RTX A6000", r"RTX A6000", "8.6", 84, 1800, 768),
        {"float32": 38.7, "tf32": 77.4, "bfloat16": 154.8, "float16": 154.8, "int8": 309.7},
    ),
    _part(
        ("L4", r"L4", "8.9", 58, 2040, 300),
        {"float32": 30.3, "tf32": 60.0, "bfloat16": 121.0, "float16": 121.0, "float8": 242.5, "int8": 242.5},
    ),
    _part(
        ("L40", r"L40", "8.9", 142, 2490, 864),
        {"float32": 90.5, "tf32": 90.5, "bfloat16": 181.05, "float16": 181.05, "float8": 362.0},
        halved=True,
    ),
    _part(
        ("L40S", r"L40S", "8.9", 142, 2520, 864),
        {"float32": 91.6, "tf32": 183.0, "bfloat16": 362.05, "float16": 362.05, "float8": 733.0, "int8": 733.0},
    ),
    _part(
        ("RTX 6000 Ada", r"RTX 6000 Ada Generation", "8.9", 142, 2505, 960),
        {"float32": 91.1, "tf32": 182.1, "float16": 364.2, "float8": 728.5},
    ),
    _part(("H100 SXM", r"H100 80GB HBM3", "9.0", 132, 1980, 3350), _HOPPER_SXM),
    _part(("H100 NVL", r"H100 NVL", "9.0", 132, 1785, 3900), _HOPPER_NVL),
    _part(("H200 SXM", r"H200", "9.0", 132, 1980, 4800), _HOPPER_SXM),
    _part(("H200 NVL", r"H200 NVL", "9.0", 132, 1785, 4800), _HOPPER_NVL),
    _geforce(("RTX 3060", "8.6", 28, 1777, 360), 12.7),
    _geforce(("RTX 3060 Ti", "8.6", 38, 1665, 448), 16.2),
    _geforce(("RTX 3070", "8.6", 46, 1725, 448), 20.3),
    _geforce(("RTX 3070 Ti", "8.6", 48, 1770, 608), 21.7),
    _geforce(("RTX 3080", "8.6", 68, 1710, 760), 29.8),
    _geforce(("RTX 3080 Ti", "8.6", 80, 1665, 912), 34.1),
    _geforce(("RTX 3090", "8.6", 82, 1695, 936), 35.6),
    _geforce(("RTX 3090 Ti", "8.6", 84, 1860, 1008), 40.0),
    _geforce(("RTX 4060", "8.9", 24, 2460, 272), 15.1),
    _geforce(("RTX 4060 Ti", "8.9", 34, 2535, 288), 22.1),
    _geforce(("RTX 4070", "8.9", 46, 2475, 504), 29.1),
    _geforce(("RTX 4070 SUPER", "8.9", 56, 2475, 504), 35.5),
    _geforce(("RTX 4070 Ti", "8.9", 60, 2610, 504), 40.1),
    _geforce(("RTX 4070 Ti SUPER", "8.9", 66, 2610, 672), 44.1),
    _geforce(("RTX 4080", "8.9", 76, 2505, 716.8), 48.7),
    _geforce(("RTX 4080 SUPER", "8.9", 80, 2550, 736), 52.2),
    _geforce(("RTX 4090", "8.9", 128, 2520, 1008), 82.6),
    _geforce(("RTX 5060 Ti", "12.0", 36, 2572, 448), 23.7),
    _geforce(("RTX 5070", "12.0", 48, 2512, 672), 30.9),
    _geforce(("RTX 5070 Ti", "12.0", 70, 2452, 896), 43.9),
    _geforce(("RTX 5080", "12.0", 84, 2617, 960), 56.3),
    _geforce(("RTX 5090", "12.0", 170, 2407, 1792), 104.8),
)


def part(name: str) -> Part | None:
    """Return the product with the driver's name, such as "NVIDIA GeForce RTX 4090"; None where the table has none.

    Laptop versions of a card have other clocks and multiprocessors, and are not matched.
    """
    plain = re.sub(r"\s+MIG \d+g\.\d+gb.*$", "", name)
    plain = re.sub(r"^(NVIDIA |Tesla |GeForce )+", "", plain).strip()
    return next((known for known in PARTS if re.fullmatch(known.pattern, plain)), None)
