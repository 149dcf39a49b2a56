"""Correct kernels give their answer and no finding, however many blocks run together."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from _correct_kernels_more import LAUNCHES, Launch
from _seeded_bugs import BUGS, Bug

from gpulab.kernels import simulate
from gpulab.kernels._simulate import _run

CORRECT = [pytest.param(launch, id=f"{name}-{number}") for name, several in LAUNCHES.items() for number, launch in enumerate(several)]


def test_there_are_enough_correct_kernels() -> None:
    """The promise is one false alarm on 100 correct launches; these are at least so many, of at least 35 kernels."""
    assert len(LAUNCHES) >= 35
    assert len(CORRECT) >= 100


@pytest.mark.parametrize("launch", CORRECT)
def test_a_correct_kernel_has_no_findings(launch: Launch, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer is NumPy's and nothing is found; with one block at a time the whole report is the same."""
    arguments = launch.make()
    expected = launch.expected(*(a.copy() if isinstance(a, np.ndarray) else a for a in arguments))
    s = simulate(launch.kernel, launch.grid, launch.block, *arguments, dynamic_shared_bytes=launch.dynamic_shared_bytes)
    for number, values in expected.items():
        np.testing.assert_allclose(arguments[number], values, rtol=2e-6, atol=1e-6)
    assert s.findings == ()
    monkeypatch.setattr(_run, "_LANES_AT_ONCE", 1)
    again = launch.make()
    one_by_one = simulate(launch.kernel, launch.grid, launch.block, *again, dynamic_shared_bytes=launch.dynamic_shared_bytes)
    assert one_by_one == s
    for number in expected:
        np.testing.assert_array_equal(again[number], arguments[number])


def test_there_are_enough_bugs() -> None:
    """The promise is 100 seeded bugs; they are of every kind."""
    assert len(BUGS) >= 100
    assert {bug.kind for bug in BUGS} == {"race", "bounds", "barrier", "uninitialised", "shuffle"}


@pytest.mark.parametrize("bug", [pytest.param(bug, id=f"{n:03d}-{bug.kernel}-{bug.kind}") for n, bug in enumerate(BUGS)])
def test_a_seeded_bug_is_found(bug: Bug, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The edit of a correct kernel is found with its kind, at one of its lines; so it is with one block at a time."""
    launch, lines = bug.build(tmp_path / f"{bug.kernel}.py")
    for lanes in (1 << 17, 1):
        monkeypatch.setattr(_run, "_LANES_AT_ONCE", lanes)
        s = simulate(launch.kernel, launch.grid, launch.block, *launch.make(), dynamic_shared_bytes=launch.dynamic_shared_bytes)
        found = [f for f in s.findings if f.kind == bug.kind and {f.line, f.other_line} & lines]
        assert found, "\n".join(["not found; found instead:", *map(str, s.findings)])
