"""What this machine has: devices, their figures, and what is wrong with the set-up.

Everything is discovered on call, never at import: a GPU that appears or vanishes between two calls
is seen.
"""

from gpulab.devices._device import (
    Device,
    available,
    default,
    environment,
    find,
    guard,
    of_name,
    translate,
)
from gpulab.devices.diagnosis import (
    Check,
    Checkup,
    Facts,
    Machine,
    Memory,
    Problem,
    Torch,
    checkup,
    diagnose,
    gather,
    machine,
)
from gpulab.devices.host_facts import Cache, Processor
from gpulab.devices.measured_rates import Ceilings, MemoryCeiling, ceilings
from gpulab.devices.nvml import Accelerator, Driver
from gpulab.devices.specs import (
    DeviceSpec,
    Figure,
    MemoryLevel,
    arithmetic,
    cpu_spec,
    gpu_spec,
    spec,
)

__all__ = [
    "Accelerator",
    "Cache",
    "Ceilings",
    "Check",
    "Checkup",
    "Device",
    "DeviceSpec",
    "Driver",
    "Facts",
    "Figure",
    "Machine",
    "Memory",
    "MemoryCeiling",
    "MemoryLevel",
    "Problem",
    "Processor",
    "Torch",
    "arithmetic",
    "available",
    "ceilings",
    "checkup",
    "cpu_spec",
    "default",
    "diagnose",
    "environment",
    "find",
    "gather",
    "gpu_spec",
    "guard",
    "machine",
    "of_name",
    "spec",
    "translate",
]
