"""Where NVIDIA's compiler libraries, tools and headers are: pip's wheels first, then conda's
folders, then an installed toolkit.

Nothing is imported or loaded to find them, and no GPU or driver is needed. The layouts are those of
the wheels for CUDA 12 and 13 on Linux and Windows, of conda-forge's packages, and of NVIDIA's own
installer.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpulab.errors import MissingLibraryError, pip_command

_WINDOWS = os.name == "nt"
# What each library is for, and the wheel that brings it.
_WHEELS = {
    "nvrtc": ("CUDA C++ is compiled", "nvidia-cuda-nvrtc"),
    "nvJitLink": ("PTX is assembled", "nvidia-nvjitlink"),
}
_SUBFOLDERS = (
    "lib",
    "lib64",
    "bin",
    "bin/x86_64",
    "bin/x64",
    "Library/bin",
    "Library/bin/x64",
    "targets/x86_64-linux/lib",
    "targets/sbsa-linux/lib",
)
_INCLUDES = (
    "include",
    "Library/include",
    "targets/x86_64-linux/include",
    "targets/sbsa-linux/include",
)
# CUDA 12's wheels have one folder for each library; CUDA 13's share one, nvidia/cu13.
_FOLDERS_OF_CUDA_12 = (
    "cuda_nvrtc",
    "nvjitlink",
    "cuda_runtime",
    "cuda_cccl",
    "cuda_nvcc",
    "cuda_nvdisasm",
)


def _version(path: Path) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", path.name))


def roots() -> Iterator[Path]:
    """Yield the folders that may hold CUDA's ``lib``, ``bin`` and ``include``, the preferred
    first.
    """
    spec = importlib.util.find_spec("nvidia")
    for place in spec.submodule_search_locations or () if spec is not None else ():
        yield from sorted(Path(place).glob("cu[0-9]*"), key=_version, reverse=True)
        yield from (Path(place) / name for name in _FOLDERS_OF_CUDA_12)
    yield Path(sys.prefix)
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if os.environ.get(variable):
            yield Path(os.environ[variable])
    yield Path("/usr/local/cuda")


def find_library(name: str) -> Path | None:
    """Return the file of ``nvrtc`` or ``nvJitLink``, the newest of the first folder that has one;
    None if there is none.
    """
    pattern, form = (
        (f"{name}64_*.dll", rf"{name}64_\d+_\d+\.dll")
        if _WINDOWS
        else (f"lib{name}.so.*", rf"lib{name}\.so\.[\d.]+")
    )
    if _WINDOWS and name == "nvJitLink":
        pattern, form = f"{name}_*.dll", rf"{name}_\d+_\d+\.dll"
    for root in roots():
        for below in _SUBFOLDERS:
            found = [path for path in (root / below).glob(pattern) if re.fullmatch(form, path.name)]
            if found:
                return max(found, key=_version)
    return None


def find_tool(name: str) -> Path | None:
    """Return a program of the toolkit, such as ``nvdisasm``; None if it is not installed."""
    file = f"{name}.exe" if _WINDOWS else name
    for root in roots():
        for below in ("bin", "Library/bin"):
            if (root / below / file).is_file():
                return root / below / file
    return None


def include_folders() -> list[Path]:
    """Return the folders with CUDA's own headers (``cuda_fp16.h``, ``mma.h``; ``cuda/std`` and
    ``nv`` of CCCL) that are installed.
    """
    nvrtc = find_library("nvrtc")
    toolkit = next(filter(None, map(_wheels, nvrtc.parents)), "") if nvrtc else ""
    found = {root: folders for root in roots() if (folders := _headers_of(root))}

    def rank(root: Path) -> tuple[bool, bool]:
        return not any((folder / "cuda_fp16.h").is_file() for folder in found[root]), _wheels(
            root
        ) != toolkit

    # One toolkit's headers only, the compiler's if they are there, since those of two versions do
    # not fit together; but its wheels may lie in two environments.
    best = sorted(found, key=rank)
    return [
        folder
        for root in best
        if root == best[0] or _wheels(root) == _wheels(best[0]) != ""
        for folder in found[root]
    ]


def _wheels(root: Path) -> str:
    """Return the toolkit of which pip's wheels fill a folder, such as "cu13"; "" of any other
    folder.
    """
    return (
        ""
        if root.parent.name != "nvidia"
        else "cu12"
        if root.name in _FOLDERS_OF_CUDA_12
        else root.name
    )


def _headers_of(root: Path) -> list[Path]:
    folders = [
        root / below
        for below in _INCLUDES
        if any((root / below / name).exists() for name in ("cuda_fp16.h", "crt", "nv/target"))
    ]
    return folders + [
        root / below / "cccl"
        for below in _INCLUDES
        if (root / below / "cccl" / "nv" / "target").is_file()
    ]


def missing(name: str) -> MissingLibraryError:
    """Return the error for a library that is not installed, with the command that installs it."""
    what, wheel = _WHEELS[name]
    library = f"{what} by NVIDIA's {name} library, which"
    if sys.platform == "darwin":
        return MissingLibraryError(
            f"{library} has no macOS build; expected Linux or Windows, with or without a GPU. Run "
            "this cell there."
        )
    return MissingLibraryError(
        f"{library} is not installed here; it needs no GPU. Run {pip_command(f'install {wheel}')}, "
        "then run the cell again."
    )


def load(name: str) -> Any:
    """Load a library through ctypes, with the files beside it that it will look for.

    Raises
    ------
    MissingLibraryError
        If it is not installed here, or cannot be loaded.
    """
    path = None if sys.platform == "darwin" else find_library(name)
    if path is None:
        raise missing(name)
    try:
        if _WINDOWS:
            os.add_dll_directory(str(path.parent))  # type: ignore[attr-defined,unused-ignore]
        else:
            # NVRTC opens its builtins by bare name, which the loader only knows once they are
            # loaded
            for beside in sorted(path.parent.glob(f"lib{name}-builtins.so.*")):
                ctypes.CDLL(str(beside))
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise MissingLibraryError(
            f"{path} cannot be loaded ({error}); expected NVIDIA's {name} for this system. "
            f"Run {pip_command(f'install --force-reinstall {_WHEELS[name][1]}')}."
        ) from error
