"""One array over four devices in JAX: in a process of its own, where the CPU passes for four devices.

JAX counts its devices once, when it starts, so the notebook's own process cannot do it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from gpulab import devices
from gpulab.errors import MeasurementError, message_of
from gpulab.evidence import Evidence
from gpulab.lessons import _library
from gpulab.results import Result
from gpulab.units import plural

_LIMIT_SECONDS = 120.0

# Plain JAX, as a learner would write it; the last line is for us.
SCRIPT = """\
import json
import numpy as np
import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

mesh = Mesh(np.array(jax.devices()), ("rows",))
x = np.arange({rows} * 8, dtype=np.float32).reshape({rows}, 8)
there = jax.device_put(x, NamedSharding(mesh, PartitionSpec("rows")))  # each device gets its rows
summed = jax.jit(lambda v: v.sum(axis=0))
total = summed(there)
words = summed.lower(there).compile().as_text()
print(json.dumps({{
    "shards": [[str(part.device), list(part.data.shape), list(part.index[0].indices({rows})[:2])] for part in there.addressable_shards],
    "total": np.asarray(total).tolist(),
    "all_reduces": sum("all-reduce(" in line or "all-reduce-start(" in line for line in words.splitlines()),
}}))
"""


@dataclass(frozen=True)
class Shard(Result):
    """What one device holds: its rows from ``first`` up to ``end``, without it."""

    device: str
    rows: int
    first: int
    end: int


@dataclass(frozen=True)
class Sharded(Result):
    """An array spread over devices by rows, and a sum over all of them.

    Attributes
    ----------
    shards : tuple of Shard
    total : tuple of float
        The sum of each column.
    all_reduces : int
        How many all-reduces XLA put into the program.
    reason : str
        Why there is none of it; "" where there is.
    evidence : Evidence or None
    """

    shards: tuple[Shard, ...]
    total: tuple[float, ...]
    all_reduces: int
    reason: str
    evidence: Evidence | None

    def __repr__(self) -> str:
        if self.reason:
            return f"<{self.reason}>"
        return f"<{plural(len(self.shards), 'shard')}, {plural(self.all_reduces, 'all-reduce')} in the sum>"

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        """Return one row a device."""
        headers = ("JAX's device", "rows that it holds")
        if self.reason:
            return headers, [("not run here", self.reason)]
        rows = [(shard.device, f"{shard.first} to {shard.end - 1}") for shard in self.shards]
        return headers, [*rows, ("all-reduces that XLA put into the sum", str(self.all_reduces))]


def sharded(devices_wanted: int = 4) -> Sharded:
    """Spread 8 rows a device over several devices that JAX makes out of the CPU, and add them up.

    Parameters
    ----------
    devices_wanted : int

    Returns
    -------
    Sharded
        With its ``reason`` where JAX is not installed.

    Raises
    ------
    MeasurementError
        If JAX failed, which the sentence tells in its last words, or took minutes.
    """
    why = _library.unusable("jax")
    if why:
        return Sharded((), (), 0, why, None)
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices_wanted}".strip()
    environment = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    script = SCRIPT.format(rows=8 * devices_wanted)
    try:
        done = subprocess.run(
            [sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=_LIMIT_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise MeasurementError(
            f"sharded: JAX on {devices_wanted} devices had not ended after {_LIMIT_SECONDS:g} s; expected some seconds. "
            "Run the cell again when the machine is quiet."
        ) from error
    if done.returncode != 0:
        last = message_of((done.stderr.strip().splitlines() or ["nothing was printed"])[-1])
        raise MeasurementError(f"sharded: JAX on {devices_wanted} devices failed ({last}); expected shards. Look at its version.")
    found = json.loads(done.stdout.strip().splitlines()[-1])
    shards = tuple(Shard(name, shape[0], first, end) for name, shape, (first, end) in found["shards"])
    return Sharded(shards, tuple(found["total"]), found["all_reduces"], "", Evidence.measured(devices.find("cpu").name))
