"""Two runs in turn: nobody disturbs the other, the ratio is paired, and the race ends as a run does."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from training_clock import Clock

from gpulab import training
from gpulab.devices import Device
from gpulab.errors import InputError, OutOfMemoryError, StoppedError
from gpulab.training._settings import Generators

SHORT: dict[str, Any] = {"device": "cpu", "steps": 6}


def test_racing_changes_neither_run() -> None:
    """Each side's losses are those of its own fit."""
    result = training.race("digits-mlp", {}, {"precision": "bfloat16", "batch_size": 32}, seed=2, **SHORT)
    assert result.first.losses.tolist() == training.fit("digits-mlp", seed=2, **SHORT).losses.tolist()
    alone = training.fit("digits-mlp", seed=2, precision="bfloat16", batch_size=32, **SHORT)
    assert result.second.losses.tolist() == alone.losses.tolist()
    assert result.names == ("precision=float32, batch_size=usual", "precision=bfloat16, batch_size=32")
    assert training.RaceResult.from_dict(result.to_dict()) == result
    assert result.ended == "finished"


class OneGenerator:
    """What ``torch.mps`` and ``torch.xpu`` offer of a generator, which here is one of the host's."""

    def __init__(self) -> None:
        self.generator = torch.Generator()
        self.default_generators = (self.generator,)

    def manual_seed(self, seed: int) -> None:
        """Seed it, as ``torch.mps.manual_seed`` does."""
        self.generator.manual_seed(seed)

    def get_rng_state(self, device: object = 0) -> torch.Tensor:
        """Return its state."""
        return self.generator.get_state()

    def set_rng_state(self, state: torch.Tensor, device: object = 0) -> None:
        """Go back to a state."""
        self.generator.set_state(state)

    def drawn(self) -> list[float]:
        """Return three numbers, as a dropout draws them."""
        return torch.rand(3, generator=self.generator).tolist()


@pytest.mark.parametrize("kind", ["mps", "xpu"])
def test_runs_in_turn_have_an_accelerators_generator_of_their_own(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Metal's and XPU's too: each run draws what a generator of its seed gives alone, and the caller's goes on where it was."""
    there, plain = OneGenerator(), torch.Generator().manual_seed(3)
    monkeypatch.setattr(torch, kind, there)
    there.manual_seed(99)
    before = there.get_rng_state()
    one, other = (Generators(3, Device(kind)) for _ in range(2))
    assert torch.equal(there.get_rng_state(), before)
    drawn: dict[int, list[float]] = {0: [], 1: []}
    for _ in range(2):
        for number, run in enumerate((one, other)):
            with run.in_use():
                drawn[number] += there.drawn()
    assert drawn[0] == drawn[1] == torch.cat([torch.rand(3, generator=plain) for _ in range(2)]).tolist()
    assert torch.equal(there.get_rng_state(), before)
    host = torch.get_rng_state()
    other.restore([host, torch.zeros(16, dtype=torch.uint8)])  # a checkpoint of a CUDA device, whose states have 16 bytes
    assert torch.equal(other.states[0], host)
    assert torch.equal(other.states[1], before)


class Slow(torch.optim.SGD):
    """An optimizer whose step takes a known time, and that keeps a list of whose turn it was."""

    def __init__(self, parameters: Any, clock: Clock, seconds: float, turns: list[float]) -> None:
        super().__init__(parameters, lr=0.01)
        self.clock, self.seconds, self.turns = clock, seconds, turns

    def step(self, closure: Any = None) -> Any:
        """Take the time, note the turn, update."""
        self.clock.spend(self.seconds)
        self.turns.append(self.seconds)
        return super().step(closure)


def test_the_ratio_is_that_of_the_turns_and_the_order_alternates() -> None:
    """Four against one second a step: a ratio of 4 with its interval; who begins changes from turn to turn, and none steps twice."""
    clock, turns = Clock(), []

    def side(seconds: float) -> dict[str, Any]:
        return {"optimizer": lambda parameters: Slow(parameters, clock, seconds, turns)}

    result = training.race("digits-mlp", side(4.0), side(1.0), steps=24, device="cpu", clock=clock, names=("slow", "fast"))
    assert result.speedup == pytest.approx(4.0, rel=1e-4)
    assert result.speedup_interval is not None
    assert result.speedup_interval[0] <= result.speedup <= result.speedup_interval[1]
    assert turns[:8] == [4.0, 1.0, 1.0, 4.0, 4.0, 1.0, 1.0, 4.0]
    assert result.accuracy_difference == 0.0
    assert result.accuracy_difference_interval is not None
    assert result.accuracy_difference_interval[0] < 0 < result.accuracy_difference_interval[1]


def test_the_moments_show_the_losses_as_they_come() -> None:
    """After each turn, both curves until then."""
    seen: list[training.Moment] = []
    result = training.race("digits-mlp", {}, {"clip": 1.0}, show=seen.append, **SHORT)
    assert [len(moment.losses[0]) for moment in seen] == list(range(1, 7))
    assert seen[-1].losses == (tuple(result.first.losses), tuple(result.second.losses))
    assert seen[-1].peak_bytes == (result.first.peak_bytes, result.second.peak_bytes)
    assert seen[-1].steps == 6


def test_progress_is_that_of_the_one_who_is_further() -> None:
    """After each turn; one that diverged in its first step does not hold it up."""
    for first in ({}, {"learning_rate": 1e38, "optimizer": "sgd"}):
        seen: list[tuple[float, str]] = []
        training.race("digits-mlp", first, {"clip": 1.0}, steps=4, device="cpu", progress=lambda *told, seen=seen: seen.append(told))
        assert seen == [(k / 4, f"step {k} of 4") for k in (1, 2, 3, 4)]


def test_the_difference_in_accuracy_is_one_of_shares() -> None:
    """A hard digit has two answers, one at each of its places, and the difference is that of the two accuracies all the same."""
    result = training.race("digits-hard-cnn", {"learning_rate": 1e-12}, {}, steps=4, device="cpu")
    assert result.first.accuracy is not None
    assert result.second.accuracy is not None
    difference = result.second.accuracy.ratio - result.first.accuracy.ratio
    assert result.accuracy_difference == pytest.approx(difference)
    assert difference != 0
    assert result.accuracy_difference_interval is not None
    low, high = result.accuracy_difference_interval
    assert -1 <= low < difference < high <= 1


def test_one_that_was_over_is_not_told_to_have_been_stopped() -> None:
    """The first diverged in its second step, the other was stopped after three: only that one has the note."""
    asked = iter([False] * 3 + [True])
    result = training.race("digits-mlp", {"learning_rate": 1e38, "optimizer": "sgd"}, {}, stop=lambda: next(asked), **SHORT)
    assert (result.first.ended, result.second.ended, result.second.steps) == ("diverged", "stopped", 3)
    assert not any("Run it again for all of them" in note.sentence for note in result.first.notes)
    assert [note.code for note in result.second.notes if "after 3 of 6 steps" in note.sentence] == ["stopped"]


def test_a_stop_keeps_both() -> None:
    """What was reached by each, with a note; before both have stepped there is nothing."""
    asked = iter([False] * 3 + [True])
    result = training.race("digits-mlp", {}, {"clip": 1.0}, stop=lambda: next(asked), **SHORT)
    assert (result.ended, result.first.steps, result.second.steps) == ("stopped", 3, 3)
    with pytest.raises(StoppedError):
        training.race("digits-mlp", {}, {}, stop=lambda: True, **SHORT)


def test_one_that_diverges_leaves_the_other_to_finish() -> None:
    """The race says diverged, and which."""
    result = training.race("digits-mlp", {"learning_rate": 1e20}, {}, steps=12, device="cpu")
    assert (result.first.ended, result.second.ended, result.ended) == ("diverged", "finished", "diverged")
    assert result.second.steps == 12
    assert any("note on learning_rate" in row[0] for row in result.table()[1])


def test_the_side_that_fails_is_named() -> None:
    """In the words of the run, with the side before them."""
    with pytest.raises(InputError, match=r"race, batch_size=10000: fit: batch_size is 10000"):
        training.race("digits-mlp", {}, {"batch_size": 10_000}, **SHORT)

    class Full(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            raise torch.OutOfMemoryError("no room")

    with pytest.raises(OutOfMemoryError, match=r"race, optimizer=Full: fit: step 0"):
        training.race("digits-mlp", {}, {"optimizer": Full}, **SHORT)


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        (None, {}, "options by name"),
        ({}, 5, "options by name"),
        ({1: 2}, {}, "options by name"),
        ({"precison": "float16"}, {}, "expected options of fit"),
        ({}, {"seed": 3}, "seed of its own; .* Pass it to race itself"),
        ({}, {"model": torch.nn.Linear(1, 1)}, "model of its own; .* Leave it out"),
        ({"epochs": 2}, {}, "epochs of its own; .* Pass steps to race itself"),
        ({}, {"save": "run.pt"}, "save of its own; .* Call fit"),
    ],
)
def test_options_that_cannot_race(first: Any, second: Any, words: str) -> None:
    """One sentence, before anything runs."""
    with pytest.raises(InputError, match=words):
        training.race("digits-mlp", first, second, **SHORT)


@pytest.mark.parametrize("names", [("a",), ("a", "a"), ("a", ""), 5, "ab", ("a", 1)])
def test_names_that_are_none(names: Any) -> None:
    """Two different texts."""
    with pytest.raises(InputError, match="names"):
        training.race("digits-mlp", {}, {}, names=names, **SHORT)


def test_a_race_of_equals_tells_them_apart() -> None:
    """The names differ, the losses do not."""
    result = training.race("digits-mlp", {}, {}, **SHORT)
    assert result.names == ("as it is (first)", "as it is (second)")
    assert result.first.losses.tolist() == result.second.losses.tolist()
    alike = {"precision": "bfloat16", "clip": 1.0}
    other = training.race("digits-mlp", alike, alike, **{**SHORT, "steps": 2})
    assert other.names == ("precision=bfloat16, clip=1.0 (first)", "precision=bfloat16, clip=1.0 (second)")
    assert not any("-0.0" in cell for row in other.table()[1] for cell in row)
