"""The device itself: its name, how to wait for it, and the ladder CUDA or ROCm, XPU, MPS, CPU."""

from __future__ import annotations

import datetime
import os
import platform
import sys
from dataclasses import dataclass
from typing import Any

from gpulab._result import Result
from gpulab.devices import _host
from gpulab.errors import DeviceError
from gpulab.evidence import Environment


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
    def name(self) -> str:
        """The product name, such as "NVIDIA H200"; for the CPU its model name and core count."""
        if self.is_cpu:
            cores = _host.usable_cores()
            return f"{_host.processor_name()} ({cores} core{'s' if cores != 1 else ''})"
        torch = _torch()
        if self.torch_type == "cuda":
            return str(torch.cuda.get_device_name(self.index))
        if self.kind == "xpu":
            return str(torch.xpu.get_device_name(self.index))
        return f"Apple GPU ({_host.processor_name()})"

    def synchronize(self) -> None:
        """Return when all work that was queued on the device has finished; nothing to wait for on a CPU."""
        if self.is_cpu:
            return
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


def _accelerator_kind() -> str | None:
    torch = _torch()
    if torch.cuda.is_available():
        return "rocm" if torch.version.hip else "cuda"
    if hasattr(torch, "xpu") and torch.xpu.is_available():
        return "xpu"
    if torch.backends.mps.is_available():
        return "mps"
    return None


def available() -> tuple[Device, ...]:
    """Return the devices of this machine, the CPU first."""
    kind = _accelerator_kind()
    if kind is None:
        return (Device("cpu"),)
    torch = _torch()
    count = 1 if kind == "mps" else int(getattr(torch, "cuda" if kind == "rocm" else kind).device_count())
    return (Device("cpu"), *(Device(kind, index) for index in range(count)))


def default() -> Device:
    """Return the first accelerator, or the CPU where there is none."""
    devices = available()
    return devices[1] if len(devices) > 1 else devices[0]


def find(device: Any = None) -> Device:
    """Return the device that ``device`` names.

    Parameters
    ----------
    device : None, str, Device or torch.device
        None takes the best there is: CUDA or ROCm, XPU, MPS, CPU. ``"gpu"`` is the first accelerator.

    Raises
    ------
    DeviceError
        If the machine has no such device.
    """
    if device is None:
        return default()
    text = str(device).lower()
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
        f"device {text!r} is not on this machine{hint}; expected one of: {there}. Pass one of these, or None for the best there is."
    )


def environment(device: Device | str | None = None, command: str | None = None) -> Environment:
    """Return the stamp that every result of this machine carries.

    Parameters
    ----------
    device : Device or str, optional
        The device that did the work.
    command : str, optional
        The command that gives the figure again.
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
