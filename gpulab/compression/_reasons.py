"""Why a lighter model is not faster, from what is known of it: how its weights are stored and
computed, and what was measured.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gpulab.compression import integer_layers
from gpulab.compression.results import Reason
from gpulab.units import format_bytes_per_second, format_flops_per_second, format_seconds, plural

# From bytes moved to the best rate, in bytes per second, that the device's memory has shown for
# them; None where that is not known.
Roof = Callable[[int], float | None]

# Zeros that training left by chance, and a few per cent of them, change nothing that anybody would
# ask about.
_MANY = 0.05
# A single item's call as a share of a batch's: from here on the batch's work is the smaller part.
# One that took longer than the batch was disturbed, and tells nothing.
_STARTING, _DISTURBED = 0.5, 1.2
# FLOPs that fell by so much more than the time did need an explanation.
_MORE = 1.3
# A share of the memory's best rate: below it, moving bytes is no great part of the time.
_MEMORY = 0.3


@dataclass(frozen=True)
class Facts:
    """The facts about a model from which reasons are derived."""

    label: str
    batch: int
    forms: tuple[str, ...]
    zero_share: float
    flops: float  # of a batch
    operators: int | None
    moved_bytes: int | None
    seconds: float
    single_seconds: float
    speedup: float | None
    speedup_low: float | None  # the lower end of its interval; None without one


def forms(model: Any, finished: Any) -> tuple[str, ...]:
    """Return how the layers of a model are stored and computed."""
    import torch
    from torch.nn.utils import parametrize

    from gpulab.compression import _modules
    from gpulab.compression._prune import zero_share

    found: dict[str, None] = {}
    kinds = {
        _modules.Integer: "integers",
        _modules.Quantized: "integers in float",
        _modules.Sparse: "csr",
    }
    for each in finished.modules():
        if type(each) in kinds:
            found[kinds[type(each)]] = None
        elif isinstance(each, torch.nn.Linear) and type(each.weight.data) is not torch.Tensor:
            found["2:4" if "SemiStructured" in type(each.weight.data).__name__ else "torchao"] = (
                None
            )
    for each in model.modules():
        if parametrize.is_parametrized(each, "weight") and any(
            isinstance(p, _modules.Codebook) for p in each.parametrizations.weight
        ):
            found["shared"] = None
    if (
        "csr" not in found
        and "2:4" not in found
        and "torchao" not in found
        and (zero_share(finished) or 0.0) > _MANY
    ):
        found["dense zeros"] = None
    return tuple(found)


def reasons(first: Facts, one: Facts, roof: Roof) -> tuple[Reason, ...]:
    """Return why ``one`` is not faster than ``first``, or not by as much as its FLOPs fell; nothing
    where the gain has no interval.
    """
    if one.speedup is None or one.speedup_low is None:
        return ()
    fell = first.flops / one.flops if one.flops else 1.0
    not_faster = one.speedup_low <= 1
    found = _of_forms(one) if not_faster else []
    if "csr" not in one.forms and fell > _MORE * max(one.speedup, 1 / _MORE):
        found.append(_of_work(first, one, fell, roof))
    elif not_faster and not found:
        found.append(_of_same_work(first, one, fell, roof))
    return tuple(found)


def _of_forms(one: Facts) -> list[Reason]:
    said = []
    if "dense zeros" in one.forms:
        text = (
            f"{one.zero_share:.0%} of its weights are zero, but stored like any other number: each "
            "zero is multiplied."
        )
        if _is_starting(one):
            text += f" And {_starting(one)}, so that fewer products would hardly change the time."
        said.append(Reason("dense zeros", text))
    if "shared" in one.forms:
        said.append(
            Reason(
                "unpacked",
                "Its shared weights are unpacked when the model is loaded; the products are the "
                "same as before.",
            )
        )
    if "integers in float" in one.forms:
        said.append(
            Reason(
                "converted",
                "Its integers are turned into float32 at every call, which is extra work; no "
                "integer instruction is used.",
            )
        )
    if "csr" in one.forms:
        said.append(
            Reason(
                "indices",
                "CSR reads an index with every weight and accesses memory irregularly, and a "
                "convolution is laid out as a matrix first.",
            )
        )
    if "integers" in one.forms:
        said.append(
            Reason(
                "rounding",
                "Every layer must round its inputs to integers first; layers this small do not "
                "recover that time.",
            )
        )
        if integer_layers.activation_bits() < 8:
            said.append(
                Reason(
                    "no instructions",
                    "PyTorch reports no AVX-512 VNNI instructions on this CPU; those multiply four "
                    "8-bit numbers at once.",
                )
            )
    if "torchao" in one.forms:
        said.append(
            Reason(
                "no instructions",
                "Without torch.compile, torchao converts before each product; it is written for "
                "torch.compile and GPUs.",
            )
        )
    return said


def _of_work(first: Facts, one: Facts, fell: float, roof: Roof) -> Reason:
    """Return why FLOPs fell and the time did not follow: starting operators, moving bytes, or
    products that are small.
    """
    # A gain whose interval holds 1 is none.
    gained = one.speedup if one.speedup_low is not None and one.speedup_low > 1 else None
    less = (
        f"Its FLOPs fell to 1/{fell:.3g}, its time "
        f"{f'to 1/{gained:.3g}' if gained is not None else 'did not'}"
    )
    if _is_starting(one):
        return Reason("starting", f"{less}: {_starting(one)}, not of arithmetic.")
    memory = _of_memory(first, one, roof)
    return Reason(
        "memory" if memory else "rate",
        f"{less}: {_rates(first, one)}{memory or ' Smaller products often reach a lower rate.'}",
    )


def _is_starting(one: Facts) -> bool:
    """Return whether a single item takes most of a batch's time: what both have in common is that
    operators are started.
    """
    return (
        one.batch > 1 and _STARTING * one.seconds <= one.single_seconds <= _DISTURBED * one.seconds
    )


def _starting(one: Facts) -> str:
    many = plural(one.operators, "operator") if one.operators else "operators"
    return (
        f"{one.batch} items take {format_seconds(one.seconds)} and a single one takes "
        f"{format_seconds(one.single_seconds)}: most of that is the time of starting {many}"
    )


def _of_same_work(first: Facts, one: Facts, fell: float, roof: Roof) -> Reason:
    """Return why a model with about as many FLOPs, or more, takes as long or longer."""
    work = "about as many FLOPs" if 1 / _MORE < fell < _MORE else f"{1 / fell:.3g} times the FLOPs"
    more = bool(first.operators and one.operators and one.operators > first.operators)
    parts = f" in {one.operators} operators, not {first.operators}" if more else ""
    return Reason(
        "elsewhere", f"It does {work}{parts}: {_rates(first, one)}{_of_memory(first, one, roof)}"
    )


def _rates(first: Facts, one: Facts) -> str:
    reached, before = (format_flops_per_second(each.flops / each.seconds) for each in (one, first))
    return f"it reaches {reached}, the first model {before}."


def _of_memory(first: Facts, one: Facts, roof: Roof) -> str:
    """Return that memory takes a good part of the time, where its bytes are more than before for
    each FLOP, and come near the best rate.
    """
    if not first.moved_bytes or not one.moved_bytes:
        return ""
    a, b = first.flops / first.moved_bytes, one.flops / one.moved_bytes
    best = roof(one.moved_bytes) if b < a / _MORE else None
    rate = one.moved_bytes / one.seconds
    if best is None or rate < _MEMORY * best:
        return ""
    return (
        f" Its operators do {b:.3g} FLOP for each byte that they move, not {a:.3g}, and move "
        f"{format_bytes_per_second(rate)}; the best rate measured for the device's memory is "
        f"{format_bytes_per_second(best)}, so memory takes a large part of the time."
    )
