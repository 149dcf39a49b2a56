"""The profiler read as spans: what a step of known operators must show, arithmetic of unions by hand, and bad input."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys

import pytest
import torch
from torch.profiler import record_function

from gpulab import figures, training
from gpulab.errors import InputError, StoppedError
from gpulab.evidence import Badge, Evidence
from gpulab.training import _profile
from gpulab.training._profile import Profile, ProfileSpan, overlap, union


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
