"""What a compiler makes of a kernel, without a GPU: registers, shared memory, spills, code.

- ``_cuda`` is ``compile_cuda``: CUDA C++ through NVIDIA's NVRTC, with errors shown at their line;
  and the result, with what the machine code says.
- ``_python`` is ``compile_python``: a numba.cuda-style kernel through numba-cuda; it also finds
  what a kernel needs from outside, for compiling and for launching.
- ``_nvrtc`` is the process in which NVIDIA's compiler runs.

Nothing here runs a kernel.
"""
