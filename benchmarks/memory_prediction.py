"""Compare predicted memory with real steps: `python benchmarks/memory_prediction.py [--quick]
[--held-out N] [--device cuda]`.

The predicted live storage is compared with a tracker of the benchmark's own, and live storage plus
scratch with the CPU allocator's events under the profiler (see ``_memory_oracle``). Also: PyTorch's
MemTracker on the same cases, and the time and memory of predicting a billion-parameter transformer
in a process of its own. The exit status is 1 if a peak is off by 1 % or more, or if a process grows
by more than ``needed_bytes``.

With ``--device cuda`` the named cases run on the GPU, and the predicted peak is compared with
``torch.cuda.max_memory_allocated`` (bounds: 1 % in the median, 5 % at worst; peak + scratch must
not be lower), and with the bytes that were requested from the allocator, which rounds up to blocks
of 512 bytes. Then PyTorch is limited to 4 GiB: the batch that ``largest_batch`` finds must run, and
a batch whose predicted peak alone is above the limit must not. The exit status is 1 if a bound is
missed.
"""

from __future__ import annotations

import argparse
import gc
import json
import pathlib
import statistics
import subprocess
import sys
import warnings

import torch
from _memory_cases import Case, named_cases, random_case
from _memory_oracle import (
    NotOnThisProcessorError,
    RealStep,
    allocator_peak,
    cuda_peaks,
    live_peak,
)
from _memory_unusual import large_cases, unusual_cases

from gpulab import memory, networks

LIMIT_BYTES = 4 * 2**30
LARGEST_ERROR = 0.01  # on a CPU, as predictions state it
GPU_MEDIAN, GPU_LARGEST = 0.01, 0.05
BILLION = """
import json, pathlib, time
import torch, numpy, torch._subclasses.fake_tensor
import gpulab.memory, gpulab.networks, gpulab.memory.predictions, gpulab.memory.step_memory
import torch.nn.functional as F
def resident(field):
    for line in pathlib.Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
before, start = resident("VmRSS"), time.perf_counter()
x = torch.zeros(4, 1024, dtype=torch.int64)
p = gpulab.memory.predict(
    lambda: gpulab.networks.transformer(50_000, %d, 28, %d, context=1024), x, targets=x, optimizer="adam", checkpoint=%s
)
print(json.dumps({"seconds": time.perf_counter() - start, "above_imports": resident("VmHWM") - before,
                  "peak": p.peak_bytes, "parameters": p.parameter_count}))
"""


def billion(checkpoint=False, width=1792, layers=24):
    """Predict a 24-layer transformer in a fresh process; return the time, the memory used above
    imports, and the prediction.
    """
    out = subprocess.run(
        [sys.executable, "-c", BILLION % (width, layers, checkpoint)],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return json.loads(out)


def resident(field):
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def grow(number):
    """Take three real steps of a large case in this process; print by how much it grew and what was
    predicted. Return whether it grew by no more than ``needed_bytes``.
    """
    case = large_cases()[number]
    before = resident("VmRSS")
    step = RealStep(case)
    for _ in range(3):
        step()
    grown = resident("VmHWM") - before
    p = memory.predict(
        case.model(),
        *case.inputs(),
        loss=case.loss,
        optimizer=case.optimizer,
        precision=case.precision,
    )
    peak, scratch, grown, needed = (
        round(n / 2**20) for n in (p.peak_bytes, p.scratch_bytes, grown, p.needed_bytes())
    )
    print(
        f"{case.name:25s} process grew {grown} MiB; peak {peak}, scratch {scratch}, needed with "
        f"margin {needed}",
        flush=True,
    )
    return grown <= needed


def relative(predicted, real):
    return (predicted - real) / real


def mem_tracker(case):
    """Return PyTorch's own prediction (fake tensors under MemTracker), or the error it raises."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed._tools.mem_tracker import MemTracker

    try:
        with FakeTensorMode(allow_non_fake_inputs=True):
            step = RealStep(case)
            tracker = MemTracker()
            tracker.track_external(step.model, step.optimizer, *step.inputs)
            with tracker:
                step()
                tracker.reset_mod_stats()
                step()
        snapshot = tracker.get_tracker_snapshot("peak")
        return next(iter(snapshot.values()))["Total"]
    except Exception as error:  # the table also shows the errors that a peer raises
        return type(error).__name__


def run(cases, peers):
    """Compare the cases; return whether all peaks are within the bound."""
    rows = []
    for case in cases:
        try:
            first, later, _ = live_peak(case)
            total = allocator_peak(case)
        except NotOnThisProcessorError as error:
            print(f"{case.name:55s} not run: {error}", flush=True)
            continue
        torch.manual_seed(0)
        p = memory.predict(
            case.model(),
            *case.inputs(),
            loss=case.loss,
            optimizer=case.optimizer,
            precision=case.precision,
            checkpoint=case.checkpoint,
        )
        row = (
            relative(p.peak_bytes, later),
            relative(p.first_step_peak_bytes, first),
            relative(p.peak_bytes + p.scratch_bytes, total),
        )
        peer = ""
        if peers:
            other = mem_tracker(case)
            peer = (
                "   MemTracker "
                f"{other if isinstance(other, str) else format(relative(other, later), '+.2%')}"
            )
        rows.append(row)
        print(
            f"{case.name:55s} real {later:>11,d}  peak {row[0]:+8.3%}  first step {row[1]:+8.3%}  "
            f"with scratch / allocator {1 + row[2]:.3f}{peer}",
            flush=True,
        )
    errors = [abs(row[0]) for row in rows]
    print(
        f"{len(rows)} cases: median |error| {statistics.median(errors):.3%}, largest "
        f"{max(errors):.3%}; first step's largest {max(abs(row[1]) for row in rows):.3%}; peak + "
        f"scratch under the allocator's peak in {sum(row[2] < 0 for row in rows)} (lowest "
        f"{1 + min(row[2] for row in rows):.6f}, median "
        f"{1 + statistics.median(row[2] for row in rows):.3f})"
    )
    return max(errors) < LARGEST_ERROR


def predicted(case, device):
    """Return the prediction for a case on a device."""
    torch.manual_seed(0)
    with torch.device(device):
        model, inputs = case.model(), case.inputs()
    return memory.predict(
        model,
        *inputs,
        loss=case.loss,
        optimizer=case.optimizer,
        precision=case.precision,
        checkpoint=case.checkpoint,
        device=device,
    )


def on_gpu(quick, device="cuda"):
    """Compare the predictions for the named cases with the CUDA allocator; return whether they are
    within the bounds.
    """
    with torch.device(device):
        cases = named_cases()[:: 5 if quick else 1]
    against_allocated, against_requested, with_scratch = [], [], []
    for case in cases:
        try:
            p = predicted(case, device)
            allocated, requested = cuda_peaks(case, device=device)
        except Exception as error:  # one case must not cost the others
            print(f"{case.name:40s} not run: {type(error).__name__}: {error}"[:200], flush=True)
            continue
        against_allocated.append(relative(p.peak_bytes, allocated))
        against_requested.append(relative(p.peak_bytes, requested))
        with_scratch.append(relative(p.peak_bytes + p.scratch_bytes, allocated))
        print(
            f"{case.name:40s} allocator {allocated:>12,d}  peak {against_allocated[-1]:+8.3%}  "
            f"of requested {against_requested[-1]:+8.3%}  with scratch {with_scratch[-1]:+8.3%}",
            flush=True,
        )
    for name, errors in (("allocated", against_allocated), ("requested", against_requested)):
        sizes = [abs(error) for error in errors]
        print(
            f"{len(sizes)} cases, predicted peak against {name}: median |error| "
            f"{statistics.median(sizes):.3%}, largest {max(sizes):.3%}"
        )
    low = sum(error < 0 for error in with_scratch)
    print(f"peak + scratch below the allocator's peak in {low} (lowest {min(with_scratch):+.3%})")
    sizes = [abs(error) for error in against_allocated]
    within = statistics.median(sizes) <= GPU_MEDIAN and max(sizes) <= GPU_LARGEST and not low
    print(f"bounds: 1 % in the median, 5 % at most, none below: {'met' if within else 'MISSED'}")
    return within


def flat_cross_entropy(output, target):
    return torch.nn.functional.cross_entropy(output.flatten(0, -2), target.flatten())


def transformer_batch(n):
    return torch.ones(n, 256, dtype=torch.int64), torch.ones(n, 256, dtype=torch.int64)


def image_batch(n):
    return torch.ones(n, 3, 64, 64), torch.ones(n, dtype=torch.int64)


LIMITED = {
    "transformer": (
        lambda: networks.transformer(8000, 512, 8, 8, context=256),
        transformer_batch,
    ),
    "cnn": (lambda: networks.cnn(3, 10, 64, 4), image_batch),
}


def runs(model, make_batch, size, device):
    """Return whether two steps with a batch fit, and the allocator's highest level."""
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    with torch.device(device):
        inputs, targets = make_batch(size)
        case = Case(
            "", model, lambda: (inputs,), lambda output: flat_cross_entropy(output, targets)
        )
    try:
        step = RealStep(case, device=device)
        for _ in range(2):
            step()
        torch.cuda.synchronize()
    except torch.OutOfMemoryError:
        return False, torch.cuda.max_memory_allocated()
    return True, torch.cuda.max_memory_allocated()


def limited(device="cuda"):
    """Check ``largest_batch`` with an allocator that is limited to ``LIMIT_BYTES``; return whether
    its batches run, and those above the limit do not.
    """
    right = True
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(LIMIT_BYTES / total)
    for name, (model, make_batch) in LIMITED.items():
        options = {"loss": flat_cross_entropy, "device": device}
        found = memory.largest_batch(model, make_batch, memory=LIMIT_BYTES, **options)
        over = found
        while True:  # the first batch, in steps of 5 %, whose peak alone is above the limit
            over = int(1.05 * over) + 1
            inputs, targets = make_batch(over)
            if memory.predict(model, inputs, targets=targets, **options).peak_bytes > LIMIT_BYTES:
                break
        fits, peak = runs(model, make_batch, found, device)
        over_fits, _ = runs(model, make_batch, over, device)
        right &= fits and not over_fits
        low, high = found, over
        for _ in range(6):
            middle = (low + high) // 2
            low, high = (
                (middle, high) if runs(model, make_batch, middle, device)[0] else (low, middle)
            )
        print(
            f"{name}: limit {LIMIT_BYTES / 2**30:g} GiB, largest_batch {found} runs: {fits} (peak "
            f"{peak / 2**30:.2f} GiB); {over}, whose predicted peak is above it, runs: "
            f"{over_fits}; in truth about {low} run ({low / max(found, 1):.2f} of what was found)",
            flush=True,
        )
    torch.cuda.set_per_process_memory_fraction(1.0)
    return right


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--quick",
        action="store_true",
        help="a third of the named cases (on a GPU a fifth), five others, five random ones",
    )
    parser.add_argument("--held-out", type=int, default=40, help="how many random architectures")
    parser.add_argument(
        "--seed", type=int, default=1000, help="the first random architecture's seed"
    )
    parser.add_argument("--peers", action="store_true", help="also PyTorch's MemTracker")
    parser.add_argument("--grow", type=int, help="one large case in this process")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    if options.device == "cuda":
        if not torch.cuda.is_available():
            parser.exit(2, "memory_prediction: torch sees no CUDA device; expected one.\n")
        return int(not all([on_gpu(options.quick), limited()]))
    if options.grow is not None:
        return int(not grow(options.grow))
    print("named cases")
    right = [run(named_cases()[:: 3 if options.quick else 1], options.peers)]
    print("other kinds of models (written after the code, which was then changed for one of them)")
    right.append(run(unusual_cases()[:: 4 if options.quick else 1], options.peers))
    count = 5 if options.quick else options.held_out
    print(
        f"{count} random architectures from seed {options.seed} (the code was changed for three of "
        "the 40 from 1000)"
    )
    right.append(run([random_case(options.seed + i) for i in range(count)], options.peers))
    if not pathlib.Path("/proc/self/status").exists():
        print("the whole process: not measured, since this system has no /proc; expected Linux")
        return int(not all(right))
    print("the whole process")
    for number in range(len(large_cases()))[:: 3 if options.quick else 1]:
        command = [sys.executable, __file__, "--grow", str(number)]
        right.append(subprocess.run(command, check=False).returncode == 0)
    for recompute in (False, True):
        print("a billion parameters" + (", checkpointed" if recompute else ""), billion(recompute))
    return int(not all(right))


if __name__ == "__main__":
    sys.exit(main())
