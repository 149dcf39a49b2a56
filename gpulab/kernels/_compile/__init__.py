"""What a compiler makes of a kernel, without a GPU: registers, shared memory, spills, code.

- ``_cuda`` is ``compile_cuda``: CUDA C++ through NVIDIA's NVRTC, with errors shown at their line.
  It also has the result class, and reads the facts in the machine code.
- ``_python`` is ``compile_python``: a numba.cuda-style kernel through numba-cuda. It also finds the
  globals and closure variables that a kernel uses, for compiling and for launching.
- ``_nvrtc`` is the process in which NVIDIA's compiler runs.

Nothing here runs a kernel.
"""
