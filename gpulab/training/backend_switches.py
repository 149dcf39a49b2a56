"""Set PyTorch's switches and random generators for a run, and restore them afterwards."""

from __future__ import annotations

import contextlib
import threading
import time
import warnings
from collections.abc import Iterator
from typing import Any, cast

import torch

from gpulab.devices import Device

_POLL_SECONDS = 0.001
# where PyTorch keeps whether float32 may be narrower: of products and convolutions on CUDA, and of
# oneDNN
_FLOAT32: list[Any] = [
    torch.backends.cuda.matmul,
    cast(Any, torch.backends.cudnn).conv,
    cast(Any, torch.backends.mkldnn).matmul,
]
# who is in an ``exclusive`` block or waits for one, as they came; the first is inside
_line: list[threading.Thread] = []


@contextlib.contextmanager
def exclusive() -> Iterator[None]:
    """Within the block no other thread is in one: switches and generators are the process's, and
    two would put back each other's.

    Threads enter as they came, so a cell and an instrument that train at the same time take turns,
    step by step. No lock: a thread that leaves and comes again would have it before those who wait.
    """
    me = threading.current_thread()
    if _line[:1] == [me]:  # a block inside of a block
        yield
        return
    try:
        _line.append(me)
        while (first := _line[0]) is not me:
            if not first.is_alive():  # a check whose time was up was ended before it could leave
                _leave(first)
            time.sleep(_POLL_SECONDS)
        yield
    finally:
        _leave(me)


def _leave(thread: threading.Thread) -> None:
    with contextlib.suppress(ValueError):  # it has left, or was interrupted before it stood in line
        _line.remove(thread)


class Generators:
    """The state of torch's random generators that belongs to one run, so that runs in turn do not
    disturb each other or the caller.
    """

    def __init__(self, seed: int, device: Device) -> None:
        self._generators: list[Any] = [torch.default_generator]
        if device.torch_type == "mps":  # Metal has one device
            self._generators.append(torch.mps._get_default_mps_generator())
        elif not device.is_cpu:
            accelerator = getattr(torch, device.torch_type)
            accelerator.init()  # before it there are no generators
            self._generators.append(accelerator.default_generators[device.index])
        self._states = [
            torch.Generator(generator.device).manual_seed(seed).get_state()
            for generator in self._generators
        ]

    @contextlib.contextmanager
    def in_use(self) -> Iterator[None]:
        """Within the block the generators are the run's own."""
        callers = [generator.get_state() for generator in self._generators]
        try:
            for generator, state in zip(self._generators, self._states, strict=True):
                generator.set_state(state)
            yield
        finally:
            self._states = [generator.get_state() for generator in self._generators]
            for generator, state in zip(self._generators, callers, strict=True):
                generator.set_state(state)


@contextlib.contextmanager
def modes_kept(model: Any) -> Iterator[None]:
    """Within the block a model may be set to train or to evaluate; afterwards each of its modules
    is in its old mode.
    """
    with contextlib.ExitStack() as after:
        for module in model.modules():
            after.callback(setattr, module, "training", module.training)
        yield


def current(device: Device) -> contextlib.AbstractContextManager[Any]:
    """Within the block a CUDA device is the current one: streams, events and graphs are made there
    unless another is named.
    """
    return (
        torch.cuda.device(device.index) if device.torch_type == "cuda" else contextlib.nullcontext()
    )


@contextlib.contextmanager
def threads(count: int, device: Device) -> Iterator[None]:
    """Within the block PyTorch computes with so many threads where the device is a CPU.

    Small steps on all cores wait for each other whenever a neighbor takes one of them: with two
    busy neighbors on two cores, steps of the digits' network took 0.97 to 26 times as long on two
    threads as on one, in ten runs (``benchmarks/speedup_ladder.py --neighbours 2``).
    """
    with contextlib.ExitStack() as after:
        if device.is_cpu:
            after.callback(torch.set_num_threads, torch.get_num_threads())
            torch.set_num_threads(count)
        yield


@contextlib.contextmanager
def put_back() -> Iterator[None]:
    """Within the block anybody may turn PyTorch's switches: threads, precision of float32, cuDNN's
    choice, deterministic algorithms, default dtype, gradients.

    After it they are as they were, so that what one script turned on for itself is not on for the
    next one.
    """
    found: list[tuple[Any, str]] = [(place, "fp32_precision") for place in _FLOAT32]
    found += [(torch.backends.cudnn, name) for name in ("benchmark", "deterministic")]
    calls: list[tuple[Any, Any]] = [
        (torch.get_num_threads, torch.set_num_threads),
        (torch.get_default_dtype, torch.set_default_dtype),
        (torch.is_grad_enabled, torch.set_grad_enabled),
        # by the function that sets Inductor's switch too: 0 is off, 1 warns
        (
            torch.get_deterministic_debug_mode,
            lambda mode: torch.use_deterministic_algorithms(mode > 0, warn_only=mode == 1),
        ),
    ]
    before = [(place, name, getattr(place, name)) for place, name in found]
    # what comes last here is put back first
    with contextlib.ExitStack() as after:
        for switch in before:
            after.callback(setattr, *switch)
        after.callback(_matmul_precision, _matmul_precision())
        for get, put in calls:
            after.callback(put, get())
        for switch in before:
            setattr(*switch)
        yield


@contextlib.contextmanager
def switches(precision: str, device: Device, autotune: bool = False) -> Iterator[None]:
    """Within the block float32 means float32 unless "tf32" was asked for, and kernels give the same
    bits on every run.

    With ``autotune`` cuDNN chooses by time among the algorithms that do, so another run may get
    another one. One thread at a time.
    """
    with exclusive(), put_back():
        wanted = "tf32" if precision == "tf32" else "ieee"
        _matmul_precision("high" if wanted == "tf32" else "highest")
        for place, value in zip(_FLOAT32, (wanted, wanted, "ieee"), strict=True):
            place.fp32_precision = value
        if device.torch_type == "cuda":
            torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, autotune
            torch.use_deterministic_algorithms(True, warn_only=True)
        with warnings.catch_warnings(), torch.enable_grad():
            warnings.filterwarnings("ignore", message=".*deterministic.*")
            yield


def _matmul_precision(wanted: str | None = None) -> str:
    """Return the older switch of float32 products, and set it where another is wanted, which sets
    the newer ones too; they are "ieee" afterwards, or as the older one sets them.

    While the newer ones say otherwise the older one cannot be read, and Inductor of PyTorch 2.9 and
    2.10 reads it.
    """
    for place in _FLOAT32:
        place.fp32_precision = "ieee"
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*new API settings.*")
        before = torch.get_float32_matmul_precision()
        if wanted is not None:
            torch.set_float32_matmul_precision(wanted)
    return before
