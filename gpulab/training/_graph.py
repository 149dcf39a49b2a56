"""One step of training recorded as a CUDA graph and replayed: the host then makes one launch a
step.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, cast

from gpulab.errors import message_of
from gpulab.evidence import Note

# PyTorch's notes on CUDA graphs ask for a few on a side stream, so that libraries and the optimizer
# have their state
_EAGER_STEPS = 3


# graphs whose recording was spoilt: PyTorch's allocator goes on asking them whether they record
_spoilt: list[Any] = []


class GraphedStep:
    """A step that runs as it is three times, is then recorded, and is replayed from there on.

    The first steps are real steps of the run, and recording runs nothing, so the losses are those
    of a run without a graph.

    Parameters
    ----------
    step : gpulab.training._step.Step
        Its optimizer must be capturable. While it runs, its device is the current one.
    notes : list of Note
        Where it is said that recording failed; the steps then go on as they are.
    """

    def __init__(self, step: Any, notes: list[Note]) -> None:
        import torch

        self._step, self._notes = step, notes
        self._taken = 0
        self._side = cast(Any, torch.cuda.Stream)(step.device.index)
        self._graph: Any = None
        self._inputs: tuple[Any, Any] | None = None
        self._loss: Any = None
        self._failed = False

    @property
    def has_failed(self) -> bool:
        """Whether recording failed, so that steps are launched operator by operator."""
        return self._failed

    def run(self, batch: tuple[Any, Any], mark: Callable[[str], None]) -> Any:
        """Take one step on a batch on the device; returns its loss, a detached scalar."""
        import torch

        if self._failed:
            return self._step.run(batch, mark)
        self._taken += 1
        if self._taken <= _EAGER_STEPS:
            self._side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._side):
                loss = self._step.run(batch, mark)
            torch.cuda.current_stream().wait_stream(self._side)
            return loss
        if self._graph is None:
            self._record(batch)
            if self._failed:
                return self._step.run(batch, mark)
        assert self._inputs is not None
        for place, value in zip(self._inputs, batch, strict=True):
            place.copy_(value)
        mark("copy")
        self._graph.replay()
        mark("graph")
        return self._loss.clone()

    def _record(self, batch: tuple[Any, Any]) -> None:
        import torch

        self._inputs = (batch[0].clone(), batch[1].clone())
        self._step.optimizer.zero_grad(set_to_none=True)
        graph = torch.cuda.CUDAGraph()
        try:
            # By default what another thread does can break the recording, and the one that loads
            # ahead pins memory meanwhile. The stream is ours: PyTorch's own for recordings is made
            # once, on the device that was current then. It is entered here too, for where the
            # recording is spoilt its end raises as well, and then PyTorch leaves the recording's
            # stream the current one: kernels of CuPy and Numba, on the device's own stream, would
            # from then on not wait for PyTorch's work.
            with (
                torch.cuda.stream(self._side),
                torch.cuda.graph(graph, stream=self._side, capture_error_mode="thread_local"),
            ):
                self._loss = self._step.run(self._inputs, lambda phase: None)
        except Exception as error:
            # an operator that waits for the device, or an optimizer that is not capturable
            self._failed = True
            torch.cuda.synchronize()
            self._step.optimizer.zero_grad(set_to_none=True)
            reason = message_of(_first(error), 120)
            sentence = (
                f"the step could not be recorded as a CUDA graph ({reason}), so it was "
                "launched operator by operator."
            )
            self._notes.append(Note("skipped", sentence))
            if _first(error) is not error:
                _spoilt.append(graph)
                self._record_whole()
            return
        self._graph = graph

    def _record_whole(self) -> None:
        """Record a graph that nobody replays: a spoilt recording keeps CUDA's generator, in some
        versions of PyTorch, until one is whole.

        Dropout and every other graph's replay would raise from then on ("Offset increment outside
        graph capture").
        """
        import torch

        assert self._inputs is not None
        with (
            # what was to be mended is told by the next step that needs it
            contextlib.suppress(RuntimeError),
            torch.cuda.stream(self._side),
            torch.cuda.graph(
                torch.cuda.CUDAGraph(), stream=self._side, capture_error_mode="thread_local"
            ),
        ):
            self._inputs[0].zero_()


def _first(error: Exception) -> Exception:
    """Return what spoilt a recording: its end says only that something did
    (cudaErrorStreamCaptureInvalidated).
    """
    before = error.__context__
    return (
        before
        if isinstance(before, Exception) and "previous error during capture" in str(error)
        else error
    )
