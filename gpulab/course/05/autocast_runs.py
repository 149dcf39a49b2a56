"""05.11: what did autocast leave in float32?"""

# %% exercise
id = "05.11"
title = "what did autocast leave in float32?"
answer_name = "autocast_runs"
loads = ["torch", "torch.optim", "torch._dynamo", "torch._inductor", "torch.utils.data", "torch.utils.flop_counter"]

# %% stub
autocast_runs = {"linear": ..., "relu": ..., "layer_norm": ..., "softmax": ..., "cross_entropy": ...}

# %% hint
# Which of these is a matrix product? Which ones add up many numbers, or take exponentials or
# logarithms?

# %% hint
# Ask the two tables above: `cpu.row("softmax").policy`, and the same with `cuda`.

# %% solution
autocast_runs = {"linear": ("lower", "lower"), "relu": ("inputs", "inputs"), "layer_norm": ("inputs", "float32"), "softmax": ("inputs", "float32"), "cross_entropy": ("float32", "float32")}

# %% check
from collections.abc import Mapping
from typing import Any
from gpulab import precision
from gpulab.lessons import checking
from gpulab.lessons.content import NotAttempted, Refused

OPERATORS = ("linear", "relu", "layer_norm", "softmax", "cross_entropy")
_CHOICES = ("lower", "float32", "inputs")
_WHY = {
    "linear": "a matrix product: autocast is made for those",
    "relu": "it is on no list, so it runs in the type that it is given",
    "layer_norm": "it sums squares over a row: CUDA's list keeps it in float32, the CPU's list leaves it alone",
    "softmax": "it adds up exponentials, which differ by many powers of two: CUDA's list keeps it in float32, the CPU's list leaves it alone",
    "cross_entropy": "a loss, with small differences of logarithms: both lists keep it in float32",
}


def _truth() -> dict[str, tuple[str, str]]:
    """Return what each operator does on the CPU (observed now) and on CUDA (PyTorch's lists)."""
    from gpulab.precision._autocast import documented

    seen = precision.autocast_policy("cpu", "bfloat16", OPERATORS)
    return {name: (seen.row(name).policy or documented("cpu", name), documented("cuda", name)) for name in OPERATORS}


def check(answer: Any) -> str:
    if not isinstance(answer, Mapping):
        raise Refused(f"Your answer is {checking.describe(answer)}; the check expects a dict from each operator to two words.")
    missing = [name for name in OPERATORS if name not in answer]
    if missing:
        raise Refused(f"{', '.join(missing)}: missing. The check expects all of {', '.join(OPERATORS)}.")
    truth = _truth()
    for name in OPERATORS:
        said = answer[name]
        if checking.is_stub(said) or (isinstance(said, (tuple, list)) and any(map(checking.is_stub, said))):
            raise NotAttempted
        pair = isinstance(said, (tuple, list)) and len(said) == 2
        if not pair or not all(isinstance(word, str) and word.strip().lower() in _CHOICES for word in said):
            raise Refused(
                f"{name}: {checking.describe(said)}; the check expects two of 'lower', 'float32' and 'inputs': the CPU's, then CUDA's."
            )
        words = (word.strip().lower() for word in said)
        for where, word, right in zip(("the CPU", "CUDA"), words, truth[name], strict=True):
            if word != right:
                raise Refused(f"{name} on {where} is not {word!r}. {_hint(name, word, right)}")
    return "All ten are right. " + " ".join(f"{name}: {_WHY[name]}." for name in OPERATORS)


def _hint(name: str, word: str, right: str) -> str:
    if word == "lower":
        return "Autocast does not convert the model: only the operators on its list run in the lower precision, products above all."
    if right == "inputs":
        return f"Ask the table: it is on no list there. {_WHY[name][0].upper() + _WHY[name][1:]}."
    return f"Ask the table. {_WHY[name][0].upper() + _WHY[name][1:]}."

# %% wrong: does not convert the model
autocast_runs = {"linear": ("lower", "lower"), "relu": ("lower", "lower"), "layer_norm": ("lower", "lower"), "softmax": ("lower", "lower"), "cross_entropy": ("lower", "lower")}

# %% wrong: on no list there
autocast_runs = {"linear": ("lower", "lower"), "relu": ("inputs", "inputs"), "layer_norm": ("float32", "float32"), "softmax": ("float32", "float32"), "cross_entropy": ("float32", "float32")}

# %% wrong: CUDA's list keeps it in float32
autocast_runs = {"linear": ("lower", "lower"), "relu": ("inputs", "inputs"), "layer_norm": ("inputs", "inputs"), "softmax": ("inputs", "inputs"), "cross_entropy": ("float32", "float32")}

# %% wrong: A loss
autocast_runs = {"linear": ("lower", "lower"), "relu": ("inputs", "inputs"), "layer_norm": ("inputs", "float32"), "softmax": ("inputs", "float32"), "cross_entropy": ("inputs", "inputs")}

# %% wrong: missing
autocast_runs = {"linear": ("lower", "lower")}

# %% wrong: a dict
autocast_runs = "lower"
