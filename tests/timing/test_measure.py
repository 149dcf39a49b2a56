"""gl.measure: the three times, the first call, notes and errors, on a clock that only the test moves."""

from __future__ import annotations

import dataclasses
import json
import math
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gpulab as gl
from gpulab.errors import DeviceError, InputError, MeasurementError, OutOfMemoryError, StoppedError
from gpulab.timing import Measurement, device_of


class Clock:
    """A clock that moves only when the measured function says so, and shows only whole steps of ``step``."""

    def __init__(self, step: float = 0.0) -> None:
        self.now, self.step = 0.0, step

    def __call__(self) -> float:
        """Return the time."""
        return self.now // self.step * self.step if self.step else self.now


def _work(clock: Clock, seconds=lambda call: 1e-3):
    """A function whose n-th call takes ``seconds(n)`` of the clock's time."""
    calls = [0]

    def work(*_args):
        calls[0] += 1
        clock.now += seconds(calls[0])
        return np.zeros(4)

    work.calls = calls
    return work


@pytest.fixture(autouse=True)
def _private_turns(tmp_path, monkeypatch):
    monkeypatch.setenv("GPULAB_LOCK_DIR", str(tmp_path))


def test_exact_times_on_a_scripted_clock():
    """First call 50 ms, every later one 1 ms: exactly these come out, and nothing else is asked the time."""
    clock = Clock()
    m = gl.measure(_work(clock, lambda n: 0.05 if n == 1 else 1e-3), clock=clock)
    assert m.first_call_seconds == pytest.approx(0.05)
    assert m.median_seconds == pytest.approx(1e-3)
    assert m.interval_seconds == pytest.approx((1e-3, 1e-3))
    assert m.launch_seconds == pytest.approx(1e-3)
    assert m.with_transfer_seconds is None
    assert m.calls_per_sample == 1
    assert [note.code for note in m.notes] == ["slow-first-call"]
    assert m.evidence.badge == "MEASURED"
    assert m.evidence.samples == len(m.samples_seconds)


@pytest.mark.parametrize("stop", [0.08, 0.2])
def test_one_stop_of_the_machine_is_never_the_median(stop):
    """Whichever call after the first is stopped for more than the deadline of 50 ms, calls of 1 ms take 1 ms, alone and in turns."""
    for stopped in range(2, 12):
        seconds = lambda n, stopped=stopped: 1e-3 + (stop if n == stopped else 0.0)  # noqa: E731
        clock = Clock()
        m = gl.measure(_work(clock, seconds), clock=clock, deadline=0.05)
        assert m.median_seconds == pytest.approx(1e-3)
        c = gl.compare({"a": _work(clock), "b": _work(clock, seconds)}, clock=clock, deadline=0.05)
        assert c.speedup == pytest.approx(1.0)


@pytest.mark.parametrize(("rows", "stop"), [(1, 0.04), (1, 0.2), (2, 0.08), (2, 0.2)])
def test_one_stop_is_never_the_median_of_a_call_with_its_copies(monkeypatch, rows, stop):
    """Of the calls of 1 ms with both copies, timed for half of 50 ms a row, any of the first five is stopped for longer: they take 1 ms."""
    from gpulab.timing import _copies

    for stopped in range(1, 6):
        clock, copies = Clock(), iter(range(1, 1000))

        def back(result, clock=clock, copies=copies, stopped=stopped):
            clock.now += stop if next(copies) == stopped else 0.0

        monkeypatch.setattr(_copies, "back_to_host", back)
        if rows == 1:
            taken = [gl.measure(_work(clock), clock=clock, deadline=0.05, transfer=True)]
        else:
            compared = gl.compare({"a": _work(clock), "b": _work(clock)}, clock=clock, deadline=0.05, transfer=True)
            taken = [row.measurement for row in compared.rows]
        assert [m.with_transfer_seconds for m in taken] == pytest.approx([1e-3] * rows)


@pytest.mark.parametrize(("seconds", "calls"), [(0.9, 5), (1.5, 5), (2.5, 4), (7.0, 3)])
def test_a_slow_function_is_called_no_more_than_it_must(seconds, calls):
    """With 2 s: the first call, one to warm up, then as many samples as three times 2 s hold, at most three (0.9, 1.5), 2 and 1."""
    clock = Clock()
    work = _work(clock, lambda _: seconds)
    m = gl.measure(work, clock=clock)
    assert work.calls == [calls]
    assert len(m.samples_seconds) == calls - 2


def test_rates_follow_from_the_median(monkeypatch):
    """2 MFLOP and 4 MB in a millisecond are 2 GFLOP/s and 4 GB/s."""
    clock = Clock()
    m = gl.measure(_work(clock), clock=clock, flops=2e6)
    assert m.flops_per_second == pytest.approx(2e9)
    assert m.bytes_per_second is None
    assert not m.has_note("implausible")


def test_impossible_rate_is_implausible():
    """A petaflop in a microsecond is beyond any device."""
    clock = Clock()
    m = gl.measure(_work(clock, lambda _: 1e-6), clock=clock, flops=1e15)
    assert m.has_note("implausible")


def test_function_that_only_starts_a_thread_is_implausible():
    """A call that hands 64 MB to a thread and returns is told by physics, for a CPU waits for nothing."""
    x = np.ones(4_000_000)
    free = threading.Semaphore(1)

    def work() -> None:
        np.sqrt(x, out=x)
        free.release()

    def start() -> None:
        if free.acquire(blocking=False):
            threading.Thread(target=work).start()

    m = gl.measure(start, nbytes=2 * x.nbytes, device="cpu", deadline=0.2)
    assert m.has_note("implausible")


def test_deadline_is_told_with_its_width():
    """Noise that needs more samples than the deadline allows ends with an interval and the note."""
    clock = Clock()
    rng = np.random.default_rng(0)
    m = gl.measure(_work(clock, lambda _: 1e-3 * (1 + 0.2 * rng.random())), clock=clock, deadline=0.2, relative_width=0.001)
    assert m.has_note("deadline")
    assert m.interval_seconds is not None
    assert clock.now < 0.4


def test_an_interval_as_narrow_as_asked_needs_no_later_deadline():
    """Twenty equal calls of 50 ms end at the deadline, too few to end for their precision: a point, so no note asks for more."""
    clock = Clock()
    m = gl.measure(_work(clock, lambda _: 0.05), clock=clock, deadline=1.0)
    assert m.interval_seconds == pytest.approx((0.05, 0.05))
    assert not m.has_note("deadline")


def test_few_slow_calls_have_no_interval():
    """Two-second calls within a deadline of two seconds: the median stands, the interval is refused with the reason."""
    clock = Clock()
    m = gl.measure(_work(clock, lambda _: 2.0), clock=clock)
    assert m.interval_seconds is None
    assert m.has_note("no-interval")
    assert m.median_seconds == pytest.approx(2.0)


def test_with_copies_is_measured_on_a_cpu_and_said_to_cross_no_link():
    """On a CPU both copies are real copies in main memory, so the time with them is longer, and a note says what they are."""
    x = np.ones(1_000_000)
    m = gl.measure(np.negative, x, transfer=True, deadline=0.3)
    assert m.with_transfer_seconds > 0
    assert any("main memory to main memory" in note.sentence for note in m.notes)


def test_copies_reach_the_function():
    """With copies asked, the function gets copies in the library and nesting of the originals; other arguments pass through."""
    seen = []
    clock = Clock()
    token = object()

    def work(data, other):
        clock.now += 1e-3
        seen.append((data, other))
        return data["a"]

    x = np.arange(3.0)
    gl.measure(work, {"a": x}, token, clock=clock, transfer=True, deadline=0.05)
    assert all(other is token for _, other in seen)
    assert seen[0][0]["a"] is x
    assert seen[-1][0]["a"] is not x
    np.testing.assert_array_equal(seen[-1][0]["a"], x)


def test_cold_cache_says_so():
    """Emptying the caches before each call is named in the label, and each sample is one call."""
    m = gl.measure(np.sum, np.ones(1000), cold=True, deadline=0.2)
    assert m.label == "sum (cold cache)"
    assert m.calls_per_sample == 1


@pytest.mark.parametrize("call", [1, 2, 5, 40])
def test_error_keeps_its_cause_and_says_which_call(call):
    """A function that raises in its fifth call: its own error is the cause, the call is named, earlier samples are kept."""
    clock = Clock()

    def seconds(n: int) -> float:
        if n == call:
            raise ValueError("no more paper")
        return 1e-3

    with pytest.raises(MeasurementError, match=rf"ValueError \(no more paper\) in call {call};") as caught:
        gl.measure(_work(clock, seconds), clock=clock)
    assert isinstance(caught.value.__cause__, ValueError)
    partial = caught.value.partial
    if call <= 2:  # the first call is no sample
        assert partial is None
    else:
        assert isinstance(partial, Measurement)
        assert 1 <= len(partial.samples_seconds) <= call - 2
        assert partial.samples_seconds == pytest.approx(np.full(len(partial.samples_seconds), 1e-3))
        assert partial.interval_seconds is None
        assert partial.has_note("no-interval")


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (MemoryError("Unable to allocate 8 TiB"), OutOfMemoryError),
        (RuntimeError("CUDA error: unspecified launch failure"), DeviceError),
        (RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"), OutOfMemoryError),
        (InputError("bad size"), InputError),
    ],
)
def test_memory_and_device_errors_keep_their_kind(raised, expected):
    """Running out of memory and a vanished device have errors of their own."""

    def work():
        raise raised

    with pytest.raises(expected):
        gl.measure(work, clock=Clock())


def test_interrupt_passes_and_frees_the_turn():
    """Ctrl-C in the middle of a measurement passes through; the next measurement takes its turn at once."""
    calls = [0]

    def work():
        calls[0] += 1
        if calls[0] == 20:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        gl.measure(work, deadline=0.2)
    m = gl.measure(lambda: None, deadline=0.1)
    assert not m.has_note("turn-taking")
    code = "from gpulab.timing import _lock\nwith _lock.turn('cpu', timeout=0) as t: print(t.taken)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "True"


def test_stop_keeps_what_was_reached():
    """Stop after the sixtieth question ends the sampling with its samples and a note."""
    clock, asked = Clock(), [0]

    def stop() -> bool:
        asked[0] += 1
        return asked[0] > 60

    m = gl.measure(_work(clock), clock=clock, stop=stop)
    assert m.has_note("stopped")
    assert 1 <= len(m.samples_seconds) < 60


def test_stop_before_anything_raises():
    """Stopped before the first call there is nothing to report."""
    work = _work(Clock())
    with pytest.raises(StoppedError, match="nothing to report"):
        gl.measure(work, clock=Clock(), stop=lambda: True)
    assert work.calls == [0]


@pytest.mark.parametrize("cold", [False, True])
def test_stop_before_the_first_sample_is_not_the_functions_fault(cold):
    """Stopped after the first call there is no sample; that is said, and no error is laid at the function's door."""
    clock = Clock()
    work = _work(clock)
    with pytest.raises(StoppedError, match="before work had one sample"):
        gl.measure(work, clock=clock, stop=lambda: work.calls[0] > 0, cold=cold)


def test_progress_rises_to_one():
    """Progress begins at 0, never falls, ends at 1, and has words."""
    clock, seen = Clock(), []
    gl.measure(_work(clock), clock=clock, progress=lambda fraction, text: seen.append((fraction, text)), transfer=True)
    fractions = [fraction for fraction, _ in seen]
    assert fractions[0] == 0.0
    assert fractions[-1] == 1.0
    assert fractions == sorted(fractions)
    assert all(text for _, text in seen)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"deadline": math.nan}, "deadline=nan"),
        ({"deadline": 0}, "deadline=0"),
        ({"deadline": -1.0}, "deadline=-1.0"),
        ({"relative_width": math.inf}, "relative_width=inf"),
        ({"relative_width": "2 %"}, "relative_width='2 %'"),
        ({"relative_width": True}, "relative_width=True"),
        ({"flops": -1}, "flops=-1"),
        ({"nbytes": math.nan}, "nbytes=nan"),
    ],
)
def test_bad_numbers_are_named(options, says):
    """Each bad number is named with its value, what was expected, and what to do."""
    with pytest.raises(InputError) as caught:
        gl.measure(len, (), **options)
    assert says in str(caught.value)
    assert "expected a finite" in str(caught.value)


@pytest.mark.parametrize("name", ["transfer", "cold", "progress", "stop", "conditions", "clock", "label"])
def test_bad_options_are_named(name):
    """A flag that is none, a callback that cannot be called, a clock without seconds: the function and the argument begin the sentence."""
    value = {"transfer": "yes", "cold": "yes", "clock": lambda: "noon"}.get(name, 5)
    with pytest.raises(InputError, match=rf"^measure: {name}(='yes'| gave a str|=5); expected"):
        gl.measure(len, (), **{name: value})


def test_warming_up_waits_for_the_device_and_ends():
    """Calls of 1 ms that leave 4 ms to the device, warmed for 5 % of 1 s: ten, each waited for; a GPU gets 0.1 s at most, a CPU 0.02."""
    from gpulab.devices import Device
    from gpulab.timing._job import Job

    for kind, deadline, calls in (("cuda", 1.0, 10), ("cuda", 100.0, 20), ("cpu", 100.0, 4), ("cpu", 0.01, 1)):
        clock, order = Clock(), []

        class Waited(Job):
            def wait(self, clock=clock, order=order):
                def wait():
                    clock.now += 4e-3
                    order.append("wait")

                return wait

        def work(clock=clock, order=order):
            clock.now += 1e-3
            order.append("call")

        Waited(work, (), Device(kind, 0 if kind == "cuda" else None), True, "it", clock, None).warm_up(deadline, None)
        assert order == ["call", "wait"] * calls


def test_with_both_copies_the_device_has_finished_whatever_comes_back():
    """A call of 1 ms that leaves 4 ms to the device and returns no array takes 5 ms; what else waits for a result is asked too."""
    from gpulab.devices import Device
    from gpulab.timing._job import Job
    from gpulab.timing._measure import Copies

    clock, finished = Clock(), []

    class Waited(Job):
        def wait(self):
            def wait():
                clock.now += 4e-3

            return wait

    def work():
        clock.now += 1e-3
        return "no array"

    job = Waited(work, (), Device("cuda", 0), True, "it", clock, None)
    assert Copies(job).run(3) == pytest.approx((15e-3, 15e-3))
    job.finish = finished.append
    Copies(job).run(2)
    assert finished == ["no array"] * 2


@pytest.mark.parametrize(("allocates", "noted"), [(True, 0), (False, 1)])
def test_a_function_that_copies_by_itself_worked_on_the_named_gpu(monkeypatch, allocates, noted):
    """Host arrays in and out prove nothing where the GPU handed out memory meanwhile; where it did not, a note says that it may rest."""
    from gpulab.devices import Device
    from gpulab.timing import _work
    from gpulab.timing._job import Job

    blocks = {0: 7}
    monkeypatch.setattr(_work, "allocations", lambda: dict(blocks))
    monkeypatch.setattr(_work._devices, "find", lambda name: Device("cuda", 0) if name == "cuda:0" else Device("cpu"))
    monkeypatch.setattr(Job, "wait", lambda job: lambda: None)

    def there_and_back(x):
        blocks[0] += allocates
        return x + 1

    job = Job(there_and_back, (np.ones(3),), Device("cuda", 0), True, "it", Clock(), None)
    job.first_call()
    assert [note.code for note in job.notes] == ["skipped"] * noted


@pytest.mark.parametrize(("fn", "says"), [("matmul", "gl.compare"), (3.0, "gl.measure(f, x)"), (np.ones(3), "gl.measure(f, x)")])
def test_what_is_no_function_is_refused(fn, says):
    """A result in place of a function is the usual slip, and the message says how to write it."""
    with pytest.raises(InputError) as caught:
        gl.measure(fn)
    assert says in str(caught.value)


def test_unknown_device_is_refused_before_the_call():
    """A device that is not there is told before anything runs."""
    work = _work(Clock())
    with pytest.raises(DeviceError):
        gl.measure(work, device="cuda:99")
    assert work.calls == [0]


def test_result_survives_json():
    """What was measured comes back from JSON as it was, notes and all."""
    clock = Clock()
    m = gl.measure(_work(clock, lambda n: 0.05 if n == 1 else 1e-3), clock=clock, flops=1e3)
    assert Measurement.from_dict(json.loads(json.dumps(m.to_dict()))) == m


@settings(max_examples=40, deadline=None)
@given(
    first=st.floats(min_value=1e-7, max_value=1.0),
    later=st.lists(st.floats(min_value=3e-4, max_value=0.5), min_size=1, max_size=5),
    transfer=st.booleans(),
)
def test_any_times_give_a_consistent_result(first, later, transfer):
    """Whatever the calls take: the median lies among the samples and in its interval, and JSON keeps it."""
    clock = Clock()
    m = gl.measure(_work(clock, lambda n: first if n == 1 else later[n % len(later)]), clock=clock, deadline=0.5, transfer=transfer)
    assert m.first_call_seconds == pytest.approx(first)
    assert m.samples_seconds.min() <= m.median_seconds <= m.samples_seconds.max()
    if m.interval_seconds is not None:
        assert m.interval_seconds[0] <= m.median_seconds * (1 + 1e-9)
        assert m.interval_seconds[1] >= m.median_seconds * (1 - 1e-9)
    assert Measurement.from_dict(json.loads(json.dumps(m.to_dict()))) == m


def test_quick_function_costs_little_beside_the_sampling():
    """Around the sampling of a call of a microsecond no more than 0.3 s of CPU time are spent.

    That of this thread: a pool of another that still spins is no cost of the measurement. The least of three: where a neighbour empties
    the caches, the same takes longer.
    """
    gl.measure(len, (), deadline=0.05)  # first-time costs: versions, names

    def spent() -> float:
        before = time.thread_time()
        gl.measure(len, (), deadline=0.2)
        return time.thread_time() - before

    assert min(spent() for _ in range(3)) < 0.2 + 0.3


def test_device_is_found_in_arguments_closures_and_globals():
    """Arrays say where the work is: among the arguments, nested, in a closure, in a partial, in a bound method."""
    import functools

    import torch

    x = torch.ones(3)

    class Holder:
        def run(self):
            return x

    assert str(device_of(len, (x,))) == "cpu"
    assert str(device_of(len, ([{"a": x}],))) == "cpu"
    assert str(device_of(lambda: x + 1)) == "cpu"
    assert str(device_of(functools.partial(torch.add, x))) == "cpu"
    assert str(device_of(functools.partial(lambda y: x + y, 1))) == "cpu"
    assert str(device_of(lambda: lambda: x + 1)) == "cpu"
    assert str(device_of(lambda y=x: y)) == "cpu"
    assert str(device_of(functools.partial(max, key=x))) == "cpu"
    assert str(device_of(torch.nn.Linear(2, 2))) == "cpu"
    assert str(device_of(Holder().run)) == "cpu"
    assert device_of(lambda: None) is None
    assert device_of(len, ("text", 3)) is None


@pytest.mark.gpu
def test_gpu_is_found_and_waited_for():
    """A product on the GPU takes far longer to finish than to launch, and no rate is impossible."""
    import torch

    x = torch.randn(4096, 4096, device="cuda")
    m = gl.measure(lambda: x @ x, flops=2.0 * 4096**3)
    assert m.device == "cuda:0"
    assert m.launch_seconds < 0.5 * m.median_seconds
    assert not m.has_note("implausible")


@pytest.mark.gpu
def test_gpu_that_only_shows_in_the_result_is_found():
    """A function without arrays in sight that makes its own on the GPU is found through its result."""
    import torch

    m = gl.measure(lambda: torch.ones(1000, device="cuda").sum(), deadline=0.3)
    assert m.device == "cuda:0"


@pytest.mark.gpu
def test_gpu_with_both_copies():
    """Host inputs are placed on the device; with both copies the call takes longer than alone."""
    import torch

    x = torch.randn(2000, 2000)
    m = gl.measure(torch.mm, x, x, device="cuda", transfer=True, deadline=0.5)
    assert m.with_transfer_seconds > m.median_seconds
    cold = gl.measure(torch.mm, x.cuda(), x.cuda(), cold=True, deadline=0.5)
    assert cold.label.endswith("(cold cache)")


@pytest.mark.gpu
def test_host_inputs_on_a_named_gpu_are_told():
    """Work that stays on the host though a GPU was named gets a note instead of a false label."""
    import torch

    m = gl.measure(torch.add, torch.ones(10), 1, device="cuda", deadline=0.2)
    assert any("nothing shows that cuda:0" in note.sentence for note in m.notes)


@pytest.mark.gpu
def test_gpu_counters_are_read():
    """NVML's counters are there on a machine with a driver and pynvml."""
    pytest.importorskip("pynvml")
    from gpulab.devices import Device, conditions

    first = conditions.read(Device("cuda", 0))
    second = conditions.read(Device("cuda", 0), first)
    assert second.gpu is not None
    assert second.gpu.clock_hertz > 1e8
    assert second.gpu.neighbours is None or second.gpu.neighbours >= 0


def test_device_that_only_shows_in_the_result_takes_its_turn(monkeypatch):
    """Where the first result shows another device than the arguments, that device's turn is taken too, and it is waited for."""
    from gpulab.devices import Device
    from gpulab.timing import _job, _work

    waited, held = [], []
    hidden = Device("xpu", 3)
    monkeypatch.setattr(_work, "device_of_result", lambda result: hidden)
    monkeypatch.setattr(_work, "waiter", lambda device: (lambda: waited.append(device)) if device == hidden else _work.nothing)
    monkeypatch.setattr(_job._lock, "turn", _recording(held, _job._lock.turn))
    monkeypatch.setattr(_job.Job, "environment", lambda job: gl.devices.environment("cpu"))
    m = gl.measure(lambda: 1, deadline=0.05)
    assert m.device == "xpu:3"
    assert held == ["cpu", "xpu-3"]
    assert len(waited) > 3


def _recording(names: list, turn):
    def recorded(name, **options):
        names.append(name)
        return turn(name, **options)

    return recorded


def test_neighbour_is_noted():
    """A measurement that waited for another one says so; the other one ends when it has heard of the wait."""
    from gpulab.timing import _lock

    inside, heard = threading.Event(), threading.Event()

    def hold() -> None:
        with _lock.turn("cpu"):
            inside.set()
            heard.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    inside.wait()
    m = gl.measure(lambda: None, deadline=0.05, progress=lambda fraction, text: heard.set() if text.startswith("waiting") else None)
    thread.join()
    assert heard.is_set()
    (note,) = (note for note in m.notes if note.code == "turn-taking")
    assert "waited" in note.sentence


def test_table_has_rates_by_hand():
    """2 GFLOP and 5 MB in a millisecond are 2 TFLOP/s and 5 GB/s; what is not known has no row."""
    clock = Clock(step=1e-5)  # calls of 1 us are too short for it
    m = gl.measure(_work(clock, lambda _: 1e-6), clock=clock, deadline=0.05)
    m = dataclasses.replace(m, median_seconds=1e-3, flops=2e9, nbytes=5e6)
    rows = dict(m.table()[1])
    assert (rows["arithmetic"], rows["memory traffic"]) == ("2.00 TFLOP/s", "5.00 GB/s")
    assert rows["device finished (median)"].startswith("1.00 ms [")
    assert rows["samples"] == f"{len(m.samples_seconds)} of {m.calls_per_sample} calls each"
    assert [name for name in rows if name.startswith("note: ")] == [f"note: {note.code}" for note in m.notes]
    assert m.has_note("too-short")
    rows = dict(dataclasses.replace(m, flops=None, nbytes=None).table()[1])
    assert not {"arithmetic", "memory traffic"} & set(rows)
