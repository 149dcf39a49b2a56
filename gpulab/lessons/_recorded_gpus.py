"""Data of GPUs for notebooks 01 and 04: of the learner's own GPU, measured now, else of recorded
machines.

Values of recordings are looked up here and never typed into a text; missing ones are reported as
"not recorded yet".
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

from gpulab import _given, devices, hierarchy, models, recordings
from gpulab.errors import MissingLibraryError
from gpulab.evidence import Evidence
from gpulab.hierarchy import Bandwidth
from gpulab.recordings import Recording
from gpulab.recordings.schema import accelerator_told
from gpulab.results import Result, html_caption, html_table

NOT_YET = "not recorded yet"


def recorded_gpus() -> dict[str, Recording]:
    """Return the recordings of machines with an accelerator by their names; empty if there are
    none.
    """
    return {
        name: one
        for name, one in recordings.readable().items()
        if one.environment.device_kind != "cpu"
    }


def caption_of(evidence: Sequence[Evidence]) -> str:
    """The badge lines of a table's machines, each once."""
    return "\n".join(dict.fromkeys(one.sentence for one in evidence)) or NOT_YET


def with_captions(result: Result) -> str:
    """Return a result's table as HTML with a badge line for each of its machines, as a notebook
    shows it.
    """
    return html_table(*result.table()) + "".join(
        f"<div>{html_caption(line)}</div>" for line in result.caption().splitlines()
    )


# -- 01: what a launch costs
# --------------------------------------------------------------------------------------------------


# -- 01: bandwidth, and what has to be under way
# -----------------------------------------------------------------------------


def gpu_streams() -> tuple[Bandwidth, ...]:
    """Return bandwidth curves of GPUs with all multiprocessors reading: of your own CUDA GPU,
    measured with CuPy, else recorded ones.
    """
    where = devices.default()
    if where.torch_type == "cuda":
        with contextlib.suppress(MissingLibraryError):
            return (hierarchy.bandwidth(device=where, deadline=6.0),)
    found = (hierarchy.recorded_bandwidth(recording) for recording in recorded_gpus().values())
    return tuple(curve for curve in found if curve is not None)


def limits_of(compute_capability: str) -> models.SmLimits | None:
    """Return a multiprocessor's limits; None if its compute capability is not in the table."""
    return (
        models.sm_limits(compute_capability)
        if compute_capability in models.compute_capabilities()
        else None
    )


def accelerator_of(recording: Recording) -> Any:
    """Return a recording's facts about its GPU; None if the number of multiprocessors or the
    compute capability is missing.
    """
    found = accelerator_told(recording)
    several, capability = found.get("multiprocessors"), found.get("compute_capability")
    return (
        found
        if _given.is_whole(several) and several > 0 and isinstance(capability, str) and capability
        else None
    )


# -- 04: the options of a rung
# --------------------------------------------------------------------------------------------------
