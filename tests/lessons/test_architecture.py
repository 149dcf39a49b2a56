"""What notebook 01 hands out: two processors side by side, the kernels as the notebook shows them, curves that are kept."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import pathlib
import types

import pytest

from gpulab import devices, hierarchy, lessons, recordings
from gpulab.evidence import Badge, Evidence, Note
from gpulab.lessons import _architecture, _branches

NOTEBOOK = pathlib.Path(__file__).parents[2] / "notebooks" / "01_gpu_architecture.ipynb"


def _without_words(function: ast.FunctionDef) -> str:
    """The statements without docstring and annotations."""
    body = [s for s in function.body if not (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant))]
    return "\n".join(ast.unparse(s) for s in body)


def test_the_check_runs_the_kernels_that_the_notebook_shows() -> None:
    """The three kernels of exercise 01.3 are, statement by statement, those in the notebook's cell."""
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    shown = ast.parse("".join(next(cell["source"] for cell in cells if "def a(out)" in "".join(cell["source"]))))
    theirs = {f.name: _without_words(f) for f in shown.body if isinstance(f, ast.FunctionDef)}
    ours = {k.__name__: _without_words(ast.parse(inspect.getsource(k)).body[0]) for k in _branches.BRANCHES}
    assert theirs == ours


def test_side_by_side_tells_the_published_figures_of_an_h200(monkeypatch: pytest.MonkeyPatch) -> None:
    """132 multiprocessors of 128 float32 units, 2,048 threads, 256 KiB of registers, 228 KiB shared, 4.8 TB/s, 67 TFLOP/s."""
    if not devices.default().is_cpu:
        pytest.skip("this machine has a GPU, which is shown in place of the data sheet")
    monkeypatch.setattr(recordings, "readable", dict)
    s = lessons.side_by_side()
    assert [row[2] for row in s.rows] == ["132", "128", "2,048", "256 KiB", "228 KiB", "4.80 TB/s", "67.0 TFLOP/s"]
    assert s.evidence.badge is Badge.MODELLED
    assert s.cpu_evidence.badge is Badge.MEASURED
    assert s.rows[0][1] == _architecture._cores(devices.machine().processor)


def test_a_recorded_gpu_comes_before_the_data_sheet() -> None:
    """Its shape is the recorded machine's; its rates are the best recorded stream and the float32 product, from the file by hand."""
    if not devices.default().is_cpu:
        pytest.skip("this machine has a GPU, which is shown in place of a recorded one")
    file = json.loads((recordings.directory() / "nvidia-h200.json").read_text(encoding="utf-8"))
    made = [e for e in file["entries"] if e["experiment"] == "ceilings"]
    best = max(e["timing"]["nbytes"] / e["timing"]["median_seconds"] for e in made if e["params"]["operation"] != "gemm")
    (product,) = (e["timing"] for e in made if e["params"]["operation"] == "gemm" and e["params"]["dtype"] == "float32")
    s = lessons.side_by_side()
    assert s.evidence.badge is Badge.RECORDED
    assert s.gpu == file["environment"]["device"]
    shown = [row[2] for row in s.rows]
    assert shown[0] == str(file["machine"]["accelerators"][0]["multiprocessors"])
    assert shown[5] == f"{best / 1e12:.2f} TB/s"
    assert shown[6] == f"{product['flops'] / product['median_seconds'] / 1e12:.1f} TFLOP/s"
    assert "the GPU's rates" in s.caption()
    assert "gpulab record" in s.caption()


# What the ceilings advise, and what 01's table makes of it: the call that there is.
_ADVICE = "far too low; measure again with refresh=True when it is quiet."
_REFRESH = 'gl.devices.ceilings("{}", refresh=True), then run this cell again, when it is quiet.'


def test_a_gpu_of_ones_own_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its rates are those just shown, float32 without Tensor Cores; 128 units for compute capability 9.0 (CUDA Programming Guide)."""
    host, where = devices.ceilings("cpu"), devices.Device("cuda", 1)
    slow = (Note("throttled", "The GPU."), *host.notes)
    shown = dataclasses.replace(
        host,
        memory=(devices.MemoryCeiling("DRAM", 1e11, 2**30, 4.2e12, 4.35e12, 4.3e12),),
        flops_per_second={"float32": 51e12, "tf32": 388e12},
        notes=slow,
        evidence=Evidence.measured("NVIDIA H200, best of 7 runs"),
    )
    machine = types.SimpleNamespace(
        processor=devices.machine().processor,
        accelerators=tuple(types.SimpleNamespace(compute_capability="9.0", multiprocessors=n) for n in (20, 132)),
    )
    monkeypatch.setattr(devices, "default", lambda: where)
    monkeypatch.setattr(devices.Device, "name", "NVIDIA H200")
    monkeypatch.setattr(devices, "machine", lambda: machine)
    monkeypatch.setattr(devices, "ceilings", lambda device: host if device == "cpu" else shown)
    s = lessons.side_by_side()
    assert [row[2] for row in s.rows] == ["132", "128", "2,048", "256 KiB", "228 KiB", "4.35 TB/s", "51.0 TFLOP/s"]
    assert s.evidence.badge is Badge.MEASURED
    assert "the GPU's rates" in s.caption()
    assert [note.code for note in s.notes].count("throttled") == 1
    advice = f"far too low; measure again with {_REFRESH}"
    monkeypatch.setattr(devices, "ceilings", lambda device: dataclasses.replace(
        host if device == "cpu" else shown, notes=(Note("contended" if device == "cpu" else "throttled", f"So {_ADVICE}"),)
    ))  # fmt: skip
    cells = [row[1] for row in lessons.side_by_side().table()[1] if row[0].startswith("note")]
    assert cells == [f"So {advice.format(name)}" for name in ("cpu", "cuda:1")]
    for unknown in ("6.1", None):  # older than the table of limits, or not reported
        machine.accelerators[1].compute_capability = unknown
        assert [row[2] for row in lessons.side_by_side().rows][2:5] == ["not known"] * 3


@pytest.mark.parametrize(
    ("simd", "architecture", "numbers", "nbytes"),
    [
        (("sse2", "avx", "avx2", "avx512f"), "x86_64", 16, 32 * 64), (("sse2", "avx", "avx2"), "x86_64", 8, 16 * 32),
        (("sse2", "avx"), "x86_64", 8, 16 * 32), (("sse2",), "x86_64", 4, 16 * 16), (("neon",), "armv7l", 4, 32 * 16),
        (("asimd",), "aarch64", 4, 32 * 16), ((), "arm64", 4, 32 * 16), ((), "riscv64", 0, 0),
    ],
)  # fmt: skip
def test_vector_registers_by_the_manuals(simd: tuple[str, ...], architecture: str, numbers: int, nbytes: int) -> None:
    """32 of 512 bits with AVX-512, 16 of 256 with AVX, 16 of 128 with SSE2 (Intel SDM vol. 1); 32 of 128 on ARM (Arm ARM)."""
    processor = types.SimpleNamespace(simd=simd, architecture=architecture)
    assert _architecture._vector(processor) == (numbers, nbytes)  # type: ignore[arg-type]


def test_cores_are_counted_once_however_many_threads_they_run() -> None:
    """Eight cores of two threads each, six processors of a machine with eight cores, and a system that does not tell its cores."""
    for usable, physical, words in ((16, 8, "8 (with 16 threads)"), (6, 8, "6"), (8, 8, "8"), (4, None, "4")):
        processor = types.SimpleNamespace(usable_cores=usable, physical_cores=physical)
        assert _architecture._cores(processor) == words  # type: ignore[arg-type]


@pytest.mark.parametrize("known", [True, False])
def test_the_column_of_the_cpu(known: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a processor whose figures are known, and of one that tells nothing."""
    processor = types.SimpleNamespace(
        name="A CPU",
        usable_cores=6,
        physical_cores=8 if known else None,
        simd=("avx2",) if known else (),
        architecture="x86_64",
        caches=("L1 32 KiB", "L2 1 MiB") if known else (),
    )
    shown = types.SimpleNamespace(bandwidth=lambda: 2e10, flops_per_second={"float32": 3e11}, notes=(), evidence=Evidence.measured("A CPU"))
    monkeypatch.setattr(devices, "machine", lambda: types.SimpleNamespace(processor=processor))
    monkeypatch.setattr(devices, "ceilings", lambda device: shown)
    monkeypatch.setattr(devices, "default", lambda: devices.Device("cpu"))
    monkeypatch.setattr(recordings, "readable", dict)
    assert [row[1] for row in lessons.side_by_side().rows] == [
        "6", "8" if known else "not reported", "1 or 2", "512 B of vector registers" if known else "not reported",
        "L1 32 KiB, L2 1 MiB" if known else "not reported", "20.0 GB/s (all cores)", "300 GFLOP/s (all cores, matrix product)",
    ]  # fmt: skip


def test_curves_of_a_gpu_of_ones_own_are_measured_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its latency and its bandwidth, and no recorded ones beside them."""
    where = devices.Device("cuda", 0)
    monkeypatch.setattr(devices, "default", lambda: where)
    monkeypatch.setattr(hierarchy, "latency", lambda device, **options: ("latency", device))
    monkeypatch.setattr(hierarchy, "bandwidth", lambda device, **options: ("bandwidth", device))
    assert (lessons.gpu_curves(), lessons.gpu_streams()) == ((("latency", where),), (("bandwidth", where),))


def test_the_curve_is_measured_once_and_again_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check sees the curve that the learner saw."""
    made = []
    monkeypatch.setattr(_architecture, "_curve", None)
    monkeypatch.setattr(hierarchy, "latency", lambda **options: made.append(options) or object())
    first = lessons.memory_curve()
    assert lessons.memory_curve() is first
    assert lessons.memory_curve(again=True) is not first
    assert len(made) == 2


def test_curves_of_gpus_are_recorded_ones_or_none() -> None:
    """On a machine without a GPU no CPU's recording passes for a GPU's."""
    if not devices.default().is_cpu:
        pytest.skip("this machine has a GPU, whose own curve is measured")
    assert all(curve.environment.device_kind != "cpu" and curve.evidence.badge is Badge.RECORDED for curve in lessons.gpu_curves())
