"""Recipes: what fits together, the order of the steps, models that are trained once, seeds and stops; and what a device can do."""

from __future__ import annotations

import inspect
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from gpulab import compression, devices, training
from gpulab.compression import Recipe, _diet, _integer, _modules, _sparse, _support
from gpulab.errors import InputError, MissingLibraryError, StoppedError


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was trained, for how many epochs: nothing really is, so that the order can be seen in no time."""
    seen: list[str] = []

    def fit(job: Any, *, model: Any, epochs: int | None, stop: Any, **_: Any) -> Any:
        zeros = compression.sparsity(model) if not any(hasattr(m, "scheme") for m in model.modules()) else -1.0
        kinds = {type(m).__name__ for m in model.modules()}
        what = "rounded" if "Aware" in kinds else f"{zeros:.1f} zeros, {sum(p.numel() for p in model.parameters())} parameters"
        seen.append(f"{what}, {'all' if epochs is None else epochs} epochs")
        return SimpleNamespace(ended="stopped" if stop() else "finished")

    monkeypatch.setattr(training, "fit", fit)
    monkeypatch.setattr(_diet, "_models", type(_diet._models)())
    return seen


def test_the_steps_come_in_their_order(steps: list[str]):
    """Channels go and are tuned, weights go and are tuned, rounding comes last and is trained where bits are few."""
    pytest.importorskip("sklearn")
    whole = sum(p.numel() for p in training.task("digits-cnn").make_model().parameters())
    compression.cook(Recipe(channels=0.5, zeros=0.8, bits=3), "digits-cnn")
    small = int(steps[1].split()[2])
    assert steps == [
        f"0.0 zeros, {whole} parameters, all epochs",
        f"0.0 zeros, {small} parameters, 4 epochs",
        f"0.8 zeros, {small} parameters, 4 epochs",
        "rounded, 4 epochs",
    ]
    assert small < whole / 3


def test_eight_bits_are_rounded_without_training(steps: list[str]):
    """At 8 bits the training knows nothing of rounding; static inputs are calibrated on training data."""
    pytest.importorskip("sklearn")
    model = compression.cook(Recipe(bits=8, activations="static"), "digits-mlp")
    assert len(steps) == 1
    layer = next(m for m in model.modules() if hasattr(m, "codes"))
    assert float(layer.step) == pytest.approx(1 / 255)  # pixels from 0 to 1


def test_a_network_is_trained_once(steps: list[str]):
    """Two recipes of a task and seed share their first training; what one does to the model is not seen by the other."""
    for _ in range(2):
        compression.cook(Recipe(zeros=0.5, fine_tune=0), "prose-transformer", seed=1)
    compression.cook(Recipe(), "prose-transformer", seed=2)
    assert [each for each in steps if each.endswith("all epochs")] == steps
    assert len(steps) == 2
    assert compression.sparsity(compression.cook(Recipe(), "prose-transformer", seed=1)) < 0.01


def test_tasks_of_one_name_have_networks_of_their_own(steps: list[str]):
    """A task that was changed and kept its name: its network is the new one, with as many parameters as two layers of that width have."""
    for hidden in (16, 64):
        mine = replace(training.task("prose-transformer"), name="mine", _build=lambda hidden=hidden: torch.nn.Linear(10, hidden))
        assert sum(p.numel() for p in compression.cook(Recipe(), mine).parameters()) == 11 * hidden
    assert len(steps) == 2


def test_each_device_has_a_network_of_its_own(steps: list[str], monkeypatch: pytest.MonkeyPatch):
    """One that was trained on the CPU is not what a second device gets; the default is asked for by no name, or by its own."""
    there = devices.Device("cuda", 1)
    monkeypatch.setattr(devices, "find", lambda device=None: devices.Device("cpu") if device is None or device == "cpu" else there)
    for device, trained in ((None, 1), ("cpu", 1), ("other", 2), (None, 2)):
        compression.cook(Recipe(), "prose-transformer", device=device)
        assert len(steps) == trained


def test_the_network_that_was_used_longest_ago_is_forgotten(steps: list[str], monkeypatch: pytest.MonkeyPatch):
    """Two are kept here: after seeds 0, 1, 0, 2 it is 1 that has to be trained again, and 0 not."""
    monkeypatch.setattr(_diet, "_KEPT_MODELS", 2)
    for seed, trained in ((0, 1), (1, 2), (0, 2), (2, 3), (0, 3), (1, 4)):
        compression.cook(Recipe(), "prose-transformer", seed=seed)
        assert len(steps) == trained


def test_another_network_has_weights_of_its_seed(steps: list[str]):
    """Four groups in a resnext, one filter a channel in a mobilenet; the seed decides the weights; the caller's generator stands."""
    pytest.importorskip("sklearn")
    state = torch.get_rng_state()
    for name, grouped in (("resnext", lambda layer: layer.groups == 4), ("mobilenet", lambda layer: layer.groups == layer.out_channels)):
        one, same, other = (_diet._built(training.task("digits-cnn"), name, seed) for seed in (3, 3, 4))
        assert any(grouped(each) for each in one.modules() if isinstance(each, torch.nn.Conv2d) and each.groups > 1)
        assert one.eval()(torch.zeros(2, 1, 8, 8)).shape == (2, 10)
        weights = [next(model.parameters()) for model in (one, same, other)]
        assert torch.equal(weights[0], weights[1])
        assert not torch.equal(weights[0], weights[2])
    assert torch.equal(state, torch.get_rng_state())


def test_each_recipe_is_cooked_for_each_seed(steps: list[str]):
    """Two seeds of a recipe make one row with two accuracies, beside the network as trained."""
    w = compression.diet("prose-transformer", [Recipe(zeros=0.5, fine_tune=0)], seeds=(0, 1), deadline=0.02, batch_size=2)
    assert [each.label for each in w.models] == ["as trained", "50% zeros, not fine-tuned"]
    assert [len(each.accuracies) for each in w.models] == [2, 2]
    assert w.models[1].file_bytes < 0.7 * w.models[0].file_bytes


def test_a_recipe_that_is_there_twice_is_no_second_seed(steps: list[str]):
    """The network as trained is one model however often it is asked for: no two accuracies of one and the same."""
    w = compression.diet("prose-transformer", [Recipe(), Recipe(zeros=0.5, fine_tune=0), Recipe(zeros=0.5, fine_tune=0)], deadline=0.02,
                         batch_size=2)  # fmt: skip
    assert [(each.label, len(each.accuracies)) for each in w.models] == [("as trained", 1), ("50% zeros, not fine-tuned", 1)]


def test_a_stop_ends_it(steps: list[str]):
    """Stopped in training there is nothing to weigh, and that is said."""
    with pytest.raises(StoppedError, match="nothing to weigh"):
        compression.diet("prose-transformer", [Recipe(zeros=0.5)], stop=lambda: True)


def test_labels_tell_recipes_apart():
    """What differs shows in the label, so that no two recipes share a row by mistake."""
    recipes = [
        Recipe(), Recipe(zeros=0.9), Recipe(zeros=0.9, fine_tune=0), Recipe(channels=0.5), Recipe(values=16), Recipe(bits=8),
        Recipe(bits=4), Recipe(bits=8, weights="per-tensor"), Recipe(bits=8, activations="dynamic"), Recipe(bits=8, activations="static"),
        Recipe(bits=8, activations="dynamic", compute="integer"), Recipe(zeros=0.9, compute="csr"), Recipe(network="resnext"),
        Recipe(zeros=0.904), Recipe(zeros=0.9, fine_tune=2), Recipe(channels=0.504),
    ]  # fmt: skip
    assert len({each.label for each in recipes}) == len(recipes)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"network": "vgg"}, "resnext"),
        ({"channels": 1.0}, "share"),
        ({"zeros": -0.1}, "share"),
        ({"values": 1}, "values"),
        ({"bits": 16}, "bits"),
        ({"values": 4, "bits": 4}, "one of the two"),
        ({"compute": "csr", "bits": 8}, "CSR"),
        ({"compute": "integer"}, "dynamic"),
        ({"fine_tune": float("inf")}, "fine_tune"),
        ({"compute": "gpu"}, "dense"),
    ],
)
def test_recipes_that_cannot_be_cooked_are_refused(options: dict[str, Any], says: str):
    """Each argument that will not do is named with what would."""
    with pytest.raises(InputError, match=says):
        Recipe(**options)


def test_a_seed_may_be_a_whole_number_of_numpy(steps: list[str]):
    """A seed from an array is Python's own: the same weights, trained once; torch's generator takes no number of NumPy's."""
    pytest.importorskip("sklearn")
    recipe = Recipe(network="mobilenet")
    one, other = (compression.cook(recipe, "digits-cnn", seed) for seed in (np.int64(3), 3))
    assert len(steps) == 1
    assert torch.equal(next(one.parameters()), next(other.parameters()))
    for wrong in (3.0, True, "3"):
        with pytest.raises(InputError, match="cook: seed is"):
            compression.cook(recipe, "digits-cnn", wrong)
        with pytest.raises(InputError, match="diet: seed is"):
            compression.diet("digits-cnn", [recipe], seeds=[wrong])


def test_small_steps_train_on_one_thread_and_are_weighed_on_all(monkeypatch: pytest.MonkeyPatch):
    """A neighbour that takes one of two cores holds up each step on two threads; what a learner's own code has set is there again."""
    during: dict[str, list[int]] = {"fit": [], "weigh": []}

    def fit(*_: Any, **__: Any) -> Any:
        during["fit"].append(torch.get_num_threads())
        return SimpleNamespace(ended="finished")

    monkeypatch.setattr(training, "fit", fit)
    monkeypatch.setattr(_diet, "_models", type(_diet._models)())
    monkeypatch.setattr(_diet, "weigh", lambda *_, **__: during["weigh"].append(torch.get_num_threads()))
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        compression.diet("prose-transformer", [Recipe(zeros=0.5)], device="cpu")
        compression.cook(Recipe(), "prose-transformer", seed=1, device="cpu", threads=2)
        compression.cook(Recipe(), "prose-transformer", seed=2, device="cpu", threads=None)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
    assert during == {"fit": [1, 1, 2, 3], "weigh": [3]}
    with pytest.raises(InputError, match="diet: threads is 0"):
        compression.diet("prose-transformer", [Recipe(zeros=0.5)], threads=0)
    with pytest.raises(InputError, match="cook: threads is 0"):
        compression.cook(Recipe(), "prose-transformer", threads=0)


def test_what_does_not_fit_the_task_is_refused(steps: list[str]):
    """Grouped convolutions for text, no recipes, no seeds: sentences."""
    with pytest.raises(InputError, match="no images"):
        compression.cook(Recipe(network="resnext"), "prose-transformer")
    with pytest.raises(InputError, match="no recipes"):
        compression.diet("prose-transformer", [])
    with pytest.raises(InputError, match="no recipe"):
        compression.diet("prose-transformer", ["zeros"])
    with pytest.raises(InputError, match="no seeds"):
        compression.diet("prose-transformer", [Recipe(zeros=0.5)], seeds=())


def test_support_says_what_runs_here(monkeypatch: pytest.MonkeyPatch):
    """On a CPU: CSR and float arithmetic run, 2:4 does not and the sentence says what it takes; 7 bits are explained without VNNI."""
    monkeypatch.setattr(_integer, "activation_bits", lambda: 7)
    found = {each.name: each for each in compression.support("cpu").abilities}
    assert found["zeros in CSR"].works
    assert found["8-bit weights, float32 arithmetic"].works
    assert compression.support("cpu")["zeros in CSR"] == found["zeros in CSR"]
    with pytest.raises(InputError, match="zeros in CSR"):
        compression.support("cpu")["everything"]
    assert not found["2:4 zeros"].works
    assert "compute capability 8.0" in found["2:4 zeros"].sentence
    kernels = found["8-bit kernels, linear layers"]
    assert not kernels.works or "PyTorch reports no AVX-512 VNNI on this CPU" in kernels.sentence


def test_what_a_library_refuses_is_a_row(monkeypatch: pytest.MonkeyPatch):
    """A kernel that raises is a row with its words, not an error."""

    def gone(*_: object) -> None:
        raise NotImplementedError("no such kernel")

    monkeypatch.setattr(_integer.Packed, "__call__", gone)
    monkeypatch.setattr(_sparse.finish, "__call__", gone, raising=False)
    found = {each.name: each for each in compression.support("cpu").abilities}
    assert not found["8-bit kernels, linear layers"].works
    assert "NotImplementedError" in found["8-bit kernels, linear layers"].sentence


def test_each_ability_was_really_run(monkeypatch: pytest.MonkeyPatch):
    """A layer that can be made and fails only when it multiplies is no ability."""

    def fails(*_: object) -> None:
        raise NotImplementedError("no such kernel")

    for kind in (_modules.Sparse, _modules.Quantized):
        monkeypatch.setattr(kind, "forward", fails)
    found = compression.support("cpu")
    for name in ("zeros in CSR", "8-bit weights, float32 arithmetic"):
        assert not found[name].works
        assert "no such kernel" in found[name].sentence
    assert found.table()[1][0][:2] == ("zeros in CSR", "no")


@pytest.mark.gpu
def test_support_on_a_gpu():
    """CSR and torchao run there; 2:4 as the compute capability says; the CPU's kernels are refused in a sentence."""
    found = {each.name: each for each in compression.support("cuda").abilities}
    assert found["zeros in CSR"].works
    assert found["2:4 zeros"].works == (torch.cuda.get_device_capability() >= (8, 0)), found["2:4 zeros"].sentence
    assert not found["8-bit kernels, linear layers"].works
    assert "CPUs only" in found["8-bit kernels, linear layers"].sentence


@pytest.mark.gpu
def test_a_model_is_weighed_on_the_gpu():
    """Times are the GPU's, the accuracy is that of the CPU but for rounding."""
    model = training.task("prose-transformer").make_model()
    w = compression.weigh({"as it is": model, "zeros": compression.prune(model, 0.9)}, "prose-transformer", device="cuda", deadline=0.1)
    assert w.device == torch.cuda.get_device_name()
    here = training.evaluate(model, "prose-transformer")
    assert abs(w["as it is"].accuracies[0].correct - here.correct) <= here.count / 100


@pytest.mark.parametrize(
    ("recipe", "label"),
    [
        (Recipe(), "as trained"),
        (Recipe(network="resnext", channels=0.5), "resnext, 50% of channels gone"),
        (Recipe(zeros=0.9, compute="csr"), "90% zeros, CSR"),
        (Recipe(values=16, fine_tune=0), "16 values, not fine-tuned"),
        (Recipe(bits=8, fine_tune=0), "8 bits"),  # loses little
        (Recipe(zeros=0.999, fine_tune=2), "99.9% zeros, fine-tuned for 2x the epochs"),
        (Recipe(bits=4, weights="per-tensor", fine_tune=0), "4 bits a tensor, not fine-tuned"),
        (Recipe(bits=5, fine_tune=0), "5 bits"),
        (Recipe(bits=8, activations="dynamic", compute="integer"), "8 bits, dynamic inputs, integer kernels"),
    ],
)
def test_labels_by_hand(recipe: Recipe, label: str):
    """What is done, in its order; that nothing was tuned where something is lost."""
    assert recipe.label == label
    assert repr(recipe) == f"<recipe: {label}>"


def test_the_ends_of_what_a_recipe_takes():
    """2 to 256 values, 2 to 8 bits, up to ten times the epochs."""
    assert [Recipe(values=n).values for n in (2, 256)] == [2, 256]
    assert [Recipe(bits=n).bits for n in (2, 8, 32)] == [2, 8, 32]
    assert (Recipe().fine_tune, Recipe(fine_tune=10).fine_tune) == (0.5, 10)
    for wrong in ({"values": 257}, {"bits": 9}, {"bits": 31}, {"fine_tune": 10.1}, {"fine_tune": -0.1}):
        with pytest.raises(InputError):
            Recipe(**wrong)


def test_few_bits_without_training_and_each_way_to_compute(steps: list[str]):
    """Four bits that are not tuned are rounded after training; CSR, shared values and integer kernels are what the layers become."""

    def made(**options: Any) -> set[str]:
        model = compression.cook(Recipe(fine_tune=0, **options), "prose-transformer")
        return {type(each).__name__ for each in model.modules()} & {"Aware", "Quantized", "Integer", "Sparse", "Codebook", "Mask"}

    assert made(bits=4) == {"Quantized"}
    assert made(zeros=0.5) == {"Mask"}
    assert made(zeros=0.5, compute="csr") == {"Sparse"}
    assert made(values=4) == {"Codebook"}
    if not _integer.refusal("cpu"):
        assert made(bits=8, activations="dynamic", compute="integer") == {"Integer"}
    assert len(steps) == 1


def test_a_diets_progress_rises_through_its_recipes(monkeypatch: pytest.MonkeyPatch):
    """Seven tenths for two recipes alike, three for the scales; each network is named with its seed."""
    seen: list[tuple[float, str]] = []
    part = _diet._part(lambda fraction, text: seen.append((fraction, text)), 0.2, 0.6, "zeros, seed 1")
    part(0.5, "training")
    _diet._part(lambda fraction, text: seen.append((fraction, text)), 0.7, 1.0, "")(1.0, "done")
    assert seen == [(pytest.approx(0.4), "zeros, seed 1: training"), (pytest.approx(1.0), "done")]
    seen.clear()
    monkeypatch.setattr(_diet, "weigh", lambda *models, progress, **options: progress(0.0, "counting") or progress(1.0, "done"))
    monkeypatch.setattr(_diet, "cook", lambda *given, progress, **options: progress(0.5, "training"))
    compression.diet("prose-transformer", [Recipe(bits=8)], progress=lambda fraction, text: seen.append((fraction, text)))
    assert seen == [
        (pytest.approx(0.175), "as trained, seed 0: training"), (pytest.approx(0.525), "8 bits, seed 0: training"),
        (pytest.approx(0.7), "counting"), (pytest.approx(1.0), "done"),
    ]  # fmt: skip


def test_what_runs_here_in_a_table(monkeypatch: pytest.MonkeyPatch):
    """A CPU with VNNI, no kernels for convolutions, and no torchao: each form with what it gives or why not."""
    monkeypatch.setattr(_integer, "activation_bits", lambda: 8)
    monkeypatch.setattr(_integer, "refusal", lambda place, convolution=False: "this build has none." if convolution else "")

    def missing(*_: object) -> None:
        raise MissingLibraryError("quantize: torchao is not installed; expected it. Run: pip install torchao")

    monkeypatch.setattr(_support, "_torchao", missing)
    found = compression.support("cpu")
    name = found.device
    refused = "quantize: torchao is not installed; expected it. Run: pip install torchao."
    assert found.table() == (
        (name, "runs here", ""),
        [
            ("zeros in CSR", "yes", "Multiplies only what is not zero; pays where nearly all is zero."),
            ("2:4 zeros", "no", f"{_sparse.two_four_refusal('cpu')} The zeros still make its file little more than half as large."),
            ("8-bit weights, float32 arithmetic", "yes", "A quarter of the bytes; every call converts."),
            ("8-bit kernels, linear layers", "yes", "Integer products. Inputs have 8 bits."),
            ("8-bit kernels, convolutions", "no", "This build has none."),
            ("torchao, 8-bit weights", "no", refused),
            ("torchao, 8-bit weights and inputs", "no", refused),
        ],
    )
    assert repr(found) == f"<{name}: zeros in CSR, 8-bit weights, float32 arithmetic, 8-bit kernels, linear layers>"
    layer, x = _support._layer("cpu")
    assert (layer[0].weight.shape, x.shape) == ((64, 64), (32, 64))


_NET = torch.nn.Sequential(torch.nn.Linear(8, 8))
# Function, what it is given beside one argument that it cannot use, and that argument with its value.
REFUSED: list[tuple[str, Any, tuple[Any, ...], str, Any]] = [
    *[("prune", compression.prune, (_NET,), *each) for each in (
        ("amount", 1.0), ("scope", "each"), ("structured", 1), ("pattern", "1:4"), ("layers", 5), ("skip", "0"),
    )],
    ("prune", lambda **given: compression.prune(_NET, structured=True, **given), (), "multiple", 1025),
    *[("quantize", compression.quantize, (_NET,), *each) for each in (
        ("weights", "per-row"), ("activations", "lazy"), ("bits", 9), ("arithmetic", "fast"), ("layers", 5), ("skip", "0"),
    )],
    ("quantize", lambda **given: compression.quantize(_NET, activations="static", **given), (), "calibration", 5),
    ("quantize", lambda **given: compression.quantize(_NET, activations="static", calibration=torch.ones(1, 8), **given), (),
     "percentile", 50),
    *[("quantize_aware", compression.quantize_aware, (_NET,), *each) for each in (
        ("weights", "per-row"), ("activations", "lazy"), ("bits", 1), ("layers", 5), ("skip", "0"),
    )],
    *[("share_weights", compression.share_weights, (_NET,), *each) for each in (("clusters", 257), ("layers", 5), ("skip", "0"))],
    *[("to_sparse", compression.to_sparse, (_NET,), *each) for each in (("format", "coo"), ("layers", 5), ("skip", "0"))],
    *[("Recipe", Recipe, (), *each) for each in (
        ("network", "vgg"), ("channels", 1.0), ("zeros", -0.5), ("values", 257), ("bits", 9), ("compute", "gpu"), ("fine_tune", 11),
    )],
    *[("diet", compression.diet, ("prose-transformer", [Recipe(zeros=0.5)]), *each) for each in (
        ("seeds", 5), ("threads", 0), ("progress", 5), ("stop", 5),
    )],
    ("diet", lambda recipes: compression.diet("prose-transformer", recipes), (), "recipes", 5),
    *[("cook", compression.cook, (Recipe(), "prose-transformer"), *each) for each in (("seed", -1), ("threads", 1025))],
    ("weigh", compression.weigh, (_NET,), "inputs", 5),
    ("weigh", lambda **given: compression.weigh(torch.nn.Linear(64, 10), "digits-mlp", **given), (), "batch_size", 0),
    *[(name, lambda model, f=f: f(model), (), "model", 5) for name, f in (
        ("prune", compression.prune), ("quantize", compression.quantize), ("quantize_aware", compression.quantize_aware),
        ("share_weights", compression.share_weights), ("to_sparse", compression.to_sparse), ("finish", compression.finish),
        ("sparsity", compression.sparsity), ("count", compression.count), ("weigh", compression.weigh),
    )],
]  # fmt: skip
# A finished copy is what these make first.
_BY_FINISH = ("quantize", "to_sparse")


@pytest.mark.parametrize(("name", "function", "given", "argument", "value"), REFUSED, ids=[f"{row[0]}-{row[3]}" for row in REFUSED])
def test_a_refusal_begins_with_who_refuses_what(name: str, function: Any, given: tuple[Any, ...], argument: str, value: Any):
    """The function, the argument and the value, and what was expected."""
    with pytest.raises(InputError) as caught:
        function(*given, **{argument: value})
    who = "finish" if argument == "model" and name in _BY_FINISH else name
    assert str(caught.value).startswith((f"{who}: {argument} is {value!r}; expected ", f"{who}: {argument}={value!r}; expected "))


# What a call without options means; what it leaves to the model, the device or the machine is None.
USUAL: dict[str, dict[str, Any]] = {
    "prune": {"amount": 0.5, "structured": False, "scope": "global", "skip": (), "multiple": 1},
    "quantize": {"weights": "per-channel", "bits": 8, "arithmetic": "float", "skip": (), "percentile": 100.0},
    "quantize_aware": {"weights": "per-channel", "bits": 8, "skip": ()},
    "share_weights": {"clusters": 16, "skip": ()},
    "to_sparse": {"format": "csr", "skip": ()},
    "weigh": {"batch_size": 64, "deadline": 0.5},
    "diet": {"seeds": (0,), "batch_size": 64, "deadline": 0.5, "threads": 1},
    "cook": {"seed": 0, "threads": 1},
    "Recipe": {
        "network": "as it is", "channels": 0.0, "zeros": 0.0, "values": 0, "bits": 32, "weights": "per-channel", "compute": "dense",
        "fine_tune": 0.5,
    },
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(USUAL))
def test_what_a_call_without_options_means(name: str):
    """Figures in the course's text and in recordings were made with these."""
    found = inspect.signature(getattr(compression, name)).parameters.items()
    left = {key: parameter.default for key, parameter in found if parameter.default not in (None, inspect.Parameter.empty)}
    assert left == USUAL[name]
