"""The recorder's experiments: the plan for each device, and a real run of a case of each.

Plans for a GPU are made with stand-ins for the functions of ``torch.cuda`` that query hardware.
"""

from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from gpulab import recorder, recordings
from gpulab.devices import Device
from gpulab.recorder import Experiment

torch = pytest.importorskip("torch")
for name in ("cupy", "numba", "PIL", "torchao"):  # plans depend on the packages installed
    pytest.importorskip(name)

pytestmark = pytest.mark.usefixtures("two_cores")  # plans for one core have fewer ranks
CPU = Device("cpu")
H200 = SimpleNamespace(
    name="NVIDIA H200", major=9, minor=0, total_memory=141 * 2**30, multi_processor_count=132
)


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Device:
    """Make ``torch.cuda`` report five H200s."""
    answers = {
        "is_available": True, "device_count": 5,
        "get_device_name": H200.name, "get_device_capability": (9, 0),
        "get_device_properties": H200,
    }  # fmt: skip
    for name, answer in answers.items():
        monkeypatch.setattr(torch.cuda, name, lambda *_, answer=answer: answer)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    return Device("cuda", 0)


def plan(device: Device) -> str:
    """Return each experiment's cases: how many per rank, and each parameter's values as text."""
    lines = []
    for experiment in recorder.experiments():
        cases = list(experiment.cases(device))
        turns = ", ".join(
            f"{n} in rank {rank} of share {share}" for (rank, share), n
            in sorted(Counter((case.rank, case.shares) for case in cases).items())
        )  # fmt: skip
        lines.append(f"{experiment.name}: {turns or 'nothing'}")
        for name in dict.fromkeys(name for case in cases for name in case.params):
            first: dict[Any, int] = {}
            for case in sorted(cases, key=lambda case: case.rank):
                if name in case.params:
                    first.setdefault(case.params[name], case.rank)
            lines.append(f"    {name}: " + " ".join(f"{v}({r})" for v, r in first.items()))
    return "\n".join(lines) + "\n"


def test_the_plan_of_a_cpu(approved: Any) -> None:
    """Each parameter's values with the first rank that has them, on two cores."""
    assert plan(CPU) == approved


def test_the_plan_of_a_gpu(gpus: Device, approved: Any) -> None:
    """An H200 has TF32, FP8, 2:4, graphs, pinned memory and the ladders of kernels. Five ranks do
    not divide the 24 samples of strong scaling.
    """
    assert plan(gpus) == approved
    assert {
        (case.params["mode"], case.params["ranks"])
        for case in recorder.experiments(["data-parallel scaling"])[0].cases(gpus)
        if case.params["batch"] == 24
    } == {*(("strong", n) for n in (1, 2, 4)), *(("weak", n) for n in (1, 2, 4, 5))}


def test_the_plan_of_another_gpu(approved: Any) -> None:
    """MPS has no chases, ladders, collectives, graphs, float64 or TF32."""
    assert plan(Device("mps")) == approved


@pytest.mark.parametrize("name", recordings.names())
def test_each_recorded_case_is_still_planned(name: str, gpus: Device) -> None:
    """A shipped recording can be continued: each of its cases is still in the plan, except single
    steps behind workers, whose batches come in bursts.
    """
    recording = recordings.load(name)
    device = CPU if recording.environment.device_kind == "cpu" else gpus
    planned = {
        (experiment.name, frozenset(case.params.items()))
        for experiment in recorder.experiments()
        for case in experiment.cases(device)
    }
    assert planned >= {
        (e.experiment, frozenset(e.params.items())) for e in recording.entries
        if e.params.get("part") != "step"
    }  # fmt: skip


# The cheapest cases of each experiment, and the FLOPs and bytes of one call, by hand.
TINY: list[tuple[str, dict[str, Any], float | None, float | None]] = [
    ("catalogue", {"workload": "matmul", "n": 64, "dtype": "float32"}, 2 * 64**3, 3 * 4 * 64**2),
    ("ceilings", {"operation": "copy"}, None, 2 * 2**28),  # two arrays of 256 MiB
    ("ceilings", {"operation": "gemm", "dtype": "float32"}, 2 * 2048**3, None),
    ("launch", {"operation": "stream"}, None, None),
    ("compression", {"groups": 1}, 2 * 8 * 16**2 * 128 * 128 * 9, None),
    ("compression", {"groups": 128}, 2 * 8 * 16**2 * 128 * 9, None),
    ("compression", {"form": "dense", "rows": 64}, 2 * 64 * 1024**2, None),
    *(("compression", {"form": form}, None, None)
      for form in ("csr", "8-bit weights in float", "torchao, 8-bit weights")),
    ("latency", {"nbytes": 4096}, None, None),
    ("bandwidth", {"nbytes": 2**20}, None, None),
    ("pipeline", {"part": "loop", "reads_loss": 1}, None, None),
    ("pipeline", {"part": "decode"}, None, None),
    ("pipeline", {"part": "step", "workers": 0, "steps": 16}, None, None),
    ("precision", {"format": "float32", "n": 512}, 2 * 512**3, None),
    ("precision", {"format": "bfloat16", "n": 511}, 2 * 511**3, None),
    # Two products for each of 8 sequences and 4 heads, half of them masked; five more backward.
    ("attention", {"kernel": "flash", "length": 256}, 2 * 2 * 8 * 4 * 256**2 * 32 / 2, None),
    ("attention", {"kernel": "written out", "passes": "forward and backward"},
     7 * 2 * 8 * 4 * 256**2 * 32 / 2, None),
    # Four layers of 2 x 256 x 256 + 256 x 128 + 3 x 256 x 1024 and 512, then 256 + 1024 x 256. Of a
    # prompt only the last position is scored.
    ("generation", {"phase": "decode", "batch": 1}, 2 * (4 * 950_784 + 262_400), None),
    ("generation", {"phase": "prefill"}, 2 * (128 * (4 * 950_784 + 256) + 1024 * 256), None),
    ("tips", {"tip": "one_call", "form": "without"}, None, None),
    ("transfer", {"nbytes": 2**20}, None, 2**20),
    *(("overlap", {"arrangement": arrangement, "nbytes": 2**24, "chunks": 2}, None, 2**24)
      for arrangement in ("serial", "chunked")),
]  # fmt: skip
SLOW: list[tuple[str, dict[str, Any], float | None, float | None]] = [
    ("pipeline", {"part": "step", "workers": 1}, None, None),
    # The quickest model: steps of more than 20 s are left out, here and for users.
    ("training", {"model": "cnn", "precision": "float32", "means": "plain"}, None, None),
    ("data-parallel scaling", {"mode": "weak", "ranks": 2, "model": "mlp"}, None, None),
    *(("collectives", {"collective": name, "nbytes": 1024}, None, 1024)
      for name in ("all_reduce", "all_gather", "reduce_scatter", "broadcast")),
]  # fmt: skip


def recorded(
    path: Path, device: Device, cases: list[tuple[str, dict[str, Any], Any, Any]]
) -> list[tuple[recordings.Entry, Any, Any]]:
    """Record the first case that has each set of parameters; return the entries as loaded."""
    wanted = []
    for name, some, flops, nbytes in cases:
        (experiment,) = recorder.experiments([name])
        case = next(c for c in experiment.cases(device) if some.items() <= c.params.items())
        wanted.append((Experiment(name, "", lambda device, case=case: [case]), case, flops, nbytes))
    recorder.record(
        path, only=[one for one, *_ in wanted], minutes=0.02, visits=1, device=str(device),
        clock=lambda: 0.0,
    )  # fmt: skip
    there = recordings.read(path)
    assert [entry.reason for entry in there.missing()] == []
    return [
        (there.find(one.name, **case.params), flops, nbytes) for one, case, flops, nbytes in wanted
    ]


@pytest.mark.slow
@pytest.mark.parametrize("cases", [TINY, SLOW], ids=["tiny", "slow"])
def test_a_case_of_each_experiment_runs(
    tmp_path: Path, cases: list[tuple[str, dict[str, Any], Any, Any]]
) -> None:
    """A real case is recorded and loads with its time, its first call, and its FLOPs or bytes."""
    for entry, flops, nbytes in recorded(tmp_path / "r.json", CPU, cases):
        timing = entry.timing
        assert min(timing.median_seconds, timing.first_call_seconds) > 0, entry.key
        assert flops is None or timing.flops == flops, entry.key
        assert nbytes is None or timing.nbytes == nbytes, entry.key
    assert {name for name, *_ in TINY + SLOW} == {
        one.name for one in recorder.experiments() if list(one.cases(CPU))
    }, "add the cheapest case of each experiment to TINY"


@pytest.mark.gpu
def test_a_case_of_each_experiment_runs_on_a_gpu(tmp_path: Path) -> None:
    """The case of lowest rank of each experiment for this GPU runs without failing."""
    device = Device("cuda", 0)
    firsts = [
        (one.name, dict(min(cases, key=lambda case: case.rank).params), None, None)
        for one in recorder.experiments()
        if (cases := list(one.cases(device)))
    ]
    recorded(tmp_path / "r.json", device, firsts)


@pytest.mark.slow
def test_each_tip_is_what_its_manual_says(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """Gradients, inference mode, anomaly detection and biases are as the tip says at run time, and
    TF32 is off though the caller allows it.
    """
    for place in (torch.backends.cuda.matmul, torch.backends.mkldnn.matmul):
        request.addfinalizer(
            lambda at=place, was=place.fp32_precision: setattr(at, "fp32_precision", was)
        )
    request.addfinalizer(lambda: torch.set_float32_matmul_precision("highest"))
    torch.set_float32_matmul_precision("high")
    seen: list[tuple[bool, bool, bool]] = []
    steps: list[tuple[str, Any]] = []

    def spy(owner: Any, name: str, note: Any) -> None:
        original = getattr(owner, name)

        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            note(self, *args, **kwargs)
            return original(self, *args, **kwargs)

        monkeypatch.setattr(owner, name, call)

    spy(torch.nn.Linear, "forward", lambda *_: seen.append((
        torch.is_grad_enabled(), torch.is_inference_mode_enabled(),
        torch.is_anomaly_enabled() or torch.backends.cuda.matmul.allow_tf32,
    )))  # fmt: skip
    spy(torch.nn.Conv2d, "forward", lambda layer, _: steps.append(("bias", layer.bias is not None)))
    spy(torch.optim.Optimizer, "zero_grad",
        lambda _, set_to_none=True: steps.append(("none", set_to_none)))  # fmt: skip
    spy(
        torch.optim.Adam,
        "step",
        lambda adam, *_: steps.append(("foreach", adam.defaults["foreach"])),
    )
    found: dict[tuple[Any, Any], Any] = {}
    for case in recorder.experiments(["tips"])[0].cases(CPU):
        seen.clear()
        steps.clear()
        case.time(0.001)
        found[case.params["tip"], case.params["form"]] = (set(seen), set(steps))
    plain, step = (True, False, False), ("none", True)
    assert found == {
        ("no_grad", "without"): ({plain}, set()),
        ("no_grad", "with"): ({(False, False, False)}, set()),
        ("inference_mode", "without"): ({(False, False, False)}, set()),
        ("inference_mode", "with"): ({(False, True, False)}, set()),
        ("set_to_none", "without"): ({plain}, {("none", False)}),
        ("set_to_none", "with"): ({plain}, {step}),
        ("no_anomaly_detection", "without"): ({(True, False, True)}, {step}),
        ("no_anomaly_detection", "with"): ({plain}, {step}),
        ("foreach", "without"): ({plain}, {step, ("foreach", False)}),
        ("foreach", "with"): ({plain}, {step, ("foreach", True)}),
        ("no_bias_before_norm", "without"): (set(), {("bias", True)}),
        ("no_bias_before_norm", "with"): (set(), {("bias", False)}),
        **{(tip, form): (set(), set()) for tip in ("as_tensor", "one_call")
           for form in ("without", "with")},
    }  # fmt: skip
