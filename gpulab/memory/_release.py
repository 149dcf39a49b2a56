"""Give back the memory that a failed cell left behind.

When a cell raises, Python keeps the last traceback for the debugger; its frames keep every local
variable of the functions that failed, so after an out-of-memory error the memory stays full
(pytorch/pytorch#27600, ipython/ipython#11572).
"""

from __future__ import annotations

import ctypes
import gc
import sys
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from gpulab import _given, devices
from gpulab.devices import host_facts
from gpulab.evidence import Evidence, Note
from gpulab.memory._snapshot import arrays_in, storage_of, torch_bytes
from gpulab.results import Result
from gpulab.units import format_bytes, plural


@dataclass(frozen=True)
class Released(Result):
    """The memory that was freed, measured before and after.

    Attributes
    ----------
    device : str
    device_free_before_bytes, device_free_after_bytes : int or None
        Free memory of the device; None where it is not reported.
    host_resident_before_bytes, host_resident_after_bytes : int
        Physical memory of this process.
    what : tuple of str
        What was done, and what is still held, in sentences.
    notes : tuple of Note
    evidence : Evidence
    """

    device: str
    device_free_before_bytes: int | None
    device_free_after_bytes: int | None
    host_resident_before_bytes: int
    host_resident_after_bytes: int
    what: tuple[str, ...]
    notes: tuple[Note, ...]
    evidence: Evidence

    @property
    def freed_host_bytes(self) -> int:
        """How many bytes this process shrank by; negative if it grew."""
        return self.host_resident_before_bytes - self.host_resident_after_bytes

    @property
    def freed_device_bytes(self) -> int:
        """How many bytes were freed on the device; on a CPU, how many bytes this process shrank
        by.
        """
        if self.device == "cpu":
            return self.freed_host_bytes
        if self.device_free_before_bytes is None or self.device_free_after_bytes is None:
            return 0
        return self.device_free_after_bytes - self.device_free_before_bytes

    def __repr__(self) -> str:
        return (
            f"<{format_bytes(self.freed_device_bytes)} freed on {self.device}, "
            f"{format_bytes(self.freed_host_bytes)} in this process>"
        )

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        """Return the bytes that were freed, then what was done."""
        rows = [(f"freed on {self.device}", format_bytes(self.freed_device_bytes))]
        if self.device != "cpu":
            rows.append(("this process shrank by", format_bytes(self.freed_host_bytes)))
        rows += [("", sentence) for sentence in self.what]
        rows += [(f"note: {note.code}", note.sentence) for note in self.notes]
        return ("released", ""), rows


def release(device: Any = None, outputs: bool = False) -> Released:
    """Free what the last failure holds and what allocators keep, and report how many bytes were
    freed.

    Clears the local variables in the frames of the last traceback (its text stays; ``%debug`` can
    no longer look into them), collects garbage, and empties the caches of torch, CuPy and, on
    Linux, the C library. Your variables are never touched.

    Parameters
    ----------
    device : None, str or Device
        Whose free memory is compared; None takes the best one available. Caches of all devices are
        emptied.
    outputs : bool
        Also drop arrays from IPython's output cache (``Out``, ``_``, ``_3``, ...). False only
        reports them.

    Returns
    -------
    Released

    Raises
    ------
    DeviceError
        If the machine has no such device, or it vanished.
    InputError
        If ``outputs`` is neither True nor False.

    Examples
    --------
    >>> from gpulab import memory
    >>> memory.release("cpu").device
    'cpu'
    """
    outputs = _given.flag("release", "outputs", outputs)
    where = devices.find(device)
    if not where.is_cpu:
        where.synchronize()  # work in flight still holds its tensors
    free, resident = where.free_bytes, host_facts.resident_bytes()
    what = [_clear_tracebacks(), *_outputs(where, drop=outputs)]
    what.append(f"Collected garbage ({gc.collect()} unreachable objects).")
    with devices.guard(f"release: emptying the caches of {where}"):
        what += _empty_caches()
    # glibc's call gives free pages back to the system; other C libraries have none
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)
    return Released(
        device=str(where),
        device_free_before_bytes=free,
        device_free_after_bytes=where.free_bytes,
        host_resident_before_bytes=resident,
        host_resident_after_bytes=host_facts.resident_bytes(),
        what=tuple(what),
        notes=(),
        evidence=Evidence.measured(where.name),
    )


def _failures() -> Iterator[BaseException]:
    """Yield the last errors that Python and IPython keep, with their causes and contexts."""
    waiting = [getattr(sys, "last_exc", None), getattr(sys, "last_value", None), sys.exc_info()[1]]
    seen: set[int] = set()
    while waiting:
        error = waiting.pop()
        if isinstance(error, BaseException) and id(error) not in seen:
            seen.add(id(error))
            yield error
            waiting += [error.__cause__, error.__context__, *getattr(error, "exceptions", ())]


def _clear_tracebacks() -> str:
    frames = 0
    kept = [getattr(sys, "last_traceback", None), *(each.__traceback__ for each in _failures())]
    for held in {id(each): each for each in kept if each is not None}.values():
        traceback.clear_frames(held)
        for frame, _ in traceback.walk_tb(held):
            frames += 1
            # Up to Python 3.12 a frame keeps the dictionary that it once showed to a debugger or to
            # IPython, and clear() leaves that alone; reading f_locals again brings it up to date,
            # which empties it.
            _ = frame.f_locals
    if not frames:
        return "No failed cell's traceback was kept."
    return f"Cleared the local variables in {plural(frames, 'frame')} of the last traceback."


def _outputs(where: devices.Device, drop: bool) -> list[str]:
    module = sys.modules.get("IPython.core.getipython")  # found without importing IPython
    shell = module.get_ipython() if module is not None else None
    if shell is None:
        return []
    cache = shell.user_ns.get("_oh", {})
    holding: dict[Any, int] = {}
    for number, value in list(cache.items()):
        keys = [storage_of(array, where) for _, array in arrays_in("", value)]
        nbytes = sum({key[:2]: key[2] for key in keys if key is not None}.values())
        if nbytes:
            holding[number] = nbytes
    if not holding:
        return []
    listed = ", ".join(
        f"Out[{number}] {format_bytes(nbytes)}"
        for number, nbytes in sorted(holding.items(), key=lambda item: -item[1])[:5]
    )
    if not drop:
        return [
            f"IPython's output cache still holds arrays on {where}: {listed}. Call "
            "gl.memory.release(outputs=True) to drop them."
        ]
    dropped = [cache.pop(number) for number in holding]
    # IPython keeps the names in both
    for namespace in (shell.user_ns, getattr(shell, "user_ns_hidden", {})):
        for name, kept in list(namespace.items()):
            if name.startswith("_") and any(kept is value for value in dropped):
                namespace[name] = ""
    hook = shell.displayhook
    for name in ("_", "__", "___"):
        if any(getattr(hook, name, None) is value for value in dropped):
            setattr(hook, name, "")
    return [f"Dropped from IPython's output cache: {listed}."]


def _empty_caches() -> list[str]:
    done, torch, cupy = [], sys.modules.get("torch"), sys.modules.get("cupy")
    accelerators = devices.available()[1:] if torch is not None else ()
    if torch is not None:
        torch.clear_autocast_cache()
    if torch is not None and accelerators:
        before = sum(torch_bytes(each)[1] for each in accelerators)
        if torch.cuda.is_initialized() and hasattr(torch._C, "_cuda_clearCublasWorkspaces"):
            torch._C._cuda_clearCublasWorkspaces()
        getattr(torch, accelerators[0].torch_type).empty_cache()
        after = sum(torch_bytes(each)[1] for each in accelerators)
        done.append(f"PyTorch's cache released {format_bytes(before - after)}.")
    if cupy is not None and cupy.cuda.is_available():
        pool = cupy.get_default_memory_pool()
        before = pool.total_bytes()
        pool.free_all_blocks()
        cupy.get_default_pinned_memory_pool().free_all_blocks()
        done.append(f"CuPy's pool released {format_bytes(before - pool.total_bytes())}.")
    return done
