"""Ranks that a file's tests share: started once, two of them (`ranks`) or four (`four_ranks`)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import gpulab as gl


@pytest.fixture(scope="module")
def ranks() -> Iterator[object]:
    """Two ranks that talk through gloo."""
    with gl.parallel.cluster(2, timeout_seconds=10.0) as started:
        yield started


@pytest.fixture(scope="module")
def four_ranks() -> Iterator[object]:
    """Four ranks that talk through gloo."""
    with gl.parallel.cluster(4, timeout_seconds=10.0) as started:
        yield started
