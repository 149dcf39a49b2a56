"""How wrong the models are on recorded machines: by hand on an invented machine, and as the badges say on those that ship."""

from __future__ import annotations

import dataclasses

import pytest
from test_recordings import a_recording, a_timing

from gpulab import recorder, recordings, transfer, workloads
from gpulab.errors import InputError
from gpulab.models import _roofline
from gpulab.recordings import Entry
from gpulab.transfer import _links


def timed(experiment: str, seconds: float, call_flops: float | None = None, call_bytes: float | None = None, **params: str | int) -> Entry:
    """One case without an interval."""
    timing = a_timing(median_seconds=seconds, interval_seconds=None, flops=call_flops, nbytes=call_bytes)
    return Entry(experiment, params, timing)


CEILINGS = (
    timed("ceilings", 1.0, call_bytes=1e10, operation="triad", dtype="float32"),
    timed("ceilings", 1.0, call_flops=1e11, operation="gemm", dtype="float32"),
)


def test_roofline_by_hand() -> None:
    """A product of 2,048: 2 x 2048^3 operations at 100 GFLOP/s take 0.172 s; recorded in twice that. What is too short is left out."""
    product = timed("catalogue", 2 * 2 * 2048**3 / 1e11, workload="matmul", n=2048, dtype="float32")
    short = timed("catalogue", 1.0, workload="add", n=1024, dtype="float32")
    other = timed("catalogue", 1.0, workload="matmul", n=2048, dtype="float64")
    addition = timed("catalogue", 3 * 4 * 2**26 / 1e10 / 2, workload="add", n=2**26, dtype="float32")  # half of what 10 GB/s take
    (found,) = recorder.model_errors(a_recording(entries=(*CEILINGS, product, short, other, addition)))
    assert (found.model, found.cases) == ("roofline", 2)
    assert found.largest == (product.key, pytest.approx(2.0))
    assert found.smallest == (addition.key, pytest.approx(0.5))
    assert found.median_ratio == pytest.approx(1.25)
    assert found.middle == (pytest.approx(0.65), pytest.approx(1.85))
    assert "1.2 times the model's in the median of 2 cases, 0.65 to 1.9 times" in found.sentence


@pytest.mark.parametrize(("slower", "cases"), [(1.0, 1), (1.01, 1), (0.99, 0)])
def test_a_tenth_of_a_millisecond_is_long_enough(slower: float, cases: int) -> None:
    """An addition that moves just what the triad of the ceilings did in 0.1 ms, and one per cent more or less of that time."""
    roofs = (timed("ceilings", 1e-4 * slower, call_bytes=12.0 * 2**20, operation="triad", dtype="float32"), CEILINGS[1])
    addition = timed("catalogue", 1.0, workload="add", n=2**20, dtype="float32")
    assert sum(found.cases for found in recorder.model_errors(a_recording(entries=(*roofs, addition)))) == cases


@pytest.mark.parametrize(("sizes", "held_out"), [(7, []), (8, [3]), (9, [4])])
def test_a_line_takes_eight_sizes(sizes: int, held_out: list[int]) -> None:
    """It is fitted to the first, third, fifth ... and asked for the others between the ends."""
    copies = [timed("transfer", 1e-6 + 2**k / 1e9, direction="host", memory="pageable", nbytes=2**k) for k in range(12, 12 + sizes)]
    assert [found.cases for found in recorder.model_errors(a_recording(entries=tuple(copies)))] == held_out


def test_what_has_no_roof_and_what_this_version_does_not_know_is_left_out() -> None:
    """A budget that ended after the bfloat16 product leaves float32 without a roof; a later version has other work and formats."""
    bfloat16 = timed("ceilings", 1.0, call_flops=1e12, operation="gemm", dtype="bfloat16")
    product = timed("catalogue", 1.0, workload="matmul", n=2048, dtype="float32")
    assert recorder.model_errors(a_recording(entries=(CEILINGS[0], bfloat16, product))) == ()
    unknown = (("quantum", 2048, "float32"), ("matmul", 0, "float32"), ("fft", 1024, "float4"), ("fft", 1024, "float16"))
    others = [timed("catalogue", 1.0, workload=workload, n=n, dtype=dtype) for workload, n, dtype in unknown]
    machine = a_recording(entries=(*CEILINGS, product, *others))
    machine = dataclasses.replace(machine, environment=dataclasses.replace(machine.environment, device="NVIDIA H200"))
    assert {one.model: one.cases for one in recorder.model_errors(machine)} == {"roofline": 1, "processor nvidia-h200": 1}


def test_a_convolution_stands_under_the_roof_of_tf32() -> None:
    """A GPU with 1 TFLOP/s in TF32 and 0.1 in float32: PyTorch convolves in TF32 by default, and does not multiply in it."""
    tf32 = timed("ceilings", 1.0, call_flops=1e12, operation="gemm", dtype="tf32")
    work = workloads.get("conv2d")(n=64, dtype="float32")
    seconds = work.flops / 1e12
    convolution = timed("catalogue", seconds, workload="conv2d", n=64, dtype="float32")
    product = timed("catalogue", 2 * 2048**3 / 1e11, workload="matmul", n=2048, dtype="float32")
    (found,) = recorder.model_errors(a_recording(entries=(*CEILINGS, tf32, convolution, product)))
    assert found.cases == 2
    assert found.largest[1] == pytest.approx(1.0)
    assert found.smallest[1] == pytest.approx(1.0)


def test_transfer_by_hand() -> None:
    """Copies that lie on 1 us + size / 1 GB/s, but for one held-out size that took three times as long."""
    sizes = [2**k for k in range(10, 27)]
    slow = sizes[7]
    line = {n: 1e-6 + n / 1e9 for n in sizes}
    entries = tuple(
        timed("transfer", line[n] * (3 if n == slow else 1), direction="host", memory="pageable", nbytes=n) for n in reversed(sizes)
    )
    (found,) = recorder.model_errors(a_recording(entries=entries))
    assert (found.model, found.cases) == ("transfer", 8)  # every second size between the ends
    assert found.median_ratio == pytest.approx(1.0, abs=0.02)
    assert found.largest == (f"transfer direction=host memory=pageable nbytes={slow}", pytest.approx(3.0, rel=0.05))


def test_a_gpu_that_has_a_formula_is_set_beside_it() -> None:
    """PCIe 5 x16 is 10 us and 53 GB/s, pageable half; the H200's formula 2.5 us and 3.77 TB/s. Recorded: twice, and three times that."""
    copies = [
        timed("transfer", times * (10e-6 + n / rate), direction="to_device", memory=memory, nbytes=n)
        for memory, rate, times in (("pinned", 53e9, 2), ("pageable", 26.5e9, 3))
        for n in (2**12, 2**24)
    ]
    n = 2**26
    add = timed("catalogue", 2 * (2.5e-6 + 3 * 4 * n / 3.77e12), workload="add", n=n, dtype="float32")
    machine = a_recording(entries=(*copies, add))
    machine = dataclasses.replace(machine, environment=dataclasses.replace(machine.environment, device="NVIDIA H200"))
    found = {one.model: one.median_ratio for one in recorder.model_errors(machine)}
    expected = {"link pcie5-x16, pinned": 2, "link pcie5-x16, pageable": 3, "processor nvidia-h200": 2}
    assert found == pytest.approx(expected)
    assert [one.model for one in recorder.model_errors(a_recording(entries=(*copies, add)))] == []  # another GPU has another link
    grace = dataclasses.replace(machine, environment=dataclasses.replace(machine.environment, device="NVIDIA GH200 480GB"))
    assert recorder.model_errors(grace) == ()  # NVLink-C2C between its host and its GPU, which is not an H200's


def test_without_the_experiments_there_is_nothing_to_say() -> None:
    """No ceilings, or a series of a few sizes."""
    few = tuple(timed("transfer", 1e-6, direction="host", memory="pageable", nbytes=2**k) for k in range(10, 14))
    assert recorder.model_errors(a_recording(entries=few)) == ()
    with pytest.raises(InputError, match="is no recording"):
        recorder.model_errors("amd-epyc-2-cores")  # type: ignore[arg-type]


def test_the_rooflines_badge_says_what_the_recordings_that_ship_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a new recording the constant follows; the message shows the words."""
    monkeypatch.delenv("GPULAB_RECORDINGS", raising=False)
    found = [error for name in recordings.names() for error in recorder.model_errors(recordings.load(name)) if error.model == "roofline"]
    assert "; ".join(error.sentence for error in found) == _roofline.KNOWN_ERROR


def test_the_badges_of_link_and_processor_say_what_the_recordings_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of the constants is that of the recordings that ship, and stands on the badge; a rate of one's own has no known error."""
    monkeypatch.delenv("GPULAB_RECORDINGS", raising=False)
    said = {error.model: error.sentence for name in recordings.names() for error in recorder.model_errors(recordings.load(name))}
    links = {f"link {link}, {memory}": words for (link, memory), words in _links.KNOWN_ERRORS.items()}
    processors = {f"processor {name}": words for name, words in _links.PROCESSOR_ERRORS.items()}
    assert links | processors == {model: words for model, words in said.items() if model.split()[0] in ("link", "processor")}
    assert transfer.link("pcie5-x16").evidence.known_error == _links.KNOWN_ERRORS["pcie5-x16", "pinned"]
    assert transfer.link("pcie5-x16", latency_seconds=1e-6).evidence.known_error is None
    assert transfer.processor("nvidia-h200").evidence.known_error == _links.PROCESSOR_ERRORS["nvidia-h200"]


def test_a_model_error_is_plain_data() -> None:
    """It round-trips, and its table has both ends."""
    (found,) = recorder.model_errors(a_recording(entries=(*CEILINGS, timed("catalogue", 1.0, workload="matmul", n=2048, dtype="float32"))))
    assert recorder.ModelError.from_dict(found.to_dict()).to_dict() == found.to_dict()
    assert len(found.table()[1]) == 4


def test_a_model_error_in_a_table_and_in_one_line() -> None:
    """By hand: the product above in twice its time, and the addition in half."""
    product = timed("catalogue", 2 * 2 * 2048**3 / 1e11, workload="matmul", n=2048, dtype="float32")
    addition = timed("catalogue", 3 * 4 * 2**26 / 1e10 / 2, workload="add", n=2**26, dtype="float32")
    (found,) = recorder.model_errors(a_recording(entries=(*CEILINGS, product, addition)))
    assert found.table() == (
        ("roofline on test, 2 cases", "recorded / modelled"),
        [
            ("median", "1.25"), ("10th to 90th percentile", "0.65 to 1.85"), (f"smallest: {addition.key}", "0.5"),
            (f"largest: {product.key}", "2"),
        ],
    )  # fmt: skip
    assert repr(found) == f"<roofline: {found.sentence}>"
    assert found.evidence.badge == "RECORDED"
