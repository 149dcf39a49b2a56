"""The profiler read as spans: what a step of known operators must show, arithmetic of unions by hand, and bad input."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from torch.profiler import record_function

from gpulab import figures, training
from gpulab.errors import InputError, StoppedError
from gpulab.evidence import Badge, Evidence, Note
from gpulab.training import _profile
from gpulab.training._profile import OperatorCost, Profile, ProfileSpan, overlap, union


def test_unions_and_overlaps_by_hand():
    """Pieces that touch or overlap become one; a window counts only what lies in it."""
    assert union([(3, 4), (0, 1), (0.5, 2), (2, 2.5)]) == [(0, 2.5), (3, 4)]
    assert overlap([(0, 2.5), (3, 4)], (1, 3.5)) == 2.0
    assert overlap([], (0, 1)) == 0


def test_shares_by_hand():
    """A step of 10 s with operators for 6 of them and kernels for 3: 40 % lies between, the device idles for 70 %."""
    spans = (
        ProfileSpan("a", "host", 0, 0, 4), ProfileSpan("inside a", "host", 1, 1, 9), ProfileSpan("b", "host", 0, 5, 7),
        ProfileSpan("kernel", "device", 0, 2, 4), ProfileSpan("another", "device", 0, 3, 5),
    )  # fmt: skip
    p = Profile("step", "cuda:0", ((0.0, 10.0),), 9.0, spans, (), (), Evidence.measured("a GPU"))
    assert p.between_ratio == pytest.approx(0.4)
    assert p.device_idle_ratio == pytest.approx(0.7)
    assert p.operators_per_step == 2
    assert Profile.from_dict(json.loads(json.dumps(p.to_dict()))) == p


def test_the_wait_at_the_end_of_a_step_is_no_operator():
    """On a GPU the profiler lists the driver's calls beside the operators: a product, its launch, and the wait that ends the step."""
    spans = (
        ProfileSpan("aten::mm", "host", 0, 0, 4), ProfileSpan("cudaLaunchKernel", "host", 1, 1, 3),
        ProfileSpan("cudaDeviceSynchronize", "host", 0, 5, 9), ProfileSpan("kernel", "device", 0, 2, 9),
    )  # fmt: skip
    p = Profile("step", "cuda:0", ((0.0, 10.0),), 9.0, spans, (), (), Evidence.measured("a GPU"))
    assert p.operators_per_step == 1


def test_a_step_of_known_operators():
    """Two products and a ReLU: three operators a step in their order, and the marks around them."""
    x = torch.ones(64, 64)

    def step() -> None:
        with record_function("products"):
            y = (x @ x) @ x
        y.relu()

    p = training.profile(step, steps=2, warmup=1, device="cpu")
    top = [span.name for span in p.spans if span.lane == "host" and span.depth == 0]
    assert top == ["aten::matmul", "aten::matmul", "aten::relu"] * 2
    calls = {cost.name: cost.calls_per_step for cost in p.operators}
    assert (calls["aten::mm"], calls["aten::relu"]) == (2, 1)  # matmul calls mm
    marks = [span for span in p.spans if span.lane == "mark"]
    assert [span.name for span in marks] == ["products"] * 2
    inside = [s for s in p.spans if s.name == "aten::matmul" and marks[0].start_seconds <= s.start_seconds <= marks[0].end_seconds]
    assert len(inside) == 2
    assert len(p.steps) == 2
    assert 0 <= p.between_ratio < 1
    assert p.device_idle_ratio is None
    assert p.unprofiled_seconds > 0
    assert p.evidence.badge is Badge.MEASURED


def test_steps_with_and_without_the_profiler_are_both_means(monkeypatch):
    """Steps of 1, 2 and 6 s are 3 s a step, under the profiler and without it; stopped before one without it, there is no figure."""
    p = Profile("step", "cpu", ((0.0, 1.0), (1.0, 3.0), (3.0, 9.0)), 3.0, (), (), (), Evidence.measured("a CPU"))
    assert p.step_seconds == 3
    for taken, mean in (([1.0, 2.0, 6.0], 3.0), ([], math.nan)):
        monkeypatch.setattr(_profile._Run, "repeat", lambda run, count, what, taken=taken: taken)
        found = training.profile(lambda: torch.ones(3).sum(), device="cpu").unprofiled_seconds
        assert found == pytest.approx(mean, nan_ok=True)


def test_a_step_is_over_when_the_device_is(monkeypatch):
    """The step took a second on the host and has 4 more to do on the device when it returns; a CPU is waited for by the call itself."""
    now = [100.0]

    class Accelerator:
        is_cpu = False

        def synchronize(self):
            now[0] += 4.0

    class Processor(Accelerator):
        is_cpu = True

    monkeypatch.setattr(_profile.time, "perf_counter", lambda: now[0])
    for device, seconds in ((Accelerator(), 5.0), (Processor(), 1.0)):
        told = []
        run = _profile._Run(
            lambda x: now.__setitem__(0, now[0] + x), (1.0,), device, lambda *said, told=told: told.append(said), lambda: False, 4
        )
        assert (run.once("warm-up"), run.once("step")) == (seconds, seconds)
        assert (told, run.done) == ([(0.0, "warm-up"), (0.25, "step")], 2)


def test_self_times_add_up_to_the_operators_time():
    """What each operator took by itself sums to what the outermost ones took, since a call's time lies within its caller's."""
    model, x = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU()), torch.ones(256, 64)
    p = training.profile(lambda: model(x).sum().backward(), steps=2, device="cpu")
    outermost = sum(span.seconds for span in p.spans if span.lane == "host" and span.depth == 0) / 2
    assert sum(cost.host_seconds for cost in p.operators) == pytest.approx(outermost, rel=0.05)
    assert any("backward" in cost.name.lower() for cost in p.operators)


def test_the_profilers_own_library_writes_nothing(capfd):
    """Its log lines would stand in the notebook in red."""
    training.profile(lambda: torch.ones(3).sum(), steps=1, device="cpu")
    captured = capfd.readouterr()
    assert captured.out + captured.err == ""


def test_the_profilers_library_is_silent_whatever_its_log_level():
    """It reads the level once, when another part of the program may have used it: here it would tell all."""
    program = "import torch; from gpulab import training; training.profile(lambda: torch.ones(3).sum(), steps=1, device='cpu')"
    environment = {**os.environ, "KINETO_LOG_LEVEL": "0"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout + done.stderr == ""


@pytest.mark.parametrize(("most", "kept"), [(8, 4), (7, 3), (2, 1), (1, 1)])
def test_what_is_too_much_to_keep_is_left_out_by_whole_steps(monkeypatch, most, kept):
    """Four steps of two operators: of those kept each has both, so the figures are a step's; the first is kept however large it is."""
    monkeypatch.setattr(_profile, "_MOST_SPANS", most)
    x = torch.ones(64)
    p = training.profile(lambda: x.exp().neg(), steps=4, warmup=0, device="cpu")
    assert (len(p.steps), p.evidence.samples, p.operators_per_step) == (kept, kept, 2.0)
    assert {cost.name: cost.calls_per_step for cost in p.operators} == {"aten::exp": 1.0, "aten::neg": 1.0}
    few = "1 step" if kept == 1 else f"{kept} steps"
    told = f"skipped: 8 spans are too many to keep, so the figures are those of the first {few} of 4. Profile fewer steps."
    assert [str(note) for note in p.notes] == ([] if kept == 4 else [told])


def test_stopping():
    """Stopped in the first profiled step it says so; later it keeps what it has, with a note."""
    with pytest.raises(StoppedError, match="before a step"):
        training.profile(lambda: None, device="cpu", stop=lambda: True)
    asked = iter([False, False, True])
    p = training.profile(lambda: torch.ones(3).sum(), steps=2, warmup=1, device="cpu", stop=lambda: next(asked, True))
    assert len(p.steps) == 1
    assert [note.code for note in p.notes] == ["stopped"]
    assert ("a step without it", "", "not measured") in p.table()[1]
    assert " without it" not in figures.profile(p).description


def test_bad_input():
    """No function, a step that raises, a count that is none."""
    with pytest.raises(InputError, match="not its result"):
        training.profile(torch.ones(3))
    with pytest.raises(InputError, match="raised ZeroDivisionError"):
        training.profile(lambda: 1 / 0, device="cpu")
    with pytest.raises(InputError, match="steps"):
        training.profile(lambda: None, steps=0, device="cpu")


def seen(name, start, end, *, on="CPU", mark=False, within=None, itself=0.0, kernels=0.0):
    """An event as PyTorch's profiler gives it, in microseconds."""
    return SimpleNamespace(
        name=name, time_range=SimpleNamespace(start=start, end=end), device_type=f"DeviceType.{on}", is_user_annotation=mark,
        cpu_parent=within, self_cpu_time_total=itself, self_device_time_total=kernels,
    )  # fmt: skip


def test_two_steps_on_a_gpu_by_hand():
    """Steps of 10 and 20 ms from 1 ms on: host, kernels and marks in their lanes, each by depth; what lies outside of the steps is none."""
    first, second = (seen(f"{_profile._MARK}{k}", *ends, mark=True) for k, ends in enumerate([(1000, 11_000), (11_000, 31_000)]))
    forward = seen("forward", 1500, 6000, mark=True, within=first)
    inner = seen("Optimizer.step#SGD.step", 1600, 1700, mark=True, within=forward)
    linear = seen("aten::linear", 2000, 5000, within=inner, itself=1000, kernels=1000)
    outside = [
        seen(name, *ends, mark=True) for name, ends in {"before": (999, 1200), "after": (31_001, 31_002), "empty": (7000, 7000)}.items()
    ]
    there = [
        seen(first.name, 900, 8000, on="CUDA", mark=True), seen("forward", 950, 8000, on="CUDA", mark=True),
        seen("gemm", 3000, 9000, on="CUDA"),
    ]  # fmt: skip
    events = [
        second, *there, *outside, seen("aten::addmm", 12_000, 13_000, within=second, itself=500, kernels=2000), linear, forward, inner,
        seen("aten::addmm", 2500, 4500, within=linear, itself=1500, kernels=4000), first, seen("at the end", 31_000, 31_010, mark=True),
        seen("at the beginning", 1000, 1001, mark=True),
    ]  # fmt: skip
    p = _profile._result("net", SimpleNamespace(name="a GPU"), events, 2, 0.012, stopped=False)
    found = [(s.name, s.lane, s.depth, round(1e3 * s.start_seconds, 6), round(1e3 * s.end_seconds, 6)) for s in p.spans]
    assert found == [
        ("at the beginning", "mark", 0, 0, 0.001), ("forward", "mark", 0, 0.5, 5), ("SGD.step", "mark", 1, 0.6, 0.7),
        ("aten::linear", "host", 0, 1, 4), ("aten::addmm", "host", 1, 1.5, 3.5), ("gemm", "device", 0, 2, 8),
        ("aten::addmm", "host", 0, 11, 12), ("at the end", "mark", 0, 30, 30.01),
    ]  # fmt: skip
    assert [(round(a, 9), round(b, 9)) for a, b in p.steps] == [(0, 0.01), (0.01, 0.03)]
    assert (p.step_seconds, p.unprofiled_seconds, p.operators_per_step) == (pytest.approx(0.015), 0.012, 1)
    assert (p.between_ratio, p.device_idle_ratio) == (pytest.approx(1 - 4 / 30), pytest.approx(1 - 6 / 30))
    assert (p.evidence.samples, p.notes) == (2, ())
    assert p.table() == (
        ("net, a step", "calls", "host, itself", "its kernels on the device"),
        [
            ("aten::addmm", "1", "1.00 ms", "3.00 ms"), ("aten::linear", "0.5", "500 us", "500 us"),
            ("between the operators (Python)", "", "13.0 ms", ""), ("a step under the profiler", "", "15.0 ms", ""),
            ("a step without it", "", "12.0 ms", ""),
        ],
    )  # fmt: skip
    assert repr(p).endswith("and 15.0 ms a step, 87% of it between them>")


def test_the_table_adds_up_what_it_leaves_out():
    """Twelve operators have a row each, and all the others one together; a note stands below."""
    costs = tuple(OperatorCost(f"op {k}", 1.5, (20 - k) * 1e-3, k * 1e-3) for k in range(15))
    kernel = ProfileSpan("kernel", "device", 0, 0.0, 0.5)
    p = Profile("net", "cuda:0", ((0.0, 1.0),), 1.0, (kernel,), costs, (Note("stopped", "early."),), Evidence.measured("a GPU"))
    rows = p.table()[1]
    assert [row[0] for row in rows[:12]] == [f"op {k}" for k in range(12)]
    assert rows[0] == ("op 0", "1.5", "20.0 ms", "0 s")
    assert rows[12] == ("3 more", "4.5", "21.0 ms", "39.0 ms")
    assert [row[0] for row in rows[13:]] == [
        "between the operators (Python)", "a step under the profiler", "a step without it", "note: stopped",
    ]  # fmt: skip
    assert {len(row) for row in rows} == {4}


def test_being_silent_leaves_no_file_open(monkeypatch):
    """Each profile would cost two descriptors else, and a notebook has some thousand."""
    opened = []
    for name in ("dup", "open"):
        real = getattr(os, name)
        monkeypatch.setattr(_profile.os, name, lambda *given, real=real: opened.append(real(*given)) or opened[-1])
    with _profile._silent():
        pass
    monkeypatch.undo()
    assert len(opened) == 2
    for descriptor in opened:
        with pytest.raises(OSError, match="descriptor"):
            os.fstat(descriptor)


@pytest.mark.gpu
def test_on_a_gpu_the_kernels_are_a_lane_of_their_own():
    """A product on the device shows a kernel in the device lane, and the device idles between launches."""
    x = torch.ones(2048, 2048, device="cuda")
    p = training.profile(lambda: x @ x, steps=2, device="cuda")
    assert any(span.lane == "device" and span.seconds > 0 for span in p.spans)
    assert p.device_idle_ratio is not None
    assert 0 <= p.device_idle_ratio < 1


def test_steps_that_took_no_time_have_no_share_in_them():
    """Two readings of a coarse clock can be the same: nothing is divided by nothing."""
    p = Profile("step", "cpu", ((0.0, 0.0),), 0.0, (), (), (), Evidence.measured("a CPU"))
    assert p.between_ratio == 1.0
