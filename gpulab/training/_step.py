"""One step of training: forward, backward, optimizer, with the options that change what runs inside it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from gpulab import devices
from gpulab.errors import GpulabError, InputError, message_of
from gpulab.training._options import PRECISIONS, Settled
from gpulab.training._tasks import Task


class Step:
    """A model, its optimizer and its loss scale.

    Attributes
    ----------
    model : torch.nn.Module
    optimizer : torch.optim.Optimizer
    scaler : torch.amp.GradScaler or None
        For dynamic loss scaling.
    scale : float
        A fixed loss scale; 1 where there is none.
    """

    def __init__(self, job: Task, settled: Settled, model: Any) -> None:
        import torch

        self.job, self.options, self.device = job, settled.options, settled.device
        autocast, half = PRECISIONS[self.options.precision]
        self.autocast_dtype = getattr(torch, autocast) if autocast else None
        self.dtype = getattr(torch, half) if half else None
        self.memory_format = torch.channels_last if self.options.channels_last else None
        with devices.guard(f"fit: moving the model of {job.name} to {self.device}"):
            model.to(str(self.device), self.dtype)
            if self.memory_format is not None:
                model.to(memory_format=self.memory_format)
        self.model = model
        self.called = self._called(settled)
        trained = [p for p in model.parameters() if p.requires_grad]
        if not trained:
            raise InputError("fit: the model has no parameter that requires a gradient; expected at least one. Unfreeze a layer.")
        self.parameters = trained
        self.optimizer = self._optimizer(settled.make_optimizer)
        scale = self.options.loss_scale
        self.scale = float(scale) if isinstance(scale, float) else 1.0
        self.scaler = _scaler(self.device.torch_type) if scale == "dynamic" else None

    def _called(self, settled: Settled) -> Any:
        """Return what is called in place of the model: itself, or its compiled form."""
        import torch

        return torch.compile(self.model) if self.options.compile else self.model

    def _optimizer(self, make: Callable[[Any], Any]) -> Any:
        try:
            optimizer = make(self.parameters)
        except Exception as error:
            raise InputError(
                f"fit: making the optimizer raised {type(error).__name__} ({message_of(error)}); expected it to take the parameters. "
                "Pass optimizer='adam', or a function from parameters to an optimizer."
            ) from error
        if not (callable(getattr(optimizer, "step", None)) and callable(getattr(optimizer, "zero_grad", None))):
            raise InputError(
                f"fit: the optimizer's function returned a {type(optimizer).__name__}; expected an optimizer with step() and zero_grad(). "
                "Return for example torch.optim.Adam(parameters, lr=1e-3)."
            )
        return optimizer

    def to_device(self, batch: tuple[Any, Any]) -> tuple[Any, Any]:
        """Return the batch on the device, in the dtype and the order of bytes that the model takes."""
        inputs, targets = batch
        where = str(self.device)
        wait = not self.options.pinned
        inputs = inputs.to(where, self.dtype if inputs.is_floating_point() else None, non_blocking=not wait)
        if self.memory_format is not None:
            inputs = inputs.contiguous(memory_format=self.memory_format)
        return inputs, targets.to(where, non_blocking=not wait)

    def run(self, batch: tuple[Any, Any], mark: Callable[[str], None]) -> Any:
        """Take one step on a batch on the device; returns its loss, a detached scalar on the device."""
        self.optimizer.zero_grad(set_to_none=True)
        items, loss = len(batch[0]), None
        parts = self.options.accumulate
        for inputs, targets in zip(batch[0].tensor_split(parts), batch[1].tensor_split(parts), strict=True):
            mark("other")
            share = self.forward((inputs, targets)) * (len(inputs) / items) if parts > 1 else self.forward((inputs, targets))
            mark("forward")
            self.backward(share)
            mark("backward")
            loss = share.detach() if loss is None else loss + share.detach()
        self.update()
        mark("optimizer")
        return loss

    def forward(self, batch: tuple[Any, Any]) -> Any:
        """Return the loss of a batch."""
        import torch

        within = (
            torch.autocast(self.device.torch_type, dtype=self.autocast_dtype)
            if self.autocast_dtype is not None
            else contextlib.nullcontext()
        )
        with within:
            return self.job.loss(self.called, batch)

    def backward(self, loss: Any) -> None:
        """Fill the gradients, scaled."""
        if self.scaler is not None:
            loss = self.scaler.scale(loss)
        elif self.scale != 1:
            loss = loss * self.scale
        loss.backward()

    def update(self) -> None:
        """Unscale and clip the gradients, and let the optimizer change the parameters."""
        import torch

        if self.scaler is not None and self.options.clip is not None:
            self.scaler.unscale_(self.optimizer)
        elif self.scale != 1:
            for parameter in self.parameters:
                if parameter.grad is not None:
                    parameter.grad.mul_(1 / self.scale)
        if self.options.clip is not None:
            torch.nn.utils.clip_grad_norm_(self.parameters, self.options.clip)
        if self.scaler is not None:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        else:
            self.optimizer.step()


def _scaler(device_type: str) -> Any:
    """Return PyTorch's own scaler, which also takes gradients in float16."""
    import torch

    class Scaler(torch.amp.GradScaler):
        """``GradScaler`` refuses float16 gradients, since it wants float32 master weights; a pure float16 run has none."""

        def _unscale_grads_(self, optimizer: Any, inverse: Any, found: Any, allow_fp16: bool) -> Any:
            return super()._unscale_grads_(optimizer, inverse, found, True)

    return Scaler(device_type)


def explain(doing: str, error: Exception) -> GpulabError:
    """Return one sentence for an error from inside a step."""
    ours = devices.translate(error, doing)
    return ours or InputError(
        f"{doing} raised {type(error).__name__}: {message_of(error) or 'no message'}; expected a step that runs. "
        "Try the model on one batch by hand: task.loss(model, task.train[:8])."
    )
