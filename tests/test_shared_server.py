"""A server that a class shares: its configuration names what gpulab and Jupyter have."""

import re
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

CONFIG = Path(__file__).resolve().parents[1] / "docs" / "jupyterhub_config.py"


class Config(dict):
    """Stand in for traitlets' Config, which creates a section on first access."""

    def __getattr__(self, name: str) -> Any:
        return self.setdefault(name, Config())

    __setattr__ = dict.__setitem__


def spawner() -> Any:
    """The configuration's section on the students' servers."""
    config = Config()
    text = CONFIG.read_text(encoding="utf-8")
    exec(compile(text, str(CONFIG), "exec"), {"get_config": lambda: config})
    return config["Spawner"]


def test_the_configuration_names_what_exists() -> None:
    """Each GPULAB_ variable is one that the package reads; the lock folder survives a reboot."""
    environment = spawner()["environment"]
    files = (CONFIG.parents[1] / "gpulab").rglob("*.py")
    package = "\n".join(file.read_text(encoding="utf-8") for file in files)
    names = {name for name in environment if name.startswith("GPULAB_")}
    assert names == {"GPULAB_GPU_MEMORY", "GPULAB_LOCK_DIR", "GPULAB_SOLUTIONS"}
    assert all(f'"{name}"' in package for name in names)
    folder = PurePosixPath(environment["GPULAB_LOCK_DIR"])
    emptied = ("/run", "/tmp", "/var/lock", "/var/run")  # at each boot, by the FHS
    assert not any(folder.is_relative_to(place) for place in emptied)
    for page in (CONFIG, CONFIG.with_name("classroom.md")):
        text = page.read_text(encoding="utf-8")
        assert re.findall(r"install -d -m 1777 ([\w/]+)", text) == [str(folder)]


def test_the_options_are_the_servers_own() -> None:
    """Each option of the configuration is a trait of Jupyter's kernel manager, its value valid."""
    kernels = pytest.importorskip("jupyter_server.services.kernels.kernelmanager")
    for option in spawner()["args"]:
        kind, name, text = re.fullmatch(r"--(\w+)\.(\w+)=(\w+)", option).groups()
        trait = getattr(kernels, kind).class_traits()[name]
        assert trait.validate(None, trait.from_string(text)) in (20 * 60, 60, True)
