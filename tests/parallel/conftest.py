"""Clusters of two and of four ranks that the tests share; each is started once per session.

Each test gets a cluster that is ready: if the previous test left it out of step, it recovers first.
"""

from collections.abc import Iterator

import gpulab as gl
import pytest
from gpulab.parallel import Ranks


@pytest.fixture(scope="session")
def two_started() -> Iterator[Ranks]:
    """Two ranks, in the state in which the previous test left them."""
    with gl.parallel.cluster(2, timeout_seconds=20.0) as started:
        yield started


@pytest.fixture(scope="session")
def four_started() -> Iterator[Ranks]:
    """Four ranks, in the state in which the previous test left them."""
    with gl.parallel.cluster(4, timeout_seconds=20.0) as started:
        yield started


@pytest.fixture
def ranks(two_started: Ranks) -> Ranks:
    """Two ranks that are ready."""
    return two_started if two_started.ready else two_started.recover()


@pytest.fixture
def four_ranks(four_started: Ranks) -> Ranks:
    """Four ranks that are ready."""
    return four_started if four_started.ready else four_started.recover()
