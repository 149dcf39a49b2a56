"""A recipe from a trained network to a light one, a comparison of several recipes, and what a
device can do with a lighter model.

The order keeps accuracy: remove channels, fine-tune; set weights to zero, fine-tune; then share or
quantize what is left, with training that knows of it where there are few bits. Trained networks are
kept, so that ten recipes train the first one once.
"""

from __future__ import annotations

import copy
import functools
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from gpulab import _validate, devices, networks, training
from gpulab.compression import compressed_layers
from gpulab.compression._compress import prune, quantize, quantize_aware, share_weights, to_sparse
from gpulab.compression._weigh import Progress, part, weigh
from gpulab.compression.weighed_models import Weighing
from gpulab.errors import GpulabError, InputError, StoppedError, message_of, shown
from gpulab.evidence import Evidence
from gpulab.results import Result
from gpulab.training import backend_switches
from gpulab.training.data_tasks import check_seed

NETWORKS = ("as it is", "resnext", "mobilenet")
COMPUTE = ("dense", "csr", "integer")
_KEPT_MODELS = 12
# inputs: hundreds are enough for a range (Krishnamoorthi, arXiv:1806.08342, section 3.1)
_CALIBRATION = 256
# From here on down, rounding after training loses much that training with rounding keeps (ibid.,
# section 4).
_FEW_BITS = 4

Stop = Callable[[], bool]


@dataclass(frozen=True)
class Recipe:
    """The steps applied to a task's network, in this order; the defaults do nothing.

    Attributes
    ----------
    network : str
        "as it is", or for images "resnext" (grouped convolutions) or "mobilenet" (depthwise ones)
        in its place.
    channels : float
        The share of channels to remove.
    zeros : float
        The share of weights to set to zero.
    values : int
        Number of different weights in each layer (k-means); 0 leaves them.
    bits : int
        Of a weight, 2 to 8; 32 leaves float32.
    weights : str
        With fewer bits: a scale "per-channel" or "per-tensor".
    activations : str or None
        With fewer bits: None, "dynamic" or "static" (calibrated on training inputs).
    compute : str
        "dense" as usual, "csr" multiplies only the nonzero weights, "integer" uses 8-bit CPU
        kernels.
    fine_tune : float
        Training after each step that loses something, as a share of the task's epochs; 0 for none.
    """

    network: str = "as it is"
    channels: float = 0.0
    zeros: float = 0.0
    values: int = 0
    bits: int = 32
    weights: str = "per-channel"
    activations: str | None = None
    compute: str = "dense"
    fine_tune: float = 0.5

    def __post_init__(self) -> None:
        _validate.word("Recipe", "network", self.network, NETWORKS)
        _validate.word("Recipe", "compute", self.compute, COMPUTE)
        for name in ("channels", "zeros"):
            compressed_layers.share("Recipe", name, getattr(self, name))
        if not _validate.is_finite(self.fine_tune) or not 0 <= self.fine_tune <= 10:
            raise InputError(
                f"Recipe: fine_tune={shown(self.fine_tune)}; expected a share of the task's "
                "epochs, 0 to 10. Pass 0.5."
            )
        for name, left, low, high in (("values", 0, 2, 256), ("bits", 32, 2, 8)):
            given = getattr(self, name)
            as_it_is = _validate.is_whole(given) and given == left
            object.__setattr__(
                self, name, left if as_it_is else _validate.whole("Recipe", name, given, low, high)
            )
        contradictions = (
            (
                self.values and self.bits != 32,
                f"values={self.values} and bits={self.bits}; expected one of the two. Leave one "
                "out.",
            ),
            (
                self.compute == "csr" and self.bits != 32,
                f"compute='csr' and bits={self.bits}; expected float32 weights for CSR. Leave bits "
                "out.",
            ),
            (
                self.compute == "integer" and (self.bits != 8 or self.activations != "dynamic"),
                f"compute='integer' with bits={self.bits} and activations={self.activations!r}; "
                "expected 8, 'dynamic'.",
            ),
        )
        for holds, sentence in contradictions:
            if holds:
                raise InputError(f"Recipe: {sentence}")

    @property
    def label(self) -> str:
        """What is done, in a few words; recipes of one label do the same."""
        tensor = " a tensor" if self.weights == "per-tensor" else ""
        inputs = f", {self.activations} inputs" if self.activations else ""
        loses = self.channels or self.zeros or self.values or self.bits <= _FEW_BITS
        tuned = (
            f"fine-tuned for {self.fine_tune:g}x the epochs" if self.fine_tune else "not fine-tuned"
        )
        parts = (
            (self.network != "as it is", self.network),
            (self.channels, f"{100 * self.channels:.6g}% of channels gone"),
            (self.zeros, f"{100 * self.zeros:.6g}% zeros"),
            (self.values, f"{self.values} values"),
            (self.bits != 32, f"{self.bits} bits{tensor}{inputs}"),
            (self.compute == "csr", "CSR"),
            (self.compute == "integer", "integer kernels"),
            (loses and self.fine_tune != Recipe.fine_tune, tuned),
        )
        return ", ".join(words for holds, words in parts if holds) or "as trained"

    def __repr__(self) -> str:
        return f"<recipe: {self.label}>"


def diet(
    task: Any,
    recipes: Iterable[Recipe],
    *,
    seeds: Iterable[int] = (0,),
    device: Any = None,
    batch_size: int = 64,
    deadline: float = 0.5,
    progress: Progress | None = None,
    stop: Stop | None = None,
) -> Weighing:
    """Apply recipes to a task's network and compare the results with the network as trained.

    Parameters
    ----------
    task : str or Task
    recipes : iterable of Recipe
    seeds : iterable of int
        Each recipe is applied for each seed: with other initial weights and another order of the
        data.
    device : optional
        Where the models are trained and timed; None takes the best there is.
    batch_size, deadline, progress, stop
        As for ``weigh``.

    Returns
    -------
    Weighing
        Its first model is the network as trained.

    Raises
    ------
    InputError
        If there are no recipes or seeds, a seed is invalid, or a recipe does not fit the task.
    StoppedError
        If ``stop`` returned True before there was a model to weigh.
    """
    job = training.task(task)
    wanted = [Recipe(), *_validate.items("diet", "recipes", recipes)]
    wrong = [each for each in wanted if not isinstance(each, Recipe)]
    if wrong or len(wanted) < 2:
        raise InputError(
            f"diet: {f'{shown(wrong[0])} is not a Recipe' if wrong else 'there are no recipes'}; "
            "expected at least one. Pass for example [compression.Recipe(zeros=0.9)]."
        )
    numbers = [check_seed("diet", seed) for seed in _validate.items("diet", "seeds", seeds)]
    if not numbers:
        raise InputError("diet: there are no seeds; expected at least one. Pass seeds=(0, 1, 2).")
    # one that is there twice is no second seed
    wanted = list({each.label: each for each in wanted}.values())
    report, asked = (
        _validate.callback("diet", "progress", progress) or (lambda fraction, text: None),
        _validate.callback("diet", "stop", stop) or (lambda: False),
    )
    models: dict[str, list[Any]] = {}
    steps = len(wanted) * len(numbers)
    for number, (recipe, seed) in enumerate(
        (recipe, seed) for recipe in wanted for seed in numbers
    ):
        said = f"{recipe.label}, seed {seed}"
        models.setdefault(recipe.label, []).append(
            cook(
                recipe,
                job,
                seed,
                device=device,
                stop=asked,
                progress=part(report, 0.7 * number / steps, 0.7 * (number + 1) / steps, said),
            )
        )
    return weigh(
        models,
        job,
        device=device,
        batch_size=batch_size,
        deadline=deadline,
        progress=part(report, 0.7, 1.0, ""),
        stop=asked,
    )


def cook(
    recipe: Recipe,
    task: Any,
    seed: int = 0,
    *,
    device: Any = None,
    progress: Progress | None = None,
    stop: Stop | None = None,
) -> Any:
    """Train a task's network and apply the recipe.

    Parameters
    ----------
    recipe : Recipe
    task : str or Task
    seed : int
    device, progress, stop : optional
        As for ``training.fit``.

    Returns
    -------
    torch.nn.Module
        Ready to be weighed, or to be worked on.

    Raises
    ------
    InputError
        If the seed is invalid, or the recipe does not fit the task: a network for images with text,
        or no channel that can be removed.
    StoppedError
        If ``stop`` returned True before the end.
    """
    job, seed, where = training.task(task), check_seed("cook", seed), devices.find(device)
    report, asked = progress or (lambda fraction, text: None), stop or (lambda: False)

    def tune(model: Any, what: str) -> Any:
        if recipe.fine_tune:
            epochs = max(1, round(recipe.fine_tune * job.epochs))
            told: Progress = lambda f, _: report(f, f"fine-tuning {what}")  # noqa: E731
            _train(job, model, seed, where, asked, told, epochs=epochs)
        return model

    with backend_switches.threads(1, where):
        model = _trained(job, recipe.network, seed, where, report, asked)
        if recipe.channels:
            model = tune(prune(model, recipe.channels, structured=True), "what channels are left")
        if recipe.zeros:
            model = tune(prune(model, recipe.zeros), "what weights are left")
        if recipe.values:
            model = tune(share_weights(model, recipe.values), "the shared values")
        if recipe.bits != 32:
            model = _quantized(recipe, job, model, tune)
        return to_sparse(model) if recipe.compute == "csr" else model


def _quantized(recipe: Recipe, job: Any, model: Any, tune: Callable[[Any, str], Any]) -> Any:
    scheme: dict[str, Any] = {
        "weights": recipe.weights,
        "activations": recipe.activations,
        "bits": recipe.bits,
    }
    if recipe.bits <= _FEW_BITS and recipe.fine_tune:
        return tune(quantize_aware(model, **scheme), "with rounding")
    if recipe.activations == "static":
        inputs = job.train[slice(0, _CALIBRATION)][0]
        return quantize(model, calibration=inputs.to(next(model.parameters()).device), **scheme)
    return quantize(
        model, arithmetic="integer" if recipe.compute == "integer" else "float", **scheme
    )


_models: OrderedDict[tuple[Any, devices.Device, str, int], Any] = OrderedDict()


def _trained(
    job: Any, network: str, seed: int, device: devices.Device, report: Progress, stop: Stop
) -> Any:
    """Return a copy of the task's trained network; the last few are kept."""
    key = (job, device, network, seed)  # the task itself: another one may have its name
    if key not in _models:
        model = _built(job, network, seed)
        _train(job, model, seed, device, stop, lambda f, _: report(f, "training"))
        _models[key] = model
        if len(_models) > _KEPT_MODELS:
            _models.popitem(last=False)
    _models.move_to_end(key)
    return copy.deepcopy(_models[key])


def _built(job: Any, network: str, seed: int) -> Any:
    if network == "as it is":
        return job.make_model(seed)
    sample = job.test[slice(0, 1)][0]
    if sample.dim() != 4:
        raise InputError(
            f"diet: network={network!r} for {job.name}, whose items are not images; expected 'as "
            "it is'. Leave network out."
        )
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        if network == "resnext":
            return networks.resnext(sample.shape[1], 10, width=24, groups=4)
        return networks.mobilenet(sample.shape[1], 10, width=8)


def _train(
    job: Any,
    model: Any,
    seed: int,
    device: devices.Device,
    stop: Stop,
    report: Progress,
    *,
    epochs: int | None = None,
) -> None:
    result = training.fit(
        job, model=model, device=device, epochs=epochs, seed=seed, progress=report, stop=stop
    )
    if result.ended != "finished":
        raise StoppedError(
            f"diet: training {job.name} ended early ({result.ended}), so there is nothing to "
            "weigh. Run it again."
        )


@dataclass(frozen=True)
class Support(Result):
    """What a device can do.

    Attributes
    ----------
    device : str
    abilities : mapping of str to (bool, str)
        For each form of a lighter model whether it works, and its advantage, or why it cannot run
        and what to use instead.
    evidence : Evidence
        MEASURED: each was tried.
    """

    device: str
    abilities: Mapping[str, tuple[bool, str]]
    evidence: Evidence

    def __getitem__(self, name: str) -> tuple[bool, str]:
        """Return whether the form of that name works, and the sentence about it.

        Raises
        ------
        InputError
            If there is none.
        """
        return self.abilities[_validate.word("Support", "name", name, self.abilities)]

    def __repr__(self) -> str:
        there = ", ".join(name for name, (works, _) in self.abilities.items() if works)
        return f"<{self.device}: {there}>"

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        """Return one row a form."""
        return (self.device, "runs here", ""), [
            (name, "yes" if works else "no", sentence)
            for name, (works, sentence) in self.abilities.items()
        ]


def support(device: Any = None) -> Support:
    """Try each form of a lighter model on a device.

    Parameters
    ----------
    device : optional
        None takes the best there is.

    Raises
    ------
    DeviceError
        If the machine has no such device.
    """
    where = devices.find(device)
    place, bits = str(where), compressed_layers.activation_bits()
    no_pairs = compressed_layers.two_four_refusal(place)
    inputs = (
        "Inputs have 8 bits."
        if bits == 8
        else "Inputs have 7 bits: PyTorch reports no AVX-512 VNNI on this CPU, and without it "
        "16-bit sums of 8-bit inputs would overflow."
    )
    abilities = {
        "zeros in CSR": _tried(
            "Multiplies only what is not zero; pays off when nearly all weights are zero.",
            place,
            lambda model: to_sparse(prune(model, 0.9)),
        ),
        "2:4 zeros": (
            False,
            f"{no_pairs} The zeros still reduce the file to little more than half its size.",
        )
        if no_pairs
        else _tried(
            "Half of the products, in half precision, where the pattern is two zeros in four.",
            place,
            lambda model: to_sparse(prune(model, pattern="2:4"), "2:4"),
            torch.float16,
        ),
        "8-bit weights, float32 arithmetic": _tried(
            "A quarter of the bytes; every call converts the weights to float32.", place, quantize
        ),
    }
    for kind in ("linear layers", "convolutions"):
        refused = compressed_layers.refusal(place, kind == "convolutions")
        sentence = f"{refused[:1].upper()}{refused[1:]}" or f"Integer products. {inputs}"
        abilities[f"8-bit kernels, {kind}"] = not refused, sentence
    for activations, name, good in (
        (None, "torchao, 8-bit weights", "Linear layers; a quarter of the bytes."),
        ("dynamic", "torchao, 8-bit weights and inputs", "Linear layers; integer products."),
    ):
        change = functools.partial(quantize, activations=activations, arithmetic="torchao")
        abilities[name] = _tried(good, place, change)
    return Support(where.name, abilities, Evidence.measured(where.name))


def _tried(
    good: str, place: str, change: Callable[[Any], Any], dtype: torch.dtype = torch.float32
) -> tuple[bool, str]:
    """Try a change of a layer whose sizes suit every kernel, multiples of 32 with more than 16
    rows; return whether it works, and what is good about it or what was refused.
    """
    try:
        model = torch.nn.Sequential(torch.nn.Linear(64, 64)).to(place, dtype)
        with torch.no_grad():  # the sum waits for the device: a kernel that fails does so here
            float(change(model)(torch.ones(32, 64, dtype=dtype, device=place)).float().sum())
    except GpulabError as error:
        return False, message_of(error) + "."
    except Exception as error:  # a library's refusal to run on this device is what is asked for
        return (
            False,
            f"{type(error).__name__}: {message_of(error)}. Use 8-bit weights with float32 "
            "arithmetic.",
        )
    return True, good
