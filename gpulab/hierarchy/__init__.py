"""The memory hierarchy: latency and bandwidth by working set, and loads in flight.

On a CPU the latency is that of a chase: each load gives the address of the next one, so that
nothing can be prefetched. It needs no compiler (a cycle of Python objects), and uses numba where it
is installed. On a CUDA device the same chase and the streams are kernels of CuPy.

>>> from gpulab import hierarchy
>>> curve = hierarchy.latency(sizes=[2**13, 2**16], method="python", chases=1, deadline=0.2)
>>> [point.nbytes for point in curve.points]
[8192, 65536]
"""

from gpulab.hierarchy._measure import (
    HOPS_PER_CALL,
    bandwidth,
    chase_method,
    latency,
    measure_chase,
    measure_stream,
    methods,
    parallel,
    recorded_bandwidth,
    recorded_latency,
)
from gpulab.hierarchy.curves import (
    Bandwidth,
    BandwidthPoint,
    Latency,
    LatencyPoint,
    Level,
    Levels,
    ParallelChains,
    ParallelPoint,
    Reported,
)

__all__ = [
    "HOPS_PER_CALL",
    "Bandwidth",
    "BandwidthPoint",
    "Latency",
    "LatencyPoint",
    "Level",
    "Levels",
    "ParallelChains",
    "ParallelPoint",
    "Reported",
    "bandwidth",
    "chase_method",
    "latency",
    "measure_chase",
    "measure_stream",
    "methods",
    "parallel",
    "recorded_bandwidth",
    "recorded_latency",
]
