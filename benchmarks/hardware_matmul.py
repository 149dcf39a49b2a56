"""Time the matmul ladder's last float32 rungs as a share of cuBLAS, with TF32 off, in turns; the
goal is 93 %.

    python benchmarks/hardware_matmul.py [--record FOLDER] [--size 4096] [--rounds 7] [--quick]
        [--committed]

A round measures cuBLAS and each rung with each of its compiler options, forwards and then
backwards, so that a drifting clock affects all alike. The share is the ratio of cuBLAS's seconds to
the rung's, the median over the rounds. The rungs on Tensor Cores are left out: they are not
float32.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))
import _recorded

import gpulab as gl
from gpulab import devices
from gpulab.errors import GpulabError
from gpulab.evidence import Environment
from gpulab.kernels import cuda_launcher
from gpulab.kernels.ladder import rung as rung_of
from gpulab.results import Result

GOAL = 0.93
RUNGS = ("matmul-vectorized", "matmul-warp-tiled", "matmul-double-buffered")
LIBRARY = "cuBLAS"
_ROWS_CHECKED = 64


@dataclass(frozen=True)
class ShareRecord(Result):
    """One rung with one set of options: its seconds and cuBLAS's seconds in each round.

    ``max_relative_difference`` is the largest difference of some rows from the float64 result,
    relative to its largest value.
    """

    rung: str
    options: tuple[str, ...]
    seconds: tuple[float, ...]
    library_seconds: tuple[float, ...]
    notes: tuple[str, ...]
    max_relative_difference: float

    @property
    def shares(self) -> tuple[float, ...]:
        """The ratio of cuBLAS's seconds to the rung's in each round."""
        return tuple(
            theirs / ours for ours, theirs in zip(self.seconds, self.library_seconds, strict=True)
        )

    @property
    def share(self) -> float:
        """The median share."""
        return statistics.median(self.shares)


@dataclass(frozen=True)
class MatmulRecord(Result):
    """The comparison on one GPU. ``tf32_allowed`` is PyTorch's setting while cuBLAS was
    measured.
    """

    environment: Environment
    n: int
    goal: float
    tf32_allowed: bool
    library_max_relative_difference: float
    rungs: tuple[ShareRecord, ...]
    explanation: str = ""

    @property
    def best(self) -> ShareRecord:
        """The rung with the largest share."""
        return max(self.rungs, key=lambda each: each.share)


def in_turns(
    works: dict[Any, Callable[[], Any]], rounds: int, measure: Callable[[Callable[[], Any]], Any]
) -> tuple[dict[Any, list[float]], dict[Any, set[str]]]:
    """Measure each work once forwards and once backwards in each round; return seconds (the mean of
    the two) and note codes by work.
    """
    seconds: dict[Any, list[float]] = {key: [] for key in works}
    notes: dict[Any, set[str]] = {key: set() for key in works}
    for _ in range(rounds):
        taken: dict[Any, list[float]] = {key: [] for key in works}
        for key in (*works, *reversed(works)):
            m = measure(works[key])
            taken[key].append(m.median_seconds)
            notes[key] |= {note.code for note in m.notes}
        for key, values in taken.items():
            seconds[key].append(statistics.fmean(values))
    return seconds, notes


def off_by(c: np.ndarray, a: np.ndarray, b: np.ndarray) -> float:
    """Return the largest difference of some rows of ``c`` from ``a @ b`` in float64, relative to
    its largest value there.
    """
    rows = np.linspace(0, len(a) - 1, min(_ROWS_CHECKED, len(a)), dtype=int)
    expected = a[rows].astype(np.float64) @ b.astype(np.float64)
    return float(np.abs(c[rows] - expected).max() / np.abs(expected).max())


def _launchers(n: int) -> Iterator[tuple[str, tuple[str, ...], Any, tuple[Any, ...]]]:
    """Yield each rung's name, options, launcher, and arguments on the host."""
    for rung in map(rung_of, RUNGS):
        for options in rung.options:
            given = rung.arguments(n)
            yield (
                rung.name,
                options,
                cuda_launcher(rung.source, rung.kernel, *rung.launch(n), *given, options=options),
                given,
            )


def compare(n: int, rounds: int, deadline: float) -> MatmulRecord:
    """Measure cuBLAS and the rungs in turns on the first CUDA device."""
    import torch

    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        a, b, *_ = rung_of(RUNGS[0]).arguments(n)
        left, right = torch.from_numpy(a).cuda(), torch.from_numpy(b).cuda()
        out = torch.empty(n, n, device="cuda")
        works: dict[Any, Callable[[], Any]] = {LIBRARY: lambda: torch.matmul(left, right, out=out)}
        results: dict[Any, float] = {}
        for name, options, ready, (x, y, z, _) in _launchers(n):
            ready()
            ready.fetch()
            results[name, options] = off_by(z, x, y)
            works[name, options] = ready
        works[LIBRARY]()
        exact = off_by(out.cpu().numpy(), a, b)
        seconds, notes = in_turns(
            works,
            rounds,
            lambda work: gl.measure(work, device="cuda:0", flops=2.0 * n**3, deadline=deadline),
        )
        shares = tuple(
            ShareRecord(
                key[0],
                key[1],
                tuple(seconds[key]),
                tuple(seconds[LIBRARY]),
                tuple(sorted(notes[key] | notes[LIBRARY])),
                results[key],
            )
            for key in results
        )
        environment = devices.environment(
            "cuda:0", f"python benchmarks/hardware_matmul.py --size {n} --rounds {rounds}"
        )
        return MatmulRecord(
            environment, n, GOAL, torch.backends.cuda.matmul.allow_tf32, exact, shares
        )
    finally:
        torch.set_float32_matmul_precision(before)


def problems(record: MatmulRecord) -> list[str]:
    """Return what is wrong with a record that is to be committed, one sentence each."""
    found = []
    if record.tf32_allowed:
        found.append("TF32 was allowed; expected it off.")
    if record.library_max_relative_difference > 1e-5:  # TF32 would be off by about 1e-4 to 1e-3
        found.append(
            f"cuBLAS was off by {record.library_max_relative_difference:.1e}; expected float32's "
            "rounding, at most 1e-5."
        )
    for each in record.rungs:
        if each.max_relative_difference > rung_of(each.rung).tolerance:
            found.append(
                f"{each.rung} {' '.join(each.options)}: off by {each.max_relative_difference:.1e}; "
                "expected a product."
            )
        if len(each.seconds) < 3 or len(each.seconds) != len(each.library_seconds):
            found.append(
                f"{each.rung}: {len(each.seconds)} rounds; expected at least 3, with cuBLAS in "
                "each."
            )
        if not all(0 < s < 60 for s in (*each.seconds, *each.library_seconds)):
            found.append(f"{each.rung}: a time is not between 0 and 60 s.")
    if {each.rung for each in record.rungs} != set(RUNGS):
        found.append(f"the rungs are not {', '.join(RUNGS)}.")
    elif record.best.share < record.goal and len(record.explanation.split()) < 3:
        found.append(
            f"the best rung has {record.best.share:.1%} of cuBLAS, below {record.goal:.0%}; "
            "expected an explanation."
        )
    return found


def summary(record: MatmulRecord) -> str:
    """Return the shares as text."""
    lines = [
        f"{record.environment.device}, {record.n} x {record.n}, float32, TF32 "
        f"{'ALLOWED' if record.tf32_allowed else 'off'}"
    ]
    for each in record.rungs:
        rate = 2e-12 * record.n**3 / statistics.median(each.seconds)
        spread = f"{min(each.shares):.1%} to {max(each.shares):.1%}"
        lines.append(
            f"{each.rung:22s} {' '.join(each.options):20s} {rate:6.1f} TFLOP/s  {each.share:.1%} "
            f"of cuBLAS ({spread})"
        )
    best = record.best
    goal = "reached" if best.share >= record.goal else "not reached"
    lines.append(
        f"The best, {best.rung} {' '.join(best.options)}, has {best.share:.1%}; the goal of "
        f"{record.goal:.0%} is {goal}."
    )
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> int:
    """Measure and report; return 1 where a product is wrong, 0 otherwise (also below the goal, and
    where it was skipped).
    """
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--record", type=Path, help="folder for the JSON file")
    parser.add_argument("--size", type=int, default=4096, help="a multiple of 256")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--quick", action="store_true", help="1024 x 1024, three rounds")
    parser.add_argument(
        "--committed", action="store_true", help="check the committed files; needs no GPU"
    )
    asked = parser.parse_args(arguments)
    if asked.committed:
        return _recorded.check("matmul", MatmulRecord, summary, problems)
    import torch

    if not torch.cuda.is_available():
        print("hardware_matmul: skipped: torch sees no CUDA device; expected one.")
        return 0
    try:
        import cupy  # noqa: F401
    except ImportError as error:
        print(
            f"hardware_matmul: skipped: CuPy cannot be imported ({error}); expected it. Install "
            "cupy-cuda13x or cupy-cuda12x."
        )
        return 0
    try:
        amount = (1024, 3, 0.2) if asked.quick else (asked.size, asked.rounds, 0.25)
        record = compare(*amount)
    except GpulabError as error:
        print(f"hardware_matmul: failed: {error}", file=sys.stderr)
        return 1
    print(summary(record))
    if asked.record:
        print(
            "Written to "
            f"{_recorded.write(record, 'matmul', record.environment.device, asked.record)}."
        )
    wrong = any(
        each.max_relative_difference > rung_of(each.rung).tolerance for each in record.rungs
    )
    return int(wrong or record.tf32_allowed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
