"""What ``train`` refuses before a rank works, each in one sentence that says what to do; no cluster is started."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from gpulab import networks, parallel, training
from gpulab.errors import InputError
from gpulab.parallel import Strategy
from gpulab.parallel._strategies import register
from gpulab.parallel._train import state_difference
from gpulab.training._data import Data


class Shares(torch.nn.Module):
    """Two blocks of a list with one weight between them."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList([torch.nn.Linear(64, 64), torch.nn.Linear(64, 64)])
        self.blocks[1].weight = self.blocks[0].weight


def transformer(**options: Any) -> torch.nn.Module:
    return networks.transformer(80, **{"width": 24, "heads": 3, "layers": 1, "context": 64, **options})


class SharesWithItsHead(torch.nn.Module):
    """Two blocks of a list, and a head that has the first one's weight."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList([torch.nn.Linear(64, 64), torch.nn.Linear(64, 64)])
        self.head = torch.nn.Linear(64, 64)
        self.head.weight = self.blocks[0].weight


_PROSE = training.task("prose-transformer")
# The windows of the prose without their last character: 63 of 64 positions.
OF_63 = dataclasses.replace(
    _PROSE, name="of-63", _load=lambda: (Data(_PROSE.train.inputs[:, :63], _PROSE.train.targets[:, :63]), _PROSE.test)
)
REFUSED: list[tuple[str, dict[str, Any], str, str]] = [
    ("ddp", {"batch_size": 9}, "a batch of 9 does not divide over the 2 ranks of ddp", "batch_size=8"),
    ("zero3", {"batch_size": 1}, "a batch of 1 does not divide", "batch_size=2"),
    ("ddp-no-sync", {"batch_size": 12, "microbatches": 4}, "2 ranks times 4 microbatches", "batch_size=8"),
    ("tensor", {"model": transformer()}, "cannot split 3 heads over 2 ranks", "Take 1 rank, or a model with heads=2"),
    ("split", {"model": transformer()}, "cannot cut 1 layer into 2 stages", "Take 1 rank, or a model with 2 layers"),
    ("sequence", {"model": transformer(heads=2), "task": OF_63}, "sequence cannot split 63 positions over 2 ranks", "62 positions"),
    ("sequence", {"model": networks.cnn()}, "does not know how to split a SmallCNN", "zero3"),
    ("tensor", {"task": "digits-mlp", "model": networks.mlp(64, 33, 10)}, "cannot split 33 features", "hidden=34"),
    ("zero3", {"task": "digits-mlp", "model": Shares()}, "share a weight", "ddp"),
    ("zero2", {"task": "digits-mlp", "model": SharesWithItsHead()}, "share a weight", "ddp"),
    ("ddp", {"model": transformer(dropout=0.1)}, "drops values at random (p=0.1)", "dropout=0"),
    ("ddp", {"task": "digits-mlp", "model": networks.mlp(dropout=0.2)}, "drops values at random (p=0.2)", "dropout=0"),
    ("ddp", {"model": transformer().requires_grad_(False)}, "no parameter that requires a gradient", "Unfreeze"),
    ("ddp", {"model": "transformer"}, "model is a str", "gl.networks.transformer()"),
    ("dpp", {}, "strategy is 'dpp'", "ddp"),
    (7, {}, "strategy is 7", "data"),  # type: ignore[list-item]
    ("ddp", {"steps": 2}, "steps is 2", "steps=4"),
    ("ddp", {"dtype": "float16"}, "dtype is 'float16'", "float64"),
    ("ddp", {"optimizer": "lion"}, "optimizer is 'lion'", "adam"),
    ("ddp", {"learning_rate": -1.0}, "learning_rate is -1.0", "learning_rate=1e-3"),
    ("ddp", {"task": "digits"}, "task is 'digits'", "digits-cnn"),
    ("ddp", {"seed": -1}, "seed is -1", "seed=0"),
]


@pytest.mark.parametrize(("strategy", "options", "said", "remedy"), REFUSED)
def test_refuses_in_one_sentence(strategy: Any, options: dict[str, Any], said: str, remedy: str) -> None:
    """The sentence has what was given, and what to pass instead."""
    with pytest.raises(InputError) as caught:
        parallel.train(2, strategy, **options)
    assert said in str(caught.value)
    assert remedy in str(caught.value).split("expected")[1]
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("given", [0, -1, True, "two", None, 2.0])
def test_refuses_what_is_no_number_of_ranks(given: Any) -> None:
    """Neither a cluster nor a number of at least one."""
    with pytest.raises(InputError, match="ranks is"):
        parallel.train(given)


def test_a_name_is_registered_once() -> None:
    """A second strategy of a name would silently replace the first."""
    with pytest.raises(ValueError, match="'ddp'"):
        register(Strategy("ddp", "", lambda setting: None))  # type: ignore[arg-type, return-value]


def test_a_parameter_that_no_rank_returns_is_a_difference() -> None:
    """Parts must add up to the whole model; the worst rank counts, relative to the largest parameter."""
    whole = {"a": torch.tensor([1.0, -4.0]), "b": torch.tensor([2.0])}
    assert state_difference(whole, [{"a": torch.tensor([1.0, -4.0])}, {"b": torch.tensor([3.0])}]) == 0.25
    assert state_difference(whole, [whole, {"a": torch.tensor([1.0, -2.0])}]) == 0.5
    assert state_difference(whole, [{"a": torch.tensor([1.0, -4.0])}]) != state_difference(whole, [whole])  # nan
    assert str(state_difference(whole, [{"a": torch.tensor([float("nan"), -4.0]), "b": whole["b"]}])) == "nan"
