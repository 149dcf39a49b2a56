"""Runs the tests' kernels under Numba's own simulator and writes what their arrays hold afterwards.

    NUMBA_ENABLE_CUDASIM=1 python numba_simulator.py RESULTS.npz

A process of its own: the simulator replaces ``numba.cuda`` when numba is imported, so the switch must be set before.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

import numpy as np

MODULES = ("kernels_of_the_manual", "kernels_of_puzzles", "kernels_of_ours", "kernels_of_lanes")


def share_arrays_in_a_block() -> None:
    """Give all threads of a block the same shared array, whichever of them asks first.

    Numba's simulator looks whether the line has its array, makes one and stores it: threads that look before the first has stored get
    an array each. ``setdefault`` does both in one step. A line is known by its file and number, as in Numba's own.
    """
    from numba.cuda.simulator import kernelapi

    numbas = kernelapi.FakeCUDAShared.array

    def array(self: Any, shape: Any, dtype: Any, alignment: Any = None) -> Any:
        if shape == 0 or alignment is not None:  # dynamic memory, which is there before the threads begin; what Numba refuses
            return numbas(self, shape, dtype, alignment)
        if isinstance(dtype, kernelapi.types.Type):
            dtype = kernelapi.numpy_support.as_dtype(dtype)
        line = sys._getframe(1)
        return self._allocations.setdefault((line.f_code.co_filename, line.f_lineno), np.empty(shape, dtype))

    kernelapi.FakeCUDAShared.array = array


def main(path: str) -> None:
    """Run each case that Numba's simulator can run."""
    if os.environ.get("NUMBA_ENABLE_CUDASIM") != "1":
        raise SystemExit("numba_simulator: NUMBA_ENABLE_CUDASIM is not set to 1; expected it before numba is imported. Set it.")
    from numba import cuda

    share_arrays_in_a_block()
    results: dict[str, np.ndarray] = {}
    for module in MODULES:
        for case in importlib.import_module(module).CASES:
            if case.numba:
                arguments = case.arguments()
                cuda.jit(case.kernel)[case.grid, case.block, 0, case.dynamic_shared_bytes](*arguments)
                results |= {f"{case.name}/{n}": a for n, a in enumerate(arguments) if isinstance(a, np.ndarray)}
    np.savez(path, **results)


if __name__ == "__main__":
    main(sys.argv[1])
