"""What bad input gets: one sentence of ours that says what, what was expected and what to do; and everything stays usable."""

from __future__ import annotations

import asyncio
import gc
import itertools
import json
import math
import os
import pathlib
import threading
import types
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import gpulab as gl
from gpulab import _given
from gpulab.errors import GpulabError, InputError, MeasurementError, StoppedError, message_of, shown
from gpulab.recorder import _run


@pytest.fixture(autouse=True)
def _private_turns(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody else's measurement is waited for."""
    monkeypatch.setenv("GPULAB_LOCK_DIR", str(tmp_path))


# Longer than this is no sentence any more, whatever was given.
LONGEST_MESSAGE = 800


class BrokenRepr:
    """An object whose text fails."""

    def __repr__(self) -> str:
        raise RuntimeError("no text")


class BrokenTruth:
    """An object that is neither true nor false nor a number, and equal to nothing."""

    def __bool__(self) -> bool:
        raise RuntimeError("no truth")

    def __float__(self) -> float:
        raise RuntimeError("no number")

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("no equality")

    __hash__ = object.__hash__


class SilentError(Exception):
    """An exception whose text fails."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


# Nothing that any of the functions below could take as a sensible value.
JUNK = st.one_of(
    st.sampled_from(
        [
            True, False, math.nan, math.inf, -math.inf, -1, -0.5, 10**400, -(10**400), 2**80, b"bytes", "", "\0", "a" * 5000, "nan",
            (), [], {}, {"a": 1}, object(), object, 1j, range(0), Ellipsis, NotImplemented, Fraction(-1, 3), Decimal("NaN"),
            np.array([]), np.array([1, 2]), np.array(math.nan), torch.tensor([1.0, 2.0]), np.datetime64("2020"),
            BrokenRepr(), BrokenTruth(), "cuda:99", "mps:7", torch.int8,
        ]
    ),
    st.text(max_size=8).map("junk".__add__),
    st.integers(max_value=-1),
    st.floats(max_value=-1e-9),
)  # fmt: skip
ADD = gl.workloads.get("add")
LINK = gl.transfer.link("pcie4")
H200 = gl.transfer.processor("nvidia-h200")
X = np.ones(8, dtype=np.float32)
FOUR = [1024, 2048, 4096, 8192]
FIT = gl.transfer.fit(FOUR, [1e-5, 2e-5, 4e-5, 8e-5])
LAYER = torch.nn.Linear(4, 4)
XT = torch.ones(2, 4)
PREDICTION = gl.memory.predict(LAYER, XT, loss=torch.sum)


def _nothing(*args: Any) -> None:
    """The measured work."""


def among_new_objects(call: Any) -> Any:
    """Call with the garbage collector's list of objects empty: the millions of a long test session are looked through elsewhere."""
    gc.freeze()
    try:
        return call()
    finally:
        gc.unfreeze()


# Name -> a call with one junk argument, whose every outcome is an error of ours or a result. None of them measures for long.
CALLS: dict[str, Any] = {
    "measure fn": lambda v: gl.measure(v if not callable(v) else 5),
    "measure device": lambda v: gl.measure(_nothing, device=v, deadline=1e-3),
    "measure relative_width": lambda v: gl.measure(_nothing, relative_width=v, deadline=1e-3),
    "measure deadline": lambda v: gl.measure(_nothing, deadline=v),
    "measure flops": lambda v: gl.measure(_nothing, flops=v if v is not False else -1, deadline=1e-3),
    "measure clock": lambda v: gl.measure(_nothing, clock=v if not callable(v) else lambda: v, deadline=1e-3),
    "measure stop": lambda v: gl.measure(_nothing, stop=v if not callable(v) else 5, deadline=1e-3),
    "measure progress": lambda v: gl.measure(_nothing, progress=v if not callable(v) else 5, deadline=1e-3),
    "measure label": lambda v: gl.measure(_nothing, label=v if not isinstance(v, str) else 5, deadline=1e-3),
    "measure transfer": lambda v: gl.measure(_nothing, transfer=v if not isinstance(v, bool) else "no", deadline=1e-3),
    "compare work": lambda v: gl.compare(v if not callable(v) else 5, deadline=1e-3),
    "compare devices": lambda v: gl.compare("add", n=8, devices=v, deadline=1e-3),
    "compare n": lambda v: gl.compare("add", n=v, deadline=1e-3),
    "compare dtype": lambda v: gl.compare("add", n=8, dtype=v, deadline=1e-3),
    "compare tolerance": lambda v: gl.compare("add", n=8, tolerance=v, deadline=1e-3),
    "compare label": lambda v: gl.compare(
        {v: _nothing, 5: _nothing} if v.__hash__ and not isinstance(v, BrokenTruth) else {}, deadline=1e-3
    ),
    "to_device array": lambda v: gl.to_device(v, "cpu"),
    "to_device device": lambda v: gl.to_device(X, v),
    "to_device library": lambda v: gl.to_device(X, "cpu", v),
    "to_device pinned": lambda v: gl.to_device(X, "cpu", pinned=v),
    "to_host": gl.to_host,
    "device_of": gl.device_of,
    "share array": lambda v: gl.share(v, "torch"),
    "share library": lambda v: gl.share(X, v),
    "workload name": gl.workloads.get,
    "workload n": lambda v: ADD(n=v),
    "workload dtype": lambda v: ADD(dtype=v),
    "workload parameter": lambda v: gl.workloads.get("conv2d")(channels=v),
    "workload seed": lambda v: ADD(n=8).inputs(seed=v),
    "workload device": lambda v: ADD(n=8).inputs(v),
    "sweep size": lambda v: gl.transfer.sweep("cpu", sizes=[v], link="pcie4"),
    "sweep sizes": lambda v: gl.transfer.sweep("cpu", sizes=v, link="pcie4"),
    "sweep deadline": lambda v: gl.transfer.sweep("cpu", sizes=[64], deadline=v),
    "sweep directions": lambda v: gl.transfer.sweep("cpu", [v], sizes=[64], deadline=1e-3),
    "sweep memory": lambda v: gl.transfer.sweep("cpu", memory=[v], sizes=[64], deadline=1e-3),
    "sweep library": lambda v: gl.transfer.sweep("cpu", sizes=[64], deadline=1e-3, library=v),
    "sweep stop": lambda v: gl.transfer.sweep("cpu", sizes=[64], deadline=1e-3, stop=v if not callable(v) else 5),
    "fit sizes": lambda v: gl.transfer.fit(v, [1e-5, 2e-5, 3e-5, 4e-5]),
    "fit times": lambda v: gl.transfer.fit(FOUR, [v] * 4),
    "predicted size": FIT.predict,
    "predicted level": lambda v: FIT.prediction_interval_seconds(2048, v),
    "link name": gl.transfer.link,
    "link latency": lambda v: gl.transfer.link("pcie4", v),
    "link bandwidth": lambda v: gl.transfer.link("pcie4", None, v),
    "link memory": lambda v: gl.transfer.link("pcie4", memory=v),
    "link seconds": LINK.seconds,
    "link noise": lambda v: LINK.sweep([64], noise_ratio=v),
    "link seed": lambda v: LINK.sweep([64], seed=v),
    "processor": gl.transfer.processor,
    "faster": lambda v: gl.transfer.faster(H200, v),
    "faster than": lambda v: gl.transfer.faster(v, 2),
    "modelled device": gl.transfer.ModelledDevice,
    "modelled device array": lambda v: gl.transfer.ModelledDevice().to_device(v),
    "modelled device run": lambda v: gl.transfer.ModelledDevice().run(v if not callable(v) else 5),
    "overlap size": lambda v: gl.transfer.overlap(v, link="pcie4"),
    "overlap chunks": lambda v: gl.transfer.overlap(2**16, v, link="pcie4"),
    "overlap work": lambda v: gl.transfer.overlap(2**16, 2, link=v),
    "overlap seconds": lambda v: gl.transfer.overlap(2**16, 2, link="pcie4", compute_seconds=v),
    "measure_overlap deadline": lambda v: gl.transfer.measure_overlap(64, 2, "cpu", v),
    "pipeline size": lambda v: gl.transfer.pipeline_seconds(v, 4, LINK, 1e-3),
    "pipeline seconds": lambda v: gl.transfer.pipeline_seconds(1024, 4, LINK, v),
    "measure_copy size": lambda v: gl.transfer.measure_copy(v, "host", deadline=1e-3),
    "measure_copy direction": lambda v: gl.transfer.measure_copy(64, v, deadline=1e-3),
    "measure_copy memory": lambda v: gl.transfer.measure_copy(64, "host", v, deadline=1e-3),
    "recorded_sweep": gl.transfer.recorded_sweep,
    "stale_read": gl.transfer.stale_read,
    "break_even workload": gl.transfer.break_even,
    "break_even sizes": lambda v: gl.transfer.break_even("add", v, "cpu"),
    "break_even dtype": lambda v: gl.transfer.break_even("add", dtype=v, device="cpu"),
    "break_even link": lambda v: gl.transfer.break_even("add", [64], link=v, deadline=0.01),
    "break_even recording": lambda v: gl.transfer.break_even("add", [64], recording=v, deadline=0.01),
    "break_even deadline": lambda v: gl.transfer.break_even("add", [64], "cpu", deadline=v),
    "recordings.load": gl.recordings.load,
    "recordings.read": gl.recordings.read,
    "predict model": lambda v: gl.memory.predict(v, XT, loss=torch.sum),
    "predict input": lambda v: gl.memory.predict(LAYER, v, loss=torch.sum),
    "predict loss": lambda v: gl.memory.predict(LAYER, XT, loss=v),
    "predict optimizer": lambda v: gl.memory.predict(LAYER, XT, loss=torch.sum, optimizer=v),
    "predict factory": lambda v: gl.memory.predict(LAYER, XT, loss=torch.sum, optimizer=lambda parameters: v),
    "predict precision": lambda v: gl.memory.predict(LAYER, XT, loss=torch.sum, precision=v),
    "predict checkpoint": lambda v: gl.memory.predict(LAYER, XT, loss=torch.sum, checkpoint=v),
    "predict targets": lambda v: gl.memory.predict(LAYER, XT, loss=torch.nn.functional.mse_loss, targets=v),
    "predict device": lambda v: gl.memory.predict(LAYER, XT, loss=torch.sum, device=v),
    "predict progress": lambda v: gl.memory.predict(LAYER, XT, loss=torch.sum, progress=v),
    "predict stop": lambda v: gl.memory.predict(LAYER, XT, loss=torch.sum, stop=v),
    "fits": PREDICTION.fits,
    "trace model": lambda v: gl.memory.trace(v if not callable(v) else 5, XT, loss=torch.sum),
    "trace input": lambda v: gl.memory.trace(LAYER, v, loss=torch.sum),
    "trace steps": lambda v: gl.memory.trace(LAYER, XT, loss=torch.sum, steps=v),
    "trace checkpoint": lambda v: gl.memory.trace(LAYER, XT, loss=torch.sum, checkpoint=v),
    "trace device": lambda v: gl.memory.trace(LAYER, XT, loss=torch.sum, device=v),
    "trace progress": lambda v: gl.memory.trace(LAYER, XT, loss=torch.sum, progress=v),
    "trace stop": lambda v: gl.memory.trace(LAYER, XT, loss=torch.sum, stop=v),
    "snapshot device": gl.memory.snapshot,
    "snapshot names": lambda v: among_new_objects(lambda: gl.memory.snapshot("cpu", v)),
    "snapshot value": lambda v: among_new_objects(lambda: gl.memory.snapshot("cpu", {"x": v, 5: v, b"y": [v]})),
    "release device": gl.memory.release,
    "release outputs": lambda v: among_new_objects(lambda: gl.memory.release("cpu", v)),
    "recorder minutes": lambda v: gl.recorder.record("x.json", minutes=v, only=["transfer"]),
    "recorder only": lambda v: gl.recorder.record("x.json", minutes=1e-9, only=[v]),
    "recorder name": lambda v: gl.recorder.record("x.json", minutes=1e-9, only=["transfer"], name=v),
}


@pytest.mark.parametrize("name", CALLS)
@settings(max_examples=60, deadline=None)
@given(value=JUNK)
def test_junk_gets_one_sentence(name: str, value: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Junk in any place is refused with one sentence of ours of a readable length, or is a value that works."""
    before = os.getcwd()  # noqa: PTH109
    os.chdir(tmp_path_factory.getbasetemp())
    try:
        CALLS[name](value)
    except GpulabError as error:
        text = str(error)
        assert len(text) <= LONGEST_MESSAGE
        assert "expected" in text
    finally:
        os.chdir(before)


HOLDS_ITSELF: list[Any] = [1]
HOLDS_ITSELF.append(HOLDS_ITSELF)


class NoParameters(torch.nn.Linear):
    """A module that does not say what its parameters are."""

    def parameters(self, recurse: bool = True) -> Any:
        """Fail."""
        raise RuntimeError("no parameters")


WITHOUT_ANSWERS = NoParameters(4, 4)  # made here: making it draws random numbers
MEMORY_JUNK = {
    "an input that holds itself": lambda f: f(LAYER, HOLDS_ITSELF, loss=torch.sum),
    "a module without answers": lambda f: f(WITHOUT_ANSWERS, XT, loss=torch.sum),
    "a factory that makes no optimizer": lambda f: f(LAYER, XT, loss=torch.sum, optimizer=lambda parameters: 5),
    "an optimizer without a text": lambda f: f(LAYER, XT, loss=torch.sum, optimizer=lambda parameters: BrokenRepr()),
    "a loss that is no tensor": lambda f: f(LAYER, XT, loss=lambda out: out.sum().item),
    "a loss whose error has no text": lambda f: f(LAYER, XT, loss=_silent),
    "an input of another shape": lambda f: f(LAYER, torch.ones(3, 5), loss=torch.sum),
    "progress that raises": lambda f: f(LAYER, XT, loss=torch.sum, progress=lambda *a: 1 / 0),
    "stop that raises": lambda f: f(LAYER, XT, loss=torch.sum, stop=lambda: 1 / 0),
}


def _silent(out: Any) -> Any:
    raise SilentError


@pytest.mark.parametrize("name", ["predict", "trace"])
@pytest.mark.parametrize("kind", MEMORY_JUNK)
def test_a_step_that_cannot_be_followed_leaves_all_as_it_was(name: str, kind: str, capfd: pytest.CaptureFixture[str]) -> None:
    """One sentence of ours, nothing printed or logged; the model, the modes and the generators are as before, and the next call works."""
    function = getattr(gl.memory, name)

    def state() -> tuple[Any, ...]:
        weight = LAYER.weight
        return (id(weight), weight.grad, weight.sum().item(), torch.get_rng_state().numpy().tobytes(), torch.is_grad_enabled(),
                torch._C._len_torch_dispatch_stack(), "forward" in LAYER.__dict__)  # fmt: skip

    before = state()
    with pytest.raises(GpulabError, match="expected") as caught:
        MEMORY_JUNK[kind](function)
    assert len(str(caught.value)) <= LONGEST_MESSAGE
    assert "\n" not in str(caught.value)
    assert state() == before
    assert capfd.readouterr() == ("", "")
    assert function(LAYER, XT, loss=torch.sum).peak_bytes > 0


LOST = "CUDA error: unspecified launch failure\nCUDA kernel errors might be asynchronously reported at some other API call"


def test_a_step_whose_device_vanishes_is_told_as_that() -> None:
    """A loss or an optimizer on a device that is lost ends as DeviceError, one that does not fit as OutOfMemoryError."""

    def lost(out: Any) -> Any:
        raise torch.AcceleratorError(LOST)

    def full(out: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    with pytest.raises(gl.errors.DeviceError, match="unspecified launch failure"):
        gl.memory.trace(LAYER, XT, loss=lost)
    with pytest.raises(gl.errors.OutOfMemoryError, match="does not hold it"):
        gl.memory.trace(LAYER, XT, loss=full)


@pytest.fixture(name="fragile")
def _fragile(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> Any:
    """A CUDA device in name only, whose every answer is counted and which is lost from the answer number ``at`` on."""
    monkeypatch.setenv("GPULAB_LOCK_DIR", str(tmp_path / "turns"))
    asked = types.SimpleNamespace(count=0, at=math.inf)

    def answer(value: Any) -> Any:
        def ask(*args: Any) -> Any:
            asked.count += 1
            if asked.count >= asked.at:
                raise torch.AcceleratorError(LOST)
            return value

        return ask

    about = types.SimpleNamespace(
        name="Fake", major=9, minor=0, total_memory=2**33, multi_processor_count=132, L2_cache_size=2**25, uuid="0"
    )
    answers = {
        "get_device_name": "Fake", "get_device_properties": about, "mem_get_info": (2**32, 2**33), "synchronize": None,
        "memory_allocated": 0, "memory_reserved": 0, "memory_stats": {}, "empty_cache": None, "get_arch_list": [],
    }  # fmt: skip
    for name, value in answers.items():
        monkeypatch.setattr(torch.cuda, name, answer(value))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    return asked


ON_FRAGILE = {
    "measure": lambda: gl.measure(_nothing, device="cuda", deadline=0.005),
    "compare": lambda: gl.compare({"a": _nothing, "b": _nothing}, devices=["cuda"], deadline=0.005),
    "snapshot": lambda: gl.memory.snapshot("cuda"),
    "release": lambda: gl.memory.release("cuda"),
    "let go": lambda: _run._let_go(gl.devices.find("cuda")),
}


# These look through all that lives, or collect garbage; the others put aside what was there before by themselves, and let it go again.
AMONG_ALL = ("snapshot", "release", "let go")


@pytest.mark.parametrize("name", ON_FRAGILE)
def test_a_device_that_vanishes_at_any_moment(name: str, fragile: Any, request: pytest.FixtureRequest) -> None:
    """Whichever of its answers is the last one, what follows is DeviceError (or a result); the collector and the turn are free."""
    if name in AMONG_ALL:
        request.getfixturevalue("old_aside")
    frozen = gc.get_freeze_count()
    assert (frozen > 0) == (name in AMONG_ALL)
    ON_FRAGILE[name]()
    total, ended = fragile.count, 0
    assert total
    for at in [*range(1, min(total, 30) + 1), max(1, total - 5), max(1, total // 2)]:
        fragile.count, fragile.at = 0, at
        try:
            ON_FRAGILE[name]()
        except gl.errors.DeviceError:
            ended += 1
        assert gc.get_freeze_count() <= frozen  # what dies is one fewer
    assert ended
    assert not gl.measure(_nothing, device="cpu", deadline=0.005).has_note("turn-taking")


def test_a_measured_ceiling_leaves_the_learners_generator_alone() -> None:
    """The numbers that follow a seed are the same with and without a ceiling measured in between."""
    torch.manual_seed(3)
    before = torch.get_rng_state()
    gl.devices._ceilings._product_rate("float32", gl.devices.find("cpu"), _ticking())
    assert torch.equal(torch.get_rng_state(), before)


@settings(max_examples=300, deadline=None)
@given(value=JUNK)
def test_what_was_given_is_shown_short(value: Any) -> None:
    """``shown`` gives a short text for anything, and a finite number is told from all else."""
    assert 0 < len(shown(value)) <= 70
    assert _given.is_finite(value) in (False, True)
    assert message_of(SilentError()) == "<SilentError>"


def _ticking(step: float = 1e-3) -> Any:
    """Return a clock that moves on by a step with every reading."""
    readings = itertools.count()
    return lambda: next(readings) * step


def _backwards() -> Any:
    readings = itertools.count()
    return lambda: -next(readings) * 1e-3


BAD_CLOCKS = {
    "stands still": lambda: lambda: 1.0,
    "goes back": _backwards,
    "jumps": lambda: itertools.cycle([1.0, 0.5, 2.0, 0.1]).__next__,
    "nan": lambda: lambda: math.nan,
    "infinite": lambda: lambda: math.inf,
    "text": lambda: lambda: "now",
    "nothing": lambda: lambda: None,
}


@pytest.mark.parametrize("kind", BAD_CLOCKS)
def test_a_bad_clock_ends_the_measurement(kind: str) -> None:
    """A clock whose deadline would never come is refused in one sentence that names the clock, by measure and compare."""
    with pytest.raises(InputError, match=r"clock .*expected seconds"):
        gl.measure(_nothing, clock=BAD_CLOCKS[kind](), deadline=0.01)
    with pytest.raises(InputError, match=r"clock .*expected seconds"):
        gl.compare({"a": _nothing, "b": _nothing}, clock=BAD_CLOCKS[kind](), deadline=0.01)


def test_a_clock_that_stops_later_gives_figures_without_a_rate() -> None:
    """Where most samples took no time at all there is no interval, no rate, no error out of our own arithmetic."""
    readings = iter([i * 1e-3 for i in range(160)])
    m = gl.measure(_nothing, clock=lambda: next(readings, 0.16), deadline=0.05, flops=1e9)
    assert m.median_seconds == 0
    assert m.interval_seconds is None
    assert m.flops_per_second is None
    assert m.has_note("no-interval")


@pytest.mark.parametrize("deadline", [86_401, 1e9, 1e308, 2**80])
def test_a_deadline_in_another_unit_is_refused(deadline: float) -> None:
    """A deadline of more than a day is a slip in the unit: it would never end."""
    with pytest.raises(InputError, match="86400"):
        gl.measure(_nothing, deadline=deadline)


@pytest.mark.parametrize("width", [1.01, 2, 95])
def test_a_width_in_percent_is_refused(width: float) -> None:
    """relative_width=2 means 200 %, not 2 %: the message says which number to pass."""
    with pytest.raises(InputError, match=r"0\.02"):
        gl.measure(_nothing, relative_width=width)


async def _coroutine() -> int:
    return 1


def _generator() -> Any:
    yield 1


async def _async_generator() -> Any:
    yield 1


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("fn", "word"),
    [(_coroutine, "coroutine"), (_generator, "generator"), (_async_generator, "generator"), (lambda: (i for i in "ab"), "generator")],
)
@pytest.mark.usefixtures("old_aside")
def test_a_promise_of_work_is_not_timed(fn: Any, word: str) -> None:
    """A function that only returns a coroutine or a generator has done nothing, and a time for it would mislead."""
    with pytest.raises(InputError, match=word):
        gl.measure(fn, deadline=0.01)
    with pytest.raises(InputError, match=word):
        gl.compare({"a": fn, "b": _nothing}, deadline=0.01)
    gc.collect()


def test_the_remedy_for_a_coroutine_works() -> None:
    """What the message proposes for an async function measures it."""
    measured = []  # in a thread of its own: the browser's tests keep a loop in this one, and a loop lets no other run beside it
    thread = threading.Thread(target=lambda: measured.append(gl.measure(lambda: asyncio.run(_coroutine()), deadline=0.01)))
    thread.start()
    thread.join()
    assert measured[0].median_seconds > 0


def test_an_error_without_a_text_is_told() -> None:
    """A function whose exception cannot even be printed is reported by the exception's type."""

    def fail() -> None:
        raise SilentError

    with pytest.raises(MeasurementError, match="raised SilentError"):
        gl.measure(fail, deadline=0.01)


def test_a_callable_that_answers_no_question_is_measured() -> None:
    """An object without a name, whose repr and attributes fail, is measured under its type's name."""

    class Stubborn(BrokenRepr):
        def __call__(self) -> int:
            return 1

        def __getattr__(self, name: str) -> Any:
            raise RuntimeError("no attribute")

    assert gl.measure(Stubborn(), deadline=0.01, device="cpu").label == "Stubborn"


@pytest.mark.parametrize("name", ["progress", "stop", "conditions"])
def test_a_callback_that_raises_is_named(name: str) -> None:
    """An error in progress, stop or conditions is not blamed on the function that was measured; then all works as before."""

    def fail(*args: Any) -> Any:
        raise OSError("of mine")

    with pytest.raises(InputError, match=f"{name} raised OSError"):
        gl.measure(_nothing, deadline=0.01, **{name: fail})
    with pytest.raises(InputError, match=f"{name} raised OSError"):
        gl.compare({"a": _nothing, "b": _nothing}, deadline=0.01, **{name: fail})
    if name != "conditions":
        with pytest.raises(InputError, match=f"{name} raised OSError"):
            gl.transfer.sweep("cpu", sizes=[64], deadline=0.01, **{name: fail})
    assert gl.measure(_nothing, deadline=0.01).median_seconds >= 0
    assert gc.get_freeze_count() == 0


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_frees_the_turn(error: type[BaseException]) -> None:
    """An interrupt in the fifth call passes through; another thread can then measure at once, and the collector is thawed."""
    calls = itertools.count(1)

    def work() -> None:
        if next(calls) == 5:
            raise error

    with pytest.raises(error):
        gl.measure(work, deadline=0.05)
    assert gc.get_freeze_count() == 0
    seen: list[Any] = []
    other = threading.Thread(target=lambda: seen.append(gl.measure(_nothing, deadline=0.01)))
    other.start()
    other.join(10)
    assert not seen[0].has_note("turn-taking")


def test_threads_take_turns() -> None:
    """Four threads that measure at once all get a measurement, one after the other."""
    seen: list[Any] = []
    threads = [threading.Thread(target=lambda: seen.append(gl.measure(np.sum, X, deadline=0.02))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert [m.median_seconds > 0 for m in seen] == [True] * 4
    assert gc.get_freeze_count() == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_child_of_a_measured_function_can_measure() -> None:
    """A fork in the middle of a measurement leaves the parent its turn and the child a working package."""
    exits: list[int] = []

    def work() -> None:
        if exits:
            return
        child = os.fork()
        if child == 0:
            try:
                gl.measure(_nothing, deadline=0.01, clock=_ticking())
                os._exit(0)
            except BaseException:
                os._exit(1)
        exits.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

    assert gl.measure(work, deadline=0.02).median_seconds >= 0
    assert exits == [0]


def test_a_stop_before_the_start_reports_nothing() -> None:
    """A stop that is on from the beginning ends as StoppedError, which is no failure of the function."""
    with pytest.raises(StoppedError):
        gl.measure(_nothing, stop=lambda: True)


ODD_ARRAYS = {
    "zero size": np.empty((0, 4)),
    "no dimension": np.array(2.5),
    "negative strides": np.arange(24.0).reshape(4, 6)[::-1, ::-2],
    "broadcast": np.broadcast_to(np.array(1.0), (4, 4)),
    "read-only": np.frombuffer(b"12345678", dtype=np.uint8),
    "nan": np.full(9, np.nan),
    "infinite": np.array([np.inf, -np.inf, 1.0]),
    "big endian": np.arange(4, dtype=">f4"),
    "bool": np.array([True, False]),
    "tensor in autograd": torch.ones(4, requires_grad=True),
    "result in autograd": torch.ones(4, requires_grad=True) * 2,
    "transposed tensor": torch.ones(3, 5).T,
    "sparse tensor": torch.eye(4).to_sparse(),
    "half": torch.ones(4, dtype=torch.bfloat16),
    "conjugate": torch.ones(4, dtype=torch.complex64).conj(),
}


@pytest.mark.parametrize("kind", ODD_ARRAYS)
def test_odd_arrays_are_measured_with_copies(kind: str) -> None:
    """Arrays of every odd kind go through measure with both copies, and come out of compare as equal to themselves."""
    x = ODD_ARRAYS[kind]
    m = gl.measure(lambda a: a, x, transfer=True, deadline=0.01, device="cpu")
    assert m.with_transfer_seconds is not None
    assert json.loads(json.dumps(m.to_dict(), allow_nan=False))["device"] == "cpu"


@pytest.mark.parametrize("kind", [kind for kind in ODD_ARRAYS if kind != "sparse tensor"])
def test_odd_arrays_agree_with_themselves(kind: str) -> None:
    """Two ways to hand an odd array on agree, where its values are nan too."""
    c = gl.compare({"a": lambda a: a, "b": lambda a: a}, ODD_ARRAYS[kind], deadline=0.01)
    assert c.max_relative_difference == 0


def test_infinities_of_other_signs_disagree() -> None:
    """Plus and minus infinity are different results, although neither is finite."""
    c = gl.compare({"a": lambda a: a, "b": lambda a: -a}, np.array([np.inf, 0.0]), deadline=0.02)
    assert c.max_relative_difference == math.inf
    assert c.speedup is None


def test_a_method_that_changes_its_input_is_found_out() -> None:
    """Where the first method changes the input in place, the second gets other data: no speed-up is reported."""
    c = gl.compare({"in place": lambda a: a.__iadd__(1.0), "apart": lambda a: a + 1.0}, np.ones(5), deadline=0.02)
    assert c.speedup is None
    assert any(note.code == "disagree" for note in c.notes)


def test_a_home_that_is_not_here_is_told() -> None:
    """In a sentence that begins with who asked."""
    assert _given.expanded("x", "~") == pathlib.Path.home()
    with pytest.raises(InputError, match=r"^x: ~nosuchuser/y begins with the home of a user that is not here"):
        _given.expanded("x", "~nosuchuser/y")


def test_the_edges_of_a_clock() -> None:
    """Whole numbers are seconds too; a step back and 1,000 equal readings behind the first one are told with their values."""
    readings = iter([3, 3.5, 2.5])
    read = _given.clock("f", lambda: next(readings))
    assert read is not None
    assert (read(), read()) == (3, 3.5)
    with pytest.raises(InputError, match=r"^f: clock went from 3\.5 back to 2\.5; expected seconds that only grow\."):
        read()
    for value, says in ((math.inf, "gave inf;"), (math.nan, "gave nan;"), (True, "gave a bool;"), ("1", "gave a str;")):
        wrong = _given.clock("f", lambda value=value: value)  # type: ignore[misc]
        assert wrong is not None
        with pytest.raises(InputError, match=f"^f: clock {says} expected seconds"):
            wrong()
    still = _given.clock("f", lambda: 7.0)
    assert still is not None
    assert [still() for _ in range(1000)] == [7.0] * 1000
    with pytest.raises(InputError, match=r"^f: clock stood still at 7\.0 over 1,000 readings; expected seconds that grow"):
        still()
    assert _given.clock("f", None) is None


def test_the_edges_of_numbers_words_and_switches() -> None:
    """Both ends of a range belong to it; NumPy's numbers and switches count, and what is refused is shown with what was expected."""
    assert [_given.whole("f", "n", value, 1, 3) for value in (1, np.int64(3))] == [1, 3]
    for wrong in (0, 4, 2.0, True, "2"):
        with pytest.raises(InputError) as refused:
            _given.whole("f", "n", wrong, 1, 3)
        assert str(refused.value) == f"f: n is {wrong!r}; expected a whole number from 1 to 3. Leave it out for the default."
    finite = (1, -2.5, np.float32(1), np.int8(3), Fraction(1, 3))
    assert all(_given.is_finite(value) for value in finite)
    assert not any(_given.is_finite(value) for value in (True, math.nan, -math.inf, 10**400, np.complex64(1), 1j, "1", None))
    assert _given.flag("f", "x", np.True_) is True
    with pytest.raises(InputError, match=r"^f: x='no'; expected True or False\. Pass one of the two\.$"):
        _given.flag("f", "x", "no")
    assert _given.word("f", "x", "b", ("a", "b")) == "b"
    with pytest.raises(InputError, match=r"^f: x is 'c'; expected one of: a, b\. Pass one of these\.$"):
        _given.word("f", "x", "c", ("a", "b"))
    assert _given.items("f", "x", range(2)) == [0, 1]
    for text in ("ab", b"ab", 5):
        with pytest.raises(InputError, match=r"^f: x is .*; expected several values\. Pass a list of them\.$"):
            _given.items("f", "x", text)


def test_a_callable_beside_the_work_is_told_by_its_name() -> None:
    """Its value and arguments pass; its error names it; an error of ours passes as it is."""
    called = _given.callback("f", "stop", lambda *given: given)
    assert called is not None
    assert called(1, 2) == (1, 2)
    assert _given.callback("f", "stop", None) is None
    with pytest.raises(InputError, match=r"^f: stop=5; expected a function\. Pass one, or leave it out\.$"):
        _given.callback("f", "stop", 5)  # type: ignore[arg-type]

    def fails(error: Exception) -> None:
        raise error

    raising = _given.callback("f", "stop", fails)
    assert raising is not None
    with pytest.raises(InputError, match=r"^f: stop raised KeyError \('x'\); expected it to return\. Mend it, or leave it out\.$"):
        raising(KeyError("x"))
    with pytest.raises(StoppedError, match=r"^ours\.$"):
        raising(StoppedError("ours."))
