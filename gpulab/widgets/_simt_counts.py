"""The texts and tables of the SIMT microscope about a whole simulation: counted source, totals,
findings, arrays.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gpulab.kernels import Finding, Simulation
from gpulab.kernels._simulate.report import Counts
from gpulab.units import plural

COLUMNS = (
    "line",
    "source",
    "active lanes",
    "divergent branches",
    "sectors / request (ideal)",
    "bank conflict",
    "requests",
)
_FIRST_VALUES = 8  # of each array


def show_source(simulation: Simulation) -> list[dict[str, Any]]:
    """Return the source's lines with their counts and findings for the panel, in the order of
    ``COLUMNS``.
    """
    rows = []
    found: dict[int, list[dict[str, str]]] = {}
    for finding in simulation.findings:
        found.setdefault(finding.line, []).append(
            {"kind": finding.kind, "words": _in_words(finding)}
        )
    for number, text in simulation.source.items():
        counts = simulation.lines.get(number) or Counts()
        rows.append(
            {
                "line": number,
                "text": text,
                "cells": _cells(counts),
                "findings": found.get(number, []),
            }
        )
    return rows


def _in_words(finding: Finding) -> str:
    """Return what is wrong and who does it, in one sentence."""
    who = " and ".join(str(thread) for thread in finding.threads)
    times = "once" if finding.count == 1 else f"{finding.count:,} times"
    return f"{finding.message[:1].upper()}{finding.message[1:]} ({who}; {times})."


def _cells(counts: Counts) -> list[dict[str, Any]]:
    """Return the counts of a line as texts, each with whether it is worth a look."""
    sectors, ideal, ways = (
        counts.sectors_per_request,
        counts.ideal_sectors_per_request,
        counts.conflict_ways,
    )
    requests = [
        f"{n:,} {space}"
        for n, space in ((counts.global_requests, "device"), (counts.shared_requests, "shared"))
        if n
    ]
    ratio = counts.active_ratio
    return [
        {"text": "" if ratio is None else f"{ratio:.0%}", "look": False},
        {
            "text": f"{counts.divergent_branches:,} of {counts.branches:,}"
            if counts.branches
            else "",
            "look": counts.divergent_branches > 0,
        },
        {
            "text": "" if sectors is None else f"{sectors:.1f} ({ideal:.1f})",
            "look": counts.global_sectors > counts.ideal_global_sectors,
        },
        {
            "text": "" if ways is None else f"{ways:.3g}-way" if ways > 1 else "none",
            "look": counts.shared_wavefronts > counts.ideal_shared_wavefronts,
        },
        {"text": "\n".join(requests), "look": False},
    ]


def _totals(simulation: Simulation) -> list[tuple[str, str, str]]:
    """Return the totals as rows of (what, count, what it means)."""
    t = simulation.totals
    rows = [
        (
            "active lanes",
            "" if t.active_ratio is None else f"{t.active_ratio:.1%}",
            f"of 32 in each of {t.executed_warps:,} statements of a warp",
        ),
        (
            "divergent branches",
            f"{t.divergent_branches:,}",
            f"of {plural(t.branches, 'test')} by a warp",
        ),
    ]
    if t.global_requests:
        rows += [
            (
                "device memory: sectors",
                f"{t.global_sectors:,}",
                f"of 32 bytes, in {plural(t.global_requests, 'request')}; "
                f"{t.ideal_global_sectors:,} would do",
            ),
            (
                "sectors / request",
                f"{t.sectors_per_request:.2f}",
                f"ideal: {t.ideal_sectors_per_request:.2f}",
            ),
            ("bytes moved", f"{t.global_bytes_moved:,}", f"{t.global_bytes_requested:,} asked for"),
        ]
    if t.shared_requests:
        rows.append(
            (
                "shared memory: wavefronts",
                f"{t.shared_wavefronts:,}",
                f"in {plural(t.shared_requests, 'request')}; {t.ideal_shared_wavefronts:,} would do",
            )
        )
    if simulation.shared_bytes:
        rows.append(("shared memory of a block", f"{simulation.shared_bytes:,}", "bytes"))
    if t.atomic_requests:
        rows.append(("atomics", f"{t.atomic_requests:,}", "requests among those"))
    if t.barriers:
        rows.append(("barriers", f"{t.barriers:,}", "barriers passed, summed over the blocks"))
    return rows


def table_of(
    simulation: Simulation, outputs: Mapping[str, np.ndarray]
) -> Sequence[tuple[str, str, str]]:
    """Return the findings, the totals and the first values of the arrays afterwards, as rows."""
    findings = [
        (f"{f.kind}, line {f.line}", f"{f.count:,}", _in_words(f)) for f in simulation.findings
    ]
    arrays = [
        (f"{name} afterwards", _shape(array), _first_values(array))
        for name, array in outputs.items()
    ]
    return [*findings, *_totals(simulation), *arrays]


def _shape(array: np.ndarray) -> str:
    return f"{array.dtype} {' x '.join(map(str, array.shape))}"


def _first_values(array: np.ndarray) -> str:
    values = ", ".join(
        f"{v:.6g}" if array.dtype.kind == "f" else str(v)
        for v in array.reshape(-1)[:_FIRST_VALUES].tolist()
    )
    return values + (", ..." if array.size > _FIRST_VALUES else "")


def verdict(s: Simulation) -> str:
    """Return the findings in one sentence."""
    where = f"{s.kernel}, grid {s.grid}, block {s.block}"
    if not s.findings:
        return f"{where}: no race, no out-of-bounds access and no barrier error was found."
    places = Counter(f"{f.kind} in line {f.line}" for f in s.findings)
    found = ", ".join(
        f"{place} ({count})" if count > 1 else place for place, count in places.items()
    )
    return f"{where}: {len(s.findings)} finding{'s' if len(s.findings) > 1 else ''}: {found}."
