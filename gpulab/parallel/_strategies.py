"""The registry of strategies: ways to train one model over several ranks, each of which must
compute what one process computes.

A strategy says, before any rank works, whether it can split what was asked (``check``), and makes
inside each rank a ``Trainer`` that takes one step at a time (``build``). ``train`` gives every
strategy the same seed and the same whole batch, and does the rest: losses, memory, bytes, times and
the comparison with one process.

How to add one: write a ``Trainer`` and call ``register(Strategy(...))`` in a module named in
``_FAMILIES``.
"""

from __future__ import annotations

import contextlib
import importlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from gpulab import _given
from gpulab.errors import InputError, shown

# Modules of this package that register strategies, in the order in which ``strategies`` names
# theirs.
_FAMILIES = (
    "_strategies_data",
    "_strategies_sharded",
    "_strategies_tensor",
    "_strategies_pipeline",
)
_STRATEGIES: dict[str, Strategy] = {}


@dataclass(frozen=True)
class Asked:
    """What a caller wants trained; known before any rank works.

    Attributes
    ----------
    model : torch.nn.Module
        The whole model, on the host.
    ranks, batch_size, microbatches : int
        The batch is that of a whole step, over all ranks; microbatches are the parts that a rank
        takes one after another, where a strategy has them.
    positions : int
        Of one item, where items are sequences: the inputs' second dimension, or 1 where they have
        none.
    """

    model: Any
    ranks: int
    batch_size: int
    microbatches: int
    positions: int


class Trainer(Protocol):
    """A model in training on one rank.

    Attributes
    ----------
    modules : list of torch.nn.Module
        What holds this rank's parameters.
    optimizer : torch.optim.Optimizer
    """

    modules: list[Any]
    optimizer: Any

    def step(self, batch: tuple[Any, Any]) -> Any:
        """Take one step on the whole batch (inputs, targets); return this rank's share of its mean
        loss, a detached scalar.

        The shares of all ranks add up to the mean loss of the whole batch.
        """

    def state(self) -> dict[str, Any]:
        """Return the whole model's parameters by their names in the whole model, plain tensors; {}
        on a rank that has none to return.

        Every rank calls it at the same time, so it may gather.
        """


@dataclass
class Setting:
    """What a strategy finds inside a rank.

    Attributes
    ----------
    rank, size : int
    device : torch.device
    model : torch.nn.Module
        The whole model, on the device, with the same weights on each rank.
    loss : callable
        ``loss(model, (inputs, targets))`` is the mean over the batch, a scalar tensor.
    make_optimizer : callable
        From parameters to an optimizer; its attributes ``kind`` and ``options`` are the class and
        its arguments.
    microbatches : int
    bucket_bytes : int
        About this many bytes of gradients are sent together.
    phases : list of (name, begin, end)
        What the rank's thread did when, by ``time.perf_counter``.
    ends_in_wait : list of float
        When passes ended whose last part is a wait inside PyTorch that Python does not see: from
        the last collective that the pass entered until then, the thread stood.
    """

    rank: int
    size: int
    device: Any
    model: Any
    loss: Callable[[Any, tuple[Any, Any]], Any]
    make_optimizer: Any
    microbatches: int
    bucket_bytes: int
    phases: list[tuple[str, float, float]] = field(default_factory=list)
    ends_in_wait: list[float] = field(default_factory=list)

    @contextlib.contextmanager
    def span(self, name: str) -> Iterator[None]:
        """Note when the block began and ended, under its name on the timeline; blocks do not
        nest.
        """
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.phases.append((name, begin, time.perf_counter()))

    def share(self, batch: tuple[Any, Any]) -> tuple[Any, Any]:
        """Return this rank's part of the whole batch: as many items as every other rank's."""
        count = len(batch[0]) // self.size
        mine = slice(self.rank * count, (self.rank + 1) * count)
        return batch[0][mine], batch[1][mine]


def no_check(asked: Asked) -> None:
    """Let everything pass."""


@dataclass(frozen=True)
class Strategy:
    """A way to train one model over several ranks.

    Attributes
    ----------
    name, summary : str
    build : callable
        From a ``Setting`` to a ``Trainer``, inside each rank.
    check : callable
        Takes ``Asked``; raises ``InputError`` where this strategy cannot split what was asked.
    """

    name: str
    summary: str
    build: Callable[[Setting], Trainer]
    check: Callable[[Asked], None] = no_check


def register(strategy: Strategy) -> Strategy:
    """Add a strategy to the registry.

    Raises
    ------
    ValueError
        If there is one of this name already.
    """
    if strategy.name in _STRATEGIES:
        raise ValueError(
            f"register: there is a strategy {strategy.name!r} already; expected a new name."
        )
    _STRATEGIES[strategy.name] = strategy
    return strategy


def _known() -> dict[str, Strategy]:
    families = [
        importlib.import_module(f"gpulab.parallel.{family}").__name__ for family in _FAMILIES
    ]
    # In the order of the families, whichever of them was imported first.
    return dict(
        sorted(_STRATEGIES.items(), key=lambda item: families.index(item[1].build.__module__))
    )


def strategies() -> tuple[str, ...]:
    """Return the names of the strategies that ``train`` knows.

    Examples
    --------
    >>> strategies()[:3]
    ('single', 'data', 'ddp')
    """
    return tuple(_known())


def strategy_named(given: Any) -> Strategy:
    """Return a strategy by its name; a ``Strategy`` is returned unchanged, and a function becomes
    data parallel with that function.

    Raises
    ------
    InputError
        If it is neither a name, nor a strategy, nor a function.
    """
    if isinstance(given, Strategy):
        return given
    if callable(given):
        from gpulab.parallel._strategies_data import by_hand

        return by_hand(given)
    if not isinstance(given, str):
        raise InputError(
            f"train: strategy is {shown(given)}; expected a name or a function that averages a "
            "model's gradients. "
            f"Pass one of: {', '.join(strategies())}."
        )
    return _known()[_given.word("train", "strategy", given, strategies())]


def positions_of(inputs: Any) -> int:
    """Return the positions of an item of these inputs, as ``Asked`` counts them."""
    return int(inputs.shape[1]) if inputs.dim() > 1 else 1


def divides(name: str, asked: Asked, parts: int, what: str) -> None:
    """Refuse a batch that does not divide.

    Raises
    ------
    InputError
        If the batch is not a multiple of ``parts``: the mean of unequal parts' means is not the
        batch's mean.
    """
    if asked.batch_size % parts:
        below, above = asked.batch_size // parts * parts, (asked.batch_size // parts + 1) * parts
        raise InputError(
            f"train: a batch of {asked.batch_size} does not divide over {what} of {name}; expected "
            f"a multiple of {parts}, since the mean "
            f"of unequal parts is not the batch's mean. Pass batch_size={below or above}."
        )
