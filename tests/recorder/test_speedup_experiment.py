"""The recorder's ladder: which forms a GPU is asked for, a form that is really timed, and what a recording of it says."""

from __future__ import annotations

import dataclasses
import sys

import numpy as np
import pytest

from gpulab import devices, networks, recorder, recordings, training
from gpulab.devices import Device
from gpulab.errors import InputError
from gpulab.recorder import _speedup, _training
from gpulab.recorder._speedup import _case, _cases, _techniques
from gpulab.recordings import Entry, Recording, Timing

CUDA = Device("cuda", 0)


def test_a_gpu_is_asked_for_the_script_each_alone_each_upon_the_others_and_all_but_each() -> None:
    """One and three times the techniques, each case once; the script and the whole first; nothing of a CPU, which climbs live."""
    cases = list(_cases(CUDA))
    names = [technique.name for technique in training.techniques() if technique.name != "ranks"]
    assert len(cases) == 1 + 3 * len(names)
    assert len({(case.params["form"], case.params["technique"]) for case in cases}) == len(cases)
    first = [case.params for case in cases if case.rank == min(case.rank for case in cases)]
    assert [(each["form"], each["technique"]) for each in first] == [("the script", ""), ("with all before it", names[-1])]
    assert list(_cases(Device("cpu"))) == []
    assert "speed-up ladder" in {experiment.name for experiment in recorder.experiments()}


def test_the_batch_of_each_form_is_recorded() -> None:
    """With a batch of its own from the larger one on, so that times can be told for a sample."""
    sizes = {(c.params["form"], c.params["technique"]): c.params["batch_size"] for c in _cases(CUDA)}
    assert sizes["the script", ""] == sizes["alone", "graph"] == sizes["all but it", "batch"] == 32
    assert sizes["alone", "batch"] == sizes["with all before it", "graph"] == sizes["all but it", "graph"] == 256


@pytest.fixture(name="small")
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that a test can afford; no scikit-learn."""
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    real = _training._images
    monkeypatch.setitem(_training.MODELS, "cnn", lambda: dataclasses.replace(real(), _build=lambda: networks.cnn(3, 10, width=4)))
    monkeypatch.setitem(_speedup._SIZES, "start", 4)


@pytest.mark.usefixtures("small")
def test_a_form_is_timed() -> None:
    """Real steps on the CPU; what the device lacks is not recorded under its name."""
    known = {technique.name: technique for technique in _techniques()}
    case = _case(Device("cpu"), "alone", "fused", (known["fused"],), 0)
    measured = case.time(0.1)
    assert measured.median_seconds > 0
    assert (case.params["steps"], case.params["batch_size"]) == (1, 4)
    with pytest.raises(InputError, match="no CUDA graphs"):
        _case(Device("cpu"), "alone", "graph", (known["graph"],), 0).time(0.01)


def entry(form: str, technique: str, batch: int, seconds: float) -> Entry:
    """A recorded form: ten steps a call, known to a tenth."""
    timing = Timing(np.full(5, seconds), 5, seconds, (0.9 * seconds, 1.1 * seconds), 1.0, seconds, None, 1, None, None, ())
    return Entry("speed-up ladder", {"model": "cnn", "form": form, "technique": technique, "batch_size": batch, "steps": 10}, timing)


def test_a_recording_of_a_ladder_is_read_by_the_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    """By hand: 1 s for 320 samples; a batch of 256 in 2 s is 4x, fused 0.5 s is 2x, both in 1.6 s 5x: the product promises 8x."""
    entries = (
        entry("the script", "", 32, 1.0), entry("alone", "batch", 256, 2.0), entry("with all before it", "batch", 256, 2.0),
        entry("alone", "fused", 32, 0.5), entry("with all before it", "fused", 256, 1.6), entry("all but it", "fused", 256, 2.0),
        entry("all but it", "batch", 32, 0.5),
    )  # fmt: skip
    machine = dataclasses.replace(devices.environment("cpu"), device="Far GPU", device_kind="cuda")
    far = Recording("far", machine, {}, {}, "0.1.0", entries)
    found = training.recorded_ladder(far)
    assert [(row.name, row.alone.ratio, row.removed.ratio) for row in found.rows if row.alone and row.removed] == [
        ("batch", pytest.approx(4.0), pytest.approx(2.5)), ("fused", pytest.approx(2.0), pytest.approx(1.25)),
    ]  # fmt: skip
    assert found.together is not None
    assert found.together.ratio == pytest.approx(5.0)
    assert found.together.interval == pytest.approx((5 * 0.9 / 1.1, 5 * 1.1 / 0.9))
    assert found.product == pytest.approx(8.0)
    assert "RECORDED on Far GPU" in found.evidence.sentence
    monkeypatch.setattr(recordings, "readable", lambda: {"far": far})
    from gpulab import lessons

    assert lessons.recorded_ladders() == (found,)
    gain = lessons.technique_gains().of("larger batch")
    assert gain is not None
    assert gain.ratio == pytest.approx(4.0)
    with pytest.raises(InputError, match="no recording"):
        training.recorded_ladder("far")  # type: ignore[arg-type]


def test_a_ladder_that_lacks_a_form_has_neither_a_whole_nor_a_product_of_less() -> None:
    """As where torch.compile finds no compiler: what is upon it fails too. Two techniques of three together are not all of them."""

    def missing(form: str, technique: str) -> Entry:
        return dataclasses.replace(entry(form, technique, 256, 1.0), timing=None, reason="InputError: no compiler")

    entries = (
        entry("the script", "", 32, 1.0), entry("alone", "batch", 256, 2.0), entry("with all before it", "batch", 256, 2.0),
        missing("alone", "compile"), missing("with all before it", "compile"), entry("alone", "graph", 32, 0.5),
        missing("with all before it", "graph"), entry("all but it", "compile", 256, 1.0), missing("all but it", "batch"),
    )  # fmt: skip
    machine = dataclasses.replace(devices.environment("cpu"), device="Far GPU", device_kind="cuda")
    found = training.recorded_ladder(Recording("far", machine, {}, {}, "0.1.0", entries))
    assert [(row.name, row.up_to is not None, row.removed) for row in found.rows] == [("batch", True, None), ("graph", False, None)]
    assert (found.together, found.product) == (None, None)
    assert repr(found) == "<ladder on far: 2 alone; all together not recorded yet>"
    assert [row[0] for row in found.table()[1]] == ["larger batch", "CUDA graph"]
