"""11.12: the largest batch that fits."""

# %% exercise
id = "11.12"
title = "the largest batch that fits"
answer_name = "largest_batch"

# %% stub
def largest_batch(memory_bytes, model, length, number_bytes=2):
    """Return how many sequences of `length` positions fit beside the weights; 0 if none does."""
    ...  # model: a dict with "parameters", "layers", "heads", "kv_heads" and "size" (of a head)

# %% hint
# The weights take parameters * number_bytes. How many bytes does one sequence keep? Six factors.

# %% hint
# cache = 2 * layers * kv_heads * size * length * number_bytes: keys and values, in every layer. The
# rest of the memory, divided by it and rounded down, is the answer; if the weights alone do not fit, it is 0.

# %% solution
def largest_batch(memory_bytes, model, length, number_bytes=2):
    """Return how many sequences of `length` positions fit beside the weights; 0 if none does."""
    cache = 2 * model["layers"] * model["kv_heads"] * model["size"] * length * number_bytes
    free = memory_bytes - model["parameters"] * number_bytes
    return max(0, free // cache)

# %% check
import math
from typing import Any
from gpulab.lessons import checking
from gpulab.lessons.content import Refused

_LLAMA_2 = {"parameters": 6_738_415_616, "layers": 32, "heads": 32, "kv_heads": 32, "size": 128}
_LLAMA_3 = {"parameters": 8_030_261_248, "layers": 32, "heads": 32, "kv_heads": 8, "size": 128}
_CASES = (
    ("Llama 2 7B on 24 GB, 4,096 positions", 24 * 10**9, _LLAMA_2, 4096, 2),
    ("Llama 3 8B on 24 GB, 8,192 positions", 24 * 10**9, _LLAMA_3, 8192, 2),
    ("Llama 3 8B on 80 GB, 2,048 positions", 80 * 10**9, _LLAMA_3, 2048, 2),
    ("Llama 2 7B on 141 GB, 4,096 positions, one byte a number", 141 * 10**9, _LLAMA_2, 4096, 1),
    ("Llama 2 7B on 8 GB, 4,096 positions", 8 * 10**9, _LLAMA_2, 4096, 2),  # -5.5 GB are more than one cache: int() gives -2, and not 0
    ("Llama 3.1 8B on 17 GB, 131,072 positions", 17 * 10**9, _LLAMA_3, 131_072, 2),
)


def check(answer: Any) -> str:
    ask = checking.in_turn(answer)
    for name, memory, model, length, each in _CASES:
        value = checking.number(ask(f"For {name},", memory, dict(model), length, each), "a number of sequences")
        _judge(f"For {name},", value, memory, model, length, each)
    return "Weights first, then keys and values of every layer, rounded down: the largest batch that fits, and 0 where none does."


def _judge(said: str, value: float, memory: int, model: dict[str, int], length: int, each: int) -> None:
    cache = 2 * model["layers"] * model["kv_heads"] * model["size"] * length * each
    weights = model["parameters"] * each
    right = max(0, (memory - weights) // cache)
    if value == right:
        return

    def same(free: float, one: float) -> bool:
        return value in (max(0, math.floor(free / one)), math.floor(free / one)) or math.isclose(value, free / one, rel_tol=1e-9)

    free = memory - weights
    if value < 0 and weights > memory:
        raise Refused(f"{said} you returned {value:.5g}: the weights alone do not fit, and a batch can't be negative. Return 0.")
    if same(free, cache):
        raise Refused(f"{said} you returned {value:.5g}, a part of a sequence. Round down: {right} sequences fit.")
    if value == right + 1:
        raise Refused(f"{said} you returned {value:.5g}, and {right} is right. Round down: the last one does not fit.")
    named = (
        (free, cache / 2, "keys *and* values are kept: a factor of 2 is missing."),
        (free, cache * model["heads"] / model["kv_heads"], "the cache has `kv_heads` heads, not `heads`. That is the point of grouped-query attention."),
        (memory, cache, "the weights are left out. They take parameters * number_bytes of the memory."),
        (free, cache / model["layers"], "this is the cache of one layer. Every layer keeps its own."),
        (free, cache / each, "number_bytes is left out of the cache. A number takes that many bytes."),
        (memory - model["parameters"], cache, "number_bytes is left out of the weights. A weight takes that many bytes."),
        (free, cache / length, "this is the cache of one position. A sequence keeps `length` of them."),
        (free, cache / model["size"], "a head has `size` numbers for each position."),
    )
    for space, one, text in named:
        if same(space, one):
            raise Refused(f"{said} you returned {value:.6g}; {right} is right: {text}")
    raise Refused(f"{said} you returned {value:.6g}; {right} is right. Subtract the weights, divide by the cache of one sequence, round down.")

# %% wrong: keys *and* values
def largest_batch(memory_bytes, model, length, number_bytes=2):
    cache = model["layers"] * model["kv_heads"] * model["size"] * length * number_bytes
    return max(0, (memory_bytes - model["parameters"] * number_bytes) // cache)

# %% wrong: grouped-query attention
def largest_batch(memory_bytes, model, length, number_bytes=2):
    cache = 2 * model["layers"] * model["heads"] * model["size"] * length * number_bytes
    return max(0, (memory_bytes - model["parameters"] * number_bytes) // cache)

# %% wrong: the weights are left out
def largest_batch(memory_bytes, model, length, number_bytes=2):
    cache = 2 * model["layers"] * model["kv_heads"] * model["size"] * length * number_bytes
    return memory_bytes // cache

# %% wrong: can't be negative
def largest_batch(memory_bytes, model, length, number_bytes=2):
    cache = 2 * model["layers"] * model["kv_heads"] * model["size"] * length * number_bytes
    return (memory_bytes - model["parameters"] * number_bytes) // cache

# %% wrong: Round down
def largest_batch(memory_bytes, model, length, number_bytes=2):
    cache = 2 * model["layers"] * model["kv_heads"] * model["size"] * length * number_bytes
    return max(0, (memory_bytes - model["parameters"] * number_bytes) / cache)

# %% wrong: Every layer keeps its own
def largest_batch(memory_bytes, model, length, number_bytes=2):
    cache = 2 * model["kv_heads"] * model["size"] * length * number_bytes
    return max(0, (memory_bytes - model["parameters"] * number_bytes) // cache)


# %% wrong: can't be negative
def largest_batch(memory_bytes, model, length, number_bytes=2):
    """Return how many sequences of `length` positions fit beside the weights; 0 if none does."""
    cache = 2 * model["layers"] * model["kv_heads"] * model["size"] * length * number_bytes
    free = memory_bytes - model["parameters"] * number_bytes
    return int(free / cache)
