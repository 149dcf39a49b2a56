"""What a compiler makes of a kernel, without a GPU: registers, shared memory, spills, code.

- ``_cuda`` is ``compile_cuda``: CUDA C++ through NVIDIA's NVRTC, with errors shown at their line;
  and the result, with what the machine code says.
- ``_python`` is ``compile_python``: a numba.cuda-style kernel through numba-cuda, which runs in a
  process of its own (``_numba_worker``).
- ``_nvidia`` finds NVIDIA's libraries and calls them in a helper process.

Nothing here runs a kernel.
"""
