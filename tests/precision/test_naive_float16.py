"""What notebook 05 tells: naive float16 dies on every seed, of Adam's epsilon, and is rescued; unscaled gradients vanish, silently."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch.nn import functional

from gpulab import precision, training

TASK = "digits-mlp"
STEPS = 20


@pytest.mark.parametrize("seed", range(5))
def test_naive_float16_diverges_and_is_rescued(seed: int) -> None:
    """Within five steps the loss is nan, scaled or not; float32 weights with a scaled loss learn as float32 does, step by step."""
    named = {"device": "cpu", "steps": STEPS, "seed": seed}
    for scale in (1, 256, "dynamic"):
        naive = training.fit(TASK, precision="pure-float16", loss_scale=scale, **named)
        assert naive.ended == "diverged"
        assert len(naive.losses) <= 5
        assert not math.isfinite(naive.losses[-1])
    alive = training.fit(TASK, precision="pure-float16", loss_scale=1, optimizer=_adam(1e-4), **named)
    assert alive.ended == "finished", "an epsilon that float16 holds"
    rescued, full = (training.fit(TASK, precision=p, **named) for p in ("float16", "float32"))
    assert rescued.ended == full.ended == "finished"
    assert rescued.losses[-1] < 0.7 * rescued.losses[0]
    np.testing.assert_allclose(rescued.losses, full.losses, rtol=0.02)


def _adam(epsilon: float):
    return lambda parameters: torch.optim.Adam(parameters, lr=3e-3, eps=epsilon)


def test_the_epsilon_is_the_cause() -> None:
    """No scale of the loss mends it; an epsilon that float16 holds does, so that the weights stay numbers."""
    named = {"device": "cpu", "steps": STEPS, "precision": "pure-float16"}
    for scale in (64, 4096):
        assert training.fit(TASK, loss_scale=scale, **named).ended == "diverged"
    assert float(precision.round_to(1e-8, "float16")) == 0.0
    assert training.fit(TASK, optimizer=_adam(1e-8), **named).ended == "diverged"
    assert training.fit(TASK, optimizer=_adam(1e-4), **named).ended == "finished"


def test_a_black_pixel_is_enough() -> None:
    """By hand: a weight whose gradient is zero gets 0 / (0 + 0) from Adam in float16."""
    weight = torch.nn.Parameter(torch.ones(1, dtype=torch.float16))
    weight.grad = torch.zeros(1, dtype=torch.float16)
    torch.optim.Adam([weight], lr=1e-3).step()
    assert math.isnan(weight.item())
    wide = torch.nn.Parameter(torch.ones(1))
    wide.grad = torch.zeros(1)
    torch.optim.Adam([wide], lr=1e-3).step()
    assert wide.item() == 1.0


def test_a_small_loss_vanishes_and_a_scaler_brings_it_back() -> None:
    """A millionth of the loss: every gradient of the float16 layers is zero; with GradScaler they are those of float32."""
    task = training.task(TASK)
    x, y = task.train[:64]
    found = {}
    for name, scaled in (("plain", False), ("scaled", True)):
        model = task.make_model(seed=0)
        scaler = torch.amp.GradScaler("cpu", enabled=scaled)
        with torch.autocast("cpu", dtype=torch.float16):
            loss = 1e-6 * functional.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scale = scaler.get_scale() if scaled else 1.0
        found[name] = torch.cat([p.grad.flatten() for p in model.parameters()]) / scale
    exact = task.make_model(seed=0)
    (1e-6 * functional.cross_entropy(exact(x), y)).backward()
    wanted = torch.cat([p.grad.flatten() for p in exact.parameters()])
    assert (found["plain"] == 0).float().mean() > 0.99
    assert (found["scaled"] - wanted).norm() < 0.02 * wanted.norm()


def test_gradients_shrink_as_a_network_learns() -> None:
    """After 300 steps far more of them vanish in float16 than at the start, and a scale brings all but few back."""
    task = training.task(TASK)
    x, y = task.train[:128]
    model = task.make_model(seed=0)

    def vanishing(scale: float) -> float:
        gradients = precision.gradients(model, x, loss=functional.cross_entropy, targets=y)
        return precision.gradient_window(gradients, "float16", scale).vanishing_share

    before = vanishing(1.0)
    training.fit(task, model=model, device="cpu", steps=300)
    assert vanishing(1.0) > 0.1 > 10 * before
    assert vanishing(65536.0) < 0.01
