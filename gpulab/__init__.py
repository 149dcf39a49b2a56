"""A laboratory for GPU acceleration of deep learning inside JupyterLab.

``import gpulab as gl`` loads nothing heavy: every public name is fetched on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from gpulab import _interrupts as _interrupts

__version__ = "0.1.0"

# Public name -> the module that defines it; a module's own name maps to itself.
_PUBLIC = {
    "machine": "gpulab.devices",
    "to_device": "gpulab.arrays",
    "to_host": "gpulab.arrays",
    "share": "gpulab.arrays",
    "device_of": "gpulab.arrays",
    "measure": "gpulab.timing",
    "compare": "gpulab.timing",
}
_SUBMODULES = (
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

__all__ = [*_PUBLIC, *_SUBMODULES, "load_ipython_extension"]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        value = getattr(importlib.import_module(_PUBLIC[name]), name)
        globals()[name] = value
        return value
    if name in _SUBMODULES:
        return importlib.import_module(f"gpulab.{name}")
    raise AttributeError(
        f"module 'gpulab' has no attribute {name!r}; its public names are "
        f"{', '.join(sorted(__all__))}"
    )


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))


def load_ipython_extension(shell: Any) -> None:
    """Register the magics and the widgets' display hooks (``%load_ext gpulab``)."""
    from gpulab import magics

    magics.register(shell)


if TYPE_CHECKING:  # the same names, for editors and type checkers
    from gpulab.arrays import device_of as device_of
    from gpulab.arrays import share as share
    from gpulab.arrays import to_device as to_device
    from gpulab.arrays import to_host as to_host
    from gpulab.devices import machine as machine
    from gpulab.timing import compare as compare
    from gpulab.timing import measure as measure
