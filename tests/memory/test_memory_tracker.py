"""The account of every storage, event by event, by hand: what is born, dies, is resized, and which category it gets in the end."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
from torch import nn

from gpulab.memory import _step, _tracker
from gpulab.memory._tracker import BACKWARD, FORWARD, OPTIMIZER, Record, StorageTracker

ALIVE = _tracker._ALIVE
N = 4 * 1000  # bytes of a thousand float32


def record(nbytes: int, born: int, died: int = ALIVE, phase: str = FORWARD, **changes: Any) -> Record:
    """A storage of so many bytes that nobody has named."""
    values: dict[str, Any] = {
        "recomputed": False, "category": None, "name": "", "operator": "aten.mm", "shape": (nbytes,), "dtype": "uint8",
    }  # fmt: skip
    return Record(nbytes, born, died, phase, **{**values, **changes})


def test_an_event_is_an_operator_after_which_other_bytes_live() -> None:
    """Made, made, let go: 4,000, 8,000 and 4,000 bytes. What works in place changes nothing, unless something died before it."""
    tracker = StorageTracker("cpu")
    with tracker:
        a = torch.zeros(1000)
        a.add_(1)
        b = a + 1
        del a
        b.mul_(2)
        b.mul_(2)
    assert tracker.operators == ["aten.zeros.default", "aten.add.Tensor", "aten.mul_.Tensor"]
    assert tracker.live == [N, 2 * N, N]
    assert tracker.phases == [FORWARD] * 3
    assert [(one.nbytes, one.born, one.died) for one in tracker.records] == [(N, 0, 2), (N, 1, ALIVE)]


def test_a_resize_ends_one_record_and_begins_another() -> None:
    """Ten numbers become twenty at event 1: 40 bytes until then, 80 from then on, under the same name and operator."""
    tracker = StorageTracker("cpu")
    with tracker:
        a = torch.zeros(10)
        a.resize_(20)
        assert tracker.live_bytes == 80
    kept = [(one.nbytes, one.born, one.died, one.operator, one.shape, one.dtype) for one in tracker.records]
    assert kept == [(40, 0, 1, "aten.zeros.default", (10,), "float32"), (80, 1, ALIVE, "aten.zeros.default", (10,), "float32")]
    assert tracker.live == [40, 80]
    del a
    assert tracker.live_bytes == 0
    assert tracker.records[1].died == 2


def test_what_was_there_before_is_an_input_and_a_parameter_is_itself() -> None:
    """An optimizer's own tensor is neither: its category waits for the end; what lies elsewhere is not counted."""
    x, weight, state = torch.ones(10), nn.Parameter(torch.ones(20)), torch.ones(30)
    tracker = StorageTracker("cpu")
    with tracker:
        (x * 2, weight * 2)
        x * 3
        tracker.in_optimizer = True
        state.add_(1)
        tracker.in_optimizer = False
        torch.ones(5, device="meta") + 1
    there = [(one.nbytes, one.category) for one in tracker.records if not one.operator]
    assert there == [(40, "inputs"), (80, "parameters"), (120, None)]
    assert sum(one.nbytes for one in tracker.records if one.operator) == 40 + 80 + 40


def test_scratch_is_what_an_operator_takes_on_top_of_what_lives() -> None:
    """At 4,000 bytes 100 more, then at 8,000 one byte more; a stand-in gives what the operator should have returned."""
    asked: list[tuple[str, int, int]] = []

    def scratch(operator: Any, arguments: Any, outputs: Any) -> int:
        asked.append((str(operator), len(arguments), len(outputs)))
        return 100 if len(asked) == 1 else 1

    tracker = StorageTracker("cpu", scratch=scratch)
    with tracker:
        a = torch.zeros(1000)
        assert tracker.with_scratch == N + 100
        b = a + 1
        assert tracker.with_scratch == 2 * N + 1
        del a
        b + 1
        del b
        torch.zeros(1)
    assert tracker.with_scratch == 2 * N + 1  # the most there was
    assert asked[:2] == [("aten.zeros.default", 1, 1), ("aten.add.Tensor", 2, 1)]
    replaced = StorageTracker("cpu", replace=lambda operator, arguments, result: torch.zeros(len(arguments) * 3))
    with replaced:
        found = torch.ones(1000)
    assert found.numel() == 3  # torch.ones has one argument, the shape
    assert [one.nbytes for one in replaced.records] == [12]


def test_a_stop_is_asked_before_each_operator() -> None:
    """The third one does not run."""
    answers = iter((False, False, True))
    tracker = StorageTracker("cpu", stop=lambda: next(answers))
    a = torch.zeros(3)

    def adds() -> None:
        for _ in range(5):
            a.add_(1)

    with pytest.raises(_tracker.Stopped), tracker:
        adds()
    assert a.tolist() == [2.0, 2.0, 2.0]


def test_the_phase_is_told_by_who_runs() -> None:
    """Autograd's engine is the backward pass, an optimizer's step its own, the rest forward; a checkpoint recomputes in the second."""
    tracker = StorageTracker("cpu")
    weight = nn.Parameter(torch.ones(1000))
    optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9)
    with _step.optimizer_seen(tracker), tracker:
        torch.utils.checkpoint.checkpoint(lambda w: (w * 2).exp().sum(), weight, use_reentrant=False).backward()
        assert tracker.phase() == FORWARD
        optimizer.step()
        assert tracker.phase() == FORWARD
    order = [phase for k, phase in enumerate(tracker.phases) if not k or phase != tracker.phases[k - 1]]
    assert (order[:2], order[-1]) == ([FORWARD, BACKWARD], OPTIMIZER)
    made = {(one.phase, one.recomputed) for one in tracker.records if one.nbytes == N}
    assert made >= {(FORWARD, False), (BACKWARD, True), (BACKWARD, False), (OPTIMIZER, False)}
    assert not any(one.recomputed for one in tracker.records if one.phase != BACKWARD)


def test_gradients_are_named_before_they_are_gone() -> None:
    """The first event after a backward pass finds them in ``grad``; one that lay there before was taken for an input, and is one too."""
    tracker = StorageTracker("cpu")
    weight = nn.Parameter(torch.ones(1000))
    with tracker:
        weight.sum().backward()
        torch.ones(1)
        weight.grad = None
    assert [one.category for one in tracker.records if one.nbytes == N] == ["parameters", "gradients"]
    held = StorageTracker("cpu")
    first, second = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    first.grad, second.grad = torch.ones(2), torch.ones(2)
    for category, tensor in (("inputs", first.grad), ("parameters", second.grad)):
        held.watch(tensor, category)
    for parameter in (first, second):
        held.watch_parameter(parameter, "w")
    held.mark_gradients()
    assert [one.category for one in held.records] == ["gradients", "parameters", "parameters", "parameters"]


def test_after_closing_nothing_is_kept_alive_and_nothing_is_counted() -> None:
    """A parameter goes when its owner lets it go, and its death is none of the account's."""
    tracker = StorageTracker("cpu")
    weight = nn.Parameter(torch.ones(3))
    weight.grad = torch.ones(3)
    tracker.watch(weight.grad, "inputs")
    tracker.watch_parameter(weight, "w")
    tracker.close()
    gone = weakref.ref(weight)
    del weight
    gc.collect()
    assert gone() is None
    assert tracker.live_bytes == 24
    assert [(one.category, one.died) for one in tracker.records] == [("gradients", ALIVE), ("parameters", ALIVE)]


def test_modules_and_batches_are_counted_from_the_start() -> None:
    """Parameters and buffers by their names, the tensors of a nest as inputs; a tensor that is there twice counts once."""
    tracker = StorageTracker("cpu")
    x = torch.ones(4)
    tracker.watch_modules([nn.BatchNorm1d(3, track_running_stats=True)])
    tracker.watch_inputs((x, {"again": x, "half": x[:2], "label": "text"}))
    assert [(one.name, one.category, one.nbytes) for one in tracker.records] == [
        ("weight", "parameters", 12), ("bias", "parameters", 12), ("running_mean", "parameters", 12), ("running_var", "parameters", 12),
        ("num_batches_tracked", "parameters", 8), ("input", "inputs", 16),
    ]  # fmt: skip
    tracker.operators += ["a", "b"]
    tracker.begin_step()
    assert tracker.steps == [2]


def test_what_has_no_category_gets_it_by_its_phase_and_its_life() -> None:
    """Two events each of forward (until 2), backward (until 4) and optimizer (until 6): who lives past its phase's end has outlived it."""
    tracker = StorageTracker("cpu")
    tracker.phases = [FORWARD] * 2 + [BACKWARD] * 2 + [OPTIMIZER] * 2
    tracker.records = [
        record(1, 0, 1), record(1, 0, 2), record(1, 1, 3), record(1, 1),
        record(1, 2, 3, BACKWARD), record(1, 2, ALIVE, BACKWARD), record(1, 2, 3, BACKWARD, recomputed=True),
        record(1, 4, 5, OPTIMIZER), record(1, 4, 6, OPTIMIZER), record(1, 4, ALIVE, OPTIMIZER),
        record(1, 6, ALIVE, OPTIMIZER), record(1, 6, 6, OPTIMIZER),  # made after the last event
        record(1, 0, 3, category="inputs"),
    ]  # fmt: skip
    tracker.classify()
    assert [one.category for one in tracker.records] == [
        "temporary", "temporary", "activations", "activations",
        "temporary", "temporary", "activations",
        "temporary", "temporary", "optimizer",
        "optimizer", "temporary",
        "inputs",
    ]  # fmt: skip
    assert _tracker._phase_ends(["f", "f", "b", "f"]) == [2, 2, 3, 4]
    assert _tracker._phase_ends(["f"]) == [1]
    assert _tracker._phase_ends([]) == []


def test_a_timeline_and_its_peak_by_hand() -> None:
    """Alive from the event of its birth up to that of its death, by category; what came after the last event is in no point."""
    tracker = StorageTracker("cpu")
    tracker.operators, tracker.phases, tracker.steps = ["a", "b", "c"], [FORWARD, FORWARD, BACKWARD], [0]
    tracker.records = [
        record(10, 0, category="parameters"), record(4, 1, 2, category="activations"), record(2, 2, 3), record(8, 3),
        record(0, 0, category="inputs"),
    ]  # fmt: skip
    line = tracker.timeline()
    assert {name: curve.tolist() for name, curve in line.bytes_by_category.items() if curve.any()} == {
        "parameters": [10.0, 10.0, 10.0], "activations": [0.0, 4.0, 0.0], "temporary": [0.0, 0.0, 2.0],
    }  # fmt: skip
    assert (line.operators, line.phases, line.steps) == (("a", "b", "c"), (FORWARD, FORWARD, BACKWARD), (0,))
    tracker.records[0].name = "w"
    assert [(one.name, one.nbytes, one.category) for one in tracker.alive_at(1)] == [("w", 10, "parameters"), ("", 4, "activations")]
    assert [one.nbytes for one in tracker.alive_at(2)] == [10, 2]
    tracker.live, tracker.live_bytes = [3, 9, 5, 9, 7], 6
    assert (tracker.peak(), tracker.peak(2), tracker.peak(0, 1), tracker.peak(1, 3)) == ((1, 9), (3, 9), (0, 3), (1, 9))
    assert tracker.peak(5) == (0, 6)  # nothing happened: what lives now


def test_the_largest_alive_come_first() -> None:
    """Whatever the order they were made in."""
    tracker = StorageTracker("cpu")
    tracker.records = [record(1, 0), record(3, 0), record(2, 0)]
    assert [one.nbytes for one in tracker.alive_at(0)] == [3, 2, 1]


@pytest.mark.parametrize(
    ("layout", "sizes"),
    [
        (torch.strided, [36]),
        (torch.sparse_coo, [48, 12]),  # row and column of each of three in int64, then the values
        (torch.sparse_csr, [32, 24, 12]),  # where four rows begin or end, the columns, the values
        (torch.sparse_csc, [32, 24, 12]),
    ],
)
@pytest.mark.filterwarnings("ignore:Sparse CS[RC] tensor support is in beta")
def test_the_parts_of_a_sparse_tensor(layout: torch.layout, sizes: list[int]) -> None:
    """Three ones on a diagonal, by hand; on a device of another kind there is none of them."""
    matrix = torch.eye(3) if layout is torch.strided else torch.eye(3).to_sparse(layout=layout)
    found = list(_tracker.storages_of(matrix, "cpu"))
    assert [part.nbytes for part, _ in found] == sizes
    assert all(part.untyped_storage().data_ptr() == storage.data_ptr() for part, storage in found)
    assert list(_tracker.storages_of(matrix, "cuda")) == []


@pytest.mark.filterwarnings("ignore:Sparse (CS[RC]|BS[RC]) tensor support is in beta")
def test_blocks_of_a_sparse_tensor_are_its_parts_too() -> None:
    """Two blocks of 2 x 2 on a diagonal: three ends and two places in int64, eight values."""
    for layout in (torch.sparse_bsr, torch.sparse_bsc):
        matrix = torch.block_diag(torch.ones(2, 2), torch.ones(2, 2)).to_sparse(layout=layout, blocksize=(2, 2))
        assert [part.nbytes for part, _ in _tracker.storages_of(matrix, "cpu")] == [24, 16, 32]
