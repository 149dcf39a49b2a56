"""The simulator's results: kernels of three collections against a plain per-thread executor, Numba's own simulator, and NumPy."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import per_thread
import pytest
from kernel_case import Arguments, Case, copies
from kernels_of_lanes import CASES as OF_LANES
from kernels_of_ours import CASES as OF_THREADS
from kernels_of_puzzles import CASES as PUZZLES
from kernels_of_the_manual import CASES as MANUAL

from gpulab.kernels import cuda, int32, simulate

OURS = [*OF_THREADS, *OF_LANES]
CASES = [*MANUAL, *PUZZLES, *OURS]
every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
_HERE = Path(__file__).parent


def _simulated(case: Case) -> Arguments:
    arguments = case.arguments()
    simulate(case.kernel, case.grid, case.block, *arguments, dynamic_shared_bytes=case.dynamic_shared_bytes)
    return arguments


def _agree(case: Case, found: np.ndarray, expected: object, what: str) -> None:
    if case.tolerance is None:
        np.testing.assert_array_equal(found, expected, err_msg=what)
    else:
        np.testing.assert_allclose(found, expected, rtol=case.tolerance, atol=case.tolerance, err_msg=what)


@every_case
def test_results_are_those_of_threads_that_run_one_by_one(case: Case) -> None:
    """Every array holds what it holds when each thread runs the kernel's Python code for itself."""
    found, expected = _simulated(case), case.arguments()
    per_thread.run(case.kernel, case.grid, case.block, *expected, dynamic_shared_bytes=case.dynamic_shared_bytes)
    for number, (array, wanted) in enumerate(zip(found, expected, strict=True)):
        if isinstance(array, np.ndarray):
            _agree(case, array, wanted, f"argument {number}")


@pytest.mark.parametrize("case", [c for c in CASES if c.expected], ids=lambda case: case.name)
def test_results_are_what_numpy_says(case: Case) -> None:
    """Where the answer is known, the arrays hold it; arrays that only go in stay as they are."""
    assert case.expected is not None
    before = case.arguments()
    known = case.expected(*copies(before))
    found = _simulated(case)
    for number, wanted in known.items():
        array = found[number]
        assert isinstance(array, np.ndarray)
        _agree(case, array, wanted, f"argument {number}")
    outputs = min(known)
    for number in range(outputs):  # inputs come before what is known; outputs that nothing is known of come after
        np.testing.assert_array_equal(found[number], before[number])


@every_case
def test_nothing_is_found_wrong_with_a_correct_kernel(case: Case) -> None:
    """These kernels are correct: no race, no access out of bounds, no barrier that some threads miss."""
    arguments = case.arguments()
    simulation = simulate(case.kernel, case.grid, case.block, *arguments, dynamic_shared_bytes=case.dynamic_shared_bytes)
    assert simulation.findings == ()


@every_case
def test_results_do_not_depend_on_how_many_blocks_run_together(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks taken one at a time leave the same in every array as all of them at once."""
    together = _simulated(case)
    monkeypatch.setattr("gpulab.kernels._simulate._run._LANES_AT_ONCE", 1)
    for one, other in zip(together, _simulated(case), strict=True):
        np.testing.assert_array_equal(one, other)


def _under_numba(*arguments: str) -> str:
    """Run Python in a process whose ``numba.cuda`` is Numba's simulator; return what it prints."""
    path = os.pathsep.join(map(str, (_HERE.parent.parent, _HERE)))
    environment = {**os.environ, "NUMBA_ENABLE_CUDASIM": "1", "PYTHONWARNINGS": "ignore", "PYTHONPATH": path}
    return subprocess.run([sys.executable, *arguments], env=environment, check=True, timeout=300, stdout=subprocess.PIPE, text=True).stdout


@pytest.fixture(scope="module")
def numbas_results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray]:
    """Return what Numba's simulator leaves in the arrays, by "case/argument"."""
    pytest.importorskip("numba")
    path = tmp_path_factory.mktemp("numba") / "results.npz"
    _under_numba(str(_HERE / "numba_simulator.py"), str(path))
    with np.load(path) as results:
        return dict(results)


@pytest.mark.parametrize("case", [c for c in CASES if c.numba], ids=lambda case: case.name)
def test_results_are_those_of_numbas_simulator(case: Case, numbas_results: dict[str, np.ndarray]) -> None:
    """Every array holds what it holds after Numba's own simulator, which knows no warps."""
    for number, array in enumerate(_simulated(case)):
        if isinstance(array, np.ndarray):
            _agree(case, array, numbas_results[f"{case.name}/{number}"], f"argument {number}")


# Eight threads turn eight numbers round in shared memory; each array that is made takes long enough for all of them to ask for one.
_AT_ONCE = """
import time
import numba_simulator
import numpy as np
from numba import cuda, float32

made = np.empty

def slowly(shape, dtype):
    time.sleep(0.05)
    array = made(shape, dtype)
    array.fill(-1)
    return array

def turn(out):
    i = cuda.threadIdx.x
    tile = cuda.shared.array(8, float32)
    tile[i] = i
    cuda.syncthreads()
    out[i] = tile[7 - i]

numba_simulator.share_arrays_in_a_block()
out = np.zeros(8, np.float32)
np.empty = slowly
cuda.jit(turn)[1, 8](out)
print(out.astype(int).tolist())
"""


def test_threads_that_ask_for_a_shared_array_at_once_get_the_same_one() -> None:
    """Under Numba's simulator each found none and made its own: a reference that is wrong by chance would blame our simulator."""
    pytest.importorskip("numba")
    assert _under_numba("-c", _AT_ONCE).split("\n")[0] == "[7, 6, 5, 4, 3, 2, 1, 0]"


def test_the_collections_are_large_enough() -> None:
    """There are the puzzles, thirty kernels of the manual and thirty of ours at least; no two cases share a name."""
    assert len({case.kernel for case in OURS}) >= 30
    assert len({case.kernel for case in MANUAL}) >= 30
    assert len({case.kernel for case in PUZZLES}) >= 14
    assert len({case.name for case in CASES}) == len(CASES)


def votes_of_some_blocks(out):
    one = cuda.shared.array(1, int32)
    tile = cuda.shared.array(64, int32)
    b, t = cuda.blockIdx.x, cuda.threadIdx.x
    one[0] = b  # the same value by all threads of a block
    tile[t] = 100 * b + t
    cuda.syncthreads()
    out[b, t, 0] = cuda.syncthreads_count(t < 10 + b)
    out[b, t, 1] = cuda.syncthreads_and(b != 1 or t < 63)
    out[b, t, 2] = cuda.syncthreads_or(b == 2 and t == 5)
    out[b, t, 3] = tile[(t + 1) % 64] + one[0]
    if b > 0:
        out[b, t, 4] = cuda.popc(cuda.activemask())
        cuda.syncwarp()
        out[b, t, 5] = cuda.ballot_sync(0xFFFFFFFF, t % 32 < b)
        out[b, t, 6] = cuda.shfl_sync(0xFFFFFFFF, t + 100 * b, 3)
        out[b, t, 7] = cuda.all_sync(0xFFFFFFFF, t + b < 33)
        out[b, t, 8] = cuda.any_sync(0xFFFFFFFF, t == 33 - b)
        out[b, t, 9] = cuda.popc(cuda.match_any_sync(0xFFFFFFFF, t % (b + 1)))
    if b != 1:
        cuda.syncthreads()


def test_blocks_and_warps_that_differ_vote_for_themselves() -> None:
    """Three blocks of two warps, of which the first leaves the votes of warps out and the second the last barrier: each value by hand."""
    out = np.full((3, 64, 10), -1, np.int64)
    s = simulate(votes_of_some_blocks, 3, 64, out)
    assert s.findings == ()
    assert s.totals.barriers == 3 * 4 + 2
    warp = np.arange(64) // 32
    for b in range(3):
        found = out[b].T
        assert (found[0] == 10 + b).all()
        assert (found[1] == (b != 1)).all()
        assert (found[2] == (b == 2)).all()
        assert (found[3] == 101 * b + (np.arange(64) + 1) % 64).all()
        if b == 0:
            assert (found[4:] == -1).all()
            continue
        assert (found[4] == 32).all()
        assert (found[5] == 2**b - 1).all()  # lanes 0 to b - 1
        assert (found[6] == 100 * b + 32 * warp + 3).all()
        assert (found[7] == ((warp == 0) & (b == 1))).all()  # 31 + b < 33
        assert (found[8] == (warp == (b == 1))).all()  # threads 32 and 31
        # Of 32 numbers every second; or thirds of which each warp has 11, 11 and 10, the second beginning with 32 % 3 = 2.
        alike = np.array([[16, 16], [16, 16]]) if b == 1 else np.array([[11, 11, 10], [11, 10, 11]])
        assert (found[9] == alike[warp, np.arange(64) % (b + 1)]).all()
