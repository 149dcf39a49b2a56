"""A step as a CUDA graph, with stand-ins for CUDA's streams and graphs: what runs as it is, what is recorded, what is replayed."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gpulab import devices, training
from gpulab.evidence import Note
from gpulab.training._graph import GraphedStep


class Step:
    """A step of training whose loss is the sum of its batch."""

    def __init__(self, log: list[str], *, refuses: bool = False) -> None:
        self.log, self.refuses = log, refuses
        self.device = SimpleNamespace(index=1)
        self.cleared: list[bool] = []
        self.optimizer = SimpleNamespace(zero_grad=lambda *, set_to_none: self.cleared.append(set_to_none))
        self.recording = False

    def run(self, batch: tuple[torch.Tensor, torch.Tensor], mark: Any) -> torch.Tensor:
        """Take one step."""
        if self.recording and self.refuses:
            raise RuntimeError("operation not permitted when stream is capturing")
        self.log.append("recorded" if self.recording else "run")
        return batch[0].sum() + batch[1].sum()


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What CUDA was asked for, in order."""
    seen: list[str] = []
    stream = SimpleNamespace(wait_stream=lambda other: seen.append("wait"))
    monkeypatch.setattr(torch.cuda, "Stream", lambda index: SimpleNamespace(index=index, wait_stream=stream.wait_stream))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda other: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: seen.append("synchronize"))
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: SimpleNamespace(replay=lambda: seen.append("replay")))
    return seen


def record_with(step: Step, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the stand-in for ``torch.cuda.graph`` tell the step that it is recorded."""

    @contextlib.contextmanager
    def graph(_: Any, *, stream: Any, capture_error_mode: str) -> Iterator[None]:
        assert stream.index == step.device.index  # by default it is the one of PyTorch's first recording, on whatever device that was
        assert capture_error_mode == "thread_local"  # PyTorch's manual: "will only error for actions in the current thread"
        step.recording = True
        try:
            yield
        finally:
            step.recording = False

    monkeypatch.setattr(torch.cuda, "graph", graph)


def batch(value: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Two numbers of one value."""
    return torch.full((1,), value), torch.full((1,), value)


def test_three_steps_run_the_fourth_is_recorded_and_all_from_there_are_replayed(log: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Three on a side stream, which waits and is waited for; recording runs nothing, so the fourth step is the first replay."""
    step = Step(log)
    record_with(step, monkeypatch)
    notes: list[Note] = []
    graphed = GraphedStep(step, notes)
    marks: list[str] = []
    for number in range(3):
        assert float(graphed.run(batch(number), marks.append)) == 2 * number
        assert not graphed.is_recorded
    assert (log, step.cleared) == (["wait", "run", "wait"] * 3, [])
    log.clear()
    graphed.run(batch(7.0), marks.append)
    assert (log, graphed.is_recorded) == (["recorded", "replay"], True)
    graphed.run(batch(8.0), marks.append)
    assert log == ["recorded", "replay", "replay"]
    assert marks == ["copy", "graph", "copy", "graph"]
    # PyTorch's notes on CUDA graphs: set gradients to None before the recording, so that backward() makes them in the graph's memory.
    assert step.cleared == [True]
    assert [float(place) for place in graphed._inputs or ()] == [8.0, 8.0]  # a replay reads the places that were recorded
    assert notes == []


def test_a_step_that_cannot_be_recorded_runs_on_as_it_is(log: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """It is said once, the device is waited for, and no step is lost."""
    step = Step(log, refuses=True)
    record_with(step, monkeypatch)
    notes: list[Note] = []
    graphed = GraphedStep(step, notes)
    losses = [float(graphed.run(batch(number), lambda phase: None)) for number in range(6)]
    assert losses == [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]
    assert (log.count("run"), log.count("replay"), log.count("synchronize")) == (6, 0, 1)
    assert step.cleared == [True, True], "what the recording left of gradients lies in memory that the graph takes with it"
    assert [note.code for note in notes] == ["skipped"]
    assert "capturing" in notes[0].sentence
    assert (graphed.has_failed, graphed.is_recorded) == (True, False)


def test_a_recording_that_cannot_be_ended_leaves_the_callers_stream_the_current_one(
    log: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As ``torch.cuda.graph`` does: what waits for the device spoils the recording, ending it raises too, and its stream is not left. The
    reason that is told is the first one. CUDA's generator is taken out of the spoilt recording by one that is whole.
    """
    current, ended = ["the caller's"], []

    class Stream:
        def __init__(self, other: Any) -> None:
            self.other = other

        def __enter__(self) -> None:
            self.before, current[0] = current[0], f"of GPU {self.other.index}"

        def __exit__(self, *raised: object) -> None:
            current[0] = self.before

    class Graph:
        def __init__(self, _: Any, *, stream: Any, capture_error_mode: str) -> None:
            self.context = torch.cuda.stream(stream)

        def __enter__(self) -> None:
            self.context.__enter__()
            step.recording = True

        def __exit__(self, *raised: object) -> None:
            step.recording = False
            ended.append("spoilt" if raised[0] is not None else "whole")
            if raised[0] is not None:
                raise RuntimeError("CUDA error: operation failed due to a previous error during capture")
            self.context.__exit__(None, None, None)

    step = Step(log, refuses=True)
    monkeypatch.setattr(torch.cuda, "stream", Stream)
    monkeypatch.setattr(torch.cuda, "graph", Graph)
    notes: list[Note] = []
    graphed = GraphedStep(step, notes)
    for number in range(5):
        graphed.run(batch(number), lambda phase: None)
        assert current == ["the caller's"]
    assert (log.count("run"), graphed.has_failed) == (5, True)
    assert ended == ["spoilt", "whole"]
    assert ["operation not permitted when stream is capturing" in note.sentence for note in notes] == [True]


def test_a_run_whose_step_cannot_be_recorded_is_told_as_one_without_a_graph(log: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """From the fourth step on its options say so; its losses are those of a plain run."""

    @contextlib.contextmanager
    def graph(*_: Any, **__: Any) -> Iterator[None]:
        raise RuntimeError("operation not permitted when stream is capturing")
        yield

    monkeypatch.setattr(torch.cuda, "graph", graph)
    usual: dict[str, Any] = {"steps": 6, "batch_size": 4, "device": "cpu"}
    plain, run = training.Run("prose-transformer", **usual), training.Run("prose-transformer", **usual)
    run.options = dataclasses.replace(run.options, cuda_graph=True)  # as where the device has them
    run._graph = GraphedStep(run._step, run.notes)
    run.advance(3)
    assert run.options.cuda_graph
    run.advance(3)
    assert not run.options.cuda_graph
    assert [note.code for note in run.notes] == ["skipped"]
    assert run.losses == plain.advance(6)


def test_a_run_steps_with_its_own_gpu_as_the_current_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the second GPU streams, events and graphs of a step are made there, and the caller's device is the current one afterwards."""
    current, seen = [0], []

    @contextlib.contextmanager
    def device(index: int) -> Iterator[None]:
        before, current[0] = current[0], index
        yield
        current[0] = before

    monkeypatch.setattr(torch.cuda, "device", device)
    run = training.Run("prose-transformer", steps=3, batch_size=4, device="cpu")
    take = run._step.run
    monkeypatch.setattr(run._step, "run", lambda *given: seen.append(current[0]) or take(*given))
    run.advance(1)
    run.device = devices.Device("cuda", 1)
    run.advance(2)
    assert (seen, current) == ([0, 1, 1], [0])
