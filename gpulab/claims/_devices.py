"""Claims about devices: what size and shape of work suits them, and a GPU compared with a CPU."""

from __future__ import annotations

import math

from gpulab.claims import _sources as at
from gpulab.claims._pairs import Compare, beside_cpu, flops, pairs, several
from gpulab.claims._registry import Spec
from gpulab.claims.results import Claim

_THEME = "Devices and sizes"
_THROUGHPUT = (
    "matmul",
    "attention",
    "solve",
    "add",
    "exp",
    "sum",
    "softmax",
    "fft",
    "sort",
    "conv2d",
)


def _growing() -> Compare:
    return several(
        *(
            pairs(
                "catalogue",
                {"workload": "matmul", "n": n, "dtype": "float32"},
                {"n": 2 * n},
                per=flops,
            )
            for n in (64, 128, 256, 512)
        )
    )


CLAIMS = (
    Spec(
        Claim(
            "larger-products",
            _THEME,
            "Larger matrix products reach more of the device's arithmetic.",
            "time for each FLOP, a size / twice the size, 64 to 1,024",
            at.MATMUL_GUIDE,
            "Typical Tile Dimensions In cuBLAS And Performance",
            "any",
            1,
            math.inf,
            True,
        ),
        _growing(),
    ),
    Spec(
        Claim(
            "activations-alike",
            _THEME,
            "All pointwise functions take about as long as their memory traffic; the choice of "
            "function hardly matters.",
            "time for 64 Mi elements, GELU / exp",
            at.MEMORY_GUIDE,
            "Activations",
            "any",
            0.8,
            1.25,
            True,
        ),
        pairs(
            "catalogue",
            {"workload": "gelu", "n": 67108864, "dtype": "float32"},
            {"workload": "exp"},
        ),
    ),
    Spec(
        Claim(
            "depthwise-time",
            _THEME,
            "Fewer FLOPs do not reduce the time in proportion: FLOPs alone do not determine the "
            "speed.",
            "time for each FLOP of a convolution, depthwise / dense",
            at.SHUFFLENET,
            "1, introduction",
            "any",
            1,
            math.inf,
            True,
        ),
        pairs(
            "catalogue",
            {"workload": "depthwise_conv2d", "dtype": "float32"},
            {"workload": "conv2d"},
            per=flops,
        ),
    ),
    Spec(
        Claim(
            "gpu-10-to-1000",
            _THEME,
            "A GPU has a speed-up of 10x to 1,000x over a CPU (claims of others that the paper "
            "reports).",
            "time on the recorded CPU / time on the GPU, float32, every size",
            at.DEBUNKING,
            "abstract",
            "gpu",
            10,
            1000,
            True,
        ),
        beside_cpu("catalogue", lambda p: p["dtype"] == "float32"),
    ),
    Spec(
        Claim(
            "gpu-2-5",
            _THEME,
            "With both tuned, a GPU has a small speed-up over a CPU: 2.5x on average, at most 15x.",
            "time on the recorded CPU / time on the GPU, float32, ten workloads at the largest "
            "size recorded on both",
            at.DEBUNKING,
            "abstract, table of results",
            "gpu",
            0,
            15,
            True,
        ),
        beside_cpu(
            "catalogue",
            lambda p: p["workload"] in _THROUGHPUT and p["dtype"] == "float32",
            largest=True,
        ),
    ),
)
