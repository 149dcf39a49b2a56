"""Sweep a link over sizes: each point a small measurement; on a machine without an accelerator, the
host copy.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from gpulab import _given, devices, timing
from gpulab.devices import Device
from gpulab.errors import GpulabError, InputError, StoppedError, kind_of, shown
from gpulab.evidence import Evidence, Note
from gpulab.recordings import Recording
from gpulab.timing import Measurement
from gpulab.transfer._copies import (
    DIRECTIONS,
    MEMORY,
    Buffers,
    allocate,
    can_pin,
    check_room,
    check_series,
    measure_buffers,
)
from gpulab.transfer._links import DEFAULT_LINK, Link, check_sizes, named_link
from gpulab.transfer.results import Sweep, SweepPoint
from gpulab.units import format_bytes
from gpulab.workloads._fits import MARGIN, free_bytes

Progress = Callable[[float, str], None]
Stop = Callable[[], bool]

# Default sizes stop where the buffers would take more than this share of what is free.
_SHARE_OF_FREE = 0.25
# No point gets less than this: below it there are too few samples for an interval.
_LEAST_SECONDS = 0.03
# The noise that a modelled sweep gets where none is asked for: that of a quiet machine's medians.
_MODELLED_NOISE = 0.03
# Notes of single points that concern the whole sweep.
_TOLD = ("contended", "throttled", "stalled", "unstable", "turn-taking")
# All-core copy for the comparison with a host copy: large enough to leave every cache.
_BANDWIDTH_BYTES = 256 * 2**20


def sweep(
    device: Any = None,
    directions: Sequence[str] = DIRECTIONS,
    memory: Sequence[str] = MEMORY,
    sizes: Iterable[int] | None = None,
    *,
    library: str = "torch",
    link: Link | str | None = None,
    deadline: float = 20.0,
    progress: Progress | None = None,
    stop: Stop | None = None,
) -> Sweep:
    """Measure copies between host and device over sizes.

    On a machine whose only device is the CPU, the copy within host memory is measured instead
    (direction "host"), and also the rate of the memory when all cores copy. With ``link`` nothing
    is measured: the sweep is computed from that link's model.

    Parameters
    ----------
    device : Device or str, optional
        The accelerator; the best one available by default.
    directions : sequence of str
        "to_device" and "to_host".
    memory : sequence of str
        "pageable" and "pinned" host buffers.
    sizes : iterable of int, optional
        Bytes; by default powers of two from 1 KiB to 1 GiB, as far as a quarter of the free memory
        reaches.
    library : str
        "torch" or "cupy".
    link : Link or str, optional
        A modelled link, with 3 % of generated, seeded noise (``Link.sweep`` takes other values).
    deadline : float
        Seconds for the whole; large sizes may take a little longer.
    progress : callable, optional
        Gets a fraction 0-1 and a short text.
    stop : callable, optional
        Called between points; True ends the sweep with the note "stopped".

    Returns
    -------
    Sweep

    Raises
    ------
    InputError
        If a size, direction, kind of memory or library is not valid.
    OutOfMemoryError
        If a requested size does not fit; nothing has been allocated.
    DeviceError
        If the machine has no such device.
    StoppedError
        If it was stopped before the first point.

    Examples
    --------
    >>> s = sweep("cpu", sizes=[2**12, 2**16], deadline=0.1)
    >>> [(p.direction, p.nbytes) for p in s.points]
    [('host', 4096), ('host', 65536)]
    """
    if link is not None:
        return (link if isinstance(link, Link) else named_link(link)).sweep(
            sizes, noise_ratio=_MODELLED_NOISE
        )
    deadline = _given.deadline("sweep", deadline)
    progress, stop = (
        _given.callback("sweep", "progress", progress),
        _given.callback("sweep", "stop", stop),
    )
    where = devices.find(device)
    wanted = _series(where, directions, memory, library)
    chosen = _sizes(where, wanted[0][0], sizes)
    runner = _Runner(
        where, library, len(wanted) * len(chosen), deadline=deadline, progress=progress, stop=stop
    )
    for direction, kind in wanted:
        runner.series(direction, kind, chosen)
        if runner.stopped:
            break
    return runner.result()


def _series(
    device: Device, directions: Sequence[str], memory: Sequence[str], library: str
) -> list[tuple[str, str]]:
    """Return the (direction, memory) pairs to measure."""
    for name, words in (("directions", directions), ("memory", memory)):
        if isinstance(words, str) or not isinstance(words, Sequence) or not words:
            known = DIRECTIONS if name == "directions" else MEMORY
            raise InputError(
                f"sweep: {name} is {shown(words)}; expected a sequence of names. Pass for example "
                f"{name}={known}."
            )
    if device.is_cpu:
        for direction in directions:
            check_series(
                "sweep",
                "host" if isinstance(direction, str) and direction in DIRECTIONS else direction,
                memory[0],
                device,
                library,
            )
        return [("host", "pageable")]
    if any(isinstance(direction, str) and direction == "host" for direction in directions):
        raise InputError(
            "sweep: the direction 'host' is a copy within host memory, which does not involve "
            f"{device.name}; expected to_device "
            "or to_host. Pass device='cpu' for that copy."
        )
    possible = (
        [kind for kind in memory if kind != "pinned" or can_pin(device)]
        if len(memory) > 1
        else list(memory)
    )
    pairs = [(direction, kind) for direction in directions for kind in possible]
    for direction, kind in pairs:
        check_series("sweep", direction, kind, device, library)
    return pairs


def _sizes(device: Device, direction: str, sizes: Iterable[int] | None) -> tuple[int, ...]:
    """Return sizes that fit; those asked for must."""
    chosen = check_sizes("sweep", sizes)
    if sizes is not None:
        check_room("sweep", device, direction, chosen[-1])
        return chosen
    free = [f for f in (free_bytes(Device("cpu")), free_bytes(device)) if f is not None]
    largest = min(free, default=chosen[-1]) * _SHARE_OF_FREE / MARGIN
    return tuple(n for n in chosen if n <= largest) or chosen[:1]


class _Runner:
    """A sweep under way: what was measured, what is left of the time."""

    def __init__(
        self,
        device: Device,
        library: str,
        total: int,
        *,
        deadline: float,
        progress: Progress | None,
        stop: Stop | None,
    ) -> None:
        self.device, self.library = device, library
        self.total, self.end = total, time.perf_counter() + deadline
        self.progress, self.stop = progress, stop
        self.points: list[SweepPoint] = []
        self.codes: Counter[str] = Counter()
        self.sentences: dict[str, str] = {}
        self.notes: list[Note] = []
        self.stopped = False

    def series(self, direction: str, memory: str, sizes: tuple[int, ...]) -> None:
        """Measure one series; a series that cannot be had at all becomes a note."""
        try:
            buffers = allocate(
                "sweep", direction, memory, self.device, library=self.library, nbytes=sizes[-1]
            )
        except GpulabError as error:
            if not self.points:
                raise
            self.notes.append(
                Note("skipped", f"{direction} from {memory} memory was left out: {error}")
            )
            return
        for nbytes in sizes:
            if self._asked_to_stop():
                return
            self._say(f"{direction} {memory} {format_bytes(nbytes)}")
            try:
                m = measure_buffers(buffers, nbytes, self.device, self.share, stop=self.stop)
            except StoppedError:
                self.stopped = True
                return
            self._add(buffers, nbytes, m)

    def _asked_to_stop(self) -> bool:
        self.stopped = self.stopped or (self.stop is not None and self.stop())
        return self.stopped

    @property
    def share(self) -> float:
        """Seconds for the next point: small sizes are precise early, and leave their time to the
        large ones.
        """
        return max(
            (self.end - time.perf_counter()) / max(self.total - len(self.points), 1), _LEAST_SECONDS
        )

    def _say(self, text: str) -> None:
        if self.progress is not None:
            self.progress(len(self.points) / self.total, text)

    def _add(self, buffers: Buffers, nbytes: int, m: Measurement) -> None:
        count = len(m.samples_seconds)
        self.points.append(
            SweepPoint(
                buffers.direction,
                buffers.memory,
                nbytes,
                m.median_seconds,
                m.interval_seconds,
                count,
            )
        )
        for note in m.notes:
            if note.code in _TOLD:
                self.codes[note.code] += 1
                self.sentences.setdefault(note.code, note.sentence)

    def _all_notes(self) -> Iterator[Note]:
        yield from self.notes
        for code, count in self.codes.items():
            yield Note(
                code, f"{count} of {len(self.points)} points; the first: {self.sentences[code]}"
            )
        if self.stopped:
            yield Note(
                "stopped",
                f"The sweep was stopped after {len(self.points)} of {self.total} points; run it "
                "again for the rest.",
            )

    def result(self) -> Sweep:
        """Return what was reached."""
        if not self.points:
            raise StoppedError(
                "sweep: stopped before the first point; expected at least one. Run it again."
            )
        bandwidth = None
        if self.points[0].direction == "host" and not self._asked_to_stop():
            self._say("all cores copy")
            bandwidth = memory_bandwidth_bytes_per_second(self.share)
        if self.progress is not None:
            self.progress(1.0, "done")
        environment = devices.environment(self.device)
        samples = sum(p.samples for p in self.points)
        library = "numpy" if self.points[0].direction == "host" else self.library
        evidence = Evidence.measured(self.device.name, samples, environment.date)
        return Sweep(
            self.device.name,
            library,
            tuple(self.points),
            bandwidth,
            tuple(self._all_notes()),
            evidence,
            environment,
        )


def recorded_sweep(recording: Recording) -> Sweep | None:
    """Return a recorded machine's sweep, or None: "not recorded yet".

    Parameters
    ----------
    recording : Recording
        See ``gpulab.recordings.load``.

    Raises
    ------
    InputError
        If it is not a recording.
    """
    if not isinstance(recording, Recording):
        raise InputError(
            f"recorded_sweep: got {kind_of(recording)}; expected a Recording. Pass "
            "gl.recordings.load(name)."
        )
    points = tuple(
        SweepPoint(
            str(entry.params["direction"]),
            str(entry.params["memory"]),
            int(entry.params["nbytes"]),
            entry.timing.median_seconds,
            entry.timing.interval_seconds,
            entry.timing.sample_count,
        )
        for entry in recording.select("transfer")
        if entry.timing is not None
    )
    if not points:
        return None
    return Sweep(
        recording.environment.device,
        "torch",
        points,
        None,
        (),
        recording.evidence(),
        recording.environment,
    )


def memory_bandwidth_bytes_per_second(deadline: float = 0.5) -> float:
    """Measure what the host's memory moves when all cores copy: bytes read and bytes written a
    second, together.

    Parameters
    ----------
    deadline : float
        Seconds.

    Raises
    ------
    OutOfMemoryError
        If not even 2 MiB are free.
    """
    import torch

    free = free_bytes(Device("cpu")) or _BANDWIDTH_BYTES * 8
    nbytes = int(min(_BANDWIDTH_BYTES, free * _SHARE_OF_FREE / 2))
    check_room("memory_bandwidth_bytes_per_second", Device("cpu"), "host", max(nbytes, 2**20))
    source, target = torch.ones(nbytes // 4), torch.zeros(nbytes // 4)
    m = timing.measure(
        target.copy_, source, device="cpu", deadline=deadline, label="all cores copy"
    )
    return 2 * source.nbytes / m.median_seconds


def link(
    name: str | None = None,
    latency_seconds: float | None = None,
    bandwidth_bytes_per_second: float | None = None,
    memory: str = "pinned",
    deadline: float = 3.0,
) -> Link:
    """Return a link: a named model, or this machine's own link where it has an accelerator.

    Parameters
    ----------
    name : str, optional
        One of ``link_names()`` ("pcie4" is enough). None measures the host-to-device copies of this
        machine; without an accelerator it is PCIe 4 x16, modelled.
    latency_seconds, bandwidth_bytes_per_second : float, optional
        Values of your own in place of the named link's.
    memory : str
        "pinned" or "pageable" host memory.
    deadline : float
        Seconds for the measurement.

    Returns
    -------
    Link
        Its ``evidence`` says whether it is MEASURED or MODELLED.

    Raises
    ------
    InputError
        If there is no such link, or a value is not positive.

    Examples
    --------
    >>> link("pcie3").bandwidth_bytes_per_second
    12350000000.0
    """
    own_values = latency_seconds is not None or bandwidth_bytes_per_second is not None
    if name is None and not own_values:
        where = devices.default()
        if not where.is_cpu and (memory == "pageable" or can_pin(where)):
            measured = sweep(where, ("to_device",), (memory,), deadline=deadline)
            return Link.from_fit(measured.fit(), f"{where.name}, {memory} memory")
    return named_link(
        DEFAULT_LINK if name is None else name, latency_seconds, bandwidth_bytes_per_second, memory
    )
