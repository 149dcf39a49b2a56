"""The memory of products that are not here."""

from __future__ import annotations

import pytest

from gpulab.devices import _datasheets as sheets
from gpulab.devices import memory_sizes
from gpulab.errors import InputError

GIB = 2**30
# How many chips of GDDR (32 pins each) or stacks of HBM (1024 pins), and the gigabytes of one: from NVIDIA's product pages and the makers'
# lists. Two chips of 2 GB side by side are one of 4.
BUILT = {
    "T4": (8, 2), "A100 40GB": (5, 8), "A100 80GB PCIe": (5, 16), "A100 80GB SXM": (5, 16), "A30": (3, 8), "A10": (12, 2),
    "A40": (12, 4), "RTX A6000": (12, 4), "L4": (6, 4), "L40": (12, 4), "L40S": (12, 4), "RTX 6000 Ada": (12, 4), "H100 SXM": (5, 16),
    "H100 PCIe": (5, 16), "H100 NVL": (6, 94 / 6), "H200 SXM": (6, 23.5), "H200 NVL": (6, 23.5),
    "GeForce RTX 3060 Ti": (8, 1), "GeForce RTX 3070": (8, 1), "GeForce RTX 3070 Ti": (8, 1), "GeForce RTX 3080 Ti": (12, 1),
    "GeForce RTX 3090": (12, 2), "GeForce RTX 3090 Ti": (12, 2), "GeForce RTX 4060": (4, 2), "GeForce RTX 4070": (6, 2),
    "GeForce RTX 4070 SUPER": (6, 2), "GeForce RTX 4070 Ti": (6, 2), "GeForce RTX 4070 Ti SUPER": (8, 2), "GeForce RTX 4080": (8, 2),
    "GeForce RTX 4080 SUPER": (8, 2), "GeForce RTX 4090": (12, 2), "GeForce RTX 5070": (6, 2), "GeForce RTX 5070 Ti": (8, 2),
    "GeForce RTX 5080": (8, 2), "GeForce RTX 5090": (16, 2),
}  # fmt: skip
KEPT = ("T4", "A10", "A40", "L4", "L40", "L40S")  # data-centre boards with GDDR; the workstation's ship with the correction off


def test_the_products_are_those_that_were_built() -> None:
    """Each has its chips above, in the order of the data sheets."""
    assert memory_sizes.gpus() == tuple(part.name for part in sheets.PARTS if part.name in BUILT)
    assert len(memory_sizes.gpus()) == len(BUILT)


@pytest.mark.parametrize("name", BUILT)
def test_a_products_memory_is_whole_chips(name: str) -> None:
    """Chips x gigabytes of one, binary; on data-centre boards with GDDR memory a sixteenth is kept for error correction."""
    chips, gigabytes = BUILT[name]
    left = 15 / 16 if name in KEPT else 1
    assert memory_sizes.memory_bytes(name) == pytest.approx(chips * gigabytes * GIB * left, abs=1)


def test_a_t4_has_what_its_driver_reports() -> None:
    """15,360 MiB (nvidia-smi), not 16 GiB."""
    assert memory_sizes.memory_bytes("T4") == 15_360 * 2**20


@pytest.mark.parametrize("name", ["GeForce RTX 3080", "RTX 9999", "", None, 80])
def test_a_product_whose_memory_is_not_known_is_refused(name: object) -> None:
    """Boards of two sizes have no row; the sentence has the name and those that there are, in the order of the data sheets."""
    with pytest.raises(InputError) as caught:
        memory_sizes.memory_bytes(name)
    told = str(caught.value)
    assert told.startswith(
        f"memory_bytes: no memory is known of a GPU {name!r}; expected one of: T4, A100 40GB, A100 80GB PCIe, A100 80GB SXM,"
    )
    assert told.endswith("GeForce RTX 5080, GeForce RTX 5090. Pass one of these, or bytes.")
