"""What memory's results say: sums, margins and whole tables, worked out by hand."""

from __future__ import annotations

import dataclasses
import inspect

import numpy as np
import pytest

from gpulab import memory
from gpulab.evidence import Evidence, Note
from gpulab.memory import MemoryTrace, Prediction, Released
from gpulab.memory._snapshot import HeldTensor
from gpulab.memory._watch import CellMemory, DeviceUse
from gpulab.memory.results import LiveTensor, Timeline

KIB = 1024
HERE = Evidence.measured("a CPU")
TENSORS = tuple(LiveTensor(f"w{k}", "parameters", (12 - k) * KIB, (12 - k, 250), "float32", "aten.mm") for k in range(12))
LINE = Timeline(("a", "b"), ("forward", "backward"), (0,), {"parameters": np.array([4, 4]), "gradients": np.array([0, 3])})
NOTES = (Note("stopped", "It was stopped."),)
LABELS = [f"at the peak: w{k} (parameters, {12 - k}x250 float32)" for k in range(12)]


def prediction(**changes: object) -> Prediction:
    """A step of 1,000 KiB and 200 KiB inside operators."""
    values: dict = {
        "label": "Linear", "peak_bytes": 1000 * KIB, "first_step_peak_bytes": 900 * KIB, "scratch_bytes": 200 * KIB,
        "kept_bytes": 400 * KIB, "peak_by_category": {"parameters": 600 * KIB, "gradients": 400 * KIB, "optimizer": 0},
        "peak_operator": "aten.mm", "peak_phase": "backward", "peak_tensors": TENSORS, "parameter_count": 9, "optimizer": "adam",
        "precision": "float32", "checkpoint": False, "device_type": "cpu", "timeline": LINE, "notes": NOTES, "evidence": HERE,
    }  # fmt: skip
    return Prediction(**{**values, **changes})


def test_the_margin_is_that_of_the_kind_of_device() -> None:
    """1.2 MB: a quarter and 256 MiB more on a CPU, 15 % and 768 MiB more on an accelerator; a capacity is judged by the step's own kind."""
    p = prediction(peak_bytes=1_000_000, scratch_bytes=200_000)
    assert p.needed_bytes() == p.needed_bytes("cpu") == 1_500_000 + 256 * 2**20
    assert p.needed_bytes("cuda") == p.needed_bytes("xpu") == 1_380_000 + 768 * 2**20
    between = 500 * 2**20  # enough for a CPU's margin, not for an accelerator's
    assert p.fits(between)
    assert not prediction(device_type="cuda").fits(between)


def test_a_timeline_adds_its_categories_up() -> None:
    """At each point the sum over categories; an empty one has no points; two are equal where their numbers are."""
    assert LINE.total_bytes.tolist() == [4, 7]
    assert (len(LINE), repr(LINE)) == (2, "<timeline of 2 points over 1 step>")
    empty = Timeline((), (), (), {})
    assert (empty.total_bytes.tolist(), len(empty)) == ([], 0)
    same = Timeline.from_dict(LINE.to_dict())
    assert same == LINE
    assert hash(same) == hash(LINE)
    for other in (dataclasses.replace(LINE, steps=(1,)), empty, LINE.to_dict(), 5):
        assert other != LINE


def test_the_table_of_a_prediction() -> None:
    """The peak and what it is made of, scratch, first step, kept, the five largest tensors, the notes; a category of nothing has no row."""
    p = prediction()
    headers, rows = p.table()
    assert headers == ("memory of Linear: adam, float32", "bytes")
    assert rows == [
        ("peak, backward: aten.mm", "1000 KiB"),
        ("- parameters", "600 KiB"),
        ("- gradients", "400 KiB"),
        ("inside operators (upper estimate)", "200 KiB"),
        ("first step's peak", "900 KiB"),
        ("kept between steps", "400 KiB"),
        *zip(LABELS[:5], ("12.0 KiB", "11.0 KiB", "10.0 KiB", "9.00 KiB", "8.00 KiB"), strict=True),
        ("note: stopped", "It was stopped."),
    ]
    assert repr(p) == "<Linear, adam, float32: peak 1000 KiB + scratch 200 KiB (modelled)>"
    assert "float32, checkpointed: peak" in repr(prediction(checkpoint=True))


def test_the_table_of_a_trace() -> None:
    """The peak, what it is made of, the ten largest tensors; one number is a scalar, and what has no name its operator's."""
    scalar = LiveTensor("", "optimizer", 4, (), "float32", "aten.zeros")
    t = MemoryTrace("Linear", "cpu", 16 * KIB, {"parameters": 16 * KIB}, "aten.mm", "forward", (scalar, *TENSORS), LINE, NOTES, HERE)
    rows = t.table()[1]
    assert rows[:2] == [("peak, forward: aten.mm", "16.0 KiB"), ("- parameters", "16.0 KiB")]
    assert rows[2] == ("at the peak: aten.zeros (optimizer, scalar float32)", "4 B")
    assert [name for name, _ in rows[3:]] == [*LABELS[:9], "note: stopped"]
    assert repr(t) == "<Linear on cpu: peak 16.0 KiB in forward (aten.mm)>"
    nothing = MemoryTrace("function", "cpu", 0, {}, "", "", (), Timeline((), (), (), {}), (), HERE)
    assert nothing.table()[1] == [("peak (no operator ran)", "0 B")]


@pytest.mark.parametrize(
    ("device", "before", "after", "freed"),
    [
        ("cuda:0", 10 * KIB, 70 * KIB, 60 * KIB),
        ("cuda:0", None, 70 * KIB, 0),
        ("cuda:0", 10 * KIB, None, 0),
        ("cpu", 10 * KIB, 70 * KIB, 20 * KIB),
    ],
)
def test_what_came_back(device: str, before: int | None, after: int | None, freed: int) -> None:
    """Of a device what it has more of, or nothing where it does not say; of the CPU what the process has less of."""
    r = Released(device, before, after, 50 * KIB, 30 * KIB, ("Collected garbage.",), NOTES, HERE)
    assert (r.freed_device_bytes, r.freed_host_bytes) == (freed, 20 * KIB)
    first = [("this process shrank by", "20.0 KiB")] if device != "cpu" else []
    assert r.table()[1][1:] == [*first, ("", "Collected garbage."), ("note: stopped", "It was stopped.")]


def test_the_table_of_a_cell() -> None:
    """A row a device; the process grew or shrank; the new arrays by name, with their shape; a cell that raised is said."""
    held = HeldTensor("x", 8 * KIB, (2, 1000), "float32", "torch", 1)
    use = DeviceUse("cpu", KIB, 9 * KIB, 8 * KIB, 0)
    for grown, columns in ((5 * KIB, ("5.00 KiB", "0 B")), (-5 * KIB, ("0 B", "5.00 KiB"))):
        headers, rows = CellMemory((use,), grown, (held, dataclasses.replace(held, name="", shape=())), True, HERE).table()
        assert headers[0] == "tensors on (the cell raised)"
        assert rows == [
            ("cpu", "1.00 KiB", "9.00 KiB", "8.00 KiB", "0 B"),
            ("this process", "", "", *columns),
            ("- new: x", "", "", "8.00 KiB", "2x1000 float32"),
            ("- new: no name", "", "", "8.00 KiB", "scalar float32"),
        ]


# What a call without options means; what it leaves to the device or the machine is None.
USUAL = {
    "limit": {"on_top": False},
    "predict": {"optimizer": "adam", "precision": "float32", "checkpoint": False},
    "release": {"outputs": False},
    "trace": {"precision": "float32", "checkpoint": False, "steps": 2},
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(USUAL))
def test_what_a_call_without_options_means(name: str) -> None:
    """Figures in the course's text and in recordings were made with these."""
    found = inspect.signature(getattr(memory, name)).parameters.items()
    left = {key: parameter.default for key, parameter in found if parameter.default not in (None, inspect.Parameter.empty)}
    assert left == USUAL[name]
