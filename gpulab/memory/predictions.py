"""The memory of a training step: ``predict`` sends fake tensors through the real autograd and
optimizer code without running the step; ``trace`` runs the step and follows each operator.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.nn.modules import transformer
from torch.optim import optimizer as optimizer_module
from torch.utils._pytree import tree_leaves

from gpulab import _validate, devices
from gpulab.errors import (
    DeviceError,
    InputError,
    StoppedError,
    shown,
)
from gpulab.evidence import Evidence, Note
from gpulab.memory import kernel_memory, training_step
from gpulab.memory.step_memory import (
    MemoryTrace,
    Prediction,
    Stopped,
    StorageTracker,
    largest_that_fits,
    uncompiled,
)
from gpulab.memory.training_step import optimizer_seen
from gpulab.units import plural

_SOURCE = (
    "PyTorch's fake tensors through its own autograd and optimizer code; oneDNN's LSTM workspace "
    "layout"
)
# From benchmarks/memory_prediction.py, and from the gpu tests of this prediction;
# docs/measurements.md has both with their commands.
KNOWN_ERRORS = {
    "cpu": "against live storage in real CPU steps: 0.0 % median, below 1 % at most over the "
    "cases in docs/measurements.md",
    "cuda": "against the peak of PyTorch's allocator: on an NVIDIA H200 a step of 208 MB within "
    "0.005 %; on an H100 nine networks without convolutions within 1 % (two more were off by 17 "
    "and 20 %; corrected since, not measured again), and nine with them -26 % to 0 %, since "
    "cuDNN's workspaces are not counted",
}
# Each checkpoint keeps the state of the host's random generator (a Mersenne twister) outside any
# operator.
_GENERATOR_BYTES = 5120
_STEP = (
    "gradients released before each step, no variable that keeps the output, square masks of "
    "nn.Transformer taken as causal"
)
_ASSUMPTIONS = {
    "cpu": f"this PyTorch's CPU kernels, {_STEP}; CUDA differs: autocast keeps norms, softmax and "
    "losses in float32, optimizers update many parameters at once, cuDNN's RNN has its own "
    "workspace",
    "cuda": f"this PyTorch's CUDA rules, {_STEP}, the optimizer's default implementation, "
    "the workspaces of cuDNN's convolutions not counted",
}
# PyTorch logs the traceback of an operator that fails on fake tensors here
FAKE_ERRORS = logging.getLogger("torch._subclasses.fake_tensor")
# a trace keeps every operator of every step: more steps would fill the memory that it measures
_MOST_STEPS = 1000


_PRECISION = functools.partial(_validate.word, known=training_step.PRECISIONS)


@_validate.arguments(
    progress=_validate.hook,
    stop=_validate.callback,
    checkpoint=_validate.flag,
    precision=_PRECISION,
)
def predict(
    model: Any,
    *inputs: Any,
    loss: Callable[..., Any] | None = None,
    optimizer: Any = "adam",
    precision: str = "float32",
    checkpoint: bool = False,
    targets: Any = None,
    device: str | None = None,
    progress: Callable[[float, str], None] | Any = _validate.LEFT_OUT,
    stop: Callable[[], bool] | None = None,
) -> Prediction:
    """Return the memory that a training step will need, without running it or using that memory.

    Parameters
    ----------
    model : torch.nn.Module or callable
        A module on any device, "meta" too; or a function without arguments that makes one (it runs
        with fake tensors, so even a model larger than this machine costs nothing). A module holds
        fake tensors during the call and is restored afterwards; do not use it from another thread
        meanwhile.
    *inputs
        What ``model(*inputs)`` takes: tensors (shape, strides and dtype matter; values matter only
        in small tensors of integers) or anything else.
    loss : callable, optional
        A function from the model's output (and ``targets``, if given) to a scalar. None means that
        the model returns the loss (a scalar, or something with ``.loss``).
    optimizer : str, callable or None
        A name of ``torch.optim`` in any case, "sgd-momentum", a factory from parameters to an
        optimizer, or None. To compare with ``trace``, pass both the same one: its default is None.
    precision : str
        "float32" (as the model is), "bfloat16" (autocast), "float16" (autocast and loss scaling),
        "pure-bfloat16" or "pure-float16" (parameters and inputs converted).
    checkpoint : bool
        Recompute each direct child (of a ModuleList, each member) in the backward pass.
    targets : optional
        Passed to ``loss`` after the output; with ``loss=None``, passed to the model after the
        inputs.
    device : str, optional
        The device type whose rules to follow; "cuda" only where PyTorch has CUDA. None takes "cuda"
        for a model on a CUDA device, else "cpu".
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
    model's output alive adds its size. A result of ``torch.compile`` is followed as the uncompiled
    code.

    Examples
    --------
    >>> import torch
    >>> from gpulab import memory
    >>> layer, x = torch.nn.Linear(1000, 1000), torch.zeros(1, 1000)
    >>> p = memory.predict(layer, x, loss=torch.sum, optimizer="sgd")
    >>> p.peak_by_category["parameters"], p.peak_by_category["gradients"]
    (4004000, 4004000)
    """
    name, factory = training_step.optimizer_factory("predict", optimizer)
    kind = _device_type(model, device)
    progress(0.0, "making fake tensors")
    tracker = StorageTracker(
        kind, replace=kernel_memory.run, scratch=kernel_memory.scratch_bytes, stop=stop
    )

    with (
        training_step.undisturbed(kind),
        mock.patch.object(transformer, "_detect_is_causal_mask", _is_causal),
        # on a GPU, an optimizer that may choose updates many parameters at once, if their types are
        # listed here
        mock.patch.object(
            optimizer_module, "_foreach_supported_types", [torch.nn.Parameter, FakeTensor]
        ),
        # errors are reported in one sentence, without the operator's traceback
        mock.patch.object(FAKE_ERRORS, "disabled", True),
        FakeTensorMode(allow_non_fake_inputs=True),
        training_step.on_substitutes(
            "predict",
            tracker,
            model if isinstance(model, torch.nn.Module) else model_made_by(model, kind),
            inputs=inputs,
            targets=targets,
            loss=loss,
            precision=precision,
            new_storage=lambda original: torch.empty(
                original.untyped_storage().nbytes(), dtype=torch.uint8, device=kind
            ).untyped_storage(),
            device=kind,
        ) as step,
        # a recomputed layer must keep the same tensors both times, so it cannot run in small
        contextlib.nullcontext() if checkpoint else kernel_memory.RecurrentInSmall(tracker),
        training_step.checkpointed(step.model if checkpoint else None) as calls,
        contextlib.suppress(Stopped),
        contextlib.closing(tracker),
        optimizer_seen(tracker),
        tracker,
    ):
        step.prepare(tracker, factory)
        for number in (1, 2):
            progress(number / 3, f"following step {number}")
            step.run(tracker)
    if tracker.is_stopped:
        raise StoppedError(
            "predict: stopped before both steps were followed; expected it to finish. Call it "
            "again."
        )
    progress(1.0, "done")
    _, second = tracker.steps
    facts = tracker.at_peak(second)
    return Prediction(
        label=type(step.model).__name__,
        first_step_peak_bytes=tracker.peak(0, second)[1],
        scratch_bytes=max(0, tracker.with_scratch - facts["peak_bytes"])
        + len(calls) // 2 * _GENERATOR_BYTES,
        kept_bytes=tracker.live[-1] if tracker.live else tracker.live_bytes,
        parameter_count=sum(p.numel() for p in step.model.parameters()),
        optimizer=name,
        precision=precision,
        checkpoint=checkpoint,
        device_type=kind,
        timeline=tracker.timeline(),
        notes=(),
        evidence=Evidence.modelled(_ASSUMPTIONS[kind], _SOURCE, KNOWN_ERRORS[kind]),
        **facts,
    )


@_validate.arguments(make_batch=_validate.callback)
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
        targets. If it uses the number as the length of a fixed batch, the result is the longest
        sequence.
    memory : None, str, Device or int
        As for ``Prediction.fits``: a device of this machine, whose free memory counts (None takes
        the best one available), the name of another GPU, or a capacity: bytes, or text such as "24
        GB".
    most : int
        The largest batch to consider.

    Returns
    -------
    int
        MODELLED, with the margin of ``Prediction.needed_bytes``: ``predict`` with this batch shows
        its parts.

    Raises
    ------
    InputError, DeviceError
        As for ``predict`` and ``Prediction.fits``; also if ``make_batch`` stops growing, as a slice
        does beyond the end of the data.

    Examples
    --------
    >>> import torch
    >>> from gpulab import memory
    >>> layer, options = torch.nn.Linear(1000, 1000), {"loss": torch.sum, "device": "cpu"}
    >>> memory.largest_batch(layer, lambda n: torch.zeros(n, 1000), memory=5 * 10**8, **options)
    21646
    """
    predicted = functools.partial(
        predict,
        model,
        loss=loss,
        optimizer=optimizer,
        precision=precision,
        checkpoint=checkpoint,
        device=device,
    )
    return largest_that_fits(make_batch, predicted, memory, _device_type(model, device), most)


def _device_type(model: Any, device: Any) -> str:
    if device is None:
        own = (
            model.parameters()
            if isinstance(model, torch.nn.Module) and torch.cuda.is_available()
            else ()
        )
        return "cuda" if any(p.is_cuda for p in own) else "cpu"
    name = str(device).partition(":")[0]
    kind = {"gpu": "cuda", "rocm": "cuda"}.get(name, name)
    if kind not in ("cpu", "cuda" if torch.cuda.is_available() else "cpu"):
        raise DeviceError(
            f"predict: this PyTorch cannot make fake tensors on {shown(device)}; expected 'cpu', "
            "or 'cuda' on a machine that has it. Pass device=None: the prediction follows the "
            "CPU's rules and states how CUDA differs; call .fits(bytes) with the GPU's memory."
        )
    return kind


@_validate.arguments(
    progress=_validate.hook,
    stop=_validate.callback,
    checkpoint=_validate.flag,
    steps=functools.partial(_validate.whole, low=1, high=_MOST_STEPS),
    precision=_PRECISION,
    model_or_fn=functools.partial(
        _validate.instance,
        kind=Callable,
        expected="a torch.nn.Module or a function. Pass one of these.",
    ),
)
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
    progress: Callable[[float, str], None] | Any = _validate.LEFT_OUT,
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
        As in ``predict``; for a model only. ``optimizer=None`` stops after the backward pass. It is
        the default here, while ``predict`` takes Adam: to compare, pass both the same optimizer.
    steps : int
        Training steps of a model, 1000 at most. The second shows the optimizer's state from its
        start. With loss scaling (precision "float16") the optimizer takes every step, even where a
        gradient overflowed.
    device : optional
        The device whose memory to follow; None takes the device of the model's parameters or of the
        first tensor among the inputs, else the best one available.
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
    >>> layer, x = torch.nn.Linear(1000, 1000), torch.ones(1, 1000)
    >>> t = memory.trace(layer, x, loss=torch.sum, device="cpu")
    >>> t.peak_by_category["parameters"], t.peak_by_category["gradients"]
    (4004000, 4004000)
    >>> t.peak_bytes == memory.predict(layer, x, loss=torch.sum, optimizer=None).peak_bytes
    True
    """
    is_model = isinstance(model_or_fn, torch.nn.Module)
    own = model_or_fn.parameters() if is_model else ()
    tensors = [x for x in (*own, *tree_leaves(inputs)) if isinstance(x, torch.Tensor)]
    where = devices.find(tensors[0].device if device is None and tensors else device)
    tracker = StorageTracker(where.torch_type, stop=stop)
    if is_model:
        label = type(model_or_fn).__name__
        _, factory = training_step.optimizer_factory("trace", optimizer)
        with (
            training_step.undisturbed(where.torch_type),
            training_step.on_substitutes(
                "trace",
                tracker,
                model_or_fn,
                inputs=inputs,
                targets=targets,
                loss=loss,
                precision=precision,
                new_storage=_copied_storage,
                device=None,
            ) as step,
            training_step.checkpointed(step.model if checkpoint else None),
            contextlib.suppress(Stopped),
            contextlib.closing(tracker),
            optimizer_seen(tracker),
            tracker,
        ):
            step.prepare(tracker, factory)
            for number in range(steps):
                progress(number / steps, f"step {number + 1} of {steps}")
                step.run(tracker)
        progress(1.0, "done")
    else:
        if (loss, optimizer, targets, checkpoint, precision) != (
            None,
            None,
            None,
            False,
            "float32",
        ):
            raise InputError(
                "trace: got a function together with loss, optimizer, targets, precision or "
                "checkpoint; expected these only with a module. Pass a module, or do their work "
                "inside the function."
            )
        label = getattr(model_or_fn, "__name__", "function")
        tracker.begin_step()
        with (
            uncompiled(),
            contextlib.suppress(Stopped),
            contextlib.closing(tracker),
            optimizer_seen(tracker),
            tracker,
        ):
            kept = model_or_fn(*inputs)  # its own errors pass through as they are
            tracker.mark_gradients()
            del kept
    if tracker.is_stopped and not tracker.operators:
        raise StoppedError(
            "trace: stopped before the first operator; expected it to run. Call it again."
        )
    reached = (
        f"The step was stopped after {plural(len(tracker.operators), 'operator')}; the peak is "
        "that of the part that ran. Run it again."
    )
    return MemoryTrace(
        label=label,
        device=str(where),
        notes=(Note("stopped", reached),) if tracker.is_stopped else (),
        evidence=Evidence.measured(where.name),
        **tracker.at_peak(),
        timeline=tracker.timeline(),
    )


def _copied_storage(original: Any) -> Any:
    with devices.guard("trace: copying the model, which memory.predict does not"):
        return original.untyped_storage().clone()


def _is_causal(mask: Any, is_causal: bool | None = None, size: int | None = None) -> bool:
    """Treat a square mask as causal: ``nn.Transformer`` would read its values, which a fake tensor
    does not have.
    """
    if is_causal is not None:
        return is_causal
    return mask is not None and mask.dim() == 2 and mask.shape[0] == mask.shape[1]


def model_made_by(factory: Any, device_type: str, function: str = "predict") -> Any:
    """Return the model that a factory makes with fake tensors on a device type; error messages
    begin with the name in ``function``.
    """
    _validate.instance(
        function,
        "model",
        factory,
        Callable,
        "a torch.nn.Module or a function that makes one. Pass one of these.",
    )
    with (
        devices.guard(
            f"{function}: the model's factory",
            "it to return a module. Pass a module, or a function without arguments.",
        ),
        torch.device(device_type),
    ):
        model = factory()
    return _validate.instance(
        function, "the factory's model", model, torch.nn.Module, "a torch.nn.Module. Return one."
    )
