"""The memory of a training step without running it: fake tensors go through the real autograd and
optimizer code.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

from gpulab import _given, devices
from gpulab.errors import (
    DeviceError,
    GpulabError,
    InputError,
    StoppedError,
    kind_of,
    message_of,
    shown,
)
from gpulab.evidence import Evidence
from gpulab.memory.results import CATEGORIES, Prediction, free_bytes_of

_SOURCE = (
    "PyTorch's fake tensors through its own autograd and optimizer code; oneDNN's LSTM "
    "workspace layout"
)
# From benchmarks/memory_prediction.py, and from the gpu tests of this prediction;
# docs/measurements.md has both with their commands.
KNOWN_ERRORS = {
    "cpu": "against live storage in real CPU steps: 0.0 % median, below 1 % at most over the "
    "cases in docs/measurements.md",
    "cuda": "one training step on an NVIDIA H200: 0.0005 % under the peak of PyTorch's allocator, "
    "which held 65 MiB for cuBLAS beside it",
}
# Each checkpoint keeps the state of the host's random generator (a Mersenne twister) outside any
# operator.
_GENERATOR_BYTES = 5120
_STEP = (
    "gradients released before each step, no variable that keeps the output, square masks of "
    "nn.Transformer causal"
)
_ASSUMPTIONS = {
    "cpu": f"this PyTorch's CPU kernels, {_STEP}; CUDA differs: autocast keeps norms, softmax "
    "and losses in float32, optimizers update "
    "many parameters at once, cuDNN's RNN has its own workspace",
    "cuda": f"this PyTorch's CUDA rules, {_STEP}, an optimizer as PyTorch chooses it, cuDNN's RNN "
    "workspace not counted",
}
_PEAK_TENSORS = 50


def predict(
    model: Any,
    *inputs: Any,
    loss: Callable[..., Any] | None = None,
    optimizer: Any = "adam",
    precision: str = "float32",
    checkpoint: bool = False,
    targets: Any = None,
    device: str | None = None,
    progress: Callable[[float, str], None] | None = None,
    stop: Callable[[], bool] | None = None,
) -> Prediction:
    """Return the memory that a training step will need, without running it and without its memory.

    Parameters
    ----------
    model : torch.nn.Module or callable
        A module on any device, "meta" too; or a function without arguments that makes one (it runs
        with fake tensors, so even a model larger than this machine costs nothing). A module holds
        fake tensors during the call and is restored afterwards; do not use it from another thread
        meanwhile.
    *inputs
        What ``model(*inputs)`` takes: tensors (shape, strides and dtype matter; values only of
        small tensors of integers) or anything else.
    loss : callable, optional
        From the model's output (and ``targets``, if given) to a scalar. None means that the model
        returns the loss (a scalar, or something with ``.loss``).
    optimizer : str, callable or None
        A name of ``torch.optim`` in any case, "sgd-momentum", a factory from parameters to an
        optimizer, or None.
    precision : str
        "float32" (as the model is), "bfloat16" (autocast), "float16" (autocast and loss scaling),
        "pure-bfloat16" or "pure-float16" (parameters and inputs converted).
    checkpoint : bool
        Recompute each direct child (of a ModuleList, each member) in the backward pass.
    targets : optional
        Passed to ``loss`` after the output; with ``loss=None``, passed to the model after the
        inputs.
    device : str, optional
        Whose rules to follow; "cuda" only where PyTorch has CUDA. None takes the model's device if
        it is there.
    progress, stop : callable, optional

    Returns
    -------
    Prediction
        ``peak_bytes`` is live tensor storage after any operator; ``scratch_bytes``, used inside
        operators, is separate.

    Raises
    ------
    InputError
        If the step cannot be traced: it fails, its shapes depend on values, or it holds tensors
        without storage.
    DeviceError
        If ``device`` is not one that PyTorch can fake here.
    StoppedError
        If ``stop`` returned True.

    Notes
    -----
    The step is ``zero_grad()``, ``loss(model(*inputs)).backward()``, ``optimizer.step()``, twice,
    because the second step has the optimizer's state from the start. A variable that keeps the
    model's output alive adds its size.

    Examples
    --------
    >>> import torch
    >>> from gpulab import memory
    >>> p = memory.predict(torch.nn.Linear(1000, 1000), torch.zeros(1, 1000), loss=torch.sum,
    ...     optimizer="sgd")
    >>> p.peak_by_category["parameters"], p.peak_by_category["gradients"]
    (4004000, 4004000)
    """
    from gpulab.memory import _step

    progress, stop = (
        _given.callback("predict", "progress", progress),
        _given.callback("predict", "stop", stop),
    )
    checkpoint = _given.flag("predict", "checkpoint", checkpoint)
    _step.check_precision("predict", precision)
    name, factory = _step.optimizer_factory("predict", optimizer)
    fake = _Fake(_device_type(model, device), stop)
    report = progress or (lambda fraction, text: None)
    report(0.0, "making fake tensors")
    with fake.world(), fake.step(model, inputs, targets, loss, precision) as step:
        nothing: contextlib.AbstractContextManager[list[str]] = contextlib.nullcontext([])
        with _step.checkpointed(step.model) if checkpoint else nothing as calls:
            from gpulab.memory._tracker import Stopped

            try:
                marks = fake.run(step, factory, report)
            except Stopped:
                raise StoppedError(
                    "predict: stopped before a whole step was traced; expected it to finish. Call "
                    "it again."
                ) from None
        label = type(step.model).__name__
        count = sum(p.numel() for p in step.model.parameters())
    fake.hidden_bytes = len(calls) // 2 * _GENERATOR_BYTES
    report(1.0, "done")
    return _result(
        fake,
        marks,
        label=label,
        parameter_count=count,
        optimizer=name,
        precision=precision,
        checkpoint=checkpoint,
    )


def largest_batch(
    model: Any,
    make_batch: Callable[[int], Any],
    *,
    memory: Any = None,
    loss: Callable[..., Any] | None = None,
    optimizer: Any = "adam",
    precision: str = "float32",
    checkpoint: bool = False,
    device: str | None = None,
    most: int = 65_536,
) -> int:
    """Return the largest batch whose training step is predicted to fit, without running a step; 0
    if none does.

    Parameters
    ----------
    model, loss, optimizer, precision, checkpoint, device
        As for ``predict``.
    make_batch : callable
        Called with a number of samples; returns the model's input, or a tuple of the input and the
        targets. Called with a fixed batch and a length, it finds the longest sequence.
    memory : None, str, Device or int
        As for ``Prediction.fits``: a device of this machine, of which the memory that is free now
        counts (None takes the best one available), or a capacity in bytes.
    most : int
        The largest batch to consider.

    Returns
    -------
    int
        MODELLED, with the margin of ``Prediction.needed_bytes``: ``predict`` with this batch shows
        what it consists of.

    Raises
    ------
    InputError, DeviceError
        As for ``predict`` and ``Prediction.fits``.

    Examples
    --------
    >>> import torch
    >>> from gpulab import memory
    >>> model, make_batch = torch.nn.Linear(1000, 1000), lambda n: torch.zeros(n, 1000)
    >>> memory.largest_batch(model, make_batch, memory=5 * 10**8, loss=torch.sum, device="cpu")
    21646
    """
    make = _given.callback("largest_batch", "make_batch", make_batch)
    if make is None:
        raise InputError(
            "largest_batch: make_batch is None; expected a function. Pass for example lambda n: "
            "torch.zeros(n, 784)."
        )
    free, kind = free_bytes_of(memory, _device_type(model, device))
    low, high, guess = 0, _given.whole("largest_batch", "most", most, 1, 2**40) + 1, 1
    before = (0, 0)
    while high - low > 1:
        batch = make(guess)
        inputs, targets = batch if isinstance(batch, tuple) and len(batch) == 2 else (batch, None)
        found = predict(
            model,
            inputs,
            targets=targets,
            loss=loss,
            optimizer=optimizer,
            precision=precision,
            checkpoint=checkpoint,
            device=device,
        )
        need = found.needed_bytes(kind)
        low, high = (guess, high) if need <= free else (low, guess)
        # Bytes grow by about as much for each sample, so the line through the last two sizes leads
        # near the answer.
        slope = max(1.0, (need - before[1]) / (guess - before[0])) if before[0] else need
        before, guess = (
            (guess, need),
            min(max(guess + int((free - need) // slope), low + 1), high - 1),
        )
    return low


def _device_type(model: Any, device: Any) -> str:
    import torch

    if device is None:
        own = (
            model.parameters()
            if isinstance(model, torch.nn.Module) and torch.cuda.is_available()
            else ()
        )
        return "cuda" if any(p.is_cuda for p in own) else "cpu"
    try:
        name = (
            device
            if isinstance(device, str)
            else str(device)
            if isinstance(device, (torch.device, devices.Device))
            else ""
        )
        kind = torch.device({"gpu": "cuda", "rocm": "cuda"}.get(name, name)).type
    except RuntimeError:  # torch knows no such device
        kind = ""
    if kind == "cpu":
        return kind
    if kind != "cuda" or not torch.cuda.is_available():
        raise DeviceError(
            f"predict: this PyTorch cannot make fake tensors on {shown(device)}; expected 'cpu', "
            "or 'cuda' on a machine that has it. "
            "Pass device=None: the prediction follows the CPU's rules and states how CUDA differs; "
            "call .fits(bytes) with the GPU's memory."
        )
    return kind


class _Fake:
    """A world of fake tensors with a tracker in it."""

    def __init__(self, device_type: str, stop: Callable[[], bool] | None) -> None:
        from torch._subclasses.fake_tensor import FakeTensorMode

        from gpulab.memory import _kernels
        from gpulab.memory._tracker import StorageTracker

        self.device_type, self.hidden_bytes = device_type, 0
        self.mode = FakeTensorMode(allow_non_fake_inputs=True)
        self.tracker = StorageTracker(
            device_type, replace=_kernels.run, scratch=_kernels.scratch_bytes, stop=stop
        )

    @contextlib.contextmanager
    def world(self) -> Iterator[None]:
        """Fake mode on, the caller's modes (no_grad, inference, autocast) off, generators kept."""
        import torch

        from gpulab.memory import _kernels
        from gpulab.memory._sandbox import autocast_off, generators_kept

        with (
            generators_kept(),
            torch.inference_mode(False),
            torch.enable_grad(),
            autocast_off(self.device_type),
            _square_masks_causal(),
            _fake_errors_unlogged(),
            self.mode,
            _kernels.LengthsAsTensors(),
        ):
            yield

    def storage(self, original: Any) -> Any:
        """Return a fake storage as large as that of a tensor."""
        import torch

        nbytes = original.untyped_storage().nbytes()
        return torch.empty(nbytes, dtype=torch.uint8, device=self.device_type).untyped_storage()

    @contextlib.contextmanager
    def step(
        self, model: Any, inputs: Any, targets: Any, loss: Any, precision: str
    ) -> Iterator[Any]:
        """Build the fake step; the caller's modules are lent fake tensors until the end."""
        import torch

        from gpulab.memory import _kernels, _sandbox, _step

        if not isinstance(model, torch.nn.Module):
            model = _made(model, self.device_type)
        model = _sandbox.unwrapped("predict", model)
        half = _step.PRECISIONS[precision][1]
        lender = _sandbox.Lender(
            "predict", self.storage, self.device_type, getattr(torch, half) if half else None
        )
        roots = [model, *_sandbox.modules_in(loss)]
        with _sandbox.lent(lender, roots):
            batch, goals = lender.everything(tuple(inputs)), lender.everything(targets)
            self.tracker.watch_modules(roots)
            self.tracker.watch_inputs((batch, goals))
            step = _step.Step(
                "predict",
                model,
                inputs=batch,
                targets=goals,
                loss=loss,
                precision=precision,
                device=self.device_type,
            )
            del batch, goals, lender
            for module in [
                module
                for root in roots
                for module in root.modules()
                if isinstance(module, torch.nn.RNNBase)
            ]:
                module.__dict__["forward"] = functools.partial(
                    _kernels.in_small, self.tracker, module.forward
                )
            yield step

    def run(self, step: Any, factory: Any, report: Callable[[float, str], None]) -> list[int]:
        """Take two steps; return the event numbers at which each ends."""
        from gpulab.memory import _step

        marks = []
        with _step.optimizer_seen(self.tracker), self.tracker:
            step.prepare(self.tracker, factory, _step.FakeScaler(self.device_type))
            for number in (1, 2):
                report(number / 3, f"following step {number}")
                step.run(self.tracker)
                marks.append(len(self.tracker.operators))
        self.tracker.close()
        return marks


@contextlib.contextmanager
def _fake_errors_unlogged() -> Iterator[None]:
    """Keep PyTorch from logging the traceback of an operator that fails on fakes: the error itself
    is told in one sentence.
    """
    logger, thread = logging.getLogger("torch._subclasses.fake_tensor"), threading.get_ident()

    def elsewhere(record: logging.LogRecord) -> bool:
        return record.thread != thread

    logger.addFilter(elsewhere)
    try:
        yield
    finally:
        logger.removeFilter(elsewhere)


@contextlib.contextmanager
def _square_masks_causal() -> Iterator[None]:
    """Let ``nn.Transformer`` take a square mask for the causal one: it would look at the values,
    which a fake has not.
    """
    from torch.nn.modules import transformer

    name = "_detect_is_causal_mask"
    original = getattr(transformer, name)

    def detect(mask: Any, is_causal: bool | None = None, size: int | None = None) -> bool:
        if is_causal is not None:
            return is_causal
        return mask is not None and mask.dim() == 2 and mask.shape[0] == mask.shape[1]

    setattr(transformer, name, detect)
    try:
        yield
    finally:
        setattr(transformer, name, original)


def _made(factory: Any, device_type: str) -> Any:
    import torch

    if not callable(factory):
        raise InputError(
            f"predict: model is {kind_of(factory)}; expected a torch.nn.Module or a function that "
            "makes one."
        )
    try:
        with torch.device(device_type):
            model = factory()
    except GpulabError:
        raise
    except Exception as error:
        raise InputError(
            f"predict: the model's factory raised {type(error).__name__} ({message_of(error)}); "
            "expected it to return a torch.nn.Module. "
            "Pass a module, or a function that makes one without arguments."
        ) from error
    if not isinstance(model, torch.nn.Module):
        raise InputError(
            f"predict: the model's factory returned {kind_of(model)}; expected a torch.nn.Module."
        )
    return model


def _result(fake: _Fake, marks: list[int], **facts: Any) -> Prediction:
    tracker = fake.tracker
    tracker.classify()
    event, peak = tracker.peak(marks[0])
    _, first = tracker.peak(0, marks[0])
    alive = tracker.alive_at(event)
    by_category = {
        category: sum(t.nbytes for t in alive if t.category == category) for category in CATEGORIES
    }
    return Prediction(
        peak_bytes=peak,
        first_step_peak_bytes=first,
        scratch_bytes=max(0, tracker.with_scratch - peak) + fake.hidden_bytes,
        kept_bytes=tracker.live[-1] if tracker.live else tracker.live_bytes,
        peak_by_category=by_category,
        peak_operator=tracker.operators[event] if tracker.operators else "",
        peak_phase=tracker.phases[event] if tracker.phases else "",
        peak_tensors=tuple(alive[:_PEAK_TENSORS]),
        device_type=fake.device_type,
        timeline=tracker.timeline(),
        notes=(),
        evidence=Evidence.modelled(
            _ASSUMPTIONS[fake.device_type], _SOURCE, KNOWN_ERRORS[fake.device_type]
        ),
        **facts,
    )
