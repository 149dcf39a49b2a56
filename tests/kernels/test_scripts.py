"""Programs that use numba.cuda run unchanged without a GPU: by context, command and plugin."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from gpulab.kernels import simulated

# Checks its results against NumPy by itself; the line of the race is asserted below. The device's
# clock and memory are those in recordings/data/nvidia-h100.json, its copy engines those that
# deviceQuery prints for an H100.
PROGRAM = """
import sys
import numpy as np
from numba import cuda, f4, float32, int32, vectorize, void
from numba.cuda.cudadrv.devicearray import DeviceNDArray
from numba.cuda.random import create_xoroshiro128p_states, xoroshiro128p_uniform_float32
try:
    from numba import guvectorize
except ImportError:  # without Numba
    guvectorize = None

@cuda.jit(device=True)
def twice(x):
    return x * float32(2)

@vectorize(["float32(float32, float32)"], target="cuda")
def twice_sum(x, y):
    return twice(x) + twice(y)

@cuda.jit(void(f4[:], float32[:], int32))
def add(a, b, n):
    i = cuda.grid(1)
    if i < n:
        b[i] += twice(a[i])

@cuda.jit
def steps(right, left, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = right[i] - left[i]

@cuda.jit
def moves(pair):
    part = cuda.shared.array(0, float32)
    part[cuda.threadIdx.x] = pair[1][cuda.grid(1)]
    pair[0][cuda.grid(1)] = part[cuda.threadIdx.x]

@cuda.jit
def width(out):
    if cuda.grid(1) == 0:
        out[0] = cuda.gridsize(1)

@cuda.jit
def draw(states, out):
    i = cuda.grid(1)
    for k in range(2):
        out[k, i] = xoroshiro128p_uniform_float32(states, i)

def first(x, out):
    out[0] = x[0]

@cuda.jit
def last(out):
    out[0] = cuda.threadIdx.x

@cuda.jit
def total(out):
    s = 0
    for i in range(10000):
        s += i
    out[0] = s

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
    width.forall(1000, 100)(on_device)  # ten blocks of 100
    assert on_device[0] == 1000
    drawn = np.zeros((2, 2), np.float32)
    draw[1, 2](create_xoroshiro128p_states(2, seed=1234567), drawn)
    np.testing.assert_allclose(drawn, [[0.70015908, 0.78660675], [0.26044937, 0.58867891]], 1e-6)
    steps.forall(a.size - 1)(result[1:], result[:-1], on_device[1:])
    np.testing.assert_array_equal(on_device[1:].copy_to_host(), np.diff(4 * a))
    moves[1, 32, stream, 32 * 4]((on_device, result))
    np.testing.assert_array_equal(on_device[:32].copy_to_host(), 4 * a[:32])
    on_device.copy_to_device(a)
    part = cuda.device_array_like(result)
    assert isinstance(part, DeviceNDArray) and cuda.devicearray.DeviceNDArray is DeviceNDArray
    part.copy_to_device(result)
    np.testing.assert_array_equal(part.reshape(10, 100)[3].copy_to_host(), 4 * a[300:400])
    with cuda.pinned(a), cuda.gpus[0]:
        assert cuda.is_available() and cuda.get_current_device().WARP_SIZE == 32
    memory, device = cuda.current_context().get_memory_info(), cuda.get_current_device()
    told = (device.CLOCK_RATE, device.ASYNC_ENGINE_COUNT, memory.total, memory.free < 2**35)
    assert told == (1980 * 1000, 3, 85017493504, True)
    cuda.current_context().deallocations.clear()
    twice_sum(twice_sum(on_device, on_device), a, out=part)
    np.testing.assert_array_equal(part.copy_to_host(), 10 * a)
    assert cuda.reduce(lambda x, y: x + y)(np.arange(10)) == 45
    if guvectorize:
        try:
            guvectorize(["void(f4[:], f4[:])"], "(n)->()", target="cuda")(first)(a)
        except AttributeError as error:
            assert "guvectorize" in str(error) and "cuda.jit" in str(error)
        else:
            assert False, "guvectorize is not simulated"

def refused(error, words, call, *args, **options):
    try:
        call(*args, **options)
    except error as found:
        assert words in str(found), found
    else:
        assert False, f"{words}: nothing was raised"

def test_arrays():
    table = np.arange(12.0).reshape(3, 4)
    d = cuda.to_device(table)
    assert (d.ndim, d.nbytes, len(d.T), d.T.strides) == (2, 96, 4, (8, 32))
    assert (d.is_c_contiguous(), d.T.is_f_contiguous(), d.T.is_c_contiguous()) == (1, 1, 0)
    assert cuda.to_device(d) is d
    np.testing.assert_array_equal(d.transpose((1, 0)).copy_to_host(), table.T)
    np.testing.assert_array_equal(cuda.to_device(np.asfortranarray(table)).copy_to_host(), table)
    parts = [part.copy_to_host().tolist() for part in d.ravel().split(5)]
    assert parts == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9], [10, 11]]
    assert cuda.to_device(table[None]).squeeze().shape == (3, 4)
    assert d.view(np.float32).shape == (3, 8)
    d[1] = 7
    d.setitem((0, 0), 5.0)
    whole = np.zeros((3, 4))
    assert d.copy_to_host(whole) is whole
    assert (whole[0, 0], d.getitem((0, 0)), whole[1].tolist(), table[0, 0]) == (5, 5, [7] * 4, 0)
    assert cuda.to_device(table.T, to=d.T)[3, 2] == d[2, 3] == 11
    d.copy_to_device(np.asfortranarray(2 * table))
    np.testing.assert_array_equal(np.asarray(d), 2 * table)
    refused(ValueError, "shape", d.copy_to_device, np.zeros((4, 3)))
    refused(TypeError, "dtype", d.copy_to_host, np.zeros((3, 4), "f4"))
    refused(ValueError, "strides", d.copy_to_device, cuda.to_device(np.asfortranarray(table)))
    refused(ValueError, "non-contiguous", cuda.to_device, table[:, ::2])
    refused(NotImplementedError, "copy", d.T.reshape, 12)
    refused(NotImplementedError, "negative strides", d[::-1].copy_to_host)
    refused(TypeError, "interface", cuda.as_cuda_array, table)
    like = cuda.device_array_like(d.T)
    assert (like.shape, like.strides) == ((4, 3), (8, 32))
    assert cuda.mapped_array_like(table).shape == (3, 4)
    ones = np.ones(3)
    with cuda.mapped(ones, table) as (one, other):
        one[1] = 4
    assert (ones.tolist(), other.shape) == ([1, 4, 1], (3, 4))

def test_the_device():
    told, out = [], np.zeros(1, np.int32)
    cuda.stream().add_callback(lambda stream, status, arg: told.append((status, arg)), 3)
    with cuda.stream().auto_synchronize() as stream:
        assert (int(stream), cuda.event().query(), told) == (0, True, [(0, 3)])
    refused(ValueError, "1", cuda.select_device, 1)
    assert (len(cuda.gpus), cuda.gpus.lst[0].compute_capability, cuda.detect()) == (1, (9, 0), True)
    refused(AttributeError, "NO_SUCH", getattr, cuda.get_current_device(), "NO_SUCH")
    refused(ValueError, "configuration was not specified", last, out)
    refused(ValueError, "at least", last.__getitem__, 1)
    refused(ValueError, "griddim", last.configure, (1, 1, 1, 1), 1)
    refused(TypeError, "blockdim", last.configure, 1, 1.5)
    refused(ValueError, "-1", last.forall, -1)
    last.forall(0)(out)
    assert out[0] == 0
    width.forall(100)(out)  # one block of 128
    assert out[0] == 128
    assert add.overloads["any"].max_cooperative_grid_blocks(128) == 132 * 16
    add_up = cuda.reduce(lambda x, y: x + y)
    result = cuda.to_device(np.zeros(1))
    assert add_up(np.arange(10.0), size=4, init=100, res=result) is None
    assert (result[0], add_up(cuda.to_device(np.arange(4)), init=2)) == (106, 8)
    assert twice_sum(1, 2.5) == 7
    assert twice_sum(np.float32(1), cuda.to_device(np.ones(2, "f4"))).copy_to_host()[1] == 4
    refused(TypeError, "No matching version", twice_sum, np.ones(2), np.ones(2))

@cuda.jit(debug=True)
def checked(out):
    out[cuda.threadIdx.x] = 1
    if cuda.threadIdx.x == 2:
        raise ValueError("too far", 3 * 4)

@cuda.jit
def says(out):
    print((1, 2.5), (cuda.grid(1),), out, "a", cuda.grid(1) > 0, None)

class Doubled:  # an extension, which changes arguments before a launch and undoes it afterwards
    def prepare_args(self, kind, value, stream=None, retr=None):
        retr.append(lambda: value.__setitem__(0, value[0] * 2))
        return kind, value

@cuda.jit(extensions=[Doubled()])
def extended(out):
    out[0] += 3

def test_errors_and_prints():
    out = np.zeros(4)
    refused(ValueError, "tid=[2, 0, 0] ctaid=[0, 0, 0]: too far", checked[1, 3], out)
    assert out.tolist() == [1, 1, 1, 0]
    extended[1, 1](out)
    assert out[0] == 8
    says[80, 126](out)

def test_last():
    out = cuda.managed_array(1, np.int32)
    for given, stays in ((cuda.In(out), 7), (cuda.InOut(out), 63), (out, 63)):
        out[0] = 7
        last[1, 64](given)
        assert out[0] == stays

def test_a_long_loop():
    out = np.zeros(1, np.int64)
    total[1, 1](out)
    assert out[0] == 10000 * 9999 // 2

if __name__ == "__main__":
    test_add()
    test_arrays()
    test_the_device()
    test_errors_and_prints()
    test_last()
    test_a_long_loop()
    print(sys.argv[1:])
    sys.exit(int(sys.argv[2]) - 1)
"""
# The line of the race; and what 80 blocks of 126 threads print, cut at the limit, a thread that
# raises, and all launches.
RACE, PRINTED = (
    PROGRAM.splitlines().index("    out[0] = cuda.threadIdx.x") + 1,
    (
        "\n(1, 2.500000) (0,) an array a False nothing\n(1, 2.500000) (1,) an array a True",
        "\n(1, 2.500000) (9999,) an array a True nothing\n[",
        "only the first 10,000 printed lines",
        "ValueError('too far', 3 * 4) is raised here",
        "10 kernels, 14 launches on the simulator; 2 findings, 0 refusals",
    ),
)


COMMAND = """from gpulab.cli import main
code = main(["simulate", "--fail-on-findings", "test_program.py", "--more", "1"])
print("torch" in sys.modules)"""
TESTS = """import pytest
options = ["-pgpulab.pytest_simulate", "-pno:cacheprovider", "--color=no", "--fail-on-findings"]
code = pytest.main([*options, "test_program.py"])"""


@pytest.mark.parametrize(
    ("code", "status", "shows"),
    [
        # sectors by hand, in ``steps``: 5, 4 and 5 for each of 31 warps, and 1 for 7 lanes in the
        # last: 437 by 96 requests, where elements that began at a sector would need 375
        (COMMAND, 1, ["['--more', '1']", "\nFalse\n", "4.6 (3.9)", *PRINTED]),
        (
            "sys.modules['numba'] = None\n" + COMMAND.replace('"--fail-on-findings", ', ""),
            0,
            ["['--more', '1']", "\nFalse\n", "4.6 (3.9)", *PRINTED],
        ),
        (COMMAND.replace('"1"', '"4"'), 3, ["['--more', '4']"]),  # the program's own exit code
        (TESTS, 1, ["2 failed, 4 pa"]),
        (
            "sys.modules['numba'] = None\n" + TESTS.replace(', "--fail-on-findings"', ""),
            0,
            ["6 passed"],
        ),
        (
            "open('conftest.py', 'w').write('pytest_plugins = \"gpulab.pytest_simulate\"')\n"
            + TESTS.replace('"-pgpulab.pytest_simulate", ', ""),
            1,
            ["2 failed, 4 pa"],
        ),
    ],
    ids=[
        *("command", "without numba", "exit code"),
        *("plugin", "plugin without numba", "plugin of a conftest"),
    ],
)
def test_a_program_runs_as_it_is(code: str, status: int, shows: list[str], tmp_path: Path) -> None:
    """A program runs by ``gpulab simulate``, with and without Numba, and by the plugin.

    A race is reported with its line and its cases in all launches (63 threads of 64 in each of
    three). It fails the program or its own test if that is asked for. The command does not load
    torch.
    """
    (tmp_path / "test_program.py").write_text(PROGRAM, encoding="utf-8")
    command = [sys.executable, "-c", f"import sys\n{code}\nsys.exit(code)"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == status, done.stderr
    assert [
        text
        for text in (f"test_program.py: race, line {RACE} ", "189 times", *shows)
        if text not in done.stdout
    ] == []


@pytest.mark.parametrize(
    ("part", "sectors"),  # 32 float32 of an array on the device; by hand, eight to a sector
    [
        (slice(1, 33), 5),
        (slice(8, 40), 4),
        (slice(33, 1, -1), 5),  # 2 to 33
        (slice(7, 71, 2), 9),  # 7 to 69
        (slice(None, None, 4), 16),
    ],
)
def test_slices_count_where_they_lie_until_the_context_ends(part: slice, sectors: int) -> None:
    """Kernels that Numba made before run inside the context; then ``numba.cuda`` is restored.

    Slices are counted where they lie on the device, also as the memory of an object. Those of the
    host are copied there by a launch. A context inside another one has its own launches alone, and
    leaves the outer one as it is.
    """
    cuda = pytest.importorskip("numba.cuda")
    jit, out = cuda.jit, np.zeros(128, np.float32)

    @jit
    def before(x):  # type: ignore[no-untyped-def]
        x[cuda.threadIdx.x] = cuda.threadIdx.x

    with simulated() as session:
        with simulated() as inner:
            before[1, 32](out[1:])
        before[1, 32](x := cuda.to_device(out)[part])
        before[1, 32](type("Owner", (), {"__cuda_array_interface__": x.__cuda_array_interface__}))
    assert (out[:33].tolist(), cuda.jit is jit) == ([0, *range(32)], True)
    assert [[s.totals.global_sectors for s in each.simulations] for each in (session, inner)] == [
        [4, sectors, sectors],
        [4],
    ]
