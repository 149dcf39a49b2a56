"""Rooflines by hand, from data sheets, recordings and this machine, and points on them."""

import dataclasses
import math
from types import SimpleNamespace

import gpulab as gl
import pytest
from gpulab.errors import DeviceError, InputError, RecordingError
from gpulab.evidence import Badge, Evidence, Note
from gpulab.models import ArithmeticRoof, MemoryRoof, Roofline, roofline

from texts import table_text

SHEET = Evidence.modelled("everything busy", "a sheet")
MEASURED = Evidence.measured("a machine", 9)
# 1 TFLOP/s in float32, 8 in float16; a cache of 1 MB at 1 TB/s over a memory at 100 GB/s.
MADE = Roofline(
    "a machine",
    tuple(
        ArithmeticRoof(name, rate, "sheet", SHEET)
        for name, rate in {"float32": 1e12, "float16": 8e12}.items()
    ),
    (MemoryRoof("L2", 1e12, 1e6, "sheet", SHEET), MemoryRoof("DRAM", 1e11, 1e10, "sheet", SHEET)),
    (),
    (),
    SHEET,
)
CACHE_ONLY = dataclasses.replace(MADE, memory=MADE.memory[:1])


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        # A ridge is arithmetic over bandwidth.
        (MADE.ridge_flops_per_byte(), 10),
        (MADE.ridge_flops_per_byte("float16"), 80),
        (MADE.ridge_flops_per_byte("float16", "L2"), 8),
        # The roof that needs more time binds; work without bytes has infinite intensity.
        (MADE.place("work", 1e10, 1e9).attainable_seconds, 1e-2),
        (MADE.place("work", 0.99e10, 1e9).bound_by, "memory"),
        (MADE.place("work", 1.01e10, 1e9).bound_by, "arithmetic"),
        (MADE.place("work", 1e9, 0).intensity_flops_per_byte, math.inf),
        # The fastest level that is large enough, or else main memory, or the level that is named.
        (MADE.place("work", 1e6, 1e6, working_set_bytes=1e6).memory, "L2"),
        (MADE.place("work", 1e6, 1e6, working_set_bytes=1.1e6).memory, "DRAM"),
        (MADE.place("work", 1e6, 1e6, working_set_bytes=1e12).memory, "DRAM"),
        (MADE.place("work", 1e6, 1e6, memory="L2", working_set_bytes=5e6).memory, "L2"),
    ],
)
def test_roofs_by_hand(found, expected):
    """Ridges, attainable times, the roof that binds and the memory level are those by hand."""
    assert found == expected


@pytest.mark.parametrize("name", ["amd-epyc-2-cores", "nvidia-h200"])
def test_a_recording_keeps_its_badge(name):
    """Main memory is the fastest recorded stream, arithmetic the products; all roofs RECORDED."""
    recording, recorded = gl.recordings.load(name), roofline(name)
    entries = [(e.params, e.timing) for e in recording.select("ceilings") if e.timing is not None]
    streams = [t.nbytes / t.median_seconds for _, t in entries if not t.flops]
    assert [roof.bytes_per_second for roof in recorded.memory] == [max(streams)]
    products = {p["dtype"]: t.flops / t.median_seconds for p, t in entries if t.flops}
    assert {roof.name: roof.flops_per_second for roof in recorded.arithmetic} == products
    badges = {one.evidence.badge for one in (recorded, *recorded.arithmetic, *recorded.memory)}
    assert badges == {Badge.RECORDED}
    assert roofline(recording) == roofline(recording, "recorded") == recorded
    few = [
        [e for e in recording.entries if e.params.get("operation") == o] for o in ("gemm", "copy")
    ]
    for one in few:  # a roofline needs both products and streams
        with pytest.raises(InputError, match="no ceilings"):
            roofline(dataclasses.replace(recording, entries=tuple(one)))


@pytest.mark.slow
def test_the_roofs_of_this_machine():
    """They are what ``devices.ceilings`` measured in this process, with its badge and notes."""
    live, ceilings = roofline("cpu"), gl.devices.ceilings("cpu")
    rates = {roof.name: roof.flops_per_second for roof in live.arithmetic}
    levels = {roof.name: roof.bytes_per_second for roof in live.memory}
    assert rates == dict(ceilings.flops_per_second)
    assert levels == {level.name: level.bytes_per_second for level in ceilings.levels}
    assert (live.evidence.badge, live.notes) == (Badge.MEASURED, ceilings.notes)
    assert "DRAM" in levels


def test_workloads_of_the_catalogue():
    """FLOPs, bytes, size and dtype come from the catalogue, times from the measurement."""
    add, timed = gl.workloads.get("add"), (2.0, (1.5, 3.0), MEASURED)
    names = ("median_seconds", "interval_seconds", "evidence")
    measurement = SimpleNamespace(**dict(zip(names, timed, strict=True)))
    point = MADE.place_workload(add(n=1000), measurement)
    assert (point.seconds, point.interval_seconds, point.evidence) == timed
    assert (point.label, point.flops, point.nbytes) == ("add n=1000 float32", 1e3, 12e3)
    assert (point.memory, MADE.place_workload(add(n=10**7)).memory) == ("L2", "DRAM")
    half, conv, product = (gl.workloads.get(n) for n in ("matmul", "conv2d", "matmul"))
    tf32 = (*MADE.arithmetic, ArithmeticRoof("tf32", 4e12, "sheet", SHEET))
    with_tf32 = dataclasses.replace(MADE, arithmetic=tf32)
    # PyTorch permits TF32 for convolutions of float32 and not for products.
    found = [roofs.place_workload(one).arithmetic for roofs, one in (
        (MADE, half(dtype="float16")), (MADE, conv()), (with_tf32, conv()), (with_tf32, product()),
    )]  # fmt: skip
    assert found == ["float16", "float32", "tf32", "float32"]
    assert MADE.place_workload(half(), arithmetic="float16").arithmetic == "float16"


@pytest.mark.parametrize(
    "call",
    [
        *(lambda v=v: MADE.place("work", v, 1.0) for v in (-1, math.nan, math.inf, "1", True)),
        lambda: MADE.place("work", 0, 0),
        lambda: MADE.place("work", 1.0, 1.0, seconds=1.0),
        lambda: MADE.place("work", 1.0, 1.0, evidence=MEASURED),
        lambda: MADE.place("work", 1.0, 1.0, seconds=0.0, evidence=MEASURED),
        lambda: MADE.place("work", 1.0, 1.0, arithmetic="int4"),
        lambda: MADE.place("work", 1.0, 1.0, memory="L9"),
        lambda: CACHE_ONLY.memory_roof(working_set_bytes=2**21),
        lambda: MADE.place_workload("matmul"),
        lambda: MADE.place_workload(gl.workloads.get("add")(n=8), 0.5),
        lambda: MADE.with_points([5]),
        lambda: roofline("cpu", "datasheet").memory_roof(),  # no data sheet has it
        lambda: roofline("cpu", "best"),
        lambda: roofline("H200", "measured"),
        lambda: roofline("no such device"),
        lambda: roofline("no-such-recording", "recorded"),
    ],
)
def test_what_cannot_be_placed_is_refused(call):
    """Invalid amounts, times without evidence, and unknown roofs, devices and words are refused."""
    with pytest.raises((InputError, DeviceError, RecordingError), match="expected"):
        call()


def test_rooflines_as_they_are_shown(approved):
    """Points by hand: 2 GFLOP over 12 GB take 0.12 s of memory, 4 TFLOP 4 s of arithmetic.

    H200 SXM by its data sheet: 67 TFLOP/s, bfloat16 989.4 TFLOP/s, 4.8 TB/s.
    """
    on_roof, timed = 1e-3, {"evidence": MEASURED}
    points = [
        MADE.place("axpy", 2e9, 12e9, seconds=0.15, **timed),
        MADE.place("copy", 0, 1e9),
        MADE.place("loop", 1e9, 0, seconds=on_roof, **timed),
        MADE.place("as good", 1e9, 0, seconds=on_roof / 1.004, **timed),
        MADE.place("better", 1e9, 0, seconds=on_roof / 1.006, **timed),
        MADE.place("train", 4e12, 1e9, seconds=0.002, **timed),
    ]
    noted = dataclasses.replace(MADE, notes=(Note("contended", "A neighbor."),))
    bare = dataclasses.replace(MADE, arithmetic=(), memory=())
    measured = [
        [roof._replace(evidence=MEASURED) for roof in roofs]
        for roofs in (MADE.arithmetic, MADE.memory)
    ]
    measured = dataclasses.replace(MADE, arithmetic=tuple(measured[0]), memory=tuple(measured[1]))
    shown = [MADE, noted, noted.with_points(points), CACHE_ONLY, bare, *points, points[0]]
    shown += [measured.place("axpy", 2e9, 12e9), roofline("H200"), roofline("nvidia-h200")]
    parts = (f"{one!r}\n{table_text(one._repr_html_())}" for one in shown)
    assert "\n".join(parts) == approved
