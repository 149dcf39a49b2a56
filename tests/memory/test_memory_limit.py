"""The limit: what counts, PyTorch's own error, what keeps memory after it, and that everything is as before behind the block."""

from __future__ import annotations

import gc
import subprocess
import sys
import types

import pytest
import torch
from torch import nn

from gpulab import memory
from gpulab.errors import DeviceError, InputError
from gpulab.memory import _cap, _limit

MIB = 2**20


def made(mebibytes: int) -> torch.Tensor:
    """A tensor of so many MiB of float32."""
    return torch.zeros(mebibytes * MIB // 4)


def test_counts_living_storage_and_raises_pytorchs_error():
    """Three tensors of 4 MiB fit into 14; the fourth raises torch.OutOfMemoryError, and one let go makes room for it."""
    small = memory.limit(14 * MIB, "cpu", on_top=True)
    with small:
        kept = [made(4) for _ in range(3)]
        assert (small.live_bytes, small.free_bytes) == (12 * MIB, 2 * MIB)
        with pytest.raises(torch.OutOfMemoryError, match=r"Tried to allocate 4.00 MiB in aten.*allows 14.0 MiB, of which 2.00 MiB is free"):
            made(4)
        assert small.live_bytes == 12 * MIB  # what did not fit is not kept
        kept.pop()
        kept.append(made(4))
        assert small.peak_bytes == 12 * MIB


def test_a_view_costs_nothing_and_a_resize_counts():
    """Views share their storage; resizing in place is an allocation."""
    small = memory.limit(6 * MIB, "cpu", on_top=True)
    with small:
        a = made(4)
        views = [a[k:] for k in range(10)]
        assert small.live_bytes == 4 * MIB
        assert views[0].data_ptr() == a.data_ptr()
        a.resize_(5 * MIB // 4)
        assert small.live_bytes == 5 * MIB
        with pytest.raises(torch.OutOfMemoryError):
            a.resize_(7 * MIB // 4)


def test_a_training_step_and_what_autograd_keeps():
    """Autograd's saved activations count while the graph lives: eight ReLUs keep eight outputs, and none after the backward pass."""
    layers = nn.Sequential(*[nn.ReLU() for _ in range(8)])
    x = torch.ones(MIB // 4, requires_grad=True)
    small = memory.limit(64 * MIB, "cpu", on_top=True)
    with small:
        out = layers(x)
        assert small.live_bytes == 8 * MIB
        out.sum().backward()
        del out
        assert small.live_bytes == 1 * MIB  # the gradient of x


def test_the_caught_error_keeps_the_memory_until_it_goes():
    """Inside ``except`` the failed step's tensors live on in the traceback's frames, so a smaller step fails too; behind it, it fits."""
    small = memory.limit(10 * MIB, "cpu", on_top=True)

    def step(mebibytes: int) -> int:
        first = made(mebibytes)
        second = first + 1
        return second.numel()

    inside = ""
    with small:
        try:
            step(8)
        except torch.OutOfMemoryError:
            assert small.live_bytes == 8 * MIB
            try:
                step(4)
            except torch.OutOfMemoryError:
                inside = "failed again"
        assert inside == "failed again"
        assert small.live_bytes == 0
        assert step(4) == MIB


def test_a_kept_error_keeps_the_memory_and_knows_between_blocks():
    """An error that a variable keeps holds the tensors over the end of the block; entering again sees them still."""
    small = memory.limit(10 * MIB, "cpu", on_top=True)

    def fails() -> None:
        held = made(8).relu_()
        held + 1

    kept = None
    try:
        with small:
            fails()
    except torch.OutOfMemoryError as error:
        kept = error
    with small:
        assert small.live_bytes == 8 * MIB
        with pytest.raises(torch.OutOfMemoryError):
            made(4)
        kept.__traceback__ = None
        made(4)
    assert small.live_bytes == 0


@pytest.mark.usefixtures("old_aside")
def test_everything_that_lives_counts_without_on_top():
    """A tensor from before the block counts, as it does on a device."""
    before = made(4)
    gc.collect()  # what tests before left in cycles would go at any moment between the two readings
    small = memory.limit("1 GiB", "cpu")
    with small:
        assert small.live_bytes >= before.nbytes
        there = small.live_bytes
        assert small.peak_bytes == there  # before any operator
        after = made(2)
        assert small.live_bytes == there + after.nbytes


def test_behind_the_block_nothing_is_limited():
    """After the block, and after an error in it, tensors of any size are made again."""
    small = memory.limit(MIB, "cpu", on_top=True)
    with pytest.raises(torch.OutOfMemoryError), small:
        made(2)
    assert made(2).numel() == MIB // 2


def test_a_prediction_inside_the_block_takes_no_memory():
    """memory.predict works with fake tensors, which have no storage, so a limit does not see them."""
    small = memory.limit(4 * MIB, "cpu", on_top=True)
    model, x = nn.Linear(100, 100), torch.zeros(100_000, 100)[:1].expand(50_000, 100)
    with small:
        predicted = memory.predict(model, x, loss=torch.sum, optimizer="sgd")
        assert predicted.peak_bytes > 4 * MIB
        assert small.peak_bytes < MIB


@pytest.mark.parametrize("size", [0, -1, "much", "-3 MiB", float("nan"), None])
def test_refuses_what_is_no_size(size: object):
    """A size that is none is named in a sentence."""
    with pytest.raises(InputError):
        memory.limit(size)


def test_refuses_an_unknown_device_and_to_be_entered_twice():
    """A device that is not here, and one block inside itself."""
    with pytest.raises(DeviceError):
        memory.limit("1 MiB", "cuda:99")
    small = memory.limit("1 GiB", "cpu")
    with small, pytest.raises(InputError, match="entered already"), small:
        pass


def test_an_uncaught_error_in_a_shell_is_released(tmp_path):
    """A cell that fails keeps 40 MiB alive through the last traceback; memory.release gives it back, without a restart."""
    code = """
import contextlib, io
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
def run(code):
    with contextlib.redirect_stdout(io.StringIO()):
        return shell.run_cell(code, store_history=True)
run("import torch, gpulab as gl; small = gl.memory.limit('50 MiB', 'cpu', on_top=True)")
run("def step(n):\\n    x = torch.zeros(n, 2**18)\\n    return x + 1")
assert "OutOfMemory" in type(run("with small:\\n    step(40)").error_in_exec).__name__
run("held = small.live_bytes")
assert shell.user_ns["held"] == 40 * 2**20, shell.user_ns["held"]
assert "OutOfMemory" in type(run("with small:\\n    step(20)").error_in_exec).__name__
run("gl.memory.release('cpu'); after = small.live_bytes")
assert shell.user_ns["after"] == 0, shell.user_ns["after"]
assert run("with small:\\n    step(20)").success
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.gpu
def test_on_a_gpu_the_allocator_keeps_the_limit():
    """With 256 MiB allowed, 512 MiB raise PyTorch's error; behind the block they fit. In a process whose allocator holds nothing yet."""
    code = """
import torch
from gpulab import memory
try:
    with memory.limit("256 MiB", "cuda", on_top=True):
        torch.zeros(2**27, device="cuda")
    print("no error")
except torch.OutOfMemoryError as error:
    print("out of memory" in str(error), torch.zeros(2**27, device="cuda").numel() == 2**27)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["True", "True"], done.stdout + done.stderr[-1500:]


def test_what_just_fits_is_allowed():
    """A limit of 4 MiB holds 4 MiB; its line says what is in use."""
    small = memory.limit(4 * MIB, "cpu", on_top=True)
    with small:
        kept = made(4)
        assert (small.live_bytes, small.free_bytes) == (kept.nbytes, 0)
        assert repr(small) == "<limit of 4.00 MiB on cpu: 4.00 MiB in use>"


class Allocator:
    """PyTorch's module of an accelerator: 30 bytes held by tensors, 50 by the allocator, of which emptying leaves 40."""

    def __init__(self) -> None:
        self.calls: list[tuple] = []
        self.allocated, self.reserved = 30, 50

    def empty_cache(self) -> None:
        """Keep only what is in use."""
        self.reserved = 40

    def memory_allocated(self, index: int) -> int:
        """By tensors."""
        return self.allocated

    def max_memory_allocated(self, index: int) -> int:
        """The most of it."""
        return self.allocated + 20

    def memory_reserved(self, index: int) -> int:
        """By the allocator."""
        return self.reserved

    def get_per_process_memory_fraction(self, index: int) -> float:
        """What was allowed before."""
        return 0.75

    def reset_peak_memory_stats(self, index: int) -> None:
        """Begin anew."""
        self.calls.append(("reset", index))

    def set_per_process_memory_fraction(self, fraction: float, index: int) -> None:
        """Allow so much."""
        self.calls.append((fraction, index))


@pytest.mark.parametrize(("on_top", "fraction", "live"), [(False, 0.1, 35), (True, 0.14, 5)])
def test_an_accelerators_allocator_is_asked_for_a_share(monkeypatch: pytest.MonkeyPatch, on_top: bool, fraction: float, live: int):
    """100 of 1,000 bytes, on top 140 with what is in use; the share of before is back behind the block (a stand-in for the allocator)."""
    allocator = Allocator()
    device = types.SimpleNamespace(is_cpu=False, index=1, memory_bytes=1000, name="a GPU", torch_type="cuda")
    monkeypatch.setattr(_limit, "_memory_of", lambda device: allocator)
    monkeypatch.setattr(_limit.devices, "find", lambda device: device)
    small = memory.limit(100, device, on_top=on_top)
    with small:
        assert allocator.calls == [("reset", 1), (pytest.approx(fraction), 1)]
        allocator.allocated = 35
        assert (small.live_bytes, small.peak_bytes, small.free_bytes) == (live, live + 20, 100 - live)
    assert allocator.calls[2:] == [(0.75, 1)]
    with memory.limit(960 if on_top else 1000, device, on_top=on_top):
        pass
    with pytest.raises(InputError, match=r"1001 B is more than a GPU has \(1000 B\)"), memory.limit(1001, device, on_top=on_top):
        pass


def test_where_nothing_can_be_limited_it_is_said(monkeypatch: pytest.MonkeyPatch):
    """A device whose module has no share to set, and Apple's, whose share means something else."""
    for kind, module, says in (("xpu", types.SimpleNamespace(), "PyTorch cannot limit a GPU"), ("mps", Allocator(), "has no such limit")):
        device = types.SimpleNamespace(is_cpu=False, index=0, name="a GPU", torch_type=kind)
        monkeypatch.setattr(_limit, "_memory_of", lambda device, module=module: module)
        monkeypatch.setattr(_limit.devices, "find", lambda device: device)
        with pytest.raises(DeviceError, match=says):
            memory.limit(100, device)


@pytest.mark.usefixtures("old_aside")
def test_who_is_over_the_limit_from_the_start_can_work_in_place():
    """Only what takes more is refused, and nothing is free for it."""
    before = made(4)
    gc.collect()
    small = memory.limit(MIB, "cpu")
    with small:
        before.add_(1)
        assert small.free_bytes == 0
        with pytest.raises(torch.OutOfMemoryError, match="of which 0 B is free; live tensors hold"):
            made(1)


def test_what_was_there_before_never_counts_on_top():
    """However often it is used, and when it grows; when it is gone, nothing comes back."""
    before = made(1)
    cap = _cap.Cap("cpu", 100, True)
    with cap:
        before.add_(1)
        before.add_(1)
        before.resize_(2 * MIB // 4)
        assert cap.live_bytes == 0
        after = torch.zeros(20)
        del before
        assert (cap.live_bytes, cap.peak_bytes) == (after.nbytes, 80)
        with pytest.raises(torch.OutOfMemoryError, match=r"^CPU out of memory. Tried to allocate 40 B in aten.zeros.default. gpulab"):
            torch.zeros(10)
        assert torch.zeros(5).nbytes + after.nbytes == cap.peak_bytes == 100


def test_a_sparse_tensor_counts_with_all_its_parts():
    """Three ones on a diagonal: six places in int64 and three values, which is all that is left of the work."""
    cap = _cap.Cap("cpu", MIB, True)
    with cap:
        kept = torch.sparse_coo_tensor(torch.zeros(2, 3, dtype=torch.int64), torch.ones(3), check_invariants=False)
        assert cap.live_bytes == 48 + 12
    assert kept.shape == (1, 1)
