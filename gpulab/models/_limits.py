"""What one multiprocessor (SM) of each compute capability holds at most.

Sources
-------
- 7.5 and later: CUDA Programming Guide 13.0, "Compute Capabilities", table "Technical
  Specifications per Compute Capability"; the same figures stand in NVIDIA's
  ``cuda/__device/arch_traits.h`` (CCCL 3.3), which alone has 8.8.
- 7.0, 7.2: the same table of the CUDA C++ Programming Guide 12.9, and its section "Compute
  Capability 7.x" (one block may take all 96 KB).
- Steps of allocation, partitions, the splits of shared memory and L1 cache, barriers, virtual
  resources: the comments and tables of ``cuda_occupancy.h`` in the wheel ``nvidia-cuda-runtime``
  13.5.37. Its barriers of 10.3 are 32; version 13.0.96 had 64.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpulab.errors import InputError, shown
from gpulab.results import Result

WARP_THREADS = 32
MAX_THREADS_PER_BLOCK = 1024
MAX_REGISTERS_PER_THREAD = 255
MAX_BARRIERS_PER_BLOCK = 16  # PTX ISA, "bar": barriers 0 to 15
REGISTER_STEP = 256  # registers are given to warps in steps of this
PARTITIONS = 4  # a warp takes its registers from one of four equal parts of the file
SOURCE = (
    "CUDA Programming Guide 13.0, technical specifications per compute capability (7.0 and 7.2: "
    "12.9); "
    "allocation steps as in NVIDIA's cuda_occupancy.h 13.5"
)

_KIB = 1024
_DEFAULT_SHARED_BYTES = 48 * _KIB
_REGISTERS = 64 * 1024
_VIRTUAL_RESOURCES = 128


@dataclass(frozen=True)
class SmLimits(Result):
    """The resources of one SM.

    Attributes
    ----------
    compute_capability : str
        Such as "9.0".
    warps, blocks : int
        Resident at once.
    registers : int
        32-bit registers of an SM, which one block may take as a whole.
    shared_bytes : int
        Shared memory of an SM at its largest split.
    shared_bytes_per_block : int
        What one block may ask for after opting in; without that, 48 KiB.
    shared_reserved_bytes : int
        What the driver takes from each block's allocation for itself.
    shared_step_bytes : int
        Shared memory is given to blocks in steps of this.
    shared_splits_bytes : tuple of int
        The sizes that shared memory can be set to, ascending; the rest is L1 cache.
    barriers, virtual_resources : int or None
        Of an SM; None where they never limit.
    """

    compute_capability: str
    warps: int
    blocks: int
    registers: int
    shared_bytes: int
    shared_bytes_per_block: int
    shared_reserved_bytes: int
    shared_step_bytes: int
    shared_splits_bytes: tuple[int, ...]
    barriers: int | None
    virtual_resources: int | None


_SPLITS_TURING = (32, 64)
_SPLITS_VOLTA = (0, 8, 16, 32, 64, 96)
_SPLITS_SMALL = (0, 8, 16, 32, 64, 100)
_SPLITS_AMPERE = (*_SPLITS_SMALL, 132, 164)
_SPLITS_HOPPER = (*_SPLITS_AMPERE, 196, 228)

# Compute capability -> blocks, threads, splits of shared memory in KiB, barriers.
_SMS: Mapping[str, tuple[int, int, tuple[int, ...], int | None]] = {
    "7.0": (32, 2048, _SPLITS_VOLTA, None),
    "7.2": (32, 2048, _SPLITS_VOLTA, None),
    "7.5": (16, 1024, _SPLITS_TURING, None),
    "8.0": (32, 2048, _SPLITS_AMPERE, None),
    "8.6": (16, 1536, _SPLITS_SMALL, None),
    "8.7": (16, 1536, _SPLITS_AMPERE, None),
    "8.8": (16, 1536, _SPLITS_SMALL, None),
    "8.9": (24, 1536, _SPLITS_SMALL, None),
    "9.0": (32, 2048, _SPLITS_HOPPER, 64),
    "10.0": (32, 2048, _SPLITS_HOPPER, 64),
    "10.3": (32, 2048, _SPLITS_HOPPER, 32),
    "11.0": (24, 1536, _SPLITS_HOPPER, 24),
    "12.0": (24, 1536, _SPLITS_SMALL, 24),
    "12.1": (24, 1536, _SPLITS_SMALL, 24),
}


def _limits(capability: str) -> SmLimits:
    blocks, threads, splits, barriers = _SMS[capability]
    major = int(capability.partition(".")[0])
    reserved = _KIB if major >= 8 else 0
    return SmLimits(
        compute_capability=capability,
        warps=threads // WARP_THREADS,
        blocks=blocks,
        registers=_REGISTERS,
        shared_bytes=splits[-1] * _KIB,
        shared_bytes_per_block=splits[-1] * _KIB - reserved,
        shared_reserved_bytes=reserved,
        shared_step_bytes=128 if major >= 8 else 256,
        shared_splits_bytes=tuple(size * _KIB for size in splits),
        barriers=barriers,
        virtual_resources=_VIRTUAL_RESOURCES if major >= 10 else None,
    )


_LIMITS = {capability: _limits(capability) for capability in _SMS}


def compute_capabilities() -> tuple[str, ...]:
    """Return the compute capabilities that ``occupancy`` knows, ascending.

    Examples
    --------
    >>> compute_capabilities()[0], "9.0" in compute_capabilities()
    ('7.0', True)
    """
    return tuple(_LIMITS)


def sm_limits(compute_capability: Any = "9.0") -> SmLimits:
    """Return what one SM of a compute capability holds at most.

    Parameters
    ----------
    compute_capability : str
        Such as "9.0", or the compiler's name for it, such as "sm_90" or "sm_90a".

    Returns
    -------
    SmLimits

    Raises
    ------
    InputError
        If the compute capability is not one of ``compute_capabilities()``.

    Examples
    --------
    >>> sm_limits("sm_86").warps
    48
    """
    name = compute_capability if isinstance(compute_capability, str) else ""
    architecture = re.fullmatch(r"(?:sm|compute)_(\d+)(\d)[af]?", name)
    if architecture is not None:
        name = f"{architecture.group(1)}.{architecture.group(2)}"
    if name not in _LIMITS:
        raise InputError(
            f"sm_limits: compute_capability={shown(compute_capability)}; expected one of: "
            f"{', '.join(_LIMITS)}. "
            'Pass it as text, such as "9.0".'
        )
    return _LIMITS[name]
