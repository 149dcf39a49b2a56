"""Junk values from Python: each control of each instrument refuses them in one sentence and keeps its state."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from control_tables import TABLES

from gpulab import widgets
from gpulab.errors import InputError
from gpulab.widgets import AccessPatterns, CompareTimings, MachineCard, OccupancyExplorer, PipelineTimeline, RooflineExplorer


class BrokenRepr:
    """An object whose text fails."""

    def __repr__(self) -> str:
        raise RuntimeError("no text")


JUNK = [math.nan, math.inf, -1, 10**400, "junk", "a" * 5000, b"x", [], {}, np.array([1, 2]), np.array([]), object(), BrokenRepr(), 1j]


@pytest.mark.parametrize("kind", [AccessPatterns, CompareTimings, MachineCard, OccupancyExplorer, PipelineTimeline, RooflineExplorer])
def test_junk_leaves_the_controls_as_they_were(kind: type[Any]) -> None:
    """Every junk value in every control ends as InputError of a readable length; values and code stay what they were."""
    instrument = kind()
    before, code = dict(instrument.values), instrument.code
    for name in [*before, "nosuch"]:
        for value in JUNK:
            with pytest.raises(InputError) as caught:
                instrument.set(**{name: value})
            assert len(str(caught.value)) < 800
    assert instrument.values == before
    assert instrument.code == code


def test_a_name_that_is_no_instrument_is_refused() -> None:
    """By the package itself, which loads each with its first use; all are told to whoever completes a name."""
    with pytest.raises(AttributeError, match=r"'gpulab.widgets' has no attribute 'Oscilloscope'; expected one of MachineCard, "):
        _ = widgets.Oscilloscope
    assert set(dir(widgets)) > {*widgets.__all__}


def test_every_instrument_has_its_table() -> None:
    """What each offers is held by its own tests."""
    assert {*TABLES} == {*widgets.__all__} - {"Instrument"}
