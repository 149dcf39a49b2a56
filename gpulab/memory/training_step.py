"""One training step, the same for a trace (real) and for a prediction (fake), on substitutes of the
model's tensors.

``trace`` uses clones, ``predict`` uses fake tensors. The caller's own tensors are never touched;
the modules' attributes and the random generators are restored afterwards, even after an error.
"""

from __future__ import annotations

import contextlib
import functools
import random
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
from torch.utils._pytree import tree_map_only
from torch.utils.checkpoint import checkpoint

from gpulab import _interrupts, _validate
from gpulab.devices import translate
from gpulab.errors import GpulabError, InputError, kind_of, message_of, shown, with_article
from gpulab.memory.step_memory import Stopped, uncompiled
from gpulab.timing.work_arrays import held_by

# Fake tensors of integers or booleans with up to this many elements (such as a batch's lengths)
# keep their values, so that results computed from them alone are known.
_VALUES = 4096


class Lender:
    """Make and remember the stand-in of each tensor, so that tied weights and views stay tied.

    Parameters
    ----------
    new_storage : callable
        From a tensor to an untyped storage of the same size: a clone, or a fake.
    device : str or None
        The stand-ins' device; None takes each original's device.
    dtype : torch.dtype, optional
        The number format to which floating-point tensors are converted.
    """

    def __init__(
        self,
        function: str,
        new_storage: Callable[[Any], Any],
        device: str | None,
        dtype: Any = None,
    ) -> None:
        self.function, self.new_storage = function, new_storage
        self.device, self.dtype = device, dtype
        self._tensors: dict[int, tuple[Any, Any]] = {}
        self._storages: dict[int, tuple[Any, Any]] = {}

    def tensor(self, original: Any) -> Any:
        """Return the stand-in of a tensor: another storage, the same shape and strides, the same
        dtype unless the lender converts it, and a parameter for a parameter.
        """
        if id(original) not in self._tensors:
            with torch.no_grad():
                self._tensors[id(original)] = (original, self._make(original))
        return self._tensors[id(original)][1]

    def _make(self, original: Any) -> Any:
        kind = type(original)
        if isinstance(original, (torch.nn.UninitializedParameter, torch.nn.UninitializedBuffer)):
            raise InputError(
                f"{self.function}: the model has a lazy parameter without a shape; expected every "
                "shape to be known. Call the model once on a small input first."
            )
        plain = (
            kind in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer, FakeTensor)
            or kind.__torch_dispatch__ is torch.Tensor.__torch_dispatch__
        )
        if (
            original.layout is not torch.strided
            or original.is_quantized
            or original.is_nested
            or not plain
        ):
            way = ".to_padded_tensor(0)" if original.is_nested else ".to_dense() or .dequantize()"
            raise InputError(
                f"{self.function}: {with_article(kind.__name__)} ({original.layout}, "
                f"{original.dtype}) has no plain storage to trace; expected ordinary dense "
                f"tensors. Convert it with {way} first."
            )
        source = original.detach()
        storage = source.untyped_storage()
        if storage._cdata not in self._storages:
            self._storages[storage._cdata] = (storage, self.new_storage(source))
        lent: Any = torch.empty(0, dtype=source.dtype, device=self.device or source.device)
        lent.set_(
            self._storages[storage._cdata][1],
            source.storage_offset(),
            source.shape,
            source.stride(),
        )
        if self.dtype is not None and source.is_floating_point():
            lent = lent.to(self.dtype)
        if isinstance(original, torch.nn.Parameter):
            parameter = torch.nn.Parameter(lent, requires_grad=original.requires_grad)
            parameter.__dict__.update(original.__dict__)
            return parameter
        lent.requires_grad_(original.requires_grad)
        if (
            isinstance(lent, FakeTensor)
            and kind is torch.Tensor
            and original.is_cpu
            and lent.numel() <= _VALUES
            and not lent.is_floating_point()
        ):
            with unset_fake_temporarily():
                # on the stand-in's device: what is computed from the values alone is there too
                lent.constant = original.detach().to(lent.device, copy=True)
            lent.fake_mode.fake_tensor_converter.add_constant_storage_mapping(lent)
        return lent

    def everything(self, value: Any) -> Any:
        """Return a nest of lists, tuples and mappings with each tensor replaced by its stand-in."""
        return tree_map_only(torch.Tensor, self.tensor, value)


def modules_in(value: Any) -> list[Any]:
    """Return the modules that a loss holds: the loss itself if it is one, else those in its
    closure, its defaults, and the globals that it names.
    """
    if isinstance(value, torch.nn.Module):
        return [value]
    kinds = (torch.nn.Module, functools.partial, types.MethodType)
    return [
        module for item in held_by(value) if isinstance(item, kinds) for module in modules_in(item)
    ]


@contextlib.contextmanager
def lent(lender: Lender, roots: list[Any]) -> Iterator[None]:
    """Within the block, every tensor of the modules is replaced by its stand-in; afterwards all
    attributes are as before. Call it within ``undisturbed``: two threads that lend tensors to the
    same model would restore each other's.
    """
    modules = list({id(m): m for root in roots for m in root.modules()}.values())
    held = [each for m in modules for each in (m.__dict__, *m.__dict__.values())]
    kept = [(each, each.copy()) for each in held if isinstance(each, (dict, list, set))]
    try:
        for module in modules:
            attributes = module.__dict__
            for group in ("_parameters", "_buffers"):
                attributes[group] = {
                    name: None if tensor is None else lender.tensor(tensor)
                    for name, tensor in attributes[group].items()
                }
            for name, value in list(attributes.items()):
                if name not in ("_parameters", "_buffers", "_modules") and not name.endswith(
                    "_hooks"
                ):
                    attributes[name] = lender.everything(value)
            attributes["_compiled_call_impl"] = None  # compiled code has the old tensors
        yield
    finally:
        try:
            _put_back(kept)
        finally:  # again: an interrupt may have left stand-ins in the rest of the model
            _put_back(kept)


def _put_back(kept: list[tuple[Any, Any]]) -> None:
    for container, content in kept:
        container.clear()
        (container.extend if isinstance(container, list) else container.update)(content)


@contextlib.contextmanager
def undisturbed(device_type: str) -> Iterator[None]:
    """Suspend the caller's modes (no_grad, inference, autocast, detection of anomalies, which reads
    the values of gradients) and compilation in the block, and put the random generators of Python,
    NumPy and torch back after it. One thread at a time.
    """
    in_use = torch.cuda.is_available() and torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    # only if the caller's autocast is on: otherwise this block would be the outermost one, which
    # clears the cache
    is_casting = torch.is_autocast_enabled(device_type)
    with (
        uncompiled(),
        torch.random.fork_rng(range(torch.cuda.device_count() if in_use else 0)),
        torch.inference_mode(False),
        torch.enable_grad(),
        torch.autograd.set_detect_anomaly(False),
        torch.autocast(device_type, enabled=False) if is_casting else contextlib.nullcontext(),
        contextlib.ExitStack() as after,
    ):
        after.callback(random.setstate, random.getstate())
        after.callback(np.random.set_state, np.random.get_state())
        yield


# Name -> (dtype of autocast or None, dtype of the parameters or None, whether the loss is scaled).
PRECISIONS: Mapping[str, tuple[str | None, str | None, bool]] = {
    "float32": (None, None, False),
    "bfloat16": ("bfloat16", None, False),
    "float16": ("float16", None, True),
    "pure-bfloat16": (None, "bfloat16", False),
    "pure-float16": (None, "float16", False),
}


def optimizer_factory(function: str, optimizer: Any) -> tuple[str, Callable[[Any], Any] | None]:
    """Return (name, callable from parameters to an optimizer) of a name, a factory or None.

    Raises
    ------
    InputError
        If the name is not one of ``torch.optim``'s, or an optimizer was given instead of a way to
        make one.
    """
    if optimizer is None:
        return "no optimizer", None
    if isinstance(optimizer, str):
        kinds: list[Any] = [getattr(torch.optim, name) for name in torch.optim.__all__]
        known: dict[str, Any] = {
            kind.__name__.lower(): kind
            for kind in kinds
            if isinstance(kind, type)
            and issubclass(kind, torch.optim.Optimizer)
            and kind not in (torch.optim.Optimizer, torch.optim.LBFGS)  # LBFGS needs a closure
        }
        name = optimizer.lower()
        _validate.word(function, "optimizer", name, [*sorted(known), "sgd-momentum"])
        if name == "sgd-momentum":
            return "SGD with momentum", functools.partial(torch.optim.SGD, lr=1e-3, momentum=0.9)
        return known[name].__name__, functools.partial(known[name], lr=1e-3)
    _validate.instance(
        function,
        "optimizer",
        optimizer,
        Callable,
        "a name or a factory. Pass 'adam', or for example lambda parameters: "
        "torch.optim.Adam(parameters, lr=1e-3).",
    )
    name = str(getattr(optimizer, "__name__", "optimizer"))  # a partial has none
    return name.replace("<lambda>", "own optimizer"), optimizer


def loss_of(function: str, value: Any) -> Any:
    """Return the scalar to differentiate: the value itself, or its ``loss``.

    Raises
    ------
    InputError
        If there is no scalar tensor that depends on a parameter.
    """
    value = getattr(value, "loss", value)
    if not isinstance(value, torch.Tensor) or value.numel() != 1:
        what = (
            f"a tensor of shape {tuple(value.shape)}"
            if isinstance(value, torch.Tensor)
            else kind_of(value)
        )
        raise InputError(
            f"{function}: the loss is {what}; expected a tensor with one element. Pass loss=..., a "
            "function from the model's output to a scalar."
        )
    if not value.requires_grad:
        raise InputError(
            f"{function}: the loss does not depend on any parameter that requires a gradient; "
            "expected at least one. Unfreeze a layer."
        )
    return value


class UncheckedScaler(torch.amp.GradScaler):
    """PyTorch's loss scaling, without the check whether a gradient overflowed. A fake tensor has no
    values to check; and PyTorch's scale starts so high (65,536) that the first real steps may be
    skipped, and would not show the memory of the optimizer.
    """

    def _maybe_opt_step(
        self, optimizer: Any, optimizer_state: Any, *args: Any, **kwargs: Any
    ) -> Any:
        return optimizer.step(*args, **kwargs)


class Step:
    """A model with its loss, precision and optimizer, ready to take training steps."""

    def __init__(
        self,
        function: str,
        model: Any,
        *,
        inputs: Any,
        targets: Any,
        loss: Any,
        precision: str,
        device: str,
    ) -> None:
        self.function, self.model, self.loss = function, model, loss
        self.inputs, self.targets = inputs, targets
        self.autocast_dtype, _, self.scaled = PRECISIONS[precision]
        self.device, self.optimizer = device, None
        self.scaler: Any = torch.amp.GradScaler(device, enabled=False)

    def prepare(self, tracker: Any, factory: Callable[[Any], Any] | None) -> None:
        """Make the optimizer for the parameters that are not frozen, and scale the loss for it
        where the precision asks for that.
        """
        trained = self._guard(
            "model", lambda: [p for p in self.model.parameters() if p.requires_grad]
        )
        if not trained:
            raise InputError(
                f"{self.function}: the model has no parameter that requires a gradient; expected "
                "at least one. Unfreeze a layer."
            )
        if factory is not None:
            tracker.in_optimizer = True  # Adagrad makes its state at once
            self.optimizer = self._guard("optimizer", lambda: factory(trained))
            tracker.in_optimizer = False
            if not hasattr(self.optimizer, "zero_grad"):
                raise InputError(
                    f"{self.function}: the optimizer's factory returned {shown(self.optimizer)}; "
                    "expected an optimizer. Return for example torch.optim.Adam(parameters)."
                )
            self.scaler = UncheckedScaler(self.device, enabled=self.scaled)

    def run(self, tracker: Any) -> None:
        """Take one step: release the gradients, forward, backward, optimizer."""
        tracker.begin_step()
        owner = self.model if self.optimizer is None else self.optimizer
        self._guard("zero_grad", owner.zero_grad)
        loss = self._guard("forward", self._forward)
        self._guard("backward", self.scaler.scale(loss).backward)
        tracker.mark_gradients()
        if self.optimizer is not None:
            self._guard("optimizer", lambda: self.scaler.step(self.optimizer))
            self.scaler.update()

    def _forward(self) -> Any:
        dtype = getattr(torch, self.autocast_dtype) if self.autocast_dtype else None
        with torch.autocast(self.device, dtype=dtype, enabled=dtype is not None):
            targets = () if self.targets is None else (self.targets,)
            value = (
                self.model(*self.inputs, *targets)
                if self.loss is None
                else self.loss(self.model(*self.inputs), *targets)
            )
        torch.clear_autocast_cache()  # the end of autocast does so only in the outermost block
        return loss_of(self.function, value)

    def _guard(self, part: str, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except (GpulabError, Stopped):
            raise
        except Exception as error:
            of_device = translate(error, f"{self.function}: {part}")
            raise of_device or InputError(explain(self.function, part, error)) from error


@contextlib.contextmanager
def on_substitutes(
    function: str,
    tracker: Any,
    model: Any,
    *,
    inputs: Any,
    targets: Any,
    loss: Any,
    precision: str,
    new_storage: Callable[[Any], Any],
    device: str | None,
) -> Iterator[Step]:
    """Yield a step whose model, loss and batch hold stand-ins of their tensors. The tracker counts
    the stand-ins; afterwards the caller's modules are as before.

    An interrupt waits for the next operator: inside PyTorch's C++ code, which calls Python for each
    fake tensor, it could end the whole process ("terminate called after throwing an instance of
    'python_error'").

    Parameters
    ----------
    new_storage, device
        As for ``Lender``.
    """
    parallel = torch.nn.DataParallel, torch.nn.parallel.DistributedDataParallel
    while isinstance(model, parallel) or hasattr(model, "_orig_mod"):  # compiled
        model = model.module if isinstance(model, parallel) else model._orig_mod
    half = PRECISIONS[precision][1]
    lender = Lender(function, new_storage, device, getattr(torch, half) if half else None)
    roots, stop = [model, *modules_in(loss)], tracker.stop
    with _interrupts.deferred() as interrupt, lent(lender, roots):
        tracker.stop = lambda: interrupt.asked or (stop is not None and stop())
        batch, goals = lender.everything(inputs), lender.everything(targets)
        tracker.watch_modules(roots)
        tracker.watch_inputs((batch, goals))
        step = Step(
            function,
            model,
            inputs=batch,
            targets=goals,
            loss=loss,
            precision=precision,
            device=tracker.device_type,
        )
        del batch, goals, lender  # they would keep tensors alive that the step releases
        yield step
    if interrupt.asked:
        raise KeyboardInterrupt


def explain(function: str, part: str, error: Exception) -> str:
    """Return one sentence for an error from inside the model, its loss or its optimizer."""
    name = type(error).__name__
    if name in (
        "DataDependentOutputException",
        "DynamicOutputShapeException",
        "GuardOnDataDependentSymNode",
    ):
        operator = getattr(error, "func", None) or message_of(error)
        return (
            f"{function}: in {part}, {operator} depends on the values of a tensor, which a "
            "prediction does not have; expected a step whose shapes and branches depend only on "
            "shapes. Use memory.trace, which runs the step."
        )
    return (
        f"{function}: {part} raised {name}: {message_of(error) or 'no message'}; expected a step "
        "that runs. Run it yourself on a small batch; the cause is above this message."
    )


@contextlib.contextmanager
def checkpointed(model: Any) -> Iterator[list[str]]:
    """Recompute each direct child of a model in the backward pass; for a child that is a ModuleList
    or ModuleDict, each member. With None, nothing is recomputed.

    Yields a list that grows by one entry for each call of a child.
    """
    calls: list[str] = []

    def recomputed(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        calls.append("")
        return checkpoint(forward, *args, use_reentrant=False, **kwargs)

    children: list[Any] = []
    for child in model.children() if model is not None else ():
        is_container = isinstance(child, (torch.nn.ModuleList, torch.nn.ModuleDict))
        children += child.children() if is_container else [child]
    with contextlib.ExitStack() as stack:
        for child in children:
            forward = functools.partial(recomputed, child.forward)
            stack.enter_context(mock.patch.object(child, "forward", forward))
        yield calls


@contextlib.contextmanager
def optimizer_seen(tracker: Any) -> Iterator[None]:
    """Set the tracker's ``in_optimizer`` while an optimizer's ``step`` runs that it follows.

    PyTorch calls these hooks in all threads, but a tracker follows one: an instrument may train
    while a cell predicts.
    """

    def enter(optimizer: Any, args: Any, kwargs: Any) -> None:
        if tracker in _get_current_dispatch_mode_stack():
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    tracker.watch_parameter(parameter, "")
            tracker.mark_gradients()
            tracker.in_optimizer = True

    def leave(optimizer: Any, args: Any, kwargs: Any) -> None:
        if tracker in _get_current_dispatch_mode_stack():
            tracker.in_optimizer = False

    with register_optimizer_step_pre_hook(enter), register_optimizer_step_post_hook(leave):
        yield
