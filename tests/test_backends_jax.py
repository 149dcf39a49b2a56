"""JAX's arrays through share, to_device, to_host, device_of and measure; addresses are asked of the libraries themselves."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import gpulab as gl
from gpulab import _backends
from gpulab._backends._jax import not_aligned
from gpulab.errors import CopyRequiredError, DeviceError, InputError

jax = pytest.importorskip("jax", reason="JAX is not installed: pip install -e '.[rosetta]'")
jnp = jax.numpy
pytestmark = pytest.mark.skipif(jax.default_backend() != "cpu", reason="asks for what JAX does on a CPU")


def aligned(shape: tuple[int, ...], dtype: str = "float32", off: int = 0) -> np.ndarray:
    """An array of ones that begins ``off`` bytes behind a 64-byte boundary."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.zeros(size + 128, np.uint8)
    start = -raw.ctypes.data % 64 + off
    array = raw[start : start + size].view(dtype).reshape(shape)
    array[...] = 1
    return array


DTYPES = ["bool", "int8", "int16", "int32", "uint8", "uint16", "uint32", "float16", "float32", "complex64"]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(6,), (2, 3), (), (0, 3)])
def test_numpy_and_jax_share_every_common_dtype(dtype: str, shape: tuple[int, ...]) -> None:
    """Address, dtype, shape and values are the same there and back; the view that comes back is read-only."""
    array = aligned(shape, dtype)
    view = gl.share(array, "jax")
    back = gl.share(view, "numpy")
    assert (view.dtype, view.shape) == (array.dtype, array.shape)
    np.testing.assert_array_equal(back, array)
    if array.size:
        assert view.unsafe_buffer_pointer() == array.ctypes.data == back.ctypes.data
        assert not back.flags.writeable


@settings(max_examples=60)
@given(hnp.arrays(np.float32, hnp.array_shapes(max_dims=3, max_side=4)), st.integers(0, 3), st.booleans())
def test_share_gives_the_same_address_or_refuses(values: np.ndarray, quarter: int, turned: bool) -> None:
    """Wherever an array begins and however it lies: the view has its address and values, or there is CopyRequiredError."""
    array = aligned(values.shape, off=16 * quarter)
    array[...] = values
    array = array.T if turned else array
    try:
        view = gl.share(array, "jax")
    except CopyRequiredError:
        assert quarter or turned
    else:
        assert view.unsafe_buffer_pointer() == array.ctypes.data
        np.testing.assert_array_equal(np.asarray(view), array)


def test_torch_and_jax_share_both_ways() -> None:
    """bfloat16 too, which numpy lacks; what torch writes afterwards is in the same memory."""
    for dtype in (torch.float32, torch.bfloat16, torch.bool):
        tensor = torch.ones(5, dtype=dtype)
        view = gl.share(tensor, "jax")
        assert view.unsafe_buffer_pointer() == tensor.data_ptr()
        assert gl.share(view, "torch").data_ptr() == tensor.data_ptr()
        assert gl.share(view, "torch").dtype == dtype


def key() -> Any:
    """A key, whose dtype only JAX has."""
    return jax.random.key(0)


def deleted() -> Any:
    """An array whose memory was given away."""
    x = jnp.ones(3)
    x.delete()
    return x


@pytest.mark.parametrize(
    ("make", "library", "words"),
    [
        (lambda: aligned((4,), off=16), "jax", r"16 bytes behind a 64-byte boundary.*gl\.to_device"),
        (lambda: torch.zeros(9)[1:], "jax", "4 bytes behind"),
        (lambda: torch.zeros(3, dtype=torch.float64), "jax", "float32 of float64.*jax_enable_x64"),
        (lambda: np.zeros(3, np.int64), "jax", "int32 of int64"),
        (lambda: torch.zeros(3, dtype=torch.complex128), "jax", "complex64 of complex128"),
        (lambda: torch.zeros(3, requires_grad=True), "jax", "autograd"),
        (lambda: torch._neg_view(torch.ones(3)), "jax", "negation"),
        (lambda: torch.zeros(3, dtype=torch.complex64).conj(), "jax", "conjugation"),
        (lambda: torch.zeros(16)[::2], "jax", "jax refuses it"),
        (lambda: torch.zeros(3, device="meta"), "jax", "no data"),
        (lambda: aligned((4,))[::-1], "jax", "negative stride"),
        (lambda: np.broadcast_to(np.float32(1), (4,)), "jax", "read-only.*DLPack"),
        (lambda: jnp.zeros(3, jnp.bfloat16), "numpy", "no bfloat16"),
        (lambda: jnp.zeros(3, jnp.int4), "torch", "torch refuses it"),
        (key, "torch", r"JAX's own.*key_data"),
        (deleted, "numpy", "given away"),
        (lambda: jnp.zeros(3), "cupy", "CUDA memory"),
    ],
)
def test_what_cannot_be_shared_says_why(make: Any, library: str, words: str) -> None:
    """No copy, no other dtype, no lost sign: one sentence."""
    with pytest.raises(CopyRequiredError, match=words) as caught:
        gl.share(make(), library)
    assert "\n" not in str(caught.value)


def test_a_copy_that_jax_makes_unasked_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Should a version copy in spite of copy=False, the address tells."""
    monkeypatch.setattr(_backends.JaxBackend, "from_dlpack", lambda self, x: jnp.array(np.asarray(x), copy=True))
    with pytest.raises(CopyRequiredError, match="made a copy of it unasked"):
        gl.share(torch.ones(4), "jax")


def test_float64_is_shared_once_it_is_switched_on() -> None:
    """With jax_enable_x64 nothing is refused or narrowed."""
    with jax.enable_x64(True):
        view = gl.share(torch.ones(3, dtype=torch.float64), "jax")
        assert view.dtype == np.float64
        assert gl.to_device(np.arange(3), library="jax").dtype == np.int64


def test_to_device_never_lies_over_memory_that_may_change() -> None:
    """A later write to the NumPy array is not seen, not even where it is aligned and device_put would take its memory."""
    for off in (0, 16):
        array = aligned((1000,), off=off)
        there = gl.to_device(array, library="jax")
        array[:] = 7
        assert float(there[0]) == 1
        assert gl.device_of(there).is_cpu
    assert gl.to_device(there, library="jax") is there


def test_to_device_keeps_the_dtype_or_refuses() -> None:
    """float64 without 64 bits is an error, not float32; bfloat16 passes between torch and JAX."""
    with pytest.raises(InputError, match="float32 of float64"):
        gl.to_device(np.zeros(3), library="jax")
    there = gl.to_device(torch.full((3,), 2.5, dtype=torch.bfloat16), library="jax")
    assert (str(there.dtype), float(there[0])) == ("bfloat16", 2.5)
    assert gl.to_device(there, library="torch").dtype == torch.bfloat16


def test_to_device_moves_a_dtype_that_numpy_lacks_within_its_library_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bfloat16 tensor of another device had been asked for as NumPy's on the way; numpy itself is still told what it lacks."""
    torch_ = type(_backends.backend("torch"))
    x, moves = torch.full((5,), 2.5, dtype=torch.bfloat16), []
    monkeypatch.setattr(torch_, "device_of", lambda self, tensor: "cuda:0" if tensor is x else "cpu")
    monkeypatch.setattr(torch_, "move", lambda self, tensor, device, pinned: moves.append((device, pinned)) or tensor.clone())
    there = gl.to_device(x, "cpu", "jax")
    assert (str(there.dtype), there.tolist(), moves) == ("bfloat16", [2.5] * 5, [("cpu", False)])
    with pytest.raises(InputError, match=r"numpy has no bfloat16.*x\.float\(\)"):
        gl.to_device(x, "cpu", "numpy")
    assert len(moves) == 1
    monkeypatch.setattr(torch_, "device_of", lambda self, tensor: "meta:0")
    with pytest.raises(InputError, match=r"an array on 'meta:0' has no data"):
        gl.to_device(x, "cpu", "jax")


def test_from_jax_to_torch_is_a_copy_of_its_own() -> None:
    """Writing to the tensor leaves the JAX array as it was."""
    x = jnp.arange(4.0)
    gl.to_device(x, library="torch")[0] = 9
    assert float(x[0]) == 0


def test_to_device_takes_a_dtype_that_numpy_lacks_in_any_shape_and_stride() -> None:
    """A slice behind a boundary, every other element, a broadcast one: the sentence had said to call to_device, which was the call."""
    x = torch.arange(100).to(torch.bfloat16)
    parts = (x[1:], x[::2], x.reshape(10, 10).T, x.reshape(10, 10)[:, 3:5], x[7:8].expand(5), x[9], x.clone().requires_grad_()[3:])
    for part in parts:
        there = gl.to_device(part, "cpu", "jax")
        assert there.shape == tuple(part.shape)
        assert np.asarray(there.astype("float32")).tolist() == part.detach().float().numpy().tolist()
    x[50] = -1
    assert float(gl.to_device(x[1:], "cpu", "jax")[49]) == -1
    with pytest.raises(InputError, match=r"^to_device: .*sparse_coo.*x\.to_dense\(\)"):
        gl.to_device(torch.eye(3, dtype=torch.bfloat16).to_sparse(), "cpu", "jax")


def test_to_host_is_read_only_and_refuses_what_numpy_lacks() -> None:
    """The same memory, which nobody may write to; bfloat16, keys and tracers are named."""
    x = jnp.arange(4.0)
    host = gl.to_host(x)
    assert host.ctypes.data == x.unsafe_buffer_pointer()
    assert not host.flags.writeable
    for make, words in ((lambda: x.astype(jnp.bfloat16), "bfloat16"), (key, "own"), (deleted, "given away")):
        with pytest.raises(InputError, match=words):
            gl.to_host(make())
    with pytest.raises(InputError, match="jit, grad or vmap"):
        jax.jit(gl.to_host)(x)


def test_a_device_that_jax_lacks_is_refused() -> None:
    """A JAX for the CPU says so."""
    with pytest.raises(DeviceError, match=r"this JAX has no 'cuda:0' \(it has cpu\); .*jax\[cuda13\].*, or 'jax\[cuda12\]' where"):
        _backends.backend("jax").from_host(np.zeros(2, np.float32), "cuda:0", False)
    with pytest.raises(DeviceError, match="page-locked"):
        _backends.backend("jax").from_host(np.zeros(2, np.float32), "cpu", True)


def slow(x: Any) -> Any:
    """A tenth of a second of work or more on one core, which no compiler can shorten."""
    return jax.lax.fori_loop(0, 200, lambda _, v: jnp.tanh(v @ v), x)


def test_measure_waits_for_the_result() -> None:
    """The call returns long before the work is done, and the median is that of the work: a plain clock around block_until_ready says so."""
    import time

    f, x = jax.jit(slow), jnp.full((256, 256), 0.001)
    f(x).block_until_ready()
    honest, measured = [], []
    for _ in range(3):  # in turn, and the least of each: a machine that is busy for a moment makes only some of them longer
        start = time.perf_counter()
        f(x).block_until_ready()
        honest.append(time.perf_counter() - start)
        measured.append(gl.measure(lambda: {"loss": f(x), "steps": 200}, deadline=0.4))  # a tree of results is waited for as well
    assert min(m.launch_seconds / m.median_seconds for m in measured) < 0.3
    assert 0.2 < min(m.samples_seconds.min() for m in measured) / min(honest) < 5
    assert {m.device for m in measured} == {"cpu"}


def test_a_dropped_result_gets_a_note() -> None:
    """Where no array comes out nothing can be waited for, and the measurement says so."""
    x = jnp.ones((8, 8))
    m = gl.measure(lambda: [x @ x, None][1], deadline=0.05)
    assert any("returns none" in note.sentence for note in m.notes)
    assert not any("returns none" in note.sentence for note in gl.measure(lambda: x @ x, deadline=0.05).notes)


def test_copies_and_comparisons_take_jax_arrays() -> None:
    """With both copies; against NumPy's result; a wrong one is found out."""
    x = jnp.asarray(np.random.default_rng(0).random((64, 64), dtype=np.float32))
    assert gl.measure(jax.jit(lambda v: v @ v), x, deadline=0.1, transfer=True).with_transfer_seconds > 0
    c = gl.compare({"jax": lambda v: v @ v, "numpy": lambda v: np.asarray(v) @ np.asarray(v)}, x, deadline=0.1)
    assert c.max_relative_difference < 1e-5
    wrong = gl.compare({"jax": lambda v: v @ v, "wrong": lambda v: v + v}, x, deadline=0.1)
    assert wrong.speedup is None


def test_an_array_is_finished_before_its_memory_is_handed_out() -> None:
    """JAX answers before it has computed: who is given the address must wait first, and who is refused need not."""
    waits: list[str] = []

    class Unfinished:
        """An array as the backend asks it."""

        def __init__(self, places: int) -> None:
            self.places = places

        def block_until_ready(self) -> None:
            waits.append("waited")

    backend = _backends.backend("jax")
    obstacles = {1: None, 2: ("spread", "x")}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(backend), "obstacle", lambda self, x, library: obstacles[x.places])
        assert backend.hazard(Unfinished(2), "numpy") == ("spread", "x")
        assert waits == []
        assert backend.hazard(Unfinished(1), "numpy") is None
    assert waits == ["waited"]


class Gpus:
    """A JAX that has a CPU and two GPUs, as far as an adapter asks it."""

    class Array:
        """One of its arrays."""

        def __init__(self, *devices: Any, dtype: Any = None, whole: bool = True) -> None:
            self.on, self.dtype, self.is_fully_addressable = set(devices), dtype or np.dtype("float32"), whole

        def devices(self) -> set[Any]:
            """Return where it is."""
            return self.on

        def is_deleted(self) -> bool:
            """Never."""
            return False

    def __init__(self) -> None:
        self.core = SimpleNamespace(Tracer=type("Tracer", (), {}))
        self.cpu = SimpleNamespace(platform="cpu", id=0, local_hardware_id=0)
        self.gpus = [SimpleNamespace(platform="gpu", id=4 + k, local_hardware_id=k) for k in range(2)]
        self.other = SimpleNamespace(platform="tpu", id=3, local_hardware_id=None)
        self.placed: list[Any] = []

    def local_devices(self, backend: str | None = None) -> list[Any]:
        """Return those of a platform, or the best first."""
        return [*self.gpus, self.cpu] if backend is None else {"cpu": [self.cpu], "gpu": self.gpus}[backend]

    def device_put(self, x: Any, there: Any) -> Any:
        """Note where, and be done at once."""
        self.placed.append((x, there))
        return SimpleNamespace(block_until_ready=lambda: "ready")


class Hashable(SimpleNamespace):
    """A device."""

    __hash__ = object.__hash__


def test_a_jax_with_gpus_is_told_by_their_names() -> None:
    """By PyTorch's word for the platform and the number on this machine; obstacles and moves by hand, without a GPU."""
    adapter, jax_ = _backends.JaxBackend.__new__(_backends.JaxBackend), Gpus()
    jax_.cpu, jax_.other = Hashable(**vars(jax_.cpu)), Hashable(**vars(jax_.other))
    jax_.gpus = [Hashable(**vars(each)) for each in jax_.gpus]
    adapter.module = jax_
    here, there, spread = jax_.Array(jax_.cpu), jax_.Array(jax_.gpus[1]), jax_.Array(*reversed(jax_.gpus))
    assert [adapter.device_of(x) for x in (here, there, spread, jax_.Array(jax_.other))] == ["cpu", "cuda:1", "cuda:0", "tpu:3"]
    assert (adapter.best_device(), adapter.owns(here), adapter.owns(3), adapter.has_data(here)) == ("cuda:0", True, False, True)
    low = jax_.Array(jax_.cpu, dtype=SimpleNamespace(kind="V"))
    seen = [
        (here, "torch", None), (there, "torch", None), (there, "cupy", None),
        (there, "numpy", ("it is on cuda:1, and numpy sees only main memory", "gl.to_host(x)")),
        (here, "cupy", ("it is on cpu, and CuPy sees only CUDA memory", "gl.to_device(x, library='cupy')")),
        (spread, "numpy", ("it is spread over 2 devices", "gl.to_host(x)")),
        (jax_.Array(jax_.cpu, whole=False), "torch",
         ("a part of it is on another machine", "jax.experimental.multihost_utils.process_allgather(x)")),
        (jax_.core.Tracer(), "torch",
         ("it is a name for values that jit, grad or vmap will have later", "an array from outside of the function")),
    ]  # fmt: skip
    assert [adapter.obstacle(x, library) for x, library, _ in seen] == [expected for *_, expected in seen]
    assert (adapter.has_data(jax_.core.Tracer()), adapter.has_data(low), adapter.in_numpy(low)) == (False, False, False)
    assert [adapter._device(name) for name in ("cpu", "cuda", "cuda:1")] == [jax_.cpu, jax_.gpus[0], jax_.gpus[1]]
    for name in ("cuda:2", "cpu:1", "mps"):
        with pytest.raises(
            DeviceError, match=rf"^to_device: this JAX has no '{name}' \(it has cuda:0, cuda:1, cpu\); expected one of these\."
        ):
            adapter._device(name)
    assert adapter.move(here, "cuda:1", False) == "ready"
    assert jax_.placed == [(here, jax_.gpus[1])]
    with pytest.raises(DeviceError, match="page-locked"):
        adapter.move(here, "cuda:1", True)
    for where, problem in (
        ("cuda:0", None),
        ("xpu:0", ("it is on xpu:0, which this JAX cannot use", 'gl.to_device(x, "cpu", library="jax")')),
    ):
        owner: Any = SimpleNamespace(dtype_name=lambda x: "float32", device_of=lambda x, where=where: where)
        assert adapter.refuses(3, owner) == problem
    jax_.gpus = []
    owner = SimpleNamespace(dtype_name=lambda x: "float32", device_of=lambda x: "cuda:0")
    assert adapter.refuses(3, owner) == ("it is on cuda:0, which this JAX cannot use", 'gl.to_device(x, "cpu", library="jax")')


@pytest.mark.parametrize(("address", "off"), [(128, None), (192, None), (129, 1), (191, 63)])
def test_memory_is_taken_as_it_is_on_boundaries_of_64_bytes(address: int, off: int | None) -> None:
    """Anywhere else it is a copy: how far behind one it begins, and the call."""
    expected = f"it begins {off} bytes behind a 64-byte boundary, and x uses such memory only as a copy", "gl.to_device(x, library='x')"
    assert not_aligned(address, "x") == (None if off is None else expected)
