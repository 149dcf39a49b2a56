"""Memory that is held: limits, snapshots, cells, releases, shares; and the traffic of operators."""

import json
import os
import subprocess
import sys
import types
from typing import Any
from unittest.mock import Mock

import gpulab as gl
import numpy as np
import pytest
import torch
from gpulab import memory
from gpulab.evidence import Evidence, Note
from made_training import told
from torch import nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from refusals import refused

MIB = 2**20


def made(mebibytes: int) -> torch.Tensor:
    """Return a tensor of this many MiB."""
    return torch.zeros(mebibytes * MIB // 4)


# -- the limit -------------------------------------------------------------------------------------


def test_a_limit_counts_what_lives_and_raises_pytorchs_error() -> None:
    """Views cost nothing, a resize counts, and a tensor that just fits is allowed."""
    small = memory.limit(14 * MIB, "cpu", on_top=True)
    with small:
        kept = [made(4) for _ in range(3)]
        kept += [kept[0][k:] for k in range(10)]
        assert (small.live_bytes, small.free_bytes) == (12 * MIB, 2 * MIB)
        words = r"allocate 4.00 MiB.*14.0 MiB.*2.00 MiB"
        refused(torch.OutOfMemoryError, made, 4).match(words)
        kept = kept[1:3]
        kept += [kept[0].resize_(5 * MIB // 4), torch.zeros(5 * MIB // 8, dtype=torch.float64)]
        assert small.live_bytes == 14 * MIB
    assert (small.peak_bytes, made(20).nbytes) == (14 * MIB, 20 * MIB)
    with memory.limit(MIB, "cpu") as whole:  # older tensors over the limit still work in place
        assert (whole.free_bytes, kept[0].add_(1).nbytes) == (0, 5 * MIB)
        refused(torch.OutOfMemoryError, torch.zeros, 1)


def test_a_caught_error_keeps_the_memory_until_it_goes() -> None:
    """A failed step's tensors live as long as the traceback, autograd's as long as the graph."""
    small, seen, x = memory.limit(10 * MIB, "cpu", on_top=True), [], made(1).requires_grad_()
    with small:
        try:
            nn.ReLU()(made(8))
        except torch.OutOfMemoryError:
            seen.append(small.live_bytes)
        seen.append(small.live_bytes)
        out = nn.Sequential(*[nn.ReLU() for _ in range(6)])(x)
        seen.append(small.live_bytes)
        out.sum().backward()
        del out
        assert [*seen, small.live_bytes] == [8 * MIB, 0, 6 * MIB, MIB]


# -- what holds it ---------------------------------------------------------------------------------


def test_a_snapshot_names_what_is_held_and_adds_up() -> None:
    """Tensors, arrays, parameters, gradients, optimizer state and items of containers are named."""
    model, x, array, unnamed = nn.Linear(30, 40), torch.zeros(1234), np.zeros(77), torch.zeros(1001)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.zeros(1, 30)).sum().backward()
    optimizer.step()
    found = memory.snapshot("cpu", names={
        "Out": {3: x}, "_hidden": x, "x": x, "part": x[:5], "model": model, "optimizer": optimizer,
        "a": array, "in a": torch.from_numpy(array[7:]), "batch": {"k": [torch.zeros(55)]},
        "meta": torch.zeros(9, device="meta"),
        "wrapper": torch._to_functional_tensor(torch.zeros(66)),
        "losses": [nn.Linear(70, 80)(torch.zeros(1, 70)).expand(90, -1).exp().sum()],
    })  # fmt: skip
    assert (
        {found.total_bytes, sum(found.parts.values())}, min(found.parts.values()) >= 0,
        found.parts["tensors"] + found.parts["this process"],
    ) == (
        {gl.devices.find("cpu").memory_bytes}, True,
        pytest.approx(pytest.importorskip("psutil").Process().memory_info().rss, rel=0.1),
    )  # fmt: skip
    sizes = {tensor.name: (tensor.nbytes, tensor.library) for tensor in reversed(found.tensors)}
    wanted = {
        "x": (4936, "torch"), "model.weight": (4800, "torch"), "model.weight.grad": (4800, "torch"),
        "a": (616, "numpy"), "batch['k'][0]": (220, "torch"),
        "optimizer.state[0].exp_avg": (4800, "torch"), "_hidden": None, "part": None, "meta": None,
        "in a": None, "wrapper": None, "graph of losses[0]": (28_800, "torch"),
    }  # fmt: skip
    assert {name: sizes.get(name) for name in wanted} == wanted
    assert unnamed.nbytes in {tensor.nbytes for tensor in found.tensors if not tensor.name}
    assert "unnamed" in {tensor.name for tensor in memory.snapshot("cpu").tensors}


def test_a_watched_cell_reports_its_peak_what_it_keeps_and_what_is_new(old_aside: None) -> None:
    """By hand: 7.6 and 8 MB kept, the larger named first, 8 MB for a moment, 4 MB freed; a rerun
    names the same tensors, and while it makes the new ones the old ones are still there.
    """
    names: dict[str, Any] = {"old": torch.ones(1_000_000)}
    for changed in ((23.6e6, 11.6e6, 0), (8e6, 0, 0)):
        with memory.watch(names) as result:
            names["x"] = torch.ones(1_900_000)
            names["y"] = torch.cat([names["x"], names["x"][:100_000]])
            names["z"] = float((names["y"] + 1).sum())
            names.pop("old", None)
        found = result()
        device, before, peak, kept, freed = found.devices[0]
        changes = (peak - before, kept, freed)
        assert changes == pytest.approx(changed, abs=1000)
        assert (device, [row.name for row in found.largest[:2]]) == ("cpu", ["y", "x"])


def test_held_memory_in_tables(approved: Any) -> None:
    """Held tensors, a cell's changes and released memory, with scalars and empty parts."""
    here, notes = Evidence.measured("a GPU"), (Note("skipped", "why."),)
    tensors = tuple(
        memory.HeldTensor(
            f"t{k}" if k else "", 48 - 4 * k, (2, k) if k else (), "uint8", "torch", 1 + (k == 1)
        )
        for k in range(12)
    )
    parts = {"tensors": 312, "cached": 0, "free": 200}
    released = [
        memory.Released(device, before, 71680, 51200, 30720, ("Collected garbage.",), notes, here)
        for device, before in (("cuda:0", 10240), ("cpu", 10240))
    ]
    results = (
        memory.Snapshot("cuda:0", "a GPU", 512, parts, tensors, notes, here),
        memory.CellMemory(
            (("cpu", 1024, 9216, 6144, 0), ("cuda:0", 4096, 7168, 0, 2048)),
            -5120,
            tensors[:2],
            True,
            here,
        ),
        *released,
    )
    assert told(*results) == approved


SHELL = """
import contextlib, io, json
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
def run(code):
    with contextlib.redirect_stdout(io.StringIO()):
        return shell.run_cell(code, store_history=True)
run("import torch, gpulab as gl; small = gl.memory.limit('500 MiB', 'cpu', on_top=True)")
run("def inner():\\n    big = torch.ones(50_000_000)\\n    return big.reshape(3, -1)")
run("def outer():\\n    try: inner()\\n    except RuntimeError as e: raise KeyError() from e")
run("with small: outer()")
run("torch.ones(25_000_000)")
run("41 + 1")
run("held = small.live_bytes; r = gl.memory.release('cpu'); after = small.live_bytes")
kept = 5 in shell.user_ns["_oh"]
run("s = gl.memory.release('cpu', outputs=True); t = gl.memory.release('cpu')")
get = shell.user_ns.get
r, s = get("r"), get("s")
print(json.dumps([get("held"), get("after"), r.freed_host_bytes, s.freed_host_bytes, kept,
      "Out[5]" in " ".join(r.what), get("_oh").get(6), r.freed_device_bytes == r.freed_host_bytes,
      "Out" in " ".join(get("t").what)]))
"""


@pytest.mark.slow
def test_release_gives_back_what_a_failed_cell_and_an_output_hold() -> None:
    """200 MB of an error's frames are freed; an output of 100 MB is named, and freed if asked."""
    done = subprocess.run([sys.executable, "-c", SHELL], capture_output=True, text=True, check=True)
    held, after, freed, dropped, *others = json.loads(done.stdout)
    assert (held, after, *others) == (200_000_000, 0, True, True, None, True, False)
    assert (freed > 150e6, dropped > 80e6) == (True, True)


@pytest.mark.parametrize(
    ("text", "shares"),
    [("10 GiB", (0.125, 0.625)), ("25 %", (0.25, 0.25)), ("100%", (1, 1))]
    + [(text, ()) for text in ("much", "0 %", "101 %", "20 GiB", "nan %", "")],
)
def test_a_class_shares_a_gpu(
    text: str, shares: tuple, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """GPUs of 80 and 16 GiB are limited to the share; a share too large or invalid limits none. JAX
    and TensorFlow, which no share limits, are told not to take a whole GPU.
    """
    from gpulab import magics  # needs IPython, which a bare GPU machine lacks

    asked: list[tuple[int, float]] = []
    sizes = [types.SimpleNamespace(total_memory=size * 2**30) for size in (80, 16)]
    cuda = {
        "is_available": lambda: True, "device_count": lambda: 2,
        "get_device_properties": sizes.__getitem__,
        "set_per_process_memory_fraction": lambda share, index: asked.append((index, share)),
    }  # fmt: skip
    for name, stand_in in cuda.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    monkeypatch.setattr(os, "environ", {"GPULAB_GPU_MEMORY": text})
    magics.load_ipython_extension(Mock(spec=["register_magic_function", "display_formatter"]))
    said = capsys.readouterr().out
    assert (asked, text in said, "sets no limit" in said) == (
        list(enumerate(shares)),
        True,
        bool(text) and not shares,
    )
    # the variables of JAX's page "GPU memory allocation" and of TensorFlow's "Use a GPU"
    assert [
        os.environ.get(name)
        for name in ("XLA_PYTHON_CLIENT_PREALLOCATE", "TF_FORCE_GPU_ALLOW_GROWTH")
    ] == (["false", "true"] if text else [None, None])


# -- the traffic of operators ----------------------------------------------------------------------

N, X = 4000, torch.ones(1000)  # bytes of a thousand float32
# (read, written, FLOPs) of each operator that moves anything, by hand.
TRAFFIC = {
    "chain": (lambda x: torch.relu(x * 2 + 1), [(N, N, 1000)] * 3),
    "in place": (lambda x: x.clone().mul_(2), [(N, N, 0), (N, N, 1000)]),
    "twice": (lambda x: torch.add(x, x), [(N, N, 1000)]),  # read once
    "alpha": (lambda x: torch.sub(x, x, alpha=3), [(N, N, 2000)]),
    "sum": (lambda x: x.sum(), [(N, 4, 1000)]),
    "fill": (lambda x: torch.empty_like(x).fill_(1.0), [(0, N, 0)]),
    "expand": (lambda x: x.expand(8, 1000).sum(), [(N, 4, 8000)]),
    "column": (lambda x: x.view(10, 100)[:, 0].clone(), [(40, 40, 0)]),
    "windows": (lambda x: x[:10].as_strided((8, 3), (1, 1)).clone(), [(40, 96, 0)]),
    "double": (lambda x: x.double(), [(N, 2 * N, 0)]),
    "views": (lambda x: (x.view(10, 100).T[2:], torch.empty_like(x), x.detach()), []),
    "lookup": (lambda x: functional.embedding(torch.arange(4), x.view(250, 4)), [(32 + 64, 64, 0)]),
    "foreach": (lambda x: torch._foreach_add_([x.clone()], 1.0), [(N, N, 0), (N, N, None)]),
}  # fmt: skip
# FLOPs of a thousand elements, by the operator's definition or the catalogue's convention.
EACH = [
    (torch.exp, 1), (torch.sigmoid, 3), (functional.silu, 4), (functional.softplus, 4),
    (torch.var, 3),
    (functional.gelu, 5), (lambda x: x.clamp(0, 1), 2), (lambda x: torch.lerp(x, x, 0.5), 3),
    (lambda x: torch.addcmul(x, x, x), 3), (lambda x: torch.where(x > 1, x, x), 2), (torch.mean, 1),
    (torch.amax, 1), (torch.argmax, 1), (lambda x: x.cumsum(0), 1), (lambda x: torch.dot(x, x), 2),
    (torch.linalg.vector_norm, 2), (lambda x: functional.softmax(x, 0), 5), (torch.sort, 0),
    (lambda x: functional.layer_norm(x, (1000,)), 7), (lambda x: torch.cat([x, x]), 0),
]  # fmt: skip


@pytest.mark.parametrize("case", TRAFFIC)
def test_operators_by_hand(case: str) -> None:
    """Each distinct element is read once and written once; views and allocations move nothing."""
    fn, expected = TRAFFIC[case]
    found = memory.traffic(fn, X.clone())
    moved = [(each.read_bytes, each.written_bytes, each.flops) for each in found.operators]
    assert [each for each in moved if each not in ((0, 32, 0.0), (0, 4, 0.0))] == expected
    assert found.nbytes == found.read_bytes + found.written_bytes


def test_the_arithmetic_of_operators() -> None:
    """Elementwise FLOPs by hand, products as PyTorch counts them, workloads as the catalogue."""
    assert [memory.traffic(fn, X).flops for fn, _ in EACH] == [1000 * each for _, each in EACH]
    model, x = gl.networks.mlp(64, 32, 10), torch.ones(16, 64)
    q, k = torch.ones(2, 3, 8, 16, requires_grad=True), torch.ones(2, 3, 20, 16)
    steps = [
        lambda: model(x).sum().backward(),
        lambda: functional.scaled_dot_product_attention(q, k, k).sum().backward(),
    ]
    found = [memory.traffic(fn).operators for fn in steps]
    products = [sum(o.flops for o in each if "mm" in o.name or "att" in o.name) for each in found]
    with FlopCounterMode(display=False) as counter:
        steps[0]()
    # Two products forward, five backward.
    assert products == [counter.get_total_flops(), 2 * 2 * 3 * 8 * 20 * 16 * 2 * 3.5]
    for name, n in (("add", 1000), ("gelu", 1000), ("softmax", 8), ("matmul", 64), ("conv2d", 1)):
        work = gl.workloads.get(name)(n=n)
        moved = memory.traffic(work.run, *work.inputs("cpu"))
        assert (moved.flops, moved.nbytes) == (work.flops, work.nbytes)


def test_traffic_in_tables_and_under_a_roofline(approved: Any) -> None:
    """A fused pass moves inputs and outputs only; long tables group operators; limits are named."""
    out, a = torch.zeros(1000), torch.eye(256)
    fused = [lambda x: x.mul_(2), lambda x: torch.add(x, 1, out=out), lambda x: (x, x + 1)]
    assert [memory.traffic(fn, X.clone()).compulsory_bytes for fn in fused] == [2 * N, 2 * N, 2 * N]
    cases = {
        "chain": lambda x: torch.relu(x * 2 + 1), "mixed": lambda x: torch.linalg.inv((a @ a) + a),
        "long": lambda x: (x[:10] * 2, [x := x + 1 for _ in range(20)])[1][-1],
    }  # fmt: skip
    found = [memory.traffic(fn, X, label=label) for label, fn in cases.items()]
    bound = [one.name for one in found[1].memory_bound(gl.models.roofline("H200"))]
    assert f"{told(*found)}{bound} {[one.compulsory_bytes for one in found]}\n" == approved


@pytest.mark.gpu
def test_on_a_gpu_the_snapshot_and_the_release_are_the_allocators() -> None:
    """Parts add up to the device's memory; the memory of a deleted tensor is released."""
    before = memory.snapshot("cuda", names={})
    x = torch.zeros(2**26, device="cuda")
    after = memory.snapshot("cuda", names={"x": x})
    assert sum(after.parts.values()) == after.total_bytes == torch.cuda.mem_get_info()[1]
    assert after.parts["tensors"] - before.parts["tensors"] >= x.nbytes
    del x
    assert memory.release("cuda").freed_device_bytes >= 2**28
