"""Measurements of a GPU: what is waited for, whose turn is taken, which rates are impossible.

The GPU is an H200 behind PyTorch's functions, on the test's clock; tests marked ``gpu`` need one.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gpulab as gl
import numpy as np
import pytest
import torch
from gpulab.devices import Figure, MemoryLevel
from gpulab.timing.notes import check, fastest_rate

from fake_machine import MIB, Clock, DeviceArray, lines, play_gpus, private_turns  # noqa: F401

THERE = DeviceArray()
HERE = np.ones(1000)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """A machine with two GPUs; waiting for either moves the clock to the end of its work."""
    clock = Clock()
    play_gpus(monkeypatch, count=2, synchronize=clock.finish)
    return clock


@pytest.mark.parametrize(
    ("args", "result", "device", "seconds", "named", "notes"),
    [
        ((THERE,), None, None, 5e-3, "cuda:0", []),
        (([{"x": THERE}],), None, None, 5e-3, "cuda:0", []),
        ((HERE, THERE), None, None, 5e-3, "cuda:0", []),
        ((), (THERE,), None, 5e-3, "cuda:0", []),  # only the first result shows the device
        ((THERE,), None, "cuda:1", 5e-3, "cuda:1", []),
        ((THERE,), None, "cpu", 5e-3, "cpu", ["skipped"]),  # not the named one: both are waited for
        ((HERE,), HERE, "cuda", 5e-3, "cuda:0", ["skipped"]),  # nothing shows that it did any work
        ((HERE,), HERE, "cpu", 1e-3, "cpu", []),
        ((HERE,), HERE, None, 1e-3, "cpu", []),
    ],
)
def test_the_device_that_does_the_work_is_waited_for(
    clock: Clock, args: Any, result: Any, device: Any, seconds: float, named: str, notes: list[str]
) -> None:
    """A call returns after 1 ms and leaves 4 ms to the GPU: 5 ms, first call and samples alike."""
    work = clock.queues(1e-3, 4e-3, result)
    m = gl.measure(work, *args, device=device, clock=clock, deadline=1.0)
    found = (m.first_call_seconds, m.median_seconds, m.launch_seconds)
    assert found == pytest.approx((seconds, seconds, 1e-3))
    assert (m.device, [note.code for note in m.notes]) == (named, notes)
    cold_or_copied = gl.measure(
        work, *args, device=device, clock=clock, deadline=0.1, cold=named == "cpu"
    )
    assert cold_or_copied.median_seconds == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("device", "deadline", "calls"),
    [("cuda", 1.0, 10), ("cuda", 100.0, 20), ("cpu", 100.0, 20), ("cpu", 0.01, 1)],
)
def test_warming_up_takes_5_percent_of_the_deadline_at_most(
    clock: Clock, device: str, deadline: float, calls: int
) -> None:
    """Calls take 1 ms, and 4 ms more on a GPU; the limit is 0.1 s there, and 20 ms on a CPU."""
    work = clock.queues(1e-3, 4e-3) if device == "cuda" else clock.takes(1e-3)
    reached: list[int] = []

    def stop() -> bool:  # asked before each call of the warm-up and each sample
        reached.append(clock.calls)
        return len(reached) > calls + 2

    m = gl.measure(work, device=device, clock=clock, deadline=deadline, stop=stop)
    assert (len(m.samples_seconds), clock.calls) == (1, 1 + calls + 1)


def test_notes_of_a_gpu(clock: Clock, approved: Any) -> None:
    """Notes on a device other than the named one, and on rates beyond an H200's data sheet.

    By hand: 1 PFLOP in 1 us is 1 ZFLOP/s against 1.98 PFLOP/s; 30 MiB in 5 us are 6.29 TB/s, more
    than the 4.92 of HBM and less than the 16.7 of L2; 300 MB in 5 us are 60 TB/s.
    """
    quick = clock.takes(5e-6)
    shown = [
        gl.measure(clock.queues(1e-3, 4e-3), THERE, device="cpu", clock=clock, deadline=0.1),
        gl.measure(clock.takes(1e-3, np.copy), HERE, device="cuda", clock=clock, deadline=0.1),
        gl.measure(clock.takes(1e-6), THERE, flops=1e15, clock=clock, deadline=0.1),
        gl.measure(quick, THERE, nbytes=30 * MIB, clock=clock, deadline=0.1),
        gl.measure(quick, THERE, nbytes=300e6, clock=clock, deadline=0.1),
        gl.measure(quick, THERE, nbytes=20e6, flops=1e9, clock=clock, deadline=0.1),
    ]
    assert lines(*shown) == approved


@pytest.mark.parametrize(
    ("dtype", "flops", "implausible"),
    [
        (np.float32, 600e12, False),  # a function may run under autocast, in bfloat16
        (np.float32, 1200e12, True),
        (np.float64, 70e12, False),
        (np.float64, 80e12, True),  # autocast leaves float64 as it is
        (np.int8, 2000e12, False),
    ],
)
def test_arithmetic_is_held_against_the_format(
    clock: Clock, dtype: Any, flops: float, implausible: bool
) -> None:
    """The limits are those of an H200's data sheet (67, 67, 989 and 1979 TFLOP/s), times 1.1."""
    x = np.ones(4, dtype)
    m = gl.measure(clock.takes(1.0), x, device="cuda", flops=flops, clock=clock, deadline=3.0)
    assert m.has_note("implausible") == implausible


def test_the_catalogues_workloads_compute_in_what_they_are_given(clock: Clock) -> None:
    """600 TFLOP/s are impossible: a float32 product runs in TF32 (495 TFLOP/s) at the fastest."""
    spec = dataclasses.replace(gl.workloads.get("matmul"), function=clock.takes(1.0))
    run, inputs = spec(n=8, dtype="float32").run, spec(n=8, dtype="float32").inputs("cpu")
    m = gl.measure(run, *inputs, device="cuda", flops=600e12, clock=clock, deadline=3.0)
    assert m.has_note("implausible")


# By hand: 1 TFLOP/s; 1 MiB at 400 GB/s, 32 MiB at 200 GB/s, main memory at 40 GB/s.
SIZES = (("L2", 2**20, 4e11), ("L3", 2**25, 2e11), ("DRAM", 2**35, 4e10))
LEVELS = tuple(MemoryLevel(*each, "by hand") for each in SIZES)
CEILING = (Figure(1e12, "by hand"), LEVELS)
UNKNOWN = (None, (MemoryLevel("L2", 2**20, None, "by hand"), *LEVELS[1:]))
MEMORY = (CEILING[0], LEVELS[-1:])


@pytest.mark.parametrize(
    ("seconds", "flops", "nbytes", "working_set", "ceiling", "codes"),
    [
        (1.0, 1.1 * 1e12, None, None, CEILING, []),  # DESIGN section 4: times 1.1
        (1.0, 1.11e12, None, None, CEILING, ["implausible"]),
        (1.0, None, 4.3e10, None, CEILING, []),  # 40 GB streamed at 43 GB/s
        (1.0, None, 6.0e10, None, CEILING, ["implausible"]),
        (1e-4, None, 2e6, 2e6, CEILING, []),  # 20 GB/s: no sign of the cache
        (1e-5, None, 1e6, 1e6, CEILING, ["warm-cache"]),  # 100 GB/s
        (1e-6, None, 1e6, 1e6, CEILING, ["implausible"]),  # 1 TB/s out of L2
        (1.0, None, 1e11, 1e6, CEILING, ["warm-cache"]),  # one megabyte, 100,000 times
        (1.0, None, 1e11, 2.0**25, CEILING, ["warm-cache"]),  # it just fits
        (1.0, None, 3e11, 2.0**20, CEILING, ["warm-cache"]),  # it also fits the faster one
        (1.0, None, 3e11, 2.0**20 + 1, CEILING, ["warm-cache"]),  # it does but for one byte
        (1.0, None, 3e11, 2.0**22, CEILING, ["implausible"]),  # 229 GB/s: a fourth at 400 GB/s
        (1.0, None, 1.1 * 4e10, 2.0**34, MEMORY, []),
        (1.0, None, 1.1 * 4e10 + 1e5, 2.0**34, MEMORY, ["implausible"]),
        (1.0, 0.0, 0.0, None, CEILING, []),
        (1.0, 2e12, 1.0, None, (None, ()), []),
        (1e-9, None, 1e6, 1000, UNKNOWN, ["warm-cache"]),  # any rate is possible there
        # calls of 1 ms, as fast as main memory would be too: a chase through 2 MB, or 200
        (1e-3, None, 2e6, 2e6, (*CEILING, 1.3e-3), ["warm-cache"]),  # cold in the first call
        (1e-3, None, 2e6, 2e6, (*CEILING, 1.1e-3), []),
        (1e-3, None, 2e6, 2e6, (*CEILING, None), []),
        (1e-3, None, 2e6, 2e8, (*CEILING, 1.3e-3), []),
    ],
)
def test_rates_against_ceilings(
    seconds: float, flops: Any, nbytes: Any, working_set: Any, ceiling: Any, codes: list[str]
) -> None:
    """A rate above 1.1 times the ceiling is implausible; one that needs a cache gets a note."""
    assert [note.code for note in check(seconds, flops, nbytes, working_set, *ceiling)] == codes


@pytest.mark.parametrize(
    ("matmul", "convolution", "words"),
    [
        (False, True, "TF32 allowed for convolutions"),
        (True, True, "TF32 allowed for matrix products and convolutions"),
        (False, False, "TF32 not allowed"),
    ],
)
def test_the_badge_names_tf32(clock: Clock, matmul: bool, convolution: bool, words: str) -> None:
    """It follows PyTorch's switches during the call; a badge of float64 does not mention TF32."""
    switches = (torch.backends.cuda.matmul, torch.backends.cudnn)
    before = [*(each.allow_tf32 for each in switches), switches[0].fp32_precision]
    try:
        switches[0].allow_tf32, switches[1].allow_tf32 = matmul, convolution
        single, double = (
            gl.measure(clock.takes(1e-3), HERE.astype(kind), device="cuda", clock=clock).evidence
            for kind in ("float32", "float64")
        )
    finally:
        # the old switch alone would leave "ieee", also where all libraries are then asked for TF32
        switches[0].allow_tf32, switches[1].allow_tf32, switches[0].fp32_precision = before
    assert (words in single.sentence, "TF32" in double.sentence) == (True, False)


def test_jax_is_waited_for() -> None:
    """JAX's calls return before their results exist; each result exists before the next call."""
    jax = pytest.importorskip("jax")
    x, products = jax.numpy.ones((800, 800)), jax.jit(lambda x: x @ x @ x @ x @ x)
    made = [products(x).block_until_ready()]

    def work() -> Any:
        assert made[-1].is_ready()
        made.append(products(x))
        return made[-1]

    assert gl.measure(work, deadline=0.1).calls_per_sample == 1


def test_no_switch_of_pytorch_is_named_beside_jax(clock: Clock) -> None:
    """JAX has its own precision of a product, and does not look at PyTorch's."""
    work = clock.takes(1e-3), pytest.importorskip("jax").numpy.ones(3)
    assert "TF32" not in gl.measure(*work, device="cuda", clock=clock).evidence.sentence


def test_a_working_set_little_larger_than_the_cache() -> None:
    """Of 64 MiB, 1 MiB may come from L2, 32 MiB from L3; what is unknown may take no time."""
    mebibytes = 1 / 4e11 + 32 / 2e11 + 31 / 4e10
    assert fastest_rate(2**26, LEVELS) == pytest.approx(64 / mebibytes)
    assert fastest_rate(2**34, LEVELS) == pytest.approx(4e10, rel=0.01)
    unknown = (UNKNOWN[1][0], MemoryLevel("DRAM", math.inf, 1e10, "by hand"))
    assert fastest_rate(2**21, unknown) == 2e10
    assert fastest_rate(1e9, ()) is None


@pytest.mark.parametrize(
    ("fn", "args", "nbytes", "shown"),
    [
        # Distinct bytes of the arrays in and out, those that a function holds included, if they
        # are fewer than the traffic; an array that is used twice counts once.
        (lambda a, b: a + b, (HERE, HERE[::-1]), 1e6, 24_000),
        (lambda: HERE + 1.0, (), 1e6, 16_000),
        (HERE.sum, (), 1e6, 8000),
        (lambda a: np.add(a, 1.0, out=a), (np.ones(1000),), 1e6, 8000),
        (lambda a, b: a, (HERE, HERE), 1e6, 8000),
        (lambda a: a.sum(), (np.broadcast_to(np.ones((1, 1000)), (99, 1000)),), 1e6, 8000),
        (lambda a: a, (HERE,), 5e3, 5000),
        (lambda x: x.add_(1), (torch.ones(1000),), 1e6, 4000),
        (lambda: None, (), 7e3, 7000),
    ],
)
def test_the_working_set_is_what_the_arrays_hold(
    clock: Clock, fn: Callable[..., Any], args: Any, nbytes: float, shown: int
) -> None:
    """The note on the cache has the size of the working set."""

    @functools.wraps(fn)
    def work(*given: Any) -> Any:
        clock.now += nbytes / 8e12
        return fn(*given)

    m = gl.measure(work, *args, device="cuda", nbytes=nbytes, clock=clock, deadline=nbytes / 8e9)
    (sentence,) = (note.sentence for note in m.notes if note.code == "warm-cache")
    assert f"the {gl.units.format_bytes(shown)} fit" in sentence


@pytest.mark.slow  # asks for this machine's ceilings
@pytest.mark.parametrize("cold", [False, True])
def test_impossible_rates_of_this_machine(cold: bool) -> None:
    """A petaflop in a microsecond is beyond any CPU, and a megaflop in a second is not. If only the
    first call was slow, the later ones had a warm cache.
    """
    clock = Clock()
    m = gl.measure(
        clock.takes(lambda n: 2.0 if n == 1 else 1.0),
        clock=clock, nbytes=1e6, flops=1e6, deadline=3.0, cold=cold,
    )  # fmt: skip
    assert (m.has_note("implausible"), m.has_note("warm-cache")) == (False, not cold)
    assert gl.measure(clock.takes(1e-6), clock=clock, flops=1e15).has_note("implausible")


def test_each_device_has_a_turn_of_its_own(clock: Clock, tmp_path: Path) -> None:
    """CPU and GPU have a lock file each, the GPU by its identity; a scripted clock takes none."""
    gl.measure(clock.takes(1e-3), THERE, clock=clock, deadline=0.1)
    assert list(tmp_path.iterdir()) == []
    gl.measure(lambda: (DeviceArray(),), deadline=0.001)  # the GPU shows in the first result
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cpu.lock", "cuda-gpuab.lock"]


@pytest.mark.gpu
def test_a_real_gpu_is_found_and_waited_for() -> None:
    """A product of 4,096 takes longer to finish than to launch; a wrong device name gets a note.

    Its energy agrees with the power that the driver reports meanwhile (the mean of a second).
    """
    x, watts = torch.randn(4096, 4096, device="cuda"), [0.0]
    m = gl.measure(
        lambda: x @ x,
        flops=2.0 * 4096**3,
        deadline=3.0,
        relative_width=1e-6,
        progress=lambda *_: watts.append(torch.cuda.power_draw() / 1e3),
    )
    assert (m.device, m.has_note("implausible")) == ("cuda:0", False)
    assert m.launch_seconds < m.median_seconds
    assert m.energy_joules / m.median_seconds == pytest.approx(watts[-2], rel=0.3)
    assert gl.measure(torch.mm, x, x, device="cpu", deadline=0.5).has_note("skipped")
    assert gl.measure(torch.add, torch.ones(10), 1, device="cuda", deadline=0.2).has_note("skipped")
    assert gl.measure(lambda: torch.ones(9, device="cuda").sum(), deadline=0.3).device == "cuda:0"
    copied = gl.measure(torch.mm, x.cpu(), x.cpu(), device="cuda", transfer=True, deadline=0.5)
    assert copied.with_transfer_seconds > copied.median_seconds
    assert gl.measure(torch.mm, x, x, cold=True, deadline=0.5).calls_per_sample == 1
