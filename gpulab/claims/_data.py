"""Claims about moving data to the device, and about waiting for the device."""

from __future__ import annotations

import math

from gpulab.claims import _sources as at
from gpulab.claims._pairs import Compare, median_over, nbytes, only, over_median, pairs, several
from gpulab.claims._registry import Spec
from gpulab.claims.results import Claim

_THEME = "Data and launches"
_OTHER_WORKERS = (0, 1, 2, 8)
_BIG = (("matmul", 4096), ("attention", 4096), ("conv2d", 256))
_FLOAT32 = {"dtype": ("float32",)}


def _launches() -> Compare:
    cases = [only({**_FLOAT32, "workload": (name,), "n": (n,)}) for name, n in _BIG]
    return several(*(median_over("catalogue", lambda t: t.launch_seconds, case) for case in cases))


CLAIMS = (
    Spec(
        Claim(
            "pinned-copies",
            _THEME,
            "Copies from and to pinned memory are faster than those from and to pageable memory.",
            "time of a copy, pageable / pinned, from 64 KiB",
            at.TUNING,
            "Enable asynchronous data loading and augmentation",
            "gpu",
            1,
            math.inf,
            True,
        ),
        pairs(
            "transfer",
            {"memory": "pageable"},
            {"memory": "pinned"},
            keep=lambda p: int(p["nbytes"]) >= 2**16,
        ),
    ),
    Spec(
        Claim(
            "one-large-copy",
            _THEME,
            "One large copy is significantly faster than many small copies of the same data.",
            "time for each byte, copies of 4 KiB / one copy of 4 MiB",
            at.BEST_PRACTICES,
            "Data Transfer Between Host and Device",
            "gpu",
            1,
            math.inf,
            True,
        ),
        pairs("transfer", {"nbytes": 2**12}, {"nbytes": 2**22}, per=nbytes),
    ),
    Spec(
        Claim(
            "overlapped-copies",
            _THEME,
            "Copies that overlap with the computation take less time in total than both one after "
            "the other.",
            "total time, one after the other / in chunks",
            at.BEST_PRACTICES,
            "Asynchronous and Overlapping Transfers with Computation",
            "gpu",
            1,
            math.inf,
            True,
        ),
        pairs("overlap", {"arrangement": "serial"}, {"arrangement": "chunked"}),
    ),
    Spec(
        Claim(
            "copies-outweigh-adding",
            _THEME,
            "Adding two matrices does not justify moving them to the GPU: the copies cost more "
            "than the work.",
            "time with both copies / time without them, from 4 million elements",
            at.BEST_PRACTICES,
            "What Runs on a CUDA-Enabled Device?",
            "gpu",
            2,
            math.inf,
            True,
        ),
        over_median(
            "catalogue",
            lambda t: t.with_transfer_seconds,
            lambda p: p["workload"] == "add" and p["dtype"] == "float32" and int(p["n"]) >= 2**22,
        ),
    ),
    Spec(
        Claim(
            "launch-returns-early",
            _THEME,
            "A launch returns before the device has finished, so timing without synchronization is "
            "wrong.",
            "time of the work / time until the call returned, large work",
            at.BEST_PRACTICES,
            "Using CPU Timers",
            "gpu",
            2,
            math.inf,
            True,
        ),
        _launches(),
    ),
    Spec(
        Claim(
            "first-call",
            _THEME,
            "The first call is slower than the later ones, so it must be excluded from the result.",
            "time of the first call / median time, float32",
            at.BENCHMARK,
            "torch.utils.benchmark.Timer",
            "any",
            1,
            math.inf,
            True,
        ),
        over_median("catalogue", lambda t: t.first_call_seconds, only(_FLOAT32)),
    ),
    Spec(
        Claim(
            "graph-launches",
            _THEME,
            "A CUDA graph launches many small kernels at a lower cost than a stream does.",
            "time of 1,000 small operations, stream / graph",
            at.TUNING,
            "Use CUDA Graphs",
            "gpu",
            1,
            math.inf,
            True,
        ),
        pairs("launch", {"operation": "stream"}, {"operation": "graph"}),
    ),
    Spec(
        Claim(
            "item-waits",
            _THEME,
            "Reading a loss with .item() in each step makes training slower, because the queue of "
            "work runs empty.",
            "time of 50 steps, reading the loss / keeping it",
            at.TUNING,
            "Avoid unnecessary CPU-GPU synchronization",
            "gpu",
            1,
            math.inf,
            True,
        ),
        pairs("pipeline", {"part": "loop", "reads_loss": 1}, {"part": "loop", "reads_loss": 0}),
    ),
    Spec(
        Claim(
            "workers-help",
            _THEME,
            "Workers of the DataLoader (num_workers > 0) load data while the training goes on.",
            "time of a step, no worker / one or more; on a CPU only the time to get a batch",
            at.TUNING,
            "Enable asynchronous data loading and augmentation",
            "any",
            1,
            math.inf,
            True,
        ),
        several(
            *(
                pairs("pipeline", {"part": "step", "workers": 0}, {"part": "step", "workers": w})
                for w in (1, 2, 4, 8)
            )
        ),
    ),
    Spec(
        Claim(
            "four-workers",
            _THEME,
            "Four workers for each GPU are the best number.",
            "time of a step, another number of workers / four",
            at.KUHN,
            "2. Use multiple workers and pinned memory",
            "any",
            1,
            math.inf,
            True,
        ),
        several(
            *(
                pairs("pipeline", {"part": "step", "workers": w}, {"part": "step", "workers": 4})
                for w in _OTHER_WORKERS
            )
        ),
    ),
    Spec(
        Claim(
            "as-tensor",
            _THEME,
            "torch.tensor copies an array, torch.as_tensor shares it.",
            "time to wrap 16 MiB of a NumPy array, torch.tensor / torch.as_tensor",
            at.TENSOR,
            "Parameters, warning",
            "any",
            1,
            math.inf,
            True,
        ),
        pairs(
            "tips", {"tip": "as_tensor", "form": "without"}, {"tip": "as_tensor", "form": "with"}
        ),
    ),
    Spec(
        Claim(
            "create-there",
            _THEME,
            "Creating a tensor on the device is faster than creating it on the host and moving it.",
            "time to make 16 MiB of zeros, made on the host and moved / made on the device",
            at.TUNING,
            "Create tensors directly on the target device",
            "gpu",
            1,
            math.inf,
            True,
        ),
        pairs(
            "tips",
            {"tip": "create_on_device", "form": "without"},
            {"tip": "create_on_device", "form": "with"},
        ),
    ),
)
