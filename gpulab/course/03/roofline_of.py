"""03.12: take it home: a roofline for your own functions."""

# %% exercise
id = "03.12"
title = "take it home: a roofline for your own functions"
answer_name = "roofline_of"
live = True
loads = ["torch", "torch.utils.flop_counter"]

# %% stub
from torch.utils.flop_counter import FlopCounterMode


def roofline_of(fn, args, peak, bandwidth):
    """Return the least seconds of fn(*args), and "compute" or "memory": what limits it."""
    ...

# %% hint
# with FlopCounterMode(display=False) as counter: result = fn(*args). Afterwards
# counter.get_total_flops() is the number of FLOPs.

# %% hint
# tensor.nbytes is the size of a tensor, whatever its number format. Add up the tensors in args and
# the tensors that fn returns; an argument may also be a plain number, and a result may be a tuple.

# %% hint
# The least time is the longer of flops / peak and nbytes / bandwidth. The longer one names the limit.

# %% solution
import torch
from torch.utils.flop_counter import FlopCounterMode


def roofline_of(fn, args, peak, bandwidth):
    """Return the least seconds of fn(*args), and "compute" or "memory": what limits it."""
    with FlopCounterMode(display=False) as counter:
        result = fn(*args)
    results = result if isinstance(result, tuple) else (result,)
    tensors = [each for each in (*args, *results) if isinstance(each, torch.Tensor)]
    compute = counter.get_total_flops() / peak
    memory = sum(tensor.nbytes for tensor in tensors) / bandwidth
    return max(compute, memory), "compute" if compute > memory else "memory"

# %% check
import math
from typing import Any
from gpulab.lessons import checking
from gpulab.lessons.content import NotAttempted, Refused
from gpulab.units import format_seconds

# FLOP/s and bytes/s of a made-up processor with a ridge of 20 FLOP per byte. The arrays below are small, so that the check is quick.
_PEAK, _BANDWIDTH = 2e12, 1e11
_SAME = 0.01
_LIMITS = ("compute", "memory")


def _cases() -> list[tuple[str, Any, tuple[Any, ...], float, float]]:
    """Return (name, function, arguments, FLOPs, bytes) of each case; FLOPs and bytes are computed by hand from the shapes."""
    import torch

    def ones(*shape: int, dtype: Any = torch.float32) -> Any:
        return torch.ones(*shape, dtype=dtype)

    half = torch.bfloat16
    return [
        ("a product of two 256 x 256 matrices in float32", torch.mm, (ones(256, 256), ones(256, 256)), 2 * 256**3, 12 * 256**2),
        ("a product of 4 rows with a 256 x 256 matrix in float32", torch.mm, (ones(4, 256), ones(256, 256)), 2 * 4 * 256**2,
         4 * (256**2 + 2 * 4 * 256)),
        ("a product of two 96 x 96 matrices in bfloat16", torch.mm, (ones(96, 96, dtype=half), ones(96, 96, dtype=half)), 2 * 96**3,
         6 * 96**2),
        ("relu(x * 2 + 1) of 65,536 numbers, three operators", lambda x: torch.relu(x * 2 + 1), (ones(2**16),), 0, 8 * 2**16),
        ("a softmax of 64 rows of 128 numbers, with the dimension as a second argument", torch.softmax, (ones(64, 128), 1), 0,
         8 * 64 * 128),
        ("a 3 x 3 convolution of 16 channels", torch.conv2d, (ones(1, 16, 34, 34), ones(16, 16, 3, 3)), 2 * 9 * 16 * 16 * 32 * 32,
         4 * (16 * 34 * 34 + 9 * 256 + 16 * 32 * 32)),
        ("a sort of 32,768 numbers in bfloat16, which returns values and int64 places", torch.sort, (ones(2**15, dtype=half),), 0,
         (2 + 2 + 8) * 2**15),
    ]  # fmt: skip


def check(answer: Any) -> str:
    ask = checking.in_turn(answer)
    for what, fn, args, flops, nbytes in _cases():
        result = ask(f"For {what}", fn, args, _PEAK, _BANDWIDTH)
        if not isinstance(result, (tuple, list)) or len(result) != 2:
            raise Refused(f"Your function returned {checking.describe(result)}; the check expects two things: seconds, and a limit.")
        if any(checking.is_stub(each) for each in result):
            raise NotAttempted
        seconds = checking.number(result[0], "the least seconds")
        limit = str(result[1]).strip().lower() if isinstance(result[1], str) else ""
        compute, memory = flops / _PEAK, nbytes / _BANDWIDTH
        if not math.isclose(seconds, max(compute, memory), rel_tol=_SAME):
            raise Refused(f"For {what} your function returns {format_seconds(seconds)}. {_why(seconds, compute, memory, args)}")
        right = "compute" if compute > memory else "memory"
        if not limit.startswith(_LIMITS):
            raise Refused(f"The second value is {checking.describe(result[1])}; the check expects 'compute' or 'memory'.")
        if not limit.startswith(right):
            raise Refused(f"For {what} the time is right, but the limit is not {limit!r}: the longer of the two times names it.")
    return "Seven functions, among them products in two formats, a convolution and a result of two tensors: all times and limits are right."


def _why(seconds: float, compute: float, memory: float, args: tuple[Any, ...]) -> str:
    def like(other: float) -> bool:
        return other > 0 and math.isclose(seconds, other, rel_tol=_SAME)

    read = sum(each.nbytes for each in args if hasattr(each, "nbytes")) / _BANDWIDTH
    if compute and memory and like(compute + memory):
        return "That is the sum of both times. Computing and moving happen at the same time, so the longer one counts."
    if compute < memory and (like(compute) or (not compute and not seconds)):
        return "That is the time of the arithmetic alone. Moving the bytes takes longer."
    if compute > memory and like(memory):
        return "That is the time of the bytes alone. The arithmetic takes longer. (The counter sees only what runs inside its with block.)"
    if compute > memory and like(compute / 2):
        return "That is half of the arithmetic: a multiplication and an addition count as two FLOP."
    if compute < memory and like(read):
        return "That counts the arguments only. The results are written to memory as well."
    if compute < memory and like(memory - read):
        return "That counts the results only. The arguments are read from memory as well."
    if not compute and like(3 * memory):
        return "That counts what lies between the operators as well. Only the arguments and what fn returns count."
    if like(2 * memory) or like(memory / 2) or like(memory / 4):
        return "The size of a number depends on its format: 4 bytes in float32, 2 in bfloat16, 8 in int64. tensor.nbytes knows it."
    if like(min(compute, memory)):
        return "That is the shorter of the two times. The longer one counts."
    return (
        f"The arithmetic takes {format_seconds(compute)} at this peak and the bytes {format_seconds(memory)} at this bandwidth: "
        "the longer one counts. Are all tensors counted, arguments and results, each with its own format?"
    )

# %% wrong: The size of a number depends on its format
import torch
from torch.utils.flop_counter import FlopCounterMode


def roofline_of(fn, args, peak, bandwidth):
    with FlopCounterMode(display=False) as counter:
        result = fn(*args)
    results = result if isinstance(result, tuple) else (result,)
    tensors = [each for each in (*args, *results) if isinstance(each, torch.Tensor)]
    compute, memory = counter.get_total_flops() / peak, sum(4 * t.numel() for t in tensors) / bandwidth
    return max(compute, memory), "compute" if compute > memory else "memory"

# %% wrong: counts the arguments only
import torch
from torch.utils.flop_counter import FlopCounterMode


def roofline_of(fn, args, peak, bandwidth):
    with FlopCounterMode(display=False) as counter:
        fn(*args)
    compute = counter.get_total_flops() / peak
    memory = sum(t.nbytes for t in args if isinstance(t, torch.Tensor)) / bandwidth
    return max(compute, memory), "compute" if compute > memory else "memory"

# %% wrong: the sum of both times
from torch.utils.flop_counter import FlopCounterMode


def roofline_of(fn, args, peak, bandwidth):
    with FlopCounterMode(display=False) as counter:
        result = fn(*args)
    compute = counter.get_total_flops() / peak
    memory = (sum(t.nbytes for t in args) + result.nbytes) / bandwidth
    return compute + memory, "compute" if compute > memory else "memory"

# %% wrong: the arithmetic alone
from torch.utils.flop_counter import FlopCounterMode


def roofline_of(fn, args, peak, bandwidth):
    with FlopCounterMode(display=False) as counter:
        fn(*args)
    return counter.get_total_flops() / peak, "compute"

# %% wrong: the limit is not 'memory'
import torch
from torch.utils.flop_counter import FlopCounterMode


def roofline_of(fn, args, peak, bandwidth):
    with FlopCounterMode(display=False) as counter:
        result = fn(*args)
    results = result if isinstance(result, tuple) else (result,)
    memory = sum(t.nbytes for t in (*args, *results) if isinstance(t, torch.Tensor)) / bandwidth
    compute = counter.get_total_flops() / peak
    return max(compute, memory), "memory" if compute > memory else "compute"

# %% wrong: object has no attribute 'nbytes'
from torch.utils.flop_counter import FlopCounterMode


def roofline_of(fn, args, peak, bandwidth):
    with FlopCounterMode(display=False) as counter:
        result = fn(*args)
    compute = counter.get_total_flops() / peak
    memory = (sum(t.nbytes for t in args) + result.nbytes) / bandwidth
    return max(compute, memory), "compute" if compute > memory else "memory"

# %% wrong: what lies between the operators
from gpulab import memory


def roofline_of(fn, args, peak, bandwidth):
    work = memory.traffic(fn, *args)
    compute, moving = work.flops / peak, work.nbytes / bandwidth
    return max(compute, moving), "compute" if compute > moving else "memory"

# %% wrong: Are all tensors counted
import torch
from torch.utils.flop_counter import FlopCounterMode


def roofline_of(fn, args, peak, bandwidth):
    with FlopCounterMode(display=False) as counter:
        result = fn(*args)
    first = result[0] if isinstance(result, tuple) else result
    compute = counter.get_total_flops() / peak
    memory = sum(t.nbytes for t in (*args, first) if isinstance(t, torch.Tensor)) / bandwidth
    return max(compute, memory), "compute" if compute > memory else "memory"

# %% wrong: two things
from torch.utils.flop_counter import FlopCounterMode


def roofline_of(fn, args, peak, bandwidth):
    with FlopCounterMode(display=False) as counter:
        result = fn(*args)
    return max(counter.get_total_flops() / peak, (sum(t.nbytes for t in args) + result.nbytes) / bandwidth)
