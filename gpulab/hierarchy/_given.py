"""Validation of sizes, methods and deadlines, and what the system reports about the caches."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from gpulab import _given, devices
from gpulab.devices import Device, _cpu, _facts
from gpulab.errors import InputError, OutOfMemoryError, StoppedError, shown
from gpulab.evidence import Note
from gpulab.hierarchy._chains import LINE_BYTES, methods
from gpulab.hierarchy.results import Reported
from gpulab.timing import Measurement
from gpulab.units import format_bytes
from gpulab.workloads._fits import MARGIN, free_bytes

Progress = Callable[[float, str], None]
Stop = Callable[[], bool]
Clock = Callable[[], float]

_SMALLEST, _LARGEST = 2**10, 2**34
# Default sets reach from a part of any first cache to twice the last one, as far as making the
# nodes takes no more than seconds. A GPU's L2 is slow to give way (seen on an H200: its halves,
# then both, then flat from 1.5 times its 60 MiB on), and its nodes are made at once.
_TIMES_THE_LAST = {"cpu": 2, "gpu": 4}
_FIRST, _LAST = 2**12, {"python": 2**26, "numba": 2**27, "numpy": 2**27, "cupy": 2**29}
_LEAST_LAST = 2**24
# Above this the sets are dear to make, and one for each doubling does.
_FINE_TO = 2**23
_SHARE_OF_FREE = 0.25
# Bytes taken for each byte of the set: nodes, their list, and the order while it is made.
_OVERHEAD = {"python": 2.0, "numba": 2.0, "numpy": 1.1, "cupy": 2.0}
_LEAST_SECONDS = 0.03
_TOLD = ("contended", "throttled", "stalled", "unstable", "turn-taking")


def where(function: str, device: Any) -> Device:
    """Return the device: the CPU or a CUDA one.

    Raises
    ------
    InputError
        If it is another accelerator: there is no chase for it yet.
    """
    found = devices.find(device)
    if not found.is_cpu and found.torch_type != "cuda":
        raise InputError(
            f"{function}: {found.name} has no chase implementation; expected the CPU or a CUDA "
            "device. Pass device='cpu'."
        )
    return found


def method_of(function: str, method: str | None, device: Device) -> str:
    """Return how to chase: what was requested, else the most precise method available."""
    known = methods() if device.is_cpu else ("cupy",)
    if method is None:
        return known[0]
    return _given.word(function, "method", method, ("numba", "python") if device.is_cpu else known)


def sizes_of(
    function: str, sizes: Iterable[int] | None, device: Device, method: str
) -> tuple[int, ...]:
    """Return working sets in whole lines, ascending.

    By default two for each doubling (one above 8 MiB), as far as a quarter of the free memory
    reaches.

    Raises
    ------
    InputError
        If a size is not a whole number of bytes from 1 KiB to 16 GiB.
    OutOfMemoryError
        If a requested size does not fit; nothing has been allocated.
    """
    room = min(
        (f for f in (free_bytes(Device("cpu")), free_bytes(device)) if f is not None),
        default=float(_LARGEST),
    )
    if sizes is None:
        times = _TIMES_THE_LAST["cpu" if device.is_cpu else "gpu"]
        last = max([_LEAST_LAST, *(times * cache.size_bytes for cache in reported(device))])
        end = min(last, _LAST[method], room * _SHARE_OF_FREE / _OVERHEAD[method])
        doublings = range(_FIRST.bit_length() - 1, _LARGEST.bit_length())
        halves = (n for k in doublings for n in (2**k, 2**k + 2 ** (k - 1)) if n <= end)
        return tuple(n for n in halves if n <= _FINE_TO or n.bit_count() == 1) or (_FIRST,)
    chosen = _given.items(function, "sizes", sizes)
    for n in chosen:
        if not _given.is_whole(n) or not _SMALLEST <= n <= _LARGEST:
            raise InputError(
                f"{function}: a size is {shown(n)}; expected whole numbers of bytes from 1 KiB to "
                "16 GiB. Pass for example "
                "sizes=[2**k for k in range(12, 27)]."
            )
    if not chosen:
        raise InputError(
            f"{function}: sizes is empty; expected at least one size in bytes. Leave it out for "
            "the default."
        )
    needed = max(chosen) * _OVERHEAD[method] * MARGIN
    if needed > room:
        raise OutOfMemoryError(
            f"{function}: a working set of {format_bytes(max(chosen))} needs about "
            f"{format_bytes(needed)} to set up; "
            f"expected at most {format_bytes(room)}, which is free. Pass smaller sizes."
        )
    return tuple(sorted({int(n) // LINE_BYTES * LINE_BYTES for n in chosen}))


def reported(device: Device) -> tuple[Reported, ...]:
    """Return the caches that the system reports (of a GPU: its L2), smallest first; empty where it
    reports none.
    """
    if device.is_cpu:
        return tuple(
            Reported(cache.level, float(cache.size_bytes)) for cache in _cpu.probe().caches
        )
    l2 = _facts.accelerator(device).l2_bytes
    return (Reported("L2", float(l2)),) if l2 else ()


class Run:
    """A running measurement of many points: the time that is left, the progress callback, and the
    notes.
    """

    def __init__(
        self, function: str, total: int, deadline: float, *, progress: Any, stop: Any, clock: Any
    ) -> None:
        self.function, self.total, self.done = function, total, 0
        self.progress: Progress | None = _given.callback(function, "progress", progress)
        self.stop: Stop | None = _given.callback(function, "stop", stop)
        self.given_clock: Clock | None = clock
        self.clock: Clock = clock or time.perf_counter
        self.end = self.clock() + _given.deadline(function, deadline)
        self.stopped = False
        self._codes: Counter[str] = Counter()
        self._sentences: dict[str, str] = {}

    def asked_to_stop(self) -> bool:
        """Return whether the work must end."""
        self.stopped = self.stopped or (self.stop is not None and self.stop())
        return self.stopped

    @property
    def share(self) -> float:
        """Seconds for the next point."""
        return max((self.end - self.clock()) / max(self.total - self.done, 1), _LEAST_SECONDS)

    @property
    def over(self) -> bool:
        """Whether the time is used up."""
        return self.clock() >= self.end

    def say(self, text: str) -> None:
        """Report the progress."""
        if self.progress is not None:
            self.progress(self.done / self.total, text)

    def measured(self, m: Measurement) -> Measurement:
        """Count a measurement and keep its notes."""
        self.done += 1
        for note in m.notes:
            if note.code in _TOLD:
                self._codes[note.code] += 1
                self._sentences.setdefault(note.code, note.sentence)
        return m

    def finished(self) -> tuple[Note, ...]:
        """Return the notes; the work is over.

        Raises
        ------
        StoppedError
            If nothing was measured.
        """
        if not self.done:
            raise StoppedError(
                f"{self.function}: stopped before the first point; expected at least one. Run it "
                "again."
            )
        if self.progress is not None:
            self.progress(1.0, "done")
        return tuple(self._notes())

    def _notes(self) -> Iterator[Note]:
        for code, count in self._codes.items():
            yield Note(
                code, f"{count} of {self.done} measurements; the first: {self._sentences[code]}"
            )
        if self.stopped:
            yield Note(
                "stopped",
                f"Stopped after {self.done} of {self.total} measurements; run it again for the "
                "rest.",
            )
