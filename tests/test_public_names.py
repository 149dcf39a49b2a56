"""The names, parameters and fields that the design fixes for the working lab, copied by hand from its section 3.

Nothing here is read from the code under test: a parameter that is renamed, loses its default, or moves makes a test fail.
"""

from __future__ import annotations

import importlib
import inspect
import json
import pkgutil
import typing
from typing import Any

import pytest

import gpulab as gl

# Name -> its parameters in the order of the design, with the defaults that it shows. A parameter without one is required; "*name" takes
# any number. Further parameters with defaults may follow.
DESIGN: dict[str, list[tuple[str, Any]]] = {
    "machine": [],
    "to_device": [("a", ...), ("device", None), ("library", "torch"), ("pinned", False)],
    "to_host": [("x", ...)],
    "share": [("x", ...), ("library", ...)],
    "device_of": [("x", ...)],
    "measure": [
        ("fn", ...), ("*args", ...), ("device", None), ("relative_width", 0.02), ("deadline", 2.0), ("transfer", False), ("flops", None),
        ("nbytes", None), ("clock", None),
    ],
    "compare": [("work", ...), ("*args", ...), ("devices", None), ("dtype", "float32")],
    "figures.comparison": [("c", ...)],
    "workloads.names": [],
    "workloads.get": [("name", ...)],
    "transfer.sweep": [],
    "transfer.break_even": [("workload", ...)],
    "memory.snapshot": [],
    "memory.trace": [("model", ...), ("*inputs", ...)],
    "memory.predict": [
        ("model", ...), ("*inputs", ...), ("loss", None), ("optimizer", "adam"), ("precision", "float32"), ("checkpoint", False),
    ],
    "memory.release": [],
    "recordings.names": [],
    "recordings.load": [("name", ...)],
    "recordings.read": [("path", ...)],
    "lessons.predict": [("id", ...), ("question", ...), ("unit", ""), ("choices", ())],
    "lessons.reveal": [("id", ...), ("measured", ...)],
    "lessons.check": [("id", ...), ("answer", None)],
    "lessons.solution": [("id", ...)],
    "lessons.progress": [],
}  # fmt: skip
# What the design calls positionally, so that only the place counts and not the name.
BY_PLACE = {"figures.comparison", "memory.trace", "share", "lessons.reveal", "transfer.break_even"}

FIELDS: dict[str, tuple[str, ...]] = {
    "timing.Measurement": (
        "samples_seconds", "median_seconds", "interval_seconds", "first_call_seconds", "launch_seconds", "with_transfer_seconds",
        "calls_per_sample", "flops_per_second", "bytes_per_second", "notes", "evidence", "environment", "to_dict",
    ),
    "timing.Comparison": ("rows", "speedup", "speedup_interval", "max_relative_difference"),
    "workloads.Workload": ("inputs", "run", "flops", "nbytes"),
    "transfer.Sweep": ("fit",),
    "transfer.AlphaBeta": ("latency_seconds", "bandwidth_bytes_per_second", "held_out_error"),
    "transfer.BreakEven": ("size", "reason", "evidence"),
    "memory.Prediction": ("peak_bytes", "scratch_bytes", "fits"),
    "lessons.CheckResult": ("state", "message"),
}  # fmt: skip


def _named(dotted: str) -> Any:
    found: Any = gl
    for part in dotted.split("."):
        found = getattr(found, part)
    return found


@pytest.mark.parametrize("name", DESIGN)
def test_parameters(name: str) -> None:
    """Each public function takes the parameters of the design, with its defaults; what was added has a default."""
    given = list(inspect.signature(_named(name)).parameters.values())
    wanted = DESIGN[name]
    by_name = {p.name: p for p in given}
    for place, (parameter, default) in enumerate(wanted):
        plain = parameter.removeprefix("*")
        found = given[place] if name in BY_PLACE else by_name[plain]
        if parameter.startswith("*"):
            assert found.kind is inspect.Parameter.VAR_POSITIONAL
        elif default is ...:
            assert found.default is inspect.Parameter.empty
        else:
            assert found.default == default
    required = [
        p.name for p in given[len(wanted) :] if p.default is inspect.Parameter.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    assert required == [] or name in BY_PLACE


@pytest.mark.parametrize("name", FIELDS)
def test_fields(name: str) -> None:
    """Each result class has the fields and methods of the design."""
    cls = _named(name)
    there = {*dir(cls), *typing.get_type_hints(cls)}
    assert [field for field in FIELDS[name] if field not in there] == []


def test_reasons_of_break_even() -> None:
    """Without an accelerator and without a model the reason is the design's word for it."""
    found = gl.transfer.break_even("add", device="cpu")
    assert (found.size, found.reason) == (None, "no accelerator")


def test_states_of_a_check(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """A stub gives the design's state "not attempted", prints, and raises nothing."""
    monkeypatch.setenv("GPULAB_PROGRESS", str(tmp_path / "progress.json"))
    assert gl.lessons.check("02.5", ...).state in ("not attempted", "wrong")
    assert capsys.readouterr().out


def test_measure_without_flops_has_no_rate() -> None:
    """Rates are None where the work is not known, numbers where it is; the dictionary is plain JSON."""
    now = [0.0]

    def work() -> None:
        now[0] += 2e-3

    bare = gl.measure(work, device="cpu", clock=lambda: now[0], deadline=0.5)
    known = gl.measure(work, device="cpu", clock=lambda: now[0], deadline=0.5, flops=1e6)
    assert bare.flops_per_second is None
    assert known.flops_per_second == pytest.approx(1e6 / 2e-3)
    assert json.loads(json.dumps(known.to_dict(), allow_nan=False))["flops"] == 1e6


def _public_functions() -> list[tuple[str, Any]]:
    found: dict[int, tuple[str, Any]] = {}
    for module_name in (*(f"gpulab.{name}" for name in gl._SUBMODULES), "gpulab"):
        module = importlib.import_module(module_name)
        names = getattr(module, "__all__", [name for name in vars(module) if not name.startswith("_")])
        for name in names:
            value = getattr(module, name)
            if inspect.isfunction(value) and value.__module__.startswith("gpulab"):
                found[id(value)] = (f"{module_name}.{name}", value)
            elif inspect.isclass(value) and value.__module__.startswith("gpulab"):
                for method_name, method in vars(value).items():
                    if inspect.isfunction(method) and not method_name.startswith("_") and method.__name__ != "<lambda>":
                        found[id(method)] = (f"{module_name}.{name}.{method_name}", method)
    return list(found.values())


PUBLIC = _public_functions()


def test_public_functions_were_found() -> None:
    """The walk finds the package's functions and methods."""
    assert len(PUBLIC) > 80
    assert len(list(pkgutil.iter_modules(gl.__path__))) > 15


@pytest.mark.parametrize(("name", "function"), PUBLIC, ids=[name for name, _ in PUBLIC])
def test_docstring(name: str, function: Any) -> None:
    """Every public function and method has a docstring, and says which errors of ours its own body raises."""
    text = inspect.getdoc(function)
    assert text
    source = inspect.getsource(function)
    if "raise InputError" in source or "raise DeviceError" in source or "raise StoppedError" in source:
        assert "Raises" in text
