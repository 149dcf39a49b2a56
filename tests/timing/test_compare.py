"""gl.compare: whether results agree, turns between the rows, and the speed-up."""

import dataclasses
import itertools
import math
from collections.abc import Callable
from typing import Any

import gpulab as gl
import numpy as np
import pytest
import torch
from gpulab.errors import (
    DeviceError,
    InputError,
    MeasurementError,
    OutOfMemoryError,
    StoppedError,
)

from fake_machine import Clock, lines, play_gpus, private_turns  # noqa: F401

X = np.linspace(1.0, 2.0, 50)


def _double(x: Any) -> Any:
    return 2.0 * x


def test_the_speedup_is_baseline_over_fastest_other() -> None:
    """4 ms against 2, 1 and 8 ms: speed-ups of 2, 4 and 0.5; the baseline itself has none."""
    clock = Clock()
    times = {"a": 4, "b": 2, "c": 1, "d": 8}
    works = {name: clock.takes(ms * 2.0**-10, _double) for name, ms in times.items()}
    c = gl.compare(works, X, clock=clock)
    assert [(r.name, r.speedup) for r in c.rows] == [("a", None), ("b", 2), ("c", 4), ("d", 0.5)]
    assert (c.speedup, c.speedup_interval, c.max_relative_difference) == (4.0, (4.0, 4.0), 0.0)
    assert c.evidence.samples == sum(len(row.measurement.samples_seconds) for row in c.rows)


def test_rows_take_turns_call_by_call() -> None:
    """After the warm-up no row runs twice in a row, so a disturbance affects all rows."""
    clock, order = Clock(), []
    works = {n: clock.takes(1e-3, lambda x, n=n: order.append(n) or x) for n in "abc"}
    gl.compare(works, X, clock=clock)
    sampled = order[len(order) // 3 :]
    assert len(sampled) > 100
    assert all(len({*three}) == 3 for three in zip(sampled, sampled[1:], sampled[2:], strict=False))


def test_a_speedup_lies_in_its_interval_where_pairs_differ() -> None:
    """Pairs (20, 2), (10, 1), (10, 2) at 45, 45, 10 %: most ratios are 10, the medians' is 5."""
    rng, clock, drawn = np.random.default_rng(1), Clock(), [0]
    pairs = rng.permutation(np.repeat([[20, 2], [10, 1], [10, 2]], [180, 180, 40], axis=0))

    def seconds(column: int) -> float:
        drawn[0] += column == 0
        # never twice the same, so that 10 and 20 are not one and two ticks of a coarse clock
        return 1e-3 * float(pairs[drawn[0] % 400][column]) * (1 + 1e-9 * drawn[0])

    works = {
        "a": clock.takes(lambda n: seconds(0), _double),
        "b": clock.takes(lambda n: seconds(1), _double),
    }
    c = gl.compare(works, X, clock=clock, deadline=2.5)
    assert c.speedup == pytest.approx(5.0)
    assert c.speedup_interval[0] <= c.speedup <= c.speedup_interval[1]


@pytest.mark.parametrize(
    ("got", "expected", "difference"),
    [
        ([1.0, 2.0], [1.0, 2.2], 0.2 / 2.2),
        ([1.0, np.nan], [1.0, 2.0], math.inf),
        ([1.0, np.nan], [1.0, np.nan], 0.0),
        ([1.0], [1.0, 2.0], math.inf),
        ([[1.0], [2.0]], [1.0, 2.0], math.inf),
        ([True], [False], math.inf),
        ([True], [0], math.inf),
        ([1], [1.5], 0.5 / 1.5),
        ([3], [0], 3.0),
        ([0.5], [0.0], 0.5),
        ([0.5, np.inf], [0.0, np.inf], 0.5),
        ([1.0, np.inf], [2.0, np.inf], 0.5),
        ([1.0, np.inf], [1.0, -np.inf], math.inf),
        ([1 + 1j], [1 + 0j], 1.0),
        (np.uint8([0, 200]), np.uint8([1, 200]), 1 / 200),  # unsigned numbers do not wrap round
        (np.uint8([0, 4]), np.uint8([255, 4]), 1.0),
        (np.int8([127]), np.int8([-128]), 255 / 128),
        ([2**62 + 1], [2**62], 2.0**-62),
        (np.array(3 * 10**30), np.array(4 * 10**30), math.inf),  # Python's own numbers
        (np.array(3 * 10**30), np.array(3 * 10**30), 0.0),
        (np.array([None, 1]), np.array([None, 2]), math.inf),
        (["a"], ["a"], 0.0),
        ([], [], 0.0),
        (3, 4.0, 0.25),
        ({"x": [1.0], "y": 2.0}, {"x": [2.0], "y": 2.0}, 0.5),
        ({"y": 2.0, "x": 1.0}, {"x": 1.0, "y": 2.0}, 0.0),  # in another order
        ({"x": [[1.0], [2.0]]}, {"x": np.array([[1.0], [2.0]])}, 0.0),  # a table in lists
        # asked for an attribute, it raises KeyError
        (type("D", (dict,), {"__getattr__": dict.__getitem__})(x=1.0), {"x": 2.0}, 0.5),
        ((1.0, 2.0), (1.0,), math.inf),
        (torch.ones(2), torch.tensor([1.0, 2.0]), 0.5),
        (torch.eye(2).to_sparse(), torch.eye(2), 0.0),
        (torch.eye(2).to_sparse_csr(), torch.ones(2, 2), 1.0),
    ],
    ids=str,
)
def test_results_are_held_against_the_baselines(got: Any, expected: Any, difference: float) -> None:
    """max|a - b| / max|b| by hand; shapes, structures and values that are not finite must match."""
    clock = Clock()
    made = [np.array(v) if isinstance(v, list) else v for v in (expected, got)]
    works = {n: clock.takes(1e-3, lambda r=r: r) for n, r in zip("ab", made, strict=True)}
    c = gl.compare(works, clock=clock, deadline=0.05, devices="cpu")
    assert c.rows[0].max_relative_difference == 0.0
    assert c.rows[1].max_relative_difference == pytest.approx(difference)
    assert (c.speedup is None) == (difference > c.tolerance)


def _coarse(x: Any) -> Any:
    return x.astype(np.float16).astype(x.dtype) if x.dtype == np.float32 else x


def _only_float32(x: Any) -> Any:
    return {np.dtype("float32"): x}[x.dtype]


def _compared(clock: Clock, *results: Any, x: Any = X, **options: Any) -> Any:
    works = {
        n: clock.takes(2.0**-9 / k, r)
        for k, (n, r) in enumerate(zip("abc", results, strict=False), 1)
    }
    return gl.compare(works, x, clock=clock, **options)


def test_what_is_shown_of_a_comparison(approved: Any) -> None:
    """Speed-ups only where results agree with the baseline in float64; else the note says why.

    By hand: 2 ms against 1 is 2.00x; 2.2 x against 2.0 x differs by a tenth. What is copied takes
    1 ms more.
    """
    clock, whole = Clock(), np.arange(51)
    small = X.astype(np.float32)
    slow = {n: clock.takes(2.0, _double) for n in "ab"}
    shown = [
        _compared(clock, _double, lambda x: 2.0 * x + 4e-10, lambda x: x + x, tolerance=1e-3),
        _compared(clock, _double, lambda x: 2.2 * x),
        _compared(clock, _double, lambda x: 2.2 * x, tolerance=0.2),
        _compared(clock, _double, lambda x: x[:, None]),
        _compared(clock, _coarse, lambda x: x, x=small),  # a baseline that errs in float32 alone
        _compared(clock, _only_float32, _only_float32, x=small),
        _compared(clock, lambda x: None, lambda x: None),
        _compared(clock, lambda x: x, lambda x: x + (x == 50), x=whole),
        _compared(clock, _double),
        _compared(
            clock,
            *[lambda x: (_double(x), x is X or clock.takes(1e-3)())[0]] * 2,
            transfer=True,
            deadline=0.1,
        ),
        gl.compare(slow, X, clock=clock),
    ]
    assert lines(*shown) == approved


def test_calls_that_change_their_inputs_are_found_out() -> None:
    """Both add 1 in place: the first gives 2, as the float64 reference does; the second gives 3."""
    clock = Clock()
    add = clock.takes(1e-3, lambda x: x.add_(1.0))
    c = gl.compare({"a": add, "b": add}, torch.ones(3, dtype=torch.float64), clock=clock)
    assert [row.max_relative_difference for row in c.rows] == [0.0, 0.5]


@pytest.mark.parametrize(
    ("dtypes", "tf32", "tolerance"),
    [
        # Far above a rounding (IEEE 754: 2^-53, -24, -11 and -8); whole numbers agree exactly.
        (["float64"], None, 1e-10),
        (["complex128"], None, 1e-10),
        (["float32"], None, 1e-4),
        (["complex64", "float64"], None, 1e-4),
        (["float16"], None, 1e-2),
        (["bfloat16", "float64", "int32"], None, 5e-2),
        (["int32"], None, 0.0),
        # Two results are each rounded once (OCP 8-bit formats: 2^-4, 2^-3); inputs are exact.
        (["float8_e4m3fn", "float32"], None, 2**-3),
        (["float8_e5m2"], None, 2**-2),
        (["float8_e4m3fnuz"], None, 2**-3),
        (["float32", "float8_e5m2"], None, 1e-4),
        # Where there is a GPU and NVIDIA's switch permits TF32, its errors are allowed.
        (["float32"], "1", 5e-3),
        (["float32"], "0", 1e-4),
    ],
)
def test_the_coarsest_format_decides_what_may_differ(
    monkeypatch: pytest.MonkeyPatch, dtypes: list[str], tf32: str | None, tolerance: float
) -> None:
    """The tolerance of results that are computed from arrays of these types."""
    if tf32 is not None:
        play_gpus(monkeypatch)
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", tf32 or "0")
    clock = Clock()
    arrays = [torch.ones(2, dtype=getattr(torch, name)) for name in dtypes]
    work = clock.takes(1e-3, lambda *given: given[0])
    c = gl.compare({"a": work, "b": work}, *arrays, clock=clock, deadline=0.01)
    assert c.tolerance == tolerance


def test_a_large_product_is_checked_by_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """64 of 1,100 rows are checked in float64: a last row 1 % off is found; a note says how."""
    rng, clock = np.random.default_rng(0), Clock()
    a, b = (rng.random(shape, dtype=np.float32) for shape in ((1100, 1000), (1000, 1000)))
    right = a @ b
    wrong = np.concatenate([right[:-1], 1.01 * right[-1:]])
    works = [clock.takes(1e-3, lambda a, b, r=r: r) for r in (right, wrong, right[:-1])]
    monkeypatch.setattr(np, "matmul", works[0])  # so that the work counts as a product
    c = gl.compare(dict(zip("abc", works, strict=True)), a, b, clock=clock, deadline=0.01)
    one, two, three = (row.max_relative_difference for row in c.rows)
    assert one < 1e-5 < 1e-3 < two < 0.02 < three == math.inf
    assert any("64 of its 1100 rows" in note.sentence for note in c.notes)
    # this takes two matrices too, but is no product
    c = gl.compare(clock.takes(1e-3, lambda a, b: a), a, b, clock=clock, devices="cpu")
    assert c.rows[0].max_relative_difference == 0.0


@pytest.mark.slow  # asks for this machine's ceilings
@pytest.mark.skipif(len(gl.devices.available()) > 1, reason="compares with the accelerator, too")
def test_a_workload_of_the_catalogue_knows_its_reference() -> None:
    """Without an accelerator: one row, no speed-up, agreement, and a note on what to do."""
    c = gl.compare("matmul", n=64, deadline=0.05, tolerance=1e-3)
    (row,) = c.rows
    assert (c.speedup, c.label, c.tolerance) == (None, "matmul n=64 float32", 1e-3)
    assert 0 < row.max_relative_difference <= c.tolerance
    assert (row.measurement.flops, row.measurement.nbytes) == (2 * 64**3, 3 * 64 * 64 * 4)
    assert [note.code for note in c.notes] == ["skipped"]
    step = gl.compare("cnn_training_step", n=4, devices="cpu", deadline=0.1, transfer=True)
    assert step.rows[0].max_relative_difference <= step.tolerance
    assert step.rows[0].measurement.with_transfer_seconds > 0


def test_a_function_runs_on_every_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU first, then each GPU; two alike have their place in the name."""
    clock = Clock()
    play_gpus(monkeypatch, count=2, synchronize=clock.finish)
    c = gl.compare(clock.queues(1e-3, 1e-3, 5.0), clock=clock, deadline=0.1)
    assert [row.measurement.device for row in c.rows] == ["cpu", "cuda:0", "cuda:1"]
    assert [row.name for row in c.rows][1:] == ["NVIDIA H200 (cuda:0)", "NVIDIA H200 (cuda:1)"]
    assert ([row.measurement.median_seconds for row in c.rows], c.table()[1][1][1:3]) == (
        pytest.approx([1e-3, 2e-3, 2e-3]),
        ("2.00 ms [2.00 ms, 2.00 ms]", "1.00 ms"),  # the second is when the call returned
    )
    two = gl.compare(clock.queues(1e-3, 0.0), devices=["cuda:1", "cpu"], clock=clock, deadline=0.1)
    assert [row.measurement.device for row in two.rows] == ["cuda:1", "cpu"]


def test_an_impossible_row_has_no_speedup(monkeypatch: pytest.MonkeyPatch, approved: Any) -> None:
    """1 PFLOP in a second is beyond any CPU, and just possible for an H200 in bfloat16 (989 T)."""
    clock = Clock()
    play_gpus(monkeypatch, synchronize=clock.finish)
    spec = dataclasses.replace(
        gl.workloads.get("matmul"),
        function=clock.takes(1.0, lambda: torch.ones(1)),
        make_inputs=lambda w, generator: (),
        flops=lambda w: 1e15,
        nbytes=lambda w: 0.0,
        difference=lambda w, result, inputs: 0.0,
        shape=None,
    )
    c = gl.compare(spec(n=8, dtype="bfloat16"), clock=clock, deadline=3.0)
    assert [row.measurement.has_note("implausible") for row in c.rows] == [True, False]
    assert (c.speedup, c.rows[1].speedup) == (None, None)
    assert "\n".join(map(str, c.notes)).replace(c.rows[0].name, "<CPU>") == approved


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: gl.compare("matmull"), InputError),
        (lambda: gl.compare("matmul", n=0), InputError),
        (lambda: gl.compare("matmul", dtype="float7"), InputError),
        (lambda: gl.compare("matmul", n=2**24, devices="cpu"), OutOfMemoryError),
        (lambda: gl.compare("matmul", devices=[]), InputError),
        (lambda: gl.compare("matmul", devices=["cpu", "cpu"]), InputError),
        (lambda: gl.compare("matmul", devices=["cpu", "cuda:77"]), DeviceError),
        (lambda: gl.compare("matmul", X), InputError),
        (lambda: gl.compare(np.sort, X, n=100), InputError),
        (lambda: gl.compare(np.sort, X, dtype="float64"), InputError),
        (lambda: gl.compare({}), InputError),
        (lambda: gl.compare({"a": 3}, X), InputError),
        (lambda: gl.compare({3: np.sort}, X), InputError),
        (lambda: gl.compare({"a": np.sort, "b": lambda x: 1 / 0}, X), MeasurementError),
        (lambda: gl.compare(np.sort, X, stop=lambda: True), StoppedError),
        (lambda: gl.compare(np.sort, X, stop=iter([False, True, True]).__next__), StoppedError),
    ],
)
def test_requests_that_cannot_be_compared(call: Callable[[], Any], error: type) -> None:
    """A request that cannot be compared raises an error of the fitting kind."""
    with pytest.raises(error):
        call()


@pytest.mark.parametrize(("at", "copied"), [(90, [None, None]), (10_000, [1e-3, 1e-3])])
def test_a_stop_keeps_the_samples_of_both_rows(at: int, copied: list[Any]) -> None:
    """Stopped while it samples, no row has a time with copies; progress rises to 1."""
    clock, seen, asked = Clock(), [], itertools.count(1)
    works = {name: clock.takes(1e-3, _double) for name in "ab"}
    c = gl.compare(
        works,
        X,
        clock=clock,
        transfer=True,
        stop=lambda: next(asked) >= at,
        progress=lambda fraction, text: seen.append(fraction),
    )
    assert [row.measurement.with_transfer_seconds for row in c.rows] == pytest.approx(copied)
    assert [row.measurement.has_note("stopped") for row in c.rows] == [at == 90] * 2
    assert (seen, seen[-1]) == (sorted(seen), 1.0)


@pytest.mark.gpu
def test_cpu_against_a_real_gpu() -> None:
    """The same product on both: results agree, and each row has its three times."""
    c = gl.compare("matmul", n=2048, transfer=True, deadline=1.0)
    own = gl.compare(lambda x: (x @ x).sum(0), np.ones((512, 512), np.float32), deadline=0.3)
    for both in (c, own):
        assert [row.measurement.device for row in both.rows][:2] == ["cpu", "cuda:0"]
        assert both.speedup_interval[0] <= both.speedup <= both.speedup_interval[1]
    assert all(row.measurement.with_transfer_seconds is not None for row in c.rows)
