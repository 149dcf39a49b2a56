"""Feeding an accelerator: decoding JPEG files, steps behind workers, and what reading the loss in
each step costs (notebook 06).
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable
from typing import Any

from gpulab.devices import Device
from gpulab.recorder._registry import SECOND, THIRD, Case, Experiment, register
from gpulab.timing import Measurement, measure
from gpulab.training import _images, _pipeline

_BATCH, _SIZE = 32, 128
_WORKERS = (0, 1, 2, 4, 8)
_ENDLESS = 1_000_000  # more batches than any deadline sees
_LOOP_STEPS = 50
_SHARES = 4  # a call takes tens of milliseconds, and an interval twenty calls


def _batches() -> _images.BatchSet:
    return _images.BatchSet(_images.jpegs(), _BATCH, _SIZE, _ENDLESS)


def _decode_case() -> Case:
    def time(deadline_seconds: float) -> Measurement:
        numbers, batches = iter(range(_ENDLESS)), _batches()
        return measure(
            lambda: batches[next(numbers)],
            device="cpu",
            deadline=deadline_seconds,
            label=f"decode {_BATCH} JPEG files",
        )

    return Case({"part": "decode", "batch": _BATCH, "size": _SIZE}, time, SECOND)


def _step_case(device: Device, workers: int) -> Case:
    """One step of the loop, its loading counted; on a CPU only the taking of a batch, since
    training there would fight for the cores.
    """

    def time(deadline_seconds: float) -> Measurement:
        live = device.torch_type == "cuda"
        accelerator = (
            _pipeline.LiveAccelerator(device, _BATCH, _SIZE, pinned=True) if live else None
        )
        with _pipeline._loader(_batches(), workers, 2, live) as batches:

            def step() -> None:
                batch = next(batches)
                if accelerator is not None:
                    accelerator.step(batch)

            return measure(
                step,
                device=device,
                deadline=deadline_seconds,
                label=f"a step behind {workers} workers",
            )

    return Case(
        {"part": "step", "workers": workers, "batch": _BATCH, "size": _SIZE},
        time,
        SECOND if workers in (0, 4) else THIRD,
        _SHARES,
    )


def _loop_case(device: Device, reads: bool) -> Case:
    def time(deadline_seconds: float) -> Measurement:
        import torch

        from gpulab import networks

        torch.manual_seed(0)
        model = networks.mlp(64, 256, 10).to(str(device))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        x = torch.randn(64, 64).to(str(device))
        y = torch.randint(0, 10, (64,)).to(str(device))

        def loop() -> Any:
            total: Any = 0.0
            for _ in range(_LOOP_STEPS):
                optimizer.zero_grad()
                loss = torch.nn.functional.cross_entropy(model(x), y)
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                total = total + (loss.item() if reads else loss.detach())
            return total

        return measure(
            loop,
            device=device,
            deadline=deadline_seconds,
            label=f"{_LOOP_STEPS} steps, {'reading' if reads else 'keeping'} the loss",
        )

    return Case(
        {"part": "loop", "reads_loss": int(reads), "steps": _LOOP_STEPS}, time, SECOND, _SHARES
    )


def _cases(device: Device) -> Iterable[Case]:
    for reads in (True, False):
        yield _loop_case(device, reads)
    if importlib.util.find_spec("PIL") is not None:  # a bare machine may have no Pillow
        yield _decode_case()
        # elsewhere no step is taken: the taking of a batch would stand for one
        if device.is_cpu or device.torch_type == "cuda":
            for workers in _WORKERS:
                yield _step_case(device, workers)


register(
    Experiment(
        "pipeline",
        "decoding JPEG files, a training step behind workers, and the cost of reading the loss",
        _cases,
    )
)
