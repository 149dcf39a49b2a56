"""Functions of notebook 01: two processors side by side, and the latency curve of the learner's
machine.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from gpulab import devices, hierarchy, models
from gpulab.devices import Device, Processor, datasheets
from gpulab.errors import InputError, MissingLibraryError
from gpulab.evidence import Badge, Evidence, Note
from gpulab.hierarchy import Latency
from gpulab.lessons._recorded_gpus import accelerator_of, limits_of, recorded_gpus, with_captions
from gpulab.results import Result
from gpulab.units import format_bytes, format_bytes_per_second, format_flops_per_second, plural

# The GPU that machines without one are compared with: the one that recordings are made on.
_REFERENCE = "H200"
_REGISTER_BYTES = 4
# Bytes of a vector register and their number, by the widest instruction set (Intel SDM vol. 1; Arm
# ARM, Advanced SIMD).
_VECTORS = {
    "avx512f": (64, 32),
    "avx2": (32, 16),
    "avx": (32, 16),
    "neon": (16, 32),
    "asimd": (16, 32),
    "sse2": (16, 16),
}
_curve: Latency | None = None


@dataclass(frozen=True)
class SideBySide(Result):
    """Your CPU compared with a GPU.

    Attributes
    ----------
    cpu, gpu : str
        Their names.
    rows : tuple of (str, str, str)
        Name of the figure, value of the CPU, value of the GPU.
    cpu_evidence, evidence : Evidence
        Of each side; without a GPU here, the GPU's is from a recording or a data sheet.
    notes : tuple of Note
        What disturbed the measurement of the rates.
    """

    cpu: str
    gpu: str
    rows: tuple[tuple[str, str, str], ...]
    cpu_evidence: Evidence
    evidence: Evidence
    notes: tuple[Note, ...] = ()

    def __repr__(self) -> str:
        return f"<{self.cpu} beside {self.gpu}: {plural(len(self.rows), 'figure')}>"

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        """Return one row a figure, and the notes."""
        notes = [(f"note: {note.code}", note.sentence, "") for note in self.notes]
        return ("", f"CPU: {self.cpu}", f"GPU: {self.gpu}"), [*self.rows, *notes]

    def caption(self) -> str:
        """Return the sources of the CPU's and of the GPU's figures, one line each."""
        shown = self.evidence.badge is not Badge.MODELLED
        gpu = (
            "the GPU's rates (the rest by its driver and its compute capability)"
            if shown
            else "the GPU"
        )
        sides = (
            ("the CPU's rates (the rest as the system reports it)", self.cpu_evidence),
            (gpu, self.evidence),
        )
        return "\n".join(
            f"{each.badge} · {name}: {each.sentence.removeprefix(str(each.badge)).strip(' ·')}"
            for name, each in sides
        )

    def _repr_html_(self) -> str:
        return with_captions(self)


def side_by_side() -> SideBySide:
    """Return your CPU compared with your GPU; without one, with a recorded GPU or the data sheet of
    an NVIDIA H200.
    """
    processor, ceilings = devices.machine().processor, devices.ceilings("cpu")
    where = devices.default()
    name, figures, evidence, doubts = (
        _own(where) if where.kind == "cuda" else _of_recording() or _of_data_sheet()
    )
    lanes, held = _vector(processor)
    cpu = (
        _cores(processor),
        str(lanes) if lanes else "not reported",
        "1 or 2",
        f"{format_bytes(held)} of vector registers" if held else "not reported",
        ", ".join(map(str, processor.caches)) or "not reported",
        f"{format_bytes_per_second(ceilings.bandwidth())} (all cores)",
        f"{format_flops_per_second(ceilings.flops_per_second['float32'])} (all cores, matrix "
        "product)",
    )
    names = (
        "cores (of a GPU: streaming multiprocessors)",
        "float32 numbers in a vector register (of a GPU: float32 units of one)",
        "resident threads of one core",
        "registers of one core",
        "caches (of a GPU: shared memory of each multiprocessor, and L2)",
        "main memory bandwidth",
        "float32 arithmetic",
    )
    rows = tuple(zip(names, cpu, figures, strict=True))
    told = {note.code for note in ceilings.notes}
    notes = (
        *_pointing("cpu", ceilings.notes),
        *(note for note in _pointing(str(where), doubts) if note.code not in told),
    )
    return SideBySide(processor.name, name, rows, ceilings.evidence, evidence, notes)


def _pointing(device: str, notes: Sequence[Note]) -> list[Note]:
    """Let the notes name the call that measures afresh: the rates are kept, and ``side_by_side``
    itself has nothing to refresh.
    """
    call = f'gl.devices.ceilings("{device}", refresh=True), then run this cell again,'
    return [
        dataclasses.replace(
            note, sentence=note.sentence.replace("with refresh=True", f"with {call}")
        )
        for note in notes
    ]


def _cores(processor: Processor) -> str:
    """Return how many cores this process may use: two threads of one core are listed as two
    processors by the system.
    """
    threads, cores = processor.usable_cores, processor.physical_cores
    return (
        f"{threads}" if cores is None or cores >= threads else f"{cores} (with {threads} threads)"
    )


def _vector(processor: Processor) -> tuple[int, int]:
    """Return the float32 numbers of a vector register, and the bytes that all of a core's hold;
    zeros where nothing is known.
    """
    for word, (nbytes, count) in _VECTORS.items():
        if word in processor.simd:
            return nbytes // 4, nbytes * count
    return (4, 512) if processor.architecture in ("arm64", "aarch64") else (0, 0)


def _figures(
    capability: str, multiprocessors: int, l2_bytes: int | None, bandwidth: float, flops: float
) -> tuple[str, ...]:
    sm, lanes = limits_of(capability), _lanes(capability)
    held = (
        (
            f"{sm.warps * 32:,}",
            format_bytes(sm.registers * _REGISTER_BYTES),
            format_bytes(sm.shared_bytes),
        )
        if sm
        else ("not known",) * 3
    )
    if isinstance(l2_bytes, int) and l2_bytes > 0:  # a recording may lack it
        held = (*held[:2], f"{held[2]} in each, L2 {format_bytes(l2_bytes)} for all")
    rates = format_bytes_per_second(bandwidth), format_flops_per_second(flops)
    return (f"{multiprocessors}", str(lanes) if lanes else "not known", *held, *rates)


def _lanes(capability: str) -> int:
    """The float32 units of a multiprocessor, each of which does a multiplication and an addition in
    a clock; 0 where not known.
    """
    rates = datasheets.rates_per_clock(capability)
    return rates["float32"] // 2 if rates is not None else 0


def _of_data_sheet() -> tuple[str, tuple[str, ...], Evidence, tuple[Note, ...]]:
    part = datasheets.part(_REFERENCE)
    assert part is not None
    flops = part.peaks()["float32"]
    figures = _figures(
        part.compute_capability, part.multiprocessors, None, part.bytes_per_second, flops
    )
    made = Evidence.modelled(
        "every unit busy at the highest clock",
        f"{part.source}; CUDA Programming Guide, compute capabilities",
        "upper bounds, which no program reaches",
    )
    return f"NVIDIA {part.name} (data sheet)", figures, made, ()


def _of_recording() -> tuple[str, tuple[str, ...], Evidence, tuple[Note, ...]] | None:
    """The first recorded GPU that has ceilings and tells its multiprocessors; None where there is
    none.
    """
    for recording in recorded_gpus().values():
        gpu = accelerator_of(recording)
        try:
            roofs = models.roofline(recording)
            rates = (
                roofs.memory_roof().bytes_per_second,
                roofs.arithmetic_roof("float32").flops_per_second,
            )
        except InputError:  # a recording without these ceilings
            continue
        if gpu is not None:
            figures = _figures(
                str(gpu["compute_capability"]),
                int(gpu["multiprocessors"]),
                gpu.get("l2_bytes"),
                *rates,
            )
            return roofs.device, figures, roofs.evidence, ()
    return None


def _own(where: Device) -> tuple[str, tuple[str, ...], Evidence, tuple[Note, ...]]:
    gpu, shown = devices.machine().accelerators[where.index or 0], devices.ceilings(where)
    # float32 itself, as of the CPU: what Tensor Cores add is notebook 03's.
    rates = shown.bandwidth(), shown.flops_per_second.get("float32", 0.0)
    return (
        where.name,
        _figures(gpu.compute_capability or "", gpu.multiprocessors or 1, gpu.l2_bytes, *rates),
        shown.evidence,
        shown.notes,
    )


def memory_curve(again: bool = False) -> Latency:
    """Return the latency of your CPU's memory by working set; measured once per kernel, so that the
    check uses the values that you saw.

    Parameters
    ----------
    again : bool
        Measure again, for example because other programs were running.
    """
    global _curve
    if _curve is None or again:
        _curve = hierarchy.latency(deadline=5.0)
    return _curve


def gpu_curves() -> tuple[Latency, ...]:
    """Return latency curves of GPUs: of your own CUDA GPU, measured with CuPy, else the recorded
    ones; empty if there are none.
    """
    where = devices.default()
    if where.torch_type == "cuda":
        with contextlib.suppress(MissingLibraryError):
            return (hierarchy.latency(device=where, chases=1, deadline=8.0),)
    found = (hierarchy.recorded_latency(recording) for recording in recorded_gpus().values())
    return tuple(curve for curve in found if curve is not None)
