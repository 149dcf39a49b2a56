"""What importing gpulab loads, counted in fresh processes."""

import pathlib
import subprocess
import sys

import pytest

import gpulab

HEAVY = ("torch", "cupy", "plotly", "ipywidgets", "IPython", "anywidget", "psutil", "pynvml", "jupyterlab", "pandas", "scipy")
NOT_IN_CORE = ("plotly", "ipywidgets", "IPython", "anywidget", "jupyterlab")
_PACKAGE = pathlib.Path(gpulab.__file__).parent
# Above the core by design: pictures, instruments, magics, and the commands that start JupyterLab.
# _network_modules defines torch modules and is imported only inside functions.
_ABOVE = {"_network_modules", "figures", "widgets", "magics", "cli", "_html", "_lab", "_working_copy", "_jupyter", "__init__"}
_CORE = sorted(p.stem for p in _PACKAGE.iterdir() if (p.suffix == ".py" or (p / "__init__.py").is_file()) and p.stem not in _ABOVE)


def _loaded(code, names):
    """Run code in a fresh process and return which of the modules it loaded."""
    script = f"import sys\n{code}\nprint([name for name in {names!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True)
    return done.stdout.splitlines()[-1]


def test_import_gpulab_loads_nothing_heavy():
    """`import gpulab` leaves even numpy alone; every public name loads on first use."""
    assert _loaded("import gpulab", (*HEAVY, "numpy")) == "[]"


def test_the_core_modules_load_no_array_library_and_no_plots():
    """Importing every core module at once loads neither torch nor CuPy, nor anything of the notebook."""
    code = "\n".join(f"import gpulab.{name}" for name in _CORE)
    assert _loaded(code, HEAVY) == "[]"


def test_using_the_core_needs_no_notebook():
    """machine(), share() and the doctor run without plotly, ipywidgets or IPython being loaded."""
    uses = ("gl.machine()._repr_html_()", "gl.share(np.zeros(3), 'torch')", "gl.devices.spec('cpu')", "gl.devices.checkup()")
    code = "\n".join(("import gpulab as gl, numpy as np", *uses))
    assert _loaded(code, NOT_IN_CORE) == "[]"


def test_every_module_of_the_core_is_looked_at():
    """The list is read from the folder, so a new module cannot escape."""
    assert {"arrays", "devices", "evidence", "timing", "workloads"} <= set(_CORE)


def test_public_names_are_listed_and_unknown_ones_say_what_exists():
    """dir() shows what can be used; a misspelt name lists the public ones."""
    assert set(gpulab.__all__) <= set(dir(gpulab))
    with pytest.raises(AttributeError, match=r"no attribute 'machnie'.*machine"):
        _ = gpulab.machnie


def test_every_public_name_can_be_fetched():
    """Nothing that gpulab promises is missing, so `from gpulab import *` works."""
    for name in gpulab.__all__:
        assert getattr(gpulab, name) is not None
