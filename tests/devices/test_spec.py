"""Theoretical peaks of devices with their sources, and the rates measured on this machine."""

import dataclasses
import math
import operator
from typing import Any

import pytest
import torch
from gpulab import devices
from gpulab.devices import (
    Accelerator,
    Cache,
    Ceilings,
    MemoryCeiling,
    Processor,
    arithmetic,
    cpu_spec,
    gpu_spec,
    memory_sizes,
)
from gpulab.errors import InputError, StoppedError
from gpulab.evidence import Environment, Evidence, Note

from fake_machine import GIB, MIB, lines

# By the driver's name: CUDA cores, memory bus width in bits and Gbit/s per pin (NVIDIA's product
# pages); boost clock in MHz and memory GB/s (TechPowerUp; for H100 and H200 NVIDIA's pages).
PRODUCTS = {
    "Tesla V100-SXM2-16GB": (5120, 4096, 1.755, 1530, 900),
    "Tesla V100-PCIE-16GB": (5120, 4096, 1.755, 1380, 900),
    "Tesla V100S-PCIE-32GB": (5120, 4096, 2.214, 1597, 1134),
    "Tesla T4": (2560, 256, 10, 1590, 320),
    "NVIDIA A100-SXM4-40GB": (6912, 5120, 2.43, 1410, 1555),
    "NVIDIA A100 80GB PCIe": (6912, 5120, 3.024, 1410, 1935),
    "NVIDIA A100-SXM4-80GB": (6912, 5120, 3.186, 1410, 2039),
    "NVIDIA A30": (3584, 3072, 2.43, 1440, 933),
    "NVIDIA A10": (9216, 384, 12.5, 1695, 600),
    "NVIDIA A40": (10752, 384, 14.5, 1740, 696),
    "NVIDIA RTX A6000": (10752, 384, 16, 1800, 768),
    "NVIDIA L4": (7424, 192, 12.5, 2040, 300),
    "NVIDIA L40": (18176, 384, 18, 2490, 864),
    "NVIDIA L40S": (18176, 384, 18, 2520, 864),
    "NVIDIA RTX 6000 Ada Generation": (18176, 384, 20, 2505, 960),
    "NVIDIA H100 80GB HBM3": (16896, 5120, 5.238, 1980, 3350),
    "NVIDIA H100 PCIe": (14592, 5120, 3.186, 1755, 2039),
    "NVIDIA H100 NVL": (16896, 6016, 5.238, 1785, 3938),
    "NVIDIA H200": (16896, 6144, 6.25, 1980, 4800),
    "NVIDIA H200 NVL": (16896, 6144, 6.25, 1785, 4800),
    **{
        f"NVIDIA GeForce RTX {name}": row
        for name, row in {
            "3060": (3584, 192, 15, 1777, 360),
            "3060 Ti": (4864, 256, 14, 1665, 448),
            "3070": (5888, 256, 14, 1725, 448),
            "3070 Ti": (6144, 256, 19, 1770, 608),
            "3080": (8704, 320, 19, 1710, 760),
            "3080 Ti": (10240, 384, 19, 1665, 912),
            "3090": (10496, 384, 19.5, 1695, 936),
            "3090 Ti": (10752, 384, 21, 1860, 1008),
            "4060": (3072, 128, 17, 2460, 272),
            "4060 Ti": (4352, 128, 18, 2535, 288),
            "4070": (5888, 192, 21, 2475, 504),
            "4070 SUPER": (7168, 192, 21, 2475, 504),
            "4070 Ti": (7680, 192, 21, 2610, 504),
            "4070 Ti SUPER": (8448, 256, 21, 2610, 672),
            "4080": (9728, 256, 22.4, 2505, 716.8),
            "4080 SUPER": (10240, 256, 23, 2550, 736),
            "4090": (16384, 384, 21, 2520, 1008),
            "5060 Ti": (4608, 128, 28, 2572, 448),
            "5070": (6144, 192, 28, 2512, 672),
            "5070 Ti": (8960, 256, 28, 2452, 896),
            "5080": (10752, 256, 30, 2617, 960),
            "5090": (21760, 512, 28, 2407, 1792),
        }.items()
    },
}
H200 = Accelerator(
    "cuda:0",
    "NVIDIA H200",
    "cuda",
    140 * GIB,
    None,
    "9.0",
    132,
    None,
    1980e6,
    3201e6,
    6144,
    60 * MIB,
)


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_follow_from_cores_clock_and_bus(name: str) -> None:
    """Peaks are 2 FLOP per core and clock, bandwidths pins x rate; clocks are exact to 1 MHz."""
    cores, bits, gigabits, mhz, gigabytes = PRODUCTS[name]
    found = gpu_spec(Accelerator(None, name, "cuda", l2_bytes=1), name)
    float32, (l2, memory) = found.flops_per_second["float32"].value, found.levels
    assert float32 == pytest.approx(2 * cores * mhz * 1e6, rel=0.02)
    of_an_sm = 64 if any(word in name for word in ("V100", "T4", "A100", "A30")) else 128  # cores
    assert l2.bytes_per_second == pytest.approx(cores / of_an_sm * mhz * 1e6 * 64)
    assert memory.bytes_per_second == gigabytes * 1e9
    assert memory.bytes_per_second == pytest.approx(bits * gigabits * 1e9 / 8, rel=0.02)


def test_peaks_of_all_products(approved: Any) -> None:
    """Dense TFLOP/s by dtype, as printed or from the architecture's rates, with the source.

    By hand: H200 67, 494.7, 989.4, 1978.9; an RTX 4090 82.6, 82.6, 165.2 (GeForce halves float32
    accumulation), 330.3; an RTX 2080 Ti 107.6 of float16 at 68 x 1545 MHz.
    """
    others = {
        "NVIDIA GeForce RTX 2080 Ti": ("7.5", 68, 1545e6),
        "Quadro RTX 6000": ("7.5", 72, 1770e6),
        "NVIDIA GeForce GTX 1660": ("7.5", 22, 1785e6),
        "NVIDIA A10G": ("8.6", 80, 1710e6),
        "NVIDIA GeForce RTX 4090 Laptop GPU": ("8.9", 76, 1695e6),
        "NVIDIA B200": ("10.0", 148, 1965e6),
        "Orin": ("8.7", 16, 1300e6),
        "NVIDIA RTX PRO 6000 Blackwell": ("12.0", 188, 2617e6),
        "NVIDIA Next": ("99.0", 100, 2e9),
    }
    gpus = [Accelerator(None, name, "cuda") for name in PRODUCTS]
    gpus += [
        Accelerator(None, n, "cuda", None, None, cc, sms, None, hz)
        for n, (cc, sms, hz) in others.items()
    ]
    text = []
    for gpu in gpus:
        found = gpu_spec(gpu, gpu.name)
        peaks = " ".join(f"{k}={v.value / 1e12:.4g}" for k, v in found.flops_per_second.items())
        text.append(f"{gpu.name}: {peaks}\n  {found.evidence.source}")
    assert "\n".join(text) == approved


def test_specs_as_they_are_shown(approved: Any) -> None:
    """Each figure with its source: a card that clocks higher, a slice, an unknown card, CPUs.

    By hand: 3105 / 2520 of 82.6; 14 / 108 of an A100; 80 x 1710 MHz x 256; 4 x 5 GHz x 32.
    """
    a10g = dataclasses.replace(
        H200,
        name="NVIDIA A10G",
        compute_capability="8.6",
        multiprocessors=80,
        max_clock_hz=1710e6,
        memory_clock_hz=6251e6,
        memory_bus_bits=384,
        l2_bytes=None,
    )
    changed = [
        H200,
        dataclasses.replace(
            H200, name="NVIDIA GeForce RTX 4090", multiprocessors=128, max_clock_hz=3105e6
        ),
        dataclasses.replace(
            H200, name="NVIDIA A100-SXM4-40GB MIG 1g.5gb", multiprocessors=14, max_clock_hz=1410e6
        ),
        a10g,
        dataclasses.replace(
            a10g, name="NVIDIA Next", compute_capability="99.0", memory_clock_hz=None
        ),
        dataclasses.replace(H200, name="AMD Instinct", kind="rocm"),
        Accelerator("mps:0", "Apple GPU", "mps"),
    ]
    caches = (
        Cache("L1d", 2**15, 4),
        Cache("L2", 2**20, 4),
        Cache("L3", 2**25, 1),
        Cache("L4", 2**27, 1),
    )
    cpu = Processor("X", "x86_64", 4, 4, None, caches, ("avx2", "fma"), None, 5e9, None)
    hosts = [
        cpu,
        dataclasses.replace(cpu, max_clock_hz=None, simd=("avx512f",), caches=caches[:1]),
        dataclasses.replace(cpu, name="Apple M4", simd=("asimd",)),
        dataclasses.replace(cpu, name="boosted", clock_hz=6e9, caches=()),
    ]
    specs = [gpu_spec(gpu, gpu.name) for gpu in changed] + [
        cpu_spec(c, float(2**34), c.name) for c in hosts
    ]
    more = [
        *(specs[number].evidence.sentence for number in (0, 3, -1)),
        # by default PyTorch permits TF32 for convolutions, but not for products
        *(f"{work}: {specs[0].peak('float32', work)}" for work in ("matmul", "convolution")),
    ]
    assert "\n".join([lines(*specs), *more]) == approved


@pytest.mark.parametrize(
    ("simd", "rates"),
    [
        # float32, float64, bfloat16, float16, int8 per core and clock: lanes x pipes x 2, by
        # Intel's, AMD's and Arm's optimization manuals.
        (("sse2",), (8, 4, 8, 8, 32)),
        (("avx",), (16, 8, 16, 16, 64)),
        (("avx2", "fma"), (32, 16, 32, 32, 128)),
        (("fma", "avx512f"), (64, 32, 64, 64, 256)),
        (("avx512f", "avx512_bf16", "avx512_fp16"), (64, 32, 128, 128, 256)),
        (("avx512f", "amx_bf16", "amx_fp16", "amx_int8"), (64, 32, 1024, 1024, 2048)),
        (("asimd", "asimdhp"), (32, 16, 32, 64, 128)),
        (("sve", "bf16"), (64, 32, 128, 64, 256)),
        ((), None),
    ],
)
def test_cpu_rates_follow_the_widest_instructions(simd: Any, rates: Any) -> None:
    """The peak of one core at 1 Hz is what its widest instructions do per clock."""
    found = cpu_spec(
        Processor("X", "x", 1, 1, None, (), simd, None, 1.0, None), 1.0, "X"
    ).flops_per_second
    names = ("float32", "float64", "bfloat16", "float16", "int8")
    assert tuple(found[name].value for name in names if name in found) == (rates or ())


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("NVIDIA H200", "H200 SXM"),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "A100 40GB"),
        ("NVIDIA A100-SXM4-40GB MIG 1c.3g.20gb", "A100 40GB"),  # a compute instance
        ("NVIDIA GeForce RTX 4070 Ti SUPER", "GeForce RTX 4070 Ti SUPER"),
        ("NVIDIA A10G", None),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
        ("AMD Instinct MI300X", None),
        ("", None),
    ],
)
def test_a_product_is_known_by_the_whole_of_its_name(name: str, part: str | None) -> None:
    """Variants with other clocks are not mistaken for the card that they are named after."""
    source = gpu_spec(Accelerator(None, name, "cuda"), name).evidence.source
    assert f": {part}, dense" in source if part else source == "the device's own figures"


@pytest.mark.parametrize(
    ("dtype", "kind", "settings", "found"),
    [
        ("float32", "cuda", {"cuda.matmul": "ieee", "cudnn.conv": "ieee"}, ("float32",)),
        ("float32", "cuda", {"cuda.matmul": "tf32"}, ("float32", "tf32")),
        ("float32", "cpu", {"mkldnn.matmul": "bf16"}, ("float32", "bfloat16")),
        ("float32", "cpu", {"mkldnn.matmul": "ieee"}, ("float32",)),
        ("float64", "cuda", {"cuda.matmul": "tf32"}, ("float64",)),
        ("complex64", "mps", {}, ("float32",)),
        ("complex128", "mps", {}, ("float64",)),
        ("uint8", "mps", {}, ("int8",)),
        ("int64", "mps", {}, ("float32",)),
        ("float8_e5m2", "mps", {}, ("float8",)),
    ],
)
def test_which_arithmetic_pytorch_may_use(
    request: Any, dtype: str, kind: str, settings: dict[str, str], found: Any
) -> None:
    """PyTorch's current settings decide; a dtype without hardware of its own runs as another."""
    for path, value in settings.items():
        place = operator.attrgetter(path)(torch.backends)
        request.addfinalizer(
            lambda at=place, was=place.fp32_precision: setattr(at, "fp32_precision", was)
        )
        place.fp32_precision = value
    assert arithmetic(dtype, kind, "matmul") == found


# Number of GDDR chips or HBM stacks, and the GiB of each (NVIDIA's product pages).
BUILT = {
    "T4": (8, 2),
    "A100 40GB": (5, 8),
    "A100 80GB PCIe": (5, 16),
    "A100 80GB SXM": (5, 16),
    "A30": (3, 8),
    "A10": (12, 2),
    "A40": (12, 4),
    "RTX A6000": (12, 4),
    "L4": (6, 4),
    "L40": (12, 4),
    "L40S": (12, 4),
    "RTX 6000 Ada": (12, 4),
    "H100 SXM": (5, 16),
    "H100 PCIe": (5, 16),
    "H100 NVL": (6, 94 / 6),
    "H200 SXM": (6, 23.5),
    "H200 NVL": (6, 23.5),
    "GeForce RTX 3060 Ti": (8, 1),
    "GeForce RTX 3070": (8, 1),
    "GeForce RTX 3070 Ti": (8, 1),
    "GeForce RTX 3080 Ti": (12, 1),
    "GeForce RTX 3090": (12, 2),
    "GeForce RTX 3090 Ti": (12, 2),
    "GeForce RTX 4060": (4, 2),
    "GeForce RTX 4070": (6, 2),
    "GeForce RTX 4070 SUPER": (6, 2),
    "GeForce RTX 4070 Ti": (6, 2),
    "GeForce RTX 4070 Ti SUPER": (8, 2),
    "GeForce RTX 4080": (8, 2),
    "GeForce RTX 4080 SUPER": (8, 2),
    "GeForce RTX 4090": (12, 2),
    "GeForce RTX 5070": (6, 2),
    "GeForce RTX 5070 Ti": (8, 2),
    "GeForce RTX 5080": (8, 2),
    "GeForce RTX 5090": (16, 2),
}


def test_the_memory_of_products_is_whole_chips() -> None:
    """A product's memory is chips x GiB per chip; boards sold in two sizes have no entry."""
    assert memory_sizes.gpus() == tuple(BUILT)
    with_ecc = ("T4", "A10", "A40", "L4", "L40", "L40S")  # error correction takes a sixteenth
    for name, (chips, gigabytes) in BUILT.items():
        built = chips * gigabytes * GIB * (15 / 16 if name in with_ecc else 1)
        assert memory_sizes.memory_bytes(name) == pytest.approx(built, abs=1)
    with pytest.raises(InputError):
        memory_sizes.memory_bytes("GeForce RTX 3080")


def test_ceilings_as_they_are_shown(approved: Any) -> None:
    """A level's ceiling is its best of copy, read and triad; a working set finds its level."""
    levels = (
        MemoryCeiling("L2", 2**20, 2**19, 3e11, 1e11, 2e11),
        MemoryCeiling("DRAM", 2**34, 2**27, 1e10, 2e10, 1.5e10),
    )
    stamp = Environment(
        "2026-11-20T10:00:00+00:00", "Linux", "P", 2, GIB, "P", "cpu", None, "3.12", {}
    )
    notes = (Note("contended", "others ran."),)
    made = Ceilings(
        "cpu", levels, {"float32": 2e11}, notes, Evidence.measured("X, best of 7 runs"), stamp
    )
    assert [made.bandwidth(n) for n in (2**20, 2**20 + 1, math.inf)] == [3e11, 2e10, 2e10]
    assert [level[:3] for level in made.levels] == [("L2", 2**20, 3e11), ("DRAM", 2**34, 2e10)]
    assert lines(made) == approved


@pytest.mark.slow
def test_this_machine_is_measured_once(request: Any) -> None:
    """Rates of each level and dtype are kept for the process, even if a new run is stopped; one
    thread reaches the caches of one core.
    """
    before = torch.backends.mkldnn.matmul.fp32_precision, torch.get_num_threads()
    request.addfinalizer(lambda: torch.set_num_threads(before[1]))
    torch.set_num_threads(1)
    found = devices.ceilings("cpu")
    with pytest.raises(StoppedError):
        devices.ceilings("cpu", refresh=True, stop=lambda: True)
    assert devices.ceilings("cpu") is found
    assert (torch.backends.mkldnn.matmul.fp32_precision, torch.get_num_threads()) == (before[0], 1)
    sizes = {
        cache.level: max([cache.size_bytes, *(size for size, _ in cache.others)])
        for cache in devices.machine().processor.caches
    }
    assert all(
        level.bytes_per_second > 0 < level.capacity_bytes <= sizes.get(level.name, math.inf)
        for level in found.memory
    )
    assert {"float64", "float32", "bfloat16", "float16"} <= set(found.flops_per_second)
    assert (
        {found.memory[-1].name}
        == {"DRAM"}
        <= {level.name for level in found.memory}
        <= {level.name for level in devices.spec("cpu").levels}
    )
