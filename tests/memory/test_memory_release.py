"""Release and %%gpu_memory, each in a real IPython shell of its own process."""

import dataclasses
import json
import subprocess
import sys
import threading
import types
import weakref

import pytest
import torch

from gpulab import devices, memory
from gpulab.memory import Released, _release

SHELL = """
import contextlib, io, json, sys
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
out = io.StringIO()
def run(code):
    with contextlib.redirect_stdout(out):
        return shell.run_cell(code, store_history=True)
get = shell.user_ns.get
run("import torch, gpulab as gl, gpulab.memory")
"""


def in_a_shell(code):
    done = subprocess.run([sys.executable, "-c", SHELL + code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_failed_cells_tensors_come_back():
    """400 MB that the last traceback keeps alive come back to the system, and the message says so."""
    found = in_a_shell("""
run("def fails():\\n    big = torch.ones(100_000_000)\\n    return big.reshape(3, -1)")
run("mine = torch.ones(1000)")
failed = run("fails()").error_in_exec
run("r = gl.memory.release('cpu')")
run("again = gl.memory.release('cpu')")
r = get("r")
print(json.dumps([r.freed_host_bytes, get("again").freed_host_bytes, list(r.what), type(failed).__name__, float(get("mine").sum())]))
""")
    freed, again, what, error, mine = found
    assert freed > 350e6
    assert abs(again) < 50e6
    assert any("traceback" in sentence for sentence in what)
    assert error == "RuntimeError"
    assert mine == 1000


def test_a_chain_of_errors_comes_back():
    """Frames of the causes of an error are cleared too."""
    freed = in_a_shell("""
run("def inner():\\n    big = torch.ones(50_000_000)\\n    raise ValueError('first')")
run("def outer():\\n    try:\\n        inner()\\n    except ValueError as e:\\n        raise KeyError('second') from e")
run("outer()")
run("r = gl.memory.release('cpu')")
print(json.dumps(get("r").freed_host_bytes))
""")
    assert freed > 150e6


def test_outputs_are_reported_and_dropped_only_when_asked():
    """An array in IPython's output cache is named; with outputs=True it goes, and other outputs stay."""
    kept, dropped, what, others = in_a_shell("""
run("torch.ones(50_000_000)")
run("41 + 1")
run("r = gl.memory.release('cpu')")
kept = 2 in get("_oh")
run("s = gl.memory.release('cpu', outputs=True)")
print(json.dumps([kept, get("s").freed_host_bytes, " ".join(get("r").what), get("_oh").get(3)]))
""")
    assert kept
    assert dropped > 150e6
    assert "Out[2]" in what
    assert others == 42


def test_gpu_memory_counts_peak_kept_and_freed():
    """A cell that makes 8 MB twice, 8 MB for a moment and frees 4 MB: peak 28 MB, kept 12 MB more."""
    use, largest, value, badge = in_a_shell("""
run("%load_ext gpulab")
import IPython.core.display_functions, gpulab.magics
shown = []
IPython.display.display = lambda result: shown.append(result)
run("old = torch.ones(1_000_000)")
run("%%gpu_memory\\nx = torch.ones(2_000_000)\\ny = x * 2\\nz = (y + 1).sum()\\ndel old\\nfloat(z)")
r = shown[-1]
u = r.devices[0]
use, largest = [u.before_bytes, u.peak_bytes, u.kept_bytes, u.freed_bytes], [t.name for t in r.largest[:2]]
print(json.dumps([use, largest, get("_oh")[4], str(r.evidence.badge)]))
""")
    before, peak, kept, freed = use
    assert peak - before == pytest.approx(24e6, abs=100)
    assert kept == pytest.approx(12e6, abs=100)
    assert freed == 0
    assert sorted(largest) == ["x", "y"]
    assert value == 6_000_000
    assert badge == "MEASURED"


def test_gpu_memory_keeps_the_error():
    """An error in the cell arrives with its own line in the traceback, and the report is shown all the same."""
    error, shown, text = in_a_shell("""
run("%load_ext gpulab")
import IPython.display
shown = []
IPython.display.display = lambda result: shown.append(result)
r = run("%%gpu_memory\\nw = torch.ones(10)\\nraise ValueError('no')")
print(json.dumps([type(r.error_in_exec).__name__, [s.failed for s in shown], out.getvalue()]))
""")
    assert error == "ValueError"
    assert shown == [True]
    assert "raise ValueError" in text


def test_work_in_flight_is_waited_for():
    """Its tensors are still held; a CPU has none."""
    seen = []
    for is_cpu in (True, False):
        _release._wait(types.SimpleNamespace(is_cpu=is_cpu, synchronize=lambda is_cpu=is_cpu: seen.append(is_cpu)))
    assert seen == [False]


@pytest.mark.usefixtures("old_aside")
def test_release_outside_ipython():
    """In a plain process it works too, and survives JSON."""
    r = memory.release("cpu")
    assert Released.from_dict(json.loads(json.dumps(r.to_dict()))).to_dict() == r.to_dict()
    assert r.freed_device_bytes == r.freed_host_bytes


@pytest.mark.gpu
def test_release_gives_cuda_memory_back():
    """On CUDA, 1 GiB held by a failed call's frame comes back to the device."""
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")

    def fails():
        big = torch.ones(2**28, device="cuda")
        return big.reshape(3, -1)

    try:
        fails()
    except RuntimeError as error:
        sys.last_value, sys.last_traceback = error, error.__traceback__
    assert memory.release("cuda").freed_device_bytes > 0.9 * 2**30


def test_the_last_tracebacks_frames_are_counted(monkeypatch):
    """Of an error two calls deep three frames are cleared, the tensors in them go; none is kept where nothing failed."""
    for name in ("last_exc", "last_value", "last_traceback"):
        monkeypatch.delattr(sys, name, raising=False)
    assert _release._clear_tracebacks() == "No failed cell's traceback was kept."
    gone = []

    def inner():
        held = threading.Event()
        weakref.finalize(held, gone.append, "inner")
        raise ValueError(id(held))

    def outer():
        inner()

    try:
        outer()
    except ValueError as error:
        kept = error
    monkeypatch.setattr(sys, "last_value", kept, raising=False)
    assert _release._clear_tracebacks() == "Cleared the local variables in 3 frames of the last traceback."
    assert gone == ["inner"]


def test_every_librarys_cache_is_emptied(monkeypatch):
    """On CUDA what came back is told, with cuBLAS's workspaces; Apple's and Intel's say that it was done; CuPy's two pools."""
    done, reserved = [], iter([70, 30, 25, 25])
    pool = types.SimpleNamespace(
        total_bytes=lambda: 9 - 5 * len([one for one in done if one == "pool"]), free_all_blocks=lambda: done.append("pool")
    )
    pinned = types.SimpleNamespace(free_all_blocks=lambda: done.append("pinned"))
    cupy = types.SimpleNamespace(
        cuda=types.SimpleNamespace(is_available=lambda: True),
        get_default_memory_pool=lambda: pool,
        get_default_pinned_memory_pool=lambda: pinned,
    )
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setattr(torch, "clear_autocast_cache", lambda: done.append("autocast"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda index: next(reserved))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: done.append("cuda"))
    monkeypatch.setattr(torch._C, "_cuda_clearCublasWorkspaces", lambda: done.append("workspaces"), raising=False)
    assert _release._empty_caches() == ["PyTorch's cache gave back 50 B.", "CuPy's pool gave back 5 B."]
    assert done == ["autocast", "workspaces", "cuda", "pool", "pinned"]
    monkeypatch.delitem(sys.modules, "cupy")
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    for kind in ("mps", "xpu"):
        holder = torch.backends.mps if kind == "mps" else torch.xpu
        monkeypatch.setattr(holder, "is_available", lambda: True)
        monkeypatch.setattr(getattr(torch, kind), "empty_cache", lambda kind=kind: done.append(kind))
        assert _release._empty_caches() == ["Emptied PyTorch's cache."]
        monkeypatch.setattr(holder, "is_available", lambda: False)
    assert done[5:] == ["autocast", "mps", "autocast", "xpu"]
    assert _release._empty_caches() == []


@pytest.mark.usefixtures("old_aside")
def test_release_asks_before_and_after(monkeypatch):
    """It waits for the device first; what is free there is read before and after."""
    order, free = [], iter([10, 70])

    class Accelerator:
        is_cpu, name = False, "a GPU"

        @property
        def free_bytes(self):
            order.append("free")
            return next(free)

        def synchronize(self):
            order.append("wait")

        def __str__(self):
            return "cuda:0"

    monkeypatch.setattr(_release.devices, "find", lambda device: Accelerator())
    monkeypatch.setattr(_release, "_empty_caches", lambda: order.append("empty") or ["Emptied."])
    monkeypatch.setattr(_release, "_trim_heap", lambda: order.append("trim"))
    monkeypatch.setattr(_release, "_clear_tracebacks", lambda: "Cleared.")
    r = memory.release("cuda")
    assert order == ["wait", "free", "empty", "trim", "free"]
    assert (r.device, r.freed_device_bytes, r.what[0], r.what[-1]) == ("cuda:0", 60, "Cleared.", "Emptied.")
    assert r.what[1].startswith("Collected garbage (")
    assert repr(dataclasses.replace(r, host_resident_before_bytes=9, host_resident_after_bytes=2)) == (
        "<60 B came back on cuda:0, 7 B of this process>"
    )


@pytest.mark.parametrize("drop", [False, True])
def test_the_five_largest_outputs_are_told_and_all_are_dropped(monkeypatch, drop):
    """Of six, by their size; two views of one storage count once. Every name that IPython keeps goes, and the learner's own stays."""
    held = {number: torch.zeros(256 * number) for number in range(1, 7)}
    cache = {**held, 2: [held[2], held[2][:5]], 9: "text"}
    names = {"_oh": cache, "_4": cache[4], "_": cache[6], "mine": held[6], "_9": "text"}
    shell = types.SimpleNamespace(
        user_ns=dict(names), user_ns_hidden=dict(names), displayhook=types.SimpleNamespace(_=cache[6], __="text", ___=cache[2])
    )
    monkeypatch.setattr(_release, "_shell", lambda: shell)
    listed = ", ".join(f"Out[{number}] {number}.00 KiB" for number in (6, 5, 4, 3, 2))
    (said,) = _release._outputs(devices.find("cpu"), drop)
    hook = shell.displayhook
    if drop:
        assert said == f"Dropped from IPython's output cache: {listed}."
        assert cache == {9: "text"}
        assert [(space["_4"], space["_"], space["_9"]) for space in (shell.user_ns, shell.user_ns_hidden)] == [("", "", "text")] * 2
        assert shell.user_ns["mine"] is held[6]
        assert (hook._, hook.__, hook.___) == ("", "text", "")
        assert _release._outputs(devices.find("cpu"), drop) == []
    else:
        assert said == (f"IPython's output cache still holds arrays on cpu: {listed}. Call gl.memory.release(outputs=True) to drop them.")
        assert len(cache) == 7
        assert shell.user_ns == names
