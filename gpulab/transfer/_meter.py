"""A simulated device: copies and compute happen in host memory, and a model adds the time of the link.

It answers the question "which copies does this program make?" without a GPU: arrays must be sent before they are
used, and each transfer is counted.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from gpulab import _backends
from gpulab.errors import InputError, kind_of, shown
from gpulab.evidence import Evidence, known_errors
from gpulab.results import Result
from gpulab.transfer._links import Link, ProcessorModel, named_link, processor
from gpulab.units import format_bytes, format_seconds, plural

_DEPTH = 4  # of lists in the arguments, these themselves counted


@dataclass(frozen=True)
class LinkReport(Result):
    """The copies and calls of a program that ran on a ``ModelledDevice``, and their times.

    Attributes
    ----------
    copies, calls : int
    copied_bytes : float
    copy_seconds : float
        By the link's formula.
    compute_seconds : float
        Measured on the CPU, or by the processor's formula; the evidence shows which.
    evidence : Evidence
    """

    copies: int
    calls: int
    copied_bytes: float
    copy_seconds: float
    compute_seconds: float
    evidence: Evidence

    @property
    def total_seconds(self) -> float:
        """Copies and compute, one after the other."""
        return self.copy_seconds + self.compute_seconds

    def __repr__(self) -> str:
        copies, calls = format_seconds(self.copy_seconds), format_seconds(self.compute_seconds)
        return f"<{_copies(self)} {copies}, {plural(self.calls, 'call')} {calls}, {self.evidence.badge}>"

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        """Return copies, compute and their sum."""
        rows = [
            (f"{_copies(self)}, {format_bytes(self.copied_bytes)} together", format_seconds(self.copy_seconds)),
            (plural(self.calls, "call"), format_seconds(self.compute_seconds)),
            ("together", format_seconds(self.total_seconds)),
        ]
        return ("", "time"), rows


def _copies(report: LinkReport) -> str:
    return plural(report.copies, "copy", "copies")


class ModelledDevice:
    """A stand-in for a GPU behind a link: ``to_device``, ``run`` and ``to_host`` do the work and record its cost.

    Parameters
    ----------
    link : Link or str
        The link; see ``gpulab.transfer.link_names``.
    processor : ProcessorModel or str, optional
        The processor whose formula times the compute: each ``run`` is one pass over its arrays, plus ``flops`` if given. By default the
        compute is measured on this CPU.
    clock : callable, optional
        Returns seconds; ``time.perf_counter`` by default.

    Examples
    --------
    >>> import numpy as np
    >>> gpu = ModelledDevice("pcie4-x16", processor="nvidia-h200")
    >>> x = gpu.to_device(np.ones(1_000_000, dtype=np.float32))
    >>> total = gpu.to_host(gpu.run(np.add, x, x))
    >>> gpu.report().copies, float(total[0])
    (2, 2.0)
    """

    def __init__(
        self, link: Link | str = "pcie4-x16", processor: ProcessorModel | str | None = None, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self.link = link if isinstance(link, Link) else named_link(link)
        self.processor = None if processor is None else _processor(processor)
        self._clock = clock
        self._there: dict[int, Any] = {}
        self.reset()

    def reset(self) -> None:
        """Reset the counts; arrays stay on the device."""
        self._copies = self._calls = 0
        self._copied_bytes = self._copy_seconds = self._compute_seconds = 0.0

    def to_device(self, a: Any) -> Any:
        """Return a copy of a host array "on the device"; counts as one transfer.

        Raises
        ------
        InputError
            If it is not an array, or is on the device already.
        """
        owner = _owner("to_device", a)
        if self._holds(a):
            raise InputError("to_device: the array is already on the device; expected one in host memory. Leave the call out.")
        return self._keep(self._travel(owner, a))

    def to_host(self, a: Any) -> Any:
        """Return a copy in host memory of an array on the device; counts as one transfer.

        Raises
        ------
        InputError
            If the array is not on this device.
        """
        owner = _owner("to_host", a)
        self._require("to_host", a)
        return self._travel(owner, a)

    def run(self, fn: Callable[..., Any], *args: Any, flops: float = 0.0) -> Any:
        """Return ``fn(*args)``, an array on the device; its arrays, also those in lists, tuples and dictionaries, must be on the device.

        Raises
        ------
        InputError
            If an array among the arguments is in host memory, or the result is not an array; such a call is not counted.
        """
        if not callable(fn):
            raise InputError(f"run: got {shown(fn)}; expected a function and its arguments. Write gpu.run(f, x), not gpu.run(f(x)).")
        arrays = list(_arrays_in(args))
        for a in arrays:
            self._require("run", a)
        start = self._clock()
        result = fn(*args)
        measured = self._clock() - start
        owner, seconds = _owner("run", result), measured
        if self.processor is not None:
            traffic = owner.nbytes(result) + sum(_owner("run", a).nbytes(a) for a in arrays)
            seconds = self.processor.seconds(flops, traffic)
        self._calls += 1  # from here on nothing is refused: a call on the bill has its seconds there too
        self._compute_seconds += seconds
        return self._keep(result)

    def report(self) -> LinkReport:
        """Return the counts and times so far."""
        compute = "compute measured on this CPU" if self.processor is None else f"compute: {self.processor.evidence.assumptions}"
        sources = [e.source for e in (self.link.evidence, *([] if self.processor is None else [self.processor.evidence])) if e.source]
        evidence = Evidence.modelled(
            f"link {self.link.name}: {self.link.evidence.assumptions or 'the fit of a sweep'}; nothing overlaps; {compute}",
            "; ".join(sources) or "a sweep on this machine",
            known_errors(link=self.link.evidence, **({} if self.processor is None else {"compute": self.processor.evidence})),
        )
        return LinkReport(self._copies, self._calls, self._copied_bytes, self._copy_seconds, self._compute_seconds, evidence)

    def _travel(self, owner: _backends.Backend, a: Any) -> Any:
        nbytes = owner.nbytes(a)
        self._copies += 1
        self._copied_bytes += nbytes
        self._copy_seconds += self.link.seconds(nbytes)
        return a.copy() if owner.name == "numpy" else a.detach().clone()

    def _holds(self, a: Any) -> bool:
        reference = self._there.get(id(a))
        return reference is not None and reference() is a

    def _keep(self, a: Any) -> Any:
        self._there[id(a)] = weakref.ref(a)
        return a

    def _require(self, function: str, a: Any) -> None:
        if not self._holds(a):
            raise InputError(f"{function}: an array is in host memory; expected it on the device. Send it first: x = gpu.to_device(x).")


_processor = processor  # the parameter of ModelledDevice has the same name


def _arrays_in(value: Any, depth: int = _DEPTH) -> Iterator[Any]:
    """Give the arrays among arguments, as ``numpy.stack`` takes them in a list too."""
    if _backends.backend_of(value) is not None:
        yield value
    elif depth and isinstance(value, (tuple, list)):
        for item in value:
            yield from _arrays_in(item, depth - 1)
    elif depth and isinstance(value, dict):
        yield from _arrays_in(list(value.values()), depth)


def _owner(function: str, a: Any) -> _backends.Backend:
    owner = _backends.backend_of(a)
    if owner is None or owner.name not in ("numpy", "torch"):
        raise InputError(f"{function}: got {kind_of(a)}; expected a numpy array or a torch tensor. Wrap it with numpy.asarray first.")
    return owner
