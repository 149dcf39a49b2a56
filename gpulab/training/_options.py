"""Check what a run was told to do, and say what of it this device does not have, before anything is
built.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gpulab import _given, devices
from gpulab.errors import InputError, shown
from gpulab.evidence import Note
from gpulab.training._tasks import Task, check_seed
from gpulab.training.results import Options

# Name -> (dtype of autocast or None, dtype of the parameters or None). "float16" and "pure-float16"
# need loss scaling.
PRECISIONS: Mapping[str, tuple[str | None, str | None]] = {
    "float32": (None, None),
    "tf32": (None, None),
    "bfloat16": ("bfloat16", None),
    "float16": ("float16", None),
    "pure-bfloat16": (None, "bfloat16"),
    "pure-float16": (None, "float16"),
}
SCALED = ("float16", "pure-float16")
LOADINGS = ("items", "batches", "resident")
_OTHER_NAMES = {
    "fp32": "float32",
    "float": "float32",
    "float64": "float32",
    "double": "float32",
    "fp16": "float16",
    "half": "float16",
    "bf16": "bfloat16",
    "pure-fp16": "pure-float16",
    "pure-bf16": "pure-bfloat16",
    **{name: name for name in PRECISIONS},
}
_MOST_STEPS = 1_000_000
_MOST_WORKERS = 64
# the loop gives neither a closure nor sparse gradients
_NO_GRADIENT_KINDS = ("Optimizer", "LBFGS", "SparseAdam")


@dataclass
class Settled:
    """Options that this device can follow, with a note on each that it cannot."""

    options: Options
    device: devices.Device
    make_optimizer: Callable[[Any], Any]
    notes: list[Note] = field(default_factory=list)


def _whole(name: str, value: Any, least: int, most: int) -> int:
    if not _given.is_whole(value) or not least <= value <= most:
        raise InputError(
            f"fit: {name} is {shown(value)}; expected a whole number from {least:,} to {most:,}. "
            f"Pass {name}={max(least, 1)}."
        )
    return int(value)


def _positive(name: str, value: Any, example: str) -> float:
    if not _given.is_finite(value) or not value > 0:
        raise InputError(
            f"fit: {name} is {shown(value)}; expected a finite number above 0. Pass "
            f"{name}={example}."
        )
    return float(value)


def _check_precision(given: Any) -> None:
    """Refuse what is no precision; a format that nothing trains in is explained, with the next
    best.
    """
    word = given.lower() if isinstance(given, str) else ""
    expected = f"expected one of: {', '.join(PRECISIONS)}"
    if word.startswith(("float8", "fp8", "float4", "fp4")):
        raise InputError(
            f"fit: precision is {shown(given)}; {expected}. PyTorch multiplies so few bits only on "
            "some GPUs (8 bits from compute "
            "capability 8.9 on), with a scale for each tensor that another library keeps. Pass "
            "'bfloat16', the next best; "
            "gl.precision.matmul_error shows what 8 bits lose."
        )
    if word.startswith(("int", "uint")):
        raise InputError(
            f"fit: precision is {shown(given)}; {expected}. Integers have no gradients. Pass "
            "model=gl.compression."
            "quantize_aware(model), which rounds the weights to few bits while it trains."
        )
    if word in _OTHER_NAMES and given not in PRECISIONS:
        raise InputError(
            f"fit: precision is {shown(given)}; {expected}. Pass {_OTHER_NAMES[word]!r}."
        )
    _given.word("fit", "precision", given, PRECISIONS)


def settle(
    job: Task,
    *,
    device: Any,
    precision: Any,
    batch_size: Any,
    epochs: Any,
    steps: Any,
    learning_rate: Any,
    optimizer: Any,
    accumulate: Any,
    checkpoint: Any,
    compile: Any,
    channels_last: Any,
    fused: Any,
    workers: Any,
    prefetch: Any,
    pinned: Any,
    cuda_graph: Any,
    loss_scale: Any,
    clip: Any,
    loading: Any,
    read_loss: Any,
    autotune: Any,
    seed: Any,
) -> Settled:
    """Return the options that a run will follow.

    Raises
    ------
    InputError
        If no device supports a value.
    DeviceError
        If this machine has no such device.
    """
    _check_precision(precision)
    seed = check_seed("fit", seed)
    where = devices.find(device)
    for name, value in {
        "checkpoint": checkpoint,
        "compile": compile,
        "channels_last": channels_last,
        "pinned": pinned,
        "cuda_graph": cuda_graph,
        "read_loss": read_loss,
        "autotune": autotune,
    }.items():
        _given.flag("fit", name, value)
    if fused is not None:
        _given.flag("fit", "fused", fused)
    items = len(job.train)
    size = job.batch_size if batch_size is None else _whole("batch_size", batch_size, 1, items)
    parts = _whole("accumulate", accumulate, 1, size)
    if epochs is not None and steps is not None:
        raise InputError(
            f"fit: both epochs={shown(epochs)} and steps={shown(steps)} were given; expected one "
            "of them. Leave one out."
        )
    an_epoch = items // size
    count = (
        _whole("steps", steps, 1, _MOST_STEPS)
        if steps is not None
        else an_epoch
        * (job.epochs if epochs is None else _whole("epochs", epochs, 1, _MOST_STEPS // an_epoch))
    )
    rate = (
        job.learning_rate
        if learning_rate is None
        else _positive("learning_rate", learning_rate, "1e-3")
    )
    scale = _scale(loss_scale, precision)
    _given.word("fit", "loading", loading, LOADINGS)
    settled = Settled(
        Options(
            precision=precision,
            batch_size=size,
            steps=count,
            learning_rate=rate,
            optimizer="",
            accumulate=parts,
            checkpoint=bool(checkpoint),
            compile=bool(compile),
            channels_last=bool(channels_last),
            fused=None if fused is None else bool(fused),
            workers=_whole("workers", workers, 0, _MOST_WORKERS),
            prefetch=_whole("prefetch", prefetch, 0, 1000),
            pinned=bool(pinned),
            cuda_graph=bool(cuda_graph),
            loss_scale=scale,
            clip=None if clip is None else _positive("clip", clip, "1.0"),
            seed=seed,
            loading=loading,
            read_loss=bool(read_loss),
            autotune=bool(autotune),
        ),
        where,
        lambda parameters: None,
    )
    _without_what_is_missing(settled, job)
    name, settled.make_optimizer = _optimizer(optimizer, learning_rate, settled)
    _change(settled, optimizer=name)
    return settled


def _scale(given: Any, precision: str) -> str | float | None:
    if given is None:
        return "dynamic" if precision in SCALED else None
    if isinstance(given, str):
        return _given.word("fit", "loss_scale", given, ("dynamic",))
    value = _positive("loss_scale", given, "1024")
    return None if value == 1 else value


def _change(settled: Settled, **values: Any) -> None:
    import dataclasses

    settled.options = dataclasses.replace(settled.options, **values)


def _without_what_is_missing(settled: Settled, job: Task) -> None:
    """Take out what this device does not have, with a note that says what runs in its place."""
    options, where = settled.options, settled.device

    def drop(sentence: str, **values: Any) -> None:
        settled.notes.append(Note("skipped", sentence))
        _change(settled, **values)

    if options.precision == "tf32" and not where.has_tf32:
        drop(
            f"{where.name} has no TF32 (NVIDIA GPUs have it from compute capability 8.0), so the "
            "products ran in float32.",
            precision="float32",
        )
    if options.pinned and where.torch_type != "cuda":
        drop(
            f"pinned memory serves copies to a CUDA device; on {where} nothing is copied, so "
            "memory stayed pageable.",
            pinned=False,
        )
    if options.cuda_graph and where.kind != "cuda":
        drop(
            f"{where} has no CUDA graphs, so each step was launched operator by operator.",
            cuda_graph=False,
        )
    if options.cuda_graph and where.kind == "cuda" and options.loss_scale == "dynamic":
        drop(
            "dynamic loss scaling reads on the host whether gradients overflowed, which a CUDA "
            "graph cannot do, so each step was launched "
            'operator by operator. Pass precision="bfloat16" or a fixed loss_scale.',
            cuda_graph=False,
        )
    if options.loading == "resident" and options.workers:
        drop("the data is on the device already, so no workers were started.", workers=0)
    if options.loading == "resident" and options.pinned:
        drop("the data is on the device already, so nothing was pinned.", pinned=False)
    if options.autotune and where.kind != "cuda":
        drop(
            f"cuDNN runs on NVIDIA GPUs; {where.name} has other convolutions, so nothing was tuned.",
            autotune=False,
        )
    if options.channels_last and job.train.inputs.dim() != 4:
        drop(
            f"{job.name} has no images, so there are no channels to put last.", channels_last=False
        )
    if (
        options.compile
        and where.is_cpu
        and not os.environ.get("CXX")
        and not any(map(shutil.which, ("g++", "clang++", "cl")))
    ):
        drop(
            "torch.compile needs a C++ compiler (g++ or clang++) for the CPU; none is on the PATH, "
            "so the model ran as it is.",
            compile=False,
        )


def _optimizer(
    given: Any, learning_rate: Any, settled: Settled
) -> tuple[str, Callable[[Any], Any]]:
    """Return the optimizer's name and a function from parameters to it."""
    import torch

    options = settled.options
    if given is None or isinstance(given, torch.optim.Optimizer):
        raise InputError(
            f"fit: optimizer is {shown(given)}; expected a name such as 'adam', or a function from "
            "parameters to an optimizer. "
            "Pass optimizer=lambda parameters: torch.optim.Adam(parameters, lr=1e-3)."
        )
    if not isinstance(given, str):
        if not callable(given):
            raise InputError(
                f"fit: optimizer is {shown(given)}; expected a name or a function. Pass 'adam'."
            )
        if learning_rate is not None or options.fused is not None:
            raise InputError(
                "fit: the optimizer is a function, so it decides learning_rate and fused itself; "
                "expected neither. Leave them out."
            )
        return str(getattr(given, "__name__", "optimizer")).replace(
            "<lambda>", "own optimizer"
        ), given
    known = {
        name.lower(): getattr(torch.optim, name)
        for name in torch.optim.__all__
        if name not in _NO_GRADIENT_KINDS
    }
    known = {
        name: kind
        for name, kind in known.items()
        if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer)
    }
    word = _given.word("fit", "optimizer", given.lower(), [*sorted(known), "sgd-momentum"])
    kind = torch.optim.SGD if word == "sgd-momentum" else known[word]
    values: dict[str, Any] = {"momentum": 0.9} if word == "sgd-momentum" else {}
    values |= {"lr": options.learning_rate, **_flavour(kind, settled)}
    return word, lambda parameters: kind(parameters, **values)


def _flavour(kind: Any, settled: Settled) -> dict[str, Any]:
    """Return the arguments for a fused step, or for one that a CUDA graph can hold."""
    import inspect

    takes = inspect.signature(kind).parameters
    options = settled.options
    values: dict[str, Any] = {}
    if options.fused is True and "fused" not in takes:
        settled.notes.append(
            Note(
                "skipped",
                f"{kind.__name__} has no fused form in PyTorch, so its default form was used.",
            )
        )
        _change(settled, fused=None)
    elif options.fused is True:
        values["fused"] = True
    elif options.fused is False:
        values |= {name: False for name in ("fused", "foreach") if name in takes}
    if options.cuda_graph and "capturable" in takes:
        values["capturable"] = True
    return values
