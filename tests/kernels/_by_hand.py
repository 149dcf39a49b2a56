"""What the tests of counts are compared with: sectors and wavefronts from plain sets, and the lines of a kernel by the marks in it.

Nothing here calls gpulab.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator

Extent = tuple[int, int, int]


def line_of(kernel: Callable, mark: str) -> int:
    """Return the number of the one line of a function that ends with ``# mark``."""
    lines, first = inspect.getsourcelines(kernel)
    found = [first + number for number, line in enumerate(lines) if line.rstrip().endswith(f"# {mark}")]
    assert len(found) == 1, f"{kernel.__name__} has {len(found)} lines marked {mark!r}"
    return found[0]


def threads_of(block: tuple[int, ...]) -> list[Extent]:
    """Return the threads of a block (x, y, z) in the order in which they fill warps: x runs fastest."""
    x, y, z = (*block, 1, 1)[:3]
    return [(i, j, k) for k in range(z) for j in range(y) for i in range(x)]


def warps_of(lanes: list) -> Iterator[list]:
    """Return what each warp's lanes have, from what the threads of one block have."""
    return (lanes[start : start + 32] for start in range(0, len(lanes), 32))


def sectors(places: Iterable[int | None], size: int) -> int:
    """Return how many 32-byte sectors one warp's elements of ``size`` bytes lie in; None is a lane that takes no part."""
    return len({byte // 32 for place in places if place is not None for byte in range(place * size, place * size + size)})


def wavefronts(places: list[int | None], size: int) -> int:
    """Return how many passes one warp's shared access takes: in each part, the most different words that one of 32 banks holds.

    Elements of 8 bytes go by half-warps, those of 16 bytes by quarter-warps.
    """
    lanes = places + [None] * (32 - len(places))
    part = min(32, 128 // size)
    total = 0
    for start in range(0, 32, part):
        words = {
            byte // 4 for place in lanes[start : start + part] if place is not None for byte in range(place * size, place * size + size)
        }
        banks = [sum(word % 32 == bank for word in words) for bank in range(32)]
        total += max(banks)
    return total
