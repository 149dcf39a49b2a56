"""gl.measure: the three times, the first call, notes and errors, on a clock that only the test moves."""

from __future__ import annotations

import dataclasses
import json
import math
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gpulab as gl
from gpulab import _backends
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


@pytest.mark.parametrize("run", [gl.measure, gl.compare])
def test_an_iterator_that_runs_out_is_an_error_like_any_other(run):
    """The 41st batch is not there: StopIteration is the cause, and does not pass as the end of somebody's loop."""
    clock = Clock()
    batches = iter(range(40))

    def load(_):
        clock.now += 1e-3
        return next(batches)

    with pytest.raises(MeasurementError, match=r"measure: load raised StopIteration \(.*\) in call \d+; expected it to return") as caught:
        run(load, 1, clock=clock)
    assert isinstance(caught.value.__cause__, StopIteration)
    assert caught.value.partial.samples_seconds == pytest.approx(1e-3)


@pytest.mark.parametrize("run", [gl.measure, gl.compare])
def test_an_error_among_the_copies_leaves_the_times_of_the_call_alone(run):
    """1 ms, with both copies 3 ms (told by the array, which is a copy then), and the ninth of those raises: what is kept took 1 ms."""
    clock, x, copied = Clock(), np.ones(4), [0]

    def work(a):
        copied[0] += a is not x
        if copied[0] == 9:
            raise ValueError("no more paper")
        clock.now += 1e-3 if a is x else 3e-3
        return a

    copied[0] = -1 if run is gl.compare else 0  # the float64 run has a copy of its own
    with pytest.raises(MeasurementError, match=r"ValueError \(no more paper\) in call \d+;") as caught:
        run(work, x, clock=clock, transfer=True)
    samples = caught.value.partial.samples_seconds
    assert samples == pytest.approx(np.full(len(samples), 1e-3))
    assert len(samples) >= 60  # those before the copies
    assert f"{len(samples)} samples taken before are in .partial" in str(caught.value)


@pytest.mark.parametrize(("wrong", "kept"), [(2, "no sample was finished before."), (4, "1 sample taken before is in .partial.")])
def test_an_error_says_how_many_samples_were_taken_before_it(wrong, kept):
    """Each call takes a second and is a sample, but the first and that of the warm-up."""
    clock, calls = Clock(), [0]

    def work():
        calls[0] += 1
        clock.now += 1.0
        if calls[0] == wrong:
            raise ValueError("no more paper")

    with pytest.raises(MeasurementError, match=r"ValueError \(no more paper\)") as caught:
        gl.measure(work, clock=clock, device="cpu")
    assert str(caught.value).endswith(kept)


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

    m = gl.measure(_work(clock), clock=clock, stop=stop, transfer=True)
    assert m.has_note("stopped")
    assert 1 <= len(m.samples_seconds) < 60
    assert m.with_transfer_seconds is None


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

        job = Waited(work, (), Device(kind, 0 if kind == "cuda" else None), True, "it", clock, None)
        job.warm_up(deadline, None)
        assert order == ["call", "wait"] * calls
        assert (job.calls, job.warm_seconds, list(job.kept.calls)) == (calls, pytest.approx(5e-3), [])  # no call of it is a sample


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
    assert str(device_of(torch.no_grad()(lambda: x.mul_(2)))) == "cpu"  # what is decorated shows nothing in its result either
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


@pytest.mark.parametrize(
    ("named", "arrays", "result", "takes"),
    [
        ("cpu", "cuda", "cuda", 5e-3),  # only started, had nothing waited for it
        ("cpu", "cuda", None, 5e-3),  # in place: the arguments tell
        ("cpu", "cuda", "cpu", 1e-3),  # what is in main memory again has been waited for
        ("cpu", "cpu", "cpu", 1e-3),
        ("cuda", "cuda", "cuda", 5e-3),
        ("cpu", "meta", "meta", 1e-3),  # no device of this machine
    ],
)
def test_another_device_than_the_named_one_is_waited_for(monkeypatch, named, arrays, result, takes):
    """A call of 1 ms that leaves 4 ms to the GPU its arrays are on: 5 ms, whatever was named; a note says whose they are."""
    from gpulab.devices import Device
    from gpulab.timing import _work
    from gpulab.timing._job import Job

    places = {"cpu": Device("cpu"), "cuda": Device("cuda", 0)}

    def find(name: str) -> Device:
        if name not in places:
            raise DeviceError(f"{name} is not on this machine")
        return places[name]

    def spend(seconds: float) -> None:
        clock.now += seconds

    clock = Clock()
    monkeypatch.setattr(_work, "arrays_in", lambda value: [value] if isinstance(value, str) else value if isinstance(value, tuple) else [])
    monkeypatch.setattr(_work._backends, "backend_of", lambda array: SimpleNamespace(name="torch", device_of=lambda array: array))
    monkeypatch.setattr(_work._devices, "find", find)
    monkeypatch.setattr(_work, "array_bytes", lambda *values: 0)
    monkeypatch.setattr(_work, "waiter", lambda device: _work.nothing if device.is_cpu else lambda: spend(4e-3))

    def work(_array):
        spend(1e-3)
        return result

    job = Job(work, (arrays,), places[named], True, "it", clock, None)
    job.first_call()
    assert job.first_seconds == pytest.approx(takes)
    assert job.loops().work(1) == pytest.approx((1e-3, takes))
    told = [note.sentence for note in job.notes if "was named" in note.sentence]
    assert len(told) == (named == "cpu" and takes == 5e-3)
    assert all("on cuda:0, and cpu was named" in sentence and "gl.to_device(x, 'cpu')" in sentence for sentence in told)


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
def test_arrays_on_a_gpu_that_was_not_named_are_waited_for():
    """A product of 4,096 takes 1 ms and more on any GPU and is started in some 10 us: named "cpu" it takes as long, and a note says it."""
    import torch

    x = torch.randn(4096, 4096, device="cuda")
    honest, misnamed = gl.measure(torch.mm, x, x, deadline=0.5), gl.measure(torch.mm, x, x, device="cpu", deadline=0.5)
    assert misnamed.median_seconds > honest.median_seconds / 2
    assert any("the arrays are on cuda:0, and cpu was named" in note.sentence for note in misnamed.notes)


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


def test_warming_up_makes_fifty_calls_at_most():
    """Calls of no time at all would otherwise be made for as long as the machine's clock says; stopped, it makes none."""
    from gpulab.devices import Device
    from gpulab.timing._job import Job

    for stop, calls in ((None, 50), (lambda: True, 0)):
        made = []
        Job(lambda made=made: made.append(1), (), Device("cpu"), True, "it", Clock(), None).warm_up(100.0, stop)
        assert len(made) == calls


def test_warming_up_takes_as_long_as_it_should_by_any_clock():
    """Calls of 3 ms on a CPU, until 20 ms have passed: seven; a clock that begins at a thousand seconds changes nothing."""
    from gpulab.devices import Device
    from gpulab.timing._job import Job

    for begin in (0.0, 1000.0):
        clock = Clock()
        clock.now = begin

        def spend(clock: Clock = clock) -> None:
            clock.now += 3e-3

        job = Job(spend, (), Device("cpu"), True, "it", clock, None)
        job.warm_up(100.0, None)
        assert job.calls == 7


def test_the_first_call_ends_when_the_device_does(monkeypatch):
    """A call of 1 ms leaves 4 ms to the device: 5, also where only its result shows the device; 2 more until that result is there."""
    from gpulab.devices import Device
    from gpulab.timing import _work
    from gpulab.timing._job import Job, _backends

    clock = Clock()

    def spend(seconds: float) -> None:
        clock.now += seconds

    gpu = Device("cuda", 0)
    monkeypatch.setattr(_work, "waiter", lambda device: _work.nothing if device.is_cpu else lambda: spend(4e-3))
    named = Job(lambda: spend(1e-3), (), gpu, True, "it", clock, None)
    named.first_call()
    assert (named.first_seconds, named.calls) == (pytest.approx(5e-3), 1)
    monkeypatch.setattr(_work, "device_of_result", lambda result, named=None: gpu)
    found = Job(lambda: spend(1e-3), (), Device("cpu"), False, "it", clock, None)
    found.first_call()
    assert (found.first_seconds, found.device) == (pytest.approx(5e-3), gpu)
    monkeypatch.setattr(_backends, "waits_for", lambda result: lambda result: spend(2e-3))
    awaited = Job(lambda: spend(1e-3), (), gpu, True, "it", clock, None)
    awaited.first_call()
    assert awaited.first_seconds == pytest.approx(7e-3)


def test_limits_of_a_phase_and_their_edges():
    """A width of 1 and a deadline of a day are the most; of the part from 0.2 to 0.6 the middle is 0.4, and its ends are the ends."""
    from gpulab.timing._job import Limits

    told = []
    limits = Limits.given("measure", 1, 86_400, lambda *step: told.append(step), None)
    part = limits.part(0.2, 0.6, 7.0)
    for fraction in (0.5, -1.0, 2.0):
        part.say(fraction, "on the way")
    assert told == [(pytest.approx(0.4), "on the way"), (0.2, "on the way"), (pytest.approx(0.6), "on the way")]
    assert (part.deadline, part.relative_width, limits.stopped()) == (7.0, 1.0, False)
    with pytest.raises(InputError, match=r"deadline=86401; expected seconds, up to 86400 \(a day\)"):
        Limits.given("measure", 1, 86_401, None, None)


def test_kept_samples_of_the_newest_size():
    """Of samples of 2, 1 and 2 calls those of two, for each call: (1, 2) and (3, 4) over 2."""
    from gpulab.timing._job import Kept

    kept = Kept()
    for calls, launched, finished in ((2, 1.0, 2.0), (1, 9.0, 9.0), (2, 3.0, 4.0)):
        kept.add(calls, launched, finished)
    calls, launches, samples = kept.of_last_size()
    assert (calls, launches.tolist(), samples.tolist()) == (2, [0.5, 1.5], [1.0, 2.0])


def test_an_error_before_any_call_says_so():
    """As where an argument cannot be copied to the device."""
    from gpulab.devices import Device
    from gpulab.timing._job import Job, translated

    with pytest.raises(MeasurementError) as caught, translated(Job(len, (), Device("cpu"), True, "it", Clock(), None)):
        raise ValueError("no paper")
    assert str(caught.value) == (
        "measure: it raised ValueError (no paper) before the first call; expected it to return every time. "
        "Mend it and measure again; no sample was finished before."
    )


def test_the_collector_is_calm_while_it_measures_and_as_before_after():
    """What was imported is not walked meanwhile; what a caller has frozen stays so."""
    import gc

    seen = []
    gc.unfreeze()
    gl.measure(lambda: seen.append(gc.get_freeze_count()), deadline=0.01)
    assert min(seen) > 0
    assert gc.get_freeze_count() == 0
    gc.freeze()
    try:
        gl.measure(len, (), deadline=0.01)
        assert gc.get_freeze_count() > 0
    finally:
        gc.unfreeze()


async def _promise():
    return 1


async def _promises():
    yield 1


@pytest.mark.parametrize(
    ("result", "what", "way"),
    [
        ((i for i in range(3)), "generator", "lambda: list(it(...))"),
        (map(abs, [1]), "map", "lambda: list(it(...))"),
        (filter(None, [1]), "filter", "lambda: list(it(...))"),
        (_promises(), "generator", "a function that runs it to its end"),
        (_promise(), "coroutine", "lambda: asyncio.run(it(...)), outside a notebook's own loop"),
    ],
    ids=["generator", "map", "filter", "asynchronous generator", "coroutine"],
)
def test_a_promise_of_work_is_refused(result, what, way):
    """Nothing was computed; how to have it computed is said, and a coroutine is closed, or Python would warn that nobody awaited it."""
    import inspect

    from gpulab.timing import _work

    with pytest.raises(InputError) as caught:
        _work.refuse_promise("it", result)
    assert str(caught.value) == (
        f"measure: it returned a {what}, so its work was not done; expected a function that does it. Measure {way}."
    )
    if what == "coroutine":
        assert inspect.getcoroutinestate(result) == inspect.CORO_CLOSED


def test_bytes_of_arrays_are_counted_once():
    """Twelve and 24 bytes: the same array twice counts once, a broadcast axis has length 1, and a sparse tensor has no strides."""
    import torch

    from gpulab.timing import _work

    x, wide = torch.ones(3), np.broadcast_to(np.ones((1, 3)), (100, 3))
    assert _work.array_bytes((x, x), [wide], {"s": torch.eye(3).to_sparse()}, 5) == 12 + 24
    assert _work.dtypes_in((x, wide), [np.ones(2, np.int8)], x) == ("float32", "float64", "int8")


def test_a_gpu_is_found_by_its_allocations(monkeypatch):
    """Of two GPUs the second has handed out more blocks than before; without CUDA in use nobody is asked."""
    import torch

    from gpulab.timing import _work

    assert _work.allocations() == {} or torch.cuda.is_initialized()
    blocks = {0: 7, 1: 8}
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "memory_stats", lambda index: {"allocation.all.allocated": blocks[index]})
    monkeypatch.setattr(_work._devices, "find", lambda name: name)
    assert _work.allocations() == blocks
    assert _work.newly_used(blocks) is None
    assert _work.newly_used({0: 7, 1: 7}) == "cuda:1"
    assert _work.newly_used({0: 7}) == "cuda:1"


def test_an_array_elsewhere_decides_the_device(monkeypatch):
    """One tensor beside those of the host is enough; the arguments come before what the function holds."""
    import torch

    from gpulab.devices import Device
    from gpulab.timing import _work

    here, there = torch.ones(1), torch.ones(1, device="meta")
    monkeypatch.setattr(_work._devices, "find", lambda name: Device("cpu") if name == "cpu" else Device("xpu", 1))
    assert str(device_of(len, (here, there))) == "xpu:1"
    assert str(device_of(lambda: there, (here,))) == "cpu"
    assert str(device_of(lambda: there)) == "xpu:1"
    assert str(_work.device_of_result({"y": [here]})) == "cpu"


class _OfNumba:
    """An array on a GPU as Numba's own are: no library that gpulab has an adapter for, and the interface on its type."""

    @property
    def __cuda_array_interface__(self):
        return {"shape": (4,), "typestr": "<f4", "data": (4096, False), "version": 3}


def test_arrays_of_a_gpu_that_no_adapter_knows_are_waited_for(monkeypatch):
    """A kernel of 4 ms that is started in 1 ms on Numba's own arrays takes 5 ms, wherever they show; without CUDA nothing is waited for."""
    from gpulab.devices import Device
    from gpulab.timing import _work
    from gpulab.timing._job import Job

    clock, there, here = Clock(), _OfNumba(), np.ones(4)

    def start(*_arrays):
        clock.now += 1e-3

    def wait():
        clock.now += 4e-3

    monkeypatch.setattr(_work, "waiter", lambda device: _work.nothing if device.is_cpu else wait)
    monkeypatch.setattr(_work._devices, "default", lambda: Device("cuda", 0))
    assert str(device_of(start, (1.0, there))) == "cuda:0"
    assert str(device_of(start, (here, [{"x": there}]))) == "cuda:0"
    assert str(device_of(lambda: start(there))) == "cuda:0"
    assert str(device_of(len, (here,))) == "cpu"
    assert device_of(lambda: _OfNumba) is None  # a class is no array
    job = Job(lambda: start() or (there,), (), Device("cpu"), False, "a launch that returns its arrays", clock, None)
    job.first_call()
    assert str(job.device) == "cuda:0"
    assert job.loops().work(1) == pytest.approx((1e-3, 5e-3))
    named = Job(start, (there,), Device("cpu"), True, "named otherwise", clock, None)
    named.first_call()
    assert named.loops().work(1) == pytest.approx((1e-3, 5e-3))
    assert any("on cuda:0, and cpu was named" in note.sentence for note in named.notes)
    second = Job(start, (there,), Device("cuda", 1), True, "on the second of two GPUs, which such an array does not tell", clock, None)
    second.first_call()
    assert (second.elsewhere, second.notes) == (None, [])
    monkeypatch.setattr(_work._devices, "default", lambda: Device("cpu"))
    assert device_of(start, (there,)) is None


def test_labels_of_functions():
    """The innermost of partials, "call" for what has no name of its own, the type's name where asking fails."""
    import functools

    from gpulab.timing import _work

    class Odd:
        def __getattr__(self, name):
            raise RuntimeError(name)

    assert [_work.label_of(fn) for fn in (functools.partial(functools.partial(np.sort)), lambda: 1, Odd())] == ["sort", "call", "Odd"]


def _sampled(**changes):
    """Three samples of 1 s that fill their time."""
    from gpulab.timing.sampling import Sampled

    fields = {
        "samples_seconds": np.ones(3), "launch_seconds": np.ones(3), "sample_starts_seconds": np.arange(3.0),
        "interval_seconds": (0.9, 1.1), "calls_per_sample": 1, "stopped_by": "precision", "no_interval_reason": None,
        "overhead_seconds": 0.0,
    }  # fmt: skip
    return Sampled(**{**fields, **changes})


@pytest.mark.parametrize(
    ("changes", "code", "says"),
    [
        ({}, None, ""),
        ({"stopped_by": "stopped"}, "stopped", "sampling was stopped after 3 samples; the figures are of these. Run it again for more."),
        (
            {"stopped_by": "stopped", "samples_seconds": np.ones(1), "sample_starts_seconds": np.zeros(1)}, "stopped",
            "sampling was stopped after 1 sample; the figures are of these. Run it again for more.",
        ),
        (
            {"interval_seconds": None, "no_interval_reason": "3 are too few."}, "no-interval",
            "3 are too few. The median stands without an interval; measure again, longer or on a quieter machine.",
        ),
        (
            {"interval_seconds": None}, "no-interval",
            "the samples allow none. The median stands without an interval; measure again, longer or on a quieter machine.",
        ),
        ({"stopped_by": "deadline", "interval_seconds": (0.75, 1.0)}, None, ""),  # just as narrow as asked
        (
            {"stopped_by": "deadline", "interval_seconds": (0.75, 1.25)}, "deadline",
            "after 2.00 s the interval is 50.0 % wide, 25.0 % were asked. Give a later deadline, or ask for less.",
        ),
        (
            {"calls_per_sample": 4}, "too-short",
            "one call is too short for the clock, so each sample is the mean of 4 calls; the interval is of that mean. "
            "Give it more work per call to see single calls.",
        ),
    ],
)  # fmt: skip
def test_notes_of_the_samples_by_hand(changes, code, says):
    """Asked for 25 % in 2 s."""
    from gpulab.devices import Device
    from gpulab.timing import _notes
    from gpulab.timing._job import Job, Limits

    job = Job(len, (), Device("cpu"), True, "it", Clock(), None, first_seconds=1.0)
    job.kept.add(1, 1.0, 1.0)
    notes = _notes.of_sampling(job, _sampled(**changes), Limits(0.25, 2.0, None, None), None, None)
    assert [(note.code, note.sentence) for note in notes] == ([(code, says)] if code else [])


def test_gaps_between_samples_by_hand():
    """Samples of 1 s and 0.5 of the loop, two calls each, after 3, 5 and 2 s: 0, 2 and none; thinned out, beyond three usual steps."""
    from gpulab.timing import _notes

    starts = {"samples_seconds": np.ones(4), "sample_starts_seconds": np.array([0.0, 3.0, 8.0, 10.0]), "calls_per_sample": 2}
    assert _notes._gaps(_sampled(**starts, overhead_seconds=0.5)).tolist() == [0.0, 2.0, 0.0]
    starts["sample_starts_seconds"] = np.array([0.0, 1.0, 2.0, 12.0])
    assert _notes._gaps(_sampled(**starts, kept_every=2)).tolist() == [0.0, 0.0, 7.0]
    assert len(_notes._gaps(_sampled(sample_starts_seconds=np.zeros(1)))) == 0


@pytest.mark.parametrize(
    ("turn", "says"),
    [
        ((0.0, True), None),
        ((1.5, True), "waited 1.50 s for another gpulab measurement on cpu; they did not overlap."),
        (
            (30.0, False),
            "another gpulab measurement held cpu for more than 30 s, so this one ran beside it. Measure again when it is done.",
        ),
        ((0.0, False, "no room"), "no turn could be taken on cpu (no room); see to it that no neighbour measures at the same time."),
    ],
)
def test_notes_of_a_turn(turn, says):
    """At once, after a wait, not at all, and not possible."""
    from gpulab.timing import _lock, _notes

    note = _notes.of_turn(_lock.Turn(*turn), "cpu")
    assert (note and (note.code, note.sentence)) == (says and ("turn-taking", says))


def test_the_working_set_by_hand():
    """What is stated; else the arrays in and out if they are fewer than the traffic; without arrays the traffic; without that nothing."""
    from gpulab.devices import Device
    from gpulab.timing import _notes
    from gpulab.timing._job import Job

    def of(args=(), **fields):
        return _notes.working_set(Job(len, args, Device("cpu"), True, "it", Clock(), None, **fields))

    x = np.ones(10)
    assert of((x,), nbytes=1e3, working_set_bytes=5.0) == 5.0
    assert of((x,), nbytes=1e3, result_bytes=40) == 120.0
    assert of((x,), nbytes=100.0, result_bytes=40) == 100.0
    assert of(nbytes=1e3) == 1e3
    assert of((x,), flops=1.0) is None


def test_the_working_set_counts_what_a_function_holds_and_an_array_in_place_once():
    """Three arrays of 8,000 bytes that a line names are its working set, not the result alone; one changed in place is one array."""
    import torch

    from gpulab.devices import Device
    from gpulab.timing import _notes
    from gpulab.timing._job import Job

    def of(fn, *args, nbytes=1e9):
        job = Job(fn, args, Device("cpu"), True, "it", Clock(), None, nbytes=nbytes)
        job.first_call()
        return _notes.working_set(job)

    a, b, out = np.ones(1000), np.ones(1000), np.empty(1000)
    assert of(lambda: a + b) == 24_000
    assert of(lambda: np.add(a, b, out=out)) == 24_000
    assert of(lambda: a + b, nbytes=24_000.0) == of(np.add, a, b, nbytes=24_000.0) == 24_000
    x = torch.ones(1000)
    assert of(lambda v: v.add_(1), x) == of(x.add_, 1) == 4_000
    assert of(np.add, a, b, out) == 24_000
    assert of(torch.nn.Linear(100, 10, bias=False), torch.ones(1, 100)) == 4 * (100 * 10 + 100 + 10)


def test_the_gravest_note_comes_first_and_none_twice():
    """As DESIGN lists them: what makes a figure wrong before what is good to know."""
    from gpulab.evidence import Note
    from gpulab.timing import _notes

    notes = [Note("skipped", "a"), Note("unstable", "b"), Note("implausible", "c"), Note("unstable", "b"), Note("unstable", "d")]
    assert [note.sentence for note in _notes.ordered(notes)] == ["c", "b", "d", "a"]


def test_a_measurement_in_one_line_and_equal_to_itself():
    """The time, its interval, how many samples and the notes; without time no rates; another kind of thing is never equal."""
    clock = Clock()
    m = gl.measure(_work(clock, lambda n: 0.05 if n == 1 else 2**-10), clock=clock)
    n = len(m.samples_seconds)
    assert repr(m) == f"<work on cpu: 977 us [977 us, 977 us], n = {n}, notes: slow-first-call>"
    assert repr(dataclasses.replace(m, interval_seconds=None, notes=())) == f"<work on cpu: 977 us (no interval), n = {n}>"
    wide = dataclasses.replace(m, median_seconds=2.0, interval_seconds=(1.0, 4.0), flops=3.0, nbytes=5.0)
    assert (wide.relative_width, wide.flops_per_second, wide.bytes_per_second) == (1.5, 1.5, 2.5)
    nothing = dataclasses.replace(wide, median_seconds=0.0, interval_seconds=None)
    assert (nothing.relative_width, nothing.flops_per_second, nothing.bytes_per_second) == (None, None, None)
    assert (m == dataclasses.replace(m), m == wide, m == "work", hash(m) == hash(dataclasses.replace(m))) == (True, False, False, True)
    assert dict(wide.table()[1])["with both copies"] == "not asked"
    assert dict(dataclasses.replace(wide, with_transfer_seconds=2.0).table()[1])["with both copies"] == "2.00 s"
    assert dict(wide.table()[1])["samples"] == f"{n} of 1 call each"


class Later:
    """Stands for an array that is there a second after it was asked for, on the clock of the test."""


def test_every_call_of_a_batch_is_waited_for(monkeypatch):
    """With an injected clock: returned after 1, done after 4 seconds, first call and samples alike."""
    now = [0.0]

    def work():
        now[0] += 1
        return Later()

    def finish(result):
        assert type(result) is Later
        now[0] += 3

    monkeypatch.setattr(_backends, "waits_for", lambda result: finish if type(result) is Later else None)
    m = gl.measure(work, deadline=100, clock=lambda: now[0])
    assert (m.first_call_seconds, m.launch_seconds, m.median_seconds) == (4, 1, 4)
    cold = gl.measure(work, deadline=100, clock=lambda: now[0], cold=True)
    assert (cold.launch_seconds, cold.median_seconds) == (1, 4)
