"""Break-even: where two lines cross, and where the second line may come from."""

import dataclasses
import math
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpulab import devices, recordings, timing, transfer, workloads
from gpulab.devices import Device
from gpulab.errors import InputError, OutOfMemoryError, StoppedError
from gpulab.evidence import Badge, Environment, Evidence, Note
from gpulab.transfer import BreakEven, _break_even
from gpulab.transfer._break_even import answer


@given(st.floats(1e-6, 1e-2), st.floats(1.1, 1000), st.integers(3, 20))
def test_crossing_of_power_laws_is_exact(fixed, speedup, count):
    """Host n^2, device fixed + n^2 / speedup, sampled densely: the size found is the true one within 3 %."""
    sizes = sorted({round(2 ** (k / 4)) for k in range(4 * count)})
    host = [1e-7 * n**2 for n in sizes]
    device = [fixed + h / speedup for h in host]
    true = math.sqrt(fixed / (1 - 1 / speedup) / 1e-7)
    size, reason, _ = answer(sizes, host, device)
    if true > sizes[-1]:
        assert (size, reason) == (None, "never in this range")
    elif true < sizes[0]:
        assert (size, reason) == (sizes[0], "found")
    else:
        assert reason == "found"
        assert size == pytest.approx(true, rel=0.03, abs=1)


def test_words_of_each_answer():
    """Never, always, in between and in the middle: each says its sizes."""
    assert answer([1, 2, 4], [1, 2, 4], [9, 9, 9])[2] == (
        "The accelerator does not win at the end of the sizes tried (n = 1 to 4); it comes nearest at 4 (0.44x)."
    )
    assert answer([1, 2, 4], [1, 2, 4], [0.5, 0.5, 0.5])[:2] == (1, "found")
    assert "wins at 2 only in between (2.00x)" in answer([1, 2, 4], [1, 2, 4], [9, 1, 9])[2]
    assert answer([8], [1.0], [2.0]) == (
        None, "never in this range",
        "The accelerator does not win at the end of the sizes tried (n = 8); it comes nearest at 8 (0.50x).",
    )  # fmt: skip


def test_crosses_where_the_last_loss_ends():
    """A win by noise at a small size does not count: the size is where the device wins for good. By hand: half way on log scales."""
    size, reason, _ = answer([16, 64, 256, 1024], [1, 1, 1, 2], [0.9, 2, 2, 1])
    assert (size, reason) == (512, "found")


def test_no_accelerator():
    """On a CPU alone the answer is "no accelerator", and what can be given instead."""
    b = transfer.break_even("matmul", device="cpu")
    assert (b.size, b.reason, b.rows) == (None, "no accelerator", ())
    assert "link='pcie4-x16'" in b.sentence
    assert BreakEven.from_dict(b.to_dict()) == b


def test_a_machine_with_a_gpu_is_not_said_to_have_none(monkeypatch):
    """Where the CPU is named beside one, that is what the sentence says."""
    gpu = Device("cuda")
    monkeypatch.setattr(devices, "default", lambda: gpu)
    b = transfer.break_even("add", device="cpu")
    assert b.reason == "no accelerator"
    assert b.sentence.startswith(f"No accelerator was named to compare {devices.find('cpu').name} with; pass link='pcie4-x16'")


@pytest.fixture
def scripted_host(monkeypatch):
    """Let the CPU take what the script says: nbytes at 1 GB/s."""

    def measure(fn, *args, nbytes=None, flops=None, label=None, transfer=False, **rest):
        seconds = nbytes / 1e9 if not transfer else 1e-5 + nbytes / 1e10
        m = real(lambda: None, device="cpu", deadline=0.01)
        return type(m)(**{**vars(m), "median_seconds": seconds, "with_transfer_seconds": 2 * seconds if transfer else None})

    real = timing.measure
    monkeypatch.setattr(timing, "measure", measure)


def test_modelled_accelerator_by_hand(scripted_host):
    """Add over 10 us and 24 GB/s: three copies and 3n/3.77e12 + 2.5 us against 12n bytes at 1 GB/s."""
    link = transfer.link("pcie4", 10e-6, 24e9)
    b = transfer.break_even("add", sizes=[2**k for k in range(6, 16)], link=link)
    # 12 n / 1e9 = 3 * 10e-6 + 12 n / 24e9 + 2.5e-6 + 12 n / 3.77e12
    true = 32.5e-6 / (12 / 1e9 - 12 / 24e9 - 12 / 3.77e12)
    assert b.reason == "found"
    assert b.size == pytest.approx(true, rel=0.1)
    assert b.evidence.badge is Badge.MODELLED
    assert "42.5 TFLOP/s" in b.evidence.assumptions
    row = b.rows[0]
    assert row.copied_bytes == 3 * 64 * 4
    assert row.device_seconds == pytest.approx(3 * 10e-6 + 768 / 24e9 + 2.5e-6 + 768 / 3.77e12)
    assert BreakEven.from_dict(b.to_dict()) == b


def test_measured_accelerator(scripted_host, monkeypatch):
    """Where there is a device its time is that with both copies, and its result is checked first."""
    gpu = Device("cuda")
    real = devices.find
    monkeypatch.setattr(devices, "find", lambda name=None: gpu if name is None else real("cpu"))
    monkeypatch.setattr(Device, "name", property(lambda self: "fake"))
    b = transfer.break_even("add", sizes=[2**10, 2**14])
    assert b.evidence.badge is Badge.MEASURED
    assert b.rows[0].device_seconds == pytest.approx(2 * (1e-5 + 12 * 2**10 / 1e10))
    assert b.reason == "found"


def test_a_wrong_result_is_no_row(scripted_host, monkeypatch):
    """A device whose result is wrong has no time to compare: the note "disagree" instead."""
    gpu = Device("cuda")
    real = devices.find
    monkeypatch.setattr(devices, "find", lambda name=None: gpu if name is None else real("cpu"))
    monkeypatch.setattr(Device, "name", property(lambda self: "fake"))
    monkeypatch.setattr(workloads.Workload, "difference", lambda self, result, inputs: 0.5)
    b = transfer.break_even("add", sizes=[2**10])
    assert (b.size, b.rows) == (None, ())
    assert b.notes[0].code == "disagree"


def test_recorded_accelerator(scripted_host):
    """With a recording the second line is looked up, badged RECORDED, and sizes that it lacks are named."""
    environment = Environment(
        "2026-01-02T03:04:05+00:00", "Linux", "some CPU", 4, 2**33, "some GPU", "cuda", "570.1", "3.12", {"torch": "2.9"}
    )

    def entry(n, seconds):
        timed = recordings.Timing(np.array([1e-5]), 1, 1e-5, None, 1e-4, 1e-6, seconds, 1, None, None, ())
        return recordings.Entry("catalogue", {"workload": "add", "n": n, "dtype": "float32"}, timed)

    recording = recordings.Recording("some-gpu", environment, {}, {}, "0.1.0", (entry(2**10, 1e-3), entry(2**20, 1e-3)))
    b = transfer.break_even("add", sizes=[2**10, 2**15, 2**20], recording=recording)
    assert b.evidence.badge is Badge.RECORDED
    assert [r.n for r in b.rows] == [2**10, 2**20]
    assert [n.code for n in b.notes if n.code in ("skipped", "disagree", "stopped")] == ["skipped"]
    assert "not recorded there yet" in b.notes[0].sentence
    assert b.reason == "found"
    with pytest.raises(InputError, match="a recording and a model"):
        transfer.break_even("add", recording=recording, link="pcie4")


def test_a_recording_answers_only_for_the_parameters_that_it_was_made_with():
    """The catalogue is recorded with its usual parameters; a layer of other features is not in it, which a note says."""
    asked = transfer.break_even("linear", sizes=[4], recording="nvidia-h200", features=64)
    assert asked.rows == ()
    assert "features=64 is not recorded there yet" in asked.notes[0].sentence
    usual = transfer.break_even("linear", sizes=[4], recording="nvidia-h200", deadline=0.5)
    assert [row.n for row in usual.rows] == [4]


def test_a_disturbed_cpu_is_named_once_with_its_sizes(monkeypatch):
    """A note on the CPU's measurements reaches the answer, once with all its sizes, and so do too few samples; a deadline does not."""

    def measure(fn, *args, **rest):
        notes = (Note("contended", "others ran."), Note("no-interval", "3 samples."), Note("deadline", "too soon."))
        return type(calm)(**{**vars(calm), "notes": notes})

    calm = timing.measure(lambda: None, device="cpu", deadline=0.01)
    monkeypatch.setattr(timing, "measure", measure)
    b = transfer.break_even("add", sizes=[16, 32], link="pcie4")
    assert [n.code for n in b.notes] == ["contended", "no-interval"]
    assert all("n = 16, 32" in note.sentence for note in b.notes)
    assert "3 samples." in b.notes[1].sentence
    assert "others ran." in b.notes[0].sentence
    assert b.caption().startswith("MODELLED · The accelerator")
    assert f"the CPU's side: MEASURED on {devices.find('cpu').name}" in b.caption()


@pytest.fixture
def fake_gpu(monkeypatch):
    """Let the best device be a GPU that is not there; what runs on it is the test's to say."""
    real = devices.find
    monkeypatch.setattr(devices, "find", lambda name=None: Device("cuda") if name is None else real("cpu"))
    monkeypatch.setattr(Device, "name", property(lambda self: "fake" if self.torch_type == "cuda" else "A CPU"))


def test_a_disturbed_accelerator_is_named_too(fake_gpu, monkeypatch):
    """Two columns stand beside each other, and each one's disturbances are told: measured here, or kept in a recording."""

    def measure(fn, *args, transfer=False, **rest):
        told = Note("throttled", "it was hot.") if transfer else Note("contended", "others ran.")
        return type(calm)(**{**vars(calm), "notes": (told,), "with_transfer_seconds": 1e-3 if transfer else None})

    calm = timing.measure(lambda: None, device="cpu", deadline=0.01)
    monkeypatch.setattr(timing, "measure", measure)
    b = transfer.break_even("add", sizes=[16, 32])
    assert [(n.code, n.sentence) for n in b.notes] == [
        ("contended", "The CPU's times at n = 16, 32 may be off, and the break-even with them. At n = 16: others ran."),
        ("throttled", "The accelerator's times at n = 16, 32 may be off, and the break-even with them. At n = 16: it was hot."),
    ]
    kept = recordings.Timing(np.array([1e-5]), 1, 1e-5, None, 1e-4, 1e-6, 1e-3, 1, None, None, (Note("throttled", "it was hot."),))
    entry = recordings.Entry("catalogue", {"workload": "add", "n": 16, "dtype": "float32"}, kept)
    there = recordings.load("nvidia-h200")
    b = transfer.break_even("add", sizes=[16], recording=dataclasses.replace(there, entries=(entry,)))
    assert b.notes[1].sentence.startswith("The accelerator's times at n = 16 may be off")


def test_a_stop_is_heard_while_the_accelerator_is_measured(fake_gpu, monkeypatch):
    """The accelerator's measurement is asked too, and one that ends before its copies were timed is a stop, not a size never recorded."""
    pressed = []

    def measure(fn, *args, transfer=False, stop=None, **rest):
        if not transfer:
            return calm
        pressed.append(True)  # while the first call runs there
        return type(calm)(**{**vars(calm), "with_transfer_seconds": None if stop is not None and stop() else 1e-3})

    calm = timing.measure(lambda: None, device="cpu", deadline=0.01)
    calm = type(calm)(**{**vars(calm), "notes": ()})
    monkeypatch.setattr(timing, "measure", measure)
    with pytest.raises(StoppedError, match="before the first size"):
        transfer.break_even("add", sizes=[16, 32], stop=lambda: bool(pressed))
    assert pressed == [True]
    b = transfer.break_even("add", sizes=[16, 32, 64], stop=lambda: len(pressed) > 2)
    assert [r.n for r in b.rows] == [16]
    assert [(n.code, n.sentence) for n in b.notes] == [("stopped", "The search was stopped at n = 32; run it again for larger sizes.")]


def test_stop_and_progress(scripted_host):
    """A stop keeps the sizes reached; before the first there is nothing to return."""
    seen = []
    answers = iter([False, False, True])
    b = transfer.break_even("add", link="pcie4", sizes=[16, 32, 64], stop=lambda: next(answers), progress=lambda f, t: seen.append((f, t)))
    assert [r.n for r in b.rows] == [16, 32]
    assert b.notes[0].code == "stopped"
    assert seen == [(0.0, "add n=16 float32"), (1 / 3, "add n=32 float32"), (1.0, "done")]
    with pytest.raises(StoppedError):
        transfer.break_even("add", link="pcie4", stop=lambda: True)


def test_an_interrupt_keeps_the_sizes_reached(scripted_host, monkeypatch):
    """Ctrl-C at the third size: the answer of the two before it, which Stop keeps too; at the first there is nothing to keep."""
    inputs, asked = workloads.Workload.inputs, []

    def until(w, device):
        asked.append(w.n)
        if w.n == ends_at:
            raise KeyboardInterrupt
        return inputs(w, device)

    monkeypatch.setattr(workloads.Workload, "inputs", until)
    ends_at = 64
    b = transfer.break_even("add", link="pcie4", sizes=[16, 32, 64, 128])
    assert ([r.n for r in b.rows], asked[-1]) == ([16, 32], 64)
    assert (b.notes[0].code, b.notes[0].sentence) == (
        "interrupted", "The search was interrupted at n = 64; run it again for larger sizes.",
    )  # fmt: skip
    ends_at = 16
    with pytest.raises(KeyboardInterrupt):
        transfer.break_even("add", link="pcie4", sizes=[16, 32])


def test_sizes_beyond_the_deadline_or_memory_are_left_out(scripted_host):
    """A size whose call would not fit into the deadline, or that does not fit into memory, is named and ends the search."""
    b = transfer.break_even("add", link="pcie4", sizes=[2**10, 2**30], deadline=5)
    assert [r.n for r in b.rows] == [2**10]
    assert "does not fit into the deadline" in b.notes[0].sentence
    b = transfer.break_even("add", link="pcie4", sizes=[2**39], deadline=5)
    assert (b.size, b.rows) == (None, ())
    assert b.notes[0].code == "skipped"
    b = transfer.break_even("add", link="pcie4", sizes=[2**10, 2**39, 2**40], deadline=1e5)
    assert [r.n for r in b.rows] == [2**10]
    assert sum(n.code == "skipped" for n in b.notes) == 1  # what is larger is not even tried
    with pytest.raises(OutOfMemoryError):
        workloads.get("add")(n=2**39).check("cpu")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"workload": "matmull"}, "Did you mean 'matmul'"),
        ({"sizes": [0]}, "n is 0"),
        ({"sizes": []}, "no sizes"),
        ({"sizes": 64}, "sizes is 64"),
        ({"dtype": "int8"}, "dtype 'int8'"),
        ({"link": "road"}, "'road'"),
        ({"processor": "abacus"}, "'abacus'"),
        ({"deadline": -1}, "deadline"),
        ({"channels": 3}, "no parameter 'channels'"),
    ],
)
def test_bad_arguments_are_one_sentence(arguments, words):
    """Whatever cannot be searched is refused at once."""
    with pytest.raises(InputError, match=words):
        transfer.break_even(**{"workload": "matmul", "link": "pcie4", **arguments})


def test_training_steps_copy_their_batch_only(scripted_host):
    """The model stays where it is: only images, labels and the loss travel."""
    b = transfer.break_even("cnn_training_step", sizes=[2], link="pcie4", side=8, width=4)
    assert b.rows[0].copied_bytes == 2 * (3 * 64 * 4 + 8) + 4


def test_spec_of_ones_own(scripted_host):
    """A spec that is not in the catalogue can be searched as well."""
    assert transfer.break_even(workloads.get("exp"), sizes=[16, 2**16], link="pcie4").label == "exp float32"
    assert _break_even._DEFAULT_PROCESSOR in transfer._links._PROCESSORS


@pytest.mark.parametrize(("left", "fits", "share"), [(48.0, True, 6.0), (6.0, True, 0.75), (5.99, False, None), (0.0, False, None)])
def test_a_size_is_tried_where_three_calls_of_it_fit(monkeypatch, left, fits, share):
    """By hand: a call took 1 s, one of twice the work takes 2; each measurement has an eighth of what is left of the time."""
    clock, deadlines = SimpleNamespace(perf_counter=lambda: 100.0 - left), []
    calm = timing.measure(lambda: None, device="cpu", deadline=0.01)

    def measure(fn, *args, deadline, **rest):
        deadlines.append((deadline, rest["device"], rest["label"], rest["nbytes"]))
        return type(calm)(**{**vars(calm), "median_seconds": 3.0, "notes": ()})

    monkeypatch.setattr(_break_even, "time", clock)
    monkeypatch.setattr(timing, "measure", measure)
    other = _break_even._Other(
        lambda w, inputs, deadline: deadlines.append(deadline) or _break_even._Time(0.5), transfer.link("pcie4").evidence
    )
    search = _break_even._Search(other, 50.0, None, None, _begin=50.0, _last=(12 * 2**9, 1.0))
    w = workloads.get("add")(n=2**10, dtype="float32")
    assert search.size(w, 0.0) is fits
    if fits:
        assert deadlines == [(share, "cpu", "add n=1024 float32", 12 * 2**10), share]
        assert [(row.n, row.host_seconds, row.device_seconds, row.copied_bytes) for row in search.rows] == [(1024, 3.0, 0.5, 12 * 2**10)]
        assert search._last == (12 * 2**10, 3.0)
    else:
        assert [note.sentence for note in search.notes] == [
            "Sizes from n = 1024 on were left out: a call of about 2.00 s does not fit into the deadline. Pass a longer one."
        ]
    first = _break_even._Search(other, 0.0, None, None, _begin=50.0)
    assert first.size(w, 0.0)  # the first size is always tried, for a twentieth of a second at least
    assert deadlines[-1] == max(0.05, (0.0 - (50.0 - left)) / 8)


def test_the_words_of_a_search_by_hand():
    """The table's row and its note, the caption with both sides, and what it says of itself; a stop before and within a size."""
    row = transfer.BreakEvenRow(64, 3e-3, 1.5e-3, 768.0)
    host = Evidence.measured("A CPU")
    b = BreakEven("add float32", 64, "found", "It wins.", (row,), (Note("stopped", "Here."),), transfer.link("pcie4").evidence, host)
    assert row.speedup == 2.0
    assert b.table() == (("n", "CPU (MEASURED)", "accelerator with copies (MODELLED)", "copied", "speed-up"), [
        ("64", "3.00 ms", "1.50 ms", "768 B", "2.00x"), ("note: stopped", "Here.", "", "", ""),
    ])  # fmt: skip
    assert repr(b) == "<break-even of add float32: It wins.>"
    assert b.caption().startswith("MODELLED · It wins. The accelerator's side: ")
    assert b.caption().endswith(" · the CPU's side: MEASURED on A CPU")
    other = _break_even._Other(lambda w, inputs, deadline: _break_even._Time(1.0), b.evidence)
    w = workloads.get("add")(n=16, dtype="float32")
    search = _break_even._Search(other, 9.0, None, lambda: True)
    assert not search.size(w, 0.0)
    within = _break_even._Search(other, 9.0, None, None)
    within._compare = lambda w, deadline: (_ for _ in ()).throw(StoppedError("x"))
    assert not within.size(w, 0.0)
    within._compare = lambda w, deadline: (_ for _ in ()).throw(InputError("No such."))
    assert within.size(w, 0.0)
    assert [(n.code, n.sentence) for n in (*search.notes, *within.notes)] == [
        ("stopped", "The search was stopped before n = 16; run it again for larger sizes."),
        ("stopped", "The search was stopped at n = 16; run it again for larger sizes."), ("skipped", "No such."),
    ]  # fmt: skip


def test_where_two_lines_meet_exactly():
    """A tie is no win, and a ratio of one no gain in between: by hand, at 4 both take as long, so it wins from there on."""
    assert answer([2, 4, 8], [1.0, 2.0, 4.0], [2.0, 2.0, 2.0]) == (
        4, "found", "The accelerator wins from about n = 4 on, copies counted (tried n = 2 to 8).",
    )  # fmt: skip
    assert answer([2, 4], [1.0, 1.0], [1.0, 2.0])[2].endswith("(n = 2 to 4); it comes nearest at 2 (1.00x).")
    assert answer([8], [2.0], [1.0]) == (8, "found", "The accelerator wins at every size tried (n = 8); the break-even lies at 8 or below.")


def test_a_size_that_does_not_fit_on_the_accelerator_ends_the_search(monkeypatch):
    """It is asked before anything is allocated there; what is measured is asked on that device, a model never."""
    asked, gpu = [], Device("cuda")
    monkeypatch.setattr(Device, "name", property(lambda self: "fake"))
    monkeypatch.setattr(workloads.Workload, "check", lambda w, device: asked.append((w.n, device)))
    w = workloads.get("add")(n=16, dtype="float32")
    _break_even._measured(gpu, None).check(w)
    assert asked == [(16, gpu)]

    def full(w):
        raise OutOfMemoryError("It is full.")

    def never(w, inputs, deadline):
        raise AssertionError("it had been asked for a time")

    search = _break_even._Search(_break_even._Other(never, Evidence.measured("x"), full), 9.0, None, None)
    assert not search.size(w, 0.0)
    assert asked[1:] == [(16, "cpu")]
    assert [(n.code, n.sentence) for n in search.notes] == [("skipped", "It is full.")]


@pytest.mark.parametrize(("apart", "right"), [(1.0, True), (1.001, False)])
def test_a_result_may_differ_by_the_tolerance_itself(fake_gpu, monkeypatch, apart, right):
    """As far as the catalogue allows, and no further."""
    calm = timing.measure(lambda: None, device="cpu", deadline=0.01)
    calm = type(calm)(**{**vars(calm), "notes": (), "with_transfer_seconds": 1e-3})
    monkeypatch.setattr(timing, "measure", lambda fn, *args, **rest: calm)
    monkeypatch.setattr(workloads.Workload, "difference", lambda w, result, inputs: apart * w.tolerance)
    b = transfer.break_even("add", sizes=[16])
    assert [r.device_seconds for r in b.rows] == ([1e-3] if right else [])
    assert [n.code for n in b.notes] == ([] if right else ["disagree"])


@pytest.mark.parametrize("timed", ["nothing", "no copies"])
def test_an_entry_without_its_copies_is_not_recorded_there(scripted_host, timed):
    """Time may not have reached it, or its copies."""
    kept = recordings.Timing(np.array([1e-5]), 1, 1e-5, None, 1e-4, 1e-6, None, 1, None, None, ())
    params = {"workload": "add", "n": 16, "dtype": "float32"}
    entry = recordings.Entry("catalogue", params, None, "no time") if timed == "nothing" else recordings.Entry("catalogue", params, kept)
    there = dataclasses.replace(recordings.load("nvidia-h200"), entries=(entry,))
    b = transfer.break_even("add", sizes=[16], recording=there)
    assert (b.rows, b.sentence) == ((), "No size of add float32 could be compared.")
    assert [n.sentence for n in b.notes if n.code == "skipped"] == ["add n=16 float32 is not recorded there yet."]
    assert b.reason == "never in this range"
