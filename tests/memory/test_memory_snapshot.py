"""Snapshots: every byte has an owner, names are found, views count once."""

import contextlib
import json
import os
import sys
import types

import numpy as np
import pytest
import torch
from torch import nn

from gpulab import memory
from gpulab.devices import Device, _host
from gpulab.errors import DeviceError, InputError
from gpulab.evidence import Evidence, Note
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


class Own(torch.Tensor):
    """A tensor of a class that somebody has derived."""


class OwnOfOwn(Own):
    """And one further down."""


def test_what_has_no_name_is_found():
    """Tensors, parameters and those of derived classes that no name leads to are held all the same."""
    sizes = {1001, 1002, 1003, 1004}
    held = {torch.zeros(1001), nn.Parameter(torch.zeros(1002)), torch.zeros(1003).as_subclass(Own), torch.zeros(1004).as_subclass(OwnOfOwn)}
    found = {(t.name, t.nbytes // 4) for t in memory.snapshot("cpu", names={}).tensors}
    assert {("", size) for size in sizes} <= found
    assert len(held) == 4


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


@pytest.mark.parametrize(
    ("free", "mine", "parts"),
    [
        (30, None, {"tensors": 20, "cached": 15, "context and other processes": 35, "free": 30}),
        (30, 50, {"tensors": 20, "cached": 15, "this process": 15, "other processes": 20, "free": 30}),
        (30, 10, {"tensors": 20, "cached": 15, "this process": 0, "other processes": 35, "free": 30}),
        (30, 90, {"tensors": 20, "cached": 15, "this process": 35, "other processes": 0, "free": 30}),
        (90, None, {"tensors": 10, "cached": 0, "context and other processes": 0, "free": 90}),
        (None, None, {"tensors": 20, "cached": 15, "context and other processes": 5, "free": 60}),
    ],
    ids=["driver silent", "beside others", "less than the pool", "more than used", "pool over used", "free unknown"],
)
def test_a_devices_parts_by_hand(monkeypatch, free, mine, parts):
    """Of 100 bytes the pool has 35, 20 of them in tensors; where nothing says what is free, what was found (40) is used."""
    monkeypatch.setattr(_snapshot, "pool_bytes", lambda where: (20, 35))
    monkeypatch.setattr(_snapshot, "_process_bytes", lambda where: mine)
    found, notes = _snapshot._device_parts(types.SimpleNamespace(memory_bytes=100, free_bytes=free), 40)
    assert found == parts
    assert sum(found.values()) == 100
    assert [note.code for note in notes] == ([] if mine is not None else ["skipped"])


def test_the_pools_of_all_libraries_are_added(monkeypatch):
    """PyTorch's and CuPy's on an NVIDIA GPU, PyTorch's alone on others, Apple's by its own words; nothing on the CPU."""
    pool = types.SimpleNamespace(used_bytes=lambda: 3, total_bytes=lambda: 4)
    cuda = types.SimpleNamespace(is_available=lambda: True, Device=lambda index: contextlib.nullcontext())
    monkeypatch.setitem(sys.modules, "cupy", types.SimpleNamespace(cuda=cuda, get_default_memory_pool=lambda: pool))
    for kind, allocated in (("cuda", 10), ("xpu", 20)):
        monkeypatch.setattr(getattr(torch, kind), "memory_allocated", lambda index, n=allocated: n + index)
        monkeypatch.setattr(getattr(torch, kind), "memory_reserved", lambda index, n=allocated: 2 * n + index)
    monkeypatch.setattr(torch.mps, "current_allocated_memory", lambda: 5)
    monkeypatch.setattr(torch.mps, "driver_allocated_memory", lambda: 7)
    found = [_snapshot.pool_bytes(Device(kind, index)) for kind, index in (("cuda", 1), ("rocm", 0), ("xpu", 1), ("mps", 0), ("cpu", 0))]
    assert found == [(14, 25), (13, 24), (21, 41), (5, 7), (0, 0)]


def test_what_the_driver_says_of_this_process(monkeypatch):
    """By the GPU's identity and this process's number; what it does not say, and another maker's driver, are None."""
    asked = []
    entries = [types.SimpleNamespace(pid=os.getpid() + 1, usedGpuMemory=5), types.SimpleNamespace(pid=os.getpid(), usedGpuMemory=9)]
    nvml = types.SimpleNamespace(
        NVMLError=ValueError,
        nvmlDeviceGetHandleByUUID=lambda uuid: asked.append(uuid) or 1,
        nvmlDeviceGetComputeRunningProcesses=lambda h: entries,
    )
    monkeypatch.setattr(_snapshot._nvml, "session", lambda: contextlib.nullcontext(nvml))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: types.SimpleNamespace(uuid="1a2b" if index else "GPU-1a2b"))
    gpu = Device("cuda", 1)
    assert (_snapshot._process_bytes(gpu), _snapshot._process_bytes(Device("cuda", 0)), asked) == (9, 9, ["GPU-1a2b"] * 2)
    assert _snapshot._process_bytes(Device("rocm", 1)) is None
    entries[1].usedGpuMemory = None
    assert _snapshot._process_bytes(gpu) is None
    del entries[1]
    assert _snapshot._process_bytes(gpu) is None
    nvml.nvmlDeviceGetComputeRunningProcesses = lambda h: int("no answer")
    assert _snapshot._process_bytes(gpu) is None
    monkeypatch.setattr(_snapshot._nvml, "session", lambda: contextlib.nullcontext(None))
    assert _snapshot._process_bytes(gpu) is None


def test_plain_names_come_before_private_ones_and_outputs():
    """The best name of a tensor is the one that its owner would give; what is no text names nothing."""
    names = {"_oh": 1, "_x": 2, "b": 3, "Out": 4, 5: 6, "a": 7}
    assert [name for name, _ in _snapshot._private_last(names)] == ["b", "a", "Out", "_x", "_oh"]


def test_a_snapshot_in_a_table_and_in_one_line():
    """Each part with its share; the ten largest tensors, views counted where there are several; parts of nothing stay out of the line."""
    tensors = tuple(_snapshot.HeldTensor(f"t{k}" if k else "", 4, (2, k) if k else (), "uint8", "torch", 1 + (k == 1)) for k in range(12))
    parts = {"tensors": 48, "cached": 0, "free": 144}
    s = Snapshot("cuda:0", "a GPU", 192, parts, tensors, (Note("skipped", "why."),), Evidence.measured("a GPU"))
    headers, rows = s.table()
    assert headers == ("memory of cuda:0: 192 B", "bytes", "share")
    assert rows[:5] == [
        ("tensors", "48 B", "25.0%"), ("cached", "0 B", "0.0%"), ("free", "144 B", "75.0%"),
        ("- no name", "4 B", "scalar uint8 (torch)"), ("- t1", "4 B", "2x1 uint8 (torch, 2 views)"),
    ]  # fmt: skip
    assert [row[0] for row in rows[5:]] == [*(f"- t{k}" for k in range(2, 10)), "note: skipped"]
    assert (repr(s), s.free_bytes, s.tensor_bytes) == ("<memory of cuda:0: tensors 48 B, free 144 B>", 144, 48)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_nested_tensor_has_bytes_and_no_shape():
    """One of 2 x 3 and 4 x 3 float32 holds 18 elements, 72 bytes: a snapshot, a watched cell and a trace go on; a copy is refused."""
    n = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)])
    found = find(memory.snapshot("cpu", names={"n": n}), "n")
    assert (found.nbytes, found.shape) == (72, (18,))
    with memory.Watch({"n": n}) as watch:
        kept = n * 2
    assert {row.shape for row in watch.result().largest if row.nbytes == kept.untyped_storage().nbytes()} >= {(18,)}
    assert memory.trace(lambda x: x * 2, n, device="cpu").peak_bytes == 144
    with pytest.raises(InputError, match="to_padded_tensor"):
        memory.predict(nn.Linear(3, 1), n, loss=torch.sum)


def test_a_cupy_array_is_its_allocation_on_its_own_gpu(monkeypatch):
    """Where it begins and how long it is, on an NVIDIA GPU of its number; memory that is neither NumPy's nor a tensor's has no key."""

    class Array:
        def __init__(self):
            self.device = types.SimpleNamespace(id=1)
            self.data = types.SimpleNamespace(mem=types.SimpleNamespace(ptr=4096, size=512))

    monkeypatch.setitem(sys.modules, "cupy", types.SimpleNamespace(ndarray=Array))
    places = [("cuda", 1), ("rocm", 1), ("cuda", 0), ("xpu", 1), ("cpu", 0)]
    allocation = ("cupy", 4096, 512)
    assert [_snapshot._key(Array(), Device(*place)) for place in places] == [allocation, allocation, None, None, None]
    whole, foreign = np.zeros((4, 4), np.float32), np.frombuffer(b"12345678", np.uint8)
    assert _snapshot._key(whole[1:, 2], Device("cpu")) == ("numpy", id(whole), 64)
    assert _snapshot._key(foreign, Device("cpu")) is None
    assert _snapshot._key(whole, Device("cuda", 0)) is None
    assert _snapshot._key(torch.zeros(3), Device("cuda", 0)) is None


def test_names_are_looked_for_three_deep_and_among_two_hundred():
    """What lies deeper, or further on, belongs to a library and has no name; nor has what a mapping keeps under a pair."""
    one = {name: np.zeros(7) for name in ("three", "four", "pair", "number")}
    names = {
        "three": [({"k": one["three"]},)], "four": [[[[one["four"]]]]], "odd": {(1, 2): one["pair"], 3: one["number"]},
        "many": [np.zeros(7) for _ in range(201)], "table": {k: np.zeros(7) for k in range(201)},
    }  # fmt: skip
    found = {row.name for row in memory.snapshot("cpu", names=names).tensors if row.library == "numpy"}
    assert found == {"three[0][0]['k']", "odd[3]", *(f"{name}[{k}]" for name in ("many", "table") for k in range(200))}
