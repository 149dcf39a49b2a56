"""Errors of the models on recorded machines: by hand, and as the models' badges state."""

import dataclasses
from typing import Any

import pytest
from gpulab import models, recordings, transfer
from gpulab.recordings import Entry
from made_recordings import a_recording, a_timing
from model_errors import ModelError, model_errors


def timed(
    experiment: str, seconds: float, flops: float | None = None, nbytes: float | None = None,
    **params: str | int,
) -> Entry:  # fmt: skip
    """One case without an interval; ``size`` is its parameter ``nbytes``."""
    timing = a_timing(median_seconds=seconds, interval_seconds=None, flops=flops, nbytes=nbytes)
    if "size" in params:
        params["nbytes"] = params.pop("size")
    return Entry(experiment, params, timing)


def errors_of(*entries: Entry, device: str = "Test Device") -> dict[str, ModelError]:
    """Return the models' errors on an invented recording, by model."""
    recording = a_recording(entries=entries)
    environment = dataclasses.replace(recording.environment, device=device)
    found = model_errors(dataclasses.replace(recording, environment=environment))
    return {one.model: one for one in found}


TRIAD = timed("ceilings", 1.0, nbytes=1e10, operation="triad", dtype="float32")
GEMM = timed("ceilings", 1.0, flops=1e11, operation="gemm", dtype="float32")
TF32 = timed("ceilings", 1.0, flops=1e12, operation="gemm", dtype="tf32")


def product(times: float, n: int = 2048, dtype: str = "float32", name: str = "matmul") -> Entry:
    """Return a product that took ``times`` as long as 2 n^3 operations at 100 GFLOP/s."""
    return timed("catalogue", times * 2 * n**3 / 1e11, workload=name, n=n, dtype=dtype)


def test_roofline_by_hand() -> None:
    """A product takes twice its 0.172 s, an addition half; short and float64 cases are left out."""
    short = timed("catalogue", 1.0, workload="add", n=1024, dtype="float32")
    half = timed("catalogue", 12 * 2**26 / 1e10 / 2, workload="add", n=2**26, dtype="float32")
    found = errors_of(TRIAD, GEMM, product(2), short, product(9, dtype="float64"), half)
    one = found.pop("roofline")
    assert (one.cases, found, one.largest, one.smallest) == (
        2,
        {},
        (product(2).key, pytest.approx(2.0)),
        (half.key, pytest.approx(0.5)),
    )
    assert (one.median_ratio, one.middle, one.evidence.badge) == (
        pytest.approx(1.25),
        pytest.approx((0.65, 1.85)),
        "RECORDED",
    )


@pytest.mark.parametrize(("sizes", "held_out"), [(7, []), (8, [3]), (9, [4]), (17, [8])])
def test_a_transfer_line_is_asked_for_the_sizes_it_was_not_fitted_to(
    sizes: int, held_out: list[int]
) -> None:
    """The line is fitted to every second size of 8 or more and tested on the others.

    Copies take 1 us + n / 1 GB/s, except one held-out size, which takes three times as long.
    """
    ks = range(12, 12 + sizes)
    slow = 2 ** ks[-2] if sizes % 2 else 2 ** ks[-3]
    copies = [
        timed("transfer", (1e-6 + 2**k / 1e9) * (3 if 2**k == slow else 1), direction="host",
              memory="pageable", size=2**k) for k in reversed(ks)
    ]  # fmt: skip
    found = list(errors_of(*copies).values())
    assert ([one.cases for one in found], [one.largest[1] for one in found]) == (
        held_out,
        [pytest.approx(3, rel=0.2)] * len(found),
    )


def test_a_gpu_that_has_a_formula_is_set_beside_it() -> None:
    """PCIe 5 x16: 10 us, 53 GB/s pinned, half pageable; H200 memory: 2.5 us, 3.77 TB/s."""
    copies = [
        timed("transfer", times * (10e-6 + n / rate), direction="to_device", memory=memory, size=n)
        for memory, rate, times in (("pinned", 53e9, 2), ("pageable", 26.5e9, 3))
        for n in (2**12, 2**24)
    ]
    seconds = 2 * (2.5e-6 + 3 * 4 * 2**26 / 3.77e12)
    add = timed("catalogue", seconds, workload="add", n=2**26, dtype="float32")
    found = errors_of(*copies, add, device="NVIDIA H200")
    assert {model: one.median_ratio for model, one in found.items()} == pytest.approx(
        {"link pcie5-x16, pinned": 2, "link pcie5-x16, pageable": 3, "processor nvidia-h200": 2}
    )
    for other in ("Test Device", "NVIDIA GH200 480GB"):  # NVLink-C2C is another link
        assert errors_of(*copies, add, device=other) == {}


def test_the_errors_of_the_shipped_recordings_are_on_the_badges(approved: Any) -> None:
    """The badges state the errors; after a new recording the stated ones must be updated."""
    names = recordings.names()
    found = [one for name in names for one in model_errors(recordings.load(name))]
    rows = [
        f"{one.model} on {one.recording}: {one.rows()}\n    <{one.model}: {one.sentence}>\n"
        for one in found
    ]
    assert "".join(rows) == approved
    said = {one.model: one.sentence for one in found}
    for memory in ("pinned", "pageable"):
        link = transfer.link("pcie5-x16", memory=memory)
        assert link.evidence.known_error == said[f"link pcie5-x16, {memory}"]
    assert transfer.processor("nvidia-h200").evidence.known_error == said["processor nvidia-h200"]
    assert transfer.link("pcie5-x16", latency_seconds=1e-6).evidence.known_error is None
    placed = models.roofline(recordings.load(names[0])).place("x", 1e9, 1e6)
    roofs = "; ".join(one.sentence for one in found if one.model == "roofline")
    assert placed.evidence.known_error == roofs
