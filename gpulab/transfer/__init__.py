"""The link between host and device: sweeps, the alpha-beta fit, break-even, overlap, models.

On a machine without an accelerator the host copy is measured live, and a link is modelled from
named figures that the user may set; each result's badge shows which.

>>> from gpulab import transfer
>>> link = transfer.link("pcie4-x16")
>>> fit = link.sweep(noise_ratio=0.03).fit()
>>> low, expected, high = fit.predict(3_000_000)
>>> low < link.seconds(3_000_000) < high
True
"""

from gpulab.transfer._break_even import break_even
from gpulab.transfer._links import (
    Link,
    ProcessorModel,
    link,
    link_names,
    measure_copy,
    memory_bandwidth_bytes_per_second,
    processor,
    recorded_sweep,
    sweep,
)
from gpulab.transfer._overlap import measure_overlap, overlap
from gpulab.transfer.copies import (
    AlphaBeta,
    BreakEven,
    BreakEvenRow,
    Overlap,
    Span,
    Sweep,
    SweepPoint,
    fit,
)

__all__ = [
    "AlphaBeta",
    "BreakEven",
    "BreakEvenRow",
    "Link",
    "Overlap",
    "ProcessorModel",
    "Span",
    "Sweep",
    "SweepPoint",
    "break_even",
    "fit",
    "link",
    "link_names",
    "measure_copy",
    "measure_overlap",
    "memory_bandwidth_bytes_per_second",
    "overlap",
    "processor",
    "recorded_sweep",
    "sweep",
]
