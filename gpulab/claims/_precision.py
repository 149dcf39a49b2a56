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
            "single-twice-double",
            _THEME,
            "32-bit operations often have a speed-up of at least 2x over 64-bit ones.",
            "time of matrix products, float64 / float32, from 1,024",
            at.BABOULIN,
            "abstract",
            "any",
            2,
            math.inf,
            True,
        ),
        several(
            pairs("ceilings", {"operation": "gemm", "dtype": "float64"}, {"dtype": "float32"}),
            pairs(
                "catalogue",
                {"workload": "matmul", "dtype": "float64"},
                {"dtype": "float32"},
                keep=lambda p: int(p["n"]) >= 1024,
            ),
        ),
    ),
    Spec(
        Claim(
            "half-2-to-8",
            _THEME,
            "Products in half precision have two to eight times the throughput of single precision.",
            "time of matrix products, float32 (no TF32) / float16",
            at.MIXED,
            "1, introduction",
            "gpu",
            2,
            8,
            True,
        ),
        pairs("precision", {"format": "float32"}, {"format": "float16"}, keep=_EVEN),
    ),
    Spec(
        Claim(
            "tf32-7x",
            _THEME,
            "TF32 gives a float32 product a speed-up of about 7x on an A100.",
            "time of matrix products, float32 / TF32",
            at.CUDA_NOTES,
            "TensorFloat-32 (TF32)",
            "gpu",
            7,
            math.inf,
            False,
        ),
        pairs("precision", {"format": "float32"}, {"format": "tf32"}, keep=_EVEN),
    ),
    Spec(
        Claim(
            "fp8-twice",
            _THEME,
            "FP8 has twice the throughput of 16-bit formats on Tensor Cores.",
            "time of matrix products, bfloat16 / float8_e4m3fn",
            at.HOPPER,
            "fourth-generation Tensor Cores",
            "gpu",
            2,
            math.inf,
            True,
        ),
        pairs("precision", {"format": "bfloat16"}, {"format": "float8_e4m3fn"}, keep=_EVEN),
    ),
    Spec(
        Claim(
            "sizes-of-eight",
            _THEME,
            "Sizes that are multiples of eight are faster, because they map onto Tensor Cores.",
            "time for each FLOP of 16-bit products, 4,095 / 4,096 and similar pairs",
            at.TUNING,
            "Use mixed precision and AMP",
            "gpu",
            1,
            math.inf,
            True,
        ),
        several(
            *(
                pairs(
                    "precision", {"format": name, "n": n - 1}, {"format": name, "n": n}, per=flops
                )
                for name in _HALVES
                for n in (1024, 4096, 8192)
            )
        ),
    ),
    Spec(
        Claim(
            "amp-3x",
            _THEME,
            "Mixed precision gives training a speed-up of up to 3x.",
            "time of a step, float32 / mixed precision",
            at.TUNING,
            "Use mixed precision and AMP",
            "gpu",
            3,
            math.inf,
            False,
        ),
        several(
            *(
                pairs(
                    "training",
                    {"precision": "float32", "means": "plain"},
                    {"precision": name, "means": "plain"},
                )
                for name in _HALVES
            )
        ),
    ),
)
