"""The magics, from ``%gpu_time`` to ``%%simulate`` and ``%%needs``, in a real IPython shell."""

import subprocess
import sys
from typing import Any

import pytest
from gpulab.timing import Measurement


@pytest.fixture
def shell(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """An IPython shell with the extension loaded twice, as a second ``%load_ext`` does."""
    interactive = pytest.importorskip("IPython.core.interactiveshell")
    from traitlets.config import Config

    monkeypatch.setenv("GPULAB_LOCK_DIR", str(tmp_path))
    shell = interactive.InteractiveShell(config=Config({"HistoryManager": {"enabled": False}}))
    shell.run_cell("import gpulab\nfor _ in range(2): gpulab.load_ipython_extension(get_ipython())")
    shell.run_cell("import numpy as np\nx = np.ones((8, 8)); n = 8; calls = []")
    return shell


def test_the_line_gives_a_measurement(shell: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """``-o`` returns the measurement; without it the table is shown.

    Options take units and expressions, and the help lists them.
    """
    options = "-o -t '50 ms' -w .05 -d \"cpu\" --flops 2*n**3 --nbytes='3 KiB' --transfer"
    assert shell.run_cell(f"m = %gpu_time {options} x @ x").success
    m: Measurement = shell.user_ns["m"]
    assert (m.label, m.flops, m.nbytes, m.device, m.with_transfer_seconds is None) == (
        "x @ x",
        1024.0,
        3072.0,
        "cpu",
        False,
    )
    shell.run_cell("m = %gpu_time -t 0.05 x @ x")
    assert shell.user_ns["m"] is None
    assert "x @ x on cpu" in capsys.readouterr().out
    assert "--cold" in shell.object_inspect("%gpu_time")["docstring"]
    # Calls that each begin with an emptied cache cannot be batched.
    m = shell.run_line_magic("gpu_time", "-o --cold -t 0.05 -- -x")
    assert (m.label.split()[0], m.calls_per_sample) == ("-x", 1)


def test_the_cell_runs_in_the_notebooks_namespace(
    shell: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """The line's set-up runs once, and the cell's assignments stay in the namespace; a set-up that
    raises is one sentence.
    """
    assert shell.run_cell("%%gpu_time -t 0.05 once = []; once.append({n})\ny = x + 1").success
    assert (shell.user_ns["y"][0, 0], shell.user_ns["once"]) == (2.0, [{8}])
    m = shell.run_cell_magic(
        "gpu_time", "-o -t 0.05", "calls.append(1)\n(x * 2).sum() + (x * 3).sum()"
    )
    assert (type(m), m.label) == (Measurement, "calls.append(1) (x * 2).sum() + (x * ...")
    assert (
        len(shell.user_ns["calls"]) > 3,
        shell.run_cell_magic("gpu_time", "-o 1 / 0", "x"),
        capsys.readouterr().err.count("ZeroDivisionError"),
    ) == (True, None, 1)


def test_a_cell_of_kernels_runs_without_a_gpu(
    shell: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """``%%simulate`` gives the cell's value, unless a semicolon hides it, and shows what its
    kernels did, also after an error.
    """
    kernel = "from numba import cuda\n@cuda.jit\ndef fill(out):\n    out[cuda.threadIdx.x] = 7\n"
    assert [
        shell.run_cell_magic("simulate", "", f"{kernel}fill[1, 8](x[0])\nx[0].sum(){end}")
        for end in ("  # 7;", " ;")
    ] == [56, None]
    assert not shell.run_cell(f"%%simulate\n{kernel}fill[1, 8](x[0])\n1 / 0").success
    assert capsys.readouterr().out.count("1 kernel, 1 launch") == 3


@pytest.mark.parametrize(
    ("line", "shows"),
    [
        *(("", "no code"), ("--bogus 1 x", "--bogus"), ("-t", "-t"), ("--transfer=no x", "'no'")),
        *(("-t never x", "'never'"), ("-d cuda:99 x", "cuda:99"), ("x +", "syntax")),
        *(("1/0", "ZeroDivisionError"), ("nobody", "nobody")),
    ],
)
def test_an_error_is_one_sentence(
    shell: Any, capsys: pytest.CaptureFixture[str], line: str, shows: str
) -> None:
    """Each mistake is one line on standard error, and the notebook goes on."""
    assert shell.run_cell(f"%gpu_time {line}\nafter = 1").success
    printed = capsys.readouterr()
    assert shows in printed.err
    assert len(printed.err.strip().splitlines()) == 1
    assert "Traceback" not in printed.out + printed.err
    assert shell.user_ns["after"] == 1


def test_compile_shows_what_each_kernel_takes(
    shell: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """Options reach the compiler, the result is kept under its name, an error names its line."""
    code = (
        "template<int N> __global__ void t(float* x) { __shared__ float a[N];"
        " a[threadIdx.x] = x[0]; __syncthreads(); x[1] = a[threadIdx.x ^ 1] + EXTRA; }"
    )
    shell.run_cell(f"%%gpu_compile --arch=sm_80 -DEXTRA=2 --name 't<64>' -o made\n{code}")
    made = shell.user_ns["made"]
    # 64 floats of 4 bytes.
    assert (made.arch, made.kernels["t<64>"].shared_bytes) == ("sm_80", 256)
    assert "t<64>" in capsys.readouterr().out
    for line, source, shows in (
        ("", "__global__ void k(float* x) {\n  x[0] = foo;\n}", "line 2"),
        ("--arch sm_20", "__global__ void k() {}", "sm_90"),
        ("-o 3x", "__global__ void k() {}", "3x"),
        ("-DX='", "__global__ void k() {}", "quotation"),
    ):
        shell.run_cell(f"%%gpu_compile {line}\n{source}")
        shown = capsys.readouterr()
        assert shows in shown.err
        assert "Traceback" not in shown.err + shown.out


def test_needs_leaves_a_cell_out_without_its_library(
    shell: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where a library is missing the cell is not run, and one sentence says how to get it."""
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys; sys.modules['jax'] = None; from gpulab import magics;"
            "magics.needs(None, 'jax', 'raise SystemExit(1)')",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "'jax'" in done.stdout
    assert shell.run_cell_magic("needs", "caffe", "raise SystemExit") is None
    assert "caffe" in capsys.readouterr().err


def test_memory_shows_the_change_and_gives_the_value(
    shell: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """``%%gpu_memory`` gives the cell's value and shows how much memory the cell keeps, also after
    an error; with a word on its line it says that this is no option.
    """
    cell = "import torch\nkept = torch.empty(2**26)\ntorch.empty(2**25)\nlen(kept)"
    assert [
        *(shell.run_cell_magic("gpu_memory", line, cell) for line in ("", "now")),
        shell.run_cell("%%gpu_memory\nmore = torch.empty(2**26)\n1 / 0").success,
    ] == [2**26, None, False]
    printed = capsys.readouterr()
    assert (printed.out.count("kept 256 MiB"), "'now'" in printed.err) == (2, True)
