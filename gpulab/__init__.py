"""A laboratory for GPU acceleration of deep learning inside JupyterLab.

``import gpulab as gl`` loads nothing heavy: every public name is fetched on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpulab import _interrupts as _interrupts
from gpulab._first_use import on_first_use as _on_first_use

__version__ = "0.1.0"

# Public name -> the module that defines it.
_PUBLIC = {
    "load_ipython_extension": "gpulab.magics",
    "machine": "gpulab.devices",
    "to_device": "gpulab.arrays",
    "to_host": "gpulab.arrays",
    "share": "gpulab.arrays",
    "device_of": "gpulab.arrays",
    "measure": "gpulab.timing",
    "compare": "gpulab.timing",
}
_MODULES = (
    "arrays",
    "claims",
    "compression",
    "devices",
    "errors",
    "evidence",
    "figures",
    "hierarchy",
    "kernels",
    "lessons",
    "memory",
    "models",
    "networks",
    "parallel",
    "precision",
    "recorder",
    "recordings",
    "timing",
    "training",
    "transfer",
    "units",
    "widgets",
    "workloads",
)

__all__ = [*_PUBLIC, *_MODULES]  # noqa: PLE0604
__getattr__, __dir__ = _on_first_use(
    __name__, {**_PUBLIC, **{name: f"gpulab.{name}" for name in _MODULES}}
)

if TYPE_CHECKING:  # the same names, for editors and type checkers
    from gpulab.arrays import device_of as device_of
    from gpulab.arrays import share as share
    from gpulab.arrays import to_device as to_device
    from gpulab.arrays import to_host as to_host
    from gpulab.devices import machine as machine
    from gpulab.magics import load_ipython_extension as load_ipython_extension
    from gpulab.timing import compare as compare
    from gpulab.timing import measure as measure
