"""What tests of training share: a clock whose time the test lets pass, and a small task."""

from __future__ import annotations

import functools
from typing import Any

from gpulab import networks, training
from gpulab.training import Task


class Clock:
    """Seconds that pass only where the test says so, in powers of two, so that sums are exact."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        """Return the seconds."""
        self.now += 2.0**-20  # reading it takes a little, so that it never stands still
        return self.now

    def spend(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds


def task_of(train: Any, kind: type[Task] = Task, width: int = 128) -> Task:
    """The digits' perceptron on other training data."""
    test = training.task("digits-mlp").test
    build = functools.partial(networks.mlp, inputs=64, hidden=width)
    return kind("mine", "a test's", "images", "digits", 64, 15, 3e-3, lambda: (train, test), build)
