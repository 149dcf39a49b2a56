"""Ranks that the tests share: two of them (`ranks`) or four (`four_ranks`), started once in a session.

Each test gets them ready: where the one before left them out of step, they are made usable again.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import gpulab as gl
from gpulab.parallel import Ranks


@pytest.fixture(scope="session")
def _two_started() -> Iterator[Ranks]:
    with gl.parallel.cluster(2, timeout_seconds=10.0) as started:
        yield started


@pytest.fixture(scope="session")
def _four_started() -> Iterator[Ranks]:
    with gl.parallel.cluster(4, timeout_seconds=10.0) as started:
        yield started


@pytest.fixture(scope="module")
def ranks(_two_started: Ranks) -> Ranks:
    """Two ranks that talk through gloo."""
    return _two_started


@pytest.fixture(scope="module")
def four_ranks(_four_started: Ranks) -> Ranks:
    """Four ranks that talk through gloo."""
    return _four_started


@pytest.fixture(autouse=True)
def _in_step(request: pytest.FixtureRequest) -> None:
    """Make the ranks of a test usable again where the test before has left them out of step."""
    for name in ("ranks", "four_ranks"):
        if name in request.fixturenames:
            started = request.getfixturevalue(name)
            if not started.ready:
                started.recover()
