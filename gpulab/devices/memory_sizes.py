"""The memory of the GPUs in the data-sheet table, for training on a GPU that is not here.

This is separate from the table of rates, because one name there can stand for boards of several
sizes; those are not listed here. Printed gigabytes are binary ones less what the board keeps:
drivers report 81,559 MiB for an H100 of 80 GB and 143,771 MiB for an H200 of 141 GB. Boards with
GDDR memory whose error correction is on keep a sixteenth for it (a T4 of 16 GB reports 15,360 MiB).
"""

from __future__ import annotations

from collections.abc import Mapping

from gpulab.devices.datasheets import PARTS
from gpulab.errors import InputError, shown

_GIB = 2**30
_ECC = 15 / 16  # what inline error correction of GDDR memory leaves
# NVIDIA's data sheets and product pages.
_GIGABYTES: Mapping[str, float] = {
    "T4": 16 * _ECC,
    "A100 40GB": 40,
    "A100 80GB PCIe": 80,
    "A100 80GB SXM": 80,
    "A30": 24,
    "A10": 24 * _ECC,
    "A40": 48 * _ECC,
    "RTX A6000": 48,
    "L4": 24 * _ECC,
    "L40": 48 * _ECC,
    "L40S": 48 * _ECC,
    "RTX 6000 Ada": 48,
    "H100 SXM": 80,
    "H100 PCIe": 80,
    "H100 NVL": 94,
    "H200 SXM": 141,
    "H200 NVL": 141,
    "GeForce RTX 3060 Ti": 8,
    "GeForce RTX 3070": 8,
    "GeForce RTX 3070 Ti": 8,
    "GeForce RTX 3080 Ti": 12,
    "GeForce RTX 3090": 24,
    "GeForce RTX 3090 Ti": 24,
    "GeForce RTX 4060": 8,
    "GeForce RTX 4070": 12,
    "GeForce RTX 4070 SUPER": 12,
    "GeForce RTX 4070 Ti": 12,
    "GeForce RTX 4070 Ti SUPER": 16,
    "GeForce RTX 4080": 16,
    "GeForce RTX 4080 SUPER": 16,
    "GeForce RTX 4090": 24,
    "GeForce RTX 5070": 12,
    "GeForce RTX 5070 Ti": 16,
    "GeForce RTX 5080": 16,
    "GeForce RTX 5090": 32,
}


def gpus() -> tuple[str, ...]:
    """Return the names of the products whose memory is known, in the data-sheet table's order.

    Examples
    --------
    >>> "H100 SXM" in gpus()
    True
    """
    return tuple(part.name for part in PARTS if part.name in _GIGABYTES)


def memory_bytes(name: str) -> int:
    """Return the memory of a product in bytes.

    Raises
    ------
    InputError
        If there is no such product, or its boards differ in size.

    Examples
    --------
    >>> memory_bytes("A100 80GB SXM") == 80 * 2**30
    True
    """
    if not isinstance(name, str) or name not in _GIGABYTES:
        raise InputError(
            f"memory_bytes: the memory of a GPU {shown(name)} is not known; expected one of: "
            f"{', '.join(gpus())}. Pass one of these, or bytes."
        )
    return int(_GIGABYTES[name] * _GIB)
