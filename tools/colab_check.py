"""Check the helper package beside the versions that Google Colab has (tools/colab-pins.txt), in an environment of its own.

    python tools/colab_check.py            notebooks 00 to 07
    python tools/colab_check.py 04 08      these notebooks

It installs gpulab as the first cell of a notebook does on Colab, and holds: no package that was there has another version afterwards, and
none came but gpulab and NVIDIA's disassembler; every instrument is made and its panels bring their scripts; the notebooks run without an
error. By hand or on a schedule, since it fetches gigabytes. It needs Python 3.13 and has no GPU: a CUDA build of PyTorch counts as a CPU's.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import setup_env
from newest import normal

ROOT = Path(__file__).resolve().parent.parent
PINS = ROOT / "tools" / "colab-pins.txt"
VENV = ROOT / ".gpulab" / "venv-colab"
PYTHON = VENV / "bin" / "python"
COMES = {"gpulab", "nvidia-cuda-nvdisasm"}
# Each instrument as a notebook shows it: its state, and the scripts of its own widgets, are what a browser is sent.
INSTRUMENTS = """
import ipywidgets
from gpulab import widgets
for name in widgets.__all__:
    if name != "Instrument":
        shown = getattr(widgets, name)()
        parts = [part.get_state() for part in shown.children if part.get_state()["_model_module"] == "anywidget"]
        assert len(parts) >= 2 and all(part["_esm"] and part["_css"] for part in parts), name
        assert shown.get_state()["_model_module_version"] == "1.5.0" and shown.comm is not None, name
print(len(widgets.__all__) - 1, "instruments with ipywidgets", ipywidgets.__version__)
"""


def _run(*command: str | Path, **options: object) -> str:
    return subprocess.run([str(word) for word in command], check=True, stdout=subprocess.PIPE, text=True, **options).stdout  # type: ignore[call-overload, no-any-return]


def _pip(*arguments: str | Path) -> str:
    return _run(PYTHON, "-m", "pip", "--disable-pip-version-check", *arguments)


def build() -> None:
    """Make the environment anew. PyTorch's CPU build has its own index; PyPI's, for CUDA 13, is made to look like one."""
    python = next((command for command, version in setup_env.find_pythons() if version == (3, 13)), None)
    if python is None:
        raise setup_env.SetupError("colab-check: no Python 3.13 was found; expected Colab's. Install it, or start this with it.")
    _run(python, "-m", "venv", "--clear", VENV)
    answers = setup_env.index_answers("cpu")
    (torch,) = [line for line in PINS.read_text(encoding="utf-8").splitlines() if line.startswith("torch==")]
    _pip("install", "-q", torch, *(["--index-url", f"{setup_env.INDEX}cpu"] if answers else []))
    if not answers:
        (metadata,) = VENV.glob("lib/python*/site-packages/torch-*.dist-info/METADATA")
        kept = [line for line in metadata.read_text(encoding="utf-8").splitlines() if not line.startswith(("Requires-Dist: cuda", "Requires-Dist: nvidia"))]
        metadata.write_text("\n".join(kept), encoding="utf-8")
        _pip("uninstall", "-q", "-y", "nvidia-cuda-nvrtc")
    _pip("install", "-q", "-r", PINS)


def installed() -> dict[str, str]:
    """Return the version of each package in the environment."""
    return {normal(one["name"]): one["version"] for one in json.loads(_pip("list", "--format=json"))}


def main(numbers: list[str]) -> int:
    """Run the checks; return 1 where one failed."""
    build()
    before = installed()
    with tempfile.TemporaryDirectory() as folder:
        source = shutil.copytree(ROOT, Path(folder) / "gpulab", ignore=shutil.ignore_patterns(".*", "build", "my-notebooks"))
        _pip("install", "-q", source)
        after = installed()
        changed = [f"{name}: {version} -> {after.get(name)}" for name, version in before.items() if after.get(name) != version]
        failures = [*changed, *(f"{name} came" for name in sorted(after.keys() - before.keys() - COMES))]
        work = {"cwd": source / "notebooks", "env": {**os.environ, "GPULAB_QUICK": "1", "GPULAB_PROGRESS": str(source / "progress.json")}}
        cells = {"cells": [{"cell_type": "code", "id": "a", "metadata": {}, "outputs": [], "execution_count": None, "source": INSTRUMENTS}]}
        (source / "notebooks" / "instruments.ipynb").write_text(json.dumps({**cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}))
        for path in sorted((source / "notebooks").glob("*.ipynb")):
            if path.stem == "instruments" or path.name[:2] in (numbers or [f"{number:02}" for number in range(8)]):
                code = subprocess.run([str(VENV / "bin" / "jupyter-execute"), "--timeout=900", "--kernel_name=python3", path.name], check=False, **work).returncode
                print(f"{path.stem}: {'ran' if code == 0 else 'FAILED'}", flush=True)
                failures += [path.stem] if code else []
    print("\n".join(["FAILED:", *failures]) if failures else "Nothing changed, and everything ran.")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
