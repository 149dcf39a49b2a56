"""The magnitudes of a model's gradients, as one backward pass in float32 makes them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpulab import _given, devices
from gpulab.errors import InputError, shown
from gpulab.evidence import Evidence
from gpulab.precision._rounding import as_float64
from gpulab.results import Result
from gpulab.units import plural

# So many magnitudes are kept of each kind, as evenly spaced places in the sorted list, the two ends
# among them: enough for a share of 0.001 %, and a result that still fits into a file.
MOST_KEPT = 2**17
KINDS = ("parameters", "activations")


@dataclass(frozen=True)
class Magnitudes(Result):
    """The sizes of one kind of gradients.

    Attributes
    ----------
    kind : str
        "parameters" (what the optimizer gets), "activations" (what travels backward between
        layers), or "given".
    count : int
        All of them.
    zeros, not_finite : int
        The number of values that are exactly zero, and of those that are infinite or nan.
    sorted_magnitudes : ndarray
        Of the others, ascending; at most 2**17, evenly spaced places of the sorted list where there
        were more.
    """

    kind: str
    count: int
    zeros: int
    not_finite: int
    sorted_magnitudes: np.ndarray

    @property
    def finite(self) -> int:
        """The number of values that are not zero, infinite or nan."""
        return self.count - self.zeros - self.not_finite

    @property
    def smallest(self) -> float | None:
        """The smallest magnitude that is not zero."""
        return float(self.sorted_magnitudes[0]) if self.sorted_magnitudes.size else None

    @property
    def largest(self) -> float | None:
        """The largest finite magnitude."""
        return float(self.sorted_magnitudes[-1]) if self.sorted_magnitudes.size else None

    @property
    def median(self) -> float | None:
        """The middle magnitude of those that are not zero."""
        return float(np.median(self.sorted_magnitudes)) if self.sorted_magnitudes.size else None

    def __repr__(self) -> str:
        return (
            f"<{plural(self.count, 'gradient')} of {self.kind}, from {_number(self.smallest)} to "
            f"{_number(self.largest)}>"
        )

    @classmethod
    def of(cls, kind: str, arrays: Iterable[np.ndarray]) -> Magnitudes:
        """Return the magnitudes of some arrays."""
        flat = [np.abs(np.asarray(each, dtype=np.float64)).ravel() for each in arrays]
        every = np.concatenate(flat) if flat else np.zeros(0)
        finite = np.sort(every[np.isfinite(every) & (every > 0)])
        if finite.size > MOST_KEPT:
            finite = finite[np.linspace(0, finite.size - 1, MOST_KEPT).round().astype(np.int64)]
        return cls(
            kind, every.size, int((every == 0).sum()), int((~np.isfinite(every)).sum()), finite
        )


@dataclass(frozen=True)
class Gradients(Result):
    """The gradients of one step.

    Attributes
    ----------
    label : str
    kinds : tuple of Magnitudes
    evidence : Evidence
        MEASURED on the device where the backward pass ran.
    """

    label: str
    kinds: tuple[Magnitudes, ...]
    evidence: Evidence

    def kind(self, name: str) -> Magnitudes:
        """Return one kind.

        Raises
        ------
        InputError
            If it is not among these.
        """
        known = {each.kind: each for each in self.kinds}
        return known[_given.word("Gradients.kind", "kind", name, known)]

    @property
    def all(self) -> Magnitudes:
        """All kinds together."""
        kept = [each.sorted_magnitudes for each in self.kinds]
        # Where kinds were thinned by different factors, each kept value of one stands for more than
        # one of another.
        weights = [
            each.finite / len(values) if len(values) else 1.0
            for each, values in zip(self.kinds, kept, strict=True)
        ]
        most = max(weights, default=1.0)
        thinned = [
            _thin(values, weight / most) for values, weight in zip(kept, weights, strict=True)
        ]
        joined = np.sort(np.concatenate(thinned)) if thinned else np.zeros(0)
        count, zeros = (
            sum(each.count for each in self.kinds),
            sum(each.zeros for each in self.kinds),
        )
        return Magnitudes("all", count, zeros, sum(each.not_finite for each in self.kinds), joined)

    def __repr__(self) -> str:
        words = [
            f"{each.finite:,} of {each.kind} from {_number(each.smallest)} to "
            f"{_number(each.largest)}"
            for each in self.kinds
        ]
        broken = sum(each.not_finite for each in self.kinds)
        return (
            f"<gradients of {self.label}: "
            f"{'; '.join(words)}{f'; {broken:,} infinite or nan' if broken else ''}>"
        )

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        """Return one row a kind."""
        rows = [
            (
                k.kind,
                f"{k.count:,}",
                f"{k.zeros / max(k.count, 1):.1%}",
                _number(k.smallest),
                _number(k.median),
                _number(k.largest),
            )
            for k in self.kinds
        ]
        if any(k.not_finite for k in self.kinds):
            rows += [
                (f"{k.kind}, infinite or nan", f"{k.not_finite:,}", "", "", "", "")
                for k in self.kinds
            ]
        return ("gradients of", "how many", "exactly zero", "smallest", "median", "largest"), rows


def _thin(values: np.ndarray, share: float) -> np.ndarray:
    if share >= 1 or values.size < 3:
        return values
    return values[
        np.linspace(0, values.size - 1, max(2, round(values.size * share))).round().astype(np.int64)
    ]


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.2g}"


def gradients(
    model: Any, *inputs: Any, loss: Callable[..., Any] | None = None, targets: Any = None
) -> Gradients:
    """Return the magnitudes of a model's gradients: one forward and backward pass in float32 on a
    copy of it.

    Parameters
    ----------
    model : torch.nn.Module
        Not changed, and neither are its gradients, its buffers and the random generators.
    *inputs : tensors
        What the model takes, on its device.
    loss : callable, optional
        ``loss(output)`` or, with targets, ``loss(output, targets)``. None means that the model
        returns the loss.
    targets : optional

    Returns
    -------
    Gradients
        Of the parameters, and of the outputs of the layers (the activations), through which the
        backward pass goes.

    Raises
    ------
    InputError
        If the step raises, or has no gradients.

    Examples
    --------
    >>> import torch
    >>> g = gradients(torch.nn.Linear(3, 1, bias=False), torch.tensor([[1.0, 2.0, 4.0]]),
    ...     loss=torch.sum)
    >>> g.kind("parameters").smallest, g.kind("parameters").largest, g.kind("activations").count
    (1.0, 4.0, 1)
    """
    import copy

    import torch

    from gpulab.memory import training_step

    if not isinstance(model, torch.nn.Module):
        raise InputError(
            f"gradients: got {shown(model)}; expected a torch.nn.Module. Pass the model, then its "
            "inputs."
        )
    try:
        with torch.random.fork_rng(devices=_generators(model)):
            ours = copy.deepcopy(model).float()
            moved = tuple(
                x.float() if isinstance(x, torch.Tensor) and x.is_floating_point() else x
                for x in inputs
            )
            where = devices.find(next(iter(ours.parameters())).device)
            step = training_step.Step(
                "gradients",
                ours,
                inputs=moved,
                targets=targets,
                loss=loss,
                precision="float32",
                device=where.torch_type,
            )
            found = _backward(ours, step)
    except StopIteration:
        raise InputError(
            "gradients: the model has no parameters; expected at least one. Pass a model with "
            "parameters."
        ) from None
    kinds = tuple(Magnitudes.of(kind, found[kind]) for kind in KINDS if found[kind])
    return Gradients(type(model).__name__, kinds, Evidence.measured(where.name, samples=1))


def _generators(model: Any) -> list[int]:
    """The CUDA devices whose random state a forward pass of the model can move."""
    return sorted({p.device.index or 0 for p in model.parameters() if p.device.type == "cuda"})


def _backward(model: Any, step: Any) -> dict[str, list[np.ndarray]]:
    import torch

    found: dict[str, list[np.ndarray]] = {kind: [] for kind in KINDS}

    def keep(gradient: Any) -> None:
        found["activations"].append(_in_numpy(gradient))

    def watch(module: Any, args: Any, output: Any) -> None:
        for each in output if isinstance(output, (tuple, list)) else (output,):
            if isinstance(each, torch.Tensor) and each.requires_grad:
                tensor: Any = each
                tensor.register_hook(keep)

    leaves = [module for module in model.modules() if not list(module.children())]
    for module in leaves:
        module.register_forward_hook(watch)  # on the copy, which nobody else sees
    with torch.enable_grad():
        value = step._guard("forward", step._forward)
        trained = [p for p in model.parameters() if p.requires_grad]
        gradient = step._guard(
            "backward", lambda: torch.autograd.grad(value, trained, allow_unused=True)
        )
    found["parameters"] = [_in_numpy(each) for each in gradient if each is not None]
    return found


def _in_numpy(gradient: Any) -> np.ndarray:
    """Return a gradient in float64: of an embedding it may be sparse, and Apple's GPUs have no
    float64.
    """
    dense = gradient.detach().to_dense() if gradient.is_sparse else gradient.detach()
    found: np.ndarray = dense.cpu().double().numpy()
    return found


def magnitudes_of(
    function: str, source: Any, which: str
) -> tuple[Magnitudes, Evidence | None, str]:
    """Return the magnitudes that a window is laid over, where they are from, and a label."""
    if isinstance(source, Gradients):
        known = ["all", *(each.kind for each in source.kinds)]
        name = _given.word(function, "which", which, known)
        return (source.all if name == "all" else source.kind(name)), source.evidence, source.label
    if isinstance(source, Magnitudes):
        return source, None, source.kind
    if isinstance(source, dict):
        source = list(source.values())
    arrays = (
        source
        if isinstance(source, (list, tuple)) and any(np.ndim(each) for each in source)
        else [source]
    )
    found = Magnitudes.of("given", (as_float64(function, each) for each in arrays))
    if not found.count:
        raise InputError(
            f"{function}: got no gradients; expected at least one. Pass a tensor, an array, or "
            "what gradients() returned."
        )
    return found, None, "given"


def exponent_of(value: float) -> int:
    """Return the power of two that a positive number begins with."""
    return math.frexp(value)[1] - 1
