"""NVIDIA's compiler libraries NVRTC and nvJitLink: where they are, and the helper process that
loads them through ctypes. The learner's own process never loads them; no GPU, no driver.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import importlib.util
import inspect
import os
import pickle
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, ParamSpec, TypeVar, cast

import gpulab
from gpulab.errors import CompileError, GpulabError, MissingLibraryError, message_of, pip_command
from gpulab.kernels._compile import _numba_worker

P = ParamSpec("P")
T = TypeVar("T")

# -------------------------------------------------------------------------------------------------
# Where NVIDIA's compiler libraries, tools and headers are: pip's wheels first, then conda's
# folders, then an installed toolkit.
#
# Nothing is imported or loaded to find them, and no GPU or driver is needed. The layouts are those
# of the wheels for CUDA 12 and 13 on Linux and Windows, of conda-forge's packages, and of NVIDIA's
# own installer.


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


def _numbers_in(path: Path) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", path.name))


def roots() -> Iterator[Path]:
    """Yield the folders that may hold CUDA's ``lib``, ``bin`` and ``include``, the preferred
    first.
    """
    spec = importlib.util.find_spec("nvidia")
    for place in spec.submodule_search_locations or () if spec is not None else ():
        yield from sorted(Path(place).glob("cu[0-9]*"), key=_numbers_in, reverse=True)
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
    form = rf"{name}(64)?_\d+_\d+\.dll" if _WINDOWS else rf"lib{name}\.so\.[\d.]+"
    for folder in (root / below for root in roots() for below in _SUBFOLDERS):
        found = [path for path in folder.glob(f"*{name}*") if re.fullmatch(form, path.name)]
        if found:
            return max(found, key=_numbers_in)
    return None


def find_tool(name: str) -> Path | None:
    """Return a program of the toolkit, such as ``nvdisasm``; None if it is not installed."""
    file = f"{name}.exe" if _WINDOWS else name
    places = (root / below / file for root in roots() for below in ("bin", "Library/bin"))
    return next(filter(Path.is_file, places), None)


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


def missing_library(name: str) -> MissingLibraryError:
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


@functools.cache
def _load(name: str) -> Any:
    """Load a library through ctypes, with the files beside it that it will look for.

    Raises
    ------
    MissingLibraryError
        If it is not installed here, or cannot be loaded.
    """
    path = None if sys.platform == "darwin" else find_library(name)
    if path is None:
        raise missing_library(name)
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
            f"{path} cannot be loaded ({error}); expected NVIDIA's {name} for this system. Run "
            f"{pip_command(f'install --force-reinstall {_WHEELS[name][1]}')}."
        ) from error


# -------------------------------------------------------------------------------------------------
# A helper process that compiles: started on first use, kept for the next request, ended with the
# session or by an interrupt.
#
# Compilers run there and not in the learner's process, because a source can end a compiler (NVRTC
# dies of 10,000 open brackets on a thread), because an interrupt must end the work and not wait
# for it, and because the process may hold another version of the same library.


class Worker:
    """One process that answers pickled requests on its standard input, one after another, on its
    standard output.

    Parameters
    ----------
    who : str
        The public function that messages begin with.
    command : sequence of str
        What runs, after the interpreter.
    """

    def __init__(self, who: str, command: Sequence[str]) -> None:
        self.who, self.command = who, command
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._owner: int  # which process started it; known once one did
        self._errors: IO[bytes] | None = None
        atexit.register(self.close)

    def ask(self, request: Any) -> Any:
        """Return the answer to a request; an interrupt ends the process, and the next request
        starts another.

        Raises
        ------
        CompileError
            If the process died.
        """
        with self._lock:
            try:
                process: Any = self._started()
                pickle.dump(request, process.stdin)
                process.stdin.flush()
                return pickle.load(process.stdout)
            except (OSError, EOFError, pickle.UnpicklingError):
                ending = self._last_words()
                self._stop()
            except BaseException:
                self._stop()
                raise
        raise CompileError(
            f"{self.who}: the compiler's process ended ({ending}); expected code or an error. Nest "
            "the source less deeply or make it smaller, and run it again."
        )

    def close(self) -> None:
        """End the process."""
        with self._lock:
            self._stop()

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._owner != os.getpid():
            self._process = None  # this is a fork: the process belongs to the parent
        if self._process is None or self._process.poll() is not None:
            environment = {
                name: value for name, value in os.environ.items() if name != "NUMBA_ENABLE_CUDASIM"
            }
            environment["NUMBA_DISABLE_ERROR_MESSAGE_HIGHLIGHTING"] = "1"
            self._errors = tempfile.TemporaryFile()  # noqa: SIM115
            # A session of its own, so that an interrupt typed at a terminal reaches only the
            # learner's process.
            self._process = subprocess.Popen(
                [sys.executable, "-P", *self.command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                env=environment,
                start_new_session=True,
            )
            self._owner = os.getpid()
        return self._process

    def _last_words(self) -> str:
        """How the process ended: the signal, or the last line that it wrote."""
        if self._process is None or self._errors is None:
            return "it printed nothing"
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(5)
        if self._process.returncode is not None and self._process.returncode < 0:
            return f"signal {-self._process.returncode}"
        self._errors.seek(0)
        rows = self._errors.read().decode(errors="replace").strip().splitlines()
        return message_of(rows[-1]) if rows else "it printed nothing"

    def _stop(self) -> None:
        process, self._process = self._process, None
        if process is None or self._owner != os.getpid():
            return
        process.kill()
        with contextlib.suppress(OSError, ValueError):
            process.communicate()
        if self._errors is not None:
            self._errors.close()


# -------------------------------------------------------------------------------------------------
# What the helper process does, and how it is asked.


# What is no text, such as a Path that a learner put there, Python passes over.
_PATH = ascii(
    [
        str(Path(gpulab.__file__).parent.parent),
        *(place for place in sys.path if isinstance(place, str)),
    ]
)
_worker = Worker(
    "compile_cuda",
    [
        "-c",
        f"import sys; sys.path[:] = {_PATH}; from gpulab.kernels._compile._nvidia import serve; "
        "serve()",
    ],
)


def _in_helper(library: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Return a decorator: a call of the function runs in the helper process, which loads the
    library.
    """

    def decorated(function: Callable[P, T]) -> Callable[P, T]:
        @functools.wraps(function)
        def ask(*arguments: P.args, **_: P.kwargs) -> T:
            if find_library(library) is None:
                raise missing_library(library)  # known without starting a process
            answer = _worker.ask((function.__name__, arguments))
            if isinstance(answer, GpulabError):
                raise answer
            return cast(T, answer)

        return ask

    return decorated


def serve() -> None:
    """Answer requests until the input ends; the helper process runs this."""
    # what NVRTC takes from its cache on disk comes without the assembler's log
    os.environ["CUDA_CACHE_DISABLE"] = "1"

    def answer(request: tuple[str, tuple[Any, ...]]) -> Any:
        function, arguments = request
        try:
            return inspect.unwrap(globals()[function])(*arguments)
        except GpulabError as error:
            return error

    _numba_worker.serve(answer)


def _output(library: Any, function: str, handle: ctypes.c_void_p) -> bytes:
    """Return what one of a library's ``Get`` functions gives; empty if there is nothing."""
    size = ctypes.c_size_t()
    if getattr(library, f"{function}Size")(handle, ctypes.byref(size)) or not size.value:
        return b""
    buffer = ctypes.create_string_buffer(size.value)
    getattr(library, function)(handle, buffer)
    return buffer.raw


def _text(library: Any, function: str, handle: ctypes.c_void_p) -> str:
    return _output(library, function, handle).rstrip(b"\0").decode(errors="replace")


def _texts(values: Sequence[str]) -> Any:
    """Return texts as C has them: an array of pointers."""
    return (ctypes.c_char_p * len(values))(*[value.encode() for value in values])


# -------------------------------------------------------------------------------------------------
# NVRTC, the run-time compiler: CUDA C++ in; PTX, machine code and the compilers' words out.
#
# Source: NVRTC's reference, CUDA 13.0 (https://docs.nvidia.com/cuda/nvrtc): nvrtcCompileProgram,
# nvrtcGetCUBIN, nvrtcGetLoweredName.


# nvrtcResult
SUCCESS, INVALID_OPTION = 0, 5
FILE = "kernel.cu"


@dataclass(frozen=True)
class Output:
    """What one run of the compiler gave; ``symbols`` maps each asked name to the name in the
    machine code.
    """

    code: int
    log: str
    ptx: str = ""
    cubin: bytes = b""
    symbols: tuple[tuple[str, str], ...] = ()


@functools.cache
@_in_helper("nvrtc")
def version() -> str:
    """Return NVRTC's version, such as "13.0".

    Raises
    ------
    MissingLibraryError
        If it is not installed.
    """
    major, minor = ctypes.c_int(), ctypes.c_int()
    _load("nvrtc").nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    return f"{major.value}.{minor.value}"


@functools.cache
@_in_helper("nvrtc")
def architectures() -> tuple[int, ...]:
    """Return the compute capabilities that NVRTC compiles for, times ten: 75, 80, ... 120.

    Raises
    ------
    MissingLibraryError
        If it is not installed.
    """
    nvrtc, count = _load("nvrtc"), ctypes.c_int()
    nvrtc.nvrtcGetNumSupportedArchs(ctypes.byref(count))
    found = (ctypes.c_int * count.value)()
    nvrtc.nvrtcGetSupportedArchs(found)
    return tuple(found)


@_in_helper("nvrtc")
def compile_program(source: str, options: Sequence[str], names: Sequence[str] = ()) -> Output:
    """Compile a source whose text and options hold no NUL; what the compiler refuses is in the
    output's code.

    Raises
    ------
    MissingLibraryError
        If NVRTC is not installed.
    CompileError
        If the source ended the compiler.
    """
    nvrtc, program = _load("nvrtc"), ctypes.c_void_p()
    nvrtc.nvrtcGetErrorString.restype = ctypes.c_char_p
    # where this fails, so does the compilation, and says why
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), FILE.encode(), 0, None, None)
    try:
        for name in names:
            nvrtc.nvrtcAddNameExpression(program, name.encode())
        code = nvrtc.nvrtcCompileProgram(program, len(options), _texts(options))
        log = _text(nvrtc, "nvrtcGetProgramLog", program).strip()
        if code != SUCCESS:
            return Output(code, log or nvrtc.nvrtcGetErrorString(code).decode())
        symbols = []
        for name in names:
            lowered = ctypes.c_char_p()
            nvrtc.nvrtcGetLoweredName(program, name.encode(), ctypes.byref(lowered))
            symbols.append((name, (lowered.value or b"").decode()))
        ptx, cubin = (
            _text(nvrtc, "nvrtcGetPTX", program),
            _output(nvrtc, "nvrtcGetCUBIN", program),
        )
        return Output(code, log, ptx, cubin, tuple(symbols))
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


# -------------------------------------------------------------------------------------------------
# nvJitLink, the linker: LTO-IR in, machine code out, as numba-cuda does for a launch.
#
# Source: nvJitLink's reference, CUDA 13.0 (https://docs.nvidia.com/cuda/nvjitlink).


_LTOIR = 3  # NVJITLINK_INPUT_LTOIR


@_in_helper("nvJitLink")
def link(ltoir: bytes, arch: str, options: Sequence[str] = ()) -> tuple[bytes, str, str]:
    """Return (machine code, the PTX between, the assembler's log) of a piece of LTO-IR, optimized
    as numba-cuda's own launches are.

    Raises
    ------
    CompileError
        If the linker or the assembler refuses it.
    MissingLibraryError
        If nvJitLink is not installed.
    """
    cubin, log = _linked(ltoir, arch, ["-lto", "-verbose", "-Xptxas=-v", *options], "LinkedCubin")
    ptx, _ = _linked(ltoir, arch, ["-lto", "-ptx", *options], "LinkedPtx")
    return cubin, ptx.rstrip(b"\0").decode(errors="replace"), log


def _linked(ltoir: bytes, arch: str, options: Sequence[str], what: str) -> tuple[bytes, str]:
    linker, handle = _load("nvJitLink"), ctypes.c_void_p()
    flags = [f"-arch={arch}", *options]
    code = linker.nvJitLinkCreate(ctypes.byref(handle), len(flags), _texts(flags))
    try:
        code = (
            code
            or linker.nvJitLinkAddData(handle, _LTOIR, ltoir, len(ltoir), b"kernel.ltoir")
            or linker.nvJitLinkComplete(handle)
        )
        log = "\n".join(
            _text(linker, f"nvJitLinkGet{name}", handle).strip() for name in ("ErrorLog", "InfoLog")
        ).strip()
        if code != 0:
            raise CompileError(
                f"compile_python: the assembler refused the code for {arch} "
                f"({message_of(log, 300) or f'error {code}'}); expected fewer bytes or another "
                "arch. Fix the kernel and run it again.",
                log=log,
            )
        return _output(linker, f"nvJitLinkGet{what}", handle), log
    finally:
        if handle:
            linker.nvJitLinkDestroy(ctypes.byref(handle))
