"""Gradients and the range of a format: the magnitudes of a model's gradients in one backward pass
in float32, and the shares of them that become zero, lose digits or overflow at a scale of the loss.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch

from gpulab import _validate, devices
from gpulab.errors import InputError
from gpulab.evidence import Evidence
from gpulab.memory import training_step
from gpulab.precision._formats import Format, as_float64, find
from gpulab.recordings.schema import thin
from gpulab.results import Result, Table
from gpulab.units import plural

# The most magnitudes kept of each kind, from evenly spaced places in the sorted list, with its two
# ends: enough to resolve a share of 0.001 %, and few enough for a file.
MOST_KEPT = 2**17
KINDS = ("parameters", "activations")


@dataclass(frozen=True, eq=False)
class Magnitudes(Result):
    """The sizes of one kind of gradients.

    Attributes
    ----------
    kind : str
        "parameters" (gradients that the optimizer uses), "activations" (gradients that pass
        backward between layers), or "given".
    count : int
        The number of all values.
    zeros, not_finite : int
        The number of values that are exactly zero, and of those that are infinite or nan.
    sorted_magnitudes : ndarray
        Magnitudes of the other values, ascending. If there are more than 2**17, only 2**17 from
        evenly spaced places in the sorted list are kept.
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
        zeros, not_finite = int((every == 0).sum()), int((~np.isfinite(every)).sum())
        return cls(kind, every.size, zeros, not_finite, thin(finite, MOST_KEPT))


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

    rows_from = "kinds"
    columns: ClassVar = {
        "gradients of": lambda one: one.kind,
        "how many": lambda one: f"{one.count:,}",
        "exactly zero": lambda one: share(one.zeros / max(one.count, 1)),
        "smallest": lambda one: _number(one.smallest),
        "median": lambda one: _number(one.median),
        "largest": lambda one: _number(one.largest),
    }

    def kind(self, name: str) -> Magnitudes:
        """Return one kind, or "all".

        Raises
        ------
        InputError
            If there is no such kind.
        """
        known = {"all": self.all} | {each.kind: each for each in self.kinds}
        return known[_validate.word("Gradients.kind", "kind", name, known)]

    @property
    def all(self) -> Magnitudes:
        """All kinds together."""
        kept = [each.sorted_magnitudes for each in self.kinds]
        # If kinds were thinned by different factors, a kept value of one kind stands for more
        # values than one of another. So all are thinned by the largest of these factors.
        weights = [
            each.finite / len(values) if len(values) else 1.0
            for each, values in zip(self.kinds, kept, strict=True)
        ]
        most = max(weights, default=1.0)
        thinned = [
            thin(values, max(2, round(len(values) * weight / most)))
            for values, weight in zip(kept, weights, strict=True)
        ]
        joined = np.sort(np.concatenate(thinned)) if thinned else np.zeros(0)
        count, zeros, not_finite = (
            sum(getattr(each, name) for each in self.kinds)
            for name in ("count", "zeros", "not_finite")
        )
        return Magnitudes("all", count, zeros, not_finite, joined)

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


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.2g}"


@_validate.arguments(
    model=partial(
        _validate.instance,
        kind=torch.nn.Module,
        expected="a torch.nn.Module. Pass the model, then its inputs.",
    )
)
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
        Of the parameters, and of the outputs of the layers (the activations).

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
    try:
        where = devices.find(next(model.parameters()).device)
    except StopIteration:
        raise InputError(
            "gradients: the model has no parameters; expected at least one. Pass a model with "
            "parameters."
        ) from None
    with training_step.undisturbed(where.torch_type):
        ours = copy.deepcopy(model).float()
        moved = tuple(
            x.float() if isinstance(x, torch.Tensor) and x.is_floating_point() else x
            for x in inputs
        )
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
    kinds = tuple(Magnitudes.of(kind, found[kind]) for kind in KINDS if found[kind])
    return Gradients(type(model).__name__, kinds, Evidence.measured(where.name, samples=1))


def _backward(model: Any, step: Any) -> dict[str, list[np.ndarray]]:
    found: dict[str, list[np.ndarray]] = {kind: [] for kind in KINDS}
    hooks: dict[Any, Any] = {}

    def keep(gradient: Any) -> None:
        found["activations"].append(_in_numpy(gradient))

    # A layer that returns its input (dropout at a rate of 0) or a view of it (flattening) makes no
    # gradients of its own. One that changes its input in place makes some, with another grad_fn.
    def watch(module: Any, args: Any, output: Any) -> None:
        given = {
            id(base) for x in args for base in (x, getattr(x, "_base", None)) if base is not None
        }
        for each in output if isinstance(output, (tuple, list)) else (output,):
            tensor: Any = each
            is_tensor = isinstance(tensor, torch.Tensor) and tensor.requires_grad
            if is_tensor and (id(tensor) in given or id(tensor._base) not in given):
                source = tensor.grad_fn, tensor.output_nr
                hooks[source] = hooks.get(source) or tensor.register_hook(keep)

    for module in [each for each in model.modules() if not list(each.children())]:
        module.register_forward_hook(watch)  # on the copy, which is used only here
    value = step._guard("forward", step._forward)
    trained = [p for p in model.parameters() if p.requires_grad]
    gradient = step._guard(
        "backward", lambda: torch.autograd.grad(value, trained, allow_unused=True)
    )
    found["parameters"] = [_in_numpy(each) for each in gradient if each is not None]
    return found


def _in_numpy(gradient: Any) -> np.ndarray:
    """Return a gradient as a dense float64 array. It is converted on the host, because Apple's GPUs
    have no float64; that of an embedding may be sparse.
    """
    dense = gradient.detach().to_dense() if gradient.is_sparse else gradient.detach()
    return np.asarray(dense.cpu().double().numpy())


# the powers of two that float32 holds as normal numbers
_SCALES = [math.ldexp(1.0, power) for power in range(-126, 128)]
_GIVEN = Evidence.modelled(
    "all gradients are in the array that was passed",
    "the format's rounding, computed exactly",
    "none: exact arithmetic",
)


@dataclass(frozen=True)
class GradientWindow(Result):
    """The effect of one format on gradients at one scale of the loss.

    Shares refer to the gradients that are not zero, infinite or nan.

    Attributes
    ----------
    label, which : str
        The model, and which of its gradients.
    format : Format
    scale : float
        The factor by which the loss, and with it every gradient, is multiplied.
    count, zeros, not_finite : int
        The number of all gradients, of those that were zero before, and of those that were not
        finite.
    vanishing_share : float
        The share that becomes zero.
    subnormal_share : float
        The share below the smallest normal number: kept, with fewer digits.
    overflowing_share : float
        The share that goes beyond the largest number.
    exponents, counts : tuple of int
        The histogram before scaling: how many (of those kept in the result) lie between 2**exponent
        and the next power of two.
    largest : float
        The largest magnitude, before scaling.
    lowest_scale : float or None
        The smallest power of two at which at most ``tolerance`` of the gradients vanish; None where
        there is none.
    highest_scale : float or None
        The largest power of two at which none overflows.
    tolerance : float
    evidence : Evidence
    """

    label: str
    which: str
    format: Format
    scale: float
    count: int
    zeros: int
    not_finite: int
    vanishing_share: float
    subnormal_share: float
    overflowing_share: float
    exponents: tuple[int, ...]
    counts: tuple[int, ...]
    largest: float
    lowest_scale: float | None
    highest_scale: float | None
    tolerance: float
    evidence: Evidence

    @property
    def _scales(self) -> tuple[float, float] | None:
        low, high = self.lowest_scale, self.highest_scale
        return None if self.not_finite or low is None or high is None or low > high else (low, high)

    @property
    def explanation(self) -> str:
        """What happens at this scale, and which scales are safe."""
        name = self.format.name
        broken = (
            f"{self.not_finite:,} of {self.count:,} gradients are infinite or nan already, which "
            "no scale can fix."
        )
        if self.zeros + self.not_finite == self.count:
            return (
                broken
                if self.not_finite
                else "Every gradient is exactly zero, so there is nothing to scale."
            )
        parts = [broken] if self.not_finite else []
        parts.append(f"At scale {plain(self.scale)} in {name}:")
        lost = [
            (self.vanishing_share, "become zero"),
            (self.subnormal_share, "lose digits (subnormal)"),
            (
                self.overflowing_share,
                self.format.overflow_words.replace("becomes", "become").replace("stays", "stay"),
            ),
        ]
        fates = [f"{share(value)} {words}" for value, words in lost if value > 0]
        parts.append(
            f"{', '.join(fates)}." if fates else "every nonzero gradient is a normal number."
        )
        if self.not_finite:
            return " ".join(parts)
        parts.append(
            f"Safe scales are the powers of two from {' to '.join(map(plain, self._scales))}."
            if self._scales is not None
            else "No scale that float32 holds is safe: the gradients are too small or too large."
            if None in (self.lowest_scale, self.highest_scale)
            else f"No scale is safe: the gradients spread over more powers of two than {name} has."
        )
        return " ".join(parts)

    def __repr__(self) -> str:
        return f"<{self.which} gradients of {self.label} in {self.format.name}: {self.explanation}>"

    def table(self) -> Table:
        """Return one row for each fate of a gradient, and the safe scales."""
        beyond = self.format.overflow_words
        # without a nonzero gradient every share is 0, this one too
        normal = float(self.largest > 0) - (
            self.vanishing_share + self.subnormal_share + self.overflowing_share
        )
        rows = [
            (
                "zero in the format",
                share(self.vanishing_share),
                f"at most {self.format.smallest_subnormal / 2 / self.scale:.2g}",
            ),
            (
                "subnormal",
                share(self.subnormal_share),
                f"below {self.format.smallest_normal / self.scale:.2g}",
            ),
            ("normal", share(max(0.0, normal)), ""),
            (
                f"beyond the largest ({beyond})",
                share(self.overflowing_share),
                f"over {self.format.overflow_threshold / self.scale:.2g}",
            ),
            (
                "safe scales",
                "none" if self._scales is None else " to ".join(map(plain, self._scales)),
                f"at most {share(self.tolerance)} become zero, none overflows",
            ),
        ]
        return ("gradients that are", "share of nonzero", "size before scaling"), rows


def plain(scale: float) -> str:
    """Return a scale as text: as a power of two if it is one below 1 or from 2**20 on, else a
    number.
    """
    mantissa, exponent = math.frexp(scale)
    if mantissa == 0.5 and not 1 <= scale < 2**20:
        return f"2^{exponent - 1}"
    return f"{scale:,.0f}" if scale >= 10 and float(scale).is_integer() else f"{scale:g}"


def share(value: float) -> str:
    """Return a share as a percentage that is 0 or 100 only where it is exactly so."""
    if value in (0.0, 1.0):
        return f"{value:.0%}"
    if value < 5e-5:
        return "under 0.01%"
    return "over 99.99%" if value >= 0.99995 else f"{value:.2%}"


@_validate.arguments(
    scale=partial(_validate.positive, advice="Pass for example 1024."),
    tolerance=partial(_validate.within, low=0, high=1),
)
def gradient_window(
    gradients: Any,
    format: str | Format = "float16",
    scale: float = 1.0,
    *,
    which: str = "all",
    tolerance: float = 0.01,
) -> GradientWindow:
    """Return the effect of a format on gradients when the loss is multiplied by ``scale``.

    Parameters
    ----------
    gradients : Gradients or array_like
        From ``gradients``, or numbers: an array, a tensor, or a list of them.
    format : str or Format
        A float format.
    scale : float
        Positive. Powers of two shift the exponents and change no digit.
    which : str
        "all", "parameters" or "activations", if ``gradients`` is a ``Gradients``.
    tolerance : float
        The share that may vanish at a scale that counts as safe, 0 to 1.

    Returns
    -------
    GradientWindow

    Raises
    ------
    InputError
        If there are no gradients, the format is not a float format, or the scale or tolerance is
        out of range.

    Notes
    -----
    A gradient becomes zero where its magnitude times the scale is at most half of the smallest
    number (the tie goes to zero). Source: Micikevicius et al., Mixed Precision Training (2018),
    section 3.2, figure 3.

    Examples
    --------
    >>> w = gradient_window([1e-8, 1e-6, 1e-3, 1.0], "float16")
    >>> w.vanishing_share, w.subnormal_share, w.overflowing_share
    (0.25, 0.25, 0.0)
    >>> w.lowest_scale, w.highest_scale
    (4.0, 32768.0)
    """
    one = find("gradient_window", format)
    if one.kind != "float":
        raise InputError(
            f"gradient_window: {one.name} is not a floating-point format; expected one such as "
            "float16. Pass one: values in int8 have a separate scale."
        )
    if isinstance(gradients, Gradients):
        sizes, evidence, label = gradients.kind(which), gradients.evidence, gradients.label
    else:
        is_several = isinstance(gradients, (list, tuple)) and any(map(np.ndim, gradients))
        arrays = gradients if is_several else [gradients]
        numbers = (as_float64("gradient_window", each) for each in arrays)
        sizes, evidence, label = Magnitudes.of("given", numbers), _GIVEN, "an array"
        if not sizes.count:
            raise InputError(
                "gradient_window: got no gradients; expected at least one. Pass a tensor, an "
                "array, or the result of gradients()."
            )
    kept = sizes.sorted_magnitudes
    exponents, counts = histogram(kept)
    vanishing, subnormal, overflowing = shares(kept, one, scale)
    low, high = safe_scales(kept, one, tolerance)
    return GradientWindow(
        label=label,
        which=sizes.kind,
        format=one,
        scale=scale,
        count=sizes.count,
        zeros=sizes.zeros,
        not_finite=sizes.not_finite,
        vanishing_share=vanishing,
        subnormal_share=subnormal,
        overflowing_share=overflowing,
        exponents=exponents,
        counts=counts,
        largest=sizes.largest or 0.0,
        lowest_scale=low,
        highest_scale=high,
        tolerance=tolerance,
        evidence=evidence,
    )


def histogram(kept: np.ndarray) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the powers of two from the smallest magnitude's to the largest's, and how many
    magnitudes begin with each.
    """
    if not kept.size:
        return (), ()
    low, high = (math.frexp(end)[1] - 1 for end in (kept[0], kept[-1]))
    edges = np.searchsorted(kept, np.ldexp(1.0, np.arange(low, high + 2)), side="left")
    edges[-1] = kept.size  # 2**(high + 1) may be infinite
    return tuple(range(low, high + 1)), tuple(np.diff(edges).tolist())


def shares(kept: np.ndarray, one: Format, scale: float) -> tuple[float, float, float]:
    """Return the shares of sorted magnitudes that vanish, become subnormal and overflow at a
    scale.
    """
    if not kept.size:
        return 0.0, 0.0, 0.0
    with np.errstate(over="ignore", under="ignore"):
        scaled = kept * scale
    gone = int(np.searchsorted(scaled, one.smallest_subnormal / 2, side="right"))
    # The midpoint below the smallest normal number rounds up to it, which is even.
    small = int(
        np.searchsorted(scaled, one.smallest_normal - one.smallest_subnormal / 2, side="left")
    )
    beyond = kept.size - int(np.searchsorted(scaled, _overflows_from(one), side="left"))
    return gone / kept.size, max(0, small - gone) / kept.size, beyond / kept.size


def safe_scales(
    kept: np.ndarray, one: Format, tolerance: float
) -> tuple[float | None, float | None]:
    """Return the smallest power of two at which at most ``tolerance`` vanishes, and the largest at
    which nothing overflows.
    """
    if not kept.size:
        return _SCALES[0], _SCALES[-1]
    # the smallest gradient that must not vanish decides, and the largest one
    first = math.floor(tolerance * kept.size)
    least, top = float(kept[first]) if first < kept.size else math.inf, float(kept[-1])
    half, end = one.smallest_subnormal / 2, _overflows_from(one)
    low = next((scale for scale in _SCALES if least * scale > half), None)
    high = next((scale for scale in reversed(_SCALES) if top * scale < end), None)
    return low, high


def _overflows_from(one: Format) -> float:
    """Return the smallest number that goes beyond the format's largest."""
    middle = one.overflow_threshold
    return middle if one.overflows_at_threshold else math.nextafter(middle, math.inf)
