"""Ranks killed at random moments, a few with a fixed seed; ``benchmarks/parallel_failures.py`` does fifty (``make soak``)."""

from __future__ import annotations

import sys
from pathlib import Path

from gpulab.parallel import Ranks

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import parallel_failures


def test_kills_at_random_moments_are_named_and_mended_in_time(ranks: Ranks) -> None:
    """In a collective and in a strategy: the rank that was killed is named within 5 s, and 30 s later at most all work again."""
    found = parallel_failures.kills(ranks, 2, seed=3)
    assert len(found) == 2
    assert all(kill.named_seconds < parallel_failures.NAMED_SECONDS for kill in found), found
    assert all(kill.recovered_seconds < parallel_failures.RECOVERED_SECONDS for kill in found), found
