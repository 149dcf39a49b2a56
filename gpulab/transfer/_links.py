"""Links between host and device: as formulas, and as sweeps over sizes.

A modelled link is a latency and a bandwidth; a machine without a GPU uses it, badged MODELLED. The
named links have published rates measured on such hardware, or the data sheet's rate where no
measurement was published; each states its source. The user may set either number.

A sweep measures copies between two buffers that are allocated in advance; each point is a small
measurement. On a machine without an accelerator it measures the copy within host memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from gpulab import _validate, devices, timing
from gpulab.devices import Device
from gpulab.errors import GpulabError, InputError, OutOfMemoryError, StoppedError, shown
from gpulab.evidence import Evidence, Note
from gpulab.recordings import Recording
from gpulab.recordings.schema import RECORDING
from gpulab.results import Result
from gpulab.timing import Measurement
from gpulab.timing.measuring import Series
from gpulab.timing.sampling import Progress, Stop
from gpulab.transfer.copies import SERIES_WORDS, Sweep, SweepPoint
from gpulab.units import format_bytes, format_bytes_per_second, format_seconds
from gpulab.workloads import MARGIN, free_bytes

# Default sizes of sweeps: every power of two from 1 KiB to 1 GiB.
SIZES = tuple(2**k for k in range(10, 31))

# No memory is larger than this.
BYTES = partial(_validate.whole, low=1, high=2**62, advice="Pass for example 2**20.")

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
# (Link, memory) -> what benchmarks/model_errors.py prints for a recorded machine with that link; a
# test compares the two.
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

    @_validate.arguments(nbytes=_validate.within)
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
        return self.latency_seconds + nbytes / self.bandwidth_bytes_per_second

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
        chosen = check_sizes(sizes)
        scatter = np.exp(noise_ratio * drawn.standard_normal((2, len(chosen))))
        points = tuple(
            SweepPoint(direction, "pinned", n, self.seconds(n) * float(factor), None, 0)
            for direction, row in zip(("to_device", "to_host"), scatter, strict=True)
            for n, factor in zip(chosen, row, strict=True)
        )
        noise = f"; generated noise of {noise_ratio:.0%} with seed {seed}" if noise_ratio else ""
        evidence = Evidence.modelled(
            f"{self.evidence.assumptions or self.name}{noise}",
            self.evidence.source or "the fit of a measured sweep",
            self.evidence.known_error,
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
    """Return a modelled link by name (see ``gpulab.transfer.link``), or the link itself."""
    if isinstance(name, Link):
        return name
    word = (name if isinstance(name, str) else "").lower().replace("_", "-").replace(" ", "-")
    key = word if word in _RATES else f"{word}-x16"
    if key not in _RATES:
        raise InputError(
            f"link: {shown(name)} is not a known link; expected one of: "
            f"{', '.join(_RATES)}. Pass one of these."
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
    is_own_rate = bandwidth_bytes_per_second is not None
    words = (
        f"{format_seconds(latency)} a copy "
        f"{'(typical of a call and the wait for it)' if latency_seconds is None else 'chosen'}",
        f"{format_bytes_per_second(bandwidth)}{' chosen' if is_own_rate else ''}, straight line",
        "" if memory == "pinned" or is_own_rate else "pageable memory at half the rate of pinned",
    )
    as_named = latency_seconds is None and not is_own_rate
    return Link(
        key,
        latency,
        bandwidth,
        Evidence.modelled(
            ", ".join(filter(None, words)),
            source,
            KNOWN_ERRORS.get((key, memory)) if as_named else None,
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
        _validate.word(self.name, "dtype", dtype, self.flops_per_second)
        return self.launch_seconds + max(
            flops / self.flops_per_second[dtype], nbytes / self.bytes_per_second
        )


_PROCESSORS: Mapping[str, ProcessorModel] = {
    "nvidia-h200": ProcessorModel(
        name="nvidia-h200",
        # float32 as measured by RRZE-HPC/gpu-benches; bfloat16 the middle of 770-800 TFLOP/s
        # measured for an 8192-cubed product.
        flops_per_second={
            "float64": 34e12,
            "float32": 42.5e12,
            "bfloat16": 785e12,
            "float16": 785e12,
        },
        bytes_per_second=3.77e12,
        launch_seconds=2.5e-6,
        evidence=Evidence.modelled(
            "every call reaches the rates of large ones: 42.5 TFLOP/s in float32 and 34 in "
            "float64, both without tensor cores (PyTorch uses them in convolutions of float32, as "
            "TF32, and in products of float64), and 3.77 TB/s, after a launch of 2.5 us",
            "RRZE-HPC/gpu-benches (H200: FP32, triad, launch spacing); NVIDIA H200 data sheet "
            "(float64)",
            "on nvidia-h200 the recorded time is 4.1 times the model's in the median of 416 cases, "
            "1.2 to 21 times in the middle 80 %",
        ),
    )
}


def processor(which: ProcessorModel | str) -> ProcessorModel:
    """Return a modelled processor by name, or the model itself.

    Raises
    ------
    InputError
        If there is no such model.
    """
    if isinstance(which, ProcessorModel):
        return which
    return _PROCESSORS[_validate.word("processor", "which", which, _PROCESSORS)]


def check_sizes(sizes: Iterable[int] | None) -> tuple[int, ...]:
    """Return the sizes ascending and without repeats; None gives the sizes of a full sweep.

    Raises
    ------
    InputError
        If there are none, or one is not a positive whole number.
    """
    if sizes is None:
        return SIZES
    given = _validate.items("sweep", "sizes", sizes, "sizes=[2**10, 2**20]")
    return tuple(sorted({BYTES("sweep", "nbytes", n) for n in given}))


# From a number of bytes to a function that copies them and returns when the copy is complete.
Copies = Callable[[int], Callable[[], Any]]

DIRECTIONS = ("to_device", "to_host")
MEMORY = ("pageable", "pinned")

# The requested precision of each point: a quarter of the uncertainty of a fit's curve.
_RELATIVE_WIDTH = 0.02
# Default sizes stop where the buffers would take more than this share of the free memory.
_SHARE_OF_FREE = 0.25
# The noise of the modelled sweep that ``sweep`` returns: that of medians on a quiet machine.
_MODELLED_NOISE = 0.03
# Bytes of the copy by all cores, for comparison with a host copy: too large for any cache.
_BANDWIDTH_BYTES = 256 * 2**20


def sweep(
    device: Any = None,
    directions: Sequence[str] = DIRECTIONS,
    memory: Sequence[str] = MEMORY,
    sizes: Iterable[int] | None = None,
    *,
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
        Bytes; by default powers of two from 1 KiB to 1 GiB, at most a quarter of the free memory.
    link : Link or str, optional
        A modelled link, with 3 % of generated, seeded noise (``Link.sweep`` takes other values).
    deadline : float
        Seconds for the whole sweep; large sizes may take a little longer.
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
        If a size, direction or kind of memory is not valid.
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
        return named_link(link).sweep(sizes, noise_ratio=_MODELLED_NOISE)
    where = devices.find(device)
    wanted = _series(where, directions, memory)
    chosen = _sizes(where, wanted[0][0], sizes)
    series = Series("sweep", len(wanted) * len(chosen), deadline, progress, stop)
    points: list[SweepPoint] = []
    left_out: list[Note] = []
    bandwidth, on_host = None, wanted[0][0] == "host"
    with series:
        for direction, kind in wanted:
            try:
                copy = _buffers("sweep", direction, kind, where, chosen[-1])
            except GpulabError as error:
                if not points:
                    raise
                sentence = f"{SERIES_WORDS[direction]}, {kind} memory, was left out: {error}"
                left_out.append(Note("skipped", sentence))
                continue
            for nbytes in chosen:
                if series.must_stop():
                    raise StoppedError("sweep: stopped; expected to go on. Run it again.")
                series.report(f"{direction} {kind} {format_bytes(nbytes)}")
                m = series.measured(
                    _measured(copy, direction, kind, nbytes, where, series.share, series.stop)
                )
                count = len(m.samples_seconds)
                points.append(
                    SweepPoint(direction, kind, nbytes, m.median_seconds, m.interval_seconds, count)
                )
            del copy  # frees these buffers before the next ones are taken
        if on_host and points and not series.must_stop():
            series.report("all cores copy")
            bandwidth = memory_bandwidth_bytes_per_second(series.share)
    notes, evidence, environment = series.finished(where, "", points)
    return Sweep(
        where.name,
        "numpy" if on_host else "torch",
        tuple(points),
        bandwidth,
        (*left_out, *notes),
        evidence,
        environment,
    )


def _series(
    device: Device, directions: Sequence[str], memory: Sequence[str]
) -> list[tuple[str, str]]:
    """Return the (direction, memory) pairs to measure."""
    known = (*DIRECTIONS, "host") if device.is_cpu else DIRECTIONS
    directions, memory = (
        [
            _validate.word("sweep", name, word, all_words)
            for word in _validate.items("sweep", name, words, f"{name}={all_words}")
        ]
        for name, words, all_words in (
            ("directions", directions, known),
            ("memory", memory, MEMORY),
        )
    )
    if device.is_cpu:
        return [("host", "pageable")]
    is_left_out = len(memory) > 1 and not can_pin(device)
    kinds = [kind for kind in memory if not (is_left_out and kind == "pinned")]
    for kind in kinds:
        check_series("sweep", directions[0], kind, device)
    return [(direction, kind) for direction in directions for kind in kinds]


def _sizes(device: Device, direction: str, sizes: Iterable[int] | None) -> tuple[int, ...]:
    """Return the sizes to measure: the requested ones, which must fit, or the default ones that
    fit.
    """
    chosen = check_sizes(sizes)
    if sizes is not None:
        check_room("sweep", device, direction, chosen[-1])
        return chosen
    largest = min(free_bytes(Device("cpu")), free_bytes(device)) * _SHARE_OF_FREE / MARGIN
    return tuple(n for n in chosen if n <= largest) or chosen[:1]


def check_series(function: str, direction: str, memory: str, device: Device) -> None:
    """Check that this copy is possible.

    Raises
    ------
    InputError
        If the device has no such copy.
    """
    if direction == "host":
        return
    if device.is_cpu:
        raise InputError(
            f"{function}: {device.name} has no link to copy over; expected an accelerator. Pass "
            "direction='host', or use the formula of gl.transfer.link('pcie4-x16')."
        )
    if memory == "pinned" and not can_pin(device):
        raise InputError(
            f"{function}: copies to {device.name} cannot use pinned memory; expected a CUDA, ROCm "
            f"or XPU device. Pass memory={['pageable'] if function == 'sweep' else 'pageable'!r}."
        )


def can_pin(device: Device) -> bool:
    """Return whether copies to a device can use page-locked memory (Apple's GPUs cannot: they share
    the host's memory).
    """
    return device.torch_type in ("cuda", "xpu")


def check_room(function: str, device: Device, direction: str, nbytes: int) -> None:
    """Check that two buffers of ``nbytes`` fit: one on the host and one on the device, or both on
    the host.

    Raises
    ------
    OutOfMemoryError
        If they do not; nothing has been allocated.
    """
    host = Device("cpu")
    needs = (
        [(host, 2.0)]
        if direction == "host" or device.kind == "mps"
        else [(host, 1.0), (device, 1.0)]
    )
    for place, times in needs:
        free = free_bytes(place)
        if nbytes * times * MARGIN > free:
            raise OutOfMemoryError(
                f"{function}: buffers of {format_bytes(nbytes)} do not fit into the "
                f"{format_bytes(free)} that are free on {place.name}; expected at most "
                f"{format_bytes(free / times / MARGIN)}. Pass a smaller size."
            )


def _buffers(function: str, direction: str, memory: str, device: Device, nbytes: int) -> Copies:
    """Allocate two buffers, and write to them once so that the system really provides the memory.
    Return a function from a size to the copy of that many bytes.

    Raises
    ------
    OutOfMemoryError
        If memory ran out although there seemed to be enough.
    DeviceError
        If the device vanished.
    """
    is_pinned = memory == "pinned"
    with devices.guard(
        f"{function}: taking {memory} buffers of {format_bytes(nbytes)} for {device.name}"
    ):
        buffers: Any  # two arrays or tensors
        if direction == "host":
            buffers = np.ones(nbytes, dtype=np.uint8), np.zeros(nbytes, dtype=np.uint8)
        else:
            import torch

            # "cpu" is stated, because PyTorch's default device can be set
            host = torch.empty(nbytes, dtype=torch.uint8, device="cpu", pin_memory=is_pinned)
            buffers = host.fill_(1), torch.zeros(nbytes, dtype=torch.uint8, device=str(device))
    source, target = buffers[::-1] if direction == "to_host" else buffers

    def copy(size: int) -> Callable[[], Any]:
        a, b = source[:size], target[:size]

        def once() -> None:
            # The wait belongs to each copy: without it short copies would queue up and hide their
            # latency.
            b.copy_(a, non_blocking=is_pinned)
            device.synchronize()

        return once if direction != "host" else lambda: np.copyto(b, a)

    return copy


def _measured(
    copy: Copies,
    direction: str,
    memory: str,
    nbytes: int,
    device: Device,
    deadline: float,
    stop: Stop | None,
) -> Measurement:
    """Measure the copy of one size between allocated buffers."""
    return timing.measure(
        copy(nbytes),
        device=Device("cpu") if direction == "host" else device,
        relative_width=_RELATIVE_WIDTH,
        deadline=deadline,
        nbytes=nbytes,
        label=f"{SERIES_WORDS[direction]} {memory} {format_bytes(nbytes)}",
        stop=stop,
    )


@_validate.arguments(
    nbytes=BYTES,
    direction=partial(_validate.word, known=(*DIRECTIONS, "host")),
    memory=partial(_validate.word, known=MEMORY),
)
def measure_copy(
    nbytes: int,
    direction: str = "to_device",
    memory: str = "pageable",
    device: Any = None,
    *,
    deadline: float = 1.0,
    stop: Callable[[], bool] | None = None,
) -> Measurement:
    """Measure one copy of ``nbytes`` bytes between buffers that are allocated in advance.

    Parameters
    ----------
    nbytes : int
    direction : str
        "to_device", "to_host", or "host" for a copy within host memory by one thread.
    memory : str
        "pageable" or "pinned" host buffer; within host memory "pageable".
    device : Device or str, optional
    deadline : float
        Seconds.
    stop : callable, optional

    Returns
    -------
    Measurement

    Raises
    ------
    InputError
        If a size is not a positive whole number, or the device has no such copy.
    OutOfMemoryError
        If the buffers do not fit; nothing has been allocated.
    DeviceError
        If pinned memory cannot be allocated.

    Examples
    --------
    >>> measure_copy(4096, direction="host", deadline=0.05).device
    'cpu'
    """
    where = devices.find("cpu" if direction == "host" else device)
    check_series("measure_copy", direction, memory, where)
    if direction == "host" and memory == "pinned":
        raise InputError(
            "measure_copy: memory='pinned' for a copy within host memory, which uses no link; "
            "expected memory='pageable', the only kind that is measured there. Leave it out."
        )
    check_room("measure_copy", where, direction, nbytes)
    copy = _buffers("measure_copy", direction, memory, where, nbytes)
    return _measured(copy, direction, memory, nbytes, where, deadline, stop)


@_validate.arguments(recording=RECORDING)
def recorded_sweep(recording: Recording) -> Sweep | None:
    """Return a recorded machine's sweep, or None if it is not recorded yet.

    Parameters
    ----------
    recording : Recording
        See ``gpulab.recordings.load``.

    Raises
    ------
    InputError
        If it is not a recording.
    """
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
        recording.evidence(experiment="transfer"),
        recording.environment,
    )


def memory_bandwidth_bytes_per_second(deadline: float = 0.5) -> float:
    """Measure the rate of the host's memory when all cores copy: bytes read plus bytes written per
    second.

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

    nbytes = int(min(_BANDWIDTH_BYTES, free_bytes(Device("cpu")) * _SHARE_OF_FREE / 2))
    check_room("memory_bandwidth_bytes_per_second", Device("cpu"), "host", max(nbytes, 2**20))
    # stated, because PyTorch's default dtype and device can be set
    source = torch.ones(nbytes // 4, dtype=torch.float32, device="cpu")
    target = torch.zeros_like(source)
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
    if name is None and latency_seconds is None and bandwidth_bytes_per_second is None:
        where = devices.default()
        if not where.is_cpu and (memory == "pageable" or can_pin(where)):
            fit = sweep(where, ("to_device",), (memory,), deadline=deadline).fit()
            return Link(
                f"{where.name}, {memory} memory",
                fit.latency_seconds,
                fit.bandwidth_bytes_per_second,
                fit.evidence,
            )
    return named_link(
        DEFAULT_LINK if name is None else name, latency_seconds, bandwidth_bytes_per_second, memory
    )
