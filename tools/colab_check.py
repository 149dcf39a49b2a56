"""Check the helper package with the versions of Google Colab (tools/colab-pins.txt).

    python tools/colab_check.py            with notebooks 00 to 07
    python tools/colab_check.py 04 08      with these notebooks

It installs gpulab as the first cell of a notebook does on Colab, and then checks that:

- no package has changed its version, and only gpulab and NVIDIA's disassembler were added;
- every instrument can be made, and its panels contain their scripts;
- the notebooks run without an error.

Run it by hand or on a schedule, since it fetches gigabytes. It needs Python 3.13, and runs without
a GPU and outside Colab.
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
COMES = {"gpulab", "nvidia-cuda-nvdisasm"}
# A check of what each instrument sends to a browser: the box of ipywidgets 7, and in it the scripts
# of gpulab's own panels.
INSTRUMENTS = """
from gpulab import widgets
for name in widgets.__all__:
    if hasattr(getattr(widgets, name), "draw") and name != "Instrument":
        shown = getattr(widgets, name)()
        states = [(panel.comm, panel.get_state()) for panel in shown.children]
        panels = [(c, state) for c, state in states if state["_model_module"] == "anywidget"]
        assert len(panels) >= 2 and all(c and state["_esm"] for c, state in panels), name
        assert shown.comm and shown.get_state()["_model_module_version"] == "1.5.0", name
"""


def _pip(*arguments: str | Path) -> str:
    command = [VENV / "bin" / "python", "-m", "pip", "--disable-pip-version-check", *arguments]
    environment = {**os.environ, "PIP_USER": "0"}
    return subprocess.run(
        command, check=True, stdout=subprocess.PIPE, text=True, env=environment
    ).stdout


def build() -> None:
    """Make the environment anew, with the pinned packages."""
    python = next(
        (command for command, version in setup_env.find_pythons() if version == (3, 13)), None
    )
    if python is None:
        raise SystemExit(
            "colab-check: no Python 3.13 was found; expected it, as on Colab. Install it, or run "
            "this file with it."
        )
    subprocess.run([python, "-m", "venv", "--clear", VENV], check=True)
    torch = next(
        line for line in PINS.read_text(encoding="utf-8").splitlines() if line.startswith("torch==")
    )
    if setup_env.index_answers("cpu"):
        _pip("install", "-q", torch, "--index-url", f"{setup_env.INDEX}cpu")
    else:
        # PyPI's build is for CUDA 13, Colab's for CUDA 12: the metadata must not require CUDA 13's
        # packages, and its compiler must not be found
        _pip("install", "-q", torch)
        facts = next(VENV.glob("lib/python*/site-packages/torch-*.dist-info/METADATA"))
        lines = facts.read_text(encoding="utf-8").splitlines(keepends=True)
        facts.write_text(
            "".join(
                line
                for line in lines
                if not line.startswith(("Requires-Dist: cuda-", "Requires-Dist: nvidia-"))
            )
        )
        _pip("uninstall", "-q", "-y", "nvidia-cuda-nvrtc")
    _pip("install", "-q", "-r", PINS)


def installed() -> dict[str, str]:
    """Return the version of each package in the environment."""
    return {
        normal(one["name"]): one["version"] for one in json.loads(_pip("list", "--format=json"))
    }


def changes(folder: Path) -> list[str]:
    """Install gpulab from a copy of the project; return the unwanted changes of packages, one
    sentence each.
    """
    before = installed()
    _pip("install", "-q", folder)
    after = installed()
    other = [
        f"{name} {version} became {after.get(name)}"
        for name, version in before.items()
        if after.get(name) != version
    ]
    return [*other, *(f"{name} came" for name in sorted(after.keys() - before.keys() - COMES))]


def runs(notebook: Path) -> bool:
    """Run a notebook; return whether no cell failed."""
    command = [
        VENV / "bin" / "jupyter-execute",
        "--timeout=900",
        "--kernel_name=python3",
        notebook.name,
    ]
    quick = {"GPULAB_QUICK": "1", "GPULAB_PROGRESS": str(notebook.parent / "progress.json")}
    good = (
        subprocess.run(
            command, check=False, cwd=notebook.parent, env={**os.environ, **quick}
        ).returncode
        == 0
    )
    print(f"{notebook.stem}: {'ran' if good else 'FAILED'}", flush=True)
    return good


def main(numbers: list[str]) -> int:
    """Run the checks; return 1 where one failed, 2 where a notebook does not exist."""
    wanted = numbers or [f"{number:02}" for number in range(8)]
    there = [path.name[:2] for path in sorted((ROOT / "notebooks").glob("*.ipynb"))]
    if not set(wanted) <= set(there):
        print(
            f"colab-check: there is no notebook {', '.join(sorted(set(wanted) - set(there)))}; "
            f"expected some of {' '.join(there)}.",
            file=sys.stderr,
        )
        return 2
    build()
    with tempfile.TemporaryDirectory() as made:
        folder = Path(
            shutil.copytree(
                ROOT,
                Path(made) / "gpulab",
                ignore=shutil.ignore_patterns(
                    ".*", "build", "my-notebooks", "wheels", "course-pages"
                ),
            )
        )
        failed, notebooks = changes(folder), folder / "notebooks"
        cell = {
            "cell_type": "code",
            "id": "a",
            "metadata": {},
            "outputs": [],
            "execution_count": None,
            "source": INSTRUMENTS,
        }
        (notebooks / "instruments.ipynb").write_text(
            json.dumps({"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 5})
        )
        chosen = [path for path in sorted(notebooks.glob("*.ipynb")) if path.name[:2] in wanted]
        failed += [
            f"{path.stem} failed"
            for path in (notebooks / "instruments.ipynb", *chosen)
            if not runs(path)
        ]
    print("\n".join(failed or ["Nothing changed, and everything ran."]))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
