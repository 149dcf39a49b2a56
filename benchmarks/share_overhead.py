"""What ``gl.share`` costs over the library's own ``from_dlpack``, in microseconds a call.

Both are timed in one run, taking turns batch by batch, so that a change of the clock or another
program affects both. Run: python benchmarks/share_overhead.py [--quick]
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import gpulab as gl

LIMIT_MICROSECONDS = 5.0


def paired(
    ours: Callable[[], Any], theirs: Callable[[], Any], rounds: int, calls: int
) -> tuple[float, float, float]:
    """Return median microseconds of both and the median of the paired differences."""
    both: tuple[list[float], list[float]] = ([], [])
    for turn in range(rounds):
        for which in (0, 1) if turn % 2 else (1, 0):
            function = (ours, theirs)[which]
            start = time.perf_counter()
            for _ in range(calls):
                function()
            both[which].append((time.perf_counter() - start) / calls * 1e6)
    differences = [a - b for a, b in zip(*both, strict=True)]
    return statistics.median(both[0]), statistics.median(both[1]), statistics.median(differences)


def cases() -> list[tuple[str, Callable[[], Any], Callable[[], Any]]]:
    """Return (direction, gl.share, the library's own from_dlpack) for every pair of libraries that
    this machine has.
    """
    array, tensor = np.zeros((8, 8), np.float32), torch.zeros(8, 8)
    found = [
        ("numpy -> torch", lambda: gl.share(array, "torch"), lambda: torch.from_dlpack(array)),
        ("torch -> numpy", lambda: gl.share(tensor, "numpy"), lambda: np.from_dlpack(tensor)),
    ]
    found += _with_extras(tensor)
    if torch.cuda.is_available() and importlib.util.find_spec("cupy") is not None:
        import cupy

        there, here = torch.zeros(8, 8, device="cuda"), cupy.zeros((8, 8), cupy.float32)
        found.append(
            ("torch -> cupy", lambda: gl.share(there, "cupy"), lambda: cupy.from_dlpack(there))
        )
        found.append(
            ("cupy -> torch", lambda: gl.share(here, "torch"), lambda: torch.from_dlpack(here))
        )
    return found


def _with_extras(tensor: torch.Tensor) -> list[tuple[str, Callable[[], Any], Callable[[], Any]]]:
    """Return the directions of JAX and TensorFlow, if they are installed, each with the library's
    own call without a copy.
    """
    found: list[tuple[str, Callable[[], Any], Callable[[], Any]]] = []
    if importlib.util.find_spec("jax") is not None:
        jnp = importlib.import_module("jax.numpy")
        x = jnp.zeros((8, 8))
        found.append(
            (
                "torch -> jax",
                lambda: gl.share(tensor, "jax"),
                lambda: jnp.from_dlpack(tensor, copy=False),
            )
        )
        found.append(("jax -> numpy", lambda: gl.share(x, "numpy"), lambda: np.from_dlpack(x)))
    if importlib.util.find_spec("tensorflow") is not None:
        there = gl.to_device(np.zeros((8, 8), np.float32), "cpu", library="tensorflow")
        dlpack = importlib.import_module("tensorflow").experimental.dlpack
        found.append(
            (
                "torch -> tf",
                lambda: gl.share(tensor, "tensorflow"),
                lambda: dlpack.from_dlpack(tensor.__dlpack__()),
            )
        )
        found.append(
            ("tf -> numpy", lambda: gl.share(there, "numpy"), lambda: np.from_dlpack(there))
        )
    return found


def main() -> int:
    """Print the table; return 1 if a difference is over the limit."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a tenth of the rounds")
    rounds = 20 if parser.parse_args().quick else 200
    worst = 0.0
    print(
        f"{'direction':16} {'gl.share':>10} {'from_dlpack':>12} {'difference':>11}   microseconds "
        f"a call, median of {rounds} pairs"
    )
    for name, ours, theirs in cases():
        share, own, difference = paired(ours, theirs, rounds, 2000)
        # not JAX and TensorFlow: to see what they do unasked, share also checks dtype and address
        if "jax" not in name and "tf" not in name:
            worst = max(worst, difference)
        print(f"{name:16} {share:10.2f} {own:12.2f} {difference:11.2f}")
    print(
        f"largest difference without JAX and TensorFlow {worst:.2f} us; the limit is "
        f"{LIMIT_MICROSECONDS:g} us"
    )
    return int(worst > LIMIT_MICROSECONDS)


if __name__ == "__main__":
    raise SystemExit(main())
