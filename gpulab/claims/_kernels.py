"""Claims about kernels written by hand."""

from __future__ import annotations

import math

from gpulab.claims import _sources as at
from gpulab.claims._pairs import Compare, Keep, only, pairs, several
from gpulab.claims._registry import Spec
from gpulab.claims.results import Claim

_THEME = "Kernels written by hand"


def _rungs(first: str, second: str, keep: Keep | None = None) -> Compare:
    return pairs("ladders", {"rung": first}, {"rung": second}, keep=keep)


_LARGE = only({"n": (4096,)})

CLAIMS = (
    Spec(
        Claim(
            "reduction-strided",
            _THEME,
            "A reduction without divergent branches has a speed-up of 2.3x over the interleaved "
            "one.",
            "time of the sum, interleaved / strided",
            at.REDUCTION,
            "reduction 2, on a G80",
            "gpu",
            2.33,
            math.inf,
            True,
        ),
        _rungs("reduction-interleaved", "reduction-strided"),
    ),
    Spec(
        Claim(
            "reduction-sequential",
            _THEME,
            "Sequential addressing, without bank conflicts, gives a further speed-up of 2x.",
            "time of the sum, strided / sequential",
            at.REDUCTION,
            "reduction 3, on a G80",
            "gpu",
            2.01,
            math.inf,
            True,
        ),
        _rungs("reduction-strided", "reduction-sequential"),
    ),
    Spec(
        Claim(
            "reduction-30x",
            _THEME,
            "All steps together give a reduction a speed-up of 30x.",
            "time of the sum, interleaved / last rung",
            at.REDUCTION,
            "performance comparison, on a G80",
            "gpu",
            30,
            math.inf,
            False,
        ),
        _rungs("reduction-interleaved", "reduction-grid-stride"),
    ),
    Spec(
        Claim(
            "transpose-tiled",
            _THEME,
            "A transpose through a tile in shared memory is faster than the naive one.",
            "time of the transpose, naive / tiled",
            at.TRANSPOSE,
            "coalesced transpose via shared memory",
            "gpu",
            1,
            math.inf,
            True,
        ),
        _rungs("transpose-naive", "transpose-tiled"),
    ),
    Spec(
        Claim(
            "transpose-padded",
            _THEME,
            "One column of padding makes it faster still, because it avoids bank conflicts.",
            "time of the transpose, tiled / padded",
            at.TRANSPOSE,
            "shared memory bank conflicts",
            "gpu",
            1,
            math.inf,
            True,
        ),
        _rungs("transpose-tiled", "transpose-padded"),
    ),
    Spec(
        Claim(
            "matmul-coalesced",
            _THEME,
            "Coalesced loads give the naive matrix product a speed-up of 6x.",
            "time of the product, naive / coalesced, 4,096",
            at.BOEHM,
            "kernel 2 (1.3 % to 8.5 % of cuBLAS)",
            "gpu",
            6,
            math.inf,
            True,
        ),
        _rungs("matmul-naive", "matmul-coalesced", _LARGE),
    ),
    Spec(
        Claim(
            "matmul-94",
            _THEME,
            "Warp tiling reaches 93.7 % of the speed of the library's float32 product.",
            "time of the library / time of the best warp-tiled kernel: the share reached, 4,096",
            at.BOEHM,
            "kernel 10",
            "gpu",
            0.937,
            math.inf,
            False,
        ),
        several(
            *(
                pairs(
                    "ladders",
                    {"rung": "matmul-library", "n": 4096},
                    {"rung": "matmul-warp-tiled", "options": options},
                )
                for options in ("", "-DDEPTH=8", "-DDEPTH=32")
            )
        ),
    ),
    Spec(
        Claim(
            "one-batched-call",
            _THEME,
            "One batched call is faster than many small products one after the other.",
            "time of 1,000 products of 16 x 16, in a loop / in one call",
            at.BATCHED,
            "batched GEMM",
            "any",
            1,
            math.inf,
            True,
        ),
        pairs("tips", {"tip": "one_call", "form": "without"}, {"tip": "one_call", "form": "with"}),
    ),
)
