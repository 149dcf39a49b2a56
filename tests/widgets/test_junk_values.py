"""Junk values from Python: each control of each instrument refuses them in one sentence and keeps its state."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from control_tables import differences

from gpulab import devices, widgets
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


@pytest.mark.parametrize("name", sorted({*widgets.__all__} - {"Instrument"}))
def test_what_an_instrument_offers_it_takes(name: str) -> None:
    """Its table's controls; each default is an option, each option and suggestion is taken as itself, texts differ, help is a sentence."""
    instrument = getattr(widgets, name)()
    if len(devices.available()) == 1:  # a GPU brings more controls and other defaults
        assert differences(instrument) == []
    actions = {action.name for action in instrument.actions}
    labels = [control.label for control in instrument.controls.values()]
    assert len(set(labels)) == len(labels)
    assert instrument.title
    assert instrument.summary.endswith(".")
    assert all(action.label[0].isupper() and (not action.help or action.help.endswith(".")) for action in instrument.actions)
    for key, control in instrument.controls.items():
        given, described = control.describe(), instrument.values[key]
        assert control.name == key
        assert not control.help or control.help.endswith("."), control.help
        assert control.read(control.raw(described)) == described
        assert set(control.for_actions) <= actions
        assert set(control.views) <= {option if isinstance(option, str) else option[0] for option in _options(instrument, "view")}
        options = [option[0] if isinstance(option, tuple) else option for option in getattr(control, "options", ())]
        texts = given.get("options", [])
        assert len(set(texts)) == len(texts) == len(options)
        for k, (option, text) in enumerate(zip(options, texts, strict=True)):
            assert control.check(text) == ((option,) if given["kind"] == "several" else option)
            assert control.read([k] if given["kind"] == "several" else k) == ((option,) if given["kind"] == "several" else option)
        if options and given["kind"] != "several" and control.default is not None:
            assert control.default in options
        suggestions = list(given.get("suggestions", ()))
        assert len(set(suggestions)) == len(suggestions)
        assert [control.check(each) for each in suggestions] == suggestions
    instrument.close()


def _options(instrument: Any, name: str) -> list[Any]:
    return list(instrument.controls[name].options) if name in instrument.controls else []
