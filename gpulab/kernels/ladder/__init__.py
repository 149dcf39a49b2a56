"""The course's kernels as ladders: each rung does the same work with less waste.

The same functions run under the microscope, in the notebook, in the recorder and in benchmarks;
``launch`` runs them on a GPU unchanged. CUDA C++ goes on where Python's kernels end: see
``CUDA_RUNGS``. The kernels of both languages belong to the course: they are the files in
``course/04/ladder``.
"""

from pathlib import Path

__path__.append(str(Path(__file__).parents[2] / "course" / "04" / "ladder"))

from gpulab.kernels.ladder.kernels import (  # type: ignore[import-not-found] # noqa: E402, I001
    gate_chunks,
    gate_each,
    gate_grid_stride,
    histogram_global,
    histogram_private,
    matmul_coalesced,
    matmul_naive,
    matmul_registers_1d,
    matmul_registers_2d,
    matmul_tiled,
    softmax_kept,
    softmax_three_walks,
    sum_grid_stride,
    sum_interleaved,
    sum_sequential,
    sum_shuffle,
    sum_strided,
    transpose_naive,
    transpose_padded,
    transpose_tiled,
)
from gpulab.kernels.ladder._rungs import (  # noqa: E402
    CUDA_RUNGS,
    RUNGS,
    Rung,
    families,
    family,
    rung,
)

__all__ = [
    "CUDA_RUNGS",
    "RUNGS",
    "Rung",
    "families",
    "family",
    "gate_chunks",
    "gate_each",
    "gate_grid_stride",
    "histogram_global",
    "histogram_private",
    "matmul_coalesced",
    "matmul_naive",
    "matmul_registers_1d",
    "matmul_registers_2d",
    "matmul_tiled",
    "rung",
    "softmax_kept",
    "softmax_three_walks",
    "sum_grid_stride",
    "sum_interleaved",
    "sum_sequential",
    "sum_shuffle",
    "sum_strided",
    "transpose_naive",
    "transpose_padded",
    "transpose_tiled",
]
