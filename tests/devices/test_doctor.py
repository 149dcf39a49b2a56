"""The check before class."""

import dataclasses
import importlib.metadata
import sys
import tomllib
import types
from pathlib import Path

import numpy as np
import pytest

from gpulab.devices import Accelerator, _doctor, _facts, _host, checkup, gather

_GPU = Accelerator("cuda:0", "NVIDIA T4", "cuda")


@pytest.fixture(scope="module")
def facts():
    """Return this machine's facts without its accelerators, and with room enough."""
    found = gather()
    roomy = dataclasses.replace(found.memory, available_bytes=2**35)
    return dataclasses.replace(found, accelerators=(), pci_gpus={}, disk_free_bytes=2**40, memory=roomy)


def _states(report):
    return {check.name: check.state for check in report.checks}


def test_a_machine_with_everything_is_ready(facts, tmp_path, monkeypatch):
    """All packages there and the folder writable: ready, with a line for each part."""
    monkeypatch.chdir(tmp_path)
    report = checkup(facts)
    assert report.ok
    assert report.text.endswith("Ready for class.")
    assert _states(report)["accelerator"] == "note"
    assert {"python", "numpy", "torch", "jupyterlab", "write access", "disk", "memory"} <= set(_states(report))
    assert type(report).from_dict(report.to_dict()) == report


@pytest.mark.parametrize(("version", "state"), [("1.26.4", "fix"), ("2.0", "ok"), ("2.0.0rc1", "ok"), ("10.0+local", "ok"), (None, "fix")])
def test_packages_are_held_against_the_oldest_that_works(monkeypatch, version, state):
    """Missing and old packages are to fix, with the command; versions compare by number, not by text."""

    def installed(name):
        if version is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return version

    monkeypatch.setattr(importlib.metadata, "version", installed)
    check = _doctor._package("numpy", "2.0")
    assert check.state == state
    assert bool(check.remedy) == (state == "fix")


def test_a_package_that_is_installed_in_part_is_to_fix(monkeypatch):
    """An interrupted installation leaves a folder without METADATA, and then importlib gives None as the version."""
    monkeypatch.setattr(importlib.metadata, "version", lambda name: None)
    check = _doctor._package("numpy", "2.0")
    assert (check.state, check.detail) == ("fix", "only a part of it is installed")
    assert "--ignore-installed 'numpy>=2.0'" in check.remedy
    assert _host.library_versions.__wrapped__() == {}


def test_every_package_that_the_course_requires_is_looked_for():
    """As pyproject.toml says, but for NVIDIA's compiler, which macOS has not: cells that need it say so."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = dict(each.split(">=") for each in project["dependencies"] if ";" not in each)
    assert dict(_doctor._NEEDED) == wanted


def test_an_old_python_is_to_fix(monkeypatch):
    """3.10 cannot run the course."""
    monkeypatch.setattr(sys, "version_info", (3, 10, 4))
    assert _doctor._python().state == "fix"
    assert "3.11" in _doctor._python().remedy


def test_a_folder_that_cannot_be_written_is_to_fix(tmp_path):
    """The reason is the system's own words."""
    check = _doctor._write_access(tmp_path / "not there")
    assert check.state == "fix"
    assert "No such file" in check.detail
    assert list(tmp_path.iterdir()) == []


def test_an_accelerator_must_compute_and_not_only_be_there(facts, monkeypatch):
    """A driver that lists the GPU and refuses to work is to fix; wrong numbers are too; the right sum is fine."""
    found = dataclasses.replace(facts, accelerators=(_GPU,))

    def refuse(device):
        raise RuntimeError("CUDA error: no kernel image is available\nmore lines")

    for work, state in ((refuse, "fix"), (lambda device: 1.0, "fix"), (lambda device: float(64**3), "ok")):
        monkeypatch.setattr(_doctor, "_torch_product", work)
        check = next(check for check in checkup(found).checks if check.name == "accelerator")
        assert check.state == state
        assert "\n" not in check.detail


def test_the_product_of_ones_is_the_one_that_is_expected():
    """On the CPU the small piece of work gives n cubed."""
    assert _doctor._torch_product("cpu") == 64**3


def test_problems_of_the_machine_are_in_the_report(facts):
    """An error is to fix, a warning is not, and a full disk is not also called fine."""
    full = checkup(dataclasses.replace(facts, disk_free_bytes=0))
    assert not full.ok
    assert _states(full)["low-disk"] == "fix"
    assert "disk" not in _states(full)
    assert full.text.endswith("1 thing to fix.")
    low = checkup(dataclasses.replace(facts, disk_free_bytes=3 * 2**30))
    assert _states(low)["low-disk"] == "warn"
    assert low.ok


@pytest.mark.gpu
def test_the_doctor_passes_the_gpu():
    """On a machine with a working GPU its line is ok."""
    assert _states(checkup())["accelerator"] == "ok"


def test_cupy_must_compute_where_there_is_a_gpu_for_it(facts, monkeypatch):
    """Not asked where it is not installed, or PyTorch uses no NVIDIA GPU; else it computes, or the line says how it failed."""
    there = dataclasses.replace(
        facts,
        cupy_packages=("cupy-cuda13x", "cupy"),
        libraries={"cupy-cuda13x": "14.0"},
        torch=dataclasses.replace(facts.torch, kind="cuda"),
    )
    monkeypatch.setattr(_doctor, "_cupy_product", lambda: 64.0**3)
    assert _doctor._cupy(there) == [_doctor.Check("cupy", "ok", "cupy-cuda13x 14.0, cupy")]
    assert _doctor._cupy(dataclasses.replace(there, cupy_packages=())) == []
    assert _doctor._cupy(dataclasses.replace(there, torch=dataclasses.replace(facts.torch, kind="rocm"))) == []

    def broken():
        raise ImportError("libnvrtc.so.13: cannot open\nmore" + "x" * 300)

    for work, words in (
        (broken, "ImportError: libnvrtc.so.13: cannot open"),
        (lambda: 7.0, "a product of ones sums to 7 and not to 262144."),
    ):
        monkeypatch.setattr(_doctor, "_cupy_product", work)
        (check,) = _doctor._cupy(there)
        assert (check.name, check.state) == ("cupy", "fix")
        assert check.detail == f"cupy-cuda13x and cupy does not compute: {words}"
        assert check.remedy == "See the lines about CuPy below, or run `make lab`."


def test_cupys_product_is_the_one_that_is_expected(monkeypatch):
    """By NumPy's arrays in its place: n cubed, brought back to the host."""

    class Array:
        def __init__(self, a):
            self.a = a

        def __matmul__(self, other):
            return Array(self.a @ other.a)

        def sum(self):
            return Array(self.a.sum())

        def get(self):
            return self.a

    stand_in = types.SimpleNamespace(ones=lambda shape, dtype: Array(np.ones(shape, dtype)), float32=np.float32)
    monkeypatch.setitem(sys.modules, "cupy", stand_in)
    assert _doctor._cupy_product() == 64**3


def test_the_report_in_words_by_hand():
    """One line a check, its remedy below; how many things are to be fixed, and which."""
    checks = (
        _doctor.Check("python", "ok", "3.12"), _doctor.Check("write access", "fix", "cannot.", "Do."), _doctor.Check("x", "note", "y", ""),
    )  # fmt: skip
    one, two = _doctor.Checkup(checks), _doctor.Checkup((*checks, _doctor.Check("disk", "fix", "full", "Free some.")))
    assert one.text == (
        "ok    python        3.12\nfix   write access  cannot.\n                    -> Do.\nnote  x             y\n\n1 thing to fix."
    )
    assert two.text.endswith("\n\n2 things to fix.")
    assert _doctor.Checkup(()).text == "\nReady for class."
    assert [repr(each) for each in (one, two, _doctor.Checkup(checks[:1]))] == [
        "<Checkup: fix write access>", "<Checkup: fix write access, disk>", "<Checkup: ready for class>",
    ]  # fmt: skip
    assert (one.ok, _doctor.Checkup(checks[::2]).ok) == (False, True)
    assert one.table() == (("check", "state", "found", "what to do"), [
        ("python", "ok", "3.12", ""), ("write access", "fix", "cannot.", "Do."), ("x", "note", "y", ""),
    ])  # fmt: skip


@pytest.mark.parametrize(("version", "numbers"), [
    ("2.13.0+cpu", (2, 13, 0)), ("3.0rc1", (3, 0)), ("8.1.5", (8, 1, 5)), ("12.560.30.dev1", (12, 560, 30)), ("unknown", ()),
])  # fmt: skip
def test_a_release_is_its_leading_numbers(version, numbers):
    """What follows them, or a build's name, says nothing of age."""
    assert _doctor._release(version) == numbers


def test_problems_are_told_once_and_a_line_that_called_it_fine_goes(facts):
    """A warning is no fix, information a note; what has a line of its own is not told twice."""
    low = dataclasses.replace(facts, memory=dataclasses.replace(facts.memory, available_bytes=2**30), translated=True)
    states = _states(checkup(low))
    assert (states["low-memory"], states["translated"], "memory" in states, states["disk"]) == ("warn", "warn", False, "ok")
    assert "no-accelerator" not in states
    assert "torch-missing" not in _states(checkup(dataclasses.replace(facts, torch=_facts.Torch())))
