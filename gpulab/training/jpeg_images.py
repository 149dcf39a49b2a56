"""Real JPEG files without a download: drawn here, encoded once, and decoded as in training.

The pictures are computed, so nothing has to be downloaded; the files are true JPEG (Pillow's
encoder, the size of a small photograph), and decoding, cropping and scaling them is the work that
an image pipeline does for each sample.
"""

from __future__ import annotations

import functools
import io
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpulab.errors import InputError, MissingLibraryError, pip_command, shown

CLASSES = 10
_QUALITY = 90  # what cameras and data sets use: a picture of 224 x 224 takes some twenty kilobytes
_LEAST_AREA = 0.35  # of the picture that a random crop keeps; the rest varies what the network sees


def pillow() -> Any:
    """Return Pillow's ``Image`` module.

    Raises
    ------
    MissingLibraryError
        If Pillow is not installed.
    """
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingLibraryError(
            "images: Pillow is missing; it encodes and decodes the JPEG files. Run "
            f"{pip_command('install pillow')}."
        ) from error
    return Image


def draw(label: int, side: int, seed: int) -> np.ndarray:
    """Return one picture: a grating whose direction tells the class, in a random color, under
    smooth and fine noise.

    Parameters
    ----------
    label : int
        0 to 9: the grating's direction in steps of 18 degrees.
    side : int
        Pixels.
    seed : int

    Returns
    -------
    ndarray
        (side, side, 3), uint8.
    """
    random = np.random.default_rng(seed)
    y, x = np.mgrid[0:side, 0:side] / side
    angle = np.pi * label / CLASSES
    wave = np.sin(
        2 * np.pi * random.uniform(5, 9) * (x * np.cos(angle) + y * np.sin(angle))
        + random.uniform(0, 2 * np.pi)
    )
    coarse = (
        random.normal(size=(8, 8, 3))
        .repeat(-(-side // 8), 0)
        .repeat(-(-side // 8), 1)[:side, :side]
    )
    fine = random.normal(size=(side, side, 1))
    picture = 128 + 45 * wave[..., None] * random.uniform(0.4, 1, size=3) + 18 * coarse + 10 * fine
    pixels: np.ndarray = np.clip(picture, 0, 255).astype(np.uint8)
    return pixels


@functools.lru_cache(maxsize=4)
def jpegs(count: int = 64, side: int = 224, seed: int = 0) -> tuple[tuple[bytes, int], ...]:
    """Return JPEG files with their classes; the same ones for the same seed, and encoded only once.

    Parameters
    ----------
    count : int
        Different pictures; a training that needs more reads them again, as a second epoch would.
    side : int
        Pixels of the square picture.
    seed : int

    Returns
    -------
    tuple of (bytes, int)
        The file and its class.
    """
    image = pillow()
    files = []
    for k in range(count):
        file = io.BytesIO()
        image.fromarray(draw(k % CLASSES, side, seed * 1_000_003 + k)).save(
            file, "JPEG", quality=_QUALITY
        )
        files.append((file.getvalue(), k % CLASSES))
    return tuple(files)


def decode(file: bytes, size: int, random: np.random.Generator) -> np.ndarray:
    """Return one sample of a JPEG file: decoded, cropped at random, scaled, mirrored every second
    time.

    Returns
    -------
    ndarray
        (3, size, size), uint8.

    Raises
    ------
    InputError
        If the file is not a picture.
    """
    image = pillow()
    try:
        picture = image.open(io.BytesIO(file)).convert("RGB")
    except OSError as error:
        raise InputError(
            f"decode: {len(file)} bytes are not a picture ({error}); expected a JPEG file. Check "
            "whether the file is complete."
        ) from error
    share = np.sqrt(random.uniform(_LEAST_AREA, 1))
    width, height = max(1, int(picture.width * share)), max(1, int(picture.height * share))
    left, top = (
        int(random.integers(0, room + 1))
        for room in (picture.width - width, picture.height - height)
    )
    small = picture.resize(
        (size, size), image.Resampling.BILINEAR, box=(left, top, left + width, top + height)
    )
    pixels = np.asarray(small).transpose(2, 0, 1)
    return np.ascontiguousarray(pixels[:, :, ::-1] if random.random() < 0.5 else pixels)


@dataclass
class LoadedBatch:
    """What a worker hands over.

    Attributes
    ----------
    images : torch.Tensor
        (batch, 3, size, size), uint8: a quarter of the bytes of float32; the accelerator converts.
    labels : torch.Tensor
        (batch,), int64.
    worker : int
        The worker that decoded it, from 0; -1 is the training's own process.
    start, end : float
        When, on ``time.perf_counter``, which all processes of a machine share.
    """

    images: Any
    labels: Any
    worker: int
    start: float
    end: float

    def pin_memory(self) -> LoadedBatch:
        """Return the batch in page-locked memory; ``DataLoader(pin_memory=True)`` calls this."""
        return LoadedBatch(
            self.images.pin_memory(), self.labels.pin_memory(), self.worker, self.start, self.end
        )


def keep(batch: LoadedBatch) -> LoadedBatch:
    """Return a batch as it is: the collate function of a data set whose items are whole batches."""
    return batch


class BatchSet:
    """A data set whose item k is the k-th batch, decoded when it is asked for; any process may hold
    it.

    Parameters
    ----------
    files : sequence of (bytes, int)
    batch_size, size : int
        Images in a batch; pixels of each.
    batches : int
    seed : int
        Of the crops; the batch's own number is added, so the order of work changes nothing.
    """

    def __init__(
        self,
        files: Sequence[tuple[bytes, int]],
        batch_size: int,
        size: int,
        batches: int,
        seed: int = 0,
    ) -> None:
        self.files, self.batch_size, self.size, self.batches, self.seed = (
            files,
            batch_size,
            size,
            batches,
            seed,
        )

    def __len__(self) -> int:
        return self.batches

    def __getitem__(self, number: int) -> LoadedBatch:
        """Return batch ``number``."""
        if not 0 <= number < self.batches:
            raise IndexError(f"batch {shown(number)} of {self.batches}")
        import torch
        from torch.utils.data import get_worker_info

        start = time.perf_counter()
        random = np.random.default_rng([self.seed, number])
        chosen = [
            self.files[(number * self.batch_size + k) % len(self.files)]
            for k in range(self.batch_size)
        ]
        images = torch.from_numpy(np.stack([decode(file, self.size, random) for file, _ in chosen]))
        labels = torch.tensor([label for _, label in chosen])
        info = get_worker_info()
        return LoadedBatch(
            images, labels, -1 if info is None else info.id, start, time.perf_counter()
        )
