"""On a machine with a GPU: run the tests marked ``gpu``, the notebooks where Jupyter is there, and
the comparisons with hardware.

Works with any Python that has torch, pytest and hypothesis, so that a bare GPU machine needs no
set-up: ``PYTHON=python3 make gpu-check``. Only the test files that hold gpu tests are collected,
because others may need packages that such a machine lacks.

The comparisons (Nsight Compute's counters, the driver's occupancy, cuBLAS) leave their files in
``.gpulab/gpu-check``, or in the folder that GPULAB_RECORD_TO names. A comparison that cannot run
says in one sentence what it lacks; that does not count as a failure.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NEEDED = ("numpy", "torch", "pytest", "hypothesis")  # by the test files that hold gpu tests
COMPARISONS = ("hardware_counters", "hardware_occupancy", "hardware_matmul")


def gpu_test_files() -> list[str]:
    """Return the test files that hold gpu tests."""
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    return [
        str(path.relative_to(ROOT))
        for path in files
        if _marks_gpu(path.read_text(encoding="utf-8"))
    ]


def _marks_gpu(text: str) -> bool:
    """Return whether a test file's own code marks a test with gpu, and not just a string in the
    file.
    """
    if "mark.gpu" not in text:
        return False
    return any(
        isinstance(node, ast.Attribute) and ast.unparse(node) == "pytest.mark.gpu"
        for node in ast.walk(ast.parse(text))
    )


def missing_modules(names: tuple[str, ...]) -> list[str]:
    """Return the modules that this Python lacks."""
    return [name for name in names if importlib.util.find_spec(name) is None]


def compare_with_hardware(environment: dict[str, str]) -> list[int]:
    """Run the comparisons with hardware, each in a process of its own; return their exit codes."""
    folder = Path(environment.get("GPULAB_RECORD_TO") or ROOT / ".gpulab" / "gpu-check").resolve()
    codes = []
    for name in COMPARISONS:
        print(f"gpu-check: {name}", flush=True)
        command = [sys.executable, str(ROOT / "benchmarks" / f"{name}.py"), "--record", str(folder)]
        codes.append(subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode)
    if any(folder.glob("*.json")):
        print(
            f"gpu-check: what was compared lies in {folder}. Explain there what differs, and "
            "commit the files to benchmarks/recorded."
        )
    return codes


def main(arguments: list[str]) -> int:
    """Run the checks; return the exit code."""
    missing = missing_modules(NEEDED)
    if missing:
        print(
            f"gpu-check: {sys.executable} lacks {', '.join(missing)}; expected "
            f"{', '.join(NEEDED)}. Install them there.",
            file=sys.stderr,
        )
        return 2
    import torch

    if not torch.cuda.is_available():
        print(
            f"gpu-check: torch {torch.__version__} sees no CUDA device; expected one. `gpulab "
            "doctor` says what is wrong.",
            file=sys.stderr,
        )
        return 1
    print(
        f"gpu-check: {torch.cuda.get_device_name()}, torch {torch.__version__}, CUDA "
        f"{torch.version.cuda}, Python {sys.version.split()[0]}"
    )
    targets = gpu_test_files()
    # -v prints each result at once: the machine may be gone early. One file whose imports fail
    # there must not keep the others from running.
    options = ["-m", "gpu", "-v", "--continue-on-collection-errors"]
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "GPULAB_REQUIRE_GPU": "1", "PYTHONPATH": path}
    results = [
        subprocess.run(
            [sys.executable, "-m", "pytest", *options, *targets, *arguments],
            cwd=ROOT,
            env=environment,
            check=False,
        ).returncode
    ]
    absent = missing_modules(("nbval", "ipykernel", "ipywidgets", "plotly"))
    if absent:
        print(f"gpu-check: the notebooks were not run, since {', '.join(absent)} is missing here.")
    else:
        notebooks = [str(p.relative_to(ROOT)) for p in sorted((ROOT / "notebooks").glob("*.ipynb"))]
        nbval = ["--nbval-lax", "--nbval-cell-timeout=120", *notebooks]
        results.append(
            subprocess.run(
                [sys.executable, "-m", "pytest", *nbval], cwd=ROOT, env=environment, check=False
            ).returncode
        )
    results += compare_with_hardware(environment)
    return 1 if any(results) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
