"""What this machine has: devices, their figures, and what is wrong with the set-up.

Everything is discovered on call, never at import: a GPU that appears or vanishes between two calls is seen.
"""

from gpulab.devices._cpu import Cache, Processor
from gpulab.devices._device import Device, available, default, environment, find, of_name
from gpulab.devices._diagnose import Problem, diagnose
from gpulab.devices._facts import Accelerator, Facts, Memory, gather
from gpulab.devices._failures import guard, translate
from gpulab.devices._machine import Machine, machine

__all__ = [
    "Accelerator",
    "Cache",
    "Device",
    "Facts",
    "Machine",
    "Memory",
    "Problem",
    "Processor",
    "available",
    "default",
    "diagnose",
    "environment",
    "find",
    "gather",
    "guard",
    "machine",
    "of_name",
    "translate",
]
