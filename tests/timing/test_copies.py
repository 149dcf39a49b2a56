"""Copies around a call: where arrays go, in which library, and that the caller's own stay as they are."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from gpulab.devices import Device
from gpulab.errors import InputError, OutOfMemoryError
from gpulab.timing import _contenders, _copies
from gpulab.timing._job import Job
from gpulab.timing._measure import Copies


class Meta:
    """PyTorch's device without memory, as an accelerator."""

    is_cpu, index = False, 0

    def __str__(self) -> str:
        return "meta"


META: Any = Meta()


def test_host_arrays_go_to_the_accelerator_as_tensors() -> None:
    """NumPy has no arrays there: they become tensors of the same shape and type; gradients stay asked for; what is no array passes."""
    token = object()
    weight = torch.ones(3, requires_grad=True)
    given = {"a": np.ones((2, 3), np.float32), "b": [weight, (torch.zeros(4, dtype=torch.int64), token)], "n": 5}
    placed = _copies.to_device_like(given, META)(given)
    assert (placed["a"].device.type, placed["a"].shape, placed["a"].dtype) == ("meta", (2, 3), torch.float32)
    one, (other, passed) = placed["b"]
    assert (one.device.type, one.requires_grad, one.is_leaf) == ("meta", True, True)
    assert (other.device.type, other.dtype, other.requires_grad) == ("meta", torch.int64, False)
    assert (passed is token, placed["n"], type(placed["b"][1])) == (True, 5, tuple)
    assert weight.device.type == "cpu"


def test_an_array_that_is_read_backwards_goes_there_as_a_copy() -> None:
    """PyTorch has no negative strides ("At least one stride in the given numpy array is negative"); the numbers come in their order."""
    placed = _copies.to_device_like(None, Device("cuda", 0))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.Tensor, "to", lambda tensor, device: tensor)
        assert placed([np.arange(3.0)[::-1]])[0].tolist() == [2.0, 1.0, 0.0]


@pytest.mark.parametrize("array", [np.zeros(3), torch.zeros(3, dtype=torch.float64, requires_grad=True)], ids=["numpy", "torch"])
def test_what_metal_has_no_dtype_for_is_said_in_one_sentence(monkeypatch: pytest.MonkeyPatch, array: Any) -> None:
    """As PyTorch answers on an Apple GPU to NumPy's own float64: a comparison on it says what to convert to, and calls nothing."""

    def to(tensor: torch.Tensor, device: str) -> torch.Tensor:
        raise TypeError("Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't support float64.")

    called: list[Any] = []
    monkeypatch.setattr(torch.Tensor, "to", to)
    monkeypatch.setattr(_contenders, "_places", lambda devices: (Device("cpu"), Device("mps")))
    monkeypatch.setattr(_contenders, "_names", lambda places: [str(place) for place in places])
    with pytest.raises(InputError, match=r'mps:0 has no float64; .* a\.astype\("float32"\) of NumPy'):
        _contenders.gather(called.append, (array,), None, float, {})
    assert called == []


def test_inputs_that_do_not_fit_the_device_are_said_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """As PyTorch answers where a GPU is full."""

    def to(tensor: torch.Tensor, device: str) -> torch.Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    monkeypatch.setattr(torch.Tensor, "to", to)
    monkeypatch.setattr(_contenders, "_places", lambda devices: (Device("cuda", 0),))
    monkeypatch.setattr(_contenders, "_names", lambda places: [str(place) for place in places])
    with pytest.raises(OutOfMemoryError, match=r"compare: copying the inputs of sort to cuda:0: .* does not hold it"):
        _contenders.gather(np.sort, (np.zeros(3),), None, float, {})


def test_cupys_arrays_go_to_the_device_that_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a stand-in for CuPy, whose ``asarray`` copies to the current device (its manual: "array on the current device"), 0 at first."""
    current = [0]

    class There(np.ndarray):
        device: Any = None

    def asarray(a: np.ndarray) -> There:
        there = np.array(a).view(There)
        there.device = SimpleNamespace(id=current[-1])
        return there

    @contextlib.contextmanager
    def on(index: int) -> Iterator[None]:
        current.append(index)
        yield
        current.pop()

    cupy = SimpleNamespace(ndarray=There, asarray=asarray, cuda=SimpleNamespace(Device=on), __name__="cupy")
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setattr(_copies, "any_of", lambda value, wanted: wanted == "cupy")
    placed = _copies.to_device_like(None, Device("cuda", 1))({"x": [np.arange(3.0)], "n": 5})
    assert (placed["x"][0].device.id, placed["x"][0].tolist(), placed["n"], current) == (1, [0.0, 1.0, 2.0], 5, [0])


@pytest.mark.parametrize(
    "array", [np.arange(3.0), torch.arange(3.0), torch.arange(3.0, requires_grad=True)], ids=["numpy", "torch", "grad"]
)
def test_copies_on_the_cpu_are_new_memory(array: Any) -> None:
    """In and back: the same numbers and the same library, elsewhere; a gradient is asked for on the way in alone."""
    inward = _copies.to_device_like([array], Device("cpu"))([array])[0]
    back = _copies.back_to_host({"y": array})["y"]
    for copied in (inward, back):
        assert type(copied) is type(array)
        assert np.asarray(copied.tolist()).tolist() == [0.0, 1.0, 2.0]
        assert not np.shares_memory(*(np.asarray(each.detach() if isinstance(each, torch.Tensor) else each) for each in (copied, array)))
    assert getattr(inward, "requires_grad", False) == getattr(array, "requires_grad", False)
    assert not getattr(back, "requires_grad", False)


def test_host_arrays_stay_what_they_are() -> None:
    """Nothing is copied that lies on the host already."""
    given = (np.ones(2), torch.ones(2), "text")
    assert all(one is other for one, other in zip(_copies.on_host(given), given, strict=True))


def test_an_arrays_library_is_found_in_a_nest() -> None:
    """As deep as arrays are copied."""
    assert _copies.any_of({"a": [1, (torch.ones(1),)]}, "torch")
    assert not _copies.any_of({"a": [1, (torch.ones(1),)]}, "numpy")
    assert not _copies.any_of([], "numpy")


@pytest.mark.parametrize("library", ["cupy", "jax", "tensorflow"])
def test_arrays_return_to_the_library_that_they_came_from(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """NumPy's become that library's on the device, its own are moved there, and PyTorch's stay PyTorch's (stand-ins for the library)."""
    done: list[tuple[str, Any]] = []
    target = SimpleNamespace(
        from_host=lambda array, device, pinned: done.append(("made", array, device, pinned)),
        move=lambda array, device, pinned: done.append(("moved", array, device, pinned)),
    )
    one, other, tensor = np.ones(2), SimpleNamespace(to=lambda device: done.append(("to", device))), torch.ones(2)
    monkeypatch.setattr(_copies, "any_of", lambda value, wanted: wanted == library)
    monkeypatch.setattr(_copies._backends, "backend", lambda name: target if name == library else None)
    names = {id(one): "numpy", id(other): library, id(tensor): "torch"}
    monkeypatch.setattr(_copies, "mapped", lambda host, change: [change(each, names[id(each)]) for each in host])
    current = SimpleNamespace(Device=contextlib.nullcontext)
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(asarray=lambda array: done.append(("made", array)), cuda=current))
    placed = _copies.to_device_like("the original", META)([one, other, tensor])
    if library == "cupy":
        assert done == [("made", one), ("to", "meta")]
    else:
        assert done == [("made", one, "meta", False), ("moved", other, "meta", False)]
    assert placed[2].device.type == "meta"


def test_with_copies_the_arguments_are_on_the_device() -> None:
    """The host's arrays are kept and the job gets those of the device; there is a link, so no note says that none was crossed."""
    x = np.ones(3)
    job = Job(fn=len, args=(x,), device=META, given=True, label="it", clock=lambda: 0.0, read=None)
    copies = Copies(job)
    assert copies.host[0] is x
    assert (job.args[0].device.type, job.notes) == ("meta", [])
