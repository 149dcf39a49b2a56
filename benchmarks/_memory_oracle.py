"""An independent measurement of a training step's memory, without code of ``gpulab.memory``.

There are two measurements on a CPU. ``live_peak`` runs the real step under a small dispatch mode of
its own and sums the storages that are alive after each operator. ``allocator_peak`` runs it without
a mode under PyTorch's profiler, which records every allocation and release of the CPU allocator,
also inside operators. On a GPU ``cuda_peaks`` reads the statistics of PyTorch's allocator.
"""

from __future__ import annotations

import contextlib
import gc
import math
import os
import weakref

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint


class LiveStorages(TorchDispatchMode):
    """Sum the bytes of all storages seen that are still alive."""

    def __init__(self):
        super().__init__()
        self.sizes, self.now, self.peak, self.operator = {}, 0, 0, ""

    def see(self, tensor):
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key not in self.sizes:
            weakref.finalize(storage, self.forget, key)
        self.now += size - self.sizes.get(key, 0)
        self.sizes[key] = size

    def forget(self, key):
        self.now -= self.sizes.pop(key)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves((args, kwargs, result)):
            if isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided:
                self.see(leaf)
        if self.now > self.peak:
            self.peak, self.operator = self.now, str(func)
        return result


class Recomputed(nn.Module):
    """A layer whose activations are recomputed in the backward pass."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, *args, **kwargs):
        return checkpoint(self.inner, *args, use_reentrant=False, **kwargs)


def recompute_children(model):
    for name, child in list(model.named_children()):
        if isinstance(child, (nn.ModuleList, nn.ModuleDict)):
            recompute_children(child)
        else:
            setattr(model, name, Recomputed(child))


class NotOnThisProcessorError(Exception):
    """The real step cannot run here: oneDNN has no such kernel for this processor (bfloat16 LSTMs
    without AVX-512, for one).
    """


class RealStep:
    """A step of the ordinary training loop, on real tensors. A case's loss holds its targets, so on
    a GPU the cases themselves must be made under ``torch.device``.
    """

    def __init__(self, case, seed=0, device="cpu"):
        torch.manual_seed(seed)
        self.device = device
        with torch.device(device):
            self.model, self.inputs, self.loss = case.model(), case.inputs(), case.loss
        self.half = {"bfloat16": torch.bfloat16, "float16": torch.float16}.get(case.precision)
        if case.precision.startswith("pure-"):
            dtype = getattr(torch, case.precision.removeprefix("pure-"))
            self.model = self.model.to(dtype)
            self.inputs = tuple(x.to(dtype) if x.is_floating_point() else x for x in self.inputs)
        if case.checkpoint:
            recompute_children(self.model)
        self.optimizer = case.real_optimizer(
            [p for p in self.model.parameters() if p.requires_grad]
        )
        self.scaler = torch.amp.GradScaler(device) if case.precision == "float16" else None

    def __call__(self):
        try:
            self._step()
        except RuntimeError as error:
            if "could not create a primitive" not in str(error):
                raise
            raise NotOnThisProcessorError(
                "oneDNN has no kernel on this processor for a layer of this precision"
            ) from error

    def _step(self):
        self.optimizer.zero_grad()
        with torch.autocast(self.device, self.half, enabled=self.half is not None):
            loss = (
                self.model(*self.inputs)
                if self.loss is None
                else self.loss(self.model(*self.inputs))
            )
        if self.scaler is None:
            loss.backward()
            self.optimizer.step()
        else:
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()


def live_peak(case, steps=3, seed=0):
    """Return (first step's peak, later steps' peak, the operator at the later peak); bytes."""
    step = RealStep(case, seed)
    mode = LiveStorages()
    state = [
        value
        for entry in step.optimizer.state.values()
        for value in entry.values()
        if isinstance(value, torch.Tensor)
    ]
    for tensor in [*step.model.parameters(), *step.model.buffers(), *step.inputs, *state]:
        mode.see(tensor)
    peaks = []
    with mode:
        for _ in range(steps):
            mode.peak = 0
            step()
            peaks.append((mode.peak, mode.operator))
    later = max(peaks[1:])
    return peaks[0][0], later[0], later[1]


def cuda_peaks(case, steps=3, device="cuda"):
    """Return the highest level of PyTorch's CUDA allocator over the later steps, in bytes above
    what was there before: as allocated (in blocks of 512 bytes), and as requested.

    One such step is run before and dropped, so that cuBLAS's workspaces, which are never released,
    count as memory that was there before.
    """
    RealStep(case, device=device)()
    gc.collect()
    stats = torch.cuda.memory_stats()
    allocated, requested = (
        stats[f"{kind}_bytes.all.current"] for kind in ("allocated", "requested")
    )
    step = RealStep(case, device=device)
    step()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    for _ in range(steps - 1):
        step()
    torch.cuda.synchronize()
    stats = torch.cuda.memory_stats()
    return (
        torch.cuda.max_memory_allocated() - allocated,
        stats["requested_bytes.all.peak"] - requested,
    )


def _walk(events):
    stack = list(events)
    while stack:
        event = stack.pop()
        yield event
        stack.extend(event.children)


@contextlib.contextmanager
def _quiet():
    """Hide stderr, to which Kineto writes two lines for each profile."""
    saved, sink = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(sink, 2)
    try:
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(sink)


LATER = "the steps whose peak is asked for"


def highest_level(run):
    """Return the highest level of PyTorch's CPU allocator while ``run()`` ran, in bytes above the
    level at its beginning, and what the level grew by. If ``run()`` enters
    ``record_function(LATER)``, only what is within counts for both.

    The profiler does not see what is released by a thread that PyTorch did not start.
    """
    gc.collect()
    with _quiet(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        run()
    events = list(_walk(recorded.profiler.kineto_results.experimental_event_tree()))
    within = [(each.start_time_ns, each.end_time_ns) for each in events if each.name == LATER]
    begin, end = within[0] if within else (0, math.inf)
    level = highest = first = last = 0
    for event in sorted(events, key=lambda each: each.start_time_ns):
        if event.typed[0].name == "Allocation":
            level += event.typed[1].alloc_size
        if event.start_time_ns < begin:
            first = level
        elif event.start_time_ns <= end:
            highest, last = max(highest, level), level
    return highest, last - first


def _targets_bytes(loss):
    """Return the bytes of the targets, which a case's loss holds since before the profile."""
    held = [cell.cell_contents for cell in getattr(loss, "__closure__", None) or ()]
    return sum(each.nbytes for each in held if isinstance(each, torch.Tensor))


def allocator_peak(case, steps=2, seed=0):
    """Return the allocator's highest level, the model, its inputs and targets included, in
    bytes.
    """

    def run():
        step = RealStep(case, seed)
        for _ in range(steps):
            step()

    return _targets_bytes(case.loss) + highest_level(run)[0]
