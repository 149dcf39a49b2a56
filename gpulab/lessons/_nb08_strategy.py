"""The exercise of notebook 08 on choosing a strategy: three models on three machines, judged by predicted memory and by what is sent."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpulab import networks, parallel
from gpulab.devices.memory_sizes import memory_bytes
from gpulab.evidence import Evidence
from gpulab.lessons import _guard
from gpulab.lessons.content import Exercise, NotAttempted, Refused, Usual
from gpulab.parallel.rank_results import RankMemory
from gpulab.results import Result
from gpulab.units import format_bytes

STRATEGIES = ("ddp", "zero1", "zero2", "zero3", "tensor")
_VOCABULARY, _CONTEXT, _HEADS, _LAYERS = 32_000, 1024, 16, 4
# Those that send no more than an all-reduce of the gradients; the one that holds most first.
_CHEAP = ("ddp", "zero2")


@dataclass(frozen=True)
class Case(Result):
    """One model on one machine.

    Attributes
    ----------
    letter : str
    width : int
        Features of a token; the transformer has four layers, so that predicting its memory takes seconds.
    gpus : int
    gpu : str
        As the data sheets name it.
    gpu_bytes : int
        The memory of one.
    link : str
        What joins the GPUs.
    """

    letter: str
    width: int
    gpus: int
    gpu: str
    gpu_bytes: int
    link: str

    @property
    def parameter_count(self) -> int:
        """Of the whole model: 12 width squared and 13 width a layer, embedding and output, positions, the last norm."""
        return _LAYERS * (12 * self.width**2 + 13 * self.width) + (2 * _VOCABULARY + _CONTEXT + 2) * self.width


CASES = {
    letter: Case(letter, width, gpus, gpu, memory_bytes(gpu), link)
    for letter, width, gpus, gpu, link in (
        ("A", 1024, 4, "GeForce RTX 4090", "PCIe"),
        ("B", 5120, 8, "A100 40GB", "PCIe"),
        ("C", 13312, 8, "H100 SXM", "NVLink"),
    )
}


@functools.cache
def rank_memory(letter: str, strategy: str) -> RankMemory:
    """Return what a rank's step takes: one sequence of 1,024 tokens for each rank's part, float32, Adam; MODELLED."""
    import torch

    case = CASES[letter]
    tokens = torch.zeros(1, _CONTEXT, dtype=torch.int64)
    return parallel.predict_ranks(
        lambda: networks.transformer(_VOCABULARY, case.width, _HEADS, _LAYERS, context=_CONTEXT), tokens, tokens,
        strategy=strategy, ranks=case.gpus,
    )  # fmt: skip


def needed_bytes(letter: str, strategy: str) -> int:
    """Return what a GPU must have for it, with the margin."""
    return rank_memory(letter, strategy).needed_bytes()


def _sum(letter: str, strategy: str) -> str:
    """Return what that is made of."""
    memory = rank_memory(letter, strategy)
    states = sum(memory.peak_by_category[part] for part in ("parameters", "gradients", "optimizer"))
    margin = memory.needed_bytes() - memory.peak_bytes - memory.scratch_bytes
    parts = (states, memory.peak_bytes - states, memory.scratch_bytes, margin)
    return (
        "{} for parameters, gradients and Adam, {} for activations and what is on its way, up to {} inside operators, and {} of margin for "
        "what no prediction sees"
    ).format(*map(format_bytes, parts))


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
        """Return one row a case."""
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
        return ("", "parameters", "machine", "memory of each GPU", "joined by"), rows


def three_cases() -> ThreeCases:
    """Return the three models and machines of the exercise on choosing a strategy."""
    words = "made up for the exercise: transformers of four wide layers, float32, Adam, one sequence of 1,024 tokens for each rank"
    return ThreeCases(tuple(CASES.values()), Evidence.modelled(words, "memory of the GPUs from NVIDIA's data sheets"))


def _check_choices(answer: Any) -> str:
    if not isinstance(answer, Mapping) or set(answer) != set(CASES):
        raise Refused(f'Your answer is {_guard.describe(answer)}; the check expects {{"A": ..., "B": ..., "C": ...}}.')
    if any(_guard.is_stub(each) for each in answer.values()):
        raise NotAttempted
    for letter in CASES:
        if not isinstance(answer[letter], str) or answer[letter] not in STRATEGIES:
            raise Refused(f"For {letter} you gave {_guard.describe(answer[letter])}; the check expects one of {', '.join(STRATEGIES)}.")
    return " ".join(_judged(CASES[letter], answer[letter]) for letter in CASES)


def _judged(case: Case, strategy: str) -> str:
    """Return a sentence on a choice that is right; refuse one that does not fit, or that sends what it need not."""
    if strategy == "tensor" and case.link != "NVLink":
        raise Refused(
            f"{case.letter}: tensor parallelism makes every layer wait for sums over all GPUs, which nothing hides; over {case.link} that "
            "is most of a step. Keep it for models that need it, and for fast links such as NVLink."
        )
    needed, there = needed_bytes(case.letter, strategy), case.gpu_bytes
    said = f"{case.letter}: with {strategy} each of {case.gpus} GPUs needs {format_bytes(needed)} of {format_bytes(there)}"
    if needed > there:
        raise Refused(f"{said}: {_sum(case.letter, strategy)}. So it does not fit. What of it does the next stage split?")
    if strategy == "zero1":  # right by its definition, which needs no more than an all-reduce's traffic
        return f"{said}. (PyTorch's zero1 sends 1.5 times as much as ddp; zero2 sends as much as ddp.)"
    if strategy not in _CHEAP:
        lighter = next((name for name in _CHEAP if needed_bytes(case.letter, name) <= there), None)
        if lighter is not None:
            raise Refused(
                f"{said}. It fits, but {lighter} fits as well ({format_bytes(needed_bytes(case.letter, lighter))}) and sends less: "
                "do not pay in traffic for memory that you have."
            )
    return f"{said}."


CHOICE = Exercise(
    id="08.12",
    title="three models, three machines",
    answer_name="choices",
    stub='choices = {"A": ..., "B": ..., "C": ...}  # of "ddp", "zero1", "zero2", "zero3", "tensor"',
    solution='choices = {"A": "ddp", "B": "zero2", "C": "zero3"}',
    hints=(
        "16 bytes for each parameter without sharding; exercise 08.10 has what each stage leaves. Begin with the one that sends least.",
        "ddp and zero2 send the same. zero3 sends 1.5 times as much, and so does zero1 as PyTorch has it. Tensor parallelism sends inside "
        "every layer.",
    ),
    check=_check_choices,
    usual=(
        Usual('choices = {"A": "zero3", "B": "zero1", "C": "zero3"}', "do not pay in traffic"),
        Usual('choices = {"A": "ddp", "B": "ddp", "C": "zero3"}', "of margin"),
        Usual('choices = {"A": "zero1", "B": "zero1", "C": "zero2"}', "it does not fit"),
        Usual('choices = {"A": "tensor", "B": "zero1", "C": "zero3"}', "every layer wait"),
        Usual('choices = {"A": "fsdp", "B": "zero1", "C": "zero3"}', "one of ddp"),
        Usual("choices = 'ddp'", "the check expects"),
    ),
    limit_seconds=240.0,
    loads=("torch", "torch.optim", "torch._dynamo", "torch.distributed.fsdp", "torch.distributed.tensor.parallel", "ipyparallel"),
)
