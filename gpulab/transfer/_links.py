"""Links and processors as formulas: what a machine without a GPU uses, badged MODELLED.

A link is a latency and a bandwidth. The named ones carry rates that were measured in public on such
hardware, or the data sheet's where no measurement was published; each states which. The user may
set either number.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from gpulab import _validate
from gpulab.errors import InputError, shown
from gpulab.evidence import Evidence
from gpulab.results import Result
from gpulab.transfer.copies import Sweep, SweepPoint
from gpulab.units import format_bytes_per_second, format_seconds

# Default sizes of sweeps: every power of two from 1 KiB to 1 GiB.
SIZES = tuple(2**k for k in range(10, 31))

# Beyond it no memory lies, and a whole number would not turn into a float without loss.
LARGEST_BYTES = 2**62

# A copy call and the wait for it cost about this much on the host side, whatever the link.
_CALL_SECONDS = 10e-6
# From pageable memory the driver copies through a pinned buffer of its own first; about half the
# rate is usual.
_PAGEABLE_SHARE = 0.5
_NVBANDWIDTH = "NVIDIA nvbandwidth, README and issues: device-to-host copies from pinned memory"
_DATASHEET = "NVIDIA data sheet, peak rate in one direction; no copy reaches all of it"

# Name -> (bytes per second in one direction from pinned memory, source).
_RATES: Mapping[str, tuple[float, str]] = {
    "pcie3-x16": (12.35e9, _NVBANDWIDTH),
    "pcie4-x16": (26e9, _NVBANDWIDTH),
    "pcie5-x16": (53e9, _NVBANDWIDTH),
    "nvlink4": (450e9, f"{_DATASHEET} (H100 and H200: 900 GB/s both directions together)"),
    "nvlink-c2c": (450e9, f"{_DATASHEET} (Grace Hopper: 900 GB/s both directions together)"),
}
# (Link, memory) -> what benchmarks/model_errors.py says of a recorded machine with that link; a
# test holds both together.
KNOWN_ERRORS: Mapping[tuple[str, str], str] = {
    ("pcie5-x16", "pinned"): (
        "on nvidia-h200 the recorded time is 0.97 times the model's in the median of 42 cases, "
        "0.92 to 1.3 times in the middle 80 %"
    ),
    ("pcie5-x16", "pageable"): (
        "on nvidia-h200 the recorded time is 1.6 times the model's in the median of 42 cases, 1.4 "
        "to 2.5 times in the middle 80 %"
    ),
}
# Without a GPU and without a name: the link that most of today's machines have.
DEFAULT_LINK = "pcie4-x16"


@dataclass(frozen=True)
class Link(Result):
    """A link between host and device as a formula: ``latency + bytes / bandwidth``.

    Attributes
    ----------
    name : str
    latency_seconds, bandwidth_bytes_per_second : float
    evidence : Evidence
        MODELLED with its source; MEASURED where the numbers are a fit of this machine's own link.
    """

    name: str
    latency_seconds: float
    bandwidth_bytes_per_second: float
    evidence: Evidence

    def seconds(self, nbytes: float) -> float:
        """Return how long one copy of ``nbytes`` takes.

        Examples
        --------
        >>> link = named_link("pcie4-x16", latency_seconds=1e-5, bandwidth_bytes_per_second=25e9)
        >>> link.seconds(250_000)
        2e-05

        Raises
        ------
        InputError
            If the size is negative or not a number.
        """
        size = _validate.within("seconds", "nbytes", nbytes)
        return self.latency_seconds + size / self.bandwidth_bytes_per_second

    @_validate.arguments(
        noise_ratio=partial(_validate.within, high=0.99),
        seed=partial(_validate.whole, low=0, high=2**63),
    )
    def sweep(
        self, sizes: Iterable[int] | None = None, noise_ratio: float = 0.0, seed: int = 0
    ) -> Sweep:
        """Return a sweep over this link with the shape of a measured one, badged MODELLED.

        Parameters
        ----------
        sizes : iterable of int, optional
            Bytes; 1 KiB to 1 GiB by default.
        noise_ratio : float
            Relative scatter of the points (log-normal, seeded), as a real link has; 0 for none.
        seed : int

        Raises
        ------
        InputError
            If a size is not a positive whole number, or the noise negative.
        """
        drawn = np.random.default_rng(seed)
        chosen = check_sizes("sweep", sizes)
        scatter = np.exp(noise_ratio * drawn.standard_normal((2, len(chosen))))
        points = tuple(
            SweepPoint(direction, "pinned", n, self.seconds(n) * float(factor), None, 0)
            for direction, row in zip(("to_device", "to_host"), scatter, strict=True)
            for n, factor in zip(chosen, row, strict=True)
        )
        evidence = self.evidence
        if noise_ratio:
            evidence = Evidence.modelled(
                f"{evidence.assumptions or self.name}; generated noise of {noise_ratio:.0%} "
                f"with seed {seed}",
                evidence.source or "the fit of a measured sweep",
                evidence.known_error,
            )
        return Sweep(self.name, "", points, None, (), evidence, None)


def link_names() -> tuple[str, ...]:
    """Return the names of the modelled links.

    Examples
    --------
    >>> "pcie5-x16" in link_names()
    True
    """
    return tuple(_RATES)


def named_link(
    name: Link | str,
    latency_seconds: float | None = None,
    bandwidth_bytes_per_second: float | None = None,
    memory: str = "pinned",
) -> Link:
    """Return a modelled link by name (see ``gpulab.transfer.link``), or the one given."""
    if isinstance(name, Link):
        return name
    word = (name if isinstance(name, str) else "").lower().replace("_", "-").replace(" ", "-")
    key = word if word in _RATES else f"{word}-x16"
    if not isinstance(name, str) or key not in _RATES:
        close = difflib.get_close_matches(word[:64], list(_RATES), n=1, cutoff=0.4)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise InputError(
            f"link: {shown(name)} is not a link that gpulab knows; expected one of: "
            f"{', '.join(_RATES)}.{hint}"
        )
    _validate.word("link", "memory", memory, ("pinned", "pageable"))
    rate, source = _RATES[key]
    rate *= 1.0 if memory == "pinned" else _PAGEABLE_SHARE
    latency, bandwidth = (
        _validate.positive("link", name, value, f"Pass for example {name}=1e-5.")
        for name, value in (
            ("latency_seconds", _CALL_SECONDS if latency_seconds is None else latency_seconds),
            (
                "bandwidth_bytes_per_second",
                rate if bandwidth_bytes_per_second is None else bandwidth_bytes_per_second,
            ),
        )
    )
    words = [
        f"{format_seconds(latency)} a copy "
        f"{'(typical of a call and the wait for it)' if latency_seconds is None else 'chosen'}"
    ]
    own_rate = "" if bandwidth_bytes_per_second is None else " chosen"
    words.append(f"{format_bytes_per_second(bandwidth)}{own_rate}, straight line")
    if memory == "pageable" and bandwidth_bytes_per_second is None:
        words.append("pageable memory at half the rate of pinned")
    as_named = latency_seconds is None and bandwidth_bytes_per_second is None
    return Link(
        key,
        latency,
        bandwidth,
        Evidence.modelled(
            ", ".join(words), source, KNOWN_ERRORS.get((key, memory)) if as_named else None
        ),
    )


@dataclass(frozen=True)
class ProcessorModel(Result):
    """A device's compute as a formula: a launch, then the longer of arithmetic and memory traffic.

    Attributes
    ----------
    name : str
    flops_per_second : mapping
        By dtype.
    bytes_per_second : float
        Of the device's own memory.
    launch_seconds : float
    evidence : Evidence
    """

    name: str
    flops_per_second: Mapping[str, float]
    bytes_per_second: float
    launch_seconds: float
    evidence: Evidence

    def seconds(self, flops: float, nbytes: float, dtype: str = "float32") -> float:
        """Return the modelled time of one call.

        Raises
        ------
        InputError
            If the model has no rate for the dtype.
        """
        if dtype not in self.flops_per_second:
            raise InputError(
                f"{self.name}: there is no rate for {shown(dtype)}; expected one of: "
                f"{', '.join(self.flops_per_second)}. Pass one of these."
            )
        return self.launch_seconds + max(
            flops / self.flops_per_second[dtype], nbytes / self.bytes_per_second
        )


_H200 = ProcessorModel(
    name="nvidia-h200",
    # float32 as measured by RRZE-HPC/gpu-benches; bfloat16 the middle of 770-800 TFLOP/s measured
    # for an 8192-cubed product.
    flops_per_second={"float64": 34e12, "float32": 42.5e12, "bfloat16": 785e12, "float16": 785e12},
    bytes_per_second=3.77e12,
    launch_seconds=2.5e-6,
    evidence=Evidence.modelled(
        "every call reaches the rates of large ones: 42.5 TFLOP/s in float32 and 3.77 TB/s, after "
        "a launch of 2.5 us",
        "RRZE-HPC/gpu-benches (H200: FP32, triad, launch spacing); NVIDIA H200 data sheet "
        "(float64)",
        "on nvidia-h200 the recorded time is 4.1 times the model's in the median of 416 cases, 1.2 "
        "to 21 times in the middle 80 %",
    ),
)
_PROCESSORS: Mapping[str, ProcessorModel] = {_H200.name: _H200}


def processor(which: ProcessorModel | str) -> ProcessorModel:
    """Return a modelled processor by name, or the one given.

    Raises
    ------
    InputError
        If there is no such model.
    """
    if isinstance(which, ProcessorModel):
        return which
    if not isinstance(which, str) or which not in _PROCESSORS:
        raise InputError(
            f"processor: {shown(which)} is not one that gpulab models; expected one of: "
            f"{', '.join(_PROCESSORS)}. Pass one of these."
        )
    return _PROCESSORS[which]


def check_bytes(function: str, nbytes: Any) -> int:
    """Return a size as an int.

    Raises
    ------
    InputError
        If it is not a positive whole number.
    """
    return _validate.whole(function, "nbytes", nbytes, 1, LARGEST_BYTES, "Pass for example 2**20.")


def check_sizes(function: str, sizes: Iterable[int] | None) -> tuple[int, ...]:
    """Return sizes ascending and without repeats; those of a full sweep for None.

    Raises
    ------
    InputError
        If there are none, or one is not a positive whole number.
    """
    if sizes is None:
        return SIZES
    chosen = sorted({check_bytes(function, n) for n in _validate.items(function, "sizes", sizes)})
    if not chosen:
        raise InputError(
            f"{function}: no sizes were given; expected at least one. Pass for example "
            "sizes=[2**10, 2**20]."
        )
    return tuple(chosen)
