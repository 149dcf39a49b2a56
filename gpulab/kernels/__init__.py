"""One kernel in Python: under the microscope, through the compiler, and on a GPU.

``simulate`` runs a kernel as warps in lockstep and counts what they do; ``compile_python`` and
``compile_cuda`` show what the compiler makes of it; ``launch`` runs it on a GPU; ``simulated``
sends the launches of a whole program to the microscope. Nothing is imported before it is used.

``simulation`` contains the microscope, ``_compile`` the compilers, ``_launch`` the launches on a
GPU, and ``_arguments`` the checks that all of them share. ``_language`` has the names that kernels
use, ``_generated`` shows the code that ``torch.compile`` writes, and ``ladder`` has the course's
kernels.
"""

from __future__ import annotations

from gpulab._first_use import on_first_use as _on_first_use

# Public name -> the module that defines it.
_PUBLIC: dict[str, str] = {
    "simulate": "gpulab.kernels.simulation._simulate",
    "Simulation": "gpulab.kernels.simulation.report",
    "Finding": "gpulab.kernels.simulation.report",
    "simulated": "gpulab.kernels.scripts",
    "ScriptReport": "gpulab.kernels.scripts",
    "compile_cuda": "gpulab.kernels._compile._cuda",
    "compile_python": "gpulab.kernels._compile._python",
    "CompiledModule": "gpulab.kernels._compile._cuda",
    "KernelFacts": "gpulab.kernels._compile._cuda",
    "launch": "gpulab.kernels._launch",
    "launcher": "gpulab.kernels._launch",
    "Launcher": "gpulab.kernels._launch",
    "launch_cuda": "gpulab.kernels._launch",
    "cuda_launcher": "gpulab.kernels._launch",
    "generated": "gpulab.kernels._generated",
    "GeneratedCode": "gpulab.kernels._generated",
    "cuda": "gpulab.kernels._language",
    **dict.fromkeys(
        (
            "int8",
            "int16",
            "int32",
            "int64",
            "uint8",
            "uint16",
            "uint32",
            "uint64",
            "float16",
            "float32",
            "float64",
        ),
        "gpulab.kernels._language",
    ),
}

__all__ = [*_PUBLIC]  # noqa: PLE0604
__getattr__, __dir__ = _on_first_use(__name__, _PUBLIC)
