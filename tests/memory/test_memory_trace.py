"""Traces of real steps: categories by hand, functions, stops and failures."""

import json
import types

import numpy as np
import pytest
import torch
from torch import nn

from gpulab import memory, networks
from gpulab.errors import InputError, OutOfMemoryError, StoppedError
from gpulab.evidence import Badge
from gpulab.memory import MemoryTrace, _sandbox, _trace


def test_a_linear_step_by_hand():
    """Parameters, gradients, moments and the saved input of one linear layer, counted by hand."""
    t = memory.trace(nn.Linear(1000, 500, bias=False), torch.zeros(10, 1000), loss=torch.sum, optimizer="adam", device="cpu")
    assert t.peak_by_category["parameters"] == 2_000_000
    assert t.peak_by_category["gradients"] == 2_000_000
    assert t.peak_by_category["optimizer"] == 4_000_000 + 4
    assert t.peak_by_category["inputs"] == 40_000
    assert sum(t.peak_by_category.values()) == t.peak_bytes == max(t.timeline.total_bytes)
    assert t.peak_tensors[0].name == "weight"
    assert t.evidence.badge is Badge.MEASURED


def test_activations_live_from_forward_to_backward():
    """Ten ReLU layers keep ten activations at the end of the forward pass, and none after the step."""
    model = nn.Sequential(nn.Linear(8, 1024), *[nn.Sequential(nn.ReLU()) for _ in range(10)], nn.Linear(1024, 1))
    t = memory.trace(model, torch.randn(256, 8), loss=torch.sum, steps=1, device="cpu")
    line = t.timeline
    activations = line.bytes_by_category["activations"]
    last_forward = max(i for i, phase in enumerate(line.phases) if phase == "forward")
    assert activations[last_forward] >= 10 * 256 * 1024 * 4
    assert activations[-1] < 1024
    assert set(line.phases) == {"forward", "backward"}


def test_the_second_step_has_the_optimizers_state_from_its_start():
    """With Adam the forward pass of the second step starts with both moments alive."""
    t = memory.trace(networks.mlp(16, 16, 4), torch.zeros(2, 16), loss=torch.sum, optimizer="adam", steps=2, device="cpu")
    begin = t.timeline.steps[1]
    parameters = t.timeline.bytes_by_category["parameters"][begin]
    assert t.timeline.bytes_by_category["optimizer"][0] == 0
    assert t.timeline.bytes_by_category["optimizer"][begin] >= 2 * parameters


def test_the_steps_may_be_a_whole_number_of_numpy():
    """Three steps of an array's number are three; 2.0 and True are no whole numbers."""
    found = memory.trace(nn.Linear(2, 2), torch.zeros(1, 2), loss=torch.sum, steps=np.uint8(3), device="cpu")
    assert len(found.timeline.steps) == 3
    for wrong in (2.0, True):
        with pytest.raises(InputError, match="trace: steps is"):
            memory.trace(nn.Linear(2, 2), torch.zeros(1, 2), loss=torch.sum, steps=wrong, device="cpu")


def test_a_function_with_its_own_step():
    """A function that trains is followed: phases, gradients and state are told apart without help."""
    model = nn.Linear(100, 100)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step(x):
        model(x).sum().backward()
        optimizer.step()

    t = memory.trace(step, torch.zeros(5, 100), device="cpu")
    assert {"forward", "backward", "optimizer"} == set(t.timeline.phases)
    for category in ("parameters", "gradients", "optimizer"):
        assert t.timeline.bytes_by_category[category][-1] == 100 * 100 * 4 + 400
    assert t.label == "step"


def test_views_count_once():
    """A view adds nothing; its storage lives as long as the view."""

    def views():
        x = torch.zeros(1000)
        y = x[:10]
        del x
        return y + 1

    t = memory.trace(views, device="cpu")
    assert t.peak_bytes == 4000 + 40


class Notebook(nn.Module):
    """A model that notes each call in every kind of container."""

    def __init__(self):
        super().__init__()
        self.layer, self.seen, self.names, self.places = nn.Linear(2, 2), ["a"], {"a": 1}, {1}

    def forward(self, x):
        """Note the call, and compute."""
        self.seen.append("b")
        self.names["b"] = 2
        self.places.add(2)
        return self.layer(x)


@pytest.mark.parametrize("follow", [memory.trace, memory.predict])
def test_what_the_model_noted_is_forgotten(follow):
    """Lists, dictionaries and sets of the caller's model are the same objects with the same content as before."""
    model = Notebook()
    kept, weight = (model.seen, model.names, model.places), model.layer.weight
    follow(model, torch.zeros(1, 2), loss=torch.sum, **({"device": "cpu"} if follow is memory.trace else {}))
    assert (model.seen, model.names, model.places) == (["a"], {"a": 1}, {1})
    assert all(one is other for one, other in zip((model.seen, model.names, model.places), kept, strict=True))
    assert model.layer.weight is weight


def test_round_trip():
    """A trace survives JSON."""
    t = memory.trace(nn.Linear(4, 4), torch.zeros(2, 4), loss=torch.sum, device="cpu")
    assert MemoryTrace.from_dict(json.loads(json.dumps(t.to_dict()))).to_dict() == t.to_dict()
    assert "peak" in t._repr_html_()


def test_stop_gives_what_was_reached():
    """A stop in mid-step returns the part that ran, with a note; before the first operator there is nothing to return."""
    calls = iter(range(10_000))
    t = memory.trace(networks.mlp(8, 8, 2), torch.zeros(2, 8), loss=torch.sum, stop=lambda: next(calls) > 8, device="cpu")
    assert [note.code for note in t.notes] == ["stopped"]
    with pytest.raises(StoppedError):
        memory.trace(networks.mlp(8, 8, 2), torch.zeros(2, 8), loss=torch.sum, stop=lambda: True, device="cpu")


def test_a_functions_own_error_passes():
    """What a traced function raises arrives as it is, and nothing keeps listening."""

    def broken():
        raise OSError("disk")

    with pytest.raises(OSError, match="disk"):
        memory.trace(broken, device="cpu")
    assert torch.utils._python_dispatch._get_current_dispatch_mode() is None


@pytest.mark.parametrize(
    ("arguments", "options", "word"),
    [
        ((3,), {}, "Module"),
        ((nn.Linear(2, 2), torch.zeros(1, 2)), {"steps": 0}, "steps"),
        ((nn.Linear(2, 2, device="meta"), torch.zeros(1, 2)), {"loss": torch.sum}, "predict"),
        ((abs, torch.zeros(2)), {"optimizer": "adam"}, "module"),
        ((nn.Linear(2, 2), torch.zeros(1, 3)), {"loss": torch.sum}, "forward"),
        # What lies on another device than the model is a mistake of the step's, in CUDA too: a batch that was not moved there.
        ((nn.Linear(2, 2), torch.zeros(1, 2, device="meta")), {"loss": torch.sum, "device": "cpu"}, "forward raised RuntimeError"),
    ],
)
def test_bad_arguments(arguments, options, word):
    """Each bad argument is refused in a sentence."""
    with pytest.raises(InputError, match=word):
        memory.trace(*arguments, **options)


def test_no_memory_for_a_copy_of_the_model_is_said():
    """What the allocator says is kept; an error about something else passes as it is."""

    def storage(error):
        def clone():
            raise error

        return types.SimpleNamespace(untyped_storage=lambda: types.SimpleNamespace(clone=clone))

    with pytest.raises(OutOfMemoryError, match=r"no memory for a copy of the model \(not enough Memory\)"):
        _trace._copied_storage(storage(RuntimeError("not enough Memory")))
    with pytest.raises(RuntimeError, match=r"^something else$"):
        _trace._copied_storage(storage(RuntimeError("something else")))


def test_a_thousand_steps_are_the_most():
    """Every operator of every step is kept."""
    with pytest.raises(InputError, match="trace: steps is 1001; expected a whole number from 1 to 1000"):
        memory.trace(nn.Linear(2, 2), torch.zeros(1, 2), loss=torch.sum, steps=1001, device="cpu")


def test_progress_tells_each_step_and_the_end():
    """Of two steps, from 0 to 1."""
    seen = []
    memory.trace(nn.Linear(2, 2), torch.zeros(1, 2), loss=torch.sum, device="cpu", progress=lambda *step: seen.append(step))
    assert seen == [(0.0, "step 1 of 2"), (0.5, "step 2 of 2"), (1.0, "done")]


def test_an_interrupt_while_a_model_gets_its_tensors_back_waits_until_it_has_all() -> None:
    """It comes between the first layer and the second one, and is told once the second has its own weight again."""
    interrupts = [KeyboardInterrupt]

    class Interrupted(list[int]):
        def clear(self) -> None:
            if interrupts:
                raise interrupts.pop()
            super().clear()

    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    model[0].seen = Interrupted([1])
    weight, lender = model[1].weight, _sandbox.Lender("trace", lambda tensor: tensor.untyped_storage().clone(), "cpu")
    with pytest.raises(KeyboardInterrupt), _sandbox.lent(lender, [model]):
        assert model[1].weight is not weight
    assert model[1].weight is weight
    assert model[0].seen == [1]
