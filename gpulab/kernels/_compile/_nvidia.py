"""NVIDIA's compiler NVRTC, its headers and its tools, which need no GPU and no driver.

NVIDIA's ``cuda.pathfinder`` finds them in pip's wheels, conda's folders or an installed toolkit.

Each source is compiled in a process of its own (``_nvrtc.py``) and not in the learner's, because a
source can end a compiler (NVRTC dies of 10,000 open brackets on a thread), because an interrupt
must end the work and not wait for it, and because the learner's process may hold another version of
the same library.
"""

from __future__ import annotations

import functools
import pickle
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from gpulab.errors import CompileError, MissingLibraryError, message_of, pip_command

try:
    from cuda import pathfinder
except ImportError:  # there is none for macOS
    pathfinder = None

# nvrtcResult
SUCCESS, INVALID_OPTION = 0, 5
_PROCESS = Path(__file__).with_name("_nvrtc.py")


class Output(NamedTuple):
    """What one run of the compiler gave; ``symbols`` maps each asked name to the name in the
    machine code.
    """

    code: int
    log: str
    ptx: str
    cubin: bytes
    symbols: tuple[tuple[str, str], ...]


def _ask(*request: Any) -> Any:
    """Return the answer of a new process to a request; an interrupt ends it.

    Raises
    ------
    MissingLibraryError
        If NVRTC is not installed here, or cannot be loaded.
    CompileError
        If the process died.
    """
    library = "CUDA C++ is compiled by NVIDIA's nvrtc library, which"
    if sys.platform == "darwin":
        raise MissingLibraryError(
            f"{library} has no macOS build; expected Linux or Windows, with or without a GPU. Run "
            "this cell there."
        )
    # In a session of its own: an interrupt typed at a terminal reaches only the learner's process.
    done = subprocess.run(
        [sys.executable, "-P", str(_PROCESS)],
        input=pickle.dumps(([place for place in sys.path if isinstance(place, str)], request)),
        capture_output=True,
        start_new_session=True,
        check=False,
    )
    if done.returncode:
        code, printed = done.returncode, done.stderr.decode(errors="replace").strip()
        words = printed.rpartition("\n")[2] or "it printed nothing"
        ending = f"signal {-code}" if code < 0 else message_of(words)
        raise CompileError(
            f"compile_cuda: the compiler's process ended ({ending}); expected code or an error. "
            "Nest the source less deeply or make it smaller, and run it again."
        )
    answer = pickle.loads(done.stdout)
    if isinstance(answer, str):
        raise MissingLibraryError(
            f"{library} cannot be loaded here ({message_of(answer)}); it needs no GPU. Run "
            f"{pip_command('install nvidia-cuda-nvrtc')}, then run the cell again."
        )
    return answer


@functools.cache
def compiler() -> tuple[str, tuple[int, ...]]:
    """Return NVRTC's version, such as "13.0", and the compute capabilities that it compiles for,
    times ten: 75, 80, ... 120.

    Raises
    ------
    MissingLibraryError
        If it is not installed.
    """
    found: tuple[str, tuple[int, ...]] = _ask()
    return found


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
    return Output(*_ask(source, options, names))


def find_tool(name: str) -> str | None:
    """Return a program of the toolkit, such as ``nvdisasm``; None if it is not installed."""
    found: str | None = pathfinder.find_nvidia_binary_utility(name) if pathfinder else None
    return found


def include_folders() -> list[str]:
    """Return the folders with CUDA's own headers (``cuda_fp16.h``, ``mma.h``; ``cuda/std`` and
    ``nv`` of CCCL) that are installed.
    """
    names = ("cudart", "nvcc", "cccl") if pathfinder else ()
    found = [place for name in names if (place := pathfinder.locate_nvidia_header_directory(name))]
    # one toolkit's headers only, since those of two versions do not fit together
    fitting = [str(place.abs_path) for place in found if place.found_via == found[0].found_via]
    return list(dict.fromkeys(fitting))
