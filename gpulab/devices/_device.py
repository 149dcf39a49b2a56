"""A device: its name, its memory, how to wait for it, and how it is found (in the order CUDA or
ROCm, XPU, MPS, CPU). Errors that libraries raise when a device's memory runs out, or when it
vanishes, are translated into gpulab's errors.

Exception types are recognized by name and by words in their message, so nothing is imported to
inspect an error, and libraries that were never loaded cost nothing.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import platform
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from gpulab.devices import host_facts, nvml
from gpulab.errors import (
    DeviceError,
    GpulabError,
    InputError,
    OutOfMemoryError,
    kind_of,
    message_of,
    pip_command,
    shown,
)
from gpulab.evidence import Environment
from gpulab.results import Result

_KINDS = ("cpu", "cuda", "rocm", "xpu", "mps")

# torch.OutOfMemoryError (also torch.cuda.OutOfMemoryError), cupy.cuda.memory.OutOfMemoryError,
# numpy's _ArrayMemoryError.
_MEMORY_TYPES = {"OutOfMemoryError", "_ArrayMemoryError", "MemoryError", "XpuOutOfMemoryError"}
_MEMORY_WORDS = (
    "out of memory",
    "cuda_error_out_of_memory",
    "can't allocate memory",
    "not enough memory",
    "cudaerrormemoryallocation",
    "cublas_status_alloc_failed",
    "insufficient resources",
)
# torch.AcceleratorError, cupy_backends' runtime and driver errors, pynvml's NVMLError children.
_DEVICE_TYPES = {
    "AcceleratorError",
    "CUDARuntimeError",
    "CUDADriverError",
    "NVMLError",
    "CUBLASError",
    "CUDNNError",
    "CUFFTError",
}
_DEVICE_WORDS = (
    "cuda error",
    "cuda_error_illegal_address",
    "cuda_error_launch_failed",
    "cuda_error_launch_timeout",
    "cuda_error_misaligned_address",
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

# With one of these, the call could not be launched, and the device is still usable. CUDA's manual
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

# Code was compiled for a newer CUDA than the driver's. These words come from the driver, for PTX
# (CUDA_ERROR_UNSUPPORTED_PTX_VERSION, 222) and for machine code (CUDA_ERROR_INVALID_IMAGE, 200);
# from CUDA's runtime, for PTX; and from ptxas, whose messages numba-cuda and nvJitLink pass on.
_NEWER_CODE_WORDS = (
    "unsupported toolchain",
    "unsupported_ptx_version",
    "unsupportedptxversion",
    "unsupported .version",
    "device kernel image is invalid",
    "cuda_error_invalid_image",
)


@dataclass(frozen=True)
class Device(Result):
    """One processor that can hold arrays and compute.

    Attributes
    ----------
    kind : str
        "cpu", "cuda", "rocm", "xpu" or "mps".
    index : int
        0 for the first of its kind.

    ``str(device)`` is PyTorch's name for it, such as ``"cuda:0"`` (ROCm too) or ``"cpu"``.
    """

    kind: str
    index: int = 0

    def __str__(self) -> str:
        return "cpu" if self.kind == "cpu" else f"{self.torch_type}:{self.index}"

    @property
    def torch_type(self) -> str:
        """PyTorch's device type: ROCm builds call their GPUs ``cuda``."""
        return "cuda" if self.kind == "rocm" else self.kind

    @property
    def is_cpu(self) -> bool:
        """Whether this is the host itself."""
        return self.kind == "cpu"

    @property
    def has_tf32(self) -> bool:
        """Whether its Tensor Cores can read float32 as TF32: NVIDIA's from compute capability 8.0
        on.
        """
        if self.kind != "cuda" or os.environ.get("NVIDIA_TF32_OVERRIDE") == "0":
            return False
        import torch

        return int(torch.cuda.get_device_properties(self.index).major) >= 8

    @property
    def name(self) -> str:
        """The product name, such as "NVIDIA H200"; for the CPU its model name and core count."""
        if self.is_cpu:
            cores = len(host_facts.usable_core_numbers())
            return f"{host_facts.processor_name()} ({cores} core{'s' if cores != 1 else ''})"
        if self.kind == "mps":
            return f"Apple GPU ({host_facts.processor_name()})"
        import torch

        expected = "a device of this machine. Pass one of gl.devices.available()."
        with guard(f"asking {self} for its name", expected):
            return str(getattr(torch, self.torch_type).get_device_name(self.index))

    @property
    def memory_bytes(self) -> int:
        """The memory of the device, in bytes; for the CPU what this process may use.

        Raises
        ------
        DeviceError
            If the device no longer answers.
        """
        return self._memory()[1]

    @property
    def free_bytes(self) -> int:
        """The memory that can be allocated now, in bytes.

        Raises
        ------
        DeviceError
            If the device no longer answers.
        """
        return self._memory()[0]

    def _memory(self) -> tuple[int, int]:
        """Free and total bytes."""
        if self.is_cpu:
            return host_facts.available_memory_bytes(), host_facts.memory_bytes()
        import torch

        with guard(f"asking {self} for its memory"):
            if self.kind == "mps":
                total = int(torch.mps.recommended_max_memory())
                return max(0, total - int(torch.mps.driver_allocated_memory())), total
            free, total = getattr(torch, self.torch_type).mem_get_info(self.index)
            return int(free), int(total)

    def synchronize(self) -> None:
        """Return when all work that was queued on the device has finished; nothing to wait for on a
        CPU.

        Raises
        ------
        DeviceError
            If the device vanished, or a kernel that was queued before failed.
        OutOfMemoryError
            If work that was queued before ran out of memory.
        """
        if self.is_cpu:
            return
        import torch

        with guard(f"waiting for {self}"):
            if self.kind == "mps":
                torch.mps.synchronize()
            else:
                getattr(torch, self.torch_type).synchronize(self.index)


def accelerators() -> tuple[Device, ...]:
    """Return the accelerators that PyTorch can use now, which are all of one kind."""
    import torch

    if torch.cuda.is_available():
        kind, count = "rocm" if torch.version.hip else "cuda", torch.cuda.device_count()
    elif torch.xpu.is_available():
        kind, count = "xpu", torch.xpu.device_count()
    else:
        kind, count = "mps", int(torch.backends.mps.is_available())
    return tuple(Device(kind, index) for index in range(count))


def of_name(name: str) -> Device:
    """Return the Device with the name that an existing array gives its device, such as "cuda:1".
    The machine is not queried.

    Raises
    ------
    InputError
        If arrays on such a device have no data ("meta").
    """
    kind, _, index = name.partition(":")
    if kind == "cuda" and "torch" in sys.modules and sys.modules["torch"].version.hip:
        kind = "rocm"
    if kind not in _KINDS:
        raise InputError(
            f"device_of: an array on {shown(name)} has no data that gpulab can use; expected one "
            "on cpu, cuda, xpu or mps. Create it on one of these devices."
        )
    return Device(kind, int(index or 0))


def available() -> tuple[Device, ...]:
    """Return the devices of this machine, the CPU first."""
    return (Device("cpu"), *accelerators())


def default() -> Device:
    """Return the first accelerator, or the CPU where there is none."""
    return next(iter(accelerators()), Device("cpu"))


def find(device: Any = None) -> Device:
    """Return the device that ``device`` names.

    Parameters
    ----------
    device : None, str, Device or torch.device
        None takes the best one available: CUDA or ROCm, XPU, MPS, CPU. ``"gpu"`` is the first
        accelerator.

    Raises
    ------
    DeviceError
        If the machine has no such device.
    InputError
        If ``device`` is not a name, a Device or a torch.device.
    """
    if device is None:
        return default()
    # compared by name, since a script may not have loaded torch
    if not isinstance(device, (str, Device)) and str(type(device)) != "<class 'torch.device'>":
        raise InputError(
            f"device: got {kind_of(device)}; expected None, a name such as 'cpu' or 'cuda:0', a "
            "Device or a torch.device. Pass one of these."
        )
    text = str(device).strip().lower()
    if text in ("cpu", "cpu:0"):
        return Device("cpu")
    for candidate in accelerators():
        kinds = {candidate.torch_type, candidate.kind}
        spellings = {f"{kind}:{candidate.index}" for kind in kinds}
        if text in spellings or (candidate.index == 0 and text in {*kinds, "gpu"}):
            return candidate
    there = ", ".join(map(str, available()))
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    hint = f" (CUDA_VISIBLE_DEVICES={visible!r})" if visible is not None else ""
    raise DeviceError(
        f"device {shown(text)} is not on this machine{hint}; expected one of: {there}. Pass one of "
        "these, or None for the best one available."
    )


def environment(device: Device | str | None = None, command: str | None = None) -> Environment:
    """Return the environment that is stored with every result of this machine.

    Parameters
    ----------
    device : Device or str, optional
        The device that did the work.
    command : str, optional
        The command that reproduces the figure.
    """
    where = device if isinstance(device, Device) else find(device)
    return Environment(
        date=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        processor=host_facts.processor_name(),
        cores=len(host_facts.usable_core_numbers()),
        memory_bytes=host_facts.memory_bytes(),
        device=where.name,
        device_kind=where.kind,
        driver=nvml.ask("SystemGetDriverVersion") if where.kind == "cuda" else None,
        python=platform.python_version(),
        libraries=host_facts.library_versions(),
        command=command,
    )


def translate(error: BaseException, doing: str) -> GpulabError | None:
    """Return gpulab's error for a library's error, or None where neither memory nor the device is
    the cause.

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
    of_device = bool(kinds & _DEVICE_TYPES)
    # The latter two are numba-cuda's and cuda.core's, for any error of the driver: most are about
    # an argument of the call, and leave the device usable.
    of_library = (
        isinstance(error, RuntimeError) or of_device or bool(kinds & {"CudaAPIError", "CUDAError"})
    )
    message = message_of(error, 10_000).lower()

    def says(words: Iterable[str]) -> bool:
        return any(word in message for word in words)

    if kinds & _MEMORY_TYPES or (of_library and says(_MEMORY_WORDS)):
        return OutOfMemoryError(
            f"{doing}: there is not enough free memory; expected it to fit. Use a smaller size, or "
            "call gl.memory.release() to free what earlier cells hold."
        )
    if says(_NEWER_CODE_WORDS):
        return DeviceError(_newer_than_the_driver(error, doing))
    if of_device or (of_library and says(_DEVICE_WORDS)):
        if says(_CALL_WORDS):
            return DeviceError(
                f"{doing}: the device refused the call ({_first_line(error)}); expected a launch "
                "and a dtype that it supports. Check block size, shapes and dtype; `gpulab "
                "doctor` reports whether this PyTorch fits the GPU."
            )
        return DeviceError(
            f"{doing}: the device stopped answering ({_first_line(error)}); expected it to stay "
            "usable. Save your work and restart the kernel; if it happens again, run `gpulab "
            "doctor`."
        )
    return None


@contextlib.contextmanager
def guard(doing: str, expected: str = "") -> Iterator[None]:
    """Raise ``OutOfMemoryError`` or ``DeviceError`` in place of a library's own error inside the
    block.

    Parameters
    ----------
    doing : str
        What the block does, with its values, for the message.
    expected : str
        Given where the block calls the learner's code: what was expected and what to do. Any other
        error is then raised as ``InputError`` with this text.
    """
    try:
        yield
    except Exception as error:
        ours = translate(error, doing)
        if ours is None and expected:
            raised = f"{type(error).__name__} ({message_of(error)})"
            ours = InputError(f"{doing} raised {raised}; expected {expected}")
        if ours is None or ours is error:
            raise
        raise ours from error


def _newer_than_the_driver(error: BaseException, doing: str) -> str:
    """Return the message on code that was compiled for a newer CUDA than the driver runs, with what
    to install.
    """
    driver = nvml.probe()
    which, remedy, compilers = (
        "the NVIDIA driver",
        "Update the driver",
        f'install "cuda-toolkit[nvcc,nvrtc,nvjitlink]=={driver.cuda}.*"',
    )
    if driver.cuda:
        which = f"the driver {driver.version}, which runs CUDA {driver.cuda}"
        # CUDA 13's wheels have other names and another folder, which libraries search first.
        newer = (
            f", after {pip_command('uninstall -y nvidia-cuda-nvrtc nvidia-nvjitlink nvidia-nvvm')}"
            if driver.cuda < "13"
            else ""
        )
        remedy += f", or install the compilers of its CUDA with {pip_command(compilers)}{newer}"
    return (
        f"{doing}: the code was compiled for a newer CUDA than that of {which} "
        f"({_first_line(error)}); expected code that the driver can load. {remedy}, and restart "
        "the kernel."
    )


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return message_of(lines[0].rstrip(":"), 120)
