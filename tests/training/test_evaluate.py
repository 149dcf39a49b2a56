"""Accuracy with its intervals: against published values, against simulations whose truth is known; and the tasks' data."""

from __future__ import annotations

import dataclasses
import json
import signal
import sys
from typing import Any

import make_prose
import numpy as np
import pytest
import torch

from gpulab import training, workloads
from gpulab.errors import InputError, MissingLibraryError
from gpulab.training import _data, _seeds
from gpulab.training._evaluate import Answers, _half, clustered, difference_interval, wilson
from gpulab.training._seeds import accuracy_of


@pytest.mark.parametrize(
    ("correct", "count", "low", "high"),
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_wilsons_interval(correct: int, count: int, low: float, high: float) -> None:
    """The four cases of Newcombe 1998 (Statistics in Medicine 17, 857, table I, method 3); and mirrored, wrong for right."""
    assert wilson(correct, count) == pytest.approx((low, high), abs=5e-5)
    assert wilson(count - correct, count) == pytest.approx((1 - high, 1 - low), abs=5e-5)


def test_the_interval_of_many_answers_an_item_knows_that_they_hang_together() -> None:
    """Of 40 windows whose 64 answers are all right or all wrong, the interval is that of 40 answers, not of 2,560."""
    shares = np.repeat([0.0, 1.0], 20)
    low, high = clustered(shares)
    assert high - low == pytest.approx(2 * 2.0227 * 0.5064 / np.sqrt(40), rel=1e-3)  # Student's t with 39 degrees, by table


def test_two_values_have_an_interval_and_one_has_none() -> None:
    """12.706 is Student's t with one degree of freedom, by table; of one value anything between -1 and 1 may be so."""
    assert _half(np.array([1.0, 3.0])) == pytest.approx(12.706 * np.sqrt(2) / np.sqrt(2), rel=1e-4)
    assert _half(np.array([1.0])) == 2.0


def test_the_paired_difference_covers() -> None:
    """Two models that answer alike in most items: 95 % of the intervals hold the true difference; agreement is not certainty."""
    rng = np.random.default_rng(0)
    held = 0
    for _ in range(1000):
        kind = rng.choice(3, size=500, p=[0.95, 0.035, 0.015])  # alike, only the second right, only the first right
        before, after = (kind != 1).astype(float), (kind != 2).astype(float)
        low, high = difference_interval(before, after)
        held += low <= 0.02 <= high
    assert 0.93 <= held / 1000 <= 0.985
    low, high = difference_interval(np.ones(500), np.ones(500))
    assert low < 0 < high


def test_the_interval_over_seeds_and_items_covers_both() -> None:
    """Seeds differ, items differ, and answers have luck of their own: the interval holds the mean over all seeds and all items."""
    rng = np.random.default_rng(1)
    held = alone = 0
    runs = 600
    for _ in range(runs):
        seeds, items = rng.normal(0, 0.01, 5), rng.choice([-0.6, 0.2], p=[0.25, 0.75], size=300)
        share = 0.75 + seeds[:, None] + items[None, :]
        right = (rng.random((5, 300)) < share).astype(int)
        result = accuracy_of([Answers(one, 1, 0.0, "digits", "cpu") for one in right])
        held += result.interval[0] <= 0.75 <= result.interval[1]
        assert result.seeds_interval is not None
        alone += result.seeds_interval[0] <= 0.75 <= result.seeds_interval[1]
    assert 0.93 <= held / runs <= 0.99
    assert alone / runs < 0.85, "seeds on one test know nothing of other tests"


def test_seeds_that_are_all_right_leave_room() -> None:
    """Without a single mistake the interval is Wilson's of the items, not a point."""
    result = accuracy_of([Answers(np.ones(500, dtype=int), 1, 0.0, "digits", "cpu")] * 5)
    assert result.interval == (pytest.approx(wilson(500, 500)[0]), 1.0)


def test_evaluate_counts_right_answers_and_leaves_the_model_alone() -> None:
    """A model that always says 3 is right as often as 3 comes; its mode and gradient flags stay."""

    class Three(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.score = torch.nn.Parameter(torch.ones(1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            assert not self.training
            return torch.nn.functional.one_hot(torch.full((len(x),), 3), 10) * self.score

    job = training.task("digits-mlp")
    model = Three()
    accuracy = training.evaluate(model, job)
    threes = int((job.test.targets == 3).sum())
    assert (accuracy.correct, accuracy.count) == (threes, 500)
    assert accuracy.loss == pytest.approx(-(threes - 500 * np.log(np.e + 9)) / 500, rel=1e-5)
    assert model.training
    assert training.Accuracy.from_dict(accuracy.to_dict()) == accuracy


def test_one_digit_at_two_places_is_no_two_items() -> None:
    """Who always says 3 is right on both or on neither: the interval is that of 500 answers, by Student's t (1.9647 with 499 degrees)."""

    class Three(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.one_hot(torch.full((len(x),), 3), 10).float()

    job = training.task("digits-hard-cnn")
    accuracy = training.evaluate(Three(), job)
    threes = int((_data.digits()[1].targets == 3).sum())
    assert (accuracy.correct, accuracy.count, accuracy.evidence.samples) == (2 * threes, 1000, 500)
    share = threes / 500
    half = 1.9647 * np.sqrt(share * (1 - share) / 499)
    assert accuracy.interval == pytest.approx((share - half, share + half), rel=1e-4)


def test_several_answers_an_item_that_are_all_alike_leave_room() -> None:
    """Without a mistake the interval is Wilson's of the items, and two models that agree on all are not equal for certain."""
    assert Answers(np.full(500, 2), 2, 0.0, "digits", "cpu").accuracy().interval == (pytest.approx(wilson(500, 500)[0]), 1.0)
    shares = np.repeat([0.5, 1.0], 250)
    low, high = difference_interval(shares, shares)
    assert low < 0 < high


def test_half_precision_models_are_evaluated_as_they_are() -> None:
    """The inputs follow the model's type."""
    model = training.task("digits-mlp").make_model(0)
    plain, half = training.evaluate(model, "digits-mlp"), training.evaluate(model.bfloat16(), "digits-mlp")
    assert abs(plain.ratio - half.ratio) < 0.05


@pytest.mark.parametrize("model", [None, 5, "model", torch.nn.Linear(3, 3)])
def test_what_is_no_model_of_the_task(model: Any) -> None:
    """One sentence."""
    with pytest.raises(InputError, match=r"evaluate: .*expected"):
        training.evaluate(model, "digits-mlp")


def test_over_seeds_is_fit_seed_by_seed() -> None:
    """Each run equals its own fit; the mean is theirs."""
    result = training.over_seeds("digits-mlp", seeds=[3, 5], steps=6, device="cpu")
    for seed, run in zip((3, 5), result.runs, strict=True):
        assert run.losses.tolist() == training.fit("digits-mlp", steps=6, seed=seed, device="cpu").losses.tolist()
    assert result.accuracy.mean == pytest.approx(np.mean([run.accuracy.ratio for run in result.runs if run.accuracy]))
    assert training.SeedsResult.from_dict(result.to_dict()) == result


def test_over_seeds_tests_as_each_run_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller lets products be rounded; within a run float32 means float32, and so it does in the test of all seeds."""
    test, seen = _seeds.answers_of, []

    def answers_of(model: Any, job: Any) -> Any:
        seen.append(torch.get_float32_matmul_precision())
        return test(model, job)

    before = torch.get_float32_matmul_precision()
    monkeypatch.setattr(_seeds, "answers_of", answers_of)
    torch.set_float32_matmul_precision("high")
    try:
        training.over_seeds("digits-mlp", seeds=1, steps=2, device="cpu")
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision(before)
    assert seen == ["highest"]


@pytest.mark.parametrize("seeds_done", [0, 2])
def test_an_interrupt_between_two_seeds_keeps_what_was_reached(seeds_done: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real signal while the second model is tested: both are told. While the first model is made there is nothing to tell."""
    test, make, before = _seeds.answers_of, training.Task.make_model, signal.getsignal(signal.SIGINT)
    tested: list[Any] = []

    def interrupted_test(model: Any, job: Any) -> Any:
        tested.append(model)
        if len(tested) == seeds_done:
            signal.raise_signal(signal.SIGINT)
        return test(model, job)

    def interrupted_making(job: Any, seed: int = 0) -> Any:
        if not seeds_done:
            signal.raise_signal(signal.SIGINT)
        return make(job, seed)

    monkeypatch.setattr(_seeds, "answers_of", interrupted_test)
    monkeypatch.setattr(training.Task, "make_model", interrupted_making)
    if seeds_done:
        result = training.over_seeds("digits-mlp", seeds=4, steps=2, device="cpu")
        assert (result.seeds, len(result.accuracy.accuracies)) == ((0, 1), 2)
        assert any(note.code == "stopped" and "2 of 4" in note.sentence for note in result.notes)
    else:
        with pytest.raises(KeyboardInterrupt):
            training.over_seeds("digits-mlp", seeds=4, steps=2, device="cpu")
    assert signal.getsignal(signal.SIGINT) is before


def test_over_seeds_keeps_what_was_reached() -> None:
    """A stop in the second run: two seeds, the note says so."""
    asked = iter([False] * 8 + [True] * 9)
    result = training.over_seeds("digits-mlp", seeds=4, steps=6, device="cpu", stop=lambda: next(asked))
    assert result.seeds == (0, 1)
    assert result.runs[1].ended == "stopped"
    assert any("2 of 4" in note.sentence for note in result.notes)


def test_progress_over_seeds_is_of_all_of_them() -> None:
    """Two seeds of two steps are four parts, each named with its seed's place and what the run itself tells."""
    seen: list[tuple[float, str]] = []
    training.over_seeds("digits-mlp", seeds=[5, 3], steps=2, device="cpu", progress=lambda *told: seen.append(told))
    assert [fraction for fraction, _ in seen] == [0.25, 0.5, 0.75, 1.0]
    assert [text.partition(": loss")[0] for _, text in seen] == [
        "seed 1 of 2, step 1 of 2", "seed 1 of 2, step 2 of 2", "seed 2 of 2, step 1 of 2", "seed 2 of 2, step 2 of 2",
    ]  # fmt: skip


@pytest.mark.parametrize("seeds", [0, -1, True, 1.5, "3", [], [1, 1], [-1], ["a"], None, 10**9])
def test_what_are_no_seeds(seeds: Any) -> None:
    """One sentence."""
    with pytest.raises(InputError, match="expected"):
        training.over_seeds("digits-mlp", seeds=seeds, steps=1, device="cpu")


def test_evaluate_models_needs_models() -> None:
    """An empty list says nothing."""
    with pytest.raises(InputError, match="at least one"):
        training.evaluate_models([], "digits-mlp")


# -- tasks -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", training.tasks())
def test_a_task_gives_what_it_says(name: str) -> None:
    """A model of the seed takes a batch and has a finite loss and one count an item; torch's generator stays as it was."""
    job = training.task(name)
    state = torch.get_rng_state()
    model, again, other = job.make_model(4), job.make_model(4), job.make_model(5)
    assert torch.equal(torch.get_rng_state(), state)
    pairs = list(zip(model.parameters(), again.parameters(), other.parameters(), strict=True))
    assert all(torch.equal(a, b) for a, b, _ in pairs)
    assert any(not torch.equal(a, c) for a, _, c in pairs)
    batch = job.train[:4]
    assert torch.isfinite(job.loss(model, batch))
    right = job.correct(model, batch)
    assert right.shape == (4,)
    assert int(right.max()) <= batch[1][0].numel()


def test_weights_of_a_seed_leave_an_accelerators_generator_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.manual_seed would seed each GPU's too (PyTorch's manual: "on all devices"), and forking the host's brings none back."""
    seeded: list[int] = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeded.append)
    training.task("prose-transformer").make_model(4)
    training.Run("prose-transformer", steps=1, batch_size=4, device="cpu")
    workloads.get("transformer_training_step")(n=64).inputs()
    assert seeded == []
    torch.manual_seed(0)
    assert seeded == [0]


def test_no_test_digit_is_among_those_to_learn_from() -> None:
    """Neither of the digits nor of the hard ones, whose places and noise differ: the split is by digit."""
    for train, test in (_data.digits(), _data.hard_digits()):
        known = {image.numpy().tobytes() for image in train.inputs}
        assert not any(image.numpy().tobytes() in known for image in test.inputs)
    (easy, easy_test), (hard, hard_test) = _data.digits(), _data.hard_digits()
    assert (len(easy), len(easy_test), len(hard), len(hard_test)) == (1297, 500, 500, 1000)
    assert torch.equal(hard_test.targets[:500], easy_test.targets)
    assert torch.equal(hard.targets, easy.targets[:500])


def test_a_hard_digit_is_the_digit_elsewhere_in_noise() -> None:
    """Somewhere on the canvas the digit itself lies, but for noise of the stated size; the rest is noise."""
    easy, hard = _data.digits()[0], _data.hard_digits()[0]
    places = set()
    for image, picture in zip(easy.inputs[:50, 0], hard.inputs[:50, 0], strict=True):
        windows = picture.unfold(0, 8, 1).unfold(1, 8, 1)
        spread = (windows - image).flatten(2).std(dim=2)
        best = divmod(int(spread.argmin()), 5)
        places.add(best)
        assert float(spread.min()) == pytest.approx(_data.HARD_NOISE, rel=0.35)
    assert len(places) > 10


def test_the_prose_is_the_courses_own_and_the_test_is_its_end() -> None:
    """Plain ASCII from a file in the package; what follows each character is the next one; test and training do not overlap."""
    train, test = _data.prose()
    letters = _data.characters()
    assert max(map(ord, letters)) < 128
    text = ["".join(letters[i] for i in row) for row in (*train.inputs[:3], *test.inputs[:3])]
    whole = _data._text()
    assert all(part in whole for part in text)
    assert torch.equal(train.inputs[:, 1:], train.targets[:, :-1])
    last = "".join(letters[i] for i in train.targets[-1])
    assert whole.rindex(last) + len(last) <= whole.index(text[3])
    assert "GPU" in whole


def test_the_tool_keeps_the_prose_alone() -> None:
    """Headings and sentences stay; code, tables, HTML, links' targets and what is not ASCII go."""
    source = (
        "## A heading that stays here\n\nThe *first* [sentence](x.html) of **all** — `code` here.\n\n"
        "```python\nprint(1)\n```\n\n|a|b|\n|-|-|\n\n<img src='x'>"
    )
    notebook = {"cells": [{"cell_type": "markdown", "source": source}, {"cell_type": "code", "source": "a prediction of code lines"}]}
    assert make_prose.prose_of(json.loads(json.dumps(notebook))) == [
        "A heading that stays here", "The first sentence of all - code here.",
    ]  # fmt: skip


def test_without_scikit_learn_one_sentence_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the prose needs nothing."""
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    _data._raw_digits.cache_clear()
    _data.digits.cache_clear()
    try:
        with pytest.raises(MissingLibraryError, match=r"pip install scikit-learn.*prose-transformer"):
            training.fit("digits-mlp", steps=1, device="cpu")
    finally:
        _data._raw_digits.cache_clear()
    assert training.fit("prose-transformer", steps=1, batch_size=1, device="cpu").ended == "finished"


def test_the_data_are_the_same_for_ever() -> None:
    """By NumPy's own generator: 20,240 deals the digits out, 20,241 places the hard ones, then gives them their noise of 0.15."""
    images, classes = pytest.importorskip("sklearn.datasets").load_digits(return_X_y=True)
    order = np.random.default_rng(20_240).permutation(1797)
    (easy, easy_test), (hard, hard_test) = _data.digits(), _data.hard_digits()
    dealt = (images[order] / 16).reshape(-1, 1, 8, 8)
    assert np.array_equal(np.concatenate([easy.inputs, easy_test.inputs]), dealt.astype(np.float32))
    assert np.concatenate([easy.targets, easy_test.targets]).tolist() == classes[order].tolist()
    rng = np.random.default_rng(20_241)
    for pictures, whole in ((dealt[:500], hard), (np.concatenate([dealt[-500:]] * 2), hard_test)):
        places, noise = rng.integers(0, 5, (len(pictures), 2)), rng.normal(0.0, 0.15, (len(pictures), 12, 12))
        for k in (0, 1, len(pictures) - 1):
            row, column = places[k]
            noise[k, row : row + 8, column : column + 8] += pictures[k, 0]
            assert whole.inputs[k, 0].numpy() == pytest.approx(noise[k], abs=1e-6)
    assert (easy.copies, hard.copies, hard_test.copies) == (1, 1, 2)
    assert repr(hard_test) == "<1,000 items of shape (1, 12, 12)>"


def test_windows_of_the_prose_by_hand() -> None:
    """Of 64 characters: in training one begins every sixteen, in the test every sixty-four; the last tenth is the test's."""
    text, letters = _data._text(), _data.characters()
    train, test = _data.prose()
    end = round(0.9 * len(text))
    assert letters == "".join(sorted(set(text)))
    assert (train.inputs.shape[1], test.targets.shape[1]) == (64, 64)
    assert (len(train), len(test)) == ((end - 65) // 16 + 1, (len(text) - end - 65) // 64 + 1)
    for data, begin, stride in ((train, 0, 16), (test, end, 64)):
        for k in (0, 1, len(data) - 1):
            at = begin + k * stride
            assert "".join(letters[i] for i in data.inputs[k]) == text[at : at + 64]
            assert "".join(letters[i] for i in data.targets[k]) == text[at + 1 : at + 65]


def test_a_batch_has_memory_of_its_own() -> None:
    """Four digits of 8 x 8 float32 and four classes of int64, by a slice, by indices, and as PyTorch's loader asks for them."""
    train, _ = _data.digits()
    whole = train.inputs.untyped_storage().data_ptr()
    for inputs, targets in (train[:4], train[torch.tensor([0, 1, 2, 3])], train.__getitems__([0, 1, 2, 3])):
        assert torch.equal(inputs, train.inputs[:4])
        assert torch.equal(targets, train.targets[:4])
        assert (inputs.untyped_storage().nbytes(), targets.untyped_storage().nbytes()) == (4 * 64 * 4, 4 * 8)
        assert inputs.untyped_storage().data_ptr() != whole


def test_the_test_is_answered_in_batches_of_250(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 500 digits two; each counts with its items in the loss; a model without numbers of its own is asked on the CPU."""
    seen: list[tuple[int, Any, Any]] = []

    class Constant(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.append((len(x), x.dtype, x.device.type))
            return torch.zeros(len(x), 10)

    job = training.task("digits-mlp")
    training.evaluate(Constant(), job)
    assert seen == [(250, torch.float32, "cpu")] * (len(seen) // 2) * 2
    assert {items for items, *_ in seen} == {250}
    short = dataclasses.replace(job, _load=lambda: (job.train, training.Data(job.test.inputs[:300], job.test.targets[:300])))
    monkeypatch.setattr(training.Task, "loss", lambda job, model, batch: torch.tensor(float(len(batch[1]))))
    assert training.evaluate(Constant(), short).loss == pytest.approx((250 * 250 + 50 * 50) / 300)


def test_intervals_end_where_shares_do() -> None:
    """A share from 0 to 1, a difference from -1 to 1: two items, or one, leave room for everything."""
    assert clustered(np.array([0.0, 0.5])) == (0.0, 1.0)
    assert wilson(0, 3)[0] == 0.0
    assert wilson(3, 3)[1] == 1.0
    assert difference_interval(np.array([1.0, 0.5]), np.array([0.0, 0.0])) == (-1.0, 1.0)
    half = 1.959964 * (2 - 1 / 3) ** 0.5 / 3  # of one item that was lost, with half an item more each: won 1/2, lost 3/2 of 3
    assert difference_interval(np.array([1.0]), np.array([0.0])) == (-1.0, pytest.approx(-1 / 3 + half))
    assert difference_interval(np.array([0.0]), np.array([1.0])) == (pytest.approx(1 / 3 - half), 1.0)
