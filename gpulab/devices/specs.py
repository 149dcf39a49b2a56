"""``spec(device)``: the most that a device can do, by dtype and memory level, with sources.

These are upper bounds for the question "is this rate possible?", not promises. A GPU's figures come
from its data sheet, scaled up where this very card clocks higher; an unknown GPU's from its
multiprocessors, clocks and bus; a CPU's from its cores, its widest instructions and a clock that no
processor on the market exceeds. A rate that is not stated is None or missing.
"""

from __future__ import annotations

import functools
import math
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from gpulab.devices import _device, datasheets, diagnosis, host_facts
from gpulab.devices.nvml import Accelerator
from gpulab.evidence import Evidence
from gpulab.results import Result, Table
from gpulab.units import format_bytes, format_bytes_per_second, format_flops_per_second, plural

# No processor sold clocks higher (Intel Core i9-14900KS: 6.2 GHz); used where a virtual machine
# hides the real limit.
_FASTEST_CLOCK_HZ = 6.2e9
# Bytes that a GPU multiprocessor can take from L2 in one clock (Volta to Blackwell: 64 B, measured
# below that on all parts).
_L2_BYTES_PER_CLOCK = 64

# Arithmetic that stands for a dtype that has no tensor unit of its own.
_STANDS_FOR = {
    "complex64": "float32",
    "complex128": "float64",
    "bool": "int8",
    "uint8": "int8",
    "int16": "float32",
    "uint16": "float32",
    "int32": "float32",
    "uint32": "float32",
    "int64": "float32",
    "uint64": "float32",
}


# float32 FLOP of one core per clock, by the widest of its instruction sets: lanes x pipes x 2;
# where there is no fused multiply-add (avx), a multiply and an add of all lanes.
_CPU_FLOAT32 = {"avx512f": 64, "fma": 32, "avx": 16, "sse2": 8, "sve": 64, "asimd": 32}
_AMX = 1024


class Figure(NamedTuple):
    """One stated or computed peak.

    Attributes
    ----------
    value : float
        In the unit of the mapping that holds it.
    source : str
        The document, or the formula with its inputs.
    """

    value: float
    source: str


class MemoryLevel(NamedTuple):
    """One level of a device's memory.

    Attributes
    ----------
    name : str
        "L1d", "L2", "L3" or "DRAM".
    capacity_bytes : float
        What it holds, over all instances; infinite where the size is not known.
    bytes_per_second : float or None
        The most it can deliver to the whole device, reads and writes together; None where not
        stated.
    source : str
    """

    name: str
    capacity_bytes: float
    bytes_per_second: float | None
    source: str


@dataclass(frozen=True)
class DeviceSpec(Result):
    """The most that a device can do.

    Attributes
    ----------
    device, kind, name : str
    flops_per_second : mapping of str to Figure
        By arithmetic: float64, float32, tf32, bfloat16, float16 (float32 accumulation),
        float16_acc16, float8, int8. Dense. An arithmetic whose rate is not stated is missing.
    levels : tuple of MemoryLevel
        Fastest first; the last is the device's main memory.
    evidence : Evidence
        MODELLED.
    """

    device: str
    kind: str
    name: str
    flops_per_second: Mapping[str, Figure]
    levels: tuple[MemoryLevel, ...]
    evidence: Evidence

    def __repr__(self) -> str:
        top = self.flops_per_second.get("float32")
        rate = f"at most {format_flops_per_second(top.value)}" if top else "peak not known"
        return (
            f"<DeviceSpec {self.name}: float32 {rate}, "
            f"{', '.join(level.name for level in self.levels)}>"
        )

    def peak(self, dtype: str, operation: str | None = None) -> Figure | None:
        """Return the peak of the fastest arithmetic that PyTorch's settings permit now for arrays
        of a dtype.

        Parameters
        ----------
        dtype : str
            Of the arrays, such as "float32".
        operation : str, optional
            "matmul" or "convolution"; None takes the faster of both, since TF32 is allowed for each
            separately.

        Returns
        -------
        Figure or None
            FLOP/s and its source; None where not stated.
        """
        allowed = [
            self.flops_per_second[name]
            for name in arithmetic(dtype, self.kind, operation)
            if name in self.flops_per_second
        ]
        return max(allowed, key=lambda figure: figure.value, default=None)

    def table(self) -> Table:
        """Return one row per arithmetic and one per memory level, each with its source."""
        rows = [
            (name, format_flops_per_second(figure.value), figure.source)
            for name, figure in self.flops_per_second.items()
        ]
        for name, size, rate, source in self.levels:
            held = format_bytes(size) if math.isfinite(size) else "size not known"
            most = "not stated" if rate is None else format_bytes_per_second(rate)
            rows.append((f"{name} ({held})", most, source))
        return (self.name, "at most", "source"), rows


def arithmetic(dtype: str, kind: str, operation: str | None = None) -> tuple[str, ...]:
    """Return the arithmetics that may be used for a dtype, by the names of
    ``DeviceSpec.flops_per_second``.

    Parameters
    ----------
    dtype : str
        Of the arrays, such as "float32".
    kind : str
        Of the device: "cpu", "cuda" ...
    operation : str, optional
        "matmul" or "convolution"; None returns what either may use.

    Returns
    -------
    tuple of str
        The dtype's own first. PyTorch's settings are read only if PyTorch is loaded.
    """
    own = "float8" if dtype.startswith("float8") else _STANDS_FOR.get(dtype, dtype)
    torch = sys.modules.get("torch")
    if torch is None:
        return (own,)
    backends, faster = torch.backends, None
    if own == "float32" and kind in ("cuda", "rocm"):
        places = {"matmul": backends.cuda.matmul, "convolution": backends.cudnn.conv}
        asked = [places[operation]] if operation in places else places.values()
        allowed = any(place.fp32_precision in ("tf32", "bf16") for place in asked)
        override = os.environ.get("NVIDIA_TF32_OVERRIDE")
        faster = "tf32" if override == "1" or (allowed and override != "0") else None
    elif own == "float32" and kind == "cpu" and operation != "convolution":
        faster = "bfloat16" if backends.mkldnn.matmul.fp32_precision in ("bf16", "tf32") else None
    elif own == "float16" and kind == "cuda" and backends.cuda.matmul.allow_fp16_accumulation:
        faster = "float16_acc16"
    return (own,) if faster is None else (own, faster)


def spec(device: _device.Device | str | None = None) -> DeviceSpec:
    """Return the peaks of a device.

    Parameters
    ----------
    device : Device or str, optional
        None takes the best one available.

    Returns
    -------
    DeviceSpec
        Upper bounds with their sources; kept for the life of the process, since a device's figures
        do not change.

    Raises
    ------
    DeviceError
        If the machine has no such device.

    Examples
    --------
    >>> spec("cpu").levels[-1].name
    'DRAM'
    """
    where = _device.find(device)
    return _spec(where, where.name)


@functools.lru_cache(maxsize=64)
def _spec(device: _device.Device, name: str) -> DeviceSpec:
    if device.is_cpu:
        return cpu_spec(host_facts.probe(), device.memory_bytes, name)
    return gpu_spec(diagnosis.accelerator(device), name)


def gpu_spec(gpu: Accelerator, name: str) -> DeviceSpec:
    """Return the peaks of a GPU from its data sheet or, failing that, from its own figures.

    Parameters
    ----------
    gpu : Accelerator
        What PyTorch and the driver report.
    name : str
        The product's name.
    """
    known = datasheets.part(name) if gpu.kind == "cuda" else None
    flops = _stated(known, gpu) if known is not None else _computed(gpu)
    bandwidth, source = _bandwidth(known, gpu)
    memory = MemoryLevel("DRAM", gpu.memory_bytes or math.inf, bandwidth, source)
    evidence = Evidence.modelled(
        "dense arithmetic at the highest clock, every unit busy",
        known.source if known else "the device's own figures",
        device=name,
    )
    return DeviceSpec(
        gpu.device or name, gpu.kind, name, flops, (*_l2(known, gpu), memory), evidence
    )


def _stated(known: datasheets.Part, gpu: Accelerator) -> dict[str, Figure]:
    """Return the data sheet's peaks, scaled to this card's clock where that is higher, and to
    its number of multiprocessors (a MIG slice has fewer).
    """
    clock = max(1.0, (gpu.max_clock_hz or 0.0) / known.boost_hz)
    share = (gpu.multiprocessors or known.multiprocessors) / known.multiprocessors
    scaled = (
        f", scaled to this card's {clock * known.boost_hz / 1e6:.0f} MHz" if clock > 1.0 else ""
    )
    if share != 1.0:
        scaled += f", scaled to {gpu.multiprocessors} of {known.multiprocessors} multiprocessors"
    return {
        dtype: Figure(peak * clock * share, source + scaled)
        for dtype, (peak, source) in known.peaks().items()
    }


def _computed(gpu: Accelerator) -> dict[str, Figure]:
    rates = (
        datasheets.rates_per_clock(gpu.compute_capability or "", gpu.name)
        if gpu.kind == "cuda"
        else None
    )
    if rates is None or not gpu.multiprocessors or not gpu.max_clock_hz:
        return {}
    where = f"{gpu.multiprocessors} multiprocessors x {gpu.max_clock_hz / 1e6:.0f} MHz"
    return {
        dtype: Figure(
            rate * gpu.multiprocessors * gpu.max_clock_hz,
            f"{where} x {rate} FLOP a clock (compute capability {gpu.compute_capability})",
        )
        for dtype, rate in rates.items()
    }


def _bandwidth(known: datasheets.Part | None, gpu: Accelerator) -> tuple[float | None, str]:
    """Return the larger of two bandwidths, with its source: the data sheet's, and that of memory
    clock and bus (two transfers a clock).
    """
    rates: list[tuple[float | None, str]] = (
        [] if known is None else [(known.bytes_per_second, known.source)]
    )
    if gpu.memory_clock_hz and gpu.memory_bus_bits:
        source = f"2 x {gpu.memory_clock_hz / 1e6:.0f} MHz x {gpu.memory_bus_bits} bit"
        rates.append((2.0 * gpu.memory_clock_hz * gpu.memory_bus_bits / 8, source))
    return max(rates, key=lambda rate: rate[0] or 0, default=(None, "not stated for this device"))


def _l2(known: datasheets.Part | None, gpu: Accelerator) -> tuple[MemoryLevel, ...]:
    sms = gpu.multiprocessors or (known.multiprocessors if known else None)
    clock = max(gpu.max_clock_hz or 0.0, known.boost_hz if known else 0.0)
    if not gpu.l2_bytes or not sms or not clock or gpu.kind != "cuda":
        return ()
    source = f"{sms} multiprocessors x {clock / 1e6:.0f} MHz x {_L2_BYTES_PER_CLOCK} B a clock"
    return (MemoryLevel("L2", float(gpu.l2_bytes), sms * clock * _L2_BYTES_PER_CLOCK, source),)


def cpu_spec(processor: host_facts.Processor, memory_bytes: float, name: str) -> DeviceSpec:
    """Return upper bounds for a CPU from its cores, instructions and clock.

    Parameters
    ----------
    processor : Processor
    memory_bytes : float
        What this process may use.
    name : str

    Notes
    -----
    Sources: Intel's and AMD's optimization manuals (two FMA pipes of the widest vector, AMX at
    1,024 bfloat16 operations a clock), Arm's for NEON (four 128-bit pipes) and SVE (two 512-bit
    pipes at most). Apple's matrix unit is not documented: no figure.
    """
    # some drivers report the base clock as the highest one, and then run above it
    clock = max(processor.clock_hz or 0.0, processor.max_clock_hz or _FASTEST_CLOCK_HZ)
    cores, simd = processor.usable_cores, processor.simd
    origin = (
        "reported by the system"
        if processor.max_clock_hz
        else "no processor on the market is faster"
    )
    why = f"{plural(cores, 'core')} x {clock / 1e9:.2f} GHz ({origin})"
    rates = {} if processor.name.startswith("Apple") else _cpu_rates_per_clock(simd)
    flops = {
        dtype: Figure(rate * cores * clock, f"{why} x {rate} FLOP a clock")
        for dtype, rate in rates.items()
    }
    # Bytes that one core moves a clock, reads and writes together. L1: two loads and two stores of
    # 64 B, or three loads and two stores of 32 B. L2: a line each way. L3: half a line each way.
    widths = {"L1d": 256 if {"avx512f", "sve"} & set(simd) else 160, "L2": 128, "L3": 64}
    levels = [
        MemoryLevel(
            cache.level,
            float(cache.total_bytes),
            cores * clock * widths[cache.level],
            f"{why} x {widths[cache.level]} B a clock",
        )
        for cache in processor.caches
        if cache.level in widths
    ]
    memory = MemoryLevel(
        "DRAM", memory_bytes, None, "not stated by the system; devices.ceilings measures it"
    )
    evidence = Evidence.modelled(
        "every core's widest units busy each clock; each hardware thread counted as a core",
        "vendors' optimization manuals",
        device=name,
    )
    return DeviceSpec("cpu", "cpu", name, flops, (*levels, memory), evidence)


def _cpu_rates_per_clock(simd: Sequence[str]) -> dict[str, int]:
    """Return the most FLOP per clock of one core by dtype; empty for instruction sets that are not
    known.
    """
    has = set(simd)
    float32 = next((rate for word, rate in _CPU_FLOAT32.items() if word in has), None)
    if float32 is None:
        return {}
    bfloat16 = 2 * float32 if has & {"avx512_bf16", "bf16"} else float32
    float16 = 2 * float32 if has & {"avx512_fp16", "asimdhp"} else float32
    return {
        "float64": float32 // 2,
        "float32": float32,
        "bfloat16": _AMX if "amx_bf16" in has else bfloat16,
        "float16": _AMX if "amx_fp16" in has else float16,
        "int8": 2 * _AMX if "amx_int8" in has else 4 * float32,
    }
