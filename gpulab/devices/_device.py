"""The device itself: its name, how to wait for it, and the ladder CUDA or ROCm, XPU, MPS, CPU."""

from __future__ import annotations

import datetime
import os
import platform
import sys
from dataclasses import dataclass
from typing import Any

from gpulab.devices import _host
from gpulab.devices._failures import guard, translate
from gpulab.errors import DeviceError, InputError, kind_of, shown
from gpulab.evidence import Environment
from gpulab.results import Result


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
        from gpulab.devices import _facts

        capability = _facts.accelerator(self).compute_capability if self.kind == "cuda" else None
        return (
            int((capability or "0").partition(".")[0]) >= 8
            and os.environ.get("NVIDIA_TF32_OVERRIDE") != "0"
        )

    @property
    def name(self) -> str:
        """The product name, such as "NVIDIA H200"; for the CPU its model name and core count."""
        if self.is_cpu:
            cores = _host.usable_cores()
            return f"{_host.processor_name()} ({cores} core{'s' if cores != 1 else ''})"
        torch = _torch()
        with guard(f"asking {self} for its name"):
            if self.torch_type == "cuda":
                return str(torch.cuda.get_device_name(self.index))
            if self.kind == "xpu":
                return str(torch.xpu.get_device_name(self.index))
        return f"Apple GPU ({_host.processor_name()})"

    @property
    def memory_bytes(self) -> int | None:
        """The memory of the device, in bytes; for the CPU what this process may use; None where the
        library does not report it.

        Raises
        ------
        DeviceError
            If the device no longer answers.
        """
        return self._memory()[1]

    @property
    def free_bytes(self) -> int | None:
        """The memory that can be allocated now, in bytes; None where the library does not report
        it.

        Raises
        ------
        DeviceError
            If the device no longer answers.
        """
        return self._memory()[0]

    def _memory(self) -> tuple[int | None, int | None]:
        """Free and total bytes."""
        if self.is_cpu:
            return _host.available_memory_bytes(), _host.memory_bytes()
        torch = _torch()
        with guard(f"asking {self} for its memory"):
            if self.torch_type == "cuda":
                free, total = torch.cuda.mem_get_info(self.index)
                return int(free), int(total)
            if self.kind == "mps":
                total = int(torch.mps.recommended_max_memory())
                return max(0, total - int(torch.mps.driver_allocated_memory())), total
            if hasattr(torch.xpu, "mem_get_info"):
                free, total = torch.xpu.mem_get_info(self.index)
                return int(free), int(total)
            return None, int(torch.xpu.get_device_properties(self.index).total_memory)

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
        try:
            self._synchronize()
        except Exception as error:
            ours = translate(error, f"waiting for {self}")
            if ours is None:
                raise
            raise ours from error

    def _synchronize(self) -> None:
        if self.torch_type == "cuda" and "torch" not in sys.modules and "cupy" in sys.modules:
            sys.modules["cupy"].cuda.Device(self.index).synchronize()
            return
        torch = _torch()
        if self.kind == "mps":
            torch.mps.synchronize()
        else:
            getattr(torch, self.torch_type).synchronize(self.index)


def _torch() -> Any:
    import torch

    return torch


def accelerator_kind() -> str | None:
    """Return the kind of accelerator that PyTorch can use now: "cuda", "rocm", "xpu", "mps", or
    None.
    """
    torch = _torch()
    if torch.cuda.is_available():
        return "rocm" if torch.version.hip else "cuda"
    if hasattr(torch, "xpu") and torch.xpu.is_available():
        return "xpu"
    return "mps" if torch.backends.mps.is_available() else None


def accelerator_count(kind: str | None) -> int:
    """Return how many accelerators of a kind PyTorch can use now."""
    if kind is None:
        return 0
    return (
        1
        if kind == "mps"
        else int(getattr(_torch(), "cuda" if kind == "rocm" else kind).device_count())
    )


def of_name(name: str) -> Device:
    """Return the Device of a name such as "cuda:1" that an existing array is on, without asking the
    machine again.

    Raises
    ------
    InputError
        If arrays on such a device have no data ("meta").
    """
    kind, _, index = name.partition(":")
    if kind == "cuda" and "torch" in sys.modules and sys.modules["torch"].version.hip:
        kind = "rocm"
    if kind not in ("cpu", "cuda", "rocm", "xpu", "mps"):
        raise InputError(
            f"device_of: an array on {shown(name)} has no data that gpulab can use; expected one "
            "on cpu, cuda, xpu or mps. Move it there."
        )
    return Device(kind, int(index or 0))


def available() -> tuple[Device, ...]:
    """Return the devices of this machine, the CPU first."""
    kind = accelerator_kind()
    return (
        Device("cpu"),
        *(Device(kind, index) for index in range(accelerator_count(kind)) if kind is not None),
    )


def default() -> Device:
    """Return the first accelerator, or the CPU where there is none."""
    devices = available()
    return devices[1] if len(devices) > 1 else devices[0]


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
    if isinstance(device, Device) and device.is_cpu:
        return device
    if (
        not isinstance(device, (str, Device))
        and type(device).__module__.partition(".")[0] != "torch"
    ):
        raise InputError(
            f"device: got {kind_of(device)}; expected None, a name such as 'cpu' or 'cuda:0', a "
            "Device or a torch.device. "
            "Pass one of these."
        )
    text = str(device).strip().lower()
    if text in ("cpu", "cpu:0"):
        return Device("cpu")
    devices = available()
    for candidate in devices[1:]:
        spellings = {str(candidate), f"{candidate.kind}:{candidate.index}"}
        if candidate.index == 0:
            spellings |= {candidate.torch_type, candidate.kind, "gpu"}
        if text in spellings:
            return candidate
    there = ", ".join(str(d) for d in devices)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    hint = f" (CUDA_VISIBLE_DEVICES={visible!r})" if visible is not None else ""
    raise DeviceError(
        f"device {shown(text)} is not on this machine{hint}; expected one of: {there}. Pass one of "
        "these, or None for the best "
        "one available."
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
    where = find(device)
    return Environment(
        date=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        processor=_host.processor_name(),
        cores=_host.usable_cores(),
        memory_bytes=_host.memory_bytes(),
        device=where.name,
        device_kind=where.kind,
        driver=_host.nvidia_driver_version() if where.kind == "cuda" else None,
        python=platform.python_version(),
        libraries=_host.library_versions(),
        command=command,
    )
