"""What notebook 04 shows beside its kernels: passes over memory, ladders with their times, the compiler's facts."""

from __future__ import annotations

import dataclasses
import json
import types
from typing import Any

import numpy as np
import pytest

from gpulab import lessons, models, recordings
from gpulab.errors import CompileError, InputError, KernelError, MissingLibraryError
from gpulab.evidence import Badge, Evidence
from gpulab.lessons import _climb, _passes
from gpulab.lessons._nb04 import LESSON
from gpulab.recorder import Case, Experiment
from gpulab.recordings import Entry, Timing

X = np.linspace(-2, 2, 1000, dtype=np.float32)


def test_passes_are_counted_by_hand():
    """0.5 x (1 + tanh(0.8 x)): four walks that read one array and write one, and one that reads two: 4 * 8 + 12 bytes."""
    passes = lessons.numpy_passes(lambda x: 0.5 * x * (1 + np.tanh(0.8 * x)), X)
    assert passes.steps.count("multiply") == 3
    assert len(passes.steps) == 5
    assert passes.nbytes == 44 * X.size
    assert passes.bytes_per_element == 44


@pytest.mark.parametrize(
    ("fn", "expected"),
    [
        (lambda x: x + 1, 8), (lambda x: x + x, 12), (lambda x: np.sqrt(x * x), 20), (lambda x: x.astype(np.float64), 0),
        (lambda x: x > 0, 5), (np.add.reduce, 4 + 4 / 1000), (lambda x: 5, 0),
    ],
)  # fmt: skip
def test_passes_count_what_is_read_and_written(fn: Any, expected: float):
    """Each ufunc reads its arrays (numbers are free) and writes its result: a comparison 1 byte, a sum one number in all."""
    assert lessons.numpy_passes(fn, X).bytes_per_element == expected


def _in_place(x: np.ndarray) -> np.ndarray:
    y = 0.5 * x
    y *= x
    return y


@pytest.mark.parametrize(
    ("fn", "steps", "expected"),
    [
        (_in_place, ("multiply", "multiply"), 8 + 12), (lambda x: np.multiply(x, 2, out=x), ("multiply",), 8),
        (lambda x: np.tanh(np.add(x, 1, out=np.empty_like(x))), ("add", "tanh"), 16), (np.modf, ("modf",), 12),
        (lambda x: x[1:] - x[:-1], ("subtract",), 12 * 0.999), (lambda x: np.add(x, x, out=x, where=x > 0), ("greater", "add"), 5 + 13),
    ],
)  # fmt: skip
def test_passes_of_formulas_in_place_of_slices_and_of_two_results(fn: Any, steps: tuple[str, ...], expected: float):
    """In place an array is read and written as ever (by hand: 4 bytes each way); a mask is read too, a byte an element."""
    found = lessons.numpy_passes(fn, X.copy())
    assert found.steps == steps
    assert found.bytes_per_element == pytest.approx(expected)


def test_a_formula_in_place_gives_the_numbers_that_numpy_gives():
    """The array itself comes back from an operation in place, changed."""
    kept: list[np.ndarray] = []
    lessons.numpy_passes(lambda x: kept.append(_in_place(x)), X)
    assert np.array_equal(np.asarray(kept[0]), _in_place(X))


def test_passes_refuse_what_is_no_array():
    """A list has no bytes to count."""
    for x in ([1, 2], None, 5, np.zeros(0)):
        with pytest.raises(InputError, match="numpy_passes: x="):
            lessons.numpy_passes(np.sqrt, x)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="numpy_passes: fn="):
        lessons.numpy_passes(5, X)  # type: ignore[arg-type]


def test_spellings_name_what_was_not_run(monkeypatch: pytest.MonkeyPatch):
    """NumPy is measured; the others say why they are not where there is no GPU."""
    from gpulab import devices

    monkeypatch.setattr(_passes.devices, "default", lambda: devices.find("cpu"))
    found = lessons.spellings(10_000)
    assert [row.name for row in found.rows if row.seconds is not None] == ["NumPy, on the CPU"]
    assert all(row.reason == "no CUDA device here" for row in found.rows[1:])
    assert found.evidence.badge is Badge.MEASURED
    for n in (0, -1, 1.5, True, "5"):
        with pytest.raises(InputError, match="spellings: n="):
            lessons.spellings(n)  # type: ignore[arg-type]


def test_spellings_show_the_recorded_kernel_at_its_size(monkeypatch: pytest.MonkeyPatch):
    """Without a GPU our kernel's time is the file's, named and badged; at a size that was not recorded there is none."""
    from gpulab import devices

    monkeypatch.setattr(_passes.devices, "default", lambda: devices.find("cpu"))
    file = json.loads((recordings.directory() / "nvidia-h200.json").read_text(encoding="utf-8"))
    (taken,) = (
        e["timing"]["median_seconds"] for e in file["entries"]
        if e["experiment"] == "ladders" and e["params"]["rung"] == "elementwise-each" and e["params"]["n"] == 2**22
    )  # fmt: skip
    far = next(row for row in lessons.spellings(2**22).rows if "(RECORDED)" in row.name)
    assert far.seconds == taken
    assert far.reason.startswith("RECORDED on NVIDIA H200")
    assert not any("(RECORDED)" in row.name for row in lessons.spellings(12_345).rows)


def test_triton_computes_the_same_gate():
    """(1 + tanh(0.8 x)) / 2 is sigmoid(1.6 x), which the Triton kernel uses."""
    x = X.astype(np.float64)
    np.testing.assert_allclose(0.5 * x * (1 + np.tanh(0.8 * x)), x / (1 + np.exp(-1.6 * x)), rtol=1e-12)


def test_a_ladder_without_times_says_so():
    """Nothing is made up: no GPU and no recording is "not recorded yet"."""
    table = _climb.LadderTable("transpose", 128, 2048, lessons.climb("transpose").rows, lessons.climb("transpose").evidence, None)
    _, rows = table.table()
    assert [row[0] for row in rows] == ["naive", "tiled", "padded"]
    bare = dataclasses.replace(table, rows=tuple(dataclasses.replace(row, seconds=None) for row in table.rows))
    assert {row[-1] for row in bare.table()[1]} == {"not recorded yet"}
    assert "not recorded yet" in bare.caption()
    with pytest.raises(InputError, match="is no ladder"):
        lessons.climb("stairs")
    with pytest.raises(KeyError):
        table.of("transpose-nothing")


def test_recorded_times_carry_their_machine(monkeypatch: pytest.MonkeyPatch):
    """The best of a rung's options is shown, under RECORDED, beside the counts."""
    timings = [
        Timing(np.array([s]), 1, s, None, s, s, None, 1, 2.0 * 1024**3, None, ()) for s in (4e-3, 3e-3, 5e-3)
    ]  # fmt: skip
    params: list[dict[str, Any]] = [
        {"family": "matmul", "rung": "matmul-tiled", "n": 1024},
        {"family": "matmul", "rung": "matmul-warp-tiled", "n": 1024, "options": ""},
        {"family": "matmul", "rung": "matmul-warp-tiled", "n": 1024, "options": "-DDEPTH=8"},
    ]
    entries = tuple(Entry("ladders", p, t, None) for p, t in zip(params, timings, strict=True))
    recording = next(iter(recordings.readable().values()))
    recording = dataclasses.replace(recording, entries=entries, environment=dataclasses.replace(recording.environment, device_kind="cuda"))
    monkeypatch.setattr(recordings, "readable", lambda: {"an example": recording})
    monkeypatch.setattr(_climb.devices, "default", lambda: __import__("gpulab").devices.find("cpu"))
    table = lessons.climb("matmul")
    seconds = {row.rung: row.seconds for row in table.rows}
    assert seconds["matmul-tiled"] == 4e-3
    assert seconds["matmul-warp-tiled"] == 3e-3
    assert seconds["matmul-naive"] is None
    assert table.times is not None
    assert table.times.badge is Badge.RECORDED
    headers, rows = table.table()
    assert headers[-1] == "RECORDED: time, n = 1,024"
    assert "537 GFLOP/s" in next(row[-1] for row in rows if row[0] == "tiled")  # 2 * 1024^3 / 4 ms


def test_a_recording_that_was_cut_short_is_shown_at_the_size_that_has_most_rungs(monkeypatch: pytest.MonkeyPatch):
    """One rung of the larger size was reached, two of the smaller: the smaller is shown; with as many of both, the larger."""

    def entry(rung: str, n: int) -> Entry:
        seconds = 1e-3 * n / 1024
        timing = Timing(np.array([seconds]), 1, seconds, None, seconds, seconds, None, 1, 1.0, None, ())
        return Entry("ladders", {"family": "matmul", "rung": rung, "n": n}, timing, None)

    first = next(iter(recordings.readable().values()))
    gpu = dataclasses.replace(first.environment, device_kind="cuda")
    monkeypatch.setattr(_climb.devices, "default", lambda: __import__("gpulab").devices.find("cpu"))
    both = [entry("matmul-naive", 1024), entry("matmul-tiled", 1024), entry("matmul-naive", 4096)]
    for entries, size, seconds in ((both, 1024, [1e-3, 1e-3]), ([*both, entry("matmul-tiled", 4096)], 4096, [4e-3, 4e-3])):
        recording = dataclasses.replace(first, entries=tuple(entries), environment=gpu)
        monkeypatch.setattr(recordings, "readable", lambda recording=recording: {"an example": recording})
        table = lessons.climb("matmul")
        assert table.timed_n == size
        assert [row.seconds for row in table.rows if row.seconds is not None] == seconds


def test_a_recorded_ladder_shows_its_largest_size_and_what_each_rung_reaches(monkeypatch: pytest.MonkeyPatch):
    """From the file by hand: at n = 8192 a transpose moves 2 * 8192^2 * 4 bytes; at n = 4096 the tiled product takes 6.5 library ones."""
    monkeypatch.setattr(_climb.devices, "default", lambda: __import__("gpulab").devices.find("cpu"))
    file = json.loads((recordings.directory() / "nvidia-h200.json").read_text(encoding="utf-8"))
    seconds = {
        (entry["params"]["rung"], entry["params"]["n"]): entry["timing"]["median_seconds"]
        for entry in file["entries"] if entry["experiment"] == "ladders" and not entry["params"].get("options")
    }  # fmt: skip
    turned = lessons.climb("transpose")
    assert turned.timed_n == 8192
    rate = 2 * 8192**2 * 4 / seconds["transpose-padded", 8192]
    assert turned.table()[1][-1][-1].endswith(f", {rate / 1e12:.2f} TB/s")
    products = lessons.climb("matmul")
    assert products.times is not None
    assert products.times.sentence.startswith("RECORDED on NVIDIA H200")
    cells = {row[0]: row[-1] for row in products.table()[1]}
    share = seconds["matmul-library", 4096] / seconds["matmul-tiled", 4096]
    assert cells["tiled"].endswith(f"{100 * share:.3g} % of the library's")
    assert "of the library" not in cells["library"]
    counts, times = products.caption().splitlines()
    assert (counts.split()[0], times.split()[0]) == ("MODELLED", "RECORDED")
    assert "gpulab record" in products._repr_html_()


def _scripted_gpu(monkeypatch: pytest.MonkeyPatch, slower: float, free_bytes: float) -> list[tuple[str, int]]:
    """Stand in for a GPU whose every time is the H200 file's times ``slower``; return the list of what it is asked to run."""
    asked: list[tuple[str, int]] = []
    file = json.loads((recordings.directory() / "nvidia-h200.json").read_text(encoding="utf-8"))
    entries = [entry for entry in file["entries"] if entry["experiment"] == "ladders"]

    def case(entry: dict[str, Any]) -> Case:
        name, n = entry["params"]["rung"], entry["params"]["n"]

        def time(deadline_seconds: float) -> Any:
            asked.append((name, n))
            return types.SimpleNamespace(median_seconds=slower * entry["timing"]["median_seconds"])

        return Case(entry["params"], time)

    gpu = types.SimpleNamespace(torch_type="cuda", name="A GPU")
    monkeypatch.setattr(_climb.devices, "default", lambda: gpu)
    monkeypatch.setattr(_climb, "importlib", types.SimpleNamespace(util=types.SimpleNamespace(find_spec=lambda name: name)))
    monkeypatch.setattr(_climb, "experiments", lambda names: [Experiment("ladders", "", lambda where: [case(e) for e in entries])])
    monkeypatch.setattr(_climb, "free_bytes", lambda device: free_bytes if device is gpu else None)
    return asked


def test_a_gpu_is_timed_at_the_largest_size_as_a_recording_is(monkeypatch: pytest.MonkeyPatch):
    """The recorded GPU itself: 0.1 ms at n = 2048 leave time for 8192, where padded is faster than tiled, which it is not at 2048."""
    _scripted_gpu(monkeypatch, 1, 141e9)
    turned, products = lessons.climb("transpose"), lessons.climb("matmul")
    assert (turned.timed_n, products.timed_n) == (8192, 4096)
    assert turned.times is not None
    assert (turned.times.badge, turned.times.device) == (Badge.MEASURED, "A GPU")
    seconds = {row.rung: row.seconds for row in turned.rows}
    assert seconds["transpose-padded"] == pytest.approx(260.4e-6, rel=1e-3)
    assert seconds["transpose-tiled"] == pytest.approx(399.6e-6, rel=1e-3)
    fastest = next(row.seconds for row in products.rows if row.rung == "matmul-warp-tiled")
    assert fastest == pytest.approx(3532.8e-6, rel=1e-3)  # the best of its three depths


def test_a_gpu_without_numba_cuda_is_shown_recorded_times(monkeypatch: pytest.MonkeyPatch):
    """It could not launch the rungs that are written in Python."""
    asked = _scripted_gpu(monkeypatch, 1, 141e9)
    monkeypatch.setattr(_climb, "importlib", types.SimpleNamespace(util=types.SimpleNamespace(find_spec=lambda name: None)))
    table = lessons.climb("transpose")
    assert asked == []
    assert table.times is not None
    assert table.times.badge is Badge.RECORDED


def test_a_gpu_whose_launches_are_refused_is_shown_recorded_times(monkeypatch: pytest.MonkeyPatch):
    """numba-cuda is installed and cannot run beside this driver; what a recorded GPU took is not "not recorded yet"."""
    asked: list[str] = []

    def refused(deadline_seconds: float) -> Any:
        asked.append("a rung")
        raise KernelError("launch: numba-cuda sees no GPU though torch does.")

    _scripted_gpu(monkeypatch, 1, 141e9)
    cases = [Case({"family": "transpose", "rung": "transpose-naive", "n": n}, refused) for n in (2048, 8192)]
    monkeypatch.setattr(_climb, "experiments", lambda names: [Experiment("ladders", "", lambda where: cases)])
    table = lessons.climb("transpose")
    assert asked
    assert table.times is not None
    assert (table.times.badge, table.timed_n) == (Badge.RECORDED, 8192)
    assert all("not recorded yet" not in row[-1] for row in table.table()[1])


def test_a_slow_gpu_is_not_asked_for_what_would_take_seconds(monkeypatch: pytest.MonkeyPatch):
    """Forty times slower: the first product of 1024 takes 0.18 s, that of 4096 would take 11 s. A transpose has time for 8192 there too."""
    asked = _scripted_gpu(monkeypatch, 40, 16e9)
    assert lessons.climb("matmul").timed_n == 1024
    assert {n for _, n in asked} == {1024}
    assert lessons.climb("transpose").timed_n == 8192


@pytest.mark.parametrize(("free_bytes", "n"), [(2.2e9, 8192), (2.0e9, 2048)])
def test_a_full_gpu_is_timed_at_what_fits_a_quarter_of_the_rest(monkeypatch: pytest.MonkeyPatch, free_bytes: float, n: int):
    """Two matrices of 8192 x 8192 float32 are 537 MB; a quarter of 2.2 GB is 550 MB, of 2.0 GB 500 MB."""
    _scripted_gpu(monkeypatch, 1, free_bytes)
    assert lessons.climb("transpose").timed_n == n


def test_compiled_gives_facts_or_the_sentence(monkeypatch: pytest.MonkeyPatch):
    """Where a compiler is missing, the notebook goes on; a wrong source is an error all the same."""
    source = 'extern "C" __global__ void k(float* x) { x[0] = 1; }'
    try:
        _climb.compile_cuda(source)
    except MissingLibraryError:
        pytest.skip("NVRTC is not installed")
    assert set(lessons.compiled(source).kernels) == {"k"}
    with pytest.raises(CompileError):
        lessons.compiled("nonsense")

    def missing(*args: Any, **kwargs: Any) -> Any:
        raise MissingLibraryError("no compiler here; run `pip install it`.")

    monkeypatch.setattr(_climb, "compile_cuda", missing)
    monkeypatch.setattr(_climb, "compile_python", missing)
    for given in (source, missing):
        without = lessons.compiled(given)
        assert repr(without) == "no compiler here; run `pip install it`."
        assert not without.kernels
    counted = lessons.instructions(source, "FFMA")
    assert (repr(counted), counted.counts) == ("no compiler here; run `pip install it`.", {})


def test_instructions_are_counted_as_whole_words(monkeypatch: pytest.MonkeyPatch):
    """An FFMA.FTZ is an FFMA, and an HFFMA2 is none."""

    class Made:
        sass = "FFMA R1, R2 ;\n FFMA.FTZ R3 ;\n HFFMA2 R4 ;\n HMMA.1688 R5"

    monkeypatch.setattr(_climb, "compile_cuda", lambda *args, **kwargs: Made())
    assert lessons.instructions("", "FFMA", "HMMA", "IMMA").counts == {"FFMA": 2, "HMMA": 1, "IMMA": 0}


def test_outcomes_of_the_predictions_by_hand():
    """What the notebook's cells hand to reveal, by theory: 44 / 8 bytes, 32 sectors, 48 / 6 branches, 32 ways, 2048 / 128 atomics."""
    ask = {id: question.outcome for id, question in LESSON.questions.items()}
    assert all(ask.values())
    assert ask["04.1"](lessons.numpy_passes(lambda x: 0.5 * x * (1 + np.tanh(0.8 * x)), X)) == 5.5
    assert ask["04.17"](models.access_pattern(stride_elements=3)) == 32 * 12 / 32
    assert ask["04.5"](lessons.climb("reduction")) == 8
    assert ask["04.9"](lessons.climb("transpose")) == 32
    assert ask["04.11"](lessons.climb("histogram")) == 16
    # n = 128: 512 warps x 128 steps x (1 + 4) + 2,048 against 512 x 4 steps x (4 + 4) + 2,048 sectors.
    assert ask["04.13"](lessons.climb("matmul")) == pytest.approx((512 * 128 * 5 + 2048) / (512 * 4 * 8 + 2048))


def test_without_a_compiler_the_registers_are_not_measured():
    """The reveal says why, and shows no number."""
    without = _climb.Uncompiled("no compiler here.", {}, Evidence.modelled("nothing", "nothing"))
    with pytest.raises(Exception, match="no compiler here"):
        LESSON.questions["04.15"].outcome(without)  # type: ignore[misc]
