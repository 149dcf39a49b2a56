"""The picture of a machine's memories, against memories made up by hand and those that are here."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable

import pytest
from look import look
from looks import LOOKS

from gpulab import devices, figures
from gpulab.devices._cpu import Cache
from gpulab.devices._facts import Accelerator, Memory
from gpulab.figures._style import LabFigure


def test_the_machine_is_drawn_with_all_its_memories() -> None:
    """The main memory of this machine and each cache that it reports are marks with their sizes."""
    m = devices.machine()
    figure = figures.machine(m)
    marks = {t.y[0]: t.x[0] for t in figure.data if t.mode == "markers+text"}
    assert marks["main memory"] == (m.memory.limit_bytes or m.memory.installed_bytes)
    assert len(marks) >= 1 + len(m.processor.caches)


def test_a_machines_memories_are_its_own() -> None:
    """By hand: a cache in four copies, 8 of 16 GiB granted, a GPU with its L2 and free memory, and one that is not used."""
    caches = (Cache("L1d", 32 * 2**10, 4), Cache("L3", 2**23, 1))
    gpus = (
        Accelerator("cuda:0", "A GPU", "cuda", memory_bytes=2**36, free_bytes=2**35, l2_bytes=2**25),
        Accelerator(None, "Another", "cuda", memory_bytes=2**34),
    )
    here = devices.machine()
    made = dataclasses.replace(here, processor=dataclasses.replace(here.processor, caches=caches), accelerators=gpus)
    granted = dataclasses.replace(made, memory=Memory(2**34, 2**31, 2**33))
    figure = figures.machine(granted)
    marks = [(t.y[0], t.x[0], re.sub("<.*?>", "", t.text[0])) for t in figure.data if t.mode == "markers+text"]
    assert marks == [
        ("CPU L1d", 2**15, "32.0 KiB x 4"), ("CPU L3", 2**23, "8.00 MiB"), ("main memory", 2**33, "8.00 GiB, 2.00 GiB free"),
        ("cuda:0 L2", 2**25, "32.0 MiB"), ("cuda:0 memory", 2**36, "64.0 GiB, 32.0 GiB free"), ("cuda (unused) memory", 2**34, "16.0 GiB"),
    ]  # fmt: skip
    assert [t.x[1] for t in figure.data if t.mode == "lines"] == [size for _, size, _ in marks]
    low, high = figure.layout.xaxis.range
    assert all(low < math.log10(size) < high for _, size, _ in marks)
    assert high - math.log10(2**36) > 0.15 * (high - low)  # the label beside the largest has its place
    assert list(figure.layout.yaxis.tickvals) == [name for name, *_ in marks]
    whole = figures.machine(dataclasses.replace(made, memory=Memory(2**34, 2**31)))
    assert [t.x[0] for t in whole.data if t.mode == "markers+text" and t.y[0] == "main memory"] == [2**34]


def test_each_gpu_that_is_not_used_has_its_row() -> None:
    """Four GPUs beside a PyTorch without CUDA have no names of PyTorch's: they are numbered, each with its own free memory beside it."""
    gpus = tuple(Accelerator(None, "A GPU", "cuda", memory_bytes=2**34, free_bytes=k * 2**30) for k in range(4))
    figure = figures.machine(dataclasses.replace(devices.machine(), accelerators=gpus))
    marks = {t.y[0]: re.sub("<.*?>", "", t.text[0]) for t in figure.data if t.mode == "markers+text"}
    rows = [f"cuda (unused) memory ({k})" for k in range(1, 5)]
    assert list(figure.layout.yaxis.tickvals)[-4:] == rows
    assert [marks[row] for row in rows] == [f"16.0 GiB, {free} free" for free in ("0 B", "1.00 GiB", "2.00 GiB", "3.00 GiB")]


def a_machine() -> LabFigure:
    """Two caches, half of the memory granted, a GPU."""
    here = devices.machine()
    caches = (Cache("L1d", 32 * 2**10, 4), Cache("L3", 2**23, 1))
    gpus = (Accelerator("cuda:0", "A GPU", "cuda", memory_bytes=2**36, free_bytes=2**35, l2_bytes=2**25),)
    processor = dataclasses.replace(here.processor, caches=caches)
    return figures.machine(dataclasses.replace(here, processor=processor, accelerators=gpus, memory=Memory(2**34, 2**31, 2**33)))


PICTURES: dict[str, Callable[[], LabFigure]] = {
    "machine": a_machine,
}


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_looks_as_its_table_says(name: str) -> None:
    """Part by part; a line that differs is shown beside the table's."""
    assert look(PICTURES[name]()) == LOOKS[name]
