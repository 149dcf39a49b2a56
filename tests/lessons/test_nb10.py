"""Notebook 10: every idiom is run and held against NumPy, the five times, feeding, sharding, and what is said where a library is absent."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import pathlib
import re
import subprocess
import sys
import types
from typing import Any

import numpy as np
import pytest

from gpulab import _backends, devices, lessons, precision, recordings, transfer
from gpulab.devices import Device
from gpulab.errors import InputError, MeasurementError, MissingLibraryError
from gpulab.evidence import Badge
from gpulab.lessons import _columns, _feeding, _idioms, _library, _live, _nb10, _nb10_exercises, _retraces, _sharded
from gpulab.lessons._old_session import OldModel, OldSession
from gpulab.lessons._promises import PromisingFunction

IDIOMS = [row for tongue in lessons.tongues() for row in _idioms._of(tongue)]
ASKED = ("gpuArray", "gather", "gpuDevice", "gpuDeviceTable", "existsOnGPU", "arrayfun", "bsxfun", "pagefun", "gputimeit", "wait",
         "parfor over GPUs", "fft", "mldivide", "cumsum", "sort", "conv2")  # fmt: skip


def installed(name: str) -> bool:
    """Whether a library is there, asked of Python and not of gpulab."""
    return importlib.util.find_spec(name) is not None


@pytest.fixture
def neither(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where neither JAX nor TensorFlow is installed."""
    monkeypatch.setattr(_backends, "_made", {name: one for name, one in _backends._made.items() if name not in ("jax", "tensorflow")})
    for name in ("jax", "tensorflow"):
        monkeypatch.setitem(sys.modules, name, None)


@pytest.mark.parametrize("idiom", IDIOMS, ids=lambda idiom: f"{idiom.tongue}-{idiom.name}")
def test_every_row_gives_what_numpy_gives(idiom: _idioms.Idiom) -> None:
    """The line here is run and agrees; the tongue's own line too, where it is Python and its library is there."""
    if idiom.library in ("jax", "tensorflow") and not installed(idiom.library):
        pytest.skip(f"{idiom.library} is not installed: pip install -e '.[rosetta]'")
    found = _idioms.execute(idiom)
    assert found.state == "agrees", found.reason
    if idiom.runs_theirs:
        assert found.theirs == ("not run here" if idiom.library == "cupy" and "CUDA" in found.reason else "agrees"), found.reason


def test_every_idiom_that_was_asked_for_has_its_row() -> None:
    """MATLAB's list is complete, each row says all five things, and no name stands twice in a tongue."""
    names = [row.name for row in lessons.rosetta("MATLAB").rows]
    assert set(ASKED) <= set(names)
    for tongue in lessons.tongues():
        rows = lessons.rosetta(tongue).rows
        assert len({row.name for row in rows}) == len(rows)
        assert all(all(dataclasses.astuple(row)) for row in rows), tongue


@pytest.mark.parametrize(
    ("here", "says"),
    [
        ("result = A + 1", "off by"), ("result = A[:2]", "shape"), ("result = 'text'", "shape"), ("result = np.zeros(3)", "shape"),
        ("result = A * float('nan')", "not finite"), ("result = A / 0", "not finite"),
    ],
)  # fmt: skip
def test_a_row_that_gives_something_else_differs(here: str, says: str) -> None:
    """The check of the rows can fail."""
    wrong = dataclasses.replace(next(row for row in IDIOMS if row.name == "gather"), here=here)
    found = _idioms.execute(wrong)
    assert found.state == "differs"
    assert says in found.reason


def test_nothing_agrees_with_what_is_no_number() -> None:
    """A row whose own expectation went wrong (nan) must not pass for one that agrees."""
    gather = next(row for row in IDIOMS if row.name == "gather")
    found = _idioms.execute(dataclasses.replace(gather, expected=lambda names: np.full((6, 4), np.nan)))
    assert (found.state, found.difference_ratio, found.reason) == ("differs", None, "it holds numbers that are not finite")


@pytest.mark.gpu
@pytest.mark.parametrize("tongue", ["MATLAB", "CuPy", "CUDA C++"])
def test_the_rows_agree_on_a_gpu(tongue: str) -> None:
    """Each line here gives NumPy's answer on a GPU too, and so does CuPy's own where CuPy is installed."""
    found = lessons.rosetta(tongue).run()
    assert [(row.name, row.reason) for row in found.rows if row.state != "agrees" or row.theirs == "differs"] == []


@pytest.mark.parametrize("device", ["mps", "cuda"])
@pytest.mark.parametrize("error", ["TypeError", "RuntimeError", "NotImplementedError", "ImportError"])
def test_what_a_device_does_not_have_is_the_reason_and_not_an_error(error: str, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch says with a TypeError that Apple's GPU has no float64, CuPy with an ImportError that cuBLAS does not load: the row was not
    run. Where every row was run, it is a row's fault.
    """
    gather = next(row for row in IDIOMS if row.name == "gather")
    bad = f'raise {error}("MPS has no float64")'
    lacking, theirs = dataclasses.replace(gather, here=bad), dataclasses.replace(gather, runs_theirs=True, theirs=bad)
    with pytest.raises((TypeError, RuntimeError, ImportError), match="float64"):
        _idioms.execute(lacking)
    names = _idioms.inputs()
    monkeypatch.setattr(_idioms, "inputs", lambda: dict(names))
    monkeypatch.setattr(_idioms.devices, "default", lambda: Device(device))
    found = _idioms.execute(lacking)
    assert (found.state, found.reason) == ("not run here", "MPS has no float64")
    found = _idioms.execute(theirs)
    assert (found.state, found.theirs, found.reason) == ("agrees", "not run here", "MPS has no float64")


def _in_tf32(x: np.ndarray) -> np.ndarray:
    """Round float32 to the ten bits that TF32 keeps, to nearest."""
    return ((x.astype(np.float32).view(np.uint32) + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32)


def test_what_a_gpu_computes_in_tf32_agrees_where_its_library_may(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch lets a GPU's convolutions use TF32 unless told otherwise, JAX and TensorFlow its products too; on a CPU nothing is TF32."""
    rows = {(row.tongue, row.name): row for row in IDIOMS}
    conv2, mtimes, matmul = rows["MATLAB", "conv2"], rows["MATLAB", "mtimes"], rows["TensorFlow", "matmul"]
    names = _idioms.inputs()
    rounded = names | {name: _in_tf32(names[name]) for name in ("a", "b")}

    def agrees(row: _idioms.Idiom, library: str = "") -> bool:
        return not _idioms._held(row, row.expected(rounded), row.expected(names), library)[1]

    assert not agrees(conv2)
    assert not agrees(matmul, "tensorflow")
    monkeypatch.setattr(_idioms.devices, "default", lambda: Device("cuda"))
    with precision.tf32(matmul=False, convolution=True):
        assert agrees(conv2)
        assert not agrees(mtimes)
        assert agrees(matmul, "tensorflow")
    with precision.tf32(matmul=True, convolution=False):
        assert not agrees(conv2)
        assert agrees(mtimes)
    assert not agrees(dataclasses.replace(conv2, operation=""))  # what is neither a product nor a convolution has no such room


def test_every_product_in_float32_is_marked_as_one() -> None:
    """By its text: a row with a matrix product or a convolution of tensors says so, but where it is timed or gives no such array."""
    made = {row.name for row in IDIOMS if re.search(r" @ |conv2d|matmul\(", row.here) and not row.within and row.name != ".device"}
    assert {row.name for row in IDIOMS if row.operation} == made


def test_a_time_of_the_wrong_unit_differs() -> None:
    """A row that times is held against a plain clock."""
    row = next(row for row in IDIOMS if row.name == "gputimeit")
    assert _idioms.execute(dataclasses.replace(row, here=f"{row.here} * 1000")).state == "differs"
    assert _idioms.execute(dataclasses.replace(row, here="result = 'x'", within=0.0, expected=lambda names: "y")).state == "differs"


def test_the_same_copy_waits_for_the_same_in_every_tongue() -> None:
    """gl.to_device returns when its source may be changed, whatever the other tongue's own line does."""
    rows = [row for row in IDIOMS if row.here == "result = gl.to_device(a)"]
    assert {row.tongue for row in rows} >= {"MATLAB", "CuPy", "JAX"}
    assert [row.waits for row in rows if not row.waits.startswith("until ")] == []


def test_tables_are_asked_for_by_name() -> None:
    """An unknown tongue or idiom is told what there is; some rows can be shown and run alone."""
    with pytest.raises(InputError, match="MATLAB, TensorFlow"):
        lessons.rosetta("Fortran")
    with pytest.raises(InputError, match="gpuArray"):
        lessons.rosetta("MATLAB").only("gpuarray")
    few = lessons.rosetta("MATLAB").only("gather", "bsxfun")
    assert few.run().agreeing == 2
    html = few._repr_html_()
    assert "white-space:pre-wrap" in html
    assert "bsxfun(@minus" in html


def test_without_the_libraries_the_rows_here_still_run(neither: None) -> None:
    """Our lines agree; theirs are named as not run, with the line that gets the library, once below the table."""
    for tongue, name in (("JAX", "jax"), ("TensorFlow", "tensorflow")):
        run = lessons.rosetta(tongue).run()
        assert run.agreeing == len(run.rows)
        assert {row.theirs for row in run.rows} == {"not run here"}
        assert run.caption().count(f"library '{name}' is not installed") == 1
        assert "pip install" not in str(run.table())
        with pytest.raises(MissingLibraryError, match="rosetta"):
            _library.load(name)


@pytest.mark.parametrize("error", [ImportError("DLL load failed"), RuntimeError("DLL load failed")], ids=["ImportError", "RuntimeError"])
def test_a_library_that_is_installed_and_broken_ends_no_cell(
    error: Exception, neither: None, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its import fails, as where a DLL or a matching jaxlib lacks: the cells go on without it, and none says that it is not installed."""
    monkeypatch.setattr(_backends, "_broken", {})
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("jax", "tensorflow"):
        monkeypatch.delitem(sys.modules, name)
        (tmp_path / f"{name}.py").write_text(f"raise {type(error).__name__}('DLL load failed')\n")
    words = f"installed here, but cannot be imported ({type(error).__name__}: DLL load failed); expected"
    with pytest.raises(MissingLibraryError, match=re.escape(words)):
        _library.load("jax")
    assert words in lessons.feeding(4096).notes[0]
    assert all(words in found.reason for found in (lessons.retraces([1, 2, 2]), lessons.sharded(2)))
    for tongue, idiom in (("JAX", "vmap"), ("TensorFlow", ".numpy()")):
        (row,) = lessons.rosetta(tongue).only(idiom).run().rows
        assert (row.state, row.theirs) == ("agrees", "not run here")
        assert words in row.reason


def test_five_times_take_all_libraries_that_are_here() -> None:
    """Each row has five times and the right product; who is absent says how to be got; the recorded GPU stands beside them."""
    found = lessons.five_times(n=64, deadline=0.1)
    rows = {row.library: row for row in found.rows}
    there = {"NumPy", "PyTorch"} | {label for label, name in (("JAX", "jax"), ("TensorFlow", "tensorflow")) if installed(name)}
    for label, row in rows.items():
        if label in there:
            assert len(row.times) == 5
            assert row.difference_ratio is not None
            assert row.difference_ratio < 1e-4
        else:
            assert row.times == ()
            assert "rosetta" in row.reason or "CUDA" in row.reason
    assert found.spread_ratio == max(t for row in found.rows for t in row.times) / min(t for row in found.rows for t in row.times)
    assert _nb10.SPREAD.outcome is not None
    assert _nb10.SPREAD.outcome(found) == found.spread_ratio
    usual = lessons.usual_timings(found)
    assert [row.library for row in usual.rows] == [row.library for row in found.rows if row.times]
    with pytest.raises(InputError, match="five_times"):
        lessons.usual_timings(3)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="whole number from 16"):
        lessons.five_times(n=2.5)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="NumPy"):
        found.of("MATLAB")


def test_the_recorded_row_is_the_recording() -> None:
    """Its times are the file's own."""
    file = json.loads((recordings.directory() / "nvidia-h200.json").read_text(encoding="utf-8"))
    wanted = {"workload": "matmul", "n": 1024, "dtype": "float32"}
    (timing,) = [each["timing"] for each in file["entries"] if each["experiment"] == "catalogue" and each["params"] == wanted]
    from gpulab.lessons._five_times import _recorded

    rows = {row.device: (row, evidence) for row, evidence in _recorded(1024)}
    row, evidence = rows["NVIDIA H200"]
    assert (row.finished_seconds, row.returned_seconds) == (timing["median_seconds"], timing["launch_seconds"])
    assert evidence.badge is Badge.RECORDED
    assert _recorded(1000) == []


def test_a_wrong_product_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A library whose result is off is named, whatever its time."""
    from gpulab.lessons import _five_times

    way = next(way for way in _five_times._WAYS if way.library == "numpy")
    wrong = dataclasses.replace(way, product=lambda np_: lambda a, b: a @ a)
    a, b = (np.random.default_rng(k).random((32, 32), dtype=np.float32) for k in range(2))
    assert "the product is wrong" in _five_times._measured(wrong, a, b, 0.05).reason


def test_feeding_is_modelled_without_tensorflow(neither: None) -> None:
    """One trip of the array over PCI Express 4 (10 us and 26 GB/s) more in each run, and the badge says MODELLED."""
    found = lessons.feeding(26_000_000)
    assert found.evidence.badge is Badge.MODELLED
    assert found.boundary_seconds is None
    assert found.fed_seconds - found.kept_seconds == pytest.approx(10e-6 + 1e-3, rel=1e-6)
    assert found.kept_seconds == transfer.processor("nvidia-h200").seconds(6_500_000, 26_000_000)  # an addition for each 4 bytes
    assert (lessons.feeding(4096).nbytes, lessons.feeding(np.int64(4096)).nbytes) == (4096, 4096)
    assert "rosetta" in found.caption()
    # The H200's formula was held against its recording; PCI Express 4 against none yet.
    assert found.evidence.known_error is not None
    assert found.evidence.known_error.startswith("link: no recording to compare with yet; compute: on nvidia-h200 the recorded time is ")
    for wrong in (3, 4095, 4096.5, "x", True):
        with pytest.raises(InputError, match="from 4096 on"):
            lessons.feeding(wrong)  # type: ignore[arg-type]


@pytest.mark.skipif(not installed("tensorflow"), reason="TensorFlow is not installed: pip install -e '.[rosetta]'")
def test_feeding_is_measured_with_tensorflow() -> None:
    """A run that is fed 32 MiB takes longer than one on kept data; on a CPU one that is fed from a 64-byte boundary copies nothing."""
    found = _feeding.feeding(32 * 2**20, deadline=0.4)
    assert found.evidence.badge is Badge.MEASURED
    assert found.ratio > 1.3
    assert found.ratio_interval is None or found.ratio_interval[0] <= found.ratio <= found.ratio_interval[1]
    if found.device == devices.find("cpu").name:
        assert found.boundary_seconds is not None
        assert found.boundary_seconds < found.fed_seconds / 1.3
        assert "boundary" in str(found.table())


def test_the_two_fed_arrays_begin_where_they_say() -> None:
    """The same numbers, from a 64-byte boundary on and 16 bytes behind one."""
    on, off = _feeding._arrays(4096)
    assert (on.ctypes.data % 64, off.ctypes.data % 64) == (0, 16)
    assert on.nbytes == off.nbytes == 4096
    assert np.array_equal(on, off)


@pytest.mark.skipif(not installed("tensorflow"), reason="TensorFlow is not installed: pip install -e '.[rosetta]'")
def test_the_small_session_does_what_tensorflows_does() -> None:
    """The exercise's loop and its solution give TensorFlow's own losses, on the same graph built with tf.compat.v1."""
    tf = _library.load("tensorflow")
    x = np.random.default_rng(6).standard_normal((400, 32)).astype(np.float32)
    train: dict[str, Any] = {}
    exec(_nb10_exercises.TRAIN.solution, train)
    small = [float(run(OldSession(), OldModel(x.shape), x, 5)) for run in (_nb10_exercises.wasteful, train["train"])]
    for run, expected in zip((_nb10_exercises.wasteful, train["train"]), small, strict=True):
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            fed = tf.compat.v1.placeholder(tf.float32, x.shape)
            kept = tf.compat.v1.get_variable("kept", initializer=tf.zeros(x.shape), use_resource=True)
            weights = tf.compat.v1.get_variable("weights", initializer=tf.zeros(x.shape[1]), use_resource=True)
            names: dict[str, Any] = {"x": fed, "weights": weights.read_value(), "load": kept.assign(fed).op}
            for suffix, data in (("", fed), ("_kept", kept.read_value())):
                loss = tf.reduce_mean((tf.linalg.matvec(data, weights) - tf.reduce_sum(data, axis=1)) ** 2)
                (gradient,) = tf.gradients(loss, [weights])
                names |= {f"loss{suffix}": loss, f"step{suffix}": weights.assign_sub(0.1 * gradient).op}
            session.run([weights.initializer, kept.initializer])
            assert float(run(session, types.SimpleNamespace(**names), x, 5)) == pytest.approx(expected, rel=1e-4)


def test_matlabs_column_is_accepted() -> None:
    """s(1:i) is a column in MATLAB: its numbers in the shape (i, 1), (1, i) or (i,) are the same answer."""
    answer: dict[str, Any] = {}
    exec(_nb10_exercises.TRANSLATED.solution, answer)
    for turned in (lambda r: r[:, None], lambda r: r[None, :], lambda r: r):
        assert "Three tables" in _nb10_exercises.TRANSLATED.check(lambda x, turned=turned: turned(answer["translated"](x)))


def _correlated(x: np.ndarray) -> tuple[np.ndarray, int]:
    """C and i of exercise 10.4's script, from NumPy's own correlation."""
    c = np.corrcoef(x.astype(np.float64), rowvar=False)
    return c, int(c[1:, 0].argmax()) + 1


@pytest.mark.parametrize(
    "last_line",
    [
        lambda c, i: np.cumsum(-np.sort(-c, axis=0).reshape(-1)),
        lambda c, i: np.cumsum(np.diag(c)),
        lambda c, i: np.arange(1.0, i + 1),
        lambda c, i: np.cumsum(np.sort(c, axis=0).reshape(-1)),
        lambda c, i: np.cumsum(np.sort(c, axis=1).reshape(-1)),
        lambda c, i: np.cumsum(np.sort(c.reshape(-1))[::-1]),
    ],
)
def test_the_script_is_translated_to_its_last_line(last_line: Any) -> None:
    """10.4: sums of the ones on the diagonal, or of numbers sorted by column, are not those of all numbers, sorted."""

    def translated(x: np.ndarray, sums: Any = last_line) -> np.ndarray:
        c, i = _correlated(x)
        return np.asarray(sums(c, i)[:i])

    assert lessons.check("10.4", lambda x: translated(x, lambda c, i: np.cumsum(np.sort(c, axis=None)))).state == "passed"
    assert lessons.check("10.4", translated).state == "wrong"


def test_columns_are_slower_across_the_rows() -> None:
    """Both orders give the same sums; the loop along the memory is the faster one on any machine with cache lines."""
    found = lessons.column_loop(1024, deadline=0.2)
    assert found.ratio > 1
    with pytest.raises(InputError, match="64"):
        lessons.column_loop(3)


def test_the_loop_over_columns_adds_up_each_and_its_times_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """By hand on two rows of three; 6 s by rows and 2 s by columns, one of them disturbed; from 64 on."""
    from gpulab.evidence import Evidence, Note

    assert _columns.sum_columns(np.array([[1, 2, 3], [10, 20, 30]])).tolist() == [11, 22, 33]
    times = {"rows": (6.0, (Note("deadline", "x"), Note("contended", "x"), Note("contended", "y"))), "columns": (2.0, ())}

    def compare(limits: Any, runs: dict[str, Any], args: tuple[Any, ...], fewest: int, patience: float) -> types.SimpleNamespace:
        assert (args, fewest, patience, limits.relative_width) == ((), 20, 28.0, 0.02)
        assert (limits.deadline, {name: len(run()) for name, run in runs.items()}) == (7.0, {"rows": 64, "columns": 64})
        rows = [
            types.SimpleNamespace(name=name, measurement=types.SimpleNamespace(median_seconds=s, notes=n, evidence=Evidence.measured(name)),
                                  speedup_interval=(2.5, 3.5) if name == "columns" else None)
            for name, (s, n) in times.items()
        ]  # fmt: skip
        return types.SimpleNamespace(rows=rows)

    monkeypatch.setattr(_live, "compare_within", compare)
    found = lessons.column_loop(64, 7.0)
    assert found == _columns.ColumnLoop(64, 6.0, 2.0, ("rows: contended",), Evidence.measured("rows"), (2.5, 3.5))
    assert found.table()[1][-1] == ("the first over the second", "3.00x [2.50x, 3.50x]")
    for wrong in (63, 64.5, "x"):
        with pytest.raises(InputError, match="from 64 on"):
            lessons.column_loop(wrong)  # type: ignore[arg-type]
    for wrong in ("1 s", None, -1.0, float("nan")):  # named by what the learner called
        with pytest.raises(InputError, match="column_loop: deadline"):
            lessons.column_loop(64, wrong)  # type: ignore[arg-type]


def test_whether_a_library_is_there_is_asked_without_its_import(monkeypatch: pytest.MonkeyPatch) -> None:
    """In one sentence with how to get it, or with none: whether it was imported already, may not be, or was not asked for yet."""
    monkeypatch.delitem(sys.modules, "jax", raising=False)
    for spec, says in ((None, "library 'jax' is not installed here; expected it for this. Run "), (types.SimpleNamespace(), "")):
        monkeypatch.setattr(importlib.util, "find_spec", lambda name, spec=spec: spec)
        assert (_library.missing("jax") == "", _library.missing("jax").startswith(says)) == (spec is not None, True)
        assert "jax" not in sys.modules
    monkeypatch.setitem(sys.modules, "jax", types.ModuleType("jax"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert _library.missing("jax") == ""
    monkeypatch.setitem(sys.modules, "jax", None)  # type: ignore[arg-type]
    assert _library.missing("jax").startswith("library 'jax' is not installed here")


@pytest.mark.parametrize(("best", "name"), [("cuda:1", "cuda:1"), (None, "cpu")])
def test_jax_computes_on_its_best_device(best: str | None, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By gpulab's name for it; on the CPU where it has no other."""
    monkeypatch.setattr(_library._backends, "backend", lambda library: types.SimpleNamespace(best_device=lambda: (library, best)[1]))
    assert _library.device_of_jax() == name


@pytest.mark.parametrize("printed", ["", "Traceback\n" + "x" * 300])
def test_what_jax_says_at_last_is_told_where_it_failed(printed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last line of its error, as far as it is shown; and what it says on several lines before its answer is not looked at."""
    asked: list[Any] = []

    def run(command: list[str], env: dict[str, str], check: bool, **named: Any) -> types.SimpleNamespace:
        asked.extend((command[-1], env))
        if check:
            raise AssertionError("it ends in an error of subprocess's own")
        answer = '{"shards": [["d0", [8, 8], [0, 8]]], "total": [1.5], "all_reduces": 3}'
        if len(asked) > 2:
            return types.SimpleNamespace(returncode=0, stdout=f"noise\n{answer}\n", stderr="")
        return types.SimpleNamespace(returncode=1, stdout="", stderr=printed)

    monkeypatch.setattr(_sharded._library, "unusable", lambda name: "")
    monkeypatch.setattr(_sharded.subprocess, "run", run)
    monkeypatch.setenv("XLA_FLAGS", "--mine")
    last = f"{'x' * 197}[.][.][.]" if printed else "nothing was printed"
    with pytest.raises(MeasurementError, match=rf"^sharded: JAX on 3 devices failed \({last}\); expected shards"):
        lessons.sharded(3)
    assert asked[1]["XLA_FLAGS"] == "--mine --xla_force_host_platform_device_count=3"
    assert "x = np.arange(24 * 8, dtype=np.float32).reshape(24, 8)" in asked[0]
    found = lessons.sharded(1)
    assert (found.shards, found.total, found.all_reduces) == ((_sharded.Shard("d0", 8, 0, 8),), (1.5,), 3)

    def endless(command: list[str], timeout: float, **named: Any) -> None:
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(_sharded.subprocess, "run", endless)
    with pytest.raises(MeasurementError, match=r"^sharded: JAX on 4 devices had not ended after 120 s; expected"):
        lessons.sharded()


def test_how_each_library_is_usually_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call takes a second. The best of five loops of two takes a half less; around one call; the mean of ten, held and waited for."""
    from gpulab.lessons import _five_times

    now, log = [0.0], list[Any]()

    def call(*given: Any) -> str:
        now[0] += 1.0
        log.append(given)
        return "C"

    def repeat(fn: Any, number: int, repeat: int) -> list[float]:
        fn()
        return [number * seconds for seconds in (3.0, 2.5, 4.0, 2.0, 1.5, 0.5, 0.1)[:repeat]]

    monkeypatch.setattr(_five_times, "perf_counter", lambda: now[0])
    monkeypatch.setattr(_five_times.timeit, "repeat", repeat)
    monkeypatch.setattr(_five_times._backends, "waits_for", lambda kept: lambda kept: log.append(len(kept)))
    assert _five_times._best_of(call, (1, 2), lambda: call) == 1.5
    assert log == [(1, 2)]
    log.clear()
    assert _five_times._around_one(call, (1, 2), lambda: call) == 1.0
    assert _five_times._around_first(lambda *_: None, (1, 2), lambda: call) == 1.0
    assert log == [(1, 2)] * 2
    log.clear()
    assert _five_times._mean_of_loop(call, (1, 2), lambda: call) == 1.0
    assert log == [*[(1, 2)] * 10, 10]
    monkeypatch.setattr(_five_times._backends, "waits_for", lambda kept: None)
    assert _five_times._mean_of_loop(call, (1, 2), lambda: call) == 1.0


def test_a_product_is_wrong_from_half_a_percent_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """TF32's rounding is none; the work of a product is 2 n^3, and the least side is 16."""
    from gpulab.lessons import _five_times

    way, given = next(way for way in _five_times._WAYS if way.library == "numpy"), {}
    one = types.SimpleNamespace(
        device="cpu", first_call_seconds=1.0, launch_seconds=2.0, median_seconds=3.0, with_transfer_seconds=4.0, notes=()
    )
    monkeypatch.setattr(_five_times.timing, "measure", lambda *_, **named: (given.update(named), one)[1])
    a = np.ones((16, 16), np.float32)
    for off, wrong in ((5e-3, False), (5.2e-3, True)):
        monkeypatch.setattr(_five_times, "_difference", lambda *_, off=off: off)
        assert ("the product is wrong" in _five_times._measured(way, a, a, 0.01).reason) is wrong
    assert given["flops"] == 2 * 16**3
    monkeypatch.setattr(_five_times, "_WAYS", (way,))
    found = lessons.five_times(16)
    assert (found.n, found.rows[0].times[:4]) == (16, (1.0, 2.0, 3.0, 4.0))
    for small in (15, 16.5, "x"):
        with pytest.raises(InputError, match="from 16 on"):
            lessons.five_times(small)  # type: ignore[arg-type]


def _idiom(**changed: Any) -> _idioms.Idiom:
    return dataclasses.replace(next(row for row in IDIOMS if row.name == "gather"), **changed)


@pytest.mark.parametrize(
    ("changed", "result", "expected", "off", "says"),
    [
        ({"exact": False}, [10.0, 1.0 + 9.9e-4], [10.0, 1.0], 9.9e-5, ""),
        ({"exact": False}, [10.0, 1.0 + 1.05e-3], [10.0, 1.0], 1.05e-4, "off by 1.0e-04|off by 1.1e-04"),
        ({"exact": True}, [10.0, 1.0 + 1e-9], [10.0, 1.0], 1e-10, "off by"),
        ({"exact": True}, [10.0, 1.0], [10.0, 1.0], 0.0, ""),
        ({"exact": False}, [1e-3, 0.0], [0.0, 0.0], 1e-3, "off by"),
        ({"exact": False}, [], [], 0.0, ""),
        ({"within": 2.0}, 4.0, 2.0, None, ""),
        ({"within": 2.0}, 1.0, 2.0, None, ""),
        ({"within": 2.0}, 4.2, 2.0, None, "it gave 2.1 times what a plain clock gives"),
        ({"within": 2.0}, 0.9, 2.0, None, "it gave 0.45 times"),
    ],
)
def test_how_far_a_row_may_be_off(changed: dict[str, Any], result: Any, expected: Any, off: float | None, says: str) -> None:
    """A ten-thousandth of the largest value, or nothing where the row must be exact; a time by a factor, both ends included."""
    as_array: Any = np.array if isinstance(result, list) else float
    found, said = _idioms._held(_idiom(**changed), as_array(result), as_array(expected))
    assert found == (None if off is None else pytest.approx(off, rel=1e-3))
    assert bool(said) == bool(says)
    assert any(part in said for part in says.split("|"))


def test_what_only_moves_data_must_be_exact() -> None:
    """Where what is right are numbers as they came, zeros, or a count, no digit may change; where there is arithmetic, rounding may
    differ.
    """
    for row in IDIOMS:
        names = _idioms.inputs()
        came = np.concatenate([names[name].ravel() for name in "abs"] + [np.zeros(1, np.float32)])
        names["result"] = None
        right = None if row.within else row.expected(names)
        if isinstance(right, np.ndarray):
            assert row.exact == (right.dtype.kind in "bi" or bool(np.isin(right, came).all())), (row.tongue, row.name)


def test_what_a_row_may_be_off_in_time_and_how_long_it_takes() -> None:
    """A figure of microseconds by a factor of 30 on a busy machine; three rows start processes or a compiler, the others nothing."""
    assert {row.name for row in IDIOMS if row.within} == {"gputimeit", "cupyx.profiler.benchmark", "cudaEventElapsedTime"}
    assert {row.within for row in IDIOMS if row.within} == {30.0}
    long = {(row.tongue, row.name): row.seconds for row in IDIOMS if row.seconds}
    assert long == {("MATLAB", "spmd"): 8.0, ("TensorFlow", "tf.function"): 3.0, ("JAX", "jit"): 3.0}


def test_the_tongues_that_are_python_are_run_in_their_own_words_too() -> None:
    """All rows of four tongues, CuPy's where there is a CUDA device; what takes seconds is left to the tests."""
    assert {row.tongue for row in IDIOMS if row.runs_theirs} == {"TensorFlow", "TensorFlow 1", "JAX", "CuPy"}
    assert all(row.runs_theirs for row in IDIOMS if row.tongue in ("TensorFlow", "TensorFlow 1", "JAX", "CuPy"))
    assert {row.tongue for row in IDIOMS if row.needs_gpu} == {"CuPy"}
    slow = lessons.rosetta("JAX").only("jit").run()
    assert (slow.rows, slow.left_out) == ((), ("jit",))
    assert slow.caption().endswith(" · left out, for they take seconds: jit")


def test_a_plain_clock_gives_the_middle_of_its_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nine loops of ten calls, the middle one of 3 s a call."""
    monkeypatch.setattr(
        _idioms.timeit, "repeat", lambda fn, number, repeat: [number * s for s in (1.0, 1.0, 1.0, 2.0, 3.0, 9.0, 9.0, 9.0, 9.0)][:repeat]
    )
    assert _idioms.plain_clock(lambda names: None)({}) == 3.0


@pytest.mark.skipif(not installed("jax"), reason="JAX is not installed: pip install -e '.[rosetta]'")
def test_jax_compiles_once_for_each_shape() -> None:
    """As many programs as different sizes, whatever their order."""
    found = lessons.retraces([3, 3, 5, 3, 5, 8])
    assert found.count == len({3, 5, 8})
    assert found.new_seconds is not None
    assert found.known_seconds is not None
    assert found.new_seconds > found.known_seconds


def test_a_call_of_jax_is_timed_until_its_result_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """A JAX whose calls return at once, trace a new shape for 3 s, and have their result a second later (by hand)."""
    now, seen = [0.0], set()

    class Later:
        shape = (1, 64)

        def __init__(self, shape: tuple[int, ...] = (1, 64)) -> None:
            self.shape = shape

        def __matmul__(self, other: Any) -> Later:
            return self

        def block_until_ready(self) -> Later:
            now[0] += 1.0
            return self

    def jit(function: Any) -> Any:
        def call(x: Later) -> Any:
            if x.shape not in seen:
                seen.add(x.shape)
                now[0] += 3.0
                function(x)
            return Later()

        return call

    numpy = types.SimpleNamespace(ones=Later, tanh=lambda x: x)
    jax = types.SimpleNamespace(jit=jit, numpy=numpy, device_put=lambda x: Later(x.shape))
    monkeypatch.setattr(_retraces._library, "missing", lambda name: "")
    monkeypatch.setattr(_retraces._library, "load", lambda name: jax)
    monkeypatch.setattr(_retraces._library, "device_of_jax", lambda: "cpu")
    monkeypatch.setattr(_retraces, "perf_counter", lambda: now[0])
    found = lessons.retraces([3, 3, 5, 3])
    assert (found.count, found.new_seconds, found.known_seconds, found.evidence.samples) == (2, 4.0, 1.0, 4)
    assert lessons.retraces([7]).known_seconds is None


def test_a_promised_result_is_there_when_numpy_has_it() -> None:
    """Compiling 1.5 s, returning after 20 us, 4 ms of work and 1 ms of copying; a second call waits for nothing but its own."""
    function = PromisingFunction()
    first = function(0)
    assert function.now == pytest.approx(1000 + 1.5 + 20e-6, abs=1e-9)
    assert np.asarray(first).shape == (3,)
    assert function.now == pytest.approx(1000 + 1.5 + 20e-6 + 4e-3 + 1e-3, abs=1e-9)
    assert (function.fetched, function.compiled_on_the_clock) == (True, False)
    start = function.clock()
    function(0).block_until_ready()
    assert function.clock() - start == pytest.approx(function.true_seconds) == pytest.approx(4.02e-3)
    assert function.between_readings(4.02e-3)
    assert not function.between_readings(8.04e-3)


def test_the_first_call_may_be_clocked_apart() -> None:
    """10.2: who reads the clock around the first call as well, and returns what a later one takes, is right."""

    def seconds(f: Any, x: Any, clock: Any) -> float:
        start = clock()
        f(x).block_until_ready()
        middle = clock()
        f(x).block_until_ready()
        assert middle - start > 1.5
        return clock() - middle

    assert lessons.check("10.2", seconds).state == "passed"


def test_a_session_in_small_keeps_its_bill_and_learns_by_hand() -> None:
    """Rows (1, 1) and (0, 2) both want 2: a loss of 4; a step of 0.1 * 2 / 2 * (2, 2 + 4); then errors of 1.2 and 0.8."""
    x = np.array([[1, 1], [0, 2]], np.float32)
    session, model = OldSession(), OldModel((2, 2))
    fed = {model.x: x}
    assert session.run(model.loss, fed) == 4
    assert session.run([model.step], fed) == [None]
    assert session.run(model.weights) == pytest.approx([0.2, 0.6])
    assert (session.runs, session.steps, session.fed_bytes, session.fetched_bytes) == (3, 1, 2 * 16, 4 + 8)
    session.run(model.load, fed)
    x[:] = 0  # what was loaded is a copy
    loss, same = session.run([model.loss_kept, model.loss_kept])
    assert loss == same == pytest.approx((1.2**2 + 0.8**2) / 2)
    session.run(model.step_kept)
    assert session.run(model.weights) == pytest.approx([0.2 + 0.1 * 1.2, 0.6 + 0.1 * (1.2 + 2 * 0.8)])
    assert (session.runs, session.steps, session.fed_bytes) == (7, 2, 3 * 16)
    assert session.fetched_names == ["loss", "weights", "loss_kept", "weights"]


@pytest.mark.parametrize(
    ("fetches", "feeds", "says"),
    [
        ("loss", None, "a value for the placeholder x is missing"),
        ("loss_kept", None, "nothing was loaded"),
        ("x", None, "cannot be fetched"),
        ("", None, "cannot be fetched"),
        ("step weights", "x", "nothing says whether step or weights comes first"),
        ("load loss_kept", "x", "nothing says whether load or loss_kept comes first"),
        ("loss", "loss", "expected the placeholder"),
        ("loss", "row", "expected the placeholder and a NumPy array of rows"),
        ("loss", "list", "was fed a list"),
        ("loss", "two", "expected one placeholder and its value"),
        ("loss", "number", "expected one placeholder and its value"),
    ],
)
def test_a_session_refuses_what_tensorflow_refuses(fetches: str, feeds: str | None, says: str) -> None:
    """Each in one sentence, and nothing is put on the bill."""
    model, session, x = OldModel((2, 2)), OldSession(), np.ones((2, 2), np.float32)
    fed = {
        None: None, "x": {model.x: x}, "loss": {model.loss: x}, "row": {model.x: x[0]}, "list": {model.x: [[1, 2]]},
        "two": {model.x: x, model.loss: x}, "number": 5,
    }[feeds]  # fmt: skip
    with pytest.raises(InputError, match=says):
        session.run([getattr(model, name) for name in fetches.split()], fed)  # type: ignore[arg-type]
    assert (session.steps, session.fetched_bytes) == (0, 0)


@pytest.mark.skipif(not installed("jax"), reason="JAX is not installed: pip install -e '.[rosetta]'")
def test_four_devices_hold_their_rows() -> None:
    """Eight rows each, in order; the sum is NumPy's, and XLA put one all-reduce into it."""
    found = lessons.sharded(4)
    assert [(shard.first, shard.end, shard.rows) for shard in found.shards] == [(0, 8, 8), (8, 16, 8), (16, 24, 8), (24, 32, 8)]
    assert found.total == tuple(np.arange(32 * 8, dtype=np.float32).reshape(32, 8).sum(axis=0))
    assert found.all_reduces == 1
    assert len({shard.device for shard in found.shards}) == 4


def test_without_jax_no_time_is_made_up(neither: None) -> None:
    """Programs are counted by JAX's rule, and the badge says so: 32, 17, 64 and 1 rows are four shapes. Shards give their reason."""
    found = lessons.retraces((32, 32, 32, 17, 32, 17, 64, 1))
    assert found.count == 4
    assert (found.new_seconds, found.known_seconds) == (None, None)
    assert "rosetta" in found.reason
    assert found.evidence.badge is Badge.MODELLED
    assert "rosetta" in str(found.table())
    assert _nb10.RETRACES.outcome is not None
    assert _nb10.RETRACES.outcome(found) == 4
    assert "rosetta" in lessons.sharded().reason
    with pytest.raises(InputError, match="whole numbers"):
        lessons.retraces([0])


def test_the_plain_clock_waits_for_the_device_after_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """A time without waiting would be that of the launch: once ahead of the clock, then nine times ten, each with its wait."""
    log: list[str] = []
    monkeypatch.setattr(_idioms.devices, "default", lambda: types.SimpleNamespace(synchronize=lambda: log.append("wait")))
    assert _idioms.plain_clock(lambda names: log.append("call"))({}) > 0
    assert log == ["call", "wait"] * (1 + 9 * 10)
