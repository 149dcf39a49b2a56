"""Junk in any argument of a public function gives one readable sentence, or a result.

``CALLS`` holds a valid call of each function that takes arguments; each argument in turn, and each
further parameter that the signature names, is then replaced by every piece of junk.
"""

import importlib
import inspect
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gpulab as gl
import numpy as np
import pytest
import torch
from gpulab.errors import GpulabError

# Readers do not finish a longer message.
LONGEST_MESSAGE = 800


# What a learner passes by mistake: a stub's dots, a wrong name or kind, a number out of range.
JUNK: list[Any] = [object(), math.nan, -1, "junk", b"bytes", [], {"a": 1}, ..., torch.int8]
# Hooks of programs, not arguments that a learner types.
HOOKS = {"progress", "stop", "clock", "command"}


def of(*args: Any, **named: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return a call's arguments."""
    return args, named


def _nothing(*args: Any) -> None:
    """The work that is measured."""


LAYER = torch.nn.Linear(4, 4)
XT = torch.ones(2, 4)
X = np.ones(8, dtype=np.float32)
H200 = gl.recordings.load("nvidia-h200")
LANES = np.arange(32)[None] * 4
CURVE = gl.hierarchy.recorded_latency(H200)
STREAM = gl.hierarchy.recorded_bandwidth(H200)
OCCUPANCY = gl.models.occupancy(256, 32)
ADD = gl.workloads.get("add")
TIMELINE = gl.training.model_pipeline(0.01, 0.01)
SOURCE = 'extern "C" __global__ void f(float* x) { x[0] = 1; }'


def _kernel(x: Any) -> None:
    x[0] = 1


CALLS: dict[str, Any] = {
    "arrays.device_of": of(X),
    "arrays.share": of(X, "torch"),
    "arrays.to_device": of(X, "cpu"),
    "arrays.to_host": of(X),
    "claims.ledger": of([H200]),
    "compression.count": of(LAYER, XT),
    "compression.finish": of(LAYER),
    "compression.prune": of(LAYER),
    "compression.quantize": of(LAYER),
    "compression.quantize_aware": of(LAYER),
    "compression.share_weights": of(LAYER),
    "compression.size_on_disk": of(LAYER),
    "compression.support": of("cpu"),
    "compression.to_sparse": of(LAYER),
    "compression.weigh": of({"a": LAYER}, inputs=XT, deadline=1e-3),
    "devices.environment": of("cpu"),
    "devices.find": of("cpu"),
    "devices.spec": of("cpu"),
    "hierarchy.bandwidth": of([2**13], deadline=1e-3),
    "hierarchy.latency": of([2**13], method="python", chases=1, deadline=1e-3),
    "hierarchy.measure_chase": of(2**13, deadline=1e-3),
    "hierarchy.measure_stream": of(2**13, deadline=1e-3),
    "hierarchy.parallel": of([1], 2**13, method="python", deadline=1e-3),
    "hierarchy.recorded_bandwidth": of(H200),
    "hierarchy.recorded_latency": of(H200),
    "kernels.compile_cuda": of(SOURCE),
    "kernels.compile_python": of(_kernel, X),
    "kernels.cuda_launcher": of(SOURCE, "f", 1, 1, X),
    "kernels.generated": of(_nothing, XT),
    "kernels.launch": of(_kernel, 1, 1, X),
    "kernels.launch_cuda": of(SOURCE, "f", 1, 1, X),
    "kernels.launcher": of(_kernel, 1, 1, X),
    "kernels.simulate": of(_kernel, 1, 1, X),
    "memory.largest_batch": of(LAYER, lambda n: XT[:n], memory=2**30, loss=torch.sum, most=2),
    "memory.limit": of("1 GiB"),
    "memory.predict": of(LAYER, XT, loss=torch.sum),
    "memory.release": of("cpu"),
    "memory.snapshot": of("cpu"),
    "memory.trace": of(LAYER, XT, loss=torch.sum),
    "memory.traffic": of(torch.add, XT, XT),
    "models.access_at": of(LANES[0]),
    "models.access_pattern": of(1),
    "models.amdahl": of(0.1, [1, 2]),
    "models.collective_cost": of("all_reduce", 8.0, 2),
    "models.gustafson": of(0.1, [1, 2]),
    "models.inference": of("Llama 3 8B", "H200 SXM", context=128, memory_bytes=10**11),
    "models.occupancy": of(256, 32),
    "models.occupancy_sweep": of(OCCUPANCY),
    "models.occupancy_table": of(256, 32),
    "models.pipeline_schedule": of(2, 4),
    "models.roofline": of("cpu", ceilings="datasheet"),
    "models.scaling": of(1.0, 8.0, 1e-6, 1e9, [1, 2]),
    "models.sectors_per_request": of(LANES),
    "models.shared_wavefronts": of(LANES),
    "models.sm_limits": of("9.0"),
    "networks.cnn": of(),
    "networks.mlp": of(),
    "networks.mobilenet": of(),
    "networks.resnext": of(),
    "networks.transformer": of(),
    "parallel.gpt_shape": of("1.3B"),
    "parallel.largest_batch": of(
        LAYER,
        lambda n: (XT[:n], XT[:n]),
        strategy="ddp",
        ranks=2,
        memory=2**30,
        loss=lambda y, t: y.sum(),
        most=2,
    ),
    "parallel.predict_ranks": of(LAYER, XT, strategy="ddp", ranks=2, loss=torch.sum),
    "parallel.rank_states": of("1.3B", strategy="ddp", ranks=2),
    "parallel.recorded_scaling": of(H200),
    "precision.autocast_policy": of("cpu", "bfloat16", ["relu"]),
    "precision.decode": of([1], "float16"),
    "precision.encode": of(X, "float16"),
    "precision.format": of("float16"),
    "precision.gradient_window": of(X),
    "precision.gradients": of(LAYER, XT, loss=torch.sum),
    "precision.matmul_error": of(XT.numpy(), XT.numpy().T),
    "precision.number": of(1.0, "float16"),
    "precision.number_from_bits": of(1, "float16"),
    "precision.round_to": of(X, "float16"),
    "precision.sum_error": of(X),
    "recorder.experiments": of(["transfer"]),
    "recorder.record": of("recording.json", minutes=1e-9, only=["transfer"], device="cpu"),
    "recordings.diff": of(H200, H200),
    "recordings.load": of("nvidia-h200"),
    "recordings.merge": of(H200, H200),
    "recordings.read": of("no-such-file"),
    "timing.compare": of("add", devices=["cpu"], deadline=1e-3, n=8),
    "timing.device_of": of(_nothing),
    "timing.measure": of(_nothing, device="cpu", deadline=1e-3),
    "training.evaluate": of(LAYER, "no-such-task"),
    "training.evaluate_models": of([LAYER], "no-such-task"),
    "training.fit": of("digits-mlp", steps=0),
    "training.hidden_waits": of(_nothing, device="cpu"),
    "training.model_pipeline": of(0.01, 0.01),
    "training.recorded_ladder": of(H200),
    "training.replay": of(TIMELINE),
    "training.speedup_report": of("report.md"),
    "training.task": of("digits-mlp"),
    "training.techniques": of("compile"),
    "transfer.break_even": of("add", [64], "cpu", deadline=0.01),
    "transfer.fit": of([1024, 2048, 4096, 8192], [1e-5, 2e-5, 4e-5, 8e-5]),
    "transfer.link": of("pcie4"),
    "transfer.measure_copy": of(64, "host", deadline=1e-3),
    "transfer.measure_overlap": of(64, 2, "cpu", 1e-3),
    "transfer.overlap": of(2**16, 2, link="pcie4"),
    "transfer.processor": of("nvidia-h200"),
    "transfer.recorded_sweep": of(H200),
    "transfer.sweep": of("cpu", sizes=[64], link="pcie4"),
    "units.parse_bytes": of("1 KiB"),
    "units.parse_seconds": of("1 ms"),
    "workloads.get": of("add"),
}
# Not called here: lessons (which never raise), formatting, and functions that need more than
# arguments: ranks, seconds of training, a program's own objects.
ELSEWHERE = ("lessons.", "errors.", "units.format_", "units.is_", "evidence.")
ELSEWHERE_TOO = {
    "compression.cook",
    "compression.diet",
    "compression.load",
    "compression.save",
    "devices.arithmetic",
    "devices.cpu_spec",
    "devices.gpu_spec",
    "devices.ceilings",
    "devices.checkup",
    "devices.diagnose",
    "devices.gather",
    "devices.guard",
    "devices.machine",
    "devices.of_name",
    "devices.translate",
    "hierarchy.chase_method",
    "memory.watch",
    "models.collective_message",
    "parallel.cannot_split",
    "parallel.cluster",
    "parallel.run_schedule",
    "parallel.scaling",
    "parallel.sweep",
    "parallel.train",
    "precision.nearby",
    "recorder.register",
    "recordings.write",
    "training.compare_scripts",
    "training.ladder",
    "training.pipeline",
    "training.profile",
    "transfer.memory_bandwidth_bytes_per_second",
    "units.plural",
    "workloads.free_bytes",
    "workloads.register",
}


def _public_functions() -> Iterator[str]:
    for module in gl.__all__:
        public = getattr(gl, module)
        if not inspect.ismodule(public) or module in ("widgets", "figures"):
            continue
        exported = getattr(public, "__all__", None)
        for name in exported or vars(public):
            value = getattr(public, name)  # a package may load it only now
            ours = exported or getattr(value, "__module__", "") == public.__name__
            if ours and not name.startswith("_") and inspect.isfunction(value):
                yield f"{module}.{name}"


def _function(name: str) -> Any:
    module, _, function = name.partition(".")
    return getattr(importlib.import_module(f"gpulab.{module}"), function)


def test_every_public_function_is_tried() -> None:
    """A new function with arguments needs a valid call above; a removed one needs none."""
    with_arguments = {
        name
        for name in _public_functions()
        if inspect.signature(_function(name)).parameters and not name.startswith(ELSEWHERE)
    }
    assert with_arguments == ELSEWHERE_TOO | CALLS.keys(), "add a valid call to CALLS"


def _with_junk(name: str, junk: Any) -> Iterator[tuple[str, Any, Any]]:
    args, named = CALLS[name]
    for place in range(len(args)):
        yield f"argument {place}", (*args[:place], junk, *args[place + 1 :]), named
    parameters = list(inspect.signature(_function(name)).parameters.values())
    for parameter in parameters[len(args) :]:
        several = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        if not several and parameter.name not in HOOKS:
            yield parameter.name, args, {**named, parameter.name: junk}


@pytest.mark.parametrize("name", CALLS)
def test_junk_gets_one_sentence(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old_aside: None
) -> None:
    """Junk in any argument gives an error of gpulab that a reader can use, or a result."""
    monkeypatch.setenv("GPULAB_LOCK_DIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for junk in JUNK:
        for place, args, named in _with_junk(name, junk):
            try:
                _function(name)(*args, **named)
            except GpulabError as error:
                text = str(error)
                assert 10 < len(text) <= LONGEST_MESSAGE, (place, text)
                # A compiler's message shows the line of the source.
                assert "\n" not in text or name.startswith("kernels."), (place, text)
            except Exception as error:
                error.add_note(f"{name}: junk {type(junk).__name__} as {place}")
                raise
