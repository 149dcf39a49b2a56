"""What importing costs: nothing heavy for `import gpulab`, no notebook for the core."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HEAVY = ("torch", "cupy", "plotly", "ipywidgets", "anywidget", "IPython", "pandas", "jupyterlab")


def in_a_new_process(code: str) -> str:
    """Run code in a fresh interpreter; return what it printed."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_import_gpulab_loads_only_itself() -> None:
    """`import gpulab` brings gpulab's own __init__ and the standard library, not even numpy."""
    code = "import sys; before = set(sys.modules); import gpulab; import json; print(json.dumps(sorted(set(sys.modules) - before)))"
    loaded = {name.split(".")[0] for name in json.loads(in_a_new_process(code))}
    assert loaded - set(sys.stdlib_module_names) == {"gpulab"}


def test_public_core_modules_load_nothing_heavy() -> None:
    """Touching `gl.timing`, `gl.memory` and the rest loads no array library, plots or widgets; the first real call does."""
    code = f"""
import json, sys
import gpulab as gl
for name in gl._SUBMODULES:
    if name not in ("figures", "widgets", "models"):
        getattr(gl, name)
print(json.dumps([name for name in {HEAVY!r} if name in sys.modules]))
"""
    assert json.loads(in_a_new_process(code)) == []


def test_core_works_where_no_notebook_is_installed() -> None:
    """On a bare GPU machine without Jupyter, plotly and psutil, every core module imports and a measurement runs."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]["contracts"]
    (core,) = (contract["source_modules"] for contract in contracts if contract["id"] == "core")
    code = f"""
import importlib, pkgutil, sys

class Absent:
    names = {{"IPython", "anywidget", "ipywidgets", "plotly", "jupyterlab", "jupyter_server", "psutil", "pynvml", "traitlets"}}
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in self.names:
            raise ModuleNotFoundError(name, name=name)

sys.meta_path.insert(0, Absent())
for name in {core!r}:
    module = importlib.import_module(name)
    for below in pkgutil.walk_packages(getattr(module, "__path__", []), name + "."):
        importlib.import_module(below.name)
import gpulab as gl
m = gl.measure(sum, range(1000), device="cpu", deadline=0.2)
print(m.median_seconds > 0, gl.machine() is not None)
"""
    assert in_a_new_process(code).split() == ["True", "True"]
