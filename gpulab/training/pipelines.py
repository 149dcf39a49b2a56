"""An input pipeline: which part worked when, where the accelerator waited, and what that costs. It
is run on real JPEG files, or computed from three durations.

The rules of the model are those of ``torch.utils.data.DataLoader`` and of one stream of an
accelerator: worker ``k`` of ``W`` loads the batches ``k``, ``k + W``, ...; each may be ``prefetch``
batches ahead of those that were taken; batches are taken in order; the accelerator does one thing
at a time; the host waits for a copy from pageable memory, and for the step if it reads the loss.

The pictures of a run are computed, so nothing has to be downloaded; the files are true JPEG
(Pillow's encoder, the size of a small photograph), and decoding, cropping and scaling them is the
work that an image pipeline does for each sample. Without an accelerator, a timetable takes its
place: copying a batch and computing on it take stated times, and the host sleeps where it would
wait for a real accelerator. So the processor's cores stay free for the loading, as with a real one,
and the loading is measured.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import io
import itertools
import math
import os
import shutil
import statistics
import sys
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import DataLoader, get_worker_info

from gpulab import _interrupts, _validate, devices, networks, transfer
from gpulab.errors import (
    MeasurementError,
    OutOfMemoryError,
    StoppedError,
    message_of,
)
from gpulab.evidence import Badge, Evidence, Note
from gpulab.results import Result, Table, note_rows
from gpulab.timing.sampling import Progress, Stop
from gpulab.timing.statistics import t_quantile
from gpulab.training import backend_switches
from gpulab.training._profile import covered
from gpulab.units import format_bytes, format_seconds, plural

# checks the seconds of one batch: as long as a course can wait
_BATCH_SECONDS = partial(_validate.within, high=60.0)
_PREFETCH = partial(_validate.whole, low=1, high=16)
_STEPS = partial(_validate.whole, low=2, high=1000)

CLASSES = 10
_QUALITY = 90  # what cameras and data sets use: a picture of 224 x 224 takes some twenty kilobytes
_FILES, _SIDE = 64, 224  # number of different pictures, and the side of each in pixels
_LEAST_AREA = 0.35  # share of the picture that a random crop keeps at least, so that crops vary


def draw(label: int, seed: int) -> np.ndarray:
    """Return one picture: a grating whose direction depends on the class, in a random color, with
    coarse and fine noise.

    Parameters
    ----------
    label : int
        0 to 9: the grating's direction in steps of 18 degrees.
    seed : int

    Returns
    -------
    ndarray
        (224, 224, 3), uint8.
    """
    random = np.random.default_rng(seed)
    y, x = np.mgrid[0:_SIDE, 0:_SIDE] / _SIDE
    angle = np.pi * label / CLASSES
    wave = np.sin(
        2 * np.pi * random.uniform(5, 9) * (x * np.cos(angle) + y * np.sin(angle))
        + random.uniform(0, 2 * np.pi)
    )
    coarse = random.normal(size=(8, 8, 3)).repeat(_SIDE // 8, 0).repeat(_SIDE // 8, 1)
    fine = random.normal(size=(_SIDE, _SIDE, 1))
    picture = 128 + 45 * wave[..., None] * random.uniform(0.4, 1, size=3) + 18 * coarse + 10 * fine
    pixels: np.ndarray = np.clip(picture, 0, 255).astype(np.uint8)
    return pixels


@functools.cache
def jpegs() -> tuple[tuple[bytes, int], ...]:
    """Return 64 JPEG files with their classes: always the same ones, and encoded only once. A
    training that needs more reads them again, as a second epoch would.

    Returns
    -------
    tuple of (bytes, int)
        The file and its class.
    """
    from PIL import Image  # which a bare GPU machine may lack; only the pictures need it

    files = []
    for k in range(_FILES):
        file = io.BytesIO()
        Image.fromarray(draw(k % CLASSES, k)).save(file, "JPEG", quality=_QUALITY)
        files.append((file.getvalue(), k % CLASSES))
    return tuple(files)


def decode(file: bytes, size: int, random: np.random.Generator) -> np.ndarray:
    """Return one sample of a JPEG file: decoded, cropped at random, scaled, and mirrored with a
    probability of one half.

    Returns
    -------
    ndarray
        (3, size, size), uint8.
    """
    from PIL import Image

    picture = Image.open(io.BytesIO(file)).convert("RGB")
    share = np.sqrt(random.uniform(_LEAST_AREA, 1))
    width, height = max(1, int(picture.width * share)), max(1, int(picture.height * share))
    left, top = (
        int(random.integers(0, room + 1))
        for room in (picture.width - width, picture.height - height)
    )
    small = picture.resize(
        (size, size), Image.Resampling.BILINEAR, box=(left, top, left + width, top + height)
    )
    pixels = np.asarray(small).transpose(2, 0, 1)
    return np.ascontiguousarray(pixels[:, :, ::-1] if random.random() < 0.5 else pixels)


class BatchSet:
    """A data set whose item k is the k-th batch, decoded on access, in any process.

    A batch is a tuple of images, uint8 of shape (batch, 3, size, size), a quarter of the bytes of
    float32, to which the accelerator converts them; labels, int64 of shape (batch,); the number of
    the worker that decoded it, from 0, or -1 for the training's own process; and the times at which
    decoding began and ended, by ``time.perf_counter``, which all processes of a machine share.

    Parameters
    ----------
    batch_size, size : int
        Images in a batch; pixels of each.
    batches : int
    seed : int
        Of the crops, together with the batch's number: the order of the work changes nothing.
    """

    def __init__(self, batch_size: int, size: int, batches: int, seed: int = 0) -> None:
        self.batch_size, self.size, self.batches, self.seed = batch_size, size, batches, seed
        self.files = jpegs()

    def __len__(self) -> int:
        return self.batches

    def __getitem__(self, number: int) -> tuple[Any, Any, int, float, float]:
        """Return batch ``number``."""
        start = time.perf_counter()
        random = np.random.default_rng([self.seed, number])
        chosen = [
            self.files[(number * self.batch_size + k) % len(self.files)]
            for k in range(self.batch_size)
        ]
        images = torch.from_numpy(np.stack([decode(file, self.size, random) for file, _ in chosen]))
        labels = torch.tensor([label for _, label in chosen], device="cpu")
        worker = getattr(get_worker_info(), "id", -1)
        return images, labels, worker, start, time.perf_counter()


# Blocks of consecutive steps for the method of batch means: the means of blocks are nearly
# independent though the steps are not (Law and Kelton, Simulation Modeling and Analysis, "batch
# means"); six blocks leave five degrees of freedom.
_BLOCKS = 6
_LEAST_STEPS = 2 * _BLOCKS
# An accelerator that waits less than this share of the time is the bottleneck itself.
BUSY_STALL_RATIO = 0.10

_SOURCE = (
    "the rules of torch.utils.data.DataLoader (round robin, prefetch_factor, in order) and of one "
    "CUDA stream"
)
# benchmarks/input_pipeline.py; docs/measurements.md, "The input pipeline", has the table.
KNOWN_ERROR = (
    "1 % median, 13 % at most in throughput where loading times are known; loading varies with "
    "other programs (docs/measurements.md)"
)


class StepSpan(NamedTuple):
    """One piece of work.

    Attributes
    ----------
    lane : str
        "data" (read, decode, crop), "copy" (to the accelerator), "compute" (the training step).
    step : int
        The batch that it belongs to, from 0.
    worker : int
        In the data lane: the worker, from 0; -1 is the training's own process. 0 in the other
        lanes.
    start_seconds, end_seconds : float
        Since the run began.
    """

    lane: str
    step: int
    worker: int
    start_seconds: float
    end_seconds: float

    @property
    def seconds(self) -> float:
        """The duration."""
        return self.end_seconds - self.start_seconds


@dataclass(frozen=True, repr=False)
class PipelineResult(Result):
    """Some training steps, with the times of loading, copying and computing side by side.

    Attributes
    ----------
    accelerator : str
        The device's name, or "a modelled accelerator".
    batch_size, batch_bytes : int
        Images and bytes of a batch.
    workers : int
        Processes that load; with 0 the training's own process loads.
    prefetch : int
        Batches that each worker may load ahead.
    pinned : bool
        Whether batches are copied from page-locked memory, so that the host need not wait for the
        copy.
    read_loss : bool
        Whether the host reads the loss after each step (``loss.item()``), and so waits for the
        accelerator.
    startup_seconds : float
        Until the first batch was there: starting the workers, and loading it.
    spans : tuple of StepSpan
    notes : tuple of Note
    evidence : Evidence
        Of the data lane.
    accelerator_evidence : Evidence
        Of the copy and compute lanes.
    """

    accelerator: str
    batch_size: int
    batch_bytes: int
    workers: int
    prefetch: int
    pinned: bool
    read_loss: bool
    startup_seconds: float
    spans: tuple[StepSpan, ...]
    notes: tuple[Note, ...]
    evidence: Evidence
    accelerator_evidence: Evidence

    def lane(self, name: str) -> list[StepSpan]:
        """Return the spans of a lane in the order of the steps."""
        return sorted(
            (span for span in self.spans if span.lane == name), key=lambda span: span.step
        )

    @property
    def steps(self) -> int:
        """The number of steps."""
        return len(self.lane("compute"))

    @property
    def seconds(self) -> float:
        """The time from the end of the first step to the end of the last: the run without its
        start.
        """
        compute = self.lane("compute")
        return compute[-1].end_seconds - compute[0].end_seconds if compute else math.nan

    @property
    def step_seconds(self) -> float:
        """The mean time of a step, with everything that it waited for."""
        return self.seconds / max(self.steps - 1, 1)

    @property
    def loading_seconds(self) -> float:
        """The median time that one worker needs for one batch."""
        return _median_seconds(self.lane("data"))

    @property
    def copy_seconds(self) -> float:
        """The median time to copy a batch."""
        return _median_seconds(self.lane("copy"))

    @property
    def compute_seconds(self) -> float:
        """The median time that the accelerator computes in a step."""
        return _median_seconds(self.lane("compute"))

    @property
    def gaps(self) -> tuple[tuple[float, float], ...]:
        """The (start, end) of each time after the first step in which the accelerator did not
        compute.
        """
        return tuple(
            (a.end_seconds, b.start_seconds)
            for a, b in itertools.pairwise(self.lane("compute"))
            if b.start_seconds > a.end_seconds
        )

    @property
    def stall_seconds(self) -> float:
        """How long the accelerator did not compute, after the first step."""
        return sum(end - start for start, end in self.gaps)

    @property
    def stall_ratio(self) -> float:
        """The share of the time in which the accelerator did not compute, 0 to 1, after the first
        step.
        """
        return self.stall_seconds / self.seconds if self.seconds > 0 else 0.0

    @property
    def images_per_second(self) -> float:
        """The throughput after the first step."""
        return self.batch_size * (self.steps - 1) / self.seconds if self.seconds > 0 else math.nan

    @property
    def images_per_second_interval(self) -> tuple[float, float] | None:
        """A 95 % interval of the throughput by batch means; None with fewer than 13 steps.

        Where the mean time of a step could be zero by that interval, the upper end is infinite.
        """
        ends = [span.end_seconds for span in self.lane("compute")]
        if len(ends) <= _LEAST_STEPS:
            return None
        means = np.array([block.mean() for block in np.array_split(np.diff(ends), _BLOCKS)])
        half = t_quantile(_BLOCKS - 1) * float(means.std(ddof=1)) / math.sqrt(_BLOCKS)
        middle = self.step_seconds
        return self.batch_size / (middle + half), self.batch_size / (
            middle - half
        ) if middle > half else math.inf

    @property
    def bottleneck(self) -> str:
        """The bottleneck: "compute" if the accelerator hardly waits, else "data" or "copy",
        whichever takes more of the gaps.

        Each gap is split: the part in which the next batch was still being copied counts for the
        copy, the rest for the data.
        """
        if self.stall_ratio < BUSY_STALL_RATIO:
            return "compute"
        copies = self.lane("copy")
        copying = sum(covered(copies, gap) for gap in self.gaps)
        return "copy" if copying > self.stall_seconds / 2 else "data"

    @property
    def sentence(self) -> str:
        """Where the time goes, in words."""
        only = "only " if self.bottleneck == "compute" else ""
        waits = f"{self.accelerator} waits {only}{self.stall_ratio:.0%} of the time"
        who = "a worker" if self.workers else "the training's own process"
        what = {
            "data": f" for data: {who} needs {format_seconds(self.loading_seconds)} for a batch, "
            f"the step itself {format_seconds(self.compute_seconds)}",
            "copy": f" for the copy of {format_bytes(self.batch_bytes)}, "
            f"{format_seconds(self.copy_seconds)} a step",
            "compute": "; the bottleneck is its own computation, "
            f"{format_seconds(self.compute_seconds)} a step",
        }[self.bottleneck]
        return f"{waits[0].upper()}{waits[1:]}{what}."

    @property
    def _rate(self) -> str:
        rate, interval = f"{self.images_per_second:.0f}", self.images_per_second_interval
        # the times of a model do not vary, so an interval would show nothing
        if interval is None or self.evidence.badge is Badge.MODELLED:
            return rate
        return f"{rate} (95 % {interval[0]:.0f} to {interval[1]:.0f})"

    def __repr__(self) -> str:
        who = "no workers" if not self.workers else plural(self.workers, "worker")
        return (
            f"<{plural(self.steps, 'step')} of {plural(self.batch_size, 'image')}, {who}: "
            f"{self._rate} images/s, {self.stall_ratio:.0%} stalled>"
        )

    def table(self) -> Table:
        """Return the parts of a step, the throughput and the stall."""
        loading, modelled = str(self.evidence.badge), str(self.accelerator_evidence.badge)
        # figures that depend on both sides have the accelerator's badge if it is not measured
        both = loading if modelled == Badge.MEASURED else modelled
        rows = [
            ("loading a batch, one process", format_seconds(self.loading_seconds), loading),
            ("copying a batch", format_seconds(self.copy_seconds), modelled),
            ("computing on a batch", format_seconds(self.compute_seconds), modelled),
            ("a whole step", format_seconds(self.step_seconds), both),
            ("the accelerator waits", f"{self.stall_ratio:.0%}", both),
            ("images per second", self._rate, both),
            ("time to the first batch", format_seconds(self.startup_seconds), loading),
            *note_rows(self.notes, 3),
        ]
        return (
            f"{plural(self.steps, 'step')} of {plural(self.batch_size, 'image')}, workers "
            f"{self.workers}",
            "",
            "evidence",
        ), rows

    def caption(self) -> str:
        """Return the evidence of the loading and of the accelerator, once if they are equal."""
        if self.accelerator_evidence == self.evidence:
            return self.evidence.sentence
        return f"{self.accelerator_evidence.sentence} · the loading: {self.evidence.sentence}"


def _median_seconds(spans: Sequence[StepSpan]) -> float:
    """Return the median duration of spans; nan if there are none, as in a lane that a recording
    left out.
    """
    return statistics.median(span.seconds for span in spans) if spans else math.nan


def schedule(
    loading: Sequence[float],
    copying: Sequence[float],
    computing: Sequence[float],
    *,
    workers: int,
    prefetch: int,
    pinned: bool,
    read_loss: bool,
) -> list[StepSpan]:
    """Return when each part works, by the rules in the module's docstring.

    Parameters
    ----------
    loading, copying, computing : sequence of float
        Seconds of each batch, all of one length.
    workers, prefetch : int
    pinned, read_loss : bool
    """
    spans: list[StepSpan] = []
    taken: list[float] = []  # when the host took each batch
    loaded: list[float] = []  # when each batch was ready
    # when the host asks for the next batch; when the accelerator has done everything
    host = free = 0.0
    for step, (load, copy, compute) in enumerate(zip(loading, copying, computing, strict=True)):
        if workers == 0:
            start, worker = host, -1
        else:
            # Batch k is ordered when batch k - prefetch * W is taken. Its worker finishes its
            # earlier batch first.
            ordered = taken[step - prefetch * workers] if step >= prefetch * workers else 0.0
            start, worker = (
                max(ordered, loaded[step - workers] if step >= workers else 0.0),
                step % workers,
            )
        ready = start + load
        spans.append(StepSpan("data", step, worker, start, ready))
        loaded.append(ready)
        taken.append(max(host, ready))
        copy_start = max(taken[-1], free)
        copied = copy_start + copy
        free = copied + compute
        spans += [
            StepSpan("copy", step, 0, copy_start, copied),
            StepSpan("compute", step, 0, copied, free),
        ]
        host = free if read_loss else taken[-1] if pinned else copied
    return spans


@_validate.arguments(
    loading_seconds=_BATCH_SECONDS,
    compute_seconds=_BATCH_SECONDS,
    copy_seconds=_BATCH_SECONDS,
    cores=partial(_validate.whole, low=1, high=4096),
    batch_size=partial(_validate.whole, low=1, high=2**30),
    batch_bytes=partial(_validate.whole, low=1, high=2**50),
    workers=partial(_validate.whole, low=0, high=64),
    prefetch=_PREFETCH,
    steps=_STEPS,
    pinned=_validate.flag,
    read_loss=_validate.flag,
)
def model_pipeline(
    loading_seconds: float,
    compute_seconds: float,
    *,
    copy_seconds: float = 0.001,
    workers: int = 0,
    prefetch: int = 2,
    pinned: bool = False,
    read_loss: bool = True,
    cores: int = 8,
    batch_size: int = 32,
    batch_bytes: int = 32 * 3 * 128 * 128,
    steps: int = 24,
) -> PipelineResult:
    """Return the timeline of an input pipeline by arithmetic, without loading or waiting.

    Parameters
    ----------
    loading_seconds : float
        The time that one worker needs for one batch on a core of its own.
    compute_seconds, copy_seconds : float
        The time that the accelerator needs for a step, and for receiving the batch.
    workers : int
        0 to 64; with 0 the training's own process loads.
    prefetch : int
        1 to 16 batches that each worker may load ahead.
    pinned : bool
        Whether batches are copied from page-locked memory.
    read_loss : bool
        Whether the host reads the loss after each step and so waits for it.
    cores : int
        Of the host; more workers than cores take turns on them.
    batch_size, batch_bytes : int
        Images and bytes of a batch: for the images per second and the texts; the times do not
        depend on them.
    steps : int
        2 to 1000.

    Returns
    -------
    PipelineResult
        Evidence MODELLED.

    Raises
    ------
    InputError
        If a number is out of range.

    Examples
    --------
    >>> alone = model_pipeline(0.06, 0.02, copy_seconds=0)
    >>> round(alone.stall_ratio, 3)  # 60 of 80 milliseconds
    0.75
    >>> three = model_pipeline(0.06, 0.02, copy_seconds=0, workers=3)
    >>> round(three.stall_ratio, 3)  # three batches in 60 milliseconds: just enough
    0.0
    """
    shared = loading_seconds * max(1.0, workers / cores)
    spans = schedule(
        [shared] * steps,
        [copy_seconds] * steps,
        [compute_seconds] * steps,
        workers=workers,
        prefetch=prefetch,
        pinned=pinned,
        read_loss=read_loss,
    )
    evidence = Evidence.modelled(
        f"a worker loads a batch in {format_seconds(loading_seconds)} on a core of its own "
        f"({cores} cores), a copy takes {format_seconds(copy_seconds)}, a step "
        f"{format_seconds(compute_seconds)}, always the same",
        _SOURCE,
        KNOWN_ERROR,
    )
    return PipelineResult(
        accelerator="a modelled accelerator",
        batch_size=batch_size,
        batch_bytes=batch_bytes,
        workers=workers,
        prefetch=prefetch,
        pinned=pinned,
        read_loss=read_loss,
        startup_seconds=spans[0].end_seconds,
        spans=tuple(spans),
        notes=(),
        evidence=evidence,
        accelerator_evidence=evidence,
    )


@_validate.arguments(
    p=partial(
        _validate.instance,
        kind=PipelineResult,
        expected="a result of training.pipeline or training.model_pipeline. Pass one.",
    ),
    pinned=_validate.flag,
    read_loss=_validate.flag,
)
def replay(
    p: PipelineResult,
    *,
    pinned: bool | None = None,
    read_loss: bool | None = None,
) -> PipelineResult:
    """Return what a pipeline would do with another training loop, computed from the times of the
    run.

    This way only the loop changes. In a second run, other load on the machine would change too.

    Parameters
    ----------
    p : PipelineResult
        A run, or a model.
    pinned, read_loss : bool, optional
        As in ``pipeline``; None keeps them.

    Returns
    -------
    PipelineResult
        The loading keeps its evidence, the accelerator's side is MODELLED.

    Raises
    ------
    InputError
        If ``p`` is not a pipeline's result, or a value is out of range.

    Examples
    --------
    >>> run = model_pipeline(0.06, 0.02, copy_seconds=0)
    >>> round(replay(run, read_loss=False, pinned=True).step_seconds, 6)
    0.06
    """
    pinned = p.pinned if pinned is None else pinned
    read_loss = p.read_loss if read_loss is None else read_loss
    loading, copying, computing = (
        [span.seconds for span in p.lane(lane)] for lane in ("data", "copy", "compute")
    )
    spans = schedule(
        loading,
        copying,
        computing,
        workers=p.workers,
        prefetch=p.prefetch,
        pinned=pinned,
        read_loss=read_loss,
    )
    host = "waiting for each step" if read_loss else "going on without waiting for a step"
    evidence = Evidence.modelled(
        "each batch takes as long to load and to copy, and each step as long to compute, as in the "
        f"run, with the host {host}; no other effects",
        _SOURCE,
        KNOWN_ERROR,
    )
    return dataclasses.replace(
        p,
        pinned=pinned,
        read_loss=read_loss,
        startup_seconds=spans[0].end_seconds,
        spans=tuple(spans),
        accelerator_evidence=evidence,
    )


# The default time of a step on a modelled accelerator: about what a network of medium size takes
# for a small batch on a fast GPU.
STEP_SECONDS = 0.02
_LINK = "pcie4-x16"
# A worker that delivers nothing for this long is considered hung; the longest batch on a slow
# machine takes a few seconds.
_TIMEOUT_SECONDS = 60.0
_WARM_UP_STEPS = 3
_LINUX_SHARED = "/dev/shm"


class ModelledAccelerator:
    """A timetable in place of a device: each batch is copied and computed on for stated times, one
    after the other.

    Parameters
    ----------
    copy_seconds, compute_seconds : float
    pinned : bool
        Without page-locked memory the host waits for each copy.
    evidence : Evidence
    """

    name = "a modelled accelerator"

    def __init__(
        self,
        copy_seconds: float,
        compute_seconds: float,
        *,
        pinned: bool,
        evidence: Evidence,
    ) -> None:
        self.copy_seconds, self.compute_seconds, self.pinned, self.evidence = (
            copy_seconds,
            compute_seconds,
            pinned,
            evidence,
        )
        self._free = -math.inf
        self._plan: list[tuple[float, float, float]] = []

    def step(self, batch: Any) -> None:
        """Plan the copy and the step; wait for the copy where memory is not pinned."""
        start = max(time.perf_counter(), self._free)
        copied = start + self.copy_seconds
        self._free = copied + self.compute_seconds
        self._plan.append((start, copied, self._free))
        if not self.pinned:
            self._until(copied)

    def wait(self) -> None:
        """Sleep until the timetable's end."""
        self._until(self._free)

    def _until(self, moment: float) -> None:
        time.sleep(max(0.0, moment - time.perf_counter()))

    def spans(self, begin: float) -> list[StepSpan]:
        """Return the timetable's spans, in seconds since ``begin``."""
        return _spans(self._plan, begin)


def _spans(times: Iterable[tuple[float, float, float]], begin: float) -> list[StepSpan]:
    """Return an accelerator's spans in seconds since ``begin``, from the times at which each step
    began, had its batch, and ended.
    """
    return [
        StepSpan(kind, step, 0, one - begin, other - begin)
        for step, (start, copied, end) in enumerate(times)
        for kind, one, other in (("copy", start, copied), ("compute", copied, end))
    ]


_event: Any = partial(torch.cuda.Event, enable_timing=True)


class LiveAccelerator:
    """A CUDA device that trains a small convolutional network, timed by CUDA events."""

    def __init__(self, device: devices.Device, batch_size: int, size: int, *, pinned: bool) -> None:
        self.device, self.pinned, self.name = device, pinned, device.name
        self.evidence = Evidence.measured(device.name)
        self.wait = device.synchronize
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(0)
            self._model = networks.cnn(channels=3, classes=CLASSES, width=64, stages=3).to(
                str(device)
            )
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=0.01)
        example = torch.zeros(batch_size, 3, size, size, dtype=torch.uint8, device=str(device))
        labels = torch.zeros(batch_size, dtype=torch.int64, device=str(device))
        for _ in range(_WARM_UP_STEPS):
            self._train(example, labels)
        self._marks: list[tuple[Any, Any, Any]] = []
        device.synchronize()
        self._begin, self._begin_host = _event(), time.perf_counter()
        with backend_switches.current(device):
            self._begin.record()
        device.synchronize()

    @torch.enable_grad()
    def _train(self, images: Any, labels: Any) -> None:
        self._optimizer.zero_grad(set_to_none=True)
        torch.nn.functional.cross_entropy(self._model(images.float().div_(255)), labels).backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()

    def step(self, batch: Any) -> None:
        """Copy the batch and queue the training step."""
        with backend_switches.current(self.device):
            start, copied, end = (_event() for _ in range(3))
            start.record()
            images, labels = (x.to(str(self.device), non_blocking=self.pinned) for x in batch[:2])
            copied.record()
            self._train(images, labels)
            end.record()
        self._marks.append((start, copied, end))

    def spans(self, begin: float) -> list[StepSpan]:
        """Return the spans that the events recorded, in seconds since ``begin``."""
        self.wait()
        times = (
            tuple(self._begin_host + self._begin.elapsed_time(mark) * 1e-3 for mark in marks)
            for marks in self._marks
        )
        return _spans(times, begin)


Accelerator = ModelledAccelerator | LiveAccelerator


@_validate.arguments(
    batch_size=partial(_validate.whole, low=1, high=1024),
    workers=partial(_validate.whole, low=0, high=32),
    prefetch=_PREFETCH,
    steps=_STEPS,
    image_size=partial(_validate.whole, low=8, high=512),
    pinned=_validate.flag,
    read_loss=_validate.flag,
    step_seconds=_BATCH_SECONDS,
    seed=partial(_validate.whole, low=0, high=2**31),
    progress=_validate.hook,
    stop=_validate.hook,
)
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
    progress: Progress | Any = _validate.LEFT_OUT,
    stop: Stop | Any = _validate.LEFT_OUT,
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
    >>> p.workers, p.prefetch, p.pinned, p.read_loss
    (0, 2, False, True)
    """
    where = devices.find(device)
    live = step_seconds is None and where.torch_type == "cuda"
    seconds = STEP_SECONDS if step_seconds is None else step_seconds
    nbytes = batch_size * 3 * image_size**2
    _check_shared(nbytes, workers, prefetch)
    data = BatchSet(batch_size, image_size, steps, seed)
    with devices.guard(
        f"pipeline: {batch_size} images of {image_size} x {image_size} on {where.name}"
    ):
        accelerator: Accelerator = (
            LiveAccelerator(where, batch_size, image_size, pinned=pinned)
            if live
            else _modelled(nbytes, seconds, pinned)
        )
        begin = time.perf_counter()
        with loader(data, workers, prefetch, pinned and live) as batches:
            loads = drive(
                batches, accelerator, steps=steps, read_loss=read_loss, progress=progress, stop=stop
            )
        spans = accelerator.spans(begin)
    spans += [
        StepSpan("data", k, worker, start - begin, end - begin)
        for k, (worker, start, end) in enumerate(loads)
    ]
    cores = devices.environment("cpu").cores
    crowded = (
        f"{plural(workers, 'worker')} share {plural(cores, 'core')}, so each of them loads more "
        "slowly than a single worker would."
    )
    ended = (
        f"Stopped after {len(loads)} of {steps} steps; the figures are those of the part that ran."
    )
    notes = (
        (workers > cores, Note("contended", crowded)),
        (len(loads) < steps, Note("stopped", ended)),
    )
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
        notes=tuple(note for holds, note in notes if holds),
        evidence=Evidence.measured(devices.find("cpu").name, len(loads)),
        accelerator_evidence=accelerator.evidence,
    )


def _check_shared(nbytes: int, workers: int, prefetch: int) -> None:
    """Refuse a run whose batches the workers' shared memory cannot hold: a signal would kill a
    worker, or a batch would never arrive.

    Raises
    ------
    OutOfMemoryError
        If the batches of ``nbytes`` that are in flight need more than is free.
    """
    needed = nbytes * workers * (prefetch + 1)
    if (
        needed
        and os.path.isdir(_LINUX_SHARED)  # noqa: PTH112
        and needed > (free := shutil.disk_usage(_LINUX_SHARED).free)
    ):
        raise OutOfMemoryError(
            f"pipeline: {workers} workers, each {prefetch} batches ahead, need "
            f"{format_bytes(needed)} of shared memory, and {_LINUX_SHARED} has "
            f"{format_bytes(free)} free; expected room for them. Lower workers, prefetch or "
            "batch_size, free some space there, or start the container with more (docker run "
            "--shm-size=1g)."
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
def loader(data: BatchSet, workers: int, prefetch: int, pinned: bool) -> Iterator[Iterator[Any]]:
    """Provide an iterator of the batches in order; the workers end with the block."""
    options: dict[str, Any] = {}
    if workers:
        # A worker that is not forked needs seconds to import torch. Forking is possible since the
        # workers use no accelerator.
        context = "fork" if sys.platform.startswith("linux") else None
        options = {
            "prefetch_factor": prefetch,
            "timeout": _TIMEOUT_SECONDS,
            "multiprocessing_context": context,
            "worker_init_fn": _interrupts.leave_to_the_run,
        }
    with warnings.catch_warnings(), torch.device("cpu"):  # the workers must not use an accelerator
        # PyTorch warns of more workers than cores; the result has a note about it
        warnings.simplefilter("ignore", UserWarning)
        loading: Any = DataLoader(
            data,  # type: ignore[arg-type]
            batch_size=None,
            num_workers=workers,
            pin_memory=pinned,
            **options,
        )
        batches = iter(loading)
    try:
        yield batches
    finally:
        getattr(batches, "_shutdown_workers", lambda: None)()


def drive(
    batches: Iterator[Any],
    accelerator: Accelerator,
    *,
    steps: int,
    read_loss: bool,
    progress: Progress,
    stop: Stop,
) -> list[tuple[int, float, float]]:
    """Run the training loop: take a batch, pass it on, wait where the loss is read.

    Returns
    -------
    list of (worker, start, end)
        The worker that loaded each batch, and when.

    Raises
    ------
    MeasurementError
        If a worker dies or hangs.
    StoppedError
        If it was stopped before two steps were made.
    """
    loads: list[tuple[int, float, float]] = []
    for step in range(steps):
        if stop():
            break
        progress(step / steps, f"step {step + 1} of {steps}")
        try:
            batch = next(batches)
        except RuntimeError as error:
            raise MeasurementError(
                f"pipeline: batch {step} did not arrive ({message_of(error)}); expected each batch "
                f"within {_TIMEOUT_SECONDS:.0f} s. Lower the number of workers, or pass workers=0."
            ) from error
        loads.append(tuple(batch[2:]))  # worker, start, end
        accelerator.step(batch)
        if read_loss:
            accelerator.wait()
    accelerator.wait()
    if len(loads) < 2:
        raise StoppedError(
            "pipeline: stopped before two steps were made; expected at least two. Run it again."
        )
    progress(1.0, "done")
    return loads
