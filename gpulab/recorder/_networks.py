"""Networks: lighter layers (notebook 07), feeding an accelerator (06), a training step in each
precision and with each technique (05, 06), the speed-up ladder (09), attention and a decoder (11),
and tips from tuning guides.

Times do not depend on the content of the data: what a network learns is not recorded.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib.util
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from gpulab import compression, networks, training
from gpulab.compression import compressed_layers
from gpulab.devices import Device
from gpulab.errors import InputError
from gpulab.models import LANGUAGE_MODELS, LanguageModel
from gpulab.recorder._experiments import (
    FIRST,
    LAST,
    SECOND,
    THIRD,
    Case,
    Work,
    refuse_long,
    timed,
)
from gpulab.recorder._rates import captured
from gpulab.training import Data, Task, Technique, pipelines
from gpulab.training.speedup_ladder import ALONE, EXPERIMENT, SCRIPT, UP_TO, WITHOUT

_Mode = Callable[[], contextlib.AbstractContextManager[Any]]  # such as torch.no_grad
# Shares of the budget for a case whose calls are long, such as ten steps: an interval needs twenty
# calls.
_SHARES = 4

# Lighter layers: large enough for an accelerator to be busy with arithmetic.
_FEATURES, _ROWS = 4096, 4096
_CPU_FEATURES, _CPU_ROWS = 1024, 64
_ZEROS = (0.5, 0.9, 0.98)
_TWO_FOUR = ("CUTLASS", "cuSPARSELt")
# torchao's weights of fewer bits; the last form also computes in int8
_SHORTER = ("int8", "int4", "float8", "int8 with int8 inputs")
# What torchao recommends for compiling them. It would set these for the whole process, so that all
# later cases would be compiled with them, too.
_TUNED: Any = {
    "coordinate_descent_tuning": True,
    "coordinate_descent_check_all_directions": True,
    "force_fuse_int_mm_with_mul": True,
}
_CHANNELS, _SIDE, _BATCH = 128, 56, 64
_CPU_SIDE, _CPU_BATCH = 16, 8

# The pipeline's images.
_JPEG_BATCH, _JPEG_SIZE = 32, 128
_WORKERS = (0, 1, 2, 4, 8)
_ENDLESS = 1_000_000  # more batches or steps than any deadline allows
# Batches that workers load arrive in bursts, so a call takes several: the median of single ones is
# not the pace. This number holds whole rounds of the workers, and all batches that eight prefetch.
_LOOP_STEPS, _STEPS_BEHIND = 50, 16

# Training.
_PRECISIONS = ("float32", "tf32", "bfloat16", "float16", "pure-bfloat16")
# Name -> the options of ``training.fit`` besides the precision.
_TECHNIQUES: Mapping[str, dict[str, Any]] = {
    "plain": {},
    "fused": {"fused": True},
    "not fused": {"fused": False},
    "channels_last": {"channels_last": True},
    "compile": {"compile": True},
    "graph": {"cuda_graph": True},
    "pinned": {"pinned": True},
    "prefetch": {"prefetch": 2, "pinned": True},
    "checkpoint": {"checkpoint": True},
}
# steps before the first sample: compilation, a graph's recording, the optimizer's state
_CPU_STEPS_BEFORE, _GPU_STEPS_BEFORE = 2, 6
# A longer step is refused: on a CPU whose convolutions are slow in bfloat16 a step takes a minute.
# The estimate from a sixteenth of the batch is up to three times too long (11 s for 3.6 s on a busy
# machine), so the limit is high enough that every refused step is indeed slow.
_LONGEST_STEP_SECONDS, _SMALL_SHARE = 20.0, 16
_GPU_STEPS_A_CALL = 10  # waiting after each step would time the waiting
# The ladder's sizes: those of the course fit digits on a CPU. On an H200 the launches of a step of
# width 64 and batch 32 take longer than its arithmetic; these sizes have 16 times the arithmetic.
_START_BATCH, _LARGE_BATCH, _LADDER_WIDTH, _LADDER_STEPS = 128, 512, 128, 2

# Attention: the total number of positions in a batch is the same for all lengths, as in the
# FlashAttention papers.
_HEADS, _SIZE, _POSITIONS, _LENGTHS = 16, 128, 16_384, (512, 2048, 8192)
_CPU_HEADS, _CPU_SIZE, _CPU_POSITIONS, _CPU_LENGTHS = 4, 32, 2048, (256, 1024)
_KERNELS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
}
# Generation: a model of a real size with random weights (its speed does not depend on their
# values), and a small one for a CPU.
_SHAPE = LANGUAGE_MODELS["Llama 3.2 1B"]
_CPU_SHAPE = LanguageModel("small decoder", 4, 256, 8, 2, 32, 1024, 1024)
_LENGTH, _CPU_LENGTH = 2048, 128
# Serving in batches: the numbers of tokens of 64 answers, exponentially distributed as in the
# published test of continuous batching, with a mean of 8 to keep the test short, in a mixed order.
_SLOTS = 8
_ANSWERS = [max(1, round(-8 * math.log(1 - (29 * k % 64 + 0.5) / 64))) for k in range(64)]

# Tips.
_TIP_ROWS, _TIP_WIDTH, _TIP_LAYERS = 256, 256, 24
_ELEMENTS = 2**22
_TIP_CPU_BATCH, _TIP_BATCH, _TIP_CHANNELS, _TIP_SIDE = 8, 64, 64, 32


def layers(device: Device) -> Iterable[Case]:
    """Linear layers, dense, CSR, 2:4 and 8-bit; and a convolution by number of groups."""
    if device.torch_type == "mps":  # PyTorch has neither CSR nor 8-bit kernels there
        return
    is_cpu, dense = device.is_cpu, compression.finish
    has_torchao = importlib.util.find_spec("torchao") is not None
    floats = "float32" if is_cpu else "bfloat16"
    # Whether the forms can run here, and each form: its name, its dtype, the function that makes it
    # from the dense layer, its share of zeros, its rank and its rows.
    asked: list[tuple[bool, list[tuple[Any, ...]]]] = [
        (is_cpu, [("dense", "float32", dense)]),
        (not is_cpu, [("dense", dtype, dense) for dtype in ("float16", "bfloat16")]),
        (True, [("csr", "float32", _pruned(z), z, THIRD if z < 0.9 else SECOND) for z in _ZEROS]),
        # One input at a time, as on a phone: a product of a matrix and a vector, whose time is that
        # of reading the weights.
        (True, [("dense", "float32", dense, 0.0, THIRD, 1)]),
        (True, [("csr", "float32", _pruned(0.9), 0.9, THIRD, 1)]),
        (not is_cpu, [("dense", "float32", dense, 0.0, THIRD)]),
        (
            not is_cpu and not compressed_layers.two_four_refusal(device),
            [
                (f"2:4 by {library}", "float16", functools.partial(_two_four, library), 0.5)
                for library in _TWO_FOUR
            ],
        ),
        (True, [("8-bit weights in float", "float32", compression.quantize, 0.0, THIRD)]),
        (
            is_cpu and not compressed_layers.refusal(device),
            [("8-bit kernels", "float32", _quantized("dynamic", "integer"))],
        ),
        (
            has_torchao,
            [
                (f"torchao, 8-bit weights{more}", floats, _quantized(inputs, "torchao"), 0.0, THIRD)
                for more, inputs in (("", None), (" and inputs", "dynamic"))
            ],
        ),
        # compiled, as torchao is meant to be used; with one row, reading the weights dominates
        (
            has_torchao and device.torch_type == "cuda",
            [
                (f"{weights or 'dense'}, compiled", "bfloat16", _compiled(weights), 0.0, THIRD, n)
                for weights in (None, *_SHORTER)
                for n in (_ROWS, 1)
            ],
        ),
    ]
    for runs, forms in asked:
        for form in forms if runs else ():
            yield _linear(device, *form)
    yield from _convolutions(device)


def _convolutions(device: Device) -> Iterable[Case]:
    side, batch = (_CPU_SIDE, _CPU_BATCH) if device.is_cpu else (_SIDE, _BATCH)
    for groups in (1, 4, 32, _CHANNELS):
        params = {
            "layer": "convolution",
            "form": "dense",
            "groups": groups,
            "dtype": "float32",
            "n": _CHANNELS,
            "side": side,
            "batch": batch,
        }
        rank = SECOND if groups in (1, _CHANNELS) else THIRD
        for tf32 in ("off", "allowed") if device.kind == "cuda" else (None,):
            named = params if tf32 is None else {**params, "tf32": tf32}
            yield timed(device, named, rank, _convolution, groups, side, batch, tf32)


def _pruned(zeros: float) -> Callable[[Any], Any]:
    return lambda layer: compression.to_sparse(compression.prune(layer, zeros))


def _two_four(library: str, layer: Any) -> Any:
    sparse = torch.sparse.SparseSemiStructuredTensor  # PyTorch has no public option for this
    with mock.patch.object(sparse, "_FORCE_CUTLASS", library == "CUTLASS"):
        return compression.to_sparse(compression.prune(layer, pattern="2:4"), "2:4")


def _compiled(weights: str | None) -> Callable[[Any], Any]:
    return lambda layer: (
        torch.compile(layer)
        if weights is None
        else torch.compile(_shorten(layer, weights), options=_TUNED)
    )


def _quantized(activations: str | None, arithmetic: str) -> Callable[[Any], Any]:
    return lambda layer: compression.quantize(
        layer, "per-channel", activations, arithmetic=arithmetic
    )


def _linear(
    device: Device,
    form: str,
    dtype: str,
    make: Callable[[Any], Any],
    zeros: float = 0.0,
    rank: int = SECOND,
    rows: int | None = None,
) -> Case:
    """One linear layer in one form; ``make`` turns the dense layer into it, on the device."""
    n, usual_rows = (_CPU_FEATURES, _CPU_ROWS) if device.is_cpu else (_FEATURES, _ROWS)
    count = rows or usual_rows

    def prepare(device: Device) -> Work:
        torch.manual_seed(0)
        dense = torch.nn.Sequential(torch.nn.Linear(n, n)).to(str(device), getattr(torch, dtype))
        model = make(dense.eval())
        x = torch.randn(count, n).to(str(device), getattr(torch, dtype))
        return Work(
            torch.no_grad()(functools.partial(model)),
            (x,),
            2.0 * count * n**2 if form == "dense" else None,
        )

    params = {"layer": "linear", "form": form, "zeros": zeros, "dtype": dtype, "n": n}
    return timed(device, {**params, "rows": count}, rank, prepare)


def _convolution(device: Device, groups: int, side: int, batch: int, tf32: str | None) -> Work:
    torch.manual_seed(0)
    layer = torch.nn.Conv2d(_CHANNELS, _CHANNELS, 3, padding=1, groups=groups, bias=False)
    x = torch.randn(batch, _CHANNELS, side, side).to(str(device))
    flops = 2.0 * batch * side**2 * _CHANNELS * (_CHANNELS // groups) * 9
    if tf32 is not None:
        convolutions: Any = torch.backends.cudnn.conv  # type: ignore[attr-defined]
        convolutions.fp32_precision = "tf32" if tf32 == "allowed" else "ieee"
    return Work(torch.no_grad()(functools.partial(layer.to(str(device)).eval())), (x,), flops)


def pipeline(device: Device) -> Iterable[Case]:
    """Decoding JPEG files, steps behind workers, and what reading the loss in each step costs."""
    for reads in (True, False):
        params = {"part": "loop", "reads_loss": int(reads), "steps": _LOOP_STEPS}
        yield timed(device, params, SECOND, _loop, reads, shares=_SHARES)
    if importlib.util.find_spec("PIL") is None:  # a bare machine may have no Pillow
        return
    common = {"batch": _JPEG_BATCH, "size": _JPEG_SIZE}
    yield timed(Device("cpu"), {"part": "decode", **common}, SECOND, _decode)
    # on other accelerators no step is taken: the time to take a batch would pass for that of a step
    if device.is_cpu or device.torch_type == "cuda":
        for workers in _WORKERS:
            params = {"part": "step", "workers": workers, "steps": _STEPS_BEHIND, **common}
            yield timed(
                device,
                params,
                SECOND if workers in (0, 4) else THIRD,
                _step_behind,
                workers,
                shares=2 * _SHARES,  # on a GPU without workers a call takes nearly a second
            )


def _loop(device: Device, reads: bool) -> Work:
    torch.manual_seed(0)
    model = networks.mlp(64, 256, 10).to(str(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x = torch.randn(64, 64).to(str(device))
    y = torch.randint(0, 10, (64,)).to(str(device))

    def run() -> Any:
        total: Any = 0.0
        for _ in range(_LOOP_STEPS):
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(x), y)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            total = total + (loss.item() if reads else loss.detach())
        return total

    return Work(run)


def _batches() -> pipelines.BatchSet:
    return pipelines.BatchSet(_JPEG_BATCH, _JPEG_SIZE, _ENDLESS)


def _decode(device: Device) -> Work:
    numbers, batches = iter(range(_ENDLESS)), _batches()
    return Work(lambda: batches[next(numbers)])


def _step_behind(device: Device, workers: int) -> Work:
    """Return some steps of the loop, including their loading. On a CPU they only take a batch each,
    since training would compete with the workers for the cores.
    """
    live = device.torch_type == "cuda"
    accelerator = (
        pipelines.LiveAccelerator(device, _JPEG_BATCH, _JPEG_SIZE, pinned=True) if live else None
    )
    setting = contextlib.ExitStack()
    batches = setting.enter_context(pipelines.loader(_batches(), workers, 2, live))

    def run() -> None:
        for batch in itertools.islice(batches, _STEPS_BEHIND):
            if accelerator is not None:
                accelerator.step(batch)

    return Work(run, setting=setting)


def _noise_images(width: int = 64) -> Task:
    """Return a task of color images with a network that fills a GPU better than the digits do."""
    generator = torch.Generator().manual_seed(0)
    data = Data(
        torch.randn(2048, 3, 32, 32, generator=generator),
        torch.randint(10, (2048,), generator=generator),
    )
    return Task(
        "noise-cnn",
        "a convolutional network on random images of 32x32 pixels",
        "images",
        "classes",
        256,
        1,
        1e-3,
        lambda: (data, data),
        lambda: networks.cnn(3, 10, width=width, stages=3),
    )


def _wide_prose() -> Task:
    """Return the task of the prose with a transformer four times as wide and twice as deep."""
    small = training.task("prose-transformer")
    letters = int(small.train.inputs.max()) + 1
    return Task(
        "prose-wide",
        "a transformer of width 256 and four layers on the prose",
        "windows",
        "characters",
        64,
        1,
        1e-3,
        lambda: (small.train, small.test),
        lambda: networks.transformer(letters, width=256, heads=8, layers=4, context=64),
    )


_TASKS = {"cnn": _noise_images, "transformer": _wide_prose}


def training_steps(device: Device) -> Iterable[Case]:
    """Each precision, then each technique alone in float32 and bfloat16."""
    steps, shares = (1, 1) if device.is_cpu else (_GPU_STEPS_A_CALL, _SHARES)
    for model, technique, precision in itertools.product(_TASKS, _TECHNIQUES, _PRECISIONS):
        plain, usual = technique == "plain", precision in ("float32", "bfloat16")
        wanted = (plain or usual) and (technique != "channels_last" or model == "cnn")
        if wanted and _runs(device, precision, technique):
            usual_rank = SECOND if plain or precision == "bfloat16" else THIRD
            rank = FIRST if plain and usual else usual_rank
            # recordings call a technique "means"
            params = {"model": model, "precision": precision, "means": technique, "steps": steps}
            work = (model, precision, technique, steps)
            yield timed(device, params, rank, _training, *work, shares=shares)


def _runs(device: Device, precision: str, technique: str) -> bool:
    """Return whether the device supports the precision and the technique, so that nothing is
    recorded under the name of something else.
    """
    if precision == "tf32" and device.kind != "cuda":
        return False
    # float16 is slow on a CPU, and its loss scaler reads on the host, which a graph cannot include
    if precision == "float16" and (device.is_cpu or technique == "graph"):
        return False
    return device.kind == "cuda" or technique not in ("graph", "pinned", "prefetch")


def _training(device: Device, model: str, precision: str, technique: str, steps: int) -> Work:
    task, who = _TASKS[model](), f"training, {model}, {precision}, {technique}"
    if device.is_cpu:
        small_batch = max(1, task.batch_size // _SMALL_SHARE)
        small = training.Run(
            task, device=device, precision=precision, steps=_ENDLESS, batch_size=small_batch
        )
        small.parts_every = 0
        with contextlib.closing(small):
            refuse_long(
                who,
                lambda: small.advance(1),
                _SMALL_SHARE,
                what="step",
                longest_seconds=_LONGEST_STEP_SECONDS,
            )
    options = {"precision": precision, **_TECHNIQUES[technique]}
    return _steps(device, task, who, options, steps)


def _steps(device: Device, task: Task, who: str, options: Mapping[str, Any], steps: int) -> Work:
    """Return ``steps`` steps of a warmed-up training run, between two synchronizations."""
    run = training.Run(task, device=device, steps=_ENDLESS, **options)
    run.parts_every = 0
    run.advance(_CPU_STEPS_BEFORE if device.is_cpu else _GPU_STEPS_BEFORE)
    return Work(run.advance, (steps,), setting=_judged(run, who))


@contextlib.contextmanager
def _judged(run: Any, who: str) -> Iterator[None]:
    """Close a training run after it was timed; raise if it diverged or did not run as requested."""
    with contextlib.closing(run):
        yield
        if run.is_over:  # further calls would have returned at once
            raise InputError(
                f"{who}: the loss was not finite at step {len(run.losses)}; expected a finite loss."
            )
        missing = [
            note.sentence
            for note in run.notes
            # the data of a form may be on the device already, with nothing left to pin
            if note.code == "skipped" and "was pinned" not in note.sentence
        ]
        if missing:  # never record one thing under the name of another
            raise InputError(f"{who}: {missing[0]} Expected it to run as requested.")


def speedup_ladder(device: Device) -> Iterable[Case]:
    """A beginner's script, each technique alone and added to those before it, then all but one.
    Each form is a case of its own, so the interval of a ratio is made of two intervals.
    """
    # notebook 09 measures a CPU's ladder live; a step of this network takes a CPU a second
    if device.is_cpu:
        return
    case, here = functools.partial(_form, device), [one for one in _ladder() if _has(device, one)]
    yield case(SCRIPT, "", [], SECOND)
    for number, one in enumerate(here, 1):
        yield case(UP_TO, one.name, here[:number], SECOND if number == len(here) else THIRD)
        yield case(ALONE, one.name, [one], THIRD)
    for one in here:
        yield case(WITHOUT, one.name, [other for other in here if other is not one], LAST)


def _ladder() -> list[Technique]:
    """Return the course's techniques with sizes for these images."""
    other: Mapping[str, dict[str, Any]] = {
        "batch": {"options": {"batch_size": _LARGE_BATCH}},
        "lighter": {"model": lambda: networks.mobilenet(3, 10, _LADDER_WIDTH, stages=3)},
    }
    return [dataclasses.replace(one, **other.get(one.name, {})) for one in training.techniques()]


def _has(device: Device, technique: Technique) -> bool:
    """Return whether the device has a technique, without running it."""
    needs = {
        "tf32": device.has_tf32,
        "prefetch": device.torch_type == "cuda",
        "autotune": device.kind == "cuda",
        "graph": device.kind == "cuda",
    }
    return needs.get(technique.name, True)


def _form(device: Device, form: str, technique: str, used: list[Technique], rank: int) -> Case:
    options: dict[str, Any] = {**training.START, "batch_size": _START_BATCH}
    for one in used:
        options.update(one.options)
    who = f"{EXPERIMENT}, {technique or 'nothing'} {form}"

    def prepare(device: Device) -> Work:
        task = _noise_images(_LADDER_WIDTH)
        for model in filter(None, (one.model for one in used)):
            task = dataclasses.replace(task, _build=model)
        return _steps(device, task, who, options, _LADDER_STEPS)

    params = {
        "model": "cnn",
        "form": form,
        "technique": technique,
        "batch_size": int(options["batch_size"]),
        "steps": _LADDER_STEPS,
    }
    return timed(device, params, rank, prepare, shares=_SHARES)


def tips(device: Device) -> Iterable[Case]:
    """Small tips from tuning guides, each timed without and with it, for the ledger of claims."""
    for name, (prepare, *both) in _TIPS.items():
        if (name == "create_on_device" and device.is_cpu) or (
            name == "cudnn_autotune" and device.kind != "cuda"
        ):
            continue
        rank = SECOND if name in ("no_grad", "one_call") else THIRD
        for form, options in zip(("without", "with"), both, strict=True):
            params = {"tip": name, "form": form}
            yield timed(device, params, rank, functools.partial(prepare, **options))


def _deep(device: Device) -> tuple[Any, Any]:
    """Return a network of many small layers, which makes the costs per operator and per tensor
    visible, and its input.
    """
    torch.manual_seed(0)
    parts = [
        part
        for _ in range(_TIP_LAYERS)
        for part in (torch.nn.Linear(_TIP_WIDTH, _TIP_WIDTH), torch.nn.ReLU())
    ]
    x = torch.randn(_TIP_ROWS, _TIP_WIDTH).to(str(device))
    return torch.nn.Sequential(*parts).to(str(device)), x


def _forward(device: Device, mode: _Mode) -> Work:
    model, x = _deep(device)
    return Work(functools.partial(model, x), setting=mode())


def _step(
    device: Device,
    none: bool = True,
    foreach: bool | None = None,
    mode: _Mode = contextlib.nullcontext,
) -> Work:
    """Return a training step; ``foreach`` is Adam's option, and None takes plain SGD."""
    model, x = _deep(device)
    optimizer: Any = (
        torch.optim.SGD(model.parameters(), lr=1e-4)
        if foreach is None
        else torch.optim.Adam(model.parameters(), lr=1e-4, foreach=foreach)
    )

    def run() -> None:
        optimizer.zero_grad(set_to_none=none)
        model(x).square().mean().backward()
        optimizer.step()

    return Work(run, setting=mode())


def _normalized(device: Device, bias: bool = False, autotune: bool = False) -> Work:
    """Return a convolution and a batch norm, forward and backward."""
    torch.backends.cudnn.benchmark = autotune
    torch.manual_seed(0)
    batch = _TIP_CPU_BATCH if device.is_cpu else _TIP_BATCH
    model = torch.nn.Sequential(
        torch.nn.Conv2d(_TIP_CHANNELS, _TIP_CHANNELS, 3, padding=1, bias=bias),
        torch.nn.BatchNorm2d(_TIP_CHANNELS),
    ).to(str(device))
    x = torch.randn(batch, _TIP_CHANNELS, _TIP_SIDE, _TIP_SIDE).to(str(device))
    return Work(lambda: model(x).square().mean().backward())


def _products(device: Device, multiply: Callable[[Any, Any], Any]) -> Work:
    """Return a thousand small products."""
    return Work(functools.partial(multiply, *torch.ones(2, 1000, 16, 16, device=str(device))))


# The function that makes a tip's work, its options without the tip, and its options with the tip.
_TIPS: Mapping[str, tuple[Any, ...]] = {
    "no_grad": (_forward, {"mode": torch.enable_grad}, {"mode": torch.no_grad}),
    "inference_mode": (_forward, {"mode": torch.no_grad}, {"mode": torch.inference_mode}),
    "set_to_none": (_step, {"none": False}, {}),
    "no_anomaly_detection": (
        _step,
        {"mode": functools.partial(torch.autograd.set_detect_anomaly, True)},
        {},
    ),
    "foreach": (_step, {"foreach": False}, {"foreach": True}),
    "no_bias_before_norm": (_normalized, {"bias": True}, {}),
    "as_tensor": (
        lambda device, convert: Work(
            functools.partial(convert, np.ones(_ELEMENTS, dtype=np.float32))
        ),
        {"convert": torch.tensor},
        {"convert": torch.as_tensor},
    ),
    "one_call": (
        _products,
        {"multiply": lambda a, b: [x @ y for x, y in zip(a, b, strict=True)]},
        {"multiply": torch.bmm},
    ),
    "cudnn_autotune": (_normalized, {}, {"autotune": True}),
    "create_on_device": (
        lambda device, create: Work(functools.partial(create, str(device))),
        {"create": lambda device: torch.zeros(_ELEMENTS).to(device)},
        {"create": lambda device: torch.zeros(_ELEMENTS, device=device)},
    ),
}


def attention(device: Device) -> Iterable[Case]:
    """Causal attention written out, and by each kernel of ``scaled_dot_product_attention``."""
    lengths = _CPU_LENGTHS if device.is_cpu else _LENGTHS
    names = ["written out", "flash"]
    if device.kind == "cuda":
        names += ["efficient", "cudnn"]
    passes = ("forward", "forward and backward")
    for length, name, which in itertools.product(lengths, names, passes):
        rank = SECOND if name in names[:2] and length == lengths[1] else THIRD
        params = {
            "kernel": name,
            "passes": which,
            "length": length,
            "dtype": "float32" if device.is_cpu else "float16",
        }
        yield timed(device, params, rank, _attention, name, length, "back" in which)


def _attention(device: Device, kernel: str, length: int, backward: bool) -> Work:
    heads, size, positions = (
        (_CPU_HEADS, _CPU_SIZE, _CPU_POSITIONS) if device.is_cpu else (_HEADS, _SIZE, _POSITIONS)
    )
    q, k, v = (
        torch.randn(
            (positions // length, heads, length, size),
            device=str(device),
            dtype=torch.float32 if device.is_cpu else torch.float16,
            requires_grad=backward,
        )
        for _ in range(3)
    )
    seen = torch.ones(length, length, dtype=torch.bool, device=str(device)).tril()

    def run() -> Any:
        if kernel == "written out":
            scores = (q @ k.mT / math.sqrt(size)).masked_fill(~seen, -math.inf)
            mixed = scores.softmax(-1) @ v
        else:
            mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return torch.autograd.grad(mixed.sum(), (q, k, v)) if backward else mixed

    # two products of length x length x size; a causal kernel needs half of them, the backward pass
    # two and a half times as many
    flops = 4.0 * positions * heads * length * size / 2 * (3.5 if backward else 1.0)
    setting: contextlib.AbstractContextManager[Any] = (
        sdpa_kernel(_KERNELS[kernel]) if kernel in _KERNELS else contextlib.nullcontext()
    )
    return Work(run, (), flops, setting=setting)


class _Layer(torch.nn.Module):
    """A layer of a decoder with a cache of a fixed length, as a CUDA graph needs it."""

    def __init__(self, shape: LanguageModel) -> None:
        super().__init__()
        self.size = shape.head_size
        queries, keys = shape.heads * self.size, shape.kv_heads * self.size
        linear = functools.partial(torch.nn.Linear, bias=False)
        self.q, self.kv = linear(shape.width, queries), linear(shape.width, 2 * keys)
        self.out = linear(queries, shape.width)
        self.up = linear(shape.width, 2 * shape.feed_width)
        self.down = linear(shape.feed_width, shape.width)

    def forward(self, x: Any, cache: Any, start: int) -> Any:
        new = x.shape[1]
        normed = functional.rms_norm(x, x.shape[-1:])
        q, k, v = (
            part.unflatten(-1, (-1, self.size)).transpose(1, 2)
            for part in (self.q(normed), *self.kv(normed).chunk(2, -1))
        )
        cache[0][:, :, start : start + new], cache[1][:, :, start : start + new] = k, v
        keys, values = cache[:, :, :, : start + new]
        causal, mask = start == 0, None
        if start and new > 1:
            mask = torch.ones(new, start + new, dtype=torch.bool, device=x.device).tril(start)
        mixed = functional.scaled_dot_product_attention(
            q, keys, values, attn_mask=mask, is_causal=causal, enable_gqa=True
        )
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        gate, up = self.up(functional.rms_norm(x, x.shape[-1:])).chunk(2, -1)
        return x + self.down(functional.silu(gate) * up)


class _Decoder(torch.nn.Module):
    """From tokens to scores: of the last position of a prompt, else of each new position."""

    def __init__(self, shape: LanguageModel) -> None:
        super().__init__()
        self.tokens = torch.nn.Embedding(shape.vocabulary, shape.width)
        self.layers = torch.nn.ModuleList(_Layer(shape) for _ in range(shape.layers))
        self.head = torch.nn.Linear(shape.width, shape.vocabulary, bias=False)

    def forward(self, tokens: Any, caches: Any, start: int) -> Any:
        x = self.tokens(tokens)
        for layer, cache in zip(self.layers, caches, strict=True):
            x = layer(x, cache, start)
        return self.head(x if start else x[:, -1])


def _continuous_steps() -> int:
    """Return the number of steps until all answers are done, if each takes the next free slot."""
    ends = [0] * _SLOTS
    for tokens in _ANSWERS:
        ends[ends.index(min(ends))] += tokens
    return max(ends)


# A static batch ends with its longest answer. Each slot computes in every step, idle or not: a
# step's shape is fixed.
_SERVING_STEPS = {
    "static batch": sum(max(_ANSWERS[k : k + _SLOTS]) for k in range(0, len(_ANSWERS), _SLOTS)),
    "continuous batch": _continuous_steps(),
}


def generation(device: Device) -> Iterable[Case]:
    """Prefill and decode of a decoder: batches, lengths, heads, weights of fewer bits, graph and
    compiler; answers of different lengths in static and continuous batches.
    """
    shape = _CPU_SHAPE if device.is_cpu else _SHAPE
    plain = {
        "model": shape.name,
        "phase": "decode",
        "batch": 1,
        "length": _CPU_LENGTH if device.is_cpu else _LENGTH,
        "new": 1,
        "kv_heads": shape.kv_heads,
        "weights": "float32" if device.is_cpu else "bfloat16",
        "means": "plain",
    }
    is_cpu, on_cuda = device.is_cpu, device.torch_type == "cuda"
    shorter = _SHORTER if importlib.util.find_spec("torchao") else ()
    many = [{"new": 5}, *({"batch": 16, "kv_heads": heads} for heads in (shape.heads, 1))]
    batches = [{"batch": batch} for batch in (4, 64)]
    prompt, graph = {"phase": "prefill"}, {"means": "graph"}
    # whether it can run here, its rank, and the changes to the plain step
    asked: list[tuple[bool, int, list[dict[str, Any]]]] = [
        (True, SECOND, [{}, {"batch": 16}, prompt]),
        (True, THIRD, many),
        (not is_cpu, THIRD, [*batches, *({"length": length} for length in (128, 8192))]),
        (not is_cpu, THIRD, [{**prompt, "length": length} for length in (512, 8192)]),
        (on_cuda, SECOND, [graph, {"means": "compile"}, {"means": "compile, graph"}]),
        # As graphs too: if operators are launched one by one, each of these steps takes as long as
        # the host needs to launch it.
        (on_cuda, THIRD, [{**one, **graph} for one in ({"batch": 16}, *many, *batches)]),
        (on_cuda, THIRD, [{**prompt, "means": "compile"}]),
        (on_cuda, THIRD, [{**prompt, "batch": batch, "length": 512} for batch in (4, 16)]),
        (on_cuda, THIRD, [{**graph, "phase": p, "batch": _SLOTS} for p in _SERVING_STEPS]),
        (on_cuda, THIRD, [{**one, "weights": "float16"} for one in (graph, prompt)]),
        (on_cuda, THIRD, [{"weights": one, "means": "compile, graph"} for one in shorter]),
        (on_cuda, LAST, [{**prompt, "weights": one, "means": "compile"} for one in shorter]),
    ]
    for runs, rank, changes in asked:
        for changed in changes if runs else ():
            params = {**plain, **changed}
            if params["phase"] == "prefill":
                params["new"] = params["length"]
            yield timed(device, params, rank, _generation, shape, params)


def _generation(device: Device, shape: LanguageModel, params: dict[str, Any]) -> Work:
    length, batch, new = params["length"], params["batch"], params["new"]
    start, tuned = length - new, _TUNED if params["weights"] in _SHORTER else None
    dtype = getattr(torch, "bfloat16" if tuned else params["weights"])
    shape = dataclasses.replace(shape, kv_heads=params["kv_heads"])
    with torch.device(str(device)):
        model: Any = _Decoder(shape).to(dtype).eval()
        tokens = torch.zeros(batch, new, dtype=torch.int64)
        caches = torch.zeros(
            (shape.layers, 2, batch, shape.kv_heads, length, shape.head_size), dtype=dtype
        )
    if tuned:
        model = _shorten(model, params["weights"])
    if "compile" in params["means"]:
        for layer in model.layers:  # the layers are alike, so the compiler works only once
            layer.compile(options=tuned)
        model.head.compile(options=tuned)
    step: Any = torch.no_grad()(functools.partial(model, tokens, caches, start))
    if "graph" in params["means"]:
        step = captured(step, device)
    table, scored = shape.vocabulary * shape.width, new if start else 1
    flops = 2.0 * batch * (new * (shape.read_parameters - table) + scored * table)
    steps = _SERVING_STEPS.get(params["phase"], 1)

    def run() -> Any:
        for _ in range(steps):
            scores = step()
        return scores

    return Work(run, (), steps * flops)


def _shorten(model: Any, weights: str) -> Any:
    """Return the model with the weights of its linear layers stored in fewer bits, by torchao."""
    from torchao import quantization

    make: Any = {
        "int8": quantization.Int8WeightOnlyConfig,
        # the layout that PyTorch's own kernel reads
        "int4": functools.partial(
            quantization.Int4WeightOnlyConfig, int4_packing_format="tile_packed_to_4d"
        ),
        "float8": quantization.Float8WeightOnlyConfig,
        "int8 with int8 inputs": quantization.Int8DynamicActivationInt8WeightConfig,
    }[weights]
    quantization.quantize_(model, make(set_inductor_config=False))
    return model
