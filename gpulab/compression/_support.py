"""What a device can do with a lighter model: try each form on a small layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from gpulab import _given, devices
from gpulab.compression import integer_layers, sparse_layers
from gpulab.compression._prune import prune
from gpulab.compression._quantize import quantize
from gpulab.compression.sparse_layers import to_sparse
from gpulab.errors import GpulabError, message_of
from gpulab.evidence import Evidence
from gpulab.results import Result


@dataclass(frozen=True)
class Ability(Result):
    """One form of a lighter model on one device.

    Attributes
    ----------
    name : str
    works : bool
    sentence : str
        Its advantage, or why it cannot run and what to use instead.
    """

    name: str
    works: bool
    sentence: str


@dataclass(frozen=True)
class Support(Result):
    """What a device can do.

    Attributes
    ----------
    device : str
    abilities : tuple of Ability
    evidence : Evidence
        MEASURED: each was tried.
    """

    device: str
    abilities: tuple[Ability, ...]
    evidence: Evidence

    def __getitem__(self, name: str) -> Ability:
        """Return the ability of that name.

        Raises
        ------
        InputError
            If there is none.
        """
        names = [each.name for each in self.abilities]
        return self.abilities[names.index(_given.word("Support", "name", name, names))]

    def __repr__(self) -> str:
        return f"<{self.device}: {', '.join(each.name for each in self.abilities if each.works)}>"

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        """Return one row a form."""
        return (self.device, "runs here", ""), [
            (each.name, "yes" if each.works else "no", each.sentence) for each in self.abilities
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
    where = devices.find(device) if device is not None else devices.default()
    place = str(where)
    abilities = (
        _tried(
            "zeros in CSR",
            "Multiplies only what is not zero; pays off when nearly all weights are zero.",
            place,
            lambda model: to_sparse(prune(model, 0.9)),
        ),
        _two_four(place),
        _tried(
            "8-bit weights, float32 arithmetic",
            "A quarter of the bytes; every call converts the weights to float32.",
            place,
            quantize,
        ),
        _integers(place, False),
        _integers(place, True),
        _tried(
            "torchao, 8-bit weights",
            "Linear layers; a quarter of the bytes.",
            place,
            lambda model: _torchao(model, None),
        ),
        _tried(
            "torchao, 8-bit weights and inputs",
            "Linear layers; integer products.",
            place,
            lambda model: _torchao(model, "dynamic"),
        ),
    )
    return Support(where.name, abilities, Evidence.measured(where.name))


def _tried(
    name: str, good: str, place: str, change: Callable[[Any], Any], dtype: str = "float32"
) -> Ability:
    """Try a change of a layer whose sizes suit every kernel: multiples of 32 with more than 16
    rows.
    """
    import torch

    try:
        model = torch.nn.Sequential(torch.nn.Linear(64, 64)).to(place, getattr(torch, dtype))
        with torch.no_grad():  # the sum waits for the device: a kernel that fails does so here
            float(
                change(model)(torch.ones(32, 64, dtype=getattr(torch, dtype), device=place))
                .float()
                .sum()
            )
    except GpulabError as error:
        return Ability(name, False, message_of(error) + ".")
    except Exception as error:  # a library's refusal to run on this device is what is asked for
        return Ability(
            name,
            False,
            f"{type(error).__name__}: {message_of(error)}. Use 8-bit weights with float32 "
            "arithmetic.",
        )
    return Ability(name, True, good)


def _torchao(model: Any, activations: str | None) -> Any:
    return quantize(model, "per-channel", activations, arithmetic="torchao")


def _two_four(place: str) -> Ability:
    name = "2:4 zeros"
    refused = sparse_layers.two_four_refusal(place)
    if refused:
        return Ability(
            name,
            False,
            f"{refused} The zeros still reduce the file to little more than half its size.",
        )
    good = "Half of the products, in half precision, where the pattern is two zeros in four."

    return _tried(
        name, good, place, lambda model: to_sparse(prune(model, pattern="2:4"), "2:4"), "float16"
    )


def _integers(place: str, convolution: bool) -> Ability:
    name = f"8-bit kernels, {'convolutions' if convolution else 'linear layers'}"
    refused = integer_layers.refusal(place, convolution)
    if refused:
        return Ability(name, False, f"{refused[0].upper()}{refused[1:]}")
    bits = integer_layers.activation_bits()
    exact = (
        "Inputs have 8 bits."
        if bits == 8
        else (
            "Inputs have 7 bits: PyTorch reports no AVX-512 VNNI on this CPU, and without it "
            "16-bit sums of 8-bit inputs would overflow."
        )
    )
    return Ability(name, True, f"Integer products. {exact}")
