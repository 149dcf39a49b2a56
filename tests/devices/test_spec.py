"""Peaks and their sources."""

import dataclasses
import math
import sys
import types

import pytest
import torch

from gpulab.devices import Accelerator, Cache, Processor, spec
from gpulab.devices import _datasheets as sheets
from gpulab.devices._settings import arithmetic
from gpulab.devices._spec import cpu_rates_per_clock, cpu_spec, gpu_spec

_H200 = Accelerator("cuda:0", "NVIDIA H200", "cuda", 140 * 2**30, None, "9.0", 132, None, 1980e6, 3201e6, 6144, 60 * 2**20)


_HALF_CORES = ("7.0", "7.5", "8.0")  # architectures with 64 float32 cores a multiprocessor; the others have 128

# CUDA cores, bits of the memory's bus, and Gbit/s of each of its pins, from NVIDIA's product pages and briefs.
_PRODUCTS = {
    "V100 SXM2": (5120, 4096, 1.755), "V100 PCIe": (5120, 4096, 1.755), "V100S PCIe": (5120, 4096, 2.214), "T4": (2560, 256, 10),
    "A100 40GB": (6912, 5120, 2.43), "A100 80GB PCIe": (6912, 5120, 3.024), "A100 80GB SXM": (6912, 5120, 3.186),
    "A30": (3584, 3072, 2.43), "A10": (9216, 384, 12.5), "A40": (10752, 384, 14.5), "RTX A6000": (10752, 384, 16),
    "L4": (7424, 192, 12.5), "L40": (18176, 384, 18), "L40S": (18176, 384, 18), "RTX 6000 Ada": (18176, 384, 20),
    "H100 SXM": (16896, 5120, 5.238), "H100 PCIe": (14592, 5120, 3.186), "H100 NVL": (16896, 6016, 5.238),
    "H200 SXM": (16896, 6144, None), "H200 NVL": (16896, 6144, None),  # 4.8 TB/s is printed without a pin rate
    "GeForce RTX 3060": (3584, 192, 15), "GeForce RTX 3060 Ti": (4864, 256, 14), "GeForce RTX 3070": (5888, 256, 14),
    "GeForce RTX 3070 Ti": (6144, 256, 19), "GeForce RTX 3080": (8704, 320, 19), "GeForce RTX 3080 Ti": (10240, 384, 19),
    "GeForce RTX 3090": (10496, 384, 19.5), "GeForce RTX 3090 Ti": (10752, 384, 21), "GeForce RTX 4060": (3072, 128, 17),
    "GeForce RTX 4060 Ti": (4352, 128, 18), "GeForce RTX 4070": (5888, 192, 21), "GeForce RTX 4070 SUPER": (7168, 192, 21),
    "GeForce RTX 4070 Ti": (7680, 192, 21), "GeForce RTX 4070 Ti SUPER": (8448, 256, 21), "GeForce RTX 4080": (9728, 256, 22.4),
    "GeForce RTX 4080 SUPER": (10240, 256, 23), "GeForce RTX 4090": (16384, 384, 21), "GeForce RTX 5060 Ti": (4608, 128, 28),
    "GeForce RTX 5070": (6144, 192, 28), "GeForce RTX 5070 Ti": (8960, 256, 28), "GeForce RTX 5080": (10752, 256, 30),
    "GeForce RTX 5090": (21760, 512, 28),
}  # fmt: skip


def _agree(stated, computed, lower_clock):
    """Whether two figures are one within 2 %.

    Hopper's and Blackwell's tensor figures are printed for a lower clock than the boost clock of the rest (H100 SXM: 1830 instead of
    1980 MHz in the whitepaper), so they may be up to 16 % lower, never higher.
    """
    return stated / computed == pytest.approx(1.0, abs=0.02) or (lower_clock and 0.84 < stated / computed < 1.0)


@pytest.mark.parametrize("part", sheets.PARTS, ids=lambda part: part.name)
def test_data_sheets_and_rates_per_clock_tell_the_same(part):
    """Two sources, one truth: multiprocessors x clock x rate gives what the data sheet prints, within 2 %."""
    rates = part.rates()
    for dtype, stated in part.stated.items():
        tensor = part.compute_capability in ("9.0", "10.0") and dtype not in ("float32", "float64")
        assert _agree(stated, rates[dtype] * part.multiprocessors * part.boost_hz, tensor), dtype


@pytest.mark.parametrize("part", sheets.PARTS, ids=lambda part: part.name)
def test_multiprocessors_and_bandwidth_follow_from_cores_and_bus(part):
    """CUDA cores / cores of a multiprocessor, and pins x their rate / 8: exactly the one, within 2 % the other."""
    cores, bits, gigabits = _PRODUCTS[part.name]
    assert part.multiprocessors * (64 if part.compute_capability in _HALF_CORES else 128) == cores
    if gigabits is None:  # the card's own memory clock gives 2.4 % more than the sheet: the test of an H200's figures below
        assert part.bytes_per_second == 4.8e12
    else:
        assert part.bytes_per_second == pytest.approx(bits * gigabits * 1e9 / 8, rel=0.02)


# Boost clock in MHz and bandwidth in GB/s, as TechPowerUp's database prints them; those of the H100s and H200s are NVIDIA's.
_CLOCKS_AND_BANDWIDTHS = {
    "V100 SXM2": (1530, 900), "V100 PCIe": (1380, 900), "V100S PCIe": (1597, 1134), "T4": (1590, 320), "A100 40GB": (1410, 1555),
    "A100 80GB PCIe": (1410, 1935), "A100 80GB SXM": (1410, 2039), "A30": (1440, 933), "A10": (1695, 600), "A40": (1740, 696),
    "RTX A6000": (1800, 768), "L4": (2040, 300), "L40": (2490, 864), "L40S": (2520, 864), "RTX 6000 Ada": (2505, 960),
    "H100 SXM": (1980, 3350), "H100 PCIe": (1755, 2039), "H100 NVL": (1785, 3938), "H200 SXM": (1980, 4800), "H200 NVL": (1785, 4800),
    "GeForce RTX 3060": (1777, 360), "GeForce RTX 3060 Ti": (1665, 448), "GeForce RTX 3070": (1725, 448),
    "GeForce RTX 3070 Ti": (1770, 608), "GeForce RTX 3080": (1710, 760), "GeForce RTX 3080 Ti": (1665, 912),
    "GeForce RTX 3090": (1695, 936), "GeForce RTX 3090 Ti": (1860, 1008), "GeForce RTX 4060": (2460, 272),
    "GeForce RTX 4060 Ti": (2535, 288), "GeForce RTX 4070": (2475, 504), "GeForce RTX 4070 SUPER": (2475, 504),
    "GeForce RTX 4070 Ti": (2610, 504), "GeForce RTX 4070 Ti SUPER": (2610, 672), "GeForce RTX 4080": (2505, 716.8),
    "GeForce RTX 4080 SUPER": (2550, 736), "GeForce RTX 4090": (2520, 1008), "GeForce RTX 5060 Ti": (2572, 448),
    "GeForce RTX 5070": (2512, 672), "GeForce RTX 5070 Ti": (2452, 896), "GeForce RTX 5080": (2617, 960), "GeForce RTX 5090": (2407, 1792),
}  # fmt: skip


def test_clocks_and_bandwidths_are_those_that_are_printed():
    """To the megahertz and the gigabyte a second: within the 2 % of the two sources above a slip of one would hide."""
    assert {part.name: (part.boost_hz / 1e6, part.bytes_per_second / 1e9) for part in sheets.PARTS} == _CLOCKS_AND_BANDWIDTHS


def test_a_multiprocessors_operations_are_a_power_of_two():
    """So many units, each with a multiply and an add a clock: a figure that is none is a slip, however near it comes."""
    tables = [*sheets._RATES.values(), sheets._TURING_PLAIN]
    assert {rate for rates in tables for rate in rates.values()} <= {2**k for k in range(2, 15)}


@pytest.mark.parametrize(
    ("name", "capability", "multiprocessors", "mhz", "printed"),
    [
        # NVIDIA Turing GPU Architecture, table 1: a GeForce and a workstation card of the same chip.
        ("GeForce RTX 2080 Ti", "7.5", 68, 1545, {"float32": 13.4, "float16_acc16": 107.6, "float16": 53.8, "int8": 215.2}),
        ("Quadro RTX 6000", "7.5", 72, 1770, {"float32": 16.3, "float16_acc16": 130.5, "float16": 130.5, "int8": 261.0}),
        # GA102 whitepaper, table 9.
        ("GeForce RTX 3090", "8.6", 82, 1695, {"tf32": 35.6, "float16": 71.0, "bfloat16": 71.0, "float16_acc16": 142.0, "int8": 284.0}),
        # Ada whitepaper 2.1, appendix A: float8 with float32 accumulation.
        (
            "GeForce RTX 4090", "8.9", 128, 2520,
            {"tf32": 82.6, "float16": 165.2, "bfloat16": 165.2, "float16_acc16": 330.3, "float8": 330.3, "int8": 660.6},
        ),
        # RTX Blackwell whitepaper, table 3: float8 as with float16 accumulation (see the comment on _HALVED_ON_GEFORCE).
        (
            "GeForce RTX 5090", "12.0", 170, 2407,
            {"tf32": 104.8, "float16": 209.5, "bfloat16": 209.5, "float16_acc16": 419.0, "float8": 838.0, "int8": 838.0},
        ),
        # RTX Blackwell PRO whitepaper, table 4.
        ("RTX PRO 6000 Blackwell Workstation Edition", "12.0", 188, 2617, {"float16": 503.8, "bfloat16": 503.8}),
        # HGX B200 data sheet, one GPU, the sparse figures halved.
        (
            "B200", "10.0", 148, 1965,
            {"float64": 37.0, "float32": 75.0, "tf32": 1100.0, "bfloat16": 2250.0, "float16": 2250.0, "float8": 4500.0, "int8": 4500.0},
        ),
        # Jetson AGX Orin technical brief, 64 GB module: 170 sparse TOP/s of int8.
        ("Orin", "8.7", 16, 1300, {"float32": 5.3, "int8": 85.0}),
    ],
)  # fmt: skip
def test_rates_per_clock_give_what_whitepapers_print(name, capability, multiprocessors, mhz, printed):
    """The name alone tells GeForce's half rates; each architecture's document prints these TFLOP/s, dense."""
    rates = sheets.rates_per_clock(capability, name)
    for dtype, tera in printed.items():
        lower_clock = capability == "10.0" and dtype not in ("float32", "float64")
        assert _agree(tera * 1e12, rates[dtype] * multiprocessors * mhz * 1e6, lower_clock), dtype


def test_products_without_bfloat16_or_tensor_units_are_not_given_any():
    """Turing runs bfloat16 in float32, on GeForce cards too; the GTX 1660 (22 x 1785 MHz) reaches 10.05 TFLOP/s of float16, no more."""
    turing = sheets.rates_per_clock("7.5", "NVIDIA GeForce RTX 2080 Ti")
    assert turing["bfloat16"] == turing["float32"]
    for name in ("NVIDIA GeForce GTX 1660", "NVIDIA GeForce MX450", "NVIDIA T1000 8GB", "Quadro T2000"):
        plain = sheets.rates_per_clock("7.5", name)
        assert plain["float16"] * 22 * 1785e6 == pytest.approx(10.05e12, rel=0.01)
        assert (plain["float32"], plain["int8"]) == (128, 512)
    assert sheets.rates_per_clock("7.5", "Tesla T4")["float16"] == 1024


def test_each_figure_says_whether_a_document_prints_it():
    """Printed figures name the document; the rest name the rate that they are computed with."""
    l40 = sheets.part("NVIDIA L40")
    assert l40.source_of("int8") == "NVIDIA's data sheet of the L40: L40, dense, at 2490 MHz"
    assert l40.peaks()["int8"] == 362e12
    assert l40.source_of("float16_acc16").startswith("not printed for L40: 142 multiprocessors x 2490 MHz")
    h100 = sheets.part("NVIDIA H100 PCIe")
    assert h100.source_of("float16_acc16") == h100.source_of("float16") == h100.source
    assert h100.peaks()["float16_acc16"] == 756.5e12
    for part in sheets.PARTS:
        assert set(part.stated) <= set(part.peaks())
        assert all(part.source_of(dtype) for dtype in part.peaks())


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("NVIDIA H200", "H200 SXM"),
        ("NVIDIA H200 NVL", "H200 NVL"),
        ("NVIDIA H100 80GB HBM3", "H100 SXM"),
        ("NVIDIA H100 PCIe", "H100 PCIe"),
        ("NVIDIA H100 NVL", "H100 NVL"),
        ("Tesla V100-SXM2-16GB", "V100 SXM2"),
        ("Tesla T4", "T4"),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "A100 40GB"),
        ("NVIDIA A100 80GB PCIe", "A100 80GB PCIe"),
        ("NVIDIA GeForce RTX 4070 Ti SUPER", "GeForce RTX 4070 Ti SUPER"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
        ("NVIDIA A10G", None),
        ("NVIDIA L40S", "L40S"),
        ("AMD Instinct MI300X", None),
        ("", None),
    ],
)
def test_a_product_is_known_by_the_whole_of_its_drivers_name(name, part):
    """Variants with other clocks are not mistaken for the card that they are named after."""
    found = sheets.part(name)
    assert (found and found.name) == part


def test_every_name_in_the_table_belongs_to_one_part():
    """No two rows share a name."""
    assert len({part.name for part in sheets.PARTS}) == len(sheets.PARTS)


def test_an_h200_has_the_figures_of_its_data_sheet():
    """NVIDIA H200 data sheet, dense: 67, 494.7, 989.4, 1978.9 TFLOP/s; 4.8 TB/s (the bus gives 4.92)."""
    found = gpu_spec(_H200, "NVIDIA H200")
    assert {k: round(v.value / 1e12, 1) for k, v in found.flops_per_second.items() if k in ("float32", "tf32", "bfloat16", "float8")} == {
        "float32": 67.0, "tf32": 494.7, "bfloat16": 989.4, "float8": 1978.9,
    }  # fmt: skip
    assert "H200 SXM" in found.flops_per_second["tf32"].source
    level, memory = found.levels
    assert (level.name, level.capacity_bytes) == ("L2", 60 * 2**20)
    assert memory.bytes_per_second == pytest.approx(2 * 3201e6 * 6144 / 8)
    assert found.level(2**20).name == "L2"
    assert found.level(2**35).name == found.level(2**50).name == "DRAM"
    assert found.evidence.badge == "MODELLED"
    assert type(found).from_dict(found.to_dict()) == found


def test_a_card_that_clocks_higher_than_its_data_sheet_has_a_higher_bound():
    """An RTX 4090 runs up to 3105 MHz where the sheet says 2520: an honest rate must not be called impossible."""
    card = dataclasses.replace(_H200, name="NVIDIA GeForce RTX 4090", compute_capability="8.9", multiprocessors=128, max_clock_hz=3105e6)
    figure = gpu_spec(card, card.name).flops_per_second["float32"]
    assert figure.value == pytest.approx(82.6e12 * 3105 / 2520)
    assert "3105 MHz" in figure.source


def test_a_mig_slice_has_its_share():
    """One seventh of an A100's multiprocessors has one seventh of its arithmetic."""
    mig = dataclasses.replace(_H200, name="NVIDIA A100-SXM4-40GB MIG 1g.5gb", multiprocessors=14, max_clock_hz=1410e6)
    figure = gpu_spec(mig, mig.name).flops_per_second["bfloat16"]
    assert figure.value == pytest.approx(312e12 * 14 / 108)
    assert figure.source.endswith(", scaled to 14 of 108 multiprocessors")


def test_an_unknown_card_is_computed_and_an_unknown_architecture_has_no_figure():
    """Multiprocessors x clock x rate for a name that no table has; nothing where not even the architecture is known."""
    card = dataclasses.replace(
        _H200,
        name="NVIDIA A10G",
        compute_capability="8.6",
        multiprocessors=80,
        max_clock_hz=1710e6,
        memory_clock_hz=6251e6,
        memory_bus_bits=384,
    )
    found = gpu_spec(card, card.name)
    assert found.flops_per_second["float32"].value == 80 * 1710e6 * 256
    assert found.levels[-1].bytes_per_second == 2 * 6251e6 * 384 / 8
    future = gpu_spec(dataclasses.replace(card, compute_capability="99.0", memory_clock_hz=None), "NVIDIA Next")
    assert future.flops_per_second == {}
    assert future.peak("float32") is None
    assert future.levels[-1].bytes_per_second is None
    assert gpu_spec(Accelerator("mps:0", "Apple GPU", "mps"), "Apple GPU").levels[-1].capacity_bytes == math.inf


def _cpu(simd, clock=None, cores=4, **changes):
    return Processor(
        "X", "x86_64", cores, cores, None, (Cache("L1d", 2**15, cores), Cache("L3", 2**25, 1)), tuple(simd), None, clock, None, **changes
    )


@pytest.mark.parametrize(
    ("simd", "float32", "bfloat16"),
    [
        (("sse2",), 8, 8),
        (("avx",), 16, 16),
        (("avx2", "fma"), 32, 32),
        (("fma", "avx512f"), 64, 64),
        (("avx512f", "avx512_bf16"), 64, 128),
        (("avx512f", "avx512_bf16", "amx_bf16"), 64, 1024),
        (("asimd",), 32, 32),
    ],
)
def test_cpu_rates_follow_the_widest_instructions(simd, float32, bfloat16):
    """Lanes x pipes x 2, by hand from Intel's, AMD's and Arm's optimization manuals."""
    rates = cpu_rates_per_clock(simd)
    assert (rates["float32"], rates["bfloat16"], rates["float64"]) == (float32, bfloat16, float32 // 2)


def test_a_cpu_bound_states_its_assumptions():
    """Cores x clock x width; without a stated clock the fastest of any processor counts; main memory is not stated."""
    known = cpu_spec(_cpu(("avx2", "fma"), clock=5e9), 2**34, "X")
    assert known.flops_per_second["float32"].value == 4 * 5e9 * 32
    hidden = cpu_spec(_cpu(("avx2", "fma")), 2**34, "X")
    assert hidden.flops_per_second["float32"].value == 4 * 6.2e9 * 32
    assert "no processor sold is faster" in hidden.flops_per_second["float32"].source
    assert [(level.name, level.capacity_bytes) for level in hidden.levels] == [("L1d", 2**17), ("L3", 2**25), ("DRAM", 2**34)]
    assert hidden.levels[-1].bytes_per_second is None
    rows = hidden.table()[1]
    assert rows[-1][1] == "not stated"
    apple = dataclasses.replace(_cpu(("asimd",)), name="Apple M4")
    assert cpu_spec(apple, 2**34, "Apple M4").peak("float32") is None


def test_the_peaks_say_what_they_assume_and_where_they_come_from():
    """The assumptions are about clocks and units, the source is the document or the device itself, and both stand in their own place."""
    sheet = gpu_spec(_H200, "NVIDIA H200").evidence
    assert "every unit busy" in sheet.assumptions
    assert sheet.source == sheets.part("NVIDIA H200").source
    assert sheet.device == "NVIDIA H200"
    own = gpu_spec(dataclasses.replace(_H200, name="NVIDIA Next"), "NVIDIA Next").evidence
    assert own.source == "the device's own figures"
    host = cpu_spec(_cpu(("avx2",), clock=5e9), 2**34, "X").evidence
    assert ("widest units busy" in host.assumptions, host.source, host.device) == (True, "vendors' optimization manuals", "X")


@pytest.mark.parametrize(("simd", "l1"), [(("avx2", "fma"), 3 * 32 + 2 * 32), (("avx512f",), 2 * 64 + 2 * 64), (("sve",), 2 * 64 + 2 * 64)])
def test_a_cores_caches_by_loads_and_stores(simd, l1):
    """L1: loads and stores a clock by their width; a line of 64 bytes each way from L2, half of one from L3; times cores and clock."""
    caches = (Cache("L1d", 2**15, 4), Cache("L2", 2**20, 4), Cache("L3", 2**25, 1), Cache("L4", 2**27, 1))
    found = cpu_spec(dataclasses.replace(_cpu(simd, clock=2e9), caches=caches), 2**34, "X")
    assert [(m.name, m.bytes_per_second) for m in found.levels] == [
        ("L1d", 4 * 2e9 * l1), ("L2", 4 * 2e9 * 128), ("L3", 4 * 2e9 * 64), ("DRAM", None),
    ]  # fmt: skip
    assert found.levels[0].source == f"4 cores x 2.00 GHz (the system) x {l1} B a clock"


@pytest.mark.parametrize(
    ("simd", "float16", "int8"),
    [
        (("avx512f", "avx512_fp16", "amx_int8"), 128, 2048),
        (("avx512f", "amx_fp16"), 1024, 256),
        (("asimd", "asimdhp"), 64, 128),
        (("sve",), 64, 256),
    ],
)
def test_cpu_rates_of_small_formats(simd, float16, int8):
    """Twice float32 where the instructions take float16, four times for bytes, AMX's tiles by Intel's manual."""
    rates = cpu_rates_per_clock(simd)
    assert (rates["float16"], rates["int8"]) == (float16, int8)


def test_a_gpus_l2_is_its_multiprocessors_times_64_bytes():
    """132 x 1,980 MHz x 64 B; none where the size, the clock or the multiprocessors are not known, or the maker is another."""
    level = gpu_spec(_H200, "NVIDIA H200").levels[0]
    assert (level.name, level.bytes_per_second) == ("L2", 132 * 1980e6 * 64)
    next_one = dataclasses.replace(_H200, name="NVIDIA Next")
    for change in ({"l2_bytes": None}, {"max_clock_hz": None}, {"multiprocessors": None}, {"kind": "rocm"}):
        assert [m.name for m in gpu_spec(dataclasses.replace(next_one, **change), "NVIDIA Next").levels] == ["DRAM"]
    slow = dataclasses.replace(_H200, max_clock_hz=None, multiprocessors=None)  # the data sheet knows both
    assert gpu_spec(slow, "NVIDIA H200").levels[0].bytes_per_second == 132 * 1980e6 * 64


def test_the_table_of_a_spec_says_size_rate_and_source():
    """A level of unknown size says so, and an arithmetic stands with its source."""
    rows = gpu_spec(dataclasses.replace(_H200, memory_bytes=None), "NVIDIA H200").table()[1]
    assert rows[-1][:2] == ("DRAM (size not known)", "4.92 TB/s")
    assert rows[-2][:2] == ("L2 (60.0 MiB)", "16.7 TB/s")
    assert [row[1] for row in rows if row[0] == "float32"] == ["67.0 TFLOP/s"]
    assert repr(gpu_spec(_H200, "NVIDIA H200")) == "<DeviceSpec NVIDIA H200: float32 at most 67.0 TFLOP/s, L2, DRAM>"


@pytest.fixture
def settings():
    """PyTorch's precision switches, put back afterwards."""
    matmul, cudnn, host = torch.backends.cuda.matmul, torch.backends.cudnn, torch.backends.mkldnn.matmul
    before = matmul.fp32_precision, cudnn.conv.fp32_precision, host.fp32_precision, matmul.allow_fp16_accumulation
    yield matmul, cudnn, host
    matmul.fp32_precision, cudnn.conv.fp32_precision, host.fp32_precision, matmul.allow_fp16_accumulation = before


def test_tf32_counts_where_the_settings_allow_it(settings, monkeypatch):
    """Matrix products and convolutions have a switch each; by default only convolutions use TF32."""
    monkeypatch.delenv("NVIDIA_TF32_OVERRIDE", raising=False)
    matmul, cudnn, _ = settings
    found = gpu_spec(_H200, "NVIDIA H200")
    assert found.peak("float32", "matmul").value == 67e12
    assert found.peak("float32", "convolution").value == pytest.approx(494.7e12)
    assert found.peak("float32").value == pytest.approx(494.7e12)
    cudnn.conv.fp32_precision = "ieee"
    assert found.peak("float32").value == 67e12
    matmul.fp32_precision = "tf32"
    assert found.peak("float32", "matmul").value == pytest.approx(494.7e12)
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "0")
    assert arithmetic("float32", "cuda") == ("float32",)


def test_other_settings_and_dtypes_find_their_arithmetic(settings):
    """bfloat16 products on a CPU when the settings permit, float16 accumulation, and dtypes without a unit of their own."""
    matmul, _, host = settings
    assert arithmetic("float32", "cpu") == ("float32",)
    host.fp32_precision = "bf16"
    assert arithmetic("float32", "cpu") == ("float32", "bfloat16")
    assert arithmetic("float32", "cpu", "convolution") == ("float32",)
    assert arithmetic("float16", "cuda") == ("float16",)
    matmul.allow_fp16_accumulation = True
    assert arithmetic("float16", "cuda") == ("float16", "float16_acc16")
    assert arithmetic("float8_e4m3fn", "cuda") == ("float8",)
    assert arithmetic("complex128", "cpu") == ("float64",)
    assert arithmetic("odd", "cpu") == ("odd",)
    assert spec("cpu").peak("odd") is None


def test_this_machines_cpu_has_a_bound_for_every_cache_it_reports():
    """The levels are in order, and their rates fall from level to level."""
    found = spec("cpu")
    rates = [level.bytes_per_second for level in found.levels if level.bytes_per_second is not None]
    assert rates == sorted(rates, reverse=True)
    assert found.levels[-1].name == "DRAM"
    assert spec("cpu") is found


@pytest.mark.gpu
def test_this_gpus_product_stays_below_its_peak():
    """A bfloat16 product of 4096 cubed, timed with events, does not exceed 1.1 times the stated peak and reaches a tenth of it."""
    a = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    for _ in range(5):
        a @ a
    start.record()
    for _ in range(20):
        a @ a
    end.record()
    end.synchronize()
    rate = 20 * 2 * 4096**3 / (start.elapsed_time(end) * 1e-3)
    peak = spec("cuda").peak("bfloat16")
    assert 0.1 * peak.value < rate < 1.1 * peak.value


def _pytorch(**switches):
    """A PyTorch with these switches and no others."""
    matmul, cudnn, mkldnn = (types.SimpleNamespace(**switches.get(name, {})) for name in ("matmul", "cudnn", "mkldnn"))
    backends = types.SimpleNamespace(
        cuda=types.SimpleNamespace(matmul=matmul), cudnn=cudnn, mkldnn=types.SimpleNamespace(matmul=mkldnn), **switches.get("all", {})
    )
    return types.SimpleNamespace(backends=backends)


class _Mixed:
    """A switch that raises, as PyTorch's older one does once the newer was used."""

    fp32_precision = "none"

    @property
    def allow_tf32(self):
        raise RuntimeError("mixed")


@pytest.mark.parametrize(
    ("torch_", "dtype", "kind", "operation", "found"),
    [
        (None, "float32", "cuda", None, ()),  # not loaded
        (_pytorch(matmul={"allow_tf32": True}, cudnn={"allow_tf32": False}), "float32", "cuda", "matmul", ("tf32",)),
        (_pytorch(matmul={"allow_tf32": True}, cudnn={"allow_tf32": False}), "float32", "rocm", "convolution", ()),
        (_pytorch(matmul={"allow_tf32": False}, cudnn={"allow_tf32": True}), "float32", "cuda", "matmul", ()),
        (_pytorch(matmul={"allow_tf32": False}, cudnn={"allow_tf32": True}), "float32", "cuda", None, ("tf32",)),
        (_pytorch(matmul={"allow_tf32": True}, cudnn={"allow_tf32": True}), "float32", "xpu", None, ()),
        (_pytorch(matmul={"allow_tf32": True}, cudnn={"allow_tf32": True}), "float64", "cuda", None, ()),
        (_pytorch(matmul={"allow_tf32": True}, cudnn={}), "complex64", "cuda", "matmul", ("tf32",)),
        (_pytorch(matmul={"fp32_precision": "ieee", "allow_tf32": True}), "float32", "cuda", "matmul", ()),
        (_pytorch(matmul={"fp32_precision": "bf16", "allow_tf32": False}), "float32", "cuda", "matmul", ("tf32",)),
        (_pytorch(cudnn={"conv": types.SimpleNamespace(fp32_precision="tf32"), "allow_tf32": False}), "float32", "cuda",
         "convolution", ("tf32",)),
        (_pytorch(), "float32", "cpu", "matmul", ()), (_pytorch(mkldnn={"fp32_precision": "tf32"}), "float32", "cpu", None, ("bfloat16",)),
        (_pytorch(mkldnn={"fp32_precision": "ieee"}), "float32", "cpu", None, ()),
        (_pytorch(mkldnn={"fp32_precision": "bf16"}), "float32", "mps", None, ()),
        (_pytorch(mkldnn={"fp32_precision": "bf16"}), "float64", "cpu", None, ()),
        (_pytorch(), "float16", "cuda", None, ()), (_pytorch(matmul={"allow_fp16_accumulation": True}), "float16", "rocm", None, ()),
        (_pytorch(matmul={"allow_fp16_accumulation": True}), "bfloat16", "cuda", None, ()),
    ],
)  # fmt: skip
def test_arithmetic_by_the_switches_that_a_pytorch_has(monkeypatch, torch_, dtype, kind, operation, found):
    """Older ones have one switch, newer ones two; what has none permits nothing; the dtype's own comes first."""
    monkeypatch.delenv("NVIDIA_TF32_OVERRIDE", raising=False)
    monkeypatch.setitem(sys.modules, "torch", torch_)
    own = "float32" if dtype == "complex64" else dtype
    assert arithmetic(dtype, kind, operation) == (own, *found)


def test_the_general_switch_counts_where_the_older_one_raises(monkeypatch):
    """And NVIDIA's own variable before all of them."""
    monkeypatch.delenv("NVIDIA_TF32_OVERRIDE", raising=False)
    for general, allowed in (({"fp32_precision": "tf32"}, True), ({"fp32_precision": "ieee"}, False), ({}, False)):
        torch_ = _pytorch(all=general)
        torch_.backends.cuda.matmul = _Mixed()
        monkeypatch.setitem(sys.modules, "torch", torch_)
        assert arithmetic("float32", "cuda", "matmul") == (("float32", "tf32") if allowed else ("float32",))
    for word, allowed in (("1", True), ("0", False), ("yes", False)):
        monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", word)
        assert ("tf32" in arithmetic("float32", "cuda", "matmul")) is allowed


def test_what_has_no_unit_of_its_own_runs_as_another():
    """By hand: whole numbers of 16 bits and more as float32, bytes and truth values as int8, complex ones as their parts, float8 as one."""
    names = ("complex64", "complex128", "bool", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float8_e5m2", "int8")
    found = [arithmetic(name, "mps")[0] for name in names]
    assert found == ["float32", "float64", "int8", "int8", *["float32"] * 6, "float8", "int8"]
