"""The input pipeline: schedules worked out by hand, the loop on a clock of ours, real files and real workers, bad input."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import io
import json
import math
import os
import signal
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from gpulab import training
from gpulab.errors import InputError, MeasurementError, OutOfMemoryError, StoppedError
from gpulab.evidence import Badge, Evidence
from gpulab.training import _images, _pipeline, _pipeline_model
from gpulab.training._pipeline import ModelledAccelerator, drive
from gpulab.training._pipeline_results import PipelineResult, StepSpan

MODEL = Evidence.modelled("stated times", "the test")


def times(result, lane):
    """(start, end) of a lane's spans in milliseconds, rounded."""
    return [(round(1e3 * s.start_seconds, 6), round(1e3 * s.end_seconds, 6)) for s in result.lane(lane)]


# -- the model, by hand ---------------------------------------------------------------------------------------------------


def test_without_workers_everything_takes_turns():
    """Load 60, copy 10, compute 30 ms: each step is 100 ms and the accelerator computes 30 of them."""
    p = training.model_pipeline(0.06, 0.03, copy_seconds=0.01, steps=4)
    assert times(p, "data") == [(0, 60), (100, 160), (200, 260), (300, 360)]
    assert times(p, "compute") == [(70, 100), (170, 200), (270, 300), (370, 400)]
    assert p.step_seconds == pytest.approx(0.1)
    assert p.stall_ratio == pytest.approx(0.7)
    assert p.images_per_second == pytest.approx(320)
    assert p.bottleneck == "data"
    assert "the training's own process needs 60.0 ms for a batch" in p.sentence, "there is no worker"


def test_a_host_that_does_not_wait_loads_beside_the_step():
    """Pinned memory and an unread loss let the host load the next batch at once: a step takes the loading alone."""
    p = training.model_pipeline(0.06, 0.03, copy_seconds=0.01, steps=4, pinned=True, read_loss=False)
    assert times(p, "data") == [(0, 60), (60, 120), (120, 180), (180, 240)]
    assert p.step_seconds == pytest.approx(0.06)
    pageable = training.model_pipeline(0.06, 0.03, copy_seconds=0.01, steps=4, pinned=False, read_loss=False)
    assert pageable.step_seconds == pytest.approx(0.07)  # the host waits for the copy, and it alone


def test_workers_load_in_turn_and_prefetch_bounds_them():
    """Two workers, one batch ahead each: the order for batch 2 goes out when batch 0 is taken."""
    p = training.model_pipeline(0.06, 0.02, copy_seconds=0, workers=2, prefetch=1, steps=6)
    assert times(p, "data") == [(0, 60), (0, 60), (60, 120), (80, 140), (120, 180), (140, 200)]
    assert times(p, "compute") == [(60, 80), (80, 100), (120, 140), (140, 160), (180, 200), (200, 220)]
    assert [s.worker for s in p.lane("data")] == [0, 1, 0, 1, 0, 1]


def test_enough_workers_leave_no_stall_and_more_than_cores_do_not_help():
    """60 ms of loading behind 20 ms of computing need three workers; on two cores three load at the rate of two."""
    assert training.model_pipeline(0.06, 0.02, copy_seconds=0, workers=3, steps=40).stall_ratio == pytest.approx(0, abs=1e-12)
    assert training.model_pipeline(0.06, 0.02, copy_seconds=0, workers=3, steps=40).bottleneck == "compute"
    two = training.model_pipeline(0.06, 0.02, copy_seconds=0, workers=2, cores=2, steps=400)
    four = training.model_pipeline(0.06, 0.02, copy_seconds=0, workers=4, cores=2, steps=400)
    assert four.images_per_second == pytest.approx(two.images_per_second, rel=0.02)


def test_a_slow_link_is_named():
    """Where the copy fills the gaps, the copy is the bottleneck."""
    p = training.model_pipeline(0.01, 0.02, copy_seconds=0.05, workers=4, steps=20)
    assert p.bottleneck == "copy"
    assert "for the copy" in p.sentence


def test_a_replay_changes_one_thing_by_hand():
    """Loads of 50, 70, 60 ms stay as they were; a step of 10 ms instead of 30, or a host that does not wait, changes only its part."""
    loading = [0.05, 0.07, 0.06]
    spans = _pipeline_model.schedule(loading, [0.0] * 3, [0.03] * 3, workers=0, prefetch=2, pinned=True, read_loss=True)
    run = dataclasses.replace(training.model_pipeline(0.06, 0.03, steps=3), spans=tuple(spans), pinned=True)
    assert times(run, "compute") == [(50, 80), (150, 180), (240, 270)]
    faster = training.replay(run, compute_seconds=0.01)
    assert times(faster, "compute") == [(50, 60), (130, 140), (200, 210)]
    goes_on = training.replay(run, read_loss=False)
    assert times(goes_on, "data") == [(0, 50), (50, 120), (120, 180)]
    assert times(goes_on, "compute") == [(50, 80), (120, 150), (180, 210)]
    assert training.replay(run).spans == run.spans
    assert faster.evidence is run.evidence
    assert "10.0 ms" in faster.accelerator_evidence.assumptions
    with pytest.raises(InputError, match=r"expected what training\.pipeline returned"):
        training.replay(3)


# -- the loop on a clock of ours ------------------------------------------------------------------------------------------


class Clock:
    """Time that passes only where the test lets it."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def now(self) -> float:
        """The moment."""
        return self.seconds

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        self.seconds += seconds

    def batches(self, loading):
        """Batches that take so long each, loaded by the training's own process."""
        for seconds in loading:
            start = self.seconds
            self.seconds += seconds
            yield _images.LoadedBatch(None, None, -1, start, self.seconds)


@pytest.mark.parametrize(("pinned", "read_loss"), [(False, True), (True, True), (False, False), (True, False)])
def test_the_loop_follows_the_model(pinned, read_loss):
    """On a scripted clock the real loop and the arithmetic give the same timetable, in each of the four ways."""
    clock = Clock()
    accelerator = ModelledAccelerator(0.01, 0.03, pinned=pinned, evidence=MODEL, now=clock.now, sleep=clock.sleep)
    drive(clock.batches([0.06] * 5), accelerator, steps=5, read_loss=read_loss)
    expected = training.model_pipeline(0.06, 0.03, copy_seconds=0.01, pinned=pinned, read_loss=read_loss, steps=5)
    got = [(s.lane, s.step, round(s.start_seconds, 9), round(s.end_seconds, 9)) for s in accelerator.spans(100.0)]
    assert got == [(s.lane, s.step, round(s.start_seconds, 9), round(s.end_seconds, 9)) for s in expected.spans if s.lane != "data"]
    assert clock.seconds == pytest.approx(100 + max(s.end_seconds for s in expected.spans)), "the loop is over when all is computed"


def test_the_loop_stops_and_says_what_was_reached():
    """Stopped after three steps it has three; before the second it says so; a dead worker is a sentence."""
    clock, asked = Clock(), iter([False, False, False, True])
    accelerator = ModelledAccelerator(0, 0.01, pinned=True, evidence=MODEL, now=clock.now, sleep=clock.sleep)
    assert len(drive(clock.batches([0.1] * 9), accelerator, steps=9, read_loss=True, stop=lambda: next(asked))) == 3
    with pytest.raises(StoppedError, match="before two steps"):
        drive(clock.batches([0.1] * 9), accelerator, steps=9, read_loss=True, stop=lambda: True)

    def dies():
        yield next(clock.batches([0.1]))
        raise RuntimeError("DataLoader worker (pid 7) exited unexpectedly")

    with pytest.raises(MeasurementError, match=r"no batch 1 \(DataLoader worker .* workers=0"):
        drive(dies(), accelerator, steps=3, read_loss=True)


# -- what a result tells --------------------------------------------------------------------------------------------------


def result_of(compute):
    """A result with these compute spans and nothing to load."""
    spans = [StepSpan("compute", k, 0, a, b) for k, (a, b) in enumerate(compute)]
    spans += [StepSpan(lane, k, 0, a, a) for k, (a, _) in enumerate(compute) for lane in ("data", "copy")]
    return PipelineResult("it", 10, 1, 0, 2, False, True, 0.0, tuple(spans), (), MODEL, MODEL)


def test_the_interval_is_of_batch_means():
    """Steps of 1 and 3 s in turn, 24 of them: blocks of four have equal means, so the interval is a point; by hand 5 images/s."""
    ends = np.cumsum([1.0, *([1.0, 3.0] * 12)])
    p = result_of([(end - 0.5, end) for end in ends])
    assert p.images_per_second == pytest.approx(10 / 2)
    assert p.images_per_second_interval == pytest.approx((5, 5))
    assert result_of([(0, 1), (1, 2)]).images_per_second_interval is None


def test_the_interval_by_hand():
    """Six blocks of two steps with means 1..6 s: mean 3.5, standard error sqrt(3.5 / 6), Student's t for 5 degrees is 2.5706."""
    durations = [d for mean in (1, 2, 3, 4, 5, 6) for d in (mean, mean)]
    ends = np.cumsum([1.0, *durations])
    p = result_of([(end - 0.1, end) for end in ends])
    half = 2.5706 * math.sqrt(3.5 / 6)
    assert p.images_per_second_interval == pytest.approx((10 / (3.5 + half), 10 / (3.5 - half)), rel=1e-3)


def test_results_go_through_json():
    """A result comes back from JSON as it was."""
    p = training.model_pipeline(0.06, 0.02, workers=2, steps=5)
    assert PipelineResult.from_dict(json.loads(json.dumps(p.to_dict()))) == p
    assert "MODELLED" in p.caption()
    assert "stalled" in repr(p)


# -- real files, real workers ---------------------------------------------------------------------------------------------


def test_the_files_are_jpegs_and_the_same_for_a_seed():
    """Pillow's own reader finds JPEG files of the size asked for; the same seed gives the same bytes, another one others."""
    from PIL import Image

    files = _images.jpegs(4, 64, 7)
    for k, (file, label) in enumerate(files):
        with Image.open(io.BytesIO(file)) as picture:
            assert (picture.format, picture.size, label) == ("JPEG", (64, 64), k)
    _images.jpegs.cache_clear()
    assert _images.jpegs(4, 64, 7) == files
    assert _images.jpegs(4, 64, 8)[0] != files[0]


def test_decoding_keeps_the_picture():
    """A crop of a picture that is red on the whole stays red; what is cut short is named."""
    from PIL import Image

    file = io.BytesIO()
    Image.new("RGB", (100, 80), (200, 30, 20)).save(file, "JPEG")
    sample = _images.decode(file.getvalue(), 32, np.random.default_rng(0))
    assert (sample.shape, sample.dtype) == ((3, 32, 32), np.uint8)
    assert np.abs(sample.mean((1, 2)) - [200, 30, 20]).max() < 4
    with pytest.raises(InputError, match="are no picture"):
        _images.decode(b"no jpeg", 32, np.random.default_rng(0))


def test_real_workers_give_the_same_batches_in_order():
    """Two processes load what the own process loads, in the same order, and the spans name them."""
    alone = _images.BatchSet(_images.jpegs(8, 32), 2, 16, 4)
    with _pipeline._loader(alone, 2, 2, False) as batches:
        theirs = list(batches)
    for k, batch in enumerate(theirs):
        assert batch.images.equal(alone[k].images)
        assert (batch.worker, batch.labels.tolist()) == (k % 2, alone[k].labels.tolist())
        assert batch.start < batch.end


class _Interrupting(_images.BatchSet):
    """Batches whose worker is interrupted while it loads the second one."""

    def __getitem__(self, number):
        if number == 1:
            os.kill(os.getpid(), signal.SIGINT)
        return super().__getitem__(number)


@pytest.mark.skipif(os.name != "posix", reason="there are no process groups")
def test_an_interrupt_of_another_cell_leaves_the_workers_at_work(monkeypatch: pytest.MonkeyPatch):
    """A notebook's Stop goes to the kernel's whole process group: the workers of an instrument that runs meanwhile are in it too."""
    monkeypatch.setattr(_pipeline, "_TIMEOUT_SECONDS", 5.0)
    with _pipeline._loader(_Interrupting(_images.jpegs(8, 32), 2, 16, 3), 1, 2, False) as batches:
        assert [batch.labels.tolist() for batch in batches] == [[0, 1], [2, 3], [4, 5]]


def test_a_real_run_has_every_step_in_each_lane():
    """Loading is measured, the accelerator modelled; no lane does two things at once, and each batch goes data, copy, compute."""
    p = training.pipeline(batch_size=2, steps=5, image_size=16, workers=1, step_seconds=0.002)
    assert (p.evidence.badge, p.accelerator_evidence.badge) == (Badge.MEASURED, Badge.MODELLED)
    for k in range(5):
        data, copy, compute = (p.lane(lane)[k] for lane in ("data", "copy", "compute"))
        assert data.end_seconds <= copy.start_seconds <= copy.end_seconds == compute.start_seconds < compute.end_seconds
        assert compute.seconds == pytest.approx(0.002)
    ends = [s.end_seconds for s in p.lane("compute")]
    assert all(a <= b.start_seconds for a, b in zip(ends, p.lane("compute")[1:], strict=False))
    assert 0 <= p.stall_ratio < 1
    assert p.weakest_evidence is p.accelerator_evidence


@pytest.mark.parametrize("link", ["pcie5-x16", "pcie4-x16"])
def test_a_modelled_accelerator_has_its_links_known_error(link: str, monkeypatch: pytest.MonkeyPatch):
    """PCI Express 5 was held against the H200's recording, 4 against none yet; that the loading is measured is no error."""
    monkeypatch.setattr(_pipeline, "_LINK", link)
    evidence = _pipeline._modelled(2**20, 0.01, pinned=True).evidence
    assert "the loading beside it is measured" in evidence.assumptions
    if link == "pcie5-x16":
        assert str(evidence.known_error).startswith("on nvidia-h200 the recorded time is ")
    else:
        assert "known error: no recording to compare with yet" in evidence.sentence


# -- bad input ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong", [{"workers": -1}, {"workers": 2.0}, {"steps": 1}, {"prefetch": 0}, {"batch_size": True}, {"image_size": 4},
              {"step_seconds": -0.1}, {"step_seconds": float("nan")}, {"pinned": "yes"}, {"read_loss": 1}]
)  # fmt: skip
def test_refuses_what_it_cannot_use(wrong):
    """Each bad argument is named before anything is loaded."""
    with pytest.raises(InputError, match=next(iter(wrong))):
        training.pipeline(**wrong)
    if "image_size" not in wrong and "step_seconds" not in wrong and "batch_size" not in wrong:
        with pytest.raises(InputError, match=next(iter(wrong))):
            training.model_pipeline(0.01, 0.01, **wrong)


def test_too_little_shared_memory_is_named_before_a_worker_dies(monkeypatch):
    """A container with a small /dev/shm gets a sentence instead of a worker killed by a bus error."""

    class Room:
        f_bavail, f_frsize = 10, 4096

    monkeypatch.setattr(_pipeline.os, "statvfs", lambda path: Room)
    monkeypatch.setattr(_pipeline.os.path, "isdir", lambda path: True)
    monkeypatch.setattr(_pipeline.sys, "platform", "linux")
    with pytest.raises(OutOfMemoryError, match="shm-size"):
        training.pipeline(workers=2, steps=3)


def test_how_much_shared_memory_workers_take(monkeypatch):
    """Each has its batches ahead and one under way: 100 bytes x 2 workers x (3 + 1) fit into 800 bytes and not into 799."""
    rooms = iter([(2, 400), (1, 799)])
    monkeypatch.setattr(
        _pipeline.os, "statvfs", lambda path: SimpleNamespace(**dict(zip(("f_bavail", "f_frsize"), next(rooms), strict=True)))
    )
    monkeypatch.setattr(_pipeline.os.path, "isdir", lambda path: True)
    monkeypatch.setattr(_pipeline.sys, "platform", "linux")
    _pipeline._check_shared(100, 2, 3)
    with pytest.raises(OutOfMemoryError) as caught:
        _pipeline._check_shared(100, 2, 3)
    assert str(caught.value) == (
        "pipeline: 2 workers, each 3 batches ahead, need 800 B of shared memory, and /dev/shm has 799 B free; expected room for them. "
        "Lower workers, prefetch or batch_size, or start the container with more (docker run --shm-size=1g)."
    )
    _pipeline._check_shared(100, 0, 3)  # nobody shares, and nobody is asked
    monkeypatch.setattr(_pipeline.sys, "platform", "darwin")
    _pipeline._check_shared(100, 2, 3)


def test_what_is_said_of_workers_and_of_an_early_end(monkeypatch):
    """As many workers as cores are told of nothing, one more is; a run of all its steps is not told to have stopped."""
    monkeypatch.setattr(_pipeline.devices, "environment", lambda device: SimpleNamespace(cores=4))
    assert _pipeline._notes(4, 10, 10) == []
    assert [(note.code, note.sentence) for note in _pipeline._notes(5, 10, 9)] == [
        ("contended", "5 workers share 4 cores, so each of them loads more slowly than one alone would."),
        ("stopped", "Stopped after 9 of 10 steps; the figures are those of the part that ran."),
    ]


class SecondGpu:
    """A device with the number 1 whose tensors lie on the host."""

    index, name, torch_type = 1, "a second GPU", "cuda"

    def __init__(self):
        self.seen = []

    def __str__(self):
        return "cpu"

    def synchronize(self):
        """Wait for nothing."""
        self.seen.append("wait")


def test_all_events_are_of_the_accelerators_own_device_and_the_readers_generators_stand(monkeypatch):
    """An event is of the device that is current when it is recorded, and two devices' events have no time between them."""
    current, recorded, seeded = [0], [], []

    @contextlib.contextmanager
    def device(index):
        before, current[0] = current[0], index
        yield
        current[0] = before

    monkeypatch.setattr(torch.cuda, "device", device)
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeded.append)
    monkeypatch.setattr(
        torch.cuda,
        "Event",
        lambda enable_timing: SimpleNamespace(
            record=lambda: recorded.append(current[0]) or gpu.seen.append("record"),
            elapsed_time=lambda mark: gpu.seen.append("read") or 1.0,
        ),
    )
    state = torch.get_rng_state()
    gpu = SecondGpu()
    accelerator = _pipeline.LiveAccelerator(gpu, 2, 16, pinned=False)
    assert torch.equal(torch.get_rng_state(), state)
    assert seeded == []
    accelerator.step(SimpleNamespace(images=torch.zeros(2, 3, 16, 16, dtype=torch.uint8), labels=torch.zeros(2, dtype=torch.int64)))
    assert recorded == [1] * 4  # the beginning, then a step's start, copy and end
    # The host's clock and the event that begin the timetable belong to one moment: the device is idle before it, and has reached it after.
    assert gpu.seen == ["wait", "record", "wait", *["record"] * 3]
    gpu.seen.clear()
    accelerator.wait()
    assert gpu.seen == ["wait"]
    gpu.seen.clear()
    copy, compute = accelerator.spans(0.0)
    assert gpu.seen == ["wait", *["read"] * 3]
    assert (copy.lane, compute.lane) == ("copy", "compute")
    moment = accelerator._begin_host + 1e-3  # each of the events was passed a millisecond after the first one
    assert [copy.start_seconds, copy.end_seconds, compute.start_seconds, compute.end_seconds] == [moment] * 4


def test_a_live_accelerator_really_trains(monkeypatch):
    """Three steps to warm up, on black pictures; then each step moves every weight by a hundredth of its gradient on this very batch."""
    monkeypatch.setattr(torch.cuda, "device", lambda index: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "Event", lambda enable_timing: SimpleNamespace(record=lambda: None))
    warming = []
    real = _pipeline.LiveAccelerator._train
    monkeypatch.setattr(
        _pipeline.LiveAccelerator, "_train", lambda self, x, y: warming.append(int(x.max()) + int(y.max())) or real(self, x, y)
    )
    accelerator = _pipeline.LiveAccelerator(SecondGpu(), 4, 16, pinned=False)
    assert warming == [0, 0, 0]
    rng = torch.Generator().manual_seed(0)
    images = torch.randint(256, (4, 3, 16, 16), dtype=torch.uint8, generator=rng)
    labels = torch.tensor([0, 3, 9, 3])
    for _ in range(2):  # gradients of the step before do not add up
        twin = copy.deepcopy(accelerator._model).train()
        loss = torch.nn.functional.cross_entropy(twin(images / 255), labels)
        gradients = torch.autograd.grad(loss, list(twin.parameters()))
        accelerator.step(SimpleNamespace(images=images, labels=labels))
        for now, before, gradient in zip(accelerator._model.parameters(), twin.parameters(), gradients, strict=True):
            torch.testing.assert_close(now, before - 0.01 * gradient, rtol=1e-4, atol=1e-6)


@pytest.mark.gpu
def test_on_a_gpu_the_lanes_are_events():
    """A real step on the device: measured evidence, and a step takes time."""
    p = training.pipeline(batch_size=8, steps=5, image_size=32, pinned=True, read_loss=False)
    assert p.accelerator_evidence.badge is Badge.MEASURED
    assert all(span.seconds > 0 for span in p.lane("compute"))
