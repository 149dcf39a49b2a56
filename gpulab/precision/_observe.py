"""Run one operator under autocast with inputs of three kinds, and conclude its policy from what the
kernels were given.

Run as ``python -m gpulab.precision._observe float16``, it tries every operator on fake CUDA tensors
and prints what it saw as JSON: PyTorch's own dispatcher decides, and no GPU is needed. That happens
in a process of its own, since a build without CUDA can abort there. Imported only inside functions:
it needs torch.
"""

from __future__ import annotations

import contextlib
import json
import sys
import warnings
from collections.abc import Callable, Sequence

import torch

from gpulab.errors import message_of
from gpulab.precision._autocast_cases import CASES
from gpulab.precision._dispatch import KernelTypes

Maker = Callable[[Sequence[tuple[int, ...]], Sequence[torch.dtype]], list[torch.Tensor]]
# What was seen of one operator: policy or None, what float32 and lower inputs ran in, and why it
# was not seen.
Seen = tuple[str | None, str, str, str]
Kernel = tuple[str, list[str], list[str]]  # name, types given, types it gave
# Which kernel this takes depends on the GPU at hand.
_NEEDS_A_GPU = {"scaled_dot_product_attention": "which kernel it takes depends on the GPU"}


def observe(name: str, make: Maker, low: torch.dtype) -> Seen:
    """Return the policy of one operator; autocast is on already."""
    function, shapes = CASES[name]

    def run(*dtypes: torch.dtype) -> list[Kernel]:
        inputs = make(shapes, dtypes)
        with KernelTypes() as seen:
            function(*inputs)
        return [(name, given, gave) for name, given, gave in seen.kernels]

    try:
        high, lower = run(*[torch.float32] * len(shapes)), run(*[low] * len(shapes))
    except Exception as error:
        # an operator that this device or this release cannot run: said in its row
        return None, "", "", f"{type(error).__name__}: {message_of(error)}"
    if not (high and lower):
        return None, "", "", "no kernel that takes floating-point numbers was seen"
    mixed: list[Kernel] = []
    if len(shapes) > 1:
        # Many operators that autocast leaves alone refuse inputs of two types: then nobody made
        # them equal.
        with contextlib.suppress(RuntimeError):
            mixed = run(low, *[torch.float32] * (len(shapes) - 1))
    first = next((t for t in map(_runs_in, high) if t != "float32"), "float32")
    second = "float32" if "float32" in map(_runs_in, lower) else _runs_in(lower[0])
    if first != "float32":
        policy = "lower"
    elif second == "float32":
        policy = "float32"
    else:
        policy = "widest" if mixed and set(mixed[0][1]) == {"float32"} else "inputs"
    return policy, first, second, ""


def _runs_in(kernel: Kernel) -> str:
    """Return the type that a kernel computes in: the wider of its first input and first output, for
    a softmax may take one and give two.
    """
    _, given, gave = kernel
    types = [given[0], *gave[:1]]
    return "float32" if "float32" in types else types[0]


def _fake(low: torch.dtype) -> dict[str, Seen]:
    from torch._subclasses.fake_tensor import FakeTensorMode

    # torch.autocast("cuda") switches itself off without a GPU; the switches below it do not.
    torch.set_autocast_enabled("cuda", True)
    torch.set_autocast_dtype("cuda", low)

    def make(
        shapes: Sequence[tuple[int, ...]], dtypes: Sequence[torch.dtype]
    ) -> list[torch.Tensor]:
        return [
            torch.empty(shape, dtype=dtype, device="cuda")
            for shape, dtype in zip(shapes, dtypes, strict=True)
        ]

    # Without gradients: with them, a build without CUDA aborts the process.
    with torch.no_grad(), FakeTensorMode(allow_non_fake_inputs=True):
        asked = [
            name
            for name in CASES
            if not name.startswith(("fft_", "linalg_")) or name == "linalg_vecdot"
        ]
        return {
            name: (None, "", "", _NEEDS_A_GPU[name])
            if name in _NEEDS_A_GPU
            else observe(name, make, low)
            for name in asked
        }


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    print(json.dumps(_fake(getattr(torch, sys.argv[1]))))
