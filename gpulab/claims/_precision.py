"""Claims about number formats."""

from __future__ import annotations

import math

from gpulab.claims import _sources as at
from gpulab.claims._pairs import flops, only, pairs, several
from gpulab.claims._registry import Spec
from gpulab.claims.results import Claim

_THEME = "Number formats"
_EVEN = only({"n": (1024, 4096, 8192)})
_HALVES = ("float16", "bfloat16")

CLAIMS = (
    Spec(
        Claim(
            "single-twice-double", _THEME, "Operations in 32 bits are often at least twice as fast as in 64 bits.",
            "time of matrix products, float64 over float32, from 1,024", at.BABOULIN, "abstract", "any", 2, math.inf, True,
        ),
        several(
            pairs("ceilings", {"operation": "gemm", "dtype": "float64"}, {"dtype": "float32"}),
            pairs("catalogue", {"workload": "matmul", "dtype": "float64"}, {"dtype": "float32"}, keep=lambda p: int(p["n"]) >= 1024),
        ),
    ),
    Spec(
        Claim(
            "half-2-to-8", _THEME, "Products in half precision have two to eight times the throughput of single precision.",
            "time of matrix products, float32 (no TF32) over float16", at.MIXED, "1, introduction", "gpu", 2, 8, True,
        ),
        pairs("precision", {"format": "float32"}, {"format": "float16"}, keep=_EVEN),
    ),
    Spec(
        Claim(
            "tf32-7x", _THEME, "TF32 makes a float32 product about seven times as fast on an A100.",
            "time of matrix products, float32 over TF32", at.CUDA_NOTES, "TensorFloat-32 (TF32)", "gpu", 7, math.inf, False,
        ),
        pairs("precision", {"format": "float32"}, {"format": "tf32"}, keep=_EVEN),
    ),
    Spec(
        Claim(
            "fp8-twice", _THEME, "FP8 has twice the throughput of 16-bit formats on Tensor Cores.",
            "time of matrix products, bfloat16 over float8_e4m3fn", at.HOPPER, "fourth-generation Tensor Cores", "gpu", 2, math.inf, True,
        ),
        pairs("precision", {"format": "bfloat16"}, {"format": "float8_e4m3fn"}, keep=_EVEN),
    ),
    Spec(
        Claim(
            "sizes-of-eight", _THEME, "Sizes that are multiples of eight are faster, since they map onto Tensor Cores.",
            "time for each FLOP of 16-bit products, 4,095 over 4,096 and so on", at.TUNING, "Use mixed precision and AMP", "gpu",
            1, math.inf, True,
        ),
        several(*(
            pairs("precision", {"format": name, "n": n - 1}, {"format": name, "n": n}, per=flops)
            for name in _HALVES for n in (1024, 4096, 8192)
        )),
    ),
    Spec(
        Claim(
            "amp-3x", _THEME, "Mixed precision makes training up to three times as fast.",
            "time of a step, float32 over mixed precision", at.TUNING, "Use mixed precision and AMP", "gpu", 3, math.inf, False,
        ),
        several(*(
            pairs("training", {"precision": "float32", "means": "plain"}, {"precision": name, "means": "plain"}) for name in _HALVES
        )),
    ),
)  # fmt: skip
