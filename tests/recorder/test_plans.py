"""What the experiments plan: every case of the recordings that ship, and the most telling ones first."""

from __future__ import annotations

import types
from collections.abc import Iterable

import pytest
import torch

from gpulab import recorder, recordings
from gpulab.compression import _integer, _sparse
from gpulab.devices import Device
from gpulab.recorder import Case, _compression, _ladders, _parallel, _pipeline
from gpulab.recordings import Entry
from gpulab.recordings._experiments import PARAMETERS, refuse_unusable

CUDA, CPU = Device("cuda", 0), Device("cpu")


@pytest.fixture(autouse=True)
def everything_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Play the machines of the recordings: one H200 or two cores, with every optional library and what their processors have."""
    found = types.SimpleNamespace(util=types.SimpleNamespace(find_spec=lambda name: name))  # only for the plans: imports ask it too
    for module in (_compression, _ladders, _pipeline):
        monkeypatch.setattr(module, "importlib", found)
    monkeypatch.setattr(_integer, "refusal", lambda *_: "")
    monkeypatch.setattr(_sparse, "two_four_refusal", lambda *_: "")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: (9, 0))
    monkeypatch.setattr(_parallel.devices, "available", lambda: [CPU, CUDA])
    monkeypatch.setattr(_parallel.devices, "environment", lambda device: types.SimpleNamespace(cores=2))


def planned(experiment: str, device: Device) -> list[Case]:
    """The cases of one experiment on a device."""
    return list(recorder.experiments([experiment])[0].cases(device))


def said(params: Iterable[tuple[str, object]]) -> frozenset[tuple[str, object]]:
    """What tells a case from others, in a form that a set takes."""
    return frozenset(params)


@pytest.mark.parametrize("name", recordings.names())
def test_each_recorded_case_is_still_planned(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A case that was recorded keeps its parameters: a recording can be gone on with, and what reads it finds what it asks for."""
    monkeypatch.delenv("GPULAB_RECORDINGS", raising=False)
    recording = recordings.load(name)
    device = Device(recording.environment.device_kind or "cpu")
    there: dict[str, set[frozenset[tuple[str, object]]]] = {}
    for entry in recording.entries:
        there.setdefault(entry.experiment, set()).add(said(entry.params.items()))
    for experiment, recorded in there.items():
        assert recorded <= {said(case.params.items()) for case in planned(experiment, device)}, experiment


@pytest.mark.parametrize("device", [CPU, CUDA], ids=str)
def test_what_is_planned_has_what_the_readers_of_a_recording_take_for_granted(device: Device) -> None:
    """Each experiment is known to those who read, and none of its cases would be refused."""
    for experiment in recorder.experiments():
        assert experiment.name in PARAMETERS
        refuse_unusable(Entry(experiment.name, case.params, None, "not yet") for case in experiment.cases(device))


# Experiment, what its cases are told apart by, and what a budget of a few minutes reaches before the rest: written from the docstrings.
FIRST = [
    ("ceilings", "operation", {"copy", "triad", "gemm"}),  # all of it
    ("launch", "operation", {"stream", "graph"}),
    ("transfer", "nbytes", {2**10, 2**14, 2**18, 2**22, 2**26, 2**30}),  # every fourth power, and both ends
    ("latency", "nbytes", {2**14, 2**18, 2**22, 2**26}),  # every fourth doubling
    ("bandwidth", "nbytes", {2**22, 2**26}),
    ("overlap", "chunks", {8}),  # of 2 to 32
    ("catalogue", "dtype", {"float32"}),
    ("training", "means", {"plain"}),
    ("training", "precision", {"float32", "bfloat16"}),
    ("precision", "n", {4096}),
    ("tips", "tip", {"no_grad", "one_call"}),
    ("data-parallel scaling", "model", {"large-transformer"}),
    ("ladders", "n", {1024, 2048, 4096, 2**22}),  # the middle one of three sizes of each family
]


@pytest.mark.parametrize(("experiment", "param", "values"), FIRST, ids=[f"{one[0]} {one[1]}" for one in FIRST])
def test_what_tells_most_comes_first(experiment: str, param: str, values: set[object]) -> None:
    """On a GPU: a short budget shows the shape of each curve, and something of each family."""
    cases = planned(experiment, CUDA)
    first = min(case.rank for case in cases)
    assert {case.params[param] for case in cases if case.rank == first} == values


def test_the_middle_size_of_each_workload_and_of_each_ladder_comes_first() -> None:
    """Of a workload's sizes in float32 the middle one, then the others, then the other dtypes; of two sizes of a rung the smaller."""
    found: dict[str, list[tuple[int, object, int]]] = {}
    for case in planned("catalogue", CUDA):
        found.setdefault(str(case.params["workload"]), []).append((case.rank, case.params["dtype"], int(case.params["n"])))
    for name, cases in found.items():
        (first,) = [n for rank, _, n in cases if rank == 1]
        second = [n for rank, _, n in cases if rank == 2]
        assert sum(n < first for n in second) in (len(second) // 2, (len(second) + 1) // 2), name
        assert {dtype for rank, dtype, _ in cases if rank < 3} == {"float32"}
        assert "float32" not in {dtype for rank, dtype, _ in cases if rank == 3}
    rungs: dict[object, dict[int, int]] = {}
    for case in planned("ladders", CUDA):
        rungs.setdefault((case.params["rung"], case.params.get("options")), {})[int(case.params["n"])] = case.rank
    for name, ranks in rungs.items():
        assert [ranks[n] for n in sorted(ranks)] == [1, 2], name


def test_the_rest_of_each_experiment_comes_in_the_order_of_what_it_tells() -> None:
    """Means in bfloat16 before those in float32; csr with nearly all zeros before the half; one worker and four before the others."""
    training = {(str(c.params["precision"]), c.params["means"] == "plain"): c.rank for c in planned("training", CUDA)}
    assert training["bfloat16", True] < training["bfloat16", False] == training["float16", True] < training["float32", False]
    csr = {c.params["zeros"]: c.rank for c in planned("compression", CUDA) if c.params.get("form") == "csr" and c.params["rows"] > 1}
    assert csr[0.9] == csr[0.98] < csr[0.5]
    groups = {c.params["groups"]: c.rank for c in planned("compression", CUDA) if "groups" in c.params}
    assert groups[1] == groups[128] < groups[4] == groups[32]
    steps = {c.params["workers"]: c.rank for c in planned("pipeline", CUDA) if "workers" in c.params}
    assert steps[0] == steps[4] < steps[1] == steps[2] == steps[8]
    collectives = {c.params["collective"]: c.rank for c in planned("collectives", CPU)}
    assert [name for name, rank in collectives.items() if rank == min(collectives.values())] == ["all_reduce"]
    scaling = {c.params["model"]: c.rank for c in planned("data-parallel scaling", CPU)}
    assert scaling["mlp"] < scaling["transformer"]


def test_cases_of_long_calls_take_more_of_the_budget() -> None:
    """Ten steps of training on a GPU, and a loop or a step behind workers, are long calls; single steps on a CPU are not."""
    assert {c.shares for c in planned("training", CUDA)} == {c.shares for c in planned("speed-up ladder", CUDA)} == {4}
    assert {c.shares for c in planned("training", CPU)} == {1}
    assert {c.params["part"]: c.shares for c in planned("pipeline", CUDA)} == {"loop": 4, "decode": 1, "step": 4}


@pytest.mark.parametrize("kind", ["mps", "xpu"])
def test_what_other_gpus_are_not_asked_for(kind: str) -> None:
    """Chases, ladders and collectives were written for CUDA; a graph of launches and cuDNN's choice are CUDA's too."""
    device = Device(kind)
    assert [planned(name, device) for name in ("latency", "bandwidth", "ladders", "collectives")] == [[], [], [], []]
    assert [c.params["operation"] for c in planned("launch", device)] == ["stream"]
    # A step behind workers trains on CUDA alone; what would be timed here is the taking of a batch, which the ledger tells of a CPU.
    assert {c.params["part"] for c in planned("pipeline", device)} == {"loop", "decode"}
    tips = {str(c.params["tip"]) for c in planned("tips", device)}
    assert "create_on_device" in tips
    assert "cudnn_autotune" not in tips


DOUBLINGS = {2**k for k in range(12, 30)} | {3 * 2 ** (k - 1) for k in range(12, 29)}  # 4 KiB to 512 MiB, two a doubling


@pytest.mark.parametrize(
    ("experiment", "device", "param", "values"),
    [
        ("latency", CUDA, "nbytes", DOUBLINGS),
        ("latency", CPU, "nbytes", {n for n in DOUBLINGS if n <= 2**26}),
        ("bandwidth", CUDA, "nbytes", {n for n in DOUBLINGS if n >= 2**20}),  # a set that all multiprocessors share
        ("bandwidth", CPU, "nbytes", {n for n in DOUBLINGS if n <= 2**26}),
        ("transfer", CUDA, "nbytes", {2**k for k in range(10, 31)}),  # 1 KiB to 1 GiB
        ("overlap", CUDA, "nbytes", {2**24, 2**28}),
        ("overlap", CUDA, "chunks", {2, 4, 8, 16, 32}),
        ("collectives", CPU, "nbytes", {4**k for k in range(5, 13)}),  # 1 KiB to 16 MiB, each four times the last
        ("precision", CUDA, "n", {1023, 1024, 4095, 4096, 8191, 8192}),
        ("precision", CPU, "n", {511, 512}),
        ("compression", CUDA, "zeros", {0.0, 0.5, 0.9, 0.98, None}),
        ("compression", CUDA, "rows", {1, 4096, None}),
        ("compression", CPU, "rows", {1, 64, None}),
        ("compression", CUDA, "groups", {None, 1, 4, 32, 128}),
        ("pipeline", CUDA, "workers", {None, 0, 1, 2, 4, 8}),
        ("ceilings", CUDA, "n", {None, 8192}),
        ("ceilings", CPU, "n", {None, 2048}),
        ("ceilings", CUDA, "nbytes", {None, 2 * 2**30, 3 * 2**30}),  # two arrays of a copy, three of a triad
        ("ceilings", CPU, "nbytes", {None, 2 * 2**28, 3 * 2**28}),
        ("launch", CUDA, "launches", {1000}),
    ],
)  # fmt: skip
def test_the_whole_range_of_each_experiment(experiment: str, device: Device, param: str, values: set[object]) -> None:
    """From the experiments' own docstrings and the claims that read them."""
    assert {case.params.get(param) for case in planned(experiment, device)} == values


def test_eight_gpus_are_asked_for_collectives_up_to_a_gibibyte(monkeypatch: pytest.MonkeyPatch) -> None:
    """From 1 KiB, each four times the last, on all of them; steps on 1, 2, 4 and 8; of six on 1, 2, 4 and 6."""
    for world, counts in ((8, [1, 2, 4, 8]), (6, [1, 2, 4, 6])):
        monkeypatch.setattr(_parallel.devices, "available", lambda world=world: [CPU, *[CUDA] * world])
        assert {case.params["nbytes"] for case in planned("collectives", CUDA)} == {4**k for k in range(5, 16)}
        assert sorted({case.params["ranks"] for case in planned("data-parallel scaling", CUDA)}) == counts
    monkeypatch.setattr(_parallel.devices, "available", lambda: [CPU, CUDA, CUDA])
    assert {case.params["ranks"] for case in planned("collectives", CUDA)} == {2}
