"""What a compiler makes of a kernel, without a GPU: registers, shared memory, spills, PTX and
machine code.

``compile_cuda`` takes CUDA C++ through NVIDIA's NVRTC; ``compile_python`` takes a numba.cuda-style
Python kernel through numba-cuda. Nothing here runs a kernel.
"""
