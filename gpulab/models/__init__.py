"""Models of processors, computed and not measured: occupancy, memory accesses, rooflines,
collectives, scaling and pipelines.
"""

from gpulab.models._access import (
    ACCESS_KINDS,
    AccessKind,
    AccessPattern,
    access_at,
    access_pattern,
    named_access,
)
from gpulab.models._collectives import (
    GLOO_ALGORITHMS,
    CollectiveCost,
    bus_bandwidth,
    collective_algorithms,
    collective_cost,
    collective_message,
)
from gpulab.models._inference import (
    CACHE_BITS,
    LANGUAGE_MODELS,
    WEIGHT_BITS,
    InferencePlan,
    LanguageModel,
    inference,
)
from gpulab.models._limits import SmLimits, compute_capabilities, sm_limits
from gpulab.models._occupancy import (
    LIMITERS,
    BlockLimits,
    Occupancy,
    OccupancySweep,
    OccupancyTable,
    SmLimits,
    compute_capabilities,
    occupancy,
    occupancy_sweep,
    occupancy_table,
    sm_limits,
)
from gpulab.models._pipeline_schedule import (
    PIPELINE_SCHEDULES,
    PassKind,
    StagePass,
    StageSchedule,
    most_held,
    pipeline_schedule,
)
from gpulab.models._requests import sectors_per_request, shared_wavefronts
from gpulab.models._roofline import ArithmeticRoof, MemoryRoof, Roofline, RooflinePoint, roofline
from gpulab.models._scaling import ScalingCurve, ScalingPoint, amdahl, gustafson, scaling

__all__ = [
    "ACCESS_KINDS",
    "CACHE_BITS",
    "GLOO_ALGORITHMS",
    "LANGUAGE_MODELS",
    "LIMITERS",
    "PIPELINE_SCHEDULES",
    "WEIGHT_BITS",
    "AccessKind",
    "AccessPattern",
    "ArithmeticRoof",
    "BlockLimits",
    "CollectiveCost",
    "InferencePlan",
    "LanguageModel",
    "MemoryRoof",
    "Occupancy",
    "OccupancySweep",
    "OccupancyTable",
    "PassKind",
    "Roofline",
    "RooflinePoint",
    "ScalingCurve",
    "ScalingPoint",
    "SmLimits",
    "StagePass",
    "StageSchedule",
    "access_at",
    "access_pattern",
    "amdahl",
    "bus_bandwidth",
    "collective_algorithms",
    "collective_cost",
    "collective_message",
    "compute_capabilities",
    "gustafson",
    "inference",
    "most_held",
    "named_access",
    "occupancy",
    "occupancy_sweep",
    "occupancy_table",
    "pipeline_schedule",
    "roofline",
    "scaling",
    "sectors_per_request",
    "shared_wavefronts",
    "sm_limits",
]
