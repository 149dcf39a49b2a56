"""Shared by the tests of training: a clock that only tests advance, and parts that advance it."""

import functools
from collections.abc import Callable
from typing import Any

import torch
from gpulab import networks, training
from gpulab.training import Data, Task

from texts import table_text


class Clock:
    """A clock that only the test advances, in powers of two if its sums are to be exact."""

    now = 0.0

    def __call__(self) -> float:
        """Return the seconds; each reading takes a little, so that no two readings are equal."""
        self.spend(2.0**-20)
        return self.now

    def spend(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds


def data_that(do: Callable[[Any], Any], data: Any = None) -> Data:
    """Return data, by default the digits, that call ``do`` with each batch."""

    class Doing(Data):
        def __getitem__(self, indices: Any) -> Any:
            do(batch := super().__getitem__(indices))
            return batch

    return Doing(*(data or training.task("digits-mlp").train[slice(None)]))


class Layer(torch.nn.Module):
    """The digits' network, whose scores pass through ``do(layer, scores)``."""

    def __init__(self, do: Callable[["Layer", Any], Any]) -> None:
        super().__init__()
        self.inner, self.calls, self.do = training.task("digits-mlp").make_model(0), 0, do

    def forward(self, x: Any) -> Any:
        """Count the call, compute the scores of ``x`` and return what ``do`` makes of them."""
        self.calls += 1
        return self.do(self, self.inner(x))


def optimizer_that(do: Callable[[], Any]) -> dict[str, Any]:
    """Return options of a run whose optimizer calls ``do`` after each of its steps."""

    def make(parameters: Any) -> torch.optim.Optimizer:
        optimizer = torch.optim.SGD(parameters, lr=0.01)
        optimizer.register_step_post_hook(lambda *_: do())
        return optimizer

    return {"optimizer": make}


def task_of(train: Any, kind: type[Task] = Task) -> Task:
    """The digits' perceptron, with some dropout, on other training data."""
    test = training.task("digits-mlp").test
    build = functools.partial(networks.mlp, inputs=64, hidden=128, dropout=0.1)
    return kind("mine", "a test's", "images", "digits", 64, 15, 3e-3, lambda: (train, test), build)


def trained(model: torch.nn.Module, x: torch.Tensor) -> torch.nn.Module:
    """The model after a few steps of Adam with weight decay, so that norms have seen data."""
    optimizer = torch.optim.Adam(model.parameters(), weight_decay=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model.train()(x).square().mean().backward()
        optimizer.step()
    return model.eval()


def told(*results: Any) -> str:
    """Each result in one line and as a table."""
    return "".join(f"{one!r}\n{table_text(one._repr_html_())}\n" for one in results)
