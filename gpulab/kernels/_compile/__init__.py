"""What a compiler makes of a kernel, without a GPU: registers, shared memory, spills, PTX and
machine code.

``compile_cuda`` takes CUDA C++ through NVIDIA's NVRTC; ``compile_python`` takes a numba.cuda-style
Python kernel through numba-cuda. Nothing here runs a kernel.
"""

from __future__ import annotations

from gpulab.kernels._compile._compiled import CompiledModule as CompiledModule
from gpulab.kernels._compile._compiled import KernelFacts as KernelFacts
from gpulab.kernels._compile._cuda import compile_cuda as compile_cuda
from gpulab.kernels._compile._python import compile_python as compile_python
