"""One step of training.

``settle`` checks the options of a run against what the device supports. ``Step`` runs forward,
backward and optimizer as the options say: with loss scaling, compilation, or recomputed
activations. ``GraphedStep`` replays the step as a CUDA graph.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

import torch
from torch.nn.modules.batchnorm import _NormBase

from gpulab import _validate, devices
from gpulab.errors import GpulabError, InputError, OutOfMemoryError, advice, message_of, shown
from gpulab.evidence import Note
from gpulab.memory.training_step import checkpointed, optimizer_factory
from gpulab.training import backend_switches
from gpulab.training.data_tasks import SEED, Batch, Task
from gpulab.training.run_results import Options

# Name -> (dtype of autocast or None, dtype of the parameters or None). "float16" and "pure-float16"
# need loss scaling.
PRECISIONS: Mapping[str, tuple[torch.dtype | None, torch.dtype | None]] = {
    "float32": (None, None),
    "tf32": (None, None),
    "bfloat16": (torch.bfloat16, None),
    "float16": (torch.float16, None),
    "pure-bfloat16": (None, torch.bfloat16),
    "pure-float16": (None, torch.float16),
}
SCALED = ("float16", "pure-float16")
LOADINGS = ("items", "batches", "resident")
MOST_STEPS = 1_000_000


# The options that ``fit`` takes besides the task, the model and the device, with their defaults.
DEFAULTS: Mapping[str, Any] = {
    "precision": "float32",
    "batch_size": None,
    "epochs": None,
    "steps": None,
    "learning_rate": None,
    "optimizer": "adam",
    "accumulate": 1,
    "checkpoint": False,
    "compile": False,
    "channels_last": False,
    "fused": None,
    "prefetch": 0,
    "pinned": False,
    "cuda_graph": False,
    "loss_scale": None,
    "clip": None,
    "loading": "batches",
    "read_loss": False,
    "autotune": False,
    "seed": 0,
}
_FLAGS = (
    "checkpoint",
    "compile",
    "channels_last",
    "fused",
    "pinned",
    "cuda_graph",
    "read_loss",
    "autotune",
)
# The checks of options whose valid values do not depend on other options.
_RULES: Mapping[str, Callable[[str, str, Any], Any]] = {
    **dict.fromkeys(_FLAGS, _validate.flag),
    "precision": functools.partial(_validate.word, known=PRECISIONS),
    "steps": functools.partial(_validate.whole, low=1, high=MOST_STEPS),
    "learning_rate": functools.partial(_validate.positive, advice="Pass learning_rate=1e-3."),
    "prefetch": functools.partial(_validate.whole, low=0, high=1000),
    "clip": functools.partial(_validate.positive, advice="Pass clip=1.0."),
    "loading": functools.partial(_validate.word, known=LOADINGS),
    "seed": SEED,
}


def settle(
    job: Task, device: Any, asked: Mapping[str, Any]
) -> tuple[Options, devices.Device, Callable[[Any], Any], list[Note]]:
    """Return the options in effect, the device, the function that makes the optimizer, and a note
    on each requested option that the device does not support.

    Raises
    ------
    InputError
        If an option does not exist, its value is not valid on any device, or two options exclude
        each other.
    DeviceError
        If this machine has no such device.
    """
    unknown = [name for name in asked if name not in DEFAULTS]
    if unknown:
        raise InputError(
            f"fit: there is no option {shown(unknown[0])}; expected one of: {', '.join(DEFAULTS)}. "
            "Read what they do with help(gl.training.fit)."
        )
    values: dict[str, Any] = {**DEFAULTS, **asked}
    where, items = devices.find(device), len(job.train)
    values |= {
        name: rule("fit", name, values[name])
        for name, rule in _RULES.items()
        if values[name] is not None or DEFAULTS[name] is not None
    }
    epochs, learning_rate = values.pop("epochs"), values["learning_rate"]
    if epochs is not None and values["steps"] is not None:
        raise InputError(
            f"fit: both epochs={shown(epochs)} and steps={shown(values['steps'])} were given; "
            "expected one of them. Leave one out."
        )
    size = job.batch_size if values["batch_size"] is None else values["batch_size"]
    values["batch_size"] = size = _validate.whole("fit", "batch_size", size, 1, items)
    an_epoch = items // size
    if values["steps"] is None:
        most = MOST_STEPS // an_epoch
        wanted = job.epochs if epochs is None else _validate.whole("fit", "epochs", epochs, 1, most)
        values["steps"] = an_epoch * wanted
    values["accumulate"] = _validate.whole("fit", "accumulate", values["accumulate"], 1, size)
    if learning_rate is None:
        values["learning_rate"] = job.learning_rate
    values["loss_scale"] = _scale(values["loss_scale"], values["precision"])
    notes = _without_what_is_missing(values, where, job)
    values["optimizer"], make = _optimizer(values["optimizer"], learning_rate, values, notes)
    return Options(workers=0, **values), where, make, notes


def _scale(scale: Any, precision: str) -> str | float | None:
    if scale is None:
        return "dynamic" if precision in SCALED else None
    if isinstance(scale, str):
        return _validate.word("fit", "loss_scale", scale, ("dynamic",))
    value = _validate.positive("fit", "loss_scale", scale, "Pass loss_scale=1024.")
    return None if value == 1 else value


def _without_what_is_missing(
    values: dict[str, Any], where: devices.Device, job: Task
) -> list[Note]:
    """Replace options that this device does not support; return notes on what runs instead."""
    is_cuda, is_resident = where.kind == "cuda", values["loading"] == "resident"
    has_compiler = (
        not where.is_cpu
        or os.environ.get("CXX")
        or any(map(shutil.which, ("g++", "clang++", "cl")))
    )
    # option, value in its place, whether the device lacks it, sentence of the note
    missing: tuple[tuple[str, Any, bool, str], ...] = (
        (
            "precision",
            "float32",
            values["precision"] == "tf32" and not where.has_tf32,
            f"{where.name} has no TF32 (NVIDIA GPUs have it from compute capability 8.0), so the "
            "products ran in float32.",
        ),
        (
            "pinned",
            False,
            where.torch_type != "cuda",
            f"pinned memory serves copies to a CUDA device, and {where} is not one, so memory "
            "stayed pageable.",
        ),
        (
            "cuda_graph",
            False,
            not is_cuda,
            f"{where} has no CUDA graphs, so each step was launched operator by operator.",
        ),
        (
            "cuda_graph",
            False,
            is_cuda and values["loss_scale"] == "dynamic",
            "dynamic loss scaling reads on the host whether gradients overflowed, which a CUDA "
            "graph cannot do, so each step was launched "
            'operator by operator. Pass precision="bfloat16" or a fixed loss_scale.',
        ),
        (
            "pinned",
            False,
            is_resident,
            "the data is on the device already, so nothing was pinned.",
        ),
        (
            "autotune",
            False,
            not is_cuda,
            f"cuDNN runs only on NVIDIA GPUs, and {where.name} is not one, so nothing was tuned.",
        ),
        (
            "channels_last",
            False,
            job.train.inputs.dim() != 4,
            f"{job.name} has no images, so there are no channels to put last.",
        ),
        (
            "compile",
            False,
            not has_compiler,
            "torch.compile needs a C++ compiler (g++ or clang++) for the CPU; none is on the PATH, "
            "so the model ran uncompiled.",
        ),
    )
    found = [row for row in missing if row[2] and values[row[0]]]
    values.update({name: instead for name, instead, *_ in found})
    return [Note("skipped", sentence) for *_, sentence in found]


def _optimizer(
    optimizer: Any, learning_rate: Any, values: dict[str, Any], notes: list[Note]
) -> tuple[str, Callable[[Any], Any]]:
    """Return the optimizer's name and a function from parameters to it."""
    name, make = cast(Any, optimizer_factory("fit", optimizer))
    if make is None:
        raise InputError("fit: optimizer is None; expected a name or a factory. Pass 'adam'.")
    if not isinstance(optimizer, str):
        if learning_rate is not None or values["fused"] is not None:
            raise InputError(
                "fit: the optimizer is a function, so it decides learning_rate and fused itself; "
                "expected neither. Leave them out."
            )
        return name, make
    takes, arguments = inspect.signature(make.func).parameters, {"lr": values["learning_rate"]}
    if values["fused"] and "fused" not in takes:
        sentence = f"{name} has no fused form in PyTorch, so its default form was used."
        notes.append(Note("skipped", sentence))
        values["fused"] = None
    if values["fused"]:
        arguments["fused"] = True
    elif values["fused"] is False:
        arguments |= {name: False for name in ("fused", "foreach") if name in takes}
    if values["cuda_graph"] and "capturable" in takes:
        arguments["capturable"] = True
    return optimizer.lower(), functools.partial(make, **arguments)


# Steps before the recording: PyTorch's notes on CUDA graphs ask for a few on a side stream, so that
# libraries and the optimizer have set up their state.
EAGER_STEPS = 3
# Graphs whose recording was invalidated. They are kept, since PyTorch's allocator goes on asking
# them whether they record.
_invalid_graphs: list[Any] = []


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
    compiled : callable or None
        The compiled model; None without the option ``compile``, or if the compiler failed.
    """

    def __init__(
        self,
        job: Task,
        model: Any,
        options: Options,
        device: devices.Device,
        make_optimizer: Callable[[Any], Any],
        notes: list[Note],
    ) -> None:
        self.job, self.model, self.notes = job, model, notes
        self.options, self.device = options, device
        self.autocast_dtype, self.dtype = PRECISIONS[self.options.precision]
        self.memory_format = torch.channels_last if self.options.channels_last else None
        is_other = any(
            p.is_floating_point() and p.dtype != torch.float32 for p in model.parameters()
        )
        # back to float32 if an earlier run left the model in 16 bits
        dtype = self.dtype or (torch.float32 if is_other else None)
        with devices.guard(f"fit: moving the model of {job.name} to {device}"):
            model.to(str(device), dtype)
            if self.memory_format is not None:
                model.to(memory_format=self.memory_format)
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        if not self.parameters:
            raise InputError(
                "fit: the model has no parameter that requires a gradient; expected at least one. "
                "Unfreeze a layer."
            )
        with devices.guard(
            "fit: making the optimizer",
            "it to take the parameters. Pass optimizer='adam', or a function from parameters to an "
            "optimizer.",
        ):
            self.optimizer = make_optimizer(self.parameters)
        _validate.instance(
            "fit",
            "what the optimizer's function returned",
            self.optimizer,
            torch.optim.Optimizer,
            "an optimizer. Return for example torch.optim.Adam(parameters, lr=1e-3).",
        )
        scale = self.options.loss_scale
        self.scale = float(scale) if isinstance(scale, float) else 1.0
        self.scaler = Scaler(self.device.torch_type) if scale == "dynamic" else None
        # All batches of a run have one size. Without dynamic=False, PyTorch would compile code for
        # any size as soon as another run of the session has another size.
        self.compiled: Any = torch.compile(model, dynamic=False) if self.options.compile else None
        self._compiled_sizes: set[int] = set()

    @contextlib.contextmanager
    def ready(self) -> Iterator[None]:
        """Within the block the model is in training mode and, with the option ``checkpoint``,
        recomputes its activations; afterwards it is as before.
        """
        with backend_switches.modes_kept(self.model):
            self.model.train()
            with recomputed(self.model) if self.options.checkpoint else contextlib.nullcontext():
                yield

    def to_device(self, batch: Batch) -> Batch:
        """Return the batch on the device, in the dtype and memory format that the model takes."""
        inputs, targets = batch
        where, ahead = str(self.device), self.options.pinned
        inputs = inputs.to(
            where, self.dtype if inputs.is_floating_point() else None, non_blocking=ahead
        )
        if self.memory_format is not None:
            inputs = inputs.contiguous(memory_format=self.memory_format)
        return inputs, targets.to(where, non_blocking=ahead)

    def run(self, batch: Batch, mark: Callable[[str], None]) -> Any:
        """Take one step on a batch that is on the device; return its loss, a detached scalar on the
        device.

        With ``accumulate``, the loss of each part is weighted by its share of the batch, so that
        the gradients add up to the batch's gradient.
        """
        self.optimizer.zero_grad(set_to_none=True)
        parts, items, loss = self.options.accumulate, len(batch[0]), None
        for inputs, targets in zip(*(x.tensor_split(parts) for x in batch), strict=True):
            mark("other")
            share = self._forward((inputs, targets))
            if parts > 1:
                share = share * (len(inputs) / items)
            mark("forward")
            scaled = share if self.scale == 1 else share * self.scale
            (scaled if self.scaler is None else self.scaler.scale(scaled)).backward()
            mark("backward")
            loss = share.detach() if loss is None else loss + share.detach()
        self._update()
        mark("optimizer")
        return loss

    def _forward(self, batch: Batch) -> Any:
        """Return the loss of a batch, in the run's precision."""
        # Inside another block of autocast, such as the caller's, the end of this one would keep the
        # converted weights, and the next step would compute with the weights before the update.
        torch.clear_autocast_cache()
        # Autocast's cache of converted weights must not outlive the recording of a CUDA graph.
        with torch.autocast(
            self.device.torch_type,
            dtype=self.autocast_dtype,
            enabled=self.autocast_dtype is not None,
            cache_enabled=not self.options.cuda_graph,
        ):
            return self._loss(batch)

    def _loss(self, batch: Batch) -> Any:
        if self.compiled is None:
            return self.job.loss(self.model, batch)
        if len(batch[0]) in self._compiled_sizes:
            return self.job.loss(self.compiled, batch)
        # By default PyTorch compiles eight variants of a model in a session (each for one size,
        # precision and memory format) and runs further ones uncompiled, without an error. Here it
        # compiles up to ``accumulated_recompile_limit`` (256), and then raises.
        from torch._dynamo import config

        try:
            with cast(Any, config).patch(
                recompile_limit=config.accumulated_recompile_limit,
                fail_on_recompile_limit_hit=True,
            ):
                loss = self.job.loss(self.compiled, batch)
        except Exception as error:
            # The compilers raise errors of many types. An error of the model itself is raised again
            # when the model runs uncompiled.
            self.compiled = None
            loss = self.job.loss(self.model, batch)
            failed = f"torch.compile failed ({type(error).__name__}: {message_of(error, 120)})"
            self.notes.append(Note("skipped", f"{failed}, so the model ran uncompiled."))
            return loss
        self._compiled_sizes.add(len(batch[0]))
        return loss

    def _update(self) -> None:
        """Unscale and clip the gradients, and let the optimizer change the parameters."""
        if self.scale != 1:
            for parameter in self.parameters:
                if parameter.grad is not None:
                    parameter.grad.mul_(1 / self.scale)
        if self.options.clip is not None:
            if self.scaler is not None:
                self.scaler.unscale_(self.optimizer)
            torch.nn.utils.clip_grad_norm_(self.parameters, self.options.clip)
        if self.scaler is None:
            self.optimizer.step()
        else:
            self.scaler.step(self.optimizer)
            self.scaler.update()


class Scaler(torch.amp.GradScaler):
    """A ``GradScaler`` that counts the steps it skips, and accepts float16 gradients.

    PyTorch's own refuses float16 gradients, since it expects float32 master weights. A pure float16
    run has none.
    """

    overflowed: Any = None  # a count on the device: reading it would make the host wait

    def _unscale_grads_(self, optimizer: Any, inverse: Any, found: Any, allow_fp16: bool) -> Any:
        found_by_device = super()._unscale_grads_(optimizer, inverse, found, True)
        for value in found_by_device.values():
            self.overflowed = value.clone() if self.overflowed is None else self.overflowed + value
        return found_by_device

    @property
    def skipped_steps(self) -> int:
        """The number of steps skipped because gradients had overflowed; reading it waits for the
        device.
        """
        return 0 if self.overflowed is None else int(self.overflowed)


@contextlib.contextmanager
def recomputed(model: Any) -> Iterator[None]:
    """Within the block, each direct child of the model (of a ModuleList, each member) recomputes
    its activations in the backward pass; losses and running averages stay the same.

    While a batch is recomputed, norms do not count it a second time in their running averages.
    """

    def before(norm: Any, args: Any) -> None:
        if torch._C._current_graph_task_id() != -1 and norm.track_running_stats:
            norm._gpulab_kept = norm.momentum, norm.num_batches_tracked
            norm.momentum, norm._buffers["num_batches_tracked"] = 0.0, None

    def after(norm: Any, args: Any, output: Any) -> None:
        kept = norm.__dict__.pop("_gpulab_kept", None)
        if kept is not None:
            norm.momentum, norm._buffers["num_batches_tracked"] = kept

    norms = [module for module in model.modules() if isinstance(module, _NormBase)]
    with checkpointed(model), contextlib.ExitStack() as stack:
        for norm in norms:
            stack.callback(after, norm, None, None)  # PyTorch calls no hook after an interrupt
            stack.callback(norm.register_forward_pre_hook(before).remove)
            stack.callback(norm.register_forward_hook(after, always_call=True).remove)
        yield


def explain(doing: str, error: Exception, options: Options) -> GpulabError:
    """Return an error of one sentence for an exception from inside a step. If memory ran out, it
    suggests options that take less.
    """
    ours = devices.translate(error, doing)
    if isinstance(ours, OutOfMemoryError):
        size, parts = options.batch_size, 2 * options.accumulate
        ways = [
            *([f"batch_size={size // 2}"] if size > 1 else []),
            *([f"accumulate={parts}"] if parts <= size else []),
            *([] if options.checkpoint else ["checkpoint=True"]),
            "a smaller model",
        ]
        return OutOfMemoryError(
            f"{doing}: the memory that is free does not hold it; expected it to fit. Pass "
            f"{' or '.join(ways)}, or call gl.memory.release() to free what earlier cells hold."
        )
    if ours is not None:
        return ours
    text = message_of(error)
    return InputError(
        f"{doing} raised {type(error).__name__}: {text or 'no message'}; expected a step that "
        "runs. "
        + advice(
            str(error), "Try the model on one batch by hand: task.loss(model, task.train[:8])."
        )
    )


class GraphedStep:
    """A step that runs operator by operator three times, is then recorded as a CUDA graph, and is
    replayed from then on, with one launch per step.

    The first steps are real steps of the run, and recording runs nothing, so the losses are those
    of a run without a graph.

    Parameters
    ----------
    step : Step
        Its optimizer must be capturable. Its device must be the current one while it runs.

    Attributes
    ----------
    has_failed : bool
        Whether recording failed, so that steps are launched operator by operator; a note says why.
    """

    def __init__(self, step: Step) -> None:
        self._step, self._taken, self.has_failed = step, 0, False
        self._side = cast(Any, torch.cuda.Stream)(step.device.index)
        self._graph: Any = None
        self._inputs: tuple[Any, ...] = ()
        self._loss: Any = None

    def run(self, batch: Batch, mark: Callable[[str], None]) -> Any:
        """Take one step on a batch that is on the device; return its loss, a detached scalar."""
        self._taken += 1
        if self._taken <= EAGER_STEPS:
            self._side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._side):
                loss = self._step.run(batch, mark)
            torch.cuda.current_stream().wait_stream(self._side)
            return loss
        if self._graph is None and not self.has_failed:
            self._record(batch)
        if self.has_failed:
            return self._step.run(batch, mark)
        for place, value in zip(self._inputs, batch, strict=True):
            place.copy_(value)
        mark("copy")
        self._graph.replay()
        mark("graph")
        return self._loss.clone()

    @contextlib.contextmanager
    def _recording(self, graph: Any) -> Iterator[None]:
        """Record what the block launches.

        The capture mode is "thread_local": by default a call of another thread can invalidate the
        recording, and the thread that loads ahead pins memory meanwhile.

        The stream is the step's own, since PyTorch's stream for recordings is made once, on the
        device that was current then. The stream is also entered outside the recording: the end of
        an invalid recording raises, and PyTorch then leaves the recording's stream as the current
        one. Kernels of CuPy and Numba, which run on the device's default stream, would no longer
        wait for PyTorch's work.
        """
        with (
            torch.cuda.stream(self._side),
            torch.cuda.graph(graph, stream=self._side, capture_error_mode="thread_local"),
        ):
            yield

    def _record(self, batch: Batch) -> None:
        self._inputs = tuple(x.clone() for x in batch)
        self._step.optimizer.zero_grad(set_to_none=True)
        graph = torch.cuda.CUDAGraph()
        try:
            with self._recording(graph):
                self._loss = self._step.run((self._inputs[0], self._inputs[1]), lambda phase: None)
            self._graph = graph
        except Exception as error:
            # such as an operator that waits for the device, or an optimizer that is not capturable
            self.has_failed = True
            torch.cuda.synchronize()
            self._step.optimizer.zero_grad(set_to_none=True)
            # the error at the end of an invalid recording says only that something invalidated it
            # (cudaErrorStreamCaptureInvalidated); the error before it is the cause
            cause = error.__context__
            invalidated = "previous error during capture" in str(error)
            first = cause if isinstance(cause, Exception) and invalidated else error
            self._step.notes.append(
                Note(
                    "skipped",
                    f"the step could not be recorded as a CUDA graph ({message_of(first, 120)}), "
                    "so it was launched operator by operator.",
                )
            )
            if first is not error:
                _invalid_graphs.append(graph)
                # Record a graph that is never replayed. In some versions of PyTorch an invalid
                # recording holds CUDA's random generator until a later recording succeeds, and
                # until then dropout and the replay of every other graph raise ("Offset increment
                # outside graph capture"). If this does not help, the next step that needs the
                # generator reports it.
                with contextlib.suppress(RuntimeError), self._recording(torch.cuda.CUDAGraph()):
                    self._inputs[0].zero_()
