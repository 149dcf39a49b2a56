"""Programs that use numba.cuda, unchanged and without a GPU: context, command, plugin."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from gpulab.errors import GpulabError
from gpulab.kernels import simulated

# Checks its results against NumPy by itself; the line of the race is asserted below.
PROGRAM = """
import sys
import numpy as np
from numba import cuda, float32, int32, void
from numba.cuda.random import create_xoroshiro128p_states, xoroshiro128p_uniform_float32

@cuda.jit(device=True)
def twice(x):
    return x * float32(2)

@cuda.jit(void(float32[:], float32[:], int32))
def add(a, b, n):
    i = cuda.grid(1)
    if i < n:
        b[i] += twice(a[i])

@cuda.jit
def last(out):
    out[0] = cuda.threadIdx.x

def test_add():
    a = np.random.rand(1000).astype(np.float32)
    on_device, result = cuda.to_device(a), cuda.to_device(np.zeros_like(a))
    stream, start, end = cuda.stream(), cuda.event(), cuda.event()
    start.record(stream)
    add[4, 256, stream](on_device, result, a.size)
    end.record(stream)
    end.synchronize()
    assert start.elapsed_time(end) > 0
    np.testing.assert_array_equal(result.copy_to_host(), 2 * a)
    add.forall(a.size)(on_device, result, a.size)
    np.testing.assert_array_equal(result[:10].copy_to_host(), 4 * a[:10])
    part = cuda.device_array_like(result)
    part.copy_to_device(result)
    with cuda.pinned(a), cuda.gpus[0]:
        assert cuda.is_available() and cuda.get_current_device().WARP_SIZE == 32
    assert cuda.reduce(lambda x, y: x + y)(np.arange(10)) == 45

def test_last():
    out = cuda.managed_array(1, np.int32)
    last[1, 64](out)
    assert out[0] == 63

if __name__ == "__main__":
    test_add()
    test_last()
    print(sys.argv[1:])
"""
RACE = PROGRAM.splitlines().index("    out[0] = cuda.threadIdx.x") + 1


def _run(folder: Path, code: str) -> "subprocess.CompletedProcess[str]":
    """Run code in the program's folder."""
    (folder / "test_program.py").write_text(PROGRAM, encoding="utf-8")
    command = [sys.executable, "-c", f"import sys\n{code}"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("before", ["", "sys.modules['numba'] = None"], ids=["numba", "without"])
def test_a_program_runs_as_it_is(before: str, tmp_path: Path) -> None:
    """``gpulab simulate`` runs it with and without Numba, and reports the race with its line."""
    words = ["simulate", "--fail-on-findings", "test_program.py", "--more", "1"]
    code = f"from gpulab.cli import main\ncode = main({words})\nprint('torch' in sys.modules)"
    done = _run(tmp_path, f"{before}\n{code}\nsys.exit(code)")
    assert (done.returncode, done.stdout.splitlines()[-1]) == (1, "False"), done.stderr
    assert "['--more', '1']" in done.stdout
    assert f"race, line {RACE} " in done.stdout


def test_tests_of_kernels_run_without_a_gpu(tmp_path: Path) -> None:
    """The plugin runs a project's tests; with ``--fail-on-findings`` the race fails its own."""
    options = ["-p", "gpulab.pytest_simulate", "-p", "no:cacheprovider", "--fail-on-findings"]
    done = _run(tmp_path, f"import pytest\nsys.exit(pytest.main({[*options, 'test_program.py']}))")
    assert "1 failed, 1 passed" in done.stdout, done.stdout
    assert f"race, line {RACE} " in done.stdout


def test_the_context_ends() -> None:
    """Kernels of Numba's from before run inside; afterwards ``numba.cuda`` is as it was."""
    cuda = pytest.importorskip("numba.cuda")
    jit, out = cuda.jit, np.zeros(8)

    @jit
    def before(x):  # type: ignore[no-untyped-def]
        x[cuda.threadIdx.x] = cuda.threadIdx.x

    with simulated() as session:
        before[1, 8](out)
        with pytest.raises(GpulabError):
            before[1, 8]("text")
    assert out.tolist() == list(range(8))
    assert [kernel.launches for kernel in session.report().kernels] == [1]
    assert cuda.jit is jit
