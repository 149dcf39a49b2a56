"""What torch.compile costs, what it saves, and after how many calls it breaks even."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from gpulab import _given, devices, timing
from gpulab.errors import GpulabError, InputError, MeasurementError, kind_of, message_of
from gpulab.evidence import Evidence, Note
from gpulab.results import Result
from gpulab.training._words import compiling_failed
from gpulab.units import format_ratio, format_seconds, plural

_USUAL = ("deadline", "slow-first-call", "too-short")  # how calls were sampled; the interval beside the figure says what of that matters


@dataclass(frozen=True, repr=False)
class CompileCost(Result):
    """The times of a function as written (eager) and compiled.

    Attributes
    ----------
    label, device : str
    import_seconds : float
        Loading the compiler itself, once a process; 0 where it was loaded before.
    compile_seconds : float or None
        The first call of the compiled function; None where it cannot be compiled here.
    eager_seconds, compiled_seconds : float or None
        A call afterwards, in turns; the median.
    eager_interval, compiled_interval : (float, float) or None
        Each with 95 %.
    max_relative_difference : float or None
        The largest relative difference between the two results.
    reason : str
        Why there is no compiled form; else "".
    notes : tuple of Note
    evidence : Evidence
    """

    label: str
    device: str
    import_seconds: float
    compile_seconds: float | None
    eager_seconds: float | None
    compiled_seconds: float | None
    eager_interval: tuple[float, float] | None
    compiled_interval: tuple[float, float] | None
    max_relative_difference: float | None
    reason: str
    notes: tuple[Note, ...]
    evidence: Evidence

    @property
    def saved_seconds(self) -> float | None:
        """The seconds that each call saves; negative if the compiled function is slower."""
        return None if self.eager_seconds is None or self.compiled_seconds is None else self.eager_seconds - self.compiled_seconds

    @property
    def saved_interval(self) -> tuple[float, float] | None:
        """The least and the most that each call saves, from the ends of both intervals: a conservative interval."""
        if self.eager_interval is None or self.compiled_interval is None:
            return None
        return self.eager_interval[0] - self.compiled_interval[1], self.eager_interval[1] - self.compiled_interval[0]

    @property
    def break_even_calls(self) -> int | None:
        """The number of calls after which compiling pays off; None where no saving was shown."""
        return break_even_calls(self.compile_seconds, self.saved_seconds)

    @property
    def break_even_interval(self) -> tuple[int, int | None] | None:
        """The fewest and the most calls by ``saved_interval``; the most is None where the saving may be nothing."""
        if self.saved_interval is None or self.break_even_calls is None:
            return None
        low, high = self.saved_interval
        fewest = break_even_calls(self.compile_seconds, high)
        return (fewest or 1, break_even_calls(self.compile_seconds, low))

    @property
    def sentence(self) -> str:
        """The result in words."""
        if self.compile_seconds is None:
            return f"{self.label} was not compiled: {self.reason}."
        if self.break_even_calls is None:
            return f"{self.label}: compiling took {format_seconds(self.compile_seconds)}, and no saving was shown."
        return (
            f"{self.label}: {format_seconds(self.compile_seconds)} to compile, {format_seconds(self.saved_seconds or 0)} saved a call; "
            f"it pays off after {plural(self.break_even_calls, 'call')} ({self._between})."
        )

    @property
    def _between(self) -> str:
        if self.break_even_interval is None:
            return "without an interval"
        fewest, most = self.break_even_interval
        return f"at least {fewest:,}, or never" if most is None else f"{fewest:,} to {most:,}"

    def __repr__(self) -> str:
        return f"<{self.sentence}>"

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        """Return the costs, the times and the break-even."""
        rows: list[tuple[str, str]] = [("loading the compiler, once per process", format_seconds(self.import_seconds))]
        if self.compile_seconds is None:
            rows.append(("compiled", f"no: {self.reason}"))
        else:
            rows.append(("the first compiled call", format_seconds(self.compile_seconds)))
        for name, seconds, interval in (
            ("an eager call", self.eager_seconds, self.eager_interval),
            ("a compiled call", self.compiled_seconds, self.compiled_interval),
        ):
            if seconds is not None:
                between = "" if interval is None else f" (95 % {format_seconds(interval[0])} to {format_seconds(interval[1])})"
                rows.append((name, format_seconds(seconds) + between))
        if self.saved_seconds is not None and self.eager_seconds is not None and self.compiled_seconds:
            rows.append(("speed-up", format_ratio(self.eager_seconds / self.compiled_seconds)))
            calls = self.break_even_calls
            rows.append(("pays off after", "no saving was shown" if calls is None else f"{plural(calls, 'call')} ({self._between})"))
        rows += [(f"note: {note.code}", note.sentence) for note in self.notes]
        return (f"torch.compile of {self.label}", ""), rows


def break_even_calls(cost_seconds: float | None, saved_seconds: float | None) -> int | None:
    """Return the number of calls after which a one-time cost is recovered by the saving of each call; None without a saving.

    Examples
    --------
    >>> break_even_calls(10.0, 0.003), break_even_calls(10.0, 0.0)
    (3334, None)
    """
    if cost_seconds is None or saved_seconds is None or saved_seconds <= 0:
        return None
    return max(1, math.ceil(cost_seconds / saved_seconds))


def compile_cost(fn: Callable[..., Any], *args: Any, cold: bool = True, deadline: float = 1.0, device: Any = None) -> CompileCost:
    """Compile a function, time it against the uncompiled one, and compute when compiling pays off.

    Parameters
    ----------
    fn : callable or torch.nn.Module
        Called with ``args``; both forms must return the same numbers.
    *args
        Tensors and other values.
    cold : bool
        True: with an empty cache on disk, as for a new model. False: with the cache of earlier compilations.
    deadline : float
        Seconds of racing for each of the two.
    device : Device or str, optional
        None takes that of the first tensor.

    Returns
    -------
    CompileCost
        Where there is no compiler (a CPU needs g++, clang or cl), ``reason`` says so and the other fields are None.

    Raises
    ------
    InputError
        If ``fn`` cannot be called with ``args``, or an argument is out of range.

    Notes
    -----
    ``torch.compiler.reset()`` is called before and after, so functions compiled earlier are compiled again when they are next called.
    """
    import torch

    if not callable(fn):
        raise InputError(f"compile_cost: {kind_of(fn)} was given; expected a function or a module. Pass one, not its result.")
    cold = _given.flag("compile_cost", "cold", cold)
    deadline = _given.deadline("compile_cost", deadline, 600.0)
    where = devices.find(device if device is not None else next((str(a.device) for a in args if isinstance(a, torch.Tensor)), None))
    label = getattr(fn, "__name__", type(fn).__name__).replace("<lambda>", "the function")
    with devices.guard(f"compile_cost: {label} on {where.name}"):
        _call(label, fn, args, where)  # its own errors first, and its own first call out of the way
        loading = _load_compiler()
        torch.compiler.reset()
        try:
            with _fresh_cache(cold):
                compiled = torch.compile(fn)
                compile_seconds = _call(label, compiled, args, where)
        except Exception as error:
            torch.compiler.reset()
            return CompileCost(
                label, str(where), loading, None, None, None, None, None, None, compiling_failed(error), (), Evidence.measured(where.name)
            )  # fmt: skip
        try:
            race = timing.compare({"as it is": fn, "compiled": compiled}, *args, devices=[where], deadline=deadline)
        except MeasurementError as error:
            raise InputError(
                f"compile_cost: {label} failed during the timing ({message_of(error)}); expected a function that can be called repeatedly. "
                "Pass one without state that runs out."
            ) from error
        finally:
            torch.compiler.reset()
    eager, fast = (row.measurement for row in race.rows)
    doubts = [Note(note.code, f"{m.label}: {note.sentence}") for m in (eager, fast) for note in m.notes if note.code not in _USUAL]
    return CompileCost(
        label, str(where), loading, compile_seconds, eager.median_seconds, fast.median_seconds, eager.interval_seconds,
        fast.interval_seconds, race.max_relative_difference, "", (*race.notes, *doubts), race.evidence,
    )  # fmt: skip


def _call(label: str, fn: Callable[..., Any], args: Any, device: devices.Device) -> float:
    """Call once, wait for the device, and return the seconds."""
    begin = time.perf_counter()
    try:
        fn(*args)
        if not device.is_cpu:
            device.synchronize()
    except Exception as error:
        if isinstance(error, GpulabError) or _is_compiler(error):
            raise
        raise InputError(
            f"compile_cost: {label} raised {type(error).__name__} ({message_of(error)}); expected it to run. Call it once by itself first."
        ) from error
    return time.perf_counter() - begin


def _is_compiler(error: Exception) -> bool:
    return type(error).__module__.startswith(("torch._inductor", "torch._dynamo"))


def _load_compiler() -> float:
    """Import what torch.compile loads on its first use, so that it does not count as compiling."""
    begin = time.perf_counter()
    import torch._inductor.compile_fx  # noqa: F401

    return time.perf_counter() - begin


def _fresh_cache(cold: bool) -> Any:
    """Return a block with an empty cache on the disk; the name of PyTorch's own helper has changed over its versions."""
    if not cold:
        return nullcontext()
    from torch._inductor import utils

    fresh = getattr(utils, "fresh_cache", None) or getattr(utils, "fresh_inductor_cache", None)
    return nullcontext() if fresh is None else fresh()
