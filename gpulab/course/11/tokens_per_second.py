"""11.10: tokens per second, from bytes and a rate."""

# %% exercise
id = "11.10"
title = "tokens per second, from bytes and a rate"
answer_name = "tokens_per_second"

# %% stub
def tokens_per_second(parameters, bits, bytes_per_second, batch=1, cache_bytes=0):
    """Return the most tokens per second, of all sequences together, that the memory allows."""
    ...  # bits: of one weight; cache_bytes: keys and values of ONE sequence

# %% hint
# What does one step read, and how many tokens does one step give? Divide the rate by the bytes of a
# step: that is the number of steps per second.

# %% hint
# A step reads the weights once, for all sequences together: parameters * bits / 8 bytes. It also
# reads the cache of each sequence: batch * cache_bytes. And it gives one token to each sequence.

# %% solution
def tokens_per_second(parameters, bits, bytes_per_second, batch=1, cache_bytes=0):
    """Return the most tokens per second, of all sequences together, that the memory allows."""
    step = parameters * bits / 8 + batch * cache_bytes
    return batch * bytes_per_second / step

# %% check
import math
from typing import Any
from gpulab.lessons import checking
from gpulab.lessons.content import Refused

# Name; (parameters, bits, bytes per second); batch and bytes of one sequence's cache. The numbers are invented, but close to real ones.
_CASES = (
    ("7 billion weights of 16 bits at 2 TB/s", (7_000_000_000, 16, 2e12), {}),
    ("3 billion weights of 4 bits at 50 GB/s", (3_000_000_000, 4, 5e10), {}),
    ("7 billion weights of 8 bits at 3 TB/s, batch 1 and a cache of 2 GB", (7_000_000_000, 8, 3e12), {"cache_bytes": 2_000_000_000}),
    ("7 billion weights of 8 bits at 3 TB/s, batch 12 and a cache of 1 GB each", (7_000_000_000, 8, 3e12), {"batch": 12, "cache_bytes": 1_000_000_000}),
    ("7 billion weights of 16 bits at 2 TB/s, batch 6", (7_000_000_000, 16, 2e12), {"batch": 6}),
)


def check(answer: Any) -> str:
    ask = checking.in_turn(answer)
    for name, (parameters, bits, rate), more in _CASES:
        batch, cache = more.get("batch", 1), more.get("cache_bytes", 0)
        result = ask(f"With {name}", parameters, bits, rate, batch, cache)
        value = checking.number(result, "tokens per second")
        _judge(f"With {name}", value, parameters * bits / 8, rate, batch, cache, bits)
    return "A step reads the weights once and the cache of each sequence, and gives a token to each of them."


def _judge(said: str, value: float, weights: float, rate: float, batch: int, cache: int, bits: int) -> None:
    right = batch * rate / (weights + batch * cache)

    def same(other: float) -> bool:
        return math.isclose(value, other, rel_tol=1e-3)

    if math.isclose(value, right, rel_tol=1e-3, abs_tol=0.99):  # rounded to a whole number is right too
        return
    named = (
        (batch * rate / (8 * weights + batch * cache), "the weights are counted in bits. Eight bits are one byte."),
        (batch * rate / (8 * weights / bits + batch * cache), "each weight counts as one byte. It has `bits` bits: parameters * bits / 8 bytes."),
        (rate / (weights + cache), "the weights are read for each sequence. A step reads them once and gives a token to every sequence of the batch."),
        (rate / (weights + batch * cache), "this is the number of steps per second. Each step gives one token to every sequence: multiply by the batch."),
        (batch * rate / (weights + cache), "the cache counts once. Each sequence has its own, and a step reads all of them."),
        (batch * rate / weights, "the cache is left out. A step reads the keys and values of every sequence too."),
        (rate / weights, "the batch and the cache are left out. A step gives a token to every sequence, and reads the cache of each."),
        (1 / right, "this is the time of one token in seconds. Tokens per second is its inverse."),
        ((weights + batch * cache) / rate, "this is the time of a step in seconds. Tokens per second is the batch divided by it."),
        (right / 2, "this is half of what is right. A weight is read once for a token; its multiplication and its addition are no bytes."),
    )
    for other, text in named:
        if same(other):
            raise Refused(f"{said} you returned {value:.5g}: {text}")
    raise Refused(f"{said} you returned {value:.5g}; {right:.5g} is right. Divide the rate by the bytes of one step, and multiply by the tokens of a step.")

# %% wrong: counted in bits
def tokens_per_second(parameters, bits, bytes_per_second, batch=1, cache_bytes=0):
    return batch * bytes_per_second / (parameters * bits + batch * cache_bytes)

# %% wrong: read for each sequence
def tokens_per_second(parameters, bits, bytes_per_second, batch=1, cache_bytes=0):
    return bytes_per_second / (parameters * bits / 8 + cache_bytes)

# %% wrong: multiply by the batch
def tokens_per_second(parameters, bits, bytes_per_second, batch=1, cache_bytes=0):
    return bytes_per_second / (parameters * bits / 8 + batch * cache_bytes)

# %% wrong: the cache counts once
def tokens_per_second(parameters, bits, bytes_per_second, batch=1, cache_bytes=0):
    return batch * bytes_per_second / (parameters * bits / 8 + cache_bytes)

# %% wrong: the cache is left out
def tokens_per_second(parameters, bits, bytes_per_second, batch=1, cache_bytes=0):
    return batch * bytes_per_second / (parameters * bits / 8)

# %% wrong: one byte
def tokens_per_second(parameters, bits, bytes_per_second, batch=1, cache_bytes=0):
    return batch * bytes_per_second / (parameters + batch * cache_bytes)
