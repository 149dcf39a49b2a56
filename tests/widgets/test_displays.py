"""What instruments show for given settings and results, approved: words, tables, code, pictures."""

import contextlib
import dataclasses
from typing import Any

import pytest
import results_by_hand as made
from gpulab import devices, models, timing, training, units
from gpulab.errors import InputError
from gpulab.figures import LabFigure
from instruments import display, make, run_cell

from refusals import refusals, refused
from texts import figure_text

# Instrument and settings; what is on the screen follows from them alone.
ANALYTIC: list[tuple[str, dict[str, Any]]] = [
    ("AccessPatterns", {}),
    (
        "AccessPatterns",
        {"stride_elements": 33, "element_bytes": 8, "offset_elements": 3, "active_lanes": 20},
    ),
    ("AccessPatterns", {"kind": "rows of 8", "stride_elements": 36, "offset_elements": 3}),
    ("NumberFormats", {}),
    ("NumberFormats", {"value": 70000, "beside": "none"}),
    ("NumberFormats", {"format": "float8_e4m3fn", "value": -0.3, "steps": 2}),
    ("NumberFormats", {"format": "int8", "value": -3.6, "beside": "float4_e2m1fn"}),
    ("NumberFormats", {"format": "float8_e5m2", "bits": (1, 2, 3, 4, 5)}),  # infinity
    ("NumberFormats", {"format": "float8_e5m2", "bits": (0,)}),  # -0.0
    ("NumberFormats", {"format": "float16", "value": 1e-9}),
    ("OccupancyExplorer", {}),
    ("OccupancyExplorer", {"threads_per_block": 1024, "registers_per_thread": 255}),
    (
        "OccupancyExplorer",
        {"shared_bytes_per_block": 50000, "compute_capability": "8.6", "barriers_per_block": 2},
    ),
    ("PipelineSchedule", {}),
    ("PipelineSchedule", {"schedule": "1f1b", "stages": 2, "microbatches": 6, "transfer_ms": 5}),
    ("PipelineSchedule", {"schedule": "interleaved", "chunks": 2, "forward_ms": 10}),
    ("PipelineSchedule", {"schedule": "split", "stages": 3, "microbatches": 4}),
    ("PipelineTimeline", {}),
    ("PipelineTimeline", {"workers": 3, "batch_size": 64, "pinned": True, "read_loss": False}),
    ("ScalingLab", {}),
    ("ScalingLab", {"quantity": "efficiency", "mode": "weak", "top": 8, "overlap": 0.5}),
    ("ScalingLab", {"quantity": "seconds", "laws": ["ring"], "recorded": "nvidia-h200"}),
    ("ShardingExplorer", {}),
    (
        "ShardingExplorer",
        {"strategy": "all", "ranks": 64, "precision": "float32", "gpu": "A100 80GB SXM, 80.0 GiB"},
    ),
    ("ShardingExplorer", {"strategy": "pipeline-1f1b", "ranks": 4}),
    ("ShardingExplorer", {"strategy": "tensor", "model": "7B"}),
    ("TransferExplorer", {"view": "overlap"}),
    (
        "TransferExplorer",
        {"view": "overlap", "link": "pcie3-x16", "compute_ratio": 4.0, "nbytes": 2**20},
    ),
    (
        "TransferExplorer",
        {"latency_seconds": 1e-5, "bandwidth_bytes_per_second": 1e9, "predict_mebibytes": 1},
    ),
    ("TransferExplorer", {"recorded": "nvidia-h200", "quantity": "rate"}),
    ("TransferExplorer", {"view": "overlap", "recorded": "nvidia-h200"}),
    ("RooflineExplorer", {"beside": "nvidia-h200", "workloads": ["matmul", "add", "sort"]}),
    ("RooflineExplorer", {"beside": "none"}),
    # not recorded: a product of float16 takes too long on that machine
    ("RooflineExplorer", {"beside": "amd-epyc-2-cores", "size": 0.5, "dtype": "float16"}),
    ("CompareTimings", {"workload": "add", "n": 2**24}),
    ("CompareTimings", {"workload": "softmax", "recorded": False, "transfer": True}),
    ("ModelDiet", {"task": "digits-mlp", "zeros": 0.9, "stored": "8 bits", "inputs": "dynamic"}),
    ("ModelDiet", {"stored": "4 bits", "compute": "csr"}),
    ("LossScaling", {}),
    ("SimtMicroscope", {"step": 3}),
    ("SimtMicroscope", {"kernel": "transpose_tiled", "warp": 1, "step": 6}),
    ("InferencePlanner", {"context": 8192, "batch": 64, "price": 3}),
    ("InferencePlanner", {"model": "Llama 3.1 70B", "device": "L4", "weights": "int4"}),
    ("InferencePlanner", {"model": "Llama 3.2 1B", "device": "H200 SXM", "context": 2048}),
]
# Numbered for each instrument, so that a new row does not rename the texts of other instruments.
IDS = [
    f"{name} {[other for other, _ in ANALYTIC[: k + 1]].count(name)}"
    for k, (name, _) in enumerate(ANALYTIC)
]


@pytest.fixture(autouse=True)
def no_accelerator() -> None:
    """Skip the test if there is an accelerator, which brings more controls and other defaults."""
    if len(devices.available()) > 1:
        pytest.skip("the approved texts are those of a machine without an accelerator")


@pytest.mark.parametrize(("name", "given"), ANALYTIC, ids=IDS)
def test_what_is_shown_for_settings(name: str, given: dict[str, Any], approved: Any) -> None:
    """Numbers, units, badges, notes, code and picture follow the controls."""
    with contextlib.closing(make(name, **given)) as instrument:
        instrument.wait()
        assert display(instrument) == approved


@pytest.mark.parametrize(
    ("name", "given"),
    [
        (name, given)
        for name, given in ANALYTIC
        if name in ("AccessPatterns", "NumberFormats", "OccupancyExplorer", "PipelineSchedule")
        # an H200's recorded steps stand beside what the code computes
        or (name == "InferencePlanner" and "H200 SXM" not in given.values())
        or (name == "PipelineTimeline" and not given)
        or (name == "TransferExplorer" and "overlap" in given.values() and "recorded" not in given)
    ],
)
def test_the_code_shown_gives_the_same_values(name: str, given: dict[str, Any]) -> None:
    """Run in a fresh namespace, the code draws the picture on the screen, or has its numbers."""
    instrument = make(name, **given)
    _, value = run_cell(instrument.code)
    if isinstance(value, LabFigure):
        assert figure_text(value) == figure_text(instrument.shown.figure)
    else:
        cells = {str(cell) for row in instrument.shown.rows for cell in row}
        rows = [row for row in value.table()[1] if not row[0].startswith("note")]
        assert {str(cell) for row in rows for cell in row} <= cells
    instrument.close()


# Instrument, settings, action and result: what a run of that action would show.
PUBLISHED: dict[str, tuple[str, dict[str, Any], str, Any]] = {
    "times": ("CompareTimings", {"n": 64}, "run", made.comparison),
    "times that disagree": ("CompareTimings", {"n": 65}, "run", lambda: made.comparison(False)),
    "times of one device": (
        "CompareTimings",
        {"n": 66},
        "run",
        lambda: timing.Comparison(
            "work", made.comparison().rows[:1], None, None, None, None, (), made.LIVE
        ),
    ),
    "break-even": ("TransferExplorer", {"view": "break_even"}, "break_even", made.break_even),
    "no break-even": (
        "TransferExplorer",
        {"view": "break_even"},
        "break_even",
        lambda: made.break_even("no accelerator"),
    ),
    "sweep": ("TransferExplorer", {"predict_mebibytes": 10}, "sweep", made.sweep),
    "sweep beside": (
        "TransferExplorer",
        {"recorded": "nvidia-h200", "link_shown": False},
        "sweep",
        made.sweep,
    ),
    "overlap": ("TransferExplorer", {"view": "overlap", "way": "here"}, "overlap", made.overlap),
    "snapshot": ("MemoryInspector", {}, "snapshot", made.snapshot),
    "released": ("MemoryInspector", {"view": "release"}, "release", made.released),
    "trace": ("MemoryInspector", {"view": "trace"}, "trace", made.memory_trace),
    "roofline": ("RooflineExplorer", {"workloads": ["matmul"]}, "run", made.roofline),
    "points of another kind than the roofs": (
        "RooflineExplorer",
        {"beside": "none"},
        "run",
        lambda: made.roofline("recorded", "cuda", "measured"),
    ),
    "pipeline": ("PipelineTimeline", {"way": "here"}, "run", made.pipeline_run),
    "schedule": (
        "PipelineSchedule",
        {"schedule": "split", "stages": 2, "microbatches": 3},
        "measure",
        made.schedule_run,
    ),
    "scaling": (
        "ScalingLab",
        {"laws": ["amdahl", "ring"], "basis": "measured"},
        "measure",
        made.scaling_result,
    ),
    "machine": ("MachineCard", {}, "refresh", made.machine),
    "machine, problems": (
        "MachineCard",
        {"problems_only": True},
        "refresh",
        lambda: dataclasses.replace(made.machine(), problems=made.machine().problems[1:]),
    ),
    "machine without problems": (
        "MachineCard",
        {},
        "refresh",
        lambda: dataclasses.replace(made.machine(), problems=made.machine().problems[2:]),
    ),
    "measured sweep, fitted, as rates": (
        "TransferExplorer",
        {"quantity": "rate", "predict_mebibytes": 10, "link_shown": False},
        "sweep",
        lambda: made.kneed()[0],
    ),
    "measured wait for ranks, weak": (
        "ScalingLab",
        {"laws": [], "quantity": "efficiency", "mode": "weak"},
        "measure",
        lambda: dataclasses.replace(made.scaling_result("recorded", "cpu"), evidence=made.LIVE),
    ),
    "nothing released on a CPU": (
        "MemoryInspector",
        {"view": "release"},
        "release",
        lambda: dataclasses.replace(
            made.released(), device="cpu", host_resident_after_bytes=2**32, what=("a", "b")
        ),
    ),
    "snapshot without a tensor": (
        "MemoryInspector",
        {},
        "snapshot",
        lambda: dataclasses.replace(made.snapshot(), tensors=()),
    ),
}


@pytest.mark.usefixtures("two_cores")
@pytest.mark.parametrize("case", PUBLISHED)
def test_what_is_shown_of_a_result(case: str, approved: Any) -> None:
    """Table, verdict, badges and notes are those of the result, beside what is recorded."""
    name, given, action, result = PUBLISHED[case]
    with contextlib.closing(make(name, **given)) as instrument:
        instrument.publish(action, result())
        instrument.ended(action)
        instrument.set(**given)
        assert display(instrument) == approved


def test_a_run_without_workers_sets_the_modelled_loading_time() -> None:
    """64 ms for a batch of 32 images are 2 ms an image."""
    instrument = make("PipelineTimeline")
    instrument.publish("run", training.model_pipeline(0.064, 0.03, workers=0, batch_size=32))
    instrument.ended("run")
    assert instrument.values["loading_ms"] == 2.0
    instrument.close()


@pytest.mark.pins
@pytest.mark.slow
def test_predicted_memory_is_compared_with_capacities(approved: Any) -> None:
    """A new step is predicted by itself, and beside a traced one; each GPU's memory is judged."""
    instrument = make("MemoryInspector", view="predict", model="mlp", batch=1, capacity="80")
    instrument.wait()
    texts = [display(instrument)]
    instrument.publish("trace", made.memory_trace())
    for values in (
        {"view": "trace"},
        {"view": "predict", "batch": 1024, "capacity": "8"},
        {"optimizer": "sgd"},
        {"picture": "timeline"},
        {"model": "transformer", "batch": 1},
    ):
        instrument.set(**values)
        instrument.wait()
        texts.append(display(instrument))
    instrument.close()
    assert "\n---\n".join(texts) == approved


def test_gradients_of_your_own_in_a_window(approved: Any) -> None:
    """By hand for 2**-30 to 4: at scale 1 float16 loses those up to 2**-25, six of 33."""
    instrument = make("LossScaling", which="parameters")
    assert (
        refusals(
            (instrument.load, (each,), {})
            for each in (models.sm_limits("9.0"), training.tasks, 3, None)
        ).count("InputError: ")
        == 4
    )
    assert instrument.load(made.gradients()) is instrument
    assert instrument.window.vanishing_share == pytest.approx(6 / 33)
    texts = [display(instrument)]
    for values in ({"scale": 2.0**16}, {"which": "activations"}, {"which": "all"}):
        instrument.set(**values)
        texts.append(display(instrument))
    assert "\n---\n".join(texts) == approved
    instrument.close()


@pytest.mark.slow
def test_a_model_of_your_own_is_planned() -> None:
    """Two layers keep 2 x 2 x 2 x 8 bfloat16 numbers of each token; the code shown has the model.

    A layer's matrices have 9,216 numbers, and their inputs and outputs 448 for each sequence: by
    these bytes a time from a cache is recognized. A measured step has both layers: with two
    sequences it gives one token in the time of a layer.

    A measurement of it is not shown for another model, even one of the same name.
    """
    own = models.LanguageModel("mine", 2, 32, 4, 2, 8, 64, 100)
    instrument = make("InferencePlanner", context=2048, batch=2, cache="bfloat16").load(own)
    assert instrument.plan.cache_bytes == 2048 * 2 * 2 * 2 * 8 * 2
    assert [plan.model for plan in run_cell(instrument.code)[0]["plans"]] == [own] * 11
    instrument.run("measure", wait=True)
    assert (
        instrument.results["measure"].nbytes,
        len(instrument.shown.evidence),
        instrument.shown.figure.data[-1].y[0] * instrument.results["measure"].median_seconds,
        len(instrument.load(models.LanguageModel("mine", 3, 32, 4, 2, 8, 64, 100)).shown.evidence),
    ) == (2 * (9216 + 2 * 448), 2, pytest.approx(1), 1)
    refused(InputError, instrument.load, "Llama 3 8B").match("LanguageModel")
    instrument.close()


@pytest.mark.slow
def test_a_diet_counts_the_weights_that_are_left() -> None:
    """With half of the weights at zero about half are left; each model has its size and time."""
    instrument = make("ModelDiet", task="digits-mlp", zeros=0.5, fine_tune=0.0, batch=16)
    instrument.run(wait=True)
    before, after = (
        int(row[instrument.shown.headers.index("weights left")].replace(",", ""))
        for row in instrument.shown.rows
    )
    assert [
        0.45 < after / before < 0.55,
        *(row[:3] + row[5:6] for row in instrument.shown.rows),
    ] == [
        True,
        *(
            [
                *(str(k), m.label, units.format_bytes(m.file_bytes)),
                units.format_seconds(m.median_seconds),
            ]
            for k, m in enumerate(instrument.result.models, start=1)
        ),
    ]
    instrument.close()


@pytest.mark.pins
@pytest.mark.slow
def test_a_sharded_step_is_predicted_for_each_strategy(approved: Any) -> None:
    """After the button a strategy's whole step, a pipeline's largest stage, is judged."""
    instrument = make(
        "ShardingExplorer", model="course", ranks=2, positions=64, batch=1, strategy="pipeline-1f1b"
    )
    instrument.run(wait=True)
    text = display(instrument)
    instrument.close()
    assert text == approved


def test_a_modelled_link_by_hand() -> None:
    """64 MiB in 4 chunks with as long a compute take 5/4 of one copy; PCIe 3 is 12.35 GB/s."""
    t = make(
        "TransferExplorer",
        **{"view": "overlap", "nbytes": 2**26, "chunks": 4, "compute_ratio": 1.0},
        **{"latency_seconds": 5e-7, "bandwidth_bytes_per_second": 1e9},
    )
    assert run_cell(t.code)[1].seconds == pytest.approx(
        4 * (5e-7 + 2**24 / 1e9) + (5e-7 + 2**26 / 1e9) / 4
    )
    t.set(link="pcie3-x16")
    assert t.values["bandwidth_bytes_per_second"] == pytest.approx(12.35e9)
    t.close()


def test_sizes_and_formats_follow_the_workload() -> None:
    """Another workload offers its own formats and sizes, and takes one of these sizes; its size
    from before is gone.
    """
    t = make("CompareTimings")
    before = t.values["n"]
    t.set(workload="fft")
    assert before != t.values["n"] in t.controls["n"].describe()["suggestions"]
    t.set(n=12345)
    refused(InputError, t.set, n="").match("no number was typed")
    assert ('compare("fft", n=12345' in t.code, t.controls["dtype"].describe()["options"]) == (
        True,
        ["float32", "float64"],
    )
    t.close()


@pytest.mark.slow
def test_what_the_core_refuses_is_shown_inside() -> None:
    """A size beyond memory is refused by the measurement, with a sentence; the next run works."""
    t = make("CompareTimings", workload="matmul", n=2**40, deadline=0.5)
    t.run(wait=True)
    assert (t.error != "", "\n" in t.error) == (True, False)
    assert t.progress.endswith("failed")
    t.set(workload="add", n=64)
    t.run(wait=True)
    assert (t.error, len(t.result.rows)) == ("", 1)
    t.close()
