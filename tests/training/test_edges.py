"""The edges of what the training's functions take: the last value that is taken, the first that is refused, as their sentences say.

What is taken is seen by the next argument's refusal: nothing trains here.
"""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from gpulab import training
from gpulab.errors import GpulabError
from gpulab.training import _data, _pipeline_model, _seeds, _settings, _tasks

DIGITS = 1297  # that the digits' networks train on (scikit-learn's 1,797 less the 500 of the test)
NOWHERE = {"device": "cuda:99"}


def said(function: Any, *given: Any, **options: Any) -> str:
    """What a refusal says."""
    with pytest.raises(GpulabError) as caught:
        function(*given, **options)
    return str(caught.value)


def _ladder(**options: Any) -> str:
    return said(training.ladder, "digits-mlp", ["batch"], **{"device": "cpu", **options})


def _scripts(**options: Any) -> str:
    return said(training.compare_scripts, len, len, "digits-mlp", **{"device": "cpu", **options})


def _fit(**options: Any) -> str:
    return said(training.fit, "digits-mlp", **{"device": "cpu", **options})


def _profile(**options: Any) -> str:
    return said(training.profile, len, **{**NOWHERE, **options})


def _waits(**options: Any) -> str:
    return said(training.hidden_waits, len, **{**NOWHERE, **options})


def _compiled(**options: Any) -> str:
    return said(training.compile_cost, len, **{**NOWHERE, **options})


def _model(**options: Any) -> str:
    usual: dict[str, Any] = {"loading_seconds": 60, "compute_seconds": 60.0, "copy_seconds": 60, "steps": 0}
    return said(training.model_pipeline, **{**usual, **options})


def _pipeline(**options: Any) -> str:
    return said(training.pipeline, **{"seed": -1, **options})


# Function, what it is given, and how its refusal begins: that of the value itself, or of the one that comes after it.
EDGES: list[tuple[Any, dict[str, Any], str]] = [
    (_ladder, {"seeds": 1000, "turns": 0}, "ladder: turns is 0; expected a whole number from 1 to 100,000."),
    (_ladder, {"seeds": 1001}, "ladder: seeds is 1001; expected a whole number from 0 to 1,000."),
    (_ladder, {"seeds": 0, "turns": 100_000, "tolerance": -1}, "ladder: tolerance is -1; expected a number of at least 0."),
    (_ladder, {"turns": 100_001}, "ladder: turns is 100001;"),
    (_ladder, {"turns": 1, "tolerance": 0, "deadline": -1}, "ladder: deadline is -1; expected a number of at least 0."),
    (_ladder, {"deadline": 0, "samples": 0}, "ladder: samples is 0; expected a whole number of at least 1."),
    (_ladder, {"samples": 1, "threads": 1025}, "ladder: threads is 1025; expected from 1 to 1024, or None"),
    (_scripts, {"items": DIGITS, "seeds": 1001}, "compare_scripts: seeds is 1001; expected from 1 to 1000."),
    (_scripts, {"items": DIGITS + 1}, "compare_scripts: items is 1298; expected from 1 to 1,297."),
    (_scripts, {"items": 1, "seeds": 1000, "tolerance": -1}, "compare_scripts: tolerance is -1; expected a number of at least 0."),
    (_scripts, {"seeds": 1, "tolerance": 0, "deadline": 0}, "compare_scripts: deadline is 0; expected a number above 0."),
    (_scripts, {"deadline": 1e-9, "threads": 0}, "compare_scripts: threads is 0;"),
    (_fit, {"batch_size": DIGITS, "accumulate": DIGITS + 1}, "fit: accumulate is 1298; expected a whole number from 1 to 1,297."),
    (_fit, {"batch_size": DIGITS + 1}, "fit: batch_size is 1298; expected a whole number from 1 to 1,297."),
    (_fit, {"batch_size": 1, "accumulate": 1, "steps": 0}, "fit: steps is 0; expected a whole number from 1 to 1,000,000."),
    (_fit, {"steps": 1_000_000, "learning_rate": 0}, "fit: learning_rate is 0; expected a finite number above 0."),
    (_fit, {"steps": 1_000_001}, "fit: steps is 1000001;"),
    (_fit, {"batch_size": DIGITS, "epochs": 1_000_000, "learning_rate": 0}, "fit: learning_rate is 0;"),
    (_fit, {"batch_size": DIGITS, "epochs": 1_000_001}, "fit: epochs is 1000001; expected a whole number from 1 to 1,000,000."),
    (_fit, {"epochs": 0}, "fit: epochs is 0;"),
    (_fit, {"workers": 64, "prefetch": 1001}, "fit: prefetch is 1001; expected a whole number from 0 to 1,000."),
    (_fit, {"workers": 65}, "fit: workers is 65; expected a whole number from 0 to 64."),
    (_fit, {"workers": 0, "prefetch": 1000, "clip": 0}, "fit: clip is 0;"),
    (_profile, {"steps": 100, "warmup": 101}, "profile: warmup is 101; expected a whole number from 0 to 100."),
    (_profile, {"steps": 101}, "profile: steps is 101; expected a whole number from 1 to 100."),
    (_profile, {"steps": 1, "warmup": 100}, "device 'cuda:99'"),
    (_profile, {"warmup": 0}, "device 'cuda:99'"),
    (_waits, {"calls": 1000}, "device 'cuda:99'"),
    (_waits, {"calls": 1001}, "hidden_waits: calls is 1001; expected a whole number from 1 to 1000."),
    (_compiled, {"deadline": 600}, "device 'cuda:99'"),
    (_compiled, {"deadline": 600.5}, "compile_cost: deadline is 600.5; expected seconds up to 600."),
    (_model, {"cores": 4096, "workers": 64, "prefetch": 16, "steps": 1001},
     "model_pipeline: steps is 1001; expected a whole number from 2 to 1000."),
    (_model, {"cores": 1, "workers": 0, "prefetch": 1, "steps": 1}, "model_pipeline: steps is 1;"),
    (_model, {"cores": 4097}, "model_pipeline: cores is 4097; expected a whole number from 1 to 4096."),
    (_model, {"cores": 0}, "model_pipeline: cores is 0;"),
    (_model, {"workers": 65}, "model_pipeline: workers is 65; expected a whole number from 0 to 64."),
    (_model, {"prefetch": 17}, "model_pipeline: prefetch is 17; expected a whole number from 1 to 16."),
    (_model, {"loading_seconds": 60.5}, "model_pipeline: loading_seconds is 60.5; expected seconds from 0 to 60."),
    (_pipeline, {"batch_size": 1024, "workers": 32, "prefetch": 16, "steps": 1000, "image_size": 512},
     "pipeline: seed is -1; expected a whole number from 0 to 2147483648."),
    (_pipeline, {"batch_size": 1, "workers": 0, "prefetch": 1, "steps": 2, "image_size": 8}, "pipeline: seed is -1;"),
    (_pipeline, {"batch_size": 1025}, "pipeline: batch_size is 1025; expected a whole number from 1 to 1024."),
    (_pipeline, {"workers": 33}, "pipeline: workers is 33; expected a whole number from 0 to 32."),
    (_pipeline, {"prefetch": 17}, "pipeline: prefetch is 17; expected a whole number from 1 to 16."),
    (_pipeline, {"steps": 1001}, "pipeline: steps is 1001; expected a whole number from 2 to 1000."),
    (_pipeline, {"image_size": 513}, "pipeline: image_size is 513; expected a whole number from 8 to 512."),
    (_pipeline, {"image_size": 7}, "pipeline: image_size is 7;"),
    (_pipeline, {"seed": 2**31 + 1}, "pipeline: seed is 2147483649;"),
]  # fmt: skip


@pytest.mark.parametrize(("refused", "given", "words"), EDGES, ids=[f"{row[0].__name__[1:]}-{k}" for k, row in enumerate(EDGES)])
def test_the_last_value_is_taken_and_the_next_refused(refused: Any, given: dict[str, Any], words: str) -> None:
    """A refusal tells the edges, and those are where it begins."""
    found = refused(**given)
    assert found.startswith(words) or (words.startswith("device") and words in found)


def test_the_edges_of_seeds_threads_and_seconds() -> None:
    """As the sentences have them: 1,000 seeds, 2**63 - 1, 1,024 threads, 0 and 60 s; none and None are as many threads as now."""
    assert (len(_seeds._seeds(1000)), _seeds._seeds(1), len(_seeds._seeds(range(1000)))) == (1000, [0], 1000)
    assert said(_seeds._seeds, 1001).startswith("over_seeds: seeds is 1001; expected from 1 to 1000,")
    assert said(_seeds._seeds, range(1001)).startswith("over_seeds: 1001 seeds; expected from 1 to 1000.")
    assert [_tasks.check_seed("fit", seed) for seed in (0, 2**63 - 1)] == [0, 2**63 - 1]
    assert "expected a whole number from 0 to 2**63 - 1" in said(_tasks.check_seed, "fit", 2**63)
    assert [_settings.check_threads("fit", count) for count in (1, 1024, None)] == [1, 1024, None]
    assert [_pipeline_model.check_seconds("replay", "x", value) for value in (0, 60)] == [0.0, 60.0]
    assert _pipeline_model.check_seconds("replay", "x", 3, most=3.0) == 3.0


RUN = training.model_pipeline(0.01, 0.01, steps=2)
# Function, what it is given beside one argument that it cannot use, and that argument. Flags are neither True nor False here, words not
# among those known, callables no functions, several values one number.
REFUSED: list[tuple[str, Any, tuple[Any, ...], str, Any]] = [
    *[("fit", training.fit, ("digits-mlp",), name, "yes") for name in (
        "checkpoint", "compile", "channels_last", "pinned", "cuda_graph", "read_loss", "autotune", "fused", "loading", "loss_scale",
        "optimizer", "precision",
    )],
    *[("fit", training.fit, ("digits-mlp",), name, 5) for name in ("progress", "stop")],
    ("compile_cost", training.compile_cost, (len,), "cold", "yes"),
    ("hidden_waits", training.hidden_waits, (len,), "count_to_cpu", 1),
    *[("model_pipeline", training.model_pipeline, (0.01, 0.01), name, 1) for name in ("pinned", "read_loss")],
    *[("replay", training.replay, (RUN,), name, 1) for name in ("pinned", "read_loss")],
    *[("pipeline", training.pipeline, (), name, 1) for name in ("pinned", "read_loss", "progress", "stop")],
    *[("profile", training.profile, (len,), name, 5) for name in ("progress", "stop")],
    *[("compare_scripts", training.compare_scripts, (len, len, "digits-mlp"), name, 5) for name in ("progress", "stop")],
    *[("over_seeds", training.over_seeds, ("digits-mlp",), name, 5.5) for name in ("progress", "stop", "seeds")],
    ("evaluate_models", lambda models: training.evaluate_models(models, "digits-mlp"), (), "models", 5),
    *[("ladder", training.ladder, ("digits-mlp", ["batch"]), name, 5) for name in ("progress", "stop", "clock", "leave_out")],
    ("ladder", lambda chosen: training.ladder("digits-mlp", chosen), (), "chosen", 5),
    *[("race", training.race, ("digits-mlp", {}, {}), name, 5) for name in ("progress", "stop", "show", "names")],
    ("training", training.task, (), "name", 5),
]  # fmt: skip


@pytest.mark.parametrize(("name", "function", "given", "argument", "value"), REFUSED, ids=[f"{row[0]}-{row[3]}" for row in REFUSED])
def test_a_refusal_begins_with_who_refuses_what(name: str, function: Any, given: tuple[Any, ...], argument: str, value: Any) -> None:
    """The function, the argument and the value, and nothing was done yet."""
    shown = "task" if name == "training" else argument
    text = said(function, *given, **{argument: value})
    assert text.startswith((f"{name}: {shown} is {value!r}; expected ", f"{name}: {shown}={value!r}; expected "))


# What a call without options means; what it leaves to the task, the device or the machine is None.
_TRAINS = {
    "precision": "float32", "optimizer": "adam", "accumulate": 1, "checkpoint": False, "compile": False, "channels_last": False,
    "workers": 0, "prefetch": 0, "pinned": False, "cuda_graph": False, "loading": "batches", "read_loss": False, "autotune": False,
    "seed": 0,
}  # fmt: skip
USUAL: dict[str, dict[str, Any]] = {
    "fit": _TRAINS,
    "Run": _TRAINS,
    "over_seeds": {"seeds": 5},
    "race": {"seed": 0},
    "compare_scripts": {"task": "digits-cnn", "items": 128, "seeds": 3, "tolerance": 0.02, "deadline": 20.0, "threads": 1},
    "ladder": {"task": "digits-cnn", "leave_out": (), "seeds": 3, "turns": 24, "tolerance": 0.02, "deadline": 60.0, "threads": 1},
    "compile_cost": {"cold": True, "deadline": 1.0},
    "hidden_waits": {"calls": 1, "count_to_cpu": False},
    "profile": {"steps": 3, "warmup": 2},
    "pipeline": {
        "batch_size": 32, "workers": 0, "prefetch": 2, "steps": 24, "image_size": 128, "pinned": False, "read_loss": True, "seed": 0,
    },
    # The batch of the real one: 32 pictures of 128 x 128 pixels in three colours, a byte each.
    "model_pipeline": {
        "copy_seconds": 0.001, "workers": 0, "prefetch": 2, "pinned": False, "read_loss": True, "cores": 8, "batch_size": 32,
        "batch_bytes": 1_572_864, "steps": 24,
    },
    "speedup_report": {"title": "What made the training faster"},
    "Data": {"copies": 1},
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(USUAL))
def test_what_a_call_without_options_means(name: str) -> None:
    """Figures in the course's text and in recordings were made with these."""
    found = inspect.signature(getattr(training, name)).parameters.items()
    left = {key: parameter.default for key, parameter in found if parameter.default not in (None, inspect.Parameter.empty)}
    assert left == USUAL[name]


# Items to learn from, batch, epochs, and the network's parameters, counted by hand: 3 x 3 filters without a bias, two numbers a channel
# for each norm, and layers with a bias; of a transformer's layer 12 width^2 + 13 width, and the rows of three tables.
_CNN = 9 * (16 + 16 * 16 + 16 * 32 + 32 * 32) + 2 * (16 + 16 + 32 + 32) + 32 * 10 + 10
TASKS = {
    "digits-cnn": (1297, 64, 8, _CNN),
    "digits-mlp": (1297, 64, 15, 64 * 128 + 128 + 128 * 128 + 128 + 128 * 10 + 10),
    "digits-hard-cnn": (500, 50, 20, _CNN),
    "prose-transformer": (None, 32, 2, None),
}


@pytest.mark.parametrize("name", sorted(TASKS))
def test_what_a_task_trains(name: str) -> None:
    """Its data, how long, at which rate, and which network; a run takes that where nothing else was asked for."""
    items, batch, epochs, parameters = TASKS[name]
    job = training.task(name)
    if name == "prose-transformer":
        items, letters = len(job.train), len(set(_data._PROSE.read_text(encoding="ascii")))
        parameters = 2 * 64 * letters + 64 * 64 + 2 * (12 * 64**2 + 13 * 64) + 2 * 64
        assert job.make_model().blocks[0].heads == 4
    assert (len(job.train), job.batch_size, job.epochs, job.learning_rate) == (items, batch, epochs, 0.003)
    assert sum(p.numel() for p in job.make_model().parameters()) == parameters
    options = training.Run(name, device="cpu").options
    assert (options.batch_size, options.steps, options.learning_rate) == (batch, items // batch * epochs, 0.003)
    assert set(training.tasks()) == set(TASKS)
