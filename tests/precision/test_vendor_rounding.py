"""The 8- and 4-bit formats against NVIDIA's own conversions: cuda_fp8.h and cuda_fp4.h of the CUDA toolkit, compiled for this CPU."""

from __future__ import annotations

import ctypes
import importlib.util
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from integer_formats import PUBLISHED

from gpulab import precision

DRIVER = """
#include <cuda_fp8.h>
#include <cuda_fp4.h>
extern "C" void convert(int kind, int saturate, long n, const double *x, unsigned char *out) {
    for (long i = 0; i < n; i++) {
        auto rule = saturate ? __NV_SATFINITE : __NV_NOSAT;
        if (kind == 2) out[i] = __nv_cvt_double_to_fp4(x[i], __NV_E2M1, cudaRoundNearest);
        else out[i] = __nv_cvt_double_to_fp8(x[i], rule, kind ? __NV_E5M2 : __NV_E4M3);
    }
}
"""
KINDS = {"float8_e4m3fn": 0, "float8_e5m2": 1, "float4_e2m1fn": 2}


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The conversions as a shared library; skipped by name where the headers or a compiler are missing."""
    spec = importlib.util.find_spec("nvidia")
    places = (spec.submodule_search_locations if spec else None) or ()
    folders = [path.parent for place in places for path in Path(place).glob("*/include/cuda_fp4.h")]
    compiler = next((found for name in ("g++", "c++", "clang++") if (found := shutil.which(name))), None)
    if not folders or compiler is None:
        pytest.skip("no cuda_fp4.h (pip install nvidia-cuda-runtime nvidia-cuda-crt nvidia-cuda-cccl) or no C++ compiler")
    folder = tmp_path_factory.mktemp("vendor")
    (folder / "driver.cpp").write_text(DRIVER)
    includes = [f"-I{folders[0]}", f"-I{folders[0] / 'cccl'}"]
    command = [compiler, "-O1", "-std=c++17", "-shared", "-fPIC", *includes, str(folder / "driver.cpp"), "-o", str(folder / "driver.so")]
    built = subprocess.run(command, check=False, capture_output=True, text=True)
    if built.returncode:
        pytest.skip(f"the headers did not compile: {built.stderr[-300:]}")
    return ctypes.CDLL(str(folder / "driver.so"))


@pytest.mark.parametrize("saturate", [False, True])
@pytest.mark.parametrize("name", KINDS)
def test_codes_are_nvidias(library: ctypes.CDLL, name: str, saturate: bool) -> None:
    """Every number, every midpoint, its two neighbours, random floats, infinities: the same code, with and without saturation."""
    exact = [float(v) for v in PUBLISHED[name].magnitudes()]
    middles = (np.array(exact[:-1]) + np.array(exact[1:])) / 2
    rng = np.random.default_rng(4)
    spread = 2.0 ** rng.uniform(-30, 20, 50_000)
    beside = [np.nextafter(middles, 0), np.nextafter(middles, np.inf)]
    beyond = 2 * exact[-1] - exact[-2] + np.array([-1, -0.5, -0.4, 0, 1]) * (exact[-1] - exact[-2])
    positive = np.concatenate([exact, middles, *beside, beyond, spread, [np.inf, 5e-324, 1e308]])
    x = np.ascontiguousarray(np.concatenate([positive, -positive]))
    out = np.zeros(len(x), np.uint8)
    library.convert(
        KINDS[name], int(saturate), ctypes.c_long(len(x)), x.ctypes.data_as(ctypes.c_void_p), out.ctypes.data_as(ctypes.c_void_p)
    )
    ours = precision.encode(x, name, overflow="saturate" if saturate else None)
    if name == "float8_e4m3fn":  # the sign of its nan says nothing
        ours, out = (np.where((codes & 0x7F) == 0x7F, 0x7F, codes) for codes in (ours, out))
    np.testing.assert_array_equal(ours, out)


def test_a_nan_is_nvidias(library: ctypes.CDLL) -> None:
    """E2M1 has no nan: NVIDIA's conversion makes it the largest number, and so do we."""
    x, out = np.array([np.nan]), np.zeros(1, np.uint8)
    library.convert(2, 1, ctypes.c_long(1), x.ctypes.data_as(ctypes.c_void_p), out.ctypes.data_as(ctypes.c_void_p))
    assert precision.encode(np.nan, "float4_e2m1fn") == out[0] == 0b0111
