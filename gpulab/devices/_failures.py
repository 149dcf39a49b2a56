"""Turn what libraries raise when memory runs out or a device vanishes into one of gpulab's errors.

Exception types are recognized by name and by words in their message, so nothing is imported to
inspect an error, and libraries that were never loaded cost nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from gpulab.devices import _nvml
from gpulab.errors import DeviceError, GpulabError, OutOfMemoryError, message_of, pip_command

# torch.OutOfMemoryError (also torch.cuda.OutOfMemoryError), cupy.cuda.memory.OutOfMemoryError,
# numpy's _ArrayMemoryError.
_MEMORY_TYPES = {"OutOfMemoryError", "_ArrayMemoryError", "MemoryError", "XpuOutOfMemoryError"}
_MEMORY_WORDS = (
    "out of memory",
    "can't allocate memory",
    "not enough memory",
    "cudaerrormemoryallocation",
    "cublas_status_alloc_failed",
    "insufficient resources",
)
# torch.AcceleratorError, cupy_backends' runtime and driver errors, pynvml's NVMLError children.
_DEVICE_TYPES = (
    "AcceleratorError",
    "CUDARuntimeError",
    "CUDADriverError",
    "NVMLError",
    "CUBLASError",
    "CUDNNError",
    "CUFFTError",
)
_DEVICE_WORDS = (
    "cuda error",
    "hip error",
    "cuda-capable device",
    "no cuda gpus are available",
    "device-side assert",
    "device lost",
    "illegal memory access",
    "nvidia driver",
    "cublas_status",
    "xpu error",
    "mps backend",
)

# Of these, what was asked for could not be launched, and the device is as it was. CUDA's manual
# (Runtime API, cudaError) asks for a new process only after faults inside a kernel, such as
# cudaErrorIllegalAddress or cudaErrorLaunchFailure.
_CALL_WORDS = (
    "invalid argument",
    "invalid configuration argument",
    "invalid device function",
    "too many resources requested for launch",
    "no kernel image is available",  # a build of PyTorch without code for this GPU
    "cublas_status_not_supported",
    "cublas_status_invalid_value",
)

# Code of a newer CUDA than the driver's: what the driver says of PTX
# (CUDA_ERROR_UNSUPPORTED_PTX_VERSION, 222) and of machine code (CUDA_ERROR_INVALID_IMAGE, 200),
# CUDA's runtime of the first, and ptxas, whose words numba-cuda and nvJitLink pass on.
_NEWER_CODE_WORDS = (
    "unsupported toolchain",
    "unsupported_ptx_version",
    "unsupportedptxversion",
    "unsupported .version",
    "device kernel image is invalid",
    "cuda_error_invalid_image",
)


def translate(error: BaseException, doing: str) -> GpulabError | None:
    """Return gpulab's error for what happened, or None where neither memory nor the device is the
    cause.

    Parameters
    ----------
    error : exception
        What a library raised.
    doing : str
        What was being done, with its values, such as "to_device: copying 4.00 GiB to cuda:0".

    Returns
    -------
    GpulabError or None
        ``OutOfMemoryError`` or ``DeviceError``, one sentence each; an error of gpulab is returned
        unchanged.
    """
    if isinstance(error, GpulabError):
        return error
    kinds = {kind.__name__ for kind in type(error).__mro__}
    message = message_of(error, 10_000).lower()
    library = isinstance(error, RuntimeError) or kinds & set(_DEVICE_TYPES)
    if kinds & _MEMORY_TYPES or (library and any(words in message for words in _MEMORY_WORDS)):
        return OutOfMemoryError(
            f"{doing}: there is not enough free memory; expected it to fit. Use a "
            "smaller size, or call gl.memory.release() to free what earlier cells hold."
        )
    if any(words in message for words in _NEWER_CODE_WORDS):
        return DeviceError(_newer_than_the_driver(error, doing))
    if kinds & set(_DEVICE_TYPES) or (library and any(words in message for words in _DEVICE_WORDS)):
        if any(words in message for words in _CALL_WORDS):
            return DeviceError(
                f"{doing}: the device refused the call ({_first_line(error)}); expected a launch "
                "and a dtype that it supports. "
                "Check block size, shapes and dtype; `gpulab doctor` reports whether this PyTorch "
                "fits the GPU."
            )
        return DeviceError(
            f"{doing}: the device stopped answering ({_first_line(error)}); expected it to stay "
            "usable. "
            "Save your work and restart the kernel; if it happens again, run `gpulab doctor`."
        )
    return None


@contextlib.contextmanager
def guard(doing: str) -> Iterator[None]:
    """Raise ``OutOfMemoryError`` or ``DeviceError`` in place of a library's own error inside the
    block.

    Parameters
    ----------
    doing : str
        What the block does, with its values, for the sentence.
    """
    try:
        yield
    except Exception as error:
        ours = translate(error, doing)
        if ours is None or ours is error:
            raise
        raise ours from error


def _newer_than_the_driver(error: BaseException, doing: str) -> str:
    """Return what is said of code that was compiled for a newer CUDA than the driver runs, with
    what to install.
    """
    driver = _nvml.probe()
    which, remedy, compilers = (
        "the NVIDIA driver",
        "Update the driver",
        f'install "cuda-toolkit[nvcc,nvrtc,nvjitlink]=={driver.cuda}.*"',
    )
    if driver.cuda:
        which = f"the driver {driver.version}, which runs CUDA {driver.cuda}"
        # CUDA 13's wheels have names and a folder of their own, into which libraries look first.
        newer = (
            f", after {pip_command('uninstall -y nvidia-cuda-nvrtc nvidia-nvjitlink nvidia-nvvm')}"
            if driver.cuda < "13"
            else ""
        )
        remedy += f", or install the compilers of its CUDA with {pip_command(compilers)}{newer}"
    return (
        f"{doing}: the code was compiled for a newer CUDA than that of {which} "
        f"({_first_line(error)}); expected code that the driver can "
        f"load. {remedy}, and restart the kernel."
    )


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = lines[0].rstrip(".:") if lines else type(error).__name__
    return text if len(text) <= 120 else text[:117] + "..."
