"""07.2: what zeros take on disk."""

# %% exercise
id = "07.2"
title = "what zeros take on disk"
answer_name = "stored_bytes"

# %% stub
def stored_bytes(n, zeros, bits):
    """Return the bytes of n weights of so many bits, a share of which is zero."""
    ...

# %% hint
# How many bytes does the mask have, with one bit for each weight? And the weights that are not
# zero?

# %% hint
# n / 8 bytes of mask, and (1 - zeros) * n * bits / 8 bytes of weights. When is n * bits / 8,
# without a mask, smaller?

# %% solution
def stored_bytes(n, zeros, bits):
    """Return the bytes of n weights of so many bits, a share of which is zero."""
    plain = n * bits / 8
    masked = n / 8 + (1 - zeros) * n * bits / 8  # a bit for each weight, then those that are not zero
    return min(plain, masked)

# %% check
from typing import Any
from gpulab.lessons import checking
from gpulab.lessons.content import Refused

# (weights, share of zeros, bits of a stored weight): many zeros, few, codes of 8 bits with few zeros (where a mask does not pay), none.
_LAYERS = ((1_000_000, 0.9, 32), (80_000, 0.25, 32), (64_000, 0.05, 8), (1000, 0.0, 32), (256_000, 0.5, 8))
_BYTES = 1.0  # off by this much at most: rounding up is as right as rounding down


def stored_bytes(n: int, zeros: float, bits: int) -> float:
    """The smaller of all weights, and one bit a weight with the others."""
    return min(n * bits / 8, n / 8 + (1 - zeros) * n * bits / 8)


def check(answer: Any) -> str:
    ask = checking.in_turn(answer)
    for n, zeros, bits in _LAYERS:
        where = f"For {n:,} weights of {bits} bits with {zeros:.0%} zeros"
        said = checking.number(ask(where, n, zeros, bits), "one number of bytes")
        right = stored_bytes(n, zeros, bits)
        if abs(said - right) <= _BYTES:
            continue
        raise Refused(f"{where} you say {said:,.0f} bytes. {_why_bytes(said, n, zeros, bits)}")
    return "90 % zeros make a file of float32 weights 7.6 times smaller, not 10 times: the mask is a bit for each weight, zero or not."


def _why_bytes(said: float, n: int, zeros: float, bits: int) -> str:
    if abs(said - 8 * stored_bytes(n, zeros, bits)) <= 8 * _BYTES:
        return "Those are bits. A byte has 8."
    if abs(said - (1 - zeros) * n * bits / 8) <= _BYTES:
        return "That stores the weights that are not zero, but not where they belong: one bit a weight says so."
    if abs(said - n * bits / 8) <= _BYTES:
        return "That stores every zero in full. One bit a weight can say which are not zero."
    if abs(said - (n / 8 + (1 - zeros) * n * bits / 8)) <= _BYTES:
        return "With so few zeros the mask costs more than it saves: take the smaller of both forms."
    if abs(said - (n / 8 + zeros * n * bits / 8)) <= _BYTES:
        return "You stored the zeros and left out the others: (1 - zeros) of them are not zero."
    return "It is the smaller of two: all weights in full, or a bit for each weight and then those that are not zero."

# %% wrong: where they belong
def stored_bytes(n, zeros, bits):
    """Return the bytes of n weights of so many bits, a share of which is zero."""
    return (1 - zeros) * n * bits / 8

# %% wrong: costs more than it saves
def stored_bytes(n, zeros, bits):
    """Return the bytes of n weights of so many bits, a share of which is zero."""
    return n / 8 + (1 - zeros) * n * bits / 8

# %% wrong: Those are bits
def stored_bytes(n, zeros, bits):
    """Return the bytes of n weights of so many bits, a share of which is zero."""
    return min(n * bits, n + (1 - zeros) * n * bits)

# %% wrong: every zero in full
def stored_bytes(n, zeros, bits):
    """Return the bytes of n weights of so many bits, a share of which is zero."""
    return n * bits / 8

# %% wrong: left out the others
def stored_bytes(n, zeros, bits):
    """Return the bytes of n weights of so many bits, a share of which is zero."""
    return min(n * bits / 8, n / 8 + zeros * n * bits / 8)

# %% wrong: plain number
def stored_bytes(n, zeros, bits):
    """Return the bytes of n weights of so many bits, a share of which is zero."""
    return 'less'
