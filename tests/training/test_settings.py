"""PyTorch's switches and generators, which belong to the whole process, while two threads train."""

from __future__ import annotations

import threading

import torch

from gpulab import devices
from gpulab.training import _settings

SECONDS = 30


def test_runs_in_two_threads_leave_the_callers_switch() -> None:
    """A cell trains while an instrument does, and the instrument ends first: the switch of products is the caller's afterwards."""
    before = torch.get_float32_matmul_precision()
    entered = [threading.Event(), threading.Event()]
    leave = [threading.Event(), threading.Event()]

    def step(number: int) -> None:
        with _settings.switches("float32", devices.find("cpu")):
            entered[number].set()
            leave[number].wait(SECONDS)

    threads = [threading.Thread(target=step, args=(number,)) for number in range(2)]
    try:
        torch.set_float32_matmul_precision("high")
        threads[0].start()
        assert entered[0].wait(SECONDS)
        threads[1].start()
        entered[1].wait(0.3)  # in vain: it waits for its turn
        for thread, event in zip(threads, leave, strict=True):
            event.set()
            thread.join(SECONDS)
        assert entered[1].is_set()
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        for event in leave:
            event.set()
        torch.set_float32_matmul_precision(before)


def test_threads_take_turns_as_they_come() -> None:
    """One that leaves and comes again at once stands behind the one that waits: a long training does not keep a short one out."""
    order: list[str] = []
    first_is_in = threading.Event()

    def training() -> None:
        for _ in range(2):
            with _settings.alone(), _settings.alone():  # a block inside of a block waits for nobody
                order.append("instrument")
                first_is_in.set()
                while len(order) == 1 and len(_settings._line) < 2:
                    pass

    def cell() -> None:
        first_is_in.wait(SECONDS)
        with _settings.alone():
            order.append("cell")

    threads = [threading.Thread(target=work) for work in (training, cell)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
    assert order == ["instrument", "cell", "instrument"]
    assert not _settings._line


def test_a_thread_that_ended_inside_keeps_nobody_out() -> None:
    """A check whose time is up is ended at any line; who trains next does not wait for it."""
    lost = threading.Thread(target=lambda: _settings._line.append(threading.current_thread()))
    lost.start()
    lost.join(SECONDS)
    with _settings.alone():
        assert _settings._line == [threading.current_thread()]
    assert not _settings._line
