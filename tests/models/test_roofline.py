"""Rooflines by hand, from data sheets, recordings and (patched) live ceilings; and the badges of what is placed beneath them."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import re
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpulab as gl
from gpulab.devices import _cpu, _datasheets
from gpulab.devices._spec import cpu_spec, gpu_spec
from gpulab.errors import DeviceError, InputError, RecordingError
from gpulab.evidence import Badge, Evidence, Note
from gpulab.models import ArithmeticRoof, MemoryRoof, Roofline, RooflinePoint, roofline

SHEET = Evidence.modelled("everything busy", "a sheet")
MEASURED = Evidence.measured("a machine", 9)
# 1 TFLOP/s in float32, 8 in float16; a cache of 1 MB at 1 TB/s over a memory at 100 GB/s: ridges at 1, 8, 10 and 80 FLOP a byte.
MADE = Roofline(
    "a machine",
    (ArithmeticRoof("float32", 1e12, "sheet", SHEET), ArithmeticRoof("float16", 8e12, "sheet", SHEET)),
    (MemoryRoof("L2", 1e12, 1e6, "sheet", SHEET), MemoryRoof("DRAM", 1e11, 1e10, "sheet", SHEET)),
    (),
    (),
    SHEET,
)
AMOUNTS = st.just(0.0) | st.floats(1e-6, 1e15) | st.integers(0, 10**15)


def test_ridges_by_hand() -> None:
    """Arithmetic over bandwidth, for each pair of roofs."""
    assert MADE.ridge_flops_per_byte() == 10
    assert MADE.ridge_flops_per_byte("float16") == 80
    assert MADE.ridge_flops_per_byte("float16", "L2") == 8


def test_attainable_by_hand() -> None:
    """Below the ridge the slope, above it the flat roof; infinity is the flat roof, zero nothing."""
    rates = {0.0: 0.0, 1.0: 1e11, 10.0: 1e12, 1000.0: 1e12, math.inf: 1e12}
    assert {intensity: MADE.attainable_flops_per_second(intensity) for intensity in rates} == rates
    assert MADE.attainable_flops_per_second(2.0, "float16", "L2") == 2e12


@pytest.mark.parametrize(("arithmetic", "memory"), [(SHEET, SHEET), (SHEET, MEASURED), (MEASURED, SHEET), (MEASURED, MEASURED)])
def test_a_roof_that_nobody_measured_has_no_error_of_its_own(arithmetic: Evidence, memory: Evidence) -> None:
    """The known error was found under recorded ceilings: beside a stated roof, of either kind, the badge says so."""
    roofs = (ArithmeticRoof("float32", 1e12, "a", arithmetic),), (MemoryRoof("DRAM", 1e11, 1e10, "b", memory),)
    error = Roofline("a machine", *roofs, (), (), SHEET).place("axpy", 2e9, 12e9).evidence.known_error
    assert error is not None
    assert error.startswith("with measured roofs instead of stated ones on amd-") == (SHEET in (arithmetic, memory))
    assert "on nvidia-h200 the recorded time is" in error


def test_an_axpy_by_hand() -> None:
    """2 GFLOP over 12 GB: 0.12 s of memory, 0.002 s of arithmetic; 0.15 s reach 80 % of the roof, and the measured badge stays."""
    point = MADE.place("axpy", 2e9, 12e9, seconds=0.15, evidence=MEASURED)
    assert (point.bound_by, point.memory, point.arithmetic) == ("memory", "DRAM", "float32")
    assert point.attainable_seconds == pytest.approx(0.12)
    assert point.attainable_flops_per_second == pytest.approx(2e9 / 0.12)
    assert point.share_of_roof == pytest.approx(0.8)
    assert point.bytes_per_second == pytest.approx(8e10)
    assert point.evidence == MEASURED
    assert "DRAM binds" in point.explanation
    assert "80 % of the roof" in point.explanation


def test_a_product_by_hand() -> None:
    """2 x 1024^3 FLOP over 12.6 MB: 171 FLOP a byte, under the flat roof; without a time the point is modelled."""
    point = MADE.place("matmul", 2 * 1024**3, 3 * 4 * 1024**2)
    assert point.intensity_flops_per_byte == pytest.approx(1024 / 6)
    assert point.bound_by == "arithmetic"
    assert point.attainable_flops_per_second == 1e12
    assert (point.seconds, point.flops_per_second, point.share_of_roof) == (None, None, None)
    assert point.evidence.badge is Badge.MODELLED


def test_a_small_working_set_stands_under_the_caches_roof() -> None:
    """The level that holds the working set binds, not main memory; a level can be named."""
    assert MADE.place("small", 1e6, 1e6, working_set_bytes=5e5).memory == "L2"
    assert MADE.place("large", 1e6, 1e6, working_set_bytes=5e6).memory == "DRAM"
    assert MADE.place("large", 1e6, 1e6, memory="L2", working_set_bytes=5e6).memory == "L2"
    # Larger than main memory is told to be: still main memory.
    assert MADE.place("huge", 1e6, 1e6, working_set_bytes=1e12).memory == "DRAM"


def test_work_of_one_kind_alone() -> None:
    """A copy has no arithmetic and a register loop no traffic: each is bound by the other and shown in its own unit."""
    copy = MADE.place("copy", 0, 1e9, seconds=0.02, evidence=MEASURED)
    assert (copy.bound_by, copy.share_of_roof, copy.attainable_flops_per_second) == ("memory", 0.5, 0.0)
    assert "GB/s" in str(copy.table())
    loop = MADE.place("loop", 1e9, 0)
    assert (loop.bound_by, loop.intensity_flops_per_byte) == ("arithmetic", math.inf)


def test_a_point_above_the_roof_is_doubted() -> None:
    """Twice the roof is told as a question, not as a feat."""
    point = MADE.place("too good", 1e12, 1e3, seconds=0.5, evidence=MEASURED)
    assert point.share_of_roof == 2.0
    assert "above the roof by 2 times" in point.explanation


@pytest.mark.parametrize(("over", "told"), [(1.004, "100 % of the roof"), (1.006, "above the roof by 1.01 times")])
def test_a_point_as_high_as_the_roof_is_on_it(over: float, told: str) -> None:
    """What three digits cannot tell from the roof is no doubt: a roof that was measured just now is as uncertain itself."""
    least = MADE.place("as good", 1e12, 1e3).attainable_seconds
    assert told in MADE.place("as good", 1e12, 1e3, seconds=least / over, evidence=MEASURED).explanation


@given(AMOUNTS, AMOUNTS, st.floats(1e-9, 1e6), st.sampled_from(["float32", "float16"]), st.sampled_from([None, "L2", "DRAM"]))
def test_no_roof_is_exceeded(flops: float, nbytes: float, seconds: float, arithmetic: str, memory: str | None) -> None:
    """The attainable rate respects both roofs and touches one; more work never takes less; JSON brings the point back."""
    if not flops and not nbytes:
        return
    point = MADE.place("work", flops, nbytes, seconds=seconds, evidence=MEASURED, arithmetic=arithmetic, memory=memory)
    top, level = MADE.arithmetic_roof(arithmetic).flops_per_second, MADE.memory_roof(memory).bytes_per_second
    shares = (point.attainable_flops_per_second / top, point.attainable_bytes_per_second / level)
    assert max(shares) == pytest.approx(1)
    assert (shares[1] >= shares[0]) == (point.bound_by == "memory") or shares[0] == pytest.approx(shares[1])
    assert MADE.place("more", 2 * flops, nbytes + 1, arithmetic=arithmetic, memory=memory).attainable_seconds >= point.attainable_seconds
    placed = MADE.with_points([point])
    assert Roofline.from_dict(json.loads(json.dumps(placed.to_dict(), allow_nan=False))) == placed
    assert placed.with_points([]) == MADE


def test_a_roofline_of_before_is_read() -> None:
    """The first version of its form had no kind of device."""
    first = {**MADE.to_dict(), "schema_version": 1}
    del first["device_kind"]
    assert Roofline.from_dict(first) == MADE


def test_a_data_sheet_by_name() -> None:
    """H200 SXM, from its data sheet: 67 TFLOP/s and 4.8 TB/s, hence a ridge at 13.96 FLOP a byte; bfloat16 989 TFLOP/s."""
    h200 = roofline("NVIDIA H200")
    assert h200.arithmetic_roof("float32").flops_per_second == 67e12
    assert h200.memory_roof().bytes_per_second == 4.8e12
    assert h200.ridge_flops_per_byte() == pytest.approx(67 / 4.8)
    assert h200.ridge_flops_per_byte("bfloat16") == pytest.approx(989.4 / 4.8)
    assert h200.evidence.badge is Badge.MODELLED
    assert roofline("H200", "datasheet") == roofline("H200")
    assert h200.device_kind == "cuda"


def test_a_recording_keeps_its_badge() -> None:
    """The recorded machine's own streams and products, the better stream as main memory, every roof RECORDED."""
    recording = gl.recordings.load("amd-epyc-2-cores")
    recorded = roofline("amd-epyc-2-cores")
    rates = [e.timing.nbytes / e.timing.median_seconds for e in recording.select("ceilings") if e.timing is not None and e.timing.nbytes]
    assert len(rates) == 2
    assert recorded.memory_roof().bytes_per_second == max(rates)
    assert recorded.evidence.badge is Badge.RECORDED
    assert (recorded.device_kind, roofline("nvidia-h200").device_kind) == ("cpu", "cuda")
    assert {roof.evidence.badge for roof in (*recorded.arithmetic, *recorded.memory)} == {Badge.RECORDED}
    product = recording.find("ceilings", operation="gemm", n=2048, dtype="float32")
    assert product is not None
    assert product.timing is not None
    point = recorded.place(
        "its own product", 2 * 2048**3, 12 * 2048**2, seconds=product.timing.median_seconds, evidence=recording.evidence()
    )
    assert point.share_of_roof == pytest.approx(1)
    assert point.evidence.badge is Badge.RECORDED


def test_a_recording_itself_and_what_it_must_have() -> None:
    """Passed as an object it is its name's; with products alone, or with streams alone, there is no roofline to draw."""
    recording = gl.recordings.load("amd-epyc-2-cores")
    assert roofline(recording) == roofline(recording, "recorded") == roofline("amd-epyc-2-cores")
    for left in ("gemm", "copy"):
        few = tuple(one for one in recording.entries if one.experiment == "ceilings" and one.params["operation"] == left)
        assert few
        with pytest.raises(InputError, match=r"the recording 'amd-epyc-2-cores' has no ceilings; expected streams and matrix products"):
            roofline(dataclasses.replace(recording, entries=few))


def test_a_product_cannot_be_measured_by_its_name() -> None:
    """The measured roofs are those of a device of this machine, not of a line of the table."""
    with pytest.raises(DeviceError, match="'H200' is no device of this machine"):
        roofline("H200", "measured")


def test_live_ceilings_and_their_doubts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The live roofs are what devices.ceilings measured, with its notes, and are measured again when asked."""
    asked = []

    def ceilings(device: object, refresh: bool = False, stop: object = None) -> object:
        asked.append(refresh)
        levels = (
            gl.devices.MemoryCeiling("L2", 2**20, 2**19, 1e11, 3e11, 2e11),
            gl.devices.MemoryCeiling("DRAM", 2**40, 2**29, 2e10, 1e10, 1e10),
        )
        note = Note("contended", "4.0 programs wanted 2 cores.")
        return gl.devices.Ceilings("cpu", levels, {"float32": 2e11}, (note,), MEASURED, gl.devices.environment(gl.devices.find("cpu")))

    monkeypatch.setattr(gl.devices, "ceilings", ceilings)
    live = roofline("cpu")
    assert [(level.name, level.bytes_per_second) for level in live.memory] == [("L2", 3e11), ("DRAM", 2e10)]
    assert live.arithmetic_roof().flops_per_second == 2e11
    assert live.evidence == MEASURED
    assert live.notes[0].code == "contended"
    assert "contended" in repr(live) + str(live.table())
    roofline("cpu", "measured", refresh=True)
    assert asked == [False, True]
    assert live.place_workload(gl.workloads.get("add")(n=1000)).memory == "L2"


def test_a_processors_sheet_has_no_main_memory() -> None:
    """No vendor states a CPU's main memory here: the roof is missing, and the message says what to use."""
    stated = roofline("cpu", "datasheet")
    assert "DRAM" not in [level.name for level in stated.memory]
    with pytest.raises(InputError, match='Use ceilings="measured"'):
        stated.place("axpy", 2e9, 12e9)


def test_what_nobody_states_is_said_in_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """Apple documents no rate of its GPUs, and a CPU on Windows tells neither caches nor instructions: two rows that say so, not none."""
    unstated = [("arithmetic", "not stated for this device", ""), ("DRAM", "not stated for this device", "")]
    apple = gpu_spec(gl.devices.Accelerator(device="mps", name="Apple M4", kind="mps", memory_bytes=2**34), "Apple M4")
    windows = cpu_spec(_cpu.Processor("X", "AMD64", 4, None, None, (), (), None, None, None), 2**34, "X")
    for stated in (apple, windows):
        monkeypatch.setattr(gl.devices, "spec", lambda where, stated=stated: stated)
        sheet = roofline("cpu", "datasheet")
        assert sheet.table() == ((stated.name, "at most", "source"), unstated)
        assert repr(sheet) == f"<roofline of {stated.name} (MODELLED): nothing stated, 0 points>"
    only_caches = dataclasses.replace(MADE, memory=MADE.memory[:1])
    assert only_caches.table()[1][2:] == [("L2", "1.00 TB/s", "sheet"), unstated[1]]


def test_workloads_of_the_catalogue() -> None:
    """FLOPs, bytes, working set and number format come from the catalogue, the time and the badge from the measurement."""
    add = gl.workloads.get("add")(n=10_000_000)
    predicted = MADE.place_workload(add)
    assert (predicted.label, predicted.flops, predicted.nbytes) == (add.label, add.flops, add.nbytes)
    assert predicted.evidence.badge is Badge.MODELLED
    inputs = gl.workloads.get("add")(n=1000)
    measured = gl.measure(inputs.run, *inputs.inputs(), deadline=0.05, flops=inputs.flops, nbytes=inputs.nbytes)
    point = MADE.place_workload(inputs, measured)
    assert point.seconds == measured.median_seconds
    assert point.evidence == measured.evidence
    assert point.memory == "L2"
    half = gl.workloads.get("matmul")(n=64, dtype="float16")
    assert MADE.place_workload(half).arithmetic == "float16"
    assert MADE.place_workload(half, arithmetic="float32").arithmetic == "float32"


def test_bad_input_gets_one_sentence() -> None:
    """Amounts that are no amounts, times without evidence, roofs, devices and words that are not there."""
    calls = [
        *(lambda v=v: MADE.place("work", v, 1.0) for v in (-1, math.nan, math.inf, "1", None, True, 10**400, np.array([1.0]))),
        lambda: MADE.place("work", 1.0, -1.0),
        lambda: MADE.place("work", 0, 0),
        lambda: MADE.place("work", 5e-324, 1e9),  # its least time would be zero
        lambda: MADE.place(5, 1.0, 1.0),
        lambda: MADE.place("work", 1.0, 1.0, seconds=1.0),
        lambda: MADE.place("work", 1.0, 1.0, evidence=MEASURED),
        lambda: MADE.place("work", 1.0, 1.0, seconds=0.0, evidence=MEASURED),
        lambda: MADE.place("work", 1.0, 1.0, seconds=math.nan, evidence=MEASURED),
        lambda: MADE.place("work", 1.0, 1.0, seconds=1.0, evidence="mine"),
        lambda: MADE.place("work", 1.0, 1.0, arithmetic="int4"),
        lambda: MADE.place("work", 1.0, 1.0, memory="L9"),
        lambda: MADE.place("work", 1.0, 1.0, working_set_bytes=math.nan),
        lambda: MADE.place_workload("matmul"),
        lambda: MADE.place_workload(gl.workloads.get("add")(n=8), 0.5),
        lambda: MADE.attainable_flops_per_second(-1),
        lambda: MADE.attainable_flops_per_second(math.nan),
        lambda: MADE.with_points([5]),
        lambda: MADE.with_points([None]),
        lambda: MADE.with_points(5),
        lambda: roofline("cpu", "best"),
        lambda: roofline("cpu", refresh="yes"),
        lambda: roofline(5),
        lambda: roofline("no such device"),
        lambda: roofline("no-such-recording", "recorded"),
    ]
    for i, call in enumerate(calls):
        by = "^(place|place_workload|attainable_flops_per_second|with_points|roofline|recordings.load|device): .*expected"
        with pytest.raises((InputError, DeviceError, RecordingError), match=by) as caught:
            call()
        assert len(str(caught.value)) < 500, i
    assert RooflinePoint.__doc__


def test_every_product_of_the_table_is_found_by_its_own_name() -> None:
    """What the error for an unknown name lists can be passed: the roofs are those of that very product."""
    for part in _datasheets.PARTS:
        assert roofline(part.name).memory_roof().bytes_per_second == part.bytes_per_second


def test_a_placed_measurement_keeps_its_interval() -> None:
    """The interval goes with the point, through JSON too; a prediction has none."""
    work = gl.workloads.get("add")(n=1024)
    point = MADE.place_workload(work, SimpleNamespace(median_seconds=2.0, interval_seconds=(1.5, 3.0), evidence=MEASURED))
    assert (point.seconds, point.interval_seconds) == (2.0, (1.5, 3.0))
    assert RooflinePoint.from_dict(json.loads(json.dumps(point.to_dict()))) == point
    assert MADE.place_workload(work).interval_seconds is None


def test_large_figures_are_written_out() -> None:
    """By hand: 4 TFLOP over 1 GB take 4 s under the roof of 1 TFLOP/s, 2,000 times the 2 ms that a wrong clock told."""
    point = MADE.place("train", 4e12, 1e9, seconds=0.002, evidence=MEASURED)
    assert "train: 4,000 FLOP a byte" in point.explanation
    assert "above the roof by 2,000 times" in point.explanation
    ((_, intensity, *_, share),) = point.table()[1]
    assert (intensity, share) == ("4,000", "200,000 % (MEASURED)")


def test_roofs_and_points_as_tables_and_in_words() -> None:
    """By hand: 2 GFLOP over 12 GB at 100 GB/s; a copy in its own unit; a register loop on its roof; notes below; rates with units."""
    axpy = MADE.place("axpy", 2e9, 12e9, seconds=0.15, evidence=MEASURED)
    copy, loop = MADE.place("copy", 0, 1e9), MADE.place("loop", 1e9, 0, seconds=1e-3, evidence=MEASURED)
    assert repr(axpy) == "<axpy: 0.167 FLOP a byte, so DRAM binds: at least 120 ms. It took 150 ms: 80 % of the roof>"
    assert repr(copy) == "<copy: no arithmetic, so DRAM binds: at least 10.0 ms>"
    assert loop.explanation == "loop: no traffic, so float32 binds: at least 1.00 ms. It took 1.00 ms: 100 % of the roof."
    headers = ("work", "FLOP a byte", "bound by", "attainable", "reached", "of the roof")
    rows = [
        ("axpy", "0.167", "memory (DRAM)", "16.7 GFLOP/s", "13.3 GFLOP/s", "80 % (MEASURED)"),
        ("copy", "0", "memory (DRAM)", "100 GB/s", "not measured", ""),
        ("loop", "inf", "arithmetic (float32)", "1.00 TFLOP/s", "1.00 TFLOP/s", "100 % (MEASURED)"),
    ]
    assert axpy.table() == (headers, rows[:1])
    noted = dataclasses.replace(MADE, notes=(Note("contended", "A neighbour."),))
    assert noted.with_points([axpy, copy, loop]).table() == (headers, [*rows, ("note: contended", "A neighbour.", "", "", "", "")])
    assert noted.table() == (
        ("a machine", "at most", "source"),
        [("float32", "1.00 TFLOP/s", "sheet"), ("float16", "8.00 TFLOP/s", "sheet"), ("L2", "1.00 TB/s", "sheet"),
         ("DRAM", "100 GB/s", "sheet"), ("note: contended", "A neighbour.", "")],
    )  # fmt: skip
    rates = "float32 1.00 TFLOP/s, float16 8.00 TFLOP/s, L2 1.00 TB/s, DRAM 100 GB/s"
    assert repr(MADE) == f"<roofline of a machine (MODELLED): {rates}, 0 points>"
    assert repr(noted.with_points([axpy])) == f"<roofline of a machine (MODELLED): {rates}, 1 point, notes: contended>"


def test_a_convolution_runs_in_tf32_where_the_roofs_have_it() -> None:
    """PyTorch permits TF32 for convolutions of float32 and not for products; a roofline without such a roof has float32 alone."""
    tf32 = dataclasses.replace(MADE, arithmetic=(*MADE.arithmetic, ArithmeticRoof("tf32", 4e12, "sheet", SHEET)))
    work = {name: gl.workloads.get(name)() for name in ("conv2d", "matmul")}
    assert {name: tf32.place_workload(one).arithmetic for name, one in work.items()} == {"conv2d": "tf32", "matmul": "float32"}
    assert MADE.place_workload(work["conv2d"]).arithmetic == "float32"


def test_what_is_not_there_is_told_with_what_is() -> None:
    """The roofs that there are, by name; a working set in its unit; devices, three products, and the recordings."""
    cache = Roofline("a chip", MADE.arithmetic, MADE.memory[:1], (), (), SHEET)
    for call, words in (
        (lambda: MADE.arithmetic_roof("int4"), "no roof 'int4' among the arithmetic of a machine; expected one of: float32, float16."),
        (lambda: MADE.memory_roof("L9"), "no roof 'L9' among the memory of a machine; expected one of: L2, DRAM."),
        (cache.memory_roof, "a chip's main memory is not stated (levels: L2); expected one that holds any working set."),
        (lambda: cache.memory_roof(working_set_bytes=2**21), "expected one that holds 2.00 MiB."),
        (lambda: dataclasses.replace(cache, memory=()).memory_roof(), "(levels: none)"),
        (lambda: dataclasses.replace(cache, arithmetic=()).arithmetic_roof(), "expected one of: none is known."),
    ):
        with pytest.raises(InputError, match=re.escape(words)) as caught:
            call()
        assert str(caught.value).startswith("roofline: ")
    with pytest.raises(DeviceError) as refused:
        roofline("no such device")
    first = ", ".join(part.name for part in itertools.islice(_datasheets.PARTS, 3))
    there = f"expected one of {', '.join(map(str, gl.devices.available()))}; a product such as {first}; or a recording ("
    assert there + ", ".join(gl.recordings.names()) + ")" in str(refused.value)
