"""07.2: what zeros take on disk."""

# %% exercise
id = "07.2"
title = "what zeros take on disk"
answer_name = "stored_bytes"

# %% stub
def stored_bytes(n, zeros, bits):
    """Return the bytes of n weights of `bits` bits each; the share `zeros` of them is zero."""
    ...

# %% hint
# The mask has one bit for each weight. How many bytes is that? And how many bytes do the weights
# that are not zero take?

# %% hint
# The mask takes n / 8 bytes, the weights (1 - zeros) * n * bits / 8 bytes. Without a mask, all
# weights take n * bits / 8 bytes. When is that smaller?

# %% solution
def stored_bytes(n, zeros, bits):
    """Return the bytes of n weights of `bits` bits each; the share `zeros` of them is zero."""
    plain = n * bits / 8
    masked = n / 8 + (1 - zeros) * n * bits / 8  # a bit for each weight, then those that are not zero
    return min(plain, masked)

# %% check
from typing import Any
from gpulab.lessons import checking
from gpulab.lessons.content import Refused

# (weights, share of zeros, bits of a stored weight): many zeros; few; few in codes of 8 bits, where a mask does not pay off; none; half.
_LAYERS = ((1_000_000, 0.9, 32), (80_000, 0.25, 32), (64_000, 0.05, 8), (1000, 0.0, 32), (256_000, 0.5, 8))
_BYTES = 5.0  # the largest accepted difference, a weight and a byte: of both, rounding up and rounding down are right


def stored_bytes(n: int, zeros: float, bits: int) -> float:
    """Return the bytes of the smaller form: all weights in full, or a mask of one bit for each weight plus the weights that are not zero."""
    return min(n * bits / 8, n / 8 + (1 - zeros) * n * bits / 8)


def check(answer: Any) -> str:
    ask = checking.in_turn(answer)
    for n, zeros, bits in _LAYERS:
        where = f"For {n:,} weights of {bits} bits with {zeros:.0%} zeros"
        returned = checking.number(ask(where, n, zeros, bits), "one number of bytes")
        right = stored_bytes(n, zeros, bits)
        if abs(returned - right) <= _BYTES:
            continue
        raise Refused(f"{where} your answer is {returned:,.0f} bytes. {_why_bytes(returned, n, zeros, bits)}")
    return "With 90 % zeros the weights in float32 take 1/7.6 of the bytes, not 1/10: every weight, zero or not, costs one bit of mask."


def _why_bytes(returned: float, n: int, zeros: float, bits: int) -> str:
    if abs(returned - 8 * stored_bytes(n, zeros, bits)) <= 8 * _BYTES:
        return "Those are bits. A byte has 8."
    if abs(returned - (1 - zeros) * n * bits / 8) <= _BYTES:
        return "That stores the weights that are not zero, but not where they belong. The mask adds one bit for each weight."
    if abs(returned - n * bits / 8) <= _BYTES:
        return "That stores every zero in full. A mask of one bit for each weight is cheaper here."
    if abs(returned - (n / 8 + (1 - zeros) * n * bits / 8)) <= _BYTES:
        return "With so few zeros the mask costs more than it saves. Return the smaller of the two forms."
    if abs(returned - (n / 8 + zeros * n * bits / 8)) <= _BYTES:
        return "That stores the zeros and leaves out the others. The share that is not zero is 1 - zeros."
    return "Return the smaller of two: all weights in full, or one bit for each weight plus the weights that are not zero."

# %% wrong: where they belong
def stored_bytes(n, zeros, bits):
    """Return the bytes of n weights of `bits` bits each; the share `zeros` of them is zero."""
    return (1 - zeros) * n * bits / 8

# %% wrong: costs more than it saves
def stored_bytes(n, zeros, bits):
    """Return the bytes of n weights of `bits` bits each; the share `zeros` of them is zero."""
    return n / 8 + (1 - zeros) * n * bits / 8

# %% wrong: Those are bits
def stored_bytes(n, zeros, bits):
    """Return the bytes of n weights of `bits` bits each; the share `zeros` of them is zero."""
    return min(n * bits, n + (1 - zeros) * n * bits)

# %% wrong: every zero in full
def stored_bytes(n, zeros, bits):
    """Return the bytes of n weights of `bits` bits each; the share `zeros` of them is zero."""
    return n * bits / 8

# %% wrong: leaves out the others
def stored_bytes(n, zeros, bits):
    """Return the bytes of n weights of `bits` bits each; the share `zeros` of them is zero."""
    return min(n * bits / 8, n / 8 + zeros * n * bits / 8)

# %% wrong: plain number
def stored_bytes(n, zeros, bits):
    """Return the bytes of n weights of `bits` bits each; the share `zeros` of them is zero."""
    return 'less'
