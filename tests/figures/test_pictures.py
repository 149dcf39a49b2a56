"""What holds for pictures of every kind, asked of one of each."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from look import words
from test_memory_pictures import trace
from test_timing_pictures import measured
from test_transfer_pictures import LIVE, MODEL, sweep_of

from gpulab import devices, figures


@pytest.mark.parametrize(
    "make",
    [
        lambda: figures.sweep(sweep_of(MODEL)),
        lambda: figures.memory_timeline(trace([1, 2, 3])),
        lambda: figures.measurement(measured("cpu", 1e-9, LIVE)),
        lambda: figures.machine(devices.machine()),
    ],
)
def test_every_figure_can_be_sent_and_says_its_evidence(make: Any) -> None:
    """Each picture is finite JSON, has a description, an evidence line and axes with titles."""
    figure = make()
    json.dumps(figures.mimebundle(figure), allow_nan=False)
    assert figure.description
    assert re.search("MEASURED|RECORDED|MODELLED", words(figure))
    assert figure.layout.xaxis.title.text
