"""NVIDIA's figures: rates of one multiprocessor by architecture, and the common products.

Two independent sources meet here: the products' data sheets, and the architectures' per-clock
rates. A test checks that they agree within two percent. All figures are dense: structured sparsity
doubles the marketing number and is never used here. Rates count a multiply and an add as two
operations.

Each family names its document, compared as public pages and repositories quote it. Multiprocessors,
boost clocks, float32 and bandwidths of all products were also compared with TechPowerUp's GPU
database (edition of December 2025). What no document prints is marked in a comment and in the
figure's source. No quotation was found for the following, which rest on the rates per clock alone:
the tensor peaks of the V100 PCIe, the V100S and the T4, and tf32 and float8 of the RTX 6000 Ada.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

# FLOP per clock of one multiprocessor. float32, and float64 outside tensor units: CUDA C++
# Programming Guide, "Throughput of Native Arithmetic Instructions". Tensor rates: the peak of the
# document named here / multiprocessors / boost clock. float16 and bfloat16 accumulate in float32;
# "float16_acc16" accumulates in float16.

# "NVIDIA Tesla V100 GPU Architecture", table 1; int8 is dp4a (64 instructions a clock). There is no
# bfloat16 unit: products run in float32.
_VOLTA = {
    "float64": 64,
    "float32": 128,
    "bfloat16": 128,
    "float16": 1024,
    "float16_acc16": 1024,
    "int8": 512,
}
# "NVIDIA Turing GPU Architecture", table 1 (RTX 2080 Ti and Quadro RTX 6000). bfloat16 as on Volta.
_TURING = {
    "float64": 4,
    "float32": 128,
    "bfloat16": 128,
    "float16": 1024,
    "float16_acc16": 1024,
    "int8": 2048,
}
# TU116 and TU117 have no tensor units; float16 at twice the rate of float32 (TechPowerUp), int8 is
# dp4a.
_TURING_PLAIN = {**_TURING, "float16": 256, "float16_acc16": 256, "int8": 512}
_NO_TENSOR_UNITS = re.compile(r"\b(GTX|MX\d+|T\d{3,4}|CMP 30HX)\b")
# "NVIDIA A100 Tensor Core GPU Architecture", table "Comparison of NVIDIA Data Center GPUs".
_AMPERE = {
    "float64": 128,
    "float32": 128,
    "tf32": 1024,
    "bfloat16": 2048,
    "float16": 2048,
    "float16_acc16": 2048,
    "int8": 4096,
}
# "NVIDIA Ampere GA102 GPU Architecture" version 2, tables 3 (RTX A6000) and 9 (RTX 3090).
_AMPERE_RTX = {
    "float64": 4,
    "float32": 256,
    "tf32": 512,
    "bfloat16": 1024,
    "float16": 1024,
    "float16_acc16": 1024,
    "int8": 2048,
}
# "NVIDIA Jetson AGX Orin Series Technical Brief": 5.3 TFLOP/s of float32, 85 dense int8 TOP/s
# (printed as 170 sparse) at 1.3 GHz. Not printed there: the other tensor rates, which keep GA100's
# ratio to int8.
_ORIN = {
    **_AMPERE_RTX,
    "tf32": 1024,
    "bfloat16": 2048,
    "float16": 2048,
    "float16_acc16": 2048,
    "int8": 4096,
}
# "NVIDIA Ada GPU Architecture" version 2.1, appendix A (RTX 4090). float8 with float32 accumulation
# is 330.3 TFLOP/s there: versions before 2.02 printed 660.6, which is float16 accumulation.
_ADA = {**_AMPERE_RTX, "float8": 2048}
# "NVIDIA H100 Tensor Core GPU Architecture", table of the H100's specifications, and the data
# sheet.
_HOPPER = {
    "float64": 256,
    "float32": 256,
    "tf32": 2048,
    "bfloat16": 4096,
    "float16": 4096,
    "float16_acc16": 4096,
    "float8": 8192,
    "int8": 8192,
}
# "NVIDIA Blackwell Architecture" data sheet, one GPU of an HGX B200 (its 148 multiprocessors and
# 1965 MHz: TechPowerUp, not NVIDIA).
_BLACKWELL = {
    "float64": 128,
    "float32": 256,
    "tf32": 4096,
    "bfloat16": 8192,
    "float16": 8192,
    "float16_acc16": 8192,
    "float8": 16384,
    "int8": 16384,
}
_RATES: Mapping[str, Mapping[str, int]] = {
    "7.0": _VOLTA,
    "7.5": _TURING,
    "8.0": _AMPERE,
    "8.6": _AMPERE_RTX,
    "8.7": _ORIN,
    "8.9": _ADA,
    "9.0": _HOPPER,
    "10.0": _BLACKWELL,
    # "NVIDIA RTX Blackwell GPU Architecture", table 3: the dense rates of Ada, a multiprocessor and
    # clock
    "12.0": _ADA,
}
# What GeForce cards run at half the rate of the workstation cards: tensor products with float32
# accumulation (the same whitepapers; Turing's has float16 only). Not float8 on RTX 50: table 3
# halves plain float8 (419 of 838 TFLOP/s on the RTX 5090), but cuBLASLt's block-scaled float8 with
# float32 accumulation was measured above 600 there (NVIDIA/CUDALibrarySamples, issue 283).
_HALVED_ON_GEFORCE: Mapping[str, tuple[str, ...]] = {
    "7.5": ("float16",),
    "8.6": ("tf32", "bfloat16", "float16"),
    "8.9": ("tf32", "bfloat16", "float16", "float8"),
    "12.0": ("tf32", "bfloat16", "float16"),
}


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
    rates = _RATES.get(compute_capability)
    if rates is None:
        return None
    if compute_capability == "7.5" and _NO_TENSOR_UNITS.search(name):
        return dict(_TURING_PLAIN)
    if halved is None:
        halved = _HALVED_ON_GEFORCE.get(compute_capability, ()) if "GeForce" in name else ()
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
        Peak FLOP/s that the document prints; what it leaves out follows from the rates per clock.
    document : str
        Where the stated figures are printed.
    halved : tuple of str, optional
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
    halved: tuple[str, ...] | None = None

    @property
    def source(self) -> str:
        """Where the stated figures come from."""
        return f"{self.document}: {self.name}, dense, at {self.boost_hz / 1e6:.0f} MHz"

    def source_of(self, dtype: str) -> str:
        """Return where the peak of a dtype comes from: the document, or the architecture's rate
        where it does not print one.
        """
        rates = self.rates()
        same = dtype == "float16_acc16" and rates[dtype] == rates["float16"]
        if ("float16" if same else dtype) in self.stated:
            return self.source
        clocks = f"{self.multiprocessors} multiprocessors x {self.boost_hz / 1e6:.0f} MHz"
        return (
            f"not printed for {self.name}: {clocks} x the rate of compute capability "
            f"{self.compute_capability}"
        )

    def rates(self) -> dict[str, int]:
        """Return FLOP per clock of one multiprocessor by dtype."""
        return rates_per_clock(self.compute_capability, self.name, self.halved) or {}

    def peaks(self) -> dict[str, float]:
        """Return peak FLOP/s by dtype."""
        rates = self.rates()
        peaks = {
            dtype: rate * self.multiprocessors * self.boost_hz for dtype, rate in rates.items()
        } | dict(self.stated)
        # where accumulation makes no difference, what is stated counts for both
        if "float16" in self.stated:
            peaks["float16_acc16"] = (
                self.stated["float16"] * rates["float16_acc16"] / rates["float16"]
            )
        return peaks


def _part(
    row: tuple[str, str, str, int, float, float],
    tera: Mapping[str, float],
    document: str,
    halved: tuple[str, ...] | None = None,
) -> Part:
    """A row is (name, pattern, compute capability, multiprocessors, MHz, GB/s); ``tera`` has the
    stated TFLOP/s.
    """
    name, pattern, capability, multiprocessors, mhz, gigabytes = row
    stated = {dtype: value * 1e12 for dtype, value in tera.items()}
    return Part(
        name,
        pattern,
        capability,
        multiprocessors,
        mhz * 1e6,
        gigabytes * 1e9,
        stated,
        document,
        halved,
    )


def _sheet(product: str) -> str:
    return f"NVIDIA's data sheet of the {product}"


# The sheet's sparse figures, halved. They belong to 1830 MHz (SXM: the whitepaper), and by division
# to 1620 (PCIe) and 1545 MHz (NVL).
_HOPPER_SXM = {
    "float64": 67.0,
    "float32": 67.0,
    "tf32": 494.7,
    "bfloat16": 989.4,
    "float16": 989.4,
    "float8": 1978.9,
    "int8": 1978.9,
}
_HOPPER_PCIE = {
    "float64": 51.0,
    "float32": 51.0,
    "tf32": 378.0,
    "bfloat16": 756.5,
    "float16": 756.5,
    "float8": 1513.0,
    "int8": 1513.0,
}
_HOPPER_NVL = {
    "float64": 60.0,
    "float32": 60.0,
    "tf32": 417.5,
    "bfloat16": 835.5,
    "float16": 835.5,
    "float8": 1670.5,
    "int8": 1670.5,
}
_A100 = {
    "float64": 19.5,
    "float32": 19.5,
    "tf32": 156.0,
    "bfloat16": 312.0,
    "float16": 312.0,
    "int8": 624.0,
}

# GeForce: boost clock, float32 peak and bandwidth of the whitepapers' appendices, and of the
# product pages for cards that came later. One driver's name can mean two boards: "RTX 3080" (10 and
# 12 GB), "RTX 3060" (192 and 128 bit), "RTX 3060 Ti" and "RTX 4070" (GDDR6 and GDDR6X). The row is
# the first board's. Where the driver reports a faster bus or more multiprocessors, ``_spec`` takes
# those; a slower board (RTX 3060 with 128 bit: 240 GB/s, RTX 4070 with GDDR6: 480 GB/s) keeps the
# first one's bandwidth, which is still a bound.
_GEFORCE_DOCUMENTS = {
    "8.6": "NVIDIA's GA102 whitepaper and product page",
    "8.9": "NVIDIA's Ada whitepaper and product page",
    "12.0": "NVIDIA's RTX Blackwell whitepaper and product page",
}


def _geforce(row: tuple[str, str, int, float, float], float32: float) -> Part:
    """A GeForce card: its document states float32, and the rest in fixed ratios that the rates per
    clock hold.
    """
    name, capability, multiprocessors, mhz, gigabytes = row
    full = (f"GeForce {name}", re.escape(name), capability, multiprocessors, mhz, gigabytes)
    return _part(full, {"float32": float32}, _GEFORCE_DOCUMENTS[capability])


PARTS: tuple[Part, ...] = (
    # Volta: the whitepaper, table 1 (SXM2), and the data sheets (PCIe, V100S). TechPowerUp has 898
    # GB/s for the printed 900 (877.5 MHz).
    _part(
        ("V100 SXM2", r"V100-SXM2-\d+GB.*", "7.0", 80, 1530, 900),
        {"float64": 7.8, "float32": 15.7, "float16": 125.0},
        _sheet("V100"),
    ),
    _part(
        ("V100 PCIe", r"V100-PCIE-\d+GB", "7.0", 80, 1380, 900),
        {"float64": 7.0, "float32": 14.0, "float16": 112.0},
        _sheet("V100"),
    ),
    _part(
        ("V100S PCIe", r"V100S-PCIE-\d+GB", "7.0", 80, 1597, 1134),
        {"float64": 8.2, "float32": 16.4, "float16": 130.0},
        _sheet("V100S"),
    ),
    # Turing: the data sheet; the boost clock is TechPowerUp's.
    _part(
        ("T4", r"T4", "7.5", 40, 1590, 320),
        {"float32": 8.1, "float16": 65.0, "int8": 130.0},
        _sheet("T4"),
    ),
    # A100: the whitepaper (40 GB) and the data sheet (80 GB, PCIe and SXM); A30, A10, A40: the data
    # sheets.
    _part(("A100 40GB", r"A100-(SXM4|PCIE)-40GB", "8.0", 108, 1410, 1555), _A100, _sheet("A100")),
    _part(("A100 80GB PCIe", r"A100 80GB PCIe", "8.0", 108, 1410, 1935), _A100, _sheet("A100")),
    _part(("A100 80GB SXM", r"A100-SXM4-80GB", "8.0", 108, 1410, 2039), _A100, _sheet("A100")),
    _part(
        ("A30", r"A30", "8.0", 56, 1440, 933),
        {
            "float64": 10.3,
            "float32": 10.3,
            "tf32": 82.0,
            "bfloat16": 165.0,
            "float16": 165.0,
            "int8": 330.0,
        },
        _sheet("A30"),
    ),
    _part(
        ("A10", r"A10", "8.6", 72, 1695, 600),
        {"float32": 31.2, "tf32": 62.5, "bfloat16": 125.0, "float16": 125.0, "int8": 250.0},
        _sheet("A10"),
    ),
    _part(
        ("A40", r"A40", "8.6", 84, 1740, 696),
        {"float32": 37.4, "tf32": 74.8, "bfloat16": 149.7, "float16": 149.7, "int8": 299.3},
        _sheet("A40"),
    ),
    _part(
        ("RTX A6000", r"RTX A6000", "8.6", 84, 1800, 768),
        {"float32": 38.7, "tf32": 77.4, "bfloat16": 154.8, "float16": 154.8, "int8": 309.7},
        "NVIDIA's GA102 whitepaper, table 3",
    ),
    # Ada: the data sheets. The L4's 58 multiprocessors are its 7424 cores / 128 (TechPowerUp prints
    # 60, and a peak that needs 58).
    _part(
        ("L4", r"L4", "8.9", 58, 2040, 300),
        {
            "float32": 30.3,
            "tf32": 60.0,
            "bfloat16": 121.0,
            "float16": 121.0,
            "float8": 242.5,
            "int8": 242.5,
        },
        _sheet("L4"),
    ),
    # The L40's sheet prints half of what the L40S's does for each tensor format, int8 too; it is
    # silent on float16 accumulation, so that float16_acc16 is the architecture's full rate: an
    # upper bound without confirmation.
    _part(
        ("L40", r"L40", "8.9", 142, 2490, 864),
        {
            "float32": 90.5,
            "tf32": 90.5,
            "bfloat16": 181.05,
            "float16": 181.05,
            "float8": 362.0,
            "int8": 362.0,
        },
        _sheet("L40"),
        halved=("tf32", "bfloat16", "float16", "float8", "int8"),
    ),
    _part(
        ("L40S", r"L40S", "8.9", 142, 2520, 864),
        {
            "float32": 91.6,
            "tf32": 183.0,
            "bfloat16": 362.05,
            "float16": 362.05,
            "float8": 733.0,
            "int8": 733.0,
        },
        _sheet("L40S"),
    ),
    _part(
        ("RTX 6000 Ada", r"RTX 6000 Ada Generation", "8.9", 142, 2505, 960),
        {"float32": 91.1, "tf32": 182.1, "float16": 364.2, "float8": 728.5},
        "NVIDIA's RTX Blackwell PRO whitepaper, table 4, and data sheet",
    ),
    # Hopper: the data sheets of the H100 (SXM and NVL; PCIe in its first editions) and the H200.
    # PCIe: 5120 bit at 1593 MHz, printed as 2 TB/s. H100 NVL: 6016 bit at 2619 MHz, printed as 3.9
    # TB/s. H200: 4.8 TB/s printed, though 6144 bit at the 3201 MHz that the card reports give 4.92;
    # ``_spec`` takes the larger.
    _part(("H100 SXM", r"H100 80GB HBM3", "9.0", 132, 1980, 3350), _HOPPER_SXM, _sheet("H100")),
    _part(("H100 PCIe", r"H100 PCIe", "9.0", 114, 1755, 2039), _HOPPER_PCIE, _sheet("H100")),
    _part(("H100 NVL", r"H100 NVL", "9.0", 132, 1785, 3938), _HOPPER_NVL, _sheet("H100")),
    _part(("H200 SXM", r"H200", "9.0", 132, 1980, 4800), _HOPPER_SXM, _sheet("H200")),
    _part(("H200 NVL", r"H200 NVL", "9.0", 132, 1785, 4800), _HOPPER_NVL, _sheet("H200")),
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
    """Return the product with the driver's name, such as "NVIDIA GeForce RTX 4090", or with the
    table's own; None where there is none.

    Laptop versions of a card have other clocks and multiprocessors, and are not matched.
    """
    plain = re.sub(r"\s+MIG \d+g\.\d+gb.*$", "", name)
    plain = re.sub(r"^(NVIDIA |Tesla |GeForce )+", "", plain).strip()
    return next(
        (known for known in PARTS if name == known.name or re.fullmatch(known.pattern, plain)), None
    )
