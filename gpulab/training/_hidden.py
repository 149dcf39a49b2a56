"""Hidden waits: where a training loop makes its host wait for the device.

On an accelerator such a call returns only when everything that was queued before is done, and
meanwhile nothing new is queued. The calls are counted by what the program does, so they show on a
machine without an accelerator too: there each tensor counts as if it lay on one.
"""

from __future__ import annotations

import contextlib
import linecache
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpulab import _given, devices
from gpulab.errors import InputError, kind_of, message_of
from gpulab.evidence import Evidence, Note
from gpulab.results import Result
from gpulab.training._pipeline_results import check_count
from gpulab.units import plural

# What reads values of a tensor on the host, or has a result whose size depends on them.
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
_WARNING = "called a synchronizing CUDA operation"
_HERE = str(Path(__file__).resolve().parent.parent)  # gpulab


@dataclass(frozen=True)
class WaitSite(Result):
    """One line that makes the host wait.

    Attributes
    ----------
    line : str
        File and number, then the source.
    what : str
        The call, and why it waits.
    count : int
    """

    line: str
    what: str
    count: int


@dataclass(frozen=True, repr=False)
class HiddenWaits(Result):
    """The known places at which a function makes its host wait for the device.

    Attributes
    ----------
    label, device : str
    calls : int
        How many times the function was called.
    sites : tuple of WaitSite
        The most frequent first.
    warned : int or None
        The count of CUDA's own debug mode, for comparison; None without CUDA.
    notes : tuple of Note
    evidence : Evidence
    """

    label: str
    device: str
    calls: int
    sites: tuple[WaitSite, ...]
    warned: int | None
    notes: tuple[Note, ...]
    evidence: Evidence

    @property
    def count(self) -> int:
        """How many times the host would wait, in all calls."""
        return sum(site.count for site in self.sites)

    def __repr__(self) -> str:
        return f"<{self.label}: {plural(self.count, 'wait')} at {plural(len(self.sites), 'place')}>"

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        """Return one row a place."""
        rows = [(site.line, site.what, str(site.count)) for site in self.sites] or [
            ("nowhere", "the host never waits", "0")
        ]
        if self.warned is not None:
            rows.append(("CUDA's debug mode counted", "", str(self.warned)))
        rows += [(f"note: {note.code}", note.sentence, "") for note in self.notes]
        return (f"{self.label}: where the host waits", "what it calls", "times"), rows


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
        The device whose tensors count; None takes the best there is. On a CPU all tensors count, as
        if they were on an accelerator, except those that a PyTorch optimizer itself reads, since it
        keeps its step counters on the host.
    count_to_cpu : bool
        On a CPU: count ``.to("cpu")``, written as a string, as a fetch. Without this option such a
        call counts only on an accelerator, since on a CPU it may also be a program that moves data
        to its device. A ``torch.device`` never counts on a CPU: it may come from a tensor or a
        model and name the place where the values are already.

    Returns
    -------
    HiddenWaits

    Raises
    ------
    InputError
        If it is not a function, or raises.

    Notes
    -----
    The known calls are PyTorch's own that read values, fetch them, or have a result whose size
    depends on them; waits in other libraries show only in CUDA's debug mode. A call counts once,
    even if PyTorch waits twice inside it (``bincount``). Sending data to the device also waits if
    the memory is not pinned; without an accelerator this cannot be seen. A fetched tensor is on the
    host, and so is everything computed from it alone: reading it does not count again.

    Examples
    --------
    >>> import torch
    >>> hidden_waits(lambda: torch.ones(3).sum().item(), device="cpu").count
    1
    """
    if not callable(fn):
        raise InputError(
            f"hidden_waits: {kind_of(fn)} was given; expected a function. Pass one, not its result."
        )
    calls = check_count("hidden_waits", "calls", calls, 1, 1000)
    where = devices.find(device)
    waits = _Waits(where.torch_type, _given.flag("hidden_waits", "count_to_cpu", count_to_cpu))
    warned = None
    try:
        with _debug_mode(where) as caught, _operators(waits), _fetches(waits):
            for _ in range(calls):
                fn(*args)
        warned = None if caught is None else sum(_WARNING in str(each.message) for each in caught)
    except Exception as error:
        raise InputError(
            f"hidden_waits: the function raised {type(error).__name__} ({message_of(error)}); "
            "expected it to run. Call it once by itself first."
        ) from error
    sites = tuple(WaitSite(line, what, count) for (line, what), count in waits.found.most_common())
    label = getattr(fn, "__name__", "the function").replace("<lambda>", "the function")
    return HiddenWaits(
        label, str(where), calls, sites, warned, (), Evidence.measured(where.name, calls)
    )


@contextlib.contextmanager
def _debug_mode(device: devices.Device) -> Iterator[list[warnings.WarningMessage] | None]:
    """Give CUDA's own warnings of waits within the block; None on other devices."""
    if device.torch_type != "cuda":
        yield None
        return
    import torch

    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield caught
        finally:
            torch.cuda.set_sync_debug_mode(before)


class _Waits:
    """What has waited so far, and which tensors are on the host; both modes below use it.

    Attributes
    ----------
    found : dict
        (line, what) -> how many times.
    is_inside : bool
        Whether a fetch runs: it calls operators that read, and they are one wait with it.
    fetched : set
        Without an accelerator: where .cpu() or .to("cpu") has put what it fetched, which waits no
        second time. Such a reference keeps no data alive, only its address from being used twice.
    """

    def __init__(self, device_type: str, count_to_cpu: bool) -> None:
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
        """Return what a call returns, in which nothing is counted: it is a part of a wait that
        was.
        """
        self.is_inside = True
        try:
            return call()
        finally:
            self.is_inside = False

    def waits_for(self, values: Any) -> bool:
        """Whether reading these values waits now: a tensor among them is on the device."""
        return not self.is_inside and any(
            x.device.type == self.device_type and not self.on_host(x) for x in _tensors(values)
        )

    def on_host(self, x: Any) -> bool:
        """Whether this tensor was fetched, or is computed of such alone."""
        return bool(self.fetched) and _is_strided(x) and _storage(x) in self.fetched

    def mark(self, values: Any, host: bool) -> None:
        """Remember where these tensors are from now on."""
        for x in filter(_is_strided, _tensors(values)):
            (self.fetched.add if host else self.fetched.discard)(_storage(x))

    def asks_for_host(self, args: Any, kwargs: Any) -> bool:
        """Whether ``.to`` is a fetch: without an accelerator "cpu" is where everything is, so
        .to(device) says nothing there.
        """
        import torch

        words = str if self.device_type == "cpu" else (str, torch.device)
        wanted = [x for x in (kwargs.get("device"), *args[1:2]) if isinstance(x, words)]
        return (self.device_type != "cpu" or self.count_to_cpu) and any(
            str(x).partition(":")[0] == "cpu" for x in wanted
        )


def _tensors(values: Any) -> list[Any]:
    import torch
    from torch.utils._pytree import tree_leaves

    return [x for x in tree_leaves(values) if isinstance(x, torch.Tensor)]


def _is_strided(x: Any) -> bool:
    return str(x.layout) == "torch.strided"


def _storage(x: Any) -> Any:
    from torch.multiprocessing.reductions import StorageWeakRef

    return StorageWeakRef(x.untyped_storage())  # type: ignore[no-untyped-call]


def _operators(waits: _Waits) -> Any:
    """Return a mode that sees each operator, and notes those that read values or have a result
    whose size depends on them.
    """
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    class Operators(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            kwargs = kwargs or {}
            if torch.is_inference_mode_enabled() and isinstance(func, torch._ops.OpOverload):
                # there composite operators arrive whole: what they are made of comes by again
                with self:
                    made = func.decompose(*args, **kwargs)
                if made is not NotImplemented:
                    return made
            name = func.name().partition(".")[0]
            why = _OPERATORS.get(name) or _of_arguments(name, args, kwargs)
            if why and waits.waits_for((args, kwargs)):
                call = name.removeprefix("aten::").replace("_local_scalar_dense", "item")
                waits.note(f"{call}: {why}")
            result = func(*args, **kwargs)
            # computed of fetched tensors alone, it is on the host as well
            if waits.fetched and (inputs := _tensors((args, kwargs))):
                waits.mark(result, host=all(map(waits.on_host, inputs)))
            return result

    return Operators()  # type: ignore[no-untyped-call]


def _fetches(waits: _Waits) -> Any:
    """Return a mode that sees each call of a tensor's own, and notes those that bring its values to
    the host.
    """
    from torch.overrides import TorchFunctionMode

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
                # a CPU reads the classes to check them; an accelerator reads the largest, and only
                # where it is asked for
                waits.note("one_hot: size depends on values")
            result = waits.inside(lambda: func(*args, **kwargs))
            if waits.device_type == "cpu" and name in ("cpu", "to"):
                # a tensor of its own, as one from an accelerator
                result = waits.inside(result.clone)
                waits.mark(result, host=True)
            return result

    return Fetches()


def _of_arguments(name: str, args: Any, kwargs: Any) -> str:
    """Return why an operator waits with these arguments, where another call of it does not."""
    if name == "aten::index" or (
        name == "aten::index_put_" and len(args) > 2 and args[2].numel() > 1
    ):
        # a mask of truth values selects as many entries as are true
        kinds = ("torch.bool", "torch.uint8")
        if any(x is not None and str(x.dtype) in kinds for x in args[1]):
            return "a mask: size depends on values"
    if name == "aten::repeat_interleave" and kwargs.get("output_size") is None:
        return "size depends on values"
    if name == "aten::histc":
        low, high = (
            kwargs.get(word, args[k] if len(args) > k else 0)
            for k, word in ((2, "min"), (3, "max"))
        )
        return "reads the smallest and the largest" if low == high else ""
    return ""


def _learners_line() -> str | None:
    """Return the innermost line outside of PyTorch and gpulab; None where an optimizer of PyTorch
    reads its own counter.
    """
    frame: Any = sys._getframe(2)
    while frame is not None:
        code = frame.f_code
        module = str(frame.f_globals.get("__name__", ""))
        if module.startswith("torch.optim") and code.co_name == "_get_value":
            return None
        if module.partition(".")[0] not in (
            "torch",
            "contextlib",
            "importlib",
        ) and not code.co_filename.startswith(_HERE):
            source = linecache.getline(code.co_filename, frame.f_lineno, frame.f_globals).strip()
            name = "cell" if "ipykernel" in code.co_filename else Path(code.co_filename).name
            return f"{name} line {frame.f_lineno}: {source}"
        frame = frame.f_back
    return "not found"
