"""Modelled links and processors, and the device that stands in for a GPU."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gpulab import devices, transfer
from gpulab.errors import InputError
from gpulab.evidence import Badge, Evidence
from gpulab.transfer import Link, LinkReport, ModelledDevice, ProcessorModel, Sweep


@pytest.mark.parametrize("name", transfer.link_names())
def test_links_are_modelled_and_say_from_what(name):
    """Each named link is badged MODELLED with its assumptions and its source, and survives JSON."""
    link = transfer.link(name)
    assert link.evidence.badge is Badge.MODELLED
    assert "NVIDIA" in link.evidence.source
    assert "10.0 us a copy" in link.evidence.assumptions
    assert Link.from_dict(link.to_dict()) == link


# nvbandwidth's published rates, as in the course's notes.
@pytest.mark.parametrize(("name", "rate"), [("pcie3", 12.35e9), ("PCIe4", 26e9), ("pcie5-x16", 53e9), ("pcie5_x16", 53e9)])
def test_rates_of_named_links(name, rate):
    """The PCIe links have their measured rates, however the name is spelt; pageable memory gets half."""
    assert transfer.link(name).bandwidth_bytes_per_second == rate
    assert transfer.link(name, memory="pageable").bandwidth_bytes_per_second == rate / 2


def test_the_learner_sets_the_numbers():
    """Own numbers replace the named link's, and the evidence says that they were chosen."""
    link = transfer.link("pcie4", latency_seconds=1e-6, bandwidth_bytes_per_second=1e9)
    assert link.seconds(1000) == pytest.approx(2e-6)
    assert "1.00 us a copy chosen, 1.00 GB/s chosen" in link.evidence.assumptions


def test_no_name_and_no_gpu_is_pcie4(monkeypatch):
    """Without a name and without an accelerator the link is PCIe 4, modelled."""
    monkeypatch.setattr(devices, "default", lambda: devices.Device("cpu"))
    assert transfer.link().name == "pcie4-x16"
    assert transfer.link(latency_seconds=1e-6).latency_seconds == 1e-6


@pytest.mark.parametrize(
    "bad", [{"latency_seconds": 0}, {"latency_seconds": -1}, {"bandwidth_bytes_per_second": math.nan}, {"bandwidth_bytes_per_second": True},
            {"latency_seconds": "10 us"}, {"bandwidth_bytes_per_second": math.inf}, {"memory": "swapped"}]
)  # fmt: skip
def test_bad_numbers_are_one_sentence(bad):
    """Zero, negative, infinite and non-numbers are refused with the parameter's name."""
    with pytest.raises(InputError, match=next(iter(bad))):
        transfer.link("pcie4", **bad)


def test_unknown_link_suggests_the_nearest():
    """A misspelt link is answered with the nearest name."""
    with pytest.raises(InputError, match="Did you mean 'pcie3-x16'"):
        transfer.link("pci3-x16")


@pytest.mark.parametrize(("name", "near"), [("pci", "pcie5-x16"), ("nvlnk", "nvlink4"), ("banana", ""), ("usb", ""), ("", "")])
def test_a_word_that_is_near_no_link_gets_no_suggestion(name: str, near: str):
    """By Python's ratio, twice the letters in common over all: pci has 6 of 12 with each PCIe link; banana 4 of 13 with nvlink4."""
    with pytest.raises(InputError, match=r"expected one of: .*nvlink-c2c\." + (f" Did you mean '{near}'" if near else "$")):
        transfer.link(name)


@given(st.integers(0, 2**40), st.integers(0, 2**40))
def test_one_copy_beats_two(a, b):
    """Copying two arrays together never takes longer than apart: one latency less."""
    link = transfer.link("pcie4")
    assert link.seconds(a + b) <= link.seconds(a) + link.seconds(b)


@pytest.mark.parametrize("nbytes", [-1, math.nan, math.inf, True, "1 MiB", None])
def test_bad_sizes(nbytes):
    """A size that is none is refused."""
    with pytest.raises(InputError, match="expected 0 or more"):
        transfer.link("pcie4").seconds(nbytes)


def test_modelled_sweep_has_the_shape_of_a_measured_one():
    """Both directions, sizes 1 KiB to 1 GiB, badge MODELLED; the fit finds the link's numbers again."""
    link = transfer.link("pcie5")
    sweep = transfer.sweep(link="pcie5")
    assert sweep.evidence.badge is Badge.MODELLED
    assert "made noise of 3%" in sweep.evidence.assumptions
    assert sweep.series == (("to_device", "pinned"), ("to_host", "pinned"))
    assert [p.nbytes for p in sweep.select("to_host")] == [2**k for k in range(10, 31)]
    assert Sweep.from_dict(sweep.to_dict()) == sweep
    fit = sweep.fit("to_host", "pinned")
    assert fit.latency_seconds == pytest.approx(link.latency_seconds, rel=0.1)
    assert fit.bandwidth_bytes_per_second == pytest.approx(53e9, rel=0.05)
    assert fit.evidence.badge is Badge.MODELLED
    assert Link.from_fit(fit, "again").seconds(0) == fit.latency_seconds


def test_sweep_without_noise_is_the_formula():
    """Without noise each point is the link's own time; the same seed gives the same noise."""
    link = transfer.link("nvlink4")
    assert [p.median_seconds for p in link.sweep([10, 1000]).select("to_device")] == [link.seconds(10), link.seconds(1000)]
    assert link.sweep(noise_ratio=0.1, seed=4) == link.sweep(noise_ratio=0.1, seed=4)
    assert link.sweep(noise_ratio=0.1, seed=4) != link.sweep(noise_ratio=0.1, seed=5)


@pytest.mark.parametrize("sizes", [[0], [-1], [True], [1.5], [], "1024", 1024, [math.nan]])
def test_bad_sweep_sizes(sizes):
    """Sizes that cannot be copied are refused."""
    with pytest.raises(InputError, match="size"):
        transfer.sweep(link="pcie4", sizes=sizes)


def test_processor_model_by_hand():
    """A launch, then the longer of arithmetic and traffic: 42.5 TFLOP take a second, 3.77 TB too."""
    h200 = transfer.processor("nvidia-h200")
    assert h200.seconds(42.5e12, 0) == pytest.approx(1.0, rel=1e-4)
    assert h200.seconds(0, 3.77e12) == pytest.approx(1.0, rel=1e-4)
    assert h200.seconds(0, 0) == 2.5e-6
    twice = transfer.faster(h200, 2)
    assert twice.seconds(42.5e12, 0) == pytest.approx(0.5, rel=1e-4)
    assert ProcessorModel.from_dict(twice.to_dict()) == twice
    with pytest.raises(InputError, match="no rate for 'int8'"):
        h200.seconds(1, 1, "int8")
    with pytest.raises(InputError, match="nvidia-h200"):
        transfer.processor("abacus")


def loop_that_sends_every_time(gpu, x, times):
    """The tempting wrong version of the lesson."""
    for _ in range(times):
        x = gpu.to_host(gpu.run(np.multiply, gpu.to_device(x), 2.0))
    return x


def loop_that_sends_once(gpu, x, times):
    """One line moved."""
    there = gpu.to_device(x)
    for _ in range(times):
        there = gpu.run(np.multiply, there, 2.0)
    return gpu.to_host(there)


def test_moving_one_line_gains_at_least_three_times():
    """The lesson's exercise: the same numbers come out, a hundred times fewer copies are on the bill."""
    x = np.ones(250_000, dtype=np.float32)
    slow, fast = (ModelledDevice("pcie4", processor="nvidia-h200") for _ in range(2))
    assert np.array_equal(loop_that_sends_every_time(slow, x, 20), loop_that_sends_once(fast, x, 20))
    assert (slow.report().copies, fast.report().copies) == (40, 2)
    assert slow.report().total_seconds > 3 * fast.report().total_seconds
    assert slow.report().copied_bytes == 40 * x.nbytes


def test_the_bill_by_hand():
    """Two copies of a megabyte over 1 GB/s and 1 us: 2.002 ms; compute by an injected clock."""
    ticks = iter([1.0, 1.25])
    gpu = ModelledDevice(transfer.link("pcie4", 1e-6, 1e9), clock=lambda: next(ticks))
    out = gpu.to_host(gpu.run(np.negative, gpu.to_device(np.ones(125_000))))
    assert out[0] == -1
    report = gpu.report()
    assert report.copy_seconds == pytest.approx(2.002e-3)
    assert report.compute_seconds == 0.25
    assert report.evidence.badge is Badge.MODELLED
    assert "compute measured on this CPU" in report.evidence.assumptions
    assert LinkReport.from_dict(report.to_dict()) == report
    gpu.reset()
    assert gpu.report().total_seconds == 0


@pytest.mark.parametrize("processor", [None, "nvidia-h200"])
def test_a_refused_call_is_not_on_the_bill(processor):
    """A result that is no array, as a Python number, is refused: no call, no seconds."""
    gpu = ModelledDevice("pcie4", processor=processor)
    x = gpu.to_device(np.ones(3))
    with pytest.raises(InputError, match="run: got a float; expected a numpy array"):
        gpu.run(lambda a: float(a.sum()), x)
    report = gpu.report()
    assert (report.calls, report.compute_seconds, report.copies) == (0, 0.0, 1)
    gpu.run(np.negative, x)
    assert gpu.report().calls == 1


def test_arrays_in_a_list_are_on_the_device_and_in_the_traffic():
    """Two times three float64 in and six out: 96 bytes at 3.77 TB/s behind a launch of 2.5 us."""
    gpu = ModelledDevice("pcie4", processor="nvidia-h200")
    a, b = gpu.to_device(np.ones(3)), gpu.to_device(np.zeros(3))
    assert gpu.run(np.concatenate, [a, b]).tolist() == [1, 1, 1, 0, 0, 0]
    assert gpu.report().compute_seconds == pytest.approx(2.5e-6 + 96 / 3.77e12, rel=1e-12)


def test_copies_are_real():
    """What is on the device is another array: changing the host's does not reach it."""
    gpu = ModelledDevice()
    x = torch.ones(4)
    there = gpu.to_device(x)
    x[0] = 5
    assert float(gpu.to_host(there)[0]) == 1


def test_arrays_must_be_where_they_are_used():
    """Computing with a host array, fetching one, or sending twice is one sentence, as on a real device."""
    gpu = ModelledDevice()
    x = np.ones(3)
    with pytest.raises(InputError, match="Send it first"):
        gpu.run(np.negative, x)
    with pytest.raises(InputError, match="in host memory"):
        gpu.to_host(x)
    there = gpu.to_device(x)
    for several in ([there, x], (x,), {"a": [x]}):
        with pytest.raises(InputError, match="Send it first"):
            gpu.run(len, several)
    with pytest.raises(InputError, match="on the device already"):
        gpu.to_device(there)
    with pytest.raises(InputError, match="expected a numpy array or a torch tensor"):
        gpu.to_device([1, 2])


@pytest.mark.parametrize(
    ("options", "assumptions", "rate"),
    [
        ({"name": "pcie4"}, "10.0 us a copy (typical of a call and the wait for it), 26.0 GB/s, straight line", 26e9),
        ({"name": "pcie4", "memory": "pageable"}, "10.0 us a copy (typical of a call and the wait for it), 13.0 GB/s, straight line, "
         "pageable memory at half the rate of pinned", 13e9),
        ({"name": "pcie5", "memory": "pageable", "bandwidth_bytes_per_second": 5e9},
         "10.0 us a copy (typical of a call and the wait for it), 5.00 GB/s chosen, straight line", 5e9),
        ({"name": "pcie3", "latency_seconds": 2e-6}, "2.00 us a copy chosen, 12.3 GB/s, straight line", 12.35e9),
        # Both directions together have 900 GB/s by NVIDIA's data sheets of the H100 and of Grace Hopper.
        ({"name": "NVLink4"}, "10.0 us a copy (typical of a call and the wait for it), 450 GB/s, straight line", 450e9),
        ({"name": "nvlink c2c"}, "10.0 us a copy (typical of a call and the wait for it), 450 GB/s, straight line", 450e9),
    ],
)  # fmt: skip
def test_a_link_says_all_that_it_takes_for_granted(options, assumptions, rate):
    """Whether each number is the link's own or was chosen; how wrong it was is known of the links as they are named alone."""
    link = transfer.link(**options)
    assert (link.evidence.assumptions, link.bandwidth_bytes_per_second) == (assumptions, rate)
    known = [transfer.link("pcie5", memory=kind).evidence.known_error for kind in ("pinned", "pageable")]
    assert ["0.97 times" in known[0], "1.6 times" in known[1]] == [True, True]
    assert transfer.link("pcie5", latency_seconds=1e-5).evidence.known_error == transfer.link("pcie3").evidence.known_error


def test_noise_is_made_and_says_so():
    """Its share and its seed; none is no word; what cannot be is refused at the edges that the sentence has."""
    link = transfer.link("pcie4")
    noisy = link.sweep([10], noise_ratio=0.25, seed=7)
    assert noisy.evidence.assumptions == f"{link.evidence.assumptions}; made noise of 25% with seed 7"
    assert (noisy.evidence.source, noisy.evidence.known_error) == (link.evidence.source, link.evidence.known_error)
    assert (link.sweep([10]).evidence, noisy.device, noisy.points[0].samples) == (link.evidence, "pcie4-x16", 0)
    for options, words in (({"noise_ratio": 1}, "noise_ratio is 1; expected 0 to 1"), ({"noise_ratio": -0.1}, "noise_ratio is -0.1"),
                           ({"seed": -1}, "seed is -1; expected a whole number from 0"), ({"seed": 1.5}, "seed is 1.5")):  # fmt: skip
        with pytest.raises(InputError, match=words):
            link.sweep(**options)
    fitted = link.sweep().fit()
    again = Link.from_fit(fitted, "mine").sweep([10], noise_ratio=0.1)
    assert (again.device, again.evidence.source) == ("mine", fitted.evidence.source)
    for size in (2**62, np.int64(1)):
        assert link.sweep([size]).points[0].nbytes == size
    with pytest.raises(InputError, match=r"whole number from 1 to 2\*\*62\. Pass for example 2\*\*20\.$"):
        link.sweep([2**62 + 1])


def test_a_faster_processor_keeps_its_launch():
    """By hand: three times each rate; arithmetic and memory apart; a half of nothing, or of no processor, is refused."""
    h200 = transfer.processor("nvidia-h200")
    thrice = transfer.faster(h200, 3)
    assert (thrice.name, thrice.launch_seconds, thrice.bytes_per_second) == ("nvidia-h200 x 3", 2.5e-6, 3 * 3.77e12)
    assert dict(thrice.flops_per_second) == {"float64": 3 * 34e12, "float32": 3 * 42.5e12, "bfloat16": 3 * 785e12, "float16": 3 * 785e12}
    assert (thrice.evidence.assumptions, thrice.evidence.source) == ("3 times the rates of nvidia-h200", h200.evidence.source)
    assert h200.seconds(34e12, 3.77e12 / 2, "float64") == pytest.approx(1.0, rel=1e-4)
    assert "4.1 times" in h200.evidence.known_error
    for which, factor, words in ((h200, 0, "factor is 0"), (h200, math.inf, "factor is inf"), ("nvidia-h200", 2, "is not a processor")):
        with pytest.raises(InputError, match=words):
            transfer.faster(which, factor)
    with pytest.raises(InputError, match="3 is not one that gpulab models"):
        transfer.processor(3)


def test_the_bill_in_words_by_hand():
    """Two megabytes there and one back over 1 GB/s and 1 us; a call that reads two arrays and writes one, and 85 TFLOP of its own."""
    link, h200 = transfer.link("pcie4", 1e-6, 1e9), transfer.processor("nvidia-h200")
    gpu = ModelledDevice(link, h200)
    x, y = (gpu.to_device(np.ones(250_000, np.float32)) for _ in range(2))
    sent = ModelledDevice(link, h200)
    sent.to_device(np.ones(250_000, np.float32))
    assert sent.report().table()[1][0] == ("1 copy of 977 KiB in all", "1.00 ms")
    gpu.to_host(gpu.run(np.add, x, y, flops=85e12))
    report = gpu.report()
    assert (report.copies, report.calls, report.copied_bytes) == (3, 1, 3e6)
    assert report.compute_seconds == pytest.approx(2.0 + 2.5e-6)
    gpu.run(np.add, x, y)
    assert gpu.report().compute_seconds - report.compute_seconds == pytest.approx(2.5e-6 + 3e6 / 3.77e12)
    assert report.table() == (("", "time"), [
        ("3 copies of 2.86 MiB in all", "3.00 ms"), ("1 call", "2.00 s"), ("together", "2.00 s"),
    ])  # fmt: skip
    assert repr(report) == "<3 copies 3.00 ms, 1 call 2.00 s, MODELLED>"
    assert (
        report.evidence.assumptions
        == f"link pcie4-x16: {link.evidence.assumptions}; nothing overlaps; compute: {h200.evidence.assumptions}"
    )
    assert report.evidence.source == f"{link.evidence.source}; {h200.evidence.source}"
    measured = ModelledDevice(Link("own", 1e-6, 1e9, Evidence.measured("x"))).report().evidence
    assert measured.assumptions == "link own: the fit of a sweep; nothing overlaps; compute measured on this CPU"
    assert measured.source == "a sweep on this machine"
    with pytest.raises(InputError, match=r"^run: got 3; expected a function and its arguments\. Write gpu\.run\(f, x\), not"):
        gpu.run(3)
    with pytest.raises(InputError, match=r"^run: got a list; expected a numpy array or a torch tensor"):
        gpu.run(lambda a: [1], x)


def test_arrays_are_looked_for_in_lists_of_lists_of_lists():
    """As deep as that, and no deeper: an array of the host is refused there, and one level below nobody looks."""
    gpu = ModelledDevice()
    x = gpu.to_device(np.ones(3))
    with pytest.raises(InputError, match="Send it first"):
        gpu.run(lambda a, b: a, x, [[[np.ones(3)]]])
    assert gpu.report().calls == 0
    gpu.run(lambda a, b: a, x, [[[[np.ones(3)]]]])
    assert gpu.report().calls == 1
