"""Each public function takes the whole numbers that NumPy's arrays give, works with them as Python's own, and keeps those."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from gpulab import compression, lessons, models, networks, parallel, precision, training, transfer, units, workloads
from gpulab.errors import InputError, StoppedError
from gpulab.kernels import ladder
from gpulab.kernels._compile import _cuda, _nvrtc
from gpulab.lessons import _five_times, _grades, _nb06_memory, _predictions
from gpulab.parallel import _global_batch, _rank_memory, _scaling, _scaling_step, _sweep, _train
from gpulab.parallel._strategies import strategy_named
from gpulab.results import Result
from gpulab.timing.sampling import sample
from gpulab.training import _pipeline_model, _race, _seeds

KINDS = (np.int64, np.int32, np.uint8)


def told(value: Any) -> Any:
    """Return a result as plain values to compare; fails where one of NumPy's whole numbers was kept in it."""
    assert not isinstance(value, np.integer), f"kept {value!r}"
    if isinstance(value, Result):
        json.dumps(value.to_dict())
    if isinstance(value, torch.nn.Module):
        kept = [{name: told(held) for name, held in vars(m).items() if isinstance(held, (int, np.integer, tuple))} for m in value.modules()]
        return [kept, [told(tensor) for tensor in value.state_dict().values()]]
    if isinstance(value, (np.ndarray, torch.Tensor)):
        return value.tolist()
    if dataclasses.is_dataclass(value):
        return {field.name: told(getattr(value, field.name)) for field in dataclasses.fields(value) if field.name != "evidence"}
    if isinstance(value, Mapping):
        return {told(key): told(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [told(item) for item in value]
    return value


def stopped(call: Callable[[], Any]) -> Any:
    """Return "stopped" where work ends because nothing was asked to be done: its arguments were taken."""
    try:
        return call()
    except StoppedError:
        return "stopped"


def weights(function: Callable[..., Any], **options: Any) -> Any:
    """Return a model with the weights of one seed."""
    torch.manual_seed(0)
    return function(**options)


def small() -> Any:
    """Return a model to compress, the same each time."""
    return weights(networks.mlp, inputs=4, hidden=4, outputs=2)


def scheduled(steps: int, microbatches: int) -> Any:
    """Return how a run of a schedule ends on two ranks that are stopped before the first step."""
    told_to: list[Any] = []
    ranks: Any = SimpleNamespace(n=2, hosts=("here", "here"), run=lambda function, *args: told_to.append(args) or [0, 0])
    return stopped(lambda: parallel.run_schedule(ranks, "gpipe", microbatches, steps=steps, stop=lambda: True)), told_to


def compared(items: int, seeds: int, threads: int) -> Any:
    """Return how a comparison of scripts ends that is stopped at once."""
    return stopped(lambda: training.compare_scripts(lambda m, d: 1, lambda m, d: 2, "prose-transformer", items=items, seeds=seeds,
                                                    threads=threads, stop=lambda: True, device="cpu"))  # fmt: skip


def climbed(seeds: int, turns: int, samples: int, threads: int) -> Any:
    """Return how a ladder ends that is stopped at once."""
    return stopped(lambda: training.ladder("prose-transformer", ["batch"], seeds=seeds, turns=turns, samples=samples, threads=threads,
                                           stop=lambda: True, device="cpu"))  # fmt: skip


def over_ranks(ranks: int, batch: int, epochs: int, seeds: int) -> Any:
    """Return how trainings with global batches end that are stopped before the first."""
    return stopped(lambda: parallel.global_batch("prose-transformer", [ranks], batch=batch, epochs=epochs, seeds=seeds, stop=lambda: True))


def begun(n: int, threads: int, port: int) -> Any:
    """Return what ranks that are not started keep."""
    ranks = parallel.cluster(n, threads=threads, port=port)
    return ranks.n, ranks._threads, ranks._port


_ROAD = transfer.link("pcie4", latency_seconds=1e-5, bandwidth_bytes_per_second=1e9)
_COST = models.collective_cost("broadcast", 6e6, 6)
_MATRICES = np.stack([np.arange(32) * 8] * 2)
# What is called, and its whole numbers.
TAKEN: dict[str, tuple[Callable[..., Any], dict[str, int]]] = {
    "mlp": (lambda **n: weights(networks.mlp, **n), {"inputs": 64, "hidden": 8, "outputs": 10, "depth": 2}),
    "cnn": (lambda **n: weights(networks.cnn, **n), {"channels": 1, "classes": 10, "width": 2, "stages": 2}),
    "resnext": (lambda **n: weights(networks.resnext, **n), {"channels": 1, "classes": 3, "width": 8, "stages": 1, "groups": 4}),
    "mobilenet": (lambda **n: weights(networks.mobilenet, **n), {"channels": 1, "classes": 3, "width": 2, "stages": 1, "expansion": 2}),
    "transformer": (
        lambda **n: weights(networks.transformer, **n), {"vocabulary": 20, "width": 8, "heads": 2, "layers": 1, "context": 8},
    ),
    "workload": (lambda n: workloads.get("matmul")(n=n), {"n": 8}),
    "inputs": (lambda seed: workloads.get("matmul")(n=4).inputs(seed=seed), {"seed": 3}),
    "pipeline_schedule": (
        lambda **n: models.pipeline_schedule(schedule="interleaved", **n), {"stages": 4, "microbatches": 8, "chunks": 2},
    ),
    "gloo_wire_bytes": (
        lambda **n: models.gloo_wire_bytes("reduce", **n), {"elements": 96, "ranks": 3, "element_bytes": 4, "root": 1},
    ),
    "sent_bytes": (_COST.sent_bytes, {"rank": 1, "root": 2}),
    "sectors_per_request": (lambda element_bytes: models.sectors_per_request(_MATRICES, None, element_bytes), {"element_bytes": 8}),
    "shared_wavefronts": (lambda element_bytes: models.shared_wavefronts(_MATRICES, None, element_bytes), {"element_bytes": 8}),
    "access_pattern": (
        models.access_pattern, {"stride_elements": 100, "offset_elements": 7, "element_bytes": 16, "active_lanes": 31},
    ),
    "occupancy": (
        models.occupancy, {"threads_per_block": 96, "registers_per_thread": 255, "shared_bytes_per_block": 200, "carveout_percent": 50},
    ),
    "link.sweep": (lambda size, seed: _ROAD.sweep([size, 2**20], 0.1, seed), {"size": 64, "seed": 3}),
    "pipeline_seconds": (lambda nbytes, chunks: transfer.pipeline_seconds(nbytes, chunks, _ROAD, 1e-3), {"nbytes": 200, "chunks": 4}),
    "overlap": (lambda nbytes, chunks: transfer.overlap(nbytes, chunks, link=_ROAD), {"nbytes": 200, "chunks": 4}),
    "arch": (_cuda.checked_arch, {"arch": 90}),
    "rung": (lambda n: ladder.rung("matmul-tiled").launch(n), {"n": 128}),
    "cuda rung": (ladder.CUDA_RUNGS[0].launch, {"n": 128}),
    "number": (lambda steps: precision.number(1.0, "float16", steps), {"steps": 100}),
    "number_from_bits": (lambda code: precision.number_from_bits(code, "float16"), {"code": 200}),
    "stochastic_round": (lambda seed: precision.stochastic_round([1.0001] * 9, "float16", seed), {"seed": 3}),
    "make_model": (lambda seed: training.task("prose-transformer").make_model(seed), {"seed": 3}),
    "seeds": (_seeds._seeds, {"given": 3}),
    "listed seeds": (lambda one, other: _seeds._seeds([one, other]), {"one": 3, "other": 200}),
    "compare_scripts": (compared, {"items": 8, "seeds": 1, "threads": 1}),
    "ladder": (climbed, {"seeds": 1, "turns": 2, "samples": 100, "threads": 1}),
    "model_pipeline": (
        lambda **n: training.model_pipeline(0.06, 0.02, **n), {"workers": 3, "prefetch": 2, "cores": 2, "steps": 5},
    ),
    "pipeline": (lambda value: _pipeline_model.check_count("pipeline", "image_size", value, 8, 512), {"value": 200}),
    "Recipe of values": (compression.Recipe, {"values": 16}),
    "Recipe of bits": (compression.Recipe, {"bits": 8}),
    "Recipe as it is": (compression.Recipe, {"values": 0, "bits": 32}),
    "share_weights": (lambda clusters: compression.share_weights(small(), clusters), {"clusters": 3}),
    "quantize": (lambda bits: compression.quantize(small(), bits=bits), {"bits": 4}),
    "rank_states": (lambda **n: parallel.rank_states("7B", strategy="zero1", **n), {"ranks": 64, "rank": 3}),
    "predict_ranks": (lambda value: _rank_memory._whole("ranks", value, 1, 1024), {"value": 200}),
    "cluster": (begun, {"n": 2, "threads": 1, "port": 200}),
    "scaling": (lambda ranks, count: _scaling._counts(ranks, [count, 2]), {"ranks": 4, "count": 3}),
    "scaling's batch": (lambda batch: _scaling._batch(_scaling_step.MODELS["mlp"], batch, "strong", [1, 2]), {"batch": 200}),
    "train": (
        lambda **n: _train._job(
            strategy_named("ddp"), "prose-transformer", None, dtype="float32", optimizer="adam", learning_rate=None, **n
        ),
        {"steps": 4, "batch_size": 8, "microbatches": 2, "bucket_bytes": 200, "seed": 3},
    ),
    "run_schedule": (scheduled, {"steps": 2, "microbatches": 4}),
    "global_batch": (over_ranks, {"ranks": 2, "batch": 8, "epochs": 1, "seeds": 2}),
    "batch of ranks": (lambda value: _global_batch._whole("batch", value, 1024), {"value": 200}),
    "sweep of collectives": (lambda size: _sweep._elements([size], 2), {"size": 200}),
    "choose": (lambda value: _predictions.choose(value, ("one", "two")), {"value": 2}),
    "step": (lambda batch: _nb06_memory._Attempts().step(batch), {"batch": 2}),
}  # fmt: skip


@pytest.fixture(autouse=True)
def _of_all_architectures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the check of an architecture ask no compiler, which need not be here."""
    monkeypatch.setattr(_nvrtc, "architectures", lambda: (90,))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("name", TAKEN)
def test_numpys_whole_numbers_are_pythons_own(name: str, kind: type[np.integer]) -> None:
    """The result is the one that Python's numbers give, and nothing of NumPy's is kept in it, nor does it overflow on the way."""
    call, numbers = TAKEN[name]
    assert told(call(**{key: kind(value) for key, value in numbers.items()})) == told(call(**numbers))


@pytest.mark.parametrize(("name", "key"), [(name, key) for name, (_, numbers) in TAKEN.items() for key in numbers])
def test_what_only_equals_a_whole_number_is_refused(name: str, key: str) -> None:
    """A float and a bool are no whole numbers, NumPy's as little as Python's."""
    call, numbers = TAKEN[name]
    for wrong in (float(numbers[key]), np.float64(numbers[key]), True, np.True_):
        with pytest.raises(InputError):
            call(**{**numbers, key: wrong})


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_numpys_whole_numbers_are_seconds_and_bytes(kind: type[np.integer]) -> None:
    """A time limit or a time of three whole seconds is one of 3.0, and 200 are as many bytes."""
    assert units.parse_seconds(kind(3)) == 3.0
    assert told(units.parse_bytes(kind(200))) == 200
    assert stopped(lambda: transfer.sweep("cpu", sizes=[1024], deadline=kind(3), stop=lambda: True)) == "stopped"
    assert transfer.break_even("add", device="cpu", deadline=kind(3)).reason == "no accelerator"
    assert told(transfer.overlap(200, 4, link=_ROAD, compute_seconds=kind(3))) == told(
        transfer.overlap(200, 4, link=_ROAD, compute_seconds=3.0)
    )
    assert transfer.pipeline_seconds(200, 4, _ROAD, kind(3), kind(1)) == transfer.pipeline_seconds(200, 4, _ROAD, 3.0, 1.0)
    ticks = iter(range(10_000))
    assert sample(lambda calls: (1.0, 1.0), lambda: float(next(ticks)), deadline=kind(3), stop=lambda: True).stopped_by == "stopped"


@pytest.mark.parametrize("kind", KINDS[:2], ids=lambda kind: kind.__name__)
def test_large_whole_numbers_do_not_overflow(kind: type[np.integer]) -> None:
    """2 * 4096**3 operations, as by hand, where 32 bits hold 2**31; 16 bytes a parameter, over 64 ranks; 2**30 bytes in floats."""
    assert [rung.flops(kind(4096)) for rung in (ladder.rung("matmul-tiled"), ladder.CUDA_RUNGS[0])] == [2.0**37] * 2
    assert sum(models.gloo_wire_bytes("scatter", kind(2**30), kind(2), element_bytes=kind(4))) == 2**31 + 144
    cost = parallel.rank_states("7B", strategy="zero3", ranks=kind(64))
    assert cost.to_dict() == parallel.rank_states("7B", strategy="zero3", ranks=64).to_dict()


def test_lessons_take_numpys_whole_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the lessons' instruments keep is Python's own; a float and a bool are refused."""
    monkeypatch.setattr("gpulab.lessons._library.missing", lambda name: f"{name} is not here")
    monkeypatch.setattr("gpulab.timing.measure", lambda *args, **options: SimpleNamespace(median_seconds=1e-3, notes=()))
    size = np.int32(64)
    assert told(lessons.column_loop(size, 0.01))["n"] == 64
    assert told(lessons.feeding(size * 64))["nbytes"] == 4096
    assert told(lessons.retraces(np.array([32, 17, 32]))) == told(lessons.retraces([32, 17, 32]))
    sweep = told(lessons.arithmetic_sweep(size, np.array([8, 16], np.uint8), "cpu"))
    assert (sweep["numbers"], [row["multiply_adds"] for row in sweep["rows"]]) == (64, [8, 16])

    def end(*args: Any, **options: Any) -> None:
        raise StoppedError("here the work would begin")

    monkeypatch.setattr("gpulab.timing.measure", end)
    monkeypatch.setattr(_five_times, "_measured", end)
    assert [stopped(lambda: lessons.five_times(size)), stopped(lambda: lessons.spellings(size))] == ["stopped"] * 2
    for wrong in (64.0, True, np.float64(64)):
        for function in (lessons.column_loop, lessons.five_times, lessons.feeding, lessons.spellings, lessons.arithmetic_sweep):
            with pytest.raises(InputError):
                function(wrong)
        with pytest.raises(InputError):
            lessons.retraces([wrong])
        with pytest.raises(InputError):
            lessons.arithmetic_sweep(64, [wrong])


def test_a_class_is_graded_within_numpys_number_of_bytes(tmp_path: Any) -> None:
    """The limit of memory travels to another process as JSON, which knows no number of NumPy's."""
    room = lessons.classroom(tmp_path)
    assert _grades.grade(room, memory_bytes=np.int64(2**30)).to_dict() == _grades.grade(room, memory_bytes=2**30).to_dict()


def test_sides_of_a_race_are_named_by_plain_numbers() -> None:
    """Two sides with the same number are the same in it, and a label shows it as it was meant."""
    sides = [_race._options("first", {"batch_size": np.int64(4), "workers": np.int64(0)}), _race._options("second", {"batch_size": 8})]
    assert _race._names(sides) == ("batch_size=4", "batch_size=8")
