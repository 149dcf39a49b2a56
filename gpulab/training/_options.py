"""Check the options of a run, and which of them this device lacks, before it is built."""

from __future__ import annotations

import inspect
import os
import shutil
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from gpulab import _given, devices
from gpulab.errors import InputError, shown
from gpulab.evidence import Note
from gpulab.training.data_tasks import Task, check_seed
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


class Settled(NamedTuple):
    """Options that this device can follow, with a note on each that it cannot."""

    options: Options
    device: devices.Device
    make_optimizer: Callable[[Any], Any]
    notes: list[Note]


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


def _check_precision(precision: Any) -> None:
    """Refuse what is no precision; a format that nothing trains in is explained, with the next
    best.
    """
    word = precision.lower() if isinstance(precision, str) else ""
    expected = f"expected one of: {', '.join(PRECISIONS)}"
    if word.startswith(("float8", "fp8", "float4", "fp4")):
        raise InputError(
            f"fit: precision is {shown(precision)}; {expected}. PyTorch multiplies so few bits "
            "only on some GPUs (8 bits from compute capability 8.9 on), with a scale for each "
            "tensor that another library keeps. Pass 'bfloat16', the next best; "
            "gl.precision.matmul_error shows what 8 bits lose."
        )
    if word.startswith(("int", "uint")):
        raise InputError(
            f"fit: precision is {shown(precision)}; {expected}. Integers have no gradients. Pass "
            "model=gl.compression."
            "quantize_aware(model), which rounds the weights to few bits while it trains."
        )
    if word in _OTHER_NAMES and precision not in PRECISIONS:
        raise InputError(
            f"fit: precision is {shown(precision)}; {expected}. Pass {_OTHER_NAMES[word]!r}."
        )
    _given.word("fit", "precision", precision, PRECISIONS)


def settle(
    job: Task,
    *,
    device: Any = None,
    precision: Any = "float32",
    batch_size: Any = None,
    epochs: Any = None,
    steps: Any = None,
    learning_rate: Any = None,
    optimizer: Any = "adam",
    accumulate: Any = 1,
    checkpoint: Any = False,
    compile: Any = False,
    channels_last: Any = False,
    fused: Any = None,
    workers: Any = 0,
    prefetch: Any = 0,
    pinned: Any = False,
    cuda_graph: Any = False,
    loss_scale: Any = None,
    clip: Any = None,
    loading: Any = "batches",
    read_loss: Any = False,
    autotune: Any = False,
    seed: Any = 0,
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
    switches = {
        "checkpoint": checkpoint,
        "compile": compile,
        "channels_last": channels_last,
        "pinned": pinned,
        "cuda_graph": cuda_graph,
        "read_loss": read_loss,
        "autotune": autotune,
    }
    switches |= {} if fused is None else {"fused": fused}
    values: dict[str, Any] = {
        "fused": None,
        **{name: _given.flag("fit", name, value) for name, value in switches.items()},
    }
    items = len(job.train)
    size = job.batch_size if batch_size is None else _whole("batch_size", batch_size, 1, items)
    parts = _whole("accumulate", accumulate, 1, size)
    if epochs is not None and steps is not None:
        raise InputError(
            f"fit: both epochs={shown(epochs)} and steps={shown(steps)} were given; expected one "
            "of them. Leave one out."
        )
    an_epoch = items // size
    if steps is None:
        most = _MOST_STEPS // an_epoch
        steps = an_epoch * (job.epochs if epochs is None else _whole("epochs", epochs, 1, most))
    else:
        steps = _whole("steps", steps, 1, _MOST_STEPS)
    values |= {
        "precision": precision,
        "batch_size": size,
        "accumulate": parts,
        "steps": steps,
        "learning_rate": job.learning_rate
        if learning_rate is None
        else _positive("learning_rate", learning_rate, "1e-3"),
        "loss_scale": _scale(loss_scale, precision),
        "loading": _given.word("fit", "loading", loading, LOADINGS),
        "workers": _whole("workers", workers, 0, _MOST_WORKERS),
        "prefetch": _whole("prefetch", prefetch, 0, 1000),
        "clip": None if clip is None else _positive("clip", clip, "1.0"),
        "seed": seed,
    }
    notes = _without_what_is_missing(values, where, job)
    values["optimizer"], make = _optimizer(optimizer, learning_rate, values, notes)
    return Settled(Options(**values), where, make, notes)


def _scale(scale: Any, precision: str) -> str | float | None:
    if scale is None:
        return "dynamic" if precision in SCALED else None
    if isinstance(scale, str):
        return _given.word("fit", "loss_scale", scale, ("dynamic",))
    value = _positive("loss_scale", scale, "1024")
    return None if value == 1 else value


def _without_what_is_missing(
    values: dict[str, Any], where: devices.Device, job: Task
) -> list[Note]:
    """Take out what this device does not have; return notes that say what runs in its place."""
    is_cuda, is_resident = where.kind == "cuda", values["loading"] == "resident"
    has_compiler = (
        not where.is_cpu
        or os.environ.get("CXX")
        or any(map(shutil.which, ("g++", "clang++", "cl")))
    )
    # option, what takes its place, whether it is missing here, what the note says
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
            f"pinned memory serves copies to a CUDA device; on {where} nothing is copied, so "
            "memory stayed pageable.",
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
            "workers",
            0,
            is_resident,
            "the data is on the device already, so no workers were started.",
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
            f"cuDNN runs on NVIDIA GPUs; {where.name} has other convolutions, so nothing was "
            "tuned.",
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
            "so the model ran as it is.",
        ),
    )
    found = [row for row in missing if row[2] and values[row[0]]]
    values.update({name: instead for name, instead, *_ in found})
    return [Note("skipped", sentence) for *_, sentence in found]


def _optimizer(
    optimizer: Any, learning_rate: Any, values: dict[str, Any], notes: list[Note]
) -> tuple[str, Callable[[Any], Any]]:
    """Return the optimizer's name and a function from parameters to it."""
    import torch

    if optimizer is None or isinstance(optimizer, torch.optim.Optimizer):
        raise InputError(
            f"fit: optimizer is {shown(optimizer)}; expected a name such as 'adam', or a function "
            "from parameters to an optimizer. Pass optimizer=lambda parameters: "
            "torch.optim.Adam(parameters, lr=1e-3)."
        )
    if not isinstance(optimizer, str):
        if not callable(optimizer):
            raise InputError(
                f"fit: optimizer is {shown(optimizer)}; expected a name or a function. Pass 'adam'."
            )
        if learning_rate is not None or values["fused"] is not None:
            raise InputError(
                "fit: the optimizer is a function, so it decides learning_rate and fused itself; "
                "expected neither. Leave them out."
            )
        name = str(getattr(optimizer, "__name__", "optimizer"))
        return name.replace("<lambda>", "own optimizer"), optimizer
    known = {
        name.lower(): kind
        for name in torch.optim.__all__
        if name not in _NO_GRADIENT_KINDS
        and isinstance(kind := getattr(torch.optim, name), type)
        and issubclass(kind, torch.optim.Optimizer)
    }
    word = _given.word("fit", "optimizer", optimizer.lower(), [*sorted(known), "sgd-momentum"])
    kind = torch.optim.SGD if word == "sgd-momentum" else known[word]
    takes = inspect.signature(kind).parameters
    arguments: dict[str, Any] = {"lr": values["learning_rate"]}
    if word == "sgd-momentum":
        arguments["momentum"] = 0.9
    if values["fused"] and "fused" not in takes:
        sentence = f"{kind.__name__} has no fused form in PyTorch, so its default form was used."
        notes.append(Note("skipped", sentence))
        values["fused"] = None
    if values["fused"]:
        arguments["fused"] = True
    elif values["fused"] is False:
        arguments |= {name: False for name in ("fused", "foreach") if name in takes}
    if values["cuda_graph"] and "capturable" in takes:
        arguments["capturable"] = True
    return word, lambda parameters: kind(parameters, **arguments)
