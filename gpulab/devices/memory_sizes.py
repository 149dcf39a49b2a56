"""The memory of the GPUs in the data-sheet table, for training on a GPU that is not here.

A name in that table can stand for boards of several sizes; such names have no memory in the table
and are not listed here. A printed gigabyte is 2^30 bytes, and the board keeps a part of them:
drivers report 81,559 MiB for an H100 of 80 GB and 143,771 MiB for an H200 of 141 GB. Boards with
GDDR memory whose error correction is on keep a sixteenth for it (a T4 of 16 GB reports 15,360 MiB).
"""

from __future__ import annotations

from gpulab.devices.datasheets import parts
from gpulab.errors import InputError, shown

_GIB = 2**30


def gpus() -> tuple[str, ...]:
    """Return the names of the products whose memory is known, in the data-sheet table's order.

    Examples
    --------
    >>> "H100 SXM" in gpus()
    True
    """
    return tuple(part.name for part in parts() if part.memory_gigabytes)


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
    sizes = {part.name: part.memory_gigabytes for part in parts()}
    size = sizes.get(name) if isinstance(name, str) else None
    if size is None:
        raise InputError(
            f"memory_bytes: the memory of a GPU {shown(name)} is not known; expected one of: "
            f"{', '.join(gpus())}. Pass one of these."
        )
    return int(size * _GIB)
