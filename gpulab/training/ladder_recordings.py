"""The techniques of the speed-up ladder: what each changes, improves and requires, and what was
recorded of it.

Each is a few options of ``training.fit``; nothing is implemented a second time here. The recorded
gains are those of a recorded ladder if there is one, else of single steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpulab import claims, networks, recordings
from gpulab.devices import Device
from gpulab.errors import InputError, shown
from gpulab.evidence import Evidence
from gpulab.recordings import Entry, Recording
from gpulab.recordings.schema import require_recordings
from gpulab.results import Result
from gpulab.training.run_results import Gain
from gpulab.units import format_ratio

# What a beginner's script does: items loaded one by one and copied in the loop, a small batch,
# every loss read, float32, nothing compiled.
START: Mapping[str, Any] = {"batch_size": 16, "loading": "items", "read_loss": True}
_LARGE_BATCH = 64
_AHEAD = 2
_TF32 = "TF32 is a number format of NVIDIA GPUs from compute capability 8.0"

Lacks = Callable[[Device], "str | None"]


@dataclass(frozen=True)
class Technique:
    """One rung: options of ``fit`` that replace those of the beginner's script.

    Attributes
    ----------
    name, title : str
        The short word, and what tables call it.
    improves : str
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
    improves: str = "the step"
    options: Mapping[str, Any] = field(default_factory=dict)
    model: Callable[[], Any] | None = None
    lacks: Lacks = lambda device: None

    def __post_init__(self) -> None:
        for name, value in (
            ("name", self.name),
            ("title", self.title),
            ("improves", self.improves),
        ):
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


def _only(what: str, has: Callable[[Device], bool]) -> Lacks:
    return lambda device: None if has(device) else f"{what}; this is {device.name}."


def _ranks(device: Device) -> str | None:
    more = "Ranks on one CPU share its cores" if device.is_cpu else "This loop trains on one device"
    return f"{more}: notebook 08 and gl.parallel.scaling measure several."


_ALL = (
    Technique("resident", "data on the device", "loading", {"loading": "resident"}),
    Technique("prefetch", "pinned prefetch", "loading", {"prefetch": _AHEAD, "pinned": True}),
    Technique("batch", "larger batch", "starting operators", {"batch_size": _LARGE_BATCH}),
    Technique("waits", "fewer waits", "waiting", {"read_loss": False}),
    Technique(
        "tf32",
        "TF32",
        "arithmetic",
        {"precision": "tf32"},
        lacks=_only(_TF32, lambda device: device.has_tf32),
    ),
    Technique("mixed", "mixed precision (bfloat16)", "arithmetic", {"precision": "bfloat16"}),
    Technique("layout", "channels last", "memory", {"channels_last": True}),
    Technique(
        "autotune",
        "cuDNN autotune",
        "arithmetic",
        {"autotune": True},
        lacks=_only("cuDNN runs on NVIDIA GPUs", lambda device: device.kind == "cuda"),
    ),
    Technique("fused", "fused optimizer", "starting operators", {"fused": True}),
    Technique("compile", "torch.compile", "starting operators", {"compile": True}),
    Technique(
        "graph",
        "CUDA graph",
        "starting operators",
        {"cuda_graph": True},
        lacks=_only("CUDA graphs need an NVIDIA GPU", lambda device: device.kind == "cuda"),
    ),
    Technique(
        "lighter", "depthwise layers", "arithmetic", model=lambda: networks.mobilenet(width=16)
    ),
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


_EXPERIMENT = "training"
_USUAL = {"precision": "float32", "means": "plain"}

EXPERIMENT = "speed-up ladder"
SCRIPT, ALONE, UP_TO, WITHOUT = "the script", "alone", "with all before it", "all but it"
# Technique -> what of the experiment "training" is set over what, where no ladder was recorded.
_STEPS: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    "tf32": ({}, {"precision": "tf32"}),
    "mixed": ({}, {"precision": "bfloat16"}),
    "layout": ({}, {"means": "channels_last"}),
    "fused": ({"means": "not fused"}, {"means": "fused"}),
    "compile": ({}, {"means": "compile"}),
    "graph": ({}, {"means": "graph"}),
    "prefetch": ({}, {"means": "prefetch"}),
}
# Technique -> the claim whose recorded ratios are those of the technique, and what was timed where
# its cases do not say.
_CLAIMS = {
    "batch": ("larger-batches", ""),
    "waits": ("item-waits", "an MLP"),
    "autotune": ("cudnn-autotune", "one convolution"),
}
Found = tuple[str, str, Gain, Evidence]  # machine, case, what it gave, evidence


def recorded_gains(name: str) -> list[Found]:
    """Return what recorded accelerators say of a technique, a row a machine and case; empty where
    nothing is recorded yet.
    """
    return [
        (machine, case, gain, recording.evidence())
        for machine, recording in recordings.of_accelerators().items()
        for case, gain in gains_of(name, recording)
    ]


def gains_of(name: str, recording: Recording) -> list[tuple[str, Gain]]:
    """Return what one recording says of a technique by itself."""
    own, titles = recorded_ladder(recording), {one.name: one.title for one in techniques()}
    alone, _, _ = own.rows.get(titles.get(name, ""), (None, None, None))
    key, what = _CLAIMS.get(name, ("", ""))
    if alone is not None:
        return [(f"alone, {own.model}", alone)]
    if key:
        found = claims.judge(key, recording).comparisons
        return [
            (", ".join(filter(None, (what, one.case))), Gain(one.ratio, one.interval))
            for one in found
        ]
    if name not in _STEPS:
        return []
    first, second = ({**_USUAL, **way} for way in _STEPS[name])
    pairs = [
        (entry, recording.find(_EXPERIMENT, **{**entry.params, **second}))
        for entry in recording.select(_EXPERIMENT, **first)
    ]
    return [
        (f"a step of the {one.params['model']}", Gain(*one.timing.over(other.timing)))
        for one, other in pairs
        if other is not None and one.timing and other.timing
    ]


@dataclass(frozen=True, repr=False)
class RecordedLadder(Result):
    """The ladder that a machine recorded.

    Attributes
    ----------
    recording : str
        The machine's short name.
    model : str
        That was trained; "" where no ladder was recorded.
    rows : mapping of str to (Gain or None, Gain or None, Gain or None)
        By the technique's title the speed-up over the script, by itself and with all techniques
        before it; and that of all techniques over all but this one. None where it was not recorded.
    product : float or None
        The single gains of all techniques that the recorder planned, multiplied; None where one is
        missing.
    together : Gain or None
        All techniques that the recorder planned, over the script; None where they were not recorded
        together.
    evidence : Evidence
    """

    recording: str
    model: str
    rows: Mapping[str, tuple[Gain | None, Gain | None, Gain | None]]
    product: float | None
    together: Gain | None
    evidence: Evidence

    def __repr__(self) -> str:
        alone = sum(alone is not None for alone, _, _ in self.rows.values())
        some = f"{alone} alone; all together " if self.rows else ""
        promised = "" if self.product is None else f", product {format_ratio(self.product)}"
        what = (
            f"{some}not recorded yet"
            if self.together is None
            else f"together {self.together}{promised}"
        )
        return f"<ladder on {self.recording}: {what}>"

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        """Return one row a technique, then the combination and the product."""
        product = "" if self.product is None else format_ratio(self.product)
        rows = [
            *(
                (title, *(str(gain or "") for gain in (up_to, alone, removed)))
                for title, (alone, up_to, removed) in self.rows.items()
            ),
            *([("all together vs script", str(self.together), "", "")] if self.together else []),
            *([("product of the single gains (MODELLED)", "", product, "")] if product else []),
        ]
        headers = (
            f"{self.recording} (RECORDED)",
            "cumulative vs script",
            "alone vs script",
            "all vs all but this",
        )
        return headers, rows or [("not recorded yet", "", "", "")]


def recorded_ladder(recording: Recording) -> RecordedLadder:
    """Return the ladder that a machine recorded; one without rows means "not recorded yet".

    A recorder times one form after the other, so the interval of a ratio uses the least favorable
    ends of both intervals.

    Raises
    ------
    InputError
        If it is not a recording.

    Examples
    --------
    >>> from gpulab import recordings
    >>> recorded_ladder(recordings.load("amd-epyc-2-cores"))
    <ladder on amd-epyc-2-cores: not recorded yet>
    """
    require_recordings("recorded_ladder", recording)
    script = next(iter(recording.select(EXPERIMENT, form=SCRIPT)), None)
    if script is None:
        return RecordedLadder(recording.name, "", {}, None, None, recording.evidence())
    forms = {(e.params["form"], e.params["technique"]): e for e in recording.select(EXPERIMENT)}
    # What failed or was not reached is among the entries too: the last form that was recorded may
    # lack techniques, and is not the whole.
    asked = {
        (e.params.get("form"), e.params.get("technique"))
        for e in recording.entries
        if e.experiment == EXPERIMENT
    }
    planned = [one.name for one in techniques() if {(ALONE, one.name), (UP_TO, one.name)} & asked]
    climbed = [name for name in planned if (UP_TO, name) in asked]
    whole = forms.get((UP_TO, climbed[-1])) if climbed else None
    rows = {
        one.title: (
            _over(script, forms.get((ALONE, one.name))),
            _over(script, forms.get((UP_TO, one.name))),
            _over(forms.get((WITHOUT, one.name)), whole),
        )
        for one in techniques()
        if (ALONE, one.name) in forms or (UP_TO, one.name) in forms
    }
    singles = [alone.ratio for alone, _, _ in rows.values() if alone is not None]
    product = math.prod(singles) if rows and len(singles) == len(planned) else None
    model, together = str(script.params.get("model", "")), _over(script, whole)
    return RecordedLadder(recording.name, model, rows, product, together, recording.evidence())


def _over(first: Entry | None, second: Entry | None) -> Gain | None:
    """Return the seconds a sample of the first over the second's."""
    if first is None or second is None or first.timing is None or second.timing is None:
        return None
    ratio, ends = first.timing.over(second.timing)
    samples = [float(e.params["steps"]) * float(e.params["batch_size"]) for e in (first, second)]
    scale = samples[1] / samples[0]
    return Gain(scale * ratio, None if ends is None else (scale * ends[0], scale * ends[1]))
