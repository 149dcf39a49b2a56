"""Snapshots: every byte has an owner, names are found, views count once."""

import json
import types

import numpy as np
import pytest
import torch
from torch import nn

from gpulab import memory
from gpulab.devices import _host
from gpulab.errors import DeviceError, InputError
from gpulab.memory import Snapshot, _snapshot


def find(s, name):
    return next(t for t in s.tensors if t.name == name)


def test_parts_sum_to_the_whole():
    """On the CPU the parts are not negative and sum exactly to the total."""
    s = memory.snapshot("cpu", names={})
    assert sum(s.parts.values()) == s.total_bytes
    assert list(s.parts) == ["tensors", "cached", "this process", "other processes", "free"]
    assert all(nbytes >= 0 for nbytes in s.parts.values())


@pytest.mark.parametrize(
    ("resident", "expected"),
    [
        (35, {"tensors": 10, "cached": 0, "this process": 25, "other processes": 25, "free": 40}),
        (90, {"tensors": 10, "cached": 0, "this process": 50, "other processes": 0, "free": 40}),
        (6, {"tensors": 6, "cached": 0, "this process": 0, "other processes": 54, "free": 40}),
    ],
    ids=["one of several", "pages shared with others", "tensors not touched yet"],
)
def test_the_hosts_parts_by_hand(monkeypatch, resident, expected):
    """Of 100 bytes 40 are free: the process holds what is resident, of it the tensors, at most all that is used; the rest is others'."""
    monkeypatch.setattr(_host, "resident_bytes", lambda: resident)
    assert _snapshot._host_parts(types.SimpleNamespace(memory_bytes=100, free_bytes=40), 10) == (expected, ())


def test_names_are_found():
    """Tensors, views, numpy arrays, parameters, gradients, optimizer state and items of containers have names."""
    model = nn.Linear(30, 40)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.zeros(1, 30)).sum().backward()
    optimizer.step()
    x = torch.zeros(1234)
    names = {
        "_hidden": x, "x": x, "part": x[:5], "model": model, "optimizer": optimizer, "a": np.zeros(77), "batch": {"k": [torch.zeros(55)]},
    }  # fmt: skip
    s = memory.snapshot("cpu", names=names)
    assert find(s, "x").nbytes == 1234 * 4
    assert find(s, "x").shared_by >= 2
    assert find(s, "model.weight").shape == (40, 30)
    assert find(s, "model.weight.grad").nbytes == 4800
    assert find(s, "optimizer.state[0].exp_avg").nbytes == 4800
    assert find(s, "a").library == "numpy"
    assert find(s, "batch['k'][0]").nbytes == 220
    assert s.tensor_bytes == sum(t.nbytes for t in s.tensors)


def test_the_callers_variables_are_the_default():
    """Without names, the caller's own variables are used."""
    a_rather_special_name = torch.zeros(999)
    assert find(memory.snapshot("cpu"), "a_rather_special_name").nbytes == a_rather_special_name.nbytes


def test_meta_fake_and_empty_tensors_hold_nothing():
    """Tensors without memory of their own are not counted."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        fake = torch.zeros(10_000_000)
    names = {"fake": fake, "meta": torch.zeros(1000, device="meta"), "empty": torch.zeros(0), "sparse": torch.eye(3).to_sparse()}
    names["lazy"] = nn.LazyLinear(3)
    assert not {t.name.partition(".")[0] for t in memory.snapshot("cpu", names=names).tensors} & set(names)


def test_round_trip_and_table():
    """A snapshot survives JSON and shows the largest tensors."""
    s = memory.snapshot("cpu", names={"big": torch.zeros(3_000_000)})
    assert Snapshot.from_dict(json.loads(json.dumps(s.to_dict()))).to_dict() == s.to_dict()
    assert "big" in s._repr_html_()


def test_bad_arguments():
    """A device that is not there and names that are no mapping are refused."""
    with pytest.raises(DeviceError):
        memory.snapshot("cuda:77")
    with pytest.raises(InputError, match="mapping"):
        memory.snapshot("cpu", names=[1])


@pytest.mark.gpu
def test_parts_sum_on_cuda():
    """On CUDA the parts sum to the device's memory, and a new tensor is in "tensors"."""
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    before = memory.snapshot("cuda", names={})
    x = torch.zeros(64 * 2**20, device="cuda")
    after = memory.snapshot("cuda", names={"x": x})
    assert sum(after.parts.values()) == after.total_bytes == torch.cuda.mem_get_info()[1]
    assert after.parts["tensors"] - before.parts["tensors"] >= x.nbytes
    assert find(after, "x").nbytes == x.nbytes
