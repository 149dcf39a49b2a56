"""One contract for all instruments: what each offers, takes, refuses, runs, shows, and its code."""

import contextlib
import functools
import json
import math
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from gpulab import devices, widgets
from gpulab.errors import InputError
from gpulab.figures import LabFigure
from instruments import NAMES, SMALLEST, display, make, offered, run_cell, settings, told

from texts import figure_text

ACTIONS = [(name, action.name) for name in NAMES for action in getattr(widgets, name).actions]
# Fast actions, which run for every commit; the tests of all others are marked slow.
QUICK = {"refresh", "overlap", "snapshot", "clear"}
# Controls whose value the result has as an attribute of the same name.
OF_THE_RESULT = (
    *("task", "batch", "batch_size", "workers", "prefetch", "pinned", "read_loss", "precision"),
    *("checkpoint", "schedule", "stages", "microbatches", "mode", "kernel", "nbytes"),
)


class BrokenRepr:
    """An object whose text fails."""

    def __repr__(self) -> str:
        raise RuntimeError("no text")


JUNK = (
    math.nan,
    math.inf,
    -1,
    10**400,
    "junk",
    "a" * 5000,
    b"x",
    [],
    {},
    np.array([71, 72]),
    np.array([]),
    object(),
    BrokenRepr(),
    1j,
)
# Instrument, settings, and the controls that change nothing on the screen with these settings.
CONTEXTS: list[tuple[str, dict[str, Any], set[str]]] = [
    *((name, {}, set()) for name in NAMES if name != "ScalingLab"),
    ("MemoryInspector", {"view": "trace"}, set()),
    ("MemoryInspector", {"view": "release"}, set()),
    ("ModelDiet", {"stored": "8 bits"}, set()),
    ("PipelineSchedule", {"schedule": "interleaved"}, set()),
    ("ScalingLab", {}, {"model", "waits", "ranks"}),
    ("TransferExplorer", {"view": "break_even"}, set()),
    ("TransferExplorer", {"view": "overlap"}, set()),
]


@pytest.fixture
def no_accelerator() -> None:
    """Skip the test if there is an accelerator, which brings more controls and other defaults."""
    if len(devices.available()) > 1:
        pytest.skip("the approved texts are those of a machine without an accelerator")


@pytest.fixture
def instrument(
    request: pytest.FixtureRequest, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Any]:
    """An instrument by its name; the learner's own folder has a damaged recording."""
    (tmp_path / "damaged.json").write_text("{")
    monkeypatch.setenv("GPULAB_RECORDINGS", str(tmp_path))
    made = make(request.param)
    made.wait()
    yield made
    made.close()


every = pytest.mark.parametrize("instrument", NAMES, indirect=True)


@every
@pytest.mark.usefixtures("no_accelerator")
def test_what_it_offers(instrument: Any, approved: Any) -> None:
    """Title, buttons, and each control with its options, bounds, unit, default and help."""
    assert offered(instrument) == approved


@every
def test_what_it_says_of_itself(instrument: Any) -> None:
    """Descriptions are JSON, labels and options differ, sentences end, the code is Python."""
    controls = told(instrument)
    json.dumps(controls, allow_nan=False)
    labels = [control["label"] for control in controls]
    helps = [*(each["help"] for each in controls), *(each.help for each in instrument.actions)]
    options = [control.get("options", ()) for control in controls]
    assert all(len(set(each)) == len(each) for each in (labels, *options))
    assert all(text.endswith(".") for text in (instrument.summary, *filter(None, helps)))
    compile(instrument.code, "<code>", "exec")
    assert instrument.shown.evidence or instrument.shown.message
    assert (instrument.status, instrument.error, instrument.running) == ("idle", "", False)


@every
def test_junk_leaves_it_as_it_was(instrument: Any) -> None:
    """Each junk value in each control is refused in one short sentence; values and code stay."""
    before, code = dict(instrument.values), instrument.code
    controls = [*told(instrument), {"name": "nosuch", "kind": ""}]
    for control in controls:
        for value in JUNK:
            if _fits(control, value):
                continue
            with pytest.raises(InputError) as caught:
                instrument.set(**{control["name"]: value})
            assert len(str(caught.value)) < 1200
            assert "\n" not in str(caught.value)
    with pytest.raises(InputError):
        type(instrument)(nosuch=1)
    with pytest.raises(InputError, match="action"):
        instrument.run("nosuch")
    assert (instrument.values, instrument.code) == (before, code)


def _fits(control: dict[str, Any], value: Any) -> bool:
    """Whether junk is valid for this control: an option, in the bounds, or nothing ticked."""
    if isinstance(value, int) and str(value) in control.get("options", ()):
        return True
    if control["kind"] == "number":
        return isinstance(value, int) and (control["min"] or 0) <= value <= (control["max"] or 0)
    nothing = isinstance(value, (list, dict, np.ndarray)) and not len(value)
    return control["kind"] == "several" and nothing and not control["least"]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "given", "unused"), CONTEXTS)
def test_each_setting_shows_something_of_its_own(
    name: str, given: dict[str, Any], unused: set[str]
) -> None:
    """Each value of a control on the screen gives another picture, table, message or code."""
    instrument = make(name, **given)
    instrument.wait()
    moved = [c for c in told(instrument) if c["on_screen"]]
    for control in moved:
        key = control["name"]
        before, seen, kept = instrument.values[key], [], []
        for value in settings(control):
            instrument.set(**{key: value})
            instrument.wait()
            assert instrument.error == ""
            kept.append(repr(instrument.values[key]))
            seen.append(display(instrument))
        several = len(set(kept)) > 1 and key not in unused
        assert len(set(seen)) == (len(set(kept)) if several else 1), key
        instrument.set(**{key: before})
        instrument.wait()
    instrument.close()


@pytest.fixture(scope="module")
def ran() -> Iterator[Callable[[str], Any]]:
    """Return an instrument at its smallest settings, made when first asked for."""
    with contextlib.ExitStack() as closed:
        yield functools.cache(
            lambda name: closed.enter_context(
                contextlib.closing(make(name, **SMALLEST.get(name, {})))
            )
        )


@pytest.mark.parametrize(
    ("name", "action"),
    [
        pytest.param(*pair, marks=() if pair[1] in QUICK else pytest.mark.slow, id="-".join(pair))
        for pair in ACTIONS
    ],
)
def test_each_action_gives_its_result(ran: Callable[[str], Any], name: str, action: str) -> None:
    """It ends without an error; what it found is on the screen, with a badge and code."""
    instrument = ran(name)
    instrument.run(action, wait=True)
    assert (instrument.error, instrument.status, instrument.traceback) == ("", "idle", "")
    assert instrument.progress.endswith("done")
    if action == "clear":
        assert instrument.result is None
        return
    assert instrument.result is not None
    assert instrument.latest == action
    assert instrument.shown.evidence
    assert instrument.shown.rows
    assert [
        key
        for key in OF_THE_RESULT
        if key in instrument.values
        and getattr(instrument.result, key, instrument.values[key]) != instrument.values[key]
    ] == []
    assert "have changed" not in instrument.shown.message
    compile(instrument.code, "<code>", "exec")


# Code that takes no more than a second or two; ranks of its own and long sweeps take seconds.
CODES: list[tuple[str, str, dict[str, Any]]] = [
    ("MachineCard", "refresh", {}),
    ("CompareTimings", "run", {}),
    ("TransferExplorer", "overlap", {"view": "overlap", "way": "here"}),
    ("MemoryInspector", "snapshot", {"view": "snapshot"}),
    ("MemoryInspector", "predict", {"view": "predict"}),
    ("MemoryInspector", "trace", {"view": "trace"}),
    ("RooflineExplorer", "run", {}),
    ("PipelineTimeline", "run", {}),
    ("LossScaling", "gradients", {}),
    ("ModelDiet", "run", {}),
    ("ShardingExplorer", "predict", {}),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "action", "given"), CODES)
def test_the_code_shown_gives_the_same_kind_of_result(
    ran: Callable[[str], Any], name: str, action: str, given: dict[str, Any]
) -> None:
    """Run in a fresh namespace, it ends with the same class of result or kind of picture."""
    instrument = ran(name)
    if action not in instrument.results or instrument.result is None:
        instrument.run(action, wait=True)
    instrument.set(**given)
    names, value = run_cell(instrument.code)
    assert instrument.error == ""
    if isinstance(value, LabFigure):
        titles = [_title(figure) for figure in (value, instrument.shown.figure)]
        assert titles[0] == titles[1]
    else:
        assert type(value) is type(instrument.results[action])
    result = instrument.results[action]
    assert any(type(found) in _kinds(result) for found in (value, *names.values()))


def _kinds(result: Any) -> tuple[type, ...]:
    return tuple(map(type, result.values())) if isinstance(result, dict) else (type(result),)


def _title(figure: Any) -> str:
    """The title without measured numbers."""
    return re.sub(r"[\d.]+ ?%?", "", figure_text(figure).splitlines()[0])
