"""The developers' tools: benchmarks and gpu tests are found, and a soak goes on where it stopped."""

from __future__ import annotations

import ast
import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path

import gpu_check
import newest
import psutil
import pytest
import run_benchmarks
import run_tests
import setup_env
import soak


def test_benchmarks_are_programs_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """Helpers are not run; options are passed on, --quick to those that have it; one that fails is named and the others still run."""
    (tmp_path / "helper.py").write_text("raise SystemExit(3)\n")
    program = 'import sys\nif __name__ == "__main__":\n    print("ran", sys.argv[1:])\n'
    (tmp_path / "a.py").write_text('if __name__ == "__main__":\n    raise SystemExit(1)\n')
    (tmp_path / "b.py").write_text(program + '    "--quick"\n')
    (tmp_path / "c.py").write_text(program)
    monkeypatch.setattr(run_benchmarks, "FOLDER", tmp_path)
    assert run_benchmarks.main(["--quick"]) == 1
    out, err = capfd.readouterr()
    assert [line for line in out.splitlines() if line.startswith("ran")] == ["ran ['--quick']", "ran []"]
    assert "== c (has no short form)" in out
    assert "Failed: a." in err
    assert run_benchmarks.main(["b"]) == 0
    assert run_benchmarks.main(["none"]) == 2


def test_gpu_check_collects_the_files_with_gpu_tests() -> None:
    """The files that mark a test with gpu, and not those that write of the mark, as this one does."""
    files = gpu_check.gpu_test_files()
    assert {"tests/training/test_training_gpu.py", "tests/timing/test_measure.py"} <= set(files)
    assert not {"tests/test_units.py", "tests/test_conftest.py", "tests/test_tools.py"} & set(files)


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("pytestmark = pytest.mark.gpu", True),
        ("pytestmark = [pytest.mark.slow, pytest.mark.gpu]", True),
        ("@pytest.mark.gpu\ndef test_one(): pass", True),
        ("class TestMany:\n    @pytest.mark.gpu\n    def test_one(self): pass", True),
        ("@pytest.mark.parametrize('n', [1, pytest.param(2, marks=pytest.mark.gpu)])\ndef test_one(n): pass", True),
        ("# @pytest.mark.gpu\ndef test_one(): pass", False),
        ("TEXT = '''\n@pytest.mark.gpu\ndef test_one(): pass\n'''", False),
        ("assert 'mark.gpu' in words", False),
    ],
)
def test_a_mark_is_one_in_code_only(text: str, holds: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each way that pytest's manual gives to mark a test counts; a comment or a text that quotes one does not."""
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_x.py").write_text(text, encoding="utf-8")
    monkeypatch.setattr(gpu_check, "ROOT", tmp_path)
    assert gpu_check.gpu_test_files() == [str(Path("tests") / "test_x.py")] * holds


def test_the_files_with_gpu_tests_need_no_more_than_gpu_check_asks_for() -> None:
    """On a bare machine each of them can be collected: at its top it imports the named libraries, Python's own, and ours."""
    ours = {"gpulab", *(path.stem for folder in ("tests", "tools", "benchmarks") for path in (gpu_check.ROOT / folder).rglob("*.py"))}
    known = {*sys.stdlib_module_names, *gpu_check.NEEDED, *ours}
    for name in gpu_check.gpu_test_files():
        tree = ast.parse((gpu_check.ROOT / name).read_text(encoding="utf-8"))
        imported = {alias.name for node in tree.body if isinstance(node, ast.Import) for alias in node.names}
        imported |= {node.module or "" for node in tree.body if isinstance(node, ast.ImportFrom)}
        assert {module.partition(".")[0] for module in imported} <= known, name


def test_gpu_check_names_what_a_bare_python_lacks(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Without torch there is a sentence and exit code 2, not a traceback."""
    assert gpu_check.missing_modules(("sys", "surely_no_such_module")) == ["surely_no_such_module"]
    monkeypatch.setattr(gpu_check, "missing_modules", lambda names: ["torch"])
    assert gpu_check.main([]) == 2
    assert "lacks torch" in capsys.readouterr().err


def test_gpu_check_compares_with_hardware(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """Each comparison is a program that there is; it gets the folder for its file, and a failing one does not stop the others."""
    for name in gpu_check.COMPARISONS:
        assert '__name__ == "__main__"' in (gpu_check.ROOT / "benchmarks" / f"{name}.py").read_text(encoding="utf-8")
    (tmp_path / "benchmarks").mkdir()
    text = "import pathlib, sys\nfolder = pathlib.Path(sys.argv[sys.argv.index('--record') + 1])\nfolder.mkdir(exist_ok=True)\n"
    for k, name in enumerate(gpu_check.COMPARISONS):
        (tmp_path / "benchmarks" / f"{name}.py").write_text(text + f"(folder / '{k}.json').touch()\nsys.exit({int(k == 0)})\n")
    monkeypatch.setattr(gpu_check, "ROOT", tmp_path)
    assert gpu_check.compare_with_hardware({**os.environ, "GPULAB_RECORD_TO": str(tmp_path / "out")}) == [1, 0, 0]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["0.json", "1.json", "2.json"]
    assert f"lies in {tmp_path / 'out'}" in capfd.readouterr().out


@pytest.mark.parametrize("browser", [True, False])
def test_every_notebook_runs_with_and_without_a_browser(browser: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no browser test can run the notebooks, nbval gets them all, and that is said."""
    commands = []
    monkeypatch.setattr(run_tests, "has_browser", lambda: browser)
    monkeypatch.setattr(run_tests, "_run", lambda command: commands.append(command) or True)
    monkeypatch.setattr(run_tests, "_start", lambda command: lambda: True)
    assert run_tests.main(["-k", "transfer"]) == 0
    given = [part for part in commands[-1] if part.endswith(".ipynb")]
    assert given == ([] if browser else [f"notebooks/{path.name}" for path in sorted((run_tests.ROOT / "notebooks").glob("*.ipynb"))])
    assert commands[-1][-2:] == ("-k", "transfer")
    assert {"--nbval-lax", "tests", "gpulab"} <= set(commands[-1])


def test_disturbed_tests_run_beside_programs_that_burn_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """While pytest runs there is one of them more than cores, and each gets processor time; at the end they are gone."""
    seen: list[psutil.Process] = []

    def run(command: tuple[str, ...]) -> bool:
        if command[0] == "pytest":
            with contextlib.suppress(psutil.NoSuchProcess):  # another child of this one, on its way out
                seen.extend(one for one in psutil.Process().children() if not _is_gone(one) and "disturb.py" in " ".join(one.cmdline()))
            end = time.monotonic() + 60
            while not all(sum(one.cpu_times()[:2]) > 0.1 for one in seen) and time.monotonic() < end:
                time.sleep(0.05)
            assert all(sum(one.cpu_times()[:2]) > 0.1 for one in seen)
            assert command[-6:] == ("tests", "gpulab", "--timeout", "800", "--nbval-cell-timeout=240", "-x")
        return True

    monkeypatch.setattr(run_tests, "has_browser", lambda: True)
    monkeypatch.setattr(run_tests, "_run", run)
    monkeypatch.setattr(run_tests, "_start", lambda command: lambda: True)
    assert run_tests.main(["--disturbed", "-x"]) == 0
    assert len(seen) == (os.cpu_count() or 1) + 1
    assert all(_is_gone(one) for one in seen)


def test_a_burner_ends_with_whoever_began_it(tmp_path: Path) -> None:
    """Where the tests are killed, nobody is left to end the burners: each looks whether its parent lives."""
    code = "import disturb, os, time\nwith disturb.disturbed(1) as found:\n print(found[0].pid, flush=True)\n time.sleep(60)\n"
    environment = {**os.environ, "PYTHONPATH": str(Path(run_tests.__file__).parent)}
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment)
    assert parent.stdout is not None
    burner = psutil.Process(int(parent.stdout.readline()))
    parent.kill()
    parent.wait()
    parent.stdout.close()
    end = time.monotonic() + 60
    while not _is_gone(burner):
        assert time.monotonic() < end, "it goes on"
        time.sleep(0.05)


def _is_gone(process: psutil.Process) -> bool:
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE  # a container's first process may not collect it
    except psutil.NoSuchProcess:
        return True


@pytest.mark.skipif(sys.platform == "win32", reason="the stand-ins are shell scripts")
@pytest.mark.parametrize(("ends", "found"), [(0, 0), (1, 1)])
def test_mypy_runs_beside_the_tests_and_is_heard(
    ends: int, found: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Pytest begins before mypy has ended; what mypy says comes behind it, and its failure alone fails the run and is named."""
    waits = "#!/bin/sh\nk=0\nwhile [ ! -e begun ]; do k=$((k + 1)); [ $k -lt 200 ] || exit 9; sleep 0.05; done\n"
    (tmp_path / "mypy").write_text(f"{waits}echo 'a.py:1: error: mine'; exit {ends}\n")
    (tmp_path / "pytest").write_text("#!/bin/sh\ntouch begun; echo 'the tests ran'\n")
    for name in ("ruff", "lint-imports"):
        (tmp_path / name).write_text("#!/bin/sh\n")
    for program in tmp_path.iterdir():
        program.chmod(0o755)
    monkeypatch.setattr(run_tests, "has_browser", lambda: True)
    monkeypatch.setattr(run_tests, "BIN", tmp_path)
    monkeypatch.setattr(run_tests, "ROOT", tmp_path)
    assert run_tests.main([]) == found
    out, err = capfd.readouterr()
    assert out.index("the tests ran") < out.index("a.py:1: error: mine")
    assert err.strip() == ("Failed: mypy." if ends else "")


def test_soak_goes_on_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """A passed step is not repeated, a failed one is; --again starts over; a damaged record means start over."""
    flag = tmp_path / "mended"
    good = ("good", ((sys.executable, "-c", "print('good ran')"),))
    bad = ("bad", ((sys.executable, "-c", f"import os, sys; print('bad ran'); sys.exit(not os.path.exists({str(flag)!r}))"),))
    monkeypatch.setattr(soak, "STATE", tmp_path / "state" / "soak.json")
    monkeypatch.setattr(soak, "steps", lambda: [good, bad])
    assert soak.main([]) == 1
    flag.touch()
    capfd.readouterr()
    assert soak.main([]) == 0
    out = capfd.readouterr().out
    assert "bad ran" in out
    assert "good ran" not in out
    assert soak.main(["--again"]) == 0
    assert "good ran" in capfd.readouterr().out
    soak.STATE.write_text("{")
    assert soak.main([]) == 0
    assert "good ran" in capfd.readouterr().out


def test_soak_runs_a_part_and_leaves_the_rest_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """By the beginning of a name; --again forgets that part alone; what begins like nothing is refused."""
    made = [(name, ((sys.executable, "-c", f"print('{name} ran')"),)) for name in ("course 1", "course 2", "other")]
    monkeypatch.setattr(soak, "STATE", tmp_path / "soak.json")
    monkeypatch.setattr(soak, "steps", lambda: made)
    assert soak.main(["other"]) == 0
    assert soak.main(["course"]) == 0
    capfd.readouterr()
    assert soak.main(["--again", "course"]) == 0
    assert [line for line in capfd.readouterr().out.splitlines() if line.endswith(" ran")] == ["course 1 ran", "course 2 ran"]
    assert set(soak.read_state()) == {"course 1", "course 2", "other"}
    assert soak.main(["cuorse"]) == 2


def test_newest_takes_pytorch_from_its_own_index_or_leaves_the_pin() -> None:
    """A range would take the default build, gigabytes of CUDA; without an answer the pinned version stays."""
    cpu = setup_env.Stack("cpu", "cpu", None, "")
    assert newest.torch_arguments(cpu, True)[-2:] == ["--index-url", "https://download.pytorch.org/whl/cpu"]
    assert newest.torch_arguments(cpu, False) == [setup_env.torch_pin()]
    assert newest.torch_arguments(setup_env.Stack("apple", None, None, ""), True) == ["--upgrade", "torch"]


def test_newest_says_what_differs_from_the_pins() -> None:
    """Names compare as PEP 503 says; what the environment lacks does not differ; markers and comments are no part of a version."""
    pinned = newest.pins("# made by hand\nnumpy==2.4.6\nJupyter_Core==5.8; python_version > '3'\ntorch==2.13.0\ncupy-cuda13x==14.2.0\n")
    assert pinned == {"numpy": "2.4.6", "jupyter-core": "5.8", "torch": "2.13.0", "cupy-cuda13x": "14.2.0"}
    assert newest.newer(pinned, {"numpy": "2.5.0", "jupyter-core": "5.8", "torch": "2.14.0"}) == [
        ("numpy", "2.4.6", "2.5.0"), ("torch", "2.13.0", "2.14.0"),
    ]  # fmt: skip
    assert not newest.newer(pinned, {"torch": "2.13.0+cpu"}), "the build for a machine without a GPU is the same version"


def test_soak_holds_every_benchmark_and_the_newest_dependencies() -> None:
    """The list of steps covers what continuous integration leaves out."""
    names = [name for name, _ in soak.steps()]
    assert {f"benchmark {path.stem}" for path in run_benchmarks.benchmarks()} <= set(names)
    assert "newest dependencies" in names
    assert sum(name.startswith("course ") for name in names) == 20
    assert len(names) == len(set(names))
