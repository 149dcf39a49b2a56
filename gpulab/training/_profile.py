"""What happens inside a training step: the records of PyTorch's profiler as a timeline, and hidden
waits, the places where the host waits for the device.

The profiler records when each operator began and ended on the host and, on an accelerator, each
kernel on the device. This module turns its records into spans with a depth, the time between
operators, and a table by operator. The profiler slows every operator a little.

On an accelerator, a call that waits returns only when everything that was queued before it is done,
and nothing new is queued meanwhile. Such calls are recognized by the operators that run, not by
their times, so they are found on a machine without an accelerator too: there each tensor counts as
if it were on one.
"""

from __future__ import annotations

import contextlib
import linecache
import re
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from gpulab import _validate, devices
from gpulab.errors import InputError, kind_of
from gpulab.evidence import Evidence, Note
from gpulab.memory.step_memory import tensors_in, uncompiled
from gpulab.results import Result, Table, note_rows
from gpulab.units import format_seconds, plural

_MARK = "ProfilerStep"  # how PyTorch's marks of ``profiler.step()`` begin
_ROWS = 12
# Calls of the driver are on the host's lane as well. These only wait, so they count as no operator.
_WAIT = re.compile(r"(cuda|cu|hip)[A-Z]\w*Synchronize")


class ProfileSpan(NamedTuple):
    """One piece of work that the profiler saw.

    Attributes
    ----------
    name : str
        The operator, the kernel, or the learner's own mark (``torch.profiler.record_function``).
    lane : str
        "mark", "host" or "device".
    depth : int
        0 for operators that the program called; an operator called by another one is one level
        deeper.
    start_seconds, end_seconds : float
        Since the first step began.
    """

    name: str
    lane: str
    depth: int
    start_seconds: float
    end_seconds: float

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.end_seconds - self.start_seconds


@dataclass(frozen=True, repr=False)
class Profile(Result):
    """Training steps that ran under the profiler.

    Attributes
    ----------
    label, device : str
    steps : tuple of (float, float)
        When each step began and ended, in seconds since the first step began.
    spans : tuple of ProfileSpan
        In the order in which they began.
    operators : mapping of str to (float, float, float)
        By the operator's name, the most expensive on the host first: calls per step; seconds per
        step on the host, without the time of operators that it called; and seconds per step of the
        kernels that it launched, 0 on a CPU.
    notes : tuple of Note
    evidence : Evidence
    """

    label: str
    device: str
    steps: tuple[tuple[float, float], ...]
    spans: tuple[ProfileSpan, ...]
    operators: Mapping[str, tuple[float, float, float]]
    notes: tuple[Note, ...]
    evidence: Evidence

    @property
    def step_seconds(self) -> float:
        """The mean time of a step under the profiler."""
        return sum(end - start for start, end in self.steps) / len(self.steps)

    @property
    def operators_per_step(self) -> float:
        """How many operators the program called in a step, on average. Operators that were called
        by other operators, and waits for the device, are not counted.
        """
        called = (span for span in self.spans if span.lane == "host" and span.depth == 0)
        return sum(1 for span in called if not _WAIT.match(span.name)) / len(self.steps)

    @property
    def between_ratio(self) -> float:
        """The share of the steps in which the host was in no operator and no call of the driver,
        such as a wait for the device: Python code.
        """
        whole = sum(end - start for start, end in self.steps)
        calls = [s for s in self.spans if s.lane == "host" and s.depth == 0]
        busy = sum(covered(calls, step) for step in self.steps)
        return 1.0 - (busy / whole if whole > 0 else 0.0)

    def __repr__(self) -> str:
        each = plural(round(self.operators_per_step), "operator")
        return (
            f"<{plural(len(self.steps), 'step')} of {self.label} on {self.device}: {each} and "
            f"{format_seconds(self.step_seconds)} a step, {self.between_ratio:.0%} of it between "
            "operators>"
        )

    def table(self) -> Table:
        """Return the most expensive operators, and the time between them."""
        costs = list(self.operators.items())
        if rest := [cost for _, cost in costs[_ROWS:]]:
            calls, host, there = map(sum, zip(*rest, strict=True))
            costs[_ROWS:] = [(f"{len(rest)} more", (calls, host, there))]
        rows = [
            *(
                (name, f"{calls:g}", format_seconds(host), format_seconds(there))
                for name, (calls, host, there) in costs
            ),
            (
                "between the operators (Python)",
                "",
                format_seconds(self.between_ratio * self.step_seconds),
                "",
            ),
            ("a step under the profiler", "", format_seconds(self.step_seconds), ""),
            *note_rows(self.notes, 4),
        ]
        headers = (f"{self.label}, a step", "calls", "host (self time)", "device (its kernels)")
        # on a CPU there are no kernels besides the operators, so the last column is left out
        columns = 4 if any(span.lane == "device" for span in self.spans) else 3
        return headers[:columns], [row[:columns] for row in rows]


def covered(spans: Iterable[Any], window: tuple[float, float]) -> float:
    """Return how many seconds of a window some spans cover (of ``Profile`` or of
    ``PipelineResult``). They are in the order of their starts, and may overlap each other.
    """
    seconds, (reached, last) = 0.0, window
    for span in spans:
        seconds += max(0.0, min(span.end_seconds, last) - max(span.start_seconds, reached))
        reached = max(reached, span.end_seconds)
    return seconds


def profile(profiler: Any, *, label: str = "the training", device: Any = None) -> Profile:
    """Return the operators and kernels that PyTorch's profiler saw, with their times.

    Parameters
    ----------
    profiler : torch.profiler.profile
        Made with ``acc_events=True``, after the end of its block. If it has a schedule, of one
        cycle (``repeat=1``), and the loop calls ``profiler.step()``, the result has these steps;
        otherwise everything is one step. Parts that you mark with
        ``torch.profiler.record_function("forward")`` appear as marks. Let the device finish before
        ``profiler.step()``, so that the kernels of a step lie in it.
    label : str
        What was run, for tables.
    device : Device or str, optional
        The device that computed; None takes the best one available.

    Returns
    -------
    Profile
        Evidence MEASURED.

    Raises
    ------
    InputError
        If ``profiler`` is not a profiler, has not ended, recorded nothing, recorded several cycles
        of a schedule, or was made with ``with_stack=True``.

    Examples
    --------
    >>> import torch
    >>> x = torch.ones(64, 64)
    >>> with torch.profiler.profile(acc_events=True) as profiler:
    ...     y = (x @ x).relu()
    >>> profile(profiler, device="cpu").operators_per_step
    2.0

    The operators that cost the host most come first:

    >>> costs = [host for _, host, _ in profile(profiler, device="cpu").operators.values()]
    >>> costs == sorted(costs, reverse=True)
    True
    """
    where, events = devices.find(device), []
    if isinstance(profiler, torch.profiler.profile):
        with contextlib.suppress(AssertionError):  # it has not begun
            events = list(profiler.events() or ())  # type: ignore[no-untyped-call]
    if not events:
        raise InputError(
            f"profile: profiler is {kind_of(profiler)} without records; expected a profiler of "
            "PyTorch that has ended and recorded operators. Use `with "
            "torch.profiler.profile(acc_events=True) as profiler:`, then pass it."
        )
    if profiler.with_stack:
        raise InputError(
            "profile: the profiler was made with with_stack=True, so Python's functions are among "
            "its operators; expected only PyTorch's own. Leave with_stack out."
        )
    # Only marks with operators inside them: not the marks on the device, nor one that began when
    # the loop had ended.
    steps = [e for e in events if e.name.startswith(_MARK) and e.cpu_children]
    times = sorted((e.time_range.start, e.time_range.end) for e in steps or events)
    zero, count = times[0][0], max(len(steps), 1)
    if not steps:
        times = [(zero, max(end for _, end in times))]
    # a cycle begins with a recorded step whose predecessor was not recorded or ended a cycle
    kinds = torch.profiler.ProfilerAction
    actions = [None, *map(profiler.schedule, range(profiler.step_num))]
    cycles = sum(
        now in (kinds.RECORD, kinds.RECORD_AND_SAVE) and before is not kinds.RECORD
        for before, now in pairwise(actions)
    )
    if cycles > 1:
        raise InputError(
            "profile: the profiler saw several cycles of its schedule, whose times all begin at 0; "
            "expected one cycle. Pass repeat=1 to torch.profiler.schedule."
        )
    windows = tuple(((start - zero) * 1e-6, (end - zero) * 1e-6) for start, end in times)
    spans = sorted(
        (span for e in events if (span := _span(e, zero, windows)) is not None),
        key=lambda s: (s.start_seconds, -s.end_seconds),
    )
    totals = [e for e in profiler.key_averages() if not (_on_device(e) or e.is_user_annotation)]
    return Profile(
        label,
        str(where),
        windows,
        tuple(spans),
        {
            e.key: (
                e.count / count,
                e.self_cpu_time_total * 1e-6 / count,
                e.self_device_time_total * 1e-6 / count,
            )
            for e in sorted(totals, key=lambda e: -e.self_cpu_time_total)
        },
        (),
        Evidence.measured(where.name, count),
    )


def _on_device(event: Any) -> bool:
    return str(event.device_type).rpartition(".")[2] != "CPU"


def _span(event: Any, zero: float, windows: Sequence[tuple[float, float]]) -> ProfileSpan | None:
    """Return an event as a span; None for the marks of steps, marks on the device, and events that
    are outside the steps or took no time.
    """
    start, end = (event.time_range.start - zero) * 1e-6, (event.time_range.end - zero) * 1e-6
    if event.name.startswith(_MARK) or end <= start or not windows[0][0] <= start <= windows[-1][1]:
        return None
    if _on_device(event):
        return (
            None if event.is_user_annotation else ProfileSpan(event.name, "device", 0, start, end)
        )
    if event.is_user_annotation:
        return ProfileSpan(
            event.name.rpartition("#")[2], "mark", _depth(event, marks=True), start, end
        )
    return ProfileSpan(event.name, "host", _depth(event, marks=False), start, end)


def _depth(event: Any, *, marks: bool) -> int:
    """Return how many operators (or marks) an event lies in."""
    depth, parent = 0, event.cpu_parent
    while parent is not None:
        if parent.is_user_annotation == marks and not parent.name.startswith(_MARK):
            depth += 1
        parent = parent.cpu_parent
    return depth


# Operators that read values of a tensor on the host, or whose result has a size that depends on
# the values.
# Source: PyTorch, "CUDA semantics"; torch.cuda.set_sync_debug_mode; the shapes of nonzero,
# masked_select and unique; torch.linalg.solve; aten/src/ATen/native/cuda/SummaryOps.cu (bincount,
# histc) and native/Repeat.cpp.
_OPERATORS = {
    "aten::_local_scalar_dense": "reads one number",
    "aten::nonzero": "size depends on values",
    "aten::masked_select": "size depends on values",
    "aten::_unique2": "size depends on values",
    "aten::unique_dim": "size depends on values",
    "aten::unique_consecutive": "size depends on values",
    "aten::equal": "reads one number",
    "aten::bincount": "size depends on values",
    "aten::_linalg_check_errors": "reads whether it failed",
}
_FETCHES = ("cpu", "numpy", "tolist", "__array__", "__repr__", "__format__")
_HERE = str(Path(__file__).resolve().parent.parent)  # gpulab


@dataclass(frozen=True, repr=False)
class HiddenWaits(Result):
    """The known places at which a function makes its host wait for the device.

    Attributes
    ----------
    label, device : str
    calls : int
        How many times the function was called.
    sites : tuple of (str, str, int)
        The line (file and number, then the source), the call and why it waits, and how many times;
        the most frequent first.
    evidence : Evidence
    """

    label: str
    device: str
    calls: int
    sites: tuple[tuple[str, str, int], ...]
    evidence: Evidence

    @property
    def count(self) -> int:
        """How many times the host would wait, in all calls."""
        return sum(count for _, _, count in self.sites)

    def __repr__(self) -> str:
        return f"<{self.label}: {plural(self.count, 'wait')} at {plural(len(self.sites), 'place')}>"

    def table(self) -> Table:
        """Return one row a place."""
        rows = [(line, what, str(count)) for line, what, count in self.sites]
        headers = (f"{self.label}: where the host waits", "call and reason", "times")
        return headers, rows or [("nowhere", "no call that is known to wait", "0")]


@_validate.arguments(
    fn=partial(_validate.instance, kind=Callable, expected="a function. Pass one, not its result."),
    calls=partial(_validate.whole, low=1, high=1000),
    count_to_cpu=_validate.flag,
)
def hidden_waits(
    fn: Callable[..., Any],
    *args: Any,
    calls: int = 1,
    device: Any = None,
    count_to_cpu: bool = False,
) -> HiddenWaits:
    """Call a function and return the places at which it makes the host wait for the device, as far
    as they are known.

    Parameters
    ----------
    fn : callable
        A training step, or a loop of them.
    *args
        For the function.
    calls : int
        1 to 1000.
    device : Device or str, optional
        The device whose tensors count; None takes the best one available. On a CPU all tensors
        count, as if they were on an accelerator, except the step counters that a PyTorch optimizer
        reads, since it keeps them on the host.
    count_to_cpu : bool
        On a CPU: count ``.to("cpu")``, written as a string, as a fetch. By default such a call
        counts only on an accelerator, since on a CPU it may also move data to the program's device.
        ``.to`` with a ``torch.device`` never counts on a CPU: the device may come from a tensor or
        a model, and be the place where the values are already.

    Returns
    -------
    HiddenWaits

    Raises
    ------
    InputError
        If ``fn`` is not a function, or raises.

    Notes
    -----
    The known calls are PyTorch's own that read values, fetch them, or have a result whose size
    depends on them; waits in other libraries show only in CUDA's debug mode
    (``torch.cuda.set_sync_debug_mode``). A call counts once,
    even if PyTorch waits twice inside it (``bincount``). Sending data to the device also waits if
    the memory is not pinned; without an accelerator this cannot be seen. A fetched tensor is on the
    host, and so is everything computed from it alone: reading it does not count again.

    Examples
    --------
    >>> import torch
    >>> hidden_waits(lambda: torch.ones(3).sum().item(), device="cpu").count
    1

    The place that waits most often comes first:

    >>> def step(x):
    ...     first = x[0].item()
    ...     return [value.item() for value in x]
    >>> [count for _, _, count in hidden_waits(step, torch.ones(3), device="cpu").sites]
    [3, 1]
    """
    where = devices.find(device)
    waits = _Waits(where.torch_type, count_to_cpu)
    with (
        devices.guard("hidden_waits: the function", "it to run. Call it once by itself first."),
        uncompiled(),
        waits,
        _fetches(waits),
    ):
        for _ in range(calls):
            fn(*args)
    sites = tuple((line, what, count) for (line, what), count in waits.found.most_common())
    label = getattr(fn, "__name__", "the function").replace("<lambda>", "the function")
    return HiddenWaits(label, str(where), calls, sites, Evidence.measured(where.name, calls))


class _Waits(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A mode that sees each operator, and counts those that read values or have a result whose size
    depends on them. It keeps the waits found so far, and which tensors are on the host.

    Attributes
    ----------
    found : dict
        (line, call and reason) -> how many times.
    is_inside : bool
        Whether a fetch is running. The operators that it calls read values too, but are part of the
        same wait.
    fetched : set
        Without an accelerator: weak references to the storages of tensors that .cpu() or .to("cpu")
        fetched, and of tensors computed from these alone. Reading them does not wait again. A
        reference keeps no data alive, but keeps its address from being used again.
    """

    def __init__(self, device_type: str, count_to_cpu: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.device_type, self.count_to_cpu = device_type, count_to_cpu
        self.found: Counter[tuple[str, str]] = Counter()
        self.is_inside = False
        self.fetched: set[Any] = set()

    def note(self, what: str) -> None:
        """Count a wait at the learner's line."""
        line = _learners_line()
        if line is not None:
            self.found[line, what] += 1

    def inside(self, call: Callable[[], Any]) -> Any:
        """Return the result of a call inside which nothing is counted, since it is part of a wait
        that was counted already.
        """
        self.is_inside = True
        try:
            return call()
        finally:
            self.is_inside = False

    def waits_for(self, values: Any) -> bool:
        """Whether reading these values waits now: a tensor among them is on the device."""
        return not self.is_inside and any(
            x.device.type == self.device_type and not self.on_host(x) for x in tensors_in(values)
        )

    def on_host(self, x: Any) -> bool:
        """Whether this tensor was fetched to the host, or was computed from such tensors alone."""
        return bool(self.fetched) and x.layout is torch.strided and _storage(x) in self.fetched

    def mark(self, values: Any, host: bool) -> None:
        """Remember whether these tensors are on the host from now on."""
        for x in tensors_in(values):
            if x.layout is torch.strided:
                (self.fetched.add if host else self.fetched.discard)(_storage(x))

    def asks_for_host(self, args: Any, kwargs: Any) -> bool:
        """Whether a call of ``.to`` is a fetch. Without an accelerator all tensors are on the CPU,
        so a ``torch.device`` does not count there, and a string only with ``count_to_cpu``.
        """
        words = str if self.device_type == "cpu" else (str, torch.device)
        wanted = [x for x in (kwargs.get("device"), *args[1:2]) if isinstance(x, words)]
        return (self.device_type != "cpu" or self.count_to_cpu) and any(
            str(x).partition(":")[0] == "cpu" for x in wanted
        )

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operator; note whether it waits, and where its result is."""
        kwargs = kwargs or {}
        if torch.is_inference_mode_enabled() and isinstance(func, torch._ops.OpOverload):
            # in inference mode composite operators arrive whole: their parts come here again
            with self:
                made = func.decompose(*args, **kwargs)
            if made is not NotImplemented:
                return made
        name = func.name().partition(".")[0]
        why = _OPERATORS.get(name) or _of_arguments(name, args, kwargs)
        if why and self.waits_for((args, kwargs)):
            call = name.removeprefix("aten::").replace("_local_scalar_dense", "item")
            self.note(f"{call}: {why}")
        result = func(*args, **kwargs)
        # a result that is computed from fetched tensors alone is on the host as well
        if self.fetched and (inputs := tensors_in((args, kwargs))):
            self.mark(result, host=all(map(self.on_host, inputs)))
        return result


def _storage(x: Any) -> Any:
    return StorageWeakRef(x.untyped_storage())  # type: ignore[no-untyped-call]


def _fetches(waits: _Waits) -> Any:
    """Return a mode that sees each call of PyTorch's functions and of tensors' methods, and counts
    those that bring values to the host.
    """

    class Fetches(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            name, kwargs = getattr(func, "__name__", ""), kwargs or {}
            fetches = name in _FETCHES or (name == "to" and waits.asks_for_host(args, kwargs))
            if not (fetches or name == "one_hot") or not waits.waits_for(args[:1]):
                return func(*args, **kwargs)
            if fetches:
                call = "print" if name in ("__repr__", "__format__") else name
                waits.note(f"{call}: fetches the values")
            elif kwargs.get("num_classes", args[1] if len(args) > 1 else -1) == -1:
                # A CPU always reads the classes, to check them. An accelerator reads them only
                # without num_classes, to find the largest.
                waits.note("one_hot: size depends on values")
            result = waits.inside(lambda: func(*args, **kwargs))
            if waits.device_type == "cpu" and name in ("cpu", "to"):
                # On a CPU the result may be the tensor itself. A fetch from an accelerator is a
                # copy, so make one here too.
                result = waits.inside(result.clone)
                waits.mark(result, host=True)
            return result

    return Fetches()


def _of_arguments(name: str, args: Any, kwargs: Any) -> str:
    """Return why an operator that waits only with some arguments waits with these; "" if it does
    not.
    """
    indexes = name == "aten::index" or (
        name == "aten::index_put_" and len(args) > 2 and args[2].numel() > 1
    )
    # a boolean mask selects as many entries as are true
    if indexes and any(x is not None and x.dtype in (torch.bool, torch.uint8) for x in args[1]):
        return "a mask: size depends on values"
    if name == "aten::repeat_interleave" and kwargs.get("output_size") is None:
        return "size depends on values"
    return ""


def _learners_line() -> str | None:
    """Return the innermost line outside of PyTorch and gpulab; None where an optimizer of PyTorch
    reads its own counter.
    """
    for frame, number in traceback.walk_stack(sys._getframe(2)):
        code = frame.f_code
        module = str(frame.f_globals.get("__name__", ""))
        if module.startswith("torch.optim") and code.co_name == "_get_value":
            return None
        if module.partition(".")[0] not in (
            "torch",
            "contextlib",
            "importlib",
        ) and not code.co_filename.startswith(_HERE):
            source = linecache.getline(code.co_filename, number, frame.f_globals).strip()
            name = "cell" if "ipykernel" in code.co_filename else Path(code.co_filename).name
            return f"{name} line {number}: {source}"
    return "not found"
