"""What holds memory while a training step runs, operator by operator."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from gpulab import _given, devices
from gpulab.errors import GpulabError, InputError, StoppedError, kind_of, shown
from gpulab.evidence import Evidence, Note
from gpulab.memory.results import CATEGORIES, MemoryTrace
from gpulab.units import plural

_PEAK_TENSORS = 50
# every operator of every step is kept: more would fill the memory that is looked at
_MOST_STEPS = 1000


def trace(
    model_or_fn: Any,
    *inputs: Any,
    loss: Callable[..., Any] | None = None,
    optimizer: Any = None,
    targets: Any = None,
    precision: str = "float32",
    checkpoint: bool = False,
    steps: int = 2,
    device: Any = None,
    progress: Callable[[float, str], None] | None = None,
    stop: Callable[[], bool] | None = None,
) -> MemoryTrace:
    """Run a training step (or any function) and return its memory by category after each operator.

    Parameters
    ----------
    model_or_fn : torch.nn.Module or callable
        A module: it runs on copies of its tensors (so it needs their memory a second time) and is
        left unchanged, including gradients, buffers and random generators. A function is called
        once on ``inputs``; what it changes stays changed.
    *inputs
        What the model or the function takes. For a model they are copied too.
    loss, optimizer, targets, precision, checkpoint
        As in ``predict``; for a model only. ``optimizer=None`` stops after the backward pass.
    steps : int
        Training steps of a model, 1000 at most. The second shows the optimizer's state from its
        start.
    device : optional
        Whose memory to follow; None takes the device of the model's parameters or of the first
        tensor among the inputs, else the best one available.
    progress, stop : callable, optional
        ``stop`` is polled before each operator.

    Returns
    -------
    MemoryTrace
        Evidence MEASURED. If stopped, the result covers the part that ran, with a note.

    Raises
    ------
    InputError
        If the step of a model raises, or an argument cannot be used.
    DeviceError, OutOfMemoryError
        If the device vanished, or the step does not fit.
    StoppedError
        If ``stop`` returned True before the first operator.

    Examples
    --------
    >>> import torch
    >>> from gpulab import memory
    >>> t = memory.trace(torch.nn.Linear(1000, 1000), torch.ones(1, 1000), loss=torch.sum,
    ...     device="cpu")
    >>> t.peak_by_category["parameters"], t.peak_by_category["gradients"]
    (4004000, 4004000)
    """
    import torch

    from gpulab.memory import _step

    progress, stop = (
        _given.callback("trace", "progress", progress),
        _given.callback("trace", "stop", stop),
    )
    checkpoint = _given.flag("trace", "checkpoint", checkpoint)
    if not _given.is_whole(steps) or not 1 <= steps <= _MOST_STEPS:
        raise InputError(
            f"trace: steps is {shown(steps)}; expected a whole number from 1 to {_MOST_STEPS}. "
            "Pass steps=2."
        )
    _step.check_precision("trace", precision)
    is_model = isinstance(model_or_fn, torch.nn.Module)
    if not is_model and not callable(model_or_fn):
        raise InputError(
            f"trace: got {kind_of(model_or_fn)}; expected a torch.nn.Module or a function. Pass "
            "one of these."
        )
    where = devices.find(device) if device is not None else _device_of(model_or_fn, inputs)
    run = _Run(where, stop, progress or (lambda fraction, text: None))
    if is_model:
        factory = _step.optimizer_factory("trace", optimizer)[1]
        run.model(
            model_or_fn,
            inputs,
            int(steps),
            factory,
            loss=loss,
            targets=targets,
            precision=precision,
            checkpoint=checkpoint,
        )
        label = type(model_or_fn).__name__
    else:
        if (
            loss is not None
            or optimizer is not None
            or targets is not None
            or checkpoint
            or precision != "float32"
        ):
            raise InputError(
                "trace: a function was given with loss, optimizer or precision; expected these "
                "inside the function. Pass a module."
            )
        run.function(model_or_fn, inputs)
        label = getattr(model_or_fn, "__name__", "function")
    return run.result(label)


def _device_of(model_or_fn: Any, inputs: Any) -> devices.Device:
    import torch
    from torch.utils._pytree import tree_leaves

    from gpulab.memory import _step

    try:
        parameters = (
            list(model_or_fn.parameters()) if isinstance(model_or_fn, torch.nn.Module) else []
        )
        tensors = [x for x in (*parameters, *tree_leaves(inputs)) if isinstance(x, torch.Tensor)]
    except Exception as error:
        # a module of somebody else's that does not answer, or a list that holds itself
        raise InputError(_step.explain("trace", "looking for the device", error)) from error
    if any(t.is_meta for t in tensors):
        raise InputError(
            "trace: the model is on the meta device, which has no memory; expected a real device. "
            "Use memory.predict."
        )
    return devices.find(tensors[0].device) if tensors else devices.default()


class _Run:
    """One trace under way."""

    def __init__(
        self,
        device: devices.Device,
        stop: Callable[[], bool] | None,
        report: Callable[[float, str], None],
    ) -> None:
        from gpulab.memory._tracker import StorageTracker

        self.device, self.report = device, report
        self.tracker = StorageTracker(device.torch_type, stop=stop)
        self.stopped = False

    @contextlib.contextmanager
    def following(self) -> Iterator[None]:
        """Follow what runs in the block; a stop ends the block early."""
        from gpulab.memory._step import optimizer_seen
        from gpulab.memory._tracker import Stopped

        try:
            with optimizer_seen(self.tracker), self.tracker:
                yield
        except Stopped:
            self.stopped = True
        finally:
            self.tracker.close()

    def function(self, fn: Callable[..., Any], inputs: Any) -> None:
        """Call a function once; its own errors pass through as they are."""
        self.tracker.begin_step()
        with self.following():
            kept = fn(*inputs)
            self.tracker.mark_gradients()
            del kept

    def model(
        self,
        model: Any,
        inputs: Any,
        steps: int,
        factory: Any,
        *,
        loss: Any,
        targets: Any,
        precision: str,
        checkpoint: bool,
    ) -> None:
        """Take training steps on copies."""
        import torch

        from gpulab.memory import _sandbox, _step

        model = _sandbox.unwrapped("trace", model)
        half = _step.PRECISIONS[precision][1]
        lender = _sandbox.Lender(
            "trace", _copied_storage, None, getattr(torch, half) if half else None
        )
        roots = [model, *_sandbox.modules_in(loss)]
        quiet = _sandbox.autocast_off(self.device.torch_type)
        with (
            _sandbox.generators_kept(),
            torch.inference_mode(False),
            torch.enable_grad(),
            quiet,
            _sandbox.lent(lender, roots),
        ):
            batch, goals = lender.everything(tuple(inputs)), lender.everything(targets)
            self.tracker.watch_modules(roots)
            self.tracker.watch_inputs((batch, goals))
            step = _step.Step(
                "trace",
                model,
                inputs=batch,
                targets=goals,
                loss=loss,
                precision=precision,
                device=self.device.torch_type,
            )
            del batch, goals, lender
            with (
                _step.checkpointed(model) if checkpoint else contextlib.nullcontext(),
                self.following(),
            ):
                step.prepare(self.tracker, factory, torch.amp.GradScaler(self.device.torch_type))
                for number in range(steps):
                    self.report(number / steps, f"step {number + 1} of {steps}")
                    step.run(self.tracker)
        self.report(1.0, "done")

    def result(self, label: str) -> MemoryTrace:
        """Return what was followed."""
        tracker = self.tracker
        if self.stopped and not tracker.operators:
            raise StoppedError(
                "trace: stopped before the first operator; expected it to run. Call it again."
            )
        tracker.classify()
        event, peak = tracker.peak()
        alive = tracker.alive_at(event)
        reached = (
            f"The step was stopped after {plural(len(tracker.operators), 'operator')}; the "
            "peak is that of the part that ran. Run it again."
        )
        return MemoryTrace(
            label=label,
            device=str(self.device),
            peak_bytes=peak,
            peak_by_category={
                category: sum(t.nbytes for t in alive if t.category == category)
                for category in CATEGORIES
            },
            peak_operator=tracker.operators[event] if tracker.operators else "",
            peak_phase=tracker.phases[event] if tracker.phases else "",
            peak_tensors=tuple(alive[:_PEAK_TENSORS]),
            timeline=tracker.timeline(),
            notes=(Note("stopped", reached),) if self.stopped else (),
            evidence=Evidence.measured(self.device.name),
        )


def _copied_storage(original: Any) -> Any:
    try:
        return original.untyped_storage().clone()
    except Exception as error:
        if isinstance(error, GpulabError) or "memory" not in str(error).lower():
            raise
        from gpulab.errors import OutOfMemoryError

        raise OutOfMemoryError(
            f"trace: there is no memory for a copy of the model ({error}); expected room for a "
            "second copy of "
            "its parameters. Use memory.predict, or trace a function that runs the step on your "
            "model itself."
        ) from error
