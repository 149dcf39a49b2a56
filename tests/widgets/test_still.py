"""Instruments at rest, as a page wants them: empty ones are pressed once, endless ones stopped, and every part says its state."""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import plotly.graph_objects as go
import pytest
from ipywidgets import IntSlider
from ipywidgets.widgets import widget as registry

from gpulab.widgets import _still
from gpulab.widgets._instrument import Action, Drawing, Instrument


class Probe(Instrument):
    """An instrument that counts its presses."""

    title = "Probe"
    actions = (Action("run", "Run", measures=False),)
    has_picture = False
    endless = False

    def __init__(self) -> None:
        self.presses = 0
        super().__init__()

    def work(self, action: str, values: Mapping[str, Any], progress: Any, stop: Any) -> int:
        """Count, and go on until Stop where it is endless."""
        self.presses += 1
        while self.endless and not stop():
            pass
        return self.presses

    def draw(self, values: Mapping[str, Any]) -> Drawing:
        """A picture where it has one."""
        return Drawing(go.Figure() if self.has_picture else None, message=f"{self.result}")

    def code_for(self, values: Mapping[str, Any]) -> str:
        """None."""
        return ""


class WithPicture(Probe):
    """Shows something by itself."""

    has_picture = True


class Endless(Probe):
    """Works until it is stopped."""

    endless = True


class Plain(Probe):
    """Has no button."""

    actions = ()


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """No instruments of other tests."""
    monkeypatch.setattr(registry, "_instances", {})
    monkeypatch.setattr(_still, "_settled", set())


def test_only_an_empty_instrument_is_pressed_and_only_once() -> None:
    """One with a picture, one without a button and one that has a result already are left as they are; so is any at the next call."""
    empty, drawn, plain, done = Probe(), WithPicture(), Plain(), Probe()
    done.run(wait=True)
    _still.settle()
    assert [each.presses for each in (empty, drawn, plain, done)] == [1, 0, 0, 1]
    assert (empty.running, empty._results.message) == (False, "1")
    empty.results.clear()
    later = Probe()
    _still.settle()
    assert (empty.presses, later.presses) == (1, 1)


def test_what_takes_too_long_is_stopped_and_shows_what_it_has() -> None:
    """An endless run, pressed by the learner or here, ends with Stop after the seconds given."""
    pressed, begun = Endless(), Endless()
    begun.run()
    _still.settle(0.0)
    assert (pressed.running, begun.running) == (False, False)
    assert (pressed.result, begun.result) == (1, 1)
    assert pressed._panel.progress == "Run: stopped"


def test_it_sleeps_between_two_looks_and_stops_after_the_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a clock that a look moves on by a second: asked to stop after five, not before, and slept for meanwhile."""
    now, stopped, looks = [100.0], [], [0]
    real = time.sleep

    def look() -> float:
        looks[0] += 1
        assert looks[0] < 100, "it looks again and again without a pause"
        return now[0]

    def sleep(seconds: float) -> None:
        assert seconds == 0.02  # of the fifty looks in a second each costs next to nothing
        now[0] += 1.0
        real(0.002)

    monkeypatch.setattr(_still, "time", SimpleNamespace(monotonic=look, sleep=sleep))
    monkeypatch.setattr(Endless, "stop", lambda self: stopped.append(now[0]) or Instrument.stop(self))
    one = Endless()
    one.run()
    _still.settle(5.0)
    assert (stopped, one.running) == ([106.0], False)
    two, begin, looks[0] = Endless(), now[0], 0
    _still.settle()  # half a minute for each, unless told
    assert (stopped[1] - begin, two.running) == (31.0, False)


def test_every_widget_sends_its_whole_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of instruments and other widgets alike, again at each call; the Output's ``msg_id`` alone stays at home."""
    probe, slider = Probe(), IntSlider(3)
    sent: dict[str, list[str]] = {}
    monkeypatch.setattr("ipywidgets.Widget.send_state", lambda self, key=None: sent.__setitem__(self.model_id, list(key or ())))
    _still.settle()
    assert sent.keys() == {each.model_id for each in registry._instances.values()}
    assert {"rows", "message", "code"} <= set(sent[probe._results.model_id])
    assert "value" in sent[slider.model_id]
    assert set(probe._picture.keys) - set(sent[probe._picture.model_id]) == {"msg_id"}
    sent.clear()
    _still.settle()
    assert slider.model_id in sent
