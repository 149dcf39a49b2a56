"""The catalogue: named operations with inputs, FLOPs and bytes. One registry serves instruments, recordings and benchmarks."""

from gpulab.workloads._registry import Workload, WorkloadSpec, get, names, register

__all__ = ["Workload", "WorkloadSpec", "get", "names", "register"]

from gpulab.workloads import _dense  # noqa: F401  (each catalogue module registers its entries)
