"""What compiling costs: the arithmetic by hand, a real compilation, and a machine without a compiler."""

from __future__ import annotations

import dataclasses
import json
import shutil

import pytest
import torch

from gpulab import timing, training
from gpulab.errors import InputError, MeasurementError
from gpulab.evidence import Evidence, Note
from gpulab.timing import Comparison, ComparisonRow
from gpulab.training import CompileCost, _compile_cost


def cost(eager, compiled, seconds=2.0):
    """A result with these intervals, their middles as medians."""
    return CompileCost(
        "it", "cpu", 0.0, seconds, sum(eager) / 2, sum(compiled) / 2, eager, compiled, 0.0, "", (), Evidence.measured("a CPU")
    )  # fmt: skip


def test_break_even_by_hand():
    """2 s to compile and 4 to 6 ms saved a call: paid after 400 calls, 334 to 500."""
    c = cost((0.0095, 0.0105), (0.0045, 0.0055))
    assert c.saved_seconds == pytest.approx(0.005)
    assert c.saved_interval == pytest.approx((0.004, 0.006))
    assert (c.break_even_calls, c.break_even_interval) == (400, (334, 500))
    assert "400 calls (334 to 500)" in c.sentence
    assert CompileCost.from_dict(json.loads(json.dumps(c.to_dict()))) == c


def test_no_saving_is_said():
    """A compiled form that may be slower has no break-even, or none for sure."""
    slower = cost((0.004, 0.005), (0.006, 0.007))
    assert (slower.break_even_calls, slower.break_even_interval) == (None, None)
    assert "no saving was shown" in slower.sentence
    unsure = cost((0.009, 0.011), (0.007, 0.0095))
    assert unsure.break_even_interval[1] is None
    assert "at least" in unsure.sentence
    assert training.break_even_calls(1.0, -0.1) is None
    assert training.break_even_calls(1e-9, 1.0) == 1


def test_without_a_compiler_it_is_a_sentence(monkeypatch):
    """Where there is no g++ the result says so instead of raising."""

    class InvalidCxxCompiler(RuntimeError):
        pass

    def refuses(fn):
        def call(*args):
            raise InvalidCxxCompiler("No working C++ compiler found in torch._inductor.config.cpp.cxx")

        return call

    InvalidCxxCompiler.__module__ = "torch._inductor.exc"
    monkeypatch.setattr(torch, "compile", refuses)
    monkeypatch.setattr(_compile_cost, "_load_compiler", lambda: 0.0)
    c = training.compile_cost(torch.relu, torch.ones(3))
    assert (c.compile_seconds, c.break_even_calls, c.saved_seconds) == (None, None, None)
    assert "g++" in c.reason
    assert "was not compiled" in c.sentence
    assert any("g++" in cell for row in c.table()[1] for cell in row)


def test_what_disturbed_the_race_is_told(monkeypatch):
    """Of each form what makes its time doubtful, with its name, behind the notes on both; how its calls were sampled is no doubt."""
    calm = timing.measure(lambda: None, device="cpu", deadline=0.01)
    told = {"as it is": (Note("contended", "Others ran."), Note("too-short", "Short.")), "compiled": (Note("slow-first-call", "Slow."),)}
    rows = tuple(ComparisonRow(name, dataclasses.replace(calm, label=name, notes=notes), None, None, None) for name, notes in told.items())
    race = Comparison("it", rows, None, None, None, None, (Note("disagree", "They differ."),), calm.evidence)
    monkeypatch.setattr(torch, "compile", lambda fn: fn)
    monkeypatch.setattr(_compile_cost, "_load_compiler", lambda: 0.0)
    monkeypatch.setattr(_compile_cost.timing, "compare", lambda *given, **named: race)
    c = training.compile_cost(torch.relu, torch.ones(3), cold=False)
    assert [str(note) for note in c.notes] == ["disagree: They differ.", "contended: as it is: Others ran."]


@pytest.mark.parametrize("fails", [False, True])
def test_what_was_compiled_is_forgotten_before_and_after(fails, monkeypatch):
    """Loaded first, since that is no compiling; then compiled anew, raced, and forgotten in whatever way the race ends."""
    calm = timing.measure(lambda: None, device="cpu", deadline=0.01)
    rows = tuple(ComparisonRow(name, dataclasses.replace(calm, notes=()), None, None, None) for name in ("as it is", "compiled"))
    seen, x = [], torch.ones(3)

    def compare(forms, *given, **named):
        seen.append((list(forms), given, [str(device) for device in named["devices"]], named["deadline"]))
        if fails:
            raise MeasurementError("no more items")
        return Comparison("it", rows, None, None, 0.125, None, (), calm.evidence)

    monkeypatch.setattr(torch.compiler, "reset", lambda: seen.append("forgotten"))
    monkeypatch.setattr(torch, "compile", lambda fn: seen.append("compiled") or fn)
    monkeypatch.setattr(_compile_cost, "_load_compiler", lambda: seen.append("loaded") or 0.25)
    monkeypatch.setattr(_compile_cost.timing, "compare", compare)
    if fails:
        with pytest.raises(InputError, match=r"^compile_cost: the function failed in the race \(no more items\); expected a function that"):
            training.compile_cost(lambda x: x, x, cold=False, deadline=0.5)
    else:
        c = training.compile_cost(torch.relu, x, cold=False, deadline=0.5)
        assert (c.label, c.device, c.import_seconds, c.reason, c.max_relative_difference) == ("relu", "cpu", 0.25, "", 0.125)
        assert (c.eager_seconds, c.compiled_interval, c.notes) == (calm.median_seconds, calm.interval_seconds, ())
    assert seen == ["loaded", "forgotten", "compiled", (["as it is", "compiled"], (x,), ["cpu"], 0.5), "forgotten"]


def test_what_could_not_be_compiled_is_forgotten_too(monkeypatch):
    """A compiler that failed in the middle leaves nothing half compiled; an error of the function itself is told as its own."""
    forgotten = []
    monkeypatch.setattr(torch.compiler, "reset", lambda: forgotten.append(True))
    monkeypatch.setattr(_compile_cost, "_load_compiler", lambda: 0.5)

    def refuses(fn):
        raise RuntimeError("no space left")

    monkeypatch.setattr(torch, "compile", refuses)
    c = training.compile_cost(torch.relu, torch.ones(3), cold=False)
    assert (c.reason, len(forgotten)) == ("torch.compile failed (RuntimeError: no space left)", 2)
    assert (c.import_seconds, c.compile_seconds, c.eager_seconds, c.device) == (0.5, None, None, "cpu")
    with pytest.raises(InputError, match=r"^compile_cost: the function raised ValueError \(no number\); expected it to run\. Call it once"):
        training.compile_cost(lambda: _raise(ValueError("no number")))


def _raise(error):
    raise error


def test_a_call_is_over_when_the_device_is(monkeypatch):
    """A launch returns at once; the clock is read after the device has finished 5 s of work, not before."""
    now = [100.0]

    class Accelerator:
        is_cpu = False

        def synchronize(self):
            now[0] += 5.0

    monkeypatch.setattr(_compile_cost.time, "perf_counter", lambda: now[0])
    assert _compile_cost._call("it", lambda: None, (), Accelerator()) == 5.0


def test_bad_input():
    """No function, a function that raises, a deadline that is none."""
    with pytest.raises(InputError, match="not its result"):
        training.compile_cost(torch.ones(3))
    with pytest.raises(InputError, match="raised ZeroDivisionError"):
        training.compile_cost(lambda x: 1 / 0, torch.ones(3))
    with pytest.raises(InputError, match="deadline"):
        training.compile_cost(torch.relu, torch.ones(3), deadline=0)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None and shutil.which("clang++") is None, reason="no C++ compiler")
def test_a_real_compilation():
    """Compiled and uncompiled agree, compiling takes far longer than a call, and the numbers hang together."""

    def smooth(x):
        return torch.sigmoid(1.7 * x) * x + 1

    c = training.compile_cost(smooth, torch.linspace(-3, 3, 10_000), deadline=0.3)
    assert c.compile_seconds > 100 * c.eager_seconds
    assert c.max_relative_difference < 1e-5
    assert c.saved_seconds == c.eager_seconds - c.compiled_seconds
    assert c.label == "smooth"


@pytest.mark.parametrize(("theirs", "found"), [(("fresh_cache",), True), (("fresh_inductor_cache",), True), ((), False)], ids=str)
def test_an_empty_cache_by_each_of_its_names(theirs: tuple[str, ...], found: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's helper was fresh_inductor_cache and is fresh_cache; where there is neither, and when not cold, nothing is done."""
    from torch._inductor import utils

    made = object()
    for name in ("fresh_cache", "fresh_inductor_cache"):
        monkeypatch.delattr(utils, name, raising=False)
    for name in theirs:
        monkeypatch.setattr(utils, name, lambda: made, raising=False)
    assert (_compile_cost._fresh_cache(True) is made) is found
    with _compile_cost._fresh_cache(False) as nothing:
        assert nothing is None


def test_a_saving_that_may_be_nothing_has_no_most_calls() -> None:
    """Between 1/8 s less and 1/2 s more saved: 2 s are paid after four calls at least, or never; a cheap one after the first call."""
    unsure = cost((1.0, 1.25), (0.75, 1.125))
    assert unsure.break_even_interval == (4, None)
    assert "(at least 4, or never)" in unsure.sentence
    cheap = cost((0.009, 0.011), (0.007, 0.008), seconds=1e-6)
    assert cheap.break_even_interval == (1, 1)
    assert cheap.sentence.endswith("it has paid after 1 call (1 to 1).")
    assert training.break_even_calls(1.0, 0.0) is None
    assert (training.break_even_calls(1.0, 0.25), training.break_even_calls(1.01, 0.25)) == (4, 5)
    assert training.break_even_calls(None, 1.0) is training.break_even_calls(1.0, None) is None


def test_a_deadline_is_at_most_ten_minutes(monkeypatch) -> None:
    """600 s are taken, a thousandth more is not; where the work is comes from the first tensor."""
    calm = timing.measure(lambda: None, device="cpu", deadline=0.01)
    rows = tuple(ComparisonRow(name, dataclasses.replace(calm, notes=()), None, None, None) for name in ("as it is", "compiled"))
    asked = []
    monkeypatch.setattr(torch, "compile", lambda fn: fn)
    monkeypatch.setattr(_compile_cost, "_load_compiler", lambda: 0.0)
    monkeypatch.setattr(
        _compile_cost.timing,
        "compare",
        lambda *given, deadline, **named: asked.append(deadline) or Comparison("it", rows, None, None, None, None, (), calm.evidence),
    )
    find = _compile_cost.devices.find
    monkeypatch.setattr(_compile_cost.devices, "find", lambda device: asked.append(device) or find("cpu"))
    training.compile_cost(lambda a, b: b, 3, torch.ones(2), cold=False, deadline=600)
    assert asked == ["cpu", 600]
    for wrong in (600.001, -1.0, float("inf"), "soon"):
        with pytest.raises(InputError, match=r"^compile_cost: deadline is .*; expected seconds up to 600"):
            training.compile_cost(torch.relu, torch.ones(3), cold=False, deadline=wrong)


def test_loading_the_compiler_takes_what_the_clock_says(monkeypatch) -> None:
    """From before the import to behind it."""
    times = iter((3.0, 3.5))
    monkeypatch.setattr(_compile_cost.time, "perf_counter", lambda: next(times))
    assert _compile_cost._load_compiler() == 0.5


def test_an_error_of_the_compilers_is_no_error_of_the_function() -> None:
    """By the module that its class comes from."""
    for module, compilers in (("torch._inductor.exc", True), ("torch._dynamo.exc", True), ("torch.nn", False), ("builtins", False)):
        kind = type("Odd", (RuntimeError,), {"__module__": module})
        assert _compile_cost._is_compiler(kind()) is compilers
