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
# Where PyTorch keeps the precision of float32 arithmetic: of matrix products on CUDA, of
# convolutions and recurrent layers in cuDNN, and of products in oneDNN.
_FLOAT32: list[Any] = [
    torch.backends.cuda.matmul,
    cast(Any, torch.backends.cudnn).conv,
    cast(Any, torch.backends.cudnn).rnn,
    cast(Any, torch.backends.mkldnn).matmul,
]
# Threads in an ``exclusive`` block or waiting for one, in order of arrival; the first is inside.
_line: list[threading.Thread] = []


@contextlib.contextmanager
def exclusive() -> Iterator[None]:
    """Let only one thread at a time into such a block: switches and generators belong to the whole
    process, so two threads would restore each other's values.

    Threads enter in order of arrival, so a cell and an instrument that train at the same time take
    turns, step by step. A lock would not do: a thread that releases it and asks for it again would
    get it before the threads that wait.
    """
    me = threading.current_thread()
    if _line[:1] == [me]:  # a block inside of a block
        yield
        return
    try:
        _line.append(me)
        while (first := _line[0]) is not me:
            if not first.is_alive():  # such as a check at its time limit, ended inside the block
                _leave(first)
            time.sleep(_POLL_SECONDS)
        yield
    finally:
        _leave(me)


def _leave(thread: threading.Thread) -> None:
    with contextlib.suppress(ValueError):  # it has left, or was interrupted before it joined
        _line.remove(thread)


class Generators:
    """One run's own states of torch's random generators, so that runs that take turns do not
    disturb each other or the caller.
    """

    def __init__(self, seed: int, device: Device) -> None:
        self._generators: list[Any] = [torch.default_generator]
        if device.torch_type == "mps":  # Metal has one device
            self._generators.append(torch.mps._get_default_mps_generator())
        elif not device.is_cpu:
            accelerator = getattr(torch, device.torch_type)
            accelerator.init()  # it makes the generators
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
    """After the block, put each module of a model back into its mode, training or evaluation."""
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
    """Within the block PyTorch computes with ``count`` threads, if the device is a CPU.

    The threads of a small step wait for each other whenever another process takes one of the cores:
    with two busy neighbors on two cores, steps of the digits' network took 0.97 to 26 times as long
    on two threads as on one, in ten runs (``benchmarks/speedup_ladder.py --neighbours 2``).
    """
    with contextlib.ExitStack() as after:
        if device.is_cpu:
            after.callback(torch.set_num_threads, torch.get_num_threads())
            torch.set_num_threads(count)
        yield


@contextlib.contextmanager
def put_back() -> Iterator[None]:
    """After the block, restore the switches of PyTorch that it may have changed: threads, precision
    of float32, cuDNN's choice of algorithms, deterministic algorithms, default dtype and device,
    gradients.

    So a switch that one script sets for itself is not set for the next one.
    """
    # A place whose precision is "none" has that of its library, or the one for all. (oneDNN's own
    # attribute reads the former, and sets the latter.)
    places = (torch.backends, torch.backends.cudnn, *_FLOAT32)
    found: list[tuple[Any, str]] = [
        *((place, "fp32_precision") for place in places),
        (torch.backends.cudnn, "benchmark"),
        (torch.backends.cudnn, "deterministic"),
        (torch.utils.deterministic, "fill_uninitialized_memory"),
    ]
    calls: list[tuple[Any, Any]] = [
        (torch.get_num_threads, torch.set_num_threads),
        (torch.get_default_dtype, torch.set_default_dtype),
        (_default_device, _set_default_device),
        (torch.is_grad_enabled, torch.set_grad_enabled),
        # set by the function that also sets Inductor's switch; mode 0 is off, 1 warns
        (
            torch.get_deterministic_debug_mode,
            lambda mode: torch.use_deterministic_algorithms(mode > 0, warn_only=mode == 1),
        ),
    ]
    before = [(place, name, getattr(place, name)) for place, name in found]
    # the stack restores in reverse order
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
    """Within the block products, convolutions and recurrent layers of float32 are computed in
    float32, or in TF32 if ``precision`` is "tf32", and kernels give the same bits on every run.

    PyTorch's deterministic mode also fills new memory with nan, which takes a kernel for each
    tensor; that is left out, since it would be timed as part of the step.

    With ``autotune`` cuDNN times the deterministic algorithms and takes the fastest, so another run
    may take another one. The caller's autocast and default device do not apply. Only one thread at
    a time is in such a block.
    """
    with exclusive(), put_back():
        wanted = "tf32" if precision == "tf32" else "ieee"
        _matmul_precision("high" if wanted == "tf32" else "highest")
        for place, value in zip(_FLOAT32, (wanted, wanted, wanted, "ieee"), strict=True):
            place.fp32_precision = value
        cast(Any, torch.utils.deterministic).fill_uninitialized_memory = False
        if device.torch_type == "cuda":
            torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, autotune
            torch.use_deterministic_algorithms(True, warn_only=True)
        kind, nothing = device.torch_type, contextlib.nullcontext()
        with (
            warnings.catch_warnings(),
            torch.enable_grad(),
            # only if the caller's autocast is on: within this block the end of another one, such as
            # of a loss's own, does not clear the cache of converted weights
            torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nothing,
            # an optimizer makes its counters on the default device
            nothing if torch.get_default_device().type == "cpu" else torch.device("cpu"),
        ):
            warnings.filterwarnings("ignore", message=".*deterministic.*")
            yield


def _default_device() -> Any:
    """Return what ``torch.set_default_device`` has set in this thread, or None; a block of ``with
    torch.device(...)`` does not count.
    """
    context = getattr(cast(Any, torch)._GLOBAL_DEVICE_CONTEXT, "device_context", None)
    return getattr(context, "device", None)


def _set_default_device(device: Any) -> None:
    # PyTorch refuses to set it, even to the same device, inside ``with torch.device(...)``
    if device != _default_device():
        torch.set_default_device(device)


def _matmul_precision(wanted: str | None = None) -> str:
    """Return PyTorch's older switch of float32 products, and set it to ``wanted`` if that is given.

    The newer switches (``_FLOAT32``) are "ieee" afterwards, or as the older switch sets them. While
    the two disagree, the older switch cannot be read, and Inductor of PyTorch 2.9 and 2.10 reads
    it.
    """
    for place in _FLOAT32:
        place.fp32_precision = "ieee"
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*new API settings.*")
        before = torch.get_float32_matmul_precision()
        if wanted is not None:
            torch.set_float32_matmul_precision(wanted)
    return before
