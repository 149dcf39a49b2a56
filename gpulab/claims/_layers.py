"""Claims about pruned, quantized and grouped layers."""

from __future__ import annotations

import math

from gpulab.claims import _sources as at
from gpulab.claims._pairs import Compare, flops, pairs, several
from gpulab.claims._registry import Spec
from gpulab.claims.results import Claim

_THEME = "Lighter layers"
_LINEAR = {"layer": "linear"}


def _linear(first: str, second: str, dtype: str, zeros: float, rows: int | None = None) -> Compare:
    keep = None if rows is None else (lambda p: p["rows"] == rows)
    return pairs(
        "compression",
        {**_LINEAR, "form": first, "dtype": dtype, "zeros": 0.0},
        {"form": second, "zeros": zeros},
        keep=keep,
    )


CLAIMS = (
    Spec(
        Claim(
            "pruned-3x",
            _THEME,
            "A pruned layer (about 90 % zeros) has a speed-up of 3x over the dense one for a "
            "single input.",
            "time of a linear layer for one input, dense / CSR with 90 % zeros",
            at.DEEP_COMPRESSION,
            "abstract",
            "any",
            3,
            math.inf,
            True,
        ),
        _linear("dense", "csr", "float32", 0.9, rows=1),
    ),
    Spec(
        Claim(
            "two-four-twice",
            _THEME,
            "2:4 sparsity doubles the throughput of Tensor Cores.",
            "time of a linear layer, dense float16 / 2:4",
            at.AMPERE,
            "fine-grained structured sparsity",
            "gpu",
            2,
            math.inf,
            True,
        ),
        _linear("dense", "2:4", "float16", 0.5),
    ),
    Spec(
        Claim(
            "int8-2-to-4",
            _THEME,
            "8-bit arithmetic typically has a speed-up of 2x to 4x over float32.",
            "time of a linear layer, float32 / 8-bit kernels",
            at.QUANTIZATION,
            "Introduction to Quantization",
            "cpu",
            2,
            4,
            True,
        ),
        several(
            _linear("dense", "8-bit kernels", "float32", 0.0),
            _linear("dense", "torchao, 8-bit weights and inputs", "float32", 0.0),
        ),
    ),
    Spec(
        Claim(
            "groups-cost-time",
            _THEME,
            "With equal FLOPs, a grouped convolution takes more time than a dense one.",
            "time for each FLOP, in groups / dense",
            at.SHUFFLENET,
            "2, guideline 2",
            "any",
            1,
            math.inf,
            True,
        ),
        several(
            *(
                pairs(
                    "compression",
                    {"layer": "convolution", "groups": groups},
                    {"groups": 1},
                    per=flops,
                )
                for groups in (4, 32, 128)
            )
        ),
    ),
)
