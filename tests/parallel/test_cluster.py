"""Ranks compute together, in rank order."""

from __future__ import annotations

import torch
import torch.distributed as dist


def _sum_of_ranks(factor: int) -> int:
    total = torch.tensor(dist.get_rank() * factor)
    dist.all_reduce(total)
    return int(total)


def test_a_function_runs_on_every_rank(ranks) -> None:
    """Each rank gives its result, in rank order, and a collective joins them."""
    assert ranks.run(lambda: (dist.get_rank(), dist.get_world_size())) == [(0, 2), (1, 2)]
    assert ranks.run(_sum_of_ranks, 5) == [5, 5]
