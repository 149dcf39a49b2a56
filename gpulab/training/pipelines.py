"""A running input pipeline: JPEG files, worker processes, and a live or modelled accelerator.

Without an accelerator its side is a timetable: a batch that was handed over is copied and computed
on for a stated time, and the host sleeps where a real one would wait. So the processor's cores stay
free for the loading, as they would be, and the loading is measured.
"""

from __future__ import annotations

import contextlib
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from gpulab import _given, _interrupts, devices, transfer
from gpulab.devices import Device
from gpulab.errors import MeasurementError, StoppedError, message_of
from gpulab.evidence import Evidence, Note
from gpulab.training import backend_switches, feeding, jpeg_images
from gpulab.training._pipeline_results import PipelineResult, StepSpan, check_count, check_seconds
from gpulab.units import format_seconds, plural

Progress = Callable[[float, str], None]
Stop = Callable[[], bool]
Clock = Callable[[], float]
# A step of a modelled accelerator where none was asked for: what a middling network takes for a
# small batch on a fast GPU.
STEP_SECONDS = 0.02
_LINK = "pcie4-x16"
_FILES, _SIDE = 64, 224  # different pictures, and the pixels of each file
# A worker that hands nothing over for so long hangs; the longest batch on a slow machine takes a
# few seconds.
_TIMEOUT_SECONDS = 60.0
_WARM_UP_STEPS = 3


class ModelledAccelerator:
    """A timetable in place of a device: each batch is copied and computed on for stated times, one
    after the other.

    Parameters
    ----------
    copy_seconds, compute_seconds : float
    pinned : bool
        Without page-locked memory the host waits for each copy.
    evidence : Evidence
    now, sleep : callable
        The clock, and how to wait.
    """

    name = "a modelled accelerator"

    def __init__(
        self,
        copy_seconds: float,
        compute_seconds: float,
        *,
        pinned: bool,
        evidence: Evidence,
        now: Clock = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.copy_seconds, self.compute_seconds, self.pinned, self.evidence = (
            copy_seconds,
            compute_seconds,
            pinned,
            evidence,
        )
        self._now, self._sleep, self._free = now, sleep, -1e300
        self._plan: list[tuple[float, float, float]] = []

    def step(self, batch: Any) -> None:
        """Plan the copy and the step; wait for the copy where memory is not pinned."""
        start = max(self._now(), self._free)
        copied = start + self.copy_seconds
        self._free = copied + self.compute_seconds
        self._plan.append((start, copied, self._free))
        if not self.pinned:
            self._until(copied)

    def wait(self) -> None:
        """Sleep until the timetable's end."""
        self._until(self._free)

    def _until(self, moment: float) -> None:
        rest = moment - self._now()
        if rest > 0:
            self._sleep(rest)

    def spans(self, begin: float) -> list[StepSpan]:
        """Return the timetable."""
        return [
            StepSpan(kind, step, 0, one - begin, other - begin)
            for step, (start, copied, end) in enumerate(self._plan)
            for kind, one, other in (("copy", start, copied), ("compute", copied, end))
        ]


class LiveAccelerator:
    """A CUDA device that trains a small convolutional network, with its events as the clock."""

    def __init__(self, device: Device, batch_size: int, size: int, *, pinned: bool) -> None:
        import torch

        from gpulab import networks

        self.device, self.pinned, self.name = device, pinned, device.name
        self.evidence = Evidence.measured(device.name)
        self._cuda: Any = torch.cuda
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(0)
            self._model = networks.cnn(
                channels=3, classes=jpeg_images.CLASSES, width=64, stages=3
            ).to(str(device))
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=0.01)
        example = torch.zeros(batch_size, 3, size, size, dtype=torch.uint8, device=str(device))
        labels = torch.zeros(batch_size, dtype=torch.int64, device=str(device))
        for _ in range(_WARM_UP_STEPS):
            self._train(example, labels)
        self._marks: list[tuple[Any, Any, Any]] = []
        device.synchronize()
        self._begin, self._begin_host = self._event(), time.perf_counter()
        with backend_switches.current(device):
            self._begin.record()
        device.synchronize()

    def _event(self) -> Any:
        return self._cuda.Event(enable_timing=True)

    def _train(self, images: Any, labels: Any) -> None:
        import torch

        self._optimizer.zero_grad(set_to_none=True)
        torch.nn.functional.cross_entropy(self._model(images.float().div_(255)), labels).backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()

    def step(self, batch: Any) -> None:
        """Copy and queue the step."""
        with backend_switches.current(self.device):
            start, copied, end = (self._event() for _ in range(3))
            start.record()
            images, labels = (
                x.to(str(self.device), non_blocking=self.pinned)
                for x in (batch.images, batch.labels)
            )
            copied.record()
            self._train(images, labels)
            end.record()
        self._marks.append((start, copied, end))

    def wait(self) -> None:
        """Wait for the device."""
        self.device.synchronize()

    def spans(self, begin: float) -> list[StepSpan]:
        """Return what the events say."""
        self.device.synchronize()
        offset, made = self._begin_host - begin, []
        for step, marks in enumerate(self._marks):
            start, copied, end = (
                offset + float(self._begin.elapsed_time(mark)) * 1e-3 for mark in marks
            )
            made += [
                StepSpan("copy", step, 0, start, copied),
                StepSpan("compute", step, 0, copied, end),
            ]
        return made


Accelerator = ModelledAccelerator | LiveAccelerator


def pipeline(
    *,
    batch_size: int = 32,
    workers: int = 0,
    prefetch: int = 2,
    steps: int = 24,
    image_size: int = 128,
    pinned: bool = False,
    read_loss: bool = True,
    step_seconds: float | None = None,
    device: Any = None,
    seed: int = 0,
    progress: Progress | None = None,
    stop: Stop | None = None,
) -> PipelineResult:
    """Load real JPEG files with a ``DataLoader``, pass them to an accelerator, and return when each
    part worked and waited.

    Parameters
    ----------
    batch_size : int
        1 to 1024 images of 224 x 224 pixels, decoded, cropped at random and scaled.
    workers : int
        0 to 32 processes that load; with 0 the training's own process loads, between the steps.
    prefetch : int
        1 to 16 batches that each worker may load ahead (``prefetch_factor``).
    steps : int
        2 to 1000.
    image_size : int
        8 to 512 pixels of a sample.
    pinned : bool
        Whether batches are copied from page-locked memory, without the host waiting.
    read_loss : bool
        Whether the host reads the loss after each step (``loss.item()``) and so waits for the step.
    step_seconds : float, optional
        The time of a step on a modelled accelerator. None takes this machine's CUDA device, which
        trains a small convolutional network; without one, a modelled accelerator with steps of 20
        ms behind a modelled link.
    device : Device or str, optional
        Which device, where there are several.
    seed : int
        Of the crops.
    progress, stop : callable, optional

    Returns
    -------
    PipelineResult
        ``evidence`` (of the loading) is MEASURED; ``accelerator_evidence`` is MODELLED where the
        accelerator is.

    Raises
    ------
    InputError
        If a number is out of range.
    MissingLibraryError
        If Pillow is missing.
    OutOfMemoryError
        If the workers' shared memory cannot hold the batches in flight.
    MeasurementError
        If a worker dies or hangs.
    StoppedError
        If it was stopped before two steps were made.

    Examples
    --------
    >>> p = pipeline(batch_size=2, steps=3, step_seconds=0.001)
    >>> p.steps, p.evidence.badge.value, p.accelerator_evidence.badge.value
    (3, 'MEASURED', 'MODELLED')
    """
    name = "pipeline"
    counts = (
        ("batch_size", batch_size, 1, 1024),
        ("workers", workers, 0, 32),
        ("prefetch", prefetch, 1, 16),
        ("steps", steps, 2, 1000),
        ("image_size", image_size, 8, 512),
        ("seed", seed, 0, 2**31),
    )
    batch_size, workers, prefetch, steps, image_size, seed = (
        check_count(name, *count) for count in counts
    )
    pinned, read_loss = (
        _given.flag(name, "pinned", pinned),
        _given.flag(name, "read_loss", read_loss),
    )
    progress, stop = (
        _given.callback(name, "progress", progress),
        _given.callback(name, "stop", stop),
    )
    where = devices.find(device)
    live = step_seconds is None and where.torch_type == "cuda"
    seconds = (
        STEP_SECONDS if step_seconds is None else check_seconds(name, "step_seconds", step_seconds)
    )
    nbytes = batch_size * 3 * image_size**2
    feeding.check_shared("pipeline", nbytes, workers, prefetch)
    data = jpeg_images.BatchSet(
        jpeg_images.jpegs(_FILES, _SIDE), batch_size, image_size, steps, seed
    )
    with devices.guard(
        f"pipeline: {batch_size} images of {image_size} x {image_size} on {where.name}"
    ):
        accelerator: Accelerator = (
            LiveAccelerator(where, batch_size, image_size, pinned=pinned)
            if live
            else _modelled(nbytes, seconds, pinned)
        )
        begin = time.perf_counter()
        with _loader(data, workers, prefetch, pinned and live) as batches:
            loads = drive(
                batches, accelerator, steps=steps, read_loss=read_loss, progress=progress, stop=stop
            )
        spans = accelerator.spans(begin)
    spans += [
        StepSpan("data", k, worker, start - begin, end - begin)
        for k, (worker, start, end) in enumerate(loads)
    ]
    return PipelineResult(
        accelerator=accelerator.name,
        batch_size=batch_size,
        batch_bytes=nbytes,
        workers=workers,
        prefetch=prefetch,
        pinned=pinned,
        read_loss=read_loss,
        startup_seconds=loads[0][2] - begin,
        spans=tuple(spans),
        notes=tuple(_notes(workers, steps, len(loads))),
        evidence=Evidence.measured(devices.find("cpu").name, len(loads)),
        accelerator_evidence=accelerator.evidence,
    )


def _modelled(nbytes: int, seconds: float, pinned: bool) -> ModelledAccelerator:
    link = transfer.link(_LINK, memory="pinned" if pinned else "pageable")
    copy = link.seconds(nbytes)
    evidence = Evidence.modelled(
        f"each step takes {format_seconds(seconds)} and each copy {format_seconds(copy)}, as over "
        f"{link.name}; the host sleeps meanwhile; the loading beside it is measured",
        f"a stated time; {link.evidence.source}",
        link.evidence.known_error,
    )
    return ModelledAccelerator(copy, seconds, pinned=pinned, evidence=evidence)


@contextlib.contextmanager
def _loader(
    data: jpeg_images.BatchSet, workers: int, prefetch: int, pinned: bool
) -> Iterator[Iterator[jpeg_images.LoadedBatch]]:
    """Give the batches in order; the workers end with the block."""
    from torch.utils.data import DataLoader

    options: dict[str, Any] = {}
    if workers:
        # Starting afresh would cost each worker the seconds in which torch is imported; the workers
        # touch no accelerator.
        context = "fork" if sys.platform.startswith("linux") else None
        options = {
            "prefetch_factor": prefetch,
            "timeout": _TIMEOUT_SECONDS,
            "multiprocessing_context": context,
            "worker_init_fn": _interrupts.leave_to_the_run,
        }
    with warnings.catch_warnings():
        # of more workers than cores: the result has a note about it
        warnings.simplefilter("ignore", UserWarning)
        loader: Any = DataLoader(
            data,  # type: ignore[arg-type]
            batch_size=None,
            num_workers=workers,
            pin_memory=pinned,
            collate_fn=jpeg_images.keep,  # type: ignore[arg-type]
            **options,
        )
        batches = iter(loader)
    try:
        yield batches
    finally:
        getattr(batches, "_shutdown_workers", lambda: None)()


def drive(
    batches: Iterator[jpeg_images.LoadedBatch],
    accelerator: Accelerator,
    *,
    steps: int,
    read_loss: bool,
    progress: Progress | None = None,
    stop: Stop | None = None,
) -> list[tuple[int, float, float]]:
    """Run the training loop: take a batch, pass it on, wait where the loss is read.

    Returns
    -------
    list of (worker, start, end)
        Who loaded each batch, and when.

    Raises
    ------
    MeasurementError
        If a worker dies or hangs.
    StoppedError
        If it was stopped before two steps were made.
    """
    loads: list[tuple[int, float, float]] = []
    for step in range(steps):
        if stop is not None and stop():
            break
        if progress is not None:
            progress(step / steps, f"step {step + 1} of {steps}")
        try:
            batch = next(batches)
        except RuntimeError as error:
            raise MeasurementError(
                f"pipeline: the workers gave no batch {step} ({message_of(error)}); expected one "
                f"within {_TIMEOUT_SECONDS:.0f} s. Lower the number of workers, or pass workers=0."
            ) from error
        loads.append((batch.worker, batch.start, batch.end))
        accelerator.step(batch)
        if read_loss:
            accelerator.wait()
    accelerator.wait()
    if len(loads) < 2:
        raise StoppedError(
            "pipeline: stopped before two steps were made; expected at least two. Run it again."
        )
    if progress is not None:
        progress(1.0, "done")
    return loads


def _notes(workers: int, wanted: int, made: int) -> list[Note]:
    notes = []
    cores = devices.environment("cpu").cores
    if workers > cores:
        notes.append(
            Note(
                "contended",
                f"{plural(workers, 'worker')} share {plural(cores, 'core')}, so each of them loads "
                "more slowly than a single worker would.",
            )
        )
    if made < wanted:
        notes.append(
            Note(
                "stopped",
                f"Stopped after {made} of {wanted} steps; the figures are those of the part that "
                "ran.",
            )
        )
    return notes
