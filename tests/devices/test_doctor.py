"""The check before class."""

import dataclasses
import importlib.metadata
import sys
import tomllib
from pathlib import Path

import pytest

from gpulab.devices import Accelerator, _doctor, checkup, gather

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
