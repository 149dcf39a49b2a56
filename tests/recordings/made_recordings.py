"""Small recordings of an invented machine, for tests that need known numbers."""

import dataclasses
from typing import Any

import numpy as np
from gpulab.evidence import Environment, Note
from gpulab.recordings import Entry, Recording, Timing

EARLIER, LATER = "2026-11-20T10:00:00+00:00", "2026-11-21T10:00:00+00:00"
MATMUL = {"workload": "matmul", "n": 1024, "dtype": "float32"}


def a_timing(**changes: Any) -> Timing:
    """Return a timing of 1 ms within 10 %, of three samples with 2 GFLOP each."""
    fields: dict[str, Any] = {
        "samples_seconds": np.array([1.0e-3, 1.1e-3, 0.9e-3]), "sample_count": 3,
        "median_seconds": 1.0e-3, "interval_seconds": (0.9e-3, 1.1e-3), "first_call_seconds": 0.2,
        "launch_seconds": 1.0e-4, "with_transfer_seconds": None, "calls_per_sample": 1,
        "flops": 2.0e9, "nbytes": None,
        "notes": (Note("slow-first-call", "the first call took 200 times as long"),),
    }  # fmt: skip
    return Timing(**{**fields, **changes})


def a_recording(**changes: Any) -> Recording:
    """Return a recording of one matrix product that was measured and one that was not."""
    environment = Environment(
        date=EARLIER, system="Linux", processor="P", cores=2, memory_bytes=2**34,
        device="Test Device", device_kind="cuda", driver="580.1", python="3.12.3",
        libraries={"torch": "2.11.0"}, command="gpulab record --minutes 8",
    )  # fmt: skip
    entries = (
        Entry("catalogue", MATMUL, a_timing()),
        Entry("catalogue", {**MATMUL, "n": 2048}, None, "time did not reach it"),
    )
    fields = {
        "name": "test", "environment": environment, "clocks_seen": {"sm_mhz": 1980.0},
        "machine": {"a": [1, None]}, "gpulab_version": "0.1.0", "entries": entries,
    }  # fmt: skip
    return Recording(**{**fields, **changes})


def made(date: str, *entries: Entry, **environment: Any) -> Recording:
    """Return the invented machine's recording of a date, with changes to its environment. That of
    the later day has another name.
    """
    plain = a_recording().environment
    return a_recording(
        environment=dataclasses.replace(plain, date=date, **environment), entries=entries,
        name="test" if date == EARLIER else "later",
    )  # fmt: skip


def timed(n: int, seconds: float, date: str | None = None, width: float = 0.1) -> Entry:
    """Return a case of an experiment that gpulab does not know."""
    interval = (seconds * (1 - width), seconds * (1 + width))
    timing = a_timing(median_seconds=seconds, interval_seconds=interval)
    return Entry("e", {"n": n}, timing, None, date)
