"""08.12: three models, three machines."""

# %% exercise
id = "08.12"
title = "three models, three machines"
answer_name = "choices"
limit_seconds = 240.0
loads = ["torch", "torch.optim", "torch._dynamo", "torch.distributed.fsdp", "torch.distributed.tensor.parallel", "ipyparallel"]

# %% stub
choices = {"A": ..., "B": ..., "C": ...}  # of "ddp", "zero1", "zero2", "zero3", "tensor"

# %% hint
# Without sharding each parameter takes 16 bytes; exercise 08.10 shows what each stage leaves. Start
# with the strategy that sends least.

# %% hint
# ddp and zero2 send the same number of bytes. zero3 sends 1.5 times that, and so does PyTorch's
# zero1. Tensor parallelism sends inside every layer.

# %% solution
choices = {"A": "ddp", "B": "zero2", "C": "zero3"}

# %% check
import functools
from collections.abc import Mapping
from typing import Any, NamedTuple
from gpulab import networks, parallel
from gpulab.devices.memory_sizes import memory_bytes
from gpulab.lessons import checking
from gpulab.lessons.content import NotAttempted, Refused
from gpulab.parallel.rank_results import RankMemory
from gpulab.units import format_bytes

# The transformers of the notebook's table: four wide layers, so that predicting their memory takes seconds.
VOCABULARY, CONTEXT, HEADS, LAYERS = 32_000, 1024, 16, 4


class Case(NamedTuple):
    """A model and a machine: the features of a token, the number of GPUs, the GPU's name in the data sheets, and the link between the GPUs."""

    letter: str
    width: int
    gpus: int
    gpu: str
    link: str


CASES = {
    "A": Case("A", 1024, 4, "GeForce RTX 4090", "PCIe"),
    "B": Case("B", 5120, 8, "A100 40GB", "PCIe"),
    "C": Case("C", 13312, 8, "H100 SXM", "NVLink"),
}
STRATEGIES = ("ddp", "zero1", "zero2", "zero3", "tensor")
# Strategies that send no more than an all-reduce of the gradients; the one that needs the most memory comes first.
_CHEAP = ("ddp", "zero2")


@functools.cache
def rank_memory(letter: str, strategy: str) -> RankMemory:
    """Return the memory that a training step takes on a rank, with float32 and Adam; MODELLED.

    A rank computes one sequence of 1,024 tokens: its own part of the batch, or with "tensor" the whole batch.
    """
    import torch

    case = CASES[letter]
    tokens = torch.zeros(1, CONTEXT, dtype=torch.int64)
    return parallel.predict_ranks(
        lambda: networks.transformer(VOCABULARY, case.width, HEADS, LAYERS, context=CONTEXT), tokens, tokens,
        strategy=strategy, ranks=case.gpus,
    )  # fmt: skip


def needed_bytes(letter: str, strategy: str) -> int:
    """Return the memory that each GPU of a case must have for a strategy, including the margin."""
    return rank_memory(letter, strategy).needed_bytes()


def _sum(letter: str, strategy: str) -> str:
    """Return a text with the parts that ``needed_bytes`` is the sum of."""
    memory = rank_memory(letter, strategy)
    states = sum(memory.peak_by_category[part] for part in ("parameters", "gradients", "optimizer"))
    margin = memory.needed_bytes() - memory.peak_bytes - memory.scratch_bytes
    parts = (states, memory.peak_bytes - states, memory.scratch_bytes, margin)
    return (
        "{} for parameters, gradients and Adam, {} for activations and communication, up to {} inside operators, and {} of margin for "
        "what no prediction sees"
    ).format(*map(format_bytes, parts))


def check(answer: Any) -> str:
    if not isinstance(answer, Mapping) or set(answer) != set(CASES):
        raise Refused(f'Your answer is {checking.describe(answer)}; the check expects {{"A": ..., "B": ..., "C": ...}}.')
    if any(checking.is_stub(each) for each in answer.values()):
        raise NotAttempted
    chosen: dict[str, str] = {}
    for letter in CASES:
        name = answer[letter]
        if not isinstance(name, str) or name.strip().lower() not in STRATEGIES:
            raise Refused(f"For {letter} you gave {checking.describe(name)}; the check expects one of {', '.join(STRATEGIES)}.")
        chosen[letter] = name.strip().lower()
    return " ".join(_judged(CASES[letter], chosen[letter]) for letter in CASES)


def _judged(case: Case, strategy: str) -> str:
    """Return a sentence about a right choice. Refuse a choice that does not fit, sends more than necessary, or needs a faster link."""
    if strategy == "tensor" and case.link != "NVLink":
        raise Refused(
            f"{case.letter}: tensor parallelism makes every layer wait for sums over all GPUs. Nothing hides that wait, it grows with the "
            f"batch, and {case.link} is slow. Use it with fast links such as NVLink, for models that need it."
        )
    needed, there = needed_bytes(case.letter, strategy), memory_bytes(case.gpu)
    said = f"{case.letter}: with {strategy} each of {case.gpus} GPUs needs {format_bytes(needed)} of {format_bytes(there)}"
    if needed > there:
        raise Refused(f"{said}: {_sum(case.letter, strategy)}. So it does not fit. Which part does the next stage split?")
    if strategy not in _CHEAP:
        lighter = next((name for name in _CHEAP if needed_bytes(case.letter, name) <= there), None)
        if lighter is not None:
            raise Refused(
                f"{said}. It fits, but {lighter} fits as well ({format_bytes(needed_bytes(case.letter, lighter))}) and sends less: "
                "do not pay in traffic for memory that you do not need."
            )
    return f"{said}."

# %% wrong: do not pay in traffic
choices = {"A": "zero3", "B": "zero2", "C": "zero3"}

# %% wrong: sends less
choices = {"A": "ddp", "B": "zero1", "C": "zero3"}

# %% wrong: of margin
choices = {"A": "ddp", "B": "ddp", "C": "zero3"}

# %% wrong: it does not fit
choices = {"A": "ddp", "B": "zero2", "C": "zero2"}

# %% wrong: every layer wait
choices = {"A": "tensor", "B": "zero2", "C": "zero3"}

# %% wrong: one of ddp
choices = {"A": "fsdp", "B": "zero2", "C": "zero3"}

# %% wrong: the check expects
choices = 'ddp'
