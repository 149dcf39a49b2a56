"""The kernels whose counts are compared with a GPU's own counters: the course's ladders, and
accesses that show one rule each.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpulab.kernels import cuda, float32, float64, ladder

N, BLOCK = 1 << 14, 256


@dataclass(frozen=True)
class Case:
    """One launch: ``make()`` returns fresh arguments, always the same."""

    name: str
    kernel: Callable[..., None]
    grid: Any
    block: Any
    make: Callable[[], tuple[Any, ...]]
    from_ladder: bool = False


def copy_strided(x, y, stride):
    i = cuda.grid(1)
    if i < y.size:
        y[i] = x[i * stride]


def store_strided(x, y, stride):
    i = cuda.grid(1)
    if i < x.size:
        y[i * stride] = x[i]


def copy_shifted(x, y, offset):
    i = cuda.grid(1)
    if i < y.size:
        y[i] = x[i + offset]


def copy_first(x, y):
    i = cuda.grid(1)
    if i < y.size:
        y[i] = x[0]


def gather(x, places, y):
    i = cuda.grid(1)
    if i < y.size:
        y[i] = x[places[i]]


def reverse(x, y):
    i = cuda.grid(1)
    if i < y.size:
        y[i] = x[y.size - 1 - i]


def stencil(x, y):
    i = cuda.grid(1)
    if 0 < i < x.size - 1:
        y[i] = float32(0.25) * x[i - 1] + float32(0.5) * x[i] + float32(0.25) * x[i + 1]


def stencil_shared(x, y):
    tile = cuda.shared.array(258, float32)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    tile[t + 1] = x[i]
    if t == 0:
        tile[0] = x[i - 1] if i > 0 else float32(0)
    if t == 255:
        tile[257] = x[i + 1] if i < x.size - 1 else float32(0)
    cuda.syncthreads()
    y[i] = float32(0.25) * tile[t] + float32(0.5) * tile[t + 1] + float32(0.25) * tile[t + 2]


def shared_strided(x, y, stride):
    tile = cuda.shared.array(8192, float32)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    tile[t * stride] = x[i]
    cuda.syncthreads()
    y[i] = tile[((t + 1) % 256) * stride]


def shared_doubles(x, y):
    tile = cuda.shared.array(256, float64)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    tile[t] = x[i]
    cuda.syncthreads()
    y[i] = tile[255 - t]


def shared_one_word(x, y):
    tile = cuda.shared.array(256, float32)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    tile[t] = x[i]
    cuda.syncthreads()
    y[i] = tile[t // 32]


def loops_by_lane(x, y):
    i = cuda.grid(1)
    total = float32(0)
    k = 0
    while k < i % 32 + 1:
        total += x[k]
        k += 1
    y[i] = total


def loops_by_warp(x, y):
    i = cuda.grid(1)
    total = float32(0)
    k = 0
    while k < (i // 32) % 8 + 1:
        total += x[k]
        k += 1
    y[i] = total


def branch_by_lane(x, y, turns):
    i = cuda.grid(1)
    value = x[i]
    if i % 2 == 0:
        for _ in range(turns):
            value = value * float32(0.5) + float32(1)
    else:
        for _ in range(turns):
            value = value * float32(0.25) - float32(1)
    y[i] = value


def half_of_the_lanes(x, y):
    i = cuda.grid(1)
    if cuda.threadIdx.x % 32 < 16:
        y[i] = x[i]


def _pair(elements: int, dtype: type = np.float32, out: int = N) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.random(elements).astype(dtype), np.zeros(out, dtype)


def _own(name: str, kernel: Callable[..., None], make: Callable[[], tuple[Any, ...]]) -> Case:
    return Case(name, kernel, N // BLOCK, BLOCK, make)


def _gathered() -> tuple[Any, ...]:
    x, y = _pair(N)
    return x, np.random.default_rng(1).permutation(N).astype(np.int32), y


def _turns() -> tuple[Any, ...]:
    return (*_pair(N), 20)


OWN = (
    *(
        _own(f"load-stride-{s}", copy_strided, lambda s=s: (*_pair(N * s), s))
        for s in (1, 2, 8, 32)
    ),
    *(
        _own(f"store-stride-{s}", store_strided, lambda s=s: (*_pair(N, out=N * s), s))
        for s in (2, 32)
    ),
    _own("load-offset-1", copy_shifted, lambda: (*_pair(N + 1), 1)),
    _own("load-broadcast", copy_first, lambda: _pair(N)),
    _own("load-float64", copy_strided, lambda: (*_pair(N, np.float64), 1)),
    _own("load-float16", copy_strided, lambda: (*_pair(N, np.float16), 1)),
    _own("load-reversed", reverse, lambda: _pair(N)),
    _own("gather", gather, _gathered),
    _own("stencil", stencil, lambda: _pair(N)),
    _own("stencil-shared", stencil_shared, lambda: _pair(N)),
    *(
        _own(f"shared-stride-{s}", shared_strided, lambda s=s: (*_pair(N), s))
        for s in (1, 2, 8, 32)
    ),
    _own("shared-float64", shared_doubles, lambda: _pair(N, np.float64)),
    _own("shared-broadcast", shared_one_word, lambda: _pair(N)),
    _own("loops-by-lane", loops_by_lane, lambda: _pair(N)),
    _own("loops-by-warp", loops_by_warp, lambda: _pair(N)),
    _own("branch-by-lane", branch_by_lane, _turns),
    _own("half-of-the-lanes", half_of_the_lanes, lambda: _pair(N)),
)


def _rung(rung: ladder.Rung) -> Case:
    size = rung.sizes[0]
    return Case(
        rung.name, rung.kernel, *rung.launch(size), lambda: rung.arguments(size), from_ladder=True
    )


CASES = (*OWN, *(_rung(rung) for rung in ladder.RUNGS))


def chosen(names: str) -> tuple[Case, ...]:
    """Return the cases of a list such as "gather,stencil"; all for an empty one.

    Raises
    ------
    ValueError
        If a name is unknown.
    """
    wanted = [name for name in names.split(",") if name]
    known = {case.name: case for case in CASES}
    absent = [name for name in wanted if name not in known]
    if absent:
        raise ValueError(
            f"no kernel is named {', '.join(absent)}; expected some of {', '.join(known)}."
        )
    return tuple(known[name] for name in wanted) or CASES
