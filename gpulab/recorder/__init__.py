"""Measure a whole machine with one command, on a machine that has only numpy, torch and CuPy.

``record`` runs the experiments below, the most informative cases first, and writes the recording
every few seconds and at the end, so that an interrupt loses nothing. Cases on several ranks also
need cloudpickle, without which none is planned, and ipyparallel. Cases that cannot run on a machine
are kept as not recorded, with the reason.
"""

import functools
import importlib.util
from collections.abc import Iterable

from gpulab.devices import Device
from gpulab.recorder._experiments import Case, Experiment, experiments, register
from gpulab.recorder._session import record

__all__ = ["Case", "Experiment", "experiments", "record", "register"]


def _planned(where: str, device: Device) -> Iterable[Case]:
    """Return the cases that the function ``where`` ("module.function" of this package) plans. Its
    module, which needs torch, is imported only now.
    """
    module, _, function = where.partition(".")
    planned: Iterable[Case] = (
        ()  # gpulab.parallel cannot be imported
        if module == "_ranks" and importlib.util.find_spec("cloudpickle") is None
        else getattr(importlib.import_module(f"{__name__}.{module}"), function)(device)
    )
    return planned


for _name, _summary, _where in (
    (
        "catalogue",
        "every workload over its sizes and dtypes, with and without copies",
        "_rates.catalogue",
    ),
    ("ceilings", "memory copy, triad, and the matrix product by dtype", "_rates.ceilings"),
    (
        "launch",
        "the time from one small operation to the next: in a stream, in a CUDA graph, and of "
        "kernels launched by numba, CuPy and the driver",
        "_rates.launches",
    ),
    (
        "compression",
        "lighter layers of notebook 07: CSR, 2:4, 8 bits, and a grouped convolution, compared with "
        "dense ones",
        "_networks.layers",
    ),
    (
        "latency",
        "the time of dependent loads (each load gives the address of the next), over working sets",
        "_rates.latencies",
    ),
    (
        "bandwidth",
        "bytes read per second over working sets: one core of a CPU, or a whole GPU",
        "_rates.bandwidths",
    ),
    (
        "ladders",
        "the kernel ladders of notebook 04: Python kernels (with numba-cuda), CUDA C++ (with "
        "CuPy), the library's product",
        "_rates.ladders",
    ),
    (
        "data-parallel scaling",
        "a training step over numbers of ranks, strong and weak scaling",
        "_ranks.scaling",
    ),
    (
        "collectives",
        "collectives over sizes, on all ranks; an all-gather's nbytes are one rank's part, not the "
        "whole tensor",
        "_ranks.collectives",
    ),
    (
        "pipeline",
        "decoding JPEG files, a training step behind workers, and the cost of reading the loss",
        "_networks.pipeline",
    ),
    (
        "precision",
        "matrix products in each format, with sides that are multiples of 16 and sides that are "
        "not",
        "_rates.precisions",
    ),
    (
        "training",
        "a training step in each precision, and with each technique of notebook 06",
        "_networks.training_steps",
    ),
    (
        "speed-up ladder",
        "a beginner's training script and a dozen techniques: each alone, all together, and all "
        "but one",
        "_networks.speedup_ladder",
    ),
    ("attention", "attention written out and by each kernel, over lengths", "_networks.attention"),
    (
        "generation",
        "a decoder of notebook 11: prefill and decode over batches, lengths, heads, and weights of "
        "fewer bits; answers in static and continuous batches",
        "_networks.generation",
    ),
    (
        "lessons",
        "cells of notebooks 01, 02 and 04 that only a GPU can run: divergent branches, pinning, "
        "a kernel in five spellings, a transpose that reads columns",
        "_lessons.lessons",
    ),
    ("tips", "small tips from tuning guides, each without and with it", "_networks.tips"),
    (
        "transfer",
        "copies of 1 KiB to 1 GiB in both directions, pageable and pinned (on a CPU: the host "
        "copy)",
        "_rates.copies",
    ),
    (
        "overlap",
        "copy and compute one after the other, and in chunks at the same time",
        "_rates.overlaps",
    ),
):
    register(Experiment(_name, _summary, functools.partial(_planned, _where)))
