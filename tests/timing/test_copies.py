"""Copies around a call: where arrays go, in which library, and that the caller's own stay as they are."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from gpulab.devices import Device
from gpulab.timing import _copies
from gpulab.timing._job import Job
from gpulab.timing._measure import Copies


class Meta:
    """PyTorch's device without memory, as an accelerator."""

    is_cpu = False

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
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(asarray=lambda array: done.append(("made", array))))
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
