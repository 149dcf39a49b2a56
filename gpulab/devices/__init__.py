"""What this machine has: devices, their figures, and what is wrong with the set-up.

Everything is discovered on call, never at import: a GPU that appears or vanishes between two calls is seen.
"""

from gpulab.devices._device import Device, available, default, environment, find

__all__ = ["Device", "available", "default", "environment", "find"]
