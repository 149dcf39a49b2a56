"""What the predictions of this notebook take from the result that ``reveal`` is given."""

from collections.abc import Mapping
from typing import Any
from gpulab.kernels import Simulation
from gpulab.lessons._climb import LadderTable
from gpulab.lessons._passes import Passes
from gpulab.lessons.content import Unmeasured
from gpulab.models import AccessPattern


_GATE_BYTES = 8  # of one element through one kernel: 4 read, 4 written


def _column_ways(table: LadderTable) -> float:
    """Return the wavefronts of one request that reads a column of the tile without a spare column."""
    loads = [a for a in table.of("transpose-tiled").accesses if a.space == "shared" and a.kind == "load"]
    return float(sum(a.wavefronts for a in loads) / sum(a.requests for a in loads))


def _global_atomics(table: LadderTable, form: str) -> int:
    return sum(a.requests for a in table.of(f"histogram-{form}").accesses if a.space == "global" and a.kind == "atomic")


def _registers(made: Any) -> Any:
    kernels = getattr(made, "kernels", None)
    if not isinstance(kernels, Mapping):
        return made
    if not kernels:
        raise Unmeasured(str(made))
    return float(next(iter(kernels.values())).registers)


outcome = {
    "04.1": lambda p: p.bytes_per_element / _GATE_BYTES if isinstance(p, Passes) else p,
    "04.3": lambda s: s.totals.global_load_sectors / s.totals.global_load_requests if isinstance(s, Simulation) else s,
    "04.17": lambda p: p.sectors if isinstance(p, AccessPattern) else p,
    "04.5": lambda table: (
        table.of("reduction-interleaved").totals.divergent_branches / table.of("reduction-sequential").totals.divergent_branches
        if isinstance(table, LadderTable)
        else table
    ),
    "04.9": lambda table: _column_ways(table) if isinstance(table, LadderTable) else table,
    "04.11": lambda table: _global_atomics(table, "global") / _global_atomics(table, "private") if isinstance(table, LadderTable) else table,
    "04.13": lambda table: (
        table.of("matmul-coalesced").totals.global_bytes_moved / table.of("matmul-tiled").totals.global_bytes_moved
        if isinstance(table, LadderTable)
        else table
    ),
    "04.15": _registers,
    "04.16": lambda o: 100 * o.ratio if hasattr(o, "ratio") else o,
}
