"""One step of training: forward, backward, optimizer, with the options that change what runs inside
it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from gpulab import devices
from gpulab.errors import GpulabError, InputError, OutOfMemoryError, advice, message_of, shown
from gpulab.evidence import Note
from gpulab.training import _activations
from gpulab.training._options import PRECISIONS, Settled
from gpulab.training._tasks import Task
from gpulab.training._words import compiling_failed
from gpulab.training.results import Options

Batch = tuple[Any, Any]


class Step:
    """A model, its optimizer and its loss scale.

    Attributes
    ----------
    model : torch.nn.Module
    optimizer : torch.optim.Optimizer
    scaler : Scaler or None
        For dynamic loss scaling.
    scale : float
        A fixed loss scale; 1 where there is none.
    """

    def __init__(self, job: Task, settled: Settled, model: Any) -> None:
        import torch

        self.job, self.options, self.device, self.notes = (
            job,
            settled.options,
            settled.device,
            settled.notes,
        )
        autocast, half = PRECISIONS[self.options.precision]
        self.autocast_dtype = getattr(torch, autocast) if autocast else None
        self.dtype = getattr(torch, half) if half else None
        self.memory_format = torch.channels_last if self.options.channels_last else None
        self.model = model
        self._move(model)
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        if not self.parameters:
            raise InputError(
                "fit: the model has no parameter that requires a gradient; expected at least one. "
                "Unfreeze a layer."
            )
        self.optimizer = self._optimizer(settled.make_optimizer)
        scale = self.options.loss_scale
        self.scale = float(scale) if isinstance(scale, float) else 1.0
        self.scaler = make_scaler(self.device.torch_type) if scale == "dynamic" else None
        # A run's batches have one size. By default a second size, that of another run in this
        # session, would get code for any size.
        self._compiled: Any = torch.compile(model, dynamic=False) if self.options.compile else None
        self._compiled_sizes: set[int] = set()

    def _move(self, model: Any) -> None:
        import torch

        doing = f"fit: moving the model of {self.job.name} to {self.device}"
        other = any(p.is_floating_point() and p.dtype != torch.float32 for p in model.parameters())
        # a model that an earlier run left in 16 bits
        dtype = self.dtype or (torch.float32 if other else None)
        try:
            model.to(str(self.device), dtype)
            if self.memory_format is not None:
                model.to(memory_format=self.memory_format)
        except Exception as error:
            raise explain(doing, error) from error

    def _optimizer(self, make: Callable[[Any], Any]) -> Any:
        import torch

        try:
            optimizer = make(self.parameters)
        except Exception as error:
            raise InputError(
                f"fit: making the optimizer raised {type(error).__name__} ({message_of(error)}); "
                "expected it to take the parameters. "
                "Pass optimizer='adam', or a function from parameters to an optimizer."
            ) from error
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise InputError(
                f"fit: the optimizer's function returned {shown(optimizer)}; expected an optimizer "
                "of PyTorch. "
                "Return for example torch.optim.Adam(parameters, lr=1e-3)."
            )
        return optimizer

    @contextlib.contextmanager
    def ready(self) -> Any:
        """Within the block the model trains, and recomputes its activations where that was asked;
        afterwards it is as before.
        """
        modes = [(module, module.training) for module in self.model.modules()]
        self.model.train()
        try:
            with (
                _activations.recomputed(self.model)
                if self.options.checkpoint
                else contextlib.nullcontext()
            ):
                yield
        finally:
            for module, mode in modes:
                module.training = mode

    def to_device(self, batch: Batch) -> Batch:
        """Return the batch on the device, in the dtype and the order of bytes that the model
        takes.
        """
        inputs, targets = batch
        where, ahead = str(self.device), self.options.pinned
        inputs = inputs.to(
            where, self.dtype if inputs.is_floating_point() else None, non_blocking=ahead
        )
        if self.memory_format is not None:
            inputs = inputs.contiguous(memory_format=self.memory_format)
        return inputs, targets.to(where, non_blocking=ahead)

    def run(self, batch: Batch, mark: Callable[[str], None]) -> Any:
        """Take one step on a batch on the device; returns its loss, a detached scalar on the
        device.

        With parts, each part's loss counts by its share of the batch, so the gradients add up to
        the batch's.
        """
        self.optimizer.zero_grad(set_to_none=True)
        parts, items, loss = self.options.accumulate, len(batch[0]), None
        for inputs, targets in zip(
            batch[0].tensor_split(parts), batch[1].tensor_split(parts), strict=True
        ):
            mark("other")
            share = self.forward((inputs, targets))
            if parts > 1:
                share = share * (len(inputs) / items)
            mark("forward")
            self.backward(share)
            mark("backward")
            loss = share.detach() if loss is None else loss + share.detach()
        self.update()
        mark("optimizer")
        return loss

    def forward(self, batch: Batch) -> Any:
        """Return the loss of a batch, in the run's precision."""
        import torch

        if self.autocast_dtype is None:
            return self._loss(batch)
        # A cache of converted weights must not outlive the recording of a CUDA graph.
        with torch.autocast(
            self.device.torch_type,
            dtype=self.autocast_dtype,
            cache_enabled=not self.options.cuda_graph,
        ):
            return self._loss(batch)

    @property
    def is_compiled(self) -> bool:
        """Whether the compiled form runs; False where none was asked for, or the compiler
        failed.
        """
        return self._compiled is not None

    def _loss(self, batch: Batch) -> Any:
        if self._compiled is None:
            return self.job.loss(self.model, batch)
        if len(batch[0]) in self._compiled_sizes:
            return self.job.loss(self._compiled, batch)
        try:
            with _compiling_or_error():
                loss = self.job.loss(self._compiled, batch)
        except Exception as error:
            # the compilers raise many kinds; what is not theirs comes again from the model as it is
            self._compiled = None
            loss = self.job.loss(self.model, batch)
            self.notes.append(
                Note("skipped", f"{compiling_failed(error)}, so the model ran as it is.")
            )
            return loss
        self._compiled_sizes.add(len(batch[0]))
        return loss

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

        if self.scaler is not None:
            if self.options.clip is not None:
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


def _compiling_or_error() -> Any:
    """Let PyTorch compile more than eight forms of a model in a session: after those it goes on
    uncompiled, and raises nothing.

    One form is for one size, precision and order of bytes. Beyond ``accumulated_recompile_limit``
    (256) there is an error, which is told.
    """
    import torch._dynamo

    settings: Any = torch._dynamo.config
    return settings.patch(
        recompile_limit=settings.accumulated_recompile_limit, fail_on_recompile_limit_hit=True
    )


def make_scaler(device_type: str) -> Any:
    """Return PyTorch's own scaler, which here also takes float16 gradients and counts the steps
    that it leaves out.
    """
    import torch

    class Scaler(torch.amp.GradScaler):
        """``GradScaler`` refuses float16 gradients, since it wants float32 master weights; a pure
        float16 run has none.
        """

        overflowed: Any = None  # a count on the device: reading it would make the host wait

        def _unscale_grads_(
            self, optimizer: Any, inverse: Any, found: Any, allow_fp16: bool
        ) -> Any:
            found_by_device = super()._unscale_grads_(optimizer, inverse, found, True)
            for value in found_by_device.values():
                self.overflowed = (
                    value.clone() if self.overflowed is None else self.overflowed + value
                )
            return found_by_device

        @property
        def skipped_steps(self) -> int:
            return 0 if self.overflowed is None else int(self.overflowed)

    return Scaler(device_type)


def explain(doing: str, error: Exception, options: Options | None = None) -> GpulabError:
    """Return one sentence for an error from inside a step; with the options, what of them would
    take less memory.
    """
    ours = devices.translate(error, doing)
    if isinstance(ours, OutOfMemoryError) and options is not None:
        means = [
            f"batch_size={max(1, options.batch_size // 2)}",
            f"accumulate={2 * options.accumulate}",
        ]
        means += ["checkpoint=True"] if not options.checkpoint else []
        return OutOfMemoryError(
            f"{doing}: the memory that is free does not hold it; expected it to fit. Pass "
            f"{', '.join(means[:-1])} or {means[-1]}, or call "
            "gl.memory.release() to give back what earlier cells hold."
        )
    return ours or InputError(
        f"{doing} raised {type(error).__name__}: {_told(error) or 'no message'}; expected a step "
        "that runs. "
        + advice(
            str(error), "Try the model on one batch by hand: task.loss(model, task.train[:8])."
        )
    )


def _told(error: Exception) -> str:
    """Return an error's text; of one from a worker, which carries its whole traceback, the last
    line.
    """
    lines = (
        [line.strip() for line in str(error).splitlines() if line.strip()]
        if "DataLoader worker" in message_of(error)
        else []
    )
    return f"{message_of(lines[-1], 150)} (in a worker)" if len(lines) > 1 else message_of(error)
