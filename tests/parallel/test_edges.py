"""The edges of what the functions of ranks take: the last value that is taken, the first that is refused, as their sentences say.

What is taken is seen by the next argument's refusal: no rank is started here.
"""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from gpulab import parallel
from gpulab.errors import InputError
from gpulab.parallel import (
    CollectiveCall,
    _agent,
    _engines,
    _group,
    _guard,
    _guarded,
    _hub,
    _links,
    _profiles,
    _rank_step,
    _scaling,
    _scaling_step,
    _stop,
    _strategies_worker,
    _sweep,
    _sweep_step,
    _timeline,
)
from gpulab.parallel._timeline import RankNotes

# What is called, with what, and how its refusal begins: that of the value itself, or of the one that comes after it.
EDGES: list[tuple[Any, dict[str, Any], str]] = [
    (parallel.cluster, {"n": 1, "timeout_seconds": 86_400, "threads": 0}, "cluster: threads=0; expected 1 or more."),
    (parallel.cluster, {"n": 2, "timeout_seconds": 86_400.5}, "cluster: timeout_seconds=86400.5; expected seconds above 0, a day at most."),
    (parallel.cluster, {"n": 2, "threads": 1, "port": 65_536}, "cluster: port=65536; expected 0 to 65535."),
    (parallel.cluster, {"n": 2, "port": 65_535, "progress": 3}, "cluster: progress=3"),
    (parallel.cluster, {"n": 2, "port": 0, "progress": 3}, "cluster: progress=3"),
    (parallel.cluster, {"n": 2, "port": -1}, "cluster: port=-1;"),
    (parallel.scaling, {"deadline": 3600, "wait_seconds": 0}, "scaling: wait_seconds is 0; expected more than 0 and at most 10."),
    (parallel.scaling, {"deadline": 3600.5}, "scaling: deadline is 3600.5; expected seconds above 0, an hour at most."),
    (parallel.scaling, {"deadline": 0}, "scaling: deadline is 0;"),
    (parallel.scaling, {"wait_seconds": 10, "counts": ()}, "scaling: counts is empty;"),
    (parallel.scaling, {"wait_seconds": 10.5}, "scaling: wait_seconds is 10.5;"),
    (parallel.scaling, {"ranks": 64, "counts": ()}, "scaling: counts is empty;"),
    (parallel.scaling, {"ranks": 1, "counts": ()}, "scaling: counts is empty;"),
    (parallel.scaling, {"ranks": 65}, "scaling: ranks is 65; expected a started cluster, or a whole number from 1 to 64."),
    (parallel.scaling, {"ranks": 0}, "scaling: ranks is 0;"),
    (parallel.global_batch, {"ranks": (1, 4096), "batch": 2**20, "epochs": 0},
     "global_batch: epochs is 0; expected whole numbers from 1 to 10,000."),
    (parallel.global_batch, {"ranks": (4097,)}, "global_batch: ranks is 4097; expected whole numbers from 1 to 4,096."),
    (parallel.global_batch, {"ranks": (0,)}, "global_batch: ranks is 0;"),
    (parallel.global_batch, {"batch": 2**20 + 1}, "global_batch: batch is 1048577; expected whole numbers from 1 to 1,048,576."),
    (parallel.global_batch, {"batch": 1, "epochs": 10_000, "learning_rate": 0},
     "global_batch: learning_rate is 0; expected a finite number above 0."),
    (parallel.global_batch, {"epochs": 10_001}, "global_batch: epochs is 10001;"),
    (parallel.global_batch, {"learning_rate": 1e6, "momentum": -1}, "global_batch: momentum is -1; expected a finite number from 0."),
    (parallel.global_batch, {"learning_rate": 1e6 + 1}, "global_batch: learning_rate is 1000001"),
    (parallel.global_batch, {"momentum": 0, "warm_up_epochs": -1}, "global_batch: warm_up_epochs is -1;"),
    (parallel.global_batch, {"warm_up_epochs": 0, "ranks": (1,), "batch": 2**20},
     "global_batch: 1 rank x 1,048,576 samples are more than the 1297"),
]  # fmt: skip


@pytest.mark.parametrize(("function", "given", "words"), EDGES, ids=[f"{row[0].__name__}-{k}" for k, row in enumerate(EDGES)])
def test_the_last_value_is_taken_and_the_next_refused(function: Any, given: dict[str, Any], words: str) -> None:
    """A refusal tells the edges, and those are where it begins."""
    usual = {"ranks": 2} if function is parallel.scaling else {}
    with pytest.raises(InputError) as caught:
        function(**{**usual, **given})
    assert str(caught.value).startswith(words)


def test_the_edges_of_batches_counts_and_sizes() -> None:
    """A million and some samples, as many ranks as there are, 16 GiB; a byte takes an element of float32 on each of two ranks."""
    model = _scaling._model("mlp")
    assert [_scaling._batch(model, batch, "weak", (2,)) for batch in (1, 2**20)] == [1, 2**20]
    with pytest.raises(InputError, match=r"^scaling: batch is 1048577; expected a whole number from 1 to 1,048,576\."):
        _scaling._batch(model, 2**20 + 1, "weak", (2,))
    assert _scaling._counts(3, (3, 1)) == (1, 3)
    assert _sweep._elements([1, 2**34], 2) == (2, 2**32)
    for wrong in (0, 2**34 + 1):
        with pytest.raises(InputError, match=rf"^sweep: sizes has {wrong}; expected whole bytes from 1 to 16\.0 GiB\."):
            _sweep._elements([wrong], 2)


# What a call takes where nothing is said: as the docstrings, the course's text and the instruments tell it, written down once more by hand.
MIB = 1_048_576
LEFT_OUT: list[tuple[Any, dict[str, Any]]] = [
    (parallel.cluster, {"n": 2, "profile": None, "timeout_seconds": 20.0, "threads": 1, "backend": None, "port": 0, "progress": None}),
    (parallel.Ranks.run, {"timeout_seconds": None}),
    (parallel.observe, {"tell": None}),
    (parallel.sweep, {"operation": "all_reduce", "sizes": None, "deadline": 10.0, "progress": None, "stop": None}),
    (parallel.scaling, {"model": "mlp", "mode": "strong", "batch": None, "counts": None, "wait_seconds": None, "deadline": 4.0,
                        "progress": None, "stop": None}),
    (parallel.recorded_scaling, {"model": None, "mode": "strong"}),
    (parallel.global_batch, {
        "task": "digits-mlp", "ranks": (1, 4, 8, 16, 32), "batch": 16, "epochs": 5, "learning_rate": 0.03, "momentum": 0.9,
        "warm_up_epochs": 1.0, "rules": ("unchanged", "linear", "linear with warm-up"), "seeds": 3, "device": "cpu", "progress": None,
        "stop": None,
    }),
    (parallel.run_schedule, {"schedule": "1f1b", "microbatches": 8, "forward_seconds": 0.02, "backward_seconds": 0.04, "chunks": None,
                             "steps": 3, "progress": None, "stop": None}),
    (parallel.train, {
        "strategy": "ddp", "task": "prose-transformer", "model": None, "steps": 20, "batch_size": None, "dtype": "float32",
        "optimizer": "adam", "learning_rate": None, "microbatches": 4, "bucket_bytes": MIB // 16, "seed": 0, "progress": None, "stop": None,
    }),
    (parallel.predict_ranks, {
        "inputs": None, "targets": None, "rank": 0, "precision": "float32", "optimizer": "adam", "checkpoint": False, "loss": None,
        "microbatches": None, "bucket_bytes": 25 * MIB, "progress": None, "stop": None,  # DDP's own buckets
    }),
    (_rank_step.Plan, {"precision": "float32", "optimizer": "adam", "checkpoint": False, "microbatches": 1, "bucket_bytes": 25 * MIB,
                       "loss": None}),
    (parallel.rank_states, {"rank": 0, "optimizer": "adam"}),
    (_scaling_step.StepModel, {"vocabulary": 0, "batch": 24}),
    (_scaling_step.StepSpec, {"wait_seconds": None, "steps_a_sample": 1}),
    (_strategies_worker.Job, {"wish": None}),
    (_sweep_step.timed_calls, {"root": 0}),
    (_sweep_step.sent_bytes, {"root": 0}),
    (_timeline.clocks_ahead, {"device": "cpu", "rounds": 8}),
    (_engines.last_line, {"most": 200}),
    (_engines.LocalEngines._wait, {"names": (), "seconds": 180.0}),
    (_hub.connect, {"seconds": 20.0}),
    (_guarded.Guarded.__init__, {"on_end": None, "end_seconds": 10.0}),
    (parallel.RankMemory.needed_bytes, {"device_kind": "cuda"}),
    (RankNotes, {"ahead_seconds": 0.0}),
    (parallel.RankSpan, {"nbytes": 0}),
    (CollectiveCall, {"error": None}),
]  # fmt: skip


@pytest.mark.parametrize(("function", "given"), LEFT_OUT, ids=[row[0].__qualname__ for row in LEFT_OUT])
def test_what_is_left_out_is_what_is_told(function: Any, given: dict[str, Any]) -> None:
    """Each parameter that may be left out, and no other, with the value that then counts."""
    parameters = inspect.signature(function).parameters.values()
    assert {each.name: each.default for each in parameters if each.default is not inspect.Parameter.empty} == given


# Bounds of time that have no argument: how long somebody waits before he gives up or looks again.
WAITS: list[tuple[Any, dict[str, float]]] = [
    (_engines, {"START_SECONDS": 180.0, "_KILL_SECONDS": 5.0, "_POLL_SECONDS": 0.02}),
    (_group, {"_OPEN_SECONDS": 60.0, "_CLOSE_SECONDS": 3.0, "_POLL_SECONDS": 0.05}),
    (_guard, {"_TICK_SECONDS": 0.05}),
    (_links, {"_COMMAND_SECONDS": 20.0}),
    (_profiles, {"_ATTACH_SECONDS": 5.0, "_ENGINES_SECONDS": 60.0, "_QUEUE_SECONDS": 600.0, "_STOP_SECONDS": 20.0, "_IDLE_SECONDS": 3.0,
                 "_POLL_SECONDS": 0.1}),
    (_stop, {"_POLL_SECONDS": 0.02}),
    (_agent, {"_TICK_SECONDS": 0.25, "_STEADY_SECONDS": 1.0, "_FREE_AFTER_SECONDS": 0.5}),
    (_sweep, {"_CHUNK_SECONDS": 0.3, "_LEAST_SECONDS": 0.05, "_WIDTH": 0.05}),
    (_scaling, {"_CHUNK_SECONDS": 0.4, "_WIDTH": 0.04}),
]  # fmt: skip


@pytest.mark.parametrize(("module", "seconds"), WAITS, ids=[row[0].__name__.rpartition(".")[2] for row in WAITS])
def test_bounds_of_waiting_are_those_that_are_told(module: Any, seconds: dict[str, float]) -> None:
    """A start within three minutes, a death within five seconds, a queue of ten minutes, looks that leave the core to others."""
    assert {name: getattr(module, name) for name in seconds} == seconds


@pytest.mark.parametrize("name", ["progress", "stop"])
@pytest.mark.parametrize(
    ("function", "given"),
    [
        (parallel.sweep, (2,)), (parallel.scaling, (2,)), (parallel.global_batch, ()), (parallel.run_schedule, (2,)),
        (parallel.train, (2,)),
    ],
)  # fmt: skip
def test_a_callback_that_is_none_is_refused_by_its_name(function: Any, given: tuple[Any, ...], name: str) -> None:
    """Before anything else is looked at: which function, which argument, and its value."""
    with pytest.raises(InputError) as caught:
        function(*given, **{name: 3})
    assert str(caught.value) == f"{function.__name__}: {name}=3; expected a function. Pass one, or leave it out."


@pytest.mark.parametrize("name", ["progress", "stop"])
def test_a_prediction_refuses_a_callback_that_is_none(name: str) -> None:
    """As the measurements do."""
    with pytest.raises(InputError, match=rf"^predict_ranks: {name}=3; expected a function\."):
        parallel.predict_ranks("course", strategy="ddp", ranks=2, **{name: 3})  # type: ignore[arg-type]
