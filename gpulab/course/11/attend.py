"""11.3: attention in blocks."""

# %% exercise
id = "11.3"
title = "attention in blocks"
answer_name = "attend"
loads = ["torch"]
live = True

# %% stub
import math

import torch


def attend(q, blocks):
    """Return softmax(q @ k.T / sqrt(d)) @ v, where `blocks` gives k and v in parts: pairs (k, v)."""
    ...  # q: (queries, d); each k: (some keys, d); each v: (as many, width)

# %% hint
# Keep three things for each query: the largest score so far, the sum of the exponentials so far, and
# the weighted sum of the values so far. Start with -inf, 0 and 0.

# %% hint
# For each block: scores = q @ k.T / math.sqrt(d); new = torch.maximum(top, scores.amax(1, keepdim=True)).
# What was summed before belongs to the old maximum. Which factor turns it into sums of the new one?

# %% hint
# old = torch.exp(top - new); p = torch.exp(scores - new). Then total = total * old + p.sum(1,
# keepdim=True) and mixed = mixed * old + p @ v. After the last block, return mixed / total.

# %% solution
import math

import torch


def attend(q, blocks):
    """Return softmax(q @ k.T / sqrt(d)) @ v, where `blocks` gives k and v in parts: pairs (k, v)."""
    top = torch.full((len(q), 1), -math.inf)
    total, mixed = 0.0, 0.0
    for k, v in blocks:
        scores = q @ k.T / math.sqrt(q.shape[1])
        new = torch.maximum(top, scores.amax(1, keepdim=True))
        old, p = torch.exp(top - new), torch.exp(scores - new)
        total = total * old + p.sum(1, keepdim=True)
        mixed = mixed * old + p @ v
        top = new
    return mixed / total

# %% check
import weakref
from collections.abc import Callable, Iterator
from typing import Any
from gpulab.lessons import checking
from gpulab.lessons.content import Refused

# Name; sizes of the blocks of keys; factor of the queries, where a negative one differs for each query; number added to every score.
_CASES = (
    ("one block of 12 keys", (12,), 1.0, 0.0),
    ("blocks of 7, 3 and 9 keys", (7, 3, 9), 1.0, 0.0),
    ("blocks of 7, 3, 9, 1 and 6 keys", (7, 3, 9, 1, 6), 3.0, 0.0),
    ("scores near 400", (7, 3, 9), 1.0, 400.0),
    ("scores near -400", (7, 3, 9), 1.0, -400.0),
    ("queries of very different sizes", (7, 3, 9), -200.0, 0.0),
)
_QUERIES, _SIZE, _WIDTH = 6, 16, 5


def _inputs(parts: tuple[int, ...], scale: float, shift: float) -> tuple[Any, list[tuple[Any, Any]]]:
    import torch

    generator = torch.Generator().manual_seed(11)
    q = torch.randn(_QUERIES, _SIZE, generator=generator)
    if scale < 0:  # queries of different sizes: with one maximum for all rows, exp would give 0 for the small ones
        q = q * torch.linspace(0.1, -scale, _QUERIES)[:, None]
    else:
        q = q * scale
    pairs = [(torch.randn(n, _SIZE, generator=generator), torch.randn(n, _WIDTH, generator=generator)) for n in parts]
    if shift:
        q[:, 0] = 4.0
        for k, _ in pairs:
            k[:, 0] = shift * _SIZE**0.5 / 4.0
    return q, pairs


def _full(q: Any, pairs: list[tuple[Any, Any]], root: float = _SIZE**0.5) -> Any:
    import torch

    k, v = (torch.cat(each).double() for each in zip(*pairs, strict=True))
    return torch.softmax(q.double() @ k.T / root, 1) @ v


def _mistake(q: Any, pairs: list[tuple[Any, Any]], kind: str) -> Any:
    """Return the result of the common mistake ``kind``, in float64."""
    import torch

    q, top, total, mixed, parts = q.double(), torch.full((len(q), 1), -torch.inf, dtype=torch.float64), 0.0, 0.0, []
    for k, v in pairs:
        scores = q @ k.double().T / _SIZE**0.5
        parts.append(torch.softmax(scores, 1) @ v.double())
        new = torch.maximum(top, scores.amax(1, keepdim=True))
        if kind == "own":  # each block uses its own maximum
            new = scores.amax(1, keepdim=True)
        old, p = torch.exp(top - new), torch.exp(scores - new)
        rescaled = {"none": (1.0, 1.0), "own": (1.0, 1.0), "total": (old, 1.0), "mixed": (1.0, old)}.get(kind, (old, old))
        total = total * rescaled[0] + p.sum(1, keepdim=True)
        mixed = mixed * rescaled[1] + p @ v.double()
        top = new
    return {"mean": sum(parts) / len(parts), "sum": sum(parts), "undivided": mixed, "last": parts[-1], "first": parts[0]}.get(kind, mixed / total)


_NAMED = {
    "none": "The sums of earlier blocks are not rescaled. They were made with an older maximum: multiply both sums by exp(old maximum - new maximum).",
    "own": "Each block uses its own maximum, and then the sums do not fit together. Keep a running maximum and rescale the earlier sums.",
    "total": "The sum of the exponentials is rescaled, but the weighted sum of the values is not. Both were made with the old maximum.",
    "mixed": "The weighted sum of the values is rescaled, but the sum of the exponentials is not. Both were made with the old maximum.",
    "mean": "This is the mean of a softmax for each block. A block with small scores must count less: divide once, by the sum over all blocks.",
    "sum": "This is the sum of a softmax for each block, so the weights add up to the number of blocks. Divide once, by the sum over all blocks.",
    "undivided": "The weights do not add up to 1: divide by the sum of the exponentials after the last block.",
    "last": "Only the last block counts. Add to the sums of the blocks before, and keep the new maximum: while the old one stays -inf, their factor is 0.",
    "first": "Only the first block counts. Does the return stand inside the loop?",
}


def _giving(pairs: list[tuple[Any, Any]], most: list[int], made: list[tuple[int, Any]]) -> Iterator[tuple[Any, Any]]:
    """Yield fresh copies of the blocks, and keep in ``most[0]`` the most blocks seen alive at once, as keys or as tensors made from them."""
    given: list[Any] = []
    for k, v in pairs:
        most[0] = max(most[0], sum(each() is not None for each in given))
        fresh = k.clone(), v.clone()
        given.append(weakref.ref(fresh[0]))
        yield fresh
        del fresh
    most[0] = max(most[0], 1 + len({size for size, each in made if each() is not None}))


def check(answer: Any) -> str:
    ask = checking.in_turn(answer)
    for name, parts, scale, shift in _CASES:
        _judge(ask, f"With {name}", *_inputs(parts, scale, shift))
    return "The blocks give the same numbers as the full softmax, for large and small scores too, and only one block is in memory at a time."


def _judge(ask: Callable[..., Any], said: str, q: Any, pairs: list[tuple[Any, Any]]) -> None:
    import torch

    from torch.utils._python_dispatch import TorchDispatchMode

    sums = {sum(len(k) for k, _ in pairs[: number + 1]) for number in range(1, len(pairs))}  # keys in the first 2 blocks, the first 3, ...
    together: list[int] = []
    made: list[tuple[int, Any]] = []  # tensors as long as an early block, such as its scores

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = function(*args, **(kwargs or {}))
            shape = set(result.shape) if isinstance(result, torch.Tensor) else set()
            together.extend(sums & shape)
            made.extend((len(k), weakref.ref(result)) for k, _ in pairs[:-2] if len(k) > 1 and len(k) in shape)
            return result

    most, right = [0], _full(q, pairs)
    with Watch():
        result = ask(said, q.clone(), _giving(pairs, most, made))
    if not isinstance(result, torch.Tensor) or not result.is_floating_point():
        raise Refused(f"{said} your function returned {checking.describe(result)}; the check expects a tensor of {_QUERIES} rows.")
    if result.shape != right.shape:
        raise Refused(f"{said} the result has the shape {tuple(result.shape)}; the check expects {tuple(right.shape)}, a row for each query.")
    mine = result.detach().double()

    def same(other: Any) -> bool:
        return torch.allclose(mine, other, rtol=1e-3, atol=1e-3)

    finite = bool(torch.isfinite(mine).all())
    if not finite and float((q @ torch.cat([k for k, _ in pairs]).T).abs().max()) < 80 * _SIZE**0.5:  # exp of these scores is finite
        raise Refused(
            f"{said} the result is not finite, and the scores are small. Do you divide by a sum that is 0? And the factor of the earlier sums is "
            "exp(old maximum - new maximum), 0 for the maximum -inf at the start. The other way round it is infinite."
        )
    if not finite:
        raise Refused(
            f"{said} the result is not finite. Subtract the row's running maximum from every score before exp, each row its own, and start that "
            "maximum at -inf: at 0, all exponentials of scores near -400 vanish."
        )
    if not same(right):
        if same(_full(q, pairs, 1.0)):
            raise Refused(f"{said} the scores are not divided by sqrt(d). Without it they grow with the size of a head, and the softmax gets too sharp.")
        if same(_full(q, pairs, float(_SIZE))):
            raise Refused(f"{said} the scores are divided by d. Divide by its square root, sqrt(d).")
        for kind, text in _NAMED.items():
            if same(_mistake(q, pairs, kind)):
                raise Refused(f"{said} the result differs from the full softmax. {text}")
        off = float((mine - right).abs().max())
        question = "Which of the three running values is wrong after the second block?"
        if len(pairs) == 1:  # nothing is rescaled yet
            question = "With a single block it is the plain formula: scores q @ k.T / sqrt(d) with d = q.shape[1], no mask, a softmax for each query."
        raise Refused(f"{said} the result differs from the full softmax by up to {off:.2g}. {question}")
    if most[0] > 2 or together:  # two are allowed: the loop's variables still hold one block while the next one is made
        count = "several" if together else most[0]
        raise Refused(f"{said} {count} blocks are in memory at the same time. Use each block when it comes, and keep only the three running values, no scores.")

# %% wrong: sqrt(d)
import torch


def attend(q, blocks):
    top, total, mixed = torch.full((len(q), 1), -torch.inf), 0.0, 0.0
    for k, v in blocks:
        scores = q @ k.T
        new = torch.maximum(top, scores.amax(1, keepdim=True))
        old, p = torch.exp(top - new), torch.exp(scores - new)
        total, mixed, top = total * old + p.sum(1, keepdim=True), mixed * old + p @ v, new
    return mixed / total

# %% wrong: not rescaled
import torch


def attend(q, blocks):
    top, total, mixed = torch.full((len(q), 1), -torch.inf), 0.0, 0.0
    for k, v in blocks:
        scores = q @ k.T / q.shape[1] ** 0.5
        top = torch.maximum(top, scores.amax(1, keepdim=True))
        p = torch.exp(scores - top)
        total, mixed = total + p.sum(1, keepdim=True), mixed + p @ v
    return mixed / total

# %% wrong: the weighted sum of the values is not
import torch


def attend(q, blocks):
    top, total, mixed = torch.full((len(q), 1), -torch.inf), 0.0, 0.0
    for k, v in blocks:
        scores = q @ k.T / q.shape[1] ** 0.5
        new = torch.maximum(top, scores.amax(1, keepdim=True))
        old, p = torch.exp(top - new), torch.exp(scores - new)
        total, mixed, top = total * old + p.sum(1, keepdim=True), mixed + p @ v, new
    return mixed / total

# %% wrong: mean of a softmax for each block
import torch


def attend(q, blocks):
    parts = [torch.softmax(q @ k.T / q.shape[1] ** 0.5, 1) @ v for k, v in blocks]
    return sum(parts) / len(parts)

# %% wrong: its own maximum
import torch


def attend(q, blocks):
    total, mixed = 0.0, 0.0
    for k, v in blocks:
        scores = q @ k.T / q.shape[1] ** 0.5
        p = torch.exp(scores - scores.amax(1, keepdim=True))
        total, mixed = total + p.sum(1, keepdim=True), mixed + p @ v
    return mixed / total

# %% wrong: not finite
import torch


def attend(q, blocks):
    total, mixed = 0.0, 0.0
    for k, v in blocks:
        p = torch.exp(q @ k.T / q.shape[1] ** 0.5)
        total, mixed = total + p.sum(1, keepdim=True), mixed + p @ v
    return mixed / total

# %% wrong: start that maximum at -inf
import torch


def attend(q, blocks):
    top, total, mixed = torch.zeros(len(q), 1), 0.0, 0.0
    for k, v in blocks:
        scores = q @ k.T / q.shape[1] ** 0.5
        new = torch.maximum(top, scores.amax(1, keepdim=True))
        old, p = torch.exp(top - new), torch.exp(scores - new)
        total, mixed, top = total * old + p.sum(1, keepdim=True), mixed * old + p @ v, new
    return mixed / total

# %% wrong: in memory at the same time
import torch


def attend(q, blocks):
    k, v = map(torch.cat, zip(*blocks, strict=True))
    return torch.softmax(q @ k.T / q.shape[1] ** 0.5, 1) @ v

# %% wrong: in memory at the same time
import torch


def attend(q, blocks):
    keys, values = torch.empty(0, q.shape[1]), None
    for k, v in blocks:
        keys, values = torch.cat([keys, k]), v if values is None else torch.cat([values, v])
    return torch.softmax(q @ keys.T / q.shape[1] ** 0.5, 1) @ values

# %% wrong: no scores
import torch


def attend(q, blocks):
    scores, values = [], []
    for k, v in blocks:
        scores.append(q @ k.T / q.shape[1] ** 0.5)
        values.append(v)
    top = torch.stack([each.amax(1) for each in scores]).amax(0)[:, None]
    weights = [torch.exp(each - top) for each in scores]
    total = sum(each.sum(1, keepdim=True) for each in weights)
    return sum(p @ v for p, v in zip(weights, values, strict=True)) / total

# %% wrong: add up to 1
import torch


def attend(q, blocks):
    top, mixed = torch.full((len(q), 1), -torch.inf), 0.0
    for k, v in blocks:
        scores = q @ k.T / q.shape[1] ** 0.5
        new = torch.maximum(top, scores.amax(1, keepdim=True))
        mixed, top = mixed * torch.exp(top - new) + torch.exp(scores - new) @ v, new
    return mixed


# %% wrong: The other way round
import math

import torch


def attend(q, blocks):
    """Return softmax(q @ k.T / sqrt(d)) @ v, where `blocks` gives k and v in parts: pairs (k, v)."""
    top = torch.full((len(q), 1), -math.inf)
    total, mixed = 0.0, 0.0
    for k, v in blocks:
        scores = q @ k.T / math.sqrt(q.shape[1])
        new = torch.maximum(top, scores.amax(1, keepdim=True))
        old, p = torch.exp(new - top), torch.exp(scores - new)
        total = total * old + p.sum(1, keepdim=True)
        mixed = mixed * old + p @ v
        top = new
    return mixed / total
