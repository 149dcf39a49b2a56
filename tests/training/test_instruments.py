"""Instruments that look into training: the input pipeline, the profiler and hidden waits."""

import math
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from gpulab import training
from gpulab.errors import InputError
from gpulab.evidence import Evidence, Note
from gpulab.training import PipelineResult, Profile, ProfileSpan, StepSpan
from made_training import told
from torch.nn import functional
from torch.profiler import record_function

HERE = Evidence.measured("a GPU")


# -- the input pipeline ----------------------------------------------------------------------------


def times(result: PipelineResult, lane: str) -> list[tuple[float, float]]:
    """(start, end) of a lane's spans in milliseconds."""
    spans = result.lane(lane)
    return [(round(1e3 * s.start_seconds, 6), round(1e3 * s.end_seconds, 6)) for s in spans]


# Seconds to load, compute on and copy a batch; options; then the expected (start, end) of each load
# and of each computation, in ms.
TIMETABLES = {
    "everything takes turns": (
        (0.06, 0.03, 0.01), {}, [(0, 60), (100, 160), (200, 260)],
        [(70, 100), (170, 200), (270, 300)],
    ),
    "the host goes on": (
        (0.06, 0.03, 0.01), {"pinned": True, "read_loss": False},
        [(0, 60), (60, 120), (120, 180)], [(70, 100), (130, 160), (190, 220)],
    ),
    "copies wait for the stream": (
        (0.01, 0.03, 0.01), {"pinned": True, "read_loss": False},
        [(0, 10), (10, 20), (20, 30)], [(20, 50), (60, 90), (100, 130)],
    ),
    "the host waits for copies": (
        (0.06, 0.03, 0.01), {"read_loss": False},
        [(0, 60), (70, 130), (140, 200)], [(70, 100), (140, 170), (210, 240)],
    ),
    "two workers, one batch ahead": (
        (0.06, 0.02, 0), {"workers": 2, "prefetch": 1, "steps": 5},
        [(0, 60), (0, 60), (60, 120), (80, 140), (120, 180)],
        [(60, 80), (80, 100), (120, 140), (140, 160), (180, 200)],
    ),
    "four workers share two cores": (
        (0.01, 0.03, 0), {"workers": 4, "prefetch": 1, "cores": 2},
        [(0, 20), (0, 20), (0, 20)], [(20, 50), (50, 80), (80, 110)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", TIMETABLES)
def test_timetables_by_hand(case: str) -> None:
    """Timetables equal those derived from the rules of PyTorch's DataLoader and of one stream."""
    (loading, computing, copying), options, data, compute = TIMETABLES[case]
    options = {"steps": 3, "copy_seconds": copying, **options}
    found = training.model_pipeline(loading, computing, **options)
    assert (times(found, "data"), times(found, "compute")) == (data, compute)
    workers = [span.worker for span in found.lane("data")]
    assert options.get("workers") != 2 or workers == [0, 1, 0, 1, 0]


def test_pipelines_in_tables(approved: Any) -> None:
    """Pipelines limited by loading, copying and computing; stall and rate follow from the times."""
    data = training.model_pipeline(0.06, 0.03, copy_seconds=0.01, steps=4)
    figures = (data.step_seconds, data.stall_ratio, data.images_per_second)
    assert figures == pytest.approx((0.1, 0.7, 320))
    copy = training.model_pipeline(
        0.01, 0.02, copy_seconds=0.05, workers=4, steps=20, cores=2,
        batch_bytes=2**20,
    )  # fmt: skip
    compute = training.model_pipeline(0.06, 0.02, copy_seconds=0, workers=3, steps=40)
    # the last one has both badges
    shown = (data, copy, compute, pipeline_of([1.0, 2.5, 4.5], 0.4, data.evidence))
    assert "".join(f"{one.sentence}\n" for one in shown[:3]) + told(*shown) == approved


def pipeline_of(ends: Any, loading: float = 0.5, there: Evidence = HERE) -> PipelineResult:
    """Return a run whose steps each compute for half a second and finish at these ends."""
    spans = [StepSpan("compute", k, 0, end - 0.5, end) for k, end in enumerate(ends)]
    spans += [StepSpan("copy", k, 0, end - 0.5, end - 0.5) for k, end in enumerate(ends)]
    spans += [StepSpan("data", k, -1, 0, loading * (k + 1)) for k, _ in enumerate(ends)]
    return PipelineResult("it", 10, 1, 0, 2, True, True, 0.0, tuple(spans), (), HERE, there)


def test_the_interval_of_the_rate_by_hand() -> None:
    """Six blocks of two steps give batch means with Student's t of 5 degrees; fewer give none."""
    found = pipeline_of(np.cumsum([1.0, *np.repeat([1, 2, 3, 4, 5, 6], 2)]))
    from scipy import stats  # which a bare GPU machine lacks

    half = stats.t.ppf(0.975, 5) * math.sqrt(3.5 / 6)
    ends = (10 / (3.5 + half), 10 / (3.5 - half))
    assert (
        found.images_per_second_interval,
        pipeline_of(range(1, 13)).images_per_second_interval is None,
    ) == (pytest.approx(ends, rel=1e-3), True)


def test_a_replay_changes_one_thing() -> None:
    """Loads still take 0.1, 0.2 and 0.3 s when only the reading of losses, or also the kind of
    memory, changes: a copy from memory that is not pinned waits for the step before it.
    """
    run = pipeline_of([1.0, 2.5, 4.5], 0.1)
    changes = ({}, {"read_loss": False}, {"read_loss": False, "pinned": False})
    assert [
        times(training.replay(run, **options), lane)
        for options in changes
        for lane in ("data", "compute")
    ] == [
        [(0, 100), (600, 800), (1300, 1600)], [(100, 600), (800, 1300), (1600, 2100)],
        [(0, 100), (100, 300), (300, 600)], [(100, 600), (600, 1100), (1100, 1600)],
        [(0, 100), (100, 300), (600, 900)], [(100, 600), (600, 1100), (1100, 1600)],
    ]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_a_real_run_has_every_step_in_each_lane(workers: int) -> None:
    """Loading is measured, the accelerator modelled; each batch is loaded, copied, computed on."""
    seen, few = [], iter([False] * 5 + [True] * 9)
    options: dict[str, Any] = {
        "batch_size": 2, "steps": 9, "image_size": 16, "device": "cpu",
        "progress": lambda fraction, text: seen.append(fraction),
    }  # fmt: skip
    options |= {"step_seconds": 0.002, "prefetch": 3} if workers else {}  # or 20 ms and 2
    found = training.pipeline(workers=workers, stop=lambda: next(few), **options)
    assert (found.evidence.badge, found.accelerator_evidence.badge) == ("MEASURED", "MODELLED")
    lanes = [found.lane(lane) for lane in ("data", "copy", "compute")]
    for data, copy, compute in zip(*lanes, strict=True):
        assert data.end_seconds <= copy.start_seconds <= copy.end_seconds == compute.start_seconds
        # 10 us and 1,536 bytes at half of PCIe 4's rate, since the memory is not pinned
        assert (copy.seconds, compute.seconds) == pytest.approx(
            (1e-5 + 1536 / 13e9, 0.002 if workers else 0.02), rel=1e-4
        )
    assert [span.worker for span in lanes[0]] == ([0, 1, 0, 1, 0] if workers else [-1] * 5)
    assert (
        found.batch_bytes, found.steps, found.evidence.samples, seen, found.workers, found.prefetch
    ) == (2 * 3 * 16 * 16, 5, 5, sorted(seen), workers, 3 if workers else 2)  # fmt: skip
    assert (found.startup_seconds, "stopped" in [note.code for note in found.notes]) == (
        lanes[0][0].end_seconds, True
    )  # fmt: skip


# -- the profiler ----------------------------------------------------------------------------------


def test_profiles_by_hand(approved: Any) -> None:
    """A step of 10 s has operators for 6 s and kernels for 3 s; a long table sums its last rows."""
    spans = (
        ProfileSpan("a", "host", 0, 0, 4), ProfileSpan("inside a", "host", 1, 1, 9),
        ProfileSpan("b", "host", 0, 5, 7), ProfileSpan("cudaDeviceSynchronize", "host", 0, 7, 9),
        ProfileSpan("kernel", "device", 0, 2, 4), ProfileSpan("another", "device", 0, 3, 5),
    )  # fmt: skip
    costs = {f"op {k}": (1.5, (20 - k) * 1e-3, k * 1e-3) for k in range(15)}
    found = Profile("net", "cuda:0", ((0.0, 10.0),), spans, costs, (), HERE)
    assert found.operators_per_step == 2
    bare = Profile(
        "net", "cpu", ((0, 1), (1, 3), (3, 9)), (), dict(list(costs.items())[:2]),
        (Note("stopped", "early."),), HERE,
    )  # fmt: skip
    assert told(found, bare) == approved


@pytest.mark.slow
def test_steps_of_known_operators() -> None:
    """A profile finds two products, a mark around them and a ReLU; self times add up to the times
    of the outer operators. An unfinished step does not count. A second profiler cycle is refused,
    since its times begin at 0 too.
    """
    x = torch.ones(64, 64)

    def step() -> None:
        with record_function("products"):
            y = (x @ x) @ x
        y.relu()

    def profiled(rounds: int) -> torch.profiler.profile:
        plan = torch.profiler.schedule(wait=1, warmup=1, active=3)
        with torch.profiler.profile(schedule=plan, acc_events=True) as profiler:
            for _ in range(rounds):
                step()
                profiler.step()
        return profiler

    with pytest.raises(InputError, match="repeat=1"):
        training.profile(profiled(10))
    found = training.profile(profiled(4), label="steps", device="cpu")
    top = [span for span in found.spans if span.lane == "host" and span.depth == 0]
    assert [span.name for span in top] == ["aten::matmul", "aten::matmul", "aten::relu"] * 2
    calls = {name: calls for name, (calls, _, _) in found.operators.items()}
    assert (calls["aten::mm"], calls["aten::relu"], found.operators_per_step) == (2, 1, 3)
    mark, _ = (span for span in found.spans if span.lane == "mark")
    order = [mark.start_seconds, top[0].start_seconds, top[1].end_seconds, mark.end_seconds]
    assert (mark.name, order) == ("products", sorted(order))
    busy, itself = sum(s.seconds for s in top), sum(host for _, host, _ in found.operators.values())
    assert (itself, found.between_ratio) == (
        pytest.approx(busy / 2, rel=0.05),
        pytest.approx(1 - busy / sum(b - a for a, b in found.steps)),
    )
    assert (len(found.steps), found.evidence.samples, found.label, found.notes) == (
        2, 2, "steps", ()
    )  # fmt: skip


# -- hidden waits ----------------------------------------------------------------------------------

X = torch.arange(6.0)
# Calls that wait for the device, with the name under which the wait is reported: reads of a value,
# and operators whose CUDA code waits, by PyTorch's sources (SummaryOps.cu, Repeat.cpp, Onehot.cpp)
# and manual.
WAITS = [
    ("item", lambda x: x.sum().item()), ("item", lambda x: float(x[0])),
    ("item", lambda x: bool(x[0])),
    ("nonzero", torch.nonzero), ("index", lambda x: x[x > 2]), ("_unique2", torch.unique),
    ("masked_select", lambda x: x.masked_select(x > 2)), ("cpu", lambda x: x.cpu().sum().item()),
    ("cpu", lambda x: x.cpu().numpy()), ("tolist", lambda x: x.tolist()),
    ("numpy", lambda x: x.numpy()),
    ("print", repr), ("print", lambda x: f"{x[0]:.2f}"), ("equal", lambda x: torch.equal(x, -x)),
    ("bincount", lambda x: torch.bincount(x.long())),
    ("repeat_interleave", lambda x: x.repeat_interleave(x.long())),
    ("one_hot", lambda x: functional.one_hot(x.long())),
    ("_linalg_check_errors", lambda x: torch.linalg.solve((x + 1).diag(), x)),
]  # fmt: skip
# Calls that do not wait: the size, the slice's ends or the classes are given, or the check is left
# out, so no value is read.
NONE = [
    lambda x: x * 2, lambda x: x[1:3], lambda x: torch.where(x > 2, x, 0), lambda x: x.to(x.device),
    lambda x: x[x[:2].long()], lambda x: x.size(0) + x.numel(),
    lambda x: x.repeat_interleave(2), lambda x: x.repeat_interleave(x.long(), output_size=15),
    lambda x: functional.one_hot(x.long(), 6),
    lambda x: torch.linalg.solve_ex((x + 1).diag(), x), lambda x: x.to(torch.float64),
]  # fmt: skip


@pytest.mark.parametrize("inference", [False, True])
def test_each_kind_of_wait_is_counted_once_on_its_line(inference: bool) -> None:
    """Waits have a name and a line; other calls do not count; inference mode hides no wait."""

    def count(fn: Any) -> list[tuple[str, int]]:
        def call(x: torch.Tensor) -> None:
            with torch.inference_mode(inference):
                fn(x)

        sites = training.hidden_waits(call, X, calls=2, device="cpu").sites
        assert all(line.startswith("test_instruments.py line ") for line, _, _ in sites)
        return [(what.partition(":")[0], times) for _, what, times in sites]

    expected = [*([(name, 2)] for name, _ in WAITS), *([] for _ in NONE)]
    assert [*(count(fn) for _, fn in WAITS), *map(count, NONE)] == expected


def test_a_fetch_counts_where_it_is_made() -> None:
    """``to("cpu")`` on a CPU counts only on request; a fetched tensor does not wait again."""
    fetches = [
        (lambda: X.to("cpu"), 1, 0),
        (lambda: X.to(device="cpu"), 1, 0),
        (lambda: X.to("cpu").numpy(), 1, 1),
        (lambda: [float(x) for x in X.cpu()], 1, 1),
        (lambda: (X.cpu() * X).sum().item(), 2, 2),  # a device's tensor went into it
    ]
    count = lambda fn, on: training.hidden_waits(fn, device="cpu", count_to_cpu=on).count  # noqa: E731
    assert [(count(fn, True), count(fn, False)) for fn, *_ in fetches] == [
        (asked, usual) for _, asked, usual in fetches
    ]


def test_a_training_step_waits_where_its_loss_is_read() -> None:
    """Adam's counters and clipping do not count; the reported line is in the learner's code."""
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.Adam(model.parameters())

    def step(read: bool) -> None:
        loss = model(torch.ones(3, 4)).sum()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        loss.item() if read else loss.detach()

    none, found = (training.hidden_waits(step, r, calls=3, device="cpu") for r in (False, True))
    assert (
        none.count,
        found.count,
        len(found.sites),
        none.evidence.samples,
        "loss.item() if read" in found.sites[0][0],
    ) == (0, 3, 1, 3, True)


@pytest.mark.gpu
def test_cudas_debug_mode_counts_the_same() -> None:
    """On a device PyTorch warns where a wait is counted, and not where none is."""
    x, different = X.cuda(), []
    for number, (name, fn) in enumerate(
        [*(each for each in WAITS if each[0] != "numpy"), *(("", fn) for fn in NONE)]
    ):
        # the first call is dropped, since a library may wait in its own set-up
        _, found = (training.hidden_waits(fn, x, device="cuda") for _ in range(2))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            fn(x)
            torch.cuda.set_sync_debug_mode("default")
        warned = sum("called a synchronizing CUDA" in str(each.message) for each in caught)
        if (found.count, warned > 0) != (bool(name), bool(name)):
            different.append((number, name, found.count, warned))
    assert different == []
