"""Pure arithmetic about processors, nothing measured: what a launch can occupy, what an access touches, what a roof allows."""

from gpulab.models._blocks import LIMITERS, OccupancyTable, occupancy_table
from gpulab.models._limits import SmLimits, compute_capabilities, sm_limits
from gpulab.models._occupancy import BlockLimits, Occupancy, OccupancySweep, occupancy, occupancy_sweep
from gpulab.models._requests import sectors_per_request, shared_wavefronts

__all__ = [
    "LIMITERS",
    "BlockLimits",
    "Occupancy",
    "OccupancySweep",
    "OccupancyTable",
    "SmLimits",
    "compute_capabilities",
    "occupancy",
    "occupancy_sweep",
    "occupancy_table",
    "sectors_per_request",
    "shared_wavefronts",
    "sm_limits",
]
