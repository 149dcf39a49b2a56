"""Three models on three machines for an exercise of notebook 08, which asks for a strategy for
each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpulab.devices.memory_sizes import memory_bytes
from gpulab.evidence import Evidence
from gpulab.results import Result
from gpulab.units import format_bytes

VOCABULARY, CONTEXT, HEADS, LAYERS = 32_000, 1024, 16, 4


@dataclass(frozen=True)
class Case(Result):
    """One model on one machine.

    Attributes
    ----------
    letter : str
    width : int
        Features of a token; the transformer has four layers, so that predicting its memory takes
        seconds.
    gpus : int
    gpu : str
        Its name in the data sheets.
    gpu_bytes : int
        The memory of one GPU.
    link : str
        The link between the GPUs.
    """

    letter: str
    width: int
    gpus: int
    gpu: str
    gpu_bytes: int
    link: str

    @property
    def parameter_count(self) -> int:
        """Parameters of the whole model: 12 width^2 + 13 width per layer, embedding and output,
        positions, the last norm.
        """
        return (
            LAYERS * (12 * self.width**2 + 13 * self.width)
            + (2 * VOCABULARY + CONTEXT + 2) * self.width
        )


CASES = {
    letter: Case(letter, width, gpus, gpu, memory_bytes(gpu), link)
    for letter, width, gpus, gpu, link in (
        ("A", 1024, 4, "GeForce RTX 4090", "PCIe"),
        ("B", 5120, 8, "A100 40GB", "PCIe"),
        ("C", 13312, 8, "H100 SXM", "NVLink"),
    )
}


@dataclass(frozen=True)
class ThreeCases(Result):
    """The cases of the exercise, side by side.

    Attributes
    ----------
    cases : tuple of Case
    evidence : Evidence
    """

    cases: tuple[Case, ...]
    evidence: Evidence

    def __repr__(self) -> str:
        return f"<{len(self.cases)} models on {len(self.cases)} machines>"

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        """Return one row per case."""
        rows = [
            (
                case.letter,
                f"{case.parameter_count / 1e9:.2g} billion",
                f"{case.gpus} x {case.gpu}",
                format_bytes(case.gpu_bytes),
                case.link,
            )
            for case in self.cases
        ]
        return ("", "parameters", "machine", "memory of each GPU", "link"), rows


def three_cases() -> ThreeCases:
    """Return the three models and machines of the exercise on choosing a strategy."""
    words = (
        "made up for the exercise: transformers of four wide layers, float32, Adam, one sequence "
        "of 1,024 tokens for each rank"
    )
    return ThreeCases(
        tuple(CASES.values()),
        Evidence.modelled(words, "memory of the GPUs from NVIDIA's data sheets"),
    )
