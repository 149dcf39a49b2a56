"""LossScaling: gradients once, then every control redraws from them; the code shown gives the same window."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from control_tables import offers_what_it_takes
from redraws import in_a_tenth_of_a_second

from gpulab import precision, training
from gpulab.errors import InputError
from gpulab.evidence import Evidence
from gpulab.precision import Gradients, Magnitudes
from gpulab.widgets import LossScaling

VALUES = 2.0 ** np.arange(-30, 3)


def gradients(values: np.ndarray = VALUES) -> Gradients:
    """Gradients of a model that nobody trained."""
    kinds = (Magnitudes.of("parameters", [values]), Magnitudes.of("activations", [values / 1024]))
    return Gradients("an example", kinds, Evidence.measured("a device", 1))


def test_before_there_are_gradients_it_says_what_to_do() -> None:
    """No picture and no number that was not computed."""
    i = LossScaling()
    assert i.window is None
    assert "Press Compute gradients" in i._results.message
    assert i._picture.outputs == ()


def test_the_scale_moves_what_is_lost() -> None:
    """By hand, for 2**-30 to 4: the six up to 2**-25 are zero; times 2**13 nothing is lost; times 2**14 one overflows."""
    i = LossScaling(which="parameters")  # stays though there are no gradients yet
    i.load(gradients())
    assert i.window is not None
    assert i.window.vanishing_share == 6 / 33
    i.set(scale=2.0**13)
    assert i.window.safe
    assert "every gradient keeps" in i._results.message or "subnormal" in i._results.message
    i.set(scale=2.0**14)
    assert i.window.overflowing_share == 1 / 33
    i.set(scale=1.0, which="activations")
    assert i.window.vanishing_share == 16 / 33
    i.set(which="all")
    assert i.window.vanishing_share == 22 / 66
    i.set(format="bfloat16")
    assert i.window.vanishing_share == 0
    assert [e["badge"] for e in i._results.evidence] == ["MEASURED"]


def test_the_work_trains_and_takes_the_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    """The core calls get what the controls say; steps of zero train nothing."""
    asked: list[Any] = []
    monkeypatch.setattr(training, "fit", lambda task, **named: asked.append((task.name, named["steps"], named["model"])))
    i = LossScaling(task="digits-mlp", steps=20)
    i.run(wait=True)
    assert i.error == ""
    assert asked[0][:2] == ("digits-mlp", 20)
    assert i.gradients is not None
    assert {each.kind for each in i.gradients.kinds} == {"parameters", "activations"}
    i.set(steps=0)
    assert "press Compute gradients to make it again" in i._results.message
    i.run(wait=True)
    assert len(asked) == 1
    i.set(scale=64.0)  # shows only: nothing to make again
    assert "controls have moved" not in i._results.message


def test_a_stopped_training_gives_no_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop ends the training in its middle, and returns what was reached: its gradients would stand under the steps of the control."""
    i = LossScaling(task="digits-mlp", steps=300)
    monkeypatch.setattr(training, "fit", lambda *given, **named: i.stop())
    i.run(wait=True)
    assert i.gradients is None
    assert i._panel.progress == "Stopped before all 300 training steps were taken; no gradients were computed."
    assert i._results.message.startswith("Press Compute gradients")


def test_the_loss_is_of_every_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scores of a language model have a place for each token: PyTorch's own form for that wants the classes second."""
    asked: list[Any] = []
    monkeypatch.setattr(precision, "gradients", lambda model, x, **named: asked.append((len(x), named)) or gradients())
    i = LossScaling(task="digits-mlp", steps=0)
    i.run(wait=True)
    (items, named), scores, y = asked[0], torch.randn(2, 3, 5), torch.tensor([[0, 1, 4], [2, 3, 3]])
    assert (items, len(named["targets"])) == (128, 128)
    expected = torch.nn.functional.cross_entropy(scores.movedim(-1, 1), y)
    assert float(named["loss"](scores, y)) == pytest.approx(float(expected))


def test_the_code_makes_the_same_window(monkeypatch: pytest.MonkeyPatch) -> None:
    """What "Show the code" prints trains the same model and gives the same shares."""
    i = LossScaling(task="digits-mlp", steps=0, scale=8.0, which="parameters")
    i.run(wait=True)
    names: dict[str, Any] = {}
    exec(i.code.rsplit("\n", 1)[0], names)
    assert i.window is not None
    assert names["w"].vanishing_share == i.window.vanishing_share
    assert names["w"].scale == 8.0
    assert "steps=20" in LossScaling(steps=20).code
    assert "gl.precision.gradients(" in LossScaling().load(gradients()).code


def test_gradients_of_ones_own_are_never_older_than_the_controls() -> None:
    """Computed ones are told to be older where the task has moved; those that were loaded were made elsewhere."""
    i = LossScaling(task="digits-mlp", steps=0)
    i.run(wait=True)
    i.load(gradients())
    assert i.gradients is i._loaded
    assert "controls have moved" not in i._results.message
    i.set(task="digits-mlp")
    assert "controls have moved" not in i._results.message
    i.set(steps=20)
    assert "controls have moved" in i._results.message


def test_what_is_no_gradients_is_refused() -> None:
    """One sentence, and the instrument stays as it was."""
    i = LossScaling()
    with pytest.raises(InputError, match=r"expected what gl.precision.gradients"):
        i.load([1.0, 2.0])  # type: ignore[arg-type]
    with pytest.raises(InputError, match="expected one of"):
        i.set(scale=3.0)
    assert i.values["task"] == "digits-mlp"


def test_it_redraws_within_a_tenth_of_a_second() -> None:
    """The best of ten moves of the scale over as many gradients as are kept, in this process's own time."""
    values = np.exp(np.random.default_rng(0).normal(-12, 4, 300_000))
    i = LossScaling().load(gradients(values))
    assert in_a_tenth_of_a_second(lambda power: i.set(scale=2.0**power), range(1, 11))
    assert isinstance(i.window, precision.GradientWindow)


def test_what_it_offers_it_takes() -> None:
    """Buttons and controls are those of its table, and each option and suggestion is taken as itself."""
    offers_what_it_takes(LossScaling())
