"""Counting, files, weighing, recipes: PyTorch's counter, sizes by hand, an injected clock."""

import dataclasses
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gpulab import compression, networks, training
from gpulab.compression import Recipe, WeighedModel, Weighing
from gpulab.errors import CheckpointError, InputError, StoppedError
from gpulab.evidence import Evidence, Note
from made_training import Clock, told
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from refusals import defaults, refusals, refused
from texts import table_text

HERE = Evidence.measured("a CPU")

# -- counting --------------------------------------------------------------------------------------


def test_flops_by_hand(approved: Any) -> None:
    """Two FLOPs per weight and output position; groups divide the count; stored zeros count."""
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.Conv2d(8, 8, 3, groups=4), nn.Conv2d(8, 8, 1),
        nn.Conv2d(8, 8, 1, groups=8), nn.Flatten(), nn.Linear(72, 5),
    )  # fmt: skip
    x = torch.zeros(2, 3, 10, 10)  # then 5x5 and 3x3 places
    pruned = compression.prune(model, 0.5, skip=["0", "1", "2", "3"])
    sparse = compression.to_sparse(pruned, skip=["0", "1", "2", "3"])
    kinds = {
        None: model,
        "pruned": pruned,
        "CSR": sparse,
        "8 bits": compression.quantize(model, skip=["3"]),
    }
    costs = [compression.count(each, x, label=name) for name, each in kinds.items()]
    by_hand = [2 * 25 * 8 * 3 * 9, 2 * 9 * 8 * 2 * 9, 2 * 9 * 8 * 8, 2 * 9 * 8, 2 * 72 * 5]
    assert (
        [flops for _, _, flops in costs[0].layers.values()],
        costs[0].flops_per_item,
        costs[1].flops,
    ) == ([2 * each for each in by_hand], sum(by_hand), costs[0].flops)
    assert told(*costs) == approved


IMAGES = torch.zeros(3, 1, 8, 8)
COUNTED: dict[str, tuple[Any, torch.Tensor]] = {
    "resnext": (lambda: networks.resnext(width=16), IMAGES),
    "mobilenet": (lambda: networks.mobilenet(width=4), IMAGES),
    "text": (
        lambda: networks.transformer(50, 16, 2, 2, context=8), torch.zeros(3, 8, dtype=torch.int64),
    ),
    "quantized": (lambda: compression.quantize(networks.cnn(width=8)), IMAGES),
    "line": (lambda: nn.Conv1d(8, 4, 3), torch.zeros(2, 8, 16)),
}  # fmt: skip


@pytest.mark.parametrize("kind", COUNTED)
def test_flops_agree_with_pytorchs_counter(kind: str) -> None:
    """The counts are equal, with an attention backend that PyTorch's counter can see."""
    make, x = COUNTED[kind]
    model = make().eval()
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as theirs, torch.no_grad():
        model(x)
    assert compression.count(model, x).flops == theirs.get_total_flops()


@torch.library.custom_op("others::product", mutates_args=())
def product(x: torch.Tensor) -> torch.Tensor:
    """A matrix product in a custom operator, which no counter sees."""
    return x @ torch.ones(16, 16)


class Other(nn.Module):
    """A recurrent layer, two products outside the layers, and one layer that runs twice."""

    def __init__(self) -> None:
        super().__init__()
        self.cells, self.head = nn.LSTM(8, 16, 2, batch_first=True), nn.Linear(16, 16, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run all of it."""
        return self.head(self.head(product(self.cells(x)[0][:, -1]))) @ torch.ones(16, 3)


def test_what_is_not_in_plain_layers_counts_too() -> None:
    """An LSTM, a layer that runs twice and a bare product count; an unseen operator is named.

    By hand: 3 items of 5 positions; two LSTM layers with 4 gates of 16, which read 8 or 16 inputs
    and 16 states.
    """
    cost = compression.count(Other(), torch.zeros(3, 5, 8))
    recurrent = 2 * 3 * 5 * 4 * 16 * (8 + 16 + 16 + 16)
    flops = {name: flops for name, (_, _, flops) in cost.layers.items()}
    assert (flops, cost.other_flops, cost.flops) == (
        {"cells": recurrent, "head": 2 * 2 * 3 * 256},
        2 * 3 * 16 * 3,
        sum(flops.values()) + 288,
    )
    assert "one operator was not counted: others::product" in cost.notes[0].sentence


# -- files -----------------------------------------------------------------------------------------


def every_kind() -> dict[str, nn.Module]:
    """One model of each kind that this package makes."""
    cnn = networks.cnn(width=4)
    pruned = compression.prune(cnn, 0.9)
    return {
        "plain": cnn, "masked": pruned, "csr": compression.to_sparse(pruned),
        "smaller": compression.prune(cnn, 0.5, structured=True),
        "8 bits": compression.quantize(cnn),
        "4 bits": compression.quantize(pruned, bits=4),
        "shared": compression.share_weights(pruned, 8),
        "aware": compression.quantize_aware(cnn, bits=2),
        "bfloat16": networks.mlp(8, 8, 2).bfloat16(),
        "tied": networks.transformer(30, 16, 2, 1, context=8, tied=True),
    }  # fmt: skip


@pytest.mark.parametrize("kind", every_kind())
def test_files_give_the_same_tensors_back(kind: str, tmp_path: Path) -> None:
    """A model loads bit for bit, its reported size is the file's, a damaged file is refused."""
    model, path = every_kind()[kind], tmp_path / "model.bin"
    nbytes = compression.save(model, path)
    assert nbytes == path.stat().st_size == compression.size_on_disk(model)
    tensors, expected = compression.load(path), compression.finish(model).state_dict()
    assert list(tensors) == list(expected)
    torch.testing.assert_close(dict(tensors), dict(expected), rtol=0, atol=0)
    content = path.read_bytes()
    wrong = [
        content[:k] + bytes([content[k] ^ 4]) + content[k + 1 :]
        for k in range(0, nbytes, nbytes // 9)
    ]
    for each in (*wrong, b"", content[:-1], content + b"x"):
        path.write_bytes(each)
        refused(CheckpointError, compression.load, path)
    refused(InputError, compression.load, None)


def test_sizes_by_hand() -> None:
    """Each form of 300 x 300 weights takes its bytes by hand plus a header; ties are kept once."""
    model, n = nn.Sequential(nn.Linear(300, 300, bias=False)), 90_000
    nn.init.normal_(model[0].weight)
    pruned = compression.prune(model, 0.9)
    expected = [
        (model, 4 * n), (pruned, n // 8 + 4 * n // 10), (compression.quantize(model), n + 4 * 300),
        (compression.quantize(model, bits=4), n // 2 + 4 * 300),
        (compression.quantize(pruned), n // 8 + n // 10 + 4 * 300),
        (compression.share_weights(model, 16), n // 2 + 16 * 4),
        (compression.share_weights(pruned, 4), n // 8 + n // 40 + 16),
        (compression.to_sparse(pruned), (4 + 2) * n // 10 + 2 * 301),
        (compression.finish(pruned).bfloat16(), n // 8 + 2 * n // 10),
    ]  # fmt: skip
    over = [compression.size_on_disk(each) - nbytes for each, nbytes in expected]
    assert all(0 <= nbytes < 600 for nbytes in over), over
    both = [networks.transformer(500, 32, 2, 1, context=8, tied=tied) for tied in (True, False)]
    assert np.diff(list(map(compression.size_on_disk, both))) == pytest.approx(64_000, abs=100)


# -- weighing --------------------------------------------------------------------------------------


def slow(clock: Clock, start: float, each: float, outputs: int = 4) -> nn.Module:
    """Return a layer whose call takes ``start`` seconds plus ``each`` seconds per item."""
    model = nn.Sequential(nn.Linear(8, outputs, bias=False))
    model[0].weight.data[:] = torch.linspace(0.1, 0.3, 32).view(4, 8)[:outputs]
    model.register_forward_pre_hook(lambda _, given: clock.spend(start + each * len(given[0])))
    return model


def test_times_are_those_of_the_clock_and_reasons_follow_from_facts(approved: Any) -> None:
    """By the clock 1 s per call and 10 ms per item; each form that saves no time says why."""
    clock, seen = Clock(), []
    first, quick = slow(clock, 1.0, 0.01), slow(clock, 1.0, 0.0)
    pruned = compression.prune(first, 0.5)
    models = {
        "first": first, "quick": quick, "pruned": pruned,
        "csr": compression.to_sparse(pruned), "integers": compression.quantize(first),
        "shared": compression.share_weights(first, 4),
        "half": slow(clock, 1.0, 0.01, 2), "quarter": slow(clock, 0.0, 0.01, 1),
        "slower": slow(clock, 0.0, 0.04),
    }  # fmt: skip
    options = {"clock": clock, "deadline": 200.0, "device": "cpu", "inputs": torch.zeros(100, 8)}
    found = compression.weigh(models, progress=lambda *part: seen.append(part[0]), **options)
    first_one, quick_one, *_ = found.models
    times = first_one.median_seconds, first_one.single_seconds, quick_one.speedup
    assert times == pytest.approx((2.0, 1.01, 2.0), rel=1e-3)
    facts = [(m.parameters, m.zeros, m.forms, m.flops_per_item, m.operators) for m in found.models]
    assert facts == [
        (32, 0, (), 64, 1), (32, 0, (), 64, 1), (32, 16, ("dense zeros",), 64, 1),
        (16, 0, ("csr",), 32, facts[3][-1]), (32, 0, ("integers in float",), 64, facts[4][-1]),
        (32, 0, ("shared",), 64, 1), (16, 0, (), 32, 1), (8, 0, (), 16, 1), (32, 0, (), 64, 1),
    ]  # fmt: skip
    assert (first_one.moved_bytes, found.batch, seen) == (
        4 * (32 + 800 + 400),
        100,
        [*sorted(seen[:-1]), 1.0],
    )
    sizes = [compression.size_on_disk(model) for model in models.values()]
    assert [each.file_bytes for each in found.models] == sizes
    assert "".join(f"{sentence}\n" for sentence in found.sentences) == approved


def test_a_task_gives_the_batch_and_one_broken_seed_is_named() -> None:
    """The batch has the size that was asked for; each seed has its own accuracy; a note names the
    label of which one model is broken.
    """
    seeds = [training.task("digits-mlp").make_model() for _ in range(2)]
    nn.init.constant_(seeds[1].layers[1].bias, float("nan"))
    options = {"batch_size": 16, "deadline": 0.001, "device": "cpu"}
    found = compression.weigh({"one": seeds}, "digits-mlp", **options)
    is_finite = [bool(np.isfinite(one.loss)) for one in found.models[0].accuracies]
    assert (found.batch, is_finite) == (16, [True, False])
    assert any(str(note).startswith("diverged: one: ") for note in found.notes)


def weighed(label: str = "x", **changes: Any) -> WeighedModel:
    """A model of 1,000 bytes that takes a millisecond."""
    ends = (0.9e-3, 1.1e-3)
    plain = WeighedModel(
        label, 1000, 100, 0, (), 1e6, 10, 4000, 1e-3, ends, 1e-4, None, None, None, (), (), HERE
    )
    return dataclasses.replace(plain, **changes)


def right(correct: int, half: float = 0.1) -> Any:
    """Return an accuracy of ``correct`` out of 100 digits, plus or minus ``half``."""
    share = correct / 100
    ends = (share - half, min(1.0, share + half))
    return training.Accuracy(correct, 100, share, ends, 0.0, "digits", HERE)


def test_a_weighing_says_what_its_numbers_say(approved: Any) -> None:
    """Size, time and accuracy are shown with intervals; the front holds undominated models."""
    rows = (
        weighed("first", accuracies=(right(90), right(80))),
        weighed(
            "small", file_bytes=250, zeros=60, flops_per_item=4e5, speedup=2.0,
            speedup_interval=(1.9, 2.1), median_seconds=5e-4, interval_seconds=(4e-4, 7e-4),
            single_seconds=9e-5,
        ),
        weighed(
            "same", file_bytes=997, speedup=1.1, speedup_interval=(1.0, 1.2),
            reasons=(Note("a", "It rounds."),),
        ),
        weighed(
            "alike", file_bytes=1006, speedup=1.0, speedup_interval=(0.9, 1.1),
            accuracies=(right(79),),
            interval_seconds=None,
        ),
        weighed("slow", speedup=0.5, speedup_interval=(0.4, 0.6), accuracies=(right(95),)),
        weighed("loose", speedup=1.3, file_bytes=4000),
    )  # fmt: skip
    # the second has its own baseline, a newer form of one model, and a newer note
    found = Weighing(
        "digits", "a CPU", 64, (*rows[:2], weighed("same")), (Note("contended", "idle."),), HERE,
        None,
    ).with_models(
        Weighing(
            "digits", "a CPU", 64, (weighed("first"), *rows[2:]), (Note("contended", "busy."),),
            HERE, None,
        )
    )  # fmt: skip
    assert [row.faster for row in rows] == ["", "faster", "as fast", "as fast", "slower", ""]
    half = ((12.7062 * 0.05) ** 2 + 0.1**2) ** 0.5  # two seeds: Student's t of one degree
    # seeds that do not differ add nothing to their own interval, [85, 100] %
    assert [
        row.accuracy_interval for row in (rows[0], weighed("alike", accuracies=(right(95),) * 2))
    ] == [pytest.approx((low, 1.0), abs=1e-4) for low in (0.85 - half, 0.85)]
    fronts = [found.front_of(), found.front_of(time=False), found.front_of(size=False)]
    lines = [*found.sentences, *map(repr, (found, *rows)), *map(str, fronts)]
    assert "\n".join(lines) + "\n" + table_text(found._repr_html_()) == approved


# -- recipes ---------------------------------------------------------------------------------------


@pytest.mark.slow
def test_recipes_are_cooked_and_weighed() -> None:
    """Recipes give the forms that they name and shrink the files, each seed trains a network and
    gives one accuracy, as `training.fit` with that seed, and an early stop is an error. A note says
    that fine-tuned models have trained for longer, by the share of the epochs asked for. Batch
    norms hold the averages of the final weights: a model answers as with those of all its data.
    Neither a diet nor a ladder keeps a task that the caller no longer has.
    """
    small = Recipe(channels=0.5, zeros=0.8, bits=3, fine_tune=0.1)
    found = compression.diet(
        "digits-mlp",
        [
            small,
            Recipe(),
            Recipe(bits=8, fine_tune=0),
            Recipe(bits=8, activations="static", fine_tune=0),
            Recipe(values=4, fine_tune=0),
            Recipe(zeros=0.9, compute="csr", fine_tune=0),
        ],
        seeds=(0, 1, 1),
        batch_size=16,
        deadline=0.02,
        device="cpu",
    )
    first, less, bits, static, shared, sparse = found.models
    assert [(each.label, len(each.accuracies)) for each in found.models] == [
        ("as trained", 2), (small.label, 2), ("8 bits", 2), ("8 bits, static inputs", 2),
        ("4 values, not fine-tuned", 2), ("90% zeros, CSR, not fine-tuned", 2),
    ]  # fmt: skip
    assert max(20 * less.file_bytes, 3 * bits.file_bytes, 10 * shared.file_bytes) < first.file_bytes
    assert (
        first.accuracy > 0.9,
        len({each.loss for each in first.accuracies}),  # each seed trains its own network
        [each.forms for each in (bits, static, shared, sparse)],
        found.notes[0].code,
        found.batch,
        first.accuracies[1].loss,
    ) == (
        True, 2, [("integers in float",)] * 2 + [("shared",), ("csr",)], "trained-longer", 16,
        pytest.approx(training.fit("digits-mlp", seed=1, device="cpu").accuracy.loss, rel=0.01),
    )  # fmt: skip
    refused(StoppedError, compression.diet, "digits-mlp", [small], seeds=(7,), stop=lambda: True)
    task = dataclasses.replace(training.task("digits-cnn"), name="of the caller")
    said, options = list[str](), {"device": "cpu", "progress": lambda _, text: said.append(text)}
    model = compression.cook(Recipe(bits=3, fine_tune=0.1), task, **options)
    assert said.count("fine-tuning with rounding") == 1297 // 64  # one of eight epochs
    torch.testing.assert_close(
        *(model.train(on)(task.train.inputs).softmax(1) for on in (False, True)), rtol=0, atol=0.1
    )
    training.ladder(task, ["waits"], samples=16, seeds=1, turns=3, deadline=1, device="cpu")
    task = weakref.ref(task)
    assert task() is None


def test_what_runs_here_was_tried() -> None:
    """On a CPU CSR and float arithmetic run, 2:4 does not: it needs compute capability 8.0."""
    names = ("zeros in CSR", "8-bit weights, float32 arithmetic", "2:4 zeros")
    found = compression.support("cpu").abilities
    assert [found[name][0] for name in names] == [True, True, False]
    assert "compute capability 8.0" in found["2:4 zeros"][1]


NET, IMAGE = nn.Sequential(nn.Linear(8, 8)), nn.Sequential(nn.Conv2d(2, 3, 4, padding="same"))
REFUSED = [
    *[(compression.prune, (NET,), options) for options in (
        {"amount": 1.0}, {"amount": -0.1}, {"pattern": "1:4"}, {"skip": ["1"]},
        {"pattern": "2:4", "amount": 0.3}, {"pattern": "2:4", "structured": True}, {"skip": ["0"]},
        {"structured": True},
    )],
    (compression.prune, (compression.prune(NET, 0.5),), {"structured": True}),
    (compression.prune, (compression.share_weights(NET, 2),), {}), (compression.prune, (5,), {}),
    *[(compression.share_weights, (NET,), {"clusters": count}) for count in (1, 257, 2.0)],
    (compression.share_weights, (compression.share_weights(NET, 2),), {}),
    *[(compression.quantize, (NET,), options) for options in (
        {"weights": "per-row"}, {"activations": "lazy"}, {"bits": 1}, {"bits": 9},
        {"activations": "static"}, {"calibration": torch.ones(1, 8)}, {"arithmetic": "fast"},
        {"activations": "static", "calibration": []}, {"arithmetic": "integer"},
        {"activations": "static", "calibration": torch.full((1, 8), float("nan"))},
        {"arithmetic": "integer", "activations": "dynamic", "bits": 4},
        {"arithmetic": "torchao", "bits": 4},
    )],
    (compression.quantize, (IMAGE,), {}), (compression.quantize_aware, (IMAGE,), {}),
    (compression.to_sparse, (NET,), {"format": "coo"}),
    (compression.to_sparse, (compression.prune(NET, pattern="2:4"), "2:4"), {}),
    (compression.count, (NET, torch.zeros(2, 9)), {}), (compression.weigh, (NET,), {}),
    *[(compression.weigh, (models,), {"inputs": torch.zeros(1, 8)})
      for models in ({}, {"a": []}, 5)],
    (compression.weigh, (NET,), {"inputs": torch.zeros(1, 9)}),
    *[(Recipe, (), options) for options in (
        {"network": "vgg"}, {"channels": 1.0}, {"zeros": -0.1}, {"values": 1}, {"values": 257},
        {"bits": 1}, {"bits": 9}, {"values": 4, "bits": 4}, {"compute": "csr", "bits": 8},
        {"compute": "integer"}, {"compute": "gpu"}, {"fine_tune": 10.1}, {"fine_tune": -0.1},
    )],
    (compression.cook, (Recipe(network="resnext"), "prose-transformer"), {}),
    *[(compression.diet, ("prose-transformer", recipes), {}) for recipes in ([], ["zeros"])],
    (compression.diet, ("prose-transformer", [Recipe(zeros=0.5)]), {"seeds": ()}),
]  # fmt: skip
LABELS = [
    {}, {"network": "resnext", "channels": 0.5}, {"zeros": 0.9, "compute": "csr"}, {"bits": 5},
    {"values": 16, "fine_tune": 0}, {"bits": 8, "fine_tune": 0}, {"zeros": 0.999, "fine_tune": 2},
    {"bits": 4, "weights": "per-tensor", "fine_tune": 0}, {"bits": 8, "activations": "static"},
    {"bits": 8, "activations": "dynamic", "compute": "integer"}, {"values": 256}, {"bits": 2},
]  # fmt: skip


@pytest.mark.pins
def test_refusals_labels_and_defaults(approved: Any) -> None:
    """The errors of refused arguments, the labels of recipes, and the default options."""
    text = "".join(f"{Recipe(**options)!r}\n" for options in LABELS)
    assert refusals(REFUSED) + text + defaults(compression) == approved
