"""Compare one exact rounding with other casts: how often they differ, and the time per number.

    python benchmarks/rounding.py [--quick] [--count 20000000] [--seed 1]

Three questions. Does ``gl.precision.round_to`` agree, on random bits, with NumPy's casts of float64
to float32 and float16, which round once? How many of the float64 numbers just beside a midpoint
does PyTorch's cast from float64 round to the wrong side? How much CPU time does a number take? In
the first, nothing may differ: the exit code is 1 if something does.
"""

from __future__ import annotations

import argparse
import sys
import time

import numpy as np
import torch

from gpulab import precision

CHUNK = 1_000_000
PYTORCH = {
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float8_e5m2": torch.float8_e5m2,
    "float8_e4m3fn": torch.float8_e4m3fn,
}


def against_numpy(name: str, count: int, seed: int) -> int:
    """Return how many of ``count`` random floats are rounded differently from NumPy's cast; a nan
    must become a nan, whatever its bits.
    """
    rng, wrong = np.random.default_rng(seed), 0
    top = {"float32": 2.0**129, "float16": 2.0**17}[name]
    for start in range(0, count, CHUNK):
        some = min(CHUNK, count - start)
        bits = rng.integers(0, 2**64, some // 2, dtype=np.uint64).view(np.float64)
        spread = (
            rng.choice([-1.0, 1.0], some - some // 2)
            * top
            * 2.0 ** -rng.uniform(0, 300 if name == "float32" else 45, some - some // 2)
        )
        x = np.concatenate([bits, spread])
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            cast = x.astype(name).astype(np.float64)
        rounded = precision.round_to(x, name)
        same = (rounded.view(np.uint64) == cast.view(np.uint64)) | (
            np.isnan(rounded) & np.isnan(cast)
        )
        wrong += int((~same).sum())
    return wrong


def beside_midpoints(name: str) -> tuple[int, int]:
    """Return (how many PyTorch rounds to the wrong side, how many there are) of the float64 numbers
    on either side of every midpoint. The numbers of the format are PyTorch's, by their bits.
    """
    size = PYTORCH[name].itemsize
    bits = torch.from_numpy(np.arange(2 ** (8 * size), dtype=f"uint{8 * size}"))
    codes = bits.view(PYTORCH[name]).to(torch.float64).numpy()
    numbers = np.unique(codes[np.isfinite(codes)])
    middles = (numbers[:-1] + numbers[1:]) / 2
    wrong = 0
    for side, right in ((-np.inf, numbers[:-1]), (np.inf, numbers[1:])):
        x = np.nextafter(middles, side)
        got = torch.from_numpy(x).to(PYTORCH[name]).to(torch.float64).numpy()
        wrong += int((got != right).sum())
        if not (precision.round_to(x, name) == right).all():
            raise SystemExit(f"round_to is wrong beside a midpoint of {name}")
    return wrong, 2 * len(middles)


def nanoseconds(name: str) -> float:
    """Return the CPU time per number, for a million numbers, in ns: the least of ten tries."""
    x = np.random.default_rng(0).standard_normal(1_000_000)
    taken = []
    for _ in range(10):
        start = time.process_time()
        precision.round_to(x, name)
        taken.append(time.process_time() - start)
    return 1e9 * min(taken) / x.size


def main() -> int:
    """Print the figures; return 1 if a rounding differs from NumPy's."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=20_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="a million floats")
    options = parser.parse_args()
    options.count = CHUNK if options.quick else options.count
    differ = 0
    for name in ("float32", "float16"):
        wrong = against_numpy(name, options.count, options.seed)
        differ += wrong
        print(f"{name}: {wrong} of {options.count:,} random floats differ from NumPy's cast")
    for name in PYTORCH:
        wrong, count = beside_midpoints(name)
        print(
            f"{name}: PyTorch {torch.__version__} rounds {wrong:,} of {count:,} floats beside a "
            "midpoint to the wrong side; ours 0"
        )
    for name in precision.formats():
        print(f"{name}: {nanoseconds(name):.0f} ns of one core a number")
    return int(differ > 0)


if __name__ == "__main__":
    sys.exit(main())
