"""The techniques of the speed-up ladder: what each changes, improves, and requires.

Each is a few options of ``training.fit``; nothing is implemented a second time here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gpulab import networks
from gpulab.devices import Device
from gpulab.errors import InputError, shown

# What a beginner's script does: items loaded one by one and copied in the loop, a small batch,
# every loss read, float32, nothing compiled.
START: Mapping[str, Any] = {"batch_size": 16, "loading": "items", "read_loss": True}
_LARGE_BATCH = 64
_AHEAD = 2

Lacks = Callable[[Device], "str | None"]


def _never(device: Device) -> str | None:
    """Return None: every device has it."""
    return None


@dataclass(frozen=True)
class Technique:
    """One rung: options of ``fit`` that replace those of the beginner's script.

    Attributes
    ----------
    name, title : str
        The short word, and what tables call it.
    mends : str
        The part of a step that it improves.
    options : mapping
        Of ``training.fit``.
    model : callable, optional
        ``model() -> torch.nn.Module``: another model in place of the task's own.
    lacks : callable
        ``lacks(device)``: why a device does not support it, or None if it does.
    """

    name: str
    title: str
    mends: str = "the step"
    options: Mapping[str, Any] = field(default_factory=dict)
    model: Callable[[], Any] | None = None
    lacks: Lacks = _never

    def __post_init__(self) -> None:
        for name, value in (("name", self.name), ("title", self.title), ("mends", self.mends)):
            if not isinstance(value, str) or not value:
                raise InputError(
                    f"Technique: {name} is {shown(value)}; expected a few words. Pass a text."
                )
        if not isinstance(self.options, Mapping) or not (
            self.model is None or callable(self.model)
        ):
            raise InputError(
                f"Technique {self.name}: expected options of fit by name, and a function that "
                "makes a model or None."
            )


def _on_cuda(what: str) -> Lacks:
    return lambda device: None if device.kind == "cuda" else f"{what}; this is {device.name}."


def _tf32(device: Device) -> str | None:
    return (
        None
        if device.has_tf32
        else "TF32 is a number format of NVIDIA GPUs from compute capability 8.0; this is "
        f"{device.name}."
    )


def _ranks(device: Device) -> str | None:
    more = "Ranks on one CPU share its cores" if device.is_cpu else "This loop trains on one device"
    return f"{more}: notebook 08 and gl.parallel.scaling measure several."


def _lighter() -> Any:
    return networks.mobilenet(width=16)


_ALL = (
    Technique("resident", "data on the device", "loading", {"loading": "resident"}),
    Technique("prefetch", "pinned prefetch", "loading", {"prefetch": _AHEAD, "pinned": True}),
    Technique("batch", "larger batch", "starting operators", {"batch_size": _LARGE_BATCH}),
    Technique("waits", "fewer waits", "waiting", {"read_loss": False}),
    Technique("tf32", "TF32", "arithmetic", {"precision": "tf32"}, lacks=_tf32),
    Technique("mixed", "mixed precision (bfloat16)", "arithmetic", {"precision": "bfloat16"}),
    Technique("layout", "channels last", "memory", {"channels_last": True}),
    Technique(
        "autotune",
        "cuDNN autotune",
        "arithmetic",
        {"autotune": True},
        lacks=_on_cuda("cuDNN runs on NVIDIA GPUs"),
    ),
    Technique("fused", "fused optimizer", "starting operators", {"fused": True}),
    Technique("compile", "torch.compile", "starting operators", {"compile": True}),
    Technique(
        "graph",
        "CUDA graph",
        "starting operators",
        {"cuda_graph": True},
        lacks=_on_cuda("CUDA graphs need an NVIDIA GPU"),
    ),
    Technique("lighter", "depthwise layers", "arithmetic", model=_lighter),
    Technique("ranks", "parallel ranks", "the whole step", lacks=_ranks),
)


def techniques(*names: str) -> tuple[Technique, ...]:
    """Return the course's techniques, all of them in the ladder's order or those named in the order
    given.

    Raises
    ------
    InputError
        If one has no such name.

    Examples
    --------
    >>> [technique.title for technique in techniques("batch", "fused")]
    ['larger batch', 'fused optimizer']
    """
    known = {technique.name: technique for technique in _ALL}
    wrong = [name for name in names if not isinstance(name, str) or name not in known]
    if wrong:
        raise InputError(
            f"techniques: there is no {shown(wrong[0])}; expected some of: {', '.join(known)}. "
            "Pass these names."
        )
    return tuple(known[name] for name in names) if names else _ALL
