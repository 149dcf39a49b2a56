"""How often JAX compiles one function for a run of batches, and what each first call costs."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter

import numpy as np

from gpulab import _given, devices
from gpulab.errors import InputError, shown
from gpulab.evidence import Evidence
from gpulab.lessons import _library
from gpulab.results import Result
from gpulab.units import format_ratio, format_seconds, plural

_SOURCE = "JAX, Just-in-time compilation with jax.jit: JIT and caching"
_KNOWN_ERROR = "none where JAX was there (tests/lessons)"


@dataclass(frozen=True)
class Retraces(Result):
    """One function of ``jax.jit``, called with batch after batch.

    Attributes
    ----------
    batches : tuple of int
        Rows of each batch, in order.
    count : int
        How often the function was traced and compiled.
    new_seconds, known_seconds : float or None
        The median call with a shape that is new, and with one that is known; the result is there each time.
    reason : str
        Why it was not run.
    evidence : Evidence
        MEASURED, or MODELLED without JAX: one program for each shape.
    """

    batches: tuple[int, ...]
    count: int
    new_seconds: float | None
    known_seconds: float | None
    reason: str
    evidence: Evidence

    def __repr__(self) -> str:
        return f"<{plural(len(self.batches), 'batch', 'batches')}, {plural(self.count, 'program')} compiled, {self.evidence.badge}>"

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        """Return what was counted and what a new shape costs."""
        headers = ("batches of rows", ", ".join(map(str, self.batches)))
        rows = [("programs compiled", str(self.count))]
        if self.reason:
            return headers, [*rows, ("no calls were timed", self.reason)]
        for words, seconds in (("a call with a new shape", self.new_seconds), ("a call with a known one", self.known_seconds)):
            rows.append((words, "there was none" if seconds is None else format_seconds(seconds)))
        if self.new_seconds is not None and self.known_seconds is not None:
            rows.append(("the first over the second", format_ratio(self.new_seconds / self.known_seconds)))
        return headers, rows


def retraces(batches: Sequence[int] = (32, 32, 32, 17, 32, 17, 64, 1)) -> Retraces:
    """Call a small network under ``jax.jit`` with batches of these sizes, and count how often it is compiled; without JAX, by its rule.

    Parameters
    ----------
    batches : sequence of int
        Rows of each batch, from 1 on.

    Raises
    ------
    InputError
        If a size is no whole number from 1 on.
    """
    given = _given.items("retraces", "batches", batches)
    wrong = next((rows for rows in given if not _given.is_whole(rows) or rows < 1), None)
    if wrong is not None or not given:
        raise InputError(f"retraces: batches hold {shown(wrong)}; expected whole numbers from 1 on. Pass for example [32, 32, 17].")
    sizes = tuple(int(rows) for rows in given)
    why = _library.unusable("jax")
    if why:
        made = Evidence.modelled("one program for each shape that is new, none for one that is known", _SOURCE, _KNOWN_ERROR)
        return Retraces(sizes, len(set(sizes)), None, None, why, made)
    jax = _library.load("jax")
    weights, traced = jax.numpy.ones((64, 64)), []

    @jax.jit
    def network(x):  # type: ignore[no-untyped-def]
        traced.append(x.shape)  # runs while tracing only
        return jax.numpy.tanh(x @ weights)

    seconds: dict[bool, list[float]] = {True: [], False: []}
    for rows in sizes:
        x, before = jax.device_put(np.ones((rows, 64), np.float32)).block_until_ready(), len(traced)
        start = perf_counter()
        network(x).block_until_ready()
        seconds[len(traced) > before].append(perf_counter() - start)
    new, known = (statistics.median(seconds[kind]) if seconds[kind] else None for kind in (True, False))
    where = _library.device_of_jax()
    return Retraces(sizes, len(traced), new, known, "", Evidence.measured(devices.find(where).name, len(sizes)))
