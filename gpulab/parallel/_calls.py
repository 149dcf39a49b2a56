"""What one collective was, as one rank saw it, and what torch's operators for collectives are
called.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpulab import models
from gpulab.evidence import Evidence
from gpulab.results import Result
from gpulab.units import format_bytes, format_seconds

# Operator to the name that the course uses. Source: the operators registered by torch 2.13 under
# c10d and _c10d_functional.
NAMES = {
    "c10d.allreduce_": "all_reduce",
    "c10d.allreduce_coalesced_": "all_reduce",
    "c10d.broadcast_": "broadcast",
    "c10d.reduce_": "reduce",
    "c10d.allgather_": "all_gather",
    "c10d._allgather_base_": "all_gather",
    "c10d.allgather_coalesced_": "all_gather",
    "c10d.allgather_into_tensor_coalesced_": "all_gather",
    "c10d.reduce_scatter_": "reduce_scatter",
    "c10d._reduce_scatter_base_": "reduce_scatter",
    "c10d.reduce_scatter_tensor_coalesced_": "reduce_scatter",
    "c10d.gather_": "gather",
    "c10d.scatter_": "scatter",
    "c10d.alltoall_": "all_to_all",
    "c10d.alltoall_base_": "all_to_all",
    "c10d.send": "send",
    "c10d.recv_": "recv",
    "c10d.recv_any_source_": "recv",
    "c10d.barrier": "barrier",
    "c10d.monitored_barrier_": "barrier",
    "_c10d_functional.all_reduce": "all_reduce",
    "_c10d_functional.all_reduce_": "all_reduce",
    "_c10d_functional.all_reduce_coalesced": "all_reduce",
    "_c10d_functional.all_reduce_coalesced_": "all_reduce",
    "_c10d_functional.broadcast": "broadcast",
    "_c10d_functional.broadcast_": "broadcast",
    "_c10d_functional.all_gather_into_tensor": "all_gather",
    "_c10d_functional.all_gather_into_tensor_out": "all_gather",
    "_c10d_functional.all_gather_into_tensor_coalesced": "all_gather",
    "_c10d_functional.reduce_scatter_tensor": "reduce_scatter",
    "_c10d_functional.reduce_scatter_tensor_out": "reduce_scatter",
    "_c10d_functional.reduce_scatter_tensor_coalesced": "reduce_scatter",
    "_c10d_functional.all_to_all_single": "all_to_all",
    "_c10d_functional.isend": "send",
    "_c10d_functional.irecv": "recv",
    "_c10d_functional.batch_p2p_ops": "send and recv",
    "_dtensor.shard_dim_alltoall": "all_to_all",
}


@dataclass(frozen=True)
class CollectiveCall(Result):
    """One collective, as one rank saw it.

    Attributes
    ----------
    number : int
        From 0, in the order entered by this rank while it was observed.
    name : str
        "all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "gather", "scatter",
        "all_to_all", "send", "recv", "barrier" or "send and recv".
    operator : str
        The dispatcher's operator, for example "c10d.allreduce_".
    dtype : str
        Of the first tensor; "" for a barrier.
    input_bytes : int
        What this rank contributes: the payload, not what the algorithm sends.
    output_bytes : int
        What this rank receives; 0 where it contributes or receives nothing (a broadcast's receiver
        has 0 ``input_bytes``).
    group : tuple of int
        The global ranks that take part.
    root : int or None
        The global rank of a rooted collective's root, or the peer of a send or recv (None where any
        sender is accepted).
    begin_seconds, end_seconds : float, float or None
        ``time.perf_counter`` of this machine; ranks on one Linux machine share it. None while in
        flight.
    end_from : str
        How the end is known: "completion" (the work's own), "wait" (when a wait for it returned, so
        the true end may be earlier), "return" (the call itself waited); "" while in flight.
    waited_seconds : float
        How long Python waited for it. DDP waits inside C++, which is not seen.
    error : str or None
        What the collective ended with, where it failed.
    """

    number: int
    name: str
    operator: str
    dtype: str
    input_bytes: int
    output_bytes: int
    group: tuple[int, ...]
    root: int | None
    begin_seconds: float
    end_seconds: float | None
    end_from: str
    waited_seconds: float
    error: str | None = None

    @property
    def seconds(self) -> float | None:
        """From entry to end; None while in flight."""
        return None if self.end_seconds is None else self.end_seconds - self.begin_seconds

    @property
    def payload_bytes(self) -> int:
        """The size that sweeps use: the larger of what the rank contributes and receives (the whole
        tensor of an all-gather).
        """
        return max(self.input_bytes, self.output_bytes)

    @property
    def sentence(self) -> str:
        """The call in words, for messages: "all_reduce of 4.0 kB in float32 among ranks 0, 1"."""
        size = (
            f" of {format_bytes(self.payload_bytes)} in {self.dtype}" if self.payload_bytes else ""
        )
        peer = {
            "send": f" to rank {self.root}",
            "recv": f" from rank {'any' if self.root is None else self.root}",
        }.get(self.name, "")
        return (
            f"{self.name}{size}{peer}"
            if peer
            else f"{self.name}{size} among ranks {', '.join(map(str, self.group))}"
        )

    def evidence(self) -> Evidence:
        """Return where the times come from: MEASURED once, by the rank's own clock."""
        return Evidence.measured("the rank that entered it", 1)

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        """Return the call in one row."""
        seconds = "in flight" if self.seconds is None else format_seconds(self.seconds)
        return ("call", "given", "got", "time"), [
            (
                self.sentence,
                format_bytes(self.input_bytes),
                format_bytes(self.output_bytes),
                seconds,
            )
        ]


def usual_algorithm(operation: str) -> str:
    """Return the algorithm that a collective is counted by where its library does not tell: a ring
    where there is one, as NCCL runs it.
    """
    algorithms = models.collective_algorithms(operation)
    return "ring" if "ring" in algorithms else algorithms[0]
